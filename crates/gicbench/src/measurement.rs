//! What an experiment hands to the harness: the samples of one metric, and how they were taken.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value as Json;

use crate::quantity::{GBs, MMsgs, Micros, Sample, Unit};

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Metric {
    /// From the first instruction of building the WQE or descriptor to the return of the submit call,
    /// ordering and doorbell included, completion excluded.
    Issue,
    /// Until the completion routine returned.
    PutCompletion,
    /// Request sent until the remote thread's reply is seen.
    RoundTrip,
    /// Until the descriptor is with the proxy.
    Enqueue,
    /// Until the submitter sees that the proxy has it: taken from the queue or posted, and not completed.
    Consumed,
    /// Operations completed a second.
    Rate,
    /// Payload bytes completed a second.
    Bandwidth,
}

impl Metric {
    /// Every metric.
    pub const ALL: [Metric; 7] = [
        Metric::Issue,
        Metric::PutCompletion,
        Metric::RoundTrip,
        Metric::Enqueue,
        Metric::Consumed,
        Metric::Rate,
        Metric::Bandwidth,
    ];

    /// Name in records.
    pub fn name(self) -> &'static str {
        match self {
            Metric::Issue => "issue_us",
            Metric::PutCompletion => "put_completion_us",
            Metric::RoundTrip => "round_trip_us",
            Metric::Enqueue => "enqueue_us",
            Metric::Consumed => "consumed_us",
            Metric::Rate => "rate_mmsgs",
            Metric::Bandwidth => "bandwidth_gbs",
        }
    }

    /// Unit of its samples.
    pub fn unit(self) -> Unit {
        match self {
            Metric::Rate => Unit::MMsgs,
            Metric::Bandwidth => Unit::GBs,
            _ => Unit::Micros,
        }
    }

    /// Whether the submitter alone sets it, so that a real GPU's time is real whatever the NIC is.
    pub fn is_submitters_own(self) -> bool {
        matches!(self, Metric::Issue | Metric::Enqueue)
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Serialize for Metric {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// The clock that samples were taken with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Clock {
    /// Its name, such as `clock64` or `rdtsc`.
    pub source: String,
    /// Least step seen, in nanoseconds.
    pub resolution_ns: f64,
    /// Cost of one reading, in nanoseconds. Not subtracted from the samples.
    pub overhead_ns: f64,
    /// How far off its rate may be, as a part of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uncertainty: Option<f64>,
    /// Step of the timer that its rate was measured against, where that is a coarse one, in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timer_step_ns: Option<u64>,
}

/// Kind of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemoryKind {
    /// Host memory, pinned where a GPU reads it.
    Host,
    /// GPU memory.
    Gpu,
}

/// Where the shared structures were.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// Send queue, or proxy ring.
    pub queue: MemoryKind,
    /// Doorbell record.
    pub record: MemoryKind,
    /// Completion queue.
    pub cq: MemoryKind,
    /// Doorbell page.
    #[serde(default = "host")]
    pub doorbell: MemoryKind,
    /// Payload.
    pub payload: MemoryKind,
}

fn host() -> MemoryKind {
    MemoryKind::Host
}

impl Placement {
    /// Everything in host memory.
    pub const HOST: Placement = Placement {
        queue: MemoryKind::Host,
        record: MemoryKind::Host,
        cq: MemoryKind::Host,
        doorbell: MemoryKind::Host,
        payload: MemoryKind::Host,
    };

    fn all(&self) -> [(&'static str, MemoryKind); 5] {
        [
            ("a send queue", self.queue),
            ("a doorbell record", self.record),
            ("a CQ", self.cq),
            ("a doorbell page", self.doorbell),
            ("payload", self.payload),
        ]
    }

    /// The first that is in GPU memory, by name.
    pub fn first_on_gpu(&self) -> Option<&'static str> {
        self.all().into_iter().find(|(_, kind)| *kind == MemoryKind::Gpu).map(|(name, _)| name)
    }
}

/// The samples of one metric at one point.
#[derive(Debug, Clone)]
pub struct Measurement {
    pub(crate) metric: Metric,
    pub(crate) samples: Vec<f64>,
    pub(crate) wrong: Option<u64>,
    pub(crate) clock: Option<Clock>,
    pub(crate) placement: Placement,
    pub(crate) unsafe_mode: Option<String>,
    pub(crate) details: BTreeMap<String, Json>,
}

impl Measurement {
    fn new<S: Sample>(metric: Metric, samples: Vec<S>) -> Self {
        debug_assert_eq!(metric.unit(), S::UNIT);
        Measurement {
            metric,
            samples: samples.into_iter().map(Sample::number).collect(),
            wrong: None,
            clock: None,
            placement: Placement::HOST,
            unsafe_mode: None,
            details: BTreeMap::new(),
        }
    }

    /// Issue times.
    pub fn issue(samples: Vec<Micros>) -> Self {
        Measurement::new(Metric::Issue, samples)
    }

    /// Times of an operation with its completion.
    pub fn put_completion(samples: Vec<Micros>) -> Self {
        Measurement::new(Metric::PutCompletion, samples)
    }

    /// Round trips.
    pub fn round_trip(samples: Vec<Micros>) -> Self {
        Measurement::new(Metric::RoundTrip, samples)
    }

    /// Enqueue times.
    pub fn enqueue(samples: Vec<Micros>) -> Self {
        Measurement::new(Metric::Enqueue, samples)
    }

    /// Times until the submitter sees that the proxy has it.
    pub fn consumed(samples: Vec<Micros>) -> Self {
        Measurement::new(Metric::Consumed, samples)
    }

    /// Message rates, one sample an interval.
    pub fn rate(samples: Vec<MMsgs>) -> Self {
        Measurement::new(Metric::Rate, samples)
    }

    /// Bandwidths, one sample an interval.
    pub fn bandwidth(samples: Vec<GBs>) -> Self {
        Measurement::new(Metric::Bandwidth, samples)
    }

    /// Data was checked, and so many operations were found wrong, missing or repeated.
    /// Without this call the record says that nothing was checked.
    #[must_use]
    pub fn checked(mut self, wrong: u64) -> Self {
        self.wrong = Some(wrong);
        self
    }

    /// The clock that the samples were taken with.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Where the shared structures were; host memory unless said.
    #[must_use]
    pub fn placement(mut self, placement: Placement) -> Self {
        self.placement = placement;
        self
    }

    /// The configuration is weaker than what the observer needs, and why. Wrong data is then a result
    /// and not a failure.
    #[must_use]
    pub fn unsafe_mode(mut self, why: impl Into<String>) -> Self {
        self.unsafe_mode = Some(why.into());
        self
    }

    /// The largest sample.
    pub(crate) fn best(&self) -> Option<f64> {
        self.samples.iter().copied().reduce(f64::max)
    }

    /// One more fact for the record, such as a carried rate or a count of NIC findings.
    #[must_use]
    pub fn detail(mut self, name: impl Into<String>, value: impl Into<Json>) -> Self {
        self.details.insert(name.into(), value.into());
        self
    }
}
