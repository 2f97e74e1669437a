//! A ConnectX: queues made by DevX commands in memory that device code writes, doorbells rung at the mapped register.
//!
//! This is how the libraries whose GPUs post themselves do it. libibverbs and libmlx5 are the system's, loaded when
//! they are needed; what they don't drive is refused by name. Each step that can fail on a machine says which it was.
//!
//! - `port.rs`: the opened port, by [`ibv`](crate::ibv): protection domain, memory regions, addresses.
//! - `dv.rs`: libmlx5's functions, and what they make.
//! - `command.rs`: the commands' bytes.
//! - `page.rs`: doorbell pages. `gpu.rs`: GPU memory given to the NIC.
//! - `queues.rs`: a queue pair's memory and objects.

mod command;
mod dv;
mod error;
pub(crate) mod gpu;
mod page;
mod port;
mod queues;

pub use error::Mlx5Error;

use std::sync::{Arc, Mutex, PoisonError, Weak};

use device::cuda::{Gpu, Place};
use wire::cqe::{Cqe, Syndrome};
use wire::devx::{Opcode, cap, qpc, query_hca_cap, query_qp};
use wire::wqe::AddressVector;
use zerocopy::FromZeros;

use crate::ibv::{Asked, PortOf};
use crate::{
    Access, Address, ConnectAttr, DcTarget, Destination, Error, Memory, Nic, QueuePair,
    QueuePairAttr, Region, Transport,
};
use command::{DctSpec, Path};
use dv::{Object, Opened};
use page::{Page, Ringer};
use port::Port;
use queues::Pair;

/// One port of a ConnectX.
pub struct Mlx5Nic {
    port: Port,
    opened: Arc<Opened>,
    pdn: u32,
    eqn: u32,
    /// Deepest send queue, log2 of blocks.
    log_most: u32,
    /// Pages that queue pairs may share, by the address that they know them by.
    pages: Mutex<Vec<(usize, Weak<Page>)>>,
    /// Queue pairs, by number.
    pairs: Mutex<Vec<Weak<Pair>>>,
    /// How it was all had.
    notes: Mutex<Vec<String>>,
    /// Events so far.
    events: Mutex<Vec<String>>,
}

impl Mlx5Nic {
    /// Opens a device.
    ///
    /// # Errors
    /// A library or the device isn't there, or a step fails.
    pub fn open(asked: &Asked) -> Result<Arc<Self>, Error> {
        let (port, opened) = Port::open(asked, dv::Dv::load()?)?;
        // The first command: whether this kernel, and this process's rights, let any through.
        let page = opened.general("QUERY_HCA_CAP", &command::capabilities(), query_hca_cap::OUT)?;
        let log_most = cap::LOG_MAX_QP_SZ.within(query_hca_cap::CAPABILITY).get32(&page);
        let pdn = port.pd_number(&opened)?;
        let eqn = opened.eqn(0)?;
        let (pages, pairs, notes) = (Mutex::default(), Mutex::default(), Mutex::default());
        Ok(Arc::new(Self {
            port,
            opened,
            pdn,
            eqn,
            log_most,
            pages,
            pairs,
            notes,
            events: Mutex::default(),
        }))
    }

    /// The port that was chosen, and why.
    #[must_use]
    pub fn port(&self) -> &PortOf {
        self.port.of()
    }

    /// Which ways to GPU memory and to the doorbell were tried, and how they ended. For records.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        lock(&self.notes).clone()
    }

    fn note(&self, note: String) {
        let mut notes = lock(&self.notes);
        if !notes.contains(&note) {
            notes.push(note);
        }
    }

    /// A doorbell page: the one that is given, or a new one.
    fn page(
        &self,
        shared: Option<&Arc<Memory>>,
        place: &Place,
    ) -> Result<(Arc<Page>, Arc<Memory>), Error> {
        let mut pages = lock(&self.pages);
        pages.retain(|(_, page)| page.strong_count() > 0);
        if let Some(memory) = shared {
            let at = memory.as_ptr().addr();
            let known = pages.iter().find(|(address, _)| *address == at);
            let page = known.and_then(|(_, page)| page.upgrade());
            let page = page.ok_or(Mlx5Error::Unsupported {
                what: "way to ring at a page that it didn't give",
            })?;
            return Ok((page, Arc::clone(memory)));
        }
        let gpu = gpu::gpu_of(place);
        // The library may give one page to all who ask, and a GPU maps it once.
        let (page, note) = match pages.iter().find_map(|(_, page)| page.upgrade()) {
            Some(page) if gpu.is_some() && page.is_mapped_for_gpus() => (page, None),
            _ => {
                let ringer = gpu.map_or(Ringer::Cpu, Ringer::Gpu);
                let (page, note) = Page::new(&self.opened, ringer)?;
                (Arc::new(page), Some(note))
            }
        };
        note.into_iter().for_each(|note| self.note(note));
        let memory = page.memory()?;
        pages.push((memory.as_ptr().addr(), Arc::downgrade(&page)));
        Ok((page, memory))
    }

    /// Async events so far.
    fn events(&self) -> Vec<String> {
        let mut events = lock(&self.events);
        events.extend(self.port.context().events());
        events.clone()
    }

    fn pair(&self, qpn: u32) -> Option<Arc<Pair>> {
        let mut pairs = lock(&self.pairs);
        pairs.retain(|pair| pair.strong_count() > 0);
        pairs.iter().filter_map(Weak::upgrade).find(|pair| pair.number() == qpn)
    }

    fn path(&self, transport: Transport, peer: Address) -> Result<Path, Error> {
        let (own, route) = (self.port.address(), self.port.route());
        let mac = match transport {
            Transport::Rc if peer.is_global() => self.port.vector_to(&self.opened, &peer)?.rmac,
            // A DCI's peers are named by what it sends.
            _ => [0; 6],
        };
        if transport == Transport::Rc && !peer.is_global() && own.lid == 0 {
            let why = "an Ethernet port reaches peers by a GID, and this one has none";
            return Err(Mlx5Error::Path { peer: peer.to_string(), why }.into());
        }
        Ok(Path {
            port: route.port,
            gid_index: route.gid_index,
            peer,
            is_global: peer.is_global() || route.always_global,
            log_reads: u8::try_from(route.reads.max(1).ilog2()).unwrap_or(0),
            mac,
            mtu: own.path_mtu(&peer).unwrap_or(1024),
        })
    }

    fn register_in(
        &self,
        memory: &Arc<Memory>,
        bytes: usize,
        access: Access,
        gpu: Option<&Arc<Gpu>>,
    ) -> Result<Region, Error> {
        let mr = if memory.is_mapped() {
            self.port.register(memory, bytes, access)?
        } else {
            let (mr, note) = gpu::give(
                "payload",
                memory,
                gpu,
                |fd| self.port.register_dmabuf(fd, memory, access),
                || self.port.register(memory, memory.len(), access),
            )?;
            self.note(note);
            mr
        };
        let (lkey, rkey) = mr.keys();
        Ok(Region {
            address: memory.as_ptr().addr() as u64,
            length: bytes as u64,
            lkey,
            rkey,
            memory: Arc::clone(memory),
            // In this order.
            _owner: Some(Arc::new((mr, Arc::clone(memory)))),
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Nic for Mlx5Nic {
    fn address(&self) -> Address {
        self.port.address()
    }

    fn name(&self) -> String {
        let of = self.port.of();
        format!("{}:{} by libmlx5 ({})", of.device, of.port, of.link.name())
    }

    fn register(&self, memory: &Arc<Memory>, access: Access) -> Result<Region, Error> {
        self.register_in(memory, memory.len(), access, None)
    }

    fn allocate(&self, place: &Place, bytes: usize, access: Access) -> Result<Region, Error> {
        let memory = gpu::memory_for_nic(place, bytes)?;
        self.register_in(&memory, bytes, access, gpu::gpu_of(place))
    }

    fn create_queue_pair(&self, attr: &QueuePairAttr) -> Result<QueuePair, Error> {
        crate::soft::check(attr)?;
        if attr.log_blocks > self.log_most {
            let (log, max) = (attr.log_blocks, self.log_most);
            return Err(Error::QueueSize { queue: "send queue", log, min: 2, max });
        }
        if attr.start != 0 {
            let what = "send queue that begins at another index than 0";
            return Err(Mlx5Error::Unsupported { what }.into());
        }
        let (page, doorbell_page) =
            self.page(attr.doorbell_page.as_ref(), &attr.places.doorbell)?;
        let mut notes = Vec::new();
        let pair = Pair::create(&self.opened, attr, (self.pdn, self.eqn), page, &mut notes)?;
        notes.into_iter().for_each(|note| self.note(note));
        let pair = Arc::new(pair);
        lock(&self.pairs).push(Arc::downgrade(&pair));
        Ok(QueuePair {
            qpn: pair.number(),
            attr: attr.clone(),
            areas: pair.areas().clone(),
            doorbell_page,
            owner: Box::new(pair),
        })
    }

    fn connect(&self, qp: &QueuePair, to: Destination, attr: &ConnectAttr) -> Result<(), Error> {
        let unknown = Mlx5Error::Unsupported { what: "queue pair of this number" };
        let pair = self.pair(qp.qpn).ok_or(unknown)?;
        let way = self.path(qp.attr.transport, to.nic)?;
        for (opcode, bytes) in command::connect(qp.qpn, qp.attr.transport, to.qpn, &way, attr) {
            pair.object().modify(opcode, &bytes)?;
        }
        Ok(())
    }

    fn create_dc_target(&self, key: u64, access: Access) -> Result<DcTarget, Error> {
        let own = self.port.address();
        // Nobody rings at it.
        let (page, _) = Page::new(&self.opened, Ringer::Nobody)?;
        let (cq, cqn) = queues::target_cq(&self.opened, &page, self.eqn)?;
        let make = |srqn| {
            let spec = DctSpec {
                pdn: self.pdn,
                cqn,
                srqn,
                key,
                access,
                port: self.port.route().port,
                gid_index: self.port.route().gid_index,
                mtu: u32::from(own.mtu),
            };
            Object::create(&self.opened, Opcode::CreateDct, &command::create_dct(&spec))
        };
        // Hardware's targets have a shared receive queue, also if nothing is ever sent to them.
        let with = self.port.shared_receives(&self.opened).and_then(|(srq, number)| {
            let dct = make(number)?;
            Ok((dct, Some(srq)))
        });
        let (dct, srq) = match with {
            Ok(made) => made,
            Err(why) => {
                let dct = make(0)?;
                self.note(format!("DC target: without a shared receive queue ({why})"));
                (dct, None)
            }
        };
        let number = dct.number;
        // In this order.
        let owner = Box::new((dct, srq, cq, page));
        Ok(DcTarget { nic: own, number, key, _owner: owner })
    }

    fn address_vector(&self, target: &DcTarget) -> Result<AddressVector, Error> {
        let own = target.address_vector();
        if !target.nic.is_global() {
            return Ok(own);
        }
        let way = self.port.vector_to(&self.opened, &target.nic)?;
        Ok(AddressVector { key: own.key, dqp_dct: own.dqp_dct, ..way })
    }

    fn findings(&self) -> Result<Vec<String>, Error> {
        // Hardware says what its clients do wrong by completions and, beside them, by events.
        Ok(self.events())
    }

    fn completed(&self) -> Result<Option<u64>, Error> {
        Ok(None)
    }

    fn cause(&self, qpn: u32) -> Option<String> {
        let pair = self.pair(qpn)?;
        let areas = pair.areas();
        // The first error that isn't a consequence is the cause; a collapsed CQ may hold only its consequences.
        let mut entry = Cqe::new_zeroed();
        for at in (0..areas.cq.len()).step_by(size_of::<Cqe>()) {
            use zerocopy::IntoBytes;
            if areas.cq.read(at, entry.as_mut_bytes()).is_err() {
                break;
            }
            let is_error = entry.opcode().is_some_and(wire::cqe::CqeOpcode::is_error);
            if is_error && entry.qpn() == qpn && entry.syndrome() != Some(Syndrome::Flushed) {
                let what = entry.syndrome().map_or("an unknown syndrome", Syndrome::name);
                return Some(format!(
                    "{what} (syndrome {:#04x}, vendor {:#04x})",
                    entry.syndrome_byte(),
                    entry.vendor()
                ));
            }
        }
        let command = command::short(Opcode::QueryQp, qpn);
        let answer = pair.object().query(Opcode::QueryQp, &command, query_qp::OUT).ok()?;
        /// `state` of a pair in error.
        const ERROR: u64 = 6;
        let is_in_error = qpc::STATE.within(query_qp::QPC).get(&answer) == ERROR;
        is_in_error.then(|| "the queue pair is in ERROR; its CQ doesn't hold the cause".to_owned())
    }

    fn gone(&self) -> Option<String> {
        // `IBV_EVENT_DEVICE_FATAL`, in the library's words.
        self.events().into_iter().find(|event| event.contains("local catastrophic error"))
    }

    fn relax(&self, spins: u32) {
        if spins % 1024 == 1023 {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }
}
