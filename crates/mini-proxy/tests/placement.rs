//! What a put with signal promises where the far NIC places writes in any order.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod common;

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use common::*;
use device::host::Relax;
use device::proxy::{Descriptor, Handoff, Producers, ProxyOp};
use mini_proxy::ProxyAttr;
use softnic::Faults;

const BYTES: usize = 1 << 16;
const GROUPS: u64 = 150;
/// Puts of a group; the last one has the signal.
const PUTS: u64 = 4;
const MARK: u64 = 1 << 40;

fn out_of_order(handoff: Handoff) -> (Rig, ProxyAttr) {
    let choice = choice(handoff, Producers::One);
    let attr = ProxyAttr { choice, depth: 64, log_blocks: 6, ..ProxyAttr::default() };
    let rig = rig(BYTES, 1, attr.clone());
    let faults = Faults { out_of_order_placement: Some(7), ..Faults::default() };
    rig.far.set_faults(faults).unwrap();
    (rig, attr)
}

fn put(op: ProxyOp, source: u64, destination: u64) -> Descriptor {
    Descriptor { op, size: 8, source: 8 * source, destination: 8 * destination, channel: 0 }
}

/// Puts that are told by a put: a later one is overtaken, or the fault shows nothing.
#[test]
fn a_flag_that_is_a_put_overtakes_its_data() {
    for handoff in [Handoff::LapParity, Handoff::ProducerCounter] {
        let (rig, attr) = out_of_order(handoff);
        let relax = rig.proxy.relax();
        let mut producer = rig.producer(attr.choice, 0, &relax);
        let all: Vec<_> = (0..GROUPS)
            .flat_map(|i| {
                rig.local.memory.word(16 * i as usize).store(i + 1, Relaxed);
                rig.local.memory.word(16 * i as usize + 8).store(MARK + i, Relaxed);
                [put(ProxyOp::Put, 2 * i, i), put(ProxyOp::Put, 2 * i + 1, i)]
            })
            .collect();
        producer.push(&all).unwrap();
        producer.quiet().unwrap();
        // A read behind them waits for what is still to be placed.
        let get = put(ProxyOp::Get, 4000, 0);
        producer.push(&[get]).unwrap();
        producer.quiet().unwrap();
        let first_stayed =
            |i: &u64| rig.remote.memory.word(8 * *i as usize).load(Acquire) != MARK + i;
        assert!((0..GROUPS).any(|i| first_stayed(&i)), "{handoff}: nothing was overtaken");
    }
}

/// Looks at the signal before the data, whenever anything may have moved.
struct Watching<'a, R> {
    relax: R,
    rig: &'a Rig,
}

impl<R> Watching<'_, R> {
    fn look(&self) {
        let signals = self.rig.signal();
        for i in 0..signals * PUTS {
            let word = self.rig.remote.memory.word(8 * i as usize).load(Acquire);
            assert_eq!(word, MARK + i, "signal {signals} came before put {i}");
        }
    }
}

impl<R: Relax> Relax for Watching<'_, R> {
    fn relax(&self, spins: u32) {
        self.relax.relax(spins);
        self.look();
    }
}

#[test]
fn a_signal_is_never_seen_before_the_data_of_the_puts_before_it() {
    for handoff in [Handoff::LapParity, Handoff::ProducerCounter] {
        let (rig, attr) = out_of_order(handoff);
        let watching = Watching { relax: rig.proxy.relax(), rig: &rig };
        let mut producer = rig.producer(attr.choice, 0, &watching);
        let all: Vec<_> = (0..GROUPS * PUTS)
            .map(|i| {
                rig.local.memory.word(8 * i as usize).store(MARK + i, Relaxed);
                let op = if i % PUTS == PUTS - 1 { ProxyOp::PutSignal } else { ProxyOp::Put };
                put(op, i, i)
            })
            .collect();
        producer.push(&all).unwrap();
        producer.quiet().unwrap();
        watching.look();
        assert_eq!(rig.signal(), GROUPS, "{handoff}");
    }
}

/// The signal is added to the very word that was put: it must find the put's value there.
#[test]
fn a_signal_finds_the_value_of_its_own_put() {
    for handoff in [Handoff::LapParity, Handoff::ProducerCounter] {
        let (rig, attr) = out_of_order(handoff);
        let relax = rig.proxy.relax();
        let mut producer = rig.producer(attr.choice, 0, &relax);
        let signal = (BYTES as u64 - SIGNAL) / 8;
        for i in 0..GROUPS {
            rig.local.memory.word(0).store(MARK * (i + 1), Relaxed);
            let other = put(ProxyOp::Put, 0, i);
            producer.push(&[other, other, put(ProxyOp::PutSignal, 0, signal)]).unwrap();
            producer.quiet().unwrap();
            assert_eq!(rig.signal(), MARK * (i + 1) + 1, "{handoff}: signal {i}");
        }
    }
}
