//! The table on the terminal, in the manner of nccl-tests: a preamble of `#` lines, aligned columns in a
//! stable order, units in the heads, and the count of wrong data.

use std::collections::BTreeSet;
use std::io::{self, Write};

use super::columns::{axis_names, plain, pretty};
use crate::plan::Registry;
use crate::published::Published;
use crate::quantity::Bytes;
use crate::record::{Missing, Record, Row};
use crate::report::derived::derive;

/// What stands where there is no number.
const NONE: &str = "-";

/// Facts that are to be read beside the times: name in the details, head and unit of the column.
const BESIDE: &[(&str, &str, &str)] = &[("carried_mmsgs", "carried", "(M/s)")];

/// Writes the whole report of a record.
///
/// # Errors
/// The writer's.
pub fn table(
    out: &mut dyn Write,
    record: &Record,
    registry: &Registry,
    published: &Published,
) -> io::Result<()> {
    preamble(out, record)?;
    let mut done: Vec<(&str, &str)> = Vec::new();
    for row in &record.measurements {
        let group = (row.point.experiment.as_str(), row.unit.as_str());
        if done.contains(&group) {
            continue;
        }
        done.push(group);
        let rows: Vec<&Row> = record
            .measurements
            .iter()
            .filter(|row| (row.point.experiment.as_str(), row.unit.as_str()) == group)
            .collect();
        let question = registry.iter().find(|experiment| experiment.name() == group.0);
        writeln!(out, "#")?;
        match question {
            Some(experiment) => writeln!(out, "# {}: {}", group.0, experiment.question())?,
            None => writeln!(out, "# {}", group.0)?,
        }
        section(out, &rows, group.1)?;
    }
    derived(out, record, published)?;
    ending(out, record)
}

/// What follows from several rows: comments, so that a reader of the rows passes them by.
fn derived(out: &mut dyn Write, record: &Record, published: &Published) -> io::Result<()> {
    let derived = derive(&record.measurements, published);
    if derived.is_empty() {
        return Ok(());
    }
    let mut grid = Grid::comments();
    grid.left = [0, 1, 2, 5, 7].into();
    let head = ["derived", "transport", "by", "measured", "published", "whose", "ratio", "notes"];
    grid.rows.push(head.map(str::to_owned).to_vec());
    for one in &derived {
        let at = if one.at.is_empty() { String::new() } else { format!(", {}", one.at) };
        grid.rows.push(vec![
            format!("{}{at}", one.what),
            one.transport.to_owned(),
            one.by.clone(),
            one.shown(),
            one.published_shown().unwrap_or(NONE.to_owned()),
            one.published.map_or(NONE, |(_, whose)| whose).to_owned(),
            one.ratio.map_or(NONE.to_owned(), |ratio| format!("{ratio:.2}")),
            one.notes.clone(),
        ]);
    }
    writeln!(out, "#")?;
    grid.write(out)
}

fn preamble(out: &mut dyn Write, record: &Record) -> io::Result<()> {
    let (machine, software) = (&record.machine, &record.software);
    let or_none = |text: &Option<String>| text.clone().unwrap_or_else(|| NONE.to_owned());
    let count = |count: Option<usize>| count.map_or(NONE.to_owned(), |count| count.to_string());
    writeln!(
        out,
        "# gicbench {} ({}), {} build, {}, {}",
        software.gicbench,
        or_none(&software.commit),
        or_none(&software.profile),
        or_none(&software.rustc),
        or_none(&software.cxx),
    )?;
    if software.profile.as_deref() == Some("debug") {
        writeln!(out, "# DEBUG BUILD: its times say nothing; build with --release")?;
    }
    writeln!(
        out,
        "# {}, {} of {} cores, {}, NUMA nodes: {}, Linux {}{}",
        or_none(&machine.cpu),
        machine.cores_allowed.len(),
        count(machine.cores_online),
        machine.memory_bytes.map_or(NONE.to_owned(), |bytes| {
            format!("{:.1} GiB", bytes as f64 / Bytes(1 << 30).0 as f64)
        }),
        count(machine.numa_nodes),
        machine.kernel,
        if machine.hypervisor == Some(true) { ", virtual machine" } else { "" },
    )?;
    let devices = |names: &[String]| {
        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
    };
    writeln!(
        out,
        "# GPUs: {}; RDMA devices: {}",
        devices(&machine.gpus),
        devices(&machine.rdma_devices)
    )?;
    let parameters = &record.parameters;
    let settings = &parameters.settings;
    writeln!(
        out,
        "# started {}, took {:.1} s; suite {}{}; check {}, seed {}, deadline {} s, engine {}",
        record.started,
        record.elapsed_s,
        parameters.suite,
        parameters.shard.as_ref().map_or(String::new(), |shard| format!(", shard {shard}")),
        if settings.check { "on" } else { "off" },
        settings.seed,
        settings.deadline_s,
        format!("{:?}", settings.engine).to_lowercase(),
    )?;
    let stand_ins: BTreeSet<&str> =
        record.measurements.iter().filter_map(|row| row.stand_in_why.as_deref()).collect();
    for why in stand_ins {
        writeln!(out, "# S = STAND-IN: {why}; no such time, rate or bandwidth is hardware's")?;
    }
    let unsafe_modes: BTreeSet<&str> =
        record.measurements.iter().filter_map(|row| row.unsafe_mode.as_deref()).collect();
    for why in unsafe_modes {
        writeln!(out, "# U = UNSAFE: {why}")?;
    }
    if record.measurements.iter().any(is_oversubscribed) {
        writeln!(out, "# O = OVERSUBSCRIBED: more busy threads than cores; times hold scheduling")?;
    }
    Ok(())
}

/// The rows of one experiment that share a unit.
fn section(out: &mut dyn Write, rows: &[&Row], unit: &str) -> io::Result<()> {
    let with_limits = || axis_names().chain(["ops", "warmup", "duration_s"]);
    let values = |name: &str| -> BTreeSet<Option<String>> {
        rows.iter().map(|row| plain(&row.point, name)).collect()
    };
    let fixed: Vec<String> = with_limits()
        .filter(|name| values(name).len() == 1)
        .filter_map(|name| Some(format!("{name}={}", pretty(&rows.first()?.point, name)?)))
        .collect();
    if !fixed.is_empty() {
        writeln!(out, "# {}", fixed.join(" "))?;
    }
    let varying: Vec<&str> = with_limits().filter(|name| values(name).len() > 1).collect();

    let mut grid = Grid::default();
    let mut head: Vec<(String, &str)> =
        vec![("transport".into(), ""), ("submitter".into(), ""), ("nic".into(), "")];
    head.extend(varying.iter().map(|name| {
        let unit = match *name {
            "payload" => "(B)",
            "duration_s" => "(s)",
            _ => "",
        };
        ((*name).to_owned(), unit)
    }));
    let shown_unit = format!("({unit})");
    head.push(("metric".into(), ""));
    head.push(("samples".into(), ""));
    for name in ["min", "p50", "p90", "p99", "p99.9", "max", "mean"] {
        head.push((name.into(), &shown_unit));
    }
    head.push(("#wrong".into(), ""));
    head.push(("published".into(), &shown_unit));
    head.push(("ratio".into(), ""));
    let has = |name: &str| rows.iter().any(|row| row.details.contains_key(name));
    let beside: Vec<_> = BESIDE.iter().filter(|(name, ..)| has(name)).collect();
    head.extend(beside.iter().map(|(_, title, unit)| ((*title).to_owned(), *unit)));
    head.push(("notes".into(), ""));
    let text_columns = 3;
    let metric_column = text_columns + varying.len();
    grid.left = (0..text_columns).chain([metric_column, head.len() - 1]).collect();
    grid.rows.push(head.iter().map(|(name, _)| name.clone()).collect());
    grid.rows.push(head.iter().map(|(_, unit)| (*unit).to_owned()).collect());

    for row in rows {
        let point = &row.point;
        let mut cells = vec![point.transport.clone(), point.submitter.clone(), point.nic.clone()];
        cells.extend(varying.iter().map(|name| pretty(point, name).unwrap_or(NONE.to_owned())));
        cells.push(row.metric.clone());
        cells.push(row.samples.to_string());
        for value in
            [Some(row.min), row.p50, row.p90, row.p99, row.p999, Some(row.max), Some(row.mean)]
        {
            cells.push(number(value));
        }
        cells.push(row.wrong.map_or(NONE.to_owned(), |wrong| wrong.to_string()));
        cells.push(row.reference.as_ref().map_or(NONE.to_owned(), |r| r.value.to_string()));
        cells.push(row.ratio().map_or(NONE.to_owned(), |ratio| format!("{ratio:.2}")));
        let fact = |name: &str| row.details.get(name).and_then(serde_json::Value::as_f64);
        cells.extend(beside.iter().map(|(name, ..)| number(fact(name))));
        let notes: String = [
            (row.stand_in, 'S'),
            (row.unsafe_mode.is_some(), 'U'),
            (is_oversubscribed(row), 'O'),
            (row.cut_short, 'C'),
        ]
        .iter()
        .filter_map(|(applies, letter)| applies.then_some(*letter))
        .collect();
        cells.push(notes);
        grid.rows.push(cells);
    }
    grid.write(out)?;
    details(out, rows)?;
    let sources: BTreeSet<String> = rows
        .iter()
        .filter_map(|row| row.reference.as_ref())
        .map(|figure| {
            format!("{} {} ({}), {}", figure.value, figure.unit, figure.what, figure.source)
        })
        .collect();
    for source in sources {
        writeln!(out, "# published: {source}")?;
    }
    Ok(())
}

/// The facts that have no column, as far as all rows of a transport share them; the others are in the record.
fn details(out: &mut dyn Write, rows: &[&Row]) -> io::Result<()> {
    let mut transports: Vec<&str> = rows.iter().map(|row| row.point.transport.as_str()).collect();
    transports.dedup();
    for transport in transports {
        let rows: Vec<_> = rows.iter().filter(|row| row.point.transport == transport).collect();
        let facts: Vec<String> = rows[0]
            .details
            .iter()
            .filter(|(name, value)| rows.iter().all(|row| row.details.get(*name) == Some(value)))
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        if !facts.is_empty() {
            writeln!(out, "# {transport}: {}", facts.join(" "))?;
        }
    }
    Ok(())
}

fn is_oversubscribed(row: &Row) -> bool {
    row.threads.as_ref().is_some_and(|threads| threads.oversubscribed)
}

fn number(value: Option<f64>) -> String {
    value.map_or(NONE.to_owned(), |value| format!("{value:.3}"))
}

fn ending(out: &mut dyn Write, record: &Record) -> io::Result<()> {
    writeln!(out, "#")?;
    listed(out, "not run", &record.not_run)?;
    listed(out, "FAILED", &record.failed)?;
    if record.measurements.iter().any(|row| row.cut_short) {
        writeln!(out, "# C = CUT SHORT: Ctrl-C came while this was sampled")?;
    }
    let wrong: u64 =
        record.measurements.iter().filter(|row| row.is_wrong()).filter_map(|row| row.wrong).sum();
    if wrong > 0 {
        writeln!(out, "# WRONG DATA in {wrong} operations")?;
    }
    let unchecked = record.measurements.iter().filter(|row| row.wrong.is_none()).count();
    if unchecked > 0 {
        writeln!(out, "# data was not checked in {unchecked} measurements (#wrong is {NONE})")?;
    }
    if record.interrupted {
        writeln!(out, "# PARTIAL: interrupted")?;
    } else if record.partial {
        writeln!(out, "# PARTIAL: some points were not run")?;
    }
    Ok(())
}

/// Points without measurements, gathered by experiment and reason.
fn listed(out: &mut dyn Write, what: &str, missing: &[Missing]) -> io::Result<()> {
    let mut groups: Vec<(&str, &str, usize)> = Vec::new();
    for one in missing {
        let (experiment, reason) = (one.point.experiment.as_str(), one.reason.as_str());
        match groups.iter_mut().find(|group| (group.0, group.1) == (experiment, reason)) {
            Some(group) => group.2 += 1,
            None => groups.push((experiment, reason, 1)),
        }
    }
    for (experiment, reason, count) in groups {
        let points = if count == 1 { "point" } else { "points" };
        writeln!(out, "# {what}: {experiment}, {count} {points}: {reason}")?;
    }
    Ok(())
}

/// Cells, of which each column is as wide as its widest.
#[derive(Default)]
struct Grid {
    rows: Vec<Vec<String>>,
    /// Columns aligned to the left; the others are to the right.
    left: BTreeSet<usize>,
    /// Whether all rows are comments, and not the head alone.
    all_comments: bool,
}

impl Grid {
    fn comments() -> Self {
        Grid { all_comments: true, ..Grid::default() }
    }

    /// Writes the rows; the first two are the head, and are comments.
    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let columns = self.rows.first().map_or(0, Vec::len);
        let widths: Vec<usize> = (0..columns)
            .map(|column| {
                let cells = self.rows.iter().filter_map(|row| row.get(column));
                cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
            })
            .collect();
        for (index, row) in self.rows.iter().enumerate() {
            let mut line = String::from(if index < 2 || self.all_comments { "#" } else { " " });
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                if self.left.contains(&column) {
                    line.push_str(&format!(" {cell:<width$}"));
                } else {
                    line.push_str(&format!("  {cell:>width$}"));
                }
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }
}
