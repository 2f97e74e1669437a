//! The `cuda` submitter: GPU threads run the device code.
//!
//! The driver is loaded at run time: a program that links this starts and works without CUDA, and says what is
//! missing when it is asked for a GPU. Kernels are compiled by [`nvrtc`](crate::nvrtc) and launched here; what
//! they are for isn't known here.

mod cache;
mod calibrate;
mod gpu;
mod launch;
mod memory;
mod nic;
mod program;

pub use cache::folder as cache_folder;
pub use gpu::{Gpu, GpuInfo, PeerLink, Persistent, gpu_count, peer_link};
pub use launch::{Prepared, Resources};
pub use memory::{GpuMemory, Pinned, Place};
pub use nic::Registers;
pub use program::{Launched, Module, Program, Running};

use cudarc::driver::DriverError;

use crate::nvrtc::NvrtcError;

/// Why a GPU can't be used, or why a launch failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// The driver's library isn't there.
    #[error(
        "the CUDA driver (libcuda.so.1) was not found: install NVIDIA's driver, 580 or newer; in a container, start \
         it with the NVIDIA runtime (`--gpus all`)"
    )]
    NoDriver,
    /// There is no such GPU.
    #[error("there is no GPU {ordinal}: the driver has {count} (is CUDA_VISIBLE_DEVICES set?)")]
    NoDevice {
        /// Asked for.
        ordinal: u32,
        /// How many there are.
        count: u32,
    },
    /// A GPU can't follow addresses of another's memory.
    #[error(
        "GPU {from} can't reach the memory of GPU {to}: `nvidia-smi topo -p2p r` says which pairs can (over PCIe, an \
         IOMMU or ACS may forbid it)"
    )]
    NoPeerAccess {
        /// Whose threads.
        from: u32,
        /// Whose memory.
        to: u32,
    },
    /// Memory can't be had.
    #[error("{bytes} bytes of {what} can't be had: {reason}")]
    Memory {
        /// How much.
        bytes: usize,
        /// Which kind.
        what: &'static str,
        /// The driver's answer.
        reason: String,
    },
    /// The driver serves an older CUDA than the kernels are compiled for.
    #[error(
        "the NVIDIA driver serves CUDA {}.{}, and the kernels need 13.0: install driver 580 or newer",
        .found / 1000, .found % 1000 / 10
    )]
    OldDriver {
        /// What it serves, such as 12020.
        found: u32,
    },
    /// Something that waits for the device was asked for beside a kernel that doesn't end by itself.
    #[error("{what} waits for the device, which a persistent kernel keeps busy: stop that first")]
    BesidePersistent {
        /// What was asked for.
        what: &'static str,
    },
    /// All streams are in use.
    #[error("as many kernels run side by side as there are streams for")]
    Busy,
    /// An access past the end of GPU memory.
    #[error("{len} bytes at offset {offset} lie past the end of {size} bytes of GPU memory")]
    OutOfBounds {
        /// First byte.
        offset: usize,
        /// Bytes.
        len: usize,
        /// Of the allocation.
        size: usize,
    },
    /// A module has no such variable.
    #[error(
        "the module has no variable {name} of {bytes} bytes{}",
        found.map(|found| format!(": it has one of {found}")).unwrap_or_default()
    )]
    NoSymbol {
        /// Its name.
        name: String,
        /// Bytes that it was to have.
        bytes: usize,
        /// Bytes of the one that is there.
        found: Option<usize>,
    },
    /// A kernel isn't compiled.
    #[error(transparent)]
    Compile(#[from] NvrtcError),
    /// A call of the driver failed.
    #[error("{call}: {name} ({text})")]
    Call {
        /// Which call.
        call: &'static str,
        /// The error's name.
        name: String,
        /// The driver's explanation.
        text: String,
    },
    /// A kernel did not return in time. It was told to give up its waits, and did: its failure words say at what
    /// it was waiting.
    #[error("the kernel did not return within {seconds:.1} s, and was told to give up")]
    Late {
        /// How long it was waited for.
        seconds: f64,
    },
    /// A kernel did not even return when it was told to: the GPU can't be used any more by this process.
    #[error(
        "a kernel doesn't return, and isn't in any of its waits: this process can't use the GPU any more"
    )]
    Stuck,
}

impl CudaError {
    fn of(call: &'static str) -> impl Fn(DriverError) -> Self {
        move |error| {
            let text = |text: Result<&std::ffi::CStr, DriverError>| {
                text.map_or_else(|_| "unknown".to_owned(), |t| t.to_string_lossy().into_owned())
            };
            Self::Call { call, name: text(error.error_name()), text: text(error.error_string()) }
        }
    }
}
