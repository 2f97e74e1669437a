//! Memory that a client shares with the NIC, and who made it.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::dma::{DmaBuf, OutOfBounds};

/// Memory that only copies reach, such as a GPU's.
///
/// Implementations are called from the engine's thread, inside `step`, and must not block for long. Offsets
/// are in bytes; the engine never asks for bytes past [`len`](Self::len).
pub trait CopiedMemory: Send + Sync {
    /// Bytes in the region.
    fn len(&self) -> usize;
    /// Whether the region has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Copies `out.len()` bytes at `offset` out of the region.
    fn read(&self, offset: usize, out: &mut [u8]);
    /// Copies `bytes` into the region at `offset`, in ascending order of addresses.
    fn write(&self, offset: usize, bytes: &[u8]);
}

/// Memory that can't be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes of memory can't be had")]
pub struct OutOfMemory {
    /// Bytes that were asked for.
    pub len: usize,
}

/// Memory shared between a client and the NIC. Where it is mapped into this process every access is atomic, so that
/// both may touch it at any moment.
pub struct Memory {
    base: NonNull<u8>,
    len: usize,
    backing: Backing,
}

enum Backing {
    /// Page-aligned, zeroed, allocated with this layout: `len` bytes, rounded up to pages.
    Own(Layout),
    /// Somebody else's, mapped into this process.
    Foreign(#[allow(dead_code, reason = "kept for its memory")] Box<dyn Any + Send + Sync>),
    /// Reached by copies only: `base` is the client's address, which nobody here follows.
    Copied(Arc<dyn CopiedMemory>),
}

// SAFETY: the memory is alive as long as this value, and all access to it goes through atomics or copies.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

const PAGE: usize = 4096;

impl Memory {
    /// `len` zero bytes (at least one page is allocated), for lengths that the code itself chooses.
    ///
    /// # Panics
    /// If they can't be had. Lengths that come from input go through [`try_zeroed`](Self::try_zeroed).
    #[must_use]
    pub fn zeroed(len: usize) -> Arc<Self> {
        #[allow(clippy::panic, reason = "documented; `try_zeroed` is the way that doesn't")]
        Self::try_zeroed(len).unwrap_or_else(|error| panic!("{error}"))
    }

    /// `len` zero bytes (at least one page is allocated).
    ///
    /// # Errors
    /// [`OutOfMemory`], also for a length that no allocation can have.
    pub fn try_zeroed(len: usize) -> Result<Arc<Self>, OutOfMemory> {
        let layout = len
            .max(1)
            .checked_next_multiple_of(PAGE)
            .and_then(|size| Layout::from_size_align(size, PAGE).ok())
            .ok_or(OutOfMemory { len })?;
        // SAFETY: the layout's size is not zero.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(OutOfMemory { len })?;
        Ok(Arc::new(Self { base, len, backing: Backing::Own(layout) }))
    }

    /// Memory that somebody else has mapped into this process, such as pinned memory of a GPU's driver.
    ///
    /// # Safety
    /// `base .. base + len` is readable and writable by any thread, and aligned to 64 bytes, as long as `keep` lives;
    /// others access it only atomically or from outside of Rust.
    #[must_use]
    pub unsafe fn foreign(
        base: NonNull<u8>,
        len: usize,
        keep: Box<dyn Any + Send + Sync>,
    ) -> Arc<Self> {
        Arc::new(Self { base, len, backing: Backing::Foreign(keep) })
    }

    /// Memory that this process reaches by copies only, such as a GPU's. `address` is the client's: it is in WQEs
    /// and in views, and isn't followed here.
    ///
    /// # Safety
    /// Where `address` lies, for a GPU whose threads follow it, `memory.len()` bytes are readable and writable as long
    /// as `memory` lives.
    #[must_use]
    pub unsafe fn copied(address: NonNull<u8>, memory: Arc<dyn CopiedMemory>) -> Arc<Self> {
        let len = memory.len();
        Arc::new(Self { base: address, len, backing: Backing::Copied(memory) })
    }

    /// Whether this process can follow its address; if not, only copies reach it.
    #[must_use]
    pub fn is_mapped(&self) -> bool {
        !matches!(self.backing, Backing::Copied(_))
    }

    /// Whether `bytes` bytes at `offset` can be followed, lie in it and are aligned to their size.
    fn holds(&self, offset: usize, bytes: usize) -> bool {
        self.is_mapped()
            && offset.is_multiple_of(bytes)
            && offset.checked_add(bytes).is_some_and(|end| end <= self.len)
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address of the first byte, for clients that store through pointers.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// The whole of it as the NIC sees it.
    #[must_use]
    pub fn dma(self: &Arc<Self>) -> DmaBuf {
        match &self.backing {
            Backing::Copied(memory) => DmaBuf::copied(Arc::clone(memory)),
            _ => DmaBuf::of(self.base, Arc::clone(self)),
        }
    }

    /// Copies bytes in, word-wise.
    ///
    /// # Errors
    /// [`OutOfBounds`].
    pub fn write(self: &Arc<Self>, offset: usize, bytes: &[u8]) -> Result<(), OutOfBounds> {
        self.dma().write(offset, bytes)
    }

    /// Copies bytes out, word-wise.
    ///
    /// # Errors
    /// [`OutOfBounds`].
    pub fn read(self: &Arc<Self>, offset: usize, out: &mut [u8]) -> Result<(), OutOfBounds> {
        self.dma().read(offset, out)
    }

    /// The aligned 8 bytes at `offset`.
    ///
    /// # Panics
    /// If they are unaligned, out of bounds, or in memory that isn't mapped.
    #[must_use]
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(self.holds(offset, 8), "word at {offset} of {}", self.len);
        // SAFETY: in bounds and aligned (the base is aligned to 64 bytes); all access is atomic.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    /// The aligned 4 bytes at `offset`.
    ///
    /// # Panics
    /// If they are unaligned, out of bounds, or in memory that isn't mapped.
    #[must_use]
    pub fn half(&self, offset: usize) -> &AtomicU32 {
        assert!(self.holds(offset, 4), "half at {offset} of {}", self.len);
        // SAFETY: in bounds and aligned (the base is aligned to 64 bytes); all access is atomic.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:p} + {}", self.base, self.len)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Backing::Own(layout) = self.backing {
            // SAFETY: allocated in `try_zeroed` with this very layout.
            unsafe { dealloc(self.base.as_ptr(), layout) }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Mutex;
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn a_length_that_no_allocation_can_have_is_told() {
        // Past what rounds up to pages, past what an allocation may be, and past any address space.
        for len in [usize::MAX, usize::MAX - PAGE + 2, isize::MAX as usize, 1 << 60] {
            assert_eq!(Memory::try_zeroed(len).map(drop), Err(OutOfMemory { len }));
        }
    }

    #[test]
    fn memory_has_the_length_that_was_asked_for() {
        for len in [0, 1, 8, PAGE - 1, PAGE, PAGE + 1] {
            let memory = Memory::try_zeroed(len).unwrap();
            assert_eq!((memory.len(), memory.is_empty()), (len, len == 0));
            let mut bytes = vec![1; len];
            memory.read(0, &mut bytes).unwrap();
            assert!(bytes.iter().all(|byte| *byte == 0));
            assert!(memory.read(1, &mut bytes).is_err() || len == 0);
        }
    }

    struct Copies(Mutex<Vec<u8>>);

    impl CopiedMemory for Copies {
        fn len(&self) -> usize {
            self.0.lock().unwrap().len()
        }
        fn read(&self, offset: usize, out: &mut [u8]) {
            out.copy_from_slice(&self.0.lock().unwrap()[offset..offset + out.len()]);
        }
        fn write(&self, offset: usize, bytes: &[u8]) {
            self.0.lock().unwrap()[offset..offset + bytes.len()].copy_from_slice(bytes);
        }
    }

    #[test]
    fn memory_that_is_not_mapped_is_read_and_written_and_gives_no_word() {
        let address = NonNull::new(0x7f00_0000_0000 as *mut u8).unwrap();
        // SAFETY: nobody follows the address.
        let memory = unsafe { Memory::copied(address, Arc::new(Copies(Mutex::new(vec![0; 32])))) };
        assert!(!memory.is_mapped());
        memory.write(9, &[1, 2, 3]).unwrap();
        let mut out = [0; 3];
        memory.read(9, &mut out).unwrap();
        assert_eq!((out, memory.as_ptr()), ([1, 2, 3], address.as_ptr()));
        assert!(memory.write(30, &out).is_err());
        let word = AssertUnwindSafe(|| memory.word(8).load(Ordering::Relaxed));
        assert!(catch_unwind(word).is_err());
    }

    #[test]
    fn foreign_memory_lives_as_long_as_somebody_has_it() {
        #[repr(align(64))]
        struct Page([u8; 64]);
        let page = Arc::new(Page([7; 64]));
        let base = NonNull::from(&page.0).cast();
        // SAFETY: the page lives in the box; nobody else is at it.
        let memory = unsafe { Memory::foreign(base, 64, Box::new(Arc::clone(&page))) };
        let dma = memory.dma();
        drop(memory);
        assert_eq!(Arc::strong_count(&page), 2);
        let mut out = [0; 2];
        dma.read(62, &mut out).unwrap();
        drop(dma);
        assert_eq!((out, Arc::strong_count(&page)), ([7; 2], 1));
    }

    #[test]
    fn a_word_that_is_not_inside_is_not_given() {
        let memory = Memory::zeroed(16);
        assert_eq!(memory.word(8).load(Ordering::Relaxed), 0);
        for offset in [1, 4, 9, 16, 24, usize::MAX - 7, usize::MAX] {
            let word =
                catch_unwind(AssertUnwindSafe(|| memory.word(offset).load(Ordering::Relaxed)));
            assert!(word.is_err(), "word at {offset}");
        }
        for offset in [2, 13, 16, usize::MAX - 3, usize::MAX] {
            let half =
                catch_unwind(AssertUnwindSafe(|| memory.half(offset).load(Ordering::Relaxed)));
            assert!(half.is_err(), "half at {offset}");
        }
    }
}
