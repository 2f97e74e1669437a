//! A connected pair with memory at both ends, what is posted to it, and what is expected of it.

use rdma::{Access, ConnectAttr, CqKind, QueuePairAttr, Region};
use softnic::Check;
use wire::cqe::{Cqe, CqeOpcode};
use wire::wqe::{Ctrl, CtrlFlags, Data, Opcode, Raddr, inline_header};
use zerocopy::IntoBytes;

use crate::rig::{Kind, Queue, World, bytes, words};

pub const LOG: u32 = 4;
pub const LENGTH: usize = 16384;

pub fn ring_attr() -> QueuePairAttr {
    QueuePairAttr {
        log_blocks: LOG,
        cq_kind: CqKind::Ring,
        log_cq: LOG,
        log_receives: Some(2),
        ..QueuePairAttr::default()
    }
}

/// Gives up soon.
pub fn hasty() -> ConnectAttr {
    ConnectAttr { timeout: 1, retry_cnt: 1, rnr_retry: 1, ..ConnectAttr::default() }
}

pub struct Rig {
    pub world: World,
    pub near: Queue,
    pub far: Queue,
    pub local: Region,
    pub remote: Region,
}

impl Rig {
    pub fn new(kind: &Kind) -> Self {
        Self::with(kind, &ring_attr(), &hasty())
    }
    pub fn with(kind: &Kind, attr: &QueuePairAttr, connect: &ConnectAttr) -> Self {
        let world = World::new(kind);
        let [near, far] = world.pair(attr, connect);
        let local = world.region(0, LENGTH, Access::empty());
        let remote = world.region(1, LENGTH, Access::all());
        let fill: Vec<u8> = (0..LENGTH).map(|i| (i * 7 + i / 256) as u8).collect();
        local.memory.write(0, &fill).unwrap();
        Self { world, near, far, local, remote }
    }
    pub fn run(&self) {
        self.world.run(&[&self.near, &self.far]);
    }
    pub fn data(&self, at: u64, len: u32) -> Vec<u8> {
        Data::new(self.local.address + at, len, self.local.lkey).as_bytes().to_vec()
    }
    pub fn raddr(&self, at: u64) -> Vec<u8> {
        Raddr::new(self.remote.address + at, self.remote.rkey).as_bytes().to_vec()
    }
    pub fn ctrl(&self, op: u8, opmod: u8, ds: usize, flags: CtrlFlags) -> Ctrl {
        let mut ctrl =
            Ctrl::new(Opcode::Nop, self.near.producer, self.near.qp.qpn, ds as u8, flags, 0);
        let index = self.near.producer as u32 & 0xffff;
        ctrl.opmod_index_opcode = (u32::from(opmod) << 24 | index << 8 | u32::from(op)).into();
        ctrl
    }
    /// Posts an operation that takes its natural number of segments.
    pub fn post(&mut self, op: Opcode, flags: CtrlFlags, body: &[Vec<u8>]) -> u64 {
        let body = body.concat();
        let ctrl = self.ctrl(op as u8, 0, 1 + body.len().div_ceil(16), flags);
        self.near.write(&[ctrl.as_bytes(), &body].concat())
    }
    /// A signalled 8-byte write of local bytes `at` to the same place.
    pub fn put(&mut self, at: u64) -> u64 {
        let body = [self.raddr(at), self.data(at, 8)];
        self.post(Opcode::RdmaWrite, CtrlFlags::CQ_UPDATE, &body)
    }
    pub fn has(&self, at: usize, len: usize) -> bool {
        bytes(&self.remote)[at..at + len] == bytes(&self.local)[at..at + len]
    }
}

pub fn inline(bytes: &[u8]) -> Vec<u8> {
    let mut all = inline_header(bytes.len() as u32).to_bytes().to_vec();
    all.extend(bytes);
    all.resize(all.len().next_multiple_of(16), 0);
    all
}

pub fn done(op: Opcode, qpn: u32, index: u64, len: u32) -> Cqe {
    Cqe::requester(op as u8, qpn, index as u16, len)
}

pub fn failed(check: Check, op: u8, qpn: u32, index: u64) -> Cqe {
    let kind = CqeOpcode::RequesterError;
    Cqe::error(kind, check.syndrome(), check as u8, op, qpn, index as u16)
}

/// The next entries of the send CQ are these, to the byte.
#[track_caller]
pub fn expect(name: &str, kind: &Kind, first: u64, seen: &[[u8; 64]], due: &[Cqe]) {
    let seen_words: Vec<_> = seen.iter().map(words).collect();
    assert_eq!(seen.len(), due.len(), "{name} on {kind:?}: {seen_words:#?}");
    for (nth, (seen, due)) in seen.iter().zip(due).enumerate() {
        let due = due.with_owner(first + nth as u64, LOG);
        if let Kind::Mlx5 = kind {
            // Hardware has more to say than the software NICs, and its own vendor bytes.
            let said = |cqe: Cqe| {
                let syndrome = cqe.opcode().filter(|op| op.is_error()).map(|_| cqe.syndrome());
                (cqe.opcode(), cqe.qpn(), cqe.wqe_counter.get(), syndrome)
            };
            let seen = said(Cqe::from_bytes(*seen));
            assert_eq!(seen, said(due), "{name} on {kind:?}, entry {nth}");
            continue;
        }
        let due: [u8; 64] = due.as_bytes().try_into().unwrap();
        assert_eq!(
            seen,
            &due,
            "{name} on {kind:?}, entry {nth}: {} instead of {}",
            words(seen),
            words(&due)
        );
    }
}
