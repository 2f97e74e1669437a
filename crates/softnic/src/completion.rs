//! The requester's other half: acknowledgements, responses, completions, retries and the flush.

use wire::cqe::{Cqe, CqeOpcode, Syndrome};
use wire::wqe::{DS_MAX, Opcode, blocks};

use crate::check::{Cause, Check};
use crate::config::Nanos;
use crate::cq::Cqs;
use crate::mr::Regions;
use crate::packet::{Header, extend, op};
use crate::qp::{NEVER, Qp, QpState, SentKind};
use crate::requester::{fail_sent, go_back, refuse};
use crate::responder::nak_code;
use crate::trace::{TraceRecord, Traced};
use crate::wqe::scatter;

/// What the completion of WQEs needs of its NIC.
pub(crate) struct Sink<'a> {
    pub cqs: &'a mut Cqs,
    pub now: Nanos,
    pub completed: u64,
}

/// Takes a response packet. True if the QP may have something to send now.
pub(crate) fn on_response(
    qp: &mut Qp,
    header: &Header,
    payload: &[u8],
    mtu: u32,
    mrs: &Regions,
    sink: &mut Sink<'_>,
) {
    let sq = &mut qp.sq;
    let psn = extend(sq.acked, header.psn);
    match header.op {
        op::ACK => {
            if psn < sq.acked || psn >= sq.next_psn {
                return;
            }
            if !acknowledge(qp, psn + 1, header.va, sink) {
                // The acknowledgement covers a response that never came.
                go_back(qp);
            }
        }
        op::READ_RESPONSE | op::ATOMIC_RESPONSE => {
            if psn < sq.acked || psn >= sq.next_psn {
                return;
            }
            if !acknowledge(qp, psn, header.va, sink) || qp.sq.acked != psn {
                go_back(qp);
                return;
            }
            take_response(qp, psn, header, payload, mtu, mrs, sink);
        }
        op::NAK if header.rkey == nak_code::UNKNOWN => {
            let sq = &qp.sq;
            // A DC initiator has no runs: each place of the window is a WQE.
            let atomics = (sq.una..sq.cursor).any(|i| {
                let entry = sq.sent_at(i);
                entry.kind == SentKind::Response && entry.opcode != Opcode::RdmaRead as u8
            });
            if atomics {
                // Executed or not: nobody knows any more, and it must not be executed twice.
                return fail_oldest(qp, Check::RemoteLost.into(), sink);
            }
            qp.reconnect = true;
            go_back(qp);
        }
        op::NAK => {
            if psn < sq.acked || psn > sq.next_psn {
                return;
            }
            let whole = acknowledge(qp, psn, header.va, sink);
            match header.rkey & nak_code::MASK {
                nak_code::RNR => {
                    let sq = &mut qp.sq;
                    if sq.rnr_retries == 0 {
                        return fail_oldest(qp, Check::RnrRetry.into(), sink);
                    }
                    if sq.rnr_retry != 7 {
                        sq.rnr_retries -= 1;
                    }
                    sq.not_before = sink.now.saturating_add(rnr_wait(header.total as u8));
                    sq.deadline = NEVER;
                    go_back(qp);
                }
                nak_code::FATAL => {
                    let vendor = (header.rkey >> 8) as u8;
                    let syndrome =
                        Syndrome::from_byte(header.rkey as u8).unwrap_or(Syndrome::RemoteOperation);
                    if !whole {
                        // The refused request lies behind a response that never came.
                        go_back(qp);
                        return;
                    }
                    fail_oldest(qp, Cause { syndrome, vendor }, sink);
                }
                _ => {
                    if qp.sq.retries == 0 {
                        return fail_oldest(qp, Check::TransportRetry.into(), sink);
                    }
                    qp.sq.retries -= 1;
                    go_back(qp);
                }
            }
        }
        _ => {}
    }
}

fn take_response(
    qp: &mut Qp,
    psn: u64,
    header: &Header,
    payload: &[u8],
    mtu: u32,
    mrs: &Regions,
    sink: &mut Sink<'_>,
) {
    let pd = qp.pd;
    let sq = &mut qp.sq;
    let sequence = sq.una;
    let entry = sq.sent_at(sequence);
    if sequence == sq.tail || entry.kind != SentKind::Response || psn < entry.psn {
        return;
    }
    let nth = psn - entry.psn;
    let offset = nth * u64::from(mtu);
    let expected = u64::from(entry.len).saturating_sub(offset).min(u64::from(mtu));
    let wqe = &sq.slots[usize::from(entry.slot)];
    let placed = if payload.len() as u64 == expected {
        scatter(wqe, entry.data, pd, mrs, offset, payload)
    } else {
        Err(Check::Response.into())
    };
    if let Err(cause) = placed {
        fail_sent(qp, sequence, cause);
        advance(qp, header.va, sink);
        return;
    }
    sq.acked = psn + 1;
    progress(qp, sink.now);
    advance(qp, header.va, sink);
}

fn progress(qp: &mut Qp, now: Nanos) {
    let sq = &mut qp.sq;
    sq.retries = sq.retry_cnt;
    sq.rnr_retries = sq.rnr_retry;
    sq.deadline = if sq.acked == sq.next_psn { NEVER } else { now.saturating_add(sq.timeout) };
}

/// All sequence numbers below `upto` are acknowledged. False if a response is missing among them.
#[inline]
fn acknowledge(qp: &mut Qp, upto: u64, executed: Nanos, sink: &mut Sink<'_>) -> bool {
    let sq = &mut qp.sq;
    if upto <= sq.acked {
        return true;
    }
    let mut limit = upto;
    if sq.slots_used != 0 {
        // Not past the first response that is awaited.
        let mut sequence = sq.una;
        while sequence != sq.tail {
            let entry = sq.sent_at(sequence);
            if entry.psn >= upto {
                break;
            }
            if entry.kind == SentKind::Response {
                limit = entry.psn.max(sq.acked);
                break;
            }
            sequence += entry.wqes();
        }
    }
    if limit > sq.acked {
        sq.acked = limit;
        progress(qp, sink.now);
        advance(qp, executed, sink);
    }
    limit == upto
}

/// Completes, in order, what can be completed.
#[inline]
pub(crate) fn advance(qp: &mut Qp, executed: Nanos, sink: &mut Sink<'_>) {
    while qp.sq.una != qp.sq.tail {
        let sq = &mut qp.sq;
        let entry = sq.sent_at(sq.una);
        if entry.kind == SentKind::Failed {
            if sq.acked < entry.psn {
                return;
            }
            let cause = Cause {
                syndrome: Syndrome::from_byte(entry.syndrome).unwrap_or(Syndrome::LocalQpOp),
                vendor: entry.vendor,
            };
            fail_oldest(qp, cause, sink);
            return;
        }
        if entry.psn + u64::from(entry.packets) > sq.acked {
            let part = sq.acked.saturating_sub(entry.psn);
            if entry.kind != SentKind::Run || part == 0 {
                return;
            }
            sq.split(sq.una, part as u32);
            continue;
        }
        if entry.kind == SentKind::Response {
            sq.slots_used &= !(1 << entry.slot);
        }
        if !sq.times.is_empty() {
            let seen = if entry.packets == 0 { sq.times_at(sq.una).fetched } else { executed };
            trace(qp, qp.sq.una, (seen, None), sink);
        }
        let sq = &mut qp.sq;
        let wqes = entry.wqes();
        sq.una += wqes;
        sq.completed = entry.end();
        if sq.cursor < sq.una {
            // Acknowledged while it was about to be sent again.
            sq.cursor = sq.una;
            sq.cursor_packets = 0;
            sq.held = false;
        }
        sink.completed += wqes;
        if entry.signalled {
            let last = entry.index + wqes - 1;
            let cqe = Cqe::requester(entry.opcode, qp.qpn, last as u16, entry.len);
            push(qp, cqe, sink);
        }
    }
}

/// Notes the end of a sent WQE.
#[cold]
fn trace(qp: &Qp, sequence: u64, (executed, failure): (Nanos, Option<Cause>), sink: &mut Sink<'_>) {
    let (entry, times) = (qp.sq.sent_at(sequence), qp.sq.times_at(sequence));
    sink.cqs.trace.push(TraceRecord {
        qpn: qp.qpn,
        index: entry.index,
        what: Traced::Send(entry.opcode),
        bytes: entry.len,
        packets: entry.packets,
        doorbell: times.doorbell,
        fetched: times.fetched,
        executed,
        completed: sink.now,
        failure,
    });
}

fn push(qp: &mut Qp, cqe: Cqe, sink: &mut Sink<'_>) {
    if sink.cqs.push(qp.send_cq, cqe.with_user_index(qp.user_index)).is_err() {
        qp.error.get_or_insert(Check::CqOverrun.into());
    }
}

/// The oldest WQE fails: its CQE, and the QP in error.
pub(crate) fn fail_oldest(qp: &mut Qp, cause: Cause, sink: &mut Sink<'_>) {
    if qp.sq.una == qp.sq.tail {
        if !qp.sq.held {
            return;
        }
        // A DC connection was refused before its first request was sent.
        refuse(qp, cause);
    }
    let sq = &mut qp.sq;
    sq.split(sq.una, 1);
    if !sq.times.is_empty() {
        trace(qp, qp.sq.una, (0, Some(cause)), sink);
    }
    let sq = &mut qp.sq;
    let entry = sq.sent_at(sq.una);
    let (index, opcode) = (entry.index, entry.opcode);
    sq.una += 1;
    sq.head = entry.index + u64::from(entry.blocks.max(1));
    sq.completed = sq.head;
    qp.error.get_or_insert(cause);
    let cqe = Cqe::error(
        CqeOpcode::RequesterError,
        cause.syndrome,
        cause.vendor,
        opcode,
        qp.qpn,
        index as u16,
    );
    push(qp, cqe, sink);
    enter_error(qp);
}

/// The QP's state becomes ERROR: what was sent is flushed, from the first WQE that isn't completed.
pub(crate) fn enter_error(qp: &mut Qp) {
    qp.state = QpState::Error;
    let sq = &mut qp.sq;
    if sq.una != sq.tail {
        sq.head = sq.sent_at(sq.una).index;
    }
    sq.una = sq.tail;
    sq.cursor = sq.tail;
    sq.cursor_packets = 0;
    sq.slots_used = 0;
    sq.held = false;
    sq.stopped = true;
    sq.deadline = NEVER;
    sq.not_before = 0;
    sq.acked = sq.next_psn;
}

/// Flushes posted WQEs and receives of a QP in error. True when there is nothing left to flush.
pub(crate) fn flush(qp: &mut Qp, budget: &mut u32, sink: &mut Sink<'_>) -> bool {
    let vendor = Check::Flushed as u8;
    while qp.sq.head != qp.sq.producer {
        if *budget == 0 {
            return false;
        }
        *budget -= 1;
        let sq = &mut qp.sq;
        let index = sq.head;
        let block = sq.ring.read_block(sq.offset(index)).unwrap_or_default();
        let first = u32::from_be_bytes(*block[0].to_ne_bytes().first_chunk().unwrap_or(&[0; 4]));
        let ds = block[0].to_ne_bytes()[7] & DS_MAX;
        let left = sq.producer - index;
        sq.head += u64::from(blocks(ds).max(1)).min(left);
        sq.completed = sq.head;
        let cqe = Cqe::error(
            CqeOpcode::RequesterError,
            Syndrome::Flushed,
            vendor,
            first as u8,
            qp.qpn,
            index as u16,
        );
        if !sq.times.is_empty() {
            sink.cqs.trace.push(TraceRecord {
                qpn: qp.qpn,
                index,
                what: Traced::Send(first as u8),
                completed: sink.now,
                failure: Some(Check::Flushed.into()),
                ..TraceRecord::default()
            });
        }
        push(qp, cqe, sink);
        sink.completed += 1;
    }
    let (qpn, cq, user_index) = (qp.qpn, qp.recv_cq, qp.user_index);
    let half = [qp.responder.receiving.take(), qp.responder.spare.take()];
    for receiving in half.into_iter().flatten().filter(|receiving| receiving.is_posted) {
        flush_receive(sink.cqs, cq, (qpn, user_index), receiving.index);
    }
    let Some(rq) = &mut qp.rq else { return true };
    while rq.refresh() {
        if *budget == 0 {
            return false;
        }
        *budget -= 1;
        flush_receive(sink.cqs, cq, (qpn, user_index), rq.head);
        rq.head += 1;
    }
    true
}

fn flush_receive(cqs: &mut Cqs, cq: u32, (qpn, user_index): (u32, u32), index: u64) {
    let cqe = Cqe::error(
        CqeOpcode::ResponderError,
        Syndrome::Flushed,
        Check::Flushed as u8,
        0,
        qpn,
        index as u16,
    );
    let _ = cqs.push(cq, cqe.with_user_index(user_index));
}

/// The acknowledgement is overdue.
pub(crate) fn timed_out(qp: &mut Qp, sink: &mut Sink<'_>) {
    if qp.sq.retries == 0 {
        fail_oldest(qp, Check::TransportRetry.into(), sink);
        return;
    }
    qp.sq.retries -= 1;
    qp.sq.deadline = NEVER;
    go_back(qp);
}

/// The wait that an RNR timer code stands for (InfiniBand specification, table 45).
#[must_use]
pub(crate) fn rnr_wait(code: u8) -> Nanos {
    const HUNDREDTHS_MS: [u64; 32] = [
        65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1_024,
        1_536, 2_048, 3_072, 4_096, 6_144, 8_192, 12_288, 16_384, 24_576, 32_768, 49_152,
    ];
    HUNDREDTHS_MS[usize::from(code & 31)] * 10_000
}

/// The wait that a timeout code stands for: 4.096 us * 2^code, 0 for ever.
#[must_use]
pub(crate) fn ack_timeout(code: u8) -> Nanos {
    match code & 31 {
        0 => NEVER,
        code => 4_096 << code,
    }
}
