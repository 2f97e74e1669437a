//! The remote side, in its own rank or beside the near one: a rig whose near NIC is the point's far one, on a thread that
//! the point has to itself.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use device::cuda::Gpu;
use ranks::World;
use rdma::remote::{RemoteNic, Side};
use rdma::soft::FabricAttr;

use super::super::rig::{Ends, Need, Nics, Rig};
use super::{Link, own, reply};
use crate::context::{Interrupt, RunContext, Settings};
use crate::cpus::{Cpus, EngineChoice};
use crate::plan::Registry;
use crate::platform::Platform;
use crate::point::{Point, PointError};
use crate::ranks::To;
use crate::ranks::protocol::Open;
use crate::ranks::serve::{Order, Report};
use crate::record::PointId;
use crate::request::recorded_point;

/// The remote side of a point, before its thread has begun.
pub(crate) struct Far {
    context: RunContext,
    point: Point,
    need: Need,
    open: Box<Opening>,
}

/// Opens its NIC, and the near side's as it is seen from here.
type Opening =
    dyn FnOnce(&Point, &FabricAttr, Option<&Arc<Gpu>>) -> Result<(Nics, Ends), PointError> + Send;

impl Far {
    /// What rank 0 asks for, if this rank can be it.
    ///
    /// # Errors
    /// A point that isn't one, or that can't run here.
    pub(crate) fn new(
        open: &Open,
        registry: &Registry,
        platform: &Platform,
        interrupt: &Interrupt,
        world: Arc<World>,
    ) -> Result<Self, PointError> {
        let json = |error: serde_json::Error| PointError::failed(error.to_string());
        let id: PointId = serde_json::from_str(&open.point).map_err(json)?;
        let settings: Settings = serde_json::from_str(&open.settings).map_err(json)?;
        let planned =
            recorded_point(&id, registry).map_err(|error| PointError::failed(error.to_string()))?;
        let point = planned.point;
        platform.submitter(point.submitter).map_err(PointError::not_run)?;
        platform.nic(point.nic).map_err(PointError::not_run)?;
        let settings = Settings { deadline_s: open.left_s, ..settings };
        // Nobody waits here while rank 0 measures: the NIC needs a thread of its own.
        let cpus = Cpus::fixed(open.cpus.clone(), EngineChoice::Thread);
        let context = RunContext::new(settings, planned.limits, cpus, interrupt.clone());
        let need = Need {
            qps: open.qps,
            submitters: 1,
            workers: open.workers as usize,
            ringers: 0,
            virtual_time: false,
        };
        let line = Arc::new(To { world, rank: 0, session: open.session });
        let (link, near) = (open.link.clone(), open.near.clone());
        let options = context.nic_options().remote();
        let open: Box<Opening> = Box::new(move |point, attr, gpu| {
            let link = Link::Far(link.as_deref().unwrap_or("".as_ref()));
            let (nics, nic) = own(point, &link, (attr, gpu), &options)?;
            Ok((nics, [nic, Arc::new(RemoteNic::new(line, near))]))
        });
        Ok(Self { context, point, need, open })
    }

    /// The remote side of a process that is alone: its NICs are there.
    pub(super) fn beside(context: RunContext, point: Point, need: Need, ends: Ends) -> Self {
        Self { context, point, need, open: Box::new(|_, _, _| Ok((Nics::Theirs, ends))) }
    }

    /// Opens it, and does as it is told until nobody tells any more.
    pub(crate) fn run(mut self, orders: &Receiver<Order>, reports: &Sender<Report>) {
        // Who is told has gone only if rank 0 has.
        let tell = |report| drop(reports.send(report));
        let rig = match Rig::open_far(&mut self.context, &self.point, &self.need, |attr, gpu| {
            (self.open)(&self.point, attr, gpu)
        }) {
            Ok(rig) => rig,
            Err(error) => return tell(Report::Ended(Err(error))),
        };
        let side = Arc::new(Side::new(Arc::clone(&rig.near), rig.gpu().cloned()));
        tell(Report::Opened(Arc::clone(&side)));
        let mut half = None;
        while let Ok(order) = orders.recv() {
            match order {
                Order::Prepare(asked) => {
                    let made = reply::Half::new(&self.context, &rig, &side, &asked);
                    tell(Report::Prepared(made.map(|made| half = Some(made))));
                }
                Order::Launch(launch) => {
                    let ran = match &half {
                        Some(half) => {
                            half.launch(&self.context, &rig, &launch, &|| tell(Report::Ready))
                        }
                        None => Err(PointError::failed("there is no answering half to launch")),
                    };
                    tell(Report::Ended(ran));
                }
            }
        }
    }
}

/// What one launch may take, at most.
pub(super) fn patience(ctx: &RunContext) -> Result<Duration, PointError> {
    Ok(ctx.remaining("the answering half")?.min(Duration::from_secs(10)))
}
