//! A ratio of two medians.

use crate::interval::Interval;
use crate::summary::Sorted;
use crate::{StatsError, probability};

/// The ratio of the median of `a` to that of `b`, with an interval that covers at least `confidence`.
///
/// The interval divides the ends of the two medians' intervals, each made at `1 - (1 - confidence) / 2`
/// (Bonferroni): conservative, and free of any assumption about the distributions.
///
/// # Errors
/// Too few samples for the intervals, a `b` whose median interval isn't above zero, an `a` with
/// negative samples there, or a confidence that is not between 0 and 1.
pub fn ratio_of_medians(
    a: &Sorted,
    b: &Sorted,
    confidence: f64,
) -> Result<(f64, Interval), StatsError> {
    probability("confidence", confidence)?;
    let each = 1.0 - (1.0 - confidence) / 2.0;
    let interval = |samples: &Sorted| {
        samples.quantile_interval(0.5, each)?.ok_or_else(|| {
            // The widest interval, from least to greatest, misses with probability 2 / 2^n.
            let need = (1.0 - (1.0 - each).log2()).ceil() as usize;
            StatsError::TooFew { have: samples.samples().len(), need }
        })
    };
    let (over, under) = (interval(a)?, interval(b)?);
    if under.low <= 0.0 {
        return Err(StatsError::Undetermined("the divisor may be zero"));
    }
    if over.low < 0.0 {
        return Err(StatsError::Undetermined("the dividend may be negative"));
    }
    let ratio = a.quantile(0.5)? / b.quantile(0.5)?;
    Ok((ratio, Interval { low: over.low / under.high, high: over.high / under.low, confidence }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread(centre: f64, n: usize) -> Sorted {
        Sorted::new((0..n).map(|k| centre * (1.0 + (k as f64 / n as f64 - 0.5) / 10.0)).collect())
            .unwrap()
    }

    #[test]
    fn the_interval_holds_the_ratio_and_narrows_with_samples() {
        let (few, few_interval) =
            ratio_of_medians(&spread(20.0, 20), &spread(10.0, 20), 0.95).unwrap();
        let (many, many_interval) =
            ratio_of_medians(&spread(20.0, 2000), &spread(10.0, 2000), 0.95).unwrap();
        for (ratio, interval) in [(few, few_interval), (many, many_interval)] {
            assert!((ratio - 2.0).abs() < 1e-9 && interval.contains(2.0));
        }
        assert!(many_interval.high - many_interval.low < few_interval.high - few_interval.low);
    }

    #[test]
    fn too_few_samples_or_a_divisor_around_zero_are_errors() {
        assert_eq!(
            ratio_of_medians(&spread(1.0, 6), &spread(1.0, 20), 0.95),
            Err(StatsError::TooFew { have: 6, need: 7 })
        );
        assert!(ratio_of_medians(&spread(1.0, 7), &spread(1.0, 20), 0.95).is_ok());
        let around_zero = Sorted::new((-10..=10).map(f64::from).collect()).unwrap();
        for (a, b) in [(&spread(1.0, 20), &around_zero), (&around_zero, &spread(1.0, 20))] {
            assert!(matches!(ratio_of_medians(a, b, 0.95), Err(StatsError::Undetermined(_))));
        }
    }
}
