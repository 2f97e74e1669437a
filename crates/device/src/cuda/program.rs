//! A loaded kernel, and a launch of it.

use std::ffi::{c_uint, c_void};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cudarc::driver::{result, sys};

use super::gpu::Gpu;
use super::{CudaError, cache};
use crate::host::Relax;
use crate::source::ENTRY;

/// A stream with a place in pinned memory for a launch's clock readings (`gic::kernels::Clocks`).
pub(super) struct Lane {
    stream: sys::CUstream,
    clocks: NonNull<u8>,
}

// SAFETY: a stream may be used by any thread that has made its context current; the clock readings are accessed
// atomically.
unsafe impl Send for Lane {}

impl Lane {
    pub(super) fn new(stream: sys::CUstream, clocks: NonNull<u8>) -> Self {
        Self { stream, clocks }
    }

    /// # Safety
    /// Nothing runs on it; the context is current.
    pub(super) unsafe fn free(self) {
        // SAFETY: the caller's contract; each is freed once.
        unsafe {
            let _ = result::stream::destroy(self.stream);
            let _ = result::free_host(self.clocks.as_ptr().cast());
        }
    }

    fn clock_word(&self, index: usize) -> &AtomicU64 {
        debug_assert!(index < 4);
        // SAFETY: within the page that belongs to the lane, and aligned.
        unsafe { AtomicU64::from_ptr(self.clocks.as_ptr().cast::<u64>().add(index)) }
    }
}

/// What a launch measured of its own clock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Launched {
    /// Ticks of the threads' clock in a microsecond of the GPU's timer.
    pub ticks_per_us: f64,
    /// Between the readings at the kernel's begin and end.
    pub time: Duration,
}

/// A CUBIN that is loaded on a GPU, and stays so until the GPU's context ends. Loading one twice gives two modules, each
/// with variables of its own.
pub struct Module {
    gpu: Arc<Gpu>,
    handle: sys::CUmodule,
}

// SAFETY: a handle of the driver, which any thread may use that has made the context current.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    pub(super) fn load(gpu: &Arc<Gpu>, cubin: &[u8]) -> Result<Self, CudaError> {
        // SAFETY: a CUBIN, which says its own length; the context is current (its callers).
        let handle = unsafe { result::module::load_data(cubin.as_ptr().cast()) }
            .map_err(CudaError::of("cuModuleLoadData"))?;
        let module = Self { gpu: Arc::clone(gpu), handle };
        // Modules without a wait have no such word; its name is that of `gic/platform.hpp`.
        match module.set("gic_abort_word", &(gpu.abort_word().as_ptr() as u64).to_ne_bytes()) {
            Err(CudaError::NoSymbol { .. }) | Ok(()) => Ok(module),
            Err(error) => Err(error),
        }
    }

    /// Gives a variable of it, `__device__` or `__constant__`, a value.
    ///
    /// # Errors
    /// [`CudaError::NoSymbol`]: there is none of that name and size.
    pub fn set(&self, name: &str, value: &[u8]) -> Result<(), CudaError> {
        self.gpu.enter()?;
        let missing =
            |found| CudaError::NoSymbol { name: name.to_owned(), bytes: value.len(), found };
        let symbol = std::ffi::CString::new(name).map_err(|_| missing(None))?;
        // SAFETY: a module that exists.
        let (at, bytes) = unsafe { result::module::get_global(self.handle, symbol) }
            .map_err(|_| missing(None))?;
        if bytes != value.len() {
            return Err(missing(Some(bytes)));
        }
        self.gpu.copy_in(at, value)
    }

    /// A kernel of it that takes an argument of type `A` by value, and a pointer to `gic::kernels::Clocks` that is null
    /// in a launch which must do nothing. To be asked for before a persistent kernel runs: loading waits for the device.
    ///
    /// # Errors
    /// There is no such kernel, or a persistent kernel runs.
    pub fn program<A: Copy>(&self, entry: &str) -> Result<Arc<Program>, CudaError> {
        self.gpu.idle("loading a kernel")?;
        Program::of(self, entry, size_of::<A>()).map(Arc::new)
    }
}

/// A kernel that is loaded on a GPU, and stays so until the GPU's context ends.
pub struct Program {
    function: sys::CUfunction,
    args: usize,
    info: FunctionInfo,
}

/// What a kernel takes of a multiprocessor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FunctionInfo {
    pub registers: u32,
    pub shared: u32,
    pub local: u32,
}

// SAFETY: handles of the driver, which any thread may use that has made the context current.
unsafe impl Send for Program {}
// SAFETY: as above.
unsafe impl Sync for Program {}

impl Program {
    pub(super) fn load(gpu: &Arc<Gpu>, source: &str, args: usize) -> Result<Self, CudaError> {
        let cubin = cache::cubin(source, gpu.info().arch)?;
        Self::of(&Module::load(gpu, &cubin)?, ENTRY, args)
    }

    fn of(module: &Module, entry: &str, args: usize) -> Result<Self, CudaError> {
        let gpu = &module.gpu;
        let entry = std::ffi::CString::new(entry).unwrap_or_default();
        // SAFETY: a module that exists, and goes with the context; the context is current (the callers).
        let function = unsafe {
            let function = result::module::get_function(module.handle, entry)
                .map_err(CudaError::of("cuModuleGetFunction"))?;
            // The driver loads lazily, and loading waits for the device: not beside a kernel that spins.
            sys::cuFuncLoad(function).result().map_err(CudaError::of("cuFuncLoad"))?;
            function
        };
        let attribute = |which| {
            // SAFETY: a function that exists.
            unsafe { result::function::get_function_attribute(function, which) }
                .map(|value| u32::try_from(value).unwrap_or(0))
                .map_err(CudaError::of("cuFuncGetAttribute"))
        };
        use sys::CUfunction_attribute_enum as A;
        let info = FunctionInfo {
            registers: attribute(A::CU_FUNC_ATTRIBUTE_NUM_REGS)?,
            shared: attribute(A::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?,
            local: attribute(A::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?,
        };
        let program = Self { function, args, info };
        // A first launch reserves local memory, and waits for the device to do so. This one does nothing else.
        let lane = gpu.take_lane().ok_or(CudaError::Busy)?;
        // A multiple of what any argument is aligned to.
        let nothing = vec![0u128; args.div_ceil(16).max(1)];
        let (args, clocks) = (nothing.as_ptr().cast(), std::ptr::null());
        // SAFETY: so many bytes of arguments, and null for the clocks.
        let launched = unsafe { program.submit(args, clocks, 1, 32, lane.stream) };
        let ended = launched.and_then(|()| {
            // SAFETY: a stream that exists.
            unsafe { result::stream::synchronize(lane.stream) }
                .map_err(CudaError::of("cuStreamSynchronize"))
        });
        gpu.give_lane(lane);
        ended.map(|()| program)
    }

    pub(super) fn info(&self) -> FunctionInfo {
        self.info
    }

    /// Blocks of `threads` threads that a multiprocessor holds at once.
    pub(super) fn resident(&self, threads: u32) -> Result<u32, CudaError> {
        // SAFETY: a function that exists.
        unsafe {
            result::occupancy::max_active_block_per_multiprocessor(self.function, threads as i32, 0)
        }
        .map(|blocks| u32::try_from(blocks).unwrap_or(0))
        .map_err(CudaError::of("cuOccupancyMaxActiveBlocksPerMultiprocessor"))
    }

    /// # Safety
    /// `args` has as many bytes as the kernel's argument; what it points to is the caller's business.
    unsafe fn submit(
        &self,
        args: *const c_void,
        clocks: *const u8,
        grid: u32,
        block: u32,
        stream: sys::CUstream,
    ) -> Result<(), CudaError> {
        let mut clocks = clocks;
        let mut params = [args.cast_mut(), (&raw mut clocks).cast()];
        // SAFETY: two parameters, as every entry point has; the rest is the caller's contract.
        unsafe {
            sys::cuLaunchKernel(
                self.function,
                grid as c_uint,
                1,
                1,
                block as c_uint,
                1,
                1,
                0,
                stream,
                params.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        }
        .result()
        .map_err(CudaError::of("cuLaunchKernel"))
    }

    /// Launches it with `grid` blocks of `block` threads.
    ///
    /// # Errors
    /// The driver refuses, or four kernels run already.
    ///
    /// # Safety
    /// `A` is what the entry point takes by value; every address in it is valid for what the kernel does with it
    /// until the launch has ended.
    pub unsafe fn start<A: Copy>(
        self: &Arc<Self>,
        gpu: &Arc<Gpu>,
        args: &A,
        grid: u32,
        block: u32,
    ) -> Result<Running, CudaError> {
        assert_eq!(size_of::<A>(), self.args, "the program was loaded for other arguments");
        gpu.enter()?;
        let lane = gpu.take_lane().ok_or(CudaError::Busy)?;
        for index in 0..4 {
            lane.clock_word(index).store(0, Ordering::Relaxed);
        }
        // SAFETY: the caller's contract.
        let launched = unsafe {
            self.submit(
                std::ptr::from_ref(args).cast(),
                lane.clocks.as_ptr(),
                grid,
                block,
                lane.stream,
            )
        };
        match launched {
            Ok(()) => {
                Ok(Running { gpu: Arc::clone(gpu), _program: Arc::clone(self), lane: Some(lane) })
            }
            Err(error) => {
                gpu.give_lane(lane);
                Err(error)
            }
        }
    }
}

/// A launch that has not been waited for. Dropping it tells its waits to end, and waits.
pub struct Running {
    gpu: Arc<Gpu>,
    _program: Arc<Program>,
    lane: Option<Lane>,
}

/// For a kernel that was told to give up its waits.
const GRACE: Duration = Duration::from_secs(3);

impl Running {
    /// Whether it has ended.
    ///
    /// # Errors
    /// The kernel failed, for instance by an illegal access.
    pub fn is_done(&self) -> Result<bool, CudaError> {
        let Some(lane) = &self.lane else { return Ok(true) };
        self.gpu.enter()?;
        // SAFETY: a stream that exists.
        match unsafe { sys::cuStreamQuery(lane.stream) } {
            sys::CUresult::CUDA_SUCCESS => Ok(true),
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            other => other.result().map(|()| true).map_err(CudaError::of("cuStreamQuery")),
        }
    }

    /// Waits for its end, doing `relax` meanwhile.
    ///
    /// # Errors
    /// The kernel failed. [`CudaError::Late`]: it was still running at `until`, or `give_up` said so, and it ended
    /// when it was told to. [`CudaError::Stuck`]: not even then.
    pub fn wait(
        mut self,
        until: Instant,
        relax: Option<&dyn Relax>,
        give_up: &dyn Fn() -> bool,
    ) -> Result<Launched, CudaError> {
        let began = Instant::now();
        self.spin(until, relax, give_up)?;
        let late = !self.is_done()?;
        if late {
            self.gpu.abort();
            self.spin(Instant::now() + GRACE, relax, &|| false)?;
            if !self.is_done()? {
                self.gpu.set_stuck();
                // Its lane and its memory are never used again.
                self.lane = None;
                return Err(CudaError::Stuck);
            }
            self.gpu.abort_word().store(0, Ordering::Release);
        }
        let clocks = self.clocks();
        if let Some(lane) = self.lane.take() {
            self.gpu.give_lane(lane);
        }
        if late {
            return Err(CudaError::Late { seconds: began.elapsed().as_secs_f64() });
        }
        Ok(clocks)
    }

    fn spin(
        &self,
        until: Instant,
        relax: Option<&dyn Relax>,
        give_up: &dyn Fn() -> bool,
    ) -> Result<(), CudaError> {
        let mut spins = 0u32;
        while !self.is_done()? && Instant::now() < until && !give_up() {
            // Asking the driver takes longer than most turns.
            match relax {
                Some(relax) => {
                    for _ in 0..64 {
                        relax.relax(spins);
                        spins = spins.wrapping_add(1);
                    }
                }
                None => std::thread::sleep(Duration::from_micros(20)),
            }
        }
        Ok(())
    }

    fn clocks(&self) -> Launched {
        let Some(lane) = &self.lane else {
            return Launched { ticks_per_us: f64::NAN, time: Duration::ZERO };
        };
        let [timer, ticks, timer_end, ticks_end] =
            std::array::from_fn(|i| lane.clock_word(i).load(Ordering::Acquire));
        let ns = timer_end.saturating_sub(timer);
        Launched {
            ticks_per_us: ticks_end.wrapping_sub(ticks) as f64 / (ns as f64 / 1e3),
            time: Duration::from_nanos(ns),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let Some(lane) = self.lane.take() else { return };
        self.gpu.abort();
        let until = Instant::now() + GRACE;
        let mut ended = false;
        while !ended && Instant::now() < until {
            if self.gpu.enter().is_err() {
                break;
            }
            // SAFETY: a stream that exists.
            let state = unsafe { sys::cuStreamQuery(lane.stream) };
            ended = state != sys::CUresult::CUDA_ERROR_NOT_READY;
            std::thread::sleep(Duration::from_micros(50));
        }
        if ended {
            self.gpu.abort_word().store(0, Ordering::Release);
            self.gpu.give_lane(lane);
        } else {
            self.gpu.set_stuck();
        }
    }
}
