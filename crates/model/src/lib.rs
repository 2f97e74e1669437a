//! The shipped device code under model checkers.
//!
//! The C++ headers of `crates/device` are compiled with `GIC_MODEL`: every shared access is a call into here,
//! and from here into loom (all interleavings and all values that the C++ memory model lets a load return) or
//! shuttle (random schedules of the whole, with a real software NIC). What is checked is in `tests/`; no other
//! crate may depend on this one.

mod access;
pub mod queue;

pub use access::{Entered, LoomMemory, ShuttleMemory, Width, load, store};
