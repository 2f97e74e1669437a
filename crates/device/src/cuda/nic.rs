//! What a NIC needs of a GPU: its memory as a dmabuf, and the NIC's registers in its address space.

use std::ffi::c_void;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;

use cudarc::driver::sys;

use super::CudaError;
use super::gpu::Gpu;

/// The system's page, which dmabufs consist of.
const PAGE: u64 = 4096;

impl Gpu {
    /// GPU memory as a dmabuf, by which the kernel gives it to other devices. Address and length are multiples of 4096.
    ///
    /// # Errors
    /// Not so aligned, or a driver, or a GPU, that has no dmabufs.
    pub fn dmabuf(&self, address: u64, bytes: usize) -> Result<OwnedFd, CudaError> {
        if !address.is_multiple_of(PAGE) || !(bytes as u64).is_multiple_of(PAGE) {
            return Err(CudaError::Call {
                call: "cuMemGetHandleForAddressRange",
                name: "unaligned".to_owned(),
                text: format!("{bytes} bytes at {address:#x} are not whole pages"),
            });
        }
        self.enter()?;
        let mut fd: RawFd = -1;
        let kind = sys::CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
        // SAFETY: the context is current; the answer is a descriptor, which there is room for.
        unsafe {
            sys::cuMemGetHandleForAddressRange((&raw mut fd).cast(), address, bytes, kind, 0)
        }
        .result()
        .map_err(CudaError::of("cuMemGetHandleForAddressRange"))?;
        if fd < 0 {
            return Err(CudaError::Call {
                call: "cuMemGetHandleForAddressRange",
                name: "no descriptor".to_owned(),
                text: "the driver gave none and no error".to_owned(),
            });
        }
        // SAFETY: a new descriptor, which is the caller's.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Makes a device's registers, which this process has mapped at `page`, reachable for the GPU's threads.
    ///
    /// # Errors
    /// A driver that doesn't register such memory: `PeerMappingOverride=1` of the kernel module (`RegistryDwords`), or more
    /// rights, may be what it lacks. Memory that only plays registers isn't I/O memory, and is registered as what it is.
    ///
    /// # Safety
    /// `page` is a mapping of whole pages that lives as long as what is returned.
    pub unsafe fn map_registers(
        self: &Arc<Self>,
        page: NonNull<u8>,
        bytes: usize,
    ) -> Result<Registers, CudaError> {
        self.enter()?;
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        let host: *mut c_void = page.as_ptr().cast();
        let register = |flags| {
            // SAFETY: the context is current; the caller keeps the mapping.
            unsafe { sys::cuMemHostRegister_v2(host, bytes, flags) }.result()
        };
        register(flags | sys::CU_MEMHOSTREGISTER_IOMEMORY)
            .or_else(|refused| register(flags).map_err(|_| refused))
            .map_err(CudaError::of("cuMemHostRegister (IOMEMORY)"))?;
        let mut registers = Registers { gpu: Arc::clone(self), host: page, device: 0 };
        // SAFETY: just registered; there is room for the answer.
        unsafe { sys::cuMemHostGetDevicePointer_v2(&raw mut registers.device, host, 0) }
            .result()
            .map_err(CudaError::of("cuMemHostGetDevicePointer"))?;
        Ok(registers)
    }
}

/// A device's registers in a GPU's address space, until this is dropped.
#[derive(Debug)]
pub struct Registers {
    gpu: Arc<Gpu>,
    host: NonNull<u8>,
    device: u64,
}

// SAFETY: an address; what is done through it is the callers' business.
unsafe impl Send for Registers {}
// SAFETY: as above.
unsafe impl Sync for Registers {}

impl Registers {
    /// Their address for the GPU's threads.
    #[must_use]
    pub fn device(&self) -> u64 {
        self.device
    }
}

impl Drop for Registers {
    fn drop(&mut self) {
        if self.gpu.enter().is_ok() {
            // SAFETY: registered in `map_registers`; nobody uses the address any more.
            let _ = unsafe { sys::cuMemHostUnregister(self.host.as_ptr().cast()) }.result();
        }
    }
}
