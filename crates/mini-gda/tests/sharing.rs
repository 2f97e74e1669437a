//! Several threads on one queue pair that is always full: every operation arrives once.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod rig;

use std::time::Duration;

use device::choice::{Choice, CqKind, Order, Ringing, Sharing};
use device::host::{Kernel, launch};
use device::program::{Step, StepOp};
use device::view::{Failure, RateArgs, Why};
use rdma::Nic;
use rdma::soft::Engine;
use rig::{Options, Rig, STARTS, ringing};

/// Each thread's operation i writes i + 1 to a slot of its own; gives the WQEs that the NIC executed.
fn rate(rig: &Rig, threads: u32, ops: u64, batch: u32, lanes: u32) -> u64 {
    rate_into(rig, threads, ops, ops, batch, lanes)
}

/// The same with fewer slots a thread: each must hold the last value that goes to it.
fn rate_into(rig: &Rig, threads: u32, ops: u64, slots: u64, batch: u32, lanes: u32) -> u64 {
    let n = threads as usize;
    let (mut start, mut end, mut failure) = (vec![0u64; n], vec![0u64; n], vec![0u64; n]);
    let mut arrived = 0u32;
    let args = RateArgs {
        qp: rig.gda.views().as_ptr(),
        qps: 1,
        threads,
        batch,
        nth: 3,
        force: 1,
        is_get: 0,
        bytes: 8,
        lanes,
        is_inline: u32::from(lanes == 1),
        quiet: 1,
        ops,
        warmup: 0,
        first: 1,
        slots,
        stride: 8,
        local: rig.local(0, 8 * slots * u64::from(threads)),
        remote: rig.remote(0, 8 * slots * u64::from(threads)),
        start: start.as_mut_ptr(),
        end: end.as_mut_ptr(),
        failure: failure.as_mut_ptr(),
        arrived: &raw mut arrived,
    };
    let relax = rig.gda.relax(rig.fabric.nic(0).as_ref() as &dyn Nic);
    // SAFETY: the arguments' memory outlives the launch.
    unsafe { launch(&rig.choice, Kernel::Rate(&args), &[], Some(&relax)) }.unwrap();
    for word in failure {
        assert_eq!(Failure::unpack(word), None, "{:?}", rig.choice);
    }
    for thread in 0..u64::from(threads) {
        for i in ops.saturating_sub(slots)..ops {
            let seen = rig.far_word((thread * slots + i % slots) * 8);
            assert_eq!(
                seen,
                thread * ops + i + 1,
                "thread {thread}, operation {i}: {:?}",
                rig.choice
            );
        }
    }
    rig.wqes()
}

fn tiny(choice: Choice, log_blocks: u32, start: u64, engine: Engine, bytes: usize) -> Rig {
    let options = Options { choice, log_blocks, start, engine, bytes, ..Options::default() };
    Rig::new(options)
}

const THREADS: u32 = 3;

#[test]
fn posts_through_a_tiny_queue_arrive_exactly_once() {
    const OPS: u64 = 12_000;
    for &rings in Ringing::ALL {
        for &cq_kind in CqKind::ALL {
            for (log_blocks, start) in [(2, STARTS[2]), (3, STARTS[1])] {
                let choice = ringing(
                    Choice { sharing: Sharing::Thread, cq_kind, ..Choice::default() },
                    rings,
                );
                let bytes = 8 * OPS as usize * THREADS as usize;
                let rig = tiny(choice, log_blocks, start, Engine::Stepped, bytes);
                // With batches longer than the queue, a deferred ring is also due when it is full.
                let wqes = rate(&rig, THREADS, OPS, 10, 1);
                let posted = OPS * u64::from(THREADS);
                // Each thread's quiet may add a NOP.
                assert!(
                    (posted..=posted + u64::from(THREADS)).contains(&wqes),
                    "{wqes}: {choice:?}"
                );
            }
        }
    }
}

#[test]
fn a_tiny_queue_is_drained_by_an_engine_of_its_own() {
    const OPS: u64 = 6_000;
    for &rings in Ringing::ALL {
        for &cq_kind in CqKind::ALL {
            let choice =
                ringing(Choice { sharing: Sharing::Thread, cq_kind, ..Choice::default() }, rings);
            let bytes = 8 * OPS as usize * 2;
            let rig = tiny(choice, 2, STARTS[1], Engine::Thread { cpu: None }, bytes);
            let wqes = rate(&rig, 2, OPS, 5, 1);
            assert!((2 * OPS..=2 * OPS + 2).contains(&wqes), "{wqes}: {choice:?}");
        }
    }
}

#[test]
fn every_ordering_keeps_its_promise_to_the_nic() {
    const OPS: u64 = 1_000;
    for &order in Order::ALL.iter().filter(|o| !matches!(o, Order::None | Order::AsyncMmio)) {
        for &sharing in Sharing::ALL {
            for &rings in Ringing::ALL {
                for &cq_kind in CqKind::ALL {
                    let choice =
                        ringing(Choice { order, sharing, cq_kind, ..Choice::default() }, rings);
                    let threads = if sharing == Sharing::Exclusive { 1 } else { 2 };
                    let rig = tiny(choice, 4, STARTS[1], Engine::Stepped, 8 * OPS as usize * 2);
                    rate(&rig, threads, OPS, 4, 1);
                }
            }
        }
    }
}

#[test]
fn whole_warps_post_at_once() {
    const OPS: u64 = 6_400;
    for sharing in [Sharing::Exclusive, Sharing::Warp] {
        for &rings in Ringing::ALL {
            for &cq_kind in CqKind::ALL {
                let choice = ringing(Choice { sharing, cq_kind, ..Choice::default() }, rings);
                let threads = if sharing == Sharing::Exclusive { 1 } else { 2 };
                // On request a reservation may take half of the queue.
                let on_request = matches!(rings, Ringing::Deferred | Ringing::EveryNth);
                let log_blocks = if on_request { 6 } else { 5 };
                for batch in [32, 80] {
                    let bytes = 8 * OPS as usize * 2;
                    let rig = tiny(choice, log_blocks, STARTS[2], Engine::Stepped, bytes);
                    let wqes = rate(&rig, threads, OPS, batch, 32);
                    let posted = OPS * u64::from(threads);
                    let nops = u64::from(threads);
                    assert!((posted..=posted + nops).contains(&wqes), "{wqes}: {choice:?}");
                }
            }
        }
    }
}

#[test]
fn every_slot_ends_with_the_last_value_that_goes_to_it() {
    const OPS: u64 = 320;
    for lanes in [1, 32] {
        // Also fewer slots than a warp has lanes.
        for slots in [1, 5, 31, 33, 100] {
            let choice = ringing(Choice::default(), Ringing::EveryNth);
            let rig = tiny(choice, 6, STARTS[1], Engine::Stepped, 8 * OPS as usize);
            let wqes = rate_into(&rig, 1, OPS, slots, 20, lanes);
            assert!((OPS..=OPS + 1).contains(&wqes), "{wqes}: {lanes} lanes, {slots} slots");
        }
    }
}

/// The rate kernel's failures, where nothing drives the NIC and nothing is waited for at the end.
fn undriven(rig: &Rig, threads: u32, ops: u64, mut arrived: u32) -> Vec<Option<Why>> {
    let n = threads as usize;
    let (mut start, mut end, mut failure) = (vec![0u64; n], vec![0u64; n], vec![0u64; n]);
    let args = RateArgs {
        qp: rig.gda.views().as_ptr(),
        qps: 1,
        threads,
        batch: 4,
        nth: 4,
        force: 0,
        is_get: 0,
        bytes: 8,
        lanes: 1,
        is_inline: 1,
        quiet: 0,
        ops,
        warmup: 0,
        first: 1,
        slots: ops,
        stride: 8,
        local: rig.local(0, 8),
        remote: rig.remote(0, 8),
        start: start.as_mut_ptr(),
        end: end.as_mut_ptr(),
        failure: failure.as_mut_ptr(),
        arrived: &raw mut arrived,
    };
    // SAFETY: the arguments' memory outlives the launch.
    unsafe { launch(&rig.choice, Kernel::Rate(&args), &[], None) }.unwrap();
    for thread in 0..n {
        assert!(failure[thread] != 0 || start[thread] <= end[thread]);
    }
    failure.into_iter().map(|word| Failure::unpack(word).map(|f| f.why)).collect()
}

#[test]
fn without_a_quiet_a_queue_that_holds_everything_waits_for_nothing() {
    let choice = ringing(Choice::default(), Ringing::EveryNth);
    let rig = tiny(choice, 6, STARTS[1], Engine::Stepped, 4096);
    assert_eq!(undriven(&rig, 1, 64, 0), [None]);
    rig.settle();
    assert_eq!(rig.wqes(), 64);
}

#[test]
fn a_thread_that_has_no_queue_pair_keeps_no_other_from_starting() {
    let choice = ringing(Choice::default(), Ringing::EveryNth);
    let rig = tiny(choice, 6, 0, Engine::Stepped, 4096);
    assert_eq!(undriven(&rig, 2, 8, 0), [None, Some(Why::TooLarge)]);
}

#[test]
fn a_launch_that_is_never_complete_is_a_deadline() {
    let choice = ringing(Choice::default(), Ringing::EveryNth);
    let deadline = Duration::from_millis(20);
    let rig = Rig::new(Options { choice, deadline, ..Options::default() });
    // The count begins below 0: as if some had never come.
    assert_eq!(undriven(&rig, 1, 8, 0u32.wrapping_sub(5)), [Some(Why::DeadlineStart)]);
    rig.settle();
    assert_eq!(rig.wqes(), 0);
}

/// The values that fetch-and-adds of 1 leave are a permutation of 0, 1, 2, … exactly if each was executed once.
#[test]
fn atomics_from_several_threads_count_every_number_once() {
    const OPS: u64 = 2_000;
    for &rings in Ringing::ALL {
        for &cq_kind in CqKind::ALL {
            let choice =
                ringing(Choice { sharing: Sharing::Thread, cq_kind, ..Choice::default() }, rings);
            let bytes = 8 * (OPS * u64::from(THREADS) + 1) as usize;
            let rig = tiny(choice, 3, STARTS[1], Engine::Stepped, bytes);
            std::thread::scope(|scope| {
                for thread in 0..u64::from(THREADS) {
                    let rig = &rig;
                    scope.spawn(move || {
                        let program: Vec<Step> = (0..OPS)
                            .map(|i| {
                                let result = rig.local(8 * (thread * OPS + i), 8);
                                let add = Step::new(StepOp::FetchAdd, rig.remote(0, 8), result)
                                    .operands(1, 0);
                                let rings = i % 3 == 0 || i + 1 == OPS;
                                if rings { add } else { add.silent() }
                            })
                            .collect();
                        for done in rig.run(&program) {
                            done.result().unwrap();
                        }
                    });
                }
            });
            let all = OPS * u64::from(THREADS);
            let mut seen: Vec<u64> = (0..all).map(|i| rig.near_word(8 * i)).collect();
            seen.sort_unstable();
            assert!(seen.iter().enumerate().all(|(i, seen)| *seen == i as u64), "{choice:?}");
            assert_eq!((rig.far_word(0), rig.wqes()), (all, all));
        }
    }
}

#[test]
fn a_queue_that_many_leave_unrung_is_rung_when_it_is_full() {
    // Nobody asks for a ring until the end: only a full queue makes the doorbell ring.
    const OPS: u64 = 500;
    for sharing in [Sharing::Exclusive, Sharing::Thread] {
        let choice = ringing(Choice { sharing, ..Choice::default() }, Ringing::Deferred);
        let options = Options {
            choice,
            log_blocks: 2,
            deadline: Duration::from_secs(20),
            ..Options::default()
        };
        let rig = Rig::new(options);
        let program: Vec<Step> = (0..OPS)
            .map(|i| {
                let step = Step::new(StepOp::PutValue, rig.remote(8 * i, 8), rig.local(0, 8))
                    .operands(i + 1, 0);
                if i + 1 == OPS { step } else { step.silent() }
            })
            .collect();
        for done in rig.run(&program) {
            done.result().unwrap();
        }
        assert!((0..OPS).all(|i| rig.far_word(8 * i) == i + 1));
        assert_eq!(rig.wqes(), OPS);
    }
}
