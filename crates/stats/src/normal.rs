//! The normal and Student's t distribution, as far as intervals need them.

/// Quantile of the standard normal distribution, for `0 < p < 1`; relative error below 1.2e-9
/// (P. J. Acklam's rational approximation).
pub(crate) fn quantile(p: f64) -> f64 {
    const A: [f64; 6] = [
        -3.969683028665376e1,
        2.209460984245205e2,
        -2.759285104469687e2,
        1.383_577_518_672_69e2,
        -3.066479806614716e1,
        2.506628277459239,
    ];
    const B: [f64; 5] = [
        -5.447609879822406e1,
        1.615858368580409e2,
        -1.556989798598866e2,
        6.680131188771972e1,
        -1.328068155288572e1,
    ];
    const C: [f64; 6] = [
        -7.784894002430293e-3,
        -3.223964580411365e-1,
        -2.400758277161838,
        -2.549732539343734,
        4.374664141464968,
        2.938163982698783,
    ];
    const D: [f64; 4] =
        [7.784695709041462e-3, 3.224671290700398e-1, 2.445134137142996, 3.754408661907416];
    const LOW: f64 = 0.02425;

    let poly = |coefficients: &[f64], x: f64| coefficients.iter().fold(0.0, |sum, c| sum * x + c);
    if p < LOW {
        let q = (-2.0 * p.ln()).sqrt();
        poly(&C, q) / (poly(&D, q) * q + 1.0)
    } else if p <= 1.0 - LOW {
        let q = p - 0.5;
        let r = q * q;
        poly(&A, r) * q / (poly(&B, r) * r + 1.0)
    } else {
        -quantile(1.0 - p)
    }
}

/// Quantile of Student's t with `df` degrees of freedom, for `0 < p < 1` and `df >= 1`; exact for 1 and
/// 2, within 1 % from 3 on for the usual confidences (Cornish-Fisher expansion).
pub(crate) fn t_quantile(p: f64, df: usize) -> f64 {
    match df {
        0 | 1 => (std::f64::consts::PI * (p - 0.5)).tan(),
        2 => {
            let a = 4.0 * p * (1.0 - p);
            2.0 * (p - 0.5) * (2.0 / a).sqrt()
        }
        _ => {
            let z = quantile(p);
            let n = df as f64;
            let z2 = z * z;
            let g1 = (z2 + 1.0) * z / 4.0;
            let g2 = ((5.0 * z2 + 16.0) * z2 + 3.0) * z / 96.0;
            let g3 = (((3.0 * z2 + 19.0) * z2 + 17.0) * z2 - 15.0) * z / 384.0;
            let g4 =
                ((((79.0 * z2 + 776.0) * z2 + 1482.0) * z2 - 1920.0) * z2 - 945.0) * z / 92160.0;
            z + g1 / n + g2 / n.powi(2) + g3 / n.powi(3) + g4 / n.powi(4)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_agree_with_the_tables() {
        for (p, z) in [
            (0.5, 0.0),
            (0.975, 1.959964),
            (0.995, 2.575829),
            (0.025, -1.959964),
            (0.001, -3.090232),
        ] {
            assert!((quantile(p) - z).abs() < 1e-6, "{p}");
        }
        for (df, t) in
            [(1, 12.7062), (2, 4.30265), (3, 3.18245), (5, 2.57058), (10, 2.22814), (100, 1.98397)]
        {
            assert!(
                (t_quantile(0.975, df) / t - 1.0).abs() < 0.01,
                "{df}: {}",
                t_quantile(0.975, df)
            );
        }
    }
}
