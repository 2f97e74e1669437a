//! fabric-lib: a flag or a counter that a GPU thread raises for a request that the CPU knows.

use std::fs;
use std::path::Path;

use crate::adapter::{
    Adapter, OrderScope, PathKind, PeerOp, PeerPath, Queue, RateLanes, Safety, Scope, Sharing,
    Source, SpaceCheck, Variant,
};

/// fabric-lib's adapter.
pub static ADAPTER: Adapter = Adapter {
    name: "fabric-lib",
    title: "fabric-lib",
    source: Source::Checkout {
        url: "https://github.com/perplexityai/pplx-garden",
        marker: "p2p-all-to-all/a2a-kernels/src/core/memory.cuh",
    },
    version,
    known: &["244600375fe9"],
    includes: &["p2p-all-to-all/a2a-kernels/src"],
    device_library: None,
    needs: None,
    defines: &[],
    kernel: include_str!("kernel.cu"),
    state: include_str!("state.cpp"),
    files: &[("layout.h", include_str!("layout.h"))],
    paths: &[PeerPath {
        name: "fabric-lib",
        about: "fabric-lib: a byte flag or a watcher's word in pinned host memory, raised for a \
                request that the CPU thread knows",
        kind: PathKind::Proxied,
        value_bytes: &[],
        variants: &[FLAG, WATCHER, WATCHER_RELEASE, NO_COUNT],
    }],
};

/// Its files name no version: the commit of the checkout.
fn version(root: &Path) -> Option<String> {
    let git = root.join(".git");
    let head = fs::read_to_string(git.join("HEAD")).ok()?;
    let commit = match head.trim().strip_prefix("ref: ") {
        Some(name) => commit_of(&git, name)?,
        None => head.trim().to_owned(),
    };
    commit.get(..12).map(str::to_owned)
}

fn commit_of(git: &Path, name: &str) -> Option<String> {
    if let Ok(commit) = fs::read_to_string(git.join(name)) {
        return Some(commit.trim().to_owned());
    }
    let packed = fs::read_to_string(git.join("packed-refs")).ok()?;
    let mut lines = packed.lines().filter_map(|line| line.split_once(' '));
    lines.find(|(_, of)| *of == name).map(|(commit, _)| commit.to_owned())
}

const SAFETY: Safety =
    Safety { sharing: Sharing::Exclusive, order: OrderScope::Gpu, space: SpaceCheck::No };

const FLAG: Variant = Variant {
    name: "flag",
    about: "add_release_gpu_u32 on the count of blocks, st_mmio_b8 of the flag by the last, as the \
            all-to-all kernels do; completion: ld_mmio_b8 of a flag of the CPU's",
    number: 0,
    ops: &[PeerOp::Put],
    round_trip: true,
    rate: None,
    queue: Queue::Cpu,
    cpu_rings: false,
    safety: SAFETY,
    scope: Scope::One,
    omits: "",
    base: "",
};

const WATCHER: Variant = Variant {
    name: "watcher",
    about: "st_relaxed_u32 to a UVM watcher's word; completion: ld_acquire_u32 of a count of the \
            CPU's",
    number: 1,
    rate: Some(RateLanes::One),
    safety: Safety { order: OrderScope::None, ..SAFETY },
    ..FLAG
};

const WATCHER_RELEASE: Variant = Variant {
    name: "watcher-release",
    about: "st_release_u32 to a UVM watcher's word; completion: ld_acquire_u32 of a count of the \
            CPU's",
    number: 2,
    safety: Safety { order: OrderScope::System, ..SAFETY },
    ..WATCHER
};

const NO_COUNT: Variant = Variant {
    name: "no-count",
    about: "st_mmio_b8 of the flag alone",
    number: 3,
    round_trip: false,
    safety: Safety { order: OrderScope::None, ..SAFETY },
    omits: "the count of blocks: an atomic addition with release at GPU scope, and its reset",
    base: FLAG.name,
    ..FLAG
};
