//! Reading the data files, and building what they describe.
#![allow(dead_code, reason = "each test binary uses its own part")]

use serde_json::Value;
use wire::wqe::{
    AddressVector, Atomic, CtrlFlags, MaskedCas4, MaskedCas8, MaskedFa4, MaskedFa8, Opcode, WqeBuf,
};
use zerocopy::big_endian::{U32, U64};

/// A file of `testdata`.
pub fn load(name: &str) -> Value {
    let path = format!("{}/testdata/{name}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// The entries of a list, of which there must be some.
pub fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    let list = value[key].as_array().unwrap_or_else(|| panic!("no list {key:?}"));
    assert!(!list.is_empty(), "list {key:?} is empty");
    list
}

pub fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_else(|| panic!("no text {key:?} in {value}"))
}

/// A number, or a hexadecimal string.
pub fn number(value: &Value, key: &str) -> u64 {
    let value = &value[key];
    value
        .as_u64()
        .or_else(|| u64::from_str_radix(value.as_str()?.strip_prefix("0x")?, 16).ok())
        .unwrap_or_else(|| panic!("{key:?} is no number: {value}"))
}

pub fn word(value: &Value, key: &str) -> u32 {
    u32::try_from(number(value, key)).unwrap()
}

pub fn byte(value: &Value, key: &str) -> u8 {
    u8::try_from(number(value, key)).unwrap()
}

/// Bytes from hex, spaces allowed.
pub fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(|c| *c != b' ').collect();
    assert!(digits.len().is_multiple_of(2), "odd hex {hex:?}");
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(pair).collect()
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn opcode(name: &str) -> Opcode {
    let found = Opcode::ALL.iter().find(|opcode| opcode.name() == name);
    *found.unwrap_or_else(|| panic!("no opcode {name}"))
}

pub fn flags(value: &Value) -> CtrlFlags {
    value.as_array().unwrap().iter().fold(CtrlFlags::NONE, |flags, name| {
        flags.with(match name.as_str().unwrap() {
            "cq_update" | "signaled" => CtrlFlags::CQ_UPDATE,
            "solicited" => CtrlFlags::SOLICITED,
            "fence" => CtrlFlags::FENCE,
            "small_fence" => CtrlFlags::SMALL_FENCE,
            "inline" => CtrlFlags::NONE,
            other => panic!("no flag {other}"),
        })
    })
}

/// An address vector; the short form has no fields beyond `rlid`.
pub fn address_vector(v: &Value) -> AddressVector {
    let mut av = AddressVector {
        key: U64::new(number(v, "key")),
        dqp_dct: U32::new(word(v, "dqp_dct")),
        stat_rate_sl: byte(v, "stat_rate_sl"),
        fl_mlid: byte(v, "fl_mlid"),
        rlid: u16::try_from(number(v, "rlid")).unwrap().to_be_bytes(),
        reserved: [0; 4],
        rmac: [0; 6],
        tclass: 0,
        hop_limit: 0,
        grh_gid_fl: U32::ZERO,
        rgid: [0; 16],
    };
    if v.get("rmac").is_some() {
        av.rmac = bytes(text(v, "rmac")).try_into().unwrap();
        av.tclass = byte(v, "tclass");
        av.hop_limit = byte(v, "hop_limit");
        av.grh_gid_fl = U32::new(word(v, "grh_gid_fl"));
        av.rgid = bytes(text(v, "rgid")).try_into().unwrap();
    }
    av
}

/// The WQE that an entry of `golden.json` describes.
pub fn build(entry: &Value) -> WqeBuf {
    let mut wqe = WqeBuf::new(
        opcode(text(entry, "opcode")),
        number(entry, "index"),
        word(entry, "qpn"),
        flags(&entry["flags"]),
        word(entry, "imm"),
    )
    .unwrap();
    for segment in entry["segments"].as_array().unwrap() {
        let (kind, v) = segment.as_object().unwrap().iter().next().unwrap();
        let w = |key| U32::new(word(v, key));
        let d = |key| U64::new(number(v, key));
        match kind.as_str() {
            "raddr" => wqe.raddr(number(v, "addr"), word(v, "rkey")),
            "data" => wqe.data(number(v, "addr"), number(v, "bytes"), word(v, "lkey")),
            "inline" => wqe.inline(&bytes(v.as_str().unwrap())),
            "av16" => wqe.address_vector_short(&address_vector(v)),
            "av48" => wqe.address_vector(&address_vector(v)),
            "atomic" => wqe.atomic(&Atomic { swap_add: d("swap_add"), compare: d("compare") }),
            "masked_cas4" => wqe.masked_cas4(&MaskedCas4 {
                swap: w("swap"),
                compare: w("compare"),
                swap_mask: w("swap_mask"),
                compare_mask: w("compare_mask"),
            }),
            "masked_cas8" => wqe.masked_cas8(&MaskedCas8 {
                swap: d("swap"),
                compare: d("compare"),
                swap_mask: d("swap_mask"),
                compare_mask: d("compare_mask"),
            }),
            "masked_fa4" => wqe.masked_fa4(&MaskedFa4 {
                add: w("add"),
                field_boundary: w("field_boundary"),
                reserved: U64::ZERO,
            }),
            "masked_fa8" => {
                wqe.masked_fa8(&MaskedFa8 { add: d("add"), field_boundary: d("field_boundary") })
            }
            other => panic!("no segment {other}"),
        }
        .unwrap();
    }
    wqe
}
