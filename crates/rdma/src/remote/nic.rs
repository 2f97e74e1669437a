//! The side that asks.

use std::ptr::NonNull;
use std::sync::Arc;

use softnic::{Access, CopiedMemory, Memory};

use super::{Ask, Introduction, Line, PairAttr, PlaceKind, Tell};
use crate::{
    Address, Areas, ConnectAttr, DcTarget, Destination, Error, Nic, Place, QueuePair,
    QueuePairAttr, Region,
};

/// Bytes that one question reads or writes.
const PIECE: usize = 4 << 20;

pub(super) fn kind(place: &Place) -> PlaceKind {
    match place {
        Place::Host => PlaceKind::Host,
        Place::Pinned(_) => PlaceKind::Pinned,
        Place::Gpu(_) => PlaceKind::Gpu,
    }
}

/// A NIC of another process.
#[derive(Clone)]
pub struct RemoteNic {
    line: Arc<dyn Line>,
    introduction: Introduction,
}

impl RemoteNic {
    /// The NIC at the other end of `line`.
    #[must_use]
    pub fn new(line: Arc<dyn Line>, introduction: Introduction) -> Self {
        Self { line, introduction }
    }

    fn ask(&self, ask: &Ask) -> Result<Tell, Error> {
        match self.line.ask(ask).map_err(|why| Error::Remote { why })? {
            Tell::Failed(why) => Err(Error::Remote { why }),
            tell => Ok(tell),
        }
    }

    fn made(&self, ask: &Ask) -> Result<(Object, u32), Error> {
        match self.ask(ask)? {
            Tell::Made { object, number } => Ok((self.object(object), number)),
            other => Err(unexpected(&other)),
        }
    }

    fn object(&self, number: u64) -> Object {
        Object { line: Arc::clone(&self.line), number }
    }
}

fn unexpected(tell: &Tell) -> Error {
    Error::Remote { why: format!("an answer to another question came: {tell:?}") }
}

/// An object of the other process, destroyed with this value.
struct Object {
    line: Arc<dyn Line>,
    number: u64,
}

impl Drop for Object {
    fn drop(&mut self) {
        // A process that is gone has no objects.
        let _ = self.line.ask(&Ask::Drop { object: self.number });
    }
}

/// A region of the other process, reached by copies.
struct Copies {
    object: Object,
    len: usize,
}

impl CopiedMemory for Copies {
    fn len(&self) -> usize {
        self.len
    }

    // Who asks finds out by the next question that the other process is gone; bytes that can't be read are zeros,
    // which no payload that counts is.
    fn read(&self, offset: usize, out: &mut [u8]) {
        for (nth, piece) in out.chunks_mut(PIECE).enumerate() {
            let ask = Ask::Read {
                object: self.object.number,
                offset: (offset + nth * PIECE) as u64,
                bytes: piece.len() as u64,
            };
            match self.object.line.ask(&ask) {
                Ok(Tell::Bytes(bytes)) if bytes.len() == piece.len() => {
                    piece.copy_from_slice(&bytes);
                }
                _ => piece.fill(0),
            }
        }
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        for (nth, piece) in bytes.chunks(PIECE).enumerate() {
            let _ = self.object.line.ask(&Ask::Write {
                object: self.object.number,
                offset: (offset + nth * PIECE) as u64,
                bytes: piece.to_vec(),
            });
        }
    }
}

impl Nic for RemoteNic {
    fn address(&self) -> Address {
        self.introduction.address
    }

    fn name(&self) -> String {
        self.introduction.name.clone()
    }

    fn register(&self, _: &Arc<Memory>, _: Access) -> Result<Region, Error> {
        Err(Error::Remote {
            why: "memory of this process can't be registered with another one's NIC".to_owned(),
        })
    }

    fn allocate(&self, place: &Place, bytes: usize, access: Access) -> Result<Region, Error> {
        let ask = Ask::Allocate { place: kind(place), bytes: bytes as u64, access: access.bits() };
        match self.ask(&ask)? {
            Tell::Region { object, address, lkey, rkey } => {
                let copies = Copies { object: self.object(object), len: bytes };
                let base = NonNull::new(address as *mut u8)
                    .ok_or(Error::Remote { why: "its memory lies at address 0".to_owned() })?;
                // SAFETY: the address is another process's: nobody here follows it, but for the copies.
                let memory = unsafe { Memory::copied(base, Arc::new(copies)) };
                Ok(Region::borrowed(memory, address, lkey, rkey))
            }
            other => Err(unexpected(&other)),
        }
    }

    fn create_queue_pair(&self, attr: &QueuePairAttr) -> Result<QueuePair, Error> {
        let (object, qpn) = self.made(&Ask::CreateQueuePair(PairAttr::of(attr)))?;
        let nothing = Memory::try_zeroed(0)?;
        Ok(QueuePair {
            qpn,
            attr: attr.clone(),
            areas: Areas::elsewhere(&nothing),
            doorbell_page: nothing,
            owner: Box::new(object),
        })
    }

    fn connect(&self, qp: &QueuePair, to: Destination, attr: &ConnectAttr) -> Result<(), Error> {
        let Some(object) = qp.owner.downcast_ref::<Object>() else {
            let why = format!("queue pair {:#x} isn't the other process's", qp.qpn);
            return Err(Error::Remote { why });
        };
        self.ask(&Ask::Connect { object: object.number, to, attr: attr.into() }).map(drop)
    }

    fn create_dc_target(&self, key: u64, access: Access) -> Result<DcTarget, Error> {
        let (object, number) = self.made(&Ask::CreateDcTarget { key, access: access.bits() })?;
        Ok(DcTarget { nic: self.address(), number, key, _owner: Box::new(object) })
    }

    fn findings(&self) -> Result<Vec<String>, Error> {
        match self.ask(&Ask::Findings)? {
            Tell::Lines(lines) => Ok(lines),
            other => Err(unexpected(&other)),
        }
    }

    fn completed(&self) -> Result<Option<u64>, Error> {
        match self.ask(&Ask::Completed)? {
            Tell::Count(count) => Ok(count),
            other => Err(unexpected(&other)),
        }
    }

    fn cause(&self, qpn: u32) -> Option<String> {
        match self.ask(&Ask::Cause { qpn }) {
            Ok(Tell::Lines(lines)) => lines.into_iter().next(),
            _ => None,
        }
    }

    fn relax(&self, _: u32) {
        std::thread::yield_now();
    }

    fn is_remote(&self) -> bool {
        true
    }
}
