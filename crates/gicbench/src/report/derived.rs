//! Quantities that follow from several measurements of one record, each beside the published one: what
//! inlining saves, how a time grows with queue pairs, what chaining gains. Where a record lacks one of the
//! points, there is no quantity.

use super::entry::{Coordinate, LIMITS, is_its_own, parameter, said};
use super::figures::{is, prefer};
use super::{notes, words};
use crate::published::Published;
use crate::record::Row;

/// A quantity.
struct Quantity {
    what: &'static str,
    experiment: &'static str,
    transport: &'static str,
    metric: &'static str,
    /// Values that every point of it has.
    when: &'static [(&'static str, &'static str)],
    how: How,
    figure: Option<Figure>,
}

/// How a quantity follows from the medians of its points.
enum How {
    /// The median at the first value of an axis less that at the second.
    Difference(&'static str, &'static str, &'static str),
    /// The median at the first value of an axis over that at the second.
    Ratio(&'static str, &'static str, &'static str),
    /// The median over that of the same point on another transport.
    Beside(&'static str),
    /// Growth of the median along an axis, by the least squares of at least three points, times a step.
    Growth(&'static str, f64),
    /// Share of the time that scales with the clock, at the highest clock: of `t = a + b / f` the part `b / f`.
    /// As one measurement says it, or else by a fit through the medians at three clocks or more.
    ClockShare,
}

/// A published quantity.
struct Figure {
    /// Key in the file; two of them are divided.
    keys: &'static [&'static str],
    /// Whose it is, in its source's terms.
    whose: &'static str,
    /// Values that the points must have for it to stand beside them.
    when: &'static [(&'static str, &'static str)],
    /// Whether the same thing is measured here.
    same: bool,
}

const QUANTITIES: &[Quantity] = &[
    Quantity {
        what: "issue over the bare sequence's",
        experiment: "latency",
        transport: "mini-gda",
        metric: "issue_us",
        when: &[("op", "put"), ("payload", "8")],
        how: How::Beside("bare"),
        figure: None,
    },
    Quantity {
        what: "put + completion over the bare sequence's",
        experiment: "latency",
        transport: "mini-gda",
        metric: "put_completion_us",
        when: &[("op", "put"), ("payload", "8")],
        how: How::Beside("bare"),
        figure: None,
    },
    Quantity {
        what: "issue over the bare sequence's, the same ordering",
        experiment: "ordering",
        transport: "mini-gda",
        metric: "issue_us",
        when: &[("payload", "8")],
        how: How::Beside("bare"),
        figure: None,
    },
    Quantity {
        what: "issue over the same code written in place",
        experiment: "ordering",
        transport: "mini-gda",
        metric: "issue_us",
        when: &[("payload", "8")],
        how: How::Beside("inlined"),
        figure: None,
    },
    Quantity {
        what: "inlining 8 B saves of put + completion",
        experiment: "inline",
        transport: "mini-gda",
        metric: "put_completion_us",
        when: &[("payload", "8"), ("batch", "1")],
        how: How::Difference("inline", "off", "on"),
        figure: Some(Figure {
            keys: &["inline.saves_completion_at_8B"],
            whose: "mini-gda",
            when: &[],
            same: true,
        }),
    },
    Quantity {
        what: "inlining 8 B adds to issue",
        experiment: "inline",
        transport: "mini-gda",
        metric: "issue_us",
        when: &[("payload", "8"), ("batch", "1")],
        how: How::Difference("inline", "on", "off"),
        figure: None,
    },
    Quantity {
        what: "issue of each further 16 B inline",
        experiment: "inline",
        transport: "mini-gda",
        metric: "issue_us",
        when: &[("inline", "on"), ("batch", "1")],
        how: How::Growth("payload", 16.0),
        figure: Some(Figure {
            keys: &["inline.issue_per_extra_16B"],
            whose: "mini-gda",
            when: &[],
            same: true,
        }),
    },
    Quantity {
        what: "issue with a system-scope fence over GPU-scope release",
        experiment: "ordering",
        transport: "mini-gda",
        metric: "issue_us",
        when: &[("payload", "8")],
        how: How::Ratio("order", "system-fence", "gpu-release"),
        figure: Some(Figure {
            keys: &["ordering.system_scope", "ordering.gpu_scope"],
            whose: "mini-gda",
            when: &[],
            same: true,
        }),
    },
    Quantity {
        what: "put + completion with all queue pairs in scope, 16 over 1",
        experiment: "quiet",
        transport: "mini-gda",
        metric: "put_completion_us",
        when: &[("payload", "8"), ("scope", "all")],
        how: How::Ratio("qps", "16", "1"),
        figure: Some(Figure {
            keys: &["nvshmem.quiet_all_qps_1_to_16"],
            whose: "NVSHMEM",
            when: &[],
            same: false,
        }),
    },
    Quantity {
        what: "put + completion with one queue pair in scope, 32 over 1",
        experiment: "quiet",
        transport: "mini-gda",
        metric: "put_completion_us",
        when: &[("payload", "8"), ("scope", "one")],
        how: How::Ratio("qps", "32", "1"),
        figure: None,
    },
    Quantity {
        what: "rate with chains of 16 over chains of 1",
        experiment: "proxy-scaling",
        transport: "mini-proxy",
        metric: "rate_mmsgs",
        when: &[("payload", "8")],
        how: How::Ratio("chain", "16", "1"),
        figure: Some(Figure {
            keys: &["proxy.chain_1_to_16_rate_ratio"],
            whose: "T = 1, R = 32",
            when: &[("workers", "1"), ("rings", "32")],
            same: true,
        }),
    },
    Quantity {
        what: "share of issue that scales with the SM clock",
        experiment: "clock",
        transport: "mini-gda",
        metric: "issue_us",
        when: &[],
        how: How::ClockShare,
        figure: Some(Figure {
            keys: &["clock.gdaki_issue_share"],
            whose: "GDAKI, P-RoCE",
            when: &[],
            same: false,
        }),
    },
    Quantity {
        what: "share of enqueue that scales with the SM clock",
        experiment: "clock",
        transport: "mini-proxy",
        metric: "enqueue_us",
        when: &[],
        how: How::ClockShare,
        figure: Some(Figure {
            keys: &["clock.ibrc_enqueue_share"],
            whose: "NVSHMEM IBRC, P-RoCE",
            when: &[],
            same: false,
        }),
    },
    Quantity {
        what: "share of put + completion that scales with the SM clock",
        experiment: "clock",
        transport: "mini-proxy",
        metric: "put_completion_us",
        when: &[],
        how: How::ClockShare,
        figure: Some(Figure {
            keys: &["clock.ibrc_put_completion_share"],
            whose: "NVSHMEM IBRC, P-RoCE",
            when: &[],
            same: false,
        }),
    },
];

/// A quantity of a record.
#[derive(Debug, Clone, PartialEq)]
pub struct Derived {
    /// What it is.
    pub what: &'static str,
    /// The experiment that it is of.
    pub experiment: &'static str,
    /// The transport.
    pub transport: &'static str,
    /// Who ran the device code, and who executed the WQEs.
    pub by: String,
    /// Values that tell it from other quantities of the same name; empty where nothing has to.
    pub at: String,
    /// Its value.
    pub value: f64,
    /// Its unit; empty for a ratio or a share.
    pub unit: String,
    /// The published value and whose it is.
    pub published: Option<(f64, &'static str)>,
    /// Measured over published, where the same thing was measured.
    pub ratio: Option<f64>,
    /// The letters of what has to be known of its points.
    pub notes: String,
}

/// Every quantity whose points are there, in a fixed order.
pub fn derive(rows: &[Row], published: &Published) -> Vec<Derived> {
    QUANTITIES.iter().flat_map(|quantity| quantity.of(rows, published)).collect()
}

impl Quantity {
    fn of(&self, rows: &[Row], published: &Published) -> Vec<Derived> {
        let fits = |row: &&Row| {
            row.point.experiment == self.experiment
                && row.metric == self.metric
                && is_its_own(row)
                && self.when.iter().all(|(name, value)| is(row, name, value))
        };
        let all: Vec<&Row> = rows.iter().filter(fits).collect();
        let mut rows = all.clone();
        rows.retain(|row| row.point.transport == self.transport);
        prefer(&mut rows, |row| row);
        let axis = self.how.axis();
        // Points that share everything but the axis.
        let mut groups: Vec<(Others, Vec<&Row>)> = Vec::new();
        for row in rows {
            let others = others(row, axis);
            match groups.iter_mut().find(|(known, _)| *known == others) {
                Some((_, members)) => members.push(row),
                None => groups.push((others, vec![row])),
            }
        }
        if let How::Beside(other) = self.how {
            for (_, members) in &mut groups {
                let Some(first) = members.first().copied() else { continue };
                let like = |row: &&&Row| {
                    row.point.transport == other
                        && is_like(first, row)
                        && is_shared_alike(first, row)
                };
                members.extend(all.iter().filter(like));
            }
        }
        // Where the published configuration was measured, the others are the picture's.
        let published_ones: Vec<_> =
            groups.iter().filter(|group| self.is_published_one(&group.1)).collect();
        if !published_ones.is_empty() && published_ones.len() < groups.len() {
            groups = published_ones.into_iter().cloned().collect();
        }
        let told_apart = differing(&groups);
        let derived = groups.iter().filter_map(|(others, members)| {
            let (value, members) = self.how.apply(members)?;
            let first = members.first()?;
            let figure = self.figure.as_ref().filter(|_| self.is_published_one(&members));
            let printed = figure.and_then(|figure| Some((figure.value(published)?, figure.whose)));
            let stand_in = members.iter().any(|row| row.stand_in);
            let same = figure.is_some_and(|figure| figure.same) && !stand_in;
            let mut letters: Vec<char> = members
                .iter()
                .flat_map(|row| notes::letters(row).chars().collect::<Vec<_>>())
                .collect();
            letters.sort_unstable();
            letters.dedup();
            let at = others.iter().filter(|(name, _)| told_apart.contains(name));
            Some(Derived {
                what: self.what,
                experiment: self.experiment,
                transport: self.transport,
                by: format!("{}, {}", first.point.submitter, first.point.nic),
                at: at
                    .map(|(name, value)| format!("{name} {value}"))
                    .collect::<Vec<_>>()
                    .join(", "),
                value,
                unit: if self.how.keeps_unit() { first.unit.clone() } else { String::new() },
                published: printed,
                ratio: printed.filter(|(value, _)| same && *value != 0.0).map(|(p, _)| value / p),
                notes: letters.into_iter().collect(),
            })
        });
        derived.collect()
    }

    /// Whether the published figure is of points such as these, and they give a quantity.
    fn is_published_one(&self, rows: &[&Row]) -> bool {
        let fits = |figure: &Figure| {
            let is = |row: &&Row| figure.when.iter().all(|(name, value)| is(row, name, value));
            rows.iter().all(is)
        };
        self.figure.as_ref().is_some_and(fits) && self.how.apply(rows).is_some()
    }
}

/// Names and values of the coordinates of a point, but for one.
type Others = Vec<(String, String)>;

fn others(row: &Row, axis: &str) -> Others {
    let names = ["submitter", "nic"].into_iter().map(str::to_owned);
    let names = names.chain(row.point.parameters.keys().cloned());
    let differing = names.filter(|name| name != axis && !LIMITS.contains(&name.as_str()));
    let mut all: Others = differing
        .filter_map(|name| {
            parameter(&row.point, &name).map(|value| (name.clone(), value.show(&name)))
        })
        .collect();
    all.sort();
    all
}

/// Names of the coordinates, but for who ran it, that differ between the groups.
fn differing(groups: &[(Others, Vec<&Row>)]) -> Vec<String> {
    let Some((first, _)) = groups.first() else { return Vec::new() };
    let all = groups.iter().flat_map(|(others, _)| others);
    let mut names: Vec<String> = all
        .filter(|pair| !first.contains(pair) && pair.0 != "submitter" && pair.0 != "nic")
        .map(|pair| pair.0.clone())
        .collect();
    names.sort();
    names.dedup();
    names
}

impl How {
    fn axis(&self) -> &'static str {
        match self {
            How::Difference(axis, ..) | How::Ratio(axis, ..) | How::Growth(axis, _) => axis,
            How::Beside(_) | How::ClockShare => "",
        }
    }

    fn keeps_unit(&self) -> bool {
        matches!(self, How::Difference(..) | How::Growth(..))
    }

    /// The value, and the points that it follows from.
    fn apply<'a>(&self, rows: &[&'a Row]) -> Option<(f64, Vec<&'a Row>)> {
        let at = |axis: &str, value: &str| {
            let mut at = rows.iter().filter(|row| is(row, axis, value));
            let row = *at.next()?;
            // Two of them: nobody knows which is meant.
            if at.next().is_some() { None } else { Some((row.p50?, row)) }
        };
        let (value, used) = match self {
            How::Difference(axis, from, less) => {
                let ((from, one), (less, other)) = (at(axis, from)?, at(axis, less)?);
                (from - less, vec![one, other])
            }
            How::Ratio(axis, over, under) => {
                let ((over, one), (under, other)) = (at(axis, over)?, at(axis, under)?);
                (over / under, vec![one, other])
            }
            How::Beside(_) => {
                let [one, other] = rows else { return None };
                (one.p50? / other.p50?, vec![*one, *other])
            }
            How::Growth(axis, step) => {
                let (x, y) = points(rows, |row| match parameter(&row.point, axis)? {
                    Coordinate::Number(value) => Some(value),
                    Coordinate::Word(_) => None,
                });
                (stats::fit_line(&x, &y, 0.95).ok()?.slope * step, rows.to_vec())
            }
            How::ClockShare => {
                let fact = |row: &Row, name: &str| row.details.get(name)?.as_f64();
                let share = |row: &&&Row| fact(row, "scaling_share_at_top_clock").is_some();
                if let Some(row) = rows.iter().find(share) {
                    (fact(row, "scaling_share_at_top_clock")?, vec![*row])
                } else {
                    let clock = |row: &Row| fact(row, "clock_mhz").filter(|mhz| *mhz > 0.0);
                    let (periods, times) = points(rows, |row| Some(1.0 / clock(row)?));
                    let line = stats::fit_line(&periods, &times, 0.95).ok()?;
                    let shortest = periods.iter().copied().reduce(f64::min)?;
                    (line.slope * shortest / line.at(shortest), rows.to_vec())
                }
            }
        };
        value.is_finite().then_some((value, used))
    }
}

/// Whether two points have the same value on every coordinate that both have, but for the transport.
fn is_like(one: &Row, other: &Row) -> bool {
    let (others_of_one, others_of_other) = (others(one, ""), others(other, ""));
    others_of_one.iter().all(|(name, value)| {
        others_of_other
            .iter()
            .find(|(known, _)| known == name)
            .is_none_or(|(_, same)| same == value)
    })
}

/// Whether two points say the same of how threads share a queue pair, where both say it: only one of them may have the
/// axis.
fn is_shared_alike(one: &Row, other: &Row) -> bool {
    let both = said(one, "sharing").zip(said(other, "sharing"));
    both.is_none_or(|(one, other)| one == other)
}

fn points(rows: &[&Row], x: impl Fn(&Row) -> Option<f64>) -> (Vec<f64>, Vec<f64>) {
    rows.iter().filter_map(|row| Some((x(row)?, row.p50?))).unzip()
}

impl Figure {
    fn value(&self, published: &Published) -> Option<f64> {
        let mut figures = self.keys.iter().map(|key| published.figure(key));
        let first = figures.next()??;
        figures.try_fold(first, |value, under| under.map(|under| value / under))
    }
}

impl Derived {
    /// The value with its unit, as people read it.
    pub fn shown(&self) -> String {
        with_unit(words::number(self.value), &self.unit)
    }

    /// The published value with its unit, likewise.
    pub fn published_shown(&self) -> Option<String> {
        self.published.map(|(value, _)| with_unit(words::printed(value), &self.unit))
    }
}

fn with_unit(number: String, unit: &str) -> String {
    if unit.is_empty() { number } else { format!("{number} {}", words::unit(unit)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::axes::AxisId;
    use crate::experiments;

    #[test]
    fn every_quantity_has_its_figure_and_axes() {
        let published = Published::embedded().unwrap();
        for quantity in QUANTITIES {
            if let Some(figure) = &quantity.figure {
                assert!(figure.value(&published).is_some(), "{:?}", figure.keys);
            }
            let figure_when = quantity.figure.iter().flat_map(|figure| figure.when);
            for (name, value) in quantity.when.iter().chain(figure_when) {
                assert!(AxisId::by_name(name).unwrap().parse(value).is_ok(), "{name} {value}");
            }
            if let How::Difference(axis, a, b) | How::Ratio(axis, a, b) = quantity.how {
                for value in [a, b] {
                    assert!(AxisId::by_name(axis).unwrap().parse(value).is_ok(), "{axis} {value}");
                }
            }
            let experiment = experiments::all().iter().find(|e| e.name() == quantity.experiment);
            // An experiment of another build may be missing; one that is here has the metric.
            if let Some(experiment) = experiment {
                let mut metrics = experiment.metrics().iter();
                assert!(metrics.any(|m| m.name() == quantity.metric), "{}", quantity.what);
            }
        }
    }
}
