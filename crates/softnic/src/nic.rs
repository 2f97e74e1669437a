//! The NIC's objects and its control path.

use std::collections::VecDeque;

use wire::doorbell::{UAR_BLUEFLAME_STRIDE, UAR_PAGE, UAR_SEND};

use crate::config::{
    CqAttr, CqFormat, CqId, MrAttr, Nanos, NicConfig, PdId, PortAddress, QpKind, Qpn, UarId,
};
use crate::cq::{Cq, CqInfo, Cqs};
use crate::dc::Targets;
use crate::directory::Directory;
use crate::dma::DmaBuf;
use crate::error::{CreateError, DestroyError};
use crate::fault::Faults;
use crate::finding::{Finding, FindingKind, Findings};
use crate::link::{LinkEnd, loopback};
use crate::mr::{MrKeys, Region, Regions};
use crate::pace::Pace;
use crate::placement::Pendings;
use crate::qp::{NEVER, Qp};
use crate::rng::Rng;
use crate::srq::Srq;
use crate::table::Table;
use crate::trace::TraceRecord;

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
    pub seen: [u64; REGISTERS.len()],
    /// QPs of the page, by index.
    pub qps: Vec<u32>,
}

/// The registers of a page that sends are rung at: libmlx5 gives a page's first pair to one QP, the second to another.
pub(crate) const REGISTERS: [usize; 4] = [
    UAR_SEND,
    UAR_SEND + UAR_BLUEFLAME_STRIDE,
    UAR_SEND + 2 * UAR_BLUEFLAME_STRIDE,
    UAR_SEND + 3 * UAR_BLUEFLAME_STRIDE,
];

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
    pub(crate) srqs: Table<Srq>,
    pub(crate) qps: Table<Qp>,
    pub(crate) targets: Targets,
    pub(crate) links: Vec<LinkEnd>,
    /// What its port is called, as datagrams tell it.
    pub(crate) port: PortAddress,
    /// Where DC targets are, if address vectors don't name NICs.
    pub(crate) directory: Option<Directory>,
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
    pub(crate) pace: Pace,
    pub(crate) pendings: Pendings,
    pub(crate) dice: Rng,
    /// Packets taken, for the loss of every n-th.
    pub(crate) taken: u32,
    /// No WQE is failed, no packet lost, and nothing takes time.
    pub(crate) plain: bool,
    /// The port is down, as of the last step, and as was told.
    pub(crate) down: bool,
    pub(crate) told_down: bool,
    /// Clients run on other cores than the one that steps.
    pub(crate) far: bool,
    /// CQs that events are wanted of, by index.
    pub(crate) watched_cqs: Vec<u32>,
}

/// QP numbers: `tag << 16 | index`.
pub(crate) const TAG_SHIFT: u32 = 16;

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
            cqs: Cqs::new(caps.max_cqs, config.trace),
            srqs: Table::new(caps.max_srqs.min(1 << 16)),
            qps: Table::with_tags(caps.max_qps, &config.qpn_tags),
            targets: Targets::new(caps.max_dcts, &config.qpn_tags),
            links: vec![loopback(config.id)],
            port: PortAddress { lid: config.id, ..PortAddress::default() },
            directory: None,
            active: VecDeque::with_capacity(qps),
            watching: Vec::with_capacity(qps),
            owing: VecDeque::with_capacity(qps + caps.max_dc_contexts as usize + 8),
            flushing: Vec::with_capacity(qps),
            next_timer: NEVER,
            timers_moved: false,
            findings: Findings::new(),
            counters: Counters::default(),
            pace: Pace::new(config.profile),
            pendings: Pendings::default(),
            dice: Rng::new(0),
            taken: 0,
            plain: true,
            down: false,
            told_down: config.faults.port_down,
            far: false,
            watched_cqs: Vec::new(),
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
            && faults.down.is_none()
            && faults.drop_every.is_none()
            && faults.drop_random.is_none();
        self.dice = Rng::new(faults.drop_random.map_or(0, |(_, seed)| seed));
        self.pendings.configure(profile.placement_delay_ns, faults.out_of_order_placement);
        self.down = faults.port_down;
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

    /// Objects that it holds, of all kinds.
    #[must_use]
    pub fn objects(&self) -> usize {
        self.pds.iter().count()
            + self.uars.iter().count()
            + self.mrs.count()
            + self.cqs.table.iter().count()
            + self.srqs.iter().count()
            + self.qps.iter().count()
            + self.targets.table.iter().count()
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
            || self.srqs.iter().any(|(_, srq)| srq.pd == pd.0)
        {
            return Err(DestroyError::Busy { what: "protection domain" });
        }
        self.pds.remove(pd.0 >> 8, pd.0 as u8);
        Ok(())
    }

    pub(crate) fn check_pd(&self, pd: PdId) -> Result<(), CreateError> {
        self.pds
            .get(pd.0 >> 8, pd.0 as u8)
            .copied()
            .ok_or(CreateError::Unknown { what: "protection domain" })
    }

    /// Makes a page of memory a doorbell page. Its registers lie at [`UAR_SEND`] and up to three times
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
        let mut seen = [0; REGISTERS.len()];
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
        let region = self.region(attr)?;
        self.mrs.insert(region).ok_or(CreateError::TableFull { what: "memory regions" })
    }

    /// Registers other memory, or the same in another way, in the place of a region: it keeps the keys.
    ///
    /// # Errors
    /// As [`reg_mr`](Self::reg_mr), or unknown keys.
    pub fn rereg_mr(&mut self, keys: MrKeys, attr: MrAttr) -> Result<(), CreateError> {
        let region = self.region(attr)?;
        self.settle_all();
        let is_known = self.mrs.replace(keys, region);
        if is_known { Ok(()) } else { Err(CreateError::Unknown { what: "memory region" }) }
    }

    fn region(&self, attr: MrAttr) -> Result<Region, CreateError> {
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
        Ok(Region {
            iova: attr.iova,
            length: attr.length,
            pd: attr.pd.0,
            access: attr.access,
            memory: attr.memory,
        })
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
        self.create_cq_as(attr, CqFormat::default())
    }

    /// As [`create_cq`](Self::create_cq), in another format.
    ///
    /// # Errors
    /// As there.
    pub fn create_cq_as(&mut self, attr: CqAttr, format: CqFormat) -> Result<CqId, CreateError> {
        if attr.log_size > 22 {
            return Err(CreateError::Range { what: "log2 of CQ entries", max: 22 });
        }
        let entries = if attr.collapsed { 1 } else { 1u64 << attr.log_size };
        let needed = entries * format.stride() as u64;
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
        let mut cq = cq;
        cq.stride = format.stride();
        if let Some(entry) = cq.first_unready().filter(|_| !format.unready) {
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
        self.watched_cqs.retain(|&i| i != index);
        Ok(())
    }

    /// Gives a completion queue another ring. The last entry of the old one says so; entries that weren't consumed
    /// stay there, and the next completion is in the new ring.
    ///
    /// # Errors
    /// Unknown, collapsed, sizes, alignment, or more entries that weren't consumed than it would hold.
    pub fn resize_cq(&mut self, cq: CqId, ring: DmaBuf, log_size: u32) -> Result<(), CreateError> {
        let index = self.check_cq(cq)?;
        let unknown = CreateError::Unknown { what: "completion queue" };
        let cq = self.cqs.table.at_mut(index).ok_or(unknown)?;
        if log_size > 22 || cq.collapsed {
            let max = if cq.collapsed { 0 } else { 22 };
            return Err(CreateError::Range { what: "log2 of CQ entries", max });
        }
        let needed = (cq.stride as u64) << log_size;
        if (ring.len() as u64) < needed || !ring.is_aligned(64) {
            let got = ring.len() as u64;
            return Err(CreateError::Memory { what: "completion queue", needed, got, align: 64 });
        }
        let unread = cq.unread();
        if unread > 1 << log_size {
            return Err(CreateError::CqHolds { unread });
        }
        cq.resize(ring, log_size);
        Ok(())
    }

    /// A completion queue's state.
    #[must_use]
    pub fn query_cq(&self, cq: CqId) -> Option<CqInfo> {
        self.cqs.table.get(cq.0 >> 8, cq.0 as u8).map(Cq::info)
    }

    pub(crate) fn check_cq(&self, cq: CqId) -> Result<u32, CreateError> {
        let (index, tag) = (cq.0 >> 8, cq.0 as u8);
        self.cqs
            .table
            .get(index, tag)
            .map(|_| index)
            .ok_or(CreateError::Unknown { what: "completion queue" })
    }

    /// Connects an end of a link. One link a remote NIC; a later one takes the place of an earlier one.
    pub fn connect_link(&mut self, end: LinkEnd) {
        match self.links.iter_mut().find(|link| link.remote == end.remote) {
            Some(link) => *link = end,
            None => self.links.push(end),
        }
    }

    /// The NIC at the other end of a link is gone: what is sent to it is lost from now on.
    pub fn cut_link(&mut self, remote: u16) {
        if let Some(link) = self.links.iter_mut().find(|link| link.remote == remote) {
            link.cut();
        }
        self.forget_targets(remote);
    }

    /// What its port is called, as datagrams tell it: its id is its LID, and it has no GID, if nobody says otherwise.
    pub fn set_port(&mut self, port: PortAddress) {
        self.port = port;
    }

    /// Address vectors name ports, not NICs, from now on: of their LID the bits in `mask` count, and which NIC a target is
    /// at is [asked](Self::wanted_target).
    pub fn find_targets(&mut self, mask: u16) {
        self.directory = Some(Directory::new(mask));
    }

    /// The address, and the number of a target there, that a DC initiator waits to be [told](Self::add_target) the NIC of.
    pub fn wanted_target(&mut self) -> Option<(u16, Qpn)> {
        self.directory.as_mut()?.take_asked()
    }

    /// Targets at this address, with this one's upper byte in their numbers, are at this NIC: for this time only if
    /// `once`, which who isn't there now may be later.
    pub fn add_target(&mut self, address: u16, dct: Qpn, nic: u16, once: bool) {
        if let Some(directory) = &mut self.directory {
            directory.add(address, dct, nic, once);
        }
    }

    /// Which targets are at this NIC has to be asked again.
    pub fn forget_targets(&mut self, nic: u16) {
        for (_, qp) in self.qps.iter_mut().filter(|(_, qp)| qp.kind == QpKind::Ud) {
            qp.destination.take_if(|_| qp.remote_nic == nic);
        }
        if let Some(directory) = &mut self.directory {
            directory.forget(nic);
        }
    }

    /// Says whether clients run on other cores than the one that steps: they do, unless they step themselves.
    pub fn set_far(&mut self, far: bool) {
        self.far = far;
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
        self.cqs.trace.records()
    }

    /// Tells the trace records since the last call, oldest first. Gives the number of those that were overwritten first.
    pub fn take_trace(&mut self, tell: impl FnMut(TraceRecord)) -> u64 {
        self.cqs.trace.take(tell)
    }
}
