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
fn bad_usage_is_2_and_says_what_would_do() {
    for (arguments, word) in [
        (&["run", "latncy"] as &[&str], "latency"),
        (&["run", "latency", "--order", "gpu-relase"], "gpu-release"),
        (&["run", "latency", "--orders", "none"], "--order"),
        (&["run", "handoff", "--qps", "2"], "quiet"),
        (&["run", "--shard", "0/2"], "K/N"),
        (&["run", "--duration", "soon"], "500ms"),
        (&["run", "-n", "0"], "1.."),
        (&["run", "--check", "maybe"], "off"),
        (&["decode", "cqe", "xyz"], "hexadecimal"),
        (&["rum"], "run"),
    ] {
        let assert = gicbench(arguments).code(2);
        assert!(stderr(&assert).contains(word), "{arguments:?}: {}", stderr(&assert));
        assert_eq!(stdout(&assert), "");
    }
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
fn list_and_doctor_print_for_people_and_as_json() {
    for (command, word) in [("list", "latency"), ("doctor", "cores")] {
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
