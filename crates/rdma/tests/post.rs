//! Posting from the CPU: the bytes, partial posts, refusals, wraps.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use rdma::post::{
    BadWr, Completion, Ended, ReceivePoster, ReceiveQueue, RemoteAddr, SendOp, SendPoster,
    SendQueue, SendWr, Sge,
};
use rdma::soft::{Fabric, FabricAttr, SoftNic};
use rdma::{
    Access, ConnectAttr, CqKind, Destination, Memory, Nic, QueuePair, QueuePairAttr, Region,
};
use wire::cqe::Syndrome;
use wire::wqe::{Atomic, CtrlFlags, Opcode, WqeBuf};

struct Rig {
    near: Arc<SoftNic>,
    poster: SendPoster,
    peer: Arc<QueuePair>,
    local: Region,
    remote: Region,
    _fabric: Fabric,
}

fn rig(log_blocks: u32, start: u64) -> Rig {
    let fabric = Fabric::open(&FabricAttr::default()).unwrap();
    let (near, far) = (fabric.nic(0).clone(), fabric.nic(1).clone());
    let attr = QueuePairAttr {
        log_blocks,
        log_cq: log_blocks,
        cq_kind: CqKind::Ring,
        start,
        ..QueuePairAttr::default()
    };
    let qp = near.create_queue_pair(&attr).unwrap();
    let far_attr = QueuePairAttr { log_blocks: 2, log_receives: Some(3), ..attr.clone() };
    let far_attr = QueuePairAttr { log_cq: 2, start: 0, ..far_attr };
    let peer = far.create_queue_pair(&far_attr).unwrap();
    let to = |nic: &SoftNic, qpn| Destination { nic: nic.address(), qpn };
    far.connect(&peer, to(&near, qp.qpn), &ConnectAttr::default()).unwrap();
    near.connect(&qp, to(&far, peer.qpn), &ConnectAttr::default()).unwrap();
    let local = near.register(&Memory::zeroed(4096), Access::empty()).unwrap();
    let remote = far.register(&Memory::zeroed(4096), Access::all()).unwrap();
    let poster = SendPoster::new(Arc::new(qp)).unwrap();
    Rig { near, poster, peer: Arc::new(peer), local, remote, _fabric: fabric }
}

impl Rig {
    fn sge(&self, offset: u64, bytes: u32) -> Sge {
        Sge { address: self.local.address + offset, bytes, lkey: self.local.lkey }
    }
    fn remote(&self, offset: u64) -> RemoteAddr {
        RemoteAddr { address: self.remote.address + offset, rkey: self.remote.rkey }
    }
    fn add(&self, wr_id: u64) -> SendWr {
        let op = SendOp::FetchAdd(1, self.remote(0), self.sge(0, 8));
        SendWr { wr_id, op, signaled: true, fence: false }
    }
    /// Steps until nothing moves and returns what completed.
    fn run(&mut self) -> Vec<Completion> {
        let mut all = Vec::new();
        let mut out = [Completion::NONE; 4];
        loop {
            let did = self.near.step();
            let taken = self.poster.poll(&mut out);
            all.extend(&out[..taken]);
            if !did && taken == 0 {
                return all;
            }
        }
    }
}

#[test]
fn requests_become_the_bytes_that_the_formats_room_builds() {
    let mut rig = rig(4, 0xffff_fffe);
    let (sge, eight, remote) = (rig.sge(16, 100), rig.sge(8, 8), rig.remote(64));
    let inline = *b"inline bytes, as many as fit";
    type Build<'a> = &'a dyn Fn(&mut WqeBuf);
    let raddr = |w: &mut WqeBuf| {
        w.raddr(remote.address, remote.rkey).unwrap();
    };
    let data = |w: &mut WqeBuf, s: Sge| {
        w.data(s.address, s.bytes.into(), s.lkey).unwrap();
    };
    let cases: [(SendOp, Opcode, u32, Build); 10] = [
        (SendOp::Nop, Opcode::Nop, 0, &|_| {}),
        (SendOp::Write(sge, remote), Opcode::RdmaWrite, 0, &|w| (raddr(w), data(w, sge)).1),
        (SendOp::WriteImm(sge, remote, 7), Opcode::RdmaWriteImm, 7, &|w| {
            (raddr(w), data(w, sge)).1
        }),
        (SendOp::Read(sge, remote), Opcode::RdmaRead, 0, &|w| (raddr(w), data(w, sge)).1),
        (SendOp::WriteInline(inline, 28, remote), Opcode::RdmaWrite, 0, &|w| {
            raddr(w);
            w.inline(&inline).unwrap();
        }),
        (SendOp::WriteInline(inline, 5, remote), Opcode::RdmaWrite, 0, &|w| {
            raddr(w);
            w.inline(&inline[..5]).unwrap();
        }),
        (SendOp::FetchAdd(9, remote, eight), Opcode::AtomicFa, 0, &|w| {
            raddr(w);
            w.atomic(&Atomic { swap_add: 9.into(), compare: 0.into() }).unwrap();
            data(w, eight);
        }),
        (SendOp::CompareSwap(3, 4, remote, eight), Opcode::AtomicCs, 0, &|w| {
            raddr(w);
            w.atomic(&Atomic { swap_add: 4.into(), compare: 3.into() }).unwrap();
            data(w, eight);
        }),
        (SendOp::Send(sge), Opcode::Send, 0, &|w| data(w, sge)),
        (SendOp::SendImm(sge, 5), Opcode::SendImm, 5, &|w| data(w, sge)),
    ];
    for (i, (op, opcode, imm, build)) in cases.into_iter().enumerate() {
        let (signaled, fence) = (i % 2 == 0, i % 3 == 0);
        let mut flags = CtrlFlags::NONE;
        if signaled {
            flags = flags.with(CtrlFlags::CQ_UPDATE);
        }
        if fence {
            flags = flags.with(CtrlFlags::FENCE);
        }
        let index = 0xffff_fffe + i as u64;
        let qp = rig.poster.queue_pair().clone();
        let mut wqe = WqeBuf::new(opcode, index, qp.qpn, flags, imm).unwrap();
        build(&mut wqe);
        assert_eq!(rig.poster.post(&[SendWr { wr_id: 0, op, signaled, fence }]), Ok(1));
        let mut seen = [0u8; 64];
        qp.areas.sq.read((index as usize & 15) * 64, &mut seen).unwrap();
        let (due, rest) = seen.split_at(wqe.bytes().len());
        assert_eq!(due, wqe.bytes(), "{op:?}");
        assert!(rest.iter().all(|byte| *byte == 0), "{op:?}");
        let record = qp.areas.record.half(4).load(Relaxed);
        assert_eq!(u32::from_be(record), (index + 1) as u32 & 0xffff);
    }
}

#[test]
fn a_chain_longer_than_the_room_is_taken_in_parts_and_each_part_once() {
    for start in [0, (1 << 16) - 5, (1 << 32) - 5] {
        let mut rig = rig(3, start);
        let chain: Vec<SendWr> = (0..1000).map(|id| rig.add(id)).collect();
        let (mut next, mut completed) = (0, Vec::new());
        while next < chain.len() {
            let room = rig.poster.room();
            let taken = rig.poster.post(&chain[next..]).unwrap();
            assert_eq!(taken, room.min(chain.len() - next), "start {start}");
            // Full: nothing more is taken before completions are.
            assert_eq!(rig.poster.post(&chain[next + taken..]), Ok(0));
            next += taken;
            completed.extend(rig.run());
        }
        let ids: Vec<u64> = completed.iter().map(|c| c.wr_id).collect();
        assert_eq!(ids, (0..1000).collect::<Vec<_>>(), "start {start}");
        assert!(completed.iter().all(|c| c.ended == Ended::Done));
        assert_eq!(rig.remote.memory.word(0).load(Relaxed), 1000);
    }
}

#[test]
fn unsignalled_requests_make_room_with_the_next_signalled_one() {
    let mut rig = rig(3, 0);
    for round in 0..50 {
        let mut chain = [rig.add(round); 8];
        chain[..7].iter_mut().for_each(|wr| wr.signaled = false);
        assert_eq!(rig.poster.post(&chain), Ok(8));
        assert_eq!(rig.poster.room(), 0);
        assert_eq!(rig.run().len(), 1);
        assert_eq!(rig.poster.room(), 8);
    }
    assert_eq!(rig.remote.memory.word(0).load(Relaxed), 400);
}

#[test]
fn a_bad_request_is_named_and_those_before_it_are_posted() {
    let mut rig = rig(4, 0);
    let good = rig.add(1);
    let wr = |op| SendWr { wr_id: 77, op, signaled: true, fence: false };
    let (remote, odd) = (rig.remote(0), rig.remote(4));
    let cases = [
        (SendOp::Write(rig.sge(0, 0), remote), BadWr::Length { bytes: 0, max: 1 << 30 }),
        (
            SendOp::Read(rig.sge(0, (1 << 30) + 1), remote),
            BadWr::Length { bytes: (1 << 30) + 1, max: 1 << 30 },
        ),
        (SendOp::WriteInline([0; 28], 0, remote), BadWr::Length { bytes: 0, max: 28 }),
        (SendOp::WriteInline([0; 28], 29, remote), BadWr::Length { bytes: 29, max: 28 }),
        (SendOp::FetchAdd(1, odd, rig.sge(0, 8)), BadWr::UnalignedAtomic { address: odd.address }),
        (SendOp::CompareSwap(1, 2, remote, rig.sge(0, 4)), BadWr::AtomicResult { bytes: 4 }),
    ];
    for (i, (op, why)) in cases.into_iter().enumerate() {
        let error = rig.poster.post(&[good, good, wr(op), good]).unwrap_err();
        assert_eq!((error.index, error.wr_id, error.why), (2, 77, why));
        assert_eq!(rig.run().len(), 2);
        assert_eq!(rig.remote.memory.word(0).load(Relaxed), 2 * (i as u64 + 1));
    }
}

#[test]
fn an_error_names_its_request_and_the_rest_is_flushed() {
    let mut rig = rig(4, 0);
    let (good, mut bad) = (rig.add(1), rig.add(2));
    bad.op = SendOp::Write(rig.sge(0, 8), RemoteAddr { rkey: 1, ..rig.remote(0) });
    assert_eq!(rig.poster.post(&[good, bad, good]), Ok(3));
    let seen = rig.run();
    assert_eq!(seen.iter().map(|c| c.index).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(seen[0].ended, Ended::Done);
    let Ended::Failed { syndrome, .. } = seen[1].ended else { panic!("{seen:?}") };
    assert_eq!((seen[1].wr_id, syndrome), (2, Syndrome::RemoteAccess as u8));
    assert!(seen[2].ended.is_flushed() && !seen[1].ended.is_flushed());
}

#[test]
fn each_immediate_takes_a_receive_and_comes_in_order() {
    let mut rig = rig(4, 0);
    let mut receiver = ReceivePoster::new(rig.peer.clone()).unwrap();
    receiver.refill();
    for imm in 0..100 {
        let op = SendOp::WriteImm(rig.sge(0, 24), rig.remote(8), imm);
        let wr = SendWr { wr_id: 0, op, signaled: true, fence: false };
        assert_eq!(rig.poster.post(&[wr]), Ok(1));
        assert_eq!(rig.run().len(), 1);
        let message = receiver.poll().unwrap();
        assert_eq!((message.imm, message.bytes, message.ended), (Some(imm), 24, Ended::Done));
        assert_eq!(receiver.poll(), None);
        receiver.refill();
    }
}

#[test]
fn a_queue_pair_that_a_poster_can_not_serve_is_refused() {
    let fabric = Fabric::open(&FabricAttr::default()).unwrap();
    let qp = fabric.nic(0).create_queue_pair(&QueuePairAttr::default()).unwrap();
    let qp = Arc::new(qp);
    let error = SendPoster::new(qp.clone()).err().unwrap().to_string();
    assert!(error.contains("a ring CQ"), "{error}");
    let error = ReceivePoster::new(qp).err().unwrap().to_string();
    assert!(error.contains("a receive queue"), "{error}");
}

#[test]
fn a_region_is_reached_until_its_last_clone_is_dropped() {
    let mut rig = rig(3, 0);
    let (add, memory) = (rig.add(7), rig.remote.memory.clone());
    let clone = rig.remote.clone();
    rig.remote = Region::borrowed(memory.clone(), 0, 0, 0);
    assert_eq!(rig.poster.post(&[add]), Ok(1));
    assert_eq!(rig.run()[0].ended, Ended::Done);
    drop(clone);
    assert_eq!(rig.poster.post(&[add]), Ok(1));
    assert_ne!(rig.run()[0].ended, Ended::Done);
    assert_eq!(memory.word(0).load(Relaxed), 1);
}
