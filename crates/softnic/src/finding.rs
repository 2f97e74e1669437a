//! What a program does wrong, where hardware is silent.

use std::fmt;

use crate::config::{CqId, Qpn};

/// One thing that a program did wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Finding {
    /// A slot held a later lap's WQE when it was fetched.
    SlotOverwritten {
        /// Queue pair.
        qpn: Qpn,
        /// Block that was fetched.
        index: u64,
        /// Index in the control segment.
        found: u16,
    },
    /// A control segment's index isn't its slot's, on any lap.
    IndexMismatch {
        /// Queue pair.
        qpn: Qpn,
        /// Block that was fetched.
        index: u64,
        /// Index in the control segment.
        found: u16,
    },
    /// The doorbell covers a slot that wasn't written.
    UnwrittenSlot {
        /// Queue pair.
        qpn: Qpn,
        /// Block that was fetched.
        index: u64,
        /// Index of an earlier lap in the control segment; `None` if the slot was blank.
        found: Option<u16>,
    },
    /// A doorbell is further ahead than the queue is deep.
    DoorbellTooFar {
        /// Queue pair.
        qpn: Qpn,
        /// First block not yet completed.
        completed: u64,
        /// Producer that was announced.
        producer: u16,
        /// Blocks in the queue.
        depth: u64,
    },
    /// A doorbell for a queue pair that isn't there, or that doesn't use this page.
    NoSuchQp {
        /// The number rung.
        qpn: u32,
    },
    /// A doorbell for a queue pair that isn't ready to send.
    NotReady {
        /// Queue pair.
        qpn: Qpn,
    },
    /// The receive word of the doorbell record was written for a send.
    ReceiveRecordForSend {
        /// Queue pair.
        qpn: Qpn,
        /// Producer that was rung.
        producer: u16,
    },
    /// A CQ is smaller than what may complete in it.
    CqTooSmall {
        /// Completion queue.
        cq: CqId,
        /// Its entries.
        entries: u64,
        /// What may complete in it at once.
        needed: u64,
    },
    /// A CQ ran over.
    CqOverrun {
        /// Completion queue.
        cq: CqId,
        /// The queue pair whose completion found no room.
        qpn: Qpn,
    },
    /// The control segment names another queue pair.
    QpnMismatch {
        /// Queue pair.
        qpn: Qpn,
        /// Block that was fetched.
        index: u64,
        /// QP number in the control segment.
        found: u32,
    },
    /// A doorbell record was written, and no doorbell rung for it. Only a NIC that polls records sees this.
    RecordNotRung {
        /// Queue pair.
        qpn: Qpn,
        /// Producer that the record shows.
        producer: u16,
    },
}

/// The kinds of [`Finding`], to count them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each is documented at the finding of its name")]
pub enum FindingKind {
    SlotOverwritten,
    IndexMismatch,
    UnwrittenSlot,
    DoorbellTooFar,
    NoSuchQp,
    NotReady,
    ReceiveRecordForSend,
    CqTooSmall,
    CqOverrun,
    QpnMismatch,
    RecordNotRung,
}

const KINDS: usize = FindingKind::RecordNotRung as usize + 1;

impl Finding {
    /// Its kind.
    #[must_use]
    pub const fn kind(&self) -> FindingKind {
        match self {
            Self::SlotOverwritten { .. } => FindingKind::SlotOverwritten,
            Self::IndexMismatch { .. } => FindingKind::IndexMismatch,
            Self::UnwrittenSlot { .. } => FindingKind::UnwrittenSlot,
            Self::DoorbellTooFar { .. } => FindingKind::DoorbellTooFar,
            Self::NoSuchQp { .. } => FindingKind::NoSuchQp,
            Self::NotReady { .. } => FindingKind::NotReady,
            Self::ReceiveRecordForSend { .. } => FindingKind::ReceiveRecordForSend,
            Self::CqTooSmall { .. } => FindingKind::CqTooSmall,
            Self::CqOverrun { .. } => FindingKind::CqOverrun,
            Self::QpnMismatch { .. } => FindingKind::QpnMismatch,
            Self::RecordNotRung { .. } => FindingKind::RecordNotRung,
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::SlotOverwritten { qpn, index, found } => write!(
                f,
                "QP {qpn}: the slot of WQE {index} ({:#06x}) already holds {found:#06x}, of a later lap: it was \
                 overwritten before it was fetched, and the older WQE is lost. Look at flow control: how the \
                 poster learns that a slot is free.",
                index as u16
            ),
            Self::IndexMismatch { qpn, index, found } => write!(
                f,
                "QP {qpn}: the control segment in the slot of WQE {index} ({:#06x}) says {found:#06x}, which no lap \
                 puts there. Look at how the index is computed: two-block WQEs advance it by 2.",
                index as u16
            ),
            Self::UnwrittenSlot { qpn, index, found: Some(found) } => write!(
                f,
                "QP {qpn}: the doorbell covers WQE {index} ({:#06x}), but its slot still holds {found:#06x}, of an \
                 earlier lap: the NIC executes that one again. Look at the order of WQE stores before the \
                 doorbell, and at who rings for slots that others write.",
                index as u16
            ),
            Self::UnwrittenSlot { qpn, index, found: None } => write!(
                f,
                "QP {qpn}: the doorbell covers WQE {index} ({:#06x}), but its slot is blank. Look at the order of \
                 WQE stores before the doorbell, and at who rings for slots that others write.",
                index as u16
            ),
            Self::DoorbellTooFar { qpn, completed, producer, depth } => write!(
                f,
                "QP {qpn}: the producer {producer:#06x} was announced while {completed} ({:#06x}) is the first block not \
                 completed, and the queue has {depth}: the doorbell is ignored. Look for a producer that went \
                 backwards (ringers that aren't serialised), a byte order, or a reservation without flow control.",
                completed as u16
            ),
            Self::NoSuchQp { qpn } => write!(
                f,
                "a doorbell was rung for QP {qpn:#x}, which doesn't exist or uses another doorbell page. Look at \
                 the QP number's shift and byte order, and at the page that is rung."
            ),
            Self::NotReady { qpn } => write!(
                f,
                "QP {qpn}: a doorbell was rung before the QP was ready to send: it is ignored. Look at the order \
                 of connecting and posting."
            ),
            Self::ReceiveRecordForSend { qpn, producer } => write!(
                f,
                "QP {qpn}: the producer {producer:#06x} was rung, word 1 of the doorbell record doesn't show it and word 0 \
                 does: word 0 is the receive queue's. Write word 1."
            ),
            Self::CqTooSmall { cq, entries, needed } => write!(
                f,
                "CQ {}: {needed} completions may be in it at once, it has {entries} entries. Make it larger, or \
                 bound what is in flight.",
                cq.0 >> 8
            ),
            Self::CqOverrun { cq, qpn } => write!(
                f,
                "CQ {}: full when a completion of QP {qpn} came: the CQ is in error and so are its QPs. Look at \
                 the consumer index in the CQ's doorbell record, and at the CQ's size.",
                cq.0 >> 8
            ),
            Self::QpnMismatch { qpn, index, found } => write!(
                f,
                "QP {qpn}: the control segment of WQE {index} names QP {found:#x}. Look for a WQE that was written to \
                 another queue's memory, or a template of another QP."
            ),
            Self::RecordNotRung { qpn, producer } => write!(
                f,
                "QP {qpn}: the doorbell record shows the producer {producer:#06x}, and no doorbell was rung for it: this NIC \
                 polls the record and went on, hardware would not. Ring after each change of the record."
            ),
        }
    }
}

/// The first findings and the count of all.
#[derive(Debug)]
pub(crate) struct Findings {
    kept: Vec<Finding>,
    counts: [u64; KINDS],
}

const KEPT: usize = 256;

impl Findings {
    pub(crate) fn new() -> Self {
        Self { kept: Vec::with_capacity(KEPT), counts: [0; KINDS] }
    }
    #[cold]
    pub(crate) fn add(&mut self, finding: Finding) {
        self.counts[finding.kind() as usize] += 1;
        if self.kept.len() < KEPT {
            self.kept.push(finding);
        }
    }
    pub(crate) fn kept(&self) -> &[Finding] {
        &self.kept
    }
    pub(crate) fn count(&self, kind: FindingKind) -> u64 {
        self.counts[kind as usize]
    }
    pub(crate) fn clear(&mut self) {
        self.kept.clear();
        self.counts = [0; KINDS];
    }
}
