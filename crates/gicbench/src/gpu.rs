//! The GPU of this process, opened once.

use std::sync::{Arc, OnceLock};

use device::cuda::{CudaError, Gpu, GpuInfo};

/// The GPU that kernels run on: of those that the driver shows (`CUDA_VISIBLE_DEVICES` chooses them) the one of this
/// process's number among those that a launcher started on the machine, and the first without a launcher.
///
/// # Errors
/// Why there is none, in words.
pub fn open() -> Result<Arc<Gpu>, String> {
    static GPU: OnceLock<Result<Arc<Gpu>, String>> = OnceLock::new();
    let own = || {
        let number = local_rank(|name| std::env::var(name).ok());
        match Gpu::open(number) {
            // More processes than GPUs take them in turn.
            Err(CudaError::NoDevice { count, .. }) if count > 0 => Gpu::open(number % count),
            opened => opened,
        }
    };
    GPU.get_or_init(|| own().map_err(|error| error.to_string())).clone()
}

/// This process's number on its machine, as launchers tell it.
fn local_rank(variable: impl Fn(&str) -> Option<String>) -> u32 {
    const TOLD_BY: [&str; 4] =
        ["LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID", "MPI_LOCALRANKID"];
    TOLD_BY.iter().find_map(|name| variable(name)?.trim().parse().ok()).unwrap_or(0)
}

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
