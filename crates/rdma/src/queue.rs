//! Queue pairs: what is asked for, and where its memory lies.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};

use device::cuda::Place;
use softnic::{DmaBuf, Memory, OutOfBounds, OutOfMemory};

use crate::memory::memory;
use crate::{Error, Owner};

/// The transport service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Dynamically connected initiator.
    Dci,
}

/// How completions are reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CqKind {
    /// One entry a completion; the consumer record is honoured.
    Ring,
    /// One entry a completion; the consumer record isn't looked at, and old entries are overwritten (mlx5's `oi`).
    OverrunRing,
    /// One entry that is overwritten; overrun is ignored.
    Collapsed,
}

/// Where a queue pair's memory is made; host memory that no GPU reaches, unless said.
#[derive(Clone, Debug, Default)]
pub struct Places {
    /// Send queue, and receive queue.
    pub sq: Place,
    /// Doorbell record and consumer records.
    pub record: Place,
    /// Completion queues.
    pub cq: Place,
    /// Doorbell page.
    pub doorbell: Place,
}

impl Places {
    /// All in one place.
    #[must_use]
    pub fn all(place: &Place) -> Self {
        Self {
            sq: place.clone(),
            record: place.clone(),
            cq: place.clone(),
            doorbell: place.clone(),
        }
    }
}

/// A queue pair to make.
#[derive(Clone, Debug)]
pub struct QueuePairAttr {
    /// RC or DCI.
    pub transport: Transport,
    /// log2 of the send queue's 64-byte blocks, 2 to 15.
    pub log_blocks: u32,
    /// Kind of the send CQ.
    pub cq_kind: CqKind,
    /// log2 of the send CQ's entries.
    pub log_cq: u32,
    /// log2 of the receive queue's WQEs (one data segment each), if there is one.
    pub log_receives: Option<u32>,
    /// First producer index of the send queue: hardware starts at 0, tests near a wrap.
    pub start: u64,
    /// Doorbell page to share; a page of its own if none.
    pub doorbell_page: Option<Arc<Memory>>,
    /// Where its memory is made.
    pub places: Places,
}

impl Default for QueuePairAttr {
    fn default() -> Self {
        Self {
            transport: Transport::Rc,
            log_blocks: 10,
            cq_kind: CqKind::Collapsed,
            log_cq: 1,
            log_receives: None,
            start: 0,
            doorbell_page: None,
            places: Places::default(),
        }
    }
}

/// A stretch of memory that a queue lies in.
#[derive(Clone, Debug)]
pub struct Area {
    memory: Arc<Memory>,
    offset: usize,
    bytes: usize,
}

impl Area {
    /// Its address as device code uses it.
    #[must_use]
    pub fn ptr(&self) -> *mut u8 {
        self.memory.as_ptr().wrapping_add(self.offset)
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// No bytes of it.
    pub(crate) fn none(&self) -> Self {
        Self { bytes: 0, ..self.clone() }
    }

    /// Whether this process can follow its address.
    #[must_use]
    pub fn is_mapped(&self) -> bool {
        self.memory.is_mapped()
    }

    /// As a NIC sees it.
    ///
    /// # Errors
    /// Never, for an area of [`areas`](Areas).
    pub fn dma(&self) -> Result<DmaBuf, OutOfBounds> {
        self.memory.dma().slice(self.offset, self.bytes)
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// They don't lie in it.
    pub fn read(&self, at: usize, out: &mut [u8]) -> Result<(), OutOfBounds> {
        self.dma()?.read(at, out)
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// They don't lie in it.
    pub fn write(&self, at: usize, bytes: &[u8]) -> Result<(), OutOfBounds> {
        self.dma()?.write(at, bytes)
    }

    /// The aligned 8 bytes at `at`.
    ///
    /// # Panics
    /// If they are unaligned, out of bounds, or in memory that isn't mapped.
    #[must_use]
    pub fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at + 8 <= self.bytes, "word at {at} of {}", self.bytes);
        self.memory.word(self.offset + at)
    }

    /// The aligned 4 bytes at `at`.
    ///
    /// # Panics
    /// As [`word`](Self::word).
    #[must_use]
    pub fn half(&self, at: usize) -> &AtomicU32 {
        assert!(at + 4 <= self.bytes, "half at {at} of {}", self.bytes);
        self.memory.half(self.offset + at)
    }
}

/// The memory of a queue pair's queues, CQs and records.
#[derive(Clone, Debug)]
pub struct Areas {
    /// Send queue.
    pub sq: Area,
    /// Send CQ.
    pub cq: Area,
    /// Receive queue; empty without one.
    pub rq: Area,
    /// Receive CQ; empty without a receive queue.
    pub recv_cq: Area,
    /// Doorbell record: receive producer, send producer.
    pub record: Area,
    /// Send CQ's record: consumer, arm.
    pub cq_record: Area,
    /// Receive CQ's record.
    pub recv_cq_record: Area,
}

impl Areas {
    /// Made as `attr` asks, zeroed, with CQs that look empty.
    pub(crate) fn of(attr: &QueuePairAttr) -> Result<Self, Error> {
        let receives = attr.log_receives.map_or(0, |log| 1usize << log);
        let (sq, cq, rq) = (64 << attr.log_blocks, 64 << attr.log_cq, 16 * receives);
        let places = &attr.places;
        // Each record on a cache line of its own: the two sides that write them never wait for each other.
        let [sq, rq] = split(&places.sq, [sq, rq])?;
        let [cq, recv_cq] = split(&places.cq, [cq, 64 * receives])?;
        let [record, cq_record, recv_cq_record] = split(&places.record, [8; 3])?;
        // Opcode 15, owner 1: a zeroed CQ would look full of completions.
        for entries in [&cq, &recv_cq] {
            entries
                .write(0, &vec![0xff; entries.len()])
                .map_err(|_| Error::Memory(OutOfMemory { len: entries.len() }))?;
        }
        Ok(Self { sq, cq, rq, recv_cq, record, cq_record, recv_cq_record })
    }

    /// Those of another process's queue pair, or of one whose queues are its driver's own: of no bytes here.
    pub(crate) fn elsewhere(nothing: &Arc<Memory>) -> Self {
        let none = Area { memory: Arc::clone(nothing), offset: 0, bytes: 0 };
        Self {
            sq: none.clone(),
            cq: none.clone(),
            rq: none.clone(),
            recv_cq: none.clone(),
            record: none.clone(),
            cq_record: none.clone(),
            recv_cq_record: none,
        }
    }

    /// Whether this process can follow all of their addresses.
    #[must_use]
    pub fn are_mapped(&self) -> bool {
        [&self.sq, &self.cq, &self.record].iter().all(|area| area.is_mapped() && !area.is_empty())
    }
}

/// Areas of these lengths in one allocation, each from a cache line on.
fn split<const N: usize>(place: &Place, lengths: [usize; N]) -> Result<[Area; N], Error> {
    let split = Split::of(lengths);
    Ok(split.areas(&memory(place, split.bytes())?))
}

/// Lengths side by side, each from a cache line on.
pub(crate) struct Split<const N: usize> {
    /// First byte, and how many.
    parts: [(usize, usize); N],
    bytes: usize,
}

impl<const N: usize> Split<N> {
    pub(crate) fn of(lengths: [usize; N]) -> Self {
        let mut at = 0;
        let parts = lengths.map(|bytes| {
            let offset = at;
            at += bytes.next_multiple_of(64);
            (offset, bytes)
        });
        Self { parts, bytes: at }
    }

    /// Bytes of all.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The areas of one allocation, of at least so many bytes.
    pub(crate) fn areas(&self, memory: &Arc<Memory>) -> [Area; N] {
        self.parts.map(|(offset, bytes)| Area { memory: Arc::clone(memory), offset, bytes })
    }
}

/// A queue pair. Dropping it destroys it, and its CQs and doorbell page with it.
pub struct QueuePair {
    /// Its number.
    pub qpn: u32,
    /// What was asked for.
    pub attr: QueuePairAttr,
    /// Queues, CQs and records; empty where [`Nic::has_open_queues`](crate::Nic::has_open_queues) says no.
    pub areas: Areas,
    /// The doorbell page; empty where the areas are.
    pub doorbell_page: Arc<Memory>,
    /// Destroys the NIC's objects.
    pub(crate) owner: Owner,
}

impl QueuePair {
    /// The doorbell register, as device code uses it.
    #[must_use]
    pub fn doorbell(&self) -> *mut u64 {
        self.doorbell_page.as_ptr().wrapping_add(wire::doorbell::UAR_SEND).cast()
    }
}

impl std::fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QueuePair")
            .field("qpn", &self.qpn)
            .field("attr", &self.attr)
            .finish_non_exhaustive()
    }
}
