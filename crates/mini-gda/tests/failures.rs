//! What goes wrong at the NIC or in the caller's own code is an error that says so, for every thread, in time.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod rig;

use std::time::{Duration, Instant};

use device::choice::{Choice, CqKind, Ringing, Sharing};
use device::program::{Step, StepOp, Then};
use device::view::Why;
use rdma::ConnectAttr;
use rdma::soft::Engine;
use rig::{Options, Rig, ringing};
use softnic::{Clock, FailWqe, Faults, Qpn};
use wire::cqe::Syndrome;

const VENDOR: u8 = 0x5a;

fn sharing_and_cqs() -> impl Iterator<Item = Choice> {
    [Sharing::Exclusive, Sharing::Thread].into_iter().flat_map(|sharing| {
        CqKind::ALL.iter().map(move |&cq_kind| Choice { sharing, cq_kind, ..Choice::default() })
    })
}

fn fail(rig: &Rig, nth: u64, syndrome: Syndrome) {
    let qpn = Some(Qpn(rig.gda.views()[0].qpn));
    let fail = vec![FailWqe { qpn, nth, syndrome, vendor: VENDOR }];
    rig.fabric.nic(0).set_faults(Faults { fail, ..Faults::default() }).unwrap();
}

fn counting(rig: &Rig, n: u64) -> Vec<Step> {
    (0..n)
        .map(|i| Step::new(StepOp::FetchAdd, rig.remote(0, 8), rig.local(8 * i, 8)).operands(1, 0))
        .collect()
}

#[test]
fn a_failed_wqe_leaves_those_before_it_done_and_those_after_it_errors() {
    const OPS: u64 = 12;
    for choice in sharing_and_cqs() {
        for start in [0, (1 << 16) - 4] {
            for nth in 0..OPS {
                let rig = Rig::new(Options { choice, start, ..Options::default() });
                fail(&rig, nth, Syndrome::RemoteAccess);
                // Each is waited for, so that no completion is overwritten before it is seen.
                let program: Vec<Step> =
                    counting(&rig, OPS).iter().map(|step| step.then(Then::Wait)).collect();
                let done = rig.run(&program);
                for (i, done) in (0..).zip(&done) {
                    let result = done.result();
                    if i < nth {
                        result.unwrap_or_else(|e| panic!("{choice:?}: {i} of {nth}: {e}"));
                        continue;
                    }
                    let failure = result.expect_err("an error was taken for done");
                    assert_eq!(
                        (failure.why, failure.qpn),
                        (Why::Completion, rig.gda.views()[0].qpn)
                    );
                    assert_eq!(failure.index, (start + nth) as u16, "{choice:?}");
                    assert_eq!((failure.syndrome, failure.vendor), (0x13, VENDOR));
                }
                assert_eq!(rig.far_word(0), nth, "{choice:?}");
                let cause = rig.fabric.nic(0).as_ref();
                let word = 1 << 56 | u64::from(rig.gda.views()[0].qpn);
                let text = rig.gda.check(cause, word).unwrap_err().to_string();
                assert!(text.contains("the NIC says"), "{text}");
            }
        }
    }
}

#[test]
fn a_collapsed_cq_whose_first_error_is_overwritten_still_never_says_done() {
    const OPS: u64 = 12;
    for sharing in [Sharing::Exclusive, Sharing::Thread] {
        let choice = Choice { sharing, ..Choice::default() };
        for nth in 0..OPS {
            let rig = Rig::new(Options { choice, ..Options::default() });
            fail(&rig, nth, Syndrome::RemoteOperation);
            let done = rig.run(&counting(&rig, OPS));
            for (i, done) in (0..).zip(&done) {
                assert!(i < nth || done.result().unwrap_err().why == Why::Completion);
            }
        }
    }
}

#[test]
fn a_failure_reaches_every_thread_that_shares_the_queue() {
    const OPS: u64 = 200;
    for cq_kind in [CqKind::Ring, CqKind::Collapsed] {
        for &rings in &[Ringing::Each, Ringing::Threshold] {
            let choice = Choice { sharing: Sharing::Thread, cq_kind, ..Choice::default() };
            let choice = ringing(choice, rings);
            let rig = Rig::new(Options { choice, log_blocks: 2, ..Options::default() });
            fail(&rig, 150, Syndrome::TransportRetryExceeded);
            let done: Vec<u64> = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..3)
                    .map(|_| {
                        let rig = &rig;
                        scope.spawn(move || {
                            let done = rig.run(&counting(rig, OPS));
                            let ok = done.iter().take_while(|done| done.result().is_ok()).count();
                            // From the first error on there are only errors, and there is one.
                            assert!(done[ok..].iter().all(|done| done.result().is_err()));
                            assert!(ok < done.len());
                            ok as u64
                        })
                    })
                    .collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            assert_eq!(rig.far_word(0), 150);
            let done: u64 = done.iter().sum();
            if cq_kind == CqKind::Ring {
                assert_eq!(done, 150, "{choice:?}");
            } else {
                assert!(done <= 150, "{choice:?}");
            }
        }
    }
}

#[test]
fn a_nic_that_stands_still_is_an_error_that_names_the_wait() {
    for engine in [Engine::Stepped, Engine::Thread { cpu: None }] {
        for choice in sharing_and_cqs() {
            for (stop, posts, why) in [
                (false, 3, Why::DeadlineCompletion),
                (true, 3, Why::DeadlineCompletion),
                (false, 5, Why::DeadlineSpace),
                (true, 5, Why::DeadlineSpace),
            ] {
                let deadline = Duration::from_millis(30);
                let options =
                    Options { choice, engine, deadline, log_blocks: 2, ..Options::default() };
                let rig = Rig::new(options);
                if stop {
                    rig.fabric.engine().stop();
                } else {
                    let faults = Faults { paused: true, ..Faults::default() };
                    rig.fabric.nic(0).set_faults(faults).unwrap();
                }
                let begin = Instant::now();
                let done = rig.run(&counting(&rig, posts));
                // Far above the deadline and far below for ever: the machine may be loaded.
                assert!(begin.elapsed() < Duration::from_secs(20));
                for done in &done {
                    let failure = done.result().unwrap_err();
                    assert_eq!((failure.why, failure.qpn), (why, rig.gda.views()[0].qpn));
                }
                assert_eq!(rig.far_word(0), 0);
            }
        }
    }
}

#[test]
fn a_thread_whose_turn_never_comes_is_told() {
    let choice = Choice { sharing: Sharing::Thread, ..Choice::default() };
    let deadline = Duration::from_millis(30);
    let rig = Rig::new(Options { choice, deadline, ..Options::default() });
    // Somebody has reserved a block and will never publish it.
    let state = rig.gda.views()[0].state;
    // SAFETY: nothing runs on the queue pair yet.
    unsafe { (*state).reserved += 1 };
    let done = rig.run(&counting(&rig, 1));
    assert_eq!(done[0].result().unwrap_err().why, Why::DeadlineTurn);
    assert_eq!(rig.wqes(), 0);
}

#[test]
fn a_port_that_is_down_fails_the_connection() {
    for choice in sharing_and_cqs() {
        // The transport gives up first: its error is the answer.
        let connect = ConnectAttr { timeout: 1, retry_cnt: 1, ..ConnectAttr::default() };
        let rig =
            Rig::new(Options { choice, connect, clock: Clock::Virtual, ..Options::default() });
        let faults = Faults { port_down: true, ..Faults::default() };
        rig.fabric.nic(0).set_faults(faults.clone()).unwrap();
        let failure = rig.run(&counting(&rig, 1))[0].result().unwrap_err();
        assert_eq!((failure.why, failure.syndrome), (Why::Completion, 0x15), "{choice:?}");

        // The deadline comes first: the wait is named.
        let deadline = Duration::from_millis(30);
        let connect = ConnectAttr { timeout: 20, ..ConnectAttr::default() };
        let rig = Rig::new(Options { choice, deadline, connect, ..Options::default() });
        rig.fabric.nic(0).set_faults(faults).unwrap();
        let failure = rig.run(&counting(&rig, 1))[0].result().unwrap_err();
        assert_eq!(failure.why, Why::DeadlineCompletion, "{choice:?}");
    }
}

#[test]
fn a_wrong_key_is_the_nics_error() {
    for choice in sharing_and_cqs() {
        let rig = Rig::new(Options { choice, ..Options::default() });
        let mut remote = rig.remote(0, 8);
        remote.rkey ^= 0x10;
        let step = Step::new(StepOp::Put, remote, rig.local(0, 8));
        let failure = rig.run(&[step])[0].result().unwrap_err();
        assert_eq!((failure.why, failure.syndrome), (Why::Completion, 0x13));
        let mut local = rig.local(0, 8);
        local.lkey ^= 0x10;
        let rig = Rig::new(Options { choice, ..Options::default() });
        let step = Step::new(StepOp::Put, rig.remote(0, 8), local);
        let failure = rig.run(&[step])[0].result().unwrap_err();
        assert_eq!((failure.why, failure.syndrome), (Why::Completion, 0x04));
    }
}

#[test]
fn checked_mode_names_a_wait_for_what_was_never_rung() {
    for sharing in [Sharing::Exclusive, Sharing::Thread] {
        for &cq_kind in CqKind::ALL {
            let choice = Choice { sharing, cq_kind, checked: 1, ..Choice::default() };
            let choice = ringing(choice, Ringing::Deferred);
            let deadline = Duration::from_millis(30);
            let rig = Rig::new(Options { choice, deadline, ..Options::default() });
            let put = Step::new(StepOp::Put, rig.remote(0, 8), rig.local(0, 8));
            let done = rig.run(&[put.silent()]);
            assert_eq!(done[0].result().unwrap_err().why, Why::NeverRung, "{choice:?}");
            assert_eq!(rig.wqes(), 0);
        }
    }
}

#[test]
fn checked_mode_names_a_cq_of_the_other_kind() {
    let deadline = Duration::from_millis(30);
    for sharing in [Sharing::Exclusive, Sharing::Thread] {
        for (made, polled, why) in [
            (CqKind::Collapsed, CqKind::Ring, Why::CqIsCollapsed),
            (CqKind::Ring, CqKind::Collapsed, Why::CqIsRing),
        ] {
            let choice = Choice { sharing, cq_kind: made, checked: 1, ..Choice::default() };
            let rig = Rig::new(Options { choice, deadline, ..Options::default() });
            let program: Vec<Step> =
                counting(&rig, 5).iter().map(|step| step.then(Then::Wait)).collect();
            let done = rig.run_as(&Choice { cq_kind: polled, ..choice }, &program);
            let failures: Vec<_> = done.iter().filter_map(|done| done.result().err()).collect();
            assert!(!failures.is_empty(), "{choice:?}");
            assert!(failures.iter().all(|failure| failure.why == why), "{choice:?}: {failures:?}");
        }
    }
}
