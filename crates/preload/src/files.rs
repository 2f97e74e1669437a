//! Functions that take paths.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use crate::descriptors::open_device;
use crate::paths::{Target, outside, target};
use crate::real::real;
use crate::set_errno;

/// What stands for a uverbs file where only its presence and kind matter.
const NULL: &CStr = c"/dev/null";

/// Calls `call` with the path that the program's path leads to.
///
/// # Safety
/// `path` is null or ends with a zero.
unsafe fn redirected<R>(path: *const c_char, call: impl FnOnce(*const c_char) -> R) -> R {
    // SAFETY: by the contract.
    match unsafe { target(path) } {
        Target::Other => call(path),
        Target::Tree(path) => call(path.as_ptr()),
        Target::Uverbs(_) => call(NULL.as_ptr()),
    }
}

macro_rules! opening {
    ($($name:ident, $real:literal;)*) => {$(
        /// # Safety
        /// As libc's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
            let call = |path: *const c_char| {
                real!($real, fn(*const c_char, c_int, c_uint) -> c_int, path, flags, mode)
            };
            // SAFETY: by libc's contract.
            match unsafe { target(path) } {
                Target::Other => call(path),
                Target::Tree(path) => call(path.as_ptr()),
                Target::Uverbs(device) => open_device(device, flags),
            }
        }
    )*};
}

opening! {
    open, c"open";
    open64, c"open64";
    __open_2, c"__open_2";
    __open64_2, c"__open64_2";
}

macro_rules! opening_at {
    ($($name:ident, $real:literal;)*) => {$(
        /// # Safety
        /// As libc's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            at: c_int,
            path: *const c_char,
            flags: c_int,
            mode: c_uint,
        ) -> c_int {
            let call = |path: *const c_char| {
                real!($real, fn(c_int, *const c_char, c_int, c_uint) -> c_int, at, path, flags, mode)
            };
            // SAFETY: by libc's contract.
            match unsafe { target(path) } {
                Target::Other => call(path),
                Target::Tree(path) => call(path.as_ptr()),
                Target::Uverbs(device) => open_device(device, flags),
            }
        }
    )*};
}

opening_at! {
    openat, c"openat";
    openat64, c"openat64";
    __openat_2, c"__openat_2";
    __openat64_2, c"__openat64_2";
}

macro_rules! with_path_first {
    ($($name:ident, $real:literal, ($($arg:ident: $type:ty),*) -> $out:ty;)*) => {$(
        /// # Safety
        /// As libc's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(path: *const c_char $(, $arg: $type)*) -> $out {
            let call = |path: *const c_char| {
                real!($real, fn(*const c_char $(, $type)*) -> $out, path $(, $arg)*)
            };
            // SAFETY: by libc's contract.
            unsafe { redirected(path, call) }
        }
    )*};
}

with_path_first! {
    fopen, c"fopen", (mode: *const c_char) -> *mut c_void;
    fopen64, c"fopen64", (mode: *const c_char) -> *mut c_void;
    opendir, c"opendir", () -> *mut c_void;
    access, c"access", (mode: c_int) -> c_int;
    stat, c"stat", (into: *mut c_void) -> c_int;
    stat64, c"stat64", (into: *mut c_void) -> c_int;
    lstat, c"lstat", (into: *mut c_void) -> c_int;
    lstat64, c"lstat64", (into: *mut c_void) -> c_int;
    readlink, c"readlink", (into: *mut c_char, len: usize) -> isize;
}

macro_rules! with_path_second {
    ($($name:ident, $real:literal, $first:ty, ($($arg:ident: $type:ty),*) -> $out:ty;)*) => {$(
        /// # Safety
        /// As libc's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(first: $first, path: *const c_char $(, $arg: $type)*) -> $out {
            let call = |path: *const c_char| {
                real!($real, fn($first, *const c_char $(, $type)*) -> $out, first, path $(, $arg)*)
            };
            // SAFETY: by libc's contract.
            unsafe { redirected(path, call) }
        }
    )*};
}

with_path_second! {
    __xstat, c"__xstat", c_int, (into: *mut c_void) -> c_int;
    __xstat64, c"__xstat64", c_int, (into: *mut c_void) -> c_int;
    __lxstat, c"__lxstat", c_int, (into: *mut c_void) -> c_int;
    __lxstat64, c"__lxstat64", c_int, (into: *mut c_void) -> c_int;
    fstatat, c"fstatat", c_int, (into: *mut c_void, flags: c_int) -> c_int;
    fstatat64, c"fstatat64", c_int, (into: *mut c_void, flags: c_int) -> c_int;
    statx, c"statx", c_int, (flags: c_int, mask: c_uint, into: *mut c_void) -> c_int;
    faccessat, c"faccessat", c_int, (mode: c_int, flags: c_int) -> c_int;
    readlinkat, c"readlinkat", c_int, (into: *mut c_char, len: usize) -> isize;
}

/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realpath(path: *const c_char, into: *mut c_char) -> *mut c_char {
    // SAFETY: by libc's contract.
    let Target::Tree(inside) = (unsafe { target(path) }) else {
        return real!(c"realpath", fn(*const c_char, *mut c_char) -> *mut c_char, path, into);
    };
    let mut whole = [0 as c_char; libc::PATH_MAX as usize];
    let found = real!(
        c"realpath",
        fn(*const c_char, *mut c_char) -> *mut c_char,
        inside.as_ptr(),
        whole.as_mut_ptr()
    );
    if found.is_null() {
        return found;
    }
    // SAFETY: realpath ended it with a zero.
    let bytes = unsafe { CStr::from_ptr(whole.as_ptr()) }.to_bytes();
    let Some(shown) = outside(bytes) else {
        set_errno(libc::ENOENT);
        return std::ptr::null_mut();
    };
    if into.is_null() {
        // SAFETY: a copy of a string, which the caller frees.
        return unsafe { libc::strdup(shown.as_ptr()) };
    }
    // SAFETY: the caller's buffer has room for any path, by libc's contract.
    unsafe { libc::strcpy(into, shown.as_ptr()) }
}

/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __realpath_chk(
    path: *const c_char,
    into: *mut c_char,
    _len: usize,
) -> *mut c_char {
    // SAFETY: as the above; the length is at least a path's, which the compiler has seen.
    unsafe { realpath(path, into) }
}
