//! A ring of the times of each WQE.

use crate::config::Nanos;

/// Times of one WQE.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceRecord {
    /// Queue pair.
    pub qpn: u32,
    /// First basic block, wide.
    pub index: u64,
    /// Opcode byte.
    pub opcode: u8,
    /// When the ring that announced it was seen.
    pub doorbell: Nanos,
    /// When it was read.
    pub fetched: Nanos,
    /// When the responder executed the newest request of the acknowledgement that completed it.
    pub executed: Nanos,
    /// When it was completed.
    pub completed: Nanos,
}

/// The newest records; older ones are overwritten.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    records: Box<[TraceRecord]>,
    written: u64,
}

impl Trace {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { records: vec![TraceRecord::default(); capacity].into(), written: 0 }
    }
    pub(crate) fn is_on(&self) -> bool {
        !self.records.is_empty()
    }
    pub(crate) fn push(&mut self, record: TraceRecord) {
        let len = self.records.len() as u64;
        if let Some(slot) = self.written.checked_rem(len) {
            self.records[slot as usize] = record;
            self.written += 1;
        }
    }
    /// Oldest first.
    pub(crate) fn records(&self) -> Vec<TraceRecord> {
        let len = self.records.len() as u64;
        (self.written.saturating_sub(len)..self.written)
            .map(|i| self.records[(i % len) as usize])
            .collect()
    }
}
