//! A client's memory, as a kernel reaches it.

use std::sync::Arc;

use softnic::{DmaBuf, Memory};

use crate::errno::Errno;

/// The memory that a client's pointers lead into.
pub trait ClientMemory: Send + Sync {
    /// Copies bytes out.
    ///
    /// # Errors
    /// `EFAULT` if not all of them are there.
    fn read(&self, address: u64, out: &mut [u8]) -> Result<(), Errno>;

    /// Copies bytes in.
    ///
    /// # Errors
    /// `EFAULT` if not all of them are there.
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Errno>;

    /// Hands a stretch of it to the NIC, for as long as the buffer lives.
    ///
    /// # Errors
    /// `EFAULT` if not all of it is there, or not writable where it has to be.
    fn pin(&self, address: u64, len: u64, writable: bool) -> Result<DmaBuf, Errno>;
}

/// A buffer that plays a client's whole memory, from an address on: for tests and fuzzers.
#[derive(Clone, Debug)]
pub struct BufferMemory {
    base: u64,
    bytes: Arc<Memory>,
}

impl BufferMemory {
    /// `len` zero bytes from address `base` on.
    #[must_use]
    pub fn new(base: u64, len: usize) -> Self {
        Self { base, bytes: Memory::zeroed(len) }
    }

    fn offset(&self, address: u64, len: u64) -> Result<usize, Errno> {
        let offset = address.checked_sub(self.base).ok_or(Errno::EFAULT)?;
        let end = offset.checked_add(len).ok_or(Errno::EFAULT)?;
        if end > self.bytes.len() as u64 { Err(Errno::EFAULT) } else { Ok(offset as usize) }
    }
}

impl ClientMemory for BufferMemory {
    fn read(&self, address: u64, out: &mut [u8]) -> Result<(), Errno> {
        let offset = self.offset(address, out.len() as u64)?;
        self.bytes.read(offset, out).map_err(|_| Errno::EFAULT)
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Errno> {
        let offset = self.offset(address, bytes.len() as u64)?;
        self.bytes.write(offset, bytes).map_err(|_| Errno::EFAULT)
    }

    fn pin(&self, address: u64, len: u64, _writable: bool) -> Result<DmaBuf, Errno> {
        let offset = self.offset(address, len)?;
        self.bytes.dma().slice(offset, len as usize).map_err(|_| Errno::EFAULT)
    }
}
