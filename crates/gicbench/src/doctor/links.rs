//! GPUs beside each other: which reach whose memory, and by what.

use device::cuda::{gpu_count, peer_link};

use super::{Finding, Level, finding};
use crate::gpu;

/// Nothing without a GPU.
pub(super) fn links() -> Option<Finding> {
    let own = gpu::open().ok()?;
    let nvlinks = gpu::nvlinks(&own.info().pci);
    let count = gpu_count().ok()?;
    if count < 2 {
        let seen = match nvlinks {
            Ok(links) => format!("one GPU, {links}"),
            Err(error) => format!("one GPU (NVML: {error})"),
        };
        let means = "a remote side of its own (--remote-gpu) runs on the same GPU";
        return Some(finding("GPU links", Level::Note, seen, means));
    }
    let from = own.info().ordinal;
    let ways = (0..count).filter(|to| *to != from).map(|to| match peer_link(from, to) {
        Ok(link) => (link.access, to, gpu::in_words(link, nvlinks.clone().ok())),
        Err(error) => (false, to, error.to_string()),
    });
    let ways: Vec<_> = ways.collect();
    let seen: Vec<_> =
        ways.iter().map(|(_, to, words)| format!("{from} to {to}: {words}")).collect();
    let reached = ways.iter().any(|(access, ..)| *access);
    let (level, means) = if reached {
        (
            Level::Ok,
            "--remote-gpu puts the remote side on another one, with --nic soft-gpu its NIC, too",
        )
    } else {
        (Level::Note, "no GPU reaches another's memory: --nic soft-gpu can't be between two")
    };
    Some(finding("GPU links", level, seen.join("; "), means))
}
