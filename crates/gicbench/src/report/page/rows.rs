//! The table of an experiment's measurements: a row each, with everything that the pictures leave out.

use std::collections::BTreeMap;

use super::about::plain;
use crate::report::entry::{Coordinate, Entry, grouped, varying};
use crate::report::markup::Markup;
use crate::report::notes;
use crate::report::words::{self, NONE};

/// What the kernels of an experiment's variants take of an SM: names among the details, with titles.
const RESOURCES: &[(&str, &str)] = &[
    ("registers", "registers a thread"),
    ("shared_bytes", "shared memory (B)"),
    ("local_bytes", "local memory (B)"),
    ("resident_blocks_of_128", "resident blocks of 128 an SM"),
    ("occupancy", "occupancy"),
    ("occupancy_lost", "occupancy lost"),
];

/// A table of what each variant takes of an SM, where the record has it.
pub(super) fn resources(page: &mut Markup, entries: &[Entry]) {
    let known: Vec<Entry> =
        entries.iter().filter(|entry| entry.fact("registers").is_some()).copied().collect();
    let has = |name: &str| known.iter().any(|entry| entry.fact(name).is_some());
    let columns: Vec<&(&str, &str)> = RESOURCES.iter().filter(|(name, _)| has(name)).collect();
    if known.is_empty() {
        return;
    }
    let is_word = |name: &String| {
        known.iter().any(|entry| matches!(entry.coordinate(name), Some(Coordinate::Word(_))))
    };
    let variant: Vec<String> = varying(&known).into_iter().filter(is_word).collect();
    let resources = |entry: &Entry| -> Vec<String> {
        columns.iter().map(|(name, _)| words::number_or_exact(entry.fact(name))).collect()
    };
    let key = |entry: &Entry| {
        let at: Vec<String> = variant.iter().map(|name| entry.show(name)).collect();
        (at, resources(entry))
    };
    page.element("h3", &[], &"What each variant takes of an SM");
    page.open("div", &[("class", &"scroll")]);
    page.open("table", &[("class", &"resources")]);
    page.open("thead", &[]);
    page.open("tr", &[]);
    for name in &variant {
        page.element("th", &[("scope", &"col")], name);
    }
    for (_, title) in &columns {
        page.element("th", &[("scope", &"col"), ("class", &"n")], title);
    }
    page.close();
    page.close();
    page.open("tbody", &[]);
    for ((at, resources), _) in grouped(&known, key) {
        page.open("tr", &[]);
        for value in at {
            page.element("td", &[], &value);
        }
        for value in resources {
            page.element("td", &[("class", &"n")], &value);
        }
        page.close();
    }
    page.close();
    page.close();
    page.close();
}

/// What all measurements of an experiment share: it is said once, and not in any picture.
pub(super) fn shared(page: &mut Markup, entries: &[Entry]) {
    let fixed = fixed(entries, &varying(entries));
    if !fixed.is_empty() {
        let text = format!("At every point: {}.", fixed.join(", "));
        page.element("p", &[("class", &"at shared")], &text);
    }
}

/// Writes the table, folded.
pub(super) fn rows(page: &mut Markup, entries: &[Entry]) {
    let columns = varying(entries);
    let facts: Vec<Facts> = entries.iter().map(facts).collect();
    let common = common(entries, &facts);
    let shared = |entry: &Entry, name: &String| {
        common.iter().any(|(transport, of_it)| {
            *transport == entry.row.point.transport && of_it.contains_key(name)
        })
    };
    let own: Vec<Facts> = entries
        .iter()
        .zip(facts)
        .map(|(entry, facts)| facts.into_iter().filter(|(name, _)| !shared(entry, name)).collect())
        .collect();
    let differing = own.iter().any(|facts| !facts.is_empty());

    page.open("details", &[("class", &"data")]);
    page.element("summary", &[], &words::counted(entries.len(), "measurement"));
    for (transport, facts) in common.iter().filter(|(_, facts)| !facts.is_empty()) {
        let text = format!("Every measurement of {transport}: {}.", joined(facts));
        page.element("p", &[("class", &"at shared")], &text);
    }
    page.open("div", &[("class", &"scroll")]);
    page.open("table", &[("class", &"rows")]);
    page.open("thead", &[]);
    page.open("tr", &[]);
    for name in &columns {
        let unit = if words::is_bytes(name) { " (B)" } else { "" };
        page.element("th", &[("scope", &"col")], &format!("{name}{unit}"));
    }
    for (name, class) in HEADS.iter().take(HEADS.len() - usize::from(!differing)) {
        page.element("th", &[("scope", &"col"), ("class", class)], name);
    }
    page.close();
    page.close();
    page.open("tbody", &[]);
    for (entry, facts) in entries.iter().zip(&own) {
        row(page, entry, &columns);
        if differing {
            page.element("td", &[("class", &"facts")], &joined(facts));
        }
        page.close();
        page.line();
    }
    page.close();
    page.close();
    page.close();
    page.close();
}

/// What the record says of a measurement beside its numbers: names and values.
type Facts = BTreeMap<String, String>;

/// The facts that all measurements of a transport share.
fn common<'a>(entries: &[Entry<'a>], facts: &[Facts]) -> Vec<(&'a str, Facts)> {
    let transports = grouped(entries, |entry| entry.row.point.transport.as_str());
    let names = transports.into_iter().map(|(transport, _)| transport);
    let of = |transport: &str| {
        let all = entries.iter().zip(facts);
        let of_it = all.filter(|(entry, _)| entry.row.point.transport == transport);
        let mut shared: Option<Facts> = None;
        for (_, facts) in of_it {
            match &mut shared {
                None => shared = Some(facts.clone()),
                Some(shared) => shared.retain(|name, value| facts.get(name) == Some(value)),
            }
        }
        shared.unwrap_or_default()
    };
    names.map(|transport| (transport, of(transport))).collect()
}

const HEADS: &[(&str, &str)] = &[
    ("metric", ""),
    ("unit", ""),
    ("samples", "n"),
    ("min", "n"),
    ("p50", "n"),
    ("95 % interval of p50", "n"),
    ("p90", "n"),
    ("p99", "n"),
    ("p99.9", "n"),
    ("max", "n"),
    ("mean", "n"),
    ("#wrong", "n"),
    ("published", "n"),
    ("ratio", "n"),
    ("note", ""),
    ("facts", ""),
];

/// Parameters that are the same wherever there are any; with the transport, where the others have none.
fn fixed(entries: &[Entry], columns: &[String]) -> Vec<String> {
    let mut names: Vec<&str> = Vec::new();
    let parameters = entries.iter().flat_map(|entry| entry.row.point.parameters.keys());
    for name in ["transport", "submitter", "nic"].into_iter().chain(parameters.map(String::as_str))
    {
        if !columns.iter().any(|column| column == name) && !names.contains(&name) {
            names.push(name);
        }
    }
    let one = |name: &str| {
        let with = |entry: &&Entry| entry.coordinate(name).is_some();
        let entry = entries.iter().find(with)?;
        // How long points were sampled may differ without being a column.
        let mut values: Vec<String> = Vec::new();
        for entry in entries.iter().filter(with) {
            let shown = entry.show(name);
            let unit = words::axis_unit(name, &shown);
            let value = format!("{shown}{unit}");
            if !values.contains(&value) {
                values.push(value);
            }
        }
        let value = values.join(" or ");
        let only = if entries.iter().all(|entry| with(&entry)) {
            String::new()
        } else {
            format!(" ({})", entry.row.point.transport)
        };
        Some(format!("{name} {value}{only}"))
    };
    names.into_iter().filter_map(one).collect()
}

/// Opens a row and writes its cells, but for the facts.
fn row(page: &mut Markup, entry: &Entry, columns: &[String]) {
    let row = entry.row;
    page.open("tr", &[("data-row", &entry.id())]);
    for name in columns {
        let is_number =
            entry.coordinate(name).is_some_and(|value| matches!(value, Coordinate::Number(_)));
        page.element("td", &[("class", &if is_number { "n" } else { "" })], &entry.show(name));
    }
    page.element("td", &[], &words::metric(&row.metric));
    page.element("td", &[], &words::unit(&row.unit));
    let interval = row.p50_interval.map_or_else(
        || NONE.to_owned(),
        |ends| format!("{} to {}", words::number(ends.low), words::number(ends.high)),
    );
    let text = |value: Option<String>| value.unwrap_or_else(|| NONE.to_owned());
    let cells = [
        words::count(row.samples as u64),
        words::number(row.min),
        words::number_or_none(row.p50),
        interval,
        words::number_or_none(row.p90),
        words::number_or_none(row.p99),
        words::number_or_none(row.p999),
        words::number(row.max),
        words::number(row.mean),
        text(row.wrong.map(words::count)),
        text(row.reference.as_ref().map(|figure| words::printed(figure.value))),
        words::ratio(row.ratio()),
    ];
    for cell in cells {
        page.element("td", &[("class", &"n")], &cell);
    }
    page.element("td", &[("class", &"letters")], &notes::letters(row));
}

fn facts(entry: &Entry) -> Facts {
    let row = entry.row;
    let mut facts: BTreeMap<String, String> =
        row.details.iter().map(|(name, value)| (name.replace('_', " "), plain(value))).collect();
    let mut add = |name: &str, value: Option<serde_json::Value>| {
        if let Some(value) = value.filter(|value| !value.is_null()) {
            facts.insert(name.to_owned(), plain(&value));
        }
    };
    add("memory", serde_json::to_value(row.placement).ok());
    add("clock", row.clock.as_ref().and_then(|clock| serde_json::to_value(clock).ok()));
    if let Some(threads) = &row.threads {
        add("busy threads", Some(threads.busy.into()));
        add("cores", serde_json::to_value(&threads.assignment).ok());
    }
    add("outliers", row.outliers.map(Into::into));
    facts
}

fn joined(facts: &Facts) -> String {
    let all = facts.iter().map(|(name, value)| format!("{name}: {value}"));
    all.collect::<Vec<_>>().join("; ")
}
