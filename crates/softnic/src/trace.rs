//! A ring of what became of each WQE and each receive, and when.

use wire::cqe::{Cqe, CqeOpcode, Syndrome};

use crate::check::Cause;
use crate::config::Nanos;

/// What a record is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traced {
    /// A WQE of a send queue, by its opcode byte.
    Send(u8),
    /// A receive.
    Receive(CqeOpcode),
}

/// One WQE. Times that nobody knows are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceRecord {
    /// Queue pair, or DC target.
    pub qpn: u32,
    /// First basic block, wide; of a receive 16 bits.
    pub index: u64,
    /// What it is.
    pub what: Traced,
    /// Length of its message.
    pub bytes: u32,
    /// Packets of that message, as often as they were sent; 0 of a receive.
    pub packets: u32,
    /// When the ring that announced it was seen.
    pub doorbell: Nanos,
    /// When it was read.
    pub fetched: Nanos,
    /// When the responder executed the newest request of the acknowledgement that completed it.
    pub executed: Nanos,
    /// When it was completed.
    pub completed: Nanos,
    /// Why it failed, if it did.
    pub failure: Option<Cause>,
}

impl Default for TraceRecord {
    fn default() -> Self {
        Self {
            qpn: 0,
            index: 0,
            what: Traced::Send(0),
            bytes: 0,
            packets: 0,
            doorbell: 0,
            fetched: 0,
            executed: 0,
            completed: 0,
            failure: None,
        }
    }
}

/// The newest records; older ones are overwritten.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    records: Box<[TraceRecord]>,
    written: u64,
    taken: u64,
    /// The step's time.
    pub now: Nanos,
}

impl Trace {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { records: vec![TraceRecord::default(); capacity].into(), ..Self::default() }
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
    /// Notes the completion of a receive; that of a send is noted with its times, whether it has an entry or not.
    #[cold]
    pub(crate) fn received(&mut self, cqe: &Cqe) {
        let Some(opcode) = cqe.opcode() else { return };
        let failure = match opcode {
            CqeOpcode::ResponderError => {
                let [vendor, syndrome] = (cqe.timestamp.get() as u16).to_be_bytes();
                Syndrome::from_byte(syndrome).map(|syndrome| Cause { syndrome, vendor })
            }
            CqeOpcode::ResponderWriteImm
            | CqeOpcode::ResponderSend
            | CqeOpcode::ResponderSendImm
            | CqeOpcode::ResponderSendInval => None,
            _ => return,
        };
        self.push(TraceRecord {
            qpn: cqe.qpn(),
            index: u64::from(cqe.wqe_counter.get()),
            what: Traced::Receive(opcode),
            bytes: cqe.byte_count.get(),
            completed: self.now,
            failure,
            ..TraceRecord::default()
        });
    }
    fn oldest(&self) -> u64 {
        self.written.saturating_sub(self.records.len() as u64)
    }
    fn at(&self, nth: u64) -> TraceRecord {
        let slot = nth.checked_rem(self.records.len() as u64).unwrap_or(0) as usize;
        self.records.get(slot).copied().unwrap_or_default()
    }
    /// Oldest first.
    pub(crate) fn records(&self) -> Vec<TraceRecord> {
        (self.oldest()..self.written).map(|nth| self.at(nth)).collect()
    }
    /// Those since the last call, oldest first. Gives the number of those that were overwritten first.
    pub(crate) fn take(&mut self, tell: impl FnMut(TraceRecord)) -> u64 {
        let first = self.oldest().max(self.taken);
        let missed = first - self.taken;
        (first..self.written).map(|nth| self.at(nth)).for_each(tell);
        self.taken = self.written;
        missed
    }
}
