//! DeepEP: the puts of its low-latency and internode kernels, on NVSHMEM's device state.

use std::fs;
use std::path::Path;

use crate::adapter::{
    Adapter, OrderScope, PathKind, PeerOp, PeerPath, Queue, RateLanes, Safety, Scope, Sharing,
    Source, SpaceCheck, Variant,
};

/// DeepEP's adapter.
pub static ADAPTER: Adapter = Adapter {
    name: "deepep",
    title: "DeepEP",
    source: Source::Checkout {
        url: "https://github.com/deepseek-ai/DeepEP",
        marker: "csrc/kernels/legacy/ibgda_device.cuh",
    },
    version,
    known: &["2.1.0"],
    includes: &["csrc/kernels/legacy", "deep_ep/include"],
    device_library: None,
    needs: Some("nvshmem"),
    defines: &[],
    kernel: include_str!("kernel.cu"),
    state: include_str!("state.cpp"),
    files: &[
        ("layout.h", include_str!("layout.h")),
        ("nvshmem_layout.h", include_str!("../nvshmem/layout.h")),
        ("nvshmem_state.cpp", include_str!("../nvshmem/state.cpp")),
    ],
    paths: &[PeerPath {
        name: "deepep",
        about: "DeepEP's put on NVSHMEM's IBGDA queues: RC, one queue pair an expert",
        kind: PathKind::GpuSubmitted,
        value_bytes: &[4],
        variants: &[
            PUT,
            EVERY_FOURTH,
            NO_CHUNKS,
            NO_KEYS,
            NO_RESERVATION,
            NO_FENCE,
            NO_ORDER,
            NO_LOCK,
            NO_RECORD_RELEASE,
            NO_DOORBELL_RELEASE,
        ],
    }],
};

fn version(root: &Path) -> Option<String> {
    let text = fs::read_to_string(root.join("deep_ep/__init__.py")).ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix("__version__ ="))?;
    Some(value.trim().trim_matches(['"', '\'']).to_owned())
}

const SAFETY: Safety =
    Safety { sharing: Sharing::Gpu, order: OrderScope::Gpu, space: SpaceCheck::No };

const PUT: Variant = Variant {
    name: "put",
    about: "put_nbi_warp that rings; 4-byte rma_p; put_nbi_warp and the amo that rings for both; \
            completion: quiet of the queue pair",
    number: 0,
    ops: &[PeerOp::Put, PeerOp::PutValue, PeerOp::PutSignal],
    round_trip: true,
    rate: Some(RateLanes::One),
    queue: Queue::RcCollapsed,
    cpu_rings: false,
    safety: SAFETY,
    scope: Scope::One,
    omits: "",
    base: "",
};

const EVERY_FOURTH: Variant = Variant {
    name: "every-fourth",
    about: "put_nbi_warp that rings at every fourth message, an amo behind the last; \
            completion: quiet of the queue pair",
    number: 1,
    ops: &[],
    round_trip: false,
    ..PUT
};

const NO_CHUNKS: Variant = Variant {
    name: "no-chunks",
    about: "put_nbi_warp's steps for one chunk, by one thread",
    number: 2,
    ops: &[PeerOp::Put],
    round_trip: false,
    rate: None,
    omits: "the loop over chunks, the warp's shuffles and syncs",
    base: PUT.name,
    ..PUT
};

/// A further part left out of that.
const STEP: Variant = Variant { base: NO_CHUNKS.name, ..NO_CHUNKS };

const NO_KEYS: Variant = Variant {
    name: "no-keys",
    about: "no-chunks with the keys known",
    number: 3,
    omits: "the chunk loop, and the look-ups of both keys and of the peer's base",
    ..STEP
};

const NO_RESERVATION: Variant = Variant {
    name: "no-reservation",
    about: "no-chunks with the queue's head in a register",
    number: 4,
    safety: Safety { sharing: Sharing::Exclusive, ..SAFETY },
    omits: "the chunk loop, and the atomic add on the reserve head",
    ..STEP
};

const NO_FENCE: Variant = Variant {
    name: "no-fence",
    about: "no-chunks without __threadfence between WQE and publication",
    number: 5,
    omits: "the chunk loop, and the fence between the WQE and its publication",
    ..STEP
};

const NO_ORDER: Variant = Variant {
    name: "no-order",
    about: "no-chunks without the compare-and-swap on the ready head",
    number: 6,
    safety: Safety { sharing: Sharing::Exclusive, ..SAFETY },
    omits: "the chunk loop, and the publication in order",
    ..STEP
};

const NO_LOCK: Variant = Variant {
    name: "no-lock",
    about: "no-chunks without the lock around record and doorbell",
    number: 7,
    safety: Safety { sharing: Sharing::Exclusive, ..SAFETY },
    omits: "the chunk loop, and the lock",
    ..STEP
};

const NO_RECORD_RELEASE: Variant = Variant {
    name: "no-record-release",
    about: "no-chunks with a relaxed store of the doorbell record",
    number: 8,
    omits: "the chunk loop, and the record's release (the fence before the publication stays)",
    ..STEP
};

const NO_DOORBELL_RELEASE: Variant = Variant {
    name: "no-doorbell-release",
    about: "no-chunks with a relaxed store to the doorbell register",
    number: 9,
    safety: Safety { order: OrderScope::None, ..SAFETY },
    omits: "the chunk loop, and the doorbell's release",
    ..STEP
};
