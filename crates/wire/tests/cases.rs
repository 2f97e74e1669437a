//! Bytes that libmlx5 wrote, and inputs from public bug reports.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod common;

use std::num::NonZeroU64;

use common::{bytes, flags, hex, list, load, number, opcode, text, word};
use wire::cqe::{CqeOpcode, Syndrome};
use wire::doorbell::{self, Doorbell};
use wire::explain;
use wire::split::{Side, SplitError, single, split};
use wire::wqe::{
    Atomic, BuildError, Ctrl, CtrlFlags, DATA_MAX, Opcode, Segment, Transport, Wqe, WqeBuf,
};
use zerocopy::IntoBytes;
use zerocopy::big_endian::U64;

/// The operands that the recording program posted.
const SWAP_ADD: [(Opcode, u64, u64); 2] = [
    (Opcode::AtomicFa, 0x0102_0304_0506_0708, 0),
    (Opcode::AtomicCs, 0x1112_1314_1516_1718, 0x0102_0304_0506_0708),
];

#[test]
fn every_wqe_of_libmlx5_is_encoded_from_its_parameters_and_decoded() {
    for case in list(&load("libmlx5-wqes.json"), "wqes") {
        let op = opcode(text(case, "op"));
        let inline = case["flags"].as_array().unwrap().iter().any(|flag| flag == "inline");
        let imm = match op {
            Opcode::RdmaWriteImm | Opcode::SendImm => word(case, "imm"),
            _ => 0,
        };
        let mut wqe =
            WqeBuf::new(op, number(case, "index"), word(case, "qpn"), flags(&case["flags"]), imm)
                .unwrap();
        if !matches!(op, Opcode::Send | Opcode::SendImm) {
            wqe.raddr(number(case, "remote_addr"), word(case, "rkey")).unwrap();
        }
        if let Some((_, swap_add, compare)) = SWAP_ADD.iter().find(|(of, ..)| *of == op) {
            let operands = Atomic { swap_add: U64::new(*swap_add), compare: U64::new(*compare) };
            wqe.atomic(&operands).unwrap();
        }
        let len = number(case, "bytes_per_sge");
        for sge in 0..number(case, "sges") {
            if inline {
                let payload: Vec<u8> = (0..len).map(|k| (37 * k + 11) as u8).collect();
                wqe.inline(&payload).unwrap();
            } else {
                wqe.data(0x2000_0000_0000 + 4097 * sge, len, word(case, "lkey")).unwrap();
            }
        }
        assert_eq!(hex(wqe.bytes()), text(case, "wqe"), "{case}");

        let raw = bytes(text(case, "wqe"));
        let read = Wqe::parse(&raw, Transport::Rc).unwrap();
        let segments: Result<Vec<_>, _> = read.segments().collect();
        let payload = segments.unwrap().into_iter().fold((0, 0), |(bytes, sges), placed| {
            match placed.segment {
                Segment::Data(data) => (bytes + u64::from(data.byte_count.get()), sges + 1),
                Segment::Inline(payload) => (bytes + payload.len() as u64, sges + 1),
                _ => (bytes, sges),
            }
        });
        assert_eq!(payload, (len * number(case, "sges"), number(case, "sges")), "{case}");
        read.warnings(|warning| panic!("{case}: {warning}"));
    }
}

#[test]
fn tails_of_reported_cqes_are_decoded() {
    let file = load("public-reports.json");
    let tails = list(&file, "cqe_decode").iter().filter(|case| case.get("tail").is_some());
    let mut seen = 0;
    for case in tails {
        let shown = explain::Cqe::tail(bytes(text(case, "tail")).try_into().unwrap());
        let cqe = shown.cqe();
        assert_eq!(cqe.opcode().map(CqeOpcode::name), case["opcode"].as_str());
        assert_eq!(u64::from(cqe.syndrome_byte()), number(case, "syndrome"));
        assert_eq!(u64::from(cqe.vendor()), number(case, "vendor"));
        assert_eq!(Opcode::from_byte(cqe.wqe_opcode()), Some(opcode(text(case, "wqe_opcode"))));
        assert_eq!(u64::from(cqe.qpn()), number(case, "qpn"));
        assert_eq!(u64::from(cqe.wqe_counter.get()), number(case, "wqe_index"));
        if case.get("owner").is_some() {
            assert_eq!(u64::from(cqe.owner()), number(case, "owner"));
        }
        let words = shown.to_string();
        for part in [
            "requester error",
            "local protection error",
            &format!("0x{:02x} = {}", cqe.vendor(), cqe.vendor()),
            &format!("0x{:x}", cqe.qpn()),
            "IBV_WC_LOC_PROT_ERR",
        ] {
            assert!(words.contains(part), "{part:?} is not in\n{words}");
        }
        seen += 1;
    }
    assert_eq!(seen, 2);
}

#[test]
fn reported_doorbells_and_records() {
    for case in list(&load("public-reports.json"), "doorbell") {
        if case.get("record").is_some() {
            let record = doorbell::record(number(case, "producer"));
            assert_eq!(hex(record.as_bytes()), text(case, "record"));
            assert_eq!(doorbell::RECORD_SEND as u64, number(case, "record_word"));
        } else {
            let op = opcode(text(case, "opcode"));
            let (index, ds) = (number(case, "index"), number(case, "ds") as u8);
            let ctrl = Ctrl::new(op, index, word(case, "qpn"), ds, CtrlFlags::CQ_UPDATE, 0);
            assert_eq!(hex(Doorbell::last_wqe(&ctrl).as_bytes()), text(case, "bytes"));
        }
    }
}

#[test]
fn an_index_beyond_sixteen_bits_stays_out_of_opmod() {
    for case in list(&load("public-reports.json"), "control_segment") {
        if case.get("first4").is_some() {
            let op = opcode(text(case, "opcode"));
            let ctrl = Ctrl::new(op, number(case, "index"), 0x100, 3, CtrlFlags::NONE, 0);
            assert_eq!(hex(&ctrl.as_bytes()[..4]), text(case, "first4"));
        } else {
            // Consecutive one-block WQEs of one reservation carry consecutive indices.
            let base = number(case, "two_wqe_put_base");
            let index = |nth| {
                Ctrl::new(Opcode::RdmaWrite, base + nth, 0x100, 3, CtrlFlags::NONE, 0).index()
            };
            let expected: Vec<_> =
                case["indices"].as_array().unwrap().iter().map(|i| i.as_u64().unwrap()).collect();
            assert_eq!([index(0), index(1)].map(u64::from), *expected);
        }
    }
}

#[test]
fn counters_are_rebuilt_only_forward() {
    for case in list(&load("public-reports.json"), "counter_rebuild") {
        let counter = number(case, "counter") as u16;
        let index =
            wire::index::rebuild(number(case, "consumer"), number(case, "doorbelled"), counter);
        assert_eq!(index, number(case, "index"), "{case}");
    }
}

#[test]
fn puts_are_split_at_chunks_and_at_the_largest_message() {
    for case in list(&load("public-reports.json"), "put_split") {
        let length = number(case, "length");
        if case.get("in_one_wqe").is_some() {
            let (here, there) = (Side::whole(0), Side::whole(0));
            let error = single(here, there, length, DATA_MAX).unwrap_err();
            assert_eq!(error, SplitError::NotOne { length, fits: DATA_MAX });
            let mut wqe = WqeBuf::new(Opcode::RdmaWrite, 0, 1, CtrlFlags::NONE, 0).unwrap();
            let error = wqe.data(0, length, 1).unwrap_err();
            assert_eq!(error, BuildError::TooLong { len: length, max: DATA_MAX.into() });
            continue;
        }
        let chunk = case.get("chunk").and_then(|_| NonZeroU64::new(number(case, "chunk")));
        let side = |key| match chunk {
            Some(chunk) => Side::chunked(number(case, key), chunk),
            None => Side::whole(0),
        };
        let max = case.get("max_message").map_or(DATA_MAX, |_| word(case, "max_message"));
        let pieces: Vec<_> =
            split(side("local_offset"), side("remote_offset"), length, max).unwrap().collect();
        let wqes = list(case, "wqes");
        assert_eq!(pieces.len(), wqes.len());
        for (piece, wqe) in pieces.iter().zip(wqes) {
            assert_eq!(u64::from(piece.bytes), number(wqe, "bytes"));
            if chunk.is_some() {
                assert_eq!(piece.local_chunk, number(wqe, "local_chunk"));
                assert_eq!(piece.remote_chunk, number(wqe, "remote_chunk"));
            }
        }
        let (last, before) = pieces.split_last().unwrap();
        assert!(last.last && before.iter().all(|piece| !piece.last));
    }
}

#[test]
fn a_cq_filled_with_ff_is_pending_and_a_zeroed_one_is_named() {
    for case in list(&load("public-reports.json"), "cq_initial") {
        let fill = u8::from_str_radix(text(case, "fill"), 16).unwrap();
        let cqe: wire::cqe::Cqe = zerocopy::transmute!([fill; 64]);
        if case.get("poll").is_some() {
            assert!(!cqe.is_valid(0, 6) && !cqe.is_valid(64, 6));
        } else {
            assert!(cqe.is_valid(0, 6), "why it must be refused");
            assert!(explain::Cqe::whole(cqe).to_string().contains("CQ was not initialised"));
        }
    }
}

#[test]
fn every_syndrome_says_what_it_means_and_where_to_look() {
    for syndrome in Syndrome::ALL {
        let guide = syndrome.guide();
        assert!(!guide.meaning.is_empty() && !guide.causes.is_empty() && !guide.next.is_empty());
        let status = syndrome.wc_status();
        assert_eq!(Syndrome::from_wc_status(status.value), Some(*syndrome));
        assert_eq!(Syndrome::from_byte(*syndrome as u8), Some(*syndrome));
    }
    assert!(Syndrome::Flushed.guide().causes[0].contains("first other error"));
    assert_eq!(Syndrome::from_wc_status(0), None);
}
