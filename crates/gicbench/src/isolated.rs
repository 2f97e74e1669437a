//! Points that may take their process with them.
//!
//! A library's device code waits without a deadline, and may fault: a kernel that hangs, or an illegal access, costs
//! the process its GPU. So such points are measured by a child, which is given up, and made again, where it is lost.
//! The two speak in lines of JSON; other lines are the library's own.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::context::{Interrupt, Settings};
use crate::cpus::Cpus;
use crate::plan::{Planned, Registry};
use crate::platform::Platform;
use crate::published::Published;
use crate::record::{Missing, PointId, Row};
use crate::request::recorded_point;
use crate::runner::{Outcome, Runner};

/// The command line's name for the child.
pub(crate) const COMMAND: &str = "point-worker";
/// Begins every line that is meant for the other side.
const MARK: &str = "gicbench-point ";
/// For a child's start.
const START: Duration = Duration::from_secs(30);
/// What a point may take to notice its deadline.
const GRACE: Duration = Duration::from_secs(5);
/// How often Ctrl-C is looked at.
const GLANCE: Duration = Duration::from_millis(20);

#[derive(Debug, Serialize, Deserialize)]
struct Ask {
    settings: Settings,
    point: PointId,
}

#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    rows: Vec<Row>,
    not_run: Vec<Missing>,
    failed: Vec<Missing>,
    /// The process has lost its GPU: after a fault of a kernel CUDA refuses all else.
    spent: bool,
}

/// The process that measures; made when it is needed.
#[derive(Debug)]
pub struct Worker {
    /// The command that the process is started with: this program's own.
    command: Vec<OsString>,
    /// What an answer may take beside the point's deadline, and a new process's first one beside that.
    grace: Duration,
    start: Duration,
    running: Option<Running>,
}

impl Default for Worker {
    fn default() -> Self {
        // Without a path there is nothing to start, and the first point says so.
        let program = std::env::current_exe().unwrap_or_default();
        Worker {
            command: vec![program.into(), COMMAND.into()],
            grace: GRACE,
            start: START,
            running: None,
        }
    }
}

#[derive(Debug)]
struct Running {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

/// What became of a point.
#[derive(Debug)]
pub enum Ended {
    /// What the child says.
    Outcome(Box<Outcome>),
    /// The child is lost, and why.
    Lost(String),
    /// Ctrl-C.
    Interrupted,
}

impl Worker {
    /// Measures a point in the child.
    pub fn point(
        &mut self,
        planned: &Planned,
        settings: &Settings,
        interrupt: &Interrupt,
    ) -> Ended {
        match self.ask(planned, settings, interrupt) {
            Ok(Some(answer)) => {
                if answer.spent {
                    self.lose();
                }
                Ended::Outcome(Box::new(Outcome {
                    rows: answer.rows,
                    not_run: answer.not_run,
                    failed: answer.failed,
                    interrupted: false,
                }))
            }
            Ok(None) => {
                self.lose();
                Ended::Interrupted
            }
            Err(why) => {
                self.lose();
                Ended::Lost(why)
            }
        }
    }

    fn ask(
        &mut self,
        planned: &Planned,
        settings: &Settings,
        interrupt: &Interrupt,
    ) -> Result<Option<Answer>, String> {
        let mut margin = self.grace;
        let running = match &mut self.running {
            Some(running) => running,
            None => {
                margin += self.start;
                let started = start(&self.command);
                self.running.insert(started.map_err(|e| format!("no process to measure it: {e}"))?)
            }
        };
        let ask = Ask { settings: settings.clone(), point: PointId::of(planned) };
        let ask = serde_json::to_string(&ask).map_err(|error| error.to_string())?;
        // A process that is gone doesn't read; its last words and its status tell more than the broken pipe.
        let _ = writeln!(running.input, "{MARK}{ask}").and_then(|()| running.input.flush());
        let patience = Duration::try_from_secs_f64(settings.deadline_s).unwrap_or(Duration::MAX);
        let until = Instant::now().checked_add(patience.saturating_add(margin));
        // The library's own last words say most when its process ends.
        let mut last = String::new();
        let mut asked_to_end: Option<Instant> = None;
        loop {
            match running.lines.recv_timeout(GLANCE) {
                Ok(line) => match line.strip_prefix(MARK) {
                    Some(answer) => {
                        return serde_json::from_str(answer)
                            .map(Some)
                            .map_err(|error| format!("its answer can't be read: {error}"));
                    }
                    None if !line.trim().is_empty() => last = line,
                    None => {}
                },
                Err(RecvTimeoutError::Disconnected) => {
                    let status = running.child.wait().map(|status| status.to_string());
                    let status = status.unwrap_or_else(|error| error.to_string());
                    let said = if last.is_empty() { last } else { format!("; it said: {last}") };
                    return Err(format!("the process that measured it ended ({status}){said}"));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            let now = Instant::now();
            if interrupt.is_set()
                && now.duration_since(*asked_to_end.get_or_insert(now)) > GRACE / 4
            {
                return Ok(None);
            }
            if until.is_some_and(|until| now >= until) {
                return Err(
                    "a kernel of the library hangs: its process was ended after the deadline"
                        .to_owned(),
                );
            }
        }
    }

    fn lose(&mut self) {
        if let Some(mut running) = self.running.take() {
            let _ = running.child.kill();
            let _ = running.child.wait();
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let Some(running) = self.running.take() else { return };
        let Running { mut child, input, .. } = running;
        // The end of its input ends it.
        drop(input);
        let until = Instant::now() + GRACE;
        while Instant::now() < until {
            if !matches!(child.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(GLANCE);
        }
        let _ = child.kill();
        let _ = child.wait();
    }
}

fn start(command: &[OsString]) -> io::Result<Running> {
    let (program, arguments) = command.split_first().ok_or(io::ErrorKind::NotFound)?;
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()?;
    let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(io::Error::other("no pipes to it"));
    };
    let (sender, lines) = mpsc::channel();
    thread::Builder::new().name("point worker".to_owned()).spawn(move || {
        // A library's words need not be UTF-8.
        for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                return;
            }
        }
    })?;
    Ok(Running { child, input, lines })
}

/// The lines of its input. When that ends, who asked is gone: a point that still runs is not waited for.
fn asked() -> io::Result<Receiver<String>> {
    let (sender, lines) = mpsc::channel();
    thread::Builder::new().name("input".to_owned()).spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
        drop(sender);
        thread::sleep(GRACE);
        std::process::exit(3);
    })?;
    Ok(lines)
}

/// The child's side: measures the points that it is asked for until its input ends.
///
/// # Errors
/// Its input or output fails, or a line that it doesn't understand.
pub fn serve(registry: &Registry, platform: &Platform, interrupt: &Interrupt) -> io::Result<()> {
    let published = Published::embedded().map_err(io::Error::other)?;
    for line in asked()? {
        let Some(ask) = line.strip_prefix(MARK) else { continue };
        let Ask { settings, point } = serde_json::from_str(ask)?;
        let cpus = Cpus::detect(settings.engine)?;
        let runner = Runner {
            settings: &settings,
            cpus: &cpus,
            platform,
            published: &published,
            interrupt,
            isolates: false,
            team: None,
        };
        let planned = recorded_point(&point, registry).map_err(io::Error::other)?;
        interrupt.heed(true);
        let outcome = runner.run(&[planned], |_, _| {});
        interrupt.heed(false);
        let Outcome { rows, not_run, failed, .. } = outcome;
        let spent = crate::gpu::open().is_ok_and(|gpu| gpu.pinned(64).is_err());
        let answer = serde_json::to_string(&Answer { rows, not_run, failed, spent })?;
        let mut out = io::stdout().lock();
        // A line of its own, whatever the library has printed.
        writeln!(out, "\n{MARK}{answer}")?;
        out.flush()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments;
    use crate::plan::{Block, LimitsGiven, plan};
    use crate::point::{Nic, Submitter};

    fn planned() -> Planned {
        let block = Block {
            experiments: vec!["latency".to_owned()],
            transports: None,
            submitters: vec![Submitter::Host],
            nics: vec![Nic::Soft],
            axes: Default::default(),
            limits: LimitsGiven::default(),
        };
        plan(&[block], experiments::Suite::Quick, experiments::all()).unwrap().remove(0)
    }

    fn settings() -> Settings {
        Settings {
            check: true,
            seed: 1,
            deadline_s: 0.1,
            engine: Default::default(),
            peer_paths: Vec::new(),
            nic: Default::default(),
        }
    }

    /// A process that does as the script says.
    fn worker(script: &str) -> Worker {
        Worker {
            command: ["sh", "-c", script].map(OsString::from).to_vec(),
            grace: Duration::from_millis(100),
            start: Duration::from_millis(200),
            running: None,
        }
    }

    fn lost(script: &str) -> String {
        match worker(script).point(&planned(), &settings(), &Interrupt::default()) {
            Ended::Lost(why) => why,
            other => panic!("{script}: {other:?}"),
        }
    }

    #[test]
    fn a_lost_process_is_told_with_its_status_and_its_last_words() {
        for (script, told) in [
            (
                "echo illegal memory access; exit 7",
                "exit status: 7); it said: illegal memory access",
            ),
            (
                "read line; echo a trap in the library; kill -9 $$",
                "signal: 9 (SIGKILL)); it said: a trap",
            ),
            ("exit 0", "ended (exit status: 0)"),
            ("read line; echo gicbench-point {; sleep 9", "its answer can't be read"),
            ("read line; sleep 60", "a kernel of the library hangs"),
        ] {
            let why = lost(script);
            assert!(why.contains(told), "{script}: {why}");
        }
        let mut nothing = worker("");
        nothing.command = vec!["/nonexistent".into()];
        let ended = nothing.point(&planned(), &settings(), &Interrupt::default());
        assert!(matches!(ended, Ended::Lost(why) if why.contains("no process to measure it")));
    }

    #[test]
    fn after_a_lost_process_the_next_point_has_a_new_one() {
        let answer = r#"{"rows":[],"not_run":[],"failed":[],"spent":false}"#;
        let spent = r#"{"rows":[],"not_run":[],"failed":[],"spent":true}"#;
        let flag = std::env::temp_dir().join(format!("gicbench-lost-{}", std::process::id()));
        let script = format!(
            "read line; [ -e {0} ] || {{ touch {0}; exit 1; }}; echo the library talks; echo gicbench-point '{answer}'; \
             read line; echo gicbench-point '{spent}'",
            flag.display()
        );
        let mut worker = worker(&script);
        let mut ended = || worker.point(&planned(), &settings(), &Interrupt::default());
        assert!(matches!(ended(), Ended::Lost(_)));
        assert!(matches!(ended(), Ended::Outcome(_)));
        assert!(matches!(ended(), Ended::Outcome(_)), "the same process answers again");
        assert!(
            matches!(ended(), Ended::Outcome(_)),
            "after one that has lost its GPU there is a new one"
        );
        let _ = std::fs::remove_file(flag);
    }

    #[test]
    fn ctrl_c_ends_the_wait_for_a_process() {
        let interrupt = Interrupt::default();
        interrupt.set();
        let patient = Settings { deadline_s: 60.0, ..settings() };
        let ended = worker("sleep 60").point(&planned(), &patient, &interrupt);
        assert!(matches!(ended, Ended::Interrupted));
    }
}
