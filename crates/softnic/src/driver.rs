//! Drivers around the core: an engine thread, or whoever waits.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::config::Nanos;
use crate::nic::Nic;

/// Where time comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Clock {
    /// The machine's monotonic clock; the same for all engines of a process.
    #[default]
    Real,
    /// Starts at 0 and jumps to the next event when there is nothing to do.
    Virtual,
}

/// How an engine runs.
#[derive(Clone, Copy, Debug, Default)]
pub struct EngineOptions {
    /// The CPU that its thread is pinned to.
    pub cpu: Option<usize>,
    /// Its time.
    pub clock: Clock,
}

/// The engine doesn't answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EngineGone {
    /// It was stopped.
    #[error("the NIC engine was stopped")]
    Stopped,
    /// It panicked.
    #[error("the NIC engine panicked: {message}")]
    Panicked {
        /// The panic's message.
        message: String,
    },
    /// It didn't answer in time.
    #[error("the NIC engine didn't answer within {seconds} s")]
    Unresponsive {
        /// How long was waited.
        seconds: u64,
    },
    /// No NIC of that id is driven by this engine.
    #[error("no NIC {id} is driven by this engine")]
    NoSuchNic {
        /// The id asked for.
        id: u16,
    },
    /// Its thread could not be started.
    #[error("the NIC engine's thread could not be started: {message}")]
    Spawn {
        /// What the system said.
        message: String,
    },
}

type Request = Box<dyn FnOnce(&mut [Nic]) + Send>;

struct Shared {
    /// Taken by the engine's thread for its whole life, or by whoever steps.
    nics: Mutex<Vec<Nic>>,
    stepped: bool,
    mail: Mutex<Vec<Request>>,
    has_mail: AtomicBool,
    stop: AtomicBool,
    clock: Clock,
    virtual_now: AtomicU64,
    gone: Mutex<Option<EngineGone>>,
}

/// NICs that one engine drives. Clones are handles to the same engine, which ends with the last of them.
#[derive(Clone)]
pub struct SoftNics {
    shared: Arc<Shared>,
    // Declared after `shared` only for reading; the engine ends when the last handle goes.
    _thread: Option<Arc<EngineThread>>,
}

struct EngineThread {
    shared: Arc<Shared>,
    handle: Mutex<Option<JoinHandle<()>>>,
}

/// Packets a NIC handles before the next NIC's turn.
const BUDGET: u32 = 256;
/// Idle steps before the engine lets others run.
const SPINS: u32 = 2_000;
const ANSWER: Duration = Duration::from_secs(10);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Nanoseconds of the process's monotonic clock.
/// Nanoseconds of the machine's monotonic clock: NICs of several processes agree on it.
fn real_now() -> Nanos {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as Nanos * 1_000_000_000 + time.tv_nsec as Nanos
}

impl Shared {
    fn now(&self) -> Nanos {
        match self.clock {
            Clock::Real => real_now(),
            Clock::Virtual => self.virtual_now.load(Ordering::Acquire),
        }
    }

    /// One round over all NICs. True if anything was done.
    fn round(&self, nics: &mut [Nic], budget: u32) -> bool {
        let now = self.now();
        let mut executed = 0u32;
        let mut next: Option<Nanos> = None;
        for nic in nics {
            let step = nic.step(now, budget);
            executed = executed.saturating_add(step.executed);
            next = match (next, step.next_event) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
        }
        if executed == 0
            && self.clock == Clock::Virtual
            && let Some(next) = next
        {
            self.virtual_now.store(next.max(now), Ordering::Release);
            return true;
        }
        executed > 0
    }

    fn read_mail(&self, nics: &mut [Nic]) {
        if self.has_mail.swap(false, Ordering::Acquire) {
            let mail = std::mem::take(&mut *lock(&self.mail));
            for request in mail {
                request(nics);
            }
        }
    }

    fn why_gone(&self) -> EngineGone {
        lock(&self.gone).clone().unwrap_or(EngineGone::Stopped)
    }
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned())
}

fn run(shared: &Shared, cpu: Option<usize>) {
    if let Some(cpu) = cpu {
        let mut set = rustix::thread::CpuSet::new();
        if cpu < rustix::thread::CpuSet::MAX_CPU {
            set.set(cpu);
            // A CPU that isn't there leaves the thread where it is.
            let _ = rustix::thread::sched_setaffinity(None, &set);
        }
    }
    let mut nics = lock(&shared.nics);
    let result = catch_unwind(AssertUnwindSafe(|| {
        let mut idle = 0u32;
        while !shared.stop.load(Ordering::Relaxed) {
            if shared.has_mail.load(Ordering::Relaxed) {
                shared.read_mail(&mut nics);
            }
            if shared.round(&mut nics, BUDGET) {
                idle = 0;
            } else {
                idle = idle.saturating_add(1);
                if idle < SPINS {
                    std::hint::spin_loop();
                } else {
                    std::thread::yield_now();
                }
            }
        }
    }));
    let why = match result {
        Ok(()) => EngineGone::Stopped,
        Err(panic) => EngineGone::Panicked { message: text_of(&*panic) },
    };
    *lock(&shared.gone) = Some(why);
    // Waiters' requests are dropped unanswered, which tells them.
    lock(&shared.mail).clear();
}

impl SoftNics {
    /// NICs with a thread of their own.
    ///
    /// # Errors
    /// The thread can't be started.
    pub fn spawn(nics: Vec<Nic>, options: EngineOptions) -> Result<Self, EngineGone> {
        let mut nics = nics;
        for nic in &mut nics {
            nic.far = true;
        }
        let shared = Arc::new(Shared::new(nics, options.clock, false));
        let engine = Arc::clone(&shared);
        let handle = std::thread::Builder::new()
            .name("softnic".to_owned())
            .spawn(move || run(&engine, options.cpu))
            .map_err(|error| EngineGone::Spawn { message: error.to_string() })?;
        let thread = EngineThread { shared: Arc::clone(&shared), handle: Mutex::new(Some(handle)) };
        Ok(Self { shared, _thread: Some(Arc::new(thread)) })
    }

    /// NICs that are stepped by whoever waits, through [`try_step`](Self::try_step).
    #[must_use]
    pub fn stepped(nics: Vec<Nic>, clock: Clock) -> Self {
        Self { shared: Arc::new(Shared::new(nics, clock, true)), _thread: None }
    }

    /// Whether waiters must call [`try_step`](Self::try_step).
    #[must_use]
    pub fn is_stepped(&self) -> bool {
        self.shared.stepped
    }

    /// The engine's time.
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.shared.now()
    }

    /// Steps all NICs once, with at most about `budget` packets each; returns at once if somebody else is
    /// stepping, or if the engine has a thread. True if anything was done.
    pub fn try_step(&self, budget: u32) -> bool {
        if !self.shared.stepped {
            return false;
        }
        let mut nics = match self.shared.nics.try_lock() {
            Ok(nics) => nics,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        if lock(&self.shared.gone).is_some() {
            return false;
        }
        match catch_unwind(AssertUnwindSafe(|| self.shared.round(&mut nics, budget))) {
            Ok(did) => did,
            Err(panic) => {
                let message = text_of(&*panic);
                *lock(&self.shared.gone) = Some(EngineGone::Panicked { message });
                false
            }
        }
    }

    /// Runs `f` on NIC `id`, between two steps.
    ///
    /// # Errors
    /// The engine is gone or doesn't answer within 10 s, or has no such NIC. A panic in `f` or in the engine
    /// is its end, and is told to this and to all later callers.
    pub fn control<R, F>(&self, id: u16, f: F) -> Result<R, EngineGone>
    where
        F: FnOnce(&mut Nic) -> R + Send + 'static,
        R: Send + 'static,
    {
        let find = move |nics: &mut [Nic]| {
            nics.iter_mut().find(|nic| nic.id() == id).map(f).ok_or(EngineGone::NoSuchNic { id })
        };
        if self.shared.stepped {
            let mut nics = lock(&self.shared.nics);
            if lock(&self.shared.gone).is_some() {
                return Err(self.shared.why_gone());
            }
            return catch_unwind(AssertUnwindSafe(|| find(&mut nics))).unwrap_or_else(|panic| {
                let gone = EngineGone::Panicked { message: text_of(&*panic) };
                *lock(&self.shared.gone) = Some(gone.clone());
                Err(gone)
            });
        }
        let (answer, answered) = mpsc::sync_channel(1);
        {
            let mut mail = lock(&self.shared.mail);
            if lock(&self.shared.gone).is_some() {
                return Err(self.shared.why_gone());
            }
            mail.push(Box::new(move |nics| {
                // The caller may have given up.
                let _ = answer.send(find(nics));
            }));
        }
        self.shared.has_mail.store(true, Ordering::Release);
        match answered.recv_timeout(ANSWER) {
            Ok(result) => result,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                Err(EngineGone::Unresponsive { seconds: ANSWER.as_secs() })
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                // The engine says why just after it drops what it was doing.
                let deadline = Instant::now() + ANSWER;
                while lock(&self.shared.gone).is_none() && Instant::now() < deadline {
                    std::thread::yield_now();
                }
                Err(self.shared.why_gone())
            }
        }
    }

    /// Ends the engine for all handles.
    pub fn stop(&self) {
        match &self._thread {
            Some(thread) => thread.end(),
            None => {
                lock(&self.shared.gone).get_or_insert(EngineGone::Stopped);
            }
        }
    }

    /// Why the engine is gone, if it is.
    #[must_use]
    pub fn gone(&self) -> Option<EngineGone> {
        lock(&self.shared.gone).clone()
    }
}

impl Shared {
    fn new(nics: Vec<Nic>, clock: Clock, stepped: bool) -> Self {
        Self {
            nics: Mutex::new(nics),
            stepped,
            mail: Mutex::new(Vec::new()),
            has_mail: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            clock,
            virtual_now: AtomicU64::new(0),
            gone: Mutex::new(None),
        }
    }
}

impl EngineThread {
    fn end(&self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        let Some(handle) = lock(&self.handle).take() else { return };
        if handle.thread().id() == std::thread::current().id() {
            return;
        }
        let deadline = Instant::now() + ANSWER;
        while !handle.is_finished() {
            if Instant::now() >= deadline {
                // It is left to itself: it ends with its step, or never, but nobody waits for it.
                return;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        let _ = handle.join();
    }
}

impl Drop for EngineThread {
    fn drop(&mut self) {
        self.end();
    }
}
