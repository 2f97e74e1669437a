//! `proxy-scaling`: when do proxy workers, rings and chaining pay?

use super::proxy::{self, Bench, Spec};
use super::{AxisUse, Experiment, Impossible, Limits, Suite};
use device::proxy::Handoff;

use crate::axes::AxisId;
use crate::context::RunContext;
use crate::measurement::{Measurement, Metric};
use crate::point::{Point, PointError, Transport};

pub(super) struct ProxyScaling;

impl Experiment for ProxyScaling {
    fn name(&self) -> &'static str {
        "proxy-scaling"
    }

    fn question(&self) -> &'static str {
        "when do proxy workers, rings and chaining pay?"
    }

    fn transports(&self) -> &'static [Transport] {
        &[Transport::MiniProxy]
    }

    fn metrics(&self) -> &'static [Metric] {
        &[Metric::Rate]
    }

    fn axes(&self) -> &'static [AxisUse] {
        const AXES: &[AxisUse] = &[
            AxisUse::new(AxisId::Payload, "8", "8"),
            AxisUse::new(AxisId::Handoff, "lap-parity", "lap-parity"),
            AxisUse::new(AxisId::Producers, "1", "1,2,4,8"),
            AxisUse::new(AxisId::Rings, "1,8", "1,2,4,8,16,32"),
            AxisUse::new(AxisId::Workers, "1", "1,2,4,8"),
            AxisUse::new(AxisId::Chain, "1,16", "1,2,4,8,16,32"),
            AxisUse::new(AxisId::SignalEvery, "1", "1,16"),
            AxisUse::new(AxisId::Profile, "none", "none,cx7-ndr200"),
        ];
        AXES
    }

    fn limits(&self, suite: Suite) -> Limits {
        match suite {
            Suite::Quick => Limits::new(50_000_000, 10_000, 300),
            Suite::Full => Limits::new(20_000_000, 100_000, 10_000),
        }
    }

    fn possible(&self, point: &Point) -> Result<(), Impossible> {
        if !point.word(AxisId::Handoff).is_ok_and(|word| word == "producer-counter") {
            return Ok(());
        }
        for (axis, why) in [
            (
                AxisId::Chain,
                "the producer builds each WQE and the worker rings for what is there: no chains are posted",
            ),
            (AxisId::SignalEvery, "every WQE that a producer builds asks for a CQE"),
        ] {
            if point.number(axis).is_ok_and(|n| n != 1) {
                return Err(Impossible {
                    axis,
                    with: AxisId::Handoff,
                    why: why.to_owned(),
                    nearest: vec!["1".to_owned()],
                });
            }
        }
        Ok(())
    }

    fn run(&self, ctx: &mut RunContext, point: &Point) -> Result<Vec<Measurement>, PointError> {
        let producers: u32 = point.number_as(AxisId::Producers)?;
        let rings: u32 = point.number_as(AxisId::Rings)?;
        let choice = proxy::tuned(point.word(AxisId::Handoff)?, producers.div_ceil(rings).into())?;
        if choice.handoff == Handoff::MappedCounter && (rings > 1 || producers > 1) {
            return Err(PointError::not_run(
                "mapped-counter asks for known requests in their order, which several producers or rings have not",
            ));
        }
        let spec = Spec {
            threads: producers,
            rings,
            workers: point.number_as(AxisId::Workers)?,
            chain: point.number_as(AxisId::Chain)?,
            signal_every: point.number_as(AxisId::SignalEvery)?,
            slots: 4096,
            ..Spec::one(choice, point.number_as(AxisId::Payload)?)
        };
        let mut bench = Bench::new(ctx, point, spec)?;
        let (rates, _) = bench.rate(ctx)?;
        Ok(vec![bench.finish(ctx, Measurement::rate(rates))?.detail("window", proxy::WINDOW)])
    }
}
