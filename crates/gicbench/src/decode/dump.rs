//! From the text of a dump to bytes, whoever printed it.
//!
//! Understood: words or bytes with or without spaces, commas, `0x`, `\x` and C brackets; offsets with or without a
//! colon; `hexdump`, `hexdump -C`, `xxd`, `od`, gdb's `x`; ASCII columns; `*` for repeated lines; kernel and syslog
//! prefixes; quoted mail. Lines of prose between dumps separate them and name what follows.

use super::{DecodeError, What};

/// The most bytes that all `*` of a text may stand for.
const SQUEEZE_MAX: u64 = 1 << 20;

/// The longest ASCII column that is looked for.
const ASCII_MAX: usize = 512;

/// The longest offset, its `0x` included.
const OFFSET_MAX: usize = 18;

/// The fewest bytes that make a line with a label a dump.
const LABELLED_MIN: usize = 4;

/// Bytes that one dump shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dump {
    /// What the text before it calls it.
    pub label: Option<What>,
    /// Line that it begins on, from 1.
    pub line: usize,
    /// The bytes, each group of digits taken in the order printed.
    pub bytes: Vec<u8>,
    /// Bytes in a group, when all groups have the same size and it is that of an integer.
    pub group: Option<usize>,
    /// `hexdump`'s and `od -x`'s default form, which prints 16-bit host integers.
    pub host_words: bool,
    /// What was noticed on the way.
    pub notes: Vec<String>,
}

impl Dump {
    /// The bytes in memory order, if the groups were printed as little-endian integers.
    pub fn swapped(&self) -> Option<Vec<u8>> {
        let group = self.group.filter(|group| *group > 1)?;
        let mut bytes = self.bytes.clone();
        bytes.chunks_mut(group).for_each(<[u8]>::reverse);
        Some(bytes)
    }
}

/// All dumps in a text, in order.
///
/// # Errors
/// A character that is no hexadecimal digit amid digits, an odd count of digits, offsets that don't add up.
pub fn parse(text: &str) -> Result<Vec<Dump>, DecodeError> {
    let mut dumps = Vec::new();
    let mut open: Option<Open> = None;
    let mut label = None;
    let mut squeezable = SQUEEZE_MAX;
    for (number, raw) in text.lines().enumerate() {
        match Line::read(number + 1, raw)? {
            Line::Prose => {
                if let Some(dump) = open.take() {
                    dumps.extend(dump.close(text)?);
                }
                label = label_of(raw).or(label);
            }
            Line::Blank => {}
            Line::Squeeze => {
                if let Some(dump) = &mut open {
                    dump.squeezed = true;
                }
            }
            Line::Data(mut line) => {
                line.find_offset(open.as_ref());
                if open.as_ref().is_some_and(|dump| dump.ends_before(&line)) {
                    dumps.extend(open.take().map_or(Ok(None), |dump| dump.close(text))?);
                }
                let dump = open.get_or_insert_with(|| Open::new(label.take(), number + 1));
                dump.push(line, &mut squeezable)?;
            }
        }
    }
    if let Some(dump) = open {
        dumps.extend(dump.close(text)?);
    }
    Ok(dumps)
}

fn label_of(prose: &str) -> Option<What> {
    let prose = prose.to_ascii_lowercase();
    let last = |word| prose.rfind(word);
    match (last("wqe"), last("cqe").or(last("completion"))) {
        (Some(wqe), Some(cqe)) => Some(if wqe > cqe { What::Wqe } else { What::Cqe }),
        (Some(_), None) => Some(What::Wqe),
        (None, Some(_)) => Some(What::Cqe),
        (None, None) => last("doorbell").map(|_| What::Doorbell),
    }
}

/// A group of digits as printed.
#[derive(Clone, Debug)]
struct Digits {
    text: String,
    prefixed: bool,
    line: usize,
    /// Bytes of the line before it.
    at: usize,
}

#[derive(Clone, Debug)]
struct Offset {
    hex: u64,
    /// The same digits in base 8, when `od` may have printed them.
    octal: Option<u64>,
}

impl Offset {
    fn new(digits: &str) -> Option<Self> {
        let hex = u64::from_str_radix(digits, 16).ok()?;
        let octal = (digits.len() == 7).then(|| u64::from_str_radix(digits, 8).ok()).flatten();
        Some(Self { hex, octal })
    }
}

struct DataLine {
    number: usize,
    offset: Option<Offset>,
    digits: Vec<Digits>,
    seven: bool,
    /// A label stood before the digits, where others have their offset.
    labelled: bool,
}

enum Line {
    Blank,
    Prose,
    Squeeze,
    Data(DataLine),
}

impl Line {
    fn read(number: usize, raw: &str) -> Result<Self, DecodeError> {
        // hexdump -C sets its ASCII column between bars.
        let body = strip_stamp(raw).split('|').next().unwrap_or_default();
        match body.trim() {
            "" => return Ok(Self::Blank),
            "*" => return Ok(Self::Squeeze),
            _ => {}
        }
        let (offset, data) = strip_prefix(body);
        let labelled = offset.is_none() && data.len() < body.len();
        let at = |part: &str| (part.as_ptr() as usize).saturating_sub(raw.as_ptr() as usize);
        let mut digits: Vec<Digits> = Vec::new();
        let mut wrong: Option<(char, usize)> = None;
        let (mut wrongs, mut shown) = (0, 0);
        for word in words(data) {
            if word.gap >= 2 && shown > 0 && is_ascii_column(word.rest, shown, offset.is_some()) {
                break;
            }
            for piece in pieces(word.text) {
                match piece {
                    Piece::Digits { text, prefixed } => {
                        shown += text.len().div_ceil(2);
                        digits.push(Digits {
                            text: text.to_owned(),
                            prefixed,
                            line: number,
                            at: at(text),
                        });
                    }
                    Piece::Wrong { part, character } => {
                        wrongs += 1;
                        wrong.get_or_insert((character, at(part)));
                    }
                }
            }
        }
        if wrongs >= digits.len() && wrongs > 0 || digits.is_empty() && offset.is_none() {
            return Ok(Self::Prose);
        }
        // `..., WQE index 0xf, len: 64`
        if labelled && shown < LABELLED_MIN {
            return Ok(Self::Prose);
        }
        if let Some((character, at)) = wrong {
            let column = column_of(raw, at);
            return Err(DecodeError::NotHex { character, line: number, column });
        }
        Ok(Self::Data(DataLine { number, offset, digits, seven: false, labelled }))
    }
}

/// Column, from 1, of the character before which there are `at` bytes.
fn column_of(line: &str, at: usize) -> usize {
    line.get(..at).map_or(1, |before| before.chars().count() + 1)
}

/// Without mail quotes and a kernel time stamp.
fn strip_stamp(raw: &str) -> &str {
    let body = raw.trim_start_matches(['>', ' ', '\t']);
    let stamp = body.strip_prefix('[').and_then(|rest| rest.split_once(']'));
    match stamp {
        Some((stamp, rest))
            if stamp.contains('.')
                && stamp.chars().all(|c| c.is_ascii_digit() || " .".contains(c)) =>
        {
            rest
        }
        _ => body,
    }
}

fn is_hex(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn unprefixed(text: &str) -> (&str, bool) {
    let bare = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    (bare.unwrap_or(text), bare.is_some())
}

/// The offset that a colon ends, and what follows; or what follows the last label.
fn strip_prefix(body: &str) -> (Option<Offset>, &str) {
    let mut after_label = body;
    for (at, _) in body.match_indices(':') {
        let (before, rest) = (&body[..at], &body[at + 1..]);
        let length =
            before.bytes().rev().take(OFFSET_MAX).take_while(u8::is_ascii_alphanumeric).count();
        let token = before.get(before.len() - length..).unwrap_or_default();
        let (token, prefixed) = unprefixed(token);
        let spaced = rest.is_empty() || rest.starts_with(char::is_whitespace);
        let glued = rest.len() >= 8 && !rest.contains(':') && is_hex(rest.trim_end());
        if is_hex(token)
            && (token.len() >= 4 || prefixed)
            && (spaced || glued)
            && let Some(offset) = Offset::new(token)
        {
            return (Some(offset), rest);
        }
        // Bytes may be set apart by colons, the last one included.
        let bytes = rest.is_empty() && before.split(':').all(is_hex);
        if spaced && !bytes {
            after_label = rest;
        }
    }
    (None, after_label)
}

struct Word<'a> {
    /// Blanks before it.
    gap: usize,
    text: &'a str,
    /// From here to the line's end.
    rest: &'a str,
}

fn words(line: &str) -> impl Iterator<Item = Word<'_>> {
    let mut left = line;
    std::iter::from_fn(move || {
        let rest = left.trim_start();
        let gap = left.len() - rest.len();
        let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
        let (text, after) = rest.split_at(end);
        left = after;
        (!text.is_empty()).then_some(Word { gap, text, rest })
    })
}

/// Whether what follows two blanks is the ASCII column of `shown` bytes rather than more digits.
fn is_ascii_column(rest: &str, shown: usize, offset: bool) -> bool {
    let rest = rest.trim_end_matches(['\r', '\n']);
    if rest.len() > ASCII_MAX {
        return false;
    }
    let length = rest.chars().count();
    let quoted = rest.starts_with('>') && rest.ends_with('<');
    let hex = rest.split_whitespace().all(is_hex);
    quoted || offset && (length == shown && (shown >= 16 || !hex) || shown >= 16 && !hex)
}

enum Piece<'a> {
    Digits { text: &'a str, prefixed: bool },
    Wrong { part: &'a str, character: char },
}

/// The groups of digits in a word: `0x00,0x01`, `\x00\x01`, `00:01:ff`, `{0x00`.
fn pieces(word: &str) -> impl Iterator<Item = Piece<'_>> {
    let marks = ['{', '}', '(', ')', '[', ']', '"', '\'', ';', ',', '\\', ':', '-', '_'];
    word.split(marks).filter(|part| !part.is_empty()).map(|part| {
        let (mut text, mut prefixed) = unprefixed(part);
        if !prefixed && let Some(escaped) = part.strip_prefix('x') {
            (text, prefixed) = (escaped, true);
        }
        if prefixed {
            text = text.trim_end_matches(['u', 'U', 'l', 'L']);
        }
        match text.char_indices().find(|(_, c)| !c.is_ascii_hexdigit()) {
            Some((at, character)) => Piece::Wrong { part: &text[at..], character },
            None if text.is_empty() => Piece::Wrong { part, character: 'x' },
            None => Piece::Digits { text, prefixed },
        }
    })
}

impl DataLine {
    /// Takes a leading group for an offset, where its width or its value tells.
    fn find_offset(&mut self, open: Option<&Open>) {
        if self.offset.is_some() {
            return;
        }
        let Some((first, rest)) = self.digits.split_first() else { return };
        if first.prefixed {
            return;
        }
        let width = first.text.len();
        let all = |width| !rest.is_empty() && rest.iter().all(|d| d.text.len() == width);
        let expected = open.map_or(0, |open| open.end() as u64);
        let value = Offset::new(&first.text);
        let ahead = value.as_ref().and_then(|value| value.hex.checked_sub(expected));
        let is_next = ahead == Some(0);
        let is_end = rest.is_empty()
            && open.is_some_and(|open| {
                open.first.is_some() && (is_next || open.squeezed && ahead.is_some())
            });
        let takes = match width {
            // od -A x, hexdump and od, everything else.
            6 => all(2) || all(4) || all(8) || is_end,
            7 => true,
            8 => all(2) || all(4) || all(8) && rest.len() == 4 && is_next || is_end,
            _ => false,
        };
        if takes {
            self.offset = value;
            self.seven = width == 7;
            self.digits.remove(0);
        }
    }
}

struct Open {
    label: Option<What>,
    line: usize,
    digits: Vec<Digits>,
    tally: Tally,
    /// First offset seen, and how many bytes there were before it.
    first: Option<(u64, usize)>,
    octal: bool,
    seven: bool,
    squeezed: bool,
    /// Where the last line's digits begin.
    last_row: usize,
    /// Bytes between the first two offsets.
    stride: Option<u64>,
    notes: Vec<String>,
}

impl Open {
    fn new(label: Option<What>, line: usize) -> Self {
        Self {
            label,
            line,
            digits: Vec::new(),
            tally: Tally::default(),
            first: None,
            octal: false,
            seven: false,
            squeezed: false,
            last_row: 0,
            stride: None,
            notes: Vec::new(),
        }
    }

    /// Bytes so far.
    const fn len(&self) -> usize {
        self.tally.len()
    }

    fn add(&mut self, digits: Digits) {
        self.tally.add(&digits);
        self.digits.push(digits);
    }

    /// Bytes of the last line.
    fn row_len(&self) -> usize {
        let row = self.digits.get(self.last_row..).unwrap_or_default();
        let mut tally = Tally { longest: self.tally.longest, ..Tally::default() };
        row.iter().for_each(|digits| tally.add(digits));
        tally.len()
    }

    /// The offset that the next line should have.
    fn end(&self) -> usize {
        let (first, before) = self.first.unwrap_or_default();
        (first as usize).saturating_add(self.len()).saturating_sub(before)
    }

    /// Whether `line` begins another dump.
    fn ends_before(&self, line: &DataLine) -> bool {
        let Some((first, _)) = self.first else { return false };
        match &line.offset {
            Some(offset) => offset.hex <= first && !line.digits.is_empty(),
            None => line.labelled,
        }
    }

    fn push(&mut self, line: DataLine, squeezable: &mut u64) -> Result<(), DecodeError> {
        if let Some(offset) = &line.offset {
            self.align(offset, line.number, line.seven, squeezable)?;
        }
        self.squeezed = false;
        self.seven |= line.seven;
        if !line.digits.is_empty() {
            self.last_row = self.digits.len();
            line.digits.into_iter().for_each(|digits| self.add(digits));
        }
        Ok(())
    }

    /// Brings the bytes so far to where `offset` says that the next are.
    fn align(
        &mut self,
        offset: &Offset,
        number: usize,
        seven: bool,
        squeezable: &mut u64,
    ) -> Result<(), DecodeError> {
        if self.first.is_none() {
            self.first = Some((offset.hex, self.len()));
            return Ok(());
        }
        let expected = self.end() as u64;
        let last_row = self.first.map_or(0, |(first, _)| first);
        self.stride = self.stride.or(offset.hex.checked_sub(last_row).filter(|_| !seven));
        if offset.octal == Some(expected) && seven && offset.hex != expected {
            self.octal = true;
        }
        let found = offset.octal.filter(|_| self.octal).unwrap_or(offset.hex);
        if found == expected {
            return Ok(());
        }
        let gap = found.saturating_sub(expected);
        if gap > 0 && self.squeezed && gap <= *squeezable {
            *squeezable -= gap;
            let row: Vec<Digits> = self.digits.get(self.last_row..).unwrap_or_default().to_vec();
            self.last_row = self.digits.len();
            for digits in row.iter().cycle() {
                if self.end() as u64 >= found {
                    break;
                }
                self.add(digits.clone());
            }
        }
        self.trim_row(found);
        if self.end() as u64 == found {
            return Ok(());
        }
        Err(DecodeError::Gap { line: number, expected, found })
    }

    /// Drops what the last row has beyond `end`: dumps copied by hand have rows of 17 bytes, and the offsets
    /// know better.
    fn trim_row(&mut self, end: u64) {
        let surplus = self.end() as u64 > end;
        while self.end() as u64 > end && self.digits.len() > self.last_row {
            if let Some(digits) = self.digits.pop() {
                self.tally.remove(&digits);
            }
        }
        if surplus && let Some(row) = self.digits.get(self.last_row) {
            let text = "has more bytes than the offsets leave room for: the surplus is dropped";
            self.notes.push(format!("line {} {text}", row.line));
        }
    }

    fn close(mut self, text: &str) -> Result<Option<Dump>, DecodeError> {
        if let (Some(stride), Some((first, _))) =
            (self.stride.filter(|stride| *stride == 16), self.first)
        {
            let row_start = self.end() as u64 - self.row_len() as u64;
            let in_step = row_start.wrapping_sub(first).is_multiple_of(stride);
            if in_step && self.row_len() as u64 > stride {
                self.trim_row(row_start + stride);
            }
        }
        let width = self.tally.width();
        let mut bytes = Vec::with_capacity(self.len());
        let mut group = None;
        let mut uniform = true;
        for digits in &self.digits {
            let padded = match digits.prefixed {
                true => format!("{:0>width$}", digits.text),
                false => digits.text.clone(),
            };
            if !padded.len().is_multiple_of(2) {
                return Err(DecodeError::OddDigits {
                    digits: digits.text.clone(),
                    line: digits.line,
                    column: text
                        .lines()
                        .nth(digits.line - 1)
                        .map_or(1, |line| column_of(line, digits.at)),
                });
            }
            let size = padded.len() / 2;
            uniform &= *group.get_or_insert(size) == size;
            for pair in padded.as_bytes().chunks(2) {
                let value = pair.iter().fold(0, |value, digit| value << 4 | nibble(*digit));
                bytes.push(value);
            }
        }
        if bytes.is_empty() {
            return Ok(None);
        }
        let group = group.filter(|size| uniform && matches!(size, 1 | 2 | 4 | 8));
        let host_words = self.seven && group == Some(2);
        let (label, line, notes) = (self.label, self.line, self.notes);
        Ok(Some(Dump { label, line, bytes, group, host_words, notes }))
    }
}

/// How many bytes groups of digits make. Groups with `0x` may lack leading zeros: each has the width of the widest
/// integer among them.
#[derive(Default)]
struct Tally {
    bare: usize,
    prefixed: usize,
    count: usize,
    longest: usize,
}

impl Tally {
    /// Digits of each group with `0x`; 0 when one is longer than an integer, and each is as long as printed.
    const fn width(&self) -> usize {
        match self.longest {
            0..=2 => 2,
            3..=4 => 4,
            5..=8 => 8,
            9..=16 => 16,
            _ => 0,
        }
    }
    const fn len(&self) -> usize {
        let prefixed = match self.width() {
            0 => self.prefixed,
            width => self.count * width / 2,
        };
        self.bare + prefixed
    }
    fn add(&mut self, digits: &Digits) {
        let bytes = digits.text.len().div_ceil(2);
        if digits.prefixed {
            self.longest = self.longest.max(digits.text.len());
            self.prefixed += bytes;
            self.count += 1;
        } else {
            self.bare += bytes;
        }
    }
    /// Takes a group back; the width that it gave the others stays.
    fn remove(&mut self, digits: &Digits) {
        let bytes = digits.text.len().div_ceil(2);
        if digits.prefixed {
            self.prefixed -= bytes;
            self.count -= 1;
        } else {
            self.bare -= bytes;
        }
    }
}

fn nibble(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        b'a'..=b'f' => digit - b'a' + 10,
        b'A'..=b'F' => digit - b'A' + 10,
        _ => 0,
    }
}
