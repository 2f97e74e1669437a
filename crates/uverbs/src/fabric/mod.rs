//! The fabric: what links the devices of one run's processes.
//!
//! A file in memory that no directory names, made by who starts the run and opened by its processes, of the same user
//! alone. It holds a table of nodes (a device of one process is one), a table of links with their lanes, and the text of
//! findings. Tables are changed under the file's lock, which the kernel takes back from a process that dies; lanes need
//! none. Everything read from it is checked: another process may have written it.

mod layout;
mod life;

use std::any::Any;
use std::num::NonZero;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{
    FallocateFlags, FlockOperation, MemfdFlags, Mode, OFlags, fallocate, fchmod, flock, fstat,
    ftruncate, memfd_create, open,
};
use rustix::process::{getpid, getuid};
use rustix::thread::futex;
use rustix::time::Timespec;
use softnic::{LinkAttr, LinkEnd, Mapping, shared_link};

use crate::errno::Errno;
use layout::{LINKS, LinkEntry, NODES, NodeEntry, Table};

/// Upper bytes of QP numbers that one node has.
const TAGS: u8 = 4;
/// Lanes of 1 MiB: what fits is on its way while the other engine waits for a processor.
const LANES: LinkAttr = LinkAttr { log_lane_bytes: 20 };
/// A lock is held for microseconds; who waits longer waits for a process that stands still.
const PATIENCE: Duration = Duration::from_secs(5);

/// The fabric can't be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FabricError {
    /// The system refused something.
    #[error("the fabric's memory can't be {what}: {errno:?}")]
    System {
        /// What was to be done.
        what: &'static str,
        /// What the system said.
        errno: Errno,
    },
    /// It isn't this user's.
    #[error("the fabric's memory belongs to user {owner}, not to {user}")]
    Owner {
        /// Whose it is.
        owner: u32,
        /// Who asks.
        user: u32,
    },
    /// It isn't a fabric, or of another version.
    #[error("this file isn't the fabric of a run of this version")]
    Format,
}

fn system(what: &'static str) -> impl Fn(rustix::io::Errno) -> FabricError {
    move |errno| FabricError::System { what, errno: errno.into() }
}

/// A device of one process, on the fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    /// Its entry.
    pub(crate) at: usize,
    /// Counts who has had the entry.
    incarnation: u32,
}

impl Node {
    /// Its address on links.
    pub(crate) fn nic(self) -> u16 {
        self.at as u16 + 1
    }
    /// The upper bytes of its QP numbers.
    pub(crate) fn tags(self) -> std::ops::RangeInclusive<u8> {
        let first = self.at as u8 * TAGS + 1;
        first..=first + (TAGS - 1)
    }
}

/// The node that a QP number belongs to, if any does.
fn node_of(qpn: u32) -> Option<usize> {
    let tag = (qpn >> 16) as usize & 0xff;
    let at = tag.checked_sub(1)? / usize::from(TAGS);
    (at < NODES).then_some(at)
}

/// The memory that links the processes of a run.
pub struct Fabric {
    table: Table,
    file: OwnedFd,
    /// The file's lock is the process's, not the thread's.
    turn: Mutex<()>,
}

struct Locked<'a> {
    fabric: &'a Fabric,
    _turn: MutexGuard<'a, ()>,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let _ = flock(&self.fabric.file, FlockOperation::Unlock);
    }
}

impl Fabric {
    /// Makes a fabric's memory. It is gone when nobody has it open any more.
    ///
    /// # Errors
    /// What the system says.
    pub fn create() -> Result<OwnedFd, FabricError> {
        let file = memfd_create("gicbench-fabric", MemfdFlags::CLOEXEC).map_err(system("made"))?;
        fchmod(&file, Mode::RUSR | Mode::WUSR).map_err(system("made private"))?;
        ftruncate(&file, layout::SIZE as u64).map_err(system("sized"))?;
        let table =
            Table::map(&file).map_err(|errno| FabricError::System { what: "mapped", errno })?;
        table.sign();
        Ok(file)
    }

    /// A fabric of this process alone.
    ///
    /// # Errors
    /// What the system says.
    pub fn private() -> Result<Self, FabricError> {
        Self::from_file(Self::create()?)
    }

    /// Opens the fabric behind a path, which is a descriptor of the process that made it (`/proc/PID/fd/N`).
    ///
    /// # Errors
    /// What the system says, a stranger's file, or one that isn't a fabric.
    pub fn open(path: &Path) -> Result<Self, FabricError> {
        let file =
            open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(system("opened"))?;
        Self::from_file(file)
    }

    fn from_file(file: OwnedFd) -> Result<Self, FabricError> {
        let stat = fstat(&file).map_err(system("looked at"))?;
        let user = getuid().as_raw();
        if stat.st_uid != user {
            return Err(FabricError::Owner { owner: stat.st_uid, user });
        }
        if stat.st_size != layout::SIZE as i64 || stat.st_mode & 0o077 != 0 {
            return Err(FabricError::Format);
        }
        let table =
            Table::map(&file).map_err(|errno| FabricError::System { what: "mapped", errno })?;
        if !table.is_signed() {
            return Err(FabricError::Format);
        }
        Ok(Self { table, file, turn: Mutex::new(()) })
    }

    fn lock(&self) -> Result<Locked<'_>, Errno> {
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let deadline = Instant::now() + PATIENCE;
        loop {
            match flock(&self.file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Locked { fabric: self, _turn: turn }),
                Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            if Instant::now() >= deadline {
                return Err(Errno::ETIMEDOUT);
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Puts a device of this process on the fabric.
    ///
    /// # Errors
    /// `ENOMEM` if there are too many, `ETIMEDOUT` if another process holds the lock.
    pub(crate) fn join(&self, device: u16) -> Result<Node, Errno> {
        let _locked = self.lock()?;
        let free = (0..NODES)
            .find(|&at| !self.table.node(at).is_live())
            .or_else(|| (0..NODES).find(|&at| !life::is_alive(self.table.node(at))))
            .ok_or(Errno::ENOMEM)?;
        let entry = self.table.node(free);
        let incarnation = entry.incarnation.load(Relaxed).wrapping_add(1);
        entry.incarnation.store(incarnation, Release);
        entry.device.store(u32::from(device), Relaxed);
        entry.pid.store(getpid().as_raw_nonzero().get() as u32, Relaxed);
        entry.start.store(life::start_of_this(), Relaxed);
        entry.state.store(NodeEntry::LIVE, Release);
        Ok(Node { at: free, incarnation })
    }

    /// Takes a device of this process off.
    pub(crate) fn leave(&self, node: Node) {
        let entry = self.table.node(node.at);
        if entry.incarnation.load(Acquire) == node.incarnation {
            entry.state.store(NodeEntry::FREE, Release);
        }
    }

    /// Whether a node's process is still there; costs a look at the system when `thoroughly`.
    pub(crate) fn is_there(&self, node: Node, thoroughly: bool) -> bool {
        let entry = self.table.node(node.at);
        entry.is_live()
            && entry.incarnation.load(Acquire) == node.incarnation
            && (!thoroughly || life::is_alive(entry))
    }

    /// The node that a device's QP number belongs to, if one has it.
    pub(crate) fn owner(&self, device: u16, qpn: u32) -> Option<Node> {
        let at = node_of(qpn)?;
        let entry = self.table.node(at);
        let is_it = entry.is_live() && entry.device.load(Relaxed) == u32::from(device);
        is_it.then(|| Node { at, incarnation: entry.incarnation.load(Acquire) })
    }

    /// This node's end of the link to another, if it hasn't got it yet.
    ///
    /// # Errors
    /// `ENOMEM` if there are too many links, and what the system says.
    pub(crate) fn connect(&self, me: Node, peer: Node) -> Result<Option<LinkEnd>, Errno> {
        let _locked = self.lock()?;
        if let Some(at) = (0..LINKS).find(|&at| self.table.link(at).joins(me, peer)) {
            return self.take_end(at, me);
        }
        let at = (0..LINKS)
            .find(|&at| self.table.link(at).is_free())
            .or_else(|| (0..LINKS).find(|&at| self.is_abandoned(self.table.link(at))))
            .ok_or(Errno::ENOMEM)?;
        // Zero bytes again, whoever has had them; those who still have them mapped have gone.
        let (offset, len) = layout::lanes(at);
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&self.file, punch, offset, len as u64)?;
        self.table.link(at).set(me, peer);
        self.table.node(peer.at).bell.fetch_add(1, AcqRel);
        self.take_end(at, me)
    }

    fn is_abandoned(&self, link: &LinkEntry) -> bool {
        link.ends().into_iter().zip(&link.taken).all(|(node, taken)| {
            taken.load(Acquire) == LinkEntry::RELEASED
                || node.at >= NODES
                || !self.is_there(node, true)
        })
    }

    /// This node has dropped its end of the link to another that is gone.
    pub(crate) fn release(&self, me: Node, peer: Node) {
        for link in (0..LINKS).map(|at| self.table.link(at)).filter(|link| link.joins(me, peer)) {
            let [first, _] = link.ends();
            link.taken[usize::from(first != me)].store(LinkEntry::RELEASED, Release);
        }
    }

    fn take_end(&self, at: usize, me: Node) -> Result<Option<LinkEnd>, Errno> {
        let link = self.table.link(at);
        let [first, second] = link.ends();
        let (is_first, peer) = if first == me { (true, second) } else { (false, first) };
        let taken = &link.taken[usize::from(!is_first)];
        if taken.load(Acquire) != 0 {
            return Ok(None);
        }
        let (offset, len) = layout::lanes(at);
        let len = NonZero::new(len).ok_or(Errno::EINVAL)?;
        let mapping = Mapping::new(self.file.as_fd(), offset, len)?;
        let base = mapping.base();
        let keep: Arc<dyn Any + Send + Sync> = Arc::new(mapping);
        taken.store(LinkEntry::TAKEN, Release);
        // SAFETY: page-aligned, as long as the lanes need, mapped as long as `keep` lives; zero when the link was
        // made, and each end is taken once, under the lock.
        Ok(Some(unsafe { shared_link(peer.nic(), is_first, base, LANES, &keep) }))
    }

    /// Sleeps until a peer of one of these nodes, all of this process, has work for it, or for as long as `most`;
    /// not at all if `is_quiet` says that there is something to do when everybody can see that they sleep.
    pub(crate) fn doze(&self, nodes: &[Node], most: Duration, is_quiet: impl FnOnce() -> bool) {
        let Some(seat) = nodes.first() else { return std::thread::sleep(most) };
        for node in nodes {
            let entry = self.table.node(node.at);
            entry.seat.store(seat.at as u32, Relaxed);
            entry.asleep.store(1, Relaxed);
        }
        // Either this engine sees what a peer has published, or the peer sees that this engine sleeps.
        fence(SeqCst);
        if is_quiet() {
            let timeout = Timespec {
                tv_sec: most.as_secs().try_into().unwrap_or(i64::MAX),
                tv_nsec: most.subsec_nanos().into(),
            };
            let word = &self.table.node(seat.at).asleep;
            // Woken, too late, or interrupted: all the same.
            let _ = futex::wait(word, futex::Flags::empty(), 1, Some(&timeout));
        }
        for node in nodes {
            self.table.node(node.at).asleep.store(0, Relaxed);
        }
    }

    /// Wakes the engine of a node's process, if it sleeps: there is something for it on a lane.
    pub(crate) fn wake(&self, node: Node) {
        let entry = self.table.node(node.at);
        if entry.asleep.load(Relaxed) == 1 && entry.asleep.swap(0, AcqRel) == 1 {
            let seat = self.table.node(entry.seat.load(Relaxed) as usize);
            seat.asleep.store(0, Release);
            let _ = futex::wake(&seat.asleep, futex::Flags::empty(), 1);
        }
    }

    /// Changes when somebody has linked himself to this node.
    pub(crate) fn bell(&self, me: Node) -> u32 {
        self.table.node(me.at).bell.load(Acquire)
    }

    /// The ends of links that others have made to this node.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub(crate) fn accept(&self, me: Node) -> Result<Vec<(Node, LinkEnd)>, Errno> {
        let _locked = self.lock()?;
        let mut ends = Vec::new();
        for at in 0..LINKS {
            let link = self.table.link(at);
            let [first, second] = link.ends();
            if !link.is_free()
                && second == me
                && first.at < NODES
                && first != me
                && let Some(end) = self.take_end(at, me)?
            {
                ends.push((first, end));
            }
        }
        Ok(ends)
    }

    /// Adds a line to the run's findings. What doesn't fit is counted by the length alone.
    pub fn report(&self, line: &str) {
        self.table.append(line.as_bytes());
        self.table.append(b"\n");
    }

    /// The run's findings, a line each.
    #[must_use]
    pub fn reported(&self) -> String {
        self.table.text()
    }
}

#[cfg(test)]
mod tests;
