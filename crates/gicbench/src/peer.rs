//! The libraries that are measured beside: which of them are here, their ways of posting, and their compilation before
//! a run.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use device::nvrtc::Arch;
use peers::{Compiled, Found, Paths, PeerError, PeerPath, Toolchain, Variant};

use crate::axes::{AxisId, Value};
use crate::point::Transport;
use crate::usage::{UsageError, nearest};

/// Words of the variant axis that stand for several.
pub const GROUPS: &[&str] = &["default", "own", "steps", "all"];

/// The names that `--like` has, each with the path and the variant that it is compared with.
pub(crate) const LIKES: &[(&str, &str, &str)] = &[
    ("nvshmem", "nvshmem", "public"),
    ("nvshmem-internal", "nvshmem", "internal"),
    ("gdaki-exclusive", "gdaki", "exclusive"),
    ("gdaki-cta", "gdaki", "cta"),
    ("gdaki", "gdaki", "gpu"),
    ("deepep", "deepep", "put"),
    ("nvshmem-proxy", "nvshmem-proxy", "public"),
    ("gin-proxy", "gin-proxy", "gin"),
    ("mscclpp", "mscclpp", "put"),
    ("uccl-ep", "uccl-ep", "low-latency"),
    ("fabric-lib", "fabric-lib", "flag"),
];

/// Whether a value stands for several variants.
pub fn is_group(value: &Value) -> bool {
    value.word().is_some_and(|word| GROUPS.contains(&word))
}

/// Every word of the variant axis.
pub fn variants() -> &'static [&'static str] {
    static WORDS: OnceLock<Vec<&'static str>> = OnceLock::new();
    WORDS.get_or_init(|| {
        let mut words = GROUPS.to_vec();
        for variant in peers::all().iter().flat_map(|a| a.paths).flat_map(|path| path.variants) {
            if !words.contains(&variant.name) {
                words.push(variant.name);
            }
        }
        words
    })
}

/// The paths that the user named.
///
/// # Errors
/// A word that isn't `NAME=DIR`, or no library's name.
pub fn paths(words: &[String]) -> Result<Paths, UsageError> {
    Paths::parse(words.iter().map(String::as_str)).map_err(|why| UsageError::UnknownValue {
        flag: "--peer-path".to_owned(),
        value: words.join(" "),
        why,
        nearest: Vec::new(),
    })
}

/// A library's path, with its adapter.
///
/// # Errors
/// The transport is no library's.
pub fn path(transport: Transport) -> Option<(&'static peers::Adapter, &'static PeerPath)> {
    peers::path(transport.name())
}

/// Whether a library and a compiler for its adapter are here.
///
/// # Errors
/// What is missing, and what to do.
pub fn here(transport: Transport, paths: &Paths) -> Result<Found, PeerError> {
    let Some((adapter, _)) = path(transport) else {
        return Err(PeerError::NoNvcc);
    };
    let found = peers::find(adapter, paths)?;
    if let Some(name) = adapter.needs
        && let Some(other) = peers::all().into_iter().find(|other| other.name == name)
    {
        peers::find(other, paths)?;
    }
    Toolchain::find()?;
    Ok(found)
}

/// What a list of variants means for a transport: groups become their members, and what other transports have falls
/// away.
///
/// # Errors
/// Nothing is left, and so the nearest names that the transport has.
pub fn chosen(
    transport: Transport,
    experiment: &str,
    values: &[Value],
) -> Result<Vec<Value>, UsageError> {
    let variants = path(transport).map_or(&[] as &[Variant], |(_, path)| path.variants);
    let is_own = |variant: &&Variant| variant.omits.is_empty();
    let mut names = Vec::new();
    for word in values.iter().filter_map(|value| value.word()) {
        let of_word: Vec<&'static str> = match word {
            "default" => variants.first().map(|v| v.name).into_iter().collect(),
            "own" => variants.iter().filter(is_own).map(|v| v.name).collect(),
            "steps" => variants.iter().filter(|v| !is_own(v)).map(|v| v.name).collect(),
            "all" => variants.iter().map(|v| v.name).collect(),
            name => variants.iter().filter(|v| v.name == name).map(|v| v.name).collect(),
        };
        names.extend(of_word);
    }
    let mut kept: Vec<Value> = Vec::new();
    for name in names.into_iter().map(Value::Word) {
        if !kept.contains(&name) {
            kept.push(name);
        }
    }
    if kept.is_empty() && !variants.is_empty() && values.iter().any(|v| v.word() != Some("steps")) {
        let typed: Vec<String> = values.iter().map(ToString::to_string).collect();
        return Err(UsageError::NotTaken {
            flag: AxisId::Variant.flag(),
            value: typed.join(","),
            experiment: format!("{experiment} on {transport}"),
            nearest: nearest(&typed.join(","), variants.iter().map(|variant| variant.name)),
        });
    }
    Ok(kept)
}

/// The adapters of a run, compiled before it: a compilation takes longer than a point may.
#[derive(Debug, Default)]
pub struct Prepared(BTreeMap<&'static str, Result<(), String>>);

impl Prepared {
    /// Compiles the adapters of these transports, side by side.
    pub fn new(
        transports: impl IntoIterator<Item = Transport>,
        paths: &Paths,
        arch: Option<Arch>,
    ) -> Self {
        let mut adapters: Vec<&'static peers::Adapter> = Vec::new();
        for (adapter, _) in transports.into_iter().filter_map(path) {
            if !adapters.iter().any(|known| known.name == adapter.name) {
                adapters.push(adapter);
            }
        }
        let tools = Toolchain::find();
        let compile = |adapter: &'static peers::Adapter| match &tools {
            Ok(tools) => {
                Compiled::new(adapter, paths, arch, tools).map(drop).map_err(|e| e.to_string())
            }
            // A library that isn't there is the first thing to be said.
            Err(error) => {
                let found = peers::find(adapter, paths).map_err(|error| error.to_string());
                found.and(Err(error.to_string()))
            }
        };
        let compile = &compile;
        std::thread::scope(|scope| {
            let jobs: Vec<_> = adapters
                .iter()
                .map(|adapter| (adapter.name, scope.spawn(move || compile(adapter))))
                .collect();
            let joined = |job: std::thread::ScopedJoinHandle<'_, Result<(), String>>| {
                job.join().unwrap_or_else(|_| Err("compiling it panicked".to_owned()))
            };
            Self(jobs.into_iter().map(|(name, job)| (name, joined(job))).collect())
        })
    }

    /// Why a transport's adapter isn't there, if so.
    pub fn missing(&self, transport: Transport) -> Option<String> {
        let (adapter, _) = path(transport)?;
        self.0.get(adapter.name)?.as_ref().err().cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_transport_of_a_library_has_an_adapter_and_each_path_is_a_transport() {
        for transport in Transport::PEERS {
            let (adapter, path) = path(*transport).unwrap();
            assert!(!path.variants.is_empty() && !adapter.known.is_empty(), "{transport}");
            assert!(path.variants[0].omits.is_empty(), "{transport}: the first is the default");
        }
        let names: Vec<&str> =
            peers::all().iter().flat_map(|a| a.paths).map(|path| path.name).collect();
        assert_eq!(names.len(), Transport::PEERS.len());
        assert!(names.iter().all(|name| name.parse::<Transport>().is_ok()));
    }

    #[test]
    fn a_group_of_variants_is_its_members_and_a_name_that_a_path_lacks_is_refused() {
        let parse = |text: &str| AxisId::Variant.parse_list(text).unwrap();
        let of = |text: &str| chosen(Transport::Gdaki, "latency", &parse(text));
        let (own, steps, all) = (of("own").unwrap(), of("steps").unwrap(), of("all").unwrap());
        assert_eq!(own.len() + steps.len(), all.len());
        assert!(!own.is_empty() && own[0] == of("default").unwrap()[0]);
        assert_eq!(of("own,all,default").unwrap(), all);
        let error = of("public").unwrap_err().to_string();
        assert!(error.contains("--variant") && error.contains("gdaki"), "{error}");
    }

    #[test]
    fn a_path_that_is_no_librarys_is_refused_by_name() {
        for word in ["mscclpp", "mscclpp=", "msclpp=/x"] {
            let error = paths(&[word.to_owned()]).unwrap_err().to_string();
            assert!(error.contains("--peer-path") && error.contains("mscclpp"), "{error}");
        }
    }
}
