//! How names, units and numbers of a record are written for people.

use crate::axes::{AxisId, Domain};
use crate::quantity::Bytes;
use crate::record::Row;

/// What stands where there is nothing.
pub(super) const NONE: &str = "–";

/// What stands where a record should say something and doesn't.
pub(super) const NOT_SAID: &str = "not said";

/// Metrics in words.
const METRICS: &[(&str, &str)] = &[
    ("issue_us", "issue"),
    ("enqueue_us", "enqueue"),
    ("consumed_us", "consumed and seen"),
    ("put_completion_us", "put + completion"),
    ("round_trip_us", "round trip"),
    ("rate_mmsgs", "message rate"),
    ("bandwidth_gbs", "bandwidth"),
];

/// A metric in words; the name itself where it isn't known.
pub(super) fn metric(name: &str) -> String {
    match METRICS.iter().find(|(known, _)| *known == name) {
        Some((_, words)) => (*words).to_owned(),
        None => name.replace('_', " "),
    }
}

/// A unit as it is printed.
pub(super) fn unit(symbol: &str) -> &str {
    match symbol {
        "us" => "µs",
        "Mmsg/s" => "M msg/s",
        other => other,
    }
}

/// The title of an axis along which numbers run: what they count, and their unit.
pub(super) fn axis_title(name: &str) -> String {
    let Some(axis) = AxisId::by_name(name) else {
        return format!("{} (count)", name.replace('_', " "));
    };
    let spec = axis.spec();
    let mut depth = 0;
    let end = spec.help.find(|c| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        depth == 0 && matches!(c, ',' | ':' | ';')
    });
    let what = &spec.help[..end.unwrap_or(spec.help.len())];
    format!("{what} ({})", if is_bytes(name) { "B" } else { "count" })
}

/// Whether the numbers on an axis are sizes.
pub(super) fn is_bytes(name: &str) -> bool {
    AxisId::by_name(name).is_some_and(|axis| matches!(axis.spec().domain, Domain::Bytes { .. }))
}

/// A number on an axis of that name.
pub(super) fn axis_value(name: &str, value: f64) -> String {
    let whole = value >= 0.0 && value.fract() == 0.0 && value < 2f64.powi(53);
    if is_bytes(name) && whole { Bytes(value as u64).to_string() } else { value.to_string() }
}

/// The unit behind a number on an axis of that name, as it is shown.
pub(super) fn axis_unit(name: &str, shown: &str) -> &'static str {
    match is_bytes(name) {
        true if shown.ends_with(['K', 'M', 'G']) => "iB",
        true => " B",
        false => "",
    }
}

/// A measured number: digits as its size deserves.
pub(super) fn number(value: f64) -> String {
    let size = value.abs();
    if !value.is_finite() {
        NONE.to_owned()
    } else if size >= 1e7 || (size > 0.0 && size < 5e-4) {
        format!("{value:.2e}")
    } else {
        let decimals = match size {
            _ if size >= 1000.0 => 0,
            _ if size >= 100.0 => 1,
            _ if size >= 10.0 => 2,
            _ => 3,
        };
        format!("{value:.decimals$}")
    }
}

/// A measured number, or what stands where there is none.
pub(super) fn number_or_none(value: Option<f64>) -> String {
    value.map_or_else(|| NONE.to_owned(), number)
}

/// A difference of measured times in µs, with its sign; less than half a nanosecond is none.
pub(super) fn signed(value: f64) -> String {
    match value {
        _ if value.abs() < 5e-4 => number(0.0),
        less if less < 0.0 => format!("−{}", number(-less)),
        more => {
            let sign = if more.is_finite() { "+" } else { "" };
            format!("{sign}{}", number(more))
        }
    }
}

/// A number as it is, where it is whole, else as a measured one.
pub(super) fn number_or_exact(value: Option<f64>) -> String {
    match value {
        Some(whole) if whole.fract() == 0.0 && whole.abs() < 1e7 => whole.to_string(),
        other => number_or_none(other),
    }
}

/// The median of a measurement; or the mean with a mark, where the samples don't support a median.
pub(super) fn median(row: &Row) -> String {
    match row.p50 {
        Some(value) => number(value),
        None => format!("{}*", number(row.mean)),
    }
}

/// What [`median`]'s mark says.
pub(super) const MEAN: &str = "*: the mean, where the samples are too few for a median.";

/// A ratio of measured over published.
pub(super) fn ratio(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| NONE.to_owned(), |ratio| format!("{ratio:.2}"))
}

/// A published figure, with at least the digits that its source prints.
pub(super) fn printed(value: f64) -> String {
    let shortest = value.to_string();
    let decimals = shortest.split_once('.').map_or(0, |(_, decimals)| decimals.len());
    match value.abs() {
        size if size >= 1e7 || decimals > 6 => number(value),
        size if size < 10.0 && decimals < 2 => format!("{value:.2}"),
        _ => shortest,
    }
}

/// A count with its thousands apart.
pub(super) fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

/// A number of things, with the word for them.
pub(super) fn counted(value: usize, one: &str) -> String {
    format!("{} {one}{}", count(value as u64), if value == 1 { "" } else { "s" })
}

/// A text of at most so many characters.
pub(super) fn shortened(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(most.saturating_sub(1)).collect();
    short.push('…');
    short
}

/// A text as lines of at most so many characters: broken behind a comma, else at a space, and within a word
/// only where the word alone is too long.
pub(super) fn wrapped(text: &str, most: usize) -> Vec<String> {
    let most = most.max(1);
    let length = |text: &str| text.trim_end().chars().count();
    let mut pieces: Vec<String> = Vec::new();
    for part in text.split_inclusive(", ") {
        if length(part) <= most {
            pieces.push(part.to_owned());
            continue;
        }
        for word in part.split_inclusive(' ') {
            let characters: Vec<char> = word.chars().collect();
            let most = if length(word) <= most { characters.len() } else { most };
            pieces.extend(characters.chunks(most).map(String::from_iter));
        }
    }
    let mut lines: Vec<String> = Vec::new();
    for piece in pieces {
        match lines.last_mut() {
            Some(line) if line.chars().count() + length(&piece) <= most => line.push_str(&piece),
            _ => lines.push(piece),
        }
    }
    for line in &mut lines {
        line.truncate(line.trim_end().len());
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::axes::AXES;
    use crate::measurement::Metric;

    #[test]
    fn every_metric_has_words() {
        for one in Metric::ALL {
            assert!(METRICS.iter().any(|(name, _)| *name == one.name()), "{one}");
        }
        assert_eq!(metric("issue_us"), "issue");
        assert_eq!(metric("new_thing"), "new thing");
    }

    #[test]
    fn every_axis_has_a_title_with_a_unit() {
        for axis in AXES {
            let title = axis_title(axis.name);
            let is_balanced = title.matches('(').count() == title.matches(')').count();
            assert!(is_balanced && title.ends_with(')') && title.len() > 8, "{title}");
        }
        assert_eq!(axis_title("payload"), "payload of one operation (B)");
        assert_eq!(axis_title("qps"), "queue pairs (count)");
        assert_eq!(axis_title("unheard_of"), "unheard of (count)");
    }

    #[test]
    fn numbers_keep_the_digits_that_they_deserve() {
        for (value, text) in [
            (0.0, "0.000"),
            (0.0201, "0.020"),
            (9.9996, "10.000"),
            (97.49, "97.49"),
            (123.456, "123.5"),
            (4567.8, "4568"),
            (-1.5, "-1.500"),
            (1.0e-5, "1.00e-5"),
            (2.5e9, "2.50e9"),
            (f64::NAN, NONE),
            (f64::INFINITY, NONE),
        ] {
            assert_eq!(number(value), text);
        }
        for (value, text) in
            [(0.25, "+0.250"), (-12.3456, "−12.35"), (-1e-5, "0.000"), (f64::NAN, NONE)]
        {
            assert_eq!(signed(value), text);
        }
        for (value, text) in
            [(0.7, "0.70"), (4.0, "4.00"), (24.8, "24.8"), (260.0, "260"), (0.135, "0.135")]
        {
            assert_eq!(printed(value), text);
        }
        assert_eq!(axis_value("payload", 4096.0), "4K");
        assert_eq!(axis_value("qps", 4096.0), "4096");
        assert_eq!(axis_value("payload", -1.0), "-1");
        assert_eq!(count(1234567), "1\u{202f}234\u{202f}567");
        assert_eq!(shortened("abcdef", 4), "abc…");
        assert_eq!(shortened("abcd", 4), "abcd");
    }

    #[test]
    fn a_wrapped_text_loses_nothing_but_spaces_at_its_breaks() {
        for (text, most, lines) in [
            ("", 10, &[] as &[&str]),
            ("nic soft", 10, &["nic soft"]),
            ("nic soft, inline on", 12, &["nic soft,", "inline on"]),
            ("nic soft, inline on, qps 8", 20, &["nic soft, inline on,", "qps 8"]),
            ("message rate: nic soft", 14, &["message rate:", "nic soft"]),
            ("abcdefgh ij", 3, &["abc", "def", "gh", "ij"]),
            ("µµµµ", 2, &["µµ", "µµ"]),
            ("a b", 0, &["a", "b"]),
        ] {
            assert_eq!(wrapped(text, most), lines, "{text}");
        }
    }
}
