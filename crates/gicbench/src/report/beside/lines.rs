//! Which measurements stand beside each other: the 8-byte puts of `latency`, a line a point, in settings of one record,
//! submitter, NIC and placement.

use crate::measurement::{MemoryKind, Placement};
use crate::point::Transport;
use crate::record::Row;
use crate::report::entry::{Entry, Source, grouped, is_its_own, said, word};
use crate::report::figures::{is, prefer};
use crate::report::words;

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

    /// What a line of its own is compared with where none makes the same promises: queues of one thread, with the least
    /// order that is safe.
    pub fn fallback(self) -> (&'static str, &'static str) {
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

impl<'a> Safety<'a> {
    pub fn is_said(&self) -> bool {
        self.0.iter().any(Option::is_some)
    }

    pub fn show(&self) -> String {
        if !self.is_said() {
            return words::NOT_SAID.to_owned();
        }
        let all: Vec<&str> = self.0.iter().map(|promise| promise.unwrap_or(words::NONE)).collect();
        all.join(" · ")
    }

    /// In what it differs from another; nothing where the two promise the same.
    pub fn differences(&self, other: &Safety<'a>) -> Vec<String> {
        let both = PROMISES.iter().zip(self.0.iter().zip(&other.0));
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
    fn new(entries: Vec<Entry<'a>>) -> Option<Self> {
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
        self.row(self.class.metric())?.p50
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
        let promises = [sharing, "order_scope", "space_check", "completion_scope"];
        Safety(promises.map(|name| self.said(name)))
    }

    /// Whether it is its path's default variant, as far as this program knows the path.
    pub fn is_default(&self) -> bool {
        let path = peers::path(self.transport());
        let default = path.and_then(|(_, path)| path.variants.first());
        default.is_some_and(|variant| variant.name == self.variant())
    }
}

/// Lines that can be compared: of one record, class, submitter, NIC, placement and timing profile.
#[derive(Debug)]
pub(super) struct Setting<'a> {
    pub source: usize,
    pub class: Class,
    /// This project's lines, in the order of the record; then the libraries' paths, each with its default before its other
    /// ways by their issue times.
    pub lines: Vec<Line<'a>>,
}

/// Every setting in which a library was measured: by record and class, then in the order of the record.
pub(super) fn settings<'a>(sources: &[Source], all: &[Entry<'a>]) -> Vec<Setting<'a>> {
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
    let mut settings = Vec::new();
    for source in 0..sources.len() {
        for class in Class::ALL {
            let mut of_class: Vec<(Entry, Vec<Line>)> = Vec::new();
            for line in lines.iter().filter(|line| line.class == class) {
                let Some(first) = line.main().filter(|entry| entry.source == source) else {
                    continue;
                };
                match of_class.iter_mut().find(|(known, _)| is_beside(known.row, first.row)) {
                    Some((_, known)) => known.push(line.clone()),
                    None => of_class.push((first, vec![line.clone()])),
                }
            }
            let of_class = of_class.into_iter().map(|(_, lines)| lines);
            settings.extend(of_class.map(|lines| Setting::new(source, class, lines)));
        }
    }
    let is_librarys = |line: &Line| matches!(line.kind, Kind::Library | Kind::Step);
    settings.retain(|setting| setting.lines.iter().any(is_librarys));
    settings
}

/// Whether two measurements of a record can stand in one table.
fn is_beside(one: &Row, other: &Row) -> bool {
    one.point.submitter == other.point.submitter
        && one.point.nic == other.point.nic
        && one.placement == other.placement
        && one.point.parameters.get("profile") == other.point.parameters.get("profile")
}

impl<'a> Setting<'a> {
    fn new(source: usize, class: Class, mut lines: Vec<Line<'a>>) -> Self {
        let mut paths: Vec<&str> = class.shown().to_vec();
        paths.extend(Transport::ALL.iter().map(|transport| transport.name()));
        for line in &lines {
            if !paths.contains(&line.transport()) {
                paths.push(line.transport());
            }
        }
        let place = |line: &Line| paths.iter().position(|path| *path == line.transport());
        // A sort keeps the order of equals: the record's.
        lines.sort_by(|one, other| {
            let by_path = place(one).cmp(&place(other));
            let is_librarys = one.kind == Kind::Library && other.kind == Kind::Library;
            let median = |line: &Line| line.median().unwrap_or(f64::INFINITY);
            by_path.then_with(|| match is_librarys {
                true => (other.is_default().cmp(&one.is_default()))
                    .then_with(|| median(one).total_cmp(&median(other))),
                false => std::cmp::Ordering::Equal,
            })
        });
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

    /// What a line is compared with.
    pub fn reference(&self, line: &Line<'a>) -> Result<Reference<'_, 'a>, String> {
        let own = self.class.own();
        let safety = line.safety();
        if !safety.is_said() {
            return Err("not said what it is safe for".to_owned());
        }
        let ours: Vec<&Line> = self.of(Kind::Own).filter(|line| line.transport() == own).collect();
        if ours.is_empty() {
            return Err(format!("no {own} beside it"));
        }
        if !ours.iter().any(|line| line.safety().is_said()) {
            return Err(format!("{own} doesn't say what it is safe for"));
        }
        let equal = ours.iter().filter(|line| safety.differences(&line.safety()).is_empty());
        if let Some(line) = smallest(equal.copied().collect()) {
            return Ok(Reference { line, differs: Vec::new() });
        }
        match self.fallback() {
            Some(line) => Ok(Reference { line, differs: safety.differences(&line.safety()) }),
            None => {
                let (sharing, order) = self.class.fallback();
                Err(format!("no {own} with sharing {sharing} and order {order}"))
            }
        }
    }

    /// This project's line that others are compared with where none promises the same.
    pub fn fallback(&self) -> Option<&Line<'a>> {
        let (sharing, order) = self.class.fallback();
        let fits = |line: &&Line| {
            let Safety([of_sharing, of_order, ..]) = line.safety();
            line.transport() == self.class.own()
                && of_sharing == Some(sharing)
                && of_order == Some(order)
        };
        let mut fitting: Vec<&Line> = self.of(Kind::Own).filter(fits).collect();
        // Of several orders of that scope, the usual one.
        let usual = |line: &&Line| line.parameter("order") == Some("gpu-release");
        if fitting.iter().any(usual) {
            fitting.retain(usual);
        }
        smallest(fitting)
    }
}

/// What a line is compared with.
pub(super) struct Reference<'s, 'a> {
    pub line: &'s Line<'a>,
    /// In what the two promise another thing; nothing where they promise the same.
    pub differs: Vec<String>,
}

/// Of several lines the plainest, and of those the one that takes the least time.
fn smallest<'s, 'a>(mut lines: Vec<&'s Line<'a>>) -> Option<&'s Line<'a>> {
    // A line without a median can't be compared with.
    lines.retain(|line| line.median().is_some());
    let mut pairs: Vec<(&Line, &Row)> =
        lines.iter().filter_map(|line| Some((*line, line.main()?.row))).collect();
    prefer(&mut pairs, |pair| pair.1);
    let least = pairs.into_iter().min_by(|(one, _), (other, _)| {
        let median = |line: &Line| line.median().unwrap_or(f64::INFINITY);
        median(one).total_cmp(&median(other))
    });
    least.map(|(line, _)| line)
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
