//! The program itself: exit statuses, and what goes to which stream.

// Helpers of tests are exempt as the tests are, which the lints don't see.
#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic)]

use assert_cmd::Command;
use assert_cmd::assert::Assert;

fn gicbench(arguments: &[&str]) -> Assert {
    Command::cargo_bin("gicbench").expect("the binary").args(arguments).assert()
}

fn stderr(assert: &Assert) -> String {
    String::from_utf8_lossy(&assert.get_output().stderr).into_owned()
}

fn stdout(assert: &Assert) -> String {
    String::from_utf8_lossy(&assert.get_output().stdout).into_owned()
}

#[test]
fn the_suites_of_the_repository_make_sense() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../suites");
    let suites: Vec<_> = std::fs::read_dir(folder).expect("suites").flatten().collect();
    assert!(!suites.is_empty());
    for suite in suites {
        let path = suite.path().display().to_string();
        // A NIC that can't run: every point is planned, and none is measured.
        let ran = gicbench(&["run", "--suite", &path, "--nic", "mlx5"]);
        assert_eq!(ran.get_output().status.code(), Some(3), "{path}: {}", stderr(&ran));
    }
}

#[test]
fn bad_usage_is_2_and_says_what_would_do() {
    for (arguments, word) in [
        (&["run", "latncy"] as &[&str], "latency"),
        (&["run", "latency", "--order", "gpu-relase"], "gpu-release"),
        (&["run", "latency", "--orders", "none"], "--order"),
        (&["run", "handoff", "--qps", "2"], "quiet"),
        (&["run", "--shard", "0/2"], "K/N"),
        (&["run", "--duration", "soon"], "500ms"),
        (&["run", "-n", "0"], "the least is 1"),
        (&["run", "-n", "1e9"], "not a whole number"),
        (&["run", "-n", "-1"], "-n"),
        (&["run", "batching", "--qps", "-1"], "--qps '-1'"),
        (&["run", "--duration", "-1s"], "--duration"),
        (&["run", "--duration", "60s", "--deadline", "20s"], "nearest: --deadline 130s"),
        (&["run", "latency", "--shard", "999/999"], "--shard 999/999"),
        (&["run", "--json", "-"], "standard output"),
        (&["run", "--json", "run.json", "--csv", "./run.json"], "--csv"),
        (&["run", "--check", "maybe"], "off"),
        (&["run", "latency", "--peer-path", "msclpp=/tmp"], "names are nvshmem"),
        (&["list", "--peer-path", "/tmp"], "NAME=DIR"),
        (&["run", "latency", "--transport", "gdaki", "--variant", "public"], "no-publish"),
        (&["run", "latency", "--transport", "gdkai"], "gdaki"),
        (&["run", "latency", "--like", "gdaki", "--op", "get"], "nearest: put"),
        (&["run", "latency", "--like", "gdaki", "--without", "keys"], "early-doorbell"),
        (&["run", "latency", "--without", "lock"], "nearest: none"),
        (&["decode", "cqe", "xyz"], "hexadecimal"),
        (&["rum"], "run"),
    ] {
        let assert = gicbench(arguments).code(2);
        assert!(stderr(&assert).contains(word), "{arguments:?}: {}", stderr(&assert));
        assert_eq!(stdout(&assert), "");
    }
}

#[test]
fn a_product_that_nobody_could_run_is_refused_at_once() {
    let list = (1..=4096).map(|n: u32| n.to_string()).collect::<Vec<_>>().join(",");
    let assert = gicbench(&["run", "batching", "--qps", &list, "--batch", &list]).code(2);
    for word in ["100000 points", "'batching'", "--qps has 4096 values", "--batch has 4096"] {
        assert!(stderr(&assert).contains(word), "{}", stderr(&assert));
    }
}

#[test]
fn an_error_that_nobody_can_read_is_still_the_status() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("/dev/full");
    let mut command = std::process::Command::new(assert_cmd::cargo::cargo_bin!("gicbench"));
    let status = command.args(["run", "latncy"]).stderr(full).status().expect("a status");
    assert_eq!(status.code(), Some(2));
}

#[test]
fn a_file_that_cannot_be_made_is_refused_before_anything_runs() {
    let directory = tempfile::tempdir().expect("a directory");
    let csv = directory.path().join("run.csv");
    // A new file of procfs can't be made: the claim says so before anything runs.
    let path = csv.to_str().expect("UTF-8");
    let refused = gicbench(&["run", "--csv", path, "--json", "/proc/run.json"]).code(2);
    assert!(stderr(&refused).contains("/proc/run.json can't be written"), "{}", stderr(&refused));
    assert_eq!(std::fs::read_dir(directory.path()).expect("its names").count(), 0);
}

#[test]
fn nothing_that_can_run_is_3_with_the_reason() {
    if std::path::Path::new("/sys/class/infiniband/mlx5_0").exists() {
        eprintln!("skipped: there is an mlx5 device");
        return;
    }
    let assert = gicbench(&["run", "latency", "--nic", "mlx5"]).code(3);
    assert!(stdout(&assert).contains("NIC mlx5: no mlx5 device"), "{}", stdout(&assert));
}

#[test]
fn a_library_that_cannot_be_measured_is_not_run_with_what_to_do_and_the_rest_is() {
    let record = tempfile::tempdir().expect("a directory");
    let path = record.path().join("run.json");
    let here = record.path().canonicalize().expect("a path");
    let here = here.display();
    let ran = gicbench(&[
        "run",
        "latency",
        "--transport",
        "mini-proxy,mscclpp,uccl-ep",
        "--op",
        "put",
        "--submitter",
        "host",
        "--peer-path",
        &format!("uccl-ep={here}"),
        "-n",
        "8",
        "-w",
        "0",
        "--json",
        path.to_str().expect("UTF-8"),
    ])
    .code(4);
    for word in ["latency, ", "use --submitter cuda", "PARTIAL"] {
        assert!(stdout(&ran).contains(word), "{word}: {}", stdout(&ran));
    }
    let list = stdout(&gicbench(&["list", "--peer-path", &format!("uccl-ep={here}")]).code(0));
    for word in [
        "git clone https://github.com/microsoft/mscclpp",
        &format!("uccl-ep={here}: UCCL-EP isn't there") as &str,
    ] {
        assert!(list.contains(word), "{word}: {list}");
    }
    let record = std::fs::read_to_string(path).expect("a record");
    let record: serde_json::Value = serde_json::from_str(&record).expect("JSON");
    assert_eq!(record["parameters"]["peer_paths"][0], format!("uccl-ep={here}"));
    let measured = record["measurements"].as_array().expect("measurements");
    assert!(!measured.is_empty() && measured.iter().all(|row| row["transport"] == "mini-proxy"));
}

#[test]
fn a_point_worker_measures_what_it_is_asked_for_and_ends_with_its_input() {
    let ask = r#"gicbench-point {"settings":{"check":true,"seed":1,"deadline_s":20.0,"engine":"auto"},"point":{
        "experiment":"handoff","transport":"mini-proxy","submitter":"host","nic":"soft","parameters":{"payload":8,
        "handoff":"lap-parity","producers":1,"reserve":"owned","progress":"cached","publish":"release","profile":"none",
        "ops":8,"warmup":0,"duration_s":null}}}"#
        .replace('\n', "");
    let ran = Command::cargo_bin("gicbench")
        .expect("the binary")
        .arg("point-worker")
        .write_stdin(format!("something else\n{ask}\n{ask}\n"))
        .assert()
        .code(0);
    let out = stdout(&ran);
    let answers: Vec<&str> =
        out.lines().filter_map(|line| line.strip_prefix("gicbench-point ")).collect();
    assert_eq!(answers.len(), 2, "{out}");
    for answer in answers {
        let answer: serde_json::Value = serde_json::from_str(answer).expect("JSON");
        assert_eq!(answer["rows"].as_array().map(Vec::len), Some(3), "{answer}");
        assert_eq!(answer["spent"], false, "{answer}");
    }
}

#[test]
fn list_and_doctor_print_for_people_and_as_json() {
    for (command, word) in
        [("list", "latency"), ("list", "mscclpp"), ("doctor", "cores"), ("doctor", "MSCCL++")]
    {
        assert!(stdout(&gicbench(&[command]).code(0)).contains(word));
        let json = stdout(&gicbench(&[command, "--json"]).code(0));
        let value: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        assert!(json.contains(word) && !value.is_null());
    }
}

#[test]
fn help_shows_every_axis() {
    let help = stdout(&gicbench(&["run", "--help"]).code(0));
    for axis in gicbench::axes::AXES {
        let flag = axis.id.flag();
        let first = flag.split('/').next().expect("a flag");
        assert!(help.contains(first), "{flag}");
    }
}
