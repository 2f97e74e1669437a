//! The byte formats that an mlx5 NIC and its user share in memory, send WQE segments, CQEs and doorbells,
//! and those of the commands that make its objects.
//!
//! This room encodes, decodes and explains. It holds no policy (when to signal, what to fence), touches no
//! memory but the caller's slices, allocates nothing and depends on no device, so that the software NIC, the
//! transports, the device header's checks and `gicbench decode` can all be held to it.
//!
//! Formats are those of rdma-core's public header `mlx5dv.h` and of Linux's `mlx5_ifc.h`. Every multi-byte
//! field is a big-endian type, so that a bare integer can't be put on the wire by mistake.
//!
//! ```
//! use wire::{cqe::Cqe, wqe::{Ctrl, CtrlFlags, Opcode}};
//! use zerocopy::IntoBytes;
//!
//! // The index is taken modulo 2^16: RDMA_WRITE at 65541 begins 00 00 05 08.
//! let ctrl = Ctrl::new(Opcode::RdmaWrite, 65541, 0x100, 3, CtrlFlags::CQ_UPDATE, 0);
//! assert_eq!(ctrl.as_bytes()[..4], [0, 0, 5, 8]);
//! assert!(!Cqe::INVALID.is_valid(0, 6));
//! ```
#![no_std]

pub mod cqe;
pub mod devx;
pub mod doorbell;
pub mod explain;
pub mod index;
pub mod split;
pub mod wqe;

/// Queue pair numbers, CQ numbers and the like have 24 bits.
pub const NUMBER_MASK: u32 = 0xff_ffff;
