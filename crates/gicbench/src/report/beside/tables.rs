//! The tables.

use super::lines::{
    Class, Kind, Line, Reference, Setting, TOTAL, is_comparable, place_of_metric, place_of_path,
};
use crate::peer::LIKES;
use crate::point::Transport;
use crate::published::Published;
use crate::record::Row;
use crate::report::entry::{Entry, grouped, parameters, said, varying, word};
use crate::report::picture::labelled;
use crate::report::table::{Cell, Column, Group, Head, Section, head};
use crate::report::{notes, words};

const VARIANT: Head = head("variant", Column::Word);

/// How far off its library a time may be that the same choices should explain.
const CLOSE: f64 = 0.15;

/// Every path with its own variants, and this project's lines.
pub(super) fn paths(setting: &Setting, published: &Published) -> Option<Section> {
    let shown: Vec<&Line> =
        setting.lines.iter().filter(|l| matches!(l.kind, Kind::Own | Kind::Library)).collect();
    if !shown.iter().any(|line| line.kind == Kind::Library) {
        return None;
    }
    let class = setting.class;
    let own = class.own();
    let totals = match class {
        Class::Submitted => "over mini-gda's put + completion",
        Class::Proxied => "over mini-proxy's put + completion",
    };
    let mut table = Table::new(&shown);
    let mut add = |name, shape, cell: &dyn Fn(&Line) -> Cell| table.add(head(name, shape), cell);
    let times = |metric: &'static str| move |line: &Line| Cell::median(line.row(metric));
    let over = |metric: &'static str| {
        move |line: &Line| match compared(setting, line, metric) {
            Some(Ok(reference)) => ratio(line, &reference, metric),
            Some(Err(_)) | None => Cell::none(),
        }
    };
    let over_plainest = |line: &Line| {
        let metric = class.metric();
        let other = setting.plainest().and_then(|plainest| plainest.row(metric));
        quotient_cell("", line.row(metric), other)
    };
    let names = told(&shown, Kind::Own, &[]);
    let alone = ["order", "handoff"].map(str::to_owned);
    add(VARIANT.name, VARIANT.shape, &|line| match line.kind {
        Kind::Own if names.is_empty() => Cell::text(at(line, &alone)),
        Kind::Own => Cell::text(at(line, &names)),
        _ => Cell::text(line.variant()),
    });
    add("safe for", Column::Word, &|line| Cell::text(line.safety().show()));
    match class {
        Class::Submitted => {
            add("issue (µs)", Column::Number, &times("issue_us"));
            add("over mini-gda's issue", Column::Number, &over("issue_us"));
            add("over exclusive mini-gda's, GPU-scope release", Column::Number, &over_plainest);
        }
        Class::Proxied => {
            add("enqueue (µs)", Column::Number, &times("enqueue_us"));
            add("over mini-proxy's enqueue", Column::Number, &over("enqueue_us"));
            add("over exclusive mini-proxy's, release", Column::Number, &over_plainest);
            // Not every way has a wait for the proxy alone.
            if shown.iter().any(|line| line.row("consumed_us").is_some()) {
                add("consumed and seen (µs)", Column::Number, &times("consumed_us"));
            }
        }
    }
    add("put + completion (µs)", Column::Number, &times(TOTAL));
    add(totals, Column::Number, &over(TOTAL));
    add("round trip (µs)", Column::Number, &times("round_trip_us"));
    add("what differs", Column::Text, &|line| Cell::text(differences(setting, line)));
    let mut notes = vec![
        "Safe for: who may share a queue · scope of the order before the NIC or the proxy sees it · whether the put makes \
         sure of room · what a completion covers."
            .to_owned(),
        format!(
            "A ratio over {own}'s time is over the fastest of its lines with the same promises: sharing, order and room for \
             {}, all four for put + completion. Unequal: no line of {own} here promises the same, and the ratio is over \
             the fastest of those that differ in the fewest promises; what differs says in which.",
            words::metric(class.metric())
        ),
        format!(
            "The ratio beside it is over {}, whatever the line promises{}.",
            plainest(class),
            match class {
                Class::Submitted => "; where both were measured, with a collapsed CQ over RC",
                Class::Proxied => "",
            }
        ),
        "A path's default stands first, then its other ways by their times.".to_owned(),
    ];
    let entries: Vec<Entry> = shown.iter().flat_map(|line| line.entries.iter().copied()).collect();
    notes.extend(notes::published(&entries));
    notes.extend(slowest(setting, published));
    let title = format!("The paths, {}", class.title());
    Some(table.section(title, setting, notes, library))
}

/// The line that every other is compared with, in words.
fn plainest(class: Class) -> &'static str {
    match class {
        Class::Submitted => "exclusive mini-gda with GPU-scope release",
        Class::Proxied => "exclusive mini-proxy with a release at system scope",
    }
}

/// What a line's time is compared with; none where it is this project's own transport, which others are compared with.
fn compared<'s, 'a>(
    setting: &'s Setting<'a>,
    line: &Line<'a>,
    metric: &str,
) -> Option<Result<Reference<'s, 'a>, String>> {
    (line.transport() != setting.class.own()).then(|| setting.reference(line, metric))
}

/// In what a line differs from those that its times are compared with, or why they aren't.
fn differences(setting: &Setting, line: &Line) -> String {
    let of = |metric: &'static str| {
        line.row(metric)?;
        let differs = match compared(setting, line, metric)? {
            Ok(Reference { differs, .. }) => differs,
            Err(why) => vec![why],
        };
        Some((words::metric(metric), differs))
    };
    let said = |differs: Vec<String>| match differs.is_empty() {
        true => "nothing".to_owned(),
        false => differs.join("; "),
    };
    match (of(setting.class.metric()), of(TOTAL)) {
        (None, None) => String::new(),
        (Some((_, one)), None) | (None, Some((_, one))) => said(one),
        (Some((_, one)), Some((_, other))) if one == other => said(one),
        (Some((_, one)), Some((total, other))) if !one.is_empty() && other.starts_with(&one) => {
            let more = other[one.len()..].to_vec();
            format!("{} · {total} also: {}", said(one), said(more))
        }
        (Some((_, one)), Some((total, other))) if one.is_empty() => {
            format!("{total} alone: {}", said(other))
        }
        (Some((name, one)), Some((total, other))) => {
            format!("{name}: {} · {total}: {}", said(one), said(other))
        }
    }
}

/// The ratio of two medians; none of a stand-in's and hardware's.
fn quotient(one: Option<&Row>, other: Option<&Row>) -> Option<(f64, String)> {
    let is_alike = is_comparable(one, other);
    let (one, other) = (one?, other?);
    let ratio = one.p50? / other.p50?;
    let letters = if one.stand_in { "S" } else { "" };
    (ratio.is_finite() && is_alike).then(|| (ratio, letters.to_owned()))
}

/// The same as a cell, with a word before it.
fn quotient_cell(label: &str, one: Option<&Row>, other: Option<&Row>) -> Cell {
    match quotient(one, other) {
        Some((ratio, letters)) => {
            Cell { text: format!("{label}{}", words::ratio(Some(ratio))), letters }
        }
        None => Cell::none(),
    }
}

fn ratio(line: &Line, reference: &Reference, metric: &str) -> Cell {
    let label = if reference.differs.is_empty() { "" } else { "unequal: " };
    quotient_cell(label, line.row(metric), reference.line.row(metric))
}

/// The library, its version, and what was its CPU side.
fn library(line: &Line) -> String {
    if line.kind == Kind::Own {
        return String::new();
    }
    let named = line.said("library").unwrap_or("its library is not said");
    let version = match line.said("library_version") {
        Some(version) => format!(" {version}"),
        None => ", version not said".to_owned(),
    };
    let known =
        line.main().and_then(|entry| entry.row.details.get("library_version_known")?.as_bool());
    let other = if known == Some(false) { ", which its adapter doesn't know" } else { "" };
    let cpu_side =
        line.said("cpu_side").map_or(String::new(), |side| format!("; CPU side: {side}"));
    format!("{named}{version}{other}{cpu_side}")
}

/// What the slowest path adds, beside what was published of that.
fn slowest(setting: &Setting, published: &Published) -> Option<String> {
    let figure = published.figure("nvshmem.library_issue_overhead_up_to")?;
    let base = setting.plainest().filter(|_| setting.class == Class::Submitted)?;
    let metric = setting.class.metric();
    let real = |line: &Line| line.row(metric).is_some_and(|row| !row.stand_in);
    let slowest =
        setting.of(Kind::Library).filter(|line| real(line) && line.median().is_some()).max_by(
            |one, other| one.median().unwrap_or(0.0).total_cmp(&other.median().unwrap_or(0.0)),
        )?;
    let added = slowest.median()? - base.median().filter(|_| real(base))?;
    Some(format!(
        "The slowest way of a library, {} {}, adds {} µs to the issue of {}. Published for the slowest library path: \
         up to {} µs ({}).",
        slowest.transport(),
        slowest.variant(),
        words::number(added),
        plainest(setting.class),
        words::printed(figure),
        published.source()
    ))
}

/// The coordinates that tell lines of a kind apart, but for who ran them.
fn told(lines: &[&Line], kind: Kind, but: &[&str]) -> Vec<String> {
    let of_kind = lines.iter().filter(|line| line.kind == kind);
    let entries: Vec<Entry> = of_kind.filter_map(|line| line.main()).collect();
    let runs = |name: &str| ["machine", "transport", "submitter", "nic"].contains(&name);
    let mut names = varying(&entries);
    names.retain(|name| !runs(name) && !but.contains(&name.as_str()));
    names
}

/// What tells a line apart; values whose words say what they are stand alone.
fn at(line: &Line, names: &[String]) -> String {
    let Some(entry) = line.main() else { return String::new() };
    let part = |name: &String| match word(entry.row, name) {
        Some(word) if word != "none" && name != "reserve" => Some(word.to_owned()),
        _ => labelled(&entry, name),
    };
    names.iter().filter_map(part).collect::<Vec<_>>().join(", ")
}

/// This project's code with a library's choices, beside the library.
pub(super) fn likes(setting: &Setting) -> Option<Section> {
    let lines: Vec<&Line> = setting.of(Kind::Like).collect();
    if lines.is_empty() {
        return None;
    }
    let like = |line: &Line| line.parameter("like").unwrap_or(words::NONE).to_owned();
    let class = setting.class;
    let metric = class.metric();
    let names = told(&lines, Kind::Like, &["like"]);
    let of = |line: &Line| {
        let (_, transport, variant) =
            LIKES.iter().find(|(name, ..)| Some(*name) == line.parameter("like"))?;
        Some((*transport, *variant))
    };
    let librarys = |line: &Line| {
        let (transport, variant) = of(line)?;
        setting.variant(transport, variant)
    };
    let row = |line: &&Line| {
        let again = lines.iter().filter(|other| like(other) == like(line)).count() > 1;
        let name = match at(line, &names) {
            at if again && !at.is_empty() => format!("{}, {at}", like(line)),
            _ => like(line),
        };
        let measured = librarys(line).and_then(|other| other.row(metric));
        let close =
            quotient(line.row(metric), measured).map(|(value, _)| (value - 1.0).abs() <= CLOSE);
        vec![
            Cell::text(name),
            Cell::text(line.transport()),
            Cell::median(line.row(metric)),
            match of(line) {
                Some((transport, variant)) => Cell::text(format!("{transport} {variant}")),
                None => Cell::none(),
            },
            Cell::median(measured),
            quotient_cell("", line.row(metric), measured),
            Cell::text(match close {
                Some(true) => "yes",
                Some(false) => "no",
                None => words::NONE,
            }),
        ]
    };
    let rows = lines.iter().map(row).collect();
    let notes = vec![format!(
        "{} puts with the library's choices, the same queues, atomics, fences, loads and stores, in the smallest code that we \
         know.",
        class.own()
    )];
    let title = format!("The same choices in the smallest code, {}", class.title());
    let (own, theirs) = match class {
        Class::Submitted => ("issue (µs)", "its issue (µs)"),
        Class::Proxied => ("enqueue (µs)", "its enqueue (µs)"),
    };
    let heads = vec![
        head("like", Column::Word),
        head("by", Column::Word),
        head(own, Column::Number),
        head("library's", Column::Word),
        head(theirs, Column::Number),
        head("ratio", Column::Number),
        head("within 15 %", Column::Word),
    ];
    let group = Group { path: String::new(), about: String::new(), rows };
    Some(Section { title, lead: setting.describe(), heads, groups: vec![group], notes })
}

/// What a put takes without one of its steps: a library's, and then this project's with the library's choices.
///
/// A sequence that is made from no other way of its path tells no step: it is named below.
pub(super) fn steps(setting: &Setting) -> Option<Section> {
    let (of_library, others): (Vec<&Line>, Vec<&Line>) =
        setting.of(Kind::Step).partition(|line| line.said("step_of").is_some());
    let lines: Vec<&Line> = of_library.into_iter().chain(setting.of(Kind::LikeStep)).collect();
    if lines.is_empty() {
        return None;
    }
    let metric = setting.class.metric();
    let like = |line: &Line| line.parameter("like").map(|library| format!("like {library}"));
    let base = |line: &Line| match line.kind {
        Kind::LikeStep => setting.like(line.parameter("like")?),
        _ => setting.variant(line.transport(), line.said("step_of")?),
    };
    let base_name = |line: &Line| match line.kind {
        Kind::LikeStep => like(line),
        _ => line.said("step_of").map(str::to_owned),
    };
    let less = |line: &Line, metric: &str| {
        let rows = line.row(metric).zip(base(line).and_then(|base| base.row(metric)));
        let Some((row, base)) = rows.filter(|(row, base)| row.stand_in == base.stand_in) else {
            return Cell::none();
        };
        let Some((without, with)) = row.p50.zip(base.p50) else { return Cell::none() };
        let letters = if row.stand_in { "S" } else { "" };
        Cell { text: words::signed(without - with), letters: letters.to_owned() }
    };
    let mut table = Table::new(&lines);
    let mut add = |head, cell: &dyn Fn(&Line) -> Cell| table.add(head, cell);
    let time = match setting.class {
        Class::Submitted => "issue (µs)",
        Class::Proxied => "enqueue (µs)",
    };
    add(VARIANT, &|line| match line.kind {
        Kind::LikeStep => Cell::text(like(line).unwrap_or_default()),
        _ => Cell::text(line.variant()),
    });
    add(head("leaves out", Column::Text), &|line| {
        let step = line.said("leaves_out").or(line.parameter("without"));
        Cell::text(step.unwrap_or(words::NOT_SAID))
    });
    add(head("against", Column::Word), &|line| match base_name(line) {
        Some(name) if base(line).is_none() => Cell::text(format!("{name}, not measured here")),
        Some(name) => Cell::text(name),
        None => Cell::none(),
    });
    add(head(time, Column::Number), &|line| Cell::median(line.row(metric)));
    add(head("difference", Column::Number), &|line| less(line, metric));
    if lines.iter().any(|line| line.row("consumed_us").is_some()) {
        add(head("of consumed and seen", Column::Number), &|line| less(line, "consumed_us"));
    }
    add(head("of put + completion", Column::Number), &|line| less(line, TOTAL));
    let mut notes = vec![
        "No line here is a figure of its library: each is a sequence that lacks a step. The difference is to what it is made \
         from (against), in µs; what is below zero is what the step takes."
            .to_owned(),
        "Steps overlap: the differences don't add up to the whole.".to_owned(),
    ];
    if !others.is_empty() {
        let named: Vec<String> =
            others.iter().map(|line| format!("{} {}", line.transport(), line.variant())).collect();
        notes.push(format!(
            "Not here, being made from no other way of its path: {}. Its times are among the rows of latency.",
            named.join(", ")
        ));
    }
    let title = format!("What each step costs, {}", setting.class.title());
    Some(table.section(title, setting, notes, |_| String::new()))
}

/// What the NIC found wrong with what libraries' code gave it, in every experiment.
pub(super) fn findings(source: usize, all: &[Entry]) -> Option<Section> {
    let mut found: Vec<Entry> = all
        .iter()
        .filter(|entry| {
            let row = entry.row;
            let is_peer = row.point.transport.parse().is_ok_and(Transport::is_peer);
            entry.source == source
                && (is_peer || said(row, "library").is_some())
                && entry.fact("nic_findings").is_some_and(|count| count > 0.0)
        })
        .copied()
        .collect();
    if found.is_empty() {
        return None;
    }
    found.sort_by_cached_key(|entry| {
        let row = entry.row;
        let point = &row.point;
        (
            place_of_path(&point.transport),
            said(row, "leaves_out").is_some(),
            word(row, "variant"),
            point.experiment.as_str(),
            parameters(point),
            entry.repeat,
            place_of_metric(&row.metric),
        )
    });
    let mut told = varying(&found);
    told.retain(|name| !["machine", "transport", "variant"].contains(&name.as_str()));
    // The measurements of a point share its findings.
    let points = grouped(&found, |entry| (&entry.row.point, entry.repeat));
    let row = |of: Vec<Entry>| {
        let count = |entry: &Entry| entry.fact("nic_findings").unwrap_or(0.0);
        let most = of.iter().max_by(|one, other| count(one).total_cmp(&count(other)))?;
        let at: Vec<String> = told.iter().filter_map(|name| labelled(most, name)).collect();
        let experiment = most.row.point.experiment.clone();
        let at =
            if at.is_empty() { experiment } else { format!("{experiment}, {}", at.join(", ")) };
        let variant = word(most.row, "variant").unwrap_or(words::NONE);
        let step = if said(most.row, "leaves_out").is_some() { ", which lacks a step" } else { "" };
        let unsafe_mode = most.row.unsafe_mode.as_ref().map_or("", |_| ", unsafe");
        Some(vec![
            Cell::text(format!("{variant}{step}{unsafe_mode}")),
            Cell::text(at),
            Cell::text(words::number_or_exact(Some(count(most)))),
            Cell::text(said(most.row, "nic_first_finding").unwrap_or(words::NOT_SAID)),
        ])
    };
    let rows = points.into_iter().filter_map(|(_, of)| {
        let path = of.first()?.row.point.transport.clone();
        Some((path, row(of)?))
    });
    let heads = vec![
        VARIANT,
        head("point", Column::Text),
        head("findings", Column::Number),
        head("the first", Column::Text),
    ];
    let notes = vec![
        "What the software NIC's checks of doorbells, records and WQEs found: of each point the most of its measurements, in \
         every experiment."
            .to_owned(),
    ];
    let title = "What the NIC saw".to_owned();
    Some(Section {
        title,
        lead: String::new(),
        heads,
        groups: by_path(rows, |_| String::new()),
        notes,
    })
}

/// Rows under their paths, in the order of first appearance.
fn by_path(
    rows: impl IntoIterator<Item = (String, Vec<Cell>)>,
    about: impl Fn(&str) -> String,
) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for (path, row) in rows {
        match groups.iter_mut().find(|group| group.path == path) {
            Some(group) => group.rows.push(row),
            None => groups.push(Group { about: about(&path), path, rows: vec![row] }),
        }
    }
    groups
}

/// A table of lines, made column by column.
struct Table<'t, 'a> {
    lines: &'t [&'t Line<'a>],
    heads: Vec<Head>,
    rows: Vec<Vec<Cell>>,
}

impl<'t, 'a> Table<'t, 'a> {
    fn new(lines: &'t [&'t Line<'a>]) -> Self {
        Table { lines, heads: Vec::new(), rows: vec![Vec::new(); lines.len()] }
    }

    fn add(&mut self, head: Head, cell: &dyn Fn(&Line<'a>) -> Cell) {
        self.heads.push(head);
        for (row, line) in self.rows.iter_mut().zip(self.lines) {
            row.push(cell(line));
        }
    }

    /// The table; what is said of a path is what is said of its first line.
    fn section(
        self,
        title: String,
        setting: &Setting,
        notes: Vec<String>,
        about: impl Fn(&Line) -> String,
    ) -> Section {
        let Table { lines, heads, rows } = self;
        let about = |path: &str| {
            let first = lines.iter().find(|line| line.transport() == path);
            first.map_or_else(String::new, |line| about(line))
        };
        let paths = lines.iter().map(|line| line.transport().to_owned());
        let groups = by_path(paths.zip(rows), about);
        Section { title, lead: setting.describe(), heads, groups, notes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::like::Peer;

    #[test]
    fn every_name_of_like_is_a_librarys_own_variant() {
        let names: Vec<&str> = Peer::ALL.iter().map(|peer| peer.name()).collect();
        let known: Vec<&str> = LIKES.iter().map(|(name, ..)| *name).collect();
        assert_eq!(known, names);
        for (name, transport, variant) in LIKES {
            let (_, path) = peers::path(transport).unwrap();
            let variant = path.variant(variant).unwrap();
            assert!(variant.omits.is_empty(), "{name}");
        }
    }
}
