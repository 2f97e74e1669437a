//! The CPU side of the channel and of the CPU's doorbell, with a test's hand in the place of GPU threads.

use std::fs;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use device::cuda::Place;

use super::{ADAPTER, CPU_DOORBELL, PROXY_PUBLIC};
use crate::{
    Compiled, Consumer, Paths, Request, RequestKind, SendQueue, Side, State, StateLibrary,
    Toolchain,
};

const CHANNEL: u64 = 1 << 22;
const BYTES: u64 = 1 << 16;
const LOCAL: u64 = 0x10_0000;
const REMOTE: u64 = 0x20_0000;
const QPS: usize = 2;

/// The state builder, where the library and a compiler are on the machine.
fn library() -> Option<Arc<StateLibrary>> {
    let compiled = Toolchain::find()
        .and_then(|tools| Compiled::new(&ADAPTER, &Paths::default(), None, &tools));
    match compiled {
        Ok(compiled) => Some(StateLibrary::load(ADAPTER.title, &compiled.state).unwrap()),
        Err(error) => {
            assert!(std::env::var_os("GICBENCH_REQUIRE_PEERS").is_none(), "{error}");
            let why = format!("the CPU side of {}: {error}", ADAPTER.title);
            eprintln!("skipped: {why}");
            if let Some(log) = std::env::var_os("GICBENCH_SKIP_LOG") {
                let mut log = fs::OpenOptions::new().append(true).create(true).open(log).unwrap();
                writeln!(log, "{why}").unwrap();
            }
            None
        }
    }
}

/// Side 0 with two queues, as a GPU thread meets it.
struct Rig {
    state: Arc<State>,
    /// Records and doorbell of each queue; the rest of it is not touched.
    memory: Box<[[AtomicU64; 4]; QPS]>,
}

impl Rig {
    fn new(library: &Arc<StateLibrary>, variant: u32) -> Self {
        let memory: Box<[[AtomicU64; 4]; QPS]> = Box::default();
        let queue = |(index, words): (usize, &[AtomicU64; 4])| {
            let base = words.as_ptr() as u64;
            SendQueue {
                sq: base,
                cq: base,
                record: base + 4,
                cq_record: base + 8,
                doorbell: base + 16,
                log_blocks: 10,
                log_cq: 1,
                qpn: 0x100 + index as u32,
                peer: 1,
            }
        };
        let side = Side {
            variant,
            me: 0,
            queues: memory.iter().enumerate().map(queue).collect(),
            local: LOCAL,
            bytes: BYTES,
            remote: REMOTE,
            lkey: 1,
            rkey: 2,
            own_rkey: 3,
            producers: 1,
            address_vector: [0; 48],
        };
        let state = State::build(library, &side, &Place::Host, &Place::Host).unwrap();
        Self { state, memory }
    }

    /// A word of a variable of the module, by its offset there (`layout.h`).
    fn variable(&self, name: &str, offset: usize) -> u64 {
        let variables = self.state.symbols();
        let (_, value) = variables.iter().find(|(variable, _)| variable == name).unwrap();
        u64::from_ne_bytes(value[offset..offset + 8].try_into().unwrap())
    }

    /// The index through which a GPU thread asks the CPU to ring for a queue to the other side.
    fn produced(&self, queue: usize) -> &AtomicU64 {
        const RCS_IN_STATE: usize = 8272;
        const QP_BYTES: u64 = 184;
        const BF_IN_QP: u64 = 64;
        let rcs = self.variable("nvshmemi_ibgda_device_state_d", RCS_IN_STATE);
        let qp = rcs + (QPS + queue) as u64 * QP_BYTES;
        let word = (qp + BF_IN_QP - self.state.device_address()) / 8;
        word_at(self.state.built()[word as usize])
    }

    /// What a queue's record and doorbell were last written with.
    fn rung(&self, queue: usize) -> (u32, u64) {
        let word = |index: usize| self.memory[queue][index].load(Ordering::Relaxed);
        ((word(0) >> 32) as u32, word(2))
    }
}

fn word_at<'a>(address: u64) -> &'a AtomicU64 {
    // SAFETY: an aligned word of the memory that a test's state keeps until the test's end; here and in the adapter
    // every access is atomic, or the thread's own.
    unsafe { &*(address as *const AtomicU64) }
}

/// The channel, as a GPU thread writes it.
struct Channel<'a> {
    rig: &'a Rig,
    issued: u64,
}

impl<'a> Channel<'a> {
    fn new(rig: &'a Rig) -> Self {
        Self { rig, issued: 0 }
    }

    fn state(&self, offset: usize) -> u64 {
        self.rig.variable("nvshmemi_device_state_d", offset)
    }

    /// The next word; its lowest bit says which lap it is of.
    fn word(&mut self, word: u64) {
        let lap = u64::from((self.issued / CHANNEL).is_multiple_of(2));
        word_at(self.state(632) + self.issued % CHANNEL).store(word & !1 | lap, Ordering::Release);
        self.issued += 8;
    }

    fn words(&mut self, words: &[u64]) {
        words.iter().for_each(|word| self.word(*word));
    }

    /// What a GPU thread that looks for room reads.
    fn complete(&self) -> u64 {
        word_at(self.state(688)).load(Ordering::Acquire)
    }

    fn quiet(&self) {
        word_at(self.state(704)).store(self.issued, Ordering::Release);
    }

    fn acknowledged(&self) -> u64 {
        word_at(self.state(712)).load(Ordering::Acquire)
    }
}

// Operations, as `nvshmem_common_transport.h` numbers them.
const PUT: u64 = 1;
const VALUE: u64 = 2;
const GET: u64 = 4;
const FENCE: u64 = 6;
const ATOMIC: u64 = 7;
const SIGNAL_SET: u64 = 9;
const SIGNAL_ADD: u64 = 10;

/// The other side's PE where a word has it.
const PE: u64 = 1 << 16;

// Requests, as `nvshmem_proxy_channel.h` lays their words out.
fn first(op: u64, offset: u64) -> u64 {
    offset << 24 | op << 16 | 1 << 8
}

fn put(from: u64, offset: u64, size: u64) -> [u64; 4] {
    [first(PUT, offset), from & !0xff, size << 16 | (from & 0xff) << 8, PE]
}

fn put_value(value: u64, offset: u64, size: u64) -> [u64; 3] {
    [first(VALUE, offset), value << 32 | PE, value >> 32 << 32 | size << 16]
}

fn atomic(op: u64, value: u64, offset: u64) -> [u64; 5] {
    [first(ATOMIC, offset), value << 32 | PE | op << 8, value >> 32 << 32 | 8 << 16, 0, 0]
}

/// Kind, bytes, source, target and value of a request.
type Asked = (RequestKind, u32, u64, u64, u64);

fn asked(request: Option<Request>) -> Option<Asked> {
    let request = request?;
    Some((request.kind().ok()?, request.bytes, request.local, request.remote, request.value))
}

fn take(cpu: &mut Consumer) -> Request {
    cpu.take().expect("a request is there")
}

#[test]
fn each_request_asks_for_what_its_words_say() {
    let Some(library) = library() else { return };
    let rig = Rig::new(&library, PROXY_PUBLIC.number);
    let mut cpu = rig.state.consume().unwrap();
    let mut channel = Channel::new(&rig);
    let big = 0xfedc_ba98_7654_3210;
    let from = 0x7f12_3456_78a5;
    let cases: [(&[u64], Asked); 7] = [
        (&put(from, 0x1234, 8), (RequestKind::Write, 8, from, REMOTE + 0x1234, 0)),
        (&put(LOCAL, 0, 0x1234_5678), (RequestKind::Write, 0x1234_5678, LOCAL, REMOTE, 0)),
        (&put_value(big, 8, 8), (RequestKind::WriteValue, 8, 0, REMOTE + 8, big)),
        (&put_value(7, 8, 4), (RequestKind::WriteValue, 4, 0, REMOTE + 8, 7)),
        (&atomic(SIGNAL_ADD, 1, 16), (RequestKind::FetchAdd, 8, 0, REMOTE + 16, 1)),
        (&atomic(SIGNAL_ADD, big, 16), (RequestKind::FetchAdd, 8, 0, REMOTE + 16, big)),
        (&atomic(SIGNAL_SET, big, 24), (RequestKind::WriteValue, 8, 0, REMOTE + 24, big)),
    ];
    for (words, expected) in cases {
        channel.words(words);
        assert_eq!(asked(cpu.take()), Some(expected), "{words:x?}");
        assert!(cpu.take().is_none(), "{words:x?}");
    }
    // A fence is nothing to post: what is behind it comes.
    channel.word(first(FENCE, 0));
    channel.words(&put(LOCAL, 0, 8));
    assert_eq!(asked(cpu.take()), Some((RequestKind::Write, 8, LOCAL, REMOTE, 0)));
}

#[test]
fn a_request_that_is_not_whole_waits() {
    let Some(library) = library() else { return };
    let rig = Rig::new(&library, PROXY_PUBLIC.number);
    let mut cpu = rig.state.consume().unwrap();
    let mut channel = Channel::new(&rig);
    let requests: [&[u64]; 3] = [&put(LOCAL, 0, 8), &put_value(1, 0, 8), &atomic(SIGNAL_ADD, 1, 0)];
    for words in requests {
        for word in words {
            assert!(cpu.take().is_none(), "{words:x?}");
            channel.word(*word);
        }
        assert!(cpu.take().is_some(), "{words:x?}");
    }
}

#[test]
fn a_request_that_no_put_makes_ends_the_taking() {
    let Some(library) = library() else { return };
    let to_itself = [first(PUT, 0), LOCAL & !0xff, 8 << 16, 0];
    let compare_and_swap = atomic(19, 1, 0);
    let cases: [&[u64]; 3] = [&[first(GET, 0)], &to_itself, &compare_and_swap];
    for words in cases {
        let rig = Rig::new(&library, PROXY_PUBLIC.number);
        let mut cpu = rig.state.consume().unwrap();
        let mut channel = Channel::new(&rig);
        channel.words(words);
        assert!(take(&mut cpu).kind().is_err(), "{words:x?}");
        channel.words(&put(LOCAL, 0, 8));
        assert!(take(&mut cpu).kind().is_err(), "{words:x?}: nothing is taken behind it");
    }
}

#[test]
fn the_channel_goes_round_and_its_room_comes_back() {
    let Some(library) = library() else { return };
    let rig = Rig::new(&library, PROXY_PUBLIC.number);
    let mut cpu = rig.state.consume().unwrap();
    let mut channel = Channel::new(&rig);
    let mut number = 0;
    // 24 bytes don't divide the channel: a request lies across its end.
    while channel.issued < 3 * CHANNEL {
        channel.words(&put_value(number, 0, 8));
        let request = take(&mut cpu);
        assert_eq!((request.value, request.ticket), (number, number + 1));
        assert!(cpu.take().is_none(), "words of the last lap are none of this one");
        let behind = channel.issued - channel.complete();
        assert!(behind < 1024, "{behind} bytes of {} are not given back", channel.issued);
        number += 1;
    }
}

#[test]
fn a_quiet_is_acknowledged_when_all_before_it_is_completed() {
    let Some(library) = library() else { return };
    let rig = Rig::new(&library, PROXY_PUBLIC.number);
    let mut cpu = rig.state.consume().unwrap();
    let mut channel = Channel::new(&rig);
    channel.words(&put(LOCAL, 0, 8));
    channel.words(&put(LOCAL, 0, 8));
    channel.quiet();
    let asked_at = channel.issued;
    channel.words(&put(LOCAL, 0, 8));

    let tickets: Vec<u64> = (0..2).map(|_| take(&mut cpu).ticket).collect();
    assert_eq!(tickets, [1, 2]);
    let flush = take(&mut cpu);
    assert_eq!((flush.kind(), flush.ticket), (Ok(RequestKind::Flush), 3));
    assert_eq!(take(&mut cpu).kind(), Ok(RequestKind::Write), "others don't wait for it");
    cpu.done(2);
    assert_eq!(channel.acknowledged(), 0, "its own ticket is open");
    cpu.done(3);
    assert_eq!(channel.acknowledged(), asked_at);

    // One of nothing new, and one behind.
    channel.quiet();
    let flush = take(&mut cpu);
    assert_eq!(flush.kind(), Ok(RequestKind::Flush));
    cpu.done(flush.ticket);
    assert_eq!(channel.acknowledged(), channel.issued);
    assert!(cpu.take().is_none());
}

#[test]
fn a_cpu_rings_once_for_each_index_that_it_sees() {
    let Some(library) = library() else { return };
    let rig = Rig::new(&library, CPU_DOORBELL.number);
    let mut cpu = rig.state.consume().unwrap();
    assert!(cpu.take().is_none());
    assert_eq!(rig.rung(0), (0, 0), "nothing was produced");
    let doorbell = |index: u64, qpn: u32| {
        let halves = [(index as u32) << 8, qpn << 8].map(|half| u64::from(half.to_be()));
        halves[0] | halves[1] << 32
    };
    for (queue, index) in [(1, 1), (0, 3), (1, 0xffff), (1, 0x1_0002)] {
        rig.produced(queue).store(index, Ordering::Release);
        assert!(cpu.take().is_none(), "ringing is no request");
        let record = (index as u32 & 0xffff).to_be();
        assert_eq!(rig.rung(queue), (record, doorbell(index, 0x100 + queue as u32)), "{index:x}");
    }
    // What was rung for is not rung for again.
    rig.memory[1][2].store(0, Ordering::Relaxed);
    assert!(cpu.take().is_none());
    assert_eq!(rig.rung(1).1, 0);
    assert_eq!(rig.rung(0).0, 3u32.to_be());
}
