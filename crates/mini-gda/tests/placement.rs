//! What a completion promises about the far memory, and what it doesn't.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod rig;

use device::choice::Choice;
use device::program::{Step, StepOp, Then};
use rig::{Options, Rig};
use softnic::{Faults, NicConfig, Profile};

const PAIRS: u64 = 200;
const MARK: u64 = 1 << 40;

fn out_of_order(rig: &Rig) {
    let faults = Faults { out_of_order_placement: Some(7), ..Faults::default() };
    rig.fabric.nic(1).set_faults(faults).unwrap();
}

/// Two puts to one place, again and again; gives how many times the earlier one's value stayed.
fn overtaken(rig: &Rig) -> usize {
    let program: Vec<Step> = (0..PAIRS)
        .flat_map(|i| {
            let put = Step::new(StepOp::PutValue, rig.remote(8 * i, 8), rig.local(0, 8));
            [put.operands(i + 1, 0), put.operands(MARK + i, 0)]
        })
        .collect();
    for done in rig.run(&program) {
        done.result().unwrap();
    }
    rig.settle();
    (0..PAIRS).filter(|i| rig.far_word(8 * i) != MARK + i).count()
}

#[test]
fn a_put_that_is_placed_out_of_order_overtakes_a_flag_that_is_a_put() {
    let options = || Options { log_blocks: 10, ..Options::default() };
    assert_eq!(overtaken(&Rig::new(options())), 0);
    let rig = Rig::new(options());
    out_of_order(&rig);
    assert!(overtaken(&rig) > 0, "the fault shows nothing");
}

/// The signal is added to the very word that was put: it must find the put's value there.
#[test]
fn a_signal_never_overtakes_its_put() {
    let rig = Rig::new(Options { log_blocks: 10, ..Options::default() });
    out_of_order(&rig);
    let program: Vec<Step> = (0..PAIRS)
        .map(|i| {
            rig.set_near(8 * i, MARK + i);
            let word = rig.remote(8 * i, 8);
            Step::new(StepOp::PutSignal, word, rig.local(8 * i, 8))
                .operands(word.address, word.rkey.into())
        })
        .collect();
    for done in rig.run(&program) {
        done.result().unwrap();
    }
    rig.settle();
    for i in 0..PAIRS {
        assert_eq!(rig.near_word(8 * i), MARK + i, "signal {i} came before its put");
        assert_eq!(rig.far_word(8 * i), MARK + i + 1);
    }
}

#[test]
fn a_completed_put_is_visible_only_after_a_flush_where_placement_takes_time() {
    let choice = Choice::default();
    let profile =
        Profile { name: "late placement", placement_delay_ns: 200_000_000, ..Profile::NONE };
    let config = NicConfig { profile, ..Options::default().config };
    let rig = Rig::new(Options { choice, config, ..Options::default() });
    let put = Step::new(StepOp::PutValue, rig.remote(0, 8), rig.local(0, 8)).operands(MARK, 0);
    rig.run(&[put.then(Then::Wait)])[0].result().unwrap();
    assert_eq!(rig.far_word(0), 0, "completed is not yet placed");
    let get = Step::new(StepOp::Get, rig.remote(0, 8), rig.local(8, 8));
    rig.run(&[get.then(Then::Wait)])[0].result().unwrap();
    assert_eq!((rig.near_word(8), rig.far_word(0)), (MARK, MARK), "a read flushes");
}
