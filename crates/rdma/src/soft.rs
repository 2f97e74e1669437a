//! The software ConnectX as a NIC: a fabric of NICs of this process, all linked to each other.

mod shared;

use std::sync::{Arc, Mutex, PoisonError, Weak};

use softnic::{
    Access, Clock, Counters, CqAttr, CqId, CreateError, DctAttr, DmaBuf, EngineOptions, Faults,
    Finding, LinkAttr, Memory, Modify, MrAttr, MrKeys, NicConfig, PdId, Profile, QpAttr, QpKind,
    Qpn, RqAttr, SoftNics, UarId,
};

use crate::{
    Address, Area, Areas, ConnectAttr, CqKind, DcTarget, Destination, Error, Nic, QueuePair,
    QueuePairAttr, Region, Transport, memory,
};

/// Who runs the NICs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// Whoever waits: for few cores, and for tests that must not depend on the scheduler.
    #[default]
    Stepped,
    /// A thread of its own, pinned to a CPU where one is given.
    Thread {
        /// The CPU.
        cpu: Option<usize>,
    },
}

/// A fabric to open.
#[derive(Clone, Debug)]
pub struct FabricAttr {
    /// NICs, with the addresses 1, 2, ….
    pub nics: u16,
    /// Who runs them: one engine for all.
    pub engine: Engine,
    /// Real or virtual time.
    pub clock: Clock,
    /// Their configuration; the address in it is not used.
    pub config: NicConfig,
}

pub use shared::{FarLink, SharedLink};

impl Default for FabricAttr {
    fn default() -> Self {
        Self { nics: 2, engine: Engine::Stepped, clock: Clock::Real, config: NicConfig::default() }
    }
}

/// Linked software NICs under one engine.
pub struct Fabric {
    engine: SoftNics,
    nics: Vec<Arc<SoftNic>>,
    profile: Profile,
}

impl Fabric {
    /// Opens the NICs and starts their engine.
    ///
    /// # Errors
    /// The engine's thread can't be started.
    pub fn open(attr: &FabricAttr) -> Result<Self, Error> {
        Self::of((1..=attr.nics).collect(), None, attr)
    }

    /// One NIC with the address `id`, linked to a NIC of another process; `attr.nics` is not used.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_linked(id: u16, link: FarLink, attr: &FabricAttr) -> Result<Self, Error> {
        Self::of(vec![id], Some(link), attr)
    }

    fn of(ids: Vec<u16>, link: Option<FarLink>, attr: &FabricAttr) -> Result<Self, Error> {
        let mut nics: Vec<softnic::Nic> = ids
            .iter()
            .map(|&id| softnic::Nic::new(NicConfig { id, ..attr.config.clone() }))
            .collect();
        for a in 0..nics.len() {
            for b in a + 1..nics.len() {
                let (one, other) = softnic::link(nics[a].id(), nics[b].id(), LinkAttr::default());
                nics[a].connect_link(one);
                nics[b].connect_link(other);
            }
        }
        if let (Some(FarLink(end)), Some(nic)) = (link, nics.first_mut()) {
            nic.connect_link(end);
        }
        let engine = match attr.engine {
            Engine::Stepped => SoftNics::stepped(nics, attr.clock),
            Engine::Thread { cpu } => {
                SoftNics::spawn(nics, EngineOptions { cpu, clock: attr.clock })?
            }
        };
        let nics = ids
            .into_iter()
            .map(|id| {
                let pd = engine
                    .control(id, softnic::Nic::alloc_pd)?
                    .map_err(creating("protection domain"))?;
                let pages = Mutex::default();
                Ok(Arc::new(SoftNic { engine: engine.clone(), id, pd, pages }))
            })
            .collect::<Result<_, Error>>()?;
        Ok(Self { engine, nics, profile: attr.config.profile })
    }

    /// NIC `index`, from 0.
    ///
    /// # Panics
    /// If there are not so many.
    #[must_use]
    pub fn nic(&self, index: usize) -> &Arc<SoftNic> {
        &self.nics[index]
    }

    /// The timing profile.
    #[must_use]
    pub fn profile(&self) -> Profile {
        self.profile
    }

    /// The engine.
    #[must_use]
    pub fn engine(&self) -> &SoftNics {
        &self.engine
    }
}

/// One software NIC of a fabric.
pub struct SoftNic {
    engine: SoftNics,
    id: u16,
    pd: PdId,
    /// Doorbell pages in use, by address: queue pairs that share a page share the NIC's object for it, or each
    /// object would take rings that are meant for another.
    pages: Mutex<Vec<(usize, UarId, Weak<Objects>)>>,
}

fn creating(what: &'static str) -> impl Fn(CreateError) -> Error {
    move |source| Error::Create { what, source }
}

impl SoftNic {
    /// What the NIC saw its clients do wrong.
    ///
    /// # Errors
    /// The engine is gone.
    pub fn findings(&self) -> Result<Vec<Finding>, Error> {
        Ok(self.engine.control(self.id, |nic| nic.findings().to_vec())?)
    }

    /// What it has done.
    ///
    /// # Errors
    /// The engine is gone.
    pub fn counters(&self) -> Result<Counters, Error> {
        Ok(self.engine.control(self.id, |nic| nic.counters())?)
    }

    /// Changes its faults.
    ///
    /// # Errors
    /// The engine is gone.
    pub fn set_faults(&self, faults: Faults) -> Result<(), Error> {
        Ok(self.engine.control(self.id, move |nic| nic.set_faults(faults))?)
    }

    /// The engine that runs it.
    #[must_use]
    pub fn engine(&self) -> &SoftNics {
        &self.engine
    }
}

/// One object of a NIC.
enum Object {
    Region(MrKeys),
    Cq(CqId),
    Uar(UarId),
    Qp(Qpn),
    Dct(Qpn),
}

/// Destroys a NIC's objects, the last one made first: each depends on earlier ones only.
struct Objects {
    engine: SoftNics,
    id: u16,
    made: Vec<Object>,
}

impl Drop for Objects {
    fn drop(&mut self) {
        let made = std::mem::take(&mut self.made);
        // An engine that is gone has no objects.
        let _ = self.engine.control(self.id, move |nic| {
            for object in made.into_iter().rev() {
                // All of them were made, and nobody else destroys them.
                let _ = match object {
                    Object::Region(keys) => nic.dereg_mr(keys),
                    Object::Cq(cq) => nic.destroy_cq(cq),
                    Object::Uar(uar) => nic.dealloc_uar(uar),
                    Object::Qp(qp) => nic.destroy_qp(qp),
                    Object::Dct(dct) => nic.destroy_dct(dct),
                };
            }
        });
    }
}

impl Nic for SoftNic {
    fn address(&self) -> Address {
        Address::lid(self.id)
    }

    fn name(&self) -> String {
        format!("software ConnectX {}", self.id)
    }

    fn register(&self, memory: &Arc<Memory>, access: Access) -> Result<Region, Error> {
        let (address, length) = (memory.as_ptr() as u64, memory.len() as u64);
        let attr = MrAttr {
            pd: self.pd,
            iova: address,
            length,
            access: access | Access::LOCAL_WRITE,
            memory: memory.dma(),
        };
        let keys = self.make("memory region", move |nic| nic.reg_mr(attr))?;
        let objects = self.owning(Object::Region(keys));
        Ok(Region {
            address,
            length,
            lkey: keys.lkey,
            rkey: keys.rkey,
            memory: Arc::clone(memory),
            _owner: Some(Arc::new(objects)),
        })
    }

    fn create_queue_pair(&self, attr: &QueuePairAttr) -> Result<QueuePair, Error> {
        check(attr)?;
        let areas = Areas::of(attr)?;
        let page = match &attr.doorbell_page {
            Some(page) => Arc::clone(page),
            None => memory(&attr.places.doorbell, wire::doorbell::UAR_PAGE)?,
        };
        let part = |area: &Area| {
            area.dma().map_err(|_| {
                creating("queue memory")(CreateError::Range {
                    what: "queue",
                    max: area.len() as u64,
                })
            })
        };
        let cq_attr = CqAttr {
            ring: part(&areas.cq)?,
            log_size: attr.log_cq,
            record: part(&areas.cq_record)?,
            collapsed: attr.cq_kind == CqKind::Collapsed,
            ignore_overrun: attr.cq_kind != CqKind::Ring,
        };
        let send_cq = self.make("completion queue", move |nic| nic.create_cq(cq_attr))?;
        let mut objects = self.owning(Object::Cq(send_cq));
        let mut recv_cq = send_cq;
        let mut rq = None;
        if let Some(log) = attr.log_receives {
            let cq_attr = CqAttr {
                ring: part(&areas.recv_cq)?,
                log_size: log,
                record: part(&areas.recv_cq_record)?,
                collapsed: false,
                ignore_overrun: false,
            };
            recv_cq = self.make("receive completion queue", move |nic| nic.create_cq(cq_attr))?;
            objects.made.push(Object::Cq(recv_cq));
            rq = Some(RqAttr { ring: part(&areas.rq)?, log_wqes: log, log_stride: 4 });
        }
        let (uar, page_object) = self.doorbell_page(&page)?;
        let qp_attr = QpAttr {
            pd: self.pd,
            kind: match attr.transport {
                Transport::Rc => QpKind::Rc,
                Transport::Dci => QpKind::Dci,
            },
            send_cq,
            recv_cq,
            sq: part(&areas.sq)?,
            log_sq_blocks: attr.log_blocks,
            rq,
            record: Some(part(&areas.record)?),
            uar,
            max_rd_atomic: 16,
            sq_start: attr.start,
        };
        let qpn = self.make("queue pair", move |nic| nic.create_qp(qp_attr))?;
        objects.made.push(Object::Qp(qpn));
        Ok(QueuePair {
            qpn: qpn.0,
            attr: attr.clone(),
            areas,
            doorbell_page: page,
            // In this order: the page is in use until its last queue pair is gone.
            owner: Box::new((objects, page_object)),
        })
    }

    fn connect(&self, qp: &QueuePair, to: Destination, attr: &ConnectAttr) -> Result<(), Error> {
        let qpn = Qpn(qp.qpn);
        let attr = *attr;
        self.engine
            .control(self.id, move |nic| {
                nic.modify_qp(qpn, Modify::ToInit { access: attr.access })?;
                nic.modify_qp(
                    qpn,
                    Modify::ToRtr {
                        dest_nic: to.nic.lid,
                        dest_qpn: Qpn(to.qpn),
                        rq_psn: attr.rq_psn,
                        max_dest_rd_atomic: 16,
                        min_rnr_timer: 1,
                    },
                )?;
                nic.modify_qp(
                    qpn,
                    Modify::ToRts {
                        sq_psn: attr.sq_psn,
                        retry_cnt: attr.retry_cnt,
                        rnr_retry: attr.rnr_retry,
                        timeout: attr.timeout,
                        max_rd_atomic: 16,
                    },
                )
            })?
            .map_err(|source| Error::Connect { qpn: qp.qpn, source })
    }

    fn create_dc_target(&self, key: u64, access: Access) -> Result<DcTarget, Error> {
        // A target without a receive queue completes nothing, but needs a CQ all the same.
        let memory = Memory::try_zeroed(128)?;
        for word in 0..8 {
            memory.word(8 * word).store(u64::MAX, std::sync::atomic::Ordering::Relaxed);
        }
        let part = |offset, bytes| {
            memory.dma().slice(offset, bytes).map_err(|_| {
                creating("queue memory")(CreateError::Range { what: "queue layout", max: 128 })
            })
        };
        let (ring, record): (DmaBuf, DmaBuf) = (part(0, 64)?, part(64, 8)?);
        let recv_cq = self.make("completion queue", move |nic| {
            nic.create_cq(CqAttr {
                ring,
                log_size: 0,
                record,
                collapsed: false,
                ignore_overrun: false,
            })
        })?;
        let mut objects = self.owning(Object::Cq(recv_cq));
        let attr =
            DctAttr { pd: self.pd, recv_cq, dc_key: key, access, rq: None, min_rnr_timer: 1 };
        let dctn = self.make("DC target", move |nic| nic.create_dct(attr))?;
        objects.made.push(Object::Dct(dctn));
        Ok(DcTarget { nic: self.address(), number: dctn.0, key, _owner: Box::new(objects) })
    }

    fn findings(&self) -> Result<Vec<String>, Error> {
        Ok(Self::findings(self)?.iter().map(ToString::to_string).collect())
    }

    fn completed(&self) -> Result<Option<u64>, Error> {
        Ok(Some(self.counters()?.completed))
    }

    fn cause(&self, qpn: u32) -> Option<String> {
        self.engine
            .control(self.id, move |nic| nic.qp_error(Qpn(qpn)))
            .ok()?
            .map(|cause| cause.to_string())
    }

    fn step(&self) -> bool {
        self.engine.try_step(256)
    }

    fn gone(&self) -> Option<String> {
        self.engine.gone().map(|gone| gone.to_string())
    }

    fn relax(&self, spins: u32) {
        if self.engine.is_stepped() {
            if !self.engine.try_step(256) {
                // Somebody else is stepping, or there is nothing to do until another thread runs.
                if spins % 16 == 15 {
                    std::thread::yield_now();
                }
            }
        } else if spins % 1024 == 1023 {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }
}

impl SoftNic {
    fn make<T, F>(&self, what: &'static str, f: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(&mut softnic::Nic) -> Result<T, CreateError> + Send + 'static,
    {
        self.engine.control(self.id, f)?.map_err(creating(what))
    }

    /// The NIC's object for a doorbell page, and what destroys it.
    fn doorbell_page(&self, page: &Arc<Memory>) -> Result<(UarId, Arc<Objects>), Error> {
        let address = page.as_ptr().addr();
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        pages.retain(|(.., object)| object.strong_count() > 0);
        let known = pages.iter().find(|(at, ..)| *at == address);
        if let Some((uar, object)) =
            known.and_then(|(_, uar, object)| Some((*uar, object.upgrade()?)))
        {
            return Ok((uar, object));
        }
        let dma = page.dma();
        let uar = self.make("doorbell page", move |nic| nic.alloc_uar(dma))?;
        let object = Arc::new(self.owning(Object::Uar(uar)));
        pages.push((address, uar, Arc::downgrade(&object)));
        Ok((uar, object))
    }

    fn owning(&self, object: Object) -> Objects {
        Objects { engine: self.engine.clone(), id: self.id, made: vec![object] }
    }
}

pub(crate) fn check(attr: &QueuePairAttr) -> Result<(), Error> {
    let range = |queue, log: u32, min, max| {
        if (min..=max).contains(&log) {
            Ok(())
        } else {
            Err(Error::QueueSize { queue, log, min, max })
        }
    };
    range("send queue", attr.log_blocks, 2, 15)?;
    range("completion queue", attr.log_cq, 0, 22)?;
    if let Some(log) = attr.log_receives {
        range("receive queue", log, 0, 15)?;
    }
    if attr.cq_kind != CqKind::Collapsed && attr.log_cq < attr.log_blocks {
        return Err(Error::CqTooSmall {
            kind: attr.cq_kind,
            log_cq: attr.log_cq,
            log_blocks: attr.log_blocks,
        });
    }
    Ok(())
}
