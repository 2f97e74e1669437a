//! The commonest WQE by far: a write of a few bytes, in one block and one packet.
//!
//! It passes the same checks as any other and leaves as a packet of its own. Whatever isn't plainly sound is
//! left to the general path, which finds out what is wrong with it.

use wire::wqe::{CtrlFlags, INLINE, Opcode};
use zerocopy::IntoBytes;

use crate::config::Nanos;
use crate::dma::Blocks;
use crate::link::{LINE, LinkEnd, Receiver, Sender};
use crate::mr::{Access, Region, Regions};
use crate::packet::{Header, Line, flag, low, op, pair};
use crate::qp::{Qp, Sent, SentKind};
use crate::requester::{Context, PSN_WINDOW};

/// Most bytes of a small write.
const MOST: u32 = 32;
/// WQEs of one run from which their lines are given up.
const STREAM: usize = 8;
/// Segments before the inline one, and the inline header.
const BEFORE: u32 = 2 * 16 + 4;
/// Blocks asked for ahead of the one that is read: as many as come from another core at once.
const AHEAD: u64 = 32;

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

/// A control segment's first two words without the number of segments: opmod 0, the slot's own index,
/// RDMA_WRITE, this QP.
const fn first_word(index: u64, qpn: u32) -> u64 {
    (index & 0xffff) << 40 | (Opcode::RdmaWrite as u64) << 32 | (qpn as u64) << 8
}

/// Reads block `index`, each word once and no more than the WQE has.
fn recognise(ring: &Blocks<'_>, index: u64, qpn: u32) -> Option<Small> {
    let word = |i: usize| u64::from_be(ring.word(index, i));
    // What is left of the first words must be the number of segments.
    let ds = word(0) ^ first_word(index, qpn);
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
fn read(region: &Region, addr: u64, len: u32) -> Option<[u64; 4]> {
    let at = region.offset(addr, u64::from(len))?;
    let mut payload = [0; 4];
    if len == 8 {
        payload[0] = u64::from_ne_bytes(region.memory.load_u64(at).ok()?);
    } else {
        let bytes = payload.as_mut_bytes().get_mut(..len as usize)?;
        region.memory.read(at, bytes).ok()?;
    }
    Some(payload)
}

/// What was sent of a run.
struct Part {
    wqes: usize,
    /// Bytes of the last.
    len: u32,
    /// The last wants a completion, which ends the run.
    signalled: bool,
}

/// What all packets of a run have in common.
struct Template {
    header: Header,
    qpn: u32,
    /// The last block that is announced.
    newest: u64,
}

/// Sends writes of at most 8 inline bytes from block `index` on, into `room`, up to one that is anything else
/// or wants a completion.
#[inline(never)]
fn send_words(ring: Blocks<'_>, index: u64, psn: u64, like: &Template, room: &mut [Line]) -> Part {
    let [_, common, mut sequence, .., rest, at] = Header { psn: low(psn), ..like.header }.words();
    // Up to where the 24-bit sequence number wraps. Where the index does, the next one isn't the expected.
    let most = 0x100_0000 - u64::from(low(psn));
    let mut expected = first_word(index, like.qpn) | 3;
    let (mut wqes, mut len, mut signalled) = (0, 0, false);
    for (line, index) in room.iter_mut().zip(index..index + most) {
        ring.prefetch((index + AHEAD).min(like.newest));
        let flags = high(u64::from_be(ring.word(index, 1))) as u8;
        let (fourth, fifth) = (ring.word(index, 4), ring.word(index, 5));
        let bytes = high(u64::from_be(fourth)) ^ INLINE;
        if u64::from_be(ring.word(index, 0)) != expected
            || flags & !CtrlFlags::CQ_UPDATE.0 != 0
            || bytes > 8
        {
            break;
        }
        // The bytes begin in the middle of a word.
        let payload = (u64::from_le(fourth) >> 32 | u64::from_le(fifth) << 32).to_le();
        let rkey = high(u64::from_be(ring.word(index, 3)));
        let raddr = u64::from_be(ring.word(index, 2));
        let (size, key) = (pair(LINE as u32, bytes), pair(rkey, bytes));
        *line = [size, common, sequence, raddr, key, rest, at, payload];
        expected += 1 << 40;
        sequence = sequence.wrapping_add(pair(0, 1));
        wqes += 1;
        len = bytes;
        if flags != 0 {
            signalled = true;
            break;
        }
    }
    Part { wqes, len, signalled }
}

/// Sends at most `most` other small writes from block `index` on, up to one that is for
/// [`send_words`] or the general path, finds no room, or wants a completion.
#[inline(never)]
fn send_others(
    ring: Blocks<'_>,
    (index, most): (u64, u64),
    psn: u64,
    like: &Template,
    lane: &mut Sender,
    (pd, mrs): (u32, &Regions),
) -> Part {
    let mut part = Part { wqes: 0, len: 0, signalled: false };
    let mut known: Option<(u32, &Region)> = None;
    for n in 0..most {
        ring.prefetch((index + n + AHEAD).min(like.newest));
        let Some(small) = recognise(&ring, index + n, like.qpn) else { break };
        let payload = match small.source {
            Source::Inline(_) if n > 0 && small.len <= 8 => break,
            Source::Inline(payload) => payload,
            Source::Local { lkey, addr } => {
                let region = match known {
                    Some((key, region)) if key == lkey => Some(region),
                    _ => mrs.local_region(pd, lkey, Access::empty()).ok(),
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
            ..like.header
        };
        if !lane.push_small(header, small.len, &payload) {
            break;
        }
        part = Part { wqes: part.wqes + 1, len: small.len, signalled: small.signalled };
        if small.signalled {
            break;
        }
    }
    part
}

/// Sends small writes from the head of the queue as long as there are some. Gives their number.
pub(crate) fn send(qp: &mut Qp, link: &mut LinkEnd, cx: &Context<'_>, budget: u32) -> u32 {
    let sq = &mut qp.sq;
    if sq.cursor != sq.tail || sq.stopped || sq.held_back || sq.held || !sq.times.is_empty() {
        return 0;
    }
    let window = sq.sent.len() as u64 - (sq.tail - sq.una);
    let most = window.min(u64::from(budget)).min(sq.producer - sq.head);
    let Some(ring) = sq.ring.blocks(sq.mask) else { return 0 };
    if most == 0 || sq.next_psn + most - sq.acked > PSN_WINDOW {
        return 0;
    }
    let header = Header {
        src_nic: cx.nic,
        dst: qp.remote_qpn,
        src: qp.qpn,
        op: op::WRITE,
        flags: flag::FIRST | flag::LAST,
        ..Header::default()
    };
    let like = Template { header, qpn: qp.qpn, newest: sq.producer - 1 };
    let lane = &mut link.tx_requests;
    let mut n = 0;
    while n < most {
        let (index, psn) = (sq.head + n, sq.next_psn + n);
        let mut part = send_words(ring, index, psn, &like, lane.room((most - n) as usize));
        lane.pushed(part.wqes);
        if part.wqes == 0 {
            part = send_others(ring, (index, most - n), psn, &like, lane, (qp.pd, cx.mrs));
        }
        if part.wqes == 0 {
            break;
        }
        // Flushing has its own latency, which only a stream of WQEs hides.
        if cx.far && part.wqes >= STREAM {
            ring.give_up(index, part.wqes as u64);
        }
        let places = sq.sent.len() - 1;
        if let Some(sent) = sq.sent.get_mut((sq.tail + n) as usize & places) {
            *sent = Sent {
                index,
                psn,
                packets: part.wqes as u32,
                len: part.len,
                opcode: Opcode::RdmaWrite as u8,
                blocks: 1,
                kind: SentKind::Run,
                signalled: part.signalled,
                ..Sent::default()
            };
        }
        n += part.wqes as u64;
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

/// Executes writes of a word to `region` that are like the first of `lines`, whose header is known to be sound
/// but for its address. Gives their number.
#[inline(never)]
fn take_words(lines: &[Line], now: Nanos, region: &Region) -> usize {
    let (Some(&[size, common, mut sequence, _, key, ..]), Some(words)) =
        (lines.first(), region.memory.words(region.length))
    else {
        return 0;
    };
    let mut n = 0;
    for line in lines {
        let &[its_size, its_common, its_sequence, va, its_key, _, at, payload] = line;
        if its_size != size
            || its_common != common
            || its_sequence != sequence
            || its_key != key
            || at > now
            || va < region.iova
            || !words.store(va - region.iova, payload)
        {
            break;
        }
        // Where the 24-bit number wraps the next doesn't match, and begins another run.
        sequence = sequence.wrapping_add(pair(0, 1));
        n += 1;
    }
    n
}

/// Executes small writes for `qp` from the lane as long as they are in sequence and allowed. Gives their number.
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
    while n < budget {
        let Some((header, _)) = lane.peek() else { break };
        if header.op != op::WRITE
            || header.flags != flag::FIRST | flag::LAST
            || header.src_nic != qp.remote_nic
            || header.dst != qp.qpn
            || header.src != qp.remote_qpn
            || header.psn != low(r.expected + u64::from(n))
            || header.total != header.len
            || header.total == 0
            || header.deliver_at > now
        {
            break;
        }
        let Ok(region) = mrs.remote_region(qp.pd, header.rkey, Access::REMOTE_WRITE) else { break };
        let Some(offset) = region.offset(header.va, u64::from(header.len)) else { break };
        if header.len == 8 {
            let lines = lane.lines();
            let most = lines.len().min((budget - n) as usize);
            let words = take_words(&lines[..most], now, region);
            if words > 0 {
                lane.took(words);
                n += words as u32;
                continue;
            }
        }
        let Some((_, payload)) = lane.peek() else { break };
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
