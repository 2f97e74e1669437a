//! What has to be known before a number is used: stand-ins, unsafe modes, and what cut a measurement short.

use std::collections::BTreeSet;

use super::entry::Entry;
use super::words;
use crate::record::Row;

/// A letter that marks a row, and why it does; none where it doesn't.
type Note = (char, fn(&Row) -> Option<&str>);

const NOTES: &[Note] = &[
    ('S', |row| {
        row.stand_in.then(|| row.stand_in_why.as_deref().unwrap_or("not said by the record"))
    }),
    ('U', |row| row.unsafe_mode.as_deref()),
    ('O', |row| {
        let shared = row.threads.as_ref().is_some_and(|threads| threads.oversubscribed);
        shared.then_some("more busy threads than cores: times hold scheduling")
    }),
    ('C', |row| row.cut_short.then_some("the run was ended while this was sampled")),
    ('W', |row| row.is_wrong().then_some("data was wrong")),
];

/// What a letter stands for.
pub(super) fn meaning(letter: char) -> &'static str {
    match letter {
        'S' => "stand-in",
        'U' => "unsafe",
        'O' => "oversubscribed",
        'C' => "cut short",
        _ => "wrong data",
    }
}

/// The letters of a row.
pub(super) fn letters(row: &Row) -> String {
    NOTES.iter().filter(|(_, why)| why(row).is_some()).map(|(letter, _)| *letter).collect()
}

/// The published figures that stand beside the entries, a line a source.
pub(super) fn published(entries: &[Entry]) -> Vec<String> {
    let mut figures: Vec<(&str, Vec<String>)> = Vec::new();
    for figure in entries.iter().filter_map(|entry| entry.row.reference.as_ref()) {
        let (value, unit) = (words::printed(figure.value), words::unit(&figure.unit));
        let one = format!("{value} {unit} ({})", figure.what);
        match figures.iter_mut().find(|(source, _)| *source == figure.source) {
            Some((_, of_source)) if of_source.contains(&one) => {}
            Some((_, of_source)) => of_source.push(one),
            None => figures.push((&figure.source, vec![one])),
        }
    }
    let line =
        |(source, all): (&str, Vec<String>)| format!("Published in {source}: {}.", all.join("; "));
    figures.into_iter().map(line).collect()
}

/// Each letter that stands at one of the entries, with each of its reasons.
pub(super) fn explained(entries: &[Entry]) -> Vec<(char, String)> {
    let mut all = Vec::new();
    for (letter, why) in NOTES {
        let reasons: BTreeSet<&str> = entries.iter().filter_map(|entry| why(entry.row)).collect();
        all.extend(reasons.into_iter().map(|reason| (*letter, reason.to_owned())));
    }
    all
}
