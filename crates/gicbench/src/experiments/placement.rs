//! `placement`: where should queues live?

use super::gda::{self, Spec};
use super::{AxisUse, Experiment, Limits, Suite};
use device::choice::Choice;
use device::view::{Op, QuietScope};

use crate::axes::AxisId;
use crate::context::RunContext;
use crate::measurement::{Measurement, Metric};
use crate::point::{Point, PointError, Submitter, Transport};

pub(super) struct Placement;

const MEMORIES: &[&str] = &["host", "gpu"];

/// What is placed by itself.
const PLACED: [AxisId; 5] =
    [AxisId::Sq, AxisId::Record, AxisId::CqMemory, AxisId::DoorbellMemory, AxisId::PayloadMemory];

impl Experiment for Placement {
    fn name(&self) -> &'static str {
        "placement"
    }

    fn question(&self) -> &'static str {
        "where should queues live?"
    }

    fn transports(&self) -> &'static [Transport] {
        &[Transport::MiniGda]
    }

    fn metrics(&self) -> &'static [Metric] {
        &[Metric::Issue, Metric::PutCompletion]
    }

    fn axes(&self) -> &'static [AxisUse] {
        const AXES: &[AxisUse] = &[
            AxisUse::new(AxisId::Payload, "8", "8"),
            AxisUse::new(AxisId::Order, "gpu-release", "gpu-release,system-fence"),
            AxisUse::new(AxisId::Cq, "collapsed", "collapsed,ring"),
            AxisUse::new(AxisId::Sq, "host,gpu", "host,gpu").takes(MEMORIES),
            AxisUse::new(AxisId::Record, "host,gpu", "host,gpu").takes(MEMORIES),
            AxisUse::new(AxisId::CqMemory, "host,gpu", "host,gpu").takes(MEMORIES),
            AxisUse::new(AxisId::DoorbellMemory, "host,gpu", "host,gpu").takes(MEMORIES),
            AxisUse::new(AxisId::PayloadMemory, "host,gpu", "host,gpu").takes(MEMORIES),
            AxisUse::new(AxisId::Profile, "none", "none"),
        ];
        AXES
    }

    fn limits(&self, suite: Suite) -> Limits {
        match suite {
            Suite::Quick => Limits::new(10_000, 500, 100),
            Suite::Full => Limits::new(100_000, 5_000, 10_000),
        }
    }

    /// One thing at a time is moved, from all in host memory and from all in GPU memory; host threads have no other
    /// memory. Whatever is given takes part in every combination.
    fn in_suite(&self, point: &Point, given: &dyn Fn(AxisId) -> bool) -> bool {
        let free: Vec<bool> =
            PLACED.iter().filter(|axis| !given(**axis)).map(|axis| is_gpu(point, *axis)).collect();
        let gpu = free.iter().filter(|gpu| **gpu).count();
        if point.submitter == Submitter::Host {
            return gpu == 0;
        }
        gpu <= 1 || gpu + 1 >= free.len()
    }

    fn run(&self, ctx: &mut RunContext, point: &Point) -> Result<Vec<Measurement>, PointError> {
        let choice = Choice {
            order: gda::order(point)?,
            cq_kind: point.word(AxisId::Cq)?.parse().map_err(|e| PointError::from_error(&e))?,
            ..Choice::default()
        };
        let spec = Spec::one(choice, point.number_as(AxisId::Payload)?);
        gda::issue_and_completion(ctx, point, spec, Op::Put, QuietScope::One)
    }
}

fn is_gpu(point: &Point, axis: AxisId) -> bool {
    point.word(axis).is_ok_and(|word| word == "gpu")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::point::Nic;

    fn points(submitter: Submitter, given: &[AxisId]) -> Vec<String> {
        let combinations = 0..1u32 << PLACED.len();
        let in_suite = combinations.filter_map(|gpu| {
            let word = |i: usize| if gpu >> i & 1 == 1 { "gpu" } else { "host" };
            let values: BTreeMap<_, _> = PLACED
                .iter()
                .enumerate()
                .map(|(i, axis)| (*axis, axis.parse(word(i)).unwrap()))
                .collect();
            let point = Point {
                experiment: "placement",
                transport: Transport::MiniGda,
                submitter,
                nic: Nic::Soft,
                values,
            };
            let letters = (0..PLACED.len()).map(|i| &word(i)[..1]).collect();
            Placement.in_suite(&point, &|axis| given.contains(&axis)).then_some(letters)
        });
        in_suite.collect()
    }

    #[test]
    fn a_suite_moves_one_thing_at_a_time() {
        assert_eq!(
            points(Submitter::Cuda, &[]),
            [
                "hhhhh", "ghhhh", "hghhh", "hhghh", "hhhgh", "ggggh", "hhhhg", "ggghg", "gghgg",
                "ghggg", "hgggg", "ggggg"
            ]
        );
        assert_eq!(points(Submitter::Host, &[]), ["hhhhh"]);
        assert_eq!(points(Submitter::Host, &[AxisId::Sq]), ["hhhhh", "ghhhh"]);
        assert_eq!(points(Submitter::Cuda, &PLACED).len(), 32);
    }
}
