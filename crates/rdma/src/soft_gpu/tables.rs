//! The engine's tables, written by the control plane: they lie where the engine runs.

use std::sync::Arc;

use device::nic::{self, Cq, MAX_FINDINGS, NEVER, NICS, TARGET_BIT, cq_flag, qp_flag, state};
use softnic::{CqId, CreateError, Finding, Memory, ModifyError, QpState, Qpn};
use wire::cqe::Syndrome;
use wire::doorbell::{UAR_BLUEFLAME_STRIDE, UAR_SEND};
use zerocopy::{FromBytes, IntoBytes};

use super::slots::Slots;
use crate::{
    Access, Areas, ConnectAttr, CqKind, Destination, Error, Place, QueuePairAttr, Transport, memory,
};

/// Queue pairs, regions and DC targets of a NIC; as many as the CPU engine has.
const MAX_QPS: u32 = 256;
const MAX_REGIONS: u32 = 1024;
const MAX_TARGETS: u32 = 64;
const MAX_CQS: u32 = 256;
/// What a responder without a receive asks for: code 1 of the InfiniBand specification's table 45.
const RNR_WAIT_NS: u64 = 10_000;
/// An engine whose host doesn't renew its lease for so long ends.
pub(super) const LEASE_NS: u64 = 2_000_000_000;

/// What a queue pair's memory needs to stay alive.
struct KeptQp {
    areas: Areas,
    _page: Arc<Memory>,
    cqs: Vec<(u32, u8)>,
}

/// One NIC's objects, and their tables, which lie where its engine runs.
struct Objects {
    tables: NicTables,
    qps: Slots<KeptQp>,
    cqs: Slots<()>,
    regions: Slots<Arc<Memory>>,
    targets: Slots<()>,
    /// Queue pairs' indices, in the order that they were made.
    order: Vec<u32>,
    /// Completed by queue pairs that are gone.
    completed: u64,
}

impl Objects {
    fn free_cqs(&mut self, cqs: &[(u32, u8)]) {
        for &(index, tag) in cqs {
            self.cqs.remove(index, tag);
        }
    }
}

/// The memory of [`nic::NicTables`].
struct NicTables {
    qps: Arc<Memory>,
    regions: Arc<Memory>,
    targets: Arc<Memory>,
    findings: Arc<Memory>,
    count: Arc<Memory>,
}

impl NicTables {
    fn new(place: &Place) -> Result<Self, Error> {
        Ok(Self {
            qps: memory(place, MAX_QPS as usize * size_of::<nic::Qp>())?,
            regions: memory(place, MAX_REGIONS as usize * size_of::<nic::Region>())?,
            targets: memory(place, MAX_TARGETS as usize * size_of::<nic::Target>())?,
            findings: memory(place, MAX_FINDINGS * size_of::<nic::Finding>())?,
            count: memory(place, 8)?,
        })
    }

    fn header(&self) -> nic::NicTables {
        nic::NicTables {
            qps: at(&self.qps),
            regions: at(&self.regions),
            targets: at(&self.targets),
            findings: at(&self.findings),
            finding_count: at(&self.count),
        }
    }
}

fn at(memory: &Arc<Memory>) -> u64 {
    memory.as_ptr() as u64
}

/// What one engine is started with, and its own memory.
pub(super) struct EngineTables {
    pub header: nic::Tables,
    order: Arc<Memory>,
    ended: Arc<Memory>,
    halt: Arc<Memory>,
}

/// One object of a NIC.
#[derive(Clone, Copy, Debug)]
pub(super) enum Object {
    Region(u32, u8),
    Qp(u32, u8),
    Target(u32, u8),
}

/// A fabric's tables.
pub(super) struct Tables {
    /// One for both NICs, or one each.
    pub engines: Vec<EngineTables>,
    nics: [Objects; NICS],
    /// In host memory: stop word and lease.
    pub control: Arc<Memory>,
    /// In host memory: the time, for the host build.
    pub now: Arc<Memory>,
    /// The engine runs and the tables must not be changed.
    pub runs: bool,
    /// What was dropped meanwhile.
    later: Vec<(usize, Object)>,
}

fn full(what: &'static str) -> Error {
    Error::Create { what, source: CreateError::TableFull { what } }
}

/// Reads one entry of a table.
fn read<T: FromBytes + IntoBytes + Default>(table: &Arc<Memory>, index: usize) -> T {
    let mut value = T::default();
    // The tables are as long as their capacity.
    let _ = table.read(index * size_of::<T>(), value.as_mut_bytes());
    value
}

fn write<T: IntoBytes + zerocopy::Immutable>(table: &Arc<Memory>, index: usize, value: &T) {
    let _ = table.write(index * size_of::<T>(), value.as_bytes());
}

impl Tables {
    /// Tables of as many engines as there are places; the words that the host writes while they run lie in `host`.
    pub(super) fn new(places: &[Place], host: &Place, warps: u32) -> Result<Self, Error> {
        let control = memory(host, size_of::<nic::Control>())?;
        let now = memory(host, 8)?;
        let place_of = |nic: usize| places.get(nic).or(places.first()).cloned().unwrap_or_default();
        let objects = |nic: usize| {
            Ok::<_, Error>(Objects {
                tables: NicTables::new(&place_of(nic))?,
                qps: Slots::new(MAX_QPS),
                cqs: Slots::new(MAX_CQS),
                regions: Slots::new(MAX_REGIONS),
                targets: Slots::new(MAX_TARGETS),
                order: Vec::new(),
                completed: 0,
            })
        };
        let nics = [objects(0)?, objects(1)?];
        let engine = |place: &Place| {
            let order = memory(place, NICS * MAX_QPS as usize * 4)?;
            let ended = memory(place, warps as usize * 8)?;
            let halt = memory(place, 8)?;
            let header = nic::Tables {
                nics: [nics[0].tables.header(), nics[1].tables.header()],
                order: at(&order),
                host_now: at(&now),
                control: at(&control),
                ended: at(&ended),
                halt: at(&halt),
                lease_ns: LEASE_NS,
                max_qps: MAX_QPS,
                max_regions: MAX_REGIONS,
                max_targets: MAX_TARGETS,
                qps_in_order: 0,
                warps,
                engines: places.len() as u32,
            };
            Ok(EngineTables { header, order, ended, halt })
        };
        let engines = places.iter().map(engine).collect::<Result<_, Error>>()?;
        Ok(Self { engines, nics, control, now, runs: false, later: Vec::new() })
    }

    /// Which engine serves a NIC.
    fn engine_of(&self, nic: usize) -> usize {
        nic.min(self.engines.len() - 1)
    }

    fn qp(&self, nic: usize, index: u32) -> nic::Qp {
        read(&self.nics[nic].tables.qps, index as usize)
    }

    fn set_qp(&self, nic: usize, index: u32, qp: &nic::Qp) {
        write(&self.nics[nic].tables.qps, index as usize, qp);
    }

    /// The queue pair's index, if there is one of that number.
    fn index_of(&self, nic: usize, qpn: u32) -> Option<u32> {
        let (index, tag) = (qpn & 0xffff, (qpn >> 16) as u8);
        self.nics[nic].qps.get(index, tag).map(|_| index)
    }

    /// Registers memory; gives its keys (local, remote) and what deregisters it.
    pub(super) fn register(
        &mut self,
        nic: usize,
        memory: &Arc<Memory>,
        access: Access,
    ) -> Result<(u32, u32, Object), Error> {
        let objects = &mut self.nics[nic];
        let (index, tag) =
            objects.regions.insert(Arc::clone(memory)).ok_or(full("memory regions"))?;
        let region = nic::Region {
            base: memory.as_ptr() as u64,
            length: memory.len() as u64,
            access: (access | Access::LOCAL_WRITE).bits().into(),
            tag: tag.into(),
        };
        write(&objects.tables.regions, index as usize, &region);
        let lkey = (index * 2) << 8 | u32::from(tag);
        Ok((lkey, lkey | 1 << 8, Object::Region(index, tag)))
    }

    /// Makes a queue pair; gives its number and what destroys it.
    pub(super) fn create_qp(
        &mut self,
        nic: usize,
        attr: &QueuePairAttr,
        areas: &Areas,
        page: &Arc<Memory>,
    ) -> Result<(u32, Object), Error> {
        let objects = &mut self.nics[nic];
        let mut cqs = Vec::new();
        for _ in 0..1 + usize::from(attr.log_receives.is_some()) {
            match objects.cqs.insert(()) {
                Some(cq) => cqs.push(cq),
                None => {
                    objects.free_cqs(&cqs);
                    return Err(full("completion queues"));
                }
            }
        }
        let kept = KeptQp { areas: areas.clone(), _page: Arc::clone(page), cqs: cqs.clone() };
        let Some((index, tag)) = objects.qps.insert(kept) else {
            objects.free_cqs(&cqs);
            return Err(full("queue pairs"));
        };
        objects.order.push(index);
        let place = |area: &crate::Area| area.ptr() as u64;
        let send = Cq {
            ring: place(&areas.cq),
            record: place(&areas.cq_record),
            log_size: attr.log_cq,
            flags: match attr.cq_kind {
                CqKind::Ring => 0,
                CqKind::OverrunRing => cq_flag::IGNORE_OVERRUN,
                CqKind::Collapsed => cq_flag::COLLAPSED | cq_flag::IGNORE_OVERRUN,
            },
            number: cqs[0].0,
            ..Cq::default()
        };
        let mut flags = 0;
        if attr.transport == Transport::Dci {
            flags |= qp_flag::DCI;
        }
        let mut qp = nic::Qp {
            sq: place(&areas.sq),
            record: place(&areas.record),
            page: page.as_ptr() as u64,
            qpn: u32::from(tag) << 16 | index,
            tag: tag.into(),
            log_blocks: attr.log_blocks,
            nic: nic as u32,
            head: attr.start,
            producer: attr.start,
            fail_after: NEVER,
            drop_after: NEVER,
            timeout_ns: NEVER,
            send,
            state: state::RESET,
            ..nic::Qp::default()
        };
        // A ring has further to go than its record: what the record covers may begin before it is heard.
        if page.is_mapped() && !areas.record.is_mapped() {
            flags |= qp_flag::RECORD_RINGS;
        }
        if let (Some(log), Some(cq)) = (attr.log_receives, cqs.get(1)) {
            flags |= qp_flag::HAS_RECEIVES;
            qp.rq = place(&areas.rq);
            qp.log_rq = log;
            qp.receive = Cq {
                ring: place(&areas.recv_cq),
                record: place(&areas.recv_cq_record),
                log_size: log,
                number: cq.0,
                ..Cq::default()
            };
        }
        qp.flags = flags;
        // What the registers hold now is taken as seen.
        for (seen, register) in qp.seen.iter_mut().zip([UAR_SEND, UAR_SEND + UAR_BLUEFLAME_STRIDE])
        {
            let mut value = [0; 8];
            let _ = page.read(register, &mut value);
            *seen = u64::from_ne_bytes(value);
        }
        self.set_qp(nic, index, &qp);
        self.deal();
        Ok((qp.qpn, Object::Qp(index, tag)))
    }

    /// Deals the queue pairs to the warps of their engine, a NIC's one after another, and says who shares a page.
    fn deal(&mut self) {
        let mut dealt = vec![Vec::new(); self.engines.len()];
        for (nic, objects) in self.nics.iter().enumerate() {
            // Read once: on a GPU each reading is a copy.
            let qps: Vec<_> = objects.order.iter().map(|&index| self.qp(nic, index)).collect();
            for (nth, &index) in objects.order.iter().enumerate() {
                dealt[self.engine_of(nic)].push((nic as u32) << 16 | index);
                let mut qp = qps[nth];
                let same = |other: &&device::nic::Qp| other.page == qps[nth].page;
                let sharers = qps.iter().filter(same).count();
                let is_lead = !qps[..nth].iter().any(|other| same(&other));
                let before = qp.flags;
                qp.flags &= !(qp_flag::SHARED_PAGE | qp_flag::PAGE_LEAD);
                qp.flags |= if sharers > 1 { qp_flag::SHARED_PAGE } else { 0 };
                qp.flags |= if is_lead { qp_flag::PAGE_LEAD } else { 0 };
                if qp.flags != before {
                    self.set_qp(nic, index, &qp);
                }
            }
        }
        for (engine, dealt) in self.engines.iter_mut().zip(&dealt) {
            let _ = engine.order.write(0, dealt.as_bytes());
            engine.header.qps_in_order = dealt.len() as u32;
        }
    }

    pub(super) fn connect(
        &mut self,
        nic: usize,
        qpn: u32,
        to: Destination,
        attr: &ConnectAttr,
    ) -> Result<(), ModifyError> {
        let number = Qpn(qpn);
        let index = self.index_of(nic, qpn).ok_or(ModifyError::Unknown { qpn: number })?;
        let mut qp = self.qp(nic, index);
        if qp.state != state::RESET {
            let from = if qp.state == state::ERROR { QpState::Error } else { QpState::Rts };
            return Err(ModifyError::Transition { qpn: number, from, to: QpState::Init });
        }
        let mask = u64::from(wire::NUMBER_MASK);
        for (what, value, max) in [
            ("sequence or QP number", u64::from(attr.rq_psn.max(to.qpn)), mask),
            ("sq_psn", attr.sq_psn.into(), mask),
            ("retry_cnt", attr.retry_cnt.into(), 7),
            ("rnr_retry", attr.rnr_retry.into(), 7),
            ("timeout", attr.timeout.into(), 31),
        ] {
            if value > max {
                return Err(ModifyError::Range { what, max });
            }
        }
        if qp.flags & qp_flag::DCI == 0 {
            if !(1..=NICS as u16).contains(&to.nic.lid) {
                return Err(ModifyError::NoLink { remote: to.nic.lid });
            }
            qp.remote_nic = u32::from(to.nic.lid) - 1;
            qp.remote_qpn = to.qpn;
        }
        qp.access = attr.access.bits().into();
        qp.sq_psn = attr.sq_psn;
        qp.rq_psn = attr.rq_psn;
        qp.retry_cnt = attr.retry_cnt.into();
        qp.retries = qp.retry_cnt;
        qp.rnr_retry = attr.rnr_retry.into();
        qp.rnr_retries = qp.rnr_retry;
        qp.rnr_wait_ns = RNR_WAIT_NS;
        qp.timeout_ns = if attr.timeout == 0 { NEVER } else { 4_096 << attr.timeout };
        qp.state = state::RTS;
        self.set_qp(nic, index, &qp);
        Ok(())
    }

    /// Makes a DC target; gives its number and what destroys it.
    pub(super) fn create_target(
        &mut self,
        nic: usize,
        key: u64,
        access: Access,
    ) -> Result<(u32, Object), Error> {
        let objects = &mut self.nics[nic];
        let (index, tag) = objects.targets.insert(()).ok_or(full("DC targets"))?;
        let target = nic::Target { key, access: access.bits().into(), tag: tag.into() };
        write(&objects.tables.targets, index as usize, &target);
        Ok((u32::from(tag) << 16 | TARGET_BIT | index, Object::Target(index, tag)))
    }

    /// Destroys an object, or, while the engine runs, notes that it is to be destroyed.
    pub(super) fn destroy(&mut self, nic: usize, object: Object) {
        if self.runs {
            self.later.push((nic, object));
            return;
        }
        let objects = &mut self.nics[nic];
        match object {
            Object::Region(index, tag) => {
                objects.regions.remove(index, tag);
                write(&objects.tables.regions, index as usize, &nic::Region::default());
            }
            Object::Target(index, tag) => {
                objects.targets.remove(index, tag);
                write(&objects.tables.targets, index as usize, &nic::Target::default());
            }
            Object::Qp(index, tag) => {
                let qp = read::<nic::Qp>(&objects.tables.qps, index as usize);
                objects.completed += qp.completed;
                objects.order.retain(|&other| other != index);
                if let Some(kept) = objects.qps.remove(index, tag) {
                    objects.free_cqs(&kept.cqs);
                }
                self.set_qp(nic, index, &nic::Qp::default());
                self.deal();
            }
        }
    }

    /// Before a start: nobody has told the engine to end yet.
    pub(super) fn arm(&self) {
        self.control.half(0).store(0, std::sync::atomic::Ordering::Release);
        for engine in &self.engines {
            let _ = engine.halt.write(0, &[0; 8]);
        }
    }

    /// The engine has stopped: what was dropped meanwhile is destroyed.
    pub(super) fn settle(&mut self) {
        self.runs = false;
        for (nic, object) in std::mem::take(&mut self.later) {
            self.destroy(nic, object);
        }
    }

    /// Whether everything that the engine stores to for others is in memory that only its GPU follows.
    pub(super) fn is_all_on_gpu(&self) -> bool {
        self.engines.len() == 1
            && self.nics.iter().all(|objects| {
                objects.regions.iter().all(|(_, memory)| !memory.is_mapped())
                    && objects.qps.iter().all(|(_, kept)| !kept.areas.cq.is_mapped())
            })
    }

    /// Changes a queue pair that isn't being served.
    pub(super) fn change(
        &mut self,
        nic: usize,
        qpn: u32,
        change: impl FnOnce(&mut nic::Qp),
    ) -> Result<(), Error> {
        let index = self
            .index_of(nic, qpn)
            .ok_or(Error::Connect { qpn, source: ModifyError::Unknown { qpn: Qpn(qpn) } })?;
        let mut qp = self.qp(nic, index);
        change(&mut qp);
        self.set_qp(nic, index, &qp);
        Ok(())
    }

    pub(super) fn cause(&self, nic: usize, qpn: u32) -> Option<softnic::Cause> {
        let error = self.qp(nic, self.index_of(nic, qpn)?).error;
        let syndrome = Syndrome::from_byte(error as u8)?;
        (error != 0).then_some(softnic::Cause { syndrome, vendor: (error >> 8) as u8 })
    }

    pub(super) fn completed(&self, nic: usize) -> u64 {
        let objects = &self.nics[nic];
        let live: u64 = objects.order.iter().map(|&index| self.qp(nic, index).completed).sum();
        objects.completed + live
    }

    /// When a queue pair has something to do though nobody rings.
    pub(super) fn next_event(&self) -> Option<u64> {
        let waits =
            self.nics.iter().enumerate().flat_map(|(nic, objects)| {
                objects.order.iter().map(move |&index| self.qp(nic, index))
            });
        waits
            .filter(|qp| qp.state == state::RTS && qp.waits_for != 0 && qp.wait_until != NEVER)
            .map(|qp| qp.wait_until)
            .min()
    }

    /// Why an engine warp ended by itself, as the kernel says it.
    pub(super) fn ended(&self) -> u64 {
        let warps = self.engines.iter().flat_map(|engine| {
            (0..engine.header.warps as usize).map(|warp| read::<u64>(&engine.ended, warp))
        });
        warps.max().unwrap_or(0)
    }

    pub(super) fn findings(&self, nic: usize) -> Vec<Finding> {
        let tables = &self.nics[nic].tables;
        let kept = (read::<u32>(&tables.count, 0) as usize).min(MAX_FINDINGS);
        (0..kept).filter_map(|nth| finding(&read(&tables.findings, nth))).collect()
    }
}

/// Kinds of `gic::nic::FindingKind`.
fn finding(f: &nic::Finding) -> Option<Finding> {
    let (qpn, index, found) = (Qpn(f.qpn), f.index, f.found as u16);
    Some(match f.kind {
        0 => Finding::SlotOverwritten { qpn, index, found },
        1 => Finding::IndexMismatch { qpn, index, found },
        2 => {
            let found = (f.found != nic::BLANK).then_some(found);
            Finding::UnwrittenSlot { qpn, index, found }
        }
        3 => Finding::DoorbellTooFar {
            qpn,
            completed: index,
            producer: found,
            depth: f.depth.into(),
        },
        4 => Finding::NoSuchQp { qpn: f.qpn },
        5 => Finding::NotReady { qpn },
        6 => Finding::ReceiveRecordForSend { qpn, producer: found },
        8 => Finding::CqOverrun { cq: CqId::numbered(index as u32), qpn },
        9 => Finding::QpnMismatch { qpn, index, found: f.found },
        10 => Finding::RecordNotRung { qpn, producer: found },
        _ => return None,
    })
}
