//! `gicbench report`: what stands in a page and in a Markdown table, whatever the record holds.

// Helpers of tests are exempt as the tests are, which the lints don't see.
#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic)]

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
fn every_picture_has_titles_with_units_on_its_axes() {
    let page = page(&[&shown()]);
    let pictures = pictures(&page);
    assert!(pictures.len() >= 12, "{}", pictures.len());
    for picture in pictures {
        let is_bars = picture.contains("class=\"head\"");
        let titles: Vec<&str> = picture
            .split("class=\"title ")
            .skip(1)
            .filter_map(|rest| rest.split('>').nth(1)?.split('<').next())
            .filter(|title| !title.is_empty())
            .collect();
        assert_eq!(titles.len(), if is_bars { 1 } else { 2 }, "{titles:?}");
        for title in titles {
            let unit = title.rsplit('(').next().expect("brackets");
            let known = ["µs", "M msg/s", "GB/s", "B)", "count)", "MHz"];
            assert!(known.iter().any(|known| unit.starts_with(known)), "{title}");
        }
        assert!(picture.contains(" aria-label="));
    }
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
fn the_picture_follows_from_the_axes_that_vary() {
    let record = shown();
    let point = |load: u64, mode: &str| json!({"load": load, "mode": mode, "ops": 9, "warmup": 0, "duration_s": null});
    let page_of = |loads: &[u64], modes: &[&str]| {
        let mut rows = Vec::new();
        for load in loads {
            for mode in modes {
                rows.push(made_up(&record, point(*load, mode), 1.0 + *load as f64));
            }
        }
        let record = with_rows(rows);
        let page = page(&[&record]);
        assert_harmless(&page);
        assert_complete(&page, &[&record]);
        page
    };
    let lines = page_of(&[0, 1, 8, 64], &["plain", "fancy"]);
    assert_eq!(pictures(&lines).len(), 1);
    assert!(
        lines.contains(">load (count)</text>") && lines.contains(">mode fancy</text>"),
        "{lines}"
    );

    let bars = page_of(&[1, 2], &["plain", "fancy"]);
    assert_eq!(pictures(&bars).len(), 1);
    assert_eq!(bars.matches("class=\"bar\"").count() - 2, 4, "a bar each, beside the legend's two");

    // More lines than colours are split into panels, and what a panel shares stands in its title.
    let many: Vec<String> = (0..6).map(|mode| format!("mode-{mode}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let mut rows = Vec::new();
    for load in [1, 2, 4] {
        for mode in &many {
            for queues in [1, 2] {
                let mut parameters = point(load, mode);
                parameters["qps"] = json!(queues);
                rows.push(made_up(&record, parameters, load as f64));
            }
        }
    }
    let panels = page(&[&with_rows(rows)]);
    assert_eq!(pictures(&panels).len(), 2);
    assert!(panels.contains(">issue: qps 1</text>") && panels.contains(">issue: qps 2</text>"));
}

/// The texts of a class in a picture, in their order.
fn texts<'a>(picture: &'a str, class: &str) -> Vec<&'a str> {
    let start = format!("class=\"{class}\"");
    let rest = picture.split(&start).skip(1);
    rest.filter_map(|rest| rest.split_once('>')?.1.split('<').next()).collect()
}

#[test]
fn long_titles_and_names_are_wrapped_and_none_is_cut() {
    let record = shown();
    let long = |word: &str| format!("{word}-which-is-a-rather-long-word");
    let mut rows = Vec::new();
    for load in [1, 2, 4] {
        for line in 0..6 {
            for panel in ["left", "right"] {
                let parameters = json!({"load": load, "mode": long("mode"), "kind": long(panel),
                    "other": long(panel), "third": long(panel), "line": long(&format!("line-{line}")),
                    "again": long(&format!("again-{line}"))});
                rows.push(made_up(&record, parameters, f64::from(load + line)));
            }
        }
    }
    let record = with_rows(rows);
    let page = page(&[&record]);
    assert_complete(&page, &[&record]);
    let pictures = pictures(&page);
    assert_eq!(pictures.len(), 2);
    for (picture, panel) in pictures.into_iter().zip(["left", "right"]) {
        assert!(!picture.contains('…'));
        let title = texts(picture, "panel");
        assert!(title.len() > 1 && title.iter().all(|line| line.len() <= 70), "{title:?}");
        let title = title.join(" ");
        for name in ["kind", "other", "third"] {
            assert!(title.contains(&format!("{name} {}", long(panel))), "{title}");
        }
        // What all lines of the page or of the panel share isn't repeated in each.
        let names = texts(picture, "name").join(" ");
        assert!(!names.contains("mode") && !names.contains("kind"), "{names}");
        for line in 0..6 {
            let name = names.replace(' ', "");
            assert!(name.contains(&format!("line{}", long(&format!("line-{line}")))), "{name}");
        }
    }
    assert_eq!(page.matches("At every point: ").count(), 1);
    assert!(page.contains(&format!("mode {}", long("mode"))));
}

#[test]
fn points_that_stand_alone_on_the_axis_are_bars_beside_their_neighbours() {
    let record = shown();
    let point = |load: u64, queues: u64, mode: &str, kind: &str| {
        let lane = format!("lane-{queues}");
        let parameters = json!({"load": load, "lane": lane, "mode": mode, "kind": kind});
        made_up(&record, parameters, (load * queues) as f64)
    };
    let mut rows = Vec::new();
    for load in [1, 4, 16] {
        rows.extend((1..=8).map(|queues| point(load, queues, "plain", "one")));
    }
    // One line in each of two ways, and single points in two others.
    for mode in ["quick", "slow"] {
        rows.extend([1, 4].map(|load| point(load, 2, mode, "one")));
    }
    rows.extend(["two", "three"].map(|kind| point(16, 2, "plain", kind)));
    let record = with_rows(rows);
    let page = page(&[&record]);
    assert_harmless(&page);
    assert_complete(&page, &[&record]);
    let pictures = pictures(&page);
    let [lines, joined, bars] = pictures.as_slice() else { panic!("{}", pictures.len()) };
    assert_eq!(texts(lines, "name").len(), 8);
    // The two lines, and the one that differs from them in nothing but the mode.
    let mut names = texts(joined, "name");
    names.sort_unstable();
    assert_eq!(names, ["mode plain", "mode quick", "mode slow"]);
    assert_eq!(values(joined, "data-again").len(), 3);
    assert_eq!((values(bars, "data-mark").len(), values(bars, "data-again").len()), (2, 1));
    assert!(texts(bars, "cell").contains(&"above"), "{bars}");
}

#[test]
fn a_fact_that_only_its_noise_changes_is_no_axis() {
    let record = shown();
    for (step, is_axis) in [(0.001, false), (400.0, true)] {
        let rows = (0..3).map(|index| {
            let mut row = made_up(&record, json!({"payload": 8}), 1.0);
            row["experiment"] = json!("clock");
            row["parameters"]["order"] = json!(["none", "gpu-release", "system-fence"][index]);
            row["details"] = json!({"clock_mhz": 1980.0 - step * index as f64});
            row
        });
        let record = with_rows(rows.collect());
        let page = page(&[&record]);
        assert_complete(&page, &[&record]);
        assert_eq!(page.contains("clock, as measured (MHz)</text>"), is_axis);
    }
}

#[test]
fn a_line_that_is_unsafe_as_a_whole_says_so_once() {
    let record = shown();
    let page_of = |unsafe_points: &[u64]| {
        let mut rows = Vec::new();
        for mode in ["first", "second"] {
            rows.extend([1, 2, 4].map(|load: u64| {
                let mut row = made_up(&record, json!({"load": load, "mode": mode}), 1.0);
                let is_unsafe = mode == "first" && unsafe_points.contains(&load);
                row["unsafe_mode"] = if is_unsafe { json!("why") } else { json!(null) };
                row
            }));
        }
        page(&[&with_rows(rows)])
    };
    for (unsafe_points, name, letters) in [
        (&[1u64, 2, 4] as &[u64], "mode first (U)", 0),
        (&[2], "mode first", 1),
        (&[], "mode first", 0),
    ] {
        let page = page_of(unsafe_points);
        let picture = pictures(&page)[0];
        assert!(texts(picture, "name").contains(&name), "{name}");
        assert_eq!(texts(picture, "unsafe-letter").len(), letters, "{name}");
    }
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

const HOSTILE: &str =
    "\"'><script>alert(1)</script><img src=x onerror=alert(1)>&amp;\u{202e}\u{0}|`x`\n";

#[test]
fn hostile_texts_are_only_text() {
    let record = shown();
    let mut row = row_like(&record, "issue_us", |row| {
        for name in ["experiment", "transport", "submitter", "nic", "metric", "unit"] {
            row[name] = json!(HOSTILE);
        }
        row["stand_in_why"] = json!(HOSTILE);
        row["unsafe_mode"] = json!(HOSTILE);
        row["parameters"] = json!({HOSTILE: HOSTILE, "payload": HOSTILE, "ops": HOSTILE});
        row["details"] = json!({HOSTILE: [HOSTILE, {HOSTILE: HOSTILE}]});
        row["clock"]["source"] = json!(HOSTILE);
        row["reference"] = json!({"value": 1.0, "unit": HOSTILE, "what": HOSTILE, "source": HOSTILE,
            "comparable": true});
    });
    let mut other = row.clone();
    other["parameters"][HOSTILE] = json!("other");
    let mut figure = row_like(&record, "issue_us", |_| {});
    figure["submitter"] = json!(HOSTILE);
    row["parameters"]["payload"] = json!(1e300);
    let mut record = with_rows(vec![row, other, figure]);
    record["argv"] = json!([HOSTILE]);
    record["started"] = json!(HOSTILE);
    for name in ["cpu", "kernel", "architecture"] {
        record["machine"][name] = json!(HOSTILE);
    }
    record["machine"]["gpus"] = json!([HOSTILE]);
    for name in ["gicbench", "commit", "profile", "rustc", "cxx"] {
        record["software"][name] = json!(HOSTILE);
    }
    record["parameters"]["suite"] = json!(HOSTILE);
    let missing = json!({"experiment": HOSTILE, "transport": HOSTILE, "submitter": "host", "nic": "soft",
        "parameters": {}, "reason": HOSTILE});
    record["not_run"] = json!([missing]);
    record["failed"] = json!([missing]);
    let page = page(&[&record]);
    assert_harmless(&page);
    assert_complete(&page, &[&record]);
    assert!(page.contains("&lt;script&gt;") && !page.contains('\u{202e}') && !page.contains('\0'));

    let text = markdown(&record);
    assert!(
        !text.contains('<') && !text.contains('\u{202e}') && text.contains("&lt;script&gt;"),
        "{text}"
    );
    let widths: BTreeSet<usize> = text
        .lines()
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.replace("\\|", "").matches('|').count())
        .collect();
    assert_eq!(widths.len(), 1, "{text}");
}

#[test]
fn numbers_that_no_picture_can_hold_are_in_the_table() {
    let record = shown();
    let numbers = [
        json!(null),
        json!(0.0),
        json!(-1.0),
        json!(1e308),
        json!(-1e308),
        json!(5e-324),
        json!(1e-9),
        json!(7.5),
    ];
    for metric in ["issue_us", "rate_mmsgs", "bandwidth_gbs"] {
        let mut rows = Vec::new();
        for (index, one) in numbers.iter().enumerate() {
            for (other_index, other) in numbers.iter().enumerate() {
                rows.push(row_like(&record, metric, |row| {
                    row["p50"] = one.clone();
                    row["p99"] = other.clone();
                    for name in ["p90", "p999"] {
                        row[name] = json!(null);
                    }
                    for name in ["min", "max", "mean"] {
                        row[name] = if one.is_null() { json!(1e308) } else { one.clone() };
                    }
                    row["p50_interval"] = json!(null);
                    row["wrong"] = json!(null);
                    row["parameters"]["payload"] = json!([0u64, 1, 8, u64::MAX, 64, 4096, 3, 5][index]);
                    row["parameters"]["qps"] = json!(other_index);
                    row["reference"] = json!({"value": other.as_f64().unwrap_or(0.0), "unit": "us", "what": "it",
                        "source": "there", "comparable": false});
                }));
            }
        }
        let record = with_rows(rows);
        let page = page(&[&record]);
        assert_harmless(&page);
        assert!(page.contains("too large or too small"), "{metric}");
        let rows = values(&page, "data-row");
        assert_eq!(rows.len(), numbers.len() * numbers.len());
        markdown(&record);
    }
}

#[test]
fn a_record_without_measurements_says_so_and_why() {
    let mut record = with_rows(Vec::new());
    record["partial"] = json!(true);
    record["not_run"] = json!([{"experiment": "ordering", "transport": "mini-gda", "submitter": "host",
        "nic": "soft", "parameters": {"ops": null, "warmup": 0, "duration_s": null},
        "reason": "queues in GPU memory need the cuda submitter"}]);
    let page = page(&[&record]);
    assert_harmless(&page);
    assert!(page.contains("nothing was measured (exit status 3)"));
    assert!(page.matches("queues in GPU memory need the cuda submitter").count() >= 2);
    assert!(page.contains("<h2>ordering</h2>") && page.contains("Nothing was measured."));
    assert!(pictures(&page).is_empty());
    assert!(markdown(&record).contains("No measurement"));

    record["not_run"] = json!([]);
    record["failed"] = json!([]);
    assert_harmless(&self::page(&[&record]));
}

#[test]
fn several_records_stand_side_by_side() {
    let first = shown();
    let mut second = shown();
    second["machine"]["gpus"] = json!(["NVIDIA H200"]);
    for row in second["measurements"].as_array_mut().unwrap() {
        row["submitter"] = json!("cuda");
    }
    second["measurements"].as_array_mut().unwrap().truncate(40);
    let page = page(&[&first, &second]);
    assert_harmless(&page);
    assert_complete(&page, &[&first, &second]);
    for label in ["machine-0", "machine-1"] {
        assert!(page.matches(label).count() > 5, "{label}");
    }
    // The same point of two machines is one line of the figures.
    let mut same = shown();
    same["measurements"].as_array_mut().unwrap().truncate(3);
    let page = self::page(&[&same, &same]);
    let figures = page.split("<h2>The figures</h2>").nth(1).unwrap();
    let figures = figures.split("</table>").next().unwrap();
    assert_eq!(figures.matches("issue, GPU-scope release").count(), 1, "{figures}");
}

#[test]
fn what_is_no_record_of_this_version_is_refused_by_name() {
    let folder = Folder::new();
    let mut newer = shown();
    newer["schema_version"] = json!(999);
    let mut lacking = shown();
    lacking["measurements"][0].as_object_mut().unwrap().remove("metric");
    let cases: BTreeMap<&str, (String, &str)> = [
        ("newer.json", (newer.to_string(), "schema_version 999")),
        ("lacking.json", (lacking.to_string(), "metric")),
        ("other.json", ("{\"results\": []}".to_owned(), "not a run record")),
        ("text.json", ("hello".to_owned(), "not JSON")),
        ("huge.json", (shown().to_string().replacen("0.", "1e999, ", 1), "not JSON")),
    ]
    .into();
    let html = folder.path("page.html");
    for (name, (text, word)) in cases {
        let path = folder.path(name);
        fs::write(&path, text).unwrap();
        let output = report(&[&path, Path::new("--html"), &html]);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{name}: {error}");
        assert!(error.contains(name) && error.contains(word), "{error}");
        assert!(!html.exists());
    }
    let output = report(&[&folder.path("none.json"), Path::new("--html"), &html]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("none.json"));
}

#[test]
fn nothing_is_overwritten_unasked_and_an_output_is_asked_for() {
    let folder = Folder::new();
    let record = folder.record("run.json", &shown());
    let mine = folder.path("mine.html");
    fs::write(&mine, "mine").unwrap();
    for flag in ["--html", "--markdown"] {
        let output = report(&[&record, Path::new(flag), &mine]);
        assert_eq!(output.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&output.stderr).contains("--force"));
        assert_eq!(fs::read_to_string(&mine).unwrap(), "mine");
    }
    let both = report(&[
        &record,
        Path::new("--html"),
        &mine,
        Path::new("--markdown"),
        &mine,
        Path::new("--force"),
    ]);
    assert_eq!(both.status.code(), Some(2));
    let output = report(&[&record, Path::new("--html"), &mine, Path::new("--force")]);
    assert!(output.status.success());
    assert!(fs::read_to_string(&mine).unwrap().starts_with("<!DOCTYPE html>"));
    assert_eq!(report(&[&record]).status.code(), Some(2));
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
