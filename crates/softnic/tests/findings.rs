//! What the NIC says about programs that hardware would let run into trouble silently.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod rig;

use rig::*;
use softnic::*;
use wire::cqe::Syndrome;
use wire::doorbell::Doorbell;
use wire::wqe::{Ctrl, CtrlFlags, Opcode, Raddr};
use zerocopy::IntoBytes;

fn only(rig: &Rig) -> Finding {
    let found = rig.nics[0].findings();
    assert_eq!(found.len(), 1, "{found:?}");
    found[0]
}

/// The WQE of a small write with any index and QP number.
fn raw(rig: &Rig, index: u64, qpn: u32, value: u8) -> Vec<u8> {
    let ctrl = Ctrl::new(Opcode::RdmaWrite, index, qpn, 3, CtrlFlags::CQ_UPDATE, 0);
    let mut bytes = ctrl.as_bytes().to_vec();
    bytes.extend_from_slice(Raddr::new(REMOTE, rig.b.keys.rkey).as_bytes());
    bytes.extend_from_slice(&inline(&[value; 8]));
    bytes
}

/// Fills the queue once, so that a second lap finds the first one's WQEs.
fn one_lap() -> Rig {
    let mut rig = Rig::new();
    for _ in 0..1 << rig.a.log_sq {
        rig.a.write_inline(REMOTE, rig.b.keys.rkey, &[1; 8], CtrlFlags::CQ_UPDATE);
    }
    rig.a.ring();
    rig.run();
    rig.a.poll_all();
    assert!(rig.nics[0].findings().is_empty());
    rig
}

#[test]
fn a_sound_program_has_no_findings() {
    let rig = one_lap();
    assert!(rig.nics.iter().all(|nic| nic.findings().is_empty()));
}

#[test]
fn a_doorbell_over_a_slot_of_the_previous_lap_is_named_and_the_old_wqe_runs_again() {
    let mut rig = one_lap();
    let qpn = rig.a.qpn;
    rig.b.memory.word(0).store(0, RELAXED);
    rig.a.producer += 1;
    rig.a.ring();
    rig.run();
    assert_eq!(only(&rig), Finding::UnwrittenSlot { qpn, index: 64, found: Some(0) });
    assert_ne!(rig.b.memory.word(0).load(RELAXED), 0);
    assert_eq!(rig.a.poll_all()[0].wqe_counter.get(), 64);
}

#[test]
fn a_doorbell_over_a_blank_slot_is_named_and_fails() {
    let mut rig = Rig::new();
    let qpn = rig.a.qpn;
    rig.a.producer += 1;
    rig.a.ring();
    rig.run();
    assert_eq!(only(&rig), Finding::UnwrittenSlot { qpn, index: 0, found: None });
    let cqes = rig.a.poll_all();
    assert_eq!(cause(&cqes[0]), (Syndrome::LocalQpOp as u8, Check::DsZero as u8));
}

#[test]
fn a_slot_that_already_holds_a_later_lap_is_named() {
    let mut rig = Rig::new();
    let qpn = rig.a.qpn;
    let later = raw(&rig, 64, qpn.0, 7);
    rig.a.write_raw(0, &later);
    rig.a.producer = 1;
    rig.a.ring();
    rig.run();
    assert_eq!(only(&rig), Finding::SlotOverwritten { qpn, index: 0, found: 64 });
    assert_eq!(rig.b.bytes(0, 8), [7; 8]);
}

#[test]
fn an_index_that_no_lap_puts_there_is_named() {
    let mut rig = Rig::new();
    let qpn = rig.a.qpn;
    let wrong = raw(&rig, 3, qpn.0, 7);
    rig.a.write_raw(0, &wrong);
    rig.a.producer = 1;
    rig.a.ring();
    rig.run();
    assert_eq!(only(&rig), Finding::IndexMismatch { qpn, index: 0, found: 3 });
}

#[test]
fn another_qps_number_in_the_wqe_is_named_and_fails() {
    let mut rig = Rig::new();
    let qpn = rig.a.qpn;
    let wrong = raw(&rig, 0, qpn.0 + 1, 7);
    rig.a.write_raw(0, &wrong);
    rig.a.producer = 1;
    rig.a.ring();
    rig.run();
    assert_eq!(only(&rig), Finding::QpnMismatch { qpn, index: 0, found: qpn.0 + 1 });
    assert_eq!(cause(&rig.a.poll_all()[0]).1, Check::QpnMismatch as u8);
}

#[test]
fn a_doorbell_further_ahead_than_the_queue_is_deep_is_named_and_ignored() {
    let mut rig = Rig::new();
    let qpn = rig.a.qpn;
    rig.a.producer = 65;
    rig.a.ring();
    rig.run();
    let expected = Finding::DoorbellTooFar { qpn, completed: 0, producer: 65, depth: 64 };
    assert_eq!(only(&rig), expected);
    assert!(rig.a.poll().is_none());
}

#[test]
fn a_doorbell_for_nobody_is_named() {
    let mut rig = Rig::new();
    for value in [Doorbell::next_free(0x00ab_cdef, 1), Doorbell::next_free(rig.a.qpn.0 << 8, 1)] {
        rig.nics[0].clear_findings();
        rig.a.ring_value(value);
        rig.run();
        assert_eq!(only(&rig), Finding::NoSuchQp { qpn: value.qpn() });
    }
}

#[test]
fn a_doorbell_of_another_page_is_named() {
    let mut rig = Rig::new();
    let o = Options::default();
    let other = side(&mut rig.nics[0], 0x7000_0000_0000, &o);
    other.ring_value(Doorbell::next_free(rig.a.qpn.0, 1));
    rig.run();
    assert_eq!(only(&rig), Finding::NoSuchQp { qpn: rig.a.qpn.0 });
}

#[test]
fn a_doorbell_before_the_qp_is_ready_is_named_and_ignored() {
    let mut rig = Rig::new();
    let o = Options::default();
    let mut other = side(&mut rig.nics[0], 0x7000_0000_0000, &o);
    other.producer = 1;
    other.ring();
    rig.run();
    assert_eq!(only(&rig), Finding::NotReady { qpn: other.qpn });
}

#[test]
fn the_receive_word_written_for_a_send_is_named() {
    let mut rig = Rig::new();
    let qpn = rig.a.qpn;
    rig.a.write_inline(REMOTE, rig.b.keys.rkey, &[1; 8], CtrlFlags::CQ_UPDATE);
    rig.a.record.half(0).store(1u32.to_be(), RELEASE);
    rig.a.ring_value(Doorbell::next_free(qpn.0, 1));
    rig.steps(100);
    assert_eq!(only(&rig), Finding::ReceiveRecordForSend { qpn, producer: 1 });
    assert_eq!(rig.b.memory.word(0).load(RELAXED), 0);
}

#[test]
fn a_cq_smaller_than_its_queues_is_named() {
    let rig = Rig::with(Options { log_cq: 4, ..Options::default() });
    let found = rig.nics[0].findings();
    assert!(matches!(found[0], Finding::CqTooSmall { entries: 16, needed: 64, .. }), "{found:?}");
}

#[test]
fn findings_say_what_to_look_at() {
    let qpn = Qpn(0x10000);
    let text = Finding::UnwrittenSlot { qpn, index: 64, found: Some(0) }.to_string();
    assert!(
        text.contains("0x10000") && text.contains("WQE 64") && text.contains("Look at"),
        "{text}"
    );
}

#[test]
fn all_are_counted_and_the_first_are_kept() {
    let mut rig = Rig::new();
    for i in 0..1000 {
        rig.a.ring_value(Doorbell::next_free(0x00ab_0000 + i, 1));
        rig.steps(1);
    }
    assert_eq!(rig.nics[0].finding_count(FindingKind::NoSuchQp), 1000);
    assert!(rig.nics[0].findings().len() < 1000);
}
