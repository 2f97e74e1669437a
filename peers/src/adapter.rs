//! What an adapter is: where its library's headers are, what has to be compiled, and the ways of posting that it has.

use std::path::Path;

/// A library with the adapter that measures it. The implementations are static tables in `peers/<library>/adapter.rs`.
#[derive(Debug)]
pub struct Adapter {
    /// Name of the library on the command line (`--peer-path NAME=DIR`), and of its folder.
    pub name: &'static str,
    /// Its name in the world.
    pub title: &'static str,
    /// Where it comes from, and what to do where it isn't found.
    pub source: Source,
    /// Version of the library, from its own files below its root.
    pub version: fn(root: &Path) -> Option<String>,
    /// Versions that the adapter was written for and measured with. Another is tried behind the checks of sizes that
    /// the adapter's code makes when it is compiled, and its record says so.
    pub known: &'static [&'static str],
    /// Folders of headers below the root.
    pub includes: &'static [&'static str],
    /// A static device library below the root that the kernel is linked with (`-rdc=true`), if any.
    pub device_library: Option<&'static str>,
    /// Another library whose headers it needs, by [`Adapter::name`].
    pub needs: Option<&'static str>,
    /// Definitions, for both compilations.
    pub defines: &'static [&'static str],
    /// Text of `kernel.cu`.
    pub kernel: &'static str,
    /// Text of `state.cpp`.
    pub state: &'static str,
    /// More files that those two include, by name.
    pub files: &'static [(&'static str, &'static str)],
    /// Its paths: each is a transport of gicbench.
    pub paths: &'static [PeerPath],
}

/// Where a library is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// A package of PyPI: its folder `nvidia/<folder>` in a Python environment, or a system's CUDA.
    PyPi {
        /// Requirement to install, such as `nvidia-nccl-cu13==2.28.9`.
        package: &'static str,
        /// Folder below `site-packages`, such as `nvidia/nccl`.
        folder: &'static str,
        /// A file below the root that tells that it is one.
        marker: &'static str,
    },
    /// A checkout that the user names.
    Checkout {
        /// Where to clone it from.
        url: &'static str,
        /// A file below the root that tells that it is one.
        marker: &'static str,
    },
}

/// One path of a library from a GPU thread to the NIC.
#[derive(Debug)]
pub struct PeerPath {
    /// Name of the transport.
    pub name: &'static str,
    /// One line for lists.
    pub about: &'static str,
    /// GPU threads ring, or a CPU posts for them.
    pub kind: PathKind,
    /// Bytes that a put of a value can have.
    pub value_bytes: &'static [u32],
    /// Ways of posting; the first is the library's default.
    pub variants: &'static [Variant],
}

/// Who hands a path's work to the NIC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathKind {
    /// GPU threads write WQEs.
    GpuSubmitted,
    /// A CPU thread posts what GPU threads write into a queue.
    Proxied,
}

/// One way of posting of a path: an API, a mode, or a sequence that leaves a step out.
#[derive(Debug)]
pub struct Variant {
    /// Name on the command line (`--variant`). Kernels are called `latency_<name>_<op>`, `rate_<name>` and
    /// `round_trip_<name>`, with `-` as `_`.
    pub name: &'static str,
    /// One line: what it calls.
    pub about: &'static str,
    /// Number that `state.cpp` is told.
    pub number: u32,
    /// Operations that have a latency kernel.
    pub ops: &'static [PeerOp],
    /// There is a round-trip kernel.
    pub round_trip: bool,
    /// There is a rate kernel for one lane, and for a warp.
    pub rate: Option<RateLanes>,
    /// What its queue pairs are.
    pub queue: Queue,
    /// A CPU thread writes the doorbell record and rings, for WQEs that GPU threads wrote.
    pub cpu_rings: bool,
    /// What it promises: only equal promises are compared as equals.
    pub safety: Safety,
    /// What its completion routine covers.
    pub scope: Scope,
    /// The step of the library's own sequence that it leaves out, to tell what that step costs; empty for the
    /// library's own calls.
    pub omits: &'static str,
    /// The variant of the same path that it is made from, and that its time is compared with to tell what the step
    /// costs; empty for the library's own calls, and where no variant differs from it in that step alone.
    pub base: &'static str,
}

/// Operations of the latency kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerOp {
    /// RDMA write from memory.
    Put,
    /// RDMA write of at most 8 bytes that the descriptor or WQE carries.
    PutValue,
    /// A write and a signal behind it, as the library does them in one call.
    PutSignal,
}

impl PeerOp {
    /// As kernels' names have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::PutValue => "put_value",
            Self::PutSignal => "put_signal",
        }
    }
}

/// How many lanes build a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RateLanes {
    /// One.
    One,
    /// A warp, with `rate_<name>_warp`, and one.
    Both,
}

/// What queue pairs a variant needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Queue {
    /// RC with a collapsed CQ.
    RcCollapsed,
    /// RC with a ring CQ that may overrun, as deep as the send queue.
    RcRing,
    /// DCI with a collapsed CQ.
    DcCollapsed,
    /// A CPU thread posts: its queue pair is gicbench's own.
    Cpu,
}

/// Who may use a queue at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// One thread.
    Exclusive,
    /// Threads of a block.
    Cta,
    /// Threads of the GPU.
    Gpu,
}

/// The scope of the fences before the doorbell (the descriptor's publication).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrderScope {
    /// None.
    None,
    /// GPU.
    Gpu,
    /// System.
    System,
}

/// Whether a put makes sure that its queue has room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpaceCheck {
    /// It does.
    Yes,
    /// The caller has to.
    No,
}

/// What a variant promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Safety {
    /// Who may use a queue at once.
    pub sharing: Sharing,
    /// Scope of its ordering.
    pub order: OrderScope,
    /// Whether a put makes sure of room.
    pub space: SpaceCheck,
}

/// What a completion routine covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The operation, or its queue.
    One,
    /// Every queue of the path.
    All,
    /// That the CPU has taken the operation: nothing is completed.
    Taken,
}

impl Sharing {
    /// Its name in records.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive",
            Self::Cta => "cta",
            Self::Gpu => "gpu",
        }
    }
}

impl OrderScope {
    /// Its name in records.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Gpu => "gpu",
            Self::System => "system",
        }
    }
}

impl SpaceCheck {
    /// Its name in records.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Yes => "yes",
            Self::No => "no",
        }
    }
}

impl Scope {
    /// Its name in records.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::One => "one",
            Self::All => "all",
            Self::Taken => "taken",
        }
    }
}
