//! From a launcher's words to ranks that have found each other.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::time::Duration;

use crate::card::{Card, CardError, CardFile};
use crate::launch::{Launch, Variables};
use crate::pmix::{Pmix, PmixError};
use crate::token::{Token, TokenError};
use crate::world::{Door, Identity, JoinError, Joining, World};

/// What the user says of the meeting, beside what the launcher does.
pub struct Meeting {
    /// Where rank 0 listens: an address or a name, with a port or without.
    pub rendezvous: Option<String>,
    /// The run's token, if it was agreed on.
    pub token: Option<String>,
    /// How long ranks wait for each other.
    pub patience: Duration,
    /// What all of them must agree on.
    pub agreement: String,
    /// Told, a line each, of who was refused.
    pub log: Box<dyn Fn(&str) + Send + Sync>,
}

/// The ranks can't meet.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// PMIx.
    #[error(transparent)]
    Pmix(#[from] PmixError),
    /// The token.
    #[error("GICBENCH_TOKEN: {0}")]
    Token(#[from] TokenError),
    /// No token, and no file that both sides could read.
    #[error(
        "rank 0 at {0} is reached over a network: set GICBENCH_TOKEN to the same secret for all ranks, such as the \
         output of `openssl rand -hex 16`"
    )]
    NoToken(SocketAddr),
    /// Not an address.
    #[error("{text} is no address of a machine{}", why.as_deref().map(|why| format!(": {why}")).unwrap_or_default())]
    Address {
        /// What was said.
        text: String,
        /// What the system said.
        why: Option<String>,
    },
    /// The card.
    #[error(transparent)]
    Card(#[from] CardError),
    /// The meeting.
    #[error(transparent)]
    Join(#[from] JoinError),
}

/// The ranks, and what keeps their launcher content.
#[derive(Debug)]
pub struct Started {
    /// The ranks.
    pub world: World,
    /// To be kept until the run is over: its end tells the launcher that this rank ends well.
    pub keep: Box<dyn std::any::Any + Send + Sync>,
}

/// Brings the ranks together; none where the process is alone. Rank 0 answers the others' calls with `answer`.
///
/// # Errors
/// The ranks can't meet.
pub fn start(
    launch: Launch,
    meeting: Meeting,
    answer: impl Fn(u32, &[u8]) -> Vec<u8> + Send + Sync + 'static,
) -> Result<Option<Started>, StartError> {
    match launch {
        Launch::Alone => Ok(None),
        Launch::Pmix => by_pmix(meeting, answer),
        Launch::Variables(variables) => by_variables(&variables, meeting, answer),
    }
}

impl Meeting {
    fn joining(self, rank: u32, size: u32) -> Joining {
        let Self { patience, agreement, log, .. } = self;
        Joining { rank, size, patience, identity: Identity::of_this_process(&agreement), log }
    }

    /// Where rank 0 listens: as was said, or at `host` and `port`.
    fn place(&self, host: &str, port: u16) -> Result<SocketAddr, StartError> {
        match &self.rendezvous {
            Some(text) => resolve(text, port),
            None => resolve(host, port),
        }
    }
}

/// The address that a name, or an address, with or without a port, stands for.
fn resolve(text: &str, port: u16) -> Result<SocketAddr, StartError> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(SocketAddr::new(address, port));
    }
    let with_port = match text.rsplit_once(':') {
        Some((host, given)) if !host.is_empty() && given.parse::<u16>().is_ok() => text.to_owned(),
        _ => format!("{text}:{port}"),
    };
    let failed = |why| StartError::Address { text: text.to_owned(), why };
    let mut found = with_port.to_socket_addrs().map_err(|error| failed(Some(error.to_string())))?;
    found.next().ok_or_else(|| failed(None))
}

fn by_pmix(
    meeting: Meeting,
    answer: impl Fn(u32, &[u8]) -> Vec<u8> + Send + Sync + 'static,
) -> Result<Option<Started>, StartError> {
    let pmix = Pmix::connect()?;
    let (rank, size) = (pmix.rank(), pmix.size());
    if size == 1 {
        return Ok(None);
    }
    let world = if rank == 0 {
        let at = meeting.place(&Ipv4Addr::LOCALHOST.to_string(), 0)?;
        let token = Token::random()?;
        let door = Door::open(at, token.clone())?;
        let card = Card { address: door.address(), host: crate::host_name(), token };
        pmix.publish(&card.reveal()?)?;
        World::gather(meeting.joining(rank, size), door, answer)?
    } else {
        let card = Card::read(&pmix.read(meeting.patience)?)?;
        World::enter(meeting.joining(rank, size), &|| Ok(Some(card.clone())))?
    };
    Ok(Some(Started { world, keep: Box::new(pmix) }))
}

fn by_variables(
    variables: &Variables,
    meeting: Meeting,
    answer: impl Fn(u32, &[u8]) -> Vec<u8> + Send + Sync + 'static,
) -> Result<Option<Started>, StartError> {
    let &Variables { rank, size, ref host, port } = variables;
    let agreed = meeting.token.as_deref().map(Token::agreed).transpose()?;
    let at = meeting.place(host, port)?;
    let path = CardFile::path(at.port());
    if agreed.is_none() && !at.ip().is_loopback() {
        return Err(StartError::NoToken(at));
    }
    let world = if rank == 0 {
        let token = match &agreed {
            Some(token) => token.clone(),
            None => Token::random()?,
        };
        let door = Door::open(at, token.clone())?;
        let card = Card { address: door.address(), host: crate::host_name(), token };
        let file = if agreed.is_none() { Some(CardFile::write(&path, &card)?) } else { None };
        let world = World::gather(meeting.joining(rank, size), door, answer);
        drop(file);
        world?
    } else {
        let card = || match &agreed {
            Some(token) => {
                // Where rank 0 is was said, and on which machine wasn't: this one's name accuses nobody.
                let host = crate::host_name();
                Ok(Some(Card { address: at, host, token: token.clone() }))
            }
            None => CardFile::read(&path),
        };
        World::enter(meeting.joining(rank, size), &card)?
    };
    Ok(Some(Started { world, keep: Box::new(()) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_with_and_without_a_port() {
        for (text, expected) in [
            ("127.0.0.1", "127.0.0.1:7"),
            ("127.0.0.1:9", "127.0.0.1:9"),
            ("::1", "[::1]:7"),
            ("[::1]:9", "[::1]:9"),
        ] {
            assert_eq!(
                resolve(text, 7).unwrap(),
                expected.parse::<SocketAddr>().unwrap(),
                "{text}"
            );
        }
        assert!(resolve("no such name.invalid", 7).is_err());
    }
}
