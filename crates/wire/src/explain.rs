//! Formats in words: every field with its bytes and its meaning, and what to make of it.
//!
//! Each type here wraps one thing and is both a [`Display`](core::fmt::Display), for people, and an
//! [`Explain`], which hands the same facts one by one to whoever makes something else of them (JSON, a table).

use core::fmt::{self, Arguments, Formatter};

mod cqe;
mod doorbell;
mod syndrome;
mod wqe;

pub use cqe::{Cqe, vendor_hint};
pub use doorbell::{Doorbell, Record};
pub use syndrome::{Guide, WcStatus};
pub use wqe::Wqe;

/// One field: where it is, its bytes, its value.
#[derive(Clone, Copy, Debug)]
pub struct Field<'a> {
    /// Bytes from the start of the whole thing.
    pub offset: usize,
    /// Name, as in `mlx5dv.h` where it has one there.
    pub name: &'static str,
    /// Its bytes, in memory order. A field narrower than a byte shows the byte that it is in.
    pub bytes: &'a [u8],
    /// What they mean.
    pub meaning: Arguments<'a>,
}

/// What a remark is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Remark {
    /// What the whole says.
    Meaning,
    /// What usually brings it about.
    Cause,
    /// What to look at next.
    Next,
    /// Something is wrong or suspicious.
    Warning,
}

impl Remark {
    /// The word that it is printed with.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Meaning => "meaning",
            Self::Cause => "usual cause",
            Self::Next => "look at",
            Self::Warning => "warning",
        }
    }
}

/// Takes an explanation, piece by piece.
pub trait Sink {
    /// What follows is about this.
    ///
    /// # Errors
    /// When the sink can't take it.
    fn title(&mut self, text: Arguments<'_>) -> fmt::Result;
    /// A segment begins.
    ///
    /// # Errors
    /// When the sink can't take it.
    fn segment(&mut self, offset: usize, name: Arguments<'_>) -> fmt::Result;
    /// A field.
    ///
    /// # Errors
    /// When the sink can't take it.
    fn field(&mut self, field: Field<'_>) -> fmt::Result;
    /// A remark.
    ///
    /// # Errors
    /// When the sink can't take it.
    fn remark(&mut self, kind: Remark, text: Arguments<'_>) -> fmt::Result;
}

/// Can be put in words.
pub trait Explain {
    /// Hands everything there is to say to `sink`.
    ///
    /// # Errors
    /// When the sink can't take it.
    fn explain(&self, sink: &mut dyn Sink) -> fmt::Result;
}

/// Writes an explanation as lines of text.
#[derive(Debug)]
pub struct Text<W>(pub W);

impl<W: fmt::Write> Sink for Text<W> {
    fn title(&mut self, text: Arguments<'_>) -> fmt::Result {
        writeln!(self.0, "{text}")
    }
    fn segment(&mut self, offset: usize, name: Arguments<'_>) -> fmt::Result {
        writeln!(self.0, "  {offset:>3}  {name}")
    }
    fn field(&mut self, field: Field<'_>) -> fmt::Result {
        write!(self.0, "  {:>3}    {:<16} ", field.offset, field.name)?;
        let shown = field.bytes.get(..Self::SHOWN).unwrap_or(field.bytes);
        for byte in shown {
            write!(self.0, "{byte:02x}")?;
        }
        let more = if shown.len() < field.bytes.len() { ".." } else { "" };
        let width = (2 * Self::SHOWN + 2).saturating_sub(2 * shown.len());
        writeln!(self.0, "{more:<width$} {}", field.meaning)
    }
    fn remark(&mut self, kind: Remark, text: Arguments<'_>) -> fmt::Result {
        writeln!(self.0, "  {}: {text}", kind.name())
    }
}

impl<W> Text<W> {
    /// Bytes of a field that are shown before it is cut.
    const SHOWN: usize = 8;
}

macro_rules! display {
    ($($type:ty),*) => {$(
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
                self.explain(&mut Text(f))
            }
        }
    )*};
}
display!(Wqe<'_>, Cqe, Doorbell, Record);

/// An opcode byte in words.
#[derive(Clone, Copy)]
struct OpcodeName(u8);

impl fmt::Display for OpcodeName {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match crate::wqe::Opcode::from_byte(self.0) {
            Some(opcode) => f.write_str(opcode.name()),
            None => write!(f, "unknown opcode 0x{:02x}", self.0),
        }
    }
}

/// Hands out fields of one contiguous block, so that offsets and bytes can't disagree.
struct Fields<'s, 'b> {
    sink: &'s mut dyn Sink,
    bytes: &'b [u8],
    base: usize,
}

impl Fields<'_, '_> {
    fn field(
        &mut self,
        offset: usize,
        len: usize,
        name: &'static str,
        meaning: Arguments<'_>,
    ) -> fmt::Result {
        let bytes = self.bytes.get(offset..offset + len).unwrap_or_default();
        self.sink.field(Field { offset: self.base + offset, name, bytes, meaning })
    }
}
