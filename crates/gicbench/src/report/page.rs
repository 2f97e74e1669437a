//! The page: head, figures, derived quantities, the libraries, and a section an experiment.

mod about;
mod beside;
mod rows;
mod summary;

use super::entry::{Entry, Source, entries};
use super::markup::{Markup, Px};
use super::picture;
use super::{missing, notes, words};
use crate::plan::Registry;
use crate::published::Published;

const STYLE: &str = include_str!("style.css");

/// Nothing is fetched and nothing runs, whatever a record holds.
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";

/// Writes the whole page.
pub(super) fn page(sources: &[Source], registry: &Registry, published: &Published) -> String {
    let all = entries(sources);
    let experiments = experiments(sources, registry);
    let mut page = Markup::default();
    page.own("<!DOCTYPE html>\n");
    page.open("html", &[("lang", &"en")]);
    page.open("head", &[]);
    page.empty("meta", &[("charset", &"utf-8")]);
    page.empty("meta", &[("http-equiv", &"Content-Security-Policy"), ("content", &POLICY)]);
    page.empty(
        "meta",
        &[("name", &"viewport"), ("content", &"width=device-width, initial-scale=1")],
    );
    page.element("title", &[], &about::title(sources));
    page.own("<style>\n");
    page.own(STYLE);
    page.own("</style>");
    page.close();
    page.line();
    page.open("body", &[]);
    patterns(&mut page);
    about::head(&mut page, sources);
    let libraries = beside::find(sources, &all, published);
    if !experiments.is_empty() {
        page.open("nav", &[("aria-label", &"experiments")]);
        page.open("ul", &[]);
        if libraries.is_some() {
            page.open("li", &[]);
            let target = format!("#{}", beside::TARGET);
            page.element("a", &[("href", &target)], &beside::TITLE);
            page.close();
        }
        for (number, experiment) in experiments.iter().enumerate() {
            page.open("li", &[]);
            let target = format!("#experiment-{}", number + 1);
            page.element("a", &[("href", &target)], &experiment.name);
            page.close();
        }
        page.close();
        page.close();
    }
    summary::figures(&mut page, sources, &all, published);
    summary::derived(&mut page, sources, published);
    for section in missing::missing(sources, &all) {
        beside::table(&mut page, &section);
    }
    if !all.is_empty() {
        summary::legend(&mut page);
    }
    if let Some(libraries) = &libraries {
        beside::section(&mut page, libraries);
    }
    for (number, experiment) in experiments.iter().enumerate() {
        let id = format!("experiment-{}", number + 1);
        let entries: Vec<Entry> = all
            .iter()
            .filter(|entry| entry.row.point.experiment == experiment.name)
            .copied()
            .collect();
        section(&mut page, &id, experiment, sources, &entries);
    }
    page.line();
    page.element(
        "footer",
        &[],
        &format!(
            "Made by gicbench {} from {} alone.",
            env!("CARGO_PKG_VERSION"),
            words::counted(sources.len(), "run record")
        ),
    );
    let mut text = page.finish();
    text.push('\n');
    text
}

/// An experiment of the records.
struct Experiment {
    name: String,
    question: Option<&'static str>,
}

/// The experiments that the records name, in the order in which this program lists them, then the others.
fn experiments(sources: &[Source], registry: &Registry) -> Vec<Experiment> {
    let mut names: Vec<&str> = Vec::new();
    for Source { record, .. } in sources {
        let measured = record.measurements.iter().map(|row| &row.point);
        let missing = record.not_run.iter().chain(&record.failed).map(|missing| &missing.point);
        for point in measured.chain(missing) {
            if !names.contains(&point.experiment.as_str()) {
                names.push(&point.experiment);
            }
        }
    }
    let place = |name: &str| registry.iter().position(|experiment| experiment.name() == name);
    names.sort_by_key(|name| place(name).unwrap_or(usize::MAX));
    let question = |name: &str| Some(registry.get(place(name)?)?.question());
    names
        .into_iter()
        .map(|name| Experiment { name: name.to_owned(), question: question(name) })
        .collect()
}

fn section(
    page: &mut Markup,
    id: &str,
    experiment: &Experiment,
    sources: &[Source],
    entries: &[Entry],
) {
    page.line();
    page.open("section", &[("id", &id)]);
    page.element("h2", &[], &experiment.name);
    if let Some(question) = experiment.question {
        page.element("p", &[("class", &"question")], &question);
    }
    if entries.is_empty() {
        page.element("p", &[("class", &"none")], &"Nothing was measured.");
    }
    rows::shared(page, entries);
    picture::draw(page, &picture::pictures(&experiment.name, entries));
    rows::resources(page, entries);
    section_notes(page, experiment, sources, entries);
    if !entries.is_empty() {
        rows::rows(page, entries);
    }
    page.close();
}

/// What has to be known before the numbers of an experiment are used.
fn section_notes(
    page: &mut Markup,
    experiment: &Experiment,
    sources: &[Source],
    entries: &[Entry],
) {
    let mut lines: Vec<String> = Vec::new();
    let samples = entries.iter().map(|entry| entry.row.samples);
    if let (Some(least), Some(most)) = (samples.clone().min(), samples.max()) {
        let (least, most) = (words::count(least as u64), words::count(most as u64));
        lines.push(if least == most {
            format!("Samples: {least} at each point.")
        } else {
            format!("Samples: {least} to {most} at a point.")
        });
    }
    if entries.iter().any(|entry| entry.row.p50.is_none()) {
        lines.push(words::MEAN.to_owned());
    }
    for (letter, why) in notes::explained(entries) {
        lines.push(format!("{letter}, {}: {why}.", notes::meaning(letter)));
    }
    let unchecked = entries.iter().filter(|entry| entry.row.wrong.is_none()).count();
    if unchecked > 0 {
        lines
            .push(format!("Data was not checked in {}.", words::counted(unchecked, "measurement")));
    }
    let undrawable = entries.iter().filter(|e| !picture::is_drawable(e.typical())).count();
    if undrawable > 0 {
        lines.push(format!(
            "{} too large or too small for any picture: the table has them.",
            words::counted(undrawable, "value")
        ));
    }
    lines.extend(notes::published(entries));
    for source in sources {
        let of = if sources.len() > 1 { format!(" in {}", source.label) } else { String::new() };
        for (what, missing) in
            [("Not run", &source.record.not_run), ("Failed", &source.record.failed)]
        {
            let gathered = missing::gathered(missing).into_iter();
            for group in gathered.filter(|group| group.experiment == experiment.name) {
                let points = words::counted(group.points.len(), "point");
                lines.push(format!("{what}{of}: {points}: {}", group.reason));
            }
        }
    }
    if lines.is_empty() {
        return;
    }
    page.open("ul", &[("class", &"notes")]);
    for line in lines {
        page.element("li", &[], &line);
    }
    page.close();
}

/// The hatches of stand-ins, one a colour, which every picture of the page refers to.
fn patterns(page: &mut Markup) {
    page.open(
        "svg",
        &[
            ("width", &"0"),
            ("height", &"0"),
            ("style", &"position:absolute"),
            ("aria-hidden", &"true"),
        ],
    );
    page.open("defs", &[]);
    for colour in 0..8 {
        page.open(
            "pattern",
            &[
                ("id", &format_args!("hatch-{colour}")),
                ("class", &format_args!("c{colour}")),
                ("width", &Px(6.0)),
                ("height", &Px(6.0)),
                ("patternUnits", &"userSpaceOnUse"),
                ("patternTransform", &"rotate(45)"),
            ],
        );
        page.empty(
            "rect",
            &[("class", &"hatch-ground"), ("width", &Px(6.0)), ("height", &Px(6.0))],
        );
        page.empty(
            "line",
            &[
                ("class", &"hatch-line"),
                ("x1", &Px(1.5)),
                ("y1", &Px(0.0)),
                ("x2", &Px(1.5)),
                ("y2", &Px(6.0)),
            ],
        );
        page.close();
    }
    page.close();
    page.close();
}
