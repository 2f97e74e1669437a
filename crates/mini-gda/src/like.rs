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
use device::like::{ChunkKey, Like, LikeArgs, LikeCq, LikeQp, LikeRing, LikeTables, MAX_CHUNKS};
use device::shared::Shared;
use device::view::{Local, Remote};
use rdma::{Nic, Region};

use crate::{Gda, GdaAttr, GdaError};

/// NVSHMEM's default granularity of memory: a key is good for 512 MiB.
pub const LOG_CHUNK: u32 = 29;
/// NVSHMEM rings for 32 blocks at the latest, also where others are behind that will.
const BATCH: u32 = 32;

/// Connected queue pairs with a library's structures around them.
pub struct LikeGda {
    like: Like,
    gda: Gda,
    /// What the arguments know without the caller.
    args: LikeArgs,
    tables: LikeTables,
    _host_tables: Shared<LikeTables>,
    _qps: Shared<LikeQp>,
    _cqs: Shared<LikeCq>,
    _counters: Shared<u32>,
    _addresses: Shared<u64>,
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
    /// As [`Gda::connect`]; a put that a CPU posts; an `attr` that isn't the put's; a ring that doesn't begin at a lap's begin; regions that the
    /// tables of keys have no room for.
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
        // Completion is found by a WQE's index: entry and lap follow from it.
        let laps = 2u64 << attr.log_blocks.min(32);
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
        let count = gda.views.len();
        // The two point into each other: addresses first.
        let qps = Shared::at(&attr.state, &vec![NO_QP; count]).map_err(failed)?;
        let qp_at = |i: usize| qps.as_ptr().wrapping_add(i);
        let cqs: Vec<LikeCq> = (0..count)
            .map(|i| LikeCq {
                entry: gda.views[i].cq,
                produced: field(qp_at(i), std::mem::offset_of!(LikeQp, produced)),
                consumed: field(
                    qp_at(i),
                    std::mem::offset_of!(LikeQp, ring) + std::mem::offset_of!(LikeRing, consumed),
                ),
                entries: 1 << attr.log_blocks,
                pad: 0,
            })
            .collect();
        let cqs = Shared::at(&attr.state, &cqs).map_err(failed)?;
        let values: Vec<LikeQp> = (0..count)
            .map(|i| {
                let view = &gda.views[i];
                LikeQp {
                    reserved: attr.start,
                    ready: attr.start,
                    produced: attr.start,
                    qpn: view.qpn,
                    device: 0,
                    lock: 0,
                    log_blocks: view.log_blocks,
                    sq: view.sq,
                    record: view.record,
                    doorbell: view.doorbell,
                    cq: cqs.as_ptr().wrapping_add(i),
                    ring: LikeRing {
                        entries: view.cq,
                        log_cq: view.log_cq,
                        pad: 0,
                        consumed: attr.start,
                    },
                }
            })
            .collect();
        qps.write(&values).map_err(failed)?;
        if !like.peer.is_gdaki() {
            // The counter that a queue of that many blocks would show: the library's queues begin at 0, and all ones.
            for qp in gda.queue_pairs() {
                let counter = (attr.start as u16).wrapping_sub(1).to_be_bytes();
                qp.areas.cq.write(60, &counter).map_err(|e| {
                    let (offset, len, size) = (e.offset, e.len, e.size);
                    failed(CudaError::OutOfBounds { offset, len, size })
                })?;
            }
        }
        let counters = Shared::at(&attr.state, &vec![0u32; count]).map_err(failed)?;
        // The other side's heap, and that this GPU doesn't reach it itself.
        let addresses = Shared::at(&attr.state, &[remote.address, 0]).map_err(failed)?;
        let tables = LikeTables {
            heap: local.address,
            heap_bytes: local.length,
            log_chunk: keys.log_chunk,
            targets: 1,
            target: 0,
            devices: 1,
            groups: count as u32,
            per_target: count as u32,
            batch: BATCH,
            queues_on_gpu: u32::from(matches!(attr.queues.sq, Place::Gpu(_))),
            pad: 0,
            counters: counters.as_ptr(),
            remote_heaps: addresses.as_ptr(),
            mapped: addresses.as_ptr().wrapping_add(1),
            lkeys: keys.lkeys,
            rkeys: keys.rkeys,
        };
        let host_tables = Shared::new(&[tables]);
        let args = LikeArgs {
            qp: qps.as_ptr(),
            tables: host_tables.as_ptr(),
            queue: std::ptr::null(),
            qps: count as u32,
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
            tables,
            _host_tables: host_tables,
            _qps: qps,
            _cqs: cqs,
            _counters: counters,
            _addresses: addresses,
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
        self.tables.as_bytes()
    }
}

const NO_QP: LikeQp = LikeQp {
    reserved: 0,
    ready: 0,
    produced: 0,
    qpn: 0,
    device: 0,
    lock: 0,
    log_blocks: 0,
    sq: std::ptr::null_mut(),
    record: std::ptr::null_mut(),
    doorbell: std::ptr::null_mut(),
    cq: std::ptr::null(),
    ring: LikeRing { entries: std::ptr::null(), log_cq: 0, pad: 0, consumed: 0 },
};

fn field(qp: *mut LikeQp, offset: usize) -> *mut u64 {
    qp.cast::<u8>().wrapping_add(offset).cast()
}

/// Keys by chunk.
struct KeyTables {
    log_chunk: u64,
    lkeys: [ChunkKey; MAX_CHUNKS],
    rkeys: [ChunkKey; MAX_CHUNKS],
}

impl KeyTables {
    fn of(local: &Region, remote: &Region, log_chunk: u32) -> Result<Self, GdaError> {
        let chunk = 1u64 << log_chunk.min(62);
        let table = |key: u32, base: u64, bytes: u64| {
            if bytes.div_ceil(chunk) > MAX_CHUNKS as u64 {
                return Err(GdaError::LikeHeap { bytes, most: chunk * MAX_CHUNKS as u64 });
            }
            let mut table = [ChunkKey::default(); MAX_CHUNKS];
            for (i, entry) in (0..bytes.div_ceil(chunk)).zip(&mut table) {
                let end = base + bytes.min((i + 1) * chunk);
                *entry = ChunkKey { key: key.to_be(), pad: 0, end };
            }
            Ok(table)
        };
        Ok(Self {
            log_chunk: chunk.ilog2().into(),
            lkeys: table(local.lkey, local.address, local.length)?,
            rkeys: table(remote.rkey, 0, remote.length)?,
        })
    }
}
