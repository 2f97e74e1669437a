//! Which CPU does what: the CPUs that this process may use, and their distribution over the busy
//! threads of a point.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::{Deserialize, Serialize};

/// How the software NIC's engine is driven.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineMode {
    /// On a thread of its own.
    Thread,
    /// By whoever waits for it.
    Stepped,
}

/// What `--engine` asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum EngineChoice {
    /// Its own thread where there is a core for every busy thread, stepped otherwise.
    #[default]
    Auto,
    /// Its own thread.
    Thread,
    /// Stepped by whoever waits.
    Stepped,
}

/// The CPUs that this process may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cpus {
    allowed: Vec<usize>,
    choice: EngineChoice,
}

/// The busy threads of a point, each with its CPU. CPUs are reused when there are too few.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assignment {
    /// How the engine is driven.
    pub engine: EngineMode,
    /// CPUs of the submitting threads.
    pub submitters: Vec<usize>,
    /// CPUs of the proxy workers.
    pub workers: Vec<usize>,
    /// CPUs of the engine threads; empty when it is stepped.
    pub engines: Vec<usize>,
    /// CPUs that this process may use.
    pub cores: usize,
}

impl Assignment {
    /// Threads that never sleep.
    pub fn busy_threads(&self) -> usize {
        self.submitters.len() + self.workers.len() + self.engines.len()
    }

    /// Whether busy threads have to share a core, so that times hold scheduling.
    pub fn oversubscribed(&self) -> bool {
        self.busy_threads() > self.cores
    }
}

impl Cpus {
    /// Asks the system.
    ///
    /// # Errors
    /// The system doesn't say, or says none.
    pub fn detect(choice: EngineChoice) -> io::Result<Self> {
        let set = sched_getaffinity(None)?;
        let allowed: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect();
        if allowed.is_empty() {
            return Err(io::Error::other("the affinity mask of this process is empty"));
        }
        Ok(Cpus { allowed, choice })
    }

    /// A made-up set, for tests and for planning for another machine; an empty one becomes CPU 0.
    pub fn fixed(allowed: Vec<usize>, choice: EngineChoice) -> Self {
        let allowed = if allowed.is_empty() { vec![0] } else { allowed };
        Cpus { allowed, choice }
    }

    /// The same choice, with only these CPUs.
    pub fn only(&self, allowed: &[usize]) -> Self {
        Cpus::fixed(allowed.to_vec(), self.choice)
    }

    /// CPUs that this process may use.
    pub fn allowed(&self) -> &[usize] {
        &self.allowed
    }

    /// Gives each busy thread a CPU: submitters first, then engines, then workers.
    pub fn assign(&self, submitters: usize, workers: usize, engines: usize) -> Assignment {
        let fits = submitters + workers + engines <= self.allowed.len();
        let engine = match self.choice {
            EngineChoice::Thread => EngineMode::Thread,
            EngineChoice::Stepped => EngineMode::Stepped,
            EngineChoice::Auto if fits => EngineMode::Thread,
            EngineChoice::Auto => EngineMode::Stepped,
        };
        let engines = if engine == EngineMode::Thread { engines } else { 0 };
        let mut next = self.allowed.iter().copied().cycle();
        let mut take = |count| next.by_ref().take(count).collect::<Vec<_>>();
        let submitters = take(submitters);
        let engines = take(engines);
        let workers = take(workers);
        Assignment { engine, submitters, workers, engines, cores: self.allowed.len() }
    }
}

/// Binds the calling thread to a CPU.
///
/// # Errors
/// The system refuses, for example because the CPU is outside the process' mask.
pub fn pin_current_thread(cpu: usize) -> io::Result<()> {
    if cpu >= CpuSet::MAX_CPU {
        return Err(io::Error::other(format!("CPU {cpu} is past the affinity mask")));
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_engine_gets_a_thread_only_where_there_is_a_core_for_it() {
        use EngineMode::{Stepped, Thread};
        for (cores, choice, submitters, workers, engines, mode, busy, over) in [
            (2, EngineChoice::Auto, 1, 0, 1, Thread, 2, false),
            (1, EngineChoice::Auto, 1, 0, 1, Stepped, 1, false),
            (2, EngineChoice::Auto, 1, 1, 1, Stepped, 2, false),
            (2, EngineChoice::Thread, 1, 1, 1, Thread, 3, true),
            (2, EngineChoice::Stepped, 1, 0, 1, Stepped, 1, false),
            (2, EngineChoice::Auto, 4, 0, 1, Stepped, 4, true),
        ] {
            let plan =
                Cpus::fixed((0..cores).collect(), choice).assign(submitters, workers, engines);
            assert_eq!(plan.engine, mode);
            assert_eq!(plan.busy_threads(), busy);
            assert_eq!(plan.oversubscribed(), over);
        }
    }

    #[test]
    fn no_cpu_is_used_twice_before_all_are_used_once() {
        let plan = Cpus::fixed(vec![3, 5, 9], EngineChoice::Thread).assign(1, 1, 1);
        let mut used = [plan.submitters, plan.workers, plan.engines].concat();
        used.sort_unstable();
        assert_eq!(used, [3, 5, 9]);
    }

    #[test]
    fn this_process_has_a_cpu_and_can_be_bound_to_it() {
        let cpus = Cpus::detect(EngineChoice::Auto).unwrap();
        let cpu = cpus.allowed()[0];
        std::thread::spawn(move || {
            pin_current_thread(cpu).unwrap();
            let pinned = Cpus::detect(EngineChoice::Auto).unwrap();
            assert_eq!(pinned.allowed(), [cpu]);
        })
        .join()
        .unwrap();
        assert!(pin_current_thread(CpuSet::MAX_CPU).is_err());
    }
}
