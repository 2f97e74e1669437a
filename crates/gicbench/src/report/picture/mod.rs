//! Pictures of measurements, as SVG inside the page.

mod bars;
mod frame;
mod lines;
mod plan;
mod scale;

use self::frame::Canvas;
pub(super) use self::plan::{Panel, Picture, Shape, labelled, pictures};
use self::scale::Scale;
pub(super) use self::scale::is_drawable;
use super::entry::{Entry, grouped};
use super::markup::Markup;
use super::words;

/// Panels that stand open; more are folded away.
const MOST_OPEN: usize = 12;

/// Draws the pictures of an experiment. Lines of one picture and of the next stand beside each other.
pub(super) fn draw(page: &mut Markup, pictures: &[Picture]) {
    let mut open: Option<&'static str> = None;
    for picture in pictures {
        let entries: Vec<Entry> =
            picture.panels.iter().flat_map(|panel| panel.entries.iter().copied()).collect();
        let Some(values) = scale(picture, &entries) else {
            if open.take().is_some() {
                page.close();
            }
            let text = format!("No picture of {}: none of its values can be drawn.", picture.title);
            page.element("p", &[("class", &"none")], &text);
            continue;
        };
        let (class, panels): (_, Vec<Canvas>) = match &picture.shape {
            Shape::Bars => {
                let draw = |panel| bars::draw(picture, panel, &values);
                ("panels bars", picture.panels.iter().map(draw).collect())
            }
            Shape::Lines { .. } | Shape::Points { .. } => {
                ("panels lines", lines::draw(picture, &entries, &values))
            }
        };
        if open != Some(class) {
            if open.is_some() {
                page.close();
            }
            page.open("div", &[("class", &class)]);
            open = Some(class);
        }
        let folded = panels.len().saturating_sub(MOST_OPEN);
        let mut panels = panels.into_iter();
        for canvas in panels.by_ref().take(MOST_OPEN) {
            canvas.place(page);
        }
        if folded > 0 {
            page.close();
            open = None;
            page.open("details", &[]);
            let summary = format!("{} of {}", words::counted(folded, "more panel"), picture.title);
            page.element("summary", &[], &summary);
            page.open("div", &[("class", &class)]);
            for canvas in panels {
                canvas.place(page);
            }
            page.close();
            page.close();
        }
    }
    if open.is_some() {
        page.close();
    }
}

/// The scale of the values, which all panels share.
fn scale(picture: &Picture, entries: &[Entry]) -> Option<Scale> {
    let mut values: Vec<f64> = entries.iter().map(Entry::typical).collect();
    let own_end = values.len();
    for entry in entries {
        values.extend(entry.row.reference.as_ref().map(|figure| figure.value));
        if has_whiskers(picture) {
            values.extend(tail(entry));
        }
    }
    if !values.get(..own_end)?.iter().copied().any(is_drawable) {
        return None;
    }
    let is_lines = !matches!(picture.shape, Shape::Bars);
    let logarithmic =
        (is_lines && picture.logarithmic).then(|| Scale::log(values.iter().copied())).flatten();
    logarithmic.or_else(|| Scale::fitting(&values))
}

/// Whether the 99th percentile is drawn: with bars, and with lines that are few enough.
fn has_whiskers(picture: &Picture) -> bool {
    if picture.unit != "us" {
        return false;
    }
    match &picture.shape {
        Shape::Bars => true,
        Shape::Lines { .. } | Shape::Points { .. } => picture.panels.iter().all(|panel| {
            let lines = grouped(&panel.entries, |entry| {
                panel.told.iter().map(|name| entry.show(name)).collect::<Vec<_>>()
            });
            lines.len() <= 2
        }),
    }
}

/// The far end of a whisker: the 99th percentile of a time.
fn tail(entry: &Entry) -> Option<f64> {
    entry.row.p99.filter(|_| entry.row.unit == "us").filter(|value| is_drawable(*value))
}

/// What a mark says when it is pointed at.
fn tooltip(entry: &Entry) -> String {
    let row = entry.row;
    let unit = words::unit(&row.unit);
    let mut parts = vec![format!("{} of {}", words::metric(&row.metric), row.point.experiment)];
    let names = ["transport", "submitter", "nic"].into_iter();
    let names = names.chain(row.point.parameters.keys().map(String::as_str));
    let at: Vec<String> = names
        .filter(|name| !super::entry::LIMITS.contains(name))
        .filter_map(|name| labelled(entry, name))
        .collect();
    parts.push(at.join(", "));
    let numbers: Vec<String> = [("p50", row.p50), ("p99", row.p99), ("mean", Some(row.mean))]
        .into_iter()
        .filter_map(|(name, value)| Some(format!("{name} {} {unit}", words::number(value?))))
        .collect();
    parts.push(numbers.join(", "));
    parts.push(words::counted(row.samples, "sample"));
    if let Some(why) = &row.stand_in_why {
        parts.push(format!("stand-in: {why}"));
    }
    if let Some(why) = &row.unsafe_mode {
        parts.push(format!("unsafe: {why}"));
    }
    parts.join("\n")
}
