//! WQEs in words.

use core::fmt;

use zerocopy::IntoBytes;

use super::{Explain, Fields, OpcodeName, Remark, Sink};
use crate::wqe::{
    AddressVector, Ctrl, CtrlFlags, Opcode, Placed, SEGMENT, Segment, Transport, Wqe as Parsed,
};

/// A send WQE, given by its bytes (from its control segment on, more may follow).
#[derive(Clone, Copy, Debug)]
pub struct Wqe<'a> {
    /// The bytes.
    pub bytes: &'a [u8],
    /// Whether address vectors are to be expected.
    pub transport: Transport,
}

impl Explain for Wqe<'_> {
    fn explain(&self, sink: &mut dyn Sink) -> fmt::Result {
        let head = self.bytes.first_chunk::<SEGMENT>();
        let ctrl: Option<Ctrl> = head.map(|bytes| zerocopy::transmute!(*bytes));
        match (ctrl, Parsed::parse(self.bytes, self.transport)) {
            (Some(ctrl), Ok(wqe)) => {
                sink.title(format_args!(
                    "WQE {} of QP 0x{:x}: {}, {} segments, {} WQEBB",
                    ctrl.index(),
                    ctrl.qpn(),
                    wqe.opcode().name(),
                    ctrl.ds(),
                    wqe.blocks()
                ))?;
                control(&ctrl, sink)?;
                self.segments(&wqe, sink)
            }
            (Some(ctrl), Err(error)) => {
                sink.title(format_args!("not a whole WQE"))?;
                control(&ctrl, sink)?;
                sink.remark(Remark::Warning, format_args!("{error}"))
            }
            (None, Err(error)) => {
                sink.title(format_args!("not a WQE"))?;
                sink.remark(Remark::Warning, format_args!("{error}"))
            }
            (None, Ok(_)) => Ok(()),
        }
    }
}

impl Wqe<'_> {
    fn segments(&self, wqe: &Parsed<'_>, sink: &mut dyn Sink) -> fmt::Result {
        for placed in wqe.segments() {
            match placed {
                Ok(placed) => segment(wqe, &placed, sink)?,
                Err(error) => sink.remark(Remark::Warning, format_args!("{error}"))?,
            }
        }
        let mut result = Ok(());
        wqe.warnings(|warning| {
            if result.is_ok() {
                result = sink.remark(Remark::Warning, format_args!("{warning}"));
            }
        });
        result
    }
}

fn control(ctrl: &Ctrl, sink: &mut dyn Sink) -> fmt::Result {
    sink.segment(0, format_args!("control"))?;
    let raw_ds = ctrl.qpn_ds.get() as u8;
    let imm = ctrl.imm.get();
    let mut fields = Fields { sink, bytes: ctrl.as_bytes(), base: 0 };
    fields.field(0, 1, "opmod", format_args!("{}", Opmod(ctrl)))?;
    fields.field(1, 2, "wqe_index", format_args!("{} (mod 65536)", ctrl.index()))?;
    fields.field(3, 1, "opcode", format_args!("{}", OpcodeName(ctrl.opcode_byte())))?;
    fields.field(4, 3, "qpn", format_args!("0x{:x} ({})", ctrl.qpn(), ctrl.qpn()))?;
    fields.field(
        7,
        1,
        "ds",
        format_args!("{raw_ds} segments = {} bytes", usize::from(raw_ds) * SEGMENT),
    )?;
    fields.field(8, 1, "signature", format_args!("0x{:02x}", ctrl.signature))?;
    fields.field(9, 2, "dci_stream", format_args!("{}", u16::from_be_bytes(ctrl.stream)))?;
    fields.field(11, 1, "fm_ce_se", format_args!("{}", Flags(ctrl.flags())))?;
    match ctrl.opcode() {
        Some(Opcode::RdmaWriteImm | Opcode::SendImm) => {
            fields.field(12, 4, "imm", format_args!("immediate 0x{imm:08x}"))
        }
        Some(Opcode::SendInval | Opcode::LocalInval) => {
            fields.field(12, 4, "imm", format_args!("key to invalidate 0x{imm:08x}"))
        }
        Some(Opcode::Umr) => fields.field(12, 4, "imm", format_args!("key to change 0x{imm:08x}")),
        _ => fields.field(12, 4, "imm", format_args!("0x{imm:08x}, not used by this opcode")),
    }
}

struct Opmod<'a>(&'a Ctrl);

impl fmt::Display for Opmod<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let opmod = self.0.opmod();
        match (self.0.opcode(), opmod) {
            (Some(Opcode::AtomicMaskedCs | Opcode::AtomicMaskedFa), 8) => {
                f.write_str("extended atomic, 4 bytes")
            }
            (Some(Opcode::AtomicMaskedCs | Opcode::AtomicMaskedFa), 9) => {
                f.write_str("extended atomic, 8 bytes")
            }
            _ => write!(f, "0x{opmod:02x}"),
        }
    }
}

struct Flags(CtrlFlags);

impl fmt::Display for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0.0 >> 2 & 3 {
            0 => "CQE only on error",
            1 => "CQE only on the first error",
            2 => "CQE wanted",
            _ => "CQE and event wanted",
        })?;
        f.write_str(match self.0.0 >> 5 {
            0 => "",
            1 => ", initiator small fence",
            2 => ", fence",
            3 => ", strong ordering",
            4 => ", fence (small and full)",
            _ => ", unknown fence mode",
        })?;
        if self.0.has(CtrlFlags::SOLICITED) {
            f.write_str(", solicited event")?;
        }
        if self.0.0 & 0x11 != 0 {
            write!(f, ", reserved bits 0x{:02x}", self.0.0 & 0x11)?;
        }
        Ok(())
    }
}

fn segment(wqe: &Parsed<'_>, placed: &Placed<'_>, sink: &mut dyn Sink) -> fmt::Result {
    let base = placed.offset;
    let bytes = wqe.bytes().get(base..).unwrap_or_default();
    let name = match placed.segment {
        Segment::AddressVectorShort(_) => "address vector (16 bytes)",
        Segment::AddressVector(_) => "address vector (48 bytes)",
        Segment::Raddr(_) => "remote address",
        Segment::Atomic(_) => "atomic",
        Segment::MaskedCas4(_) => "4-byte masked compare-and-swap",
        Segment::MaskedCas8(_) => "8-byte masked compare-and-swap",
        Segment::MaskedFa4(_) => "4-byte masked fetch-and-add",
        Segment::MaskedFa8(_) => "8-byte masked fetch-and-add",
        Segment::Data(_) => "data pointer",
        Segment::Inline(_) => "inline data",
        Segment::Wait(_) => "wait",
        Segment::Opaque(_) => "segment",
    };
    sink.segment(base, format_args!("{name}"))?;
    let mut f = Fields { sink, bytes, base };
    match placed.segment {
        Segment::AddressVectorShort(short) => {
            address_vector(&mut f, &AddressVector::from_short(short), false)
        }
        Segment::AddressVector(av) => address_vector(&mut f, &av, true),
        Segment::Raddr(raddr) => {
            f.field(0, 8, "raddr", format_args!("0x{:x}", raddr.addr))?;
            f.field(8, 4, "rkey", format_args!("0x{:x}", raddr.rkey))
        }
        Segment::Atomic(atomic) if wqe.opcode() == Opcode::AtomicFa => {
            f.field(0, 8, "swap_add", format_args!("add {}", atomic.swap_add))?;
            f.field(
                8,
                8,
                "compare",
                format_args!("0x{:x}, not used by this opcode", atomic.compare),
            )
        }
        Segment::Atomic(atomic) => {
            f.field(0, 8, "swap_add", format_args!("swap in 0x{:x}", atomic.swap_add))?;
            f.field(8, 8, "compare", format_args!("if equal to 0x{:x}", atomic.compare))
        }
        Segment::MaskedCas4(cas) => {
            f.field(0, 4, "swap", format_args!("0x{:x}", cas.swap))?;
            f.field(4, 4, "compare", format_args!("0x{:x}", cas.compare))?;
            f.field(8, 4, "swap_mask", format_args!("0x{:x}", cas.swap_mask))?;
            f.field(12, 4, "compare_mask", format_args!("0x{:x}", cas.compare_mask))
        }
        Segment::MaskedCas8(cas) => {
            f.field(0, 8, "swap", format_args!("0x{:x}", cas.swap))?;
            f.field(8, 8, "compare", format_args!("0x{:x}", cas.compare))?;
            f.field(16, 8, "swap_mask", format_args!("0x{:x}", cas.swap_mask))?;
            f.field(24, 8, "compare_mask", format_args!("0x{:x}", cas.compare_mask))
        }
        Segment::MaskedFa4(fa) => {
            f.field(0, 4, "add", format_args!("{}", fa.add))?;
            f.field(4, 4, "field_boundary", format_args!("0x{:x}", fa.field_boundary))
        }
        Segment::MaskedFa8(fa) => {
            f.field(0, 8, "add", format_args!("{}", fa.add))?;
            f.field(8, 8, "field_boundary", format_args!("0x{:x}", fa.field_boundary))
        }
        Segment::Data(data) => {
            f.field(0, 4, "byte_count", format_args!("{} bytes", data.byte_count))?;
            f.field(4, 4, "lkey", format_args!("0x{:x}", data.lkey))?;
            f.field(8, 8, "addr", format_args!("0x{:x}", data.addr))
        }
        Segment::Inline(payload) => {
            f.field(0, 4, "byte_count", format_args!("inline, {} bytes", payload.len()))?;
            f.field(4, payload.len(), "data", format_args!("payload"))
        }
        Segment::Wait(wait) => {
            f.field(8, 4, "index", format_args!("{} completions", wait.index))?;
            f.field(12, 4, "cqn", format_args!("0x{:x}", wait.cqn.get() & crate::NUMBER_MASK))
        }
        Segment::Opaque(_) => f.field(0, SEGMENT, "bytes", format_args!("not interpreted")),
    }
}

fn address_vector(f: &mut Fields<'_, '_>, av: &AddressVector, whole: bool) -> fmt::Result {
    f.field(0, 8, "dc_key", format_args!("0x{:x}", av.key))?;
    let form = if whole { "48-byte form" } else { "16-byte form" };
    f.field(8, 4, "dqp_dct", format_args!("0x{:x}, {form}", av.destination()))?;
    f.field(
        12,
        1,
        "stat_rate_sl",
        format_args!(
            "static rate {}, service level {}",
            av.stat_rate_sl >> 4,
            av.stat_rate_sl & 15
        ),
    )?;
    f.field(13, 1, "fl_mlid", format_args!("0x{:02x}", av.fl_mlid))?;
    let rlid = u16::from_be_bytes(av.rlid);
    f.field(14, 2, "rlid", format_args!("remote LID, or RoCE UDP source port: {rlid}"))?;
    if !whole {
        return Ok(());
    }
    let [a, b, c, d, e, g] = av.rmac;
    f.field(20, 6, "rmac", format_args!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}"))?;
    f.field(26, 1, "tclass", format_args!("{}", av.tclass))?;
    f.field(27, 1, "hop_limit", format_args!("{}", av.hop_limit))?;
    let grh = av.grh_gid_fl.get();
    f.field(
        28,
        4,
        "grh_gid_fl",
        format_args!(
            "GRH {}, GID index {}, flow label 0x{:x}",
            if grh >> 30 & 1 == 1 { "present" } else { "absent" },
            grh >> 20 & 0xff,
            grh & 0xf_ffff
        ),
    )?;
    f.field(32, 16, "rgid", format_args!("{}", core::net::Ipv6Addr::from(av.rgid)))
}
