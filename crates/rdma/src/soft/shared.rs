//! A software NIC that is linked to one of another process of this machine, through memory that both map.
//!
//! The memory is a file that no directory names, of the user alone: the other process opens it through `/proc`, which the
//! system allows to the same user only. It is gone with the last of the two.

use std::any::Any;
use std::num::NonZero;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{MemfdFlags, Mode, OFlags, fchmod, fstat, ftruncate, memfd_create, open};
use softnic::{LinkAttr, LinkEnd, Mapping, shared_link, shared_link_bytes};

use crate::Error;

const LINK: LinkAttr = LinkAttr { log_lane_bytes: 20 };
const BYTES: usize = shared_link_bytes(LINK);

/// The memory of a link between two processes, as who makes it has it.
#[derive(Debug)]
pub struct SharedLink {
    file: OwnedFd,
}

/// One end of a link to another process's NIC.
pub struct FarLink(pub(super) LinkEnd);

fn failed(what: &'static str) -> impl Fn(rustix::io::Errno) -> Error {
    move |errno| Error::SharedLink { what, errno: errno.raw_os_error() }
}

impl SharedLink {
    /// Memory for one link.
    ///
    /// # Errors
    /// The system has none.
    pub fn create() -> Result<Self, Error> {
        let file = memfd_create("gicbench-link", MemfdFlags::CLOEXEC).map_err(failed("made"))?;
        fchmod(&file, Mode::RUSR | Mode::WUSR).map_err(failed("made the user's own"))?;
        ftruncate(&file, BYTES as u64).map_err(failed("sized"))?;
        Ok(Self { file })
    }

    /// Where another process of this user finds it, while this one lives.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd()))
    }

    /// The maker's end, which leads to NIC `remote`.
    ///
    /// # Errors
    /// It can't be mapped.
    pub fn near(&self, remote: u16) -> Result<FarLink, Error> {
        end(&self.file, remote, true)
    }

    /// The other process's end, which leads to NIC `remote`.
    ///
    /// # Errors
    /// There is none at `path`, or it is another user's.
    pub fn far(path: &Path, remote: u16) -> Result<FarLink, Error> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let file = open(path, flags, Mode::empty()).map_err(failed("opened"))?;
        let stat = fstat(&file).map_err(failed("looked at"))?;
        let user = rustix::process::getuid().as_raw();
        if stat.st_uid != user || stat.st_mode & 0o077 != 0 || stat.st_size != BYTES as i64 {
            return Err(Error::SharedLink {
                what: "believed",
                errno: rustix::io::Errno::ACCESS.raw_os_error(),
            });
        }
        end(&file, remote, false)
    }
}

fn end(file: &OwnedFd, remote: u16, first: bool) -> Result<FarLink, Error> {
    let len = NonZero::new(BYTES).unwrap_or(NonZero::<usize>::MIN);
    let mapping = Mapping::new(file, 0, len).map_err(failed("mapped"))?;
    let base = mapping.base();
    let keep: Arc<dyn Any + Send + Sync> = Arc::new(mapping);
    // SAFETY: page-aligned, as long as the link needs and mapped as long as `keep` lives; zero when it was made, and
    // each process takes its end once. The other one is of the same user, and runs this code.
    let end = unsafe { shared_link(remote, first, base, LINK, &keep) };
    Ok(FarLink(end))
}
