//! Doorbell records and doorbell register values.

use zerocopy::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::wqe::Ctrl;

/// Word of a QP's doorbell record that the receive side's producer is written to.
pub const RECORD_RECEIVE: usize = 0;
/// Word of a QP's doorbell record that the send side's producer is written to.
pub const RECORD_SEND: usize = 1;
/// Word of a CQ's doorbell record that holds the consumer index.
pub const RECORD_CQ_CONSUMER: usize = 0;
/// Word of a CQ's doorbell record that holds the arm request.
pub const RECORD_CQ_ARM: usize = 1;

/// Offset of the send doorbell register in a UAR page (the first BlueFlame register).
pub const UAR_SEND: usize = 0x800;
/// Distance between a page's two alternating BlueFlame registers.
pub const UAR_BLUEFLAME_STRIDE: usize = 0x100;
/// Offset of the CQ arm doorbell in a UAR page.
pub const UAR_CQ_ARM: usize = 0x20;
/// Size of a UAR page in bytes.
pub const UAR_PAGE: usize = 4096;

/// The value of a doorbell record's word: next free WQEBB modulo 2^16, big-endian.
#[must_use]
pub const fn record(producer: u64) -> U32 {
    U32::new(producer as u32 & 0xffff)
}

/// What is stored to the doorbell register: the first eight bytes of a control segment.
#[derive(
    FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, Debug, PartialEq, Eq,
)]
#[repr(C)]
pub struct Doorbell {
    /// `opmod(8) | wqe_index(16) | opcode(8)`
    pub opmod_index_opcode: U32,
    /// `qpn(24) | ds(8)`
    pub qpn_ds: U32,
}

impl Doorbell {
    /// From the eight bytes stored, in memory order.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 8]) -> Self {
        zerocopy::transmute!(bytes)
    }

    /// libmlx5's form: the last posted WQE's own control words.
    #[must_use]
    pub const fn last_wqe(ctrl: &Ctrl) -> Self {
        Self { opmod_index_opcode: ctrl.opmod_index_opcode, qpn_ds: ctrl.qpn_ds }
    }

    /// The form that NVSHMEM and DOCA ring: the *next free* index, opcode 0 and ds 0.
    #[must_use]
    pub const fn next_free(qpn: u32, producer: u64) -> Self {
        Self {
            opmod_index_opcode: U32::new((producer as u32 & 0xffff) << 8),
            qpn_ds: U32::new(qpn << 8),
        }
    }

    /// The queue pair rung for.
    #[must_use]
    pub const fn qpn(&self) -> u32 {
        self.qpn_ds.get() >> 8
    }

    /// The producer index (next free WQEBB, 16 bits) that this value announces, in either form.
    #[must_use]
    pub const fn producer(&self) -> u16 {
        let index = (self.opmod_index_opcode.get() >> 8) as u16;
        let ds = self.qpn_ds.get() & 0xff;
        index.wrapping_add(ds.div_ceil(4) as u16)
    }
}
