//! mini-gda: the smallest GPU-submitted RDMA transport.
//!
//! The submitter's threads build WQEs, update the doorbell record, ring the doorbell and poll CQEs themselves,
//! in the device code of `crates/device`. This room is the host's part: queue pairs, connections and the views
//! that device code is handed. It knows neither who submits (GPU or host threads) nor which NIC executes.
//!
//! ```
//! use std::time::Duration;
//! use device::{choice::Choice, host::{self, Kernel}, view::*};
//! use mini_gda::{Gda, GdaAttr};
//! use rdma::{Access, Memory, Nic, soft::{Fabric, FabricAttr}};
//!
//! let fabric = Fabric::open(&FabricAttr::default())?;
//! let (near, far) = (fabric.nic(0), fabric.nic(1));
//! let source = near.register(&Memory::zeroed(4096), Access::empty())?;
//! let target = far.register(&Memory::zeroed(4096), Access::REMOTE_WRITE)?;
//! let gda = Gda::connect(near.as_ref(), far.as_ref(), &GdaAttr::default())?;
//!
//! // Ten 8-byte puts by one thread; with the stepped engine the waiting thread drives the NIC.
//! let (mut issue, mut total, mut failure) = (vec![0u64; 10], vec![0u64; 10], 0u64);
//! let args = LatencyArgs {
//!     qp: gda.device_views(), qps: 1, scope: QuietScope::One, bytes: 8, slots: 10, stride: 8,
//!     warmup: 0, samples: 10, first: 1,
//!     local: Local { address: source.address, lkey: source.lkey },
//!     remote: Remote { address: target.address, rkey: target.rkey },
//!     result: Local::default(), signal: Remote::default(), av: std::ptr::null(),
//!     issue: issue.as_mut_ptr(), total: total.as_mut_ptr(), failure: &raw mut failure,
//! };
//! let choice = Choice::default();
//! // SAFETY: the buffers outlive the launch and hold as many samples as the arguments say.
//! unsafe { host::launch(&choice, Kernel::Latency(Op::Put, &args), &[], Some(&gda.relax(near.as_ref())))? };
//! assert_eq!(Failure::unpack(failure), None);
//! assert_eq!(target.memory.word(9 * 8).load(std::sync::atomic::Ordering::Acquire), 10);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod like;
mod progress;

use std::time::Duration;

use device::choice::{Choice, CqKind, Transport};
use device::clock::Clock;
use device::cuda::CudaError;
use device::host::Relax;
use device::like::Like;
use device::shared::{DeviceValue, Shared};
use device::view::{AddressVector, Failure, QpState, QpView};
use rdma::{ConnectAttr, DcTarget, Destination, Nic, Place, Places, QueuePair, QueuePairAttr};

/// A set of connected queue pairs to make.
#[derive(Clone, Debug)]
pub struct GdaAttr {
    /// Queue pairs.
    pub qps: u32,
    /// log2 of each send queue's 64-byte blocks.
    pub log_blocks: u32,
    /// The choices that device code will be compiled for: the queues are made to fit them.
    pub choice: Choice,
    /// Of every wait in device code.
    pub deadline: Duration,
    /// First block index; tests start near a wrap.
    pub start: u64,
    /// Ring CQs are such whose consumer record nobody looks at, as libraries make them. Device code of
    /// [`Choice`] keeps the record all the same.
    pub overrun: bool,
    /// All queue pairs ring in one doorbell page.
    pub shared_doorbell: bool,
    /// Timers and retries.
    pub connect: ConnectAttr,
    /// Where the near side's queues, records and doorbell pages are made.
    pub queues: Places,
    /// Where those of the far side are made.
    pub peers: Places,
    /// Where the views, and the indices that device code keeps, are made.
    pub state: Place,
    /// The clock that device code reads: deadlines are in its ticks.
    pub clock: Clock,
}

impl Default for GdaAttr {
    fn default() -> Self {
        Self {
            qps: 1,
            log_blocks: 10,
            choice: Choice::default(),
            deadline: Duration::from_secs(10),
            start: 0,
            overrun: false,
            shared_doorbell: false,
            connect: ConnectAttr::default(),
            queues: Places::default(),
            peers: Places::default(),
            state: Place::Host,
            clock: Clock::host(),
        }
    }
}

/// Why there is no transport, or why it failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GdaError {
    /// No queue pairs were asked for.
    #[error("mini-gda needs at least one queue pair")]
    NoQueuePairs,
    /// The NIC refused.
    #[error("{what}: {source}")]
    Nic {
        /// What was being made.
        what: String,
        /// Its answer.
        source: rdma::Error,
    },
    /// Queue pairs that were asked for with other choices than a library's put has.
    #[error("queue pairs for puts like {like} are made with what `LikeGda::attr` says")]
    NotLike {
        /// Whose put.
        like: Like,
    },
    /// A put that a CPU posts: mini-proxy's.
    #[error("puts like {like} are posted by a CPU: mini-proxy has them")]
    LikeProxied {
        /// Whose put.
        like: Like,
    },
    /// A queue whose completions a library's put wouldn't find.
    #[error(
        "a send queue that starts at block {start}: its ring CQ asks for a multiple of {multiple}"
    )]
    LikeStart {
        /// First block.
        start: u64,
        /// Blocks of two laps.
        multiple: u64,
    },
    /// A send queue with more blocks than the library has a number for.
    #[error("a send queue of 2^{log_blocks} blocks: the library counts to 2^{most} of them")]
    LikeDepth {
        /// log2 of its blocks.
        log_blocks: u32,
        /// The largest.
        most: u32,
    },
    /// A region with more keys than a library's table holds.
    #[error("a region of {bytes} bytes: the keys' table is for {most}")]
    LikeHeap {
        /// Of the region.
        bytes: u64,
        /// The largest.
        most: u64,
    },
    /// Device code gave up.
    #[error("{failure}{}", cause.as_deref().map(|c| format!("; the NIC says: {c}")).unwrap_or_default())]
    Device {
        /// What it met.
        failure: Failure,
        /// The queue pair's first cause, as the NIC knows it.
        cause: Option<String>,
    },
}

/// Device code reads an address vector by aligned words; the wire's type has no alignment of its own.
#[derive(Clone, Copy)]
#[repr(C, align(16))]
struct Aligned(AddressVector);

// SAFETY: bytes, of which every pattern is an address vector.
unsafe impl DeviceValue for Aligned {}

/// Connected queue pairs and their device views.
pub struct Gda {
    near: Vec<QueuePair>,
    // The peers' halves of RC connections: they execute and acknowledge.
    far: Vec<QueuePair>,
    _target: Option<DcTarget>,
    address_vector: Option<Shared<Aligned>>,
    // Views point into this.
    states: Shared<QpState>,
    start: u64,
    views: Box<[QpView]>,
    /// The same where device code reads them.
    device_views: Shared<QpView>,
}

// SAFETY: what isn't Send by itself are the addresses in the views. They lead to memory that this value keeps
// alive, wherever it is moved, and no safe code follows them. Device code does, under the contract of its launch:
// what several threads share it accesses atomically, and the plain fields of a queue pair whose choice is one
// exclusive thread belong to that thread.
unsafe impl Send for Gda {}
// SAFETY: as above.
unsafe impl Sync for Gda {}

impl Gda {
    /// Makes and connects `attr.qps` queue pairs from `near` to `far`.
    ///
    /// # Errors
    /// A NIC that has no room, or attributes that it can't serve; the queue pair is named.
    pub fn connect(near: &dyn Nic, far: &dyn Nic, attr: &GdaAttr) -> Result<Self, GdaError> {
        if attr.qps == 0 {
            return Err(GdaError::NoQueuePairs);
        }
        if !near.has_open_queues() {
            return Err(GdaError::Nic {
                what: "mini-gda".to_owned(),
                source: rdma::Error::QueuesClosed { nic: near.name(), who: "GPU threads" },
            });
        }
        let dc = attr.choice.transport == Transport::Dc;
        let ring = attr.choice.cq_kind == CqKind::Ring;
        let mut qp_attr = QueuePairAttr {
            transport: if dc { rdma::Transport::Dci } else { rdma::Transport::Rc },
            log_blocks: attr.log_blocks,
            cq_kind: match (ring, attr.overrun) {
                (true, false) => rdma::CqKind::Ring,
                (true, true) => rdma::CqKind::OverrunRing,
                (false, _) => rdma::CqKind::Collapsed,
            },
            // A collapsed CQ uses its first entry; the second shows one that is polled as the wrong kind.
            log_cq: if ring { attr.log_blocks } else { 1 },
            start: attr.start,
            places: attr.queues.clone(),
            ..QueuePairAttr::default()
        };
        let failed = |what: &str, i: u32| {
            let what = format!("queue pair {i}: {what}");
            move |source| GdaError::Nic { what, source }
        };
        let target = if dc {
            let key = 0x6769_6362_656e_6368;
            Some(
                far.create_dc_target(key, attr.connect.access)
                    .map_err(|source| GdaError::Nic { what: "DC target".to_owned(), source })?,
            )
        } else {
            None
        };
        let (mut nears, mut fars) = (Vec::new(), Vec::new());
        for i in 0..attr.qps {
            let near_qp = near.create_queue_pair(&qp_attr).map_err(failed("near side", i))?;
            if attr.shared_doorbell {
                qp_attr.doorbell_page = Some(near_qp.doorbell_page.clone());
            }
            let mut to = Destination { nic: far.address(), qpn: 0 };
            if !dc {
                let far_attr = QueuePairAttr {
                    log_blocks: 2,
                    places: attr.peers.clone(),
                    ..QueuePairAttr::default()
                };
                let far_qp = far.create_queue_pair(&far_attr).map_err(failed("far side", i))?;
                to.qpn = far_qp.qpn;
                let back = Destination { nic: near.address(), qpn: near_qp.qpn };
                let mirrored = ConnectAttr {
                    sq_psn: attr.connect.rq_psn,
                    rq_psn: attr.connect.sq_psn,
                    ..attr.connect
                };
                far.connect(&far_qp, back, &mirrored)
                    .map_err(failed("connecting the far side", i))?;
                fars.push(far_qp);
            }
            near.connect(&near_qp, to, &attr.connect).map_err(failed("connecting", i))?;
            nears.push(near_qp);
        }
        let shared = |source: CudaError| GdaError::Nic {
            what: "state of the queue pairs".to_owned(),
            source: source.into(),
        };
        let address_vector = match &target {
            None => None,
            Some(target) => {
                let vector = near.address_vector(target).map_err(|source| GdaError::Nic {
                    what: "the way to the DC target".to_owned(),
                    source,
                })?;
                Some(Shared::at(&attr.state, &[Aligned(vector)]).map_err(shared)?)
            }
        };
        let states = vec![QpState::starting_at(attr.start, 0); nears.len()];
        let states = Shared::at(&attr.state, &states).map_err(shared)?;
        let first = states.as_ptr();
        let deadline = attr.clock.ticks(attr.deadline);
        let views: Box<[QpView]> = nears
            .iter()
            .enumerate()
            .map(|(i, qp)| QpView {
                sq: qp.areas.sq.ptr(),
                log_blocks: qp.attr.log_blocks,
                record: qp
                    .areas
                    .record
                    .ptr()
                    .cast::<u32>()
                    .wrapping_add(wire::doorbell::RECORD_SEND),
                doorbell: qp.doorbell(),
                cq: qp.areas.cq.ptr(),
                cq_record: qp.areas.cq_record.ptr().cast(),
                state: first.wrapping_add(i),
                deadline,
                qpn: qp.qpn,
                log_cq: qp.attr.log_cq,
            })
            .collect();
        let device_views = Shared::at(&attr.state, &views).map_err(shared)?;
        Ok(Self {
            near: nears,
            far: fars,
            _target: target,
            address_vector,
            states,
            start: attr.start,
            views,
            device_views,
        })
    }

    /// What device code is handed, one a queue pair, for the host to look at.
    #[must_use]
    pub fn views(&self) -> &[QpView] {
        &self.views
    }

    /// The same where device code reads it. Valid while this value lives.
    #[must_use]
    pub fn device_views(&self) -> *const QpView {
        self.device_views.as_ptr()
    }

    /// 64-byte blocks of each send queue.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.views.first().map_or(0, |view| 1 << view.log_blocks)
    }

    /// Forgets what was posted: the queues are as new. Only where no NIC executes them.
    ///
    /// # Errors
    /// State in GPU memory that can't be written.
    pub fn reset(&self) -> Result<(), CudaError> {
        self.states.write(&vec![QpState::starting_at(self.start, 0); self.views.len()])
    }

    /// By the queues' own indices, since they were made: 64-byte blocks that were posted, and those of them that
    /// completed, while nobody posts. For NICs that don't count.
    ///
    /// # Errors
    /// State in GPU memory that can't be read.
    pub fn blocks_posted_and_completed(&self) -> Result<(u64, u64), CudaError> {
        let states = self.states.read()?;
        let sums =
            states.iter().zip(&self.near).fold((0, 0), |(posted, completed), (state, qp)| {
                let done = progress::completed(qp, state.reserved, state.consumed);
                (posted + (state.reserved - self.start), completed + (done - self.start))
            });
        Ok(sums)
    }

    /// The queue pairs of the near side.
    #[must_use]
    pub fn queue_pairs(&self) -> &[QueuePair] {
        &self.near
    }

    /// The peers of RC queue pairs; none for DC.
    #[must_use]
    pub fn peers(&self) -> &[QueuePair] {
        &self.far
    }

    /// The address vector that DC sends carry, for the kernels' arguments; null for RC.
    #[must_use]
    pub fn address_vector(&self) -> *const AddressVector {
        self.address_vector.as_ref().map_or(std::ptr::null(), |av| av.as_ptr().cast_const().cast())
    }

    /// What waiting threads do: drive `near` where nobody else does.
    pub fn relax<'a>(&self, near: &'a dyn Nic) -> impl Relax + use<'a> {
        NicRelax(near)
    }

    /// Checks a failure word that a kernel left, and adds what the NIC knows of its cause.
    ///
    /// # Errors
    /// [`GdaError::Device`] unless the word is 0.
    pub fn check(&self, near: &dyn Nic, word: u64) -> Result<(), GdaError> {
        match Failure::unpack(word) {
            None => Ok(()),
            Some(failure) => Err(GdaError::Device { failure, cause: near.cause(failure.qpn) }),
        }
    }
}

struct NicRelax<'a>(&'a dyn Nic);

impl Relax for NicRelax<'_> {
    fn relax(&self, spins: u32) {
        self.0.relax(spins);
    }
}
