//! libibverbs, loaded at run time: layouts ([`ffi`]), functions ([`Verbs`]), and owning types over both.
//!
//! What is here is the library's own model and no more: devices, ports, protection domains, regions, queues. Which port
//! is used is decided in [`select`](crate::select). Other NICs of this room (a ConnectX whose queues lie open) stand on it.

mod device;
pub mod ffi;
mod library;
mod objects;
mod port;

pub use device::{Context, Port, device_names};
pub use library::{Library, LoadError, Verbs, verbs};
pub use objects::{
    CompletionQueue, MemoryRegion, ProtectionDomain, QueuePairHandle, Route, status_words,
};
pub use port::{Asked, NoGid, OpenPort, PortOf};

/// A verb that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{verb} failed: {}{}", std::io::Error::from_raw_os_error(*errno), hint(verb, *errno))]
pub struct VerbError {
    /// Which.
    pub verb: &'static str,
    /// The system's number for what is wrong.
    pub errno: i32,
}

impl VerbError {
    /// Of a verb that sets errno.
    pub(crate) fn last(verb: &'static str) -> Self {
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        Self { verb, errno }
    }

    /// Of a verb that returns an errno; some providers return -1 and set it.
    pub(crate) fn check(verb: &'static str, returned: i32) -> Result<(), Self> {
        match returned {
            0 => Ok(()),
            ..0 => Err(Self::last(verb)),
            errno => Err(Self { verb, errno }),
        }
    }
}

/// What an owner of the machine can do about it.
fn hint(verb: &str, errno: i32) -> &'static str {
    match (verb, errno) {
        ("ibv_reg_mr_iova2", libc::ENOMEM) => {
            " (more than `ulimit -l` lets this process lock? ulimit -l unlimited)"
        }
        ("ibv_reg_mr_iova2", libc::EFAULT) => {
            " (memory that the kernel can't pin: GPU memory needs nvidia-peermem, or a dmabuf)"
        }
        ("ibv_get_device_list", libc::ENOSYS) => {
            " (the kernel offers no RDMA devices to programs: modprobe ib_uverbs; in a container, pass /dev/infiniband in)"
        }
        ("ibv_open_device", libc::EACCES | libc::EPERM) => {
            " (may this user open /dev/infiniband/uverbs*? in a container, pass /dev/infiniband in)"
        }
        ("ibv_modify_qp", libc::ETIMEDOUT | libc::EHOSTUNREACH) => {
            " (the peer's MAC address can't be found from its GID: is the address of the right network?)"
        }
        _ => "",
    }
}
