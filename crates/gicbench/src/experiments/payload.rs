//! Payloads that can be checked: every operation's carries a value that no other has, in its first 8 bytes and
//! again in its last whole 8, and bytes that tell their place between.

use std::ops::Range;

use rdma::Region;

use super::rig::broke;
use crate::point::PointError;

/// Payload memory of one side, at most.
const MOST: u64 = 64 << 20;

/// Where operations have their payloads: operation `i` of a thread in slot `i mod slots` of the thread's own.
#[derive(Clone, Copy)]
pub(super) struct Slots {
    pub bytes: u32,
    /// A thread.
    pub slots: u64,
    pub stride: u64,
    threads: u64,
    /// Offset of the first one in their region.
    pub base: u64,
}

impl Slots {
    /// At most `wanted` slots a thread, as far as the memory meant for them goes.
    pub fn new(bytes: u32, wanted: u64, threads: u32) -> Self {
        let stride = u64::from(bytes).next_multiple_of(8);
        let threads = u64::from(threads);
        Slots { bytes, slots: wanted.min(MOST / stride / threads).max(1), stride, threads, base: 0 }
    }

    /// The same, each at a multiple of `bytes` from the first one.
    pub fn aligned(self, bytes: u64) -> Self {
        let stride = self.stride.next_multiple_of(bytes);
        Slots { stride, slots: self.slots.min(MOST / stride / self.threads).max(1), ..self }
    }

    /// The same, in one region with others and after them.
    pub fn behind(self, others: &Slots) -> Self {
        Slots { base: (others.length() as u64).next_multiple_of(64), ..self }
    }

    /// Bytes of memory for all of them, and for what they are behind.
    pub fn length(&self) -> usize {
        (self.base + self.stride * self.slots * self.threads) as usize
    }

    /// Counts slots of `arrived` that don't hold what the last of `ops` operations on them carried from
    /// `origin`, marks and all other bytes. Operation 0 of thread `t` carries the value `first + t * ops`.
    pub fn wrong(
        &self,
        arrived: &Region,
        origin: &Region,
        threads: Range<u64>,
        first: u64,
        ops: u64,
    ) -> Result<u64, PointError> {
        let (arrived, origin) = (content(arrived)?, content(origin)?);
        let each = |thread| self.wrong_of(&arrived, &origin, thread, first + thread * ops, ops);
        Ok(threads.map(each).sum())
    }

    /// The same, where each thread has its own first value and number of operations.
    pub fn wrong_each(
        &self,
        arrived: &Region,
        origin: &Region,
        firsts_and_ops: &[(u64, u64)],
    ) -> Result<u64, PointError> {
        let (arrived, origin) = (content(arrived)?, content(origin)?);
        let threads = (0u64..).zip(firsts_and_ops);
        let each = |(thread, (first, ops)): (u64, &(u64, u64))| {
            self.wrong_of(&arrived, &origin, thread, *first, *ops)
        };
        Ok(threads.map(each).sum())
    }

    fn wrong_of(&self, arrived: &[u8], origin: &[u8], thread: u64, first: u64, ops: u64) -> u64 {
        let bytes = self.bytes as usize;
        let is_wrong = |i: &u64| {
            let marked = self
                .marks(thread, *i)
                .all(|offset| has_mark(arrived, offset, self.bytes, first + i));
            // The mark of 8 bytes is all of it, and was never in the source where the WQE carries the value.
            let at = self.at(thread, *i);
            let same = bytes == 8 || arrived[at..at + bytes] == origin[at..at + bytes];
            !(marked && same)
        };
        self.last_on_their_slots(ops).filter(is_wrong).count() as u64
    }

    /// Writes the marks that `ops` operations of each thread would leave; values as in [`wrong`](Self::wrong).
    pub fn mark(
        &self,
        region: &Region,
        threads: Range<u64>,
        first: u64,
        ops: u64,
    ) -> Result<(), PointError> {
        // All of them at once: a region in a GPU's memory is copied to be read and written.
        let mut all = content(region)?;
        for thread in threads {
            for i in self.last_on_their_slots(ops) {
                let value = (first + thread * ops + i).to_le_bytes();
                for offset in self.marks(thread, i) {
                    let taken = mark_bytes(self.bytes);
                    all[offset..offset + taken].copy_from_slice(&value[..taken]);
                }
            }
        }
        region.memory.write(0, &all).map_err(broke)
    }

    /// Leaves nothing in a region that could pass for a payload.
    pub fn clear(&self, region: &Region) -> Result<(), PointError> {
        region.memory.write(0, &vec![0; region.memory.len()]).map_err(broke)
    }

    fn last_on_their_slots(&self, ops: u64) -> impl Iterator<Item = u64> + use<> {
        ops.saturating_sub(self.slots)..ops
    }

    fn at(&self, thread: u64, i: u64) -> usize {
        (self.base + (thread * self.slots + i % self.slots) * self.stride) as usize
    }

    fn marks(&self, thread: u64, i: u64) -> impl Iterator<Item = usize> + use<> {
        let at = self.at(thread, i);
        let bytes = self.bytes as usize;
        let last = (bytes >= 16).then(|| at + (bytes / 8 - 1) * 8);
        std::iter::once(at).chain(last)
    }
}

/// All bytes of a region: one copy where only copies reach it.
fn content(region: &Region) -> Result<Vec<u8>, PointError> {
    let mut all = vec![0; region.memory.len()];
    region.memory.read(0, &mut all).map_err(broke)?;
    Ok(all)
}

/// Fills a region with bytes that tell their place, so that a shifted payload is seen.
pub(super) fn fill(region: &Region, seed: u64) -> Result<(), PointError> {
    let mut all = vec![0; region.memory.len()];
    for (at, word) in all.chunks_mut(8).enumerate() {
        let mixed = ((8 * at as u64) ^ seed.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word.copy_from_slice(&mixed.to_le_bytes()[..word.len()]);
    }
    region.memory.write(0, &all).map_err(broke)
}

/// A short payload's mark is the value's low bytes: 4 of them, or as many as there are below 4.
fn mark_bytes(bytes: u32) -> usize {
    match bytes {
        8.. => 8,
        4..8 => 4,
        _ => bytes as usize,
    }
}

fn has_mark(memory: &[u8], offset: usize, bytes: u32, value: u64) -> bool {
    let taken = mark_bytes(bytes);
    memory[offset..offset + taken] == value.to_le_bytes()[..taken]
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdma::soft::{Fabric, FabricAttr};
    use rdma::{Access, Memory, Nic};

    #[test]
    fn a_missing_a_stale_a_misplaced_and_a_corrupted_payload_are_each_seen() {
        let fabric = Fabric::open(&FabricAttr::default()).unwrap();
        for bytes in [1, 3, 4, 7, 8, 12, 16, 100] {
            let slots = Slots::new(bytes, 4, 2);
            let regions =
                || fabric.nic(0).register(&Memory::zeroed(slots.length()), Access::all()).unwrap();
            let (origin, arrived) = (regions(), regions());
            let copy = |from: usize, to: usize| {
                let mut payload = vec![0u8; bytes as usize];
                origin.memory.read(from, &mut payload).unwrap();
                arrived.memory.write(to, &payload).unwrap();
            };
            let deliver = |thread, first, ops| {
                fill(&origin, 7).unwrap();
                slots.mark(&origin, thread..thread + 1, first - thread * ops, ops).unwrap();
                for i in slots.last_on_their_slots(ops) {
                    copy(slots.at(thread, i), slots.at(thread, i));
                }
            };
            let wrong = |first: u64| slots.wrong(&arrived, &origin, 1..2, first - 6, 6).unwrap();
            deliver(1, 100, 6);
            assert_eq!(wrong(100), 0, "{bytes} B");
            assert_eq!(wrong(106), 4, "stale, {bytes} B");
            copy(slots.at(1, 3), slots.at(1, 2));
            assert_eq!(wrong(100), 1, "misplaced, {bytes} B");
            deliver(1, 200, 6);
            let last = slots.at(1, 4) + bytes as usize - 1;
            let mut byte = [0u8];
            arrived.memory.read(last, &mut byte).unwrap();
            arrived.memory.write(last, &[byte[0] ^ 0x80]).unwrap();
            assert_eq!(wrong(200), 1, "corrupted, {bytes} B");
            slots.clear(&arrived).unwrap();
            assert_eq!(wrong(200), 4, "missing, {bytes} B");
        }
    }
}
