//! The requester: fetches WQEs, checks them, and sends their packets.

use wire::doorbell::RECORD_SEND;
use wire::wqe::{CtrlFlags, SEGMENT, blocks};
use zerocopy::IntoBytes;

use crate::check::{Cause, Check};
use crate::config::{Nanos, PortAddress, QpKind, Qpn};
use crate::dc::Destination;
use crate::fault::Faults;
use crate::finding::{Finding, Findings};
use crate::link::LinkEnd;
use crate::mr::Regions;
use crate::pace::Pace;
use crate::packet::{Header, flag, low, op};
use crate::qp::{NEVER, Qp, SendQueue, Sent, SentKind, WqeCopy};
use crate::unreliable::{GRH, from, write_grh};
use crate::wqe::{Limits, Request, What, gather, parse, word};

pub(crate) struct Context<'a> {
    pub nic: u16,
    pub mtu: u32,
    pub max_message: u32,
    pub mrs: &'a Regions,
    pub port: &'a PortAddress,
    pub now: Nanos,
    pub findings: &'a mut Findings,
    pub faults: &'a mut Faults,
    pub pace: &'a mut Pace,
    /// No WQE is failed and nothing takes time.
    pub plain: bool,
    /// The port is down.
    pub down: bool,
    /// Clients run on other cores.
    pub far: bool,
}

/// Bytes that a packet has on the wire besides its payload (LRH, BTH, RETH, CRCs).
pub(crate) const WIRE_HEADER: usize = 46;

/// Sequence numbers in flight: of more, old and new could not be told apart in 24 bits.
pub(crate) const PSN_WINDOW: u64 = 1 << 23;

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
    loop {
        if cx.plain && qp.kind == QpKind::Rc {
            let small = crate::small::send(qp, link, cx, *budget);
            *budget -= small;
            *work += small;
        }
        if *budget == 0 {
            return Stop::Budget;
        }
        let sent =
            next(qp, cx, work).and_then(|request| send_packets(qp, link, cx, &request, budget));
        if let Err(stop) = sent {
            return stop;
        }
        let sq = &mut qp.sq;
        if !qp.kind.is_reliable() {
            // What is sent is done: nobody will say so.
            let entry = sq.sent_at(sq.cursor);
            sq.acked = sq.acked.max(entry.psn + u64::from(entry.packets));
            sq.deadline = NEVER;
        }
        sq.held = false;
        sq.cursor += 1;
        sq.cursor_packets = 0;
    }
}

/// The WQE whose packets are to be sent: fetched, checked, and in the window at `cursor`.
fn next(qp: &mut Qp, cx: &mut Context<'_>, work: &mut u32) -> Result<Request, Stop> {
    let sq = &mut qp.sq;
    while sq.cursor != sq.tail && sq.sent_at(sq.cursor).packets == 0 {
        sq.cursor += 1;
    }
    if sq.cursor != sq.tail {
        return resume(qp, cx);
    }
    if sq.stopped
        || sq.held_back
        || sq.head == sq.producer
        || sq.tail - sq.una == sq.sent.len() as u64
    {
        return Err(Stop::Idle);
    }
    let (index, posted) = (sq.head, sq.producer - sq.head);
    if !sq.held && fetch(sq, index).is_none() {
        fail_new(qp, index, 0, 1, Check::QueueMemory.into());
        return Err(Stop::Idle);
    }
    sq.held = true;
    if !cx.plain && cx.pace.is_busy(cx.now) {
        return Err(Stop::Pace);
    }
    let limits = limits(qp, cx);
    let sq = &mut qp.sq;
    let (opcode, ds, flags) = kind_of(&sq.copy);
    let parsed = if u64::from(blocks(ds)) > posted {
        Err(Check::SplitWqe.into())
    } else {
        parse(&sq.copy, &limits, cx.mrs)
    };
    if let Ok(request) = &parsed {
        if must_wait(sq, request, flags) {
            return Err(Stop::Idle);
        }
        if let Some(to) = request.destination
            && qp.destination != Some(to)
        {
            // One connection at a time: the old one's requests come to their end first. Datagrams have none.
            let is_free = qp.kind == QpKind::Ud || sq.una == sq.tail;
            return Err(if is_free { Stop::Connect(to) } else { Stop::Idle });
        }
    }
    let depth = sq.mask + 1;
    cx.inspect(&sq.copy, limits.qpn, index, depth);
    *work += 1;
    let injected = if cx.plain { None } else { cx.injected(limits.qpn) };
    match injected.map_or(parsed, Err) {
        Ok(request) => {
            if !cx.plain {
                cx.pace.take(cx.now, limits.qpn, cx.faults.delay_ns);
            }
            append(sq, &request, (opcode, ds, flags), cx.mtu, cx.now);
            Ok(request)
        }
        Err(cause) => {
            fail_new(qp, index, opcode, blocks(ds).max(1) as u8, cause);
            Err(Stop::Idle)
        }
    }
}

/// The WQE at `cursor`, which is sent in part or is to be sent again, checked again.
fn resume(qp: &mut Qp, cx: &Context<'_>) -> Result<Request, Stop> {
    let sequence = qp.sq.cursor;
    qp.sq.split(sequence, 1);
    let entry = qp.sq.sent_at(sequence);
    let checked = if qp.sq.held || fetch(&mut qp.sq, entry.index).is_some() {
        parse(&qp.sq.copy, &limits(qp, cx), cx.mrs)
    } else {
        Err(Check::QueueMemory.into())
    };
    qp.sq.held = true;
    let (opcode, ..) = kind_of(&qp.sq.copy);
    let same = |request: &Request| {
        let is_as_long = match entry.kind {
            SentKind::Run => packets_of(request.len, cx.mtu) == 1,
            _ => request.len == entry.len,
        };
        opcode == entry.opcode && is_as_long
    };
    // It was sound when it was first sent: the client changed it, or its region, in flight.
    let failed = match checked {
        Ok(request) if same(&request) => {
            let entry = qp.sq.sent_mut(sequence);
            entry.kind = if entry.kind == SentKind::Run { SentKind::Posted } else { entry.kind };
            entry.len = request.len;
            return Ok(request);
        }
        Ok(_) => Check::WqeChanged.into(),
        Err(cause) => cause,
    };
    fail_sent(qp, sequence, failed);
    Err(Stop::Idle)
}

fn limits(qp: &Qp, cx: &Context<'_>) -> Limits {
    Limits {
        pd: qp.pd,
        qpn: qp.qpn,
        max_message: cx.max_message,
        reads: qp.sq.max_rd_atomic > 0,
        mtu: cx.mtu,
        kind: qp.kind,
    }
}

/// Opcode, number of segments and flags.
fn kind_of(wqe: &WqeCopy) -> (u8, u8, CtrlFlags) {
    let ds = word(wqe, 4) as u8 & wire::wqe::DS_MAX;
    (word(wqe, 0) as u8, ds, CtrlFlags(word(wqe, 8) as u8))
}

/// Sends the packets that are left of the WQE at `cursor`.
fn send_packets(
    qp: &mut Qp,
    link: &mut LinkEnd,
    cx: &Context<'_>,
    request: &Request,
    budget: &mut u32,
) -> Result<(), Stop> {
    let sequence = qp.sq.cursor;
    let entry = qp.sq.sent_at(sequence);
    if entry.packets == 0 {
        *budget -= 1;
    }
    while qp.sq.cursor_packets < entry.packets {
        if *budget == 0 {
            return Err(Stop::Budget);
        }
        let nth = qp.sq.cursor_packets;
        let (mut header, len) = packet(qp, cx, request, &entry, nth);
        let free_ps = link.free_ps;
        if !cx.plain {
            if cx.down {
                header.flags |= flag::LOST;
            }
            header.deliver_at = link.arrival(&cx.pace.profile, cx.pace.free_ps, len + WIRE_HEADER);
        }
        let mark = link.tx_requests.mark();
        let Some(payload) = link.tx_requests.push(header, len) else {
            // What was not sent took no time on the link.
            link.free_ps = free_ps;
            return Err(Stop::Lane);
        };
        let offset = u64::from(nth) * u64::from(cx.mtu);
        let payload = match payload.split_at_mut_checked(GRH) {
            Some((grh, rest)) if qp.kind == QpKind::Ud => {
                write_grh(&qp.sq.copy, cx.port, rest.len(), grh);
                rest
            }
            _ => payload,
        };
        if let Err(cause) = fill(&qp.sq.copy, request, qp.pd, cx.mrs, offset, payload) {
            // A region went away, or copied memory changed its size, since `parse`.
            link.tx_requests.rollback(mark);
            fail_sent(qp, sequence, cause);
            return Err(Stop::Idle);
        }
        *budget -= 1;
        let sq = &mut qp.sq;
        // One packet asks for the whole of a read.
        let asked = matches!(request.what, What::Read);
        sq.cursor_packets = if asked { entry.packets } else { nth + 1 };
        sq.arm(cx.now);
    }
    Ok(())
}

/// The `nth` packet's header, and its bytes of payload.
fn packet(qp: &Qp, cx: &Context<'_>, request: &Request, entry: &Sent, nth: u32) -> (Header, usize) {
    let (.., flags) = kind_of(&qp.sq.copy);
    let offset = u64::from(nth) * u64::from(cx.mtu);
    let left = (u64::from(entry.len) - offset.min(u64::from(entry.len))) as u32;
    let mut header = Header {
        src_nic: cx.nic,
        dst: qp.remote_qpn,
        src: qp.qpn,
        generation: if qp.kind == QpKind::XrcInitiator { request.srq } else { qp.generation },
        psn: low(entry.psn + u64::from(nth)),
        va: request.raddr.wrapping_add(offset),
        rkey: request.rkey,
        total: left,
        ..Header::default()
    };
    for (bit, is_set) in [
        (flag::FIRST, nth == 0),
        (flag::LAST, nth + 1 == entry.packets),
        (flag::FENCE, flags.has(CtrlFlags::FENCE) && nth == 0),
        (flag::SOLICITED, flags.has(CtrlFlags::SOLICITED)),
    ] {
        header.flags |= if is_set { bit } else { 0 };
    }
    let len = left.min(cx.mtu) as usize;
    let mut immediate = |imm: bool| {
        if imm {
            header.flags |= flag::IMM;
            header.imm = request.imm;
        }
    };
    let len = match request.what {
        What::Nop => 0,
        What::Write { imm } => {
            immediate(imm);
            header.op = op::WRITE;
            len
        }
        What::Send { imm } if qp.kind == QpKind::Ud => {
            immediate(imm);
            header.op = op::DATAGRAM;
            header.rkey = request.destination.map_or(0, |to| (to.key >> 32) as u32);
            header.va = from(&qp.sq.copy, request.is_routed, cx.port);
            GRH + len
        }
        What::Send { imm } => {
            immediate(imm);
            header.op = op::SEND;
            header.va = offset;
            len
        }
        What::Read => {
            header.op = op::READ;
            header.flags |= flag::FIRST | flag::LAST;
            header.imm = entry.packets - nth;
            0
        }
        What::Atomic { segments } => {
            header.op = op::ATOMIC;
            header.imm = word(&qp.sq.copy, 0);
            usize::from(segments) * SEGMENT
        }
    };
    (header, len)
}

/// Writes a packet's payload: an atomic's operands, or bytes at `offset` of the message.
fn fill(
    wqe: &WqeCopy,
    request: &Request,
    pd: u32,
    mrs: &Regions,
    offset: u64,
    payload: &mut [u8],
) -> Result<(), Cause> {
    let What::Atomic { segments } = request.what else {
        return gather(wqe, request, pd, mrs, offset, payload);
    };
    let from = usize::from(request.data - segments) * SEGMENT;
    let operands = wqe.as_bytes().get(from..from + payload.len()).ok_or(Check::DsForOpcode)?;
    payload.copy_from_slice(operands);
    Ok(())
}

/// Takes the WQE in `copy` into the window of sent WQEs.
fn append(
    sq: &mut SendQueue,
    request: &Request,
    (opcode, ds, flags): (u8, u8, CtrlFlags),
    mtu: u32,
    now: Nanos,
) {
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
            let words = blocks(ds) as usize * 8;
            kept[..words].copy_from_slice(&sq.copy[..words]);
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
    sq.note_times(tail, now);
    sq.tail += 1;
    sq.head += u64::from(blocks(ds));
    sq.next_psn += u64::from(packets);
    sq.cursor_packets = 0;
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
        || psns > PSN_WINDOW
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
    sq.note_times(tail, 0);
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
