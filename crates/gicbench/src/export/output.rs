//! Output files: claimed before anything runs, written whole or not at all, never overwritten unasked.

use std::fs::Permissions;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::run::RunError;
use crate::usage::UsageError;

/// A file to be: until it is finished, its bytes are in a temporary file beside it.
#[derive(Debug)]
pub struct Output {
    path: PathBuf,
    file: NamedTempFile,
    force: bool,
}

impl Output {
    /// Claims a file.
    ///
    /// # Errors
    /// It exists and `force` isn't given, or its directory can't be written to.
    pub fn open(path: &Path, force: bool) -> Result<Self, UsageError> {
        let not_writable = |why: String| UsageError::NotWritable { path: path.to_owned(), why };
        match path.symlink_metadata() {
            Ok(_) if !force => return Err(UsageError::FileExists(path.to_owned())),
            Ok(metadata) if !metadata.is_file() => {
                return Err(not_writable("it is not a regular file".to_owned()));
            }
            _ => {}
        }
        if path.file_name().is_none() {
            return Err(not_writable("it names no file".to_owned()));
        }
        let directory = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let file = tempfile::Builder::new()
            .prefix(".gicbench-")
            // Less the umask, as any other file.
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(directory)
            .map_err(|error| not_writable(error.to_string()))?;
        Ok(Output { path: path.to_owned(), file, force })
    }

    /// Claims both files of a run, where they are asked for.
    ///
    /// # Errors
    /// As [`Output::open`], or both are one file.
    pub fn open_both(
        json: Option<&Path>,
        csv: Option<&Path>,
        force: bool,
    ) -> Result<(Option<Self>, Option<Self>), UsageError> {
        if let (Some(json), Some(csv)) = (json, csv)
            && json == csv
        {
            return Err(UsageError::SameFile(json.to_owned()));
        }
        let open = |path: Option<&Path>| path.map(|path| Output::open(path, force)).transpose();
        Ok((open(json)?, open(csv)?))
    }

    /// Writes the file and puts it in its place.
    ///
    /// # Errors
    /// It can't be written, or has come to be while the run went on.
    pub fn finish(
        self,
        write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<(), RunError> {
        let failed = |source| RunError::Write { what: self.path.display().to_string(), source };
        let mut out = BufWriter::new(&self.file);
        write(&mut out).and_then(|()| out.flush()).map_err(failed)?;
        drop(out);
        let persisted = if self.force {
            self.file.persist(&self.path)
        } else {
            self.file.persist_noclobber(&self.path)
        };
        persisted.map(drop).map_err(|error| RunError::Write {
            what: self.path.display().to_string(),
            source: error.error,
        })
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
        let refused = Output::open(&path, false)
            .unwrap()
            .finish(|out| out.write_all(b"half").and_then(|()| Err(io::Error::other("full"))));
        assert!(refused.is_err());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);

        Output::open(&path, false).unwrap().finish(|out| out.write_all(b"whole")).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"whole");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_that_exists_is_only_overwritten_by_force() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out");
        let claimed = Output::open(&path, false).unwrap();
        fs::write(&path, "mine").unwrap();
        assert!(matches!(Output::open(&path, false), Err(UsageError::FileExists(_))));
        assert!(claimed.finish(|out| out.write_all(b"other")).is_err());
        assert_eq!(fs::read(&path).unwrap(), b"mine");
        Output::open(&path, true).unwrap().finish(|out| out.write_all(b"new")).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
    }

    #[test]
    fn what_can_never_be_a_file_is_refused_before_the_run() {
        let directory = tempfile::tempdir().unwrap();
        for path in [directory.path().to_owned(), directory.path().join("no/such"), "..".into()] {
            assert!(matches!(Output::open(&path, true), Err(UsageError::NotWritable { .. })));
        }
        let path = directory.path().join("out");
        assert!(matches!(
            Output::open_both(Some(&path), Some(&path), false),
            Err(UsageError::SameFile(_))
        ));
    }
}
