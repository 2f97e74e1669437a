//! Frames on a stream: a length of 4 bytes, least first, and so many bytes.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// The most bytes of a frame.
pub(crate) const MOST: usize = 16 << 20;

/// Sends a frame.
pub(crate) fn send(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
    let length = u32::try_from(bytes.len()).ok().filter(|length| *length as usize <= MOST);
    let length = length.ok_or_else(|| {
        let why = format!("a message of {} bytes: {MOST} is the most", bytes.len());
        io::Error::new(io::ErrorKind::InvalidInput, why)
    })?;
    let mut frame = Vec::with_capacity(4 + bytes.len());
    frame.extend_from_slice(&length.to_le_bytes());
    frame.extend_from_slice(bytes);
    stream.write_all(&frame)
}

/// Takes a frame of at most `most` bytes; none where the stream has ended between two.
pub(crate) fn receive(stream: &mut impl Read, most: usize) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 4];
    let mut got = 0;
    while got < length.len() {
        match stream.read(&mut length[got..]) {
            Ok(0) if got == 0 => return Ok(None),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(more) => got += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > most {
        let why = format!("a message of {length} bytes where {most} is the most");
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes)?;
    Ok(Some(bytes))
}

/// Has the next reads and writes of a stream end by `until`, or never.
pub(crate) fn end_by(stream: &TcpStream, until: Option<Instant>) -> io::Result<()> {
    let left = match until {
        None => None,
        Some(until) => match until.saturating_duration_since(Instant::now()) {
            Duration::ZERO => return Err(io::ErrorKind::TimedOut.into()),
            left => Some(left),
        },
    };
    stream.set_read_timeout(left)?;
    stream.set_write_timeout(left)
}

/// Whether an error is a wait that was too long.
pub(crate) fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}
