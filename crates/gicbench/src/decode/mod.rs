//! `gicbench decode`: bytes of a WQE, CQE or doorbell, in any of the usual print forms, field by field.

use std::fmt;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use wire::explain::{Explain, Remark, Sink, Text};

mod dump;
mod fields;
mod interpret;
mod json;
#[cfg(test)]
mod tests;

/// The most text that is read.
const INPUT_MAX: u64 = 16 << 20;

/// What the bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum What {
    /// Send WQEs, from a control segment on; several are walked one after the other
    Wqe,
    /// Completion queue entries: 64 bytes, the last 16, or their printed fields
    Cqe,
    /// A doorbell register's value (8 bytes) or a doorbell record (4 or 8 bytes)
    Doorbell,
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Wqe => "wqe",
            Self::Cqe => "cqe",
            Self::Doorbell => "doorbell",
        })
    }
}

/// In which order the digits of a group show its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Order {
    /// Try both, show what makes sense
    #[default]
    Auto,
    /// As in memory (mlx5 is big-endian)
    Memory,
    /// Little-endian integers: gdb's x/xw and hexdump's default on most hosts
    Little,
}

/// Arguments of `gicbench decode`.
#[derive(Clone, Debug, clap::Args)]
pub struct DecodeArgs {
    /// What the bytes are
    #[arg(value_enum)]
    pub what: What,
    /// The dump itself, a file that holds it, or - for standard input
    #[arg(value_name = "HEX|FILE|-", required = true, num_args = 1.., allow_hyphen_values = false)]
    pub input: Vec<String>,
    /// Byte order within a group of digits
    #[arg(long, value_enum, default_value_t)]
    pub order: Order,
    /// The WQEs are of a DC initiator: expect address vectors
    #[arg(long)]
    pub dc: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// How to read a text.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// What the bytes are.
    pub what: What,
    /// Byte order within a group of digits.
    pub order: Order,
    /// Whether WQEs have address vectors.
    pub dc: bool,
    /// JSON rather than text.
    pub json: bool,
}

/// Why there is nothing to decode.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// The input can't be read.
    #[error("can't read {}: {source}", path.display())]
    Read {
        /// File, or `-`.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The input is not text.
    #[error(
        "{} is not text (byte {at}): a binary dump goes through `xxd FILE | gicbench decode … -`",
        path.display()
    )]
    Binary {
        /// File, or `-`.
        path: PathBuf,
        /// Offset of the first byte that is no UTF-8.
        at: usize,
    },
    /// More text than any dump has.
    #[error("the input is longer than {} MiB: cut out the dump", INPUT_MAX >> 20)]
    TooLarge,
    /// The output can't be written.
    #[error("can't write the explanation: {0}")]
    Write(#[from] std::io::Error),
    /// A character that is no hexadecimal digit, amid digits.
    #[error(
        "line {line}, column {column}: '{}' is no hexadecimal digit. If the line is not part of the \
         dump, leave it out",
        character.escape_debug()
    )]
    NotHex {
        /// The character.
        character: char,
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
    },
    /// Half a byte.
    #[error(
        "line {line}, column {column}: '{}' has {} digits, half a byte is missing. Words need their leading \
         zeros, or 0x before each",
        shortened(digits),
        digits.len()
    )]
    OddDigits {
        /// The digits.
        digits: String,
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
    },
    /// Offsets that don't follow from the bytes before them.
    #[error(
        "line {line}: its offset is 0x{found:x}, but after the bytes before it 0x{expected:x} is next: a line is \
         missing or cut"
    )]
    Gap {
        /// Line, from 1.
        line: usize,
        /// The offset that the bytes lead to.
        expected: u64,
        /// The offset printed.
        found: u64,
    },
    /// Too few bytes, or a count that the format doesn't have.
    #[error("{have} bytes are no {what}: {need}")]
    Length {
        /// Bytes found.
        have: usize,
        /// What was to be decoded.
        what: What,
        /// What to give.
        need: &'static str,
    },
    /// No bytes at all.
    #[error("no bytes of a {what} in the input{hint}")]
    Nothing {
        /// What was to be decoded.
        what: What,
        /// What to do.
        hint: &'static str,
    },
    /// The input names a file that isn't there.
    #[error("'{}' is neither hexadecimal nor a file", input.escape_debug())]
    NoFile {
        /// What was typed.
        input: String,
    },
}

/// As much of a group of digits as finds it again.
fn shortened(digits: &str) -> String {
    const SHOWN: usize = 32;
    match digits.get(..SHOWN) {
        Some(shown) if digits.len() > SHOWN => format!("{shown}…"),
        _ => digits.to_owned(),
    }
}

/// Decodes what `args` name and writes the explanation to `out`.
///
/// # Errors
/// When the input can't be read or holds nothing of the kind asked for, or `out` fails.
pub fn run(args: &DecodeArgs, out: &mut dyn Write) -> Result<(), DecodeError> {
    let text = read(&args.input)?;
    let options = Options { what: args.what, order: args.order, dc: args.dc, json: args.json };
    match decode(&text, options) {
        Err(
            DecodeError::Nothing { .. }
            | DecodeError::NotHex { .. }
            | DecodeError::OddDigits { .. },
        ) if looks_like_path(&args.input) => Err(DecodeError::NoFile { input: text }),
        result => Ok(out.write_all(result?.as_bytes())?),
    }
}

fn looks_like_path(input: &[String]) -> bool {
    let [name] = input else { return false };
    let shape = name.contains('/') || Path::new(name).extension().is_some();
    shape && !name.contains(char::is_whitespace) && name != "-" && !Path::new(name).exists()
}

fn read(input: &[String]) -> Result<String, DecodeError> {
    let [name] = input else { return Ok(input.join(" ")) };
    let path = PathBuf::from(name);
    let fail = |source| DecodeError::Read { path: path.clone(), source };
    let mut bytes = Vec::new();
    if name == "-" {
        std::io::stdin().lock().take(INPUT_MAX + 1).read_to_end(&mut bytes).map_err(fail)?;
    } else if path.is_dir() {
        return Err(fail(std::io::ErrorKind::IsADirectory.into()));
    } else if path.exists() {
        // Pipes, too: a shell's `<(…)` is one.
        let file = std::fs::File::open(&path).map_err(fail)?;
        file.take(INPUT_MAX + 1).read_to_end(&mut bytes).map_err(fail)?;
    } else {
        return Ok(name.clone());
    }
    if bytes.len() as u64 > INPUT_MAX {
        return Err(DecodeError::TooLarge);
    }
    let text = String::from_utf8(bytes)
        .map_err(|error| DecodeError::Binary { path, at: error.utf8_error().valid_up_to() })?;
    Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text))
}

/// Explains everything of the kind asked for in `text`.
///
/// # Errors
/// When there is nothing of that kind, or what is there can't be read.
pub fn decode(text: &str, options: Options) -> Result<String, DecodeError> {
    let entries = entries(text, options)?;
    let mut out = String::new();
    // Writing to a string doesn't fail.
    let _ = if options.json {
        json::write(&entries, options.what, &mut out)
    } else {
        write_text(&entries, &mut out)
    };
    Ok(out)
}

/// One thing found in the input.
struct Entry {
    /// Line that its dump begins on.
    line: usize,
    /// Where in the dump it begins, in bytes.
    offset: usize,
    /// Whether it is a second reading of bytes that were read already.
    alternative: bool,
    thing: Box<dyn Explain>,
    notes: Vec<(Remark, String)>,
}

fn entries(text: &str, options: Options) -> Result<Vec<Entry>, DecodeError> {
    let what = options.what;
    let dumps = dump::parse(text);
    let named = |dump: &dump::Dump| dump.label == Some(what);
    if let Ok(dumps) = &dumps {
        let labelled = dumps.iter().any(named);
        let wanted: Vec<_> =
            dumps
                .iter()
                .filter(|dump| dump.bytes.len() >= interpret::least(what))
                .filter(|dump| {
                    if labelled { named(dump) } else { dump.label.is_none() || dumps.len() == 1 }
                })
                .collect();
        if !wanted.is_empty() {
            let mut entries = Vec::new();
            for dump in wanted {
                entries.extend(interpret::dump(dump, options)?);
            }
            return Ok(entries);
        }
    }
    if what == What::Cqe {
        let raw = field_entries(text);
        if !raw.is_empty() {
            return Ok(raw);
        }
    }
    let dumps = dumps?;
    match dumps.iter().map(|dump| dump.bytes.len()).max() {
        Some(have) if have < interpret::least(what) => {
            Err(DecodeError::Length { have, what, need: interpret::need(what) })
        }
        Some(_) => {
            Err(DecodeError::Nothing { what, hint: ": the text calls its dumps something else" })
        }
        None => Err(DecodeError::Nothing {
            what,
            hint: ": give hexadecimal digits, a file, or - for standard input",
        }),
    }
}

fn field_entries(text: &str) -> Vec<Entry> {
    let raw = fields::parse(text);
    let several = raw.len() > 1;
    let primary = raw
        .iter()
        .position(|(cqe, _)| cqe.syndrome().is_some_and(|s| s != wire::cqe::Syndrome::Flushed));
    raw.into_iter()
        .enumerate()
        .map(|(nth, (cqe, times))| {
            let mut notes = Vec::new();
            if times > 1 {
                notes.push((Remark::Meaning, format!("the same fields follow {times} times in a row")));
            }
            if several && primary == Some(nth) {
                let text = "the first completion here that isn't flushed: the cause of what follows on its QP";
                notes.push((Remark::Meaning, text.to_owned()));
            }
            Entry { line: 1, offset: 0, alternative: false, thing: Box::new(cqe), notes }
        })
        .collect()
}

fn write_text(entries: &[Entry], out: &mut String) -> fmt::Result {
    use fmt::Write as _;
    for (nth, entry) in entries.iter().enumerate() {
        if nth > 0 {
            writeln!(out)?;
        }
        if entry.alternative {
            write!(out, "also possible: ")?;
        } else if entry.offset > 0 {
            write!(out, "at byte {}: ", entry.offset)?;
        }
        let mut text = Text(&mut *out);
        entry.thing.explain(&mut text)?;
        for (kind, note) in &entry.notes {
            text.remark(*kind, format_args!("{note}"))?;
        }
    }
    Ok(())
}
