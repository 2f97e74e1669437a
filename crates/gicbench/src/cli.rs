//! The command line: its words, and nothing of what they do.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, Parser, Subcommand, ValueEnum};

use crate::axes::{AXES, AxisId, Value};
use crate::cpus::EngineChoice;
use crate::decode::DecodeArgs;
use crate::hardware::NicOptions;
use crate::nic_exec::NicAction;
use crate::quantity::{Bytes, parse_duration};
use crate::ranks::RanksArgs;
use crate::report::ReportArgs;
use crate::usage::UsageError;

/// An open performance oracle for GPU-initiated communication.
#[derive(Debug, Parser)]
#[command(name = "gicbench", version, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Action,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Action {
    /// Run experiments; without arguments, the quick suite
    Run(Box<RunArgs>),
    /// List the experiments, what of them can run here, and why not the rest
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// A library to measure beside: its checkout, or the folder of its package
        #[arg(long, value_name = "NAME=DIR")]
        peer_path: Vec<String>,
    },
    /// Make a page of figures and pictures from records
    Report(ReportArgs),
    /// Explain the bytes of a WQE, a CQE or a doorbell
    Decode(DecodeArgs),
    /// Measures the points that it reads from its input, for a run that may lose it
    #[command(hide = true, name = crate::isolated::COMMAND)]
    PointWorker,
    /// Software ConnectXs for programs that know nothing of them
    #[command(subcommand)]
    Nic(NicAction),
    /// Try every step of the ways to a real NIC on this machine, and say which works
    Selftest {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Which port.
        #[command(flatten)]
        nic: NicOptions,
    },
    /// Look at this machine, and say what each finding means for a measurement
    Doctor {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// A library to measure beside: its checkout, or the folder of its package
        #[arg(long, value_name = "NAME=DIR")]
        peer_path: Vec<String>,
    },
}

/// Arguments of `gicbench run`.
///
/// Every axis takes a comma list, and the lists multiply.
#[derive(Debug, Clone, Default, Args)]
pub struct RunArgs {
    /// Experiments to run; all of them unless named
    #[arg(value_name = "EXPERIMENT")]
    pub experiments: Vec<String>,
    /// quick, full, or a TOML file
    #[arg(long, value_name = "quick|full|FILE")]
    pub suite: Option<String>,
    /// Run again exactly the points of a record
    #[arg(long, value_name = "RUN.json", conflicts_with_all = ["experiments", "suite", "transport",
        "submitter", "nic", "min", "max", "factor", "ops", "warmup", "duration", "shard"])]
    pub from: Option<PathBuf>,
    /// Transports: mini-gda, mini-proxy, …; peers: every library's
    #[arg(long, value_name = "LIST")]
    pub transport: Option<String>,
    /// Who runs the device code: auto, host, cuda
    #[arg(long, value_name = "LIST")]
    pub submitter: Option<String>,
    /// Who executes the WQEs: auto, soft, soft-gpu, mlx5, verbs
    #[arg(long, value_name = "LIST")]
    pub nic: Option<String>,
    /// Which port of a real NIC.
    #[command(flatten)]
    pub nic_options: NicOptions,
    /// Smallest payload; K, M and G are powers of two
    #[arg(short = 'b', value_name = "MIN", allow_hyphen_values = true)]
    pub min: Option<String>,
    /// Largest payload; the smallest unless given
    #[arg(short = 'e', value_name = "MAX", allow_hyphen_values = true)]
    pub max: Option<String>,
    /// Factor from one payload to the next; 2 unless given
    #[arg(short = 'f', value_name = "FACTOR", value_parser = whole_number, allow_hyphen_values = true)]
    pub factor: Option<u64>,
    /// Operations counted at each point
    #[arg(short = 'n', value_name = "OPS", value_parser = operations, allow_hyphen_values = true)]
    pub ops: Option<u64>,
    /// Operations before the counted ones
    #[arg(short = 'w', value_name = "WARMUP", value_parser = whole_number, allow_hyphen_values = true)]
    pub warmup: Option<u64>,
    /// Sampling time of each point, such as 500ms or 2s; with -n, whichever ends first
    #[arg(long, value_name = "T", value_parser = parse_duration, allow_hyphen_values = true)]
    pub duration: Option<std::time::Duration>,
    /// Flags that set an axis.
    #[command(flatten)]
    pub axes: AxisFlags,
    /// Check the delivered data
    #[arg(long, value_name = "on|off", num_args = 0..=1, default_missing_value = "on")]
    pub check: Option<OnOff>,
    /// Seed of everything random; 1 unless given
    #[arg(long, value_name = "N", value_parser = whole_number, allow_hyphen_values = true)]
    pub seed: Option<u64>,
    /// Longest that one point may take; 30s, or more where --duration needs it, unless given
    #[arg(long, value_name = "T", value_parser = parse_duration, allow_hyphen_values = true)]
    pub deadline: Option<std::time::Duration>,
    /// How the software NIC's engine is driven
    #[arg(long, value_name = "MODE")]
    pub engine: Option<EngineChoice>,
    /// A library to measure beside: its checkout, or the folder of its package
    #[arg(long, value_name = "NAME=DIR")]
    pub peer_path: Vec<String>,
    /// Several processes.
    #[command(flatten)]
    pub ranks: RanksArgs,
    /// Run only the k-th of n equal shares of the points
    #[arg(long, value_name = "K/N", allow_hyphen_values = true)]
    pub shard: Option<Shard>,
    /// Write the record
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write a row a measurement
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Write a self-contained page of figures, pictures and rows
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Overwrite files that exist
    #[arg(long)]
    pub force: bool,
}

fn whole_number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| {
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            format!("too large: the greatest is {}", u64::MAX)
        } else {
            "not a whole number: write digits alone, such as 10000".to_owned()
        }
    })
}

fn operations(text: &str) -> Result<u64, String> {
    match whole_number(text)? {
        0 => Err("nothing would be counted: the least is 1".to_owned()),
        ops => Ok(ops),
    }
}

/// A switch that is spelled out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OnOff {
    /// On.
    On,
    /// Off.
    Off,
}

/// One share of a plan: the points whose number is `k - 1` modulo `n`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    k: u32,
    n: u32,
}

impl Shard {
    /// Whether a point, by its number from 0, is in this share.
    pub fn holds(self, index: usize) -> bool {
        index % self.n as usize == (self.k - 1) as usize
    }
}

impl std::str::FromStr for Shard {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        text.split_once('/')
            .filter(|(k, _)| !k.starts_with('+'))
            .and_then(|(k, n)| Some(Shard { k: k.parse().ok()?, n: n.parse().ok()? }))
            .filter(|shard| (1..=shard.n).contains(&shard.k))
            .ok_or_else(|| "write K/N with 1 <= K <= N, such as 3/16".to_owned())
    }
}

impl std::fmt::Display for Shard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.k, self.n)
    }
}

/// The flags of the axis table.
#[derive(Debug, Clone, Default)]
pub struct AxisFlags(BTreeMap<AxisId, String>);

impl AxisFlags {
    /// What was given, as it was typed.
    pub fn given(&self) -> impl Iterator<Item = (AxisId, &str)> {
        self.0.iter().map(|(axis, text)| (*axis, text.as_str()))
    }
}

impl FromArgMatches for AxisFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = flags().filter_map(|axis| {
            matches.get_one::<String>(axis.name()).map(|text| (axis, text.clone()))
        });
        Ok(AxisFlags(given.collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0.extend(Self::from_arg_matches(matches)?.0);
        Ok(())
    }
}

impl Args for AxisFlags {
    fn augment_args(command: Command) -> Command {
        command
            .next_help_heading("Axes (each a comma list)")
            .args(flags().map(|axis| {
                let spec = axis.spec();
                Arg::new(spec.name)
                    .long(spec.name)
                    .value_name("LIST")
                    // So that a negative number is refused by the axis, with its bounds.
                    .allow_hyphen_values(true)
                    .help(format!("{} ({})", spec.help, spec.domain.describe()))
            }))
            .next_help_heading(None)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// Axes with a long flag of their own: all but the payload.
fn flags() -> impl Iterator<Item = AxisId> {
    AXES.iter().map(|axis| axis.id).filter(|axis| *axis != AxisId::Payload)
}

/// The payloads of a sweep from `min` to `max`, each `factor` times the one before.
///
/// # Errors
/// A size that isn't one, a factor below 2, or a `max` below `min`.
pub fn sweep(
    min: Option<&str>,
    max: Option<&str>,
    factor: Option<u64>,
) -> Result<Option<Vec<Value>>, UsageError> {
    if min.is_none() && max.is_none() && factor.is_none() {
        return Ok(None);
    }
    let size = |flag: &str, text: &str| match AxisId::Payload.parse(text) {
        Ok(value) => Ok(value.number().unwrap_or_default()),
        Err(UsageError::UnknownValue { value, why, nearest, .. }) => {
            Err(UsageError::UnknownValue { flag: flag.to_owned(), value, why, nearest })
        }
        Err(other) => Err(other),
    };
    let first = size("-b", min.unwrap_or("8"))?;
    let last = match max {
        Some(text) => size("-e", text)?,
        None => first,
    };
    let step = factor.unwrap_or(2);
    let wrong = |why| UsageError::Sweep {
        min: Bytes(first).to_string(),
        max: Bytes(last).to_string(),
        factor: step,
        why,
    };
    if last < first {
        return Err(wrong("the last size is below the first"));
    }
    if step < 2 {
        return Err(wrong("the factor must be at least 2"));
    }
    if factor.is_some() && max.is_none() {
        return Err(wrong("-f needs a last size, -e"));
    }
    let sizes = std::iter::successors(Some(first), |size| size.checked_mul(step));
    Ok(Some(sizes.take_while(|size| *size <= last).map(Value::Bytes).collect()))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_sweep_multiplies_up_to_its_last_size() {
        let sizes = |min, max, factor| {
            let values = sweep(min, max, factor).unwrap().unwrap();
            values.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
        };
        assert_eq!(sizes(Some("8"), Some("64"), Some(2)), "8,16,32,64");
        assert_eq!(sizes(Some("8"), Some("1M"), Some(32)), "8,256,8K,256K");
        assert_eq!(sizes(Some("4K"), None, None), "4K");
        assert_eq!(sizes(None, Some("32"), None), "8,16,32");
        assert_eq!(sizes(Some("512M"), Some("1G"), Some(u64::MAX)), "512M");
        assert!(sweep(None, None, None).unwrap().is_none());
    }

    #[test]
    fn a_sweep_that_makes_no_sense_is_refused() {
        for (min, max, factor, flag) in [
            (Some("64"), Some("8"), None, "-b 64 -e 8"),
            (Some("8"), Some("64"), Some(1), "-f 1"),
            (Some("8"), Some("64"), Some(0), "-f 0"),
            (Some("8"), None, Some(2), "-e"),
            (Some("x"), None, None, "-b 'x'"),
            (None, Some("8Q"), None, "-e '8Q'"),
        ] {
            let error = sweep(min, max, factor).unwrap_err().to_string();
            assert!(error.contains(flag), "{error}");
        }
    }

    #[test]
    fn shards_hold_every_point_once() {
        let shards: Vec<Shard> = ["1/3", "2/3", "3/3"].iter().map(|s| s.parse().unwrap()).collect();
        for index in 0..10 {
            assert_eq!(shards.iter().filter(|shard| shard.holds(index)).count(), 1);
        }
        for text in ["", "3", "0/3", "4/3", "1/0", "-1/3", "a/b"] {
            assert!(text.parse::<Shard>().is_err(), "{text}");
        }
    }
}
