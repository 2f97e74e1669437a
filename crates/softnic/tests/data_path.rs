//! What each opcode does to memory and completes with.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod rig;

use rig::*;
use wire::cqe::CqeOpcode;
use wire::doorbell::Doorbell;
use wire::wqe::{Ctrl, CtrlFlags, Opcode, Raddr};
use zerocopy::{FromBytes, IntoBytes};

#[test]
fn an_inline_write_lands_and_completes_once() {
    let mut rig = Rig::new();
    let rkey = rig.b.keys.rkey;
    let index =
        rig.a.write_inline(REMOTE + 24, rkey, &0x1122_3344_u64.to_le_bytes(), CtrlFlags::CQ_UPDATE);
    rig.a.ring();
    rig.run();
    assert_eq!(rig.b.memory.word(24).load(RELAXED), 0x1122_3344);
    let cqes = rig.a.poll_all();
    assert_eq!(cqes.len(), 1);
    assert_eq!(cqes[0].opcode(), Some(CqeOpcode::Requester));
    assert_eq!((cqes[0].qpn(), cqes[0].wqe_counter.get()), (rig.a.qpn.0, index as u16));
    assert_eq!(cqes[0].wqe_opcode(), Opcode::RdmaWrite as u8);
    assert!(
        rig.nics.iter().all(|nic| nic
            .findings()
            .iter()
            .all(|f| !matches!(f, softnic::Finding::NoSuchQp { .. })))
    );
}

#[test]
fn a_write_gathers_its_segments_in_order() {
    let mut rig = Rig::new();
    for i in 0..20_000 {
        rig.a.memory.write(i, &[(i % 251) as u8]).unwrap();
    }
    let raddr = Raddr::new(REMOTE + 3, rig.b.keys.rkey);
    let data = [rig.a.data(1, 5), rig.a.data(100, 9_001), rig.a.data(0, 0), rig.a.data(17, 7)];
    rig.a.post(Opcode::RdmaWrite, CtrlFlags::CQ_UPDATE, 0, Some(raddr), &data);
    rig.a.ring();
    rig.run();
    let mut expected = rig.a.bytes(1, 5);
    expected.extend(rig.a.bytes(100, 9_001));
    expected.extend(rig.a.bytes(17, 7));
    assert_eq!(rig.b.bytes(3, expected.len()), expected);
    assert_eq!(rig.b.bytes(3 + expected.len(), 8), [0; 8]);
    assert_eq!(rig.a.poll_all().len(), 1);
}

#[test]
fn only_signalled_wqes_complete() {
    let mut rig = Rig::new();
    let rkey = rig.b.keys.rkey;
    for i in 0..32u64 {
        let flags = if i % 8 == 7 { CtrlFlags::CQ_UPDATE } else { CtrlFlags::NONE };
        rig.a.write_inline(REMOTE + i * 8, rkey, &i.to_le_bytes(), flags);
    }
    rig.a.ring();
    rig.run();
    let indices: Vec<_> = rig.a.poll_all().iter().map(|cqe| cqe.wqe_counter.get()).collect();
    assert_eq!(indices, [7, 15, 23, 31]);
    for i in 0..32 {
        assert_eq!(rig.b.memory.word(i * 8).load(RELAXED), i as u64);
    }
}

#[test]
fn a_read_scatters_to_its_segments() {
    let mut rig = Rig::new();
    let source: Vec<u8> = (0..10_000).map(|i| (i % 253) as u8).collect();
    rig.b.memory.write(5, &source).unwrap();
    let raddr = Raddr::new(REMOTE + 5, rig.b.keys.rkey);
    let data = [rig.a.data(0, 4_095), rig.a.data(8_000, 2), rig.a.data(20_000, 5_903)];
    rig.a.post(Opcode::RdmaRead, CtrlFlags::CQ_UPDATE, 0, Some(raddr), &data);
    rig.a.ring();
    rig.run();
    assert_eq!(rig.a.bytes(0, 4_095), source[..4_095]);
    assert_eq!(rig.a.bytes(8_000, 2), source[4_095..4_097]);
    assert_eq!(rig.a.bytes(20_000, 5_903), source[4_097..]);
    assert_eq!(ok(&rig.a.poll_all()), [0]);
}

fn ok(cqes: &[wire::cqe::Cqe]) -> Vec<u16> {
    assert!(cqes.iter().all(|cqe| cqe.opcode() == Some(CqeOpcode::Requester)), "{cqes:?}");
    cqes.iter().map(|cqe| cqe.wqe_counter.get()).collect()
}

/// An atomic's body: remote address, operands, result buffer.
fn atomic(rig: &Rig, at: u64, operands: &[u8], size: u32) -> Vec<u8> {
    let mut body = Raddr::new(REMOTE + at, rig.b.keys.rkey).as_bytes().to_vec();
    body.extend_from_slice(operands);
    body.extend_from_slice(rig.a.data(64, size).as_bytes());
    body
}

fn be(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_be_bytes()).collect()
}

fn be32(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_be_bytes()).collect()
}

#[test]
fn atomics_change_memory_and_give_the_old_value() {
    let old = 0x1111_2222_3333_4444_u64;
    let low = u64::from(old as u32);
    type Case = (&'static str, Opcode, u8, Vec<u8>, u32, u64);
    let cases: [Case; 9] = [
        ("add", Opcode::AtomicFa, 0, be(&[5, 0]), 8, old + 5),
        ("add wraps", Opcode::AtomicFa, 0, be(&[u64::MAX, 0]), 8, old - 1),
        ("swap on equal", Opcode::AtomicCs, 0, be(&[9, old]), 8, 9),
        ("no swap", Opcode::AtomicCs, 0, be(&[9, old + 1]), 8, old),
        ("masked add 8", Opcode::AtomicMaskedFa, 9, be(&[1, 0]), 8, old + 1),
        ("masked add 4", Opcode::AtomicMaskedFa, 8, be32(&[1, 0, 0, 0]), 4, old + 1),
        ("masked swap 8", Opcode::AtomicMaskedCs, 9, be(&[0, old, 0xff, u64::MAX]), 8, old & !0xff),
        (
            "masked swap 4",
            Opcode::AtomicMaskedCs,
            8,
            be32(&[0, old as u32, 0xff, u32::MAX]),
            4,
            old & !0xff,
        ),
        (
            "masked swap 4 refused",
            Opcode::AtomicMaskedCs,
            8,
            be32(&[0, old as u32 ^ 1, 0xff, u32::MAX]),
            4,
            old,
        ),
    ];
    for (name, op, opmod, operands, size, new) in cases {
        let mut rig = Rig::new();
        rig.b.memory.word(40).store(old, RELAXED);
        let body = atomic(&rig, 40, &operands, size);
        let ds = 1 + (body.len() / 16) as u8;
        let ctrl = Ctrl::new(op, 0, rig.a.qpn.0, ds, CtrlFlags::CQ_UPDATE, 0).with_opmod(opmod);
        rig.a.write_ctrl(ctrl, &body);
        rig.a.ring();
        rig.run();
        assert_eq!(ok(&rig.a.poll_all()), [0], "{name}");
        assert_eq!(rig.b.memory.word(40).load(RELAXED), new, "{name}");
        let result = if size == 8 { old } else { low };
        assert_eq!(rig.a.memory.word(64).load(RELAXED), result, "{name}");
    }
}

#[test]
fn a_send_fills_the_posted_receives_segments_and_completes_both_sides() {
    let mut rig = Rig::new();
    let receive = [rig.b.data(100, 10), rig.b.data(300, 9_000)];
    rig.b.post_receive(&receive);
    let message: Vec<u8> = (0..6_000).map(|i| (i % 249) as u8).collect();
    rig.a.memory.write(0, &message).unwrap();
    let data = [rig.a.data(0, 6_000)];
    rig.a.post(Opcode::SendImm, CtrlFlags::CQ_UPDATE, 0xcafe_f00d, None, &data);
    rig.a.ring();
    rig.run();
    assert_eq!(rig.b.bytes(100, 10), message[..10]);
    assert_eq!(rig.b.bytes(300, 5_990), message[10..]);
    assert_eq!(ok(&rig.a.poll_all()), [0]);
    let received = rig.b.poll_all();
    assert_eq!(received.len(), 1);
    assert_eq!(received[0].opcode(), Some(CqeOpcode::ResponderSendImm));
    assert_eq!(received[0].imm_inval.get(), 0xcafe_f00d);
    assert_eq!(received[0].byte_count.get(), 6_000);
    assert_eq!(received[0].qpn(), rig.b.qpn.0);
}

#[test]
fn a_write_with_immediate_consumes_a_receive_and_leaves_its_buffer_alone() {
    let mut rig = Rig::new();
    let receive = [rig.b.data(512, 64)];
    rig.b.post_receive(&receive);
    let raddr = Raddr::new(REMOTE + 8, rig.b.keys.rkey);
    rig.a.memory.word(0).store(77, RELAXED);
    let data = [rig.a.data(0, 8)];
    rig.a.post(Opcode::RdmaWriteImm, CtrlFlags::CQ_UPDATE, 0x0102_0304, Some(raddr), &data);
    rig.a.ring();
    rig.run();
    assert_eq!(rig.b.memory.word(8).load(RELAXED), 77);
    assert_eq!(rig.b.memory.word(512).load(RELAXED), 0);
    let received = rig.b.poll_all();
    assert_eq!(received[0].opcode(), Some(CqeOpcode::ResponderWriteImm));
    assert_eq!((received[0].imm_inval.get(), received[0].byte_count.get()), (0x0102_0304, 8));
}

#[test]
fn nothing_happens_before_a_ring() {
    let mut rig = Rig::new();
    let rkey = rig.b.keys.rkey;
    rig.a.write_inline(REMOTE, rkey, &[1; 8], CtrlFlags::CQ_UPDATE);
    rig.a.set_record(1);
    rig.run();
    assert_eq!(rig.b.memory.word(0).load(RELAXED), 0);
    rig.a.ring();
    rig.run();
    assert_ne!(rig.b.memory.word(0).load(RELAXED), 0);
}

#[test]
fn a_ring_before_its_record_waits_for_the_record() {
    let mut rig = Rig::new();
    let rkey = rig.b.keys.rkey;
    rig.a.write_inline(REMOTE, rkey, &[1; 8], CtrlFlags::CQ_UPDATE);
    rig.a.ring_value(Doorbell::next_free(rig.a.qpn.0, 1));
    rig.steps(10);
    assert_eq!(rig.b.memory.word(0).load(RELAXED), 0);
    rig.a.set_record(1);
    rig.run();
    assert_eq!(ok(&rig.a.poll_all()), [0]);
}

#[test]
fn both_forms_of_the_register_are_understood_without_a_record() {
    for libmlx5 in [false, true] {
        let mut rig = Rig::with(Options { with_record: false, ..Options::default() });
        let rkey = rig.b.keys.rkey;
        let mut body = Raddr::new(REMOTE, rkey).as_bytes().to_vec();
        body.extend_from_slice(&inline(&[3; 60]));
        rig.a.write_wqe(Opcode::RdmaWrite, CtrlFlags::CQ_UPDATE, 0, &body);
        let last = Ctrl::new(Opcode::RdmaWrite, 0, rig.a.qpn.0, 7, CtrlFlags::NONE, 0);
        rig.a.ring_value(if libmlx5 {
            Doorbell::last_wqe(&last)
        } else {
            Doorbell::next_free(rig.a.qpn.0, 2)
        });
        rig.run();
        assert_eq!(ok(&rig.a.poll_all()), [0], "libmlx5 form: {libmlx5}");
        assert_eq!(rig.b.bytes(0, 61), [[3; 60].as_slice(), &[0]].concat());
    }
}

#[test]
fn indices_and_sequence_numbers_wrap() {
    for (sq_start, psn) in [(65_500, 0xff_fff0), ((1 << 32) - 20, 0xff_ffff), (0x1_fff8, 0)] {
        let mut rig = Rig::with(Options { sq_start, psn, log_sq: 4, ..Options::default() });
        let rkey = rig.b.keys.rkey;
        let mut expected = Vec::new();
        let mut got = Vec::new();
        for i in 0..100u64 {
            // Two blocks every third time, so that WQEs also wrap at the queue's end.
            let bytes = [i as u8 + 1; 40];
            let len = if i % 3 == 0 { 40 } else { 8 };
            let index =
                rig.a.write_inline(REMOTE + i * 64, rkey, &bytes[..len], CtrlFlags::CQ_UPDATE);
            expected.push(index as u16);
            rig.a.ring();
            rig.run();
            got.extend(ok(&rig.a.poll_all()));
            assert_eq!(rig.b.bytes(i as usize * 64, len), bytes[..len]);
        }
        assert_eq!(got, expected, "start {sq_start:#x}, psn {psn:#x}");
    }
}

#[test]
fn a_long_message_shares_the_engine_with_a_short_one() {
    let mut rig = Rig::new();
    let raddr = Raddr::new(REMOTE, rig.b.keys.rkey);
    let data = [rig.a.data(0, REGION as u32)];
    rig.a.post(Opcode::RdmaWrite, CtrlFlags::CQ_UPDATE, 0, Some(raddr), &data);
    rig.a.ring();
    rig.b.write_inline(LOCAL + 8, rig.a.keys.rkey, &[9; 8], CtrlFlags::CQ_UPDATE);
    rig.b.ring();
    rig.steps(2);
    assert_eq!(rig.a.memory.word(8).load(RELAXED), u64::from_le_bytes([9; 8]));
    rig.run();
    assert_eq!(rig.a.poll_all().len() + rig.b.poll_all().len(), 2);
}

#[test]
fn memory_behind_copies_serves_as_queue_completion_and_payload() {
    let mut rig = Rig::with(Options { copied: true, ..Options::default() });
    let raddr = Raddr::new(REMOTE + 1, rig.b.keys.rkey);
    rig.a.memory.write(0, &[7; 5000]).unwrap();
    let data = [rig.a.data(0, 5000)];
    rig.a.post(Opcode::RdmaWrite, CtrlFlags::CQ_UPDATE, 0, Some(raddr), &data);
    let body = atomic(&rig, 8_000, &be(&[3, 0]), 8);
    rig.a.write_wqe(Opcode::AtomicFa, CtrlFlags::CQ_UPDATE, 0, &body);
    rig.a.ring();
    rig.run();
    assert_eq!(rig.b.bytes(1, 5000), [7; 5000]);
    assert_eq!(rig.b.memory.word(8_000).load(RELAXED), 3);
    assert_eq!(ok(&rig.a.poll_all()), [0, 1]);
}

#[test]
fn a_nic_reaches_itself() {
    let mut rig = Rig::new();
    let o = Options::default();
    let mut x = side(&mut rig.nics[0], REMOTE, &o);
    let y = side(&mut rig.nics[0], 0x4000_0000_0000, &o);
    connect(&mut rig.nics[0], x.qpn, 1, y.qpn, &o);
    connect(&mut rig.nics[0], y.qpn, 1, x.qpn, &o);
    x.write_inline(0x4000_0000_0000, y.keys.rkey, &[5; 8], CtrlFlags::CQ_UPDATE);
    x.ring();
    rig.run();
    // Each side has its own protection domain.
    assert_eq!(y.memory.word(0).load(RELAXED), u64::from_le_bytes([5; 8]));
    assert_eq!(ok(&x.poll_all()), [0]);
}

#[test]
fn a_collapsed_cq_holds_the_last_completion_in_its_one_entry() {
    let mut rig =
        Rig::with(Options { collapsed: true, ignore_overrun: true, ..Options::default() });
    let rkey = rig.b.keys.rkey;
    for i in 0..20 {
        rig.a.write_inline(REMOTE + i * 8, rkey, &[1; 8], CtrlFlags::CQ_UPDATE);
    }
    rig.a.ring();
    rig.run();
    let mut entry = [0; 128];
    rig.a.cq_ring.read(0, &mut entry).unwrap();
    let cqe = wire::cqe::Cqe::read_from_bytes(&entry[..64]).unwrap();
    assert_eq!(cqe.wqe_counter.get(), 19);
    assert_eq!(entry[64..], [0xff; 64]);
}

#[test]
fn two_queues_that_share_a_register_lose_no_ring() {
    let mut rig = Rig::new();
    let o = Options::default();
    let page = rig.a.page.clone();
    let mut x = side_on(&mut rig.nics[0], 0x5000_0000_0000, &o, Some((rig.a.uar, page)));
    let y = side(&mut rig.nics[1], 0x6000_0000_0000, &o);
    connect(&mut rig.nics[0], x.qpn, 2, y.qpn, &o);
    connect(&mut rig.nics[1], y.qpn, 1, x.qpn, &o);
    rig.a.write_inline(REMOTE, rig.b.keys.rkey, &[5; 8], CtrlFlags::CQ_UPDATE);
    x.write_inline(0x6000_0000_0000, y.keys.rkey, &[6; 8], CtrlFlags::CQ_UPDATE);
    rig.a.ring();
    x.ring();
    rig.run();
    assert_eq!((rig.a.poll_all().len(), x.poll_all().len()), (1, 1));
}
