//! `gicbench list`: the experiments, their axes, and what of them can run here.

use std::io::{self, Write};

use serde::Serialize;

use crate::axes::AxisId;
use crate::experiments::{AxisUse, Experiment};
use crate::peer;
use crate::plan::Registry;
use crate::platform::Platform;
use crate::point::{Nic, Submitter, Transport};

/// Everything that can be chosen.
#[derive(Debug, Serialize)]
pub struct Listing {
    experiments: Vec<ExperimentEntry>,
    transports: Vec<Choice>,
    submitters: Vec<Choice>,
    nics: Vec<Choice>,
}

#[derive(Debug, Serialize)]
struct ExperimentEntry {
    name: &'static str,
    question: &'static str,
    transports: Vec<&'static str>,
    metrics: Vec<&'static str>,
    axes: Vec<AxisEntry>,
}

#[derive(Debug, Serialize)]
struct AxisEntry {
    flag: String,
    help: &'static str,
    values: String,
    transports: Vec<&'static str>,
    quick: &'static str,
    full: &'static str,
}

#[derive(Debug, Serialize)]
struct Choice {
    name: &'static str,
    runs_here: bool,
    /// Why not; null where it runs.
    reason: Option<String>,
    /// Version and place of a library; null for what is this project's own.
    found: Option<String>,
    /// Ways of posting of a library.
    variants: Vec<Way>,
}

#[derive(Debug, Serialize)]
struct Way {
    name: &'static str,
    about: &'static str,
}

impl Choice {
    fn new(name: &'static str, here: Result<(), String>) -> Self {
        Choice {
            name,
            runs_here: here.is_ok(),
            reason: here.err(),
            found: None,
            variants: Vec::new(),
        }
    }
}

/// A library's device code needs a GPU's threads as well as the library.
fn transport(transport: Transport, platform: &Platform, paths: &peers::Paths) -> Choice {
    let Some((adapter, path)) = peer::path(transport) else {
        return Choice::new(transport.name(), Ok(()));
    };
    let library = peer::here(transport, paths).map_err(|error| error.to_string());
    let found = peers::find(adapter, paths).ok().map(|found| found.to_string());
    let here = library.and_then(|_| platform.submitter(Submitter::Cuda));
    let way = |variant: &peers::Variant| Way { name: variant.name, about: variant.about };
    let variants = path.variants.iter().map(way).collect();
    Choice { found, variants, ..Choice::new(transport.name(), here) }
}

impl Listing {
    /// Of these experiments on this machine.
    pub fn new(registry: &Registry, platform: &Platform, paths: &peers::Paths) -> Self {
        Listing {
            experiments: registry.iter().map(|experiment| entry(*experiment)).collect(),
            transports: Transport::ALL.iter().map(|t| transport(*t, platform, paths)).collect(),
            submitters: Submitter::ALL
                .iter()
                .map(|s| Choice::new(s.name(), platform.submitter(*s)))
                .collect(),
            nics: Nic::ALL.iter().map(|n| Choice::new(n.name(), platform.nic(*n))).collect(),
        }
    }

    /// Prints for people.
    ///
    /// # Errors
    /// The writer's.
    pub fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "experiments (gicbench run NAME…)")?;
        let width = self.experiments.iter().map(|one| one.name.len()).max().unwrap_or(0);
        for one in &self.experiments {
            writeln!(out, "  {:<width$}  {}", one.name, one.question)?;
            writeln!(
                out,
                "  {:width$}  on {}; gives {}",
                "",
                one.transports.join(", "),
                one.metrics.join(", ")
            )?;
            let mut flags: Vec<&str> = one.axes.iter().map(|axis| axis.flag.as_str()).collect();
            // An axis of several transports may stand once for each.
            flags.dedup();
            writeln!(out, "  {:width$}  {}", "", flags.join(" "))?;
        }
        for (title, choices) in [
            ("transports (--transport)", &self.transports),
            ("submitters (--submitter)", &self.submitters),
            ("NICs (--nic)", &self.nics),
        ] {
            writeln!(out, "{title}")?;
            for choice in choices {
                let state = match &choice.reason {
                    None => "runs here".to_owned(),
                    Some(reason) => format!("can't run here: {reason}"),
                };
                let found =
                    choice.found.as_ref().map_or(String::new(), |found| format!(" ({found})"));
                writeln!(out, "  {:<width$}  {state}{found}", choice.name)?;
                for way in &choice.variants {
                    writeln!(out, "  {:width$}    {:<20} {}", "", way.name, way.about)?;
                }
            }
        }
        Ok(())
    }
}

fn entry(experiment: &dyn Experiment) -> ExperimentEntry {
    ExperimentEntry {
        name: experiment.name(),
        question: experiment.question(),
        transports: experiment.transports().iter().map(|t| t.name()).collect(),
        metrics: experiment.metrics().iter().map(|metric| metric.name()).collect(),
        axes: experiment.axes().iter().map(|used| axis_entry(experiment, used)).collect(),
    }
}

fn axis_entry(experiment: &dyn Experiment, used: &AxisUse) -> AxisEntry {
    let spec = used.axis.spec();
    let values = if used.takes.is_empty() { spec.domain.describe() } else { used.takes.join("|") };
    let flag = match used.axis {
        AxisId::Payload => "-b -e -f".to_owned(),
        axis => axis.flag(),
    };
    let transports = experiment.transports().iter().filter(|t| used.applies_to(**t));
    AxisEntry {
        flag,
        help: spec.help,
        values,
        transports: transports.map(|t| t.name()).collect(),
        quick: used.quick,
        full: used.full,
    }
}
