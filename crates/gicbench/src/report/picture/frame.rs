//! What bars and lines have in common: the canvas, text, axes, and the marks.

use std::fmt::Display;

use super::scale::Tick;
use super::tooltip;
use crate::record::Row;
use crate::report::entry::Entry;
use crate::report::markup::{Markup, Px};
use crate::report::words;

/// Width of a character of a label. Fonts differ: this is a wide one's.
pub(super) const CHARACTER: f64 = 6.7;

/// Width of a character of a column's head and of a panel's title, which are bold.
pub(super) const HEAD_CHARACTER: f64 = 8.0;
const TITLE_CHARACTER: f64 = 8.4;

/// Height of a line of a panel's title.
pub(super) const TITLE_LINE: f64 = 17.0;

/// Number of colours.
pub(super) const COLOURS: usize = 8;

/// A rectangle.
#[derive(Debug, Clone, Copy)]
pub(super) struct Area {
    pub left: f64,
    pub top: f64,
    pub width: f64,
    pub height: f64,
}

impl Area {
    pub fn right(&self) -> f64 {
        self.left + self.width
    }

    pub fn bottom(&self) -> f64 {
        self.top + self.height
    }

    /// Across, from 0 at the left to 1 at the right.
    pub fn x(&self, at: f64) -> f64 {
        self.left + at * self.width
    }

    /// Up, from 0 at the bottom to 1 at the top.
    pub fn y(&self, at: f64) -> f64 {
        self.bottom() - at * self.height
    }
}

/// A drawing.
pub(super) struct Canvas {
    markup: Markup,
    width: f64,
    height: f64,
    title: String,
}

impl Canvas {
    /// An empty drawing.
    pub fn new(title: String) -> Self {
        Canvas { markup: Markup::default(), width: 0.0, height: 0.0, title }
    }

    /// Sets its size.
    pub fn size(&mut self, width: f64, height: f64) {
        (self.width, self.height) = (width, height);
    }

    /// Puts it into a page.
    pub fn place(self, page: &mut Markup) {
        let box_ = format!("0 0 {} {}", Px(self.width), Px(self.height));
        let width = format!("max-width:{}px", Px(self.width));
        page.line();
        page.open("figure", &[("style", &width)]);
        page.open(
            "svg",
            &[
                ("viewBox", &box_),
                ("width", &Px(self.width)),
                ("height", &Px(self.height)),
                ("role", &"img"),
                ("aria-label", &self.title),
            ],
        );
        page.append(self.markup);
        page.close();
        page.close();
    }

    /// A text; `anchor` is `start`, `middle` or `end`.
    pub fn text(
        &mut self,
        x: f64,
        y: f64,
        class: &'static str,
        anchor: &'static str,
        text: &dyn Display,
    ) {
        self.markup.element(
            "text",
            &[("x", &Px(x)), ("y", &Px(y)), ("class", &class), ("text-anchor", &anchor)],
            text,
        );
    }

    /// A panel's title, in as many lines as its width needs.
    pub fn heading(&mut self, lines: &[String]) {
        for (index, line) in lines.iter().enumerate() {
            self.text(0.0, 14.0 + TITLE_LINE * index as f64, "panel", "start", line);
        }
    }

    /// A text that runs upwards, around its middle.
    pub fn upwards(&mut self, x: f64, y: f64, class: &'static str, text: &dyn Display) {
        let turn = format!("rotate(-90 {} {})", Px(x), Px(y));
        self.markup.element(
            "text",
            &[
                ("x", &Px(x)),
                ("y", &Px(y)),
                ("class", &class),
                ("text-anchor", &"middle"),
                ("transform", &turn),
            ],
            text,
        );
    }

    /// A straight line.
    pub fn line(&mut self, class: &'static str, from: (f64, f64), to: (f64, f64)) {
        self.markup.empty(
            "line",
            &[
                ("class", &class),
                ("x1", &Px(from.0)),
                ("y1", &Px(from.1)),
                ("x2", &Px(to.0)),
                ("y2", &Px(to.1)),
            ],
        );
    }

    /// Lines from point to point.
    pub fn path(&mut self, class: &'static str, points: &[(f64, f64)]) {
        let points = coordinates(points);
        self.markup.empty("polyline", &[("class", &class), ("points", &points)]);
    }

    /// A closed shape.
    pub fn polygon(&mut self, class: &'static str, points: &[(f64, f64)]) {
        let points = coordinates(points);
        self.markup.empty("polygon", &[("class", &class), ("points", &points)]);
    }

    /// A rectangle, filled by its class or by the pattern of a colour.
    pub fn rectangle(&mut self, class: &'static str, area: Area, hatch: Option<usize>) {
        let Area { left, top, width, height } = area;
        let fill = match hatch {
            Some(colour) => format!("url(#hatch-{})", colour % COLOURS),
            None => String::new(),
        };
        let place: [(&'static str, &dyn Display); 6] = [
            ("class", &class),
            ("x", &Px(left)),
            ("y", &Px(top)),
            ("width", &Px(width)),
            ("height", &Px(height)),
            ("fill", &fill),
        ];
        let used = if hatch.is_some() { 6 } else { 5 };
        self.markup.empty("rect", &place[..used]);
    }

    /// The mark of one series: each number of it has another shape.
    pub fn marker(&mut self, series: usize, hollow: bool, x: f64, y: f64) {
        let class = if hollow { "marker hollow" } else { "marker" };
        // Corners, the turn of the first one, and the radius that makes the shapes look alike in size.
        let (corners, turn, radius) = match series % COLOURS {
            0 => (24, 0.0, 4.2),
            1 => (4, 0.125, 5.2),
            2 => (3, 0.0, 5.6),
            3 => (4, 0.0, 5.6),
            4 => (3, 0.5, 5.6),
            5 => (5, 0.0, 5.2),
            6 => (6, 0.25, 5.2),
            _ => (2, 0.125, 6.5),
        };
        if corners == 2 {
            let d = 3.8;
            self.line("marker cross", (x - d, y - d), (x + d, y + d));
            self.line("marker cross", (x - d, y + d), (x + d, y - d));
            return;
        }
        let corner = |index: usize| {
            let angle = (index as f64 / corners as f64 + turn) * std::f64::consts::TAU;
            (x + radius * angle.sin(), y - radius * angle.cos())
        };
        let points: Vec<_> = (0..corners).map(corner).collect();
        self.polygon(class, &points);
    }

    /// Opens a group of one colour.
    pub fn coloured(&mut self, colour: usize) {
        self.markup.open("g", &[("class", &format_args!("c{}", colour % COLOURS))]);
    }

    /// Opens the group that is the mark of a measurement.
    ///
    /// What another panel shows already is marked as shown again.
    pub fn measurement(&mut self, entry: &Entry, colour: usize, again: bool) {
        let name = if again { "data-again" } else { "data-mark" };
        let class = format!("mark c{}", colour % COLOURS);
        self.markup.open("g", &[("class", &class), (name, &entry.id())]);
        self.markup.element("title", &[], &tooltip(entry));
    }

    /// Closes a group.
    pub fn close(&mut self) {
        self.markup.close();
    }

    /// The horizontal axis below an area, with lines through it.
    pub fn horizontal(&mut self, area: Area, ticks: &[Tick], title: &str) {
        for tick in ticks {
            let x = area.x(tick.at);
            self.line("grid", (x, area.top), (x, area.bottom()));
            self.text(x, area.bottom() + 16.0, "tick", "middle", &tick.label);
        }
        self.line("axis", (area.left, area.bottom()), (area.right(), area.bottom()));
        let middle = area.x(0.5);
        self.text(middle, area.bottom() + 34.0, "title x", "middle", &title);
    }

    /// The vertical axis left of an area, with lines through it.
    pub fn vertical(&mut self, area: Area, ticks: &[Tick], title: &str, title_x: f64) {
        for tick in ticks {
            let y = area.y(tick.at);
            self.line("grid", (area.left, y), (area.right(), y));
            self.text(area.left - 7.0, y + 4.0, "tick", "end", &tick.label);
        }
        self.line("axis", (area.left, area.top), (area.left, area.bottom()));
        self.upwards(title_x, area.y(0.5), "title y", &title);
    }
}

fn coordinates(points: &[(f64, f64)]) -> String {
    let points: Vec<String> =
        points.iter().map(|(x, y)| format!("{},{}", Px(*x), Px(*y))).collect();
    points.join(" ")
}

/// The lines of a panel's title.
pub(super) fn title_lines(title: &str, width: f64) -> Vec<String> {
    words::wrapped(title, (width / TITLE_CHARACTER) as usize)
}

/// The letters of what has to be known before a number is used.
pub(super) fn letters(row: &Row) -> String {
    crate::report::notes::letters(row)
}
