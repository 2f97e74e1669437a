//! What the GPU's clocks resolve, and what a reading costs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::gpu::Gpu;
use super::{CudaError, Place};
use crate::clock::Clock;
use crate::shared::Shared;
use crate::source::calibration_unit;

/// `gic::kernels::CalibrateArgs`.
#[derive(Clone, Copy)]
#[repr(C)]
struct CalibrateArgs {
    overhead: *mut u64,
    steps: *mut u64,
    count: u64,
}

const READINGS: usize = 2000;

pub(super) fn calibrate(gpu: &Arc<Gpu>) -> Result<Clock, CudaError> {
    let place = Place::Gpu(Arc::clone(gpu));
    let overhead = Shared::at(&place, &[0u64; READINGS])?;
    let steps = Shared::at(&place, &[0u64; READINGS])?;
    let args = CalibrateArgs {
        overhead: overhead.as_ptr(),
        steps: steps.as_ptr(),
        count: READINGS as u64,
    };
    let program = gpu.program(&calibration_unit(), size_of::<CalibrateArgs>())?;
    let launch = || {
        // SAFETY: both arrays are as long as is said, and outlive the launch.
        unsafe { program.start(gpu, &args, 1, 1) }?.wait(
            Instant::now() + Duration::from_secs(10),
            None,
            &|| false,
        )
    };
    // The first ones wake the clock up.
    let mut rates = Vec::new();
    for _ in 0..5 {
        rates.push(launch()?.ticks_per_us);
    }
    let last = rates[rates.len() - 1];
    let uncertainty =
        rates.iter().rev().take(3).map(|rate| (rate / last - 1.0).abs()).fold(0.0, f64::max);
    let [overhead, steps] = [overhead.read()?, steps.read()?].map(|mut readings| {
        readings.sort_unstable();
        readings
    });
    Ok(Clock {
        source: "clock64, its rate measured against globaltimer in each launch",
        ticks_per_us: last,
        // A step of the counter is one tick; two readings in a row are further apart.
        resolution: 1,
        overhead: overhead[READINGS / 2],
        uncertainty,
        timer_step_ns: Some(steps[READINGS / 2]),
    })
}
