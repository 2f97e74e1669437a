//! What `nic exec` is told about its devices: faults, a trace, and what their ports are.

use serde_json::Value;

use super::{exec, has, pair, text};

#[test]
fn programs_end_as_their_devices_faults_have_them_end() {
    if !has("ib_send_bw") || !has("ib_read_bw") || !has("ibv_rc_pingpong") {
        return;
    }
    // Programs that tell each other when they are done: nobody leaves while an acknowledgement is awaited.
    for (faults, command, port) in [
        (&["--fault", "drop-every=7"] as &[&str], "ib_send_bw -e -s 20000 -n 20", 18800),
        (&["--fault", "drop-random=9,seed=3"], "ib_read_bw -e -s 20000 -n 10", 18801),
        (&["--fault", "out-of-order=3"], "ibv_rc_pingpong -c -e -n 50 -s 20000", 18802),
        (&["--fault", "delay=100us"], "ibv_rc_pingpong -c -e -n 20", 18803),
        (&["--fault", "pause=1ms..50ms"], "ibv_rc_pingpong -c -e -n 20", 18804),
    ] {
        pair(faults, command, port);
    }
}

/// Runs a command as a server and, a moment later, as its client, whose status it gives with all that was said.
fn client_of(options: &[&str], command: &str, port: u16) -> (Option<i32>, String) {
    let script = format!(
        "{command} -p {port} >/dev/null 2>&1 & \
         n=0; while [ $n -lt 300 ] && ! grep -qi ':{port:04X} 0*:0000 0A' /proc/net/tcp /proc/net/tcp6; \
         do n=$((n + 1)); sleep 0.1; done; \
         {command} -p {port} 127.0.0.1; status=$?; kill $! 2>/dev/null; wait; exit $status"
    );
    let output = exec(options, &["sh", "-c", &script]);
    (output.status.code(), text(&output))
}

#[test]
fn a_wqe_fails_as_it_is_told_to_on_the_device_that_is_named() {
    if !has("ibv_rc_pingpong") {
        return;
    }
    let command = "ibv_rc_pingpong -e -n 20";
    let two = ["--devices", "2", "--fault"];
    for (fault, on, words, port) in [
        ("fail=remote-access,nth=3", "mlx5_0", "remote access error", 18810),
        ("mlx5_1:fail=0x16,vendor=0x81", "mlx5_1", "RNR retry counter exceeded", 18811),
        ("mlx5_1:port-down", "mlx5_1", "transport retry counter exceeded", 18812),
        ("mlx5_1:fail=remote-access", "mlx5_0", "20 iters", 18813),
    ] {
        let options = [&two[..], &[fault]].concat();
        let (status, shown) = client_of(&options, &format!("{command} -d {on}"), port);
        assert!(shown.contains(words), "{fault}: {shown}");
        assert_eq!(status == Some(0), words == "20 iters", "{fault}: {shown}");
    }
}

#[test]
fn ports_are_what_the_options_say() {
    if !has("ibv_devinfo") {
        return;
    }
    let ethernet = ["--link-layer", "ethernet"];
    for (options, words) in [
        (&["--fault", "port-down"] as &[&str], &["PORT_DOWN", "POLLING"] as &[&str]),
        (&["--fault", "port-down=0..", ethernet[0], ethernet[1]], &["PORT_DOWN", "DISABLED"]),
        (&["--fault", "port-down=60s.."], &["PORT_ACTIVE", "LINK_UP"]),
        (&["--devices", "2", "--fault", "mlx5_1:port-down"], &["PORT_ACTIVE", "PORT_DOWN"]),
        (
            &["--mtu", "1024", "--rate", "200", "--lid", "40", "--devices", "2"],
            &["active_mtu:\t\t1024", "max_mtu:\t\t4096", "50.0 Gbps", "port_lid:\t\t41"],
        ),
        (&["--rate", "25"], &["active_width:\t\t1X", "25.0 Gbps"]),
        (
            &[ethernet[0], ethernet[1], "--gid", "10.1.2.3", "--gid", "fd00::9", "--devices", "2"],
            &["::ffff:10.1.2.3", "::ffff:10.1.2.4", "fd00::9", "fd00::a"],
        ),
    ] {
        let output = exec(options, &["ibv_devinfo", "-v"]);
        let shown = text(&output);
        assert!(output.status.success(), "{options:?}: {shown}");
        for word in words {
            assert!(shown.contains(word), "{options:?}: {word} in {shown}");
        }
    }
    // The files below /sys say the same.
    let files = ["state", "phys_state", "rate", "lid"];
    let files = files.map(|file| format!("/sys/class/infiniband/mlx5_0/ports/1/{file}"));
    let options = ["--fault", "port-down", "--rate", "100", "--lid", "16"];
    let output = exec(&options, &["cat", &files[0], &files[1], &files[2], &files[3]]);
    assert_eq!(text(&output), "1: DOWN\n2: Polling\n100 Gb/sec (4X EDR)\n0x10\n");
}

#[test]
fn a_port_that_goes_down_says_so_to_who_waits_for_events() {
    if !has("ibv_asyncwatch") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    let script = "mkfifo said; ibv_asyncwatch >said & watch=$!; \
                  (while read line; do echo $line; case $line in *PORT_ACTIVE*) break;; esac; done) <said; \
                  kill $watch; wait $watch";
    let script = format!("cd {} && {script}", folder.path().display());
    let options = ["--fault", "port-down=200ms..300ms", "--trace", trace.to_str().unwrap()];
    let output = exec(&options, &["stdbuf", "-oL", "timeout", "60", "sh", "-c", &script]);
    let shown = text(&output);
    for word in ["IBV_EVENT_PORT_ERR (10), port 1", "IBV_EVENT_PORT_ACTIVE (9), port 1"] {
        assert!(shown.contains(word), "{shown}");
    }
    let ups: Vec<_> = lines(&trace).into_iter().map(|line| line["up"].clone()).collect();
    assert_eq!(ups, [Value::Null, Value::Bool(false), Value::Bool(true)]);
}

fn lines(trace: &std::path::Path) -> Vec<Value> {
    let text = std::fs::read_to_string(trace).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_trace_has_what_every_process_did_with_the_ports_mtu() {
    if !has("ib_send_bw") {
        return;
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "what was there before\n").unwrap();
    let options = ["--mtu", "1024", "--fault", "drop-every=11", "--trace"];
    let options = [&options[..], &[file.path().to_str().unwrap()]].concat();
    pair(&options, "ib_send_bw -e -m 1024 -s 4000 -n 20", 18820);
    let lines = lines(file.path());
    let of = |event: &str| lines.iter().filter(|line| line["event"] == event).collect::<Vec<_>>();
    let pids: std::collections::HashSet<_> =
        lines.iter().map(|line| line["pid"].as_u64()).collect();
    assert_eq!((pids.len(), of("open").len(), of("close").len()), (2, 2, 2));
    assert!(!of("drop").is_empty() && of("missed").is_empty());
    let (sends, receives) = (of("send"), of("receive"));
    assert!(sends.len() >= 20 && receives.len() >= 20, "{} {}", sends.len(), receives.len());
    for line in &lines {
        assert_eq!(line["device"], "mlx5_0");
        assert!(line["time_ns"].as_u64() > Some(0));
    }
    for send in sends {
        assert_eq!((&send["what"], &send["status"]), (&"SEND".into(), &"success".into()), "{send}");
        assert_eq!((&send["bytes"], &send["packets"]), (&4000.into(), &4.into()), "{send}");
        let at =
            ["doorbell_ns", "fetched_ns", "executed_ns", "time_ns"].map(|at| send[at].as_u64());
        assert!(at.is_sorted() && at[0].is_some(), "{send}");
    }
}

#[test]
fn options_that_cannot_be_are_refused_before_the_program_starts() {
    let ethernet = ["--link-layer", "ethernet"];
    let gid = ["--gid", "10.0.0.1"];
    for (options, words) in [
        (&["--fault", "drop-evry=7"] as &[&str], "'drop-evry=7' for '--fault"),
        (&["--fault", "mlx5_9:drop-every=0"], "`drop-every=0`: it takes a whole number from 1"),
        (
            &["--fault", "mlx5_1:drop-every=7"],
            "--fault mlx5_1:drop-every=7: there is no such device",
        ),
        (&["--fault", "port-down", "--fault", "mlx5_0:port-down"], "`port-down` is given twice"),
        (&["--trace", "/no/such/folder/trace"], "the trace /no/such/folder/trace can't be written"),
        (&["--trace", "/dev/null"], "no regular file"),
        (&["--mtu", "1500"], "256, 512, 1024, 2048 or 4096"),
        (&["--rate", "10"], "25, 50, 100, 200 or 400"),
        (&["--lid", "0"], "'--lid <LID>'"),
        (&["--lid", "49151", "--devices", "2"], "--lid 49151"),
        (&["--lid", "5", ethernet[0], ethernet[1]], "--lid is of infiniband ports"),
        (&gid, "--gid is of ethernet ports"),
        (&[ethernet[0], ethernet[1], "--gid", "10.0.0"], "'10.0.0' for '--gid"),
        (&[&ethernet[..], &gid, &gid].concat(), "--gid 10.0.0.1: the devices count up"),
        (&[&ethernet[..], &gid.repeat(8)].concat(), "--gid is given 8 times"),
    ] {
        let output = exec(options, &["echo", "the program ran"]);
        let shown = text(&output);
        assert!(
            shown.contains(words) && !shown.contains("the program ran"),
            "{options:?}: {shown}"
        );
        assert!(matches!(output.status.code(), Some(1 | 2)), "{options:?}: {:?}", output.status);
    }
}
