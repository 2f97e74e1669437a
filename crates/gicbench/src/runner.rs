//! Runs the points of a plan, one after another, and never hangs with them.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use crate::context::{Interrupt, RunContext, Settings};
use crate::cpus::{Assignment, Cpus};
use crate::isolated::{self, Worker};
use crate::measurement::Measurement;
use crate::peer::{self, Prepared};
use crate::plan::Planned;
use crate::platform::Platform;
use crate::point::{NEEDS_GPU_THREADS, PointError, Submitter};
use crate::published::Published;
use crate::ranks::Team;
use crate::record::{Missing, PointId, Row};

/// How often the runner looks at Ctrl-C and the deadline.
const GLANCE: Duration = Duration::from_millis(20);

/// How long a point may take to notice Ctrl-C; what it has is lost after that.
const INTERRUPT_GRACE: Duration = Duration::from_millis(600);

/// How long a point may take to notice its deadline before it is given up.
const DEADLINE_GRACE: Duration = Duration::from_secs(2);

/// Why libraries' device code is not measured between ranks.
const WITHIN_A_PROCESS: &str =
    "the libraries' device code is measured within one process: start it without a launcher";

/// What came of a plan.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Measurements, in the order of the plan.
    pub rows: Vec<Row>,
    /// Points that couldn't run, or weren't come to.
    pub not_run: Vec<Missing>,
    /// Points that broke.
    pub failed: Vec<Missing>,
    /// Whether Ctrl-C ended it.
    pub interrupted: bool,
}

impl Outcome {
    fn take(&mut self, other: Outcome) {
        self.rows.extend(other.rows);
        self.not_run.extend(other.not_run);
        self.failed.extend(other.failed);
    }
}

/// Runs points with the same settings on the same machine.
#[derive(Debug)]
pub struct Runner<'a> {
    /// Settings of the run.
    pub settings: &'a Settings,
    /// CPUs to use.
    pub cpus: &'a Cpus,
    /// What can run here.
    pub platform: &'a Platform,
    /// Figures to put beside.
    pub published: &'a Published,
    /// Ctrl-C.
    pub interrupt: &'a Interrupt,
    /// Points that run a library's device code are measured by a process of their own.
    pub isolates: bool,
    /// The ranks, where there are several.
    pub team: Option<&'a Arc<Team>>,
}

type Finished = (Result<Vec<Measurement>, PointError>, Option<Assignment>);

enum Ended {
    Finished(Finished),
    Panicked(String),
    /// The thread of the point is still busy, and so is its CPU: nothing after it can be measured.
    Abandoned(PointError),
}

impl Runner<'_> {
    /// Runs a plan; `before` is told of each point before it runs.
    pub fn run(&self, plan: &[Planned], mut before: impl FnMut(usize, &Planned)) -> Outcome {
        let mut outcome = Outcome::default();
        let mut stopped: Option<String> = None;
        let mut worker = Worker::default();
        let prepared = if self.isolates { self.prepare(plan) } else { Ok(Prepared::default()) };
        for (index, planned) in plan.iter().enumerate() {
            if self.interrupt.is_set() && stopped.is_none() {
                stopped = Some("interrupted".to_owned());
            }
            if let (Some(lost), None) = (self.lost(), &stopped) {
                stopped = Some(lost);
            }
            if let Some(reason) = &stopped {
                outcome.not_run.push(missing(planned, reason.clone()));
                continue;
            }
            let (submitter, nic) = (planned.point.submitter, planned.point.nic);
            let here = self
                .platform
                .submitter(submitter)
                .map_err(|reason| format!("submitter {submitter}: {reason}"))
                .and_then(|()| {
                    self.platform.nic(nic).map_err(|reason| format!("NIC {nic}: {reason}"))
                });
            if let Err(reason) = here {
                outcome.not_run.push(missing(planned, reason));
                continue;
            }
            let transport = planned.point.transport;
            if transport.is_peer() && self.team.is_some() {
                outcome.not_run.push(missing(planned, WITHIN_A_PROCESS.to_owned()));
                continue;
            }
            if transport.is_peer() && submitter == Submitter::Host {
                outcome.not_run.push(missing(planned, NEEDS_GPU_THREADS.to_owned()));
                continue;
            }
            if let Some(reason) = match &prepared {
                Ok(prepared) => prepared.missing(transport),
                Err(reason) => transport.is_peer().then(|| reason.clone()),
            } {
                outcome.not_run.push(missing(planned, reason));
                continue;
            }
            before(index, planned);
            if self.isolates && transport.is_peer() {
                match worker.point(planned, self.settings, self.interrupt) {
                    isolated::Ended::Outcome(of_child) => outcome.take(*of_child),
                    isolated::Ended::Interrupted => {
                        outcome.not_run.push(missing(planned, "interrupted".to_owned()));
                    }
                    isolated::Ended::Lost(reason) => {
                        outcome.not_run.push(missing(planned, reason));
                    }
                }
                continue;
            }
            match self.point(planned) {
                Ended::Finished((result, assignment)) => {
                    let result = result.map_err(|error| self.explained(error));
                    self.keep(&mut outcome, planned, result, assignment.as_ref());
                }
                Ended::Panicked(reason) => outcome.failed.push(missing(planned, reason)),
                Ended::Abandoned(error) => {
                    stopped = Some(match (&error, self.lost()) {
                        (PointError::Interrupted, _) => "interrupted".to_owned(),
                        (_, Some(lost)) => lost,
                        _ => format!("not come to: '{}' did not give the CPU back", planned.point),
                    });
                    self.keep(&mut outcome, planned, Err(error), None);
                }
            }
        }
        outcome.interrupted = self.interrupt.is_set();
        outcome
    }

    /// Why the other rank is lost, if it is.
    fn lost(&self) -> Option<String> {
        self.team?.lost()
    }

    /// An error with the other rank's loss, which is likely to be its cause.
    fn explained(&self, error: PointError) -> PointError {
        let is_own = matches!(error, PointError::NotRun { .. } | PointError::Interrupted);
        match self.lost() {
            Some(why) if !is_own && !error.to_string().contains(&why) => {
                PointError::failed(format!("{error}; {why}"))
            }
            _ => error,
        }
    }

    /// Compiles the adapters that the plan's points will need, as far as those can run here at all.
    fn prepare(&self, plan: &[Planned]) -> Result<Prepared, String> {
        let runnable = |planned: &&Planned| {
            planned.point.submitter != Submitter::Host
                && self.platform.submitter(planned.point.submitter).is_ok()
                && self.platform.nic(planned.point.nic).is_ok()
        };
        let transports = plan.iter().filter(runnable).map(|planned| planned.point.transport);
        let transports: Vec<_> = transports.filter(|transport| transport.is_peer()).collect();
        if transports.is_empty() {
            return Ok(Prepared::default());
        }
        let paths = peer::paths(&self.settings.peer_paths).map_err(|error| error.to_string())?;
        let arch = crate::gpu::open().ok().map(|gpu| gpu.info().arch);
        Ok(Prepared::new(transports, &paths, arch))
    }

    /// Runs one point on a thread of its own, so that neither an affinity nor a hang outlives it.
    fn point(&self, planned: &Planned) -> Ended {
        let mut context = RunContext::new(
            self.settings.clone(),
            planned.limits,
            self.cpus.clone(),
            self.interrupt.clone(),
        )
        .in_team(self.team.cloned());
        let give_up = context.deadline() + DEADLINE_GRACE;
        let (experiment, point) = (planned.experiment, planned.point.clone());
        let (sender, receiver) = mpsc::channel::<Finished>();
        let spawned = thread::Builder::new().name("point".to_owned()).spawn(move || {
            let result = experiment.run(&mut context, &point);
            // The receiver is gone only if the point was given up.
            let _ = sender.send((result, context.into_assignment()));
        });
        let handle = match spawned {
            Ok(handle) => handle,
            Err(error) => return Ended::Panicked(format!("no thread for the point: {error}")),
        };
        let mut interrupted: Option<Instant> = None;
        let mut lost: Option<Instant> = None;
        loop {
            match receiver.recv_timeout(GLANCE) {
                Ok(finished) => {
                    // The thread is past its work; a panic while unwinding it is of no interest.
                    let _ = handle.join();
                    return Ended::Finished(finished);
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Ended::Panicked(match handle.join() {
                        Ok(()) => "ended without a result".to_owned(),
                        Err(payload) => format!("panicked: {}", panic_text(payload.as_ref())),
                    });
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            let now = Instant::now();
            if self.interrupt.is_set()
                && now.duration_since(*interrupted.get_or_insert(now)) >= INTERRUPT_GRACE
            {
                return Ended::Abandoned(PointError::Interrupted);
            }
            if let Some(why) = self.lost()
                && now.duration_since(*lost.get_or_insert(now)) >= DEADLINE_GRACE
            {
                return Ended::Abandoned(PointError::failed(why));
            }
            if now >= give_up {
                let waited_for = "the experiment, which did not notice its own deadline".to_owned();
                return Ended::Abandoned(PointError::Deadline { waited_for });
            }
        }
    }

    fn keep(
        &self,
        outcome: &mut Outcome,
        planned: &Planned,
        result: Result<Vec<Measurement>, PointError>,
        assignment: Option<&Assignment>,
    ) {
        let measurements = match result {
            Ok(measurements) => measurements,
            Err(PointError::NotRun { reason }) => {
                outcome.not_run.push(missing(planned, reason));
                return;
            }
            Err(PointError::Interrupted) => {
                outcome.not_run.push(missing(planned, "interrupted".to_owned()));
                return;
            }
            Err(error) => {
                outcome.failed.push(missing(planned, error.to_string()));
                return;
            }
        };
        if measurements.is_empty() {
            outcome.failed.push(missing(planned, "measured nothing".to_owned()));
        }
        let cut_short = self.interrupt.is_set();
        for measurement in measurements {
            let metric = measurement.metric;
            if !planned.experiment.metrics().contains(&metric) {
                let reason = format!("{metric} is not a metric that the experiment declares");
                outcome.failed.push(missing(planned, reason));
                continue;
            }
            match Row::new(planned, measurement, assignment, self.published, cut_short) {
                Ok(row) => outcome.rows.push(row),
                Err(error) => {
                    outcome.failed.push(missing(planned, format!("{metric}: {error}")));
                }
            }
        }
    }
}

fn missing(planned: &Planned, reason: String) -> Missing {
    Missing { point: PointId::of(planned), reason }
}

fn panic_text(payload: &(dyn std::any::Any + Send)) -> &str {
    payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}
