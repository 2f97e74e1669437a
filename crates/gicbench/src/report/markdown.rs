//! The tables of figures as Markdown, for pages that are written by hand.

use std::fmt::Write;

use super::beside::{ABOUT, Beside, Part, STAND_IN, beside};
use super::derived::{Derived, derive};
use super::entry::{Entry, Source, entries};
use super::figures::figures;
use super::markup::plain;
use super::missing;
use super::notes;
use super::table::{Column, Section};
use super::words::{self, NONE};
use crate::published::Published;
use crate::record::Row;

/// The figures, the derived quantities, what is missing or wrong, the libraries, and what their letters mean.
pub(super) fn markdown(sources: &[Source], published: &Published) -> String {
    let all = entries(sources);
    let mut text = String::new();
    let figures = figures_table(&mut text, sources, &all);
    let derived = derived_table(&mut text, sources, published);
    let missing = missing::missing(sources, &all);
    let libraries = beside(sources, &all, published);
    if !figures && !derived && libraries.is_none() {
        text.push_str("No measurement of these records is one of the figures.\n");
    }
    for section in &missing {
        text.push('\n');
        section_table(&mut text, section);
    }
    if !figures && !derived && libraries.is_none() {
        return text;
    }
    if let Some(libraries) = &libraries {
        libraries_tables(&mut text, libraries);
    }
    text.push('\n');
    for (letter, why) in notes::explained(&all) {
        let line = format!("{letter}, {}: {why}.", notes::meaning(letter));
        let _ = writeln!(text, "{}  ", escaped(&line));
    }
    let _ = writeln!(text, "Published: {}.", escaped(published.source()));
    text
}

/// Whether there are any.
fn figures_table(text: &mut String, sources: &[Source], all: &[Entry]) -> bool {
    let lines = figures(sources, all);
    if lines.is_empty() {
        return false;
    }
    let mut head: Vec<String> = vec!["8-byte operations unless said".into(), "by".into()];
    for source in sources {
        let of = if sources.len() > 1 { format!("{}: ", source.label) } else { String::new() };
        head.push(format!("{of}p50"));
        head.push("p99".into());
        head.push("ratio".into());
    }
    head.extend(["published".into(), "unit".into(), "note".into()]);
    let mut rows = Vec::new();
    for line in &lines {
        let Some(any) = line.any() else { continue };
        let mut row = vec![titled(line.transport, line.title, &line.at), line.by.clone()];
        let mut letters = String::new();
        for cell in &line.cells {
            let measured = cell.map(|entry| entry.row);
            row.push(measured.map_or_else(|| NONE.to_owned(), words::median));
            row.push(words::number_or_none(measured.and_then(|row| row.p99)));
            row.push(words::ratio(measured.and_then(Row::ratio)));
            for letter in measured.map(notes::letters).unwrap_or_default().chars() {
                if !letters.contains(letter) {
                    letters.push(letter);
                }
            }
        }
        let figure = any.reference.as_ref().map(|figure| words::printed(figure.value));
        row.push(figure.unwrap_or_else(|| NONE.to_owned()));
        row.push(words::unit(&any.unit).to_owned());
        row.push(letters);
        rows.push(row);
    }
    table(text, &head, &rows);
    true
}

/// Whether there are any.
fn derived_table(text: &mut String, sources: &[Source], published: &Published) -> bool {
    let several = sources.len() > 1;
    let mut rows: Vec<Vec<String>> = Vec::new();
    for source in sources {
        for one in derive(&source.record.measurements, published) {
            let mut row = vec![
                titled(one.transport, one.what, &one.at),
                one.by.clone(),
                one.shown(),
                published_of(&one),
                words::ratio(one.ratio),
                one.notes.clone(),
            ];
            if several {
                row.insert(0, source.label.clone());
            }
            rows.push(row);
        }
    }
    if rows.is_empty() {
        return false;
    }
    let mut head = vec!["derived", "by", "measured", "published", "ratio", "note"];
    if several {
        head.insert(0, "machine");
    }
    let head: Vec<String> = head.into_iter().map(str::to_owned).collect();
    if !text.is_empty() {
        text.push('\n');
    }
    table(text, &head, &rows);
    true
}

fn libraries_tables(text: &mut String, libraries: &Beside) {
    if !text.is_empty() {
        text.push('\n');
    }
    let _ = writeln!(text, "**Beside the libraries.** {} {}", escaped(ABOUT), escaped(STAND_IN));
    for part in &libraries.parts {
        if let Part::Section(section) = part {
            text.push('\n');
            section_table(text, section);
        }
    }
}

fn section_table(text: &mut String, section: &Section) {
    let Section { title, lead, heads, groups, notes } = section;
    let _ = write!(text, "**{}.**", escaped(title));
    let _ = match lead.as_str() {
        "" => writeln!(text),
        lead => writeln!(text, " {}.", escaped(lead)),
    };
    text.push('\n');
    let has_paths = groups.iter().any(|group| !group.path.is_empty());
    let path = has_paths.then(|| ("path".to_owned(), false));
    let heads = heads.iter().map(|head| (head.name.to_owned(), head.shape == Column::Number));
    let (names, is_number): (Vec<String>, Vec<bool>) = path.into_iter().chain(heads).unzip();
    let mut rows: Vec<Vec<String>> = Vec::new();
    for group in groups {
        rows.extend(group.rows.iter().map(|row| {
            let path = has_paths.then(|| group.path.clone());
            path.into_iter().chain(row.iter().map(ToString::to_string)).collect()
        }));
    }
    aligned(text, &names, &is_number, &rows);
    let said = groups.iter().filter(|group| !group.about.is_empty());
    let said = said.map(|group| format!("{}: {}.", group.path, group.about));
    let lines: Vec<String> = said.chain(notes.iter().cloned()).collect();
    if !lines.is_empty() {
        text.push('\n');
    }
    for line in lines {
        let _ = writeln!(text, "{}  ", escaped(&line));
    }
}

fn titled(transport: &str, title: &str, at: &str) -> String {
    if at.is_empty() {
        format!("{transport} {title}")
    } else {
        format!("{transport} {title} ({at})")
    }
}

/// The published value of a quantity and whose it is.
pub(super) fn published_of(one: &Derived) -> String {
    match (one.published_shown(), one.published) {
        (Some(value), Some((_, whose))) => format!("{value} ({whose})"),
        _ => NONE.to_owned(),
    }
}

fn table(text: &mut String, head: &[String], rows: &[Vec<String>]) {
    let is_number = |name: &String| {
        name.ends_with("p50") || matches!(name.as_str(), "p99" | "ratio" | "published" | "measured")
    };
    let is_number: Vec<bool> = head.iter().map(is_number).collect();
    aligned(text, head, &is_number, rows);
}

/// A table; columns of numbers stand to the right.
fn aligned(text: &mut String, head: &[String], is_number: &[bool], rows: &[Vec<String>]) {
    let line = |cells: &[String]| {
        let cells: Vec<String> = cells.iter().map(|cell| escaped(cell)).collect();
        format!("| {} |", cells.join(" | "))
    };
    let _ = writeln!(text, "{}", line(head));
    let rule: Vec<&str> =
        is_number.iter().map(|is_number| if *is_number { "--:" } else { "---" }).collect();
    // The rule is the table's own and isn't escaped.
    let _ = writeln!(text, "|{}|", rule.join("|"));
    for row in rows {
        let _ = writeln!(text, "{}", line(row));
    }
}

/// Text that is neither markup nor the end of a cell or a line.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '\n' | '\r' | '\t' => out.push(' '),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '#' | '!' | '~' => {
                out.push('\\');
                out.push(c);
            }
            _ => out.push(plain(c)),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_hold_text_only() {
        assert_eq!(
            escaped("a|b\n<img src=x> [x](javascript:1) `c` *d*\0"),
            "a\\|b &lt;img src=x&gt; \\[x\\](javascript:1) \\`c\\` \\*d\\*\u{fffd}"
        );
    }
}
