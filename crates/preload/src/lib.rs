//! Loaded into a program before its libraries: the program finds software ConnectXs where it looks for devices.
//!
//! The functions of libc by which libraries find and use a uverbs file are defined here again. Each looks whether the
//! call is about one of the devices, which costs a comparison of a path's beginning or one load from a table, and hands
//! everything else on. Nothing else happens, and no thread is there, until the program opens the first uverbs file.
//!
//! - `paths.rs`: which files are the devices'. Those below `/sys` are real files in the run's own directory.
//! - `files.rs`: the functions that take paths. `descriptors.rs`: those that take descriptors, and the table of ours.
//! - `process.rs`: the devices of this process; what happens at fork and at exit.
//! - `memory.rs`: this process's memory, as the kernel would reach it.
//! - `orphans.rs`: memory that the program unmaps while it is registered; the program's handlers of faults.
//! - `real.rs`: libc's own functions.

mod descriptors;
mod files;
mod memory;
mod orphans;
mod paths;
mod process;
mod real;

/// Sets `errno`.
fn set_errno(errno: i32) {
    // SAFETY: the calling thread's own.
    unsafe { *libc::__errno_location() = errno };
}

/// Runs a hook's own work. A panic must not cross into C: the call fails instead.
fn guarded(work: impl FnOnce() -> Result<i64, uverbs::Errno>) -> i64 {
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
    match outcome.unwrap_or(Err(uverbs::Errno::EIO)) {
        Ok(value) => value,
        Err(errno) => {
            set_errno(errno.0);
            -1
        }
    }
}
