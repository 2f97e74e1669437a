//! Which measurements stand beside each other: the 8-byte puts of `latency`, a line a point, in settings of one record,
//! submitter, NIC and placement.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use crate::measurement::{MemoryKind, Metric, Placement};
use crate::point::{Nic, Submitter, Transport};
use crate::record::Row;
use crate::report::entry::{Entry, grouped, is_its_own, parameters, said, word};
use crate::report::figures::{is, prefer};
use crate::report::words;

/// The metric whose time holds the completion.
pub(super) const TOTAL: &str = "put_completion_us";

/// Who hands a path's work to the NIC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// GPU threads write WQEs and ring.
    Submitted,
    /// A CPU posts what GPU threads hand to it.
    Proxied,
}

impl Class {
    pub const ALL: [Class; 2] = [Class::Submitted, Class::Proxied];

    pub fn title(self) -> &'static str {
        match self {
            Class::Submitted => "GPU-submitted",
            Class::Proxied => "proxied",
        }
    }

    /// The time that the submitting thread alone sets.
    pub fn metric(self) -> &'static str {
        match self {
            Class::Submitted => "issue_us",
            Class::Proxied => "enqueue_us",
        }
    }

    /// This project's transport of the class.
    pub fn own(self) -> &'static str {
        match self {
            Class::Submitted => "mini-gda",
            Class::Proxied => "mini-proxy",
        }
    }

    /// This project's lines that stand in the table.
    fn shown(self) -> &'static [&'static str] {
        match self {
            Class::Submitted => &["mini-gda", "bare"],
            Class::Proxied => &["mini-proxy"],
        }
    }

    /// Sharing and order of the line that every other is compared with, whatever it promises: queues of one thread, with
    /// the least order that is safe.
    pub fn plainest(self) -> (&'static str, &'static str) {
        match self {
            Class::Submitted => ("exclusive", "gpu"),
            Class::Proxied => ("exclusive", "system"),
        }
    }

    /// The class of a point: by what was measured, or else by its transport.
    fn of(entries: &[Entry]) -> Option<Class> {
        let measured = |metric: &str| entries.iter().any(|entry| entry.row.metric == metric);
        let of_metric = Class::ALL.into_iter().find(|class| measured(class.metric()));
        let transport = entries.first()?.row.point.transport.as_str();
        let of_transport = || {
            let is_own = |class: &Class| class.shown().contains(&transport);
            let known: Transport = transport.parse().ok()?;
            if Transport::GPU_SUBMITTED_PEERS.contains(&known) {
                Some(Class::Submitted)
            } else if Transport::PROXIED_PEERS.contains(&known) {
                Some(Class::Proxied)
            } else {
                Class::ALL.into_iter().find(is_own)
            }
        };
        of_metric.or_else(of_transport)
    }
}

/// What a line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// This project's own.
    Own,
    /// This project's code with a library's choices.
    Like,
    /// That without a step.
    LikeStep,
    /// A library's own calls.
    Library,
    /// A library's sequence without a step.
    Step,
}

/// What a put promises, in the words of the record; none where it doesn't say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Safety<'a>([Option<&'a str>; 4]);

/// What each promise is of.
const PROMISES: [&str; 4] = ["sharing", "order", "room checked", "completion"];

/// How many of them, from the first on, a time is of: nothing of what a completion covers is in the time of an issue.
fn promises_in(metric: &str) -> usize {
    if metric == TOTAL { PROMISES.len() } else { PROMISES.len() - 1 }
}

impl<'a> Safety<'a> {
    pub fn is_said(&self) -> bool {
        self.0.iter().any(Option::is_some)
    }

    /// What of it the time of a metric is of.
    fn of(mut self, metric: &str) -> Self {
        for promise in self.0.iter_mut().skip(promises_in(metric)) {
            *promise = None;
        }
        self
    }

    pub fn show(&self) -> String {
        if !self.is_said() {
            return words::NOT_SAID.to_owned();
        }
        let all: Vec<&str> = self.0.iter().map(|promise| promise.unwrap_or(words::NONE)).collect();
        all.join(" · ")
    }

    /// In what it differs from another, of what the time of a metric is of; nothing where the two promise the same.
    fn differences(&self, other: &Safety<'a>, metric: &str) -> Vec<String> {
        let both = PROMISES.iter().zip(self.0.iter().zip(&other.0)).take(promises_in(metric));
        let differing = both.filter_map(|(what, (one, other))| match (one, other) {
            (Some(one), Some(other)) if one == other => None,
            (Some(one), Some(other)) => Some(format!("{what} {one}, not {other}")),
            _ => Some(format!("{what} {}", words::NOT_SAID)),
        });
        differing.collect()
    }
}

/// A point with its measurements; there is at least one.
#[derive(Debug, Clone)]
pub(super) struct Line<'a> {
    pub class: Class,
    pub kind: Kind,
    pub entries: Vec<Entry<'a>>,
}

impl<'a> Line<'a> {
    fn new(mut entries: Vec<Entry<'a>>) -> Option<Self> {
        entries.sort_by_key(|entry| place_of_metric(&entry.row.metric));
        let class = Class::of(&entries)?;
        let row = entries.first()?.row;
        let transport = row.point.transport.as_str();
        let is_peer = transport.parse().is_ok_and(Transport::is_peer);
        let has = |name: &str| entries.iter().any(|entry| said(entry.row, name).is_some());
        let kind = match (is_peer || has("library"), has("leaves_out")) {
            (true, true) => Kind::Step,
            (true, false) => Kind::Library,
            (false, _) if !class.shown().contains(&transport) => return None,
            (false, _) if is_its_own(row) => Kind::Own,
            (false, true) => return None,
            (false, false) if word(row, "without").is_none_or(|step| step == "none") => Kind::Like,
            (false, false) => Kind::LikeStep,
        };
        Some(Line { class, kind, entries })
    }

    /// The measurement of a metric.
    pub fn row(&self, metric: &str) -> Option<&'a Row> {
        self.entries.iter().map(|entry| entry.row).find(|row| row.metric == metric)
    }

    /// The time that the submitting thread alone sets, or else any measurement: what it is told by.
    pub fn main(&self) -> Option<Entry<'a>> {
        let metric = self.class.metric();
        let of_metric = self.entries.iter().find(|entry| entry.row.metric == metric);
        of_metric.or(self.entries.first()).copied()
    }

    pub fn median(&self) -> Option<f64> {
        self.time(self.class.metric())
    }

    fn time(&self, metric: &str) -> Option<f64> {
        self.row(metric)?.p50
    }

    /// A fact in words, of the main measurement or else of any.
    pub fn said(&self, name: &str) -> Option<&'a str> {
        let all = self.main().into_iter().chain(self.entries.iter().copied());
        all.map(|entry| entry.row).find_map(|row| said(row, name))
    }

    pub fn transport(&self) -> &'a str {
        self.entries.first().map_or(words::NONE, |entry| entry.row.point.transport.as_str())
    }

    pub fn parameter(&self, name: &str) -> Option<&'a str> {
        word(self.entries.first()?.row, name)
    }

    /// The library's way of posting.
    pub fn variant(&self) -> &'a str {
        self.parameter("variant").unwrap_or(words::NONE)
    }

    pub fn safety(&self) -> Safety<'a> {
        // This project's own `sharing` has more values than the libraries' have.
        let sharing = match self.kind {
            Kind::Own | Kind::Like | Kind::LikeStep => "sharing_scope",
            Kind::Library | Kind::Step => "sharing",
        };
        let completion = "completion_scope";
        let of_total = self.row(TOTAL).and_then(|row| said(row, completion));
        Safety([
            self.said(sharing),
            self.said("order_scope"),
            self.said("space_check"),
            of_total.or_else(|| self.said(completion)),
        ])
    }

    /// Whether it is its path's default variant, as far as this program knows the path; of this project's lines, those
    /// that every other is compared with.
    pub fn is_default(&self) -> bool {
        if self.kind == Kind::Own {
            return self.is_plainest() && self.has_usual_order();
        }
        let path = peers::path(self.transport());
        let default = path.and_then(|(_, path)| path.variants.first());
        default.is_some_and(|variant| variant.name == self.variant())
    }

    fn is_plainest(&self) -> bool {
        let (sharing, order) = self.class.plainest();
        let Safety([of_sharing, of_order, ..]) = self.safety();
        of_sharing == Some(sharing) && of_order == Some(order)
    }

    /// Of several orders of a scope the usual one; also where there is no choice of one.
    fn has_usual_order(&self) -> bool {
        self.parameter("order").is_none_or(|order| order == "gpu-release")
    }

    /// Where it stands among the lines of its setting, whatever the order of the record.
    fn place(&self) -> Place<'a> {
        let shown = self.class.shown();
        let own = shown.iter().position(|path| *path == self.transport());
        Place {
            path: (own.unwrap_or(shown.len()), place_of_path(self.transport())),
            kind: match self.kind {
                Kind::Own | Kind::Library => 0,
                Kind::Like => 1,
                Kind::Step | Kind::LikeStep => 2,
            },
            is_other: !self.is_default(),
            time: Time(self.median().unwrap_or(f64::INFINITY)),
            variant: self.variant(),
            parameters: self.entries.first().map_or_else(Vec::new, |e| parameters(&e.row.point)),
            // Only a point that was measured several times comes this far.
            times: self
                .entries
                .iter()
                .map(|e| (e.row.metric.as_str(), Time(e.typical())))
                .collect(),
            repeat: self.entries.first().map_or(0, |entry| entry.repeat),
        }
    }
}

/// Where a line stands: by path, a path's own lines before those that imitate and those that lack a step, the default
/// first, then by time, then by name.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place<'a> {
    path: (usize, (usize, &'a str)),
    kind: u8,
    is_other: bool,
    time: Time,
    variant: &'a str,
    parameters: Vec<String>,
    times: Vec<(&'a str, Time)>,
    repeat: usize,
}

/// A number with a total order.
#[derive(Debug, Clone, Copy)]
struct Time(f64);

impl Ord for Time {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for Time {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Time {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Time {}

/// Where a path stands: as this program lists it; those that it doesn't know last, by their names.
pub(super) fn place_of_path(name: &str) -> (usize, &str) {
    place_in(Transport::ALL.iter().map(|known| known.name()), name)
}

/// Where a metric stands, likewise.
pub(super) fn place_of_metric(name: &str) -> (usize, &str) {
    place_in(Metric::ALL.iter().map(|known| known.name()), name)
}

fn place_in(mut known: impl Iterator<Item = &'static str>, name: &str) -> (usize, &str) {
    (known.position(|known| known == name).unwrap_or(usize::MAX), name)
}

/// Lines that can be compared: of one record, class, submitter, NIC, placement and timing profile.
#[derive(Debug)]
pub(super) struct Setting<'a> {
    pub source: usize,
    pub class: Class,
    /// This project's lines, then the libraries', each in its [`Place`].
    pub lines: Vec<Line<'a>>,
}

/// What the lines of a setting share: NIC, submitter, whether there is a timing profile and which, placement.
type Shared<'a> = ((usize, &'a str), (usize, &'a str), bool, Option<String>, String);

fn shared<'a>(entry: &Entry<'a>) -> Shared<'a> {
    let point = &entry.row.point;
    let profile = point.parameters.get("profile").map(ToString::to_string);
    (
        place_in(Nic::ALL.iter().map(|known| known.name()), &point.nic),
        place_in(Submitter::ALL.iter().map(|known| known.name()), &point.submitter),
        word(entry.row, "profile").is_some_and(|profile| profile != "none"),
        profile,
        format!("{:?}", entry.row.placement),
    )
}

/// Every setting in which a library was measured: by record and class, then by what the lines share.
pub(super) fn settings<'a>(all: &[Entry<'a>]) -> Vec<Setting<'a>> {
    let wanted: Vec<Entry> = all
        .iter()
        .filter(|entry| {
            entry.row.point.experiment == "latency"
                && is(entry.row, "op", "put")
                && is(entry.row, "payload", "8")
        })
        .copied()
        .collect();
    let points = grouped(&wanted, |entry| {
        (entry.source, entry.repeat, entry.row.placement, &entry.row.point)
    });
    let lines: Vec<Line> = points.into_iter().filter_map(|(_, of)| Line::new(of)).collect();
    let mut settings: BTreeMap<_, Vec<Line>> = BTreeMap::new();
    for line in lines {
        let Some(first) = line.main() else { continue };
        let class = Class::ALL.iter().position(|class| *class == line.class);
        settings.entry((first.source, class, shared(&first))).or_default().push(line);
    }
    let settings = settings.into_iter().filter_map(|((source, ..), lines)| {
        let class = lines.first()?.class;
        let is_librarys = |line: &Line| matches!(line.kind, Kind::Library | Kind::Step);
        lines.iter().any(is_librarys).then(|| Setting::new(source, class, lines))
    });
    settings.collect()
}

impl<'a> Setting<'a> {
    fn new(source: usize, class: Class, mut lines: Vec<Line<'a>>) -> Self {
        lines.sort_by_cached_key(Line::place);
        Setting { source, class, lines }
    }

    pub fn of(&self, kind: Kind) -> impl Iterator<Item = &Line<'a>> {
        self.lines.iter().filter(move |line| line.kind == kind)
    }

    /// What all of its lines share, in words.
    pub fn describe(&self) -> String {
        let Some(entry) = self.lines.first().and_then(Line::main) else { return String::new() };
        let point = &entry.row.point;
        let mut parts = vec![
            format!("NIC {}, submitter {}", point.nic, point.submitter),
            places(&entry.row.placement),
        ];
        let profile = point.parameters.get("profile").and_then(|profile| profile.as_str());
        parts.extend(profile.filter(|name| *name != "none").map(|name| format!("profile {name}")));
        parts.join("; ")
    }

    /// A path's only line of a variant: none where there is none, or where nobody knows which is meant.
    pub fn variant(&self, transport: &str, variant: &str) -> Option<&Line<'a>> {
        self.only(|line| {
            matches!(line.kind, Kind::Library | Kind::Step)
                && line.transport() == transport
                && line.variant() == variant
        })
    }

    /// The only line that has a library's choices, whole.
    pub fn like(&self, library: &str) -> Option<&Line<'a>> {
        self.only(|line| line.kind == Kind::Like && line.parameter("like") == Some(library))
    }

    fn only(&self, is_it: impl Fn(&Line<'a>) -> bool) -> Option<&Line<'a>> {
        let mut found = self.lines.iter().filter(|line| is_it(line));
        let first = found.next();
        first.filter(|_| found.next().is_none())
    }

    /// What a line's time is compared with: of this project's lines that promise the same the fastest; where none does,
    /// the fastest of those that differ in the fewest promises.
    pub fn reference(&self, line: &Line<'a>, metric: &str) -> Result<Reference<'_, 'a>, String> {
        let own = self.class.own();
        let safety = line.safety();
        if !safety.of(metric).is_said() {
            return Err("not said what it is safe for".to_owned());
        }
        let mut ours: Vec<&Line> =
            self.of(Kind::Own).filter(|line| line.transport() == own).collect();
        if ours.is_empty() {
            return Err(format!("no {own} beside it"));
        }
        ours.retain(|line| line.safety().of(metric).is_said());
        if ours.is_empty() {
            return Err(format!("{own} doesn't say what it is safe for"));
        }
        ours.retain(|line| line.time(metric).is_some());
        // A stand-in's time is beside another stand-in's, where there is one.
        let is_alike = |ours: &&Line| is_comparable(line.row(metric), ours.row(metric));
        if ours.iter().any(is_alike) {
            ours.retain(is_alike);
        }
        let references =
            ours.into_iter().map(|ours| (safety.differences(&ours.safety(), metric), ours));
        let nearest = references.min_by_key(|(differs, ours)| {
            (differs.len(), ours.time(metric).map_or(Time(f64::INFINITY), Time))
        });
        let (differs, line) =
            nearest.ok_or_else(|| format!("{own} has no {}", words::metric(metric)))?;
        Ok(Reference { line, differs })
    }

    /// This project's line that every other is compared with, whatever it promises.
    pub fn plainest(&self) -> Option<&Line<'a>> {
        let own = self.class.own();
        let mut fitting: Vec<&Line> = self
            .of(Kind::Own)
            .filter(|line| line.transport() == own && line.is_plainest() && line.median().is_some())
            .collect();
        if fitting.iter().any(|line| line.has_usual_order()) {
            fitting.retain(|line| line.has_usual_order());
        }
        prefer_lines(&mut fitting);
        let median = |line: &Line| line.median().map_or(Time(f64::INFINITY), Time);
        fitting.into_iter().min_by_key(|line| median(line))
    }
}

/// What a line is compared with.
pub(super) struct Reference<'s, 'a> {
    pub line: &'s Line<'a>,
    /// In what the two promise another thing; nothing where they promise the same.
    pub differs: Vec<String>,
}

/// Whether two times are both hardware's, or both a stand-in's.
pub(super) fn is_comparable(one: Option<&Row>, other: Option<&Row>) -> bool {
    one.zip(other).is_some_and(|(one, other)| one.stand_in == other.stand_in)
}

/// Of several lines those with the values that a plain operation has.
fn prefer_lines(lines: &mut Vec<&Line>) {
    let mut pairs: Vec<(&Line, &Row)> =
        lines.iter().filter_map(|line| Some((*line, line.main()?.row))).collect();
    prefer(&mut pairs, |pair| pair.1);
    lines.retain(|line| pairs.iter().any(|(kept, _)| std::ptr::eq(*kept, *line)));
}

/// Where the shared structures were.
fn places(placement: &Placement) -> String {
    let all = [
        ("queue", placement.queue),
        ("record", placement.record),
        ("CQ", placement.cq),
        ("doorbell", placement.doorbell),
        ("payload", placement.payload),
    ];
    let within = |kind: MemoryKind, memory: &str| {
        let names: Vec<&str> =
            all.iter().filter(|(_, of)| *of == kind).map(|(name, _)| *name).collect();
        match names.len() {
            0 => None,
            count if count == all.len() => Some(format!("everything in {memory} memory")),
            _ => Some(format!("{} in {memory} memory", names.join(", "))),
        }
    };
    let kinds = [(MemoryKind::Gpu, "GPU"), (MemoryKind::Host, "host")];
    let parts: Vec<String> =
        kinds.into_iter().filter_map(|(kind, memory)| within(kind, memory)).collect();
    parts.join(", ")
}
