//! Programs that nobody here wrote, and one that was, on software ConnectXs: through the system's own libibverbs.

// Helpers of tests are exempt as the tests are, which the lints don't see.
#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic)]

mod mlx5;
mod options;
mod selftest;
mod verbs;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use assert_cmd::cargo::CommandCargoExt;

/// Says, at the end of all tests too, what wasn't tested and why.
fn skip(reason: &str) {
    eprintln!("SKIPPED: {reason}");
    if let Some(path) = std::env::var_os("GICBENCH_SKIP_LOG") {
        let mut log = std::fs::OpenOptions::new().append(true).create(true).open(path).unwrap();
        writeln!(log, "nic exec: {reason}").unwrap();
    }
}

fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let there = std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
    if !there {
        skip(&format!("{program} isn't installed"));
    }
    there
}

/// Longest that one command may take: the machine may be busy, and a poller only gives its processor up at a tick.
const DEADLINE: Duration = Duration::from_secs(240);

/// Runs `gicbench nic exec`, within the deadline.
fn exec(options: &[&str], command: &[&str]) -> Output {
    let mut program = Command::cargo_bin("gicbench").unwrap();
    program.args(["nic", "exec"]).args(options).arg("--").args(command);
    let out = tempfile::NamedTempFile::new().unwrap();
    let err = tempfile::NamedTempFile::new().unwrap();
    program.stdout(out.reopen().unwrap()).stderr(err.reopen().unwrap());
    let mut child = program.stdin(std::process::Stdio::null()).spawn().unwrap();
    let deadline = Instant::now() + DEADLINE;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        assert!(Instant::now() < deadline, "{command:?} takes too long: {}", read(err.path()));
        std::thread::sleep(Duration::from_millis(20));
    };
    let bytes = |path: &Path| std::fs::read(path).unwrap();
    Output { status, stdout: bytes(out.path()), stderr: bytes(err.path()) }
}

fn read(path: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned()
}

fn text(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Runs a command as a server and, when that listens, again as its client. Each run has a port of its own, so that
/// tests may run side by side.
fn pair(options: &[&str], command: &str, port: u16) {
    let command = format!("{command} -p {port}");
    let script = format!(
        "{command} >server 2>&1 & server=$!; \
         n=0; while [ $n -lt 300 ] && ! grep -qi ':{port:04X} 0*:0000 0A' /proc/net/tcp /proc/net/tcp6; \
         do n=$((n + 1)); sleep 0.1; done; \
         {command} 127.0.0.1; client=$?; [ $client = 0 ] || kill $server; wait $server; server=$?; cat server; \
         [ $client = 0 ] && [ $server = 0 ]"
    );
    let folder = tempfile::tempdir().unwrap();
    let script = format!("cd {}; {script}", folder.path().display());
    // Of the measures that perftest takes of the processor's clock, one may fail on a busy machine; it gives up then.
    let is_clocks_fault = |output: &Output| text(output).contains("Correlation coefficient");
    let output = (0..5)
        .map(|_| exec(options, &["sh", "-c", &script]))
        .find(|output| output.status.success() || !is_clocks_fault(output));
    let output = output.unwrap_or_else(|| {
        panic!("{command}: the processor's clock couldn't be measured five times")
    });
    assert!(output.status.success(), "{command}: {}", text(&output));
}

#[test]
fn the_exit_status_is_the_programs() {
    for (script, code) in [("exit 7", 7), ("kill -9 $$", 137), ("true", 0)] {
        assert_eq!(exec(&[], &["sh", "-c", script]).status.code(), Some(code), "{script}");
    }
    let missing = exec(&[], &["no-such-program-anywhere"]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(text(&missing).contains("no-such-program-anywhere"));
}

#[test]
fn a_run_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::cargo_bin("gicbench")
        .unwrap()
        .args([
            "nic",
            "exec",
            "--",
            "sh",
            "-c",
            "ls -d $GICBENCH_NIC_RUN && stat -c %a $GICBENCH_NIC_RUN",
        ])
        .env("TMPDIR", folder.path())
        .output()
        .unwrap();
    let shown = text(&output);
    assert!(shown.contains("gicbench-nic-") && shown.ends_with("700\n"), "{shown}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_program_without_uverbs_gets_no_thread_and_sees_the_devices_files() {
    let script = "ls /proc/$$/task | wc -l; cat /sys/class/infiniband/mlx5_0/node_type; ls /sys/class | wc -l";
    let output = exec(&[], &["bash", "-c", script]);
    let shown = text(&output);
    assert!(output.status.success() && shown.starts_with("1\n1: CA\n"), "{shown}");
}

#[test]
fn devices_are_described() {
    if !has("ibv_devinfo") {
        return;
    }
    for (options, words) in [
        (
            &["--devices", "2"] as &[&str],
            &["mlx5_0", "mlx5_1", "InfiniBand", "PORT_ACTIVE", "port_lid:\t\t2"] as &[&str],
        ),
        (&["--link-layer", "ethernet"], &["mlx5_0", "Ethernet", "RoCE v2", "::ffff:192.168.130.1"]),
    ] {
        let output = exec(options, &["ibv_devinfo", "-v"]);
        let shown = text(&output);
        assert!(output.status.success(), "{shown}");
        for word in words {
            assert!(shown.contains(word), "{word} in {shown}");
        }
    }
}

/// The system's programs, each a row: on which link layers, and the command.
const PROGRAMS: &[(Layers, &[&str])] = &[
    (
        Layers::Both,
        &[
            // They check their data.
            "ibv_rc_pingpong -c -n 100",
            "ibv_rc_pingpong -c -e -n 500",
            "ibv_uc_pingpong -c -e -n 500",
            "ibv_ud_pingpong -c -e -n 500",
            "ibv_srq_pingpong -c -e -n 200",
            "ibv_xsrq_pingpong -c 1 -e -n 200",
            "ib_write_bw -n 200",
            "ib_write_bw -b -q 4 -I 32 -s 32 -n 200",
            "ib_write_bw -s 8 -l 32 -n 9600",
            "ib_write_bw -c UC -n 200",
            "ib_write_bw -c XRC -n 200",
            "ib_write_bw -c DC -n 200",
            "ib_write_lat -n 20",
            "ib_write_lat -I 16 -s 16 -n 20",
            "ib_read_bw -n 200",
            "ib_read_bw -e -b -q 4 -n 100",
            "ib_read_bw -c DC -n 100",
            "ib_read_lat -n 20",
            "ib_read_lat -e -n 200",
            "ib_send_bw -n 200",
            "ib_send_bw -e -b -q 4 -n 100",
            "ib_send_bw -e -c UC -n 200",
            "ib_send_bw -e -c UD -n 200",
            "ib_send_bw -e -c XRC -n 200",
            "ib_send_bw -c DC -n 100",
            "ib_send_bw -e --use-srq -n 200",
            "ib_send_lat -n 20",
            "ib_send_lat -e -I 32 -s 32 -n 200",
            "ib_send_lat -e -c UD -n 200",
            "ib_atomic_bw -b -q 2 -n 100",
            "ib_atomic_bw -e -n 100",
            "ib_atomic_lat -n 20",
            "ib_atomic_lat -e -A CMP_AND_SWAP -n 100",
        ],
    ),
    // Up to 8 MiB, which takes its time.
    (Layers::InfiniBand, &["ib_write_bw -a -n 5", "ib_send_bw -a -e -n 5"]),
    (Layers::Ethernet, &["ib_read_bw -a -e -n 5"]),
];

#[derive(Clone, Copy, PartialEq)]
enum Layers {
    Both,
    InfiniBand,
    Ethernet,
}

fn programs(layer: Layers, first_port: u16) {
    let ethernet = layer == Layers::Ethernet;
    let options: &[&str] = if ethernet { &["--link-layer", "ethernet"] } else { &[] };
    let rows = PROGRAMS.iter().filter(|(on, _)| [layer, Layers::Both].contains(on));
    for (command, port) in rows.flat_map(|(_, commands)| *commands).zip(first_port..) {
        let program = command.split(' ').next().unwrap();
        if !has(program) {
            continue;
        }
        // RoCE v2 over IPv4.
        let gid = match (ethernet, program.starts_with("ibv_")) {
            (false, _) => "",
            (true, true) => " -g 3",
            (true, false) => " -x 3",
        };
        pair(options, &format!("{command}{gid}"), port);
    }
}

#[test]
fn pingpongs_and_perftest_run_on_infiniband() {
    programs(Layers::InfiniBand, 18600);
}

#[test]
fn pingpongs_and_perftest_run_on_ethernet() {
    programs(Layers::Ethernet, 18700);
}

#[test]
fn a_program_that_waits_for_events_starts_and_ends_with_a_signal() {
    if !has("ibv_asyncwatch") {
        return;
    }
    // It says what it watches, and is told to end as soon as it has.
    let script = "mkfifo said; ibv_asyncwatch >said & watch=$!; read line <said; echo $line; \
                  kill -INT $watch 2>/dev/null; kill $watch; wait $watch; echo ended with $?";
    let folder = tempfile::tempdir().unwrap();
    let script = format!("cd {} && {script}", folder.path().display());
    let output = exec(&[], &["stdbuf", "-oL", "sh", "-c", &script]);
    let shown = text(&output);
    assert!(
        shown.contains("mlx5_0: async event FD") && shown.contains("ended with 143"),
        "{shown}"
    );
}

/// A program beside this file, compiled; none where it can't be.
fn compiled(name: &str, libraries: &[&str]) -> Option<PathBuf> {
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("nic-{name}"));
    let source = format!("{}/tests/nic/{name}.c", env!("CARGO_MANIFEST_DIR"));
    let arguments = ["-O1", "-Wall", "-Wextra", "-Werror", "-o"];
    let compiled =
        Command::new("cc").args(arguments).arg(&out).arg(source).args(libraries).output();
    match compiled {
        Ok(output) if output.status.success() => Some(out),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            let missing = ["infiniband/", "-libverbs", "-lmlx5"];
            assert!(missing.iter().any(|word| said.contains(word)), "{said}");
            skip("libibverbs-dev isn't installed: no program can be compiled against it");
            None
        }
        Err(error) => {
            skip(&format!("no C compiler: {error}"));
            None
        }
    }
}

/// The program of verbs, compiled once.
fn client() -> Option<&'static PathBuf> {
    static CLIENT: OnceLock<Option<PathBuf>> = OnceLock::new();
    CLIENT.get_or_init(|| compiled("client", &["-libverbs"])).as_ref()
}

#[test]
fn a_program_of_verbs_gets_its_data_its_events_and_its_errors() {
    let Some(client) = client() else { return };
    let client = client.to_str().unwrap();
    for (options, what) in [
        (&[] as &[&str], "traffic"),
        (&["--devices", "2"], "two-devices"),
        (&["--devices", "2", "--link-layer", "ethernet"], "roce"),
        (&[], "events"),
        (&[], "errors"),
        (&[], "killed"),
        (&["--profile", "cx7-ndr200"], "traffic"),
    ] {
        let output = exec(options, &[client, what]);
        assert!(output.status.success(), "{what} {options:?}: {}", text(&output));
    }
}

#[test]
fn memory_that_is_unmapped_while_registered_is_the_nics_and_faults_are_the_programs() {
    let Some(client) = client() else { return };
    let client = client.to_str().unwrap();
    for (what, status) in [("unmapped", 0), ("dies", 128 + 11)] {
        let output = exec(&[], &[client, what]);
        let shown = text(&output);
        assert_eq!(output.status.code(), Some(status), "{what}: {shown}");
        assert!(shown.contains("was unmapped while it was registered"), "{what}: {shown}");
    }
}

#[test]
fn a_program_of_devx_makes_its_queues_by_commands() {
    let Some(client) = compiled("devx", &["-lmlx5", "-libverbs"]) else { return };
    let client = client.to_str().unwrap();
    for (layer, gid) in [("infiniband", "lid"), ("ethernet", "3")] {
        let output = exec(&["--link-layer", layer], &[client, gid]);
        let shown = text(&output);
        assert!(output.status.success(), "{layer}: {shown}");
        // What it was refused on purpose is said in words.
        assert!(shown.contains("DevX CREATE_CQ is refused"), "{layer}: {shown}");
    }
}

#[test]
fn rdma_cores_own_tests_do_what_the_list_says() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/pyverbs.sh");
    let program = Command::cargo_bin("gicbench").unwrap();
    let output = Command::new(script).arg(program.get_program()).output().unwrap();
    match output.status.code() {
        Some(77) => skip(text(&output).trim()),
        code => assert_eq!(code, Some(0), "{}", text(&output)),
    }
}

#[test]
fn a_static_program_is_refused_by_name() {
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fixed");
    let source = tempfile::Builder::new().suffix(".c").tempfile().unwrap();
    std::fs::write(source.path(), "int main(void) { return 0; }\n").unwrap();
    let compiled = Command::new("cc").args(["-static", "-o"]).arg(&out).arg(source.path()).output();
    if !compiled.is_ok_and(|output| output.status.success()) {
        return skip("no static program can be linked");
    }
    let output = exec(&[], &[out.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output).contains("fixed is a static program"), "{}", text(&output));
}
