//! Who started this process, and as which rank: a function of the environment alone.
//!
//! | found | taken for |
//! |---|---|
//! | `RANK` and `WORLD_SIZE` (with `MASTER_ADDR`, `MASTER_PORT`) | a launcher in the manner of `torchrun` or Kubernetes |
//! | `PMIX_NAMESPACE` and `PMIX_RANK` | one that offers PMIx: Open MPI's `mpirun`, `srun --mpi=pmix` |
//! | a size that only the launcher's own variables tell | an error: what would be N runs of one rank each |
//! | none of them | a process alone |
//!
//! The innermost launcher counts: `torchrun` under `srun` sets the first row's variables in an environment that may
//! have the second's.

/// How this process was started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Launch {
    /// By nobody who counts.
    Alone,
    /// Ask PMIx.
    Pmix,
    /// By the variables.
    Variables(Variables),
}

/// What the variables say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variables {
    /// Of this process.
    pub rank: u32,
    /// Ranks in all, 2 or more.
    pub size: u32,
    /// Where rank 0 is: a name or an address.
    pub host: String,
    /// Where rank 0 is to be met.
    pub port: u16,
}

/// An environment that makes no sense, or more sense than this program can.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// One of the variables without another.
    #[error(
        "{found} is set, and {missing} isn't: a launcher sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"
    )]
    Half {
        /// Which is there.
        found: &'static str,
        /// Which isn't.
        missing: &'static str,
    },
    /// A variable that isn't what it should be.
    #[error("{variable}={value}: {why}")]
    Value {
        /// Its name.
        variable: &'static str,
        /// What it says.
        value: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A launcher started several processes in a way that this program can't follow.
    #[error(
        "{variable}={value}: {launcher} started {value} processes, and offers no PMIx by which they could find each \
         other. {remedy}, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"
    )]
    Unseen {
        /// The variable that says so.
        variable: &'static str,
        /// How many.
        value: u32,
        /// Whose it is.
        launcher: &'static str,
        /// What to do.
        remedy: &'static str,
    },
}

/// Port of rank 0 unless MASTER_PORT says another.
pub const PORT: u16 = 29_400;

/// Variables by which launchers tell how many processes they started. SLURM_NTASKS is not among them: it is that of the
/// job, whose script runs once.
const SIZES: &[(&str, &str, &str)] = &[
    ("OMPI_COMM_WORLD_SIZE", "Open MPI's mpirun", "Have it start its PMIx server"),
    ("SLURM_STEP_NUM_TASKS", "srun", "Use srun --mpi=pmix"),
    ("PMI_SIZE", "a PMI launcher", "Use one with PMIx"),
    ("MPI_LOCALNRANKS", "an MPI launcher", "Use one with PMIx"),
    ("PALS_LOCAL_SIZE", "PALS", "Use a launcher with PMIx"),
    ("FLUX_JOB_SIZE", "Flux", "Use its PMIx plug-in"),
    ("JSM_NAMESPACE_SIZE", "jsrun", "Use a launcher with PMIx"),
];

/// What `get` finds of the environment, understood.
///
/// # Errors
/// It makes no sense.
pub fn detect(get: impl Fn(&str) -> Option<String>) -> Result<Launch, LaunchError> {
    if let Some(variables) = variables(&get)? {
        return Ok(if variables.size == 1 { Launch::Alone } else { Launch::Variables(variables) });
    }
    if get("PMIX_NAMESPACE").is_some() && get("PMIX_RANK").is_some() {
        return Ok(Launch::Pmix);
    }
    for &(variable, launcher, remedy) in SIZES {
        // What can't be read isn't a number of processes.
        let value = get(variable).and_then(|value| value.trim().parse().ok()).unwrap_or(1);
        if value > 1 {
            return Err(LaunchError::Unseen { variable, value, launcher, remedy });
        }
    }
    Ok(Launch::Alone)
}

fn variables(get: &impl Fn(&str) -> Option<String>) -> Result<Option<Variables>, LaunchError> {
    let number = |variable: &'static str, value: String| {
        value.trim().parse::<u32>().map_err(|_| LaunchError::Value {
            variable,
            value,
            why: "not a whole number",
        })
    };
    let (rank, size) = match (get("RANK"), get("WORLD_SIZE")) {
        // A shell's own RANK is no launcher's.
        (None, None) | (Some(_), None) => return Ok(None),
        (None, Some(size)) => match number("WORLD_SIZE", size)? {
            1 => return Ok(None),
            _ => return Err(LaunchError::Half { found: "WORLD_SIZE", missing: "RANK" }),
        },
        (Some(rank), Some(size)) => (number("RANK", rank)?, number("WORLD_SIZE", size)?),
    };
    let wrong = |variable, value: u32, why| {
        Err(LaunchError::Value { variable, value: value.to_string(), why })
    };
    if size == 0 {
        return wrong("WORLD_SIZE", size, "at least one process was started");
    }
    if rank >= size {
        return wrong("RANK", rank, "ranks are 0 to WORLD_SIZE - 1");
    }
    let host = match get("MASTER_ADDR") {
        Some(host) if !host.trim().is_empty() => host.trim().to_owned(),
        _ if size == 1 => String::new(),
        _ => return Err(LaunchError::Half { found: "WORLD_SIZE", missing: "MASTER_ADDR" }),
    };
    let port = match get("MASTER_PORT") {
        None => PORT,
        Some(value) => match value.trim().parse() {
            Ok(port) if port != 0 => port,
            _ => {
                let why = "a port is 1 to 65535";
                return Err(LaunchError::Value { variable: "MASTER_PORT", value, why });
            }
        },
    };
    // torchrun's agent has a store of its own at that port: the next one is as good.
    let is_taken = get("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|value| value == "True");
    let port = if is_taken { port.checked_add(1).unwrap_or(PORT) } else { port };
    Ok(Some(Variables { rank, size, host, port }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(environment: &[(&str, &str)]) -> Result<Launch, LaunchError> {
        let find = |name: &str| environment.iter().find(|(key, _)| *key == name);
        detect(|name| find(name).map(|(_, value)| (*value).to_owned()))
    }

    fn ranked(rank: u32, size: u32, host: &str, port: u16) -> Launch {
        Launch::Variables(Variables { rank, size, host: host.to_owned(), port })
    }

    const TORCHRUN: [(&str, &str); 5] = [
        ("RANK", "1"),
        ("WORLD_SIZE", "4"),
        ("MASTER_ADDR", "node7"),
        ("MASTER_PORT", "29500"),
        ("LOCAL_RANK", "1"),
    ];

    #[test]
    fn the_environment_says_who_started_the_process() {
        for (environment, expected) in [
            (&[][..], Launch::Alone),
            (&TORCHRUN, ranked(1, 4, "node7", 29_500)),
            (
                &[&TORCHRUN[..], &[("TORCHELASTIC_USE_AGENT_STORE", "True")]].concat(),
                ranked(1, 4, "node7", 29_501),
            ),
            (
                &[("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "::1")],
                ranked(0, 2, "::1", PORT),
            ),
            // One process is alone, whoever started it.
            (&[("RANK", "0"), ("WORLD_SIZE", "1")], Launch::Alone),
            (&[("WORLD_SIZE", "1")], Launch::Alone),
            (&[("RANK", "sergeant")], Launch::Alone),
            (&[("OMPI_COMM_WORLD_SIZE", "1")], Launch::Alone),
            // A job's script is run once.
            (&[("SLURM_NTASKS", "16"), ("SLURM_PROCID", "0")], Launch::Alone),
            (
                &[("PMIX_NAMESPACE", "1@2"), ("PMIX_RANK", "3"), ("OMPI_COMM_WORLD_SIZE", "4")],
                Launch::Pmix,
            ),
            // torchrun, started by srun.
            (
                &[&TORCHRUN[..], &[("PMIX_NAMESPACE", "1@2"), ("PMIX_RANK", "0")]].concat(),
                ranked(1, 4, "node7", 29_500),
            ),
        ] {
            assert_eq!(of(environment), Ok(expected), "{environment:?}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        for (environment, expected) in [
            (&[("WORLD_SIZE", "2")][..], "WORLD_SIZE is set, and RANK isn't"),
            (&[("RANK", "0"), ("WORLD_SIZE", "2")], "WORLD_SIZE is set, and MASTER_ADDR isn't"),
            (&[("RANK", "2"), ("WORLD_SIZE", "2")], "RANK=2: ranks are 0 to WORLD_SIZE - 1"),
            (&[("RANK", "-1"), ("WORLD_SIZE", "2")], "RANK=-1: not a whole number"),
            (&[("RANK", "0"), ("WORLD_SIZE", "0")], "WORLD_SIZE=0: at least one"),
            (
                &[("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "0")],
                "MASTER_PORT=0: a port is",
            ),
            (
                &[("OMPI_COMM_WORLD_SIZE", "4")],
                "OMPI_COMM_WORLD_SIZE=4: Open MPI's mpirun started 4",
            ),
            (&[("SLURM_STEP_NUM_TASKS", "8")], "srun --mpi=pmix"),
            (&[("PMI_SIZE", "2"), ("PMI_RANK", "0")], "PMI_SIZE=2"),
        ] {
            let error = of(environment).unwrap_err().to_string();
            assert!(error.contains(expected), "{environment:?}: {error}");
        }
    }
}
