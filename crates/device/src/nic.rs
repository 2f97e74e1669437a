//! The NIC engine's tables (`gic/nic_types.hpp`), and its host build.
//!
//! Addresses are numbers here: the tables lie where device code reads them, which may be memory that this process
//! can't follow.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

unsafe extern "C" {
    fn gic_host_nic_step(tables: *const Tables, warp: u32, budget: u32) -> u32;
    safe fn gic_host_nic_syndrome(check: u32) -> u32;
    #[cfg(test)]
    fn gic_host_nic_layouts(values: *const u64, count: u32) -> bool;
}

/// NICs in the tables; their addresses are 1 and 2.
pub const NICS: usize = 2;
/// Findings kept of each NIC.
pub const MAX_FINDINGS: usize = 256;
/// Set in a number's index when it is a DC target's.
pub const TARGET_BIT: u32 = 0x8000;
/// No time limit; no fault.
pub const NEVER: u64 = u64::MAX;
/// Set in [`Finding::found`] of an unwritten slot that was blank.
pub const BLANK: u32 = 0x1_0000;

/// States of a queue pair ([`Qp::state`]).
pub mod state {
    /// Nothing works.
    pub const RESET: u32 = 0;
    /// Requests are sent.
    pub const RTS: u32 = 3;
    /// Everything is flushed.
    pub const ERROR: u32 = 4;
}

/// Bits of [`Qp::flags`].
pub mod qp_flag {
    /// A DC initiator.
    pub const DCI: u32 = 1;
    /// It has a receive queue.
    pub const HAS_RECEIVES: u32 = 2;
    /// Other queue pairs ring at its doorbell page, too.
    pub const SHARED_PAGE: u32 = 4;
    /// The one of its page that reports rings for nobody.
    pub const PAGE_LEAD: u32 = 8;
    /// Its doorbell record is polled, too: what it covers needn't wait for the ring.
    pub const RECORD_RINGS: u32 = 16;
}

/// Bits of [`Cq::flags`].
pub mod cq_flag {
    /// One entry that is overwritten.
    pub const COLLAPSED: u32 = 1;
    /// The consumer's record isn't looked at.
    pub const IGNORE_OVERRUN: u32 = 2;
}

macro_rules! tables {
    ($($(#[$doc:meta])* struct $name:ident { $($(#[$field_doc:meta])* $field:ident: $kind:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
            #[repr(C)]
            #[allow(missing_docs)]
            pub struct $name { $($(#[$field_doc])* pub $field: $kind,)* }
        )*
    };
}

tables! {
    /// A completion queue (`gic::nic::Cq`).
    struct Cq {
        ring: u64,
        record: u64,
        produced: u64,
        consumed: u64,
        log_size: u32,
        flags: u32,
        in_error: u32,
        number: u32,
    }
    /// A queue pair (`gic::nic::Qp`): what is fixed, what its engine warp keeps, what any warp changes.
    struct Qp {
        sq: u64,
        record: u64,
        page: u64,
        rq: u64,
        qpn: u32,
        tag: u32,
        log_blocks: u32,
        log_rq: u32,
        flags: u32,
        access: u32,
        nic: u32,
        remote_nic: u32,
        remote_qpn: u32,
        sq_psn: u32,
        rq_psn: u32,
        retry_cnt: u32,
        rnr_retry: u32,
        padding: u32,
        timeout_ns: u64,
        rnr_wait_ns: u64,
        to_line_1: [u64; 3],

        head: u64,
        producer: u64,
        completed: u64,
        wait_until: u64,
        attention: u32,
        rung: u32,
        watched: u32,
        held: u32,
        held_length: u32,
        waits_for: u32,
        retries: u32,
        rnr_retries: u32,
        fail_after: u64,
        drop_after: u64,
        /// As [`cause`] packs it.
        fail_cause: u32,
        padding_2: u32,
        send: Cq,
        seen: [u64; 2],
        to_line_3: [u64; 13],

        state: u32,
        /// The first cause, as [`cause`] packs it; 0 for none.
        error: u32,
        receive_lock: u32,
        padding_3: u32,
        rq_head: u64,
        rq_producer: u64,
        receive: Cq,
        to_end: [u64; 6],
    }
    /// A memory region (`gic::nic::Region`).
    struct Region {
        base: u64,
        length: u64,
        access: u32,
        tag: u32,
    }
    /// A DC target (`gic::nic::Target`).
    struct Target {
        key: u64,
        access: u32,
        tag: u32,
    }
    /// What a program did wrong (`gic::nic::Finding`).
    struct Finding {
        kind: u32,
        qpn: u32,
        index: u64,
        found: u32,
        depth: u32,
    }
    /// What ends a running engine (`gic::nic::Control`).
    struct Control {
        stop: u32,
        padding: u32,
        lease: u64,
    }
    /// Where one NIC's tables are (`gic::nic::NicTables`).
    struct NicTables {
        qps: u64,
        regions: u64,
        targets: u64,
        findings: u64,
        finding_count: u64,
    }
    /// What one engine is started with (`gic::nic::Tables`).
    struct Tables {
        nics: [NicTables; NICS],
        order: u64,
        host_now: u64,
        control: u64,
        ended: u64,
        halt: u64,
        lease_ns: u64,
        max_qps: u32,
        max_regions: u32,
        max_targets: u32,
        qps_in_order: u32,
        warps: u32,
        engines: u32,
    }
}

/// A failure's syndrome and vendor byte in one word.
#[must_use]
pub const fn cause(syndrome: u8, vendor: u8) -> u32 {
    1 << 16 | (vendor as u32) << 8 | syndrome as u32
}

/// The syndrome that device code gives with a check's vendor byte.
#[must_use]
pub fn syndrome_of(check: u8) -> u32 {
    gic_host_nic_syndrome(check.into())
}

/// One visit of an engine warp to its queue pairs, with about `budget` WQEs, by the calling thread. Returns what was
/// done: 0 where there was nothing to do.
///
/// # Safety
/// Every address in the tables is one that this process can follow, of as much memory as its table says, and so is
/// every queue, record, page and region that they name. No other thread is in this warp.
pub unsafe fn host_step(tables: &Tables, warp: u32, budget: u32) -> u32 {
    // SAFETY: the caller's contract.
    unsafe { gic_host_nic_step(tables, warp, budget) }
}

/// Who sees what the engine places: in the order that it was placed, before its CQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The threads of its own GPU.
    Gpu,
    /// CPUs and other GPUs, too.
    System,
}

/// Threads of the engine kernel's blocks; one block a warp.
pub const BLOCK: u32 = 64;

const _: () = {
    assert!(size_of::<Qp>() == 512);
    assert!(size_of::<Tables>() == 152);
};

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn tables_are_those_of_the_header() {
        let rust: Vec<u64> = [
            size_of::<Tables>(),
            offset_of!(Tables, order),
            offset_of!(Tables, ended),
            offset_of!(Tables, max_qps),
            offset_of!(Tables, warps),
            size_of::<Qp>(),
            offset_of!(Qp, qpn),
            offset_of!(Qp, nic),
            offset_of!(Qp, head),
            offset_of!(Qp, attention),
            offset_of!(Qp, fail_after),
            offset_of!(Qp, send),
            offset_of!(Qp, state),
            offset_of!(Qp, rq_head),
            offset_of!(Qp, receive),
            size_of::<Cq>(),
            offset_of!(Cq, log_size),
            size_of::<Region>(),
            offset_of!(Region, tag),
            size_of::<Target>(),
            offset_of!(Target, tag),
            size_of::<Finding>(),
            offset_of!(Finding, found),
            size_of::<Control>(),
        ]
        .map(|value| value as u64)
        .into();
        // SAFETY: so many values.
        assert!(unsafe { gic_host_nic_layouts(rust.as_ptr(), rust.len() as u32) });
    }
}
