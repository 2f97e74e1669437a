//! What can go wrong between a transport and a NIC.

use crate::CqKind;

/// A NIC, or a request to it, failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Bytes outside of a region.
    #[error("{bytes} bytes at offset {offset} don't lie in the region's {length} bytes")]
    OutOfRegion {
        /// First byte.
        offset: u64,
        /// How many.
        bytes: u64,
        /// The region's length.
        length: u64,
    },
    /// A queue's size can't be had.
    #[error("a {queue} of 2^{log} entries can't be had: between 2^{min} and 2^{max} can")]
    QueueSize {
        /// Which queue.
        queue: &'static str,
        /// log2 of what was asked for.
        log: u32,
        /// Least.
        min: u32,
        /// Most.
        max: u32,
    },
    /// A CQ in which not everything fits that may complete at once.
    #[error(
        "a {kind:?} CQ of 2^{log_cq} entries is smaller than the 2^{log_blocks} WQEs that may complete in it: make \
         it as deep as the send queue, or collapsed"
    )]
    CqTooSmall {
        /// Its kind.
        kind: CqKind,
        /// log2 of its entries.
        log_cq: u32,
        /// log2 of the send queue.
        log_blocks: u32,
    },
    /// The software NIC could not make an object.
    #[error("the NIC can't create the {what}: {source}")]
    Create {
        /// What was asked for.
        what: &'static str,
        /// Its answer.
        source: softnic::CreateError,
    },
    /// The software NIC could not connect a queue pair.
    #[error("queue pair {qpn:#x} can't be connected: {source}")]
    Connect {
        /// Which.
        qpn: u32,
        /// Its answer.
        source: softnic::ModifyError,
    },
    /// No memory for a queue pair's queues.
    #[error("a queue pair's queues need memory: {0}")]
    Memory(#[from] softnic::OutOfMemory),
    /// The GPU, or its memory, can't be had.
    #[error(transparent)]
    Cuda(#[from] device::cuda::CudaError),
    /// A poster on a queue pair that it can't serve.
    #[error("posting to queue pair {qpn:#x} from the CPU needs {what}")]
    PosterNeeds {
        /// Which.
        qpn: u32,
        /// What it has to be.
        what: &'static str,
    },
    /// Device code on a queue pair that can only be posted to by its driver.
    #[error(
        "the queues of {nic} are its driver's own: device code can't write WQEs into them ({who} would have to); \
         a transport that posts by the CPU can use it"
    )]
    QueuesClosed {
        /// The NIC.
        nic: String,
        /// Who needs open queues.
        who: &'static str,
    },
    /// Memory that the NIC's engine can't follow.
    #[error(
        "the {what} lies in memory that this NIC's engine doesn't reach: an engine on a GPU needs GPU memory or \
         pinned memory, one in this process anything but GPU memory"
    )]
    Unreachable {
        /// What it is for.
        what: &'static str,
    },
    /// The NIC's engine runs on a GPU, and its tables stay as they are.
    #[error("the NIC's engine runs on the GPU: objects can be made and changed when it is stopped")]
    EngineRuns,
    /// The NIC's engine on a GPU ended by itself.
    #[error(
        "the NIC's engine on the GPU ended by itself: this process did not renew its lease in time"
    )]
    LeaseExpired,
    /// Another process's NIC, or the way to it.
    #[error("the NIC of another rank: {why}")]
    Remote {
        /// What the other process says, or why it says nothing.
        why: String,
    },
    /// The memory that links two processes' software NICs.
    #[error("the memory that links this process's software NIC to another's can't be {what}: {}", std::io::Error::from_raw_os_error(*errno))]
    SharedLink {
        /// What was being done.
        what: &'static str,
        /// What the system said.
        errno: i32,
    },
    /// A ConnectX, or a way to it, failed.
    #[error(transparent)]
    Mlx5(#[from] crate::mlx5::Mlx5Error),
    /// A library that a real NIC is reached by can't be used.
    #[error(transparent)]
    Load(#[from] crate::ibv::LoadError),
    /// A verb failed.
    #[error(transparent)]
    Verbs(#[from] crate::ibv::VerbError),
    /// No port can be used.
    #[error(transparent)]
    NoPort(#[from] crate::select::NoPort),
    /// The port has no such GID.
    #[error(transparent)]
    NoGid(#[from] crate::ibv::NoGid),
    /// A path MTU that there isn't.
    #[error(transparent)]
    NoMtu(#[from] crate::select::NoMtu),
    /// Something that this kind of NIC doesn't do.
    #[error("{nic} has no {what}: {why}")]
    Lacks {
        /// The NIC.
        nic: String,
        /// What was asked for.
        what: &'static str,
        /// Why it isn't there, and what to do.
        why: &'static str,
    },
    /// The NIC is gone.
    #[error("the NIC doesn't answer: {0}")]
    Gone(#[from] softnic::EngineGone),
}
