//! Links between NICs: two lanes a direction, so that requests that wait for room never hold up responses.
//!
//! A lane is a single-producer single-consumer ring of bytes; records are 8-byte aligned and never wrap.

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::packet::Header;
use crate::profile::Profile;

const HEADER: usize = size_of::<Header>();
/// `Header::size` of a record that only fills the ring's end.
const PAD: u32 = u32::MAX;

#[repr(align(64))]
struct Line(AtomicU64);

/// One word of a lane's memory; who may touch it is decided by the ring's two counters.
#[repr(transparent)]
struct Cell(UnsafeCell<u64>);

struct Ring {
    words: Box<[Cell]>,
    /// Bytes consumed, ever.
    head: Line,
    /// Bytes produced, ever.
    tail: Line,
}

// SAFETY: bytes in [head, tail) belong to the consumer, all others to the producer; each side moves its own
// counter with release and reads the other's with acquire, and there is one of each (`Sender` and `Receiver`
// aren't Clone).
unsafe impl Sync for Ring {}
// SAFETY: plain memory and counters.
unsafe impl Send for Ring {}

impl Ring {
    fn bytes(&self) -> usize {
        self.words.len() * 8
    }
    fn at(&self, position: u64) -> *mut u8 {
        let offset = position as usize & (self.bytes() - 1);
        // `UnsafeCell<u64>` in a transparent wrapper: the slice's pointer may be used for all of it.
        self.words.as_ptr().cast::<u8>().cast_mut().wrapping_add(offset)
    }
}

pub(crate) struct Sender {
    ring: Arc<Ring>,
    tail: u64,
    head: u64,
}

pub(crate) struct Receiver {
    ring: Arc<Ring>,
    head: u64,
    tail: u64,
    /// The size of the record that `peek` showed.
    record: u64,
}

fn lane(log_bytes: u32) -> (Sender, Receiver) {
    let words = (0..(1usize << log_bytes) / 8).map(|_| Cell(UnsafeCell::new(0))).collect();
    let ring =
        Arc::new(Ring { words, head: Line(AtomicU64::new(0)), tail: Line(AtomicU64::new(0)) });
    (
        Sender { ring: Arc::clone(&ring), tail: 0, head: 0 },
        Receiver { ring, head: 0, tail: 0, record: 0 },
    )
}

impl Sender {
    /// `size` contiguous bytes at the lane's end, or `None` when it is full.
    #[inline]
    fn reserve(&mut self, size: u64) -> Option<*mut u8> {
        let capacity = self.ring.bytes() as u64;
        let to_end = capacity - (self.tail & (capacity - 1));
        let pad = if to_end < size { to_end } else { 0 };
        if self.tail + pad + size - self.head > capacity {
            self.head = self.ring.head.0.load(Ordering::Acquire);
            if self.tail + pad + size - self.head > capacity {
                return None;
            }
        }
        if pad != 0 {
            // SAFETY: at least 8 bytes (records are 8-byte aligned) that belong to the producer.
            unsafe { self.ring.at(self.tail).cast::<u32>().write(PAD) };
            self.tail += pad;
        }
        let at = self.ring.at(self.tail);
        self.tail += size;
        Some(at)
    }

    /// Room for a header and `payload` bytes: writes the header, and gives the payload's place to be filled.
    /// `None` when the lane is full.
    #[inline]
    pub(crate) fn push(&mut self, mut header: Header, payload: usize) -> Option<&mut [u8]> {
        let size = (HEADER + payload).next_multiple_of(8);
        header.size = size as u32;
        header.len = payload as u32;
        let at = self.reserve(size as u64)?;
        // SAFETY: `size` contiguous bytes from `at` belong to the producer until `publish`; the place is
        // 8-byte aligned, as the header wants.
        unsafe {
            at.cast::<Header>().write(header);
            Some(std::slice::from_raw_parts_mut(at.add(HEADER), payload))
        }
    }

    /// As [`push`](Self::push), with a payload of at most 32 bytes that is at hand. False when the lane is full.
    #[inline]
    pub(crate) fn push_words(&mut self, mut header: Header, len: u32, words: &[u64; 4]) -> bool {
        let count = (len as usize).div_ceil(8).min(words.len());
        let size = HEADER + count * 8;
        header.size = size as u32;
        header.len = len.min(32);
        let Some(at) = self.reserve(size as u64) else { return false };
        // SAFETY: `size` contiguous, 8-byte aligned bytes from `at` belong to the producer until `publish`.
        unsafe {
            at.cast::<Header>().write(header);
            let payload = at.add(HEADER).cast::<u64>();
            for (i, word) in words.iter().enumerate().take(count) {
                payload.add(i).write(*word);
            }
        }
        true
    }

    /// Starts again at the lane's beginning if it is empty and well advanced, so that light traffic stays in a
    /// few cache lines. To be called between a `publish` and the next `push`.
    #[inline]
    pub(crate) fn rewind(&mut self) {
        const HOT: u64 = 8 << 10;
        let capacity = self.ring.bytes() as u64;
        let position = self.tail & (capacity - 1);
        if position >= HOT {
            self.head = self.ring.head.0.load(Ordering::Acquire);
            if self.head == self.tail {
                // SAFETY: at least 8 bytes (records are 8-byte aligned) that belong to the producer.
                unsafe { self.ring.at(self.tail).cast::<u32>().write(PAD) };
                self.tail += capacity - position;
            }
        }
    }

    /// Where the next record goes, for [`rollback`](Self::rollback).
    #[inline]
    pub(crate) fn mark(&self) -> u64 {
        self.tail
    }

    /// Takes back what was pushed since `mark` and not published.
    pub(crate) fn rollback(&mut self, mark: u64) {
        self.tail = mark;
    }

    /// Hands what was pushed to the receiver.
    #[inline]
    pub(crate) fn publish(&self) {
        self.ring.tail.0.store(self.tail, Ordering::Release);
    }
}

impl Receiver {
    /// The oldest record, if there is one.
    #[inline]
    pub(crate) fn peek(&mut self) -> Option<(&Header, &[u8])> {
        loop {
            if self.head == self.tail {
                self.tail = self.ring.tail.0.load(Ordering::Acquire);
                if self.head == self.tail {
                    return None;
                }
            }
            let at = self.ring.at(self.head);
            // SAFETY: bytes in [head, tail) belong to the consumer; a record has at least 8 of them.
            if unsafe { at.cast::<u32>().read() } == PAD {
                let capacity = self.ring.bytes() as u64;
                self.head += capacity - (self.head & (capacity - 1));
                continue;
            }
            // SAFETY: the producer wrote a whole header and its payload, contiguously and 8-byte aligned,
            // before it moved `tail`, and touches neither before `release`; the borrow of `self` forbids that.
            let header = unsafe { &*at.cast::<Header>() };
            self.record = u64::from(header.size);
            // SAFETY: as above.
            let payload =
                unsafe { std::slice::from_raw_parts(at.add(HEADER), header.len as usize) };
            return Some((header, payload));
        }
    }

    /// Done with the record that `peek` showed.
    #[inline]
    pub(crate) fn pop(&mut self) {
        self.head += self.record;
        self.record = 0;
    }

    /// Gives the room of what was popped back to the sender.
    #[inline]
    pub(crate) fn release(&self) {
        self.ring.head.0.store(self.head, Ordering::Release);
    }
}

/// A NIC's end of a link.
pub struct LinkEnd {
    pub(crate) remote: u16,
    pub(crate) tx_requests: Sender,
    pub(crate) tx_responses: Sender,
    pub(crate) rx_requests: Receiver,
    pub(crate) rx_responses: Receiver,
    /// When the sender's port is free again, in picoseconds.
    pub(crate) free_ps: u64,
}

impl LinkEnd {
    /// When a packet of `bytes` that is ready at `ready_ps` arrives, in nanoseconds.
    pub(crate) fn arrival(&mut self, profile: &Profile, ready_ps: u64, bytes: usize) -> u64 {
        let start = self.free_ps.max(ready_ps);
        self.free_ps = start.saturating_add(profile.byte_ps.saturating_mul(bytes as u64));
        (self.free_ps / 1000).saturating_add(profile.latency_ns)
    }
}

/// What a link is made of.
#[derive(Clone, Copy, Debug)]
pub struct LinkAttr {
    /// log2 of a lane's bytes, 14 to 30. A lane holds at least one packet of the largest MTU.
    pub log_lane_bytes: u32,
}

impl Default for LinkAttr {
    fn default() -> Self {
        Self { log_lane_bytes: 17 }
    }
}

/// Links NIC `a` and NIC `b`: the first end is for `a`, the second for `b`.
#[must_use]
pub fn link(a: u16, b: u16, attr: LinkAttr) -> (LinkEnd, LinkEnd) {
    let log = attr.log_lane_bytes.clamp(14, 30);
    let (a_requests, b_rx_requests) = lane(log);
    let (a_responses, b_rx_responses) = lane(log);
    let (b_requests, a_rx_requests) = lane(log);
    let (b_responses, a_rx_responses) = lane(log);
    (
        LinkEnd {
            remote: b,
            tx_requests: a_requests,
            tx_responses: a_responses,
            rx_requests: a_rx_requests,
            rx_responses: a_rx_responses,
            free_ps: 0,
        },
        LinkEnd {
            remote: a,
            tx_requests: b_requests,
            tx_responses: b_responses,
            rx_requests: b_rx_requests,
            rx_responses: b_rx_responses,
            free_ps: 0,
        },
    )
}

/// A NIC's link to itself.
pub(crate) fn loopback(id: u16) -> LinkEnd {
    let log = LinkAttr::default().log_lane_bytes;
    let (tx_requests, rx_requests) = lane(log);
    let (tx_responses, rx_responses) = lane(log);
    LinkEnd { remote: id, tx_requests, tx_responses, rx_requests, rx_responses, free_ps: 0 }
}

const _: () = assert!(HEADER == 56 && align_of::<Header>() == 8);
