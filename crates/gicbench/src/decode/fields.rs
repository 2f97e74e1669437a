//! CQEs of which only fields were printed: `syndrome=0x5, vendor_err_synd=0xf9, wqe_counter=65281 wqe_qpn=ed020008`.
//!
//! Covered: DOCA's, NVSHMEM's, the kernel's, UCX's, NCCL's and perftest's lines, and JSON. Device code prints
//! big-endian fields without swapping them; what each number must then be is told by the opcode in it.

use std::fmt;

use wire::cqe::{CqeOpcode, Syndrome};
use wire::explain::{Explain, Field, Remark, Sink, vendor_hint};
use wire::wqe::Opcode;

/// What one completion's line said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawCqe {
    syndrome: Option<Number>,
    vendor: Option<Number>,
    hardware: Option<u64>,
    counter: Option<u64>,
    opcode_qpn: Option<u32>,
    qpn: Option<u64>,
    status: Option<u64>,
    kind: Option<CqeOpcode>,
}

/// A number, and whether its base was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Number {
    /// In base 16 if it has `0x` or letters, in base 10 otherwise.
    value: u64,
    /// The other reading of bare decimal digits.
    as_hex: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    Syndrome,
    Vendor,
    Hardware,
    Counter,
    OpcodeQpn,
    Qpn,
    Status,
    Kind,
}

/// The key that the words before a number make, the longest first.
fn key(words: &[&str]) -> Option<Key> {
    let name = |count: usize| {
        let start = words.len().checked_sub(count)?;
        Some(words.get(start..)?.join("_").to_ascii_lowercase())
    };
    (1..=3).rev().filter_map(name).find_map(|name| {
        Some(match name.as_str() {
            // perftest's "syndrom" is the vendor's.
            "vendor_err_synd" | "vendor_syndrome" | "vendor_err" | "vendor_error" | "vendor"
            | "vend" | "vendor_synd" | "syndrom" => Key::Vendor,
            "hw_err_synd" | "hw_syndrome" | "hardware_syndrome" => Key::Hardware,
            "syndrome" | "synd" => Key::Syndrome,
            "wqe_counter" | "wqe_idx" | "wqe_index" | "wqe" => Key::Counter,
            "wqe_qpn" | "s_wqe_opcode_qpn" | "wqe_opcode_qpn" | "sop_drop_qpn" | "sop_qpn"
            | "opcode_qpn" => Key::OpcodeQpn,
            "qpn" | "qp" | "qp_num" | "qn" | "local_qpn" => Key::Qpn,
            "status" | "wc_status" | "wc_error" | "failed_status" => Key::Status,
            "opcode" | "cqe_opcode" => Key::Kind,
            _ => return None,
        })
    })
}

fn number(token: &str) -> Option<Number> {
    if let Some(hex) = token.strip_prefix("0x").or_else(|| token.strip_prefix("0X")) {
        return Some(Number { value: u64::from_str_radix(hex, 16).ok()?, as_hex: None });
    }
    if !token.starts_with(|c: char| c.is_ascii_hexdigit()) {
        return None;
    }
    let hex = u64::from_str_radix(token, 16).ok()?;
    Some(match token.parse() {
        Ok(value) => Number { value, as_hex: Some(hex) },
        Err(_) => Number { value: hex, as_hex: None },
    })
}

/// The completions that a text names by their fields, each with how many times in a row.
pub fn parse(text: &str) -> Vec<(RawCqe, usize)> {
    let mut found: Vec<(RawCqe, usize)> = Vec::new();
    let mut current = RawCqe::default();
    let mut words: Vec<&str> = Vec::new();
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    for token in text.split(|c: char| !is_word(c)).filter(|token| !token.is_empty()) {
        if let Some(status) = Syndrome::ALL.iter().map(|s| s.wc_status()).find(|s| s.name == token)
        {
            current.set(
                Key::Status,
                Number { value: status.value.into(), as_hex: None },
                &mut found,
            );
            words.clear();
            continue;
        }
        match (key(&words), number(token)) {
            (Some(key), Some(number)) => {
                current.set(key, number, &mut found);
                words.clear();
            }
            _ => words.push(token),
        }
        let surplus = words.len().saturating_sub(3);
        words.drain(..surplus);
    }
    current.finish(&mut found);
    found
}

impl RawCqe {
    fn set(&mut self, key: Key, number: Number, found: &mut Vec<(Self, usize)>) {
        let taken = match key {
            Key::Syndrome => self.syndrome.is_some(),
            Key::Vendor => self.vendor.is_some(),
            Key::Status => self.status.is_some(),
            Key::Hardware => self.hardware.is_some(),
            Key::Counter => self.counter.is_some(),
            Key::OpcodeQpn => self.opcode_qpn.is_some(),
            Key::Qpn | Key::Kind => false,
        };
        if taken {
            std::mem::take(self).finish(found);
        }
        match key {
            Key::Syndrome => self.syndrome = Some(number),
            Key::Vendor => self.vendor = Some(number),
            Key::Hardware => self.hardware = Some(number.value),
            Key::Counter => self.counter = Some(number.value),
            Key::OpcodeQpn => {
                self.opcode_qpn = u32::try_from(number.as_hex.unwrap_or(number.value)).ok();
            }
            Key::Qpn => self.qpn = Some(number.value),
            Key::Status => self.status = Some(number.value),
            // Only the CQE's own error opcodes say anything: verbs leaves its opcode undefined on errors.
            Key::Kind => {
                self.kind = match number.value {
                    13 => Some(CqeOpcode::RequesterError),
                    14 => Some(CqeOpcode::ResponderError),
                    _ => self.kind,
                }
            }
        }
    }

    fn finish(self, found: &mut Vec<(Self, usize)>) {
        let says = self.syndrome.is_some()
            || self.status.is_some()
            || self.vendor.is_some()
            || self.opcode_qpn.is_some();
        match found.last_mut() {
            _ if !says => {}
            Some((last, times)) if *last == self => *times += 1,
            _ => found.push((self, 1)),
        }
    }

    /// Syndrome byte, vendor byte, and whether bare digits were taken for hexadecimal.
    fn bytes(&self) -> (Option<u64>, Option<u64>, bool) {
        let known = |value: u64| u8::try_from(value).ok().and_then(Syndrome::from_byte).is_some();
        let hex = match self.syndrome {
            Some(Number { value, as_hex: Some(hex) }) => !known(value) && known(hex),
            _ => false,
        };
        let read =
            |number: Number| if hex { number.as_hex.unwrap_or(number.value) } else { number.value };
        (self.syndrome.map(read), self.vendor.map(read), hex)
    }

    /// The syndrome, printed or behind the status of verbs.
    pub fn syndrome(&self) -> Option<Syndrome> {
        let (syndrome, ..) = self.bytes();
        let byte = |value: u64| u8::try_from(value).ok();
        syndrome
            .and_then(byte)
            .and_then(Syndrome::from_byte)
            .or_else(|| self.status.and_then(byte).and_then(Syndrome::from_wc_status))
    }
}

/// Opcode and QP number of `s_wqe_opcode_qpn`, if it can be one.
fn opcode_qpn(word: u32) -> Option<(Opcode, u32)> {
    let opcode = Opcode::from_byte((word >> 24) as u8)?;
    let qpn = word & wire::NUMBER_MASK;
    (qpn != 0).then_some((opcode, qpn))
}

/// A field printed alone: it has no offset.
const fn field<'a>(name: &'static str, bytes: &'a [u8], meaning: fmt::Arguments<'a>) -> Field<'a> {
    Field { offset: 0, name, bytes, meaning }
}

struct OrRaw<'a>(Option<(Opcode, u32)>, &'a str);

impl fmt::Display for OrRaw<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some((opcode, qpn)) => write!(f, "{}, QP 0x{qpn:x} ({qpn}){}", opcode.name(), self.1),
            None => f.write_str("neither byte order gives a known opcode"),
        }
    }
}

impl Explain for RawCqe {
    fn explain(&self, sink: &mut dyn Sink) -> fmt::Result {
        let plain = self.opcode_qpn.and_then(opcode_qpn);
        let swapped = self.opcode_qpn.map(u32::swap_bytes).and_then(opcode_qpn);
        // A word that reads the same both ways needs no remark.
        let swapped = swapped.filter(|_| plain != swapped);
        let unswapped = plain.is_none() && swapped.is_some();
        self.title(sink, if unswapped { swapped } else { plain }, unswapped)?;
        self.codes(sink)?;
        if let Some(word) = self.opcode_qpn {
            let bytes = word.to_be_bytes();
            let (best, how) = if unswapped { (swapped, ", byte-swapped") } else { (plain, "") };
            sink.field(field("opcode_qpn", &bytes, format_args!("{}", OrRaw(best, how))))?;
        }
        if let Some(counter) = self.counter {
            let bytes = counter.to_be_bytes();
            let bytes = bytes.get(6..).unwrap_or_default();
            match u16::try_from(counter) {
                Ok(counter) if unswapped => sink.field(field(
                    "wqe_counter",
                    bytes,
                    format_args!(
                        "WQE {}, byte-swapped (printed as {counter})",
                        counter.swap_bytes()
                    ),
                ))?,
                _ => sink.field(field("wqe_counter", bytes, format_args!("WQE {counter}")))?,
            }
        }
        if let Some(qpn) = self.qpn {
            let bytes = qpn.to_be_bytes();
            sink.field(field(
                "qpn",
                bytes.get(5..).unwrap_or_default(),
                format_args!("0x{qpn:x} ({qpn})"),
            ))?;
        }
        self.byte_order(sink, plain, swapped)?;
        match self.syndrome() {
            Some(syndrome) => syndrome.explain(sink)?,
            None => sink.remark(
                Remark::Warning,
                format_args!(
                    "no known syndrome or status: only the vendor's code is there to go by"
                ),
            )?,
        }
        if self.status.is_some() {
            sink.remark(
                Remark::Meaning,
                format_args!("on a failed completion only wr_id, status, vendor error and QP number mean anything"),
            )?;
        }
        Ok(())
    }
}

impl RawCqe {
    fn title(
        &self,
        sink: &mut dyn Sink,
        at: Option<(Opcode, u32)>,
        unswapped: bool,
    ) -> fmt::Result {
        let kind = self.kind.map_or("error", CqeOpcode::name);
        let name = self.syndrome().map_or("unknown syndrome", Syndrome::name);
        let counter = self.counter.and_then(|counter| u16::try_from(counter).ok());
        let counter = counter.map(|counter| if unswapped { counter.swap_bytes() } else { counter });
        match (at, counter) {
            (Some((opcode, qpn)), Some(index)) => sink.title(format_args!(
                "CQE fields: {kind}, {name}, {} WQE {index} of QP 0x{qpn:x}",
                opcode.name()
            )),
            (Some((opcode, qpn)), None) => sink.title(format_args!(
                "CQE fields: {kind}, {name}, {} of QP 0x{qpn:x}",
                opcode.name()
            )),
            _ => sink.title(format_args!("CQE fields: {kind}, {name}")),
        }
    }

    fn codes(&self, sink: &mut dyn Sink) -> fmt::Result {
        let (syndrome, vendor, bare_hex) = self.bytes();
        let low = |value: u64| [value as u8];
        if let Some(value) = syndrome {
            let name = u8::try_from(value).ok().and_then(Syndrome::from_byte);
            let name = name.map_or("unknown syndrome", Syndrome::name);
            let meaning = format_args!("0x{value:02x}: {name}");
            sink.field(Field { offset: 0, name: "syndrome", bytes: &low(value), meaning })?;
        }
        if let Some(status) = self.status {
            let name = u8::try_from(status).ok().and_then(Syndrome::from_wc_status);
            let name = name.map_or("not a status of an mlx5 syndrome", |s| s.wc_status().name);
            let meaning = format_args!("{status} = {name}");
            sink.field(Field { offset: 0, name: "status", bytes: &low(status), meaning })?;
        }
        if let Some(value) = vendor {
            let hint =
                u8::try_from(value).ok().and_then(vendor_hint).unwrap_or("no public reports known");
            let meaning = format_args!("0x{value:02x} = {value}, {hint}");
            sink.field(Field { offset: 0, name: "vendor_err_synd", bytes: &low(value), meaning })?;
        }
        if let Some(value) = self.hardware {
            let meaning = format_args!("0x{value:02x} = {value}");
            sink.field(Field { offset: 0, name: "hw_err_synd", bytes: &low(value), meaning })?;
        }
        if bare_hex {
            sink.remark(
                Remark::Meaning,
                format_args!(
                    "the syndrome makes sense in base 16 only: bare digits are read as hexadecimal"
                ),
            )?;
        }
        Ok(())
    }

    fn byte_order(
        &self,
        sink: &mut dyn Sink,
        plain: Option<(Opcode, u32)>,
        swapped: Option<(Opcode, u32)>,
    ) -> fmt::Result {
        match (plain, swapped) {
            (None, Some(_)) => {
                sink.remark(
                    Remark::Meaning,
                    format_args!(
                        "the program printed big-endian fields unswapped: the opcode makes sense only with its \
                         bytes swapped"
                    ),
                )?;
                match self.counter.and_then(|counter| u16::try_from(counter).ok()) {
                    Some(counter) if counter != counter.swap_bytes() => sink.remark(
                        Remark::Meaning,
                        format_args!(
                            "the counter is taken to be unswapped too: WQE {}. Some versions swap the counter \
                             alone; it would then be WQE {counter}",
                            counter.swap_bytes()
                        ),
                    ),
                    _ => Ok(()),
                }
            }
            (Some(_), Some((opcode, qpn))) => sink.remark(
                Remark::Warning,
                format_args!(
                    "both byte orders make sense. If the fields were printed unswapped: {}, QP 0x{qpn:x} ({qpn}){}",
                    opcode.name(),
                    AlsoCounter(self.counter)
                ),
            ),
            _ => Ok(()),
        }
    }
}

struct AlsoCounter(Option<u64>);

impl fmt::Display for AlsoCounter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.and_then(|counter| u16::try_from(counter).ok()) {
            Some(counter) => write!(f, ", WQE {}", counter.swap_bytes()),
            None => Ok(()),
        }
    }
}
