//! The mirror of `include/gic_peer.h`; what each field means is said there.
#![allow(missing_docs)]

use std::ffi::c_char;

/// `GIC_PEER_ABI`.
pub(crate) const ABI: u32 = 1;

/// A send queue and its CQ (`GicPeerQueue`).
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Queue {
    pub sq: u64,
    pub record: u64,
    pub doorbell: u64,
    pub cq: u64,
    pub cq_record: u64,
    pub log_blocks: u32,
    pub log_cq: u32,
    pub qpn: u32,
    pub peer: u32,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Rig {
    pub abi: u32,
    pub variant: u32,
    pub me: u32,
    pub qps: u32,
    pub queue: *const Queue,
    pub local: u64,
    pub bytes: u64,
    pub remote: u64,
    pub lkey: u32,
    pub rkey: u32,
    pub own_rkey: u32,
    pub producers: u32,
    pub av: [u8; 48],
    pub device: *mut u8,
    pub device_at: u64,
    pub host: *mut u8,
}

pub(crate) const SYMBOLS: usize = 8;

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Symbol {
    pub name: *const c_char,
    pub offset: u64,
    pub bytes: u64,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Built {
    pub state: u64,
    pub symbols: u32,
    pub symbol: [Symbol; SYMBOLS],
}

/// What a CPU has to do for GPU threads (`GIC_PEER_WRITE` and the others).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// A write from memory.
    Write,
    /// A write of the low bytes of `value`.
    WriteValue,
    /// `value` added to 8 bytes.
    FetchAdd,
    /// Nothing: done when all before it are.
    Flush,
}

/// One thing that a CPU has to do (`GicPeerRequest`).
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Request {
    kind: u32,
    pub bytes: u32,
    pub local: u64,
    pub remote: u64,
    pub value: u64,
    pub ticket: u64,
}

impl Request {
    /// What it asks for; the number where it is of no known kind.
    ///
    /// # Errors
    /// A number of no known kind.
    pub fn kind(&self) -> Result<RequestKind, u32> {
        match self.kind {
            1 => Ok(RequestKind::Write),
            2 => Ok(RequestKind::WriteValue),
            3 => Ok(RequestKind::FetchAdd),
            4 => Ok(RequestKind::Flush),
            other => Err(other),
        }
    }
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Layout {
    pub name: *const c_char,
    pub size: u64,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Info {
    pub abi: u32,
    pub library: *const c_char,
    pub version: *const c_char,
    pub layouts: u32,
    pub layout: *const Layout,
}

/// Arguments of a latency kernel (`GicPeerLatencyArgs`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct LatencyArgs {
    pub state: u64,
    pub threads: u32,
    pub bytes: u32,
    pub slots: u64,
    pub stride: u64,
    pub warmup: u64,
    pub samples: u64,
    pub first: u64,
    pub local: u64,
    pub remote: u64,
    pub issue: *mut u64,
    pub total: *mut u64,
    pub failure: *mut u64,
}

/// Arguments of a rate kernel (`GicPeerRateArgs`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RateArgs {
    pub state: u64,
    pub threads: u32,
    pub lanes: u32,
    pub batch: u32,
    pub bytes: u32,
    pub ops: u64,
    pub slots: u64,
    pub stride: u64,
    pub first: u64,
    pub local: u64,
    pub remote: u64,
    pub start: *mut u64,
    pub end: *mut u64,
    pub failure: *mut u64,
    pub arrived: *mut u32,
    pub deadline: u64,
}

/// Arguments of a round-trip kernel (`GicPeerRoundTripArgs`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RoundTripArgs {
    pub state: u64,
    pub side: u32,
    pub pad: u32,
    pub warmup: u64,
    pub samples: u64,
    pub inbox: u64,
    pub outbox: u64,
    pub remote: u64,
    pub ticks: *mut u64,
    pub failure: *mut u64,
    pub deadline: u64,
}

/// Why a kernel gave up: a positive number of the harness, or the library's own negative one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// `GIC_PEER_LATE`.
    #[error("a value did not arrive at the other side within the deadline")]
    Late,
    /// `GIC_PEER_WRONG`.
    #[error(
        "another value arrived than the one that was due: a put was lost, repeated or reordered"
    )]
    Wrong,
    /// `GIC_PEER_LATE_START`.
    #[error(
        "not all threads of the launch came to its start within the deadline: can all of them run at once?"
    )]
    LateStart,
    /// The library's.
    #[error("the library's completion reports error {0}")]
    Library(i64),
}

impl Failure {
    /// From the word that a kernel leaves; none if all went well.
    #[must_use]
    pub fn of(word: u64) -> Option<Self> {
        match word {
            0 => None,
            1 => Some(Self::Late),
            2 => Some(Self::Wrong),
            3 => Some(Self::LateStart),
            other => Some(Self::Library(other as i64)),
        }
    }
}

const _: () = {
    assert!(size_of::<Queue>() == 56);
    assert!(size_of::<Rig>() == 136);
    assert!(size_of::<Built>() == 16 + SYMBOLS * 24);
    assert!(size_of::<Request>() == 40);
    assert!(size_of::<Info>() == 40);
    assert!(size_of::<LatencyArgs>() == 96);
    assert!(size_of::<RateArgs>() == 112);
    assert!(size_of::<RoundTripArgs>() == 80);
};
