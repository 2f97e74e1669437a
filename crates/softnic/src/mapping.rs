//! Memory of a file, as processes share it.

use std::num::NonZero;
use std::os::fd::AsFd;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Memory of a file, mapped as long as this lives.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping is plain memory, reached through atomics or through who is handed its address.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// `len` bytes of a file from `offset` on, shared with all who map them.
    ///
    /// # Errors
    /// What the system says.
    pub fn new(
        file: impl AsFd,
        offset: u64,
        len: NonZero<usize>,
    ) -> Result<Self, rustix::io::Errno> {
        let len = len.get();
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of anybody.
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file,
                offset,
            )
        }?;
        let base = NonNull::new(base.cast()).ok_or(rustix::io::Errno::NOMEM)?;
        Ok(Self { base, len })
    }

    /// Its first byte.
    #[must_use]
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none: never.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length, and nobody has it any more.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}
