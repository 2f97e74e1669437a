//! Tables in no markup; the page and the Markdown write them.

use std::fmt;

use super::entry::Source;
use super::{notes, words};
use crate::record::Row;

/// A table and what has to be known to read it.
#[derive(Debug)]
pub(super) struct Section {
    /// What it is.
    pub title: String,
    /// What all of it shares.
    pub lead: String,
    /// The columns.
    pub heads: Vec<Head>,
    /// The rows.
    pub groups: Vec<Group>,
    /// How it is read.
    pub notes: Vec<String>,
}

/// Rows that belong together, such as those of one path.
#[derive(Debug)]
pub(super) struct Group {
    /// The path; empty where rows are of none.
    pub path: String,
    /// What all of its rows share; empty where nothing has to be said.
    pub about: String,
    /// As many cells a row as there are heads.
    pub rows: Vec<Vec<Cell>>,
}

/// A column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    /// Its name.
    pub name: &'static str,
    /// What stands in it.
    pub shape: Column,
}

pub(super) const fn head(name: &'static str, shape: Column) -> Head {
    Head { name, shape }
}

/// What stands in a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Column {
    /// Names.
    Word,
    /// Sentences.
    Text,
    /// Numbers.
    Number,
}

/// A cell.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Cell {
    /// What it says.
    pub text: String,
    /// The letters of what has to be known of it.
    pub letters: String,
}

impl Cell {
    pub fn text(text: impl Into<String>) -> Self {
        Cell { text: text.into(), letters: String::new() }
    }

    /// The median of a measurement.
    pub fn median(row: Option<&Row>) -> Self {
        row.map_or_else(Cell::none, |row| Cell {
            text: words::median(row),
            letters: notes::letters(row),
        })
    }

    pub fn none() -> Self {
        Cell::text(words::NONE)
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cell { text, letters } = self;
        if letters.is_empty() { f.write_str(text) } else { write!(f, "{text} {letters}") }
    }
}

/// The table of one of several records, which its title says.
pub(super) fn of_record(section: Section, sources: &[Source], source: usize) -> Section {
    let title = match sources.get(source) {
        Some(source) if sources.len() > 1 => format!("{}: {}", section.title, source.label),
        _ => section.title,
    };
    Section { title, ..section }
}
