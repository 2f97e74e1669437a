//! Completion queues: rings with owner bits, and collapsed ones.

use wire::cqe::{Cqe, CqeOpcode};
use wire::doorbell::RECORD_CQ_CONSUMER;
use zerocopy::IntoBytes;

use crate::config::{CqFormat, CqId};
use crate::dma::DmaBuf;
use crate::notify::Notify;
use crate::table::Table;
use crate::trace::Trace;

const CQE: usize = size_of::<Cqe>();
const SIGNATURE_WORD: usize = 56;

impl CqFormat {
    pub(crate) const fn stride(self) -> usize {
        if self.wide { 2 * CQE } else { CQE }
    }
}

/// What `query_cq` tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CqInfo {
    /// Entries written, ever.
    pub produced: u64,
    /// The consumer index, as far as the NIC has looked at the record.
    pub consumed: u64,
    /// It has run over.
    pub in_error: bool,
}

pub(crate) struct Cq {
    pub ring: DmaBuf,
    pub record: DmaBuf,
    pub log_size: u32,
    pub collapsed: bool,
    pub ignore_overrun: bool,
    /// Entries written, ever.
    pub produced: u64,
    /// The consumer index last read from the record.
    consumed: u64,
    pub in_error: bool,
    /// QPs whose completions come here (a QP counts once for each direction).
    pub users: u32,
    /// WQEs that may complete here at once, over all users.
    pub committed: u64,
    /// Bytes from one entry to the next; the completion is in the last 64.
    pub stride: usize,
    /// Entries written, ever, with the last that asked for an event or tells of an error.
    pub solicited: u64,
    pub notify: Notify,
    /// That it ran over was told.
    pub told: bool,
}

/// The consumer record allows no other entry.
pub(crate) struct Overrun;

/// All completion queues.
pub(crate) struct Cqs {
    pub table: Table<Cq>,
    /// A CQ that has just run over, and the QP whose completion found no room.
    pub overrun: Option<(u32, u32)>,
    pub trace: Trace,
}

impl Cqs {
    pub(crate) fn new(capacity: u32, trace: usize) -> Self {
        Self { table: Table::new(capacity), overrun: None, trace: Trace::new(trace) }
    }

    /// The handle of the CQ at `index`.
    pub(crate) fn id(&self, index: u32) -> CqId {
        CqId(index << 8 | self.table.tag(index).map_or(0, u32::from))
    }

    /// Writes an entry for `qpn` to the CQ at `index`.
    #[inline]
    pub(crate) fn push(&mut self, index: u32, cqe: Cqe) -> Result<(), Overrun> {
        let cq = self.table.at_mut(index).ok_or(Overrun)?;
        let was_in_error = cq.in_error;
        let pushed = cq.push(cqe);
        if self.trace.is_on() {
            self.trace.received(&cqe);
        }
        if pushed.is_err() && !was_in_error {
            self.overrun = Some((index, cqe.qpn()));
        }
        pushed
    }

    /// The newest entry of the CQ at `index` is of a message that asked for an event.
    pub(crate) fn solicit(&mut self, index: u32) {
        if let Some(cq) = self.table.at_mut(index) {
            cq.solicited = cq.produced;
        }
    }
}

impl Cq {
    pub(crate) fn new(
        ring: DmaBuf,
        record: DmaBuf,
        log_size: u32,
        collapsed: bool,
        ignore_overrun: bool,
    ) -> Self {
        Self {
            ring,
            record,
            log_size,
            collapsed,
            ignore_overrun,
            produced: 0,
            consumed: 0,
            in_error: false,
            users: 0,
            committed: 0,
            stride: CQE,
            solicited: 0,
            notify: Notify::default(),
            told: false,
        }
    }

    pub(crate) fn info(&self) -> CqInfo {
        CqInfo { produced: self.produced, consumed: self.consumed, in_error: self.in_error }
    }

    /// The first entry whose `op_own` would look like a completion to a consumer on the first lap.
    pub(crate) fn first_unready(&self) -> Option<u32> {
        let entries = if self.collapsed { 1 } else { 1u32 << self.log_size };
        (0..entries).find(|&i| {
            let mut op_own = [0];
            let read = self.ring.read((i as usize + 1) * self.stride - 1, &mut op_own);
            read.is_err() || op_own[0] >> 4 != CqeOpcode::Invalid as u8
        })
    }

    /// Writes the next entry, `op_own` last.
    #[inline]
    fn push(&mut self, cqe: Cqe) -> Result<(), Overrun> {
        if self.in_error {
            return Err(Overrun);
        }
        let size = 1u64 << self.log_size;
        if !self.ignore_overrun && self.produced - self.consumed >= size && self.unread() >= size {
            self.in_error = true;
            return Err(Overrun);
        }
        let slot = if self.collapsed { 0 } else { (self.produced & (size - 1)) as usize };
        let cqe = cqe.with_owner(self.produced, self.log_size);
        let bytes = cqe.as_bytes();
        let at = (slot + 1) * self.stride - CQE;
        // Queue memory was checked to hold 2^log_size entries when the CQ was made.
        let _ = self.ring.write(at, &bytes[..SIGNATURE_WORD]);
        if let Some(last) = bytes.last_chunk::<8>() {
            let _ = self.ring.store_last(at + SIGNATURE_WORD, *last);
        }
        self.produced += 1;
        if cqe.opcode().is_some_and(CqeOpcode::is_error) {
            self.solicited = self.produced;
        }
        Ok(())
    }

    /// Entries that weren't consumed, as the record says now.
    pub(crate) fn unread(&mut self) -> u64 {
        let record = self.record.load_u32(RECORD_CQ_CONSUMER * 4).unwrap_or_default();
        let ahead = u32::from_be_bytes(record).wrapping_sub(self.consumed as u32) & 0xff_ffff;
        // A consumer can't be past the producer: such a record says nothing.
        if u64::from(ahead) <= self.produced - self.consumed {
            self.consumed += u64::from(ahead);
        }
        self.produced - self.consumed
    }

    /// Goes on in another ring; the last entry of this one says so.
    pub(crate) fn resize(&mut self, ring: DmaBuf, log_size: u32) {
        let mut last = Cqe::requester(0, 0, 0, 0);
        last.op_own = (CqeOpcode::Resize as u8) << 4;
        // Without room for it the CQ has run over, which it is in error for.
        let _ = self.push(last);
        self.ring = ring;
        self.log_size = log_size;
    }
}
