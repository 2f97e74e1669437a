//! Errors of the control path.

use crate::config::Qpn;
use crate::qp::QpState;

/// An object can't be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CreateError {
    /// The NIC's table of them is full.
    #[error("the NIC has no room for more {what}: raise its capacity in `Caps`")]
    TableFull {
        /// What there are too many of.
        what: &'static str,
    },
    /// An object that is referred to isn't there.
    #[error("the {what} is unknown to this NIC, or was freed")]
    Unknown {
        /// What was referred to.
        what: &'static str,
    },
    /// A number is too large.
    #[error("the {what} is out of range: at most {max}")]
    Range {
        /// Which number.
        what: &'static str,
        /// Its largest value.
        max: u64,
    },
    /// Memory is too short or not aligned.
    #[error("the {what} needs {needed} bytes at a multiple of {align}, and was given {got}")]
    Memory {
        /// What it is for.
        what: &'static str,
        /// Bytes needed.
        needed: u64,
        /// Bytes given.
        got: u64,
        /// Alignment needed.
        align: usize,
    },
    /// A CQ's entries don't hold opcode 15.
    #[error(
        "CQ not initialised: `op_own` of entry {entry} hasn't opcode 15, so it looks like a completion on the first \
         lap; fill the CQ with 0xff before it is created"
    )]
    CqNotInitialised {
        /// The first such entry.
        entry: u32,
    },
    /// A CQ would lose entries.
    #[error(
        "the CQ holds {unread} entries that weren't consumed, more than its new ring has: poll it first"
    )]
    CqHolds {
        /// How many.
        unread: u64,
    },
    /// A receive queue without a doorbell record.
    #[error("a receive queue needs a doorbell record: its producer is written nowhere else")]
    ReceiveWithoutRecord,
}

/// An object can't be destroyed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DestroyError {
    /// There is no such object.
    #[error("the {what} is unknown to this NIC, or was freed before")]
    Unknown {
        /// What was to be destroyed.
        what: &'static str,
    },
    /// Others use it.
    #[error("the {what} is in use: destroy what uses it first")]
    Busy {
        /// What was to be destroyed.
        what: &'static str,
    },
}

/// A queue pair can't change its state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ModifyError {
    /// There is no such QP.
    #[error("QP {qpn} is unknown to this NIC, or was destroyed")]
    Unknown {
        /// Its number.
        qpn: Qpn,
    },
    /// Not from this state.
    #[error("QP {qpn} is in {from}, from where it can't go to {to}")]
    Transition {
        /// Its number.
        qpn: Qpn,
        /// Its state.
        from: QpState,
        /// The state that was asked for.
        to: QpState,
    },
    /// A number is too large.
    #[error("{what} is out of range: at most {max}")]
    Range {
        /// Which number.
        what: &'static str,
        /// Its largest value.
        max: u64,
    },
    /// There is no such shared receive queue.
    #[error("the shared receive queue is unknown to this NIC, or was destroyed")]
    UnknownSrq,
    /// No way to the peer.
    #[error("no link leads to NIC {remote}: connect one before the QP")]
    NoLink {
        /// The peer's id.
        remote: u16,
    },
}
