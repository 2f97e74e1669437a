//! A proxy ring's producers as the headers have them.

use std::ptr;

use device::proxy::{Descriptor, ProxyChoice, RingView};
use device::view::Failure;

use crate::outcome;

unsafe extern "C-unwind" {
    fn gic_modelled_push(
        choice: *const ProxyChoice,
        ring: *const RingView,
        descriptor: *const Descriptor,
        ticket: *mut u64,
        failure: *mut u64,
    ) -> bool;
    fn gic_modelled_ring_wait(
        choice: *const ProxyChoice,
        ring: *const RingView,
        ticket: *const u64,
        status: *mut u32,
        failure: *mut u64,
    ) -> bool;
}

/// Pushes a descriptor, or raises the counter where the requests are known, and gives the ticket.
///
/// # Errors
/// What pushing met.
///
/// # Panics
/// For a choice that isn't built for models.
///
/// # Safety
/// The view leads to memory of the checker in force; a lone producer's state, to real memory that one thread
/// uses.
pub unsafe fn push(
    choice: &ProxyChoice,
    ring: &RingView,
    descriptor: &Descriptor,
) -> Result<u64, Failure> {
    let (mut ticket, mut failure) = (0, 0);
    // SAFETY: the caller's contract.
    let built =
        unsafe { gic_modelled_push(choice, ring, descriptor, &raw mut ticket, &raw mut failure) };
    assert!(built, "not built: {choice:?}");
    Failure::unpack(failure).map_or(Ok(ticket), Err)
}

/// Waits for a ticket.
///
/// # Errors
/// What waiting met.
///
/// # Panics
/// For a choice that isn't built for models.
///
/// # Safety
/// As [`push`].
pub unsafe fn wait(choice: &ProxyChoice, ring: &RingView, ticket: u64) -> Result<(), Failure> {
    let (mut status, mut failure) = (0, 0);
    // SAFETY: the caller's contract.
    let built = unsafe {
        gic_modelled_ring_wait(choice, ring, &raw const ticket, &raw mut status, &raw mut failure)
    };
    assert!(built, "not built: {choice:?}");
    outcome(status, failure)
}

/// Waits for all that was pushed.
///
/// # Errors
/// What waiting met.
///
/// # Panics
/// For a choice that isn't built for models.
///
/// # Safety
/// As [`push`].
pub unsafe fn quiet(choice: &ProxyChoice, ring: &RingView) -> Result<(), Failure> {
    let (mut status, mut failure) = (0, 0);
    // SAFETY: the caller's contract.
    let built = unsafe {
        gic_modelled_ring_wait(choice, ring, ptr::null(), &raw mut status, &raw mut failure)
    };
    assert!(built, "not built: {choice:?}");
    outcome(status, failure)
}
