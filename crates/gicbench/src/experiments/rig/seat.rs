//! What a point asks of its rig: memory, GPUs, CPUs, and who executes.

use std::cell::RefCell;
use std::sync::Arc;

use device::clock::Clock;
use device::cuda::Gpu;
use rdma::soft::{Engine, Fabric, FabricAttr};
use rdma::{Nic, soft_gpu};
use softnic::{Caps, NicConfig, Profile};

use super::super::across::Session;
use super::super::devices;
use super::{Ends, Need, Nics, Rig, broke};
use crate::axes::AxisId;
use crate::context::RunContext;
use crate::cpus::{Assignment, EngineMode};
use crate::hardware;
use crate::measurement::{MemoryKind, Placement};
use crate::point::{self, Point, PointError, Submitter, Transport};

/// What a rig has before it has NICs.
pub(super) struct Seat {
    placement: Placement,
    pub gpu: Option<Arc<Gpu>>,
    pub far_gpu: Option<Arc<Gpu>>,
    cpus: Assignment,
    nic: point::Nic,
    virtual_time: bool,
    /// Of software NICs.
    pub attr: FabricAttr,
}

impl Seat {
    pub fn take(ctx: &mut RunContext, point: &Point, need: &Need) -> Result<Self, PointError> {
        let placement = placement(point);
        if let (point::Nic::Mlx5, true, Some(what)) =
            (point.nic, hardware::is_nic_exec(), placement.first_on_gpu())
        {
            return Err(PointError::not_run(format!(
                "{what} in GPU memory: the software ConnectX is a program of the CPU's, and reaches none",
            )));
        }
        let gpu = match point.submitter {
            Submitter::Host => {
                if let Some(what) = placement.first_on_gpu() {
                    return Err(PointError::not_run(format!(
                        "{what} in GPU memory needs the cuda submitter"
                    )));
                }
                None
            }
            Submitter::Cuda => Some(ctx.gpu()?),
        };
        // A GPU's threads keep no CPU busy; who launched them waits, or steps what has no thread of its own.
        let engines = usize::from(point.nic == point::Nic::Soft);
        let submitters = if gpu.is_some() { 1 } else { need.submitters };
        let cpus = ctx.place(submitters, need.workers + need.ringers, engines);
        let attr = FabricAttr {
            nics: 2,
            engine: if need.virtual_time || cpus.engine == EngineMode::Stepped {
                Engine::Stepped
            } else {
                Engine::Thread { cpu: cpus.engines.first().copied() }
            },
            clock: if need.virtual_time { softnic::Clock::Virtual } else { softnic::Clock::Real },
            config: config(point, need.qps)?,
        };
        let (nic, virtual_time) = (point.nic, need.virtual_time);
        let far_gpu = None;
        Ok(Seat { placement, gpu, far_gpu, cpus, nic, virtual_time, attr })
    }

    /// The NICs of both sides in this process.
    pub fn nics(
        &self,
        ctx: &RunContext,
        point: &Point,
        need: &Need,
    ) -> Result<(Nics, Ends), PointError> {
        let far_gpu = self.far_gpu.as_ref();
        let both = |fabric: &Fabric| -> Ends {
            [Arc::clone(fabric.nic(0)) as Arc<dyn Nic>, Arc::clone(fabric.nic(1)) as Arc<dyn Nic>]
        };
        let gpu = self.gpu.as_ref();
        Ok(match point.nic {
            point::Nic::Soft => {
                let fabric = Fabric::open(&self.attr).map_err(broke)?;
                let ends = both(&fabric);
                (Nics::Soft(fabric), ends)
            }
            point::Nic::None => {
                let attr = FabricAttr { engine: Engine::Stepped, ..self.attr.clone() };
                let fabric = Fabric::open(&attr).map_err(broke)?;
                let ends = both(&fabric);
                (Nics::None(fabric), ends)
            }
            point::Nic::SoftGpu => inside(point, gpu, far_gpu, need)?,
            point::Nic::Mlx5 if need.virtual_time => {
                return Err(PointError::not_run(
                    "a timing profile is a software NIC's: a ConnectX takes its own time (--profile none)",
                ));
            }
            point::Nic::Mlx5 => {
                let options = ctx.nic_options();
                let (hardware, near) = devices::mlx5(options, gpu)?;
                // Unless it is said otherwise both ends are one port: its packets turn around in it.
                let far = match (&options.remote_device, far_gpu) {
                    (None, None) => Arc::clone(&near),
                    (_, far_gpu) => devices::mlx5(&options.remote(), far_gpu.or(gpu))?.1,
                };
                (Nics::Device(hardware), [near as _, far as _])
            }
            point::Nic::Verbs => devices::by_verbs(ctx, point, gpu, need)?,
        })
    }

    pub fn rig(
        self,
        nics: Nics,
        [near, far]: Ends,
        session: Option<Session>,
    ) -> Result<Rig, PointError> {
        let clock = match &self.gpu {
            Some(gpu) => gpu.clock().map_err(broke)?,
            None => Clock::host(),
        };
        let Self { placement, gpu, far_gpu, cpus, nic, virtual_time, .. } = self;
        let rates = RefCell::new(Vec::new());
        Ok(Rig {
            near,
            far,
            nics,
            gpu,
            far_gpu,
            nic,
            cpus,
            clock,
            placement,
            virtual_time,
            rates,
            session,
        })
    }
}

/// The profile that a point asks for.
fn profile(point: &Point) -> Result<Profile, PointError> {
    if point.transport == Transport::Direct {
        return Ok(Profile::NONE);
    }
    let name = point.word(AxisId::Profile)?;
    Profile::by_name(name)
        .ok_or_else(|| PointError::failed(format!("no timing profile is called {name}")))
}

/// A NIC with the point's profile and room for so many queue pairs.
fn config(point: &Point, qps: u32) -> Result<NicConfig, PointError> {
    let default = Caps::default();
    let room = |usual: u32| usual.max(qps + 16);
    let caps = Caps {
        max_qps: room(default.max_qps),
        max_cqs: room(default.max_cqs),
        max_uars: room(default.max_uars),
        ..default
    };
    Ok(NicConfig { profile: profile(point)?, caps, ..NicConfig::default() })
}

/// Where a point has its memory: what its axes say, and otherwise what suits its NIC.
fn placement(point: &Point) -> Placement {
    let word = |axis| point.get(axis).and_then(|value| value.word());
    let kind = |axis, otherwise| match word(axis) {
        Some("gpu") => MemoryKind::Gpu,
        Some("host") => MemoryKind::Host,
        _ => otherwise,
    };
    // A NIC inside the GPU has all in its memory. A CPU engine follows host memory, and GPU memory only by copies.
    // Where nothing executes, the doorbell goes over the bus, as a real NIC's does. The software NIC behind a real
    // driver is a CPU engine.
    let by_gpu = point.submitter == Submitter::Cuda;
    let (queues, doorbell, payload) = match point.nic {
        point::Nic::SoftGpu => (MemoryKind::Gpu, MemoryKind::Gpu, MemoryKind::Gpu),
        point::Nic::Mlx5 if by_gpu && !hardware::is_nic_exec() => {
            (MemoryKind::Gpu, MemoryKind::Host, MemoryKind::Gpu)
        }
        _ if by_gpu && point.transport == Transport::Direct => {
            (MemoryKind::Gpu, MemoryKind::Gpu, MemoryKind::Gpu)
        }
        point::Nic::None if by_gpu => (MemoryKind::Gpu, MemoryKind::Host, MemoryKind::Host),
        _ => (MemoryKind::Host, MemoryKind::Host, MemoryKind::Host),
    };
    let queues = kind(AxisId::Queues, queues);
    Placement {
        queue: kind(AxisId::Sq, queues),
        record: kind(AxisId::Record, queues),
        cq: kind(AxisId::CqMemory, queues),
        doorbell: kind(AxisId::DoorbellMemory, doorbell),
        payload: kind(AxisId::PayloadMemory, payload),
    }
}

/// NICs inside the GPU, or inside two.
fn inside(
    point: &Point,
    gpu: Option<&Arc<Gpu>>,
    far_gpu: Option<&Arc<Gpu>>,
    need: &Need,
) -> Result<(Nics, Ends), PointError> {
    let Some(gpu) = gpu else {
        return Err(PointError::not_run("NIC soft-gpu serves GPU threads: use --submitter cuda"));
    };
    if need.workers > 0 {
        return Err(PointError::not_run(
            "NIC soft-gpu executes what GPU threads post; a proxy's workers post from the CPU: use --nic soft",
        ));
    }
    if profile(point)?.name != "none" {
        return Err(PointError::not_run(
            "NIC soft-gpu runs as fast as it can and has no timing profiles: use --profile none",
        ));
    }
    let warps = need.qps.max(1);
    let on = match far_gpu {
        Some(far) => soft_gpu::EngineOn::Gpus([Arc::clone(gpu), Arc::clone(far)], warps),
        None => soft_gpu::EngineOn::Gpu(Arc::clone(gpu), warps),
    };
    let fabric = soft_gpu::Fabric::open(on).map_err(broke)?;
    let nics = [Arc::clone(fabric.nic(0)) as Arc<dyn Nic>, Arc::clone(fabric.nic(1)) as _];
    Ok((Nics::SoftGpu(fabric), nics))
}
