//! What a rig adds to every measurement, whatever its transport: the clock, the places of memory, what the NICs saw.

use device::choice::{MemoryPlace, Observer, Order};

use super::{Nics, Rig, broke};
use crate::gpu::{self, describe};
use crate::measurement::{self, Measurement, MemoryKind, Placement};
use crate::point::{self, PointError};

impl Rig {
    /// What the NICs saw that a safe configuration never does.
    pub fn findings(&self) -> Result<Vec<String>, PointError> {
        let near = self.near.findings().map_err(broke)?;
        Ok([near, self.far.findings().map_err(broke)?].concat())
    }

    /// Why an ordering isn't safe for who executes here; none where it is.
    pub fn unsafe_order(&self, order: Order) -> Option<String> {
        if order == Order::None {
            return Some("nothing orders WQE, doorbell record and doorbell for the NIC".to_owned());
        }
        if !self.on_gpu() {
            return None;
        }
        let observer = match self.nic {
            point::Nic::Soft => Observer::Cpu,
            point::Nic::SoftGpu => Observer::ThisGpu,
            point::Nic::Mlx5 | point::Nic::Verbs | point::Nic::None => Observer::PcieDevice,
        };
        let memory = |kind| match kind {
            MemoryKind::Host => MemoryPlace::Host,
            MemoryKind::Gpu => MemoryPlace::Gpu,
        };
        let Placement { queue, record, .. } = self.placement;
        let safe = [queue, record].iter().all(|kind| order.is_safe(observer, memory(*kind)));
        (!safe).then(|| {
            let who = match observer {
                Observer::Cpu => "a CPU",
                _ => "a PCIe device, of host memory",
            };
            format!("GPU scope does not order stores for {who}: no failure seen is no proof")
        })
    }

    /// The median rate of the clock over the launches, in MHz, and how far apart they were, as a part of it.
    fn clock_seen(&self) -> Option<(f64, f64)> {
        let mut rates = self.rates.borrow().clone();
        rates.sort_by(f64::total_cmp);
        let (low, high) = (rates.first()?, rates.last()?);
        let median = rates[rates.len() / 2];
        Some((median, (high - low) / median))
    }

    /// What every measurement has in common, whatever its transport: the clock, the places, what the NICs saw.
    ///
    /// # Errors
    /// The NICs saw something done wrong that a safe configuration never does.
    pub fn finish(
        &self,
        measurement: Measurement,
        unsafe_order: Option<String>,
    ) -> Result<Measurement, PointError> {
        let findings = self.findings()?;
        if let (Some(first), None) = (findings.first(), &unsafe_order) {
            return Err(PointError::failed(format!(
                "the NIC reports {} findings, first: {first}",
                findings.len()
            )));
        }
        Ok(self.described(measurement, unsafe_order, &findings))
    }

    /// The same for code that isn't this project's: what the NICs saw is told, and no failure.
    pub fn finish_foreign(
        &self,
        measurement: Measurement,
        unsafe_order: Option<String>,
    ) -> Result<Measurement, PointError> {
        let findings = self.findings()?;
        let measurement = self.described(measurement, unsafe_order, &findings);
        Ok(match findings.first() {
            Some(first) => measurement.detail("nic_first_finding", first.as_str()),
            None => measurement,
        })
    }

    fn described(
        &self,
        mut measurement: Measurement,
        unsafe_order: Option<String>,
        findings: &[String],
    ) -> Measurement {
        measurement = measurement.clock(self.clock_of()).placement(self.placement);
        if let Some(why) = unsafe_order {
            measurement = measurement.unsafe_mode(why);
        }
        if let Some((mhz, spread)) = self.clock_seen() {
            let round = |x: f64, to: f64| (x * to).round() / to;
            measurement = measurement
                .detail("sm_clock_mhz", round(mhz, 10.0))
                .detail("sm_clock_spread", round(spread, 1e5));
        }
        if self.on_gpu() && self.nic == point::Nic::Soft {
            let way = if self.placement.first_on_gpu().is_some() { "copies" } else { "not needed" };
            measurement = measurement.detail("nic_reaches_gpu_memory_by", way);
        }
        if let (Some(near), Some(far)) = (&self.gpu, &self.far_gpu) {
            measurement = measurement
                .detail("remote_gpu", format!("{}: {}", far.info().ordinal, describe(far.info())))
                .detail("gpu_link", gpu::link(near, far));
        }
        if let Some(session) = &self.session {
            measurement = session.described(measurement, self.on_gpu());
        }
        if let Nics::Device(hardware) = &self.nics {
            measurement = hardware.described(measurement);
        }
        measurement.detail("nic_findings", findings.len() as u64)
    }

    /// The clock of a measurement, for its record.
    fn clock_of(&self) -> measurement::Clock {
        if self.virtual_time {
            return measurement::Clock {
                source: "virtual time of the NIC".to_owned(),
                resolution_ns: 1.0,
                overhead_ns: 0.0,
                uncertainty: None,
                timer_step_ns: None,
            };
        }
        let ns = 1e3 / self.clock.ticks_per_us;
        measurement::Clock {
            source: self.clock.source.to_owned(),
            resolution_ns: self.clock.resolution as f64 * ns,
            overhead_ns: self.clock.overhead as f64 * ns,
            uncertainty: Some(self.clock.uncertainty),
            timer_step_ns: self.clock.timer_step_ns,
        }
    }
}
