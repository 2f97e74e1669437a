//! A run of several processes: rank 0 plans, measures and writes the record, and another rank is the remote side.
//!
//! Which ranks there are is the launcher's business, and how they find each other the room's `ranks`. Here is what they
//! say to each other. What a rank does as the remote side of a point is the experiments' (`experiments::across`).

pub(crate) mod protocol;
pub(crate) mod serve;
mod shares;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ranks::launch::{Launch, LaunchError};
use ranks::{Meeting, StartError, Started, World};
use rdma::remote::{Ask, Line, Side, Tell};
use serde::{Deserialize, Serialize};

use crate::cpus::Cpus;
use crate::point::PointError;
use protocol::{Answer, Call, Decoded, decode, encode};

/// For an answer that only takes what the other rank's system takes.
pub(crate) const PROMPT: Duration = Duration::from_secs(20);

/// What the user says of the ranks, beside what the launcher does.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct RanksArgs {
    /// Of several ranks, which one is the remote side; 1 unless given
    #[arg(long, value_name = "RANK", value_parser = clap::value_parser!(u32).range(1..))]
    pub remote_rank: Option<u32>,
    /// Where rank 0 meets the others, if not where the launcher says: this machine alone with PMIx
    #[arg(long, value_name = "ADDRESS[:PORT]")]
    pub rendezvous: Option<String>,
    /// How long ranks wait for each other; 60s unless given
    #[arg(long, value_name = "T", value_parser = crate::quantity::parse_duration)]
    pub ranks_deadline: Option<Duration>,
}

/// The ranks can't work together.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RanksError {
    /// The launcher's words.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The meeting.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The remote side isn't one of them.
    #[error("--remote-rank {asked}: the launcher started {size} ranks, 0 to {}", size - 1)]
    NoSuchRank {
        /// What was asked for.
        asked: u32,
        /// How many there are.
        size: u32,
    },
    /// A flag for several ranks, and one process.
    #[error(
        "{flag} is for several ranks, and no launcher started any: use mpirun or torchrun, or set RANK, WORLD_SIZE and MASTER_ADDR"
    )]
    Alone {
        /// The flag.
        flag: &'static str,
    },
    /// The other rank.
    #[error("{0}")]
    Remote(String),
}

/// Which part this process has in the run.
#[derive(Debug)]
pub enum Part {
    /// All of it.
    Alone,
    /// Rank 0's.
    First(Arc<Team>),
    /// Any other rank's.
    Other(Other),
}

/// A rank that is called by rank 0.
#[derive(Debug)]
pub struct Other {
    pub(crate) world: Arc<World>,
    // Kept until the run is over: it tells the launcher so.
    _started: Keep,
}

#[derive(Debug)]
struct Keep(#[allow(dead_code, reason = "kept")] Box<dyn std::any::Any + Send + Sync>);

/// The ranks as a record has them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RanksRecord {
    /// How many there are.
    pub size: u32,
    /// Which one was the remote side.
    pub remote: u32,
    /// Each of them, by number.
    pub members: Vec<MemberRecord>,
}

/// A rank as a record has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberRecord {
    /// Its number.
    pub rank: u32,
    /// Its machine.
    pub host: String,
    /// Its process there.
    pub pid: u32,
    /// CPUs that it may use, after ranks of one machine have shared them.
    pub cpus: Vec<usize>,
    /// Its GPU; null where it has none.
    pub gpu: Option<String>,
}

/// Rank 0's team.
pub struct Team {
    world: Arc<World>,
    remote: u32,
    record: RanksRecord,
    shared: bool,
    /// What other ranks may ask of.
    offered: Offered,
    _started: Keep,
}

/// The session and its side.
type Offered = Arc<Mutex<Option<(u64, Arc<Side>)>>>;

impl std::fmt::Debug for Team {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Team").field("record", &self.record).finish_non_exhaustive()
    }
}

/// Finds out who started this process, and has it meet the others.
///
/// # Errors
/// What the launcher says makes no sense, or ranks are missing.
pub fn join(args: &RanksArgs, argv: &[String], cpus: &Cpus) -> Result<Part, RanksError> {
    let launch = ranks::launch::detect(|name| std::env::var(name).ok())?;
    if launch == Launch::Alone {
        let flags = [
            ("--remote-rank", args.remote_rank.is_some()),
            ("--rendezvous", args.rendezvous.is_some()),
            ("--ranks-deadline", args.ranks_deadline.is_some()),
        ];
        return match flags.iter().find(|(_, is_given)| *is_given) {
            Some((flag, _)) => Err(RanksError::Alone { flag }),
            None => Ok(Part::Alone),
        };
    }
    let words = argv.get(1..).unwrap_or_default().join(" ");
    let meeting = Meeting {
        rendezvous: args.rendezvous.clone(),
        token: std::env::var("GICBENCH_TOKEN").ok(),
        patience: args.ranks_deadline.unwrap_or(Duration::from_secs(60)),
        agreement: format!("gicbench {} {words}", env!("CARGO_PKG_VERSION")),
        log: Box::new(|line| eprintln!("# {line}")),
    };
    let offered = Offered::default();
    let asked = Arc::clone(&offered);
    let started = ranks::start(launch, meeting, move |_, call| answer(&asked, call))?;
    let Some(Started { world, keep }) = started else { return Ok(Part::Alone) };
    let (world, keep) = (Arc::new(world), Keep(keep));
    if world.rank() != 0 {
        return Ok(Part::Other(Other { world, _started: keep }));
    }
    let (remote, size) = (args.remote_rank.unwrap_or(1), world.size());
    if remote >= size {
        world.dismiss();
        return Err(RanksError::NoSuchRank { asked: remote, size });
    }
    let mut team = Team {
        world,
        remote,
        record: RanksRecord { size, remote, members: Vec::new() },
        shared: false,
        offered,
        _started: keep,
    };
    team.survey(cpus)?;
    Ok(Part::First(Arc::new(team)))
}

/// What another rank asks of this one.
fn answer(offered: &Offered, call: &[u8]) -> Vec<u8> {
    let found = offered.lock().unwrap_or_else(PoisonError::into_inner).clone();
    encode(&match (decode(call), found) {
        (Decoded::Of(Call::Nic { session, ask }), Some((open, side))) if session == open => {
            Answer::Nic(side.answer(&ask))
        }
        (Decoded::Of(Call::Nic { .. }), _) => {
            Answer::Nic(Tell::Failed("rank 0 is done with the point".to_owned()))
        }
        (Decoded::Of(_), _) => {
            Answer::Failed("rank 0 is asked for memory and queues only".to_owned())
        }
        (Decoded::Broken(why), _) => Answer::Failed(why),
    })
}

impl Team {
    /// Asks every rank what it has, and gives each its share of the CPUs of its machine.
    fn survey(&mut self, cpus: &Cpus) -> Result<(), RanksError> {
        let members = self.world.members().to_vec();
        let mut found = Vec::new();
        for member in members {
            let (cpus, gpu) = if member.rank == 0 {
                (cpus.allowed().to_vec(), serve::gpu())
            } else {
                match self.ask(member.rank, &Call::Describe, PROMPT) {
                    Ok(Answer::Described { cpus, gpu }) => (cpus, gpu),
                    Ok(other) => return Err(RanksError::Remote(unexpected(&other))),
                    Err(error) => return Err(RanksError::Remote(error)),
                }
            };
            found.push(MemberRecord {
                rank: member.rank,
                host: member.host,
                pid: member.pid,
                cpus,
                gpu,
            });
        }
        self.shared = shares::share(&mut found);
        self.record.members = found;
        Ok(())
    }

    /// The CPUs that rank 0 keeps.
    pub fn cpus(&self, of: &Cpus) -> Cpus {
        of.only(&self.record.members[0].cpus)
    }

    /// The ranks, for the record.
    pub fn record(&self) -> &RanksRecord {
        &self.record
    }

    /// The remote side, in words.
    pub fn remote(&self) -> &MemberRecord {
        &self.record.members[self.remote as usize]
    }

    /// Whether ranks of one machine have to share a CPU.
    pub fn shares_cpus(&self) -> bool {
        self.shared
    }

    /// Whether the kernels of both sides are one GPU's.
    pub fn shares_gpu(&self) -> bool {
        let (first, remote) = (&self.record.members[0], self.remote());
        first.host == remote.host && first.gpu.is_some() && first.gpu == remote.gpu
    }

    /// Why the remote side is lost, if it is.
    pub fn lost(&self) -> Option<String> {
        self.world.lost(self.remote).map(|lost| lost.to_string())
    }

    /// Ends the other ranks' service.
    pub fn dismiss(&self) {
        self.world.dismiss();
    }

    fn ask(&self, rank: u32, call: &Call, patience: Duration) -> Result<Answer, String> {
        let answer = self.world.call(rank, &encode(call), patience);
        match answer.map_err(|error| error.to_string()) {
            Ok(answer) => match decode(&answer) {
                Decoded::Of(answer) => Ok(answer),
                Decoded::Broken(why) => Err(format!("rank {rank}: {why}")),
            },
            Err(why) => Err(why),
        }
    }

    /// Asks the remote side.
    pub(crate) fn call(&self, call: &Call, patience: Duration) -> Result<Answer, PointError> {
        let rank = self.remote;
        match self.ask(rank, call, patience).map_err(PointError::failed)? {
            Answer::Failed(why) => Err(PointError::failed(format!("rank {rank}: {why}"))),
            Answer::NotRun(why) => Err(PointError::not_run(format!("rank {rank}: {why}"))),
            answer => Ok(answer),
        }
    }

    /// Lets other ranks ask of a side, or of none.
    pub(crate) fn offer(&self, side: Option<(u64, Arc<Side>)>) {
        *self.offered.lock().unwrap_or_else(PoisonError::into_inner) = side;
    }

    pub(crate) fn line(&self, session: u64) -> Arc<dyn Line> {
        Arc::new(To { world: Arc::clone(&self.world), rank: self.remote, session })
    }
}

/// A line for a NIC's questions.
pub(crate) struct To {
    pub world: Arc<World>,
    pub rank: u32,
    pub session: u64,
}

impl Line for To {
    fn ask(&self, ask: &Ask) -> Result<Tell, String> {
        let call = encode(&Call::Nic { session: self.session, ask: ask.clone() });
        let answer =
            self.world.call(self.rank, &call, PROMPT).map_err(|error| error.to_string())?;
        match decode(&answer) {
            Decoded::Of(Answer::Nic(tell)) => Ok(tell),
            Decoded::Of(Answer::Failed(why)) | Decoded::Broken(why) => Err(why),
            Decoded::Of(other) => Err(unexpected(&other)),
        }
    }
}

pub(crate) fn unexpected(answer: &Answer) -> String {
    format!("an answer to another question came: {answer:?}")
}

/// Where another process finds the memory of a link, if both are on one machine.
pub(crate) fn reachable(team: &Team, path: PathBuf) -> Result<PathBuf, PointError> {
    let (here, there) = (&team.record.members[0].host, &team.remote().host);
    if here == there {
        return Ok(path);
    }
    Err(PointError::not_run(format!(
        "the software NICs of {here} and {there} can't be linked: they share memory; use --nic verbs or mlx5 between machines"
    )))
}
