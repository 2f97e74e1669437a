//! An interval with its confidence.

/// A confidence interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// Probability, at least, that an interval made this way covers the true value.
    pub confidence: f64,
}

impl Interval {
    /// Whether a value lies inside, ends included.
    pub fn contains(&self, value: f64) -> bool {
        self.low <= value && value <= self.high
    }

    /// Whether two intervals have a point in common.
    pub fn overlaps(&self, other: &Interval) -> bool {
        self.low <= other.high && other.low <= self.high
    }
}

/// Ranks (1-based) of the order statistics that bracket the `p`-quantile of `n` samples, or `None` where
/// the samples don't reach the confidence.
///
/// The number of samples below the true quantile is binomial(n, p), so ranks `l < u` cover it with
/// probability `P(l <= K < u)`, whatever the distribution is. Taking at most half of the rest on
/// each side makes that at least `confidence`.
pub(crate) fn ranks(n: usize, p: f64, confidence: f64) -> Option<(usize, usize)> {
    let tail = (1.0 - confidence) / 2.0;
    let (n_f, log_odds) = (n as f64, p.ln() - (1.0 - p).ln());
    // The pmf is walked outward from its mode, where it can't underflow, and only as far as it matters.
    let mode = (((n_f + 1.0) * p) as usize).min(n);
    let log_mode = ln_choose(n, mode) + mode as f64 * p.ln() + (n - mode) as f64 * (1.0 - p).ln();
    let step = |k: usize| ((n - k) as f64 / (k as f64 + 1.0)).ln() + log_odds;
    const NEGLIGIBLE: f64 = -60.0;

    let mut first = mode;
    let mut log = log_mode;
    while first > 0 && log > NEGLIGIBLE {
        first -= 1;
        log -= step(first);
    }
    // P(K < lower) <= tail, for the largest such rank.
    let (mut lower, mut below, mut walked) = (first, 0.0, log);
    loop {
        let mass = walked.exp();
        if below + mass > tail || lower == n {
            break;
        }
        below += mass;
        walked += step(lower);
        lower += 1;
    }
    // P(K >= upper) <= tail, for the smallest such rank.
    let (mut last, mut log_last) = (mode, log_mode);
    while last < n && log_last > NEGLIGIBLE {
        log_last += step(last);
        last += 1;
    }
    let (mut upper, mut above) = (last + 1, 0.0);
    let mut walked = log_last;
    while upper > 0 {
        let mass = walked.exp();
        if above + mass > tail {
            break;
        }
        above += mass;
        upper -= 1;
        if upper == 0 {
            break;
        }
        walked -= step(upper - 1);
    }
    (lower >= 1 && upper <= n && lower < upper).then_some((lower, upper))
}

fn ln_choose(n: usize, k: usize) -> f64 {
    ln_factorial(n) - ln_factorial(k) - ln_factorial(n - k)
}

fn ln_factorial(n: usize) -> f64 {
    if n < 32 {
        return (2..=n).map(|k| (k as f64).ln()).sum();
    }
    // Stirling's series; the next term is below 1e-13 here.
    let n = n as f64;
    let (inverse, ln_root) = (1.0 / n, 0.5 * (2.0 * std::f64::consts::PI * n).ln());
    n * n.ln() - n + ln_root + inverse / 12.0 - inverse.powi(3) / 360.0 + inverse.powi(5) / 1260.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The binomial distribution by its recurrence, for small n.
    fn pmf(n: usize, p: f64) -> Vec<f64> {
        let mut row = vec![1.0];
        for _ in 0..n {
            let mut next = vec![0.0; row.len() + 1];
            for (k, mass) in row.iter().enumerate() {
                next[k] += mass * (1.0 - p);
                next[k + 1] += mass * p;
            }
            row = next;
        }
        row
    }

    #[test]
    fn ranks_cover_with_the_confidence_and_no_narrower_pair_of_tails_does() {
        for n in [1, 2, 5, 6, 10, 50, 200, 700] {
            for p in [0.5, 0.9, 0.99] {
                for confidence in [0.8, 0.95, 0.99] {
                    let row = pmf(n, p);
                    let tail = (1.0 - confidence) / 2.0;
                    let below = |rank: usize| row[..rank].iter().sum::<f64>();
                    let above = |rank: usize| row[rank.min(n + 1)..].iter().sum::<f64>();
                    match ranks(n, p, confidence) {
                        Some((lower, upper)) => {
                            let slack = 1e-9;
                            assert!(below(lower) <= tail + slack, "n {n} p {p} lower {lower}");
                            assert!(above(upper) <= tail + slack, "n {n} p {p} upper {upper}");
                            assert!(below(lower + 1) > tail - slack);
                            assert!(above(upper - 1) > tail - slack);
                        }
                        // No pair of ranks exists: one tail is too heavy even at the extreme.
                        None => assert!(below(1) > tail - 1e-9 || above(n) > tail - 1e-9),
                    }
                }
            }
        }
    }

    #[test]
    fn ranks_of_a_million_samples_are_near_the_normal_approximation() {
        let n = 1_000_000;
        let (lower, upper) = ranks(n, 0.5, 0.95).unwrap();
        let half = 1.96 * (n as f64 * 0.25).sqrt();
        assert!((lower as f64 - (5e5 - half)).abs() < 3.0, "{lower}");
        assert!((upper as f64 - (5e5 + half)).abs() < 3.0, "{upper}");
    }
}
