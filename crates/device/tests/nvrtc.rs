//! Every kernel compiles for the GPUs that the project names. No GPU is needed.

use device::choice::{Choice, CqKind, CqLoad, Order, Ringing, Sharing, Signalling, Transport};
use device::nvrtc::{Arch, NvrtcError, compile, load};
use device::source::{KernelKind, translation_unit};
use device::view::Op;

fn skip_without_nvrtc() -> bool {
    match load() {
        Ok(()) => false,
        Err(NvrtcError::NotFound { .. })
            if std::env::var_os("GICBENCH_REQUIRE_NVRTC").is_none() =>
        {
            eprintln!("SKIPPED: NVRTC is not installed; scripts/test.sh installs it");
            true
        }
        Err(e) => panic!("{e}"),
    }
}

fn kernels() -> Vec<(KernelKind, Choice)> {
    let base = Choice::default();
    let mut all = Vec::new();
    for &order in Order::ALL {
        for &op in Op::ALL {
            let max_blocks = if op == Op::PutInline { 5 } else { 1 };
            all.push((KernelKind::Latency(op), Choice { order, max_blocks, ..base }));
        }
        for &sharing in Sharing::ALL {
            for &ringing in Ringing::ALL {
                let signalling = if ringing >= Ringing::Deferred {
                    Signalling::OnRequest
                } else {
                    Signalling::Every
                };
                all.push((
                    KernelKind::Rate,
                    Choice { order, sharing, ringing, signalling, ..base },
                ));
            }
        }
        all.push((KernelKind::RoundTrip, Choice { order, ..base }));
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
    if skip_without_nvrtc() {
        return;
    }
    for arch in [Arch::SM_90, Arch::SM_100] {
        for (kernel, choice) in kernels() {
            if choice.order == Order::AsyncMmio && arch == Arch::SM_90 {
                continue;
            }
            let cubin = compile(&translation_unit(kernel, &choice), arch)
                .unwrap_or_else(|e| panic!("{kernel:?} {choice:?}: {e}"));
            assert_eq!(&cubin[..4], b"\x7fELF", "{kernel:?} {choice:?}");
        }
    }
}

#[test]
fn asynchronous_mmio_is_refused_before_sm_100() {
    if skip_without_nvrtc() {
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
    if skip_without_nvrtc() {
        return;
    }
    let unit = "extern \"C\" __global__ void k() { asm volatile(\"st.nonsense.u32 [0], 1;\"); }";
    assert!(matches!(compile(unit, Arch::SM_90), Err(NvrtcError::Compile { .. })));
}
