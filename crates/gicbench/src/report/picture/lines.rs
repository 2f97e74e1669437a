//! Lines and points along a numeric axis, a name at the end of each line.

use super::bars::titled;
use super::frame::{Area, CHARACTER, COLOURS, Canvas, TITLE_LINE, title_lines};
use super::plan::{Fact, Panel, Picture, Shape, labelled};
use super::scale::{Scale, is_drawable};
use super::{has_whiskers, tail};
use crate::report::entry::{Coordinate, Entry, grouped};
use crate::report::words;

const LEFT: f64 = 62.0;
/// Room above the plot, below the title.
const TOP: f64 = 11.0;
/// Width of a panel with the names at its right.
const WIDTH: f64 = 540.0;
/// Least width of the plot, and its height.
const PLOT: (f64, f64) = (280.0, 220.0);
const BELOW: f64 = 44.0;
/// Height of the plot of a companion, and its distance.
const COMPANION: (f64, f64) = (80.0, 28.0);
/// Room inside the plot on both sides of the points, of its width.
const INSET: f64 = 0.04;
/// Longest line of a name, in characters.
const LONGEST: usize = 28;
/// Height of a line of a name, and distance of two names.
const NAME: (f64, f64) = (13.0, 3.0);

/// A line with its name.
struct Line<'a> {
    name: String,
    number: usize,
    /// Positions on the horizontal axis, and the measurements.
    points: Vec<(f64, Entry<'a>)>,
    /// Whether another panel shows it too.
    again: bool,
}

/// How the panels of a picture are drawn alike.
struct Style<'p> {
    picture: &'p Picture<'p>,
    /// What tells lines apart in any of the panels, and the lines by that, in the order of their colours.
    told: Vec<String>,
    lines: Vec<Vec<String>>,
    along: Scale,
    along_values: Vec<f64>,
    along_title: String,
    along_name: &'p str,
    values: &'p Scale,
    joined: bool,
    whiskers: bool,
    companion: Option<(Fact, Scale)>,
    name_width: f64,
    title_width: f64,
    top: f64,
    height: f64,
}

/// Draws the panels of a picture.
pub(super) fn draw(picture: &Picture, entries: &[Entry], values: &Scale) -> Vec<Canvas> {
    let (along_name, along_title, companion) = match &picture.shape {
        Shape::Lines { along, companion } => (along.as_str(), words::axis_title(along), *companion),
        Shape::Points { along } => (along.name, along.title.to_owned(), None),
        Shape::Bars => return Vec::new(),
    };
    let along_values: Vec<f64> = entries.iter().filter_map(|e| place(&picture.shape, e)).collect();
    let Some(along) = Scale::along(&along_values) else { return Vec::new() };
    let mut told: Vec<String> = Vec::new();
    for name in picture.panels.iter().flat_map(|panel| &panel.told) {
        if !told.contains(name) {
            told.push(name.clone());
        }
    }
    let lines = grouped(entries, |entry| key(entry, &told)).into_iter().map(|(key, _)| key);
    let lines = lines.collect();
    // Every panel has room for the names of the one that needs most.
    let (mut longest, mut height) = (0, PLOT.1);
    for panel in &picture.panels {
        let lines = grouped(&panel.entries, |entry| key(entry, &panel.told));
        let names = lines.iter().map(|(_, points)| line_name(points, &panel.told));
        let figures = panel.entries.iter().filter_map(|entry| entry.row.reference.as_ref());
        let mut figures: Vec<String> = figures.map(|f| published_label(f.value)).collect();
        figures.dedup();
        let names = names.chain(figures).map(|name| words::wrapped(&name, LONGEST));
        let names: Vec<Vec<String>> = names.collect();
        height = height.max(names.iter().map(|lines| name_height(lines)).sum());
        let lengths = names.iter().flatten().map(|line| line.chars().count());
        longest = longest.max(lengths.max().unwrap_or(0));
    }
    let companion = companion.and_then(|fact| {
        let facts: Vec<f64> = entries.iter().filter_map(|entry| entry.fact(fact.name)).collect();
        Some((fact, Scale::linear(facts)?))
    });
    let name_width = longest as f64 * CHARACTER + if longest > 0 { 24.0 } else { 8.0 };
    let title_width = LEFT + (WIDTH - LEFT - name_width).max(PLOT.0) + name_width;
    let titles = picture
        .panels
        .iter()
        .map(|panel| title_lines(&titled(&picture.title, &panel.title), title_width).len());
    let style = Style {
        top: TOP + TITLE_LINE * titles.max().unwrap_or(1) as f64,
        height,
        title_width,
        picture,
        told,
        lines,
        along,
        along_values,
        along_title,
        along_name,
        values,
        joined: matches!(picture.shape, Shape::Lines { .. }),
        whiskers: has_whiskers(picture),
        companion,
        name_width,
    };
    picture.panels.iter().map(|panel| style.panel(panel)).collect()
}

/// Where a measurement stands on the horizontal axis.
fn place(shape: &Shape, entry: &Entry) -> Option<f64> {
    let value = match shape {
        Shape::Lines { along, .. } => match entry.coordinate(along)? {
            Coordinate::Number(value) => value,
            Coordinate::Word(_) => return None,
        },
        Shape::Points { along, .. } => entry.fact(along.name)?,
        Shape::Bars => return None,
    };
    Some(value).filter(|value| is_drawable(*value))
}

fn key(entry: &Entry, told: &[String]) -> Vec<String> {
    told.iter().map(|name| entry.show(name)).collect()
}

fn name(entry: &Entry, told: &[String]) -> String {
    let parts: Vec<String> = told.iter().filter_map(|name| labelled(entry, name)).collect();
    if parts.is_empty() && !told.is_empty() {
        return format!("no {}", told.join(", no "));
    }
    parts.join(", ")
}

/// The name of a line, with the letter of an unsafe mode where all of it is unsafe.
fn line_name(points: &[Entry], told: &[String]) -> String {
    let name = points.first().map_or_else(String::new, |entry| name(entry, told));
    if name.is_empty() || !points.iter().all(|entry| entry.row.unsafe_mode.is_some()) {
        return name;
    }
    format!("{name} (U)")
}

impl Style<'_> {
    fn panel(&self, panel: &Panel) -> Canvas {
        let title = titled(&self.picture.title, &panel.title);
        let mut canvas = Canvas::new(title.clone());
        let width = (WIDTH - LEFT - self.name_width).max(PLOT.0);
        let area = Area { left: LEFT, top: self.top, width, height: self.height };
        let lines = self.lines(panel);
        canvas.heading(&title_lines(&title, self.title_width));

        let unit = words::unit(&self.picture.unit);
        let vertical = format!("{} ({unit})", self.picture.title);
        canvas.vertical(area, &self.values.ticks(), &vertical, 14.0);
        let below = match &self.companion {
            Some((fact, scale)) => {
                let area = Area { top: area.bottom() + COMPANION.1, height: COMPANION.0, ..area };
                self.ticks(&mut canvas, Area { top: self.top, height: self.height, ..area }, false);
                canvas.vertical(area, &coarse(scale), "", 14.0);
                canvas.text(area.left, area.top - 8.0, "inside", "start", &fact.title);
                self.ticks(&mut canvas, area, true);
                for line in &lines {
                    self.companion(&mut canvas, area, line, *fact, scale);
                }
                area
            }
            None => {
                self.ticks(&mut canvas, area, true);
                area
            }
        };
        let published = self.published(&mut canvas, area, panel);
        for line in &lines {
            self.line(&mut canvas, area, line);
        }
        self.ends(&mut canvas, area, &lines, published);
        canvas.size(area.right() + self.name_width, below.bottom() + BELOW);
        canvas
    }

    fn lines<'e>(&self, panel: &Panel<'e>) -> Vec<Line<'e>> {
        let lines = grouped(&panel.entries, |entry| key(entry, &panel.told));
        let known = |members: &[Entry]| {
            let own = members.first().map(|entry| key(entry, &self.told));
            self.lines.iter().position(|line| Some(line) == own.as_ref()).unwrap_or(0)
        };
        let mut numbers: Vec<usize> = lines.iter().map(|(_, members)| known(members)).collect();
        let mut colours: Vec<usize> = numbers.iter().map(|number| number % COLOURS).collect();
        colours.sort_unstable();
        // One line has one colour in all panels, unless two of a panel would have the same.
        if colours.windows(2).any(|pair| pair[0] == pair[1]) {
            numbers = (0..lines.len()).collect();
        }
        lines
            .into_iter()
            .zip(numbers)
            .map(|((_, members), number)| {
                let name = line_name(&members, &panel.told);
                let shape = &self.picture.shape;
                let mut points: Vec<_> =
                    members.into_iter().filter_map(|e| Some((place(shape, &e)?, e))).collect();
                points.sort_by(|a, b| a.0.total_cmp(&b.0));
                let again = points.iter().any(|(_, entry)| panel.again.contains(&entry.id()));
                Line { name, number, points, again }
            })
            .collect()
    }

    fn x(&self, area: Area, value: f64) -> f64 {
        area.x(INSET + (1.0 - 2.0 * INSET) * self.along.position(value))
    }

    fn ticks(&self, canvas: &mut Canvas, area: Area, labelled: bool) {
        let room = area.width / CHARACTER;
        let mut ticks = if self.joined {
            let label = |value| words::axis_value(self.along_name, value);
            self.along.ticks_at(&self.along_values, label, room)
        } else {
            self.along.ticks()
        };
        for tick in &mut ticks {
            tick.at = INSET + (1.0 - 2.0 * INSET) * tick.at;
            if !labelled {
                tick.label.clear();
            }
        }
        canvas.horizontal(area, &ticks, if labelled { &self.along_title } else { "" });
    }

    fn line(&self, canvas: &mut Canvas, area: Area, line: &Line) {
        let at = |(x, entry): &(f64, Entry)| {
            let value = Some(entry.typical()).filter(|value| is_drawable(*value))?;
            Some((self.x(area, *x), area.y(self.values.position(value))))
        };
        canvas.coloured(line.number);
        for pair in line.points.windows(2).filter(|_| self.joined) {
            if let (Some(from), Some(to)) = (at(&pair[0]), at(&pair[1])) {
                let stand_in = pair.iter().any(|(_, entry)| entry.row.stand_in);
                canvas.line(if stand_in { "line dashed" } else { "line" }, from, to);
            }
        }
        canvas.close();
        // What the name of the line says isn't said at each point.
        let of_all = !line.name.is_empty()
            && line.points.iter().all(|(_, entry)| entry.row.unsafe_mode.is_some());
        for point in &line.points {
            let Some((x, y)) = at(point) else { continue };
            let entry = &point.1;
            canvas.measurement(entry, line.number, line.again);
            if let Some(tail) = tail(entry).filter(|_| self.whiskers) {
                let far = area.y(self.values.position(tail));
                // Beside each other, so that neither hides the other.
                let x = x + if line.number.is_multiple_of(2) { -2.5 } else { 2.5 };
                canvas.line("whisker", (x, y), (x, far));
                canvas.line("whisker", (x - 2.5, far), (x + 2.5, far));
            }
            canvas.marker(line.number, entry.row.stand_in, x, y);
            if entry.row.unsafe_mode.is_some() && !of_all {
                canvas.text(x, y - 7.0, "unsafe-letter", "middle", &"U");
            }
            canvas.close();
        }
    }

    fn companion(&self, canvas: &mut Canvas, area: Area, line: &Line, fact: Fact, scale: &Scale) {
        let at = |(x, entry): &(f64, Entry)| {
            let value = entry.fact(fact.name).filter(|value| is_drawable(*value))?;
            Some((self.x(area, *x), area.y(scale.position(value))))
        };
        canvas.coloured(line.number);
        for pair in line.points.windows(2) {
            if let (Some(from), Some(to)) = (at(&pair[0]), at(&pair[1])) {
                canvas.line("line thin", from, to);
            }
        }
        for point in &line.points {
            if let Some((x, y)) = at(point) {
                canvas.marker(line.number, point.1.row.stand_in, x, y);
            }
        }
        canvas.close();
    }

    /// Published figures: a line where one stands beside several points, else a diamond at its point. Gives
    /// the heights of the lines, with their names.
    fn published(&self, canvas: &mut Canvas, area: Area, panel: &Panel) -> Vec<(f64, String)> {
        let mut named = Vec::new();
        let beside: Vec<Entry> = panel
            .entries
            .iter()
            .copied()
            .filter(|e| e.row.reference.as_ref().is_some_and(|f| is_drawable(f.value)))
            .collect();
        let figure = |entry: &Entry| entry.row.reference.as_ref().map(|figure| figure.value);
        for (figure, entries) in grouped(&beside, figure) {
            let Some(value) = figure else { continue };
            let y = area.y(self.values.position(value));
            let comparable = entries.iter().all(|entry| {
                !entry.row.stand_in && entry.row.reference.as_ref().is_some_and(|f| f.comparable)
            });
            let class = if comparable { "published" } else { "published aside" };
            let places: Vec<f64> =
                entries.iter().filter_map(|entry| place(&self.picture.shape, entry)).collect();
            let several = places.iter().any(|place| Some(place) != places.first());
            let label = published_label(value);
            if several {
                canvas.line(class, (area.left, y), (area.right(), y));
                named.push((y, label));
            } else if let Some(x) = places.first().map(|place| self.x(area, *place)) {
                let d = 6.0;
                let corners = [(x, y - d), (x + d, y), (x, y + d), (x - d, y)];
                canvas.polygon(class, &corners);
                let near_the_end = x > area.x(0.5);
                let (text_x, anchor) =
                    if near_the_end { (x - 10.0, "end") } else { (x + 10.0, "start") };
                canvas.text(text_x, y + 4.0, "published-label", anchor, &label);
            }
        }
        named
    }

    /// Names at the ends of the lines, far enough apart to be read.
    fn ends(&self, canvas: &mut Canvas, area: Area, lines: &[Line], published: Vec<(f64, String)>) {
        let mut ends: Vec<End> = lines
            .iter()
            .filter(|line| !line.name.is_empty())
            .filter_map(|line| {
                let (x, entry) = line.points.last()?;
                let x = self.x(area, *x) + 6.0;
                let y = area.y(self.values.position(entry.typical()));
                Some(End { x, y, name: line.name.clone(), line: Some(line) })
            })
            .collect();
        let published = published.into_iter();
        ends.extend(published.map(|(y, name)| End { x: area.right(), y, name, line: None }));
        ends.sort_by(|a, b| a.y.total_cmp(&b.y));
        let height = |end: &End| name_height(&words::wrapped(&end.name, LONGEST));
        let wanted: Vec<(f64, f64)> = ends.iter().map(|end| (end.y, height(end))).collect();
        let places = spread(&wanted, area.top - 3.0, area.bottom() + 11.0);
        for (end, place) in ends.into_iter().zip(places) {
            let from = area.right() + 2.0;
            if let Some(line) = end.line {
                canvas.coloured(line.number);
                canvas.path("leader", &[(end.x, end.y), (from, place), (from + 4.0, place)]);
                let stand_in = line.points.iter().any(|(_, entry)| entry.row.stand_in);
                canvas.marker(line.number, stand_in, from + 10.0, place);
                canvas.close();
            } else {
                canvas.path("leader", &[(end.x, end.y), (from, place), (from + 12.0, place)]);
            }
            let lines = words::wrapped(&end.name, LONGEST);
            let first = place + 4.0 - (lines.len() as f64 - 1.0) * NAME.0 / 2.0;
            for (index, line) in lines.iter().enumerate() {
                canvas.text(from + 18.0, first + NAME.0 * index as f64, "name", "start", line);
            }
        }
    }
}

/// What stands at the end of a line.
struct End<'l, 'e> {
    x: f64,
    y: f64,
    name: String,
    /// The line; none for a published figure's.
    line: Option<&'l Line<'e>>,
}

fn name_height(lines: &[String]) -> f64 {
    lines.len() as f64 * NAME.0 + NAME.1
}

fn published_label(value: f64) -> String {
    format!("published {}", words::printed(value))
}

/// Fewer ticks, for a low plot.
fn coarse(scale: &Scale) -> Vec<super::scale::Tick> {
    let ticks = scale.ticks();
    let last = ticks.len().saturating_sub(1);
    ticks.into_iter().enumerate().filter(|(i, _)| *i == 0 || *i == last).map(|(_, t)| t).collect()
}

/// Middles of texts of some heights, in rising order and as near to the wanted ones as they can be without
/// touching, between two ends where there is room for all.
fn spread(wanted: &[(f64, f64)], low: f64, high: f64) -> Vec<f64> {
    let mut places: Vec<f64> = wanted.iter().map(|(place, _)| *place).collect();
    let mut least = low;
    for (place, (_, height)) in places.iter_mut().zip(wanted) {
        *place = place.max(least + height / 2.0);
        least = *place + height / 2.0;
    }
    let mut most = high.max(low + wanted.iter().map(|(_, height)| height).sum::<f64>());
    for (place, (_, height)) in places.iter_mut().zip(wanted).rev() {
        *place = place.min(most - height / 2.0);
        most = *place - height / 2.0;
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_keep_their_distance_and_stay_between_the_ends() {
        for (wanted, expected) in [
            (&[(10.0, 10.0), (50.0, 10.0)] as &[(f64, f64)], &[10.0, 50.0] as &[f64]),
            (&[(10.0, 10.0), (12.0, 10.0), (13.0, 10.0)], &[10.0, 20.0, 30.0]),
            (&[(10.0, 20.0), (12.0, 10.0)], &[10.0, 25.0]),
            (&[(95.0, 10.0), (96.0, 20.0), (97.0, 10.0)], &[65.0, 80.0, 95.0]),
            (&[(-5.0, 10.0), (200.0, 10.0)], &[5.0, 95.0]),
            (&[], &[]),
        ] {
            assert_eq!(spread(wanted, 0.0, 100.0), expected);
        }
        let many = spread(&[(0.0, 10.0); 20], 0.0, 100.0);
        assert!(many.windows(2).all(|pair| pair[1] - pair[0] >= 10.0), "{many:?}");
    }
}
