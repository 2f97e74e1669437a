//! `handoff`: what does each GPU-CPU hand-off cost to enqueue?

use super::proxy::{self, Spec};
use super::{AxisUse, Experiment, Limits, Suite};
use device::proxy::{self as ring, ProxyOp};

use crate::axes::AxisId;
use crate::context::RunContext;
use crate::measurement::{Measurement, Metric};
use crate::point::{Point, PointError, Transport};

pub(super) struct Handoff;

impl Experiment for Handoff {
    fn name(&self) -> &'static str {
        "handoff"
    }

    fn question(&self) -> &'static str {
        "what does each GPU-CPU hand-off cost to enqueue?"
    }

    fn transports(&self) -> &'static [Transport] {
        &[Transport::MiniProxy]
    }

    fn metrics(&self) -> &'static [Metric] {
        &[Metric::Enqueue, Metric::PutCompletion]
    }

    fn axes(&self) -> &'static [AxisUse] {
        const AXES: &[AxisUse] = &[
            AxisUse::new(AxisId::Payload, "8", "8"),
            AxisUse::new(
                AxisId::Handoff,
                "valid-byte,nonzero-word,lap-parity,producer-counter,mapped-counter",
                "valid-byte,nonzero-word,lap-parity,producer-counter,mapped-counter",
            ),
            AxisUse::new(AxisId::Producers, "1", "1,2,4,8"),
            AxisUse::new(AxisId::Profile, "none", "none,cx7-ndr200"),
        ];
        AXES
    }

    fn limits(&self, suite: Suite) -> Limits {
        match suite {
            Suite::Quick => Limits::new(50_000, 1_000, 250),
            Suite::Full => Limits::new(500_000, 5_000, 10_000),
        }
    }

    fn run(&self, ctx: &mut RunContext, point: &Point) -> Result<Vec<Measurement>, PointError> {
        let producers: u32 = point.number_as(AxisId::Producers)?;
        let choice = proxy::tuned(point.word(AxisId::Handoff)?, producers.into())?;
        let mut spec = Spec::one(choice, point.number_as(AxisId::Payload)?);
        spec.threads = producers;
        if producers > 1 && choice.handoff == ring::Handoff::MappedCounter {
            return Err(PointError::not_run(
                "mapped-counter asks for known requests in their order: with several producers nobody knows whose \
                 payload goes",
            ));
        }
        proxy::enqueue_and_completion(ctx, point, spec, ProxyOp::Put)
    }
}
