//! `gicbench selftest`, where it has to pass and where it has to fail.

use assert_cmd::cargo::cargo_bin;
use serde_json::Value;

use super::{exec, skip, text};

/// The report as JSON, and the exit status.
fn report(options: &[&str], flags: &[&str]) -> (Value, Option<i32>) {
    let gicbench = cargo_bin("gicbench");
    let command = [&[gicbench.to_str().unwrap(), "selftest", "--json"], flags].concat();
    let output = exec(options, &command);
    let report = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("no report: {}", text(&output)));
    (report, output.status.code())
}

fn outcome<'a>(report: &'a Value, path: &str, name: &str) -> &'a str {
    let steps = report["steps"].as_array().unwrap();
    let found = steps.iter().find(|step| step["path"] == path && step["name"] == name);
    found.unwrap_or_else(|| panic!("no step {path} {name}"))["outcome"].as_str().unwrap()
}

#[test]
fn every_step_that_needs_no_gpu_passes_on_the_software_connectx() {
    if let Err(error) = rdma::ibv::verbs() {
        return skip(&error.to_string());
    }
    for options in [&["--link-layer", "infiniband"] as &[&str], &["--link-layer", "ethernet"]] {
        let (report, status) = report(options, &[]);
        assert_eq!((status, &report["passed"]), (Some(0), &Value::Bool(true)), "{report:#}");
        assert_eq!(report["software_nic"], true);
        assert_eq!(report["port"]["nic_device"], "mlx5_0");
        for step in report["steps"].as_array().unwrap() {
            // Its memory is out of a software NIC's reach, its way to the doorbell page isn't.
            let name = step["name"].as_str().unwrap();
            let (about_gpu, has_gpu) = (name.contains("GPU"), !report["gpu"].is_null());
            let skipped = about_gpu && !(has_gpu && name == "UAR mapped for the GPU");
            let due = if skipped { "skipped" } else { "ok" };
            assert_eq!(step["outcome"], due, "{step:#}");
            assert!(!step["seen"].as_str().unwrap().is_empty());
        }
        for path in ["verbs", "mlx5"] {
            for name in ["loopback put", "get", "atomics", "an error on purpose"] {
                assert_eq!(outcome(&report, path, name), "ok", "{path} {name}");
            }
        }
    }
}

#[test]
fn what_cannot_be_had_fails_by_name_and_what_needs_it_is_skipped() {
    if let Err(error) = rdma::ibv::verbs() {
        return skip(&error.to_string());
    }
    let (report, status) = report(&[], &["--device", "mlx5_9"]);
    assert_eq!((status, &report["passed"]), (Some(1), &Value::Bool(false)), "{report:#}");
    assert_eq!(outcome(&report, "verbs", "device and port"), "failed");
    assert_eq!(outcome(&report, "verbs", "loopback put"), "skipped");
    assert_eq!(outcome(&report, "mlx5", "loopback put"), "skipped");
    let step = &report["steps"][1];
    assert!(step["seen"].as_str().unwrap().contains("mlx5_9"), "{step}");
    assert!(step["advice"].as_str().unwrap().contains("--device"), "{step}");
}

#[test]
fn doctor_says_what_each_device_and_port_is_and_that_they_are_software() {
    let gicbench = cargo_bin("gicbench");
    let command = [gicbench.to_str().unwrap(), "doctor", "--json"];
    let output = exec(&["--devices", "2", "--link-layer", "ethernet"], &command);
    let findings: Value = serde_json::from_slice(&output.stdout).unwrap();
    let seen = |name: &str| {
        let all = findings.as_array().unwrap();
        let found = all.iter().find(|one| one["name"] == name);
        let found = found.unwrap_or_else(|| panic!("{name}: {findings:#}"));
        format!("{} {} {}", found["level"], found["seen"], found["meaning"])
    };
    for (name, words) in [
        ("RDMA devices", "software ConnectXs"),
        ("mlx5_0", "firmware 28."),
        ("mlx5_1", "at 0000:71:00.0"),
        ("mlx5_1:1", "RoCE v2, 3 is used"),
    ] {
        assert!(seen(name).contains(words), "{words} in {}", seen(name));
    }
    if rdma::ibv::verbs().is_ok() {
        assert!(seen("mlx5_0:1").contains("MTU 4096"), "{}", seen("mlx5_0:1"));
        assert!(seen("mlx5_0 doorbell").contains("for the CPU"), "{}", seen("mlx5_0 doorbell"));
    }
}
