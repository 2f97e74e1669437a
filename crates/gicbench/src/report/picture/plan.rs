//! Which pictures show the measurements of an experiment.
//!
//! The choice is made from the axes that vary in the record: a numeric axis with several values becomes the
//! horizontal one of lines, anything else is a list of bars; what makes too many series or bars is split
//! into panels. What an experiment is better shown by stands in one table of preferences.

use crate::axes::{AXES, Axis, Domain};
use crate::report::entry::{Coordinate, Entry, MACHINE, REPEAT, grouped, varying};
use crate::report::words;

/// Most lines of one panel: as many as there are colours.
const MOST_SERIES: usize = 8;

/// Most bars of one panel.
const MOST_BARS: usize = 24;

/// Values from which on a numeric axis is drawn as lines without being asked for.
const ENOUGH_FOR_LINES: usize = 3;

/// What an experiment is better shown by than the rules say.
struct Preference {
    experiment: &'static str,
    /// The horizontal axis.
    along: Along,
    /// Whether rates over it are read as factors.
    logarithmic: bool,
    /// A fact of each measurement that is drawn below the measurement, with its title.
    companion: Option<Fact>,
}

/// A number among the details of a measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Fact {
    /// Its name in the record.
    pub name: &'static str,
    /// What it is, and its unit.
    pub title: &'static str,
}

enum Along {
    /// As the rules say.
    Any,
    /// Bars, whatever varies.
    Bars,
    /// This axis, where it has two values.
    Axis(&'static str),
    /// A fact of each measurement: points without lines.
    Fact(Fact),
}

const PREFERENCES: &[Preference] = &[
    Preference::new("ordering", Along::Bars),
    Preference::new("handoff", Along::Bars),
    Preference::new("placement", Along::Bars),
    Preference::new("inline", Along::Axis("payload")),
    Preference::new("quiet", Along::Axis("qps")),
    Preference::new("batching", Along::Axis("batch")).logarithmic(),
    Preference::new("proxy-scaling", Along::Any).logarithmic(),
    Preference::new("bandwidth", Along::Axis("payload")).logarithmic(),
    Preference::new("loaded", Along::Axis("ctas"))
        .with("carried_mmsgs", "carried in the background (M msg/s)"),
    Preference::new(
        "clock",
        Along::Fact(Fact { name: "clock_mhz", title: "clock, as measured (MHz)" }),
    ),
];

impl Preference {
    const fn new(experiment: &'static str, along: Along) -> Self {
        Preference { experiment, along, logarithmic: false, companion: None }
    }

    const fn logarithmic(mut self) -> Self {
        self.logarithmic = true;
        self
    }

    const fn with(mut self, name: &'static str, title: &'static str) -> Self {
        self.companion = Some(Fact { name, title });
        self
    }
}

/// The pictures of one metric, which share their scales.
#[derive(Debug)]
pub(crate) struct Picture<'a> {
    /// What is drawn, in words.
    pub title: String,
    /// Its unit.
    pub unit: String,
    /// What it is drawn as.
    pub shape: Shape,
    /// The panels.
    pub panels: Vec<Panel<'a>>,
    /// Whether values are read as factors, however close they are.
    pub logarithmic: bool,
}

/// What a picture is drawn as.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Shape {
    /// A bar a measurement, with its coordinates before it.
    Bars {
        /// The coordinates.
        columns: Vec<String>,
    },
    /// Lines along an axis.
    Lines {
        /// The axis.
        along: String,
        /// The coordinates that tell the lines apart.
        series: Vec<String>,
        /// A fact that is drawn below.
        companion: Option<Fact>,
    },
    /// Points along a fact.
    Points {
        /// The fact.
        along: Fact,
        /// The coordinates that tell the series apart.
        series: Vec<String>,
    },
}

/// Part of a picture.
#[derive(Debug)]
pub(crate) struct Panel<'a> {
    /// What holds for all of it, and not for the other panels.
    pub title: String,
    /// The measurements.
    pub entries: Vec<Entry<'a>>,
}

/// Plans the pictures of one experiment: one a metric.
pub(crate) fn pictures<'a>(experiment: &str, entries: &[Entry<'a>]) -> Vec<Picture<'a>> {
    let preference = PREFERENCES.iter().find(|one| one.experiment == experiment);
    grouped(entries, |entry| (entry.row.metric.clone(), entry.row.unit.clone()))
        .into_iter()
        .map(|((metric, unit), entries)| {
            let (shape, panels) = plan(preference, entries);
            Picture {
                title: words::metric(&metric),
                unit,
                shape,
                panels,
                logarithmic: preference.is_some_and(|one| one.logarithmic),
            }
        })
        .collect()
}

fn plan<'a>(preference: Option<&Preference>, entries: Vec<Entry<'a>>) -> (Shape, Vec<Panel<'a>>) {
    let names = varying(&entries);
    let along = preference.map_or(&Along::Any, |one| &one.along);
    let wanted = match along {
        Along::Bars => None,
        Along::Fact(fact) => {
            let facts: Option<Vec<f64>> =
                entries.iter().map(|entry| entry.fact(fact.name)).collect();
            // At one place, points would say no more than bars.
            if facts.is_some_and(|facts| facts.iter().any(|one| Some(one) != facts.first())) {
                // Points that differ in nothing but the fact are of one series.
                let told = names.iter().filter(|name| name.as_str() != REPEAT).cloned();
                let (split, series) = split_series(&entries, told.collect());
                return (
                    Shape::Points { along: *fact, series },
                    panels(entries, &split, &names, &[]),
                );
            }
            None
        }
        Along::Axis(name) if numbers(&entries, name) >= 2 => Some((*name).to_owned()),
        Along::Axis(_) | Along::Any => widest(&entries, &names),
    };
    let Some(along) = wanted else {
        let split = split_bars(&entries, &names);
        let mut columns: Vec<String> =
            names.iter().filter(|name| !split.contains(name)).cloned().collect();
        // Bars of several machines stand together, so theirs is the column that changes most.
        columns.sort_by_key(|name| name == MACHINE);
        let entries = beside_each_other(entries, &columns);
        let panels = panels(entries, &split, &names, &[]);
        return (Shape::Bars { columns }, panels);
    };
    let mut others: Vec<String> = names.iter().filter(|name| **name != along).cloned().collect();
    others.sort_by_key(|name| name == MACHINE);
    let (split, series) = split_series(&entries, others);
    let panels = panels(entries, &split, &names, &[&along]);
    let companion = preference.and_then(|one| one.companion);
    let companion = companion.filter(|fact| {
        panels.iter().flat_map(|panel| &panel.entries).any(|e| e.fact(fact.name).is_some())
    });
    (Shape::Lines { along, series, companion }, panels)
}

/// The number of values of a numeric axis; 0 where an entry has no number on it.
fn numbers(entries: &[Entry], name: &str) -> usize {
    let mut values = Vec::new();
    for entry in entries {
        match entry.coordinate(name) {
            Some(Coordinate::Number(value)) if !values.contains(&value) => values.push(value),
            Some(Coordinate::Number(_)) => {}
            _ => return 0,
        }
    }
    values.len()
}

/// The numeric axis with the most values, where they are enough and most lines have more than a point.
fn widest(entries: &[Entry], names: &[String]) -> Option<String> {
    let mut best: Option<(usize, &String)> = None;
    for name in names.iter().filter(|name| name.as_str() != REPEAT) {
        let count = numbers(entries, name);
        let others: Vec<&String> = names.iter().filter(|other| *other != name).collect();
        let lines = grouped(entries, |entry| shown(entry, &others)).len();
        let sparse = entries.len() < 2 * lines;
        if count >= ENOUGH_FOR_LINES && !sparse && best.is_none_or(|(most, _)| count > most) {
            best = Some((count, name));
        }
    }
    best.map(|(_, name)| name.clone())
}

fn shown(entry: &Entry, names: &[&String]) -> Vec<String> {
    names.iter().map(|name| entry.show(name)).collect()
}

/// Which coordinates make panels, and which tell the lines of a panel apart.
fn split_series(entries: &[Entry], others: Vec<String>) -> (Vec<String>, Vec<String>) {
    let lines = |members: &[Entry], series: &[String]| {
        let series: Vec<&String> = series.iter().collect();
        grouped(members, |entry| shown(entry, &series)).len()
    };
    let panels = |split: &[String]| {
        let split: Vec<&String> = split.iter().collect();
        grouped(entries, |entry| shown(entry, &split))
    };
    let most = |series: &[String], split: &[String]| {
        panels(split).iter().map(|(_, members)| lines(members, series)).max().unwrap_or(0)
    };
    let (split, mut series) = split(entries, others, &most, MOST_SERIES);
    // What goes with a split coordinate tells nothing apart within a panel.
    let panels = panels(&split);
    series.retain(|name| {
        panels.iter().any(|(_, members)| lines(members, std::slice::from_ref(name)) > 1)
    });
    (split, series)
}

fn split_bars(entries: &[Entry], names: &[String]) -> Vec<String> {
    let most = |_: &[String], split: &[String]| {
        let split: Vec<&String> = split.iter().collect();
        grouped(entries, |entry| shown(entry, &split))
            .iter()
            .map(|(_, members)| members.len())
            .max()
            .unwrap_or(0)
    };
    split(entries, names.to_vec(), &most, MOST_BARS).0
}

/// Takes coordinates for panels, those with the fewest values first, until no panel has more than `limit`.
fn split(
    entries: &[Entry],
    mut kept: Vec<String>,
    most: &dyn Fn(&[String], &[String]) -> usize,
    limit: usize,
) -> (Vec<String>, Vec<String>) {
    let mut split: Vec<String> = Vec::new();
    // Times under a timing profile and times without one have nothing in common.
    if let Some(profile) = kept.iter().position(|name| name == "profile") {
        split.push(kept.remove(profile));
    }
    while most(&kept, &split) > limit {
        let values = |name: &String| grouped(entries, |entry| entry.show(name)).len();
        // Of several with as few values, the last: the first columns are the more telling ones.
        let fewest = (0..kept.len()).rev().min_by_key(|index| values(&kept[*index]));
        match fewest {
            Some(index) => split.push(kept.remove(index)),
            None => break,
        }
    }
    (split, kept)
}

/// The panels: a panel each combination of the split coordinates.
fn panels<'a>(
    entries: Vec<Entry<'a>>,
    split: &[String],
    names: &[String],
    not_in_title: &[&String],
) -> Vec<Panel<'a>> {
    let split: Vec<&String> = split.iter().collect();
    let mut panels = Vec::new();
    for (_, entries) in grouped(&entries, |entry| shown(entry, &split)) {
        let constant = |name: &&String| {
            let first = entries.first().map(|entry| entry.show(name));
            entries.iter().all(|entry| Some(entry.show(name)) == first)
        };
        let titled = names.iter().filter(|name| !split.is_empty() && !not_in_title.contains(name));
        let title: Vec<String> = titled
            .filter(constant)
            .filter_map(|name| entries.first().and_then(|entry| labelled(entry, name)))
            .collect();
        panels.push(Panel { title: title.join(", "), entries });
    }
    panels
}

/// Bars that differ only in their record stand together.
fn beside_each_other<'a>(entries: Vec<Entry<'a>>, columns: &[String]) -> Vec<Entry<'a>> {
    if !columns.iter().any(|name| name == MACHINE) {
        return entries;
    }
    let others: Vec<&String> = columns.iter().filter(|name| *name != MACHINE).collect();
    grouped(&entries, |entry| shown(entry, &others))
        .into_iter()
        .flat_map(|(_, members)| members)
        .collect()
}

/// Coordinates whose words say by themselves what they are.
const SELF_EXPLAINING: &[&str] = &[MACHINE, "transport", "op", "order", "handoff", "conn"];

/// Whether a word needs no name of its axis before it: it is long enough to mean something, and no other axis
/// has it.
fn explains_itself(name: &str, word: &str) -> bool {
    let has = |axis: &&Axis| matches!(axis.domain, Domain::Words(words) if words.contains(&word));
    SELF_EXPLAINING.contains(&name) || (word.len() >= 6 && AXES.iter().filter(has).count() == 1)
}

/// A coordinate as part of a label; none where the point doesn't have it.
pub(crate) fn labelled(entry: &Entry, name: &str) -> Option<String> {
    let value = entry.coordinate(name)?;
    let shown = value.show(name);
    let bytes = match &value {
        Coordinate::Number(_) if words::is_bytes(name) => {
            if shown.ends_with(['K', 'M', 'G']) {
                "iB"
            } else {
                " B"
            }
        }
        _ => "",
    };
    let is_plain = match &value {
        Coordinate::Number(_) => name == "payload",
        Coordinate::Word(word) => explains_itself(name, word),
    };
    Some(if is_plain { format!("{shown}{bytes}") } else { format!("{name} {shown}{bytes}") })
}
