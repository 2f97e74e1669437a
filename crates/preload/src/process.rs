//! The devices of this process: made at the first open, stopped at exit, left behind at fork.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use uverbs::{Context, Errno, Fabric, Host, Settings};

use crate::descriptors;
use crate::paths;

/// The devices, and the files that are open.
pub(crate) struct Process {
    pub(crate) host: Host,
    pub(crate) pid: i32,
    contexts: Mutex<Vec<Option<Arc<Open>>>>,
}

/// An open uverbs file.
pub(crate) struct Open {
    pub(crate) context: Mutex<Context>,
}

/// The process's devices; null before the first open, and after a fork. Never freed: other threads may be in it.
static PROCESS: AtomicPtr<Process> = AtomicPtr::new(std::ptr::null_mut());
/// Somebody is making them.
static MAKING: AtomicBool = AtomicBool::new(false);

/// The process's devices, if they have been made.
pub(crate) fn existing() -> Option<&'static Process> {
    // SAFETY: null, or a process that was leaked when it was made.
    unsafe { PROCESS.load(Ordering::Acquire).as_ref() }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the run says: where the fabric is, and what the devices are.
fn configured() -> Option<(Fabric, Settings)> {
    let text = std::fs::read_to_string(paths::run()?.join("run")).ok()?;
    let settings = Settings::read(&text)?;
    let fabric = text.lines().find_map(|line| line.strip_prefix("fabric "))?;
    match Fabric::open(fabric.as_ref()) {
        Ok(fabric) => Some((fabric, settings)),
        Err(error) => {
            eprintln!("gicbench nic: {error}");
            None
        }
    }
}

fn make() -> Result<&'static Process, Errno> {
    while MAKING.swap(true, Ordering::Acquire) {
        std::thread::yield_now();
    }
    let made = match existing() {
        Some(process) => Ok(process),
        None => configured().ok_or(Errno::ENOENT).map(|(fabric, settings)| {
            static HANDLERS: AtomicBool = AtomicBool::new(false);
            if !HANDLERS.swap(true, Ordering::Relaxed) {
                // SAFETY: both are functions of this library, which is never unloaded.
                unsafe {
                    libc::pthread_atfork(None, None, Some(forked));
                    libc::atexit(ended);
                }
            }
            // SAFETY: no arguments, no effect.
            let pid = unsafe { libc::getpid() };
            let host = Host::new(fabric, settings);
            let process: &'static Process =
                Box::leak(Box::new(Process { host, pid, contexts: Mutex::new(Vec::new()) }));
            crate::orphans::install();
            PROCESS.store(std::ptr::from_ref(process).cast_mut(), Ordering::Release);
            process
        }),
    };
    MAKING.store(false, Ordering::Release);
    made
}

/// In a forked child: the engine's thread is not here, and the parent's objects are not this process's.
extern "C" fn forked() {
    PROCESS.store(std::ptr::null_mut(), Ordering::Release);
    MAKING.store(false, Ordering::Release);
    descriptors::all_dead();
}

/// At exit: what is on its way is finished, before the program's memory goes.
extern "C" fn ended() {
    if let Some(process) = existing()
        // SAFETY: no arguments, no effect.
        && process.pid == unsafe { libc::getpid() }
    {
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| process.host.stop()));
    }
}

/// Opens a device. Gives the number of the open file.
pub(crate) fn open(device: u16) -> Result<usize, Errno> {
    let process = make()?;
    let context = Context::open(&process.host, device)?;
    let open = Some(Arc::new(Open { context: Mutex::new(context) }));
    let mut contexts = lock(&process.contexts);
    let free = contexts.iter().position(Option::is_none);
    Ok(match free {
        Some(at) => {
            contexts[at] = open;
            at
        }
        None => {
            contexts.push(open);
            contexts.len() - 1
        }
    })
}

/// The open file of a number.
pub(crate) fn opened(number: usize) -> Result<Arc<Open>, Errno> {
    let process = existing().ok_or(Errno::EIO)?;
    lock(&process.contexts).get(number).and_then(Clone::clone).ok_or(Errno::EIO)
}

/// Closes the open file of a number: what was made through it is destroyed, when the last call on it has come back.
pub(crate) fn close(number: usize) {
    let Some(process) = existing() else { return };
    let open = lock(&process.contexts).get_mut(number).and_then(Option::take);
    drop(open);
}

impl Process {
    /// Whether the calling thread is doing the NIC's work.
    pub(crate) fn is_in_the_nic(&self) -> bool {
        self.host.is_driven_by_this_thread()
    }
}

impl Open {
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut Context) -> R) -> R {
        f(&mut lock(&self.context))
    }
}
