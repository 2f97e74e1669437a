//! `batching`: what do doorbell batching, queue parallelism and sharing do to the message rate?

use super::{AxisUse, Experiment, Limits, Suite};
use crate::axes::AxisId;
use crate::context::RunContext;
use crate::measurement::{Measurement, Metric};
use crate::point::{Point, PointError, Transport};

pub(super) struct Batching;

impl Experiment for Batching {
    fn name(&self) -> &'static str {
        "batching"
    }

    fn question(&self) -> &'static str {
        "what do doorbell batching, queue parallelism and sharing do to the message rate?"
    }

    fn transports(&self) -> &'static [Transport] {
        &[Transport::MiniGda]
    }

    fn metrics(&self) -> &'static [Metric] {
        &[Metric::Rate]
    }

    fn axes(&self) -> &'static [AxisUse] {
        const AXES: &[AxisUse] = &[
            AxisUse::new(AxisId::Payload, "8", "8"),
            AxisUse::new(AxisId::Inline, "on", "off,on"),
            AxisUse::new(AxisId::Doorbell, "fixed", "fixed,threshold,caller,every-nth"),
            AxisUse::new(AxisId::Batch, "1,8,32", "1,2,4,8,16,32,64"),
            AxisUse::new(AxisId::Qps, "1,8", "1,2,4,8,16,32,64,128"),
            AxisUse::new(AxisId::Sharing, "exclusive", "exclusive,thread,warp"),
            AxisUse::new(AxisId::Order, "gpu-release", "gpu-release"),
            AxisUse::new(AxisId::Profile, "none", "none,cx7-ndr200"),
        ];
        AXES
    }

    fn limits(&self, suite: Suite) -> Limits {
        match suite {
            Suite::Quick => Limits::new(2_000_000, 10_000, 250),
            Suite::Full => Limits::new(50_000_000, 100_000, 10_000),
        }
    }

    fn run(&self, _ctx: &mut RunContext, _point: &Point) -> Result<Vec<Measurement>, PointError> {
        Err(PointError::not_run("this experiment is not in this build yet"))
    }
}
