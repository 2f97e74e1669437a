//! This process's memory, as the kernel would reach it: an address that isn't there is an error, not a fault.

use std::ptr::NonNull;

use softnic::DmaBuf;
use uverbs::{ClientMemory, Errno};

/// The memory of the process that this library is in.
pub(crate) struct ProcessMemory;

/// Pages are 4 KiB or more.
pub(crate) const PAGE: u64 = 4096;

fn iovec(address: u64, len: usize) -> libc::iovec {
    libc::iovec { iov_base: address as usize as *mut libc::c_void, iov_len: len }
}

impl ClientMemory for ProcessMemory {
    fn read(&self, address: u64, out: &mut [u8]) -> Result<(), Errno> {
        if out.is_empty() {
            return Ok(());
        }
        let local = libc::iovec { iov_base: out.as_mut_ptr().cast(), iov_len: out.len() };
        let remote = iovec(address, out.len());
        // SAFETY: writes into `out` alone; the kernel checks the other address.
        let read = unsafe {
            libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0)
        };
        if read == out.len() as isize { Ok(()) } else { Err(Errno::EFAULT) }
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Errno> {
        if bytes.is_empty() {
            return Ok(());
        }
        let local =
            libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let remote = iovec(address, bytes.len());
        // SAFETY: the client asked for an answer there, as it would of the kernel, which checks that it may be written.
        let written = unsafe {
            libc::process_vm_writev(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0)
        };
        if written == bytes.len() as isize { Ok(()) } else { Err(Errno::EFAULT) }
    }

    fn pin(&self, address: u64, len: u64, writable: bool) -> Result<DmaBuf, Errno> {
        let base = NonNull::new(address as usize as *mut u8).ok_or(Errno::EFAULT)?;
        let end = address.checked_add(len).ok_or(Errno::EFAULT)?;
        if len == 0 || end > i64::MAX as u64 {
            return Err(Errno::EFAULT);
        }
        let first = address & !(PAGE - 1);
        let advice = if writable { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
        let pages = (end - first) as usize;
        // SAFETY: brings pages in, and changes nothing in them.
        let populated =
            unsafe { libc::madvise(first as usize as *mut libc::c_void, pages, advice) };
        if populated != 0 {
            // An older kernel, or memory of a kind that it can't do this to: what it can reach may be registered.
            let is_unknown = std::io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL);
            let mut byte = [0];
            if !is_unknown
                || self.read(address, &mut byte).is_err()
                || self.read(end - 1, &mut byte).is_err()
            {
                return Err(Errno::EFAULT);
            }
        }
        crate::orphans::registered(first, end.next_multiple_of(PAGE));
        // SAFETY: there, and writable where it has to be, as was just seen. Where the client takes it away before it
        // destroys the object, a page of zeros takes its place. It accesses it from C.
        Ok(unsafe { DmaBuf::mapped(base, len as usize) })
    }
}
