//! Memory that the program gives back to the system while it is registered.
//!
//! A ConnectX has such pages pinned: what it writes goes to pages that nobody else sees any more. The NIC here is a thread of
//! the program's own process, and would fault. So its faults, in memory that was registered, are answered with a page of
//! zeros in the place; all others are the program's own, and go to the handler that it has, or to none.
//!
//! The program sees and sets its own handlers as if there were none of ours: `sigaction` and `signal` are defined here again,
//! and ours takes its mask and flags from the program's. One that is set by a system call of its own (Go's) replaces ours.
//!
//! Nothing here allocates once there are devices, or waits: `sigaction` may be called in a handler, and often is, by one
//! that was reached from inside an allocator.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::memory::PAGE;
use crate::process;
use crate::real::real;

/// Stretches of memory that have been registered at any time. Those that touch are one; with more than this, all memory is.
const MOST: usize = 4096;
static FIRST: [AtomicU64; MOST] = [const { AtomicU64::new(u64::MAX) }; MOST];
static END: [AtomicU64; MOST] = [const { AtomicU64::new(0) }; MOST];
static COUNT: AtomicUsize = AtomicUsize::new(0);
static TURN: Mutex<()> = Mutex::new(());

/// Notes that the NIC may reach `first..end` from now on.
pub(crate) fn registered(first: u64, end: u64) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let count = COUNT.load(Ordering::Relaxed).min(MOST);
    let touching = (0..count).find(|&at| {
        FIRST[at].load(Ordering::Relaxed) <= end && first <= END[at].load(Ordering::Relaxed)
    });
    match touching {
        Some(at) => {
            FIRST[at].fetch_min(first, Ordering::Relaxed);
            END[at].fetch_max(end, Ordering::Relaxed);
        }
        None => {
            if let (Some(from), Some(to)) = (FIRST.get(count), END.get(count)) {
                from.store(first, Ordering::Relaxed);
                to.store(end, Ordering::Relaxed);
            }
            COUNT.store(count + 1, Ordering::Release);
        }
    }
}

fn was_registered(address: u64) -> bool {
    let count = COUNT.load(Ordering::Acquire);
    count > MOST
        || (0..count).any(|at| {
            (FIRST[at].load(Ordering::Relaxed)..END[at].load(Ordering::Relaxed)).contains(&address)
        })
}

const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// What the program has set for each of the signals; null before ours is in front.
static THEIRS: [AtomicPtr<libc::sigaction>; 2] = [const { AtomicPtr::new(null_mut()) }; 2];
static IN_FRONT: AtomicBool = AtomicBool::new(false);

/// A setting that the program has made at any time. Never changed after: a handler may be reading it.
struct Kept {
    is_there: AtomicBool,
    action: UnsafeCell<MaybeUninit<libc::sigaction>>,
}

// SAFETY: written once, by whoever was given the place, before `is_there`; read only after that.
unsafe impl Sync for Kept {}

impl Kept {
    fn get(&self) -> Option<&libc::sigaction> {
        // SAFETY: `is_there` is set when it has been written, and it isn't written again.
        self.is_there
            .load(Ordering::Acquire)
            .then(|| unsafe { (*self.action.get()).assume_init_ref() })
    }
}

/// Programs go back and forth between few.
static KEPT: [Kept; 256] = [const {
    Kept { is_there: AtomicBool::new(false), action: UnsafeCell::new(MaybeUninit::uninit()) }
}; 256];
static TAKEN: AtomicUsize = AtomicUsize::new(0);

/// A copy that stays. None if the program has made more settings than are kept.
fn keep(action: &libc::sigaction) -> Option<*mut libc::sigaction> {
    let is_same = |kept: &libc::sigaction| {
        let signals = 1..=libc::SIGRTMAX();
        // SAFETY: both sets are there.
        let is_in = |set: &libc::sigset_t, signal| unsafe { libc::sigismember(set, signal) };
        kept.sa_sigaction == action.sa_sigaction
            && kept.sa_flags == action.sa_flags
            && signals
                .into_iter()
                .all(|signal| is_in(&kept.sa_mask, signal) == is_in(&action.sa_mask, signal))
    };
    let taken = TAKEN.load(Ordering::Relaxed).min(KEPT.len());
    let known = KEPT[..taken].iter().find(|kept| kept.get().is_some_and(is_same));
    if let Some(action) = known.and_then(Kept::get) {
        return Some(std::ptr::from_ref(action).cast_mut());
    }
    let place = TAKEN
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |taken| {
            (taken < KEPT.len()).then_some(taken + 1)
        })
        .ok()?;
    let kept = &KEPT[place];
    // SAFETY: the place was given to this call alone, and nobody reads it before it is said to be there.
    unsafe { (*kept.action.get()).write(*action) };
    kept.is_there.store(true, Ordering::Release);
    kept.get().map(|action| std::ptr::from_ref(action).cast_mut())
}

fn place_of(signal: c_int) -> Option<usize> {
    SIGNALS.iter().position(|&ours| ours == signal)
}

/// Puts this library's handler in front of the program's.
pub(crate) fn install() {
    if IN_FRONT.swap(true, Ordering::AcqRel) {
        return;
    }
    for (signal, theirs) in SIGNALS.into_iter().zip(&THEIRS) {
        // SAFETY: plain values; the second call only asks.
        let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
        let handler: Handler = handle;
        // If another thread has set one in the meantime, ours is in front of that one already.
        if set(signal, null(), &raw mut now) != 0 || now.sa_sigaction == handler as usize {
            continue;
        }
        let Some(kept) = keep(&now) else { continue };
        if theirs.compare_exchange(null_mut(), kept, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            let ours = in_front_of(&now);
            set(signal, &raw const ours, null_mut());
        }
    }
}

/// A handler may be left by an exception, as by a jump.
type Handler = extern "C-unwind" fn(c_int, *mut libc::siginfo_t, *mut c_void);

fn set(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    real!(
        c"sigaction",
        fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int,
        signal,
        new,
        old
    )
}

/// This library's handler, delivered as the program wants its own to be.
fn in_front_of(theirs: &libc::sigaction) -> libc::sigaction {
    let mut ours = *theirs;
    let handler: Handler = handle;
    ours.sa_sigaction = handler as usize;
    // What the last one asks for is done by `pass_on`.
    ours.sa_flags = (ours.sa_flags | libc::SA_SIGINFO) & !libc::SA_RESETHAND;
    ours
}

/// Everything in here, and in what it calls, may be done in a handler of signals: loads, stores and system calls.
extern "C-unwind" fn handle(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel hands a valid one, whose address is there for these two signals; errno is the thread's own.
    let (address, code, errno) =
        unsafe { ((*info).si_addr() as u64, (*info).si_code, *libc::__errno_location()) };
    let process = process::existing().filter(|process| process.is_in_the_nic());
    if let Some(process) = process
        && was_registered(address)
        && let Some(was_missing) = replace(signal, code, address)
    {
        if was_missing {
            process.host.unmapped(address);
        }
        crate::set_errno(errno);
        return;
    }
    crate::set_errno(errno);
    pass_on(signal, info, context, code <= 0);
}

/// Puts a page of zeros where one is missing. False if the program has just mapped what it wants there; none if nothing is
/// missing, as of a page that may only be read, or of one that the machine has lost.
fn replace(signal: c_int, code: c_int, address: u64) -> Option<bool> {
    const SEGV_MAPERR: c_int = 1;
    let how = match (signal, code) {
        (libc::SIGSEGV, SEGV_MAPERR) => libc::MAP_FIXED_NOREPLACE,
        // A page behind a file's end is mapped, and of no use to anybody.
        (libc::SIGBUS, libc::BUS_ADRERR) => libc::MAP_FIXED,
        _ => return None,
    };
    let page = address & !(PAGE - 1);
    let flags = i64::from(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | how);
    let access = i64::from(libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: of memory that the program has given back, or can't use. Not libc's `mmap`, which may have to be found first.
    let mapped = unsafe { libc::syscall(libc::SYS_mmap, page, PAGE, access, flags, -1i64, 0i64) };
    match std::io::Error::last_os_error().raw_os_error() {
        _ if mapped == page as i64 => Some(true),
        Some(libc::EEXIST) if mapped == -1 => Some(false),
        _ => None,
    }
}

fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void, sent: bool) {
    let theirs = place_of(signal).map_or(null_mut(), |at| THEIRS[at].load(Ordering::Acquire));
    // SAFETY: null, or kept when it was set.
    let Some(theirs) = (unsafe { theirs.as_ref() }) else { return by_default(signal, sent) };
    match theirs.sa_sigaction {
        libc::SIG_IGN if sent => {}
        // Nobody can ignore a fault: it would happen again at once.
        libc::SIG_DFL | libc::SIG_IGN => by_default(signal, sent),
        handler => {
            if theirs.sa_flags & libc::SA_RESETHAND != 0 {
                reset(signal, theirs);
            }
            if theirs.sa_flags & libc::SA_SIGINFO != 0 {
                // SAFETY: the program set it as a handler with three arguments.
                let handler: Handler = unsafe { std::mem::transmute(handler) };
                handler(signal, info, context);
            } else {
                // SAFETY: the program set it as a handler with one argument.
                let handler: extern "C-unwind" fn(c_int) = unsafe { std::mem::transmute(handler) };
                handler(signal);
            }
        }
    }
}

/// Takes a handler away that is for once; the one in front stays.
fn reset(signal: c_int, theirs: &libc::sigaction) {
    let default = libc::sigaction { sa_sigaction: libc::SIG_DFL, ..*theirs };
    if let (Some(at), Some(default)) = (place_of(signal), keep(&default)) {
        let once = std::ptr::from_ref(theirs).cast_mut();
        // Unless it has set another one in the meantime.
        let _ = THEIRS[at].compare_exchange(once, default, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// The fault happens again when the handler is left, and ends the process; a signal that was sent is sent again.
fn by_default(signal: c_int, sent: bool) {
    // SAFETY: all zeros is the default action, no flags and an empty mask.
    let default: libc::sigaction = unsafe { std::mem::zeroed() };
    set(signal, &raw const default, null_mut());
    if sent {
        // SAFETY: delivered when this handler is left.
        unsafe { libc::raise(signal) };
    }
}

/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    let place = place_of(signal).filter(|_| IN_FRONT.load(Ordering::Acquire));
    let Some(theirs) = place.map(|at| &THEIRS[at]) else { return set(signal, new, old) };
    // SAFETY: null or valid, by libc's contract.
    let given = unsafe { new.as_ref() };
    let kept = given.map(keep);
    if kept == Some(None) {
        crate::set_errno(libc::ENOMEM);
        return -1;
    }
    let ours = given.map(in_front_of);
    // SAFETY: plain values.
    let mut was: libc::sigaction = unsafe { std::mem::zeroed() };
    // The kernel's checks are made of ours.
    let status = set(signal, ours.as_ref().map_or(null(), |ours| ours), &raw mut was);
    if status == 0 {
        let before = match kept.flatten() {
            Some(kept) => theirs.swap(kept, Ordering::AcqRel),
            None => theirs.load(Ordering::Acquire),
        };
        // SAFETY: `old` is null or writable, by libc's contract; `before` is null, while ours is being put in front, or kept.
        if let Some(old) = unsafe { old.as_mut() } {
            // SAFETY: as above.
            *old = *unsafe { before.as_ref() }.unwrap_or(&was);
        }
    }
    status
}

/// Sets a handler with these flags. None if it isn't this library's business.
fn simply(signal: c_int, handler: libc::sighandler_t, flags: c_int) -> Option<libc::sighandler_t> {
    place_of(signal).filter(|_| IN_FRONT.load(Ordering::Acquire))?;
    // SAFETY: all zeros are no flags and an empty mask.
    let mut new: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let mut old: libc::sigaction = unsafe { std::mem::zeroed() };
    new.sa_sigaction = handler;
    new.sa_flags = flags;
    // SAFETY: both are there.
    Some(match unsafe { sigaction(signal, &raw const new, &raw mut old) } {
        0 => old.sa_sigaction,
        _ => libc::SIG_ERR,
    })
}

/// For one time, as `signal` is to a program in strict C.
const ONCE: c_int = libc::SA_RESETHAND | libc::SA_NODEFER;

macro_rules! setting {
    ($($name:ident, $real:literal, $flags:expr;)*) => {$(
        /// # Safety
        /// As libc's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            signal: c_int,
            handler: libc::sighandler_t,
        ) -> libc::sighandler_t {
            simply(signal, handler, $flags).unwrap_or_else(|| {
                real!($real, fn(c_int, libc::sighandler_t) -> libc::sighandler_t, signal, handler)
            })
        }
    )*};
}

setting! {
    signal, c"signal", libc::SA_RESTART;
    ssignal, c"ssignal", libc::SA_RESTART;
    bsd_signal, c"bsd_signal", libc::SA_RESTART;
    sysv_signal, c"sysv_signal", ONCE;
    __sysv_signal, c"__sysv_signal", ONCE;
}
