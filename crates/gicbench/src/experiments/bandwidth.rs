//! `bandwidth`: from which payload is the link full?

use super::{AxisUse, Experiment, Limits, Suite};
use crate::axes::AxisId;
use crate::context::RunContext;
use crate::measurement::{Measurement, Metric};
use crate::point::{Point, PointError, Transport};

pub(super) struct Bandwidth;

impl Experiment for Bandwidth {
    fn name(&self) -> &'static str {
        "bandwidth"
    }

    fn question(&self) -> &'static str {
        "from which payload is the link full?"
    }

    fn transports(&self) -> &'static [Transport] {
        &[Transport::MiniGda, Transport::MiniProxy]
    }

    fn metrics(&self) -> &'static [Metric] {
        &[Metric::Bandwidth]
    }

    fn axes(&self) -> &'static [AxisUse] {
        const AXES: &[AxisUse] = &[
            AxisUse::new(AxisId::Op, "put", "put,get"),
            AxisUse::new(
                AxisId::Payload,
                "8,1K,32K,1M",
                "8,16,32,64,128,256,512,1K,2K,4K,8K,16K,32K,64K,128K,256K,512K,1M",
            ),
            AxisUse::new(AxisId::Batch, "16", "16"),
            AxisUse::new(AxisId::Profile, "cx7-ndr200", "cx7-ndr200").takes(&["cx7-ndr200"]),
        ];
        AXES
    }

    fn limits(&self, suite: Suite) -> Limits {
        match suite {
            Suite::Quick => Limits::new(100_000, 500, 300),
            Suite::Full => Limits::new(1_000_000, 5_000, 10_000),
        }
    }

    fn run(&self, _ctx: &mut RunContext, _point: &Point) -> Result<Vec<Measurement>, PointError> {
        Err(PointError::not_run("this experiment is not in this build yet"))
    }
}
