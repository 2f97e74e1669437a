//! Reserve, publish and ring, over all interleavings within a bound on preemptions and all values that the
//! C++ memory model lets a load return.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod queue;

use device::choice::{Choice, CqKind, Order, Ringing, Sharing};
use device::view::Why;
use loom::thread;
use queue::{DEPTH, Nic, Queue, choice};

/// Starts where 16-bit and 32-bit indices wrap within the test.
const STARTS: [u64; 3] = [0, (1 << 16) - 1, (1 << 32) - 1];

fn check(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 5_000;
    builder.check(model);
}

/// `posters` threads post one WQE each while the NIC looks; then everything must have arrived.
fn post_together(choice: Choice, start: u64, posters: u32, looks: u32, weaken_turn: bool) {
    let (queue, _entered) = Queue::new(choice, start, 0, weaken_turn);
    let mut nic = queue.nic(0);
    let threads: Vec<_> = (1..=posters)
        .map(|value| {
            let queue = queue.clone();
            thread::spawn(move || {
                queue.post(value, true).unwrap();
            })
        })
        .collect();
    for _ in 0..looks {
        nic.look();
        thread::yield_now();
    }
    for thread in threads {
        thread.join().unwrap();
    }
    nic.settle(posters);
}

#[test]
fn a_doorbell_covers_only_what_is_written_in_every_safe_ordering() {
    for order in [Order::GpuRelease, Order::GpuFence, Order::ReleaseFenceMmio] {
        for start in STARTS {
            let choice = Choice { order, ..choice(Sharing::Thread, Ringing::Each) };
            check(2, move || post_together(choice, start, 2, 2, false));
        }
    }
}

#[test]
fn a_skipped_ring_is_always_made_up() {
    for start in STARTS {
        let choice = choice(Sharing::Thread, Ringing::Threshold);
        check(2, move || post_together(choice, start, 2, 2, false));
    }
    let choice = choice(Sharing::Thread, Ringing::Threshold);
    check(1, move || post_together(choice, 31, 3, 1, false));
}

#[test]
#[should_panic(expected = "lost or repeated")]
fn a_turn_that_is_passed_on_without_release_is_caught() {
    let choice = choice(Sharing::Thread, Ringing::Each);
    check(2, move || post_together(choice, 0, 2, 2, true));
}

#[test]
#[should_panic(expected = "the record is behind a doorbell")]
fn the_unordered_mode_is_caught() {
    let choice = Choice { order: Order::None, ..choice(Sharing::Thread, Ringing::Each) };
    check(2, move || post_together(choice, 0, 1, 2, false));
}

/// Two threads, room for one WQE: the other waits until the NIC has read and completed what it overwrites.
fn post_into_a_full_queue(choice: Choice, start: u64) {
    let pending = DEPTH - 1;
    let (queue, _entered) = Queue::new(choice, start, pending, false);
    let mut nic = queue.nic(pending);
    let threads: Vec<_> = (1..=2)
        .map(|value| {
            let queue = queue.clone();
            thread::spawn(move || {
                queue.post(value, true).unwrap();
            })
        })
        .collect();
    nic.read_pending();
    nic.complete(start, true);
    nic.look();
    for thread in threads {
        thread.join().unwrap();
    }
    nic.settle(2);
}

#[test]
fn a_full_queue_hands_its_slots_on_only_when_they_are_free() {
    for &ringing in Ringing::ALL {
        for &cq_kind in CqKind::ALL {
            let choice = Choice { cq_kind, ..choice(Sharing::Thread, ringing) };
            check(2, move || post_into_a_full_queue(choice, (1 << 16) + 1));
        }
    }
}

#[test]
fn a_failure_reaches_every_thread() {
    for cq_kind in [CqKind::Collapsed, CqKind::Ring] {
        let choice = Choice { cq_kind, ..choice(Sharing::Thread, Ringing::Each) };
        check(1, move || {
            let pending = DEPTH - 1;
            let (queue, _entered) = Queue::new(choice, 8, pending, false);
            let mut nic = queue.nic(pending);
            nic.fail = Some(7);
            let threads: Vec<_> = (1..=2)
                .map(|value| {
                    let queue = queue.clone();
                    thread::spawn(move || {
                        let failure = queue.post(value, true).and_then(|t| queue.wait(t));
                        let failure = failure.unwrap_err();
                        assert_eq!((failure.why, failure.index), (Why::Completion, 7));
                        assert_eq!((failure.syndrome, failure.vendor), (4, 0x51));
                    })
                })
                .collect();
            nic.complete(8, true);
            for thread in threads {
                thread.join().unwrap();
            }
        });
    }
}

#[test]
fn an_exclusive_queue_laps_its_ring() {
    for ringing in [Ringing::Each, Ringing::Deferred] {
        for cq_kind in [CqKind::Collapsed, CqKind::Ring] {
            let choice = Choice { cq_kind, ..choice(Sharing::Exclusive, ringing) };
            check(1, move || {
                let pending = DEPTH - 2;
                let (queue, _entered) = Queue::new(choice, (1 << 16) - 2, pending, false);
                let mut nic: Nic = queue.nic(pending);
                let poster = thread::spawn(move || {
                    for value in 1..=3 {
                        queue.post(value, value % 2 == 1).unwrap();
                    }
                    queue.quiet().unwrap();
                });
                nic.read_pending();
                nic.complete((1 << 16) - 2, true);
                while nic.fetched.len() < 3 {
                    nic.look();
                    thread::yield_now();
                }
                poster.join().unwrap();
                nic.settle(3);
            });
        }
    }
}

#[test]
fn quiet_of_a_shared_queue_covers_what_others_posted() {
    for ringing in [Ringing::Each, Ringing::Threshold] {
        let choice = choice(Sharing::Thread, ringing);
        check(1, move || {
            let (queue, _entered) = Queue::new(choice, 0, 0, false);
            let mut nic = queue.nic(0);
            let other = {
                let queue = queue.clone();
                thread::spawn(move || {
                    queue.post(1, true).unwrap();
                })
            };
            let quieting = thread::spawn(move || {
                queue.post(2, true).unwrap();
                queue.quiet().unwrap();
            });
            while nic.fetched.len() < 2 {
                nic.look();
                thread::yield_now();
            }
            other.join().unwrap();
            quieting.join().unwrap();
            nic.settle(2);
        });
    }
}
