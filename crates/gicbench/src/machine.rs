//! The machine and the software that a record was made with.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::cpus::Cpus;
use crate::platform::{Platform, names};

/// The machine. What the system doesn't say is null.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// CPU model.
    pub cpu: Option<String>,
    /// Architecture of this program.
    pub architecture: String,
    /// CPUs that are online.
    pub cores_online: Option<usize>,
    /// CPUs that this process may use.
    pub cores_allowed: Vec<usize>,
    /// Memory in bytes.
    pub memory_bytes: Option<u64>,
    /// Kernel release.
    pub kernel: String,
    /// NUMA nodes.
    pub numa_nodes: Option<usize>,
    /// Hypervisor, where the CPU says that there is one.
    pub hypervisor: Option<bool>,
    /// NVIDIA GPUs: what the driver says of the one that is used, or else the device nodes.
    pub gpus: Vec<String>,
    /// RDMA devices.
    pub rdma_devices: Vec<String>,
}

/// The software.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Software {
    /// Version of this program.
    pub gicbench: String,
    /// Commit that it was built from, with `-dirty` where files differed.
    pub commit: Option<String>,
    /// Build profile: `release` or `debug`.
    pub profile: Option<String>,
    /// Rust compiler.
    pub rustc: Option<String>,
    /// C++ compiler of the host build of the device code.
    pub cxx: Option<String>,
}

impl Machine {
    /// Asks the system.
    pub fn detect(cpus: &Cpus, platform: &Platform) -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let flags = field(&cpuinfo, "flags");
        let online = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
        let nodes = names(Path::new("/sys/devices/system/node"));
        let nodes = nodes.iter().filter(|name| {
            name.strip_prefix("node").is_some_and(|rest| rest.parse::<u32>().is_ok())
        });
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        Machine {
            cpu: field(&cpuinfo, "model name").map(str::to_owned),
            architecture: std::env::consts::ARCH.to_owned(),
            cores_online: count_list(online.trim()),
            cores_allowed: cpus.allowed().to_vec(),
            memory_bytes: kibibytes(&meminfo, "MemTotal").map(|kib| kib * 1024),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            numa_nodes: Some(nodes.count()).filter(|count| *count > 0),
            hypervisor: flags.map(|flags| flags.split(' ').any(|flag| flag == "hypervisor")),
            gpus: platform.describe_gpus(),
            rdma_devices: platform.rdma_devices.clone(),
        }
    }
}

impl Software {
    /// What the build noted.
    pub fn current() -> Self {
        let noted = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Software {
            gicbench: env!("CARGO_PKG_VERSION").to_owned(),
            commit: noted(env!("GICBENCH_COMMIT")),
            profile: noted(env!("GICBENCH_PROFILE")),
            rustc: noted(env!("GICBENCH_RUSTC")),
            cxx: noted(env!("GICBENCH_CXX")),
        }
    }
}

/// The first `name : value` of a file in /proc.
pub(crate) fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

/// A size of /proc/meminfo, in KiB.
pub(crate) fn kibibytes(meminfo: &str, name: &str) -> Option<u64> {
    field(meminfo, name)?.split_whitespace().next()?.parse().ok()
}

/// The number of CPUs in a kernel list such as `0-3,8`.
fn count_list(list: &str) -> Option<usize> {
    list.split(',')
        .map(|part| match part.split_once('-') {
            Some((first, last)) => {
                let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
                (last >= first).then(|| last - first + 1)
            }
            None => part.parse::<usize>().ok().map(|_| 1),
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_texts_are_read_and_what_they_lack_is_none() {
        let text = "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nMemTotal:  1024 kB\n";
        assert_eq!(field(text, "model name"), Some("Some CPU @ 2 GHz"));
        assert_eq!(field(text, "flags"), None);
        assert_eq!(kibibytes(text, "MemTotal"), Some(1024));
        for (list, count) in
            [("0-3,8", Some(5)), ("0", Some(1)), ("", None), ("3-1", None), ("x", None)]
        {
            assert_eq!(count_list(list), count, "{list}");
        }
    }
}
