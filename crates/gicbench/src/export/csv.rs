//! The measurements as CSV: a row each, a column each number, empty where there is none.

use std::io::{self, Write};

use super::columns::{axis_names, plain};
use crate::record::{Record, Row};

/// Writes a head and a row a measurement.
///
/// # Errors
/// The writer's.
pub fn csv(out: &mut dyn Write, record: &Record) -> io::Result<()> {
    let mut writer = csv::Writer::from_writer(out);
    let head = ["started", "commit", "experiment", "transport", "submitter", "nic"]
        .into_iter()
        .chain(axis_names())
        .chain(["ops", "warmup", "duration_s"])
        .chain(FIELDS.iter().map(|(name, _)| *name));
    writer.write_record(head).map_err(io::Error::other)?;
    for row in &record.measurements {
        let commit = record.software.commit.clone().unwrap_or_default();
        let mut cells = vec![record.started.clone(), commit];
        let point = &row.point;
        cells.extend(
            [&point.experiment, &point.transport, &point.submitter, &point.nic].map(Clone::clone),
        );
        for name in axis_names().chain(["ops", "warmup", "duration_s"]) {
            cells.push(plain(point, name).unwrap_or_default());
        }
        cells.extend(FIELDS.iter().map(|(_, cell)| cell(row).unwrap_or_default()));
        writer.write_record(cells).map_err(io::Error::other)?;
    }
    writer.flush()
}

type Cell = fn(&Row) -> Option<String>;

const FIELDS: &[(&str, Cell)] = &[
    ("metric", |row| Some(row.metric.clone())),
    ("unit", |row| Some(row.unit.clone())),
    ("samples", |row| Some(row.samples.to_string())),
    ("p50", |row| number(row.p50)),
    ("p90", |row| number(row.p90)),
    ("p99", |row| number(row.p99)),
    ("p999", |row| number(row.p999)),
    ("min", |row| number(Some(row.min))),
    ("max", |row| number(Some(row.max))),
    ("mean", |row| number(Some(row.mean))),
    ("p50_low", |row| number(row.p50_interval.map(|ends| ends.low))),
    ("p50_high", |row| number(row.p50_interval.map(|ends| ends.high))),
    ("outliers", |row| row.outliers.map(|count| count.to_string())),
    ("wrong", |row| row.wrong.map(|count| count.to_string())),
    ("stand_in", |row| Some(row.stand_in.to_string())),
    ("stand_in_why", |row| row.stand_in_why.clone()),
    ("unsafe_mode", |row| row.unsafe_mode.clone()),
    ("oversubscribed", |row| row.threads.as_ref().map(|t| t.oversubscribed.to_string())),
    ("busy_threads", |row| row.threads.as_ref().map(|t| t.busy.to_string())),
    ("clock", |row| row.clock.as_ref().map(|clock| clock.source.clone())),
    ("clock_resolution_ns", |row| number(row.clock.as_ref().map(|clock| clock.resolution_ns))),
    ("clock_overhead_ns", |row| number(row.clock.as_ref().map(|clock| clock.overhead_ns))),
    ("cut_short", |row| Some(row.cut_short.to_string())),
    ("reference", |row| number(row.reference.as_ref().map(|figure| figure.value))),
    ("reference_what", |row| row.reference.as_ref().map(|figure| figure.what.clone())),
    ("reference_source", |row| row.reference.as_ref().map(|figure| figure.source.clone())),
    ("reference_comparable", |row| {
        row.reference.as_ref().map(|figure| figure.comparable.to_string())
    }),
];

fn number(value: Option<f64>) -> Option<String> {
    value.map(|value| value.to_string())
}
