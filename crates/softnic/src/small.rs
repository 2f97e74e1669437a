//! The commonest WQE by far: a write of a few inline bytes, in one block and one packet.
//!
//! It passes the same checks as any other; whatever isn't plainly sound is left to the general path, which
//! finds out what is wrong with it.

use wire::wqe::{CtrlFlags, INLINE, Opcode};

use crate::link::LinkEnd;
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
    // opmod 0, the slot's own index, RDMA_WRITE, this QP.
    let expected = u64::from(index as u16) << 40
        | u64::from(Opcode::RdmaWrite as u8) << 32
        | u64::from(qpn) << 8;
    let ds = word(0) as u32 & 0xff;
    if word(0) & !0xff != expected || !(3..=4).contains(&ds) {
        return None;
    }
    let flags = CtrlFlags((word(1) >> 32) as u8);
    let count = (word(4) >> 32) as u32;
    let len = count & !INLINE;
    // A segment behind the inline one is for the general path, unless it is blank.
    if flags.0 & !CtrlFlags::CQ_UPDATE.0 != 0
        || count & INLINE == 0
        || len > ds * 16 - BEFORE
        || ds == 4 && len <= 12 && word(6) >> 32 != 0
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
        rkey: (word(3) >> 32) as u32,
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
