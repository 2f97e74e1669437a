//! Where a NIC is on its fabric.

use std::net::Ipv6Addr;

/// What a peer must know of a NIC's port to reach it. Plain numbers: it is exchanged between processes.
///
/// The software NIC has a LID only, and says nothing of packets.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize,
)]
pub struct Address {
    /// Local identifier; 0 on Ethernet, where there are none.
    pub lid: u16,
    /// Global identifier, in network order; all zeros where the NIC uses none.
    pub gid: [u8; 16],
    /// Bytes of its largest packets, or 0 if it takes any: the smaller one of both ends is the path's.
    pub mtu: u16,
}

impl Address {
    /// Of a NIC that is reached by its LID alone.
    #[must_use]
    pub const fn lid(lid: u16) -> Self {
        Self { lid, gid: [0; 16], mtu: 0 }
    }

    /// Whether packets to it carry a global route: it has no LID, so its GID is all that there is.
    #[must_use]
    pub fn is_global(&self) -> bool {
        self.lid == 0 && self.gid != [0; 16]
    }

    /// The largest packets between it and a peer, in bytes, if either says.
    #[must_use]
    pub fn path_mtu(&self, peer: &Self) -> Option<u32> {
        [self.mtu, peer.mtu].into_iter().filter(|mtu| *mtu != 0).min().map(u32::from)
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_global() {
            write!(f, "GID {}", Ipv6Addr::from(self.gid))
        } else {
            write!(f, "LID {}", self.lid)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smaller_mtu_is_the_paths_and_a_global_address_has_no_lid() {
        let address = |lid, mtu| Address { lid, gid: [7; 16], mtu };
        for (one, other, mtu) in
            [(0, 0, None), (0, 1024, Some(1024)), (4096, 1024, Some(1024)), (4096, 0, Some(4096))]
        {
            assert_eq!(address(1, one).path_mtu(&address(2, other)), mtu);
        }
        assert!(address(0, 0).is_global() && !address(1, 0).is_global());
        assert!(!Address::default().is_global());
        assert_eq!(Address::lid(7).to_string(), "LID 7");
    }
}
