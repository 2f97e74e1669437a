//! mini-gda and mini-proxy over a ConnectX's own queues, through the system's libibverbs and libmlx5: the same experiments,
//! with the same results, as over the software NIC that is built in.

use std::net::TcpListener;

use assert_cmd::cargo::cargo_bin;
use serde_json::Value;

use super::{exec, skip, text};

/// Both link layers of the software ConnectX.
const LINKS: [&str; 2] = ["infiniband", "ethernet"];

fn has_libmlx5() -> bool {
    match rdma::ibv::Library::open("libmlx5.so.1") {
        Ok(_) => true,
        Err(error) => {
            skip(&error.to_string());
            false
        }
    }
}

/// A record of experiments on a NIC.
fn record(link: &str, arguments: &str) -> Value {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let gicbench = cargo_bin("gicbench");
    let run = format!(
        "{} run {arguments} --submitter host --profile none -n 32 -w 4 --duration 100ms --check on --force \
         --deadline 60s --json {path}",
        gicbench.display()
    );
    let command: Vec<&str> = run.split_whitespace().collect();
    let output = exec(&["--link-layer", link], &command);
    let said = std::fs::read_to_string(path).unwrap();
    serde_json::from_str(&said).unwrap_or_else(|_| panic!("no record: {}", text(&output)))
}

fn measurements(record: &Value) -> &[Value] {
    record["measurements"].as_array().unwrap()
}

/// What was measured: experiment, transport, parameters and metric of each row.
fn rows(record: &Value) -> Vec<String> {
    let row = |row: &Value| {
        let [what, by] = ["experiment", "transport"].map(|name| &row[name]);
        format!("{what} {by} {} {}", row["parameters"], row["metric"])
    };
    measurements(record).iter().map(row).collect()
}

/// Nothing arrived wrong, and nobody takes it for hardware.
fn assert_sound(record: &Value, link: &str) {
    assert_eq!(record["failed"], Value::Array(Vec::new()), "{link}");
    for row in measurements(record) {
        let is_sound = row["wrong"] == 0 || !row["unsafe_mode"].is_null() || row["wrong"].is_null();
        assert!(is_sound, "{link}: {row}");
        assert_eq!(row["stand_in"], true, "{link}: {row}");
        // What needs no NIC has none of it.
        if row["transport"] == "direct" {
            continue;
        }
        let why = row["stand_in_why"].as_str().unwrap();
        assert!(why.contains("nic exec"), "{link}: {why}");
        let details = &row["details"];
        assert_eq!(details["nic_device"], "mlx5_0", "{link}: {details}");
        let steps = details["nic_steps"].as_str().unwrap();
        assert!(steps.contains("doorbell page: NC, for the CPU"), "{link}: {steps}");
    }
}

#[test]
fn transports_measure_the_same_over_mlx5_as_over_the_software_nic() {
    if !has_libmlx5() {
        return;
    }
    let soft = record(LINKS[0], "--nic soft");
    for link in LINKS {
        let mlx5 = record(link, "--nic mlx5");
        assert_eq!(rows(&mlx5), rows(&soft), "{link}: {}", mlx5["failed"]);
        assert_sound(&mlx5, link);
    }
}

#[test]
fn dc_initiators_find_their_target_over_mlx5() {
    if !has_libmlx5() {
        return;
    }
    for link in LINKS {
        let dc = record(link, "latency --transport mini-gda --nic mlx5 --conn dc -b 8");
        assert!(!measurements(&dc).is_empty(), "{link}: {}", dc["not_run"]);
        assert_sound(&dc, link);
    }
}

#[test]
fn a_port_that_is_not_there_is_refused_by_name() {
    if !has_libmlx5() {
        return;
    }
    for (options, words) in [
        ("--device mlx5_7", "mlx5_7"),
        ("--device mlx5_0:2", "mlx5_0:2"),
        ("--gid-index 9", "no GID at index 9"),
    ] {
        let arguments = format!("latency --transport mini-gda --nic mlx5 -b 8 {options}");
        let refused = record("ethernet", &arguments);
        assert!(measurements(&refused).is_empty(), "{options}");
        assert!(refused["failed"].to_string().contains(words), "{options}: {}", refused["failed"]);
    }
}

#[test]
fn two_ranks_reach_each_other_over_mlx5() {
    if !has_libmlx5() {
        return;
    }
    let gicbench = cargo_bin("gicbench");
    for (link, conn) in
        [("infiniband", "rc"), ("infiniband", "dc"), ("ethernet", "rc"), ("ethernet", "dc")]
    {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let file = tempfile::NamedTempFile::new().unwrap();
        let run = format!(
            "{} run latency --transport mini-gda --submitter host --nic mlx5 --profile none --conn {conn} -b 8 -n 16 \
             -w 2 --check on --deadline 60s --force --json {}",
            gicbench.display(),
            file.path().display()
        );
        let script = format!(
            "export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT={port} GICBENCH_TOKEN=0123456789abcdef0123\n\
             RANK=1 {run} & one=$!\n\
             RANK=0 {run}; zero=$?\n\
             wait $one && [ $zero = 0 ]"
        );
        let output = exec(&["--link-layer", link], &["sh", "-c", &script]);
        assert!(output.status.success(), "{link} {conn}: {}", text(&output));
        let record = serde_json::from_slice(&std::fs::read(file.path()).unwrap()).unwrap();
        assert!(!measurements(&record).is_empty(), "{link} {conn}");
        assert_sound(&record, link);
    }
}
