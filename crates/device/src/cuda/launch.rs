//! The kernels of the experiments, on a GPU.

use std::sync::Arc;
use std::time::Instant;

use super::gpu::Gpu;
use super::program::{Launched, Program};
use super::{CudaError, cache};
use crate::choice::Choice;
use crate::host::{Kernel, Relax};
use crate::like::{Like, LikeArgs};
use crate::proxy::{EnqueueArgs, ProxyChoice, ProxyKernel, ProxyRateArgs, ProxyRoundTripArgs};
use crate::source::{
    Body, ENTRY, KernelKind, ProxyKernelKind, like_translation_unit, proxy_translation_unit,
    translation_unit,
};
use crate::view::{LatencyArgs, RateArgs, RoundTripArgs};

/// What a kernel takes of a multiprocessor, and what that leaves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Resources {
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of shared memory of a block.
    pub shared: u32,
    /// Bytes of local memory of a thread.
    pub local: u32,
    /// Blocks of [`BLOCK`](Self::BLOCK) threads that a multiprocessor holds.
    pub resident_blocks: u32,
    /// The part of a multiprocessor's threads that can be resident.
    pub occupancy: f64,
}

impl Resources {
    /// Threads of a block, for counting resident ones.
    pub const BLOCK: u32 = 128;
}

/// A kernel that is compiled and loaded: what must be done before a persistent kernel runs.
pub struct Prepared {
    gpu: Arc<Gpu>,
    program: Arc<Program>,
}

impl Prepared {
    /// mini-gda's kernel for a choice.
    ///
    /// # Errors
    /// It can't be compiled or loaded.
    pub fn new(gpu: &Arc<Gpu>, kind: KernelKind, choice: &Choice) -> Result<Self, CudaError> {
        let args = match kind {
            KernelKind::Latency(_) | KernelKind::Bare(_) => size_of::<LatencyArgs>(),
            KernelKind::Rate | KernelKind::RateOf(_) => size_of::<RateArgs>(),
            KernelKind::RoundTrip => size_of::<RoundTripArgs>(),
        };
        Self::of(gpu, &translation_unit(kind, choice), args)
    }

    /// mini-proxy's kernel for a choice.
    ///
    /// # Errors
    /// It can't be compiled or loaded.
    pub fn proxy(
        gpu: &Arc<Gpu>,
        kind: ProxyKernelKind,
        choice: &ProxyChoice,
    ) -> Result<Self, CudaError> {
        let args = match kind {
            ProxyKernelKind::Enqueue(_) => size_of::<EnqueueArgs>(),
            ProxyKernelKind::Rate => size_of::<ProxyRateArgs>(),
            ProxyKernelKind::RoundTrip => size_of::<ProxyRoundTripArgs>(),
        };
        Self::of(gpu, &proxy_translation_unit(kind, choice), args)
    }

    /// The kernel that puts as a library does, with the bytes of what it finds its way by
    /// ([`constant`](crate::like::Peer::constant)), where it has any. They are the kernel's own: two sets of queues are
    /// two of these.
    ///
    /// # Errors
    /// It can't be compiled or loaded, or the bytes are another variable's.
    pub fn like(gpu: &Arc<Gpu>, like: Like, constant: &[u8]) -> Result<Self, CudaError> {
        let module = gpu.module(&cache::cubin(&like_translation_unit(like), gpu.info().arch)?)?;
        if let Some(name) = like.peer.constant() {
            module.set(name, constant)?;
        }
        Ok(Self { gpu: Arc::clone(gpu), program: module.program::<LikeArgs>(ENTRY)? })
    }

    pub(crate) fn of(gpu: &Arc<Gpu>, source: &str, args: usize) -> Result<Self, CudaError> {
        Ok(Self { gpu: Arc::clone(gpu), program: gpu.program(source, args)? })
    }

    /// What it takes of a multiprocessor.
    ///
    /// # Errors
    /// The driver fails.
    pub fn resources(&self) -> Result<Resources, CudaError> {
        let info = self.program.info();
        let resident_blocks = self.program.resident(Resources::BLOCK)?;
        let most = self.gpu.info().threads;
        Ok(Resources {
            registers: info.registers,
            shared: info.shared,
            local: info.local,
            resident_blocks,
            occupancy: f64::from(resident_blocks * Resources::BLOCK) / f64::from(most.max(1)),
        })
    }

    /// Runs `kernel`, and does `relax` while it waits for its end.
    ///
    /// # Errors
    /// [`Running::wait`](super::Running::wait)'s. What the kernel itself met is in the failure words of its
    /// arguments, also when it was late.
    ///
    /// # Safety
    /// As [`host::launch`](crate::host::launch); every address is one that the GPU can follow. The kernel is of the
    /// kind that this value was made for.
    pub unsafe fn run(
        &self,
        kernel: Kernel<'_>,
        relax: Option<&dyn Relax>,
        until: Instant,
        give_up: &dyn Fn() -> bool,
    ) -> Result<Launched, CudaError> {
        // SAFETY: the caller's contract.
        let running = unsafe {
            match kernel {
                Kernel::Latency(_, args) | Kernel::Bare(_, args) => self.start(args, 1, 1),
                // A warp a block: they spread over the multiprocessors.
                Kernel::Rate(args) => self.start(args, args.threads, WARP),
                Kernel::RoundTrip(args) => self.start(args, args.sides, 1),
            }
        }?;
        running.wait(until, relax, give_up)
    }

    /// The same for a kernel of the proxied path.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    ///
    /// # Safety
    /// As [`run`](Self::run).
    pub unsafe fn run_proxy(
        &self,
        kernel: ProxyKernel<'_>,
        relax: Option<&dyn Relax>,
        until: Instant,
        give_up: &dyn Fn() -> bool,
    ) -> Result<Launched, CudaError> {
        // SAFETY: the caller's contract.
        let running = unsafe {
            match kernel {
                ProxyKernel::Enqueue(_, args) => self.start(args, args.threads, 1),
                ProxyKernel::Rate(args) => self.start(args, args.threads, 1),
                ProxyKernel::RoundTrip(args) => self.start(args, args.sides, 1),
            }
        }?;
        running.wait(until, relax, give_up)
    }

    /// The same for the kernel that puts as a library does.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    ///
    /// # Safety
    /// As [`run`](Self::run); what this value was made with leads to what still exists.
    pub unsafe fn run_like(
        &self,
        args: &LikeArgs,
        relax: Option<&dyn Relax>,
        until: Instant,
        give_up: &dyn Fn() -> bool,
    ) -> Result<Launched, CudaError> {
        // SAFETY: the caller's contract.
        unsafe { self.start(args, args.threads, 1) }?.wait(until, relax, give_up)
    }

    /// # Safety
    /// As [`run`](Self::run).
    pub(crate) unsafe fn start<A: Copy>(
        &self,
        args: &A,
        grid: u32,
        block: u32,
    ) -> Result<super::Running, CudaError> {
        // SAFETY: the caller's contract.
        unsafe { self.program.start(&self.gpu, args, grid, block) }
    }
}

const WARP: u32 = 32;

impl Kernel<'_> {
    /// Which kernel it is.
    #[must_use]
    pub fn kind(&self) -> KernelKind {
        match self {
            Self::Latency(op, _) => KernelKind::Latency(*op),
            Self::Bare(op, _) => KernelKind::Bare(*op),
            Self::Rate(args) => {
                KernelKind::RateOf(match (args.lanes, args.is_inline, args.is_get) {
                    (32, 0, _) => Body::WarpPut,
                    (32, _, _) => Body::WarpPutValue,
                    (_, 0, 0) => Body::Put,
                    (_, 0, _) => Body::Get,
                    _ if args.bytes == 8 => Body::PutValue,
                    _ => Body::PutInline,
                })
            }
            Self::RoundTrip(_) => KernelKind::RoundTrip,
        }
    }
}

impl ProxyKernel<'_> {
    /// Which kernel it is.
    #[must_use]
    pub fn kind(&self) -> ProxyKernelKind {
        match self {
            Self::Enqueue(op, _) => ProxyKernelKind::Enqueue(*op),
            Self::Rate(_) => ProxyKernelKind::Rate,
            Self::RoundTrip(_) => ProxyKernelKind::RoundTrip,
        }
    }
}
