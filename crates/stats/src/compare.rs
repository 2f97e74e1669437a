//! Whether two sets of samples differ by more than the noise.

use crate::normal::quantile;
use crate::summary::Sorted;
use crate::{StatsError, probability};

/// The outcome of a comparison of `after` with `before`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Comparison {
    /// Median of `after` less that of `before`.
    pub shift: f64,
    /// `shift` relative to the median of `before`; `None` where that is zero.
    pub relative: Option<f64>,
    /// Probability that a sample of `after` is greater than one of `before`, ties counted half: 0.5
    /// where there is no difference.
    pub superiority: f64,
    /// The Mann-Whitney statistic in standard deviations.
    pub z: f64,
    /// Whether `z` is beyond the confidence on either side *and* the medians differ by at least the
    /// asked share. Both are needed: with enough samples a difference of no interest is certain.
    pub more_than_noise: bool,
}

/// Compares by the Mann-Whitney U test (normal approximation with correction for ties and continuity).
///
/// # Errors
/// Fewer than eight samples on a side, where the approximation is poor; a confidence that is not between
/// 0 and 1; a negative or not finite `least_share`.
pub fn compare(
    before: &Sorted,
    after: &Sorted,
    confidence: f64,
    least_share: f64,
) -> Result<Comparison, StatsError> {
    const NEED: usize = 8;
    probability("confidence", confidence)?;
    if !least_share.is_finite() || least_share < 0.0 {
        return Err(StatsError::OutOfRange { name: "least share", value: least_share });
    }
    let (x, y) = (before.samples(), after.samples());
    let have = x.len().min(y.len());
    if have < NEED {
        return Err(StatsError::TooFew { have, need: NEED });
    }

    let (n, m) = (x.len() as f64, y.len() as f64);
    let (mut wins, mut ties) = (0.0, 0.0);
    let (mut i, mut j) = (0, 0);
    while i < x.len() || j < y.len() {
        let value = match (x.get(i), y.get(j)) {
            (Some(a), Some(b)) => a.min(*b),
            (Some(a), None) => *a,
            (None, Some(b)) => *b,
            (None, None) => break,
        };
        let in_x = x[i..].partition_point(|a| *a <= value);
        let in_y = y[j..].partition_point(|b| *b <= value);
        wins += in_y as f64 * (i as f64 + in_x as f64 / 2.0);
        let group = (in_x + in_y) as f64;
        ties += group * (group * group - 1.0);
        i += in_x;
        j += in_y;
    }
    let total = n + m;
    let variance = n * m / 12.0 * (total + 1.0 - ties / (total * (total - 1.0)));
    let off = wins - n * m / 2.0;
    let z = if variance > 0.0 {
        off.signum() * (off.abs() - 0.5).max(0.0) / variance.sqrt()
    } else {
        0.0
    };

    let (from, to) = (before.quantile(0.5)?, after.quantile(0.5)?);
    let shift = to - from;
    let relative = (from != 0.0).then(|| shift / from.abs());
    let large_enough = match relative {
        Some(share) => share.abs() >= least_share,
        None => shift != 0.0,
    };
    let certain = z.abs() > quantile(0.5 + confidence / 2.0);
    Ok(Comparison {
        shift,
        relative,
        superiority: wins / (n * m),
        z,
        more_than_noise: certain && large_enough && shift != 0.0,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sorted(samples: impl IntoIterator<Item = f64>) -> Sorted {
        Sorted::new(samples.into_iter().collect()).unwrap()
    }

    #[test]
    fn the_same_samples_and_all_ties_are_noise() {
        let samples = sorted((0..100).map(f64::from));
        let ties = sorted([3.0; 50]);
        for side in [&samples, &ties] {
            let outcome = compare(side, side, 0.95, 0.0).unwrap();
            assert!(!outcome.more_than_noise);
            assert_eq!((outcome.shift, outcome.superiority), (0.0, 0.5));
        }
    }

    #[test]
    fn a_shift_is_seen_in_its_direction_unless_it_is_of_no_interest() {
        let before = sorted((0..200).map(|k| 100.0 + f64::from(k % 20)));
        let after = sorted((0..200).map(|k| 110.0 + f64::from(k % 20)));
        let up = compare(&before, &after, 0.99, 0.05).unwrap();
        assert!(up.more_than_noise && up.shift == 10.0 && up.z > 0.0 && up.superiority > 0.5);
        let down = compare(&after, &before, 0.99, 0.05).unwrap();
        assert!(down.more_than_noise && down.shift == -10.0 && down.z < 0.0);
        assert!(!compare(&before, &after, 0.99, 0.2).unwrap().more_than_noise);
    }

    #[test]
    fn a_textbook_u_has_its_textbook_z() {
        // Every sample of one side above every one of the other: U = 64, sd = sqrt(64 * 17 / 12).
        let outcome =
            compare(&sorted((0..8).map(f64::from)), &sorted((8..16).map(f64::from)), 0.95, 0.0)
                .unwrap();
        assert_eq!(outcome.superiority, 1.0);
        assert!((outcome.z - 31.5 / (64.0_f64 * 17.0 / 12.0).sqrt()).abs() < 1e-12);
    }

    #[test]
    fn too_few_samples_and_bad_parameters_are_errors() {
        let (few, enough) = (sorted([1.0; 7]), sorted([1.0; 8]));
        assert_eq!(compare(&few, &enough, 0.95, 0.0), Err(StatsError::TooFew { have: 7, need: 8 }));
        assert!(compare(&enough, &enough, 1.0, 0.0).is_err());
        for share in [-0.1, f64::NAN, f64::INFINITY] {
            assert!(compare(&enough, &enough, 0.95, share).is_err());
        }
    }

    proptest! {
        #[test]
        fn superiority_agrees_with_comparing_every_pair(
            x in prop::collection::vec(0..20_i32, 8..60),
            y in prop::collection::vec(0..20_i32, 8..60),
        ) {
            let mut wins = 0.0;
            for a in &x {
                for b in &y {
                    wins += match b.cmp(a) {
                        std::cmp::Ordering::Greater => 1.0,
                        std::cmp::Ordering::Equal => 0.5,
                        std::cmp::Ordering::Less => 0.0,
                    };
                }
            }
            let outcome = compare(
                &sorted(x.iter().map(|v| f64::from(*v))),
                &sorted(y.iter().map(|v| f64::from(*v))),
                0.95,
                0.0,
            )
            .unwrap();
            let naive = wins / (x.len() * y.len()) as f64;
            prop_assert!((outcome.superiority - naive).abs() < 1e-12);
        }
    }
}
