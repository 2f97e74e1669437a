//! An experiment with every outcome that one can have, chosen by the number of QPs.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::thread;
use std::time::Duration;

use clap::Parser;
use gicbench::axes::AxisId;
use gicbench::cli::{Action, Cli, RunArgs};
use gicbench::context::{Interrupt, RunContext};
use gicbench::exit::ExitStatus;
use gicbench::experiments::{AxisUse, Experiment, Impossible, Limits, Suite};
use gicbench::measurement::{Clock, Measurement, Metric};
use gicbench::platform::Platform;
use gicbench::point::{Point, PointError, Transport};
use gicbench::quantity::{MMsgs, Micros};
use gicbench::run::{RunError, run};
use serde_json::Value as Json;

pub const FINE: u64 = 1;
pub const WRONG: u64 = 2;
pub const UNSAFE: u64 = 3;
pub const NOT_RUN: u64 = 4;
pub const FAILS: u64 = 5;
pub const PANICS: u64 = 6;
pub const NO_SAMPLES: u64 = 7;
pub const NOTHING: u64 = 8;
pub const INFINITE: u64 = 9;
pub const SLOW: u64 = 10;
pub const HANGS: u64 = 11;
pub const UNDECLARED: u64 = 12;

pub struct Fake;
pub struct Other;

impl Experiment for Fake {
    fn name(&self) -> &'static str {
        "fake"
    }
    fn question(&self) -> &'static str {
        "what can come of a point?"
    }
    fn transports(&self) -> &'static [Transport] {
        &[Transport::MiniGda, Transport::MiniProxy]
    }
    fn metrics(&self) -> &'static [Metric] {
        &[Metric::Issue, Metric::Rate]
    }
    fn axes(&self) -> &'static [AxisUse] {
        const AXES: &[AxisUse] = &[
            AxisUse::new(AxisId::Payload, "8", "8,64"),
            AxisUse::new(AxisId::Inline, "on", "off,on"),
            AxisUse::new(AxisId::Order, "gpu-release", "gpu-release,none")
                .only(&[Transport::MiniGda])
                .takes(&["none", "gpu-release"]),
            AxisUse::new(AxisId::Workers, "1", "1,2").only(&[Transport::MiniProxy]),
            AxisUse::new(AxisId::Qps, "1", "1"),
        ];
        AXES
    }
    fn limits(&self, _suite: Suite) -> Limits {
        Limits::new(2000, 10, 5_000)
    }
    fn possible(&self, point: &Point) -> Result<(), Impossible> {
        let inline = point.get(AxisId::Inline).and_then(|value| value.word()) == Some("on");
        let payload = point.get(AxisId::Payload).and_then(|value| value.number());
        if inline && payload > Some(64) {
            return Err(Impossible {
                axis: AxisId::Payload,
                with: AxisId::Inline,
                why: "a WQE holds no more than 64 bytes".to_owned(),
                nearest: vec!["64".to_owned()],
            });
        }
        Ok(())
    }
    fn run(&self, ctx: &mut RunContext, point: &Point) -> Result<Vec<Measurement>, PointError> {
        ctx.place(1, 0, 1);
        let clock = Clock {
            source: "made up".to_owned(),
            resolution_ns: 1.0,
            overhead_ns: 20.0,
            uncertainty: None,
            timer_step_ns: None,
        };
        let outcome = point.number(AxisId::Qps)?;
        let mut samples = Vec::new();
        let mut sampling = ctx.sampling();
        loop {
            let most = if outcome == SLOW { 1 } else { 256 };
            let ops = sampling.next(most, "the fake")?;
            if ops == 0 {
                break;
            }
            if outcome == SLOW {
                thread::sleep(Duration::from_millis(10));
            }
            for _ in 0..ops {
                samples.push(Micros(1.0 + samples.len() as f64 / 1000.0));
            }
        }
        let issue = |samples| Measurement::issue(samples).clock(clock.clone()).checked(0);
        match outcome {
            WRONG => Ok(vec![issue(samples).checked(3)]),
            UNSAFE => Ok(vec![issue(samples).checked(3).unsafe_mode("nothing orders the stores")]),
            NOT_RUN => Err(PointError::not_run("no flux capacitor")),
            FAILS => Err(PointError::failed("QP 7 went to error")),
            PANICS => panic!("a bug"),
            NO_SAMPLES => Ok(vec![issue(Vec::new())]),
            NOTHING => Ok(Vec::new()),
            INFINITE => Ok(vec![Measurement::rate(vec![MMsgs::over(1, Duration::ZERO)])]),
            HANGS => loop {
                thread::sleep(Duration::from_secs(1));
            },
            UNDECLARED => Ok(vec![Measurement::enqueue(samples)]),
            _ => Ok(vec![
                issue(samples).detail("findings", 0),
                Measurement::rate(vec![MMsgs(5.0); 3]),
            ]),
        }
    }
}

impl Experiment for Other {
    fn name(&self) -> &'static str {
        "other"
    }
    fn question(&self) -> &'static str {
        "who else is there?"
    }
    fn transports(&self) -> &'static [Transport] {
        &[Transport::MiniGda]
    }
    fn metrics(&self) -> &'static [Metric] {
        &[Metric::Issue]
    }
    fn axes(&self) -> &'static [AxisUse] {
        const AXES: &[AxisUse] = &[AxisUse::new(AxisId::Batch, "1", "1,2")];
        AXES
    }
    fn limits(&self, _suite: Suite) -> Limits {
        Limits::new(20, 0, 1_000)
    }
    fn run(&self, ctx: &mut RunContext, _point: &Point) -> Result<Vec<Measurement>, PointError> {
        let ops = ctx.sampling().next(u64::MAX, "nothing")?;
        Ok(vec![Measurement::issue((0..ops).map(|_| Micros(0.5)).collect())])
    }
}

pub static REGISTRY: &[&dyn Experiment] = &[&Fake, &Other];

/// What came of a run.
pub struct Ran {
    pub result: Result<ExitStatus, RunError>,
    pub table: String,
    /// The record, where `--json` was among the arguments.
    pub record: Option<Json>,
}

impl Ran {
    pub fn status(&self) -> ExitStatus {
        match &self.result {
            Ok(status) => *status,
            Err(error) => error.status(),
        }
    }
    pub fn error(&self) -> String {
        self.result.as_ref().expect_err("a usage error").to_string()
    }
    pub fn record(&self) -> &Json {
        self.record.as_ref().expect("a record")
    }
    pub fn array(&self, name: &str) -> &[Json] {
        self.record()[name].as_array().expect("an array")
    }
}

/// Runs `gicbench run ARGUMENTS` with the fake experiments on a machine without devices.
pub fn gicbench(arguments: &[&str], interrupt: &Interrupt) -> Ran {
    let argv: Vec<String> =
        ["gicbench", "run"].iter().chain(arguments).map(|one| (*one).to_owned()).collect();
    let args = parse(&argv);
    let mut table = Vec::new();
    let result = run(&args, argv, REGISTRY, &Platform::default(), interrupt, &mut table);
    let record = args.json.as_deref().filter(|_| result.is_ok()).map(|path| {
        let record = read(path);
        assert_valid(&record);
        record
    });
    Ran { result, table: String::from_utf8(table).expect("text"), record }
}

/// As [`gicbench`], with a record, and nobody interrupting.
pub fn recorded(arguments: &[&str]) -> Ran {
    let directory = tempfile::tempdir().expect("a directory");
    let path = path_text(&directory.path().join("run.json"));
    gicbench(&[arguments, &["--json", &path]].concat(), &Interrupt::default())
}

pub fn path_text(path: &Path) -> String {
    path.to_str().expect("a path of text").to_owned()
}

pub fn read(path: &Path) -> Json {
    serde_json::from_slice(&std::fs::read(path).expect("a file")).expect("JSON")
}

fn parse(argv: &[String]) -> RunArgs {
    match Cli::try_parse_from(argv).map(|cli| cli.command) {
        Ok(Action::Run(args)) => *args,
        Ok(_) => panic!("not a run"),
        Err(error) => panic!("{error}"),
    }
}

/// Holds a record to the schema.
pub fn assert_valid(record: &Json) {
    static VALIDATOR: LazyLock<jsonschema::Validator> = LazyLock::new(|| {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("schema/run-record.schema.json");
        jsonschema::draft202012::new(&read(&path)).expect("a schema")
    });
    let errors: Vec<String> = VALIDATOR
        .iter_errors(record)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    assert!(errors.is_empty(), "{errors:#?}");
}

pub fn is_valid(record: &Json) -> bool {
    std::panic::catch_unwind(|| assert_valid(record)).is_ok()
}
