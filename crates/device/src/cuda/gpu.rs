//! One GPU of this process: its context, its facts, and the lanes that kernels run on.

use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use cudarc::driver::{result, sys};

use super::calibrate::calibrate;
use super::memory::Pinned;
use super::program::{Lane, Module, Program};
use super::{CudaError, GpuMemory};
use crate::clock::Clock;
use crate::nvrtc::Arch;

/// What a GPU is, for records.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuInfo {
    /// Which of the driver's GPUs.
    pub ordinal: u32,
    /// Its name.
    pub name: String,
    /// Its place on the PCIe bus.
    pub pci: String,
    /// Compute capability, such as 90.
    pub arch: Arch,
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// The highest SM clock, in MHz.
    pub max_clock_mhz: f64,
    /// Bytes of its memory.
    pub memory: u64,
    /// Bytes of its L2 cache.
    pub l2: u64,
    /// CUDA version that the driver serves, such as 13000.
    pub driver: u32,
    /// Registers of a multiprocessor.
    pub registers: u32,
    /// Threads of a multiprocessor.
    pub threads: u32,
}

/// A GPU with its context. Everything that is made on it keeps it.
pub struct Gpu {
    info: GpuInfo,
    device: sys::CUdevice,
    context: sys::CUcontext,
    /// Free streams, each with a place for a launch's clock readings.
    lanes: Mutex<Vec<Lane>>,
    programs: Mutex<HashMap<String, Arc<Program>>>,
    /// Stream and staging memory of copies.
    copies: Mutex<Copies>,
    /// Host memory, one page: word 0 tells waits to end.
    control: NonNull<u8>,
    clock: OnceLock<Clock>,
    /// Kernels that run until they are told to end.
    pub(super) persistent: AtomicU32,
    /// Freed while such a kernel ran: freeing waits for the device.
    pub(super) garbage: Mutex<Vec<Garbage>>,
    stuck: AtomicBool,
    /// GPUs whose memory its threads can follow.
    peers: Mutex<Vec<u32>>,
}

// SAFETY: the driver's handles may be used by any thread that has made the context current, which `enter` does;
// what is behind them is synchronised by the mutexes, or by the driver.
unsafe impl Send for Gpu {}
// SAFETY: as above.
unsafe impl Sync for Gpu {}

/// Memory that nobody uses any more.
pub(super) enum Garbage {
    Gpu(sys::CUdeviceptr),
    Pinned(NonNull<u8>),
}

// SAFETY: an address of memory that nobody uses.
unsafe impl Send for Garbage {}

impl Garbage {
    /// # Safety
    /// The context is current; nobody uses the memory.
    unsafe fn free(self) {
        // SAFETY: the caller's contract; allocated by the driver, freed once.
        let _ = unsafe {
            match self {
                Self::Gpu(address) => result::free_sync(address),
                Self::Pinned(base) => result::free_host(base.as_ptr().cast()),
            }
        };
    }
}

struct Copies {
    stream: sys::CUstream,
    staging: NonNull<u8>,
}

/// Bytes copied at once.
const STAGING: usize = 1 << 20;
const CONTROL: usize = 4096;
/// Kernels that may run side by side.
const LANES: usize = 4;

impl Gpu {
    /// GPU `ordinal` of those that the driver shows.
    ///
    /// # Errors
    /// No driver, no such GPU, or a driver that fails.
    pub fn open(ordinal: u32) -> Result<Arc<Self>, CudaError> {
        // SAFETY: asks whether the dynamic loader finds the library; loading it runs its initialisers only.
        if !unsafe { sys::is_culib_present() } {
            return Err(CudaError::NoDriver);
        }
        result::init().map_err(CudaError::of("cuInit"))?;
        // Asked first: an older driver lacks functions that are called later.
        let found = driver_version()?;
        if found < NEEDED {
            return Err(CudaError::OldDriver { found });
        }
        let count = result::device::get_count().map_err(CudaError::of("cuDeviceGetCount"))?;
        let count = u32::try_from(count).unwrap_or(0);
        if ordinal >= count {
            return Err(CudaError::NoDevice { ordinal, count });
        }
        let device = result::device::get(ordinal as i32).map_err(CudaError::of("cuDeviceGet"))?;
        let info = info(device, ordinal)?;
        // SAFETY: a device that exists; released in `drop`.
        let context = unsafe { result::primary_ctx::retain(device) }
            .map_err(CudaError::of("cuDevicePrimaryCtxRetain"))?;
        // SAFETY: just retained.
        unsafe { result::ctx::set_current(context) }.map_err(CudaError::of("cuCtxSetCurrent"))?;
        let control = host_alloc(CONTROL)?;
        // Streams are made before any kernel runs: making one may wait for the device.
        let stream = || {
            result::stream::create(result::stream::StreamKind::NonBlocking)
                .map_err(CudaError::of("cuStreamCreate"))
        };
        let mut lanes = Vec::new();
        for _ in 0..LANES {
            lanes.push(Lane::new(stream()?, host_alloc(CONTROL)?));
        }
        let copies = Copies { stream: stream()?, staging: host_alloc(STAGING)? };
        Ok(Arc::new(Self {
            info,
            device,
            context,
            lanes: Mutex::new(lanes),
            programs: Mutex::default(),
            copies: Mutex::new(copies),
            control,
            clock: OnceLock::new(),
            persistent: AtomicU32::new(0),
            garbage: Mutex::default(),
            stuck: AtomicBool::new(false),
            peers: Mutex::default(),
        }))
    }

    /// What it is.
    #[must_use]
    pub fn info(&self) -> &GpuInfo {
        &self.info
    }

    /// The threads' clock, measured once: what it resolves, what a reading costs, and its rate then. Each launch
    /// measures its own rate again ([`Launched`](super::Launched)).
    ///
    /// # Errors
    /// The kernel that measures it can't be compiled or run.
    pub fn clock(self: &Arc<Self>) -> Result<Clock, CudaError> {
        if let Some(clock) = self.clock.get() {
            return Ok(*clock);
        }
        let clock = calibrate(self)?;
        Ok(*self.clock.get_or_init(|| clock))
    }

    /// Pinned host memory, zeroed: one address for CPU and GPU.
    ///
    /// # Errors
    /// There isn't so much, or a persistent kernel runs.
    pub fn pinned(self: &Arc<Self>, bytes: usize) -> Result<Pinned, CudaError> {
        self.idle("allocating pinned memory")?;
        Ok(Pinned::new(Arc::clone(self), host_alloc(bytes)?, bytes))
    }

    /// GPU memory, zeroed.
    ///
    /// # Errors
    /// There isn't so much, or a persistent kernel runs.
    pub fn memory(self: &Arc<Self>, bytes: usize) -> Result<GpuMemory, CudaError> {
        self.idle("allocating GPU memory")?;
        GpuMemory::new(Arc::clone(self), bytes)
    }

    /// A kernel, compiled (or found in the cache) and loaded. Its entry point is
    /// [`ENTRY`](crate::source::ENTRY), with one argument by value, `args` bytes long, and a pointer to
    /// `gic::kernels::Clocks` that is null in a launch which must do nothing.
    ///
    /// To be asked for before a persistent kernel runs: loading waits for the device.
    ///
    /// # Errors
    /// A source that can't be compiled, a driver that refuses it, or a persistent kernel that runs.
    pub fn program(self: &Arc<Self>, source: &str, args: usize) -> Result<Arc<Program>, CudaError> {
        self.enter()?;
        if let Some(program) = lock(&self.programs).get(source) {
            return Ok(Arc::clone(program));
        }
        self.idle("loading a kernel")?;
        let program = Arc::new(Program::load(self, source, args)?);
        lock(&self.programs).insert(source.to_owned(), Arc::clone(&program));
        Ok(program)
    }

    /// A CUBIN that was compiled elsewhere. To be asked for before a persistent kernel runs: loading waits for the
    /// device.
    ///
    /// # Errors
    /// The driver refuses it, for instance one of another architecture, or a persistent kernel runs.
    pub fn module(self: &Arc<Self>, cubin: &[u8]) -> Result<Module, CudaError> {
        self.idle("loading a module")?;
        Module::load(self, cubin)
    }

    /// Makes the context current for this thread.
    pub(super) fn enter(&self) -> Result<(), CudaError> {
        if self.stuck.load(Ordering::Relaxed) {
            return Err(CudaError::Stuck);
        }
        // SAFETY: the context lives as long as this value.
        unsafe { result::ctx::set_current(self.context) }.map_err(CudaError::of("cuCtxSetCurrent"))
    }

    /// Makes the context current for something that waits for the device.
    pub(super) fn idle(&self, what: &'static str) -> Result<(), CudaError> {
        if self.persistent.load(Ordering::Acquire) > 0 {
            return Err(CudaError::BesidePersistent { what });
        }
        self.enter()
    }

    /// Frees memory, now or when no persistent kernel runs: freeing waits for the device.
    pub(super) fn free(&self, garbage: Garbage) {
        if self.persistent.load(Ordering::Acquire) > 0 {
            lock(&self.garbage).push(garbage);
        } else if self.enter().is_ok() {
            // SAFETY: the context is current; the owner is being dropped.
            unsafe { garbage.free() };
        }
    }

    /// The word that tells waits to end.
    pub(super) fn abort_word(&self) -> &AtomicU32 {
        // SAFETY: the first 4 bytes of a page that lives as long as this value; the GPU only reads it.
        unsafe { AtomicU32::from_ptr(self.control.as_ptr().cast()) }
    }

    /// Tells every wait of every kernel that runs now to end, as if its deadline had passed.
    pub fn abort(&self) {
        self.abort_word().store(1, Ordering::Release);
    }

    pub(super) fn set_stuck(&self) {
        self.stuck.store(true, Ordering::Relaxed);
    }

    pub(super) fn take_lane(&self) -> Option<Lane> {
        lock(&self.lanes).pop()
    }

    pub(super) fn give_lane(&self, lane: Lane) {
        lock(&self.lanes).push(lane);
    }

    /// Copies out of GPU memory, beside kernels that run.
    pub(super) fn copy_out(&self, from: sys::CUdeviceptr, out: &mut [u8]) -> Result<(), CudaError> {
        self.enter()?;
        let copies = lock(&self.copies);
        for (i, part) in out.chunks_mut(STAGING).enumerate() {
            let from = from + (i * STAGING) as u64;
            // SAFETY: the caller has checked the range of GPU memory; the staging memory is as long as a part, and
            // ours while the mutex is held. The copy is over before it is read.
            unsafe {
                sys::cuMemcpyDtoHAsync_v2(
                    copies.staging.as_ptr().cast(),
                    from,
                    part.len(),
                    copies.stream,
                )
                .result()
                .map_err(CudaError::of("cuMemcpyDtoHAsync"))?;
                result::stream::synchronize(copies.stream)
                    .map_err(CudaError::of("cuStreamSynchronize"))?;
                copies.staging.as_ptr().copy_to_nonoverlapping(part.as_mut_ptr(), part.len());
            }
        }
        Ok(())
    }

    /// Copies into GPU memory, beside kernels that run; what is written is there when this returns.
    pub(super) fn copy_in(&self, to: sys::CUdeviceptr, bytes: &[u8]) -> Result<(), CudaError> {
        self.enter()?;
        let copies = lock(&self.copies);
        for (i, part) in bytes.chunks(STAGING).enumerate() {
            let to = to + (i * STAGING) as u64;
            // SAFETY: as in `copy_out`.
            unsafe {
                copies.staging.as_ptr().copy_from_nonoverlapping(part.as_ptr(), part.len());
                sys::cuMemcpyHtoDAsync_v2(
                    to,
                    copies.staging.as_ptr().cast(),
                    part.len(),
                    copies.stream,
                )
                .result()
                .map_err(CudaError::of("cuMemcpyHtoDAsync"))?;
                result::stream::synchronize(copies.stream)
                    .map_err(CudaError::of("cuStreamSynchronize"))?;
            }
        }
        Ok(())
    }

    /// Whether its threads can follow this address: GPU memory, or pinned host memory.
    #[must_use]
    pub fn reaches(&self, address: u64) -> bool {
        if self.enter().is_err() {
            return false;
        }
        use sys::CUpointer_attribute as P;
        let attribute = |which: P| {
            let mut value = 0u32;
            // SAFETY: an out parameter of 4 bytes, which both attributes have; any number may be asked for.
            unsafe { sys::cuPointerGetAttribute((&raw mut value).cast(), which, address) }
                .result()
                .ok()
                .map(|()| value)
        };
        match attribute(P::CU_POINTER_ATTRIBUTE_MEMORY_TYPE) {
            None => false,
            // Another GPU's memory isn't this one's to follow, but for a peer's.
            Some(kind) if kind == sys::CUmemorytype::CU_MEMORYTYPE_DEVICE as u32 => {
                attribute(P::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
                    .is_some_and(|of| of == self.info.ordinal || lock(&self.peers).contains(&of))
            }
            Some(_) => true,
        }
    }

    /// Lets its threads follow addresses of another GPU's memory, by NVLink or PCIe.
    ///
    /// # Errors
    /// The machine doesn't let it, or a persistent kernel runs.
    pub fn reach_peer(&self, peer: &Self) -> Result<(), CudaError> {
        if self.info.ordinal == peer.info.ordinal {
            return Ok(());
        }
        self.idle("reaching another GPU's memory")?;
        let mut can = 0;
        // SAFETY: an out parameter, and two devices that exist.
        unsafe { sys::cuDeviceCanAccessPeer(&raw mut can, self.device, peer.device) }
            .result()
            .map_err(CudaError::of("cuDeviceCanAccessPeer"))?;
        if can == 0 {
            return Err(CudaError::NoPeerAccess { from: self.info.ordinal, to: peer.info.ordinal });
        }
        // SAFETY: its own context is current; the peer's lives as long as `peer`, and after it no memory of it does.
        match unsafe { sys::cuCtxEnablePeerAccess(peer.context, 0) } {
            sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => {}
            enabled => enabled.result().map_err(CudaError::of("cuCtxEnablePeerAccess"))?,
        }
        let mut peers = lock(&self.peers);
        if !peers.contains(&peer.info.ordinal) {
            peers.push(peer.info.ordinal);
        }
        Ok(())
    }

    /// Says that a kernel runs which doesn't end by itself, while what is given lives: memory is freed afterwards,
    /// because freeing waits for the device.
    #[must_use]
    pub fn persist(self: &Arc<Self>) -> Persistent {
        self.persistent.fetch_add(1, Ordering::AcqRel);
        Persistent(Arc::clone(self))
    }

    /// Frees what could not be freed while a persistent kernel ran.
    pub(super) fn collect(&self) {
        if self.persistent.load(Ordering::Acquire) > 0 || self.enter().is_err() {
            return;
        }
        for garbage in std::mem::take(&mut *lock(&self.garbage)) {
            // SAFETY: the context is current; the owners are gone.
            unsafe { garbage.free() };
        }
    }
}

/// A kernel runs that doesn't end by itself.
#[derive(Debug)]
pub struct Persistent(Arc<Gpu>);

impl Drop for Persistent {
    fn drop(&mut self) {
        self.0.persistent.fetch_sub(1, Ordering::AcqRel);
        self.0.collect();
    }
}

/// How one GPU reaches another's memory, as the driver says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerLink {
    /// Its threads may follow the other's addresses.
    pub access: bool,
    /// Atomics there are done by the other's memory.
    pub native_atomics: bool,
    /// 0 is the fastest kind of link that the machine has.
    pub rank: i32,
}

/// What the driver says of the way from a GPU to another one's memory. Neither is opened.
///
/// # Errors
/// No driver, no such GPU, or a driver that fails.
pub fn peer_link(from: u32, to: u32) -> Result<PeerLink, CudaError> {
    use sys::CUdevice_P2PAttribute as P;
    let count = gpu_count()?;
    let device = |ordinal: u32| {
        if ordinal >= count {
            return Err(CudaError::NoDevice { ordinal, count });
        }
        result::device::get(ordinal as i32).map_err(CudaError::of("cuDeviceGet"))
    };
    let (from, to) = (device(from)?, device(to)?);
    let ask = |which| {
        let mut value = 0;
        // SAFETY: an out parameter, and two devices that exist.
        unsafe { sys::cuDeviceGetP2PAttribute(&raw mut value, which, from, to) }
            .result()
            .map(|()| value)
            .map_err(CudaError::of("cuDeviceGetP2PAttribute"))
    };
    Ok(PeerLink {
        access: ask(P::CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED)? != 0,
        native_atomics: ask(P::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED)? != 0,
        rank: ask(P::CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK)?,
    })
}

/// How many GPUs the driver shows.
///
/// # Errors
/// No driver, or one that fails.
pub fn gpu_count() -> Result<u32, CudaError> {
    // SAFETY: asks whether the dynamic loader finds the library; loading it runs its initialisers only.
    if !unsafe { sys::is_culib_present() } {
        return Err(CudaError::NoDriver);
    }
    result::init().map_err(CudaError::of("cuInit"))?;
    let count = result::device::get_count().map_err(CudaError::of("cuDeviceGetCount"))?;
    Ok(u32::try_from(count).unwrap_or(0))
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // A kernel that never returns would be waited for.
        if self.enter().is_err() {
            return;
        }
        lock(&self.programs).clear();
        self.collect();
        // SAFETY: each was made in `open` and is freed once; nobody has a reference to this value any more.
        unsafe {
            for lane in std::mem::take(&mut *lock(&self.lanes)) {
                lane.free();
            }
            let copies = lock(&self.copies);
            let _ = result::stream::destroy(copies.stream);
            let _ = result::free_host(copies.staging.as_ptr().cast());
            let _ = result::free_host(self.control.as_ptr().cast());
            let _ = result::primary_ctx::release(self.device);
        }
    }
}

impl std::fmt::Debug for Gpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gpu").field("info", &self.info).finish_non_exhaustive()
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Pinned, zeroed host memory of whole pages.
fn host_alloc(bytes: usize) -> Result<NonNull<u8>, CudaError> {
    let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
    let what = "pinned host memory";
    let refused = |reason: String| CudaError::Memory { bytes, what, reason };
    // SAFETY: the context is current; the caller frees what comes back.
    let base = unsafe { result::malloc_host(bytes.max(1), flags) }
        .map_err(|error| refused(format!("{error:?}")))?;
    let base = NonNull::new(base.cast::<u8>()).ok_or_else(|| refused("null".to_owned()))?;
    // SAFETY: just allocated, so long.
    unsafe { base.write_bytes(0, bytes.max(1)) };
    Ok(base)
}

/// CUDA version that the kernels are compiled for.
const NEEDED: u32 = 13000;

fn driver_version() -> Result<u32, CudaError> {
    let mut version = 0;
    // SAFETY: an out parameter.
    unsafe { sys::cuDriverGetVersion(&raw mut version) }
        .result()
        .map_err(CudaError::of("cuDriverGetVersion"))?;
    Ok(u32::try_from(version).unwrap_or(0))
}

fn info(device: sys::CUdevice, ordinal: u32) -> Result<GpuInfo, CudaError> {
    use sys::CUdevice_attribute as A;
    let attribute = |which: A| {
        // SAFETY: a device that exists.
        unsafe { result::device::get_attribute(device, which) }
            .map(|value| u32::try_from(value).unwrap_or(0))
            .map_err(CudaError::of("cuDeviceGetAttribute"))
    };
    let mut pci = [0 as std::ffi::c_char; 32];
    // SAFETY: out parameters of the right kinds; the name is NUL-terminated within its length.
    let pci = unsafe {
        sys::cuDeviceGetPCIBusId(pci.as_mut_ptr(), pci.len() as i32, device)
            .result()
            .map_err(CudaError::of("cuDeviceGetPCIBusId"))?;
        std::ffi::CStr::from_ptr(pci.as_ptr()).to_string_lossy().into_owned()
    };
    // SAFETY: a device that exists.
    let memory = unsafe { result::device::total_mem(device) }
        .map_err(CudaError::of("cuDeviceTotalMem"))? as u64;
    Ok(GpuInfo {
        ordinal,
        name: result::device::get_name(device).map_err(CudaError::of("cuDeviceGetName"))?,
        pci,
        arch: Arch(
            10 * attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?
                + attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        multiprocessors: attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        max_clock_mhz: f64::from(attribute(A::CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?) / 1e3,
        memory,
        l2: attribute(A::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?.into(),
        driver: driver_version()?,
        registers: attribute(A::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR)?,
        threads: attribute(A::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)?,
    })
}
