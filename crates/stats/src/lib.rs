//! Statistics of samples: summaries, intervals, outliers, comparisons, regression, histograms.
//!
//! Pure functions of numbers. No I/O, no clock, no units, no randomness, and nothing of this project's
//! other rooms may enter.
//!
//! Every function refuses an empty input and numbers that aren't finite: a missing number is an error
//! or a `None`, never a zero. Samples are taken to be independent; measured times usually are
//! correlated a little, so intervals are the narrowest that can honestly be claimed.

mod compare;
mod histogram;
mod interval;
mod normal;
mod ratio;
mod regression;
mod summary;

pub use compare::{Comparison, compare};
pub use histogram::{Bucket, Histogram};
pub use interval::Interval;
pub use ratio::ratio_of_medians;
pub use regression::{Line, fit_line};
pub use summary::{Outliers, Sorted, Summary};

/// Why there is no statistic.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum StatsError {
    /// There are no samples.
    #[error("no samples")]
    Empty,
    /// A sample is not a number, or infinite.
    #[error("sample {index} is {value}, not a finite number")]
    NotFinite {
        /// Its position in the input.
        index: usize,
        /// What it is.
        value: f64,
    },
    /// Too few samples for what was asked.
    #[error("{have} samples, but {need} are needed")]
    TooFew {
        /// How many there are.
        have: usize,
        /// How many it takes.
        need: usize,
    },
    /// A parameter is outside its range.
    #[error("{name} is {value}, outside its range")]
    OutOfRange {
        /// The parameter.
        name: &'static str,
        /// What it is.
        value: f64,
    },
    /// All x are the same, or a divisor may be zero.
    #[error("not determined: {0}")]
    Undetermined(&'static str),
    /// Inputs that belong together differ in length.
    #[error("{x} x values, but {y} y values")]
    Unpaired {
        /// Number of x.
        x: usize,
        /// Number of y.
        y: usize,
    },
}

fn finite(values: &[f64]) -> Result<(), StatsError> {
    if values.is_empty() {
        return Err(StatsError::Empty);
    }
    match values.iter().position(|value| !value.is_finite()) {
        Some(index) => Err(StatsError::NotFinite { index, value: values[index] }),
        None => Ok(()),
    }
}

fn probability(name: &'static str, value: f64) -> Result<(), StatsError> {
    if value > 0.0 && value < 1.0 { Ok(()) } else { Err(StatsError::OutOfRange { name, value }) }
}
