//! mini-proxy's device code: its mirror, its descriptors, and its build for the GPUs that the project names.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod common;

use std::mem::offset_of;

use common::grouped;
use device::nvrtc::{Arch, compile};
use device::proxy::{
    Descriptor, EnqueueArgs, Handoff, HostProducer, Producers, Progress, ProxyChannel, ProxyChoice,
    ProxyOp, ProxyRateArgs, ProxyRoundTripArgs, Publish, RingState, RingView, progress,
};
use device::source::{ProxyKernelKind, proxy_translation_unit};

unsafe extern "C" {
    fn gic_host_proxy_layouts(rust: *const u64, count: u32) -> bool;
}

#[test]
fn the_mirror_has_the_headers_layouts() {
    let rust = [
        size_of::<Descriptor>(),
        offset_of!(Descriptor, channel),
        offset_of!(Descriptor, size),
        offset_of!(Descriptor, source),
        offset_of!(Descriptor, destination),
        progress::BYTES,
        progress::POSTED,
        progress::COMPLETED,
        progress::FAILURE,
        size_of::<RingState>(),
        offset_of!(RingState, ready),
        offset_of!(RingState, tail),
        offset_of!(RingState, failure),
        size_of::<ProxyChannel>(),
        offset_of!(ProxyChannel, remote),
        offset_of!(ProxyChannel, signal),
        offset_of!(ProxyChannel, result),
        offset_of!(ProxyChannel, lkey),
        offset_of!(ProxyChannel, rkey),
        offset_of!(ProxyChannel, signal_rkey),
        offset_of!(ProxyChannel, result_lkey),
        size_of::<RingView>(),
        offset_of!(RingView, flags),
        offset_of!(RingView, counter),
        offset_of!(RingView, progress),
        offset_of!(RingView, state),
        offset_of!(RingView, channels),
        offset_of!(RingView, deadline),
        offset_of!(RingView, log_depth),
        offset_of!(RingView, channel_count),
        offset_of!(RingView, number),
        offset_of!(RingView, qpn),
        size_of::<EnqueueArgs>(),
        offset_of!(EnqueueArgs, channel),
        offset_of!(EnqueueArgs, samples),
        offset_of!(EnqueueArgs, first),
        offset_of!(EnqueueArgs, failure),
        offset_of!(EnqueueArgs, until),
        size_of::<ProxyRateArgs>(),
        offset_of!(ProxyRateArgs, window),
        offset_of!(ProxyRateArgs, first),
        offset_of!(ProxyRateArgs, failure),
        size_of::<ProxyRoundTripArgs>(),
        offset_of!(ProxyRoundTripArgs, inbox),
        offset_of!(ProxyRoundTripArgs, failure),
    ]
    .map(|n| n as u64);
    // SAFETY: reads the array.
    assert!(unsafe { gic_host_proxy_layouts(rust.as_ptr(), rust.len() as u32) });
}

#[test]
fn descriptors_come_out_as_they_went_in() {
    let far = Descriptor::MAX_OFFSET;
    for &op in ProxyOp::ALL {
        for channel in [0, 1, 0x5555, 0xffff] {
            for size in [1, 2, 8, 4096, (1 << 24) + 1, Descriptor::MAX_SIZE] {
                for (source, destination) in [(0, 0), (8, far), (far, 8), (far, far)] {
                    // A flush has no size.
                    let size = if op == ProxyOp::Flush { 1 } else { size };
                    let d = Descriptor { op, channel, size, source, destination };
                    let [low, high] = d.pack();
                    assert_eq!((low | high) & Descriptor::MARK, 0, "{d:?}");
                    for mark in [0, Descriptor::MARK] {
                        assert_eq!(Descriptor::unpack(low | mark, high | mark), Some(d));
                    }
                }
            }
        }
    }
}

#[test]
fn sixteen_zero_bytes_are_a_put_and_unknown_operations_are_nothing() {
    let put = Descriptor { size: 1, ..Descriptor::default() };
    assert_eq!(put.pack(), [0, 0]);
    assert_eq!(Descriptor::unpack(0, 0), Some(put));
    for op in ProxyOp::ALL.len() as u64..16 {
        assert_eq!(Descriptor::unpack(op << 59, 0), None, "{op}");
    }
}

fn choices() -> Vec<ProxyChoice> {
    let mut all = Vec::new();
    for &handoff in Handoff::ALL {
        for &producers in Producers::ALL {
            for &progress in Progress::ALL {
                all.push(ProxyChoice { handoff, producers, progress, publish: Publish::Release });
            }
        }
    }
    for &producers in Producers::ALL {
        all.push(ProxyChoice { producers, publish: Publish::Posted, ..ProxyChoice::default() });
    }
    all
}

/// All in one unit: the headers are read once.
#[test]
fn every_kernel_compiles_for_every_named_architecture() {
    if !common::has_nvrtc() {
        return;
    }
    let mut kernels = Vec::new();
    for choice in choices() {
        kernels.push((ProxyKernelKind::Enqueue(ProxyOp::Put), choice));
        kernels.push((ProxyKernelKind::Enqueue(ProxyOp::PutSignal), choice));
        if choice.progress == Progress::Cached {
            kernels.push((ProxyKernelKind::Rate, choice));
        }
        if choice.progress == Progress::Cached && choice.producers == Producers::One {
            kernels.push((ProxyKernelKind::RoundTrip, choice));
        }
    }
    let unit =
        grouped(kernels.iter().map(|(kernel, choice)| proxy_translation_unit(*kernel, choice)));
    for arch in [Arch::SM_90, Arch::SM_100] {
        let cubin = compile(&unit, arch).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(&cubin[..4], b"\x7fELF");
    }
}

#[test]
fn a_producer_of_a_choice_that_is_not_built_is_refused_and_named() {
    let ring = RingView {
        slots: std::ptr::null_mut(),
        flags: std::ptr::null_mut(),
        counter: std::ptr::null_mut(),
        progress: std::ptr::null_mut(),
        state: std::ptr::null_mut(),
        channels: std::ptr::null(),
        deadline: 0,
        log_depth: 1,
        channel_count: 0,
        number: 0,
        qpn: 0,
    };
    for choice in [
        ProxyChoice { publish: Publish::Posted, ..ProxyChoice::BASELINE },
        ProxyChoice {
            publish: Publish::Posted,
            progress: Progress::Read,
            ..ProxyChoice::default()
        },
    ] {
        // SAFETY: no producer comes of it, so nothing is looked at.
        let refused = unsafe { HostProducer::new(choice, &ring, None) };
        let error = refused.err().unwrap().to_string();
        assert!(error.contains("Posted"), "{error}");
    }
}
