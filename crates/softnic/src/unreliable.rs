//! Receiving what nobody acknowledges: unreliable connections, and datagrams with their global route headers.

use wire::cqe::{Cqe, CqeOpcode};
use wire::wqe::SEGMENT;
use zerocopy::IntoBytes;

use crate::check::{Cause, Check};
use crate::config::{GidKind, Nanos, PortAddress};
use crate::cq::Cqs;
use crate::mr::Regions;
use crate::packet::{Header, extend, flag, op};
use crate::qp::{Responder, WqeCopy};
use crate::receive::{fail_receive, scatter, take};
use crate::responder::{Outcome, Placement, Target, complete, execute};
use crate::wqe::word;

/// Bytes that a datagram's receive has before the message, for a global route header.
pub(crate) const GRH: usize = 40;

/// Takes a packet of an unreliable connection. What can't be executed is passed over, up to the next message; the cause if
/// the responder's own side is broken.
pub(crate) fn take_packet(
    r: &mut Responder,
    target: Target<'_>,
    packet: (&Header, &[u8]),
    mrs: &Regions,
    cqs: &mut Cqs,
    placement: &mut impl Placement,
    now: Nanos,
) -> Option<Cause> {
    let (header, _) = packet;
    let psn = extend(r.expected, header.psn);
    if header.flags & flag::FIRST != 0 {
        if let Some(cut) = r.receiving.take().filter(|cut| cut.is_posted) {
            r.spare = Some(cut);
        }
        r.skipping = false;
        r.expected = psn;
    } else if r.skipping || psn != r.expected {
        r.skipping = true;
        return None;
    }
    let outcome = match header.op {
        op::WRITE | op::SEND => execute(r, target, packet, mrs, cqs, placement, now),
        _ => Outcome::Refused,
    };
    (r.ack_due, r.nak, r.gap_told) = (false, None, false);
    match outcome {
        Outcome::Done => None,
        Outcome::Refused => {
            r.skipping = true;
            None
        }
        Outcome::Broken(cause) => {
            r.skipping = true;
            is_own(cause).then_some(cause)
        }
    }
}

/// Whether a cause is of the responder's side, which its client has to know.
fn is_own(cause: Cause) -> bool {
    matches!(
        cause.check(),
        Some(
            Check::ReceiveAccess | Check::ReceiveTooSmall | Check::CqOverrun | Check::RemoteReceive
        )
    )
}

/// What a datagram's header says besides: `lid(16) | service level(4) << 16 | has a GRH << 20`.
#[derive(Clone, Copy)]
struct From(u64);

impl From {
    const HAS_GRH: u64 = 1 << 20;

    fn lid(self) -> u16 {
        self.0 as u16
    }
    fn level(self) -> u8 {
        (self.0 >> 16) as u8 & 15
    }
    fn has_grh(self) -> bool {
        self.0 & Self::HAS_GRH != 0
    }
}

/// Takes a datagram. What isn't for this QP, or finds no receive, is passed over; the cause if the QP is broken.
pub(crate) fn take_datagram(
    r: &mut Responder,
    mut target: Target<'_>,
    (header, payload): (&Header, &[u8]),
    (qkey, port): (u32, &PortAddress),
    mrs: &Regions,
    cqs: &mut Cqs,
) -> Option<Cause> {
    if header.op != op::DATAGRAM || header.rkey != qkey || payload.len() < GRH {
        return None;
    }
    let from = From(header.va);
    if from.has_grh() && !port.is_destination(&payload[..GRH]) {
        return None;
    }
    let rq = target.rq.as_deref_mut()?;
    let receiving = take(rq, &mut r.receive_wqe).ok()?;
    let layout = rq.layout();
    let bytes = payload.len();
    let (number, cq, user_index) = (target.number, target.cq, target.user_index);
    let mut fail = |check: Check| {
        fail_receive(cqs, &target, receiving.index, check);
        Some(check.into())
    };
    if bytes as u64 > receiving.capacity {
        return fail(Check::ReceiveTooSmall);
    }
    let skip = if from.has_grh() { 0 } else { GRH };
    let wqe = &r.receive_wqe;
    if scatter(wqe, layout, target.rq_pd, mrs, skip as u64, &payload[skip..]).is_none() {
        return fail(Check::ReceiveAccess);
    }
    let kind = if header.flags & flag::IMM != 0 {
        CqeOpcode::ResponderSendImm
    } else {
        CqeOpcode::ResponderSend
    };
    let imm = u32::from_be_bytes(header.imm.to_ne_bytes());
    let cqe = Cqe::responder(kind, number, receiving.index as u16, bytes as u32, imm)
        .with_user_index(user_index)
        .with_source(header.src, from.lid(), from.level(), from.has_grh());
    match complete(cqs, cq, cqe, header) {
        Ok(()) => None,
        Err(_) => Some(Check::CqOverrun.into()),
    }
}

/// Of an address vector in a WQE behind its control segment.
struct Vector<'a>(&'a WqeCopy);

impl Vector<'_> {
    fn service_level(&self) -> u8 {
        (word(self.0, SEGMENT + 12) >> 24) as u8 & 15
    }
    fn traffic_class(&self) -> u8 {
        (word(self.0, SEGMENT + 24) >> 8) as u8
    }
    fn hop_limit(&self) -> u8 {
        word(self.0, SEGMENT + 24) as u8
    }
    fn route(&self) -> u32 {
        word(self.0, SEGMENT + 28)
    }
    fn gid(&self) -> &[u8] {
        &self.0.as_bytes()[2 * SEGMENT + 16..][..16]
    }
}

/// In an address vector of InfiniBand: there is a global route header.
const HAS_ROUTE: u32 = 1 << 30;

/// What a datagram's header says of its sender.
pub(crate) fn from(wqe: &WqeCopy, is_whole: bool, port: &PortAddress) -> u64 {
    let vector = Vector(wqe);
    let has_grh = is_whole && (port.is_ethernet || vector.route() & HAS_ROUTE != 0);
    // On Ethernet the level is a priority, one bit up.
    let level = vector.service_level() >> u8::from(port.is_ethernet);
    u64::from(port.lid) | u64::from(level) << 16 | (u64::from(has_grh) * From::HAS_GRH)
}

/// Bytes of a packet behind its route header: BTH, DETH and the invariant CRC, and padding to words.
fn wire_bytes(message: usize) -> u16 {
    (12 + 8 + message.next_multiple_of(4) + 4) as u16
}

/// Writes the global route header of a datagram of `message` bytes, or the IPv4 header at its end that RoCE v2 has instead.
pub(crate) fn write_grh(wqe: &WqeCopy, port: &PortAddress, message: usize, into: &mut [u8]) {
    let vector = Vector(wqe);
    let route = vector.route();
    let nothing = ([0; 16], GidKind::Ib);
    let (source, kind) = port.gids.get((route >> 20) as usize & 0xff).unwrap_or(&nothing);
    let bytes = wire_bytes(message);
    let mut grh = [0; GRH];
    if *kind == GidKind::RoceV2 && is_ipv4(source) {
        let ip = &mut grh[20..];
        ip[0] = 0x45;
        ip[1] = vector.traffic_class();
        // The IPv4 header's own 20, and UDP's 8.
        ip[2..4].copy_from_slice(&(bytes + 28).to_be_bytes());
        ip[6] = 0x40;
        ip[8] = vector.hop_limit();
        ip[9] = 17;
        ip[12..16].copy_from_slice(&source[12..]);
        ip[16..20].copy_from_slice(&vector.gid()[12..]);
        let sum = checksum(ip);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
    } else {
        let flow = 6 << 28 | u32::from(vector.traffic_class()) << 20 | route & 0xf_ffff;
        grh[..4].copy_from_slice(&flow.to_be_bytes());
        let udp = if *kind == GidKind::RoceV2 { 8 } else { 0 };
        grh[4..6].copy_from_slice(&(bytes + udp).to_be_bytes());
        grh[6] = if *kind == GidKind::RoceV2 { 17 } else { 0x1b };
        grh[7] = vector.hop_limit();
        grh[8..24].copy_from_slice(source);
        grh[24..].copy_from_slice(vector.gid());
    }
    into.copy_from_slice(&grh);
}

fn is_ipv4(gid: &[u8; 16]) -> bool {
    gid[..10] == [0; 10] && gid[10..12] == [0xff, 0xff]
}

/// The checksum of an IPv4 header whose own is blank (RFC 1071).
fn checksum(header: &[u8]) -> u16 {
    let words =
        header.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

impl PortAddress {
    /// Whether a datagram's route header leads here.
    fn is_destination(&self, grh: &[u8]) -> bool {
        let is_ipv4_header = grh[20] == 0x45 && grh[..20] == [0; 20];
        self.gids.is_empty()
            || self.gids.iter().any(|(gid, _)| {
                if is_ipv4_header {
                    is_ipv4(gid) && gid[12..] == grh[36..40]
                } else {
                    *gid == grh[24..40]
                }
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_header_leads_to_the_port_that_it_names() {
        let mut mapped = [0; 16];
        mapped[10..].copy_from_slice(&[0xff, 0xff, 192, 168, 130, 1]);
        let link_local = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 3, 4, 5, 6, 7, 8, 9];
        let kinds = [GidKind::RoceV1, GidKind::RoceV2];
        let gids: Vec<_> = [link_local, mapped]
            .into_iter()
            .flat_map(|gid| kinds.map(|kind| (gid, kind)))
            .collect();
        let port = PortAddress { lid: 0, gids, is_ethernet: true };
        let other = PortAddress { gids: vec![([7; 16], GidKind::RoceV2)], ..port.clone() };
        for (index, gid) in [link_local, link_local, mapped, mapped].into_iter().enumerate() {
            let mut wqe: WqeCopy = [0; 128];
            let bytes = wqe.as_mut_bytes();
            bytes[42..44].copy_from_slice(&[8, 64]);
            bytes[44..48].copy_from_slice(&((index as u32) << 20).to_be_bytes());
            bytes[48..64].copy_from_slice(&gid);
            let mut grh = [0; GRH];
            write_grh(&wqe, &port, 5, &mut grh);
            assert!(port.is_destination(&grh), "{index}: {grh:x?}");
            assert!(!other.is_destination(&grh), "{index}: {grh:x?}");
            if index == 3 {
                // 20 of IPv4, 8 of UDP, 12 of BTH, 8 of DETH, 5 padded to 8, 4 of CRC.
                assert_eq!(grh[20..24], [0x45, 8, 0, 60]);
                assert_eq!(checksum(&grh[20..]), 0, "the sum over a header with its checksum");
            } else {
                assert_eq!(grh[0] >> 4, 6);
                assert_eq!(grh[6], if index == 1 { 17 } else { 0x1b });
            }
        }
    }
}
