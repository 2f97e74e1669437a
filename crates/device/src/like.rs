//! mini-gda and mini-proxy set to put as a library does: the mirror of `gic/like_types.hpp` and of its kernel's arguments.

use std::fmt;
use std::str::FromStr;

use crate::choice::{Choice, CqKind, CqLoad, Sharing, UnknownValue, axis};
use crate::view::{Local, QuietScope, Remote};

axis! {
    /// Whose put (`gic::Peer`): by GPU threads that post to the NIC themselves, then by a CPU for them.
    Peer, "Peer" {
        /// NVSHMEM 3.4 IBGDA: the public put, and the quiet of all queue pairs.
        Nvshmem = 0, "nvshmem", "nvshmem";
        /// The same put inlined, and the quiet of its queue pair.
        NvshmemInternal = 1, "nvshmem-internal", "nvshmem_internal";
        /// NCCL 2.28 GIN GDAKI (DOCA GPUNetIO), a queue pair that nobody shares.
        GdakiExclusive = 2, "gdaki-exclusive", "gdaki_exclusive";
        /// ... that a block's threads share.
        GdakiCta = 3, "gdaki-cta", "gdaki_cta";
        /// ... that the GPU's threads share: the default.
        Gdaki = 4, "gdaki", "gdaki";
        /// DeepEP's low-latency put, on NVSHMEM's state, rung for each time.
        Deepep = 5, "deepep", "deepep";
        /// NVSHMEM 3.4's proxied put (the GPU's side of IBRC), public, and its quiet.
        NvshmemProxy = 6, "nvshmem-proxy", "nvshmem_proxy";
        /// NCCL 2.28 GIN's proxy, and the flush of all ranks.
        GinProxy = 7, "gin-proxy", "gin_proxy";
        /// MSCCL++'s FIFO, and a flush of the channel.
        Mscclpp = 8, "mscclpp", "mscclpp";
        /// UCCL-EP's FIFOs, and the quiet of all its proxies.
        UcclEp = 9, "uccl-ep", "uccl_ep";
        /// fabric-lib's flag: the CPU knows the request already.
        FabricLib = 10, "fabric-lib", "fabric_lib";
    }
}

axis! {
    /// A step of a put that can be left out, so that its cost can be told (`gic::Step`).
    Step, "Step" {
        /// A function out of line, behind a look at whether the target is mapped.
        Call = 0, "call", "kCall";
        /// The queue pair by a counter in memory, divisions and a table; a CPU's queue by fields in memory.
        Queue = 1, "queue", "kQueue";
        /// lkey, rkey and remote address by chunk.
        Keys = 2, "keys", "kKeys";
        /// An atomic on the reserve index.
        Reserve = 3, "reserve", "kReserve";
        /// Whether the slot is free, by the CQ or by the CPU's word.
        Space = 4, "space", "kSpace";
        /// The fence between WQE and ready index.
        ReadyFence = 5, "ready-fence", "kReadyFence";
        /// The ready index that moves in order.
        Ready = 6, "ready", "kReady";
        /// The lock around record and doorbell.
        Lock = 7, "lock", "kLock";
        /// The atomic maximum on the producer index.
        Producer = 8, "producer", "kProducer";
        /// A fence and a doorbell before the record.
        EarlyDoorbell = 9, "early-doorbell", "kEarlyDoorbell";
        /// The fence between WQE and doorbell record.
        RecordFence = 10, "record-fence", "kRecordFence";
        /// The fence between doorbell record and doorbell.
        DoorbellFence = 11, "doorbell-fence", "kDoorbellFence";
        /// Proxied: payload before descriptor.
        PayloadOrder = 12, "payload-order", "kPayloadOrder";
        /// Who rings, the GPU or a CPU, by a word that is looked at for every put.
        Handler = 13, "handler", "kHandler";
        /// A WQE for each GiB.
        Parts = 14, "parts", "kParts";
        /// Whether a warp's lanes put together; DeepEP: that they do.
        Group = 15, "group", "kGroup";
        /// Whether the queue pair is a DC initiator, and its target's address vector.
        Target = 16, "target", "kTarget";
        /// Variables that lie on the function's stack.
        Stack = 17, "stack", "kStack";
    }
}

impl Peer {
    /// The steps that its put has.
    #[must_use]
    pub fn steps(self) -> Vec<Step> {
        let steps = gic_host_like_steps(self as u32);
        Step::ALL.iter().copied().filter(|step| steps & step.bit() != 0).collect()
    }

    /// Whether a CPU posts.
    #[must_use]
    pub const fn is_proxied(self) -> bool {
        self as u32 >= Self::NvshmemProxy as u32
    }

    /// Bytes from one slot of a proxy's queue to the next; 0 where there is none.
    #[must_use]
    pub fn slot_bytes(self) -> usize {
        gic_host_like_slot_bytes(self as u32) as usize
    }

    /// Name of the variable in constant memory that its kernel finds its way by, if it has one.
    #[must_use]
    pub const fn constant(self) -> Option<&'static str> {
        match self {
            Self::Nvshmem | Self::NvshmemInternal | Self::Deepep | Self::NvshmemProxy => {
                Some(STATE)
            }
            _ => None,
        }
    }

    /// What queue pairs it needs where GPU threads post, and what its put is in mini-gda's own terms: who shares a queue pair, and what a
    /// completion is read from.
    #[must_use]
    pub fn choice(self) -> Choice {
        Choice {
            sharing: if self.is_shared() { Sharing::Thread } else { Sharing::Exclusive },
            cq_kind: if self.is_gdaki() { CqKind::Ring } else { CqKind::Collapsed },
            cq_load: CqLoad::Plain,
            ..Choice::default()
        }
    }

    /// Whether several threads may post to a queue pair; of one block only for [`Peer::GdakiCta`].
    #[must_use]
    pub const fn is_shared(self) -> bool {
        !matches!(self, Self::GdakiExclusive)
    }

    /// Whether the ring CQ is one whose consumer record nobody looks at.
    #[must_use]
    pub const fn is_gdaki(self) -> bool {
        matches!(self, Self::GdakiExclusive | Self::GdakiCta | Self::Gdaki)
    }

    /// What its completion routine covers where the caller has no wish.
    #[must_use]
    pub const fn scope(self) -> QuietScope {
        if matches!(self, Self::Nvshmem) { QuietScope::All } else { QuietScope::One }
    }
}

impl Step {
    const fn bit(self) -> u32 {
        1 << self as u32
    }
}

/// A library's put, whole or without one of its steps: what `gic::Like` is instantiated with. A put that lacks a step
/// is there to be measured, by one thread, and not to be relied on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Like {
    /// Whose.
    pub peer: Peer,
    /// Which step it lacks.
    pub without: Option<Step>,
}

impl Like {
    /// A whole one.
    #[must_use]
    pub const fn whole(peer: Peer) -> Self {
        Self { peer, without: None }
    }

    /// One that lacks a step.
    ///
    /// # Errors
    /// The put has no such step; the error names those that it has.
    pub fn without(peer: Peer, step: Step) -> Result<Self, UnknownValue> {
        let steps = peer.steps();
        if steps.contains(&step) {
            return Ok(Self { peer, without: Some(step) });
        }
        let known = steps.into_iter().map(Step::name).collect();
        Err(UnknownValue { value: step.name().to_owned(), known })
    }

    /// Whether more threads than queue pairs, or than a proxy's flags, may run it: its threads are blocks of their own.
    /// Otherwise a thread has a queue pair or a flag of its own, and a proxy's queues are one thread's alone.
    #[must_use]
    pub const fn takes_more_threads(self) -> bool {
        let lone = matches!(self.peer, Peer::GdakiExclusive | Peer::GdakiCta | Peer::FabricLib);
        !lone && self.without.is_none()
    }

    /// The C++ type.
    #[must_use]
    pub fn cpp(&self) -> String {
        format!("gic::Like<{}, {}>", self.peer.cpp(), self.without_bits())
    }

    pub(crate) fn without_bits(self) -> u32 {
        self.without.map_or(0, Step::bit)
    }
}

impl fmt::Display for Like {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.peer)?;
        self.without.map_or(Ok(()), |step| write!(f, " without {step}"))
    }
}

/// Chunks of a heap that key tables hold.
pub const MAX_CHUNKS: usize = 64;

/// Targets that the tables know: this side and the other.
pub const TARGETS: usize = 2;

/// DOCA GPUNetIO's queue pair with its CQ, a ring (`gic::DocaQp`); see the header for what each means.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs)]
pub struct DocaQp {
    pub reserved: u64,
    pub ready: u64,
    pub produced: u64,
    pub qpn: u32,
    pub pad0: u32,
    pub doorbell_qpn: u32,
    pub nop_qpn: u32,
    pub pad1: u32,
    pub write_qpn: u32,
    pub pad2: u32,
    pub lock: u32,
    pub blocks: u16,
    pub mask: u16,
    pub pad3: u32,
    pub sq: *mut u8,
    pub record: *mut u32,
    pub doorbell: *mut u64,
    pub pad4: [u64; 9],
    pub entries: *const u8,
    pub pad5: u32,
    pub cq_entries: u32,
    pub pad6: u64,
    pub consumed: u64,
    pub pad7: [u64; 10],
    pub handler: u32,
    pub pad8: u32,
}

/// Who rings for a [`DocaQp`]: a CPU.
pub const CPU_RINGS: u32 = 1;
/// Who rings for a [`DocaQp`]: the GPU.
pub const GPU_RINGS: u32 = 2;

/// NVSHMEM's collapsed CQ, by addresses of what its queue pair keeps (`gic::IbgdaCq`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs)]
pub struct IbgdaCq {
    pub pad0: [u64; 2],
    pub entry: *const u8,
    pub produced: *mut u64,
    pub consumed: *mut u64,
    pub pad1: [u64; 2],
    pub pad2: u32,
    pub entries: u32,
    pub pad3: u64,
}

/// NVSHMEM's queue pair (`gic::IbgdaQp`); see the header for what each means.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs)]
pub struct IbgdaQp {
    pub pad0: u32,
    pub kind: u32,
    pub qpn: u32,
    pub device: u32,
    pub pad1: [u64; 3],
    pub blocks: u16,
    pub pad2: [u16; 3],
    pub sq: *mut u8,
    pub record: *mut u32,
    pub doorbell: *mut u64,
    pub cq: *const IbgdaCq,
    pub pad3: u64,
    pub pad4: u32,
    pub lock: u32,
    pub reserved: u64,
    pub ready: u64,
    pub produced: u64,
    pub consumed: u64,
    pub pad5: [u64; 7],
}

/// How an [`IbgdaQp`] is connected: to whatever target a WQE names.
pub const IBGDA_DCI: u32 = 1;
/// How an [`IbgdaQp`] is connected: reliably, to one queue pair.
pub const IBGDA_RC: u32 = 3;

/// A chunk's key, as it stands in a WQE, and the first address (lkey) or offset (rkey) that it isn't good for
/// (`gic::ChunkKey`).
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
#[allow(missing_docs)]
pub struct ChunkKey {
    pub key: u32,
    pub pad: u32,
    pub end: u64,
}

/// NVSHMEM's state where GPU threads post (`gic::LikeTables`); see the header for what each means.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs)]
pub struct LikeTables {
    pub heap: u64,
    pub heap_bytes: u64,
    pub log_chunk: u64,
    pub targets: u32,
    pub me: u32,
    pub target: u32,
    pub devices: u32,
    pub groups: u32,
    pub per_target: u32,
    pub batch: u32,
    pub map: u32,
    pub queues_on_gpu: u32,
    pub heap_on_host: u32,
    pub cpu_rings: u32,
    pub dc_targets: u32,
    pub qps: *mut IbgdaQp,
    pub counters: *mut u8,
    pub remote_heaps: *const u64,
    pub mapped: *const u64,
    pub vectors: *const [u64; 2],
    pub lkeys: [ChunkKey; MAX_CHUNKS],
    pub rkeys: [ChunkKey; TARGETS * MAX_CHUNKS],
}

/// A queue pair by a thread's block ([`LikeTables::map`]).
pub const MAP_BLOCK: u32 = 0;

impl Default for LikeTables {
    /// Of a GPU for which a CPU posts.
    fn default() -> Self {
        Self {
            heap: 0,
            heap_bytes: 0,
            log_chunk: 0,
            targets: 0,
            me: 0,
            target: 0,
            devices: 0,
            groups: 0,
            per_target: 0,
            batch: 0,
            map: MAP_BLOCK,
            queues_on_gpu: 0,
            heap_on_host: 0,
            cpu_rings: 0,
            dc_targets: 0,
            qps: std::ptr::null_mut(),
            counters: std::ptr::null_mut(),
            remote_heaps: std::ptr::null(),
            mapped: std::ptr::null(),
            vectors: std::ptr::null(),
            lkeys: [ChunkKey::default(); MAX_CHUNKS],
            rkeys: [ChunkKey::default(); TARGETS * MAX_CHUNKS],
        }
    }
}

/// What a proxied put asks of the CPU (`gic::Asks`), in a slot's words: the mirror of what the header says of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asks {
    /// A write of `bytes` from one offset to the other.
    Put {
        /// In the local memory.
        local: u64,
        /// In the remote memory.
        remote: u64,
        /// Bytes.
        bytes: u32,
    },
    /// An answer when all before it is completed.
    Flush,
}

/// Words of a slot that a proxied put fills at most.
pub const SLOT_WORDS: usize = 8;

impl Asks {
    /// From a slot's words, which are all there. None: of no known kind.
    #[must_use]
    pub fn unpack(peer: Peer, words: &[u64; SLOT_WORDS]) -> Option<Self> {
        let (asks, local, remote, bytes) = match peer {
            Peer::Mscclpp | Peer::UcclEp => (
                words[1] >> 32 & 0xf,
                words[0] >> 32,
                words[1] & u64::from(u32::MAX),
                words[0] as u32,
            ),
            _ => (words[0] >> 8 & 0xff, words[1] >> 8, words[0] >> 16, (words[2] >> 8) as u32),
        };
        match asks {
            1 => Some(Self::Put { local, remote, bytes }),
            2 => Some(Self::Flush),
            _ => None,
        }
    }
}

/// A queue to the CPU (`gic::LikeQueue`); see the header for what each means.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs)]
pub struct LikeQueue {
    pub slots: *mut u8,
    pub head: *mut u64,
    pub tail: *mut u64,
    pub cached_tail: *mut u64,
    pub depth: u32,
    pub log_depth: u32,
    pub asked: *mut u64,
    pub answered: *mut u64,
    pub failure: *const u64,
    pub mapped: *const u64,
    pub local: u64,
    pub remote: u64,
    pub backend: u32,
    pub pad: u32,
}

/// A CPU posts what [`LikeQueue`]s hand it ([`LikeQueue::backend`]).
pub const PROXY_BACKEND: u32 = 2;

impl Default for LikeQueue {
    /// Of a GPU whose threads post.
    fn default() -> Self {
        Self {
            slots: std::ptr::null_mut(),
            head: std::ptr::null_mut(),
            tail: std::ptr::null_mut(),
            cached_tail: std::ptr::null_mut(),
            depth: 0,
            log_depth: 0,
            asked: std::ptr::null_mut(),
            answered: std::ptr::null_mut(),
            failure: std::ptr::null(),
            mapped: std::ptr::null(),
            local: 0,
            remote: 0,
            backend: 0,
            pad: 0,
        }
    }
}

/// What NVSHMEM finds its way by (`gic::LikeState`); see the header for what each means.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
#[allow(missing_docs)]
pub struct LikeState {
    pub tables: LikeTables,
    pub queue: LikeQueue,
    pub by_gpu: u32,
    pub pad: u32,
}

impl LikeState {
    /// The bytes, for the variable in constant memory that has them on a GPU.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        // SAFETY: plain values without padding between them (`pad` stands for it), each byte of which is initialised.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), size_of::<Self>()) }
    }
}

/// Name of the variable that has NVSHMEM's state on a GPU.
pub const STATE: &str = "gic_like_state";

/// Arguments of the kernel (`gic::kernels::LikeArgs`); see the header for what each means.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs)]
pub struct LikeArgs {
    pub doca: *mut DocaQp,
    pub state: *const LikeState,
    pub queue: *const LikeQueue,
    pub channels: *const u64,
    pub qps: u32,
    pub scope: QuietScope,
    pub bytes: u32,
    pub threads: u32,
    pub slots: u64,
    pub stride: u64,
    pub warmup: u64,
    pub samples: u64,
    pub first: u64,
    pub deadline: u64,
    pub local: Local,
    pub remote: Remote,
    pub issue: *mut u64,
    pub total: *mut u64,
    pub failure: *mut u64,
}

const _: () = {
    assert!(size_of::<DocaQp>() == 280);
    assert!(size_of::<IbgdaCq>() == 72);
    assert!(size_of::<IbgdaQp>() == 184);
    assert!(size_of::<LikeTables>() == 112 + 16 * (1 + TARGETS) * MAX_CHUNKS);
    assert!(size_of::<LikeQueue>() == 96);
    assert!(size_of::<LikeState>() == size_of::<LikeTables>() + size_of::<LikeQueue>() + 8);
    assert!(size_of::<LikeArgs>() == 152);
};

unsafe extern "C" {
    safe fn gic_host_like_steps(peer: u32) -> u32;
    safe fn gic_host_like_slot_bytes(peer: u32) -> u32;
    pub(crate) fn gic_host_like(
        peer: u32,
        without: u32,
        args: *const LikeArgs,
        thread: u32,
    ) -> bool;
}
