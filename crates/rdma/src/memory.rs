//! Memory for queues and payloads, made where a submitter needs it.

use std::ptr::NonNull;
use std::sync::Arc;

use device::cuda::{GpuMemory, Place};
use softnic::{CopiedMemory, Memory};

use crate::Error;

/// `bytes` zero bytes in `place`.
///
/// # Errors
/// There isn't so much memory there.
pub fn memory(place: &Place, bytes: usize) -> Result<Arc<Memory>, Error> {
    match place {
        Place::Host => Ok(Memory::try_zeroed(bytes)?),
        Place::Pinned(gpu) => {
            let pinned = gpu.pinned(bytes)?;
            let base = pinned.base();
            // SAFETY: pinned memory is mapped, of whole pages, and lives as long as the box; the driver and the GPU
            // are outside of Rust.
            Ok(unsafe { Memory::foreign(base, bytes, Box::new(pinned)) })
        }
        Place::Gpu(gpu) => {
            let memory = gpu.memory(bytes)?;
            let address = NonNull::new(memory.address() as *mut u8)
                .ok_or(softnic::OutOfMemory { len: bytes })?;
            // SAFETY: the GPU's own allocation, which lives as long as the copies' owner.
            Ok(unsafe { Memory::copied(address, Arc::new(Copies(memory))) })
        }
    }
}

/// GPU memory, as the software NIC's engine reaches it.
struct Copies(GpuMemory);

impl CopiedMemory for Copies {
    fn len(&self) -> usize {
        self.0.len()
    }

    // A driver that fails has lost the GPU: the submitter's own wait finds that out and says so. Bytes that can't be
    // read are zeros, which no WQE and no record that counts is.
    fn read(&self, offset: usize, out: &mut [u8]) {
        if self.0.read(offset, out).is_err() {
            out.fill(0);
        }
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        let _ = self.0.write(offset, bytes);
    }
}
