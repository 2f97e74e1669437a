//! Where libraries and compilers are.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use crate::adapter::{Adapter, Source};
use crate::error::PeerError;

/// A Python environment with the packages of PyPI: what `scripts/peers.sh` makes.
const ENVIRONMENT_VAR: &str = "GICBENCH_PEERS";

/// Paths that the user named (`--peer-path NAME=DIR`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Paths(BTreeMap<String, PathBuf>);

impl Paths {
    /// From `NAME=DIR` words; the last of a name holds.
    ///
    /// # Errors
    /// The word that isn't one, and the names that there are.
    pub fn parse<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let names = || crate::all().map(|adapter| adapter.name).join(", ");
        let mut paths = BTreeMap::new();
        for word in words {
            let Some((name, path)) = word.split_once('=').filter(|(_, path)| !path.is_empty())
            else {
                return Err(format!("'{word}' isn't NAME=DIR; names are {}", names()));
            };
            if !crate::all().iter().any(|adapter| adapter.name == name) {
                return Err(format!("no library is called '{name}'; names are {}", names()));
            }
            paths.insert(name.to_owned(), PathBuf::from(path));
        }
        Ok(Self(paths))
    }

    /// The same, from the root, as far as they exist.
    #[must_use]
    pub fn absolute(self) -> Self {
        let absolute = |path: PathBuf| path.canonicalize().unwrap_or(path);
        Self(self.0.into_iter().map(|(name, path)| (name, absolute(path))).collect())
    }

    /// The words that they were made of.
    #[must_use]
    pub fn words(&self) -> Vec<String> {
        self.0.iter().map(|(name, path)| format!("{name}={}", path.display())).collect()
    }

    fn get(&self, name: &str) -> Option<&Path> {
        self.0.get(name).map(PathBuf::as_path)
    }
}

/// A library that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its root.
    pub root: PathBuf,
    /// Its version, from its own files.
    pub version: String,
    /// Whether the adapter was written for that version.
    pub known: bool,
}

impl std::fmt::Display for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let note = if self.known { "" } else { ", a version that the adapter doesn't know" };
        write!(f, "{} in {}{note}", self.version, self.root.display())
    }
}

/// Looks for a library: where the user said, else where its packages are installed.
///
/// # Errors
/// It isn't there, and what to do.
pub fn find(adapter: &Adapter, paths: &Paths) -> Result<Found, PeerError> {
    let root = match (paths.get(adapter.name), adapter.source) {
        (Some(path), source) => {
            let marker = source.marker();
            if !path.join(marker).is_file() {
                return Err(PeerError::NotThere {
                    name: adapter.name,
                    title: adapter.title,
                    path: path.to_owned(),
                    marker,
                });
            }
            path.canonicalize().unwrap_or_else(|_| path.to_owned())
        }
        (None, Source::PyPi { folder, marker, .. }) => site_packages()
            .into_iter()
            .map(|site| site.join(folder))
            .chain(SYSTEM.iter().map(PathBuf::from))
            .find(|root| root.join(marker).is_file())
            .ok_or_else(|| not_found(adapter))?,
        (None, Source::Checkout { .. }) => return Err(not_found(adapter)),
    };
    let version = (adapter.version)(&root).unwrap_or_else(|| "of unknown version".to_owned());
    let known = adapter.known.contains(&version.as_str());
    Ok(Found { root, version, known })
}

impl Source {
    fn marker(&self) -> &'static str {
        match self {
            Self::PyPi { marker, .. } | Self::Checkout { marker, .. } => marker,
        }
    }
}

fn not_found(adapter: &Adapter) -> PeerError {
    let name = adapter.name;
    let install = match adapter.source {
        Source::PyPi { package, .. } => format!(
            "`pip install {package}`, or run `scripts/peers.sh DIR` and set {ENVIRONMENT_VAR}=DIR; or name its folder by \
             --peer-path {name}=DIR"
        ),
        Source::Checkout { url, .. } => {
            format!("`git clone {url}`, and name the checkout by --peer-path {name}=DIR")
        }
    };
    PeerError::NotFound { title: adapter.title, install }
}

/// Where distributions and containers install NVIDIA's libraries.
const SYSTEM: &[&str] = &["/usr/local/nvshmem", "/usr/local/nccl", "/usr/local/cuda", "/usr"];

/// `site-packages` of the environment that was named, of the active one, and of the interpreters in PATH.
pub(crate) fn site_packages() -> Vec<PathBuf> {
    let mut roots: Vec<PathBuf> = [ENVIRONMENT_VAR, "VIRTUAL_ENV", "CONDA_PREFIX"]
        .iter()
        .filter_map(env::var_os)
        .filter(|root| !root.is_empty())
        .map(PathBuf::from)
        .collect();
    let in_path = env::var_os("PATH").unwrap_or_default();
    roots.extend(env::split_paths(&in_path).filter_map(|bin| bin.parent().map(Path::to_owned)));
    let mut sites = Vec::new();
    for root in roots {
        for lib in ["lib", "lib64", "local/lib"] {
            let Ok(entries) = fs::read_dir(root.join(lib)) else { continue };
            let mut pythons: Vec<PathBuf> = entries
                .flatten()
                .filter(|entry| entry.file_name().to_string_lossy().starts_with("python3"))
                .flat_map(|entry| {
                    ["site-packages", "dist-packages"].map(|kind| entry.path().join(kind))
                })
                .filter(|site| site.is_dir() && !sites.contains(site))
                .collect();
            pythons.sort();
            sites.extend(pythons);
        }
    }
    sites
}

/// The number behind `#define NAME` in a header.
pub(crate) fn defined(header: &Path, name: &str) -> Option<u64> {
    let text = fs::read_to_string(header).ok()?;
    let value = |line: &str| {
        let rest = line.trim().strip_prefix('#')?.trim_start().strip_prefix("define")?;
        let (word, value) = rest.trim_start().split_once(char::is_whitespace)?;
        (word == name).then(|| value.trim().split(char::is_whitespace).next()?.parse().ok())?
    };
    text.lines().find_map(value)
}
