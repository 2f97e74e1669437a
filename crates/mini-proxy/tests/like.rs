//! Puts that are handed to a CPU as a library does, by host threads: they arrive, whole or without a step, and what goes
//! wrong is an error in time.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;
use std::time::{Duration, Instant};

use device::cuda::{CudaError, Gpu, Place, Prepared};
use device::host::launch_like;
use device::like::{Like, LikeArgs, Peer, Step};
use device::shared::Shared;
use device::view::{Failure, Why};
use mini_proxy::like::{LikeProxy, LikeProxyAttr};
use mini_proxy::{Drive, ProxyError};
use rdma::soft::{Engine, Fabric, FabricAttr, SoftNic};
use rdma::{Access, Memory, Nic, Region, memory};
use softnic::{FailWqe, Faults};
use wire::cqe::Syndrome;

struct Rig {
    proxy: LikeProxy,
    near: Arc<SoftNic>,
    local: Region,
    far: Region,
    _fabric: Fabric,
}

const WORDS: u64 = 1024;

/// A small queue, a worker that whoever waits steps.
fn attr() -> LikeProxyAttr {
    LikeProxyAttr {
        log_depth: Some(2),
        log_blocks: 2,
        // Long: a loaded machine may keep a thread from running for a while.
        deadline: Duration::from_secs(60),
        ..LikeProxyAttr::default()
    }
}

fn threads() -> LikeProxyAttr {
    LikeProxyAttr { drive: Drive::Threads { cpus: Vec::new() }, ..attr() }
}

impl Rig {
    fn new(like: Like, attr: &LikeProxyAttr) -> Self {
        let engine = if attr.drive == Drive::Stepped {
            Engine::Stepped
        } else {
            Engine::Thread { cpu: None }
        };
        let fabric = Fabric::open(&FabricAttr { engine, ..FabricAttr::default() }).unwrap();
        let (near, far_nic) = (fabric.nic(0).clone(), fabric.nic(1).clone());
        let bytes = 8 * WORDS as usize;
        let local = near.register(&Memory::zeroed(bytes), Access::empty()).unwrap();
        let far = far_nic.register(&Memory::zeroed(bytes), Access::all()).unwrap();
        let proxy =
            LikeProxy::connect(near.clone(), far_nic.as_ref(), like, attr, &local, &far).unwrap();
        Self { proxy, near, local, far, _fabric: fabric }
    }

    fn run(&self, args: LikeArgs, driven: bool) -> Vec<Option<Failure>> {
        let n = args.threads as usize;
        let samples = n * args.samples as usize;
        let (mut issue, mut total) = (vec![0; samples], vec![0; samples]);
        let mut failure = vec![u64::MAX; n];
        let args = LikeArgs {
            issue: issue.as_mut_ptr(),
            total: total.as_mut_ptr(),
            failure: failure.as_mut_ptr(),
            ..args
        };
        self.proxy.expect(&args);
        let relax = self.proxy.relax();
        // SAFETY: the arguments' memory outlives the launch.
        unsafe {
            launch_like(self.proxy.like(), &args, &[], if driven { Some(&relax) } else { None })
        }
        .unwrap();
        assert!(issue.iter().zip(&total).all(|(issue, total)| issue <= total));
        failure.into_iter().map(Failure::unpack).collect()
    }

    /// `threads` threads put `samples` times each; every one of their slots holds the last value that goes to it.
    fn arrive(&self, threads: u32, slots: u64, samples: u64, first: u64) {
        let like = self.proxy.like();
        let args = LikeArgs { threads, slots, samples, first, ..self.proxy.args() };
        let failures = self.run(args, true);
        assert!(failures.iter().all(Option::is_none), "{like}: {failures:?}");
        for thread in 0..u64::from(threads) {
            for slot in 0..slots.min(samples) {
                let last = slot + (samples - 1 - slot) / slots * slots;
                let seen = self.far_word(thread * slots + slot);
                let due = first + thread * samples + last;
                assert_eq!(seen, due, "{like}: thread {thread}, slot {slot}");
            }
        }
        assert_eq!(self.near.findings().unwrap(), [], "{like}: the NIC saw its client do wrong");
    }

    fn wqes(&self) -> u64 {
        self.near.counters().unwrap().wqes
    }

    fn far_word(&self, index: u64) -> u64 {
        self.far.memory.word(8 * index as usize).load(Acquire)
    }

    fn fail(&self, nth: u64) {
        let fail = vec![FailWqe { qpn: None, nth, syndrome: Syndrome::RemoteAccess, vendor: 0x5a }];
        self.near.set_faults(Faults { fail, ..Faults::default() }).unwrap();
    }
}

fn whole() -> impl Iterator<Item = Like> {
    Peer::ALL.iter().copied().filter(|peer| peer.is_proxied()).map(Like::whole)
}

/// Every put, whole and without each of its steps.
fn all() -> impl Iterator<Item = Like> {
    whole().flat_map(|like| {
        let steps = like.peer.steps().into_iter();
        let without = steps.map(move |step| Like::without(like.peer, step).unwrap());
        std::iter::once(like).chain(without)
    })
}

/// First positions shortly before indices of 16 and of 32 bits wrap.
const STARTS: [u64; 3] = [0, (1 << 16) - 3, (1 << 32) - 5];

#[test]
fn each_put_arrives_over_several_laps_of_its_queue() {
    for like in all() {
        for start in STARTS {
            let rig = Rig::new(like, &LikeProxyAttr { start, ..attr() });
            rig.arrive(1, 7, 50, 1);
            assert_eq!(rig.wqes(), 50, "{like}");
            // The next launch goes on where this one ended.
            rig.arrive(1, 5, 23, 1000);
            assert_eq!(rig.wqes(), 73, "{like}");
        }
    }
}

#[test]
fn a_librarys_own_depth_is_what_it_has_without_another() {
    for like in whole() {
        let own = LikeProxyAttr { log_depth: None, ..threads() };
        Rig::new(like, &own).arrive(1, 7, 3_000, 1);
    }
}

#[test]
fn threads_share_queues_that_are_always_full() {
    for like in whole().filter(|like| like.takes_more_threads()) {
        for base in [attr(), threads()] {
            for start in STARTS {
                let attr =
                    LikeProxyAttr { start, log_depth: Some(1), producers: 3, ..base.clone() };
                let rig = Rig::new(like, &attr);
                rig.arrive(3, 5, 300, 1);
                assert_eq!(rig.wqes(), 900, "{like}");
            }
        }
    }
}

#[test]
fn more_threads_than_a_library_has_queues_share_them() {
    let like = Like::whole(Peer::UcclEp);
    let rig = Rig::new(like, &LikeProxyAttr { producers: 40, ..attr() });
    rig.arrive(40, 2, 20, 1);
}

#[test]
fn a_flag_is_one_threads() {
    let like = Like::whole(Peer::FabricLib);
    for base in [attr(), threads()] {
        let rig = Rig::new(like, &LikeProxyAttr { producers: 3, ..base });
        rig.arrive(3, 5, 500, 1);
        let args = LikeArgs { threads: 4, slots: 5, samples: 10, ..rig.proxy.args() };
        let whys: Vec<_> = rig.run(args, true).iter().map(|f| f.map(|f| f.why)).collect();
        assert_eq!(whys, [None, None, None, Some(Why::TooLarge)]);
    }
}

#[test]
fn without_a_step_a_second_thread_is_refused() {
    for like in all().filter(|like| like.without.is_some()) {
        let rig = Rig::new(like, &attr());
        let args = LikeArgs { threads: 2, slots: 2, samples: 4, ..rig.proxy.args() };
        let whys: Vec<_> = rig.run(args, true).iter().map(|f| f.map(|f| f.why)).collect();
        assert_eq!(whys, [None, Some(Why::TooLarge)], "{like}");
    }
}

#[test]
fn payloads_and_their_places_come_over_whole() {
    for like in whole() {
        let rig = Rig::new(like, &attr());
        for i in 0..WORDS {
            rig.local.memory.word(8 * i as usize).store(!i, std::sync::atomic::Ordering::Release);
        }
        let mut args = LikeArgs { bytes: 328, samples: 1, ..rig.proxy.args() };
        args.local.address += 8 * 100;
        args.remote.address += 8 * 900;
        assert_eq!(rig.run(args, true), [None], "{like}");
        for i in 0..WORDS {
            // The first and the last word are payload marks.
            let due = match i {
                900 | 940 => 1,
                901..940 => !(i - 800),
                _ => 0,
            };
            assert_eq!(rig.far_word(i), due, "{like}: word {i}");
        }
    }
}

#[test]
fn a_failed_request_is_told_and_nothing_behind_it_is_done() {
    const NTH: u64 = 6;
    for like in whole() {
        for base in [attr(), threads()] {
            let rig = Rig::new(like, &base);
            rig.fail(NTH);
            let args = LikeArgs { slots: 16, samples: 16, ..rig.proxy.args() };
            let failure = rig.run(args, true)[0].expect("an error was taken for done");
            assert_eq!((failure.why, failure.syndrome), (Why::Completion, 0x13), "{like}");
            assert_eq!((failure.index, failure.vendor), (NTH as u16, 0x5a), "{like}");
            for slot in 0..16 {
                let due = if slot < NTH { slot + 1 } else { 0 };
                assert_eq!(rig.far_word(slot), due, "{like}: slot {slot}");
            }
            let told = rig.proxy.check(failure.pack()).unwrap_err().to_string();
            assert!(told.contains("the NIC says"), "{told}");
            // Whoever comes later is told as well.
            assert!(rig.run(LikeArgs { samples: 1, ..args }, true)[0].is_some(), "{like}");
        }
    }
}

#[test]
fn a_failure_ends_every_thread() {
    for like in whole() {
        let rig = Rig::new(like, &LikeProxyAttr { producers: 3, ..attr() });
        rig.fail(150);
        let args = LikeArgs { threads: 3, slots: 100, samples: 100, ..rig.proxy.args() };
        let failures = rig.run(args, true);
        for (thread, failure) in (0..).zip(&failures) {
            let slots = 100 * thread..100 * thread + 100;
            let arrived = slots.filter(|slot| rig.far_word(*slot) != 0).count();
            // One may have been through before, or not been told of its last.
            assert!(failure.is_some() || arrived == 100, "{like}: thread {thread}: {failure:?}");
        }
        assert!(failures.iter().any(Option::is_some), "{like}");
    }
}

#[test]
fn what_lies_outside_of_a_region_is_an_error() {
    for like in whole() {
        let rig = Rig::new(like, &attr());
        let mut args = LikeArgs { samples: 1, ..rig.proxy.args() };
        args.remote.address += 8 * WORDS;
        assert_eq!(rig.run(args, true)[0].unwrap().why, Why::BadOffset, "{like}");
        assert_eq!(rig.wqes(), 0, "{like}");
    }
}

#[test]
fn a_worker_that_does_not_come_is_a_deadline() {
    for like in all() {
        let rig = Rig::new(like, &LikeProxyAttr { deadline: Duration::from_millis(20), ..attr() });
        let failure = rig.run(LikeArgs { samples: 3, ..rig.proxy.args() }, false)[0].unwrap();
        assert_eq!(failure.why, Why::DeadlineCompletion, "{like}");
        assert_eq!(rig.wqes(), 0, "{like}");
    }
}

#[test]
fn a_queue_that_stays_full_is_a_deadline_that_says_so() {
    for like in whole().filter(|like| like.takes_more_threads()) {
        let deadline = Duration::from_millis(50);
        let attr = LikeProxyAttr { deadline, log_depth: Some(1), ..attr() };
        let rig = Rig::new(like, &attr);
        // Each gives up with its request, and its flush, in the queue.
        let whys: Vec<_> = (0..4)
            .map(|_| rig.run(LikeArgs { samples: 1, ..rig.proxy.args() }, false)[0].unwrap().why)
            .collect();
        assert_eq!(whys[0], Why::DeadlineCompletion, "{like}");
        assert_eq!(whys[3], Why::DeadlineSpace, "{like}");
    }
}

#[test]
fn a_proxy_that_is_stopped_tells_who_waits() {
    for like in whole() {
        let rig = Rig::new(like, &attr());
        rig.proxy.stop();
        let failure = rig.run(LikeArgs { samples: 1, ..rig.proxy.args() }, true)[0].unwrap();
        assert_eq!(failure.why, Why::ProxyStopped, "{like}");
    }
}

#[test]
fn what_does_not_go_together_is_refused() {
    let like = Like::whole(Peer::Mscclpp);
    let rig = Rig::new(like, &attr());
    let refused = |like, attr: &LikeProxyAttr, far: &Region| {
        LikeProxy::connect(rig.near.clone(), rig.near.as_ref(), like, attr, &rig.local, far)
            .err()
            .expect("refused")
    };
    let gda = refused(Like::whole(Peer::Gdaki), &attr(), &rig.far);
    assert!(matches!(gda, ProxyError::NotProxied { .. }), "{gda}");
    let nobody = refused(like, &LikeProxyAttr { producers: 0, ..attr() }, &rig.far);
    assert!(matches!(nobody, ProxyError::NoProducers), "{nobody}");
    for log_depth in [0, 21, 99] {
        let depth = LikeProxyAttr { log_depth: Some(log_depth), ..attr() };
        let error = refused(like, &depth, &rig.far);
        assert!(matches!(error, ProxyError::RingDepth { .. }), "{error}");
    }
    let mut huge = rig.far.clone();
    huge.length = (1 << 31) + 1;
    let error = refused(like, &attr(), &huge);
    assert!(matches!(error, ProxyError::LikeOffsets { bits: 31, .. }), "{error}");
}

fn gpu() -> Option<Arc<Gpu>> {
    match Gpu::open(0) {
        Ok(gpu) => Some(gpu),
        Err(error @ (CudaError::NoDriver | CudaError::NoDevice { .. }))
            if std::env::var_os("GICBENCH_REQUIRE_GPU").is_none() =>
        {
            let reason = format!("mini-proxy on a GPU: {error}");
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

/// By three threads of different blocks where the put is made for them.
#[test]
fn gpu_threads_puts_arrive() {
    const SAMPLES: u64 = 200;
    let Some(gpu) = gpu() else { return };
    for like in all() {
        let pinned = Place::Pinned(Arc::clone(&gpu));
        let own = Place::Gpu(Arc::clone(&gpu));
        let engine = Engine::Thread { cpu: None };
        let fabric = Fabric::open(&FabricAttr { engine, ..FabricAttr::default() }).unwrap();
        let (near, far_nic) = (fabric.nic(0).clone(), fabric.nic(1).clone());
        let region = |nic: &SoftNic| {
            nic.register(&memory(&pinned, 8 * WORDS as usize).unwrap(), Access::all()).unwrap()
        };
        let (local, far) = (region(&near), region(&far_nic));
        let threads = if like.takes_more_threads() { 3 } else { 1 };
        let attr = LikeProxyAttr {
            log_depth: Some(2),
            producers: threads,
            drive: Drive::Threads { cpus: Vec::new() },
            deadline: Duration::from_secs(20),
            rings_in: pinned.clone(),
            state: own.clone(),
            clock: gpu.clock().unwrap(),
            ..LikeProxyAttr::default()
        };
        let proxy = LikeProxy::connect(near, far_nic.as_ref(), like, &attr, &local, &far).unwrap();
        let words = |n: usize| Shared::at(&own, &vec![0u64; n]).unwrap();
        let (ticks, failure) = (words(2 * 3 * SAMPLES as usize), words(3));
        let args = LikeArgs {
            threads,
            slots: 5,
            samples: SAMPLES,
            issue: ticks.as_ptr(),
            total: ticks.as_ptr().wrapping_add(3 * SAMPLES as usize),
            failure: failure.as_ptr(),
            ..proxy.args()
        };
        proxy.expect(&args);
        let prepared = Prepared::like(&gpu, like, proxy.constant()).unwrap();
        let until = Instant::now() + Duration::from_secs(30);
        // SAFETY: all that the addresses lead to outlives the launch.
        unsafe { prepared.run_like(&args, None, until, &|| false) }.unwrap();
        let failures: Vec<_> = failure.read().unwrap().into_iter().map(Failure::unpack).collect();
        assert_eq!(failures, [None; 3], "{like}");
        // Others order their payload for the GPU alone, or not at all.
        let ordered = matches!(like.peer, Peer::GinProxy | Peer::Mscclpp | Peer::UcclEp);
        if !ordered || like.without == Some(Step::PayloadOrder) {
            continue;
        }
        for thread in 0..u64::from(threads) {
            for slot in 0..5 {
                let seen = far.memory.word(8 * (5 * thread + slot) as usize).load(Acquire);
                let due = 1 + thread * SAMPLES + SAMPLES - 5 + slot;
                assert_eq!(seen, due, "{like}: thread {thread}, slot {slot}");
            }
        }
    }
}
