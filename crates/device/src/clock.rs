//! The clocks that kernels read, and what is known of them.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

unsafe extern "C" {
    safe fn gic_host_clock() -> u64;
}

/// A clock that kernels read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Clock {
    /// Name of the source.
    pub source: &'static str,
    /// Ticks in a microsecond, measured against the system's monotonic clock.
    pub ticks_per_us: f64,
    /// Smallest step seen between two readings that differ, in ticks.
    pub resolution: u64,
    /// Median distance of two readings in a row, in ticks: what a timed region of nothing costs.
    pub overhead: u64,
    /// How far off `ticks_per_us` may be, as a part of it: 0.001 is 0.1 %.
    pub uncertainty: f64,
    /// The step of the timer that the rate was measured against, in nanoseconds, where it is a coarse one.
    pub timer_step_ns: Option<u64>,
}

impl Clock {
    /// The host's clock, measured once a process: some 20 ms, at most ten times as long on a
    /// machine that keeps taking the core away.
    #[must_use]
    pub fn host() -> Self {
        static CLOCK: OnceLock<Clock> = OnceLock::new();
        *CLOCK.get_or_init(|| {
            let begin = Instant::now();
            let rate = calibrate(&mut Clock::now, &mut || begin.elapsed());
            let mut steps: Vec<u64> = (0..10_001)
                .map(|_| {
                    let a = gic_host_clock();
                    gic_host_clock().wrapping_sub(a)
                })
                .collect();
            steps.sort_unstable();
            Clock {
                source: if cfg!(target_arch = "x86_64") { "rdtscp" } else { "cntvct_el0" },
                ticks_per_us: rate.ticks_per_us,
                resolution: steps.iter().copied().find(|s| *s > 0).unwrap_or(1),
                overhead: steps[steps.len() / 2],
                uncertainty: rate.uncertainty,
                timer_step_ns: None,
            }
        })
    }

    /// A duration in ticks.
    #[must_use]
    pub fn ticks(&self, duration: Duration) -> u64 {
        (duration.as_secs_f64() * 1e6 * self.ticks_per_us) as u64
    }

    /// A reading of the host's clock, in ticks.
    #[must_use]
    pub fn now() -> u64 {
        gic_host_clock()
    }
}

/// A clock's rate against the system's monotonic clock.
#[derive(Clone, Copy, Debug)]
struct Rate {
    ticks_per_us: f64,
    uncertainty: f64,
}

/// One moment on both clocks: `ticks`, at some time between the readings around it.
struct Moment {
    ticks: u64,
    middle: f64,
    /// Half of the distance of the readings around it, in microseconds.
    within: f64,
}

const WINDOW: Duration = Duration::from_millis(5);
const WINDOWS: usize = 4;
const READINGS: usize = 16;
const ATTEMPTS: usize = 10;
const GOOD: f64 = 0.001;

/// Measures a rate over a few windows, again while it is not good.
fn calibrate(ticks: &mut impl FnMut() -> u64, time: &mut impl FnMut() -> Duration) -> Rate {
    let mut best = measure(ticks, time);
    for _ in 1..ATTEMPTS {
        if best.uncertainty <= GOOD {
            break;
        }
        let rate = measure(ticks, time);
        if rate.uncertainty < best.uncertainty {
            best = rate;
        }
    }
    best
}

/// The rate from the first moment to the last, and how far any window's is from it.
fn measure(ticks: &mut impl FnMut() -> u64, time: &mut impl FnMut() -> Duration) -> Rate {
    let mut moments = vec![moment(ticks, time)];
    for _ in 0..WINDOWS {
        let until = time() + WINDOW;
        while time() < until {
            std::hint::spin_loop();
        }
        moments.push(moment(ticks, time));
    }
    let between = |from: &Moment, to: &Moment| {
        let elapsed = to.middle - from.middle;
        let rate = to.ticks.wrapping_sub(from.ticks) as f64 / elapsed;
        (rate, (from.within + to.within) / elapsed)
    };
    let (ticks_per_us, bound) = between(&moments[0], &moments[WINDOWS]);
    let uncertainty = moments
        .windows(2)
        .map(|pair| (between(&pair[0], &pair[1]).0 / ticks_per_us - 1.0).abs())
        .fold(bound, f64::max);
    Rate { ticks_per_us, uncertainty }
}

/// The one of several moments that is known best: a thread that loses its core between two readings takes
/// another.
fn moment(ticks: &mut impl FnMut() -> u64, time: &mut impl FnMut() -> Duration) -> Moment {
    let mut take = || {
        let before = time();
        let ticks = ticks();
        let after = time();
        let [before, after] = [before, after].map(|t| t.as_secs_f64() * 1e6);
        Moment { ticks, middle: f64::midpoint(before, after), within: (after - before) / 2.0 }
    };
    let first = take();
    (1..READINGS).fold(first, |best, _| {
        let next = take();
        if next.within < best.within { next } else { best }
    })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Calibrates a clock of 2000 ticks a microsecond on a machine where a reading takes 25 ns, and where
    /// `lost` says how many nanoseconds go by before reading `n` of the ticks, and `drift` how many ticks the
    /// clock gains beyond its rate by a time in nanoseconds.
    fn calibrated(lost: impl Fn(u64) -> u64, drift: impl Fn(u64) -> u64) -> (Rate, u64) {
        let (now, readings) = (Cell::new(1_000u64), Cell::new(0u64));
        let rate = calibrate(
            &mut || {
                now.set(now.get() + 25 + lost(readings.replace(readings.get() + 1)));
                2 * now.get() + drift(now.get())
            },
            &mut || {
                now.set(now.get() + 25);
                Duration::from_nanos(now.get())
            },
        );
        (rate, now.get())
    }

    #[test]
    fn losing_the_core_at_a_reading_moves_no_rate() {
        let ms = 1_000_000;
        for (what, lost) in [
            ("never", (|_| 0) as fn(u64) -> u64),
            ("at the first reading", |n| if n == 0 { 3_000_000 } else { 0 }),
            ("at the last moment", |n| if n == 64 { 3_000_000 } else { 0 }),
            ("at every other reading", |n| n % 2 * 200_000),
        ] {
            let (rate, took) = calibrated(lost, |_| 0);
            assert!((rate.ticks_per_us / 2000.0 - 1.0).abs() < 1e-3, "{what}: {rate:?}");
            assert!(rate.uncertainty <= GOOD, "{what}: {rate:?}");
            assert!(took < 60 * ms, "{what}: {took} ns");
        }
    }

    #[test]
    fn a_rate_that_cannot_be_had_well_says_so_after_a_bounded_time() {
        let always = |_| 2_000_000;
        // A clock that goes faster and faster.
        let faster = |now: u64| now / 1000 * now / 1_000_000;
        for (rate, took) in [calibrated(always, |_| 0), calibrated(|_| 0, faster)] {
            assert!(rate.uncertainty > GOOD, "{rate:?}");
            assert!(took < 3_000_000_000, "{took} ns");
        }
    }

    #[test]
    fn the_hosts_clock_has_a_rate() {
        let clock = Clock::host();
        assert!(clock.ticks_per_us > 1.0 && clock.uncertainty >= 0.0, "{clock:?}");
        assert!(clock.ticks(Duration::from_millis(1)) > 1000, "{clock:?}");
    }
}
