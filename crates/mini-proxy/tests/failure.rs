//! Whatever fails, everybody who waits is told, and nobody waits past his deadline.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod common;

use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use common::*;
use device::proxy::{Descriptor, Handoff, HostProducer, Producers, ProxyOp};
use device::view::Why;
use mini_proxy::{Drive, ProxyAttr, ProxyError};
use rdma::ConnectAttr;
use softnic::{FailWqe, Faults};
use wire::cqe::Syndrome;

const PUT: Descriptor =
    Descriptor { op: ProxyOp::Put, channel: 0, size: 8, source: 0, destination: 0 };

fn attr(handoff: Handoff) -> ProxyAttr {
    ProxyAttr {
        choice: choice(handoff, Producers::One),
        depth: 16,
        log_blocks: 4,
        chain: 4,
        deadline: short(),
        requests: if handoff == Handoff::MappedCounter { vec![PUT] } else { vec![] },
        ..ProxyAttr::default()
    }
}

#[test]
fn a_nic_error_reaches_waiters_and_pushers_with_its_queue_index_and_syndrome() {
    for &handoff in Handoff::ALL {
        let attr = attr(handoff);
        let choice = attr.choice;
        let rig = rig(4096, 1, attr);
        rig.near
            .set_faults(Faults {
                fail: vec![FailWqe {
                    qpn: None,
                    nth: 5,
                    syndrome: Syndrome::RemoteAccess,
                    vendor: 0x88,
                }],
                ..Faults::default()
            })
            .unwrap();
        let relax = rig.proxy.relax();
        let mut producer = rig.producer(choice, 0, &relax);
        let ticket = producer.push(&[PUT; 10]).unwrap();
        let failure = producer.quiet().unwrap_err();
        assert_eq!(failure.why, Why::Completion, "{handoff}");
        assert_eq!((failure.syndrome, failure.vendor), (Syndrome::RemoteAccess as u8, 0x88));
        assert_eq!((failure.qpn, failure.index), (rig.proxy.queue_pairs()[0].qpn, 5), "{handoff}");
        // What went before stays done, what came behind never is.
        assert_eq!(producer.wait(5), Ok(()), "{handoff}");
        assert_eq!(producer.wait(6), Err(failure), "{handoff}");
        assert_eq!(producer.wait(ticket), Err(failure), "{handoff}");
        // Who waits for room hears the same.
        assert_eq!(producer.push(&[PUT; 64]).unwrap_err(), failure, "{handoff}");
        let told = rig.proxy.check(failure.pack()).unwrap_err().to_string();
        assert!(told.contains("remote access error"), "{told}");
    }
}

#[test]
fn rings_that_never_used_the_broken_queue_go_on() {
    let attr = ProxyAttr { rings: 2, ..attr(Handoff::LapParity) };
    let choice = attr.choice;
    let rig = rig(4096, 2, attr);
    let qpn = rig.proxy.queue_pairs()[1].qpn;
    rig.near
        .set_faults(Faults {
            fail: vec![FailWqe {
                qpn: Some(softnic::Qpn(qpn)),
                nth: 0,
                syndrome: Syndrome::RemoteOperation,
                vendor: 1,
            }],
            ..Faults::default()
        })
        .unwrap();
    let relax = rig.proxy.relax();
    let mut broken = rig.producer(choice, 1, &relax);
    broken.push(&[Descriptor { channel: 1, ..PUT }]).unwrap();
    assert_eq!(broken.quiet().unwrap_err().qpn, qpn);
    let mut sound = rig.producer(choice, 0, &relax);
    sound.push(&[PUT; 100]).unwrap();
    sound.quiet().unwrap();
    // Until it wants to go there, too.
    sound.push(&[Descriptor { channel: 1, ..PUT }]).unwrap();
    assert_eq!(sound.quiet().unwrap_err().qpn, qpn);
}

#[test]
fn a_stopped_proxy_tells_waiters() {
    for drive in [Drive::Stepped, Drive::Threads { cpus: vec![] }] {
        let attr = ProxyAttr { drive, ..attr(Handoff::LapParity) };
        let choice = attr.choice;
        let rig = rig(4096, 1, attr);
        let relax = rig.proxy.relax();
        let mut producer = rig.producer(choice, 0, &relax);
        producer.push(&[PUT; 10]).unwrap();
        producer.quiet().unwrap();
        rig.proxy.stop();
        producer.push(&[PUT]).unwrap();
        assert_eq!(producer.quiet().unwrap_err().why, Why::ProxyStopped);
        assert_eq!(producer.push(&[PUT; 64]).unwrap_err().why, Why::ProxyStopped);
        assert_eq!(producer.wait(10), Ok(()));
    }
}

#[test]
fn waiters_are_told_when_the_proxy_stops_while_they_wait() {
    let attr =
        ProxyAttr { deadline: std::time::Duration::from_secs(60), ..attr(Handoff::LapParity) };
    let choice = attr.choice;
    let rig = rig(4096, 1, attr);
    rig.near.set_faults(Faults { paused: true, ..Faults::default() }).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let relax = rig.proxy.relax();
            let mut producer = rig.producer(choice, 0, &relax);
            producer.push(&[PUT]).unwrap();
            producer.quiet().unwrap_err().why
        });
        while rig.proxy.counters().posted == 0 {
            std::thread::yield_now();
        }
        rig.proxy.stop();
        assert_eq!(waiting.join().unwrap(), Why::ProxyStopped);
    });
}

#[test]
fn an_engine_that_pauses_or_ends_is_an_error_within_the_deadline() {
    for &handoff in Handoff::ALL {
        for gone in [false, true] {
            let attr = attr(handoff);
            let choice = attr.choice;
            let rig = rig(4096, 1, attr);
            if gone {
                rig.fabric.engine().stop();
            } else {
                rig.near.set_faults(Faults { paused: true, ..Faults::default() }).unwrap();
            }
            let relax = rig.proxy.relax();
            let mut producer = rig.producer(choice, 0, &relax);
            producer.push(&[PUT]).unwrap();
            let why = producer.quiet().unwrap_err().why;
            let due: &[Why] = if gone {
                &[Why::NicGone, Why::DeadlineCompletion]
            } else {
                &[Why::DeadlineCompletion]
            };
            assert!(due.contains(&why), "{handoff} {gone}: {why:?}");
        }
    }
}

#[test]
fn a_ring_that_nobody_drains_is_an_error_within_the_deadline() {
    for &handoff in Handoff::ALL {
        for &producers in Producers::ALL {
            let attr = ProxyAttr { choice: choice(handoff, producers), ..attr(handoff) };
            let choice = attr.choice;
            let rig = rig(4096, 1, attr);
            // Nobody steps the worker.
            // SAFETY: the rig outlives it, and it is the only producer.
            let mut producer =
                unsafe { HostProducer::new(choice, &rig.proxy.views()[0], None) }.unwrap();
            assert!(producer.push(&[PUT; 16]).is_ok(), "{handoff}");
            let failure = producer.push(&[PUT]).unwrap_err();
            assert_eq!((failure.why, failure.index), (Why::DeadlineSpace, 16), "{handoff}");
            // It stays: the ring may have a hole.
            assert_eq!(producer.quiet().unwrap_err(), failure, "{handoff} {producers}");
        }
    }
}

#[test]
fn a_peer_that_is_gone_ends_in_a_retry_error() {
    let connect = ConnectAttr { timeout: 4, retry_cnt: 1, ..ConnectAttr::default() };
    let attr = ProxyAttr {
        connect,
        deadline: std::time::Duration::from_secs(60),
        ..attr(Handoff::LapParity)
    };
    let choice = attr.choice;
    let rig = rig(4096, 1, attr);
    rig.far.set_faults(Faults { port_down: true, ..Faults::default() }).unwrap();
    let relax = rig.proxy.relax();
    let mut producer = rig.producer(choice, 0, &relax);
    producer.push(&[PUT; 3]).unwrap();
    let failure = producer.quiet().unwrap_err();
    assert_eq!(failure.syndrome, Syndrome::TransportRetryExceeded as u8);
}

#[test]
fn a_bad_request_is_refused_before_anything_is_pushed() {
    let far = 1 << 38;
    let max = Descriptor::MAX_SIZE;
    let cases = [
        ("no bytes", Descriptor { size: 0, ..PUT }, Why::BadLength),
        ("too many bytes", Descriptor { size: max + 1, ..PUT }, Why::BadLength),
        ("far too many bytes", Descriptor { size: 1 << 32, ..PUT }, Why::BadLength),
        ("local offset", Descriptor { source: far, ..PUT }, Why::BadOffset),
        ("remote offset", Descriptor { destination: far, ..PUT }, Why::BadOffset),
        ("channel", Descriptor { channel: 1, ..PUT }, Why::BadChannel),
        ("huge channel", Descriptor { channel: u32::MAX, ..PUT }, Why::BadChannel),
        (
            "unaligned",
            Descriptor { op: ProxyOp::FetchAdd, destination: 4, ..PUT },
            Why::UnalignedAtomic,
        ),
    ];
    for handoff in [Handoff::LapParity, Handoff::ValidByte, Handoff::ProducerCounter] {
        let attr = attr(handoff);
        let choice = attr.choice;
        let rig = rig(4096, 1, attr);
        let relax = rig.proxy.relax();
        let mut producer = rig.producer(choice, 0, &relax);
        for (name, bad, why) in cases {
            assert_eq!(producer.push(&[bad]).unwrap_err().why, why, "{handoff}: {name}");
        }
        producer.quiet().unwrap();
        rig.proxy.step();
        assert_eq!(rig.proxy.counters().taken, 0, "{handoff}");
        producer.push(&[PUT]).unwrap();
        producer.quiet().unwrap();
        assert_eq!(rig.proxy.counters().completed, 1, "{handoff}");
    }
}

#[test]
fn bytes_outside_of_a_region_are_refused_by_the_worker_and_not_posted() {
    let attr = attr(Handoff::LapParity);
    let choice = attr.choice;
    for (name, bad, why) in [
        ("local", Descriptor { source: 4089, ..PUT }, Why::BadOffset),
        ("remote", Descriptor { destination: 4096, ..PUT }, Why::BadOffset),
    ] {
        let rig = rig(4096, 1, attr.clone());
        let relax = rig.proxy.relax();
        let mut producer = rig.producer(choice, 0, &relax);
        producer.push(&[PUT, PUT, bad, PUT]).unwrap();
        let failure = producer.quiet().unwrap_err();
        assert_eq!((failure.why, failure.index), (why, 2), "{name}");
        assert_eq!(producer.wait(2), Ok(()), "{name}");
        assert_eq!(rig.proxy.counters().requests, 2, "{name}");
    }
}

#[test]
fn words_that_are_no_descriptor_fail_the_ring() {
    let attr = attr(Handoff::LapParity);
    let choice = attr.choice;
    let rig = rig(4096, 1, attr);
    let view = rig.proxy.views()[0];
    // SAFETY: the first slot, which nobody else writes now.
    let slot =
        |at: usize| unsafe { std::sync::atomic::AtomicU64::from_ptr(view.slots.add(at).cast()) };
    slot(0).store(1 << 63 | 0xf << 59, Relaxed);
    slot(8).store(1 << 63, Relaxed);
    let relax = rig.proxy.relax();
    let mut producer = rig.producer(choice, 0, &relax);
    let begin = Instant::now();
    assert_eq!(producer.wait(1).unwrap_err().why, Why::BadDescriptor);
    assert!(begin.elapsed() < std::time::Duration::from_secs(30));
}

#[test]
fn a_configuration_that_can_not_work_is_refused_by_name() {
    type Case = (fn(&mut ProxyAttr), &'static str);
    let cases: &[Case] = &[
        (|a| a.rings = 0, "at least one ring"),
        (|a| a.workers = 0, "at least one worker"),
        (|a| a.workers = 2, "2 workers on 1 rings"),
        (|a| a.rings = 257, "at most 256"),
        (|a| a.channels.clear(), "1 to 65536 channels"),
        (|a| a.depth = 0, "power of two"),
        (|a| a.depth = 1, "power of two"),
        (|a| a.depth = 100, "128 is the nearest"),
        (|a| a.depth = 70, "64 is the nearest"),
        (|a| a.depth = u32::MAX, "power of two"),
        (|a| a.chain = 0, "chains of 0"),
        (|a| a.chain = 513, "send queue of 1024"),
        (|a| a.signal_every = 0, "one completion in 0"),
        (|a| a.signal_every = 513, "send queue of 1024"),
        (|a| a.log_blocks = 1, "chains of 16"),
        (|a| a.log_blocks = 16, "can't be had"),
        (
            |a| {
                a.choice.handoff = Handoff::ValidByte;
                a.choice.publish = device::proxy::Publish::Posted;
            },
            "lap-parity",
        ),
        (|a| a.choice.handoff = Handoff::MappedCounter, "needs some"),
        (|a| a.requests = vec![PUT], "the others none"),
        (
            |a| {
                a.choice.handoff = Handoff::MappedCounter;
                a.requests = vec![PUT, Descriptor { source: 4096, ..PUT }];
            },
            "known request 1",
        ),
        (
            |a| {
                a.choice.handoff = Handoff::MappedCounter;
                a.requests = vec![Descriptor { channel: 7, ..PUT }];
            },
            "no such channel",
        ),
        (
            |a| {
                let region = a.channels[0].remote.clone();
                a.channels[0].signal = Some((region, 4092));
            },
            "signal word at offset 4092",
        ),
    ];
    let rig = rig(4096, 1, ProxyAttr::default());
    for (i, (change, due)) in cases.iter().enumerate() {
        let channel = mini_proxy::ChannelAttr {
            local: rig.local.clone(),
            remote: rig.remote.clone(),
            signal: None,
        };
        let mut attr = ProxyAttr { channels: vec![channel], ..ProxyAttr::default() };
        change(&mut attr);
        let error: ProxyError =
            mini_proxy::Proxy::connect(rig.near.clone(), rig.far.as_ref(), &attr)
                .err()
                .unwrap_or_else(|| panic!("case {i} ({due}) was taken"));
        assert!(error.to_string().contains(due), "case {i}: {error}");
    }
}
