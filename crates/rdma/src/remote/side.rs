//! The side that is asked: a NIC of this process, and what was made of it for the other one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use device::cuda::Gpu;
use softnic::Access;

use super::{Ask, Introduction, PairAttr, PlaceKind, Tell};
use crate::{
    CqKind, DcTarget, Error, Nic, Place, Places, QueuePair, QueuePairAttr, Region, Transport,
};

/// Bytes of memory that the other side may have made here, at most.
const MOST: u64 = 1 << 32;

/// A NIC, and what the other process has made of it.
pub struct Side {
    nic: Arc<dyn Nic>,
    gpu: Option<Arc<Gpu>>,
    objects: Mutex<Objects>,
}

#[derive(Default)]
struct Objects {
    next: u64,
    all: BTreeMap<u64, Object>,
}

enum Object {
    Region(Region),
    QueuePair(Arc<QueuePair>),
    DcTarget(#[allow(dead_code, reason = "kept until it is dropped")] DcTarget),
}

impl Objects {
    fn add(&mut self, object: Object) -> u64 {
        self.next += 1;
        self.all.insert(self.next, object);
        self.next
    }
}

impl Side {
    /// A side without objects. Its memory is made on `gpu` where that is asked for.
    #[must_use]
    pub fn new(nic: Arc<dyn Nic>, gpu: Option<Arc<Gpu>>) -> Self {
        Self { nic, gpu, objects: Mutex::default() }
    }

    /// Its NIC.
    #[must_use]
    pub fn nic(&self) -> &Arc<dyn Nic> {
        &self.nic
    }

    /// What the other process hears of its NIC.
    #[must_use]
    pub fn introduction(&self) -> Introduction {
        Introduction { address: self.nic.address(), name: self.nic.name() }
    }

    /// The region of that number.
    #[must_use]
    pub fn region(&self, object: u64) -> Option<Region> {
        match self.objects().all.get(&object)? {
            Object::Region(region) => Some(region.clone()),
            _ => None,
        }
    }

    /// The region that begins at `address`.
    #[must_use]
    pub fn region_at(&self, address: u64) -> Option<Region> {
        self.objects().all.values().find_map(|object| match object {
            Object::Region(region) if region.address == address => Some(region.clone()),
            _ => None,
        })
    }

    /// Where memory of a kind is made here.
    ///
    /// # Errors
    /// There is no GPU.
    pub fn place(&self, kind: PlaceKind) -> Result<Place, Error> {
        let gpu = || {
            self.gpu.clone().ok_or_else(|| Error::Remote {
                why: "memory of a GPU was asked for, and this rank has none".to_owned(),
            })
        };
        Ok(match kind {
            PlaceKind::Host => Place::Host,
            PlaceKind::Pinned => Place::Pinned(gpu()?),
            PlaceKind::Gpu => Place::Gpu(gpu()?),
        })
    }

    fn objects(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers a question. What can't be done is an answer, too.
    #[must_use]
    pub fn answer(&self, ask: &Ask) -> Tell {
        self.attempt(ask).unwrap_or_else(|error| Tell::Failed(error.to_string()))
    }

    fn attempt(&self, ask: &Ask) -> Result<Tell, Error> {
        let unknown = |object: u64| Error::Remote { why: format!("there is no object {object}") };
        let access = Access::from_bits_truncate;
        match *ask {
            Ask::Allocate { place, bytes, access: bits } => {
                let length = usize::try_from(bytes).ok().filter(|_| bytes <= MOST);
                let length = length.ok_or_else(|| Error::Remote {
                    why: format!("{bytes} bytes of memory were asked for: {MOST} are the most"),
                })?;
                let region = self.nic.allocate(&self.place(place)?, length, access(bits))?;
                let Region { address, lkey, rkey, .. } = region;
                let object = self.objects().add(Object::Region(region));
                Ok(Tell::Region { object, address, lkey, rkey })
            }
            Ask::Read { object, offset, bytes } => {
                let region = self.region(object).ok_or_else(|| unknown(object))?;
                region.at(offset, bytes)?;
                // In bounds of memory that was made: small enough.
                let mut out = vec![0; bytes as usize];
                region.memory.read(offset as usize, &mut out).map_err(|error| remote(&error))?;
                Ok(Tell::Bytes(out))
            }
            Ask::Write { object, offset, ref bytes } => {
                let region = self.region(object).ok_or_else(|| unknown(object))?;
                region.at(offset, bytes.len() as u64)?;
                region.memory.write(offset as usize, bytes).map_err(|error| remote(&error))?;
                Ok(Tell::Done)
            }
            Ask::CreateQueuePair(attr) => {
                let qp = self.nic.create_queue_pair(&self.pair(attr)?)?;
                let number = qp.qpn;
                let object = self.objects().add(Object::QueuePair(Arc::new(qp)));
                Ok(Tell::Made { object, number })
            }
            Ask::Connect { object, to, attr } => {
                let qp = match self.objects().all.get(&object) {
                    Some(Object::QueuePair(qp)) => Arc::clone(qp),
                    _ => return Err(unknown(object)),
                };
                self.nic.connect(&qp, to, &attr.into())?;
                Ok(Tell::Done)
            }
            Ask::CreateDcTarget { key, access: bits } => {
                let target = self.nic.create_dc_target(key, access(bits))?;
                let number = target.number;
                let object = self.objects().add(Object::DcTarget(target));
                Ok(Tell::Made { object, number })
            }
            Ask::Drop { object } => {
                // Outside of the lock: what goes may take a while.
                let gone = self.objects().all.remove(&object);
                gone.map(|_| Tell::Done).ok_or_else(|| unknown(object))
            }
            Ask::Findings => Ok(Tell::Lines(self.nic.findings()?)),
            Ask::Completed => Ok(Tell::Count(self.nic.completed()?)),
            Ask::Cause { qpn } => Ok(Tell::Lines(self.nic.cause(qpn).into_iter().collect())),
        }
    }

    fn pair(&self, attr: PairAttr) -> Result<QueuePairAttr, Error> {
        let cq_kind = match attr.cq_kind {
            0 => CqKind::Ring,
            1 => CqKind::OverrunRing,
            2 => CqKind::Collapsed,
            kind => return Err(Error::Remote { why: format!("there is no CQ of kind {kind}") }),
        };
        Ok(QueuePairAttr {
            transport: if attr.dci { Transport::Dci } else { Transport::Rc },
            log_blocks: attr.log_blocks,
            cq_kind,
            log_cq: attr.log_cq,
            log_receives: attr.log_receives,
            places: Places::all(&self.place(attr.place)?),
            ..QueuePairAttr::default()
        })
    }
}

fn remote(error: &impl std::fmt::Display) -> Error {
    Error::Remote { why: error.to_string() }
}
