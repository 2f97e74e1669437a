//! Functions that take descriptors, and the table of those that are uverbs files.
//!
//! The descriptor itself is one of `/dev/null`: a real one, so that numbers, `fstat`, `poll` and inheritance are the
//! system's business.

use std::ffi::{c_char, c_int, c_uint, c_ulong, c_void};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, Ordering};

use uverbs::Errno;

use crate::memory::ProcessMemory;
use crate::process;
use crate::real::real;
use crate::{guarded, set_errno};

/// Descriptors that may be ours; a program with more open files has none above.
const MOST: usize = 1 << 16;

/// By descriptor: 0, or the number of the open file and 1. The upper half counts descriptors of that file no further: a
/// file is closed with the last entry that names it.
static TABLE: [AtomicU32; MOST] = [const { AtomicU32::new(0) }; MOST];
/// Of a file that a parent process had opened.
const DEAD: u32 = u32::MAX;

fn entry(fd: c_int) -> Option<&'static AtomicU32> {
    TABLE.get(usize::try_from(fd).ok()?)
}

/// What the table says of a descriptor.
fn known(fd: c_int) -> Option<u32> {
    let value = entry(fd)?.load(Ordering::Acquire);
    (value != 0).then_some(value)
}

fn number(value: u32) -> Result<usize, Errno> {
    if value == DEAD { Err(Errno::EIO) } else { Ok(value as usize - 1) }
}

/// All open files are the parent's.
pub(crate) fn all_dead() {
    for entry in &TABLE {
        if entry.load(Ordering::Relaxed) != 0 {
            entry.store(DEAD, Ordering::Relaxed);
        }
    }
}

/// Opens a device: a descriptor that the table knows.
pub(crate) fn open_device(device: u16, flags: c_int) -> c_int {
    let null = c"/dev/null".as_ptr();
    let cloexec = flags & libc::O_CLOEXEC;
    let fd =
        real!(c"open", fn(*const c_char, c_int, c_uint) -> c_int, null, libc::O_RDWR | cloexec, 0);
    let Some(entry) = entry(fd) else {
        if fd >= 0 {
            real!(c"close", fn(c_int) -> c_int, fd);
            set_errno(libc::EMFILE);
        }
        return -1;
    };
    let opened = guarded(|| process::open(device).map(|number| number as i64));
    match u32::try_from(opened) {
        Ok(number) if number < DEAD - 1 => {
            entry.store(number + 1, Ordering::Release);
            fd
        }
        _ => {
            // SAFETY: the calling thread's own.
            let errno = unsafe { *libc::__errno_location() };
            real!(c"close", fn(c_int) -> c_int, fd);
            set_errno(errno);
            -1
        }
    }
}

/// Takes a descriptor from the table; the file is closed with the last one.
fn forget(fd: c_int) {
    // A child that shares this memory until it runs something else closes its own descriptors, not ours.
    // SAFETY: no arguments, no effect.
    if process::existing().is_some_and(|process| process.pid != unsafe { libc::getpid() }) {
        return;
    }
    let Some(entry) = entry(fd) else { return };
    let value = entry.swap(0, Ordering::AcqRel);
    if value != 0
        && value != DEAD
        && !TABLE.iter().any(|other| other.load(Ordering::Acquire) == value)
    {
        guarded(|| {
            process::close(value as usize - 1);
            Ok(0)
        });
    }
}

/// `to` is now the same file as `from`.
fn copy(from: c_int, to: c_int) {
    if to < 0 || from == to {
        return;
    }
    if known(to).is_some() {
        forget(to);
    }
    if let (Some(value), Some(entry)) = (known(from), entry(to)) {
        entry.store(value, Ordering::Release);
    }
}

/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    if known(fd).is_some() {
        forget(fd);
    }
    real!(c"close", fn(c_int) -> c_int, fd)
}

/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup(fd: c_int) -> c_int {
    let made = real!(c"dup", fn(c_int) -> c_int, fd);
    if known(fd).is_some() {
        copy(fd, made);
    }
    made
}

/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup2(fd: c_int, to: c_int) -> c_int {
    let made = real!(c"dup2", fn(c_int, c_int) -> c_int, fd, to);
    if known(fd).is_some() || known(to).is_some() {
        copy(fd, made);
    }
    made
}

/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    let made = real!(c"dup3", fn(c_int, c_int, c_int) -> c_int, fd, to, flags);
    if known(fd).is_some() || known(to).is_some() {
        copy(fd, made);
    }
    made
}

fn after_fcntl(fd: c_int, command: c_int, made: c_int) -> c_int {
    if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) && known(fd).is_some() {
        copy(fd, made);
    }
    made
}

/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
    let made = real!(c"fcntl", fn(c_int, c_int, *mut c_void) -> c_int, fd, command, argument);
    after_fcntl(fd, command, made)
}

/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
    let made = real!(c"fcntl64", fn(c_int, c_int, *mut c_void) -> c_int, fd, command, argument);
    after_fcntl(fd, command, made)
}

/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    if let Some(value) = known(fd) {
        let answer = guarded(|| {
            let open = process::opened(number(value)?)?;
            open.with(|context| context.ioctl(&ProcessMemory, request, argument as u64))?;
            Ok(0)
        });
        return answer as c_int;
    }
    real!(c"ioctl", fn(c_int, c_ulong, *mut c_void) -> c_int, fd, request, argument)
}

/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(fd: c_int, bytes: *const c_void, len: usize) -> isize {
    if let Some(value) = known(fd) {
        let answer = guarded(|| {
            let open = process::opened(number(value)?)?;
            let written = open.with(|context| context.write(&ProcessMemory, bytes as u64, len))?;
            Ok(written as i64)
        });
        return answer as isize;
    }
    real!(c"write", fn(c_int, *const c_void, usize) -> isize, fd, bytes, len)
}

/// The file and the offset that a mapping is really of.
fn mapped(fd: c_int, offset: i64, len: usize) -> Option<Result<(uverbs::Mappable, i64), Errno>> {
    let value = known(fd)?;
    let found = || {
        let open = process::opened(number(value)?)?;
        let offset = u64::try_from(offset).map_err(|_| Errno::EINVAL)?;
        open.with(|context| context.mmap(offset, len))
    };
    Some(found().map(|mappable| (mappable, 0)))
}

macro_rules! mapping {
    ($name:ident, $real:literal) => {
        /// # Safety
        /// As libc's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            at: *mut c_void,
            len: usize,
            protection: c_int,
            flags: c_int,
            fd: c_int,
            offset: i64,
        ) -> *mut c_void {
            let call = |fd: c_int, offset: i64| {
                real!(
                    $real,
                    fn(*mut c_void, usize, c_int, c_int, c_int, i64) -> *mut c_void,
                    at,
                    len,
                    protection,
                    flags,
                    fd,
                    offset
                )
            };
            if flags & libc::MAP_ANONYMOUS != 0 {
                return call(fd, offset);
            }
            match mapped(fd, offset, len) {
                None => call(fd, offset),
                Some(Ok((mappable, offset))) => call(mappable.file.as_raw_fd(), offset),
                Some(Err(errno)) => {
                    set_errno(errno.0);
                    libc::MAP_FAILED
                }
            }
        }
    };
}

mapping!(mmap, c"mmap");
mapping!(mmap64, c"mmap64");

/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // Libraries that can't ask the kernel for its devices read the files below `/sys`.
    const NETLINK_RDMA: c_int = 20;
    if domain == libc::AF_NETLINK && protocol == NETLINK_RDMA && crate::paths::run().is_some() {
        set_errno(libc::EPROTONOSUPPORT);
        return -1;
    }
    real!(c"socket", fn(c_int, c_int, c_int) -> c_int, domain, kind, protocol)
}
