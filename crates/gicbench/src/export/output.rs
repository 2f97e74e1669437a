//! Output files: claimed before anything runs, written whole or not at all, never overwritten unasked.

use std::ffi::OsString;
use std::fs::Permissions;
use std::io::{self, BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::run::RunError;
use crate::usage::UsageError;

/// A file to be.
#[derive(Debug)]
pub struct Output {
    path: PathBuf,
    directory: PathBuf,
    force: bool,
}

impl Output {
    /// Makes sure that a file can be written later. Nothing of it is there until then, so that a run that is
    /// killed leaves nothing.
    ///
    /// # Errors
    /// It exists and `force` isn't given, or it can never be a file, or its directory can't be written to.
    pub fn claim(path: &Path, force: bool) -> Result<Self, UsageError> {
        let not_writable =
            |why: &str| UsageError::NotWritable { path: path.to_owned(), why: why.to_owned() };
        if path == Path::new("-") {
            return Err(not_writable("the table goes to standard output; name a file, or ./-"));
        }
        if path.file_name().is_none() || path.as_os_str().as_bytes().ends_with(b"/") {
            return Err(not_writable("it names no file"));
        }
        match path.symlink_metadata() {
            Ok(metadata) if metadata.is_symlink() => {
                return Err(not_writable("it is a symbolic link; name the file itself"));
            }
            Ok(metadata) if !metadata.is_file() => {
                return Err(not_writable("it is not a regular file; name another"));
            }
            Ok(_) if !force => return Err(UsageError::FileExists(path.to_owned())),
            _ => {}
        }
        let directory = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        if !directory.is_dir() {
            let why = format!("there is no directory {}; make it first", directory.display());
            return Err(not_writable(&why));
        }
        let output = Output { path: path.to_owned(), directory: directory.to_owned(), force };
        output.temporary().map_err(|error| not_writable(&error.to_string()))?;
        Ok(output)
    }

    /// Claims the files of several flags, where they are asked for.
    ///
    /// # Errors
    /// As [`Output::claim`], or two of them are one file.
    pub fn claim_all<const N: usize>(
        files: [(&'static str, Option<&Path>); N],
        force: bool,
    ) -> Result<[Option<Self>; N], UsageError> {
        let mut claimed = [const { None }; N];
        let mut places: Vec<(&'static str, _)> = Vec::new();
        for (slot, (flag, path)) in claimed.iter_mut().zip(files) {
            let Some(path) = path else { continue };
            let output = Output::claim(path, force)?;
            let place = output.place();
            if let Some(&(first, _)) = places.iter().find(|(_, other)| *other == place) {
                return Err(UsageError::SameFile { first, second: flag, path: output.path });
            }
            places.push((flag, place));
            *slot = Some(output);
        }
        Ok(claimed)
    }

    /// Writes the file beside its place, and puts it there when it is whole.
    ///
    /// # Errors
    /// It can't be written, or has come to be since it was claimed.
    pub fn write(
        self,
        write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<(), RunError> {
        let failed = |source| RunError::Write { what: self.path.display().to_string(), source };
        let file = self.temporary().map_err(failed)?;
        let mut out = BufWriter::new(&file);
        write(&mut out).and_then(|()| out.flush()).map_err(failed)?;
        drop(out);
        let persisted =
            if self.force { file.persist(&self.path) } else { file.persist_noclobber(&self.path) };
        persisted.map(drop).map_err(|error| failed(error.error))
    }

    fn temporary(&self) -> io::Result<NamedTempFile> {
        tempfile::Builder::new()
            .prefix(".gicbench-")
            // Less the umask, as any other file.
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(&self.directory)
    }

    /// The file's one place, however it was spelled.
    fn place(&self) -> (PathBuf, Option<OsString>) {
        let directory = self.directory.canonicalize().unwrap_or_else(|_| self.directory.clone());
        (directory, self.path.file_name().map(Into::into))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_appears_whole_or_not_at_all() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out");
        let refused = Output::claim(&path, false)
            .unwrap()
            .write(|out| out.write_all(b"half").and_then(|()| Err(io::Error::other("full"))));
        assert!(refused.is_err());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);

        Output::claim(&path, false).unwrap().write(|out| out.write_all(b"whole")).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"whole");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_that_exists_is_only_overwritten_by_force() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out");
        let claimed = Output::claim(&path, false).unwrap();
        fs::write(&path, "mine").unwrap();
        assert!(matches!(Output::claim(&path, false), Err(UsageError::FileExists(_))));
        assert!(claimed.write(|out| out.write_all(b"other")).is_err());
        assert_eq!(fs::read(&path).unwrap(), b"mine");
        Output::claim(&path, true).unwrap().write(|out| out.write_all(b"new")).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
    }

    #[test]
    fn what_can_never_be_a_file_is_refused_before_the_run() {
        let directory = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("nowhere", directory.path().join("link")).unwrap();
        let inside = |name: &str| directory.path().join(name);
        for path in [
            directory.path().to_owned(),
            inside("no/such"),
            inside("new/"),
            inside("link"),
            "..".into(),
            "-".into(),
            "/dev/full".into(),
        ] {
            for force in [false, true] {
                let claimed = Output::claim(&path, force);
                assert!(matches!(claimed, Err(UsageError::NotWritable { .. })), "{path:?}");
            }
        }
        for other in ["out", "./out", "../here/out"] {
            let here = inside("here");
            fs::create_dir_all(&here).unwrap();
            let (first, second) = (here.join("out"), here.join(other));
            let files = [("--json", Some(&*first)), ("--csv", None), ("--html", Some(&*second))];
            let error = Output::claim_all(files, false).unwrap_err().to_string();
            assert!(error.contains("--json and --html both name"), "{other}: {error}");
            assert_eq!(fs::read_dir(&here).unwrap().count(), 0);
        }
    }
}
