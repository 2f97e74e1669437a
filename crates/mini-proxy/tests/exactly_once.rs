//! Every descriptor is executed once and in its producer's order, whatever is full, lost or wrapping.
//!
//! The proof is in fetch-adds: each adds a value of its own and brings back the sum before it, so that one that
//! was lost, repeated or overtaken shows in every later one. Immediates carry their descriptor's position.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod common;

use std::sync::Mutex;
use std::sync::atomic::Ordering::Acquire;
use std::time::Duration;

use common::*;
use device::host::Relax;
use device::proxy::{Descriptor, Handoff, Producers, ProxyOp};
use mini_proxy::{Drive, ProxyAttr};
use rdma::ConnectAttr;
use rdma::post::{Ended, ReceivePoster, ReceiveQueue};
use rdma::soft::Engine;
use softnic::Faults;

/// `threads` threads push `each` fetch-adds each; thread `t` adds to word `t`.
fn run(attr: ProxyAttr, engine: Engine, threads: u64, each: u64, faults: Faults) {
    let about = format!("{:?} rings {} start {}", attr.choice, attr.rings, attr.start);
    let choice = attr.choice;
    let (rings, depth) = (u64::from(attr.rings), attr.depth);
    let mut attr = attr;
    if choice.handoff == Handoff::MappedCounter {
        assert_eq!(threads, 1);
        attr.requests = (0..each).map(|i| add(i, 0, i)).collect();
        // The request at the first position is the first one.
        attr.start -= attr.start % each;
    }
    let bytes = (8 * threads * each + 4096) as usize;
    let rig = rig_on(engine, bytes, 1, attr);
    rig.near.set_faults(faults.clone()).unwrap();
    rig.far.set_faults(faults).unwrap();
    std::thread::scope(|scope| {
        for t in 0..threads {
            let (rig, about) = (&rig, &about);
            scope.spawn(move || {
                let relax = rig.proxy.relax();
                let mut producer = rig.producer(choice, (t % rings) as usize, &relax);
                let all: Vec<_> = (0..each).map(|i| add(i, t, t * each + i)).collect();
                for some in all.chunks(depth as usize * 3 + 1) {
                    producer.push(some).unwrap();
                }
                producer.quiet().unwrap();
                // Quiet is exact for what this thread has pushed: it need not wait for the others.
                for i in 0..each {
                    let slot = (8 * (t * each + i)) as usize;
                    let before = rig.local.memory.word(slot).load(Acquire);
                    assert_eq!(before, i * (i + 1) / 2, "{about}: add {i} of thread {t}");
                }
            });
        }
    });
    let counters = rig.proxy.counters();
    let total = threads * each;
    assert_eq!(
        (counters.taken, counters.posted, counters.completed),
        (total, total, total),
        "{about}"
    );
    for t in 0..threads {
        let sum = rig.remote.memory.word(8 * t as usize).load(Acquire);
        assert_eq!(sum, each * (each + 1) / 2, "{about}: word {t}");
    }
    assert!(rig.near.findings().unwrap().is_empty(), "{about}: {:?}", rig.near.findings());
}

fn small(handoff: Handoff, producers: Producers) -> ProxyAttr {
    // Everything is smaller than what is in flight, so that all of it is full now and then.
    ProxyAttr {
        choice: choice(handoff, producers),
        depth: 8,
        chain: 3,
        log_blocks: 3,
        signal_every: 2,
        ..ProxyAttr::default()
    }
}

#[test]
fn each_handoff_delivers_once_and_in_order_with_one_producer() {
    for &handoff in Handoff::ALL {
        run(small(handoff, Producers::One), Engine::Stepped, 1, 2_000, Faults::default());
    }
}

#[test]
fn each_handoff_delivers_once_and_in_order_with_many_producers() {
    for &handoff in Handoff::ALL {
        let threads = if handoff == Handoff::MappedCounter { 1 } else { 4 };
        run(small(handoff, Producers::Many), Engine::Stepped, threads, 500, Faults::default());
    }
}

#[test]
fn positions_and_indices_wrap() {
    for start in [(1 << 16) - 100, (1 << 32) - 100, (1 << 48) - 100] {
        for &handoff in Handoff::ALL {
            let attr = small(handoff, Producers::One);
            let attr = ProxyAttr { start, sq_start: start + 50, ..attr };
            run(attr, Engine::Stepped, 1, 300, Faults::default());
        }
    }
}

#[test]
fn a_million_descriptors_keep_order_through_many_laps_of_a_default_ring() {
    let attr = ProxyAttr { start: (1 << 32) - 500_000, ..ProxyAttr::default() };
    run(attr, Engine::Stepped, 1, 1_000_000, Faults::default());
}

#[test]
fn rings_are_shared_out_among_workers_on_threads() {
    let attr = ProxyAttr {
        rings: 3,
        workers: 2,
        drive: Drive::Threads { cpus: vec![] },
        ..small(Handoff::LapParity, Producers::Many)
    };
    let attr = ProxyAttr { deadline: Duration::from_secs(60), ..attr };
    run(attr.clone(), Engine::Stepped, 6, 300, Faults::default());
    run(attr, Engine::Thread { cpu: None }, 3, 300, Faults::default());
}

#[test]
fn lost_packets_are_repeated_and_descriptors_are_not() {
    let faults = Faults { drop_every: Some(17), ..Faults::default() };
    for handoff in [Handoff::LapParity, Handoff::ProducerCounter] {
        let connect = ConnectAttr { timeout: 6, ..ConnectAttr::default() };
        let attr = ProxyAttr { connect, ..small(handoff, Producers::One) };
        run(attr, Engine::Stepped, 1, 300, faults.clone());
    }
}

/// Steps the proxy, and keeps the far receive queue full.
struct Receiving<'a, R: Relax> {
    relax: R,
    far: Mutex<(ReceivePoster, Vec<u32>)>,
    _rig: &'a Rig,
}

impl<R: Relax> Relax for Receiving<'_, R> {
    fn relax(&self, spins: u32) {
        self.relax.relax(spins);
        let mut far = self.far.lock().unwrap();
        let (poster, seen) = &mut *far;
        while let Some(message) = poster.poll() {
            assert_eq!(message.ended, Ended::Done);
            assert_eq!(message.bytes, 8);
            seen.push(message.imm.unwrap());
        }
        poster.refill();
    }
}

#[test]
fn immediates_name_each_position_once_and_in_order() {
    for handoff in [Handoff::LapParity, Handoff::ValidByte, Handoff::ProducerCounter] {
        let start = (1 << 24) - 700;
        let attr = ProxyAttr {
            rings: 2,
            start,
            sq_start: 65_000,
            log_receives: Some(4),
            ..small(handoff, Producers::One)
        };
        let choice = attr.choice;
        let rig = rig(4096, 1, attr);
        // Ring 1: with a counter it has a queue pair of its own.
        let peer = usize::from(handoff == Handoff::ProducerCounter);
        let mut poster = ReceivePoster::new(rig.proxy.peers()[peer].clone()).unwrap();
        poster.refill();
        let relax = Receiving {
            relax: rig.proxy.relax(),
            far: Mutex::new((poster, Vec::new())),
            _rig: &rig,
        };
        let mut producer = rig.producer(choice, 1, &relax);
        let put = Descriptor { op: ProxyOp::PutImm, size: 8, ..Descriptor::default() };
        for _ in 0..10 {
            producer.push(&[put; 150]).unwrap();
        }
        producer.quiet().unwrap();
        relax.relax(0);
        let seen = &relax.far.lock().unwrap().1;
        let due: Vec<u32> =
            (start..start + 1500).map(|at| 1 << 24 | at as u32 & 0xff_ffff).collect();
        assert_eq!(*seen, due, "{handoff}");
    }
}

#[test]
fn a_signal_is_added_behind_each_of_its_puts() {
    for handoff in [Handoff::LapParity, Handoff::ProducerCounter] {
        for chain in [1, 2, 4] {
            let attr = ProxyAttr { chain, ..small(handoff, Producers::One) };
            let choice = attr.choice;
            let rig = rig(4096, 1, attr);
            let relax = rig.proxy.relax();
            let mut producer = rig.producer(choice, 0, &relax);
            for i in 0..400u64 {
                rig.local.memory.word(0).store(i + 1, std::sync::atomic::Ordering::Relaxed);
                let put = Descriptor { op: ProxyOp::PutSignal, size: 8, ..Descriptor::default() };
                let ticket = producer.push(&[put]).unwrap();
                producer.wait(ticket).unwrap();
                assert_eq!(rig.signal(), i + 1, "{handoff} chain {chain}");
                assert_eq!(rig.remote.memory.word(0).load(Acquire), i + 1);
            }
            // And without waiting in between.
            let put = Descriptor { op: ProxyOp::PutSignal, size: 8, ..Descriptor::default() };
            producer.push(&[put; 500]).unwrap();
            producer.quiet().unwrap();
            assert_eq!(rig.signal(), 900, "{handoff} chain {chain}");
        }
    }
}

#[test]
fn quiet_covers_every_channel_of_a_ring() {
    let attr = small(Handoff::LapParity, Producers::One);
    let choice = attr.choice;
    let rig = rig(1 << 16, 5, attr);
    let relax = rig.proxy.relax();
    let mut producer = rig.producer(choice, 0, &relax);
    for round in 1..=200u64 {
        for i in 0..25u64 {
            rig.local
                .memory
                .word(8 * i as usize)
                .store(round * 1000 + i, std::sync::atomic::Ordering::Relaxed);
        }
        let all: Vec<_> = (0..25u64)
            .map(|i| Descriptor {
                channel: (i * 3 % 5) as u32,
                size: 8,
                source: 8 * i,
                destination: 8 * i,
                ..Descriptor::default()
            })
            .collect();
        producer.push(&all).unwrap();
        producer.quiet().unwrap();
        for i in 0..25u64 {
            assert_eq!(rig.remote.memory.word(8 * i as usize).load(Acquire), round * 1000 + i);
        }
    }
}

#[test]
fn a_flush_completes_behind_all_before_it() {
    let attr = small(Handoff::LapParity, Producers::One);
    let choice = attr.choice;
    let rig = rig(4096, 2, attr);
    let relax = rig.proxy.relax();
    let mut producer = rig.producer(choice, 0, &relax);
    let flush = Descriptor { op: ProxyOp::Flush, ..Descriptor::default() };
    producer.push(&[flush]).unwrap();
    producer.quiet().unwrap();
    let ticket = producer.push(&[add(6, 3, 4), flush]).unwrap();
    producer.wait(ticket).unwrap();
    assert_eq!(rig.remote.memory.word(24).load(Acquire), 7);
}
