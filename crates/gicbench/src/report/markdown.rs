//! The tables of figures as Markdown, for pages that are written by hand.

use std::fmt::Write;

use super::derived::{Derived, derive};
use super::entry::{Source, entries};
use super::figures::figures;
use super::markup::plain;
use super::{notes, words};
use crate::published::Published;

/// The figures, the derived quantities, and what their letters mean.
pub(super) fn markdown(sources: &[Source], published: &Published) -> String {
    let all = entries(sources);
    let lines = figures(sources, &all);
    let mut text = String::new();
    if lines.is_empty() {
        text.push_str("No measurement of these records is one of the figures.\n");
        return text;
    }
    let several = sources.len() > 1;
    let mut head: Vec<String> = vec!["8-byte operations unless said".into(), "by".into()];
    for source in sources {
        let of = if several { format!("{}: ", source.label) } else { String::new() };
        head.push(format!("{of}p50"));
        head.push("p99".into());
        head.push("ratio".into());
    }
    head.extend(["published".into(), "unit".into(), "note".into()]);
    let mut rows = Vec::new();
    for line in &lines {
        let Some(any) = line.any() else { continue };
        let at = if line.at.is_empty() { String::new() } else { format!(" ({})", line.at) };
        let mut row = vec![format!("{} {}{at}", line.transport, line.title), line.by.clone()];
        let mut letters = String::new();
        for cell in &line.cells {
            let measured = cell.map(|entry| entry.row);
            row.push(words::number_or_none(measured.map(|row| row.p50.unwrap_or(row.mean))));
            row.push(words::number_or_none(measured.and_then(|row| row.p99)));
            row.push(
                measured
                    .and_then(|row| row.ratio())
                    .map_or_else(|| words::NONE.to_owned(), |ratio| format!("{ratio:.2}")),
            );
            let more = measured.map(notes::letters).unwrap_or_default();
            letters.extend(
                more.chars().filter(|letter| !letters.contains(*letter)).collect::<Vec<_>>(),
            );
        }
        row.push(
            any.reference
                .as_ref()
                .map_or_else(|| words::NONE.to_owned(), |figure| words::printed(figure.value)),
        );
        row.push(words::unit(&any.unit).to_owned());
        row.push(letters);
        rows.push(row);
    }
    table(&mut text, &head, &rows);

    let derived: Vec<(&str, Derived)> = sources
        .iter()
        .flat_map(|source| {
            let derived = derive(&source.record.measurements, published);
            derived.into_iter().map(|one| (source.label.as_str(), one))
        })
        .collect();
    if !derived.is_empty() {
        text.push('\n');
        let mut head = vec!["derived", "by", "measured", "published", "ratio", "note"];
        if several {
            head.insert(0, "record");
        }
        let head: Vec<String> = head.into_iter().map(str::to_owned).collect();
        let rows: Vec<Vec<String>> = derived
            .iter()
            .map(|(label, one)| {
                let at = if one.at.is_empty() { String::new() } else { format!(" ({})", one.at) };
                let mut row = vec![
                    format!("{} {}{at}", one.transport, one.what),
                    one.by.clone(),
                    one.shown(),
                    published_of(one),
                    one.ratio.map_or_else(|| words::NONE.to_owned(), |ratio| format!("{ratio:.2}")),
                    one.notes.clone(),
                ];
                if several {
                    row.insert(0, (*label).to_owned());
                }
                row
            })
            .collect();
        table(&mut text, &head, &rows);
    }
    text.push('\n');
    for (letter, why) in notes::explained(&all) {
        let line = format!("{letter}, {}: {why}.", notes::meaning(letter));
        let _ = writeln!(text, "{}  ", escaped(&line));
    }
    let _ = writeln!(text, "Published: {}.", escaped(published.source()));
    text
}

/// The published value of a quantity and whose it is.
pub(super) fn published_of(one: &Derived) -> String {
    match (one.published_shown(), one.published) {
        (Some(value), Some((_, whose))) => format!("{value} ({whose})"),
        _ => words::NONE.to_owned(),
    }
}

fn table(text: &mut String, head: &[String], rows: &[Vec<String>]) {
    let line = |cells: &[String]| {
        let cells: Vec<String> = cells.iter().map(|cell| escaped(cell)).collect();
        format!("| {} |", cells.join(" | "))
    };
    let _ = writeln!(text, "{}", line(head));
    let rule: Vec<String> = head
        .iter()
        .map(|name| {
            let is_number = name.ends_with("p50")
                || matches!(name.as_str(), "p99" | "ratio" | "published" | "measured");
            (if is_number { "--:" } else { "---" }).to_owned()
        })
        .collect();
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
