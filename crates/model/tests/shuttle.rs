//! The whole, on random schedules: several threads of device code on one queue pair, a software NIC that another
//! thread steps, completions, full queues, failures.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod schedules;

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use device::choice::{Choice, CqKind, Ringing, Sharing, Signalling};
use device::view::{Failure, Local, QpView, Remote, Why};
use mini_gda::{Gda, GdaAttr};
use model::ShuttleMemory;
use model::queue::{Operation, operate, quiet, wait};
use rdma::soft::Fabric;
use rdma::{Access, Memory, Nic, Region};
use schedules::{check, fabric, run_beside};
use shuttle::rand::Rng;
use softnic::{FailWqe, Faults, Qpn};

const THREADS: u64 = 3;
const OPS: u64 = 6;
const DEPTH_LOG: u32 = 2;
const VENDOR: u8 = 0x5a;
const SEED: u64 = 0x5eed_0001;

fn choices() -> Vec<Choice> {
    let mut all = Vec::new();
    for &ringing in Ringing::ALL {
        for cq_kind in [CqKind::Ring, CqKind::Collapsed] {
            let signalling = match ringing {
                Ringing::Deferred | Ringing::EveryNth => Signalling::OnRequest,
                Ringing::Each | Ringing::Threshold => Signalling::Every,
            };
            let sharing = Sharing::Thread;
            all.push(Choice { sharing, ringing, cq_kind, signalling, ..Choice::default() });
        }
    }
    all
}

#[derive(Clone)]
struct Rig {
    fabric: Arc<Fabric>,
    gda: Arc<Gda>,
    target: Region,
    results: Region,
    choice: Choice,
}

const COUNTER: u64 = 0;

impl Rig {
    fn new(choice: Choice, start: u64) -> Self {
        let fabric = fabric();
        let (near, far) = (fabric.nic(0), fabric.nic(1));
        let target = far.register(&Memory::zeroed(4096), Access::all()).unwrap();
        let results = near.register(&Memory::zeroed(4096), Access::empty()).unwrap();
        let attr = GdaAttr { log_blocks: DEPTH_LOG, choice, start, ..GdaAttr::default() };
        let gda = Gda::connect(near.as_ref(), far.as_ref(), &attr).unwrap();
        Self { fabric: Arc::new(fabric), gda: Arc::new(gda), target, results, choice }
    }

    fn view(&self) -> QpView {
        // A model's clock ticks once a reading, that is once in 64 turns of a wait.
        QpView { deadline: 60, ..self.gda.views()[0] }
    }

    fn remote(&self, offset: u64) -> Remote {
        Remote { address: self.target.at(offset, 8).unwrap(), rkey: self.target.rkey }
    }

    fn word(&self, offset: u64) -> u64 {
        self.target.memory.word(offset as usize).load(Ordering::Acquire)
    }

    /// Adds 1 to the target's counter.
    fn count(&self, thread: u64, ring: bool) -> Result<u64, Failure> {
        let result =
            Local { address: self.results.at(8 * thread, 8).unwrap(), lkey: self.results.lkey };
        let add = Operation::FetchAdd(1, result);
        // SAFETY: the rig outlives its threads.
        unsafe { operate(&self.choice, &self.view(), self.remote(COUNTER), add, ring) }
    }

    /// Writes a value of its own to a slot of its own.
    fn put(&self, value: u64, ring: bool) -> Result<u64, Failure> {
        let put = Operation::PutValue(value);
        // SAFETY: the rig outlives its threads.
        unsafe { operate(&self.choice, &self.view(), self.remote(8 * value), put, ring) }
    }

    fn wait(&self, ticket: u64) -> Result<(), Failure> {
        // SAFETY: the rig outlives its threads.
        unsafe { wait(&self.choice, &self.view(), ticket) }
    }

    fn quiet(&self) -> Result<(), Failure> {
        // SAFETY: the rig outlives its threads.
        unsafe { quiet(&self.choice, &self.view()) }
    }

    /// Steps the NICs while `THREADS` bodies run.
    fn run(&self, body: impl Fn(&Self, u64) + Send + Sync + 'static) {
        run_beside(self, THREADS, body, || {
            let budget = shuttle::rand::thread_rng().gen_range(1..16);
            self.fabric.engine().try_step(budget);
        });
    }

    fn assert_no_findings(&self) {
        assert_eq!(self.fabric.nic(0).findings().unwrap(), []);
    }
}

/// Counts and slots: nothing was lost, nothing done twice, and the NIC saw nothing wrong.
fn exactly_once(choice: Choice, start: u64) {
    let rig = Rig::new(choice, start);
    rig.run(move |rig, thread| {
        let mut last = 0;
        for i in 0..OPS {
            // Where the caller rings, some posts are left to a later one.
            let ring = i + 1 == OPS || shuttle::rand::thread_rng().gen_bool(0.5);
            last = if i % 2 == 0 {
                rig.count(thread, ring).unwrap()
            } else {
                rig.put(1 + thread * OPS + i, ring).unwrap()
            };
            if ring && shuttle::rand::thread_rng().gen_bool(0.3) {
                rig.wait(last).unwrap();
            }
        }
        if shuttle::rand::thread_rng().gen_bool(0.5) {
            rig.wait(last).unwrap();
        } else {
            rig.quiet().unwrap();
        }
    });
    // What others posted after this thread's last may still be on its way.
    let _entered = ShuttleMemory.enter();
    while rig.fabric.engine().try_step(64) {}
    assert_eq!(rig.word(COUNTER), THREADS * OPS / 2);
    for thread in 0..THREADS {
        for i in (1..OPS).step_by(2) {
            let value = 1 + thread * OPS + i;
            assert_eq!(rig.word(8 * value), value);
        }
    }
    rig.assert_no_findings();
}

#[test]
fn everything_arrives_exactly_once() {
    for choice in choices() {
        for start in [0, (1 << 16) - 3, (1 << 32) - 5] {
            check(SEED, 120, move || exactly_once(choice, start));
        }
    }
}

/// WQE number `nth` fails: what was before it is done, it and all after it are errors that name the cause.
fn a_failure(choice: Choice) {
    let rig = Rig::new(choice, 0);
    let nth = shuttle::rand::thread_rng().gen_range(0..THREADS * OPS - 4);
    let syndrome = wire::cqe::Syndrome::RemoteAccess;
    let qpn = rig.gda.views()[0].qpn;
    let fail = FailWqe { qpn: Some(Qpn(qpn)), nth, syndrome, vendor: VENDOR };
    rig.fabric.nic(0).set_faults(Faults { fail: vec![fail], ..Faults::default() }).unwrap();
    let tickets = Arc::new(Mutex::new((BTreeSet::new(), Vec::new())));
    let seen = Arc::clone(&tickets);
    rig.run(move |rig, thread| {
        let mut posted = Vec::new();
        for _ in 0..OPS {
            match rig.count(thread, true) {
                Ok(ticket) => posted.push(ticket),
                Err(failure) => {
                    seen.lock().unwrap().1.push(failure);
                    break;
                }
            }
        }
        for ticket in posted {
            let result = rig.wait(ticket);
            let mut seen = seen.lock().unwrap();
            match result {
                Ok(()) => assert!(seen.0.insert(ticket)),
                Err(failure) => seen.1.push(failure),
            }
        }
    });
    let (done, failures) = &*tickets.lock().unwrap();
    assert_eq!(rig.word(COUNTER), nth, "WQEs before the one that fails were executed, no other");
    match choice.cq_kind {
        // Every completion is seen.
        CqKind::Ring => assert_eq!(*done, (1..=nth).collect()),
        // The flushed ones may overwrite the first error, and with it what it says of those before.
        CqKind::Collapsed => assert!(done.iter().all(|ticket| *ticket <= nth)),
    }
    assert!(!failures.is_empty());
    for failure in failures {
        assert_eq!((failure.why, failure.qpn), (Why::Completion, qpn));
        if choice.cq_kind == CqKind::Ring {
            assert_eq!(failure.index, nth as u16);
            assert_eq!((failure.syndrome, failure.vendor), (syndrome as u8, VENDOR));
        }
    }
}

#[test]
fn a_failure_is_never_taken_for_done() {
    for choice in choices() {
        check(SEED, 250, move || a_failure(choice));
    }
}

#[test]
fn a_nic_that_stands_still_is_an_error_for_every_thread() {
    for choice in choices() {
        check(SEED, 20, move || {
            let rig = Rig::new(choice, 0);
            rig.fabric.nic(0).set_faults(Faults { paused: true, ..Faults::default() }).unwrap();
            rig.run(|rig, thread| {
                // More than the queue holds: some wait for room, some for their turn, some for completion.
                let result = (0..4).try_fold(0, |_, _| rig.count(thread, true));
                let failure = result.and_then(|ticket| rig.wait(ticket)).unwrap_err();
                assert!(matches!(
                    failure.why,
                    Why::DeadlineSpace | Why::DeadlineTurn | Why::DeadlineCompletion
                ));
            });
        });
    }
}
