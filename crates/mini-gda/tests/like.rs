//! Puts as a library makes them, on host threads through the software NIC: they arrive, whole or without a step, and
//! what goes wrong is an error in time.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod rig;

use std::time::{Duration, Instant};

use device::host::{LaunchError, launch_like};
use device::like::{Like, LikeArgs, Peer, Step};
use device::view::{Failure, QuietScope, Why};
use mini_gda::like::LikeGda;
use mini_gda::{GdaAttr, GdaError};
use rdma::soft::{Engine, Fabric, FabricAttr};
use rdma::{Access, Memory, Nic, Region};
use softnic::{FailWqe, Faults, Qpn};
use wire::cqe::Syndrome;

struct Rig {
    fabric: Fabric,
    near: Region,
    far: Region,
    gda: LikeGda,
}

#[derive(Clone, Copy)]
struct Ask {
    qps: u32,
    log_blocks: u32,
    start: u64,
    own_engine: bool,
    deadline: Duration,
    log_chunk: u32,
}

const ASK: Ask = Ask {
    qps: 1,
    log_blocks: 2,
    start: 0,
    own_engine: false,
    // Long: a loaded machine may keep a thread from running for a while.
    deadline: Duration::from_secs(60),
    log_chunk: mini_gda::like::LOG_CHUNK,
};

const WORDS: u64 = 512;

impl Rig {
    fn new(like: Like, ask: Ask) -> Self {
        let engine = if ask.own_engine { Engine::Thread { cpu: None } } else { Engine::Stepped };
        let config = rig::Options::default().config;
        let fabric =
            Fabric::open(&FabricAttr { nics: 2, engine, config, ..FabricAttr::default() }).unwrap();
        let bytes = 8 * WORDS as usize;
        let near = fabric.nic(0).register(&Memory::zeroed(bytes), Access::empty()).unwrap();
        let far = fabric.nic(1).register(&Memory::zeroed(bytes), Access::all()).unwrap();
        let attr = GdaAttr {
            qps: ask.qps,
            log_blocks: ask.log_blocks,
            start: ask.start,
            deadline: ask.deadline,
            ..GdaAttr::default()
        };
        let gda = LikeGda::connect_in_chunks(
            fabric.nic(0).as_ref(),
            fabric.nic(1).as_ref(),
            like,
            &LikeGda::attr(like, &attr),
            (&near, &far),
            ask.log_chunk,
        )
        .unwrap();
        Self { fabric, near, far, gda }
    }

    /// Each thread's failure; their samples' times are in order.
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
        let relax = self.gda.gda().relax(self.fabric.nic(0).as_ref() as &dyn Nic);
        // SAFETY: the arguments' memory outlives the launch.
        unsafe {
            launch_like(self.gda.like(), &args, &[], if driven { Some(&relax) } else { None })
        }
        .unwrap();
        assert!(issue.iter().zip(&total).all(|(issue, total)| issue <= total));
        let failures: Vec<_> = failure.into_iter().map(Failure::unpack).collect();
        if failures.iter().all(Option::is_none) {
            assert!(issue.iter().all(|ticks| *ticks > 0));
        }
        failures
    }

    /// `threads` threads put `samples` times each, to `slots` slots a thread; every slot holds the last value that goes
    /// to it.
    fn arrive(&self, threads: u32, slots: u64, samples: u64, scope: QuietScope) {
        let like = self.gda.like();
        let args = LikeArgs { threads, slots, samples, scope, ..self.gda.args() };
        let failures = self.run(args, true);
        assert!(failures.iter().all(Option::is_none), "{like}: {failures:?}");
        for thread in 0..u64::from(threads) {
            for slot in 0..slots.min(samples) {
                let last = slot + (samples - 1 - slot) / slots * slots;
                let seen = self.far_word(thread * slots + slot);
                assert_eq!(
                    seen,
                    1 + thread * samples + last,
                    "{like}: thread {thread}, slot {slot}"
                );
            }
        }
        let nic = self.fabric.nic(0);
        assert_eq!(nic.findings().unwrap(), [], "{like}: the NIC saw its client do wrong");
        assert_eq!(nic.counters().unwrap().wqes, u64::from(threads) * samples, "{like}");
    }

    fn far_word(&self, index: u64) -> u64 {
        self.far.memory.word(8 * index as usize).load(std::sync::atomic::Ordering::Acquire)
    }
}

fn peers() -> impl Iterator<Item = Peer> {
    Peer::ALL.iter().copied().filter(|peer| !peer.is_proxied())
}

/// Every put, whole and without each of its steps.
fn all() -> impl Iterator<Item = Like> {
    peers().flat_map(|peer| {
        let without = peer.steps().into_iter().map(move |step| Like::without(peer, step).unwrap());
        std::iter::once(Like::whole(peer)).chain(without)
    })
}

fn whole() -> impl Iterator<Item = Like> {
    peers().map(Like::whole)
}

/// First blocks shortly before indices of 16 and of 32 bits wrap.
fn starts(like: Like, log_blocks: u32) -> [u64; 3] {
    let laps = 2 << log_blocks;
    let before = |wrap: u64| wrap - if like.peer.is_gdaki() { laps } else { 3 };
    [0, before(1 << 16), before(1 << 32)]
}

#[test]
fn each_put_arrives_over_several_laps_of_its_queue() {
    for like in all() {
        for start in starts(like, ASK.log_blocks) {
            let rig = Rig::new(like, Ask { start, ..ASK });
            rig.arrive(1, 7, 50, like.peer.scope());
        }
    }
}

#[test]
fn a_counter_of_16_bits_wraps_unseen() {
    for like in whole() {
        Rig::new(like, Ask { log_blocks: 5, ..ASK }).arrive(
            1,
            3,
            (1 << 16) + 100,
            like.peer.scope(),
        );
    }
}

#[test]
fn threads_share_a_queue_that_is_always_full() {
    for like in whole().filter(|like| like.takes_more_threads()) {
        for own_engine in [false, true] {
            // DeepEP looks for no space: its queue is deeper than what is in flight.
            for (threads, log_blocks) in [(2, 2), (4, 2)] {
                for start in starts(like, log_blocks) {
                    let rig = Rig::new(like, Ask { log_blocks, start, own_engine, ..ASK });
                    rig.arrive(threads, 5, 2_000, QuietScope::One);
                }
            }
        }
    }
}

#[test]
fn a_quiet_of_all_queue_pairs_passes_over_those_that_nothing_went_to() {
    for like in all() {
        for start in starts(like, ASK.log_blocks) {
            let rig = Rig::new(like, Ask { qps: 3, start, ..ASK });
            rig.arrive(1, 3, 20, QuietScope::All);
        }
    }
}

#[test]
fn each_thread_has_the_queue_pair_of_its_number() {
    for like in whole() {
        let rig = Rig::new(like, Ask { qps: 3, ..ASK });
        rig.arrive(3, 3, 500, QuietScope::One);
    }
}

#[test]
fn a_put_over_the_end_of_a_chunk_is_several() {
    // 64 bytes a chunk at both ends.
    for like in whole().filter(|like| !like.peer.is_gdaki()) {
        let rig = Rig::new(like, Ask { log_chunk: 6, log_blocks: 4, ..ASK });
        for i in 0..WORDS {
            rig.near.memory.word(8 * i as usize).store(!i, std::sync::atomic::Ordering::Release);
        }
        let mut args = LikeArgs { bytes: 200, samples: 1, ..rig.gda.args() };
        args.local.address += 40;
        args.remote.address += 40;
        assert_eq!(rig.run(args, true), [None], "{like}");
        // Payload marks its first and its last word.
        for i in 0..WORDS {
            let due = match i {
                5 | 29 => 1,
                6..=28 => !i,
                _ => 0,
            };
            assert_eq!(rig.far_word(i), due, "{like}: word {i}");
        }
        // 24, 64, 64 and 48 bytes.
        assert_eq!(rig.fabric.nic(0).counters().unwrap().wqes, 4, "{like}");
    }
}

#[test]
fn what_lies_outside_of_the_heap_is_not_put() {
    for like in whole().filter(|like| !like.peer.is_gdaki()) {
        let rig = Rig::new(like, ASK);
        let mut args = LikeArgs { samples: 1, ..rig.gda.args() };
        args.remote.address += 8 * WORDS;
        let failure = rig.run(args, true)[0].unwrap();
        assert_eq!(failure.why, Why::BadOffset, "{like}");
        assert_eq!(rig.fabric.nic(0).counters().unwrap().wqes, 0);
    }
}

#[test]
fn a_failed_wqe_is_told_to_who_waits_for_it_and_for_those_behind_it() {
    const NTH: u64 = 6;
    for like in whole() {
        for start in starts(like, ASK.log_blocks) {
            let rig = Rig::new(like, Ask { start, ..ASK });
            let qpn = rig.gda.gda().views()[0].qpn;
            let fail = vec![FailWqe {
                qpn: Some(Qpn(qpn)),
                nth: NTH,
                syndrome: Syndrome::RemoteAccess,
                vendor: 0x5a,
            }];
            rig.fabric.nic(0).set_faults(Faults { fail, ..Faults::default() }).unwrap();
            let args = LikeArgs { slots: 16, samples: 16, ..rig.gda.args() };
            let failure = rig.run(args, true)[0].expect("an error was taken for done");
            assert_eq!((failure.why, failure.qpn), (Why::Completion, qpn), "{like}");
            assert_eq!(failure.index, (start + NTH) as u16, "{like}");
            assert_eq!((failure.syndrome, failure.vendor), (0x13, 0x5a), "{like}");
            for slot in 0..16 {
                let due = if slot < NTH { slot + 1 } else { 0 };
                assert_eq!(rig.far_word(slot), due, "{like}: slot {slot}");
            }
            // Whoever comes later is told as well.
            let args = LikeArgs { samples: 1, ..rig.gda.args() };
            assert!(rig.run(args, true)[0].is_some(), "{like}");
        }
    }
}

#[test]
fn a_wrong_key_is_the_nics_error() {
    for like in whole() {
        let rig = Rig::new(like, ASK);
        let far = &rig.far;
        let gone = Region::borrowed(far.memory.clone(), far.address, far.lkey, far.rkey ^ 0x10);
        let attr = GdaAttr { log_blocks: ASK.log_blocks, ..GdaAttr::default() };
        let gda = LikeGda::connect(
            rig.fabric.nic(0).as_ref(),
            rig.fabric.nic(1).as_ref(),
            like,
            &LikeGda::attr(like, &attr),
            &rig.near,
            &gone,
        )
        .unwrap();
        let rig = Rig { gda, ..rig };
        let args = LikeArgs { samples: 1, ..rig.gda.args() };
        let failure = rig.run(args, true)[0].unwrap();
        assert_eq!((failure.why, failure.syndrome), (Why::Completion, 0x13), "{like}");
    }
}

#[test]
fn a_failure_ends_every_thread_that_shares_the_queue() {
    for like in whole().filter(|like| like.takes_more_threads()) {
        let rig = Rig::new(like, Ask { deadline: Duration::from_millis(500), ..ASK });
        let fail = vec![FailWqe {
            qpn: None,
            nth: 150,
            syndrome: Syndrome::TransportRetryExceeded,
            vendor: 0,
        }];
        rig.fabric.nic(0).set_faults(Faults { fail, ..Faults::default() }).unwrap();
        let args = LikeArgs { threads: 3, slots: 100, samples: 100, ..rig.gda.args() };
        let args = LikeArgs { scope: QuietScope::One, ..args };
        let failures = rig.run(args, true);
        let arrived_of =
            |slots: std::ops::Range<u64>| slots.filter(|slot| rig.far_word(*slot) != 0).count();
        // One may have been through before: then all of its values are there.
        for (thread, failure) in (0..).zip(&failures) {
            let arrived = arrived_of(100 * thread..100 * thread + 100);
            assert_eq!(failure.is_none(), arrived == 100, "{like}: thread {thread}: {failure:?}");
        }
        let told = failures.iter().flatten().any(|failure| failure.why == Why::Completion);
        assert!(told, "{like}: {failures:?}");
        let arrived = arrived_of(0..300);
        assert_eq!(arrived, 150, "{like}");
    }
}

#[test]
fn a_nic_that_does_not_answer_is_a_deadline() {
    for like in all() {
        let rig = Rig::new(like, Ask { deadline: Duration::from_millis(20), ..ASK });
        let begun = Instant::now();
        let failure = rig.run(LikeArgs { samples: 3, ..rig.gda.args() }, false)[0].unwrap();
        assert_eq!(failure.why, Why::DeadlineCompletion, "{like}");
        assert!(begun.elapsed() < Duration::from_secs(20), "{like}");
    }
}

#[test]
fn a_thread_without_a_queue_pair_of_its_own_is_refused_where_it_needs_one() {
    for like in all().filter(|like| !like.takes_more_threads()) {
        let rig = Rig::new(like, ASK);
        let args = LikeArgs { threads: 2, slots: 2, samples: 4, ..rig.gda.args() };
        let whys: Vec<_> = rig.run(args, true).iter().map(|f| f.map(|f| f.why)).collect();
        assert_eq!(whys, [None, Some(Why::TooLarge)], "{like}");
    }
}

#[test]
fn a_step_that_a_put_has_not_can_not_be_left_out() {
    let refused = Like::without(Peer::GdakiExclusive, Step::Keys).unwrap_err();
    assert!(refused.known.contains(&"lock") && !refused.known.contains(&"keys"), "{refused}");
    // One that is made all the same isn't built.
    let like = Like { peer: Peer::GdakiExclusive, without: Some(Step::Keys) };
    let rig = Rig::new(like, ASK);
    // SAFETY: arguments without samples.
    let launched = unsafe { launch_like(like, &rig.gda.args(), &[], None) };
    assert!(matches!(launched, Err(LaunchError::LikeNotBuilt { .. })), "{launched:?}");
}

#[test]
fn queues_that_do_not_go_with_the_put_are_refused() {
    let like = Like::whole(Peer::Gdaki);
    let rig = Rig::new(like, ASK);
    let (near, far) = (rig.fabric.nic(0).as_ref(), rig.fabric.nic(1).as_ref());
    let connect = |attr: &GdaAttr, log_chunk| {
        LikeGda::connect_in_chunks(near, far, like, attr, (&rig.near, &rig.far), log_chunk)
            .err()
            .expect("refused")
    };
    let attr = LikeGda::attr(like, &GdaAttr::default());
    assert!(matches!(connect(&GdaAttr::default(), 29), GdaError::NotLike { .. }));
    let odd = GdaAttr { start: 1 << 10, ..attr.clone() };
    assert!(matches!(connect(&odd, 29), GdaError::LikeStart { start: 1024, multiple: 2048 }));
    let deep = GdaAttr { log_blocks: 16, ..attr.clone() };
    assert!(matches!(connect(&deep, 29), GdaError::LikeDepth { log_blocks: 16, most: 15 }));
    let proxied = Like::whole(Peer::Mscclpp);
    let refused =
        LikeGda::connect(near, far, proxied, &LikeGda::attr(proxied, &attr), &rig.near, &rig.far);
    assert!(matches!(refused.err(), Some(GdaError::LikeProxied { .. })));
    assert!(matches!(connect(&attr, 5), GdaError::LikeHeap { bytes: 4096, most: 2048 }));
}
