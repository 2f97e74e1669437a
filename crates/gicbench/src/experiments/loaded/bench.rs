//! A probe and its background between two NICs, launch by launch.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use device::choice::{Choice, Sharing};
use device::host::{LaunchError, Relax};
use device::loaded::{
    self, Args, CONTROL_WORDS, Choices, Load, LoadedArgs, PROGRESS_WORDS, ProxyLoadedArgs,
    VALUE_SHIFT,
};
use device::shared::Shared;
use device::view::{Local, Remote};
use mini_gda::{Gda, GdaAttr};
use mini_proxy::{ChannelAttr, Drive, Proxy, ProxyAttr};
use rdma::{Nic, Region};

use super::super::completed::Completed;
use super::super::gda::SETTLE;
use super::super::payload::{Slots, fill};
use super::super::proxy::tuned;
use super::super::rig::{Need, Rig, broke, order};
use crate::axes::AxisId;
use crate::context::RunContext;
use crate::measurement::{Measurement, MemoryKind};
use crate::point::{Point, PointError, Transport};
use crate::quantity::Micros;
use crate::ranks::protocol::{Launch, LoadWords, Reply};

/// Longest that one launch should take.
const LAUNCH: Duration = Duration::from_millis(20);
/// Samples of a launch before it is known how long one takes, and at least.
const FEWEST: u64 = 16;
/// Samples of a launch, at most.
const MOST: u64 = 1 << 16;
/// How long the background is measured without a probe.
const ALONE: Duration = Duration::from_millis(10);

/// What a point asks for.
#[derive(Clone)]
pub(super) struct Traffic {
    /// Background threads.
    pub ctas: u32,
    /// Queues of the background.
    pub queues: u32,
    /// Whether the probe is on one of them.
    pub shared: bool,
    /// Whether a proxy has a worker for the probe's ring alone.
    pub own_worker: bool,
    /// Bytes of the probe's operation.
    pub bytes: u32,
    pub background_bytes: u32,
    pub window: u32,
    /// Operations a second and background thread; 0: as many as it can.
    pub pace: u64,
}

impl Traffic {
    pub fn of(point: &Point, queues: AxisId) -> Result<Self, PointError> {
        let queue = point.word(AxisId::ProbeQueue)?;
        Ok(Traffic {
            ctas: point.number_as(AxisId::Ctas)?,
            queues: point.number_as(queues)?,
            shared: queue == "shared",
            own_worker: queue == "private-worker",
            bytes: point.number_as(AxisId::Payload)?,
            background_bytes: point.number_as(AxisId::BackgroundPayload)?,
            window: point.number_as(AxisId::Window)?,
            pace: point.number(AxisId::Pace)?,
        })
    }

    /// Queues in all; the probe's own one is the last.
    fn all_queues(&self) -> u32 {
        self.queues + u32::from(!self.shared)
    }

    fn probe_queue(&self) -> u32 {
        if self.shared { 0 } else { self.queues }
    }

    /// Whether background queues have several users.
    fn crowded(&self) -> bool {
        self.shared || self.ctas > self.queues
    }

    fn workers(&self) -> u32 {
        1 + u32::from(self.own_worker)
    }
}

/// What carries it, each with the far side's own for replies, unless that is another rank's.
enum Path {
    Gda { gda: Box<Gda>, back: Option<Box<Gda>> },
    Proxy { proxy: Box<Proxy>, back: Option<Box<Proxy>> },
}

impl Path {
    fn replies_here(&self) -> bool {
        match self {
            Path::Gda { back, .. } => back.is_some(),
            Path::Proxy { back, .. } => back.is_some(),
        }
    }
}

pub(super) struct Bench {
    path: Path,
    choices: Choices,
    rig: Rig,
    source: Region,
    target: Region,
    /// At the far side: where replies leave.
    outbox: Region,
    /// At the near side: where replies arrive.
    inbox: Region,
    words: Words,
    traffic: Traffic,
    /// Replies are timed.
    replies: bool,
    probe_slots: Slots,
    slots: Slots,
    /// The next unused payload value.
    next: u64,
    wrong: u64,
}

/// What a launch reads and writes.
struct Words {
    control: Shared<u64>,
    progress: Shared<u64>,
    carried: Shared<u64>,
    done: Shared<u64>,
    failures: Shared<u64>,
    issue: Shared<u64>,
    total: Shared<u64>,
}

/// What the background completed, in what time.
#[derive(Clone, Copy, Default)]
struct Carried {
    operations: u64,
    micros: f64,
}

impl Carried {
    /// Million operations a second; none where no time went by.
    fn rate(self) -> Option<f64> {
        let rate = self.operations as f64 / self.micros;
        (self.micros > 0.0).then(|| (rate * 1e6).round() / 1e6)
    }
}

/// Samples of all launches, and what was carried beside them.
#[derive(Default)]
pub(super) struct Samples {
    pub issue: Vec<Micros>,
    pub total: Vec<Micros>,
    pub carried: Beside,
}

/// What the background carried, beside the probe and without it.
#[derive(Clone, Copy, Default)]
pub(super) struct Beside {
    probed: Carried,
    alone: Option<Carried>,
}

impl Bench {
    pub fn new(
        ctx: &mut RunContext,
        point: &Point,
        traffic: &Traffic,
        replies: bool,
    ) -> Result<Self, PointError> {
        let traffic = traffic.clone();
        let proxied = point.transport == Transport::MiniProxy;
        // A remote side of its own has a thread, and a worker, there.
        let answers = u32::from(replies && !ctx.is_answered());
        // Each proxy has workers of its own.
        let workers = if proxied { traffic.workers() + answers } else { 0 };
        let rig = Rig::open(
            ctx,
            point,
            &Need {
                qps: traffic.all_queues().max(workers) + 1,
                submitters: 1 + traffic.ctas as usize + answers as usize,
                workers: workers as usize,
                ringers: 0,
                virtual_time: false,
            },
        )?;
        rig.completes()?;
        let probe_slots = Slots::new(traffic.bytes, 256, 1);
        // A slot an outstanding operation: none is written again while the NIC may still read it.
        let slots =
            Slots::new(traffic.background_bytes, traffic.window.into(), traffic.ctas.max(1))
                .behind(&probe_slots);
        let source = rig.region(&rig.near, slots.length())?;
        let target = rig.region(&rig.far, slots.length())?;
        let (outbox, inbox) = (rig.region(&rig.far, 64)?, rig.region(&rig.near, 64)?);
        fill(&source, ctx.seed())?;
        let deadline = ctx.remaining("the start of the measurement")?.min(Duration::from_secs(10));
        let (path, choices) = if proxied {
            let handoff = point.word(AxisId::Handoff)?;
            let probe = tuned(handoff, if traffic.shared { 2 } else { 1 })?;
            let background = tuned(handoff, if traffic.crowded() { 2 } else { 1 })?;
            let (own, answering) = rig.cpus.workers.split_at(traffic.workers() as usize);
            let near = ProxyAttr {
                choice: background,
                rings: traffic.all_queues(),
                workers: traffic.workers(),
                channels: vec![channel(&source, &target)],
                drive: drive(&rig, own),
                deadline,
                rings_in: rig.place(MemoryKind::Host),
                state: rig.own(),
                clock: rig.clock,
                ..ProxyAttr::default()
            };
            let far = ProxyAttr {
                choice: probe,
                rings: 1,
                workers: 1,
                channels: vec![channel(&outbox, &inbox)],
                drive: drive(&rig, answering),
                ..near.clone()
            };
            let connect = |from: &Arc<dyn Nic>, to: &dyn Nic, attr| {
                Proxy::connect(Arc::clone(from), to, attr).map(Box::new).map_err(broke)
            };
            let proxy = connect(&rig.near, rig.far.as_ref(), &near)?;
            let back = match rig.session() {
                Some(session) if replies => {
                    let (outbox, inbox) = ((&outbox).into(), (&inbox).into());
                    session.prepare(Reply::Proxy { choice: probe, outbox, inbox })?;
                    None
                }
                _ => replies.then(|| connect(&rig.far, rig.near.as_ref(), &far)).transpose()?,
            };
            (Path::Proxy { proxy, back }, Choices::Proxy { probe, background })
        } else {
            let sharing = |shared| if shared { Sharing::Thread } else { Sharing::Exclusive };
            let choice = Choice { order: order(point)?, ..Choice::default() };
            let probe = Choice { sharing: sharing(traffic.shared), ..choice };
            let background = Choice { sharing: sharing(traffic.crowded()), ..choice };
            let attr = GdaAttr {
                qps: traffic.all_queues(),
                choice,
                deadline,
                queues: rig.queues(),
                peers: rig.peers(),
                state: rig.own(),
                clock: rig.clock,
                ..GdaAttr::default()
            };
            let connect = |from: &dyn Nic, to: &dyn Nic, attr| {
                Gda::connect(from, to, attr).map(Box::new).map_err(broke)
            };
            let gda = connect(rig.near.as_ref(), rig.far.as_ref(), &attr)?;
            let far = GdaAttr { qps: 1, ..attr.clone() };
            let back = match rig.session() {
                Some(session) if replies => {
                    session.prepare(Reply::Gda { choice })?;
                    None
                }
                _ => replies
                    .then(|| connect(rig.far.as_ref(), rig.near.as_ref(), &far))
                    .transpose()?,
            };
            (Path::Gda { gda, back }, Choices::Gda { probe, background })
        };
        if let Some(gpu) = rig.gpu() {
            loaded::prepare(gpu, &choices).map_err(broke)?;
        }
        let ctas = traffic.ctas as usize;
        let most = ctx.ops().map_or(MOST, |ops| ops.max(ctx.warmup()).clamp(FEWEST, MOST)) as usize;
        Ok(Bench {
            path,
            choices,
            words: Words {
                control: rig.words(CONTROL_WORDS)?,
                progress: rig.words((ctas * PROGRESS_WORDS).max(1))?,
                carried: rig.words(4)?,
                done: rig.words(ctas.max(1))?,
                failures: rig.words(2 + ctas)?,
                issue: rig.words(most)?,
                total: rig.words(most)?,
            },
            rig,
            source,
            target,
            outbox,
            inbox,
            traffic,
            replies,
            probe_slots,
            slots,
            next: 1,
            wrong: 0,
        })
    }

    /// The background alone, the warm-up, and launches until the point has been sampled enough.
    pub fn measure(&mut self, ctx: &RunContext) -> Result<Samples, PointError> {
        let mut samples = Samples::default();
        if self.traffic.ctas > 0 {
            ctx.go_on("the background")?;
            samples.carried.alone = Some(self.launch(ctx, 0, ALONE, &mut Samples::default())?);
        }
        let mut most = FEWEST;
        let mut warmup = ctx.warmup();
        while warmup > 0 {
            ctx.go_on("the warm-up")?;
            let ops = warmup.min(most);
            let took = self.launch(ctx, ops, Duration::ZERO, &mut Samples::default())?;
            most = self.length(ops, took);
            warmup -= ops;
        }
        let mut sampling = ctx.sampling();
        loop {
            let ops = sampling.next(most, "completions")?;
            if ops == 0 {
                return Ok(samples);
            }
            let carried = self.launch(ctx, ops, Duration::ZERO, &mut samples)?;
            most = self.length(ops, carried);
            samples.carried.probed.operations += carried.operations;
            samples.carried.probed.micros += carried.micros;
        }
    }

    /// Samples of a launch that takes as long as it should, given what one of `ops` took.
    fn length(&self, ops: u64, took: Carried) -> u64 {
        let wanted = ops as f64 * LAUNCH.as_secs_f64() * 1e6 / took.micros.max(1e-3);
        (wanted as u64).clamp(FEWEST, self.words.issue.len() as u64)
    }

    /// One launch with `ops` samples, which lasts at least as long as `hold`.
    fn launch(
        &mut self,
        ctx: &RunContext,
        ops: u64,
        hold: Duration,
        into: &mut Samples,
    ) -> Result<Carried, PointError> {
        let traffic = &self.traffic;
        let words = &self.words;
        for words in [&words.control, &words.progress, &words.failures] {
            words.write(&vec![0; words.len()]).map_err(broke)?;
        }
        let warmup = if ops == 0 { 0 } else { SETTLE };
        let deadline = ctx.remaining("a launch")?.min(Duration::from_secs(10));
        // The GPU's timer counts nanoseconds.
        let shared_ticks_per_us = if self.rig.on_gpu() { 1e3 } else { self.rig.clock.ticks_per_us };
        let shared_ticks = |micros: f64| (micros * shared_ticks_per_us) as u64;
        let load = Load {
            background: traffic.ctas,
            queues: traffic.queues,
            probe_queue: traffic.probe_queue(),
            bytes: traffic.bytes,
            background_bytes: traffic.background_bytes,
            window: traffic.window,
            slots: self.probe_slots.slots,
            stride: self.probe_slots.stride,
            background_at: self.slots.base,
            background_slots: self.slots.slots,
            background_stride: self.slots.stride,
            interval: match traffic.pace {
                0 => 0,
                pace => shared_ticks(1e6 / pace as f64).max(1),
            },
            hold: shared_ticks(hold.as_secs_f64() * 1e6),
            warmup,
            samples: ops,
            first: self.next,
            deadline: self.rig.clock.ticks(deadline),
            control: words.control.as_ptr(),
            progress: words.progress.as_ptr(),
            target: self.target.address,
            inbox: match self.replies {
                true => self.inbox.address as *const u64,
                false => std::ptr::null(),
            },
            issue: words.issue.as_ptr(),
            total: words.total.as_ptr(),
            carried: words.carried.as_ptr(),
            done: words.done.as_ptr(),
            failure: words.failures.as_ptr(),
            first_thread: 0,
            threads: 1 + traffic.ctas + u32::from(self.path.replies_here()),
        };
        let before = self.completed()?;
        let hertz = match self.rig.session() {
            Some(session) if self.replies => {
                session.answered(Launch::Loaded(self.words_of(&load)), deadline, || {
                    self.run(ctx, load)
                })
            }
            _ => self.run(ctx, load),
        }?;
        let done = &self.words.done.read().map_err(broke)?[..self.traffic.ctas as usize];
        let probed = warmup + ops;
        if ctx.check() {
            let all = probed + done.iter().sum::<u64>();
            self.wrong += self.completed()?.wrong(before, all);
            let (arrived, origin) = (&self.target, &self.source);
            self.wrong += self.probe_slots.wrong(arrived, origin, 0..1, self.next, probed)?;
            let firsts = (0u64..).map(|thread| self.next + ((thread + 1) << VALUE_SHIFT));
            let counts: Vec<(u64, u64)> = firsts.zip(done.iter().copied()).collect();
            self.wrong += self.slots.wrong_each(arrived, origin, &counts)?;
        }
        self.next += done.iter().copied().fold(probed, u64::max);
        for (ticks, into) in
            [(&self.words.issue, &mut into.issue), (&self.words.total, &mut into.total)]
        {
            let ticks = ticks.read().map_err(broke)?;
            into.extend(ticks[..ops as usize].iter().map(|t| Micros::from_ticks(*t, hertz)));
        }
        let carried = self.words.carried.read().map_err(broke)?;
        Ok(Carried {
            operations: carried[3] - carried[1],
            micros: (carried[2] - carried[0]) as f64 / shared_ticks_per_us,
        })
    }

    /// What another rank must know to answer.
    fn words_of(&self, load: &Load) -> LoadWords {
        LoadWords {
            choices: self.choices,
            background: load.background,
            queues: load.queues,
            probe_queue: load.probe_queue,
            bytes: load.bytes,
            slots: load.slots,
            stride: load.stride,
            warmup: load.warmup,
            samples: load.samples,
            first: load.first,
            target: load.target,
            outbox: (self.outbox.address, self.outbox.lkey),
            inbox: (self.inbox.address, self.inbox.rkey),
        }
    }

    /// Runs the kernel to its end, and gives its clock's frequency in Hz.
    fn run(&self, ctx: &RunContext, load: Load) -> Result<f64, PointError> {
        match &self.path {
            Path::Gda { gda, back } => {
                let args = LoadedArgs {
                    qp: gda.device_views(),
                    answer: back.as_ref().map_or(std::ptr::null(), |back| back.device_views()),
                    local: local(&self.source),
                    remote: remote(&self.target),
                    answer_local: local(&self.outbox),
                    answer_remote: remote(&self.inbox),
                    load,
                };
                self.start(ctx, Args::Gda(&args), &gda.relax(self.rig.near.as_ref()))
            }
            Path::Proxy { proxy, back } => {
                let args = ProxyLoadedArgs {
                    ring: proxy.device_views(),
                    answer: back.as_ref().map_or(std::ptr::null(), |back| back.device_views()),
                    local: self.source.address,
                    answer_local: self.outbox.address,
                    load,
                };
                match back {
                    Some(back) => {
                        self.start(ctx, Args::Proxy(&args), &Proxy::relax_all([proxy, back]))
                    }
                    None => self.start(ctx, Args::Proxy(&args), &proxy.relax()),
                }
            }
        }
    }

    fn start(
        &self,
        ctx: &RunContext,
        args: Args<'_>,
        relax: &dyn Relax,
    ) -> Result<f64, PointError> {
        let seen = Cell::new(0);
        let check = |word| self.check(seen.replace(seen.get() + 1), word);
        launch(ctx, &self.rig, &self.choices, args, relax, (&self.words.failures, &check))
    }

    /// Thread `thread` left `word`; the last one is who answers at the far side.
    fn check(&self, thread: usize, word: u64) -> Result<(), PointError> {
        let (near, far) = (self.rig.near.as_ref(), self.rig.far.as_ref());
        let answers = thread + 1 == self.words.failures.len();
        match &self.path {
            Path::Gda { back: Some(back), .. } if answers => back.check(far, word).map_err(broke),
            Path::Gda { gda, .. } => gda.check(near, word).map_err(broke),
            Path::Proxy { back: Some(back), .. } if answers => back.check(word).map_err(broke),
            Path::Proxy { proxy, .. } => proxy.check(word).map_err(broke),
        }
    }

    /// Operations that the near side has completed.
    fn completed(&self) -> Result<Completed, PointError> {
        match &self.path {
            Path::Gda { gda, .. } => Completed::read(self.rig.near.as_ref(), gda),
            Path::Proxy { proxy, .. } => Ok(Completed::Operations(proxy.counters().completed)),
        }
    }

    /// What every measurement of this bench has in common.
    ///
    /// # Errors
    /// The NIC saw something done wrong that a safe configuration never does.
    pub fn finish(
        &self,
        ctx: &RunContext,
        beside: Beside,
        measurement: Measurement,
    ) -> Result<Measurement, PointError> {
        let unsafe_order = match &self.choices {
            Choices::Gda { probe, .. } => self.rig.unsafe_order(probe.order),
            Choices::Proxy { .. } => None,
        };
        let mut measurement = self.rig.finish(measurement, unsafe_order)?;
        if ctx.check() {
            measurement = measurement.checked(self.wrong);
        }
        let traffic = &self.traffic;
        measurement = measurement
            .detail("background", traffic.ctas)
            .detail("background_queues", traffic.queues)
            .detail("window", traffic.window)
            .detail("carried_mmsgs", beside.probed.rate());
        if let Some(alone) = beside.alone {
            measurement = measurement.detail("carried_without_probe_mmsgs", alone.rate());
        }
        if traffic.pace > 0 {
            let asked = traffic.pace as f64 * f64::from(traffic.ctas) / 1e6;
            measurement = measurement.detail("asked_mmsgs", asked);
        }
        let (threads, cores) = (self.rig.cpus.submitters.len(), self.rig.cpus.cores);
        if threads > cores {
            let note = format!(
                "{threads} threads of probe and background on {cores} cores: they wait for each other's turns"
            );
            measurement = measurement.detail("threads_over_cores", note);
        }
        Ok(match &self.choices {
            Choices::Gda { probe, background } => measurement
                .detail("order", probe.order.name())
                .detail("probe_sharing", probe.sharing.name())
                .detail("background_sharing", background.sharing.name())
                .detail("sq_blocks", 1u64 << GdaAttr::default().log_blocks),
            Choices::Proxy { probe, background } => measurement
                .detail("probe_producers", probe.producers.name())
                .detail("background_producers", background.producers.name())
                .detail("workers", traffic.workers())
                .detail("ring_depth", ProxyAttr::default().depth),
        })
    }
}

/// Runs the kernel, or one side's threads of it, to its end, and gives its clock's frequency in Hz. Views, regions and
/// words of the arguments live as long and are as large as they say; control and progress were set to 0.
pub(in crate::experiments) fn launch(
    ctx: &RunContext,
    rig: &Rig,
    choices: &Choices,
    args: Args<'_>,
    relax: &dyn Relax,
    (failures, check): (&Shared<u64>, &dyn Fn(u64) -> Result<(), PointError>),
) -> Result<f64, PointError> {
    let Some(gpu) = rig.gpu() else {
        // SAFETY: the caller's contract.
        unsafe { loaded::launch(choices, args, &rig.cpus.submitters, Some(relax)) }.map_err(
            |error| match error {
                LaunchError::NotBuilt { .. } | LaunchError::ProxyNotBuilt { .. } => {
                    PointError::not_run(error.to_string())
                }
                other => broke(other),
            },
        )?;
        failures.read().map_err(broke)?.into_iter().try_for_each(check)?;
        return Ok(rig.clock.ticks_per_us * 1e6);
    };
    let prepared = loaded::prepare(gpu, choices).map_err(broke)?;
    rig.on_the_gpu(ctx, failures, check, |until, give_up| {
        // SAFETY: as above; all of it is memory that the GPU reaches.
        unsafe { loaded::run(&prepared, args, Some(relax), until, give_up) }
    })
}

fn channel(local: &Region, remote: &Region) -> ChannelAttr {
    ChannelAttr { local: local.clone(), remote: remote.clone(), signal: None }
}

/// Workers without a core of their own would measure the scheduler: who waits runs them.
fn drive(rig: &Rig, workers: &[usize]) -> Drive {
    if rig.cpus.oversubscribed() {
        Drive::Stepped
    } else {
        Drive::Threads { cpus: workers.to_vec() }
    }
}

fn local(region: &Region) -> Local {
    Local { address: region.address, lkey: region.lkey }
}

fn remote(region: &Region) -> Remote {
    Remote { address: region.address, rkey: region.rkey }
}
