//! From bytes to what they say, in the byte order in which they say something.

use std::fmt;

use wire::cqe::{Cqe, CqeOpcode};
use wire::doorbell::Doorbell;
use wire::explain::{self, Explain, Remark, Sink};
use wire::wqe::{Opcode, SEGMENT, Transport, WQEBB, Wqe, WqeError};

use super::dump::Dump;
use super::{DecodeError, Entry, Options, Order, What};

/// Bytes of the end of a CQE that suffices.
const TAIL: usize = 16;

/// The fewest bytes that make one.
pub(super) const fn least(what: What) -> usize {
    match what {
        What::Wqe => SEGMENT,
        What::Cqe => TAIL,
        What::Doorbell => 4,
    }
}

/// What to give.
pub(super) const fn need(what: What) -> &'static str {
    match what {
        What::Wqe => "give at least its control segment, 16 bytes",
        What::Cqe => {
            "give all 64, the last 16, or its fields as printed (syndrome, vendor, wqe_counter, …)"
        }
        What::Doorbell => "give the 8 bytes of the register's value, or the 4 or 8 of the record",
    }
}

/// Everything of the kind asked for in a dump.
pub(super) fn dump(dump: &Dump, options: Options) -> Result<Vec<Entry>, DecodeError> {
    let memory = dump.bytes.clone();
    let swapped = dump.swapped().filter(|swapped| *swapped != memory);
    let (mut first, mut second) = match (options.order, swapped) {
        (Order::Memory, _) => (Reading::memory(memory), None),
        (Order::Little, Some(swapped)) => (Reading::little(swapped), None),
        (_, None) => (Reading::memory(memory), None),
        (Order::Auto, Some(swapped)) => (Reading::memory(memory), Some(Reading::little(swapped))),
    };
    // hexdump's default form shows host integers, and most hosts are little-endian.
    if dump.host_words
        && let Some(little) = second.take()
    {
        second = Some(std::mem::replace(&mut first, little));
    }
    if let Some(other) =
        second.take_if(|other| !first.makes_sense(options) && other.makes_sense(options))
    {
        first = other;
    }
    let mut notes: Vec<_> = dump.notes.iter().map(|note| (Remark::Warning, note.clone())).collect();
    if first.little {
        let bits = dump.group.unwrap_or(1) * 8;
        let text = format!(
            "the dump shows {bits}-bit little-endian integers: bytes are put back in memory order"
        );
        notes.push((Remark::Meaning, text));
    }
    let mut entries = first.entries(dump, options)?;
    if let Some(other) = second.filter(|other| other.makes_sense(options)) {
        for mut entry in other.entries(dump, options)? {
            entry.alternative = true;
            let how = if other.little { "as little-endian integers" } else { "in memory order" };
            entry
                .notes
                .push((Remark::Meaning, format!("if the digits are {how}; --order settles it")));
            entries.push(entry);
        }
    }
    if let Some(entry) = entries.first_mut() {
        entry.notes.splice(0..0, notes);
    }
    Ok(entries)
}

/// The bytes in one of the two orders.
struct Reading {
    bytes: Vec<u8>,
    little: bool,
}

impl Reading {
    const fn memory(bytes: Vec<u8>) -> Self {
        Self { bytes, little: false }
    }
    const fn little(bytes: Vec<u8>) -> Self {
        Self { bytes, little: true }
    }

    fn makes_sense(&self, options: Options) -> bool {
        match options.what {
            What::Wqe => {
                let wqe = Wqe::parse(&self.bytes, transport(options));
                // What is cut short may still be right up to there.
                matches!(wqe, Err(WqeError::Truncated { .. }))
                    && self.bytes.get(3).is_some_and(|op| Opcode::from_byte(*op).is_some())
                    || wqe.is_ok_and(|wqe| {
                        wqe.ctrl().qpn() != 0 && wqe.segments().all(|segment| segment.is_ok())
                    })
            }
            What::Cqe => cqes(&self.bytes).is_ok_and(|cqes| {
                let written = |cqe: &explain::Cqe| cqe.cqe().opcode() != Some(CqeOpcode::Invalid);
                let mut cqes =
                    cqes.iter().map(|(_, cqe)| cqe).filter(|cqe| written(cqe)).peekable();
                cqes.peek().is_some() && cqes.all(|cqe| plausible(cqe.cqe()))
            }),
            What::Doorbell => match *self.bytes.as_slice() {
                [a, b, _, _] => a == 0 && b == 0,
                _ => {
                    doorbell(&self.bytes).is_some_and(register_plausible)
                        || record(&self.bytes).is_some_and(record_plausible)
                }
            },
        }
    }

    fn entries(&self, dump: &Dump, options: Options) -> Result<Vec<Entry>, DecodeError> {
        let entry = |offset, thing: Box<dyn Explain>| Entry {
            line: dump.line,
            offset,
            alternative: false,
            thing,
            notes: Vec::new(),
        };
        match options.what {
            What::Wqe => Ok(walk(&self.bytes, transport(options), entry)),
            What::Cqe => {
                let all = cqes(&self.bytes)?;
                let is_new = |cqe: &explain::Cqe| cqe.cqe().opcode() == Some(CqeOpcode::Invalid);
                let skip = all.len() > 1 && !all.iter().all(|(_, cqe)| is_new(cqe));
                let skipped =
                    if skip { all.iter().filter(|(_, cqe)| is_new(cqe)).count() } else { 0 };
                let shown = all.into_iter().filter(|(_, cqe)| !skip || !is_new(cqe));
                let mut entries: Vec<_> = shown
                    .map(|(offset, cqe)| entry(offset, Box::new(cqe) as Box<dyn Explain>))
                    .collect();
                if let Some(last) = entries.last_mut().filter(|_| skipped > 0) {
                    last.notes.push((
                        Remark::Meaning,
                        format!("{skipped} entries not written yet are left out"),
                    ));
                }
                Ok(entries)
            }
            What::Doorbell => doorbells(&self.bytes, entry),
        }
    }
}

const fn transport(options: Options) -> Transport {
    if options.dc { Transport::Dc } else { Transport::Rc }
}

/// The entries of a CQ, or of a part of one CQE that holds its end.
fn cqes(bytes: &[u8]) -> Result<Vec<(usize, explain::Cqe)>, DecodeError> {
    let size = size_of::<Cqe>();
    if !bytes.is_empty() && bytes.len().is_multiple_of(size) {
        let whole = |(nth, chunk)| {
            <[u8; 64]>::try_from(chunk)
                .ok()
                .map(|raw| (nth * size, explain::Cqe::whole(Cqe::from_bytes(raw))))
        };
        return Ok(bytes.chunks(size).enumerate().filter_map(whole).collect());
    }
    match bytes.last_chunk::<TAIL>() {
        Some(tail) if bytes.len() < size && bytes.len().is_multiple_of(TAIL) => {
            Ok(vec![(0, explain::Cqe::tail(*tail))])
        }
        _ => Err(DecodeError::Length { have: bytes.len(), what: What::Cqe, need: need(What::Cqe) }),
    }
}

fn plausible(cqe: &Cqe) -> bool {
    let opcode = Opcode::from_byte(cqe.wqe_opcode()).is_some();
    match cqe.opcode() {
        Some(CqeOpcode::Requester | CqeOpcode::SignatureError) => opcode && cqe.qpn() != 0,
        Some(CqeOpcode::RequesterError) => opcode && cqe.syndrome().is_some(),
        Some(CqeOpcode::ResponderError) => cqe.syndrome().is_some(),
        Some(CqeOpcode::Invalid) | None => false,
        Some(_) => cqe.qpn() != 0,
    }
}

/// A stretch of a queue, WQE by WQE: each is as long as its `ds` says.
fn walk(
    bytes: &[u8],
    transport: Transport,
    entry: impl Fn(usize, Box<dyn Explain>) -> Entry,
) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    let mut at = 0;
    let mut expected: Option<u16> = None;
    while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
        let block = rest.get(..WQEBB).unwrap_or(rest);
        if at > 0 && block.iter().all(|byte| *byte == 0) {
            let zero = rest.iter().take_while(|byte| **byte == 0).count();
            let blocks = if zero == rest.len() { zero.div_ceil(WQEBB) } else { zero / WQEBB };
            if let Some(last) = entries.last_mut() {
                let text = format!("{blocks} zero WQEBBs follow: never written, or padding");
                last.notes.push((Remark::Meaning, text));
            }
            at += blocks * WQEBB;
            expected = None;
            continue;
        }
        let parsed = Wqe::parse(rest, transport);
        let length = parsed.map_or(block.len(), |wqe| wqe.bytes().len());
        let own = rest.get(..length.max(block.len())).unwrap_or(rest).to_vec();
        let mut next = entry(at, Box::new(OwnedWqe { bytes: own, transport }));
        if let Ok(wqe) = parsed {
            let index = wqe.ctrl().index();
            if let Some(expected) = expected.filter(|expected| *expected != index) {
                let text = format!(
                    "index {index} where {expected} would follow: another lap's WQE, or a wrong index"
                );
                next.notes.push((Remark::Warning, text));
            }
            expected = Some(index.wrapping_add(wqe.blocks() as u16));
        } else {
            expected = None;
        }
        entries.push(next);
        at += length.next_multiple_of(WQEBB);
    }
    entries
}

struct OwnedWqe {
    bytes: Vec<u8>,
    transport: Transport,
}

impl Explain for OwnedWqe {
    fn explain(&self, sink: &mut dyn Sink) -> fmt::Result {
        explain::Wqe { bytes: &self.bytes, transport: self.transport }.explain(sink)
    }
}

fn doorbell(bytes: &[u8]) -> Option<Doorbell> {
    bytes.try_into().ok().map(Doorbell::from_bytes)
}

fn record(bytes: &[u8]) -> Option<explain::Record> {
    bytes.try_into().ok().map(explain::Record::from_bytes)
}

fn register_plausible(doorbell: Doorbell) -> bool {
    let opcode = doorbell.opmod_index_opcode.get() as u8;
    let ds = doorbell.qpn_ds.get() as u8;
    let form = match ds {
        0 => opcode == 0,
        ds => ds <= wire::wqe::DS_MAX && Opcode::from_byte(opcode).is_some(),
    };
    let opmod = (doorbell.opmod_index_opcode.get() >> 24) as u8;
    let masked = matches!(
        Opcode::from_byte(opcode),
        Some(Opcode::AtomicMaskedCs | Opcode::AtomicMaskedFa | Opcode::Wait)
    );
    form && doorbell.qpn() != 0 && (opmod == 0 || masked)
}

fn record_plausible(record: explain::Record) -> bool {
    record.0.iter().all(|word| word.get() <= 0xffff)
}

fn doorbells(
    bytes: &[u8],
    entry: impl Fn(usize, Box<dyn Explain>) -> Entry,
) -> Result<Vec<Entry>, DecodeError> {
    if let Ok(word) = bytes.try_into() {
        return Ok(vec![entry(0, Box::new(RecordWord(word)))]);
    }
    let (Some(register), Some(record)) = (doorbell(bytes), record(bytes)) else {
        let what = What::Doorbell;
        return Err(DecodeError::Length { have: bytes.len(), what, need: need(what) });
    };
    let mut entries = Vec::new();
    if register_plausible(register) || !record_plausible(record) {
        entries.push(entry(0, Box::new(explain::Doorbell(register)) as Box<dyn Explain>));
    }
    if record_plausible(record) {
        let mut second = entry(0, Box::new(record));
        second.alternative = !entries.is_empty();
        entries.push(second);
    }
    Ok(entries)
}

/// One word of a doorbell record.
struct RecordWord([u8; 4]);

impl Explain for RecordWord {
    fn explain(&self, sink: &mut dyn Sink) -> fmt::Result {
        let producer = u32::from_be_bytes(self.0);
        sink.title(format_args!(
            "word of a doorbell record: next free index {producer} (mod 65536)"
        ))?;
        sink.field(explain::Field {
            offset: 0,
            name: "producer",
            bytes: &self.0,
            meaning: format_args!("0x{producer:x} ({producer})"),
        })?;
        if producer > 0xffff {
            let text = "bits above 16 are set: little-endian, or an index not taken modulo 2^16";
            sink.remark(Remark::Warning, format_args!("{text}"))?;
        }
        sink.remark(
            Remark::Meaning,
            format_args!(
                "of a QP's two words the first is the receive side's, the second the send side's"
            ),
        )
    }
}
