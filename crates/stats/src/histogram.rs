//! Log-bucketed histogram with a fixed relative error.

use crate::{StatsError, finite};

/// One bucket that isn't empty.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bucket {
    /// Lower bound, included.
    pub low: f64,
    /// Upper bound, excluded.
    pub high: f64,
    /// Samples in it.
    pub count: u64,
}

/// Counts of positive samples in buckets whose bounds grow by one factor, so that any sample is known
/// from its bucket to within half of that factor. Samples of zero or below have a count of their own.
#[derive(Debug, Clone, PartialEq)]
pub struct Histogram {
    growth: f64,
    buckets: Vec<Bucket>,
    not_positive: u64,
}

impl Histogram {
    /// Counts samples into buckets that are `relative_width` wide relative to their lower bound:
    /// with 0.05, from 1 to 1.05, from 1.05 to 1.1025, …; the bounds don't depend on the samples, so
    /// that two histograms of one width can be laid over each other.
    ///
    /// # Errors
    /// No samples, one that isn't finite, or a width outside 0.001 … 1.
    pub fn new(samples: &[f64], relative_width: f64) -> Result<Self, StatsError> {
        finite(samples)?;
        if !(0.001..=1.0).contains(&relative_width) {
            return Err(StatsError::OutOfRange { name: "relative width", value: relative_width });
        }
        let growth = 1.0 + relative_width;
        let mut sorted: Vec<f64> = samples.iter().copied().filter(|value| *value > 0.0).collect();
        sorted.sort_unstable_by(f64::total_cmp);
        let not_positive = (samples.len() - sorted.len()) as u64;

        let bound = |index: f64| growth.powf(index);
        let mut buckets: Vec<Bucket> = Vec::new();
        for value in sorted {
            match buckets.last_mut() {
                Some(bucket) if value < bucket.high => bucket.count += 1,
                previous => {
                    let mut index = (value.ln() / growth.ln()).floor();
                    // The logarithm may round across a bound.
                    if bound(index) > value {
                        index -= 1.0;
                    } else if bound(index + 1.0) <= value {
                        index += 1.0;
                    }
                    let low = previous.map_or(0.0, |bucket| bucket.high).max(bound(index));
                    buckets.push(Bucket { low, high: bound(index + 1.0), count: 1 });
                }
            }
        }
        Ok(Histogram { growth, buckets, not_positive })
    }

    /// Factor from one bound to the next.
    pub fn growth(&self) -> f64 {
        self.growth
    }

    /// The buckets that aren't empty, ascending.
    pub fn buckets(&self) -> &[Bucket] {
        &self.buckets
    }

    /// Samples of zero or below.
    pub fn not_positive(&self) -> u64 {
        self.not_positive
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn samples_that_arent_positive_are_counted_apart() {
        let histogram = Histogram::new(&[0.0, -1.0, 2.0], 0.05).unwrap();
        assert_eq!(histogram.not_positive(), 2);
        assert_eq!(histogram.buckets().len(), 1);
    }

    #[test]
    fn a_width_outside_its_range_and_no_samples_are_errors() {
        for width in [0.0, 1.1, f64::NAN] {
            assert!(Histogram::new(&[1.0], width).is_err());
        }
        assert_eq!(Histogram::new(&[], 0.1), Err(StatsError::Empty));
    }

    proptest! {
        #[test]
        fn every_sample_is_in_one_bucket_of_the_promised_width(
            samples in prop::collection::vec(1e-6..1e9_f64, 1..200),
            width in 0.001..1.0_f64,
        ) {
            let histogram = Histogram::new(&samples, width).unwrap();
            let total: u64 = histogram.buckets().iter().map(|bucket| bucket.count).sum();
            prop_assert_eq!(total as usize, samples.len());
            for bucket in histogram.buckets() {
                let inside =
                    samples.iter().filter(|s| bucket.low <= **s && **s < bucket.high).count();
                prop_assert_eq!(inside as u64, bucket.count);
                prop_assert!(bucket.high / bucket.low <= histogram.growth() * (1.0 + 1e-9));
            }
            for pair in histogram.buckets().windows(2) {
                prop_assert!(pair[0].high <= pair[1].low);
            }
        }
    }
}
