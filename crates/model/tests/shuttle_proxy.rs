//! The whole proxied path on random schedules: several threads of device code on one ring, a worker and a software
//! NIC that another thread steps, full rings and queues, failures. A visit of the worker is one step: it has no
//! point at which shuttle could switch; its hand-offs are in `loom_ring.rs`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod schedules;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use device::proxy::{Descriptor, Handoff, Producers, Progress, ProxyChoice, ProxyOp, RingView};
use device::view::{Failure, Why};
use mini_proxy::{ChannelAttr, Proxy, ProxyAttr};
use model::ring::{push, quiet, wait};
use rdma::soft::Fabric;
use rdma::{Access, Memory, Nic, Region};
use schedules::{check, fabric, run_beside};
use shuttle::rand::Rng;
use softnic::{FailWqe, Faults};

const OPS: u64 = 6;
const THREADS: u64 = 3;
const SIGNAL: u64 = 2048;
const VENDOR: u8 = 0x5a;
const SEED: u64 = 0x5eed_0002;

/// Of each hand-off that takes descriptors; which thread raises a mapped counter next is open.
fn choices() -> Vec<ProxyChoice> {
    let mut all = Vec::new();
    for &handoff in Handoff::ALL.iter().filter(|h| **h != Handoff::MappedCounter) {
        for &producers in Producers::ALL {
            for &progress in Progress::ALL {
                all.push(ProxyChoice { handoff, producers, progress, ..ProxyChoice::default() });
            }
        }
    }
    all
}

#[derive(Clone)]
struct Rig {
    proxy: Arc<Proxy>,
    fabric: Arc<Fabric>,
    local: Region,
    remote: Region,
    choice: ProxyChoice,
    threads: u64,
}

impl Rig {
    fn new(choice: ProxyChoice, start: u64) -> Self {
        let fabric = fabric();
        let (near, far) = (fabric.nic(0).clone(), fabric.nic(1).clone());
        let local = near.register(&Memory::zeroed(4096), Access::empty()).unwrap();
        let remote = far.register(&Memory::zeroed(4096), Access::all()).unwrap();
        let signal = Some((remote.clone(), SIGNAL));
        let channel = ChannelAttr { local: local.clone(), remote: remote.clone(), signal };
        let attr = ProxyAttr {
            choice,
            depth: 4,
            chain: 2,
            signal_every: 2,
            log_blocks: 2,
            channels: vec![channel],
            start,
            sq_start: start,
            ..ProxyAttr::default()
        };
        let proxy = Arc::new(Proxy::connect(near, far.as_ref(), &attr).unwrap());
        let threads = if choice.producers == Producers::One { 1 } else { THREADS };
        Self { proxy, fabric: Arc::new(fabric), local, remote, choice, threads }
    }

    fn view(&self) -> RingView {
        // A model's clock ticks once a reading, that is once in 64 turns of a wait.
        RingView { deadline: 60, ..self.proxy.views()[0] }
    }

    fn push(&self, d: &Descriptor) -> Result<u64, Failure> {
        // SAFETY: the rig outlives its threads.
        unsafe { push(&self.choice, &self.view(), d) }
    }

    fn wait(&self, ticket: u64) -> Result<(), Failure> {
        // SAFETY: the rig outlives its threads.
        unsafe { wait(&self.choice, &self.view(), ticket) }
    }

    fn quiet(&self) -> Result<(), Failure> {
        // SAFETY: the rig outlives its threads.
        unsafe { quiet(&self.choice, &self.view()) }
    }

    /// Steps worker and NICs while the bodies run.
    fn run(&self, body: impl Fn(&Self, u64) + Send + Sync + 'static) {
        run_beside(self, self.threads, body, || {
            if shuttle::rand::thread_rng().gen_bool(0.5) {
                self.proxy.step();
            } else {
                let budget = shuttle::rand::thread_rng().gen_range(1..16);
                self.fabric.engine().try_step(budget);
            }
        });
    }
}

/// Fetch-add number `i` of a thread: adds `i + 1` to the thread's word, and brings back what was there.
fn add(thread: u64, i: u64) -> Descriptor {
    Descriptor {
        op: ProxyOp::FetchAdd,
        channel: 0,
        size: i + 1,
        source: 8 * (thread * OPS + i),
        destination: 8 * thread,
    }
}

fn exactly_once(choice: ProxyChoice, start: u64) {
    let rig = Rig::new(choice, start);
    rig.run(move |rig, thread| {
        let mut last = 0;
        for i in 0..OPS {
            rig.push(&add(thread, i)).unwrap();
            let at = 8 * (100 + thread);
            let put = Descriptor { source: at, destination: at, size: 8, ..add(thread, i) };
            last = rig.push(&Descriptor { op: ProxyOp::PutSignal, ..put }).unwrap();
            if shuttle::rand::thread_rng().gen_bool(0.2) {
                rig.wait(last).unwrap();
            }
        }
        if shuttle::rand::thread_rng().gen_bool(0.5) {
            rig.wait(last).unwrap();
        } else {
            rig.quiet().unwrap();
        }
        for i in 0..OPS {
            let at = 8 * (thread * OPS + i) as usize;
            let before = rig.local.memory.word(at).load(Ordering::Acquire);
            assert_eq!(before, i * (i + 1) / 2, "add {i} of thread {thread}");
        }
    });
    let signals = rig.remote.memory.word(SIGNAL as usize).load(Ordering::Acquire);
    assert_eq!(signals, rig.threads * OPS);
    assert_eq!(rig.fabric.nic(0).findings().unwrap(), []);
}

#[test]
fn everything_is_executed_once_and_in_order() {
    for choice in choices() {
        for start in [0, (1 << 16) - 3, (1 << 32) - 5] {
            check(SEED, 60, move || exactly_once(choice, start));
        }
    }
}

/// Request number `nth` fails: whoever waits for it or for what is behind it is told, and nothing behind it is done.
fn a_failure(choice: ProxyChoice) {
    let rig = Rig::new(choice, 0);
    let nth = shuttle::rand::thread_rng().gen_range(0..OPS - 1);
    let syndrome = wire::cqe::Syndrome::RemoteAccess;
    let fail = FailWqe { qpn: None, nth, syndrome, vendor: VENDOR };
    rig.fabric.nic(0).set_faults(Faults { fail: vec![fail], ..Faults::default() }).unwrap();
    let expected = (Why::Completion, nth as u16, syndrome as u8, VENDOR);
    rig.run(move |rig, thread| {
        let mut met = None;
        for i in 0..OPS {
            let done = rig.push(&add(thread, i)).and_then(|t| rig.wait(t).map(|()| t));
            match done {
                Ok(ticket) => {
                    assert!(ticket <= nth, "{ticket} was told to be done");
                    assert_eq!(met, None, "done behind a failure");
                }
                Err(f) => {
                    assert_eq!((f.why, f.index, f.syndrome, f.vendor), expected);
                    met = Some(f);
                }
            }
        }
        assert!(met.is_some());
    });
}

#[test]
fn a_failure_is_never_taken_for_done() {
    for choice in choices() {
        check(SEED, 100, move || a_failure(choice));
    }
}

#[test]
fn a_nic_that_stands_still_is_an_error_for_every_thread() {
    for choice in choices() {
        check(SEED, 10, move || {
            let rig = Rig::new(choice, 0);
            rig.fabric.nic(0).set_faults(Faults { paused: true, ..Faults::default() }).unwrap();
            rig.run(|rig, thread| {
                let met = (0..3 * OPS).try_fold(0, |_, i| rig.push(&add(thread, i % OPS)));
                let failure = met.and_then(|ticket| rig.wait(ticket)).unwrap_err();
                assert!(matches!(
                    failure.why,
                    Why::DeadlineSpace | Why::DeadlineTurn | Why::DeadlineCompletion
                ));
            });
        });
    }
}
