//! How the engine's thread shares processors with the program that it serves.
//!
//! A program that polls never gives its processor up, so on a machine of few processors the engine has to take its turn,
//! and give it back. Which way is best depends on the traffic:
//!
//! * Sparse: it naps after a few steps without work, and a peer that has published something wakes it. Who has slept is
//!   let in at once, before a program that polls. A round trip of `ib_write_lat` took 0.05 ms so, and 4 ms (a tick of the
//!   scheduler) with an engine that yields.
//! * Streaming: the engines of all processes keep to one processor and yield to each other, and the programs have the
//!   others. Left to itself, the scheduler puts a program and its engine together, a slice each: `ib_write_bw -s 8 -l 32`
//!   then moved 1.3 M messages/s, and so it moves 5.3 M.
//!
//! With processors to spare the engine spins.

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
        // A fault that is blocked ends the process, whoever would have answered it.
        libc::sigdelset(&raw mut all, libc::SIGSEGV);
        libc::sigdelset(&raw mut all, libc::SIGBUS);
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

/// What to do after a step that found nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    Spin,
    Yield,
    /// Until woken, or for this time.
    Nap(Duration),
}

/// What the traffic is like, on a machine of few processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pace {
    Sparse,
    Stream,
}

/// Decides how the engine rests.
pub(crate) struct Turn {
    /// With a processor to itself, the engine is there at once.
    roomy: bool,
    /// Where the engine may run.
    allowed: Processors,
    pace: Pace,
    /// Steps that found nothing, one after the other.
    idle: u32,
    /// When the last step found something, and when the window began in which `items` are counted.
    worked: u64,
    window: u64,
    items: u64,
}

/// Steps without work before the first rest, with processors to spare and without.
const ROOMY_SPINS: u32 = 20_000;
const SPINS: u32 = 16;
/// The shortest nap, and the longest.
const NAPS: [Duration; 2] = [Duration::from_micros(10), Duration::from_micros(200)];
/// Naps until they are longer by the shortest.
const PATIENCE: u32 = 64;
/// What is executed in a window, of nanoseconds, when traffic streams; and the longest pause in a stream.
const STREAM: u64 = 128;
const WINDOW: u64 = 1_000_000;
const PAUSE: u64 = 200_000;

impl Turn {
    pub(crate) fn new() -> Self {
        let allowed = Processors::allowed();
        let roomy = allowed.count() > 4;
        Self { roomy, allowed, pace: Pace::Sparse, idle: 0, worked: 0, window: 0, items: 0 }
    }

    /// A step has executed `items`.
    pub(crate) fn worked(&mut self, items: u32, now: u64) {
        self.idle = 0;
        self.worked = now;
        self.items += u64::from(items);
        if now.saturating_sub(self.window) >= WINDOW {
            let streams = self.items >= STREAM && now.saturating_sub(self.window) < 2 * WINDOW;
            self.window = now;
            self.items = 0;
            if streams {
                self.set(Pace::Stream);
            }
        }
    }

    /// A step has found nothing.
    pub(crate) fn rest(&mut self, now: u64) -> Rest {
        self.idle = self.idle.saturating_add(1);
        if self.roomy {
            return match self.idle.checked_sub(ROOMY_SPINS) {
                None => Rest::Spin,
                Some(naps) => Rest::nap(naps),
            };
        }
        if self.pace == Pace::Stream && now.saturating_sub(self.worked) > PAUSE {
            self.set(Pace::Sparse);
        }
        match (self.pace, self.idle.checked_sub(SPINS)) {
            (_, None) => Rest::Spin,
            (Pace::Stream, _) => Rest::Yield,
            (Pace::Sparse, Some(naps)) => Rest::nap(naps),
        }
    }

    fn set(&mut self, pace: Pace) {
        if self.roomy || self.pace == pace {
            return;
        }
        self.pace = pace;
        match pace {
            Pace::Stream => self.allowed.last().run_here(),
            Pace::Sparse => self.allowed.run_here(),
        }
    }
}

impl Rest {
    fn nap(naps: u32) -> Self {
        Self::Nap((NAPS[0] * (1 + naps / PATIENCE)).min(NAPS[1]))
    }
}

/// A set of processors.
#[derive(Clone, Copy)]
struct Processors(libc::cpu_set_t);

impl Processors {
    /// Those that the calling thread may run on; none if the system doesn't say.
    fn allowed() -> Self {
        // SAFETY: plain bits, zero is the empty set; the system writes no more than its size.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            if libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) != 0 {
                set = std::mem::zeroed();
            }
            Self(set)
        }
    }

    fn members(&self) -> impl DoubleEndedIterator<Item = usize> + '_ {
        // SAFETY: the number is below the set's size.
        (0..libc::CPU_SETSIZE as usize).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &self.0) })
    }

    fn count(&self) -> usize {
        self.members().count()
    }

    /// The last of them alone.
    fn last(&self) -> Self {
        // SAFETY: as above.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            if let Some(last) = self.members().next_back() {
                libc::CPU_SET(last, &mut set);
            }
            Self(set)
        }
    }

    /// Has the calling thread run on these alone. The system refuses an empty set.
    fn run_here(&self) {
        // SAFETY: the set is as long as it says.
        unsafe { libc::sched_setaffinity(0, size_of_val(&self.0), &raw const self.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tight() -> Turn {
        Turn { roomy: false, ..Turn::new() }
    }

    /// The first rest that is no spin.
    fn rest_after_spins(turn: &mut Turn, now: u64) -> Rest {
        (1..SPINS).for_each(|_| assert_eq!(turn.rest(now), Rest::Spin));
        turn.rest(now)
    }

    /// `items` a microsecond from `from` on, for two milliseconds and a bit.
    fn work(turn: &mut Turn, from: u64, items: u32) -> u64 {
        let last = from + 2_100_000;
        (from..=last).step_by(1000).for_each(|now| turn.worked(items, now));
        last
    }

    #[test]
    fn engine_naps_between_messages_and_yields_in_a_stream() {
        let mut turn = tight();
        turn.worked(1, 1000);
        assert_eq!(rest_after_spins(&mut turn, 2000), Rest::Nap(NAPS[0]));
        let end = work(&mut turn, 10_000, 4);
        assert_eq!(rest_after_spins(&mut turn, end + 1000), Rest::Yield);
        assert_eq!(turn.rest(end + PAUSE), Rest::Yield);
        assert!(matches!(turn.rest(end + PAUSE + 1), Rest::Nap(_)), "the stream is over");
    }

    #[test]
    fn messages_one_at_a_time_are_no_stream() {
        let mut turn = tight();
        (0..10_000_000).step_by(50_000).for_each(|now| turn.worked(2, now));
        assert!(matches!(rest_after_spins(&mut turn, 10_000_000), Rest::Nap(_)));
    }

    #[test]
    fn naps_get_longer_up_to_a_bound() {
        let mut turn = tight();
        rest_after_spins(&mut turn, 0);
        let naps: Vec<_> = (0..10_000).map(|_| turn.rest(0)).collect();
        let Rest::Nap(last) = naps[naps.len() - 1] else { panic!("{naps:?}") };
        assert_eq!(last, NAPS[1]);
    }

    #[test]
    fn processors_to_spare_are_spun_on_first() {
        let mut turn = Turn { roomy: true, ..Turn::new() };
        (1..ROOMY_SPINS).for_each(|_| assert_eq!(turn.rest(0), Rest::Spin));
        assert_eq!(turn.rest(0), Rest::Nap(NAPS[0]));
    }

    #[test]
    fn the_last_of_a_set_is_one_of_it() {
        let allowed = Processors::allowed();
        let last: Vec<_> = allowed.last().members().collect();
        assert_eq!(last, allowed.members().last().into_iter().collect::<Vec<_>>());
        assert_eq!(last.len(), 1);
    }
}
