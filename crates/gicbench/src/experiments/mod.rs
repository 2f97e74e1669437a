//! What an experiment is to the harness: a name, a question, the axes that it uses, and one function
//! that measures one point.
//!
//! An experiment declares; the harness plans, checks usage, runs each point on a thread of its own with
//! a deadline, summarises the samples, labels stand-ins, and writes the record. So an experiment holds
//! only what it measures and how.

pub(crate) mod across;
mod bandwidth;
mod batching;
mod clock;
mod completed;
mod devices;
mod floor;
mod gda;
mod handoff;
mod inline;
mod latency;
mod like;
mod loaded;
mod ordering;
mod payload;
mod peer;
mod placement;
mod proxy;
mod proxy_scaling;
mod quiet;
mod rig;

use crate::axes::AxisId;
use crate::context::RunContext;
use crate::measurement::{Measurement, Metric};
use crate::point::{Point, PointError, Transport};

/// One experiment. The implementations are unit structs in a static table.
pub trait Experiment: Sync {
    /// Name on the command line and in records.
    fn name(&self) -> &'static str;

    /// The question that it answers, in one line.
    fn question(&self) -> &'static str;

    /// Transports that it measures; all of them are run unless `--transport` says otherwise.
    fn transports(&self) -> &'static [Transport];

    /// Metrics that it may report.
    fn metrics(&self) -> &'static [Metric];

    /// Axes that it uses. Every point has a value on each of these that its transport has.
    fn axes(&self) -> &'static [AxisUse];

    /// When a point has been sampled enough, where the request doesn't say.
    fn limits(&self, suite: Suite) -> Limits;

    /// Whether the point makes sense at all, wherever it is run.
    ///
    /// What merely can't run on this machine is not said here but by [`Experiment::run`].
    ///
    /// # Errors
    /// The two axes whose values exclude each other.
    fn possible(&self, _point: &Point) -> Result<(), Impossible> {
        Ok(())
    }

    /// Whether a possible point belongs to the suites. A product of lists holds more points than a question
    /// needs: those that differ from the wanted ones in axes that were not `given` can be left out here.
    fn in_suite(&self, _point: &Point, _given: &dyn Fn(AxisId) -> bool) -> bool {
        true
    }

    /// Measures one point. Runs on a thread of its own, which it may pin.
    ///
    /// An experiment takes its amount of work from [`RunContext::sampling`], which also ends it at
    /// Ctrl-C: it then returns the samples that it has. It never returns a measurement without samples.
    ///
    /// # Errors
    /// The point can't run here, or failed. Wrong data is not an error but a count in the measurement.
    fn run(&self, ctx: &mut RunContext, point: &Point) -> Result<Vec<Measurement>, PointError>;
}

/// How thorough a run is where the request doesn't say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Suite {
    /// All experiments together within a minute on two cores.
    Quick,
    /// Sweeps as published figures have them.
    Full,
}

impl Suite {
    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Suite::Quick => "quick",
            Suite::Full => "full",
        }
    }
}

/// When a point has been sampled enough: at whichever comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Operations counted; none: as many as fit the time.
    pub ops: Option<u64>,
    /// Operations before the counted ones.
    pub warmup: u64,
    /// Sampling time; none: as long as the operations take.
    pub duration: Option<std::time::Duration>,
}

impl Limits {
    /// So many operations, in at most so many milliseconds.
    pub const fn new(ops: u64, warmup: u64, millis: u64) -> Self {
        Limits { ops: Some(ops), warmup, duration: Some(std::time::Duration::from_millis(millis)) }
    }
}

/// How an experiment uses an axis.
#[derive(Debug, Clone, Copy)]
pub struct AxisUse {
    /// The axis.
    pub axis: AxisId,
    /// Transports whose points have it; empty means all.
    pub only: &'static [Transport],
    /// Words that the experiment takes, or empty for all that the axis knows.
    pub takes: &'static [&'static str],
    /// Values of the quick suite, as a comma list.
    pub quick: &'static str,
    /// Values of the full suite, as a comma list.
    pub full: &'static str,
}

impl AxisUse {
    /// An axis with its values in the quick and in the full suite.
    pub const fn new(axis: AxisId, quick: &'static str, full: &'static str) -> Self {
        AxisUse { axis, only: &[], takes: &[], quick, full }
    }

    /// Only points of these transports have it.
    pub const fn only(mut self, transports: &'static [Transport]) -> Self {
        self.only = transports;
        self
    }

    /// Only these words of the axis make sense in this experiment.
    pub const fn takes(mut self, words: &'static [&'static str]) -> Self {
        self.takes = words;
        self
    }

    /// Whether points of a transport have it.
    pub fn applies_to(&self, transport: Transport) -> bool {
        self.only.is_empty() || self.only.contains(&transport)
    }
}

/// Two values that exclude each other, wherever they are run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Impossible {
    /// The axis whose value had better be changed.
    pub axis: AxisId,
    /// The axis that it clashes with.
    pub with: AxisId,
    /// Why.
    pub why: String,
    /// Values of `axis` that would do.
    pub nearest: Vec<String>,
}

/// The experiments of this build, in the order in which they run and are listed.
pub fn all() -> &'static [&'static dyn Experiment] {
    &[
        &latency::Latency,
        &ordering::Ordering,
        &inline::Inline,
        &quiet::Quiet,
        &clock::Clock,
        &placement::Placement,
        &batching::Batching,
        &handoff::Handoff,
        &proxy_scaling::ProxyScaling,
        &loaded::Loaded,
        &bandwidth::Bandwidth,
        &floor::Floor,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_declared_default_is_a_value_that_the_experiment_takes() {
        for experiment in all() {
            for used in experiment.axes() {
                for list in [used.quick, used.full] {
                    let values = used.axis.parse_list(list).unwrap();
                    for word in values.iter().filter_map(|value| value.word()) {
                        assert!(
                            used.takes.is_empty() || used.takes.contains(&word),
                            "{} {} {word}",
                            experiment.name(),
                            used.axis
                        );
                    }
                }
                for word in used.takes {
                    assert!(used.axis.parse(word).is_ok(), "{} {word}", experiment.name());
                }
                for transport in used.only {
                    assert!(experiment.transports().contains(transport));
                }
            }
            for suite in [Suite::Quick, Suite::Full] {
                let limits = experiment.limits(suite);
                assert!(limits.ops.is_some() || limits.duration.is_some());
            }
            assert!(!experiment.metrics().is_empty() && !experiment.transports().is_empty());
        }
    }
}
