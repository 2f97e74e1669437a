//! What every bench stands on: two linked NICs, who submits, where memory is, and the launch of a kernel.
//!
//! A bench knows its transport and its checks. Whether CPU or GPU threads run the device code, and which NIC executes,
//! is decided here and nowhere else.

mod finish;

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::{Duration, Instant};

use device::choice::{Choice, Order};
use device::clock::Clock;
use device::cuda::{CudaError, Gpu, Launched, Place, Prepared};
use device::host::{self, Kernel, LaunchError, Relax};
use device::like::{Like, LikeArgs};
use device::proxy::{ProxyChoice, ProxyKernel};
use device::shared::Shared;
use rdma::soft::{Engine, Fabric, FabricAttr};
use rdma::{Access, Nic, Places, Region, soft_gpu};
use softnic::{Caps, NicConfig, Profile};

use super::across::{self, Session};
use super::devices;
use crate::axes::AxisId;
use crate::context::RunContext;
use crate::cpus::{Assignment, EngineMode};
use crate::gpu;
use crate::hardware::{self, Hardware};
use crate::measurement::{MemoryKind, Placement};
use crate::point::{self, Point, PointError, Submitter};

/// What a bench needs of its rig.
pub(super) struct Need {
    /// Queue pairs on a NIC.
    pub qps: u32,
    /// Threads of the host submitter.
    pub submitters: usize,
    /// Worker threads, which post.
    pub workers: usize,
    /// CPU threads that ring doorbells for GPU threads.
    pub ringers: usize,
    /// The NIC's time is computed, not waited for.
    pub virtual_time: bool,
}

pub(super) struct Rig {
    pub near: Arc<dyn Nic>,
    pub far: Arc<dyn Nic>,
    nics: Nics,
    gpu: Option<Arc<Gpu>>,
    nic: point::Nic,
    pub cpus: Assignment,
    pub clock: Clock,
    pub placement: Placement,
    virtual_time: bool,
    /// Rates of the clock, one a launch on a GPU, in ticks a microsecond.
    rates: RefCell<Vec<f64>>,
    /// The remote side, where it is another rank's.
    session: Option<Session>,
}

/// The near NIC and the far one.
pub(super) type Ends = [Arc<dyn Nic>; 2];

/// Who executes WQEs.
pub(super) enum Nics {
    Soft(Fabric),
    SoftGpu(soft_gpu::Fabric),
    /// A device of this machine.
    Device(Hardware),
    /// Nobody: the queues are a software NIC's that never runs.
    None(#[allow(dead_code, reason = "kept for its queues")] Fabric),
}

pub(super) fn broke(error: impl std::error::Error + 'static) -> PointError {
    PointError::from_error(&error)
}

/// The profile that a point asks for.
fn profile(point: &Point) -> Result<Profile, PointError> {
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

/// The ordering that a point asks for, if its submitter can do it.
pub(super) fn order(point: &Point) -> Result<Order, PointError> {
    let order: Order = point.word(AxisId::Order)?.parse().map_err(broke)?;
    if order == Order::AsyncMmio {
        let arch = match point.submitter {
            Submitter::Host => None,
            Submitter::Cuda => Some(gpu::open().map_err(PointError::not_run)?.info().arch),
        };
        if arch.is_none_or(|arch| arch.0 < 100) {
            let who = arch.map_or_else(|| "the host submitter".to_owned(), |arch| arch.name());
            return Err(PointError::not_run(format!(
                "order async-mmio is an instruction of sm_100 and newer GPUs: {who} has none like it",
            )));
        }
    }
    Ok(order)
}

/// What a rig has before it has NICs.
struct Seat {
    placement: Placement,
    gpu: Option<Arc<Gpu>>,
    cpus: Assignment,
    nic: point::Nic,
    virtual_time: bool,
    /// Of software NICs.
    attr: FabricAttr,
}

impl Seat {
    fn take(ctx: &mut RunContext, point: &Point, need: &Need) -> Result<Self, PointError> {
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
            Submitter::Cuda => Some(gpu::open().map_err(PointError::not_run)?),
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
        Ok(Seat { placement, gpu, cpus, nic, virtual_time, attr })
    }

    fn rig(
        self,
        nics: Nics,
        [near, far]: Ends,
        session: Option<Session>,
    ) -> Result<Rig, PointError> {
        let clock = match &self.gpu {
            Some(gpu) => gpu.clock().map_err(broke)?,
            None => Clock::host(),
        };
        let Self { placement, gpu, cpus, nic, virtual_time, .. } = self;
        let rates = RefCell::new(Vec::new());
        Ok(Rig { near, far, nics, gpu, nic, cpus, clock, placement, virtual_time, rates, session })
    }
}

impl Rig {
    pub fn open(ctx: &mut RunContext, point: &Point, need: &Need) -> Result<Self, PointError> {
        let seat = Seat::take(ctx, point, need)?;
        // Where nobody executes there is no remote side.
        if let (Some(team), true) = (ctx.team(), point.nic != point::Nic::None) {
            let ((nics, ends), session) =
                across::near(ctx, point, need, team, (&seat.attr, seat.gpu.as_ref()))?;
            return seat.rig(nics, ends, Some(session));
        }
        let both = |fabric: &Fabric| -> Ends {
            [Arc::clone(fabric.nic(0)) as Arc<dyn Nic>, Arc::clone(fabric.nic(1)) as Arc<dyn Nic>]
        };
        let (nics, ends) = match point.nic {
            point::Nic::Soft => {
                let fabric = Fabric::open(&seat.attr).map_err(broke)?;
                let ends = both(&fabric);
                (Nics::Soft(fabric), ends)
            }
            point::Nic::None => {
                let attr = FabricAttr { engine: Engine::Stepped, ..seat.attr.clone() };
                let fabric = Fabric::open(&attr).map_err(broke)?;
                let ends = both(&fabric);
                (Nics::None(fabric), ends)
            }
            point::Nic::SoftGpu => inside(point, seat.gpu.as_ref(), need)?,
            point::Nic::Mlx5 if need.virtual_time => {
                return Err(PointError::not_run(
                    "a timing profile is a software NIC's: a ConnectX takes its own time (--profile none)",
                ));
            }
            point::Nic::Mlx5 => {
                let options = ctx.nic_options();
                let (hardware, near) = devices::mlx5(options, seat.gpu.as_ref())?;
                // Unless it is said otherwise both ends are one port: its packets turn around in it.
                let far = match options.remote_device {
                    Some(_) => devices::mlx5(&options.remote(), seat.gpu.as_ref())?.1,
                    None => Arc::clone(&near),
                };
                (Nics::Device(hardware), [near as _, far as _])
            }
            point::Nic::Verbs => devices::by_verbs(ctx, point, seat.gpu.as_ref(), need)?,
        };
        seat.rig(nics, ends, None)
    }

    /// The remote side's, in its own rank: near is what `nics` opens there, and far is rank 0's.
    pub fn open_far(
        ctx: &mut RunContext,
        point: &Point,
        need: &Need,
        nics: impl FnOnce(&FabricAttr, Option<&Arc<Gpu>>) -> Result<(Nics, Ends), PointError>,
    ) -> Result<Self, PointError> {
        let seat = Seat::take(ctx, point, need)?;
        let (nics, ends) = nics(&seat.attr, seat.gpu.as_ref())?;
        seat.rig(nics, ends, None)
    }

    /// The remote side, where it is another rank's.
    pub fn session(&self) -> Option<&Session> {
        self.session.as_ref()
    }

    /// Memory of a kind as this submitter needs it.
    pub fn place(&self, kind: MemoryKind) -> Place {
        match (&self.gpu, kind) {
            (None, _) => Place::Host,
            (Some(gpu), MemoryKind::Host) => Place::Pinned(Arc::clone(gpu)),
            (Some(gpu), MemoryKind::Gpu) => Place::Gpu(Arc::clone(gpu)),
        }
    }

    /// Where the near side's queues are made.
    pub fn queues(&self) -> Places {
        Places {
            sq: self.place(self.placement.queue),
            record: self.place(self.placement.record),
            cq: self.place(self.placement.cq),
            doorbell: self.place(self.placement.doorbell),
        }
    }

    /// Where the far side's are made, which nobody posts to: where its NIC reaches them best.
    pub fn peers(&self) -> Places {
        let kind = match self.nics {
            Nics::SoftGpu(_) => MemoryKind::Gpu,
            _ => MemoryKind::Host,
        };
        Places::all(&self.place(kind))
    }

    /// The submitter's own memory: what its threads keep, and their samples.
    pub fn own(&self) -> Place {
        self.place(MemoryKind::Gpu)
    }

    /// `bytes` of payload memory, registered at `nic`.
    pub fn region(&self, nic: &Arc<dyn Nic>, bytes: usize) -> Result<Region, PointError> {
        self.region_in(nic, bytes, self.placement.payload)
    }

    /// The same in memory of a kind.
    pub fn region_in(
        &self,
        nic: &Arc<dyn Nic>,
        bytes: usize,
        kind: MemoryKind,
    ) -> Result<Region, PointError> {
        nic.allocate(&self.place(kind), bytes, Access::all()).map_err(broke)
    }

    /// Words that a kernel writes: samples, failures.
    pub fn words(&self, count: usize) -> Result<Shared<u64>, PointError> {
        Shared::at(&self.own(), &vec![0u64; count]).map_err(broke)
    }

    /// The GPU whose threads submit.
    pub fn gpu(&self) -> Option<&Arc<Gpu>> {
        self.gpu.as_ref()
    }

    /// Whether GPU threads submit.
    pub fn on_gpu(&self) -> bool {
        self.gpu.is_some()
    }

    /// That somebody completes what is posted.
    ///
    /// # Errors
    /// Nobody does.
    pub fn completes(&self) -> Result<(), PointError> {
        if self.nobody_executes() {
            return Err(PointError::not_run(
                "with NIC none nothing completes: `batching` of mini-gda measures the submit side alone",
            ));
        }
        Ok(())
    }

    /// Whether nobody executes what is posted.
    pub fn nobody_executes(&self) -> bool {
        matches!(self.nics, Nics::None(_))
    }

    /// The time of a NIC whose time is computed, in nanoseconds.
    pub fn virtual_now(&self) -> u64 {
        match &self.nics {
            Nics::Soft(fabric) | Nics::None(fabric) => fabric.engine().now(),
            Nics::SoftGpu(_) | Nics::Device(_) => 0,
        }
    }

    pub fn has_virtual_time(&self) -> bool {
        self.virtual_time
    }

    /// From the first thread's start to the last one's end, by the clock that all threads of a launch share.
    pub fn span(&self, start: &Shared<u64>, end: &Shared<u64>) -> Result<Duration, PointError> {
        let first = start.read().map_err(broke)?.into_iter().min().unwrap_or(0);
        let last = end.read().map_err(broke)?.into_iter().max().unwrap_or(0);
        // The GPU's timer counts nanoseconds.
        let ticks_per_us = if self.on_gpu() { 1e3 } else { self.clock.ticks_per_us };
        Ok(Duration::from_secs_f64(last.saturating_sub(first) as f64 / ticks_per_us / 1e6))
    }

    /// Runs mini-gda's kernel to its end, and gives its clock's frequency in Hz. `failures` are the words that it
    /// leaves, and `check` makes errors of them.
    pub fn launch(
        &self,
        ctx: &RunContext,
        choice: &Choice,
        kernel: Kernel<'_>,
        relax: &dyn Relax,
        failures: &Shared<u64>,
        check: &dyn Fn(u64) -> Result<(), PointError>,
    ) -> Result<f64, PointError> {
        let Some(gpu) = &self.gpu else {
            // SAFETY: the callers' views, regions and buffers outlive the call and have the sizes that are said.
            unsafe { host::launch(choice, kernel, &self.cpus.submitters, self.relax(relax)) }
                .map_err(launch_error)?;
            self.checked(failures, check)?;
            return Ok(self.clock.ticks_per_us * 1e6);
        };
        let prepared = Prepared::new(gpu, kernel.kind(), choice).map_err(broke)?;
        self.on_the_gpu(ctx, failures, check, |until, give_up| {
            // SAFETY: as above; all of it is memory that the GPU reaches.
            unsafe { prepared.run(kernel, self.relax(relax), until, give_up) }
        })
    }

    /// The same for a kernel of the proxied path.
    pub fn launch_proxy(
        &self,
        ctx: &RunContext,
        choice: &ProxyChoice,
        kernel: ProxyKernel<'_>,
        relax: &dyn Relax,
        failures: &Shared<u64>,
        check: &dyn Fn(u64) -> Result<(), PointError>,
    ) -> Result<f64, PointError> {
        let Some(gpu) = &self.gpu else {
            let cpus = &self.cpus.submitters;
            // SAFETY: the callers' views, regions and buffers outlive the call and have the sizes that are said.
            unsafe { device::proxy::launch(choice, kernel, cpus, self.relax(relax)) }
                .map_err(launch_error)?;
            self.checked(failures, check)?;
            return Ok(self.clock.ticks_per_us * 1e6);
        };
        let prepared = Prepared::proxy(gpu, kernel.kind(), choice).map_err(broke)?;
        self.on_the_gpu(ctx, failures, check, |until, give_up| {
            // SAFETY: as above; all of it is memory that the GPU reaches.
            unsafe { prepared.run_proxy(kernel, self.relax(relax), until, give_up) }
        })
    }

    /// The same for the kernel that puts as a library does; `prepared` where a GPU runs it.
    pub fn launch_like(
        &self,
        ctx: &RunContext,
        (like, prepared): (Like, Option<&Prepared>),
        args: &LikeArgs,
        relax: &dyn Relax,
        (failures, check): (&Shared<u64>, &dyn Fn(u64) -> Result<(), PointError>),
    ) -> Result<f64, PointError> {
        let Some(prepared) = prepared else {
            let cpus = &self.cpus.submitters;
            // SAFETY: the callers' queues, regions and buffers outlive the call and have the sizes that are said.
            unsafe { host::launch_like(like, args, cpus, self.relax(relax)) }
                .map_err(launch_error)?;
            self.checked(failures, check)?;
            return Ok(self.clock.ticks_per_us * 1e6);
        };
        self.on_the_gpu(ctx, failures, check, |until, give_up| {
            // SAFETY: as above; all of it is memory that the GPU reaches.
            unsafe { prepared.run_like(args, self.relax(relax), until, give_up) }
        })
    }

    /// What waiting threads do; nothing where nobody executes.
    fn relax<'a>(&self, relax: &'a dyn Relax) -> Option<&'a dyn Relax> {
        (!self.nobody_executes()).then_some(relax)
    }

    /// Runs a kernel beside the NIC that is inside the GPU, if there is one.
    pub fn on_the_gpu(
        &self,
        ctx: &RunContext,
        failures: &Shared<u64>,
        check: &dyn Fn(u64) -> Result<(), PointError>,
        run: impl FnOnce(Instant, &dyn Fn() -> bool) -> Result<Launched, CudaError>,
    ) -> Result<f64, PointError> {
        let inside = match &self.nics {
            Nics::SoftGpu(fabric) => Some(fabric.start().map_err(broke)?),
            _ => None,
        };
        let patience = Cell::new(None);
        let give_up = || {
            let asked = ctx.interrupt().is_set();
            asked
                && patience.replace(patience.get().or(Some(Instant::now()))).is_some_and(
                    // A launch that is going on well ends by itself.
                    |since: Instant| since.elapsed() > Duration::from_millis(200),
                )
        };
        let ended = run(ctx.deadline() + LATE, &give_up);
        let stopped = inside.map_or(Ok(()), |inside| inside.stop());
        match ended {
            Ok(launched) => {
                // What the threads met says more than that the NIC had ended.
                self.checked(failures, check)?;
                stopped.map_err(broke)?;
                self.rates.borrow_mut().push(launched.ticks_per_us);
                Ok(launched.ticks_per_us * 1e6)
            }
            // The wait that it was told to give up says what it waited for.
            Err(late @ CudaError::Late { .. }) => {
                self.checked(failures, check)?;
                stopped.map_err(broke)?;
                Err(broke(late))
            }
            Err(error) => Err(broke(error)),
        }
    }

    fn checked(
        &self,
        failures: &Shared<u64>,
        check: &dyn Fn(u64) -> Result<(), PointError>,
    ) -> Result<(), PointError> {
        failures.read().map_err(broke)?.into_iter().try_for_each(check)
    }
}

/// What a launch may take beyond the point's own deadline: its waits end by it.
const LATE: Duration = Duration::from_secs(1);

/// NICs inside the GPU.
fn inside(point: &Point, gpu: Option<&Arc<Gpu>>, need: &Need) -> Result<(Nics, Ends), PointError> {
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
    let on = soft_gpu::EngineOn::Gpu(Arc::clone(gpu), need.qps.max(1));
    let fabric = soft_gpu::Fabric::open(on).map_err(broke)?;
    let nics = [Arc::clone(fabric.nic(0)) as Arc<dyn Nic>, Arc::clone(fabric.nic(1)) as _];
    Ok((Nics::SoftGpu(fabric), nics))
}

/// The first 8 bytes of a region.
pub(super) fn word(region: &Region) -> Result<u64, PointError> {
    let mut bytes = [0; 8];
    region.memory.read(0, &mut bytes).map_err(broke)?;
    Ok(u64::from_le_bytes(bytes))
}

fn launch_error(error: LaunchError) -> PointError {
    match error {
        LaunchError::NotBuilt { .. } | LaunchError::ProxyNotBuilt { .. } => {
            PointError::not_run(error.to_string())
        }
        other => broke(other),
    }
}
