//! The bench that mini-proxy's experiments share; what it takes care of is what [`gda`](super::gda)'s does.

use std::sync::Arc;
use std::time::Duration;

use device::host::Relax;
use device::proxy::{
    Descriptor, EnqueueArgs, Handoff, Producers, ProxyChoice, ProxyKernel, ProxyOp, ProxyRateArgs,
    ProxyRoundTripArgs, Publish, Until,
};
use device::shared::Shared;
use mini_proxy::{ChannelAttr, Drive, Proxy, ProxyAttr};
use peers::{OrderScope, SpaceCheck};
use rdma::{Nic, Region};

use crate::context::RunContext;
use crate::cpus::Assignment;
use crate::measurement::{Measurement, MemoryKind, Metric};
use crate::point::{Point, PointError};
use crate::quantity::{GBs, MMsgs, Micros};
use crate::ranks::protocol::{Launch, Reply};

use super::gda::{LAUNCH, LEAST_ON_GPU, SETTLE};
use super::payload::{Slots, fill};
use super::rig::{Need, Rig, broke, word};

/// What a bench is made for.
#[derive(Clone)]
pub(super) struct Spec {
    pub choice: ProxyChoice,
    /// Bytes of one operation.
    pub bytes: u32,
    /// Threads that push.
    pub threads: u32,
    pub rings: u32,
    pub workers: u32,
    pub chain: u32,
    pub signal_every: u32,
    /// Payload slots a thread.
    pub slots: u64,
    /// The NIC's time is computed, not waited for.
    pub virtual_time: bool,
    /// Workers of another proxy that need CPUs, too.
    pub other_workers: u32,
}

impl Spec {
    /// One thread, one ring, one worker.
    pub fn one(choice: ProxyChoice, bytes: u32) -> Self {
        Spec {
            choice,
            bytes,
            threads: 1,
            rings: 1,
            workers: 1,
            chain: 16,
            signal_every: 1,
            slots: 256,
            virtual_time: false,
            other_workers: 0,
        }
    }
}

/// The hand-off of a name with its payloads' ordering, as it is tuned for so many producers a ring: one has no
/// atomics, progress is cached; the baseline keeps its own ways.
pub(super) fn tuned(handoff: &str, producers: u64) -> Result<ProxyChoice, PointError> {
    if handoff == "gpu-flag" {
        return Err(PointError::not_run(
            "hand-off gpu-flag needs GPU memory that the CPU can read: it is not in this build",
        ));
    }
    let handoff: Handoff = handoff.parse().map_err(|e| PointError::from_error(&e))?;
    if handoff == Handoff::ValidByte {
        return Ok(ProxyChoice::BASELINE);
    }
    let producers = reservation(producers > 1);
    Ok(ProxyChoice { handoff, producers, ..ProxyChoice::default() })
}

/// What device code calls a reservation: one with atomics may have many producers.
pub(super) fn reservation(atomic: bool) -> Producers {
    if atomic { Producers::Many } else { Producers::One }
}

pub(super) struct Bench {
    pub rig: Rig,
    source: Region,
    target: Region,
    signal: Region,
    proxy: Proxy,
    spec: Spec,
    slots: Slots,
    /// Clock of each launch of single operations, in MHz, and how many of the samples are its.
    pub launches: Vec<(f64, usize)>,
    /// Failure words, one a thread.
    failures: Shared<u64>,
    /// Slots of a ring.
    depth: u32,
    /// 64-byte blocks of a send queue.
    sq_blocks: u32,
    /// The next unused payload value.
    next: u64,
    signals: u64,
    wrong: u64,
    /// Workers are run by whoever waits.
    stepped: bool,
}

/// Of workers that come after `before` others.
fn drive(cpus: &Assignment, stepped: bool, before: u32) -> Drive {
    if stepped {
        Drive::Stepped
    } else {
        Drive::Threads { cpus: cpus.workers.iter().skip(before as usize).copied().collect() }
    }
}

impl Bench {
    pub fn new(ctx: &mut RunContext, point: &Point, spec: Spec) -> Result<Self, PointError> {
        let rig = Rig::open(
            ctx,
            point,
            &Need {
                qps: spec.workers,
                submitters: spec.threads as usize,
                workers: (spec.workers + spec.other_workers) as usize,
                ringers: 0,
                virtual_time: spec.virtual_time,
            },
        )?;
        rig.completes()?;
        // A launch measures its clock: the longer the better.
        let wanted =
            if rig.on_gpu() && spec.slots > 1 { spec.slots.max(LEAST_ON_GPU) } else { spec.slots };
        let slots = Slots::new(spec.bytes, wanted, spec.threads);
        let source = rig.region(&rig.near, slots.length())?;
        let target = rig.region(&rig.far, slots.length())?;
        let signal = rig.region(&rig.far, 64)?;
        fill(&source, ctx.seed())?;
        // Spinning workers without a core of their own would measure the scheduler.
        let by_waiters = spec.virtual_time || rig.cpus.oversubscribed();
        let drive = drive(&rig.cpus, by_waiters, 0);
        let channel = ChannelAttr {
            local: source.clone(),
            remote: target.clone(),
            signal: Some((signal.clone(), 0)),
        };
        let attr = attributes(ctx, &rig, &spec, &slots, channel, drive)?;
        let proxy = connect(&rig.near, rig.far.as_ref(), &attr)?;
        let sq_blocks = 1 << attr.log_blocks;
        let built = spec.choice.handoff == Handoff::ProducerCounter;
        Ok(Bench {
            failures: rig.words(spec.threads as usize)?,
            launches: Vec::new(),
            rig,
            source,
            target,
            signal,
            proxy,
            spec,
            slots,
            depth: if built { sq_blocks } else { attr.depth },
            sq_blocks,
            next: 1,
            signals: 0,
            wrong: 0,
            stepped: by_waiters,
        })
    }

    /// One operation at a time and thread, until the point has been sampled enough: enqueue times, and times
    /// with what is waited for.
    pub fn enqueue(
        &mut self,
        ctx: &RunContext,
        op: ProxyOp,
        until: Until,
    ) -> Result<(Vec<Micros>, Vec<Micros>), PointError> {
        let (mut enqueue, mut total) = (Vec::new(), Vec::new());
        let threads = u64::from(self.spec.threads);
        let most = self.slots.slots * threads;
        for ops in rounds(ctx.warmup(), most) {
            ctx.go_on("the warm-up")?;
            self.launch_enqueue(
                ctx,
                (op, until),
                ops.div_ceil(threads),
                [&mut Vec::new(), &mut Vec::new()],
            )?;
        }
        self.launches.clear();
        let mut sampling = ctx.sampling();
        loop {
            let ops = sampling.next(most, "completions")?;
            if ops == 0 {
                return Ok((enqueue, total));
            }
            let into = [&mut enqueue, &mut total];
            self.launch_enqueue(ctx, (op, until), ops.div_ceil(threads), into)?;
        }
    }

    fn launch_enqueue(
        &mut self,
        ctx: &RunContext,
        (op, until): (ProxyOp, Until),
        ops: u64,
        into: [&mut Vec<Micros>; 2],
    ) -> Result<(), PointError> {
        let threads = self.spec.threads as usize;
        let ops = self.whole_rounds(SETTLE, ops);
        let samples = ops as usize * threads;
        let ticks = [self.rig.words(samples)?, self.rig.words(samples)?];
        let each = SETTLE + ops;
        let first = self.take_values(each);
        match op {
            ProxyOp::Get => {
                self.slots.clear(&self.source)?;
                self.slots.mark(&self.target, 0..threads as u64, first, each)?;
            }
            _ => self.slots.clear(&self.target)?,
        }
        let args = EnqueueArgs {
            ring: self.proxy.device_views(),
            rings: self.spec.rings,
            threads: self.spec.threads,
            channel: 0,
            bytes: self.spec.bytes,
            slots: self.slots.slots,
            stride: self.slots.stride,
            warmup: SETTLE,
            samples: ops,
            first,
            local: self.source.address,
            enqueue: ticks[0].as_ptr(),
            total: ticks[1].as_ptr(),
            failure: self.failures.as_ptr(),
            until,
        };
        let hertz = self.launch(ctx, ProxyKernel::Enqueue(op, &args))?;
        self.launches.push((hertz / 1e6, samples));
        for (ticks, into) in ticks.iter().zip(into) {
            let ticks = ticks.read().map_err(broke)?;
            into.extend(ticks.iter().map(|t| Micros::from_ticks(*t, hertz)));
        }
        if ctx.check() {
            let all = each * threads as u64;
            self.wrong += match op {
                ProxyOp::FetchAdd => all.abs_diff(word(&self.target)?),
                ProxyOp::Get => self.wrong_slots(&self.source, &self.target, first, each)?,
                _ => self.wrong_slots(&self.target, &self.source, first, each)?,
            };
            if op == ProxyOp::PutSignal {
                let expected = self.signals + all;
                self.signals = word(&self.signal)?;
                self.wrong += expected.abs_diff(self.signals);
            }
        }
        Ok(())
    }

    /// Many puts; one sample a launch.
    pub fn rate(&mut self, ctx: &RunContext) -> Result<(Vec<MMsgs>, Vec<GBs>), PointError> {
        let threads = u64::from(self.spec.threads);
        let mut most = FIRST_LAUNCH * threads;
        let mut warmup = ctx.warmup();
        while warmup > 0 {
            ctx.go_on("the warm-up")?;
            let (ops, time) = self.launch_rate(ctx, warmup.min(most).div_ceil(threads))?;
            warmup = warmup.saturating_sub(ops);
            most = launch_length(ops, time, FIRST_LAUNCH * threads);
        }
        let (mut rates, mut bandwidths) = (Vec::new(), Vec::new());
        let mut sampling = ctx.sampling();
        loop {
            let ops = sampling.next(most, "completions")?;
            if ops == 0 {
                return Ok((rates, bandwidths));
            }
            let (ops, time) = self.launch_rate(ctx, ops.div_ceil(threads))?;
            rates.push(MMsgs::over(ops, time));
            bandwidths.push(GBs::over(ops * u64::from(self.spec.bytes), time));
            most = launch_length(ops, time, FIRST_LAUNCH * threads);
        }
    }

    fn launch_rate(&mut self, ctx: &RunContext, ops: u64) -> Result<(u64, Duration), PointError> {
        let ops = self.whole_rounds(0, ops);
        let threads = self.spec.threads as usize;
        let (start, end) = (self.rig.words(threads)?, self.rig.words(threads)?);
        self.slots.clear(&self.target)?;
        let first = self.take_values(ops);
        let args = ProxyRateArgs {
            ring: self.proxy.device_views(),
            rings: self.spec.rings,
            threads: self.spec.threads,
            channels: 1,
            bytes: self.spec.bytes,
            ops,
            warmup: 0,
            window: WINDOW,
            first,
            slots: self.slots.slots,
            stride: self.slots.stride,
            local: self.source.address,
            start: start.as_ptr(),
            end: end.as_ptr(),
            failure: self.failures.as_ptr(),
        };
        let before = self.proxy.counters().completed;
        let began = self.rig.virtual_now();
        self.launch(ctx, ProxyKernel::Rate(&args))?;
        let ended = self.rig.virtual_now();
        let all = ops * threads as u64;
        if ctx.check() {
            let done = self.proxy.counters().completed - before;
            self.wrong += all.abs_diff(done);
            self.wrong += self.wrong_slots(&self.target, &self.source, first, ops)?;
        }
        let time = if self.rig.has_virtual_time() {
            Duration::from_nanos(ended - began)
        } else {
            self.rig.span(&start, &end)?
        };
        Ok((all, time))
    }

    /// Known requests come in their order, launch after launch: a launch goes whole rounds of them.
    fn whole_rounds(&self, settle: u64, ops: u64) -> u64 {
        match self.spec.choice.handoff {
            Handoff::MappedCounter => (settle + ops).next_multiple_of(self.slots.slots) - settle,
            _ => ops,
        }
    }

    /// The first of as many payload values as a launch of `each` operations a thread needs.
    fn take_values(&mut self, each: u64) -> u64 {
        let first = self.next;
        self.next += each * u64::from(self.spec.threads);
        first
    }

    fn wrong_slots(
        &self,
        arrived: &Region,
        origin: &Region,
        first: u64,
        each: u64,
    ) -> Result<u64, PointError> {
        self.slots.wrong(arrived, origin, 0..u64::from(self.spec.threads), first, each)
    }

    fn launch(&self, ctx: &RunContext, kernel: ProxyKernel<'_>) -> Result<f64, PointError> {
        let check = |word| self.proxy.check(word).map_err(broke);
        self.failures.write(&vec![0; self.failures.len()]).map_err(broke)?;
        let relax = self.proxy.relax();
        self.rig.launch_proxy(ctx, &self.spec.choice, kernel, &relax, &self.failures, &check)
    }

    /// What every measurement of this bench has in common.
    ///
    /// # Errors
    /// The NIC saw something done wrong.
    pub fn finish(
        &self,
        ctx: &RunContext,
        measurement: Measurement,
    ) -> Result<Measurement, PointError> {
        let mut measurement = self.rig.finish(measurement, None)?;
        if ctx.check() {
            measurement = measurement.checked(self.wrong);
        }
        let counters = self.proxy.counters();
        let choice = &self.spec.choice;
        let reserve = if choice.producers == Producers::Many { "atomic" } else { "owned" };
        // The producer posts by itself there: nothing is chained, and every WQE asks for a CQE.
        let (chain, signal_every) = match choice.handoff {
            Handoff::ProducerCounter => (1, 1),
            _ => (self.spec.chain, self.spec.signal_every),
        };
        // What it is safe for, in the terms in which libraries' paths are described.
        let shared = choice.producers == Producers::Many;
        let sharing = if shared { peers::Sharing::Gpu } else { peers::Sharing::Exclusive };
        let order = match choice.publish {
            Publish::Release => OrderScope::System,
            Publish::Posted => OrderScope::None,
        };
        let scope = match measurement.metric {
            Metric::Consumed => peers::Scope::Taken,
            _ => peers::Scope::One,
        };
        Ok(measurement
            .detail("sharing_scope", sharing.name())
            .detail("order_scope", order.name())
            .detail("space_check", SpaceCheck::Yes.name())
            .detail("completion_scope", scope.name())
            .detail("producers", self.spec.threads)
            .detail("reserve", reserve)
            .detail("progress", choice.progress.name())
            .detail("publish", choice.publish.name())
            .detail("rings", self.spec.rings)
            .detail("ring_depth", self.depth)
            .detail("sq_blocks", self.sq_blocks)
            .detail("workers", self.spec.workers)
            .detail("chain", chain)
            .detail("signal_every", signal_every)
            .detail("requests_a_chain", ratio(counters.requests, counters.chains))
            .detail(
                "workers_run",
                if self.stepped { "stepped by waiting threads" } else { "on threads" },
            ))
    }
}

/// Puts of one ring that may be outstanding in a rate.
pub(super) const WINDOW: u64 = 256;
/// Operations a thread of the first launch of a rate, whose time says how long the next ones are.
const FIRST_LAUNCH: u64 = 64;

/// Operations of a launch of the rate kernel that takes as long as it should, given what one took.
fn launch_length(ops: u64, time: Duration, least: u64) -> u64 {
    let per_second = ops as f64 / time.as_secs_f64().max(1e-9);
    ((per_second * LAUNCH.as_secs_f64()) as u64).clamp(least, 1 << 24)
}

/// `all` in parts of at most `most`.
fn rounds(all: u64, most: u64) -> impl Iterator<Item = u64> {
    (0..all).step_by(most as usize).map(move |done| most.min(all - done))
}

fn ratio(a: u64, b: u64) -> f64 {
    if b == 0 { 0.0 } else { (100.0 * a as f64 / b as f64).round() / 100.0 }
}

fn attributes(
    ctx: &RunContext,
    rig: &Rig,
    spec: &Spec,
    slots: &Slots,
    channel: ChannelAttr,
    drive: Drive,
) -> Result<ProxyAttr, PointError> {
    // A counter can only ask for what the worker knows: one request a slot, in the kernel's order.
    let requests = if spec.choice.handoff == Handoff::MappedCounter {
        (0..slots.slots)
            .map(|slot| Descriptor {
                op: ProxyOp::Put,
                channel: 0,
                size: u64::from(spec.bytes),
                source: slot * slots.stride,
                destination: slot * slots.stride,
            })
            .collect()
    } else {
        Vec::new()
    };
    Ok(ProxyAttr {
        choice: spec.choice,
        rings: spec.rings,
        workers: spec.workers,
        chain: spec.chain,
        signal_every: spec.signal_every,
        channels: vec![channel],
        requests,
        drive,
        deadline: ctx.remaining("the start of the measurement")?.min(Duration::from_secs(10)),
        rings_in: rig.place(MemoryKind::Host),
        state: rig.own(),
        clock: rig.clock,
        ..ProxyAttr::default()
    })
}

fn connect(near: &Arc<dyn Nic>, far: &dyn Nic, attr: &ProxyAttr) -> Result<Proxy, PointError> {
    Proxy::connect(Arc::clone(near), far, attr).map_err(|error| match error {
        // What the axes ask for doesn't go together.
        mini_proxy::ProxyError::IdleWorkers { .. }
        | mini_proxy::ProxyError::Chain { .. }
        | mini_proxy::ProxyError::SignalEvery { .. } => PointError::not_run(error.to_string()),
        // What the NIC can't do.
        mini_proxy::ProxyError::Nic {
            source: rdma::Error::QueuesClosed { .. } | rdma::Error::Lacks { .. },
            ..
        } => PointError::not_run(error.to_string()),
        other => broke(other),
    })
}

/// Enqueue and completion times of one kind of operation.
pub(super) fn enqueue_and_completion(
    ctx: &mut RunContext,
    point: &Point,
    spec: Spec,
    op: ProxyOp,
) -> Result<Vec<Measurement>, PointError> {
    let mut bench = Bench::new(ctx, point, spec)?;
    bench.enqueue_and_completion(ctx, op)
}

/// Of a put: the times to enqueue it, to see that the worker has it, and to see it completed.
pub(super) fn handing_over(
    ctx: &mut RunContext,
    point: &Point,
    spec: Spec,
) -> Result<Vec<Measurement>, PointError> {
    let mut bench = Bench::new(ctx, point, spec)?;
    let mut measured = bench.enqueue_and_completion(ctx, ProxyOp::Put)?;
    let (_, consumed) = bench.enqueue(ctx, ProxyOp::Put, Until::Posted)?;
    measured.insert(1, bench.finish(ctx, Measurement::consumed(consumed))?);
    Ok(measured)
}

impl Bench {
    fn enqueue_and_completion(
        &mut self,
        ctx: &RunContext,
        op: ProxyOp,
    ) -> Result<Vec<Measurement>, PointError> {
        let (enqueue, total) = self.enqueue(ctx, op, Until::Completed)?;
        Ok(vec![
            self.finish(ctx, Measurement::enqueue(enqueue))?,
            self.finish(ctx, Measurement::put_completion(total))?,
        ])
    }
}

/// Round trips of a launch.
const MOST_REPLIES: u64 = 256;

/// An 8-byte put and the remote thread's put in reply, each through its own side's proxy.
pub(super) fn round_trip(
    ctx: &mut RunContext,
    point: &Point,
    choice: ProxyChoice,
) -> Result<Measurement, PointError> {
    // A worker on each side; a remote side of its own has its there.
    let here = if ctx.is_answered() { 0 } else { 1 };
    let mut spec =
        Spec { slots: 1, threads: 1 + here, other_workers: here, ..Spec::one(choice, 8) };
    let bench = Bench::new(ctx, point, spec.clone())?;
    let rig = &bench.rig;
    spec.threads = 1;
    // Each side's value leaves from the first 8 bytes of its region and arrives in a word of the other's.
    let (far_out, near_in) = (rig.region(&rig.far, 64)?, rig.region(&rig.near, 64)?);
    let channel = ChannelAttr { local: far_out.clone(), remote: near_in.clone(), signal: None };
    let slots = Slots::new(8, 1, 1);
    let drive = drive(&rig.cpus, bench.stepped, 1);
    let attr = attributes(ctx, rig, &spec, &slots, channel, drive)?;
    rig.load_proxy(device::source::ProxyKernelKind::RoundTrip, &choice)?;
    let back = match rig.session() {
        Some(session) => {
            let (outbox, inbox) = ((&far_out).into(), (&near_in).into());
            session.prepare(Reply::Proxy { choice, outbox, inbox }).map(|()| None)?
        }
        None => Some(connect(&rig.far, rig.near.as_ref(), &attr)?),
    };
    let asking = bench.proxy.views()[0];
    let views = [asking, back.as_ref().map_or(asking, |back| back.views()[0])];
    let rings = Shared::at(&rig.own(), &views).map_err(broke)?;
    let most = if rig.on_gpu() { LEAST_ON_GPU } else { MOST_REPLIES };
    let ticks = rig.words(most as usize)?;
    let mut samples = Vec::new();
    let mut warmup = rounds(ctx.warmup(), most);
    let mut sampling = None;
    loop {
        let warming = warmup.next();
        if warming.is_some() {
            ctx.go_on("the warm-up")?;
        }
        let ops = match warming {
            Some(ops) => ops,
            None => sampling.get_or_insert_with(|| ctx.sampling()).next(most, "replies")?,
        };
        if ops == 0 {
            break;
        }
        for region in [&near_in, &bench.target] {
            region.memory.write(0, &[0; 8]).map_err(broke)?;
        }
        let args = ProxyRoundTripArgs {
            ring: rings.as_ptr(),
            outbox: [bench.source.address as *mut u64, far_out.address as *mut u64],
            inbox: [near_in.address as *mut u64, bench.target.address as *mut u64],
            warmup: SETTLE,
            samples: ops,
            deadline: views[0].deadline,
            ticks: ticks.as_ptr(),
            failure: bench.failures.as_ptr(),
            first_side: 0,
            sides: 1 + here,
        };
        let check = |word| {
            bench.proxy.check(word).map_err(broke)?;
            back.as_ref().map_or(Ok(()), |back| back.check(word).map_err(broke))
        };
        bench.failures.write(&vec![0; bench.failures.len()]).map_err(broke)?;
        let relax: Box<dyn Relax> = match &back {
            Some(back) => Box::new(Proxy::relax_all([&bench.proxy, back])),
            None => Box::new(bench.proxy.relax()),
        };
        let relax = relax.as_ref();
        let kernel = ProxyKernel::RoundTrip(&args);
        let launch = || rig.launch_proxy(ctx, &choice, kernel, relax, &bench.failures, &check);
        let hertz = match rig.session() {
            Some(session) => {
                let asked = Launch::Proxy {
                    outbox: far_out.address,
                    inbox: bench.target.address,
                    warmup: SETTLE,
                    samples: ops,
                };
                session.answered(asked, ctx.remaining("a launch")?, launch)
            }
            None => launch(),
        }?;
        if warming.is_none() {
            let ticks = ticks.read().map_err(broke)?;
            samples.extend(ticks[..ops as usize].iter().map(|t| Micros::from_ticks(*t, hertz)));
        }
    }
    // Each side checks that every value that arrives is the next one: wrong data would have failed above.
    bench.finish(ctx, Measurement::round_trip(samples))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warm_up_is_done_to_its_end_and_one_of_nothing_does_nothing() {
        for (all, most, parts) in [
            (0, 256, vec![]),
            (8, 256, vec![8]),
            (600, 256, vec![256, 256, 88]),
            (2, 1, vec![1, 1]),
        ] {
            assert_eq!(rounds(all, most).collect::<Vec<_>>(), parts);
        }
    }

    #[test]
    fn a_launch_is_as_long_as_it_should_be_whatever_the_last_one_was() {
        let length = |ops, micros| launch_length(ops, Duration::from_micros(micros), 64);
        assert_eq!(length(1000, 1000), 5000);
        assert_eq!(length(64, 1_000_000), 64);
        assert_eq!(length(1 << 20, 0), 1 << 24);
    }
}
