//! The bench that mini-gda's experiments share: two linked NICs, regions, queue pairs, and the two kernels.
//!
//! An experiment says what to vary; everything that must hold for every measurement is done here: unique
//! payloads, data checked at the target, no findings by the NIC, the clock, the labels.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use device::choice::{Choice, Order, Sharing, Signalling};
use device::host::{self, Kernel};
use device::view::{LatencyArgs, Local, Op, QuietScope, RateArgs, Remote, RoundTripArgs};
use mini_gda::{Gda, GdaAttr};
use rdma::soft::{Engine, Fabric, FabricAttr, SoftNic};
use rdma::{Access, Memory, Nic as _, Region};
use softnic::{Caps, NicConfig, Profile};

use crate::axes::AxisId;
use crate::context::RunContext;
use crate::cpus::{Assignment, EngineMode};
use crate::measurement::{Clock, Measurement};
use crate::point::{Point, PointError};
use crate::quantity::{GBs, MMsgs, Micros};

use super::payload::{Slots, fill};

/// Operations of a launch that are not counted: they warm the launch's own thread up.
pub(super) const SETTLE: u64 = 16;
/// Longest that one launch of the rate kernel should take.
pub(super) const LAUNCH: Duration = Duration::from_millis(5);

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
    fabric: Fabric,
    near: Arc<SoftNic>,
    far: Arc<SoftNic>,
    source: Region,
    target: Region,
    /// What atomics leave.
    result: Region,
    /// What signals and atomics add to.
    signal: Region,
    gda: Gda,
    spec: Spec,
    slots: Slots,
    clock: host::Clock,
    cpus: Assignment,
    /// The next unused payload value.
    next: u64,
    signals: u64,
    wrong: u64,
}

/// Times of single operations.
pub(super) struct Latency {
    pub issue: Vec<Micros>,
    pub total: Vec<Micros>,
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

pub(super) fn broke(error: impl std::error::Error + 'static) -> PointError {
    PointError::from_error(&error)
}

/// The profile that a point asks for.
fn profile(point: &Point) -> Result<Profile, PointError> {
    let name = point.word(AxisId::Profile)?;
    Profile::by_name(name)
        .ok_or_else(|| PointError::failed(format!("no timing profile is called {name}")))
}

/// Two linked NICs with the point's profile. Their engine is stepped where time is virtual, or where it has no
/// core of its own.
pub(super) fn fabric(
    point: &Point,
    cpus: &Assignment,
    qps: u32,
    virtual_time: bool,
) -> Result<Fabric, PointError> {
    let stepped = virtual_time || cpus.engine == EngineMode::Stepped;
    Fabric::open(&FabricAttr {
        nics: 2,
        engine: if stepped {
            Engine::Stepped
        } else {
            Engine::Thread { cpu: cpus.engines.first().copied() }
        },
        clock: if virtual_time { softnic::Clock::Virtual } else { softnic::Clock::Real },
        config: config(point, qps)?,
    })
    .map_err(broke)
}

/// A NIC with the point's profile and room for so many queue pairs.
fn config(point: &Point, qps: u32) -> Result<NicConfig, PointError> {
    let default = Caps::default();
    let room = |usual: u32| usual.max(qps + 16);
    let caps = Caps {
        max_qps: room(default.max_qps),
        max_cqs: room(default.max_cqs),
        max_uars: room(default.max_uars),
        ..default
    };
    Ok(NicConfig { profile: profile(point)?, caps, ..NicConfig::default() })
}

/// The ordering that a point asks for, if host threads can do it.
pub(super) fn order(point: &Point) -> Result<Order, PointError> {
    let order: Order = point.word(AxisId::Order)?.parse().map_err(broke)?;
    if order == Order::AsyncMmio {
        return Err(PointError::not_run(
            "order async-mmio is an instruction of sm_100 and newer GPUs: the host submitter has none like it",
        ));
    }
    Ok(order)
}

impl Bench {
    pub fn new(ctx: &mut RunContext, point: &Point, spec: Spec) -> Result<Self, PointError> {
        let cpus = ctx.place(spec.threads as usize, 0, 1);
        let fabric = fabric(point, &cpus, spec.qps, spec.virtual_time)?;
        let (near, far) = (Arc::clone(fabric.nic(0)), Arc::clone(fabric.nic(1)));
        let slots = Slots::new(spec.bytes, spec.slots, spec.threads);
        let all = Access::all();
        let source = near.register(&slots.memory(), all).map_err(broke)?;
        let target = far.register(&slots.memory(), all).map_err(broke)?;
        let result = near.register(&Memory::zeroed(64), all).map_err(broke)?;
        let signal = far.register(&Memory::zeroed(64), all).map_err(broke)?;
        fill(&source.memory, ctx.seed());
        let attr = GdaAttr {
            qps: spec.qps,
            log_blocks: spec.log_blocks,
            choice: spec.choice,
            deadline: ctx.remaining("the start of the measurement")?.min(Duration::from_secs(10)),
            ..GdaAttr::default()
        };
        let gda = Gda::connect(near.as_ref(), far.as_ref(), &attr).map_err(broke)?;
        let clock = host::Clock::host();
        Ok(Bench {
            fabric,
            near,
            far,
            source,
            target,
            result,
            signal,
            gda,
            spec,
            slots,
            clock,
            cpus,
            next: 1,
            signals: 0,
            wrong: 0,
        })
    }

    /// One operation at a time, until the point has been sampled enough.
    pub fn latency(
        &mut self,
        ctx: &RunContext,
        op: Op,
        scope: QuietScope,
    ) -> Result<Latency, PointError> {
        let mut samples = Latency { issue: Vec::new(), total: Vec::new() };
        let mut warmup = ctx.warmup();
        while warmup > 0 {
            ctx.go_on("the warm-up")?;
            let ops = warmup.min(self.slots.slots);
            self.launch_latency(
                ctx,
                op,
                scope,
                ops,
                &mut Latency { issue: Vec::new(), total: Vec::new() },
            )?;
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
        let mut issue = vec![0u64; ops as usize];
        let mut total = vec![0u64; ops as usize];
        let mut failure = 0u64;
        let first = self.next;
        self.next += SETTLE + ops;
        if op == Op::Get {
            self.slots.mark(&self.target, 0, first, SETTLE + ops);
        }
        let args = LatencyArgs {
            qp: self.gda.views().as_ptr(),
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
            issue: issue.as_mut_ptr(),
            total: total.as_mut_ptr(),
            failure: &raw mut failure,
        };
        self.launch(Kernel::Latency(op, &args))?;
        self.gda.check(self.near.as_ref(), failure).map_err(broke)?;
        let hertz = self.clock.ticks_per_us * 1e6;
        into.issue.extend(issue.iter().map(|t| Micros::from_ticks(*t, hertz)));
        into.total.extend(total.iter().map(|t| Micros::from_ticks(*t, hertz)));
        if ctx.check() {
            let ops = SETTLE + ops;
            self.wrong += match op {
                Op::FetchAdd => self.wrong_signals(ops),
                Op::PutSignal => {
                    self.wrong_signals(ops)
                        + self.slots.wrong(&self.target, &self.source, 0, first, ops)
                }
                Op::Put | Op::PutInline => {
                    self.slots.wrong(&self.target, &self.source, 0, first, ops)
                }
                Op::Get => self.slots.wrong(&self.source, &self.target, 0, first, ops),
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
        let most = ((per_second * LAUNCH.as_secs_f64()) as u64).clamp(batch * threads, 1 << 24);
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
        let (mut start, mut end, mut failure) =
            (vec![0u64; threads], vec![0u64; threads], vec![0u64; threads]);
        let first = self.next;
        self.next += ops * threads as u64;
        if posting.get {
            for thread in 0..threads as u64 {
                self.slots.mark(&self.target, thread, first + thread * ops, ops);
            }
        }
        let args = RateArgs {
            qp: self.gda.views().as_ptr(),
            qps: self.spec.qps,
            threads: self.spec.threads,
            batch: posting.batch,
            nth: posting.nth,
            force: posting.force.into(),
            is_get: posting.get.into(),
            bytes: self.spec.bytes,
            lanes: if posting.warp { 32 } else { 1 },
            is_inline: posting.inline.into(),
            ops,
            warmup: 0,
            first,
            slots: self.slots.slots,
            stride: self.slots.stride,
            local: local(&self.source),
            remote: remote(&self.target),
            start: start.as_mut_ptr(),
            end: end.as_mut_ptr(),
            failure: failure.as_mut_ptr(),
        };
        let before = self.near.counters().map_err(broke)?;
        let began = self.fabric.engine().now();
        self.launch(Kernel::Rate(&args))?;
        let ended = self.fabric.engine().now();
        for word in &failure {
            self.gda.check(self.near.as_ref(), *word).map_err(broke)?;
        }
        let all = ops * threads as u64;
        if ctx.check() {
            // Operations that share a slot can't be told apart by its content: the NIC's count tells. On a shared
            // queue whose callers signal, each thread's quiet of each queue pair posts a NOP.
            let shared = self.spec.choice.sharing != Sharing::Exclusive;
            let nops = if shared && self.spec.choice.signalling == Signalling::OnRequest {
                threads as u64 * u64::from(self.spec.qps)
            } else {
                0
            };
            let done = self.near.counters().map_err(broke)?.completed - before.completed;
            self.wrong += (all + nops).abs_diff(done);
            let (arrived, origin) = if posting.get {
                (&self.source, &self.target)
            } else {
                (&self.target, &self.source)
            };
            self.wrong += (0..threads as u64)
                .map(|thread| self.slots.wrong(arrived, origin, thread, first + thread * ops, ops))
                .sum::<u64>();
        }
        let time = if self.spec.virtual_time {
            Duration::from_nanos(ended - began)
        } else {
            let begin = start.iter().min().copied().unwrap_or(0);
            let end = end.iter().max().copied().unwrap_or(0);
            Duration::from_secs_f64(
                end.saturating_sub(begin) as f64 / (self.clock.ticks_per_us * 1e6),
            )
        };
        Ok((all, time))
    }

    fn launch(&self, kernel: Kernel<'_>) -> Result<(), PointError> {
        let relax = self.gda.relax(self.near.as_ref());
        // SAFETY: views and regions live as long as the bench, sample buffers as long as the caller's frame, and
        // both have the sizes that the arguments say.
        unsafe { host::launch(&self.spec.choice, kernel, &self.cpus.submitters, Some(&relax)) }
            .map_err(|error| match error {
                host::LaunchError::NotBuilt { .. } => PointError::not_run(error.to_string()),
                other => broke(other),
            })
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
        let mut measurement = measurement.clock(clock_of(&self.clock, self.spec.virtual_time));
        if ctx.check() {
            measurement = measurement.checked(self.wrong);
        }
        let findings =
            [self.near.findings().map_err(broke)?, self.far.findings().map_err(broke)?].concat();
        let unsafe_order = self.spec.choice.order == Order::None;
        if let (Some(first), false) = (findings.first(), unsafe_order) {
            return Err(PointError::failed(format!(
                "the NIC reports {} findings, first: {first}",
                findings.len()
            )));
        }
        if unsafe_order {
            measurement = measurement
                .unsafe_mode("nothing orders WQE, doorbell record and doorbell for the NIC");
        }
        Ok(measurement
            .detail("sq_blocks", 1u64 << self.spec.log_blocks)
            .detail("order", self.spec.choice.order.name())
            .detail("sharing", self.spec.choice.sharing.name())
            .detail("cq", self.spec.choice.cq_kind.name())
            .detail("cq_load", self.spec.choice.cq_load.name())
            .detail("ringing", self.spec.choice.ringing.name())
            .detail("signalling", self.spec.choice.signalling.name())
            .detail("transport_service", self.spec.choice.transport.name())
            .detail("max_blocks", self.spec.choice.max_blocks)
            .detail("payload_slots", self.slots.slots)
            .detail("nic_findings", findings.len() as u64))
    }

    /// Signals and atomics are counted at the target: none may be missing or twice.
    fn wrong_signals(&mut self, ops: u64) -> u64 {
        let expected = self.signals + ops;
        self.signals = self.signal.memory.word(0).load(Ordering::Acquire);
        let before = self.result.memory.word(0).load(Ordering::Acquire);
        expected.abs_diff(self.signals) + u64::from(before.wrapping_add(1) != self.signals)
    }
}

/// The clock of a measurement, for its record.
pub(super) fn clock_of(host: &host::Clock, virtual_time: bool) -> Clock {
    if virtual_time {
        return Clock {
            source: "virtual time of the NIC".to_owned(),
            resolution_ns: 1.0,
            overhead_ns: 0.0,
        };
    }
    let ns = 1e3 / host.ticks_per_us;
    Clock {
        source: host.source.to_owned(),
        resolution_ns: host.resolution as f64 * ns,
        overhead_ns: host.overhead as f64 * ns,
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
    Ok(vec![
        bench.finish(ctx, Measurement::issue(samples.issue))?,
        bench.finish(ctx, Measurement::put_completion(samples.total))?,
    ])
}

/// An 8-byte put and the remote thread's put in reply.
pub(super) fn round_trip(
    ctx: &mut RunContext,
    point: &Point,
    choice: Choice,
) -> Result<Measurement, PointError> {
    let mut spec = Spec::one(choice, 8);
    spec.threads = 2;
    let bench = Bench::new(ctx, point, spec)?;
    let attr = GdaAttr { choice, ..GdaAttr::default() };
    let back = Gda::connect(bench.far.as_ref(), bench.near.as_ref(), &attr).map_err(broke)?;
    let views = [bench.gda.views()[0], back.views()[0]];
    let (inbox, outbox) = (&bench.result, &bench.signal);
    let mut samples = Vec::new();
    let hertz = bench.clock.ticks_per_us * 1e6;
    let mut warmup = ctx.warmup();
    let mut sampling = ctx.sampling();
    loop {
        let warming = warmup > 0;
        if warming {
            ctx.go_on("the warm-up")?;
        }
        let ops = if warming { warmup.min(256) } else { sampling.next(256, "replies")? };
        if ops == 0 {
            break;
        }
        if warming {
            warmup -= ops;
            sampling = ctx.sampling();
        }
        inbox.memory.word(0).store(0, Ordering::Relaxed);
        outbox.memory.word(0).store(0, Ordering::Relaxed);
        let (mut ticks, mut failure) = (vec![0u64; ops as usize], [0u64; 2]);
        let args = RoundTripArgs {
            qp: views.as_ptr(),
            inbox: [inbox.address as *mut u64, outbox.address as *mut u64],
            remote: [remote(outbox), remote(inbox)],
            warmup: SETTLE,
            samples: ops,
            deadline: views[0].deadline,
            ticks: ticks.as_mut_ptr(),
            failure: failure.as_mut_ptr(),
        };
        bench.launch(Kernel::RoundTrip(&args))?;
        bench.gda.check(bench.near.as_ref(), failure[0]).map_err(broke)?;
        back.check(bench.far.as_ref(), failure[1]).map_err(broke)?;
        if !warming {
            samples.extend(ticks.iter().map(|t| Micros::from_ticks(*t, hertz)));
        }
    }
    // Each side checks that every value that arrives is the next one: wrong data would have failed above.
    bench.finish(ctx, Measurement::round_trip(samples))
}
