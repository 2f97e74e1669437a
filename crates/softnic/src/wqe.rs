//! Send WQEs as the requester understands them: checked once, then gathered from and scattered to.

use wire::wqe::{AV_EXTENDED, INLINE, Opcode, SEGMENT};
use zerocopy::IntoBytes;

use crate::check::{Cause, Check};
use crate::config::QpKind;
use crate::dc::Destination;
use crate::mr::{Access, Regions};
use crate::qp::WqeCopy;

/// A WQE as the requester understood it.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    pub what: What,
    pub len: u32,
    /// Segment at which the data list starts, and segments in the WQE.
    pub data: u8,
    pub ds: u8,
    pub raddr: u64,
    pub rkey: u32,
    /// Native order of the bytes in the WQE.
    pub imm: u32,
    pub destination: Option<Destination>,
    /// Of an extended connection: the peer's shared receive queue.
    pub srq: u32,
    /// The address vector has its long form.
    pub is_routed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    Nop,
    Write { imm: bool },
    Send { imm: bool },
    Read,
    Atomic { segments: u8 },
}

#[inline]
pub(crate) fn word(wqe: &WqeCopy, byte: usize) -> u32 {
    let wide = wqe[(byte / 8) & 127].to_ne_bytes();
    let half = if byte & 4 == 0 {
        [wide[0], wide[1], wide[2], wide[3]]
    } else {
        [wide[4], wide[5], wide[6], wide[7]]
    };
    u32::from_be_bytes(half)
}

#[inline]
pub(crate) fn wide(wqe: &WqeCopy, byte: usize) -> u64 {
    u64::from_be(wqe[(byte / 8) & 127])
}

/// Limits that a WQE is held to.
pub(crate) struct Limits {
    pub pd: u32,
    pub qpn: u32,
    pub max_message: u32,
    pub mtu: u32,
    pub reads: bool,
    pub kind: QpKind,
}

/// Checks a WQE, its keys included.
#[inline]
pub(crate) fn parse(wqe: &WqeCopy, limits: &Limits, mrs: &Regions) -> Result<Request, Cause> {
    let qpn_ds = word(wqe, 4);
    let ds = qpn_ds as u8 & wire::wqe::DS_MAX;
    if ds == 0 {
        return Err(Check::DsZero.into());
    }
    if qpn_ds >> 8 != limits.qpn {
        return Err(Check::QpnMismatch.into());
    }
    let first = word(wqe, 0);
    let opcode = Opcode::from_byte(first as u8).ok_or(Check::Opcode)?;
    let (what, data, access) = match opcode {
        Opcode::Nop => (What::Nop, ds, Access::empty()),
        Opcode::RdmaWrite => (What::Write { imm: false }, 2, Access::empty()),
        Opcode::RdmaWriteImm => (What::Write { imm: true }, 2, Access::empty()),
        Opcode::Send => (What::Send { imm: false }, 1, Access::empty()),
        Opcode::SendImm => (What::Send { imm: true }, 1, Access::empty()),
        Opcode::RdmaRead => (What::Read, 2, Access::LOCAL_WRITE),
        Opcode::AtomicCs | Opcode::AtomicFa => {
            (What::Atomic { segments: 1 }, 3, Access::LOCAL_WRITE)
        }
        Opcode::AtomicMaskedCs | Opcode::AtomicMaskedFa => {
            let segments = match (opcode, (first >> 24) as u8) {
                (Opcode::AtomicMaskedCs, wire::wqe::OPMOD_EXTENDED_8) => 2,
                (_, wire::wqe::OPMOD_EXTENDED_4 | wire::wqe::OPMOD_EXTENDED_8) => 1,
                _ => return Err(Check::AtomicMode.into()),
            };
            (What::Atomic { segments }, 2 + segments, Access::LOCAL_WRITE)
        }
        _ => return Err(Check::Opcode.into()),
    };
    let mut request = Request {
        what,
        data,
        ds,
        len: 0,
        raddr: 0,
        rkey: 0,
        imm: 0,
        destination: None,
        srq: 0,
        is_routed: false,
    };
    if matches!(what, What::Nop) {
        return Ok(request);
    }
    let mut data = data;
    let mut at = SEGMENT;
    let segments = match limits.kind {
        QpKind::Rc | QpKind::Uc | QpKind::XrcTarget => 0,
        QpKind::Dci | QpKind::Ud => {
            let (segments, destination) = destination(wqe, ds)?;
            request.destination = Some(destination);
            request.is_routed = segments > 1;
            segments
        }
        QpKind::XrcInitiator => {
            request.srq = word(wqe, SEGMENT) & wire::NUMBER_MASK;
            1
        }
    };
    data += segments;
    at += usize::from(segments) * SEGMENT;
    request.data = data;
    let may = match limits.kind {
        QpKind::Ud => matches!(what, What::Send { .. }),
        QpKind::Uc => matches!(what, What::Send { .. } | What::Write { .. }),
        _ => true,
    };
    if !may {
        return Err(Check::Opcode.into());
    }
    if ds < data {
        return Err(Check::DsForOpcode.into());
    }
    request.imm = wqe[1].to_ne_bytes().last_chunk::<4>().map_or(0, |b| u32::from_ne_bytes(*b));
    if !matches!(what, What::Send { .. }) {
        request.raddr = wide(wqe, at);
        request.rkey = word(wqe, at + 8);
    }
    let read_back = !access.is_empty();
    let mut total = 0u64;
    let mut segment = data;
    while segment < ds {
        let at = usize::from(segment) * SEGMENT;
        let count = word(wqe, at);
        if count & INLINE != 0 {
            if read_back {
                return Err(Check::DsForOpcode.into());
            }
            let len = count & !INLINE;
            if len as usize > usize::from(ds - segment) * SEGMENT - 4 {
                return Err(Check::InlineLength.into());
            }
            total += u64::from(len);
            segment += wire::wqe::inline_segments(len) as u8;
        } else {
            if count != 0 {
                mrs.local(
                    limits.pd,
                    word(wqe, at + 4),
                    wide(wqe, at + 8),
                    u64::from(count),
                    access,
                )?;
            }
            total += u64::from(count);
            segment += 1;
        }
    }
    // A datagram is one packet.
    let most = if limits.kind == QpKind::Ud { limits.mtu } else { limits.max_message };
    if total > u64::from(most) {
        return Err(Check::MessageLength.into());
    }
    request.len = total as u32;
    if matches!(what, What::Atomic { .. }) && request.len != atomic_size(first) {
        return Err(Check::AtomicResult.into());
    }
    if read_back && !limits.reads {
        return Err(Check::ReadLimit.into());
    }
    Ok(request)
}

/// The address vector behind the control segment: its segments, and whom it names.
fn destination(wqe: &WqeCopy, ds: u8) -> Result<(u8, Destination), Check> {
    let dqp_dct = word(wqe, SEGMENT + 8);
    let segments = if dqp_dct & AV_EXTENDED != 0 { 3 } else { 1 };
    if ds < 1 + segments {
        return Err(Check::AddressVector);
    }
    let destination = Destination {
        nic: word(wqe, SEGMENT + 12) as u16,
        dct: dqp_dct & wire::NUMBER_MASK,
        key: wide(wqe, SEGMENT),
    };
    Ok((segments, destination))
}

/// Bytes in an atomic's operand, from the control segment's first word.
pub(crate) fn atomic_size(first: u32) -> u32 {
    match Opcode::from_byte(first as u8) {
        Some(Opcode::AtomicMaskedCs | Opcode::AtomicMaskedFa)
            if (first >> 24) as u8 == wire::wqe::OPMOD_EXTENDED_4 =>
        {
            4
        }
        _ => 8,
    }
}

/// Copies `out.len()` bytes at `offset` of a WQE's data list. Keys are checked again: a region may be gone.
#[inline]
pub(crate) fn gather(
    wqe: &WqeCopy,
    request: &Request,
    pd: u32,
    mrs: &Regions,
    mut offset: u64,
    mut out: &mut [u8],
) -> Result<(), Cause> {
    let mut segment = request.data;
    while segment < request.ds && !out.is_empty() {
        let at = usize::from(segment) * SEGMENT;
        let count = word(wqe, at);
        let len = u64::from(count & !INLINE);
        let inline = count & INLINE != 0;
        segment += if inline { wire::wqe::inline_segments(len as u32) as u8 } else { 1 };
        if offset >= len {
            offset -= len;
            continue;
        }
        let take = (len - offset).min(out.len() as u64) as usize;
        let Some((now, rest)) = std::mem::take(&mut out).split_at_mut_checked(take) else { break };
        if inline {
            let bytes = wqe.as_bytes();
            let from = at + 4 + offset as usize;
            let source = bytes.get(from..from + take).ok_or(Cause::from(Check::InlineLength))?;
            now.copy_from_slice(source);
        } else {
            let (memory, start) =
                mrs.local(pd, word(wqe, at + 4), wide(wqe, at + 8), len, Access::empty())?;
            memory
                .read(start + offset as usize, now)
                .map_err(|_| Cause::from(Check::LocalBounds))?;
        }
        out = rest;
        offset = 0;
    }
    Ok(())
}

/// Copies a response's bytes to `offset` of the WQE's data list.
pub(crate) fn scatter(
    wqe: &WqeCopy,
    data: u8,
    pd: u32,
    mrs: &Regions,
    mut offset: u64,
    mut bytes: &[u8],
) -> Result<(), Cause> {
    let ds = word(wqe, 4) as u8 & wire::wqe::DS_MAX;
    let mut segment = data;
    while segment < ds && !bytes.is_empty() {
        let at = usize::from(segment) * SEGMENT;
        let len = u64::from(word(wqe, at) & !INLINE);
        segment += 1;
        if offset >= len {
            offset -= len;
            continue;
        }
        let take = (len - offset).min(bytes.len() as u64) as usize;
        let (now, rest) = bytes.split_at(take);
        let (memory, start) =
            mrs.local(pd, word(wqe, at + 4), wide(wqe, at + 8), len, Access::LOCAL_WRITE)?;
        memory.write(start + offset as usize, now).map_err(|_| Cause::from(Check::LocalBounds))?;
        bytes = rest;
        offset = 0;
    }
    Ok(())
}
