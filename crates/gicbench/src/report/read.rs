//! Records as they come from files: of this version of the format, or refused by name.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value as Json;

use crate::record::{Record, SCHEMA_VERSION};

/// Why a file is no record that can be reported.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It can't be read.
    #[error("can't read {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// It isn't JSON.
    #[error("{} is not JSON: {source}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Where it isn't.
        source: serde_json::Error,
    },
    /// It doesn't say which version of the format it has, so it is something else.
    #[error("{} is not a run record: it has no schema_version; `gicbench run --json FILE` writes one", path.display())]
    NotARecord {
        /// The file.
        path: PathBuf,
    },
    /// It has another version of the format.
    #[error(
        "{} has schema_version {version}, and this gicbench reads {SCHEMA_VERSION}; report it with the gicbench \
         that wrote it{}", path.display(), written_by.as_ref().map_or(String::new(), |by| format!(" ({by})"))
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: String,
        /// The program that wrote it, where it says so.
        written_by: Option<String>,
    },
    /// It has the version, but not what the version asks for.
    #[error("{} is not a whole run record: {source}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is missing or something else.
        source: serde_json::Error,
    },
}

/// Reads a record.
///
/// # Errors
/// The file can't be read, or isn't a record of this version.
pub fn read(path: &Path) -> Result<Record, ReadError> {
    let owned = || path.to_owned();
    let bytes = fs::read(path).map_err(|source| ReadError::File { path: owned(), source })?;
    let value: Json = serde_json::from_slice(&bytes)
        .map_err(|source| ReadError::Json { path: owned(), source })?;
    let Some(version) = value.get("schema_version") else {
        return Err(ReadError::NotARecord { path: owned() });
    };
    if version.as_u64() != Some(SCHEMA_VERSION.into()) {
        let software = |name: &str| value.pointer(&format!("/software/{name}"))?.as_str();
        let written_by = software("gicbench").map(|version| match software("commit") {
            Some(commit) => format!("{version}, {commit}"),
            None => version.to_owned(),
        });
        return Err(ReadError::Version { path: owned(), version: version.to_string(), written_by });
    }
    serde_json::from_value(value).map_err(|source| ReadError::Content { path: owned(), source })
}

/// Names for records: the file's, or its folder's where the file has the usual name; and numbers where
/// they are the same.
pub fn labels(paths: &[PathBuf]) -> Vec<String> {
    let name = |path: &PathBuf| {
        let text = |part: Option<&std::ffi::OsStr>| Some(part?.to_string_lossy().into_owned());
        let stem = text(path.file_stem()).unwrap_or_else(|| "record".to_owned());
        let full = path.canonicalize().unwrap_or_else(|_| path.clone());
        let folder = text(full.parent().and_then(Path::file_name));
        if stem == "run" { folder.unwrap_or(stem) } else { stem }
    };
    let mut names: Vec<String> = paths.iter().map(name).collect();
    // The day is said elsewhere, and names in pictures are short.
    let undated: Vec<String> = names.iter().map(|name| undated(name).to_owned()).collect();
    let distinct: HashSet<&String> = undated.iter().collect();
    if distinct.len() == undated.len() {
        names = undated;
    }
    let mut labels = Vec::new();
    for (index, name) in names.iter().enumerate() {
        let before = names[..index].iter().filter(|other| *other == name).count();
        let alone = names.iter().filter(|other| *other == name).count() == 1;
        labels.push(if alone { name.clone() } else { format!("{name} ({})", before + 1) });
    }
    labels
}

/// A name without the day that it begins with.
fn undated(name: &str) -> &str {
    let (day, rest) = name.split_at_checked(11).unwrap_or((name, ""));
    let is_day = day.char_indices().all(|(index, c)| match index {
        4 | 7 | 10 => c == '-',
        _ => c.is_ascii_digit(),
    });
    if is_day && !rest.is_empty() { rest } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_called_by_file_or_folder_and_never_alike() {
        let paths = ["a/h200/run.json", "b/vm.json", "c/vm.json", "x/run.json"].map(PathBuf::from);
        assert_eq!(labels(&paths), ["h200", "vm (1)", "vm (2)", "x"]);
        for (paths, expected) in [
            (["2026-11-29-vm/run.json", "2026-11-30-h200/run.json"], ["vm", "h200"]),
            (
                ["2026-11-29-vm/run.json", "2026-11-30-vm/run.json"],
                ["2026-11-29-vm", "2026-11-30-vm"],
            ),
            (["2026-11-29-/run.json", "2026-11-29.json"], ["2026-11-29-", "2026-11-29"]),
        ] {
            assert_eq!(labels(&paths.map(PathBuf::from)), expected);
        }
    }
}
