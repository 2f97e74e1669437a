//! `quiet`: what does completion scope cost as queues are added?

use super::gda::{self, Bench, Spec};
use super::peer;
use super::{AxisUse, Experiment, Impossible, Limits, Suite};
use device::choice::Choice;
use device::view::{Op, QuietScope};
use peers::PeerOp;

use crate::axes::AxisId;
use crate::context::RunContext;
use crate::measurement::{Measurement, Metric};
use crate::point::{Point, PointError, Transport};

pub(super) struct Quiet;

/// Libraries with a quiet over several queue pairs.
const PEERS: &[Transport] = &[Transport::Nvshmem, Transport::Gdaki];

impl Experiment for Quiet {
    fn name(&self) -> &'static str {
        "quiet"
    }

    fn question(&self) -> &'static str {
        "what does completion scope cost as queues are added?"
    }

    fn transports(&self) -> &'static [Transport] {
        &[Transport::MiniGda, Transport::Nvshmem, Transport::Gdaki]
    }

    fn metrics(&self) -> &'static [Metric] {
        &[Metric::PutCompletion]
    }

    fn axes(&self) -> &'static [AxisUse] {
        const AXES: &[AxisUse] = &[
            AxisUse::new(AxisId::Variant, "own", "own").only(PEERS),
            AxisUse::new(AxisId::Payload, "8", "8"),
            AxisUse::new(AxisId::Qps, "1,4,16,32", "1,2,4,8,16,32"),
            AxisUse::new(AxisId::Scope, "one,used,all", "one,used,all").only(&[Transport::MiniGda]),
            AxisUse::new(AxisId::Order, "gpu-release", "gpu-release").only(&[Transport::MiniGda]),
            AxisUse::new(AxisId::Profile, "none", "none,cx7-ndr200"),
        ];
        AXES
    }

    fn limits(&self, suite: Suite) -> Limits {
        match suite {
            Suite::Quick => Limits::new(10_000, 500, 200),
            Suite::Full => Limits::new(100_000, 5_000, 10_000),
        }
    }

    fn possible(&self, point: &Point) -> Result<(), Impossible> {
        let used = point.get(AxisId::Scope).and_then(|value| value.word()) == Some("used");
        if used && point.number(AxisId::Qps).is_ok_and(|qps| qps > 64) {
            return Err(Impossible {
                axis: AxisId::Qps,
                with: AxisId::Scope,
                why: "the set of used queue pairs is one 64-bit mask".to_owned(),
                nearest: vec!["64".to_owned()],
            });
        }
        Ok(())
    }

    fn run(&self, ctx: &mut RunContext, point: &Point) -> Result<Vec<Measurement>, PointError> {
        if point.transport.is_peer() {
            // What a library's quiet covers is its variant's; one that doesn't let it choose has one queue.
            let qps = point.number_as(AxisId::Qps)?;
            let spec = peer::Spec { qps, ..peer::Spec::one(point.number_as(AxisId::Payload)?) };
            let mut measured = peer::issue_and_completion(ctx, point, spec, PeerOp::Put)?;
            measured.retain(|measurement| measurement.metric == Metric::PutCompletion);
            return Ok(measured);
        }
        let choice = Choice { order: gda::order(point)?, ..Choice::default() };
        let mut spec = Spec::one(choice, point.number_as(AxisId::Payload)?);
        spec.qps = point.number_as(AxisId::Qps)?;
        let scope = match point.word(AxisId::Scope)? {
            "one" => QuietScope::One,
            "used" => QuietScope::Used,
            _ => QuietScope::All,
        };
        let mut bench = Bench::new(ctx, point, spec)?;
        let samples = bench.latency(ctx, Op::Put, scope)?;
        let measurement = bench.finish(ctx, Measurement::put_completion(samples.total))?;
        Ok(vec![measurement.detail("completion_scope", point.word(AxisId::Scope)?)])
    }
}
