//! A point whose remote side has threads of its own, in another rank or beside the near side's: its NIC, its memory, and
//! the threads that answer there.
//!
//! To the benches the far side is a NIC like any other, asked over a line; only what runs *device code* there is asked
//! for by name: the answering half of a round trip.

mod beside;
mod far;
mod reply;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use device::cuda::Gpu;
use rdma::Nic;
use rdma::remote::{RemoteNic, Side};
use rdma::soft::{Fabric, FabricAttr, SharedLink};

use super::devices;
use super::rig::{Ends, Need, Nics, broke};
use crate::context::RunContext;
use crate::hardware::{Hardware, NicOptions};
use crate::measurement::Measurement;
use crate::point::{self, Point, PointError};
use crate::ranks::protocol::{Answer, Call, Launch, Open, Reply};
use crate::ranks::{PROMPT, Team, reachable, unexpected};
use crate::record::PointId;

pub(super) use beside::beside;
pub(crate) use far::Far;

use beside::Beside;

/// LIDs of the software NICs of both sides.
const NEAR: u16 = 1;
const FAR: u16 = 2;

/// The remote side of a point, where it has threads of its own. It ends with this value.
pub(super) enum Session {
    /// Another rank's.
    Rank(Rank),
    /// This process's.
    Beside(Beside),
}

impl Session {
    /// Has the answering half made.
    pub fn prepare(&self, reply: Reply) -> Result<(), PointError> {
        match self {
            Self::Rank(rank) => rank.call(&Call::Prepare(reply), PROMPT),
            Self::Beside(beside) => beside.prepare(reply),
        }
    }

    /// Has it run beside what `run` does here.
    pub fn answered<T>(
        &self,
        launch: Launch,
        patience: Duration,
        run: impl FnOnce() -> Result<T, PointError>,
    ) -> Result<T, PointError> {
        let (here, there) = match self {
            Self::Rank(rank) => rank.answered(launch, patience, run)?,
            Self::Beside(beside) => beside.answered(launch, patience, run)?,
        };
        match (here, there) {
            (here, Ok(())) => here,
            (Ok(_), Err(there)) => Err(there),
            // Which one failed first isn't known: a side that gets no answer fails, too.
            (Err(here), Err(there)) => Err(PointError::failed(format!("{here}; {there}"))),
        }
    }

    /// Says where it is.
    pub fn described(&self, measurement: Measurement, on_gpu: bool) -> Measurement {
        match self {
            Self::Rank(rank) => rank.described(measurement, on_gpu),
            Self::Beside(beside) => beside.described(measurement),
        }
    }
}

/// What a launch gave here, and there.
type Both<T> = (Result<T, PointError>, Result<(), PointError>);

/// The remote side, as rank 0 has it.
pub(super) struct Rank {
    team: Arc<Team>,
}

impl Rank {
    fn call(&self, call: &Call, patience: Duration) -> Result<(), PointError> {
        match self.team.call(call, patience)? {
            Answer::Done => Ok(()),
            other => Err(PointError::failed(unexpected(&other))),
        }
    }

    fn answered<T>(
        &self,
        launch: Launch,
        patience: Duration,
        run: impl FnOnce() -> Result<T, PointError>,
    ) -> Result<Both<T>, PointError> {
        self.call(&Call::Launch(launch), PROMPT)?;
        let here = run();
        let finish = Call::Finish { patience_s: patience.as_secs_f64() };
        Ok((here, self.call(&finish, patience + PROMPT)))
    }

    fn described(&self, measurement: Measurement, on_gpu: bool) -> Measurement {
        let mut measurement = measurement
            .detail("remote_rank", self.team.remote().rank)
            .detail("remote_host", self.team.remote().host.as_str());
        if self.team.shares_cpus() {
            let note =
                "ranks of one machine spin on the same CPUs: they wait for each other's turns";
            measurement = measurement.detail("ranks_over_cores", note);
        }
        if on_gpu && self.team.shares_gpu() {
            let note = "kernels of both ranks run on one GPU, which gives two processes turns of milliseconds: a round \
                        trip waits for them";
            measurement = measurement.detail("ranks_over_gpu", note);
        }
        measurement
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        self.team.offer(None);
        // A rank that is gone has nothing open.
        let _ = self.team.call(&Call::Close, PROMPT);
    }
}

/// This rank's own NIC, on the way to the other one's.
enum Link<'a> {
    /// Made here.
    Near(&'a SharedLink),
    /// Made by rank 0.
    Far(&'a Path),
}

fn own(
    point: &Point,
    link: &Link<'_>,
    (attr, gpu): (&FabricAttr, Option<&Arc<Gpu>>),
    options: &NicOptions,
) -> Result<(Nics, Arc<dyn Nic>), PointError> {
    match point.nic {
        point::Nic::Soft => {
            let (id, end) = match link {
                Link::Near(link) => (NEAR, link.near(FAR)),
                Link::Far(path) => (FAR, SharedLink::far(path, NEAR)),
            };
            let fabric = Fabric::open_linked(id, end.map_err(broke)?, attr).map_err(broke)?;
            let nic = Arc::clone(fabric.nic(0)) as Arc<dyn Nic>;
            Ok((Nics::Soft(fabric), nic))
        }
        point::Nic::Mlx5 => {
            let (hardware, nic) = devices::mlx5(options, gpu)?;
            Ok((Nics::Device(hardware), nic))
        }
        point::Nic::Verbs => {
            let nic = devices::open_verbs(options, point, gpu, false)?;
            Ok((Nics::Device(Hardware::new(nic.port())), nic))
        }
        nic => Err(PointError::not_run(format!("NIC {nic} does not reach another rank"))),
    }
}

/// Rank 0's NIC, the remote side's, and what keeps that open.
pub(super) fn near(
    ctx: &RunContext,
    point: &Point,
    need: &Need,
    team: &Arc<Team>,
    (attr, gpu): (&FabricAttr, Option<&Arc<Gpu>>),
) -> Result<((Nics, Ends), Session), PointError> {
    static SESSIONS: AtomicU64 = AtomicU64::new(1);
    if need.virtual_time {
        return Err(PointError::not_run(
            "a timing profile's virtual time is one process's: measure it without ranks, or use --profile none",
        ));
    }
    let link = SharedLink::create().map_err(broke)?;
    let (nics, nic) = own(point, &Link::Near(&link), (attr, gpu), ctx.nic_options())?;
    let session = SESSIONS.fetch_add(1, Ordering::Relaxed);
    let side = Arc::new(Side::new(Arc::clone(&nic), gpu.cloned()));
    let json = |error: serde_json::Error| PointError::failed(error.to_string());
    let left = ctx.remaining("the remote side")?;
    let open = Open {
        session,
        point: serde_json::to_string(&PointId::at(point, ctx.limits())).map_err(json)?,
        settings: serde_json::to_string(ctx.settings()).map_err(json)?,
        left_s: left.as_secs_f64(),
        qps: need.qps,
        workers: need.workers as u32,
        cpus: team.remote().cpus.clone(),
        link: match point.nic {
            point::Nic::Soft => Some(reachable(team, link.path())?),
            _ => None,
        },
        near: side.introduction(),
    };
    team.offer(Some((session, side)));
    // From here on it is closed whatever happens.
    let held = Session::Rank(Rank { team: Arc::clone(team) });
    let far = match team.call(&Call::Open(Box::new(open)), left.min(PROMPT))? {
        Answer::Opened(introduction) => RemoteNic::new(team.line(session), introduction),
        other => return Err(PointError::failed(unexpected(&other))),
    };
    Ok(((nics, [nic, Arc::new(far)]), held))
}
