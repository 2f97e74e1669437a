//! Scales: where a value stands between the ends of an axis, and where the ticks are.

/// A logarithmic scale is taken where the values are further apart than this factor.
const SPREAD: f64 = 20.0;

/// A number that a picture can show. Others are in the tables only.
pub(crate) fn is_drawable(value: f64) -> bool {
    value == 0.0 || (1e-12..=1e15).contains(&value.abs())
}

/// From values to positions.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Scale {
    /// Equal differences are equally long.
    Linear {
        /// Value at position 0.
        low: f64,
        /// Value at position 1.
        high: f64,
        /// Distance of the ticks.
        step: f64,
    },
    /// Equal factors are equally long.
    Log {
        /// Value at position 0.
        low: f64,
        /// Value at position 1.
        high: f64,
    },
    /// One place a value, in their order: for lists that begin with zero and then multiply.
    Ordinal(Vec<f64>),
}

/// A tick of a scale.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tick {
    /// Where it stands, from 0 to 1.
    pub at: f64,
    /// What it says.
    pub label: String,
}

impl Scale {
    /// A linear scale that begins at zero, or at a round number below the least value, and ends at a round
    /// number above the greatest. None without values.
    pub fn linear(values: impl IntoIterator<Item = f64>) -> Option<Scale> {
        let (least, most) = ends(values)?;
        let (least, most) = (least.min(0.0), most.max(0.0));
        let range = if most > least { most - least } else { 1.0 };
        let step = round_above(range / 6.0);
        let low = (least / step).floor() * step;
        let high = (most / step).ceil() * step;
        Some(Scale::Linear { low, high: if high > low { high } else { low + step }, step })
    }

    /// A logarithmic scale between the round numbers next to the ends. None where a value isn't positive.
    pub fn log(values: impl IntoIterator<Item = f64>) -> Option<Scale> {
        let (least, most) = ends(values)?;
        if least <= 0.0 {
            return None;
        }
        // So much room that what stands at an end isn't on the axis.
        let low = round_below(least / 1.1);
        let high = round_above(most * 1.02);
        // A single round value has room on both sides.
        let (low, high) = if high > low { (low, high) } else { (low / 2.0, high * 2.0) };
        Some(Scale::Log { low, high })
    }

    /// Logarithmic where positive values are far apart, else linear.
    pub fn fitting(values: &[f64]) -> Option<Scale> {
        match ends(values.iter().copied())? {
            (least, most) if least > 0.0 && most / least > SPREAD => {
                Scale::log(values.iter().copied())
            }
            _ => Scale::linear(values.iter().copied()),
        }
    }

    /// For a list of an axis' values: logarithmic where they multiply, ordinal where they do so after a zero,
    /// else linear between their ends.
    pub fn along(values: &[f64]) -> Option<Scale> {
        let mut sorted: Vec<f64> = values.iter().copied().filter(|v| is_drawable(*v)).collect();
        sorted.sort_by(f64::total_cmp);
        sorted.dedup();
        let (least, most) = (*sorted.first()?, *sorted.last()?);
        if sorted.len() == 1 || least < 0.0 {
            return Some(Scale::Ordinal(sorted));
        }
        if least == 0.0 {
            let multiplies = sorted.get(1).is_some_and(|second| most / second >= 4.0);
            return Some(if multiplies {
                Scale::Ordinal(sorted)
            } else {
                Scale::Linear { low: 0.0, high: most, step: round_above(most / 6.0) }
            });
        }
        Some(if most / least >= 3.0 {
            Scale::Log { low: least, high: most }
        } else {
            Scale::Linear { low: least, high: most, step: round_above((most - least) / 6.0) }
        })
    }

    /// Where a value stands: 0 at the low end, 1 at the high one; what is outside stands at the end.
    pub fn position(&self, value: f64) -> f64 {
        let at = match self {
            Scale::Linear { low, high, .. } => (value - low) / (high - low),
            Scale::Log { low, high } if value > 0.0 => (value / low).ln() / (high / low).ln(),
            Scale::Log { .. } => 0.0,
            Scale::Ordinal(values) => {
                let index = values.iter().position(|one| *one >= value).unwrap_or(values.len());
                // Half a place of room on both sides.
                (index as f64 + 0.5) / values.len().max(1) as f64
            }
        };
        if at.is_finite() { at.clamp(0.0, 1.0) } else { 0.0 }
    }

    /// Whether lengths along it are proportional to values.
    pub fn is_linear(&self) -> bool {
        matches!(self, Scale::Linear { .. })
    }

    /// Ticks at round numbers, about six.
    pub fn ticks(&self) -> Vec<Tick> {
        let values: Vec<(f64, String)> = match self {
            Scale::Linear { low, high, step } => {
                let first = (low / step).ceil();
                let count = ((high / step + 1e-9).floor() - first).clamp(0.0, 20.0) as u32;
                let decimals = (-step.log10().floor()).clamp(0.0, 12.0) as usize;
                (0..=count)
                    .map(|index| (first + f64::from(index)) * step + 0.0)
                    .map(|value| (value, format!("{value:.decimals$}")))
                    .collect()
            }
            Scale::Log { low, high } => {
                let decades = (high / low).log10();
                let first = low.log10().floor() as i32;
                let last = high.log10().ceil() as i32;
                let mantissas: &[f64] = match decades {
                    d if d <= 3.2 => &[1.0, 2.0, 5.0],
                    _ => &[1.0],
                };
                let every = (decades / 8.0).ceil().max(1.0) as usize;
                (first..=last)
                    .step_by(every)
                    .flat_map(|power| mantissas.iter().map(move |m| m * 10f64.powi(power)))
                    .filter(|value| (low * (1.0 - 1e-9)..=high * (1.0 + 1e-9)).contains(value))
                    .map(|value| (value, brief(value)))
                    .collect()
            }
            Scale::Ordinal(values) => values.iter().map(|value| (*value, brief(*value))).collect(),
        };
        values.into_iter().map(|(v, label)| Tick { at: self.position(v), label }).collect()
    }

    /// Ticks at the values themselves, without those whose labels would touch.
    ///
    /// `room` is the length of the axis, in widths of a character.
    pub fn ticks_at(&self, values: &[f64], label: impl Fn(f64) -> String, room: f64) -> Vec<Tick> {
        let mut sorted: Vec<f64> = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        sorted.dedup();
        let mut ticks: Vec<Tick> = Vec::new();
        let mut free_from = f64::NEG_INFINITY;
        for &value in &sorted {
            let tick = Tick { at: self.position(value), label: label(value) };
            let own = half(&tick, room);
            // The last one is the end of the axis: it stays, and those in its way go.
            while Some(&value) == sorted.last() && tick.at - own < free_from && ticks.len() > 1 {
                ticks.pop();
                free_from =
                    ticks.last().map_or(f64::NEG_INFINITY, |last| last.at + half(last, room));
            }
            if tick.at - own >= free_from {
                free_from = tick.at + own;
                ticks.push(tick);
            }
        }
        ticks
    }
}

/// Half the length of a tick's label and of the gap behind it.
fn half(tick: &Tick, room: f64) -> f64 {
    (tick.label.chars().count() as f64 + 1.5) / 2.0 / room.max(1.0)
}

fn ends(values: impl IntoIterator<Item = f64>) -> Option<(f64, f64)> {
    values.into_iter().filter(|value| is_drawable(*value)).fold(None, |ends, value| match ends {
        None => Some((value, value)),
        Some((least, most)) => Some((f64::min(least, value), f64::max(most, value))),
    })
}

/// 1, 2 or 5 times a power of ten: the least that isn't below a positive value.
fn round_above(value: f64) -> f64 {
    let power = 10f64.powi(value.log10().floor() as i32);
    [1.0, 2.0, 5.0, 10.0]
        .map(|mantissa| mantissa * power)
        .into_iter()
        .find(|round| *round >= value * (1.0 - 1e-9))
        .unwrap_or(value)
}

/// 1, 2 or 5 times a power of ten: the greatest that isn't above a positive value.
fn round_below(value: f64) -> f64 {
    let power = 10f64.powi(value.log10().floor() as i32);
    [5.0, 2.0, 1.0]
        .map(|mantissa| mantissa * power)
        .into_iter()
        .find(|round| *round <= value * (1.0 + 1e-9))
        .unwrap_or(value)
}

/// A round number in the fewest characters.
fn brief(value: f64) -> String {
    if value == 0.0 || (1e-4..1e7).contains(&value.abs()) {
        let decimals = (-value.abs().max(1e-12).log10().floor()).clamp(0.0, 4.0) as usize;
        let text = format!("{value:.decimals$}");
        // Whole numbers and values such as 1500 or 2.5 are as exact as they come.
        if text.parse() == Ok(value) { text } else { value.to_string() }
    } else {
        format!("{value:e}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(scale: &Scale) -> Vec<String> {
        scale.ticks().into_iter().map(|tick| tick.label).collect()
    }

    #[test]
    fn ticks_are_round_numbers_and_few() {
        let cases: &[(&[f64], &[&str])] = &[
            (&[0.4, 0.9], &["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
            (&[97.5, 11.0], &["0", "20", "40", "60", "80", "100"]),
            (&[1.0], &["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
            (&[0.0], &["0.0", "0.2"]),
            (&[-3.0, 2.0], &["-3", "-2", "-1", "0", "1", "2"]),
            (&[0.013, 0.012], &["0.000", "0.005", "0.010", "0.015"]),
            (&[0.02, 2.27], &["0.01", "0.02", "0.05", "0.1", "0.2", "0.5", "1", "2", "5"]),
            (&[0.02, 1100.0], &["0.01", "0.1", "1", "10", "100", "1000"]),
            (&[1e-9, 1e9], &["1e-7", "0.0001", "0.1", "100", "100000", "1e8"]),
        ];
        for (values, expected) in cases {
            let scale = Scale::fitting(values).unwrap();
            assert_eq!(labels(&scale), *expected, "{values:?}");
        }
    }

    #[test]
    fn far_apart_is_logarithmic_and_the_rest_begins_at_zero() {
        for (values, linear) in [
            (&[1.0, 20.0], true),
            (&[1.0, 20.1], false),
            (&[0.0, 1e6], true),
            (&[-1.0, 100.0], true),
        ] {
            let scale = Scale::fitting(values).unwrap();
            assert_eq!(scale.is_linear(), linear, "{values:?}");
            if linear {
                let zero = scale.position(0.0);
                assert_eq!(zero == 0.0, values[0] >= 0.0, "{values:?}");
            }
        }
        assert_eq!(Scale::log([0.0, 1.0]), None);
        assert_eq!(Scale::fitting(&[]), None);
        assert_eq!(Scale::fitting(&[f64::NAN, f64::INFINITY, 1e300, 1e-300]), None);
    }

    #[test]
    fn positions_are_between_the_ends_and_in_order() {
        let lists: &[&[f64]] = &[
            &[0.5],
            &[0.0],
            &[1e15, 1e-12],
            &[-1e15, 1e15],
            &[3.0, 3.0],
            &[1e-12, 2e-12],
            &[1.0, 2.0, 4.0, 1e15],
        ];
        for values in lists {
            let (first, more) = (values[0], values[values.len() - 1]);
            let scales = [
                Scale::linear(values.iter().copied()),
                Scale::log(values.iter().copied()),
                Scale::fitting(values),
                Scale::along(values),
            ];
            for scale in scales.into_iter().flatten() {
                let (a, b) = (scale.position(first), scale.position(more));
                assert!((0.0..=1.0).contains(&a) && (0.0..=1.0).contains(&b), "{scale:?}");
                assert_eq!(a < b, first < more, "{scale:?}");
                let ticks = scale.ticks();
                assert!(!ticks.is_empty() && ticks.len() <= 21, "{scale:?} {ticks:?}");
                assert!(ticks.windows(2).all(|pair| pair[0].at < pair[1].at), "{ticks:?}");
            }
        }
        let scale = Scale::log([1.0, 100.0]).unwrap();
        assert_eq!(scale.position(10.0), 0.5);
        assert_eq!((scale.position(-1.0), scale.position(1e9)), (0.0, 1.0));
        assert_eq!(scale.position(f64::NAN), 0.0);
    }

    #[test]
    fn the_values_of_an_axis_choose_its_scale() {
        assert_eq!(Scale::along(&[64.0, 1.0, 8.0]), Some(Scale::Log { low: 1.0, high: 64.0 }));
        assert_eq!(
            Scale::along(&[0.0, 1.0, 4.0, 64.0]),
            Some(Scale::Ordinal(vec![0.0, 1.0, 4.0, 64.0]))
        );
        assert!(Scale::along(&[0.0, 1.0, 2.0]).unwrap().is_linear());
        assert!(Scale::along(&[1005.0, 1980.0, 1500.0]).unwrap().is_linear());
        assert_eq!(Scale::along(&[7.0]).unwrap().position(7.0), 0.5);
        let ordinal = Scale::along(&[0.0, 1.0, 4.0, 64.0]).unwrap();
        assert_eq!([0.0, 4.0].map(|value| ordinal.position(value)), [0.125, 0.625]);
    }

    #[test]
    fn ticks_at_values_leave_out_those_that_would_touch() {
        let values: Vec<f64> = (3..=20).map(|power| 2f64.powi(power)).collect();
        let scale = Scale::along(&values).unwrap();
        let shown = |room| scale.ticks_at(&values, |v| v.to_string(), room).len();
        assert_eq!(shown(1000.0), values.len());
        assert!((4..10).contains(&shown(50.0)), "{}", shown(50.0));
        let ticks = scale.ticks_at(&values, |v| v.to_string(), 50.0);
        assert_eq!((ticks[0].at, ticks[ticks.len() - 1].at), (0.0, 1.0));
        assert_eq!(scale.ticks_at(&[], |v| v.to_string(), 50.0), []);
    }
}
