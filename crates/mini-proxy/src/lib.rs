//! mini-proxy: the smallest CPU-proxied RDMA transport.
//!
//! The submitter's threads write 16-byte descriptors into rings (`gic/proxy.hpp`); CPU workers drain the rings,
//! post chains of work requests and follow them to completion. This room is the CPU's part: rings, workers,
//! their queue pairs, and the views that device code is handed. Which NIC executes is not known here, and no
//! WQE is built here: work requests go through [`rdma::post::SendQueue`].
//!
//! ```
//! use device::proxy::*;
//! use mini_proxy::{ChannelAttr, Proxy, ProxyAttr};
//! use rdma::{Access, Memory, Nic, soft::{Fabric, FabricAttr}};
//!
//! let fabric = Fabric::open(&FabricAttr::default())?;
//! let (near, far) = (fabric.nic(0).clone(), fabric.nic(1).clone());
//! let local = near.register(&Memory::zeroed(4096), Access::empty())?;
//! let remote = far.register(&Memory::zeroed(4096), Access::REMOTE_WRITE)?;
//! let channels = vec![ChannelAttr { local: local.clone(), remote: remote.clone(), signal: None }];
//! let proxy = Proxy::connect(near, far.as_ref(), &ProxyAttr { channels, ..ProxyAttr::default() })?;
//!
//! // Ten 8-byte puts by one thread; while it waits it drives the worker and the NIC.
//! let (mut enqueue, mut total, mut failure) = (vec![0u64; 10], vec![0u64; 10], 0u64);
//! let args = EnqueueArgs {
//!     ring: proxy.device_views(), rings: 1, threads: 1, channel: 0, bytes: 8, slots: 10, stride: 8,
//!     warmup: 0, samples: 10, first: 1, local: local.address,
//!     enqueue: enqueue.as_mut_ptr(), total: total.as_mut_ptr(), failure: &raw mut failure,
//!     until: Until::Completed,
//! };
//! let kernel = ProxyKernel::Enqueue(ProxyOp::Put, &args);
//! // SAFETY: the buffers outlive the launch and hold as many samples as the arguments say.
//! unsafe { device::proxy::launch(&ProxyChoice::default(), kernel, &[], Some(&proxy.relax()))? };
//! proxy.check(failure)?;
//! assert_eq!(remote.memory.word(9 * 8).load(std::sync::atomic::Ordering::Acquire), 10);
//! assert_eq!(proxy.counters().completed, 10);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![deny(unsafe_code, reason = "rings are reached through safe, atomic words")]

mod attr;
pub mod like;
pub mod ring;
mod worker;

pub use attr::{ChannelAttr, Drive, ProxyAttr, ProxyError};

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::thread::JoinHandle;

use device::cuda::CudaError;
use device::host::Relax;
use device::proxy::{Handoff, ProxyChannel, RingState, RingView};
use device::shared::Shared;
use device::view::{Failure, Why};
use rdma::post::SendQueue;
use rdma::{Access, CqKind, Destination, Memory, Nic, Places, QueuePair, QueuePairAttr, Region};

use ring::{Consumer, RingLayout};
use worker::{Built, Cells, Channel, Ring, Source, Worker, failure_of};

/// What a proxy has done. Workers count on their own; the sums are not of one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Descriptors taken into chains.
    pub taken: u64,
    /// Descriptors whose slots were released: all of their requests were posted.
    pub posted: u64,
    /// Descriptors told to be completed.
    pub completed: u64,
    /// Chains posted.
    pub chains: u64,
    /// Doorbells rung.
    pub doorbells: u64,
    /// Work requests posted.
    pub requests: u64,
    /// Completions polled.
    pub completions: u64,
    /// Times that a send queue had no room for all of a chain.
    pub full: u64,
}

/// Rings, workers and connected queue pairs.
pub struct Proxy {
    nic: Arc<dyn Nic>,
    /// Workers that are stepped by who waits.
    stepped: Vec<Mutex<Worker>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    stop: Arc<AtomicBool>,
    cells: Vec<Arc<Cells>>,
    near: Vec<Arc<QueuePair>>,
    far: Vec<Arc<QueuePair>>,
    views: Views,
    // What views and requests point into.
    _rings: Vec<Arc<Memory>>,
    _results: Region,
    _regions: Vec<ChannelAttr>,
}

/// Views, and what they point into.
struct Views {
    views: Box<[RingView]>,
    /// The same where device code reads them.
    device: Shared<RingView>,
    _states: Shared<RingState>,
    _channels: Shared<ProxyChannel>,
}

mod sendable {
    #![allow(unsafe_code, reason = "see below")]
    // SAFETY: what isn't Send by itself are the addresses in the views. They lead to memory that the proxy keeps
    // alive, wherever it is moved, and no safe code follows them. Device code does, under the contract of its
    // launch: what producers or a worker share with it is accessed atomically, and what one producer alone has
    // belongs to its thread.
    unsafe impl Send for super::Views {}
    // SAFETY: as above.
    unsafe impl Sync for super::Views {}
}

impl Proxy {
    /// Makes rings, workers and their queue pairs from `near` to `far`, and starts the workers.
    ///
    /// # Errors
    /// Attributes that don't go together, a NIC that has no room, or threads that can't be started.
    pub fn connect(
        near: Arc<dyn Nic>,
        far: &dyn Nic,
        attr: &ProxyAttr,
    ) -> Result<Self, ProxyError> {
        attr.check()?;
        let built = attr.choice.handoff == Handoff::ProducerCounter;
        if built && !near.has_open_queues() {
            return Err(ProxyError::Nic {
                what: format!("hand-off `{}`", attr.choice.handoff),
                source: rdma::Error::QueuesClosed { nic: near.name(), who: "its producers" },
            });
        }
        let channels = attr.channels.len();
        let made = |what: &str, bytes| {
            rdma::memory(&attr.rings_in, bytes)
                .map_err(|source| ProxyError::Nic { what: what.to_owned(), source })
        };
        let shared = |source: CudaError| ProxyError::Nic {
            what: "state of the rings".to_owned(),
            source: source.into(),
        };
        let results = near
            .register(&made("results of signals", 8 * channels)?, Access::empty())
            .map_err(|source| ProxyError::Nic { what: "results of signals".to_owned(), source })?;
        let result = |channel: usize| results.address + 8 * channel as u64;
        let mut pairs =
            Pairs { near: near.as_ref(), far, attr, nears: Vec::new(), fars: Vec::new() };

        let (mut rings, mut views) = (Vec::new(), Vec::new());
        let states = vec![RingState::starting_at(attr.start); attr.rings as usize];
        let states = Shared::at(&attr.state, &states).map_err(shared)?;
        let device_channels: Vec<ProxyChannel> = attr
            .channels
            .iter()
            .enumerate()
            .map(|(i, channel)| ProxyChannel {
                local: channel.local.address,
                remote: channel.remote.address,
                signal: channel.signal.as_ref().map_or(0, |(r, offset)| r.address + offset),
                result: result(i),
                lkey: channel.local.lkey,
                rkey: channel.remote.rkey,
                signal_rkey: channel.signal.as_ref().map_or(0, |(r, _)| r.rkey),
                result_lkey: results.lkey,
            })
            .collect();
        let device_channels = Shared::at(&attr.state, &device_channels).map_err(shared)?;
        let requests: Arc<[_]> = attr.requests.clone().into();
        let deadline = attr.clock.ticks(attr.deadline);
        let blocks = 1usize << attr.log_blocks.min(15);
        let mut of_worker: Vec<Vec<Ring>> = (0..attr.workers).map(|_| Vec::new()).collect();
        let state = states.as_ptr();
        for number in 0..attr.rings {
            let log_depth = if built { attr.log_blocks } else { attr.depth.trailing_zeros() };
            let pair = if built {
                Some(pairs.connect(&format!("ring {number}"), attr.start)?)
            } else {
                None
            };
            let layout = RingLayout::of(log_depth);
            let memory = made("a ring", layout.bytes)?;
            let at = |offset: usize| memory.as_ptr().wrapping_add(offset);
            views.push(RingView {
                slots: pair.as_ref().map_or(at(layout.slots), |qp| qp.areas.sq.ptr()),
                flags: at(layout.flags).cast(),
                counter: at(layout.counter).cast(),
                progress: at(layout.progress),
                state: state.wrapping_add(number as usize),
                channels: device_channels.as_ptr().cast_const(),
                deadline,
                log_depth,
                channel_count: channels as u32,
                number,
                qpn: pair.as_ref().map_or(0, |qp| qp.qpn),
            });
            let source = match pair {
                Some(qp) => Source::Built(Box::new(Built { qp, rung: attr.start, consumer: 0 })),
                None if attr.choice.handoff == Handoff::MappedCounter => {
                    Source::Known(Arc::clone(&requests))
                }
                None => Source::Slots,
            };
            let consumer =
                Consumer::new(Arc::clone(&memory), attr.choice.handoff, log_depth, attr.start);
            let window = (1 << log_depth) + (blocks * channels).min(1 << 16);
            of_worker[(number % attr.workers) as usize]
                .push(Ring::new(consumer, source, number, window));
            rings.push(memory);
        }

        let (mut workers, mut cells) = (Vec::new(), Vec::new());
        for (worker, rings) in of_worker.into_iter().enumerate() {
            let mut queues: Vec<Box<dyn SendQueue>> = Vec::new();
            let mut ready = Vec::new();
            for (i, channel) in attr.channels.iter().enumerate() {
                ready.push(Channel::of(channel, i, result(i), results.lkey));
                if built {
                    continue;
                }
                let what = format!("worker {worker}, channel {i}");
                let qp = pairs.connect(&what, attr.sq_start)?;
                let queue = near.send_queue(&qp);
                queues.push(queue.map_err(|source| ProxyError::Nic { what, source })?);
            }
            let counters = Arc::new(Cells::default());
            let worker = Worker::new(
                rings,
                queues,
                ready,
                attr.chain,
                attr.signal_every,
                Arc::clone(&counters),
            );
            workers.push(worker);
            cells.push(counters);
        }

        let (nears, fars) = (pairs.nears, pairs.fars);
        let stop = Arc::new(AtomicBool::new(false));
        let mut proxy = Self {
            nic: near,
            stepped: Vec::new(),
            threads: Mutex::new(Vec::new()),
            stop,
            cells,
            near: nears,
            far: fars,
            views: Views {
                device: Shared::at(&attr.state, &views).map_err(shared)?,
                views: views.into(),
                _states: states,
                _channels: device_channels,
            },
            _rings: rings,
            _results: results,
            _regions: attr.channels.clone(),
        };
        match &attr.drive {
            Drive::Stepped => proxy.stepped = workers.into_iter().map(Mutex::new).collect(),
            Drive::Threads { cpus } => proxy.start(workers, cpus)?,
        }
        Ok(proxy)
    }

    fn start(&self, workers: Vec<Worker>, cpus: &[usize]) -> Result<(), ProxyError> {
        for (i, worker) in workers.into_iter().enumerate() {
            let cpu = (!cpus.is_empty()).then(|| cpus[i % cpus.len()]);
            let (nic, stop) = (Arc::clone(&self.nic), Arc::clone(&self.stop));
            let thread = std::thread::Builder::new()
                .name(format!("proxy-{i}"))
                .spawn(move || run(worker, nic.as_ref(), &stop, cpu))
                // Dropping the proxy ends those that were started.
                .map_err(|source| ProxyError::Thread { worker: i as u32, source })?;
            lock(&self.threads).push(thread);
        }
        Ok(())
    }

    /// What device code is handed, one a ring, for the host to look at.
    #[must_use]
    pub fn views(&self) -> &[RingView] {
        &self.views.views
    }

    /// The same where device code reads it. Valid while this value lives.
    #[must_use]
    pub fn device_views(&self) -> *const RingView {
        self.views.device.as_ptr()
    }

    /// The near side's queue pairs: by worker, then by channel; with [`Handoff::ProducerCounter`] by ring.
    #[must_use]
    pub fn queue_pairs(&self) -> &[Arc<QueuePair>] {
        &self.near
    }

    /// Their peers.
    #[must_use]
    pub fn peers(&self) -> &[Arc<QueuePair>] {
        &self.far
    }

    /// What has been done.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.cells.iter().fold(Counters::default(), |sum, cells| Counters {
            taken: sum.taken + cells.taken.load(Relaxed),
            posted: sum.posted + cells.posted.load(Relaxed),
            completed: sum.completed + cells.completed.load(Relaxed),
            chains: sum.chains + cells.chains.load(Relaxed),
            doorbells: sum.doorbells + cells.doorbells.load(Relaxed),
            requests: sum.requests + cells.requests.load(Relaxed),
            completions: sum.completions + cells.completions.load(Relaxed),
            full: sum.full + cells.full.load(Relaxed),
        })
    }

    /// One visit of each stepped worker that nobody else is at. True if anything was done.
    pub fn step(&self) -> bool {
        let mut did = false;
        for worker in &self.stepped {
            let mut worker = match worker.try_lock() {
                Ok(worker) => worker,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => continue,
            };
            did |= visit(&mut worker, &self.stop);
        }
        did
    }

    /// What waiting threads do: step workers and NIC where nobody else does.
    pub fn relax(&self) -> impl Relax + use<'_> {
        ProxyRelax([self])
    }

    /// The same where several proxies take part, as in a round trip.
    pub fn relax_all<'a>(proxies: [&'a Self; 2]) -> impl Relax + use<'a> {
        ProxyRelax(proxies)
    }

    /// Stops the workers. Every waiter is told, and so is everyone who waits from now on.
    pub fn stop(&self) {
        self.stop.store(true, Release);
        for worker in &self.stepped {
            lock(worker).end(Why::ProxyStopped);
        }
        for thread in lock(&self.threads).drain(..) {
            // Visits don't block, so it ends with the one that it is at; what it died of was told.
            let _ = thread.join();
        }
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

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Makes and connects queue pairs.
struct Pairs<'a> {
    near: &'a dyn Nic,
    far: &'a dyn Nic,
    attr: &'a ProxyAttr,
    nears: Vec<Arc<QueuePair>>,
    fars: Vec<Arc<QueuePair>>,
}

impl Pairs<'_> {
    fn connect(&mut self, whose: &str, start: u64) -> Result<Arc<QueuePair>, ProxyError> {
        let failed = |what: &str| {
            let what = format!("{whose}: {what}");
            move |source| ProxyError::Nic { what, source }
        };
        let connect = self.attr.connect;
        let near = self
            .near
            .create_queue_pair(&QueuePairAttr {
                log_blocks: self.attr.log_blocks,
                cq_kind: CqKind::Ring,
                log_cq: self.attr.log_blocks,
                start,
                // The worker follows them, and so does a producer that builds WQEs.
                places: Places::all(&self.attr.rings_in),
                ..QueuePairAttr::default()
            })
            .map_err(failed("near queue pair"))?;
        let far = self
            .far
            .create_queue_pair(&QueuePairAttr {
                log_blocks: 2,
                log_receives: self.attr.log_receives,
                ..QueuePairAttr::default()
            })
            .map_err(failed("far queue pair"))?;
        let mirrored =
            rdma::ConnectAttr { sq_psn: connect.rq_psn, rq_psn: connect.sq_psn, ..connect };
        let back = Destination { nic: self.near.address(), qpn: near.qpn };
        self.far.connect(&far, back, &mirrored).map_err(failed("connecting the far side"))?;
        let to = Destination { nic: self.far.address(), qpn: far.qpn };
        self.near.connect(&near, to, &connect).map_err(failed("connecting"))?;
        let near = Arc::new(near);
        self.nears.push(Arc::clone(&near));
        self.fars.push(Arc::new(far));
        Ok(near)
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

/// Idle visits between two looks at whether the NIC is still there, each of which gives the core away.
const IDLE: u32 = 1024;

fn run(mut worker: Worker, nic: &dyn Nic, stop: &AtomicBool, cpu: Option<usize>) {
    if let Some(cpu) = cpu {
        device::host::pin(cpu);
    }
    let mut idle = 0u32;
    while !stop.load(Acquire) {
        let did = visit(&mut worker, stop);
        if nic.step() || did {
            idle = 0;
            continue;
        }
        idle = idle.wrapping_add(1);
        if idle.is_multiple_of(IDLE) {
            if nic.gone().is_some() {
                worker.end(Why::NicGone);
            }
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }
    worker.end(Why::ProxyStopped);
}

struct ProxyRelax<'a, const N: usize>([&'a Proxy; N]);

impl<const N: usize> Relax for ProxyRelax<'_, N> {
    fn relax(&self, spins: u32) {
        for proxy in self.0 {
            if !proxy.step() && spins % IDLE == IDLE - 1 && proxy.nic.gone().is_some() {
                for worker in &proxy.stepped {
                    lock(worker).end(Why::NicGone);
                }
            }
            proxy.nic.relax(spins);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
