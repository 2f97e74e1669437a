//! DevX mailboxes: the commands by which a program makes a NIC's objects itself, and the NIC's answers.
//!
//! A mailbox is a string of big-endian 32-bit words. A [`Field`] says where in it a value lies: its first bit, counted
//! from the mailbox's most significant, and its width. Positions and names are those of Linux's `mlx5_ifc.h`; those of
//! queues in registered memory (`*_umem_*`), which that header leaves out, are those of DPDK's public `mlx5_prm.h`.
//!
//! ```
//! use wire::devx::{self, Opcode, create_qp, qpc};
//!
//! let mut mailbox = [0; create_qp::IN];
//! devx::OPCODE.set(&mut mailbox, Opcode::CreateQp as u64);
//! qpc::LOG_SQ_SIZE.within(create_qp::QPC).set(&mut mailbox, 10);
//! assert_eq!(mailbox[..2], [5, 0]);
//! assert_eq!(qpc::LOG_SQ_SIZE.within(create_qp::QPC).get(&mailbox), 10);
//! ```

mod layout;

pub use layout::*;

/// A value's place in a mailbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its first bit, from the mailbox's (or its structure's) beginning.
    pub at: u32,
    /// Bits: at most 32 inside of a word, or 64 that begin one.
    pub bits: u32,
}

impl Field {
    /// `bits` bits from bit `at` on.
    #[must_use]
    pub const fn new(at: u32, bits: u32) -> Self {
        assert!(bits > 0 && (at % 32 + bits <= 32 || at.is_multiple_of(32) && bits == 64));
        Self { at, bits }
    }

    /// The same field of a structure that begins at bit `base`.
    #[must_use]
    pub const fn within(self, base: u32) -> Self {
        Self::new(base + self.at, self.bits)
    }

    /// The largest value.
    #[must_use]
    pub const fn max(self) -> u64 {
        u64::MAX >> (64 - self.bits)
    }

    /// The value in a mailbox; 0 where the mailbox is too short for it.
    #[must_use]
    pub fn get(self, mailbox: &[u8]) -> u64 {
        let first = self.word(mailbox, 0);
        if self.bits == 64 {
            return first << 32 | self.word(mailbox, 1);
        }
        first >> (32 - self.at % 32 - self.bits) & self.max()
    }

    /// As [`get`](Self::get), of a field of at most 32 bits.
    #[must_use]
    pub fn get32(self, mailbox: &[u8]) -> u32 {
        self.get(mailbox) as u32
    }

    /// Whether the value isn't 0.
    #[must_use]
    pub fn is_set(self, mailbox: &[u8]) -> bool {
        self.get(mailbox) != 0
    }

    /// Writes the value, as far as the field is wide; nothing where the mailbox is too short for it.
    pub fn set(self, mailbox: &mut [u8], value: u64) {
        let value = value & self.max();
        if self.bits == 64 {
            self.put(mailbox, 0, value >> 32);
            self.put(mailbox, 1, value & u64::from(u32::MAX));
            return;
        }
        let shift = 32 - self.at % 32 - self.bits;
        let kept = self.word(mailbox, 0) & !(self.max() << shift);
        self.put(mailbox, 0, kept | value << shift);
    }

    fn start(self, nth: usize) -> usize {
        (self.at as usize / 32 + nth) * 4
    }

    fn word(self, mailbox: &[u8], nth: usize) -> u64 {
        let bytes = mailbox.get(self.start(nth)..).and_then(|rest| rest.first_chunk());
        bytes.map_or(0, |bytes| u64::from(u32::from_be_bytes(*bytes)))
    }

    fn put(self, mailbox: &mut [u8], nth: usize, word: u64) {
        let bytes = mailbox.get_mut(self.start(nth)..).and_then(|rest| rest.first_chunk_mut());
        if let Some(bytes) = bytes {
            *bytes = (word as u32).to_be_bytes();
        }
    }
}

macro_rules! numbers {
    ($(#[$doc:meta])* $type:ident: $repr:ty { $($(#[$each:meta])* $name:ident = $value:literal, $text:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr($repr)]
        #[non_exhaustive]
        pub enum $type { $(#[doc = concat!("`", $text, "`.")] $(#[$each])* $name = $value,)* }
        impl $type {
            /// All of them that this crate knows.
            pub const ALL: &[Self] = &[$(Self::$name,)*];
            /// The one of a number.
            #[must_use]
            pub const fn from_number(number: $repr) -> Option<Self> {
                match number { $($value => Some(Self::$name),)* _ => None }
            }
            /// The name, as the headers have it.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

numbers! {
    /// Commands.
    Opcode: u16 {
        QueryHcaCap = 0x100, "QUERY_HCA_CAP";
        QueryAdapter = 0x101, "QUERY_ADAPTER";
        QueryIssi = 0x10a, "QUERY_ISSI";
        CreateMkey = 0x200, "CREATE_MKEY";
        CreateEq = 0x301, "CREATE_EQ";
        CreateCq = 0x400, "CREATE_CQ";
        DestroyCq = 0x401, "DESTROY_CQ";
        QueryCq = 0x402, "QUERY_CQ";
        ModifyCq = 0x403, "MODIFY_CQ";
        CreateQp = 0x500, "CREATE_QP";
        DestroyQp = 0x501, "DESTROY_QP";
        Rst2InitQp = 0x502, "RST2INIT_QP";
        Init2RtrQp = 0x503, "INIT2RTR_QP";
        Rtr2RtsQp = 0x504, "RTR2RTS_QP";
        Rts2RtsQp = 0x505, "RTS2RTS_QP";
        Sqerr2RtsQp = 0x506, "SQERR2RTS_QP";
        Qp2Err = 0x507, "2ERR_QP";
        Qp2Rst = 0x50a, "2RST_QP";
        QueryQp = 0x50b, "QUERY_QP";
        SqdRtsQp = 0x50c, "SQD_RTS_QP";
        Init2InitQp = 0x50e, "INIT2INIT_QP";
        CreateSrq = 0x700, "CREATE_SRQ";
        CreateXrcSrq = 0x705, "CREATE_XRC_SRQ";
        CreateDct = 0x710, "CREATE_DCT";
        DestroyDct = 0x711, "DESTROY_DCT";
        DrainDct = 0x712, "DRAIN_DCT";
        QueryDct = 0x713, "QUERY_DCT";
        QueryNicVportContext = 0x754, "QUERY_NIC_VPORT_CONTEXT";
        QueryRoceAddress = 0x760, "QUERY_ROCE_ADDRESS";
        QueryHcaVportContext = 0x762, "QUERY_HCA_VPORT_CONTEXT";
        AllocQCounter = 0x771, "ALLOC_Q_COUNTER";
        AllocPd = 0x800, "ALLOC_PD";
        DeallocPd = 0x801, "DEALLOC_PD";
        AllocUar = 0x802, "ALLOC_UAR";
        Nop = 0x80d, "NOP";
        AllocXrcd = 0x80e, "ALLOC_XRCD";
        CreateTir = 0x900, "CREATE_TIR";
        CreateSq = 0x904, "CREATE_SQ";
        CreateRq = 0x908, "CREATE_RQ";
        CreateRmp = 0x90c, "CREATE_RMP";
        CreateGeneralObject = 0xa00, "CREATE_GENERAL_OBJECT";
        CreateUmem = 0xa08, "CREATE_UMEM";
    }
}

numbers! {
    /// How a command ended.
    Status: u8 {
        Ok = 0, "OK";
        Internal = 1, "INT_ERR";
        BadOp = 2, "BAD_OP_ERR";
        BadParam = 3, "BAD_PARAM_ERR";
        BadSystemState = 4, "BAD_SYS_STATE_ERR";
        BadResource = 5, "BAD_RES_ERR";
        Busy = 6, "RES_BUSY";
        Limit = 8, "LIM_ERR";
        BadResourceState = 9, "BAD_RES_STATE_ERR";
        Index = 0xa, "IX_ERR";
        NoResources = 0xf, "NO_RES_ERR";
        BadQpState = 0x10, "BAD_QP_STATE_ERR";
        BadPacket = 0x30, "BAD_PKT_ERR";
        BadOutstandingCqes = 0x40, "BAD_SIZE_OUTS_CQES_ERR";
        BadInputLength = 0x50, "BAD_INP_LEN_ERR";
        BadOutputLength = 0x51, "BAD_OUTP_LEN_ERR";
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec;

    #[test]
    fn a_field_keeps_to_its_bits() {
        for (at, bits, value, bytes) in [
            (0, 4, 0xf, [0xf0, 0, 0, 0, 0, 0, 0, 0]),
            (0x1c, 4, 0xf, [0, 0, 0, 0xf, 0, 0, 0, 0]),
            (0x28, 24, 0x12_3456, [0, 0, 0, 0, 0, 0x12, 0x34, 0x56]),
            (0x20, 32, 0x1234_5678, [0, 0, 0, 0, 0x12, 0x34, 0x56, 0x78]),
            (0, 64, 0x0123_4567_89ab_cdef, [0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef]),
            (0x3f, 1, 1, [0, 0, 0, 0, 0, 0, 0, 1]),
        ] {
            let field = Field::new(at, bits);
            let mut mailbox = [0; 8];
            // A value that is too wide is cut.
            field.set(&mut mailbox, value | if bits < 64 { 1 << bits } else { 0 });
            assert_eq!(mailbox, bytes, "{field:?}");
            assert_eq!(field.get(&mailbox), value, "{field:?}");
            let mut others = [0xff; 8];
            field.set(&mut others, 0);
            assert_eq!(field.get(&others), 0);
            let cleared: u32 = others.iter().map(|byte| byte.count_zeros()).sum();
            assert_eq!(cleared, bits, "{field:?}");
        }
    }

    #[test]
    fn a_mailbox_that_is_too_short_holds_nothing() {
        let field = Field::new(0x20, 64);
        for length in 0..12 {
            let mut mailbox = vec![0; length];
            field.set(&mut mailbox, u64::MAX);
            let expected = if length >= 8 { u64::from(u32::MAX) << 32 } else { 0 };
            assert_eq!(field.get(&mailbox), expected, "{length}");
        }
    }

    #[test]
    fn numbers_come_back() {
        for &opcode in Opcode::ALL {
            assert_eq!(Opcode::from_number(opcode as u16), Some(opcode));
        }
        for &status in Status::ALL {
            assert_eq!(Status::from_number(status as u8), Some(status));
        }
    }
}
