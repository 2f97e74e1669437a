//! The run record: everything that a run was and gave, as JSON. `schema/run-record.schema.json` says the
//! same to other programs.
//!
//! A number that isn't there is null, never zero.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use stats::{Histogram, Sorted, StatsError};

use crate::context::Settings;
use crate::cpus::Assignment;
use crate::experiments::Limits;
use crate::hardware::IN_SOFTWARE;
use crate::machine::{Machine, Software};
use crate::measurement::{Clock, Measurement, Placement};
use crate::plan::Planned;
use crate::point::Point;
use crate::published::{Published, Reference, stand_in};
use crate::ranks::RanksRecord;

/// Version of the format. It grows with every change that a reader could trip over.
pub const SCHEMA_VERSION: u32 = 1;

/// Relative width of a histogram's buckets.
const BUCKET_WIDTH: f64 = 0.05;

/// Confidence of the interval of the median.
const CONFIDENCE: f64 = 0.95;

/// A whole run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// When it began, RFC 3339, UTC.
    pub started: String,
    /// How long it took, in seconds.
    pub elapsed_s: f64,
    /// The command line.
    pub argv: Vec<String>,
    /// The machine.
    pub machine: Machine,
    /// The software.
    pub software: Software,
    /// What holds for the whole run.
    pub parameters: Parameters,
    /// The ranks; null where a process measured alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranks: Option<RanksRecord>,
    /// What was measured, in the order of the plan.
    pub measurements: Vec<Row>,
    /// Points that couldn't run here, or that the run didn't come to.
    pub not_run: Vec<Missing>,
    /// Points that broke.
    pub failed: Vec<Missing>,
    /// Whether something that was asked for wasn't run.
    pub partial: bool,
    /// Whether Ctrl-C ended it.
    pub interrupted: bool,
}

/// What holds for the whole run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Parameters {
    /// `quick`, `full`, or the name of a file.
    pub suite: String,
    /// Share of the points that was run, as `K/N`.
    pub shard: Option<String>,
    /// The settings.
    #[serde(flatten)]
    pub settings: Settings,
}

/// Which point an entry is of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PointId {
    /// Experiment.
    pub experiment: String,
    /// Transport.
    pub transport: String,
    /// Submitter.
    pub submitter: String,
    /// NIC.
    pub nic: String,
    /// Every axis, and `ops`, `warmup` and `duration_s`.
    pub parameters: Map<String, Json>,
}

/// One metric at one point.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The point.
    #[serde(flatten)]
    pub point: PointId,
    /// Where the shared structures were.
    pub placement: Placement,
    /// The clock; null where nothing was timed by one that is known.
    pub clock: Option<Clock>,
    /// Busy threads and their CPUs; null where the experiment didn't say.
    pub threads: Option<Threads>,
    /// Metric.
    pub metric: String,
    /// Unit of all of the numbers below.
    pub unit: String,
    /// Number of samples.
    pub samples: usize,
    /// Median.
    pub p50: Option<f64>,
    /// 90th percentile.
    pub p90: Option<f64>,
    /// 99th percentile.
    pub p99: Option<f64>,
    /// 99.9th percentile.
    pub p999: Option<f64>,
    /// Least.
    pub min: f64,
    /// Greatest.
    pub max: f64,
    /// Mean.
    pub mean: f64,
    /// 95 % interval of the median.
    pub p50_interval: Option<Ends>,
    /// Samples far from the rest, on either side; none were dropped.
    pub outliers: Option<usize>,
    /// Operations whose data was wrong; null where it wasn't checked.
    pub wrong: Option<u64>,
    /// Whether something stood in for hardware.
    pub stand_in: bool,
    /// What did.
    pub stand_in_why: Option<String>,
    /// Why the configuration is not safe; null where it is.
    pub unsafe_mode: Option<String>,
    /// Whether Ctrl-C cut the sampling short.
    pub cut_short: bool,
    /// The published figure.
    pub reference: Option<Reference>,
    /// The distribution.
    pub histogram: Distribution,
    /// Facts that only some experiments have.
    pub details: BTreeMap<String, Json>,
}

/// Ends of an interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Ends {
    /// Lower.
    pub low: f64,
    /// Upper.
    pub high: f64,
}

/// Busy threads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Threads {
    /// Their number.
    pub busy: usize,
    /// Whether they had to share cores.
    pub oversubscribed: bool,
    /// Who ran where.
    #[serde(flatten)]
    pub assignment: Assignment,
}

/// A log-bucketed histogram.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Distribution {
    /// Factor from one bound to the next.
    pub growth: f64,
    /// Samples of zero or below.
    pub not_positive: u64,
    /// Lower bound (included), upper bound (excluded) and count of each bucket that isn't empty.
    pub buckets: Vec<(f64, f64, u64)>,
}

/// A point without measurements.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Missing {
    /// The point.
    #[serde(flatten)]
    pub point: PointId,
    /// Why.
    pub reason: String,
}

impl PointId {
    /// Of a planned point.
    pub fn of(planned: &Planned) -> Self {
        Self::at(&planned.point, planned.limits)
    }

    /// Of a point with its limits.
    pub fn at(point: &Point, Limits { ops, warmup, duration }: Limits) -> Self {
        let mut parameters = Map::new();
        for (axis, value) in &point.values {
            let value = match value.number() {
                Some(number) => Json::from(number),
                None => Json::from(value.to_string()),
            };
            parameters.insert(axis.name().to_owned(), value);
        }
        parameters.insert("ops".to_owned(), Json::from(ops));
        parameters.insert("warmup".to_owned(), Json::from(warmup));
        let seconds = duration.map(|duration| duration.as_secs_f64());
        parameters.insert("duration_s".to_owned(), Json::from(seconds));
        PointId {
            experiment: point.experiment().to_owned(),
            transport: point.transport.name().to_owned(),
            submitter: point.submitter.name().to_owned(),
            nic: point.nic.name().to_owned(),
            parameters,
        }
    }
}

impl Row {
    /// Summarises the samples of a measurement.
    ///
    /// # Errors
    /// There are no samples, or one isn't a finite number.
    pub fn new(
        planned: &Planned,
        measurement: Measurement,
        assignment: Option<&Assignment>,
        published: &Published,
        cut_short: bool,
    ) -> Result<Self, StatsError> {
        let metric = measurement.metric;
        let histogram = Histogram::new(&measurement.samples, BUCKET_WIDTH)?;
        let sorted = Sorted::new(measurement.samples)?;
        let summary = sorted.summary();
        let interval = match summary.p50 {
            Some(_) => sorted.quantile_interval(0.5, CONFIDENCE)?,
            None => None,
        };
        let in_software = measurement.details.contains_key(IN_SOFTWARE);
        let stand_in_why = stand_in(&planned.point, metric, in_software);
        let reference = published.lookup(&planned.point, metric).map(|reference| Reference {
            comparable: reference.comparable && stand_in_why.is_none(),
            ..reference
        });
        Ok(Row {
            point: PointId::of(planned),
            placement: measurement.placement,
            clock: measurement.clock,
            threads: assignment.map(|assignment| Threads {
                busy: assignment.busy_threads(),
                oversubscribed: assignment.oversubscribed(),
                assignment: assignment.clone(),
            }),
            metric: metric.name().to_owned(),
            unit: metric.unit().symbol().to_owned(),
            samples: summary.count,
            p50: summary.p50,
            p90: summary.p90,
            p99: summary.p99,
            p999: summary.p999,
            min: summary.min,
            max: summary.max,
            mean: summary.mean,
            p50_interval: interval.map(|ends| Ends { low: ends.low, high: ends.high }),
            outliers: sorted.outliers().map(|outliers| outliers.low + outliers.high),
            wrong: measurement.wrong,
            stand_in: stand_in_why.is_some(),
            stand_in_why,
            unsafe_mode: measurement.unsafe_mode,
            cut_short,
            reference,
            histogram: Distribution {
                growth: histogram.growth(),
                not_positive: histogram.not_positive(),
                buckets: histogram.buckets().iter().map(|b| (b.low, b.high, b.count)).collect(),
            },
            details: measurement.details,
        })
    }

    /// The median over the published figure, where the same thing was measured.
    pub fn ratio(&self) -> Option<f64> {
        let figure = self.reference.as_ref().filter(|figure| figure.comparable)?;
        let ratio = self.p50? / figure.value;
        (!self.stand_in && ratio.is_finite()).then_some(ratio)
    }

    /// Whether the data was wrong where it had to be right.
    pub fn is_wrong(&self) -> bool {
        self.unsafe_mode.is_none() && self.wrong.is_some_and(|wrong| wrong > 0)
    }
}
