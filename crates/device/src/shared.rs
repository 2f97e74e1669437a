//! Values that device code reaches by address.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// A fixed array that is handed to device code as an address.
///
/// The address stays valid, and alone in leading to the values, until this is dropped: moving the owner moves no
/// value, and there is no way to a reference that would claim the values for Rust while device code changes them.
pub struct Shared<T: Copy> {
    base: NonNull<T>,
    layout: Layout,
}

// SAFETY: nothing here reads the values once they are made. Who follows the address does so in `unsafe` code,
// whose contract (one thread at a time, or atomics: the choices of the device code) it is to keep.
unsafe impl<T: Copy + Send> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Copy + Send> Sync for Shared<T> {}

impl<T: Copy> Shared<T> {
    /// Holds a copy of `values`.
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
        Self { base, layout }
    }

    /// Address of the first value. Valid while this value lives.
    #[must_use]
    pub fn as_ptr(&self) -> *mut T {
        self.base.as_ptr()
    }
}

impl<T: Copy> Drop for Shared<T> {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this very layout; `Copy` values need no drop of their own.
        unsafe { dealloc(self.base.as_ptr().cast(), self.layout) }
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
    fn no_values_are_an_address_that_is_not_null() {
        assert!(!Shared::<QpState>::new(&[]).as_ptr().is_null());
    }
}
