//! Requests that are handed to a CPU as a library does.
//!
//! The library's own queues, as far as a put goes through them, in host memory, and one worker that takes requests out of
//! them by the library's rules and posts them one by one.
//!
//! ```
//! use device::{host, like::{Like, LikeArgs, Peer}, view::Failure};
//! use mini_proxy::like::{LikeProxy, LikeProxyAttr};
//! use rdma::{Access, Memory, Nic, soft::{Fabric, FabricAttr}};
//!
//! let fabric = Fabric::open(&FabricAttr::default())?;
//! let (near, far) = (fabric.nic(0).clone(), fabric.nic(1).clone());
//! let source = near.register(&Memory::zeroed(4096), Access::empty())?;
//! let target = far.register(&Memory::zeroed(4096), Access::REMOTE_WRITE)?;
//! let like = Like::whole(Peer::Mscclpp);
//! let attr = LikeProxyAttr::default();
//! let proxy = LikeProxy::connect(near, far.as_ref(), like, &attr, &source, &target)?;
//!
//! let (mut issue, mut total, mut failure) = (vec![0u64; 10], vec![0u64; 10], 0u64);
//! let args = LikeArgs {
//!     slots: 10, samples: 10,
//!     issue: issue.as_mut_ptr(), total: total.as_mut_ptr(), failure: &raw mut failure,
//!     ..proxy.args()
//! };
//! proxy.expect(&args);
//! // SAFETY: the buffers outlive the launch and hold as many samples as the arguments say.
//! unsafe { host::launch_like(like, &args, &[], Some(&proxy.relax()))? };
//! proxy.check(failure)?;
//! assert_eq!(target.memory.word(9 * 8).load(std::sync::atomic::Ordering::Acquire), 10);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod consumer;

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Mutex, TryLockError};
use std::thread::JoinHandle;
use std::time::Duration;

use device::clock::Clock;
use device::cuda::CudaError;
use device::host::Relax;
use device::like::{Like, LikeArgs, LikeQueue, LikeState, PROXY_BACKEND, Peer};
use device::shared::Shared;
use device::view::{Failure, Local, QuietScope, Remote, Why};
use rdma::post::{Completion, Ended, RemoteAddr, SendOp, SendQueue, SendWr, Sge};
use rdma::{ConnectAttr, Memory, Nic, Place, QueuePair, Region};

use crate::{Drive, IDLE, Pairs, ProxyAttr, ProxyError, failure_of, lock};
use consumer::{Consumer, Expected, Request};

/// What a proxy that takes requests as a library does is made with.
#[derive(Clone, Debug)]
pub struct LikeProxyAttr {
    /// log2 of a queue's slots; the library's own if none.
    pub log_depth: Option<u32>,
    /// Threads that will put.
    pub producers: u32,
    /// log2 of the send queue's 64-byte blocks.
    pub log_blocks: u32,
    /// Who runs the worker.
    pub drive: Drive,
    /// Of every wait in device code.
    pub deadline: Duration,
    /// First position of each queue; tests start near a wrap.
    pub start: u64,
    /// Timers and retries.
    pub connect: ConnectAttr,
    /// Where what both sides access, and the send queue, is made: memory that the worker can follow, and producers too.
    pub rings_in: Place,
    /// Where producers' own words are made.
    pub state: Place,
    /// The clock that device code reads: deadlines are in its ticks.
    pub clock: Clock,
}

impl Default for LikeProxyAttr {
    fn default() -> Self {
        let base = ProxyAttr::default();
        Self {
            log_depth: None,
            producers: 1,
            log_blocks: base.log_blocks,
            drive: base.drive,
            deadline: base.deadline,
            start: 0,
            connect: base.connect,
            rings_in: base.rings_in,
            state: base.state,
            clock: base.clock,
        }
    }
}

/// log2 of the slots of a queue, and how many queues there are.
fn shape(peer: Peer, producers: u32) -> (u32, u32) {
    match peer {
        // A channel of 4 MiB.
        Peer::NvshmemProxy => (17, 1),
        // The side's own rank, and the other.
        Peer::GinProxy => (8, 2),
        Peer::Mscclpp => (9, 1),
        Peer::UcclEp => (11, UCCL_QUEUES),
        // A flag a thread.
        _ => (0, producers),
    }
}

/// 8 for each of 4 proxies.
const UCCL_QUEUES: u32 = 32;
/// Offsets of two-word slots have so many bits; UCCL-EP's puts keep to 31 of them.
const PAIR_OFFSET_BITS: u32 = 31;

/// Where the queues' words lie in host memory: by queue the slots, then each word on a line of its own; behind all
/// queues the failure word.
#[derive(Clone, Copy)]
struct Layout {
    log_depth: u32,
    queues: u32,
    slots: usize,
    tail: usize,
    asked: usize,
    answered: usize,
    queue_bytes: usize,
    failure: usize,
    bytes: usize,
}

impl Layout {
    fn of(slot_bytes: usize, log_depth: u32, queues: u32) -> Self {
        let tail = (slot_bytes << log_depth).next_multiple_of(64);
        let queue_bytes = tail + 192;
        let failure = queue_bytes * queues as usize;
        Self {
            log_depth,
            queues,
            slots: 0,
            tail,
            asked: tail + 64,
            answered: tail + 128,
            queue_bytes,
            failure,
            bytes: failure + 64,
        }
    }
}

/// Queues, their worker, and its queue pair.
pub struct LikeProxy {
    like: Like,
    nic: Arc<dyn Nic>,
    worker: Arc<Mutex<Worker>>,
    stepped: bool,
    thread: Mutex<Option<JoinHandle<()>>>,
    stop: Arc<AtomicBool>,
    views: Views,
    near: Vec<Arc<QueuePair>>,
    far: Vec<Arc<QueuePair>>,
    // What views and requests point into.
    _memory: Arc<Memory>,
    _regions: [Region; 2],
}

/// Views, and what they point into.
struct Views {
    state: LikeState,
    args: LikeArgs,
    _host_state: Shared<LikeState>,
    _queues: Shared<LikeQueue>,
    _channels: Shared<u64>,
    _words: Shared<u64>,
}

mod sendable {
    #![allow(unsafe_code, reason = "see below")]
    // SAFETY: what isn't Send by itself are the addresses in the views. They lead to memory that the proxy keeps
    // alive, wherever it is moved, and no safe code follows them. Device code does, under the contract of its launch.
    unsafe impl Send for super::Views {}
    // SAFETY: as above.
    unsafe impl Sync for super::Views {}
}

impl LikeProxy {
    /// Makes the queues, the worker and its queue pair from `near` to `far`, for puts from `local` to `remote`, and
    /// starts the worker.
    ///
    /// # Errors
    /// A put that no CPU posts; a depth or regions that the library's slots have no room for; a NIC that has no room; a
    /// thread that can't be started.
    pub fn connect(
        near: Arc<dyn Nic>,
        far: &dyn Nic,
        like: Like,
        attr: &LikeProxyAttr,
        local: &Region,
        remote: &Region,
    ) -> Result<Self, ProxyError> {
        let peer = like.peer;
        if !peer.is_proxied() {
            return Err(ProxyError::NotProxied { like });
        }
        if attr.producers == 0 {
            return Err(ProxyError::NoProducers);
        }
        let pairs = matches!(peer, Peer::Mscclpp | Peer::UcclEp);
        let longest = local.length.max(remote.length);
        if pairs && longest > 1 << PAIR_OFFSET_BITS {
            return Err(ProxyError::LikeOffsets { like, bytes: longest, bits: PAIR_OFFSET_BITS });
        }
        let (log_depth, queues) = shape(peer, attr.producers);
        let log_depth = match attr.log_depth {
            Some(log) if peer != Peer::FabricLib => log,
            _ => log_depth,
        };
        if peer != Peer::FabricLib && !(1..=20).contains(&log_depth) {
            let depth = 1u32.checked_shl(log_depth).unwrap_or(u32::MAX);
            let nearest = if log_depth == 0 { 2 } else { 1 << 20 };
            return Err(ProxyError::RingDepth { depth, max: 1 << 20, nearest });
        }
        let nic_failed = |what: &str| {
            let what = what.to_owned();
            move |source| ProxyError::Nic { what, source }
        };
        let shared = |source: CudaError| nic_failed("state of the queues")(source.into());

        let layout = Layout::of(peer.slot_bytes(), log_depth, queues);
        let memory =
            rdma::memory(&attr.rings_in, layout.bytes).map_err(nic_failed("queues to the CPU"))?;
        let words = initial_words(peer, queues, attr.start);
        let words = Shared::at(&attr.state, &words).map_err(shared)?;
        let word_at = |index: usize| words.as_ptr().wrapping_add(index * WORDS_STRIDE);
        let views: Vec<LikeQueue> = (0..queues as usize)
            .map(|number| {
                let at = |offset: usize| {
                    memory.as_ptr().wrapping_add(layout.queue_bytes * number + offset)
                };
                LikeQueue {
                    slots: at(layout.slots),
                    head: word_at(2 * number),
                    tail: at(layout.tail).cast(),
                    cached_tail: word_at(2 * number + 1),
                    depth: 1 << log_depth,
                    log_depth,
                    asked: at(layout.asked).cast(),
                    answered: at(layout.answered).cast(),
                    failure: memory.as_ptr().wrapping_add(layout.failure).cast(),
                    mapped: word_at(2 * queues as usize),
                    local: local.address,
                    remote: remote.address,
                    backend: PROXY_BACKEND,
                    pad: 0,
                }
            })
            .collect();
        let consumer = Consumer::new(peer, Arc::clone(&memory), layout, attr.producers, attr.start);
        let proxy_attr = ProxyAttr {
            log_blocks: attr.log_blocks,
            connect: attr.connect,
            rings_in: attr.rings_in.clone(),
            ..ProxyAttr::default()
        };
        let mut pairs = Pairs {
            near: near.as_ref(),
            far,
            attr: &proxy_attr,
            nears: Vec::new(),
            fars: Vec::new(),
        };
        let qp = pairs.connect("the worker", 0)?;
        let (nears, fars) = (pairs.nears, pairs.fars);
        let queue = near.send_queue(&qp).map_err(nic_failed("the worker's send queue"))?;
        let worker = Worker {
            consumer,
            queue,
            local: local.clone(),
            remote: remote.clone(),
            taken: None,
            in_flight: VecDeque::new(),
            ended: false,
        };
        let device_queues = Shared::at(&attr.state, &views).map_err(shared)?;
        let channels: Vec<u64> = (0..views.len())
            .map(|number| device_queues.as_ptr().wrapping_add(number) as u64)
            .collect();
        let channels = Shared::at(&attr.state, &channels).map_err(shared)?;
        let state = LikeState { queue: views[0], by_gpu: 0, ..LikeState::default() };
        let host_state = Shared::new(&[state]);
        let args = LikeArgs {
            doca: std::ptr::null_mut(),
            state: host_state.as_ptr(),
            queue: device_queues.as_ptr(),
            channels: channels.as_ptr(),
            qps: queues,
            scope: QuietScope::All,
            bytes: 8,
            threads: 1,
            slots: 1,
            stride: 8,
            warmup: 0,
            samples: 0,
            first: 1,
            deadline: attr.clock.ticks(attr.deadline),
            local: Local { address: local.address, lkey: local.lkey },
            remote: Remote { address: remote.address, rkey: remote.rkey },
            issue: std::ptr::null_mut(),
            total: std::ptr::null_mut(),
            failure: std::ptr::null_mut(),
        };
        let proxy = Self {
            like,
            nic: near,
            worker: Arc::new(Mutex::new(worker)),
            stepped: attr.drive == Drive::Stepped,
            thread: Mutex::new(None),
            stop: Arc::new(AtomicBool::new(false)),
            views: Views {
                state,
                args,
                _host_state: host_state,
                _queues: device_queues,
                _channels: channels,
                _words: words,
            },
            near: nears,
            far: fars,
            _memory: memory,
            _regions: [local.clone(), remote.clone()],
        };
        if let Drive::Threads { cpus } = &attr.drive {
            proxy.start(cpus.first().copied())?;
        }
        Ok(proxy)
    }

    fn start(&self, cpu: Option<usize>) -> Result<(), ProxyError> {
        let (worker, nic, stop) =
            (Arc::clone(&self.worker), Arc::clone(&self.nic), Arc::clone(&self.stop));
        let thread = std::thread::Builder::new()
            .name("proxy-like".to_owned())
            .spawn(move || run(&worker, nic.as_ref(), &stop, cpu))
            .map_err(|source| ProxyError::Thread { worker: 0, source })?;
        *lock(&self.thread) = Some(thread);
        Ok(())
    }

    /// Whose put.
    #[must_use]
    pub fn like(&self) -> Like {
        self.like
    }

    /// Arguments for one thread's 8-byte puts to one slot, without samples: queues, deadline and regions are filled in,
    /// the rest is the caller's. Valid while this value lives, for one launch at a time, with as many threads as there
    /// are producers at most.
    #[must_use]
    pub fn args(&self) -> LikeArgs {
        self.views.args
    }

    /// Tells the worker what a launch with these arguments will ask for, where the library's CPU knows its requests
    /// beforehand (fabric-lib). To be called before each launch.
    pub fn expect(&self, args: &LikeArgs) {
        let (slots, stride, bytes) = (args.slots, args.stride, args.bytes);
        let local = args.local.address.wrapping_sub(self.views.state.queue.local);
        let remote = args.remote.address.wrapping_sub(self.views.state.queue.remote);
        lock(&self.worker).consumer.expect(Expected { local, remote, bytes, slots, stride });
    }

    /// What a GPU's kernel is made with.
    #[must_use]
    pub fn constant(&self) -> &[u8] {
        self.views.state.as_bytes()
    }

    /// The near side's queue pair, and the far side's.
    #[must_use]
    pub fn queue_pairs(&self) -> [&QueuePair; 2] {
        [&self.near[0], &self.far[0]]
    }

    /// One visit of a stepped worker that nobody else is at. True if anything was done.
    pub fn step(&self) -> bool {
        if !self.stepped {
            return false;
        }
        match self.worker.try_lock() {
            Ok(mut worker) => visit(&mut worker, &self.stop),
            Err(TryLockError::Poisoned(poisoned)) => visit(&mut poisoned.into_inner(), &self.stop),
            Err(TryLockError::WouldBlock) => false,
        }
    }

    /// What waiting threads do: step worker and NIC where nobody else does.
    pub fn relax(&self) -> impl Relax + use<'_> {
        LikeRelax(self)
    }

    /// Stops the worker. Every waiter is told, and so is everyone who waits from now on.
    pub fn stop(&self) {
        self.stop.store(true, Release);
        if let Some(thread) = lock(&self.thread).take() {
            // Visits don't block, so it ends with the one that it is at; what it died of was told.
            let _ = thread.join();
        }
        lock(&self.worker).end(Why::ProxyStopped);
    }

    /// Checks a failure word that a kernel left, and adds what the NIC knows of its cause.
    ///
    /// # Errors
    /// [`ProxyError::Device`] unless the word is 0.
    pub fn check(&self, word: u64) -> Result<(), ProxyError> {
        match Failure::unpack(word) {
            None => Ok(()),
            Some(failure) => {
                Err(ProxyError::Device { failure, cause: self.nic.cause(failure.qpn) })
            }
        }
    }
}

impl Drop for LikeProxy {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Words between two of the producers', so that no two share a line.
const WORDS_STRIDE: usize = 32;

/// Of each queue head and last known tail, and at the end where a GPU reaches the target itself: nowhere.
fn initial_words(peer: Peer, queues: u32, start: u64) -> Vec<u64> {
    let mut words = vec![0; (2 * queues as usize + 1) * WORDS_STRIDE];
    if peer != Peer::FabricLib {
        for word in 0..2 * queues as usize {
            words[word * WORDS_STRIDE] = start;
        }
    }
    words
}

/// What is posted or waits behind what is.
struct InFlight {
    request: Request,
    is_flush: bool,
}

/// Takes requests and posts them, one at a time.
struct Worker {
    consumer: Consumer,
    queue: Box<dyn SendQueue>,
    local: Region,
    remote: Region,
    /// Taken, and not posted: the send queue was full.
    taken: Option<(Request, SendWr)>,
    in_flight: VecDeque<InFlight>,
    ended: bool,
}

/// Completions that are polled in a visit at most.
const POLL: usize = 32;

impl Worker {
    /// True if anything was done.
    fn visit(&mut self) -> bool {
        if self.ended {
            return false;
        }
        let mut did = self.poll();
        // Behind what waits for room nothing overtakes.
        if self.taken.is_none() {
            did |= self.take();
        }
        did |= self.post();
        self.answer();
        did
    }

    fn poll(&mut self) -> bool {
        let mut found = [Completion::NONE; POLL];
        let n = self.queue.poll(&mut found);
        for completion in &found[..n] {
            if completion.ended != Ended::Done {
                self.fail(failure_of(completion));
                return true;
            }
            self.answer();
            if let Some(done) = self.in_flight.pop_front() {
                self.consumer.completed(&done.request);
            }
        }
        n > 0
    }

    /// Flushes that nothing is before any more.
    fn answer(&mut self) {
        while self.in_flight.front().is_some_and(|first| first.is_flush) {
            if let Some(done) = self.in_flight.pop_front() {
                self.consumer.completed(&done.request);
            }
        }
    }

    fn take(&mut self) -> bool {
        let request = match self.consumer.take() {
            Ok(None) => return false,
            Ok(Some(request)) => request,
            Err(why) => {
                self.end(why);
                return true;
            }
        };
        let Some(put) = request.put else {
            self.consumer.posted(&request);
            self.in_flight.push_back(InFlight { request, is_flush: true });
            return true;
        };
        let bytes = u64::from(put.bytes);
        let (local, remote) =
            match (self.local.at(put.local, bytes), self.remote.at(put.remote, bytes)) {
                (Ok(local), Ok(remote)) => (local, remote),
                _ => {
                    self.end(Why::BadOffset);
                    return true;
                }
            };
        let sge = Sge { address: local, bytes: put.bytes, lkey: self.local.lkey };
        let remote = RemoteAddr { address: remote, rkey: self.remote.rkey };
        let op = SendOp::Write(sge, remote);
        self.taken = Some((request, SendWr { wr_id: 0, op, signaled: true, fence: false }));
        true
    }

    fn post(&mut self) -> bool {
        let Some((request, wr)) = &self.taken else { return false };
        match self.queue.post(std::slice::from_ref(wr)) {
            Ok(0) => false,
            Ok(_) => {
                let request = *request;
                self.consumer.posted(&request);
                self.in_flight.push_back(InFlight { request, is_flush: false });
                self.taken = None;
                true
            }
            Err(_) => {
                self.end(Why::BadLength);
                true
            }
        }
    }

    fn fail(&mut self, failure: Failure) {
        self.ended = true;
        self.consumer.fail(failure.pack());
    }

    /// Ends the worker, and tells why, unless a failure was told before.
    fn end(&mut self, why: Why) {
        self.fail(Failure { why, qpn: 0, index: 0, syndrome: 0, vendor: 0 });
    }
}

/// A visit that survives its worker's death, and tells of it.
fn visit(worker: &mut Worker, stop: &AtomicBool) -> bool {
    if stop.load(Acquire) {
        worker.end(Why::ProxyStopped);
        return false;
    }
    match catch_unwind(AssertUnwindSafe(|| worker.visit())) {
        Ok(did) => did,
        Err(_) => {
            worker.end(Why::WorkerDied);
            false
        }
    }
}

fn run(worker: &Mutex<Worker>, nic: &dyn Nic, stop: &AtomicBool, cpu: Option<usize>) {
    if let Some(cpu) = cpu {
        device::host::pin(cpu);
    }
    let mut idle = 0u32;
    while !stop.load(Relaxed) {
        let did = visit(&mut lock(worker), stop);
        if nic.step() || did {
            idle = 0;
            continue;
        }
        idle = idle.wrapping_add(1);
        if idle.is_multiple_of(IDLE) {
            if nic.gone().is_some() {
                lock(worker).end(Why::NicGone);
            }
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }
}

struct LikeRelax<'a>(&'a LikeProxy);

impl Relax for LikeRelax<'_> {
    fn relax(&self, spins: u32) {
        let proxy = self.0;
        if !proxy.step() && spins % IDLE == IDLE - 1 && proxy.stepped && proxy.nic.gone().is_some()
        {
            lock(&proxy.worker).end(Why::NicGone);
        }
        proxy.nic.relax(spins);
    }
}
