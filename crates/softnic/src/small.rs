//! The commonest WQE by far: a write of a few bytes, in one block and one packet.
//!
//! It passes the same checks as any other and leaves as a packet of its own. Whatever isn't plainly sound is
//! left to the general path, which finds out what is wrong with it.

use wire::wqe::{CtrlFlags, INLINE, Opcode};

use crate::config::Nanos;
use crate::dma::Blocks;
use crate::link::{LinkEnd, Receiver};
use crate::mr::{Access, Region, Regions};
use crate::packet::{Header, flag, low, op};
use crate::qp::{Qp, Sent, SentKind};
use crate::requester::{Context, PSN_WINDOW};

/// Most bytes of a small write.
const MOST: u32 = 32;
/// Segments before the inline one, and the inline header.
const BEFORE: u32 = 2 * 16 + 4;
/// Blocks asked for ahead of the one that is read: a line comes from another core in the time of about ten.
const AHEAD: u64 = 16;

/// What matters of a small write.
struct Small {
    signalled: bool,
    len: u32,
    raddr: u64,
    rkey: u32,
    source: Source,
}

enum Source {
    /// The bytes, as they lie in memory.
    Inline([u64; 4]),
    Local {
        lkey: u32,
        addr: u64,
    },
}

const fn high(word: u64) -> u32 {
    (word >> 32) as u32
}

/// Reads block `index`, each word once and no more than the WQE has.
#[inline(always)]
fn recognise(ring: &Blocks<'_>, index: u64, qpn: u32) -> Option<Small> {
    let word = |i: usize| u64::from_be(ring.word(index, i));
    // opmod 0, the slot's own index, RDMA_WRITE, this QP.
    let expected = u64::from(index as u16) << 40
        | u64::from(Opcode::RdmaWrite as u8) << 32
        | u64::from(qpn) << 8;
    // What is left of the first words must be the number of segments.
    let ds = word(0) ^ expected;
    let flags = high(word(1)) as u8;
    if ds != 3 && ds != 4 || flags & !CtrlFlags::CQ_UPDATE.0 != 0 {
        return None;
    }
    let signalled = flags & CtrlFlags::CQ_UPDATE.0 != 0;
    let (raddr, rkey) = (word(2), high(word(3)));
    let data = word(4);
    let (count, len) = (high(data), high(data) & !INLINE);
    if count & INLINE == 0 {
        if ds != 3 || len == 0 || len > MOST {
            return None;
        }
        let source = Source::Local { lkey: data as u32, addr: word(5) };
        return Some(Small { signalled, len, raddr, rkey, source });
    }
    // The bytes begin in the middle of a word.
    let join = |first: u64, next: u64| (first << 32 | next >> 32).to_be();
    let fifth = word(5);
    let mut payload = [join(data, fifth), 0, 0, 0];
    if len > 8 || ds == 4 {
        let (sixth, seventh) = (word(6), word(7));
        payload[1..].copy_from_slice(&[join(fifth, sixth), join(sixth, seventh), join(seventh, 0)]);
        // A segment behind the inline one is for the general path, unless it is blank.
        if len > ds as u32 * 16 - BEFORE || ds == 4 && len <= 12 && high(sixth) != 0 {
            return None;
        }
    }
    Some(Small { signalled, len, raddr, rkey, source: Source::Inline(payload) })
}

/// Reads `len` bytes, at most [`MOST`].
#[inline]
fn read(region: &Region, addr: u64, len: u32) -> Option<[u64; 4]> {
    let at = region.offset(addr, u64::from(len))?;
    let mut payload = [0; 4];
    if len == 8 {
        payload[0] = u64::from_ne_bytes(region.memory.load_u64(at).ok()?);
    } else {
        let bytes = zerocopy::IntoBytes::as_mut_bytes(&mut payload).get_mut(..len as usize)?;
        region.memory.read(at, bytes).ok()?;
    }
    Some(payload)
}

/// Sends small writes from the head of the queue as long as there are some. Gives their number.
#[inline]
pub(crate) fn send(qp: &mut Qp, link: &mut LinkEnd, cx: &Context<'_>, budget: u32) -> u32 {
    let sq = &mut qp.sq;
    if sq.cursor != sq.tail || sq.stopped || sq.held || !sq.times.is_empty() {
        return 0;
    }
    let window = sq.sent.len() as u64 - (sq.tail - sq.una);
    let most = window.min(u64::from(budget)).min(sq.producer - sq.head);
    let Some(ring) = sq.ring.blocks(sq.mask) else { return 0 };
    if most == 0 || sq.next_psn + most - sq.acked > PSN_WINDOW {
        return 0;
    }
    let template = Header {
        src_nic: cx.nic,
        dst: qp.remote_qpn,
        src: qp.qpn,
        op: op::WRITE,
        flags: flag::FIRST | flag::LAST,
        ..Header::default()
    };
    let (head, tail, psn, qpn) = (sq.head, sq.tail, sq.next_psn, qp.qpn);
    let newest = sq.producer - 1;
    let places = sq.sent.len() - 1;
    let mut note = |first: u64, behind: u64, len: u32, signalled: bool| {
        if let Some(sent) = sq.sent.get_mut((tail + first) as usize & places) {
            *sent = Sent {
                index: head + first,
                psn: psn + first,
                packets: (behind - first) as u32,
                len,
                opcode: Opcode::RdmaWrite as u8,
                blocks: 1,
                kind: SentKind::Run,
                signalled,
                ..Sent::default()
            };
        }
    };
    let mut known: Option<(u32, &Region)> = None;
    let (mut n, mut first, mut len) = (0, 0, 0);
    while n < most {
        let index = head + n;
        ring.prefetch((index + AHEAD).min(newest));
        let Some(small) = recognise(&ring, index, qpn) else { break };
        let payload = match small.source {
            Source::Inline(payload) => payload,
            Source::Local { lkey, addr } => {
                let region = match known {
                    Some((key, region)) if key == lkey => Some(region),
                    _ => cx.mrs.local_region(qp.pd, lkey, Access::empty()).ok(),
                };
                let Some(region) = region else { break };
                known = Some((lkey, region));
                let Some(payload) = read(region, addr, small.len) else { break };
                payload
            }
        };
        let header = Header {
            psn: low(psn + n),
            va: small.raddr,
            rkey: small.rkey,
            total: small.len,
            ..template
        };
        if !link.tx_requests.push_small(header, small.len, &payload) {
            break;
        }
        n += 1;
        len = small.len;
        if small.signalled {
            note(first, n, len, true);
            first = n;
        }
    }
    if first < n {
        note(first, n, len, false);
    }
    if n > 0 {
        sq.head += n;
        sq.tail += n;
        sq.cursor = sq.tail;
        sq.cursor_packets = 0;
        sq.next_psn += n;
        sq.arm(cx.now);
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
    let (qpn, remote_qpn, remote_nic, expected) =
        (qp.qpn, qp.remote_qpn, qp.remote_nic, r.expected);
    let mut n = 0;
    let mut known: Option<(u32, &Region)> = None;
    while n < budget {
        let Some((header, payload)) = lane.peek() else { break };
        if header.op != op::WRITE
            || header.flags != flag::FIRST | flag::LAST
            || header.src_nic != remote_nic
            || header.dst != qpn
            || header.src != remote_qpn
            || header.psn != low(expected + u64::from(n))
            || header.total != header.len
            || header.total == 0
            || header.deliver_at > now
        {
            break;
        }
        let region = match known {
            Some((rkey, region)) if rkey == header.rkey => Some(region),
            _ => mrs.remote_region(qp.pd, header.rkey, Access::REMOTE_WRITE).ok(),
        };
        let Some(region) = region else { break };
        known = Some((header.rkey, region));
        let Some(offset) = region.offset(header.va, u64::from(header.len)) else { break };
        // Bounds were checked against the region, which is no longer than its memory.
        let _ = region.memory.write(offset, payload);
        lane.pop();
        n += 1;
    }
    if n > 0 {
        r.expected += u64::from(n);
        r.gap_told = false;
        r.ack_due = true;
        r.executed_at = now;
    }
    n
}
