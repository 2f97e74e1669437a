//! What the processes of a run have in common: the fabric, the files by which devices are found, and the library that is
//! loaded into each.

use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use softnic::Profile;

use crate::config::{DeviceConfig, LinkLayer};
use crate::fabric::{Fabric, FabricError};
use crate::sysfs;

/// A run can't be made ready.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The fabric.
    #[error(transparent)]
    Fabric(#[from] FabricError),
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
}

impl Run {
    /// Makes a run ready. `library` is the preload library's bytes, or the path of one that is used where it is.
    ///
    /// # Errors
    /// What the system says.
    pub fn new(
        devices: &[DeviceConfig],
        profile: &Profile,
        library: Result<&[u8], PathBuf>,
    ) -> Result<Self, RunError> {
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
        let link_layer = match devices.first().map(|device| device.link_layer) {
            Some(LinkLayer::Ethernet) => "ethernet",
            _ => "infiniband",
        };
        let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        let fabric = Fabric::open(path.as_ref())?;
        let text = format!(
            "fabric {path}\ndevices {}\nlink-layer {link_layer}\nprofile {}\n",
            devices.len(),
            profile.name
        );
        let run = directory.path().join("run");
        std::fs::write(&run, text).map_err(of(&run))?;
        let sys = directory.path().join("sys");
        sysfs::write(&sys, devices).map_err(of(&sys))?;
        let library = match library {
            Err(path) => path,
            Ok(bytes) => {
                let path = directory.path().join("libgicbench_nic.so");
                std::fs::write(&path, bytes).map_err(of(&path))?;
                path
            }
        };
        Ok(Self { directory, library, fabric, _file: file })
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
