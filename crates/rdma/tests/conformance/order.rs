//! What a GPU's threads see of an engine on a GPU, while it runs: payload before signal, and both before the CQE.

use std::sync::Arc;
use std::time::{Duration, Instant};

use device::cuda::Gpu;
use device::shared::Shared;
use rdma::{CqKind, Place, QueuePairAttr};
use wire::wqe::{Atomic, CtrlFlags, Opcode};
use zerocopy::IntoBytes;

use crate::pair::{Rig, hasty};
use crate::rig::{Kind, kinds};

/// A thread that waits for signal after signal, or CQE after CQE, and counts the words that are not there yet.
const WATCH: &str = r#"
#include "gic/kernels/clocks.hpp"
#include "gic/atomics.hpp"
using namespace gic;
struct Args {
    const u64* signal;
    const u8* ring;  // null: signals are waited for
    const u8* payload;
    u64* out;  // words that were missing, items seen
    u32 items;
    u32 words;
    u64 end;  // nanoseconds
};
__device__ u64 timer() {
    u64 t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)::"memory");
    return t;
}
extern "C" __global__ void gic_kernel(const Args a, gic::kernels::Clocks* clocks) {
    if (clocks == nullptr) return;
    gic::kernels::ClockSpan span(clocks);
    u64 missing = 0;
    u64 until = timer() + a.end;
    u32 seen = 0;
    while (seen < a.items && timer() < until) {
        u32 now = seen;
        if (a.ring == nullptr) {
            now = static_cast<u32>(mem::load_acquire<Scope::system>(a.signal));
        } else {
            // The owner bit is 0 on the first lap; all ones before.
            u64 last = mem::load_acquire<Scope::system>(reinterpret_cast<const u64*>(a.ring + seen * 64 + 56));
            if (last >> 60 != 0xf) now = seen + 1;
        }
        for (; seen < now; seen++) {
            if (a.ring != nullptr && mem::load_relaxed<Scope::system>(a.signal) < seen + 1) missing++;
            const u64* at = reinterpret_cast<const u64*>(a.payload + seen * 64);
            for (u32 w = 0; w < a.words; w++)
                if (mem::load_relaxed<Scope::system>(at + w) != seen + 1) missing++;
        }
    }
    a.out[0] = missing;
    a.out[1] = seen;
    span.end();
}
"#;

#[derive(Clone, Copy)]
#[repr(C)]
struct Watch {
    signal: u64,
    ring: u64,
    payload: u64,
    out: *mut u64,
    items: u32,
    words: u32,
    end: u64,
}

const ITEMS: u64 = 100;
const SIGNAL: u64 = 0x3000;

/// The GPUs whose threads look: at the near side's CQ, and at the far side's memory.
fn watchers(kind: &Kind) -> Option<[Arc<Gpu>; 2]> {
    match kind {
        Kind::Gpu(gpu) | Kind::Pinned(gpu) => Some([Arc::clone(gpu), Arc::clone(gpu)]),
        Kind::Gpus(gpus) => Some(gpus.clone()),
        _ => None,
    }
}

#[test]
fn whoever_sees_a_signal_sees_its_payload_and_whoever_sees_the_cqe_sees_both() {
    for kind in &kinds() {
        let Some(gpus) = watchers(kind) else { continue };
        for words in [1u32, 6] {
            let attr = QueuePairAttr {
                log_blocks: 8,
                cq_kind: CqKind::Ring,
                log_cq: 8,
                ..QueuePairAttr::default()
            };
            let mut rig = Rig::with(kind, &attr, &hasty());
            rig.near.qp.areas.cq.write(0, &[0xff; 64 << 8]).unwrap();
            rig.local.memory.write(0, &vec![0; 0x4000]).unwrap();
            for item in 0..ITEMS {
                let payload = [item + 1; 6];
                rig.local.memory.write(item as usize * 64, payload.as_bytes()).unwrap();
                let body = [rig.raddr(item * 64), rig.data(item * 64, words * 8)];
                rig.post(Opcode::RdmaWrite, CtrlFlags::NONE, &body);
                let add = Atomic { swap_add: 1.into(), compare: 0.into() };
                let body = [rig.raddr(SIGNAL), add.as_bytes().to_vec(), rig.data(SIGNAL, 8)];
                rig.post(Opcode::AtomicFa, CtrlFlags::CQ_UPDATE, &body);
            }
            let programs =
                gpus.each_ref().map(|gpu| gpu.program(WATCH, size_of::<Watch>()).unwrap());
            let outs = gpus
                .each_ref()
                .map(|gpu| Shared::at(&Place::Gpu(Arc::clone(gpu)), &[0u64; 2]).unwrap());
            let args = [0, 1].map(|side| Watch {
                signal: rig.remote.address + SIGNAL,
                ring: if side == 0 { rig.near.qp.areas.cq.ptr() as u64 } else { 0 },
                payload: rig.remote.address,
                out: outs[side].as_ptr(),
                items: ITEMS as u32,
                words,
                end: 5_000_000_000,
            });
            let running: Vec<_> = (0..2)
                .map(|side| {
                    // SAFETY: the addresses are the rig's, which outlives the kernel and is reached by both GPUs.
                    unsafe { programs[side].start(&gpus[side], &args[side], 1, 1) }.unwrap()
                })
                .collect();
            let engine = rig.world.start();
            rig.near.ring();
            let until = Instant::now() + Duration::from_secs(8);
            for kernel in running {
                kernel.wait(until, None, &|| false).unwrap();
            }
            engine.stop().unwrap();
            for (who, out) in ["the CQ's", "the signal's"].iter().zip(&outs) {
                assert_eq!(
                    out.read().unwrap(),
                    [0, ITEMS],
                    "{who} watcher on {kind:?}, {words} words"
                );
            }
        }
    }
}

#[test]
fn the_watcher_compiles_for_every_named_architecture() {
    use device::nvrtc::{Arch, compile, load};
    if load().is_err() {
        assert!(std::env::var_os("GICBENCH_REQUIRE_NVRTC").is_none());
        return;
    }
    for arch in [Arch::SM_90, Arch::SM_100] {
        assert_eq!(&compile(WATCH, arch).unwrap()[..4], b"\x7fELF");
    }
}
