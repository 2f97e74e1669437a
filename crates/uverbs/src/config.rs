//! What the devices are.

use std::net::IpAddr;
use std::str::FromStr;

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

/// The most bytes that a packet carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mtu(u8);

/// A text that is no MTU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an MTU is 256, 512, 1024, 2048 or 4096 bytes")]
pub struct MtuError;

impl Mtu {
    /// The most that a port can do: 4096 bytes.
    pub const MOST: Self = Self(5);

    /// In bytes.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        128 << self.0
    }

    /// Its code, as verbs tell it.
    pub(crate) const fn code(self) -> u8 {
        self.0
    }
}

impl FromStr for Mtu {
    type Err = MtuError;

    fn from_str(text: &str) -> Result<Self, MtuError> {
        let known = (1..=Self::MOST.0).map(Self);
        known.into_iter().find(|mtu| mtu.bytes().to_string() == text).ok_or(MtuError)
    }
}

/// What a port says of its speed. Nothing is slower for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// In Gb/s.
    gigabits: u16,
    /// The name of the width and the speed, as sysfs has them.
    name: &'static str,
    /// Their codes, as verbs tell them.
    width: u8,
    speed: u8,
}

/// A text that is no rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a rate is 25, 50, 100, 200 or 400 Gb/s")]
pub struct RateError;

impl Rate {
    const ALL: [Self; 5] = [
        Self { gigabits: 25, name: "1X EDR", width: 1, speed: 32 },
        Self { gigabits: 50, name: "1X HDR", width: 1, speed: 64 },
        Self { gigabits: 100, name: "4X EDR", width: 2, speed: 32 },
        Self { gigabits: 200, name: "4X HDR", width: 2, speed: 64 },
        Self::MOST,
    ];
    /// Four lanes of NDR.
    pub const MOST: Self = Self { gigabits: 400, name: "4X NDR", width: 2, speed: 128 };

    /// In Gb/s.
    #[must_use]
    pub const fn gigabits(self) -> u16 {
        self.gigabits
    }

    /// As sysfs has it.
    pub(crate) fn text(self) -> String {
        format!("{} Gb/sec ({})", self.gigabits, self.name)
    }

    /// The codes of width and speed.
    pub(crate) const fn codes(self) -> (u8, u8) {
        (self.width, self.speed)
    }
}

impl FromStr for Rate {
    type Err = RateError;

    fn from_str(text: &str) -> Result<Self, RateError> {
        let found = Self::ALL.into_iter().find(|rate| rate.gigabits.to_string() == text);
        found.ok_or(RateError)
    }
}

/// What the ports of all devices are; addresses count up from one device to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortConfig {
    /// The active MTU.
    pub mtu: Mtu,
    /// The rate that is told.
    pub rate: Rate,
    /// The first device's LID, on InfiniBand.
    pub first_lid: u16,
    /// The first device's addresses, on Ethernet.
    pub addresses: [Option<IpAddr>; DeviceConfig::ADDRESSES],
}

impl Default for PortConfig {
    fn default() -> Self {
        let mut addresses = [None; DeviceConfig::ADDRESSES];
        addresses[0] = Some(IpAddr::from([192, 168, 130, 1]));
        Self { mtu: Mtu::MOST, rate: Rate::MOST, first_lid: 1, addresses }
    }
}

/// The address that lies `ahead` behind another, as a GID; none if there is none.
pub(crate) fn gid_of(address: IpAddr, ahead: u16) -> Option<[u8; 16]> {
    match address {
        IpAddr::V4(v4) => {
            let mut gid = [0; 16];
            gid[10..12].copy_from_slice(&[0xff; 2]);
            gid[12..].copy_from_slice(&v4.to_bits().checked_add(u32::from(ahead))?.to_be_bytes());
            Some(gid)
        }
        IpAddr::V6(v6) => Some(v6.to_bits().checked_add(u128::from(ahead))?.to_be_bytes()),
    }
}

/// One device: `mlx5_<index>` behind `uverbs<index>`, a ConnectX-7 with one port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceConfig {
    /// Its number among the host's devices, below [`DeviceConfig::MOST`].
    pub index: u16,
    /// What its port speaks.
    pub link_layer: LinkLayer,
    /// What else its port is.
    pub port: PortConfig,
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
    /// Addresses that a port on Ethernet may have, besides its link-local one.
    pub const ADDRESSES: usize = 7;
    /// The last LID that a port may have.
    pub const LAST_LID: u16 = 0xbfff;

    /// `count` devices of one kind.
    #[must_use]
    pub fn several(count: u16, link_layer: LinkLayer) -> Vec<Self> {
        Self::several_with(count, link_layer, PortConfig::default())
    }

    /// `count` devices of one kind, and what their ports are.
    #[must_use]
    pub fn several_with(count: u16, link_layer: LinkLayer, port: PortConfig) -> Vec<Self> {
        (0..count.min(Self::MOST)).map(|index| Self { index, link_layer, port }).collect()
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
            LinkLayer::InfiniBand => self.port.first_lid.saturating_add(self.index),
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
                let given = self.port.addresses.iter().flatten();
                let given = given.filter_map(|&address| gid_of(address, self.index));
                let kinds = [GidKind::RoceV1, GidKind::RoceV2];
                std::iter::once(link_local)
                    .chain(given)
                    .flat_map(|gid| kinds.map(|kind| (gid, kind)))
                    .collect()
            }
        }
    }

    /// What its port is called.
    pub(crate) fn port_address(&self) -> PortAddress {
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
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn mtus_and_rates_are_read_and_told() {
        for (text, bytes, code) in [("256", 256, 1), ("1024", 1024, 3), ("4096", 4096, 5)] {
            let mtu: Mtu = text.parse().unwrap();
            assert_eq!((mtu.bytes(), mtu.code()), (bytes, code));
        }
        for text in ["", "0", "128", "1500", "8192", "+256"] {
            assert_eq!(text.parse::<Mtu>(), Err(MtuError), "{text}");
        }
        for rate in Rate::ALL {
            assert_eq!(rate.gigabits().to_string().parse(), Ok(rate));
        }
        assert_eq!(Rate::MOST.text(), "400 Gb/sec (4X NDR)");
        assert_eq!("10".parse::<Rate>(), Err(RateError));
    }

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
