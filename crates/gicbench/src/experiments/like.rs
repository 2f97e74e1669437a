//! The bench of mini-gda and mini-proxy set to put as a library does.

use std::sync::Arc;
use std::time::Duration;

use device::choice::Order;
use device::cuda::Prepared;
use device::host::Relax;
use device::like::{Like, LikeArgs, Peer, Step};
use device::shared::Shared;
use mini_gda::GdaAttr;
use mini_gda::like::LikeGda;
use mini_proxy::Drive;
use mini_proxy::like::{LikeProxy, LikeProxyAttr};
use peers::{OrderScope, Variant};
use rdma::Region;

use crate::axes::AxisId;
use crate::context::RunContext;
use crate::measurement::{Measurement, MemoryKind};
use crate::peer::LIKES;
use crate::point::{Point, PointError};
use crate::quantity::Micros;

use super::Impossible;
use super::gda::{LEAST_ON_GPU, SETTLE};
use super::payload::{Slots, fill};
use super::rig::{Need, Rig, broke};

/// Words of the axis for mini-gda, and for mini-proxy.
pub(super) const GDA: &str = "none,nvshmem,nvshmem-internal,gdaki,gdaki-cta,gdaki-exclusive,deepep";
pub(super) const GDA_WORDS: &[&str] =
    &["none", "nvshmem", "nvshmem-internal", "gdaki", "gdaki-cta", "gdaki-exclusive", "deepep"];
pub(super) const PROXY: &str = "none,nvshmem-proxy,gin-proxy,mscclpp,uccl-ep,fabric-lib";
pub(super) const PROXY_WORDS: &[&str] =
    &["none", "nvshmem-proxy", "gin-proxy", "mscclpp", "uccl-ep", "fabric-lib"];

/// What a point's put is like; none where it is this project's own.
///
/// # Errors
/// A step that the put hasn't.
pub(super) fn of(point: &Point) -> Result<Option<Like>, PointError> {
    let word = |axis| point.get(axis).and_then(|value| value.word()).unwrap_or("none");
    let (peer, step) = (word(AxisId::Like), word(AxisId::Without));
    if peer == "none" {
        return Ok(None);
    }
    let peer: Peer = peer.parse().map_err(|e| PointError::from_error(&e))?;
    if step == "none" {
        return Ok(Some(Like::whole(peer)));
    }
    let step: Step = step.parse().map_err(|e| PointError::from_error(&e))?;
    Like::without(peer, step).map(Some).map_err(|e| PointError::from_error(&e))
}

/// What a library's choices leave open is not the caller's to choose.
///
/// # Errors
/// A choice beside `like` that it makes itself, or a step that it hasn't.
pub(super) fn possible(point: &Point) -> Result<(), Impossible> {
    let word = |axis| point.get(axis).and_then(|value| value.word());
    let is_like = word(AxisId::Like).is_some_and(|word| word != "none");
    if !is_like {
        let without = word(AxisId::Without).is_some_and(|word| word != "none");
        return if without {
            Err(Impossible {
                axis: AxisId::Without,
                with: AxisId::Like,
                why: "steps are a library's".to_owned(),
                nearest: vec!["none".to_owned()],
            })
        } else {
            Ok(())
        };
    }
    const DEFAULTS: [(AxisId, &str); 7] = [
        (AxisId::Op, "put"),
        (AxisId::Conn, "rc"),
        (AxisId::Order, "gpu-release"),
        (AxisId::Sharing, "exclusive"),
        (AxisId::Cq, "collapsed"),
        (AxisId::Handoff, "lap-parity"),
        (AxisId::Reserve, "owned"),
    ];
    for (axis, default) in DEFAULTS {
        if word(axis).is_some_and(|word| word != default) {
            return Err(Impossible {
                axis,
                with: AxisId::Like,
                why: "the library's put makes that choice".to_owned(),
                nearest: vec![default.to_owned()],
            });
        }
    }
    of(point).map(drop).map_err(|error| Impossible {
        axis: AxisId::Without,
        with: AxisId::Like,
        why: error.to_string(),
        nearest: vec!["none".to_owned()],
    })
}

/// The library's own variant that a put is like.
fn original(peer: Peer) -> Option<&'static Variant> {
    let (_, path, variant) = LIKES.iter().find(|(name, ..)| *name == peer.name())?;
    let (_, found) = peers::path(path)?;
    found.variant(variant)
}

/// Issue or enqueue, and with the library's way of completion.
pub(super) fn issue_and_completion(
    ctx: &mut RunContext,
    point: &Point,
    like: Like,
) -> Result<Vec<Measurement>, PointError> {
    let mut bench = Bench::new(ctx, point, like)?;
    let (issue, total) = bench.latency(ctx)?;
    let first = if like.peer.is_proxied() {
        Measurement::enqueue(issue)
    } else {
        Measurement::issue(issue)
    };
    Ok(vec![bench.finish(ctx, first)?, bench.finish(ctx, Measurement::put_completion(total))?])
}

/// Queues of a library's shape.
enum Queues {
    Gda(Box<LikeGda>),
    Proxy(Box<LikeProxy>),
}

struct Bench {
    like: Like,
    queues: Queues,
    /// The kernel, on a GPU.
    prepared: Option<Prepared>,
    source: Region,
    target: Region,
    slots: Slots,
    bytes: u32,
    failures: Shared<u64>,
    ticks: [Shared<u64>; 2],
    next: u64,
    wrong: u64,
    rig: Rig,
}

/// Payload slots.
const SLOTS: u64 = 256;
/// Of payloads: what the slots of some libraries' queues ask for.
const ALIGNMENT: u64 = 16;
const LOG_BLOCKS: u32 = 10;

impl Bench {
    fn new(ctx: &mut RunContext, point: &Point, like: Like) -> Result<Self, PointError> {
        let bytes: u32 = point.number_as(AxisId::Payload)?;
        let workers = usize::from(like.peer.is_proxied());
        let need = Need { qps: 1, submitters: 1, workers, ringers: 0, virtual_time: false };
        let rig = Rig::open(ctx, point, &need)?;
        rig.completes()?;
        let wanted = if rig.on_gpu() { SLOTS.max(LEAST_ON_GPU) } else { SLOTS };
        let slots = Slots::new(bytes, wanted, 1).aligned(ALIGNMENT);
        let source = rig.region(&rig.near, slots.length())?;
        let target = rig.region(&rig.far, slots.length())?;
        fill(&source, ctx.seed())?;
        let deadline = ctx.remaining("the start of the measurement")?.min(Duration::from_secs(10));
        let queues = if like.peer.is_proxied() {
            let drive = if rig.cpus.oversubscribed() {
                Drive::Stepped
            } else {
                Drive::Threads { cpus: rig.cpus.workers.clone() }
            };
            let attr = LikeProxyAttr {
                log_blocks: LOG_BLOCKS,
                drive,
                deadline,
                rings_in: rig.place(MemoryKind::Host),
                state: rig.own(),
                clock: rig.clock,
                ..LikeProxyAttr::default()
            };
            let near = Arc::clone(&rig.near);
            let proxy = LikeProxy::connect(near, rig.far.as_ref(), like, &attr, &source, &target);
            Queues::Proxy(Box::new(proxy.map_err(broke)?))
        } else {
            let attr = LikeGda::attr(
                like,
                &GdaAttr {
                    log_blocks: LOG_BLOCKS,
                    deadline,
                    queues: rig.queues(),
                    peers: rig.peers(),
                    state: rig.own(),
                    clock: rig.clock,
                    ..GdaAttr::default()
                },
            );
            let (near, far) = (rig.near.as_ref(), rig.far.as_ref());
            let gda = LikeGda::connect(near, far, like, &attr, &source, &target);
            Queues::Gda(Box::new(gda.map_err(broke)?))
        };
        let constant = match &queues {
            Queues::Gda(gda) => gda.constant(),
            Queues::Proxy(proxy) => proxy.constant(),
        };
        let prepared = rig.gpu().map(|gpu| Prepared::like(gpu, like, constant)).transpose();
        Ok(Bench {
            like,
            prepared: prepared.map_err(broke)?,
            queues,
            source,
            target,
            failures: rig.words(1)?,
            ticks: [rig.words(slots.slots as usize)?, rig.words(slots.slots as usize)?],
            slots,
            bytes,
            next: 1,
            wrong: 0,
            rig,
        })
    }

    fn latency(&mut self, ctx: &RunContext) -> Result<(Vec<Micros>, Vec<Micros>), PointError> {
        let mut samples = (Vec::new(), Vec::new());
        let mut warmup = ctx.warmup();
        while warmup > 0 {
            ctx.go_on("the warm-up")?;
            let ops = warmup.min(self.slots.slots);
            self.launch(ctx, ops, &mut (Vec::new(), Vec::new()))?;
            warmup -= ops;
        }
        let mut sampling = ctx.sampling();
        loop {
            let ops = sampling.next(self.slots.slots, "completions")?;
            if ops == 0 {
                return Ok(samples);
            }
            self.launch(ctx, ops, &mut samples)?;
        }
    }

    fn launch(
        &mut self,
        ctx: &RunContext,
        ops: u64,
        into: &mut (Vec<Micros>, Vec<Micros>),
    ) -> Result<(), PointError> {
        let first = self.next;
        self.next += SETTLE + ops;
        let args = LikeArgs {
            bytes: self.bytes,
            slots: self.slots.slots,
            stride: self.slots.stride,
            warmup: SETTLE,
            samples: ops,
            first,
            issue: self.ticks[0].as_ptr(),
            total: self.ticks[1].as_ptr(),
            failure: self.failures.as_ptr(),
            ..match &self.queues {
                Queues::Gda(gda) => gda.args(),
                Queues::Proxy(proxy) => proxy.args(),
            }
        };
        self.failures.write(&[0]).map_err(broke)?;
        let hertz = match &self.queues {
            Queues::Gda(gda) => {
                let near = self.rig.near.as_ref();
                let check = |word| gda.gda().check(near, word).map_err(broke);
                self.run(ctx, &args, &gda.gda().relax(near), &check)
            }
            Queues::Proxy(proxy) => {
                proxy.expect(&args);
                let check = |word| proxy.check(word).map_err(broke);
                self.run(ctx, &args, &proxy.relax(), &check)
            }
        }?;
        for (ticks, into) in self.ticks.iter().zip([&mut into.0, &mut into.1]) {
            let ticks = ticks.read().map_err(broke)?;
            into.extend(ticks[..ops as usize].iter().map(|t| Micros::from_ticks(*t, hertz)));
        }
        if ctx.check() {
            self.wrong +=
                self.slots.wrong(&self.target, &self.source, 0..1, first, SETTLE + ops)?;
        }
        Ok(())
    }

    fn run(
        &self,
        ctx: &RunContext,
        args: &LikeArgs,
        relax: &dyn Relax,
        check: &dyn Fn(u64) -> Result<(), PointError>,
    ) -> Result<f64, PointError> {
        self.rig.launch_like(
            ctx,
            (self.like, self.prepared.as_ref()),
            args,
            relax,
            (&self.failures, check),
        )
    }

    fn finish(
        &self,
        ctx: &RunContext,
        measurement: Measurement,
    ) -> Result<Measurement, PointError> {
        let Some(variant) = original(self.like.peer) else {
            return Err(PointError::failed(format!("no library's put is like {}", self.like.peer)));
        };
        let order = match variant.safety.order {
            OrderScope::None => Order::None,
            OrderScope::Gpu => Order::GpuRelease,
            OrderScope::System => Order::SystemFence,
        };
        // A CPU that posts acquires what it takes.
        let unsafe_order = match (self.like.peer.is_proxied(), self.like.without) {
            (_, Some(step)) => Some(format!("the library's put without its step {step}")),
            (true, None) => None,
            (false, None) => self.rig.unsafe_order(order),
        };
        let mut measurement = self.rig.finish(measurement, unsafe_order)?;
        if ctx.check() {
            measurement = measurement.checked(self.wrong);
        }
        Ok(measurement
            .detail("sharing_scope", variant.safety.sharing.name())
            .detail("order_scope", variant.safety.order.name())
            .detail("space_check", variant.safety.space.name())
            .detail("completion_scope", variant.scope.name())
            .detail("sq_blocks", 1u64 << LOG_BLOCKS)
            .detail("payload_slots", self.slots.slots))
    }
}
