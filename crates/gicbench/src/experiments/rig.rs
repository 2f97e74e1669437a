//! What every bench stands on: two linked NICs, who submits, where memory is, and the launch of a kernel.
//!
//! A bench knows its transport and its checks. Whether CPU or GPU threads run the device code, and which NIC executes,
//! is decided here and nowhere else.

mod finish;
mod seat;

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::{Duration, Instant};

use device::choice::{Choice, Order};
use device::clock::Clock;
use device::cuda::{CudaError, Gpu, Launched, Place, Prepared};
use device::direct::{self, DirectKernel, DirectKind};
use device::host::{self, Kernel, LaunchError, Relax};
use device::like::{Like, LikeArgs};
use device::proxy::{ProxyChoice, ProxyKernel};
use device::shared::Shared;
use device::source::{KernelKind, ProxyKernelKind};
use rdma::soft::{Fabric, FabricAttr};
use rdma::{Access, Nic, Places, Region, soft_gpu};

use super::across::{self, Session};
use crate::axes::AxisId;
use crate::context::{Remote, RunContext};
use crate::cpus::Assignment;
use crate::gpu;
use crate::hardware::Hardware;
use crate::measurement::{MemoryKind, Placement};
use crate::point::{self, Point, PointError, Submitter, Transport};
use seat::Seat;

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
    /// The remote side's, where it has one of its own in this process.
    far_gpu: Option<Arc<Gpu>>,
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
    /// The near side's rig has them.
    Theirs,
    /// Nobody: the queues are a software NIC's that never runs.
    None(#[allow(dead_code, reason = "kept for its queues")] Fabric),
}

pub(super) fn broke(error: impl std::error::Error + 'static) -> PointError {
    PointError::from_error(&error)
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

impl Rig {
    pub fn open(ctx: &mut RunContext, point: &Point, need: &Need) -> Result<Self, PointError> {
        let mut seat = Seat::take(ctx, point, need)?;
        // Where nobody executes there is no remote side.
        if let (Some(team), true) = (ctx.team(), point.nic != point::Nic::None) {
            if ctx.remote() != Remote::Together {
                return Err(PointError::not_run(
                    "--remote-gpu is for one process: the ranks of a machine take a GPU each",
                ));
            }
            let ((nics, ends), session) =
                across::near(ctx, point, need, team, (&seat.attr, seat.gpu.as_ref()))?;
            return seat.rig(nics, ends, Some(session));
        }
        let Remote::Apart(number) = ctx.remote() else {
            let (nics, ends) = seat.nics(ctx, point, need)?;
            return seat.rig(nics, ends, None);
        };
        if point.nic == point::Nic::None && point.transport != Transport::Direct {
            return Err(PointError::not_run(
                "with NIC none there is no remote side: run it without --remote-gpu",
            ));
        }
        seat.far_gpu = match (point.submitter, number) {
            (Submitter::Cuda, Some(number)) => {
                let opened = gpu::nth(number);
                Some(opened.map_err(|error| {
                    PointError::not_run(format!("--remote-gpu {number}: {error}"))
                })?)
            }
            (Submitter::Host, Some(_)) => {
                return Err(PointError::not_run(
                    "--remote-gpu is for GPU threads: use --submitter cuda",
                ));
            }
            (_, None) => None,
        };
        let (nics, ends) = match (&seat.gpu, &seat.far_gpu) {
            // Its threads store there themselves, or words that they write are the near side's.
            (Some(gpu), Some(far))
                if point.transport == Transport::Direct || point.transport.is_peer() =>
            {
                let reached = gpu.reach_peer(far).and_then(|()| far.reach_peer(gpu));
                reached.map_err(|error| PointError::not_run(error.to_string()))?;
                seat.nics(ctx, point, need)?
            }
            _ => seat.nics(ctx, point, need)?,
        };
        // A library's sides are kernels of their own already.
        if point.transport.is_peer() {
            return seat.rig(nics, ends, None);
        }
        let gpus = (seat.gpu.as_ref(), seat.far_gpu.as_ref());
        let (ends, session) = across::beside(ctx, point, need, (&nics, ends), gpus)?;
        seat.rig(nics, ends, Some(session))
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

    /// Loads a kernel ahead: where NICs inside GPUs run, nothing can be loaded.
    pub fn load(&self, kind: KernelKind, choice: &Choice) -> Result<(), PointError> {
        let Some(gpu) = &self.gpu else { return Ok(()) };
        Prepared::new(gpu, kind, choice).map(drop).map_err(broke)
    }

    /// The same for one of the proxied path.
    pub fn load_proxy(
        &self,
        kind: ProxyKernelKind,
        choice: &ProxyChoice,
    ) -> Result<(), PointError> {
        let Some(gpu) = &self.gpu else { return Ok(()) };
        Prepared::proxy(gpu, kind, choice).map(drop).map_err(broke)
    }

    /// The same for one that needs no NIC.
    pub fn load_direct(&self, kind: DirectKind) -> Result<(), PointError> {
        let Some(gpu) = &self.gpu else { return Ok(()) };
        direct::prepare(gpu, kind).map(drop).map_err(broke)
    }

    /// Memory of a kind as this submitter needs it.
    pub fn place(&self, kind: MemoryKind) -> Place {
        place(self.gpu.as_ref(), kind)
    }

    /// The same for a side's threads: 0 is near, 1 far.
    pub fn place_on(&self, side: usize, kind: MemoryKind) -> Place {
        place(self.gpu_of(side), kind)
    }

    /// The GPU of a side's threads.
    pub fn gpu_of(&self, side: usize) -> Option<&Arc<Gpu>> {
        match side {
            0 => self.gpu.as_ref(),
            _ => self.far_gpu.as_ref().or(self.gpu.as_ref()),
        }
    }

    /// Where the near side's queues are made.
    pub fn queues(&self) -> Places {
        self.queues_on(0)
    }

    /// Where those of a side's threads are.
    pub fn queues_on(&self, side: usize) -> Places {
        Places {
            sq: self.place_on(side, self.placement.queue),
            record: self.place_on(side, self.placement.record),
            cq: self.place_on(side, self.placement.cq),
            doorbell: self.place_on(side, self.placement.doorbell),
        }
    }

    /// Where the far side's are made, which nobody posts to: where its NIC reaches them best.
    pub fn peers(&self) -> Places {
        let kind = match self.nic {
            point::Nic::SoftGpu => MemoryKind::Gpu,
            _ => MemoryKind::Host,
        };
        Places::all(&self.place_on(1, kind))
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
        let side = usize::from(Arc::ptr_eq(nic, &self.far) && !Arc::ptr_eq(nic, &self.near));
        nic.allocate(&self.place_on(side, kind), bytes, Access::all()).map_err(broke)
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
            Nics::SoftGpu(_) | Nics::Device(_) | Nics::Theirs => 0,
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

    /// The same for a kernel that needs no NIC.
    pub fn launch_direct(
        &self,
        ctx: &RunContext,
        kernel: DirectKernel<'_>,
        failures: &Shared<u64>,
        check: &dyn Fn(u64) -> Result<(), PointError>,
    ) -> Result<f64, PointError> {
        let Some(gpu) = &self.gpu else {
            // SAFETY: the callers' regions and buffers outlive the call and have the sizes that are said.
            unsafe { direct::launch(kernel, &self.cpus.submitters, None) }.map_err(launch_error)?;
            self.checked(failures, check)?;
            return Ok(self.clock.ticks_per_us * 1e6);
        };
        let prepared = direct::prepare(gpu, kernel.kind()).map_err(broke)?;
        self.on_the_gpu(ctx, failures, check, |until, give_up| {
            // SAFETY: as above; all of it is memory that the GPU reaches.
            unsafe { direct::run(&prepared, kernel, None, until, give_up) }
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
            // Both sides' kernels run: who has them answered runs the engines, too.
            Nics::SoftGpu(fabric) if !fabric.runs() => Some(fabric.start().map_err(broke)?),
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

fn place(gpu: Option<&Arc<Gpu>>, kind: MemoryKind) -> Place {
    match (gpu, kind) {
        (None, _) => Place::Host,
        (Some(gpu), MemoryKind::Host) => Place::Pinned(Arc::clone(gpu)),
        (Some(gpu), MemoryKind::Gpu) => Place::Gpu(Arc::clone(gpu)),
    }
}

/// What a launch may take beyond the point's own deadline: its waits end by it.
const LATE: Duration = Duration::from_secs(1);

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
