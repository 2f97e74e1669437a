//! The responder: checks and executes requests, and owes acknowledgements and responses.

use wire::cqe::{Cqe, CqeOpcode};

use crate::atomic::Operation;
use crate::check::{Cause, Check};
use crate::config::Nanos;
use crate::cq::Cqs;
use crate::dma::DmaBuf;
use crate::link::LinkEnd;
use crate::mr::{Access, Regions};
use crate::packet::{Header, extend, flag, low, op};
use crate::placement::Pendings;
use crate::profile::Profile;
use crate::qp::{Nak, Owed, ReceiveQueue, Receiving, Replay, Responder};
use crate::receive::{fail_receive, scatter, take};
use crate::requester::WIRE_HEADER;

/// What a request is executed for: an RC QP or a DC target.
pub(crate) struct Target<'a> {
    pub number: u32,
    pub pd: u32,
    pub access: Access,
    pub rq: Option<&'a mut ReceiveQueue>,
    /// Protection domain of the receives' buffers.
    pub rq_pd: u32,
    pub cq: u32,
    pub user_index: u32,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Executed, or seen before; something is owed.
    Done,
    /// Out of sequence, or not wanted now; a NAK may be owed.
    Refused,
    /// The connection is broken: the local cause.
    Broken(Cause),
}

/// Where a write's bytes go.
pub(crate) trait Placement {
    /// Places, or keeps to place later, `bytes`.
    fn place(&mut self, memory: &DmaBuf, offset: usize, bytes: &[u8], fenced: bool);
    /// Everything kept of this connection is placed now.
    fn settle(&mut self);
}

/// Places at once.
pub(crate) struct Direct;

impl Placement for Direct {
    #[inline]
    fn place(&mut self, memory: &DmaBuf, offset: usize, bytes: &[u8], _: bool) {
        // Bounds were checked against the region, which is no longer than its memory.
        let _ = memory.write(offset, bytes);
    }
    #[inline]
    fn settle(&mut self) {}
}

/// Places later.
pub(crate) struct Deferred<'a> {
    pub pendings: &'a mut Pendings,
    pub connection: u32,
    pub now: Nanos,
}

impl Placement for Deferred<'_> {
    fn place(&mut self, memory: &DmaBuf, offset: usize, bytes: &[u8], fenced: bool) {
        self.pendings.add(self.now, self.connection, memory, offset, bytes, fenced);
    }
    fn settle(&mut self) {
        self.pendings.settle(self.connection);
    }
}

/// Executes one request packet.
#[inline]
pub(crate) fn execute(
    r: &mut Responder,
    target: Target<'_>,
    (header, payload): (&Header, &[u8]),
    mrs: &Regions,
    cqs: &mut Cqs,
    placement: &mut impl Placement,
    now: Nanos,
) -> Outcome {
    let psn = extend(r.expected, header.psn);
    if psn != r.expected {
        if psn > r.expected {
            if !r.gap_told && r.nak.is_none() {
                r.gap_told = true;
                r.nak = Some(Nak::Sequence);
            }
            return Outcome::Refused;
        }
        return repeat(r, target.pd, psn, header);
    }
    let result = match header.op {
        op::WRITE => write(r, target, header, payload, mrs, cqs, placement),
        op::SEND => {
            placement.settle();
            send(r, target, header, payload, mrs, cqs)
        }
        op::READ => {
            placement.settle();
            read(r, &target, header, mrs, psn)
        }
        op::ATOMIC => {
            placement.settle();
            atomic(r, &target, header, payload, mrs, psn)
        }
        _ => Err(Refusal::Fatal(Check::BadRequest.into(), Check::BadRequest.into())),
    };
    match result {
        Ok(packets) => {
            r.expected += u64::from(packets);
            r.gap_told = false;
            r.ack_due = true;
            r.executed_at = now;
            Outcome::Done
        }
        Err(Refusal::NotReady) => {
            r.gap_told = true;
            r.nak = Some(Nak::Rnr);
            Outcome::Refused
        }
        Err(Refusal::Fatal(remote, local)) => {
            r.nak = Some(Nak::Fatal(remote));
            Outcome::Broken(local)
        }
    }
}

pub(crate) enum Refusal {
    /// No receive is posted.
    NotReady,
    /// What the requester is told, and what the responder's side says.
    Fatal(Cause, Cause),
}

impl From<Check> for Refusal {
    fn from(check: Check) -> Self {
        Self::Fatal(check.into(), check.into())
    }
}

/// A request that was executed before: its acknowledgement or response was lost.
fn repeat(r: &mut Responder, pd: u32, psn: u64, header: &Header) -> Outcome {
    let room = r.owed_tail - r.owed_head < r.owed.len() as u64;
    match header.op {
        op::READ if room => push_owed(r, owed_read(pd, psn, header)),
        op::ATOMIC if room => {
            if let Some(replay) = r.replays.iter().find(|x| x.valid && x.psn == psn).copied() {
                push_owed(
                    r,
                    Owed {
                        psn,
                        len: replay.len,
                        value: replay.value,
                        is_atomic: true,
                        ..Owed::default()
                    },
                );
            }
        }
        op::READ | op::ATOMIC => {}
        _ => r.ack_due = true,
    }
    Outcome::Done
}

fn push_owed(r: &mut Responder, owed: Owed) {
    let mask = r.owed.len() - 1;
    r.owed[r.owed_tail as usize & mask] = owed;
    r.owed_tail += 1;
}

#[inline]
fn permit(target: &Target<'_>, access: Access) -> Result<(), Check> {
    if target.access.contains(access) { Ok(()) } else { Err(Check::QpPermission) }
}

#[inline]
fn write(
    r: &mut Responder,
    target: Target<'_>,
    header: &Header,
    payload: &[u8],
    mrs: &Regions,
    cqs: &mut Cqs,
    placement: &mut impl Placement,
) -> Result<u32, Refusal> {
    permit(&target, Access::REMOTE_WRITE)?;
    let imm = header.flags & (flag::IMM | flag::LAST) == flag::IMM | flag::LAST;
    let mut target = target;
    let mut receive = None;
    if imm {
        let rq = target.rq.as_deref_mut().ok_or(Refusal::NotReady)?;
        receive = Some(next_receive(r, rq)?.index);
    }
    if header.total > 0 {
        // The whole rest of the message is checked, so that nothing is placed of one that ends out of bounds.
        let (memory, offset) = mrs.remote(
            target.pd,
            header.rkey,
            header.va,
            u64::from(header.total),
            Access::REMOTE_WRITE,
        )?;
        placement.place(memory, offset, payload, header.flags & flag::FENCE != 0);
    }
    r.receiving = match (header.flags & flag::FIRST != 0, r.receiving) {
        (false, Some(now)) => Some(Receiving { bytes: now.bytes + header.len, ..now }),
        _ => Some(Receiving { index: 0, bytes: header.len, capacity: 0, is_posted: false }),
    };
    if let Some(index) = receive {
        placement.settle();
        let bytes = r.receiving.map_or(0, |now| now.bytes);
        let cqe = Cqe::responder(
            CqeOpcode::ResponderWriteImm,
            target.number,
            index as u16,
            bytes,
            u32::from_be_bytes(header.imm.to_ne_bytes()),
        );
        complete(cqs, target.cq, cqe.with_user_index(target.user_index), header)?;
    }
    if header.flags & flag::LAST != 0 {
        r.receiving = None;
    }
    Ok(1)
}

pub(crate) fn complete(cqs: &mut Cqs, cq: u32, cqe: Cqe, header: &Header) -> Result<(), Refusal> {
    cqs.push(cq, cqe)
        .map_err(|_| Refusal::Fatal(Check::RemoteReceive.into(), Check::CqOverrun.into()))?;
    if header.flags & flag::SOLICITED != 0 {
        cqs.solicit(cq);
    }
    Ok(())
}

/// The receive that a message before had no use for, or the next posted one.
fn next_receive(r: &mut Responder, rq: &mut ReceiveQueue) -> Result<Receiving, Refusal> {
    match r.spare.take() {
        Some(spare) => Ok(Receiving { bytes: 0, ..spare }),
        None => take(rq, &mut r.receive_wqe),
    }
}

fn send(
    r: &mut Responder,
    mut target: Target<'_>,
    header: &Header,
    payload: &[u8],
    mrs: &Regions,
    cqs: &mut Cqs,
) -> Result<u32, Refusal> {
    let rq = target.rq.as_deref_mut().ok_or(Refusal::NotReady)?;
    let mut receiving = match r.receiving {
        Some(now) if header.flags & flag::FIRST == 0 => now,
        _ => next_receive(r, rq)?,
    };
    let layout = rq.layout();
    let mut fail = |local: Check, remote: Check| {
        fail_receive(cqs, &target, receiving.index, local);
        Refusal::Fatal(remote.into(), local.into())
    };
    if u64::from(receiving.bytes) + u64::from(header.total) > receiving.capacity {
        return Err(fail(Check::ReceiveTooSmall, Check::RemoteTooSmall));
    }
    let skip = u64::from(receiving.bytes);
    if scatter(&r.receive_wqe, layout, target.rq_pd, mrs, skip, payload).is_none() {
        return Err(fail(Check::ReceiveAccess, Check::RemoteReceive));
    }
    receiving.bytes += header.len;
    r.receiving = Some(receiving);
    if header.flags & flag::LAST != 0 {
        r.receiving = None;
        let kind = if header.flags & flag::IMM != 0 {
            CqeOpcode::ResponderSendImm
        } else {
            CqeOpcode::ResponderSend
        };
        let imm = u32::from_be_bytes(header.imm.to_ne_bytes());
        let cqe = Cqe::responder(kind, target.number, receiving.index as u16, receiving.bytes, imm);
        complete(cqs, target.cq, cqe.with_user_index(target.user_index), header)?;
    }
    Ok(1)
}

fn owe(r: &mut Responder, owed: Owed) -> Result<(), Refusal> {
    let in_flight = r.owed_tail - r.owed_head;
    if in_flight >= u64::from(r.max_rd_atomic) {
        return Err(Check::TooManyReads.into());
    }
    push_owed(r, owed);
    Ok(())
}

fn owed_read(pd: u32, psn: u64, header: &Header) -> Owed {
    let (va, rkey, len) = (header.va, header.rkey, header.total);
    Owed { psn, va, rkey, len, pd, ..Owed::default() }
}

fn read(
    r: &mut Responder,
    target: &Target<'_>,
    header: &Header,
    mrs: &Regions,
    psn: u64,
) -> Result<u32, Refusal> {
    permit(target, Access::REMOTE_READ)?;
    if header.total > 0 {
        let len = u64::from(header.total);
        mrs.remote(target.pd, header.rkey, header.va, len, Access::REMOTE_READ)?;
    }
    owe(r, owed_read(target.pd, psn, header))?;
    // Each response packet takes a sequence number.
    Ok(header.imm.max(1))
}

fn atomic(
    r: &mut Responder,
    target: &Target<'_>,
    header: &Header,
    payload: &[u8],
    mrs: &Regions,
    psn: u64,
) -> Result<u32, Refusal> {
    permit(target, Access::REMOTE_ATOMIC)?;
    let operation = Operation::decode(header.imm, payload).ok_or(Check::BadRequest)?;
    let size = u64::from(operation.size);
    if !header.va.is_multiple_of(size) {
        return Err(Check::AtomicAlignment.into());
    }
    let (memory, at) =
        mrs.remote(target.pd, header.rkey, header.va, size, Access::REMOTE_ATOMIC)?;
    if r.owed_tail - r.owed_head >= u64::from(r.max_rd_atomic) {
        return Err(Check::TooManyReads.into());
    }
    let value = if operation.size == 8 {
        memory.modify_u64(at, |old| operation.apply(old)).map_err(|_| Check::RemoteBounds)?
    } else {
        let change = |old: u32| operation.apply(u64::from(old)).map(|new| new as u32);
        u64::from(memory.modify_u32(at, change).map_err(|_| Check::RemoteBounds)?)
    };
    let replay = Replay { psn, value, len: operation.size, valid: true };
    let slot = r.replay_next;
    r.replays[slot] = replay;
    r.replay_next = (slot + 1) % r.replays.len();
    owe(r, Owed { psn, len: operation.size, value, is_atomic: true, ..Owed::default() })?;
    Ok(1)
}

/// What sending responses needs of the NIC, and what happens to them on their way.
pub(crate) struct Air<'a> {
    pub nic: u16,
    pub mtu: u32,
    pub mrs: &'a Regions,
    pub profile: &'a Profile,
    /// Nothing takes time.
    pub instant: bool,
    pub now: Nanos,
    pub lost: bool,
}

impl Air<'_> {
    /// Puts a response on the link; `None` while the lane is full, which takes no time on it.
    #[inline]
    fn send<'l>(
        &self,
        link: &'l mut LinkEnd,
        mut header: Header,
        bytes: usize,
    ) -> Option<&'l mut [u8]> {
        let free_ps = link.free_ps;
        if !self.instant {
            let ready = self.now.saturating_mul(1000);
            header.deliver_at = link.arrival(self.profile, ready, bytes + WIRE_HEADER);
        }
        let payload = link.tx_responses.push(header, bytes);
        if payload.is_none() {
            link.free_ps = free_ps;
        }
        payload
    }
}

/// Sends what a connection owes, as far as the lane has room. True when nothing is owed any more.
#[inline]
pub(crate) fn respond(
    r: &mut Responder,
    number: u32,
    link: &mut LinkEnd,
    air: &Air<'_>,
    budget: &mut u32,
) -> bool {
    let mut base = Header {
        src_nic: air.nic,
        dst: r.src_qpn,
        src: number,
        generation: r.generation,
        ..Header::default()
    };
    if air.lost {
        base.flags = flag::LOST;
    }
    while r.owed_head != r.owed_tail {
        if *budget == 0 {
            return false;
        }
        let at = r.owed_head as usize & (r.owed.len() - 1);
        let owed = r.owed[at];
        let mut header = Header { psn: low(owed.psn), va: r.executed_at, ..base };
        if owed.is_atomic {
            header.op = op::ATOMIC_RESPONSE;
            let Some(payload) = air.send(link, header, owed.len as usize) else {
                return false;
            };
            let value = owed.value.to_ne_bytes();
            let small = (owed.value as u32).to_ne_bytes();
            let bytes: &[u8] = if owed.len == 8 { &value } else { &small };
            payload.copy_from_slice(bytes);
            r.owed_head += 1;
        } else {
            header.op = op::READ_RESPONSE;
            let now = owed.len.min(air.mtu);
            let source = if now == 0 {
                None
            } else {
                match air.mrs.remote(
                    owed.pd,
                    owed.rkey,
                    owed.va,
                    u64::from(now),
                    Access::REMOTE_READ,
                ) {
                    Ok(source) => Some(source),
                    Err(check) => {
                        // The region went away between the request and this packet.
                        r.owed_head = r.owed_tail;
                        r.nak = Some(Nak::Fatal(check.into()));
                        r.expected = owed.psn;
                        break;
                    }
                }
            };
            let Some(payload) = air.send(link, header, now as usize) else {
                return false;
            };
            if let Some((memory, offset)) = source {
                let _ = memory.read(offset, payload);
            }
            let left = owed.len - now;
            if left == 0 {
                r.owed_head += 1;
            } else {
                r.owed[at] =
                    Owed { psn: owed.psn + 1, va: owed.va + u64::from(now), len: left, ..owed };
            }
        }
        *budget -= 1;
    }
    if r.ack_due && r.nak.is_none() {
        let header =
            Header { op: op::ACK, psn: low(r.expected.wrapping_sub(1)), va: r.executed_at, ..base };
        if air.send(link, header, 0).is_none() {
            return false;
        }
    }
    r.ack_due = false;
    if let Some(nak) = r.nak {
        let (code, timer) = match nak {
            Nak::Sequence => (nak_code::SEQUENCE, 0),
            Nak::Rnr => (nak_code::RNR, r.min_rnr_timer),
            Nak::Fatal(cause) => (
                nak_code::FATAL | u32::from(cause.vendor) << 8 | u32::from(cause.syndrome as u8),
                0,
            ),
        };
        let header = Header {
            op: op::NAK,
            psn: low(r.expected),
            va: r.executed_at,
            rkey: code,
            total: u32::from(timer),
            ..base
        };
        if air.send(link, header, 0).is_none() {
            return false;
        }
        r.nak = None;
    }
    true
}

/// What a NAK says, in its header's key.
pub(crate) mod nak_code {
    pub(crate) const SEQUENCE: u32 = 1 << 16;
    pub(crate) const RNR: u32 = 2 << 16;
    pub(crate) const UNKNOWN: u32 = 3 << 16;
    /// With the vendor byte in bits 8 to 15 and the syndrome in bits 0 to 7.
    pub(crate) const FATAL: u32 = 4 << 16;
    pub(crate) const MASK: u32 = 0xff << 16;
}
