//! Posting from the CPU: chains of work requests into a queue pair's send queue, one doorbell a chain.
//!
//! The orderings are those of the device code's `gic/order.hpp`, under the same names: *wqe before record* and
//! *record before doorbell* are release stores, *completion before use* is an acquire load.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use wire::cqe::Syndrome;
use wire::doorbell::{Doorbell, RECORD_CQ_CONSUMER, RECORD_SEND, UAR_SEND, record};
use wire::wqe::{Atomic, Ctrl, CtrlFlags, Data, Opcode, Raddr, WQEBB, inline_header};
use zerocopy::IntoBytes;

use crate::{CqKind, Error, QueuePair, Transport};

/// Local bytes of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sge {
    /// Address in the region.
    pub address: u64,
    /// Bytes, 1 to 2^30.
    pub bytes: u32,
    /// The region's local key.
    pub lkey: u32,
}

/// Remote memory of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteAddr {
    /// Address in the peer's region.
    pub address: u64,
    /// The region's remote key.
    pub rkey: u32,
}

/// The most bytes that an inline write carries: what fits into one basic block.
pub const INLINE_MAX: usize = 28;
/// The most bytes of one message.
pub const MESSAGE_MAX: u32 = 1 << 30;

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// Completes when all before it has.
    Nop,
    /// RDMA write.
    Write(Sge, RemoteAddr),
    /// RDMA write that consumes a receive, which gets the immediate.
    WriteImm(Sge, RemoteAddr, u32),
    /// RDMA write of the first so many of these bytes, which travel in the WQE.
    WriteInline([u8; INLINE_MAX], u8, RemoteAddr),
    /// RDMA read.
    Read(Sge, RemoteAddr),
    /// 8-byte fetch-and-add; the value before is left at the local bytes.
    FetchAdd(u64, RemoteAddr, Sge),
    /// 8-byte compare-and-swap (compare, swap); the value before is left at the local bytes.
    CompareSwap(u64, u64, RemoteAddr, Sge),
    /// Send to a posted receive.
    Send(Sge),
    /// The same with an immediate.
    SendImm(Sge, u32),
}

/// A work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendWr {
    /// Comes back in its completion.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// A completion is wanted also if it succeeds.
    pub signaled: bool,
    /// Waits at the NIC for earlier reads and atomics.
    pub fence: bool,
}

/// A request that can't be posted. Those before it in the chain were.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("work request {index} of the chain (wr_id {wr_id:#x}): {why}")]
pub struct PostError {
    /// Its place in the chain, which is how many were posted.
    pub index: usize,
    /// Its id.
    pub wr_id: u64,
    /// What is wrong with it.
    pub why: BadWr,
}

/// What is wrong with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadWr {
    /// A length that one WQE can't carry.
    #[error("{bytes} bytes can't be carried by one WQE: 1 to {max} can")]
    Length {
        /// Bytes asked for.
        bytes: u32,
        /// The most.
        max: u32,
    },
    /// An atomic at an address that isn't a multiple of 8.
    #[error("an atomic's remote address must be a multiple of 8, and {address:#x} isn't")]
    UnalignedAtomic {
        /// The address.
        address: u64,
    },
    /// A driver that doesn't take it.
    #[error("the NIC's driver refuses it: {}", std::io::Error::from_raw_os_error(*errno))]
    Refused {
        /// The driver's errno.
        errno: i32,
    },
    /// An atomic's result that isn't 8 bytes.
    #[error("an atomic leaves 8 bytes, and was given room for {bytes}")]
    AtomicResult {
        /// Bytes given.
        bytes: u32,
    },
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Well: and so did all before it on its queue.
    Done,
    /// In error. [`Syndrome::Flushed`] is a consequence: look for the queue's first other error.
    Failed {
        /// Syndrome byte.
        syndrome: u8,
        /// Vendor syndrome.
        vendor: u8,
    },
    /// The CQE is of no known kind.
    Unknown {
        /// Its `op_own`.
        op_own: u8,
    },
}

impl Ended {
    /// Whether it is only the consequence of an earlier error.
    #[must_use]
    pub fn is_flushed(&self) -> bool {
        matches!(self, Self::Failed { syndrome, .. } if *syndrome == Syndrome::Flushed as u8)
    }
}

/// A completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The request's id.
    pub wr_id: u64,
    /// The queue pair.
    pub qpn: u32,
    /// 16-bit index of its WQE.
    pub index: u16,
    /// How it ended.
    pub ended: Ended,
}

impl Completion {
    /// Of no request: to be overwritten.
    pub const NONE: Self = Self { wr_id: 0, qpn: 0, index: 0, ended: Ended::Done };
}

/// A send queue that takes chains: what a proxy's worker needs of a NIC.
pub trait SendQueue: Send {
    /// Queue pair number.
    fn qpn(&self) -> u32;

    /// Requests that it holds at most.
    fn depth(&self) -> usize;

    /// Requests that it can take now. Only [`poll`](Self::poll) makes it grow.
    fn room(&self) -> usize;

    /// Posts requests in order, as many as there is room for, and rings once if there were any.
    ///
    /// Returns how many were taken. A full queue is a normal state: poll, and resume at the first that was not.
    ///
    /// # Errors
    /// A request that can't be posted at all; those before it were posted and rung for.
    fn post(&mut self, chain: &[SendWr]) -> Result<usize, PostError>;

    /// Takes completions; returns how many.
    fn poll(&mut self, out: &mut [Completion]) -> usize;
}

/// A request's WQE as it stands in memory: one basic block, zeros behind its segments.
fn encode(wr: &SendWr, block: u64, qpn: u32) -> Result<[u64; WQEBB / 8], BadWr> {
    let mut flags = CtrlFlags::NONE;
    if wr.signaled {
        flags = flags.with(CtrlFlags::CQ_UPDATE);
    }
    if wr.fence {
        flags = flags.with(CtrlFlags::FENCE);
    }
    let control =
        |op, ds, imm| -> Words { zerocopy::transmute!(Ctrl::new(op, block, qpn, ds, flags, imm)) };
    const NONE: Words = [0; 2];
    let segments = match wr.op {
        SendOp::Nop => [control(Opcode::Nop, 1, 0), NONE, NONE, NONE],
        SendOp::Write(sge, remote) => {
            [control(Opcode::RdmaWrite, 3, 0), raddr(remote), data(sge)?, NONE]
        }
        SendOp::WriteImm(sge, remote, imm) => {
            [control(Opcode::RdmaWriteImm, 3, imm), raddr(remote), data(sge)?, NONE]
        }
        SendOp::Read(sge, remote) => {
            [control(Opcode::RdmaRead, 3, 0), raddr(remote), data(sge)?, NONE]
        }
        SendOp::WriteInline(bytes, length, remote) => {
            let length = inline_length(length)?;
            let mut room = [0u8; 32];
            let (header, body) = room.split_at_mut(4);
            header.copy_from_slice(inline_header(length).as_bytes());
            body[..length as usize].copy_from_slice(&bytes[..length as usize]);
            let [first, second]: [Words; 2] = zerocopy::transmute!(room);
            let ds = 2 + wire::wqe::inline_segments(length) as u8;
            [control(Opcode::RdmaWrite, ds, 0), raddr(remote), first, second]
        }
        SendOp::FetchAdd(add, remote, sge) => {
            atomic_result(remote, sge)?;
            let operands = Atomic { swap_add: add.into(), compare: 0.into() };
            let operands = zerocopy::transmute!(operands);
            [control(Opcode::AtomicFa, 4, 0), raddr(remote), operands, data(sge)?]
        }
        SendOp::CompareSwap(compare, swap, remote, sge) => {
            atomic_result(remote, sge)?;
            let operands = Atomic { swap_add: swap.into(), compare: compare.into() };
            let operands = zerocopy::transmute!(operands);
            [control(Opcode::AtomicCs, 4, 0), raddr(remote), operands, data(sge)?]
        }
        SendOp::Send(sge) => [control(Opcode::Send, 2, 0), data(sge)?, NONE, NONE],
        SendOp::SendImm(sge, imm) => [control(Opcode::SendImm, 2, imm), data(sge)?, NONE, NONE],
    };
    Ok(zerocopy::transmute!(segments))
}

/// Whether one request can carry this, for NICs whose driver builds the WQE.
pub(crate) fn check(op: &SendOp) -> Result<(), BadWr> {
    match op {
        SendOp::Nop => Ok(()),
        SendOp::Write(sge, _)
        | SendOp::WriteImm(sge, ..)
        | SendOp::Read(sge, _)
        | SendOp::Send(sge)
        | SendOp::SendImm(sge, _) => data(*sge).map(drop),
        SendOp::WriteInline(_, length, _) => inline_length(*length).map(drop),
        SendOp::FetchAdd(_, remote, sge) | SendOp::CompareSwap(_, _, remote, sge) => {
            atomic_result(*remote, *sge)
        }
    }
}

fn inline_length(length: u8) -> Result<u32, BadWr> {
    let (bytes, max) = (u32::from(length), INLINE_MAX as u32);
    if bytes == 0 || bytes > max { Err(BadWr::Length { bytes, max }) } else { Ok(bytes) }
}

/// A segment in memory order.
type Words = [u64; 2];

fn raddr(remote: RemoteAddr) -> Words {
    zerocopy::transmute!(Raddr::new(remote.address, remote.rkey))
}

fn data(sge: Sge) -> Result<Words, BadWr> {
    // A byte count of 0 would be read as 2^31.
    if sge.bytes == 0 || sge.bytes > MESSAGE_MAX {
        return Err(BadWr::Length { bytes: sge.bytes, max: MESSAGE_MAX });
    }
    Ok(zerocopy::transmute!(Data::new(sge.address, sge.bytes, sge.lkey)))
}

fn atomic_result(remote: RemoteAddr, result: Sge) -> Result<(), BadWr> {
    if !remote.address.is_multiple_of(8) {
        return Err(BadWr::UnalignedAtomic { address: remote.address });
    }
    if result.bytes != 8 {
        return Err(BadWr::AtomicResult { bytes: result.bytes });
    }
    Ok(())
}

/// The send side of a [`QueuePair`] with a ring CQ.
pub struct SendPoster {
    qp: Arc<QueuePair>,
    /// Next WQE to write, first not known to be completed, next CQE: wide.
    head: u64,
    completed: u64,
    consumer: u64,
    mask: u64,
    wr_ids: Box<[u64]>,
}

impl SendPoster {
    /// A poster on a connected RC queue pair that nobody else posts to.
    ///
    /// # Errors
    /// [`Error::PosterNeeds`]: not RC, a collapsed CQ, or queues in memory that isn't mapped.
    pub fn new(qp: Arc<QueuePair>) -> Result<Self, Error> {
        if qp.attr.transport != Transport::Rc {
            return Err(Error::PosterNeeds { qpn: qp.qpn, what: "an RC queue pair" });
        }
        if qp.attr.cq_kind != CqKind::Ring {
            return Err(Error::PosterNeeds { qpn: qp.qpn, what: "a ring CQ" });
        }
        if !qp.areas.are_mapped() || !qp.doorbell_page.is_mapped() {
            return Err(Error::PosterNeeds { qpn: qp.qpn, what: "queues that the CPU can follow" });
        }
        let blocks = 1usize << qp.attr.log_blocks;
        let start = qp.attr.start;
        Ok(Self {
            head: start,
            completed: start,
            consumer: 0,
            mask: blocks as u64 - 1,
            wr_ids: vec![0; blocks].into(),
            qp,
        })
    }

    /// The queue pair.
    #[must_use]
    pub fn queue_pair(&self) -> &Arc<QueuePair> {
        &self.qp
    }

    /// The words of a WQE's one block.
    fn slot(&self, block: u64) -> &[AtomicU64; WQEBB / 8] {
        let at = (block & self.mask) as usize * WQEBB;
        let sq = &self.qp.areas.sq;
        assert!(at + WQEBB <= sq.len() && sq.is_mapped() && sq.ptr().cast::<u64>().is_aligned());
        // SAFETY: mapped, in bounds and aligned, it lives as long as `self`, and all access to it is atomic.
        unsafe { &*sq.ptr().add(at).cast() }
    }

    fn ring(&self) {
        ring(&self.qp, self.head);
    }
}

/// Hands everything before `producer` to the NIC: doorbell record, then doorbell.
///
/// For a thread that rings for WQEs that another wrote, once it has seen them by an acquire load.
pub fn ring(qp: &QueuePair, producer: u64) {
    // wqe before record
    let word = u32::from_ne_bytes(record(producer).to_bytes());
    qp.areas.record.half(4 * RECORD_SEND).store(word, Release);
    // record before doorbell
    let value: [u8; 8] = zerocopy::transmute!(Doorbell::next_free(qp.qpn, producer));
    qp.doorbell_page.word(UAR_SEND).store(u64::from_ne_bytes(value), Release);
}

/// The entry of a send ring CQ at consumer index `next`, if it is written: how the WQE that it names ended.
#[must_use]
pub fn look(qp: &QueuePair, next: u64) -> Option<Completion> {
    let log = qp.attr.log_cq;
    let entry = (next as usize & ((1 << log) - 1)) * 64;
    // completion before use
    let tail = u64::from_be(qp.areas.cq.word(entry + 56).load(Acquire));
    let op_own = tail as u8;
    if op_own >> 4 == 15 || u64::from(op_own & 1) != next >> log & 1 {
        return None;
    }
    let ended = match op_own >> 4 {
        0 => Ended::Done,
        13 | 14 => {
            let syndromes = u64::from_be(qp.areas.cq.word(entry + 48).load(Relaxed));
            Ended::Failed { syndrome: syndromes as u8, vendor: (syndromes >> 8) as u8 }
        }
        _ => Ended::Unknown { op_own },
    };
    let qpn = (tail >> 32) as u32 & wire::NUMBER_MASK;
    Some(Completion { wr_id: 0, qpn, index: (tail >> 16) as u16, ended })
}

/// Tells the NIC that the entries of a send ring CQ before `next` have been read.
pub fn consumed(qp: &QueuePair, next: u64) {
    let value = (next as u32 & wire::NUMBER_MASK).to_be();
    qp.areas.cq_record.half(4 * RECORD_CQ_CONSUMER).store(value, Release);
}

impl SendQueue for SendPoster {
    fn qpn(&self) -> u32 {
        self.qp.qpn
    }

    fn depth(&self) -> usize {
        self.wr_ids.len()
    }

    fn room(&self) -> usize {
        self.wr_ids.len() - (self.head - self.completed) as usize
    }

    fn post(&mut self, chain: &[SendWr]) -> Result<usize, PostError> {
        let room = self.room().min(chain.len());
        for (index, wr) in chain[..room].iter().enumerate() {
            let block = self.head;
            let wqe = match encode(wr, block, self.qp.qpn) {
                Ok(wqe) => wqe,
                Err(why) => {
                    if index > 0 {
                        self.ring();
                    }
                    return Err(PostError { index, wr_id: wr.wr_id, why });
                }
            };
            // Nothing of it is the NIC's before the record says so.
            for (word, value) in self.slot(block).iter().zip(wqe) {
                word.store(value, Relaxed);
            }
            self.wr_ids[(block & self.mask) as usize] = wr.wr_id;
            self.head = block + 1;
        }
        if room > 0 {
            self.ring();
        }
        Ok(room)
    }

    fn poll(&mut self, out: &mut [Completion]) -> usize {
        let mut taken = 0;
        while taken < out.len()
            && let Some(found) = look(&self.qp, self.consumer)
        {
            self.consumer += 1;
            // One block a WQE: exact.
            self.completed = wire::index::rebuild(self.completed, self.head, found.index);
            let wr_id = self.wr_ids[found.index as usize & self.mask as usize];
            out[taken] = Completion { wr_id, ..found };
            taken += 1;
        }
        if taken > 0 {
            consumed(&self.qp, self.consumer);
        }
        taken
    }
}

/// A message that a receive was consumed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Its immediate, if it has one.
    pub imm: Option<u32>,
    /// Its bytes; for a write with immediate, those written.
    pub bytes: u32,
    /// How the receive ended.
    pub ended: Ended,
}

/// A receive queue for messages whose payload needs no buffer: immediates.
pub trait ReceiveQueue: Send {
    /// Keeps the queue full of receives without a buffer.
    fn refill(&mut self);

    /// The next message, if one has come.
    fn poll(&mut self) -> Option<Received>;
}

/// The receive side of a [`QueuePair`] whose queues lie open.
pub struct ReceivePoster {
    qp: Arc<QueuePair>,
    log: u32,
    head: u64,
    consumer: u64,
}

impl ReceivePoster {
    /// A poster on a queue pair that has a receive queue.
    ///
    /// # Errors
    /// [`Error::PosterNeeds`].
    pub fn new(qp: Arc<QueuePair>) -> Result<Self, Error> {
        let log = qp
            .attr
            .log_receives
            .ok_or(Error::PosterNeeds { qpn: qp.qpn, what: "a receive queue" })?;
        if !qp.areas.are_mapped() {
            return Err(Error::PosterNeeds { qpn: qp.qpn, what: "queues that the CPU can follow" });
        }
        Ok(Self { qp, log, head: 0, consumer: 0 })
    }
}

impl ReceiveQueue for ReceivePoster {
    fn refill(&mut self) {
        let depth = 1u64 << self.log;
        if self.head - self.consumer == depth {
            return;
        }
        while self.head - self.consumer < depth {
            let at = (self.head & (depth - 1)) as usize * 16;
            let (words, _) = Data::TERMINATOR.as_bytes().as_chunks::<8>();
            for (i, word) in words.iter().enumerate() {
                self.qp.areas.rq.word(at + 8 * i).store(u64::from_ne_bytes(*word), Relaxed);
            }
            self.head += 1;
        }
        let producer = u32::from_ne_bytes(record(self.head).to_bytes());
        let word = 4 * wire::doorbell::RECORD_RECEIVE;
        self.qp.areas.record.half(word).store(producer, Release);
    }

    fn poll(&mut self) -> Option<Received> {
        let (qp, next) = (&self.qp, self.consumer);
        let entry = (next as usize & ((1 << self.log) - 1)) * 64;
        let tail = u64::from_be(qp.areas.recv_cq.word(entry + 56).load(Acquire));
        let op_own = tail as u8;
        if op_own >> 4 == 15 || u64::from(op_own & 1) != next >> self.log & 1 {
            return None;
        }
        let word = |at: usize| u64::from_be(qp.areas.recv_cq.word(entry + at).load(Relaxed));
        let (imm, ended) = match op_own >> 4 {
            1 | 3 => (Some(word(32) as u32), Ended::Done),
            2 => (None, Ended::Done),
            13 | 14 => {
                let s = word(48);
                (None, Ended::Failed { syndrome: s as u8, vendor: (s >> 8) as u8 })
            }
            _ => (None, Ended::Unknown { op_own }),
        };
        let bytes = word(40) as u32;
        self.consumer += 1;
        let value = (self.consumer as u32 & wire::NUMBER_MASK).to_be();
        qp.areas.recv_cq_record.half(4 * RECORD_CQ_CONSUMER).store(value, Release);
        Some(Received { imm, bytes, ended })
    }
}
