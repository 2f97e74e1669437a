//! The bench that mini-gda's experiments share: regions, queue pairs, and the kernels.
//!
//! An experiment says what to vary; everything that must hold for every measurement is done here: unique
//! payloads, data checked at the target, no findings by the NIC, the clock, the labels.

use std::time::Duration;

use device::choice::{Choice, Order, Sharing, Signalling};
use device::cuda::Prepared;
use device::host::Kernel;
use device::shared::Shared;
use device::source::KernelKind;
use device::view::{LatencyArgs, Local, Op, QuietScope, RateArgs, Remote, RoundTripArgs};
use mini_gda::{Gda, GdaAttr};
use peers::{OrderScope, SpaceCheck};
use rdma::Region;

use crate::context::RunContext;
use crate::measurement::Measurement;
use crate::point::{Point, PointError, Transport};
use crate::quantity::{GBs, MMsgs, Micros};
use crate::ranks::protocol::{Launch, Reply};

use super::completed::Completed;
use super::payload::{Slots, fill};
pub(super) use super::rig::order;
use super::rig::{Need, Rig, broke, word};

/// Operations of a launch that are not counted: they warm the launch's own thread up.
pub(super) const SETTLE: u64 = 16;
/// Longest that one launch of the rate kernel should take.
pub(super) const LAUNCH: Duration = Duration::from_millis(5);
/// Operations of a launch on a GPU, at least: its clock is measured from its begin to its end.
pub(super) const LEAST_ON_GPU: u64 = 2048;

/// What a bench is made for.
pub(super) struct Spec {
    pub choice: Choice,
    pub qps: u32,
    pub log_blocks: u32,
    /// Bytes of one operation.
    pub bytes: u32,
    /// Threads that post.
    pub threads: u32,
    /// Payload slots a thread.
    pub slots: u64,
    /// The NIC's time is computed, not waited for.
    pub virtual_time: bool,
}

impl Spec {
    /// One thread, one queue pair.
    pub fn one(choice: Choice, bytes: u32) -> Self {
        Spec { choice, qps: 1, log_blocks: 10, bytes, threads: 1, slots: 256, virtual_time: false }
    }
}

pub(super) struct Bench {
    pub rig: Rig,
    source: Region,
    target: Region,
    /// What atomics leave.
    result: Region,
    /// What signals and atomics add to.
    signal: Region,
    gda: Gda,
    spec: Spec,
    slots: Slots,
    /// The sequence is a bare one.
    bare: bool,
    /// Failure words, one a thread.
    failures: Shared<u64>,
    /// Ticks of issue and completion, one an operation of a launch.
    ticks: [Shared<u64>; 2],
    /// The next unused payload value.
    next: u64,
    signals: u64,
    wrong: u64,
    /// Which kernel posted last at a rate.
    kind: Option<KernelKind>,
}

/// Times of single operations.
#[derive(Default)]
pub(super) struct Latency {
    pub issue: Vec<Micros>,
    pub total: Vec<Micros>,
    /// Clock of each launch, in MHz, and how many of the samples are its.
    pub launches: Vec<(f64, usize)>,
}

/// How the rate kernel posts.
#[derive(Clone, Copy)]
pub(super) struct Posting {
    pub batch: u32,
    pub nth: u32,
    pub force: bool,
    pub warp: bool,
    pub inline: bool,
    pub get: bool,
}

impl Bench {
    pub fn new(ctx: &mut RunContext, point: &Point, spec: Spec) -> Result<Self, PointError> {
        let rig = Rig::open(
            ctx,
            point,
            &Need {
                qps: spec.qps,
                submitters: spec.threads as usize,
                workers: 0,
                ringers: 0,
                virtual_time: spec.virtual_time,
            },
        )?;
        // A launch measures its clock: the longer the better.
        let wanted = if rig.on_gpu() { spec.slots.max(LEAST_ON_GPU) } else { spec.slots };
        let slots = Slots::new(spec.bytes, wanted, spec.threads);
        let source = rig.region(&rig.near, slots.length())?;
        let target = rig.region(&rig.far, slots.length())?;
        let result = rig.region(&rig.near, 64)?;
        let signal = rig.region(&rig.far, 64)?;
        fill(&source, ctx.seed())?;
        let attr = GdaAttr {
            qps: spec.qps,
            log_blocks: spec.log_blocks,
            choice: spec.choice,
            deadline: ctx.remaining("the start of the measurement")?.min(Duration::from_secs(10)),
            queues: rig.queues(),
            peers: rig.peers(),
            state: rig.own(),
            clock: rig.clock,
            ..GdaAttr::default()
        };
        let gda = Gda::connect(rig.near.as_ref(), rig.far.as_ref(), &attr).map_err(broke)?;
        Ok(Bench {
            failures: rig.words(spec.threads as usize)?,
            ticks: [rig.words(slots.slots as usize)?, rig.words(slots.slots as usize)?],
            rig,
            source,
            target,
            result,
            signal,
            gda,
            spec,
            slots,
            bare: matches!(point.transport, Transport::Bare | Transport::Inlined),
            next: 1,
            signals: 0,
            wrong: 0,
            kind: None,
        })
    }

    /// One operation at a time, until the point has been sampled enough.
    pub fn latency(
        &mut self,
        ctx: &RunContext,
        op: Op,
        scope: QuietScope,
    ) -> Result<Latency, PointError> {
        self.rig.completes()?;
        let mut samples = Latency::default();
        let mut warmup = ctx.warmup();
        while warmup > 0 {
            ctx.go_on("the warm-up")?;
            let ops = warmup.min(self.slots.slots);
            self.launch_latency(ctx, op, scope, ops, &mut Latency::default())?;
            warmup -= ops;
        }
        let mut sampling = ctx.sampling();
        loop {
            let ops = sampling.next(self.slots.slots, "completions")?;
            if ops == 0 {
                return Ok(samples);
            }
            self.launch_latency(ctx, op, scope, ops, &mut samples)?;
        }
    }

    fn launch_latency(
        &mut self,
        ctx: &RunContext,
        op: Op,
        scope: QuietScope,
        ops: u64,
        into: &mut Latency,
    ) -> Result<(), PointError> {
        let first = self.next;
        self.next += SETTLE + ops;
        if op == Op::Get {
            self.slots.mark(&self.target, 0..1, first, SETTLE + ops)?;
        }
        let args = LatencyArgs {
            qp: self.gda.device_views(),
            qps: self.spec.qps,
            scope,
            bytes: self.spec.bytes,
            slots: self.slots.slots as u32,
            stride: self.slots.stride,
            warmup: SETTLE,
            samples: ops,
            first,
            local: local(&self.source),
            remote: remote(&self.target),
            result: local(&self.result),
            signal: remote(&self.signal),
            av: self.gda.address_vector(),
            issue: self.ticks[0].as_ptr(),
            total: self.ticks[1].as_ptr(),
            failure: self.failures.as_ptr(),
        };
        let kernel = if self.bare { Kernel::Bare(op, &args) } else { Kernel::Latency(op, &args) };
        let hertz = self.launch(ctx, kernel)?;
        into.launches.push((hertz / 1e6, ops as usize));
        for (ticks, into) in self.ticks.iter().zip([&mut into.issue, &mut into.total]) {
            let ticks = ticks.read().map_err(broke)?;
            into.extend(ticks[..ops as usize].iter().map(|t| Micros::from_ticks(*t, hertz)));
        }
        if ctx.check() {
            let ops = SETTLE + ops;
            self.wrong += match op {
                Op::FetchAdd => self.wrong_signals(ops)?,
                Op::PutSignal => {
                    self.wrong_signals(ops)?
                        + self.slots.wrong(&self.target, &self.source, 0..1, first, ops)?
                }
                Op::Put | Op::PutInline => {
                    self.slots.wrong(&self.target, &self.source, 0..1, first, ops)?
                }
                Op::Get => self.slots.wrong(&self.source, &self.target, 0..1, first, ops)?,
            };
        }
        Ok(())
    }

    /// Many operations; one sample a launch.
    pub fn rate(
        &mut self,
        ctx: &RunContext,
        posting: Posting,
    ) -> Result<(Vec<MMsgs>, Vec<GBs>), PointError> {
        let threads = u64::from(self.spec.threads);
        let batch = u64::from(posting.batch);
        let round = |ops: u64| ops.div_ceil(batch).max(1) * batch;
        // Warming up tells how long a launch takes; without it a short launch does, which isn't kept either.
        let (mut warmup, mut ops, mut time) = (ctx.warmup(), 0, Duration::ZERO);
        loop {
            ctx.go_on("the warm-up")?;
            let (done, took) =
                self.launch_rate(ctx, posting, round(warmup.clamp(1, 4096).div_ceil(threads)))?;
            (ops, time) = (ops + done, time + took);
            warmup = warmup.saturating_sub(done);
            if warmup == 0 {
                break;
            }
        }
        let per_second = ops as f64 / time.as_secs_f64().max(1e-9);
        let most = ((per_second * LAUNCH.as_secs_f64()) as u64).min(1 << 24).max(batch * threads);
        let (mut rates, mut bandwidths) = (Vec::new(), Vec::new());
        let mut sampling = ctx.sampling();
        loop {
            let ops = sampling.next(most, "completions")?;
            // What is left at the end is too little for a rate of its own.
            if ops == 0 || (ops < most / 4 && !rates.is_empty()) {
                return Ok((rates, bandwidths));
            }
            let (ops, time) = self.launch_rate(ctx, posting, round(ops.div_ceil(threads)))?;
            rates.push(MMsgs::over(ops, time));
            bandwidths.push(GBs::over(ops * u64::from(self.spec.bytes), time));
        }
    }

    /// Posts `ops` operations a thread; returns how many that were in all, and their time.
    fn launch_rate(
        &mut self,
        ctx: &RunContext,
        posting: Posting,
        ops: u64,
    ) -> Result<(u64, Duration), PointError> {
        let threads = self.spec.threads as usize;
        let ops = if self.rig.nobody_executes() { ops.min(self.room(posting)) } else { ops };
        let (start, end) = (self.rig.words(threads)?, self.rig.words(threads)?);
        let arrived = self.rig.words(1)?;
        let first = self.next;
        self.next += ops * threads as u64;
        if posting.get {
            self.slots.mark(&self.target, 0..threads as u64, first, ops)?;
        }
        let args = RateArgs {
            qp: self.gda.device_views(),
            qps: self.spec.qps,
            threads: self.spec.threads,
            batch: posting.batch,
            nth: posting.nth,
            force: posting.force.into(),
            is_get: posting.get.into(),
            bytes: self.spec.bytes,
            lanes: if posting.warp { 32 } else { 1 },
            is_inline: posting.inline.into(),
            quiet: (!self.rig.nobody_executes()).into(),
            ops,
            warmup: 0,
            first,
            slots: self.slots.slots,
            stride: self.slots.stride,
            local: local(&self.source),
            remote: remote(&self.target),
            start: start.as_ptr(),
            end: end.as_ptr(),
            failure: self.failures.as_ptr(),
            arrived: arrived.as_ptr().cast(),
        };
        let before = Completed::read(self.rig.near.as_ref(), &self.gda)?;
        let began = self.rig.virtual_now();
        self.kind = Some(Kernel::Rate(&args).kind());
        self.launch(ctx, Kernel::Rate(&args))?;
        let ended = self.rig.virtual_now();
        let all = ops * threads as u64;
        if self.rig.nobody_executes() {
            if ctx.check() {
                self.wrong += self.wrong_records(all)?;
            }
            self.gda.reset().map_err(broke)?;
        } else if ctx.check() {
            // Operations that share a slot can't be told apart by its content: the NIC's count tells. On a shared
            // queue whose callers signal, each thread's quiet of each queue pair posts a NOP.
            let shared = self.spec.choice.sharing != Sharing::Exclusive;
            let nops = if shared && self.spec.choice.signalling == Signalling::OnRequest {
                threads as u64 * u64::from(self.spec.qps)
            } else {
                0
            };
            let after = Completed::read(self.rig.near.as_ref(), &self.gda)?;
            self.wrong += after.wrong(before, all + nops);
            let (arrived, origin) = if posting.get {
                (&self.source, &self.target)
            } else {
                (&self.target, &self.source)
            };
            self.wrong += self.slots.wrong(arrived, origin, 0..threads as u64, first, ops)?;
        }
        let time = if self.rig.has_virtual_time() {
            Duration::from_nanos(ended - began)
        } else {
            self.rig.span(&start, &end)?
        };
        Ok((all, time))
    }

    /// Operations a thread that its queues hold, where nobody completes them: whole batches.
    fn room(&self, posting: Posting) -> u64 {
        let blocks = self.gda.blocks() * u64::from(self.spec.qps) / u64::from(self.spec.threads);
        let batch = u64::from(posting.batch);
        // Threads that share queues don't fill them evenly.
        let sure = if self.spec.choice.sharing == Sharing::Exclusive { blocks } else { blocks / 2 };
        (sure / batch).max(1) * batch
    }

    /// Where nobody executes, the doorbell records must say that all was posted.
    fn wrong_records(&self, posted: u64) -> Result<u64, PointError> {
        let mut told = 0;
        for qp in self.gda.queue_pairs() {
            let mut record = [0u8; 4];
            qp.areas.record.read(4 * wire::doorbell::RECORD_SEND, &mut record).map_err(broke)?;
            told += u64::from(u32::from_be_bytes(record));
        }
        Ok(posted.abs_diff(told))
    }

    fn launch(&self, ctx: &RunContext, kernel: Kernel<'_>) -> Result<f64, PointError> {
        let near = self.rig.near.as_ref();
        let check = |word| self.gda.check(near, word).map_err(broke);
        self.failures.write(&vec![0; self.failures.len()]).map_err(broke)?;
        let relax = self.gda.relax(near);
        self.rig.launch(ctx, &self.spec.choice, kernel, &relax, &self.failures, &check)
    }

    /// What every measurement of this bench has in common.
    ///
    /// # Errors
    /// The NIC saw something done wrong that a safe configuration never does.
    pub fn finish(
        &self,
        ctx: &RunContext,
        measurement: Measurement,
    ) -> Result<Measurement, PointError> {
        let mut measurement =
            self.rig.finish(measurement, self.rig.unsafe_order(self.spec.choice.order))?;
        if ctx.check() {
            measurement = measurement.checked(self.wrong);
        }
        Ok(self
            .safety(measurement)
            .detail("sq_blocks", 1u64 << self.spec.log_blocks)
            .detail("order", self.spec.choice.order.name())
            .detail("sharing", self.spec.choice.sharing.name())
            .detail("cq", self.spec.choice.cq_kind.name())
            .detail("cq_load", self.spec.choice.cq_load.name())
            .detail("ringing", self.spec.choice.ringing.name())
            .detail("signalling", self.spec.choice.signalling.name())
            .detail("transport_service", self.spec.choice.transport.name())
            .detail("max_blocks", self.spec.choice.max_blocks)
            .detail("payload_slots", self.slots.slots))
    }

    /// What it is safe for, in the terms in which libraries' paths are described.
    fn safety(&self, measurement: Measurement) -> Measurement {
        let Choice { order, sharing, .. } = self.spec.choice;
        let sharing = match sharing {
            Sharing::Exclusive => peers::Sharing::Exclusive,
            Sharing::Thread | Sharing::Warp => peers::Sharing::Gpu,
        };
        let order = match order {
            Order::None => OrderScope::None,
            Order::GpuRelease | Order::GpuFence => OrderScope::Gpu,
            Order::ReleaseFenceMmio | Order::SystemFence | Order::AsyncMmio => OrderScope::System,
        };
        let bare = self.bare && self.spec.choice.checked == 0;
        let space = if bare { SpaceCheck::No } else { SpaceCheck::Yes };
        measurement
            .detail("sharing_scope", sharing.name())
            .detail("order_scope", order.name())
            .detail("space_check", space.name())
            // Of what has another scope, who measures it says so.
            .detail("completion_scope", peers::Scope::One.name())
    }

    /// Signals and atomics are counted at the target: none may be missing or twice.
    fn wrong_signals(&mut self, ops: u64) -> Result<u64, PointError> {
        let expected = self.signals + ops;
        self.signals = word(&self.signal)?;
        let before = word(&self.result)?;
        let mut wrong = expected.abs_diff(self.signals);
        wrong += u64::from(before.wrapping_add(1) != self.signals);
        Ok(wrong)
    }

    /// What the kernel of a rate takes of a GPU's multiprocessor, as details; nothing for host threads.
    ///
    /// # Errors
    /// The kernel can't be loaded.
    pub fn resources(&self, measurement: Measurement) -> Result<Measurement, PointError> {
        let (Some(gpu), Some(kind)) = (self.rig.gpu(), self.kind) else { return Ok(measurement) };
        let kernel = Prepared::new(gpu, kind, &self.spec.choice)
            .and_then(|prepared| prepared.resources())
            .map_err(broke)?;
        Ok(measurement
            .detail("registers", kernel.registers)
            .detail("shared_bytes", kernel.shared)
            .detail("local_bytes", kernel.local)
            .detail("resident_blocks_of_128", kernel.resident_blocks)
            .detail("occupancy", kernel.occupancy)
            .detail("occupancy_lost", 1.0 - kernel.occupancy))
    }
}

fn local(region: &Region) -> Local {
    Local { address: region.address, lkey: region.lkey }
}

fn remote(region: &Region) -> Remote {
    Remote { address: region.address, rkey: region.rkey }
}

/// Issue and completion times of one kind of operation.
pub(super) fn issue_and_completion(
    ctx: &mut RunContext,
    point: &Point,
    spec: Spec,
    op: Op,
    scope: QuietScope,
) -> Result<Vec<Measurement>, PointError> {
    let mut bench = Bench::new(ctx, point, spec)?;
    let samples = bench.latency(ctx, op, scope)?;
    let measured = [Measurement::issue(samples.issue), Measurement::put_completion(samples.total)];
    let scope = match scope {
        QuietScope::One => "one",
        QuietScope::Used => "used",
        QuietScope::All => "all",
    };
    let finish =
        |measurement| Ok(bench.finish(ctx, measurement)?.detail("completion_scope", scope));
    measured.into_iter().map(finish).collect()
}

/// An 8-byte put and the remote thread's put in reply.
pub(super) fn round_trip(
    ctx: &mut RunContext,
    point: &Point,
    choice: Choice,
) -> Result<Measurement, PointError> {
    let mut spec = Spec::one(choice, 8);
    // A remote side of its own has its thread there.
    spec.threads = if ctx.is_answered() { 1 } else { 2 };
    let bench = Bench::new(ctx, point, spec)?;
    let rig = &bench.rig;
    rig.completes()?;
    let attr = GdaAttr {
        choice,
        queues: rig.queues(),
        peers: rig.peers(),
        state: rig.own(),
        clock: rig.clock,
        deadline: ctx.remaining("the start of the measurement")?.min(Duration::from_secs(10)),
        ..GdaAttr::default()
    };
    rig.load(KernelKind::RoundTrip, &choice)?;
    let back = match rig.session() {
        Some(session) => session.prepare(Reply::Gda { choice }).map(|()| None)?,
        None => Some(Gda::connect(rig.far.as_ref(), rig.near.as_ref(), &attr).map_err(broke)?),
    };
    let asking = bench.gda.views()[0];
    let answering = back.as_ref().map_or(asking, |back| back.views()[0]);
    let views = Shared::at(&rig.own(), &[asking, answering]).map_err(broke)?;
    let (inbox, outbox) = (&bench.result, &bench.signal);
    let mut samples = Vec::new();
    let mut warmup = ctx.warmup();
    let mut sampling = ctx.sampling();
    let most = bench.slots.slots;
    loop {
        let warming = warmup > 0;
        if warming {
            ctx.go_on("the warm-up")?;
        }
        let ops = if warming { warmup.min(most) } else { sampling.next(most, "replies")? };
        if ops == 0 {
            break;
        }
        if warming {
            warmup -= ops;
            sampling = ctx.sampling();
        }
        for region in [inbox, outbox] {
            region.memory.write(0, &[0; 8]).map_err(broke)?;
        }
        let args = RoundTripArgs {
            qp: views.as_ptr(),
            inbox: [inbox.address as *mut u64, outbox.address as *mut u64],
            remote: [remote(outbox), remote(inbox)],
            warmup: SETTLE,
            samples: ops,
            deadline: bench.gda.views()[0].deadline,
            ticks: bench.ticks[0].as_ptr(),
            failure: bench.failures.as_ptr(),
            first_side: 0,
            sides: if back.is_some() { 2 } else { 1 },
        };
        // A failure names its queue pair, which one of the two sides knows.
        let check = |word| {
            bench.gda.check(rig.near.as_ref(), word).map_err(broke)?;
            back.as_ref().map_or(Ok(()), |back| back.check(rig.far.as_ref(), word).map_err(broke))
        };
        bench.failures.write(&vec![0; bench.failures.len()]).map_err(broke)?;
        let relax = bench.gda.relax(rig.near.as_ref());
        let kernel = Kernel::RoundTrip(&args);
        let launch = || rig.launch(ctx, &choice, kernel, &relax, &bench.failures, &check);
        let hertz = match rig.session() {
            Some(session) => {
                let asked = Launch::Gda {
                    inbox: outbox.address,
                    to: (inbox.address, inbox.rkey),
                    warmup: SETTLE,
                    samples: ops,
                };
                session.answered(asked, ctx.remaining("a launch")?, launch)
            }
            None => launch(),
        }?;
        if !warming {
            let ticks = bench.ticks[0].read().map_err(broke)?;
            samples.extend(ticks[..ops as usize].iter().map(|t| Micros::from_ticks(*t, hertz)));
        }
    }
    // Each side checks that every value that arrives is the next one: wrong data would have failed above.
    bench.finish(ctx, Measurement::round_trip(samples))
}
