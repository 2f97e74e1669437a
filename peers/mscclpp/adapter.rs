//! MSCCL++: puts through a port channel's FIFO.

use std::fs;
use std::path::Path;

use crate::adapter::{
    Adapter, OrderScope, PathKind, PeerOp, PeerPath, Queue, RateLanes, Safety, Scope, Sharing,
    Source, SpaceCheck, Variant,
};

/// MSCCL++'s adapter.
pub static ADAPTER: Adapter = Adapter {
    name: "mscclpp",
    title: "MSCCL++",
    source: Source::Checkout {
        url: "https://github.com/microsoft/mscclpp",
        marker: "include/mscclpp/fifo_device.hpp",
    },
    version,
    known: &["0.9.0+864"],
    includes: &["include", "src/core", "src/core/include"],
    device_library: None,
    needs: None,
    defines: &[],
    kernel: include_str!("kernel.cu"),
    state: include_str!("state.cpp"),
    files: &[
        ("layout.h", include_str!("layout.h")),
        ("library_fifo.h", include_str!("library_fifo.h")),
    ],
    paths: &[PeerPath {
        name: "mscclpp",
        about: "MSCCL++ port channel: triggers in one FIFO of pinned host memory, posted by a CPU thread",
        kind: PathKind::Proxied,
        value_bytes: &[],
        variants: &[
            PUT,
            FUSED_FLUSH,
            PUSH,
            NO_FLUSH_TRIGGER,
            NO_RESERVATION,
            NO_SPACE_CHECK,
            NO_RELEASE,
        ],
    }],
};

/// The FIFO changed after the release of the same number (pull request 864): its handle tells.
fn version(root: &Path) -> Option<String> {
    let number = fs::read_to_string(root.join("VERSION")).ok()?;
    let header = fs::read_to_string(root.join("include/mscclpp/fifo_device.hpp")).ok()?;
    let fifo = if header.contains("sizeShift") { "+864" } else { "" };
    Some(format!("{}{fifo}", number.trim()))
}

const SAFETY: Safety =
    Safety { sharing: Sharing::Gpu, order: OrderScope::System, space: SpaceCheck::Yes };

const PUT: Variant = Variant {
    name: "put",
    about: "PortChannel put, putWithSignal; completion: flush",
    number: 0,
    ops: &[PeerOp::Put, PeerOp::PutSignal],
    round_trip: true,
    rate: Some(RateLanes::Both),
    queue: Queue::Cpu,
    cpu_rings: false,
    safety: SAFETY,
    scope: Scope::One,
    omits: "",
    base: "",
};

const FUSED_FLUSH: Variant = Variant {
    name: "fused-flush",
    about: "putWithSignalAndFlush, one trigger; completion: its wait",
    number: 1,
    ops: &[PeerOp::PutSignal],
    round_trip: false,
    rate: None,
    ..PUT
};

const PUSH: Variant = Variant {
    name: "push",
    about: "FIFO push of a put's trigger; completion: FIFO sync, that is, popped by the CPU",
    number: 2,
    ops: &[PeerOp::Put],
    round_trip: false,
    rate: Some(RateLanes::One),
    scope: Scope::Taken,
    ..PUT
};

const NO_FLUSH_TRIGGER: Variant = Variant {
    name: "no-flush-trigger",
    about: "a put's and a flush's trigger in one; completion: its wait",
    number: 3,
    omits: "the flush's own push",
    ..STEP
};

const NO_RESERVATION: Variant = Variant {
    name: "no-reservation",
    about: "put with the head in a register; completion: flush",
    number: 4,
    safety: Safety { sharing: Sharing::Exclusive, ..SAFETY },
    omits: "the atomic add on the head in GPU memory",
    ..STEP
};

const NO_SPACE_CHECK: Variant = Variant {
    name: "no-space-check",
    about: "put that takes a free slot for granted; completion: flush",
    number: 5,
    safety: Safety { space: SpaceCheck::No, ..SAFETY },
    omits: "the load of the cached tail and the comparison with it",
    ..STEP
};

const NO_RELEASE: Variant = Variant {
    name: "no-release",
    about: "put whose 16-byte store is relaxed; completion: flush",
    number: 6,
    safety: Safety { order: OrderScope::None, ..SAFETY },
    omits: "the system-scope release of the trigger's store",
    ..STEP
};

const STEP: Variant =
    Variant { ops: &[PeerOp::Put], round_trip: false, rate: None, base: PUT.name, ..PUT };
