//! Programs of single operations, for tests: any operation, by any choice that they need, in any order.
//!
//! The experiments' kernels are in [`crate::host`]; this is in the build with the feature `program` only.

use std::ffi::c_void;

use crate::choice::Choice;
use crate::host::{LaunchError, Relax};
use crate::view::{AddressVector, Failure, Local, QpView, Remote};

/// What a step posts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum StepOp {
    /// Nothing, in order.
    Nop = 0x00,
    /// RDMA write of `bytes` at `local`.
    Put = 0x08,
    /// RDMA read.
    Get = 0x10,
    /// Compares with `a`, swaps in `b`; the value before is left at `local`.
    CompareSwap = 0x11,
    /// Adds `a`; the value before is left at `local`.
    FetchAdd = 0x12,
    /// The same on 4 bytes.
    FetchAdd32 = 0x15,
    /// RDMA write of `bytes` at `local`, from the WQE.
    PutInline = 0x88,
    /// RDMA write of `a`, from the WQE.
    PutValue = 0x89,
    /// A put, and behind it a fetch-and-add of 1 to address `a` under rkey `b`. The word's value before is left
    /// at `local`.
    PutSignal = 0x8a,
    /// `a` lanes put `bytes` bytes each, side by side.
    PutWarp = 0x8b,
}

/// What follows a post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Then {
    /// The next step; its completion is waited for at the program's end.
    Nothing = 0,
    /// A wait for it.
    Wait = 1,
    /// A quiet of the queue pair.
    Quiet = 2,
}

/// One step of a program.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Step {
    /// The far end.
    pub remote: Remote,
    /// The near end.
    pub local: Local,
    /// See [`StepOp`].
    pub a: u64,
    /// See [`StepOp`].
    pub b: u64,
    /// What is posted.
    pub op: StepOp,
    /// How much.
    pub bytes: u32,
    ring: u32,
    signal: u32,
    fence: u32,
    then: Then,
}

impl Step {
    /// An 8-byte operation that rings and asks for a CQE.
    #[must_use]
    pub fn new(op: StepOp, remote: Remote, local: Local) -> Self {
        Self {
            remote,
            local,
            a: 0,
            b: 0,
            op,
            bytes: 8,
            ring: 1,
            signal: 1,
            fence: 0,
            then: Then::Nothing,
        }
    }
    /// With operands.
    #[must_use]
    pub fn operands(self, a: u64, b: u64) -> Self {
        Self { a, b, ..self }
    }
    /// Of another length.
    #[must_use]
    pub fn bytes(self, bytes: u32) -> Self {
        Self { bytes, ..self }
    }
    /// Neither rings nor asks for a CQE, where the choice leaves that to the caller.
    #[must_use]
    pub fn silent(self) -> Self {
        Self { ring: 0, signal: 0, ..self }
    }
    /// Waits at the NIC for earlier reads and atomics.
    #[must_use]
    pub fn fenced(self) -> Self {
        Self { fence: 1, ..self }
    }
    /// What follows it.
    #[must_use]
    pub fn then(self, then: Then) -> Self {
        Self { then, ..self }
    }
}

/// What became of a step.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Done {
    /// What it was waited for with; 0 where nothing was posted.
    pub ticket: u64,
    posted: u64,
    failure: u64,
    status: u32,
    pad: u32,
}

impl Done {
    /// Whether it completed, or why not.
    ///
    /// # Errors
    /// The failure that posting or waiting met.
    pub fn result(&self) -> Result<(), Failure> {
        match (self.status, Failure::unpack(self.failure)) {
            (1, None) => Ok(()),
            (_, Some(failure)) => Err(failure),
            // An error without a reason, or an answer of no known kind.
            _ => Err(Failure {
                why: crate::view::Why::WrongData,
                qpn: 0,
                index: 0,
                syndrome: 0,
                vendor: 0,
            }),
        }
    }

    /// Whether it was posted, or why not.
    ///
    /// # Errors
    /// The failure that posting met.
    pub fn posted(&self) -> Result<(), Failure> {
        Failure::unpack(self.posted).map_or(Ok(()), Err)
    }
}

unsafe extern "C" {
    fn gic_host_set_wait(wait: Option<extern "C" fn(*mut c_void, u32)>, context: *mut c_void);
    fn gic_host_program(
        choice: *const Choice,
        qp: *const QpView,
        steps: *const Step,
        count: u64,
        av: *const AddressVector,
        done: *mut Done,
    ) -> bool;
}

extern "C" fn relax_from_device(context: *mut c_void, spins: u32) {
    // SAFETY: `run` passes a pointer to a `&dyn Relax` that outlives the program.
    let relax = unsafe { *context.cast::<&dyn Relax>() };
    relax.relax(spins);
}

/// Runs `steps` on the calling thread and waits for all of them.
///
/// # Errors
/// A choice that isn't built for programs.
///
/// # Safety
/// The view's pointers and `av` (which only DC needs) are valid until this returns, and so are the local
/// addresses that inline steps read.
pub unsafe fn run(
    choice: &Choice,
    qp: &QpView,
    steps: &[Step],
    av: *const AddressVector,
    relax: &dyn Relax,
) -> Result<Vec<Done>, LaunchError> {
    let mut done = vec![Done::default(); steps.len()];
    let context = std::ptr::from_ref::<&dyn Relax>(&relax).cast_mut().cast();
    // SAFETY: the hook is taken off before `relax` goes; the rest is the caller's contract.
    let built = unsafe {
        gic_host_set_wait(Some(relax_from_device), context);
        let count = steps.len() as u64;
        let built = gic_host_program(choice, qp, steps.as_ptr(), count, av, done.as_mut_ptr());
        gic_host_set_wait(None, std::ptr::null_mut());
        built
    };
    if built {
        Ok(done)
    } else {
        Err(LaunchError::NotBuilt { kernel: "program", choice: Box::new(*choice) })
    }
}

const _: () = assert!(size_of::<Step>() == 72 && size_of::<Done>() == 32);
