//! Event channels: descriptors that a client reads events from, or polls.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, PoisonError};

use rustix::fs::fstat;
use rustix::io::ioctl_fionread;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};

use crate::errno::Errno;

/// Bytes of a completion event, and of an asynchronous one.
pub(crate) const COMPLETION_EVENT: usize = 8;
pub(crate) const ASYNC_EVENT: usize = 16;

/// What an event is about: the object's handle, and its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum About {
    Cq(u32),
    CqError(u32),
    Qp(u32),
    Srq(u32),
    Port,
}

/// A channel: the client has the reading end. Events have all the same length.
#[derive(Debug)]
pub(crate) struct Channel {
    writer: OwnedFd,
    /// The client's end again, to see what it hasn't read.
    reader: OwnedFd,
    identity: (u64, u64),
    event: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Events in the socket as of the last look, oldest first.
    sent: VecDeque<(About, Vec<u8>)>,
    /// Events that found no room in it.
    waiting: VecDeque<(About, Vec<u8>)>,
    /// Events that the client read, by object.
    read: Vec<(About, u32)>,
}

impl State {
    fn count(&mut self, about: About) {
        match self.read.iter_mut().find(|(of, _)| *of == about) {
            Some((_, count)) => *count += 1,
            None => self.read.push((about, 1)),
        }
    }
}

/// The device and the file that a descriptor leads to.
pub(crate) fn identity(fd: RawFd) -> Result<(u64, u64), Errno> {
    if fd < 0 {
        return Err(Errno::EBADF);
    }
    // SAFETY: only asked about, and never closed; a number that is no descriptor is answered with an error.
    let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
    let stat = fstat(fd)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// The files behind all descriptors of this process.
pub(crate) fn open_files() -> Result<Vec<(u64, u64)>, Errno> {
    let names = std::fs::read_dir("/proc/self/fd").map_err(|_| Errno::EIO)?;
    let numbers = names.filter_map(|name| name.ok()?.file_name().to_str()?.parse().ok());
    Ok(numbers.filter_map(|fd| identity(fd).ok()).collect())
}

impl Channel {
    /// A channel for events of `event` bytes, and the descriptor that is the client's from now on.
    pub(crate) fn new(event: usize) -> Result<(Self, OwnedFd), Errno> {
        let (reader, writer) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        // Out of the way of programs that count on low numbers.
        // SAFETY: F_DUPFD_CLOEXEC makes a new descriptor and touches no other.
        let high = unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 512) };
        // SAFETY: a descriptor that was just made and is nobody else's.
        let writer = if high >= 0 { unsafe { OwnedFd::from_raw_fd(high) } } else { writer };
        let client = reader;
        let reader = client.try_clone().map_err(|_| Errno::EMFILE)?;
        let identity = identity(client.as_raw_fd())?;
        let channel = Self { writer, reader, identity, event, state: Mutex::new(State::default()) };
        Ok((channel, client))
    }

    /// Whether a descriptor leads to this channel, and its events have so many bytes.
    pub(crate) fn is(&self, identity: (u64, u64), event: usize) -> bool {
        self.identity == identity && self.event == event
    }

    /// Whether another descriptor than this channel's own leads to the client's end.
    pub(crate) fn is_open_elsewhere(&self, files: &[(u64, u64)]) -> bool {
        files.iter().filter(|file| **file == self.identity).count() > 1
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an event, of the channel's length.
    pub(crate) fn push(&self, about: About, event: &[u8]) {
        if event.len() == self.event {
            let mut state = self.state();
            state.waiting.push_back((about, event.to_vec()));
            self.flush(&mut state);
        }
    }

    /// Whether events wait for room.
    pub(crate) fn flush_waiting(&self) {
        let mut state = self.state();
        if !state.waiting.is_empty() {
            self.flush(&mut state);
        }
    }

    fn flush(&self, state: &mut State) {
        while let Some((about, bytes)) = state.waiting.pop_front() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match send(&self.writer, &bytes, flags) {
                Ok(sent) if sent == bytes.len() => state.sent.push_back((about, bytes)),
                _ => {
                    state.waiting.push_front((about, bytes));
                    return;
                }
            }
            if state.sent.len() > 4096 {
                self.settle(state);
            }
        }
    }

    /// Moves what the client has read from `sent` to `read`.
    fn settle(&self, state: &mut State) {
        let unread = ioctl_fionread(&self.reader).unwrap_or(0) as usize / self.event;
        while state.sent.len() > unread {
            let Some((about, _)) = state.sent.pop_front() else { return };
            state.count(about);
        }
    }

    /// Takes back what the client hasn't read about an object. Gives the number of events that it has read.
    pub(crate) fn forget(&self, about: About) -> u32 {
        let mut state = self.state();
        self.settle(&mut state);
        state.waiting.retain(|(of, _)| *of != about);
        if state.sent.iter().any(|(of, _)| *of == about) {
            // All are taken out, and the others put back.
            let mut bytes = vec![0; self.event];
            let flags = RecvFlags::DONTWAIT;
            while matches!(recv(&self.reader, bytes.as_mut_slice(), flags), Ok((n, _)) if n == self.event)
            {
                while let Some(event) = state.sent.pop_front() {
                    if event.1 != bytes {
                        // The client read it in the meantime.
                        state.count(event.0);
                    } else if event.0 != about {
                        state.waiting.push_back(event);
                        break;
                    } else {
                        break;
                    }
                }
            }
            while let Some((of, _)) = state.sent.pop_front() {
                state.count(of);
            }
            self.flush(&mut state);
        }
        let at = state.read.iter().position(|(of, _)| *of == about);
        at.map_or(0, |at| state.read.swap_remove(at).1)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn read(client: &OwnedFd) -> Option<u64> {
        let mut bytes = [0; 8];
        let flags = RecvFlags::DONTWAIT;
        recv(client, bytes.as_mut_slice(), flags).ok().map(|_| u64::from_ne_bytes(bytes))
    }

    #[test]
    fn events_come_in_order_and_those_of_a_destroyed_object_are_taken_back() {
        let (channel, client) = Channel::new(8).unwrap();
        for nth in 0..6u32 {
            channel.push(About::Cq(nth % 2), &u64::from(nth).to_ne_bytes());
        }
        assert_eq!([read(&client), read(&client), read(&client)], [0, 1, 2].map(Some));
        // 3 and 5 are unread of object 1, which has had one read.
        assert_eq!(channel.forget(About::Cq(1)), 1);
        assert_eq!([read(&client), read(&client)], [Some(4), None]);
        assert_eq!(channel.forget(About::Cq(0)), 3);
        assert_eq!(channel.forget(About::Cq(0)), 0);
    }

    #[test]
    fn more_events_than_fit_wait_for_room() {
        let (channel, client) = Channel::new(8).unwrap();
        let count = 5_000u64;
        for nth in 0..count {
            channel.push(About::Qp(1), &nth.to_ne_bytes());
        }
        for nth in 0..count {
            let event = read(&client).or_else(|| {
                channel.flush_waiting();
                read(&client)
            });
            assert_eq!(event, Some(nth));
        }
        assert_eq!(u64::from(channel.forget(About::Qp(1))), count);
    }

    #[test]
    fn a_channel_whose_reader_is_gone_takes_events_all_the_same() {
        let (channel, client) = Channel::new(16).unwrap();
        assert!(channel.is(identity(client.as_raw_fd()).unwrap(), 16));
        drop(client);
        channel.push(About::CqError(1), &[0; 16]);
        channel.push(About::CqError(1), &[0; 15]);
        assert_eq!(channel.forget(About::CqError(1)), 0);
    }
}
