//! gicbench: an open performance oracle for GPU-initiated communication.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use gicbench::cli::{Action, Cli};
use gicbench::context::Interrupt;
use gicbench::decode::{self, DecodeError};
use gicbench::exit::ExitStatus;
use gicbench::list::Listing;
use gicbench::nic_exec::{self, ExecError, NicAction};
use gicbench::platform::Platform;
use gicbench::report::{self, ReportError};
use gicbench::run::{self, RunError};
use gicbench::{doctor, experiments, isolated, peer, selftest};

fn main() -> ExitCode {
    let cli = Cli::try_parse().unwrap_or_else(|error| {
        if error.kind() == ErrorKind::InvalidUtf8 {
            let unreadable = std::env::args_os().filter(|one| one.to_str().is_none());
            let shown: Vec<_> = unreadable.map(|one| one.display().to_string()).collect();
            let text = format!("not UTF-8, as only file names may be: {}", shown.join(" "));
            Cli::command().error(ErrorKind::InvalidUtf8, text).exit();
        }
        error.exit()
    });
    match act(&cli.command) {
        Ok(status) => status.into(),
        Err(error) => {
            // Nobody may be there to read it; the status still says what happened.
            let _ = writeln!(io::stderr(), "error: {error}");
            status(&error).into()
        }
    }
}

/// What can't be read as asked is bad usage; anything else has failed.
fn status(error: &anyhow::Error) -> ExitStatus {
    if let Some(error) = error.downcast_ref::<RunError>() {
        return error.status();
    }
    if let Some(error) = error.downcast_ref::<ReportError>() {
        return error.status();
    }
    match error.downcast_ref::<ExecError>() {
        None | Some(ExecError::Run(_) | ExecError::Spawn { .. }) => {}
        Some(_) => return ExitStatus::Usage,
    }
    match error.downcast_ref::<DecodeError>() {
        Some(DecodeError::Write(_)) | None => ExitStatus::Failed,
        Some(_) => ExitStatus::Usage,
    }
}

fn act(action: &Action) -> anyhow::Result<ExitStatus> {
    let mut out = io::stdout().lock();
    let platform = Platform::detect();
    match action {
        Action::Run(args) => {
            let interrupt = interrupted_by_ctrl_c()?;
            let argv = std::env::args_os().map(|one| one.to_string_lossy().into_owned()).collect();
            Ok(run::run(args, argv, experiments::all(), &platform, &interrupt, &mut out)?)
        }
        Action::PointWorker => {
            // What it prints is read while it is measured: the lock is taken for each line.
            drop(out);
            isolated::serve(experiments::all(), &platform, &interrupted_by_ctrl_c()?)?;
            Ok(ExitStatus::Done)
        }
        Action::List { json, peer_path } => {
            let paths = peer::paths(peer_path).map_err(RunError::from)?;
            let listing = Listing::new(experiments::all(), &platform, &paths);
            print(&mut out, *json, &listing, |out| listing.print(out))
        }
        Action::Decode(args) => match decode::run(args, &mut out) {
            Err(DecodeError::Write(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
                Ok(ExitStatus::Done)
            }
            result => Ok(result.map(|()| ExitStatus::Done)?),
        },
        Action::Nic(NicAction::Exec(args)) => {
            // The program writes there; its status is this one's.
            drop(out);
            std::process::exit(nic_exec::exec(args)?.into())
        }
        Action::Report(args) => Ok(report::run(args, experiments::all(), &mut out)?),
        Action::Selftest { json, nic } => {
            let report = selftest::examine(nic, &platform);
            let printed = print(&mut out, *json, &report, |out| report.print(out))?;
            Ok(if report.passed { printed } else { ExitStatus::Failed })
        }
        Action::Doctor { json, peer_path } => {
            let paths = peer::paths(peer_path).map_err(RunError::from)?;
            let findings = doctor::examine(&platform, &paths);
            print(&mut out, *json, &findings, |out| doctor::print(out, &findings))
        }
    }
}

/// A flag that Ctrl-C sets, where something heeds it.
fn interrupted_by_ctrl_c() -> anyhow::Result<Interrupt> {
    let interrupt = Interrupt::default();
    let pressed = interrupt.clone();
    ctrlc::set_handler(move || {
        if pressed.is_set() || !pressed.is_heeded() {
            // Asked twice, or nothing is lost: at once, with the shell's status for SIGINT.
            std::process::exit(130);
        }
        pressed.set();
    })?;
    Ok(interrupt)
}

/// Prints as JSON or for people; a reader that went away is no failure.
fn print<T: serde::Serialize>(
    out: &mut dyn Write,
    json: bool,
    value: &T,
    people: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> anyhow::Result<ExitStatus> {
    let printed = if json {
        serde_json::to_writer_pretty(&mut *out, value)
            .map_err(io::Error::from)
            .and_then(|()| writeln!(out))
    } else {
        people(out)
    };
    match printed.and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(ExitStatus::Done),
    }
}
