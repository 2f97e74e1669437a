//! `latency`: what does one operation cost on each path?

use super::{AxisUse, Experiment, Limits, Suite};
use crate::axes::AxisId;
use crate::context::RunContext;
use crate::measurement::{Measurement, Metric};
use crate::point::{Point, PointError, Transport};

pub(super) struct Latency;

impl Experiment for Latency {
    fn name(&self) -> &'static str {
        "latency"
    }

    fn question(&self) -> &'static str {
        "what does one operation cost on each path?"
    }

    fn transports(&self) -> &'static [Transport] {
        &[Transport::MiniGda, Transport::MiniProxy]
    }

    fn metrics(&self) -> &'static [Metric] {
        &[Metric::Issue, Metric::Enqueue, Metric::PutCompletion, Metric::RoundTrip]
    }

    fn axes(&self) -> &'static [AxisUse] {
        const AXES: &[AxisUse] = &[
            AxisUse::new(AxisId::Op, "put,get,atomic,put-signal", "put,get,atomic,put-signal"),
            AxisUse::new(AxisId::Payload, "8", "8,64,512,4K,32K,256K,1M"),
            AxisUse::new(AxisId::Conn, "rc", "rc,dc").only(&[Transport::MiniGda]),
            AxisUse::new(AxisId::Order, "gpu-release", "gpu-release").only(&[Transport::MiniGda]),
            AxisUse::new(AxisId::Handoff, "lap-parity", "lap-parity").only(&[Transport::MiniProxy]),
            AxisUse::new(AxisId::Profile, "none", "none,cx7-ndr200"),
        ];
        AXES
    }

    fn limits(&self, suite: Suite) -> Limits {
        match suite {
            Suite::Quick => Limits::new(20_000, 500, 250),
            Suite::Full => Limits::new(200_000, 5_000, 10_000),
        }
    }

    fn run(&self, _ctx: &mut RunContext, _point: &Point) -> Result<Vec<Measurement>, PointError> {
        Err(PointError::not_run("this experiment is not in this build yet"))
    }
}
