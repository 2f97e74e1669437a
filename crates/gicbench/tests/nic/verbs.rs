//! mini-proxy over any RDMA device, through the system's libibverbs: its experiments, and a program of this file's own.
//!
//! The program's tests are ignored by themselves: they are run here under `nic exec`, each by its name. On a machine with a
//! real device they run as they are: `cargo test -p gicbench --test nic -- --ignored over_verbs`.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::{Duration, Instant};

use assert_cmd::cargo::cargo_bin;
use device::host::Relax;
use device::proxy::{Descriptor, Handoff, HostProducer, Producers, ProxyChoice, ProxyOp};
use mini_proxy::{ChannelAttr, Drive, Proxy, ProxyAttr, ProxyError};
use rdma::ibv::Asked;
use rdma::post::{BadWr, Completion, Ended, RemoteAddr, SendOp, SendWr, Sge};
use rdma::verbs::VerbsNic;
use rdma::{Access, ConnectAttr, CqKind, Destination, Memory, Nic, QueuePairAttr, Region};
use serde_json::Value;

use super::{exec, skip, text};

/// Both link layers of the software ConnectX.
const LINKS: [&[&str]; 2] = [&["--link-layer", "infiniband"], &["--link-layer", "ethernet"]];

fn has_libibverbs() -> bool {
    match rdma::ibv::verbs() {
        Ok(_) => true,
        Err(error) => {
            skip(&error.to_string());
            false
        }
    }
}

/// A record of mini-proxy's experiments on this NIC.
fn record(options: &[&str], nic: &str) -> Value {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let gicbench = cargo_bin("gicbench");
    let run = format!(
        "{} run --transport mini-proxy --submitter host --nic {nic} --profile none -n 32 -w 4 --duration 100ms --force \
         --deadline 60s --json {path}",
        gicbench.display()
    );
    let command: Vec<&str> = run.split_whitespace().collect();
    let output = exec(options, &command);
    let said = std::fs::read_to_string(path).unwrap();
    serde_json::from_str(&said).unwrap_or_else(|_| panic!("no record: {}", text(&output)))
}

/// What was measured: experiment, parameters and metric of each row.
fn rows(record: &Value) -> Vec<String> {
    let rows = record["measurements"].as_array().unwrap();
    let name =
        |row: &Value| format!("{} {} {}", row["experiment"], row["parameters"], row["metric"]);
    rows.iter().map(name).collect()
}

#[test]
fn mini_proxy_measures_the_same_over_verbs_as_over_the_software_nic() {
    if !has_libibverbs() {
        return;
    }
    let soft = record(&[], "soft");
    let due: Vec<String> =
        rows(&soft).into_iter().filter(|row| !row.contains("producer-counter")).collect();
    for options in LINKS {
        let verbs = record(options, "verbs");
        assert_eq!(rows(&verbs), due, "{options:?}: {}", verbs["failed"]);
        assert_eq!(verbs["failed"], Value::Array(Vec::new()));
        for row in verbs["measurements"].as_array().unwrap() {
            assert_eq!(row["wrong"], 0, "{row}");
            // The NIC behind the driver is software, and the record says so.
            assert!(row["stand_in_why"].as_str().unwrap().contains("nic exec"), "{row}");
            assert_eq!(row["details"]["nic_device"], "mlx5_0");
            assert_eq!(row["details"]["nic_port_why"], "the only port");
        }
        // What writes WQEs itself is refused, by name; what else isn't run is so on every NIC.
        let refused = verbs["not_run"].as_array().unwrap().iter();
        let reasons: Vec<&str> = refused.map(|row| row["reason"].as_str().unwrap()).collect();
        assert!(reasons.iter().any(|why| why.contains("producer-counter")), "{reasons:?}");
        let others = soft["not_run"].as_array().unwrap().len();
        assert_eq!(reasons.len(), others + 1, "{reasons:?}");
    }
}

#[test]
fn two_ranks_put_over_verbs_and_find_their_data() {
    if !has_libibverbs() {
        return;
    }
    let gicbench = cargo_bin("gicbench");
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let run = format!(
        "{} run latency --transport mini-proxy --submitter host --nic verbs --profile none -n 32 -w 4 --force --json {path}",
        gicbench.display()
    );
    for (options, port) in LINKS.into_iter().zip([18640, 18641]) {
        let script = format!(
            "export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT={port}; RANK=1 {run} & RANK=0 {run}; near=$?; \
             wait $!; far=$?; [ $near = 0 ] && [ $far = 0 ]"
        );
        let output = exec(options, &["sh", "-c", &script]);
        assert!(output.status.success(), "{options:?}: {}", text(&output));
        let record: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let rows = record["measurements"].as_array().unwrap();
        assert!(rows.len() > 4, "{record}");
        for row in rows {
            assert_eq!((&row["wrong"], &row["details"]["remote_rank"]), (&0.into(), &1.into()));
            assert_eq!(row["details"]["nic_device"], "mlx5_0");
        }
    }
}

#[test]
fn ports_are_named_by_flags_and_wrong_ones_are_refused_with_what_there_is() {
    if !has_libibverbs() {
        return;
    }
    let gicbench = cargo_bin("gicbench");
    let gicbench = gicbench.to_str().unwrap();
    let latency = [gicbench, "run", "latency", "--submitter", "host", "--nic", "verbs", "-n", "8"];
    let devices = &["--devices", "2", "--link-layer", "ethernet"];
    for (transport, flags, status, words) in [
        ("mini-proxy", &["--device", "mlx5_1:1", "--mtu", "1024"][..], 0, "nic_device=\"mlx5_1\""),
        ("mini-proxy", &["--device", "mlx5_1", "--mtu", "1024"], 0, "nic_path_mtu=\"1024\""),
        ("mini-proxy", &["--gid-index", "0"], 0, "nic_gid_type=\"RoCE v1\""),
        ("mini-proxy", &[], 0, "nic_port_why=\"first of 2 active ports\""),
        ("mini-proxy", &["--device", "mlx5_7"], 1, "no port is called mlx5_7"),
        ("mini-proxy", &["--device", "mlx5_0:2"], 1, "mlx5_0:1"),
        ("mini-proxy", &["--gid-index", "200"], 1, "no GID at index 200"),
        ("mini-proxy", &["--mtu", "1500"], 2, "1500 is no MTU"),
        ("mini-gda", &[], 1, "NIC verbs serves mini-proxy"),
    ] {
        let command = [&latency[..], &["--transport", transport], flags].concat();
        let output = exec(devices, &command);
        let shown = text(&output);
        assert!(shown.contains(words), "{flags:?}: {shown}");
        // Nothing was measured, which is a failure, or not all of it, which isn't.
        let ok = output.status.code().unwrap() == 0;
        assert_eq!(ok, status == 0, "{flags:?}: {:?} {shown}", output.status);
    }
}

/// Runs one of the tests below on a software ConnectX.
fn under_nic_exec(test: &str) {
    if !has_libibverbs() {
        return;
    }
    let program = std::env::current_exe().unwrap();
    let name = format!("verbs::over_verbs::{test}");
    for options in LINKS {
        let output = exec(options, &[program.to_str().unwrap(), "--ignored", "--exact", &name]);
        let shown = text(&output);
        assert!(output.status.success() && shown.contains("1 passed"), "{options:?}: {shown}");
    }
}

#[test]
fn requests_are_executed_and_refused_over_verbs() {
    under_nic_exec("requests_and_errors");
}

#[test]
fn descriptors_are_executed_once_and_in_order_over_verbs() {
    under_nic_exec("descriptors");
}

/// Longest that anything here may take.
const PATIENCE: Duration = Duration::from_secs(60);

mod over_verbs {
    use super::*;

    struct Rig {
        near: Arc<VerbsNic>,
        far: Arc<VerbsNic>,
        local: Region,
        remote: Region,
    }

    const BYTES: usize = 1 << 16;

    fn rig() -> Rig {
        let open = || VerbsNic::open(&Asked::default()).unwrap();
        let (near, far) = (open(), open());
        let local = near.register(&Memory::zeroed(BYTES), Access::empty()).unwrap();
        let remote = far.register(&Memory::zeroed(BYTES), Access::all()).unwrap();
        Rig { near, far, local, remote }
    }

    impl Rig {
        fn sge(&self, at: u64, bytes: u32) -> Sge {
            Sge { address: self.local.address + at, bytes, lkey: self.local.lkey }
        }
        fn at(&self, at: u64) -> RemoteAddr {
            RemoteAddr { address: self.remote.address + at, rkey: self.remote.rkey }
        }
    }

    fn signaled(wr_id: u64, op: SendOp) -> SendWr {
        SendWr { wr_id, op, signaled: true, fence: false }
    }

    #[test]
    #[ignore = "needs an RDMA device: run under nic exec by the tests above"]
    fn requests_and_errors() {
        let rig = rig();
        let attr = QueuePairAttr {
            log_blocks: 4,
            log_cq: 4,
            cq_kind: CqKind::Ring,
            log_receives: Some(2),
            ..QueuePairAttr::default()
        };
        let near = Arc::new(rig.near.create_queue_pair(&attr).unwrap());
        let far = Arc::new(rig.far.create_queue_pair(&attr).unwrap());
        let hasty =
            ConnectAttr { timeout: 8, retry_cnt: 2, rnr_retry: 7, ..ConnectAttr::default() };
        let to = |nic: &VerbsNic, qpn| Destination { nic: nic.address(), qpn };
        rig.far.connect(&far, to(&rig.near, near.qpn), &hasty).unwrap();
        rig.near.connect(&near, to(&rig.far, far.qpn), &hasty).unwrap();
        assert!(!rig.near.has_open_queues() && near.areas.sq.is_empty());
        let mut sends = rig.near.send_queue(&near).unwrap();
        let mut receives = rig.far.receive_queue(&far).unwrap();
        receives.refill();
        let end = Instant::now() + PATIENCE;

        for i in 0..BYTES / 8 {
            rig.local.memory.word(8 * i).store(i as u64 ^ 0x5a5a, Relaxed);
        }
        rig.remote.memory.word(64).store(41, Relaxed);
        let inline = *b"bytes that travel in the WQE";
        let chain = [
            signaled(10, SendOp::Write(rig.sge(0, 64), rig.at(4096))),
            SendWr {
                signaled: false,
                ..signaled(11, SendOp::Write(rig.sge(64, 64), rig.at(4160)))
            },
            signaled(12, SendOp::WriteInline(inline, 28, rig.at(8192))),
            signaled(13, SendOp::FetchAdd(1, rig.at(64), rig.sge(1024, 8))),
            signaled(14, SendOp::CompareSwap(42, 7, rig.at(64), rig.sge(1032, 8))),
            signaled(15, SendOp::WriteImm(rig.sge(0, 8), rig.at(72), 0xabcd_1234)),
            signaled(16, SendOp::Read(rig.sge(2048, 128), rig.at(4096))),
            SendWr { fence: true, ..signaled(17, SendOp::Nop) },
        ];
        assert_eq!(sends.post(&chain).unwrap(), chain.len());
        let mut seen = Vec::new();
        let mut out = [Completion::NONE; 4];
        while seen.len() < chain.len() - 1 {
            let taken = sends.poll(&mut out);
            seen.extend(out[..taken].iter().map(|one| (one.wr_id, one.index, one.ended)));
            assert!(Instant::now() < end, "{seen:?}, {:?}", rig.near.cause(near.qpn));
            std::thread::yield_now();
        }
        let due = [(10, 0), (12, 2), (13, 3), (14, 4), (15, 5), (16, 6), (17, 7)];
        assert_eq!(seen, due.map(|(wr_id, index)| (wr_id, index, Ended::Done)));
        assert_eq!(sends.room(), sends.depth());
        let bytes = |region: &Region, at: usize, len: usize| {
            let mut bytes = vec![0; len];
            region.memory.read(at, &mut bytes).unwrap();
            bytes
        };
        assert_eq!(bytes(&rig.remote, 4096, 128), bytes(&rig.local, 0, 128));
        assert_eq!(bytes(&rig.local, 2048, 128), bytes(&rig.local, 0, 128));
        assert_eq!(bytes(&rig.remote, 8192, 28), inline);
        let word = |region: &Region, at| region.memory.word(at).load(Acquire);
        assert_eq!((word(&rig.local, 1024), word(&rig.local, 1032)), (41, 42));
        assert_eq!(word(&rig.remote, 64), 7);
        let message = loop {
            match receives.poll() {
                Some(message) => break message,
                None => assert!(Instant::now() < end, "no immediate came"),
            }
        };
        assert_eq!(
            (message.imm, message.bytes, message.ended),
            (Some(0xabcd_1234), 8, Ended::Done)
        );

        // What no request can be is refused before it is posted, and what is before it is posted.
        let chain = [
            signaled(20, SendOp::Write(rig.sge(0, 8), rig.at(0))),
            signaled(21, SendOp::FetchAdd(1, rig.at(4), rig.sge(0, 8))),
        ];
        let refused = sends.post(&chain).unwrap_err();
        assert_eq!((refused.index, refused.wr_id), (1, 21));
        assert!(matches!(refused.why, BadWr::UnalignedAtomic { .. }));

        // An error is told once by its cause, and all behind it is flushed.
        let wrong = RemoteAddr { rkey: rig.remote.rkey ^ 0xff00, ..rig.at(0) };
        let chain = [
            signaled(30, SendOp::Write(rig.sge(0, 8), wrong)),
            signaled(31, SendOp::Write(rig.sge(0, 8), rig.at(0))),
        ];
        assert_eq!(sends.post(&chain).unwrap(), 2);
        let mut seen = Vec::new();
        while seen.len() < 3 {
            let taken = sends.poll(&mut out);
            seen.extend(out[..taken].iter().map(|one| (one.wr_id, one.ended)));
            assert!(Instant::now() < end, "{seen:?}");
            std::thread::yield_now();
        }
        assert_eq!((seen[0], seen[1].0, seen[2].0), ((20, Ended::Done), 30, 31));
        let access = wire::cqe::Syndrome::RemoteAccess as u8;
        assert!(
            matches!(seen[1].1, Ended::Failed { syndrome, .. } if syndrome == access),
            "{seen:?}"
        );
        assert!(seen[2].1.is_flushed());
        let cause = rig.near.cause(near.qpn).unwrap();
        assert!(cause.contains("remote access error"), "{cause}");
        assert!(rig.near.gone().is_none());
    }

    #[test]
    #[ignore = "needs an RDMA device: run under nic exec by the tests above"]
    fn descriptors() {
        for handoff in Handoff::ALL.iter().copied() {
            let rig = rig();
            let remote = rig.remote.clone();
            let channel = ChannelAttr {
                local: rig.local.clone(),
                remote: remote.clone(),
                signal: Some((remote.clone(), BYTES as u64 - 64)),
            };
            let each = 300u64;
            let add = |i: u64| Descriptor {
                op: ProxyOp::FetchAdd,
                size: i + 1,
                source: 8 * i,
                ..Descriptor::default()
            };
            let choice =
                ProxyChoice { handoff, producers: Producers::One, ..ProxyChoice::default() };
            let known = handoff == Handoff::MappedCounter;
            let attr = ProxyAttr {
                choice,
                depth: 8,
                chain: 3,
                log_blocks: 3,
                signal_every: 2,
                channels: vec![channel],
                requests: if known { (0..each).map(add).collect() } else { Vec::new() },
                drive: Drive::Stepped,
                deadline: PATIENCE,
                log_receives: Some(4),
                ..ProxyAttr::default()
            };
            let near: Arc<dyn Nic> = rig.near.clone();
            let made = Proxy::connect(near, rig.far.as_ref(), &attr);
            if handoff == Handoff::ProducerCounter {
                let refused = made.err().unwrap();
                assert!(matches!(
                    &refused,
                    ProxyError::Nic { source: rdma::Error::QueuesClosed { .. }, .. }
                ));
                assert!(refused.to_string().contains("producer-counter"), "{refused}");
                continue;
            }
            let proxy = made.unwrap();
            let relax = proxy.relax();
            // SAFETY: the proxy outlives it, and it is the ring's only producer.
            let producer = unsafe { HostProducer::new(choice, &proxy.views()[0], Some(&relax)) };
            let mut producer = producer.unwrap();
            let all: Vec<Descriptor> = (0..each).map(add).collect();
            for some in all.chunks(25) {
                producer.push(some).unwrap();
            }
            producer.quiet().unwrap();
            for i in 0..each {
                let before = rig.local.memory.word(8 * i as usize).load(Acquire);
                assert_eq!(before, i * (i + 1) / 2, "{handoff}: add {i}");
            }
            assert_eq!(proxy.counters().completed, each, "{handoff}");
            if !known {
                // Signals behind their puts, and immediates with their positions.
                let mut receives = rig.far.receive_queue(&proxy.peers()[0]).unwrap();
                receives.refill();
                let put =
                    |op| Descriptor { op, size: 8, destination: 4096, ..Descriptor::default() };
                for i in 1..=20u64 {
                    rig.local.memory.word(0).store(i, Relaxed);
                    let ticket = producer.push(&[put(ProxyOp::PutSignal)]).unwrap();
                    producer.wait(ticket).unwrap();
                    assert_eq!(remote.memory.word(BYTES - 64).load(Acquire), i, "{handoff}");
                    assert_eq!(remote.memory.word(4096).load(Acquire), i, "{handoff}");
                }
                let end = Instant::now() + PATIENCE;
                for i in 0..40 {
                    let ticket = producer.push(&[put(ProxyOp::PutImm)]).unwrap();
                    producer.wait(ticket).unwrap();
                    let message = loop {
                        relax.relax(0);
                        match receives.poll() {
                            Some(message) => break message,
                            None => assert!(Instant::now() < end, "no immediate {i}"),
                        }
                    };
                    assert_eq!(message.imm, Some((each + 20 + i) as u32), "{handoff}");
                    receives.refill();
                }
            }
            assert_eq!(rig.near.findings().unwrap(), Vec::<String>::new(), "{handoff}");
        }
    }
}
