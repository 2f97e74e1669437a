//! Order statistics of one set of samples.

use crate::interval::{Interval, ranks};
use crate::{StatsError, finite, probability};

/// Samples in ascending order, all finite, at least one.
#[derive(Debug, Clone, PartialEq)]
pub struct Sorted(Vec<f64>);

/// The usual numbers of a set of samples. A percentile that the count doesn't support is `None`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Summary {
    /// Number of samples.
    pub count: usize,
    /// Least.
    pub min: f64,
    /// Greatest.
    pub max: f64,
    /// Arithmetic mean.
    pub mean: f64,
    /// Median.
    pub p50: Option<f64>,
    /// 90th percentile.
    pub p90: Option<f64>,
    /// 99th percentile.
    pub p99: Option<f64>,
    /// 99.9th percentile.
    pub p999: Option<f64>,
}

/// Samples far from the rest, by Tukey's fences; they are counted and never dropped.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outliers {
    /// Samples below the first quartile by more than three times the interquartile range.
    pub low: usize,
    /// Samples above the third quartile by more than three times the interquartile range.
    pub high: usize,
    /// The lower fence.
    pub low_fence: f64,
    /// The upper fence.
    pub high_fence: f64,
}

impl Sorted {
    /// Sorts.
    ///
    /// # Errors
    /// No samples, or one that isn't finite.
    pub fn new(mut samples: Vec<f64>) -> Result<Self, StatsError> {
        finite(&samples)?;
        samples.sort_unstable_by(f64::total_cmp);
        Ok(Sorted(samples))
    }

    /// The samples, ascending.
    pub fn samples(&self) -> &[f64] {
        &self.0
    }

    /// The `q`-quantile by nearest rank: the least sample that is no less than a share `q` of all.
    /// Always one of the samples, so that it never is a time that nobody measured.
    ///
    /// # Errors
    /// `q` is not between 0 and 1.
    pub fn quantile(&self, q: f64) -> Result<f64, StatsError> {
        probability("quantile", q)?;
        Ok(self.0[self.rank(q) - 1])
    }

    /// The `q`-quantile if the count supports it: both the share below it and the share above it must
    /// be ten samples or more (`n * min(q, 1 - q) >= 10`). So p50 needs 20 samples, p90 100,
    /// p99 1000, p99.9 10000. With fewer, the sample in that place is an accident of a handful.
    pub fn supported_quantile(&self, q: f64) -> Option<f64> {
        /// Samples that must lie beyond a percentile before it is reported.
        const BEYOND: f64 = 10.0;
        // A relative slack keeps 1000 * (1 - 0.99) from being 9.99999….
        let beyond = self.0.len() as f64 * q.min(1.0 - q) * (1.0 + 1e-9);
        if beyond < BEYOND { None } else { self.quantile(q).ok() }
    }

    fn rank(&self, q: f64) -> usize {
        let n = self.0.len();
        // The slack undoes the rounding of q * n, as in 0.07 * 100 = 7.000000000000001.
        ((q * n as f64 - 1e-9).ceil().max(1.0) as usize).min(n)
    }

    /// Arithmetic mean, summed with compensation.
    pub fn mean(&self) -> f64 {
        let n = self.0.len() as f64;
        let (mut sum, mut lost) = (0.0_f64, 0.0_f64);
        for value in &self.0 {
            // Divided first, so that the sum of huge samples stays finite.
            let term = value / n;
            let next = sum + term;
            lost += if sum.abs() >= term.abs() { (sum - next) + term } else { (term - next) + sum };
            sum = next;
        }
        (sum + lost).clamp(self.0[0], self.0[self.0.len() - 1])
    }

    /// The usual numbers.
    pub fn summary(&self) -> Summary {
        Summary {
            count: self.0.len(),
            min: self.0[0],
            max: self.0[self.0.len() - 1],
            mean: self.mean(),
            p50: self.supported_quantile(0.50),
            p90: self.supported_quantile(0.90),
            p99: self.supported_quantile(0.99),
            p999: self.supported_quantile(0.999),
        }
    }

    /// Distribution-free confidence interval of the `q`-quantile, from order statistics. `None` where
    /// the samples are too few for that confidence (six for a median at 95 %).
    ///
    /// # Errors
    /// `q` or `confidence` is not between 0 and 1.
    pub fn quantile_interval(
        &self,
        q: f64,
        confidence: f64,
    ) -> Result<Option<Interval>, StatsError> {
        probability("quantile", q)?;
        probability("confidence", confidence)?;
        Ok(ranks(self.0.len(), q, confidence).map(|(lower, upper)| Interval {
            low: self.0[lower - 1],
            high: self.0[upper - 1],
            confidence,
        }))
    }

    /// Outliers by Tukey's outer fences, three interquartile ranges beyond the quartiles. `None` for
    /// fewer than 20 samples. Where half of the samples are equal, as times of a coarse clock
    /// are, the range is zero and every other sample counts.
    pub fn outliers(&self) -> Option<Outliers> {
        if self.0.len() < 20 {
            return None;
        }
        let first = self.0[self.rank(0.25) - 1];
        let third = self.0[self.rank(0.75) - 1];
        let reach = 3.0 * (third - first);
        let (low_fence, high_fence) = (first - reach, third + reach);
        Some(Outliers {
            low: self.0.partition_point(|value| *value < low_fence),
            high: self.0.len() - self.0.partition_point(|value| *value <= high_fence),
            low_fence,
            high_fence,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ascending(n: usize) -> Sorted {
        Sorted::new((1..=n).map(|k| k as f64).collect()).unwrap()
    }

    #[test]
    fn a_percentile_needs_ten_samples_beyond_it() {
        for (q, need) in [(0.5, 20), (0.9, 100), (0.99, 1000), (0.999, 10_000)] {
            assert_eq!(ascending(need - 1).supported_quantile(q), None, "{q}");
            let expected = (q * need as f64).round();
            assert_eq!(ascending(need).supported_quantile(q), Some(expected), "{q}");
        }
    }

    #[test]
    fn no_samples_and_no_numbers_are_errors() {
        assert_eq!(Sorted::new(vec![]), Err(StatsError::Empty));
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let error = Sorted::new(vec![1.0, bad]).unwrap_err();
            assert!(matches!(error, StatsError::NotFinite { index: 1, .. }), "{bad}");
        }
        for q in [0.0, 1.0, -0.1, f64::NAN] {
            assert!(ascending(10).quantile(q).is_err());
            assert!(ascending(10).quantile_interval(0.5, q).is_err());
        }
    }

    #[test]
    fn a_median_interval_needs_six_samples_at_95_percent() {
        assert_eq!(ascending(5).quantile_interval(0.5, 0.95), Ok(None));
        let interval = ascending(6).quantile_interval(0.5, 0.95).unwrap().unwrap();
        assert_eq!((interval.low, interval.high), (1.0, 6.0));
        // The tabled ranks for n = 20 are 6 and 15.
        let interval = ascending(20).quantile_interval(0.5, 0.95).unwrap().unwrap();
        assert_eq!((interval.low, interval.high), (6.0, 15.0));
    }

    #[test]
    fn outliers_are_counted_on_both_sides_and_stay_in_the_summary() {
        let mut samples: Vec<f64> = (0..100).map(f64::from).collect();
        samples.extend([1e6, 2e6, -1e6]);
        let sorted = Sorted::new(samples).unwrap();
        let outliers = sorted.outliers().unwrap();
        assert_eq!((outliers.low, outliers.high), (1, 2));
        assert_eq!(sorted.summary().max, 2e6);
        assert_eq!(sorted.summary().count, 103);
        assert_eq!(ascending(19).outliers(), None);
    }

    #[test]
    fn the_mean_keeps_small_samples_beside_huge_ones() {
        let sorted = Sorted::new(vec![1e16, 1.0, -1e16, 1.0]).unwrap();
        assert_eq!(sorted.mean(), 0.5);
        assert_eq!(Sorted::new(vec![f64::MAX, f64::MAX]).unwrap().mean(), f64::MAX);
    }

    proptest! {
        #[test]
        fn quantiles_agree_with_counting(
            samples in prop::collection::vec(-1e9..1e9_f64, 1..300),
            percent in 1..100_u32,
        ) {
            let sorted = Sorted::new(samples.clone()).unwrap();
            let value = sorted.quantile(f64::from(percent) / 100.0).unwrap();
            let n = samples.len();
            let up_to = samples.iter().filter(|s| **s <= value).count();
            let below = samples.iter().filter(|s| **s < value).count();
            prop_assert!(samples.contains(&value));
            prop_assert!(up_to * 100 >= n * percent as usize);
            prop_assert!(below * 100 < n * percent as usize);
        }

        #[test]
        fn a_summary_is_ordered_and_independent_of_the_order_of_samples(
            mut samples in prop::collection::vec(-1e9..1e9_f64, 1..2000),
        ) {
            let summary = Sorted::new(samples.clone()).unwrap().summary();
            samples.reverse();
            prop_assert_eq!(Sorted::new(samples.clone()).unwrap().summary(), summary);
            let ladder = [Some(summary.min), summary.p50, summary.p90, summary.p99, summary.p999,
                Some(summary.max)];
            let known: Vec<f64> = ladder.into_iter().flatten().collect();
            prop_assert!(known.is_sorted());
            let naive = samples.iter().sum::<f64>() / samples.len() as f64;
            prop_assert!((summary.mean - naive).abs() <= 1e-3);
            prop_assert_eq!(summary.p999.is_some(), samples.len() >= 10_000);
        }
    }
}
