//! `gicbench run`: from arguments to exit status.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::time::Instant;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::cli::RunArgs;
use crate::context::Interrupt;
use crate::cpus::Cpus;
use crate::exit::ExitStatus;
use crate::export::{Output, csv, json, table};
use crate::machine::{Machine, Software};
use crate::plan::{Planned, Registry};
use crate::platform::Platform;
use crate::published::{Published, PublishedError};
use crate::ranks::serve::serve;
use crate::ranks::{self, Part, RanksError, Team};
use crate::record::{Parameters, Record, Row, SCHEMA_VERSION};
use crate::report;
use crate::request::Request;
use crate::runner::Runner;
use crate::usage::UsageError;

/// Why a run ended without a record.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The request makes no sense.
    #[error(transparent)]
    Usage(#[from] UsageError),
    /// The figures that the program carries are broken.
    #[error(transparent)]
    Published(#[from] PublishedError),
    /// The CPUs of this process aren't known.
    #[error("can't tell which CPUs this process may use: {0}")]
    Cpus(#[source] io::Error),
    /// The ranks of the run.
    #[error(transparent)]
    Ranks(#[from] RanksError),
    /// What was measured couldn't be written.
    #[error("can't write {what}: {source}")]
    Write {
        /// Which output.
        what: String,
        /// What the system says.
        source: io::Error,
    },
}

impl RunError {
    /// The exit status.
    pub fn status(&self) -> ExitStatus {
        match self {
            RunError::Usage(_)
            | RunError::Ranks(
                RanksError::Launch(_) | RanksError::NoSuchRank { .. } | RanksError::Alone { .. },
            ) => ExitStatus::Usage,
            _ => ExitStatus::Failed,
        }
    }
}

/// The other ranks' service ends with this value, however the run ends.
struct Dismissed(Arc<Team>);

impl Drop for Dismissed {
    fn drop(&mut self) {
        self.0.dismiss();
    }
}

/// Runs what was asked for, prints the table to `terminal`, and writes the files.
///
/// # Errors
/// Bad usage, before anything has run; or an output that can't be written, after.
pub fn run(
    args: &RunArgs,
    argv: Vec<String>,
    registry: &Registry,
    platform: &Platform,
    interrupt: &Interrupt,
    terminal: &mut dyn Write,
) -> Result<ExitStatus, RunError> {
    let request = Request::new(args, registry, platform)?;
    let all = Cpus::detect(request.settings.engine).map_err(RunError::Cpus)?;
    let team = match ranks::join(&args.ranks, &argv, &all)? {
        Part::Alone => None,
        Part::First(team) => Some(Dismissed(team)),
        Part::Other(other) => {
            serve(&other, registry, platform, interrupt, &all)
                .map_err(|error| RanksError::Start(error.into()))?;
            return Ok(ExitStatus::Done);
        }
    };
    let team = team.as_ref().map(|Dismissed(team)| team);
    let files = [
        ("--json", args.json.as_deref()),
        ("--csv", args.csv.as_deref()),
        ("--html", args.html.as_deref()),
    ];
    let [json_file, csv_file, html_file] = Output::claim_all(files, args.force)?;
    let published = Published::embedded()?;
    let cpus = team.map_or(all.clone(), |team| team.cpus(&all));

    let started = jiff::Timestamp::now();
    let clock = Instant::now();
    let progress = progress_bar(request.points.len());
    let runner = Runner {
        settings: &request.settings,
        cpus: &cpus,
        platform,
        published: &published,
        interrupt,
        isolates: true,
        team,
    };
    interrupt.heed(true);
    let outcome = runner.run(&request.points, |index, planned: &Planned| {
        progress.set_position(index as u64);
        progress.set_message(planned.point.to_string());
    });
    progress.finish_and_clear();

    let record = Record {
        schema_version: SCHEMA_VERSION,
        started: format!("{started:.3}"),
        elapsed_s: clock.elapsed().as_secs_f64(),
        argv,
        machine: Machine::detect(&cpus, platform),
        software: Software::current(),
        parameters: Parameters {
            suite: request.suite,
            shard: request.shard.map(|shard| shard.to_string()),
            settings: request.settings,
        },
        ranks: team.map(|team| team.record().clone()),
        measurements: outcome.rows,
        partial: !outcome.not_run.is_empty() || outcome.interrupted,
        not_run: outcome.not_run,
        failed: outcome.failed,
        interrupted: outcome.interrupted,
    };

    // Files first: they are what a script waits for, and a closed terminal must not cost them.
    // And one that fails must not cost the others.
    let wrote_json = json_file.map_or(Ok(()), |file| file.write(|out| json(out, &record)));
    let wrote_csv = csv_file.map_or(Ok(()), |file| file.write(|out| csv(out, &record)));
    let wrote_html = html_file.map_or(Ok(()), |file| {
        let page = report::html(&record, registry, &published);
        file.write(|out| out.write_all(page.as_bytes()))
    });
    interrupt.heed(false);
    table(terminal, &record, registry, &published)
        .and_then(|()| terminal.flush())
        .or_else(
            |error| if error.kind() == io::ErrorKind::BrokenPipe { Ok(()) } else { Err(error) },
        )
        .map_err(|source| RunError::Write { what: "the table".to_owned(), source })?;
    wrote_json.and(wrote_csv).and(wrote_html)?;
    Ok(status(&record))
}

/// The exit status of a record.
pub fn status(record: &Record) -> ExitStatus {
    if !record.failed.is_empty() || record.measurements.iter().any(Row::is_wrong) {
        ExitStatus::Failed
    } else if record.measurements.is_empty() {
        ExitStatus::NothingRan
    } else if record.partial {
        ExitStatus::Partial
    } else {
        ExitStatus::Done
    }
}

fn progress_bar(points: usize) -> ProgressBar {
    // A fixed template that a test draws; the fallback is indicatif's own.
    let style = ProgressStyle::with_template("[{elapsed}] {pos}/{len} {wide_msg}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    let target = if io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    ProgressBar::with_draw_target(Some(points as u64), target).with_style(style)
}
