//! Loss, retries, receives that come late, fences, and placement behind the completion.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod rig;

use rig::*;
use softnic::*;
use wire::cqe::{CqeOpcode, Syndrome};
use wire::wqe::{CtrlFlags, Opcode, Raddr};
use zerocopy::IntoBytes;

fn add(rig: &mut Rig, at: u64, value: u64, result: u64, flags: CtrlFlags) {
    let mut body = Raddr::new(REMOTE + at, rig.b.keys.rkey).as_bytes().to_vec();
    body.extend_from_slice(&value.to_be_bytes());
    body.extend_from_slice(&[0; 8]);
    body.extend_from_slice(rig.a.data(result, 8).as_bytes());
    rig.a.write_wqe(Opcode::AtomicFa, flags, 0, &body);
}

fn lossy(faults: Faults) -> Options {
    Options {
        retry_cnt: 7,
        config: NicConfig { faults, ..NicConfig::default() },
        ..Options::default()
    }
}

#[test]
fn everything_happens_exactly_once_though_packets_are_lost() {
    for seed in 0..20 {
        let faults = Faults { drop_random: Some((5, seed)), ..Faults::default() };
        let mut rig = Rig::with(lossy(faults));
        let source: Vec<u8> = (0..30_000).map(|i| (i % 241) as u8).collect();
        rig.a.memory.write(40_000, &source).unwrap();
        rig.b.memory.write(100_000, &source).unwrap();
        let mut sum = 0;
        for i in 1..=12u64 {
            add(&mut rig, 0, i, 1024 + i * 8, CtrlFlags::NONE);
            sum += i;
        }
        let raddr = Raddr::new(REMOTE + 8, rig.b.keys.rkey);
        let part = [rig.a.data(40_000, 30_000)];
        rig.a.post(Opcode::RdmaWrite, CtrlFlags::NONE, 0, Some(raddr), &part);
        let raddr = Raddr::new(REMOTE + 100_000, rig.b.keys.rkey);
        let part = [rig.a.data(80_000, 30_000)];
        rig.a.post(Opcode::RdmaRead, CtrlFlags::NONE, 0, Some(raddr), &part);
        for i in 0..3 {
            let receive = [rig.b.data(50_000 + i * 10_000, 10_000)];
            rig.b.post_receive(&receive);
            let part = [rig.a.data(40_000 + i * 10_000, 10_000)];
            rig.a.post(Opcode::SendImm, CtrlFlags::CQ_UPDATE, i as u32, None, &part);
        }
        rig.a.ring();
        rig.run();
        let cqes = rig.a.poll_all();
        assert!(cqes.iter().all(|c| c.opcode() == Some(CqeOpcode::Requester)), "{seed}: {cqes:?}");
        assert_eq!(cqes.len(), 3, "seed {seed}");
        assert_eq!(rig.b.memory.word(0).load(RELAXED), sum, "seed {seed}");
        let mut seen = 0;
        for i in 1..=12 {
            assert_eq!(rig.a.memory.word(1024 + i * 8).load(RELAXED), seen, "seed {seed}");
            seen += i as u64;
        }
        assert_eq!(rig.b.bytes(8, 30_000), source);
        assert_eq!(rig.a.bytes(80_000, 30_000), source);
        assert_eq!(rig.b.bytes(50_000, 30_000), source);
        let imms: Vec<_> = rig.b.poll_all().iter().map(|c| c.imm_inval.get()).collect();
        assert_eq!(imms, [0, 1, 2], "seed {seed}");
        assert!(rig.nics.iter().map(|n| n.counters().dropped).sum::<u64>() > 0);
    }
}

#[test]
fn a_peer_that_never_answers_ends_the_retries() {
    let mut rig = Rig::with(Options { retry_cnt: 2, timeout: 5, ..Options::default() });
    rig.nics[1].set_faults(Faults { port_down: true, ..Faults::default() });
    rig.a.write_inline(REMOTE, rig.b.keys.rkey, &[1; 8], CtrlFlags::NONE);
    rig.a.write_inline(REMOTE, rig.b.keys.rkey, &[1; 8], CtrlFlags::NONE);
    rig.a.ring();
    rig.run();
    let cqes = rig.a.poll_all();
    let expected = (Syndrome::TransportRetryExceeded as u8, Check::TransportRetry as u8);
    assert_eq!(cause(&cqes[0]), expected);
    assert_eq!(cqes[1].syndrome_byte(), Syndrome::Flushed as u8);
    // The first try and two more, each 4.096 us * 2^5.
    assert_eq!(rig.now, 3 * (4_096 << 5));
}

#[test]
fn a_port_that_comes_back_in_time_loses_nothing() {
    let mut rig = Rig::new();
    rig.nics[0].set_faults(Faults { port_down: true, ..Faults::default() });
    rig.a.write_inline(REMOTE, rig.b.keys.rkey, &[1; 8], CtrlFlags::CQ_UPDATE);
    rig.a.ring();
    rig.steps(3);
    assert!(rig.a.poll().is_none());
    rig.nics[0].set_faults(Faults::default());
    rig.run();
    assert_eq!(rig.a.poll_all()[0].opcode(), Some(CqeOpcode::Requester));
}

#[test]
fn a_send_waits_for_a_late_receive() {
    let mut rig = Rig::with(Options { rnr_retry: 7, min_rnr_timer: 5, ..Options::default() });
    let part = [rig.a.data(0, 8)];
    rig.a.post(Opcode::Send, CtrlFlags::CQ_UPDATE, 0, None, &part);
    rig.a.ring();
    rig.steps(5);
    rig.now += 10_000_000;
    rig.steps(5);
    assert!(rig.a.poll().is_none());
    let receive = [rig.b.data(0, 8)];
    rig.b.post_receive(&receive);
    rig.run();
    assert_eq!(rig.a.poll_all()[0].opcode(), Some(CqeOpcode::Requester));
    assert_eq!(rig.b.poll_all().len(), 1);
}

#[test]
fn without_a_receive_the_rnr_retries_end() {
    for (rnr_retry, timer) in [(0u8, 1u8), (3, 1)] {
        let options = Options { rnr_retry, min_rnr_timer: timer, ..Options::default() };
        let mut rig = Rig::with(options);
        let part = [rig.a.data(0, 8)];
        rig.a.post(Opcode::Send, CtrlFlags::NONE, 0, None, &part);
        rig.a.ring();
        rig.run();
        let expected = (Syndrome::RnrRetryExceeded as u8, Check::RnrRetry as u8);
        assert_eq!(cause(&rig.a.poll_all()[0]), expected);
        // Timer code 1 is 0.01 ms.
        assert_eq!(rig.now, u64::from(rnr_retry) * 10_000);
    }
}

#[test]
fn a_fence_waits_for_the_read_before_it() {
    for fence in [false, true] {
        let profile = Profile { latency_ns: 1000, ..Profile::NONE };
        let config = NicConfig { profile, ..NicConfig::default() };
        let mut rig = Rig::with(Options { config, ..Options::default() });
        let raddr = Raddr::new(REMOTE, rig.b.keys.rkey);
        let part = [rig.a.data(0, 8)];
        rig.a.post(Opcode::RdmaRead, CtrlFlags::NONE, 0, Some(raddr), &part);
        let flags = if fence { CtrlFlags::FENCE } else { CtrlFlags::NONE };
        rig.a.write_inline(REMOTE + 64, rig.b.keys.rkey, &[1; 8], flags);
        rig.a.ring();
        for now in (0..=1500).step_by(100) {
            rig.now = now;
            rig.steps(2);
        }
        let written = rig.b.memory.word(64).load(RELAXED) != 0;
        assert_eq!(written, !fence);
        rig.run();
        assert_ne!(rig.b.memory.word(64).load(RELAXED), 0);
    }
}

#[test]
fn data_may_be_placed_behind_its_completion_until_something_flushes_it() {
    let profile = Profile { placement_delay_ns: 5_000, ..Profile::NONE };
    let config = NicConfig { profile, ..NicConfig::default() };
    let options = Options { config, ..Options::default() };
    let mut rig = Rig::with(options.clone());
    rig.a.write_inline(REMOTE, rig.b.keys.rkey, &[1; 8], CtrlFlags::CQ_UPDATE);
    rig.a.ring();
    rig.steps(5);
    assert_eq!(rig.a.poll_all().len(), 1);
    assert_eq!(rig.b.memory.word(0).load(RELAXED), 0);
    // A read of anything on that QP pushes it.
    let raddr = Raddr::new(REMOTE + 64, rig.b.keys.rkey);
    let part = [rig.a.data(0, 8)];
    rig.a.post(Opcode::RdmaRead, CtrlFlags::CQ_UPDATE, 0, Some(raddr), &part);
    rig.a.ring();
    rig.steps(5);
    assert_eq!(rig.a.poll_all().len(), 1);
    assert_ne!(rig.b.memory.word(0).load(RELAXED), 0);
    // And so does time.
    let mut rig = Rig::with(options);
    rig.a.write_inline(REMOTE, rig.b.keys.rkey, &[1; 8], CtrlFlags::CQ_UPDATE);
    rig.a.ring();
    rig.run();
    assert_eq!(rig.now, 5_000);
    assert_ne!(rig.b.memory.word(0).load(RELAXED), 0);
}

/// Writes 1, 2, 3, … to one word in one go; the last one placed stays.
fn last_of_many(seed: u64, fence: bool) -> u64 {
    let faults = Faults { out_of_order_placement: Some(seed), ..Faults::default() };
    let config = NicConfig { faults, ..NicConfig::default() };
    let mut rig = Rig::with(Options { config, ..Options::default() });
    for i in 1..=16u64 {
        let flags = if fence { CtrlFlags::FENCE } else { CtrlFlags::NONE };
        rig.a.write_inline(REMOTE, rig.b.keys.rkey, &i.to_le_bytes(), flags);
    }
    rig.a.ring();
    rig.run();
    rig.b.memory.word(0).load(RELAXED)
}

#[test]
fn writes_land_out_of_order_on_request_unless_fenced() {
    assert!((0..20).any(|seed| last_of_many(seed, false) != 16));
    assert!((0..20).all(|seed| last_of_many(seed, true) == 16));
    assert_eq!(last_of_many(3, false), last_of_many(3, false));
}

#[test]
fn the_nth_wqe_fails_as_asked() {
    let fail = FailWqe { qpn: None, nth: 2, syndrome: Syndrome::RemoteOperation, vendor: 0xab };
    let faults = Faults { fail: vec![fail], ..Faults::default() };
    let config = NicConfig { faults, ..NicConfig::default() };
    let mut rig = Rig::with(Options { config, ..Options::default() });
    for _ in 0..4 {
        rig.a.write_inline(REMOTE, rig.b.keys.rkey, &[1; 8], CtrlFlags::CQ_UPDATE);
    }
    rig.a.ring();
    rig.run();
    let cqes = rig.a.poll_all();
    assert_eq!(cqes.len(), 4);
    assert!(cqes[..2].iter().all(|c| c.opcode() == Some(CqeOpcode::Requester)));
    assert_eq!(cause(&cqes[2]), (Syndrome::RemoteOperation as u8, 0xab));
    assert_eq!(cqes[3].syndrome_byte(), Syndrome::Flushed as u8);
}

#[test]
fn a_paused_engine_does_nothing_until_its_time() {
    let faults = Faults { pause: Some((0, 70_000)), ..Faults::default() };
    let config = NicConfig { faults, ..NicConfig::default() };
    let mut rig = Rig::with(Options { config, ..Options::default() });
    rig.a.write_inline(REMOTE, rig.b.keys.rkey, &[1; 8], CtrlFlags::CQ_UPDATE);
    rig.a.ring();
    rig.steps(10);
    assert!(rig.a.poll().is_none());
    rig.run();
    assert_eq!((rig.now, rig.a.poll_all().len()), (70_000, 1));
}

#[test]
fn a_profile_paces_messages_bytes_and_latency() {
    let profile = Profile { message_ps: 100_000, ..Profile::CX7_NDR200 };
    let config = NicConfig { profile, trace: 64, ..NicConfig::default() };
    let mut rig = Rig::with(Options { config, ..Options::default() });
    for _ in 0..32 {
        rig.a.write_inline(REMOTE, rig.b.keys.rkey, &[1; 8], CtrlFlags::CQ_UPDATE);
    }
    rig.a.ring();
    rig.run();
    let trace = rig.nics[0].trace();
    assert_eq!(trace.len(), 32);
    let first = trace[0];
    let round = first.completed - first.doorbell;
    assert!((3_300..4_000).contains(&round), "{round} ns for one");
    let last = trace[31].completed - first.completed;
    assert!((31 * 95..31 * 105 + 100).contains(&last), "{last} ns between first and last of 32");
    assert!(
        trace.iter().all(|t| t.doorbell <= t.fetched
            && t.fetched <= t.executed
            && t.executed <= t.completed)
    );
}

#[test]
fn virtual_time_gives_the_same_trace_twice() {
    let run = || {
        let faults = Faults { drop_random: Some((4, 9)), ..Faults::default() };
        let profile = Profile::CX7_NDR200;
        let config = NicConfig { faults, profile, trace: 256, ..NicConfig::default() };
        let mut rig = Rig::with(Options { retry_cnt: 7, config, ..Options::default() });
        for i in 0..40 {
            rig.a.write_inline(REMOTE + i * 8, rig.b.keys.rkey, &[1; 8], CtrlFlags::CQ_UPDATE);
        }
        rig.a.ring();
        rig.run();
        (rig.nics[0].trace(), rig.now)
    };
    let (trace, now) = run();
    assert_eq!(trace.len(), 40);
    assert_eq!((trace, now), run());
}

#[test]
fn the_trace_tells_of_sends_receives_and_failures_each_once() {
    let fail = FailWqe { qpn: None, nth: 2, syndrome: Syndrome::RemoteAccess, vendor: 0x88 };
    let faults = Faults { fail: vec![fail], ..Faults::default() };
    let caps = Caps { mtu: 1024, ..Caps::default() };
    let config = NicConfig { faults, caps, trace: 4, ..NicConfig::default() };
    let mut rig = Rig::with(Options { config, ..Options::default() });
    for i in 0..4 {
        rig.b.post_receive(&[rig.b.data(50_000 + i * 4_000, 4_000)]);
        let part = [rig.a.data(40_000, 4_000)];
        rig.a.post(Opcode::Send, CtrlFlags::CQ_UPDATE, 0, None, &part);
    }
    rig.a.ring();
    rig.run();
    let taken = |nic: &mut Nic| {
        let mut seen = Vec::new();
        let missed = nic.take_trace(|record| {
            let why = record.failure.map(|cause| (cause.syndrome, cause.vendor));
            seen.push((record.what, record.index, record.bytes, record.packets, why));
        });
        (seen, missed)
    };
    let send = Traced::Send(Opcode::Send as u8);
    let flushed = Some((Syndrome::Flushed, Check::Flushed as u8));
    let sends = vec![
        (send, 0, 4_000, 4, None),
        (send, 1, 4_000, 4, None),
        (send, 2, 0, 0, Some((Syndrome::RemoteAccess, 0x88))),
        (send, 3, 0, 0, flushed),
    ];
    assert_eq!(taken(&mut rig.nics[0]), (sends, 0));
    assert_eq!(taken(&mut rig.nics[0]), (Vec::new(), 0));
    let receive = Traced::Receive(CqeOpcode::ResponderSend);
    let receives = vec![(receive, 0, 4_000, 0, None), (receive, 1, 4_000, 0, None)];
    assert_eq!(taken(&mut rig.nics[1]), (receives, 0));
    // What isn't taken in time is counted.
    let mut rig = Rig::with(Options {
        config: NicConfig { trace: 4, ..NicConfig::default() },
        ..Options::default()
    });
    for _ in 0..7 {
        rig.a.write_inline(REMOTE, rig.b.keys.rkey, &[1; 8], CtrlFlags::NONE);
    }
    rig.a.ring();
    rig.run();
    let (seen, missed) = taken(&mut rig.nics[0]);
    assert_eq!((seen.len(), missed), (4, 3));
}
