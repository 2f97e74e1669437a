//! Published figures: what they are, and at which points they were taken.
//!
//! The numbers are in `reference/published.toml`, as printed. Here is only where each belongs: a figure
//! stands beside a measurement when experiment, transport, metric and the named axis values are its own.

use serde::{Deserialize, Serialize};

use crate::axes::AxisId;
use crate::measurement::Metric;
use crate::point::{Nic, Point, Submitter, Transport};

const PUBLISHED: &str = include_str!("../../../reference/published.toml");

/// A figure beside a measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reference {
    /// The figure.
    pub value: f64,
    /// Its unit.
    pub unit: String,
    /// What it is, in its source's terms.
    pub what: String,
    /// Where it is printed.
    pub source: String,
    /// Whether the same thing was measured, so that a ratio means something.
    pub comparable: bool,
}

/// The published figures, with their source.
#[derive(Debug, Clone)]
pub struct Published {
    table: toml::Table,
    source: String,
    figures: Vec<f64>,
}

/// The embedded file lacks something.
#[derive(Debug, thiserror::Error)]
pub enum PublishedError {
    /// It isn't TOML.
    #[error("reference/published.toml: {0}")]
    Syntax(#[from] toml::de::Error),
    /// A figure or the source isn't there.
    #[error("reference/published.toml has no {0}")]
    Missing(&'static str),
}

struct Place {
    key: &'static str,
    what: &'static str,
    experiment: &'static str,
    transport: Transport,
    metric: Metric,
    when: &'static [(AxisId, &'static str)],
}

/// One thread, an 8-byte put over RC.
const PLACES: &[Place] = &[
    Place {
        key: "latency.mini-gda.issue",
        what: "issue, GPU-scope release ordering",
        experiment: "latency",
        transport: Transport::MiniGda,
        metric: Metric::Issue,
        when: PLAIN_PUT,
    },
    Place {
        key: "latency.mini-gda.put_completion",
        what: "put+completion, GPU-scope release ordering",
        experiment: "latency",
        transport: Transport::MiniGda,
        metric: Metric::PutCompletion,
        when: PLAIN_PUT,
    },
    Place {
        key: "ordering.gpu_scope",
        what: "issue, GPU-scope ordering",
        experiment: "ordering",
        transport: Transport::MiniGda,
        metric: Metric::Issue,
        when: &[(AxisId::Payload, "8"), (AxisId::Order, "gpu-release")],
    },
    Place {
        key: "ordering.system_scope",
        what: "issue, system-scope ordering",
        experiment: "ordering",
        transport: Transport::MiniGda,
        metric: Metric::Issue,
        when: &[(AxisId::Payload, "8"), (AxisId::Order, "system-fence")],
    },
    Place {
        key: "ordering.none_issue",
        what: "issue, no fences, plain CQ loads",
        experiment: "ordering",
        transport: Transport::MiniGda,
        metric: Metric::Issue,
        when: UNORDERED,
    },
    Place {
        key: "ordering.none_completion",
        what: "put+completion, no fences, plain CQ loads",
        experiment: "ordering",
        transport: Transport::MiniGda,
        metric: Metric::PutCompletion,
        when: UNORDERED,
    },
    Place {
        key: "proxy.baseline_enqueue",
        what: "enqueue, baseline hand-off: device atomic, host progress read, system release",
        experiment: "handoff",
        transport: Transport::MiniProxy,
        metric: Metric::Enqueue,
        when: BASELINE_HANDOFF,
    },
    Place {
        key: "proxy.tuned_enqueue",
        what: "enqueue, one posted 16 B store",
        experiment: "handoff",
        transport: Transport::MiniProxy,
        metric: Metric::Enqueue,
        when: POSTED_STORE,
    },
    Place {
        key: "rate.nvshmem_ibgda",
        what: "NVSHMEM's GPU-initiated transport",
        experiment: "batching",
        transport: Transport::Nvshmem,
        metric: Metric::Rate,
        when: &[(AxisId::Payload, "8")],
    },
    Place {
        key: "rate.nic_ceiling",
        what: "the NIC's ceiling",
        experiment: "batching",
        transport: Transport::MiniGda,
        metric: Metric::Rate,
        when: &[(AxisId::Payload, "8")],
    },
    Place {
        key: "bandwidth.link_gbytes_per_s",
        what: "the link's bandwidth",
        experiment: "bandwidth",
        transport: Transport::MiniGda,
        metric: Metric::Bandwidth,
        when: &[],
    },
    Place {
        key: "bandwidth.link_gbytes_per_s",
        what: "the link's bandwidth",
        experiment: "bandwidth",
        transport: Transport::MiniProxy,
        metric: Metric::Bandwidth,
        when: &[],
    },
];

const PLAIN_PUT: &[(AxisId, &str)] = &[
    (AxisId::Op, "put"),
    (AxisId::Payload, "8"),
    (AxisId::Conn, "rc"),
    (AxisId::Order, "gpu-release"),
    (AxisId::Sharing, "exclusive"),
    (AxisId::Like, "none"),
];

const BASELINE_HANDOFF: &[(AxisId, &str)] = &[
    (AxisId::Handoff, "valid-byte"),
    (AxisId::Producers, "1"),
    (AxisId::Reserve, "atomic"),
    (AxisId::Progress, "read"),
    (AxisId::Publish, "release"),
];

const POSTED_STORE: &[(AxisId, &str)] = &[
    (AxisId::Handoff, "lap-parity"),
    (AxisId::Producers, "1"),
    (AxisId::Reserve, "owned"),
    (AxisId::Progress, "cached"),
    (AxisId::Publish, "posted"),
];

const UNORDERED: &[(AxisId, &str)] =
    &[(AxisId::Payload, "8"), (AxisId::Order, "none"), (AxisId::CqLoad, "plain")];

impl Published {
    /// Reads the figures that this program carries.
    ///
    /// # Errors
    /// The file lacks a figure that has a place.
    pub fn embedded() -> Result<Self, PublishedError> {
        Self::parse(PUBLISHED)
    }

    fn parse(text: &str) -> Result<Self, PublishedError> {
        let table: toml::Table = text.parse()?;
        let leaf = |key: &'static str| leaf(&table, key).ok_or(PublishedError::Missing(key));
        let number = |key| leaf(key)?.as_float().ok_or(PublishedError::Missing(key));
        let figures = PLACES.iter().map(|place| number(place.key)).collect::<Result<_, _>>()?;
        let source = leaf("source.id")?.as_str().ok_or(PublishedError::Missing("source.id"))?;
        let source = source.to_owned();
        Ok(Published { table, source, figures })
    }

    /// A figure by its dotted key, whether or not it stands beside a measurement.
    pub fn figure(&self, key: &str) -> Option<f64> {
        leaf(&self.table, key)?.as_float()
    }

    /// Where the figures are printed.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The figure that stands beside a measurement, if one is known.
    pub fn lookup(&self, point: &Point, metric: Metric) -> Option<Reference> {
        let fits = |place: &Place| {
            place.experiment == point.experiment()
                && place.transport == point.transport
                && place.metric == metric
                && place.when.iter().all(|(axis, value)| {
                    point.get(*axis).is_some_and(|actual| actual.to_string() == *value)
                })
        };
        let index = PLACES.iter().position(fits)?;
        Some(Reference {
            value: *self.figures.get(index)?,
            unit: metric.unit().symbol().to_owned(),
            what: PLACES[index].what.to_owned(),
            source: format!("{}, platform P-IB", self.source),
            comparable: comparable(point, metric),
        })
    }
}

fn leaf<'a>(table: &'a toml::Table, key: &str) -> Option<&'a toml::Value> {
    let mut parts = key.split('.');
    let first = parts.next().and_then(|part| table.get(part));
    parts.fold(first, |value, part| value?.get(part))
}

/// Whether a measurement is of the same thing as a published figure: a real GPU's own times, and
/// everything on real hardware; never a stand-in's.
fn comparable(point: &Point, metric: Metric) -> bool {
    stand_in(point, metric, false).is_none()
}

/// What stands in for hardware in a measurement, in words; none where nothing does.
///
/// A time that the submitter alone sets is real on a real GPU, whatever executes the WQEs. `in_software`: the device that
/// was opened has no hardware.
pub fn stand_in(point: &Point, metric: Metric, in_software: bool) -> Option<String> {
    let submitter =
        (point.submitter == Submitter::Host).then_some("CPU threads in place of GPU threads");
    let nic = match point.nic {
        // It needs none.
        _ if point.transport == Transport::Direct => None,
        Nic::Soft => Some("software NIC on CPU threads"),
        Nic::SoftGpu => Some("software NIC on the GPU"),
        Nic::None => Some("nobody executes: the submit side alone"),
        Nic::Mlx5 | Nic::Verbs if crate::hardware::is_nic_exec() => {
            Some("software NIC behind a real driver (nic exec)")
        }
        Nic::Mlx5 | Nic::Verbs => in_software.then_some("RDMA driver in software"),
    };
    let nic = nic.filter(|_| submitter.is_some() || !metric.is_submitters_own());
    match (submitter, nic) {
        (None, None) => None,
        (Some(one), None) | (None, Some(one)) => Some(one.to_owned()),
        (Some(submitter), Some(nic)) => Some(format!("{submitter}; {nic}")),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn point(
        experiment: &'static str,
        transport: Transport,
        submitter: Submitter,
        nic: Nic,
        values: &[(AxisId, &str)],
    ) -> Point {
        let values: BTreeMap<_, _> =
            values.iter().map(|(axis, text)| (*axis, axis.parse(text).unwrap())).collect();
        Point { experiment, transport, submitter, nic, values }
    }

    #[test]
    fn figures_stand_beside_their_own_configuration_only() {
        let published = Published::embedded().unwrap();
        let at = |values: &[(AxisId, &str)], metric| {
            let point = point("latency", Transport::MiniGda, Submitter::Host, Nic::Soft, values);
            published.lookup(&point, metric).map(|reference| reference.value)
        };
        assert_eq!(at(PLAIN_PUT, Metric::Issue), Some(0.70));
        assert_eq!(at(PLAIN_PUT, Metric::PutCompletion), Some(4.0));
        assert_eq!(at(PLAIN_PUT, Metric::Rate), None);
        for (axis, other) in [
            (AxisId::Op, "get"),
            (AxisId::Payload, "64"),
            (AxisId::Order, "none"),
            (AxisId::Conn, "dc"),
            (AxisId::Sharing, "thread"),
            (AxisId::Like, "gdaki"),
        ] {
            let mut values = PLAIN_PUT.to_vec();
            for value in values.iter_mut().filter(|value| value.0 == axis) {
                value.1 = other;
            }
            assert_eq!(at(&values, Metric::Issue), None, "{axis}");
        }
    }

    #[test]
    fn each_end_of_the_handoff_ladder_has_its_figure_and_no_step_between_has_one() {
        let published = Published::embedded().unwrap();
        let at = |values: &[(AxisId, &str)]| {
            let point = point("handoff", Transport::MiniProxy, Submitter::Host, Nic::Soft, values);
            published.lookup(&point, Metric::Enqueue).map(|reference| reference.value)
        };
        assert_eq!(at(BASELINE_HANDOFF), Some(2.27));
        assert_eq!(at(POSTED_STORE), Some(0.13));
        for (end, axis, other) in [
            (BASELINE_HANDOFF, AxisId::Reserve, "owned"),
            (BASELINE_HANDOFF, AxisId::Progress, "cached"),
            (BASELINE_HANDOFF, AxisId::Producers, "2"),
            (POSTED_STORE, AxisId::Publish, "release"),
            (POSTED_STORE, AxisId::Reserve, "atomic"),
            (POSTED_STORE, AxisId::Handoff, "nonzero-word"),
        ] {
            let mut values = end.to_vec();
            values.retain(|value| value.0 != axis);
            values.push((axis, other));
            assert_eq!(at(&values), None, "{axis} {other}");
        }
    }

    #[test]
    fn only_a_real_gpus_own_times_and_real_hardware_are_comparable() {
        use Metric::{Enqueue, Issue, PutCompletion, Rate};
        for (submitter, nic, metric, real) in [
            (Submitter::Host, Nic::Soft, Issue, false),
            (Submitter::Host, Nic::Mlx5, PutCompletion, false),
            (Submitter::Cuda, Nic::Soft, Issue, true),
            (Submitter::Cuda, Nic::SoftGpu, Enqueue, true),
            (Submitter::Cuda, Nic::Soft, PutCompletion, false),
            (Submitter::Cuda, Nic::SoftGpu, Rate, false),
            (Submitter::Cuda, Nic::Mlx5, PutCompletion, true),
            (Submitter::Cuda, Nic::Mlx5, Rate, true),
        ] {
            let point = point("latency", Transport::MiniGda, submitter, nic, PLAIN_PUT);
            assert_eq!(
                stand_in(&point, metric, false).is_none(),
                real,
                "{submitter} {nic} {metric}"
            );
            // A driver without hardware is no NIC, and hides behind no other one.
            let soft = !real || (nic == Nic::Mlx5 && !metric.is_submitters_own());
            assert_eq!(
                stand_in(&point, metric, true).is_some(),
                soft,
                "{submitter} {nic} {metric}"
            );
            if let Some(reference) = Published::embedded().unwrap().lookup(&point, metric) {
                assert_eq!(reference.comparable, real);
            }
        }
    }

    #[test]
    fn every_place_is_a_metric_and_axes_that_its_experiment_declares() {
        for place in PLACES {
            let experiment = crate::experiments::all()
                .iter()
                .find(|experiment| experiment.name() == place.experiment)
                .unwrap();
            assert!(experiment.metrics().contains(&place.metric), "{}", place.key);
            for (axis, value) in place.when {
                assert!(experiment.axes().iter().any(|used| used.axis == *axis), "{}", place.key);
                assert_eq!(axis.parse(value).unwrap().to_string(), *value);
            }
        }
    }

    #[test]
    fn a_file_that_lacks_a_figure_is_an_error() {
        assert!(matches!(Published::parse("x ="), Err(PublishedError::Syntax(_))));
        assert!(matches!(Published::parse(""), Err(PublishedError::Missing(_))));
        let text = PUBLISHED.replace("tuned_enqueue", "other");
        let error = Published::parse(&text).unwrap_err();
        assert!(error.to_string().contains("proxy.tuned_enqueue"), "{error}");
    }
}
