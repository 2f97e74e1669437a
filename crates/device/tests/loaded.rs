//! The loaded kernel: its mirror, and its build for the GPUs that the project names.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod common;

use std::mem::offset_of;

use common::grouped;
use device::choice::{Choice, Order, Sharing};
use device::loaded::{
    ARRIVED, Choices, Load, LoadedArgs, MAX_WINDOW, PROGRESS_WORDS, ProxyLoadedArgs, STOP,
    VALUE_SHIFT, translation_unit,
};
use device::nvrtc::{Arch, compile};
use device::proxy::{Handoff, Producers, ProxyChoice};

unsafe extern "C" {
    fn gic_host_loaded_layouts(rust: *const u64, count: u32) -> bool;
}

#[test]
fn the_mirror_has_the_headers_layouts() {
    let rust = [
        size_of::<Load>(),
        offset_of!(Load, window),
        offset_of!(Load, slots),
        offset_of!(Load, background_at),
        offset_of!(Load, interval),
        offset_of!(Load, first),
        offset_of!(Load, control),
        offset_of!(Load, target),
        offset_of!(Load, inbox),
        offset_of!(Load, failure),
        size_of::<LoadedArgs>(),
        offset_of!(LoadedArgs, answer_remote),
        offset_of!(LoadedArgs, load),
        size_of::<ProxyLoadedArgs>(),
        offset_of!(ProxyLoadedArgs, answer_local),
        offset_of!(ProxyLoadedArgs, load),
        STOP,
        ARRIVED,
        PROGRESS_WORDS,
        VALUE_SHIFT as usize,
        MAX_WINDOW as usize,
    ]
    .map(|n| n as u64);
    // SAFETY: reads the array.
    assert!(unsafe { gic_host_loaded_layouts(rust.as_ptr(), rust.len() as u32) });
}

/// Who shares queues: all of them, the background alone, nobody.
const SHARED: [(bool, bool); 3] = [(true, true), (false, true), (false, false)];

#[test]
fn the_kernel_compiles_for_every_named_architecture() {
    if !common::has_nvrtc() {
        return;
    }
    let mut all = Vec::new();
    for (probe, background) in SHARED {
        let gda = |shared| {
            let sharing = if shared { Sharing::Thread } else { Sharing::Exclusive };
            Choice { sharing, ..Choice::default() }
        };
        let (one, other) = (gda(probe), gda(background));
        all.push(Choices::Gda { probe: one, background: other });
        let system = |choice| Choice { order: Order::SystemFence, ..choice };
        all.push(Choices::Gda { probe: system(one), background: system(other) });
        for handoff in [Handoff::LapParity, Handoff::ValidByte, Handoff::ProducerCounter] {
            let proxy = |shared| {
                let producers = if shared { Producers::Many } else { Producers::One };
                ProxyChoice { handoff, producers, ..ProxyChoice::default() }
            };
            all.push(Choices::Proxy { probe: proxy(probe), background: proxy(background) });
        }
    }
    let unit = grouped(all.iter().map(translation_unit));
    for arch in [Arch::SM_90, Arch::SM_100, Arch::SM_103] {
        let cubin = compile(&unit, arch).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(&cubin[..4], b"\x7fELF");
    }
}
