//! The first tables: the figures beside the published ones, and what follows from several of them.

use crate::published::Published;
use crate::record::Row;
use crate::report::derived::derive;
use crate::report::entry::{Entry, Source};
use crate::report::figures;
use crate::report::markup::{Markup, Px};
use crate::report::{notes, words};

/// The figures.
pub(super) fn figures(page: &mut Markup, sources: &[Source], all: &[Entry], published: &Published) {
    page.line();
    page.element("h2", &[], &"The figures");
    let lines = figures::figures(sources, all);
    if lines.is_empty() {
        let text = if all.is_empty() {
            "Nothing was measured."
        } else {
            "None of the measurements is one of the figures that are usually compared."
        };
        page.element("p", &[("class", &"none")], &text);
        return;
    }
    let several = sources.len() > 1;
    page.open("div", &[("class", &"scroll")]);
    page.open("table", &[("class", &"figures")]);
    page.open("thead", &[]);
    if several {
        page.open("tr", &[]);
        page.element("th", &[("colspan", &2)], &"");
        for source in sources {
            page.element(
                "th",
                &[("colspan", &4), ("class", &"group"), ("scope", &"colgroup")],
                &source.label,
            );
        }
        page.element("th", &[("colspan", &2), ("class", &"group")], &"");
        page.close();
    }
    page.open("tr", &[]);
    for name in ["figure", "run by"] {
        page.element("th", &[("scope", &"col")], &name);
    }
    for _ in sources {
        page.element("th", &[("scope", &"col"), ("class", &"n group")], &"p50");
        page.element("th", &[("scope", &"col"), ("class", &"n")], &"p99");
        page.element("th", &[("scope", &"col"), ("class", &"n")], &"ratio");
        page.element("th", &[("scope", &"col")], &"note");
    }
    page.element("th", &[("scope", &"col"), ("class", &"n group")], &"published");
    page.element("th", &[("scope", &"col")], &"unit");
    page.close();
    page.close();
    page.open("tbody", &[]);
    let mut group = "";
    let columns = 4 + 4 * sources.len();
    for line in &lines {
        let Some(any) = line.any() else { continue };
        if group != line.transport {
            group = line.transport;
            heading(page, group, columns);
        }
        page.open("tr", &[]);
        page.open("th", &[("scope", &"row")]);
        page.text(&line.title);
        if !line.at.is_empty() {
            page.element("span", &[("class", &"at")], &format!(" {}", line.at));
        }
        page.close();
        page.element("td", &[], &line.by);
        for cell in &line.cells {
            numbers(page, cell.map(|entry| entry.row));
        }
        let figure = any.reference.as_ref().map(|figure| words::printed(figure.value));
        let figure = figure.unwrap_or_else(|| words::NONE.to_owned());
        page.element("td", &[("class", &"n group")], &figure);
        page.element("td", &[], &words::unit(&any.unit));
        page.close();
    }
    page.close();
    page.close();
    page.close();
    page.open("ul", &[("class", &"notes")]);
    page.element(
        "li",
        &[],
        &"One thread and an 8-byte put, at most one outstanding, unless the line says otherwise. A ratio is measured \
          over published, and stands only where the same thing was measured.",
    );
    if lines.iter().flat_map(|line| line.cells.iter().flatten()).any(|e| e.row.p50.is_none()) {
        page.element("li", &[], &words::MEAN);
    }
    for (letter, why) in notes::explained(all) {
        page.element("li", &[], &format!("{letter}, {}: {why}.", notes::meaning(letter)));
    }
    page.element("li", &[], &format!("Published: {}.", published.source()));
    page.close();
}

/// A row that names the transport of those below it.
fn heading(page: &mut Markup, name: &str, columns: usize) {
    page.open("tr", &[("class", &"heading")]);
    page.element("th", &[("scope", &"rowgroup"), ("colspan", &columns)], &name);
    page.close();
}

fn numbers(page: &mut Markup, row: Option<&Row>) {
    let Some(row) = row else {
        for class in ["n group", "n", "n", ""] {
            page.element("td", &[("class", &class)], &"");
        }
        return;
    };
    page.element("td", &[("class", &"n strong group")], &words::median(row));
    page.element("td", &[("class", &"n")], &words::number_or_none(row.p99));
    page.element("td", &[("class", &"n")], &words::ratio(row.ratio()));
    page.element("td", &[("class", &"letters")], &notes::letters(row));
}

/// The quantities that follow from several measurements.
pub(super) fn derived(page: &mut Markup, sources: &[Source], published: &Published) {
    let derived: Vec<_> = sources
        .iter()
        .flat_map(|source| {
            let all = derive(&source.record.measurements, published);
            all.into_iter().map(|one| (source.label.as_str(), one))
        })
        .collect();
    if derived.is_empty() {
        return;
    }
    let several = sources.len() > 1;
    let mut derived = derived;
    derived.sort_by_key(|(_, one)| one.transport);
    page.element("h3", &[], &"Derived from several points, by their medians");
    page.open("div", &[("class", &"scroll")]);
    page.open("table", &[("class", &"derived")]);
    page.open("thead", &[]);
    page.open("tr", &[]);
    let heads = [
        ("machine", ""),
        ("quantity", ""),
        ("run by", ""),
        ("measured", "n"),
        ("published", "n"),
        ("whose", ""),
        ("ratio", "n"),
        ("note", ""),
    ];
    for (head, class) in heads.iter().skip(usize::from(!several)) {
        page.element("th", &[("scope", &"col"), ("class", class)], head);
    }
    page.close();
    page.close();
    page.open("tbody", &[]);
    let columns = heads.len() - usize::from(!several);
    let mut group = "";
    for (label, one) in &derived {
        if group != one.transport {
            group = one.transport;
            heading(page, group, columns);
        }
        page.open("tr", &[]);
        if several {
            page.element("td", &[], label);
        }
        page.open("th", &[("scope", &"row")]);
        page.text(&one.what);
        if !one.at.is_empty() {
            page.element("span", &[("class", &"at")], &format!(" {}", one.at));
        }
        page.close();
        page.element("td", &[], &one.by);
        page.element("td", &[("class", &"n strong")], &one.shown());
        let published = one.published_shown().unwrap_or_else(|| words::NONE.to_owned());
        page.element("td", &[("class", &"n")], &published);
        page.element("td", &[], &one.published.map_or("", |(_, whose)| whose));
        page.element("td", &[("class", &"n")], &words::ratio(one.ratio));
        page.element("td", &[("class", &"letters")], &one.notes);
        page.close();
    }
    page.close();
    page.close();
    page.close();
}

/// How the pictures are read.
pub(super) fn legend(page: &mut Markup) {
    page.open("div", &[("class", &"legend")]);
    swatch(page, "measured, median", |svg| bar(svg, "currentColor"));
    swatch(page, "a stand-in (S)", |svg| bar(svg, "url(#hatch-0)"));
    swatch(page, "on a logarithmic scale", |svg| {
        circle(svg, 9.0, "marker");
        circle(svg, 23.0, "marker hollow");
    });
    swatch(page, "to the 99th percentile", |svg| {
        line(svg, "whisker", (3.0, 8.0), (29.0, 8.0));
        line(svg, "whisker", (29.0, 4.0), (29.0, 12.0));
    });
    swatch(page, "published, the same thing", |svg| tick(svg, "published"));
    swatch(page, "published, for orientation only", |svg| tick(svg, "published aside"));
    swatch(page, "an unsafe mode (U)", |svg| {
        svg.element("text", &[("class", &"unsafe-letter"), ("x", &12), ("y", &12)], &"U");
    });
    swatch(page, "lines through stand-ins", |svg| {
        line(svg, "line dashed", (2.0, 8.0), (30.0, 8.0));
        circle(svg, 16.0, "marker hollow");
    });
    page.close();
}

fn swatch(page: &mut Markup, text: &str, draw: impl Fn(&mut Markup)) {
    page.open("span", &[]);
    page.open("svg", &[("width", &32), ("height", &16), ("aria-hidden", &"true")]);
    page.open("g", &[("class", &"c0")]);
    draw(page);
    page.close();
    page.close();
    page.text(&text);
    page.close();
}

fn bar(svg: &mut Markup, fill: &str) {
    svg.empty(
        "rect",
        &[
            ("class", &"bar"),
            ("x", &2),
            ("y", &3),
            ("width", &28),
            ("height", &10),
            ("fill", &fill),
        ],
    );
}

fn circle(svg: &mut Markup, x: f64, class: &str) {
    svg.empty("circle", &[("class", &class), ("cx", &Px(x)), ("cy", &8), ("r", &Px(4.2))]);
}

fn line(svg: &mut Markup, class: &str, from: (f64, f64), to: (f64, f64)) {
    svg.empty(
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

fn tick(svg: &mut Markup, class: &str) {
    line(svg, class, (16.0, 1.0), (16.0, 15.0));
    svg.empty("polygon", &[("class", &"published-head"), ("points", &"12,0 20,0 16,5.5")]);
}
