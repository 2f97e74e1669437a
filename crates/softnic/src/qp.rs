//! Queue pairs: what both halves keep, and the state machine.

use wire::wqe::WQEBB;

use crate::check::Cause;
use crate::config::{Nanos, QpKind, Qpn};
use crate::dc::Destination;
use crate::dma::DmaBuf;
use crate::mr::Access;
use crate::srq::List;

/// A QP's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QpState {
    /// Nothing works.
    Reset,
    /// Receives may be posted.
    Init,
    /// Requests are answered.
    Rtr,
    /// Requests are sent.
    Rts,
    /// Everything is flushed.
    Error,
}

impl std::fmt::Display for QpState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::Rtr => "RTR",
            Self::Rts => "RTS",
            Self::Error => "ERROR",
        })
    }
}

/// A step of the state machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Modify {
    /// From RESET or INIT.
    ToInit {
        /// What the peer may do.
        access: Access,
    },
    /// From INIT. A DCI takes none of it but must pass through.
    ToRtr {
        /// The peer's NIC.
        dest_nic: u16,
        /// The peer's QP.
        dest_qpn: Qpn,
        /// First sequence number expected (24 bits).
        rq_psn: u32,
        /// Reads and atomics accepted at once.
        max_dest_rd_atomic: u8,
        /// Code of the wait that RNR NAKs ask for (5 bits).
        min_rnr_timer: u8,
    },
    /// From RTR.
    ToRts {
        /// First sequence number sent (24 bits).
        sq_psn: u32,
        /// Timeouts and sequence NAKs before giving up (3 bits).
        retry_cnt: u8,
        /// RNR NAKs before giving up; 7 never gives up.
        rnr_retry: u8,
        /// The wait for an acknowledgement is 4.096 us * 2^timeout; 0 waits for ever.
        timeout: u8,
        /// Reads and atomics in flight.
        max_rd_atomic: u8,
    },
    /// From any state but RESET.
    ToError,
    /// From any state.
    ToReset,
}

/// What of a queue pair may change in any state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpUpdate {
    /// What the peer may do.
    pub access: Option<Access>,
    /// Code of the wait that RNR NAKs ask for (5 bits).
    pub min_rnr_timer: Option<u8>,
    /// What its completions carry (24 bits).
    pub user_index: Option<u32>,
}

/// What `query_qp` tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpInfo {
    /// State.
    pub state: QpState,
    /// What it is.
    pub kind: QpKind,
    /// Next block to be fetched.
    pub sq_head: u64,
    /// Blocks posted, as far as the NIC has been told.
    pub sq_producer: u64,
    /// First block not yet completed.
    pub sq_completed: u64,
    /// Receives consumed.
    pub rq_head: u64,
    /// Why it went to ERROR, if a WQE did it.
    pub error: Option<Cause>,
    /// Nothing more is fetched: what was fetched is done, or still on its way.
    pub sends: Sends,
}

/// Whether a queue pair sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sends {
    /// As its state says.
    #[default]
    Go,
    /// It fetches nothing more, and waits for what it has sent.
    Drain,
    /// It fetches nothing more, and nothing is on its way.
    Drained,
}

/// A WQE's bytes, read once.
pub(crate) type WqeCopy = [u64; 128];

/// Of a WQE, or a [run](SentKind::Run) of them, that is sent and not yet completed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sent {
    /// First block.
    pub index: u64,
    /// Sequence number of its first packet.
    pub psn: u64,
    /// Sequence numbers taken; 0 for what never leaves the NIC.
    pub packets: u32,
    /// Bytes; of a run, the last WQE's.
    pub len: u32,
    pub opcode: u8,
    /// Of one WQE.
    pub blocks: u8,
    pub kind: SentKind,
    /// The CQE is wanted; of a run, the last WQE's.
    pub signalled: bool,
    /// Of a read or atomic: where its WQE is kept, and the segment its data list starts at.
    pub slot: u8,
    pub data: u8,
    /// Of [`SentKind::Failed`].
    pub syndrome: u8,
    pub vendor: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum SentKind {
    /// Complete when acknowledged.
    #[default]
    Posted,
    /// As many WQEs as packets, each of one block and one packet. It takes as many places of the window, and
    /// only the first of them is written.
    Run,
    /// Complete when its response has come.
    Response,
    /// Never sent: completes with an error when all before it are complete.
    Failed,
}

impl Sent {
    /// WQEs, and places of the window that they take.
    #[inline]
    pub(crate) fn wqes(&self) -> u64 {
        if self.kind == SentKind::Run { u64::from(self.packets) } else { 1 }
    }
    /// The block behind.
    #[inline]
    pub(crate) fn end(&self) -> u64 {
        self.index + u64::from(self.blocks) * self.wqes()
    }
}

/// Times of a WQE, for the trace.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Times {
    pub doorbell: Nanos,
    pub fetched: Nanos,
}

pub(crate) struct SendQueue {
    pub ring: DmaBuf,
    /// Blocks - 1.
    pub mask: u64,
    /// Producer where the queue started.
    pub start: u64,
    /// Next block to fetch.
    pub head: u64,
    /// First block not announced.
    pub producer: u64,
    /// First block not completed.
    pub completed: u64,
    /// A ring announced this producer (16 bits) and the record hasn't covered it.
    pub watch: Option<u16>,
    /// Looks at the record since that ring.
    pub watched: u32,
    pub doorbell_at: Nanos,

    /// Window of sent WQEs, by sequence: `una..tail`, sent up to `cursor`. None of these lies inside of a run.
    pub sent: Box<[Sent]>,
    pub times: Box<[Times]>,
    pub una: u64,
    pub cursor: u64,
    pub tail: u64,
    /// Packets of the WQE at `cursor` that are sent.
    pub cursor_packets: u32,
    /// The WQE at `cursor` is in `copy`.
    pub held: bool,
    pub copy: Box<WqeCopy>,
    pub next_psn: u64,
    /// All sequence numbers below are acknowledged.
    pub acked: u64,
    /// WQEs of reads and atomics in flight.
    pub slots: Box<[WqeCopy]>,
    pub slots_used: u32,
    pub max_rd_atomic: u8,
    /// A WQE failed locally; nothing is sent after it.
    pub stopped: bool,
    /// Nothing more is fetched, until that is taken back.
    pub held_back: bool,

    pub retry_cnt: u8,
    pub retries: u8,
    pub rnr_retry: u8,
    pub rnr_retries: u8,
    pub timeout: Nanos,
    /// When the acknowledgement is overdue.
    pub deadline: Nanos,
    /// Not before this time (RNR wait).
    pub not_before: Nanos,
}

pub(crate) const NEVER: Nanos = Nanos::MAX;

impl SendQueue {
    /// The times of a sent WQE; zeros if nobody wants to know.
    pub(crate) fn times_at(&self, sequence: u64) -> Times {
        let last = self.times.len().saturating_sub(1);
        self.times.get(sequence as usize & last).copied().unwrap_or_default()
    }
    /// Keeps the times of the WQE that is sent, or fails, now.
    #[inline]
    pub(crate) fn note_times(&mut self, sequence: u64, fetched: Nanos) {
        if let Some(last) = self.times.len().checked_sub(1)
            && let Some(times) = self.times.get_mut(sequence as usize & last)
        {
            *times = Times { doorbell: self.doorbell_at, fetched };
        }
    }
    #[inline]
    pub(crate) fn sent_mut(&mut self, sequence: u64) -> &mut Sent {
        let mask = self.sent.len() - 1;
        &mut self.sent[sequence as usize & mask]
    }
    #[inline]
    pub(crate) fn sent_at(&self, sequence: u64) -> Sent {
        self.sent[sequence as usize & (self.sent.len() - 1)]
    }
    /// Makes two runs of the one at `sequence`, the first of `first` WQEs: no more than it has.
    pub(crate) fn split(&mut self, sequence: u64, first: u32) {
        let whole = self.sent_at(sequence);
        if whole.kind != SentKind::Run || first == 0 || first >= whole.packets {
            return;
        }
        let entry = self.sent_mut(sequence);
        entry.packets = first;
        entry.signalled = false;
        let ahead = u64::from(first);
        *self.sent_mut(sequence + ahead) = Sent {
            index: whole.index + ahead,
            psn: whole.psn + ahead,
            packets: whole.packets - first,
            ..whole
        };
    }
    #[inline]
    pub(crate) fn offset(&self, block: u64) -> usize {
        (block & self.mask) as usize * WQEBB
    }
    /// Expects an acknowledgement in time, if none is expected yet.
    #[inline]
    pub(crate) fn arm(&mut self, now: Nanos) {
        if self.deadline == NEVER && self.timeout != NEVER {
            self.deadline = now.saturating_add(self.timeout);
        }
    }
    /// Nothing more is sent, and nothing is on its way.
    pub(crate) fn is_drained(&self) -> bool {
        self.held_back && self.una == self.tail
    }
    pub(crate) fn reset(&mut self) {
        self.head = self.start;
        self.producer = self.start;
        self.completed = self.start;
        self.watch = None;
        self.una = 0;
        self.cursor = 0;
        self.tail = 0;
        self.cursor_packets = 0;
        self.held = false;
        self.slots_used = 0;
        self.stopped = false;
        self.held_back = false;
        self.deadline = NEVER;
        self.not_before = 0;
    }
}

pub(crate) struct ReceiveQueue {
    pub ring: DmaBuf,
    pub record: DmaBuf,
    pub log_wqes: u32,
    pub log_stride: u32,
    pub head: u64,
    pub producer: u64,
    /// Of a list, whose WQEs begin with their successor's place.
    pub list: Option<List>,
}

/// A response that is owed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Owed {
    pub psn: u64,
    pub va: u64,
    pub rkey: u32,
    /// Bytes left of a read; the operand's size of an atomic.
    pub len: u32,
    /// Old value of an atomic.
    pub value: u64,
    pub is_atomic: bool,
    /// Protection domain of a read's region.
    pub pd: u32,
}

/// An atomic that was executed, kept in case its response gets lost.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Replay {
    pub psn: u64,
    pub value: u64,
    pub len: u32,
    pub valid: bool,
}

/// A connection's responder: of an RC QP, or of one initiator at a DC target.
pub(crate) struct Responder {
    pub src_nic: u16,
    pub src_qpn: u32,
    /// The connection's number at a DC initiator; 0 of an RC.
    pub generation: u32,
    /// Next sequence number expected.
    pub expected: u64,
    /// An ACK is due.
    pub ack_due: bool,
    /// A NAK is due: code.
    pub nak: Option<Nak>,
    /// A sequence NAK was sent and the gap isn't closed.
    pub gap_told: bool,
    /// In the NIC's list of those that owe something.
    pub queued: bool,
    /// Responses owed, in order: `owed_head..owed_tail`.
    pub owed: Box<[Owed]>,
    pub owed_head: u64,
    pub owed_tail: u64,
    pub replays: Box<[Replay]>,
    pub replay_next: usize,
    pub max_rd_atomic: u8,
    pub min_rnr_timer: u8,
    /// When the newest request was executed.
    pub executed_at: Nanos,
    /// The message being received.
    pub receiving: Option<Receiving>,
    /// A receive that was taken for a message which never came to its end: the next one has it.
    pub spare: Option<Receiving>,
    /// The rest of a message whose packets, or receive, are missing is passed over.
    pub skipping: bool,
    pub receive_wqe: Box<[u64; 64]>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Receiving {
    /// Index of the receive WQE.
    pub index: u64,
    /// Bytes in the message so far.
    pub bytes: u32,
    /// Bytes that the receive WQE's segments hold.
    pub capacity: u64,
    /// A receive WQE was taken for it.
    pub is_posted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nak {
    Sequence,
    Rnr,
    Fatal(Cause),
}

impl Responder {
    pub(crate) fn new(
        src_nic: u16,
        src_qpn: u32,
        expected: u64,
        max_rd_atomic: u8,
        min_rnr_timer: u8,
    ) -> Self {
        let size = usize::from(max_rd_atomic.max(1)).next_power_of_two();
        Self {
            src_nic,
            src_qpn,
            generation: 0,
            expected,
            ack_due: false,
            nak: None,
            gap_told: false,
            queued: false,
            owed: vec![Owed::default(); size].into(),
            owed_head: 0,
            owed_tail: 0,
            replays: vec![Replay::default(); size].into(),
            replay_next: 0,
            max_rd_atomic,
            min_rnr_timer,
            executed_at: 0,
            receiving: None,
            spare: None,
            skipping: false,
            receive_wqe: Box::new([0; 64]),
        }
    }
}

impl Responder {
    /// A new connection, in the memory of an old one.
    pub(crate) fn restart(&mut self, src_nic: u16, src_qpn: u32, expected: u64, timer: u8) {
        self.src_nic = src_nic;
        self.src_qpn = src_qpn;
        self.expected = expected;
        self.ack_due = false;
        self.nak = None;
        self.gap_told = false;
        self.owed_head = self.owed_tail;
        self.replays.fill(Replay::default());
        self.min_rnr_timer = timer;
        self.receiving = None;
        self.spare = None;
    }
}

pub(crate) struct Qp {
    pub qpn: u32,
    pub kind: QpKind,
    pub state: QpState,
    pub pd: u32,
    pub uar: u32,
    pub send_cq: u32,
    pub recv_cq: u32,
    pub record: Option<DmaBuf>,
    pub access: Access,
    pub remote_nic: u16,
    pub remote_qpn: u32,
    /// Index of the link to `remote_nic`.
    pub link: usize,
    pub sq: SendQueue,
    pub rq: Option<ReceiveQueue>,
    /// The shared receive queue that it takes receives from, by index.
    pub srq: Option<u32>,
    /// What datagrams to it must know.
    pub qkey: u32,
    pub responder: Responder,
    /// The connection's number of a DC initiator; 0 of an RC.
    pub generation: u32,
    /// Whom a DC initiator is connected to.
    pub destination: Option<Destination>,
    /// The target has lost the connection.
    pub reconnect: bool,
    /// What its completions carry, for the client to find it by.
    pub user_index: u32,
    /// That it is in ERROR was told, or asked for.
    pub told: bool,
    /// That it takes nothing more from its shared receive queue was told.
    pub told_last: bool,
    /// That all it had sent is done was told, or isn't wanted.
    pub told_drained: bool,
    /// A peer's request brought it there.
    pub by_request: bool,
    /// In the NIC's list of QPs with work.
    pub active: bool,
    pub error: Option<Cause>,
}
