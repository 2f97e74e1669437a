//! Receives that are shared, and messages that nobody acknowledges.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod rig;

use std::sync::Arc;

use rig::*;
use softnic::*;
use wire::cqe::{Cqe, CqeOpcode, Syndrome};
use wire::wqe::{AV_EXTENDED, AddressVector, CtrlFlags, Data, Opcode, Raddr};
use zerocopy::{FromZeros, IntoBytes};

const QKEY: u32 = 0x8001_0203;

fn datagrams() -> Rig {
    let kind = QpKind::Ud;
    let mut rig = Rig::with(Options { kind, max_rd_atomic: 0, timeout: 0, ..Options::default() });
    let (a, b) = (rig.a.qpn, rig.b.qpn);
    rig.nics[0].set_qkey(a, QKEY).unwrap();
    rig.nics[1].set_qkey(b, QKEY).unwrap();
    rig
}

fn vector(qkey: u32, qpn: Qpn) -> AddressVector {
    AddressVector {
        key: (u64::from(qkey) << 32).into(),
        dqp_dct: (qpn.0 | AV_EXTENDED).into(),
        stat_rate_sl: 3,
        rlid: 2u16.to_be_bytes(),
        ..AddressVector::new_zeroed()
    }
}

fn post_datagram(rig: &mut Rig, vector: &AddressVector, op: Opcode, len: u32) {
    let data = rig.a.data(0, len);
    let body = [vector.as_bytes(), data.as_bytes()].concat();
    rig.a.write_wqe(op, CtrlFlags::CQ_UPDATE, 0x0102_0304, &body);
    rig.a.ring();
    rig.run();
}

#[test]
fn a_datagram_lands_behind_the_room_for_its_route_header_and_says_whom_it_is_from() {
    let mut rig = datagrams();
    rig.a.memory.write(0, b"datagram").unwrap();
    for op in [Opcode::Send, Opcode::SendImm] {
        let data = [rig.b.data(64, 48)];
        rig.b.post_receive(&data);
        let to = vector(QKEY, rig.b.qpn);
        post_datagram(&mut rig, &to, op, 8);
        assert_eq!(rig.a.poll().unwrap().opcode(), Some(CqeOpcode::Requester));
        let cqe = rig.b.poll().unwrap();
        let with_imm = op == Opcode::SendImm;
        let kind = if with_imm { CqeOpcode::ResponderSendImm } else { CqeOpcode::ResponderSend };
        assert_eq!((cqe.opcode(), cqe.byte_count.get()), (Some(kind), 48));
        assert_eq!(cqe.source(), (rig.a.qpn.0, 1, 3, false));
        assert_eq!(cqe.imm_inval.get(), if with_imm { 0x0102_0304 } else { 0 });
        assert_eq!(rig.b.bytes(64 + 40, 8), b"datagram");
    }
}

#[test]
fn a_route_header_is_written_for_those_addresses_that_have_one_and_must_lead_here() {
    let mut rig = datagrams();
    let gid = |last| {
        let mut gid = [0; 16];
        (gid[0], gid[1], gid[15]) = (0xfe, 0x80, last);
        gid
    };
    for (nic, last) in rig.nics.iter_mut().zip([1, 2]) {
        let gids = vec![(gid(last), GidKind::Ib)];
        nic.set_port(PortAddress { lid: u16::from(last) * 16, gids, is_ethernet: false });
    }
    for (last, arrives) in [(2, true), (3, false)] {
        let data = [rig.b.data(0, 64)];
        rig.b.post_receive(&data);
        let to = vector(QKEY, rig.b.qpn);
        let to = AddressVector {
            tclass: 5,
            hop_limit: 9,
            grh_gid_fl: (1 << 30 | 0x12345).into(),
            rgid: gid(last),
            ..to
        };
        post_datagram(&mut rig, &to, Opcode::Send, 5);
        assert_eq!(rig.a.poll().unwrap().opcode(), Some(CqeOpcode::Requester));
        let cqe = rig.b.poll();
        assert_eq!(cqe.map(|cqe| cqe.source()), arrives.then_some((rig.a.qpn.0, 16, 3, true)));
        if arrives {
            let grh = rig.b.bytes(0, 40);
            // Version 6, class 5, flow; 12 + 8 + 8 + 4 bytes; InfiniBand next; 9 hops; from, to.
            assert_eq!(grh[..8], [0x60, 0x51, 0x23, 0x45, 0, 32, 0x1b, 9]);
            assert_eq!((&grh[8..24], &grh[24..]), (&gid(1)[..], &gid(2)[..]));
        }
    }
}

#[test]
fn datagrams_that_nobody_waits_for_are_lost_and_the_sender_does_not_know() {
    let wrong_key = |rig: &Rig| vector(QKEY + 1, rig.b.qpn);
    let wrong_number = |rig: &Rig| vector(QKEY, Qpn(rig.b.qpn.0 ^ 0x10));
    let right = |rig: &Rig| vector(QKEY, rig.b.qpn);
    type To<'a> = &'a dyn Fn(&Rig) -> AddressVector;
    for (what, to, received) in [
        ("another key", &wrong_key as To<'_>, true),
        ("another number", &wrong_number, true),
        ("no receive", &right, false),
    ] {
        let mut rig = datagrams();
        if received {
            let data = [rig.b.data(0, 48)];
            rig.b.post_receive(&data);
        }
        let to = to(&rig);
        post_datagram(&mut rig, &to, Opcode::Send, 8);
        let opcode = rig.a.poll().unwrap().opcode();
        assert_eq!(opcode, Some(CqeOpcode::Requester), "{what}");
        assert_eq!(rig.b.poll(), None, "{what}");
        assert_eq!(rig.nics[1].query_qp(rig.b.qpn).unwrap().state, QpState::Rts, "{what}");
    }
}

#[test]
fn what_no_datagram_can_be_fails_where_it_is_found() {
    for (op, len, room, sender, receiver) in [
        (Opcode::RdmaWrite, 8, 64, Some(Syndrome::LocalQpOp), None),
        (Opcode::Send, 4097, 8192, Some(Syndrome::LocalLength), None),
        (Opcode::Send, 4096, 8192, None, None),
        (Opcode::Send, 25, 64, None, Some(Syndrome::LocalLength)),
    ] {
        let mut rig = datagrams();
        let data = [rig.b.data(0, room)];
        rig.b.post_receive(&data);
        let to = vector(QKEY, rig.b.qpn);
        post_datagram(&mut rig, &to, op, len);
        let failed = |cqe: Option<Cqe>| {
            cqe.filter(|cqe| cqe.opcode().unwrap().is_error()).and_then(|cqe| cqe.syndrome())
        };
        assert_eq!(failed(rig.a.poll()), sender, "{op:?} {len}");
        assert_eq!(failed(rig.b.poll()), receiver, "{op:?} {len}");
    }
}

fn unreliable(faults: Faults) -> Rig {
    let config = NicConfig { faults, ..NicConfig::default() };
    let (kind, log_cq) = (QpKind::Uc, 9);
    let o = Options { kind, config, log_cq, max_rd_atomic: 0, timeout: 0, ..Options::default() };
    Rig::with(o)
}

#[test]
fn an_unreliable_connection_writes_and_sends_but_does_not_read() {
    let mut rig = unreliable(Faults::default());
    let bytes: Vec<u8> = (0..10_000u32).map(|i| (i * 7) as u8).collect();
    rig.a.memory.write(0, &bytes).unwrap();
    let to = Raddr::new(REMOTE + 20_000, rig.b.keys.rkey);
    let data = [rig.a.data(0, 10_000)];
    let receive = [rig.b.data(60_000, 10_000)];
    rig.b.post_receive(&receive);
    rig.a.post(Opcode::RdmaWrite, CtrlFlags::CQ_UPDATE, 0, Some(to), &data);
    rig.a.post(Opcode::Send, CtrlFlags::CQ_UPDATE, 0, None, &data);
    rig.a.post(Opcode::RdmaRead, CtrlFlags::CQ_UPDATE, 0, Some(to), &data);
    rig.a.ring();
    rig.run();
    let done: Vec<_> = rig.a.poll_all().iter().map(|cqe| cqe.opcode().unwrap()).collect();
    assert_eq!(done, [CqeOpcode::Requester, CqeOpcode::Requester, CqeOpcode::RequesterError]);
    assert_eq!(rig.b.poll().unwrap().byte_count.get(), 10_000);
    assert_eq!(rig.b.bytes(20_000, 10_000), bytes);
    assert_eq!(rig.b.bytes(60_000, 10_000), bytes);
}

#[test]
fn messages_that_lose_packets_leave_their_receive_to_the_next_and_are_never_seen() {
    for n in [2, 3, 5] {
        let mut rig = unreliable(Faults { drop_random: Some((n, 9)), ..Faults::default() });
        let mut arrived = 0;
        for round in 0..100u8 {
            rig.a.memory.write(0, &[round; 9000]).unwrap();
            if rig.b.received == arrived {
                // One is posted at a time: a message that loses some of its packets must not use it up.
                let data = [rig.b.data(0, 9000)];
                rig.b.post_receive(&data);
            }
            let data = [rig.a.data(0, 9000)];
            rig.a.post(Opcode::Send, CtrlFlags::CQ_UPDATE, 0, None, &data);
            rig.a.ring();
            rig.run();
            assert_eq!(rig.a.poll().unwrap().opcode(), Some(CqeOpcode::Requester));
            if let Some(cqe) = rig.b.poll() {
                assert_eq!(cqe.opcode(), Some(CqeOpcode::ResponderSend));
                assert_eq!(rig.b.bytes(0, 9000), [round; 9000]);
                arrived += 1;
            }
        }
        assert!((1..100).contains(&arrived), "1 in {n}: {arrived}");
    }
}

/// A list of receives, as libraries keep it: each place holds its successor's.
struct List {
    id: SrqId,
    ring: Arc<Memory>,
    record: Arc<Memory>,
    posted: u32,
    /// The place for the next receive.
    head: u16,
}

const PLACES: u16 = 8;

impl List {
    fn new(nic: &mut Nic, pd: PdId, completions: Option<(CqId, u32)>) -> Self {
        let (ring, record) = (Memory::zeroed(64 * usize::from(PLACES)), Memory::zeroed(8));
        for place in 0..PLACES {
            ring.write(usize::from(place) * 64 + 2, &(place + 1).to_be_bytes()).unwrap();
        }
        let queue = RqAttr { ring: ring.dma(), log_wqes: 3, log_stride: 6 };
        let attr = SrqAttr { pd, queue, record: record.dma(), completions };
        Self { id: nic.create_srq(attr).unwrap(), ring, record, posted: 0, head: 0 }
    }

    fn post(&mut self, data: Data) {
        let at = usize::from(self.head) * 64;
        self.ring.write(at + 16, data.as_bytes()).unwrap();
        self.ring.write(at + 32, Data::TERMINATOR.as_bytes()).unwrap();
        let mut next = [0; 2];
        self.ring.read(at + 2, &mut next).unwrap();
        self.head = u16::from_be_bytes(next);
        self.posted += 1;
        self.record.half(0).store(self.posted.to_be(), RELEASE);
    }

    /// Puts a place that was consumed behind `tail`.
    fn free(&self, tail: u16, place: u16) {
        self.ring.write(usize::from(tail) * 64 + 2, &place.to_be_bytes()).unwrap();
    }
}

/// A QP of NIC 2 that takes its receives from a list, connected to `a`.
fn sharing(rig: &mut Rig, srq: SrqId, user_index: u32) -> Qpn {
    let attr = QpAttr {
        pd: rig.b.pd,
        kind: QpKind::Rc,
        send_cq: rig.b.cq,
        recv_cq: rig.b.cq,
        sq: Memory::zeroed(64).dma(),
        log_sq_blocks: 0,
        rq: None,
        record: Some(Memory::zeroed(8).dma()),
        uar: rig.b.uar,
        max_rd_atomic: 16,
        sq_start: 0,
    };
    let format = ReceiveFormat { srq: Some(srq), user_index };
    let qpn = rig.nics[1].create_qp_as(attr, format).unwrap();
    join(rig, qpn);
    qpn
}

/// Connects `a` to a QP of NIC 2.
fn join(rig: &mut Rig, qpn: Qpn) {
    let o = Options::default();
    let a = rig.a.qpn;
    rig.nics[0].modify_qp(a, Modify::ToReset).unwrap();
    rig.a.producer = 0;
    rig.a.set_record(0);
    connect(&mut rig.nics[0], a, 2, qpn, &o);
    if rig.nics[1].query_qp(qpn).unwrap().state == QpState::Reset {
        connect(&mut rig.nics[1], qpn, 1, a, &Options { max_rd_atomic: 0, ..o });
    }
}

fn send(rig: &mut Rig, bytes: &[u8]) {
    rig.a.memory.write(0, bytes).unwrap();
    let data = [rig.a.data(0, bytes.len() as u32)];
    rig.a.post(Opcode::Send, CtrlFlags::CQ_UPDATE, 0, None, &data);
    rig.a.ring();
    rig.run();
}

fn events(nic: &mut Nic) -> Vec<Event> {
    let mut told = Vec::new();
    nic.take_errors(|event| told.push(event));
    told
}

#[test]
fn shared_receives_are_taken_in_the_lists_order_and_completed_by_place() {
    let mut rig = Rig::new();
    let pd = rig.b.pd;
    let mut list = List::new(&mut rig.nics[1], pd, None);
    let qpn = sharing(&mut rig, list.id, 77);
    assert!(matches!(rig.nics[1].destroy_srq(list.id), Err(DestroyError::Busy { .. })));
    // The list has one place more than receives may be posted; freed places go behind its end.
    let (mut tail, mut freed) = (PLACES - 1, Vec::new());
    for round in 0..40u8 {
        let data = rig.b.data(u64::from(round) * 64, 64);
        list.post(data);
        send(&mut rig, &[round + 1; 33]);
        assert_eq!(rig.a.poll().unwrap().opcode(), Some(CqeOpcode::Requester), "{round}");
        let cqe = rig.b.poll().unwrap();
        assert_eq!((cqe.qpn(), cqe.user_index()), (qpn.0, 77));
        assert_eq!(rig.b.bytes(usize::from(round) * 64, 33), [round + 1; 33]);
        freed.push(cqe.wqe_counter.get());
        // Places come back two at a time, the later one first.
        if freed.len() == 2 {
            for place in freed.drain(..).rev() {
                list.free(tail, place);
                tail = place;
            }
        }
    }
    assert_eq!(rig.nics[1].query_srq(list.id).unwrap().taken, 40);
    rig.nics[1].destroy_qp(qpn).unwrap();
    rig.nics[1].destroy_srq(list.id).unwrap();
    assert_eq!(rig.nics[1].query_srq(list.id), None);
}

#[test]
fn a_sender_waits_for_a_shared_receive_and_a_limit_is_told_once() {
    let mut rig = Rig::new();
    let pd = rig.b.pd;
    let mut list = List::new(&mut rig.nics[1], pd, None);
    let qpn = sharing(&mut rig, list.id, 0);
    let data = rig.b.data(0, 64);
    for _ in 0..3 {
        list.post(data);
    }
    assert!(rig.nics[1].set_srq_limit(list.id, 9).is_err(), "more than there are places");
    rig.nics[1].set_srq_limit(list.id, 2).unwrap();
    let mut told = Vec::new();
    for _ in 0..3 {
        send(&mut rig, b"x");
        told.push(events(&mut rig.nics[1]).len());
    }
    assert_eq!(told, [0, 1, 0], "with one receive left, and once");
    assert_eq!(rig.nics[1].query_srq(list.id).unwrap().limit, 0);
    rig.nics[1].set_srq_limit(list.id, 1).unwrap();
    assert_eq!(events(&mut rig.nics[1]), [Event::SrqLimit { srq: list.id }], "there are none");
    // None is posted: the sender asks again until one is.
    rig.a.memory.write(0, b"late").unwrap();
    let send = [rig.a.data(0, 4)];
    rig.a.poll_all();
    rig.a.post(Opcode::Send, CtrlFlags::CQ_UPDATE, 0, None, &send);
    rig.a.ring();
    rig.steps(20);
    assert_eq!(rig.a.poll(), None);
    list.post(data);
    rig.run();
    assert_eq!(rig.a.poll().unwrap().opcode(), Some(CqeOpcode::Requester));
    // In ERROR the QP leaves the list alone, and says so.
    list.post(data);
    rig.b.poll_all();
    rig.nics[1].modify_qp(qpn, Modify::ToError).unwrap();
    rig.run();
    assert_eq!(rig.b.poll(), None);
    assert_eq!(events(&mut rig.nics[1]), [Event::LastReceive { qpn }]);
    assert_eq!(events(&mut rig.nics[1]), []);
}

#[test]
fn an_extended_connection_names_the_list_of_each_message() {
    let kind = QpKind::XrcInitiator;
    let mut rig = Rig::with(Options { kind, ..Options::default() });
    let (pd, cq) = (rig.b.pd, rig.b.cq);
    let attr = QpAttr {
        pd,
        kind: QpKind::XrcTarget,
        send_cq: cq,
        recv_cq: cq,
        sq: Memory::zeroed(64).dma(),
        log_sq_blocks: 0,
        rq: None,
        record: None,
        uar: rig.b.uar,
        max_rd_atomic: 0,
        sq_start: 0,
    };
    let target = rig.nics[1].create_qp(attr).unwrap();
    join(&mut rig, target);
    let mut lists = [5, 6].map(|index| List::new(&mut rig.nics[1], pd, Some((cq, index))));
    for (round, nth) in [0usize, 1, 1, 0].into_iter().enumerate() {
        let at = 64 * round as u64;
        lists[nth].post(rig.b.data(at, 64));
        rig.a.memory.write(0, &[round as u8 + 1; 20]).unwrap();
        let mut body = vec![0; 16];
        body[..4].copy_from_slice(&lists[nth].id.number().to_be_bytes());
        body.extend_from_slice(rig.a.data(0, 20).as_bytes());
        rig.a.write_wqe(Opcode::Send, CtrlFlags::CQ_UPDATE, 0, &body);
        rig.a.ring();
        rig.run();
        assert_eq!(rig.a.poll().unwrap().opcode(), Some(CqeOpcode::Requester));
        assert_eq!(rig.b.poll().unwrap().user_index(), 5 + nth as u32);
        assert_eq!(rig.b.bytes(at as usize, 20), [round as u8 + 1; 20]);
    }
    // A list that isn't there ends the connection.
    let mut body = vec![0; 16];
    body[..4].copy_from_slice(&0x1234u32.to_be_bytes());
    body.extend_from_slice(rig.a.data(0, 20).as_bytes());
    rig.a.write_wqe(Opcode::Send, CtrlFlags::CQ_UPDATE, 0, &body);
    rig.a.ring();
    rig.run();
    assert_eq!(rig.a.poll().unwrap().syndrome(), Some(Syndrome::RemoteInvalidRequest));
}

#[test]
fn a_queue_that_is_drained_sends_what_it_had_and_goes_on_when_it_is_told_to() {
    let mut rig = Rig::new();
    let (qpn, rkey) = (rig.a.qpn, rig.b.keys.rkey);
    rig.a.write_inline(REMOTE, rkey, &[1; 8], CtrlFlags::CQ_UPDATE);
    rig.a.ring();
    rig.nics[0].step(0, 256);
    rig.nics[0].drain_sends(qpn, Some(true)).unwrap();
    assert_eq!(rig.nics[0].query_qp(qpn).unwrap().sends, Sends::Drain, "one is on its way");
    assert_eq!(events(&mut rig.nics[0]), []);
    rig.a.write_inline(REMOTE, rkey, &[2; 8], CtrlFlags::CQ_UPDATE);
    rig.a.ring();
    rig.run();
    assert_eq!(rig.nics[0].query_qp(qpn).unwrap().sends, Sends::Drained);
    assert_eq!(events(&mut rig.nics[0]), [Event::Drained { qpn }]);
    assert_eq!(events(&mut rig.nics[0]), []);
    assert_eq!((rig.a.poll_all().len(), rig.b.bytes(0, 8)), (1, vec![1; 8]));
    rig.nics[0].drain_sends(qpn, None).unwrap();
    rig.run();
    assert_eq!((rig.a.poll_all().len(), rig.b.bytes(0, 8)), (1, vec![2; 8]));
    rig.nics[0].modify_qp(qpn, Modify::ToError).unwrap();
    assert!(rig.nics[0].drain_sends(qpn, Some(false)).is_err());
}
