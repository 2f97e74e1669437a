//! The requester: fetches WQEs, checks them, and sends their packets.

use wire::doorbell::RECORD_SEND;
use wire::wqe::{CtrlFlags, SEGMENT, blocks};
use zerocopy::IntoBytes;

use crate::check::{Cause, Check};
use crate::config::{Nanos, QpKind, Qpn};
use crate::dc::Destination;
use crate::fault::Faults;
use crate::finding::{Finding, Findings};
use crate::link::LinkEnd;
use crate::mr::Regions;
use crate::pace::Pace;
use crate::packet::{Header, flag, low, op};
use crate::qp::{NEVER, Qp, SendQueue, Sent, SentKind, Times, WqeCopy};
use crate::wqe::{Limits, Request, What, gather, parse, word};

pub(crate) struct Context<'a> {
    pub nic: u16,
    pub mtu: u32,
    pub max_message: u32,
    pub mrs: &'a Regions,
    pub now: Nanos,
    pub findings: &'a mut Findings,
    pub faults: &'a mut Faults,
    pub pace: &'a mut Pace,
    /// No WQE is failed and nothing takes time.
    pub plain: bool,
}

/// Bytes that a packet has on the wire besides its payload (LRH, BTH, RETH, CRCs).
pub(crate) const WIRE_HEADER: usize = 46;

impl Context<'_> {
    /// The injected failure of the next WQE, if it has one.
    fn injected(&mut self, qpn: u32) -> Option<Cause> {
        let mut struck = None;
        for (i, fail) in self.faults.fail.iter_mut().enumerate() {
            if fail.qpn.is_none_or(|of| of.0 == qpn) {
                if fail.nth == 0 {
                    struck.get_or_insert(i);
                } else {
                    fail.nth -= 1;
                }
            }
        }
        let fail = self.faults.fail.remove(struck?);
        Some(Cause { syndrome: fail.syndrome, vendor: fail.vendor })
    }

    /// Says what is wrong with a slot that was fetched as block `index`.
    fn inspect(&mut self, wqe: &WqeCopy, qpn: u32, index: u64, depth: u64) {
        let (first, second) = (word(wqe, 0), word(wqe, 4));
        let at = Qpn(qpn);
        if first == 0 && second == 0 {
            self.findings.add(Finding::UnwrittenSlot { qpn: at, index, found: None });
            return;
        }
        let found = (first >> 8) as u16;
        let ahead = i64::from(found.wrapping_sub(index as u16) as i16);
        if ahead != 0 {
            self.findings.add(if ahead % depth as i64 != 0 {
                Finding::IndexMismatch { qpn: at, index, found }
            } else if ahead < 0 {
                Finding::UnwrittenSlot { qpn: at, index, found: Some(found) }
            } else {
                Finding::SlotOverwritten { qpn: at, index, found }
            });
        }
        if second >> 8 != qpn {
            self.findings.add(Finding::QpnMismatch { qpn: at, index, found: second >> 8 });
        }
    }
}

/// What `transmit` stopped at.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The budget is used up: more may be done at once.
    Budget,
    /// Nothing to do until something is posted, acknowledged or due.
    Idle,
    /// The next WQE is for another DC target.
    Connect(Destination),
    /// The engine is busy until the pace allows more.
    Pace,
    /// The lane is full.
    Lane,
}

/// Sends what may be sent of a QP's queue, at most `budget` packets.
pub(crate) fn transmit(
    qp: &mut Qp,
    link: &mut LinkEnd,
    cx: &mut Context<'_>,
    budget: &mut u32,
    work: &mut u32,
) -> Stop {
    if qp.sq.not_before > cx.now {
        return Stop::Idle;
    }
    let limits = Limits {
        pd: qp.pd,
        qpn: qp.qpn,
        max_message: cx.max_message,
        reads: qp.sq.max_rd_atomic > 0,
        dci: qp.kind == QpKind::Dci,
    };
    loop {
        let small =
            if cx.plain && !limits.dci { crate::small::send(qp, link, cx, *budget) } else { 0 };
        *budget -= small;
        *work += small;
        if *budget == 0 {
            return Stop::Budget;
        }
        let sq = &mut qp.sq;
        let is_new = sq.cursor == sq.tail;
        if is_new && (sq.stopped || sq.head == sq.producer) {
            return Stop::Idle;
        }
        if is_new && sq.tail - sq.una == sq.sent.len() as u64 {
            return Stop::Idle;
        }
        let index = if is_new { sq.head } else { sq.sent_at(sq.cursor).index };
        if !is_new && sq.sent_at(sq.cursor).packets == 0 {
            sq.cursor += 1;
            continue;
        }
        if !sq.held && fetch(sq, index).is_none() {
            fail_new(qp, index, 0, 1, Check::QueueMemory.into());
            return Stop::Idle;
        }
        sq.held = true;
        let wqe = &*sq.copy;
        if is_new && !cx.plain && cx.pace.is_busy(cx.now) {
            return Stop::Pace;
        }
        let ds = word(wqe, 4) as u8 & wire::wqe::DS_MAX;
        let opcode = word(wqe, 0) as u8;
        let flags = CtrlFlags(word(wqe, 8) as u8);
        let parsed = if is_new && u64::from(blocks(ds)) > sq.producer - index {
            Err(Check::SplitWqe.into())
        } else {
            parse(wqe, &limits, cx.mrs)
        };
        let waits = match &parsed {
            Ok(request) if is_new => must_wait(sq, request, flags),
            _ => false,
        };
        if waits {
            return Stop::Idle;
        }
        if is_new
            && let Ok(Request { destination: Some(to), .. }) = parsed
            && qp.destination != Some(to)
        {
            // One connection at a time: the old one's requests come to their end first.
            return if sq.una == sq.tail { Stop::Connect(to) } else { Stop::Idle };
        }
        if is_new {
            let depth = sq.mask + 1;
            cx.inspect(&sq.copy, limits.qpn, index, depth);
        }
        let injected =
            if is_new && !cx.plain { cx.injected(limits.qpn).map_or(parsed, Err) } else { parsed };
        let request = match injected {
            Ok(request) => request,
            Err(cause) => {
                if is_new {
                    fail_new(qp, index, opcode, blocks(ds).max(1) as u8, cause);
                    *work += 1;
                    return Stop::Idle;
                }
                // It was sound when it was first sent: the client changed it, or its region, in flight.
                let sequence = sq.cursor;
                fail_sent(qp, sequence, cause);
                return Stop::Idle;
            }
        };
        if is_new {
            if !cx.plain {
                cx.pace.take(cx.now, limits.qpn, cx.faults.delay_ns);
            }
            let packets = append(sq, &request, (opcode, ds, flags), cx.mtu, cx.now);
            *work += 1;
            if packets == 0 {
                sq.held = false;
                sq.cursor += 1;
                *budget -= 1;
                continue;
            }
        }
        let entry = sq.sent_at(sq.cursor);
        let wqe = &*sq.copy;
        let mut stop = None;
        while sq.cursor_packets < entry.packets {
            if *budget == 0 {
                stop = Some(Stop::Budget);
                break;
            }
            let nth = sq.cursor_packets;
            let offset = u64::from(nth) * u64::from(cx.mtu);
            let left = (u64::from(entry.len) - offset.min(u64::from(entry.len))) as u32;
            let mut header = Header {
                src_nic: cx.nic,
                dst: qp.remote_qpn,
                src: qp.qpn,
                generation: qp.generation,
                psn: low(entry.psn + u64::from(nth)),
                va: request.raddr.wrapping_add(offset),
                rkey: request.rkey,
                total: left,
                ..Header::default()
            };
            if nth == 0 {
                header.flags |= flag::FIRST;
            }
            if nth + 1 == entry.packets {
                header.flags |= flag::LAST;
            }
            if flags.has(CtrlFlags::FENCE) && nth == 0 {
                header.flags |= flag::FENCE;
            }
            if flags.has(CtrlFlags::SOLICITED) {
                header.flags |= flag::SOLICITED;
            }
            let mut len = left.min(cx.mtu) as usize;
            match request.what {
                What::Nop => break,
                What::Write { imm } => {
                    header.op = op::WRITE;
                    if imm {
                        header.flags |= flag::IMM;
                        header.imm = request.imm;
                    }
                }
                What::Send { imm } => {
                    header.op = op::SEND;
                    header.va = offset;
                    if imm {
                        header.flags |= flag::IMM;
                        header.imm = request.imm;
                    }
                }
                What::Read => {
                    header.op = op::READ;
                    header.flags |= flag::FIRST | flag::LAST;
                    header.imm = entry.packets - nth;
                    len = 0;
                }
                What::Atomic { segments } => {
                    header.op = op::ATOMIC;
                    header.imm = word(wqe, 0);
                    len = usize::from(segments) * SEGMENT;
                }
            }
            let free_ps = link.free_ps;
            if !cx.plain {
                if cx.faults.port_down {
                    header.flags |= flag::LOST;
                }
                header.deliver_at =
                    link.arrival(&cx.pace.profile, cx.pace.free_ps, len + WIRE_HEADER);
            }
            let mark = link.tx_requests.mark();
            let Some(payload) = link.tx_requests.push(header, len) else {
                // What was not sent took no time on the link.
                link.free_ps = free_ps;
                stop = Some(Stop::Lane);
                break;
            };
            let copied = match request.what {
                What::Atomic { segments } => {
                    let from = usize::from(request.data - segments) * SEGMENT;
                    match wqe.as_bytes().get(from..from + len) {
                        Some(operands) => {
                            payload.copy_from_slice(operands);
                            Ok(())
                        }
                        None => Err(Check::DsForOpcode.into()),
                    }
                }
                _ => gather(wqe, &request, qp.pd, cx.mrs, offset, payload),
            };
            if let Err(cause) = copied {
                // A region went away, or copied memory changed its size, since `parse`.
                link.tx_requests.rollback(mark);
                let sequence = sq.cursor;
                fail_sent(qp, sequence, cause);
                return Stop::Idle;
            }
            *budget -= 1;
            sq.cursor_packets =
                if matches!(request.what, What::Read) { entry.packets } else { nth + 1 };
            if sq.deadline == NEVER && sq.timeout != NEVER {
                sq.deadline = cx.now.saturating_add(sq.timeout);
            }
        }
        if let Some(stop) = stop {
            return stop;
        }
        sq.held = false;
        sq.cursor += 1;
        sq.cursor_packets = 0;
    }
}

/// Takes the WQE in `copy` into the window of sent WQEs. Gives the sequence numbers that it takes.
fn append(
    sq: &mut SendQueue,
    request: &Request,
    (opcode, ds, flags): (u8, u8, CtrlFlags),
    mtu: u32,
    now: Nanos,
) -> u32 {
    let reads = matches!(request.what, What::Read | What::Atomic { .. });
    let packets = match request.what {
        What::Nop => 0,
        What::Atomic { .. } => 1,
        _ => packets_of(request.len, mtu),
    };
    let mut slot = 0;
    if reads {
        // `must_wait` left one free.
        slot = sq.slots_used.trailing_ones();
        if let Some(kept) = sq.slots.get_mut(slot as usize) {
            *kept = *sq.copy;
            sq.slots_used |= 1 << slot;
        }
    }
    let (index, tail) = (sq.head, sq.tail);
    *sq.sent_mut(tail) = Sent {
        index,
        psn: sq.next_psn,
        packets,
        len: request.len,
        opcode,
        blocks: blocks(ds) as u8,
        kind: if reads { SentKind::Response } else { SentKind::Posted },
        signalled: flags.has(CtrlFlags::CQ_UPDATE),
        slot: slot as u8,
        data: request.data,
        syndrome: 0,
        vendor: 0,
    };
    if let Some(last) = sq.times.len().checked_sub(1)
        && let Some(times) = sq.times.get_mut(tail as usize & last)
    {
        *times = Times { doorbell: sq.doorbell_at, fetched: now };
    }
    sq.tail += 1;
    sq.head += u64::from(blocks(ds));
    sq.next_psn += u64::from(packets);
    sq.cursor_packets = 0;
    packets
}

fn packets_of(len: u32, mtu: u32) -> u32 {
    // The MTU is a power of two.
    (len.saturating_sub(1) >> mtu.trailing_zeros()) + 1
}

/// Whether a WQE must wait for what is in flight.
fn must_wait(sq: &SendQueue, request: &Request, flags: CtrlFlags) -> bool {
    let in_flight = sq.slots_used.count_ones();
    let reads = matches!(request.what, What::Read | What::Atomic { .. });
    // No message has more packets than bytes / 256.
    let psns = sq.next_psn + u64::from(request.len / 256 + 1) - sq.acked;
    flags.has(CtrlFlags::FENCE) && in_flight > 0
        || reads && in_flight >= u32::from(sq.max_rd_atomic)
        || psns > 1 << 23
}

/// Reads a WQE: one block, and the others if its `ds` says that there are some.
#[inline]
fn fetch(sq: &mut SendQueue, index: u64) -> Option<()> {
    let first = sq.ring.read_block(sq.offset(index)).ok()?;
    sq.copy[..8].copy_from_slice(&first);
    let ds = word(&sq.copy, 4) as u8 & wire::wqe::DS_MAX;
    for block in 1..u64::from(blocks(ds)) {
        let bytes = sq.ring.read_block(sq.offset(index + block)).ok()?;
        sq.copy[block as usize * 8..][..8].copy_from_slice(&bytes);
    }
    Some(())
}

/// A WQE fails before anything of it is sent: its error waits for the completions before it.
fn fail_new(qp: &mut Qp, index: u64, opcode: u8, blocks: u8, cause: Cause) {
    let sq = &mut qp.sq;
    let posted = sq.producer.saturating_sub(index).min(u64::from(blocks)).max(1);
    let blocks = posted as u8;
    let entry = Sent {
        index,
        psn: sq.next_psn,
        opcode,
        blocks,
        kind: SentKind::Failed,
        syndrome: cause.syndrome as u8,
        vendor: cause.vendor,
        ..Sent::default()
    };
    let tail = sq.tail;
    *sq.sent_mut(tail) = entry;
    sq.tail += 1;
    sq.cursor = sq.tail;
    sq.head += u64::from(blocks);
    sq.held = false;
    sq.stopped = true;
}

/// The WQE that was fetched, and is next to be sent, fails.
pub(crate) fn refuse(qp: &mut Qp, cause: Cause) {
    let index = qp.sq.head;
    let opcode = word(&qp.sq.copy, 0) as u8;
    let ds = word(&qp.sq.copy, 4) as u8 & wire::wqe::DS_MAX;
    fail_new(qp, index, opcode, blocks(ds).max(1) as u8, cause);
}

/// A WQE in flight fails: nothing of it, or after it, is sent any more.
pub(crate) fn fail_sent(qp: &mut Qp, sequence: u64, cause: Cause) {
    let sq = &mut qp.sq;
    let entry = sq.sent_mut(sequence);
    entry.kind = SentKind::Failed;
    entry.syndrome = cause.syndrome as u8;
    entry.vendor = cause.vendor;
    // What was sent after it is flushed when it completes: fetching starts again behind it.
    sq.head = entry.index + u64::from(entry.blocks.max(1));
    sq.tail = sequence + 1;
    sq.cursor = sq.tail;
    sq.held = false;
    sq.stopped = true;
}

/// Sends again from the oldest packet that isn't acknowledged.
pub(crate) fn go_back(qp: &mut Qp) {
    let sq = &mut qp.sq;
    sq.cursor = sq.una;
    sq.held = false;
    sq.cursor_packets = 0;
    if sq.una < sq.tail {
        let entry = sq.sent_at(sq.una);
        sq.cursor_packets = sq.acked.saturating_sub(entry.psn).min(u64::from(entry.packets)) as u32;
    }
}

/// The send producer that the doorbell record holds (16 bits), acquired.
#[inline]
pub(crate) fn record_producer(record: &crate::dma::DmaBuf) -> Option<u16> {
    record.load_u32(RECORD_SEND * 4).ok().map(|bytes| u32::from_be_bytes(bytes) as u16)
}
