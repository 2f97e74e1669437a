//! Dumps as they are met in reports, and inputs that must be refused in words.

use proptest::prelude::*;
use serde_json::Value;

use super::{DecodeError, Options, Order, What, decode};

const REPORTS: &str = include_str!("../../../wire/testdata/public-reports.json");
const LIBMLX5: &str = include_str!("../../../wire/testdata/libmlx5-wqes.json");

fn options(what: What) -> Options {
    Options { what, order: Order::Auto, dc: false, json: false }
}

fn shown(what: What, text: &str) -> String {
    decode(text, options(what)).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

#[track_caller]
fn assert_says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
}

/// A write of 8 bytes: QP 0x2ed, index 511.
const WRITE: &str = "0001ff080002ed03000000080000000000003000000012300000021300000000000000080000011200002000000000 00";

fn write_bytes() -> Vec<u8> {
    let digits: String = WRITE.split(' ').collect();
    (0..digits.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap())
        .collect()
}

fn join(bytes: &[u8], group: usize, little: bool, prefix: &str, between: &str) -> String {
    let word = |chunk: &[u8]| {
        let mut chunk = chunk.to_vec();
        if little {
            chunk.reverse();
        }
        chunk.iter().fold(prefix.to_owned(), |text, byte| text + &format!("{byte:02x}"))
    };
    bytes.chunks(group).map(word).collect::<Vec<_>>().join(between)
}

/// `lines` of 16 bytes, each after its offset.
fn rows(bytes: &[u8], row: impl Fn(usize, &[u8]) -> String) -> String {
    bytes.chunks(16).enumerate().map(|(nth, chunk)| row(nth * 16, chunk) + "\n").collect()
}

#[test]
fn one_wqe_in_every_print_form() {
    let bytes = write_bytes();
    let b = |group, little, prefix, between| join(&bytes, group, little, prefix, between);
    let dots = "................";
    let forms = [
        ("contiguous", b(48, false, "", "")),
        ("0x and contiguous", b(48, false, "0x", "")),
        ("bytes", b(1, false, "", " ")),
        ("bytes with commas", b(1, false, "0x", ", ")),
        ("a C array", format!("{{ {} }};", b(1, false, "0x", ","))),
        ("a string literal", format!("\"{}\"", b(1, false, "\\x", ""))),
        ("colons", b(1, false, "", ":")),
        ("a colon after each byte", b(1, false, "", ":") + ":"),
        ("halfwords", b(2, false, "", " ")),
        ("words", b(4, false, "", " ")),
        ("words with 0x", b(4, false, "0x", " ")),
        ("upper case", b(4, false, "", " ").to_uppercase()),
        ("64-bit words", b(8, false, "0x", "\n")),
        ("host words", b(4, true, "0x", " ")),
        ("host 64-bit words", b(8, true, "0x", " ")),
        ("a label", format!("sq[511]: {}", b(4, false, "", " "))),
        ("libmlx5", rows(&bytes, |_, row| join(row, 4, false, "", " "))),
        (
            "the kernel",
            rows(&bytes, |at, row| {
                format!("[  408.380187] {at:08x}: {}", join(row, 1, false, "", " "))
            }),
        ),
        (
            "the kernel, with a prefix and ASCII",
            rows(&bytes, |at, row| {
                format!("wqe_dump: {at:08x}: {}  {dots}", join(row, 1, false, "", " "))
            }),
        ),
        (
            "syslog",
            rows(&bytes, |at, row| {
                format!(
                    "Nov 29 13:00:00 node kernel: [12.5] {at:08x}: {}",
                    join(row, 1, false, "", " ")
                )
            }),
        ),
        (
            "quoted mail",
            rows(&bytes, |at, row| format!("> > {at:08x}: {}", join(row, 4, false, "", " "))),
        ),
        (
            "hexdump -C",
            rows(&bytes, |at, row| {
                let halves = [&row[..8], &row[8..]].map(|half| join(half, 1, false, "", " "));
                format!("{at:08x}  {}  |..*.=..: 00.....|", halves.join("  "))
            }) + "00000030\n",
        ),
        (
            "hexdump",
            rows(&bytes, |at, row| format!("{at:07x} {}", join(row, 2, true, "", " ")))
                + "0000030\n",
        ),
        (
            "xxd",
            rows(&bytes, |at, row| {
                format!("{at:08x}: {}  ..0:..1.. ......", join(row, 2, false, "", " "))
            }),
        ),
        (
            "od -t x1",
            rows(&bytes, |at, row| format!("{at:07o} {}", join(row, 1, false, "", " ")))
                + "0000060\n",
        ),
        (
            "od -t x1z",
            rows(&bytes, |at, row| format!("{at:07o} {}  >{dots}<", join(row, 1, false, "", " "))),
        ),
        (
            "od -A x -t x4",
            rows(&bytes, |at, row| format!("{at:06x} {}", join(row, 4, true, "", " ")))
                + "000030\n",
        ),
        (
            "offsets without a colon before words",
            rows(&bytes, |at, row| format!("{at:08x} {}", join(row, 4, false, "", " "))),
        ),
        (
            "short offsets with 0x",
            rows(&bytes, |at, row| format!("0x{at:04x}: {}", join(row, 2, false, "", " "))),
        ),
        (
            "gdb x/xw",
            rows(&bytes, |at, row| {
                format!("0x7ffff7d0{at:04x} <queue+{at}>:\t{}", join(row, 4, true, "0x", "\t"))
            }),
        ),
        (
            "gdb x/xb",
            rows(&bytes, |at, row| {
                format!("0x7ffff7d0{at:04x}:\t{}", join(row, 1, false, "0x", "\t"))
            }),
        ),
        ("CRLF", rows(&bytes, |_, row| join(row, 4, false, "", " ") + "\r")),
    ];
    for (name, text) in forms {
        let shown = shown(What::Wqe, &text);
        assert!(
            shown.starts_with("WQE 511 of QP 0x2ed: RDMA_WRITE, 3 segments")
                && !shown.contains("also"),
            "{name}:\n{text}\n{shown}"
        );
        assert_says(&shown, &["0x300000001230", "0x213", "0x112", "8 bytes"]);
    }
}

#[test]
fn every_wqe_of_libmlx5_is_decoded() {
    let file: Value = serde_json::from_str(LIBMLX5).unwrap();
    for case in file["wqes"].as_array().unwrap() {
        let shown = shown(What::Wqe, case["wqe"].as_str().unwrap());
        let title = format!("WQE {} of QP 0x100: {}", case["index"], case["op"].as_str().unwrap());
        assert_says(&shown, &[&title]);
        assert!(!shown.contains("warning"), "{shown}");
    }
}

#[test]
fn reported_cqes_are_explained() {
    let file: Value = serde_json::from_str(REPORTS).unwrap();
    for case in file["cqe_decode"].as_array().unwrap() {
        let Some(tail) = case["tail"].as_str() else { continue };
        let shown = shown(What::Cqe, tail);
        assert!(!shown.contains("also possible"), "{shown}");
        let vendor = case["vendor"].as_u64().unwrap();
        assert_says(
            &shown,
            &[
                case["opcode"].as_str().unwrap(),
                &format!("0x{:02x}: local protection error", case["syndrome"].as_u64().unwrap()),
                &format!("0x{vendor:02x} = {vendor}"),
                case["wqe_opcode"].as_str().unwrap(),
                &format!("({})", case["qpn"]),
                &format!("WQE {} of", case["wqe_index"]),
            ],
        );
    }
}

#[test]
fn fields_printed_unswapped_are_noticed() {
    let file: Value = serde_json::from_str(REPORTS).unwrap();
    let case =
        file["cqe_decode"].as_array().unwrap().iter().find(|case| case.get("raw_fields").is_some());
    let raw = &case.unwrap()["raw_fields"];
    let [syndrome, vendor, counter, qpn] =
        ["syndrome", "vendor", "wqe_counter", "wqe_qpn"].map(|key| match &raw[key] {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        });
    let forms = [
        raw.to_string(),
        format!("{raw:#}"),
        format!("syndrome {syndrome} vendor {vendor} wqe_counter {counter} wqe_qpn {qpn}"),
        format!("syndrome: {syndrome}, vendor: {vendor}, wqe_counter: {counter}, wqe_qpn: {qpn}"),
        format!(
            "got completion with err: syndrome={syndrome}, vendor_err_synd={vendor}, hw_err_synd=0, \
             hw_synd_type=0, wqe_counter={counter} wqe_qpn={qpn}"
        ),
        format!(
            "[0] got completion with err:\n   syndrome={syndrome}, vendor_err_synd={vendor}, hw_err_synd=0, \
             hw_synd_type=0,\n   wqe_counter=0xff01, s_wqe_opcode_qpn=0x{qpn},\n   cqn=0x5, cons_idx=0x1ff"
        ),
    ];
    for text in forms {
        let shown = shown(What::Cqe, &text);
        assert_says(
            &shown,
            &[
                "WQE flushed, RDMA_WRITE WQE 511 of QP 0x2ed",
                "0xf9 = 249",
                "unswapped",
                "consequence",
                "first other error",
            ],
        );
    }
}

#[test]
fn lines_of_libraries_and_tools_are_understood() {
    let cases: &[(&str, &[&str])] = &[
        (
            "NET/IB : Got completion from peer 10.0.0.1<45617> with status=12 opcode=0 len=0 vendor err 129 (Recv)",
            &[
                "transport retry counter exceeded",
                "IBV_WC_RETRY_EXC_ERR",
                "0x81 = 129",
                "GID index",
            ],
        ),
        (
            "Completion with error at client\n  Failed status 4: wr_id 0 syndrom 0x51",
            &["local protection error", "0x51 = 81"],
        ),
        (
            "mlx5_poll_one:530:(pid 0): syndrome 0x5, vendor syndrome 0xf9\n\
             mlx5_poll_one:530:(pid 0): syndrome 0x5, vendor syndrome 0xf9",
            &["WQE flushed", "2 times in a row"],
        ),
        (
            "Local protection on mlx5_0:1/IB (synd 0x4 vend 0x52 hw_synd 0/147)\nRC QP 0x1234 wqe[12]: RDMA_WRITE",
            &["local protection error", "0x52 = 82", "WQE 12", "0x1234"],
        ),
        (
            "Error MLX5_CQE_REQ_ERR, wqe_idx: 0, wqe_opcode_qpn: b0002ab, syndrome: 15, vendor_err_synd: 81",
            &[
                "transport retry counter exceeded",
                "SEND_WITH_IMM",
                "0x2ab",
                "0x81 = 129",
                "base 16 only",
            ],
        ),
        (
            "wc.status = IBV_WC_REM_ACCESS_ERR, vendor_err = 136",
            &["remote access error", "0x88 = 136"],
        ),
        (
            "Error cqe on cqn 0xa, ci 0x1, qn 0xe, opcode 0xd, syndrome 0x2, vendor syndrome 0x68",
            &["requester error", "local QP operation error", "0x68 = 104"],
        ),
        (
            "syndrome 0x13 vendor 0x88 wqe_qpn 0x08000208",
            &["both byte orders make sense", "QP 0x208", "QP 0x20008"],
        ),
        (
            "syndrome 0x5, vendor syndrome 0xf9\nsyndrome 0x13, vendor syndrome 0x88\nsyndrome 0x5, vendor syndrome 0xf9",
            &["remote access error", "the first completion here that isn't flushed"],
        ),
    ];
    for (text, parts) in cases {
        assert_says(&shown(What::Cqe, text), parts);
    }
}

/// A kernel log that holds a CQE and the WQE that it is about; its rows of 17 bytes are from the report.
const KERNEL: &str = "\
mlx5_core 0000:3b:00.1 eth1: Error cqe on cqn 0x817, ci 0x8, qn 0x1dbb, opcode 0xd, syndrome 0x1, vendor syndrome 0x68
00000000: 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
00000010: 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
00000020: 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
00000030: 00 00 00 00 60 10 68 01 0a 00 1d bb 00 0f 9f d2
WQE DUMP: WQ size 1024 WQ cur size 0, WQE index 0xf, len: 64
00000000: 00 00 0f 0a 00 1d bb 03 00 00 00 08 00 00 00 00
00000010: 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
00000020: 00 00 00 2b 00 08 00 00 00 00 00 05 9e e3 08 00
00000030: 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
mlx5_core 0000:3b:00.1 eth1: ERR CQE on SQ: 0x1dbb
";

#[test]
fn each_dump_of_a_log_is_taken_for_what_the_log_calls_it() {
    let cqe = shown(What::Cqe, KERNEL);
    assert_says(
        &cqe,
        &[
            "CQE: requester error, local length error (vendor 0x68 = 104) at WQE 15",
            "line 2 has more",
        ],
    );
    let wqe = shown(What::Wqe, KERNEL);
    assert_says(
        &wqe,
        &["WQE 15 of QP 0x1dbb: SEND", "byte count at offset 16 is 0", "line 8 has more"],
    );
    assert!(!wqe.contains("at byte"), "{wqe}");
    assert!(matches!(
        decode(KERNEL, options(What::Doorbell)),
        Err(DecodeError::Nothing { what: What::Doorbell, .. })
    ));
}

#[test]
fn a_stretch_of_a_queue_is_walked_by_the_size_of_each_wqe() {
    let mut queue = write_bytes();
    queue.resize(64, 0);
    let mut second = queue.clone();
    (second[1], second[2]) = (2, 0);
    let mut stale = queue.clone();
    (stale[1], stale[2]) = (0, 9);
    let mut text = join(&[queue, second, stale].concat(), 4, false, "", " ");
    text += &format!(" {}", join(&[0; 128], 4, false, "", " "));
    let shown = shown(What::Wqe, &text);
    assert_says(
        &shown,
        &[
            "WQE 511 of QP 0x2ed",
            "at byte 64: WQE 512 of",
            "at byte 128: WQE 9 of",
            "index 9 where 513 would follow",
            "2 zero WQEBBs follow",
        ],
    );
}

#[test]
fn repeated_lines_that_hexdump_left_out_are_put_back() {
    let text = format!(
        "{}*\n00000030  00 00 00 00 00 00 52 04  0a 00 19 a1 c0 92 1c d2  |......R.........|\n00000040\n",
        rows(&[0; 16], |at, row| format!(
            "{at:08x}  {}  |{}|",
            join(row, 1, false, "", " "),
            ".".repeat(16)
        ))
    );
    assert_says(&shown(What::Cqe, &text), &["local protection error", "WQE 49298 of QP 0x19a1"]);
}

#[test]
fn entries_of_a_cq_not_written_yet_are_left_out() {
    let done = format!("{}{}", "00".repeat(56), "080002ed01ff0000");
    let text = format!("{done}{}{}", "ff".repeat(64), "ff".repeat(64));
    let shown = shown(What::Cqe, &text);
    assert_says(&shown, &["CQE: requester, WQE 511 of QP 0x2ed", "2 entries not written yet"]);
    assert_says(&self::shown(What::Cqe, &"ff".repeat(64)), &["not written yet", "NVSHMEM"]);
    assert_says(&self::shown(What::Cqe, &"00".repeat(64)), &["CQ was not initialised"]);
}

#[test]
fn doorbells_and_records_are_told_apart() {
    let cases: &[(&str, &[&str])] = &[
        ("0001ff080002ed03", &["doorbell of QP 0x2ed: next free WQEBB 512", "libmlx5"]),
        ("00023400 0002ed00", &["doorbell of QP 0x2ed: next free WQEBB 564", "NVSHMEM and DOCA"]),
        (
            "0x03ed020008ff0100",
            &["doorbell of QP 0x2ed: next free WQEBB 512", "64-bit little-endian"],
        ),
        ("00 00 23 45", &["next free index 9029"]),
        ("00000000 00002345", &["record of a QP: send 9029, receive 0"]),
        ("00002345 00000000", &["only the receive word is set"]),
        ("0100050800010003", &["65541"]),
    ];
    for (text, parts) in cases {
        let shown = shown(What::Doorbell, text);
        assert_says(&shown, parts);
    }
    assert!(!shown(What::Doorbell, "0001ff080002ed03").contains("also possible"));
}

#[test]
fn what_makes_sense_in_both_byte_orders_is_shown_in_both() {
    let shown = shown(What::Doorbell, "00023400 0002ed00");
    assert_says(
        &shown,
        &["QP 0x2ed: next free WQEBB 564", "also possible: doorbell of QP 0xed02", "--order"],
    );
}

#[test]
fn an_explicit_order_is_obeyed() {
    let little = Options { order: Order::Little, ..options(What::Wqe) };
    let memory = Options { order: Order::Memory, ..options(What::Wqe) };
    let text = join(&write_bytes(), 4, true, "", " ");
    assert_says(&decode(&text, little).unwrap(), &["WQE 511 of QP 0x2ed"]);
    assert!(!decode(&text, memory).unwrap().contains("WQE 511 of QP 0x2ed"));
}

#[test]
fn dc_wqes_need_to_be_called_so() {
    let golden: Value =
        serde_json::from_str(include_str!("../../../wire/testdata/golden.json")).unwrap();
    for entry in golden["wqes"].as_array().unwrap() {
        let dc = entry["transport"] == "dc";
        let text = entry["bytes"].as_str().unwrap();
        let shown = decode(text, Options { dc, ..options(What::Wqe) }).unwrap();
        assert!(!shown.contains("warning"), "{shown}");
        assert_eq!(shown.contains("address vector"), dc && entry["opcode"] != "NOP", "{shown}");
    }
}

#[test]
fn json_holds_every_field() {
    let text =
        decode("00000000 93005204 0a0019a1 c0921cd2", Options { json: true, ..options(What::Cqe) });
    let whole: Value = serde_json::from_str(&text.unwrap()).unwrap();
    assert_eq!(whole["what"], "cqe");
    let entry = &whole["entries"][0];
    let fields = entry["fields"].as_array().unwrap();
    let find = |name: &str| fields.iter().find(|field| field["name"] == name).unwrap();
    assert_eq!(find("syndrome")["bytes"], "04");
    assert_eq!(find("qpn")["offset"], 57);
    assert_eq!(find("qpn")["bytes"], "0019a1");
    assert!(
        entry["remarks"].as_array().unwrap().iter().any(|remark| remark["kind"] == "usual cause")
    );
}

#[test]
fn what_is_no_dump_is_refused_with_its_place_and_what_to_do() {
    let cases: &[(What, &str, &str)] = &[
        (What::Wqe, "", "no bytes of a wqe"),
        (What::Wqe, "hello there", "no bytes of a wqe"),
        (What::Wqe, "00 01 ff 0g", "line 1, column 11: 'g'"),
        (What::Wqe, "00000000: 00 01\n00000002: ff 0x zz 01 02", "line 2"),
        (What::Wqe, "00 01 f 08", "line 1, column 7: 'f' has 1 digits"),
        (What::Wqe, "0001ff080002ed0", "has 15 digits"),
        (What::Wqe, "0001ff080002ed03", "8 bytes are no wqe"),
        (What::Cqe, "0001ff08", "4 bytes are no cqe"),
        (What::Cqe, &"00".repeat(20), "20 bytes are no cqe"),
        (What::Doorbell, "0001ff", "3 bytes are no doorbell"),
        (What::Doorbell, "0001ff0800", "5 bytes are no doorbell"),
        (What::Wqe, "00000000: 00 01 02 03\n00000010: 00 01 02 03", "line 2: its offset is 0x10"),
    ];
    for (what, text, words) in cases {
        let error = decode(text, options(*what)).unwrap_err().to_string();
        assert!(error.contains(words), "{words:?} is not in {error:?} for {text:?}");
    }
}

/// Pieces that dumps are made of.
fn scraps() -> impl Strategy<Value = String> {
    let scrap = prop_oneof![
        prop::sample::select(vec![
            "00",
            "ff",
            "0x",
            "0x00",
            ":",
            ": ",
            "|",
            "*",
            "\n",
            "  ",
            "\t",
            "00000010: ",
            "0000020 ",
            "[1.5] ",
            "syndrome",
            "vendor",
            "wqe_qpn",
            "status",
            "=",
            "{",
            "}",
            "\\x",
            ",",
            "0001ff08",
            "é",
            ">",
            "<",
            "wqe ",
        ])
        .prop_map(str::to_owned),
        "[0-9a-f]{1,17}",
        "\\PC{0,4}",
    ];
    prop::collection::vec(scrap, 0..40).prop_map(|scraps| scraps.concat())
}

/// The fuzzer's corpus: a byte that chooses, then the text.
fn corpus() -> Vec<Vec<u8>> {
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let dir = file.join("../../fuzz/corpus/decode_text");
    let entries =
        std::fs::read_dir(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "no corpus in {}", dir.display());
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

fn try_all(text: &[u8]) {
    let text = String::from_utf8_lossy(text);
    for what in [What::Wqe, What::Cqe, What::Doorbell] {
        for order in [Order::Auto, Order::Memory, Order::Little] {
            let options =
                Options { what, order, dc: order == Order::Auto, json: order == Order::Memory };
            match decode(&text, options) {
                Ok(shown) => assert!(!shown.is_empty()),
                Err(error) => assert!(!error.to_string().is_empty()),
            }
        }
    }
}

#[test]
fn the_corpus_and_its_mutations_are_decoded_or_refused() {
    let corpus = corpus();
    corpus.iter().for_each(|data| try_all(data.get(1..).unwrap_or_default()));
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut below = |bound: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % bound as u64) as usize
    };
    let marks = b"0f:x |*\n,>[{\\=";
    for _ in 0..2_000 {
        let mut text = corpus[below(corpus.len())].clone();
        for _ in 0..=below(4) {
            let at = below(text.len() + 1);
            match below(3) {
                0 => text.truncate(at),
                1 => text.insert(at, marks[below(marks.len())]),
                _ => text.extend_from_within(..at.min(64)),
            }
        }
        try_all(&text);
    }
}

proptest! {
    #[test]
    fn no_text_makes_it_panic(
        text in prop_oneof![scraps(), any::<String>()],
        order in prop::sample::select(&[Order::Auto, Order::Memory, Order::Little][..]),
        flags in any::<(bool, bool)>(),
    ) {
        for what in [What::Wqe, What::Cqe, What::Doorbell] {
            let options = Options { what, order, dc: flags.0, json: flags.1 };
            match decode(&text, options) {
                Ok(shown) => prop_assert!(!shown.is_empty()),
                Err(error) => prop_assert!(!error.to_string().is_empty()),
            }
        }
    }

    #[test]
    fn any_wqe_survives_a_kernel_dump(payload in prop::collection::vec(any::<u8>(), 1..200), index in any::<u16>()) {
        use wire::wqe::{CtrlFlags, Opcode, WqeBuf};
        let mut wqe = WqeBuf::new(Opcode::RdmaWrite, index.into(), 0x2ed, CtrlFlags::CQ_UPDATE, 0).unwrap();
        wqe.raddr(0x1000, 0x213).unwrap().inline(&payload).unwrap();
        let text = rows(wqe.bytes(), |at, row| {
            let ascii: String = row.iter().map(|byte| if byte.is_ascii_graphic() { *byte as char } else { '.' }).collect();
            format!("{at:08x}: {}  {ascii}", join(row, 1, false, "", " "))
        });
        let shown = shown(What::Wqe, &text);
        let title = format!("WQE {index} of QP 0x2ed: RDMA_WRITE, {} segments", wqe.ctrl().ds());
        prop_assert!(shown.contains(&title), "{}\n{}", text, shown);
    }
}

#[test]
fn a_message_shows_the_digits_shortened_and_no_control_characters() {
    let options = Options { what: What::Wqe, order: Order::Auto, dc: false, json: false };
    let long = "0".repeat(1001);
    let error = decode(&long, options).unwrap_err().to_string();
    assert!(error.contains("has 1001 digits") && error.len() < 300, "{error}");
    let error = decode("00 01 \u{1b} 02", options).unwrap_err().to_string();
    assert!(error.contains("'\\u{1b}'"), "{error}");
}
