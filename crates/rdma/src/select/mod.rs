//! Which port a NIC is opened at, which GID a RoCE connection uses, and which path MTU: pure functions of what the
//! system says.

mod port;

use std::net::Ipv6Addr;

pub use port::{Candidate, Distance, LinkLayer, NoPort, Wanted, port};

/// What a GID table entry speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidKind {
    /// InfiniBand, or RoCE v1: not routable.
    V1,
    /// RoCE v2: over UDP, routable.
    V2,
}

/// One entry of a port's GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gid {
    /// The address.
    pub address: Ipv6Addr,
    /// What it speaks.
    pub kind: GidKind,
}

/// Index of the GID to use, or none in a table without a usable entry.
///
/// RoCE v2 before v1; then an address that routes (an IPv4-mapped or a global one) before a link-local one; then
/// the first. Unset entries, all zeros, are never chosen.
#[must_use]
pub fn gid(table: &[Gid]) -> Option<usize> {
    let usable = table.iter().enumerate().filter(|(_, gid)| !gid.address.is_unspecified());
    usable
        .min_by_key(|(index, gid)| {
            (gid.kind == GidKind::V1, gid.address.is_unicast_link_local(), *index)
        })
        .map(|(index, _)| index)
}

/// A path MTU and whether the port gave less than was asked for, which a record has to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathMtu {
    /// Bytes.
    pub bytes: u32,
    /// The port's active MTU is smaller than what was asked for.
    pub limited_by_port: bool,
}

/// A number of bytes that is no MTU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} is no MTU of the {whose}: 256, 512, 1024, 2048 and 4096 are")]
pub struct NoMtu {
    /// What was given.
    pub bytes: u32,
    /// Whose it should be.
    pub whose: &'static str,
}

/// The path MTU: what is asked for, and never above the port's active MTU.
///
/// # Errors
/// Either number is none of the five that there are.
pub fn path_mtu(asked: u32, active: u32) -> Result<PathMtu, NoMtu> {
    let checked = |bytes: u32, whose| {
        let valid = bytes.is_power_of_two() && (256..=4096).contains(&bytes);
        if valid { Ok(bytes) } else { Err(NoMtu { bytes, whose }) }
    };
    let (asked, active) = (checked(asked, "request")?, checked(active, "port")?);
    Ok(PathMtu { bytes: asked.min(active), limited_by_port: active < asked })
}
