//! The software ConnectX's data path as device code: a fabric of two linked NICs, run by a GPU or by this process.
//!
//! One engine serves both NICs (addresses 1 and 2) out of tables that lie where it runs, or each has one on a GPU of its
//! own, linked by NVLink or PCIe. On a GPU an engine is a persistent kernel that runs between [`Fabric::start`] and the end
//! of what that gives, and goes on later where it was; in this process it is the same source, stepped by whoever waits or
//! by a thread, and always runs. While a GPU's engine runs the tables stay as they are: objects are made before, and those
//! dropped are destroyed after.

mod slots;
mod tables;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use device::cuda::{self, Gpu, Persistent, Place};
use device::nic::{BLOCK, Scope, host_step};
use device::source::nic_unit;
use softnic::Clock;
use wire::cqe::Syndrome;

use crate::soft::Engine;
use crate::{
    Access, Address, Areas, ConnectAttr, DcTarget, Destination, Error, Memory, Nic, QueuePair,
    QueuePairAttr, Region, memory,
};
use tables::{Object, Tables};

/// Who runs the engine.
#[derive(Clone, Debug)]
pub enum EngineOn {
    /// This process, by the host build.
    Host {
        /// A thread, or whoever waits.
        driver: Engine,
        /// Where time comes from.
        clock: Clock,
        /// Each NIC has an engine of its own, as between two GPUs.
        apart: bool,
    },
    /// A GPU, with so many warps: each serves its share of the queue pairs.
    Gpu(Arc<Gpu>, u32),
    /// Two GPUs that reach each other's memory: the first one's engine serves NIC 1, the second one's NIC 2. With so many
    /// warps each.
    Gpus([Arc<Gpu>; 2], u32),
}

impl EngineOn {
    /// The GPUs that engines run on.
    fn gpus(&self) -> &[Arc<Gpu>] {
        match self {
            Self::Host { .. } => &[],
            Self::Gpu(gpu, _) => std::slice::from_ref(gpu),
            Self::Gpus(gpus, _) => gpus,
        }
    }
}

impl Default for EngineOn {
    fn default() -> Self {
        Self::Host { driver: Engine::Stepped, clock: Clock::Real, apart: false }
    }
}

/// Warps of the host build: one after another in one thread.
const HOST_WARPS: u32 = 2;
/// WQEs of a warp's visit in this process.
const BUDGET: u32 = 256;
/// How long an engine may take to end when it is told to.
const GRACE: Duration = Duration::from_secs(5);

struct Shared {
    on: EngineOn,
    tables: Mutex<Tables>,
    /// Who wants to change the tables while a thread steps: it lets them.
    waiting: AtomicU32,
    stop: AtomicBool,
    began: Instant,
    virtual_now: AtomicU64,
    /// The engines' kernels while they run.
    kernels: Mutex<Vec<cuda::Running>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        let tables = lock(&self.tables);
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        tables
    }

    /// The tables, if they may be changed now.
    fn changing(&self) -> Result<MutexGuard<'_, Tables>, Error> {
        let tables = self.tables();
        if tables.runs { Err(Error::EngineRuns) } else { Ok(tables) }
    }

    /// One visit of each warp, in this process. True if anything was done.
    fn round(&self, tables: &mut Tables) -> bool {
        let EngineOn::Host { clock, .. } = self.on else { return false };
        let now = match clock {
            Clock::Real => self.began.elapsed().as_nanos() as u64,
            Clock::Virtual => self.virtual_now.load(Ordering::Acquire),
        };
        tables.now.word(0).store(now, Ordering::Relaxed);
        let mut done = 0u32;
        for engine in &tables.engines {
            for warp in 0..engine.header.warps {
                // SAFETY: the tables and everything that they name are mapped into this process (`reached`) and kept
                // alive by them; the lock is held, so that nobody else is in the warp.
                done = done.saturating_add(unsafe { host_step(&engine.header, warp, BUDGET) });
            }
        }
        if done == 0
            && clock == Clock::Virtual
            && let Some(next) = tables.next_event()
            && next > now
        {
            self.virtual_now.store(next, Ordering::Release);
            return true;
        }
        done > 0
    }

    fn run(&self, cpu: Option<usize>) {
        if let Some(cpu) = cpu {
            device::host::pin(cpu);
        }
        let mut idle = 0u32;
        while !self.stop.load(Ordering::Relaxed) {
            if self.waiting.load(Ordering::Acquire) > 0 {
                std::thread::yield_now();
                continue;
            }
            let mut tables = lock(&self.tables);
            for _ in 0..64 {
                if self.round(&mut tables) {
                    idle = 0;
                } else {
                    idle = idle.saturating_add(1);
                    std::hint::spin_loop();
                }
                if self.waiting.load(Ordering::Relaxed) > 0 {
                    break;
                }
            }
            drop(tables);
            if idle > 2000 {
                std::thread::yield_now();
            }
        }
    }

    /// Whether every engine can follow an address of this memory: either places payload and entries on both sides.
    fn reached(&self, what: &'static str, memory: &Memory) -> Result<(), Error> {
        let address = memory.as_ptr() as u64;
        let reached = match self.on.gpus() {
            [] => memory.is_mapped(),
            gpus => memory.is_empty() || gpus.iter().all(|gpu| gpu.reaches(address)),
        };
        if reached { Ok(()) } else { Err(Error::Unreachable { what }) }
    }

    fn areas_reached(&self, areas: &Areas) -> Result<(), Error> {
        for (what, area) in [
            ("send queue", &areas.sq),
            ("completion queue", &areas.cq),
            ("doorbell record", &areas.record),
        ] {
            let reached = match self.on.gpus() {
                [] => area.is_mapped(),
                gpus => gpus.iter().all(|gpu| gpu.reaches(area.ptr() as u64)),
            };
            if !reached {
                return Err(Error::Unreachable { what });
            }
        }
        Ok(())
    }
}

/// Ends the thread of an engine with the last of those who use it.
struct Core {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Core {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Two linked NICs, under one engine or one each. Clones are the same.
#[derive(Clone)]
pub struct Fabric {
    core: Arc<Core>,
    nics: [Arc<SoftGpuNic>; 2],
}

impl Fabric {
    /// Opens the NICs. An engine in this process runs from now on, one on a GPU from [`start`](Self::start) on.
    ///
    /// # Errors
    /// No memory for the tables, no thread, or two GPUs that don't reach each other's memory.
    pub fn open(on: EngineOn) -> Result<Self, Error> {
        if let EngineOn::Gpus([first, second], _) = &on {
            first.reach_peer(second)?;
            second.reach_peer(first)?;
        }
        let places: Vec<_> = on.gpus().iter().map(|gpu| Place::Gpu(Arc::clone(gpu))).collect();
        let tables = match &on {
            EngineOn::Host { apart, .. } => {
                let places = vec![Place::Host; if *apart { 2 } else { 1 }];
                Tables::new(&places, &Place::Host, HOST_WARPS)?
            }
            EngineOn::Gpu(gpu, warps) | EngineOn::Gpus([gpu, _], warps) => {
                // A warp is a block: with fewer of them each serves more queue pairs, and the submitter finds room.
                let most = 2 * gpu.info().multiprocessors.max(1);
                let host = Place::Pinned(Arc::clone(gpu));
                Tables::new(&places, &host, (*warps).clamp(1, most))?
            }
        };
        for gpu in on.gpus() {
            // Compiled and loaded here: loading waits for the device.
            for scope in [Scope::Gpu, Scope::System] {
                gpu.program(&nic_unit(scope), size_of::<device::nic::Tables>())?;
            }
        }
        let shared = Arc::new(Shared {
            on,
            tables: Mutex::new(tables),
            waiting: AtomicU32::new(0),
            stop: AtomicBool::new(false),
            began: Instant::now(),
            virtual_now: AtomicU64::new(0),
            kernels: Mutex::default(),
        });
        let mut thread = None;
        if let EngineOn::Host { driver: Engine::Thread { cpu }, .. } = shared.on {
            let engine = Arc::clone(&shared);
            let spawned = std::thread::Builder::new()
                .name("soft-gpu".to_owned())
                .spawn(move || engine.run(cpu))
                .map_err(|error| softnic::EngineGone::Spawn { message: error.to_string() })?;
            thread = Some(spawned);
        }
        let core = Arc::new(Core { shared, thread });
        let nics = [0, 1].map(|index| Arc::new(SoftGpuNic { core: Arc::clone(&core), index }));
        Ok(Self { core, nics })
    }

    /// NIC `index`, 0 or 1.
    ///
    /// # Panics
    /// If there is no such.
    #[must_use]
    pub fn nic(&self, index: usize) -> &Arc<SoftGpuNic> {
        &self.nics[index]
    }

    /// Whether GPUs' engines run.
    #[must_use]
    pub fn runs(&self) -> bool {
        self.core.shared.tables().runs
    }

    /// Starts the GPUs' engines: until what this gives is stopped or dropped, no object can be made. Nothing to do
    /// for an engine in this process.
    ///
    /// # Errors
    /// It runs already, or the driver refuses.
    pub fn start(&self) -> Result<Running, Error> {
        let shared = &self.core.shared;
        let gpus = shared.on.gpus();
        if gpus.is_empty() {
            return Ok(Running { parts: None });
        }
        let mut tables = shared.changing()?;
        let scope = if tables.is_all_on_gpu() { Scope::Gpu } else { Scope::System };
        let unit = nic_unit(scope);
        let program = |gpu: &Arc<Gpu>| gpu.program(&unit, size_of::<device::nic::Tables>());
        let programs = gpus.iter().map(program).collect::<Result<Vec<_>, _>>()?;
        tables.arm();
        let persistent = gpus.iter().map(Gpu::persist).collect();
        for ((gpu, program), engine) in gpus.iter().zip(programs).zip(&tables.engines) {
            // SAFETY: the tables and everything that they name are reached by the GPU (`reached`), and are kept alive by
            // the tables: what is dropped meanwhile goes when the engine has stopped.
            let kernel = unsafe { program.start(gpu, &engine.header, engine.header.warps, BLOCK) };
            match kernel {
                Ok(kernel) => lock(&shared.kernels).push(kernel),
                Err(error) => {
                    let begun = Parts::begun(&self.core, persistent);
                    tables.runs = true;
                    drop(tables);
                    let _ = begun.stop();
                    return Err(error.into());
                }
            }
        }
        tables.runs = true;
        let stop = Arc::new(AtomicBool::new(false));
        let (control, ends) = (Arc::clone(&tables.control), Arc::clone(&stop));
        drop(tables);
        let keeper = std::thread::Builder::new()
            .name("soft-gpu-lease".to_owned())
            .spawn(move || {
                while !ends.load(Ordering::Acquire) {
                    control.word(8).fetch_add(1, Ordering::Release);
                    std::thread::park_timeout(Duration::from_nanos(tables::LEASE_NS / 20));
                }
            })
            .map_err(|error| softnic::EngineGone::Spawn { message: error.to_string() });
        let parts = Parts { stop, ..Parts::begun(&self.core, persistent) };
        let mut running = Running { parts: Some(parts) };
        // Without a keeper the engine is stopped again, by what is dropped here.
        let keeper = keeper?;
        if let Some(parts) = &mut running.parts {
            parts.keeper = Some(keeper);
        }
        Ok(running)
    }
}

struct Parts {
    core: Arc<Core>,
    keeper: Option<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    persistent: Vec<Persistent>,
}

/// Engines that run. Dropping this stops them, too.
pub struct Running {
    parts: Option<Parts>,
}

impl Running {
    /// Renews the engine's lease no more, as a host that hangs wouldn't: for tests of its end.
    #[doc(hidden)]
    pub fn fall_silent(&mut self) {
        if let Some(parts) = &mut self.parts {
            parts.fall_silent();
        }
    }

    /// Whether an engine has ended, by itself or by an error.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.parts.as_ref().is_some_and(Parts::is_over)
    }

    /// Stops the engines; they go on where they were when they are started again.
    ///
    /// # Errors
    /// It had ended by itself, failed, or doesn't end.
    pub fn stop(mut self) -> Result<(), Error> {
        self.parts.take().map_or(Ok(()), Parts::stop)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(parts) = self.parts.take() {
            let _ = parts.stop();
        }
    }
}

impl Parts {
    fn begun(core: &Arc<Core>, persistent: Vec<Persistent>) -> Self {
        Self { core: Arc::clone(core), keeper: None, stop: Arc::default(), persistent }
    }

    fn fall_silent(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(keeper) = self.keeper.take() {
            keeper.thread().unpark();
            let _ = keeper.join();
        }
    }

    fn is_over(&self) -> bool {
        let kernels = lock(&self.core.shared.kernels);
        kernels.is_empty() || kernels.iter().any(|kernel| kernel.is_done().unwrap_or(true))
    }

    fn stop(mut self) -> Result<(), Error> {
        let core = Arc::clone(&self.core);
        let shared = &core.shared;
        shared.tables().control.half(0).store(1, Ordering::Release);
        let kernels = std::mem::take(&mut *lock(&shared.kernels));
        let end = Instant::now() + GRACE;
        // All are waited for, whatever one says.
        let ends: Vec<_> =
            kernels.into_iter().map(|kernel| kernel.wait(end, None, &|| false)).collect();
        let ended = ends.into_iter().collect::<Result<Vec<_>, _>>();
        self.fall_silent();
        // What is freed now may wait for the device.
        drop(self.persistent);
        let mut tables = shared.tables();
        if let Err(error) = ended {
            // A kernel that runs on has what it reads: nothing of it is given back.
            if !matches!(error, cuda::CudaError::Stuck) {
                tables.settle();
            }
            return Err(error.into());
        }
        let alone = tables.ended() == ALONE;
        tables.settle();
        drop(tables);
        if alone { Err(Error::LeaseExpired) } else { Ok(()) }
    }
}

/// `gic::kernels::kNicAlone`
const ALONE: u64 = 2;

/// One NIC of a fabric.
pub struct SoftGpuNic {
    core: Arc<Core>,
    index: usize,
}

/// Destroys an object of a NIC.
struct Owned {
    core: Arc<Core>,
    nic: usize,
    object: Object,
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.core.shared.tables().destroy(self.nic, self.object);
    }
}

impl SoftGpuNic {
    fn shared(&self) -> &Shared {
        &self.core.shared
    }

    fn owned(&self, object: Object) -> Owned {
        Owned { core: Arc::clone(&self.core), nic: self.index, object }
    }

    /// Fails a WQE of a queue pair: the one after `after` others.
    ///
    /// # Errors
    /// No such queue pair, or the engine runs on a GPU.
    pub fn fail_wqe(
        &self,
        qpn: u32,
        after: u64,
        syndrome: Syndrome,
        vendor: u8,
    ) -> Result<(), Error> {
        self.shared().changing()?.change(self.index, qpn, |qp| {
            qp.fail_after = after;
            qp.fail_cause = device::nic::cause(syndrome as u8, vendor);
        })
    }

    /// Loses a CQE of a queue pair: the one after `after` others.
    ///
    /// # Errors
    /// As [`fail_wqe`](Self::fail_wqe).
    pub fn drop_cqe(&self, qpn: u32, after: u64) -> Result<(), Error> {
        self.shared().changing()?.change(self.index, qpn, |qp| qp.drop_after = after)
    }

    /// What the NIC saw its clients do wrong.
    #[must_use]
    pub fn seen(&self) -> Vec<softnic::Finding> {
        self.shared().tables().findings(self.index)
    }
}

impl Nic for SoftGpuNic {
    fn address(&self) -> Address {
        Address::lid(self.index as u16 + 1)
    }

    fn name(&self) -> String {
        let on = &self.shared().on;
        let runs = match on {
            EngineOn::Host { .. } => "in this process".to_owned(),
            EngineOn::Gpu(gpu, warps) => format!("in {}, {warps} warps", gpu.info().name),
            EngineOn::Gpus(gpus, warps) => {
                let gpu = gpus[self.index].info();
                format!("in GPU {} ({}), {warps} warps", gpu.ordinal, gpu.name)
            }
        };
        format!("software ConnectX {} as device code, {runs}", self.address().lid)
    }

    fn register(&self, memory: &Arc<Memory>, access: Access) -> Result<Region, Error> {
        self.shared().reached("memory region", memory)?;
        let (lkey, rkey, object) =
            self.shared().changing()?.register(self.index, memory, access)?;
        Ok(Region {
            address: memory.as_ptr() as u64,
            length: memory.len() as u64,
            lkey,
            rkey,
            memory: Arc::clone(memory),
            _owner: Some(Arc::new(self.owned(object))),
        })
    }

    fn create_queue_pair(&self, attr: &QueuePairAttr) -> Result<QueuePair, Error> {
        crate::soft::check(attr)?;
        // Before its memory is made: making some waits for the device.
        drop(self.shared().changing()?);
        let areas = Areas::of(attr)?;
        let page = match &attr.doorbell_page {
            Some(page) => Arc::clone(page),
            None => memory(&attr.places.doorbell, wire::doorbell::UAR_PAGE)?,
        };
        self.shared().areas_reached(&areas)?;
        self.shared().reached("doorbell page", &page)?;
        if page.len() < wire::doorbell::UAR_PAGE {
            return Err(Error::OutOfRegion {
                offset: 0,
                bytes: wire::doorbell::UAR_PAGE as u64,
                length: page.len() as u64,
            });
        }
        let (qpn, object) = self.shared().changing()?.create_qp(self.index, attr, &areas, &page)?;
        Ok(QueuePair {
            qpn,
            attr: attr.clone(),
            areas,
            doorbell_page: page,
            owner: Box::new(self.owned(object)),
        })
    }

    fn connect(&self, qp: &QueuePair, to: Destination, attr: &ConnectAttr) -> Result<(), Error> {
        self.shared()
            .changing()?
            .connect(self.index, qp.qpn, to, attr)
            .map_err(|source| Error::Connect { qpn: qp.qpn, source })
    }

    fn create_dc_target(&self, key: u64, access: Access) -> Result<DcTarget, Error> {
        let (number, object) = self.shared().changing()?.create_target(self.index, key, access)?;
        let owner = Box::new(self.owned(object));
        Ok(DcTarget { nic: self.address(), number, key, _owner: owner })
    }

    fn findings(&self) -> Result<Vec<String>, Error> {
        Ok(self.seen().iter().map(ToString::to_string).collect())
    }

    fn completed(&self) -> Result<Option<u64>, Error> {
        Ok(Some(self.shared().tables().completed(self.index)))
    }

    fn cause(&self, qpn: u32) -> Option<String> {
        self.shared().tables().cause(self.index, qpn).map(|cause| cause.to_string())
    }

    fn step(&self) -> bool {
        let shared = self.shared();
        if !matches!(shared.on, EngineOn::Host { driver: Engine::Stepped, .. }) {
            return false;
        }
        match shared.tables.try_lock() {
            Ok(mut tables) => shared.round(&mut tables),
            Err(TryLockError::Poisoned(tables)) => shared.round(&mut tables.into_inner()),
            Err(TryLockError::WouldBlock) => false,
        }
    }

    fn gone(&self) -> Option<String> {
        let kernels = lock(&self.shared().kernels);
        kernels.iter().find_map(|kernel| match kernel.is_done() {
            Ok(false) => None,
            Ok(true) => Some("the NIC's kernel has ended".to_owned()),
            Err(error) => Some(error.to_string()),
        })
    }

    fn relax(&self, spins: u32) {
        if matches!(self.shared().on, EngineOn::Host { driver: Engine::Stepped, .. }) {
            if !self.step() && spins % 16 == 15 {
                std::thread::yield_now();
            }
        } else if spins % 1024 == 1023 {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }
}
