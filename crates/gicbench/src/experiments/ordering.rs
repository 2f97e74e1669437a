//! `ordering`: what does each ordering cost, and is it safe?

use super::{AxisUse, Experiment, Limits, Suite};
use crate::axes::AxisId;
use crate::context::RunContext;
use crate::measurement::{Measurement, Metric};
use crate::point::{Point, PointError, Transport};

pub(super) struct Ordering;

impl Experiment for Ordering {
    fn name(&self) -> &'static str {
        "ordering"
    }

    fn question(&self) -> &'static str {
        "what does each ordering cost, and is it safe?"
    }

    fn transports(&self) -> &'static [Transport] {
        &[Transport::MiniGda]
    }

    fn metrics(&self) -> &'static [Metric] {
        &[Metric::Issue, Metric::PutCompletion]
    }

    fn axes(&self) -> &'static [AxisUse] {
        const AXES: &[AxisUse] = &[
            AxisUse::new(AxisId::Payload, "8", "8,64"),
            AxisUse::new(
                AxisId::Order,
                "none,gpu-release,gpu-fence,release-fence-mmio,system-fence",
                "none,gpu-release,gpu-fence,release-fence-mmio,system-fence,async-mmio",
            ),
            AxisUse::new(AxisId::CqLoad, "plain,acquire", "plain,acquire"),
            AxisUse::new(AxisId::Queues, "host", "host,gpu"),
            AxisUse::new(AxisId::Profile, "none", "none,cx7-ndr200"),
        ];
        AXES
    }

    fn limits(&self, suite: Suite) -> Limits {
        match suite {
            Suite::Quick => Limits::new(20_000, 500, 250),
            Suite::Full => Limits::new(1_000_000, 5_000, 10_000),
        }
    }

    fn run(&self, _ctx: &mut RunContext, _point: &Point) -> Result<Vec<Measurement>, PointError> {
        Err(PointError::not_run("this experiment is not in this build yet"))
    }
}
