//! A NIC of another process, as a NIC of this one.
//!
//! [`RemoteNic`] asks, and the other process's [`Side`] does: memory and queue pairs are made there, and read and written
//! by copies. What carries the questions is the caller's ([`Line`]); nothing whose time is measured goes this way, since
//! data and completions are between the two NICs.

mod nic;
mod side;

use serde::{Deserialize, Serialize};
use softnic::Access;

use crate::{Address, ConnectAttr, CqKind, Destination, QueuePairAttr, Transport};

pub use nic::RemoteNic;
pub use side::Side;

/// What carries a question to the other process, and its answer back.
pub trait Line: Send + Sync {
    /// Asks.
    ///
    /// # Errors
    /// Why there is no answer: the other process is named.
    fn ask(&self, ask: &Ask) -> Result<Tell, String>;
}

/// Where memory is made, on the other side's own machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PlaceKind {
    /// Host memory.
    Host,
    /// Host memory that its GPU reaches.
    Pinned,
    /// Its GPU's.
    Gpu,
}

/// A question to the other side's NIC. Objects go by numbers that it gave.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Ask {
    /// Memory, registered for `access` (the bits of [`Access`]).
    Allocate {
        /// Where.
        place: PlaceKind,
        /// How much.
        bytes: u64,
        /// For whom.
        access: u8,
    },
    /// Bytes of a region.
    Read {
        /// Which region.
        object: u64,
        /// First byte.
        offset: u64,
        /// How many.
        bytes: u64,
    },
    /// Bytes into a region.
    Write {
        /// Which region.
        object: u64,
        /// First byte.
        offset: u64,
        /// What.
        bytes: Vec<u8>,
    },
    /// A queue pair.
    CreateQueuePair(PairAttr),
    /// Takes a queue pair to where it can send.
    Connect {
        /// Which.
        object: u64,
        /// To where.
        to: Destination,
        /// How.
        attr: ConnectWords,
    },
    /// A DC target.
    CreateDcTarget {
        /// Its key.
        key: u64,
        /// What may be done through it.
        access: u8,
    },
    /// Destroys an object.
    Drop {
        /// Which.
        object: u64,
    },
    /// What the NIC saw its clients do wrong.
    Findings,
    /// What it has completed.
    Completed,
    /// Why a queue pair went to error.
    Cause {
        /// Its number.
        qpn: u32,
    },
}

/// An answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Tell {
    /// A region was made.
    Region {
        /// Its number.
        object: u64,
        /// Its address there.
        address: u64,
        /// Key for data segments there.
        lkey: u32,
        /// Key for peers.
        rkey: u32,
    },
    /// Bytes that were read.
    Bytes(Vec<u8>),
    /// A queue pair or DC target was made.
    Made {
        /// Its number as an object.
        object: u64,
        /// Its number on the wire.
        number: u32,
    },
    /// It was done.
    Done,
    /// Lines of text.
    Lines(Vec<String>),
    /// A count, if the NIC tells.
    Count(Option<u64>),
    /// It can't be done, and why.
    Failed(String),
}

/// A queue pair to make, in plain words; its places are the other side's own.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct PairAttr {
    /// A DC initiator, not RC.
    pub dci: bool,
    /// log2 of the send queue's blocks.
    pub log_blocks: u32,
    /// Kind of the send CQ: 0 a ring, 1 one that may be overrun, 2 collapsed.
    pub cq_kind: u8,
    /// log2 of its entries.
    pub log_cq: u32,
    /// log2 of the receive queue's WQEs, if there is one.
    pub log_receives: Option<u32>,
    /// Where its queues are made.
    pub place: PlaceKind,
}

impl PairAttr {
    fn of(attr: &QueuePairAttr) -> Self {
        Self {
            dci: attr.transport == Transport::Dci,
            log_blocks: attr.log_blocks,
            cq_kind: match attr.cq_kind {
                CqKind::Ring => 0,
                CqKind::OverrunRing => 1,
                CqKind::Collapsed => 2,
            },
            log_cq: attr.log_cq,
            log_receives: attr.log_receives,
            place: nic::kind(&attr.places.sq),
        }
    }
}

/// [`ConnectAttr`], in plain words.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ConnectWords {
    access: u8,
    sq_psn: u32,
    rq_psn: u32,
    timeout: u8,
    retry_cnt: u8,
    rnr_retry: u8,
}

impl From<&ConnectAttr> for ConnectWords {
    fn from(attr: &ConnectAttr) -> Self {
        Self {
            access: attr.access.bits(),
            sq_psn: attr.sq_psn,
            rq_psn: attr.rq_psn,
            timeout: attr.timeout,
            retry_cnt: attr.retry_cnt,
            rnr_retry: attr.rnr_retry,
        }
    }
}

impl From<ConnectWords> for ConnectAttr {
    fn from(words: ConnectWords) -> Self {
        Self {
            access: Access::from_bits_truncate(words.access),
            sq_psn: words.sq_psn,
            rq_psn: words.rq_psn,
            timeout: words.timeout,
            retry_cnt: words.retry_cnt,
            rnr_retry: words.rnr_retry,
        }
    }
}

/// What a NIC is, for who only hears of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Introduction {
    /// Where it is.
    pub address: Address,
    /// In words.
    pub name: String,
}
