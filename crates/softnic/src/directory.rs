//! Where DC targets are, on a NIC whose address vectors name ports: one port may be the share of several NICs.

use crate::config::Qpn;
use crate::dc::Destination;
use crate::nic::split;

struct Route {
    /// What address vectors say.
    address: u16,
    /// Upper byte of the targets' numbers.
    tag: u8,
    nic: u16,
    /// Asked for again the next time.
    once: bool,
}

/// Routes that were asked for and answered.
pub(crate) struct Directory {
    routes: Vec<Route>,
    /// Bits of an address vector's LID that count.
    mask: u16,
    /// Whom a DC initiator waits to be told of.
    asked: Option<(u16, Qpn)>,
}

/// Routes that are kept: one for each upper byte, and some for addresses that lead nowhere.
const MOST: usize = 1024;

impl Directory {
    pub(crate) fn new(mask: u16) -> Self {
        Self { routes: Vec::with_capacity(MOST), mask, asked: None }
    }

    /// The NIC that a target is at; asks for it if that isn't known.
    pub(crate) fn find(&mut self, to: Destination) -> Option<u16> {
        let (address, tag) = (to.nic & self.mask, split(to.dct).1);
        let is_it = |route: &Route| route.address == address && route.tag == tag;
        let Some(at) = self.routes.iter().position(is_it) else {
            self.asked = Some((address, Qpn(to.dct)));
            return None;
        };
        let Route { nic, once, .. } = self.routes[at];
        if once {
            self.routes.swap_remove(at);
        }
        Some(nic)
    }

    pub(crate) fn take_asked(&mut self) -> Option<(u16, Qpn)> {
        self.asked.take()
    }

    pub(crate) fn add(&mut self, address: u16, dct: Qpn, nic: u16, once: bool) {
        let tag = split(dct.0).1;
        self.routes.retain(|route| route.address != address || route.tag != tag);
        if self.routes.len() == MOST {
            self.routes.clear();
        }
        self.routes.push(Route { address, tag, nic, once });
    }

    pub(crate) fn forget(&mut self, nic: u16) {
        self.routes.retain(|route| route.nic != nic);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_asked_for_and_what_is_forgotten_again() {
        let to = |nic, dct| Destination { nic, dct, key: 0 };
        for (mask, other_lid) in [(u16::MAX, None), (0, Some(9))] {
            let mut directory = Directory::new(mask);
            assert_eq!(directory.find(to(5, 0x03_8001)), None);
            assert_eq!(directory.take_asked(), Some((5 & mask, Qpn(0x03_8001))));
            assert_eq!(directory.take_asked(), None);
            directory.add(5 & mask, Qpn(0x03_8001), 8, true);
            assert_eq!(directory.find(to(5, 0x03_8002)), Some(8));
            assert_eq!(directory.find(to(5, 0x03_8001)), None);
            directory.add(5 & mask, Qpn(0x03_8001), 9, false);
            // Another target of the same NIC.
            assert_eq!(directory.find(to(5, 0x03_8002)), Some(9));
            assert_eq!(directory.find(to(6, 0x03_8001)), other_lid);
            assert_eq!(directory.find(to(5, 0x04_8001)), None);
            directory.forget(9);
            assert_eq!(directory.find(to(5, 0x03_8001)), None);
        }
    }
}
