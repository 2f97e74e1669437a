//! `batching`: what do doorbell batching, queue parallelism and sharing do to the message rate?

use super::gda::{self, Bench, Posting, Spec};
use super::peer;
use super::{AxisUse, Experiment, Impossible, Limits, Suite};
use device::choice::{Choice, Ringing, Sharing, Signalling};

use crate::axes::AxisId;
use crate::context::RunContext;
use crate::measurement::{Measurement, Metric};
use crate::point::{Nic, Point, PointError, Submitter, Transport};

pub(super) struct Batching;

/// This project's own.
const OWN: &[Transport] = &[Transport::MiniGda];

impl Experiment for Batching {
    fn name(&self) -> &'static str {
        "batching"
    }

    fn question(&self) -> &'static str {
        "what do doorbell batching, queue parallelism and sharing do to the message rate?"
    }

    fn transports(&self) -> &'static [Transport] {
        &[Transport::MiniGda, Transport::Nvshmem, Transport::Gdaki, Transport::DeepEp]
    }

    fn metrics(&self) -> &'static [Metric] {
        &[Metric::Rate]
    }

    fn axes(&self) -> &'static [AxisUse] {
        const AXES: &[AxisUse] = &[
            AxisUse::new(AxisId::Variant, "own", "own").only(Transport::GPU_SUBMITTED_PEERS),
            AxisUse::new(AxisId::Payload, "8", "8"),
            AxisUse::new(AxisId::Inline, "on", "off,on").only(OWN),
            AxisUse::new(AxisId::Doorbell, "fixed", "fixed,threshold,caller,every-nth").only(OWN),
            AxisUse::new(AxisId::Batch, "1,8,32", "1,2,4,8,16,32,64"),
            AxisUse::new(AxisId::Qps, "1,8", "1,2,4,8,16,32,64,128"),
            AxisUse::new(AxisId::Sharing, "exclusive", "exclusive,thread,warp").only(OWN),
            AxisUse::new(AxisId::Sharing, "thread", "thread,warp")
                .only(Transport::GPU_SUBMITTED_PEERS)
                .takes(&["thread", "warp"]),
            AxisUse::new(AxisId::Order, "gpu-release", "gpu-release").only(OWN),
            AxisUse::new(AxisId::Profile, "none", "none,cx7-ndr200"),
        ];
        AXES
    }

    fn limits(&self, suite: Suite) -> Limits {
        match suite {
            Suite::Quick => Limits::new(50_000_000, 10_000, 250),
            Suite::Full => Limits::new(50_000_000, 100_000, 10_000),
        }
    }

    fn possible(&self, point: &Point) -> Result<(), Impossible> {
        if point.transport.is_peer() {
            return peer::has_rate(point);
        }
        let is = |axis, word| point.get(axis).and_then(|value| value.word()) == Some(word);
        let bytes = point.number(AxisId::Payload).unwrap_or(0);
        let warp = is(AxisId::Sharing, "warp")
            || (is(AxisId::Sharing, "exclusive") && point.submitter == Submitter::Cuda);
        let (why, nearest) = match (is(AxisId::Inline, "on"), warp) {
            (true, true) if bytes != 8 => ("a warp's inline put has 8 B", 8),
            (true, false) if bytes > 28 => {
                ("more than 28 B inline take more than one block: see `inline`", 28)
            }
            _ => return Ok(()),
        };
        Err(Impossible {
            axis: AxisId::Payload,
            with: AxisId::Inline,
            why: why.to_owned(),
            nearest: vec![nearest.to_string()],
        })
    }

    fn run(&self, ctx: &mut RunContext, point: &Point) -> Result<Vec<Measurement>, PointError> {
        if point.transport.is_peer() {
            return peer::rate(ctx, point);
        }
        let bytes: u32 = point.number_as(AxisId::Payload)?;
        let inline = point.word(AxisId::Inline)? == "on";
        let batch: u32 = point.number_as(AxisId::Batch)?;
        let sharing: Sharing =
            point.word(AxisId::Sharing)?.parse().map_err(|e| PointError::from_error(&e))?;
        let on_gpu = point.submitter == Submitter::Cuda;
        // A GPU's exclusive queue has a warp for itself, whose lanes build the batch together.
        let warp = sharing == Sharing::Warp || (on_gpu && sharing == Sharing::Exclusive);
        // What the caller does, and what the doorbell policy makes of it.
        let (ringing, group, nth, force) = match point.word(AxisId::Doorbell)? {
            "threshold" => (Ringing::Threshold, batch, 1, false),
            "caller" => (Ringing::Deferred, batch, 1, true),
            // A message group that no multiple of n divides: its last is rung for in any case.
            "every-nth" => (Ringing::EveryNth, 4 * batch + 1, batch, true),
            _ => (Ringing::EveryNth, batch, batch, false),
        };
        let signalling =
            if ringing == Ringing::Threshold { Signalling::Every } else { Signalling::OnRequest };
        let choice =
            Choice { order: gda::order(point)?, sharing, ringing, signalling, ..Choice::default() };
        let mut spec = Spec::one(choice, bytes);
        spec.qps = point.number_as(AxisId::Qps)?;
        spec.threads = match (on_gpu, sharing) {
            (true, Sharing::Exclusive) => spec.qps,
            (true, _) => (4 * spec.qps).clamp(4, 128),
            // On a host more posting threads than queue pairs, or than cores to spare, measure the scheduler.
            (false, Sharing::Exclusive) => 1,
            (false, _) => 2,
        };
        if point.nic == Nic::None {
            // Nothing comes back: a launch is as long as the queues are deep.
            spec.log_blocks = 15;
        }
        spec.slots = 4096;
        let threads = spec.threads;
        let mut bench = Bench::new(ctx, point, spec)?;
        let posting = Posting { batch: group, nth, force, warp, inline, get: false };
        let (rates, _) = bench.rate(ctx, posting)?;
        let measured = bench.resources(bench.finish(ctx, Measurement::rate(rates))?)?;
        Ok(vec![measured.detail("threads", threads).detail("lanes", if warp { 32 } else { 1 })])
    }
}
