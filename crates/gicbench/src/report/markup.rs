//! A writer of HTML and SVG that can't be talked into markup: element and attribute names are the
//! program's own, and whatever else is written is text and gets escaped.

use std::fmt::{self, Display, Write};

/// Attributes of an element.
pub(super) type Attributes<'a> = &'a [(&'static str, &'a dyn Display)];

/// A document, or a part of one, as it is written.
#[derive(Debug, Default)]
pub(super) struct Markup {
    out: String,
    open: Vec<&'static str>,
}

impl Markup {
    /// Starts an element.
    pub fn open(&mut self, tag: &'static str, attributes: Attributes) {
        self.start(tag, attributes);
        self.out.push('>');
        self.open.push(tag);
    }

    /// Ends the element that was started last.
    pub fn close(&mut self) {
        if let Some(tag) = self.open.pop() {
            self.out.push_str("</");
            self.out.push_str(tag);
            self.out.push('>');
        }
    }

    /// An element without content.
    pub fn empty(&mut self, tag: &'static str, attributes: Attributes) {
        self.start(tag, attributes);
        self.out.push_str("/>");
    }

    /// An element that holds a text.
    pub fn element(&mut self, tag: &'static str, attributes: Attributes, text: &dyn Display) {
        self.open(tag, attributes);
        self.text(text);
        self.close();
    }

    /// Text.
    pub fn text(&mut self, text: &dyn Display) {
        // Writing to a string doesn't fail, but a Display may: then what it wrote stands.
        let _ = write!(Escaping(&mut self.out), "{text}");
    }

    /// A line of its own, for people who read the source.
    pub fn line(&mut self) {
        self.out.push('\n');
    }

    /// The program's own markup, such as the style sheet.
    pub fn own(&mut self, markup: &'static str) {
        self.out.push_str(markup);
    }

    /// All of another part.
    pub fn append(&mut self, other: Markup) {
        self.out.push_str(&other.finish());
    }

    /// What was written, with every element ended.
    pub fn finish(mut self) -> String {
        while !self.open.is_empty() {
            self.close();
        }
        self.out
    }

    fn start(&mut self, tag: &'static str, attributes: Attributes) {
        self.out.push('<');
        self.out.push_str(tag);
        for (name, value) in attributes {
            self.out.push(' ');
            self.out.push_str(name);
            self.out.push_str("=\"");
            self.text(value);
            self.out.push('"');
        }
    }
}

/// Escapes for text and for attributes in double quotes, in HTML and in SVG.
struct Escaping<'a>(&'a mut String);

impl fmt::Write for Escaping<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            match c {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                '\'' => self.0.push_str("&#39;"),
                _ => self.0.push(plain(c)),
            }
        }
        Ok(())
    }
}

/// A character that shows as itself and nothing more: no control but the white ones, and none that turns
/// the direction of the text around it.
pub(super) fn plain(c: char) -> char {
    let turns =
        matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    if turns || (c.is_control() && !matches!(c, '\n' | '\t')) {
        char::REPLACEMENT_CHARACTER
    } else {
        c
    }
}

/// A length in a picture, in its units.
#[derive(Debug, Clone, Copy)]
pub(super) struct Px(pub f64);

impl Display for Px {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenths = if self.0.is_finite() { (self.0 * 10.0).round() / 10.0 } else { 0.0 };
        // Adding zero makes the negative one positive.
        write!(f, "{}", tenths + 0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_attributes_are_escaped_and_elements_end() {
        let mut markup = Markup::default();
        markup.open("p", &[("title", &"\"'><script>&")]);
        markup.element("b", &[], &"</b><img src=x onerror=alert(1)>");
        markup.empty("rect", &[("x", &Px(-0.04)), ("y", &Px(f64::NAN)), ("width", &Px(1.26))]);
        assert_eq!(
            markup.finish(),
            "<p title=\"&quot;&#39;&gt;&lt;script&gt;&amp;\">\
             <b>&lt;/b&gt;&lt;img src=x onerror=alert(1)&gt;</b>\
             <rect x=\"0\" y=\"0\" width=\"1.3\"/></p>"
        );
    }

    #[test]
    fn controls_and_turns_of_direction_become_visible() {
        let mut markup = Markup::default();
        markup.text(&"a\0b\u{1b}[31m\u{202e}c\n\td\u{85}");
        assert_eq!(markup.finish(), "a\u{fffd}b\u{fffd}[31m\u{fffd}c\n\td\u{fffd}");
    }
}
