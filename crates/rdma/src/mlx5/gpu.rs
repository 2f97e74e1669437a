//! GPU memory given to the NIC: by dmabuf, and if that fails by its address, which a kernel with nvidia-peermem takes.
//!
//! What was tried, in which order, and how it ended is written down: it decides what a measurement means.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use device::cuda::{Gpu, Place};

use super::error::Mlx5Error;
use crate::{Error, Memory, memory};

/// GPU memory comes in pieces of this size, so that its address and length are whole pages, the GPU's own too.
const PIECE: usize = 2 << 20;

/// Memory for a NIC, of at least so many bytes.
pub(crate) fn memory_for_nic(place: &Place, bytes: usize) -> Result<Arc<Memory>, Error> {
    match place {
        Place::Gpu(_) => memory(place, bytes.max(1).next_multiple_of(PIECE)),
        _ => memory(place, bytes),
    }
}

/// The GPU of a place.
pub(crate) fn gpu_of(place: &Place) -> Option<&Arc<Gpu>> {
    match place {
        Place::Host => None,
        Place::Pinned(gpu) | Place::Gpu(gpu) => Some(gpu),
    }
}

/// Gives GPU memory to the NIC by the first way that works. Says which it was, and why not another.
pub(crate) fn give<T>(
    what: &'static str,
    memory: &Memory,
    gpu: Option<&Arc<Gpu>>,
    by_dmabuf: impl FnOnce(BorrowedFd<'_>) -> Result<T, Error>,
    by_address: impl FnOnce() -> Result<T, Error>,
) -> Result<(T, String), Mlx5Error> {
    let dmabuf = match gpu {
        None => Err("the memory's GPU isn't known".to_owned()),
        Some(gpu) => match gpu.dmabuf(memory.as_ptr().addr() as u64, memory.len()) {
            Err(error) => Err(error.to_string()),
            Ok(fd) => by_dmabuf(fd.as_fd()).map_err(|error| error.to_string()),
        },
    };
    let why_not = match dmabuf {
        Ok(given) => return Ok((given, format!("{what}: GPU memory by dmabuf"))),
        Err(why_not) => why_not,
    };
    match by_address() {
        Ok(given) => {
            let note = format!("{what}: GPU memory by nvidia-peermem (dmabuf: {why_not})");
            Ok((given, note))
        }
        Err(error) => {
            let tried = format!("dmabuf: {why_not}; nvidia-peermem: {error}");
            Err(Mlx5Error::GpuMemory { what, tried })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_is_said_whether_or_not_another_way_worked() {
        let memory = Memory::zeroed(4096);
        let fails = || Err::<u8, _>(Mlx5Error::Call { step: "reg", errno: 14 }.into());
        let (given, note) = give("payload", &memory, None, |_| Ok(1), || Ok(2)).unwrap();
        assert_eq!(given, 2);
        assert!(note.contains("peermem") && note.contains("GPU isn't known"), "{note}");
        let refused = give("payload", &memory, None, |_| Ok(1), fails).unwrap_err().to_string();
        assert!(refused.contains("payload") && refused.contains("Bad address"), "{refused}");
    }
}
