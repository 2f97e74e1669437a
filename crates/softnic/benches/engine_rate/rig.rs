//! Two linked NICs, and work queues whose submitter does as little as it can.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::{Duration, Instant};

use softnic::{
    Access, Caps, CqAttr, DmaBuf, LinkAttr, Memory, Modify, MrAttr, MrKeys, Nic, NicConfig, PdId,
    QpAttr, QpKind, Qpn, link,
};
use wire::doorbell::UAR_SEND;

const SOURCE: u64 = 0x2000_0000_0000;
const DESTINATION: u64 = 0x3000_0000_0000;
const REGION: u64 = 1 << 20;

/// What is posted.
#[derive(Clone, Copy)]
pub struct Work {
    pub name: &'static str,
    pub opcode: u32,
    /// Bytes.
    pub len: u32,
    pub inline: bool,
    /// WQEs a doorbell and a completion.
    pub batch: u64,
    /// Blocks of the send queue.
    pub depth: u64,
}

impl Work {
    pub const INLINE: Self = Self {
        name: "write 8 B, inline",
        opcode: 0x08,
        len: 8,
        inline: true,
        batch: 32,
        depth: 512,
    };
    /// The whole queue fits into either core's first cache, beside other things.
    pub const SHALLOW: Self = Self { depth: 128, ..Self::INLINE };
    pub const OTHERS: [Self; 8] = [
        Self { name: "write 8 B, inline, batch 1", batch: 1, ..Self::INLINE },
        Self { inline: false, name: "write 8 B", ..Self::INLINE },
        Self { inline: true, name: "write 28 B, inline", len: 28, ..Self::INLINE },
        Self { inline: false, name: "read 8 B", opcode: 0x10, ..Self::INLINE },
        Self { inline: false, name: "fetch-and-add 8 B", opcode: 0x12, ..Self::INLINE },
        Self { inline: false, name: "write 4 KiB", len: 4 << 10, batch: 8, ..Self::INLINE },
        Self { inline: false, name: "write 64 KiB", len: 64 << 10, batch: 1, ..Self::INLINE },
        Self { inline: false, name: "write 1 MiB", len: 1 << 20, batch: 1, ..Self::INLINE },
    ];

    fn segments(&self) -> u32 {
        match (self.opcode, self.inline, self.len) {
            (0x12, ..) | (_, true, 13..) => 4,
            _ => 3,
        }
    }
}

/// One work queue as its submitter sees it.
pub struct Queue {
    pub sq: Arc<Memory>,
    pub cq: Arc<Memory>,
    cq_record: Arc<Memory>,
    pub record: Arc<Memory>,
    page: Arc<Memory>,
    work: Work,
    qpn: u32,
    pub producer: u64,
    pub completed: u64,
}

impl Queue {
    pub fn new(work: Work, qpn: u32, lkey: u32, rkey: u32) -> Self {
        let cq_bytes = (work.depth / work.batch * 64) as usize;
        let queue = Self {
            sq: Memory::zeroed((work.depth * 64) as usize),
            cq: Memory::zeroed(cq_bytes),
            cq_record: Memory::zeroed(64),
            record: Memory::zeroed(64),
            page: Memory::zeroed(4096),
            work,
            qpn,
            producer: 0,
            completed: 0,
        };
        queue.cq.write(0, &vec![0xff; cq_bytes]).unwrap();
        queue.template(qpn, lkey, rkey);
        queue
    }

    /// Entries of its CQ: one a batch.
    pub fn cqes(&self) -> u64 {
        self.work.depth / self.work.batch
    }

    /// Everything of the WQEs that doesn't change from lap to lap.
    fn template(&self, qpn: u32, lkey: u32, rkey: u32) {
        let Work { batch, len, inline, opcode, depth, .. } = self.work;
        for slot in 0..depth {
            let at = (slot * 64) as usize;
            let half = |offset: usize, value: u32| {
                self.sq.half(at + offset).store(value.to_be(), Ordering::Relaxed);
            };
            let wide = |offset: usize, value: u64| {
                half(offset, (value >> 32) as u32);
                half(offset + 4, value as u32);
            };
            // Small ones have a place each, large ones share the region.
            let place = if len <= 32 { slot * 32 } else { 0 };
            half(4, qpn << 8 | self.work.segments());
            half(8, if slot % batch == batch - 1 { 0x08 } else { 0 });
            wide(16, DESTINATION + place);
            half(24, rkey);
            if inline {
                half(32, 0x8000_0000 | len);
                continue;
            }
            let data = if opcode == 0x12 { 48 } else { 32 };
            wide(32, 1);
            half(data, len);
            half(data + 4, lkey);
            wide(data + 8, SOURCE + place);
        }
    }

    #[inline]
    pub fn post_batch(&mut self) {
        let base = self.sq.as_ptr();
        let first = (self.producer & (self.work.depth - 1)) * 64;
        for i in 0..self.work.batch {
            let index = self.producer + i;
            // SAFETY: a batch never wraps (the depth is a multiple of it), so all of it lies inside of the queue.
            unsafe {
                let wqe = base.add((first + i * 64) as usize);
                let control = (index as u32 & 0xffff) << 8 | self.work.opcode;
                AtomicU32::from_ptr(wqe.cast()).store(control.to_be(), Ordering::Relaxed);
                if self.work.inline {
                    // The payload straddles two words: 4 bytes after the inline header.
                    AtomicU32::from_ptr(wqe.add(36).cast()).store(index as u32, Ordering::Relaxed);
                }
            }
        }
        self.producer += self.work.batch;
        self.record.half(4).store((self.producer as u32 & 0xffff).to_be(), Ordering::Release);
        let bell = (self.producer & 0xffff) << 40 | u64::from(self.qpn) << 8;
        self.page.word(UAR_SEND).store(bell.to_be(), Ordering::Release);
    }

    /// Takes completions; true if a batch has room.
    #[inline]
    pub fn has_room(&mut self) -> bool {
        let batch = self.work.batch;
        if self.producer - self.completed + batch <= self.work.depth {
            return true;
        }
        let cqes = self.cqes();
        loop {
            let entry = self.completed / batch;
            let tail = (entry % cqes * 64 + 56) as usize;
            let op_own = (self.cq.word(tail).load(Ordering::Relaxed) >> 56) as u8;
            if op_own >> 4 == 15 || op_own & 1 != (entry / cqes) as u8 & 1 {
                return self.producer - self.completed + batch <= self.work.depth;
            }
            fence(Ordering::Acquire);
            assert_eq!(op_own >> 4, 0, "an error completion");
            self.completed += batch;
            let consumed = (self.completed / batch) as u32 & 0xff_ffff;
            self.cq_record.half(0).store(consumed.to_be(), Ordering::Relaxed);
        }
    }
}

/// Posts to all queues in turn for about `time`; gives millions of WQEs completed a second.
pub fn submit(queues: &mut [Queue], time: Duration) -> f64 {
    let start = Instant::now();
    let before: u64 = queues.iter().map(|q| q.completed).sum();
    loop {
        for _ in 0..64 {
            for queue in &mut *queues {
                if queue.has_room() {
                    queue.post_batch();
                }
            }
        }
        if start.elapsed() >= time {
            break;
        }
    }
    let after: u64 = queues.iter().map(|q| q.completed).sum();
    (after - before) as f64 / start.elapsed().as_secs_f64() / 1e6
}

/// Two linked NICs, the queues of the first, and what else must stay alive.
pub struct Pair {
    pub nics: Vec<Nic>,
    pub queues: Vec<Queue>,
    _remotes: Vec<Queue>,
}

impl Pair {
    pub fn new(work: Work, qps: usize) -> Self {
        let caps = Caps { max_qps: 128, ..Caps::default() };
        let mut nics = [1, 2].map(|id| Nic::new(NicConfig { id, caps, ..NicConfig::default() }));
        let (x, y) = link(1, 2, LinkAttr::default());
        nics[0].connect_link(x);
        nics[1].connect_link(y);
        let pds = [nics[0].alloc_pd().unwrap(), nics[1].alloc_pd().unwrap()];
        let mut region = |nic: usize, iova: u64| -> MrKeys {
            let memory = Memory::zeroed(REGION as usize).dma();
            let access = Access::all();
            nics[nic].reg_mr(MrAttr { pd: pds[nic], iova, length: REGION, access, memory }).unwrap()
        };
        let (source, target) = (region(0, SOURCE), region(1, DESTINATION));
        let (mut queues, mut remotes) = (Vec::new(), Vec::new());
        for _ in 0..qps {
            let mut local = Queue::new(work, 0, 0, 0);
            let remote = Queue::new(work, 0, 0, 0);
            let numbers =
                [create(&mut nics[0], pds[0], &local), create(&mut nics[1], pds[1], &remote)];
            local.qpn = numbers[0].0;
            local.template(local.qpn, source.lkey, target.rkey);
            for side in 0..2 {
                connect(&mut nics[side], numbers[side], 2 - side as u16, numbers[1 - side]);
            }
            queues.push(local);
            remotes.push(remote);
        }
        Self { nics: nics.into(), queues, _remotes: remotes }
    }

    /// Posts to each queue once, if it has room, and steps the NICs once.
    pub fn round(&mut self) {
        for queue in &mut self.queues {
            if queue.has_room() {
                queue.post_batch();
            }
        }
        for nic in &mut self.nics {
            nic.step(1, 256);
        }
    }
}

fn create(nic: &mut Nic, pd: PdId, queue: &Queue) -> Qpn {
    let dma = |memory: &Arc<Memory>| -> DmaBuf { memory.dma() };
    let uar = nic.alloc_uar(dma(&queue.page)).unwrap();
    let cq = nic
        .create_cq(CqAttr {
            ring: dma(&queue.cq),
            log_size: queue.cqes().trailing_zeros(),
            record: dma(&queue.cq_record),
            collapsed: false,
            ignore_overrun: false,
        })
        .unwrap();
    nic.create_qp(QpAttr {
        pd,
        kind: QpKind::Rc,
        send_cq: cq,
        recv_cq: cq,
        sq: dma(&queue.sq),
        log_sq_blocks: queue.work.depth.trailing_zeros(),
        rq: None,
        record: Some(dma(&queue.record)),
        uar,
        max_rd_atomic: 16,
        sq_start: 0,
    })
    .unwrap()
}

fn connect(nic: &mut Nic, qpn: Qpn, dest_nic: u16, dest_qpn: Qpn) {
    for step in [
        Modify::ToInit { access: Access::all() },
        Modify::ToRtr { dest_nic, dest_qpn, rq_psn: 0, max_dest_rd_atomic: 16, min_rnr_timer: 0 },
        Modify::ToRts { sq_psn: 0, retry_cnt: 7, rnr_retry: 7, timeout: 18, max_rd_atomic: 16 },
    ] {
        nic.modify_qp(qpn, step).unwrap();
    }
}
