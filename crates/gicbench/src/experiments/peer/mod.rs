//! The bench of the libraries' paths: a library's own device code on queues of this NIC.
//!
//! What is measured, and how it is checked, is what [`gda`](super::gda)'s and [`proxy`](super::proxy)'s benches do;
//! the kernels are the adapter's.

mod possible;
mod worker;

use std::sync::Arc;
use std::time::Duration;

use device::choice::Order;
use device::cuda::Module;
use device::shared::Shared;
use peers::{
    Adapter, Compiled, Failure, LatencyArgs, OrderScope, PathKind, PeerOp, PeerPath, Queue,
    RateArgs, RateLanes, RoundTripArgs, Scope, SendQueue, Side, State, StateLibrary, Toolchain,
    Variant,
};
use rdma::post::SendPoster;
use rdma::{
    ConnectAttr, CqKind, DcTarget, Destination, Nic, Places, QueuePair, QueuePairAttr, Region,
    Transport,
};

use crate::axes::AxisId;
use crate::context::RunContext;
use crate::measurement::{Measurement, MemoryKind};
use crate::peer;
use crate::point::{NEEDS_GPU_THREADS, Point, PointError};
use crate::quantity::{MMsgs, Micros};

use super::gda::{LAUNCH, LEAST_ON_GPU, SETTLE};
use super::payload::{Slots, fill};
use super::rig::{Need, Rig, broke};
pub(super) use possible::{has_operation, has_put, has_rate};
use worker::{Posting, Worker};

/// What a bench is made for.
pub(super) struct Spec {
    /// Bytes of one operation.
    pub bytes: u32,
    /// Queue pairs.
    pub qps: u32,
    /// Threads that call the library.
    pub threads: u32,
    /// Payload slots a thread.
    pub slots: u64,
    /// Both sides post.
    pub two_sided: bool,
}

impl Spec {
    /// One thread, one queue pair, one side.
    pub fn one(bytes: u32) -> Self {
        Spec { bytes, qps: 1, threads: 1, slots: 256, two_sided: false }
    }
}

/// log2 of a send queue's blocks: the depth that the libraries default to.
const LOG_BLOCKS: u32 = 10;
/// Behind the slots, each in a line of its own: what arrives in a round trip, what is sent in one, and the word that
/// signals add to, which is the region's last.
const BEHIND: u64 = 3 * 64;
/// Of payloads: what a library may ask for.
const ALIGNMENT: u64 = 16;
const DC_KEY: u64 = 0x6769_6362_656e_6368;

pub(super) struct Bench {
    adapter: &'static Adapter,
    variant: &'static Variant,
    compiled: Compiled,
    library: Arc<StateLibrary>,
    // Dropped before the queues and the memory that they use.
    workers: Vec<Worker>,
    sides: Vec<OneSide>,
    _unused: Vec<QueuePair>,
    _target: Option<DcTarget>,
    /// Near and far.
    regions: [Region; 2],
    spec: Spec,
    slots: Slots,
    failures: Shared<u64>,
    next: u64,
    signals: u64,
    wrong: u64,
    rig: Rig,
}

/// A side that posts.
struct OneSide {
    module: Module,
    state: Arc<State>,
    _queues: Vec<Arc<QueuePair>>,
}

/// The library's path and variant of a point.
pub(super) fn variant(point: &Point) -> Result<(&'static PeerPath, &'static Variant), PointError> {
    let (_, path) = peer::path(point.transport)
        .ok_or_else(|| PointError::failed(format!("{} is no library's path", point.transport)))?;
    let name = point.word(AxisId::Variant)?;
    let variant = path
        .variant(name)
        .ok_or_else(|| PointError::failed(format!("{} has no variant {name}", path.name)))?;
    Ok((path, variant))
}

impl Bench {
    pub fn new(ctx: &mut RunContext, point: &Point, spec: Spec) -> Result<Self, PointError> {
        let not_run = |error: peers::PeerError| PointError::not_run(error.to_string());
        let (adapter, _) = peer::path(point.transport)
            .ok_or_else(|| PointError::failed(format!("{} is no library's", point.transport)))?;
        let (_, variant) = variant(point)?;
        let posts = variant.queue == Queue::Cpu;
        let sides = if spec.two_sided { 2 } else { 1 };
        let rig = Rig::open(
            ctx,
            point,
            &Need {
                // Those of the other side, too; a library may want queues to itself.
                qps: 4 * spec.qps,
                submitters: spec.threads as usize,
                workers: if posts { sides } else { 0 },
                ringers: if variant.cpu_rings { sides } else { 0 },
                virtual_time: false,
            },
        )?;
        rig.completes()?;
        let Some(gpu) = rig.gpu() else {
            return Err(PointError::not_run(NEEDS_GPU_THREADS));
        };
        let paths = peer::paths(ctx.peer_paths()).map_err(broke)?;
        let tools = Toolchain::find().map_err(not_run)?;
        let arch = gpu.info().arch;
        let compiled = Compiled::new(adapter, &paths, Some(arch), &tools).map_err(not_run)?;
        let library = StateLibrary::load(adapter.title, &compiled.state).map_err(not_run)?;
        let slots = Slots::new(spec.bytes, spec.slots.max(LEAST_ON_GPU), spec.threads);
        let slots = slots.aligned(ALIGNMENT);
        let bytes = slots.length().next_multiple_of(64) + BEHIND as usize;
        let regions = [rig.region(&rig.near, bytes)?, rig.region(&rig.far, bytes)?];
        for region in &regions {
            fill(region, ctx.seed())?;
            region.memory.write(bytes - 64, &[0; 64]).map_err(broke)?;
        }
        let mut bench = Bench {
            failures: rig.words(spec.threads.max(2) as usize)?,
            rig,
            adapter,
            variant,
            compiled,
            library,
            workers: Vec::new(),
            sides: Vec::new(),
            _unused: Vec::new(),
            _target: None,
            regions,
            spec,
            slots,
            next: 1,
            signals: 0,
            wrong: 0,
        };
        bench.connect()?;
        Ok(bench)
    }

    /// Queue pairs, and on top of them the library's state on each side that posts.
    fn connect(&mut self) -> Result<(), PointError> {
        let queues = self.library.queues(self.variant.number, self.spec.qps);
        let dc = self.variant.queue == Queue::DcCollapsed;
        if dc {
            let access = ConnectAttr::default().access;
            self._target = Some(self.rig.far.create_dc_target(DC_KEY, access).map_err(broke)?);
        }
        let attr = self.queue_attr(0);
        let mut pairs: [Vec<Arc<QueuePair>>; 2] = [Vec::new(), Vec::new()];
        for _ in &queues {
            let near = self.rig.near.create_queue_pair(&attr).map_err(broke)?;
            let to = if dc {
                Destination { nic: self.rig.far.address(), qpn: 0 }
            } else {
                let far_attr = if self.spec.two_sided {
                    self.queue_attr(1)
                } else {
                    QueuePairAttr {
                        log_blocks: 2,
                        places: self.rig.peers(),
                        ..QueuePairAttr::default()
                    }
                };
                let far = self.rig.far.create_queue_pair(&far_attr).map_err(broke)?;
                let back = Destination { nic: self.rig.near.address(), qpn: near.qpn };
                self.rig.far.connect(&far, back, &ConnectAttr::default()).map_err(broke)?;
                let to = Destination { nic: self.rig.far.address(), qpn: far.qpn };
                pairs[1].push(Arc::new(far));
                to
            };
            self.rig.near.connect(&near, to, &ConnectAttr::default()).map_err(broke)?;
            pairs[0].push(Arc::new(near));
        }
        let cubin = self.compiled.cubin.as_deref().map(std::fs::read);
        let cubin = cubin.transpose().map_err(broke)?.unwrap_or_default();
        let mut workers_cpus = self.rig.cpus.workers.clone().into_iter();
        for (me, mine) in pairs.into_iter().enumerate() {
            if me == 1 && !self.spec.two_sided {
                // They execute and acknowledge.
                self._unused.extend(mine.into_iter().filter_map(|qp| Arc::try_unwrap(qp).ok()));
                continue;
            }
            let [own, other] = if me == 0 { [0, 1] } else { [1, 0] };
            let side = Side {
                variant: self.variant.number,
                me: me as u32,
                queues: mine
                    .iter()
                    .zip(&queues)
                    .map(|(qp, to_self)| view(qp, if *to_self { own } else { other }))
                    .collect(),
                local: self.regions[own].address,
                bytes: self.regions[own].length,
                remote: self.regions[other].address,
                lkey: self.regions[own].lkey,
                rkey: self.regions[other].rkey,
                own_rkey: self.regions[own].rkey,
                producers: self.spec.threads,
                address_vector: self
                    ._target
                    .as_ref()
                    .map_or([0; 48], |target| zerocopy::transmute!(target.address_vector())),
            };
            let kept = self.rig.place_on(me, MemoryKind::Gpu);
            let host = self.rig.place_on(me, MemoryKind::Host);
            let state = State::build(&self.library, &side, &kept, &host).map_err(broke)?;
            let Some(gpu) = self.rig.gpu_of(me) else { return Ok(()) };
            let module = gpu.module(&cubin).map_err(broke)?;
            for (name, value) in state.symbols() {
                module.set(name, value).map_err(broke)?;
            }
            if self.variant.queue == Queue::Cpu || self.variant.cpu_rings {
                let consumer = state.consume().ok_or_else(|| {
                    PointError::failed(format!(
                        "the adapter of {} has no CPU side",
                        self.adapter.title
                    ))
                })?;
                let nic = if me == 0 { &self.rig.near } else { &self.rig.far };
                let posting = match (self.variant.queue, mine.first()) {
                    (Queue::Cpu, Some(qp)) => Some(Posting {
                        poster: SendPoster::new(Arc::clone(qp)).map_err(broke)?,
                        nic: Arc::clone(nic),
                        source: self.regions[own].clone(),
                        target: self.regions[other].clone(),
                        result: self.rig.region_in(nic, 64, MemoryKind::Host)?,
                    }),
                    _ => None,
                };
                self.workers.push(Worker::start(consumer, posting, workers_cpus.next())?);
            }
            self.sides.push(OneSide { module, state, _queues: mine });
        }
        Ok(())
    }

    /// Of a side that posts.
    fn queue_attr(&self, side: usize) -> QueuePairAttr {
        let host = self.rig.place_on(side, MemoryKind::Host);
        let (transport, cq_kind) = match self.variant.queue {
            Queue::RcCollapsed => (Transport::Rc, CqKind::Collapsed),
            Queue::RcRing => (Transport::Rc, CqKind::OverrunRing),
            Queue::DcCollapsed => (Transport::Dci, CqKind::Collapsed),
            Queue::Cpu => (Transport::Rc, CqKind::Ring),
        };
        let mut places = self.rig.queues_on(side);
        if self.variant.queue == Queue::Cpu {
            places = Places::all(&host);
        } else if self.variant.cpu_rings {
            // A CPU writes the record and rings.
            places.record = host.clone();
            places.doorbell = host;
        }
        QueuePairAttr {
            transport,
            log_blocks: LOG_BLOCKS,
            cq_kind,
            log_cq: if cq_kind == CqKind::Collapsed { 1 } else { LOG_BLOCKS },
            places,
            ..QueuePairAttr::default()
        }
    }

    /// One operation at a time and thread, until the point has been sampled enough: issue times, and times with
    /// completion.
    pub fn latency(
        &mut self,
        ctx: &RunContext,
        op: PeerOp,
    ) -> Result<(Vec<Micros>, Vec<Micros>), PointError> {
        let entry = self.variant.entry("latency", op.name());
        let program = self.sides[0].module.program::<LatencyArgs>(&entry).map_err(broke)?;
        let threads = u64::from(self.spec.threads);
        let most = self.slots.slots;
        let (mut issue, mut total) = (Vec::new(), Vec::new());
        let mut warmup = ctx.warmup().div_ceil(threads);
        let mut sampling = None;
        loop {
            ctx.go_on("the warm-up")?;
            let ops = match &mut sampling {
                None if warmup > 0 => warmup.min(most),
                slot => {
                    let sampling = slot.get_or_insert_with(|| ctx.sampling());
                    sampling.next(most * threads, "completions")?.div_ceil(threads)
                }
            };
            if ops == 0 {
                return Ok((issue, total));
            }
            let each = SETTLE + ops;
            let first = self.next;
            self.next += each * threads;
            let ticks = [
                self.rig.words((ops * threads) as usize)?,
                self.rig.words((ops * threads) as usize)?,
            ];
            let args = LatencyArgs {
                state: self.sides[0].state.address(),
                threads: self.spec.threads,
                bytes: self.spec.bytes,
                slots: self.slots.slots,
                stride: self.slots.stride,
                warmup: SETTLE,
                samples: ops,
                first,
                local: self.regions[0].address,
                remote: self.regions[1].address,
                issue: ticks[0].as_ptr(),
                total: ticks[1].as_ptr(),
                failure: self.failures.as_ptr(),
            };
            let hertz = self.launch(ctx, |gpu| {
                // SAFETY: buffers, state and queues outlive the launch and have the sizes that are said.
                unsafe { program.start(gpu, &args, self.spec.threads, 1) }.map(|near| (near, None))
            })?;
            if sampling.is_some() {
                for (ticks, into) in ticks.iter().zip([&mut issue, &mut total]) {
                    let ticks = ticks.read().map_err(broke)?;
                    into.extend(ticks.iter().map(|t| Micros::from_ticks(*t, hertz)));
                }
            } else {
                warmup -= ops;
            }
            if ctx.check() {
                self.wrong += self.wrong_slots(first, each)?;
                if op == PeerOp::PutSignal {
                    let expected = self.signals + each * threads;
                    self.signals = self.signalled()?;
                    self.wrong += expected.abs_diff(self.signals);
                }
            }
        }
    }

    /// Many operations; one sample a launch.
    pub fn rate(
        &mut self,
        ctx: &RunContext,
        batch: u32,
        warp: bool,
    ) -> Result<Vec<MMsgs>, PointError> {
        let suffix = if warp { "warp" } else { "" };
        let entry = self.variant.entry("rate", suffix);
        let program = self.sides[0].module.program::<RateArgs>(&entry).map_err(broke)?;
        let threads = self.spec.threads;
        let lanes = if warp { 32 } else { 1 };
        let round = |ops: u64| ops.div_ceil(u64::from(batch)).max(1) * u64::from(batch);
        let mut most = round(4096 / u64::from(threads));
        let mut rates = Vec::new();
        let mut warm = false;
        let mut sampling = ctx.sampling();
        loop {
            let ops = if warm {
                round(
                    sampling
                        .next(most * u64::from(threads), "completions")?
                        .div_ceil(threads.into()),
                )
            } else {
                most
            };
            if warm && (sampling.is_over() || ctx.interrupt().is_set()) && !rates.is_empty() {
                return Ok(rates);
            }
            let (start, end) =
                (self.rig.words(threads as usize)?, self.rig.words(threads as usize)?);
            let arrived = self.rig.words(1)?;
            let first = self.next;
            self.next += ops * u64::from(threads);
            let args = RateArgs {
                state: self.sides[0].state.address(),
                threads,
                lanes,
                batch,
                bytes: self.spec.bytes,
                ops,
                slots: self.slots.slots,
                stride: self.slots.stride,
                first,
                local: self.regions[0].address,
                remote: self.regions[1].address,
                start: start.as_ptr(),
                end: end.as_ptr(),
                failure: self.failures.as_ptr(),
                arrived: arrived.as_ptr().cast(),
                deadline: self.deadline(ctx)?,
            };
            self.launch(ctx, |gpu| {
                // SAFETY: as in `latency`.
                unsafe { program.start(gpu, &args, threads, lanes) }.map(|near| (near, None))
            })?;
            if ctx.check() {
                self.wrong += self.wrong_slots(first, ops)?;
            }
            let all = ops * u64::from(threads);
            let time = self.rig.span(&start, &end)?;
            if warm {
                rates.push(MMsgs::over(all, time));
            } else {
                let per_second = all as f64 / time.as_secs_f64().max(1e-9);
                let fit = (per_second * LAUNCH.as_secs_f64()) as u64 / u64::from(threads);
                most = round(fit.min(1 << 22));
                warm = true;
                sampling = ctx.sampling();
            }
        }
    }

    /// A put of 8 bytes and the other side's in reply.
    pub fn round_trip(&mut self, ctx: &RunContext) -> Result<Vec<Micros>, PointError> {
        let entry = self.variant.entry("round_trip", "");
        let mut programs = Vec::new();
        for side in &self.sides {
            programs.push(side.module.program::<RoundTripArgs>(&entry).map_err(broke)?);
        }
        let inbox = self.slots.length().next_multiple_of(64) as u64;
        let mut samples = Vec::new();
        let mut warmup = ctx.warmup();
        let mut sampling = ctx.sampling();
        loop {
            let warming = warmup > 0;
            let most = if warming { warmup.min(LEAST_ON_GPU) } else { LEAST_ON_GPU };
            let ops = if warming { most } else { sampling.next(most, "replies")? };
            if ops == 0 {
                return Ok(samples);
            }
            for region in &self.regions {
                region.memory.write(inbox as usize, &[0; 64]).map_err(broke)?;
            }
            let ticks = self.rig.words(ops as usize)?;
            let deadline = self.deadline(ctx)?;
            let args = |side: usize| RoundTripArgs {
                state: self.sides[side].state.address(),
                side: side as u32,
                pad: 0,
                warmup: SETTLE,
                samples: ops,
                inbox: self.regions[side].address + inbox,
                outbox: self.regions[side].address + inbox + 64,
                remote: self.regions[1 - side].address + inbox,
                ticks: ticks.as_ptr(),
                failure: self.failures.as_ptr().wrapping_add(side),
                deadline,
            };
            let (near, far) = (args(0), args(1));
            let hertz = self.launch(ctx, |gpu| {
                let there = self.rig.gpu_of(1).unwrap_or(gpu);
                // SAFETY: as in `latency`; each side has its own state.
                let answering = unsafe { programs[1].start(there, &far, 1, 1) }?;
                // SAFETY: as above.
                let asking = unsafe { programs[0].start(gpu, &near, 1, 1) }?;
                Ok((asking, Some(answering)))
            })?;
            if warming {
                warmup -= ops;
                sampling = ctx.sampling();
            } else {
                let ticks = ticks.read().map_err(broke)?;
                samples.extend(ticks.iter().map(|t| Micros::from_ticks(*t, hertz)));
            }
        }
    }

    /// Ticks that a wait of the harness may take.
    fn deadline(&self, ctx: &RunContext) -> Result<u64, PointError> {
        let left = ctx.remaining("a launch")?.min(Duration::from_secs(10));
        Ok(self.rig.clock.ticks(left))
    }

    fn launch(
        &self,
        ctx: &RunContext,
        start: impl FnOnce(
            &Arc<device::cuda::Gpu>,
        ) -> Result<
            (device::cuda::Running, Option<device::cuda::Running>),
            device::cuda::CudaError,
        >,
    ) -> Result<f64, PointError> {
        let Some(gpu) = self.rig.gpu() else {
            return Err(PointError::not_run("a library's device code runs on GPU threads"));
        };
        self.failures.write(&vec![0; self.failures.len()]).map_err(broke)?;
        let check = |word| Failure::of(word).map_or(Ok(()), |failure| Err(broke(failure)));
        let near = self.rig.near.as_ref();
        let drives = NicRelax(near);
        let relax: &dyn device::host::Relax = &drives;
        self.rig.on_the_gpu(ctx, &self.failures, &check, |until, give_up| {
            let (first, second) = start(gpu)?;
            let gives_up = || give_up() || self.workers.iter().any(Worker::has_failed);
            let launched = first.wait(until, Some(relax), &gives_up)?;
            if let Some(second) = second {
                second.wait(until, Some(relax), &gives_up)?;
            }
            Ok(launched)
        })
    }

    fn wrong_slots(&self, first: u64, each: u64) -> Result<u64, PointError> {
        let [source, target] = &self.regions;
        self.slots.wrong(target, source, 0..u64::from(self.spec.threads), first, each)
    }

    /// What signals have added up to, in whichever of the last words of the payload memory.
    fn signalled(&self) -> Result<u64, PointError> {
        let mut words = [[0u8; 8]; 8];
        let at = self.regions[1].length as usize - 64;
        self.regions[1].memory.read(at, words.as_flattened_mut()).map_err(broke)?;
        Ok(words.into_iter().map(u64::from_le_bytes).fold(0, u64::wrapping_add))
    }

    /// What every measurement of this bench has in common.
    pub fn finish(
        &self,
        ctx: &RunContext,
        measurement: Measurement,
    ) -> Result<Measurement, PointError> {
        let order = match self.variant.safety.order {
            OrderScope::None => Order::None,
            OrderScope::Gpu => Order::GpuRelease,
            OrderScope::System => Order::SystemFence,
        };
        // Also where a CPU posts: what it takes and what the NIC then reads is this order's.
        let unsafe_order = self.rig.unsafe_order(order);
        let mut measurement = self.rig.finish_foreign(measurement, unsafe_order)?;
        if ctx.check() {
            measurement = measurement.checked(self.wrong);
        }
        let Variant { safety, scope, omits, base, .. } = self.variant;
        let known = self.compiled.found.known;
        measurement = measurement
            .detail("library", self.adapter.title)
            .detail("library_version", self.compiled.found.version.as_str())
            .detail("library_version_known", known)
            .detail("sharing", safety.sharing.name())
            .detail("order_scope", safety.order.name())
            .detail("space_check", safety.space.name())
            .detail("completion_scope", scope.name())
            .detail("sq_blocks", 1u64 << LOG_BLOCKS)
            .detail("payload_slots", self.slots.slots)
            .detail("threads", self.spec.threads)
            .detail("queue_pairs", self.spec.qps);
        if !omits.is_empty() {
            measurement = measurement.detail("leaves_out", *omits);
        }
        if !base.is_empty() {
            measurement = measurement.detail("step_of", *base);
        }
        if let (true, Some(consumer)) = (self.variant.queue == Queue::Cpu, self.library.consumer())
        {
            measurement = measurement.detail("cpu_side", consumer);
        }
        Ok(measurement)
    }
}

struct NicRelax<'a>(&'a dyn Nic);

impl device::host::Relax for NicRelax<'_> {
    fn relax(&self, spins: u32) {
        self.0.relax(spins);
    }
}

/// A queue pair as an adapter sees it.
fn view(qp: &QueuePair, side: usize) -> SendQueue {
    let areas = &qp.areas;
    SendQueue {
        sq: areas.sq.ptr() as u64,
        record: areas.record.ptr() as u64 + 4 * wire::doorbell::RECORD_SEND as u64,
        doorbell: qp.doorbell() as u64,
        cq: areas.cq.ptr() as u64,
        cq_record: areas.cq_record.ptr() as u64,
        log_blocks: qp.attr.log_blocks,
        log_cq: qp.attr.log_cq,
        qpn: qp.qpn,
        peer: side as u32,
    }
}

/// What an experiment calls an operation, in the libraries' terms.
fn operation(name: &str) -> Option<PeerOp> {
    match name {
        "put" => Some(PeerOp::Put),
        "put-signal" => Some(PeerOp::PutSignal),
        _ => None,
    }
}

/// `latency`: issue or enqueue, with completion, and for an 8-byte put the round trip.
pub(super) fn latency(ctx: &mut RunContext, point: &Point) -> Result<Vec<Measurement>, PointError> {
    let bytes = point.number_as(AxisId::Payload)?;
    let name = point.word(AxisId::Op)?;
    let (_, variant) = variant(point)?;
    let op = operation(name).ok_or_else(|| PointError::failed(format!("no library has {name}")))?;
    let mut measured = Vec::new();
    if op == PeerOp::Put && bytes == 8 && variant.round_trip && variant.queue != Queue::DcCollapsed
    {
        let mut bench = Bench::new(ctx, point, Spec { two_sided: true, ..Spec::one(bytes) })?;
        let samples = bench.round_trip(ctx)?;
        measured.push(bench.ended(ctx, Measurement::round_trip(samples))?);
    }
    super::latency::with_rest(measured, issue_and_completion(ctx, point, Spec::one(bytes), op))
}

/// Issue or enqueue, and with completion.
pub(super) fn issue_and_completion(
    ctx: &mut RunContext,
    point: &Point,
    spec: Spec,
    op: PeerOp,
) -> Result<Vec<Measurement>, PointError> {
    let (path, variant) = variant(point)?;
    if !variant.ops.contains(&op) {
        return Err(PointError::not_run(format!(
            "{} {} has no {}",
            point.transport,
            variant.name,
            op.name().replace('_', "-")
        )));
    }
    let mut bench = Bench::new(ctx, point, spec)?;
    let (issue, total) = bench.latency(ctx, op)?;
    let first = match path.kind {
        PathKind::GpuSubmitted => Measurement::issue(issue),
        PathKind::Proxied => Measurement::enqueue(issue),
    };
    let first = bench.finish(ctx, first)?;
    let total = match variant.scope {
        Scope::Taken => Measurement::consumed(total),
        _ => Measurement::put_completion(total),
    };
    let total = bench.ended(ctx, total)?;
    Ok(vec![first, total])
}

/// Message rate.
pub(super) fn rate(ctx: &mut RunContext, point: &Point) -> Result<Vec<Measurement>, PointError> {
    let (_, variant) = variant(point)?;
    let warp = point.word(AxisId::Sharing)? == "warp";
    match (variant.rate, warp) {
        (Some(RateLanes::Both), _) | (Some(RateLanes::One), false) => {}
        _ => {
            let what = if warp { "batches that a warp builds" } else { "batches" };
            return Err(PointError::not_run(format!(
                "{} {} has no {what}",
                point.transport, variant.name
            )));
        }
    }
    let qps: u32 = point.number_as(AxisId::Qps)?;
    let batch: u32 = point.number_as(AxisId::Batch)?;
    if warp && !batch.is_multiple_of(32) {
        return Err(PointError::not_run("a warp's batch is a multiple of 32".to_owned()));
    }
    let spec =
        Spec { qps, threads: qps, slots: 4096, ..Spec::one(point.number_as(AxisId::Payload)?) };
    let mut bench = Bench::new(ctx, point, spec)?;
    let rates = bench.rate(ctx, batch, warp)?;
    let measured = bench.ended(ctx, Measurement::rate(rates))?;
    Ok(vec![measured.detail("lanes", if warp { 32 } else { 1 })])
}

impl Bench {
    /// The last measurement of a bench: what its CPU side met is an error.
    fn ended(
        &mut self,
        ctx: &RunContext,
        measurement: Measurement,
    ) -> Result<Measurement, PointError> {
        let measurement = self.finish(ctx, measurement)?;
        for worker in self.workers.drain(..) {
            worker.stop()?;
        }
        Ok(measurement)
    }
}
