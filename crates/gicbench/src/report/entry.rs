//! The measurements of one or several records as one list, and the coordinates by which they differ.

use std::collections::HashMap;

use serde_json::Value as Json;

use super::words;
use crate::axes::AXES;
use crate::record::{PointId, Record, Row};

/// A record with the name by which the report calls it.
#[derive(Debug)]
pub(super) struct Source<'a> {
    /// The name.
    pub label: String,
    /// The record.
    pub record: &'a Record,
}

/// A measurement and the record that it is of.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry<'a> {
    /// Number of the record.
    pub source: usize,
    /// Number of the measurement in its record.
    pub index: usize,
    /// Name of the record.
    pub label: &'a str,
    /// The measurement.
    pub row: &'a Row,
    /// How many entries before it have all of its coordinates.
    pub repeat: usize,
}

/// Name of the coordinate that says which record an entry is of. No axis has it.
pub(super) const MACHINE: &str = "machine";

/// Names of the coordinates that say who ran a point, in their order.
const RUNNERS: [&str; 3] = ["transport", "submitter", "nic"];

/// Parameters that say how long a point was sampled: coordinates only where nothing else differs.
pub(super) const LIMITS: [&str; 3] = ["ops", "warmup", "duration_s"];

/// Last resort of entries that differ in nothing.
pub(super) const REPEAT: &str = "repeat";

/// The value on a coordinate.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Coordinate {
    /// A number.
    Number(f64),
    /// A word.
    Word(String),
}

impl Coordinate {
    /// As people read it on an axis of that name.
    pub fn show(&self, name: &str) -> String {
        match self {
            Coordinate::Number(value) => words::axis_value(name, *value),
            Coordinate::Word(word) => word.clone(),
        }
    }
}

/// All measurements, in the order of the records.
pub(super) fn entries<'a>(sources: &'a [Source<'a>]) -> Vec<Entry<'a>> {
    let mut seen: HashMap<(usize, String), usize> = HashMap::new();
    let mut all = Vec::new();
    for (source, Source { label, record }) in sources.iter().enumerate() {
        for (index, row) in record.measurements.iter().enumerate() {
            let before = seen.entry((source, identity(row))).or_default();
            all.push(Entry { source, index, label, row, repeat: *before });
            *before += 1;
        }
    }
    all
}

/// Everything by which the measurements of one record can be told apart.
fn identity(row: &Row) -> String {
    let PointId { experiment, transport, submitter, nic, .. } = &row.point;
    format!("{:?}", (experiment, transport, submitter, nic, parameters(&row.point), &row.metric))
}

/// The parameters of a point by their names, each with its value.
pub(super) fn parameters(point: &PointId) -> Vec<String> {
    let mut all: Vec<_> = point.parameters.iter().map(|(k, v)| format!("{k}={v}")).collect();
    all.sort();
    all
}

impl Entry<'_> {
    /// The value on a coordinate; none where the point doesn't have it.
    pub fn coordinate(&self, name: &str) -> Option<Coordinate> {
        let word = |text: &str| Some(Coordinate::Word(text.to_owned()));
        match name {
            MACHINE => word(self.label),
            REPEAT => Some(Coordinate::Number(self.repeat as f64 + 1.0)),
            _ => parameter(&self.row.point, name),
        }
    }

    /// The value on a coordinate, as people read it.
    pub fn show(&self, name: &str) -> String {
        self.coordinate(name).map_or_else(|| words::NONE.to_owned(), |value| value.show(name))
    }

    /// The number that a picture shows: the median, or the mean where the samples don't support a median.
    pub fn typical(&self) -> f64 {
        self.row.p50.unwrap_or(self.row.mean)
    }

    /// An identifier of the measurement that is its own in the whole report.
    pub fn id(&self) -> String {
        format!("{}-{}", self.source + 1, self.index + 1)
    }
}

/// A parameter of a point, or who ran it.
pub(super) fn parameter(point: &PointId, name: &str) -> Option<Coordinate> {
    let word = |text: &str| Some(Coordinate::Word(text.to_owned()));
    match name {
        "transport" => word(&point.transport),
        "submitter" => word(&point.submitter),
        "nic" => word(&point.nic),
        _ => match point.parameters.get(name)? {
            Json::Null => None,
            Json::Number(number) => number.as_f64().map(Coordinate::Number),
            Json::String(text) => word(text),
            other => Some(Coordinate::Word(other.to_string())),
        },
    }
}

/// Names of the coordinates on which the entries differ, in the order of columns.
pub(super) fn varying(entries: &[Entry]) -> Vec<String> {
    let differ = |name: &str| {
        let mut values = entries.iter().filter_map(|entry| entry.coordinate(name));
        let first = values.next();
        values.any(|value| Some(&value) != first.as_ref())
    };
    let all = coordinates(entries);
    let (mut names, others): (Vec<String>, Vec<String>) =
        all.into_iter().partition(|name| differ(name));
    // Where some points have a coordinate and others don't, it mostly is because of another one that differs.
    // Where two are the same but for how long they were sampled, that tells them apart; else their order.
    let more = others.into_iter().filter(|name| {
        let has = |entry: &Entry| entry.coordinate(name).is_some();
        entries.iter().any(has) && !entries.iter().all(has)
    });
    let limits = LIMITS.into_iter().chain([REPEAT]).map(str::to_owned);
    for name in more.chain(limits.filter(|name| differ(name))) {
        if are_told_apart(entries, &names) {
            break;
        }
        names.push(name);
    }
    // Where the machine says who ran the points, that needn't be said again.
    if names.iter().any(|name| name == MACHINE) {
        let of_machine = |name: &str| {
            let machines = grouped(entries, |entry| entry.source);
            machines.iter().all(|(_, members)| {
                let first = members.first().map(|entry| entry.show(name));
                members.iter().all(|entry| Some(entry.show(name)) == first)
            })
        };
        names.retain(|name| !RUNNERS.contains(&name.as_str()) || !of_machine(name));
    }
    names
}

/// Every coordinate that an entry has, but for the limits of sampling.
fn coordinates(entries: &[Entry]) -> Vec<String> {
    let known = [MACHINE].into_iter().chain(RUNNERS).chain(AXES.iter().map(|axis| axis.name));
    let mut names: Vec<String> = known.map(str::to_owned).collect();
    for entry in entries {
        for name in entry.row.point.parameters.keys() {
            if !names.contains(name) && !LIMITS.contains(&name.as_str()) {
                names.push(name.clone());
            }
        }
    }
    names
}

fn are_told_apart(entries: &[Entry], names: &[String]) -> bool {
    let mut seen = std::collections::HashSet::new();
    entries.iter().all(|entry| {
        let at: Vec<_> = names.iter().map(|name| entry.show(name)).collect();
        seen.insert((entry.row.metric.as_str(), at))
    })
}

/// Entries in groups of one key, in the order of first appearance.
pub(super) fn grouped<'a, K: PartialEq>(
    entries: &[Entry<'a>],
    key: impl Fn(&Entry<'a>) -> K,
) -> Vec<(K, Vec<Entry<'a>>)> {
    let mut groups: Vec<(K, Vec<Entry<'a>>)> = Vec::new();
    for entry in entries {
        let key = key(entry);
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, members)) => members.push(*entry),
            None => groups.push((key, vec![*entry])),
        }
    }
    groups
}

/// A text among the details of a measurement; none where it is empty.
pub(super) fn said<'a>(row: &'a Row, name: &str) -> Option<&'a str> {
    row.details.get(name)?.as_str().filter(|text| !text.is_empty())
}

/// A parameter in words.
pub(super) fn word<'a>(row: &'a Row, name: &str) -> Option<&'a str> {
    row.point.parameters.get(name)?.as_str()
}

/// Whether a measurement is of its transport's own way: one that makes a library's choices isn't, nor is one that lacks
/// a step.
pub(super) fn is_its_own(row: &Row) -> bool {
    word(row, "like").is_none_or(|library| library == "none") && said(row, "leaves_out").is_none()
}

impl Entry<'_> {
    /// A number among the details of the measurement.
    pub fn fact(&self, name: &str) -> Option<f64> {
        self.row.details.get(name)?.as_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_axis_has_the_name_of_another_coordinate() {
        for name in RUNNERS.into_iter().chain(LIMITS).chain([MACHINE, REPEAT]) {
            assert!(AXES.iter().all(|axis| axis.name != name), "{name}");
        }
    }
}
