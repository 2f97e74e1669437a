//! A queue pair between two software NICs, memory at both ends, and programs that run on it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]
#![allow(dead_code, reason = "each test file uses a part")]

use std::sync::atomic::Ordering;
use std::time::Duration;

use device::choice::{Choice, CqKind, CqLoad, Order, Ringing, Sharing, Signalling, Transport};
use device::program::{self, Done, Step};
use device::view::{Local, Remote};
use mini_gda::{Gda, GdaAttr};
use rdma::soft::{Engine, Fabric, FabricAttr};
use rdma::{Access, ConnectAttr, Memory, Nic, Region};
use softnic::{Caps, Clock, NicConfig};

/// Indices from which the 16-bit and the 32-bit ones wrap at once.
pub const STARTS: [u64; 3] = [0, (1 << 16) - 3, (1 << 32) - 5];

pub struct Options {
    pub choice: Choice,
    pub log_blocks: u32,
    pub start: u64,
    pub engine: Engine,
    pub clock: Clock,
    pub config: NicConfig,
    pub deadline: Duration,
    pub bytes: usize,
    pub connect: ConnectAttr,
}

impl Default for Options {
    fn default() -> Self {
        let caps =
            Caps { max_qps: 8, max_cqs: 16, max_dc_contexts: 8, max_mrs: 16, ..Caps::default() };
        Self {
            choice: Choice::default(),
            log_blocks: 4,
            start: 0,
            engine: Engine::Stepped,
            clock: Clock::Real,
            config: NicConfig { caps, ..NicConfig::default() },
            // Long: a loaded machine may keep a thread from running for a while.
            deadline: Duration::from_secs(60),
            bytes: 1 << 16,
            connect: ConnectAttr::default(),
        }
    }
}

pub struct Rig {
    pub fabric: Fabric,
    pub gda: Gda,
    pub near: Region,
    pub far: Region,
    pub choice: Choice,
}

impl Rig {
    pub fn new(options: Options) -> Self {
        let attr = FabricAttr {
            nics: 2,
            engine: options.engine,
            clock: options.clock,
            config: options.config,
        };
        let fabric = Fabric::open(&attr).unwrap();
        let near = fabric.nic(0).register(&Memory::zeroed(options.bytes), Access::empty()).unwrap();
        let far = fabric.nic(1).register(&Memory::zeroed(options.bytes), Access::all()).unwrap();
        let attr = GdaAttr {
            log_blocks: options.log_blocks,
            choice: options.choice,
            deadline: options.deadline,
            start: options.start,
            connect: options.connect,
            ..GdaAttr::default()
        };
        let gda = Gda::connect(fabric.nic(0).as_ref(), fabric.nic(1).as_ref(), &attr).unwrap();
        Self { fabric, gda, near, far, choice: options.choice }
    }

    pub fn local(&self, offset: u64, bytes: u64) -> Local {
        Local { address: self.near.at(offset, bytes).unwrap(), lkey: self.near.lkey }
    }

    pub fn remote(&self, offset: u64, bytes: u64) -> Remote {
        Remote { address: self.far.at(offset, bytes).unwrap(), rkey: self.far.rkey }
    }

    pub fn near_word(&self, offset: u64) -> u64 {
        self.near.memory.word(offset as usize).load(Ordering::Acquire)
    }

    pub fn far_word(&self, offset: u64) -> u64 {
        self.far.memory.word(offset as usize).load(Ordering::Acquire)
    }

    pub fn set_near(&self, offset: u64, value: u64) {
        self.near.memory.word(offset as usize).store(value, Ordering::Release);
    }

    pub fn set_far(&self, offset: u64, value: u64) {
        self.far.memory.word(offset as usize).store(value, Ordering::Release);
    }

    /// Runs a program with the queue's own choice.
    pub fn run(&self, steps: &[Step]) -> Vec<Done> {
        self.run_as(&self.choice, steps)
    }

    pub fn run_as(&self, choice: &Choice, steps: &[Step]) -> Vec<Done> {
        let relax = self.gda.relax(self.fabric.nic(0).as_ref());
        // SAFETY: the rig owns what its views and addresses lead to.
        unsafe {
            program::run(choice, &self.gda.views()[0], steps, self.gda.address_vector(), &relax)
        }
        .unwrap()
    }

    /// Lets the NICs come to rest.
    pub fn settle(&self) {
        while self.fabric.engine().try_step(256) {}
    }

    /// WQEs that the NIC executed, once it is clear that it saw its client do nothing wrong.
    pub fn wqes(&self) -> u64 {
        let nic = self.fabric.nic(0);
        assert_eq!(nic.findings().unwrap(), [], "the NIC saw its client do wrong");
        nic.counters().unwrap().wqes
    }
}

/// Every choice that programs are built for.
pub fn choices() -> Vec<Choice> {
    let mut all = Vec::new();
    for sharing in [Sharing::Exclusive, Sharing::Thread] {
        for &cq_kind in CqKind::ALL {
            let base = Choice { sharing, cq_kind, ..Choice::default() };
            for &order in Order::ALL.iter().filter(|order| **order != Order::AsyncMmio) {
                all.push(Choice { order, ..base });
            }
            for rings in [Ringing::Threshold, Ringing::Deferred, Ringing::EveryNth] {
                all.push(ringing(base, rings));
            }
            for &rings in Ringing::ALL {
                all.push(Choice { checked: 1, ..ringing(base, rings) });
            }
            all.push(Choice { cq_load: CqLoad::Plain, ..base });
            all.push(Choice { max_blocks: 5, ..base });
            all.push(Choice { max_blocks: 5, transport: Transport::Dc, ..base });
        }
    }
    all
}

pub fn ringing(choice: Choice, ringing: Ringing) -> Choice {
    let signalling = match ringing {
        Ringing::Deferred | Ringing::EveryNth => Signalling::OnRequest,
        Ringing::Each | Ringing::Threshold => Signalling::Every,
    };
    Choice { ringing, signalling, ..choice }
}
