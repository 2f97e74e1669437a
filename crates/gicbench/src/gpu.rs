//! The GPUs of this process, each opened once: the one whose threads submit, and the remote side's.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use device::cuda::{CudaError, Gpu, GpuInfo, PeerLink, peer_link};
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::sys_exports::field_id;

/// The GPU that kernels run on: of those that the driver shows (`CUDA_VISIBLE_DEVICES` chooses them) the one of this
/// process's number among those that a launcher started on the machine, and the first without a launcher.
///
/// # Errors
/// Why there is none, in words.
pub fn open() -> Result<Arc<Gpu>, String> {
    static GPU: OnceLock<Result<Arc<Gpu>, String>> = OnceLock::new();
    let own = || {
        let number = local_rank(|name| std::env::var(name).ok());
        match nth(number) {
            // More processes than GPUs take them in turn.
            Err(CudaError::NoDevice { count, .. }) if count > 0 => nth(number % count),
            opened => opened,
        }
    };
    GPU.get_or_init(|| own().map_err(|error| error.to_string())).clone()
}

/// GPU `ordinal` of those that the driver shows.
///
/// # Errors
/// Why there is none.
pub fn nth(ordinal: u32) -> Result<Arc<Gpu>, CudaError> {
    // Opened once: what waits for a GPU has to know of all that runs there.
    static OPEN: Mutex<Option<HashMap<u32, Arc<Gpu>>>> = Mutex::new(None);
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    let open = open.get_or_insert_default();
    if let Some(gpu) = open.get(&ordinal) {
        return Ok(Arc::clone(gpu));
    }
    let gpu = Gpu::open(ordinal)?;
    open.insert(ordinal, Arc::clone(&gpu));
    Ok(gpu)
}

/// This process's number on its machine, as launchers tell it.
fn local_rank(variable: impl Fn(&str) -> Option<String>) -> u32 {
    const TOLD_BY: [&str; 4] =
        ["LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID", "MPI_LOCALRANKID"];
    TOLD_BY.iter().find_map(|name| variable(name)?.trim().parse().ok()).unwrap_or(0)
}

/// The way between two GPUs, in words.
pub fn link(near: &Gpu, far: &Gpu) -> String {
    let (from, to) = (near.info().ordinal, far.info().ordinal);
    if from == to {
        return "none: the same GPU plays both sides".to_owned();
    }
    match peer_link(from, to) {
        Ok(link) => in_words(link, nvlinks(&near.info().pci).ok()),
        Err(error) => error.to_string(),
    }
}

/// A way between GPUs of which the first has so many NVLinks.
pub(crate) fn in_words(link: PeerLink, nvlinks: Option<NvLinks>) -> String {
    if !link.access {
        return "no peer access".to_owned();
    }
    let atomics = if link.native_atomics { "native atomics" } else { "no native atomics" };
    let by = match nvlinks {
        Some(links) if links.up > 0 => links.to_string(),
        Some(_) => "PCIe, no NVLink is up".to_owned(),
        None => "by NVLink or PCIe: NVML doesn't say".to_owned(),
    };
    format!("peer access, {by}, {atomics}")
}

/// NVLinks of a GPU that are up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NvLinks {
    pub up: u32,
    /// MB a second of each, either way.
    pub rate: Option<u64>,
}

impl std::fmt::Display for NvLinks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} NVLinks up", self.up)?;
        match self.rate {
            Some(rate) if self.up > 0 => write!(f, " of {:.1} GB/s each", rate as f64 / 1e3),
            _ => Ok(()),
        }
    }
}

/// Those of the GPU at that place on the PCIe bus, as NVML says.
///
/// # Errors
/// Why NVML doesn't say.
pub(crate) fn nvlinks(pci: &str) -> Result<NvLinks, String> {
    let told = |error: nvml_wrapper::error::NvmlError| error.to_string();
    let nvml = nvml_wrapper::Nvml::init().map_err(told)?;
    let device = nvml.device_by_pci_bus_id(pci).map_err(told)?;
    // A link that a GPU hasn't got is an error, and not up.
    let up = (0..MOST_LINKS)
        .filter(|link| matches!(device.link_wrapper_for(*link).is_active(), Ok(true)))
        .count();
    let field = FieldId(field_id::NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON);
    let values = device.field_values_for(&[field]).unwrap_or_default();
    let rate = values.into_iter().find_map(|sample| match sample.ok()?.value.ok()? {
        SampleValue::U32(rate) => Some(u64::from(rate)),
        SampleValue::U64(rate) => Some(rate),
        SampleValue::I64(_) | SampleValue::F64(_) => None,
    });
    Ok(NvLinks { up: up as u32, rate: rate.filter(|rate| *rate > 0) })
}

/// NVLinks of a GPU, at most.
const MOST_LINKS: u32 = 18;

/// What it is, in one line.
pub fn describe(info: &GpuInfo) -> String {
    format!(
        "{} at {} ({}, {} SMs, {} MHz at most, {} GiB, CUDA {}.{})",
        info.name,
        info.pci,
        info.arch.name(),
        info.multiprocessors,
        info.max_clock_mhz,
        info.memory >> 30,
        info.driver / 1000,
        info.driver % 1000 / 10,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_between_gpus_is_told_as_the_driver_and_nvml_say_it() {
        let link = |access, native_atomics| PeerLink { access, native_atomics, rank: 0 };
        let up = |up, rate| Some(NvLinks { up, rate });
        for (link, nvlinks, words) in [
            (link(false, false), None, "no peer access"),
            (
                link(true, true),
                up(18, Some(26_562)),
                "peer access, 18 NVLinks up of 26.6 GB/s each, native atomics",
            ),
            (
                link(true, false),
                up(0, None),
                "peer access, PCIe, no NVLink is up, no native atomics",
            ),
            (
                link(true, true),
                None,
                "peer access, by NVLink or PCIe: NVML doesn't say, native atomics",
            ),
        ] {
            assert_eq!(in_words(link, nvlinks), words);
        }
    }

    #[test]
    fn a_launcher_tells_which_process_of_the_machine_this_is() {
        for (environment, number) in [
            (&[][..], 0),
            (&[("LOCAL_RANK", "3")], 3),
            (&[("OMPI_COMM_WORLD_LOCAL_RANK", "1")], 1),
            // The innermost launcher counts.
            (&[("SLURM_LOCALID", "0"), ("LOCAL_RANK", "2")], 2),
            (&[("LOCAL_RANK", "first"), ("SLURM_LOCALID", "1")], 1),
        ] {
            let variable = |name: &str| {
                environment
                    .iter()
                    .find(|(known, _)| *known == name)
                    .map(|(_, value)| (*value).to_owned())
            };
            assert_eq!(local_rank(variable), number, "{environment:?}");
        }
    }
}
