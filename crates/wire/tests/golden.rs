//! Encoders and decoders against the golden vectors.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod common;

use common::{build, byte, bytes, flags, hex, list, load, number, opcode, text, word};
use serde_json::Value;
use wire::cqe::{Cqe, CqeOpcode, Syndrome};
use wire::doorbell::{self, Doorbell};
use wire::wqe::{Ctrl, CtrlFlags, Segment, Transport, Wqe, WqeBuf, receives};
use zerocopy::{FromBytes, IntoBytes};

fn transport(entry: &Value) -> Transport {
    match text(entry, "transport") {
        "rc" => Transport::Rc,
        "dc" => Transport::Dc,
        other => panic!("no transport {other}"),
    }
}

/// Appends a decoded segment as it was read.
fn append(wqe: &mut WqeBuf, segment: &Segment<'_>) {
    match segment {
        Segment::Raddr(r) => wqe.raddr(r.addr.get(), r.rkey.get()),
        Segment::Data(d) => wqe.data(d.addr.get(), d.byte_count.get().into(), d.lkey.get()),
        Segment::Inline(payload) => wqe.inline(payload),
        Segment::AddressVectorShort(short) => {
            wqe.address_vector_short(&wire::wqe::AddressVector::from_short(short))
        }
        Segment::AddressVector(av) => wqe.address_vector(av),
        Segment::Atomic(a) => wqe.atomic(a),
        Segment::MaskedCas4(a) => wqe.masked_cas4(a),
        Segment::MaskedCas8(a) => wqe.masked_cas8(a),
        Segment::MaskedFa4(a) => wqe.masked_fa4(a),
        Segment::MaskedFa8(a) => wqe.masked_fa8(a),
        other => panic!("{other:?} is not in the golden file"),
    }
    .unwrap();
}

#[test]
fn every_wqe_is_encoded_byte_for_byte() {
    for entry in list(&load("golden.json"), "wqes") {
        let wqe = build(entry);
        assert_eq!(hex(wqe.bytes()), text(entry, "bytes"), "{}", text(entry, "name"));
        assert_eq!(u64::from(wqe.ctrl().ds()), number(entry, "ds"));
        assert_eq!(wqe.ctrl().opmod(), byte(entry, "opmod"));
        assert_eq!(u64::from(wqe.blocks()), number(entry, "blocks"));
    }
}

#[test]
fn every_wqe_is_decoded_to_what_encodes_it_again() {
    for entry in list(&load("golden.json"), "wqes") {
        let name = text(entry, "name");
        let raw = bytes(text(entry, "bytes"));
        let wqe = Wqe::parse(&raw, transport(entry)).unwrap();
        let ctrl = wqe.ctrl();
        assert_eq!(wqe.opcode().name(), text(entry, "opcode"));
        assert_eq!(ctrl.index(), number(entry, "index") as u16, "{name}");
        assert_eq!(ctrl.flags(), flags(&entry["flags"]), "{name}");
        let mut again = WqeBuf::new(
            wqe.opcode(),
            ctrl.index().into(),
            ctrl.qpn(),
            ctrl.flags(),
            ctrl.imm.get(),
        )
        .unwrap();
        for placed in wqe.segments() {
            let placed = placed.unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(placed.offset, again.bytes().len(), "{name}");
            append(&mut again, &placed.segment);
        }
        assert_eq!(hex(again.bytes()), hex(&raw), "{name}");
        wqe.warnings(|warning| panic!("{name}: {warning}"));
    }
}

#[test]
fn a_wqe_cut_anywhere_is_an_error_that_says_how_much_is_there() {
    for entry in list(&load("golden.json"), "wqes") {
        let raw = bytes(text(entry, "bytes"));
        for len in 0..raw.len() {
            let error = Wqe::parse(&raw[..len], transport(entry)).unwrap_err();
            assert!(error.to_string().contains(&len.to_string()), "{error}");
        }
    }
}

fn kind(name: &str) -> CqeOpcode {
    match name {
        "requester" => CqeOpcode::Requester,
        "responder_write_imm" => CqeOpcode::ResponderWriteImm,
        "responder_send" => CqeOpcode::ResponderSend,
        "responder_send_imm" => CqeOpcode::ResponderSendImm,
        "responder_send_inval" => CqeOpcode::ResponderSendInval,
        "requester_error" => CqeOpcode::RequesterError,
        "responder_error" => CqeOpcode::ResponderError,
        other => panic!("no kind {other}"),
    }
}

#[test]
fn every_cqe_is_encoded_and_decoded() {
    for entry in list(&load("golden.json"), "cqes") {
        let name = text(entry, "name");
        let kind = kind(text(entry, "kind"));
        let op = entry["opcode"].as_str().map_or(0, |name| opcode(name) as u8);
        let (qpn, counter) = (word(entry, "qpn"), word(entry, "wqe_counter") as u16);
        let len = word(entry, "byte_count");
        let hw = number(entry, "hw_syndrome");
        let mut cqe = if kind.is_error() {
            let syndrome = Syndrome::from_byte(byte(entry, "syndrome")).unwrap();
            Cqe::error(kind, syndrome, byte(entry, "vendor"), op, qpn, counter)
        } else if kind == CqeOpcode::Requester {
            Cqe::requester(op, qpn, counter, len)
        } else {
            Cqe::responder(kind, qpn, counter, len, word(entry, "imm"))
        };
        cqe.timestamp.set(cqe.timestamp.get() | hw << 16);
        let (ci, log_size) = (number(entry, "ci"), word(entry, "log_size"));
        let cqe = cqe.with_owner(ci, log_size);
        assert_eq!(hex(cqe.as_bytes()), text(entry, "bytes"), "{name}");

        let read = Cqe::read_from_bytes(&bytes(text(entry, "bytes"))).unwrap();
        assert_eq!(read, cqe);
        assert_eq!(read.opcode(), Some(kind), "{name}");
        assert_eq!(u64::from(read.owner()), number(entry, "owner"), "{name}");
        assert!(read.is_valid(ci, log_size), "{name}");
        assert!(!read.is_valid(ci + (1 << log_size), log_size), "{name}: a lap later");
        assert!(!read.is_valid(ci.wrapping_sub(1 << log_size), log_size), "{name}: a lap before");
        assert_eq!((read.qpn(), read.wqe_opcode()), (qpn, op), "{name}");
        assert_eq!(read.wqe_counter.get(), counter, "{name}");
        if kind.is_error() {
            assert_eq!(read.syndrome_byte(), byte(entry, "syndrome"), "{name}");
            assert_eq!(read.vendor(), byte(entry, "vendor"), "{name}");
            assert_eq!(u64::from(read.hw_syndrome()), hw, "{name}");
        }
    }
}

#[test]
fn initial_entries_are_never_valid() {
    for entry in list(&load("golden.json"), "invalid_cqes") {
        let cqe = Cqe::read_from_bytes(&bytes(text(entry, "bytes"))).unwrap();
        for ci in [0, 1, 63, 64, 65, 128, (1 << 32) - 1, 1 << 32, u64::MAX] {
            assert!(!cqe.is_valid(ci, 6), "{} at {ci}", text(entry, "name"));
        }
    }
}

#[test]
fn both_doorbell_forms_announce_their_producer() {
    for entry in list(&load("golden.json"), "doorbells") {
        let name = text(entry, "name");
        let (index, qpn) = (number(entry, "index"), word(entry, "qpn"));
        let doorbell = match text(entry, "form") {
            "last_wqe" => {
                let op = opcode(text(entry, "opcode"));
                let ds = byte(entry, "ds");
                let ctrl = Ctrl::new(op, index, qpn, ds, CtrlFlags::CQ_UPDATE, 0)
                    .with_opmod(byte(entry, "opmod"));
                Doorbell::last_wqe(&ctrl)
            }
            "next_free" => Doorbell::next_free(qpn, index),
            other => panic!("no form {other}"),
        };
        assert_eq!(hex(doorbell.as_bytes()), text(entry, "bytes"), "{name}");
        assert_eq!(u64::from(doorbell.producer()), number(entry, "producer"), "{name}");
        assert_eq!(doorbell.qpn(), qpn, "{name}");
    }
}

#[test]
fn records_hold_sixteen_bits_big_endian() {
    for entry in list(&load("golden.json"), "records") {
        let record = doorbell::record(number(entry, "producer"));
        assert_eq!(hex(record.as_bytes()), text(entry, "bytes"));
    }
}

#[test]
fn scatter_lists_end_at_the_terminator_or_the_stride() {
    for entry in list(&load("golden.json"), "receives") {
        let raw = bytes(text(entry, "bytes"));
        assert_eq!(raw.len() as u64, number(entry, "stride"));
        let read: Vec<_> = receives(&raw)
            .map(|d| (d.addr.get(), u64::from(d.byte_count.get()), d.lkey.get()))
            .collect();
        let expected: Vec<_> = entry["buffers"]
            .as_array()
            .unwrap()
            .iter()
            .map(|b| (number(b, "addr"), number(b, "bytes"), word(b, "lkey")))
            .collect();
        assert_eq!(read, expected, "{}", text(entry, "name"));
    }
}
