//! Which pictures show the measurements of an experiment.
//!
//! The choice is made from the axes that vary in the record: a numeric axis with several values becomes the
//! horizontal one of lines, anything else is a list of bars; what makes too many series or bars is split
//! into panels. What an experiment is better shown by stands in one table of preferences.

use crate::axes::{AXES, Axis};
use crate::report::entry::{Coordinate, Entry, MACHINE, REPEAT, grouped, varying};
use crate::report::words;

/// Most lines of one panel: as many as there are colours.
const MOST_SERIES: usize = 8;

/// Most bars of one panel.
const MOST_BARS: usize = 24;

/// The axis of timing profiles.
const PROFILE: &str = "profile";

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
    Bars,
    /// Lines along an axis.
    Lines {
        /// The axis.
        along: String,
        /// A fact that is drawn below.
        companion: Option<Fact>,
    },
    /// Points along a fact.
    Points {
        /// The fact.
        along: Fact,
    },
}

/// Part of a picture.
#[derive(Debug)]
pub(crate) struct Panel<'a> {
    /// What holds for all of it, and not for the other panels.
    pub title: String,
    /// The coordinates that tell its bars or its lines apart.
    pub told: Vec<String>,
    /// The measurements.
    pub entries: Vec<Entry<'a>>,
    /// Those of them that another panel shows too.
    pub again: Vec<String>,
    /// The colour of all of its bars, in a picture that repeats what the pictures of experiments show.
    pub repeated: Option<usize>,
}

/// Plans the pictures of one experiment: one a metric, and one more where some points of it stand alone on
/// the horizontal axis.
pub(crate) fn pictures<'a>(experiment: &str, entries: &[Entry<'a>]) -> Vec<Picture<'a>> {
    let preference = PREFERENCES.iter().find(|one| one.experiment == experiment);
    let mut pictures = Vec::new();
    for ((metric, unit), entries) in
        grouped(entries, |entry| (entry.row.metric.clone(), entry.row.unit.clone()))
    {
        pictures.extend(plan(preference, entries).into_iter().map(|(shape, panels)| Picture {
            title: words::metric(&metric),
            unit: unit.clone(),
            shape,
            panels,
            logarithmic: preference.is_some_and(|one| one.logarithmic),
        }));
    }
    pictures
}

fn plan<'a>(
    preference: Option<&Preference>,
    entries: Vec<Entry<'a>>,
) -> Vec<(Shape, Vec<Panel<'a>>)> {
    let mut names = varying(&entries);
    // Bars of several machines stand together, so theirs is the column that changes most.
    names.sort_by_key(|name| name == MACHINE);
    let companion = preference.and_then(|one| one.companion);
    let companion =
        companion.filter(|fact| entries.iter().any(|entry| entry.fact(fact.name).is_some()));
    let lines = |along: String| Shape::Lines { along, companion };
    let shape = match preference.map_or(&Along::Any, |one| &one.along) {
        Along::Bars => None,
        Along::Fact(fact) => is_spread(&entries, *fact).then_some(Shape::Points { along: *fact }),
        Along::Axis(name) if numbers(&entries, name) >= 2 => Some(lines((*name).to_owned())),
        Along::Axis(_) | Along::Any => widest(&entries, &names).map(lines),
    };
    let Some(shape) = shape else {
        let entries = beside_each_other(entries, &names);
        return vec![(Shape::Bars, bars(&entries, &names, false))];
    };
    // Points that differ in nothing but the fact are of one series.
    let horizontal = match &shape {
        Shape::Lines { along, .. } => along.clone(),
        Shape::Points { .. } | Shape::Bars => REPEAT.to_owned(),
    };
    let others: Vec<String> = names.iter().filter(|name| **name != horizontal).cloned().collect();
    let split = split_series(&entries, &others);
    let groups = grouped(&entries, |entry| shown(entry, &split)).into_iter().map(|(_, of)| of);
    let is_wide = |group: &Vec<Entry>| {
        !matches!(shape, Shape::Lines { .. }) || numbers(group, &horizontal) >= 2
    };
    let (wide, narrow): (Vec<Vec<Entry>>, Vec<Vec<Entry>>) = groups.partition(is_wide);
    let wide = joined(wide, &split, &others);
    let mut drawn = Vec::new();
    let titled = wide.len() + narrow.len() > 1;
    if !narrow.is_empty() {
        let (entries, again) = with_neighbours(&narrow.concat(), &wide.concat(), &names);
        let mut panels = bars(&entries, &names, titled);
        for panel in &mut panels {
            panel.again = again.clone();
            panel.again.retain(|id| panel.entries.iter().any(|entry| entry.id() == *id));
        }
        drawn.push((Shape::Bars, panels));
    }
    if !wide.is_empty() {
        let among_lines = wide.concat();
        let panels = wide.into_iter().map(|mut group| {
            let beside = lines_beside(&group, &among_lines, &split, &others);
            group.extend(beside.iter().copied());
            let again = beside.iter().map(Entry::id).collect();
            Panel { again, ..panel(group, &others, titled) }
        });
        let panels = panels.collect();
        drawn.insert(0, (shape, panels));
    }
    drawn
}

/// Whether a fact differs by more than the noise of its measurement. At one place, points would say no more
/// than bars.
fn is_spread(entries: &[Entry], fact: Fact) -> bool {
    let facts: Option<Vec<f64>> = entries.iter().map(|entry| entry.fact(fact.name)).collect();
    let Some(facts) = facts else { return false };
    let least = facts.iter().copied().fold(f64::INFINITY, f64::min);
    let most = facts.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    most - least > 0.01 * most.abs()
}

/// Panels of one line each that differ on one axis are one panel.
fn joined<'a>(
    groups: Vec<Vec<Entry<'a>>>,
    split: &[String],
    others: &[String],
) -> Vec<Vec<Entry<'a>>> {
    let mut panels: Vec<(Vec<Entry>, bool)> = Vec::new();
    for group in groups {
        let single = grouped(&group, |entry| shown(entry, others)).len() == 1;
        let fits = |(known, of_singles): &&mut (Vec<Entry>, bool)| {
            let both = [known.as_slice(), &group].concat();
            let differing: Vec<&String> =
                split.iter().filter(|name| !is_constant(&both, name)).collect();
            *of_singles
                && grouped(&both, |entry| shown(entry, others)).len() <= MOST_SERIES
                && matches!(differing.as_slice(), [name] if *name != PROFILE)
        };
        match panels.iter_mut().filter(|_| single).find(fits) {
            Some((known, _)) => known.extend(group),
            None => panels.push((group, single)),
        }
    }
    panels.into_iter().map(|(group, _)| group).collect()
}

/// The lines of other panels that belong to a panel of lines that differ in nothing but a split coordinate:
/// those that differ from them in nothing else either.
fn lines_beside<'a>(
    group: &[Entry<'a>],
    among_lines: &[Entry<'a>],
    split: &[String],
    others: &[String],
) -> Vec<Entry<'a>> {
    let differing: Vec<&String> = others.iter().filter(|name| !is_constant(group, name)).collect();
    let [axis] = differing.as_slice() else { return Vec::new() };
    if !split.contains(axis) {
        return Vec::new();
    }
    let rest: Vec<String> = others.iter().filter(|name| name != axis).cloned().collect();
    let of_group = group.first().map(|entry| shown(entry, &rest));
    let values: Vec<String> = group.iter().map(|entry| entry.show(axis)).collect();
    let belongs = |entry: &&Entry| {
        Some(shown(entry, &rest)) == of_group && !values.contains(&entry.show(axis))
    };
    among_lines.iter().filter(belongs).copied().collect()
}

/// Points that stand alone on the horizontal axis, and those among the lines that differ from one of them in
/// a single coordinate, without which they couldn't be compared; with the identifiers of the latter.
fn with_neighbours<'a>(
    alone: &[Entry<'a>],
    among_lines: &[Entry<'a>],
    names: &[String],
) -> (Vec<Entry<'a>>, Vec<String>) {
    let is_neighbour = |entry: &&Entry| {
        let differences =
            |other: &Entry| names.iter().filter(|n| entry.show(n) != other.show(n)).count();
        alone.iter().any(|one| differences(one) == 1)
    };
    let mut neighbours: Vec<Entry> = among_lines.iter().filter(is_neighbour).copied().collect();
    if neighbours.len() > alone.len() {
        neighbours.clear();
    }
    let again = neighbours.iter().map(Entry::id).collect();
    let mut all = [neighbours.as_slice(), alone].concat();
    let orders: Vec<Vec<String>> = names
        .iter()
        .map(|name| grouped(&all, |e| e.show(name)).into_iter().map(|(value, _)| value).collect())
        .collect();
    all.sort_by_cached_key(|entry| {
        let place = |(name, order): (&String, &Vec<String>)| {
            order.iter().position(|value| *value == entry.show(name))
        };
        names.iter().zip(&orders).map(place).collect::<Vec<_>>()
    });
    (all, again)
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
        let others: Vec<String> = names.iter().filter(|other| *other != name).cloned().collect();
        let lines = grouped(entries, |entry| shown(entry, &others)).len();
        let sparse = entries.len() < 2 * lines;
        if count >= ENOUGH_FOR_LINES && !sparse && best.is_none_or(|(most, _)| count > most) {
            best = Some((count, name));
        }
    }
    best.map(|(_, name)| name.clone())
}

fn shown(entry: &Entry, names: &[String]) -> Vec<String> {
    names.iter().map(|name| entry.show(name)).collect()
}

fn is_constant(entries: &[Entry], name: &str) -> bool {
    let first = entries.first().map(|entry| entry.show(name));
    entries.iter().all(|entry| Some(entry.show(name)) == first)
}

/// Which coordinates make panels, so that none has too many lines.
fn split_series(entries: &[Entry], others: &[String]) -> Vec<String> {
    let most = |kept: &[String], split: &[String]| {
        let panels = grouped(entries, |entry| shown(entry, split));
        let lines = |members: &[Entry]| grouped(members, |entry| shown(entry, kept)).len();
        panels.iter().map(|(_, members)| lines(members)).max().unwrap_or(0)
    };
    split(entries, others, &most, MOST_SERIES)
}

/// Panels of bars.
fn bars<'a>(entries: &[Entry<'a>], names: &[String], titled: bool) -> Vec<Panel<'a>> {
    let most = |_: &[String], split: &[String]| {
        let panels = grouped(entries, |entry| shown(entry, split));
        panels.iter().map(|(_, members)| members.len()).max().unwrap_or(0)
    };
    let split = split(entries, names, &most, MOST_BARS);
    let titled = titled || !split.is_empty();
    let groups = grouped(entries, |entry| shown(entry, &split));
    groups.into_iter().map(|(_, group)| panel(group, names, titled)).collect()
}

/// Takes coordinates for panels, those with the fewest values first, until no panel has more than `limit`.
fn split(
    entries: &[Entry],
    names: &[String],
    most: &dyn Fn(&[String], &[String]) -> usize,
    limit: usize,
) -> Vec<String> {
    let mut kept = names.to_vec();
    let mut split: Vec<String> = Vec::new();
    // Times under a timing profile and times without one have nothing in common.
    if let Some(profile) = kept.iter().position(|name| name == PROFILE) {
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
    split
}

/// A panel: what all of it shares stands in its title, what differs tells its measurements apart.
fn panel<'a>(entries: Vec<Entry<'a>>, names: &[String], titled: bool) -> Panel<'a> {
    let (shared, differing): (Vec<&String>, Vec<&String>) =
        names.iter().partition(|name| is_constant(&entries, name));
    let mut told: Vec<String> = differing.into_iter().cloned().collect();
    let apart = |told: &[String]| grouped(&entries, |entry| shown(entry, told)).len();
    let all = apart(&told);
    // What some have and others don't, and is the same in all that have it, mostly follows from something else.
    let mut shared: Vec<String> = shared.into_iter().cloned().collect();
    for index in (0..told.len()).rev() {
        let mut values = entries.iter().filter_map(|entry| entry.coordinate(&told[index]));
        let first = values.next();
        if values.all(|value| Some(value) == first) {
            let without = [&told[..index], &told[index + 1..]].concat();
            if apart(&without) == all {
                shared.push(std::mem::replace(&mut told, without).swap_remove(index));
            }
        }
    }
    let label = |name: &String| entries.iter().find_map(|entry| labelled(entry, name));
    let title: Vec<String> = shared.iter().filter(|_| titled).filter_map(label).collect();
    Panel { title: title.join(", "), told, entries, again: Vec::new(), repeated: None }
}

/// Bars that differ only in their record stand together.
fn beside_each_other<'a>(entries: Vec<Entry<'a>>, columns: &[String]) -> Vec<Entry<'a>> {
    if !columns.iter().any(|name| name == MACHINE) {
        return entries;
    }
    let others: Vec<String> = columns.iter().filter(|name| *name != MACHINE).cloned().collect();
    grouped(&entries, |entry| shown(entry, &others))
        .into_iter()
        .flat_map(|(_, members)| members)
        .collect()
}

/// Coordinates whose words say by themselves what they are.
const SELF_EXPLAINING: &[&str] = &[MACHINE, "transport", "op", "order", "handoff", "conn"];

/// Whether the words of an axis need no name of it before them: no other axis has the word, and all of its
/// words are long enough to mean something.
fn explains_itself(name: &str, word: &str) -> bool {
    let words = |axis: &Axis| axis.domain.words();
    let is_own = AXES.iter().all(|axis| axis.name == name || !words(axis).contains(&word));
    let of_axis = AXES.iter().find(|axis| axis.name == name).map_or(&[] as &[_], words);
    let are_long = !of_axis.is_empty() && of_axis.iter().all(|word| word.len() >= 6);
    is_own && (SELF_EXPLAINING.contains(&name) || are_long)
}

/// A coordinate as part of a label; none where the point doesn't have it.
pub(crate) fn labelled(entry: &Entry, name: &str) -> Option<String> {
    let value = entry.coordinate(name)?;
    let shown = value.show(name);
    let bytes = match &value {
        Coordinate::Number(_) => words::axis_unit(name, &shown),
        Coordinate::Word(_) => "",
    };
    let is_plain = match &value {
        Coordinate::Number(_) => name == "payload",
        Coordinate::Word(word) => explains_itself(name, word),
    };
    Some(if is_plain { format!("{shown}{bytes}") } else { format!("{name} {shown}{bytes}") })
}
