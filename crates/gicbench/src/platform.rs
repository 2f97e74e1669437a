//! What can run here, and why not the rest.

use std::fs;
use std::path::Path;

use rdma::sysfs::Sysfs;

use crate::gpu;
use crate::point::{Nic, Submitter};

/// The devices of this machine, as far as they decide what can run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Platform {
    /// Device nodes of NVIDIA GPUs.
    pub gpus: Vec<String>,
    /// RDMA devices by the kernel's name, such as `mlx5_0`.
    pub rdma_devices: Vec<String>,
}

impl Platform {
    /// Looks at the system. What can't be read counts as not there.
    pub fn detect() -> Self {
        let mut gpus = names(Path::new("/dev"));
        gpus.retain(|name| {
            name.strip_prefix("nvidia")
                .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()))
        });
        Platform {
            gpus: gpus.into_iter().map(|name| format!("/dev/{name}")).collect(),
            rdma_devices: names(Path::new("/sys/class/infiniband")),
        }
    }

    /// Whether a submitter can run.
    ///
    /// # Errors
    /// What is missing.
    pub fn submitter(&self, submitter: Submitter) -> Result<(), String> {
        match submitter {
            Submitter::Host => Ok(()),
            Submitter::Cuda => self.cuda(),
        }
    }

    /// Whether kernels can be compiled and run.
    fn cuda(&self) -> Result<(), String> {
        if self.gpus.is_empty() {
            return Err("no NVIDIA GPU here (no /dev/nvidia0)".to_owned());
        }
        device::nvrtc::load().map_err(|error| error.to_string())?;
        gpu::open().map(drop)
    }

    /// The GPUs in words, for records: what the driver says of the one that is used, or the device nodes.
    pub fn describe_gpus(&self) -> Vec<String> {
        match gpu::open() {
            Ok(gpu) if !self.gpus.is_empty() => vec![gpu::describe(gpu.info())],
            _ => self.gpus.clone(),
        }
    }

    /// Whether a NIC can run.
    ///
    /// # Errors
    /// What is missing.
    pub fn nic(&self, nic: Nic) -> Result<(), String> {
        match nic {
            Nic::Soft | Nic::None => Ok(()),
            Nic::SoftGpu => self.cuda(),
            Nic::Mlx5 if !self.rdma_devices.iter().any(|name| is_mlx5(name)) => {
                Err("no mlx5 device here (none in /sys/class/infiniband)".to_owned())
            }
            Nic::Mlx5 => Ok(()),
            Nic::Verbs if self.rdma_devices.is_empty() => {
                Err("no RDMA device here (none in /sys/class/infiniband)".to_owned())
            }
            Nic::Verbs => rdma::ibv::verbs().map(drop).map_err(|error| error.to_string()),
        }
    }

    /// What `--submitter auto` means here.
    pub fn best_submitter(&self) -> Submitter {
        let order = [Submitter::Cuda, Submitter::Host];
        order.into_iter().find(|one| self.submitter(*one).is_ok()).unwrap_or(Submitter::Host)
    }

    /// What `--nic auto` means here.
    pub fn best_nic(&self) -> Nic {
        let order = [Nic::Mlx5, Nic::Soft];
        order.into_iter().find(|one| self.nic(*one).is_ok()).unwrap_or(Nic::Soft)
    }
}

/// Whether libmlx5 drives a device: by its name, or, if it is named after its place on the bus, by the kernel's driver.
fn is_mlx5(name: &str) -> bool {
    let by_driver =
        || Sysfs::system().device(name).driver.is_some_and(|driver| driver == "mlx5_core");
    name.starts_with("mlx5") || by_driver()
}

/// The names in a directory, sorted; none if it can't be read.
pub(crate) fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(directory)
        .map(|entries| {
            entries
                .flatten()
                .map(|entry| entry.file_name().to_string_lossy().into_owned())
                .collect()
        })
        .unwrap_or_default();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_devices_everything_but_the_stand_ins_says_what_is_missing() {
        let bare = Platform::default();
        assert_eq!((bare.best_submitter(), bare.best_nic()), (Submitter::Host, Nic::Soft));
        for (result, missing) in [
            (bare.submitter(Submitter::Cuda), "NVIDIA GPU"),
            (bare.nic(Nic::SoftGpu), "NVIDIA GPU"),
            (bare.nic(Nic::Mlx5), "mlx5"),
            (bare.nic(Nic::Verbs), "RDMA device"),
        ] {
            assert!(result.unwrap_err().contains(missing));
        }
    }
}
