//! Bad usage: what was typed, why it can't be, and the nearest that can.

use std::path::PathBuf;

/// What is wrong with a request. Always exit status 2, always before anything has run.
#[derive(Debug, thiserror::Error)]
pub enum UsageError {
    /// No experiment of that name.
    #[error("no experiment is called '{name}'{}", or_list(nearest))]
    UnknownExperiment {
        /// What was typed.
        name: String,
        /// Experiments that are.
        nearest: Vec<String>,
    },
    /// A value that its flag doesn't know.
    #[error("{flag} '{value}': {why}{}", or_list(nearest))]
    UnknownValue {
        /// The flag, with its dashes.
        flag: String,
        /// What was typed.
        value: String,
        /// What is wrong with it.
        why: String,
        /// Values that would do.
        nearest: Vec<String>,
    },
    /// A value that the flag knows, but an experiment doesn't take.
    #[error("{flag} {value}: experiment '{experiment}' does not take it{}", or_list(nearest))]
    NotTaken {
        /// The flag, with its dashes.
        flag: String,
        /// The value.
        value: String,
        /// The experiment.
        experiment: String,
        /// Values that it takes.
        nearest: Vec<String>,
    },
    /// Values that exclude each other.
    #[error("{choice} can't be combined with {with}: {why}{}", or_list(nearest))]
    Impossible {
        /// Flag and value.
        choice: String,
        /// The other flag and value.
        with: String,
        /// Why.
        why: String,
        /// Values of the first flag that would do.
        nearest: Vec<String>,
    },
    /// A flag that none of the chosen experiments has a use for.
    #[error("{flag} is used by none of the chosen experiments; it is used by {}", used_by.join(", "))]
    Unused {
        /// The flag, with its dashes.
        flag: String,
        /// Experiments, or transports of experiments, that use it.
        used_by: Vec<String>,
    },
    /// Lists whose product nobody could run.
    #[error(
        "the plan has more than {most} points, with those of experiment '{experiment}', of which {}; shorten a \
         list, or split the run",
        lists.join(", ")
    )]
    TooManyPoints {
        /// The experiment that goes past the limit.
        experiment: String,
        /// Its lists, the longest first.
        lists: Vec<String>,
        /// The most points that a plan may have.
        most: usize,
    },
    /// A sampling time that its deadline never lets end.
    #[error(
        "--deadline {deadline:?} can't be combined with --duration {duration:?}: a point that samples for so long \
         ends later; nearest: --deadline {nearest:?}"
    )]
    DeadlineBelowDuration {
        /// Longest that a point may take.
        deadline: std::time::Duration,
        /// Time that it is to sample.
        duration: std::time::Duration,
        /// A deadline that would do.
        nearest: std::time::Duration,
    },
    /// Values that no experiment takes together.
    #[error(
        "no experiment takes the given values together; name one, as in `gicbench run latency …`, to learn what it \
         takes"
    )]
    NoPoints,
    /// A share of the plan that holds none of its points.
    #[error("--shard {shard}: the plan has {points} points, and none of them is in this share")]
    EmptyShard {
        /// As it was typed.
        shard: String,
        /// Points of the whole plan.
        points: usize,
    },
    /// A payload sweep that makes no sense.
    #[error("-b {min} -e {max} -f {factor}: {why}")]
    Sweep {
        /// First size.
        min: String,
        /// Last size.
        max: String,
        /// Factor.
        factor: u64,
        /// What is wrong with it.
        why: &'static str,
    },
    /// An output file that is there already.
    #[error("file {} exists; name another file, or give --force to overwrite it", .0.display())]
    FileExists(PathBuf),
    /// An output file that couldn't be written.
    #[error("{} can't be written: {why}", path.display())]
    NotWritable {
        /// The file.
        path: PathBuf,
        /// What the system says.
        why: String,
    },
    /// The same file for two outputs.
    #[error("{first} and {second} both name {}; give each a file of its own", path.display())]
    SameFile {
        /// The flag that named it first.
        first: &'static str,
        /// The other flag.
        second: &'static str,
        /// The file.
        path: PathBuf,
    },
    /// A suite or record file that can't be used.
    #[error("{}: {why}", path.display())]
    InputFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
}

/// "; did you mean a, b or c?", or nothing.
fn or_list(items: &[String]) -> String {
    match items {
        [] => String::new(),
        [one] => format!("; nearest: {one}"),
        many => format!("; nearest: {}", many.join(", ")),
    }
}

/// The candidates nearest to `text`, best first: those that resemble it, or all if none does.
pub fn nearest<'a>(text: &str, candidates: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    const ALIKE: f64 = 0.7;
    let mut scored: Vec<(f64, &str)> = candidates
        .into_iter()
        .map(|candidate| (strsim::jaro_winkler(text, candidate), candidate))
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0));
    let alike = scored.iter().take_while(|(score, _)| *score >= ALIKE).count();
    let shown = if alike == 0 { scored.len() } else { alike.min(3) };
    scored[..shown].iter().map(|(_, candidate)| (*candidate).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_come_first_and_all_are_named_when_none_is_near() {
        let names = ["latency", "ordering", "quiet"];
        assert_eq!(nearest("latncy", names), ["latency"]);
        let mut all = nearest("xyz", names);
        all.sort();
        assert_eq!(all, ["latency", "ordering", "quiet"]);
        assert!(nearest("x", []).is_empty());
    }
}
