//! Who comes in: both sides prove that they hold the run's token before anything else is said.
//!
//! The rank that comes says hello, with bytes of chance; rank 0 answers with its own; the rank proves that it knows the
//! token with both, and rank 0 does the same. Everything before that is of fixed size, and takes no memory.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::token::{BYTES, Token, random};

/// Begins every hello: what this is, and its version.
const MAGIC: [u8; 16] = *b"gicbench ranks 1";

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// The rank calls rank 0.
    Up,
    /// Rank 0 calls the rank.
    Down,
}

/// What a rank says first: magic, rank, size, way, 32 bytes of chance.
const HELLO: usize = 16 + 4 + 4 + 4 + BYTES;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub rank: u32,
    pub size: u32,
    pub way: Way,
}

impl Hello {
    fn encode(self, chance: &[u8; BYTES]) -> [u8; HELLO] {
        let mut bytes = [0; HELLO];
        bytes[..16].copy_from_slice(&MAGIC);
        bytes[16..20].copy_from_slice(&self.rank.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.size.to_le_bytes());
        bytes[24..28].copy_from_slice(&u32::from(self.way == Way::Down).to_le_bytes());
        bytes[28..].copy_from_slice(chance);
        bytes
    }

    fn decode(bytes: &[u8; HELLO]) -> Option<Self> {
        let word = |at: usize| bytes[at..at + 4].try_into().map(u32::from_le_bytes).ok();
        let way = match word(24)? {
            0 => Way::Up,
            1 => Way::Down,
            _ => return None,
        };
        (bytes[..16] == MAGIC).then_some(Self { rank: word(16)?, size: word(20)?, way })
    }
}

/// Why rank 0 sends a rank away. As a byte on the wire, after its proof; 0 is welcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[repr(u8)]
#[non_exhaustive]
pub enum Refusal {
    /// The launcher told the ranks different sizes.
    #[error("rank 0 was told another number of ranks")]
    Size = 1,
    /// A number that isn't below the size, or is 0.
    #[error("rank 0 expects no rank of that number")]
    Rank = 2,
    /// Two processes with one number.
    #[error("a rank of that number has come already")]
    Twice = 3,
}

impl Refusal {
    fn of(code: u8) -> Option<Self> {
        [Self::Size, Self::Rank, Self::Twice].into_iter().find(|refusal| *refusal as u8 == code)
    }
}

/// Somebody who doesn't belong to the run.
#[derive(Debug, thiserror::Error)]
#[error("refused a connection from {from}: {why}")]
pub(crate) struct Stranger {
    /// Who.
    pub from: SocketAddr,
    /// What was wrong.
    pub why: StrangerWhy,
}

/// What was wrong with it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StrangerWhy {
    /// It doesn't speak as a rank does.
    #[error("it isn't a rank of this version")]
    Magic,
    /// It doesn't know the token.
    #[error("it doesn't hold the run's token")]
    Token,
    /// It said nothing, or not all.
    #[error("{0}")]
    Io(#[from] io::Error),
}

const CLIENT: &[u8] = b"rank";
const SERVER: &[u8] = b"rank 0";

/// Rank 0's part: who it is, once it has proved that it belongs to the run. The answer is still owed.
pub(crate) fn receive(
    stream: &mut TcpStream,
    token: &Token,
) -> Result<(Hello, Answer), StrangerWhy> {
    let mut bytes = [0; HELLO];
    stream.read_exact(&mut bytes)?;
    let hello = Hello::decode(&bytes).ok_or(StrangerWhy::Magic)?;
    let chance = random().map_err(io::Error::from)?;
    stream.write_all(&chance)?;
    let mut proof = [0; BYTES];
    stream.read_exact(&mut proof)?;
    if !token.accepts(&proof, &[CLIENT, &bytes, &chance]) {
        return Err(StrangerWhy::Token);
    }
    Ok((hello, Answer { proof: token.prove(&[SERVER, &bytes, &chance]) }))
}

/// What rank 0 owes to a rank that belongs to the run.
pub(crate) struct Answer {
    proof: [u8; BYTES],
}

impl Answer {
    pub(crate) fn give(self, stream: &mut TcpStream, refusal: Option<Refusal>) -> io::Result<()> {
        let mut bytes = [0; BYTES + 1];
        bytes[..BYTES].copy_from_slice(&self.proof);
        bytes[BYTES] = refusal.map_or(0, |refusal| refusal as u8);
        stream.write_all(&bytes)
    }
}

/// How a rank's knock ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Knock {
    /// Rank 0 doesn't want it.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// It isn't our rank 0, or it took us for a stranger.
    #[error("it doesn't hold the run's token, or took this process for one that doesn't")]
    Token,
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The part of the rank that comes.
pub(crate) fn knock(stream: &mut TcpStream, token: &Token, hello: Hello) -> Result<(), Knock> {
    let mine = random().map_err(io::Error::from)?;
    let bytes = hello.encode(&mine);
    stream.write_all(&bytes)?;
    let mut chance = [0; BYTES];
    stream.read_exact(&mut chance)?;
    stream.write_all(&token.prove(&[CLIENT, &bytes, &chance]))?;
    let mut answer = [0; BYTES + 1];
    match stream.read_exact(&mut answer) {
        Ok(()) => {}
        // Who is taken for a stranger is told nothing.
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset
            ) =>
        {
            return Err(Knock::Token);
        }
        Err(error) => return Err(error.into()),
    }
    if !token.accepts(&answer[..BYTES], &[SERVER, &bytes, &chance]) {
        return Err(Knock::Token);
    }
    match answer[BYTES] {
        0 => Ok(()),
        code => Err(Refusal::of(code).map_or(Knock::Token, Knock::Refused)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_is_read_as_it_was_written_and_nothing_else_is_one() {
        let hello = Hello { rank: 3, size: 4, way: Way::Down };
        let bytes = hello.encode(&[7; BYTES]);
        assert_eq!(Hello::decode(&bytes), Some(hello));
        for at in (0..16).chain([24, 25, 27]) {
            let mut broken = bytes;
            broken[at] ^= 0x40;
            assert_eq!(Hello::decode(&broken), None, "byte {at}");
        }
    }
}
