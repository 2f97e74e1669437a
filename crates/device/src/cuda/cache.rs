//! Compiled kernels on disk, by what they were compiled from.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::nvrtc::{self, Arch, NvrtcError};
use crate::source::HEADERS;

/// Names the folder of the cache; empty: no cache.
const CACHE_DIR_VAR: &str = "GICBENCH_CACHE_DIR";

/// The CUBIN of `source`: from the cache, or compiled and kept there. A cache that can't be read or written is as
/// good as none.
pub(super) fn cubin(source: &str, arch: Arch) -> Result<Vec<u8>, NvrtcError> {
    let version = nvrtc::version()?;
    let Some(path) = folder().map(|folder| folder.join(name(source, arch, version))) else {
        return nvrtc::compile(source, arch);
    };
    if let Some(cubin) = std::fs::read(&path).ok().and_then(|bytes| opened(&bytes)) {
        return Ok(cubin);
    }
    let cubin = nvrtc::compile(source, arch)?;
    let _ = keep(&path, &cubin);
    Ok(cubin)
}

/// The folder of the cache; none where there is to be none, or no home.
#[must_use]
pub fn folder() -> Option<PathBuf> {
    if let Some(dir) = std::env::var_os(CACHE_DIR_VAR) {
        return (!dir.is_empty()).then(|| dir.into());
    }
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let named = std::env::var_os("XDG_CACHE_HOME").filter(|dir| !dir.is_empty());
    let cache = named.map(PathBuf::from).or_else(home)?;
    Some(cache.join("gicbench"))
}

/// Everything that the CUBIN depends on: source, headers, architecture, compiler.
fn name(source: &str, arch: Arch, version: (i32, i32)) -> String {
    let mut hash = Sha256::new();
    let parts = HEADERS.iter().flat_map(|(name, text)| [*name, *text]).chain([source]);
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    let digest: String =
        hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("{}-nvrtc{}.{}-{digest}.cubin", arch.name(), version.0, version.1)
}

/// A file holds the digest of its CUBIN, and the CUBIN.
const DIGEST: usize = 32;

fn opened(bytes: &[u8]) -> Option<Vec<u8>> {
    let (digest, cubin) = bytes.split_at_checked(DIGEST)?;
    (Sha256::digest(cubin).as_slice() == digest).then(|| cubin.to_vec())
}

fn keep(path: &Path, cubin: &[u8]) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    // Under its name it is whole, whoever writes it at the same time.
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(Sha256::digest(cubin).as_slice())?;
    file.write_all(cubin)?;
    file.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kept_cubin_comes_back_and_a_damaged_one_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/one.cubin");
        keep(&path, b"\x7fELF and so on").unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        assert_eq!(opened(&bytes).unwrap(), b"\x7fELF and so on");
        bytes.pop();
        assert_eq!(opened(&bytes), None);
        assert_eq!(opened(&[]), None);
        keep(&path, b"another").unwrap();
        assert_eq!(opened(&std::fs::read(&path).unwrap()).unwrap(), b"another");
    }

    #[test]
    fn whatever_a_cubin_depends_on_is_in_its_name() {
        let base = name("a", Arch::SM_90, (13, 0));
        for other in [
            name("b", Arch::SM_90, (13, 0)),
            name("a", Arch::SM_100, (13, 0)),
            name("a", Arch::SM_90, (13, 1)),
        ] {
            assert_ne!(base, other);
        }
        assert_eq!(base, name("a", Arch::SM_90, (13, 0)));
    }
}
