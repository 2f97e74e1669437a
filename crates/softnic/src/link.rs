//! Links between NICs: two lanes a direction, so that requests that wait for room never hold up responses.
//!
//! A lane is a single-producer single-consumer ring of bytes. Records are whole cache lines and never wrap.

use std::any::Any;
use std::cell::UnsafeCell;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::packet::{Header, Line};
use crate::profile::Profile;

const HEADER: usize = size_of::<Header>();
pub(crate) const LINE: usize = size_of::<Line>();
/// `Header::size` of a record that only fills the ring's end.
const PAD: u32 = u32::MAX;

#[repr(C, align(64))]
struct Counter(AtomicU64);

/// One line of a lane's memory; who may touch it is decided by the ring's two counters.
#[repr(C, align(64))]
struct Cell(UnsafeCell<Line>);

/// A ring of this process's own memory.
struct Own {
    lines: Box<[Cell]>,
    /// Bytes consumed, and bytes produced, ever.
    counters: [Counter; 2],
}

// SAFETY: as of `Ring`, the only way to it.
unsafe impl Sync for Own {}
// SAFETY: plain memory and counters.
unsafe impl Send for Own {}

struct Ring {
    /// `bytes`, a power of two, of lines.
    lines: NonNull<u8>,
    bytes: u64,
    /// Bytes consumed, ever.
    head: NonNull<Counter>,
    /// Bytes produced, ever.
    tail: NonNull<Counter>,
    /// All of the above lives as long as this.
    _keep: Arc<dyn Any + Send + Sync>,
}

// SAFETY: bytes in [head, tail) belong to the consumer, all others to the producer; each side moves its own
// counter with release and reads the other's with acquire, and there is one of each (`Sender` and `Receiver`
// aren't Clone).
unsafe impl Sync for Ring {}
// SAFETY: plain memory and counters.
unsafe impl Send for Ring {}

impl Ring {
    fn own(log_bytes: u32) -> Self {
        let lines: Box<[Cell]> =
            (0..(1usize << log_bytes) / LINE).map(|_| Cell(UnsafeCell::new([0; 8]))).collect();
        let counters = [Counter(AtomicU64::new(0)), Counter(AtomicU64::new(0))];
        let own = Arc::new(Own { lines, counters });
        Self {
            lines: NonNull::from(&*own.lines).cast(),
            bytes: (own.lines.len() * LINE) as u64,
            head: NonNull::from(&own.counters[0]),
            tail: NonNull::from(&own.counters[1]),
            _keep: own,
        }
    }

    /// The lane at `base`: two counters, a line each, and 2^`log_bytes` bytes of lines.
    ///
    /// # Safety
    /// `base` is aligned to lines; the lane's bytes are readable and writable as long as `keep` lives.
    unsafe fn shared(base: NonNull<u8>, log_bytes: u32, keep: Arc<dyn Any + Send + Sync>) -> Self {
        Self {
            // SAFETY: inside of the lane, by the contract; the same of the counters.
            lines: unsafe { base.add(2 * LINE) },
            bytes: 1 << log_bytes,
            head: base.cast(),
            // SAFETY: as above.
            tail: unsafe { base.add(LINE) }.cast(),
            _keep: keep,
        }
    }

    #[inline]
    fn head(&self) -> &AtomicU64 {
        // SAFETY: alive as long as the ring, and atomic.
        unsafe { &self.head.as_ref().0 }
    }
    #[inline]
    fn tail(&self) -> &AtomicU64 {
        // SAFETY: as above.
        unsafe { &self.tail.as_ref().0 }
    }
}

/// A ring's memory, as one of its ends reaches it.
struct View {
    /// The first of `mask + 1` bytes, a power of two, of a ring that lives as long as the end that has the view.
    base: NonNull<u8>,
    mask: u64,
}

// SAFETY: a view is used by one end of a ring, under the ring's rules.
unsafe impl Send for View {}

impl View {
    fn of(ring: &Ring) -> Self {
        Self { base: ring.lines, mask: ring.bytes - 1 }
    }
    #[inline]
    fn capacity(&self) -> u64 {
        self.mask + 1
    }
    #[inline]
    fn at(&self, position: u64) -> *mut u8 {
        self.base.as_ptr().wrapping_add((position & self.mask) as usize)
    }
    #[inline]
    fn to_end(&self, position: u64) -> u64 {
        self.capacity() - (position & self.mask)
    }
}

pub(crate) struct Sender {
    ring: Arc<Ring>,
    view: View,
    tail: u64,
    head: u64,
    /// Nobody receives: what is sent is lost, and takes no room.
    dead: bool,
}

pub(crate) struct Receiver {
    ring: Arc<Ring>,
    view: View,
    head: u64,
    tail: u64,
    /// The size of the record that `peek` showed.
    record: u64,
    /// What comes in is seen by [`look`](Self::look) alone.
    patient: bool,
}

fn lane(log_bytes: u32) -> (Sender, Receiver) {
    let ring = Arc::new(Ring::own(log_bytes));
    (Sender::new(Arc::clone(&ring)), Receiver::new(ring))
}

impl Sender {
    fn new(ring: Arc<Ring>) -> Self {
        let view = View::of(&ring);
        Self { ring, view, tail: 0, head: 0, dead: false }
    }
}

impl Receiver {
    fn new(ring: Arc<Ring>) -> Self {
        let view = View::of(&ring);
        Self { ring, view, head: 0, tail: 0, record: 0, patient: false }
    }
}

impl Sender {
    /// Looks at what the receiver has consumed.
    fn refresh(&mut self) {
        let head = if self.dead { self.tail } else { self.ring.head().load(Ordering::Acquire) };
        // The receiver may be another process: a counter that can't be is none.
        if self.tail.wrapping_sub(head) <= self.view.capacity() {
            self.head = head;
        }
    }

    /// Whether `size` more bytes fit.
    #[inline]
    fn fits(&mut self, size: u64) -> bool {
        if self.tail + size - self.head > self.view.capacity() {
            self.refresh();
        }
        self.tail + size - self.head <= self.view.capacity()
    }

    /// `size` contiguous bytes, whole lines, at the lane's end, or `None` when it is full.
    #[inline]
    fn reserve(&mut self, size: u64) -> Option<*mut u8> {
        let to_end = self.view.to_end(self.tail);
        let pad = if to_end < size { to_end } else { 0 };
        if !self.fits(pad + size) {
            return None;
        }
        if pad != 0 {
            self.fill(pad);
        }
        let at = self.view.at(self.tail);
        self.tail += size;
        Some(at)
    }

    /// Skips what is left of the ring, `pad` bytes.
    fn fill(&mut self, pad: u64) {
        // SAFETY: at least one line that belongs to the producer.
        unsafe { self.view.at(self.tail).cast::<u32>().write(PAD) };
        self.tail += pad;
    }

    /// Room for a header and `payload` bytes: writes the header, and gives the payload's place to be filled.
    /// `None` when the lane is full.
    #[inline]
    pub(crate) fn push(&mut self, mut header: Header, payload: usize) -> Option<&mut [u8]> {
        let size = (HEADER + payload).next_multiple_of(LINE);
        header.size = size as u32;
        header.len = payload as u32;
        let at = self.reserve(size as u64)?;
        // SAFETY: `size` contiguous bytes from `at` belong to the producer until `publish`; the place is
        // aligned to a line.
        unsafe {
            at.cast::<Header>().write(header);
            Some(std::slice::from_raw_parts_mut(at.add(HEADER), payload))
        }
    }

    /// As [`push`](Self::push), with a payload of `len` bytes, at most 32, at hand. False when the lane is full.
    #[inline]
    pub(crate) fn push_small(&mut self, mut header: Header, len: u32, payload: &[u64; 4]) -> bool {
        let lines = if len <= 8 { 1 } else { 2 };
        header.size = (lines * LINE) as u32;
        header.len = len.min(size_of_val(payload) as u32);
        let Some(at) = self.reserve((lines * LINE) as u64) else { return false };
        // SAFETY: one line, or two, that belong to the producer until `publish`, aligned to a line.
        unsafe {
            at.cast::<Header>().write(header);
            let place = at.add(HEADER).cast::<u64>();
            if lines == 1 {
                place.write(payload[0]);
            } else {
                place.cast::<[u64; 4]>().write(*payload);
            }
        }
        true
    }

    /// The free lines, at most `most`, up to the ring's end: for records of one line each.
    #[inline]
    pub(crate) fn room(&mut self, most: usize) -> &mut [Line] {
        let wanted = (most as u64).saturating_mul(LINE as u64).min(self.view.to_end(self.tail));
        if !self.fits(wanted) {
            self.refresh();
        }
        let free = wanted.min(self.view.capacity() - (self.tail - self.head));
        // SAFETY: lines that belong to the producer until `publish`, initialised from the start.
        unsafe {
            let at = self.view.at(self.tail).cast::<Line>();
            std::slice::from_raw_parts_mut(at, free as usize / LINE)
        }
    }

    /// Takes the first `lines` of [`room`](Self::room), which hold records now.
    #[inline]
    pub(crate) fn pushed(&mut self, lines: usize) {
        self.tail += (lines * LINE) as u64;
    }

    /// Starts again at the lane's beginning if it is empty and well advanced, so that light traffic stays in a
    /// few cache lines. To be called between a `publish` and the next `push`.
    #[inline]
    pub(crate) fn rewind(&mut self) {
        const HOT: u64 = 8 << 10;
        if self.tail & self.view.mask >= HOT {
            self.refresh();
            if self.head == self.tail {
                self.fill(self.view.to_end(self.tail));
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
        self.ring.tail().store(self.tail, Ordering::Release);
    }
}

impl Receiver {
    /// Looks at what the sender has produced, unless that has its time.
    #[inline]
    fn refresh(&mut self) {
        if !self.patient {
            self.read_tail();
        }
    }

    /// Looks at what the sender has produced: what it produces later isn't seen before the next look.
    #[inline]
    pub(crate) fn look(&mut self) {
        self.patient = true;
        self.read_tail();
    }

    #[inline]
    fn read_tail(&mut self) {
        let tail = self.ring.tail().load(Ordering::Acquire);
        // The sender may be another process: a counter that can't be is none.
        if tail.wrapping_sub(self.head) <= self.view.capacity() && tail.is_multiple_of(LINE as u64)
        {
            self.tail = tail;
        }
    }

    /// The oldest record, if there is one.
    #[inline(always)]
    pub(crate) fn peek(&mut self) -> Option<(&Header, &[u8])> {
        loop {
            if self.head == self.tail {
                self.refresh();
                if self.head == self.tail {
                    return None;
                }
            }
            let at = self.view.at(self.head);
            // SAFETY: bytes in [head, tail) belong to the consumer; a record has at least a line of them.
            if unsafe { at.cast::<u32>().read() } == PAD {
                self.head += self.view.to_end(self.head);
                continue;
            }
            // SAFETY: the producer wrote a whole header and its payload, contiguously and aligned to a line,
            // before it moved `tail`, and touches neither before `release`; the borrow of `self` forbids that.
            let header = unsafe { &*at.cast::<Header>() };
            self.record = u64::from(header.size);
            // The producer may be another process: a record that can't be ends the lane.
            let room = (self.tail - self.head).min(self.view.to_end(self.head));
            if self.record < HEADER as u64 + u64::from(header.len)
                || self.record > room
                || !self.record.is_multiple_of(LINE as u64)
            {
                self.head = self.tail;
                self.record = 0;
                return None;
            }
            // SAFETY: as above.
            let payload =
                unsafe { std::slice::from_raw_parts(at.add(HEADER), header.len as usize) };
            return Some((header, payload));
        }
    }

    /// The lines from the oldest record up to the ring's end. Lines behind a record's first may be its
    /// payload: only a reader that knows each record to be of one line may go on to the next.
    #[inline]
    pub(crate) fn lines(&mut self) -> &[Line] {
        if self.head == self.tail {
            self.refresh();
        }
        let bytes = (self.tail - self.head).min(self.view.to_end(self.head));
        // SAFETY: bytes in [head, tail) belong to the consumer until `release`; lines are initialised from the
        // start.
        unsafe {
            let at = self.view.at(self.head).cast::<Line>();
            std::slice::from_raw_parts(at, bytes as usize / LINE)
        }
    }

    /// Done with the first `lines` of [`lines`](Self::lines).
    #[inline]
    pub(crate) fn took(&mut self, lines: usize) {
        self.head += (lines * LINE) as u64;
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
        self.ring.head().store(self.head, Ordering::Release);
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

/// Bytes of memory that a link between two processes takes.
#[must_use]
pub const fn shared_link_bytes(attr: LinkAttr) -> usize {
    4 * shared_lane_bytes(attr)
}

const fn shared_lane_bytes(attr: LinkAttr) -> usize {
    (1 << attr.log_lane_bytes) + 2 * LINE
}

/// One end of a link whose lanes lie in memory that two processes share: zero bytes at first, `shared_link_bytes`
/// of them at `base`. One process takes the end with `first`, the other the one without; each end is taken once.
///
/// # Safety
/// `base` is aligned to 64 bytes, and the bytes stay readable and writable as long as `keep` lives. The other process
/// keeps to the lanes' rules: it is of the same user and runs this same code.
#[must_use]
pub unsafe fn shared_link(
    remote: u16,
    first: bool,
    base: NonNull<u8>,
    attr: LinkAttr,
    keep: &Arc<dyn Any + Send + Sync>,
) -> LinkEnd {
    let lane = |nth: usize| {
        // SAFETY: the nth of four lanes, by the contract.
        let at = unsafe { base.add(nth * shared_lane_bytes(attr)) };
        // SAFETY: as above.
        Arc::new(unsafe { Ring::shared(at, attr.log_lane_bytes, Arc::clone(keep)) })
    };
    let (sends, receives) = if first { (0, 2) } else { (2, 0) };
    LinkEnd {
        remote,
        tx_requests: Sender::new(lane(sends)),
        tx_responses: Sender::new(lane(sends + 1)),
        rx_requests: Receiver::new(lane(receives)),
        rx_responses: Receiver::new(lane(receives + 1)),
        free_ps: 0,
    }
}

impl LinkEnd {
    /// A link that leads nowhere: what is sent is lost.
    #[must_use]
    pub fn nowhere(remote: u16) -> Self {
        let (mut end, _) = link(remote, remote, LinkAttr { log_lane_bytes: 14 });
        end.remote = remote;
        end.cut();
        end
    }

    /// The other end is gone: what is sent from now on is lost. What has come may still be taken.
    pub(crate) fn cut(&mut self) {
        self.tx_requests.dead = true;
        self.tx_responses.dead = true;
    }
}

/// A NIC's link to itself.
pub(crate) fn loopback(id: u16) -> LinkEnd {
    let log = LinkAttr::default().log_lane_bytes;
    let (tx_requests, rx_requests) = lane(log);
    let (tx_responses, rx_responses) = lane(log);
    LinkEnd { remote: id, tx_requests, tx_responses, rx_requests, rx_responses, free_ps: 0 }
}

const _: () = assert!(HEADER + 8 == LINE && align_of::<Header>() == 8);

#[cfg(test)]
mod tests {
    use super::*;

    fn header(psn: u32) -> Header {
        Header { psn, ..Header::default() }
    }

    /// Takes the oldest record: its number and payload.
    fn take(lane: &mut Receiver) -> Option<(u32, Vec<u8>)> {
        let (header, payload) = lane.peek()?;
        let taken = (header.psn, payload.to_vec());
        lane.pop();
        lane.release();
        Some(taken)
    }

    #[test]
    fn records_of_every_size_come_out_as_they_went_in_across_the_rings_end() {
        let (mut sender, mut receiver) = lane(14);
        let records = if cfg!(miri) { 100 } else { 3_000u32 };
        let mut taken = 0;
        for nth in 0..records {
            let payload: Vec<u8> = (0..nth * 37 % 1_500).map(|i| (i + nth) as u8).collect();
            while sender
                .push(header(nth), payload.len())
                .map(|p| p.copy_from_slice(&payload))
                .is_none()
            {
                // Full: the oldest makes room.
                sender.publish();
                let (psn, bytes) = take(&mut receiver).unwrap();
                assert_eq!((psn, bytes.len() as u32), (taken, taken * 37 % 1_500));
                assert!(bytes.iter().enumerate().all(|(i, &b)| b == (i as u32 + taken) as u8));
                taken += 1;
            }
        }
        sender.publish();
        while let Some((psn, _)) = take(&mut receiver) {
            assert_eq!(psn, taken);
            taken += 1;
        }
        assert_eq!(taken, records);
    }

    #[test]
    fn nothing_is_seen_before_it_is_published_nor_after_it_is_taken_back() {
        let (mut sender, mut receiver) = lane(14);
        assert!(sender.push(header(1), 3).is_some());
        assert!(receiver.peek().is_none());
        let mark = sender.mark();
        assert!(sender.push(header(2), 100).is_some());
        sender.rollback(mark);
        sender.publish();
        assert_eq!(take(&mut receiver).map(|(psn, _)| psn), Some(1));
        assert!(take(&mut receiver).is_none());
    }

    #[test]
    fn runs_of_lines_are_records_and_end_where_the_room_does() {
        let (mut sender, mut receiver) = lane(14);
        let lines = (1 << 14) / LINE;
        let mut next = 0u32;
        let mut expected = 0u32;
        for round in 0..20 {
            let room = sender.room(100);
            let len = room.len();
            for line in room.iter_mut() {
                let header = Header { size: LINE as u32, len: 8, ..header(next) };
                line[..7].copy_from_slice(&header.words());
                line[7] = u64::from(next) << 32;
                next += 1;
            }
            sender.pushed(len);
            assert!(len <= 100 && (len > 0 || round > 0));
            assert!((next - expected) as usize <= lines);
            sender.publish();
            // Half line by line, half record by record.
            let seen: Vec<u64> = receiver.lines().iter().take(20).map(|line| line[7]).collect();
            receiver.took(seen.len());
            for word in seen {
                assert_eq!(word, u64::from(expected) << 32);
                expected += 1;
            }
            for _ in 0..20 {
                let Some((psn, payload)) = take(&mut receiver) else { break };
                assert_eq!((psn, payload.len()), (expected, 8));
                expected += 1;
            }
            receiver.release();
        }
        assert!(next as usize > 2 * lines, "the ring went round");
    }

    #[test]
    fn a_lane_in_shared_memory_carries_both_ways() {
        let attr = LinkAttr { log_lane_bytes: 14 };
        let memory = crate::memory::Memory::zeroed(shared_link_bytes(attr));
        let base = NonNull::new(memory.as_ptr()).unwrap();
        let keep: Arc<dyn Any + Send + Sync> = memory;
        // SAFETY: zeroed memory of the right size, kept by `keep`; each end is taken once.
        let mut ends =
            [true, false].map(|first| unsafe { shared_link(7, first, base, attr, &keep) });
        drop(keep);
        for nth in 0..200 {
            let [from, to] = &mut ends;
            let payload = from.tx_requests.push(header(nth), 300).unwrap();
            payload.fill(nth as u8);
            from.tx_requests.publish();
            assert_eq!(take(&mut to.rx_requests), Some((nth, vec![nth as u8; 300])));
            assert!(to.tx_responses.push(header(nth), 0).is_some());
            to.tx_responses.publish();
            assert_eq!(take(&mut from.rx_responses), Some((nth, vec![])));
            ends.reverse();
        }
    }

    #[test]
    fn a_record_or_a_counter_that_cannot_be_is_not_followed() {
        let sizes = [0, 64, 65, 1 << 14, 1 << 20, u32::MAX - 1];
        for (size, len) in sizes.into_iter().flat_map(|size| [(size, 9), (size, u32::MAX)]) {
            let (mut sender, mut receiver) = lane(14);
            sender.room(1)[0][0] = crate::packet::pair(size, len);
            sender.pushed(1);
            sender.publish();
            assert!(receiver.peek().is_none(), "{size} {len}");
        }
        for tail in [1, 63, (1 << 14) + 64, u64::MAX] {
            let (sender, mut receiver) = lane(14);
            sender.ring.tail().store(tail, Ordering::Release);
            assert!(receiver.peek().is_none() && receiver.lines().is_empty(), "{tail}");
        }
    }

    #[test]
    fn a_link_that_leads_nowhere_never_fills() {
        let mut end = LinkEnd::nowhere(3);
        for nth in 0..1_000 {
            assert!(end.tx_requests.push(header(nth), 1_000).is_some());
            end.tx_requests.publish();
        }
        assert!(end.rx_requests.peek().is_none());
    }

    #[test]
    fn an_empty_lane_starts_again_at_its_beginning() {
        let (mut sender, mut receiver) = lane(15);
        for nth in 0..400 {
            sender.rewind();
            assert!(sender.push(header(nth), 200).is_some());
            sender.publish();
            assert_eq!(take(&mut receiver).map(|(psn, _)| psn), Some(nth));
        }
        assert!(sender.tail & sender.view.mask <= 9 << 10, "light traffic stays at the beginning");
    }
}
