//! The bench that mini-proxy's experiments share; what it takes care of is what [`gda`](super::gda)'s does.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use device::host::{self, LaunchError};
use device::proxy::{
    Descriptor, EnqueueArgs, Handoff, Producers, ProxyChoice, ProxyKernel, ProxyOp, ProxyRateArgs,
    ProxyRoundTripArgs,
};
use mini_proxy::{ChannelAttr, Drive, Proxy, ProxyAttr};
use rdma::soft::{Fabric, SoftNic};
use rdma::{Access, Memory, Nic as _, Region};

use crate::context::RunContext;
use crate::cpus::Assignment;
use crate::measurement::Measurement;
use crate::point::{Point, PointError};
use crate::quantity::{GBs, MMsgs, Micros};

use super::gda::{LAUNCH, SETTLE, broke, clock_of, fabric};
use super::payload::{Slots, fill};

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
    fabric: Fabric,
    near: Arc<SoftNic>,
    far: Arc<SoftNic>,
    source: Region,
    target: Region,
    signal: Region,
    proxy: Proxy,
    spec: Spec,
    slots: Slots,
    clock: host::Clock,
    cpus: Assignment,
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

fn drive(cpus: &Assignment, stepped: bool) -> Drive {
    if stepped { Drive::Stepped } else { Drive::Threads { cpus: cpus.workers.clone() } }
}

impl Bench {
    pub fn new(ctx: &mut RunContext, point: &Point, spec: Spec) -> Result<Self, PointError> {
        let cpus = ctx.place(spec.threads as usize, spec.workers as usize, 1);
        let fabric = fabric(point, &cpus, spec.workers, spec.virtual_time)?;
        let (near, far) = (Arc::clone(fabric.nic(0)), Arc::clone(fabric.nic(1)));
        let slots = Slots::new(spec.bytes, spec.slots, spec.threads);
        let all = Access::all();
        let source = near.register(&slots.memory(), all).map_err(broke)?;
        let target = far.register(&slots.memory(), all).map_err(broke)?;
        let signal = far.register(&Memory::zeroed(64), all).map_err(broke)?;
        fill(&source.memory, ctx.seed());
        // Spinning workers without a core of their own would measure the scheduler.
        let by_waiters = spec.virtual_time || cpus.oversubscribed();
        let drive = drive(&cpus, by_waiters);
        let channel = ChannelAttr {
            local: source.clone(),
            remote: target.clone(),
            signal: Some((signal.clone(), 0)),
        };
        let deadline = ctx.remaining("the start of the measurement")?.min(Duration::from_secs(10));
        let attr = attributes(&spec, &slots, channel, drive, deadline);
        let proxy = connect(&near, far.as_ref(), &attr)?;
        let sq_blocks = 1 << attr.log_blocks;
        let built = spec.choice.handoff == Handoff::ProducerCounter;
        Ok(Bench {
            fabric,
            near,
            far,
            source,
            target,
            signal,
            proxy,
            spec,
            slots,
            clock: host::Clock::host(),
            cpus,
            depth: if built { sq_blocks } else { attr.depth },
            sq_blocks,
            next: 1,
            signals: 0,
            wrong: 0,
            stepped: by_waiters,
        })
    }

    /// One operation at a time and thread, until the point has been sampled enough: enqueue times, and times
    /// with completion.
    pub fn enqueue(
        &mut self,
        ctx: &RunContext,
        op: ProxyOp,
    ) -> Result<(Vec<Micros>, Vec<Micros>), PointError> {
        let (mut enqueue, mut total) = (Vec::new(), Vec::new());
        let threads = u64::from(self.spec.threads);
        let most = self.slots.slots * threads;
        for ops in rounds(ctx.warmup(), most) {
            ctx.go_on("the warm-up")?;
            self.launch_enqueue(ctx, op, ops.div_ceil(threads), &mut Vec::new(), &mut Vec::new())?;
        }
        let mut sampling = ctx.sampling();
        loop {
            let ops = sampling.next(most, "completions")?;
            if ops == 0 {
                return Ok((enqueue, total));
            }
            self.launch_enqueue(ctx, op, ops.div_ceil(threads), &mut enqueue, &mut total)?;
        }
    }

    fn launch_enqueue(
        &mut self,
        ctx: &RunContext,
        op: ProxyOp,
        ops: u64,
        enqueue: &mut Vec<Micros>,
        total: &mut Vec<Micros>,
    ) -> Result<(), PointError> {
        let threads = self.spec.threads as usize;
        let ops = self.whole_rounds(SETTLE, ops);
        let mut ticks = [vec![0u64; ops as usize * threads], vec![0u64; ops as usize * threads]];
        let mut failure = vec![0u64; threads];
        let each = SETTLE + ops;
        let first = self.take_values(each);
        match op {
            ProxyOp::Get => {
                self.slots.clear(&self.source);
                for thread in 0..threads as u64 {
                    self.slots.mark(&self.target, thread, first + thread * each, each);
                }
            }
            _ => self.slots.clear(&self.target),
        }
        let [issue, done] = &mut ticks;
        let args = EnqueueArgs {
            ring: self.proxy.views().as_ptr(),
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
            enqueue: issue.as_mut_ptr(),
            total: done.as_mut_ptr(),
            failure: failure.as_mut_ptr(),
        };
        self.launch(ProxyKernel::Enqueue(op, &args), &failure)?;
        let hertz = self.clock.ticks_per_us * 1e6;
        enqueue.extend(ticks[0].iter().map(|t| Micros::from_ticks(*t, hertz)));
        total.extend(ticks[1].iter().map(|t| Micros::from_ticks(*t, hertz)));
        if ctx.check() {
            let all = each * threads as u64;
            match op {
                ProxyOp::FetchAdd => {
                    let seen = self.target.memory.word(0).load(Ordering::Acquire);
                    self.wrong += all.abs_diff(seen);
                }
                ProxyOp::Get => {
                    self.wrong += self.wrong_slots(&self.source, &self.target, first, each)
                }
                _ => self.wrong += self.wrong_slots(&self.target, &self.source, first, each),
            }
            if op == ProxyOp::PutSignal {
                let expected = self.signals + all;
                self.signals = self.signal.memory.word(0).load(Ordering::Acquire);
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
        let (mut start, mut end, mut failure) =
            (vec![0u64; threads], vec![0u64; threads], vec![0u64; threads]);
        self.slots.clear(&self.target);
        let first = self.take_values(ops);
        let args = ProxyRateArgs {
            ring: self.proxy.views().as_ptr(),
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
            start: start.as_mut_ptr(),
            end: end.as_mut_ptr(),
            failure: failure.as_mut_ptr(),
        };
        let before = self.proxy.counters().completed;
        let began = self.fabric.engine().now();
        self.launch(ProxyKernel::Rate(&args), &failure)?;
        let ended = self.fabric.engine().now();
        let all = ops * threads as u64;
        if ctx.check() {
            let done = self.proxy.counters().completed - before;
            self.wrong += all.abs_diff(done);
            self.wrong += self.wrong_slots(&self.target, &self.source, first, ops);
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

    fn wrong_slots(&self, arrived: &Region, origin: &Region, first: u64, each: u64) -> u64 {
        (0..u64::from(self.spec.threads))
            .map(|thread| self.slots.wrong(arrived, origin, thread, first + thread * each, each))
            .sum()
    }

    fn launch(&self, kernel: ProxyKernel<'_>, failures: &[u64]) -> Result<(), PointError> {
        let relax = self.proxy.relax();
        // SAFETY: views and regions live as long as the bench, sample buffers as long as the caller's frame, and
        // both have the sizes that the arguments say.
        unsafe {
            device::proxy::launch(&self.spec.choice, kernel, &self.cpus.submitters, Some(&relax))
        }
        .map_err(launch_error)?;
        failures.iter().try_for_each(|word| self.proxy.check(*word).map_err(broke))
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
        let mut measurement = measurement.clock(clock_of(&self.clock, self.spec.virtual_time));
        if ctx.check() {
            measurement = measurement.checked(self.wrong);
        }
        let findings =
            [self.near.findings().map_err(broke)?, self.far.findings().map_err(broke)?].concat();
        if let Some(first) = findings.first() {
            return Err(PointError::failed(format!(
                "the NIC reports {} findings, first: {first}",
                findings.len()
            )));
        }
        let counters = self.proxy.counters();
        let choice = &self.spec.choice;
        let reserve = if choice.producers == Producers::Many { "atomic" } else { "owned" };
        // The producer posts by itself there: nothing is chained, and every WQE asks for a CQE.
        let (chain, signal_every) = match choice.handoff {
            Handoff::ProducerCounter => (1, 1),
            _ => (self.spec.chain, self.spec.signal_every),
        };
        Ok(measurement
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
            )
            .detail("nic_findings", findings.len() as u64))
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

fn launch_error(error: LaunchError) -> PointError {
    match error {
        LaunchError::NotBuilt { .. } | LaunchError::ProxyNotBuilt { .. } => {
            PointError::not_run(error.to_string())
        }
        other => broke(other),
    }
}

fn attributes(
    spec: &Spec,
    slots: &Slots,
    channel: ChannelAttr,
    drive: Drive,
    deadline: Duration,
) -> ProxyAttr {
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
    ProxyAttr {
        choice: spec.choice,
        rings: spec.rings,
        workers: spec.workers,
        chain: spec.chain,
        signal_every: spec.signal_every,
        channels: vec![channel],
        requests,
        drive,
        deadline,
        ..ProxyAttr::default()
    }
}

fn connect(
    near: &Arc<SoftNic>,
    far: &dyn rdma::Nic,
    attr: &ProxyAttr,
) -> Result<Proxy, PointError> {
    Proxy::connect(Arc::clone(near) as Arc<dyn rdma::Nic>, far, attr).map_err(|error| match error {
        // What the axes ask for doesn't go together.
        mini_proxy::ProxyError::IdleWorkers { .. }
        | mini_proxy::ProxyError::Chain { .. }
        | mini_proxy::ProxyError::SignalEvery { .. } => PointError::not_run(error.to_string()),
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
    let (enqueue, total) = bench.enqueue(ctx, op)?;
    Ok(vec![
        bench.finish(ctx, Measurement::enqueue(enqueue))?,
        bench.finish(ctx, Measurement::put_completion(total))?,
    ])
}

/// Round trips of a launch.
const MOST_REPLIES: u64 = 256;

/// An 8-byte put and the remote thread's put in reply, each through its own side's proxy.
pub(super) fn round_trip(
    ctx: &mut RunContext,
    point: &Point,
    choice: ProxyChoice,
) -> Result<Measurement, PointError> {
    let mut spec = Spec { slots: 1, threads: 2, ..Spec::one(choice, 8) };
    let bench = Bench::new(ctx, point, spec.clone())?;
    spec.threads = 1;
    // Each side's value leaves from the first 8 bytes of its region and arrives in a word of the other's.
    let (far_out, near_in) = (
        bench.far.register(&Memory::zeroed(64), Access::all()).map_err(broke)?,
        bench.near.register(&Memory::zeroed(64), Access::all()).map_err(broke)?,
    );
    let channel = ChannelAttr { local: far_out.clone(), remote: near_in.clone(), signal: None };
    let slots = Slots::new(8, 1, 1);
    let deadline = ctx.remaining("the start of the measurement")?.min(Duration::from_secs(10));
    let drive = drive(&bench.cpus, bench.stepped);
    let attr = attributes(&spec, &slots, channel, drive, deadline);
    let back = connect(&bench.far, bench.near.as_ref(), &attr)?;
    let rings = [bench.proxy.views()[0], back.views()[0]];
    let hertz = bench.clock.ticks_per_us * 1e6;
    let mut samples = Vec::new();
    let mut warmup = rounds(ctx.warmup(), MOST_REPLIES);
    let mut sampling = None;
    loop {
        let warming = warmup.next();
        if warming.is_some() {
            ctx.go_on("the warm-up")?;
        }
        let ops = match warming {
            Some(ops) => ops,
            None => sampling.get_or_insert_with(|| ctx.sampling()).next(MOST_REPLIES, "replies")?,
        };
        if ops == 0 {
            break;
        }
        near_in.memory.word(0).store(0, Ordering::Relaxed);
        bench.target.memory.word(0).store(0, Ordering::Relaxed);
        let (mut ticks, mut failure) = (vec![0u64; ops as usize], [0u64; 2]);
        let args = ProxyRoundTripArgs {
            ring: rings.as_ptr(),
            outbox: [bench.source.address as *mut u64, far_out.address as *mut u64],
            inbox: [near_in.address as *mut u64, bench.target.address as *mut u64],
            warmup: SETTLE,
            samples: ops,
            deadline: rings[0].deadline,
            ticks: ticks.as_mut_ptr(),
            failure: failure.as_mut_ptr(),
        };
        let relax = Proxy::relax_all([&bench.proxy, &back]);
        // SAFETY: rings, regions and sample buffers outlive the launch and have the sizes that are said.
        unsafe {
            device::proxy::launch(
                &choice,
                ProxyKernel::RoundTrip(&args),
                &bench.cpus.submitters,
                Some(&relax),
            )
        }
        .map_err(launch_error)?;
        bench.proxy.check(failure[0]).map_err(broke)?;
        back.check(failure[1]).map_err(broke)?;
        if warming.is_none() {
            samples.extend(ticks.iter().map(|t| Micros::from_ticks(*t, hertz)));
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
