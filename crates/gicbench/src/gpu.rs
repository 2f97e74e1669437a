//! The GPU of this process, opened once.

use std::sync::{Arc, OnceLock};

use device::cuda::{Gpu, GpuInfo};

/// The GPU that kernels run on: the first that the driver shows. `CUDA_VISIBLE_DEVICES` chooses another.
///
/// # Errors
/// Why there is none, in words.
pub fn open() -> Result<Arc<Gpu>, String> {
    static GPU: OnceLock<Result<Arc<Gpu>, String>> = OnceLock::new();
    GPU.get_or_init(|| Gpu::open(0).map_err(|error| error.to_string())).clone()
}

/// What it is, in one line.
pub fn describe(info: &GpuInfo) -> String {
    format!(
        "{} at {} ({}, {} SMs, {} MHz at most, {} GiB, CUDA {}.{})",
        info.name,
        info.pci,
        info.arch.name(),
        info.multiprocessors,
        info.max_clock_mhz,
        info.memory >> 30,
        info.driver / 1000,
        info.driver % 1000 / 10,
    )
}
