//! The tables of the libraries.

use crate::published::Published;
use crate::report::beside::{ABOUT, Beside, Part, STAND_IN, beside};
use crate::report::entry::{Entry, Source};
use crate::report::markup::Markup;
use crate::report::table::{Column, Section};
use crate::report::{notes, picture};

/// What the section is called, and where its link leads.
pub(super) const TITLE: &str = "Beside the libraries";
pub(super) const TARGET: &str = "beside";

/// What the pictures show.
const DRAWN: &str =
    "Each library's default below what its ratio is over; a colour a class, one scale for both.";

/// Everything that the records have of libraries.
pub(super) fn find<'a>(
    sources: &[Source],
    all: &[Entry<'a>],
    published: &Published,
) -> Option<Beside<'a>> {
    beside(sources, all, published)
}

/// Writes it.
pub(super) fn section(page: &mut Markup, beside: &Beside) {
    page.line();
    page.open("section", &[("id", &TARGET)]);
    page.element("h2", &[], &TITLE);
    page.element("p", &[("class", &"question")], &ABOUT);
    page.open("ul", &[("class", &"notes")]);
    page.element("li", &[], &STAND_IN);
    for (letter, why) in &beside.letters {
        page.element("li", &[], &format!("{letter}, {}: {why}.", notes::meaning(*letter)));
    }
    page.close();
    for part in &beside.parts {
        match part {
            Part::Section(section) => table(page, section),
            Part::Picture(picture) => {
                page.element("h3", &[], &"What the submitting thread spends");
                page.element("p", &[("class", &"shared")], &DRAWN);
                picture::draw(page, std::slice::from_ref(picture));
            }
        }
    }
    page.close();
}

/// Writes a table, with its title and its notes.
pub(super) fn table(page: &mut Markup, section: &Section) {
    page.line();
    page.element("h3", &[], &section.title);
    if !section.lead.is_empty() {
        page.element("p", &[("class", &"shared")], &format!("{}.", section.lead));
    }
    page.open("div", &[("class", &"scroll")]);
    page.open("table", &[("class", &"beside")]);
    page.open("thead", &[]);
    page.open("tr", &[]);
    for head in &section.heads {
        page.element("th", &[("scope", &"col"), ("class", &class(head.shape))], &head.name);
    }
    page.close();
    page.close();
    page.open("tbody", &[]);
    for group in &section.groups {
        if !group.path.is_empty() {
            page.open("tr", &[("class", &"heading")]);
            page.open("th", &[("scope", &"rowgroup"), ("colspan", &section.heads.len())]);
            page.text(&group.path);
            if !group.about.is_empty() {
                page.text(&": ");
                page.element("span", &[("class", &"at")], &group.about);
            }
            page.close();
            page.close();
        }
        for row in &group.rows {
            page.open("tr", &[]);
            for (head, cell) in section.heads.iter().zip(row) {
                page.open("td", &[("class", &class(head.shape))]);
                page.text(&cell.text);
                // Room for a letter in all of them, so that the numbers stand below each other.
                if head.shape == Column::Number {
                    page.element("span", &[("class", &"mark")], &cell.letters);
                }
                page.close();
            }
            page.close();
        }
    }
    page.close();
    page.close();
    page.close();
    if section.notes.is_empty() {
        return;
    }
    page.open("ul", &[("class", &"notes")]);
    for note in &section.notes {
        page.element("li", &[], note);
    }
    page.close();
}

fn class(shape: Column) -> &'static str {
    match shape {
        Column::Word => "word",
        Column::Text => "said",
        Column::Number => "n",
    }
}
