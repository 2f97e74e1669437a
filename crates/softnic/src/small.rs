//! The commonest WQE by far: a write of a few inline bytes, in one block and one packet.
//!
//! It passes the same checks as any other; whatever isn't plainly sound is left to the general path, which
//! finds out what is wrong with it.

use wire::wqe::{CtrlFlags, INLINE, Opcode};

use crate::config::Nanos;
use crate::link::{LinkEnd, Receiver};
use crate::mr::{Access, Region, Regions};
use crate::packet::{Header, flag, low, op};
use crate::qp::{NEVER, Qp, Sent, SentKind, Times};
use crate::requester::Context;

/// What matters of a small write.
struct Small {
    signalled: bool,
    len: u32,
    raddr: u64,
    rkey: u32,
    /// The bytes, as they lie in memory.
    payload: [u64; 4],
}

/// Segments before the inline one, and the inline header.
const BEFORE: u32 = 2 * 16 + 4;

#[inline(always)]
fn recognise(block: &[u64; 8], index: u64, qpn: u32) -> Option<Small> {
    let word = |i: usize| u64::from_be(block[i]);
    let half =
        |i: usize| u32::from_be_bytes(*block[i].to_ne_bytes().first_chunk().unwrap_or(&[0; 4]));
    // opmod 0, the slot's own index, RDMA_WRITE, this QP.
    let expected = u64::from(index as u16) << 40
        | u64::from(Opcode::RdmaWrite as u8) << 32
        | u64::from(qpn) << 8;
    // What is left of the first words must be the number of segments.
    let ds = word(0) ^ expected;
    if ds != 3 && ds != 4 {
        return None;
    }
    let ds = ds as u32;
    let flags = CtrlFlags(half(1) as u8);
    let count = half(4);
    let len = count & !INLINE;
    // A segment behind the inline one is for the general path, unless it is blank.
    if flags.0 & !CtrlFlags::CQ_UPDATE.0 != 0
        || count & INLINE == 0
        || len > ds * 16 - BEFORE
        || ds == 4 && len <= 12 && half(6) != 0
    {
        return None;
    }
    // The bytes begin in the middle of a word.
    let le = |i: usize| u64::from_le(block[i]);
    let join = |i: usize, next: u64| (le(i) >> 32 | next << 32).to_le();
    let payload = [join(4, le(5)), join(5, le(6)), join(6, le(7)), join(7, 0)];
    Some(Small {
        signalled: flags.has(CtrlFlags::CQ_UPDATE),
        len,
        raddr: word(2),
        rkey: half(3),
        payload,
    })
}

/// Sends small writes from the head of the queue as long as there are some. Gives their number.
#[inline]
pub(crate) fn send(qp: &mut Qp, link: &mut LinkEnd, cx: &Context<'_>, budget: u32) -> u32 {
    let sq = &mut qp.sq;
    if sq.cursor != sq.tail || sq.stopped || sq.held {
        return 0;
    }
    let window = sq.sent.len() as u64 - (sq.tail - sq.una);
    let most = window.min(u64::from(budget)).min(sq.producer - sq.head);
    let template = Header {
        src_nic: cx.nic,
        dst: qp.remote_qpn,
        src: qp.qpn,
        op: op::WRITE,
        flags: flag::FIRST | flag::LAST,
        ..Header::default()
    };
    let mask = sq.sent.len() - 1;
    let mut n = 0;
    while n < most {
        let index = sq.head + n;
        sq.ring.prefetch(sq.offset(index + 12));
        let Ok(block) = sq.ring.read_block(sq.offset(index)) else { break };
        let Some(small) = recognise(&block, index, qp.qpn) else { break };
        let psn = sq.next_psn + n;
        let header = Header {
            psn: low(psn),
            va: small.raddr,
            rkey: small.rkey,
            total: small.len,
            ..template
        };
        if !link.tx_requests.push_words(header, small.len, &small.payload) {
            break;
        }
        let at = (sq.tail + n) as usize & mask;
        if let Some(sent) = sq.sent.get_mut(at) {
            *sent = Sent {
                index,
                psn,
                packets: 1,
                len: small.len,
                opcode: Opcode::RdmaWrite as u8,
                blocks: 1,
                kind: SentKind::Posted,
                signalled: small.signalled,
                slot: 0,
                data: 0,
                syndrome: 0,
                vendor: 0,
            };
        }
        if let Some(times) = sq.times.get_mut(at) {
            *times = Times { doorbell: sq.doorbell_at, fetched: cx.now };
        }
        n += 1;
    }
    if n > 0 {
        sq.head += n;
        sq.tail += n;
        sq.cursor = sq.tail;
        sq.cursor_packets = 0;
        sq.next_psn += n;
        if sq.deadline == NEVER && sq.timeout != NEVER {
            sq.deadline = cx.now.saturating_add(sq.timeout);
        }
    }
    n as u32
}

/// Executes small writes for `qp` from the lane as long as they are in sequence and allowed. Gives their number.
#[inline]
pub(crate) fn take(
    qp: &mut Qp,
    lane: &mut Receiver,
    mrs: &Regions,
    now: Nanos,
    budget: u32,
) -> u32 {
    let r = &mut qp.responder;
    if !qp.access.contains(Access::REMOTE_WRITE) || r.receiving.is_some() || r.nak.is_some() {
        return 0;
    }
    let mut n = 0;
    let mut last: Option<(u32, &Region)> = None;
    while n < budget {
        let Some((header, payload)) = lane.peek() else { break };
        if header.op != op::WRITE
            || header.flags != flag::FIRST | flag::LAST
            || header.dst != qp.qpn
            || header.src != qp.remote_qpn
            || header.src_nic != qp.remote_nic
            || header.psn != low(r.expected)
            || header.total != header.len
            || header.total == 0
            || header.deliver_at > now
        {
            break;
        }
        let region = match last {
            Some((rkey, region)) if rkey == header.rkey => region,
            _ => match mrs.remote_region(qp.pd, header.rkey, Access::REMOTE_WRITE) {
                Ok(region) => region,
                Err(_) => break,
            },
        };
        last = Some((header.rkey, region));
        let Some(offset) = region.offset(header.va, u64::from(header.len)) else { break };
        // Bounds were checked against the region, which is no longer than its memory.
        let _ = region.memory.write(offset, payload);
        lane.pop();
        r.expected += 1;
        n += 1;
    }
    if n > 0 {
        r.gap_told = false;
        r.ack_due = true;
        r.executed_at = now;
    }
    n
}
