//! A queue pair in a loom execution, and the NIC at its other side.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::cell::UnsafeCell;
use std::mem::offset_of;
use std::sync::Arc;

use device::choice::{Choice, CqKind, Ringing, Sharing, Signalling};
use device::view::{Failure, QpState, QpView};
use model::{Entered, LoomMemory, Width, load, queue, store};
use wire::doorbell::Doorbell;
use wire::index::extend;

pub const LOG_BLOCKS: u32 = 2;
pub const DEPTH: u64 = 1 << LOG_BLOCKS;
pub const QPN: u32 = 0x2ed;
const SYNDROME: u8 = 0x04;

/// Addresses alone: the values are the checker's.
struct Memory {
    sq: [u64; 8 << LOG_BLOCKS],
    cq: [u64; 8 << LOG_BLOCKS],
    record: [u32; 2],
    doorbell: u64,
    cq_record: [u32; 2],
    // Exclusive queues keep their indices here and not with the checker: one thread alone uses them.
    state: UnsafeCell<QpState>,
}

// SAFETY: only an exclusive queue's state is accessed here, and by one thread; all else is the checker's.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

#[derive(Clone)]
pub struct Queue {
    memory: Arc<Memory>,
    choice: Choice,
    start: u64,
}

pub fn choice(sharing: Sharing, ringing: Ringing) -> Choice {
    let signalling = match ringing {
        Ringing::Deferred | Ringing::EveryNth => Signalling::OnRequest,
        Ringing::Each | Ringing::Threshold => Signalling::Every,
    };
    Choice { sharing, ringing, signalling, ..Choice::default() }
}

impl Queue {
    /// A queue whose next block is `start`, with `pending` WQEs before it that the NIC has not completed.
    pub fn new(choice: Choice, start: u64, pending: u64, weaken_turn: bool) -> (Self, Entered) {
        let mut state = QpState::starting_at(start, 0);
        state.consumed = start.wrapping_sub(pending);
        let memory = Arc::new(Memory {
            sq: [0; 8 << LOG_BLOCKS],
            cq: [0; 8 << LOG_BLOCKS],
            record: [0; 2],
            doorbell: 0,
            cq_record: [0; 2],
            state: UnsafeCell::new(state),
        });
        let mut cells = LoomMemory::default();
        for slot in 0..DEPTH as usize {
            for word in 0..2 {
                cells.register(&raw const memory.sq[slot * 8 + word], Width::Double, 0);
            }
            if slot == 0 || choice.cq_kind == CqKind::Ring {
                for word in 6..8 {
                    cells.register(&raw const memory.cq[slot * 8 + word], Width::Double, u64::MAX);
                }
            }
        }
        let field =
            |offset: usize| memory.state.get().cast_const().cast::<u64>().wrapping_byte_add(offset);
        let cq_next = offset_of!(QpState, cq_next);
        for (at, value) in [
            (field(offset_of!(QpState, reserved)), start),
            (field(offset_of!(QpState, ready)), start),
            (field(offset_of!(QpState, rung)), start),
            (field(offset_of!(QpState, consumed)), state.consumed),
            (field(cq_next), 0),
            (field(offset_of!(QpState, failure)), 0),
            (&raw const memory.doorbell, 0),
        ] {
            cells.register(at, Width::Double, value);
        }
        // The lock of a shared ring CQ comes after its next entry's index.
        let lock = field(cq_next + 8).cast::<u32>();
        cells.register(lock, Width::Word, 0);
        let record = u64::from((start as u32 & 0xffff).to_be());
        cells.register(&raw const memory.record[1], Width::Word, record);
        cells.register(&raw const memory.cq_record[0], Width::Word, 0);
        if weaken_turn {
            cells.weaken(field(offset_of!(QpState, ready)));
        }
        let entered = cells.enter();
        (Self { memory, choice, start }, entered)
    }

    fn view(&self) -> QpView {
        let m = &*self.memory;
        QpView {
            sq: m.sq.as_ptr().cast_mut().cast(),
            log_blocks: LOG_BLOCKS,
            record: (&raw const m.record[1]).cast_mut(),
            doorbell: (&raw const m.doorbell).cast_mut(),
            cq: m.cq.as_ptr().cast_mut().cast(),
            cq_record: m.cq_record.as_ptr().cast_mut(),
            state: m.state.get(),
            deadline: 1,
            qpn: QPN,
            log_cq: LOG_BLOCKS,
        }
    }

    pub fn post(&self, value: u32, ring: bool) -> Result<u64, Failure> {
        // SAFETY: the view leads to what is registered.
        unsafe { queue::post(&self.choice, &self.view(), value, ring) }
    }

    pub fn wait(&self, ticket: u64) -> Result<(), Failure> {
        // SAFETY: the view leads to what is registered.
        unsafe { queue::wait(&self.choice, &self.view(), ticket) }
    }

    pub fn quiet(&self) -> Result<(), Failure> {
        // SAFETY: the view leads to what is registered.
        unsafe { queue::quiet(&self.choice, &self.view()) }
    }

    pub fn nic(&self, pending: u64) -> Nic {
        Nic {
            queue: self.clone(),
            head: self.start,
            completed: self.start.wrapping_sub(pending),
            bell: 0,
            fetched: Vec::new(),
            cqes: 0,
            fail: None,
        }
    }
}

/// A NIC that wakes when its doorbell changes, reads the record, and fetches what the record covers.
pub struct Nic {
    queue: Queue,
    head: u64,
    completed: u64,
    bell: u64,
    pub fetched: Vec<u32>,
    cqes: u64,
    /// The block whose WQE fails; all later ones are flushed.
    pub fail: Option<u64>,
}

impl Nic {
    /// Looks at the doorbell once, and does all that it finds.
    pub fn look(&mut self) {
        let m = Arc::clone(&self.queue.memory);
        let bell = load(&raw const m.doorbell, Width::Double, true);
        if bell == self.bell {
            return;
        }
        self.bell = bell;
        let bell = Doorbell::from_bytes(bell.to_le_bytes());
        assert_eq!(bell.qpn(), QPN);
        let record = u32::from_be(load(&raw const m.record[1], Width::Word, true) as u32) as u16;
        let ahead = record.wrapping_sub(bell.producer());
        assert!(ahead < 0x8000, "the record is behind a doorbell that was seen");
        let producer = extend(self.head, record);
        assert!(producer - self.head < 0x8000, "the record went back");
        assert!(producer - self.completed <= DEPTH, "a slot was handed over before it was free");
        while self.head < producer {
            self.fetch();
        }
    }

    fn fetch(&mut self) {
        let m = Arc::clone(&self.queue.memory);
        let slot = (self.head % DEPTH) as usize * 8;
        let low = load(&raw const m.sq[slot], Width::Double, false).to_le_bytes();
        let high = load(&raw const m.sq[slot + 1], Width::Double, false).to_le_bytes();
        let index = u16::from_be_bytes([low[1], low[2]]);
        let qpn = u32::from_be_bytes([0, low[4], low[5], low[6]]);
        assert!(
            index == self.head as u16 && qpn == QPN && high != [0; 8],
            "block {} was handed over unwritten: {low:02x?} {high:02x?}",
            self.head
        );
        self.fetched.push(u32::from_be_bytes([high[4], high[5], high[6], high[7]]));
        let signalled = high[3] & 0x08 != 0;
        self.head += 1;
        self.complete(self.head, signalled);
    }

    /// Reads the slots of blocks that are not completed: nobody may have written to them again.
    pub fn read_pending(&self) {
        let m = &*self.queue.memory;
        for index in self.completed..self.head {
            let slot = (index % DEPTH) as usize * 8;
            let low = load(&raw const m.sq[slot], Width::Double, false);
            assert_eq!(low, 0, "block {index} was overwritten before the NIC was done with it");
        }
    }

    /// Completes all blocks before `to`; the last one in error if it is at or behind the one that fails.
    pub fn complete(&mut self, to: u64, signalled: bool) {
        let m = Arc::clone(&self.queue.memory);
        let index = to - 1;
        let failed = self.fail.is_some_and(|fail| index >= fail);
        if signalled || failed {
            let (entry, owner) = match self.queue.choice.cq_kind {
                CqKind::Collapsed => (0, 0),
                CqKind::Ring => {
                    let record = load(&raw const m.cq_record[0], Width::Word, true) as u32;
                    let taken = u64::from(u32::from_be(record));
                    assert!(self.cqes - taken < DEPTH, "the CQ ran over");
                    (self.cqes % DEPTH, (self.cqes / DEPTH) & 1)
                }
            };
            let counter = (index as u16).to_be_bytes();
            let qpn = QPN.to_be_bytes();
            let kind = if failed { 13 } else { 0 };
            let own = kind << 4 | owner as u8;
            if failed {
                let syndrome = if self.fail == Some(index) { SYNDROME } else { 5 };
                let tail = u64::from_le_bytes([0, 0, 0, 0, 0, 0, 0x51, syndrome]);
                store(&raw const m.cq[entry as usize * 8 + 6], Width::Double, tail, false);
            }
            let tail = [0, qpn[1], qpn[2], qpn[3], counter[0], counter[1], 0, own];
            let tail = u64::from_le_bytes(tail);
            store(&raw const m.cq[entry as usize * 8 + 7], Width::Double, tail, true);
            self.cqes += 1;
        }
        self.completed = to;
    }

    /// The last doorbell must have covered everything: each value was fetched exactly once.
    pub fn settle(&mut self, values: u32) {
        self.look();
        let mut fetched = self.fetched.clone();
        fetched.sort_unstable();
        assert_eq!(fetched, (1..=values).collect::<Vec<_>>(), "lost or repeated");
        let bell = Doorbell::from_bytes(self.bell.to_le_bytes());
        assert_eq!(bell.producer(), self.head as u16, "the last doorbell doesn't cover all");
    }
}
