//! One small interface to a NIC, and its implementations.
//!
//! What a transport asks of a NIC is here: open it, register memory, make queue pairs whose queues lie in
//! memory that the transport can hand to device code, connect them. Which NIC executes the WQEs is not known on the
//! other side of this interface: [`soft`], the software ConnectX; [`soft_gpu`], its data path as device code;
//! [`mlx5`], a ConnectX; [`verbs`], any RDMA device, posted to by the CPU alone.
//! What is posted, and when, stays out.

mod address;
mod error;
pub mod ibv;
mod memory;
pub mod mlx5;
pub mod post;
mod queue;
pub mod remote;
pub mod select;
pub mod soft;
pub mod soft_gpu;
pub mod sysfs;
pub mod verbs;

pub use address::Address;
pub use device::cuda::Place;
pub use error::Error;
pub use memory::memory;
pub use queue::{Area, Areas, CqKind, Places, QueuePair, QueuePairAttr, Transport};
pub use softnic::{Access, Memory, OutOfMemory};

use post::{ReceivePoster, ReceiveQueue, SendPoster, SendQueue};
use std::any::Any;
use std::sync::Arc;

/// What destroys a NIC's objects when it is dropped.
type Owner = Box<dyn Any + Send + Sync>;

/// A registered region. Clones share the registration; dropping the last one ends it, and then the keys match
/// nothing: who hands keys or addresses on keeps a clone for as long as they are used.
#[derive(Clone)]
pub struct Region {
    /// Address of its first byte, as WQEs name it.
    pub address: u64,
    /// Bytes.
    pub length: u64,
    /// Key for data segments.
    pub lkey: u32,
    /// Key for peers.
    pub rkey: u32,
    /// The memory itself: the NICs of this interface share the process's memory. It outlives the registration
    /// for as long as somebody holds it.
    pub memory: Arc<Memory>,
    /// Deregisters it.
    _owner: Option<Arc<dyn Any + Send + Sync>>,
}

impl Region {
    /// All of `memory`, under keys that somebody else looks after.
    #[must_use]
    pub fn borrowed(memory: Arc<Memory>, address: u64, lkey: u32, rkey: u32) -> Self {
        Self { address, length: memory.len() as u64, lkey, rkey, memory, _owner: None }
    }

    /// Memory that only another process has, known by its numbers: nothing is read or written here.
    ///
    /// # Errors
    /// No memory for the empty stretch that stands for it.
    pub fn elsewhere(address: u64, length: u64, lkey: u32, rkey: u32) -> Result<Self, Error> {
        let memory = Memory::try_zeroed(0)?;
        Ok(Self { address, length, lkey, rkey, memory, _owner: None })
    }

    /// The address of `bytes` bytes at `offset`.
    ///
    /// # Errors
    /// [`Error::OutOfRegion`] where they don't lie in the region: told before anything is posted.
    pub fn at(&self, offset: u64, bytes: u64) -> Result<u64, Error> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.length => Ok(self.address + offset),
            _ => Err(Error::OutOfRegion { offset, bytes, length: self.length }),
        }
    }
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Region")
            .field("address", &self.address)
            .field("length", &self.length)
            .field("lkey", &self.lkey)
            .field("rkey", &self.rkey)
            .finish_non_exhaustive()
    }
}

/// Where a queue pair's packets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Destination {
    /// The peer's NIC.
    pub nic: Address,
    /// The peer's queue pair.
    pub qpn: u32,
}

/// A DC target. Dropping it destroys it, and its CQ and connections with it.
pub struct DcTarget {
    /// Its NIC.
    pub nic: Address,
    /// Its number.
    pub number: u32,
    /// What initiators must know.
    pub key: u64,
    /// Destroys the NIC's objects.
    _owner: Owner,
}

impl std::fmt::Debug for DcTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DcTarget")
            .field("nic", &self.nic)
            .field("number", &self.number)
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

impl DcTarget {
    /// The address vector that sends to it carry on a fabric of LIDs.
    #[must_use]
    pub fn address_vector(&self) -> wire::wqe::AddressVector {
        wire::wqe::AddressVector {
            key: self.key.into(),
            dqp_dct: (self.number | wire::wqe::AV_EXTENDED).into(),
            stat_rate_sl: 0,
            fl_mlid: 0,
            rlid: self.nic.lid.to_be_bytes(),
            reserved: [0; 4],
            rmac: [0; 6],
            tclass: 0,
            hop_limit: 0,
            grh_gid_fl: 0.into(),
            rgid: [0; 16],
        }
    }
}

/// Timers and retries of a connection; the defaults are those of the field's libraries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectAttr {
    /// What the peer may do here.
    pub access: Access,
    /// First sequence number that this side sends (24 bits).
    pub sq_psn: u32,
    /// First sequence number that the peer sends.
    pub rq_psn: u32,
    /// The wait for an acknowledgement is 4.096 us * 2^timeout.
    pub timeout: u8,
    /// Timeouts before giving up.
    pub retry_cnt: u8,
    /// RNR NAKs before giving up; 7 never does.
    pub rnr_retry: u8,
}

impl Default for ConnectAttr {
    fn default() -> Self {
        Self {
            access: Access::all(),
            sq_psn: 0,
            rq_psn: 0,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
        }
    }
}

/// An open NIC.
pub trait Nic: Send + Sync {
    /// Its address on links.
    fn address(&self) -> Address;

    /// What it is, for records and messages.
    fn name(&self) -> String;

    /// Registers memory for local writes and for `access` by peers.
    ///
    /// # Errors
    /// The NIC has no room, or is gone.
    fn register(&self, memory: &Arc<Memory>, access: Access) -> Result<Region, Error>;

    /// Memory in `place`, registered for `access` by peers.
    ///
    /// # Errors
    /// There isn't so much memory there, the NIC has no room, or is gone.
    fn allocate(&self, place: &Place, bytes: usize, access: Access) -> Result<Region, Error> {
        self.register(&memory(place, bytes)?, access)
    }

    /// Makes a queue pair with its CQs, queues and doorbell page.
    ///
    /// # Errors
    /// Attributes out of range, no room, or the NIC is gone.
    fn create_queue_pair(&self, attr: &QueuePairAttr) -> Result<QueuePair, Error>;

    /// Takes an RC queue pair (to `destination`) or a DCI to where it can send.
    ///
    /// # Errors
    /// No link to the destination, a wrong state, or the NIC is gone.
    fn connect(
        &self,
        qp: &QueuePair,
        destination: Destination,
        attr: &ConnectAttr,
    ) -> Result<(), Error>;

    /// Makes a DC target for writes, reads and atomics.
    ///
    /// # Errors
    /// No room, or the NIC is gone.
    fn create_dc_target(&self, key: u64, access: Access) -> Result<DcTarget, Error>;

    /// The address vector that this NIC's sends to a target carry.
    ///
    /// # Errors
    /// No way to the target's NIC.
    fn address_vector(&self, target: &DcTarget) -> Result<wire::wqe::AddressVector, Error> {
        Ok(target.address_vector())
    }

    /// Whether a queue pair's queues lie open, in memory that device code may write WQEs into. If not, they are posted to
    /// by [`send_queue`](Self::send_queue) alone.
    fn has_open_queues(&self) -> bool {
        true
    }

    /// The send side of a connected RC queue pair with a ring CQ that nobody else posts to.
    ///
    /// # Errors
    /// [`Error::PosterNeeds`].
    fn send_queue(&self, qp: &Arc<QueuePair>) -> Result<Box<dyn SendQueue>, Error> {
        Ok(Box::new(SendPoster::new(Arc::clone(qp))?))
    }

    /// The receive side of a queue pair that has a receive queue, for messages without a payload of their own.
    ///
    /// # Errors
    /// [`Error::PosterNeeds`].
    fn receive_queue(&self, qp: &Arc<QueuePair>) -> Result<Box<dyn ReceiveQueue>, Error> {
        Ok(Box::new(ReceivePoster::new(Arc::clone(qp))?))
    }

    /// What it saw its clients do wrong, in words.
    ///
    /// # Errors
    /// The NIC is gone.
    fn findings(&self) -> Result<Vec<String>, Error>;

    /// WQEs that it has completed as a requester, so far; `None` of a NIC that doesn't tell.
    ///
    /// # Errors
    /// The NIC is gone.
    fn completed(&self) -> Result<Option<u64>, Error>;

    /// Why a queue pair went to error: the first cause, in words, if the NIC knows.
    fn cause(&self, qpn: u32) -> Option<String>;

    /// One turn of a wait loop: drives the NIC where nobody else does, and otherwise gives the core away now
    /// and then.
    fn relax(&self, spins: u32);

    /// Drives the NIC where nobody else does. True if that did something.
    fn step(&self) -> bool {
        false
    }

    /// Why the NIC answers no more, in words, if so.
    fn gone(&self) -> Option<String> {
        None
    }

    /// Whether it is another process's, whose queues and memory nobody here follows.
    fn is_remote(&self) -> bool {
        false
    }
}
