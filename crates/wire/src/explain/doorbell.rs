//! Doorbells in words.

use core::fmt;

use zerocopy::IntoBytes;
use zerocopy::big_endian::U32;

use super::{Explain, Fields, OpcodeName, Remark, Sink};

/// What was stored to a send doorbell register.
#[derive(Clone, Copy, Debug)]
pub struct Doorbell(pub crate::doorbell::Doorbell);

impl Explain for Doorbell {
    fn explain(&self, sink: &mut dyn Sink) -> fmt::Result {
        let word = self.0.opmod_index_opcode.get();
        let (opmod, index, opcode) = ((word >> 24) as u8, (word >> 8) as u16, word as u8);
        let ds = self.0.qpn_ds.get() as u8;
        let qpn = self.0.qpn();
        sink.title(format_args!(
            "doorbell of QP 0x{qpn:x}: next free WQEBB {} (mod 65536)",
            self.0.producer()
        ))?;
        let mut fields = Fields { sink, bytes: self.0.as_bytes(), base: 0 };
        fields.field(0, 1, "opmod", format_args!("0x{opmod:02x}"))?;
        fields.field(1, 2, "wqe_index", format_args!("{index}"))?;
        if opcode == 0 && ds == 0 {
            fields.field(3, 1, "opcode", format_args!("0"))?;
        } else {
            fields.field(3, 1, "opcode", format_args!("{}", OpcodeName(opcode)))?;
        }
        fields.field(4, 3, "qpn", format_args!("0x{qpn:x} ({qpn})"))?;
        fields.field(7, 1, "ds", format_args!("{ds}"))?;
        if ds == 0 {
            sink.remark(
                Remark::Meaning,
                format_args!(
                    "ds 0: the form that NVSHMEM and DOCA ring. The index is the next free WQEBB itself"
                ),
            )?;
        } else {
            sink.remark(
                Remark::Meaning,
                format_args!(
                    "ds {ds}: libmlx5's form, the last posted WQE's own control words. Next free WQEBB = \
                     {index} + {} blocks",
                    ds.div_ceil(4)
                ),
            )?;
        }
        sink.remark(
            Remark::Meaning,
            format_args!("where the QP has a doorbell record, the record decides; a ring may precede it or repeat"),
        )?;
        if qpn == 0 {
            sink.remark(
                Remark::Warning,
                format_args!("QP number 0: a doorbell for no queue of an application"),
            )?;
        }
        if ds > crate::wqe::DS_MAX {
            sink.remark(
                Remark::Warning,
                format_args!("ds {ds} is beyond the 63 segments of a WQE"),
            )?;
        }
        if ds == 0 && opcode != 0 {
            sink.remark(
                Remark::Warning,
                format_args!("opcode 0x{opcode:02x} with ds 0 is neither form"),
            )?;
        }
        if ds != 0 && crate::wqe::Opcode::from_byte(opcode).is_none() {
            sink.remark(
                Remark::Warning,
                format_args!("unknown opcode 0x{opcode:02x}: are the bytes in memory order?"),
            )?;
        }
        if opmod != 0 && !matches!(opcode, 0x0f | 0x14 | 0x15 | 0x25) {
            sink.remark(
                Remark::Warning,
                format_args!(
                    "opmod 0x{opmod:02x}: an index wider than 16 bits written unmasked? (it would be {})",
                    u32::from(opmod) << 16 | u32::from(index)
                ),
            )?;
        }
        Ok(())
    }
}

/// A QP's doorbell record, both words.
#[derive(Clone, Copy, Debug)]
pub struct Record(pub [U32; 2]);

impl Record {
    /// From its eight bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 8]) -> Self {
        Self(zerocopy::transmute!(bytes))
    }
}

impl Explain for Record {
    fn explain(&self, sink: &mut dyn Sink) -> fmt::Result {
        let [receive, send] = self.0.map(U32::get);
        sink.title(format_args!("doorbell record of a QP: send {send}, receive {receive}"))?;
        let mut fields = Fields { sink, bytes: self.0.as_bytes(), base: 0 };
        fields.field(
            0,
            4,
            "receive",
            format_args!("next free receive WQE: {receive} (mod 65536)"),
        )?;
        fields.field(4, 4, "send", format_args!("next free send WQEBB: {send} (mod 65536)"))?;
        for (name, value) in [("receive", receive), ("send", send)] {
            if value > 0xffff {
                sink.remark(
                    Remark::Warning,
                    format_args!(
                        "the {name} word has bits above 16: little-endian, or an index not taken modulo 2^16"
                    ),
                )?;
            }
        }
        if send == 0 && receive != 0 {
            sink.remark(
                Remark::Warning,
                format_args!(
                    "only the receive word is set: word 1 is the send side's. A send producer written to word 0 \
                     posts nothing"
                ),
            )?;
        }
        Ok(())
    }
}
