//! From what was asked for to the list of points.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::axes::{AxisId, Value};
use crate::experiments::{AxisUse, Experiment, Impossible, Limits, Suite};
use crate::peer;
use crate::point::{Nic, Point, Submitter, Transport};
use crate::usage::{UsageError, nearest};

/// The experiments that there are.
pub type Registry = [&'static dyn Experiment];

/// A part of a request whose lists multiply. A command line is one, a suite file any number.
#[derive(Debug, Clone, Default)]
pub struct Block {
    /// Experiments by name; empty means all.
    pub experiments: Vec<String>,
    /// Transports, where given.
    pub transports: Option<Vec<Transport>>,
    /// Submitters; where not given, the best that can run here.
    pub submitters: Vec<Submitter>,
    /// NICs; where not given, the best that can run here.
    pub nics: Vec<Nic>,
    /// Values of the axes that were given.
    pub axes: BTreeMap<AxisId, Vec<Value>>,
    /// What was said of the amount of samples.
    pub limits: LimitsGiven,
}

/// What a request says of the amount of samples.
#[derive(Debug, Clone, Copy, Default)]
pub struct LimitsGiven {
    /// Operations.
    pub ops: Option<u64>,
    /// Operations before the counted ones.
    pub warmup: Option<u64>,
    /// Sampling time.
    pub duration: Option<std::time::Duration>,
}

impl LimitsGiven {
    /// The limits, given what the suite would have: a number or a time that is given stands alone.
    pub fn over(self, suite: Limits) -> Limits {
        let (ops, duration) = match (self.ops, self.duration) {
            (None, None) => (suite.ops, suite.duration),
            given => given,
        };
        Limits { ops, warmup: self.warmup.unwrap_or(suite.warmup), duration }
    }
}

/// A point with its experiment and its limits.
#[derive(Clone)]
pub struct Planned {
    /// The experiment.
    pub experiment: &'static dyn Experiment,
    /// The point.
    pub point: Point,
    /// When it has been sampled enough.
    pub limits: Limits,
}

impl fmt::Debug for Planned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Planned({}, {:?})", self.point, self.limits)
    }
}

/// The experiment of that name.
///
/// # Errors
/// There is none; names the nearest.
pub fn find(registry: &Registry, name: &str) -> Result<&'static dyn Experiment, UsageError> {
    registry.iter().copied().find(|experiment| experiment.name() == name).ok_or_else(|| {
        UsageError::UnknownExperiment {
            name: name.to_owned(),
            nearest: nearest(name, registry.iter().map(|experiment| experiment.name())),
        }
    })
}

/// The most points of one plan. More would run for days, and take the memory that is to be measured.
pub const MOST_POINTS: usize = 100_000;

/// Multiplies the lists of each block, in order. A point that two blocks share is planned once.
///
/// # Errors
/// An unknown experiment, a value or flag that no chosen experiment uses, an impossible combination, or more
/// than [`MOST_POINTS`].
pub fn plan(
    blocks: &[Block],
    suite: Suite,
    registry: &Registry,
) -> Result<Vec<Planned>, UsageError> {
    let mut planned: Vec<Planned> = Vec::new();
    let mut seen = BTreeSet::new();
    for block in blocks {
        let chosen = choose(block, registry)?;
        refuse_unused(block, &chosen, registry)?;
        for (experiment, transports) in chosen {
            let limits = block.limits.over(experiment.limits(suite));
            let left = MOST_POINTS - planned.len();
            for point in expand(block, experiment, &transports, suite, left)? {
                if seen.insert(point.clone()) {
                    planned.push(Planned { experiment, point, limits });
                }
            }
        }
    }
    Ok(planned)
}

type Chosen = Vec<(&'static dyn Experiment, Vec<Transport>)>;

/// The experiments of a block, each with its transports.
fn choose(block: &Block, registry: &Registry) -> Result<Chosen, UsageError> {
    let named = !block.experiments.is_empty();
    let experiments: Vec<&'static dyn Experiment> = if named {
        block.experiments.iter().map(|name| find(registry, name)).collect::<Result<_, _>>()?
    } else {
        registry.to_vec()
    };
    let mut chosen = Chosen::new();
    for experiment in experiments {
        let of_experiment = experiment.transports();
        let transports: Vec<Transport> = match &block.transports {
            Some(given) => given.iter().copied().filter(|t| of_experiment.contains(t)).collect(),
            // Libraries are measured where they are asked for.
            None => of_experiment.iter().copied().filter(|t| !t.is_peer()).collect(),
        };
        if transports.is_empty() && named {
            let given = block.transports.iter().flatten().map(|t| t.name()).collect::<Vec<_>>();
            return Err(UsageError::NotTaken {
                flag: "--transport".to_owned(),
                value: given.join(","),
                experiment: experiment.name().to_owned(),
                nearest: of_experiment.iter().map(|t| t.name().to_owned()).collect(),
            });
        }
        if !transports.is_empty() {
            chosen.push((experiment, transports));
        }
    }
    // All libraries are a group: those that have no notion of an experiment fall away.
    let given: Vec<Transport> = block.transports.iter().flatten().copied().collect();
    let group = Transport::PEERS.iter().all(|peer| given.contains(peer));
    for transport in given.iter().filter(|transport| !(group && transport.is_peer())) {
        if !chosen.iter().any(|(_, transports)| transports.contains(transport)) {
            let used_by = registry.iter().filter(|e| e.transports().contains(transport));
            return Err(UsageError::Unused {
                flag: format!("--transport {transport}"),
                used_by: used_by.map(|e| e.name().to_owned()).collect(),
            });
        }
    }
    Ok(chosen)
}

/// A flag that does nothing is a misunderstanding.
fn refuse_unused(block: &Block, chosen: &Chosen, registry: &Registry) -> Result<(), UsageError> {
    for axis in block.axes.keys() {
        let used = chosen.iter().any(|(experiment, transports)| {
            let has = |used: &&AxisUse| {
                used.axis == *axis && transports.iter().any(|t| used.applies_to(*t))
            };
            experiment.axes().iter().any(|used| has(&used))
        });
        if used {
            continue;
        }
        let mut used_by = Vec::new();
        for experiment in registry {
            for used in experiment.axes().iter().filter(|used| used.axis == *axis) {
                let name = experiment.name();
                match used.only {
                    [] => used_by.push(name.to_owned()),
                    only => {
                        used_by.extend(only.iter().map(|t| format!("{name} (--transport {t})")))
                    }
                }
            }
        }
        return Err(UsageError::Unused { flag: axis.flag(), used_by });
    }
    Ok(())
}

/// The points of one experiment.
fn expand(
    block: &Block,
    experiment: &'static dyn Experiment,
    transports: &[Transport],
    suite: Suite,
    most: usize,
) -> Result<Vec<Point>, UsageError> {
    let named = !block.experiments.is_empty();
    let mut points = Vec::new();
    // Values that were asked for, and the reason for which a combination with them fell away.
    let mut refused: BTreeMap<(AxisId, Value), UsageError> = BTreeMap::new();
    let mut without_variant = None;
    'transports: for transport in transports {
        let mut axes = Vec::new();
        for used in experiment.axes().iter().filter(|used| used.applies_to(*transport)) {
            let mut values = values_of(block, experiment, (used, transports), suite, named)?;
            if used.axis == AxisId::Variant {
                // Of several libraries one may have it.
                match peer::chosen(*transport, experiment.name(), &values) {
                    Ok(chosen) => values = chosen,
                    Err(error) => {
                        without_variant.get_or_insert(error);
                        continue 'transports;
                    }
                }
            }
            axes.push((used.axis, values));
        }
        // What needs no NIC is measured once, whoever executes the others' WQEs.
        let nics = match transport {
            Transport::Direct => &[Nic::None][..],
            _ => &block.nics,
        };
        let sides = block.submitters.len() * nics.len();
        let combinations = axes
            .iter()
            .try_fold(sides, |product: usize, (_, values)| product.checked_mul(values.len()));
        if combinations.is_none_or(|combinations| combinations > most.saturating_sub(points.len()))
        {
            return Err(too_many(experiment, &axes));
        }
        for (submitter, nic) in
            block.submitters.iter().flat_map(|s| nics.iter().map(move |n| (*s, *n)))
        {
            let own_time = nic.is_device() && !block.axes.contains_key(&AxisId::Profile);
            let axes = if own_time { without_profiles(&axes)? } else { axes.clone() };
            for values in product(&axes) {
                let point = Point {
                    experiment: experiment.name(),
                    transport: *transport,
                    submitter,
                    nic,
                    values,
                };
                // A group names what it happens to hold, and so asks for none of it in particular.
                let given = |axis| {
                    let group = |v: &Value| axis == AxisId::Variant && peer::is_group(v);
                    block.axes.get(&axis).is_some_and(|values| !values.iter().any(group))
                };
                let Err(clash) = experiment.possible(&point) else {
                    if experiment.in_suite(&point, &given) {
                        points.push(point);
                    }
                    continue;
                };
                let error = explain(&clash, &point);
                if given(clash.axis) && given(clash.with) {
                    return Err(error);
                }
                let axis = if given(clash.axis) { clash.axis } else { clash.with };
                if let (true, Some(value)) = (given(axis), point.get(axis)) {
                    refused.entry((axis, value)).or_insert(error);
                }
            }
        }
    }
    if let (true, Some(error)) = (points.is_empty(), without_variant) {
        return Err(error);
    }
    for ((axis, value), error) in refused {
        if !points.iter().any(|point| point.get(axis) == Some(value)) && named {
            return Err(error);
        }
    }
    Ok(points)
}

/// The axes for a NIC that takes its own time: no timing profile, whatever the suite has for software NICs.
fn without_profiles(
    axes: &[(AxisId, Vec<Value>)],
) -> Result<Vec<(AxisId, Vec<Value>)>, UsageError> {
    let own = |(axis, values): &(AxisId, Vec<Value>)| match axis {
        AxisId::Profile => Ok((*axis, axis.parse_list("none")?)),
        _ => Ok((*axis, values.clone())),
    };
    axes.iter().map(own).collect()
}

/// The values of an axis: those given that the experiment takes, or the suite's.
fn values_of(
    block: &Block,
    experiment: &dyn Experiment,
    (used, transports): (&AxisUse, &[Transport]),
    suite: Suite,
    named: bool,
) -> Result<Vec<Value>, UsageError> {
    let Some(given) = block.axes.get(&used.axis) else {
        return used.axis.parse_list(match suite {
            Suite::Quick => used.quick,
            Suite::Full => used.full,
        });
    };
    let takes = |used: &AxisUse, value: &Value| {
        value.word().is_none_or(|word| used.takes.is_empty() || used.takes.contains(&word))
    };
    // What one transport has no notion of another may have.
    let uses = || {
        let of_axis = |one: &&AxisUse| one.axis == used.axis;
        let chosen = |one: &&AxisUse| transports.iter().any(|transport| one.applies_to(*transport));
        experiment.axes().iter().filter(of_axis).filter(chosen)
    };
    let refused = given.iter().find(|value| !uses().any(|used| takes(used, value)));
    match refused {
        Some(value) if named => Err(UsageError::NotTaken {
            flag: used.axis.flag(),
            value: value.to_string(),
            experiment: experiment.name().to_owned(),
            nearest: uses().flat_map(|used| used.takes).map(|word| (*word).to_owned()).collect(),
        }),
        _ => Ok(given.iter().filter(|value| takes(used, value)).copied().collect()),
    }
}

fn too_many(experiment: &dyn Experiment, axes: &[(AxisId, Vec<Value>)]) -> UsageError {
    let mut lists: Vec<(AxisId, usize)> = axes
        .iter()
        .map(|(axis, values)| (*axis, values.len()))
        .filter(|(_, length)| *length > 1)
        .collect();
    lists.sort_by_key(|(_, length)| std::cmp::Reverse(*length));
    UsageError::TooManyPoints {
        experiment: experiment.name().to_owned(),
        lists: lists
            .iter()
            .map(|(axis, length)| format!("{} has {length} values", axis.flag()))
            .collect(),
        most: MOST_POINTS,
    }
}

pub(crate) fn explain(clash: &Impossible, point: &Point) -> UsageError {
    let said = |axis: AxisId| {
        let flag = if axis == AxisId::Payload { "-b/-e".to_owned() } else { axis.flag() };
        point.get(axis).map_or(flag.clone(), |value| format!("{flag} {value}"))
    };
    UsageError::Impossible {
        choice: said(clash.axis),
        with: said(clash.with),
        why: clash.why.clone(),
        nearest: clash.nearest.clone(),
    }
}

/// Every combination, the first axis changing slowest.
fn product(axes: &[(AxisId, Vec<Value>)]) -> Vec<BTreeMap<AxisId, Value>> {
    axes.iter().fold(vec![BTreeMap::new()], |combinations, (axis, values)| {
        let mut extended = Vec::with_capacity(combinations.len() * values.len());
        for combination in &combinations {
            for value in values {
                let mut combination = combination.clone();
                combination.insert(*axis, *value);
                extended.push(combination);
            }
        }
        extended
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments;

    #[test]
    fn devices_take_their_own_time_unless_a_profile_is_asked_for() {
        let asked = AxisId::Profile.parse_list("cx7-ndr200").unwrap();
        let own = AxisId::Profile.parse_list("none").unwrap();
        for (nic, given, due) in [
            (Nic::Soft, false, &asked),
            (Nic::Mlx5, false, &own),
            (Nic::Verbs, false, &own),
            (Nic::Verbs, true, &asked),
        ] {
            let block = Block {
                experiments: vec!["bandwidth".to_owned()],
                submitters: vec![Submitter::Host],
                nics: vec![nic],
                axes: given.then(|| (AxisId::Profile, asked.clone())).into_iter().collect(),
                ..Block::default()
            };
            let points = plan(&[block], Suite::Full, experiments::all()).unwrap();
            assert!(!points.is_empty());
            for planned in points {
                assert_eq!(planned.point.get(AxisId::Profile), due.first().copied(), "{nic:?}");
            }
        }
    }
}
