//! The vendor syndrome byte: which of the NIC's checks a WQE failed.

use wire::cqe::Syndrome;

macro_rules! checks {
    ($($(#[$doc:meta])* $name:ident = $value:literal, $syndrome:ident, $text:literal;)*) => {
        /// The check that a WQE failed: the `vendor` byte of this NIC's error CQEs.
        ///
        /// Hardware's vendor bytes are undocumented; these are this NIC's own, one a check.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        #[non_exhaustive]
        pub enum Check { $($(#[$doc])* $name = $value,)* }
        impl Check {
            /// Every check.
            pub const ALL: &[Self] = &[$(Self::$name,)*];
            /// The check of a vendor byte.
            #[must_use]
            pub const fn from_byte(byte: u8) -> Option<Self> {
                match byte { $($value => Some(Self::$name),)* _ => None }
            }
            /// The syndrome that goes with it at the side that made the check.
            #[must_use]
            pub const fn syndrome(self) -> Syndrome {
                match self { $(Self::$name => Syndrome::$syndrome,)* }
            }
            /// What was wrong, in words.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

checks! {
    /// Consequence of an earlier error.
    Flushed = 0x01, Flushed, "the QP was already in error";
    /// `ds` is 0.
    DsZero = 0x10, LocalQpOp, "the control segment says that the WQE has no segments";
    /// Opcode that this QP can't execute.
    Opcode = 0x11, LocalQpOp, "the opcode is unknown or not supported on this kind of QP";
    /// `ds` is too small, or too large, for the opcode.
    DsForOpcode = 0x12, LocalQpOp, "the number of segments doesn't fit the opcode";
    /// Inline bytes run past the WQE's end.
    InlineLength = 0x13, LocalLength, "the inline length runs past the WQE's last segment";
    /// More bytes than a message may have.
    MessageLength = 0x14, LocalLength, "the message is longer than the NIC's largest";
    /// `opmod` of an atomic.
    AtomicMode = 0x15, LocalQpOp, "the operation modifier of the extended atomic is neither 08 nor 09";
    /// Result buffer of an atomic.
    AtomicResult = 0x16, LocalLength, "the atomic's local buffer hasn't the operand's size";
    /// QP number in the control segment.
    QpnMismatch = 0x17, LocalQpOp, "the control segment names another QP";
    /// Address vector missing.
    AddressVector = 0x18, LocalQpOp, "the DC send has no whole address vector";
    /// Destination NIC.
    NoRoute = 0x19, LocalQpOp, "no link leads to the NIC that the address vector names";
    /// The queue's own memory.
    QueueMemory = 0x1a, LocalQpOp, "the queue's memory could not be read";
    /// More reads than allowed.
    ReadLimit = 0x1b, LocalQpOp, "the QP was made for no reads or atomics (max_rd_atomic is 0)";
    /// The producer lies inside of the WQE.
    SplitWqe = 0x1c, LocalQpOp, "the doorbell covers only a part of the WQE's blocks";
    /// WQE changed.
    WqeChanged = 0x1d, LocalQpOp, "the WQE that was to be sent again isn't the one that was sent: its slot was reused before its completion";
    /// lkey unknown.
    LocalKey = 0x20, LocalProtection, "the lkey is stale, was never given out, or is an rkey";
    /// lkey of another PD.
    LocalPd = 0x21, LocalProtection, "the lkey belongs to another protection domain";
    /// Local bounds.
    LocalBounds = 0x22, LocalProtection, "the local bytes lie outside of the region";
    /// Local permission.
    LocalPermission = 0x23, LocalProtection, "the region doesn't allow local writes";
    /// Receive buffer's key, bounds or permission.
    ReceiveAccess = 0x28, LocalAccess, "a receive buffer's key, bounds or permission doesn't allow the access";
    /// Receive buffer too small.
    ReceiveTooSmall = 0x29, LocalLength, "the posted receive is shorter than the message";
    /// rkey unknown.
    RemoteKey = 0x30, RemoteAccess, "the rkey is stale, was never given out, or is an lkey";
    /// rkey of another PD.
    RemotePd = 0x31, RemoteAccess, "the rkey belongs to another protection domain than the responder's QP";
    /// Remote bounds.
    RemoteBounds = 0x32, RemoteAccess, "the remote bytes lie outside of the region";
    /// Region's permission.
    RemotePermission = 0x33, RemoteAccess, "the remote region doesn't allow the operation";
    /// QP's permission.
    QpPermission = 0x34, RemoteAccess, "the responder's QP doesn't allow the operation";
    /// DC key.
    DcKey = 0x35, RemoteAccess, "the address vector's DC key isn't the DCT's";
    /// Unaligned atomic.
    AtomicAlignment = 0x38, RemoteInvalidRequest, "the atomic's remote address isn't aligned to the operand";
    /// More reads than the responder accepts.
    TooManyReads = 0x39, RemoteInvalidRequest, "more reads and atomics in flight than the responder accepts";
    /// Message longer than the posted receive.
    RemoteTooSmall = 0x3a, RemoteInvalidRequest, "the responder's receive is shorter than the message";
    /// Malformed request.
    BadRequest = 0x3b, RemoteInvalidRequest, "the responder could not make sense of the request";
    /// Responder's own failure.
    RemoteReceive = 0x3c, RemoteOperation, "the responder's receive buffer could not be written";
    /// No acknowledgement.
    TransportRetry = 0x40, TransportRetryExceeded, "no acknowledgement in all retries: wrong QP number, dead peer or link down";
    /// No receive.
    RnrRetry = 0x41, RnrRetryExceeded, "the responder had no receive posted in all retries";
    /// Responder lost the connection.
    RemoteLost = 0x42, RemoteAborted, "the responder gave the connection up while an atomic was in flight";
    /// Response made no sense.
    Response = 0x43, BadResponse, "the response doesn't fit the request";
    /// CQ overrun.
    CqOverrun = 0x50, LocalQpOp, "the CQ was full: its consumer record doesn't allow another entry";
    /// Injected.
    Injected = 0x7f, LocalQpOp, "a fault that was asked for";
}

/// Why a WQE fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cause {
    /// As the CQE says.
    pub syndrome: Syndrome,
    /// The CQE's vendor byte: a [`Check`], or whatever an injected fault asked for.
    pub vendor: u8,
}

impl From<Check> for Cause {
    fn from(check: Check) -> Self {
        Self { syndrome: check.syndrome(), vendor: check as u8 }
    }
}

impl Cause {
    /// The check behind the vendor byte.
    #[must_use]
    pub const fn check(&self) -> Option<Check> {
        Check::from_byte(self.vendor)
    }
}

impl std::fmt::Display for Cause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (vendor {:#04x}", self.syndrome.name(), self.vendor)?;
        if let Some(check) = self.check() {
            write!(f, ": {}", check.text())?;
        }
        write!(f, ")")
    }
}
