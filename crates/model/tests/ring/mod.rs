//! A proxy's ring in a loom execution, with the consumer that mini-proxy ships at its other side.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::cell::{Cell, UnsafeCell};
use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use device::proxy::{
    Descriptor, Handoff, Producers, ProxyChannel, ProxyChoice, Publish, RingState, RingView,
    progress,
};
use device::view::Failure;
use loom::thread;
use mini_proxy::ring::{Consumer, RingLayout, Words};
use model::{Entered, LoomMemory, Width, load, ring, store};

pub const LOG_DEPTH: u32 = 1;
pub const DEPTH: u64 = 1 << LOG_DEPTH;
const QPN: u32 = 0x2ed;
const LOCAL: u64 = 0x10_0000;
const REMOTE: u64 = 0x20_0000;
/// Descriptors of one execution at most.
const MOST: usize = 8;
/// Words of a WQE that a put fills.
const WQE_WORDS: usize = 6;
/// What a payload and a result hold more than their descriptor's number.
const PAYLOAD: u64 = 100;
const RESULT: u64 = 200;

/// What is broken, to show that the check can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    Nothing,
    /// The store that hands a descriptor over releases nothing (a fence before it orders nothing).
    Publication,
    /// A counter's turn is passed on without release.
    Turn,
    /// The completion count releases nothing.
    Completion,
    /// The consumer goes by the first half's mark.
    OneMark,
    /// The consumer releases a slot before it reads it.
    EarlyRelease,
    /// The consumer tells completion before the operation is done.
    EarlyCompletion,
}

/// Addresses alone: the values are the checker's.
#[repr(C, align(64))]
struct Memory {
    /// As [`RingLayout`] has it.
    host: [u64; 64],
    /// With [`Handoff::ProducerCounter`]: the send queue.
    sq: [u64; 8 << LOG_DEPTH],
    payload: [u64; MOST],
    results: [u64; MOST],
    channel: [ProxyChannel; 1],
    // A lone producer's indices are here and not with the checker: one thread alone uses them.
    state: UnsafeCell<RingState>,
}

// SAFETY: only a lone producer's state is accessed here, and by one thread; all else is the checker's.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    fn word(&self, at: usize) -> *const u64 {
        self.host.as_ptr().wrapping_byte_add(at)
    }
}

/// The ring's host memory as the consumer sees it.
pub struct HostWords {
    memory: Arc<Memory>,
    broken: Broken,
    mark: Cell<u64>,
}

impl Words for HostWords {
    fn load(&self, at: usize, order: Ordering) -> u64 {
        let word = load(self.memory.word(at), Width::Double, order == Ordering::Acquire);
        if self.broken != Broken::OneMark || at >= 16 * DEPTH as usize {
            return word;
        }
        if at.is_multiple_of(16) {
            self.mark.set(word & Descriptor::MARK);
        }
        word & !Descriptor::MARK | self.mark.get()
    }
    fn store(&self, at: usize, value: u64, order: Ordering) {
        store(self.memory.word(at), Width::Double, value, order == Ordering::Release);
    }
    fn load_half(&self, at: usize, order: Ordering) -> u32 {
        load(self.memory.word(at), Width::Word, order == Ordering::Acquire) as u32
    }
    fn store_half(&self, at: usize, value: u32, order: Ordering) {
        store(self.memory.word(at), Width::Word, value.into(), order == Ordering::Release);
    }
}

/// A model: which ring, how many threads, what each pushes.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub choice: ProxyChoice,
    pub start: u64,
    pub threads: u64,
    pub each: u64,
    /// The second half of a slot arrives first.
    pub late: bool,
    /// Producers wait for what they have pushed.
    pub waits: bool,
    /// Slots are read again before they are released: nobody may have written to them.
    pub reread: bool,
    pub broken: Broken,
}

impl Plan {
    pub fn new(handoff: Handoff, producers: Producers) -> Self {
        let (threads, each) = match producers {
            Producers::One => (1, 3),
            Producers::Many => (2, 2),
        };
        Self {
            choice: ProxyChoice { handoff, producers, ..ProxyChoice::default() },
            start: 0,
            threads,
            each,
            late: false,
            waits: producers == Producers::One,
            reread: false,
            broken: Broken::Nothing,
        }
    }
}

#[derive(Clone)]
pub struct Ring {
    memory: Arc<Memory>,
    plan: Plan,
}

impl Ring {
    pub fn new(plan: Plan) -> (Self, Entered) {
        let layout = RingLayout::of(LOG_DEPTH);
        let channel = ProxyChannel { local: LOCAL, remote: REMOTE, ..ProxyChannel::default() };
        let memory = Arc::new(Memory {
            host: [0; 64],
            sq: [0; 8 << LOG_DEPTH],
            payload: [0; MOST],
            results: [0; MOST],
            channel: [channel],
            state: UnsafeCell::new(RingState::starting_at(plan.start)),
        });
        assert!(layout.bytes <= size_of_val(&memory.host));
        let mut cells = LoomMemory::default();
        let handoff = plan.choice.handoff;
        for slot in 0..DEPTH as usize {
            let at = layout.slots + 16 * slot;
            cells.register(memory.word(at), Width::Double, 0);
            cells.register(memory.word(at + 8), Width::Double, 0);
            let flag = memory.word(layout.flags + 4 * slot);
            cells.register(flag, Width::Word, 0);
            if plan.late {
                cells.late(memory.word(at));
            }
            if plan.broken == Broken::Publication {
                cells.weaken(memory.word(at)).weaken(memory.word(at + 8)).without_fences();
            }
            if handoff == Handoff::ProducerCounter {
                for word in 0..WQE_WORDS {
                    cells.register(&raw const memory.sq[8 * slot + word], Width::Double, 0);
                }
            }
        }
        let completed = memory.word(layout.progress + progress::COMPLETED);
        for at in [
            memory.word(layout.counter),
            memory.word(layout.progress + progress::POSTED),
            completed,
            memory.word(layout.progress + progress::FAILURE),
        ] {
            cells.register(at, Width::Double, 0);
        }
        let field =
            |offset: usize| memory.state.get().cast_const().cast::<u64>().wrapping_byte_add(offset);
        let ready = field(offset_of!(RingState, ready));
        for (at, value) in [
            (field(offset_of!(RingState, head)), plan.start),
            (ready, plan.start),
            (field(offset_of!(RingState, tail)), plan.start),
            (field(offset_of!(RingState, failure)), 0),
        ] {
            cells.register(at, Width::Double, value);
        }
        for word in 0..(plan.threads * plan.each) as usize {
            cells.register(&raw const memory.payload[word], Width::Double, 0);
            cells.register(&raw const memory.results[word], Width::Double, 0);
        }
        match plan.broken {
            Broken::Publication => cells.weaken(memory.word(layout.counter)),
            Broken::Turn => cells.weaken(ready),
            Broken::Completion => cells.weaken(completed),
            _ => &mut cells,
        };
        let entered = cells.enter();
        (Self { memory, plan }, entered)
    }

    fn view(&self) -> RingView {
        let (m, layout) = (&*self.memory, RingLayout::of(LOG_DEPTH));
        let at = |offset| m.word(offset).cast_mut();
        let built = self.plan.choice.handoff == Handoff::ProducerCounter;
        RingView {
            slots: if built { m.sq.as_ptr().cast_mut().cast() } else { at(layout.slots).cast() },
            flags: at(layout.flags).cast(),
            counter: at(layout.counter),
            progress: at(layout.progress).cast(),
            state: m.state.get(),
            channels: m.channel.as_ptr(),
            deadline: 1,
            log_depth: LOG_DEPTH,
            channel_count: 1,
            number: 0,
            qpn: if built { QPN } else { 0 },
        }
    }

    pub fn push(&self, d: &Descriptor) -> Result<u64, Failure> {
        // SAFETY: the view leads to what is registered.
        unsafe { ring::push(&self.plan.choice, &self.view(), d) }
    }

    pub fn wait(&self, ticket: u64) -> Result<(), Failure> {
        // SAFETY: the view leads to what is registered.
        unsafe { ring::wait(&self.plan.choice, &self.view(), ticket) }
    }

    pub fn quiet(&self) -> Result<(), Failure> {
        // SAFETY: the view leads to what is registered.
        unsafe { ring::quiet(&self.plan.choice, &self.view()) }
    }

    /// A producer's life: payload, push, and at last wait; then all that it pushed must be done.
    fn produce(&self, thread: u64) {
        let (last, mine) = self.push_all(thread);
        if self.plan.waits {
            self.wait(last).unwrap();
            self.assert_done(&mine);
        }
    }

    /// The same of a first thread that waits for all that was pushed.
    pub fn produce_and_quiet(&self) {
        let (_, mine) = self.push_all(0);
        self.quiet().unwrap();
        self.assert_done(&mine);
    }

    /// Gives the last ticket, and the numbers whose results are this thread's.
    fn push_all(&self, thread: u64) -> (u64, Vec<u64>) {
        let Plan { choice, start, each, .. } = self.plan;
        let known = choice.handoff == Handoff::MappedCounter;
        let mut last = 0;
        let mut mine = Vec::new();
        for i in 0..each {
            let number = thread * each + i;
            let payload = &raw const self.memory.payload[number as usize];
            if choice.publish == Publish::Release {
                store(payload, Width::Double, PAYLOAD + number, false);
            }
            last = self.push(&put(number + 1)).unwrap();
            mine.push(if known { last - 1 - start } else { number });
        }
        (last, mine)
    }

    fn assert_done(&self, numbers: &[u64]) {
        for number in numbers {
            let result = &raw const self.memory.results[*number as usize];
            assert_eq!(
                load(result, Width::Double, false),
                RESULT + number,
                "told to be completed before it was done"
            );
        }
    }

    /// The consumer, prepared for the first push.
    pub fn consumer(&self) -> Taker {
        let Plan { choice, start, broken, .. } = self.plan;
        let words = || HostWords { memory: Arc::clone(&self.memory), broken, mark: Cell::new(0) };
        let consumer = Consumer::new(words(), choice.handoff, LOG_DEPTH, start);
        Taker { ring: self.clone(), words: words(), consumer, next: start, numbers: Vec::new() }
    }
}

/// A put whose two halves both say which it is.
pub fn put(number: u64) -> Descriptor {
    Descriptor { size: 1, source: number, destination: number, ..Descriptor::default() }
}

/// The worker's part: takes what is new, holds it a while, releases and completes it.
pub struct Taker {
    ring: Ring,
    words: HostWords,
    pub consumer: Consumer<HostWords>,
    /// First position not taken.
    pub next: u64,
    /// What was taken, without the hand-off's marks.
    pub numbers: Vec<u64>,
}

impl Taker {
    /// What is at a position, if something new is: the words of a slot or of a WQE.
    fn peek(&self, at: u64) -> Option<Vec<u64>> {
        match self.ring.plan.choice.handoff {
            Handoff::ProducerCounter => (self.consumer.counter() > at).then(|| self.wqe(at)),
            Handoff::MappedCounter => (self.consumer.counter() > at).then(Vec::new),
            _ => self.consumer.peek(at).map(|halves| halves.to_vec()),
        }
    }

    fn wqe(&self, at: u64) -> Vec<u64> {
        let slot = 8 * (at % DEPTH) as usize;
        (0..WQE_WORDS)
            .map(|word| load(&raw const self.ring.memory.sq[slot + word], Width::Double, false))
            .collect()
    }

    /// The slot's words as they are now.
    fn again(&self, at: u64) -> Vec<u64> {
        match self.ring.plan.choice.handoff {
            Handoff::ProducerCounter => self.wqe(at),
            Handoff::MappedCounter => Vec::new(),
            _ => {
                let slot = 16 * (at % DEPTH) as usize;
                [slot, slot + 8].map(|at| self.words.load(at, Ordering::Relaxed)).to_vec()
            }
        }
    }

    /// The number of the descriptor in a slot's or WQE's words.
    fn number(&self, at: u64, words: &[u64]) -> u64 {
        let (source, destination) = match self.ring.plan.choice.handoff {
            Handoff::ProducerCounter => {
                let control = words[0].to_le_bytes();
                let index = u16::from_be_bytes([control[1], control[2]]);
                assert_eq!(index, at as u16, "a WQE was handed over unwritten: {words:x?}");
                let (remote, local) = (u64::from_be(words[2]), u64::from_be(words[5]));
                (local.wrapping_sub(LOCAL), remote.wrapping_sub(REMOTE))
            }
            Handoff::MappedCounter => return at - self.ring.plan.start,
            _ => {
                let d = Descriptor::unpack(words[0], words[1]).unwrap();
                (d.source, d.destination)
            }
        };
        assert_eq!(source, destination, "half of one descriptor and half of another");
        source.wrapping_sub(1)
    }

    /// The payload that a descriptor moves must be there with it.
    fn assert_payload(&self, at: u64, number: u64) {
        let Plan { choice, start, threads, each, .. } = self.ring.plan;
        let payload = |number: u64| {
            load(&raw const self.ring.memory.payload[number as usize], Width::Double, false)
        };
        if choice.handoff == Handoff::MappedCounter {
            // Whose request it is nobody knows: there are at least as many payloads.
            let there = (0..threads * each).filter(|i| payload(*i) != 0).count() as u64;
            assert!(there > at - start, "handed over before its payload");
        } else if choice.publish == Publish::Release {
            assert!(payload(number) == PAYLOAD + number, "handed over before its payload");
        }
    }

    /// Takes one that is there, whatever it says.
    pub fn drop_one(&mut self) -> bool {
        let there = self.peek(self.next).is_some();
        self.next += u64::from(there);
        there
    }

    /// Takes all that is there, and then releases and completes it. False if there is nothing.
    pub fn look(&mut self) -> bool {
        let mut taken = Vec::new();
        while let Some(words) = self.peek(self.next) {
            let number = self.number(self.next, &words);
            assert!(number < MOST as u64, "no such descriptor: {words:x?}");
            self.assert_payload(self.next, number);
            self.next += 1;
            if self.ring.plan.broken == Broken::EarlyRelease {
                self.consumer.release(self.next);
            }
            taken.push((self.next - 1, number, words));
        }
        for (at, number, words) in &taken {
            if self.ring.plan.reread {
                assert_eq!(self.again(*at), *words, "written again before it was released");
            }
            self.numbers.push(*number);
        }
        let early = self.ring.plan.broken == Broken::EarlyCompletion;
        if early {
            self.consumer.complete(self.next);
        }
        // A built WQE's slot is free when it is completed.
        let done_first = self.ring.plan.choice.handoff == Handoff::ProducerCounter;
        if !done_first {
            self.consumer.release(self.next);
        }
        for (_, number, _) in &taken {
            let result = &raw const self.ring.memory.results[*number as usize];
            store(result, Width::Double, RESULT + number, false);
        }
        if done_first {
            self.consumer.release(self.next);
        }
        self.consumer.complete(self.next);
        !taken.is_empty()
    }
}

/// Producers push, the consumer takes: each once, whole, with its payload, in each producer's order.
pub fn hand_over(plan: Plan) {
    let (ring, _entered) = Ring::new(plan);
    let mut taker = ring.consumer();
    let threads: Vec<_> = (0..plan.threads)
        .map(|thread| {
            let ring = ring.clone();
            thread::spawn(move || ring.produce(thread))
        })
        .collect();
    let total = plan.threads * plan.each;
    while taker.next < plan.start + total {
        if !taker.look() {
            thread::yield_now();
        }
    }
    for thread in threads {
        thread.join().unwrap();
    }
    assert!(!taker.look(), "more was taken than was pushed");
    for thread in 0..plan.threads {
        let mine = thread * plan.each..(thread + 1) * plan.each;
        let seen: Vec<u64> = taker.numbers.iter().copied().filter(|n| mine.contains(n)).collect();
        assert_eq!(seen, mine.collect::<Vec<_>>(), "lost, repeated or out of order");
    }
    assert_eq!(taker.numbers.len() as u64, total);
}
