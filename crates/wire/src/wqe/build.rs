//! Putting a whole WQE together.

use core::fmt;

use zerocopy::{Immutable, IntoBytes};

use super::{
    AV_EXTENDED, AddressVector, Atomic, Ctrl, CtrlFlags, DS_MAX, Data, INLINE, MaskedCas4,
    MaskedCas8, MaskedFa4, MaskedFa8, Opcode, Raddr, SEGMENT, blocks, inline_header,
    inline_segments,
};

/// The most bytes that one data segment can name: bit 31 of the byte count is the inline flag.
pub const DATA_MAX: u32 = INLINE - 1;
/// The most bytes that one message can have, by any device's capability.
pub const MESSAGE_MAX: u64 = 1 << 31;

/// Why a WQE can't be put together. Nothing is appended when it is returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BuildError {
    /// More than 63 segments.
    Segments {
        /// Segments that it would take.
        needed: usize,
    },
    /// A byte count of 0 would be read as 2^31: a message without payload has no data segment.
    Empty,
    /// More than one data segment or one message can carry; split it.
    TooLong {
        /// Bytes asked for.
        len: u64,
        /// Bytes allowed.
        max: u64,
    },
    /// More than 24 bits of queue pair number.
    Qpn {
        /// The number given.
        qpn: u32,
    },
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Segments { needed } => {
                write!(f, "a WQE of {needed} segments: at most {DS_MAX} are possible")
            }
            Self::Empty => f.write_str(
                "a data segment of 0 bytes: hardware reads that byte count as 2^31; leave the segment out",
            ),
            Self::TooLong { len, max } => {
                write!(f, "{len} bytes in one WQE: at most {max} are possible; split the message")
            }
            Self::Qpn { qpn } => write!(f, "queue pair number 0x{qpn:x} has more than 24 bits"),
        }
    }
}

impl core::error::Error for BuildError {}

/// A send WQE under construction, in its own 1024 bytes. Segments are appended in the order called; `ds` is kept.
///
/// ```
/// use wire::wqe::{CtrlFlags, Opcode, WqeBuf};
/// let mut wqe = WqeBuf::new(Opcode::RdmaWrite, 511, 0x2ed, CtrlFlags::CQ_UPDATE, 0)?;
/// wqe.raddr(0x3000_0000_1230, 0x213)?.data(0x2000_0000_0000, 8, 0x112)?;
/// assert_eq!(wqe.bytes().len(), 48);
/// # Ok::<(), wire::wqe::BuildError>(())
/// ```
#[derive(Clone, Debug)]
pub struct WqeBuf {
    bytes: [u8; Self::CAPACITY],
    ds: u8,
    ctrl: Ctrl,
    message: u64,
}

impl WqeBuf {
    /// Bytes of the scratch: the room of the largest WQE, in whole basic blocks.
    pub const CAPACITY: usize = 1024;

    /// A WQE of a control segment alone; `index` is taken modulo 2^16.
    ///
    /// # Errors
    /// [`BuildError::Qpn`].
    pub fn new(
        op: Opcode,
        index: u64,
        qpn: u32,
        flags: CtrlFlags,
        imm: u32,
    ) -> Result<Self, BuildError> {
        if qpn > crate::NUMBER_MASK {
            return Err(BuildError::Qpn { qpn });
        }
        let ctrl = Ctrl::new(op, index, qpn, 1, flags, imm);
        let mut wqe = Self { bytes: [0; Self::CAPACITY], ds: 1, ctrl, message: 0 };
        wqe.write_ctrl();
        Ok(wqe)
    }

    /// Sets the operation modifier (extended atomics).
    pub fn opmod(&mut self, opmod: u8) -> &mut Self {
        self.ctrl = self.ctrl.with_opmod(opmod);
        self.write_ctrl();
        self
    }

    /// Appends a 48-byte address vector, marked as such.
    ///
    /// # Errors
    /// [`BuildError::Segments`].
    pub fn address_vector(&mut self, av: &AddressVector) -> Result<&mut Self, BuildError> {
        let mut av = *av;
        av.dqp_dct.set(av.dqp_dct.get() | AV_EXTENDED);
        self.append(av.as_bytes())
    }

    /// Appends the first 16 bytes of an address vector, marked as such.
    ///
    /// # Errors
    /// [`BuildError::Segments`].
    pub fn address_vector_short(&mut self, av: &AddressVector) -> Result<&mut Self, BuildError> {
        let mut av = *av;
        av.dqp_dct.set(av.dqp_dct.get() & !AV_EXTENDED);
        let (short, _) = av.as_bytes().split_at(AddressVector::SHORT);
        self.append(short)
    }

    /// Appends a remote address.
    ///
    /// # Errors
    /// [`BuildError::Segments`].
    pub fn raddr(&mut self, addr: u64, rkey: u32) -> Result<&mut Self, BuildError> {
        self.append_segment(&Raddr::new(addr, rkey))
    }

    /// Appends a local buffer of `len` bytes.
    ///
    /// # Errors
    /// [`BuildError::Empty`], [`BuildError::TooLong`], [`BuildError::Segments`].
    pub fn data(&mut self, addr: u64, len: u64, lkey: u32) -> Result<&mut Self, BuildError> {
        let max = u64::from(DATA_MAX);
        let count = match u32::try_from(len) {
            Ok(0) => return Err(BuildError::Empty),
            Ok(count) if count <= DATA_MAX => count,
            _ => return Err(BuildError::TooLong { len, max }),
        };
        let message = self.message + len;
        if message > MESSAGE_MAX {
            return Err(BuildError::TooLong { len: message, max: MESSAGE_MAX });
        }
        self.append_segment(&Data::new(addr, count, lkey))?;
        self.message = message;
        Ok(self)
    }

    /// Appends `payload` itself.
    ///
    /// # Errors
    /// [`BuildError::Empty`], [`BuildError::Segments`].
    pub fn inline(&mut self, payload: &[u8]) -> Result<&mut Self, BuildError> {
        let len = u32::try_from(payload.len())
            .ok()
            .filter(|len| *len <= Self::CAPACITY as u32)
            .ok_or(BuildError::Segments { needed: payload.len().div_ceil(SEGMENT) })?;
        if len == 0 {
            return Err(BuildError::Empty);
        }
        let room = self.reserve(inline_segments(len) as usize)?;
        let (header, rest) = room.split_at_mut(4);
        header.copy_from_slice(inline_header(len).as_bytes());
        let (body, padding) = rest.split_at_mut(payload.len());
        body.copy_from_slice(payload);
        padding.fill(0);
        Ok(self)
    }

    /// Appends the operands of an 8-byte atomic.
    ///
    /// # Errors
    /// [`BuildError::Segments`].
    pub fn atomic(&mut self, operands: &Atomic) -> Result<&mut Self, BuildError> {
        self.append_segment(operands)
    }

    /// Appends the operands of an extended 4-byte compare-and-swap and sets `opmod`.
    ///
    /// # Errors
    /// [`BuildError::Segments`].
    pub fn masked_cas4(&mut self, operands: &MaskedCas4) -> Result<&mut Self, BuildError> {
        Ok(self.append_segment(operands)?.opmod(super::OPMOD_EXTENDED_4))
    }

    /// Appends the operands of an extended 8-byte compare-and-swap and sets `opmod`.
    ///
    /// # Errors
    /// [`BuildError::Segments`].
    pub fn masked_cas8(&mut self, operands: &MaskedCas8) -> Result<&mut Self, BuildError> {
        Ok(self.append_segment(operands)?.opmod(super::OPMOD_EXTENDED_8))
    }

    /// Appends the operands of an extended 4-byte fetch-and-add and sets `opmod`.
    ///
    /// # Errors
    /// [`BuildError::Segments`].
    pub fn masked_fa4(&mut self, operands: &MaskedFa4) -> Result<&mut Self, BuildError> {
        Ok(self.append_segment(operands)?.opmod(super::OPMOD_EXTENDED_4))
    }

    /// Appends the operands of an extended 8-byte fetch-and-add and sets `opmod`.
    ///
    /// # Errors
    /// [`BuildError::Segments`].
    pub fn masked_fa8(&mut self, operands: &MaskedFa8) -> Result<&mut Self, BuildError> {
        Ok(self.append_segment(operands)?.opmod(super::OPMOD_EXTENDED_8))
    }

    /// The WQE so far, `ds` segments.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.bytes.split_at(usize::from(self.ds) * SEGMENT).0
    }
    /// The control segment so far.
    #[must_use]
    pub const fn ctrl(&self) -> &Ctrl {
        &self.ctrl
    }
    /// Basic blocks taken in the queue.
    #[must_use]
    pub const fn blocks(&self) -> u32 {
        blocks(self.ds)
    }

    fn write_ctrl(&mut self) {
        let qpn = self.ctrl.qpn();
        self.ctrl.qpn_ds.set(qpn << 8 | u32::from(self.ds));
        let (head, _) = self.bytes.split_at_mut(SEGMENT);
        head.copy_from_slice(self.ctrl.as_bytes());
    }

    fn reserve(&mut self, segments: usize) -> Result<&mut [u8], BuildError> {
        let start = usize::from(self.ds);
        let needed = start + segments;
        let ds = u8::try_from(needed).ok().filter(|ds| *ds <= DS_MAX);
        self.ds = ds.ok_or(BuildError::Segments { needed })?;
        self.write_ctrl();
        let (head, _) = self.bytes.split_at_mut(needed * SEGMENT);
        Ok(head.split_at_mut(start * SEGMENT).1)
    }

    fn append_segment<T: IntoBytes + Immutable>(
        &mut self,
        segment: &T,
    ) -> Result<&mut Self, BuildError> {
        self.append(segment.as_bytes())
    }

    fn append(&mut self, bytes: &[u8]) -> Result<&mut Self, BuildError> {
        self.reserve(bytes.len() / SEGMENT)?.copy_from_slice(bytes);
        Ok(self)
    }
}
