//! Pages that the client maps: a doorbell page is one for the NIC and one for the client, of the same memory.

use std::num::NonZero;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use softnic::{DmaBuf, Mapping, Memory};

use crate::errno::Errno;

pub(crate) const PAGE: usize = 4096;

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
