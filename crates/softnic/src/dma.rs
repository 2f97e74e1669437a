//! Client memory, reached by word-wise atomics or by copies and never by a Rust reference.

use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::copy::{load, store};
use crate::memory::{CopiedMemory, Memory};

/// An access past a buffer's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes at offset {offset} lie past the end of a buffer of {size} bytes")]
pub struct OutOfBounds {
    /// First byte of the access.
    pub offset: usize,
    /// Bytes in the access.
    pub len: usize,
    /// Bytes in the buffer.
    pub size: usize,
}

/// A stretch of client memory: the NIC's only way to it.
#[derive(Clone)]
pub struct DmaBuf {
    kind: Kind,
}

#[derive(Clone)]
enum Kind {
    Mapped { base: NonNull<u8>, len: usize, _keep: Option<Arc<Memory>> },
    Copied { memory: Arc<dyn CopiedMemory>, start: usize, len: usize },
}

// SAFETY: mapped memory is only accessed atomically and, by `mapped`'s contract, from any thread; copied
// memory is Send and Sync itself.
unsafe impl Send for DmaBuf {}
// SAFETY: as above.
unsafe impl Sync for DmaBuf {}

/// A queue in mapped memory, as blocks of 64 bytes whose index wraps.
#[derive(Clone, Copy)]
pub(crate) struct Blocks<'a> {
    /// Aligned to words; blocks `0..=mask` lie inside of the buffer.
    base: NonNull<u64>,
    mask: usize,
    _memory: PhantomData<&'a DmaBuf>,
}

impl Blocks<'_> {
    #[inline(always)]
    fn at(&self, index: u64) -> *mut u64 {
        self.base.as_ptr().wrapping_add((index as usize & self.mask) * 8)
    }
    /// Word `word` (0 to 7) of block `index` (relaxed).
    #[inline(always)]
    pub(crate) fn word(&self, index: u64, word: usize) -> u64 {
        // SAFETY: inside of the buffer and aligned, by the fields' invariant; alive as long as the buffer.
        unsafe { AtomicU64::from_ptr(self.at(index).add(word & 7)) }.load(Ordering::Relaxed)
    }
    /// Gives up the cached copies of `count` blocks from `index` on.
    ///
    /// A NIC that reads a WQE over PCIe keeps no copy of it. A copy kept here would cost the client a round trip
    /// to this core when it writes the slot again.
    pub(crate) fn give_up(&self, index: u64, count: u64) {
        for index in index..index + count {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a write-back and invalidation changes no contents; the address is inside of the buffer.
            unsafe {
                core::arch::x86_64::_mm_clflush(self.at(index).cast())
            };
            #[cfg(not(target_arch = "x86_64"))]
            let _ = index;
        }
    }
    /// Asks for block `index` without waiting for it.
    #[inline(always)]
    pub(crate) fn prefetch(&self, index: u64) {
        #[cfg(target_arch = "x86_64")]
        {
            use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: a prefetch has no effect but on the cache; the address is inside of the buffer.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(self.at(index).cast()) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = index;
    }
}

/// Mapped memory as words.
#[derive(Clone, Copy)]
pub(crate) struct Words<'a> {
    /// Aligned to words; `last + 8` bytes lie inside of the buffer.
    base: NonNull<u8>,
    last: usize,
    _memory: PhantomData<&'a DmaBuf>,
}

impl Words<'_> {
    /// Stores a word (relaxed). False if it isn't aligned, or not inside.
    #[inline(always)]
    pub(crate) fn store(&self, offset: u64, word: u64) -> bool {
        let is_word = offset <= self.last as u64 && offset.is_multiple_of(8);
        if is_word {
            // SAFETY: inside of the buffer and aligned, by the fields' invariant; alive as long as the buffer.
            unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset as usize).cast()) }
                .store(word, Ordering::Relaxed);
        }
        is_word
    }
}

impl fmt::Debug for DmaBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::Mapped { base, len, .. } => write!(f, "mapped {base:p} + {len}"),
            Kind::Copied { start, len, .. } => write!(f, "copied {start} + {len}"),
        }
    }
}

impl DmaBuf {
    /// Memory mapped into this process.
    ///
    /// # Safety
    /// `base .. base + len` stays readable and writable, by any thread, until every object that was created
    /// with the buffer (queue, region, page) is destroyed. Others access it only atomically or from outside
    /// of Rust (a GPU, another process, C).
    #[must_use]
    pub unsafe fn mapped(base: NonNull<u8>, len: usize) -> Self {
        Self { kind: Kind::Mapped { base, len, _keep: None } }
    }

    /// Memory that is mapped as long as it lives.
    pub(crate) fn of(base: NonNull<u8>, memory: Arc<Memory>) -> Self {
        let len = memory.len();
        Self { kind: Kind::Mapped { base, len, _keep: Some(memory) } }
    }

    /// Memory reached by copies.
    #[must_use]
    pub fn copied(memory: Arc<dyn CopiedMemory>) -> Self {
        let len = memory.len();
        Self { kind: Kind::Copied { memory, start: 0, len } }
    }

    /// Bytes.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        match &self.kind {
            Kind::Mapped { len, .. } | Kind::Copied { len, .. } => *len,
        }
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A part of it, for instance one queue of a larger allocation.
    ///
    /// # Errors
    /// [`OutOfBounds`].
    pub fn slice(&self, offset: usize, len: usize) -> Result<Self, OutOfBounds> {
        self.check(offset, len)?;
        Ok(Self {
            kind: match &self.kind {
                Kind::Mapped { base, _keep, .. } => Kind::Mapped {
                    // SAFETY: `offset` is inside the buffer.
                    base: unsafe { base.add(offset) },
                    len,
                    _keep: _keep.clone(),
                },
                Kind::Copied { memory, start, .. } => {
                    Kind::Copied { memory: Arc::clone(memory), start: start + offset, len }
                }
            },
        })
    }

    #[inline]
    fn check(&self, offset: usize, len: usize) -> Result<(), OutOfBounds> {
        let size = self.len();
        if len <= size && offset <= size - len {
            Ok(())
        } else {
            Err(OutOfBounds { offset, len, size })
        }
    }

    /// Whether accesses of `align` bytes at multiples of it are naturally aligned.
    #[must_use]
    pub fn is_aligned(&self, align: usize) -> bool {
        match &self.kind {
            Kind::Mapped { base, .. } => base.addr().get().is_multiple_of(align),
            Kind::Copied { start, .. } => start.is_multiple_of(align),
        }
    }

    /// Copies bytes out: relaxed, word by word where aligned.
    ///
    /// # Errors
    /// [`OutOfBounds`].
    #[inline]
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), OutOfBounds> {
        self.check(offset, out.len())?;
        match &self.kind {
            // SAFETY: in bounds by the check above; the buffer is alive by its constructor's contract.
            Kind::Mapped { base, .. } => unsafe { load(base.as_ptr().add(offset), out) },
            Kind::Copied { memory, start, .. } => memory.read(start + offset, out),
        }
        Ok(())
    }

    /// Copies bytes in: relaxed, word by word where aligned, in ascending order of addresses.
    ///
    /// # Errors
    /// [`OutOfBounds`].
    #[inline]
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), OutOfBounds> {
        self.check(offset, bytes.len())?;
        match &self.kind {
            // SAFETY: in bounds by the check above; the buffer is alive by its constructor's contract.
            Kind::Mapped { base, .. } => unsafe { store(base.as_ptr().add(offset), bytes) },
            Kind::Copied { memory, start, .. } => memory.write(start + offset, bytes),
        }
        Ok(())
    }

    /// Reads one 64-byte block (relaxed).
    #[inline]
    pub(crate) fn read_block(&self, offset: usize) -> Result<[u64; 8], OutOfBounds> {
        self.check(offset, 64)?;
        let mut out = [0u64; 8];
        match &self.kind {
            Kind::Mapped { base, .. } if (base.addr().get() + offset).is_multiple_of(8) => {
                // SAFETY: in bounds and 8-byte aligned.
                let from: *mut u64 = unsafe { base.as_ptr().add(offset) }.cast();
                for (i, word) in out.iter_mut().enumerate() {
                    // SAFETY: as above.
                    *word = unsafe { AtomicU64::from_ptr(from.add(i)) }.load(Ordering::Relaxed);
                }
            }
            _ => self.read(offset, zerocopy::IntoBytes::as_mut_bytes(&mut out))?,
        }
        Ok(out)
    }

    /// The whole of it as `mask + 1` blocks of 64 bytes, if it is mapped and aligned to words.
    #[inline]
    pub(crate) fn blocks(&self, mask: u64) -> Option<Blocks<'_>> {
        let Kind::Mapped { base, len, .. } = &self.kind else { return None };
        let fits = mask < (*len as u64) / 64 && base.addr().get().is_multiple_of(8);
        fits.then_some(Blocks { base: base.cast(), mask: mask as usize, _memory: PhantomData })
    }

    /// The first `len` bytes as words, if they are mapped and aligned.
    #[inline]
    pub(crate) fn words(&self, len: u64) -> Option<Words<'_>> {
        let Kind::Mapped { base, len: size, .. } = &self.kind else { return None };
        let fits = len <= *size as u64 && base.addr().get().is_multiple_of(8);
        // The last word begins at or before.
        let last = (len as usize).checked_sub(8)?;
        fits.then_some(Words { base: *base, last, _memory: PhantomData })
    }

    /// Asks for the cache line at `offset` without waiting for it.
    #[inline]
    pub(crate) fn prefetch(&self, offset: usize) {
        #[cfg(target_arch = "x86_64")]
        if let Kind::Mapped { base, len, .. } = &self.kind
            && offset < *len
        {
            use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: a prefetch has no effect but on the cache; the address is inside the buffer.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(base.as_ptr().add(offset).cast()) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = offset;
    }

    /// The 4 bytes at `offset`, with acquire order: what the client wrote before it wrote them is seen.
    ///
    /// # Errors
    /// [`OutOfBounds`].
    #[inline]
    pub fn load_u32(&self, offset: usize) -> Result<[u8; 4], OutOfBounds> {
        self.check(offset, 4)?;
        let mut out = [0; 4];
        match &self.kind {
            Kind::Mapped { base, .. } if (base.addr().get() + offset).is_multiple_of(4) => {
                // SAFETY: in bounds and 4-byte aligned.
                let at: *mut u32 = unsafe { base.as_ptr().add(offset) }.cast();
                // SAFETY: as above.
                out = unsafe { AtomicU32::from_ptr(at) }.load(Ordering::Acquire).to_ne_bytes();
            }
            _ => {
                self.read(offset, &mut out)?;
                std::sync::atomic::fence(Ordering::Acquire);
            }
        }
        Ok(out)
    }

    /// The 8 bytes at `offset` (relaxed).
    ///
    /// # Errors
    /// [`OutOfBounds`].
    #[inline]
    pub fn load_u64(&self, offset: usize) -> Result<[u8; 8], OutOfBounds> {
        self.check(offset, 8)?;
        let mut out = [0; 8];
        match &self.kind {
            Kind::Mapped { base, .. } if (base.addr().get() + offset).is_multiple_of(8) => {
                // SAFETY: in bounds and 8-byte aligned.
                let at: *mut u64 = unsafe { base.as_ptr().add(offset) }.cast();
                // SAFETY: as above.
                out = unsafe { AtomicU64::from_ptr(at) }.load(Ordering::Relaxed).to_ne_bytes();
            }
            _ => self.read(offset, &mut out)?,
        }
        Ok(out)
    }

    /// Writes 8 bytes after everything that was written before (release).
    ///
    /// # Errors
    /// [`OutOfBounds`].
    #[inline]
    pub(crate) fn store_last(&self, offset: usize, bytes: [u8; 8]) -> Result<(), OutOfBounds> {
        self.check(offset, 8)?;
        match &self.kind {
            Kind::Mapped { base, .. } if (base.addr().get() + offset).is_multiple_of(8) => {
                // SAFETY: in bounds and 8-byte aligned.
                let at: *mut u64 = unsafe { base.as_ptr().add(offset) }.cast();
                // SAFETY: as above.
                unsafe { AtomicU64::from_ptr(at) }
                    .store(u64::from_ne_bytes(bytes), Ordering::Release);
                Ok(())
            }
            _ => {
                std::sync::atomic::fence(Ordering::Release);
                self.write(offset, &bytes)
            }
        }
    }

    /// Replaces the 8 bytes at `offset` if they are still `old`; for registers that the client stores to.
    pub(crate) fn replace_u64(
        &self,
        offset: usize,
        old: u64,
        new: u64,
    ) -> Result<bool, OutOfBounds> {
        self.modify_u64(offset, |value| (value == old).then_some(new)).map(|seen| seen == old)
    }

    /// Atomically replaces the 8 bytes at `offset` by `change` of them (native order) and gives the old ones.
    ///
    /// Atomic with respect to everybody for aligned mapped memory, with respect to this NIC for copied memory.
    pub(crate) fn modify_u64(
        &self,
        offset: usize,
        change: impl Fn(u64) -> Option<u64>,
    ) -> Result<u64, OutOfBounds> {
        self.check(offset, 8)?;
        match &self.kind {
            Kind::Mapped { base, .. } if (base.addr().get() + offset).is_multiple_of(8) => {
                // SAFETY: in bounds and 8-byte aligned.
                let at: *mut u64 = unsafe { base.as_ptr().add(offset) }.cast();
                // SAFETY: as above.
                let word = unsafe { AtomicU64::from_ptr(at) };
                Ok(match word.fetch_update(Ordering::AcqRel, Ordering::Acquire, change) {
                    Ok(old) | Err(old) => old,
                })
            }
            _ => {
                let old = u64::from_ne_bytes(self.load_u64(offset)?);
                if let Some(new) = change(old) {
                    self.write(offset, &new.to_ne_bytes())?;
                }
                Ok(old)
            }
        }
    }

    /// As [`modify_u64`](Self::modify_u64), for 4 bytes.
    pub(crate) fn modify_u32(
        &self,
        offset: usize,
        change: impl Fn(u32) -> Option<u32>,
    ) -> Result<u32, OutOfBounds> {
        self.check(offset, 4)?;
        match &self.kind {
            Kind::Mapped { base, .. } if (base.addr().get() + offset).is_multiple_of(4) => {
                // SAFETY: in bounds and 4-byte aligned.
                let at: *mut u32 = unsafe { base.as_ptr().add(offset) }.cast();
                // SAFETY: as above.
                let word = unsafe { AtomicU32::from_ptr(at) };
                Ok(match word.fetch_update(Ordering::AcqRel, Ordering::Acquire, change) {
                    Ok(old) | Err(old) => old,
                })
            }
            _ => {
                let old = u32::from_ne_bytes(self.load_u32(offset)?);
                if let Some(new) = change(old) {
                    self.write(offset, &new.to_ne_bytes())?;
                }
                Ok(old)
            }
        }
    }
}
