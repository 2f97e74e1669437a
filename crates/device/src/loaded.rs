//! The kernel of a latency probe beside background traffic: the mirror of `gic/kernels/loaded.hpp`, and its launch
//! on host threads.

use crate::choice::Choice;
use crate::host::{LaunchError, Relax, on_threads};
use crate::proxy::{ProxyChoice, RingView};
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
}

impl Load {
    /// Threads that take part: the probe, the background, and who answers where round trips are timed.
    #[must_use]
    pub fn threads(&self) -> u32 {
        1 + self.background + u32::from(!self.inbox.is_null())
    }
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
    assert!(size_of::<Load>() == 184);
    assert!(size_of::<LoadedArgs>() == 264);
    assert!(size_of::<ProxyLoadedArgs>() == 216);
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

/// A kernel with its choices and arguments. Probe and background differ in who shares their queues, and in nothing
/// else.
#[derive(Clone, Copy, Debug)]
pub enum Loaded<'a> {
    /// mini-gda's.
    Gda {
        /// The probe's choice.
        probe: Choice,
        /// The background's.
        background: Choice,
        /// Its arguments.
        args: &'a LoadedArgs,
    },
    /// mini-proxy's.
    Proxy {
        /// The probe's choice.
        probe: ProxyChoice,
        /// The background's.
        background: ProxyChoice,
        /// Its arguments.
        args: &'a ProxyLoadedArgs,
    },
}

impl Loaded<'_> {
    /// What both paths have in common.
    #[must_use]
    pub fn load(&self) -> &Load {
        match self {
            Self::Gda { args, .. } => &args.load,
            Self::Proxy { args, .. } => &args.load,
        }
    }

    fn not_built(&self) -> LaunchError {
        let kernel = "loaded";
        match *self {
            Self::Gda { probe, .. } => LaunchError::NotBuilt { kernel, choice: Box::new(probe) },
            Self::Proxy { probe, .. } => LaunchError::ProxyNotBuilt { kernel, choice: probe },
        }
    }
}

/// Runs `kernel` on threads of its own and returns when all have ended; as [`launch`](crate::host::launch).
///
/// # Errors
/// A combination that isn't built, or threads that can't be started. What the kernel itself met is in the
/// failure words of its arguments.
///
/// # Safety
/// Every pointer in the arguments, and in the views that they point to, is valid for what the kernel does with it
/// until this returns. Control and progress words are 0.
pub unsafe fn launch(
    kernel: Loaded<'_>,
    cpus: &[usize],
    relax: Option<&dyn Relax>,
) -> Result<(), LaunchError> {
    struct Shared<'a>(Loaded<'a>);
    // SAFETY: the kernel is made for several threads; the caller vouches for the pointers.
    unsafe impl Sync for Shared<'_> {}

    let shared = Shared(kernel);
    let built = on_threads(kernel.load().threads(), cpus, relax, |thread| {
        let shared = &shared;
        // SAFETY: the caller's contract.
        unsafe {
            match &shared.0 {
                Loaded::Gda { probe, background, args } => {
                    gic_host_loaded(probe, background, *args, thread)
                }
                Loaded::Proxy { probe, background, args } => {
                    gic_host_proxy_loaded(probe, background, *args, thread)
                }
            }
        }
    })?;
    if built { Ok(()) } else { Err(kernel.not_built()) }
}
