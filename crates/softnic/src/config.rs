//! What a NIC is made of, and what its objects are made of.

use std::ops::RangeInclusive;

use crate::dma::DmaBuf;
use crate::fault::Faults;
use crate::mr::Access;
use crate::profile::Profile;

/// Nanoseconds of the driver's clock.
pub type Nanos = u64;

/// A NIC's configuration.
#[derive(Clone, Debug)]
pub struct NicConfig {
    /// Its address on links, as a LID is: what [`Modify::ToRtr`](crate::Modify) and address vectors name.
    pub id: u16,
    /// How much of everything there may be.
    pub caps: Caps,
    /// How long things take.
    pub profile: Profile,
    /// What goes wrong.
    pub faults: Faults,
    /// Records in the trace ring; 0 traces nothing.
    pub trace: usize,
    /// Upper bytes of the QP numbers that it gives, within 1 to 255: NICs that answer to one address, each in its own
    /// process, have numbers apart.
    pub qpn_tags: RangeInclusive<u8>,
}

impl Default for NicConfig {
    fn default() -> Self {
        Self {
            id: 0,
            caps: Caps::default(),
            profile: Profile::default(),
            faults: Faults::default(),
            trace: 0,
            qpn_tags: 1..=u8::MAX,
        }
    }
}

/// A NIC's capacities. Tables are allocated once, at creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// Queue pairs (at most 32768).
    pub max_qps: u32,
    /// DC targets (at most 32768).
    pub max_dcts: u32,
    /// Connections that DC targets keep at once, over all DCTs.
    pub max_dc_contexts: u32,
    /// Shared receive queues (at most 65536).
    pub max_srqs: u32,
    /// Completion queues.
    pub max_cqs: u32,
    /// Memory regions.
    pub max_mrs: u32,
    /// Protection domains.
    pub max_pds: u32,
    /// Doorbell pages.
    pub max_uars: u32,
    /// Deepest send queue, log2 of WQEBBs (at most 15: indices are 16 bits wide).
    pub log_max_sq_blocks: u32,
    /// WQEs of one QP that are sent and not yet acknowledged. It bounds the QP's message rate: 512 over the
    /// 3.3 us of [`Profile::CX7_NDR200`] are 155 M/s, whatever the profile's own ceiling is.
    pub max_outstanding: u32,
    /// Longest message in bytes.
    pub max_message: u32,
    /// Reads and atomics in flight, either side.
    pub max_rd_atomic: u8,
    /// Path MTU in bytes: 256, 512, 1024, 2048 or 4096.
    pub mtu: u32,
}

impl Default for Caps {
    fn default() -> Self {
        Self {
            max_qps: 256,
            max_dcts: 64,
            max_dc_contexts: 256,
            max_srqs: 64,
            max_cqs: 256,
            max_mrs: 1024,
            max_pds: 64,
            max_uars: 256,
            log_max_sq_blocks: 15,
            max_outstanding: 512,
            max_message: 1 << 30,
            max_rd_atomic: 16,
            mtu: 4096,
        }
    }
}

/// A protection domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PdId(pub(crate) u32);

/// A doorbell page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UarId(pub(crate) u32);

/// A completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CqId(pub(crate) u32);

/// A shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SrqId(pub(crate) u32);

macro_rules! numbers {
    ($($id:ident, $what:literal;)*) => {$(
        impl $id {
            #[doc = concat!("The number of ", $what, ", as commands and other queues name it (24 bits).")]
            #[must_use]
            pub const fn number(self) -> u32 {
                self.0
            }
            #[doc = concat!("The id behind a number, which may name ", $what, " or nothing.")]
            #[must_use]
            pub const fn from_number(number: u32) -> Self {
                Self(number)
            }
        }
    )*};
}

numbers! {
    PdId, "a protection domain";
    UarId, "a doorbell page";
    CqId, "a completion queue";
    SrqId, "a shared receive queue";
}

impl CqId {
    /// The CQ of a number, to say which one is meant. Others than the NIC's own ids name no CQ to it.
    #[must_use]
    pub const fn numbered(number: u32) -> Self {
        Self(number << 8)
    }
}

/// A queue pair's number (24 bits).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Qpn(pub u32);

impl std::fmt::Display for Qpn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A memory region to register.
#[derive(Debug)]
pub struct MrAttr {
    /// Protection domain.
    pub pd: PdId,
    /// Address of the first byte, as WQEs name it.
    pub iova: u64,
    /// Bytes.
    pub length: u64,
    /// What may be done.
    pub access: Access,
    /// The memory, of at least `length` bytes.
    pub memory: DmaBuf,
}

/// A completion queue to create.
#[derive(Debug)]
pub struct CqAttr {
    /// 2^`log_size` entries of 64 bytes, every `op_own` holding opcode 15.
    pub ring: DmaBuf,
    /// log2 of entries (at most 22).
    pub log_size: u32,
    /// 8 bytes: consumer index, arm.
    pub record: DmaBuf,
    /// Only entry 0 is used, and is overwritten by each completion.
    pub collapsed: bool,
    /// The consumer record isn't looked at.
    pub ignore_overrun: bool,
}

/// What of a completion queue differs from the plain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CqFormat {
    /// Entries take 128 bytes, and the completion is in the second half.
    pub wide: bool,
    /// The entries may hold anything when the queue is made: who made it knows that none is a completion yet.
    pub unready: bool,
}

/// What a queue pair is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpKind {
    /// Reliable connection.
    Rc,
    /// Dynamically connected initiator: every WQE names its target.
    Dci,
    /// Unreliable connection: nothing is acknowledged, and what is lost is lost.
    Uc,
    /// Unreliable datagrams: every WQE names its target, and a message is one packet.
    Ud,
    /// The sending half of an extended reliable connection: every WQE names a shared receive queue at the peer.
    XrcInitiator,
    /// The receiving half of one.
    XrcTarget,
}

impl QpKind {
    /// Whether requests are acknowledged.
    #[must_use]
    pub const fn is_reliable(self) -> bool {
        !matches!(self, Self::Uc | Self::Ud)
    }
    /// Whether it has one peer, from the beginning to the end.
    #[must_use]
    pub const fn is_connected(self) -> bool {
        !matches!(self, Self::Dci | Self::Ud)
    }
}

/// A receive queue.
#[derive(Clone, Debug)]
pub struct RqAttr {
    /// The WQEs.
    pub ring: DmaBuf,
    /// log2 of WQEs (at most 15).
    pub log_wqes: u32,
    /// log2 of a WQE's bytes (4 to 9).
    pub log_stride: u32,
}

/// A queue pair to create.
#[derive(Debug)]
pub struct QpAttr {
    /// Protection domain.
    pub pd: PdId,
    /// What it is.
    pub kind: QpKind,
    /// Where sends complete.
    pub send_cq: CqId,
    /// Where receives complete.
    pub recv_cq: CqId,
    /// 2^`log_sq_blocks` basic blocks of 64 bytes.
    pub sq: DmaBuf,
    /// log2 of basic blocks.
    pub log_sq_blocks: u32,
    /// Receive queue, if any.
    pub rq: Option<RqAttr>,
    /// Doorbell record: receive producer, send producer. Without it the register alone counts.
    pub record: Option<DmaBuf>,
    /// Doorbell page.
    pub uar: UarId,
    /// Reads and atomics that this QP may have in flight as a requester.
    pub max_rd_atomic: u8,
    /// The first producer index; hardware starts at 0.
    pub sq_start: u64,
}

/// What of a queue pair, or of a DC target, differs from the plain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiveFormat {
    /// Where its receives come from; it has none of its own then.
    pub srq: Option<SrqId>,
    /// What its completions carry, for the client to find it by (24 bits).
    pub user_index: u32,
}

/// A shared receive queue to create.
///
/// Its WQEs begin with a segment that holds the next one's place (16 bits at byte 2): they are a list, taken from its head,
/// which begins at place 0.
#[derive(Debug)]
pub struct SrqAttr {
    /// Protection domain of its buffers.
    pub pd: PdId,
    /// The WQEs.
    pub queue: RqAttr,
    /// Its doorbell record, of 4 bytes: WQEs posted, ever.
    pub record: DmaBuf,
    /// Where receives of extended reliable connections complete, and what those completions carry (24 bits).
    pub completions: Option<(CqId, u32)>,
}

/// How a GID is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidKind {
    /// InfiniBand.
    Ib,
    /// RoCE over Ethernet frames.
    RoceV1,
    /// RoCE over UDP.
    RoceV2,
}

/// What a NIC's port is called, as datagrams tell it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortAddress {
    /// Its LID; 0 on Ethernet.
    pub lid: u16,
    /// Its GIDs, by index.
    pub gids: Vec<([u8; 16], GidKind)>,
    /// All datagrams have a global route header.
    pub is_ethernet: bool,
}

/// A DC target to create.
#[derive(Debug)]
pub struct DctAttr {
    /// Protection domain.
    pub pd: PdId,
    /// Where receives complete.
    pub recv_cq: CqId,
    /// What initiators must know.
    pub dc_key: u64,
    /// What initiators may do.
    pub access: Access,
    /// Shared receive queue and its doorbell record, if any.
    pub rq: Option<(RqAttr, DmaBuf)>,
    /// RNR timer code (5 bits).
    pub min_rnr_timer: u8,
}
