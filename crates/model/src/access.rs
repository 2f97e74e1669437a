//! The accesses that the headers make, and the two checkers that carry them out.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Bytes of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// 4 bytes.
    Word = 4,
    /// 8 bytes.
    Double = 8,
}

enum Backend {
    None,
    Loom(Rc<LoomCells>),
    Shuttle(Arc<shuttle::sync::atomic::AtomicBool>),
}

struct LoomCells {
    cells: HashMap<usize, (loom::sync::atomic::AtomicU64, Width)>,
    weakened: HashSet<usize>,
    fences: bool,
    /// Stores that wait for the one to the 8 bytes behind them.
    held: RefCell<HashMap<usize, Option<(u64, Ordering)>>>,
}

impl LoomCells {
    fn store(&self, at: usize, cell: &loom::sync::atomic::AtomicU64, value: u64, order: Ordering) {
        if let Some(held) = self.held.borrow_mut().get_mut(&at) {
            *held = Some((value, order));
            return;
        }
        cell.store(value, order);
        let before = at.wrapping_sub(8);
        let held = self.held.borrow_mut().get_mut(&before).and_then(Option::take);
        if let (Some((value, order)), Some((cell, _))) = (held, self.cells.get(&before)) {
            cell.store(value, order);
        }
    }
}

thread_local! {
    // Both checkers run all threads of a model on one thread of the system.
    static BACKEND: RefCell<Backend> = const { RefCell::new(Backend::None) };
}

/// Memory of one loom execution. Made at the start of the model, before its threads.
///
/// Loom's memory is apart from the real one: an address is registered with its first value, and any access to
/// one that isn't, or of another width, fails the model.
#[derive(Default)]
pub struct LoomMemory {
    cells: Vec<(usize, Width, u64)>,
    weakened: HashSet<usize>,
    without_fences: bool,
    late: HashSet<usize>,
}

impl LoomMemory {
    /// Registers an address with its first value.
    pub fn register<T>(&mut self, at: *const T, width: Width, value: u64) -> &mut Self {
        self.cells.push((at as usize, width, value));
        self
    }

    /// A mutation, to show that the check can fail: release stores to this address become relaxed.
    pub fn weaken<T>(&mut self, address: *const T) -> &mut Self {
        self.weakened.insert(address as usize);
        self
    }

    /// A mutation: fences order nothing.
    pub fn without_fences(&mut self) -> &mut Self {
        self.without_fences = true;
        self
    }

    /// The first half of a 16-byte store arrives after the second one.
    pub fn late<T>(&mut self, first_half: *const T) -> &mut Self {
        self.late.insert(first_half as usize);
        self
    }

    /// Puts it in force on this thread, until the guard goes.
    pub fn enter(&self) -> Entered {
        let cells = self
            .cells
            .iter()
            .map(|(at, width, value)| (*at, (loom::sync::atomic::AtomicU64::new(*value), *width)))
            .collect();
        let cells = LoomCells {
            cells,
            weakened: self.weakened.clone(),
            fences: !self.without_fences,
            held: RefCell::new(self.late.iter().map(|at| (*at, None)).collect()),
        };
        BACKEND.with(|b| b.replace(Backend::Loom(Rc::new(cells))));
        Entered(())
    }
}

/// Real memory, under shuttle's scheduler: before each access another thread may run.
#[derive(Debug, Default)]
pub struct ShuttleMemory;

impl ShuttleMemory {
    /// Puts it in force on this thread, until the guard goes.
    pub fn enter(&self) -> Entered {
        let point = Arc::new(shuttle::sync::atomic::AtomicBool::new(false));
        BACKEND.with(|b| b.replace(Backend::Shuttle(point)));
        Entered(())
    }
}

/// A checker in force.
#[must_use]
pub struct Entered(());

impl Drop for Entered {
    fn drop(&mut self) {
        BACKEND.with(|b| b.replace(Backend::None));
    }
}

enum Op {
    Load { acquire: bool },
    Store { value: u64, release: bool },
    Add { value: u64, ordered: bool },
    Max(u64),
    Cas { expected: u64, desired: u64 },
}

// The borrow ends before the access: another thread of the model may run in it.
enum Now {
    Loom(Rc<LoomCells>),
    Shuttle(Arc<shuttle::sync::atomic::AtomicBool>),
}

fn now() -> Now {
    BACKEND.with(|b| match &*b.borrow() {
        Backend::Loom(cells) => Now::Loom(Rc::clone(cells)),
        Backend::Shuttle(point) => Now::Shuttle(Arc::clone(point)),
        Backend::None => unwatched(),
    })
}

#[allow(clippy::panic, reason = "ends a model that can't be right")]
fn unwatched() -> ! {
    panic!("a modelled access outside of a model")
}

#[allow(clippy::panic, reason = "ends a model that is wrong")]
fn access(at: usize, width: Width, op: Op) -> u64 {
    match now() {
        Now::Loom(cells) => {
            let Some((cell, registered)) = cells.cells.get(&at) else {
                panic!("an access to {at:#x}, which is no part of the model");
            };
            assert_eq!(*registered, width, "an access to {at:#x} of another width");
            match op {
                Op::Load { acquire: true } => cell.load(Ordering::Acquire),
                Op::Load { acquire: false } => cell.load(Ordering::Relaxed),
                Op::Store { value, release } => {
                    let release = release && !cells.weakened.contains(&at);
                    let order = if release { Ordering::Release } else { Ordering::Relaxed };
                    cells.store(at, cell, value, order);
                    0
                }
                Op::Add { value, ordered } => {
                    let order = if ordered { Ordering::AcqRel } else { Ordering::Relaxed };
                    cell.fetch_add(value, order)
                }
                Op::Max(value) => cell.fetch_max(value, Ordering::AcqRel),
                Op::Cas { expected, desired } => cell
                    .compare_exchange(expected, desired, Ordering::AcqRel, Ordering::Acquire)
                    .unwrap_or_else(|was| was),
            }
        }
        Now::Shuttle(point) => {
            point.load(Ordering::SeqCst);
            match width {
                Width::Double => {
                    // SAFETY: the headers access what the model handed them, aligned, and all sides do so
                    // atomically.
                    real64(unsafe { AtomicU64::from_ptr(at as *mut u64) }, op)
                }
                Width::Word => {
                    // SAFETY: as above.
                    real32(unsafe { AtomicU32::from_ptr(at as *mut u32) }, op)
                }
            }
        }
    }
}

fn real64(cell: &AtomicU64, op: Op) -> u64 {
    const ORDER: Ordering = Ordering::SeqCst;
    match op {
        Op::Load { .. } => cell.load(ORDER),
        Op::Store { value, .. } => {
            cell.store(value, ORDER);
            0
        }
        Op::Add { value, .. } => cell.fetch_add(value, ORDER),
        Op::Max(value) => cell.fetch_max(value, ORDER),
        Op::Cas { expected, desired } => {
            cell.compare_exchange(expected, desired, ORDER, ORDER).unwrap_or_else(|was| was)
        }
    }
}

fn real32(cell: &AtomicU32, op: Op) -> u64 {
    const ORDER: Ordering = Ordering::SeqCst;
    u64::from(match op {
        Op::Load { .. } => cell.load(ORDER),
        Op::Store { value, .. } => {
            cell.store(value as u32, ORDER);
            0
        }
        Op::Add { value, .. } => cell.fetch_add(value as u32, ORDER),
        Op::Max(value) => cell.fetch_max(value as u32, ORDER),
        Op::Cas { expected, desired } => cell
            .compare_exchange(expected as u32, desired as u32, ORDER, ORDER)
            .unwrap_or_else(|was| was),
    })
}

/// A load by the model's own side of a protocol, a NIC's for instance.
#[must_use]
pub fn load<T>(at: *const T, width: Width, acquire: bool) -> u64 {
    access(at as usize, width, Op::Load { acquire })
}

/// A store by the model's own side of a protocol.
pub fn store<T>(at: *const T, width: Width, value: u64, release: bool) {
    access(at as usize, width, Op::Store { value, release });
}

fn width(bytes: u32) -> Width {
    if bytes == 4 { Width::Word } else { Width::Double }
}

// What `gic/atomics.hpp` and `gic/platform.hpp` declare under GIC_MODEL. They unwind: a failed model ends in
// a panic below device code.

#[unsafe(no_mangle)]
extern "C-unwind" fn gic_model_load(at: *const u8, bytes: u32, acquire: i32) -> u64 {
    access(at as usize, width(bytes), Op::Load { acquire: acquire != 0 })
}

#[unsafe(no_mangle)]
extern "C-unwind" fn gic_model_store(at: *mut u8, bytes: u32, value: u64, release: i32) {
    access(at as usize, width(bytes), Op::Store { value, release: release != 0 });
}

#[unsafe(no_mangle)]
extern "C-unwind" fn gic_model_add(at: *mut u8, bytes: u32, value: u64, ordered: i32) -> u64 {
    access(at as usize, width(bytes), Op::Add { value, ordered: ordered != 0 })
}

#[unsafe(no_mangle)]
extern "C-unwind" fn gic_model_max(at: *mut u8, bytes: u32, value: u64) -> u64 {
    access(at as usize, width(bytes), Op::Max(value))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn gic_model_cas(at: *mut u8, bytes: u32, expected: u64, desired: u64) -> u64 {
    access(at as usize, width(bytes), Op::Cas { expected, desired })
}

#[unsafe(no_mangle)]
extern "C-unwind" fn gic_model_fence() {
    match now() {
        Now::Loom(cells) => {
            if cells.fences {
                loom::sync::atomic::fence(Ordering::AcqRel);
            }
        }
        Now::Shuttle(point) => {
            point.load(Ordering::SeqCst);
        }
    }
}

#[unsafe(no_mangle)]
extern "C-unwind" fn gic_model_yield() {
    match now() {
        Now::Loom(_) => loom::thread::yield_now(),
        Now::Shuttle(_) => shuttle::thread::yield_now(),
    }
}

/// Time stands still in loom's models, which have no deadlines; in shuttle's each reading is a tick.
#[unsafe(no_mangle)]
extern "C-unwind" fn gic_model_clock() -> u64 {
    static TICKS: AtomicU64 = AtomicU64::new(1);
    match now() {
        Now::Loom(_) => 1,
        Now::Shuttle(_) => TICKS.fetch_add(1, Ordering::Relaxed),
    }
}
