//! Descriptors a second: one producer, one worker that steps the NIC's engine, chains of 16.
//!
//! Beside it, in the same run, what bounds it: the bare ring (the same pushes, and a consumer that only releases
//! and completes), and what a descriptor costs the producer, the worker and the NIC's engine each, with all of
//! them on one thread. Worker and engine share a core, so their sum bounds the rate.

#![allow(missing_docs, clippy::unwrap_used, reason = "a benchmark")]

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use device::host::pin;
use device::proxy::{
    Descriptor, Handoff, HostProducer, ProxyChoice, ProxyKernel, ProxyRateArgs, RingState,
    RingView, launch,
};
use mini_proxy::ring::{Consumer, RingLayout};
use mini_proxy::{ChannelAttr, Drive, Proxy, ProxyAttr};
use rdma::soft::{Fabric, FabricAttr};
use rdma::{Access, Memory, Nic};

const OPS: u64 = 4_000_000;
const WARMUP: u64 = 200_000;
const SLOTS: u64 = 256;
const LOG_DEPTH: u32 = 10;

fn rate(view: &RingView, local: u64, cpu: usize) -> f64 {
    let (mut start, mut end, mut failure) = (0u64, 0u64, 0u64);
    let args = ProxyRateArgs {
        ring: view,
        rings: 1,
        threads: 1,
        channels: 1,
        bytes: 8,
        ops: OPS,
        warmup: WARMUP,
        window: 512,
        first: 1,
        slots: SLOTS,
        stride: 8,
        local,
        start: &raw mut start,
        end: &raw mut end,
        failure: &raw mut failure,
    };
    // SAFETY: one thread, one word each.
    unsafe { launch(&ProxyChoice::default(), ProxyKernel::Rate(&args), &[cpu], None) }.unwrap();
    assert_eq!(failure, 0, "{:?}", device::view::Failure::unpack(failure));
    let ticks = (end - start) as f64;
    (OPS - WARMUP) as f64 / (ticks / device::host::Clock::host().ticks_per_us)
}

/// A consumer that takes, releases and completes 16 at a time and does nothing else.
fn bare(cpus: [usize; 2]) -> f64 {
    let memory = Memory::zeroed(RingLayout::of(LOG_DEPTH).bytes);
    let payload = Memory::zeroed(8 * SLOTS as usize);
    let layout = RingLayout::of(LOG_DEPTH);
    let at = |offset: usize| memory.as_ptr().wrapping_add(offset);
    let mut state = RingState::starting_at(0);
    let mut consumer = Consumer::new(Arc::clone(&memory), Handoff::LapParity, LOG_DEPTH, 0);
    let view = RingView {
        slots: at(layout.slots),
        flags: at(layout.flags).cast(),
        counter: at(layout.counter).cast(),
        progress: at(layout.progress),
        state: &raw mut state,
        channels: std::ptr::null(),
        deadline: device::host::Clock::host().ticks(std::time::Duration::from_secs(30)),
        log_depth: LOG_DEPTH,
        channel_count: 1,
        number: 0,
        qpn: 0,
    };
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let thread = std::thread::spawn(move || {
        pin(cpus[1]);
        let mut sum = 0u64;
        let mut next = 0u64;
        while !stopped.load(Relaxed) {
            let first = next;
            while next - first < 16
                && let Some([low, high]) = consumer.peek(next)
            {
                sum = sum.wrapping_add(low ^ high);
                next += 1;
            }
            consumer.release(next);
            consumer.complete(next);
        }
        std::hint::black_box(sum);
    });
    let rate = rate(&view, payload.as_ptr() as u64, cpus[0]);
    stop.store(true, Relaxed);
    thread.join().unwrap();
    rate
}

fn proxy(cpus: [usize; 2], chain: u32, signal_every: u32) -> f64 {
    let fabric = Fabric::open(&FabricAttr::default()).unwrap();
    let (near, far) = (fabric.nic(0).clone(), fabric.nic(1).clone());
    let bytes = 8 * SLOTS as usize;
    let local = near.register(&Memory::zeroed(bytes), Access::empty()).unwrap();
    let remote = far.register(&Memory::zeroed(bytes), Access::REMOTE_WRITE).unwrap();
    let channels = vec![ChannelAttr { local: local.clone(), remote, signal: None }];
    let attr = ProxyAttr {
        channels,
        depth: 1 << LOG_DEPTH,
        chain,
        signal_every,
        drive: Drive::Threads { cpus: vec![cpus[1]] },
        ..ProxyAttr::default()
    };
    let proxy = Proxy::connect(near, far.as_ref(), &attr).unwrap();
    let rate = rate(&proxy.views()[0], local.address, cpus[0]);
    let c = proxy.counters();
    println!(
        "  chain {chain:2}, one CQE in {signal_every:2}: {rate:6.1} M descriptors/s   ({:.1} requests a doorbell, \
         {:.1} a CQE, queue full {} times)",
        c.requests as f64 / c.doorbells as f64,
        c.requests as f64 / c.completions as f64,
        c.full
    );
    rate
}

/// Nanoseconds of a descriptor in the producer, the worker and the NIC's engine: medians over rounds of 256.
fn costs(signal_every: u32) -> [f64; 3] {
    const ROUND: u64 = 256;
    let fabric = Fabric::open(&FabricAttr::default()).unwrap();
    let (near, far) = (fabric.nic(0).clone(), fabric.nic(1).clone());
    let local = near.register(&Memory::zeroed(4096), Access::empty()).unwrap();
    let remote = far.register(&Memory::zeroed(4096), Access::REMOTE_WRITE).unwrap();
    let channels = vec![ChannelAttr { local, remote, signal: None }];
    let attr = ProxyAttr { channels, signal_every, ..ProxyAttr::default() };
    let proxy = Proxy::connect(near.clone(), far.as_ref(), &attr).unwrap();
    let relax = proxy.relax();
    // SAFETY: the proxy outlives it, and it is the only producer.
    let mut producer =
        unsafe { HostProducer::new(ProxyChoice::default(), &proxy.views()[0], Some(&relax)) }
            .unwrap();
    let puts: Vec<Descriptor> = (0..ROUND)
        .map(|i| Descriptor { size: 8, source: 8 * i, destination: 8 * i, ..Descriptor::default() })
        .collect();
    let mut rounds: [Vec<f64>; 3] = Default::default();
    for _ in 0..4000 {
        let begin = Instant::now();
        producer.push(&puts).unwrap();
        let pushed = Instant::now();
        (0..ROUND / 16).for_each(|_| _ = proxy.step());
        let posted = Instant::now();
        while near.step() {}
        let executed = Instant::now();
        proxy.step();
        let done = Instant::now();
        producer.quiet().unwrap();
        let worker = (posted - pushed) + (done - executed);
        for (all, one) in rounds.iter_mut().zip([pushed - begin, worker, executed - posted]) {
            all.push(one.as_nanos() as f64 / ROUND as f64);
        }
    }
    rounds.map(|mut all| {
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    })
}

fn main() {
    // `cargo test --benches` runs this, too.
    if std::env::args().any(|arg| arg == "--test") {
        return;
    }
    let cpus = [0, usize::from(std::thread::available_parallelism().is_ok_and(|n| n.get() > 1))];
    println!(
        "8-byte puts, one producer on CPU {}, worker and NIC engine on CPU {}",
        cpus[0], cpus[1]
    );
    println!("  bare ring: {:6.1} M descriptors/s", bare(cpus));
    let best = (0..3).map(|_| proxy(cpus, 16, 16)).fold(0.0, f64::max);
    proxy(cpus, 16, 1);
    proxy(cpus, 1, 1);
    println!("  bare ring: {:6.1} M descriptors/s", bare(cpus));
    for every in [16, 1] {
        let [push, worker, engine] = costs(every);
        println!(
            "  on one thread, one CQE in {every:2}: push {push:.1} ns, worker {worker:.1} ns, NIC engine {engine:.1} ns \
             a descriptor: a core that does the last two is bound to {:.1} M/s",
            1e3 / (worker + engine)
        );
    }
    let verdict = if best >= 10.0 { "met" } else { "MISSED" };
    println!("target 10.0 M descriptors/s with chains of 16: {verdict} ({best:.1})");
}
