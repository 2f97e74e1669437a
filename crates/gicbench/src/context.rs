//! What a running point gets from the harness: how much to do, until when, on which CPUs, and whether
//! the user has had enough.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use device::cuda::Gpu;
use serde::{Deserialize, Serialize};

use crate::cpus::{Assignment, Cpus, EngineChoice};
use crate::experiments::Limits;
use crate::hardware::NicOptions;
use crate::point::PointError;
use crate::ranks::Team;

/// The settings of a run: what holds for all of its points.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Whether delivered data is checked.
    pub check: bool,
    /// Seed of everything random.
    pub seed: u64,
    /// Longest that one point may take, in seconds.
    pub deadline_s: f64,
    /// How the software NIC's engine is driven.
    pub engine: EngineChoice,
    /// Where libraries are that are measured beside, as `NAME=DIR`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peer_paths: Vec<String>,
    /// Which port of a real NIC.
    #[serde(flatten)]
    pub nic: NicOptions,
}

/// Ctrl-C, as a flag that any thread may look at. Clones share the flag.
#[derive(Debug, Clone, Default)]
pub struct Interrupt(Arc<Flags>);

#[derive(Debug, Default)]
struct Flags {
    set: AtomicBool,
    heeded: AtomicBool,
}

impl Interrupt {
    /// Asks the run to end.
    pub fn set(&self) {
        self.0.set.store(true, Ordering::Relaxed);
    }

    /// Whether the run was asked to end.
    pub fn is_set(&self) -> bool {
        self.0.set.load(Ordering::Relaxed)
    }

    /// Says whether something is running that looks at the flag and has something to lose.
    pub fn heed(&self, heeded: bool) {
        self.0.heeded.store(heeded, Ordering::Relaxed);
    }

    /// Whether setting the flag ends the program soon; if not, whoever asks has to end it.
    pub fn is_heeded(&self) -> bool {
        self.0.heeded.load(Ordering::Relaxed)
    }
}

/// The context of one point.
#[derive(Debug)]
pub struct RunContext {
    settings: Settings,
    limits: Limits,
    cpus: Cpus,
    interrupt: Interrupt,
    deadline: Instant,
    assignment: Option<Assignment>,
    team: Option<Arc<Team>>,
    remote: Remote,
    /// The GPU whose threads submit, if it isn't this process's first choice.
    gpu: Option<u32>,
}

/// Where a point's remote side is in a process that is alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remote {
    /// Its kernels are the near side's.
    Together,
    /// On a thread of its own, and on a GPU of its own where GPU threads submit.
    Apart(Option<u32>),
}

impl RunContext {
    /// A context whose deadline starts to run now.
    pub fn new(settings: Settings, limits: Limits, cpus: Cpus, interrupt: Interrupt) -> Self {
        // A deadline past what the clock can express is as good as a year.
        let year = Duration::from_secs(365 * 24 * 3600);
        let length = Duration::try_from_secs_f64(settings.deadline_s).unwrap_or(year).min(year);
        let deadline = Instant::now() + length;
        let remote = match settings.nic.remote_gpu {
            Some(gpu) => Remote::Apart(Some(gpu)),
            None => Remote::Together,
        };
        let (assignment, team, gpu) = (None, None, None);
        RunContext { settings, limits, cpus, interrupt, deadline, assignment, team, remote, gpu }
    }

    /// The same, with the remote side elsewhere.
    #[must_use]
    pub fn with_remote(self, remote: Remote) -> Self {
        RunContext { remote, ..self }
    }

    /// The same, with GPU threads on another GPU.
    #[must_use]
    pub fn on_gpu(self, gpu: Option<u32>) -> Self {
        RunContext { gpu, ..self }
    }

    /// Where the remote side is, if no other rank is it.
    pub fn remote(&self) -> Remote {
        self.remote
    }

    /// Whether the remote side has threads of its own, here or in another rank.
    pub fn is_answered(&self) -> bool {
        self.team.is_some() || self.remote != Remote::Together
    }

    /// The GPU whose threads submit.
    ///
    /// # Errors
    /// There is none.
    pub fn gpu(&self) -> Result<Arc<Gpu>, PointError> {
        match self.gpu {
            None => crate::gpu::open().map_err(PointError::not_run),
            Some(gpu) => {
                crate::gpu::nth(gpu).map_err(|error| PointError::not_run(error.to_string()))
            }
        }
    }

    /// CPUs of this process.
    pub fn cpus(&self) -> &[usize] {
        self.cpus.allowed()
    }

    /// Those that no thread of this point was given.
    pub fn spare_cpus(&self) -> Vec<usize> {
        let is_given = |cpu: &usize| {
            self.assignment.as_ref().is_some_and(|given| {
                [&given.submitters, &given.workers, &given.engines]
                    .iter()
                    .any(|own| own.contains(cpu))
            })
        };
        self.cpus().iter().copied().filter(|cpu| !is_given(cpu)).collect()
    }

    /// The same, with another rank for the remote side.
    #[must_use]
    pub fn in_team(self, team: Option<Arc<Team>>) -> Self {
        RunContext { team, ..self }
    }

    /// The ranks, where there are several.
    pub fn team(&self) -> Option<&Arc<Team>> {
        self.team.as_ref()
    }

    /// The settings of the run.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// When the point has been sampled enough.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Whether delivered data is to be checked.
    pub fn check(&self) -> bool {
        self.settings.check
    }

    /// Seed of everything random at this point.
    pub fn seed(&self) -> u64 {
        self.settings.seed
    }

    /// Where libraries are that are measured beside, as `NAME=DIR`.
    pub fn peer_paths(&self) -> &[String] {
        &self.settings.peer_paths
    }

    /// Which port of a real NIC was asked for.
    pub fn nic_options(&self) -> &NicOptions {
        &self.settings.nic
    }

    /// Operations before the counted ones.
    pub fn warmup(&self) -> u64 {
        self.limits.warmup
    }

    /// Operations to count, if their number is bounded.
    pub fn ops(&self) -> Option<u64> {
        self.limits.ops
    }

    /// When the point has to be over. Every wait on a device or a peer ends here.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Time left until the deadline.
    ///
    /// # Errors
    /// None is left.
    pub fn remaining(&self, waiting_for: &str) -> Result<Duration, PointError> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(PointError::Deadline { waited_for: waiting_for.to_owned() });
        }
        Ok(left)
    }

    /// Whether to go on with what comes before the sampling, such as the warm-up.
    ///
    /// # Errors
    /// The point's deadline has passed: `doing` says at what. Ctrl-C came.
    pub fn go_on(&self, doing: &str) -> Result<(), PointError> {
        if self.interrupt.is_set() {
            return Err(PointError::Interrupted);
        }
        self.remaining(doing).map(drop)
    }

    /// The flag of Ctrl-C, for threads that the point starts.
    pub fn interrupt(&self) -> &Interrupt {
        &self.interrupt
    }

    /// Distributes the busy threads of this point over the CPUs, and has the record say so.
    ///
    /// The host submitter keeps `submitters` CPUs busy; a GPU keeps none. `engines` is the number of
    /// engine threads that the software NIC would have if it isn't stepped.
    pub fn place(&mut self, submitters: usize, workers: usize, engines: usize) -> Assignment {
        let assignment = self.cpus.assign(submitters, workers, engines);
        self.assignment = Some(assignment.clone());
        assignment
    }

    /// Starts the sampling clock.
    pub fn sampling(&self) -> Sampling {
        let start = Instant::now();
        Sampling {
            left: self.limits.ops,
            end: self.limits.duration.and_then(|duration| start.checked_add(duration)),
            deadline: self.deadline,
            interrupt: self.interrupt.clone(),
            started: false,
        }
    }

    pub(crate) fn into_assignment(self) -> Option<Assignment> {
        self.assignment
    }
}

/// Deals out the operations of a point until it has been sampled enough.
///
/// ```
/// # use gicbench::context::RunContext;
/// # use gicbench::point::PointError;
/// # fn measure(ctx: &RunContext) -> Result<(), PointError> {
/// let mut sampling = ctx.sampling();
/// loop {
///     let ops = sampling.next(256, "completions")?;
///     if ops == 0 {
///         break;
///     }
///     // do `ops` operations and keep their times
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Sampling {
    left: Option<u64>,
    end: Option<Instant>,
    deadline: Instant,
    interrupt: Interrupt,
    started: bool,
}

impl Sampling {
    /// Whether the time is over.
    pub fn is_over(&self) -> bool {
        self.end.is_some_and(|end| Instant::now() >= end) || self.left == Some(0)
    }

    /// How many operations to do next, at most `most`; 0 when there are enough, or after Ctrl-C.
    ///
    /// The first batch is dealt out even if the time is already over, so that a short `--duration` still
    /// gives samples. Ask often: a batch should take no more than some 100 ms.
    ///
    /// # Errors
    /// The point's deadline has passed: `doing` says at what. Ctrl-C came before the first batch.
    pub fn next(&mut self, most: u64, doing: &str) -> Result<u64, PointError> {
        if self.interrupt.is_set() {
            return if self.started { Ok(0) } else { Err(PointError::Interrupted) };
        }
        let now = Instant::now();
        if now >= self.deadline {
            return Err(PointError::Deadline { waited_for: doing.to_owned() });
        }
        let time_over = self.end.is_some_and(|end| now >= end);
        if time_over && self.started {
            return Ok(0);
        }
        let ops = self.left.map_or(most, |left| left.min(most));
        if let Some(left) = &mut self.left {
            *left -= ops;
        }
        self.started = true;
        Ok(ops)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context(limits: Limits, deadline_s: f64) -> RunContext {
        let settings = Settings {
            check: true,
            seed: 1,
            deadline_s,
            engine: EngineChoice::Auto,
            peer_paths: Vec::new(),
            nic: NicOptions::default(),
        };
        RunContext::new(
            settings,
            limits,
            Cpus::fixed(vec![0, 1], EngineChoice::Auto),
            Interrupt::default(),
        )
    }

    #[test]
    fn operations_are_dealt_out_exactly_once() {
        let ctx = context(Limits { ops: Some(10), warmup: 0, duration: None }, 60.0);
        let mut sampling = ctx.sampling();
        let dealt: Vec<u64> = (0..4).map(|_| sampling.next(4, "test").unwrap()).collect();
        assert_eq!(dealt, [4, 4, 2, 0]);
    }

    #[test]
    fn a_duration_that_is_over_at_once_still_gives_one_batch() {
        let limits = Limits { ops: None, warmup: 0, duration: Some(Duration::from_nanos(1)) };
        let mut sampling = context(limits, 60.0).sampling();
        assert_eq!(sampling.next(8, "test"), Ok(8));
        assert_eq!(sampling.next(8, "test"), Ok(0));
    }

    #[test]
    fn an_interrupt_ends_sampling_and_before_the_first_batch_is_an_error() {
        let ctx = context(Limits::new(10, 0, 60_000), 60.0);
        let mut running = ctx.sampling();
        let mut fresh = ctx.sampling();
        assert_eq!(running.next(1, "test"), Ok(1));
        ctx.interrupt().set();
        assert_eq!(running.next(1, "test"), Ok(0));
        assert_eq!(fresh.next(1, "test"), Err(PointError::Interrupted));
    }

    #[test]
    fn a_passed_deadline_says_what_was_waited_for() {
        let ctx = context(Limits::new(10, 0, 60_000), 0.0);
        let expected = PointError::Deadline { waited_for: "a CQE".to_owned() };
        assert_eq!(ctx.sampling().next(1, "a CQE"), Err(expected.clone()));
        assert_eq!(ctx.remaining("a CQE"), Err(expected));
    }

    #[test]
    fn a_deadline_longer_than_the_clock_holds_is_no_panic() {
        for deadline_s in [1e300, f64::INFINITY, f64::NAN, -1.0] {
            let _ = context(Limits::new(1, 0, 1), deadline_s);
        }
    }
}
