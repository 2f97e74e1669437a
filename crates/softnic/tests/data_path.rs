//! What each opcode does to memory and completes with.

mod rig;

use rig::*;
use wire::cqe::CqeOpcode;
use wire::wqe::{CtrlFlags, Opcode, Raddr};

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
