//! A queue pair's memory and objects.

use std::sync::Arc;

use device::cuda::Place;
use wire::devx::Opcode;

use super::command::{self, CqSpec, Part, QpSpec};
use super::dv::{Object, Opened, Umem};
use super::error::Mlx5Error;
use super::gpu;
use super::page::Page;
use crate::queue::Split;
use crate::{Area, Areas, CqKind, Error, Memory, QueuePairAttr};

/// A queue pair. What it is made of goes in this order: users before what they use, the memory last.
pub(super) struct Pair {
    qp: Object,
    _cqs: Vec<Object>,
    _umems: Vec<Umem>,
    _page: Arc<Page>,
    areas: Areas,
}

/// Memory that is registered for queues, and who it is.
struct Home {
    memory: Arc<Memory>,
    umem: Umem,
}

/// `lengths` bytes side by side, registered.
fn home<const N: usize>(
    opened: &Arc<Opened>,
    what: &'static str,
    place: &Place,
    lengths: [usize; N],
    notes: &mut Vec<String>,
) -> Result<(Home, [Area; N]), Error> {
    let split = Split::of(lengths);
    let memory = gpu::memory_for_nic(place, split.bytes())?;
    let address = memory.as_ptr();
    let umem = if memory.is_mapped() {
        Umem::by_address(opened, address, memory.len())?
    } else {
        let by_dmabuf =
            |fd: std::os::fd::BorrowedFd<'_>| Ok(Umem::by_dmabuf(opened, fd, memory.len())?);
        let by_address = || Ok(Umem::by_address(opened, address, memory.len())?);
        let (umem, note) = gpu::give(what, &memory, gpu::gpu_of(place), by_dmabuf, by_address)?;
        notes.push(note);
        umem
    };
    let areas = split.areas(&memory);
    Ok((Home { memory, umem }, areas))
}

impl Home {
    /// Where an area lies in it.
    fn part(&self, area: &Area) -> Part {
        let offset = area.ptr().addr().wrapping_sub(self.memory.as_ptr().addr());
        Part { umem: self.umem.number(), offset: offset as u64 }
    }
}

/// Receives of 16 bytes that fill a block: fewer would leave the sends behind them unaligned.
const LOG_RECEIVES: u32 = 2;

impl Pair {
    pub(super) fn create(
        opened: &Arc<Opened>,
        attr: &QueuePairAttr,
        (pdn, eqn): (u32, u32),
        page: Arc<Page>,
        notes: &mut Vec<String>,
    ) -> Result<Self, Error> {
        if let Some(log) = attr.log_receives.filter(|log| *log < LOG_RECEIVES) {
            let queue = "receive queue";
            return Err(Error::QueueSize { queue, log, min: LOG_RECEIVES, max: 15 });
        }
        let places = &attr.places;
        let receives = attr.log_receives.map_or(0, |log| 1usize << log);
        let (queues, [rq, sq]) =
            home(opened, "send queue", &places.sq, [16 * receives, 64 << attr.log_blocks], notes)?;
        let (records, [record, cq_record, recv_cq_record]) =
            home(opened, "doorbell records", &places.record, [8; 3], notes)?;
        let mut umems = Vec::new();
        let mut cqs = Vec::new();
        let mut cq = |log_size, kind, record: &Area, notes: &mut Vec<String>| {
            let (home, [area]) =
                home(opened, "completion queue", &places.cq, [64usize << log_size], notes)?;
            // Opcode 15, owner 1: a zeroed CQ would look full of completions.
            area.write(0, &vec![0xff; area.len()])
                .map_err(|_| Mlx5Error::Unsupported { what: "way to write the CQ's memory" })?;
            let spec = CqSpec {
                entries: home.part(&area),
                record: records.part(record),
                log_size,
                kind,
                page: page.number(),
                eqn,
            };
            let object = Object::create(opened, Opcode::CreateCq, &command::create_cq(&spec))?;
            let number = object.number;
            umems.push(home.umem);
            cqs.push(object);
            Ok::<_, Error>((area, number))
        };
        let (send_area, send_cqn) = cq(attr.log_cq, attr.cq_kind, &cq_record, notes)?;
        let (recv_area, recv_cqn) = match attr.log_receives {
            Some(log) => cq(log, CqKind::Ring, &recv_cq_record, notes)?,
            None => (send_area.none(), send_cqn),
        };
        let spec = QpSpec {
            transport: attr.transport,
            pdn,
            queues: queues.part(if receives > 0 { &rq } else { &sq }),
            record: records.part(&record),
            log_blocks: attr.log_blocks,
            log_receives: attr.log_receives,
            page: page.number(),
            send_cqn,
            recv_cqn,
        };
        let qp = Object::create(opened, Opcode::CreateQp, &command::create_qp(&spec))?;
        umems.extend([queues.umem, records.umem]);
        let areas =
            Areas { sq, cq: send_area, rq, recv_cq: recv_area, record, cq_record, recv_cq_record };
        Ok(Self { qp, _cqs: cqs, _umems: umems, _page: page, areas })
    }

    pub(super) fn number(&self) -> u32 {
        self.qp.number
    }

    pub(super) fn object(&self) -> &Object {
        &self.qp
    }

    pub(super) fn areas(&self) -> &Areas {
        &self.areas
    }
}

/// The CQ of a DC target, in which nothing completes; with what it needs, in the order in which it goes.
pub(super) type TargetCq = (Object, [Umem; 2], [Arc<Memory>; 2]);

pub(super) fn target_cq(
    opened: &Arc<Opened>,
    page: &Page,
    eqn: u32,
) -> Result<(TargetCq, u32), Error> {
    let notes = &mut Vec::new();
    let (entries, [area]) = home(opened, "completion queue", &Place::Host, [64], notes)?;
    let (records, [record]) = home(opened, "doorbell record", &Place::Host, [8], notes)?;
    let spec = CqSpec {
        entries: entries.part(&area),
        record: records.part(&record),
        log_size: 0,
        kind: CqKind::Ring,
        page: page.number(),
        eqn,
    };
    let cq = Object::create(opened, Opcode::CreateCq, &command::create_cq(&spec))?;
    let number = cq.number;
    Ok(((cq, [entries.umem, records.umem], [entries.memory, records.memory]), number))
}
