//! The same put, get and signal by plain loads and stores, or bulk copies: what a queue, a doorbell and a NIC are added to.

use std::sync::Arc;
use std::time::Instant;

use crate::cuda::{CudaError, Gpu, Launched, Prepared};
use crate::host::{LaunchError, Relax, on_threads};
use crate::source::unit;
use crate::view::Op;

unsafe extern "C" {
    fn gic_host_direct_latency(op: u32, args: *const DirectArgs) -> bool;
    fn gic_host_direct_rate(args: *const DirectArgs, block: u32) -> bool;
    fn gic_host_direct_round_trip(args: *const DirectRoundTripArgs, side: u32) -> bool;
}

/// How a payload is moved (`gic::kernels::Move`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Move {
    /// By loads and stores.
    Store,
    /// By bulk copies through shared memory; multiples of 16 bytes.
    Bulk,
}

impl Move {
    const fn cpp(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Bulk => "bulk",
        }
    }
}

/// Arguments of the kernels that move payloads (`gic::kernels::DirectArgs`); see the header for what each means.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs)]
pub struct DirectArgs {
    pub local: u64,
    pub remote: u64,
    pub result: u64,
    pub signal: u64,
    pub signalled: u64,
    pub stride: u64,
    pub warmup: u64,
    pub samples: u64,
    pub first: u64,
    pub deadline: u64,
    pub issue: *mut u64,
    pub total: *mut u64,
    pub failure: *mut u64,
    pub arrived: *mut u32,
    pub bytes: u32,
    pub slots: u32,
    pub lanes: u32,
    pub blocks: u32,
    pub is_get: u32,
    pub padding: u32,
}

/// Arguments of the round trip (`gic::kernels::DirectRoundTripArgs`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs)]
pub struct DirectRoundTripArgs {
    pub inbox: [*mut u64; 2],
    pub outbox: [*mut u64; 2],
    pub warmup: u64,
    pub samples: u64,
    pub deadline: u64,
    pub ticks: *mut u64,
    pub failure: *mut u64,
    pub first_side: u32,
    pub sides: u32,
}

const _: () = {
    assert!(size_of::<DirectArgs>() == 136);
    assert!(size_of::<DirectRoundTripArgs>() == 80);
};

/// Which kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DirectKind {
    /// One operation at a time.
    Latency(Move, Op),
    /// Many operations of many blocks.
    Rate(Move),
    /// A signal and its answer.
    RoundTrip,
}

/// A kernel with its arguments.
#[derive(Clone, Copy, Debug)]
pub enum DirectKernel<'a> {
    /// One operation at a time; one block.
    Latency(Move, Op, &'a DirectArgs),
    /// Many operations; as many blocks as the arguments say.
    Rate(Move, &'a DirectArgs),
    /// A thread a side, of as many sides as the arguments say.
    RoundTrip(&'a DirectRoundTripArgs),
}

impl DirectKernel<'_> {
    /// Which it is.
    #[must_use]
    pub fn kind(&self) -> DirectKind {
        match *self {
            Self::Latency(by, op, _) => DirectKind::Latency(by, op),
            Self::Rate(by, _) => DirectKind::Rate(by),
            Self::RoundTrip(_) => DirectKind::RoundTrip,
        }
    }
}

/// The CUDA C++ translation unit of one kernel.
#[must_use]
pub fn translation_unit(kind: DirectKind) -> String {
    let (args, body) = match kind {
        DirectKind::Latency(by, op) => (
            "DirectArgs",
            format!(
                "gic::kernels::direct_latency<gic::kernels::Move::{}, gic::kernels::Op::{}>(a);",
                by.cpp(),
                op.cpp()
            ),
        ),
        DirectKind::Rate(by) => (
            "DirectArgs",
            format!("gic::kernels::direct_rate<gic::kernels::Move::{}>(a, blockIdx.x);", by.cpp()),
        ),
        DirectKind::RoundTrip => (
            "DirectRoundTripArgs",
            "if (threadIdx.x == 0 && blockIdx.x < a.sides)\n        \
             gic::kernels::direct_round_trip(a, a.first_side + blockIdx.x);"
                .to_owned(),
        ),
    };
    unit("direct", args, "", &body)
}

/// Runs `kernel` on threads of its own, a block a thread; as [`host::launch`](crate::host::launch).
///
/// # Errors
/// Threads that can't be started. What the kernel met is in the failure words of its arguments.
///
/// # Safety
/// Every address in the arguments is one that this process can follow, of as much memory as the kernel moves.
pub unsafe fn launch(
    kernel: DirectKernel<'_>,
    cpus: &[usize],
    relax: Option<&dyn Relax>,
) -> Result<(), LaunchError> {
    struct Shared<'a>(DirectKernel<'a>);
    // SAFETY: the kernels are made for several threads; the caller vouches for the pointers.
    unsafe impl Sync for Shared<'_> {}

    let shared = Shared(kernel);
    let threads = match kernel {
        DirectKernel::Latency(..) => 1,
        DirectKernel::Rate(_, args) => args.blocks,
        DirectKernel::RoundTrip(args) => args.sides,
    };
    // All of them are built.
    on_threads(threads, cpus, relax, |thread| {
        let shared = &shared;
        // SAFETY: the caller's contract.
        unsafe {
            match shared.0 {
                DirectKernel::Latency(_, op, args) => gic_host_direct_latency(op as u32, args),
                DirectKernel::Rate(_, args) => gic_host_direct_rate(args, thread),
                DirectKernel::RoundTrip(args) => {
                    gic_host_direct_round_trip(args, args.first_side + thread)
                }
            }
        }
    })
    .map(drop)
}

/// The kernel, compiled and loaded.
///
/// # Errors
/// It can't be compiled or loaded.
pub fn prepare(gpu: &Arc<Gpu>, kind: DirectKind) -> Result<Prepared, CudaError> {
    let args = match kind {
        DirectKind::Latency(..) | DirectKind::Rate(_) => size_of::<DirectArgs>(),
        DirectKind::RoundTrip => size_of::<DirectRoundTripArgs>(),
    };
    Prepared::of(gpu, &translation_unit(kind), args)
}

/// Runs what [`prepare`] gave, and does `relax` while it waits for its end.
///
/// # Errors
/// As [`Prepared::run`].
///
/// # Safety
/// As [`launch`], for the GPU's threads.
pub unsafe fn run(
    prepared: &Prepared,
    kernel: DirectKernel<'_>,
    relax: Option<&dyn Relax>,
    until: Instant,
    give_up: &dyn Fn() -> bool,
) -> Result<Launched, CudaError> {
    // SAFETY: the caller's contract.
    let running = unsafe {
        match kernel {
            DirectKernel::Latency(_, _, args) => prepared.start(args, 1, args.lanes),
            DirectKernel::Rate(_, args) => prepared.start(args, args.blocks, args.lanes),
            DirectKernel::RoundTrip(args) => prepared.start(args, args.sides, 1),
        }
    }?;
    running.wait(until, relax, give_up)
}
