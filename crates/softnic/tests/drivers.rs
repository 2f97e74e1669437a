//! Engines: a thread, several threads, or whoever waits.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod rig;

use std::sync::Arc;
use std::time::{Duration, Instant};

use rig::*;
use softnic::*;
use wire::cqe::CqeOpcode;
use wire::wqe::CtrlFlags;

/// Without any progress.
const PATIENCE: Duration = Duration::from_secs(60);

/// No acknowledgement is overdue, however long the machine keeps an engine waiting.
fn patient() -> Rig {
    Rig::with(Options { timeout: 0, ..Options::default() })
}

/// Posts `count` writes in batches and polls for all completions.
fn exchange(a: &mut Side, rkey: u32, count: u64, mut wait: impl FnMut()) {
    let mut progress = Instant::now();
    let (mut posted, mut done) = (0, 0);
    while done < count {
        while posted < count && posted - done < 32 {
            a.write_inline(
                REMOTE + posted % 512 * 8,
                rkey,
                &posted.to_le_bytes(),
                CtrlFlags::CQ_UPDATE,
            );
            posted += 1;
        }
        a.ring();
        wait();
        for cqe in a.poll_all() {
            assert_eq!(cqe.opcode(), Some(CqeOpcode::Requester));
            assert_eq!(cqe.wqe_counter.get(), done as u16);
            done += 1;
            progress = Instant::now();
        }
        assert!(progress.elapsed() < PATIENCE, "{done} of {count} done");
    }
}

#[test]
fn an_engine_thread_serves_and_is_controlled() {
    let Rig { nics, mut a, b, .. } = patient();
    let engine = SoftNics::spawn(nics, EngineOptions::default()).unwrap();
    exchange(&mut a, b.keys.rkey, 70_000, std::thread::yield_now);
    let done = engine.control(1, |nic| nic.counters().completed).unwrap();
    assert_eq!(done, 70_000);
    let dropped = engine.control(9, |nic| nic.id());
    assert_eq!(dropped, Err(EngineGone::NoSuchNic { id: 9 }));
    engine.stop();
    assert_eq!(engine.control(1, |nic| nic.id()), Err(EngineGone::Stopped));
    assert_eq!(b.memory.word(0).load(RELAXED) % 512, 0);
}

#[test]
fn two_engines_in_two_threads_are_linked() {
    let Rig { mut nics, mut a, b, .. } = patient();
    let second = nics.pop().unwrap();
    let engines =
        [nics, vec![second]].map(|n| SoftNics::spawn(n, EngineOptions::default()).unwrap());
    exchange(&mut a, b.keys.rkey, 20_000, std::thread::yield_now);
    assert_eq!(engines[1].control(2, |nic| nic.counters().timeouts).unwrap(), 0);
}

#[test]
fn whoever_waits_may_step() {
    let Rig { nics, mut a, b, .. } = patient();
    let engine = SoftNics::stepped(nics, Clock::Real);
    assert!(engine.is_stepped());
    exchange(&mut a, b.keys.rkey, 10_000, || {
        engine.try_step(64);
    });
    assert_eq!(engine.control(2, |nic| nic.findings().len()), Ok(0));
}

#[test]
fn several_waiters_step_without_waiting_for_each_other() {
    let Rig { nics, mut a, b, .. } = patient();
    let engine = SoftNics::stepped(nics, Clock::Real);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let (engine, stop) = (engine.clone(), &stop);
            scope.spawn(move || {
                while !stop.load(RELAXED) {
                    engine.try_step(64);
                    std::thread::yield_now();
                }
            });
        }
        exchange(&mut a, b.keys.rkey, 5_000, || {
            engine.try_step(64);
        });
        stop.store(true, RELAXED);
    });
}

#[test]
fn virtual_time_jumps_when_there_is_nothing_to_do() {
    let hour = 3_600_000_000_000;
    let profile = Profile { latency_ns: hour, ..Profile::NONE };
    let config = NicConfig { profile, ..NicConfig::default() };
    let Rig { nics, mut a, b, .. } =
        Rig::with(Options { timeout: 0, config, ..Options::default() });
    let engine = SoftNics::stepped(nics, Clock::Virtual);
    exchange(&mut a, b.keys.rkey, 32, || {
        engine.try_step(64);
    });
    assert_eq!(engine.now(), 2 * hour);
}

#[test]
fn a_panic_reaches_whoever_asks() {
    for stepped in [false, true] {
        let nics = vec![Nic::new(NicConfig::default())];
        let engine = if stepped {
            SoftNics::stepped(nics, Clock::Real)
        } else {
            SoftNics::spawn(nics, EngineOptions::default()).unwrap()
        };
        let expected = EngineGone::Panicked { message: "a hand slipped".to_owned() };
        let first: Result<(), _> = engine.control(0, |_| panic!("a hand slipped"));
        assert_eq!(first, Err(expected.clone()));
        assert_eq!(engine.control(0, |nic| nic.id()), Err(expected.clone()));
        assert_eq!(engine.gone(), Some(expected));
    }
}

#[test]
fn the_last_handle_ends_the_engine() {
    let mut nic = Nic::new(NicConfig::default());
    let page = Memory::zeroed(4096);
    nic.alloc_uar(page.dma()).unwrap();
    let engine = SoftNics::spawn(vec![nic], EngineOptions::default()).unwrap();
    let other = engine.clone();
    drop(engine);
    assert_eq!(other.control(0, |nic| nic.id()), Ok(0));
    drop(other);
    assert_eq!(Arc::strong_count(&page), 1, "the engine still has the page");
}
