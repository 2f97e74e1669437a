//! Reading a WQE segment by segment.

use core::fmt;

use zerocopy::{FromBytes, Immutable, KnownLayout};

use super::{
    AV_EXTENDED, AddressVector, Atomic, Ctrl, DS_MAX, Data, INLINE, INVALID_LKEY, MaskedCas4,
    MaskedCas8, MaskedFa4, MaskedFa8, OPMOD_EXTENDED_4, OPMOD_EXTENDED_8, Opcode, Raddr, SEGMENT,
    Wait, blocks, inline_segments,
};

/// How the QP addresses its peer. The bytes of a WQE don't tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Connected: no address vector.
    Rc,
    /// A DC initiator (or UD): an address vector follows the control segment of what goes to a peer.
    Dc,
}

/// A part of a WQE, for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// Control segment.
    Ctrl,
    /// Address vector.
    AddressVector,
    /// Remote address segment.
    Raddr,
    /// Atomic segment.
    Atomic,
    /// Data pointer or inline data.
    Data,
    /// Wait segment.
    Wait,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ctrl => "control segment",
            Self::AddressVector => "address vector",
            Self::Raddr => "remote address segment",
            Self::Atomic => "atomic segment",
            Self::Data => "data segment",
            Self::Wait => "wait segment",
        })
    }
}

/// Why bytes are not a WQE. Offsets are bytes from the WQE's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WqeError {
    /// Fewer bytes than a control segment.
    Short {
        /// Bytes given.
        have: usize,
    },
    /// `ds` is 0 or exceeds 63.
    Ds {
        /// The whole `ds` byte.
        raw: u8,
    },
    /// `ds` counts more than the bytes given.
    Truncated {
        /// Segments counted by `ds`.
        ds: u8,
        /// Bytes given.
        have: usize,
    },
    /// No such opcode.
    Opcode {
        /// The opcode byte.
        byte: u8,
    },
    /// The opcode's layout depends on an `opmod` that isn't known.
    Opmod {
        /// The opcode.
        opcode: Opcode,
        /// The `opmod` byte.
        opmod: u8,
    },
    /// `ds` ends before something that the opcode needs.
    Missing {
        /// What the opcode needs.
        part: Part,
        /// Where it would be.
        offset: usize,
        /// The opcode.
        opcode: Opcode,
    },
    /// Inline data reaches beyond the end that `ds` gives.
    InlineBeyond {
        /// Where the inline header is.
        offset: usize,
        /// Bytes that it announces.
        len: u32,
        /// Bytes that there is room for.
        room: usize,
    },
    /// Inline data where the NIC has to write: reads and atomics.
    InlineResult {
        /// Where the inline header is.
        offset: usize,
        /// The opcode.
        opcode: Opcode,
    },
}

impl fmt::Display for WqeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Short { have } => {
                write!(f, "{have} bytes are too few for a control segment ({SEGMENT} bytes)")
            }
            Self::Ds { raw: 0 } => write!(f, "ds is 0: not even the control segment is counted"),
            Self::Ds { raw } => {
                write!(f, "ds is {raw}, beyond the {DS_MAX} segments that a WQE may have")
            }
            Self::Truncated { ds, have } => write!(
                f,
                "ds counts {ds} segments ({} bytes), but only {have} bytes are there",
                usize::from(ds) * SEGMENT
            ),
            Self::Opcode { byte } => write!(f, "no known opcode: 0x{byte:02x} at offset 3"),
            Self::Opmod { opcode, opmod } => {
                write!(f, "{} has no layout for opmod 0x{opmod:02x}", opcode.name())
            }
            Self::Missing { part, offset, opcode } => {
                write!(
                    f,
                    "{} needs a {part} at offset {offset}, where ds ends the WQE",
                    opcode.name()
                )
            }
            Self::InlineBeyond { offset, len, room } => write!(
                f,
                "inline header at offset {offset} announces {len} bytes, but ds leaves room for {room}"
            ),
            Self::InlineResult { offset, opcode } => write!(
                f,
                "inline data at offset {offset}: {} has to write its result to memory",
                opcode.name()
            ),
        }
    }
}

impl core::error::Error for WqeError {}

/// One segment after the control segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segment<'a> {
    /// The first 16 bytes of an address vector, all that a DC send to the same subnet needs.
    AddressVectorShort(&'a [u8; SEGMENT]),
    /// A whole address vector (48 bytes).
    AddressVector(AddressVector),
    /// Remote address and key.
    Raddr(Raddr),
    /// Operands of an 8-byte atomic.
    Atomic(Atomic),
    /// Operands of an extended 4-byte compare-and-swap.
    MaskedCas4(MaskedCas4),
    /// Operands of an extended 8-byte compare-and-swap.
    MaskedCas8(MaskedCas8),
    /// Operands of an extended 4-byte fetch-and-add.
    MaskedFa4(MaskedFa4),
    /// Operands of an extended 8-byte fetch-and-add.
    MaskedFa8(MaskedFa8),
    /// A local buffer.
    Data(Data),
    /// Bytes in the WQE itself.
    Inline(&'a [u8]),
    /// What a WAIT waits for.
    Wait(Wait),
    /// A segment of an opcode whose layout isn't modelled here, or a NOP's padding.
    Opaque(&'a [u8; SEGMENT]),
}

impl AddressVector {
    /// Bytes of its short form.
    pub const SHORT: usize = SEGMENT;

    /// Whether [`AV_EXTENDED`] says that all 48 bytes are there.
    #[must_use]
    pub const fn is_extended(&self) -> bool {
        self.dqp_dct.get() & AV_EXTENDED != 0
    }
    /// Destination QP or DCT number.
    #[must_use]
    pub const fn destination(&self) -> u32 {
        self.dqp_dct.get() & crate::NUMBER_MASK
    }
    /// The vector whose first 16 bytes these are, the rest zero.
    #[must_use]
    pub fn from_short(bytes: &[u8; SEGMENT]) -> Self {
        let mut whole = [0; size_of::<Self>()];
        let (head, _) = whole.split_at_mut(SEGMENT);
        head.copy_from_slice(bytes);
        zerocopy::transmute!(whole)
    }
}

/// A segment and where it begins in the WQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed<'a> {
    /// Bytes from the WQE's start.
    pub offset: usize,
    /// The segment.
    pub segment: Segment<'a>,
}

/// A send WQE in contiguous bytes: control segment checked, the rest not yet.
///
/// A WQE that wraps at the queue's end has to be copied together first.
#[derive(Clone, Copy, Debug)]
pub struct Wqe<'a> {
    pub(super) ctrl: Ctrl,
    opcode: Opcode,
    bytes: &'a [u8],
    transport: Transport,
}

impl<'a> Wqe<'a> {
    /// Reads the control segment at the start of `bytes`, which may be longer than the WQE.
    ///
    /// # Errors
    /// [`WqeError::Short`], [`WqeError::Ds`], [`WqeError::Truncated`] or [`WqeError::Opcode`].
    pub fn parse(bytes: &'a [u8], transport: Transport) -> Result<Self, WqeError> {
        let (ctrl, _) =
            Ctrl::read_from_prefix(bytes).map_err(|_| WqeError::Short { have: bytes.len() })?;
        let raw = ctrl.qpn_ds.get() as u8;
        if raw == 0 || raw > DS_MAX {
            return Err(WqeError::Ds { raw });
        }
        let opcode = ctrl.opcode().ok_or(WqeError::Opcode { byte: ctrl.opcode_byte() })?;
        let bytes = bytes
            .get(..usize::from(raw) * SEGMENT)
            .ok_or(WqeError::Truncated { ds: raw, have: bytes.len() })?;
        Ok(Self { ctrl, opcode, bytes, transport })
    }

    /// The control segment.
    #[must_use]
    pub const fn ctrl(&self) -> &Ctrl {
        &self.ctrl
    }
    /// What is asked for.
    #[must_use]
    pub const fn opcode(&self) -> Opcode {
        self.opcode
    }
    /// The WQE's own bytes, `ds` segments.
    #[must_use]
    pub const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }
    /// Basic blocks taken in the queue.
    #[must_use]
    pub const fn blocks(&self) -> u32 {
        blocks(self.ctrl.ds())
    }
    /// The segments after the control segment. Ends after the first error.
    #[must_use]
    pub fn segments(&self) -> Segments<'a> {
        Segments {
            bytes: self.bytes,
            offset: SEGMENT,
            opcode: self.opcode,
            opmod: self.ctrl.opmod(),
            next: Next::first(self.opcode, self.transport),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    AddressVector,
    Raddr,
    Atomic,
    Result { seen: bool },
    Payload,
    Wait,
    Opaque,
    End,
}

impl Next {
    const fn first(opcode: Opcode, transport: Transport) -> Self {
        let addressed = Self::after_address(opcode);
        match (transport, addressed) {
            (Transport::Dc, Self::Raddr) => Self::AddressVector,
            (Transport::Dc, Self::Payload) if !matches!(opcode, Opcode::Dump) => {
                Self::AddressVector
            }
            _ => addressed,
        }
    }
    const fn after_address(opcode: Opcode) -> Self {
        match opcode {
            Opcode::Send | Opcode::SendImm | Opcode::SendInval | Opcode::Dump => Self::Payload,
            Opcode::RdmaWrite
            | Opcode::RdmaWriteImm
            | Opcode::RdmaRead
            | Opcode::AtomicCs
            | Opcode::AtomicFa
            | Opcode::AtomicMaskedCs
            | Opcode::AtomicMaskedFa => Self::Raddr,
            Opcode::Wait => Self::Wait,
            _ => Self::Opaque,
        }
    }
    const fn after_raddr(opcode: Opcode) -> Self {
        match opcode {
            Opcode::RdmaWrite | Opcode::RdmaWriteImm => Self::Payload,
            // A read of nothing needs no buffer, an atomic always returns something.
            Opcode::RdmaRead => Self::Result { seen: true },
            _ => Self::Atomic,
        }
    }
}

/// Iterator over a WQE's segments; see [`Wqe::segments`].
#[derive(Clone, Debug)]
pub struct Segments<'a> {
    bytes: &'a [u8],
    offset: usize,
    opcode: Opcode,
    opmod: u8,
    next: Next,
}

impl<'a> Segments<'a> {
    fn take<T>(&mut self, part: Part) -> Result<T, WqeError>
    where
        T: FromBytes + KnownLayout + Immutable,
    {
        let rest = self.bytes.get(self.offset..).unwrap_or_default();
        match T::read_from_prefix(rest) {
            Ok((segment, _)) => {
                self.offset += size_of::<T>();
                Ok(segment)
            }
            Err(_) => Err(WqeError::Missing { part, offset: self.offset, opcode: self.opcode }),
        }
    }

    fn take_raw(&mut self, part: Part) -> Result<&'a [u8; SEGMENT], WqeError> {
        match self.bytes.get(self.offset..).and_then(<[u8]>::first_chunk) {
            Some(chunk) => {
                self.offset += SEGMENT;
                Ok(chunk)
            }
            None => Err(WqeError::Missing { part, offset: self.offset, opcode: self.opcode }),
        }
    }

    fn atomic(&mut self) -> Result<Segment<'a>, WqeError> {
        let part = Part::Atomic;
        match (self.opcode, self.opmod) {
            (Opcode::AtomicMaskedCs, OPMOD_EXTENDED_4) => self.take(part).map(Segment::MaskedCas4),
            (Opcode::AtomicMaskedCs, OPMOD_EXTENDED_8) => self.take(part).map(Segment::MaskedCas8),
            (Opcode::AtomicMaskedFa, OPMOD_EXTENDED_4) => self.take(part).map(Segment::MaskedFa4),
            (Opcode::AtomicMaskedFa, OPMOD_EXTENDED_8) => self.take(part).map(Segment::MaskedFa8),
            (opcode @ (Opcode::AtomicMaskedCs | Opcode::AtomicMaskedFa), opmod) => {
                Err(WqeError::Opmod { opcode, opmod })
            }
            _ => self.take(part).map(Segment::Atomic),
        }
    }

    fn data(&mut self) -> Result<Segment<'a>, WqeError> {
        let offset = self.offset;
        let data: Data = self.take(Part::Data)?;
        let word = data.byte_count.get();
        if word & INLINE == 0 {
            return Ok(Segment::Data(data));
        }
        if matches!(self.next, Next::Result { .. }) {
            return Err(WqeError::InlineResult { offset, opcode: self.opcode });
        }
        let len = word & !INLINE;
        let start = offset + 4;
        let room = self.bytes.len().saturating_sub(start);
        let inline = usize::try_from(len)
            .ok()
            .and_then(|len| self.bytes.get(start..)?.get(..len))
            .ok_or(WqeError::InlineBeyond { offset, len, room })?;
        self.offset = offset + inline_segments(len) as usize * SEGMENT;
        Ok(Segment::Inline(inline))
    }

    fn step(&mut self) -> Option<Result<Segment<'a>, WqeError>> {
        let at_end = self.offset >= self.bytes.len();
        Some(match self.next {
            Next::AddressVector => {
                self.next = Next::after_address(self.opcode);
                let offset = self.offset;
                self.take_raw(Part::AddressVector).and_then(|short| {
                    if !AddressVector::from_short(short).is_extended() {
                        return Ok(Segment::AddressVectorShort(short));
                    }
                    self.offset = offset;
                    self.take(Part::AddressVector).map(Segment::AddressVector)
                })
            }
            Next::Raddr => {
                self.next = Next::after_raddr(self.opcode);
                self.take(Part::Raddr).map(Segment::Raddr)
            }
            Next::Atomic => {
                self.next = Next::Result { seen: false };
                self.atomic()
            }
            Next::Result { seen: false } => {
                let data = self.data();
                self.next = Next::Result { seen: true };
                data
            }
            Next::Wait => {
                self.next = Next::Opaque;
                self.take(Part::Wait).map(Segment::Wait)
            }
            Next::End => return None,
            _ if at_end => return None,
            Next::Result { seen: true } | Next::Payload => self.data(),
            Next::Opaque => self.take_raw(Part::Ctrl).map(Segment::Opaque),
        })
    }
}

impl<'a> Iterator for Segments<'a> {
    type Item = Result<Placed<'a>, WqeError>;

    fn next(&mut self) -> Option<Self::Item> {
        let offset = self.offset;
        let item = self.step()?.map(|segment| Placed { offset, segment });
        if item.is_err() {
            self.next = Next::End;
        }
        Some(item)
    }
}

impl core::iter::FusedIterator for Segments<'_> {}

/// The scatter list of a receive WQE, up to its [terminator](Data::TERMINATOR) or the end of `bytes` (the
/// receive queue's stride). A receive WQE has no control segment.
#[must_use]
pub const fn receives(bytes: &[u8]) -> Receives<'_> {
    Receives { bytes }
}

/// Iterator over a receive WQE's buffers; see [`receives`].
#[derive(Clone, Debug)]
pub struct Receives<'a> {
    bytes: &'a [u8],
}

impl Iterator for Receives<'_> {
    type Item = Data;

    fn next(&mut self) -> Option<Data> {
        let (data, rest) = Data::read_from_prefix(self.bytes).ok()?;
        let ends = data.lkey.get() == INVALID_LKEY && data.byte_count.get() == 0;
        self.bytes = if ends { &[] } else { rest };
        (!ends).then_some(data)
    }
}
