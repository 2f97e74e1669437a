//! `gicbench report`: what stands in a page and in a Markdown table, whatever the record holds.

// Helpers of tests are exempt as the tests are, which the lints don't see.
#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic)]

mod beside;
mod pictures;
mod unusual;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use assert_cmd::Command;
use serde_json::{Value, json};
use tempfile::TempDir;

/// The record that the repository shows.
fn shown() -> Value {
    let path =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../results/2026-11-29-two-core-vm/run.json");
    serde_json::from_str(&fs::read_to_string(path).expect("the record")).expect("JSON")
}

struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Folder(tempfile::tempdir().expect("a directory"))
    }
    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
    fn record(&self, name: &str, record: &Value) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, record.to_string()).expect("written");
        path
    }
}

fn report(arguments: &[&Path]) -> Output {
    Command::cargo_bin("gicbench")
        .expect("the binary")
        .arg("report")
        .args(arguments)
        .output()
        .expect("it starts")
}

/// The page of some records.
fn page(records: &[&Value]) -> String {
    let folder = Folder::new();
    let html = folder.path("page.html");
    let mut arguments: Vec<PathBuf> = records
        .iter()
        .enumerate()
        .map(|(number, record)| folder.record(&format!("machine-{number}.json"), record))
        .collect();
    arguments.extend(["--html".into(), html.clone()]);
    let arguments: Vec<&Path> = arguments.iter().map(PathBuf::as_path).collect();
    let output = report(&arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    fs::read_to_string(html).expect("a page")
}

fn markdown(record: &Value) -> String {
    let folder = Folder::new();
    let path = folder.record("run.json", record);
    let output = report(&[&path, Path::new("--markdown"), Path::new("-")]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// The values of an attribute, in their order.
fn values<'a>(page: &'a str, attribute: &str) -> Vec<&'a str> {
    let start = format!(" {attribute}=\"");
    page.split(&start).skip(1).filter_map(|rest| rest.split('"').next()).collect()
}

/// What every page keeps: it is well-formed, asks for nothing, runs nothing, and draws no number that isn't one.
fn assert_harmless(page: &str) {
    let mut open: Vec<String> = Vec::new();
    for piece in page.split('<').skip(1) {
        let (tag, _) = piece.split_once('>').unwrap_or_else(|| panic!("an open end: <{piece:.60}"));
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(name), "near <{tag}");
            continue;
        }
        // What stands in quotes is text; the names outside of them are the program's.
        let outside: String = tag.split('"').step_by(2).collect();
        let mut names = outside.split_whitespace();
        let name = names.next().expect("a name");
        if !outside.ends_with('/') && !tag.starts_with('!') {
            open.push(name.to_owned());
        }
        assert!(!matches!(name, "script" | "img" | "link" | "iframe" | "object" | "base"), "{tag}");
        for attribute in names {
            let attribute = attribute.trim_end_matches(['=', '/']);
            assert!(!attribute.starts_with("on") && attribute != "src", "{tag}");
        }
    }
    assert!(open.is_empty(), "{open:?}");
    for href in values(page, "href") {
        assert!(href.starts_with('#'), "{href}");
    }
    let style = page.split("<style>").nth(1).and_then(|rest| rest.split("</style>").next());
    let style = style.expect("a style sheet");
    assert!(!style.contains("@import") && !style.contains("url("), "{style}");
    assert!(page.contains("default-src &#39;none&#39;"));
    for attribute in ["x", "y", "x1", "x2", "y1", "y2", "width", "height", "cx"] {
        for value in values(page, attribute) {
            let number: f64 = value.parse().unwrap_or_else(|_| panic!("{attribute}=\"{value}\""));
            assert!(number.is_finite() && number.abs() < 1e5, "{attribute}=\"{value}\"");
        }
    }
    for word in ["NaN", "inf\"", "-inf"] {
        assert!(!page.contains(word), "{word}");
    }
}

/// Every measurement has one row and, where it can be drawn, one mark.
fn assert_complete(page: &str, records: &[&Value]) {
    let expected: BTreeSet<String> = records
        .iter()
        .enumerate()
        .flat_map(|(record, value)| {
            let rows = value["measurements"].as_array().expect("rows").len();
            (1..=rows).map(move |row| format!("{}-{row}", record + 1))
        })
        .collect();
    for attribute in ["data-row", "data-mark"] {
        let found = values(page, attribute);
        let distinct: BTreeSet<String> = found.iter().map(|id| (*id).to_owned()).collect();
        assert_eq!(found.len(), distinct.len(), "{attribute}: one twice");
        assert_eq!(distinct, expected, "{attribute}");
    }
}

/// Pictures, each as its own markup.
fn pictures(page: &str) -> Vec<&str> {
    page.split("<figure").skip(1).filter_map(|rest| rest.split("</figure>").next()).collect()
}

#[test]
fn every_measurement_is_in_one_row_and_one_picture() {
    let record = shown();
    let page = page(&[&record]);
    assert_harmless(&page);
    assert_complete(&page, &[&record]);
    for experiment in ["latency", "ordering", "inline", "quiet", "batching", "handoff", "bandwidth"]
    {
        assert!(page.contains(&format!("<h2>{experiment}</h2>")), "{experiment}");
    }
    assert!(page.contains("what does one operation cost on each path?"));
}

#[test]
fn stand_ins_and_unsafe_modes_are_marked_in_pictures_and_tables_and_explained() {
    let record = shown();
    let page = page(&[&record]);
    assert!(page.contains("CPU threads in place of GPU threads; software NIC on CPU threads"));
    assert!(page.contains("nothing orders WQE, doorbell record and doorbell for the NIC"));
    for picture in pictures(&page) {
        // Everything in this record is a stand-in: nothing is filled.
        assert!(picture.contains("url(#hatch-") || picture.contains("marker hollow"));
        assert!(!picture.contains("class=\"marker\""), "{picture}");
        assert!(!picture.contains("class=\"published\""), "a ratio's mark beside a stand-in");
    }
    let ordering = page.split("<h2>ordering</h2>").nth(1).expect("a section");
    let issue = pictures(ordering)[0];
    let wanted = record["measurements"].as_array().unwrap().iter().filter(|row| {
        row["experiment"] == "ordering"
            && row["metric"] == "issue_us"
            && !row["unsafe_mode"].is_null()
    });
    assert_eq!(issue.matches("class=\"unsafe-letter\"").count(), wanted.count());
}

#[test]
fn a_ratio_stands_only_beside_the_same_thing() {
    let mut record = shown();
    let text = markdown(&record);
    let line = |text: &str| {
        let line =
            text.lines().find(|line| line.contains("issue, GPU-scope release")).expect("a line");
        line.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>()
    };
    // Figure, by, p50, p99, ratio, published, unit, note.
    let cells = line(&text);
    assert_eq!(cells[5..9], ["–", "0.70", "µs", "S"], "{text}");

    let row = record["measurements"].as_array_mut().unwrap().iter_mut().find(|row| {
        row["experiment"] == "latency"
            && row["metric"] == "issue_us"
            && row["parameters"]["op"] == "put"
            && row["transport"] == "mini-gda"
    });
    let row = row.expect("the row");
    row["submitter"] = json!("cuda");
    row["p50"] = json!(0.35);
    row["reference"]["comparable"] = json!(true);
    let cells = line(&markdown(&record));
    assert_eq!(cells[5], "–", "a record that calls a stand-in comparable isn't believed");

    let row = record["measurements"].as_array_mut().unwrap();
    let row = row.iter_mut().find(|row| row["submitter"] == "cuda").unwrap();
    row["stand_in"] = json!(false);
    row["stand_in_why"] = json!(null);
    let cells = line(&markdown(&record));
    assert_eq!(cells[2..9], ["cuda, soft", "0.350", "0.040", "0.50", "0.70", "µs", ""]);
    let page = page(&[&record]);
    assert!(page.contains("class=\"published\"") && page.contains("class=\"published aside\""));
}

/// A row of the record, made another.
fn row_like(record: &Value, metric: &str, change: impl Fn(&mut Value)) -> Value {
    let rows = record["measurements"].as_array().expect("rows");
    let mut row = rows.iter().find(|row| row["metric"] == metric).expect("such a row").clone();
    change(&mut row);
    row
}

fn with_rows(rows: Vec<Value>) -> Value {
    let mut record = shown();
    record["measurements"] = rows.into();
    record
}

#[test]
fn derived_quantities_follow_from_their_points_and_are_left_out_without_them() {
    let record = shown();
    let quiet = |qps: u64, scope: &str, p50: Value| {
        row_like(&record, "put_completion_us", |row| {
            row["experiment"] = json!("quiet");
            row["parameters"] = json!({"payload": 8, "qps": qps, "scope": scope, "order": "gpu-release",
                "profile": "none", "ops": 10, "warmup": 0, "duration_s": null});
            row["p50"] = p50.clone();
        })
    };
    let inline = |payload: u64, p50: f64| {
        row_like(&record, "issue_us", |row| {
            row["experiment"] = json!("inline");
            row["parameters"] = json!({"payload": payload, "inline": "on", "batch": 1, "order": "gpu-release",
                "profile": "none", "ops": 10, "warmup": 0, "duration_s": null});
            row["p50"] = json!(p50);
        })
    };
    let growth = "all queue pairs in scope, 16 over 1";
    let further = "each further 16 B inline";
    let all = with_rows(vec![
        quiet(1, "all", json!(2.0)),
        quiet(16, "all", json!(5.0)),
        quiet(16, "one", json!(1.0)),
        inline(8, 1.0),
        inline(24, 1.5),
        inline(40, 2.0),
    ]);
    let text = markdown(&all);
    let line = |what: &str| text.lines().find(|line| line.contains(what)).unwrap_or_default();
    assert!(line(growth).contains("| 2.500 | 2.00 (NVSHMEM) | – | S |"), "{text}");
    assert!(line(further).contains("| 0.500 µs | 0.10 µs (mini-gda) | – | S |"), "{text}");
    assert!(page(&[&all]).contains(growth));

    for rows in [
        vec![quiet(1, "all", json!(2.0)), quiet(16, "one", json!(5.0))],
        vec![quiet(1, "all", json!(null)), quiet(16, "all", json!(5.0))],
        vec![quiet(1, "all", json!(0.0)), quiet(16, "all", json!(5.0))],
        vec![
            quiet(1, "all", json!(2.0)),
            quiet(16, "all", json!(5.0)),
            quiet(16, "all", json!(6.0)),
        ],
        vec![inline(8, 1.0), inline(24, 1.5)],
    ] {
        let record = with_rows(rows);
        let text = markdown(&record);
        assert!(!text.contains(growth) && !text.contains(further), "{text}");
        assert!(!page(&[&record]).contains(growth));
    }
}

/// A measurement of an experiment that nobody has heard of.
fn made_up(record: &Value, parameters: Value, p50: f64) -> Value {
    row_like(record, "issue_us", |row| {
        row["experiment"] = json!("made-up");
        row["reference"] = json!(null);
        row["parameters"] = parameters.clone();
        row["p50"] = json!(p50);
        row["p99"] = json!(null);
    })
}

#[test]
fn sampling_that_differs_is_not_said_to_be_the_same_everywhere() {
    let record = shown();
    let rows = [0.4, 0.3].map(|seconds| {
        let parameters = json!({"payload": seconds * 1000.0, "window": 16, "duration_s": seconds});
        made_up(&record, parameters, 1.0)
    });
    let page = page(&[&with_rows(rows.to_vec())]);
    assert!(page.contains("window 16") && page.contains("duration_s 0.4 or 0.3."));
}

#[test]
fn points_that_differ_in_nothing_are_all_there() {
    let record = shown();
    let parameters = json!({"payload": 8, "ops": 9, "warmup": 0, "duration_s": null});
    let rows = (1..=3).map(|n| made_up(&record, parameters.clone(), f64::from(n))).collect();
    let record = with_rows(rows);
    let page = page(&[&record]);
    assert_complete(&page, &[&record]);
}

#[test]
fn the_load_beside_a_latency_and_what_a_kernel_takes_are_shown_where_a_record_has_them() {
    let record = shown();
    let loaded = |ctas: u64, queue: &str| {
        row_like(&record, "put_completion_us", |row| {
            row["experiment"] = json!("loaded");
            row["parameters"] = json!({"payload": 8, "ctas": ctas, "probe-queue": queue, "pace": 0, "ops": 9,
                "warmup": 0, "duration_s": null});
            row["details"] = json!({"carried_mmsgs": ctas as f64 / 2.0});
        })
    };
    let rate = |sharing: &str, registers: u64| {
        row_like(&record, "rate_mmsgs", |row| {
            row["experiment"] = json!("batching");
            row["parameters"] = json!({"payload": 8, "sharing": sharing, "ops": 9, "warmup": 0, "duration_s": null});
            row["details"] = json!({"registers": registers, "occupancy": 0.625});
        })
    };
    let mut rows = vec![rate("exclusive", 40), rate("warp", 48)];
    for queue in ["shared", "private"] {
        rows.extend([0, 4, 64].map(|ctas| loaded(ctas, queue)));
    }
    let record = with_rows(rows);
    let page = page(&[&record]);
    assert_complete(&page, &[&record]);
    assert!(page.contains("carried in the background (M msg/s)"));
    assert!(
        page.contains("registers a thread")
            && page.contains(">48</td>")
            && page.contains(">0.625</td>")
    );
}

#[test]
fn a_transport_is_compared_with_the_bare_sequence_at_the_same_point() {
    let record = shown();
    let issue = |transport: &str, order: &str, p50: f64| {
        row_like(&record, "issue_us", |row| {
            row["transport"] = json!(transport);
            row["parameters"]["order"] = json!(order);
            row["p50"] = json!(p50);
            row["reference"] = json!(null);
            if transport == "bare" {
                row["parameters"].as_object_mut().unwrap().remove("cq");
            }
        })
    };
    let text = markdown(&with_rows(vec![
        issue("mini-gda", "gpu-release", 0.66),
        issue("bare", "gpu-release", 0.60),
        issue("bare", "none", 0.1),
    ]));
    let line = text.lines().find(|line| line.contains("over the bare sequence's")).expect("a line");
    assert!(line.contains("| 1.100 |"), "{text}");
    let alone = markdown(&with_rows(vec![
        issue("mini-gda", "gpu-release", 0.66),
        issue("bare", "none", 0.1),
    ]));
    assert!(!alone.contains("over the bare sequence's"), "{alone}");
}

#[test]
fn a_run_writes_its_own_page() {
    let folder = Folder::new();
    let html = folder.path("page.html");
    let output = Command::cargo_bin("gicbench")
        .expect("the binary")
        .args([
            "run",
            "latency",
            "--transport",
            "mini-gda,bare",
            "--op",
            "put",
            "--engine",
            "stepped",
        ])
        .args(["-n", "64", "-w", "8", "--html"])
        .arg(&html)
        .output()
        .expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let page = fs::read_to_string(&html).unwrap();
    assert_harmless(&page);
    assert_eq!(values(&page, "data-row").len(), 5);
    assert_eq!(values(&page, "data-mark").len(), 5);
    // What follows from several rows stands below them, as comments.
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    let derived = table.lines().find(|line| line.contains("issue over the bare sequence's"));
    assert!(derived.is_some_and(|line| line.starts_with('#')), "{table}");
}
