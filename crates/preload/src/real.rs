//! libc's own functions, found when they are first needed.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// One of libc's functions.
pub(crate) struct Real {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Real {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Its address.
    pub(crate) fn address(&self) -> *mut c_void {
        let known = self.found.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        // SAFETY: asks for the next definition behind this library's; the name ends with a zero.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        let found = if found.is_null() {
            // Functions that only programs of old still call have only an old version.
            // SAFETY: as above; both strings end with a zero.
            unsafe { libc::dlvsym(libc::RTLD_NEXT, self.name.as_ptr(), c"GLIBC_2.2.5".as_ptr()) }
        } else {
            found
        };
        if found.is_null() {
            // Only a function that this libc hasn't got, and which nobody can have called, is missing.
            std::process::abort();
        }
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

/// Calls libc's own function of a name and type.
macro_rules! real {
    ($name:literal, fn($($type:ty),*) -> $out:ty, $($value:expr),*) => {{
        static REAL: crate::real::Real = crate::real::Real::new($name);
        type Function = unsafe extern "C" fn($($type),*) -> $out;
        // SAFETY: libc's function of this name has this type; variadic ones take an integer or a pointer in the same
        // registers. The caller's arguments go on as they are, under its own responsibility.
        unsafe {
            let function: Function = std::mem::transmute(REAL.address());
            function($($value),*)
        }
    }};
}
pub(crate) use real;
