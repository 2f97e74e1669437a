//! Runs of small writes: what happens in the middle of one.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod rig;

use rig::*;
use softnic::*;
use wire::cqe::{CqeOpcode, Syndrome};
use wire::wqe::{CtrlFlags, Opcode, Raddr};

/// Posts `n` writes of a word each, a completion for every `every`-th; the value tells the index.
fn post(rig: &mut Rig, n: u64, every: u64) {
    for i in 0..n {
        let flags = if (i + 1) % every == 0 { CtrlFlags::CQ_UPDATE } else { CtrlFlags::NONE };
        let (to, value) = (REMOTE + i * 8, (i + 1).to_le_bytes());
        rig.a.write_inline(to, rig.b.keys.rkey, &value, flags);
    }
    rig.a.ring();
}

fn words(rig: &Rig, n: usize) -> Vec<u64> {
    (0..n).map(|i| rig.b.memory.word(i * 8).load(RELAXED)).collect()
}

fn counters(rig: &mut Rig) -> Vec<u16> {
    let cqes = rig.a.poll_all();
    assert!(cqes.iter().all(|cqe| cqe.opcode() == Some(CqeOpcode::Requester)), "{cqes:?}");
    cqes.iter().map(|cqe| cqe.wqe_counter.get()).collect()
}

#[test]
fn runs_go_on_across_every_wrap() {
    for (sq_start, psn) in [(0xffe0, 0xff_fff0), (0xffff_ffe0, 0xff_ffc1), (u64::MAX >> 1, 5)] {
        let mut rig = Rig::with(Options { sq_start, psn, ..Options::default() });
        post(&mut rig, 64, 16);
        rig.run();
        assert_eq!(words(&rig, 64), (1..=64).collect::<Vec<_>>(), "{sq_start:#x}");
        let last = |nth: u64| sq_start.wrapping_add(nth * 16 - 1) as u16;
        assert_eq!(counters(&mut rig), [1, 2, 3, 4].map(last), "{sq_start:#x}");
        assert!(rig.nics[0].findings().is_empty());
    }
}

#[test]
fn a_run_whose_packets_are_lost_is_sent_again_from_where_it_broke() {
    for seed in 0..10 {
        for every in [1, 5, 32, 64] {
            let mut rig = Rig::with(Options { retry_cnt: 7, ..Options::default() });
            // The peer loses packets; the requester, which knows nothing of it, sends runs.
            let faults = Faults { drop_random: Some((8, seed)), ..Faults::default() };
            rig.nics[1].set_faults(faults);
            post(&mut rig, 64, every);
            rig.run();
            let name = format!("seed {seed}, every {every}. signalled");
            assert_eq!(words(&rig, 64), (1..=64).collect::<Vec<_>>(), "{name}");
            let expected: Vec<u16> = (1..=64 / every).map(|nth| (nth * every - 1) as u16).collect();
            assert_eq!(counters(&mut rig), expected, "{name}");
            assert!(rig.nics[1].counters().dropped > 0);
        }
    }
}

#[test]
fn a_run_that_was_sent_twice_is_executed_once() {
    let mut rig = Rig::new();
    rig.nics[1].set_faults(Faults { paused: true, ..Faults::default() });
    post(&mut rig, 32, 32);
    rig.steps(1);
    // The acknowledgement is overdue: all of it goes behind what the peer hasn't looked at yet.
    rig.now += 10_000_000;
    rig.steps(2);
    assert_eq!(rig.nics[0].counters().timeouts, 1);
    rig.nics[1].set_faults(Faults::default());
    rig.run();
    post(&mut rig, 20, 20);
    rig.run();
    assert_eq!(counters(&mut rig), [31, 51]);
    assert_eq!(rig.nics[1].counters().requests, 32 + 32 + 20);
    assert_eq!(rig.nics[0].counters().timeouts, 1);
}

#[test]
fn a_refused_write_in_a_run_fails_alone_and_the_rest_is_flushed() {
    for bad in [0, 1, 17, 30, 31] {
        let mut rig = Rig::new();
        for i in 0..32u64 {
            let flags = if i == 31 { CtrlFlags::CQ_UPDATE } else { CtrlFlags::NONE };
            let to = if i == bad { REMOTE + REGION as u64 } else { REMOTE + i * 8 };
            rig.a.write_inline(to, rig.b.keys.rkey, &(i + 1).to_le_bytes(), flags);
        }
        rig.a.ring();
        rig.run();
        let cqes = rig.a.poll_all();
        let failed = &cqes[0];
        assert_eq!(
            (failed.wqe_counter.get(), cause(failed)),
            (bad as u16, (Syndrome::RemoteAccess as u8, Check::RemoteBounds as u8))
        );
        let flushed: Vec<_> = cqes[1..].iter().map(|cqe| cqe.wqe_counter.get()).collect();
        assert_eq!(flushed, (bad as u16 + 1..32).collect::<Vec<_>>());
        let placed: Vec<_> = (0..32).map(|i| if i < bad { i + 1 } else { 0 }).collect();
        assert_eq!(words(&rig, 32), placed);
    }
}

#[test]
fn a_slot_reused_before_its_completion_is_named_when_it_is_sent_again() {
    for check in [Check::InlineLength, Check::WqeChanged] {
        let mut rig = Rig::new();
        rig.nics[1].set_faults(Faults { port_down: true, ..Faults::default() });
        post(&mut rig, 32, 32);
        rig.steps(2);
        // Slot 9 was sent, and lost.
        let (at, word) = match check {
            Check::WqeChanged => (0, 9 << 8 | u32::from(Opcode::Nop as u8)),
            _ => (32, 0x8000_0000 | 5_000),
        };
        rig.a.sq.half(9 * 64 + at).store(u32::to_be(word), RELAXED);
        rig.nics[1].set_faults(Faults::default());
        rig.run();
        let cqes = rig.a.poll_all();
        assert_eq!(cqes[0].wqe_counter.get(), 9);
        assert_eq!(cause(&cqes[0]), (check.syndrome() as u8, check as u8));
        assert_eq!(cqes.len(), 32 - 9);
        assert_eq!(words(&rig, 10), [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]);
    }
}

#[test]
fn a_peer_that_never_answers_a_run_fails_its_first_write() {
    let mut rig = Rig::new();
    rig.nics[1].set_faults(Faults { port_down: true, ..Faults::default() });
    post(&mut rig, 32, 32);
    rig.run();
    let cqes = rig.a.poll_all();
    let counters: Vec<_> = cqes.iter().map(|cqe| cqe.wqe_counter.get()).collect();
    assert_eq!(counters, (0..32).collect::<Vec<_>>());
    assert_eq!(cause(&cqes[0]).1, Check::TransportRetry as u8);
    assert!(cqes[1..].iter().all(|cqe| cause(cqe).0 == Syndrome::Flushed as u8));
}

#[test]
fn small_writes_of_any_length_and_source_mix_in_a_run() {
    let mut rig = Rig::new();
    let source: Vec<u8> = (0..64).map(|i| i + 100).collect();
    rig.a.memory.write(1000, &source).unwrap();
    let mut expected = vec![0; 64 * 40];
    for i in 0..40usize {
        let len = i % 34;
        // An odd place now and then.
        let to = i * 64 + i % 3;
        if i % 2 == 0 {
            let bytes = &source[..len.min(28)];
            rig.a.write_inline(REMOTE + to as u64, rig.b.keys.rkey, bytes, CtrlFlags::NONE);
            expected[to..to + bytes.len()].copy_from_slice(bytes);
        } else {
            let raddr = Raddr::new(REMOTE + to as u64, rig.b.keys.rkey);
            let data = [rig.a.data(1000 + i as u64 % 5, len as u32)];
            rig.a.post(Opcode::RdmaWrite, CtrlFlags::NONE, 0, Some(raddr), &data);
            expected[to..to + len].copy_from_slice(&source[i % 5..i % 5 + len]);
        }
    }
    rig.a.write_wqe(Opcode::Nop, CtrlFlags::CQ_UPDATE, 0, &[]);
    rig.a.ring();
    rig.run();
    assert_eq!(rig.b.bytes(0, expected.len()), expected);
    assert_eq!(counters(&mut rig), [40]);
}
