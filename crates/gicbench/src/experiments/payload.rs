//! Payloads that can be checked: every operation's carries a value that no other has, in its first 8 bytes and
//! again in its last whole 8, and bytes that tell their place between.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rdma::{Memory, Region};

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
}

impl Slots {
    /// At most `wanted` slots a thread, as far as the memory meant for them goes.
    pub fn new(bytes: u32, wanted: u64, threads: u32) -> Self {
        let stride = u64::from(bytes).next_multiple_of(8);
        let threads = u64::from(threads);
        Slots { bytes, slots: wanted.min(MOST / stride / threads).max(1), stride, threads }
    }

    /// Memory for all of them.
    pub fn memory(&self) -> Arc<Memory> {
        Memory::zeroed((self.stride * self.slots * self.threads) as usize)
    }

    /// Counts slots of `arrived` that don't hold what the last of `ops` operations on them carried from
    /// `origin`, marks and all other bytes. Operation 0 carries the value `first`.
    pub fn wrong(
        &self,
        arrived: &Region,
        origin: &Region,
        thread: u64,
        first: u64,
        ops: u64,
    ) -> u64 {
        let bytes = self.bytes as usize;
        let (mut here, mut there) = (vec![0u8; bytes], vec![0u8; bytes]);
        let mut wrong = 0;
        for i in self.last_on_their_slots(ops) {
            let marked = self
                .marks(thread, i)
                .all(|offset| has_mark(&arrived.memory, offset, self.bytes, first + i));
            // The mark of 8 bytes is all of it, and was never in the source where the WQE carries the value.
            let at = self.at(thread, i);
            let same = bytes == 8
                || (origin.memory.read(at, &mut here).is_ok()
                    && arrived.memory.read(at, &mut there).is_ok()
                    && here == there);
            wrong += u64::from(!(marked && same));
        }
        wrong
    }

    /// Writes the marks that `ops` operations would leave.
    pub fn mark(&self, region: &Region, thread: u64, first: u64, ops: u64) {
        for i in self.last_on_their_slots(ops) {
            for offset in self.marks(thread, i) {
                let taken = mark_bytes(self.bytes);
                // In bounds: the region was made for these slots.
                let _ = region.memory.write(offset, &(first + i).to_le_bytes()[..taken]);
            }
        }
    }

    /// Leaves nothing in a region that could pass for a payload.
    pub fn clear(&self, region: &Region) {
        for at in (0..region.memory.len() / 8 * 8).step_by(8) {
            region.memory.word(at).store(0, Ordering::Relaxed);
        }
    }

    fn last_on_their_slots(&self, ops: u64) -> impl Iterator<Item = u64> + use<> {
        ops.saturating_sub(self.slots)..ops
    }

    fn at(&self, thread: u64, i: u64) -> usize {
        ((thread * self.slots + i % self.slots) * self.stride) as usize
    }

    fn marks(&self, thread: u64, i: u64) -> impl Iterator<Item = usize> + use<> {
        let at = self.at(thread, i);
        let bytes = self.bytes as usize;
        let last = (bytes >= 16).then(|| at + (bytes / 8 - 1) * 8);
        std::iter::once(at).chain(last)
    }
}

/// Fills a region with bytes that tell their place, so that a shifted payload is seen.
pub(super) fn fill(memory: &Arc<Memory>, seed: u64) {
    for at in (0..memory.len() / 8 * 8).step_by(8) {
        let mixed = (at as u64 ^ seed.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        memory.word(at).store(mixed, Ordering::Relaxed);
    }
}

/// A short payload's mark is the value's low bytes: 4 of them, or as many as there are below 4.
fn mark_bytes(bytes: u32) -> usize {
    match bytes {
        8.. => 8,
        4..8 => 4,
        _ => bytes as usize,
    }
}

fn has_mark(memory: &Arc<Memory>, offset: usize, bytes: u32, value: u64) -> bool {
    let taken = mark_bytes(bytes);
    let mut seen = [0u8; 8];
    memory.read(offset, &mut seen[..taken]).is_ok() && seen[..taken] == value.to_le_bytes()[..taken]
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdma::soft::{Fabric, FabricAttr};
    use rdma::{Access, Nic};

    #[test]
    fn a_missing_a_stale_a_misplaced_and_a_corrupted_payload_are_each_seen() {
        let fabric = Fabric::open(&FabricAttr::default()).unwrap();
        for bytes in [1, 3, 4, 7, 8, 12, 16, 100] {
            let slots = Slots::new(bytes, 4, 2);
            let regions = || fabric.nic(0).register(&slots.memory(), Access::all()).unwrap();
            let (origin, arrived) = (regions(), regions());
            let copy = |from: usize, to: usize| {
                let mut payload = vec![0u8; bytes as usize];
                origin.memory.read(from, &mut payload).unwrap();
                arrived.memory.write(to, &payload).unwrap();
            };
            let deliver = |thread, first, ops| {
                fill(&origin.memory, 7);
                slots.mark(&origin, thread, first, ops);
                for i in slots.last_on_their_slots(ops) {
                    copy(slots.at(thread, i), slots.at(thread, i));
                }
            };
            deliver(1, 100, 6);
            assert_eq!(slots.wrong(&arrived, &origin, 1, 100, 6), 0, "{bytes} B");
            assert_eq!(slots.wrong(&arrived, &origin, 1, 106, 6), 4, "stale, {bytes} B");
            copy(slots.at(1, 3), slots.at(1, 2));
            assert_eq!(slots.wrong(&arrived, &origin, 1, 100, 6), 1, "misplaced, {bytes} B");
            deliver(1, 200, 6);
            let last = slots.at(1, 4) + bytes as usize - 1;
            let mut byte = [0u8];
            arrived.memory.read(last, &mut byte).unwrap();
            arrived.memory.write(last, &[byte[0] ^ 0x80]).unwrap();
            assert_eq!(slots.wrong(&arrived, &origin, 1, 200, 6), 1, "corrupted, {bytes} B");
            slots.clear(&arrived);
            assert_eq!(slots.wrong(&arrived, &origin, 1, 200, 6), 4, "missing, {bytes} B");
        }
    }
}
