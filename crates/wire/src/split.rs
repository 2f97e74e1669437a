//! Cutting a put or get into messages that the NIC takes.
//!
//! Memory is often registered in chunks, each with its own key, and a message is bounded by the device. A piece
//! therefore ends at the first of: the local chunk's end, the remote chunk's end, the largest message.

use core::fmt;
use core::num::NonZeroU64;

use crate::wqe::DATA_MAX;

/// One side of a transfer: where it begins in a range that is registered in chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Side {
    /// Bytes from the registered range's start.
    pub offset: u64,
    /// Bytes of a chunk; `None` for one registration over all of it.
    pub chunk: Option<NonZeroU64>,
}

impl Side {
    /// A range under one key.
    #[must_use]
    pub const fn whole(offset: u64) -> Self {
        Self { offset, chunk: None }
    }
    /// A range in chunks of `chunk` bytes.
    #[must_use]
    pub const fn chunked(offset: u64, chunk: NonZeroU64) -> Self {
        Self { offset, chunk: Some(chunk) }
    }
    fn chunk_at(self, done: u64) -> u64 {
        self.chunk.map_or(0, |chunk| (self.offset + done) / chunk)
    }
    fn room_at(self, done: u64) -> u64 {
        self.chunk.map_or(u64::MAX, |chunk| chunk.get() - (self.offset + done) % chunk)
    }
}

/// One message of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Bytes of the transfer before it.
    pub done: u64,
    /// Its bytes, never 0.
    pub bytes: u32,
    /// Index of the local chunk that it lies in.
    pub local_chunk: u64,
    /// Index of the remote chunk that it lies in.
    pub remote_chunk: u64,
    /// Whether it is the transfer's last, the only one that need ask for a completion.
    pub last: bool,
}

/// Why a transfer can't be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SplitError {
    /// The largest message is 0, or more than a data segment can name.
    MaxMessage {
        /// The bound given.
        max: u32,
    },
    /// A side's end lies beyond 2^64.
    Overflow {
        /// Where the side begins.
        offset: u64,
        /// Bytes of the transfer.
        length: u64,
    },
    /// More than one message, where one was asked for.
    NotOne {
        /// Bytes of the transfer.
        length: u64,
        /// Bytes that fit the first message.
        fits: u32,
    },
}

impl fmt::Display for SplitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::MaxMessage { max } => {
                write!(f, "a largest message of {max} bytes: 1 to {DATA_MAX} are possible")
            }
            Self::Overflow { offset, length } => {
                write!(f, "{length} bytes from offset {offset} end beyond 2^64")
            }
            Self::NotOne { length, fits } => {
                write!(f, "{length} bytes don't fit one WQE: {fits} do")
            }
        }
    }
}

impl core::error::Error for SplitError {}

/// The messages of a transfer of `length` bytes, each at most `max_message`. A transfer of 0 bytes has none.
///
/// # Errors
/// [`SplitError::MaxMessage`], [`SplitError::Overflow`].
///
/// ```
/// use wire::split::{Side, split};
/// let sizes: Vec<_> = split(Side::whole(0), Side::whole(0), (1 << 30) + 4, 1 << 30)?.map(|p| p.bytes).collect();
/// assert_eq!(sizes, [1 << 30, 4]);
/// # Ok::<(), wire::split::SplitError>(())
/// ```
pub const fn split(
    local: Side,
    remote: Side,
    length: u64,
    max_message: u32,
) -> Result<Split, SplitError> {
    if max_message == 0 || max_message > DATA_MAX {
        return Err(SplitError::MaxMessage { max: max_message });
    }
    if local.offset.checked_add(length).is_none() {
        return Err(SplitError::Overflow { offset: local.offset, length });
    }
    if remote.offset.checked_add(length).is_none() {
        return Err(SplitError::Overflow { offset: remote.offset, length });
    }
    Ok(Split { local, remote, length, max_message, done: 0 })
}

/// The one message of a transfer that must not be cut, `None` where it has no bytes.
///
/// # Errors
/// As [`split`], and [`SplitError::NotOne`].
pub fn single(
    local: Side,
    remote: Side,
    length: u64,
    max_message: u32,
) -> Result<Option<Piece>, SplitError> {
    match split(local, remote, length, max_message)?.next() {
        Some(piece) if !piece.last => Err(SplitError::NotOne { length, fits: piece.bytes }),
        piece => Ok(piece),
    }
}

/// Iterator over a transfer's messages; see [`split`].
#[derive(Clone, Debug)]
pub struct Split {
    local: Side,
    remote: Side,
    length: u64,
    max_message: u32,
    done: u64,
}

impl Iterator for Split {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        let done = self.done;
        let left = self.length - done;
        if left == 0 {
            return None;
        }
        let room = self.local.room_at(done).min(self.remote.room_at(done)).min(left);
        let bytes = u32::try_from(room).unwrap_or(u32::MAX).min(self.max_message);
        self.done += u64::from(bytes);
        Some(Piece {
            done,
            bytes,
            local_chunk: self.local.chunk_at(done),
            remote_chunk: self.remote.chunk_at(done),
            last: self.done == self.length,
        })
    }
}

impl core::iter::FusedIterator for Split {}
