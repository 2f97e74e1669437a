//! The figures: the measurements that a reader asks for first, each beside the published one.

use super::entry::{Coordinate, Entry, MACHINE, Source, is_its_own, parameter, varying};
use super::picture::labelled;
use crate::record::Row;

/// A figure of the first table.
struct Figure {
    title: &'static str,
    experiment: &'static str,
    transport: &'static str,
    metric: &'static str,
    /// Values that the point must have.
    when: &'static [(&'static str, &'static str)],
    pick: Pick,
}

#[derive(Clone, Copy, PartialEq)]
enum Pick {
    /// Every point.
    Each,
    /// The point with the greatest value.
    Greatest,
}

/// Values that a point should have, where one with them was measured.
const PLAIN: &[(&str, &str)] = &[
    ("cq", "collapsed"),
    ("profile", "none"),
    ("cq-load", "acquire"),
    ("conn", "rc"),
    ("queues", "auto"),
    ("doorbell-memory", "auto"),
];
const PUT: &[(&str, &str)] = &[("op", "put"), ("payload", "8"), ("order", "gpu-release")];
const PUT_PROXY: &[(&str, &str)] = &[("op", "put"), ("payload", "8")];
const EIGHT: &[(&str, &str)] = &[("payload", "8")];

const fn each(
    title: &'static str,
    experiment: &'static str,
    transport: &'static str,
    metric: &'static str,
    when: &'static [(&'static str, &'static str)],
) -> Figure {
    Figure { title, experiment, transport, metric, when, pick: Pick::Each }
}

const fn greatest(each: Figure) -> Figure {
    Figure { pick: Pick::Greatest, ..each }
}

const fn step(title: &'static str, when: &'static [(&'static str, &'static str)]) -> Figure {
    each(title, "handoff", "mini-proxy", "enqueue_us", when)
}

const FIGURES: &[Figure] = &[
    each("issue, GPU-scope release", "latency", "mini-gda", "issue_us", PUT),
    each(
        "issue, no ordering",
        "ordering",
        "mini-gda",
        "issue_us",
        &[("payload", "8"), ("order", "none"), ("cq-load", "plain")],
    ),
    each(
        "issue, system-scope fence",
        "ordering",
        "mini-gda",
        "issue_us",
        &[("payload", "8"), ("order", "system-fence")],
    ),
    each("put + completion", "latency", "mini-gda", "put_completion_us", PUT),
    each("round trip", "latency", "mini-gda", "round_trip_us", PUT),
    each(
        "message rate, batches of 32",
        "batching",
        "mini-gda",
        "rate_mmsgs",
        &[
            ("payload", "8"),
            ("batch", "32"),
            ("sharing", "exclusive"),
            ("inline", "on"),
            ("doorbell", "fixed"),
        ],
    ),
    greatest(each("message rate, greatest", "batching", "mini-gda", "rate_mmsgs", EIGHT)),
    greatest(each("bandwidth, greatest", "bandwidth", "mini-gda", "bandwidth_gbs", &[])),
    each("issue, GPU-scope release", "latency", "bare", "issue_us", PUT),
    each(
        "issue, no ordering",
        "ordering",
        "bare",
        "issue_us",
        &[("payload", "8"), ("order", "none"), ("cq-load", "plain")],
    ),
    each(
        "issue, system-scope fence",
        "ordering",
        "bare",
        "issue_us",
        &[("payload", "8"), ("order", "system-fence")],
    ),
    each("put + completion", "latency", "bare", "put_completion_us", PUT),
    step(
        "enqueue, baseline hand-off",
        &[
            ("handoff", "valid-byte"),
            ("producers", "1"),
            ("reserve", "atomic"),
            ("progress", "read"),
            ("publish", "release"),
        ],
    ),
    step(
        "enqueue, … one producer without atomics",
        &[
            ("handoff", "valid-byte"),
            ("producers", "1"),
            ("reserve", "owned"),
            ("progress", "read"),
            ("publish", "release"),
        ],
    ),
    step(
        "enqueue, … progress cached",
        &[
            ("handoff", "valid-byte"),
            ("producers", "1"),
            ("reserve", "owned"),
            ("progress", "cached"),
            ("publish", "release"),
        ],
    ),
    step(
        "enqueue, … mark in the descriptor",
        &[
            ("handoff", "lap-parity"),
            ("producers", "1"),
            ("reserve", "owned"),
            ("progress", "cached"),
            ("publish", "release"),
        ],
    ),
    step(
        "enqueue, … nothing waited for: one posted 16 B store",
        &[
            ("handoff", "lap-parity"),
            ("producers", "1"),
            ("reserve", "owned"),
            ("progress", "cached"),
            ("publish", "posted"),
        ],
    ),
    each("put + completion", "latency", "mini-proxy", "put_completion_us", PUT_PROXY),
    each("round trip", "latency", "mini-proxy", "round_trip_us", PUT_PROXY),
    greatest(each("message rate, greatest", "proxy-scaling", "mini-proxy", "rate_mmsgs", EIGHT)),
    greatest(each("bandwidth, greatest", "bandwidth", "mini-proxy", "bandwidth_gbs", &[])),
];

/// A line of the first table.
#[derive(Debug)]
pub(super) struct Line<'a> {
    /// The transport.
    pub transport: &'static str,
    /// What it is.
    pub title: &'static str,
    /// Who ran the device code, and who executed the WQEs.
    pub by: String,
    /// What tells it from other lines of the same title; empty where nothing has to.
    pub at: String,
    /// The measurement of each record; none where it has none.
    pub cells: Vec<Option<Entry<'a>>>,
}

impl Line<'_> {
    /// Some measurement of the line.
    pub fn any(&self) -> Option<&Row> {
        self.cells.iter().flatten().map(|entry| entry.row).next()
    }
}

/// The lines of the first table: those that at least one of the records has.
pub(super) fn figures<'a>(sources: &[Source], entries: &[Entry<'a>]) -> Vec<Line<'a>> {
    let mut lines: Vec<Line<'a>> = Vec::new();
    for figure in FIGURES {
        let first = lines.len();
        let found = figure.find(entries);
        let all: Vec<Entry> = match figure.pick {
            Pick::Each => found.clone(),
            // What the greatest was reached with is told apart from the points that it was chosen from.
            Pick::Greatest => {
                let same =
                    |e: &&Entry| e.row.point.experiment == figure.experiment && is_its_own(e.row);
                entries.iter().filter(same).copied().collect()
            }
        };
        let told: Vec<String> = varying(&all)
            .into_iter()
            .filter(|name| ![MACHINE, "transport", "submitter", "nic"].contains(&name.as_str()))
            .collect();
        for entry in found {
            let parts: Vec<String> =
                told.iter().filter_map(|name| labelled(&entry, name)).collect();
            let at = parts.join(", ");
            let by = format!("{}, {}", entry.row.point.submitter, entry.row.point.nic);
            let same = |line: &&mut Line| {
                line.by == by
                    && line.at == at
                    && line.cells.get(entry.source).is_some_and(Option::is_none)
            };
            match lines[first..].iter_mut().find(same) {
                Some(line) => line.cells[entry.source] = Some(entry),
                None => {
                    let mut cells = vec![None; sources.len()];
                    if let Some(cell) = cells.get_mut(entry.source) {
                        *cell = Some(entry);
                    }
                    let Figure { transport, title, .. } = figure;
                    lines.push(Line { transport, title, by, at, cells });
                }
            }
        }
    }
    lines
}

impl Figure {
    fn find<'a>(&self, entries: &[Entry<'a>]) -> Vec<Entry<'a>> {
        let has = |entry: &Entry, (name, value): &(&str, &str)| is(entry.row, name, value);
        let fits = |entry: &&Entry| {
            entry.row.point.experiment == self.experiment
                && entry.row.point.transport == self.transport
                && entry.row.metric == self.metric
                && is_its_own(entry.row)
                && self.when.iter().all(|one| has(entry, one))
        };
        let all: Vec<Entry<'a>> = entries.iter().filter(fits).copied().collect();
        let runs = super::entry::grouped(&all, |entry| {
            (entry.source, entry.row.point.submitter.clone(), entry.row.point.nic.clone())
        });
        let mut found = Vec::new();
        for (_, mut run) in runs {
            prefer(&mut run, |entry| entry.row);
            match self.pick {
                Pick::Each => found.extend(run),
                Pick::Greatest => {
                    found.extend(run.into_iter().max_by(|a, b| a.typical().total_cmp(&b.typical())))
                }
            }
        }
        found
    }
}

/// Of several points, those with the values that a plain operation has, on each axis where there are any.
pub(super) fn prefer<T>(points: &mut Vec<T>, row: impl Fn(&T) -> &Row) {
    for (name, value) in PLAIN {
        if points.iter().any(|point| is(row(point), name, value)) {
            let other = |row: &Row| parameter(&row.point, name).is_none();
            points.retain(|point| is(row(point), name, value) || other(row(point)));
        }
    }
}

/// Whether a point has a value on an axis, given in words.
pub(super) fn is(row: &Row, name: &str, value: &str) -> bool {
    match parameter(&row.point, name) {
        Some(Coordinate::Number(number)) => value.parse() == Ok(number),
        Some(Coordinate::Word(word)) => word == value,
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::axes::AxisId;
    use crate::experiments;

    #[test]
    fn every_figure_is_one_that_an_experiment_can_measure() {
        for figure in FIGURES {
            let experiment =
                experiments::all().iter().find(|one| one.name() == figure.experiment).unwrap();
            assert!(
                experiment.metrics().iter().any(|metric| metric.name() == figure.metric),
                "{}",
                figure.title
            );
            for (name, value) in figure.when.iter().chain(PLAIN) {
                let axis = AxisId::by_name(name).unwrap();
                assert!(axis.parse(value).is_ok(), "{name} {value}");
            }
            for (name, _) in figure.when {
                assert!(
                    experiment.axes().iter().any(|used| used.axis.name() == *name),
                    "{} {name}",
                    figure.title
                );
            }
        }
    }
}
