//! Every operation, by every choice, across the wraps of its indices: each does what it says, once.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod rig;

use device::choice::{Choice, Ringing};
use device::program::{Step, StepOp, Then};
use device::view::Why;
use rdma::soft::Engine;
use rig::{Options, Rig, STARTS, choices};

const LAPS: u64 = 12;
const LANES: u64 = 3;

// Offsets in both regions. A lap has 256 bytes of its own in each.
const COUNTER: u64 = 0;
const COUNTER32: u64 = 8;
const SIGNALS: u64 = 16;
const LAP: u64 = 256;

fn lap(l: u64) -> u64 {
    LAP * (l + 1)
}

/// A value that no other operation carries.
fn value(l: u64, what: u64) -> u64 {
    0x1000_0000_0000_0000 | what << 32 | (l + 1)
}

fn inline_bytes(choice: &Choice) -> u32 {
    if choice.max_blocks == 5 { 100 } else { 28 }
}

/// One lap's steps: all operations, each with a place of its own for what it reads and leaves.
fn steps(rig: &Rig, l: u64) -> Vec<Step> {
    let at = lap(l);
    let local = |offset| rig.local(at + offset, 8);
    let remote = |offset| rig.remote(at + offset, 8);
    for (offset, what) in [(0, 1), (32, 2), (40, 3), (48, 4)] {
        rig.set_near(at + offset, value(l, what));
    }
    for i in 0..13 {
        rig.set_near(at + 144 + 8 * i, value(l, 16 + i));
    }
    rig.set_far(at + 16, value(l, 5));
    rig.set_far(at + 24, value(l, 6));
    let inline = inline_bytes(&rig.choice);
    vec![
        Step::new(StepOp::Put, remote(0), local(0)),
        Step::new(StepOp::PutInline, rig.remote(at + 144, u64::from(inline)), local(144))
            .bytes(inline),
        Step::new(StepOp::PutValue, remote(8), local(0)).operands(value(l, 7), 0),
        Step::new(StepOp::Get, remote(16), local(64)),
        Step::new(StepOp::CompareSwap, remote(24), local(72)).operands(value(l, 6), value(l, 8)),
        // The word has changed: this one compares in vain.
        Step::new(StepOp::CompareSwap, remote(24), local(80)).operands(value(l, 6), 1),
        Step::new(StepOp::FetchAdd, rig.remote(COUNTER, 8), local(88)).operands(3, 0),
        Step::new(StepOp::FetchAdd32, rig.remote(COUNTER32, 4), local(96)).operands(5, 0),
        Step::new(StepOp::Nop, remote(0), local(0)),
        Step::new(StepOp::PutWarp, remote(32), local(32)).operands(LANES, 0).fenced(),
        Step::new(StepOp::PutSignal, remote(56), local(0))
            .operands(rig.remote(SIGNALS, 8).address, rig.far.rkey.into()),
    ]
}

/// WQEs that a lap posts.
const WQES: u64 = 9 + LANES + 2;

fn assert_lap(rig: &Rig, l: u64) {
    let at = lap(l);
    let name = format!("{:?}, lap {l}", rig.choice);
    assert_eq!(rig.far_word(at), value(l, 1), "put: {name}");
    for i in 0..u64::from(inline_bytes(&rig.choice)) / 8 {
        assert_eq!(rig.far_word(at + 144 + 8 * i), value(l, 16 + i), "put inline {i}: {name}");
    }
    assert_eq!(rig.far_word(at + 8), value(l, 7), "put value: {name}");
    assert_eq!(rig.near_word(at + 64), value(l, 5), "get: {name}");
    assert_eq!(rig.near_word(at + 72), value(l, 6), "compare-swap: {name}");
    assert_eq!(rig.near_word(at + 80), value(l, 8), "compare-swap in vain: {name}");
    assert_eq!(rig.far_word(at + 24), value(l, 8), "compare-swap: {name}");
    assert_eq!(rig.near_word(at + 88), 3 * l, "fetch-add: {name}");
    assert_eq!(rig.near_word(at + 96) as u32, 5 * l as u32, "fetch-add32: {name}");
    for lane in 0..LANES {
        assert_eq!(rig.far_word(at + 32 + 8 * lane), value(l, 2 + lane), "lane {lane}: {name}");
    }
    assert_eq!(rig.far_word(at + 56), value(l, 1), "put with signal: {name}");
}

fn run_all(choice: Choice, start: u64, engine: Engine) {
    let log_blocks = if choice.max_blocks == 5 { 5 } else { 3 };
    let rig = Rig::new(Options { choice, start, engine, log_blocks, ..Options::default() });
    let mut program = Vec::new();
    for l in 0..LAPS {
        let mut lap = steps(&rig, l);
        if matches!(choice.ringing, Ringing::Deferred | Ringing::EveryNth) {
            // All but every fourth, the last one among them, is left to a later ring, or to the queue's being full.
            for (i, step) in lap.iter_mut().enumerate() {
                if i % 4 != 2 {
                    *step = step.silent();
                }
            }
        }
        let last = lap.pop().unwrap();
        lap.push(last.then(if l % 2 == 0 { Then::Quiet } else { Then::Wait }));
        program.extend(lap);
    }
    for (i, done) in rig.run(&program).iter().enumerate() {
        done.result().unwrap_or_else(|e| panic!("{choice:?} from {start}: step {i}: {e}"));
    }
    rig.settle();
    for l in 0..LAPS {
        assert_lap(&rig, l);
    }
    assert_eq!(rig.far_word(COUNTER), 3 * LAPS);
    assert_eq!(rig.far_word(COUNTER32), 5 * LAPS);
    assert_eq!(rig.far_word(SIGNALS), LAPS, "signals: {choice:?}");
    // The queues themselves say so, too: the last operation was waited for.
    let (posted, completed) = rig.gda.blocks_posted_and_completed().unwrap();
    assert_eq!(completed, posted, "{choice:?} from {start}");
    // A quiet may post a NOP of its own; nothing else was executed twice.
    let wqes = rig.wqes();
    assert!((WQES * LAPS..=(WQES + 1) * LAPS).contains(&wqes), "{wqes} WQEs: {choice:?}");
}

#[test]
fn every_operation_does_what_it_says_with_a_stepped_engine() {
    for choice in choices() {
        for start in STARTS {
            run_all(choice, start, Engine::Stepped);
        }
    }
}

#[test]
fn every_operation_does_what_it_says_with_an_engine_of_its_own() {
    for choice in choices() {
        run_all(choice, STARTS[1], Engine::Thread { cpu: None });
    }
}

#[test]
fn what_cannot_be_posted_leaves_the_queue_as_it_was() {
    for choice in choices() {
        let log_blocks = if choice.max_blocks == 5 { 5 } else { 3 };
        let rig = Rig::new(Options { choice, log_blocks, ..Options::default() });
        rig.set_near(0, 77);
        let put = Step::new(StepOp::Put, rig.remote(8, 8), rig.local(0, 8));
        let odd = Step::new(StepOp::FetchAdd, rig.remote(12, 4), rig.local(8, 8));
        let refused = [
            (put.bytes(0), Why::BadLength),
            (put.bytes((1 << 30) + 1), Why::BadLength),
            (odd, Why::UnalignedAtomic),
            // 32 lanes in a queue of 8, or of 32 whose WQEs may take 5.
            (
                Step::new(StepOp::PutWarp, rig.remote(256, 256), rig.local(256, 256))
                    .operands(32, 0),
                Why::TooLarge,
            ),
            (
                Step::new(StepOp::PutInline, rig.remote(0, 8), rig.local(0, 8)).bytes(1000),
                Why::InlineTooLong,
            ),
        ];
        let mut program: Vec<Step> = refused.iter().map(|(step, _)| *step).collect();
        program.push(put.then(Then::Wait));
        let done = rig.run(&program);
        for ((_, why), done) in refused.iter().zip(&done) {
            assert_eq!(done.posted().unwrap_err().why, *why, "{choice:?}");
        }
        done[refused.len()].result().unwrap_or_else(|e| panic!("{choice:?}: {e}"));
        assert_eq!((rig.far_word(8), rig.wqes()), (77, 1));
    }
}
