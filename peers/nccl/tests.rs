//! The CPU side of the proxy and of the CPU's doorbell, with a test's hand in the place of GPU threads.

use std::fs;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use device::cuda::Place;

use super::{ADAPTER, CPU_DOORBELL, PROXY_GIN};
use crate::{
    Compiled, Consumer, Paths, Request, RequestKind, SendQueue, Side, State, StateLibrary,
    Toolchain,
};

const QUEUE: usize = 256;
const BYTES: u64 = 1 << 16;
const LOCAL: u64 = 0x10_0000;
const REMOTE: u64 = 0x20_0000;
/// Queues, and so the side itself and two other ranks.
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
                log_cq: 10,
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

    /// The word of the image at an address that kernels know it by.
    fn word(&self, address: u64) -> u64 {
        self.state.built()[((address - self.state.device_address()) / 8) as usize]
    }

    /// A word of the proxy's context, by its offset there (`layout.h`).
    fn context(&self, offset: u64) -> u64 {
        const PROXY_IN_HEAD: u64 = 16;
        self.word(self.word(self.state.address() + PROXY_IN_HEAD) + offset)
    }

    fn slot(&self, rank: usize, index: usize) -> &[AtomicU64; 8] {
        let slot = self.context(8) as usize + (rank * QUEUE + index % QUEUE) * 64;
        // SAFETY: the queues are in memory that the state keeps, aligned to 16 bytes; here and in the adapter every
        // access is atomic, or the thread's own.
        unsafe { &*(slot as *const [AtomicU64; 8]) }
    }

    fn push(&self, rank: usize, index: usize, words: [u64; 8]) {
        for (slot, word) in self.slot(rank, index).iter().zip(words) {
            slot.store(word, Ordering::Relaxed);
        }
    }

    fn is_clear(&self, rank: usize, index: usize) -> bool {
        self.slot(rank, index).iter().all(|word| word.load(Ordering::Relaxed) == 0)
    }

    /// The consumer indices that GPU threads wait for: the side's own, and those of the two others.
    fn consumed(&self) -> [u32; QPS + 1] {
        let at = self.context(24);
        // SAFETY: as above, 4-byte words.
        let words = unsafe { &*(at as *const [AtomicU32; QPS + 1]) };
        words.each_ref().map(|word| word.load(Ordering::Relaxed))
    }

    /// What a queue's record and doorbell were last written with.
    fn rung(&self, queue: usize) -> (u32, u64) {
        let word = |index: usize| self.memory[queue][index].load(Ordering::Relaxed);
        ((word(0) >> 32) as u32, word(2))
    }
}

// Bits of a descriptor, as `gin_proxy_device_host_common.h` lays them out: each word's lowest says that it is there.
const VALID: u64 = 1;
const PUT: u64 = 1;
const VALUE: u64 = 2;
const COUNTER: u64 = 4;
const SIGNAL_INC: u64 = 8;
const SIGNAL_ADD: u64 = 16;

fn header(op: u64, size: u64) -> u64 {
    VALID | op << 1 | size << 7
}

fn put(from: u64, to: u64, size: u64) -> [u64; 8] {
    let word = |value: u64| VALID | value << 1;
    [header(PUT, size), word(from), word(1), word(to), word(1), VALID, VALID, VALID]
}

fn put_value(value: u64, to: u64, size: u64) -> [u64; 8] {
    let mut words = put(0, to, size);
    words[0] = header(PUT | VALUE, size);
    words[1] = VALID | (value & 0xffff_ffff_ffff) << 8;
    words[2] = VALID | value >> 48 << 8;
    words
}

/// The same with a signal behind it.
fn signal(mut words: [u64; 8], op: u64, id: u64, value: u64) -> [u64; 8] {
    words[0] |= op << 1;
    words[5] = VALID | id << 24 | (value & 0xffff) << 40;
    words[6] = VALID | (value >> 16 & 0xffff) << 8 | value >> 32 << 24;
    words
}

/// Kind, bytes, source, target and value of a request.
type Asked = (RequestKind, u32, u64, u64, u64);

fn asked(request: Option<Request>) -> Option<Asked> {
    let request = request?;
    Some((request.kind().ok()?, request.bytes, request.local, request.remote, request.value))
}

fn take(cpu: &mut Consumer) -> u64 {
    cpu.take().expect("a descriptor is there").ticket
}

#[test]
fn each_descriptor_asks_for_what_its_bits_say() {
    use RequestKind::{FetchAdd, Write, WriteValue};
    let Some(library) = library() else { return };
    const WIDE: u64 = 0x8877_6655_4433_2211;
    let (end, sink) = (REMOTE + BYTES, LOCAL + BYTES - 16);
    let write = (Write, 4096, LOCAL + 64, REMOTE + 128, 0);
    let cases: [([u64; 8], &[Asked]); 6] = [
        (put(LOCAL + 64, REMOTE + 128, 4096), &[write]),
        (put_value(WIDE, REMOTE, 8), &[(WriteValue, 8, 0, REMOTE, WIDE)]),
        (put_value(WIDE, REMOTE, 4), &[(WriteValue, 4, 0, REMOTE, WIDE & 0xffff_ffff)]),
        (
            signal(put(LOCAL + 64, REMOTE + 128, 4096), SIGNAL_INC, 1, 1),
            &[write, (FetchAdd, 8, sink, end - 8, 1)],
        ),
        (
            signal(put(LOCAL + 64, REMOTE + 128, 4096), SIGNAL_ADD, 0, WIDE),
            &[write, (FetchAdd, 8, sink, end - 16, WIDE)],
        ),
        (
            signal(put_value(WIDE, REMOTE, 8), SIGNAL_INC, 1, 1),
            &[(WriteValue, 8, 0, REMOTE, WIDE), (FetchAdd, 8, sink, end - 8, 1)],
        ),
    ];
    for (words, expected) in cases {
        let rig = Rig::new(&library, PROXY_GIN.number);
        let mut cpu = rig.state.consume().unwrap();
        rig.push(1, 0, words);
        let found: Vec<Asked> = std::iter::from_fn(|| asked(cpu.take())).collect();
        assert_eq!(found, expected, "{words:x?}");
    }
}

#[test]
fn ranks_take_turns_and_a_rank_counts_what_is_completed_of_its_own() {
    let Some(library) = library() else { return };
    let rig = Rig::new(&library, PROXY_GIN.number);
    let mut cpu = rig.state.consume().unwrap();
    rig.push(1, 0, put(LOCAL, REMOTE, 1));
    rig.push(1, 1, put(LOCAL, REMOTE, 2));
    rig.push(2, 0, signal(put(LOCAL, REMOTE, 3), SIGNAL_INC, 1, 1));
    let sizes: Vec<u32> = std::iter::from_fn(|| cpu.take()).map(|request| request.bytes).collect();
    assert_eq!(sizes, [1, 3, 8, 2], "one of a rank, with its signal, then the next rank's");
    assert!(rig.is_clear(1, 0) && rig.is_clear(1, 1) && rig.is_clear(2, 0), "slots are free again");

    assert_eq!(rig.consumed(), [0, 0, 0], "taken isn't completed");
    cpu.done(1);
    assert_eq!(rig.consumed(), [0, 1, 0]);
    cpu.done(2);
    assert_eq!(rig.consumed(), [0, 1, 0], "a put is completed when its signal is");
    cpu.done(4);
    assert_eq!(rig.consumed(), [0, 2, 1]);
}

#[test]
fn a_descriptor_that_is_not_whole_waits() {
    let Some(library) = library() else { return };
    let rig = Rig::new(&library, PROXY_GIN.number);
    let mut cpu = rig.state.consume().unwrap();
    let whole = put(LOCAL, REMOTE, 16);
    for missing in 0..whole.len() {
        let mut words = whole;
        words[missing] = 0;
        rig.push(1, 0, words);
        assert!(cpu.take().is_none(), "word {missing} isn't there yet");
    }
    rig.push(1, 0, whole);
    assert_eq!(asked(cpu.take()), Some((RequestKind::Write, 16, LOCAL, REMOTE, 0)));
}

#[test]
fn queues_go_round() {
    let Some(library) = library() else { return };
    let rig = Rig::new(&library, PROXY_GIN.number);
    let mut cpu = rig.state.consume().unwrap();
    for lap in 0..5 {
        for index in 0..QUEUE {
            for rank in 1..=QPS {
                rig.push(
                    rank,
                    lap * QUEUE + index,
                    signal(put(LOCAL, REMOTE, 8), SIGNAL_INC, 1, 1),
                );
            }
        }
        // Both queues are full, and nothing of them is completed before all of it is taken.
        let last = (0..QPS * QUEUE * 2).map(|_| take(&mut cpu)).last().unwrap();
        assert!(cpu.take().is_none());
        cpu.done(last);
        let each = ((lap + 1) * QUEUE) as u32;
        assert_eq!(rig.consumed(), [0, each, each]);
    }
}

#[test]
fn an_unknown_descriptor_ends_the_taking() {
    let Some(library) = library() else { return };
    let with_header = |word: u64| {
        let mut words = put(LOCAL, REMOTE, 8);
        words[0] = word;
        words
    };
    let cases = [
        ("no put", with_header(header(0, 8))),
        ("a counter", with_header(header(PUT | COUNTER, 8))),
        ("an operation of later versions", with_header(header(PUT | 32, 8))),
        ("4 GiB", with_header(header(PUT, 1 << 32))),
        ("a value of 9 bytes", with_header(header(PUT | VALUE, 9))),
    ];
    for (what, words) in cases {
        let rig = Rig::new(&library, PROXY_GIN.number);
        let mut cpu = rig.state.consume().unwrap();
        rig.push(1, 0, words);
        rig.push(1, 1, put(LOCAL, REMOTE, 8));
        for _ in 0..2 {
            let request = cpu.take().unwrap_or_else(|| panic!("{what} isn't told"));
            assert!(request.kind().is_err(), "{what}: {request:?}");
        }
        assert_eq!(rig.consumed(), [0, 0, 0], "{what}");
    }
}

#[test]
fn a_cpu_rings_once_for_each_index_that_it_sees() {
    let Some(library) = library() else { return };
    let rig = Rig::new(&library, CPU_DOORBELL.number);
    let mut cpu = rig.state.consume().unwrap();
    // In a rank's queue pair, its doorbell's address is that of the word: rank 2 has the second queue.
    const QP: u64 = 280;
    const DOORBELL: u64 = 80;
    let word = rig.word(rig.word(rig.state.address()) + 2 * QP + DOORBELL);
    // SAFETY: a word of the state's memory, which nobody writes but this test.
    let word = unsafe { AtomicU64::from_ptr(word as *mut u64) };
    let ask = |index: u64| word.store(index, Ordering::Relaxed);

    assert!(cpu.take().is_none());
    assert_eq!([rig.rung(0), rig.rung(1)], [(0, 0); 2], "nothing was asked for");
    // The record has 16 bits of the index; the doorbell has more of it than the NIC looks at, as the library's.
    for (index, record, doorbell) in
        [(1, 1, 0x100), (0xffff, 0xffff, 0xff_ff00), (0x1_0002, 2, 0x100_0200)]
    {
        ask(index);
        assert!(cpu.take().is_none());
        let value = u64::from(u32::to_be(doorbell)) | u64::from((0x101u32 << 8).to_be()) << 32;
        assert_eq!(rig.rung(1), (u32::to_be(record), value), "{index:#x}");
        assert_eq!(rig.rung(0), (0, 0), "the other queue isn't rung");
    }
    rig.memory[1][2].store(0, Ordering::Relaxed);
    assert!(cpu.take().is_none());
    assert_eq!(rig.rung(1).1, 0, "an index is rung for once");
}
