//! The NIC's objects and its control path.

use std::collections::VecDeque;

use wire::cqe::Cqe;
use wire::doorbell::{UAR_BLUEFLAME_STRIDE, UAR_PAGE, UAR_SEND};
use wire::wqe::WQEBB;

use crate::check::Cause;
use crate::completion::{ack_timeout, enter_error};
use crate::config::{
    CqAttr, CqId, DctAttr, MrAttr, Nanos, NicConfig, PdId, QpAttr, QpKind, Qpn, UarId,
};
use crate::cq::{Cq, Cqs};
use crate::dc::{DCT, Dct, Targets};
use crate::dma::DmaBuf;
use crate::error::{CreateError, DestroyError, ModifyError};
use crate::fault::Faults;
use crate::finding::{Finding, FindingKind, Findings};
use crate::link::{LinkEnd, loopback};
use crate::mr::{Access, MrKeys, Region, Regions};
use crate::pace::Pace;
use crate::placement::Pendings;
use crate::qp::{
    Modify, NEVER, Qp, QpInfo, QpState, ReceiveQueue, Responder, SendQueue, Sent, Times,
};
use crate::rng::Rng;
use crate::table::Table;
use crate::trace::{Trace, TraceRecord};

/// What a NIC has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// WQEs fetched, retransmissions not counted.
    pub wqes: u64,
    /// WQEs completed or flushed.
    pub completed: u64,
    /// Request packets executed, refused or dropped here.
    pub requests: u64,
    /// Response packets taken.
    pub responses: u64,
    /// Acknowledgements that were overdue.
    pub timeouts: u64,
    /// Packets lost on purpose.
    pub dropped: u64,
    /// Changes of doorbell registers seen.
    pub doorbells: u64,
}

pub(crate) struct Uar {
    pub page: DmaBuf,
    /// Register values last seen.
    pub seen: [u64; 2],
    /// QPs of the page, by index.
    pub qps: Vec<u32>,
}

/// The registers of a page that sends are rung at.
pub(crate) const REGISTERS: [usize; 2] = [UAR_SEND, UAR_SEND + UAR_BLUEFLAME_STRIDE];

/// A software ConnectX: one owner, no thread, no clock, no lock.
///
/// Objects are made by the control methods; [`step`](Self::step) does the NIC's work. Nothing in `step`
/// allocates, blocks or panics, whatever the queues' memory holds.
pub struct Nic {
    pub(crate) config: NicConfig,
    pub(crate) pds: Table<()>,
    pub(crate) uars: Table<Uar>,
    /// Pages in use, by index.
    pub(crate) uar_list: Vec<u32>,
    pub(crate) uar_next: usize,
    pub(crate) mrs: Regions,
    pub(crate) cqs: Cqs,
    pub(crate) qps: Table<Qp>,
    pub(crate) targets: Targets,
    pub(crate) links: Vec<LinkEnd>,
    /// QPs with something to send or flush, by index.
    pub(crate) active: VecDeque<u32>,
    /// QPs whose record lags behind a ring, by index.
    pub(crate) watching: Vec<u32>,
    /// QPs whose responder owes something, by index.
    pub(crate) owing: VecDeque<u32>,
    /// QPs in error that have a receive queue, by index.
    pub(crate) flushing: Vec<u32>,
    /// No timer is due before.
    pub(crate) next_timer: Nanos,
    /// Timers were put off: one may be due later than `next_timer` says.
    pub(crate) timers_moved: bool,
    pub(crate) findings: Findings,
    pub(crate) counters: Counters,
    pub(crate) trace: Trace,
    pub(crate) pace: Pace,
    pub(crate) pendings: Pendings,
    pub(crate) dice: Rng,
    /// Packets taken, for the loss of every n-th.
    pub(crate) taken: u32,
    /// No WQE is failed, no packet lost, and nothing takes time.
    pub(crate) plain: bool,
}

/// QP numbers: `tag << 16 | index`.
const TAG_SHIFT: u32 = 16;

pub(crate) const fn split(qpn: u32) -> (u32, u8) {
    (qpn & 0xffff, (qpn >> TAG_SHIFT) as u8)
}

impl Nic {
    /// A NIC with a link to itself and to nobody else.
    #[must_use]
    pub fn new(config: NicConfig) -> Self {
        let mut config = config;
        let caps = &mut config.caps;
        caps.max_qps = caps.max_qps.min(1 << 15);
        caps.max_dcts = caps.max_dcts.min(1 << 15);
        caps.log_max_sq_blocks = caps.log_max_sq_blocks.min(15);
        caps.max_rd_atomic = caps.max_rd_atomic.min(32);
        caps.max_outstanding = caps.max_outstanding.clamp(1, 1 << 16).next_power_of_two();
        caps.mtu = caps.mtu.clamp(256, 4096).next_power_of_two();
        let caps = *caps;
        let qps = caps.max_qps as usize;
        let mut nic = Self {
            pds: Table::new(caps.max_pds),
            uars: Table::new(caps.max_uars),
            uar_list: Vec::with_capacity(caps.max_uars as usize),
            uar_next: 0,
            mrs: Regions::new(caps.max_mrs),
            cqs: Cqs::new(caps.max_cqs),
            qps: Table::new(caps.max_qps),
            targets: Targets::new(caps.max_dcts),
            links: vec![loopback(config.id)],
            active: VecDeque::with_capacity(qps),
            watching: Vec::with_capacity(qps),
            owing: VecDeque::with_capacity(qps + caps.max_dc_contexts as usize + 8),
            flushing: Vec::with_capacity(qps),
            next_timer: NEVER,
            timers_moved: false,
            findings: Findings::new(),
            counters: Counters::default(),
            trace: Trace::new(config.trace),
            pace: Pace::new(config.profile),
            pendings: Pendings::default(),
            dice: Rng::new(0),
            taken: 0,
            plain: true,
            config,
        };
        let faults = nic.config.faults.clone();
        nic.set_faults(faults);
        nic
    }

    /// Replaces the faults, from the next step on.
    pub fn set_faults(&mut self, faults: Faults) {
        let profile = &self.config.profile;
        self.plain = profile.is_instant()
            && faults.fail.is_empty()
            && faults.delay_ns == 0
            && !faults.port_down
            && faults.drop_every.is_none()
            && faults.drop_random.is_none();
        self.dice = Rng::new(faults.drop_random.map_or(0, |(_, seed)| seed));
        self.pendings.configure(profile.placement_delay_ns, faults.out_of_order_placement);
        self.config.faults = faults;
    }

    /// The faults: what is left of them.
    #[must_use]
    pub fn faults(&self) -> &Faults {
        &self.config.faults
    }

    pub(crate) fn settle_all(&mut self) {
        self.pendings.settle_all();
    }

    /// Its address on links.
    #[must_use]
    pub fn id(&self) -> u16 {
        self.config.id
    }

    /// Its configuration, as far as capacities allowed.
    #[must_use]
    pub fn config(&self) -> &NicConfig {
        &self.config
    }

    /// Allocates a protection domain.
    ///
    /// # Errors
    /// [`CreateError::TableFull`].
    pub fn alloc_pd(&mut self) -> Result<PdId, CreateError> {
        self.pds
            .insert(|index, tag| ((), PdId(index << 8 | u32::from(tag))))
            .ok_or(CreateError::TableFull { what: "protection domains" })
    }

    /// Frees a protection domain.
    ///
    /// # Errors
    /// Unknown, or regions or QPs use it.
    pub fn dealloc_pd(&mut self, pd: PdId) -> Result<(), DestroyError> {
        self.check_pd(pd).map_err(|_| DestroyError::Unknown { what: "protection domain" })?;
        if self.mrs.uses_pd(pd.0)
            || self.qps.iter().any(|(_, qp)| qp.pd == pd.0)
            || self.targets.table.iter().any(|(_, dct)| dct.pd == pd.0)
        {
            return Err(DestroyError::Busy { what: "protection domain" });
        }
        self.pds.remove(pd.0 >> 8, pd.0 as u8);
        Ok(())
    }

    fn check_pd(&self, pd: PdId) -> Result<(), CreateError> {
        self.pds
            .get(pd.0 >> 8, pd.0 as u8)
            .copied()
            .ok_or(CreateError::Unknown { what: "protection domain" })
    }

    /// Makes a page of memory a doorbell page. Its registers lie at [`UAR_SEND`] and, alternating with it,
    /// [`UAR_BLUEFLAME_STRIDE`] behind. What they hold now is taken as seen.
    ///
    /// # Errors
    /// The table is full, or the page isn't [`UAR_PAGE`] aligned bytes.
    pub fn alloc_uar(&mut self, page: DmaBuf) -> Result<UarId, CreateError> {
        if page.len() < UAR_PAGE || !page.is_aligned(8) {
            return Err(CreateError::Memory {
                what: "doorbell page",
                needed: UAR_PAGE as u64,
                got: page.len() as u64,
                align: 8,
            });
        }
        let mut seen = [0; 2];
        for (seen, register) in seen.iter_mut().zip(REGISTERS) {
            *seen = u64::from_ne_bytes(page.load_u64(register).unwrap_or_default());
        }
        let list = &mut self.uar_list;
        self.uars
            .insert(|index, tag| {
                list.push(index);
                (Uar { page, seen, qps: Vec::new() }, UarId(index << 8 | u32::from(tag)))
            })
            .ok_or(CreateError::TableFull { what: "doorbell pages" })
    }

    /// Frees a doorbell page.
    ///
    /// # Errors
    /// Unknown, or QPs use it.
    pub fn dealloc_uar(&mut self, uar: UarId) -> Result<(), DestroyError> {
        let (index, tag) = (uar.0 >> 8, uar.0 as u8);
        let what = "doorbell page";
        let page = self.uars.get(index, tag).ok_or(DestroyError::Unknown { what })?;
        if !page.qps.is_empty() {
            return Err(DestroyError::Busy { what });
        }
        self.uars.remove(index, tag);
        self.uar_list.retain(|&i| i != index);
        self.uar_next = 0;
        Ok(())
    }

    /// Registers memory.
    ///
    /// # Errors
    /// Unknown PD, memory shorter than the region, a region that wraps the address space, or a full table.
    pub fn reg_mr(&mut self, attr: MrAttr) -> Result<MrKeys, CreateError> {
        self.check_pd(attr.pd)?;
        if (attr.memory.len() as u64) < attr.length {
            return Err(CreateError::Memory {
                what: "memory region",
                needed: attr.length,
                got: attr.memory.len() as u64,
                align: 1,
            });
        }
        // The last byte must have an address.
        if attr.length > 0 && attr.iova.checked_add(attr.length - 1).is_none() {
            return Err(CreateError::Range { what: "region's last address", max: u64::MAX });
        }
        let region = Region {
            iova: attr.iova,
            length: attr.length,
            pd: attr.pd.0,
            access: attr.access,
            memory: attr.memory,
        };
        self.mrs.insert(region).ok_or(CreateError::TableFull { what: "memory regions" })
    }

    /// Deregisters memory: from now on its keys match nothing.
    ///
    /// # Errors
    /// Unknown keys.
    pub fn dereg_mr(&mut self, keys: MrKeys) -> Result<(), DestroyError> {
        self.settle_all();
        self.mrs.remove(keys).map(drop).ok_or(DestroyError::Unknown { what: "memory region" })
    }

    /// Creates a completion queue.
    ///
    /// # Errors
    /// Sizes, alignment, a full table, or entries that aren't initialised: an `op_own` whose opcode isn't 15
    /// looks like a completion to a consumer on the first lap.
    pub fn create_cq(&mut self, attr: CqAttr) -> Result<CqId, CreateError> {
        if attr.log_size > 22 {
            return Err(CreateError::Range { what: "log2 of CQ entries", max: 22 });
        }
        let entries = if attr.collapsed { 1 } else { 1u64 << attr.log_size };
        let needed = entries * size_of::<Cqe>() as u64;
        if (attr.ring.len() as u64) < needed || !attr.ring.is_aligned(64) {
            let got = attr.ring.len() as u64;
            return Err(CreateError::Memory { what: "completion queue", needed, got, align: 64 });
        }
        if attr.record.len() < 8 || !attr.record.is_aligned(4) {
            let got = attr.record.len() as u64;
            return Err(CreateError::Memory {
                what: "CQ doorbell record",
                needed: 8,
                got,
                align: 4,
            });
        }
        let cq =
            Cq::new(attr.ring, attr.record, attr.log_size, attr.collapsed, attr.ignore_overrun);
        if let Some(entry) = cq.first_unready() {
            return Err(CreateError::CqNotInitialised { entry });
        }
        self.cqs
            .table
            .insert(|index, tag| (cq, CqId(index << 8 | u32::from(tag))))
            .ok_or(CreateError::TableFull { what: "completion queues" })
    }

    /// Destroys a completion queue.
    ///
    /// # Errors
    /// Unknown, or QPs use it.
    pub fn destroy_cq(&mut self, cq: CqId) -> Result<(), DestroyError> {
        let what = "completion queue";
        let (index, tag) = (cq.0 >> 8, cq.0 as u8);
        if self.cqs.table.get(index, tag).ok_or(DestroyError::Unknown { what })?.users > 0 {
            return Err(DestroyError::Busy { what });
        }
        self.cqs.table.remove(index, tag);
        Ok(())
    }

    fn check_cq(&self, cq: CqId) -> Result<u32, CreateError> {
        let (index, tag) = (cq.0 >> 8, cq.0 as u8);
        self.cqs
            .table
            .get(index, tag)
            .map(|_| index)
            .ok_or(CreateError::Unknown { what: "completion queue" })
    }

    /// Creates a queue pair, in RESET.
    ///
    /// # Errors
    /// Unknown objects, sizes, alignment, or a full table.
    pub fn create_qp(&mut self, attr: QpAttr) -> Result<Qpn, CreateError> {
        self.check_pd(attr.pd)?;
        let send_cq = self.check_cq(attr.send_cq)?;
        let recv_cq = self.check_cq(attr.recv_cq)?;
        let uar = attr.uar.0 >> 8;
        if self.uars.get(uar, attr.uar.0 as u8).is_none() {
            return Err(CreateError::Unknown { what: "doorbell page" });
        }
        let caps = self.config.caps;
        if attr.log_sq_blocks > caps.log_max_sq_blocks {
            let max = u64::from(caps.log_max_sq_blocks);
            return Err(CreateError::Range { what: "log2 of send queue blocks", max });
        }
        if attr.max_rd_atomic > caps.max_rd_atomic {
            let max = u64::from(caps.max_rd_atomic);
            return Err(CreateError::Range { what: "reads and atomics in flight", max });
        }
        let blocks = 1u64 << attr.log_sq_blocks;
        let needed = blocks * WQEBB as u64;
        if (attr.sq.len() as u64) < needed || !attr.sq.is_aligned(64) {
            let got = attr.sq.len() as u64;
            return Err(CreateError::Memory { what: "send queue", needed, got, align: 64 });
        }
        if let Some(record) = &attr.record {
            check_record(record)?;
        }
        let rq = match attr.rq {
            None => None,
            Some(rq) => {
                let record = attr.record.clone().ok_or(CreateError::ReceiveWithoutRecord)?;
                Some(receive_queue(rq, record)?)
            }
        };
        let window = u64::from(caps.max_outstanding).min(blocks) as usize;
        let sq = SendQueue {
            ring: attr.sq,
            mask: blocks - 1,
            start: attr.sq_start,
            head: attr.sq_start,
            producer: attr.sq_start,
            completed: attr.sq_start,
            watch: None,
            watched: 0,
            doorbell_at: 0,
            sent: vec![Sent::default(); window].into(),
            times: if self.trace.is_on() {
                vec![Times::default(); window].into()
            } else {
                Box::default()
            },
            una: 0,
            cursor: 0,
            tail: 0,
            cursor_packets: 0,
            held: false,
            copy: Box::new([0; 128]),
            next_psn: 0,
            acked: 0,
            slots: vec![[0; 128]; usize::from(attr.max_rd_atomic)].into(),
            slots_used: 0,
            max_rd_atomic: attr.max_rd_atomic,
            stopped: false,
            retry_cnt: 7,
            retries: 7,
            rnr_retry: 7,
            rnr_retries: 7,
            timeout: NEVER,
            deadline: NEVER,
            not_before: 0,
        };
        let qp = Qp {
            qpn: 0,
            kind: attr.kind,
            state: QpState::Reset,
            pd: attr.pd.0,
            uar,
            send_cq,
            recv_cq,
            record: attr.record,
            access: Access::empty(),
            remote_nic: 0,
            remote_qpn: 0,
            link: 0,
            sq,
            rq,
            responder: Responder::new(0, 0, 0, 0, 0),
            generation: 0,
            destination: None,
            reconnect: false,
            active: false,
            error: None,
        };
        let made = self.qps.insert(|index, tag| {
            let qpn = u32::from(tag) << TAG_SHIFT | index;
            (Qp { qpn, ..qp }, (index, Qpn(qpn)))
        });
        let (index, qpn) = made.ok_or(CreateError::TableFull { what: "queue pairs" })?;
        if let Some(uar) = self.uars.at_mut(uar) {
            uar.qps.push(index);
        }
        let needs = [(send_cq, blocks), (recv_cq, self.receive_depth(index))];
        for (cq, needed) in needs {
            self.commit(cq, needed);
        }
        Ok(qpn)
    }

    fn receive_depth(&self, index: u32) -> u64 {
        self.qps.at(index).and_then(|qp| qp.rq.as_ref()).map_or(0, |rq| 1 << rq.log_wqes)
    }

    /// Counts what may complete in a CQ, and says when that is too much.
    fn commit(&mut self, index: u32, needed: u64) {
        if let Some(cq) = self.cqs.table.at_mut(index) {
            cq.users += 1;
            cq.committed += needed;
            let entries = 1u64 << cq.log_size;
            if !cq.collapsed && cq.committed > entries && needed > 0 {
                let needed = cq.committed;
                let cq = self.cqs.id(index);
                self.findings.add(Finding::CqTooSmall { cq, entries, needed });
            }
        }
    }

    /// Creates a DC target. It answers at once.
    ///
    /// # Errors
    /// Unknown objects, sizes, alignment, or a full table.
    pub fn create_dct(&mut self, attr: DctAttr) -> Result<Qpn, CreateError> {
        self.check_pd(attr.pd)?;
        let cq = self.check_cq(attr.recv_cq)?;
        let caps = self.config.caps;
        let depth = attr.rq.as_ref().map_or(0, |(rq, _)| 1u64 << rq.log_wqes.min(63));
        let rq = match attr.rq {
            None => None,
            Some((rq, record)) => {
                check_record(&record)?;
                Some(receive_queue(rq, record)?)
            }
        };
        self.targets.prepare(caps.max_dc_contexts, caps.max_rd_atomic);
        let made = self.targets.table.insert(|index, tag| {
            let number = u32::from(tag) << TAG_SHIFT | DCT | index;
            let dct = Dct {
                number,
                pd: attr.pd.0,
                cq,
                key: attr.dc_key,
                access: attr.access,
                rq,
                min_rnr_timer: attr.min_rnr_timer,
            };
            (dct, Qpn(number))
        });
        let number = made.ok_or(CreateError::TableFull { what: "DC targets" })?;
        self.commit(cq, depth);
        Ok(number)
    }

    /// Destroys a DC target and its connections.
    ///
    /// # Errors
    /// Unknown.
    pub fn destroy_dct(&mut self, dctn: Qpn) -> Result<(), DestroyError> {
        self.settle_all();
        let what = "DC target";
        let (index, tag) = split(dctn.0);
        if index & DCT == 0 {
            return Err(DestroyError::Unknown { what });
        }
        let index = index & !DCT;
        let dct = self.targets.table.remove(index, tag).ok_or(DestroyError::Unknown { what })?;
        self.targets.forget(index);
        if let Some(cq) = self.cqs.table.at_mut(dct.cq) {
            cq.users -= 1;
            cq.committed -= dct.rq.map_or(0, |rq| 1 << rq.log_wqes);
        }
        Ok(())
    }

    pub(crate) fn qp(&self, qpn: Qpn) -> Option<&Qp> {
        let (index, tag) = split(qpn.0);
        self.qps.get(index, tag)
    }

    /// Destroys a queue pair. Nothing of its memory is touched afterwards.
    ///
    /// # Errors
    /// Unknown.
    pub fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), DestroyError> {
        self.settle_all();
        let (index, tag) = split(qpn.0);
        let depth = self.receive_depth(index);
        let qp = self.qps.remove(index, tag).ok_or(DestroyError::Unknown { what: "queue pair" })?;
        self.forget(index);
        if let Some(uar) = self.uars.at_mut(qp.uar) {
            uar.qps.retain(|&i| i != index);
        }
        for (cq, committed) in [(qp.send_cq, qp.sq.mask + 1), (qp.recv_cq, depth)] {
            if let Some(cq) = self.cqs.table.at_mut(cq) {
                cq.users -= 1;
                cq.committed -= committed;
            }
        }
        self.clear_registers(qp.uar, qpn.0);
        Ok(())
    }

    /// Takes a QP off all work lists.
    fn forget(&mut self, index: u32) {
        self.active.retain(|&i| i != index);
        self.watching.retain(|&i| i != index);
        self.owing.retain(|&i| i != index);
        self.flushing.retain(|&i| i != index);
    }

    /// Blanks the registers that hold a ring for `qpn`, so that an equal ring later is a change.
    fn clear_registers(&mut self, uar: u32, qpn: u32) {
        if let Some(uar) = self.uars.at_mut(uar) {
            for (seen, register) in uar.seen.iter_mut().zip(REGISTERS) {
                let value = uar.page.load_u64(register).unwrap_or_default();
                let words = value.last_chunk::<4>().copied().unwrap_or_default();
                if u32::from_be_bytes(words) >> 8 == qpn {
                    let value = u64::from_ne_bytes(value);
                    if matches!(uar.page.replace_u64(register, value, 0), Ok(true)) {
                        *seen = 0;
                    }
                }
            }
        }
    }

    /// Moves a queue pair through its state machine.
    ///
    /// # Errors
    /// Unknown QP, a transition that isn't allowed, attributes out of range, or no link to the peer.
    pub fn modify_qp(&mut self, qpn: Qpn, to: Modify) -> Result<(), ModifyError> {
        let (index, tag) = split(qpn.0);
        let caps = self.config.caps;
        let links = &self.links;
        let trace = self.trace.is_on();
        let qp = self.qps.get_mut(index, tag).ok_or(ModifyError::Unknown { qpn })?;
        let wrong = |to| ModifyError::Transition { qpn, from: qp.state, to };
        match to {
            Modify::ToInit { access } => {
                if qp.state != QpState::Reset {
                    return Err(wrong(QpState::Init));
                }
                qp.access = access;
                qp.state = QpState::Init;
            }
            Modify::ToRtr { dest_nic, dest_qpn, rq_psn, max_dest_rd_atomic, min_rnr_timer } => {
                if qp.state != QpState::Init {
                    return Err(wrong(QpState::Rtr));
                }
                if max_dest_rd_atomic > caps.max_rd_atomic {
                    let max = u64::from(caps.max_rd_atomic);
                    return Err(ModifyError::Range { what: "max_dest_rd_atomic", max });
                }
                if rq_psn > wire::NUMBER_MASK || dest_qpn.0 > wire::NUMBER_MASK {
                    let max = u64::from(wire::NUMBER_MASK);
                    return Err(ModifyError::Range { what: "sequence or QP number", max });
                }
                if qp.kind == QpKind::Rc {
                    qp.link = links
                        .iter()
                        .position(|link| link.remote == dest_nic)
                        .ok_or(ModifyError::NoLink { remote: dest_nic })?;
                    qp.remote_nic = dest_nic;
                    qp.remote_qpn = dest_qpn.0;
                }
                qp.responder = Responder::new(
                    dest_nic,
                    dest_qpn.0,
                    u64::from(rq_psn) | 1 << 32,
                    max_dest_rd_atomic,
                    min_rnr_timer,
                );
                qp.state = QpState::Rtr;
            }
            Modify::ToRts { sq_psn, retry_cnt, rnr_retry, timeout, max_rd_atomic } => {
                if qp.state != QpState::Rtr {
                    return Err(wrong(QpState::Rts));
                }
                for (what, value, max) in [
                    ("sq_psn", u64::from(sq_psn), u64::from(wire::NUMBER_MASK)),
                    ("retry_cnt", u64::from(retry_cnt), 7),
                    ("rnr_retry", u64::from(rnr_retry), 7),
                    ("timeout", u64::from(timeout), 31),
                    ("max_rd_atomic", u64::from(max_rd_atomic), qp.sq.slots.len() as u64),
                ] {
                    if value > max {
                        return Err(ModifyError::Range { what, max });
                    }
                }
                let sq = &mut qp.sq;
                // Wide sequence numbers start high enough to be extended backwards.
                sq.next_psn = u64::from(sq_psn) | 1 << 32;
                sq.acked = sq.next_psn;
                sq.retry_cnt = retry_cnt;
                sq.retries = retry_cnt;
                sq.rnr_retry = rnr_retry;
                sq.rnr_retries = rnr_retry;
                sq.timeout = ack_timeout(timeout);
                sq.max_rd_atomic = max_rd_atomic;
                if !trace {
                    sq.times = Box::default();
                }
                qp.state = QpState::Rts;
            }
            Modify::ToError => {
                if qp.state == QpState::Reset {
                    return Err(wrong(QpState::Error));
                }
                if qp.state != QpState::Error {
                    enter_error(qp);
                    self.wake_error(index);
                }
            }
            Modify::ToReset => {
                qp.state = QpState::Reset;
                qp.sq.reset();
                qp.error = None;
                qp.destination = None;
                qp.reconnect = false;
                qp.active = false;
                qp.responder = Responder::new(0, 0, 0, 0, 0);
                if let Some(rq) = &mut qp.rq {
                    rq.head = 0;
                    rq.producer = 0;
                }
                let uar = qp.uar;
                self.forget(index);
                self.clear_registers(uar, qpn.0);
            }
        }
        Ok(())
    }

    /// A queue pair's state.
    #[must_use]
    pub fn query_qp(&self, qpn: Qpn) -> Option<QpInfo> {
        self.qp(qpn).map(|qp| QpInfo {
            state: qp.state,
            kind: qp.kind,
            sq_head: qp.sq.head,
            sq_producer: qp.sq.producer,
            sq_completed: qp.sq.completed,
            rq_head: qp.rq.as_ref().map_or(0, |rq| rq.head),
            error: qp.error,
        })
    }

    /// Why a QP went to ERROR: the first cause, which flushed completions don't tell.
    #[must_use]
    pub fn qp_error(&self, qpn: Qpn) -> Option<Cause> {
        self.qp(qpn)?.error
    }

    /// Connects an end of a link. One link a remote NIC; a later one takes the place of an earlier one.
    pub fn connect_link(&mut self, end: LinkEnd) {
        match self.links.iter_mut().find(|link| link.remote == end.remote) {
            Some(link) => *link = end,
            None => self.links.push(end),
        }
    }

    /// What was seen to be wrong, the first few hundred of it.
    #[must_use]
    pub fn findings(&self) -> &[Finding] {
        self.findings.kept()
    }

    /// How often a kind of finding was seen.
    #[must_use]
    pub fn finding_count(&self, kind: FindingKind) -> u64 {
        self.findings.count(kind)
    }

    /// Forgets all findings.
    pub fn clear_findings(&mut self) {
        self.findings.clear();
    }

    /// What it has done.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The newest trace records, oldest first.
    #[must_use]
    pub fn trace(&self) -> Vec<TraceRecord> {
        self.trace.records()
    }
}

fn check_record(record: &DmaBuf) -> Result<(), CreateError> {
    if record.len() < 8 || !record.is_aligned(4) {
        let got = record.len() as u64;
        return Err(CreateError::Memory { what: "doorbell record", needed: 8, got, align: 4 });
    }
    Ok(())
}

fn receive_queue(rq: crate::config::RqAttr, record: DmaBuf) -> Result<ReceiveQueue, CreateError> {
    if rq.log_wqes > 15 {
        return Err(CreateError::Range { what: "log2 of receive WQEs", max: 15 });
    }
    if !(4..=9).contains(&rq.log_stride) {
        return Err(CreateError::Range { what: "log2 of receive WQE bytes (4 to 9)", max: 9 });
    }
    let needed = 1u64 << (rq.log_wqes + rq.log_stride);
    if (rq.ring.len() as u64) < needed || !rq.ring.is_aligned(16) {
        let got = rq.ring.len() as u64;
        return Err(CreateError::Memory { what: "receive queue", needed, got, align: 16 });
    }
    Ok(ReceiveQueue {
        ring: rq.ring,
        record,
        log_wqes: rq.log_wqes,
        log_stride: rq.log_stride,
        head: 0,
        producer: 0,
    })
}
