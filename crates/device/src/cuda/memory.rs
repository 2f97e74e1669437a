//! Memory that a GPU reaches: where it lies decides what each access costs, and who can make it.

use std::ptr::NonNull;
use std::sync::Arc;

use cudarc::driver::{result, sys};

use super::CudaError;
use super::gpu::{Garbage, Gpu};

/// Where memory is made.
#[derive(Clone, Debug, Default)]
pub enum Place {
    /// Host memory that no GPU reaches.
    #[default]
    Host,
    /// Pinned host memory: one address for CPU and GPU.
    Pinned(Arc<Gpu>),
    /// GPU memory, which the CPU reaches by copies only.
    Gpu(Arc<Gpu>),
}

/// Pinned host memory, whole pages.
#[derive(Debug)]
pub struct Pinned {
    base: NonNull<u8>,
    len: usize,
    gpu: Arc<Gpu>,
}

// SAFETY: the allocation is owned by this value; what is done through its address is the callers' business.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

impl Pinned {
    pub(super) fn new(gpu: Arc<Gpu>, base: NonNull<u8>, len: usize) -> Self {
        Self { base, len, gpu }
    }

    /// The first byte, for CPU and GPU. Valid while this value lives.
    #[must_use]
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.gpu.free(Garbage::Pinned(self.base));
    }
}

/// GPU memory.
#[derive(Debug)]
pub struct GpuMemory {
    address: sys::CUdeviceptr,
    len: usize,
    gpu: Arc<Gpu>,
}

impl GpuMemory {
    pub(super) fn new(gpu: Arc<Gpu>, len: usize) -> Result<Self, CudaError> {
        let refused = |e: cudarc::driver::DriverError| CudaError::Memory {
            bytes: len,
            what: "GPU memory",
            reason: format!("{e:?}"),
        };
        // Freed memory comes back first.
        gpu.collect();
        // SAFETY: the context is current (`Gpu::memory`); freed in `drop`.
        let address = unsafe { result::malloc_sync(len.max(1)) }.map_err(refused)?;
        let memory = Self { address, len, gpu };
        // SAFETY: just allocated, so long. Setting is over before anything else is done with it.
        unsafe { result::memset_d8_sync(address, 0, len.max(1)) }.map_err(refused)?;
        result::ctx::synchronize().map_err(CudaError::of("cuCtxSynchronize"))?;
        Ok(memory)
    }

    /// The first byte as the GPU sees it; the CPU can't follow it. Valid while this value lives.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn check(&self, offset: usize, len: usize) -> Result<u64, CudaError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(self.address + offset as u64),
            _ => Err(CudaError::OutOfBounds { offset, len, size: self.len }),
        }
    }

    /// Copies out, beside kernels that run.
    ///
    /// # Errors
    /// Out of bounds, or a driver that fails.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), CudaError> {
        self.gpu.copy_out(self.check(offset, out.len())?, out)
    }

    /// Copies in, beside kernels that run; what is written is there when this returns.
    ///
    /// # Errors
    /// Out of bounds, or a driver that fails.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), CudaError> {
        self.gpu.copy_in(self.check(offset, bytes.len())?, bytes)
    }
}

impl Drop for GpuMemory {
    fn drop(&mut self) {
        self.gpu.free(Garbage::Gpu(self.address));
    }
}
