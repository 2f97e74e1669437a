//! The `host` submitter: CPU threads run the host build of the device code.

use std::ffi::c_void;

use crate::choice::Choice;
pub use crate::clock::Clock;
use crate::like::{Like, LikeArgs, gic_host_like};
use crate::proxy::ProxyChoice;
use crate::view::{LatencyArgs, Op, RateArgs, RoundTripArgs};

unsafe extern "C" {
    fn gic_host_set_wait(wait: Option<extern "C" fn(*mut c_void, u32)>, context: *mut c_void);
    fn gic_host_latency(choice: *const Choice, op: u32, args: *const LatencyArgs) -> bool;
    fn gic_host_bare(choice: *const Choice, op: u32, args: *const LatencyArgs) -> bool;
    fn gic_host_rate(choice: *const Choice, args: *const RateArgs, thread: u32) -> bool;
    fn gic_host_round_trip(choice: *const Choice, args: *const RoundTripArgs, side: u32) -> bool;
}

/// What a waiting thread does on each turn; the argument counts its turns.
///
/// Steps the NIC that nobody else drives, or gives the core away. Nothing: spins.
pub trait Relax: Sync {
    /// One turn of a wait loop.
    fn relax(&self, spins: u32);
}

/// A kernel with its arguments.
#[derive(Clone, Copy, Debug)]
pub enum Kernel<'a> {
    /// One operation at a time; one thread.
    Latency(Op, &'a LatencyArgs),
    /// The same by a bare, hand-written sequence; one thread.
    Bare(Op, &'a LatencyArgs),
    /// Many operations; as many threads as the arguments say.
    Rate(&'a RateArgs),
    /// A thread a side, of as many sides as the arguments say.
    RoundTrip(&'a RoundTripArgs),
}

impl Kernel<'_> {
    /// Threads that take part.
    #[must_use]
    pub fn threads(&self) -> u32 {
        match self {
            Self::Latency(..) | Self::Bare(..) => 1,
            Self::Rate(args) => args.threads,
            Self::RoundTrip(args) => args.sides,
        }
    }
}

/// Why a kernel did not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The host build doesn't hold this combination of choices.
    #[error("the host build has no {kernel} kernel for {choice:?}")]
    NotBuilt {
        /// Which kernel.
        kernel: &'static str,
        /// For which choices.
        choice: Box<Choice>,
    },
    /// The host build doesn't hold this combination of a proxy's choices.
    #[error("the host build has no {kernel} kernel for {choice:?}")]
    ProxyNotBuilt {
        /// Which kernel.
        kernel: &'static str,
        /// For which choices.
        choice: ProxyChoice,
    },
    /// The host build doesn't hold this put.
    #[error("the host build has no put like {like}")]
    LikeNotBuilt {
        /// Whose, and without what.
        like: Like,
    },
    /// A thread could not be started.
    #[error("can't start a submitter thread: {0}")]
    Thread(#[from] std::io::Error),
    /// A submitter thread panicked.
    #[error("a submitter thread panicked")]
    Panicked,
}

/// Runs `kernel` on threads of its own and returns when all have ended.
///
/// Thread `i` is pinned to `cpus[i % cpus.len()]`; with no CPUs given the scheduler chooses.
///
/// # Errors
/// A combination that isn't built, or threads that can't be started. What the kernel itself met is in the
/// failure words of its arguments.
///
/// # Safety
/// Every pointer in the arguments, and in the queue pair views that they point to, is valid for what the kernel
/// does with it until this returns; keys and addresses are the caller's business with the NIC.
pub unsafe fn launch(
    choice: &Choice,
    kernel: Kernel<'_>,
    cpus: &[usize],
    relax: Option<&dyn Relax>,
) -> Result<(), LaunchError> {
    struct Shared<'a>(Kernel<'a>);
    // SAFETY: the kernels are made for several threads; the caller vouches for the pointers.
    unsafe impl Sync for Shared<'_> {}

    let shared = Shared(kernel);
    let built = on_threads(kernel.threads(), cpus, relax, |thread| {
        let shared = &shared;
        // SAFETY: the caller's contract.
        unsafe {
            match shared.0 {
                Kernel::Latency(op, args) => gic_host_latency(choice, op as u32, args),
                Kernel::Bare(op, args) => gic_host_bare(choice, op as u32, args),
                Kernel::Rate(args) => gic_host_rate(choice, args, thread),
                Kernel::RoundTrip(args) => {
                    gic_host_round_trip(choice, args, args.first_side + thread)
                }
            }
        }
    })?;
    let kernel = match kernel {
        Kernel::Latency(..) => "latency",
        Kernel::Bare(..) => "bare",
        Kernel::Rate(_) => "rate",
        Kernel::RoundTrip(_) => "round trip",
    };
    if built { Ok(()) } else { Err(LaunchError::NotBuilt { kernel, choice: Box::new(*choice) }) }
}

/// Runs the kernel that puts as a library does, on as many threads as the arguments say; as [`launch`].
///
/// # Errors
/// A step that the put hasn't, or threads that can't be started. What the kernel itself met is in the failure words of
/// its arguments.
///
/// # Safety
/// As [`launch`]; what the structures lead to is followed, too.
pub unsafe fn launch_like(
    like: Like,
    args: &LikeArgs,
    cpus: &[usize],
    relax: Option<&dyn Relax>,
) -> Result<(), LaunchError> {
    struct Shared<'a>(&'a LikeArgs);
    // SAFETY: the kernel is made for several threads; the caller vouches for the pointers.
    unsafe impl Sync for Shared<'_> {}

    let shared = Shared(args);
    let built = on_threads(args.threads, cpus, relax, |thread| {
        let shared = &shared;
        // SAFETY: the caller's contract.
        unsafe { gic_host_like(like.peer as u32, like.without_bits(), shared.0, thread) }
    })?;
    if built { Ok(()) } else { Err(LaunchError::LikeNotBuilt { like }) }
}

/// Runs `body` on `threads` threads with their waits set up, and says whether all of them said true.
pub(crate) fn on_threads(
    threads: u32,
    cpus: &[usize],
    relax: Option<&dyn Relax>,
    body: impl Fn(u32) -> bool + Sync,
) -> Result<bool, LaunchError> {
    let body = |thread: u32| {
        if !cpus.is_empty() {
            pin(cpus[thread as usize % cpus.len()]);
        }
        with_relax(relax, || body(thread))
    };
    std::thread::scope(|scope| {
        let mut running = Vec::new();
        for thread in 0..threads {
            let body = &body;
            running.push(
                std::thread::Builder::new()
                    .name(format!("submitter-{thread}"))
                    .spawn_scoped(scope, move || body(thread))?,
            );
        }
        let mut built = true;
        for thread in running {
            built &= thread.join().map_err(|_| LaunchError::Panicked)?;
        }
        Ok(built)
    })
}

/// Runs `body`, which calls device code, on this thread with `relax` as its wait.
pub(crate) fn with_relax<T>(relax: Option<&dyn Relax>, body: impl FnOnce() -> T) -> T {
    let context = relax.as_ref().map_or(std::ptr::null_mut(), |r| {
        std::ptr::from_ref::<&dyn Relax>(r).cast_mut().cast::<c_void>()
    });
    let hook: Option<extern "C" fn(*mut c_void, u32)> =
        relax.is_some().then_some(relax_from_device as _);
    // SAFETY: `relax` outlives `body`; the hook is taken off before it could be dropped.
    unsafe { gic_host_set_wait(hook, context) };
    let result = body();
    // SAFETY: clears this thread's hook.
    unsafe { gic_host_set_wait(None, std::ptr::null_mut()) };
    result
}

extern "C" fn relax_from_device(context: *mut c_void, spins: u32) {
    // SAFETY: `launch` passes a pointer to a `&dyn Relax` that outlives the kernel.
    let relax = unsafe { *context.cast::<&dyn Relax>() };
    relax.relax(spins);
}

/// Pins the calling thread to a CPU; where that is refused it stays where the scheduler puts it.
pub fn pin(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    if cpu < rustix::thread::CpuSet::MAX_CPU {
        set.set(cpu);
        let _ = rustix::thread::sched_setaffinity(None, &set);
    }
}
