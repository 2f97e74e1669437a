//! What a well-formed WQE may still say by mistake.

use core::fmt;

use super::{INVALID_LKEY, Opcode, Segment, Wqe};

/// Something in a WQE that hardware takes silently, or answers with an error that doesn't name it.
/// Offsets are bytes from the WQE's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Warning {
    /// `opmod` is set for an opcode that has none.
    Opmod {
        /// The opcode.
        opcode: Opcode,
        /// The `opmod` byte.
        opmod: u8,
        /// The 16-bit index beside it.
        index: u16,
    },
    /// A local key of 0.
    ZeroLkey {
        /// Where the data segment is.
        offset: usize,
    },
    /// A remote key of 0.
    ZeroRkey {
        /// Where the remote address segment is.
        offset: usize,
    },
    /// The key that ends a receive's scatter list, in a send.
    InvalidLkey {
        /// Where the data segment is.
        offset: usize,
    },
    /// A byte count of 0, which hardware reads as 2^31.
    ByteCountZero {
        /// Where the data segment is.
        offset: usize,
    },
    /// Inline data of no bytes.
    InlineEmpty {
        /// Where the inline header is.
        offset: usize,
    },
    /// An atomic's remote address is not a multiple of its operand.
    Unaligned {
        /// The remote address.
        addr: u64,
        /// Bytes of the operand.
        size: u32,
    },
    /// An atomic's result buffer isn't as long as its operand.
    ResultLength {
        /// Where the data segment is.
        offset: usize,
        /// Its byte count.
        len: u32,
        /// Bytes of the operand.
        size: u32,
    },
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Opmod { opcode, opmod, index } => write!(
                f,
                "opmod is 0x{opmod:02x}, but {} has none: an index wider than 16 bits was probably written \
                 unmasked (it would be {})",
                opcode.name(),
                u32::from(opmod) << 16 | u32::from(index)
            ),
            Self::ZeroLkey { offset } => {
                write!(
                    f,
                    "the local key at offset {} is 0: a missing or failed registration look-up?",
                    offset + 4
                )
            }
            Self::ZeroRkey { offset } => {
                write!(
                    f,
                    "the remote key at offset {} is 0: was the peer's key exchanged?",
                    offset + 8
                )
            }
            Self::InvalidLkey { offset } => write!(
                f,
                "the local key at offset {} is 0x100, the invalid key that ends a receive's scatter list",
                offset + 4
            ),
            Self::ByteCountZero { offset } => write!(
                f,
                "the byte count at offset {offset} is 0, which hardware reads as 2^31: a length of 2^32 cut to \
                 32 bits, or an empty message that should have no data segment"
            ),
            Self::InlineEmpty { offset } => {
                write!(f, "the inline header at offset {offset} announces 0 bytes")
            }
            Self::Unaligned { addr, size } => {
                write!(
                    f,
                    "the remote address 0x{addr:x} of a {size}-byte atomic is not a multiple of {size}"
                )
            }
            Self::ResultLength { offset, len, size } => write!(
                f,
                "the result buffer at offset {offset} has {len} bytes, the atomic returns {size}"
            ),
        }
    }
}

impl Wqe<'_> {
    /// Calls `each` for everything suspicious, in the order of the bytes.
    pub fn warnings(&self, mut each: impl FnMut(Warning)) {
        let ctrl = self.ctrl();
        let opcode = self.opcode();
        let plain = matches!(
            opcode,
            Opcode::RdmaWrite
                | Opcode::RdmaWriteImm
                | Opcode::RdmaRead
                | Opcode::Send
                | Opcode::SendImm
                | Opcode::SendInval
                | Opcode::AtomicCs
                | Opcode::AtomicFa
        );
        if ctrl.opmod() != 0 && plain {
            each(Warning::Opmod { opcode, opmod: ctrl.opmod(), index: ctrl.index() });
        }
        let (mut remote, mut operand) = (0, None);
        for placed in self.segments().map_while(Result::ok) {
            let offset = placed.offset;
            match placed.segment {
                Segment::Raddr(raddr) => {
                    remote = raddr.addr.get();
                    if raddr.rkey.get() == 0 {
                        each(Warning::ZeroRkey { offset });
                    }
                }
                Segment::MaskedCas4(_) | Segment::MaskedFa4(_) => operand = Some(4),
                Segment::Atomic(_) | Segment::MaskedCas8(_) | Segment::MaskedFa8(_) => {
                    operand = Some(8);
                }
                Segment::Inline([]) => each(Warning::InlineEmpty { offset }),
                Segment::Data(data) => {
                    let len = data.byte_count.get();
                    if len == 0 {
                        each(Warning::ByteCountZero { offset });
                    }
                    match data.lkey.get() {
                        0 => each(Warning::ZeroLkey { offset }),
                        INVALID_LKEY => each(Warning::InvalidLkey { offset }),
                        _ => {}
                    }
                    if let Some(size) = operand
                        && len != size
                    {
                        each(Warning::ResultLength { offset, len, size });
                    }
                }
                _ => {}
            }
        }
        if let Some(size) = operand
            && !remote.is_multiple_of(u64::from(size))
        {
            each(Warning::Unaligned { addr: remote, size });
        }
    }
}
