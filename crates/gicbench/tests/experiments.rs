//! Every experiment, small: it runs to its end, its data is right, and its record says what it is.

// Helpers of tests are exempt as the tests are, which the lints don't see.
#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic)]

use std::process::Output;

use assert_cmd::Command;
use serde_json::Value;

/// Runs with few samples and a stepped engine, so that nothing depends on the scheduler; returns the record.
fn run(arguments: &str) -> (Output, Value) {
    let dir = tempfile::tempdir().expect("a folder");
    let json = dir.path().join("run.json");
    let output = Command::cargo_bin("gicbench")
        .expect("the binary")
        .args(["run", "--engine", "stepped", "-n", "64", "-w", "8", "--json"])
        .arg(&json)
        .args(arguments.split_whitespace())
        .output()
        .expect("it starts");
    let text = std::fs::read_to_string(&json).unwrap_or_else(|_| {
        panic!("{arguments}: no record\n{}", String::from_utf8_lossy(&output.stderr))
    });
    (output, serde_json::from_str(&text).expect("a record"))
}

fn assert_bad_usage(arguments: &str, reason: &str) {
    let output = Command::cargo_bin("gicbench")
        .expect("the binary")
        .arg("run")
        .args(arguments.split_whitespace())
        .output()
        .expect("it starts");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{arguments}: {text}");
    assert!(text.contains(reason), "{arguments}: {text}");
}

#[test]
fn each_experiment_measures_checked_data_and_names_its_stand_ins() {
    for (arguments, rows) in [
        ("latency --transport mini-gda", 9),
        ("latency --transport mini-gda --conn dc --op put,get,atomic,put-signal", 8),
        ("latency --transport mini-gda --cq ring --op put,atomic", 5),
        ("ordering --order none,gpu-release --cq ring,collapsed --cq-load acquire", 16),
        ("latency --transport mini-gda --op put,get -b 1 -e 64K -f 32", 16),
        ("latency --transport mini-proxy", 9),
        ("ordering", 60),
        ("inline -b 4 -e 256 -f 4 --batch 1,32", 24),
        ("quiet --qps 1,5 --scope one,used,all", 6),
        ("batching --doorbell fixed,threshold,caller,every-nth --batch 1,7 --qps 1,3", 16),
        (
            "batching --sharing thread,warp --inline off --doorbell fixed,threshold,caller,every-nth --qps 1",
            24,
        ),
        ("handoff", 24),
        ("handoff --producers 2 --handoff valid-byte,nonzero-word,lap-parity,producer-counter", 18),
        ("handoff --handoff lap-parity,mapped-counter --reserve atomic --progress cached,read", 15),
        ("proxy-scaling --rings 1,3 --chain 1,16 --signal-every 1,4", 8),
        ("proxy-scaling --rings 2 --producers 1,2,3 --chain 16", 3),
        ("proxy-scaling --rings 2 --producers 3 --handoff producer-counter --chain 1", 1),
        ("clock", 4),
        ("placement", 2),
        ("loaded --ctas 0,2 --pace 0,100000", 60),
        (
            "loaded --transport mini-gda --qps 1,3 --ctas 3 --background-payload 100 --window 3 --pace 0",
            12,
        ),
        (
            "loaded --transport mini-gda --qps 2 --ctas 2 --order system-fence --pace 0 -b 64 -e 64",
            4,
        ),
        (
            "loaded --transport mini-proxy --rings 2 --ctas 3 --window 1 --pace 0 \
             --handoff valid-byte,nonzero-word,producer-counter",
            18,
        ),
        ("bandwidth -b 8 -e 64K -f 64", 6),
        ("bandwidth --transport mini-gda --op get -b 4K -e 4K", 1),
        ("latency --transport mini-gda --op put --profile cx7-ndr200", 3),
        ("latency --transport mini-gda,mini-proxy --op put --like nvshmem,gdaki,deepep", 6),
        (
            "latency --op put --transport mini-proxy --like nvshmem-proxy,gin-proxy,mscclpp,uccl-ep,fabric-lib",
            10,
        ),
        (
            "latency --op put --transport mini-gda --like gdaki --without none,lock,early-doorbell",
            6,
        ),
    ] {
        let (output, record) = run(arguments);
        let measurements = record["measurements"].as_array().expect("measurements");
        assert_eq!(
            (output.status.code(), measurements.len()),
            (Some(0), rows),
            "{arguments}\n{}",
            String::from_utf8_lossy(&output.stdout)
        );
        for row in measurements {
            assert_eq!(row["wrong"], 0, "{arguments}: {row}");
            assert_eq!(row["stand_in"], true, "{row}");
            assert!(row["samples"].as_u64() > Some(0) && row["min"].as_f64() > Some(0.0), "{row}");
        }
    }
}

#[test]
fn bandwidth_in_virtual_time_is_the_same_each_time() {
    let arguments = "bandwidth --transport mini-gda -b 4K -e 4K";
    let value = |record: &Value| record["measurements"][0]["max"].clone();
    assert_eq!(value(&run(arguments).1), value(&run(arguments).1));
}

#[test]
fn what_a_host_has_not_is_not_run_and_says_why() {
    for (arguments, reason) in [
        ("ordering --order async-mmio", "sm_100"),
        ("ordering --queues gpu --order none", "cuda submitter"),
        ("placement --sq gpu", "cuda submitter"),
        ("placement --payload-memory gpu", "cuda submitter"),
        ("proxy-scaling --workers 2 --rings 1", "nothing to do"),
        ("handoff --handoff gpu-flag", "GPU memory"),
        ("handoff --producers 2 --handoff mapped-counter", "order"),
    ] {
        let (output, record) = run(arguments);
        assert_eq!(output.status.code(), Some(3), "{arguments}");
        let text = record["not_run"].to_string();
        assert!(text.contains(reason), "{arguments}: {text}");
    }
}

#[test]
fn what_is_impossible_everywhere_is_bad_usage_and_says_what_would_do() {
    for (arguments, word) in [
        ("batching --inline on -b 64 -e 64", "28"),
        ("batching --sharing warp --inline on -b 16 -e 16", "8"),
        ("inline --inline on -b 512 -e 512", "284"),
        ("latency --transport mini-gda --op atomic -b 16 -e 16", "8"),
        ("latency --conn dc --cq ring --transport mini-gda", "collapsed"),
        ("quiet --scope used --qps 128", "64"),
        ("loaded --transport mini-gda --probe-queue private-worker", "has no worker"),
        ("loaded --transport mini-gda --qps 4 --ctas 2", "at most a queue a CTA"),
        (
            "loaded --transport mini-proxy --rings 2 --ctas 2 --probe-queue private-worker",
            "one ring",
        ),
        ("loaded --transport mini-gda --order none", "gpu-release"),
        ("loaded --transport mini-proxy --handoff mapped-counter", "lap-parity"),
    ] {
        assert_bad_usage(arguments, word);
    }
}

#[test]
fn the_handoff_ladder_goes_from_the_baseline_to_the_posted_store_one_choice_a_step() {
    let (_, record) = run("handoff");
    let steps: Vec<Vec<String>> = record["measurements"]
        .as_array()
        .expect("measurements")
        .iter()
        .filter(|row| row["metric"] == "enqueue_us")
        .map(|row| {
            ["handoff", "reserve", "progress", "publish"]
                .map(|axis| row["parameters"][axis].as_str().expect("a word").to_owned())
                .to_vec()
        })
        .collect();
    assert_eq!(
        steps,
        [
            ["valid-byte", "atomic", "read", "release"],
            ["valid-byte", "owned", "read", "release"],
            ["valid-byte", "owned", "cached", "release"],
            ["lap-parity", "owned", "cached", "release"],
            ["lap-parity", "owned", "cached", "posted"],
            ["nonzero-word", "owned", "cached", "release"],
            ["producer-counter", "owned", "cached", "release"],
            ["mapped-counter", "owned", "cached", "release"],
        ]
    );
}

#[test]
fn a_proxy_record_holds_every_choice_and_size() {
    let (_, record) = run("proxy-scaling --rings 2 --producers 3 --chain 4 --signal-every 2");
    let details = &record["measurements"][0]["details"];
    for (name, value) in [
        ("producers", 3.into()),
        ("reserve", "atomic".into()),
        ("progress", "cached".into()),
        ("publish", "release".into()),
        ("rings", 2.into()),
        ("ring_depth", 512.into()),
        ("sq_blocks", 1024.into()),
        ("workers", 1.into()),
        ("chain", 4.into()),
        ("signal_every", 2.into()),
        ("window", 256.into()),
    ] {
        let value: Value = value;
        assert_eq!(details[name], value, "{name}: {details}");
    }
}

#[test]
fn choices_of_a_proxy_that_exclude_each_other_are_bad_usage() {
    for (arguments, reason) in [
        ("proxy-scaling --handoff producer-counter --chain 1,16", "no chains"),
        ("proxy-scaling --handoff producer-counter --chain 1 --signal-every 4", "CQE"),
        ("handoff --reserve owned --producers 2", "for itself"),
        ("handoff --publish posted --handoff nonzero-word", "parity"),
        ("handoff --publish posted --progress read", "waited for"),
    ] {
        assert_bad_usage(arguments, reason);
    }
}

#[test]
fn a_probes_record_says_what_was_carried_beside_it() {
    let (_, record) = run("loaded --ctas 0,2 --pace 0,100000 --probe-queue shared,private");
    for row in record["measurements"].as_array().expect("measurements") {
        let (details, ctas) = (&row["details"], &row["parameters"]["ctas"]);
        let number = |name: &str| details[name].as_f64();
        assert_eq!(details["background"], *ctas, "{row}");
        if ctas == 0 {
            assert_eq!(number("carried_mmsgs"), Some(0.0), "{row}");
            continue;
        }
        assert!(number("carried_without_probe_mmsgs") > Some(0.0), "{row}");
        assert!(number("carried_mmsgs").is_some(), "{row}");
        let asked = (row["parameters"]["pace"] == 100_000).then_some(0.2);
        assert_eq!(number("asked_mmsgs"), asked, "{row}");
    }
}

#[test]
fn a_probe_is_on_the_backgrounds_queue_or_on_its_own() {
    let (_, record) = run("loaded --ctas 2 --qps 1,2 --pace 0 --transport mini-gda");
    for row in record["measurements"].as_array().expect("measurements") {
        let own = row["parameters"]["probe-queue"] == "private";
        let crowded = !own || row["parameters"]["qps"] == 1;
        let sharing = |shared| if shared { "thread" } else { "exclusive" };
        assert_eq!(row["details"]["probe_sharing"], sharing(!own), "{row}");
        assert_eq!(row["details"]["background_sharing"], sharing(crowded), "{row}");
    }
}

#[test]
fn a_clock_that_is_one_is_no_fit_and_says_so() {
    let (_, record) = run("clock");
    for row in record["measurements"].as_array().expect("measurements") {
        let details = &row["details"];
        assert!(details["clock_mhz"].as_f64() > Some(1.0), "{row}");
        assert_eq!(details["clocks"], 1, "{row}");
        assert_eq!(details["clock_fit"], "not run: one clock only", "{row}");
    }
}
