//! Where things lie in a fabric's memory.

use std::num::NonZero;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

use softnic::{Mapping, shared_link_bytes};

use super::{LANES, Node};
use crate::errno::Errno;
use crate::page::PAGE;

/// Nodes: each has four of the 255 upper bytes of QP numbers.
pub(super) const NODES: usize = 63;
pub(super) const LINKS: usize = 1024;
const TEXT: usize = 256 << 10;

const NODES_AT: usize = PAGE;
const LINKS_AT: usize = NODES_AT + 2 * PAGE;
const TEXT_AT: usize = LINKS_AT + LINKS * size_of::<LinkEntry>();
const LANES_AT: usize = (TEXT_AT + TEXT).next_multiple_of(PAGE);
const LANES_BYTES: usize = shared_link_bytes(LANES).next_multiple_of(PAGE);
/// Bytes in a fabric; those that nobody has touched take no memory.
pub(super) const SIZE: usize = LANES_AT + LINKS * LANES_BYTES;

const _: () = assert!(NODES * size_of::<NodeEntry>() <= 2 * PAGE);
const _: () = assert!(NODES * super::TAGS as usize <= 255);

/// "gicbench", and the version of this layout.
const MAGIC: u64 = 0x6769_6362_656e_6368;
const VERSION: u64 = 2;

#[repr(C)]
struct Head {
    magic: AtomicU64,
    version: AtomicU64,
    /// Bytes of findings that were written, or would have been.
    text: AtomicU64,
}

#[repr(C, align(64))]
pub(super) struct NodeEntry {
    pub(super) state: AtomicU32,
    pub(super) device: AtomicU32,
    pub(super) incarnation: AtomicU32,
    pub(super) bell: AtomicU32,
    pub(super) pid: AtomicU32,
    /// 1 while the engine of the node's process sleeps until it is woken: see [`Fabric::doze`](super::Fabric::doze).
    pub(super) asleep: AtomicU32,
    /// The node whose `asleep` that engine waits at.
    pub(super) seat: AtomicU32,
    /// When the process started, as the system counts.
    pub(super) start: AtomicU64,
}

impl NodeEntry {
    pub(super) const FREE: u32 = 0;
    pub(super) const LIVE: u32 = 1;

    pub(super) fn is_live(&self) -> bool {
        self.state.load(Acquire) == Self::LIVE
    }
}

#[repr(C, align(64))]
pub(super) struct LinkEntry {
    live: AtomicU32,
    nodes: [AtomicU32; 2],
    incarnations: [AtomicU32; 2],
    pub(super) taken: [AtomicU32; 2],
}

impl LinkEntry {
    pub(super) const TAKEN: u32 = 1;
    pub(super) const RELEASED: u32 = 2;

    pub(super) fn is_free(&self) -> bool {
        self.live.load(Acquire) == 0
    }

    pub(super) fn ends(&self) -> [Node; 2] {
        [0, 1].map(|end: usize| Node {
            at: self.nodes[end].load(Relaxed) as usize,
            incarnation: self.incarnations[end].load(Relaxed),
        })
    }

    pub(super) fn joins(&self, a: Node, b: Node) -> bool {
        let ends = self.ends();
        !self.is_free() && (ends == [a, b] || ends == [b, a])
    }

    pub(super) fn set(&self, a: Node, b: Node) {
        for (end, node) in [a, b].into_iter().enumerate() {
            self.nodes[end].store(node.at as u32, Relaxed);
            self.incarnations[end].store(node.incarnation, Relaxed);
            self.taken[end].store(0, Relaxed);
        }
        self.live.store(1, Release);
    }
}

/// The lanes of a link: offset and bytes.
pub(super) const fn lanes(at: usize) -> (u64, usize) {
    ((LANES_AT + at * LANES_BYTES) as u64, LANES_BYTES)
}

/// The tables, mapped.
pub(super) struct Table {
    mapping: Mapping,
}

impl Table {
    pub(super) fn map(file: impl AsFd) -> Result<Self, Errno> {
        let len = NonZero::new(LANES_AT).ok_or(Errno::EINVAL)?;
        Ok(Self { mapping: Mapping::new(file, 0, len)? })
    }

    /// The `nth` of entries from `offset` on.
    ///
    /// # Safety
    /// `T` is made of atomics, and the entries lie inside of the mapping, aligned.
    unsafe fn at<T>(&self, offset: usize, nth: usize) -> &T {
        debug_assert!(offset + (nth + 1) * size_of::<T>() <= self.mapping.len());
        // SAFETY: by the contract; atomics may be changed by anybody.
        unsafe { self.mapping.base().add(offset).cast::<T>().add(nth).as_ref() }
    }

    fn head(&self) -> &Head {
        // SAFETY: atomics at the beginning of the mapping.
        unsafe { self.at(0, 0) }
    }

    pub(super) fn node(&self, at: usize) -> &NodeEntry {
        // SAFETY: the index is bounded; the entries lie before the links.
        unsafe { self.at(NODES_AT, at.min(NODES - 1)) }
    }

    pub(super) fn link(&self, at: usize) -> &LinkEntry {
        // SAFETY: the index is bounded; the entries lie before the text.
        unsafe { self.at(LINKS_AT, at.min(LINKS - 1)) }
    }

    pub(super) fn sign(&self) {
        self.head().version.store(VERSION, Relaxed);
        self.head().magic.store(MAGIC, Release);
    }

    pub(super) fn is_signed(&self) -> bool {
        self.head().magic.load(Acquire) == MAGIC && self.head().version.load(Relaxed) == VERSION
    }

    pub(super) fn append(&self, bytes: &[u8]) {
        let from = self.head().text.fetch_add(bytes.len() as u64, Relaxed);
        for (i, &byte) in bytes.iter().enumerate() {
            let at = from.saturating_add(i as u64);
            if at < TEXT as u64 {
                // SAFETY: inside of the text, by the condition.
                let cell: &std::sync::atomic::AtomicU8 = unsafe { self.at(TEXT_AT, at as usize) };
                cell.store(byte, Release);
            }
        }
    }

    pub(super) fn text(&self) -> String {
        let len = self.head().text.load(Acquire).min(TEXT as u64) as usize;
        let bytes: Vec<u8> = (0..len)
            .map(|at| {
                // SAFETY: inside of the text.
                let cell: &std::sync::atomic::AtomicU8 = unsafe { self.at(TEXT_AT, at) };
                cell.load(Acquire)
            })
            .filter(|&byte| byte != 0)
            .collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}
