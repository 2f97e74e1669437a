//! The ranks of a run, once they have found each other: calls from rank 0 to each other rank and back, and who is lost.

mod gather;

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::card::{Card, CardError};
use crate::frame;
use crate::handshake::{Hello, Knock, Refusal, Way, knock};
use crate::token::Token;

/// What a rank says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Its machine.
    pub host: String,
    /// Its process there.
    pub pid: u32,
    /// What all ranks must agree on: their program's version and what it was asked to do.
    pub agreement: String,
}

impl Identity {
    /// Of this process.
    #[must_use]
    pub fn of_this_process(agreement: &str) -> Self {
        let (host, pid) = (crate::host_name(), std::process::id());
        Self { host, pid, agreement: agreement.to_owned() }
    }
}

/// A rank of the run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Its number.
    pub rank: u32,
    /// Its machine.
    pub host: String,
    /// Its process there.
    pub pid: u32,
}

impl Member {
    fn of(rank: u32, identity: &Identity) -> Self {
        Self { rank, host: identity.host.clone(), pid: identity.pid }
    }
}

impl std::fmt::Display for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rank {} ({}, process {})", self.rank, self.host, self.pid)
    }
}

/// A rank that comes to its run.
pub struct Joining {
    /// Its number.
    pub rank: u32,
    /// Ranks in all.
    pub size: u32,
    /// How long the others are waited for.
    pub patience: Duration,
    /// What it says of itself.
    pub identity: Identity,
    /// Told, a line each, of who was refused.
    pub log: Box<dyn Fn(&str) + Send + Sync>,
}

/// Where rank 0 receives the others.
#[derive(Debug)]
pub struct Door {
    listener: TcpListener,
    address: SocketAddr,
    token: Token,
}

impl Door {
    /// Listens at an address, where port 0 is any, for holders of `token`.
    ///
    /// # Errors
    /// The address isn't this machine's, or is in use.
    pub fn open(at: SocketAddr, token: Token) -> Result<Self, JoinError> {
        let bound = TcpListener::bind(at).and_then(|listener| {
            let address = listener.local_addr()?;
            listener.set_nonblocking(true)?;
            Ok(Self { listener, address, token })
        });
        bound.map_err(|source| JoinError::Listen { at, source })
    }

    /// Where it is.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// The ranks didn't find each other.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// Rank 0 can't listen.
    #[error(
        "rank 0 can't listen at {at}: {source}. Say where with --rendezvous ADDRESS[:PORT], or MASTER_ADDR and MASTER_PORT"
    )]
    Listen {
        /// Where.
        at: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// Some didn't come.
    #[error("of {size} ranks, {} did not come within {} s", list(missing), patience.as_secs_f64())]
    Missing {
        /// Who.
        missing: Vec<u32>,
        /// Ranks in all.
        size: u32,
        /// How long they were waited for.
        patience: Duration,
    },
    /// Rank 0 wasn't found, or ended the run before it began.
    #[error("rank {rank} did not get into the run within {} s: {why}", patience.as_secs_f64())]
    NoRank0 {
        /// This process's.
        rank: u32,
        /// How long it tried.
        patience: Duration,
        /// What happened last.
        why: String,
    },
    /// Rank 0 sent it away.
    #[error("rank {rank}: {refusal}")]
    Refused {
        /// This process's.
        rank: u32,
        /// Why.
        refusal: Refusal,
    },
    /// Ranks that don't do the same.
    #[error(
        "{member} was started with something else than rank 0: it says '{theirs}', and rank 0 '{ours}'"
    )]
    Disagree {
        /// Who.
        member: Member,
        /// Its words.
        theirs: String,
        /// Rank 0's.
        ours: String,
    },
    /// The run ended before it began, as rank 0 says.
    #[error("rank 0 says: {0}")]
    Ended(String),
    /// The card.
    #[error(transparent)]
    Card(#[from] CardError),
    /// Rank 0 is lost.
    #[error(transparent)]
    Call(#[from] CallError),
}

fn list(ranks: &[u32]) -> String {
    let numbers: Vec<String> = ranks.iter().map(ToString::to_string).collect();
    format!("rank{} {}", if ranks.len() == 1 { "" } else { "s" }, numbers.join(", "))
}

/// A call that wasn't answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The rank is gone.
    #[error("{who} is lost: {why}")]
    Lost {
        /// Who.
        who: String,
        /// How that was seen.
        why: String,
    },
    /// Not a call: nothing at all, which would be a goodbye, or too much.
    #[error("a call of {bytes} bytes: between 1 and {most} can be sent")]
    Length {
        /// Bytes in it.
        bytes: usize,
        /// The most.
        most: usize,
    },
    /// No such rank can be called from here.
    #[error("rank {rank} can't be called from this one")]
    NoLine {
        /// Whom.
        rank: u32,
    },
}

/// What ends a rank's service: a call of no bytes.
const GOODBYE: &[u8] = &[];
/// For a connection's first words, and for writing.
const MANNERS: Duration = Duration::from_secs(5);
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(20);

/// How rank 0 begins the run.
#[derive(Serialize, Deserialize)]
enum Beginning {
    Members(Vec<Member>),
    Ended(String),
}

/// The ranks of a run.
pub struct World {
    rank: u32,
    size: u32,
    members: Vec<Member>,
    lines: BTreeMap<u32, Mutex<TcpStream>>,
    /// Where rank 0's calls come in, for any other rank.
    calls: Option<Mutex<TcpStream>>,
    lost: Arc<Mutex<BTreeMap<u32, String>>>,
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World")
            .field("rank", &self.rank)
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has the system tell of a machine that is gone, within half a minute.
fn watch(stream: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(10))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(5))?;
    sockopt::set_tcp_keepcnt(stream, 4)?;
    Ok(())
}

impl World {
    /// Any rank but 0 comes to its run: looks for rank 0's card, and for rank 0, until its patience ends.
    ///
    /// # Errors
    /// It didn't find rank 0, or was sent away.
    pub fn enter(
        joining: Joining,
        card: &dyn Fn() -> Result<Option<Card>, CardError>,
    ) -> Result<Self, JoinError> {
        let Joining { rank, size, patience, .. } = joining;
        let until = Instant::now() + patience;
        let mut last = "rank 0 has left no card".to_owned();
        let (card, mut up) = loop {
            // Read again each time: the first one found may be of an earlier run.
            if let Some(card) = card()? {
                match line(&card, Hello { rank, size, way: Way::Up }, until) {
                    Ok(up) => break (card, up),
                    Err(Knock::Refused(refusal)) => {
                        return Err(JoinError::Refused { rank, refusal });
                    }
                    Err(error) => last = unreached(&card, &error),
                }
            }
            if Instant::now() >= until {
                return Err(JoinError::NoRank0 { rank, patience, why: last });
            }
            std::thread::sleep(PAUSE);
        };
        let failed = |error: &dyn std::fmt::Display| JoinError::NoRank0 {
            rank,
            patience,
            why: error.to_string(),
        };
        let identity = serde_json::to_vec(&joining.identity).map_err(|error| failed(&error))?;
        frame::send(&mut up, &identity).map_err(|error| failed(&error))?;
        let down = line(&card, Hello { rank, size, way: Way::Down }, until);
        let down = down.map_err(|error| failed(&unreached(&card, &error)))?;
        // Rank 0 waits for the others as long as this rank does, and then says who is missing.
        let begun = frame::end_by(&up, Some(until + MANNERS))
            .and_then(|()| frame::receive(&mut up, frame::MOST))
            .map_err(|error| failed(&late(&error, "rank 0 did not begin the run")))?;
        let begun = begun.ok_or_else(|| failed(&"rank 0 ended before the run began"))?;
        let members = match serde_json::from_slice(&begun).map_err(|error| failed(&error))? {
            Beginning::Members(members) => members,
            Beginning::Ended(why) => return Err(JoinError::Ended(why)),
        };
        watch(&down).and_then(|()| watch(&up)).map_err(|error| failed(&error))?;
        Ok(Self {
            rank,
            size,
            members,
            lines: BTreeMap::from([(0, Mutex::new(up))]),
            calls: Some(Mutex::new(down)),
            lost: Arc::default(),
        })
    }

    /// This rank's number.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Ranks in all.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.size
    }

    /// All of them, by number.
    #[must_use]
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// Why a rank is lost, if it is.
    #[must_use]
    pub fn lost(&self, rank: u32) -> Option<CallError> {
        let why = lock(&self.lost).get(&rank)?.clone();
        Some(CallError::Lost { who: self.who(rank), why })
    }

    fn who(&self, rank: u32) -> String {
        let member = self.members.iter().find(|member| member.rank == rank);
        member.map_or_else(|| format!("rank {rank}"), ToString::to_string)
    }

    /// Has rank `rank` answer a call. From rank 0 to any other, and from any other to rank 0.
    ///
    /// # Errors
    /// The rank is lost: it ended, or did not answer within `patience`. It is not called again.
    pub fn call(&self, rank: u32, bytes: &[u8], patience: Duration) -> Result<Vec<u8>, CallError> {
        let line = self.lines.get(&rank).ok_or(CallError::NoLine { rank })?;
        if bytes.is_empty() || bytes.len() > frame::MOST {
            return Err(CallError::Length { bytes: bytes.len(), most: frame::MOST });
        }
        let mut line = lock(line);
        if let Some(lost) = self.lost(rank) {
            return Err(lost);
        }
        let answer = frame::end_by(&line, Some(Instant::now() + patience))
            .and_then(|()| frame::send(&mut line, bytes))
            .and_then(|()| frame::receive(&mut *line, frame::MOST));
        let why = match answer {
            Ok(Some(answer)) => return Ok(answer),
            Ok(None) => ENDED.to_owned(),
            Err(error) if frame::is_late(&error) => {
                format!("it did not answer within {} s", patience.as_secs_f64())
            }
            Err(error) => ended(&error),
        };
        let why = lock(&self.lost).entry(rank).or_insert(why).clone();
        Err(CallError::Lost { who: self.who(rank), why })
    }

    /// Answers rank 0's calls until it dismisses this rank.
    ///
    /// # Errors
    /// Rank 0 is lost.
    pub fn serve(&self, mut answer: impl FnMut(&[u8]) -> Vec<u8>) -> Result<(), JoinError> {
        let Some(calls) = &self.calls else { return Ok(()) };
        let mut calls = lock(calls);
        let lost = |why: String| {
            lock(&self.lost).insert(0, why.clone());
            JoinError::Call(CallError::Lost { who: self.who(0), why })
        };
        loop {
            frame::end_by(&calls, None).map_err(|error| lost(ended(&error)))?;
            match frame::receive(&mut *calls, frame::MOST) {
                Ok(Some(call)) if call == GOODBYE => return Ok(()),
                Ok(Some(call)) => {
                    let answer = answer(&call);
                    frame::end_by(&calls, Some(Instant::now() + MANNERS))
                        .and_then(|()| frame::send(&mut calls, &answer))
                        .map_err(|error| lost(ended(&error)))?;
                }
                Ok(None) => return Err(lost(ENDED.to_owned())),
                Err(error) => return Err(lost(ended(&error))),
            }
        }
    }

    /// Rank 0 has no more calls: the others' service ends.
    pub fn dismiss(&self) {
        for (&rank, line) in &self.lines {
            if rank != 0 && self.lost(rank).is_none() {
                let mut line = lock(line);
                // Who is gone needs no goodbye.
                let _ = frame::end_by(&line, Some(Instant::now() + MANNERS))
                    .and_then(|()| frame::send(&mut line, GOODBYE));
            }
        }
    }
}

const ENDED: &str = "it ended, or closed its connection";

fn ended(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::ConnectionAborted
        | io::ErrorKind::BrokenPipe => ENDED.to_owned(),
        _ => error.to_string(),
    }
}

fn late(error: &io::Error, otherwise: &str) -> String {
    if frame::is_late(error) { otherwise.to_owned() } else { ended(error) }
}

/// A line to rank 0, proved on both sides.
fn line(card: &Card, hello: Hello, until: Instant) -> Result<TcpStream, Knock> {
    let left = until.saturating_duration_since(Instant::now()).clamp(PAUSE, MANNERS);
    let mut stream = TcpStream::connect_timeout(&card.address, left)?;
    frame::end_by(&stream, Some(Instant::now() + left))?;
    knock(&mut stream, &card.token, hello)?;
    Ok(stream)
}

fn unreached(card: &Card, error: &Knock) -> String {
    let address = card.address;
    let here = crate::host_name();
    let elsewhere = address.ip().is_loopback() && card.host != here;
    let remedy = if elsewhere {
        format!(
            ". Rank 0 is on {} and listens there for processes of that machine alone, and this one is on {here}: give \
             all ranks --rendezvous with an address of rank 0 that they reach",
            card.host
        )
    } else {
        String::new()
    };
    format!("at {address}: {error}{remedy}")
}
