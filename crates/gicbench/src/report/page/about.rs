//! The head of the page: what was run, where, with what, and what of it wasn't.

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::Value as Json;

use crate::exit::ExitStatus;
use crate::record::Record;
use crate::report::entry::Source;
use crate::report::markup::Markup;
use crate::report::words::{self, NONE};
use crate::run::status;

/// The page's title.
pub(super) fn title(sources: &[Source]) -> String {
    match sources {
        [one] => format!("gicbench: {}", device(one.record)),
        many => {
            let labels: Vec<&str> = many.iter().map(|source| source.label.as_str()).collect();
            format!("gicbench: {}", labels.join(", "))
        }
    }
}

/// What the record is about, in a few words: its GPUs, or else its CPU.
fn device(record: &Record) -> String {
    let machine = &record.machine;
    let mut gpus = machine.gpus.clone();
    gpus.dedup();
    match (gpus.as_slice(), &machine.cpu) {
        ([], Some(cpu)) => {
            format!("{cpu}, {}", words::counted(machine.cores_allowed.len(), "core"))
        }
        ([], None) => machine.architecture.clone(),
        // What follows the name in brackets is below.
        (gpus, _) => {
            let names = gpus.iter().map(|gpu| gpu.split(" (").next().unwrap_or(gpu));
            names.collect::<Vec<_>>().join(", ")
        }
    }
}

/// Title, outcome and everything that describes the runs.
pub(super) fn head(page: &mut Markup, sources: &[Source]) {
    page.open("header", &[]);
    page.element("h1", &[], &title(sources));
    for source in sources {
        let record = source.record;
        page.open("p", &[("class", &"sub")]);
        if sources.len() > 1 {
            page.element("strong", &[], &source.label);
            page.text(&": ");
        }
        let (class, words) = outcome(record);
        page.element("span", &[("class", &class)], &words);
        let commit = record.software.commit.as_deref().unwrap_or("not known");
        page.text(&format!(" {}, commit {commit}", day(&record.started)));
        page.close();
        if record.software.profile.as_deref() == Some("debug") {
            let text = "Debug build: its times say nothing.";
            page.element("p", &[("class", &"warn")], &text);
        }
        let why: BTreeSet<&str> =
            record.measurements.iter().filter_map(|row| row.stand_in_why.as_deref()).collect();
        for why in why {
            page.open("p", &[]);
            page.element("strong", &[], &"Stand-in: ");
            page.text(&format!(
                "{why}. Such a time, rate or bandwidth is not hardware's: published figures stand beside it for \
                 orientation, and no ratio is formed."
            ));
            page.close();
        }
    }
    let described: Vec<Vec<(String, String)>> =
        sources.iter().map(|source| described(source.record)).collect();
    let mut names: Vec<&String> = Vec::new();
    for (name, _) in described.iter().flatten() {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let (first, others): (Vec<&String>, Vec<&String>) = names.into_iter().partition(|name| {
        FIRST.contains(&name.as_str()) || DEVICES.iter().any(|word| name.contains(word))
    });
    table(page, sources, &first, &described);
    page.open("details", &[]);
    page.element("summary", &[], &"Everything else of machine, software and run");
    table(page, sources, &others, &described);
    page.close();
    page.close();
}

/// What a reader wants to know of a run before its figures.
const FIRST: [&str; 6] = ["command", "cpu", "cores online", "hypervisor", "kernel", "suite"];

/// Words in the names of what is about devices.
const DEVICES: [&str; 5] = ["gpu", "rdma", "driver", "cuda", "nvrtc"];

fn table(
    page: &mut Markup,
    sources: &[Source],
    names: &[&String],
    described: &[Vec<(String, String)>],
) {
    page.open("div", &[("class", &"scroll")]);
    page.open("table", &[("class", &"about")]);
    if sources.len() > 1 {
        page.open("thead", &[]);
        page.open("tr", &[]);
        page.element("th", &[], &"");
        for source in sources {
            page.element("th", &[("scope", &"col")], &source.label);
        }
        page.close();
        page.close();
    }
    page.open("tbody", &[]);
    for name in names {
        page.open("tr", &[]);
        page.element("th", &[("scope", &"row")], name);
        for record in described {
            let value = record.iter().find(|(known, _)| known == *name).map(|(_, value)| value);
            let value = value.map_or(NONE, String::as_str);
            page.open("td", &[]);
            if name.as_str() == "command" {
                page.element("code", &[], &value);
            } else {
                page.text(&value);
            }
            page.close();
        }
        page.close();
    }
    page.close();
    page.close();
    page.close();
}

fn outcome(record: &Record) -> (&'static str, String) {
    let (class, words) = match status(record) {
        ExitStatus::Done => ("state", "done and checked"),
        ExitStatus::Partial if record.interrupted => ("state", "partial: interrupted"),
        ExitStatus::Partial => ("state", "partial: some points were not run"),
        ExitStatus::NothingRan => ("state bad", "nothing was measured"),
        _ if record.failed.is_empty() => ("state bad", "wrong data"),
        _ => ("state bad", "some points failed"),
    };
    (class, format!("{words} (exit status {})", status(record) as u8))
}

/// The day of a time.
fn day(started: &str) -> &str {
    started.split_once('T').map_or(started, |(day, _)| day)
}

/// Everything that the record says of itself, in words. Fields that a later version adds come along.
fn described(record: &Record) -> Vec<(String, String)> {
    let mut all = vec![
        ("command".to_owned(), command(&record.argv)),
        ("started".to_owned(), record.started.clone()),
        ("took".to_owned(), format!("{:.1} s", record.elapsed_s)),
    ];
    let counts = [
        (record.measurements.len(), "measurement"),
        (record.not_run.len(), "point not run"),
        (record.failed.len(), "point failed"),
    ];
    let counts: Vec<String> = counts
        .iter()
        .filter(|(count, what)| *count > 0 || *what == "measurement")
        .map(|(count, what)| match what.split_once(' ') {
            Some((noun, rest)) => format!("{} {rest}", words::counted(*count, noun)),
            None => words::counted(*count, what),
        })
        .collect();
    all.push(("holds".to_owned(), counts.join(", ")));
    all.extend(fields("", &record.machine));
    all.extend(fields("", &record.software));
    all.extend(fields("", &record.parameters));
    all
}

/// A command line as a shell takes it.
fn command(argv: &[String]) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || "-_./=,:+@%".contains(c);
    let quoted = argv.iter().map(|argument| {
        if !argument.is_empty() && argument.chars().all(bare) {
            argument.clone()
        } else {
            format!("'{}'", argument.replace('\'', r"'\''"))
        }
    });
    quoted.collect::<Vec<_>>().join(" ")
}

fn fields(under: &str, value: &impl Serialize) -> Vec<(String, String)> {
    let Ok(Json::Object(fields)) = serde_json::to_value(value) else { return Vec::new() };
    let name = |name: &str| format!("{under}{}", name.replace('_', " "));
    fields
        .iter()
        .map(|(key, value)| match (key.strip_suffix("_bytes"), value.as_f64()) {
            (Some(what), Some(bytes)) => {
                (name(what), format!("{:.1} GiB", bytes / f64::from(1 << 30)))
            }
            _ => (name(key), plain(value)),
        })
        .collect()
}

/// A value of a record in words.
pub(super) fn plain(value: &Json) -> String {
    match value {
        Json::Null => NONE.to_owned(),
        Json::Bool(true) => "yes".to_owned(),
        Json::Bool(false) => "no".to_owned(),
        Json::String(text) => text.clone(),
        Json::Number(number) => match number.as_f64() {
            Some(value) if !number.is_u64() && !number.is_i64() => words::number(value),
            _ => number.to_string(),
        },
        Json::Array(items) if items.is_empty() => "none".to_owned(),
        Json::Array(items) => match runs(items) {
            Some(runs) => runs,
            None => items.iter().map(plain).collect::<Vec<_>>().join(", "),
        },
        Json::Object(fields) => {
            let all = fields
                .iter()
                .map(|(name, value)| format!("{} {}", name.replace('_', " "), plain(value)));
            all.collect::<Vec<_>>().join(", ")
        }
    }
}

/// A long list of whole numbers as its runs, such as `0–63, 128–191`.
fn runs(items: &[Json]) -> Option<String> {
    let numbers: Vec<u64> = items.iter().map(Json::as_u64).collect::<Option<_>>()?;
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(number) => *last = number,
            _ => runs.push((number, number)),
        }
    }
    let shown = runs.into_iter().map(|(first, last)| match last - first {
        0 => first.to_string(),
        1 => format!("{first}, {last}"),
        _ => format!("{first}–{last}"),
    });
    Some(shown.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_are_written_in_words() {
        for (value, text) in [
            (json!(null), NONE),
            (json!([]), "none"),
            (json!([0, 1, 2, 5, 8, 9]), "0–2, 5, 8, 9"),
            (json!(["a", "b"]), "a, b"),
            (json!({"sm_clock": 1980, "on": true}), "sm clock 1980, on yes"),
        ] {
            assert_eq!(plain(&value), text);
        }
        let argv = ["gicbench", "run", "it's", "a b", ""].map(str::to_owned);
        assert_eq!(command(&argv), r"gicbench run 'it'\''s' 'a b' ''");
    }
}
