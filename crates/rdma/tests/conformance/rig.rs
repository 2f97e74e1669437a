//! A pair of NICs of some kind, and queue pairs that are posted to byte by byte.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use device::cuda::{CudaError, Gpu};
use rdma::ibv::Asked;
use rdma::mlx5::Mlx5Nic;
use rdma::soft_gpu::EngineOn;
use rdma::{
    Access, ConnectAttr, CqKind, DcTarget, Destination, Memory, Nic, Place, Places, QueuePair,
    QueuePairAttr, Region, memory, soft, soft_gpu,
};
use softnic::Clock;
use wire::cqe::Cqe;
use wire::doorbell::{Doorbell, UAR_SEND, record};
use wire::wqe::{Data, WQEBB};
use zerocopy::IntoBytes;

/// Which NIC.
#[derive(Clone, Debug)]
pub enum Kind {
    /// The CPU engine.
    Cpu,
    /// The host build of the engine for GPUs: one for both NICs.
    Host,
    /// The same: an engine a NIC.
    HostApart,
    /// The engine on a GPU, everything in its memory.
    Gpu(Arc<Gpu>),
    /// The engine on a GPU, everything in pinned host memory.
    Pinned(Arc<Gpu>),
    /// An engine a NIC, on two GPUs, each with all of its side in its memory; or on one, side by side.
    Gpus([Arc<Gpu>; 2]),
    /// A ConnectX behind libmlx5, or what plays one (`gicbench nic exec`): its clock is the real one, and nobody steps it.
    Mlx5,
}

/// Every kind that can be had here; what can't is said, once.
pub fn kinds() -> Vec<Kind> {
    static GPU: std::sync::OnceLock<Option<Arc<Gpu>>> = std::sync::OnceLock::new();
    let gpu = GPU.get_or_init(|| match Gpu::open(0) {
        Ok(gpu) => Some(gpu),
        Err(error @ (CudaError::NoDriver | CudaError::NoDevice { .. }))
            if std::env::var_os("GICBENCH_REQUIRE_GPU").is_none() =>
        {
            skip(&format!("the NIC engine on a GPU: {error}"));
            None
        }
        Err(error) => panic!("{error}"),
    });
    let mut kinds = vec![Kind::Cpu, Kind::Host, Kind::HostApart];
    if let Some(gpu) = gpu {
        kinds.extend([Kind::Gpu(Arc::clone(gpu)), Kind::Pinned(Arc::clone(gpu))]);
        kinds.push(Kind::Gpus([Arc::clone(gpu), second_gpu(gpu)]));
    }
    kinds
}

/// Another GPU, or the same where there is one.
fn second_gpu(first: &Arc<Gpu>) -> Arc<Gpu> {
    static SECOND: std::sync::OnceLock<Option<Arc<Gpu>>> = std::sync::OnceLock::new();
    let second = SECOND.get_or_init(|| match Gpu::open(1) {
        Ok(gpu) => Some(gpu),
        Err(CudaError::NoDevice { .. }) => {
            skip(
                "the NIC engine on two GPUs: there is one, where its two engines run side by side",
            );
            None
        }
        Err(error) => panic!("{error}"),
    });
    Arc::clone(second.as_ref().unwrap_or(first))
}

/// Every kind that can be had here, a ConnectX among them.
pub fn kinds_and_devices() -> Vec<Kind> {
    static DEVICE: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    let is_there = *DEVICE.get_or_init(|| match Mlx5Nic::open(&Asked::default()) {
        Ok(_) => true,
        Err(error) => {
            assert!(std::env::var_os("GICBENCH_REQUIRE_MLX5").is_none(), "{error}");
            skip(&format!("a ConnectX: {error}"));
            false
        }
    });
    let mut kinds = kinds();
    kinds.extend(is_there.then_some(Kind::Mlx5));
    kinds
}

/// How long nothing has changed where a GPU's NIC is done; under a sanitizer it takes longer to do something.
fn patience() -> Duration {
    let asked = std::env::var("CONFORMANCE_PATIENCE_MS").ok().and_then(|ms| ms.parse().ok());
    Duration::from_millis(asked.unwrap_or(4))
}

/// Skipped tests are listed at the end of the run (`scripts/test.sh`).
fn skip(what: &str) {
    eprintln!("SKIPPED: {what}");
    if let Some(path) = std::env::var_os("GICBENCH_SKIP_LOG") {
        use std::io::Write as _;
        let mut log = std::fs::OpenOptions::new().append(true).create(true).open(path).unwrap();
        writeln!(log, "{what}").unwrap();
    }
}

enum Fabric {
    Cpu(soft::Fabric),
    Device(soft_gpu::Fabric),
    Mlx5(Arc<Mlx5Nic>),
}

pub struct World {
    pub kind: Kind,
    fabric: Fabric,
    /// What the CQs of each queue pair held when a device was last done.
    left: RefCell<HashMap<u32, Vec<u8>>>,
}

impl World {
    pub fn new(kind: &Kind) -> Self {
        let device = |on| Fabric::Device(soft_gpu::Fabric::open(on).unwrap());
        let fabric = match kind {
            Kind::Cpu => Fabric::Cpu(
                soft::Fabric::open(&soft::FabricAttr {
                    clock: Clock::Virtual,
                    ..soft::FabricAttr::default()
                })
                .unwrap(),
            ),
            Kind::Host | Kind::HostApart => device(EngineOn::Host {
                driver: soft::Engine::Stepped,
                clock: Clock::Virtual,
                apart: matches!(kind, Kind::HostApart),
            }),
            Kind::Gpu(gpu) | Kind::Pinned(gpu) => device(EngineOn::Gpu(Arc::clone(gpu), 4)),
            Kind::Gpus(gpus) => device(EngineOn::Gpus(gpus.clone(), 2)),
            Kind::Mlx5 => Fabric::Mlx5(Mlx5Nic::open(&Asked::default()).unwrap()),
        };
        Self { kind: kind.clone(), fabric, left: RefCell::default() }
    }

    /// Of a fabric that somebody else opened.
    pub fn of(kind: Kind, fabric: soft_gpu::Fabric) -> Self {
        Self { kind, fabric: Fabric::Device(fabric), left: RefCell::default() }
    }

    pub fn nic(&self, side: usize) -> &dyn Nic {
        match &self.fabric {
            Fabric::Cpu(fabric) => &**fabric.nic(side),
            Fabric::Device(fabric) => &**fabric.nic(side),
            // Both ends are one port.
            Fabric::Mlx5(nic) => &**nic,
        }
    }

    pub fn device_nic(&self, side: usize) -> Option<&soft_gpu::SoftGpuNic> {
        match &self.fabric {
            Fabric::Cpu(_) | Fabric::Mlx5(_) => None,
            Fabric::Device(fabric) => Some(fabric.nic(side)),
        }
    }

    pub fn place(&self, side: usize) -> Place {
        match &self.kind {
            Kind::Cpu | Kind::Host | Kind::HostApart | Kind::Mlx5 => Place::Host,
            Kind::Gpu(gpu) => Place::Gpu(Arc::clone(gpu)),
            Kind::Pinned(gpu) => Place::Pinned(Arc::clone(gpu)),
            Kind::Gpus(gpus) => Place::Gpu(Arc::clone(&gpus[side])),
        }
    }

    pub fn memory(&self, side: usize, bytes: usize) -> Arc<Memory> {
        memory(&self.place(side), bytes).unwrap()
    }

    pub fn region(&self, side: usize, bytes: usize, access: Access) -> Region {
        self.nic(side).register(&self.memory(side, bytes), access).unwrap()
    }

    pub fn queue(&self, side: usize, attr: &QueuePairAttr) -> Queue {
        let attr = QueuePairAttr { places: Places::all(&self.place(side)), ..attr.clone() };
        let qp = self.nic(side).create_queue_pair(&attr).unwrap();
        Queue { qp, producer: attr.start, entries: 0, receives: 0, receive_entries: 0, consumed: 0 }
    }

    /// A connected pair.
    pub fn pair(&self, attr: &QueuePairAttr, connect: &ConnectAttr) -> [Queue; 2] {
        let pair = [0, 1].map(|side| self.queue(side, attr));
        let connect = &self.patient(connect);
        for side in [0, 1] {
            let to = Destination { nic: self.nic(1 - side).address(), qpn: pair[1 - side].qp.qpn };
            self.nic(side).connect(&pair[side].qp, to, connect).unwrap();
        }
        pair
    }

    /// Attributes whose timeout hardware, or a busy machine, can keep.
    pub fn patient(&self, connect: &ConnectAttr) -> ConnectAttr {
        match self.kind {
            Kind::Mlx5 => ConnectAttr { timeout: connect.timeout.max(14), ..*connect },
            _ => *connect,
        }
    }

    pub fn target(&self, side: usize, key: u64, access: Access) -> DcTarget {
        self.nic(side).create_dc_target(key, access).unwrap()
    }

    /// Lets a GPU's NICs work until what this gives is stopped.
    pub fn start(&self) -> soft_gpu::Running {
        match &self.fabric {
            Fabric::Device(fabric) => fabric.start().unwrap(),
            Fabric::Cpu(_) | Fabric::Mlx5(_) => panic!("{:?} always runs", self.kind),
        }
    }

    /// Lets a GPU's NICs work for some time.
    pub fn run_for(&self, time: Duration) {
        if let Fabric::Device(fabric) = &self.fabric {
            let running = fabric.start().unwrap();
            std::thread::sleep(time);
            running.stop().unwrap();
        }
    }

    /// Lets the NICs work until there is nothing left that they could do.
    pub fn run(&self, queues: &[&Queue]) {
        if let (Kind::Gpu(_) | Kind::Pinned(_) | Kind::Gpus(_), Fabric::Device(fabric)) =
            (&self.kind, &self.fabric)
        {
            let running = fabric.start().unwrap();
            // Nobody says when a NIC is done: it is when nothing has changed for some time.
            let mut last = Vec::new();
            let mut since = Instant::now();
            let end = Instant::now() + Duration::from_secs(10);
            while since.elapsed() < patience() && Instant::now() < end {
                let now: Vec<_> = queues.iter().map(|queue| queue.raw()).collect();
                if now != last {
                    last = now;
                    since = Instant::now();
                }
            }
            running.stop().unwrap();
            return;
        }
        if let Kind::Mlx5 = self.kind {
            // It is done when something has come, and then nothing more for some time.
            let end = Instant::now() + Duration::from_secs(20);
            let mut since = None::<Instant>;
            while since.is_none_or(|at| at.elapsed() < Duration::from_millis(60)) {
                assert!(Instant::now() < end, "nothing completes");
                for queue in queues {
                    let raw = queue.raw();
                    let mut left = self.left.borrow_mut();
                    // At first, what a new CQ holds.
                    let left = left.entry(queue.qp.qpn).or_insert_with(|| vec![0xff; raw.len()]);
                    if *left != raw {
                        (*left, since) = (raw, Some(Instant::now()));
                    }
                }
                std::thread::yield_now();
            }
            return;
        }
        let mut idle = 0;
        for _ in 0..100_000 {
            idle = if self.nic(0).step() { 0 } else { idle + 1 };
            // A lagging record is looked at some more times.
            if idle > 80 {
                return;
            }
        }
        panic!("{:?} is never done", self.kind);
    }
}

/// A queue pair with its client's indices.
pub struct Queue {
    pub qp: QueuePair,
    /// Next block to be written.
    pub producer: u64,
    entries: u64,
    /// Next receive to be posted.
    pub receives: u64,
    receive_entries: u64,
    /// Receives that completed.
    pub consumed: u64,
}

impl Queue {
    /// Writes a WQE's bytes into the next blocks; returns its index.
    pub fn write(&mut self, wqe: &[u8]) -> u64 {
        let index = self.producer;
        let depth = 1u64 << self.qp.attr.log_blocks;
        for (nth, block) in wqe.chunks(WQEBB).enumerate() {
            let mut bytes = [0; WQEBB];
            bytes[..block.len()].copy_from_slice(block);
            let slot = (index + nth as u64) & (depth - 1);
            self.qp.areas.sq.write(slot as usize * WQEBB, &bytes).unwrap();
        }
        self.producer += wqe.len().div_ceil(WQEBB).max(1) as u64;
        index
    }

    pub fn write_record(&self, producer: u64) {
        self.qp.areas.record.write(4, &record(producer).to_bytes()).unwrap();
    }

    pub fn write_doorbell(&self, qpn: u32, producer: u64, register: usize) {
        let value = Doorbell::next_free(qpn, producer);
        self.qp.doorbell_page.write(UAR_SEND + register, value.as_bytes()).unwrap();
    }

    /// Record and doorbell, for blocks before `producer`.
    pub fn ring_for(&self, producer: u64) {
        self.write_record(producer);
        self.write_doorbell(self.qp.qpn, producer, 0);
    }

    pub fn ring(&self) {
        self.ring_for(self.producer);
    }

    pub fn post_receive(&mut self, data: &Data) {
        let log = self.qp.attr.log_receives.unwrap();
        let slot = self.receives & ((1 << log) - 1);
        self.qp.areas.rq.write(slot as usize * 16, data.as_bytes()).unwrap();
        self.receives += 1;
        self.qp.areas.record.write(0, &record(self.receives).to_bytes()).unwrap();
    }

    /// The CQs' memory.
    pub fn raw(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for area in [&self.qp.areas.cq, &self.qp.areas.recv_cq] {
            let mut part = vec![0; area.len()];
            area.read(0, &mut part).unwrap();
            bytes.extend(part);
        }
        bytes
    }

    /// New entries of the send CQ, consumed; of a collapsed one what it holds.
    pub fn poll(&mut self) -> Vec<[u8; 64]> {
        let areas = &self.qp.areas;
        if self.qp.attr.cq_kind == CqKind::Collapsed {
            return vec![entry(&areas.cq, 0)];
        }
        let taken = take(&areas.cq, self.qp.attr.log_cq, &mut self.entries);
        // Where overrun is ignored, nobody looks at the record.
        if self.qp.attr.cq_kind != CqKind::OverrunRing {
            let consumer = (self.entries as u32 & wire::NUMBER_MASK).to_be_bytes();
            areas.cq_record.write(0, &consumer).unwrap();
        }
        taken
    }

    /// New entries of the receive CQ, consumed.
    pub fn poll_receives(&mut self) -> Vec<[u8; 64]> {
        let Some(log) = self.qp.attr.log_receives else { return Vec::new() };
        let areas = &self.qp.areas;
        let taken = take(&areas.recv_cq, log, &mut self.receive_entries);
        let consumer = (self.receive_entries as u32 & wire::NUMBER_MASK).to_be_bytes();
        areas.recv_cq_record.write(0, &consumer).unwrap();
        taken
    }
}

fn entry(area: &rdma::Area, slot: u64) -> [u8; 64] {
    let mut bytes = [0; 64];
    area.read(slot as usize * 64, &mut bytes).unwrap();
    bytes
}

fn take(area: &rdma::Area, log: u32, next: &mut u64) -> Vec<[u8; 64]> {
    let mut taken = Vec::new();
    loop {
        let bytes = entry(area, *next & ((1 << log) - 1));
        if !Cqe::from_bytes(bytes).is_valid(*next, log) {
            return taken;
        }
        taken.push(bytes);
        *next += 1;
    }
}

/// All bytes of a region.
pub fn bytes(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.length as usize];
    region.memory.read(0, &mut bytes).unwrap();
    bytes
}

/// What a CQE says, for messages.
pub fn words(entry: &[u8; 64]) -> String {
    let cqe = Cqe::from_bytes(*entry);
    format!(
        "{:?} op {:#04x} qpn {:#x} index {:#x} bytes {} syndrome {:#04x}/{:#04x} own {:#04x}",
        cqe.opcode(),
        cqe.wqe_opcode(),
        cqe.qpn(),
        cqe.wqe_counter.get(),
        cqe.byte_count.get(),
        cqe.syndrome_byte(),
        cqe.vendor(),
        cqe.op_own,
    )
}
