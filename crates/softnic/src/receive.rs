//! Receive queues, rings and lists: taking a receive, and writing to its buffers.

use wire::cqe::{Cqe, CqeOpcode};
use wire::doorbell::RECORD_RECEIVE;
use wire::wqe::SEGMENT;
use zerocopy::{FromBytes, IntoBytes};

use crate::check::Check;
use crate::cq::Cqs;
use crate::mr::{Access, Regions};
use crate::qp::{ReceiveQueue, Receiving};
use crate::responder::{Refusal, Target};

/// Data segment key that ends a receive WQE's list (`MLX5_INVALID_LKEY`).
pub(crate) const LIST_END: u32 = 0x100;

/// Where a receive WQE's segments are: its first and the one behind its last.
#[derive(Clone, Copy)]
pub(crate) struct Layout {
    first: usize,
    end: usize,
}

/// The segments of a receive WQE: byte count, key, address.
fn segments(rq_wqe: &[u64; 64], at: Layout) -> impl Iterator<Item = (u32, u32, u64)> + '_ {
    rq_wqe
        .as_bytes()
        .chunks_exact(SEGMENT)
        .take(at.end)
        .skip(at.first)
        .filter_map(|bytes| wire::wqe::Data::read_from_bytes(bytes).ok())
        .map(|data| (data.byte_count.get(), data.lkey.get(), data.addr.get()))
        .take_while(|&(_, lkey, _)| lkey != LIST_END)
}

/// Takes the next posted receive.
pub(crate) fn take(rq: &mut ReceiveQueue, wqe: &mut [u64; 64]) -> Result<Receiving, Refusal> {
    if !rq.refresh() {
        return Err(Refusal::NotReady);
    }
    let stride = 1usize << rq.log_stride;
    let mask = (1u64 << rq.log_wqes) - 1;
    let slot = rq.list.map_or(rq.head & mask, |list| u64::from(list.head));
    let into = wqe.as_mut_bytes().get_mut(..stride).ok_or(Check::BadRequest)?;
    rq.ring.read(slot as usize * stride, into).map_err(|_| Check::RemoteReceive)?;
    // A list's completions name the place, a ring's the count.
    let mut index = rq.head;
    if let Some(list) = &mut rq.list {
        index = slot;
        list.head = (u32::from(into[2]) << 8 | u32::from(into[3])) & mask as u32;
    }
    rq.head += 1;
    rq.check_limit();
    let capacity = segments(wqe, rq.layout()).map(|(len, _, _)| u64::from(len)).sum();
    Ok(Receiving { index, bytes: 0, capacity, is_posted: true })
}

impl ReceiveQueue {
    /// Whether a receive is posted, as far as the record says.
    pub(crate) fn refresh(&mut self) -> bool {
        if self.head == self.producer {
            self.look();
        }
        self.head != self.producer
    }

    fn look(&mut self) {
        let record = self.record.load_u32(RECORD_RECEIVE * 4).unwrap_or_default();
        let ahead = (u32::from_be_bytes(record) as u16).wrapping_sub(self.producer as u16);
        if u64::from(ahead) <= 1 << self.log_wqes {
            self.producer += u64::from(ahead);
        }
    }

    /// Receives that are posted and not taken.
    pub(crate) fn posted(&mut self) -> u64 {
        self.look();
        self.producer - self.head
    }

    /// Notes when a list has fewer receives than its limit.
    pub(crate) fn check_limit(&mut self) {
        let limit = self.list.map_or(0, |list| list.limit);
        if limit > 0
            && self.posted() < u64::from(limit)
            && let Some(list) = &mut self.list
        {
            list.limit = 0;
            list.reached = true;
        }
    }

    pub(crate) fn layout(&self) -> Layout {
        Layout {
            first: usize::from(self.list.is_some()),
            end: (1usize << self.log_stride) / SEGMENT,
        }
    }
}

/// Writes bytes to a receive's buffers, from byte `skip` of them on. None if they can't be written.
pub(crate) fn scatter(
    wqe: &[u64; 64],
    at: Layout,
    pd: u32,
    mrs: &Regions,
    skip: u64,
    bytes: &[u8],
) -> Option<()> {
    let (mut skip, mut rest) = (skip, bytes);
    for (len, lkey, addr) in segments(wqe, at) {
        let len = u64::from(len);
        if rest.is_empty() {
            break;
        }
        if skip >= len {
            skip -= len;
            continue;
        }
        let (now, later) = rest.split_at(rest.len().min((len - skip) as usize));
        let (memory, at) = mrs.local(pd, lkey, addr, len, Access::LOCAL_WRITE).ok()?;
        memory.write(at + skip as usize, now).ok()?;
        rest = later;
        skip = 0;
    }
    Some(())
}

/// Completes a receive with an error.
pub(crate) fn fail_receive(cqs: &mut Cqs, target: &Target<'_>, index: u64, check: Check) {
    let (kind, number) = (CqeOpcode::ResponderError, target.number);
    let cqe = Cqe::error(kind, check.syndrome(), check as u8, 0, number, index as u16);
    let _ = cqs.push(target.cq, cqe.with_user_index(target.user_index));
}
