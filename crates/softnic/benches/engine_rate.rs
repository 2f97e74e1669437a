//! How many 8-byte inline writes a second one engine thread executes, beside the bare loop.
//!
//! The bare loop is the least that any engine must do: read the same cache lines, store the same 8 bytes,
//! write the same completions, with one thread submitting and one draining. The NIC is measured beside it, in
//! the same run, interleaved, with 1, 8 and 64 QPs. Batches of 32, one completion a batch, both threads pinned.
//!
//! `cargo bench -p softnic --bench engine_rate [-- SECONDS-A-POINT]`
#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a bench that can't be set up has nothing to say"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use softnic::{
    Access, Caps, CqAttr, EngineOptions, LinkAttr, Memory, Modify, MrAttr, Nic, NicConfig, QpAttr,
    QpKind, Qpn, SoftNics, link,
};
use wire::doorbell::UAR_SEND;

const BATCH: u64 = 32;
const DEPTH: u64 = 512;
const LOG_DEPTH: u32 = DEPTH.trailing_zeros();
const CQES: u64 = DEPTH / BATCH;
const DESTINATION: u64 = 0x3000_0000_0000;

fn pin(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

/// One work queue as its submitter sees it.
struct Queue {
    sq: Arc<Memory>,
    cq: Arc<Memory>,
    cq_record: Arc<Memory>,
    record: Arc<Memory>,
    page: Arc<Memory>,
    qpn: u32,
    producer: u64,
    completed: u64,
}

impl Queue {
    fn new(qpn: u32, rkey: u32) -> Self {
        let sq = Memory::zeroed((DEPTH * 64) as usize);
        let queue = Self {
            sq,
            cq: Memory::zeroed((CQES * 64) as usize),
            cq_record: Memory::zeroed(64),
            record: Memory::zeroed(64),
            page: Memory::zeroed(4096),
            qpn,
            producer: 0,
            completed: 0,
        };
        queue.cq.write(0, &vec![0xff; (CQES * 64) as usize]).unwrap();
        queue.template(qpn, rkey);
        queue
    }

    /// Everything of the WQEs that doesn't change from lap to lap.
    fn template(&self, qpn: u32, rkey: u32) {
        for slot in 0..DEPTH {
            let at = (slot * 64) as usize;
            let half = |offset: usize, value: u32| {
                self.sq.half(at + offset).store(value.to_be(), Ordering::Relaxed);
            };
            half(4, qpn << 8 | 3);
            half(8, if slot % BATCH == BATCH - 1 { 0x08 } else { 0 });
            half(16, (DESTINATION >> 32) as u32);
            half(20, (slot * 8) as u32);
            half(24, rkey);
            half(32, 0x8000_0008);
        }
    }

    #[inline]
    fn post_batch(&mut self) {
        let base = self.sq.as_ptr();
        let first = (self.producer & (DEPTH - 1)) * 64;
        for i in 0..BATCH {
            let index = self.producer + i;
            // SAFETY: a batch never wraps (DEPTH is a multiple of it), so all of it lies inside of the queue.
            unsafe {
                let wqe = base.add((first + i * 64) as usize);
                AtomicU32::from_ptr(wqe.cast())
                    .store(((index as u32 & 0xffff) << 8 | 8).to_be(), Ordering::Relaxed);
                // The payload straddles two words: 4 bytes after the inline header.
                AtomicU32::from_ptr(wqe.add(36).cast()).store(index as u32, Ordering::Relaxed);
            }
        }
        self.producer += BATCH;
        self.record.half(4).store((self.producer as u32 & 0xffff).to_be(), Ordering::Release);
        let bell = (self.producer & 0xffff) << 40 | u64::from(self.qpn) << 8;
        self.page.word(UAR_SEND).store(bell.to_be(), Ordering::Release);
    }

    /// Takes completions; true if a batch has room.
    #[inline]
    fn has_room(&mut self) -> bool {
        if self.producer - self.completed + BATCH <= DEPTH {
            return true;
        }
        loop {
            let entry = self.completed / BATCH;
            let tail = (entry % CQES * 64 + 56) as usize;
            let op_own = (self.cq.word(tail).load(Ordering::Relaxed) >> 56) as u8;
            if op_own >> 4 == 15 || op_own & 1 != (entry / CQES) as u8 & 1 {
                return self.producer - self.completed + BATCH <= DEPTH;
            }
            fence(Ordering::Acquire);
            assert_eq!(op_own >> 4, 0, "an error completion");
            self.completed += BATCH;
            let consumed = (self.completed / BATCH) as u32 & 0xff_ffff;
            self.cq_record.half(0).store(consumed.to_be(), Ordering::Relaxed);
        }
    }
}

/// Posts to all queues in turn for about `time`; gives WQEs completed a second.
fn submit(queues: &mut [Queue], time: Duration) -> f64 {
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

/// Posts to a queue that nobody reads: what the submitter alone can do.
fn submitter_alone(time: Duration) -> f64 {
    let mut queue = Queue::new(1, 1);
    let start = Instant::now();
    while start.elapsed() < time {
        for _ in 0..256 {
            queue.post_batch();
        }
    }
    queue.producer as f64 / start.elapsed().as_secs_f64() / 1e6
}

/// The least that an engine must do, on one queue.
fn bare(time: Duration, cpu: usize) -> f64 {
    let mut queue = [Queue::new(1, 1)];
    let stop = AtomicBool::new(false);
    let (sq, cq, record) =
        (Arc::clone(&queue[0].sq), Arc::clone(&queue[0].cq), Arc::clone(&queue[0].record));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(cpu);
            let memory: Vec<AtomicU64> = (0..DEPTH).map(|_| AtomicU64::new(0)).collect();
            let mut ci = 0u64;
            while !stop.load(Ordering::Relaxed) {
                let producer = u32::from_be(record.half(4).load(Ordering::Acquire)) as u16;
                let n = producer.wrapping_sub(ci as u16);
                if n == 0 {
                    std::hint::spin_loop();
                }
                for _ in 0..n {
                    let at = (ci % DEPTH * 64) as usize;
                    let ahead = ((ci + 16) % DEPTH * 64) as usize;
                    #[cfg(target_arch = "x86_64")]
                    // SAFETY: a prefetch inside of the queue.
                    unsafe {
                        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
                        _mm_prefetch::<_MM_HINT_T0>(sq.as_ptr().add(ahead).cast());
                    }
                    let half = |o: usize| u32::from_be(sq.half(at + o).load(Ordering::Relaxed));
                    assert_eq!((half(0) >> 8) as u16, ci as u16);
                    let to = half(20) as usize / 8;
                    let value = u64::from(half(36)) << 32 | u64::from(half(40));
                    if half(32) & 0x7fff_ffff == 8 {
                        memory[to % DEPTH as usize].store(value, Ordering::Relaxed);
                    }
                    if half(8) & 8 != 0 {
                        let entry = ci / BATCH;
                        let slot = (entry % CQES * 64) as usize;
                        for word in 0..7 {
                            cq.word(slot + word * 8).store(0, Ordering::Relaxed);
                        }
                        let owner = (entry / CQES) & 1;
                        cq.word(slot + 56).store(owner << 56, Ordering::Release);
                    }
                    ci += 1;
                }
            }
        });
        let rate = submit(&mut queue, time);
        stop.store(true, Ordering::Relaxed);
        rate
    })
}

/// Two linked NICs, and the queues of the first.
fn linked(qps: usize) -> (Vec<Nic>, Vec<(Queue, Queue)>) {
    let caps = Caps { max_qps: 128, ..Caps::default() };
    let mut nics = [1, 2].map(|id| Nic::new(NicConfig { id, caps, ..NicConfig::default() }));
    let (x, y) = link(1, 2, LinkAttr::default());
    nics[0].connect_link(x);
    nics[1].connect_link(y);
    let pds = [nics[0].alloc_pd().unwrap(), nics[1].alloc_pd().unwrap()];
    let target = Memory::zeroed((DEPTH * 8) as usize);
    let keys = nics[1]
        .reg_mr(MrAttr {
            pd: pds[1],
            iova: DESTINATION,
            length: DEPTH * 8,
            access: Access::REMOTE_WRITE,
            memory: target.dma(),
        })
        .unwrap();
    let mut queues = Vec::new();
    for _ in 0..qps {
        let mut local = Queue::new(0, keys.rkey);
        let remote = Queue::new(0, 0);
        let mut create = |nic: usize, queue: &Queue| -> Qpn {
            let uar = nics[nic].alloc_uar(queue.page.dma()).unwrap();
            let cq = nics[nic]
                .create_cq(CqAttr {
                    ring: queue.cq.dma(),
                    log_size: CQES.trailing_zeros(),
                    record: queue.cq_record.dma(),
                    collapsed: false,
                    ignore_overrun: false,
                })
                .unwrap();
            nics[nic]
                .create_qp(QpAttr {
                    pd: pds[nic],
                    kind: QpKind::Rc,
                    send_cq: cq,
                    recv_cq: cq,
                    sq: queue.sq.dma(),
                    log_sq_blocks: LOG_DEPTH,
                    rq: None,
                    record: Some(queue.record.dma()),
                    uar,
                    max_rd_atomic: 0,
                    sq_start: 0,
                })
                .unwrap()
        };
        let numbers = [create(0, &local), create(1, &remote)];
        local.qpn = numbers[0].0;
        local.template(local.qpn, keys.rkey);
        for side in 0..2 {
            let nic = &mut nics[side];
            nic.modify_qp(numbers[side], Modify::ToInit { access: Access::REMOTE_WRITE }).unwrap();
            nic.modify_qp(
                numbers[side],
                Modify::ToRtr {
                    dest_nic: 2 - side as u16,
                    dest_qpn: numbers[1 - side],
                    rq_psn: 0,
                    max_dest_rd_atomic: 0,
                    min_rnr_timer: 0,
                },
            )
            .unwrap();
            nic.modify_qp(
                numbers[side],
                Modify::ToRts {
                    sq_psn: 0,
                    retry_cnt: 7,
                    rnr_retry: 7,
                    timeout: 18,
                    max_rd_atomic: 0,
                },
            )
            .unwrap();
        }
        queues.push((local, remote));
    }
    (nics.into(), queues)
}

/// One engine thread drives both NICs.
fn nic(qps: usize, time: Duration, cpu: usize) -> f64 {
    let (nics, queues) = linked(qps);
    let options = EngineOptions { cpu: Some(cpu), ..EngineOptions::default() };
    let engine = SoftNics::spawn(nics, options).unwrap();
    let (mut locals, remotes): (Vec<_>, Vec<_>) = queues.into_iter().unzip();
    let rate = submit(&mut locals, time);
    engine.stop();
    drop(remotes);
    rate
}

/// The submitter steps the NICs itself: no line crosses between cores, so this is the engine's own time.
fn stepped(qps: usize, time: Duration) -> f64 {
    let (mut nics, queues) = linked(qps);
    let (mut locals, _remotes): (Vec<_>, Vec<_>) = queues.into_iter().unzip();
    let start = Instant::now();
    while start.elapsed() < time {
        for _ in 0..16 {
            for queue in &mut locals {
                if queue.has_room() {
                    queue.post_batch();
                }
            }
            for nic in &mut nics {
                nic.step(1, 256);
            }
        }
    }
    let done: u64 = locals.iter().map(|q| q.completed).sum();
    done as f64 / start.elapsed().as_secs_f64() / 1e6
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    if std::env::args().any(|a| a == "stepped") {
        println!("{:.1} M WQE/s", stepped(1, Duration::from_secs(1)));
        return;
    }
    let seconds = std::env::args().skip(1).find_map(|a| a.parse::<f64>().ok()).unwrap_or(0.3);
    let time = Duration::from_secs_f64(seconds);
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    println!(
        "# {cpus} CPUs; submitter on CPU 0, engine on CPU {}; batch {BATCH}, depth {DEPTH}, medians of 5",
        1.min(cpus - 1)
    );
    let engine = 1.min(cpus - 1);
    pin(0);
    let points = [1, 8, 64];
    let mut floor = Vec::new();
    let mut alone = Vec::new();
    let mut own = Vec::new();
    let mut rates = vec![Vec::new(); points.len()];
    for _ in 0..5 {
        alone.push(submitter_alone(time / 4));
        floor.push(bare(time, engine));
        own.push(stepped(1, time));
        for (rates, qps) in rates.iter_mut().zip(points) {
            rates.push(nic(qps, time, engine));
        }
    }
    let alone = median(&mut alone);
    let floor = median(&mut floor);
    println!("{:<28} {:>10} {:>12}", "", "M WQE/s", "bare / this");
    println!("{:<28} {alone:>10.1} {:>12}", "submitter, nobody reading", "");
    println!("{:<28} {floor:>10.1} {:>12}", "bare loop, 1 queue", "");
    println!("{:<28} {:>10.1} {:>12}", "NIC stepped by submitter", median(&mut own), "");
    let mut one = None;
    for (rates, qps) in rates.iter_mut().zip(points) {
        let rate = median(rates);
        let one = *one.get_or_insert(rate);
        println!(
            "{:<28} {rate:>10.1} {:>12.2}   {:+.1} % of 1 QP",
            format!("NIC, {qps} QPs"),
            floor / rate,
            (rate / one - 1.0) * 100.0
        );
    }
    println!(
        "# The submitter alone is {} bound; the bare loop is bound by the transfer of WQE lines between the two cores.",
        if alone > 1.5 * floor { "not the" } else { "near the" }
    );
}
