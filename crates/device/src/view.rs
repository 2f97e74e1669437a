//! What the host hands to device code: the mirror of `gic/gda_types.hpp` and of the kernels' arguments.

use std::fmt;

use wire::cqe::Syndrome;

/// Memory at the far end of an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Remote {
    /// Virtual address in the remote region.
    pub address: u64,
    /// Remote key.
    pub rkey: u32,
}

/// Memory at the near end of an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Local {
    /// Virtual address in the local region.
    pub address: u64,
    /// Local key.
    pub lkey: u32,
}

/// A queue pair's moving parts (`gic::QpState`), in 64-byte blocks from 0 and never wrapped.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
pub struct QpState {
    /// First block that nobody has reserved.
    pub reserved: u64,
    pad0: [u64; 7],
    /// Blocks before it are written.
    pub ready: u64,
    /// Blocks before it are doorbelled.
    pub rung: u64,
    pad1: [u64; 6],
    /// Blocks before it are known to be completed.
    pub consumed: u64,
    /// Next entry of a ring CQ.
    pub cq_next: u64,
    cq_lock: u32,
    pad2: u32,
    last_ticket: u64,
    last_signalled: u64,
    pad3: [u64; 3],
    /// First failure, packed; see [`Failure`].
    pub failure: u64,
    pad4: [u64; 7],
}

impl QpState {
    /// A queue whose first post takes block `start`, and whose CQ has taken `cq_start` entries.
    #[must_use]
    pub fn starting_at(start: u64, cq_start: u64) -> Self {
        Self {
            reserved: start,
            ready: start,
            rung: start,
            consumed: start,
            cq_next: cq_start,
            ..Self::default()
        }
    }
}

/// A queue pair as device code sees it (`gic::Qp`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct QpView {
    /// Send queue: 2^`log_blocks` blocks of 64 bytes.
    pub sq: *mut u8,
    /// See `sq`.
    pub log_blocks: u32,
    /// The doorbell record's send word.
    pub record: *mut u32,
    /// Doorbell register.
    pub doorbell: *mut u64,
    /// Completion queue: 2^`log_cq` entries of 64 bytes.
    pub cq: *mut u8,
    /// The CQ's consumer word.
    pub cq_record: *mut u32,
    /// Indices.
    pub state: *mut QpState,
    /// Of every wait, in clock ticks.
    pub deadline: u64,
    /// Queue pair number.
    pub qpn: u32,
    /// See `cq`.
    pub log_cq: u32,
}

/// A DC send's address vector in its final byte order (`gic::AddressVector`).
pub type AddressVector = wire::wqe::AddressVector;

macro_rules! whys {
    ($($(#[$doc:meta])* $name:ident = $value:literal, $text:literal;)*) => {
        /// Why device code gave up (`gic::Why`).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum Why { $($(#[$doc])* $name = $value,)* }
        impl Why {
            /// Every reason.
            pub const ALL: &[Self] = &[$(Self::$name,)*];
            fn from_byte(byte: u8) -> Option<Self> {
                Self::ALL.iter().copied().find(|w| *w as u32 == u32::from(byte))
            }
            fn text(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

whys! {
    /// The NIC reported an error.
    Completion = 1, "the NIC completed a WQE in error";
    /// No room in the send queue came in time.
    DeadlineSpace = 2, "no room in the send queue within the deadline: the NIC has stopped completing";
    /// An earlier post of a shared queue was not published in time.
    DeadlineTurn = 3, "an earlier post to this shared queue was not published within the deadline";
    /// No completion came in time.
    DeadlineCompletion = 4, "no completion within the deadline";
    /// A reservation that the queue can never hold.
    TooLarge = 5, "the reservation is larger than the send queue can ever hold: post less at once, or make the queue deeper";
    /// A length that one WQE can't carry.
    BadLength = 6, "a length of 0 or above 2^30 bytes can't be carried by one WQE: split it";
    /// An atomic's address isn't a multiple of its size.
    UnalignedAtomic = 7, "an atomic's remote address must be a multiple of its size";
    /// A CQE of no known kind.
    BadCqe = 8, "a CQE of no known kind: was the CQ initialised, and is its size right?";
    /// Waited for what no doorbell covers.
    NeverRung = 9, "waited for a WQE that no doorbell has covered: ring (flush) before waiting";
    /// A collapsed CQ was polled as a ring.
    CqIsCollapsed = 10, "the CQ is collapsed, but is polled as a ring";
    /// A ring CQ was polled as collapsed.
    CqIsRing = 11, "the CQ is a ring, but is polled as collapsed";
    /// Inline data for which WQEs of this choice have no room.
    InlineTooLong = 12, "more inline bytes than this choice's largest WQE holds";
    /// A value that was not the expected one.
    WrongData = 13, "the value that arrived is not the one that was due: a put was lost, repeated or reordered";
    /// An offset that a descriptor, or the channel's region, can't hold.
    BadOffset = 14, "the offset is larger than a descriptor can say, or the bytes don't lie in the channel's region";
    /// A channel that the proxy hasn't.
    BadChannel = 15, "the proxy has no such channel, or the channel has no signal word";
    /// The proxy was stopped.
    ProxyStopped = 16, "the proxy was stopped";
    /// The proxy's worker ended by itself.
    WorkerDied = 17, "the proxy's worker has died";
    /// The NIC is gone.
    NicGone = 18, "the NIC that the proxy posts to doesn't answer any more";
    /// A descriptor of no known kind.
    BadDescriptor = 19, "a descriptor of no known kind: is the ring shared by programs of different versions?";
    /// A DC post that names no target.
    NoAddressVector = 20, "a DC post needs an address vector (`How::av`)";
    /// Threads that were to start together.
    DeadlineStart = 21, "not all threads of the launch came to its start within the deadline: can all of them run at once?";
    /// What a library has another put for.
    OtherPut = 22, "the library has another put for this case, which isn't built: a CPU that rings, GPU threads that post, or a warp whose lanes put together";
}

/// A failure that device code packed into one word (`gic::Failure`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Failure {
    /// What happened.
    pub why: Why,
    /// Queue pair number.
    pub qpn: u32,
    /// 16-bit index of the WQE (or of what was waited for).
    pub index: u16,
    /// Syndrome byte of an error CQE.
    pub syndrome: u8,
    /// Vendor syndrome of an error CQE.
    pub vendor: u8,
}

impl Failure {
    /// Unpacks a word; 0 is no failure. A word of no known kind reads as [`Why::BadCqe`].
    #[must_use]
    pub fn unpack(bits: u64) -> Option<Self> {
        (bits != 0).then(|| Self {
            why: Why::from_byte((bits >> 56) as u8).unwrap_or(Why::BadCqe),
            qpn: bits as u32 & wire::NUMBER_MASK,
            index: (bits >> 24) as u16,
            syndrome: (bits >> 40) as u8,
            vendor: (bits >> 48) as u8,
        })
    }
}

impl Failure {
    /// The word that device code would have packed.
    #[must_use]
    pub fn pack(&self) -> u64 {
        (self.why as u64) << 56
            | u64::from(self.vendor) << 48
            | u64::from(self.syndrome) << 40
            | u64::from(self.index) << 24
            | u64::from(self.qpn & wire::NUMBER_MASK)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QP {:#x}, WQE {}: {}", self.qpn, self.index, self.why.text())?;
        if self.why == Why::Completion {
            match Syndrome::from_byte(self.syndrome) {
                Some(s) => write!(f, ": {} ({:#04x})", s.name(), self.syndrome)?,
                None => write!(f, ": unknown syndrome {:#04x}", self.syndrome)?,
            }
            write!(f, ", vendor {:#04x}", self.vendor)?;
        }
        Ok(())
    }
}

/// Operations that the latency kernel times (`gic::kernels::Op`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Op {
    /// RDMA write from memory.
    Put = 0,
    /// RDMA write from the WQE.
    PutInline = 1,
    /// RDMA read.
    Get = 2,
    /// 8-byte fetch-and-add.
    FetchAdd = 3,
    /// RDMA write and, behind it, a fetch-and-add.
    PutSignal = 4,
}

impl Op {
    /// Every operation.
    pub const ALL: &[Self] =
        &[Self::Put, Self::PutInline, Self::Get, Self::FetchAdd, Self::PutSignal];

    /// Its name on the command line and in records.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::PutInline => "put-inline",
            Self::Get => "get",
            Self::FetchAdd => "fetch-add",
            Self::PutSignal => "put-signal",
        }
    }

    pub(crate) const fn cpp(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::PutInline => "put_inline",
            Self::Get => "get",
            Self::FetchAdd => "fetch_add",
            Self::PutSignal => "put_signal",
        }
    }
}

/// What the completion routine covers (`gic::kernels::QuietScope`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum QuietScope {
    /// The operation itself.
    One = 0,
    /// The queue pairs used since the last time.
    Used = 1,
    /// Every queue pair.
    All = 2,
}

/// Arguments of the latency kernel (`gic::kernels::LatencyArgs`); see the header for what each means.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs)]
pub struct LatencyArgs {
    pub qp: *const QpView,
    pub qps: u32,
    pub scope: QuietScope,
    pub bytes: u32,
    pub slots: u32,
    pub stride: u64,
    pub warmup: u64,
    pub samples: u64,
    pub first: u64,
    pub local: Local,
    pub remote: Remote,
    pub result: Local,
    pub signal: Remote,
    pub av: *const AddressVector,
    pub issue: *mut u64,
    pub total: *mut u64,
    pub failure: *mut u64,
}

/// Arguments of the rate kernel (`gic::kernels::RateArgs`); see the header for what each means.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs)]
pub struct RateArgs {
    pub qp: *const QpView,
    pub qps: u32,
    pub threads: u32,
    pub batch: u32,
    pub nth: u32,
    pub force: u32,
    pub is_get: u32,
    pub bytes: u32,
    pub lanes: u32,
    pub is_inline: u32,
    pub quiet: u32,
    pub ops: u64,
    pub warmup: u64,
    pub first: u64,
    pub slots: u64,
    pub stride: u64,
    pub local: Local,
    pub remote: Remote,
    pub start: *mut u64,
    pub end: *mut u64,
    pub failure: *mut u64,
    pub arrived: *mut u32,
}

/// Arguments of the round-trip kernel (`gic::kernels::RoundTripArgs`); see the header for what each means.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs)]
pub struct RoundTripArgs {
    pub qp: *const QpView,
    pub inbox: [*mut u64; 2],
    pub remote: [Remote; 2],
    pub warmup: u64,
    pub samples: u64,
    pub deadline: u64,
    pub ticks: *mut u64,
    pub failure: *mut u64,
    pub first_side: u32,
    pub sides: u32,
}

const _: () = {
    assert!(size_of::<QpState>() == 256);
    assert!(size_of::<QpView>() == 72);
    assert!(size_of::<LatencyArgs>() == 152);
    assert!(size_of::<RateArgs>() == 152);
    assert!(size_of::<RoundTripArgs>() == 104);
};
