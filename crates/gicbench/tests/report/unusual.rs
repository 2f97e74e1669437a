//! Texts, numbers and records that nobody should write: shown harmlessly, or refused by name.

use super::*;

pub(crate) const HOSTILE: &str =
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
    let text = markdown(&record);
    assert!(text.contains("No measurement"), "{text}");
    let row = "| ordering | mini-gda | 1 | queues in GPU memory need the cuda submitter |";
    assert!(text.contains("**Not run.**") && text.contains(row), "{text}");

    record["not_run"] = json!([]);
    record["failed"] = json!([]);
    assert_harmless(&self::page(&[&record]));
}

#[test]
fn wrong_data_and_what_was_not_measured_are_listed_with_their_transports() {
    let mut record = shown();
    let missing = |transport: &str, parameters: Value, reason: &str| {
        json!({"experiment": "batching", "transport": transport, "submitter": "cuda", "nic": "none",
            "parameters": parameters, "reason": reason})
    };
    record["not_run"] = json!([
        missing("gdaki", json!({"variant": "gin"}), "nothing completes"),
        missing("gdaki", json!({"variant": "gpu"}), "nothing completes"),
        missing("gdaki", json!({"variant": "gin"}), "nothing completes"),
        missing("mini-gda", json!({"like": "none"}), "nothing completes"),
        missing("mini-gda", json!({"like": "deepep"}), "no such put"),
    ]);
    record["failed"] = json!([missing("deepep", json!({"variant": "put"}), "it hung")]);
    let wrong = |metric: &str, wrong: u64, unsafe_mode: Value| {
        row_like(&shown(), metric, |row| {
            row["experiment"] = json!("inline");
            row["transport"] = json!("deepep");
            row["parameters"] = json!({"variant": "put", "payload": 8, "inline": "on", "profile": "none",
                "ops": 10, "warmup": 0, "duration_s": null});
            row["wrong"] = json!(wrong);
            row["unsafe_mode"] = unsafe_mode.clone();
            row["submitter"] = json!("cuda");
        })
    };
    let rows = record["measurements"].as_array_mut().unwrap();
    rows.extend([wrong("issue_us", 3, json!(null)), wrong("put_completion_us", 4, json!(null))]);
    // Where nothing promises right data, wrong data is no finding.
    rows.push(wrong("issue_us", 9, json!("nothing is ordered")));
    let lines = [
        "| inline | deepep (put) | cuda, soft, 8 B, inline on | issue, put + completion | 4 |",
        "| batching | gdaki (gin, gpu); mini-gda | 4 | nothing completes |",
        "| batching | mini-gda (like deepep) | 1 | no such put |",
        "| batching | deepep (put) | 1 | it hung |",
    ];
    let titles = ["Wrong data", "Not run", "Failed"];
    let text = markdown(&record);
    for line in lines {
        assert_eq!(text.matches(line).count(), 1, "{line}: {text}");
    }
    for title in titles {
        assert_eq!(text.matches(&format!("**{title}.**")).count(), 1, "{title}: {text}");
    }
    let page = page(&[&record]);
    assert_harmless(&page);
    assert_complete(&page, &[&record]);
    for title in titles {
        assert!(page.contains(&format!("<h3>{title}</h3>")), "{title}");
    }
    for cell in ["deepep (put)", "gdaki (gin, gpu); mini-gda", "mini-gda (like deepep)"] {
        assert!(page.contains(&format!("<td class=\"said\">{cell}</td>")), "{cell}");
    }
    let shown = shown();
    assert!(!markdown(&shown).contains("**Wrong data.**"));
    // Of several records each names its own.
    let both = self::page(&[&record, &shown]);
    assert!(both.contains("<h3>Wrong data: machine-0</h3>"));
    assert!(!both.contains("<h3>Wrong data: machine-1</h3>"));
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
