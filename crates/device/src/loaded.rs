//! The kernel of a latency probe beside background traffic: the mirror of `gic/kernels/loaded.hpp`, and its launch
//! on host threads and on a GPU.

use std::sync::Arc;
use std::time::Instant;

use crate::choice::Choice;
use crate::cuda::{CudaError, Gpu, Launched, Prepared};
use crate::host::{LaunchError, Relax, on_threads};
use crate::proxy::{ProxyChoice, RingView};
use crate::source::unit;
use crate::view::{Local, QpView, Remote};

/// Word of [`Load::control`] that ends the background.
pub const STOP: usize = 0;
/// Word of [`Load::control`] that counts background threads that have posted.
pub const ARRIVED: usize = 8;
/// Words of [`Load::control`].
pub const CONTROL_WORDS: usize = 16;
/// Words of [`Load::progress`] a background thread; the first one counts.
pub const PROGRESS_WORDS: usize = 8;
/// Background thread `b` marks its payloads with `first + ((b + 1) << VALUE_SHIFT) + i`.
pub const VALUE_SHIFT: u32 = 40;
/// The largest [`Load::window`].
pub const MAX_WINDOW: u32 = 64;

/// What both paths have in common (`gic::kernels::Load`); see the header for what each means.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs)]
pub struct Load {
    pub background: u32,
    pub queues: u32,
    pub probe_queue: u32,
    pub bytes: u32,
    pub background_bytes: u32,
    pub window: u32,
    pub slots: u64,
    pub stride: u64,
    pub background_at: u64,
    pub background_slots: u64,
    pub background_stride: u64,
    pub interval: u64,
    pub hold: u64,
    pub warmup: u64,
    pub samples: u64,
    pub first: u64,
    pub deadline: u64,
    pub control: *mut u64,
    pub progress: *mut u64,
    pub target: u64,
    pub inbox: *const u64,
    pub issue: *mut u64,
    pub total: *mut u64,
    pub carried: *mut u64,
    pub done: *mut u64,
    pub failure: *mut u64,
    pub first_thread: u32,
    pub threads: u32,
}

/// Arguments of mini-gda's kernel (`gic::kernels::LoadedArgs`); see the header for what each means.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs)]
pub struct LoadedArgs {
    pub qp: *const QpView,
    pub answer: *const QpView,
    pub local: Local,
    pub remote: Remote,
    pub answer_local: Local,
    pub answer_remote: Remote,
    pub load: Load,
}

/// Arguments of mini-proxy's kernel (`gic::kernels::ProxyLoadedArgs`); see the header for what each means.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs)]
pub struct ProxyLoadedArgs {
    pub ring: *const RingView,
    pub answer: *const RingView,
    pub local: u64,
    pub answer_local: u64,
    pub load: Load,
}

const _: () = {
    assert!(size_of::<Load>() == 192);
    assert!(size_of::<LoadedArgs>() == 272);
    assert!(size_of::<ProxyLoadedArgs>() == 224);
};

unsafe extern "C" {
    fn gic_host_loaded(
        probe: *const Choice,
        background: *const Choice,
        args: *const LoadedArgs,
        thread: u32,
    ) -> bool;
    fn gic_host_proxy_loaded(
        probe: *const ProxyChoice,
        background: *const ProxyChoice,
        args: *const ProxyLoadedArgs,
        thread: u32,
    ) -> bool;
}

/// What the kernel is compiled for. Probe and background differ in who shares their queues, and in nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Choices {
    /// mini-gda's.
    Gda {
        /// The probe's.
        probe: Choice,
        /// The background's.
        background: Choice,
    },
    /// mini-proxy's.
    Proxy {
        /// The probe's.
        probe: ProxyChoice,
        /// The background's.
        background: ProxyChoice,
    },
}

/// The CUDA C++ translation unit of the kernel.
#[must_use]
pub fn translation_unit(choices: &Choices) -> String {
    let (args, kernel, probe, background) = match choices {
        Choices::Gda { probe, background } => {
            ("LoadedArgs", "loaded", probe.cpp(), background.cpp())
        }
        Choices::Proxy { probe, background } => {
            ("ProxyLoadedArgs", "proxy_loaded", probe.cpp(), background.cpp())
        }
    };
    // A thread a block: they spread over the multiprocessors.
    unit(
        "loaded",
        args,
        &format!("using P = {probe};\nusing B = {background};\n"),
        &format!(
            "if (threadIdx.x == 0) gic::kernels::{kernel}<P, B>(a, a.load.first_thread + blockIdx.x);"
        ),
    )
}

/// Arguments of the kernel.
#[derive(Clone, Copy, Debug)]
pub enum Args<'a> {
    /// mini-gda's.
    Gda(&'a LoadedArgs),
    /// mini-proxy's.
    Proxy(&'a ProxyLoadedArgs),
}

impl Args<'_> {
    fn load(&self) -> &Load {
        match self {
            Self::Gda(args) => &args.load,
            Self::Proxy(args) => &args.load,
        }
    }
}

fn not_built(choices: &Choices) -> LaunchError {
    let kernel = "loaded";
    match *choices {
        Choices::Gda { probe, .. } => LaunchError::NotBuilt { kernel, choice: Box::new(probe) },
        Choices::Proxy { probe, .. } => LaunchError::ProxyNotBuilt { kernel, choice: probe },
    }
}

/// Runs the kernel on threads of its own and returns when all have ended; as [`launch`](crate::host::launch).
///
/// # Errors
/// A combination that isn't built, or threads that can't be started. What the kernel itself met is in the
/// failure words of its arguments.
///
/// # Safety
/// Every pointer in the arguments, and in the views that they point to, is valid for what the kernel does with it
/// until this returns. Control and progress words are 0.
pub unsafe fn launch(
    choices: &Choices,
    args: Args<'_>,
    cpus: &[usize],
    relax: Option<&dyn Relax>,
) -> Result<(), LaunchError> {
    struct Shared<'a>(Args<'a>);
    // SAFETY: the kernel is made for several threads; the caller vouches for the pointers.
    unsafe impl Sync for Shared<'_> {}

    let shared = Shared(args);
    let Load { first_thread, threads, .. } = *args.load();
    let built = on_threads(threads, cpus, relax, |thread| {
        let (shared, thread) = (&shared, first_thread + thread);
        // SAFETY: the caller's contract.
        unsafe {
            match (choices, shared.0) {
                (Choices::Gda { probe, background }, Args::Gda(args)) => {
                    gic_host_loaded(probe, background, args, thread)
                }
                (Choices::Proxy { probe, background }, Args::Proxy(args)) => {
                    gic_host_proxy_loaded(probe, background, args, thread)
                }
                _ => false,
            }
        }
    })?;
    if built { Ok(()) } else { Err(not_built(choices)) }
}

/// Has the kernel compiled and loaded: what must be done before a persistent kernel runs.
///
/// # Errors
/// It can't be.
pub fn prepare(gpu: &Arc<Gpu>, choices: &Choices) -> Result<Prepared, CudaError> {
    let args = match choices {
        Choices::Gda { .. } => size_of::<LoadedArgs>(),
        Choices::Proxy { .. } => size_of::<ProxyLoadedArgs>(),
    };
    Prepared::of(gpu, &translation_unit(choices), args)
}

/// Runs what [`prepare`] gave, and does `relax` while it waits for its end.
///
/// # Errors
/// As [`Prepared::run`].
///
/// # Safety
/// As [`launch`]; every address is one that the GPU can follow, and the arguments are of the choices' path.
pub unsafe fn run(
    prepared: &Prepared,
    args: Args<'_>,
    relax: Option<&dyn Relax>,
    until: Instant,
    give_up: &dyn Fn() -> bool,
) -> Result<Launched, CudaError> {
    // SAFETY: the caller's contract.
    let running = unsafe {
        match args {
            Args::Gda(of) => prepared.start(of, of.load.threads, 1),
            Args::Proxy(of) => prepared.start(of, of.load.threads, 1),
        }
    }?;
    running.wait(until, relax, give_up)
}
