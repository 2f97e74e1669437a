//! Pages that the client maps: a doorbell page is one for the NIC and one for the client, of the same memory.

use std::num::NonZero;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use softnic::{DmaBuf, Memory};

use crate::errno::Errno;

pub(crate) const PAGE: usize = 4096;

/// Memory of a file, mapped as long as this lives.
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping is plain memory, reached through atomics or through who is handed its address.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// `len` bytes of a file from `offset` on, shared with all who map them.
    pub(crate) fn new(file: impl AsFd, offset: u64, len: NonZero<usize>) -> Result<Self, Errno> {
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
        let base = NonNull::new(base.cast()).ok_or(Errno::ENOMEM)?;
        Ok(Self { base, len })
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length, and nobody has it any more.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// What a client's `mmap` of a uverbs file gets: a stretch of this file instead.
#[derive(Clone, Debug)]
pub struct Mappable {
    /// The file to be mapped from its beginning.
    pub file: Arc<OwnedFd>,
    /// Bytes in it.
    pub len: usize,
}

/// A doorbell page.
pub(crate) struct DoorbellPage {
    pub(crate) dma: DmaBuf,
    pub(crate) mappable: Mappable,
}

impl DoorbellPage {
    pub(crate) fn new() -> Result<Self, Errno> {
        let file = memfd_create("uar", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, PAGE as u64)?;
        let len = NonZero::new(PAGE).ok_or(Errno::EINVAL)?;
        let mapping = Mapping::new(&file, 0, len)?;
        let base = mapping.base();
        // SAFETY: the mapping lives in the box; others store to it from C, or through atomics.
        let memory = unsafe { Memory::foreign(base, PAGE, Box::new(mapping)) };
        Ok(Self { dma: memory.dma(), mappable: Mappable { file: Arc::new(file), len: PAGE } })
    }
}
