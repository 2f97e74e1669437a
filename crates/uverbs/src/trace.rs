//! What the devices of a process did, as lines of JSON in the file that all processes of a run append to.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use softnic::{Cause, Qpn, TraceRecord, Traced};
use wire::wqe::Opcode;

use crate::channel::identity;
use crate::errno::Errno;

/// Records that a device keeps from one step to the next.
pub(crate) const RECORDS: usize = 1 << 14;
/// Bytes that are kept until they are written.
const KEPT: usize = 64 << 10;

/// The file, and what isn't in it yet.
pub(crate) struct TraceFile {
    file: File,
    /// Device and number of the file: a program may close what isn't its own, and open another in its place.
    identity: (u64, u64),
    lines: String,
    /// Lines that couldn't be written.
    lost: u64,
    pid: u32,
}

fn system(errno: Errno) -> io::Error {
    io::Error::from_raw_os_error(errno.0)
}

impl TraceFile {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new()
            .append(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open(path)?;
        // Out of the way of programs that count on low numbers.
        // SAFETY: F_DUPFD_CLOEXEC makes a new descriptor and touches no other.
        let high = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 512) };
        // SAFETY: a descriptor that was just made and is nobody else's.
        let file = if high >= 0 { unsafe { File::from_raw_fd(high) } } else { file };
        let identity = identity(file.as_raw_fd()).map_err(system)?;
        Ok(Self { file, identity, lines: String::new(), lost: 0, pid: std::process::id() })
    }

    fn line(&mut self, at: u64, device: &str, event: &str, rest: std::fmt::Arguments<'_>) {
        let pid = self.pid;
        // A string takes all.
        let _ = writeln!(
            self.lines,
            r#"{{"time_ns":{at},"pid":{pid},"device":"{device}","event":"{event}"{rest}}}"#
        );
        if self.lines.len() >= KEPT {
            self.flush();
        }
    }

    /// The device is in use by this process from now on.
    pub(crate) fn opened(&mut self, at: u64, device: &str) {
        self.line(at, device, "open", format_args!(""));
    }

    /// The process has ended in order: everything that its device did is in the file.
    pub(crate) fn closed(&mut self, at: u64, device: &str) {
        self.line(at, device, "close", format_args!(""));
    }

    pub(crate) fn port(&mut self, at: u64, device: &str, is_up: bool) {
        self.line(at, device, "port", format_args!(r#","up":{is_up}"#));
    }

    /// Packets were lost on purpose.
    pub(crate) fn dropped(&mut self, at: u64, device: &str, packets: u64) {
        self.line(at, device, "drop", format_args!(r#","packets":{packets}"#));
    }

    /// Of so many WQEs and receives there is no line.
    pub(crate) fn missed(&mut self, at: u64, device: &str, records: u64) {
        self.line(at, device, "missed", format_args!(r#","records":{records}"#));
    }

    pub(crate) fn record(&mut self, device: &str, record: &TraceRecord) {
        let mut rest = String::new();
        let (event, what) = match record.what {
            Traced::Send(opcode) => {
                ("send", Opcode::from_byte(opcode).map_or("unknown", Opcode::name))
            }
            Traced::Receive(opcode) => ("receive", opcode.name()),
        };
        // A string takes all.
        let _ = write!(
            rest,
            r#","qpn":"{}","index":{},"what":"{what}""#,
            Qpn(record.qpn),
            record.index
        );
        let numbers = [
            ("bytes", u64::from(record.bytes)),
            ("packets", u64::from(record.packets)),
            ("doorbell_ns", record.doorbell),
            ("fetched_ns", record.fetched),
            ("executed_ns", record.executed),
        ];
        let is_known = |&(name, number): &(&str, u64)| number > 0 || name == "bytes";
        for (name, number) in numbers.iter().filter(|number| is_known(number)) {
            let _ = write!(rest, r#","{name}":{number}"#);
        }
        let _ = match record.failure {
            None => write!(rest, r#","status":"success""#),
            Some(Cause { syndrome, vendor }) => {
                write!(rest, r#","status":"{}","vendor":{vendor}"#, syndrome.name())
            }
        };
        self.line(record.completed, device, event, format_args!("{rest}"));
    }

    /// Writes what is kept.
    pub(crate) fn flush(&mut self) {
        if self.lines.is_empty() {
            return;
        }
        let fd = self.file.as_raw_fd();
        let is_there = identity(fd).is_ok_and(|identity| identity == self.identity);
        // One call, so that no other process's lines come between.
        if !is_there || self.file.write_all(self.lines.as_bytes()).is_err() {
            self.lost += self.lines.lines().count() as u64;
        }
        self.lines.clear();
    }

    /// Lines that couldn't be written, since the last call.
    pub(crate) fn take_lost(&mut self) -> u64 {
        std::mem::take(&mut self.lost)
    }
}

impl Drop for TraceFile {
    fn drop(&mut self) {
        self.flush();
        let is_there = identity(self.file.as_raw_fd()).is_ok_and(|found| found == self.identity);
        if !is_there && let Ok(null) = File::open("/dev/null") {
            // The number is another file's by now, which the program has to close itself.
            std::mem::forget(std::mem::replace(&mut self.file, null));
        }
    }
}
