//! Rank 0 receives the others. Who doesn't belong to the run is logged and sent away, and holds nobody up.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::{
    Beginning, Door, ENDED, Identity, JoinError, Joining, MANNERS, Member, World, ended, lock,
    watch,
};
use crate::frame;
use crate::handshake::{Refusal, Stranger, StrangerWhy, Way, receive};
use crate::token::Token;

/// Connections that are let talk at once.
const AT_ONCE: usize = 64;
/// Bytes of a rank's identity, at most.
const IDENTITY: usize = 64 << 10;

#[derive(Default)]
struct Arrivals {
    up: BTreeMap<u32, (TcpStream, Identity)>,
    down: BTreeMap<u32, TcpStream>,
}

impl Arrivals {
    fn missing(&self, size: u32) -> Vec<u32> {
        let is_here = |rank: &u32| self.up.contains_key(rank) && self.down.contains_key(rank);
        (1..size).filter(|rank| !is_here(rank)).collect()
    }
}

struct Hall {
    size: u32,
    token: Token,
    arrivals: Mutex<Arrivals>,
    talking: AtomicUsize,
    log: Box<dyn Fn(&str) + Send + Sync>,
}

impl World {
    /// Rank 0 receives the others, until all are there, and answers their calls with `answer` from then on: it is given
    /// the caller's rank and the call, on a thread of that rank.
    ///
    /// # Errors
    /// Some did not come, or were started with something else.
    pub fn gather(
        joining: Joining,
        door: Door,
        answer: impl Fn(u32, &[u8]) -> Vec<u8> + Send + Sync + 'static,
    ) -> Result<Self, JoinError> {
        let Joining { rank, size, patience, identity, log } = joining;
        let hall = Arc::new(Hall {
            size,
            token: door.token.clone(),
            arrivals: Mutex::default(),
            talking: AtomicUsize::new(0),
            log,
        });
        let until = Instant::now() + patience;
        let mut missing = lock(&hall.arrivals).missing(size);
        while !missing.is_empty() && Instant::now() < until {
            match door.listener.accept() {
                Ok((stream, from)) => hall.let_in(stream, from),
                // Nobody, or somebody who has gone again.
                Err(_) => std::thread::sleep(Duration::from_millis(2)),
            }
            missing = lock(&hall.arrivals).missing(size);
        }
        drop(door);
        let Arrivals { mut up, down } = std::mem::take(&mut *lock(&hall.arrivals));
        let mut members = vec![Member::of(0, &identity)];
        members.extend(up.iter().map(|(rank, (_, identity))| Member::of(*rank, identity)));
        let trouble = if missing.is_empty() {
            let otherwise = up.iter().find(|(_, (_, it))| it.agreement != identity.agreement);
            otherwise.map(|(rank, (_, theirs))| JoinError::Disagree {
                member: Member::of(*rank, theirs),
                theirs: theirs.agreement.clone(),
                ours: identity.agreement.clone(),
            })
        } else {
            Some(JoinError::Missing { missing, size, patience })
        };
        let beginning = match &trouble {
            Some(trouble) => Beginning::Ended(trouble.to_string()),
            None => Beginning::Members(members.clone()),
        };
        let beginning = serde_json::to_vec(&beginning).unwrap_or_default();
        for (stream, _) in up.values_mut() {
            // Who is gone by now is found to be lost at the first call.
            let _ = frame::end_by(stream, Some(Instant::now() + MANNERS))
                .and_then(|()| frame::send(stream, &beginning));
        }
        if let Some(trouble) = trouble {
            return Err(trouble);
        }
        let lost = Arc::new(Mutex::new(BTreeMap::new()));
        let answer = Arc::new(answer);
        for (rank, (stream, _)) in up {
            let (answer, lost) = (Arc::clone(&answer), Arc::clone(&lost));
            let named = std::thread::Builder::new().name(format!("rank-{rank}"));
            let started = named.spawn(move || {
                let why = listen(stream, |call| answer(rank, call));
                lock(&lost).entry(rank).or_insert(why);
            });
            if let Err(error) = started {
                return Err(JoinError::Ended(format!("no thread to hear rank {rank}: {error}")));
            }
        }
        let mut lines = BTreeMap::new();
        for (rank, stream) in down {
            if let Err(error) = watch(&stream) {
                return Err(JoinError::Ended(format!("rank {rank} can't be watched: {error}")));
            }
            lines.insert(rank, Mutex::new(stream));
        }
        Ok(Self { rank, size, members, lines, calls: None, lost })
    }
}

/// Answers a rank's calls until it is gone; gives how that was seen.
fn listen(mut stream: TcpStream, answer: impl Fn(&[u8]) -> Vec<u8>) -> String {
    if let Err(error) = watch(&stream) {
        return error.to_string();
    }
    loop {
        let call =
            frame::end_by(&stream, None).and_then(|()| frame::receive(&mut stream, frame::MOST));
        let sent = match call {
            Ok(Some(call)) => {
                let answer = answer(&call);
                frame::end_by(&stream, Some(Instant::now() + MANNERS))
                    .and_then(|()| frame::send(&mut stream, &answer))
            }
            Ok(None) => return ENDED.to_owned(),
            Err(error) => Err(error),
        };
        if let Err(error) = sent {
            return ended(&error);
        }
    }
}

impl Hall {
    /// Hears who has come, on a thread of its own.
    fn let_in(self: &Arc<Self>, stream: TcpStream, from: SocketAddr) {
        if self.talking.fetch_add(1, Ordering::AcqRel) >= AT_ONCE {
            self.talking.fetch_sub(1, Ordering::AcqRel);
            (self.log)(&format!("refused a connection from {from}: {AT_ONCE} others are talking"));
            return;
        }
        let hall = Arc::clone(self);
        let heard = std::thread::Builder::new().name("door".to_owned()).spawn(move || {
            if let Err(why) = hall.hear(stream) {
                (hall.log)(&Stranger { from, why }.to_string());
            }
            hall.talking.fetch_sub(1, Ordering::AcqRel);
        });
        if heard.is_err() {
            self.talking.fetch_sub(1, Ordering::AcqRel);
        }
    }

    fn hear(&self, mut stream: TcpStream) -> Result<(), StrangerWhy> {
        stream.set_nonblocking(false)?;
        frame::end_by(&stream, Some(Instant::now() + MANNERS))?;
        let (hello, answer) = receive(&mut stream, &self.token)?;
        let refusal = if hello.size != self.size {
            Some(Refusal::Size)
        } else if hello.rank == 0 || hello.rank >= self.size {
            Some(Refusal::Rank)
        } else {
            let arrivals = lock(&self.arrivals);
            let twice = match hello.way {
                Way::Up => arrivals.up.contains_key(&hello.rank),
                Way::Down => arrivals.down.contains_key(&hello.rank),
            };
            twice.then_some(Refusal::Twice)
        };
        answer.give(&mut stream, refusal)?;
        if let Some(refusal) = refusal {
            (self.log)(&format!(
                "sent a process away that says it is rank {}: {refusal}",
                hello.rank
            ));
            return Ok(());
        }
        if hello.way == Way::Down {
            lock(&self.arrivals).down.entry(hello.rank).or_insert(stream);
            return Ok(());
        }
        let identity = frame::receive(&mut stream, IDENTITY)?.ok_or(StrangerWhy::Magic)?;
        let identity = serde_json::from_slice(&identity).map_err(|_| StrangerWhy::Magic)?;
        lock(&self.arrivals).up.entry(hello.rank).or_insert((stream, identity));
        Ok(())
    }
}
