//! What each syndrome means to who has to find its cause.

use crate::cqe::Syndrome;

/// How to read a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guide {
    /// What the NIC says.
    pub meaning: &'static str,
    /// What usually brings it about, most frequent first.
    pub causes: &'static [&'static str],
    /// What to look at next.
    pub next: &'static [&'static str],
}

/// The completion status of verbs (`ibv_wc_status`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WcStatus {
    /// Its number.
    pub value: u8,
    /// Its name in `verbs.h`.
    pub name: &'static str,
}

impl Syndrome {
    /// The status that libibverbs reports for it.
    #[must_use]
    pub const fn wc_status(self) -> WcStatus {
        let (value, name) = match self {
            Self::LocalLength => (1, "IBV_WC_LOC_LEN_ERR"),
            Self::LocalQpOp => (2, "IBV_WC_LOC_QP_OP_ERR"),
            Self::LocalProtection => (4, "IBV_WC_LOC_PROT_ERR"),
            Self::Flushed => (5, "IBV_WC_WR_FLUSH_ERR"),
            Self::MemoryWindowBind => (6, "IBV_WC_MW_BIND_ERR"),
            Self::BadResponse => (7, "IBV_WC_BAD_RESP_ERR"),
            Self::LocalAccess => (8, "IBV_WC_LOC_ACCESS_ERR"),
            Self::RemoteInvalidRequest => (9, "IBV_WC_REM_INV_REQ_ERR"),
            Self::RemoteAccess => (10, "IBV_WC_REM_ACCESS_ERR"),
            Self::RemoteOperation => (11, "IBV_WC_REM_OP_ERR"),
            Self::TransportRetryExceeded => (12, "IBV_WC_RETRY_EXC_ERR"),
            Self::RnrRetryExceeded => (13, "IBV_WC_RNR_RETRY_EXC_ERR"),
            Self::RemoteAborted => (16, "IBV_WC_REM_ABORT_ERR"),
        };
        WcStatus { value, name }
    }

    /// The syndrome behind a status of verbs, where there is exactly one.
    #[must_use]
    pub fn from_wc_status(value: u8) -> Option<Self> {
        Self::ALL.iter().copied().find(|syndrome| syndrome.wc_status().value == value)
    }

    /// How to read it.
    #[must_use]
    pub const fn guide(self) -> Guide {
        match self {
            Self::LocalLength => Guide {
                meaning: "a length is not allowed on this side",
                causes: &[
                    "a receive buffer is smaller than the message that arrived",
                    "a message is longer than the port or device allows (max_msg_sz)",
                ],
                next: &[
                    "the byte counts of the WQE's data segments, and the receive posted at the other end",
                ],
            },
            Self::LocalQpOp => Guide {
                meaning: "the WQE makes no sense to this QP",
                causes: &[
                    "a malformed WQE: wrong ds, opcode or opmod, often an index that was not masked to 16 bits",
                    "a control segment whose index or QP number is not its slot's, or a slot rung for before it was written",
                    "an operation that this QP type or its state does not allow",
                ],
                next: &[
                    "decode the WQE at the counter: `gicbench decode wqe`",
                    "the order of WQE stores, doorbell record and doorbell",
                ],
            },
            Self::LocalProtection => Guide {
                meaning: "a local key, bound or permission does not allow the access",
                causes: &[
                    "wrong or stale lkey: 0, the rkey in its place, or the key of another chunk of the memory",
                    "an address range that leaves its memory region (chunk borders not split at)",
                    "a region of another protection domain, or without local write for a read or an atomic",
                    "GPU memory that the NIC can't reach: nvidia-peermem or dma-buf registration missing, IOMMU or ACS in the way",
                ],
                next: &[
                    "lkey and address of the WQE at the counter, against the registrations",
                    "the kernel log for IO_PAGE_FAULT",
                ],
            },
            Self::Flushed => Guide {
                meaning: "the QP was already in error when this WQE's turn came. It is a consequence, never a cause",
                causes: &[
                    "an earlier WQE of this QP failed: look for the QP's first other error",
                    "the QP was moved to the error state (destroyed, or its peer's process went away)",
                ],
                next: &[
                    "the QP's first completion with another syndrome, on its send and its receive CQ; on a collapsed CQ it may be overwritten already",
                    "asynchronous events of the QP, and the peer's log",
                ],
            },
            Self::MemoryWindowBind => Guide {
                meaning: "a memory window or key could not be bound or changed",
                causes: &[
                    "the region doesn't allow binding",
                    "a UMR whose size or access doesn't fit its key",
                ],
                next: &["the UMR or bind WQE at the counter, and how its key was created"],
            },
            Self::BadResponse => Guide {
                meaning: "the responder answered something that the requester does not expect",
                causes: &[
                    "both ends disagree on packet numbers or on the QP: a stale or re-used connection",
                ],
                next: &[
                    "that both QPs were connected to each other, with each other's first packet numbers",
                ],
            },
            Self::LocalAccess => Guide {
                meaning: "a local buffer could not be accessed while a message was received",
                causes: &["a receive buffer's lkey, bounds or permission (local write)"],
                next: &["the receive WQE at the counter"],
            },
            Self::RemoteInvalidRequest => Guide {
                meaning: "the responder can't do what was asked",
                causes: &[
                    "an operation that the peer's QP doesn't enable (remote write, read or atomic in its access flags)",
                    "more outstanding reads or atomics than the peer's max_dest_rd_atomic",
                    "an unaligned atomic, or a message longer than the receive",
                ],
                next: &[
                    "access flags and max_dest_rd_atomic of the peer's QP",
                    "address and length of the WQE at the counter",
                ],
            },
            Self::RemoteAccess => Guide {
                meaning: "a remote key, bound or permission does not allow the access",
                causes: &[
                    "wrong or stale rkey: 0, byte order, the lkey in its place, or the key of another chunk or peer",
                    "a remote range that leaves its memory region",
                    "a remote region without the remote write, read or atomic permission, or of another protection domain than the QP's",
                    "memory that was deregistered or freed at the peer",
                ],
                next: &[
                    "remote address and rkey of the WQE at the counter, against the peer's registrations",
                    "the peer's QP: it reports its own error or event",
                ],
            },
            Self::RemoteOperation => Guide {
                meaning: "the responder failed by itself",
                causes: &[
                    "the peer's receive buffer could not be accessed",
                    "the peer's NIC could not read or write its own memory",
                ],
                next: &["the peer's completions and events: the cause is there"],
            },
            Self::TransportRetryExceeded => Guide {
                meaning: "no acknowledgement came, in all retries",
                causes: &[
                    "the peer's process or QP is gone or not yet ready to receive",
                    "the path: wrong GID index or RoCE version, MTU, VLAN, partition, a link down, no route between the subnets",
                    "loss or congestion with a short timeout (RoCE without PFC or ECN)",
                ],
                next: &[
                    "the peer first: did it fail before this?",
                    "GID index and type at both ends, path MTU, `rping` or `ib_write_bw` between the same two ports",
                    "counters: local_ack_timeout_err, out_of_sequence, packet_seq_err, rx_discards",
                ],
            },
            Self::RnrRetryExceeded => Guide {
                meaning: "the peer had no receive posted, in all retries",
                causes: &[
                    "sends or writes with immediate outrun the receives that the peer posts",
                    "the peer's receive doorbell record was not updated",
                ],
                next: &[
                    "the peer's receive queue: posted, consumed, and who refills it",
                    "rnr_retry (7 is without end) and min_rnr_timer",
                ],
            },
            Self::RemoteAborted => Guide {
                meaning: "the responder gave up the connection",
                causes: &["the peer aborted or reset its end"],
                next: &["the peer's log"],
            },
        }
    }
}
