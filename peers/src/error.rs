//! Why a library isn't measured.

use std::path::PathBuf;

/// Why a library can't be measured here, or a side of it not be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PeerError {
    /// It isn't on this machine.
    #[error("{title} was not found: {install}")]
    NotFound {
        /// The library.
        title: &'static str,
        /// What to do.
        install: String,
    },
    /// The path that the user named doesn't hold it.
    #[error("--peer-path {name}={}: {title} isn't there (no {marker})", path.display())]
    NotThere {
        /// The adapter's name.
        name: &'static str,
        /// The library.
        title: &'static str,
        /// What was named.
        path: PathBuf,
        /// The file that tells it.
        marker: &'static str,
    },
    /// No nvcc.
    #[error(
        "nvcc was not found: install the CUDA 13 toolkit, or run `scripts/peers.sh DIR` and set GICBENCH_PEERS=DIR"
    )]
    NoNvcc,
    /// A compiler couldn't be run, or took too long.
    #[error("{program}: {reason}")]
    Compiler {
        /// Which.
        program: String,
        /// What happened.
        reason: String,
    },
    /// The version's structures aren't those that the adapter knows.
    #[error(
        "{title} {version} doesn't fit the adapter, which was written for {} and checks: {why}", known.join(", ")
    )]
    Unfit {
        /// The library.
        title: &'static str,
        /// What was found.
        version: String,
        /// What the adapter was written for.
        known: &'static [&'static str],
        /// The check that failed.
        why: String,
    },
    /// The adapter isn't accepted by a compiler.
    #[error("the adapter of {title} {version} does not compile ({piece}): {why}")]
    Compile {
        /// The library.
        title: &'static str,
        /// What was found.
        version: String,
        /// `kernel.cu` or `state.cpp`.
        piece: &'static str,
        /// The compiler's first error.
        why: String,
    },
    /// Files can't be read or written.
    #[error("{what}: {source}")]
    Io {
        /// Which.
        what: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// The compiled state builder can't be used.
    #[error("the state builder of {title} can't be loaded: {why}")]
    Load {
        /// The library.
        title: &'static str,
        /// Why.
        why: String,
    },
    /// The state builder refuses what it was given.
    #[error("the state of {title} can't be built: {why}")]
    Refused {
        /// The library.
        title: &'static str,
        /// Its sentence.
        why: String,
    },
    /// No memory for the state.
    #[error("no memory for the state of {title}: {source}")]
    Memory {
        /// The library.
        title: &'static str,
        /// The driver's answer.
        source: device::cuda::CudaError,
    },
}

impl PeerError {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}
