//! The remote side in this process: on a thread of its own, and on a GPU of its own where GPU threads submit. The same as
//! another rank's, without a way between processes.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use device::cuda::Gpu;
use rdma::remote::{Ask, Line, RemoteNic, Side, Tell};
use rdma::soft_gpu;

use super::super::rig::{Ends, Need, Nics, broke};
use super::{Both, Far, Session};
use crate::context::{Remote, RunContext, Settings};
use crate::cpus::{Cpus, EngineChoice};
use crate::measurement::Measurement;
use crate::point::{Point, PointError};
use crate::ranks::PROMPT;
use crate::ranks::protocol::{Launch, Reply};
use crate::ranks::serve::{Order, Report};

/// The remote side, as the near side's thread has it.
pub(in crate::experiments) struct Beside {
    orders: Option<Sender<Order>>,
    reports: Receiver<Report>,
    thread: Option<JoinHandle<()>>,
    /// NICs inside GPUs: they run while both sides' kernels do.
    inside: Option<soft_gpu::Fabric>,
    /// There is no CPU for each of its threads.
    shares_cpus: bool,
}

/// Questions to a side of this process.
struct Direct(Arc<Side>);

impl Line for Direct {
    fn ask(&self, ask: &Ask) -> Result<Tell, String> {
        Ok(self.0.answer(ask))
    }
}

/// One side's NIC as the other one sees it: memory and queues that are asked for there are made there.
fn seen(side: Arc<Side>) -> RemoteNic {
    let introduction = side.introduction();
    RemoteNic::new(Arc::new(Direct(side)), introduction)
}

/// The NICs as the near side sees them, and what keeps the remote side going.
pub(in crate::experiments) fn beside(
    ctx: &RunContext,
    point: &Point,
    need: &Need,
    (nics, [near, far]): (&Nics, Ends),
    (gpu, far_gpu): (Option<&Arc<Gpu>>, Option<&Arc<Gpu>>),
) -> Result<(Ends, Session), PointError> {
    let left_s = ctx.remaining("the remote side")?.as_secs_f64();
    let settings = Settings { deadline_s: left_s, ..ctx.settings().clone() };
    let spare = ctx.spare_cpus();
    let shares_cpus = spare.len() < 1 + need.workers.min(1);
    let cpus = if shares_cpus { ctx.cpus().to_vec() } else { spare };
    let cpus = Cpus::fixed(cpus, EngineChoice::Thread);
    let number = far_gpu.map(|gpu| gpu.info().ordinal);
    let context = RunContext::new(settings, ctx.limits(), cpus, ctx.interrupt().clone())
        .with_remote(Remote::Together)
        .on_gpu(number);
    let need = Need {
        qps: need.qps,
        submitters: 1,
        workers: need.workers.min(1),
        ringers: 0,
        virtual_time: false,
    };
    let from_there = seen(Arc::new(Side::new(Arc::clone(&near), gpu.cloned())));
    let remote = Far::beside(context, point.clone(), need, [far, Arc::new(from_there)]);
    let (orders, ordered) = mpsc::channel();
    let (tell, reports) = mpsc::channel();
    let named = std::thread::Builder::new().name("remote side".to_owned());
    let thread = named.spawn(move || remote.run(&ordered, &tell));
    let thread =
        thread.map_err(|e| PointError::failed(format!("no thread for the remote side: {e}")))?;
    let inside = match nics {
        Nics::SoftGpu(fabric) => Some(fabric.clone()),
        _ => None,
    };
    let held = Beside { orders: Some(orders), reports, thread: Some(thread), inside, shares_cpus };
    let side = match held.report(PROMPT)? {
        Report::Opened(side) => side,
        other => return Err(unexpected(other)),
    };
    Ok(([near, Arc::new(seen(side))], Session::Beside(held)))
}

fn unexpected(report: Report) -> PointError {
    match report {
        Report::Prepared(Err(error)) | Report::Ended(Err(error)) => error,
        _ => PointError::failed("the remote side's thread is at something else"),
    }
}

impl Beside {
    fn order(&self, order: Order) -> Result<(), PointError> {
        let sent = self.orders.as_ref().is_some_and(|orders| orders.send(order).is_ok());
        if sent { Ok(()) } else { Err(PointError::failed("the remote side's thread has died")) }
    }

    fn report(&self, patience: Duration) -> Result<Report, PointError> {
        self.reports.recv_timeout(patience).map_err(|error| match error {
            RecvTimeoutError::Timeout => {
                PointError::Deadline { waited_for: "the remote side's thread".to_owned() }
            }
            RecvTimeoutError::Disconnected => {
                PointError::failed("the remote side's thread has died")
            }
        })
    }

    pub(super) fn prepare(&self, reply: Reply) -> Result<(), PointError> {
        self.order(Order::Prepare(reply))?;
        match self.report(PROMPT)? {
            Report::Prepared(made) => made,
            other => Err(unexpected(other)),
        }
    }

    pub(super) fn answered<T>(
        &self,
        launch: Launch,
        patience: Duration,
        run: impl FnOnce() -> Result<T, PointError>,
    ) -> Result<Both<T>, PointError> {
        self.order(Order::Launch(launch))?;
        // Once engines run nothing can be made on their GPUs.
        match self.report(patience)? {
            Report::Ready => {}
            other => return Err(unexpected(other)),
        }
        let engines = self.inside.as_ref().map(soft_gpu::Fabric::start).transpose();
        let here = match &engines {
            Ok(_) => run(),
            Err(error) => Err(PointError::from_error(error)),
        };
        let there = match self.report(patience + PROMPT) {
            Ok(Report::Ended(ended)) => ended,
            Ok(other) => Err(unexpected(other)),
            Err(error) => Err(error),
        };
        let stopped = match engines {
            Ok(Some(engines)) => engines.stop().map_err(broke),
            _ => Ok(()),
        };
        Ok((here, there.and(stopped)))
    }
}

impl Beside {
    pub(super) fn described(&self, measurement: Measurement) -> Measurement {
        if !self.shares_cpus {
            return measurement;
        }
        let note = "the remote side's threads spin on the near side's CPUs: they wait for each other's turns";
        measurement.detail("remote_over_cores", note)
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        // Its thread ends when nobody orders any more.
        self.orders = None;
        let Some(thread) = self.thread.take() else { return };
        let until = Instant::now() + PROMPT;
        while !thread.is_finished() && Instant::now() < until {
            std::thread::sleep(Duration::from_micros(200));
        }
        if thread.is_finished() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::context::Interrupt;
    use crate::experiments::{self, Suite};
    use crate::hardware::NicOptions;
    use crate::measurement::Metric;
    use crate::plan::{Block, LimitsGiven, plan};
    use crate::point::{Nic, Submitter};

    #[test]
    fn a_remote_side_apart_answers_every_experiment_that_asks_it() {
        let block = Block {
            experiments: ["latency", "loaded", "bandwidth", "floor"].map(str::to_owned).into(),
            transports: None,
            submitters: vec![Submitter::Host],
            nics: vec![Nic::Soft],
            axes: BTreeMap::new(),
            limits: LimitsGiven { ops: Some(100), warmup: Some(10), duration: None },
        };
        let settings = Settings {
            check: true,
            seed: 7,
            deadline_s: 60.0,
            engine: EngineChoice::Auto,
            peer_paths: Vec::new(),
            nic: NicOptions::default(),
        };
        let cpus = Cpus::detect(EngineChoice::Auto).unwrap();
        let mut replies = 0;
        for planned in plan(&[block], Suite::Quick, experiments::all()).unwrap() {
            let interrupt = Interrupt::default();
            let ctx = RunContext::new(settings.clone(), planned.limits, cpus.clone(), interrupt);
            let mut ctx = ctx.with_remote(Remote::Apart(None));
            let point = &planned.point;
            let measured = match planned.experiment.run(&mut ctx, point) {
                Err(PointError::NotRun { .. }) => continue,
                measured => measured.unwrap(),
            };
            assert!(measured.iter().all(|one| one.wrong == Some(0)), "{point:?}");
            replies += measured.iter().filter(|one| one.metric == Metric::RoundTrip).count();
        }
        assert!(replies >= 9, "{replies}");
    }
}
