//! The bare sequence that mini-gda is measured beside: it does the same work, and gives up in time.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod rig;

use std::time::Duration;

use device::choice::{Choice, CqLoad, Order};
use device::host::{Kernel, LaunchError, launch};
use device::view::{Failure, LatencyArgs, Local, Op, QuietScope, Remote, Why};
use rdma::Nic;
use rig::{Options, Rig, STARTS};

const SLOTS: u64 = 7;

/// Puts `first`, `first` + 1, …; gives the failure and the times.
fn puts(rig: &Rig, op: Op, first: u64, samples: u64, bare: bool, driven: bool) -> (u64, Vec<u64>) {
    let n = samples as usize;
    let (mut issue, mut total, mut failure) = (vec![0u64; n], vec![0u64; n], 0u64);
    let args = LatencyArgs {
        qp: rig.gda.views().as_ptr(),
        qps: 1,
        scope: QuietScope::One,
        bytes: 8,
        slots: SLOTS as u32,
        stride: 8,
        warmup: 3,
        samples,
        first,
        local: rig.local(0, 8 * SLOTS),
        remote: rig.remote(0, 8 * SLOTS),
        result: Local::default(),
        signal: Remote::default(),
        av: std::ptr::null(),
        issue: issue.as_mut_ptr(),
        total: total.as_mut_ptr(),
        failure: &raw mut failure,
    };
    let kernel = if bare { Kernel::Bare(op, &args) } else { Kernel::Latency(op, &args) };
    let relax = rig.gda.relax(rig.fabric.nic(0).as_ref() as &dyn Nic);
    // SAFETY: the arguments' memory outlives the launch.
    unsafe { launch(&rig.choice, kernel, &[], if driven { Some(&relax) } else { None }) }.unwrap();
    assert!(issue.iter().zip(&total).all(|(issue, total)| issue <= total));
    (failure, total)
}

fn arrived(rig: &Rig, last: u64) {
    for value in last + 1 - SLOTS..=last {
        let slot = (value - 1) % SLOTS;
        assert_eq!(rig.far_word(8 * slot), value, "{:?}", rig.choice);
    }
}

#[test]
fn bare_puts_arrive_and_leave_the_queue_to_mini_gda() {
    for &order in Order::ALL.iter().filter(|o| !matches!(o, Order::None | Order::AsyncMmio)) {
        for &cq_load in CqLoad::ALL {
            for op in [Op::Put, Op::PutInline] {
                for start in STARTS {
                    let choice = Choice { order, cq_load, ..Choice::default() };
                    let rig =
                        Rig::new(Options { choice, start, log_blocks: 2, ..Options::default() });
                    let (failure, total) = puts(&rig, op, 1, 39, true, true);
                    assert_eq!(Failure::unpack(failure), None);
                    assert!(total.iter().all(|ticks| *ticks > 0));
                    arrived(&rig, 42);
                    let (failure, _) = puts(&rig, Op::Put, 43, 11, false, true);
                    assert_eq!(Failure::unpack(failure), None);
                    arrived(&rig, 56);
                    assert_eq!(rig.wqes(), 56);
                }
            }
        }
    }
}

#[test]
fn with_its_checks_it_does_the_same() {
    for start in STARTS {
        let choice = Choice { checked: 1, ..Choice::default() };
        let rig = Rig::new(Options { choice, start, log_blocks: 2, ..Options::default() });
        let (failure, total) = puts(&rig, Op::Put, 1, 39, true, true);
        assert_eq!(Failure::unpack(failure), None);
        assert!(total.iter().all(|ticks| *ticks > 0));
        arrived(&rig, 42);
    }
}

#[test]
fn a_nic_that_does_not_answer_is_a_deadline() {
    let rig = Rig::new(Options { deadline: Duration::from_millis(20), ..Options::default() });
    let (failure, total) = puts(&rig, Op::Put, 1, 10, true, false);
    assert_eq!(Failure::unpack(failure).unwrap().why, Why::DeadlineCompletion);
    assert!(total.iter().all(|ticks| *ticks == 0));
}

#[test]
fn what_is_not_written_out_is_not_built() {
    for choice in [
        Choice { ringing: device::choice::Ringing::Deferred, ..Choice::default() },
        Choice { cq_kind: device::choice::CqKind::Ring, ..Choice::default() },
        Choice { sharing: device::choice::Sharing::Thread, ..Choice::default() },
    ] {
        let rig = Rig::new(Options { choice, ..Options::default() });
        let (mut ticks, mut failure) = ([0u64; 1], 0u64);
        let args = LatencyArgs {
            qp: rig.gda.views().as_ptr(),
            qps: 1,
            scope: QuietScope::One,
            bytes: 8,
            slots: 1,
            stride: 8,
            warmup: 0,
            samples: 1,
            first: 1,
            local: rig.local(0, 8),
            remote: rig.remote(0, 8),
            result: Local::default(),
            signal: Remote::default(),
            av: std::ptr::null(),
            issue: ticks.as_mut_ptr(),
            total: ticks.as_mut_ptr(),
            failure: &raw mut failure,
        };
        // SAFETY: the arguments' memory outlives the launch.
        let launched = unsafe { launch(&choice, Kernel::Bare(Op::Put, &args), &[], None) };
        assert!(
            matches!(launched, Err(LaunchError::NotBuilt { kernel: "bare", .. })),
            "{choice:?}"
        );
    }
}
