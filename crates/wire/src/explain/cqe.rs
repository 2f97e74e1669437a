//! CQEs in words.

use core::fmt::{self, Arguments};

use zerocopy::IntoBytes;

use super::{Explain, Fields, OpcodeName, Remark, Sink};
use crate::cqe::{Cqe as Raw, CqeOpcode, Syndrome};

/// Bytes of a CQE that say everything about a failure: its last 16.
const TAIL: usize = 48;

/// A CQE.
#[derive(Clone, Copy, Debug)]
pub struct Cqe {
    cqe: Raw,
    tail_only: bool,
}

impl Cqe {
    /// All 64 bytes.
    #[must_use]
    pub const fn whole(cqe: Raw) -> Self {
        Self { cqe, tail_only: false }
    }
    /// The last 16 bytes, all that some dumps keep.
    #[must_use]
    pub fn tail(bytes: [u8; 16]) -> Self {
        let mut whole = [0; size_of::<Raw>()];
        let (_, tail) = whole.split_at_mut(TAIL);
        tail.copy_from_slice(&bytes);
        Self { cqe: zerocopy::transmute!(whole), tail_only: true }
    }
    /// The entry; from a tail, its first 48 bytes are zero.
    #[must_use]
    pub const fn cqe(&self) -> &Raw {
        &self.cqe
    }
}

/// What public reports show a vendor syndrome with. The values are undocumented: a hint, not a meaning.
#[must_use]
pub const fn vendor_hint(vendor: u8) -> Option<&'static str> {
    Some(match vendor {
        0x51 | 0x52 | 0x56 => "seen with local protection errors",
        0x81 => "seen when acknowledgements are missing (transport retries exceeded)",
        0x87 => "seen when the peer has no receive posted (RNR retries exceeded)",
        0x88 => "seen with remote access errors",
        0x8a => "seen with remote invalid requests",
        0x93 => "page fault of an on-demand registration (MLX5_CQE_VENDOR_SYNDROME_ODP_PFAULT)",
        0xf9 => "seen with flushed WQEs",
        _ => return None,
    })
}

impl Explain for Cqe {
    fn explain(&self, sink: &mut dyn Sink) -> fmt::Result {
        let cqe = &self.cqe;
        let kind = cqe.opcode();
        let error = kind.is_some_and(CqeOpcode::is_error);
        self.title(sink, kind)?;
        let bytes = cqe.as_bytes();
        let mut f = Fields { sink, bytes, base: 0 };
        if !self.tail_only {
            let srqn = bytes
                .get(32..)
                .and_then(<[u8]>::first_chunk)
                .copied()
                .map_or(0, u32::from_be_bytes);
            f.field(32, 4, "srqn_uidx", format_args!("SRQ number or user index 0x{srqn:x}"))?;
            if !error {
                f.field(
                    36,
                    4,
                    "imm_inval",
                    format_args!("immediate or invalidated key 0x{:08x}", cqe.imm_inval),
                )?;
                f.field(44, 4, "byte_cnt", format_args!("{} bytes", cqe.byte_count))?;
            }
        }
        if error {
            error_fields(&mut f, cqe)?;
        } else {
            f.field(48, 8, "timestamp", format_args!("{}", cqe.timestamp))?;
        }
        match kind {
            Some(CqeOpcode::Requester | CqeOpcode::RequesterError | CqeOpcode::SignatureError) => {
                f.field(56, 1, "wqe_opcode", format_args!("{}", OpcodeName(cqe.wqe_opcode())))?;
            }
            _ => f.field(56, 1, "rx_drop", format_args!("0x{:02x}", cqe.wqe_opcode()))?,
        }
        f.field(57, 3, "qpn", format_args!("0x{:x} ({})", cqe.qpn(), cqe.qpn()))?;
        f.field(
            60,
            2,
            "wqe_counter",
            format_args!("{}: the WQE's first WQEBB (mod 65536)", cqe.wqe_counter),
        )?;
        f.field(62, 1, "signature", format_args!("0x{:02x}", cqe.signature))?;
        f.field(63, 1, "op_own", format_args!("{}", OpOwn(cqe)))?;
        self.remarks(sink, kind)
    }
}

impl Cqe {
    fn title(&self, sink: &mut dyn Sink, kind: Option<CqeOpcode>) -> fmt::Result {
        let cqe = &self.cqe;
        let (qpn, index) = (cqe.qpn(), cqe.wqe_counter);
        match kind {
            Some(CqeOpcode::Invalid) => sink.title(format_args!("CQE not written yet")),
            Some(kind @ (CqeOpcode::RequesterError | CqeOpcode::ResponderError)) => {
                let (name, vendor) = (SyndromeName(cqe.syndrome_byte()), cqe.vendor());
                sink.title(format_args!(
                    "CQE: {}, {name} (vendor 0x{vendor:02x} = {vendor}) at WQE {index} of QP 0x{qpn:x}",
                    kind.name()
                ))
            }
            Some(kind) => {
                sink.title(format_args!("CQE: {}, WQE {index} of QP 0x{qpn:x}", kind.name()))
            }
            None => sink.title(format_args!("CQE of no known kind")),
        }
    }

    fn remarks(&self, sink: &mut dyn Sink, kind: Option<CqeOpcode>) -> fmt::Result {
        let cqe = &self.cqe;
        match kind {
            None => sink.remark(
                Remark::Warning,
                format_args!(
                    "op_own 0x{:02x} has no known opcode: are these 64 bytes a CQE, in memory order?",
                    cqe.op_own
                ),
            ),
            Some(CqeOpcode::Invalid) => sink.remark(
                Remark::Meaning,
                format_args!(
                    "opcode 15: the NIC has not written this entry. libmlx5 initialises op_own to 0xf0, NVSHMEM \
                     fills the CQ with 0xff"
                ),
            ),
            Some(CqeOpcode::RequesterError | CqeOpcode::ResponderError) => {
                failure(sink, cqe.syndrome_byte(), cqe.vendor(), cqe.hw_syndrome())
            }
            Some(_) if !self.tail_only && cqe.as_bytes().iter().all(|byte| *byte == 0) => sink.remark(
                Remark::Warning,
                format_args!(
                    "all 64 bytes are 0, which reads as a valid completion of WQE 0 on the first lap: the CQ was \
                     not initialised (opcode 15 in every entry)"
                ),
            ),
            Some(CqeOpcode::Requester) => sink.remark(
                Remark::Meaning,
                format_args!(
                    "the responder's NIC acknowledged; that the data is visible at the peer is not said. The next \
                     free WQEBB is the counter plus this WQE's blocks (1 up to 64 bytes)"
                ),
            ),
            Some(_) => Ok(()),
        }
    }
}

fn error_fields(f: &mut Fields<'_, '_>, cqe: &Raw) -> fmt::Result {
    let [code, kind] = cqe.hw_syndrome().to_be_bytes();
    let (vendor, syndrome) = (cqe.vendor(), cqe.syndrome_byte());
    f.field(52, 1, "hw_err_synd", format_args!("0x{code:02x} = {code}"))?;
    f.field(53, 1, "hw_synd_type", format_args!("0x{kind:02x}"))?;
    match vendor_hint(vendor) {
        Some(hint) => {
            f.field(54, 1, "vendor_err_synd", format_args!("0x{vendor:02x} = {vendor}, {hint}"))?
        }
        None => f.field(54, 1, "vendor_err_synd", format_args!("0x{vendor:02x} = {vendor}"))?,
    }
    f.field(55, 1, "syndrome", format_args!("0x{syndrome:02x}: {}", SyndromeName(syndrome)))
}

/// What a failure means, what usually causes it, and what to look at.
pub(super) fn failure(sink: &mut dyn Sink, syndrome: u8, vendor: u8, hardware: u16) -> fmt::Result {
    let Some(known) = Syndrome::from_byte(syndrome) else {
        return sink.remark(
            Remark::Warning,
            format_args!("unknown syndrome 0x{syndrome:02x}: are the bytes in memory order?"),
        );
    };
    known.explain(sink)?;
    // The ODP code turns up in either place, by firmware.
    let odp = (hardware >> 8) as u8 == 0x93 || vendor == 0x93;
    if odp && known != Syndrome::Flushed {
        sink.remark(
            Remark::Next,
            format_args!(
                "0x93 (147) is the on-demand-paging page fault code: is a buffer registered on demand, or unmapped?"
            ),
        )?;
    }
    sink.remark(
        Remark::Meaning,
        format_args!("on a failed completion only wr_id, status, vendor syndrome and QP number mean anything to verbs"),
    )
}

impl Explain for Syndrome {
    fn explain(&self, sink: &mut dyn Sink) -> fmt::Result {
        let guide = self.guide();
        let status = self.wc_status();
        let remark = |sink: &mut dyn Sink, kind, text: Arguments<'_>| sink.remark(kind, text);
        remark(
            sink,
            Remark::Meaning,
            format_args!("{} ({} = {} in verbs)", guide.meaning, status.name, status.value),
        )?;
        for cause in guide.causes {
            remark(sink, Remark::Cause, format_args!("{cause}"))?;
        }
        for next in guide.next {
            remark(sink, Remark::Next, format_args!("{next}"))?;
        }
        Ok(())
    }
}

struct SyndromeName(u8);

impl fmt::Display for SyndromeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Syndrome::from_byte(self.0) {
            Some(syndrome) => f.write_str(syndrome.name()),
            None => write!(f, "unknown syndrome 0x{:02x}", self.0),
        }
    }
}

struct OpOwn<'a>(&'a Raw);

impl fmt::Display for OpOwn<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.0.opcode().map_or("unknown", CqeOpcode::name);
        write!(f, "opcode {} ({name}), owner {}", self.0.op_own >> 4, self.0.owner())?;
        // Bits 1 to 3 say something of completed transfers only.
        if self.0.opcode().is_none_or(|opcode| opcode.is_error() || opcode == CqeOpcode::Invalid) {
            return Ok(());
        }
        f.write_str(match self.0.format() {
            0 => "",
            1 => ", data in a 32-byte CQE",
            2 => ", data in a 64-byte CQE",
            _ => ", compressed",
        })?;
        f.write_str(if self.0.is_solicited() { ", solicited" } else { "" })
    }
}
