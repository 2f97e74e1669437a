//! `quiet`: what does completion scope cost as queues are added?

use super::{AxisUse, Experiment, Limits, Suite};
use crate::axes::AxisId;
use crate::context::RunContext;
use crate::measurement::{Measurement, Metric};
use crate::point::{Point, PointError, Transport};

pub(super) struct Quiet;

impl Experiment for Quiet {
    fn name(&self) -> &'static str {
        "quiet"
    }

    fn question(&self) -> &'static str {
        "what does completion scope cost as queues are added?"
    }

    fn transports(&self) -> &'static [Transport] {
        &[Transport::MiniGda]
    }

    fn metrics(&self) -> &'static [Metric] {
        &[Metric::PutCompletion]
    }

    fn axes(&self) -> &'static [AxisUse] {
        const AXES: &[AxisUse] = &[
            AxisUse::new(AxisId::Payload, "8", "8"),
            AxisUse::new(AxisId::Qps, "1,4,16,32", "1,2,4,8,16,32"),
            AxisUse::new(AxisId::Scope, "one,used,all", "one,used,all"),
            AxisUse::new(AxisId::Order, "gpu-release", "gpu-release"),
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

    fn run(&self, _ctx: &mut RunContext, _point: &Point) -> Result<Vec<Measurement>, PointError> {
        Err(PointError::not_run("this experiment is not in this build yet"))
    }
}
