//! RDMA devices and GPUs of this machine: what they are, how near they are to each other, and what may keep one from using
//! the other.

use std::sync::Arc;

use device::cuda::{Gpu, Place};
use rdma::ibv::{Asked, Context};
use rdma::mlx5::Mlx5Nic;
use rdma::select::{self, Distance, Gid, GidKind, LinkLayer, Wanted};
use rdma::sysfs::{Device, Pci, Port, Sysfs, distance};
use rdma::{Nic, Places, QueuePairAttr};

use super::{Finding, Level, finding};

/// What only an open device says.
pub(super) trait Probe {
    /// The active MTU of a port in bytes.
    fn active_mtu(&self, device: &str, port: u8) -> Result<u32, String>;
    /// How its doorbell page can be mapped: for whom, and why not for the others.
    fn doorbell(&self, device: &str, port: u8) -> Result<String, String>;
    /// Whether the device's library can register a dmabuf.
    fn has_dmabuf(&self) -> bool;
}

/// The devices themselves.
pub(super) struct Real {
    pub gpu: Option<Arc<Gpu>>,
}

impl Probe for Real {
    fn active_mtu(&self, device: &str, port: u8) -> Result<u32, String> {
        let port = Context::open(device).and_then(|context| context.port(port));
        port.map(|port| port.active_mtu).map_err(|error| error.to_string())
    }

    fn doorbell(&self, device: &str, port: u8) -> Result<String, String> {
        let wanted = Wanted { device: Some(device.to_owned()), port: Some(port) };
        let asked = Asked { port: wanted, ..Asked::default() };
        let nic = Mlx5Nic::open(&asked).map_err(|error| error.to_string())?;
        let made = |places: Places| {
            let attr = QueuePairAttr { places, log_blocks: 6, ..QueuePairAttr::default() };
            nic.create_queue_pair(&attr).map(drop).map_err(|error| error.to_string())
        };
        made(Places::default())?;
        let for_cpu = nic.notes().join("; ");
        let Some(gpu) = &self.gpu else { return Ok(for_cpu) };
        let doorbell = Place::Pinned(Arc::clone(gpu));
        Ok(match made(Places { doorbell, ..Places::default() }) {
            Ok(()) => nic.notes().join("; "),
            Err(why) => format!("{for_cpu}; not for the GPU: {why}"),
        })
    }

    fn has_dmabuf(&self) -> bool {
        rdma::ibv::verbs().is_ok_and(|verbs| verbs.reg_dmabuf_mr.is_some())
    }
}

/// Looks at them all.
pub(super) fn examine(files: &Sysfs, probe: &dyn Probe, driver: Option<&str>) -> Vec<Finding> {
    let (devices, gpus) = (files.devices(), files.gpus());
    let mut findings = Vec::new();
    for device in &devices {
        findings.push(card(device));
        for port in &device.ports {
            findings.push(port_of(device, port, probe.active_mtu(&device.name, port.number)));
        }
        if let Some(pci) = &device.pci {
            findings.push(relaxed(device, files.relaxed_ordering(pci)));
        }
        if device.vendor.as_deref() == Some("0x15b3") {
            let port = device.ports.first().map_or(1, |port| port.number);
            findings.push(doorbell(device, probe.doorbell(&device.name, port)));
        }
    }
    if !devices.is_empty() && !gpus.is_empty() {
        findings.push(gpu_memory(files, probe.has_dmabuf(), driver));
    }
    for gpu in &gpus {
        findings.extend(topology(files, gpu, &devices));
    }
    findings
}

fn card(device: &Device) -> Finding {
    let mut seen = vec![format!("firmware {}", device.firmware.as_deref().unwrap_or("unknown"))];
    seen.extend(device.board.as_ref().map(|board| format!("board {board}")));
    let name = device.name.clone();
    let Some(pci) = &device.pci else {
        let meaning =
            "an RDMA driver in software: its times, rates and bandwidths aren't hardware's";
        return finding(name, Level::Note, seen.join(", ") + ", no PCI device", meaning);
    };
    seen.push(format!("at {}", pci.address));
    seen.extend(pci.numa.map(|node| format!("NUMA node {node}")));
    match &device.pcie {
        Some((now, most)) if now != most => {
            seen.push(format!("PCIe {now} of {most}"));
            let meaning =
                "its PCIe link is slower or narrower than the card's: bandwidth and rate end there";
            finding(name, Level::Warn, seen.join(", "), meaning)
                .advise("look at the slot's width and generation, and at the BIOS' settings for it")
        }
        known => {
            seen.extend(known.as_ref().map(|(now, _)| format!("PCIe {now}")));
            finding(
                name,
                Level::Ok,
                seen.join(", "),
                "the PCIe link is as wide as the card's, as far as it is told",
            )
        }
    }
}

fn port_of(device: &Device, port: &Port, mtu: Result<u32, String>) -> Finding {
    let name = format!("{}:{}", device.name, port.number);
    let mut seen = vec![port.state.clone()];
    seen.extend(port.link.map(|link| link.name().to_owned()));
    seen.extend(port.rate.map(|rate| format!("{rate} Gb/s")));
    seen.extend(port.lid.filter(|lid| *lid != 0).map(|lid| format!("LID {lid}")));
    let table: Vec<Gid> = port.gids.iter().map(|(_, gid)| *gid).collect();
    let ethernet = port.link == Some(LinkLayer::Ethernet);
    let words = |gid: &Gid| match (ethernet, gid.kind) {
        (false, _) => "InfiniBand",
        (true, GidKind::V1) => "RoCE v1",
        (true, GidKind::V2) => "RoCE v2",
    };
    for (index, gid) in &port.gids {
        seen.push(format!("GID {index} {} {}", gid.address, words(gid)));
    }
    let chosen = select::gid(&table).filter(|_| ethernet).map(|at| port.gids[at].0);
    seen.extend(chosen.map(|index| format!("{index} is used unless --gid-index says another")));
    match &mtu {
        Ok(bytes) => seen.push(format!("MTU {bytes}")),
        Err(why) => seen.push(format!("MTU not known ({why})")),
    }
    let told = seen.join(", ");
    if port.state != "ACTIVE" {
        let advice = if ethernet {
            "bring its network interface up (ip link set dev … up), and look at the cable and the switch"
        } else {
            "it needs a cable and a subnet manager (opensm) on the fabric: ibstat says in what state its link is"
        };
        return finding(name, Level::Warn, told, "nothing can be sent through it").advise(advice);
    }
    if ethernet && chosen.is_none() {
        return finding(
            name,
            Level::Warn,
            told,
            "on Ethernet a peer is reached by a GID, and it has none",
        )
        .advise("give its network interface an address (ip addr add … dev …)");
    }
    if ethernet && !table.iter().any(|gid| gid.kind == GidKind::V2) {
        return finding(
            name,
            Level::Note,
            told,
            "without a RoCE v2 GID it reaches its own subnet alone",
        )
        .advise("enable RoCE v2 on the device (cma_roce_mode, or the driver's setting)");
    }
    match mtu {
        Ok(bytes) if bytes < 4096 => {
            let advice = if ethernet {
                let interface = port.interface.as_deref().unwrap_or("its interface");
                format!(
                    "ip link set dev {interface} mtu 4200 (and the switch): packets of 4096 bytes need that much"
                )
            } else {
                "have the subnet manager allow 4096 bytes (opensm's partitions.conf: mtu=5)"
                    .to_owned()
            };
            let meaning = "small packets: large messages cost more headers and more work a byte";
            finding(name, Level::Note, told, meaning).advise(&advice)
        }
        Ok(_) => finding(name, Level::Ok, told, "it can be used as it is"),
        Err(_) => finding(
            name,
            Level::Note,
            told,
            "the kernel knows it, and libibverbs can't open it",
        )
        .advise(
            "may this user open /dev/infiniband/uverbs*? in a container, pass /dev/infiniband in",
        ),
    }
}

fn relaxed(device: &Device, enabled: Option<bool>) -> Finding {
    let name = format!("{} relaxed ordering", device.name);
    match enabled {
        Some(true) => finding(
            name,
            Level::Ok,
            "on in the device's PCIe settings",
            "regions that ask for it let writes overtake each other on the bus; a flag must then not rely on its data",
        ),
        Some(false) => finding(
            name,
            Level::Note,
            "off in the device's PCIe settings",
            "writes to host memory keep their order; on some CPUs this costs bandwidth",
        )
        .advise("setpci, or the BIOS, turns it on where bandwidth to host memory is short"),
        None => finding(
            name,
            Level::Note,
            "not readable by this user",
            "the PCIe settings beyond the first 64 bytes are the superuser's to read",
        ),
    }
}

fn doorbell(device: &Device, mapped: Result<String, String>) -> Finding {
    let name = format!("{} doorbell", device.name);
    match mapped {
        Ok(notes) if notes.contains("not for the GPU") => {
            finding(name, Level::Warn, notes, "GPU threads can't ring: a CPU has to, or mini-proxy posts").advise(
                "options nvidia NVreg_RegistryDwords=\"PeerMappingOverride=1;\" lets the driver map registers for a GPU",
            )
        }
        Ok(notes) => finding(name, Level::Ok, notes, "its register can be written directly"),
        Err(why) => finding(name, Level::Note, why, "queues can't be made by DevX: mini-gda can't use it")
            .advise("DevX needs CAP_NET_RAW (in a container: --cap-add=NET_RAW); mini-proxy can use --nic verbs"),
    }
}

fn gpu_memory(files: &Sysfs, dmabuf: bool, driver: Option<&str>) -> Finding {
    let name = "GPU memory for NICs";
    let peermem = ["nvidia_peermem", "nv_peer_mem"].into_iter().find(|one| files.has_module(one));
    let open = driver.is_some_and(|text| text.contains("Open Kernel Module"));
    let mut seen = vec![
        peermem.map_or_else(|| "no peermem module".to_owned(), |one| format!("{one} is loaded")),
    ];
    seen.push(match (dmabuf, open) {
        (true, true) => "dmabuf: libibverbs and the driver's open modules can".to_owned(),
        (true, false) => "dmabuf: the driver isn't the open kernel modules".to_owned(),
        (false, _) => "dmabuf: libibverbs is too old (rdma-core 34 can)".to_owned(),
    });
    let seen = seen.join("; ");
    if peermem.is_some() || (dmabuf && open) {
        finding(
            name,
            Level::Ok,
            seen,
            "a NIC can read and write GPU memory directly, as far as it is told",
        )
    } else {
        finding(
            name,
            Level::Warn,
            seen,
            "a NIC can't reach GPU memory: payload has to be in host memory",
        )
        .advise("modprobe nvidia-peermem, or install the driver's open kernel modules")
    }
}

/// How near each device is to a GPU, and where who serves them should run.
fn topology(files: &Sysfs, gpu: &Pci, devices: &[Device]) -> Option<Finding> {
    let mut near: Vec<(Distance, &Device, &Pci)> = devices
        .iter()
        .filter_map(|device| {
            Some((distance(gpu, device.pci.as_ref()?), device, device.pci.as_ref()?))
        })
        .collect();
    near.sort_by(|a, b| (a.0, &a.1.name).cmp(&(b.0, &b.1.name)));
    let (closest, device, pci) = near.first()?;
    let seen: Vec<String> = near
        .iter()
        .map(|(distance, device, _)| {
            let (short, words) = distance.words();
            format!("{} {short} ({words})", device.name)
        })
        .collect();
    let name = format!("GPU {}", gpu.address);
    // The worker reads rings in host memory that the GPU writes, and rings at the NIC: the NIC's node serves both best.
    let node = pci.numa.or(gpu.numa);
    let pin = match node.and_then(|node| Some((node, files.cpus_of(node)?))) {
        Some((node, cpus)) => format!(
            "use {} for it, and pin its workers to CPUs {cpus} (numactl --cpunodebind {node} --membind {node})",
            device.name
        ),
        None => format!("use {} for it; the machine names no NUMA node for either", device.name),
    };
    Some(match closest {
        Distance::Switch | Distance::Switches => finding(
            name,
            Level::Ok,
            seen.join(", "),
            "the nearest NIC reaches its memory without passing a CPU",
        )
        .advise(&pin),
        Distance::HostBridge | Distance::Node => finding(
            name,
            Level::Note,
            seen.join(", "),
            "what goes between it and the nearest NIC passes a CPU's host bridge: reads of GPU memory are slow there",
        )
        .advise(&pin),
        Distance::System => finding(
            name,
            Level::Warn,
            seen.join(", "),
            "the nearest NIC is on another NUMA node: all between them passes the link between CPUs",
        )
        .advise(&pin),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    struct Told {
        mtu: Result<u32, String>,
        doorbell: Result<String, String>,
    }

    impl Probe for Told {
        fn active_mtu(&self, _: &str, _: u8) -> Result<u32, String> {
            self.mtu.clone()
        }
        fn doorbell(&self, _: &str, _: u8) -> Result<String, String> {
            self.doorbell.clone()
        }
        fn has_dmabuf(&self) -> bool {
            true
        }
    }

    /// A machine with a GPU and a NIC behind one switch on node 1, and what is asked beside.
    fn machine(root: &Path, more: &[(&str, &str)]) -> Sysfs {
        const NIC: &str = "devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3c:01.0/0000:3e:00.0";
        const GPU: &str = "devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3c:00.0/0000:3d:00.0";
        let file = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            let _ = fs::remove_file(&path);
            match text.strip_prefix("-> ") {
                Some(to) => std::os::unix::fs::symlink(root.join(to), path).unwrap(),
                None => fs::write(path, text).unwrap(),
            }
        };
        for (path, text) in [
            ("numa_node", "1"),
            ("vendor", "0x15b3"),
            ("current_link_speed", "32.0 GT/s PCIe"),
            ("max_link_speed", "32.0 GT/s PCIe"),
            ("current_link_width", "16"),
            ("max_link_width", "16"),
        ] {
            file(&format!("{NIC}/{path}"), text);
        }
        for (path, text) in [("numa_node", "1"), ("vendor", "0x10de"), ("class", "0x030200")] {
            file(&format!("{GPU}/{path}"), text);
        }
        file("bus/pci/devices/0000:3d:00.0", &format!("-> {GPU}"));
        file("class/infiniband/ibp62s0/device", &format!("-> {NIC}"));
        for (path, text) in [
            ("fw_ver", "28.39.1002"),
            ("ports/1/state", "4: ACTIVE"),
            ("ports/1/link_layer", "Ethernet"),
            ("ports/1/rate", "400 Gb/sec (4X NDR)"),
            ("ports/1/gids/0", "fe80:0000:0000:0000:0202:c9ff:fe00:0001"),
            ("ports/1/gids/3", "0000:0000:0000:0000:0000:ffff:0a00:0001"),
            ("ports/1/gid_attrs/types/0", "IB/RoCE v1"),
            ("ports/1/gid_attrs/types/3", "RoCE v2"),
            ("ports/1/gid_attrs/ndevs/0", "eth7"),
        ] {
            file(&format!("class/infiniband/ibp62s0/{path}"), text);
        }
        file("devices/system/node/node1/cpulist", "16-31");
        for (path, text) in more {
            file(path, text);
        }
        Sysfs::at(root)
    }

    fn about<'a>(findings: &'a [Finding], name: &str) -> &'a Finding {
        findings
            .iter()
            .find(|one| one.name == name)
            .unwrap_or_else(|| panic!("{name}: {findings:#?}"))
    }

    #[test]
    fn a_machine_as_it_should_be_has_no_warning_but_a_place_for_its_workers() {
        let root = tempfile::tempdir().unwrap();
        let files = machine(root.path(), &[("module/nvidia_peermem/x", "")]);
        let told =
            Told { mtu: Ok(4096), doorbell: Ok("doorbell page: NC, for the GPU".to_owned()) };
        let findings = examine(&files, &told, None);
        assert!(findings.iter().all(|one| one.level != Level::Warn), "{findings:#?}");
        let port = about(&findings, "ibp62s0:1");
        for words in ["ACTIVE", "400 Gb/s", "RoCE v2", "3 is used", "MTU 4096"] {
            assert!(port.seen.contains(words), "{words} in {port:?}");
        }
        assert!(about(&findings, "ibp62s0").seen.contains("PCIe 32.0 GT/s x16"));
        let gpu = about(&findings, "GPU 0000:3d:00.0");
        assert!(
            gpu.seen.contains("PIX") && gpu.advice.as_ref().unwrap().contains("16-31"),
            "{gpu:?}"
        );
        assert!(about(&findings, "ibp62s0 doorbell").seen.contains("for the GPU"));
        assert!(about(&findings, "GPU memory for NICs").seen.contains("nvidia_peermem"));
    }

    #[test]
    fn what_keeps_a_nic_from_being_used_or_slows_it_is_said_with_what_to_do() {
        const NIC: &str = "devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3c:01.0/0000:3e:00.0";
        let width = format!("{NIC}/current_link_width");
        let mtu = |mtu| Told { mtu, doorbell: Ok("NC, for the CPU".to_owned()) };
        let refused = |why: &str| Told { mtu: Ok(4096), doorbell: Err(why.to_owned()) };
        for (more, told, name, level, words) in [
            (
                &[("class/infiniband/ibp62s0/ports/1/state", "1: DOWN")][..],
                mtu(Ok(4096)),
                "ibp62s0:1",
                Level::Warn,
                "ip link",
            ),
            (&[(width.as_str(), "8")], mtu(Ok(4096)), "ibp62s0", Level::Warn, "slot"),
            (&[], mtu(Ok(1024)), "ibp62s0:1", Level::Note, "eth7 mtu 4200"),
            (&[], mtu(Err("EACCES".to_owned())), "ibp62s0:1", Level::Note, "/dev/infiniband"),
            (&[], refused("EPERM"), "ibp62s0 doorbell", Level::Note, "NET_RAW"),
            (&[], mtu(Ok(4096)), "GPU memory for NICs", Level::Warn, "peermem"),
            (
                &[
                    (
                        "class/infiniband/ibp62s0/ports/1/gids/0",
                        "0000:0000:0000:0000:0000:0000:0000:0000",
                    ),
                    (
                        "class/infiniband/ibp62s0/ports/1/gids/3",
                        "0000:0000:0000:0000:0000:0000:0000:0000",
                    ),
                ],
                mtu(Ok(4096)),
                "ibp62s0:1",
                Level::Warn,
                "ip addr",
            ),
        ] {
            let root = tempfile::tempdir().unwrap();
            let findings = examine(&machine(root.path(), more), &told, None);
            let found = about(&findings, name);
            assert_eq!(found.level, level, "{found:?}");
            assert!(found.advice.as_ref().unwrap().contains(words), "{words} in {found:?}");
        }
    }

    #[test]
    fn the_drivers_open_modules_make_a_dmabuf() {
        let root = tempfile::tempdir().unwrap();
        let told = Told { mtu: Ok(4096), doorbell: Ok(String::from("NC")) };
        let driver = Some("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86");
        let findings = examine(&machine(root.path(), &[]), &told, driver);
        assert_eq!(about(&findings, "GPU memory for NICs").level, Level::Ok);
    }

    #[test]
    fn pcie_settings_are_read_where_the_user_may() {
        let root = tempfile::tempdir().unwrap();
        let files = machine(root.path(), &[]);
        let pci = files.devices()[0].pci.clone().unwrap();
        assert_eq!(files.relaxed_ordering(&pci), None);
        // A capability list: power management at 0x40, PCI Express at 0x60.
        let mut config = vec![0u8; 256];
        config[0x06] = 0x10;
        config[0x34] = 0x40;
        config[0x40..0x42].copy_from_slice(&[0x01, 0x60]);
        config[0x60..0x62].copy_from_slice(&[0x10, 0x00]);
        let file = root
            .path()
            .join("devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3c:01.0/0000:3e:00.0/config");
        for (control, due) in [(0x10u8, Some(true)), (0x00, Some(false))] {
            config[0x68] = control;
            fs::write(&file, &config).unwrap();
            assert_eq!(files.relaxed_ordering(&pci), due);
        }
        // What a user sees, a list that never ends, and one that leaves the page.
        fs::write(&file, &config[..64]).unwrap();
        assert_eq!(files.relaxed_ordering(&pci), None);
        config[0x41] = 0x40;
        fs::write(&file, &config).unwrap();
        assert_eq!(files.relaxed_ordering(&pci), None);
        config[0x34] = 0xff;
        fs::write(&file, &config).unwrap();
        assert_eq!(files.relaxed_ordering(&pci), None);
    }
}
