//! How the engine's thread shares processors with the program that it serves.
//!
//! A program that polls never gives its processor up. On a machine of few processors the engine has its turn when the
//! program's slice is over, and must not lose it: it yields between steps, and sleeps only after a long time without
//! work. Sleeping sooner was measured to be three times as slow on two busy processors (a round trip of
//! `ibv_rc_pingpong` took 60 ms, and 14 ms with yields).

use std::time::Duration;

/// `struct sched_attr`, as far as it goes.
#[repr(C)]
#[derive(Default)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// The slice that the engine asks for, in nanoseconds: the shortest that the system gives.
const SLICE: u64 = 100_000;

/// Makes the calling thread the engine's: no signal of the program's is delivered to it, its sleeps are as short as it
/// asks, and so are its slices where the system (Linux 6.12 or newer) has a choice.
pub(crate) fn prepare() {
    // SAFETY: all four calls are about the calling thread alone; the set is initialised by `sigfillset`, the attributes
    // by `sched_getattr`, which writes no more than `size` bytes of them.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
        libc::prctl(libc::PR_SET_TIMERSLACK, 1, 0, 0, 0);
        let mut attr = SchedAttr::default();
        let size = size_of::<SchedAttr>() as u32;
        if libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, size, 0) == 0
            && attr.policy == libc::SCHED_OTHER as u32
        {
            attr.size = size;
            attr.runtime = SLICE;
            libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0);
        }
    }
}

/// What to do between two steps that found nothing.
pub(crate) struct Idle {
    steps: u32,
    /// Steps before the first yield.
    spins: u32,
}

/// Steps without work, yielding after each, before the first sleep.
const YIELDS: u32 = 20_000;
/// The longest sleep.
const NAP: Duration = Duration::from_micros(200);
/// Sleeps of each length, until they get longer.
const PATIENCE: u32 = 64;

impl Idle {
    pub(crate) fn new() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        // With a processor to itself, the engine is there at once.
        Self { steps: 0, spins: if processors > 4 { 20_000 } else { 64 } }
    }

    pub(crate) fn found_work(&mut self) {
        self.steps = 0;
    }

    pub(crate) fn wait(&mut self) {
        self.steps = self.steps.saturating_add(1);
        match self.steps.checked_sub(self.spins) {
            None => std::hint::spin_loop(),
            Some(more) if more < YIELDS => std::thread::yield_now(),
            Some(more) => {
                let nap = Duration::from_micros(1 + u64::from((more - YIELDS) / PATIENCE));
                std::thread::sleep(nap.min(NAP));
            }
        }
    }
}
