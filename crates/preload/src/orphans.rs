//! Memory that the program gives back to the system while it is registered.
//!
//! A ConnectX has such pages pinned: what it writes goes to pages that nobody else sees any more. The NIC here is a thread of
//! the program's own process, and would fault. So its faults, in memory that was registered, are answered with a page of
//! zeros in the place; all others are the program's own, and go to the handler that it has, or to none.
//!
//! The program sees and sets its own handlers as if there were none of ours: `sigaction` and `signal` are defined here again,
//! and ours takes its mask and flags from the program's. One that is set by a system call of its own (Go's) replaces ours.

use std::ffi::{c_int, c_void};
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

/// What the program has set for each of the signals; null before ours is in front. Never freed: a handler may be in it.
static THEIRS: [AtomicPtr<libc::sigaction>; 2] = [const { AtomicPtr::new(null_mut()) }; 2];
static IN_FRONT: AtomicBool = AtomicBool::new(false);

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
        if set(signal, null(), &raw mut now) == 0 {
            theirs.store(Box::into_raw(Box::new(now)), Ordering::Release);
            let ours = in_front_of(&now);
            set(signal, &raw const ours, null_mut());
        }
    }
}

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
    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = handle;
    ours.sa_sigaction = handler as usize;
    // What the last one asks for is done by `pass_on`.
    ours.sa_flags = (ours.sa_flags | libc::SA_SIGINFO) & !libc::SA_RESETHAND;
    ours
}

/// Everything in here, and in what it calls, may be done in a handler of signals: loads, stores and system calls.
extern "C" fn handle(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel hands a valid one, whose address is there for these two signals; errno is the thread's own.
    let (address, sent, errno) =
        unsafe { ((*info).si_addr() as u64, (*info).si_code <= 0, *libc::__errno_location()) };
    let by_the_nic = !sent && process::existing().is_some_and(|process| process.is_in_the_nic());
    if by_the_nic && was_registered(address) && replace(signal, address) {
        if let Some(process) = process::existing() {
            process.host.unmapped(address);
        }
        crate::set_errno(errno);
        return;
    }
    pass_on(signal, info, context, sent);
}

/// Puts a page of zeros where one is missing.
fn replace(signal: c_int, address: u64) -> bool {
    let page = (address & !(PAGE - 1)) as usize as *mut c_void;
    // A page behind a file's end is mapped, and of no use to anybody.
    let how = if signal == libc::SIGBUS { libc::MAP_FIXED } else { libc::MAP_FIXED_NOREPLACE };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | how;
    let (size, access) = (PAGE as usize, libc::PROT_READ | libc::PROT_WRITE);
    real!(
        c"mmap",
        fn(*mut c_void, usize, c_int, c_int, c_int, libc::off_t) -> *mut c_void,
        page,
        size,
        access,
        flags,
        -1,
        0
    ) == page
}

fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void, sent: bool) {
    let theirs = place_of(signal).map_or(null_mut(), |at| THEIRS[at].load(Ordering::Acquire));
    // SAFETY: null, or leaked when it was set.
    let Some(theirs) = (unsafe { theirs.as_ref() }) else { return by_default(signal, sent) };
    match theirs.sa_sigaction {
        libc::SIG_IGN if sent => {}
        // Nobody can ignore a fault: it would happen again at once.
        libc::SIG_DFL | libc::SIG_IGN => by_default(signal, sent),
        handler => {
            if theirs.sa_flags & libc::SA_RESETHAND != 0 {
                by_default(signal, false);
            }
            if theirs.sa_flags & libc::SA_SIGINFO != 0 {
                // SAFETY: the program set it as a handler with three arguments.
                let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                    unsafe { std::mem::transmute(handler) };
                handler(signal, info, context);
            } else {
                // SAFETY: the program set it as a handler with one argument.
                let handler: extern "C" fn(c_int) = unsafe { std::mem::transmute(handler) };
                handler(signal);
            }
        }
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
    let ours = given.map(in_front_of);
    // The kernel's checks are made of ours.
    let status = set(signal, ours.as_ref().map_or(null(), |ours| ours), null_mut());
    if status == 0 {
        let before = match given {
            Some(given) => theirs.swap(Box::into_raw(Box::new(*given)), Ordering::AcqRel),
            None => theirs.load(Ordering::Acquire),
        };
        // SAFETY: `old` is null or writable, by libc's contract; `before` is null or was leaked.
        if let (Some(old), Some(before)) = unsafe { (old.as_mut(), before.as_ref()) } {
            *old = *before;
        }
    }
    status
}

/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn signal(signal: c_int, handler: libc::sighandler_t) -> libc::sighandler_t {
    if place_of(signal).is_none() || !IN_FRONT.load(Ordering::Acquire) {
        return real!(
            c"signal",
            fn(c_int, libc::sighandler_t) -> libc::sighandler_t,
            signal,
            handler
        );
    }
    // SAFETY: all zeros are no flags and an empty mask.
    let mut new: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let mut old: libc::sigaction = unsafe { std::mem::zeroed() };
    new.sa_sigaction = handler;
    new.sa_flags = libc::SA_RESTART;
    // SAFETY: both are there.
    match unsafe { sigaction(signal, &raw const new, &raw mut old) } {
        0 => old.sa_sigaction,
        _ => libc::SIG_ERR,
    }
}
