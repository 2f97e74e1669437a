//! A proxy's hand-offs: the shipped producers against the shipped consumer, over all interleavings within a bound
//! on preemptions and all values that the C++ memory model lets a load return. The ring has two slots.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod ring;

use device::proxy::{Descriptor, Handoff, Producers, Progress, Publish};
use device::view::{Failure, Why};
use loom::thread;
use ring::{Broken, DEPTH, Plan, Ring, hand_over, put};

/// Laps of both parities, and positions that wrap 32 bits within the test.
const STARTS: [u64; 3] = [0, DEPTH, (1 << 32) - 1];

/// Preemptions within which every interleaving is looked at: threads that wait give way without being counted.
const fn bound(producers: Producers) -> usize {
    match producers {
        Producers::One => 2,
        Producers::Many => 1,
    }
}

fn check(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 5_000;
    builder.check(model);
}

fn check_plan(plan: Plan) {
    check(bound(plan.choice.producers), move || hand_over(plan));
}

fn has_halves(handoff: Handoff) -> bool {
    matches!(handoff, Handoff::LapParity | Handoff::NonzeroWord)
}

#[test]
fn a_slot_that_is_held_is_not_written_again() {
    for &handoff in Handoff::ALL {
        for &producers in Producers::ALL {
            check(1, move || hand_over(Plan { reread: true, ..Plan::new(handoff, producers) }));
        }
    }
}

#[test]
fn three_laps_by_one_producer() {
    for &handoff in Handoff::ALL {
        check(1, move || hand_over(Plan { each: 5, ..Plan::new(handoff, Producers::One) }));
    }
}

fn each_handoff(producers: Producers) {
    for &handoff in Handoff::ALL {
        for start in STARTS {
            let plan = Plan { start, ..Plan::new(handoff, producers) };
            check_plan(plan);
            if has_halves(handoff) {
                check_plan(Plan { late: true, ..plan });
            }
        }
    }
}

#[test]
fn each_handoff_gives_every_descriptor_once_whole_and_with_its_payload() {
    each_handoff(Producers::One);
}

#[test]
fn each_handoff_gives_every_descriptor_of_several_threads_once() {
    each_handoff(Producers::Many);
}

#[test]
fn reading_the_hosts_progress_for_every_push_changes_nothing() {
    for &handoff in Handoff::ALL {
        for &producers in Producers::ALL {
            let mut plan = Plan::new(handoff, producers);
            plan.choice.progress = Progress::Read;
            check_plan(plan);
        }
    }
}

#[test]
fn an_unordered_store_still_hands_over_whole_descriptors() {
    for &producers in Producers::ALL {
        for late in [false, true] {
            let mut plan = Plan { late, ..Plan::new(Handoff::LapParity, producers) };
            plan.choice.publish = Publish::Posted;
            check_plan(plan);
        }
    }
}

/// Sixteen zero bytes are a put like any other, whatever lies in the slot from the lap before.
#[test]
fn an_all_zero_descriptor_is_taken_in_every_lap() {
    let zero = Descriptor { size: 1, ..Descriptor::default() };
    for handoff in [Handoff::LapParity, Handoff::NonzeroWord, Handoff::ValidByte] {
        for late in [false, true] {
            let plan = Plan { late, ..Plan::new(handoff, Producers::One) };
            check(2, move || {
                let (ring, _entered) = Ring::new(plan);
                let mut taker = ring.consumer();
                let laps = 2 * DEPTH;
                let producer = thread::spawn(move || {
                    for _ in 0..laps {
                        ring.push(&zero).unwrap();
                    }
                });
                let mut taken = 0;
                while taken < laps {
                    match taker.consumer.peek(taken) {
                        Some([low, high]) => {
                            assert_eq!(Descriptor::unpack(low, high), Some(zero));
                            taken += 1;
                            taker.consumer.release(taken);
                        }
                        None => thread::yield_now(),
                    }
                }
                producer.join().unwrap();
                assert_eq!(taker.consumer.peek(taken), None, "taken again");
            });
        }
    }
}

#[test]
fn quiet_covers_what_was_pushed_before() {
    for &handoff in Handoff::ALL {
        for &producers in Producers::ALL {
            let plan = Plan { threads: 1, each: 2, ..Plan::new(handoff, producers) };
            check(bound(producers), move || {
                let (ring, _entered) = Ring::new(plan);
                let mut taker = ring.consumer();
                let producer = thread::spawn(move || ring.produce_and_quiet());
                while taker.next < 2 {
                    if !taker.look() {
                        thread::yield_now();
                    }
                }
                producer.join().unwrap();
            });
        }
    }
}

/// The first operation is done, then the ring fails: whoever waits, for room, for a turn or for completion, is
/// told, and what was done stays done.
#[test]
fn a_failure_reaches_whoever_waits() {
    let failure = Failure { why: Why::Completion, qpn: 0x77, index: 1, syndrome: 4, vendor: 0x51 };
    for &handoff in Handoff::ALL {
        for &producers in Producers::ALL {
            // Two that wait at once multiply the turns of both without end.
            let plan = Plan { threads: 1, ..Plan::new(handoff, producers) };
            check(1, move || {
                let (ring, _entered) = Ring::new(plan);
                let mut taker = ring.consumer();
                let threads: Vec<_> = (0..plan.threads)
                    .map(|_| {
                        let ring = ring.clone();
                        thread::spawn(move || {
                            // Nobody gives back more than one slot.
                            let pushed = (0..=DEPTH + 1).try_fold(0, |_, i| ring.push(&put(i + 1)));
                            let met = pushed.and_then(|ticket| ring.wait(ticket));
                            assert_eq!(met, Err(failure));
                            assert_eq!(ring.wait(plan.start + 1), Ok(()), "done no more");
                            assert_eq!(ring.wait(plan.start + 2), Err(failure));
                        })
                    })
                    .collect();
                while !taker.drop_one() {
                    thread::yield_now();
                }
                taker.consumer.release(plan.start + 1);
                taker.consumer.complete(plan.start + 1);
                taker.consumer.fail(failure.pack());
                for thread in threads {
                    thread.join().unwrap();
                }
            });
        }
    }
}

/// Whether the model notices what is broken, and says so in these words.
fn assert_caught(plan: Plan, expected: &str) {
    let result = std::panic::catch_unwind(move || check_plan(plan));
    let Err(payload) = result else { panic!("not caught: {plan:?}") };
    let message = payload
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| payload.downcast_ref::<&str>().copied())
        .unwrap_or_default();
    assert!(message.contains(expected), "{plan:?} failed otherwise: {message}");
}

fn broken(handoff: Handoff, producers: Producers, broken: Broken) -> Plan {
    let waits = matches!(broken, Broken::Completion | Broken::EarlyCompletion);
    let plan = Plan::new(handoff, producers);
    Plan { broken, waits: waits || plan.waits, reread: broken == Broken::EarlyRelease, ..plan }
}

#[test]
fn a_publication_without_release_is_caught_in_every_handoff() {
    for &handoff in Handoff::ALL {
        for &producers in Producers::ALL {
            let expected = match handoff {
                Handoff::ProducerCounter => "handed over unwritten",
                // Descriptor or payload, whichever the schedule shows first.
                Handoff::ValidByte => "",
                _ => "handed over before its payload",
            };
            assert_caught(broken(handoff, producers, Broken::Publication), expected);
        }
    }
}

/// Nothing orders the counter's two stores then: it may stay at the lower one, and the consumer waits for ever.
#[test]
fn a_turn_without_release_is_caught() {
    let plan = broken(Handoff::ProducerCounter, Producers::Many, Broken::Turn);
    assert_caught(Plan { each: 1, ..plan }, "exceeded maximum number of branches");
}

#[test]
fn a_mark_in_one_half_is_caught_whichever_half_is_late() {
    for handoff in [Handoff::LapParity, Handoff::NonzeroWord] {
        for &producers in Producers::ALL {
            let plan = broken(handoff, producers, Broken::OneMark);
            assert_caught(plan, "half of one descriptor");
        }
    }
}

#[test]
fn a_slot_that_is_released_before_it_is_read_is_caught() {
    for handoff in [Handoff::LapParity, Handoff::NonzeroWord, Handoff::ValidByte] {
        for &producers in Producers::ALL {
            let plan = broken(handoff, producers, Broken::EarlyRelease);
            assert_caught(plan, "written again before it was released");
        }
    }
}

#[test]
fn a_completion_that_is_told_too_early_or_without_release_is_caught() {
    for &handoff in Handoff::ALL {
        for &producers in Producers::ALL {
            for how in [Broken::Completion, Broken::EarlyCompletion] {
                let plan = broken(handoff, producers, how);
                assert_caught(plan, "told to be completed before it was done");
            }
        }
    }
}
