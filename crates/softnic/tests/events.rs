//! What a NIC tells of, and the formats and moves of completion queues that only verbs ask for.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod rig;

use rig::*;
use softnic::*;
use wire::cqe::{Cqe, CqeOpcode};
use wire::doorbell::{Doorbell, UAR_BLUEFLAME_STRIDE, UAR_SEND};
use wire::wqe::{CtrlFlags, Opcode, Raddr};
use zerocopy::{FromBytes, IntoBytes};

fn put(rig: &mut Rig, rkey: u32) {
    rig.a.write_inline(REMOTE, rkey, &[1; 8], CtrlFlags::CQ_UPDATE);
    rig.a.ring();
    rig.run();
}

fn completions(nic: &mut Nic) -> usize {
    let mut seen = 0;
    nic.take_completions(9, |_| seen += 1);
    seen
}

fn arm(side: &Side, serial: u32, consumer: u32, solicited: bool) {
    let word = serial << 28 | u32::from(solicited) << 24 | consumer & 0xff_ffff;
    side.cq_record.half(4).store(word.to_be(), RELEASE);
}

#[test]
fn an_armed_queue_tells_once_of_what_is_new() {
    let mut rig = Rig::new();
    let rkey = rig.b.keys.rkey;
    rig.nics[0].watch_cq(rig.a.cq).unwrap();
    put(&mut rig, rkey);
    assert_eq!(completions(&mut rig.nics[0]), 0, "not armed");
    // The first request may be 0, and an entry that wasn't consumed then is new.
    arm(&rig.a, 0, 0, false);
    assert_eq!(completions(&mut rig.nics[0]), 1);
    put(&mut rig, rkey);
    assert_eq!(completions(&mut rig.nics[0]), 0, "one event an arming");
    arm(&rig.a, 1, 2, false);
    assert_eq!(completions(&mut rig.nics[0]), 0, "everything is consumed");
    put(&mut rig, rkey);
    assert_eq!(completions(&mut rig.nics[0]), 1);
    // Not consumed, but told of before.
    arm(&rig.a, 2, 2, false);
    assert_eq!(completions(&mut rig.nics[0]), 0);
}

#[test]
fn a_queue_armed_for_solicited_messages_tells_of_them_and_of_errors_only() {
    let mut rig = Rig::new();
    rig.nics[1].watch_cq(rig.b.cq).unwrap();
    let data = [rig.b.data(0, 64)];
    for _ in 0..3 {
        rig.b.post_receive(&data);
    }
    arm(&rig.b, 0, 0, true);
    for (flags, events) in [(CtrlFlags::CQ_UPDATE, 0), (CtrlFlags::SOLICITED, 1)] {
        let data = [rig.a.data(0, 8)];
        rig.a.post(Opcode::Send, flags, 0, None, &data);
        rig.a.ring();
        rig.run();
        assert_eq!(completions(&mut rig.nics[1]), events);
    }
    arm(&rig.b, 1, 2, true);
    rig.nics[1].modify_qp(rig.b.qpn, Modify::ToError).unwrap();
    rig.run();
    assert_eq!(completions(&mut rig.nics[1]), 1, "the flushed receive");
}

#[test]
fn errors_are_told_once_and_not_to_who_asked_for_them() {
    let mut rig = Rig::new();
    put(&mut rig, 0xdead);
    let mut told = Vec::new();
    for _ in 0..2 {
        for nic in &mut rig.nics {
            nic.take_errors(|event| told.push(event));
        }
    }
    let event = |nic: usize, qpn, by_request| Event::QpError {
        qpn,
        cause: rig.nics[nic].qp_error(qpn),
        by_request,
    };
    assert_eq!(told, [event(0, rig.a.qpn, false), event(1, rig.b.qpn, true)]);
    let mut rig = Rig::new();
    rig.nics[0].modify_qp(rig.a.qpn, Modify::ToError).unwrap();
    rig.run();
    rig.nics[0].take_errors(|event| panic!("{event:?}"));
}

#[test]
fn a_wide_queue_has_its_completions_in_the_second_half() {
    let mut nic = Nic::new(NicConfig { id: 1, ..NicConfig::default() });
    let o = Options::default();
    let ring = Memory::zeroed(128 * 8);
    let attr = || CqAttr {
        ring: ring.dma(),
        log_size: 3,
        record: Memory::zeroed(8).dma(),
        collapsed: false,
        ignore_overrun: false,
    };
    assert!(matches!(nic.create_cq(attr()), Err(CreateError::CqNotInitialised { .. })));
    let cq = nic.create_cq_as(attr(), CqFormat { wide: true, unready: true }).unwrap();
    let mut side = side(&mut nic, LOCAL, &o);
    let qpn = nic
        .create_qp(QpAttr {
            pd: side.pd,
            kind: QpKind::Rc,
            send_cq: cq,
            recv_cq: cq,
            sq: side.sq.dma(),
            log_sq_blocks: side.log_sq,
            rq: None,
            record: Some(side.record.dma()),
            uar: side.uar,
            max_rd_atomic: 1,
            sq_start: 0,
        })
        .unwrap();
    side.qpn = qpn;
    connect(&mut nic, qpn, 1, qpn, &Options { max_rd_atomic: 1, ..o });
    let update = QpUpdate { user_index: Some(0x12_3456), ..QpUpdate::default() };
    nic.update_qp(qpn, update).unwrap();
    let keys = side.keys;
    for nth in 0..2 {
        side.write_inline(LOCAL, keys.rkey, &[1; 8], CtrlFlags::CQ_UPDATE);
        side.ring();
        run_all(std::slice::from_mut(&mut nic), &mut 0);
        let mut bytes = [0; 64];
        ring.read(nth * 128 + 64, &mut bytes).unwrap();
        let cqe = Cqe::read_from_bytes(&bytes).unwrap();
        assert_eq!(cqe.opcode(), Some(CqeOpcode::Requester));
        assert_eq!((cqe.wqe_counter.get(), cqe.user_index()), (nth as u16, 0x12_3456));
        ring.read(nth * 128, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 64], "the first half is left alone");
    }
}

#[test]
fn a_resized_queue_says_so_and_goes_on_in_the_new_ring() {
    let mut rig = Rig::new();
    let rkey = rig.b.keys.rkey;
    put(&mut rig, rkey);
    let log_size = rig.a.log_cq + 1;
    let ring = Memory::zeroed(64 << log_size);
    ring.write(0, &vec![0xff; 64 << log_size]).unwrap();
    rig.nics[0].resize_cq(rig.a.cq, ring.dma(), log_size).unwrap();
    put(&mut rig, rkey);
    let opcode = |ring: &std::sync::Arc<Memory>, at: usize| {
        let mut bytes = [0; 64];
        ring.read(at * 64, &mut bytes).unwrap();
        Cqe::read_from_bytes(&bytes).unwrap().opcode()
    };
    let old = [0, 1, 2].map(|at| opcode(&rig.a.cq_ring, at));
    let expected = [CqeOpcode::Requester, CqeOpcode::Resize, CqeOpcode::Invalid].map(Some);
    assert_eq!(old, expected);
    assert_eq!(opcode(&ring, 2), Some(CqeOpcode::Requester), "its number goes on");
    let too_small = Memory::zeroed(64).dma();
    assert!(rig.nics[0].resize_cq(rig.a.cq, too_small, 3).is_err());
}

#[test]
fn numbers_have_the_tags_that_were_asked_for() {
    let config = NicConfig { id: 1, qpn_tags: 9..=11, ..NicConfig::default() };
    let mut nic = Nic::new(config);
    let side = side(&mut nic, LOCAL, &Options::default());
    assert_eq!(side.qpn.0 >> 16, 9);
    nic.destroy_qp(side.qpn).unwrap();
    for nth in 0..6 {
        let again = rig::side(&mut nic, LOCAL, &Options::default());
        assert_eq!(again.qpn.0 >> 16, 9 + (1 + nth) % 3);
        nic.destroy_qp(again.qpn).unwrap();
    }
}

#[test]
fn each_of_a_pages_four_registers_rings() {
    let mut rig = Rig::new();
    let rkey = rig.b.keys.rkey;
    for nth in 0..8 {
        rig.a.write_inline(REMOTE, rkey, &[1; 8], CtrlFlags::CQ_UPDATE);
        rig.a.set_record(rig.a.producer);
        let register = UAR_SEND + nth % 4 * UAR_BLUEFLAME_STRIDE;
        let value = Doorbell::next_free(rig.a.qpn.0, rig.a.producer);
        let bytes: [u8; 8] = value.as_bytes().try_into().unwrap();
        rig.a.page.word(register).store(u64::from_ne_bytes(bytes), RELEASE);
        rig.run();
        assert_eq!(rig.a.poll_all().len(), 1, "register {register:#x}");
    }
}

#[test]
fn a_peer_that_is_gone_costs_the_retries_even_when_the_lane_was_full() {
    let mut rig = Rig::with(Options { timeout: 4, retry_cnt: 1, ..Options::default() });
    let raddr = Raddr::new(REMOTE, rig.b.keys.rkey);
    let data = [rig.a.data(0, 100_000)];
    for _ in 0..4 {
        rig.a.post(Opcode::RdmaWrite, CtrlFlags::CQ_UPDATE, 0, Some(raddr), &data);
    }
    rig.a.ring();
    // Only one side's engine is alive.
    rig.nics.truncate(1);
    rig.steps(50);
    rig.nics[0].cut_link(2);
    rig.run();
    let cqes = rig.a.poll_all();
    assert_eq!(cause(&cqes[0]).1, Check::TransportRetry as u8);
    assert_eq!(cqes.len(), 4);
}

#[test]
fn a_port_that_goes_down_and_comes_up_is_told_and_loses_what_is_sent_meanwhile() {
    let faults = Faults { down: Some((1_000, 20_000_000)), ..Faults::default() };
    let config = NicConfig { faults, ..NicConfig::default() };
    let mut rig = Rig::with(Options { config, retry_cnt: 7, ..Options::default() });
    let told = |rig: &mut Rig| {
        let mut told = Vec::new();
        rig.nics[0].take_errors(|event| told.push(event));
        told
    };
    assert_eq!(rig.nics[0].step(0, 64).next_event, Some(1_000));
    assert_eq!(told(&mut rig), []);
    rig.nics[0].step(1_000, 64);
    assert_eq!(told(&mut rig), [Event::Port { is_up: false }]);
    rig.now = 1_000;
    rig.a.write_inline(REMOTE, rig.b.keys.rkey, &[1; 8], CtrlFlags::CQ_UPDATE);
    rig.a.ring();
    rig.run();
    assert_eq!(rig.a.poll_all().len(), 1);
    assert!(rig.now >= 20_000_000 && rig.nics.iter().any(|nic| nic.counters().dropped > 0));
    assert_eq!(told(&mut rig), [Event::Port { is_up: true }]);
    // A port that was down from the beginning has not gone down.
    rig.nics[0].set_faults(Faults { port_down: true, ..Faults::default() });
    assert_eq!(told(&mut rig), [Event::Port { is_up: false }]);
    let faults = Faults { port_down: true, ..Faults::default() };
    let mut nic = Nic::new(NicConfig { faults, ..NicConfig::default() });
    nic.step(0, 64);
    nic.take_errors(|event| panic!("{event:?}"));
}
