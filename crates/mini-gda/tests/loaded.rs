//! A probe beside background threads: each ends, with the probe's samples or with what it met.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod rig;

use std::time::{Duration, Instant};

use device::choice::{Choice, Sharing};
use device::host::Clock;
use device::loaded::{
    Args, CONTROL_WORDS, Choices, Load, LoadedArgs, PROGRESS_WORDS, VALUE_SHIFT, launch,
};
use device::view::{Failure, Remote, Why};
use mini_gda::{Gda, GdaAttr};
use rdma::Nic;
use rig::{Options, Rig};

const SHARED: Choice = Choice { sharing: Sharing::Thread, ..EXCLUSIVE };
const EXCLUSIVE: Choice = Choice {
    order: device::choice::Order::GpuRelease,
    sharing: Sharing::Exclusive,
    cq_kind: device::choice::CqKind::Collapsed,
    cq_load: device::choice::CqLoad::Acquire,
    ringing: device::choice::Ringing::Each,
    signalling: device::choice::Signalling::Every,
    transport: device::choice::Transport::Rc,
    checked: 0,
    max_blocks: 1,
};

/// Words of the probe's slots, of which there are four, in both regions.
const PROBE_WORDS: u64 = 4;

/// What a launch is asked for.
#[derive(Clone, Copy)]
struct Ask {
    probe: Choice,
    background_choice: Choice,
    background: u32,
    queues: u32,
    probe_queue: u32,
    window: u32,
    interval: u64,
    hold: u64,
    samples: u64,
}

const ASK: Ask = Ask {
    probe: SHARED,
    background_choice: SHARED,
    background: 2,
    queues: 1,
    probe_queue: 0,
    window: 4,
    interval: 0,
    hold: 0,
    samples: 40,
};

/// What it gave.
struct Gave {
    failures: Vec<Option<Why>>,
    done: Vec<u64>,
    carried: u64,
    total: Vec<u64>,
}

/// The first value of the launch's payloads.
const FIRST: u64 = 1000;

/// Launches over `gda`'s queue pairs; background threads have eight slots each, behind the probe's.
fn run(rig: &Rig, gda: &Gda, remote: Remote, ask: Ask) -> Gave {
    let n = ask.background as usize;
    let mut control = [0u64; CONTROL_WORDS];
    let mut progress = vec![0u64; n * PROGRESS_WORDS];
    let mut carried = [0u64; 4];
    let (mut done, mut failure) = (vec![u64::MAX; n], vec![u64::MAX; n + 1]);
    let (mut issue, mut total) =
        (vec![0u64; ask.samples as usize], vec![0u64; ask.samples as usize]);
    let args = LoadedArgs {
        qp: gda.device_views(),
        answer: std::ptr::null(),
        local: rig.local(0, 8 * (PROBE_WORDS + 8 * n as u64)),
        remote,
        answer_local: device::view::Local::default(),
        answer_remote: Remote::default(),
        load: Load {
            background: ask.background,
            queues: ask.queues,
            probe_queue: ask.probe_queue,
            bytes: 8,
            background_bytes: 8,
            window: ask.window,
            slots: PROBE_WORDS,
            stride: 8,
            background_at: 8 * PROBE_WORDS,
            background_slots: 8,
            background_stride: 8,
            interval: ask.interval,
            hold: ask.hold,
            warmup: 2,
            samples: ask.samples,
            first: FIRST,
            deadline: Clock::host().ticks(Duration::from_secs(60)),
            control: control.as_mut_ptr(),
            progress: progress.as_mut_ptr(),
            target: 0,
            inbox: std::ptr::null(),
            issue: issue.as_mut_ptr(),
            total: total.as_mut_ptr(),
            carried: carried.as_mut_ptr(),
            done: done.as_mut_ptr(),
            failure: failure.as_mut_ptr(),
            first_thread: 0,
            threads: 1 + ask.background,
        },
    };
    let choices = Choices::Gda { probe: ask.probe, background: ask.background_choice };
    let relax = gda.relax(rig.fabric.nic(0).as_ref() as &dyn Nic);
    // SAFETY: the arguments' memory outlives the launch and is as large as they say.
    unsafe { launch(&choices, Args::Gda(&args), &[], Some(&relax)) }.unwrap();
    let why = |word: &u64| Failure::unpack(*word).map(|failure| failure.why);
    let carried = carried[3] - carried[1];
    Gave { failures: failure.iter().map(why).collect(), done, carried, total }
}

fn queue_pairs(rig: &Rig, qps: u32) -> Gda {
    let attr =
        GdaAttr { qps, log_blocks: 3, deadline: Duration::from_secs(60), ..GdaAttr::default() };
    Gda::connect(rig.fabric.nic(0).as_ref(), rig.fabric.nic(1).as_ref(), &attr).unwrap()
}

fn remote(rig: &Rig) -> Remote {
    rig.remote(0, 8 * (PROBE_WORDS + 64))
}

#[test]
fn every_operation_arrives_whoever_shares_which_queue() {
    for (ask, queue_pairs_wanted) in [
        (ASK, 1),
        (Ask { background: 0, ..ASK }, 1),
        (Ask { queues: 2, background: 5, ..ASK }, 2),
        (Ask { probe: EXCLUSIVE, probe_queue: 1, background: 3, window: 1, ..ASK }, 2),
        (
            Ask {
                probe: EXCLUSIVE,
                background_choice: EXCLUSIVE,
                queues: 2,
                probe_queue: 2,
                ..ASK
            },
            3,
        ),
        (Ask { window: 64, interval: 1000, ..ASK }, 1),
        (Ask { samples: 0, hold: 1_000_000, ..ASK }, 1),
    ] {
        let rig = Rig::new(Options::default());
        let gda = queue_pairs(&rig, queue_pairs_wanted);
        let gave = run(&rig, &gda, remote(&rig), ask);
        assert_eq!(gave.failures, vec![None; ask.background as usize + 1]);
        let probed = 2 + ask.samples;
        for i in probed - PROBE_WORDS.min(probed)..probed {
            assert_eq!(rig.far_word(8 * (i % PROBE_WORDS)), FIRST + i);
        }
        for (b, done) in (0u64..).zip(&gave.done) {
            assert!(*done > 0, "background thread {b} posted nothing");
            let last = done - 1;
            let at = 8 * (PROBE_WORDS + 8 * b + last % 8);
            assert_eq!(rig.far_word(at), FIRST + ((b + 1) << VALUE_SHIFT) + last);
        }
        let background: u64 = gave.done.iter().sum();
        assert!(gave.carried <= background);
        assert_eq!(rig.wqes(), probed + background, "every WQE was executed once");
        assert!(gave.total.iter().all(|ticks| *ticks > 0));
    }
}

#[test]
fn nobody_posts_faster_than_his_pace_however_late_he_is() {
    let rig = Rig::new(Options::default());
    let gda = queue_pairs(&rig, 1);
    let clock = Clock::host();
    let interval = clock.ticks(Duration::from_millis(2));
    let hold = clock.ticks(Duration::from_millis(30));
    let began = Instant::now();
    let ask = Ask { interval, hold, background: 3, samples: 200, ..ASK };
    let gave = run(&rig, &gda, remote(&rig), ask);
    let most = clock.ticks(began.elapsed()) / interval + 1;
    assert_eq!(gave.failures, [None; 4]);
    assert!(gave.done.iter().all(|done| (1..=most).contains(done)), "{:?} of {most}", gave.done);
}

#[test]
fn a_choice_for_one_thread_on_a_shared_queue_posts_nothing() {
    for ask in [
        Ask { probe: EXCLUSIVE, ..ASK },
        Ask { probe: EXCLUSIVE, background_choice: EXCLUSIVE, probe_queue: 1, ..ASK },
    ] {
        let rig = Rig::new(Options::default());
        let gda = queue_pairs(&rig, 2);
        let gave = run(&rig, &gda, remote(&rig), ask);
        assert_eq!(gave.failures, [Some(Why::TooLarge); 3]);
        assert_eq!(rig.wqes(), 0);
    }
}

#[test]
fn a_queue_pair_in_error_ends_probe_and_background() {
    for interval in [0, 1000] {
        let rig = Rig::new(Options::default());
        let gda = queue_pairs(&rig, 1);
        let wrong = Remote { rkey: !remote(&rig).rkey, ..remote(&rig) };
        let gave = run(&rig, &gda, wrong, Ask { interval, ..ASK });
        assert_eq!(gave.failures, [Some(Why::Completion); 3]);
    }
}
