//! What the processes of a run have in common: the fabric, the files by which devices are found, and the library that is
//! loaded into each.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::fabric::{Fabric, FabricError};
use crate::settings::{Settings, SettingsError};
use crate::sysfs;

/// A run can't be made ready.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The fabric.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The settings.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The trace.
    #[error("the trace {path} can't be written: {error}")]
    Trace {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// A file of the run's.
    #[error("the run's file {path} can't be written: {error}")]
    File {
        /// Which.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
}

/// A run. Its directory, readable by the user alone, goes with it; the fabric goes with the last process that has it.
pub struct Run {
    directory: tempfile::TempDir,
    library: PathBuf,
    fabric: Fabric,
    _file: OwnedFd,
    _trace: Option<File>,
}

impl Run {
    /// Makes a run ready; a trace begins as an empty file. `library` is the preload library's bytes, or the path of one that is used where it is.
    ///
    /// # Errors
    /// What the system says.
    pub fn new(settings: &Settings, library: Result<&[u8], PathBuf>) -> Result<Self, RunError> {
        settings.check()?;
        let mut settings = settings.clone();
        let trace = settings.trace.as_deref().map(empty).transpose()?;
        let own = |fd: i32| format!("/proc/{}/fd/{fd}", std::process::id());
        // By whatever path they were started in, all processes reach it.
        settings.trace = trace.as_ref().map(|file| own(file.as_raw_fd()).into());
        let file = Fabric::create()?;
        let of = |path: &Path| {
            let path = path.to_owned();
            move |error| RunError::File { path, error }
        };
        let parent = std::env::temp_dir();
        let directory = tempfile::Builder::new()
            .prefix("gicbench-nic-")
            .permissions(std::fs::Permissions::from_mode(0o700))
            .tempdir()
            .map_err(of(&parent))?;
        let path = own(file.as_raw_fd());
        let fabric = Fabric::open(path.as_ref())?;
        let text = format!("fabric {path}\n{}", settings.text());
        let run = directory.path().join("run");
        std::fs::write(&run, text).map_err(of(&run))?;
        let sys = directory.path().join("sys");
        let is_down = |device: &_| settings.is_down(device);
        sysfs::write(&sys, &settings.devices, is_down).map_err(of(&sys))?;
        let library = match library {
            Err(path) => path,
            Ok(bytes) => {
                let path = directory.path().join("libgicbench_nic.so");
                std::fs::write(&path, bytes).map_err(of(&path))?;
                path
            }
        };
        Ok(Self { directory, library, fabric, _file: file, _trace: trace })
    }

    /// Makes a command one of the run's processes.
    pub fn adopt(&self, command: &mut Command) {
        let mut preload = OsString::from(&self.library);
        if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
            preload.push(":");
            preload.push(others);
        }
        command.env("LD_PRELOAD", preload).env("GICBENCH_NIC_RUN", self.directory.path());
    }

    /// What the devices saw their programs do wrong, a line each.
    #[must_use]
    pub fn findings(&self) -> String {
        self.fabric.reported()
    }
}

/// Makes a trace's file, or empties it.
fn empty(path: &Path) -> Result<File, RunError> {
    let wrong = |error| RunError::Trace { path: path.to_owned(), error };
    let mut options = OpenOptions::new();
    // A pipe is not waited for.
    options.write(true).create(true).truncate(true).custom_flags(libc::O_NONBLOCK);
    let file = options.open(path).map_err(wrong)?;
    if !file.metadata().map_err(wrong)?.is_file() {
        let kind = std::io::ErrorKind::InvalidInput;
        return Err(wrong(std::io::Error::new(kind, "it is no regular file")));
    }
    Ok(file)
}
