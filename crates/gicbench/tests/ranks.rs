//! Runs of several processes, as launchers start them.
#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use assert_cmd::cargo::CommandCargoExt;
use serde_json::Value;

/// Says, at the end of all tests too, what wasn't tested and why.
fn skip(reason: &str) {
    eprintln!("SKIPPED: {reason}");
    if let Some(path) = std::env::var_os("GICBENCH_SKIP_LOG") {
        let mut log = std::fs::OpenOptions::new().append(true).create(true).open(path).unwrap();
        writeln!(log, "ranks: {reason}").unwrap();
    }
}

const DEADLINE: Duration = Duration::from_secs(120);

/// A port that was free a moment ago.
fn port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn gicbench() -> Command {
    let mut command = Command::cargo_bin("gicbench").unwrap();
    for variable in ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GICBENCH_TOKEN"] {
        command.env_remove(variable);
    }
    command
}

struct Rank {
    child: Child,
    folder: tempfile::TempDir,
}

/// How a process ended.
struct Ended {
    status: Option<i32>,
    out: String,
    err: String,
}

fn spawn(mut command: Command) -> Rank {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| std::fs::File::create(folder.path().join(name)).unwrap();
    command.stdin(Stdio::null()).stdout(file("out")).stderr(file("err"));
    Rank { child: command.spawn().unwrap(), folder }
}

impl Rank {
    fn end(mut self) -> Ended {
        let until = Instant::now() + DEADLINE;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if Instant::now() > until {
                let _ = self.child.kill();
                panic!("it takes too long: {}", self.read("err"));
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        Ended { status: status.code(), out: self.read("out"), err: self.read("err") }
    }

    fn read(&self, name: &str) -> String {
        let bytes = std::fs::read(self.folder.path().join(name)).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// Starts `rank` as torchrun would.
fn rank(rank: u32, size: u32, port: u16, words: &[&str]) -> Rank {
    let mut command = gicbench();
    command
        .args(words)
        .env("RANK", rank.to_string())
        .env("WORLD_SIZE", size.to_string())
        .env("LOCAL_RANK", rank.to_string())
        .env("MASTER_ADDR", "127.0.0.1")
        .env("MASTER_PORT", port.to_string());
    spawn(command)
}

fn record(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

const EXPERIMENTS: [&str; 9] = [
    "latency",
    "ordering",
    "inline",
    "quiet",
    "placement",
    "batching",
    "handoff",
    "proxy-scaling",
    "loaded",
];

#[test]
fn every_experiment_with_a_remote_side_measures_another_rank_and_rank_0_writes_one_record() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("run.json");
    let json_word = json.to_str().unwrap();
    let mut words = vec!["run"];
    words.extend(EXPERIMENTS);
    words.extend(["-n", "300", "-w", "50", "--profile", "none", "--json", json_word]);
    let port = port();
    let other = rank(1, 2, port, &words);
    let first = rank(0, 2, port, &words).end();
    let other = other.end();
    assert_eq!(other.status, Some(0), "{}", other.err);
    assert_eq!(other.out, "", "only rank 0 prints");
    let record = record(&json);
    let missing = [&record["failed"], &record["not_run"]];
    for missing in missing {
        let reasons: Vec<String> =
            missing.as_array().unwrap().iter().map(ToString::to_string).collect();
        // What needs a GPU, or an instruction of one, is missing in one process, too.
        let unexpected: Vec<_> = reasons
            .iter()
            .filter(|why| !["GPU", "gpu", "sm_100"].iter().any(|word| why.contains(word)))
            .collect();
        assert!(unexpected.is_empty(), "{unexpected:#?}");
    }
    assert!(matches!(first.status, Some(0 | 4)), "{:?}: {}", first.status, first.err);
    assert_eq!((&record["ranks"]["size"], &record["ranks"]["remote"]), (&2.into(), &1.into()));
    let rows = record["measurements"].as_array().unwrap();
    for experiment in EXPERIMENTS {
        let of: Vec<_> = rows.iter().filter(|row| row["experiment"] == experiment).collect();
        assert!(!of.is_empty(), "{experiment} measured nothing");
        for row in of {
            assert_eq!(row["wrong"], 0, "{row}");
            assert!(row["nic"] == "none" || row["details"]["remote_rank"] == 1, "{row}");
        }
    }
    for path in ["mini-gda", "mini-proxy"] {
        let round_trip =
            |row: &&Value| row["transport"] == path && row["metric"] == "round_trip_us";
        assert!(rows.iter().any(|row| round_trip(&row)), "{path} has no round trip");
    }
}

#[test]
fn open_mpi_starts_ranks_that_find_each_other_by_pmix() {
    let Ok(version) = Command::new("mpirun").arg("--version").output() else {
        return skip("mpirun isn't installed");
    };
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    if !version.contains("Open MPI") && !version.contains("Open RTE") {
        return skip("mpirun is not Open MPI's");
    }
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("run.json");
    let mut command = Command::new("mpirun");
    command
        .args(["--oversubscribe", "-n", "3"])
        .arg(PathBuf::from(gicbench().get_program()))
        .args(["run", "latency", "--transport", "mini-gda", "-n", "200", "--remote-rank", "2"])
        .arg("--json")
        .arg(&json)
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    let ended = spawn(command).end();
    assert_eq!(ended.status, Some(0), "{}\n{}", ended.out, ended.err);
    let record = record(&json);
    assert_eq!(record["ranks"]["members"].as_array().unwrap().len(), 3);
    let rows = record["measurements"].as_array().unwrap();
    assert!(!rows.is_empty() && rows.iter().all(|row| row["details"]["remote_rank"] == 2));
    // One table, not three.
    assert_eq!(ended.out.matches("latency: what does").count(), 1, "{}", ended.out);
}

#[test]
fn a_rank_that_does_not_come_and_one_that_asks_for_something_else_are_named() {
    let port = port();
    let words = ["run", "latency", "-n", "10", "--ranks-deadline", "1500ms"];
    let other = rank(1, 3, port, &words);
    let first = rank(0, 3, port, &words).end();
    assert!(first.err.contains("of 3 ranks, rank 2 did not come within 1.5 s"), "{}", first.err);
    assert_eq!((first.status, other.end().status), (Some(1), Some(1)));

    let port = self::port();
    let other = rank(1, 2, port, &["run", "latency", "-n", "11"]);
    let first = rank(0, 2, port, &["run", "latency", "-n", "10"]).end();
    let other = other.end();
    for ended in [&first, &other] {
        assert!(ended.err.contains("was started with something else than rank 0"), "{}", ended.err);
        assert_eq!(ended.status, Some(1));
    }
}

#[test]
fn a_rank_that_dies_is_named_and_what_was_measured_before_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("run.json");
    let words = [
        "run",
        "latency",
        "--transport",
        "mini-gda",
        "--submitter",
        "host",
        "--duration",
        "2s",
        "--json",
        json.to_str().unwrap(),
    ];
    let port = port();
    let mut other = rank(1, 2, port, &words);
    let first = rank(0, 2, port, &words);
    // Once it measures: its engine has a thread.
    let threads = || {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", other.child.id()));
        tasks.map_or(0, Iterator::count)
    };
    let until = Instant::now() + DEADLINE;
    while threads() < 3 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_millis(500));
    other.child.kill().unwrap();
    let pid = other.child.id();
    let _ = other.child.wait();
    let first = first.end();
    assert_eq!(first.status, Some(1), "{}", first.out);
    let record = record(&json);
    let failed = record["failed"].to_string();
    assert!(failed.contains("rank 1 (") && failed.contains(&format!("process {pid}")), "{failed}");
    let rest = record["not_run"].to_string();
    assert!(rest.contains("is lost"), "{rest}");
}

#[test]
fn ranks_that_the_launcher_counts_and_this_program_does_not_see_are_an_error() {
    let run = |environment: &[(&str, &str)]| {
        let mut command = gicbench();
        command.args(["run", "latency", "-n", "10"]).envs(environment.iter().copied());
        command.env_remove("PMIX_NAMESPACE").env_remove("PMIX_RANK");
        spawn(command).end()
    };
    for (environment, expected) in [
        (&[("OMPI_COMM_WORLD_SIZE", "4")][..], "started 4 processes, and offers no PMIx"),
        (&[("SLURM_STEP_NUM_TASKS", "2")], "srun --mpi=pmix"),
        (&[("WORLD_SIZE", "2")], "WORLD_SIZE is set, and RANK isn't"),
        (&[("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "192.0.2.1")], "set GICBENCH_TOKEN"),
    ] {
        let ended = run(environment);
        assert!(ended.err.contains(expected), "{environment:?}: {}", ended.err);
        assert!(matches!(ended.status, Some(1 | 2)) && ended.out.is_empty(), "{:?}", ended.status);
    }
}
