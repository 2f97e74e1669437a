//! Any RDMA device as a NIC, by libibverbs alone.
//!
//! Its queues are its driver's own: nobody writes WQEs into them, and what a CPU posts goes through
//! [`Nic::send_queue`] and [`Nic::receive_queue`], one `ibv_post_send` a chain. So mini-proxy runs on it, and mini-gda
//! doesn't.

mod queue;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use device::cuda::Gpu;
use softnic::{Access, Memory};

use crate::ibv::{
    Asked, CompletionQueue, Context, MemoryRegion, OpenPort, PortOf, QueuePairHandle, ffi,
};
use crate::mlx5::gpu;
use crate::post::{INLINE_MAX, ReceiveQueue, SendQueue};
use crate::{
    Address, Areas, ConnectAttr, CqKind, DcTarget, Destination, Error, Nic, Place, QueuePair,
    QueuePairAttr, Region, Transport,
};
use queue::{Receives, Sends};

/// A port of an RDMA device, open.
pub struct VerbsNic {
    port: OpenPort,
    notes: Mutex<Vec<String>>,
    known: Arc<Known>,
}

/// What was seen to go wrong. Shared with the queues, which see most of it.
pub(crate) struct Known {
    context: Arc<Context>,
    first_errors: Mutex<HashMap<u32, String>>,
    events: Mutex<Vec<String>>,
}

impl Known {
    /// The first error of a queue pair is the cause of all that follow.
    fn failed(&self, qpn: u32, why: impl FnOnce() -> String) {
        lock(&self.first_errors).entry(qpn).or_insert_with(why);
    }

    /// Async events so far.
    fn events(&self) -> Vec<String> {
        let mut events = lock(&self.events);
        events.extend(self.context.events());
        events.clone()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A region of the device, dropped before its memory.
#[allow(dead_code, reason = "kept for what they are")]
struct Registered(MemoryRegion, Arc<Memory>);

impl VerbsNic {
    /// Opens the port that is asked for, or the best one.
    ///
    /// # Errors
    /// There is no libibverbs, no port that can be used, or a verb failed.
    pub fn open(asked: &Asked) -> Result<Arc<Self>, Error> {
        Ok(Self::of(OpenPort::open(asked)?))
    }

    /// A port that is open already.
    #[must_use]
    pub fn of(port: OpenPort) -> Arc<Self> {
        let known = Known {
            context: Arc::clone(&port.context),
            first_errors: Mutex::default(),
            events: Mutex::default(),
        };
        Arc::new(Self { port, notes: Mutex::default(), known: Arc::new(known) })
    }

    /// The port that was chosen, and why.
    #[must_use]
    pub fn port(&self) -> &PortOf {
        &self.port.of
    }

    /// Registers memory whose writes the device may reorder on the bus, where kernel and device can.
    ///
    /// # Errors
    /// [`Error::Verbs`].
    pub fn register_relaxed(&self, memory: &Arc<Memory>, access: Access) -> Result<Region, Error> {
        self.register_as(memory, access, true)
    }

    /// Which ways to GPU memory were tried, and how they ended. For records.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        lock(&self.notes).clone()
    }

    fn register_as(
        &self,
        memory: &Arc<Memory>,
        access: Access,
        relaxed: bool,
    ) -> Result<Region, Error> {
        let by_address = || self.by_address(memory, access, relaxed);
        if memory.is_mapped() {
            return Ok(Self::region(by_address()?, memory, memory.len()));
        }
        self.register_of_gpu(memory, memory.len(), access, None)
    }

    fn by_address(
        &self,
        memory: &Arc<Memory>,
        access: Access,
        relaxed: bool,
    ) -> Result<MemoryRegion, Error> {
        let access = access | Access::LOCAL_WRITE;
        // SAFETY: the region holds its memory and is dropped before it; all access to it is atomic or from outside of
        // Rust. GPU memory is the kernel's to accept (nvidia-peermem), and is never followed here.
        unsafe { self.port.pd.register(memory.as_ptr() as u64, memory.len(), access, relaxed) }
    }

    fn register_of_gpu(
        &self,
        memory: &Arc<Memory>,
        bytes: usize,
        access: Access,
        gpu: Option<&Arc<Gpu>>,
    ) -> Result<Region, Error> {
        let access = access | Access::LOCAL_WRITE;
        let (region, note) = gpu::give(
            "payload",
            memory,
            gpu,
            |dmabuf| {
                let address = memory.as_ptr() as u64;
                self.port.pd.register_dmabuf(dmabuf, 0, memory.len(), address, access)
            },
            || self.by_address(memory, access, false),
        )?;
        let mut notes = lock(&self.notes);
        if !notes.contains(&note) {
            notes.push(note);
        }
        Ok(Self::region(region, memory, bytes))
    }

    fn region(region: MemoryRegion, memory: &Arc<Memory>, bytes: usize) -> Region {
        let (lkey, rkey) = region.keys();
        Region {
            address: memory.as_ptr() as u64,
            length: bytes as u64,
            lkey,
            rkey,
            memory: Arc::clone(memory),
            _owner: Some(Arc::new(Registered(region, Arc::clone(memory)))),
        }
    }

    fn lacks(&self, what: &'static str, why: &'static str) -> Error {
        Error::Lacks { nic: self.name(), what, why }
    }

    fn handle<'a>(&self, qp: &'a QueuePair) -> Result<&'a Arc<QueuePairHandle>, Error> {
        qp.owner.downcast_ref::<Arc<QueuePairHandle>>().ok_or(Error::PosterNeeds {
            qpn: qp.qpn,
            what: "a queue pair of the NIC that is asked",
        })
    }
}

impl Nic for VerbsNic {
    fn address(&self) -> Address {
        self.port.of.address
    }

    fn name(&self) -> String {
        let of = &self.port.of;
        format!("{}:{} by libibverbs ({})", of.device, of.port, of.link.name())
    }

    fn register(&self, memory: &Arc<Memory>, access: Access) -> Result<Region, Error> {
        self.register_as(memory, access, false)
    }

    fn allocate(&self, place: &Place, bytes: usize, access: Access) -> Result<Region, Error> {
        let memory = gpu::memory_for_nic(place, bytes)?;
        if memory.is_mapped() {
            return self.register_as(&memory, access, false);
        }
        self.register_of_gpu(&memory, bytes, access, gpu::gpu_of(place))
    }

    fn create_queue_pair(&self, attr: &QueuePairAttr) -> Result<QueuePair, Error> {
        if attr.transport != Transport::Rc {
            return Err(self.lacks("DC", "it is mlx5's own: use --nic mlx5"));
        }
        if attr.start != 0 {
            return Err(self.lacks("first index", "hardware starts at 0"));
        }
        if attr.doorbell_page.is_some() {
            return Err(self.lacks("shared doorbell page", "its driver chooses: use --nic mlx5"));
        }
        if matches!(attr.places.sq, Place::Gpu(_)) || matches!(attr.places.cq, Place::Gpu(_)) {
            let why = "its driver places them in host memory: use --nic mlx5";
            return Err(self.lacks("queues in GPU memory", why));
        }
        // Each request may end in an entry: also one that asked for none, if it is flushed.
        let sends = 1u32 << attr.log_blocks.min(15);
        let receives = attr.log_receives.map_or(1, |log| 1u32 << log.min(15));
        let context = &self.port.context;
        let send_cq = CompletionQueue::new(context, sends as usize)?;
        let recv_cq = CompletionQueue::new(context, receives as usize)?;
        let cap = ffi::QpCap {
            max_send_wr: sends,
            max_recv_wr: receives,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: INLINE_MAX as u32,
        };
        let handle = Arc::new(QueuePairHandle::new(&self.port.pd, &send_cq, &recv_cq, cap)?);
        let nothing = Memory::try_zeroed(0)?;
        Ok(QueuePair {
            qpn: handle.number(),
            attr: attr.clone(),
            areas: Areas::elsewhere(&nothing),
            doorbell_page: nothing,
            owner: Box::new(handle),
        })
    }

    fn connect(&self, qp: &QueuePair, to: Destination, attr: &ConnectAttr) -> Result<(), Error> {
        self.handle(qp)?.connect(&self.port.route, &to.nic, to.qpn, attr)
    }

    fn create_dc_target(&self, _: u64, _: Access) -> Result<DcTarget, Error> {
        Err(self.lacks("DC", "it is mlx5's own: use --nic mlx5"))
    }

    fn has_open_queues(&self) -> bool {
        false
    }

    fn send_queue(&self, qp: &Arc<QueuePair>) -> Result<Box<dyn SendQueue>, Error> {
        if qp.attr.cq_kind != CqKind::Ring {
            return Err(Error::PosterNeeds { qpn: qp.qpn, what: "a ring CQ" });
        }
        let handle = Arc::clone(self.handle(qp)?);
        Ok(Box::new(Sends::new(handle, 1 << qp.attr.log_blocks, Arc::clone(&self.known))))
    }

    fn receive_queue(&self, qp: &Arc<QueuePair>) -> Result<Box<dyn ReceiveQueue>, Error> {
        let log = qp
            .attr
            .log_receives
            .ok_or(Error::PosterNeeds { qpn: qp.qpn, what: "a receive queue" })?;
        let handle = Arc::clone(self.handle(qp)?);
        Ok(Box::new(Receives::new(handle, 1 << log, Arc::clone(&self.known))))
    }

    fn findings(&self) -> Result<Vec<String>, Error> {
        Ok(self.known.events())
    }

    fn completed(&self) -> Result<Option<u64>, Error> {
        Ok(None)
    }

    fn cause(&self, qpn: u32) -> Option<String> {
        let first = lock(&self.known.first_errors).get(&qpn).cloned();
        let events = self.known.events();
        let all: Vec<String> = first.into_iter().chain(events).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    fn relax(&self, spins: u32) {
        // A device that is a program needs a processor now and then; one of hardware hardly feels it.
        if spins % 256 == 255 {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }

    fn gone(&self) -> Option<String> {
        // `IBV_EVENT_DEVICE_FATAL`, in the library's words.
        self.known.events().into_iter().find(|event| event.contains("local catastrophic error"))
    }
}
