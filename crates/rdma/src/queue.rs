//! Queue pairs: what is asked for, and where its memory lies.

use std::sync::Arc;

use softnic::Memory;

use crate::Owner;

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
    /// One entry that is overwritten; overrun is ignored.
    Collapsed,
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
        }
    }
}

/// Offsets in a queue pair's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Send queue.
    pub sq: usize,
    /// Send CQ.
    pub cq: usize,
    /// Receive queue.
    pub rq: usize,
    /// Receive CQ.
    pub recv_cq: usize,
    /// Doorbell record: receive producer, send producer.
    pub record: usize,
    /// Send CQ's record: consumer, arm.
    pub cq_record: usize,
    /// Receive CQ's record.
    pub recv_cq_record: usize,
    /// Bytes in all.
    pub bytes: usize,
}

impl Layout {
    pub(crate) fn of(attr: &QueuePairAttr) -> Self {
        let sq = 0;
        let cq = sq + (64 << attr.log_blocks);
        let rq = cq + (64 << attr.log_cq);
        let receives = attr.log_receives.map_or(0, |log| 1usize << log);
        let recv_cq = (rq + 16 * receives).next_multiple_of(64);
        // Each record on a cache line of its own: the two sides that write them never wait for each other.
        let record = recv_cq + 64 * receives;
        let (cq_record, recv_cq_record) = (record + 64, record + 128);
        Self { sq, cq, rq, recv_cq, record, cq_record, recv_cq_record, bytes: record + 192 }
    }
}

/// A queue pair. Dropping it destroys it, and its CQs and doorbell page with it.
pub struct QueuePair {
    /// Its number.
    pub qpn: u32,
    /// What was asked for.
    pub attr: QueuePairAttr,
    /// Queues, CQs and records.
    pub memory: Arc<Memory>,
    /// Where in it.
    pub layout: Layout,
    /// The doorbell page.
    pub doorbell_page: Arc<Memory>,
    /// Destroys the NIC's objects.
    pub(crate) _owner: Owner,
}

impl QueuePair {
    /// Address of a byte of the queues' memory.
    #[must_use]
    pub fn at(&self, offset: usize) -> *mut u8 {
        debug_assert!(offset < self.layout.bytes);
        self.memory.as_ptr().wrapping_add(offset)
    }

    /// The doorbell register.
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
