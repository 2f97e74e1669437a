//! `loaded`: what does a latency probe see beside bulk traffic?

mod bench;

pub(super) use bench::launch;

use super::latency::with_rest;
use super::{AxisUse, Experiment, Impossible, Limits, Suite};
use bench::{Bench, Traffic};

use crate::axes::{AxisId, Value};
use crate::context::RunContext;
use crate::measurement::{Measurement, Metric};
use crate::point::{Point, PointError, Transport};

pub(super) struct Loaded;

const GDA: &[Transport] = &[Transport::MiniGda];
const PROXY: &[Transport] = &[Transport::MiniProxy];

impl Experiment for Loaded {
    fn name(&self) -> &'static str {
        "loaded"
    }

    fn question(&self) -> &'static str {
        "what does a latency probe see beside bulk traffic?"
    }

    fn transports(&self) -> &'static [Transport] {
        &[Transport::MiniGda, Transport::MiniProxy]
    }

    fn metrics(&self) -> &'static [Metric] {
        &[Metric::Issue, Metric::Enqueue, Metric::PutCompletion, Metric::RoundTrip]
    }

    fn axes(&self) -> &'static [AxisUse] {
        const AXES: &[AxisUse] = &[
            AxisUse::new(AxisId::Payload, "8", "8"),
            AxisUse::new(AxisId::Order, "gpu-release", "gpu-release").only(GDA).takes(&[
                "gpu-release",
                "gpu-fence",
                "release-fence-mmio",
                "system-fence",
                "async-mmio",
            ]),
            AxisUse::new(AxisId::Queues, "auto", "auto").only(GDA),
            AxisUse::new(AxisId::DoorbellMemory, "auto", "auto").only(GDA),
            AxisUse::new(AxisId::Qps, "1", "1,16").only(GDA),
            AxisUse::new(AxisId::Handoff, "lap-parity", "lap-parity").only(PROXY).takes(&[
                "valid-byte",
                "nonzero-word",
                "lap-parity",
                "producer-counter",
            ]),
            AxisUse::new(AxisId::Rings, "1", "1,16").only(PROXY),
            AxisUse::new(AxisId::Ctas, "0,2", "0,1,4,16,64"),
            AxisUse::new(
                AxisId::ProbeQueue,
                "shared,private,private-worker",
                "shared,private,private-worker",
            ),
            AxisUse::new(AxisId::BackgroundPayload, "8", "8,4K"),
            AxisUse::new(AxisId::Window, "16", "16"),
            AxisUse::new(AxisId::Pace, "0,10000", "0,1000,10000,100000"),
            AxisUse::new(AxisId::Profile, "none", "none"),
        ];
        AXES
    }

    fn limits(&self, suite: Suite) -> Limits {
        match suite {
            Suite::Quick => Limits::new(5_000, 50, 50),
            Suite::Full => Limits::new(100_000, 1_000, 5_000),
        }
    }

    fn possible(&self, point: &Point) -> Result<(), Impossible> {
        let worker = point.word(AxisId::ProbeQueue).is_ok_and(|word| word == "private-worker");
        let queues = queues(point);
        if worker && point.transport == Transport::MiniGda {
            return Err(Impossible {
                axis: AxisId::ProbeQueue,
                with: AxisId::Qps,
                why: "a queue pair has no worker: with `private` the probe has all of its own"
                    .to_owned(),
                nearest: vec!["private".to_owned()],
            });
        }
        if worker && point.number(queues).is_ok_and(|queues| queues > 1) {
            return Err(Impossible {
                axis: queues,
                with: AxisId::ProbeQueue,
                why: "rings go round the workers: with two of them the background has one ring"
                    .to_owned(),
                nearest: vec!["1".to_owned()],
            });
        }
        let (queues_wanted, ctas) =
            (point.number(queues).unwrap_or(1), point.number(AxisId::Ctas).unwrap_or(0));
        if queues_wanted > ctas.max(1) {
            return Err(Impossible {
                axis: queues,
                with: AxisId::Ctas,
                why: "the background has at most a queue a CTA".to_owned(),
                nearest: vec![ctas.max(1).to_string()],
            });
        }
        Ok(())
    }

    /// Without background nothing of it can vary.
    fn in_suite(&self, point: &Point, given: &dyn Fn(AxisId) -> bool) -> bool {
        let first = |axis, value| given(axis) || point.get(axis) == Some(value);
        let idle = point.number(AxisId::Ctas) == Ok(0);
        !idle
            || first(AxisId::Pace, Value::Count(0))
                && first(AxisId::BackgroundPayload, Value::Bytes(8))
    }

    fn run(&self, ctx: &mut RunContext, point: &Point) -> Result<Vec<Measurement>, PointError> {
        let traffic = Traffic::of(point, queues(point))?;
        let mut measured = Vec::new();
        // A request is answered by its 8 bytes.
        if traffic.bytes == 8 {
            let mut bench = Bench::new(ctx, point, &traffic, true)?;
            let samples = bench.measure(ctx)?;
            measured.push(bench.finish(
                ctx,
                samples.carried,
                Measurement::round_trip(samples.total),
            )?);
        }
        with_rest(measured, times(ctx, point, &traffic))
    }
}

/// The axis of the background's queues.
fn queues(point: &Point) -> AxisId {
    match point.transport {
        Transport::MiniProxy => AxisId::Rings,
        _ => AxisId::Qps,
    }
}

fn times(
    ctx: &mut RunContext,
    point: &Point,
    traffic: &Traffic,
) -> Result<Vec<Measurement>, PointError> {
    let mut bench = Bench::new(ctx, point, traffic, false)?;
    let samples = bench.measure(ctx)?;
    let issue = match point.transport {
        Transport::MiniProxy => Measurement::enqueue(samples.issue),
        _ => Measurement::issue(samples.issue),
    };
    Ok(vec![
        bench.finish(ctx, samples.carried, issue)?,
        bench.finish(ctx, samples.carried, Measurement::put_completion(samples.total))?,
    ])
}
