//! `inline`: when does inlining pay?

use super::{AxisUse, Experiment, Limits, Suite};
use crate::axes::AxisId;
use crate::context::RunContext;
use crate::measurement::{Measurement, Metric};
use crate::point::{Point, PointError, Transport};

pub(super) struct Inline;

impl Experiment for Inline {
    fn name(&self) -> &'static str {
        "inline"
    }

    fn question(&self) -> &'static str {
        "when does inlining pay?"
    }

    fn transports(&self) -> &'static [Transport] {
        &[Transport::MiniGda]
    }

    fn metrics(&self) -> &'static [Metric] {
        &[Metric::Issue, Metric::PutCompletion, Metric::Rate]
    }

    fn axes(&self) -> &'static [AxisUse] {
        const AXES: &[AxisUse] = &[
            AxisUse::new(AxisId::Payload, "8,32,128", "4,8,12,16,28,32,64,92,128,192,256"),
            AxisUse::new(AxisId::Inline, "off,on", "off,on"),
            AxisUse::new(AxisId::Batch, "1,32", "1,32"),
            AxisUse::new(AxisId::Order, "gpu-release", "gpu-release"),
            AxisUse::new(AxisId::Profile, "none", "none,cx7-ndr200"),
        ];
        AXES
    }

    fn limits(&self, suite: Suite) -> Limits {
        match suite {
            Suite::Quick => Limits::new(20_000, 500, 200),
            Suite::Full => Limits::new(200_000, 5_000, 10_000),
        }
    }

    fn run(&self, _ctx: &mut RunContext, _point: &Point) -> Result<Vec<Measurement>, PointError> {
        Err(PointError::not_run("this experiment is not in this build yet"))
    }
}
