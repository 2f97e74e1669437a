//! Beside the libraries: what a record has of libraries' own device code, next to mini-gda and mini-proxy. Tables here,
//! in no markup; the page and the Markdown write them.
//!
//! Only times of one record, submitter, NIC and placement are compared, and a ratio is one of equals only where both sides
//! promise the same.

mod lines;
mod tables;

use self::lines::{Class, Kind, Setting, settings};
use super::entry::{Entry, Source, varying};
use super::notes;
use super::picture::{Panel, Picture, Shape};
use super::table::{Section, of_record};
use super::words;
use crate::published::Published;

/// What there is of libraries in some records.
#[derive(Debug)]
pub(super) struct Beside<'a> {
    /// The tables, and between them the pictures.
    pub parts: Vec<Part<'a>>,
    /// The letters in the tables, with their reasons.
    pub letters: Vec<(char, String)>,
}

/// A part of it.
#[derive(Debug)]
pub(super) enum Part<'a> {
    /// A table.
    Section(Section),
    /// A picture.
    Picture(Picture<'a>),
}

/// What is said of all tables together.
pub(super) const ABOUT: &str = "Each library's own device code, unchanged, on the queues and the NIC that mini-gda and \
     mini-proxy had in the same run. One thread, an 8-byte put, at most one outstanding; medians.";

/// What S means here.
pub(super) const STAND_IN: &str = "S: something stands in for hardware, mostly a program for the NIC. Issue and enqueue \
     are the submitting thread's own and hold no NIC. A time marked S is compared with another such time on the same NIC \
     only, never with hardware's.";

/// Everything that the records have; none where they have nothing of a library.
pub(super) fn beside<'a>(
    sources: &[Source],
    all: &[Entry<'a>],
    published: &Published,
) -> Option<Beside<'a>> {
    let settings = settings(all);
    let several = sources.len() > 1;
    let mut parts: Vec<Part> = Vec::new();
    let add = |section: Option<Section>, source: usize, parts: &mut Vec<Part<'a>>| {
        parts.extend(section.map(|section| Part::Section(of_record(section, sources, source))));
    };
    for setting in &settings {
        add(tables::paths(setting, published), setting.source, &mut parts);
    }
    for (source, Source { label, .. }) in sources.iter().enumerate() {
        let of_source: Vec<&Setting> =
            settings.iter().filter(|setting| setting.source == source).collect();
        let label = several.then_some(label.as_str());
        parts.extend(picture(&of_source, label).map(Part::Picture));
    }
    for setting in &settings {
        add(tables::likes(setting), setting.source, &mut parts);
    }
    for setting in &settings {
        add(tables::steps(setting), setting.source, &mut parts);
    }
    for source in 0..sources.len() {
        add(tables::findings(source, all), source, &mut parts);
    }
    let shown: Vec<Entry> = settings
        .iter()
        .flat_map(|setting| &setting.lines)
        .flat_map(|line| line.entries.iter().copied())
        .collect();
    (!parts.is_empty()).then(|| Beside { parts, letters: notes::explained(&shown) })
}

/// A picture of what the submitting thread spends: each library's default, and what it is compared with.
fn picture<'a>(settings: &[&Setting<'a>], label: Option<&str>) -> Option<Picture<'a>> {
    let panels: Vec<Panel> =
        settings.iter().filter_map(|setting| panel(setting, settings)).collect();
    let title = "issue, enqueue".to_owned();
    let title = label.map_or(title.clone(), |label| format!("{label}, {title}"));
    (!panels.is_empty()).then(|| Picture {
        title,
        unit: "us".to_owned(),
        shape: Shape::Bars,
        panels,
        logarithmic: false,
    })
}

fn panel<'a>(setting: &Setting<'a>, all: &[&Setting<'a>]) -> Option<Panel<'a>> {
    let metric = setting.class.metric();
    let defaults: Vec<_> = setting.of(Kind::Library).filter(|line| line.is_default()).collect();
    let mut references: Vec<_> = setting.plainest().into_iter().collect();
    for line in &defaults {
        let compared = setting.reference(line, metric).ok().map(|reference| reference.line);
        references.extend(
            compared.filter(|line| !references.iter().any(|known| std::ptr::eq(*known, *line))),
        );
    }
    if defaults.is_empty() {
        return None;
    }
    let drawn = references.into_iter().chain(defaults);
    let entries: Vec<Entry> =
        drawn.filter_map(|line| line.main()).filter(|entry| entry.row.metric == metric).collect();
    let mut told = vec!["transport".to_owned(), "variant".to_owned()];
    let others = varying(&entries).into_iter().filter(|name| !told.contains(name));
    told = told.iter().cloned().chain(others).collect();
    let mut title = format!("{} ({})", setting.class.title(), words::metric(metric));
    if all.iter().filter(|other| other.class == setting.class).count() > 1 {
        title = format!("{title}, {}", setting.describe());
    }
    let colour = Class::ALL.iter().position(|class| *class == setting.class);
    (!entries.is_empty()).then_some(Panel {
        title,
        told,
        entries,
        again: Vec::new(),
        repeated: colour,
    })
}
