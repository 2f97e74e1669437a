//! Values that device code reaches by address.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use crate::cuda::{CudaError, GpuMemory, Pinned, Place};

/// A value that device code reads and writes.
///
/// # Safety
/// Every pattern of bytes is a value of the type.
pub unsafe trait DeviceValue: Copy {}

macro_rules! device_values {
    ($($type:ty),*) => {
        $(
            // SAFETY: integers and raw pointers only, and arrays and structures of them.
            unsafe impl DeviceValue for $type {}
        )*
    };
}
device_values!(
    u8,
    u32,
    u64,
    crate::view::QpState,
    crate::view::QpView,
    crate::like::DocaQp,
    crate::like::IbgdaCq,
    crate::like::IbgdaQp,
    crate::like::LikeQueue,
    crate::like::LikeState,
    crate::proxy::RingState,
    crate::proxy::RingView,
    crate::proxy::ProxyChannel
);

/// A fixed array that is handed to device code as an address.
///
/// The address stays valid, and alone in leading to the values, until this is dropped: moving the owner moves no
/// value, and there is no way to a reference that would claim the values for Rust while device code changes them.
pub struct Shared<T: DeviceValue> {
    base: NonNull<T>,
    count: usize,
    memory: Backing,
    /// Held by `read` and `write`.
    host: Mutex<()>,
}

/// What the values lie in.
enum Backing {
    Host(Layout),
    Pinned(#[allow(dead_code, reason = "kept for its memory")] Pinned),
    Gpu(GpuMemory),
}

// SAFETY: of this process only `read` and `write` follow the address, one at a time. Who else follows it does so in `unsafe` code, whose
// contract (one thread at a time, or atomics: the choices of the device code) it is to keep.
unsafe impl<T: DeviceValue + Send> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: DeviceValue + Send> Sync for Shared<T> {}

impl<T: DeviceValue> Shared<T> {
    /// Holds a copy of `values` in host memory.
    ///
    /// Aborts where there is no memory for them, as a `Vec` does.
    #[must_use]
    pub fn new(values: &[T]) -> Self {
        let of = Layout::for_value(values);
        // An allocation of no bytes has no address of its own; this one has a value's alignment, and some bytes.
        let layout = if of.size() == 0 { Layout::new::<(T, u8)>() } else { of };
        // SAFETY: the layout's size is not zero.
        let base = unsafe { alloc(layout) };
        let Some(base) = NonNull::new(base.cast::<T>()) else { handle_alloc_error(layout) };
        // SAFETY: the allocation has the layout of `values` and is new, so that the two don't overlap.
        unsafe { base.copy_from_nonoverlapping(NonNull::from(values).cast(), values.len()) };
        Self { base, count: values.len(), memory: Backing::Host(layout), host: Mutex::new(()) }
    }

    /// Holds a copy of `values` where `place` says: an address that the threads of that GPU can follow.
    ///
    /// # Errors
    /// There is no such memory.
    pub fn at(place: &Place, values: &[T]) -> Result<Self, CudaError> {
        const { assert!(align_of::<T>() <= 256, "what the driver aligns allocations to") };
        let bytes = size_of_val(values);
        match place {
            Place::Host => Ok(Self::new(values)),
            Place::Pinned(gpu) => {
                let pinned = gpu.pinned(bytes)?;
                let base = pinned.base().cast::<T>();
                // SAFETY: new memory of as many bytes, aligned to pages.
                unsafe {
                    base.copy_from_nonoverlapping(NonNull::from(values).cast(), values.len())
                };
                Ok(Self {
                    base,
                    count: values.len(),
                    memory: Backing::Pinned(pinned),
                    host: Mutex::new(()),
                })
            }
            Place::Gpu(gpu) => {
                let memory = gpu.memory(bytes)?;
                // SAFETY: the values as bytes, of which none is written through this.
                memory.write(0, unsafe {
                    std::slice::from_raw_parts(values.as_ptr().cast(), bytes)
                })?;
                let base = NonNull::new(memory.address() as *mut T).ok_or(CudaError::Memory {
                    bytes,
                    what: "GPU memory",
                    reason: "null".to_owned(),
                })?;
                Ok(Self {
                    base,
                    count: values.len(),
                    memory: Backing::Gpu(memory),
                    host: Mutex::new(()),
                })
            }
        }
    }

    /// Address of the first value, for device code. Valid while this value lives.
    #[must_use]
    pub fn as_ptr(&self) -> *mut T {
        self.base.as_ptr()
    }

    /// Values.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// A copy of the values, for when no device code changes them.
    ///
    /// # Errors
    /// GPU memory that can't be read.
    pub fn read(&self) -> Result<Vec<T>, CudaError> {
        let _alone = self.host.lock().unwrap_or_else(PoisonError::into_inner);
        let mut values: Vec<T> = Vec::with_capacity(self.count);
        let bytes = self.count * size_of::<T>();
        // SAFETY: room for `count` values, each of which is initialised from one before the length says so. Host
        // memory is read as device code on the CPU would.
        unsafe {
            match &self.memory {
                Backing::Gpu(memory) => {
                    let to: *mut u8 = values.as_mut_ptr().cast();
                    to.write_bytes(0, bytes);
                    memory.read(0, std::slice::from_raw_parts_mut(to, bytes))?;
                }
                _ => self.base.as_ptr().copy_to_nonoverlapping(values.as_mut_ptr(), self.count),
            }
            values.set_len(self.count);
        }
        Ok(values)
    }

    /// Writes values from the first one on, for when no device code uses them.
    ///
    /// # Errors
    /// GPU memory that can't be written, or more values than there are.
    pub fn write(&self, values: &[T]) -> Result<(), CudaError> {
        let _alone = self.host.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = size_of_val(values);
        if values.len() > self.count {
            let size = self.count * size_of::<T>();
            return Err(CudaError::OutOfBounds { offset: 0, len: bytes, size });
        }
        match &self.memory {
            // SAFETY: the values as bytes, of which none is written through this.
            Backing::Gpu(memory) => memory
                .write(0, unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), bytes) }),
            _ => {
                // SAFETY: as many values are there, and nobody else uses them.
                unsafe {
                    self.base.copy_from_nonoverlapping(NonNull::from(values).cast(), values.len());
                }
                Ok(())
            }
        }
    }
}

impl<T: DeviceValue> Drop for Shared<T> {
    fn drop(&mut self) {
        if let Backing::Host(layout) = self.memory {
            // SAFETY: allocated in `new` with this very layout; `Copy` values need no drop of their own.
            unsafe { dealloc(self.base.as_ptr().cast(), layout) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::QpState;

    #[test]
    fn values_stay_where_they_are_when_their_owner_moves() {
        let shared = Shared::new(&[QpState::starting_at(3, 4), QpState::starting_at(5, 6)]);
        let second = shared.as_ptr().wrapping_add(1);
        assert!(second.is_aligned());
        let moved = Box::new(shared);
        // SAFETY: the second of two values, and nobody else is at them.
        let seen = unsafe {
            (*second).reserved += 1;
            ((*second).reserved, (*moved.as_ptr()).cq_next)
        };
        assert_eq!(seen, (6, 4));
    }

    #[test]
    fn values_are_read_and_written_as_a_whole() {
        let shared = Shared::new(&[1u64, 2, 3]);
        shared.write(&[7, 8]).unwrap();
        assert_eq!(shared.read().unwrap(), [7, 8, 3]);
        assert!(shared.write(&[0; 4]).is_err());
        assert_eq!((shared.len(), shared.is_empty()), (3, false));
    }

    #[test]
    fn no_values_are_an_address_that_is_not_null() {
        assert!(!Shared::<QpState>::new(&[]).as_ptr().is_null());
    }
}
