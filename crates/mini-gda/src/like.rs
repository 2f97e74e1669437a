//! Queue pairs that are put to as a library does.
//!
//! The library's own structures, as far as a put goes through them: queue pairs with their indices, CQs, and NVSHMEM's
//! tables of keys and addresses, made over the same queues as mini-gda's own.
//!
//! ```
//! use device::{host, like::{Like, LikeArgs, Peer}, view::Failure};
//! use mini_gda::{GdaAttr, like::LikeGda};
//! use rdma::{Access, Memory, Nic, soft::{Fabric, FabricAttr}};
//!
//! let fabric = Fabric::open(&FabricAttr::default())?;
//! let (near, far) = (fabric.nic(0), fabric.nic(1));
//! let source = near.register(&Memory::zeroed(4096), Access::empty())?;
//! let target = far.register(&Memory::zeroed(4096), Access::REMOTE_WRITE)?;
//! let like = Like::whole(Peer::Gdaki);
//! let attr = LikeGda::attr(like, &GdaAttr::default());
//! let gda = LikeGda::connect(near.as_ref(), far.as_ref(), like, &attr, &source, &target)?;
//!
//! let (mut issue, mut total, mut failure) = (vec![0u64; 10], vec![0u64; 10], 0u64);
//! let args = LikeArgs {
//!     slots: 10, samples: 10,
//!     issue: issue.as_mut_ptr(), total: total.as_mut_ptr(), failure: &raw mut failure,
//!     ..gda.args()
//! };
//! // SAFETY: the buffers outlive the launch and hold as many samples as the arguments say.
//! unsafe { host::launch_like(like, &args, &[], Some(&gda.gda().relax(near.as_ref())))? };
//! assert_eq!(Failure::unpack(failure), None);
//! assert_eq!(target.memory.word(9 * 8).load(std::sync::atomic::Ordering::Acquire), 10);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use device::cuda::{CudaError, Place};
use device::like::{
    ChunkKey, DocaQp, GPU_RINGS, IBGDA_RC, IbgdaCq, IbgdaQp, Like, LikeArgs, LikeState, LikeTables,
    MAP_BLOCK, MAX_CHUNKS, TARGETS,
};
use device::shared::Shared;
use device::view::{Local, Remote};
use rdma::{Nic, Region};

use crate::{Gda, GdaAttr, GdaError};

/// NVSHMEM's default granularity of memory: a key is good for 512 MiB.
pub const LOG_CHUNK: u32 = 29;
/// NVSHMEM rings for 32 blocks at the latest, also where others are behind that will.
const BATCH: u32 = 32;
/// The libraries count a send queue's blocks in 16 bits.
const MOST_BLOCKS: u32 = 15;
/// Index of the other side in tables by target; this side's own is 0.
const TARGET: usize = 1;

/// Connected queue pairs with a library's structures around them.
pub struct LikeGda {
    like: Like,
    gda: Gda,
    /// What the arguments know without the caller.
    args: LikeArgs,
    state: LikeState,
    _host_state: Shared<LikeState>,
    _structures: Structures,
    // Keys end with their region.
    _regions: [Region; 2],
}

// SAFETY: what isn't Send by itself are the addresses in arguments and tables. They lead to memory that this value keeps
// alive, wherever it is moved, and no safe code follows them. Device code does, under the contract of its launch.
unsafe impl Send for LikeGda {}
// SAFETY: as above.
unsafe impl Sync for LikeGda {}

impl LikeGda {
    /// `attr` with the queue pairs that the put needs.
    #[must_use]
    pub fn attr(like: Like, attr: &GdaAttr) -> GdaAttr {
        GdaAttr { choice: like.peer.choice(), overrun: like.peer.is_gdaki(), ..attr.clone() }
    }

    /// Connects `attr.qps` queue pairs from `near` to `far`, made as [`LikeGda::attr`] says, for puts from `local` to
    /// `remote`. For NVSHMEM and DeepEP the two are symmetric: an offset is the same at both ends.
    ///
    /// # Errors
    /// As [`Gda::connect`]; a put that a CPU posts; an `attr` that isn't the put's; a send queue that the library has no
    /// number for, or a ring that doesn't begin at a lap's begin; regions that the tables of keys have no room for.
    pub fn connect(
        near: &dyn Nic,
        far: &dyn Nic,
        like: Like,
        attr: &GdaAttr,
        local: &Region,
        remote: &Region,
    ) -> Result<Self, GdaError> {
        Self::connect_in_chunks(near, far, like, attr, (local, remote), LOG_CHUNK)
    }

    /// The same with keys that are good for 2^`log_chunk` bytes: puts over the end of a chunk are several.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn connect_in_chunks(
        near: &dyn Nic,
        far: &dyn Nic,
        like: Like,
        attr: &GdaAttr,
        (local, remote): (&Region, &Region),
        log_chunk: u32,
    ) -> Result<Self, GdaError> {
        if like.peer.is_proxied() {
            return Err(GdaError::LikeProxied { like });
        }
        if attr.choice != like.peer.choice() || attr.overrun != like.peer.is_gdaki() {
            return Err(GdaError::NotLike { like });
        }
        if attr.log_blocks > MOST_BLOCKS {
            return Err(GdaError::LikeDepth { log_blocks: attr.log_blocks, most: MOST_BLOCKS });
        }
        // Completion is found by a WQE's index: entry and lap follow from it.
        let laps = 2u64 << attr.log_blocks;
        if like.peer.is_gdaki() && !attr.start.is_multiple_of(laps) {
            return Err(GdaError::LikeStart { start: attr.start, multiple: laps });
        }
        let key_tables = KeyTables::of(local, remote, log_chunk)?;
        let gda = Gda::connect(near, far, attr)?;
        Self::over(gda, like, attr, key_tables, (local, remote))
    }

    fn over(
        gda: Gda,
        like: Like,
        attr: &GdaAttr,
        keys: KeyTables,
        (local, remote): (&Region, &Region),
    ) -> Result<Self, GdaError> {
        let failed = |source: CudaError| GdaError::Nic {
            what: format!("structures for puts like {like}"),
            source: source.into(),
        };
        let count = gda.views.len() as u32;
        let (structures, doca, tables) = if like.peer.is_gdaki() {
            let qps = doca(&gda, attr).map_err(failed)?;
            let address = qps.as_ptr();
            (Structures::Doca { _qps: qps }, address, LikeTables::default())
        } else {
            // The counter that a queue of that many blocks would show: the library's queues begin at 0, and all ones.
            for qp in gda.queue_pairs() {
                let counter = (attr.start as u16).wrapping_sub(1).to_be_bytes();
                qp.areas.cq.write(60, &counter).map_err(|e| {
                    let (offset, len, size) = (e.offset, e.len, e.size);
                    failed(CudaError::OutOfBounds { offset, len, size })
                })?;
            }
            let (structures, tables) = ibgda(&gda, attr, &keys, (local, remote)).map_err(failed)?;
            (structures, std::ptr::null_mut(), tables)
        };
        let state = LikeState { tables, by_gpu: 1, ..LikeState::default() };
        let host_state = Shared::new(&[state]);
        let args = LikeArgs {
            doca,
            state: host_state.as_ptr(),
            queue: std::ptr::null(),
            channels: std::ptr::null(),
            qps: count,
            scope: like.peer.scope(),
            bytes: 8,
            threads: 1,
            slots: 1,
            stride: 8,
            warmup: 0,
            samples: 0,
            first: 1,
            deadline: attr.clock.ticks(attr.deadline),
            local: Local { address: local.address, lkey: local.lkey },
            remote: Remote { address: remote.address, rkey: remote.rkey },
            issue: std::ptr::null_mut(),
            total: std::ptr::null_mut(),
            failure: std::ptr::null_mut(),
        };
        Ok(Self {
            like,
            gda,
            args,
            state,
            _host_state: host_state,
            _structures: structures,
            _regions: [local.clone(), remote.clone()],
        })
    }

    /// Whose put.
    #[must_use]
    pub fn like(&self) -> Like {
        self.like
    }

    /// The queue pairs themselves. Device code of mini-gda's own keeps other indices: it isn't to post to them.
    #[must_use]
    pub fn gda(&self) -> &Gda {
        &self.gda
    }

    /// Arguments for one thread's 8-byte puts to one slot, without samples: queue pairs, tables, deadline, scope and
    /// regions are filled in, the rest is the caller's. Valid while this value lives, for one launch at a time.
    #[must_use]
    pub fn args(&self) -> LikeArgs {
        self.args
    }

    /// What a GPU's kernel is made with.
    #[must_use]
    pub fn constant(&self) -> &[u8] {
        self.state.as_bytes()
    }
}

/// What the arguments and the tables point into.
enum Structures {
    Doca {
        _qps: Shared<DocaQp>,
    },
    Ibgda {
        _qps: Shared<IbgdaQp>,
        _cqs: Shared<IbgdaCq>,
        _counters: Shared<u8>,
        _words: Shared<u64>,
    },
}

/// DOCA GPUNetIO's structures over the queues, behind one of this side's own that nobody uses.
fn doca(gda: &Gda, attr: &GdaAttr) -> Result<Shared<DocaQp>, CudaError> {
    let others = gda.views.iter().map(|view| DocaQp {
        reserved: attr.start,
        ready: attr.start,
        produced: attr.start,
        qpn: view.qpn,
        doorbell_qpn: (view.qpn << 8).to_be(),
        nop_qpn: (view.qpn << 8 | 1).to_be(),
        write_qpn: (view.qpn << 8 | 3).to_be(),
        blocks: 1 << view.log_blocks,
        mask: (1 << view.log_blocks) - 1,
        sq: view.sq,
        record: view.record,
        doorbell: view.doorbell,
        entries: view.cq,
        cq_entries: 1 << view.log_cq,
        consumed: attr.start,
        handler: GPU_RINGS,
        ..NO_DOCA_QP
    });
    Shared::at(&attr.state, &std::iter::once(NO_DOCA_QP).chain(others).collect::<Vec<_>>())
}

/// NVSHMEM's structures over the queues, for two targets: to this side itself nobody puts.
fn ibgda(
    gda: &Gda,
    attr: &GdaAttr,
    keys: &KeyTables,
    (local, remote): (&Region, &Region),
) -> Result<(Structures, LikeTables), CudaError> {
    let count = gda.views.len();
    let per_target = count as u32;
    // The two point into each other: addresses first.
    let qps = Shared::at(&attr.state, &vec![NO_IBGDA_QP; TARGETS * count])?;
    let qp_at = |i: usize| qps.as_ptr().wrapping_add(TARGET * count + i);
    let word_at =
        |i: usize, offset: usize| -> *mut u64 { qp_at(i).cast::<u8>().wrapping_add(offset).cast() };
    let cqs: Vec<IbgdaCq> = gda
        .views
        .iter()
        .enumerate()
        .map(|(i, view)| IbgdaCq {
            pad0: [0; 2],
            entry: view.cq,
            produced: word_at(i, std::mem::offset_of!(IbgdaQp, produced)),
            consumed: word_at(i, std::mem::offset_of!(IbgdaQp, consumed)),
            pad1: [0; 2],
            pad2: 0,
            entries: 1 << attr.log_blocks,
            pad3: 0,
        })
        .collect();
    let cqs = Shared::at(&attr.state, &cqs)?;
    let connected = gda.views.iter().enumerate().map(|(i, view)| IbgdaQp {
        kind: IBGDA_RC,
        qpn: view.qpn,
        blocks: 1 << view.log_blocks,
        sq: view.sq,
        record: view.record,
        doorbell: view.doorbell,
        cq: cqs.as_ptr().wrapping_add(i),
        reserved: attr.start,
        ready: attr.start,
        produced: attr.start,
        consumed: attr.start,
        ..NO_IBGDA_QP
    });
    let values: Vec<IbgdaQp> =
        std::iter::repeat_n(NO_IBGDA_QP, TARGET * count).chain(connected).collect();
    qps.write(&values)?;
    let counters = Shared::at(&attr.state, &vec![0u8; count])?;
    // By target the heaps, then that this GPU reaches the other side's not itself, then address vectors, which a
    // queue pair that is connected has no use for.
    let words = Shared::at(&attr.state, &[local.address, remote.address, 0, 0, 0, 0, 0, 0])?;
    let tables = LikeTables {
        heap: local.address,
        heap_bytes: local.length,
        log_chunk: keys.log_chunk,
        targets: TARGETS as u32,
        me: 0,
        target: TARGET as u32,
        devices: 1,
        groups: per_target,
        per_target,
        batch: BATCH,
        map: MAP_BLOCK,
        queues_on_gpu: u32::from(matches!(attr.queues.sq, Place::Gpu(_))),
        heap_on_host: 0,
        cpu_rings: 0,
        dc_targets: 1,
        qps: qps.as_ptr(),
        counters: counters.as_ptr(),
        remote_heaps: words.as_ptr(),
        mapped: words.as_ptr().wrapping_add(2),
        vectors: words.as_ptr().wrapping_add(4).cast(),
        lkeys: keys.lkeys,
        rkeys: keys.rkeys,
    };
    let structures = Structures::Ibgda { _qps: qps, _cqs: cqs, _counters: counters, _words: words };
    Ok((structures, tables))
}

const NO_DOCA_QP: DocaQp = DocaQp {
    reserved: 0,
    ready: 0,
    produced: 0,
    qpn: 0,
    pad0: 0,
    doorbell_qpn: 0,
    nop_qpn: 0,
    pad1: 0,
    write_qpn: 0,
    pad2: 0,
    lock: 0,
    blocks: 0,
    mask: 0,
    pad3: 0,
    sq: std::ptr::null_mut(),
    record: std::ptr::null_mut(),
    doorbell: std::ptr::null_mut(),
    pad4: [0; 9],
    entries: std::ptr::null(),
    pad5: 0,
    cq_entries: 0,
    pad6: 0,
    consumed: 0,
    pad7: [0; 10],
    handler: 0,
    pad8: 0,
};

const NO_IBGDA_QP: IbgdaQp = IbgdaQp {
    pad0: 0,
    kind: 0,
    qpn: 0,
    device: 0,
    pad1: [0; 3],
    blocks: 0,
    pad2: [0; 3],
    sq: std::ptr::null_mut(),
    record: std::ptr::null_mut(),
    doorbell: std::ptr::null_mut(),
    cq: std::ptr::null(),
    pad3: 0,
    pad4: 0,
    lock: 0,
    reserved: 0,
    ready: 0,
    produced: 0,
    consumed: 0,
    pad5: [0; 7],
};

/// Keys by chunk, those of the other side by target as well.
struct KeyTables {
    log_chunk: u64,
    lkeys: [ChunkKey; MAX_CHUNKS],
    rkeys: [ChunkKey; TARGETS * MAX_CHUNKS],
}

impl KeyTables {
    fn of(local: &Region, remote: &Region, log_chunk: u32) -> Result<Self, GdaError> {
        let chunk = 1u64 << log_chunk.min(62);
        let keys = |key: u32, base: u64, bytes: u64| {
            let chunks = bytes.div_ceil(chunk);
            if chunks > MAX_CHUNKS as u64 {
                return Err(GdaError::LikeHeap { bytes, most: chunk * MAX_CHUNKS as u64 });
            }
            Ok((0..chunks).map(move |i| {
                let end = base + bytes.min((i + 1) * chunk);
                ChunkKey { key: key.to_be(), pad: 0, end }
            }))
        };
        let mut lkeys = [ChunkKey::default(); MAX_CHUNKS];
        let mut rkeys = [ChunkKey::default(); TARGETS * MAX_CHUNKS];
        for (entry, key) in lkeys.iter_mut().zip(keys(local.lkey, local.address, local.length)?) {
            *entry = key;
        }
        let by_target = rkeys.iter_mut().skip(TARGET).step_by(TARGETS);
        for (entry, key) in by_target.zip(keys(remote.rkey, 0, remote.length)?) {
            *entry = key;
        }
        Ok(Self { log_chunk: chunk.ilog2().into(), lkeys, rkeys })
    }
}
