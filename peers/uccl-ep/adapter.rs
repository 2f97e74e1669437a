//! UCCL-EP: puts through the FIFOs of its CPU proxies.

use std::fs;
use std::path::Path;

use crate::adapter::{
    Adapter, OrderScope, PathKind, PeerOp, PeerPath, Queue, RateLanes, Safety, Scope, Sharing,
    Source, SpaceCheck, Variant,
};

/// UCCL-EP's adapter.
pub static ADAPTER: Adapter = Adapter {
    name: "uccl-ep",
    title: "UCCL-EP",
    source: Source::Checkout {
        url: "https://github.com/uccl-project/uccl",
        marker: "ep/include/uccl_ibgda.cuh",
    },
    version,
    known: &["0.1.1"],
    includes: &["ep/include", "ep/src", "include"],
    device_library: None,
    needs: None,
    defines: &[],
    kernel: include_str!("kernel.cu"),
    state: include_str!("state.cpp"),
    files: &[("layout.h", include_str!("layout.h")), ("numaif.h", include_str!("numaif.h"))],
    paths: &[PeerPath {
        name: "uccl-ep",
        about: "UCCL-EP: 16-byte commands in FIFOs of pinned host memory, 8 for each of 4 proxies, \
                posted by a CPU thread",
        kind: PathKind::Proxied,
        value_bytes: &[],
        variants: &[
            LOW_LATENCY,
            NORMAL,
            PUSH,
            RING,
            NO_HANDLE,
            SPLIT,
            NO_FENCE,
            NO_SPACE,
            NO_RESERVE,
        ],
    }],
};

fn version(root: &Path) -> Option<String> {
    let text = fs::read_to_string(root.join("uccl/__init__.py")).ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix("__version__ ="))?;
    Some(value.trim().trim_matches('"').to_owned())
}

const SAFETY: Safety =
    Safety { sharing: Sharing::Gpu, order: OrderScope::System, space: SpaceCheck::Yes };

const LOW_LATENCY: Variant = Variant {
    name: "low-latency",
    about: "nvshmemi_ibgda_put_nbi_warp, with nvshmemi_ibgda_amo_nonfetch_add for the signal; \
            completion: nvshmemi_ibgda_quiet",
    number: 0,
    ops: &[PeerOp::Put, PeerOp::PutSignal],
    round_trip: true,
    rate: Some(RateLanes::One),
    queue: Queue::Cpu,
    cpu_rings: false,
    safety: SAFETY,
    scope: Scope::All,
    omits: "",
    base: "",
};

const NORMAL: Variant = Variant {
    name: "normal",
    about: "the same calls in normal mode: offsets in units of 4 bytes, at most 8 in flight a FIFO",
    number: 1,
    ..LOW_LATENCY
};

const PUSH: Variant = Variant {
    name: "push",
    about: "D2HHandle::atomic_set_and_commit of the low-latency put's command; completion: \
            wait_until_cmd_consumed, that is, popped by the CPU",
    number: 2,
    ops: &[PeerOp::Put],
    rate: None,
    scope: Scope::Taken,
    omits: "the choice of the channel, the load of its address, the checks of the arguments",
    base: LOW_LATENCY.name,
    ..LOW_LATENCY
};

const RING: Variant = Variant {
    name: "ring",
    about: "RingBuffer::atomic_set_and_commit, the queue of a build without \
            USE_MSCCLPP_FIFO_BACKEND; completion: its tail, which moves when commands complete",
    number: 3,
    rate: Some(RateLanes::One),
    scope: Scope::One,
    omits: "as push; and that build's wait for fewer than 32 commands in flight",
    // The put around this queue is another build's.
    base: "",
    ..PUSH
};

const NO_HANDLE: Variant = Variant {
    name: "no-handle",
    about: "push on a handle in registers",
    number: 4,
    round_trip: false,
    omits: "of push: the loads of the handle's fields",
    base: PUSH.name,
    ..PUSH
};

const SPLIT: Variant = Variant {
    name: "split",
    about: "push from the library's atomics, published by two 8-byte stores as its branch for \
            other GPUs does",
    number: 5,
    omits: "of push: the command in one 16-byte store",
    ..NO_HANDLE
};

const NO_FENCE: Variant = Variant {
    name: "no-fence",
    about: "split, both stores relaxed",
    number: 6,
    safety: Safety { order: OrderScope::None, ..SAFETY },
    omits: "of split: the release at system scope",
    base: SPLIT.name,
    ..SPLIT
};

const NO_SPACE: Variant = Variant {
    name: "no-space",
    about: "split, a free slot taken for granted",
    number: 7,
    safety: Safety { space: SpaceCheck::No, ..SAFETY },
    omits: "of split: the load of the cached tail and the comparison with it",
    base: SPLIT.name,
    ..SPLIT
};

const NO_RESERVE: Variant = Variant {
    name: "no-reserve",
    about: "split, the head in a register",
    number: 8,
    safety: Safety { sharing: Sharing::Exclusive, ..SAFETY },
    omits: "of split: the atomic addition to the head in GPU memory",
    base: SPLIT.name,
    ..SPLIT
};
