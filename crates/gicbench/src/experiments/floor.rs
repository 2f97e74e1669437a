//! `floor`: what does the way itself cost, without queue, doorbell and NIC?

use std::time::Duration;

use device::direct::{DirectArgs, DirectKernel, DirectKind, DirectRoundTripArgs, Move};
use device::shared::Shared;
use device::view::{Failure, Op};
use rdma::Region;

use super::gda::{LAUNCH, LEAST_ON_GPU, SETTLE};
use super::latency::with_rest;
use super::payload::{Slots, fill};
use super::rig::{Need, Rig, broke, word};
use super::{AxisUse, Experiment, Impossible, Limits, Suite};
use crate::axes::AxisId;
use crate::context::RunContext;
use crate::measurement::{Measurement, Metric};
use crate::point::{Point, PointError, Submitter, Transport};
use crate::quantity::{GBs, Micros};
use crate::ranks::protocol::{Launch, Reply};

pub(super) struct Floor;

impl Experiment for Floor {
    fn name(&self) -> &'static str {
        "floor"
    }

    fn question(&self) -> &'static str {
        "what does the way itself cost, without queue, doorbell and NIC?"
    }

    fn transports(&self) -> &'static [Transport] {
        &[Transport::Direct]
    }

    fn metrics(&self) -> &'static [Metric] {
        &[Metric::Issue, Metric::PutCompletion, Metric::RoundTrip, Metric::Bandwidth]
    }

    fn axes(&self) -> &'static [AxisUse] {
        const AXES: &[AxisUse] = &[
            AxisUse::new(AxisId::Move, "store,bulk", "store,bulk"),
            AxisUse::new(AxisId::Op, "put,put-signal", "put,get,atomic,put-signal"),
            AxisUse::new(AxisId::Payload, "8,4K", "8,64,512,4K,32K,256K,1M"),
            AxisUse::new(AxisId::PayloadMemory, "auto", "auto"),
            AxisUse::new(AxisId::Ctas, "1", "1,16,64"),
        ];
        AXES
    }

    fn limits(&self, suite: Suite) -> Limits {
        match suite {
            Suite::Quick => Limits::new(5_000, 200, 100),
            Suite::Full => Limits::new(100_000, 1_000, 2_000),
        }
    }

    fn possible(&self, point: &Point) -> Result<(), Impossible> {
        let is = |axis, word| point.get(axis).and_then(|value| value.word()) == Some(word);
        let bytes = point.number(AxisId::Payload).unwrap_or(0);
        let clash = |axis, with, why: &str, nearest: &str| {
            Err(Impossible { axis, with, why: why.to_owned(), nearest: vec![nearest.to_owned()] })
        };
        if is(AxisId::Move, "bulk") && !bytes.is_multiple_of(16) {
            return clash(
                AxisId::Payload,
                AxisId::Move,
                "bulk copies have multiples of 16 B",
                "16",
            );
        }
        if is(AxisId::Op, "atomic") && bytes != 8 {
            return clash(AxisId::Payload, AxisId::Op, "an atomic has 8 B", "8");
        }
        let many = point.number(AxisId::Ctas).is_ok_and(|ctas| ctas > 1);
        if many && !(is(AxisId::Op, "put") || is(AxisId::Op, "get")) {
            return clash(AxisId::Ctas, AxisId::Op, "of many CTAs the bandwidth is measured", "1");
        }
        Ok(())
    }

    /// Bulk copies are a GPU's.
    fn in_suite(&self, point: &Point, given: &dyn Fn(AxisId) -> bool) -> bool {
        point.submitter == Submitter::Cuda
            || given(AxisId::Move)
            || point.get(AxisId::Move).and_then(|value| value.word()) != Some("bulk")
    }

    fn run(&self, ctx: &mut RunContext, point: &Point) -> Result<Vec<Measurement>, PointError> {
        if ctx.team().is_some() {
            return Err(PointError::not_run(
                "another process's memory isn't this one's to store to: between two GPUs use --remote-gpu",
            ));
        }
        let op = match point.word(AxisId::Op)? {
            "get" => Op::Get,
            "atomic" => Op::FetchAdd,
            "put-signal" => Op::PutSignal,
            _ => Op::Put,
        };
        let by = match point.word(AxisId::Move)? {
            "bulk" => Move::Bulk,
            _ => Move::Store,
        };
        if by == Move::Bulk && point.submitter == Submitter::Host {
            return Err(PointError::not_run("bulk copies are a GPU's: use --submitter cuda"));
        }
        let ctas = point.number_as(AxisId::Ctas)?;
        let mut measured = Vec::new();
        if op == Op::Put && by == Move::Store && ctas == 1 && point.number(AxisId::Payload) == Ok(8)
        {
            measured.push(round_trip(ctx, point)?);
        }
        with_rest(measured, times(ctx, point, (op, by), ctas))
    }
}

fn times(
    ctx: &mut RunContext,
    point: &Point,
    (op, by): (Op, Move),
    ctas: u32,
) -> Result<Vec<Measurement>, PointError> {
    let mut bench = Bench::new(ctx, point, by, ctas, ctas as usize)?;
    let mut measured = Vec::new();
    if ctas == 1 {
        let [issue, total] = bench.latency(ctx, op)?;
        measured.push(bench.finish(ctx, Measurement::issue(issue))?);
        measured.push(bench.finish(ctx, Measurement::put_completion(total))?);
    }
    if matches!(op, Op::Put | Op::Get) {
        let rest = bench.bandwidth(ctx, op == Op::Get);
        let rest =
            rest.and_then(|rates| Ok(vec![bench.finish(ctx, Measurement::bandwidth(rates))?]));
        return with_rest(measured, rest);
    }
    Ok(measured)
}

struct Bench {
    rig: Rig,
    by: Move,
    blocks: u32,
    lanes: u32,
    slots: Slots,
    source: Region,
    target: Region,
    /// What an atomic leaves, and where a round trip's answer arrives.
    result: Region,
    signal: Region,
    ticks: [Shared<u64>; 2],
    failures: Shared<u64>,
    /// The next unused payload value.
    next: u64,
    signals: u64,
    wrong: u64,
}

/// Threads of a CTA, at most.
const MOST_LANES: u32 = 1024;

impl Bench {
    fn new(
        ctx: &mut RunContext,
        point: &Point,
        by: Move,
        blocks: u32,
        submitters: usize,
    ) -> Result<Self, PointError> {
        let need = Need { qps: 1, submitters, workers: 0, ringers: 0, virtual_time: false };
        let rig = Rig::open(ctx, point, &need)?;
        let bytes: u32 = point.number_as(AxisId::Payload)?;
        // 16 bytes a thread; a CPU's thread is a block by itself, and bulk copies are one thread's.
        let lanes = match (rig.on_gpu(), by) {
            (false, _) => 1,
            (true, Move::Bulk) => 32,
            (true, Move::Store) if bytes <= 16 => 1,
            (true, Move::Store) => bytes.div_ceil(16).next_multiple_of(32).min(MOST_LANES),
        };
        let wanted = if rig.on_gpu() { LEAST_ON_GPU } else { 256 };
        let slots = Slots::new(bytes, wanted, blocks).aligned(if bytes >= 16 { 16 } else { 8 });
        let source = rig.region(&rig.near, slots.length())?;
        let target = rig.region(&rig.far, slots.length())?;
        let (result, signal) = (rig.region(&rig.near, 64)?, rig.region(&rig.far, 64)?);
        fill(&source, ctx.seed())?;
        Ok(Self {
            by,
            blocks,
            lanes,
            source,
            target,
            result,
            signal,
            ticks: [rig.words(slots.slots as usize)?, rig.words(slots.slots as usize)?],
            failures: rig.words(blocks.max(2) as usize)?,
            rig,
            slots,
            next: 1,
            signals: 0,
            wrong: 0,
        })
    }

    fn args(&self, ctx: &RunContext) -> Result<DirectArgs, PointError> {
        let deadline = ctx.remaining("a launch")?.min(Duration::from_secs(10));
        Ok(DirectArgs {
            local: self.source.address,
            remote: self.target.address,
            result: self.result.address,
            signal: self.signal.address,
            signalled: self.signals,
            stride: self.slots.stride,
            warmup: 0,
            samples: 0,
            first: self.next,
            deadline: self.rig.clock.ticks(deadline),
            issue: self.ticks[0].as_ptr(),
            total: self.ticks[1].as_ptr(),
            failure: self.failures.as_ptr(),
            arrived: std::ptr::null_mut(),
            bytes: self.slots.bytes,
            slots: self.slots.slots as u32,
            lanes: self.lanes,
            blocks: self.blocks,
            is_get: 0,
            padding: 0,
        })
    }

    fn launch(&self, ctx: &RunContext, kernel: DirectKernel<'_>) -> Result<f64, PointError> {
        self.failures.write(&vec![0; self.failures.len()]).map_err(broke)?;
        self.rig.launch_direct(ctx, kernel, &self.failures, &arrived)
    }

    /// Issue and completion of one operation at a time, until the point has been sampled enough.
    fn latency(&mut self, ctx: &RunContext, op: Op) -> Result<[Vec<Micros>; 2], PointError> {
        let mut samples = [Vec::new(), Vec::new()];
        let mut warmup = ctx.warmup();
        while warmup > 0 {
            ctx.go_on("the warm-up")?;
            let ops = warmup.min(self.slots.slots);
            self.launch_latency(ctx, op, ops, &mut [Vec::new(), Vec::new()])?;
            warmup -= ops;
        }
        let mut sampling = ctx.sampling();
        loop {
            let ops = sampling.next(self.slots.slots, "completions")?;
            if ops == 0 {
                return Ok(samples);
            }
            self.launch_latency(ctx, op, ops, &mut samples)?;
        }
    }

    fn launch_latency(
        &mut self,
        ctx: &RunContext,
        op: Op,
        ops: u64,
        into: &mut [Vec<Micros>; 2],
    ) -> Result<(), PointError> {
        let first = self.next;
        let all = SETTLE + ops;
        if op == Op::Get {
            self.slots.mark(&self.target, 0..1, first, all)?;
        }
        let args = DirectArgs { warmup: SETTLE, samples: ops, ..self.args(ctx)? };
        self.next += all;
        let hertz = self.launch(ctx, DirectKernel::Latency(self.by, op, &args))?;
        for (ticks, into) in self.ticks.iter().zip(into) {
            let ticks = ticks.read().map_err(broke)?;
            into.extend(ticks[..ops as usize].iter().map(|t| Micros::from_ticks(*t, hertz)));
        }
        let signals = if matches!(op, Op::FetchAdd | Op::PutSignal) { all } else { 0 };
        self.signals += signals;
        if ctx.check() {
            let (arrived, origin) = match op {
                Op::Get => (&self.source, &self.target),
                _ => (&self.target, &self.source),
            };
            if op != Op::FetchAdd {
                self.wrong += self.slots.wrong(arrived, origin, 0..1, first, all)?;
            }
            self.wrong += self.signals.abs_diff(word(&self.signal)?);
            if op == Op::FetchAdd {
                self.wrong += u64::from(word(&self.result)? + 1 != self.signals);
            }
        }
        Ok(())
    }

    /// Many operations of every block; one sample a launch.
    fn bandwidth(&mut self, ctx: &RunContext, is_get: bool) -> Result<Vec<GBs>, PointError> {
        let (mut done, mut time) = (0, Duration::ZERO);
        let mut warmup = ctx.warmup().max(1);
        while warmup > 0 {
            ctx.go_on("the warm-up")?;
            let ops = warmup.min(256);
            time += self.launch_rate(ctx, is_get, ops)?;
            done += ops;
            warmup -= ops;
        }
        let per_second = done as f64 / time.as_secs_f64().max(1e-9);
        let most = ((per_second * LAUNCH.as_secs_f64()) as u64).clamp(1, 1 << 24);
        let mut rates = Vec::new();
        let mut sampling = ctx.sampling();
        loop {
            let ops = sampling.next(most, "completions")?;
            // What is left at the end is too little for a rate of its own.
            if ops == 0 || (ops < most / 4 && !rates.is_empty()) {
                return Ok(rates);
            }
            let took = self.launch_rate(ctx, is_get, ops)?;
            let bytes = ops * u64::from(self.blocks) * u64::from(self.slots.bytes);
            rates.push(GBs::over(bytes, took));
        }
    }

    /// The time in which every block did `ops` operations.
    fn launch_rate(
        &mut self,
        ctx: &RunContext,
        is_get: bool,
        ops: u64,
    ) -> Result<Duration, PointError> {
        let blocks = self.blocks as usize;
        let (start, end) = (self.rig.words(blocks)?, self.rig.words(blocks)?);
        let met = self.rig.words(1)?;
        let first = self.next;
        if is_get {
            self.slots.mark(&self.target, 0..blocks as u64, first, ops)?;
        }
        let args = DirectArgs {
            samples: ops,
            issue: start.as_ptr(),
            total: end.as_ptr(),
            arrived: met.as_ptr().cast(),
            is_get: is_get.into(),
            ..self.args(ctx)?
        };
        self.next += ops * blocks as u64;
        self.launch(ctx, DirectKernel::Rate(self.by, &args))?;
        if ctx.check() {
            let (arrived, origin) =
                if is_get { (&self.source, &self.target) } else { (&self.target, &self.source) };
            self.wrong += self.slots.wrong(arrived, origin, 0..blocks as u64, first, ops)?;
        }
        self.rig.span(&start, &end)
    }

    fn finish(
        &self,
        ctx: &RunContext,
        measurement: Measurement,
    ) -> Result<Measurement, PointError> {
        let mut measurement = self.rig.finish(measurement, None)?;
        if ctx.check() {
            measurement = measurement.checked(self.wrong);
        }
        Ok(measurement
            .detail("threads_of_a_cta", self.lanes)
            .detail("payload_slots", self.slots.slots))
    }
}

/// What a thread left: it waited in vain.
pub(super) fn arrived(word: u64) -> Result<(), PointError> {
    match Failure::unpack(word) {
        None => Ok(()),
        Some(failure) => Err(PointError::failed(format!("value {}: {failure}", failure.index))),
    }
}

/// A thread stores 8 bytes, and another one's in reply.
fn round_trip(ctx: &mut RunContext, point: &Point) -> Result<Measurement, PointError> {
    let here = if ctx.is_answered() { 1 } else { 2 };
    let bench = Bench::new(ctx, point, Move::Store, 1, here as usize)?;
    let rig = &bench.rig;
    rig.load_direct(DirectKind::RoundTrip)?;
    if let Some(session) = rig.session() {
        session.prepare(Reply::Direct)?;
    }
    let (inbox, outbox) = (&bench.result, &bench.signal);
    let mut samples = Vec::new();
    let mut warmup = ctx.warmup();
    let mut sampling = ctx.sampling();
    loop {
        let warming = warmup > 0;
        let most = bench.slots.slots;
        let ops = if warming { warmup.min(most) } else { sampling.next(most, "replies")? };
        if ops == 0 {
            break;
        }
        if warming {
            ctx.go_on("the warm-up")?;
            warmup -= ops;
            sampling = ctx.sampling();
        }
        for region in [inbox, outbox] {
            region.memory.write(0, &[0; 8]).map_err(broke)?;
        }
        let there = outbox.address as *mut u64;
        let args = DirectRoundTripArgs {
            inbox: [inbox.address as *mut u64, there],
            outbox: [there, inbox.address as *mut u64],
            warmup: SETTLE,
            samples: ops,
            deadline: bench.args(ctx)?.deadline,
            ticks: bench.ticks[0].as_ptr(),
            failure: bench.failures.as_ptr(),
            first_side: 0,
            sides: here,
        };
        let launch = || bench.launch(ctx, DirectKernel::RoundTrip(&args));
        let hertz = match rig.session() {
            Some(session) => {
                let (inbox, to) = (outbox.address, inbox.address);
                let asked = Launch::Direct { inbox, to, warmup: SETTLE, samples: ops };
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
