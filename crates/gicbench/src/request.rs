//! What a user asks `run` for, from whichever place: the command line, a suite file, or a record.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value as Json;

use crate::axes::{AXES, AxisId, Value};
use crate::cli::{OnOff, RunArgs, Shard, sweep};
use crate::context::Settings;
use crate::experiments::{Limits, Suite};
use crate::peer;
use crate::plan::{Block, LimitsGiven, Planned, Registry, explain, find, plan};
use crate::platform::Platform;
use crate::point::{Nic, Point, Submitter, Transport};
use crate::record::{PointId, Record, SCHEMA_VERSION};
use crate::usage::{UsageError, nearest};

/// A checked request.
#[derive(Debug)]
pub struct Request {
    /// Name of the suite: `quick`, `full`, or a file.
    pub suite: String,
    /// Share of the points.
    pub shard: Option<Shard>,
    /// Settings of the run.
    pub settings: Settings,
    /// The points.
    pub points: Vec<Planned>,
}

impl Request {
    /// Checks what was asked for, against what there is.
    ///
    /// # Errors
    /// Anything that makes no sense; nothing has run then.
    pub fn new(
        args: &RunArgs,
        registry: &Registry,
        platform: &Platform,
    ) -> Result<Self, UsageError> {
        if let Some(path) = &args.from {
            return from_record(path, args, registry);
        }
        let command_line = block(args, platform)?;
        let suite = args.suite.as_deref().unwrap_or(Suite::Quick.name());
        let mut points = match suite {
            "quick" => plan(&[command_line], Suite::Quick, registry)?,
            "full" => plan(&[command_line], Suite::Full, registry)?,
            file => {
                if !Path::new(file).exists() && !file.contains(['.', '/']) {
                    return Err(UsageError::UnknownValue {
                        flag: "--suite".to_owned(),
                        value: file.to_owned(),
                        why: "neither a suite nor a file".to_owned(),
                        nearest: nearest(file, ["quick", "full"]),
                    });
                }
                let blocks = suite_file(Path::new(file), &command_line, args, platform)?;
                plan(&blocks, Suite::Full, registry)?
            }
        };
        let whole = points.len();
        if whole == 0 {
            return Err(UsageError::NoPoints);
        }
        if let Some(shard) = args.shard {
            let mut index = 0..;
            points.retain(|_| index.next().is_some_and(|index: usize| shard.holds(index)));
            if points.is_empty() {
                return Err(UsageError::EmptyShard { shard: shard.to_string(), points: whole });
            }
        }
        let longest = points.iter().filter_map(|planned| planned.limits.duration).max();
        let base = Settings {
            check: true,
            seed: 1,
            deadline_s: deadline_for(longest.unwrap_or_default()).as_secs_f64(),
            engine: Default::default(),
            peer_paths: Vec::new(),
            nic: Default::default(),
        };
        Ok(Request {
            suite: suite.to_owned(),
            shard: args.shard,
            settings: settings(args, base)?,
            points,
        })
    }
}

/// What a point may take that samples for so long, set-up and a second series of samples included.
fn deadline_for(duration: Duration) -> Duration {
    const LEAST: Duration = Duration::from_secs(30);
    const SET_UP: Duration = Duration::from_secs(10);
    duration.saturating_mul(2).saturating_add(SET_UP).max(LEAST)
}

fn settings(args: &RunArgs, base: Settings) -> Result<Settings, UsageError> {
    // Those of a record stay, but for those that are named anew; a path holds wherever it is read again.
    let words = [base.peer_paths, args.peer_path.clone()].concat();
    let peer_paths = peer::paths(&words)?.absolute().words();
    Ok(Settings {
        peer_paths,
        nic: args.nic_options.clone().or(base.nic),
        check: args.check.map_or(base.check, |check| check == OnOff::On),
        seed: args.seed.unwrap_or(base.seed),
        deadline_s: args.deadline.map_or(base.deadline_s, |deadline| deadline.as_secs_f64()),
        engine: args.engine.unwrap_or(base.engine),
    })
}

/// The command line as a block.
fn block(args: &RunArgs, platform: &Platform) -> Result<Block, UsageError> {
    // With a number of operations, too, a point may end before its time does.
    if let (Some(deadline), Some(duration), None) = (args.deadline, args.duration, args.ops)
        && deadline <= duration
    {
        let nearest = deadline_for(duration);
        return Err(UsageError::DeadlineBelowDuration { deadline, duration, nearest });
    }
    let mut axes = BTreeMap::new();
    for (axis, text) in args.axes.given() {
        axes.insert(axis, axis.parse_list(text)?);
    }
    if let Some(sizes) = sweep(args.min.as_deref(), args.max.as_deref(), args.factor)? {
        axes.insert(AxisId::Payload, sizes);
    }
    Ok(Block {
        experiments: args.experiments.clone(),
        transports: args.transport.as_deref().map(transports).transpose()?,
        submitters: list(
            args.submitter.as_deref().unwrap_or(AUTO),
            Some(platform.best_submitter()),
        )?,
        nics: list(args.nic.as_deref().unwrap_or(AUTO), Some(platform.best_nic()))?,
        axes,
        limits: LimitsGiven { ops: args.ops, warmup: args.warmup, duration: args.duration },
    })
}

const AUTO: &str = "auto";
/// Stands for every library's path.
const PEERS: &str = "peers";

/// A comma list of transports, where `peers` stands for the libraries'.
fn transports(text: &str) -> Result<Vec<Transport>, UsageError> {
    let mut transports = Vec::new();
    for name in text.split(',').map(str::trim) {
        let named = if name == PEERS { Transport::PEERS.to_vec() } else { vec![name.parse()?] };
        transports.extend(named);
    }
    let mut seen = BTreeSet::new();
    transports.retain(|transport| seen.insert(*transport));
    Ok(transports)
}

/// A comma list of names, where `auto` may stand for the best one.
fn list<T: FromStr<Err = UsageError> + PartialEq + Copy>(
    text: &str,
    auto: Option<T>,
) -> Result<Vec<T>, UsageError> {
    let mut items = Vec::new();
    for name in text.split(',').map(str::trim) {
        let item = match auto {
            Some(best) if name == AUTO => best,
            _ => name.parse()?,
        };
        if !items.contains(&item) {
            items.push(item);
        }
    }
    Ok(items)
}

/// More than any suite or record has.
const INPUT_MAX: u64 = 256 << 20;

/// The text of a suite or record file, without a byte order mark.
fn read(path: &Path) -> Result<String, String> {
    let mut text = String::new();
    fs::File::open(path)
        .and_then(|file| file.take(INPUT_MAX + 1).read_to_string(&mut text))
        .map_err(|error| error.to_string())?;
    if text.len() as u64 > INPUT_MAX {
        return Err(format!("is longer than {} MiB", INPUT_MAX >> 20));
    }
    Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text))
}

/// A suite file: `[[run]]` tables, each with an experiment list and its axes.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SuiteFile {
    run: Vec<SuiteRun>,
}

#[derive(Debug, Deserialize)]
struct SuiteRun {
    experiments: Vec<String>,
    transport: Option<String>,
    submitter: Option<String>,
    nic: Option<String>,
    ops: Option<u64>,
    warmup: Option<u64>,
    duration: Option<String>,
    #[serde(flatten)]
    axes: BTreeMap<String, toml::Value>,
}

/// Reads a suite file. What the command line says, too, replaces what the file says.
fn suite_file(
    path: &Path,
    command_line: &Block,
    args: &RunArgs,
    platform: &Platform,
) -> Result<Vec<Block>, UsageError> {
    let wrong = |why: String| UsageError::InputFile { path: path.to_owned(), why };
    let text = read(path).map_err(wrong)?;
    let file: SuiteFile = toml::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    if file.run.is_empty() {
        return Err(wrong("has no [[run]]".to_owned()));
    }
    let mut blocks = Vec::new();
    for run in file.run {
        let mut block = Block { experiments: run.experiments, ..command_line.clone() };
        if block.experiments.is_empty() {
            return Err(wrong("a [[run]] names no experiment".to_owned()));
        }
        if !command_line.experiments.is_empty() {
            block.experiments.retain(|name| command_line.experiments.contains(name));
            if block.experiments.is_empty() {
                continue;
            }
        }
        if let (None, Some(text)) = (&command_line.transports, &run.transport) {
            let transports = transports(text).map_err(|error| wrong(error.to_string()))?;
            block.transports = Some(transports);
        }
        if let (None, Some(text)) = (&args.submitter, &run.submitter) {
            block.submitters = list(text, Some(platform.best_submitter()))
                .map_err(|error| wrong(error.to_string()))?;
        }
        if let (None, Some(text)) = (&args.nic, &run.nic) {
            block.nics =
                list(text, Some(platform.best_nic())).map_err(|error| wrong(error.to_string()))?;
        }
        for (name, value) in run.axes {
            let axis = AxisId::by_name(&name).ok_or_else(|| {
                let names = AXES.iter().map(|axis| axis.name);
                wrong(format!(
                    "a [[run]] has experiments, transport, submitter, nic, ops, warmup, duration and axes, and no \
                     axis is called '{name}'; nearest: {}",
                    nearest(&name, names).join(", ")
                ))
            })?;
            let values =
                suite_values(axis, &value).map_err(|error| wrong(format!("{name}: {error}")))?;
            if values.is_empty() {
                return Err(wrong(format!("{name}: an empty list; leave it out, or name a value")));
            }
            block.axes.entry(axis).or_insert(values);
        }
        if run.ops == Some(0) {
            return Err(wrong("ops 0: nothing would be counted; the least is 1".to_owned()));
        }
        let given = &mut block.limits;
        given.ops = given.ops.or(run.ops);
        given.warmup = given.warmup.or(run.warmup);
        if let (None, Some(text)) = (given.duration, &run.duration) {
            let duration = crate::quantity::parse_duration(text);
            given.duration =
                Some(duration.map_err(|error| wrong(format!("duration '{text}': {error}")))?);
        }
        blocks.push(block);
    }
    if blocks.is_empty() {
        return Err(wrong("has none of the experiments that were named".to_owned()));
    }
    Ok(blocks)
}

/// A comma list, a number, or an array of either.
fn suite_values(axis: AxisId, value: &toml::Value) -> Result<Vec<Value>, UsageError> {
    match value {
        toml::Value::String(text) => axis.parse_list(text),
        toml::Value::Array(items) => {
            let mut values = Vec::new();
            for item in items {
                values.extend(suite_values(axis, item)?);
            }
            Ok(values)
        }
        other => Ok(vec![axis.parse(&other.to_string())?]),
    }
}

/// The points of a record, those that it couldn't run included.
fn from_record(path: &Path, args: &RunArgs, registry: &Registry) -> Result<Request, UsageError> {
    let wrong = |why: String| UsageError::InputFile { path: path.to_owned(), why };
    if let Some((axis, _)) = args.axes.given().next() {
        return Err(wrong(format!(
            "--from takes its points from the record, not from {}",
            axis.flag()
        )));
    }
    let text = read(path).map_err(wrong)?;
    let version: Json = serde_json::from_str(&text)
        .map_err(|error| wrong(format!("is no run record, or a damaged one: {error}")))?;
    match version.get("schema_version").and_then(Json::as_u64) {
        Some(version) if version == u64::from(SCHEMA_VERSION) => {}
        Some(version) => {
            return Err(wrong(format!(
                "is of schema version {version}, but this program reads {SCHEMA_VERSION}"
            )));
        }
        None => return Err(wrong("is no run record: it has no schema_version".to_owned())),
    }
    let record: Record =
        serde_json::from_value(version).map_err(|error| wrong(error.to_string()))?;
    let deadline_s = record.parameters.settings.deadline_s;
    if deadline_s.is_nan() || deadline_s <= 0.0 {
        return Err(wrong(format!("parameter 'deadline_s' {deadline_s}: not a positive time")));
    }
    let shard = record.parameters.shard.map(|shard| shard.parse()).transpose();
    let shard = shard.map_err(|error: String| wrong(format!("parameter 'shard': {error}")))?;

    let mut points: Vec<Planned> = Vec::new();
    let mut seen = BTreeSet::new();
    let ids = (record.measurements.iter().map(|row| &row.point))
        .chain(record.not_run.iter().chain(&record.failed).map(|missing| &missing.point));
    for id in ids {
        let planned = recorded_point(id, registry).map_err(|error| match error {
            UsageError::UnknownExperiment { .. } => error,
            other => wrong(format!("a point of {}: {other}", id.experiment)),
        })?;
        if seen.insert(planned.point.clone()) {
            points.push(planned);
        }
    }
    if points.is_empty() {
        return Err(wrong("has no points".to_owned()));
    }
    Ok(Request {
        suite: record.parameters.suite,
        shard,
        settings: settings(args, record.parameters.settings)?,
        points,
    })
}

/// The point that a record names, where this program has it.
pub(crate) fn recorded_point(id: &PointId, registry: &Registry) -> Result<Planned, UsageError> {
    let experiment = find(registry, &id.experiment)?;
    let mut values = BTreeMap::new();
    let mut limits = Limits { ops: None, warmup: 0, duration: None };
    let unreadable = |name: &str, value: &Json, why: &str| UsageError::UnknownValue {
        flag: format!("parameter '{name}'"),
        value: value.to_string(),
        why: why.to_owned(),
        nearest: Vec::new(),
    };
    for (name, value) in &id.parameters {
        match name.as_str() {
            "ops" | "duration_s" if value.is_null() => {}
            "ops" => {
                let ops = value.as_u64().filter(|ops| *ops > 0);
                limits.ops = Some(ops.ok_or_else(|| unreadable(name, value, "not a count"))?);
            }
            "warmup" => {
                limits.warmup =
                    value.as_u64().ok_or_else(|| unreadable(name, value, "not a count"))?;
            }
            "duration_s" => {
                let duration =
                    value.as_f64().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
                limits.duration =
                    Some(duration.ok_or_else(|| unreadable(name, value, "not a time"))?);
            }
            _ => {
                let axis = AxisId::by_name(name)
                    .ok_or_else(|| unreadable(name, value, "no axis is called so"))?;
                let text = match value {
                    Json::String(text) => text.clone(),
                    other => other.to_string(),
                };
                values.insert(axis, axis.parse(&text)?);
            }
        }
    }
    if limits.ops.is_none() && limits.duration.is_none() {
        return Err(unreadable("ops", &Json::Null, "there is no duration_s either"));
    }
    let transport: Transport = id.transport.parse()?;
    let uses = |axis: AxisId| {
        experiment.axes().iter().find(|used| used.axis == axis && used.applies_to(transport))
    };
    if let Some((axis, value)) = values.iter().find(|(axis, _)| uses(**axis).is_none()) {
        let value = Json::from(value.to_string());
        return Err(unreadable(axis.name(), &value, "the experiment has no such axis"));
    }
    for used in experiment.axes().iter().filter(|used| used.applies_to(transport)) {
        let name = used.axis.name();
        let Some(value) = values.get(&used.axis) else {
            return Err(unreadable(name, &Json::Null, "the experiment needs it"));
        };
        if value.word().is_some_and(|word| !used.takes.is_empty() && !used.takes.contains(&word)) {
            let value = Json::from(value.to_string());
            return Err(unreadable(name, &value, "the experiment does not take it"));
        }
    }
    let point = Point {
        experiment: experiment.name(),
        transport,
        submitter: id.submitter.parse::<Submitter>()?,
        nic: id.nic.parse::<Nic>()?,
        values,
    };
    experiment.possible(&point).map_err(|clash| explain(&clash, &point))?;
    Ok(Planned { experiment, point, limits })
}
