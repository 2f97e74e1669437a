//! The shipped device code under model checkers.
//!
//! The C++ headers of `crates/device` are compiled with `GIC_MODEL`: every shared access is a call into here,
//! and from here into loom (all interleavings and all values that the C++ memory model lets a load return) or
//! shuttle (random schedules of the whole, with a real software NIC). What is checked is in `tests/`; no other
//! crate may depend on this one.

mod access;
pub mod queue;
pub mod ring;

pub use access::{Entered, LoomMemory, ShuttleMemory, Width, load, store};

use device::view::Failure;

const DONE: u32 = 1;

fn outcome(status: u32, failure: u64) -> Result<(), Failure> {
    match Failure::unpack(failure) {
        Some(failure) => Err(failure),
        None => {
            assert_eq!(status, DONE, "neither done nor an error with its failure");
            Ok(())
        }
    }
}
