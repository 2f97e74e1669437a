//! mini-gda's queue pair as the headers have it.

use device::choice::Choice;
use device::view::{Failure, Local, QpView, Remote};

use crate::outcome;

unsafe extern "C-unwind" {
    fn gic_modelled_post(
        choice: *const Choice,
        qp: *const QpView,
        value: u32,
        ring: bool,
        ticket: *mut u64,
        failure: *mut u64,
    ) -> bool;
    fn gic_modelled_operate(
        choice: *const Choice,
        qp: *const QpView,
        add: bool,
        remote: Remote,
        local: Local,
        value: u64,
        ring: bool,
        ticket: *mut u64,
        failure: *mut u64,
    ) -> bool;
    fn gic_modelled_wait(
        choice: *const Choice,
        qp: *const QpView,
        ticket: u64,
        status: *mut u32,
        failure: *mut u64,
    ) -> bool;
    fn gic_modelled_quiet(
        choice: *const Choice,
        qp: *const QpView,
        status: *mut u32,
        failure: *mut u64,
    ) -> bool;
}

/// Posts a NOP with `value` as its immediate and gives its ticket.
///
/// # Errors
/// What posting met.
///
/// # Panics
/// For a choice that isn't built for models.
///
/// # Safety
/// The view leads to memory of the checker in force.
pub unsafe fn post(choice: &Choice, qp: &QpView, value: u32, ring: bool) -> Result<u64, Failure> {
    let (mut ticket, mut failure) = (0, 0);
    // SAFETY: the caller's contract.
    let built =
        unsafe { gic_modelled_post(choice, qp, value, ring, &raw mut ticket, &raw mut failure) };
    assert!(built, "not built: {choice:?}");
    Failure::unpack(failure).map_or(Ok(ticket), Err)
}

/// An operation on remote memory.
#[derive(Clone, Copy, Debug)]
pub enum Operation {
    /// Adds; the value before is left here.
    FetchAdd(u64, Local),
    /// Writes 8 bytes from the WQE.
    PutValue(u64),
}

/// Posts an operation on `remote` and gives its ticket.
///
/// # Errors
/// What posting met.
///
/// # Panics
/// For a choice that isn't built for models.
///
/// # Safety
/// As [`post`].
pub unsafe fn operate(
    choice: &Choice,
    qp: &QpView,
    remote: Remote,
    operation: Operation,
    ring: bool,
) -> Result<u64, Failure> {
    let (add, value, local) = match operation {
        Operation::FetchAdd(value, local) => (true, value, local),
        Operation::PutValue(value) => (false, value, Local::default()),
    };
    let (mut ticket, mut failure) = (0, 0);
    // SAFETY: the caller's contract.
    let built = unsafe {
        gic_modelled_operate(
            choice,
            qp,
            add,
            remote,
            local,
            value,
            ring,
            &raw mut ticket,
            &raw mut failure,
        )
    };
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
/// As [`post`].
pub unsafe fn wait(choice: &Choice, qp: &QpView, ticket: u64) -> Result<(), Failure> {
    let (mut status, mut failure) = (0, 0);
    // SAFETY: the caller's contract.
    let built = unsafe { gic_modelled_wait(choice, qp, ticket, &raw mut status, &raw mut failure) };
    assert!(built, "not built: {choice:?}");
    outcome(status, failure)
}

/// Waits for all that was posted.
///
/// # Errors
/// What waiting met.
///
/// # Panics
/// For a choice that isn't built for models.
///
/// # Safety
/// As [`post`].
pub unsafe fn quiet(choice: &Choice, qp: &QpView) -> Result<(), Failure> {
    let (mut status, mut failure) = (0, 0);
    // SAFETY: the caller's contract.
    let built = unsafe { gic_modelled_quiet(choice, qp, &raw mut status, &raw mut failure) };
    assert!(built, "not built: {choice:?}");
    outcome(status, failure)
}
