//! Every kernel compiles for the GPUs that the project names, and what NVRTC compiles is held to the golden bytes.
//! No GPU is needed.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod common;

use std::fmt::Write;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{bytes, grouped, list, load, number, segments, text, word};
use device::choice::{Choice, CqKind, CqLoad, Order, Ringing, Sharing, Signalling, Transport};
use device::like::{Like, Peer};
use device::nvrtc::{Arch, NvrtcError, compile};
use device::source::{
    Body, ENTRY, KernelKind, calibration_unit, like_translation_unit, translation_unit,
};
use device::view::Op;

/// Every value of every axis with every kernel that it changes; not every pair of values of unrelated axes.
fn kernels(arch: Arch) -> Vec<(KernelKind, Choice)> {
    let base = Choice::default();
    let mut all = Vec::new();
    for &order in Order::ALL {
        if order == Order::AsyncMmio && arch == Arch::SM_90 {
            continue;
        }
        let choice = Choice { order, ..base };
        all.push((KernelKind::Latency(Op::Put), choice));
        if arch == Arch::SM_103 {
            continue;
        }
        all.push((KernelKind::Rate, Choice { sharing: Sharing::Thread, ..choice }));
        all.push((KernelKind::RoundTrip, choice));
    }
    // Between architectures the instructions of the orderings differ, and nothing else.
    if arch == Arch::SM_103 {
        return all;
    }
    for &op in Op::ALL {
        let max_blocks = if op == Op::PutInline { 5 } else { 1 };
        all.push((KernelKind::Latency(op), Choice { max_blocks, ..base }));
    }
    if arch != Arch::SM_90 {
        return all;
    }
    for body in
        [Body::Put, Body::PutInline, Body::PutValue, Body::Get, Body::WarpPut, Body::WarpPutValue]
    {
        all.push((KernelKind::RateOf(body), base));
    }
    for &sharing in Sharing::ALL {
        for &ringing in Ringing::ALL {
            let signalling = if ringing >= Ringing::Deferred {
                Signalling::OnRequest
            } else {
                Signalling::Every
            };
            all.push((KernelKind::Rate, Choice { sharing, ringing, signalling, ..base }));
        }
    }
    for &cq_kind in CqKind::ALL {
        for &cq_load in CqLoad::ALL {
            for checked in [0, 1] {
                for sharing in [Sharing::Exclusive, Sharing::Thread] {
                    let choice = Choice { cq_kind, cq_load, checked, sharing, ..base };
                    all.push((KernelKind::Latency(Op::Put), choice));
                }
            }
        }
    }
    let dc = Choice { transport: Transport::Dc, max_blocks: 5, ..base };
    all.extend([
        (KernelKind::Latency(Op::PutInline), dc),
        (KernelKind::Latency(Op::PutSignal), dc),
    ]);
    all
}

#[test]
fn every_kernel_compiles_for_every_named_architecture() {
    if !common::has_nvrtc() {
        return;
    }
    let mut units = Vec::new();
    for arch in [Arch::SM_90, Arch::SM_100, Arch::SM_103] {
        units.extend(kernels(arch).iter().map(|(kernel, choice)| {
            (arch, format!("{kernel:?} with {choice:?}"), translation_unit(*kernel, choice))
        }));
    }
    compile_all(units);
}

#[test]
fn every_put_like_a_library_compiles_whole_and_without_each_step() {
    if !common::has_nvrtc() {
        return;
    }
    let mut units = Vec::new();
    for &peer in Peer::ALL {
        let without = peer.steps().into_iter().map(|step| Like::without(peer, step).unwrap());
        for like in std::iter::once(Like::whole(peer)).chain(without) {
            let unit = like_translation_unit(like);
            units.push((Arch::SM_90, like.to_string(), unit.clone()));
            if like.without.is_none() {
                units.push((Arch::SM_100, like.to_string(), unit));
            }
        }
    }
    units.sort_by_key(|(arch, ..)| arch.name());
    compile_all(units);
    // As they are launched: what is in constant memory has a name of its own.
    for peer in [Peer::Nvshmem, Peer::NvshmemProxy] {
        let cubin = compile(&like_translation_unit(Like::whole(peer)), Arch::SM_90).unwrap();
        let name = peer.constant().unwrap();
        let found = cubin.windows(name.len()).any(|bytes| bytes == name.as_bytes());
        assert!(found, "{peer}: no {name}");
    }
}

/// Compiles units, several at a time; those of one architecture are neighbours.
fn compile_all(units: Vec<(Arch, String, String)>) {
    let groups: Vec<_> =
        units.chunk_by(|a, b| a.0 == b.0).flat_map(|same| same.chunks(8)).collect();
    let next = AtomicUsize::new(0);
    let compile_the_next = || {
        while let Some(group) = groups.get(next.fetch_add(1, Ordering::Relaxed)) {
            let arch = group[0].0;
            let names: Vec<_> = group.iter().map(|(_, name, _)| name).collect();
            let cubin = compile(&grouped(group.iter().map(|(.., unit)| unit.clone())), arch)
                .unwrap_or_else(|e| panic!("{} with {names:?}: {e}", arch.name()));
            assert_eq!(&cubin[..4], b"\x7fELF");
            for (i, kernel) in names.iter().enumerate() {
                let name = format!("{ENTRY}_{i}\0");
                let found = cubin.windows(name.len()).any(|bytes| bytes == name.as_bytes());
                assert!(found, "{}: no kernel for {kernel}", arch.name());
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(compile_the_next);
        }
    });
}

#[test]
fn one_kernel_compiles_as_it_is_launched() {
    if !common::has_nvrtc() {
        return;
    }
    compile(&calibration_unit(), Arch::SM_90).unwrap();
    for kernel in [KernelKind::Latency(Op::Put), KernelKind::Rate, KernelKind::RoundTrip] {
        compile(&translation_unit(kernel, &Choice::default()), Arch::SM_90).unwrap();
    }
}

fn bytes_of(segment: &[u8]) -> (u64, u64) {
    let half = |at: usize| u64::from_le_bytes(segment[at..at + 8].try_into().unwrap());
    (half(0), half(8))
}

/// A unit that compiles only if the segment builders give the golden bytes, and how many assertions it has.
fn golden_unit() -> (String, usize) {
    let file = load("golden.json");
    let mut checks = Vec::new();
    for entry in list(&file, "wqes") {
        let golden = bytes(text(entry, "bytes"));
        let flags = entry["flags"].as_array().unwrap().iter().fold(0, |all, flag| {
            all | match flag.as_str().unwrap() {
                "cq_update" => 0x08,
                "solicited" => 0x02,
                "fence" => 0x80,
                "small_fence" => 0x20,
                other => panic!("no flag {other}"),
            }
        });
        let control = format!(
            "control_segment(Opcode({}), {}ull, {}, {}, {flags}, {}u, {})",
            golden[3],
            number(entry, "index"),
            word(entry, "qpn"),
            word(entry, "ds"),
            word(entry, "imm"),
            word(entry, "opmod"),
        );
        checks.push((control, bytes_of(&golden[..16])));
        checks.push((format!("blocks({})", word(entry, "ds")), (number(entry, "blocks"), 0)));
        let mut at = 16;
        for (kind, v) in segments(entry) {
            let n = |key| number(v, key);
            let (call, size) = match kind {
                "raddr" => (format!("remote_segment({}ull, {}u)", n("addr"), n("rkey")), 16),
                "data" => {
                    let call =
                        format!("data_segment({}ull, {}u, {}u)", n("addr"), n("bytes"), n("lkey"));
                    (call, 16)
                }
                "atomic" => {
                    (format!("atomic_segment({}ull, {}ull)", n("swap_add"), n("compare")), 16)
                }
                "masked_fa4" => {
                    (format!("fetch_add32_segment({}u, {}u)", n("add"), n("field_boundary")), 16)
                }
                "masked_cas4" | "masked_fa8" => (String::new(), 16),
                "masked_cas8" => (String::new(), 32),
                "av16" => (String::new(), 16),
                "av48" => (String::new(), 48),
                "inline" => {
                    let length = v.as_str().unwrap().len() / 2;
                    let segments = (length + 4).div_ceil(16);
                    let call = format!("header({length}), inline_segments({length})");
                    let low = u32::from_le_bytes(golden[at..at + 4].try_into().unwrap());
                    checks.push((format!("Pair{{{call}}}"), (low.into(), segments as u64)));
                    (String::new(), 16 * segments)
                }
                other => panic!("no segment {other}"),
            };
            if !call.is_empty() {
                checks.push((call, bytes_of(&golden[at..at + 16])));
            }
            at += size;
        }
        assert_eq!(at, golden.len(), "{entry}");
    }
    for entry in list(&file, "doorbells") {
        if text(entry, "form") == "next_free" {
            let mut golden = bytes(text(entry, "bytes"));
            golden.resize(16, 0);
            let call =
                format!("doorbell_value({}ull, {})", number(entry, "index"), word(entry, "qpn"));
            checks.push((format!("Pair{{{call}, 0}}"), bytes_of(&golden)));
        }
    }
    for entry in list(&file, "records") {
        let golden = bytes(text(entry, "bytes"));
        let low = u32::from_le_bytes(golden.try_into().unwrap());
        let call = format!("Pair{{record_value({}ull), 0}}", number(entry, "producer"));
        checks.push((call, (low.into(), 0)));
    }
    let mut unit = "#include \"gic/gda_types.hpp\"\n\
        using namespace gic;\n\
        using Pair = Segment;\n\
        __device__ constexpr Pair blocks(u32 ds) { return {blocks_of(ds), 0}; }\n\
        __device__ constexpr u64 header(u32 bytes) { return be32(kInlineHeader | bytes); }\n\
        __device__ constexpr bool is(Segment s, u64 low, u64 high) { return s.low == low && s.high == high; }\n"
        .to_owned();
    for (call, (low, high)) in &checks {
        writeln!(unit, "static_assert(is({call}, {low:#x}ull, {high:#x}ull), \"\");").unwrap();
    }
    (unit, checks.len())
}

#[test]
fn segments_compiled_for_a_gpu_are_golden() {
    if !common::has_nvrtc() {
        return;
    }
    let (unit, checks) = golden_unit();
    assert!(checks > 150, "only {checks} checks");
    for arch in [Arch::SM_90, Arch::SM_100] {
        compile(&unit, arch).unwrap_or_else(|e| panic!("{e}"));
    }
    // A wrong byte is seen.
    let wrong = format!("{unit}static_assert(is(remote_segment(1, 2), 1, 2), \"\");\n");
    assert!(matches!(compile(&wrong, Arch::SM_90), Err(NvrtcError::Compile { .. })));
}

#[test]
fn asynchronous_mmio_is_refused_before_sm_100() {
    if !common::has_nvrtc() {
        return;
    }
    let choice = Choice { order: Order::AsyncMmio, ..Choice::default() };
    let unit = translation_unit(KernelKind::Latency(Op::Put), &choice);
    let Err(NvrtcError::Compile { log, .. }) = compile(&unit, Arch::SM_90) else {
        panic!("compiled for sm_90");
    };
    assert!(log.contains("async_mmio needs sm_100"), "{log}");
}

#[test]
fn nonsense_in_inline_assembly_is_refused() {
    if !common::has_nvrtc() {
        return;
    }
    let unit = "extern \"C\" __global__ void k() { asm volatile(\"st.nonsense.u32 [0], 1;\"); }";
    assert!(matches!(compile(unit, Arch::SM_90), Err(NvrtcError::Compile { .. })));
}
