//! What a run gives: records, tables, CSV, exit statuses; and that it always ends.

use std::time::{Duration, Instant};
use std::{fs, thread};

use crate::fake::*;
use gicbench::context::Interrupt;
use gicbench::exit::ExitStatus;
use serde_json::json;

#[test]
fn every_outcome_has_its_status_its_list_and_its_reason() {
    // Outcome, status, measurements, not run, failed, and a word of the reason.
    for (outcome, status, rows, not_run, failed, reason) in [
        (FINE, ExitStatus::Done, 2, 0, 0, ""),
        (WRONG, ExitStatus::Failed, 1, 0, 0, ""),
        (UNSAFE, ExitStatus::Done, 1, 0, 0, ""),
        (NOT_RUN, ExitStatus::NothingRan, 0, 1, 0, "no flux capacitor"),
        (FAILS, ExitStatus::Failed, 0, 0, 1, "QP 7 went to error"),
        (PANICS, ExitStatus::Failed, 0, 0, 1, "panicked: a bug"),
        (NO_SAMPLES, ExitStatus::Failed, 0, 0, 1, "no samples"),
        (NOTHING, ExitStatus::Failed, 0, 0, 1, "measured nothing"),
        (INFINITE, ExitStatus::Failed, 0, 0, 1, "not a finite number"),
        (UNDECLARED, ExitStatus::Failed, 0, 0, 1, "enqueue_us"),
    ] {
        let qps = outcome.to_string();
        let ran = recorded(&["fake", "--transport", "mini-gda", "--qps", &qps]);
        assert_eq!(ran.status(), status, "{outcome}");
        assert_eq!(ran.array("measurements").len(), rows, "{outcome}");
        assert_eq!(ran.array("not_run").len(), not_run, "{outcome}");
        assert_eq!(ran.array("failed").len(), failed, "{outcome}");
        for missing in ran.array("not_run").iter().chain(ran.array("failed")) {
            assert!(missing["reason"].as_str().unwrap().contains(reason), "{missing}");
            assert_eq!(missing["parameters"]["qps"], outcome);
        }
        assert!(ran.table.contains(reason), "{}", ran.table);
    }
}

#[test]
fn some_points_that_cannot_run_make_it_partial() {
    let ran = recorded(&["fake", "--transport", "mini-gda", "--qps", "1,4"]);
    assert_eq!(ran.status(), ExitStatus::Partial);
    assert_eq!(ran.record()["partial"], true);
    assert_eq!(ran.record()["interrupted"], false);
    assert!(ran.table.contains("not run: fake, 1 point: no flux capacitor"), "{}", ran.table);
}

#[test]
fn what_is_not_here_is_named_and_nothing_left_is_its_own_status() {
    for (flag, value, missing) in [
        ("--submitter", "cuda", "submitter cuda: no NVIDIA GPU"),
        ("--nic", "mlx5", "NIC mlx5: no mlx5 device"),
        ("--nic", "soft-gpu", "NIC soft-gpu: no NVIDIA GPU"),
    ] {
        let ran = recorded(&["fake", flag, value]);
        assert_eq!(ran.status(), ExitStatus::NothingRan);
        assert!(ran.table.contains(missing), "{}", ran.table);
        let both = recorded(&["fake", flag, &format!("auto,{value}")]);
        assert_eq!(both.status(), ExitStatus::Partial);
    }
}

#[test]
fn a_measurement_holds_every_choice_and_what_the_samples_support() {
    let ran = recorded(&["fake", "--transport", "mini-gda", "-n", "2000", "-w", "7"]);
    let [issue, rate] = ran.array("measurements") else { panic!("{:?}", ran.record) };
    assert_eq!(
        issue["parameters"],
        json!({"payload": 8, "order": "gpu-release", "inline": "on", "qps": 1,
               "ops": 2000, "warmup": 7, "duration_s": null})
    );
    assert_eq!(issue["samples"], 2000);
    // Samples are 1.000, 1.001, … 2.999 us.
    assert_eq!((&issue["min"], &issue["max"]), (&json!(1.0), &json!(2.999)));
    assert_eq!((&issue["p50"], &issue["p99"]), (&json!(1.999), &json!(2.979)));
    assert_eq!(issue["p999"], json!(null));
    assert_eq!(issue["wrong"], 0);
    assert_eq!(issue["clock"]["overhead_ns"], 20.0);
    assert_eq!(issue["details"]["findings"], 0);
    assert_eq!(issue["reference"], json!(null));
    let counted: u64 = issue["histogram"]["buckets"]
        .as_array()
        .unwrap()
        .iter()
        .map(|bucket| bucket[2].as_u64().unwrap())
        .sum();
    assert_eq!(counted, 2000);

    assert_eq!((&rate["samples"], &rate["p50"]), (&json!(3), &json!(null)));
    assert_eq!((&rate["wrong"], &rate["clock"]), (&json!(null), &json!(null)));
    for row in [issue, rate] {
        assert_eq!(row["stand_in"], true);
        assert!(row["stand_in_why"].as_str().unwrap().contains("CPU threads"));
        assert!(row["threads"]["busy"].as_u64().unwrap() >= 1);
    }
}

#[test]
fn the_table_labels_stand_ins_and_prints_a_dash_for_what_is_not_there() {
    let ran = recorded(&["fake", "--qps", "1,3"]);
    let table = &ran.table;
    assert!(table.contains("S = STAND-IN: CPU threads in place of GPU threads"), "{table}");
    assert!(table.contains("U = UNSAFE: nothing orders the stores"), "{table}");
    assert!(table.contains("# fake: what can come of a point?"), "{table}");
    assert!(table.contains("#wrong") && table.contains("(us)") && table.contains("(Mmsg/s)"));
    // The rate has three samples: no percentile, no check, no figure, no ratio.
    let rate: Vec<&str> = table
        .lines()
        .find(|line| line.contains("mini-gda") && line.contains("rate_mmsgs"))
        .unwrap()
        .split_whitespace()
        .collect();
    let at = rate.iter().position(|cell| *cell == "rate_mmsgs").unwrap();
    let cells = ["3", "5.000", "-", "-", "-", "-", "5.000", "5.000", "-", "-", "-"];
    assert_eq!(rate[at + 1..at + 12], cells, "{table}");
    for note in &rate[at + 12..] {
        assert!(note.starts_with('S'), "{table}");
    }
}

#[test]
fn columns_of_the_table_are_aligned() {
    let ran = recorded(&["fake", "-b", "8", "-e", "1M", "-f", "128", "--inline", "off"]);
    let lines: Vec<&str> = ran.table.lines().collect();
    let head = lines.iter().position(|line| line.contains("transport")).unwrap();
    let column = lines[head].find("payload").unwrap() + "payload".len();
    let sizes: Vec<&str> = lines[head + 2..]
        .iter()
        .take_while(|line| !line.starts_with('#'))
        .map(|line| line[..column].split_whitespace().next_back().unwrap())
        .collect();
    assert_eq!(sizes, ["8", "1K", "128K", "8", "1K", "128K"], "{}", ran.table);
}

#[test]
fn csv_has_a_row_a_measurement_and_empty_cells_for_what_is_not_there() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run.csv");
    let ran = gicbench(&["fake", "--csv", &path_text(&path)], &Interrupt::default());
    assert_eq!(ran.status(), ExitStatus::Done);
    let mut reader = csv::Reader::from_path(&path).unwrap();
    let head = reader.headers().unwrap().clone();
    let rows: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
    assert_eq!(rows.len(), 4);
    let cell = |row: usize, name: &str| {
        let column = head.iter().position(|one| one == name).unwrap();
        rows[row][column].to_owned()
    };
    for (row, transport, metric, order, workers, p50, wrong) in [
        (0, "mini-gda", "issue_us", "gpu-release", "", "1.999", "0"),
        (1, "mini-gda", "rate_mmsgs", "gpu-release", "", "", ""),
        (2, "mini-proxy", "issue_us", "", "1", "1.999", "0"),
        (3, "mini-proxy", "rate_mmsgs", "", "1", "", ""),
    ] {
        for (name, expected) in [
            ("transport", transport),
            ("metric", metric),
            ("order", order),
            ("workers", workers),
            ("p50", p50),
            ("wrong", wrong),
            ("stand_in", "true"),
            ("reference", ""),
        ] {
            assert_eq!(cell(row, name), expected, "{row} {name}");
        }
    }
}

#[test]
fn a_record_is_run_again_from_itself_with_the_points_that_did_not_run() {
    let directory = tempfile::tempdir().unwrap();
    let path = path_text(&directory.path().join("first.json"));
    let first = gicbench(
        &["fake", "other", "--qps", "1,4", "-n", "50", "--seed", "9", "--json", &path],
        &Interrupt::default(),
    );
    let again = recorded(&["--from", &path]);
    let points = |ran: &Ran, list: &str| -> Vec<serde_json::Value> {
        ran.array(list)
            .iter()
            .map(|row| json!([row["experiment"], row["transport"], row["nic"], row["parameters"]]))
            .collect()
    };
    for list in ["measurements", "not_run"] {
        assert!(!points(&first, list).is_empty());
        assert_eq!(points(&first, list), points(&again, list));
    }
    assert_eq!(first.record()["parameters"], again.record()["parameters"]);
}

#[test]
fn what_is_no_record_or_of_another_version_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.json");
    let mut record = recorded(&["other"]).record().clone();
    record["measurements"][0]["parameters"]["colour"] = json!("red");
    let spoilt = |parameter: &str, value: serde_json::Value| {
        let mut record = recorded(&["other"]).record().clone();
        record["measurements"][0]["parameters"][parameter] = value;
        record.to_string()
    };
    let mut lacking = recorded(&["other"]).record().clone();
    lacking["measurements"][0]["parameters"].as_object_mut().unwrap().remove("batch");
    for (text, word) in [
        (spoilt("ops", json!(0)), "'ops'"),
        (spoilt("ops", json!("12")), "'ops'"),
        (spoilt("warmup", json!(-1)), "'warmup'"),
        (spoilt("duration_s", json!(-1)), "'duration_s'"),
        (spoilt("batch", json!(2.5)), "2.5"),
        (lacking.to_string(), "'batch'"),
        ("{".to_owned(), "EOF"),
        ("{}".to_owned(), "schema_version"),
        (json!({"schema_version": 99}).to_string(), "99"),
        (json!({"schema_version": 1}).to_string(), "missing field"),
        (record.to_string(), "colour"),
    ] {
        fs::write(&path, text).unwrap();
        let ran = gicbench(&["--from", &path_text(&path)], &Interrupt::default());
        assert_eq!(ran.status(), ExitStatus::Usage);
        assert!(ran.error().contains(word), "{}", ran.error());
    }
}

#[test]
fn shards_together_are_the_whole_run() {
    let whole = recorded(&["fake", "--suite", "full", "-n", "20"]);
    let mut parts: Vec<String> = Vec::new();
    for shard in ["1/3", "2/3", "3/3"] {
        let part = recorded(&["fake", "--suite", "full", "-n", "20", "--shard", shard]);
        assert_eq!(part.record()["parameters"]["shard"], shard);
        parts.extend(part.array("measurements").iter().map(point_text));
    }
    let mut expected: Vec<String> = whole.array("measurements").iter().map(point_text).collect();
    assert!(expected.len() > 6);
    expected.sort();
    parts.sort();
    assert_eq!(parts, expected);
}

fn point_text(row: &serde_json::Value) -> String {
    format!("{} {} {}", row["transport"], row["metric"], row["parameters"])
}

#[test]
fn ctrl_c_keeps_what_was_measured_and_ends_within_a_second() {
    for (outcome, status, kept) in
        [(SLOW, ExitStatus::Partial, true), (HANGS, ExitStatus::Partial, false)]
    {
        let directory = tempfile::tempdir().unwrap();
        let path = path_text(&directory.path().join("run.json"));
        let qps = format!("{FINE},{outcome},{WRONG}");
        let interrupt = Interrupt::default();
        let press = interrupt.clone();
        let pressed = thread::spawn(move || {
            thread::sleep(Duration::from_millis(300));
            press.set();
            Instant::now()
        });
        let ran = gicbench(
            &["fake", "--transport", "mini-gda", "--qps", &qps, "--json", &path],
            &interrupt,
        );
        let took = pressed.join().unwrap().elapsed();
        assert!(took < Duration::from_secs(5), "{took:?}");
        assert_eq!(ran.status(), status);
        assert_eq!(ran.record()["interrupted"], true);
        assert_eq!(ran.record()["partial"], true);
        let cut: Vec<bool> =
            ran.array("measurements").iter().map(|row| row["cut_short"] == true).collect();
        assert_eq!(cut, if kept { vec![false, false, true, true] } else { vec![false, false] });
        let reasons: Vec<&str> =
            ran.array("not_run").iter().map(|one| one["reason"].as_str().unwrap()).collect();
        assert_eq!(reasons, if kept { vec!["interrupted"] } else { vec!["interrupted"; 2] });
        assert!(ran.table.contains("PARTIAL: interrupted"), "{}", ran.table);
    }
}

#[test]
fn ctrl_c_before_the_first_sample_is_nothing_that_ran() {
    let interrupt = Interrupt::default();
    interrupt.set();
    let ran = gicbench(&["fake"], &interrupt);
    assert_eq!(ran.status(), ExitStatus::NothingRan);
}

#[test]
fn a_point_that_ignores_its_deadline_is_given_up_and_nothing_is_measured_after_it() {
    let qps = format!("{FINE},{HANGS},{WRONG}");
    let ran = recorded(&["fake", "--transport", "mini-gda", "--qps", &qps, "--deadline", "200ms"]);
    assert_eq!(ran.status(), ExitStatus::Failed);
    assert_eq!(ran.array("measurements").len(), 2);
    assert!(ran.array("failed")[0]["reason"].as_str().unwrap().contains("deadline"));
    let left = ran.array("not_run")[0]["reason"].as_str().unwrap();
    assert!(left.contains("did not give the CPU back"), "{left}");
}

#[test]
fn a_point_that_notices_its_deadline_fails_and_the_run_goes_on() {
    let qps = format!("{SLOW},{FINE}");
    let ran = recorded(&["fake", "--transport", "mini-gda", "--qps", &qps, "--deadline", "100ms"]);
    assert_eq!(ran.status(), ExitStatus::Failed);
    assert_eq!(ran.array("failed").len(), 1);
    assert!(ran.array("failed")[0]["reason"].as_str().unwrap().contains("the fake"));
    assert_eq!(ran.array("measurements").len(), 2);
}

#[test]
fn the_schema_refuses_a_record_that_breaks_its_promises() {
    let good = recorded(&["fake"]).record().clone();
    assert!(is_valid(&good));
    let breaks: [fn(&mut serde_json::Value); 8] = [
        |record| record["measurements"][0]["p50"] = json!("fast"),
        |record| record["measurements"][0]["samples"] = json!(0),
        |record| record["measurements"][0]["stand_in_why"] = json!(null),
        |record| record["measurements"][0]["extra"] = json!(1),
        |record| record["measurements"][0]["unit"] = json!("ms"),
        |record| {
            record["measurements"][0]["reference"] = json!({"value": 0.7, "unit": "us",
                "what": "x", "source": "y", "comparable": true});
        },
        |record| record["schema_version"] = json!(2),
        |record| {
            record.as_object_mut().unwrap().remove("not_run");
        },
    ];
    for (index, spoil) in breaks.iter().enumerate() {
        let mut record = good.clone();
        spoil(&mut record);
        assert!(!is_valid(&record), "{index}");
    }
}
