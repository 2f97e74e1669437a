//! The CPU's side of a library's queues: which words say that a request is there, and when its slot, and its completion,
//! are told.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use device::like::{Asks, Peer, SLOT_WORDS};
use device::view::Why;
use rdma::Memory;

use super::Layout;

/// A write, by offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Put {
    pub local: u64,
    pub remote: u64,
    pub bytes: u32,
}

/// A request, and where it came from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    queue: usize,
    /// Position in the queue; of NVSHMEM's quiet how far it reaches.
    at: u64,
    /// None: a flush.
    pub put: Option<Put>,
}

/// What a launch will ask for: operation i of thread t is from and to slot t * slots + i mod slots.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expected {
    pub local: u64,
    pub remote: u64,
    pub bytes: u32,
    pub slots: u64,
    pub stride: u64,
}

#[derive(Clone, Default)]
struct Queue {
    /// Byte offset of its words in the memory.
    base: usize,
    /// Next position to take, and how far slots were given back.
    seen: u64,
    told: u64,
    /// Puts that were taken and aren't completed.
    pending: u32,
    /// UCCL-EP: a quiet is at the front, and stays there until it is done.
    blocked: bool,
    /// NVSHMEM: how far the last quiet reaches, and what became of it.
    quiet: u64,
    state: Quiet,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Quiet {
    #[default]
    Answered,
    /// Not all that it reaches was taken.
    Asked,
    /// It waits for what is in flight.
    Flushing,
}

pub(super) struct Consumer {
    peer: Peer,
    memory: Arc<Memory>,
    layout: Layout,
    queues: Vec<Queue>,
    /// Queues that requests can be in.
    used: Vec<usize>,
    cursor: usize,
    expected: Option<Expected>,
    failed: bool,
}

/// What NVSHMEM's proxy reads between two of its words on progress.
const NVSHMEM_STEP_BYTES: u64 = 1024;
const UCCL_PROXIES: u32 = 4;
const UCCL_CHANNELS: u32 = 8;
/// What UCCL-EP has in flight of one queue.
const UCCL_IN_FLIGHT: u32 = 32;

impl Consumer {
    /// A consumer of the queues in `memory`, which are prepared for first positions `start`, of so many threads.
    pub(super) fn new(
        peer: Peer,
        memory: Arc<Memory>,
        layout: Layout,
        producers: u32,
        start: u64,
    ) -> Self {
        let queues = layout.queues;
        let used = match peer {
            Peer::GinProxy => vec![1],
            Peer::UcclEp => {
                let of_thread = |thread: u32| {
                    let channel = thread % queues;
                    channel % UCCL_PROXIES * UCCL_CHANNELS + channel / UCCL_PROXIES
                };
                // Quiets go to each proxy's first.
                let firsts = (0..UCCL_PROXIES).map(|proxy| proxy * UCCL_CHANNELS);
                let mut used: Vec<_> =
                    (0..producers.min(queues)).map(of_thread).chain(firsts).collect();
                used.sort_unstable();
                used.dedup();
                used.into_iter().map(|queue| queue as usize).collect()
            }
            _ => (0..queues as usize).collect(),
        };
        let start = if peer == Peer::FabricLib { 0 } else { start };
        let consumer = Self {
            peer,
            memory,
            layout,
            queues: (0..queues as usize)
                .map(|number| Queue {
                    base: number * layout.queue_bytes,
                    seen: start,
                    told: start,
                    quiet: start,
                    ..Queue::default()
                })
                .collect(),
            used,
            cursor: 0,
            expected: None,
            failed: false,
        };
        consumer.prepare(start);
        consumer
    }

    /// As if positions before `start` had been taken, and completed.
    fn prepare(&self, start: u64) {
        for queue in &self.queues {
            for at in start..start + (1 << self.layout.log_depth) {
                let mark = match self.peer {
                    Peer::NvshmemProxy => u64::from(!self.is_even_lap(at)),
                    Peer::Mscclpp => u64::from(!self.is_even_lap(at)) << 63,
                    _ => 0,
                };
                for word in 0..self.slot_words() {
                    self.memory.word(self.slot(queue, at) + 8 * word).store(mark, Relaxed);
                }
            }
            let answered = if self.peer == Peer::FabricLib { 0 } else { start };
            self.memory.word(queue.base + self.layout.asked).store(start, Relaxed);
            self.memory.word(queue.base + self.layout.answered).store(answered, Relaxed);
            self.memory.word(queue.base + self.layout.tail).store(start, Release);
        }
    }

    fn slot_words(&self) -> usize {
        self.peer.slot_bytes() / 8
    }

    fn slot(&self, queue: &Queue, at: u64) -> usize {
        let index = at as usize & ((1 << self.layout.log_depth) - 1);
        queue.base + self.layout.slots + index * self.peer.slot_bytes()
    }

    fn is_even_lap(&self, at: u64) -> bool {
        at >> self.layout.log_depth & 1 == 0
    }

    pub(super) fn expect(&mut self, expected: Expected) {
        self.expected = Some(expected);
        if self.peer == Peer::FabricLib {
            for queue in &mut self.queues {
                queue.seen = 0;
            }
        }
    }

    /// The next request, one of a queue and then the next queue's turn.
    pub(super) fn take(&mut self) -> Result<Option<Request>, Why> {
        for _ in 0..self.used.len() {
            let number = self.used[self.cursor];
            self.cursor = (self.cursor + 1) % self.used.len();
            let taken = if self.peer == Peer::FabricLib {
                self.take_flag(number)?
            } else {
                self.take_slot(number)?
            };
            if taken.is_some() {
                return Ok(taken);
            }
        }
        Ok(None)
    }

    fn take_flag(&mut self, number: usize) -> Result<Option<Request>, Why> {
        let queue = &mut self.queues[number];
        let flag = self.memory.half(queue.base + self.layout.slots);
        // flag before request, and before the payload that it announces
        if flag.load(Acquire) == 0 {
            return Ok(None);
        }
        flag.store(0, Release);
        let known = self.expected.filter(|known| known.slots > 0).ok_or(Why::BadDescriptor)?;
        let at = queue.seen;
        queue.seen += 1;
        let slot = (number as u64 * known.slots + at % known.slots) * known.stride;
        let put = Put {
            local: known.local.wrapping_add(slot),
            remote: known.remote.wrapping_add(slot),
            bytes: known.bytes,
        };
        Ok(Some(Request { queue: number, at, put: Some(put) }))
    }

    fn take_slot(&mut self, number: usize) -> Result<Option<Request>, Why> {
        if self.peer == Peer::NvshmemProxy
            && let Some(quiet) = self.take_quiet(number)
        {
            return Ok(Some(quiet));
        }
        let queue = &self.queues[number];
        let at = queue.seen;
        if queue.blocked || (self.peer == Peer::UcclEp && queue.pending >= UCCL_IN_FLIGHT) {
            return Ok(None);
        }
        let slot = self.slot(queue, at);
        let mut words = [0; SLOT_WORDS];
        // From the last: of MSCCL++'s two words it alone has a mark.
        for (i, word) in words.iter_mut().enumerate().take(self.slot_words()).rev() {
            // descriptor before its use
            *word = self.memory.word(slot + 8 * i).load(Acquire);
            if !self.is_written(at, i, *word) {
                return Ok(None);
            }
        }
        let asks = Asks::unpack(self.peer, &words).ok_or(Why::BadDescriptor)?;
        let put = match asks {
            Asks::Put { local, remote, bytes } => Some(Put { local, remote, bytes }),
            Asks::Flush => None,
        };
        let queue = &mut self.queues[number];
        queue.seen += 1;
        queue.pending += u32::from(put.is_some());
        match self.peer {
            Peer::NvshmemProxy => {
                // Never more than half of the channel, or its producers would wait for what isn't told.
                let slots = NVSHMEM_STEP_BYTES / self.peer.slot_bytes() as u64;
                let step = slots.min(1 << (self.layout.log_depth - 1));
                if queue.seen - queue.told >= step {
                    self.tell_tail(number, self.queues[number].seen);
                }
            }
            Peer::GinProxy => self.clear(number, at),
            Peer::UcclEp if put.is_some() => {
                self.clear(number, at);
                self.tell_tail(number, at + 1);
            }
            Peer::UcclEp => queue.blocked = true,
            _ => {}
        }
        Ok(Some(Request { queue: number, at, put }))
    }

    /// Whether word `i` of the slot of position `at` is this lap's.
    fn is_written(&self, at: u64, i: usize, word: u64) -> bool {
        match self.peer {
            Peer::NvshmemProxy => (word & 1 != 0) == self.is_even_lap(at),
            Peer::GinProxy => word & 1 != 0,
            Peer::Mscclpp => i == 0 || (word >> 63 != 0) == self.is_even_lap(at),
            // The other half of its slot is never used.
            _ => i >= 2 || word != 0,
        }
    }

    fn take_quiet(&mut self, number: usize) -> Option<Request> {
        let queue = &mut self.queues[number];
        if queue.state == Quiet::Answered {
            let asked = self.memory.word(queue.base + self.layout.asked).load(Acquire);
            if asked > queue.quiet {
                (queue.quiet, queue.state) = (asked, Quiet::Asked);
            }
        }
        if queue.state != Quiet::Asked || queue.seen < queue.quiet {
            return None;
        }
        queue.state = Quiet::Flushing;
        Some(Request { queue: number, at: queue.quiet, put: None })
    }

    fn clear(&self, number: usize, at: u64) {
        let slot = self.slot(&self.queues[number], at);
        for word in 0..self.slot_words() {
            self.memory.word(slot + 8 * word).store(0, Relaxed);
        }
    }

    fn tell_tail(&mut self, number: usize, to: u64) {
        let queue = &mut self.queues[number];
        queue.told = to;
        // slot taken before slot reused
        self.memory.word(queue.base + self.layout.tail).store(to, Release);
    }

    fn answer(&self, number: usize, value: u64) {
        // completion before use
        self.memory.word(self.queues[number].base + self.layout.answered).store(value, Release);
    }

    /// A request was posted, or, being a flush, queued behind what is.
    pub(super) fn posted(&mut self, request: &Request) {
        if self.peer == Peer::Mscclpp {
            self.tell_tail(request.queue, request.at + 1);
        }
    }

    /// A request is completed, and all of its queue before it.
    pub(super) fn completed(&mut self, request: &Request) {
        let (number, next) = (request.queue, request.at + 1);
        let queue = &mut self.queues[number];
        queue.pending -= u32::from(request.put.is_some() && self.peer != Peer::FabricLib);
        match (self.peer, request.put) {
            (Peer::NvshmemProxy, None) => {
                queue.state = Quiet::Answered;
                self.answer(number, request.at);
            }
            (Peer::GinProxy, _) => self.tell_tail(number, next),
            (Peer::Mscclpp, None) => self.answer(number, next),
            (Peer::UcclEp, None) => {
                queue.blocked = false;
                self.clear(number, request.at);
                self.tell_tail(number, next);
            }
            (Peer::FabricLib, _) => {
                self.memory.half(self.queues[number].base + self.layout.answered).store(1, Release);
            }
            _ => {}
        }
    }

    /// Tells a failure to all queues' producers, unless one was told before.
    pub(super) fn fail(&mut self, word: u64) {
        if !self.failed {
            self.failed = true;
            self.memory.word(self.layout.failure).store(word, Release);
        }
    }
}
