//! What the kernel's files say of RDMA devices and of where they are: `/sys/class/infiniband` and `/sys/bus/pci`.
//!
//! Read below `$SYSFS_PATH`, as libibverbs does, or `/sys`. A file that isn't there is no error: kernels and drivers differ
//! in what they tell, and each thing that they don't tell is `None`.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};

use crate::select::{Distance, Gid, GidKind, LinkLayer};

/// A tree of those files.
#[derive(Clone, Debug)]
pub struct Sysfs {
    root: PathBuf,
}

/// A PCI device's place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pci {
    /// Its address, such as `0000:3b:00.0`.
    pub address: String,
    /// From the root of the bus to it: `pci0000:3a`, the bridges' addresses, its own.
    pub path: Vec<String>,
    /// Its NUMA node; none where the machine has one only, or doesn't say.
    pub numa: Option<u32>,
}

/// A device.
#[derive(Clone, Debug)]
pub struct Device {
    /// Its name, such as `mlx5_0`.
    pub name: String,
    /// Firmware version.
    pub firmware: Option<String>,
    /// Which card it is.
    pub board: Option<String>,
    /// The kernel's driver, such as `mlx5_core`.
    pub driver: Option<String>,
    /// PCI vendor, such as `0x15b3`.
    pub vendor: Option<String>,
    /// Where it is; none for one without hardware, such as Soft-RoCE.
    pub pci: Option<Pci>,
    /// Speed and width of its PCIe link, and the most that it can have.
    pub pcie: Option<(String, String)>,
    /// Its ports.
    pub ports: Vec<Port>,
}

/// A port.
#[derive(Clone, Debug)]
pub struct Port {
    /// From 1.
    pub number: u8,
    /// `ACTIVE`, `DOWN`, ….
    pub state: String,
    /// What it speaks.
    pub link: Option<LinkLayer>,
    /// Gb/s.
    pub rate: Option<u32>,
    /// Local identifier.
    pub lid: Option<u16>,
    /// GIDs that are set, with their places in the table.
    pub gids: Vec<(u32, Gid)>,
    /// The network interface of its first GID on Ethernet.
    pub interface: Option<String>,
}

impl Sysfs {
    /// This machine's.
    #[must_use]
    pub fn system() -> Self {
        Self::at(
            std::env::var_os("SYSFS_PATH").map_or_else(|| PathBuf::from("/sys"), PathBuf::from),
        )
    }

    /// A tree elsewhere.
    #[must_use]
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    fn of(&self, device: &str) -> PathBuf {
        self.root.join("class/infiniband").join(device)
    }

    /// Every device, by name.
    #[must_use]
    pub fn devices(&self) -> Vec<Device> {
        names(&self.root.join("class/infiniband")).iter().map(|name| self.device(name)).collect()
    }

    /// One device; of one that isn't there, nothing is known.
    #[must_use]
    pub fn device(&self, name: &str) -> Device {
        let folder = self.of(name);
        let ports = names(&folder.join("ports"));
        let mut ports: Vec<Port> = ports
            .iter()
            .filter_map(|number| {
                Some(port(&folder.join("ports").join(number), number.parse().ok()?))
            })
            .collect();
        ports.sort_by_key(|port| port.number);
        let pci = folder.join("device");
        let link = |which: &str| {
            let speed = read(&pci.join(format!("{which}_link_speed")))?;
            let width = read(&pci.join(format!("{which}_link_width")))?;
            Some(format!("{} x{width}", speed.trim_end_matches(" PCIe")))
        };
        Device {
            name: name.to_owned(),
            firmware: read(&folder.join("fw_ver")),
            board: read(&folder.join("board_id")),
            driver: std::fs::read_link(pci.join("driver"))
                .ok()
                .and_then(|link| Some(link.file_name()?.to_string_lossy().into_owned())),
            vendor: read(&pci.join("vendor")),
            pcie: link("current").zip(link("max")),
            pci: place(&pci),
            ports,
        }
    }

    /// The type of an entry of a GID table, where no library says it.
    #[must_use]
    pub fn gid_kind(&self, device: &str, port: u8, index: u32) -> GidKind {
        kind(&self.of(device).join(format!("ports/{port}")), index)
    }

    /// NVIDIA's GPUs.
    #[must_use]
    pub fn gpus(&self) -> Vec<Pci> {
        let bus = self.root.join("bus/pci/devices");
        let is_gpu = |folder: &Path| {
            let class = read(&folder.join("class")).unwrap_or_default();
            read(&folder.join("vendor")).is_some_and(|vendor| vendor == "0x10de")
                && (class.starts_with("0x0300") || class.starts_with("0x0302"))
        };
        let folders = names(&bus).into_iter().map(|name| bus.join(name));
        folders.filter(|folder| is_gpu(folder)).filter_map(|folder| place(&folder)).collect()
    }

    /// A PCI device by its address, in either case, with or without leading zeros in its domain.
    #[must_use]
    pub fn pci(&self, address: &str) -> Option<Pci> {
        let wanted = address.to_lowercase();
        let wanted = wanted.trim_start_matches('0');
        let bus = self.root.join("bus/pci/devices");
        let name = names(&bus).into_iter().find(|name| name.trim_start_matches('0') == wanted)?;
        place(&bus.join(name))
    }

    /// CPUs of a NUMA node, in the kernel's list form such as `0-31,64-95`.
    #[must_use]
    pub fn cpus_of(&self, node: u32) -> Option<String> {
        read(&self.root.join(format!("devices/system/node/node{node}/cpulist")))
    }

    /// Every counter of a port, the hardware's and the standard ones.
    #[must_use]
    pub fn counters(&self, device: &str, port: u8) -> BTreeMap<String, u64> {
        let folder = self.of(device).join(format!("ports/{port}"));
        let mut all = BTreeMap::new();
        for kind in ["counters", "hw_counters"] {
            let folder = folder.join(kind);
            for name in names(&folder) {
                if let Some(value) = read(&folder.join(&name)).and_then(|text| text.parse().ok()) {
                    all.insert(name, value);
                }
            }
        }
        all
    }

    /// Whether a device may reorder its writes on the bus: the *Enable Relaxed Ordering* bit of its PCI Express capability's
    /// Device Control register (PCI Express Base Specification). None where this user can't read so far.
    #[must_use]
    pub fn relaxed_ordering(&self, pci: &Pci) -> Option<bool> {
        let folder =
            pci.path.iter().fold(self.root.join("devices"), |folder, part| folder.join(part));
        let config = std::fs::read(folder.join("config")).ok()?;
        let byte = |at: usize| config.get(at).copied();
        let mut at = usize::from(byte(0x34)? & !3);
        // As many capabilities as the page has room for.
        for _ in 0..48 {
            if at < 0x40 {
                return None;
            }
            if byte(at)? == 0x10 {
                return Some(byte(at + 8)? & 0x10 != 0);
            }
            at = usize::from(byte(at + 1)? & !3);
        }
        None
    }

    /// Whether a kernel module is loaded.
    #[must_use]
    pub fn has_module(&self, name: &str) -> bool {
        self.root.join("module").join(name).is_dir()
    }
}

/// The counters that moved, and by how much. One that went back (it was reset) counts from zero.
#[must_use]
pub fn moved(
    before: &BTreeMap<String, u64>,
    after: &BTreeMap<String, u64>,
) -> BTreeMap<String, u64> {
    let difference = |(name, now): (&String, &u64)| {
        let then = before.get(name).copied().unwrap_or(0);
        let by = now.checked_sub(then).unwrap_or(*now);
        (by != 0).then(|| (name.clone(), by))
    };
    after.iter().filter_map(difference).collect()
}

/// What lies between two devices.
#[must_use]
pub fn distance(one: &Pci, other: &Pci) -> Distance {
    let common = one.path.iter().zip(&other.path).take_while(|(a, b)| a == b).count();
    let bridges = |pci: &Pci| pci.path.len().saturating_sub(common + 1);
    match common {
        0 if one.numa.is_some() && one.numa == other.numa => Distance::Node,
        // A machine of one node doesn't number it.
        0 if one.numa.is_none() && other.numa.is_none() => Distance::Node,
        0 => Distance::System,
        1 => Distance::HostBridge,
        // The switch's own port is common; each port below it is a bridge, too.
        _ if bridges(one) <= 1 && bridges(other) <= 1 => Distance::Switch,
        _ => Distance::Switches,
    }
}

fn port(folder: &Path, number: u8) -> Port {
    let after_number =
        |text: String| text.split_once(": ").map_or(text.clone(), |(_, word)| word.to_owned());
    let link = match read(&folder.join("link_layer")).as_deref() {
        Some("InfiniBand") => Some(LinkLayer::InfiniBand),
        Some("Ethernet") => Some(LinkLayer::Ethernet),
        _ => None,
    };
    let lid = read(&folder.join("lid"))
        .and_then(|text| u16::from_str_radix(text.trim_start_matches("0x"), 16).ok());
    let mut indices: Vec<u32> =
        names(&folder.join("gids")).iter().filter_map(|name| name.parse().ok()).collect();
    indices.sort_unstable();
    let gids: Vec<(u32, Gid)> = indices
        .into_iter()
        .filter_map(|index| {
            let address: Ipv6Addr = read(&folder.join(format!("gids/{index}")))?.parse().ok()?;
            (!address.is_unspecified()).then(|| (index, Gid { address, kind: kind(folder, index) }))
        })
        .collect();
    let interface =
        gids.first().and_then(|(index, _)| read(&folder.join(format!("gid_attrs/ndevs/{index}"))));
    Port {
        number,
        state: read(&folder.join("state")).map_or_else(|| "unknown".to_owned(), after_number),
        link,
        rate: read(&folder.join("rate"))
            .and_then(|text| text.split([' ', '.']).next()?.parse().ok()),
        lid,
        gids,
        interface,
    }
}

fn kind(port: &Path, index: u32) -> GidKind {
    match read(&port.join(format!("gid_attrs/types/{index}"))).as_deref() {
        Some("RoCE v2") => GidKind::V2,
        _ => GidKind::V1,
    }
}

/// Where a PCI device's folder really is, if it is one's.
fn place(folder: &Path) -> Option<Pci> {
    let real = folder.canonicalize().ok()?;
    let path: Vec<String> = real
        .components()
        .map(|part| part.as_os_str().to_string_lossy().into_owned())
        .skip_while(|part| !part.starts_with("pci"))
        .collect();
    let address = path.last().filter(|last| last.contains('.'))?.clone();
    let numa = read(&real.join("numa_node")).and_then(|text| text.parse().ok());
    Some(Pci { address, path, numa })
}

fn read(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}
