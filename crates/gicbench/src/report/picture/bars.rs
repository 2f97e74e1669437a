//! Bars: a measurement a line, its coordinates to the left of the bar and its numbers to the right.
//!
//! On a logarithmic scale a length means nothing: there a dot stands where the bar would end.

use super::frame::{Area, CHARACTER, Canvas, HEAD_CHARACTER, TITLE_LINE, letters, title_lines};
use super::plan::{Panel, Picture};
use super::scale::{Scale, is_drawable};
use super::tail;
use crate::report::entry::{Entry, MACHINE};
use crate::report::words;

const ROW: f64 = 22.0;
const BAR: f64 = 11.0;
const GAP: f64 = 14.0;
/// Width of the picture that the bars fill up to.
const WIDTH: f64 = 800.0;
/// Width that the bars have at least and at most.
const BARS: (f64, f64) = (240.0, 440.0);
/// Longest coordinate, in characters.
const LONGEST: usize = 48;

/// Draws a panel.
pub(super) fn draw(picture: &Picture, panel: &Panel, scale: &Scale) -> Canvas {
    let unit = words::unit(&picture.unit);
    let title = titled(&picture.title, &panel.title);
    let mut canvas = Canvas::new(title.clone());
    let left = Columns::left(&panel.told, &panel.entries);
    let right = Columns::right(panel, unit);
    let width = (WIDTH - left.width - right.width).clamp(BARS.0, BARS.1);
    let lines = title_lines(&title, left.width.max(20.0) + width + GAP + right.width);
    let heading = 25.0 + TITLE_LINE * lines.len() as f64;
    let area = Area {
        // Half of the first tick's label stands to the left of the bars.
        left: left.width.max(20.0),
        top: heading,
        width,
        height: ROW * panel.entries.len() as f64 + 4.0,
    };
    canvas.heading(&lines);
    let axis = format!(
        "{} ({unit}{})",
        picture.title,
        if scale.is_linear() { "" } else { ", logarithmic" }
    );
    canvas.horizontal(area, &scale.ticks(), &axis);

    left.heads(&mut canvas, 0.0, area.top - 5.0);
    right.heads(&mut canvas, area.right() + GAP, area.top - 5.0);
    for (index, entry) in panel.entries.iter().enumerate() {
        let middle = area.top + ROW * (index as f64 + 0.5) + 2.0;
        left.cells(&mut canvas, 0.0, middle + 4.0, index);
        right.cells(&mut canvas, area.right() + GAP, middle + 4.0, index);
        mark(&mut canvas, entry, panel, area, middle, scale);
    }
    canvas.size(area.right() + GAP + right.width, area.bottom() + 40.0);
    canvas
}

/// The panel's title behind the picture's.
pub(super) fn titled(picture: &str, panel: &str) -> String {
    if panel.is_empty() { picture.to_owned() } else { format!("{picture}: {panel}") }
}

fn mark(canvas: &mut Canvas, entry: &Entry, panel: &Panel, area: Area, middle: f64, scale: &Scale) {
    let row = entry.row;
    let value = entry.typical();
    let colour = panel.repeated.unwrap_or(entry.source);
    let again = panel.repeated.is_some() || panel.again.contains(&entry.id());
    canvas.measurement(entry, colour, again);
    if is_drawable(value) {
        let end = area.x(scale.position(value));
        if scale.is_linear() {
            let zero = area.x(scale.position(0.0));
            let bar = Area {
                left: zero.min(end),
                top: middle - BAR / 2.0,
                width: (end - zero).abs().max(1.0),
                height: BAR,
            };
            let class = if row.unsafe_mode.is_some() { "bar unsafe" } else { "bar" };
            canvas.rectangle(class, bar, row.stand_in.then_some(colour));
        } else {
            canvas.line("lead", (area.left, middle), (end, middle));
        }
        if let Some(tail) = tail(entry) {
            let far = area.x(scale.position(tail));
            canvas.line("whisker", (end, middle), (far, middle));
            canvas.line("whisker", (far, middle - 4.0), (far, middle + 4.0));
        }
        if !scale.is_linear() {
            canvas.marker(0, row.stand_in, end, middle);
        }
        if row.unsafe_mode.is_some() {
            canvas.text(area.left + 4.0, middle + 4.0, "unsafe-letter", "start", &"U");
        }
    } else {
        canvas.text(area.left + 4.0, middle + 4.0, "tick", "start", &"can't be drawn");
    }
    canvas.close();
    if let Some(figure) = row.reference.as_ref().filter(|figure| is_drawable(figure.value)) {
        let x = area.x(scale.position(figure.value));
        let class =
            if figure.comparable && !row.stand_in { "published" } else { "published aside" };
        canvas.line(class, (x, middle - 9.0), (x, middle + 9.0));
        let above = middle - 9.0;
        canvas.polygon(
            "published-head",
            &[(x - 4.0, above - 1.0), (x + 4.0, above - 1.0), (x, above + 4.5)],
        );
    }
}

/// Columns of text.
struct Columns {
    columns: Vec<Column>,
    width: f64,
}

struct Column {
    head: String,
    cells: Vec<String>,
    width: f64,
    to_the_right: bool,
}

/// What a column says of a measurement.
type Cell = fn(&Entry) -> String;

impl Columns {
    fn new(columns: Vec<(String, Vec<String>, bool)>) -> Self {
        let columns: Vec<Column> = columns
            .into_iter()
            .map(|(head, cells, to_the_right)| {
                let length = |text: &String| text.chars().count() as f64;
                let longest = cells.iter().map(length).fold(0.0, f64::max) * CHARACTER;
                let width = longest.max(length(&head) * HEAD_CHARACTER) + GAP;
                Column { head, cells, width, to_the_right }
            })
            .collect();
        let width = columns.iter().map(|column| column.width).sum();
        Columns { columns, width }
    }

    /// The coordinates; one that repeats those of the line above isn't written again.
    fn left(names: &[String], entries: &[Entry]) -> Self {
        let shown = |entry: &Entry, name: &String| words::shortened(&entry.show(name), LONGEST);
        let columns = names.iter().enumerate().map(|(column, name)| {
            let cells = entries.iter().enumerate().map(|(index, entry)| {
                let above = index.checked_sub(1).and_then(|above| entries.get(above));
                let repeats = above.is_some_and(|above| {
                    names[..=column].iter().all(|name| shown(entry, name) == shown(above, name))
                });
                if repeats && name != MACHINE { String::new() } else { shown(entry, name) }
            });
            (words::shortened(name, LONGEST), cells.collect(), false)
        });
        Columns::new(columns.collect())
    }

    /// The numbers.
    fn right(panel: &Panel, unit: &str) -> Self {
        let entries = &panel.entries;
        let all = |cell: Cell| entries.iter().map(cell).collect::<Vec<_>>();
        let mut columns =
            vec![(format!("p50 ({unit})"), all(|entry| words::median(entry.row)), true)];
        let optional: [(&str, Cell); 3] = [
            ("p99", |entry| tail(entry).map_or_else(String::new, words::number)),
            ("published", |entry| {
                let figure = entry.row.reference.as_ref();
                figure.map_or_else(String::new, |figure| words::printed(figure.value))
            }),
            ("note", |entry| letters(entry.row)),
        ];
        for (head, cell) in optional {
            let cells = all(cell);
            if cells.iter().any(|cell| !cell.is_empty()) {
                columns.push((head.to_owned(), cells, head != "note"));
            }
        }
        if !panel.again.is_empty() {
            let again = |entry: &Entry| panel.again.contains(&entry.id());
            let cells = entries.iter().map(|e| if again(e) { "above" } else { "" }.to_owned());
            columns.push(("also".to_owned(), cells.collect(), false));
        }
        Columns::new(columns)
    }

    fn heads(&self, canvas: &mut Canvas, left: f64, y: f64) {
        self.write(canvas, left, y, "head", |column| Some(&column.head));
    }

    fn cells(&self, canvas: &mut Canvas, left: f64, y: f64, index: usize) {
        self.write(canvas, left, y, "cell", |column| column.cells.get(index));
    }

    fn write(
        &self,
        canvas: &mut Canvas,
        left: f64,
        y: f64,
        class: &'static str,
        text: impl Fn(&Column) -> Option<&String>,
    ) {
        let mut x = left;
        for column in &self.columns {
            if let Some(text) = text(column).filter(|text| !text.is_empty()) {
                if column.to_the_right {
                    canvas.text(x + column.width - GAP, y, class, "end", text);
                } else {
                    canvas.text(x, y, class, "start", text);
                }
            }
            x += column.width;
        }
    }
}
