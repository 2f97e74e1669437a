//! The libraries that gicbench is measured beside, each through its own unmodified device code.
//!
//! A library's GPU side needs only its device-side structures: queue memory, doorbell record and register, CQ, keys,
//! indices. Each folder of this room holds the adapter of one library: device code that calls the library's API, and a
//! piece of C++ that fills in those structures, both compiled at run time against the headers that are found on the
//! machine. Here is what is common: finding libraries and compilers, compiling with a cache, and the state of a side.
//!
//! Nothing of a library's code may enter this room, nor gicbench's own device code: a library's headers and those never
//! meet in one translation unit.

mod abi;
mod adapter;
mod compile;
mod error;
mod find;
mod state;

#[path = "../deepep/adapter.rs"]
mod deepep;
#[path = "../fabric-lib/adapter.rs"]
mod fabric_lib;
#[path = "../mscclpp/adapter.rs"]
mod mscclpp;
#[path = "../nccl/adapter.rs"]
mod nccl;
#[path = "../nvshmem/adapter.rs"]
mod nvshmem;
#[path = "../uccl-ep/adapter.rs"]
mod uccl_ep;

pub use abi::{
    Failure, LatencyArgs, Queue as SendQueue, RateArgs, Request, RequestKind, RoundTripArgs,
};
pub use adapter::{
    Adapter, OrderScope, PathKind, PeerOp, PeerPath, Queue, RateLanes, Safety, Scope, Sharing,
    Source, SpaceCheck, Variant,
};
pub use compile::{Compiled, Toolchain};
pub use error::PeerError;
pub use find::{Found, Paths, find};
pub use state::{Consumer, Side, State, StateLibrary};

/// The adapters, in the order in which they are listed.
#[must_use]
pub fn all() -> [&'static Adapter; 6] {
    [
        &nvshmem::ADAPTER,
        &nccl::ADAPTER,
        &deepep::ADAPTER,
        &mscclpp::ADAPTER,
        &uccl_ep::ADAPTER,
        &fabric_lib::ADAPTER,
    ]
}

/// The adapter and the path of a transport's name.
#[must_use]
pub fn path(name: &str) -> Option<(&'static Adapter, &'static PeerPath)> {
    let of = |adapter: &'static Adapter| adapter.paths.iter().map(move |path| (adapter, path));
    all().into_iter().flat_map(of).find(|(_, path)| path.name == name)
}

impl PeerPath {
    /// Its variant of that name; the default one for an empty name.
    #[must_use]
    pub fn variant(&self, name: &str) -> Option<&Variant> {
        if name.is_empty() {
            return self.variants.first();
        }
        self.variants.iter().find(|variant| variant.name == name)
    }
}

impl Variant {
    /// The entry point of a kernel: `latency` with an operation, `rate`, `rate` of a warp, `round_trip`.
    #[must_use]
    pub fn entry(&self, kind: &str, suffix: &str) -> String {
        let name = self.name.replace('-', "_");
        if suffix.is_empty() { format!("{kind}_{name}") } else { format!("{kind}_{name}_{suffix}") }
    }
}
