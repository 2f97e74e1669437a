//! Completion queue entries.

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// High nibble of `op_own`: what kind of entry this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[non_exhaustive]
pub enum CqeOpcode {
    /// A send-side operation completed.
    Requester = 0,
    /// A receive was consumed by a write with immediate.
    ResponderWriteImm = 1,
    /// A receive was consumed by a send.
    ResponderSend = 2,
    /// A receive was consumed by a send with immediate.
    ResponderSendImm = 3,
    /// A receive was consumed by a send with invalidate.
    ResponderSendInval = 4,
    /// A CQ was resized.
    Resize = 5,
    /// A striding receive queue had no packet for the entry.
    NoPacket = 6,
    /// A signature check failed; the data was transferred.
    SignatureError = 12,
    /// A send-side operation failed.
    RequesterError = 13,
    /// A receive failed.
    ResponderError = 14,
    /// Not an entry yet.
    Invalid = 15,
}

impl CqeOpcode {
    /// From the high nibble of `op_own`.
    #[must_use]
    pub const fn from_nibble(nibble: u8) -> Option<Self> {
        Some(match nibble {
            0 => Self::Requester,
            1 => Self::ResponderWriteImm,
            2 => Self::ResponderSend,
            3 => Self::ResponderSendImm,
            4 => Self::ResponderSendInval,
            5 => Self::Resize,
            6 => Self::NoPacket,
            12 => Self::SignatureError,
            13 => Self::RequesterError,
            14 => Self::ResponderError,
            15 => Self::Invalid,
            _ => return None,
        })
    }
    /// Its name in words.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Requester => "requester",
            Self::ResponderWriteImm => "responder, RDMA write with immediate",
            Self::ResponderSend => "responder, send",
            Self::ResponderSendImm => "responder, send with immediate",
            Self::ResponderSendInval => "responder, send with invalidate",
            Self::Resize => "CQ resized",
            Self::NoPacket => "no packet",
            Self::SignatureError => "signature error",
            Self::RequesterError => "requester error",
            Self::ResponderError => "responder error",
            Self::Invalid => "invalid",
        }
    }
    /// Whether it reports a failure.
    #[must_use]
    pub const fn is_error(self) -> bool {
        matches!(self, Self::RequesterError | Self::ResponderError)
    }
}

macro_rules! syndromes {
    ($($(#[$doc:meta])* $name:ident = $value:literal, $text:literal;)*) => {
        /// Why a WQE failed (`syndrome` of an error CQE).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        #[non_exhaustive]
        pub enum Syndrome { $($(#[$doc])* $name = $value,)* }
        impl Syndrome {
            /// Every syndrome known here.
            pub const ALL: &[Self] = &[$(Self::$name,)*];
            /// The syndrome of a byte, if it is one.
            #[must_use]
            pub const fn from_byte(byte: u8) -> Option<Self> {
                match byte { $($value => Some(Self::$name),)* _ => None }
            }
            /// Its name in words.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

syndromes! {
    /// A local segment's length is not allowed.
    LocalLength = 0x01, "local length error";
    /// The WQE itself makes no sense to this QP.
    LocalQpOp = 0x02, "local QP operation error";
    /// A local key, bound or permission does not allow the access.
    LocalProtection = 0x04, "local protection error";
    /// Flushed: the QP was already in error. Always a consequence.
    Flushed = 0x05, "WQE flushed";
    /// A memory window could not be bound.
    MemoryWindowBind = 0x06, "memory window bind error";
    /// The responder answered something unexpected.
    BadResponse = 0x10, "bad response error";
    /// A receive buffer's key, bound or permission does not allow the access.
    LocalAccess = 0x11, "local access error";
    /// The responder can't do what was asked.
    RemoteInvalidRequest = 0x12, "remote invalid request error";
    /// A remote key, bound or permission does not allow the access.
    RemoteAccess = 0x13, "remote access error";
    /// The responder failed by itself.
    RemoteOperation = 0x14, "remote operation error";
    /// No acknowledgement came, in all retries.
    TransportRetryExceeded = 0x15, "transport retry counter exceeded";
    /// No receive was posted, in all retries.
    RnrRetryExceeded = 0x16, "RNR retry counter exceeded";
    /// The responder gave up the connection.
    RemoteAborted = 0x22, "remote aborted error";
}

/// A 64-byte CQE (`mlx5_cqe64`).
#[derive(
    FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, Debug, PartialEq, Eq,
)]
#[repr(C)]
pub struct Cqe {
    /// Fields of no concern to RC and DC, but the last four bytes: a responder's SRQ number or user index.
    pub head: [u8; 36],
    /// Immediate data or invalidated key.
    pub imm_inval: U32,
    /// Zero.
    pub reserved40: [u8; 4],
    /// Bytes received.
    pub byte_count: U32,
    /// Timestamp. On an error its last bytes are the hardware syndrome (52), vendor syndrome (54), syndrome (55).
    pub timestamp: U64,
    /// `opcode(8) | qpn(24)` of the WQE (a responder's: the QP number alone).
    pub sop_qpn: U32,
    /// 16-bit index of the WQE's first WQEBB.
    pub wqe_counter: U16,
    /// Signature.
    pub signature: u8,
    /// Opcode in the high nibble, owner in bit 0. Written last.
    pub op_own: u8,
}

impl Cqe {
    /// What an entry holds before the NIC first writes it: opcode 15, owner 1.
    pub const INVALID: Self = {
        let mut cqe = Self {
            head: [0; 36],
            imm_inval: U32::ZERO,
            reserved40: [0; 4],
            byte_count: U32::ZERO,
            timestamp: U64::ZERO,
            sop_qpn: U32::ZERO,
            wqe_counter: U16::ZERO,
            signature: 0,
            op_own: 0,
        };
        cqe.op_own = 0xff;
        cqe
    };

    /// From its 64 bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 64]) -> Self {
        zerocopy::transmute!(bytes)
    }

    /// A send-side success.
    #[must_use]
    pub const fn requester(opcode: u8, qpn: u32, wqe_index: u16, byte_count: u32) -> Self {
        let mut cqe = Self::INVALID;
        cqe.byte_count = U32::new(byte_count);
        cqe.sop_qpn = U32::new((opcode as u32) << 24 | qpn & crate::NUMBER_MASK);
        cqe.wqe_counter = U16::new(wqe_index);
        cqe.op_own = 0;
        cqe
    }

    /// A failure, on either side.
    #[must_use]
    pub const fn error(
        kind: CqeOpcode,
        syndrome: Syndrome,
        vendor: u8,
        opcode: u8,
        qpn: u32,
        wqe_index: u16,
    ) -> Self {
        let mut cqe = Self::requester(opcode, qpn, wqe_index, 0);
        cqe.timestamp = U64::new((vendor as u64) << 8 | syndrome as u64);
        cqe.op_own = (kind as u8) << 4;
        cqe
    }

    /// A received message.
    #[must_use]
    pub const fn responder(
        kind: CqeOpcode,
        qpn: u32,
        wqe_index: u16,
        byte_count: u32,
        imm: u32,
    ) -> Self {
        let mut cqe = Self::requester(0, qpn, wqe_index, byte_count);
        cqe.imm_inval = U32::new(imm);
        cqe.op_own = (kind as u8) << 4;
        cqe
    }

    /// Kind of entry, if known.
    #[must_use]
    pub const fn opcode(&self) -> Option<CqeOpcode> {
        CqeOpcode::from_nibble(self.op_own >> 4)
    }
    /// The owner bit.
    #[must_use]
    pub const fn owner(&self) -> u8 {
        self.op_own & 1
    }
    /// With the owner bit of entry `ci` in a ring of 2^`log_size`.
    #[must_use]
    pub const fn with_owner(mut self, ci: u64, log_size: u32) -> Self {
        self.op_own = self.op_own & !1 | (ci >> log_size) as u8 & 1;
        self
    }
    /// With what the client knows the queue pair, or the shared receive queue, by (24 bits).
    #[must_use]
    pub const fn with_user_index(mut self, index: u32) -> Self {
        let bytes = index.to_be_bytes();
        self.head[33] = bytes[1];
        self.head[34] = bytes[2];
        self.head[35] = bytes[3];
        self
    }
    /// With whom a datagram is from: QP number, LID, service level, and whether it had a global route header.
    #[must_use]
    pub const fn with_source(mut self, qpn: u32, lid: u16, level: u8, has_grh: bool) -> Self {
        let [high, low] = lid.to_be_bytes();
        let route = (has_grh as u32) << 28 | ((level & 15) as u32) << 24;
        let [a, b, c, d] = (route | qpn & crate::NUMBER_MASK).to_be_bytes();
        (self.head[22], self.head[23]) = (high, low);
        (self.head[24], self.head[25], self.head[26], self.head[27]) = (a, b, c, d);
        self
    }
    /// The QP that a datagram is from, its LID, service level, and whether it had a global route header.
    #[must_use]
    pub const fn source(&self) -> (u32, u16, u8, bool) {
        let lid = u16::from_be_bytes([self.head[22], self.head[23]]);
        let [a, b, c, d] = [self.head[24], self.head[25], self.head[26], self.head[27]];
        let word = u32::from_be_bytes([a, b, c, d]);
        (word & crate::NUMBER_MASK, lid, a & 15, word >> 28 & 3 != 0)
    }
    /// What the client knows the queue pair, or the shared receive queue, by (24 bits).
    #[must_use]
    pub const fn user_index(&self) -> u32 {
        u32::from_be_bytes([0, self.head[33], self.head[34], self.head[35]])
    }
    /// Whether a ring's entry for consumer index `ci` has been written.
    #[must_use]
    pub const fn is_valid(&self, ci: u64, log_size: u32) -> bool {
        self.op_own >> 4 != CqeOpcode::Invalid as u8 && self.owner() == (ci >> log_size) as u8 & 1
    }
    /// Queue pair number.
    #[must_use]
    pub const fn qpn(&self) -> u32 {
        self.sop_qpn.get() & crate::NUMBER_MASK
    }
    /// Opcode byte of the completed send WQE.
    #[must_use]
    pub const fn wqe_opcode(&self) -> u8 {
        (self.sop_qpn.get() >> 24) as u8
    }
    /// Syndrome of an error entry, if known.
    #[must_use]
    pub const fn syndrome(&self) -> Option<Syndrome> {
        Syndrome::from_byte(self.syndrome_byte())
    }
    /// Whether the completion is of a message that asked for a solicited event.
    #[must_use]
    pub const fn is_solicited(&self) -> bool {
        self.op_own & 2 != 0
    }
    /// Format, bits 2 and 3 of `op_own`: 0 plain, 1 or 2 with the data scattered into a CQE of 32 or 64 bytes,
    /// 3 compressed.
    #[must_use]
    pub const fn format(&self) -> u8 {
        self.op_own >> 2 & 3
    }
    /// Syndrome byte of an error entry.
    #[must_use]
    pub const fn syndrome_byte(&self) -> u8 {
        self.timestamp.get() as u8
    }
    /// Vendor syndrome of an error entry.
    #[must_use]
    pub const fn vendor(&self) -> u8 {
        (self.timestamp.get() >> 8) as u8
    }
    /// Hardware syndrome of an error entry: the code in the upper byte (offset 52), its type below it (53).
    #[must_use]
    pub const fn hw_syndrome(&self) -> u16 {
        (self.timestamp.get() >> 16) as u16
    }
}

const _: () = assert!(size_of::<Cqe>() == 64);
