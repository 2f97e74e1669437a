//! The experiments' kernels over a proxy, in every choice that the host build holds.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod common;

use std::sync::atomic::Ordering::Acquire;

use common::*;
use device::host::Clock;
use device::proxy::*;
use device::view::{Failure, Why};
use mini_proxy::{ChannelAttr, Proxy, ProxyAttr};

/// The launch's first payload value.
const FIRST: u64 = 1 << 33;

fn choices() -> Vec<ProxyChoice> {
    let mut all = Vec::new();
    for &handoff in Handoff::ALL {
        for &producers in Producers::ALL {
            for &progress in Progress::ALL {
                let publish = Publish::Release;
                all.push(ProxyChoice { handoff, producers, progress, publish });
            }
        }
    }
    for &producers in Producers::ALL {
        let publish = Publish::Posted;
        all.push(ProxyChoice { producers, publish, ..ProxyChoice::default() });
    }
    all
}

fn put(slot: u64) -> Descriptor {
    Descriptor { size: 8, source: 8 * slot, destination: 8 * slot, ..Descriptor::default() }
}

#[test]
fn enqueue_times_every_operation_and_delivers_the_last_value_of_each_slot() {
    for choice in choices() {
        let threads = if choice.producers == Producers::Many { 2 } else { 1 };
        let (warmup, samples, slots) = (3u64, 60u64, 7u64);
        let known = choice.handoff == Handoff::MappedCounter;
        // Which thread raises next is open: a slot each would need a thread each.
        let threads = if known { 1 } else { threads };
        let requests = if known { (0..slots).map(put).collect() } else { Vec::new() };
        let rig = rig(4096, 1, ProxyAttr { choice, requests, ..ProxyAttr::default() });
        let kept = (samples * u64::from(threads)) as usize;
        let (mut enqueue, mut total) = (vec![u64::MAX; kept], vec![u64::MAX; kept]);
        let mut failure = vec![u64::MAX; threads as usize];
        let args = EnqueueArgs {
            ring: rig.proxy.views().as_ptr(),
            rings: 1,
            threads,
            channel: 0,
            bytes: 8,
            slots,
            stride: 8,
            warmup,
            samples,
            first: FIRST,
            local: rig.local.address,
            enqueue: enqueue.as_mut_ptr(),
            total: total.as_mut_ptr(),
            failure: failure.as_mut_ptr(),
            until: Until::Completed,
        };
        let runs = [
            (ProxyOp::Put, Until::Completed),
            (ProxyOp::Put, Until::Posted),
            (ProxyOp::PutSignal, Until::Completed),
        ];
        for (op, until) in runs {
            if known && op == ProxyOp::PutSignal {
                continue;
            }
            let args = EnqueueArgs { until, ..args };
            let relax = rig.proxy.relax();
            // SAFETY: the buffers outlive the launch and are as long as the arguments say.
            unsafe { launch(&choice, ProxyKernel::Enqueue(op, &args), &[], Some(&relax)) }.unwrap();
            for word in &failure {
                rig.proxy.check(*word).unwrap();
            }
            assert!(enqueue.iter().zip(&total).all(|(e, t)| e <= t), "{choice:?}");
        }
        if !known {
            assert_eq!(rig.signal(), u64::from(threads) * (warmup + samples), "{choice:?}");
        }
        let n = warmup + samples;
        for t in 0..u64::from(threads) {
            for slot in 0..slots {
                let last = (0..n).rev().find(|i| i % slots == slot).unwrap();
                let at = 8 * (t * slots + slot) as usize;
                assert_eq!(
                    rig.remote.memory.word(at).load(Acquire),
                    FIRST + t * n + last,
                    "{choice:?} thread {t} slot {slot}"
                );
            }
        }
    }
}

#[test]
fn rate_completes_what_it_pushes() {
    for choice in choices() {
        let (threads, rings) = if choice.producers == Producers::Many { (3, 2) } else { (2, 2) };
        let (ops, slots) = (2_000u64, 16u64);
        let known = choice.handoff == Handoff::MappedCounter;
        let requests = if known { (0..slots).map(put).collect() } else { Vec::new() };
        let channels = if known { 1 } else { 2 };
        let attr = ProxyAttr { choice, rings, requests, depth: 64, ..ProxyAttr::default() };
        let rig = rig(4096, channels, attr);
        let n = threads as usize;
        let (mut start, mut end, mut failure) = (vec![0; n], vec![0; n], vec![u64::MAX; n]);
        let args = ProxyRateArgs {
            ring: rig.proxy.views().as_ptr(),
            rings,
            threads,
            channels: channels as u32,
            bytes: 8,
            ops,
            warmup: 100,
            window: 64,
            first: FIRST,
            slots,
            stride: 8,
            local: rig.local.address,
            start: start.as_mut_ptr(),
            end: end.as_mut_ptr(),
            failure: failure.as_mut_ptr(),
        };
        let relax = rig.proxy.relax();
        // SAFETY: the buffers outlive the launch and are as long as the arguments say.
        unsafe { launch(&choice, ProxyKernel::Rate(&args), &[], Some(&relax)) }.unwrap();
        for word in &failure {
            rig.proxy.check(*word).unwrap();
        }
        assert!(start.iter().zip(&end).all(|(s, e)| s < e), "{choice:?}");
        let counters = rig.proxy.counters();
        assert_eq!(counters.completed, ops * u64::from(threads), "{choice:?}");
        assert_eq!(counters.taken, counters.posted, "{choice:?}");
        assert!(counters.doorbells <= counters.requests, "{choice:?}");
    }
}

#[test]
fn a_round_trip_goes_through_both_sides_proxies() {
    for choice in choices().into_iter().filter(|c| c.producers == Producers::One) {
        let known = choice.handoff == Handoff::MappedCounter;
        let requests = if known { vec![put(0)] } else { Vec::new() };
        let there =
            rig(4096, 1, ProxyAttr { choice, requests: requests.clone(), ..ProxyAttr::default() });
        let register = |nic: &rdma::soft::SoftNic| {
            use rdma::Nic;
            nic.register(&rdma::Memory::zeroed(4096), rdma::Access::all()).unwrap()
        };
        // Back: from memory of the far side to memory of the near side.
        let (outbox, inbox) = (register(&there.far), register(&there.near));
        let channels =
            vec![ChannelAttr { local: outbox.clone(), remote: inbox.clone(), signal: None }];
        let attr = ProxyAttr { choice, requests, channels, ..ProxyAttr::default() };
        let back = Proxy::connect(there.far.clone(), there.near.as_ref(), &attr).unwrap();
        let word = |address: u64| address as *mut u64;
        let (mut ticks, mut failure) = (vec![0u64; 50], vec![u64::MAX; 2]);
        let rings = [there.proxy.views()[0], back.views()[0]];
        let args = ProxyRoundTripArgs {
            ring: rings.as_ptr(),
            outbox: [word(there.local.address), word(outbox.address)],
            inbox: [word(inbox.address), word(there.remote.address)],
            warmup: 5,
            samples: 50,
            deadline: Clock::host().ticks(std::time::Duration::from_secs(30)),
            ticks: ticks.as_mut_ptr(),
            failure: failure.as_mut_ptr(),
            first_side: 0,
            sides: 2,
        };
        let relax = Proxy::relax_all([&there.proxy, &back]);
        // SAFETY: the buffers outlive the launch and are as long as the arguments say.
        unsafe { launch(&choice, ProxyKernel::RoundTrip(&args), &[], Some(&relax)) }.unwrap();
        assert_eq!(failure.iter().filter_map(|w| Failure::unpack(*w)).next(), None, "{choice:?}");
        assert!(ticks.iter().all(|t| *t > 0), "{choice:?}");
        assert_eq!(inbox.memory.word(0).load(Acquire), 55, "{choice:?}");
    }
}

#[test]
fn a_choice_that_is_not_built_is_named() {
    let choice = ProxyChoice {
        handoff: Handoff::ValidByte,
        publish: Publish::Posted,
        ..ProxyChoice::default()
    };
    let args = ProxyRateArgs {
        ring: std::ptr::null(),
        rings: 1,
        threads: 1,
        channels: 1,
        bytes: 8,
        ops: 1,
        warmup: 0,
        window: 2,
        first: 0,
        slots: 1,
        stride: 8,
        local: 0,
        start: std::ptr::null_mut(),
        end: std::ptr::null_mut(),
        failure: std::ptr::null_mut(),
    };
    // SAFETY: nothing is built for the choice, so nothing is looked at.
    let error = unsafe { launch(&choice, ProxyKernel::Rate(&args), &[], None) }.unwrap_err();
    assert!(error.to_string().contains("ValidByte"), "{error}");
}

#[test]
fn a_lone_producer_without_a_ring_of_its_own_says_so_and_pushes_nothing() {
    let choice = ProxyChoice::default();
    let rig = rig(4096, 1, ProxyAttr { choice, ..ProxyAttr::default() });
    let (mut enqueue, mut total) = ([0u64; 8], [0u64; 8]);
    let (mut start, mut end) = ([0u64; 2], [0u64; 2]);
    let mut failure = [[u64::MAX; 2]; 2];
    let single = EnqueueArgs {
        ring: rig.proxy.views().as_ptr(),
        rings: 1,
        threads: 2,
        channel: 0,
        bytes: 8,
        slots: 4,
        stride: 8,
        warmup: 0,
        samples: 4,
        first: FIRST,
        local: rig.local.address,
        enqueue: enqueue.as_mut_ptr(),
        total: total.as_mut_ptr(),
        failure: failure[0].as_mut_ptr(),
        until: Until::Completed,
    };
    let many = ProxyRateArgs {
        ring: rig.proxy.views().as_ptr(),
        rings: 1,
        threads: 2,
        channels: 1,
        bytes: 8,
        ops: 4,
        warmup: 0,
        window: 2,
        first: FIRST,
        slots: 4,
        stride: 8,
        local: rig.local.address,
        start: start.as_mut_ptr(),
        end: end.as_mut_ptr(),
        failure: failure[1].as_mut_ptr(),
    };
    let relax = rig.proxy.relax();
    for kernel in [ProxyKernel::Enqueue(ProxyOp::Put, &single), ProxyKernel::Rate(&many)] {
        // SAFETY: the buffers outlive the launch and are as long as the arguments say.
        unsafe { launch(&choice, kernel, &[], Some(&relax)) }.unwrap();
    }
    for words in failure {
        assert_eq!(words[0], 0);
        let refused = Failure::unpack(words[1]).unwrap();
        assert_eq!((refused.why, refused.index), (Why::TooLarge, 1));
    }
    assert_eq!(rig.proxy.counters().completed, 8);
}
