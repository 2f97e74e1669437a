//! What the devices are.

pub(crate) use softnic::GidKind;
use softnic::PortAddress;

/// What a port's cable speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkLayer {
    /// InfiniBand: LIDs, and one GID.
    #[default]
    InfiniBand,
    /// Ethernet: RoCE, addressed by a table of GIDs.
    Ethernet,
}

impl LinkLayer {
    /// The name, as sysfs has it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::InfiniBand => "InfiniBand",
            Self::Ethernet => "Ethernet",
        }
    }
}

/// One device: `mlx5_<index>` behind `uverbs<index>`, a ConnectX-7 with one port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceConfig {
    /// Its number among the host's devices, below [`DeviceConfig::MOST`].
    pub index: u16,
    /// What its port speaks.
    pub link_layer: LinkLayer,
}

/// The name of a kind of GID, as sysfs has it.
pub(crate) const fn gid_name(kind: GidKind) -> &'static str {
    match kind {
        GidKind::Ib | GidKind::RoceV1 => "IB/RoCE v1",
        GidKind::RoceV2 => "RoCE v2",
    }
}

/// The number of a kind of GID in an entry of the kernel's.
pub(crate) const fn gid_number(kind: GidKind) -> u32 {
    match kind {
        GidKind::Ib => 0,
        GidKind::RoceV1 => 1,
        GidKind::RoceV2 => 2,
    }
}

/// The vendor's part of every GUID (the OUI of Mellanox).
const OUI: [u8; 3] = [0x94, 0x6d, 0xae];

impl DeviceConfig {
    /// Devices that a host may have.
    pub const MOST: u16 = 16;
    /// The kernel's number of a ConnectX-7.
    pub const PART: u32 = 4129;
    /// Mellanox, on PCI.
    pub const VENDOR: u32 = 0x15b3;
    /// Mellanox, as verbs tell it: its first OUI.
    pub const VENDOR_OUI: u32 = 0x2c9;
    /// Firmware version, as three numbers.
    pub const FIRMWARE: [u16; 3] = [28, 39, 1002];
    /// Path MTU's code: 4096 bytes.
    pub(crate) const MTU: u8 = 5;

    /// `count` devices of one kind.
    #[must_use]
    pub fn several(count: u16, link_layer: LinkLayer) -> Vec<Self> {
        (0..count.min(Self::MOST)).map(|index| Self { index, link_layer }).collect()
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> String {
        format!("mlx5_{}", self.index)
    }

    /// Its LID; 0 on Ethernet.
    #[must_use]
    pub const fn lid(&self) -> u16 {
        match self.link_layer {
            LinkLayer::InfiniBand => self.index + 1,
            LinkLayer::Ethernet => 0,
        }
    }

    /// Its GUID.
    #[must_use]
    pub const fn guid(&self) -> [u8; 8] {
        let [a, b, c] = OUI;
        [a, b, c, 0x03, 0x00, 0x5f, 0x7e, self.index as u8]
    }

    /// The MAC address of its port, on Ethernet.
    pub(crate) const fn mac(&self) -> [u8; 6] {
        let [a, b, c] = OUI;
        [a, b, c, 0x5f, 0x7e, self.index as u8]
    }

    /// Its GID table, from index 0 on; the rest is empty.
    pub(crate) fn gids(&self) -> Vec<([u8; 16], GidKind)> {
        let mut link_local = [0; 16];
        link_local[..2].copy_from_slice(&[0xfe, 0x80]);
        match self.link_layer {
            LinkLayer::InfiniBand => {
                link_local[8..].copy_from_slice(&self.guid());
                vec![(link_local, GidKind::Ib)]
            }
            LinkLayer::Ethernet => {
                let [a, b, c, d, e, f] = self.mac();
                link_local[8..].copy_from_slice(&[a ^ 2, b, c, 0xff, 0xfe, d, e, f]);
                let mut mapped = [0; 16];
                mapped[10..].copy_from_slice(&[0xff, 0xff, 192, 168, 130, self.index as u8 + 1]);
                let kinds = [GidKind::RoceV1, GidKind::RoceV2];
                [link_local, mapped]
                    .into_iter()
                    .flat_map(|gid| kinds.map(|kind| (gid, kind)))
                    .collect()
            }
        }
    }

    /// What its port is called.
    pub(crate) fn port(&self) -> PortAddress {
        let is_ethernet = self.link_layer == LinkLayer::Ethernet;
        PortAddress { lid: self.lid(), gids: self.gids(), is_ethernet }
    }

    /// Entries in its GID table.
    pub(crate) const fn gid_table(&self) -> usize {
        match self.link_layer {
            LinkLayer::InfiniBand => 8,
            LinkLayer::Ethernet => 16,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_unique_and_fit_their_tables() {
        for link_layer in [LinkLayer::InfiniBand, LinkLayer::Ethernet] {
            let devices = DeviceConfig::several(DeviceConfig::MOST, link_layer);
            let mut seen = std::collections::HashSet::new();
            for device in &devices {
                let gids = device.gids();
                assert!(!gids.is_empty() && gids.len() <= device.gid_table());
                for (gid, kind) in gids {
                    assert!(seen.insert((gid, gid_number(kind))), "{gid:x?}");
                }
            }
            let lids: Vec<_> = devices.iter().map(DeviceConfig::lid).collect();
            assert_eq!(lids.contains(&0), link_layer == LinkLayer::Ethernet);
        }
    }
}
