//! A straight line through points.

use crate::interval::Interval;
use crate::normal::t_quantile;
use crate::{StatsError, finite, probability};

/// A least-squares line `y = intercept + slope * x`.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// y at x = 0.
    pub intercept: f64,
    /// Growth of y with x.
    pub slope: f64,
    /// Interval of the intercept, for independent errors of equal variance.
    pub intercept_interval: Interval,
    /// Interval of the slope, likewise.
    pub slope_interval: Interval,
    /// y minus the line, in the order of the points.
    pub residuals: Vec<f64>,
    /// Standard error of the residuals.
    pub residual_error: f64,
    /// Share of the variance of y that the line explains; `None` where y doesn't vary.
    pub r_squared: Option<f64>,
}

impl Line {
    /// The line at `x`.
    pub fn at(&self, x: f64) -> f64 {
        self.intercept + self.slope * x
    }
}

/// Fits a line. For `t = a + b / f`, give `1 / f` as `x`.
///
/// # Errors
/// Fewer than three points, unpaired or not finite ones, all x the same, or a confidence that is not
/// between 0 and 1.
pub fn fit_line(x: &[f64], y: &[f64], confidence: f64) -> Result<Line, StatsError> {
    probability("confidence", confidence)?;
    if x.len() != y.len() {
        return Err(StatsError::Unpaired { x: x.len(), y: y.len() });
    }
    finite(x)?;
    finite(y)?;
    if x.len() < 3 {
        return Err(StatsError::TooFew { have: x.len(), need: 3 });
    }
    let n = x.len() as f64;
    let (mean_x, mean_y) = (x.iter().sum::<f64>() / n, y.iter().sum::<f64>() / n);
    let sxx: f64 = x.iter().map(|x| (x - mean_x).powi(2)).sum();
    let syy: f64 = y.iter().map(|y| (y - mean_y).powi(2)).sum();
    let sxy: f64 = x.iter().zip(y).map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
    // Rounding of the mean leaves about this much where all x are one value.
    let noise = n * (mean_x * f64::EPSILON * n).powi(2);
    if sxx <= noise {
        return Err(StatsError::Undetermined("all x are the same"));
    }
    let slope = sxy / sxx;
    let intercept = mean_y - slope * mean_x;
    if !slope.is_finite() || !intercept.is_finite() {
        return Err(StatsError::Undetermined("the numbers are too large"));
    }
    let residuals: Vec<f64> = x.iter().zip(y).map(|(x, y)| y - (intercept + slope * x)).collect();
    let squares: f64 = residuals.iter().map(|r| r * r).sum();
    let residual_error = (squares / (n - 2.0)).sqrt();
    let t = t_quantile(0.5 + confidence / 2.0, x.len() - 2);
    let around = |centre: f64, error: f64| Interval {
        low: centre - t * error,
        high: centre + t * error,
        confidence,
    };
    Ok(Line {
        intercept,
        slope,
        intercept_interval: around(
            intercept,
            residual_error * (1.0 / n + mean_x * mean_x / sxx).sqrt(),
        ),
        slope_interval: around(slope, residual_error / sxx.sqrt()),
        residuals,
        residual_error,
        r_squared: (syy > 0.0).then(|| (1.0 - squares / syy).max(0.0)),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_textbook_fit_has_its_textbook_errors() {
        let x = [1.0, 2.0, 3.0, 4.0, 5.0];
        let y = [2.0, 4.0, 5.0, 4.0, 5.0];
        let line = fit_line(&x, &y, 0.95).unwrap();
        assert!((line.slope - 0.6).abs() < 1e-12);
        assert!((line.intercept - 2.2).abs() < 1e-12);
        assert!((line.r_squared.unwrap() - 0.6).abs() < 1e-12);
        // Standard error of the slope is sqrt(0.08); t(0.975, 3) is 3.182.
        let half = (line.slope_interval.high - line.slope_interval.low) / 2.0;
        assert!((half - 3.182 * 0.08_f64.sqrt()).abs() < 0.01, "{half}");
    }

    #[test]
    fn what_determines_no_line_is_an_error() {
        assert_eq!(fit_line(&[], &[], 0.95), Err(StatsError::Empty));
        assert!(matches!(fit_line(&[1.0, 2.0], &[1.0, 2.0], 0.95), Err(StatsError::TooFew { .. })));
        assert!(matches!(fit_line(&[1.0], &[], 0.95), Err(StatsError::Unpaired { .. })));
        for x in [[0.1; 3], [1e9; 3], [0.0; 3]] {
            let error = fit_line(&x, &[1.0, 2.0, 3.0], 0.95);
            assert!(matches!(error, Err(StatsError::Undetermined(_))), "{x:?}");
        }
        assert!(fit_line(&[1.0, 2.0, f64::NAN], &[1.0; 3], 0.95).is_err());
        assert_eq!(fit_line(&[1.0, 2.0, 3.0], &[4.0; 3], 0.95).unwrap().r_squared, None);
    }

    proptest! {
        #[test]
        fn points_on_a_line_give_that_line(
            intercept in -1e3..1e3_f64, slope in -1e3..1e3_f64, n in 3..50_usize,
        ) {
            let x: Vec<f64> = (0..n).map(|k| k as f64).collect();
            let y: Vec<f64> = x.iter().map(|x| intercept + slope * x).collect();
            let line = fit_line(&x, &y, 0.95).unwrap();
            prop_assert!((line.intercept - intercept).abs() < 1e-6);
            prop_assert!((line.slope - slope).abs() < 1e-6);
            prop_assert!(line.residual_error < 1e-6);
            prop_assert!((line.at(7.5) - (intercept + slope * 7.5)).abs() < 1e-5);
        }

        #[test]
        fn residuals_sum_to_nothing_and_the_interval_holds_the_slope(
            y in prop::collection::vec(-1e3..1e3_f64, 3..50),
        ) {
            let x: Vec<f64> = (0..y.len()).map(|k| k as f64).collect();
            let line = fit_line(&x, &y, 0.9).unwrap();
            prop_assert!(line.residuals.iter().sum::<f64>().abs() < 1e-6);
            prop_assert!(line.slope_interval.contains(line.slope));
            prop_assert!(line.intercept_interval.contains(line.intercept));
        }
    }
}
