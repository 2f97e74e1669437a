//! `gicbench selftest`: every step of the ways to a real NIC, one by one, for an owner of the hardware.
//!
//! Each step is ok, failed or skipped, with what was seen and what to do. A step that needs one that failed is skipped and
//! says so: the first failed one is where to look.

mod mlx5;
mod traffic;
mod verbs;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::Arc;

use device::cuda::Gpu;
use rdma::Error;
use rdma::ibv::PortOf;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::hardware::{Counters, NicOptions};
use crate::platform::Platform;
use crate::point::Submitter;
use crate::{gpu, hardware};

/// How a step ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// As it should.
    Ok,
    /// It didn't.
    Failed,
    /// It wasn't tried.
    Skipped,
}

/// One step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Step {
    /// Which way it belongs to: `verbs` or `mlx5`.
    pub path: &'static str,
    /// What is tried.
    pub name: &'static str,
    /// How it ended.
    pub outcome: Outcome,
    /// What was seen: why it failed, or why it wasn't tried.
    pub seen: String,
    /// What to do about it; null where nothing need be done.
    pub advice: Option<String>,
}

/// What came of it all.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// This program's version.
    pub version: &'static str,
    /// The port that was used: what a record's details say of it.
    pub port: Map<String, Value>,
    /// The GPU, in words; null without one.
    pub gpu: Option<String>,
    /// Whether the NIC is software (`nic exec`, Soft-RoCE): a proof of this program, not of hardware.
    pub software_nic: bool,
    /// Every step, in the order in which they were tried.
    pub steps: Vec<Step>,
    /// Counters of the port that moved meanwhile.
    pub counters: BTreeMap<String, u64>,
    /// Whether nothing failed.
    pub passed: bool,
}

/// Steps of one way.
struct Steps<'a> {
    path: &'static str,
    all: &'a mut Vec<Step>,
}

impl Steps<'_> {
    /// Tries one: what it gives, or nothing.
    fn step<T>(
        &mut self,
        name: &'static str,
        advice: &str,
        run: impl FnOnce() -> Result<(T, String), String>,
    ) -> Option<T> {
        let (outcome, seen, advice, value) = match run() {
            Ok((value, seen)) => (Outcome::Ok, seen, None, Some(value)),
            Err(why) => (Outcome::Failed, why, Some(advice.to_owned()), None),
        };
        self.all.push(Step { path: self.path, name, outcome, seen, advice });
        value
    }

    fn skip(&mut self, names: &[&'static str], why: &str) {
        let step = |name: &&'static str| Step {
            path: self.path,
            name,
            outcome: Outcome::Skipped,
            seen: why.to_owned(),
            advice: None,
        };
        self.all.extend(names.iter().map(step));
    }
}

/// An error with its causes, as one line.
fn said(error: &Error) -> String {
    crate::point::PointError::from_error(error).to_string()
}

/// Tries everything.
pub fn examine(options: &NicOptions, platform: &Platform) -> Report {
    // A GPU whose kernels can't be compiled is none for the steps that need its memory, and the reason is said.
    let gpu: Result<Arc<Gpu>, String> =
        platform.submitter(Submitter::Cuda).and_then(|()| gpu::open());
    let gpu_memory = match gpu.clone() {
        Ok(_) if hardware::is_nic_exec() => {
            Err("the software ConnectX is a program of the CPU's: it reaches no GPU memory"
                .to_owned())
        }
        gpu => gpu,
    };
    let pci = gpu.as_ref().ok().map(|gpu| gpu.info().pci.clone());
    let mut all = Vec::new();
    let asked = options.asked(pci);
    let opened = verbs::open(&mut Steps { path: "verbs", all: &mut all }, &asked);
    let counters = opened.as_ref().map(|[near, _]| {
        let of = near.port();
        Counters::read(rdma::sysfs::Sysfs::system(), &of.device, of.port)
    });
    let port: Option<PortOf> = opened.as_ref().map(|[near, _]| near.port().clone());
    verbs::run(&mut Steps { path: "verbs", all: &mut all }, opened.as_ref(), &gpu_memory);
    let mut steps = Steps { path: "mlx5", all: &mut all };
    mlx5::run(&mut steps, &asked, port.as_ref(), &gpu, &gpu_memory);
    let files = rdma::sysfs::Sysfs::system();
    let without_hardware =
        port.as_ref().is_some_and(|port| files.device(&port.device).pci.is_none());
    let details = port.map(|port| port.details()).unwrap_or_default().into_iter();
    let passed = all.iter().all(|step| step.outcome != Outcome::Failed);
    Report {
        version: env!("CARGO_PKG_VERSION"),
        port: details.map(|(name, value)| (name.to_owned(), Value::from(value))).collect(),
        gpu: gpu.ok().map(|gpu| gpu::describe(gpu.info())),
        software_nic: hardware::is_nic_exec() || without_hardware,
        steps: all,
        counters: counters.map(|counters| counters.moved()).unwrap_or_default(),
        passed,
    }
}

impl Report {
    /// Prints it for people.
    ///
    /// # Errors
    /// The writer's.
    pub fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "# gicbench {} selftest", self.version)?;
        if self.software_nic {
            writeln!(out, "# STAND-IN: the NIC is software; no hardware is proved by this")?;
        }
        for (name, value) in &self.port {
            writeln!(out, "# {name} {}", value.as_str().unwrap_or_default())?;
        }
        writeln!(out, "# gpu {}", self.gpu.as_deref().unwrap_or("none"))?;
        let width = self.steps.iter().map(|step| step.name.len()).max().unwrap_or(0);
        for step in &self.steps {
            let mark = match step.outcome {
                Outcome::Ok => "ok     ",
                Outcome::Failed => "FAILED ",
                Outcome::Skipped => "skipped",
            };
            writeln!(out, "{mark} {:<5} {:<width$}  {}", step.path, step.name, step.seen)?;
            if let Some(advice) = &step.advice {
                writeln!(out, "{:width$}                 -> {advice}", "")?;
            }
        }
        for (name, by) in &self.counters {
            writeln!(out, "# counter {name} +{by}")?;
        }
        let count = |outcome| self.steps.iter().filter(|step| step.outcome == outcome).count();
        let [ok, failed, skipped] = [Outcome::Ok, Outcome::Failed, Outcome::Skipped].map(count);
        writeln!(out, "# {ok} ok, {failed} failed, {skipped} skipped")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_step_says_why_and_what_to_do_and_fails_the_whole() {
        let mut all = Vec::new();
        let mut steps = Steps { path: "verbs", all: &mut all };
        assert_eq!(steps.step("one", "do this", || Ok((7, "seen".to_owned()))), Some(7));
        assert_eq!(steps.step("two", "do that", || Err::<((), _), _>("why".to_owned())), None);
        steps.skip(&["three", "four"], "two failed");
        let outcomes: Vec<Outcome> = all.iter().map(|step| step.outcome).collect();
        assert_eq!(outcomes, [Outcome::Ok, Outcome::Failed, Outcome::Skipped, Outcome::Skipped]);
        assert_eq!((all[0].advice.as_deref(), all[1].advice.as_deref()), (None, Some("do that")));
        let report = Report {
            version: "0",
            port: Map::new(),
            gpu: None,
            software_nic: false,
            steps: all,
            counters: BTreeMap::from([("port_xmit_data".to_owned(), 5)]),
            passed: false,
        };
        let mut text = Vec::new();
        report.print(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        for words in ["FAILED  verbs two", "-> do that", "+5", "1 ok, 1 failed, 2 skipped"] {
            assert!(text.contains(words), "{words} in {text}");
        }
    }
}
