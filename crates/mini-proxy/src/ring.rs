//! The consumer's side of a ring: the only code here that touches words which producers touch too.
//!
//! Access goes through [`Words`], so that a model checker can stand under this very code as it does under the
//! producers' (`gic/atomics.hpp`).

use std::sync::Arc;
use std::sync::atomic::Ordering::{self, Acquire, Relaxed, Release};

use device::proxy::{Descriptor, Handoff, progress};
use rdma::Memory;

/// A ring's host memory, by byte offset.
pub trait Words {
    /// The 8 bytes at `at`.
    fn load(&self, at: usize, order: Ordering) -> u64;
    /// Stores 8 bytes.
    fn store(&self, at: usize, value: u64, order: Ordering);
    /// The 4 bytes at `at`.
    fn load_half(&self, at: usize, order: Ordering) -> u32;
    /// Stores 4 bytes.
    fn store_half(&self, at: usize, value: u32, order: Ordering);
}

impl Words for Arc<Memory> {
    #[inline]
    fn load(&self, at: usize, order: Ordering) -> u64 {
        self.word(at).load(order)
    }
    #[inline]
    fn store(&self, at: usize, value: u64, order: Ordering) {
        self.word(at).store(value, order);
    }
    #[inline]
    fn load_half(&self, at: usize, order: Ordering) -> u32 {
        self.half(at).load(order)
    }
    #[inline]
    fn store_half(&self, at: usize, value: u32, order: Ordering) {
        self.half(at).store(value, order);
    }
}

/// Where a ring's words lie in its host memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingLayout {
    /// 16-byte slots.
    pub slots: usize,
    /// 4-byte flags, one a slot.
    pub flags: usize,
    /// The counter that producers raise.
    pub counter: usize,
    /// `gic::RingProgress`.
    pub progress: usize,
    /// In all.
    pub bytes: usize,
}

impl RingLayout {
    /// Of a ring of 2^`log_depth` slots.
    #[must_use]
    pub fn of(log_depth: u32) -> Self {
        let depth = 1usize << log_depth;
        let slots = 0;
        let flags = (slots + 16 * depth).next_multiple_of(64);
        let counter = (flags + 4 * depth).next_multiple_of(64);
        let progress = counter + 64;
        Self { slots, flags, counter, progress, bytes: progress + progress::BYTES }
    }
}

/// Takes descriptors out of one ring and tells its producers how far things are. One thread at a time.
pub struct Consumer<W> {
    words: W,
    layout: RingLayout,
    handoff: Handoff,
    log_depth: u32,
    posted: u64,
    completed: u64,
    failed: bool,
}

impl<W: Words> Consumer<W> {
    /// A consumer of the ring in `words`, which is prepared for a first push at position `start`.
    pub fn new(words: W, handoff: Handoff, log_depth: u32, start: u64) -> Self {
        let layout = RingLayout::of(log_depth);
        let ring = Self {
            words,
            layout,
            handoff,
            log_depth,
            posted: start,
            completed: start,
            failed: false,
        };
        for at in start..start + (1 << log_depth) {
            // A slot that is still to be written carries the other lap's mark.
            let mark = match handoff {
                Handoff::LapParity => ring.mark(at) ^ Descriptor::MARK,
                _ => 0,
            };
            let slot = ring.slot(at);
            ring.words.store(slot, mark, Relaxed);
            ring.words.store(slot + 8, mark, Relaxed);
            ring.words.store_half(ring.flag(at), 0, Relaxed);
        }
        ring.words.store(layout.counter, start, Relaxed);
        ring.words.store(layout.progress + progress::POSTED, start, Relaxed);
        ring.words.store(layout.progress + progress::COMPLETED, start, Relaxed);
        ring.words.store(layout.progress + progress::FAILURE, 0, Release);
        ring
    }

    fn index(&self, at: u64) -> usize {
        at as usize & ((1 << self.log_depth) - 1)
    }

    fn slot(&self, at: u64) -> usize {
        self.layout.slots + 16 * self.index(at)
    }

    fn flag(&self, at: u64) -> usize {
        self.layout.flags + 4 * self.index(at)
    }

    /// The mark of a position's lap.
    fn mark(&self, at: u64) -> u64 {
        (!(at >> self.log_depth) & 1) << 63
    }

    /// The descriptor at position `at`, once all of it is there. Positions from `posted` on may be asked for,
    /// and are never given twice: a ring's depth ahead there is nothing new.
    #[inline]
    pub fn peek(&self, at: u64) -> Option<[u64; 2]> {
        // A slot that isn't released holds what was taken from it: where it is cleared on release it would
        // look new again.
        if at - self.posted > (1 << self.log_depth) - 1 {
            return None;
        }
        let slot = self.slot(at);
        match self.handoff {
            Handoff::LapParity | Handoff::NonzeroWord => {
                let due = if self.handoff == Handoff::LapParity {
                    self.mark(at)
                } else {
                    Descriptor::MARK
                };
                // descriptor before its use: each half tells by itself whether it has come.
                let low = self.words.load(slot, Acquire);
                if low & Descriptor::MARK != due {
                    return None;
                }
                let high = self.words.load(slot + 8, Acquire);
                (high & Descriptor::MARK == due).then_some([low, high])
            }
            Handoff::ValidByte => (self.words.load_half(self.flag(at), Acquire) != 0)
                .then(|| [self.words.load(slot, Relaxed), self.words.load(slot + 8, Relaxed)]),
            Handoff::ProducerCounter | Handoff::MappedCounter => None,
        }
    }

    /// How far producers have raised the counter.
    #[must_use]
    pub fn counter(&self) -> u64 {
        self.words.load(self.layout.counter, Acquire)
    }

    /// First position whose slot isn't released.
    #[must_use]
    pub fn posted(&self) -> u64 {
        self.posted
    }

    /// First position that isn't told to be completed.
    #[must_use]
    pub fn completed(&self) -> u64 {
        self.completed
    }

    /// Releases the slots of positions before `to`.
    pub fn release(&mut self, to: u64) {
        if to == self.posted {
            return;
        }
        for at in self.posted..to {
            match self.handoff {
                Handoff::NonzeroWord => {
                    self.words.store(self.slot(at), 0, Relaxed);
                    self.words.store(self.slot(at) + 8, 0, Relaxed);
                }
                Handoff::ValidByte => self.words.store_half(self.flag(at), 0, Relaxed),
                _ => break,
            }
        }
        self.posted = to;
        // slot taken before slot reused: a producer writes a slot after it has seen this.
        self.words.store(self.layout.progress + progress::POSTED, to, Release);
    }

    /// Tells that all operations before `to` are done.
    pub fn complete(&mut self, to: u64) {
        if to != self.completed {
            self.completed = to;
            // completion before use: what the operations left is there before.
            self.words.store(self.layout.progress + progress::COMPLETED, to, Release);
        }
    }

    /// Whether a failure was told.
    #[must_use]
    pub fn is_failed(&self) -> bool {
        self.failed
    }

    /// Tells a failure, unless one was told before.
    pub fn fail(&mut self, word: u64) {
        if !self.failed {
            self.failed = true;
            self.words.store(self.layout.progress + progress::FAILURE, word, Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: u32 = 2;
    const DEPTH: u64 = 1 << LOG;

    /// As a producer's stores would leave the slot of position `at`.
    fn push(memory: &Arc<Memory>, handoff: Handoff, at: u64) {
        let mark = match handoff {
            Handoff::LapParity => (!(at >> LOG) & 1) << 63,
            Handoff::NonzeroWord => Descriptor::MARK,
            _ => 0,
        };
        let slot = 16 * (at % DEPTH) as usize;
        memory.word(slot).store(at | mark, Release);
        memory.word(slot + 8).store(at | mark, Release);
        memory.half(RingLayout::of(LOG).flags + 4 * (at % DEPTH) as usize).store(1, Release);
    }

    #[test]
    fn a_descriptor_is_given_until_it_is_released_and_never_as_another() {
        for handoff in [Handoff::LapParity, Handoff::NonzeroWord, Handoff::ValidByte] {
            for start in [0, DEPTH, (1 << 16) - 3, (1 << 32) - 3] {
                let memory = Memory::zeroed(RingLayout::of(LOG).bytes);
                let mut ring = Consumer::new(Arc::clone(&memory), handoff, LOG, start);
                for first in (start..start + 5 * DEPTH).step_by(DEPTH as usize) {
                    for at in first..first + DEPTH {
                        assert_eq!(ring.peek(at), None, "{handoff} {at}");
                        push(&memory, handoff, at);
                    }
                    // All taken, none posted: what a slot holds is not its next position's.
                    for at in first..first + DEPTH {
                        let [low, high] = ring.peek(at).unwrap();
                        let is_mine = |word| word & !Descriptor::MARK == at;
                        assert!(is_mine(low) && is_mine(high), "{handoff} {at}");
                        assert_eq!(ring.peek(at + DEPTH), None, "{handoff} {at}");
                    }
                    ring.release(first + DEPTH);
                }
            }
        }
    }

    #[test]
    fn half_a_descriptor_is_none() {
        for handoff in [Handoff::LapParity, Handoff::NonzeroWord] {
            for late in [0, 8] {
                let memory = Memory::zeroed(RingLayout::of(LOG).bytes);
                let ring = Consumer::new(Arc::clone(&memory), handoff, LOG, 0);
                let before = memory.word(late).load(Relaxed);
                push(&memory, handoff, 0);
                let whole = memory.word(late).swap(before, Relaxed);
                assert_eq!(ring.peek(0), None, "{handoff}: word at {late} late");
                memory.word(late).store(whole, Release);
                assert!(ring.peek(0).is_some(), "{handoff}");
            }
        }
    }

    #[test]
    fn the_first_failure_stays() {
        let memory = Memory::zeroed(RingLayout::of(LOG).bytes);
        let mut ring = Consumer::new(Arc::clone(&memory), Handoff::LapParity, LOG, 7);
        ring.fail(3);
        ring.fail(4);
        let at = RingLayout::of(LOG).progress + progress::FAILURE;
        assert_eq!((ring.is_failed(), memory.word(at).load(Relaxed)), (true, 3));
    }
}
