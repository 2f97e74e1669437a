//! The objects of a context, by handle.

use std::collections::BTreeMap;
use std::sync::Arc;

use softnic::{CqId, MrKeys, PdId, QpKind, Qpn, SrqId, UarId};

use crate::abi::{ModifyQp, QpCap};
use crate::channel::Channel;
use crate::devx::{Devx, Umem};
use crate::page::Mappable;

/// A completion queue.
pub(crate) struct CqObject {
    pub(crate) id: CqId,
    /// Bytes from one entry to the next.
    pub(crate) stride: u64,
    pub(crate) channel: Option<Arc<Channel>>,
    pub(crate) errors: Option<Arc<Channel>>,
}

/// A queue pair.
pub(crate) struct QpObject {
    pub(crate) qpn: Qpn,
    pub(crate) kind: QpKind,
    /// The handle of its domain of extended connections.
    pub(crate) xrcd: Option<u32>,
    pub(crate) cap: QpCap,
    pub(crate) signal_all: bool,
    /// What it was last told of each attribute.
    pub(crate) attr: ModifyQp,
    pub(crate) errors: Option<Arc<Channel>>,
}

/// A shared receive queue.
pub(crate) struct SrqObject {
    pub(crate) id: SrqId,
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    /// The handle of its domain of extended connections.
    pub(crate) xrcd: Option<u32>,
    pub(crate) errors: Option<Arc<Channel>>,
}

/// A DC target, which is none until it begins to answer.
pub(crate) struct DctObject {
    pub(crate) number: Option<Qpn>,
    pub(crate) state: u8,
    /// Handles of what it uses.
    pub(crate) pd: u32,
    pub(crate) cq: u32,
    pub(crate) srq: Option<u32>,
    pub(crate) key: u64,
    pub(crate) user_index: u32,
    pub(crate) cap: QpCap,
    /// What it was last told of each attribute.
    pub(crate) attr: ModifyQp,
}

/// A doorbell page.
pub(crate) struct UarObject {
    pub(crate) id: UarId,
    /// Its number in commands.
    pub(crate) page: u32,
    pub(crate) mappable: Mappable,
}

/// A memory region.
#[derive(Clone, Copy)]
pub(crate) struct MrObject {
    pub(crate) keys: MrKeys,
    pub(crate) pd: u32,
    /// Where it lies in the client's memory.
    pub(crate) start: u64,
    pub(crate) iova: u64,
    pub(crate) length: u64,
    /// What may be done, as the client said it.
    pub(crate) flags: u32,
}

/// What a handle leads to.
pub(crate) enum Object {
    Pd(PdId),
    Mr(MrObject),
    Cq(CqObject),
    Qp(Box<QpObject>),
    Dct(Box<DctObject>),
    Srq(SrqObject),
    /// A domain of extended connections: the file that names it, if one does.
    Xrcd(Option<(u64, u64)>),
    Uar(UarObject),
    /// An address handle, of a protection domain's handle.
    Ah(u32),
    Umem(Umem),
    /// What a command of the device's own made.
    Devx(Box<Devx>),
}

/// All objects of a context.
#[derive(Default)]
pub(crate) struct Objects {
    map: BTreeMap<u32, Object>,
    next: u32,
}

/// Handles of one context.
const MOST: usize = 1 << 20;

impl Objects {
    /// Whether another object may be added.
    pub(crate) fn has_room(&self) -> bool {
        self.map.len() < MOST
    }

    /// Adds an object, under the next handle that is free.
    pub(crate) fn add(&mut self, object: Object) -> u32 {
        while self.map.contains_key(&self.next) {
            self.next = self.next.wrapping_add(1);
        }
        let handle = self.next;
        self.next = handle.wrapping_add(1);
        self.map.insert(handle, object);
        handle
    }

    pub(crate) fn get(&self, handle: u32) -> Option<&Object> {
        self.map.get(&handle)
    }

    pub(crate) fn get_mut(&mut self, handle: u32) -> Option<&mut Object> {
        self.map.get_mut(&handle)
    }

    pub(crate) fn remove(&mut self, handle: u32) -> Option<Object> {
        self.map.remove(&handle)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Object)> {
        self.map.iter().map(|(&handle, object)| (handle, object))
    }

    /// The handles, in the order in which they may all be destroyed: users before what they use.
    pub(crate) fn in_order_of_end(&self) -> Vec<u32> {
        let rank = |object: &Object| match object {
            Object::Qp(_) | Object::Dct(_) | Object::Ah(_) => 0,
            Object::Devx(devx) if devx.is_user() => 0,
            Object::Srq(_) => 1,
            Object::Cq(_) | Object::Mr(_) | Object::Uar(_) => 2,
            Object::Devx(devx) if !devx.is_domain() => 2,
            Object::Pd(_) | Object::Umem(_) | Object::Xrcd(_) | Object::Devx(_) => 3,
        };
        let mut handles: Vec<_> =
            self.iter().map(|(handle, object)| (rank(object), handle)).collect();
        handles.sort_unstable();
        handles.into_iter().map(|(_, handle)| handle).collect()
    }
}
