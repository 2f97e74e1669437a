//! How many WQEs a second one engine thread executes, requester and responder both, beside the bare loop.
//!
//! The bare loop is the least that any engine must do: read the same cache lines, store the same 8 bytes,
//! write the same completions, with one thread submitting and one draining. The NIC is measured beside it, in
//! the same run, interleaved, by the same submitter: 8-byte inline writes on 1, 8 and 64 QPs, batches of 32,
//! one doorbell and one completion a batch, both threads pinned. Then other kinds of work, on one QP.
//!
//! Where the two cores are far apart, a queue that is larger than their first caches costs a slow transfer a
//! WQE. The bare loop tells, which has the same; a shallow queue is measured for that, too. The engine's thread
//! gives up its copies of the lines that it has read, the bare loop doesn't: there the NIC may be the faster.
//!
//! `cargo bench -p softnic --bench engine_rate [-- SECONDS-A-POINT]`
//!
//! With `-- count [N]` a fixed number of rounds of inline writes, or of the N-th other work, is stepped through
//! in one thread, and the number of WQEs printed: what `valgrind --tool=callgrind` counts, divided by that, is
//! the instructions a WQE.
#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a bench that can't be set up has nothing to say"
)]

mod rig;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rig::{Pair, Queue, Work, submit};
use softnic::{EngineOptions, SoftNics};

fn pin(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

/// Posts to a queue that nobody reads: what the submitter alone can do.
fn submitter_alone(time: Duration) -> f64 {
    let mut queue = Queue::new(Work::INLINE, 1, 0, 1);
    let start = Instant::now();
    while start.elapsed() < time {
        for _ in 0..256 {
            queue.post_batch();
        }
    }
    queue.producer as f64 / start.elapsed().as_secs_f64() / 1e6
}

/// The least that an engine must do, on one queue.
fn bare(work: Work, time: Duration, cpu: usize) -> f64 {
    let Work { batch, depth, .. } = work;
    let mut queue = [Queue::new(work, 1, 0, 1)];
    let stop = AtomicBool::new(false);
    let cqes = queue[0].cqes();
    let (sq, cq, record) =
        (Arc::clone(&queue[0].sq), Arc::clone(&queue[0].cq), Arc::clone(&queue[0].record));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(cpu);
            let memory: Vec<AtomicU64> = (0..depth).map(|_| AtomicU64::new(0)).collect();
            let mut ci = 0u64;
            while !stop.load(Ordering::Relaxed) {
                let producer = u32::from_be(record.half(4).load(Ordering::Acquire)) as u16;
                let n = producer.wrapping_sub(ci as u16);
                if n == 0 {
                    std::hint::spin_loop();
                }
                for _ in 0..n {
                    let at = ((ci & (depth - 1)) * 64) as usize;
                    let ahead = (((ci + 16) & (depth - 1)) * 64) as usize;
                    #[cfg(target_arch = "x86_64")]
                    // SAFETY: a prefetch inside of the queue.
                    unsafe {
                        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
                        _mm_prefetch::<_MM_HINT_T0>(sq.as_ptr().add(ahead).cast());
                    }
                    let half = |o: usize| u32::from_be(sq.half(at + o).load(Ordering::Relaxed));
                    assert_eq!((half(0) >> 8) as u16, ci as u16);
                    let to = half(20) as usize / 32;
                    let value = u64::from(half(36)) << 32 | u64::from(half(40));
                    if half(32) & 0x7fff_ffff == 8 {
                        memory[to & (depth as usize - 1)].store(value, Ordering::Relaxed);
                    }
                    if half(8) & 8 != 0 {
                        let entry = ci / batch;
                        let slot = ((entry & (cqes - 1)) * 64) as usize;
                        for word in 0..7 {
                            cq.word(slot + word * 8).store(0, Ordering::Relaxed);
                        }
                        let owner = (entry / cqes) & 1;
                        cq.word(slot + 56).store(owner << 56, Ordering::Release);
                    }
                    ci += 1;
                }
            }
        });
        let rate = submit(&mut queue, time);
        stop.store(true, Ordering::Relaxed);
        rate
    })
}

/// One engine thread drives both NICs.
fn nic(work: Work, qps: usize, time: Duration, cpu: usize) -> f64 {
    let mut pair = Pair::new(work, qps);
    let options = EngineOptions { cpu: Some(cpu), ..EngineOptions::default() };
    let engine = SoftNics::spawn(std::mem::take(&mut pair.nics), options).unwrap();
    let rate = submit(&mut pair.queues, time);
    engine.stop();
    rate
}

/// The submitter steps the NICs itself: no line crosses between cores, so this is the engine's own time.
fn stepped(work: Work, qps: usize, time: Duration) -> f64 {
    let mut pair = Pair::new(work, qps);
    let start = Instant::now();
    while start.elapsed() < time {
        for _ in 0..16 {
            pair.round();
        }
    }
    let done: u64 = pair.queues.iter().map(|q| q.completed).sum();
    done as f64 / start.elapsed().as_secs_f64() / 1e6
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

const ROUNDS: usize = 5;

/// A measured row: the NIC's rates, and the bare loop's on as deep a queue.
struct Row {
    name: &'static str,
    work: Work,
    qps: usize,
    rates: Vec<f64>,
    floor: Vec<f64>,
}

fn inline_writes(time: Duration, engine: usize) {
    let row = |name, work, qps| Row { name, work, qps, rates: Vec::new(), floor: Vec::new() };
    let mut rows = [
        row("NIC, 1 QP", Work::INLINE, 1),
        row("NIC, 8 QPs", Work::INLINE, 8),
        row("NIC, 64 QPs", Work::INLINE, 64),
        row("NIC, 1 QP, shallow", Work::SHALLOW, 1),
    ];
    let (mut alone, mut own) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        alone.push(submitter_alone(time / 4));
        own.push(stepped(Work::INLINE, 1, time));
        for row in &mut rows {
            row.floor.push(bare(row.work, time / 2, engine));
            row.rates.push(nic(row.work, row.qps, time, engine));
        }
    }
    let (alone, own) = (median(&mut alone), median(&mut own));
    println!(
        "{:<26} {:>8} {:>8} {:>10} {:>12}",
        Work::INLINE.name,
        "M WQE/s",
        "bare",
        "bare/this",
        "to 1 QP"
    );
    println!("{:<26} {alone:>8.1}", "submitter, nobody reads");
    println!("{:<26} {own:>8.1}   {:.1} ns a WQE", "NIC stepped by submitter", 1e3 / own);
    let mut first = None;
    for row in &mut rows {
        let (rate, floor) = (median(&mut row.rates), median(&mut row.floor));
        let (one, _) = *first.get_or_insert((rate, floor));
        print!("{:<26} {rate:>8.1} {floor:>8.1} {:>10.2}", row.name, floor / rate);
        if row.work.depth == Work::INLINE.depth {
            print!(" {:>+10.1} %", (rate / one - 1.0) * 100.0);
        }
        println!();
    }
    let (rate, floor) = first.unwrap_or((own, own));
    let bound = if floor < 0.8 * rate {
        "the transfer of WQE lines between the two cores, and less so than the bare loop is"
    } else if floor < 1.5 * rate {
        "the transfer of WQE lines between the two cores, as the bare loop is"
    } else if rate > 0.7 * own {
        "the engine's own instructions"
    } else {
        "both the transfer of WQE lines between the cores and the engine's own instructions"
    };
    println!("# The NIC is bound by {bound}.");
}

fn other_work(time: Duration, engine: usize) {
    println!("{:<30} {:>10} {:>12} {:>10}", "1 QP, engine thread", "M WQE/s", "stepped", "GB/s");
    for work in Work::OTHERS {
        let (mut rates, mut own) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            rates.push(nic(work, 1, time, engine));
            own.push(stepped(work, 1, time));
        }
        let (rate, own) = (median(&mut rates), median(&mut own));
        let bytes = rate * f64::from(work.len) / 1e3;
        println!("{:<30} {rate:>10.3} {own:>12.3} {bytes:>10.2}", work.name);
    }
    println!(
        "# Reads and atomics: 16 in flight. Bulk is bound by two copies: into the packet and out."
    );
}

fn main() {
    if std::env::args().any(|a| a == "count") {
        let nth = std::env::args().find_map(|a| a.parse::<usize>().ok());
        let work = nth.and_then(|n| Work::OTHERS.get(n)).copied().unwrap_or(Work::INLINE);
        let mut pair = Pair::new(work, 1);
        for _ in 0..10_000 {
            pair.round();
        }
        println!("{}: {} WQEs", work.name, pair.queues[0].completed);
        return;
    }
    let seconds = std::env::args().skip(1).find_map(|a| a.parse::<f64>().ok()).unwrap_or(0.3);
    let time = Duration::from_secs_f64(seconds);
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let engine = 1.min(cpus - 1);
    println!(
        "# {cpus} CPUs; submitter on CPU 0, engine on CPU {engine}; queues of {} blocks, shallow {}, medians of {ROUNDS}",
        Work::INLINE.depth,
        Work::SHALLOW.depth,
    );
    pin(0);
    inline_writes(time, engine);
    other_work(time / 3, engine);
}
