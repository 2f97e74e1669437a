//! What travels over a link: a header in the machine's own byte order, then the payload.
//!
//! The roles are those of the InfiniBand transport headers (BTH, RETH, AtomicETH, AETH). Every request packet
//! carries its own address, so that a go-back-N restart in the middle of a message needs no state.

/// Request and response headers alike.
#[derive(Clone, Copy, Debug, Default, zerocopy::IntoBytes)]
#[repr(C)]
pub(crate) struct Header {
    /// Bytes of the whole record, a multiple of 8.
    pub size: u32,
    /// Bytes of payload.
    pub len: u32,
    /// One of [`op`].
    pub op: u8,
    /// Bits of [`flag`].
    pub flags: u8,
    /// The sender's NIC id.
    pub src_nic: u16,
    /// Destination QP or DCT number.
    pub dst: u32,
    /// The sender's QP number.
    pub src: u32,
    /// 24-bit packet sequence number. Of an ACK: the last one acknowledged. Of a NAK: the one refused.
    pub psn: u32,
    /// Remote address of this packet's first byte; of a SEND, its offset in the message.
    pub va: u64,
    /// Remote key. Of a NAK: the code.
    pub rkey: u32,
    /// Bytes from this packet's first to the message's last. Of an RNR NAK: the timer's code.
    pub total: u32,
    /// Immediate, as the bytes that the WQE had. Of a READ: the response packets. Of an ATOMIC: the control
    /// segment's first word.
    pub imm: u32,
    /// The DC connection's number at its initiator; of a request of an extended connection, the shared receive queue's;
    /// 0 of an RC.
    pub generation: u32,
    /// When it arrives; 0 for at once.
    pub deliver_at: u64,
}

/// Two halves that lie one behind the other in memory, as one word.
#[inline(always)]
pub(crate) const fn pair(first: u32, second: u32) -> u64 {
    let (a, b) = (first.to_ne_bytes(), second.to_ne_bytes());
    u64::from_ne_bytes([a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]])
}

/// A record of one line: the header's words, and the only one of the payload.
pub(crate) type Line = [u64; 8];

impl Header {
    /// As the words of its record.
    #[inline(always)]
    pub(crate) fn words(self) -> [u64; 7] {
        zerocopy::transmute!(self)
    }
}

/// Kinds of packet.
pub(crate) mod op {
    pub(crate) const WRITE: u8 = 1;
    pub(crate) const SEND: u8 = 2;
    pub(crate) const READ: u8 = 3;
    pub(crate) const ATOMIC: u8 = 4;
    /// A DC initiator begins a connection: its key in `va`, the first sequence number in `psn`.
    pub(crate) const CONNECT: u8 = 5;
    /// A DC initiator ends a connection.
    pub(crate) const DISCONNECT: u8 = 6;
    /// A whole message, behind 40 bytes for its route header: the Q_Key in `rkey`, its sender's LID, service level and
    /// whether the route header is there in `va`.
    pub(crate) const DATAGRAM: u8 = 7;
    pub(crate) const ACK: u8 = 16;
    pub(crate) const NAK: u8 = 17;
    pub(crate) const READ_RESPONSE: u8 = 18;
    pub(crate) const ATOMIC_RESPONSE: u8 = 19;
}

/// Bits of a header.
pub(crate) mod flag {
    pub(crate) const FIRST: u8 = 1;
    pub(crate) const LAST: u8 = 2;
    pub(crate) const IMM: u8 = 4;
    pub(crate) const SOLICITED: u8 = 8;
    /// Earlier writes are placed before this packet's.
    pub(crate) const FENCE: u8 = 16;
    /// Lost on the way: the sender's port is down.
    pub(crate) const LOST: u8 = 32;
}

/// A 24-bit sequence number extended to the wide one nearest to `near`.
pub(crate) const fn extend(near: u64, psn: u32) -> u64 {
    let ahead = psn.wrapping_sub(near as u32) << 8;
    near.wrapping_add((ahead as i32 >> 8) as i64 as u64)
}

/// The low 24 bits.
pub(crate) const fn low(psn: u64) -> u32 {
    psn as u32 & 0xff_ffff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_headers_words_are_where_runs_of_lines_expect_them() {
        let header = Header { size: 1, len: 2, src: 3, psn: 4, va: 5, ..Header::default() };
        let header = Header { rkey: 6, total: 7, deliver_at: 8, ..header };
        let words = header.words();
        assert_eq!([words[0], words[2], words[4]], [pair(1, 2), pair(3, 4), pair(6, 7)]);
        assert_eq!([words[3], words[6]], [5, 8]);
        assert_eq!(pair(3, 4) + pair(0, 1), pair(3, 5));
    }
}
