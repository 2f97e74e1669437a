//! A real NIC in a run: which port was asked for, what was opened, and what its counters say of the run.

use std::collections::BTreeMap;

use clap::Args;
use rdma::ibv::{Asked, PortOf};
use rdma::select::Wanted;
use rdma::sysfs::{Sysfs, moved};
use serde::{Deserialize, Serialize};

use crate::measurement::Measurement;

/// The detail of records whose device has no hardware.
pub const IN_SOFTWARE: &str = "nic_hardware";

/// Which port of which device; what isn't said is chosen, and the choice is in the record.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args, Serialize, Deserialize)]
pub struct NicOptions {
    /// RDMA device of `--nic mlx5` and `verbs`, and its port, such as mlx5_0:1
    #[arg(long, value_name = "NAME[:PORT]", value_parser = device)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// The same for the remote side, where it is another one
    #[arg(long, value_name = "NAME[:PORT]", value_parser = device)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote_device: Option<String>,
    /// GPU of the remote side, by the driver's number: its memory, its kernels, and with `--nic soft-gpu` its NIC's engine
    #[arg(long, value_name = "N")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote_gpu: Option<u32>,
    /// GID of that port, on Ethernet; RoCE v2 and routable unless said
    #[arg(long, value_name = "N")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid_index: Option<u32>,
    /// Path MTU in bytes: 256, 512, 1024, 2048 or 4096; the port's unless said
    #[arg(long, value_name = "BYTES", value_parser = mtu)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
}

fn device(text: &str) -> Result<String, String> {
    text.parse::<Wanted>().map(|_| text.to_owned())
}

fn mtu(text: &str) -> Result<u32, String> {
    let bytes = text.parse::<u32>().map_err(|_| "not a whole number".to_owned())?;
    rdma::select::path_mtu(bytes, 4096).map(|mtu| mtu.bytes).map_err(|error| error.to_string())
}

impl NicOptions {
    /// These, and those of `otherwise` where these say nothing.
    #[must_use]
    pub fn or(self, otherwise: Self) -> Self {
        Self {
            device: self.device.or(otherwise.device),
            remote_device: self.remote_device.or(otherwise.remote_device),
            remote_gpu: self.remote_gpu.or(otherwise.remote_gpu),
            gid_index: self.gid_index.or(otherwise.gid_index),
            mtu: self.mtu.or(otherwise.mtu),
        }
    }

    /// Those of the remote side.
    #[must_use]
    pub fn remote(&self) -> Self {
        Self { device: self.remote_device.clone().or(self.device.clone()), ..self.clone() }
    }

    /// As the choice of a port takes it, beside the GPU of that PCI address.
    #[must_use]
    pub fn asked(&self, gpu: Option<String>) -> Asked {
        // Checked when they were read; a record's are refused by the port.
        let port = self.device.as_deref().map(|text| {
            let whole = Wanted { device: Some(text.to_owned()), port: None };
            text.parse().unwrap_or(whole)
        });
        Asked {
            port: port.unwrap_or_default(),
            gid_index: self.gid_index,
            mtu: self.mtu,
            gpu,
            driver: None,
        }
    }
}

/// Counters of a port, as they were when it was opened.
#[derive(Debug)]
pub struct Counters {
    files: Sysfs,
    device: String,
    port: u8,
    before: BTreeMap<String, u64>,
}

impl Counters {
    /// Reads them.
    #[must_use]
    pub fn read(files: Sysfs, device: &str, port: u8) -> Self {
        let before = files.counters(device, port);
        Self { files, device: device.to_owned(), port, before }
    }

    /// Those that have moved since, and by how much.
    #[must_use]
    pub fn moved(&self) -> BTreeMap<String, u64> {
        moved(&self.before, &self.files.counters(&self.device, self.port))
    }
}

/// An open port in a run's records.
#[derive(Debug)]
pub struct Hardware {
    details: Vec<(&'static str, String)>,
    counters: Counters,
    steps: Option<Steps>,
}

/// Asked when a record is written: some are taken while it is measured.
struct Steps(Box<dyn Fn() -> Vec<String> + Send + Sync>);

impl std::fmt::Debug for Steps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Steps").field(&(self.0)()).finish()
    }
}

impl Hardware {
    /// Of a port that was just opened.
    #[must_use]
    pub fn new(port: &PortOf) -> Self {
        let files = Sysfs::system();
        let mut details = port.details();
        if files.device(&port.device).pci.is_none() {
            details.push((IN_SOFTWARE, "none: a driver in software".to_owned()));
        }
        let counters = Counters::read(files, &port.device, port.port);
        Self { details, counters, steps: None }
    }

    /// The steps by which what is measured was had.
    #[must_use]
    pub fn with_steps(self, steps: impl Fn() -> Vec<String> + Send + Sync + 'static) -> Self {
        Self { steps: Some(Steps(Box::new(steps))), ..self }
    }

    /// Adds what the record has to say of it.
    #[must_use]
    pub fn described(&self, measurement: Measurement) -> Measurement {
        let measurement = self.details.iter().fold(measurement, |measurement, (name, value)| {
            measurement.detail(*name, value.as_str())
        });
        let steps = self.steps.as_ref().map(|Steps(steps)| steps()).unwrap_or_default();
        let measurement = if steps.is_empty() {
            measurement
        } else {
            measurement.detail("nic_steps", steps.join("; "))
        };
        let counters = self.counters.moved();
        counters.into_iter().fold(measurement, |measurement, (name, by)| {
            measurement.detail(format!("nic_counter_{name}"), by)
        })
    }
}

/// Whether this process runs on `gicbench nic exec`'s devices: software ones, however real their driver is.
#[must_use]
pub fn is_nic_exec() -> bool {
    std::env::var_os("GICBENCH_NIC_RUN").is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_no_port_can_have_are_refused() {
        assert!(device("mlx5_0:1").is_ok() && device("mlx5_0").is_ok());
        assert!(device(":1").is_err() && device("mlx5_0:x").is_err());
        assert_eq!(mtu("1024"), Ok(1024));
        assert!(mtu("1500").is_err() && mtu("x").is_err());
    }

    #[test]
    fn what_the_command_line_says_goes_before_what_a_record_says() {
        let of = |device: Option<&str>, gid_index| NicOptions {
            device: device.map(str::to_owned),
            gid_index,
            ..NicOptions::default()
        };
        assert_eq!(of(Some("a"), None).or(of(Some("b"), Some(3))), of(Some("a"), Some(3)));
        let asked = of(Some("mlx5_1:2"), Some(3)).asked(None);
        assert_eq!((asked.port.device.as_deref(), asked.port.port), (Some("mlx5_1"), Some(2)));
    }

    #[test]
    fn the_remote_side_has_the_same_device_unless_another_is_named() {
        for (remote, expected) in [(None, "mlx5_0"), (Some("mlx5_1"), "mlx5_1")] {
            let options = NicOptions {
                device: Some("mlx5_0".to_owned()),
                remote_device: remote.map(str::to_owned),
                gid_index: Some(3),
                ..NicOptions::default()
            };
            let remote = options.remote();
            assert_eq!((remote.device.as_deref(), remote.gid_index), (Some(expected), Some(3)));
        }
    }
}
