//! Send WQE segments.
//!
//! A WQE is a run of 16-byte segments in 64-byte basic blocks (WQEBB): control first, then what the opcode
//! asks for. Each builder here fills one segment and decides nothing.

use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

mod build;
mod lint;
mod walk;

pub use build::{BuildError, DATA_MAX, MESSAGE_MAX, WqeBuf};
pub use lint::Warning;
pub use walk::{Part, Placed, Receives, Segment, Segments, Transport, Wqe, WqeError, receives};

/// Bytes in a segment (a "ds" unit).
pub const SEGMENT: usize = 16;
/// Bytes in a basic block, the unit that indices and doorbells count.
pub const WQEBB: usize = 64;
/// The largest `ds`: six bits in the control segment are used.
pub const DS_MAX: u8 = 0x3f;

/// Basic blocks taken by a WQE of `ds` segments.
#[must_use]
pub const fn blocks(ds: u8) -> u32 {
    (ds as u32).div_ceil((WQEBB / SEGMENT) as u32)
}

macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $value:literal, $text:literal;)*) => {
        /// What a send WQE asks for.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        #[non_exhaustive]
        pub enum Opcode { $($(#[$doc])* $name = $value,)* }
        impl Opcode {
            /// Every opcode known here.
            pub const ALL: &[Self] = &[$(Self::$name,)*];
            /// The opcode of a byte, if it is one.
            #[must_use]
            pub const fn from_byte(byte: u8) -> Option<Self> {
                match byte { $($value => Some(Self::$name),)* _ => None }
            }
            /// The name that rdma-core's headers use, without prefix.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

opcodes! {
    /// Does nothing but complete.
    Nop = 0x00, "NOP";
    /// Sends and invalidates a remote key.
    SendInval = 0x01, "SEND_INVAL";
    /// Writes to remote memory.
    RdmaWrite = 0x08, "RDMA_WRITE";
    /// Writes to remote memory and consumes a receive, which gets the immediate.
    RdmaWriteImm = 0x09, "RDMA_WRITE_WITH_IMM";
    /// Sends to a posted receive.
    Send = 0x0a, "SEND";
    /// Sends to a posted receive, with an immediate.
    SendImm = 0x0b, "SEND_WITH_IMM";
    /// Segments a large send (Ethernet).
    Tso = 0x0e, "TSO";
    /// Waits for a count of completions on a CQ.
    Wait = 0x0f, "WAIT";
    /// Reads remote memory.
    RdmaRead = 0x10, "RDMA_READ";
    /// 8-byte compare-and-swap.
    AtomicCs = 0x11, "ATOMIC_CMP_AND_SWP";
    /// 8-byte fetch-and-add.
    AtomicFa = 0x12, "ATOMIC_FETCH_AND_ADD";
    /// Extended (masked, 4- or 8-byte) compare-and-swap.
    AtomicMaskedCs = 0x14, "ATOMIC_MASKED_CMP_AND_SWP";
    /// Extended (masked, 4- or 8-byte) fetch-and-add.
    AtomicMaskedFa = 0x15, "ATOMIC_MASKED_FETCH_AND_ADD";
    /// Fast memory registration.
    Fmr = 0x19, "FMR";
    /// Invalidates a local key.
    LocalInval = 0x1b, "LOCAL_INVAL";
    /// Configures an object through the queue.
    ConfigCmd = 0x1f, "CONFIG_CMD";
    /// Sets a signature protection value.
    SetPsv = 0x20, "SET_PSV";
    /// Reads local memory and sends nothing.
    Dump = 0x23, "DUMP";
    /// Changes a memory key (UMR).
    Umr = 0x25, "UMR";
    /// Adds or removes a tag-matching entry.
    TagMatching = 0x28, "TAG_MATCHING";
    /// Changes a flow table.
    FlowTableAccess = 0x2c, "FLOW_TBL_ACCESS";
    /// Memory-to-memory operation (DMA, compression, ...).
    Mmo = 0x2f, "MMO";
}

/// `opmod` of a 4-byte extended atomic: the extension bit, and log2 of the operand's size in bytes less 2.
pub const OPMOD_EXTENDED_4: u8 = 0x08;
/// `opmod` of an 8-byte extended atomic.
pub const OPMOD_EXTENDED_8: u8 = 0x09;

/// Bits of the control segment's `fm_ce_se`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct CtrlFlags(pub u8);

impl CtrlFlags {
    /// No completion unless it fails.
    pub const NONE: Self = Self(0);
    /// The responder's completion raises a solicited event.
    pub const SOLICITED: Self = Self(0x02);
    /// A CQE is wanted.
    pub const CQ_UPDATE: Self = Self(0x08);
    /// Waits for this queue's earlier local invalidations and memory changes only.
    pub const SMALL_FENCE: Self = Self(0x20);
    /// Waits for all earlier WQEs of the queue, reads and atomics included (`MLX5_WQE_CTRL_FENCE`, which
    /// the kernel calls "small and fence").
    pub const FENCE: Self = Self(0x80);
    /// The three fence bits.
    pub const FENCE_MASK: u8 = 0xe0;

    /// Both sets of bits.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
    /// Whether all of `other`'s bits are set.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Control segment (`mlx5_wqe_ctrl_seg`).
#[derive(
    FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, Debug, PartialEq, Eq,
)]
#[repr(C)]
pub struct Ctrl {
    /// `opmod(8) | wqe_index(16) | opcode(8)`
    pub opmod_index_opcode: U32,
    /// `qpn(24) | ds(8)`
    pub qpn_ds: U32,
    /// Signature, when the QP was made with one.
    pub signature: u8,
    /// DCI stream channel, big-endian.
    pub stream: [u8; 2],
    /// [`CtrlFlags`].
    pub fm_ce_se: u8,
    /// Immediate data, or a key to invalidate.
    pub imm: U32,
}

impl Ctrl {
    /// A control segment with `opmod` 0.
    ///
    /// `index` is the WQE's first WQEBB, taken modulo 2^16: unmasked it would run into `opmod`.
    #[must_use]
    pub const fn new(op: Opcode, index: u64, qpn: u32, ds: u8, flags: CtrlFlags, imm: u32) -> Self {
        Self {
            opmod_index_opcode: U32::new(((index as u32 & 0xffff) << 8) | op as u32),
            qpn_ds: U32::new((qpn << 8) | ds as u32),
            signature: 0,
            stream: [0; 2],
            fm_ce_se: flags.0,
            imm: U32::new(imm),
        }
    }
    /// The same with an operation modifier (extended atomics).
    #[must_use]
    pub const fn with_opmod(mut self, opmod: u8) -> Self {
        let low = self.opmod_index_opcode.get() & 0x00ff_ffff;
        self.opmod_index_opcode = U32::new((opmod as u32) << 24 | low);
        self
    }
    /// Operation modifier.
    #[must_use]
    pub const fn opmod(&self) -> u8 {
        (self.opmod_index_opcode.get() >> 24) as u8
    }
    /// 16-bit index of the WQE's first WQEBB.
    #[must_use]
    pub const fn index(&self) -> u16 {
        (self.opmod_index_opcode.get() >> 8) as u16
    }
    /// Opcode byte, known or not.
    #[must_use]
    pub const fn opcode_byte(&self) -> u8 {
        self.opmod_index_opcode.get() as u8
    }
    /// Opcode, if known.
    #[must_use]
    pub const fn opcode(&self) -> Option<Opcode> {
        Opcode::from_byte(self.opcode_byte())
    }
    /// Queue pair number.
    #[must_use]
    pub const fn qpn(&self) -> u32 {
        self.qpn_ds.get() >> 8
    }
    /// Segments in this WQE, this one included.
    #[must_use]
    pub const fn ds(&self) -> u8 {
        self.qpn_ds.get() as u8 & DS_MAX
    }
    /// Completion, solicitation and fence bits.
    #[must_use]
    pub const fn flags(&self) -> CtrlFlags {
        CtrlFlags(self.fm_ce_se)
    }
}

/// Remote address segment (`mlx5_wqe_raddr_seg`).
#[derive(
    FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, Debug, PartialEq, Eq,
)]
#[repr(C)]
pub struct Raddr {
    /// Remote virtual address.
    pub addr: U64,
    /// Remote key.
    pub rkey: U32,
    /// Zero.
    pub reserved: U32,
}

impl Raddr {
    /// A remote address under a remote key.
    #[must_use]
    pub const fn new(addr: u64, rkey: u32) -> Self {
        Self { addr: U64::new(addr), rkey: U32::new(rkey), reserved: U32::ZERO }
    }
}

/// Set in a data segment's first word when the bytes follow in the WQE itself.
pub const INLINE: u32 = 0x8000_0000;

/// Data pointer segment (`mlx5_wqe_data_seg`).
#[derive(
    FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, Debug, PartialEq, Eq,
)]
#[repr(C)]
pub struct Data {
    /// Bytes; 0 stands for 2^31 on hardware, which this project never posts.
    pub byte_count: U32,
    /// Local key.
    pub lkey: U32,
    /// Local virtual address.
    pub addr: U64,
}

/// The key that ends a receive WQE's scatter list, and that is never valid (`MLX5_INVALID_LKEY`).
pub const INVALID_LKEY: u32 = 0x100;

impl Data {
    /// Ends the scatter list of a receive WQE that has room for more entries.
    pub const TERMINATOR: Self = Self::new(0, 0, INVALID_LKEY);

    /// `len` bytes at `addr` under `lkey`.
    #[must_use]
    pub const fn new(addr: u64, len: u32, lkey: u32) -> Self {
        Self { byte_count: U32::new(len), lkey: U32::new(lkey), addr: U64::new(addr) }
    }
}

/// The word before inline bytes (`mlx5_wqe_inl_data_seg`).
#[must_use]
pub const fn inline_header(len: u32) -> U32 {
    U32::new(INLINE | len)
}

/// Segments taken by `len` inline bytes and the word before them.
#[must_use]
pub const fn inline_segments(len: u32) -> u32 {
    (len + 4).div_ceil(SEGMENT as u32)
}

/// Atomic segment (`mlx5_wqe_atomic_seg`): 8-byte operations.
#[derive(
    FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, Debug, PartialEq, Eq,
)]
#[repr(C)]
pub struct Atomic {
    /// Value to swap in, or to add.
    pub swap_add: U64,
    /// Value to compare with.
    pub compare: U64,
}

/// Extended 4-byte compare-and-swap (opmod 08).
#[derive(
    FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, Debug, PartialEq, Eq,
)]
#[repr(C)]
pub struct MaskedCas4 {
    /// Value to swap in.
    pub swap: U32,
    /// Value to compare with.
    pub compare: U32,
    /// Bits to swap.
    pub swap_mask: U32,
    /// Bits to compare.
    pub compare_mask: U32,
}

/// Extended 4-byte fetch-and-add (opmod 08).
#[derive(
    FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, Debug, PartialEq, Eq,
)]
#[repr(C)]
pub struct MaskedFa4 {
    /// Value to add.
    pub add: U32,
    /// Bits at which carries stop.
    pub field_boundary: U32,
    /// Zero.
    pub reserved: U64,
}

/// Extended 8-byte compare-and-swap (opmod 09): two segments.
#[derive(
    FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, Debug, PartialEq, Eq,
)]
#[repr(C)]
pub struct MaskedCas8 {
    /// Value to swap in.
    pub swap: U64,
    /// Value to compare with.
    pub compare: U64,
    /// Bits to swap.
    pub swap_mask: U64,
    /// Bits to compare.
    pub compare_mask: U64,
}

/// Extended 8-byte fetch-and-add (opmod 09).
#[derive(
    FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, Debug, PartialEq, Eq,
)]
#[repr(C)]
pub struct MaskedFa8 {
    /// Value to add.
    pub add: U64,
    /// Bits at which carries stop.
    pub field_boundary: U64,
}

/// What a WAIT waits for (`mlx5_wqe_wait_en_seg`): a CQ that has counted `index` completions.
#[derive(
    FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, Debug, PartialEq, Eq,
)]
#[repr(C)]
pub struct Wait {
    /// Zero.
    pub reserved: U64,
    /// Count of completions to wait for.
    pub index: U32,
    /// CQ number (24 bits).
    pub cqn: U32,
}

/// In [`AddressVector::dqp_dct`]: the vector has its 48-byte form.
pub const AV_EXTENDED: u32 = 0x8000_0000;

/// Address vector (`mlx5_wqe_av`), after the control segment of a DC or UD send. 48 bytes, or its first 16.
#[derive(
    FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, Debug, PartialEq, Eq,
)]
#[repr(C)]
pub struct AddressVector {
    /// DC access key, or the Q_Key in its upper half for UD.
    pub key: U64,
    /// Destination QP or DCT number, with [`AV_EXTENDED`].
    pub dqp_dct: U32,
    /// Static rate and service level.
    pub stat_rate_sl: u8,
    /// First LID bits, multicast.
    pub fl_mlid: u8,
    /// Remote LID, big-endian.
    pub rlid: [u8; 2],
    /// Zero.
    pub reserved: [u8; 4],
    /// Remote MAC address (RoCE).
    pub rmac: [u8; 6],
    /// Traffic class.
    pub tclass: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// GRH present, GID index, flow label.
    pub grh_gid_fl: U32,
    /// Remote GID.
    pub rgid: [u8; 16],
}
