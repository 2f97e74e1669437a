//! What the headers compute, and the layouts that Rust mirrors.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod common;

use std::mem::offset_of;

use common::{bytes, list, load, number, text, word};
use device::choice::{MemoryPlace, Observer, Order};
use device::like::{
    DocaQp, IbgdaCq, IbgdaQp, LikeArgs, LikeQueue, LikeState, LikeTables, Peer, Step,
};
use device::view::{AddressVector, Failure, Local, QpState, QpView, Remote, Why};
use proptest::prelude::*;
use zerocopy::IntoBytes;

unsafe extern "C" {
    safe fn gic_host_required_scope(observer: u32, memory: u32) -> u32;
    safe fn gic_host_rebuild_index(consumed: u64, rung: u64, counter: u32) -> u64;
    safe fn gic_host_failure(why: u32, qpn: u32, index: u32, syndrome: u32, vendor: u32) -> u64;
    safe fn gic_host_doorbell(producer: u64, qpn: u32) -> u64;
    safe fn gic_host_record(producer: u64) -> u32;
    fn gic_host_layouts(rust: *const u64, count: u32) -> bool;
    fn gic_host_like_layouts(rust: *const u64, count: u32) -> bool;
}

#[test]
fn layouts_are_the_headers() {
    let rust = [
        size_of::<QpState>(),
        offset_of!(QpState, reserved),
        offset_of!(QpState, ready),
        offset_of!(QpState, rung),
        offset_of!(QpState, consumed),
        offset_of!(QpState, cq_next),
        offset_of!(QpState, failure),
        size_of::<QpView>(),
        offset_of!(QpView, sq),
        offset_of!(QpView, log_blocks),
        offset_of!(QpView, record),
        offset_of!(QpView, doorbell),
        offset_of!(QpView, cq),
        offset_of!(QpView, cq_record),
        offset_of!(QpView, state),
        offset_of!(QpView, deadline),
        offset_of!(QpView, qpn),
        offset_of!(QpView, log_cq),
        size_of::<Remote>(),
        offset_of!(Remote, rkey),
        size_of::<Local>(),
        offset_of!(Local, lkey),
        size_of::<AddressVector>(),
    ]
    .map(|n| n as u64);
    // SAFETY: reads as many words as it is told.
    assert!(unsafe { gic_host_layouts(rust.as_ptr(), rust.len() as u32) });
}

#[test]
fn layouts_of_puts_like_a_library_are_the_headers() {
    let rust = [
        size_of::<DocaQp>(),
        offset_of!(DocaQp, ready),
        offset_of!(DocaQp, produced),
        offset_of!(DocaQp, qpn),
        offset_of!(DocaQp, doorbell_qpn),
        offset_of!(DocaQp, nop_qpn),
        offset_of!(DocaQp, write_qpn),
        offset_of!(DocaQp, lock),
        offset_of!(DocaQp, blocks),
        offset_of!(DocaQp, mask),
        offset_of!(DocaQp, sq),
        offset_of!(DocaQp, record),
        offset_of!(DocaQp, doorbell),
        offset_of!(DocaQp, entries),
        offset_of!(DocaQp, cq_entries),
        offset_of!(DocaQp, consumed),
        offset_of!(DocaQp, handler),
        size_of::<IbgdaCq>(),
        offset_of!(IbgdaCq, entry),
        offset_of!(IbgdaCq, produced),
        offset_of!(IbgdaCq, consumed),
        offset_of!(IbgdaCq, entries),
        size_of::<IbgdaQp>(),
        offset_of!(IbgdaQp, kind),
        offset_of!(IbgdaQp, qpn),
        offset_of!(IbgdaQp, device),
        offset_of!(IbgdaQp, blocks),
        offset_of!(IbgdaQp, sq),
        offset_of!(IbgdaQp, record),
        offset_of!(IbgdaQp, doorbell),
        offset_of!(IbgdaQp, cq),
        offset_of!(IbgdaQp, lock),
        offset_of!(IbgdaQp, reserved),
        offset_of!(IbgdaQp, ready),
        offset_of!(IbgdaQp, produced),
        offset_of!(IbgdaQp, consumed),
        size_of::<LikeTables>(),
        offset_of!(LikeTables, log_chunk),
        offset_of!(LikeTables, targets),
        offset_of!(LikeTables, me),
        offset_of!(LikeTables, target),
        offset_of!(LikeTables, devices),
        offset_of!(LikeTables, groups),
        offset_of!(LikeTables, per_target),
        offset_of!(LikeTables, batch),
        offset_of!(LikeTables, map),
        offset_of!(LikeTables, queues_on_gpu),
        offset_of!(LikeTables, heap_on_host),
        offset_of!(LikeTables, cpu_rings),
        offset_of!(LikeTables, dc_targets),
        offset_of!(LikeTables, qps),
        offset_of!(LikeTables, counters),
        offset_of!(LikeTables, remote_heaps),
        offset_of!(LikeTables, mapped),
        offset_of!(LikeTables, vectors),
        offset_of!(LikeTables, lkeys),
        offset_of!(LikeTables, rkeys),
        size_of::<LikeQueue>(),
        offset_of!(LikeQueue, head),
        offset_of!(LikeQueue, tail),
        offset_of!(LikeQueue, cached_tail),
        offset_of!(LikeQueue, depth),
        offset_of!(LikeQueue, log_depth),
        offset_of!(LikeQueue, asked),
        offset_of!(LikeQueue, answered),
        offset_of!(LikeQueue, failure),
        offset_of!(LikeQueue, mapped),
        offset_of!(LikeQueue, local),
        offset_of!(LikeQueue, remote),
        offset_of!(LikeQueue, backend),
        size_of::<LikeState>(),
        offset_of!(LikeState, queue),
        offset_of!(LikeState, by_gpu),
        size_of::<LikeArgs>(),
        offset_of!(LikeArgs, state),
        offset_of!(LikeArgs, queue),
        offset_of!(LikeArgs, channels),
        offset_of!(LikeArgs, qps),
        offset_of!(LikeArgs, scope),
        offset_of!(LikeArgs, bytes),
        offset_of!(LikeArgs, threads),
        offset_of!(LikeArgs, slots),
        offset_of!(LikeArgs, stride),
        offset_of!(LikeArgs, warmup),
        offset_of!(LikeArgs, samples),
        offset_of!(LikeArgs, first),
        offset_of!(LikeArgs, deadline),
        offset_of!(LikeArgs, local),
        offset_of!(LikeArgs, remote),
        offset_of!(LikeArgs, issue),
        offset_of!(LikeArgs, total),
        offset_of!(LikeArgs, failure),
    ]
    .map(|n| n as u64);
    // SAFETY: reads as many words as it is told.
    assert!(unsafe { gic_host_like_layouts(rust.as_ptr(), rust.len() as u32) });
}

#[test]
fn names_of_puts_and_steps_are_read_as_they_are_written() {
    for peer in Peer::ALL {
        assert_eq!(peer.name().parse(), Ok(*peer));
        assert!(!peer.steps().is_empty());
    }
    for step in Step::ALL {
        assert_eq!(step.name().parse(), Ok(*step));
        // Each is a step of some put.
        assert!(Peer::ALL.iter().any(|peer| peer.steps().contains(step)), "{step}");
    }
    let error = "nvshmen".parse::<Peer>().unwrap_err().to_string();
    assert!(error.contains("nvshmem-internal"), "{error}");
}

#[test]
fn an_ordering_is_safe_exactly_where_its_scope_reaches_the_observer() {
    use MemoryPlace::{Gpu, Host};
    const GPU_SCOPE: u32 = 0;
    const SYSTEM_SCOPE: u32 = 1;
    let table = [
        (Observer::ThisGpu, Gpu, GPU_SCOPE),
        (Observer::ThisGpu, Host, GPU_SCOPE),
        (Observer::Cpu, Gpu, SYSTEM_SCOPE),
        (Observer::Cpu, Host, SYSTEM_SCOPE),
        (Observer::PcieDevice, Gpu, GPU_SCOPE),
        (Observer::PcieDevice, Host, SYSTEM_SCOPE),
        (Observer::OtherGpu, Gpu, SYSTEM_SCOPE),
        (Observer::OtherGpu, Host, SYSTEM_SCOPE),
    ];
    for (observer, memory, scope) in table {
        assert_eq!(gic_host_required_scope(observer as u32, memory as u32), scope);
        for &order in Order::ALL {
            let expected = match order {
                Order::None => false,
                Order::GpuRelease | Order::GpuFence => scope == GPU_SCOPE,
                Order::ReleaseFenceMmio | Order::SystemFence | Order::AsyncMmio => true,
            };
            assert_eq!(
                order.is_safe(observer, memory),
                expected,
                "{order} {observer:?} {memory:?}"
            );
        }
    }
}

#[test]
fn a_failure_keeps_its_fields_in_one_word() {
    for &why in Why::ALL {
        for (qpn, index, syndrome, vendor) in
            [(0, 0, 0, 0), (0xff_ffff, 0xffff, 0xff, 0xff), (0x2ed, 511, 0x15, 0x81)]
        {
            let bits = gic_host_failure(why as u32, qpn, index, syndrome, vendor);
            let expected = Failure {
                why,
                qpn,
                index: index as u16,
                syndrome: syndrome as u8,
                vendor: vendor as u8,
            };
            assert_eq!(Failure::unpack(bits), Some(expected));
        }
    }
    // Wider values are cut, and never run into a neighbour.
    let bits = gic_host_failure(1, 0x1ff_ffff, 0x1_0002, 0x103, 0x104);
    assert_eq!(bits, gic_host_failure(1, 0xff_ffff, 2, 3, 4));
    assert_eq!(Failure::unpack(0), None);
}

#[test]
fn records_and_doorbells_are_golden() {
    let file = load("golden.json");
    for entry in list(&file, "records") {
        let record = gic_host_record(number(entry, "producer"));
        assert_eq!(record.as_bytes(), bytes(text(entry, "bytes")), "{entry}");
    }
    let mut rung = 0;
    for entry in list(&file, "doorbells") {
        if text(entry, "form") == "next_free" {
            let value = gic_host_doorbell(number(entry, "index"), word(entry, "qpn"));
            assert_eq!(value.as_bytes(), bytes(text(entry, "bytes")), "{entry}");
            rung += 1;
        }
    }
    assert!(rung >= 4);
    for entry in list(&load("public-reports.json"), "counter_rebuild") {
        let (consumer, rung) = (number(entry, "consumer"), number(entry, "doorbelled"));
        let index = gic_host_rebuild_index(consumer, rung, word(entry, "counter"));
        assert_eq!(index, number(entry, "index"), "{entry}");
    }
}

fn near_wraps() -> impl Strategy<Value = u64> {
    let base = prop_oneof![Just(0u64), Just(1 << 16), Just(1 << 32), Just(1 << 48), any::<u64>()];
    (base, -70_000i64..70_000).prop_map(|(base, by)| base.wrapping_add_signed(by))
}

proptest! {
    #[test]
    fn indices_are_rebuilt_as_in_crates_wire(
        consumed in near_wraps(),
        // Also behind `consumed`: `rung` may have been read earlier.
        window in -40_000i64..70_000,
        counter in any::<u16>(),
    ) {
        let rung = consumed.wrapping_add_signed(window);
        let expected = wire::index::rebuild(consumed, rung, counter);
        prop_assert_eq!(gic_host_rebuild_index(consumed, rung, counter.into()), expected);
        if window <= 0 {
            prop_assert_eq!(expected, consumed);
        }
    }

    #[test]
    fn a_completion_inside_the_window_is_rebuilt_exactly(
        consumed in near_wraps(),
        window in 1u64..=32_768,
        at in any::<proptest::sample::Index>(),
    ) {
        let last = consumed.wrapping_add(at.index(window as usize) as u64);
        let next = gic_host_rebuild_index(consumed, consumed.wrapping_add(window), last as u32 & 0xffff);
        prop_assert_eq!(next, last.wrapping_add(1));
    }

    #[test]
    fn records_and_doorbells_are_those_of_crates_wire(producer in near_wraps(), qpn in 0u32..1 << 24) {
        let (record, expected) = (gic_host_record(producer), wire::doorbell::record(producer));
        prop_assert_eq!(record.as_bytes(), expected.as_bytes());
        let expected = wire::doorbell::Doorbell::next_free(qpn, producer);
        let doorbell = gic_host_doorbell(producer, qpn);
        prop_assert_eq!(doorbell.as_bytes(), expected.as_bytes());
    }
}
