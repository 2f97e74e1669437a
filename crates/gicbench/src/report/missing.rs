//! What was asked for and wasn't measured, and what was measured with wrong data.

use super::entry::{Entry, LIMITS, Source, grouped};
use super::picture::labelled;
use super::table::{Cell, Column, Group, Head, Section, head, of_record};
use super::words;
use crate::record::{Missing, PointId};

/// Points without measurements that share experiment and reason.
pub(super) struct Gathered<'a> {
    pub experiment: &'a str,
    pub reason: &'a str,
    pub points: Vec<&'a PointId>,
}

/// Points without measurements, by experiment and reason, in the order of the record.
pub(super) fn gathered(missing: &[Missing]) -> Vec<Gathered<'_>> {
    let mut groups: Vec<Gathered> = Vec::new();
    for Missing { point, reason } in missing {
        let (experiment, reason) = (point.experiment.as_str(), reason.as_str());
        let same = |group: &&mut Gathered| group.experiment == experiment && group.reason == reason;
        match groups.iter_mut().find(same) {
            Some(group) => group.points.push(point),
            None => groups.push(Gathered { experiment, reason, points: vec![point] }),
        }
    }
    groups
}

/// The tables of all records; none of what isn't there.
pub(super) fn missing(sources: &[Source], all: &[Entry]) -> Vec<Section> {
    let mut sections = Vec::new();
    for (number, Source { record, .. }) in sources.iter().enumerate() {
        let of_source: Vec<Entry> =
            all.iter().filter(|entry| entry.source == number).copied().collect();
        let tables = [
            wrong(&of_source),
            not_measured("Not run", &record.not_run),
            not_measured("Failed", &record.failed),
        ];
        let titled = |section| of_record(section, sources, number);
        sections.extend(tables.into_iter().flatten().map(titled));
    }
    sections
}

fn not_measured(title: &str, missing: &[Missing]) -> Option<Section> {
    let row = |group: &Gathered| {
        vec![
            Cell::text(group.experiment),
            Cell::text(by(&group.points)),
            Cell::text(words::count(group.points.len() as u64)),
            Cell::text(group.reason),
        ]
    };
    let rows: Vec<_> = gathered(missing).iter().map(row).collect();
    let heads = vec![
        head("experiment", Column::Word),
        head("transport", Column::Text),
        head("points", Column::Number),
        head("reason", Column::Text),
    ];
    table(title, heads, rows, Vec::new())
}

/// Points whose data was wrong where it had to be right.
fn wrong(entries: &[Entry]) -> Option<Section> {
    let wrong: Vec<Entry> = entries.iter().filter(|entry| entry.row.is_wrong()).copied().collect();
    let row = |of: &Vec<Entry>| {
        let first = of.first()?;
        let point = &first.row.point;
        let told = point.parameters.iter().filter(|(name, value)| {
            let is_said = name.as_str() == "variant" || value.as_str() == Some("none");
            !is_said && !LIMITS.contains(&name.as_str())
        });
        let mut at = vec![format!("{}, {}", point.submitter, point.nic)];
        at.extend(told.filter_map(|(name, _)| labelled(first, name)));
        let metrics: Vec<String> =
            of.iter().map(|entry| words::metric(&entry.row.metric)).collect();
        let operations = of.iter().filter_map(|entry| entry.row.wrong).max();
        Some(vec![
            Cell::text(point.experiment.as_str()),
            Cell::text(by(&[point])),
            Cell::text(at.join(", ")),
            Cell::text(metrics.join(", ")),
            Cell::text(words::count(operations.unwrap_or(0))),
        ])
    };
    let points = grouped(&wrong, |entry| (&entry.row.point, entry.repeat));
    let rows = points.iter().filter_map(|(_, of)| row(of)).collect();
    let heads = vec![
        head("experiment", Column::Word),
        head("transport", Column::Text),
        head("point", Column::Text),
        head("measured", Column::Text),
        head("wrong operations", Column::Number),
    ];
    let notes = vec![
        "Of each point the most wrong operations of its measurements. Its numbers are no result: they are marked W."
            .to_owned(),
    ];
    table("Wrong data", heads, rows, notes)
}

fn table(
    title: &str,
    heads: Vec<Head>,
    rows: Vec<Vec<Cell>>,
    notes: Vec<String>,
) -> Option<Section> {
    let group = Group { path: String::new(), about: String::new(), rows };
    (!group.rows.is_empty()).then(|| Section {
        title: title.to_owned(),
        lead: String::new(),
        heads,
        groups: vec![group],
        notes,
    })
}

/// The transports of some points, each with its ways of posting where it has some.
fn by(points: &[&PointId]) -> String {
    let mut transports: Vec<(&str, Vec<String>)> = Vec::new();
    for point in points {
        let word = |name: &str| point.parameters.get(name).and_then(|value| value.as_str());
        let like = || word("like").filter(|library| *library != "none");
        let way = word("variant").map(str::to_owned);
        let way = way.or_else(|| like().map(|library| format!("like {library}")));
        let place = transports.iter().position(|(known, _)| *known == point.transport);
        let place = place.unwrap_or_else(|| {
            transports.push((&point.transport, Vec::new()));
            transports.len() - 1
        });
        if let Some((_, ways)) = transports.get_mut(place) {
            ways.extend(way.filter(|way| !ways.contains(way)));
        }
    }
    let named = transports.into_iter().map(|(transport, ways)| match ways.as_slice() {
        [] => transport.to_owned(),
        ways => format!("{transport} ({})", ways.join(", ")),
    });
    named.collect::<Vec<_>>().join("; ")
}
