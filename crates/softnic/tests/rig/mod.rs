//! Two linked NICs, a pair of connected QPs, and a hand that posts WQEs.
#![allow(dead_code, reason = "each test file uses a part")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::sync::Arc;

use softnic::*;
use wire::cqe::Cqe;
use wire::doorbell::{Doorbell, UAR_SEND, record};
use wire::wqe::{Ctrl, CtrlFlags, Data, Opcode, Raddr, WQEBB, inline_header};
use zerocopy::{FromBytes, IntoBytes};

pub const LOCAL: u64 = 0x2000_0000_0000;
pub const REMOTE: u64 = 0x3000_0000_0000;
pub const REGION: usize = 1 << 17;

/// Everything of one side.
pub struct Side {
    pub id: u16,
    pub pd: PdId,
    pub uar: UarId,
    pub page: Arc<Memory>,
    pub sq: Arc<Memory>,
    pub rq: Arc<Memory>,
    pub record: Arc<Memory>,
    pub cq: CqId,
    pub cq_ring: Arc<Memory>,
    pub cq_record: Arc<Memory>,
    pub memory: Arc<Memory>,
    pub keys: MrKeys,
    pub qpn: Qpn,
    pub log_cq: u32,
    pub log_sq: u32,
    pub log_rq: u32,
    pub producer: u64,
    pub received: u64,
    pub consumer: u64,
}

#[derive(Clone)]
pub struct Options {
    pub log_sq: u32,
    pub log_rq: u32,
    pub log_cq: u32,
    pub sq_start: u64,
    pub psn: u32,
    pub max_rd_atomic: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub timeout: u8,
    pub min_rnr_timer: u8,
    pub collapsed: bool,
    pub ignore_overrun: bool,
    pub config: NicConfig,
    pub access: Access,
    pub region_access: Access,
    pub kind: QpKind,
    pub with_record: bool,
    /// The NIC reaches queues, completions and payload by copies only.
    pub copied: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            log_sq: 6,
            log_rq: 4,
            log_cq: 7,
            sq_start: 0,
            psn: 0,
            max_rd_atomic: 16,
            retry_cnt: 3,
            rnr_retry: 7,
            timeout: 10,
            min_rnr_timer: 1,
            collapsed: false,
            ignore_overrun: false,
            config: NicConfig::default(),
            access: Access::all(),
            region_access: Access::all(),
            kind: QpKind::Rc,
            with_record: true,
            copied: false,
        }
    }
}

/// Both sides, stepped in virtual time.
pub struct Rig {
    pub nics: Vec<Nic>,
    pub a: Side,
    pub b: Side,
    pub now: Nanos,
}

pub const STRIDE: u32 = 6;

/// Memory that only copies reach, over memory that the test can look at.
struct Copies(Arc<Memory>);

impl CopiedMemory for Copies {
    fn len(&self) -> usize {
        self.0.len()
    }
    fn read(&self, offset: usize, out: &mut [u8]) {
        self.0.read(offset, out).unwrap();
    }
    fn write(&self, offset: usize, bytes: &[u8]) {
        self.0.write(offset, bytes).unwrap();
    }
}

impl Options {
    fn dma(&self, memory: &Arc<Memory>) -> DmaBuf {
        if self.copied {
            DmaBuf::copied(Arc::new(Copies(Arc::clone(memory))))
        } else {
            memory.dma()
        }
    }
}

pub fn side(nic: &mut Nic, iova: u64, o: &Options) -> Side {
    side_on(nic, iova, o, None)
}

/// A side that shares another's doorbell page.
pub fn side_on(
    nic: &mut Nic,
    iova: u64,
    o: &Options,
    shared: Option<(UarId, Arc<Memory>)>,
) -> Side {
    let pd = nic.alloc_pd().unwrap();
    let (uar, page) = shared.unwrap_or_else(|| {
        let page = Memory::zeroed(4096);
        (nic.alloc_uar(o.dma(&page)).unwrap(), page)
    });
    let cq_ring = Memory::zeroed(64 << o.log_cq);
    cq_ring.write(0, &vec![0xff; 64 << o.log_cq]).unwrap();
    let cq_record = Memory::zeroed(8);
    let cq = nic
        .create_cq(CqAttr {
            ring: o.dma(&cq_ring),
            log_size: o.log_cq,
            record: o.dma(&cq_record),
            collapsed: o.collapsed,
            ignore_overrun: o.ignore_overrun,
        })
        .unwrap();
    let memory = Memory::zeroed(REGION);
    let keys = nic
        .reg_mr(MrAttr {
            pd,
            iova,
            length: REGION as u64,
            access: o.region_access,
            memory: o.dma(&memory),
        })
        .unwrap();
    let sq = Memory::zeroed(64 << o.log_sq);
    let rq = Memory::zeroed(1 << (o.log_rq + STRIDE));
    let record = Memory::zeroed(8);
    record.half(4).store(wire::doorbell::record(o.sq_start).get().to_be(), RELAXED);
    let qpn = nic
        .create_qp(QpAttr {
            pd,
            kind: o.kind,
            send_cq: cq,
            recv_cq: cq,
            sq: o.dma(&sq),
            log_sq_blocks: o.log_sq,
            rq: o.with_record.then(|| RqAttr {
                ring: o.dma(&rq),
                log_wqes: o.log_rq,
                log_stride: STRIDE,
            }),
            record: o.with_record.then(|| o.dma(&record)),
            uar,
            max_rd_atomic: o.max_rd_atomic,
            sq_start: o.sq_start,
        })
        .unwrap();
    Side {
        id: nic.id(),
        pd,
        uar,
        page,
        sq,
        rq,
        record,
        cq,
        cq_ring,
        cq_record,
        memory,
        keys,
        qpn,
        log_cq: o.log_cq,
        log_sq: o.log_sq,
        log_rq: o.log_rq,
        producer: o.sq_start,
        received: 0,
        consumer: 0,
    }
}

pub const RELAXED: std::sync::atomic::Ordering = std::sync::atomic::Ordering::Relaxed;
pub const RELEASE: std::sync::atomic::Ordering = std::sync::atomic::Ordering::Release;

pub fn connect(nic: &mut Nic, qpn: Qpn, dest_nic: u16, dest_qpn: Qpn, o: &Options) {
    nic.modify_qp(qpn, Modify::ToInit { access: o.access }).unwrap();
    nic.modify_qp(
        qpn,
        Modify::ToRtr {
            dest_nic,
            dest_qpn,
            rq_psn: o.psn,
            max_dest_rd_atomic: o.max_rd_atomic,
            min_rnr_timer: o.min_rnr_timer,
        },
    )
    .unwrap();
    nic.modify_qp(
        qpn,
        Modify::ToRts {
            sq_psn: o.psn,
            retry_cnt: o.retry_cnt,
            rnr_retry: o.rnr_retry,
            timeout: o.timeout,
            max_rd_atomic: o.max_rd_atomic,
        },
    )
    .unwrap();
}

/// Steps NICs, and virtual time, until nothing is left to do.
pub fn run_all(nics: &mut [Nic], now: &mut Nanos) {
    for _ in 0..200_000 {
        let mut executed = 0;
        let mut next = None::<Nanos>;
        for nic in &mut *nics {
            let step = nic.step(*now, 256);
            executed += step.executed;
            next = [next, step.next_event].into_iter().flatten().min();
        }
        if executed == 0 {
            match next {
                Some(next) => *now = (*now).max(next),
                None => return,
            }
        }
    }
    panic!("the NICs didn't come to rest");
}

impl Rig {
    pub fn new() -> Self {
        Self::with(Options::default())
    }

    pub fn with(o: Options) -> Self {
        let mut nics: Vec<Nic> =
            [1, 2].map(|id| Nic::new(NicConfig { id, ..o.config.clone() })).into();
        let (x, y) = link(1, 2, LinkAttr::default());
        nics[0].connect_link(x);
        nics[1].connect_link(y);
        let a = side(&mut nics[0], LOCAL, &o);
        let b = side(&mut nics[1], REMOTE, &o);
        connect(&mut nics[0], a.qpn, 2, b.qpn, &o);
        connect(&mut nics[1], b.qpn, 1, a.qpn, &o);
        Self { nics, a, b, now: 0 }
    }

    /// Steps both NICs, and virtual time, until nothing is left to do.
    pub fn run(&mut self) {
        run_all(&mut self.nics, &mut self.now);
    }

    /// Steps a few times without waiting for rest.
    pub fn steps(&mut self, n: usize) {
        for _ in 0..n {
            for nic in &mut self.nics {
                nic.step(self.now, 256);
            }
        }
    }

    pub fn a(&mut self) -> (&mut Nic, &mut Side) {
        (&mut self.nics[0], &mut self.a)
    }
}

impl Side {
    /// Writes a WQE's segments at the producer; `ctrl` gets its index. Gives the first block's index.
    pub fn write_wqe(&mut self, op: Opcode, flags: CtrlFlags, imm: u32, body: &[u8]) -> u64 {
        let ds = 1 + body.len().div_ceil(16) as u8;
        let ctrl = Ctrl::new(op, self.producer, self.qpn.0, ds, flags, imm);
        self.write_ctrl(ctrl, body)
    }

    pub fn write_ctrl(&mut self, ctrl: Ctrl, body: &[u8]) -> u64 {
        let index = self.producer;
        let mut bytes = ctrl.as_bytes().to_vec();
        bytes.extend_from_slice(body);
        self.write_raw(index, &bytes);
        self.producer += u64::from(wire::wqe::blocks(ctrl.ds()).max(1));
        index
    }

    pub fn write_raw(&self, index: u64, bytes: &[u8]) {
        let depth = 1u64 << self.log_sq;
        for (i, block) in bytes.chunks(WQEBB).enumerate() {
            let slot = (index + i as u64) & (depth - 1);
            self.sq.write(slot as usize * WQEBB, block).unwrap();
        }
    }

    pub fn set_record(&self, producer: u64) {
        self.record.half(4).store(record(producer).get().to_be(), RELEASE);
    }

    pub fn ring_value(&self, value: Doorbell) {
        let bytes: [u8; 8] = value.as_bytes().try_into().unwrap();
        self.page.word(UAR_SEND).store(u64::from_ne_bytes(bytes), RELEASE);
    }

    /// Record, then the register.
    pub fn ring(&self) {
        self.set_record(self.producer);
        self.ring_value(Doorbell::next_free(self.qpn.0, self.producer));
    }

    pub fn write_inline(&mut self, to: u64, rkey: u32, bytes: &[u8], flags: CtrlFlags) -> u64 {
        let mut body = Raddr::new(to, rkey).as_bytes().to_vec();
        body.extend_from_slice(&inline(bytes));
        self.write_wqe(Opcode::RdmaWrite, flags, 0, &body)
    }

    pub fn post(
        &mut self,
        op: Opcode,
        flags: CtrlFlags,
        imm: u32,
        raddr: Option<Raddr>,
        data: &[Data],
    ) -> u64 {
        let mut body = raddr.map_or(Vec::new(), |raddr| raddr.as_bytes().to_vec());
        for data in data {
            body.extend_from_slice(data.as_bytes());
        }
        self.write_wqe(op, flags, imm, &body)
    }

    pub fn post_receive(&mut self, data: &[Data]) {
        let stride = 1usize << STRIDE;
        let mut wqe: Vec<u8> = data.iter().flat_map(|d| d.as_bytes().to_vec()).collect();
        if wqe.len() < stride {
            wqe.extend_from_slice(Data::new(0, 0, 0x100).as_bytes());
        }
        let slot = (self.received & ((1 << self.log_rq) - 1)) as usize;
        self.rq.write(slot * stride, &wqe).unwrap();
        self.received += 1;
        self.record.half(0).store((self.received as u32 & 0xffff).to_be(), RELEASE);
    }

    pub fn data(&self, offset: u64, len: u32) -> Data {
        let base = if self.id == 1 { LOCAL } else { REMOTE };
        Data::new(base + offset, len, self.keys.lkey)
    }

    /// The next completion, if there is one.
    pub fn poll(&mut self) -> Option<Cqe> {
        let slot = self.consumer & ((1 << self.log_cq) - 1);
        let mut bytes = [0; 64];
        self.cq_ring.read(slot as usize * 64, &mut bytes).unwrap();
        let cqe = Cqe::read_from_bytes(&bytes).unwrap();
        cqe.is_valid(self.consumer, self.log_cq).then(|| {
            self.consumer += 1;
            self.cq_record.half(0).store((self.consumer as u32 & 0xff_ffff).to_be(), RELEASE);
            cqe
        })
    }

    pub fn poll_all(&mut self) -> Vec<Cqe> {
        std::iter::from_fn(|| self.poll()).collect()
    }

    pub fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.memory.read(offset, &mut out).unwrap();
        out
    }
}

pub fn inline(bytes: &[u8]) -> Vec<u8> {
    let mut out = inline_header(bytes.len() as u32).as_bytes().to_vec();
    out.extend_from_slice(bytes);
    out.resize(out.len().next_multiple_of(16), 0);
    out
}

/// Syndrome and vendor bytes.
pub fn cause(cqe: &Cqe) -> (u8, u8) {
    (cqe.syndrome_byte(), cqe.vendor())
}
