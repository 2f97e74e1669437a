//! On a GPU: what goes wrong reaches its threads as an error, and no kernel outlives its waits.
//!
//! Skipped with the reason where there is no GPU.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::io::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use device::choice::{Choice, CqKind, Order};
use device::cuda::{CudaError, Gpu, Launched, Place, Prepared};
use device::host::Kernel;
use device::like::{Like, LikeArgs, Peer, Step};
use device::shared::Shared;
use device::view::{Failure, LatencyArgs, Local, Op, QuietScope, Remote, Why};
use mini_gda::like::LikeGda;
use mini_gda::{Gda, GdaAttr};
use rdma::soft::{Engine, Fabric, FabricAttr, SoftNic};
use rdma::soft_gpu::{self, EngineOn};
use rdma::{Access, Nic, Places, Region, memory};
use softnic::{FailWqe, Faults, Qpn};
use wire::cqe::Syndrome;

const SLOTS: u64 = 16;
const VENDOR: u8 = 0x5a;

/// One test at a time: a persistent kernel and another's allocations wait for each other.
struct Turn(Arc<Gpu>, #[allow(dead_code, reason = "held")] MutexGuard<'static, ()>);

impl std::ops::Deref for Turn {
    type Target = Arc<Gpu>;
    fn deref(&self) -> &Arc<Gpu> {
        &self.0
    }
}

fn gpu() -> Option<Turn> {
    static ONE: Mutex<()> = Mutex::new(());
    let turn = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    match Gpu::open(0) {
        Ok(gpu) => Some(Turn(gpu, turn)),
        Err(error @ (CudaError::NoDriver | CudaError::NoDevice { .. }))
            if std::env::var_os("GICBENCH_REQUIRE_GPU").is_none() =>
        {
            let reason = format!("mini-gda on a GPU: {error}");
            eprintln!("SKIPPED: {reason}");
            if let Some(path) = std::env::var_os("GICBENCH_SKIP_LOG") {
                let mut log =
                    std::fs::OpenOptions::new().append(true).create(true).open(path).unwrap();
                writeln!(log, "{reason}").unwrap();
            }
            None
        }
        Err(error) => panic!("{error}"),
    }
}

enum Nics {
    Cpu(Fabric),
    Inside(soft_gpu::Fabric),
}

/// A queue pair between two NICs, with everything in memory of one kind.
struct Rig {
    gpu: Arc<Gpu>,
    nics: Nics,
    gda: Gda,
    near: Region,
    far: Region,
    choice: Choice,
    failure: Shared<u64>,
    ticks: Shared<u64>,
}

impl Rig {
    fn new(
        gpu: &Arc<Gpu>,
        inside: bool,
        place: &Place,
        choice: Choice,
        deadline: Duration,
    ) -> Self {
        let nics = if inside {
            Nics::Inside(soft_gpu::Fabric::open(EngineOn::Gpu(Arc::clone(gpu), 1)).unwrap())
        } else {
            let engine = Engine::Thread { cpu: None };
            Nics::Cpu(Fabric::open(&FabricAttr { engine, ..FabricAttr::default() }).unwrap())
        };
        let [near_nic, far_nic]: [Arc<dyn Nic>; 2] = match &nics {
            Nics::Cpu(fabric) => [0, 1].map(|i| Arc::clone(fabric.nic(i)) as Arc<dyn Nic>),
            Nics::Inside(fabric) => [0, 1].map(|i| Arc::clone(fabric.nic(i)) as Arc<dyn Nic>),
        };
        let region = |nic: &Arc<dyn Nic>| {
            nic.register(&memory(place, SLOTS as usize * 8).unwrap(), Access::all()).unwrap()
        };
        let (near, far) = (region(&near_nic), region(&far_nic));
        let own = Place::Gpu(Arc::clone(gpu));
        let attr = GdaAttr {
            choice,
            deadline,
            queues: Places { doorbell: Place::Pinned(Arc::clone(gpu)), ..Places::all(place) },
            peers: Places::all(place),
            state: own.clone(),
            clock: gpu.clock().unwrap(),
            ..GdaAttr::default()
        };
        let gda = Gda::connect(near_nic.as_ref(), far_nic.as_ref(), &attr).unwrap();
        let words = |n: usize| Shared::at(&own, &vec![0u64; n]).unwrap();
        let (failure, ticks) = (words(1), words(64));
        Self { gpu: Arc::clone(gpu), nics, gda, near, far, choice, failure, ticks }
    }

    /// Puts that each carry `first`, `first + 1`, …; what the kernel and the launch say.
    fn put(
        &self,
        ops: u64,
        first: u64,
        until: Duration,
    ) -> (Option<Failure>, Result<Launched, CudaError>) {
        self.put_to(ops, first, until, Remote { address: self.far.address, rkey: self.far.rkey })
    }

    fn put_to(
        &self,
        ops: u64,
        first: u64,
        until: Duration,
        remote: Remote,
    ) -> (Option<Failure>, Result<Launched, CudaError>) {
        self.failure.write(&[0]).unwrap();
        let args = LatencyArgs {
            qp: self.gda.device_views(),
            qps: 1,
            scope: QuietScope::One,
            bytes: 8,
            slots: SLOTS as u32,
            stride: 8,
            warmup: 0,
            samples: ops,
            first,
            local: Local { address: self.near.address, lkey: self.near.lkey },
            remote,
            result: Local::default(),
            signal: Remote::default(),
            av: std::ptr::null(),
            issue: self.ticks.as_ptr(),
            total: self.ticks.as_ptr().wrapping_add(32),
            failure: self.failure.as_ptr(),
        };
        let kernel = Kernel::Latency(Op::Put, &args);
        let prepared = Prepared::new(&self.gpu, kernel.kind(), &self.choice).unwrap();
        let inside = match &self.nics {
            Nics::Inside(fabric) => Some(fabric.start().unwrap()),
            Nics::Cpu(_) => None,
        };
        // SAFETY: the rig owns what the addresses lead to; 32 samples fit each half.
        let ended = unsafe { prepared.run(kernel, None, Instant::now() + until, &|| false) };
        if let Some(inside) = inside {
            inside.stop().unwrap();
        }
        (Failure::unpack(self.failure.read().unwrap()[0]), ended)
    }

    fn near_nic(&self) -> Option<&Arc<SoftNic>> {
        match &self.nics {
            Nics::Cpu(fabric) => Some(fabric.nic(0)),
            Nics::Inside(_) => None,
        }
    }

    fn fail_wqe(&self, nth: u64, syndrome: Syndrome) {
        let qpn = self.gda.views()[0].qpn;
        match &self.nics {
            Nics::Cpu(fabric) => {
                let fail = vec![FailWqe { qpn: Some(Qpn(qpn)), nth, syndrome, vendor: VENDOR }];
                fabric.nic(0).set_faults(Faults { fail, ..Faults::default() }).unwrap();
            }
            Nics::Inside(fabric) => fabric.nic(0).fail_wqe(qpn, nth, syndrome, VENDOR).unwrap(),
        }
    }

    fn arrived(&self) -> Vec<u64> {
        let mut bytes = vec![0; SLOTS as usize * 8];
        self.far.memory.read(0, &mut bytes).unwrap();
        bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
    }
}

const LONG: Duration = Duration::from_secs(20);

fn places(gpu: &Arc<Gpu>) -> [Place; 2] {
    [Place::Pinned(Arc::clone(gpu)), Place::Gpu(Arc::clone(gpu))]
}

#[test]
fn puts_arrive_wherever_queues_and_payload_are_and_whoever_executes() {
    let Some(gpu) = gpu() else { return };
    for inside in [false, true] {
        for place in places(&gpu) {
            for cq_kind in [CqKind::Collapsed, CqKind::Ring] {
                let choice = Choice { cq_kind, order: Order::SystemFence, ..Choice::default() };
                let rig = Rig::new(&gpu, inside, &place, choice, LONG);
                for first in [100, 200] {
                    let (failure, ended) = rig.put(SLOTS, first, LONG);
                    assert_eq!(failure, None, "inside {inside} {place:?} {cq_kind}");
                    assert!(ended.unwrap().ticks_per_us > 1.0);
                    let due: Vec<u64> = (first..first + SLOTS).collect();
                    assert_eq!(rig.arrived(), due, "inside {inside} {place:?} {cq_kind}");
                }
            }
        }
    }
}

/// By two threads of different blocks where the put is made for them. Without a fence nothing is promised.
#[test]
fn puts_like_a_librarys_arrive_whole_and_without_a_step_that_is_no_fence() {
    let Some(gpu) = gpu() else { return };
    for peer in Peer::ALL.iter().copied().filter(|peer| !peer.is_proxied()) {
        let fences = [Step::ReadyFence, Step::RecordFence, Step::DoorbellFence];
        let steps = peer.steps().into_iter().filter(|step| !fences.contains(step));
        let without = steps.map(|step| Like::without(peer, step).unwrap());
        for like in std::iter::once(Like::whole(peer)).chain(without) {
            for place in places(&gpu) {
                let arrived = put_like(&gpu, like, &place);
                let threads = if like.takes_more_threads() { 2 } else { 1 };
                let each = SLOTS / 2;
                let due = (0..threads).flat_map(|thread| {
                    // Three laps of the slots.
                    (0..each).map(move |slot| 1 + thread * 3 * each + 2 * each + slot)
                });
                let due: Vec<u64> = due.collect();
                assert_eq!(arrived[..due.len()], due, "{like} {place:?}");
            }
        }
    }
}

fn put_like(gpu: &Arc<Gpu>, like: Like, place: &Place) -> Vec<u64> {
    // Only queues in GPU memory are ordered for by fences of the GPU's scope, and the NIC is there as well.
    let fabric = soft_gpu::Fabric::open(EngineOn::Gpu(Arc::clone(gpu), 1)).unwrap();
    let [near_nic, far_nic] = [0, 1].map(|i| Arc::clone(fabric.nic(i)));
    let region = |nic: &dyn Nic| {
        nic.register(&memory(place, SLOTS as usize * 8).unwrap(), Access::all()).unwrap()
    };
    let (near, far) = (region(near_nic.as_ref()), region(far_nic.as_ref()));
    let own = Place::Gpu(Arc::clone(gpu));
    let attr = GdaAttr {
        log_blocks: 3,
        deadline: LONG,
        queues: Places { doorbell: Place::Pinned(Arc::clone(gpu)), ..Places::all(&own) },
        peers: Places::all(&own),
        state: own.clone(),
        clock: gpu.clock().unwrap(),
        ..GdaAttr::default()
    };
    let attr = LikeGda::attr(like, &attr);
    let gda =
        LikeGda::connect(near_nic.as_ref(), far_nic.as_ref(), like, &attr, &near, &far).unwrap();
    let words = |n: usize| Shared::at(&own, &vec![0u64; n]).unwrap();
    let (ticks, failure) = (words(4 * 3 * SLOTS as usize), words(2));
    let args = LikeArgs {
        threads: if like.takes_more_threads() { 2 } else { 1 },
        slots: SLOTS / 2,
        samples: 3 * SLOTS / 2,
        issue: ticks.as_ptr(),
        total: ticks.as_ptr().wrapping_add(2 * 3 * SLOTS as usize),
        failure: failure.as_ptr(),
        ..gda.args()
    };
    let prepared = Prepared::like(gpu, like, gda.constant()).unwrap();
    let inside = fabric.start().unwrap();
    // SAFETY: all that the addresses lead to outlives the launch.
    let ended = unsafe { prepared.run_like(&args, None, Instant::now() + LONG, &|| false) };
    inside.stop().unwrap();
    let failures: Vec<_> = failure.read().unwrap().into_iter().map(Failure::unpack).collect();
    assert_eq!(failures, [None, None], "{like} {place:?}");
    ended.unwrap();
    let mut bytes = vec![0; SLOTS as usize * 8];
    far.memory.read(0, &mut bytes).unwrap();
    bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

#[test]
fn a_failed_wqe_is_an_error_of_the_thread_that_posted_it_and_of_those_after_it() {
    let Some(gpu) = gpu() else { return };
    for inside in [false, true] {
        let place = Place::Pinned(Arc::clone(&gpu));
        let choice = Choice { order: Order::SystemFence, ..Choice::default() };
        let rig = Rig::new(&gpu, inside, &place, choice, LONG);
        rig.fail_wqe(5, Syndrome::RemoteAccess);
        let (failure, ended) = rig.put(SLOTS, 1, LONG);
        ended.unwrap();
        let failure = failure.expect("an error was taken for done");
        assert_eq!((failure.why, failure.index), (Why::Completion, 5), "inside {inside}");
        assert_eq!((failure.syndrome, failure.vendor), (0x13, VENDOR), "inside {inside}");
        assert_eq!(rig.arrived()[..5], [1, 2, 3, 4, 5], "inside {inside}");
        let (again, ended) = rig.put(1, 50, LONG);
        ended.unwrap();
        assert_eq!(again, Some(failure), "a queue pair in error takes nothing more");
    }
}

#[test]
fn an_address_out_of_bounds_is_the_nics_error_and_no_trap() {
    let Some(gpu) = gpu() else { return };
    for inside in [false, true] {
        for place in places(&gpu) {
            let choice = Choice { order: Order::SystemFence, ..Choice::default() };
            let rig = Rig::new(&gpu, inside, &place, choice, LONG);
            let beyond = Remote { address: rig.far.address + (1 << 40), rkey: rig.far.rkey };
            let (failure, ended) = rig.put_to(1, 1, LONG, beyond);
            ended.unwrap();
            let failure = failure.expect("an error was taken for done");
            assert_eq!((failure.why, failure.syndrome), (Why::Completion, 0x13), "{place:?}");
        }
    }
}

#[test]
fn a_nic_that_stops_is_a_deadline_that_names_the_wait() {
    let Some(gpu) = gpu() else { return };
    let place = Place::Pinned(Arc::clone(&gpu));
    let choice = Choice { order: Order::SystemFence, ..Choice::default() };
    let rig = Rig::new(&gpu, false, &place, choice, Duration::from_millis(200));
    rig.near_nic().unwrap().set_faults(Faults { paused: true, ..Faults::default() }).unwrap();
    let (failure, ended) = rig.put(1, 1, LONG);
    ended.unwrap();
    let failure = failure.expect("nothing was completed");
    assert_eq!((failure.why, failure.index), (Why::DeadlineCompletion, 0));
}

#[test]
fn a_kernel_that_is_late_is_told_to_give_up_and_says_at_what_it_was() {
    let Some(gpu) = gpu() else { return };
    let place = Place::Pinned(Arc::clone(&gpu));
    let choice = Choice { order: Order::SystemFence, ..Choice::default() };
    // Its own waits would take far longer than the launcher does.
    let rig = Rig::new(&gpu, false, &place, choice, Duration::from_secs(600));
    rig.near_nic().unwrap().set_faults(Faults { paused: true, ..Faults::default() }).unwrap();
    let (failure, ended) = rig.put(1, 1, Duration::from_millis(300));
    assert!(matches!(ended, Err(CudaError::Late { .. })), "{ended:?}");
    let failure = failure.expect("nothing was completed");
    assert_eq!(failure.why, Why::DeadlineCompletion);
    assert_eq!(failure.qpn, rig.gda.views()[0].qpn);
    // The GPU is as usable as before.
    drop(rig);
    let rig = Rig::new(&gpu, false, &place, choice, LONG);
    let (failure, ended) = rig.put(SLOTS, 7, LONG);
    ended.unwrap();
    assert_eq!((failure, rig.arrived()[0]), (None, 7));
}
