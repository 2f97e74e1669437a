//! The port that a NIC is opened at: chosen, opened, and told.

use std::net::Ipv6Addr;
use std::sync::Arc;

use super::{Context, ProtectionDomain, Route, device_names, ffi};
use crate::select::{self, Candidate, GidKind, LinkLayer, NoPort, PathMtu, Wanted};
use crate::sysfs::{self, Sysfs};
use crate::{Address, Error};

/// What was asked for, of the device, its port and the path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Device and port.
    pub port: Wanted,
    /// Index into the port's GID table.
    pub gid_index: Option<u32>,
    /// Path MTU in bytes; the port's active one unless it is said.
    pub mtu: Option<u32>,
    /// PCI address of the GPU that submits.
    pub gpu: Option<String>,
    /// The kernel's driver, or the device's name, has to begin so: what a driver's own path can use.
    pub driver: Option<&'static str>,
}

/// Which port was chosen, and all that its peers and its records have to know.
#[derive(Clone, Debug)]
pub struct PortOf {
    /// The device.
    pub device: String,
    /// Its firmware.
    pub firmware: String,
    /// The port.
    pub port: u8,
    /// Why this one.
    pub why: String,
    /// What it speaks.
    pub link: LinkLayer,
    /// Index of its GID, where it has one.
    pub gid_index: Option<u32>,
    /// What that GID speaks.
    pub gid_kind: Option<GidKind>,
    /// Why this one; of InfiniBand it says what it is for.
    pub gid_why: &'static str,
    /// Path MTU.
    pub mtu: PathMtu,
    /// Its address.
    pub address: Address,
}

impl PortOf {
    /// What a record says of it: names and values.
    #[must_use]
    pub fn details(&self) -> Vec<(&'static str, String)> {
        let mut details = vec![
            ("nic_device", self.device.clone()),
            ("nic_port", self.port.to_string()),
            ("nic_port_why", self.why.clone()),
            ("nic_firmware", self.firmware.clone()),
            ("nic_link_layer", self.link.name().to_owned()),
            ("nic_path_mtu", self.mtu.bytes.to_string()),
        ];
        if self.mtu.limited_by_port {
            details
                .push(("nic_path_mtu_why", "the port's active MTU is less than asked".to_owned()));
        }
        if let (Some(index), Some(kind)) = (self.gid_index, self.gid_kind) {
            let kind = match (self.link, kind) {
                (LinkLayer::InfiniBand, _) => "InfiniBand",
                (_, GidKind::V1) => "RoCE v1",
                (_, GidKind::V2) => "RoCE v2",
            };
            details.push(("nic_gid_index", index.to_string()));
            details.push(("nic_gid", Ipv6Addr::from(self.address.gid).to_string()));
            details.push(("nic_gid_type", kind.to_owned()));
            details.push(("nic_gid_why", self.gid_why.to_owned()));
        }
        details
    }
}

/// A port that was chosen, with its device open.
#[derive(Clone, Debug)]
pub struct OpenPort {
    /// The device.
    pub context: Arc<Context>,
    /// A protection domain of it.
    pub pd: Arc<ProtectionDomain>,
    /// What was chosen.
    pub of: PortOf,
    /// How its packets leave.
    pub route: Route,
}

impl OpenPort {
    /// Chooses a port, and opens its device.
    ///
    /// # Errors
    /// No libibverbs, no port that can be used, a GID or an MTU that the port can't have, or a verb that failed.
    pub fn open(asked: &Asked) -> Result<Self, Error> {
        let (candidates, contexts) = candidates(asked)?;
        let (chosen, why) = select::port(&candidates, &asked.port)?;
        let chosen = &candidates[chosen];
        let context = contexts.into_iter().find(|context| context.name() == chosen.device);
        let context = context.ok_or(NoPort::NoDevice)?;
        Self::at(context, chosen.port, why, asked)
    }

    fn at(context: Arc<Context>, number: u8, why: String, asked: &Asked) -> Result<Self, Error> {
        let attr = context.attr()?;
        let port = context.port(number)?;
        let refused = |index: u32| NoGid {
            device: context.name().to_owned(),
            port: number,
            index,
            entries: port.gids.len(),
        };
        let (gid_index, gid_why) = match asked.gid_index {
            Some(index) => {
                let gid = port.gids.get(index as usize);
                if gid.is_none_or(|gid| gid.address.is_unspecified()) {
                    return Err(refused(index).into());
                }
                (Some(index as usize), "asked for")
            }
            None => {
                (select::gid(&port.gids), "RoCE v2 first, then a routable address, then the first")
            }
        };
        if gid_index.is_none() && port.link == LinkLayer::Ethernet {
            return Err(refused(0).into());
        }
        let gid = gid_index.map(|index| port.gids[index]);
        let mtu = select::path_mtu(asked.mtu.unwrap_or(port.active_mtu), port.active_mtu)?;
        let lid = if port.link == LinkLayer::Ethernet { 0 } else { port.attr.lid };
        let address = Address {
            lid,
            gid: gid.map_or([0; 16], |gid| gid.address.octets()),
            mtu: u16::try_from(mtu.bytes).unwrap_or(0),
        };
        // The responder's and the initiator's limits are one number in most devices; the smaller one serves both.
        let reads = attr.max_qp_rd_atom.min(attr.max_qp_init_rd_atom).clamp(1, 16);
        let route = Route {
            port: number,
            own: address,
            gid_index: gid_index.and_then(|index| u8::try_from(index).ok()).unwrap_or(0),
            always_global: port.attr.flags & ffi::PORT_GRH_REQUIRED != 0,
            reads: u8::try_from(reads).unwrap_or(1),
        };
        let of = PortOf {
            device: context.name().to_owned(),
            firmware: context.firmware()?,
            port: number,
            why,
            link: port.link,
            gid_index: gid_index.and_then(|index| u32::try_from(index).ok()),
            gid_kind: gid.map(|gid| gid.kind),
            gid_why: match port.link {
                LinkLayer::InfiniBand if asked.gid_index.is_none() => "the LID is used",
                _ => gid_why,
            },
            mtu,
            address,
        };
        let pd = ProtectionDomain::new(&context)?;
        Ok(Self { context, pd, of, route })
    }
}

/// A GID that a port doesn't have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{device}:{port} has no GID at index {index} of its table of {entries}: give its network interface an address, or \
     name another by --gid-index"
)]
pub struct NoGid {
    /// The device.
    pub device: String,
    /// Its port.
    pub port: u8,
    /// What was asked for, or 0.
    pub index: u32,
    /// Entries of the table.
    pub entries: usize,
}

/// Every port of every device that can be opened, and those devices.
fn candidates(asked: &Asked) -> Result<(Vec<Candidate>, Vec<Arc<Context>>), Error> {
    let files = Sysfs::system();
    let gpu = asked.gpu.as_deref().and_then(|address| files.pci(address));
    let (mut candidates, mut contexts) = (Vec::new(), Vec::new());
    let mut failed = None;
    for name in device_names()? {
        let known = files.device(&name);
        let is_of = |driver: &str| {
            // A device may be named after its place on the bus.
            name.starts_with(driver)
                || known.driver.as_ref().is_some_and(|one| one.starts_with(driver))
        };
        if !asked.driver.is_none_or(is_of)
            || asked.port.device.as_ref().is_some_and(|device| *device != name)
        {
            continue;
        }
        // One that can't be opened must not keep another from being used.
        let context = match Context::open(&name) {
            Ok(context) => context,
            Err(error) => {
                failed = failed.or(Some(error));
                continue;
            }
        };
        let distance = gpu.as_ref().zip(known.pci.as_ref()).map(|(a, b)| sysfs::distance(a, b));
        for number in 1..=context.attr()?.phys_port_cnt {
            let port = context.port(number)?;
            let file = known.ports.iter().find(|file| file.number == number);
            let state = if port.attr.state == ffi::PORT_ACTIVE {
                Ok(())
            } else {
                Err(file
                    .map_or_else(|| format!("in state {}", port.attr.state), |f| f.state.clone()))
            };
            candidates.push(Candidate {
                device: name.clone(),
                port: number,
                state,
                rate: file.and_then(|file| file.rate),
                distance,
            });
        }
        contexts.push(context);
    }
    match failed {
        Some(error) if candidates.is_empty() => Err(error),
        _ if candidates.is_empty() && asked.port.device.is_some() => Err(NoPort::Unknown {
            asked: asked.port.device.clone().unwrap_or_default(),
            there: device_names()?,
        }
        .into()),
        _ => Ok((candidates, contexts)),
    }
}
