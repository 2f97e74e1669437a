//! NVSHMEM: IBGDA, and the proxied put of a host transport such as IBRC.

use std::path::Path;

use crate::adapter::{
    Adapter, OrderScope, PathKind, PeerOp, PeerPath, Queue, RateLanes, Safety, Scope, Sharing,
    Source, SpaceCheck, Variant,
};
use crate::find::defined;

/// NVSHMEM's adapter.
pub static ADAPTER: Adapter = Adapter {
    name: "nvshmem",
    title: "NVSHMEM",
    source: Source::PyPi {
        package: "nvidia-nvshmem-cu13==3.4.5",
        folder: "nvidia/nvshmem",
        marker: "include/non_abi/nvshmem_version.h",
    },
    version,
    known: &["3.4.5"],
    includes: &["include"],
    // The public calls end in functions that the library has compiled.
    device_library: Some("lib/libnvshmem_device.a"),
    needs: None,
    // As the device library was built: its functions have no assertions.
    defines: &["NDEBUG"],
    kernel: include_str!("kernel.cu"),
    state: include_str!("state.cpp"),
    files: &[("layout.h", include_str!("layout.h"))],
    paths: &[
        PeerPath {
            name: "nvshmem",
            about: "NVSHMEM on IBGDA: GPU threads write WQEs and ring, over RC or DC",
            kind: PathKind::GpuSubmitted,
            value_bytes: &[8],
            variants: &[
                PUBLIC,
                PUBLIC_DC,
                CPU_DOORBELL,
                PUBLIC_IDLE_DCI,
                INTERNAL,
                INTERNAL_DC,
                NO_GROUPING,
                NO_QP_CHOICE,
                NO_LOOKUP,
                NO_SPACE,
                NO_FENCE_PUBLISH,
                NO_PUBLISH,
                NO_LOCK,
                NO_FENCE_RECORD,
                NO_FENCE_DOORBELL,
            ],
        },
        PeerPath {
            name: "nvshmem-proxy",
            about: "NVSHMEM's proxy: words in one channel in pinned host memory, posted by a CPU thread (as over IBRC)",
            kind: PathKind::Proxied,
            value_bytes: &[8],
            variants: &[PROXY_PUBLIC, PROXY_DIRECT],
        },
    ],
};

/// The vendor's version of the headers has three numbers.
fn version(root: &Path) -> Option<String> {
    let header = root.join("include/non_abi/nvshmem_version.h");
    let number = |part: &str| defined(&header, &format!("NVSHMEM_VENDOR_{part}_VERSION"));
    Some(format!("{}.{}.{}", number("MAJOR")?, number("MINOR")?, number("PATCH")?))
}

const SAFETY: Safety =
    Safety { sharing: Sharing::Gpu, order: OrderScope::Gpu, space: SpaceCheck::Yes };
const OWN: Safety = Safety { sharing: Sharing::Exclusive, ..SAFETY };
const UNORDERED: Safety = Safety { order: OrderScope::None, ..SAFETY };

// state.cpp's numbers: those it doesn't name itself are IBGDA over RC with the GPU's doorbell.

const PUBLIC: Variant = Variant {
    name: "public",
    about: "nvshmem_putmem_nbi (8 bytes: nvshmem_int64_put_nbi), int64_p, putmem_signal_nbi over RC; \
            completion: nvshmem_quiet",
    number: 0,
    ops: &[PeerOp::Put, PeerOp::PutValue, PeerOp::PutSignal],
    round_trip: true,
    rate: Some(RateLanes::Both),
    queue: Queue::RcCollapsed,
    cpu_rings: false,
    safety: SAFETY,
    scope: Scope::All,
    omits: "",
    base: "",
};

const PUBLIC_DC: Variant = Variant {
    name: "public-dc",
    about: "the same over DC: DCIs that all PEs share",
    number: 2,
    queue: Queue::DcCollapsed,
    ..PUBLIC
};

const CPU_DOORBELL: Variant = Variant {
    name: "cpu-doorbell",
    about: "as public, with asynchronous post_send: a CPU thread writes record and doorbell",
    number: 4,
    cpu_rings: true,
    ..PUBLIC
};

const PUBLIC_IDLE_DCI: Variant = Variant {
    name: "public-idle-dci",
    about: "nvshmem_putmem_nbi over RC beside a DCI that nothing goes to: quiet looks at it, too",
    number: 5,
    ops: &[PeerOp::Put],
    round_trip: false,
    rate: None,
    ..PUBLIC
};

const INTERNAL: Variant = Variant {
    name: "internal",
    about: "nvshmemi_ibgda_rma_nbi, rma_p, put_signal over RC; completion: ibgda_quiet of the queue pair",
    number: 1,
    scope: Scope::One,
    ..PUBLIC
};

const INTERNAL_DC: Variant = Variant {
    name: "internal-dc",
    about: "nvshmemi_ibgda_rma_nbi over DC; completion: ibgda_quiet of the DCI",
    number: 3,
    ops: &[PeerOp::Put],
    round_trip: false,
    rate: None,
    queue: Queue::DcCollapsed,
    ..INTERNAL
};

/// The inner functions of a put, in the library's order, for one thread and one chunk.
const NO_GROUPING: Variant = Variant {
    name: "no-grouping",
    about: "rma_nbi's own parts for one thread and one chunk; completion: ibgda_quiet of the queue pair",
    number: 6,
    ops: &[PeerOp::Put],
    round_trip: false,
    rate: None,
    omits: "the grouping of a warp's lanes and the loop over chunks",
    base: INTERNAL.name,
    ..INTERNAL
};

/// A further part left out of that.
const STEP: Variant = Variant { base: NO_GROUPING.name, ..NO_GROUPING };

const NO_QP_CHOICE: Variant = Variant {
    name: "no-qp-choice",
    about: "no-grouping with the queue pair known",
    number: 7,
    omits: "the grouping, and the choice of the queue pair",
    ..STEP
};

const NO_LOOKUP: Variant = Variant {
    name: "no-lookup",
    about: "no-grouping with keys and remote address known",
    number: 8,
    omits: "the grouping, and the look-ups of both keys and of the peer's base",
    ..STEP
};

const NO_SPACE: Variant = Variant {
    name: "no-space",
    about: "no-grouping with the reservation's atomic alone",
    number: 9,
    safety: Safety { space: SpaceCheck::No, ..SAFETY },
    omits: "the grouping, and the wait for room in the queue",
    ..STEP
};

const NO_FENCE_PUBLISH: Variant = Variant {
    name: "no-fence-publish",
    about: "no-grouping without the fence between WQE and publication",
    number: 10,
    // Another thread may ring for a WQE that nothing ordered; one thread's own ring has fences of its own.
    safety: OWN,
    omits: "the grouping, and the fence between the WQE and its publication",
    ..STEP
};

const NO_PUBLISH: Variant = Variant {
    name: "no-publish",
    about: "no-grouping that rings for each put; completion: ibgda_poll_cq of its own index",
    number: 11,
    safety: OWN,
    omits: "the grouping, the publication in order with its fence, and the choice of when to ring",
    ..STEP
};

const NO_LOCK: Variant = Variant {
    name: "no-lock",
    about: "no-grouping without the lock around record and doorbell",
    number: 12,
    safety: OWN,
    omits: "the grouping, and the doorbell's lock",
    ..STEP
};

const NO_FENCE_RECORD: Variant = Variant {
    name: "no-fence-record",
    about: "no-grouping without the fence before the doorbell record",
    number: 13,
    safety: UNORDERED,
    omits: "the grouping, and the fence before the doorbell record",
    ..STEP
};

const NO_FENCE_DOORBELL: Variant = Variant {
    name: "no-fence-doorbell",
    about: "no-grouping without the fence between doorbell record and doorbell",
    number: 14,
    safety: UNORDERED,
    omits: "the grouping, and the fence between record and doorbell",
    ..STEP
};

const PROXY_PUBLIC: Variant = Variant {
    name: "public",
    about: "nvshmem_putmem_nbi, int64_p, putmem_signal_nbi; completion: nvshmem_quiet",
    number: 20,
    queue: Queue::Cpu,
    ..PUBLIC
};

const PROXY_DIRECT: Variant = Variant {
    name: "direct",
    about: "nvshmemi_proxy_rma_nbi, rma_p; completion: nvshmemi_proxy_quiet",
    number: 21,
    ops: &[PeerOp::Put, PeerOp::PutValue],
    round_trip: false,
    rate: Some(RateLanes::One),
    ..PROXY_PUBLIC
};

#[cfg(test)]
mod tests;
