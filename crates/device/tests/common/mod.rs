//! The data files that crates/wire is held to as well, and what is skipped where a tool is missing.
#![allow(dead_code, reason = "each test binary uses its own part")]

use device::nvrtc::NvrtcError;
use device::source::ENTRY;
use serde_json::Value;

/// A file of crates/wire's test data.
pub fn load(name: &str) -> Value {
    let path = format!("{}/../wire/testdata/{name}", env!("CARGO_MANIFEST_DIR"));
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

/// Bytes from hex.
pub fn bytes(hex: &str) -> Vec<u8> {
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    hex.as_bytes().chunks(2).map(pair).collect()
}

/// The segments of a golden WQE: kind and fields.
pub fn segments(entry: &Value) -> Vec<(&str, &Value)> {
    entry["segments"]
        .as_array()
        .unwrap()
        .iter()
        .map(|segment| {
            let (kind, fields) = segment.as_object().unwrap().iter().next().unwrap();
            (kind.as_str(), fields)
        })
        .collect()
}

/// One translation unit of several: the headers are read once, and kernel `i` is `ENTRY_i`.
pub fn grouped(units: impl IntoIterator<Item = String>) -> String {
    let (mut includes, mut body) = (String::new(), String::new());
    for (i, unit) in units.into_iter().enumerate() {
        let (head, rest): (Vec<&str>, Vec<&str>) =
            unit.lines().partition(|line| line.starts_with("#include "));
        for include in head {
            if !includes.lines().any(|line| line == include) {
                includes += &format!("{include}\n");
            }
        }
        let rest = rest.join("\n");
        assert_eq!(rest.matches(ENTRY).count(), 1, "{unit}");
        let rest = rest.replace(ENTRY, &format!("{ENTRY}_{i}"));
        body += &format!("namespace unit_{i} {{\n{rest}\n}}\n");
    }
    includes + &body
}

/// Whether NVRTC is here; where it isn't, that is listed at the end of `scripts/test.sh`, or a failure where required.
pub fn has_nvrtc() -> bool {
    match device::nvrtc::load() {
        Ok(()) => true,
        Err(NvrtcError::NotFound { .. }) if !tools_are_required() => {
            skip("kernels compiled for GPUs: NVRTC is not installed; scripts/test.sh installs it");
            false
        }
        Err(error) => panic!("{error}"),
    }
}

pub fn tools_are_required() -> bool {
    std::env::var_os("GICBENCH_REQUIRE_NVRTC").is_some()
}

pub fn skip(what: &str) {
    eprintln!("SKIPPED: {what}");
    if let Some(path) = std::env::var_os("GICBENCH_SKIP_LOG") {
        use std::io::Write as _;
        let mut log = std::fs::OpenOptions::new().append(true).create(true).open(path).unwrap();
        writeln!(log, "{what}").unwrap();
    }
}
