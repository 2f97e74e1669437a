//! `clock`: how much of each time scales with the SM clock?

use serde_json::Value as Json;
use stats::{Sorted, fit_line};

use super::gda::{self, Spec};
use super::rig::{Rig, broke};
use super::{AxisUse, Experiment, Limits, Suite, proxy};
use device::choice::Choice;
use device::proxy::{ProxyOp, Until};
use device::view::{Op, QuietScope};

use crate::axes::AxisId;
use crate::context::RunContext;
use crate::measurement::{Measurement, Metric};
use crate::point::{Point, PointError, Transport};
use crate::quantity::{Micros, Sample as _};

pub(super) struct Clock;

impl Experiment for Clock {
    fn name(&self) -> &'static str {
        "clock"
    }

    fn question(&self) -> &'static str {
        "how much of each time scales with the SM clock?"
    }

    fn transports(&self) -> &'static [Transport] {
        &[Transport::MiniGda, Transport::MiniProxy]
    }

    fn metrics(&self) -> &'static [Metric] {
        &[Metric::Issue, Metric::Enqueue, Metric::PutCompletion]
    }

    fn axes(&self) -> &'static [AxisUse] {
        const AXES: &[AxisUse] = &[
            AxisUse::new(AxisId::Payload, "8", "8"),
            AxisUse::new(AxisId::Order, "gpu-release", "none,gpu-release,system-fence")
                .only(&[Transport::MiniGda]),
            AxisUse::new(AxisId::Handoff, "lap-parity", "valid-byte,lap-parity")
                .only(&[Transport::MiniProxy]),
            AxisUse::new(AxisId::Profile, "none", "none"),
        ];
        AXES
    }

    fn limits(&self, suite: Suite) -> Limits {
        match suite {
            Suite::Quick => Limits::new(10_000, 500, 100),
            Suite::Full => Limits::new(200_000, 5_000, 10_000),
        }
    }

    fn run(&self, ctx: &mut RunContext, point: &Point) -> Result<Vec<Measurement>, PointError> {
        let bytes = point.number_as(AxisId::Payload)?;
        if point.transport == Transport::MiniProxy {
            let choice = proxy::tuned(point.word(AxisId::Handoff)?, 1)?;
            let mut bench = proxy::Bench::new(ctx, point, proxy::Spec::one(choice, bytes))?;
            let (enqueue, total) = bench.enqueue(ctx, ProxyOp::Put, Until::Completed)?;
            let seen = Seen { rig: &bench.rig, launches: &bench.launches };
            return Ok(vec![
                bench.finish(ctx, seen.facts(&enqueue, Measurement::enqueue)?)?,
                bench.finish(ctx, seen.facts(&total, Measurement::put_completion)?)?,
            ]);
        }
        let choice = Choice { order: gda::order(point)?, ..Choice::default() };
        let mut bench = gda::Bench::new(ctx, point, Spec::one(choice, bytes))?;
        let samples = bench.latency(ctx, Op::Put, QuietScope::One)?;
        let seen = Seen { rig: &bench.rig, launches: &samples.launches };
        Ok(vec![
            bench.finish(ctx, seen.facts(&samples.issue, Measurement::issue)?)?,
            bench.finish(ctx, seen.facts(&samples.total, Measurement::put_completion)?)?,
        ])
    }
}

/// Launches, each with its clock in MHz and its number of samples.
struct Seen<'a> {
    rig: &'a Rig,
    launches: &'a [(f64, usize)],
}

impl Seen<'_> {
    /// The measurement of `times`, with what the launches say of the clock.
    fn facts(
        &self,
        times: &[Micros],
        of: fn(Vec<Micros>) -> Measurement,
    ) -> Result<Measurement, PointError> {
        let mut rest = times.iter().map(|time| time.number());
        let launches: Vec<AtClock> = self
            .launches
            .iter()
            .map(|(mhz, samples)| AtClock {
                mhz: *mhz,
                times: rest.by_ref().take(*samples).collect(),
            })
            .collect();
        let facts = scaling(&launches, self.rig.clock.uncertainty).map_err(broke)?;
        let whose = if self.rig.on_gpu() {
            "the SM's"
        } else {
            "the host's counter, which keeps its rate whatever the core's clock is"
        };
        let measurement = of(times.to_vec()).detail("clock_whose", whose);
        Ok(facts.into_iter().fold(measurement, |m, (name, fact)| m.detail(name, fact)))
    }
}

/// The times of a launch, in microseconds, and the clock that was measured in it.
#[derive(Debug, Clone)]
struct AtClock {
    mhz: f64,
    times: Vec<f64>,
}

/// Confidence of the intervals of what was fitted.
const CONFIDENCE: f64 = 0.95;

/// What the launches say of the clock: where it was, and, where it was at three places or more that `uncertainty`
/// (a part of a clock) doesn't blur, the line t = fixed + cycles / f through the medians at each.
fn scaling(
    launches: &[AtClock],
    uncertainty: f64,
) -> Result<Vec<(&'static str, Json)>, stats::StatsError> {
    let clocks = Sorted::new(launches.iter().map(|launch| launch.mhz).collect())?;
    let seen = clocks.samples();
    let (least, most) = (seen[0], seen[seen.len() - 1]);
    let mut facts = vec![
        ("clock_mhz", rounded(clocks.quantile(0.5)?)),
        ("clock_min_mhz", rounded(least)),
        ("clock_max_mhz", rounded(most)),
        ("clock_uncertainty", Json::from(uncertainty)),
        ("clock_launches", Json::from(launches.len())),
    ];
    let groups = by_clock(launches, uncertainty);
    facts.push(("clocks", Json::from(groups.len())));
    let few = match groups.len() {
        1 => Some("not run: one clock only"),
        2 => Some("not run: two clocks only, and three make a line that can be wrong"),
        _ => None,
    };
    if let Some(few) = few {
        facts.push(("clock_fit", Json::from(few)));
        return Ok(facts);
    }
    let (mut periods, mut medians) = (Vec::new(), Vec::new());
    for group in groups {
        periods.push(1.0 / group.mhz);
        medians.push(Sorted::new(group.times)?.quantile(0.5)?);
    }
    let line = fit_line(&periods, &medians, CONFIDENCE)?;
    let ends = |interval: stats::Interval| Json::from(vec![interval.low, interval.high]);
    facts.extend([
        ("clock_fit", Json::from("t = fixed_us + scaling_cycles / clock_mhz")),
        ("fixed_us", Json::from(line.intercept)),
        ("fixed_us_interval", ends(line.intercept_interval)),
        ("scaling_cycles", Json::from(line.slope)),
        ("scaling_cycles_interval", ends(line.slope_interval)),
        ("scaling_share_at_top_clock", Json::from(line.slope / most / line.at(1.0 / most))),
        ("clock_fit_r_squared", Json::from(line.r_squared)),
    ]);
    Ok(facts)
}

/// Launches whose clocks the uncertainty can't tell apart, together, by clock.
fn by_clock(launches: &[AtClock], uncertainty: f64) -> Vec<AtClock> {
    let mut sorted: Vec<&AtClock> = launches.iter().collect();
    sorted.sort_by(|a, b| a.mhz.total_cmp(&b.mhz));
    let mut groups: Vec<Vec<&AtClock>> = Vec::new();
    for launch in sorted {
        match groups.last_mut() {
            // Either of the two may be off.
            Some(group) if launch.mhz <= group[0].mhz * (1.0 + 2.0 * uncertainty) => {
                group.push(launch);
            }
            _ => groups.push(vec![launch]),
        }
    }
    let together = |group: Vec<&AtClock>| AtClock {
        mhz: group.iter().map(|launch| launch.mhz).sum::<f64>() / group.len() as f64,
        times: group.iter().flat_map(|launch| launch.times.iter().copied()).collect(),
    };
    groups.into_iter().map(together).collect()
}

/// To the kilohertz.
fn rounded(mhz: f64) -> Json {
    Json::from((mhz * 1e3).round() / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Launches of a time with 0.2 us that don't scale and 900 cycles that do.
    fn at(clocks: &[f64]) -> Vec<AtClock> {
        let time = |mhz: f64| 0.2 + 900.0 / mhz;
        clocks.iter().map(|mhz| AtClock { mhz: *mhz, times: vec![time(*mhz); 100] }).collect()
    }

    fn fact(facts: &[(&str, Json)], name: &str) -> Option<Json> {
        facts.iter().find(|fact| fact.0 == name).map(|fact| fact.1.clone())
    }

    #[test]
    fn clocks_that_move_give_what_scales_and_what_does_not() {
        let facts = scaling(&at(&[1980.0, 1200.0, 1500.0, 1500.2, 1980.1]), 0.001).unwrap();
        let number = |name| fact(&facts, name).unwrap().as_f64().unwrap();
        assert_eq!(number("clocks"), 3.0);
        assert_eq!(number("clock_mhz"), 1500.2);
        assert!((number("fixed_us") - 0.2).abs() < 1e-3, "{facts:?}");
        assert!((number("scaling_cycles") - 900.0).abs() < 1.0, "{facts:?}");
        let share = 900.0 / 1980.1 / (0.2 + 900.0 / 1980.1);
        assert!((number("scaling_share_at_top_clock") - share).abs() < 1e-3, "{facts:?}");
    }

    #[test]
    fn clocks_that_cannot_be_told_apart_are_no_fit_and_say_so() {
        for (clocks, uncertainty, groups, word) in [
            (&[1980.0] as &[f64], 0.001, 1, "one clock"),
            (&[1980.0, 1981.0, 1979.0], 0.001, 1, "one clock"),
            (&[1980.0, 1500.0, 1200.0], 0.5, 1, "one clock"),
            (&[1980.0, 1500.0, 1501.0], 0.001, 2, "two clocks"),
        ] {
            let facts = scaling(&at(clocks), uncertainty).unwrap();
            assert_eq!(fact(&facts, "clocks"), Some(Json::from(groups)), "{clocks:?}");
            assert!(fact(&facts, "clock_fit").unwrap().as_str().unwrap().contains(word));
            assert_eq!(fact(&facts, "fixed_us"), None);
        }
    }

    #[test]
    fn no_launch_is_an_error() {
        assert!(scaling(&[], 0.001).is_err());
    }
}
