//! A worker on send queues that take as little as they like, answer in any order, or die.

use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Mutex};

use device::proxy::{Descriptor, Handoff, ProxyOp, progress};
use device::view::{Failure, Why};
use rdma::post::{BadWr, Completion, Ended, PostError, SendOp, SendQueue, SendWr};
use rdma::{Memory, Region};

use super::{Cells, Channel, Ring, Source, Worker};
use crate::attr::ChannelAttr;
use crate::ring::{Consumer, RingLayout};

const LOG_DEPTH: u32 = 4;

/// What a queue was asked for, and how it behaves.
#[derive(Default)]
struct Log {
    posted: Vec<SendWr>,
    /// Chain lengths offered.
    offered: Vec<usize>,
    unanswered: VecDeque<SendWr>,
    /// Taken at each post, in turn; then everything.
    takes: VecDeque<usize>,
    /// Nothing is answered while set.
    silent: bool,
    dies: bool,
    refuses_at: Option<usize>,
}

#[derive(Clone)]
struct Fake {
    qpn: u32,
    depth: usize,
    log: Arc<Mutex<Log>>,
}

impl SendQueue for Fake {
    fn qpn(&self) -> u32 {
        self.qpn
    }
    fn depth(&self) -> usize {
        self.depth
    }
    fn room(&self) -> usize {
        self.depth - self.log.lock().unwrap().unanswered.len()
    }
    fn post(&mut self, chain: &[SendWr]) -> Result<usize, PostError> {
        let room = self.room();
        let mut log = self.log.lock().unwrap();
        if log.dies {
            drop(log);
            panic!("this queue dies when it is posted to");
        }
        log.offered.push(chain.len());
        let taken = log.takes.pop_front().unwrap_or(usize::MAX).min(chain.len()).min(room);
        if let Some(index) = log.refuses_at.filter(|at| *at < chain.len()) {
            let why = BadWr::Length { bytes: 0, max: 1 };
            return Err(PostError { index, wr_id: chain[index].wr_id, why });
        }
        log.posted.extend(&chain[..taken]);
        log.unanswered.extend(&chain[..taken]);
        Ok(taken)
    }
    fn poll(&mut self, out: &mut [Completion]) -> usize {
        let mut log = self.log.lock().unwrap();
        // Unsignalled requests are freed by the next signalled one.
        let Some(first) = log.unanswered.iter().position(|wr| wr.signaled) else { return 0 };
        if log.silent {
            return 0;
        }
        let wr_id = log.unanswered[first].wr_id;
        log.unanswered.drain(..=first);
        out[0] = Completion { wr_id, qpn: self.qpn, index: 0, ended: Ended::Done };
        1
    }
}

struct Rig {
    worker: Worker,
    rings: Vec<Arc<Memory>>,
    logs: Vec<Arc<Mutex<Log>>>,
    cells: Arc<Cells>,
    pushed: Vec<u64>,
}

fn region() -> Region {
    Region::borrowed(Memory::zeroed(1 << 16), 0x1000, 1, 2)
}

fn rig(rings: usize, queues: usize, depth: usize, chain: u32, every: u32) -> Rig {
    let memories: Vec<_> =
        (0..rings).map(|_| Memory::zeroed(RingLayout::of(LOG_DEPTH).bytes)).collect();
    let logs: Vec<_> = (0..queues).map(|_| Arc::new(Mutex::new(Log::default()))).collect();
    let cells = Arc::new(Cells::default());
    let channel =
        ChannelAttr { local: region(), remote: region(), signal: Some((region(), 0x100)) };
    let worker = Worker::new(
        memories
            .iter()
            .enumerate()
            .map(|(number, memory)| {
                let consumer = Consumer::new(memory.clone(), Handoff::LapParity, LOG_DEPTH, 0);
                Ring::new(consumer, Source::Slots, number as u32, 64)
            })
            .collect(),
        logs.iter()
            .enumerate()
            .map(|(i, log)| {
                Box::new(Fake { qpn: 0x100 + i as u32, depth, log: log.clone() })
                    as Box<dyn SendQueue>
            })
            .collect(),
        (0..queues).map(|i| Channel::of(&channel, i, 0x9000, 3)).collect(),
        chain,
        every,
        cells.clone(),
    );
    Rig { worker, rings: memories, logs, cells, pushed: vec![0; rings] }
}

impl Rig {
    fn word(&self, ring: usize, at: usize) -> u64 {
        self.rings[ring].word(RingLayout::of(LOG_DEPTH).progress + at).load(Acquire)
    }
    fn posted(&self, ring: usize) -> u64 {
        self.word(ring, progress::POSTED)
    }
    fn completed(&self, ring: usize) -> u64 {
        self.word(ring, progress::COMPLETED)
    }
    fn failure(&self, ring: usize) -> Option<Failure> {
        Failure::unpack(self.word(ring, progress::FAILURE))
    }

    /// As a producer would; false where the ring is full.
    fn push(&mut self, ring: usize, d: Descriptor) -> bool {
        let at = self.pushed[ring];
        if at - self.posted(ring) >= 1 << LOG_DEPTH {
            return false;
        }
        let mark = (!(at >> LOG_DEPTH) & 1) << 63;
        let slot = 16 * (at as usize % (1 << LOG_DEPTH));
        let [low, high] = d.pack();
        self.rings[ring].word(slot).store(low | mark, Release);
        self.rings[ring].word(slot + 8).store(high | mark, Release);
        self.pushed[ring] += 1;
        true
    }

    /// Puts numbered by their source offset.
    fn push_puts(&mut self, ring: usize, numbers: std::ops::Range<u64>) {
        for source in numbers {
            assert!(self.push(ring, Descriptor { size: 8, source, ..Descriptor::default() }));
        }
    }
}

fn source(wr: &SendWr) -> u64 {
    match wr.op {
        SendOp::Write(local, _) => local.address - 0x1000,
        _ => panic!("{wr:?} is no write"),
    }
}

#[test]
fn an_all_zero_descriptor_is_handled_in_each_lap() {
    let cases: serde_json::Value =
        serde_json::from_str(include_str!("../../../wire/testdata/public-reports.json")).unwrap();
    let handled = cases["proxy_ring"][0]["handled"].as_u64().unwrap();
    let mut rig = rig(1, 1, 64, 16, 1);
    // Sixteen zero bytes: in the second lap the mark is zero, too.
    let zero = Descriptor { size: 1, ..Descriptor::default() };
    assert_eq!(zero.pack(), [0, 0]);
    for lap in 1..=handled {
        for _ in 0..1u64 << LOG_DEPTH {
            assert!(rig.push(0, zero));
            rig.worker.visit();
            rig.worker.visit();
        }
        assert_eq!(rig.cells.taken.load(Relaxed), lap << LOG_DEPTH);
        assert_eq!(rig.completed(0), lap << LOG_DEPTH);
    }
    // What still lies there isn't taken again.
    rig.worker.visit();
    assert_eq!(rig.cells.taken.load(Relaxed), handled << LOG_DEPTH);
}

#[test]
fn a_partial_post_resumes_at_the_first_request_that_was_not_taken() {
    let cases: serde_json::Value =
        serde_json::from_str(include_str!("../../../wire/testdata/public-reports.json")).unwrap();
    let case = &cases["proxy_ring"][1];
    let number = |name: &str| case[name].as_u64().unwrap();
    let (chain, free) = (number("chain"), number("free_slots") as usize);

    let mut rig = rig(1, 1, free, chain as u32, 1);
    rig.logs[0].lock().unwrap().silent = true;
    rig.push_puts(0, 0..chain);
    rig.worker.visit();
    assert_eq!(rig.logs[0].lock().unwrap().posted.len() as u64, number("posted"));
    // The rest stays in the ring: taken, not posted.
    assert_eq!(rig.cells.taken.load(Relaxed), chain);
    assert_eq!(rig.posted(0), number("resume_at"));
    // A full queue stays as it is, however often it is visited.
    rig.worker.visit();
    assert_eq!(rig.posted(0), number("resume_at"));
    rig.logs[0].lock().unwrap().silent = false;
    for _ in 0..20 {
        rig.worker.visit();
    }
    let log = rig.logs[0].lock().unwrap();
    let sources: Vec<u64> = log.posted.iter().map(source).collect();
    assert_eq!(sources, (0..chain).collect::<Vec<_>>());
    let ids: std::collections::BTreeSet<u64> = log.posted.iter().map(|wr| wr.wr_id).collect();
    assert_eq!(ids.len() as u64, number("distinct_wr_ids"));
    assert_eq!((rig.posted(0), rig.completed(0)), (chain, chain));
}

#[test]
fn whatever_a_queue_takes_each_request_is_posted_once_and_in_order() {
    let mut random = 0x2545_f491_4f6c_dd1du64;
    let mut next = move |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
    for (chain, every, depth) in [(1, 1, 4), (3, 2, 6), (8, 4, 16), (16, 8, 64)] {
        let mut rig = rig(2, 3, depth, chain, every);
        // What each queue is due, by ring: a ring's order holds in each queue.
        let mut due: Vec<Vec<Vec<u64>>> = vec![vec![Vec::new(); 2]; 3];
        let mut signals = 0u64;
        let each = 20_000u64;
        let mut sent = [0u64; 2];
        let mut turns = 0;
        while rig.completed(0) < each || rig.completed(1) < each {
            turns += 1;
            assert!(turns < 2_000_000, "stuck at {} and {}", rig.completed(0), rig.completed(1));
            for (ring, sent) in sent.iter_mut().enumerate() {
                for _ in 0..next(6) {
                    if *sent == each {
                        break;
                    }
                    let (queue, signal) = (next(3), next(4) == 0);
                    let number = *sent % 30_000 + 30_000 * ring as u64;
                    let d = Descriptor {
                        op: if signal { ProxyOp::PutSignal } else { ProxyOp::Put },
                        channel: queue as u32,
                        size: 8,
                        source: number,
                        ..Descriptor::default()
                    };
                    if !rig.push(ring, d) {
                        break;
                    }
                    *sent += 1;
                    due[queue as usize][ring].push(number);
                    signals += u64::from(signal);
                }
            }
            for log in &rig.logs {
                let mut log = log.lock().unwrap();
                log.takes = (0..2).map(|_| next(2 * u64::from(chain)) as usize).collect();
                log.silent = next(3) == 0;
            }
            rig.worker.visit();
            for (ring, sent) in sent.iter().enumerate() {
                assert!(rig.completed(ring) <= rig.posted(ring));
                assert!(rig.posted(ring) <= *sent);
            }
        }
        let mut added = 0;
        for (queue, log) in rig.logs.iter().enumerate() {
            let log = log.lock().unwrap();
            assert!(log.offered.iter().all(|n| *n <= (chain as usize).max(2)), "chain {chain}");
            let mut seen = vec![Vec::new(); 2];
            for wr in &log.posted {
                match wr.op {
                    SendOp::Write(..) => {
                        seen[(source(wr) / 30_000) as usize].push(source(wr));
                    }
                    SendOp::FetchAdd(..) => added += 1,
                    _ => assert_eq!(wr.op, SendOp::Nop),
                }
            }
            assert!(log.posted.windows(2).all(|w| w[0].wr_id + 1 == w[1].wr_id));
            assert_eq!(seen, due[queue], "queue {queue}, chain {chain}");
        }
        assert_eq!(added, signals, "chain {chain}");
        let count = |cell: &std::sync::atomic::AtomicU64| cell.load(Relaxed);
        assert_eq!(count(&rig.cells.taken), 2 * each);
        assert_eq!(count(&rig.cells.posted), 2 * each);
        assert_eq!(count(&rig.cells.completed), 2 * each);
    }
}

#[test]
fn a_ring_is_completed_up_to_its_first_operation_that_is_not() {
    let mut rig = rig(1, 2, 16, 16, 1);
    rig.logs[0].lock().unwrap().silent = true;
    for channel in [1, 0, 1, 1] {
        rig.push(0, Descriptor { channel, size: 8, ..Descriptor::default() });
    }
    for _ in 0..10 {
        rig.worker.visit();
    }
    // Queue 1 has answered for everything, queue 0 for nothing.
    assert_eq!((rig.posted(0), rig.completed(0)), (4, 1));
    rig.logs[0].lock().unwrap().silent = false;
    for _ in 0..10 {
        rig.worker.visit();
    }
    assert_eq!(rig.completed(0), 4);
}

#[test]
fn a_put_with_signal_that_was_half_taken_keeps_its_slot_and_is_not_repeated() {
    let mut rig = rig(1, 1, 16, 4, 1);
    rig.logs[0].lock().unwrap().takes = [1, 0, 0].into();
    let put = Descriptor { op: ProxyOp::PutSignal, size: 8, ..Descriptor::default() };
    assert!(rig.push(0, put));
    rig.worker.visit();
    assert_eq!((rig.posted(0), rig.completed(0)), (0, 0));
    for _ in 0..10 {
        rig.worker.visit();
    }
    assert_eq!((rig.posted(0), rig.completed(0)), (1, 1));
    let log = rig.logs[0].lock().unwrap();
    assert!(matches!(
        log.posted[..],
        [SendWr { op: SendOp::Write(..), .. }, SendWr { op: SendOp::FetchAdd(1, ..), .. }]
    ));
}

#[test]
fn the_last_of_a_burst_is_heard_of_though_only_every_nth_asks() {
    for (pushed, every) in [(1, 8), (4, 8), (5, 8), (8, 8), (3, 2)] {
        for rings in [1, 2] {
            let mut rig = rig(rings, 1, 16, 4, every);
            rig.push_puts(0, 0..pushed);
            for visit in 0..20 {
                // Another ring that is busy with another queue doesn't keep it back.
                if rings == 2 && visit < 10 {
                    rig.push(1, Descriptor { op: ProxyOp::Flush, ..Descriptor::default() });
                }
                rig.worker.visit();
            }
            assert_eq!(rig.completed(0), pushed, "{pushed} pushed, every {every}");
            let log = rig.logs[0].lock().unwrap();
            let asked = log.posted.iter().filter(|wr| wr.signaled).count() as u64;
            assert!(asked <= pushed / u64::from(every) + 2, "{asked} asked for");
        }
    }
}

#[test]
fn no_chain_waits_to_be_full() {
    let mut rig = rig(1, 1, 64, 16, 1);
    for i in 0..50 {
        rig.push_puts(0, i..i + 1);
        rig.worker.visit();
        assert_eq!(rig.posted(0), i + 1);
    }
    assert!(rig.logs[0].lock().unwrap().offered.iter().all(|n| *n == 1));
}

#[test]
fn a_worker_that_dies_tells_all_of_its_rings() {
    let mut rig = rig(2, 1, 16, 4, 1);
    rig.logs[0].lock().unwrap().dies = true;
    rig.push_puts(0, 0..1);
    let stop = AtomicBool::new(false);
    // Its message on stderr is the test's own.
    assert!(!crate::visit(&mut rig.worker, &stop));
    for ring in 0..2 {
        assert_eq!(rig.failure(ring).unwrap().why, Why::WorkerDied);
    }
    // It doesn't go on with what its death left behind.
    rig.logs[0].lock().unwrap().dies = false;
    assert!(!crate::visit(&mut rig.worker, &stop));
    assert!(rig.logs[0].lock().unwrap().posted.is_empty());
    assert_eq!(rig.completed(0), 0);
}

#[test]
fn a_request_that_the_queue_refuses_fails_the_rings_that_wait_for_it() {
    let mut rig = rig(2, 2, 16, 4, 1);
    rig.logs[0].lock().unwrap().refuses_at = Some(0);
    rig.push_puts(0, 0..2);
    rig.push(1, Descriptor { channel: 1, size: 8, ..Descriptor::default() });
    for _ in 0..5 {
        rig.worker.visit();
    }
    let failure = rig.failure(0).unwrap();
    assert_eq!((failure.why, failure.qpn), (Why::BadDescriptor, 0x100));
    assert_eq!((rig.failure(1), rig.completed(1)), (None, 1));
}
