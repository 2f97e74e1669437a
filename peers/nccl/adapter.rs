//! NCCL GIN: GDAKI, and the CPU proxy.

use std::fs;
use std::path::Path;

use crate::adapter::{
    Adapter, OrderScope, PathKind, PeerOp, PeerPath, Queue, RateLanes, Safety, Scope, Sharing,
    Source, SpaceCheck, Variant,
};

/// NCCL's adapter.
pub static ADAPTER: Adapter = Adapter {
    name: "nccl",
    title: "NCCL GIN",
    source: Source::PyPi {
        package: "nvidia-nccl-cu13==2.28.9",
        folder: "nvidia/nccl",
        marker: "include/nccl_device/gin.h",
    },
    version,
    known: &["2.28.9"],
    includes: &["include"],
    device_library: None,
    needs: None,
    defines: &[],
    kernel: include_str!("kernel.cu"),
    state: include_str!("state.cpp"),
    files: &[("layout.h", include_str!("layout.h"))],
    paths: &[
        PeerPath {
            name: "gdaki",
            about: "NCCL GIN on GDAKI: DOCA GPUNetIO's device functions, and ncclGin over them",
            kind: PathKind::GpuSubmitted,
            value_bytes: &[4, 8],
            variants: &[
                GPU,
                CTA,
                EXCLUSIVE,
                GIN,
                GIN_SYS_RELEASE,
                GIN_IN_TURN,
                CPU_DOORBELL,
                GPU_SYS_FENCE,
                GPU_CTA_FENCE,
                GPU_ASYNC_STORE,
                CTA_SYS_FENCE,
                CTA_CTA_FENCE,
                EXCLUSIVE_SYS_FENCE,
                EXCLUSIVE_CTA_FENCE,
                NO_CHUNKS,
                NO_SPACE_CHECK,
                NO_RESERVE_ATOMIC,
                NO_PUBLISH,
                NO_PUBLISH_RELEASE,
                NO_PUBLISH_ACQUIRE,
                NO_HANDLER_CHECK,
                NO_LOCK,
                NO_LOCK_ACQUIRE,
                NO_UNLOCK_RELEASE,
                NO_PRODUCER_MAX,
                NO_MAX_ACQUIRE,
                NO_EARLY_DOORBELL,
                NO_EARLY_FENCE,
                NO_LATE_FENCE,
                NO_CONSUMER_ACQUIRE,
                NO_CONSUMER_MAX,
                EXCLUSIVE_NO_SPACE_CHECK,
                EXCLUSIVE_NO_LOCK,
                EXCLUSIVE_NO_PRODUCER_MAX,
                EXCLUSIVE_NO_EARLY_DOORBELL,
                EXCLUSIVE_NO_EARLY_FENCE,
                EXCLUSIVE_NO_LATE_FENCE,
            ],
        },
        PeerPath {
            name: "gin-proxy",
            about: "NCCL GIN's proxy: 64-byte descriptors in a queue a rank in pinned host memory, posted by a CPU thread",
            kind: PathKind::Proxied,
            value_bytes: &[4, 8],
            variants: &[
                PROXY_GIN,
                PROXY_GIN_DESCRIPTOR,
                PROXY_GIN_RELEASED,
                PROXY_GIN_RELAXED_FLUSH,
                PROXY_PUT,
                PROXY_NO_FENCE,
                PROXY_NO_CREDIT_CHECK,
                PROXY_NO_CLAIM_ATOMIC,
            ],
        },
    ],
};

/// `nccl.h` has the three numbers as macros.
fn version(root: &Path) -> Option<String> {
    let header = fs::read_to_string(root.join("include/nccl.h")).ok()?;
    let number = |name: &str| {
        let line =
            header.lines().find(|line| line.starts_with(&format!("#define NCCL_{name} ")))?;
        line.split_whitespace().nth(2).map(str::to_owned)
    };
    Some(format!("{}.{}.{}", number("MAJOR")?, number("MINOR")?, number("PATCH")?))
}

const SHARED: Safety =
    Safety { sharing: Sharing::Gpu, order: OrderScope::Gpu, space: SpaceCheck::Yes };
const OWN: Safety = Safety { sharing: Sharing::Exclusive, ..SHARED };

// The hundreds of a number say what state.cpp builds: 0 a QP for any threads, 1 for one, 2 with the doorbell word of a
// CPU, 3 the proxy's queues for any threads, 4 for one.

const GPU: Variant = Variant {
    name: "gpu",
    about: "doca_gpu_dev_verbs_put/_p/_put_signal, GPU sharing (as NCCL calls them); completion: poll_cq_at of the ticket",
    number: 0,
    ops: &[PeerOp::Put, PeerOp::PutValue, PeerOp::PutSignal],
    round_trip: true,
    rate: Some(RateLanes::Both),
    queue: Queue::RcRing,
    cpu_rings: false,
    safety: SHARED,
    scope: Scope::One,
    omits: "",
    base: "",
};

const CTA: Variant = Variant {
    name: "cta",
    about: "the same with CTA sharing",
    number: 100,
    safety: Safety { sharing: Sharing::Cta, ..SHARED },
    ..GPU
};

const EXCLUSIVE: Variant = Variant {
    name: "exclusive",
    about: "the same with exclusive use",
    number: 101,
    safety: OWN,
    ..GPU
};

const GIN: Variant = Variant {
    name: "gin",
    about: "ncclGin put, putValue; completion: flush, over all ranks",
    number: 1,
    ops: &[PeerOp::Put, PeerOp::PutValue],
    rate: Some(RateLanes::One),
    scope: Scope::All,
    ..GPU
};

const GIN_SYS_RELEASE: Variant = Variant {
    name: "gin-sys-release",
    about: "ncclGin put that is asked for a release at system scope",
    number: 2,
    ops: &[PeerOp::Put],
    rate: None,
    ..GIN
};

const GIN_IN_TURN: Variant = Variant {
    name: "gin-in-turn",
    about: "ncclGin put to one rank after the other: the flush finds work on all",
    number: 3,
    ops: &[PeerOp::Put],
    round_trip: false,
    rate: None,
    ..GIN
};

const CPU_DOORBELL: Variant = Variant {
    name: "cpu-doorbell",
    about: "as gpu, with the QP's NIC handler CPU_PROXY: a CPU thread rings",
    number: 200,
    cpu_rings: true,
    ..GPU
};

const GPU_SYS_FENCE: Variant = Variant {
    name: "gpu-sys-fence",
    about: "reserve, prepare, mark ready, submit with sync scope SYS",
    number: 4,
    ops: &[PeerOp::Put],
    rate: None,
    safety: Safety { order: OrderScope::System, ..SHARED },
    ..GPU
};

const GPU_CTA_FENCE: Variant = Variant {
    name: "gpu-cta-fence",
    about: "reserve, prepare, mark ready, submit with sync scope CTA",
    number: 5,
    safety: Safety { order: OrderScope::None, ..SHARED },
    ..GPU_SYS_FENCE
};

const GPU_ASYNC_STORE: Variant = Variant {
    name: "gpu-async-store",
    about: "submit_db with ASYNC_STORE_RELEASE: from sm_100 on one instruction in place of fence and store, else as gpu",
    number: 6,
    safety: SHARED,
    ..GPU_SYS_FENCE
};

const CTA_SYS_FENCE: Variant = Variant {
    name: "cta-sys-fence",
    about: "cta, submit with sync scope SYS",
    number: 104,
    safety: Safety { sharing: Sharing::Cta, order: OrderScope::System, ..SHARED },
    ..GPU_SYS_FENCE
};

const CTA_CTA_FENCE: Variant = Variant {
    name: "cta-cta-fence",
    about: "cta, submit with sync scope CTA",
    number: 105,
    safety: Safety { sharing: Sharing::Cta, order: OrderScope::None, ..SHARED },
    ..GPU_SYS_FENCE
};

const EXCLUSIVE_SYS_FENCE: Variant = Variant {
    name: "exclusive-sys-fence",
    about: "exclusive, submit with sync scope SYS",
    number: 102,
    safety: Safety { order: OrderScope::System, ..OWN },
    ..GPU_SYS_FENCE
};

const EXCLUSIVE_CTA_FENCE: Variant = Variant {
    name: "exclusive-cta-fence",
    about: "exclusive, submit with sync scope CTA",
    number: 103,
    safety: Safety { order: OrderScope::None, ..OWN },
    ..GPU_SYS_FENCE
};

/// A sequence of doca_gpu_dev_verbs_put's own calls that stays safe to share without the step.
const STEP: Variant = Variant {
    name: "",
    about: "doca_gpu_dev_verbs_put's own calls, without one",
    number: 10,
    ops: &[PeerOp::Put],
    round_trip: false,
    rate: None,
    base: GPU.name,
    ..GPU
};

/// One that is for one thread a QP then.
const OWN_STEP: Variant = Variant { number: 110, safety: OWN, ..STEP };

const NO_CHUNKS: Variant =
    Variant { name: "no-chunks", number: 11, omits: "the split into parts of 1 GiB", ..STEP };

const NO_SPACE_CHECK: Variant = Variant {
    name: "no-space-check",
    number: 12,
    safety: Safety { space: SpaceCheck::No, ..SHARED },
    omits: "the wait for the slot's last completion, with its acquire fence and maximum",
    ..STEP
};

const NO_RESERVE_ATOMIC: Variant = Variant {
    name: "no-reserve-atomic",
    number: 111,
    omits: "the atomic of the reservation (a load and a store are left)",
    ..OWN_STEP
};

const NO_PUBLISH: Variant = Variant {
    name: "no-publish",
    number: 112,
    omits: "mark_wqes_ready: release fence, wait for one's turn, acquire fence, store",
    ..OWN_STEP
};

const NO_PUBLISH_RELEASE: Variant = Variant {
    name: "no-publish-release",
    number: 113,
    omits: "mark_wqes_ready's release fence",
    ..OWN_STEP
};

const NO_PUBLISH_ACQUIRE: Variant = Variant {
    name: "no-publish-acquire",
    number: 114,
    omits: "mark_wqes_ready's acquire fence",
    ..OWN_STEP
};

const NO_HANDLER_CHECK: Variant = Variant {
    name: "no-handler-check",
    number: 13,
    omits: "the choice between GPU and CPU doorbell at run time",
    ..STEP
};

const NO_LOCK: Variant =
    Variant { name: "no-lock", number: 115, omits: "the doorbell's lock", ..OWN_STEP };

const NO_LOCK_ACQUIRE: Variant =
    Variant { name: "no-lock-acquire", number: 116, omits: "the lock's acquire fence", ..OWN_STEP };

const NO_UNLOCK_RELEASE: Variant = Variant {
    name: "no-unlock-release",
    number: 117,
    omits: "the release of the unlocking store",
    ..OWN_STEP
};

const NO_PRODUCER_MAX: Variant = Variant {
    name: "no-producer-max",
    number: 118,
    omits: "the atomic maximum of the producer index",
    ..OWN_STEP
};

const NO_MAX_ACQUIRE: Variant = Variant {
    name: "no-max-acquire",
    number: 119,
    omits: "the acquire of that maximum",
    ..OWN_STEP
};

const NO_EARLY_DOORBELL: Variant = Variant {
    name: "no-early-doorbell",
    number: 14,
    omits: "the first of two doorbells, with its fence",
    ..STEP
};

const NO_EARLY_FENCE: Variant = Variant {
    name: "no-early-fence",
    number: 15,
    safety: Safety { order: OrderScope::None, ..SHARED },
    omits: "the fence before the first doorbell",
    ..STEP
};

const NO_LATE_FENCE: Variant = Variant {
    name: "no-late-fence",
    number: 16,
    safety: Safety { order: OrderScope::None, ..SHARED },
    omits: "the fence between doorbell record and second doorbell",
    ..STEP
};

const NO_CONSUMER_ACQUIRE: Variant = Variant {
    name: "no-consumer-acquire",
    number: 17,
    omits: "poll_cq_at's acquire fence, system scope (completion)",
    ..STEP
};

const NO_CONSUMER_MAX: Variant = Variant {
    name: "no-consumer-max",
    number: 18,
    omits: "poll_cq_at's atomic maximum of the consumer index (completion)",
    ..STEP
};

const EXCLUSIVE_STEP: Variant = Variant {
    about: "doca_gpu_dev_verbs_put's own calls, exclusive, without one",
    number: 120,
    safety: OWN,
    base: EXCLUSIVE.name,
    ..STEP
};

const EXCLUSIVE_NO_SPACE_CHECK: Variant = Variant {
    name: "exclusive-no-space-check",
    number: 121,
    safety: Safety { space: SpaceCheck::No, ..OWN },
    omits: "the wait for the slot's last completion, with its acquire fence",
    ..EXCLUSIVE_STEP
};

const EXCLUSIVE_NO_LOCK: Variant = Variant {
    name: "exclusive-no-lock",
    number: 122,
    omits: "the lock's two plain stores",
    ..EXCLUSIVE_STEP
};

const EXCLUSIVE_NO_PRODUCER_MAX: Variant = Variant {
    name: "exclusive-no-producer-max",
    number: 123,
    omits: "the maximum of the producer index",
    ..EXCLUSIVE_STEP
};

const EXCLUSIVE_NO_EARLY_DOORBELL: Variant = Variant {
    name: "exclusive-no-early-doorbell",
    number: 124,
    omits: "the first of two doorbells, with its fence",
    ..EXCLUSIVE_STEP
};

const EXCLUSIVE_NO_EARLY_FENCE: Variant = Variant {
    name: "exclusive-no-early-fence",
    number: 125,
    safety: Safety { order: OrderScope::None, ..OWN },
    omits: "the fence before the first doorbell",
    ..EXCLUSIVE_STEP
};

const EXCLUSIVE_NO_LATE_FENCE: Variant = Variant {
    name: "exclusive-no-late-fence",
    number: 126,
    safety: Safety { order: OrderScope::None, ..OWN },
    omits: "the fence between doorbell record and second doorbell",
    ..EXCLUSIVE_STEP
};

const PROXY_GIN: Variant = Variant {
    name: "gin",
    about: "ncclGin put, putValue, put with SignalInc; completion: flush, over all ranks",
    number: 300,
    ops: &[PeerOp::Put, PeerOp::PutValue, PeerOp::PutSignal],
    round_trip: true,
    rate: Some(RateLanes::Both),
    queue: Queue::Cpu,
    cpu_rings: false,
    safety: Safety { order: OrderScope::System, ..SHARED },
    scope: Scope::All,
    omits: "",
    base: "",
};

const PROXY_GIN_DESCRIPTOR: Variant = Variant {
    name: "gin-descriptor",
    about: "ncclGin put with a descriptor in shared memory",
    number: 301,
    ops: &[PeerOp::Put],
    rate: None,
    ..PROXY_GIN
};

const PROXY_GIN_RELEASED: Variant = Variant {
    name: "gin-released",
    about: "ncclGin put whose caller says that it has released at system scope: no fence",
    number: 302,
    safety: Safety { order: OrderScope::None, ..SHARED },
    ..PROXY_GIN_DESCRIPTOR
};

const PROXY_GIN_RELAXED_FLUSH: Variant = Variant {
    name: "gin-relaxed-flush",
    about: "ncclGin put; completion: flush that is asked for no acquire",
    number: 304,
    ..PROXY_GIN_DESCRIPTOR
};

const PROXY_PUT: Variant = Variant {
    name: "proxy-put",
    about: "nccl::gin::proxy::put with context and handles at hand; completion: its flush of one rank",
    number: 303,
    ops: &[PeerOp::Put, PeerOp::PutValue],
    scope: Scope::One,
    ..PROXY_GIN
};

const PROXY_STEP: Variant = Variant {
    name: "",
    about: "nccl::gin::proxy::put's own parts, without one",
    number: 310,
    ops: &[PeerOp::Put],
    round_trip: false,
    rate: None,
    base: PROXY_PUT.name,
    ..PROXY_PUT
};

const PROXY_NO_FENCE: Variant = Variant {
    name: "no-fence",
    number: 311,
    safety: Safety { order: OrderScope::None, ..SHARED },
    omits: "the release fence at system scope",
    ..PROXY_STEP
};

const PROXY_NO_CREDIT_CHECK: Variant = Variant {
    name: "no-credit-check",
    number: 312,
    safety: Safety { order: OrderScope::System, space: SpaceCheck::No, ..SHARED },
    omits: "the read of the consumer index",
    ..PROXY_STEP
};

const PROXY_NO_CLAIM_ATOMIC: Variant = Variant {
    name: "no-claim-atomic",
    number: 400,
    safety: Safety { order: OrderScope::System, ..OWN },
    omits: "the atomic that claims a slot (a load and a store are left)",
    ..PROXY_STEP
};

#[cfg(test)]
mod tests;
