//! The files by which libraries find the devices: what they read below `/sys`.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::config::{DeviceConfig, LinkLayer, gid_name};

/// Major and minor number that the files give the devices: those of `/dev/null`, which can be opened for real.
pub const NUMBERS: (u32, u32) = (1, 3);

/// Where a device sits on the bus that its files speak of.
#[must_use]
pub fn bus_address(device: &DeviceConfig) -> String {
    format!("0000:{:02x}:00.0", 0x70 + device.index)
}

/// Writes the tree of some devices below `root`, which stands for `/sys`. `is_down` says of which the port is down.
///
/// # Errors
/// What the system says.
pub fn write(
    root: &Path,
    devices: &[DeviceConfig],
    is_down: impl Fn(&DeviceConfig) -> bool,
) -> io::Result<()> {
    let file = |path: &str, text: String| -> io::Result<()> {
        let path = root.join(path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(path, text + "\n")
    };
    let link = |path: &str, to: &str| -> io::Result<()> {
        let path = root.join(path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        symlink(to, path)
    };
    file("class/infiniband_verbs/abi_version", "6".to_owned())?;
    for device in devices {
        let (name, bus) = (device.name(), bus_address(device));
        let pci = format!("devices/pci0000:70/{bus}");
        for (path, text) in pci_files(device) {
            file(&format!("{pci}/{path}"), text)?;
        }
        let ib = format!("{pci}/infiniband/{name}");
        for (path, text) in ib_files(device, is_down(device)) {
            file(&format!("{ib}/{path}"), text)?;
        }
        link(&format!("{ib}/device"), "../..")?;
        link(&format!("class/infiniband/{name}"), &format!("../../{ib}"))?;
        let uverbs = format!("{pci}/infiniband_verbs/uverbs{}", device.index);
        let (major, minor) = NUMBERS;
        for (path, text) in [
            ("dev", format!("{major}:{minor}")),
            ("abi_version", "1".to_owned()),
            ("ibdev", name.clone()),
        ] {
            file(&format!("{uverbs}/{path}"), text)?;
        }
        link(&format!("{uverbs}/device"), "../..")?;
        let class = format!("class/infiniband_verbs/uverbs{}", device.index);
        link(&class, &format!("../../{uverbs}"))?;
        link(&format!("bus/pci/devices/{bus}"), &format!("../../../{pci}"))?;
    }
    Ok(())
}

fn pci_files(device: &DeviceConfig) -> Vec<(&'static str, String)> {
    let (vendor, part) = (DeviceConfig::VENDOR, DeviceConfig::PART);
    let ethernet = u32::from(device.link_layer == LinkLayer::Ethernet);
    // A network controller: Ethernet, or InfiniBand.
    let class = if ethernet == 1 { 0x02_0000 } else { 0x02_0700 };
    let modalias = format!(
        "pci:v{vendor:08X}d{part:08X}sv{vendor:08X}sd{:08X}bc02sc{:02x}i00",
        0x23,
        class >> 8 & 0xff
    );
    vec![
        ("vendor", format!("{vendor:#06x}")),
        ("device", format!("{part:#06x}")),
        ("subsystem_vendor", format!("{vendor:#06x}")),
        ("subsystem_device", "0x0023".to_owned()),
        ("class", format!("{class:#08x}")),
        ("modalias", modalias),
        ("numa_node", "-1".to_owned()),
        ("local_cpus", "ffffffff".to_owned()),
        ("current_link_speed", "32.0 GT/s PCIe".to_owned()),
        ("max_link_speed", "32.0 GT/s PCIe".to_owned()),
        ("current_link_width", "16".to_owned()),
        ("max_link_width", "16".to_owned()),
    ]
}

fn groups(bytes: &[u8]) -> String {
    let groups: Vec<_> = bytes
        .chunks(2)
        .map(|pair| format!("{:02x}{:02x}", pair[0], pair.get(1).unwrap_or(&0)))
        .collect();
    groups.join(":")
}

fn ib_files(device: &DeviceConfig, is_down: bool) -> Vec<(String, String)> {
    let [major, minor, patch] = DeviceConfig::FIRMWARE;
    let ethernet = device.link_layer == LinkLayer::Ethernet;
    let first = DeviceConfig { index: 0, ..*device };
    let mut files = vec![
        ("node_type".to_owned(), "1: CA".to_owned()),
        ("node_guid".to_owned(), groups(&device.guid())),
        ("sys_image_guid".to_owned(), groups(&first.guid())),
        ("node_desc".to_owned(), format!("software ConnectX {}", device.name())),
        ("fw_ver".to_owned(), format!("{major}.{minor}.{patch:04}")),
        ("hca_type".to_owned(), format!("MT{}", DeviceConfig::PART)),
        ("hw_rev".to_owned(), "0".to_owned()),
        ("board_id".to_owned(), "GICBENCH0001".to_owned()),
    ];
    let mut port =
        |path: &str, text: &str| files.push((format!("ports/1/{path}"), text.to_owned()));
    let (state, physical) = match (is_down, ethernet) {
        (false, _) => ("4: ACTIVE", "5: LinkUp"),
        (true, false) => ("1: DOWN", "2: Polling"),
        (true, true) => ("1: DOWN", "3: Disabled"),
    };
    port("state", state);
    port("phys_state", physical);
    port("link_layer", device.link_layer.name());
    port("rate", &device.port.rate.text());
    port("lid", &format!("{:#x}", device.lid()));
    port("lid_mask_count", "0");
    port("sm_lid", if ethernet { "0x0" } else { "0x1" });
    port("sm_sl", "0");
    port("cap_mask", if ethernet { "0x04010000" } else { "0x2259e84a" });
    port("pkeys/0", "0xffff");
    let gids = device.gids();
    for index in 0..device.gid_table() {
        let known = gids.get(index);
        let gid = known.map_or([0; 16], |(gid, _)| *gid);
        port(&format!("gids/{index}"), &groups(&gid));
        if let Some((_, kind)) = known {
            port(&format!("gid_attrs/types/{index}"), gid_name(*kind));
        }
    }
    for counter in ["port_xmit_data", "port_rcv_data", "port_xmit_packets", "port_rcv_packets"] {
        port(&format!("counters/{counter}"), "0");
    }
    files
}
