//! A near and a far NIC, their memory, and a proxy between them.
#![allow(dead_code, reason = "each test file uses a part")]

use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;
use std::time::Duration;

use device::host::Relax;
use device::proxy::{Descriptor, Handoff, HostProducer, Producers, ProxyChoice, ProxyOp};
use mini_proxy::{ChannelAttr, Proxy, ProxyAttr};
use rdma::soft::{Engine, Fabric, FabricAttr, SoftNic};
use rdma::{Access, Memory, Nic, Region};

/// Where signals are added, from the end of the far region.
pub const SIGNAL: u64 = 64;

pub struct Rig {
    pub proxy: Proxy,
    pub near: Arc<SoftNic>,
    pub far: Arc<SoftNic>,
    pub local: Region,
    pub remote: Region,
    pub fabric: Fabric,
}

/// Regions of `bytes`, `channels` channels over them, and otherwise `attr`.
pub fn rig(bytes: usize, channels: usize, attr: ProxyAttr) -> Rig {
    rig_on(Engine::Stepped, bytes, channels, attr)
}

pub fn rig_on(engine: Engine, bytes: usize, channels: usize, attr: ProxyAttr) -> Rig {
    let fabric = Fabric::open(&FabricAttr { engine, ..FabricAttr::default() }).unwrap();
    let (near, far) = (fabric.nic(0).clone(), fabric.nic(1).clone());
    let local = near.register(&Memory::zeroed(bytes), Access::empty()).unwrap();
    let remote = far.register(&Memory::zeroed(bytes), Access::all()).unwrap();
    let channel = ChannelAttr {
        local: local.clone(),
        remote: remote.clone(),
        signal: Some((remote.clone(), bytes as u64 - SIGNAL)),
    };
    let attr = ProxyAttr { channels: vec![channel; channels], ..attr };
    let proxy = Proxy::connect(near.clone(), far.as_ref(), &attr).unwrap();
    Rig { proxy, near, far, local, remote, fabric }
}

impl Rig {
    pub fn signal(&self) -> u64 {
        self.remote.memory.word(self.remote.length as usize - SIGNAL as usize).load(Acquire)
    }

    /// A producer on ring `ring`. With one producer a ring it must be the only one.
    pub fn producer<'a>(
        &'a self,
        choice: ProxyChoice,
        ring: usize,
        relax: &'a dyn Relax,
    ) -> HostProducer<'a> {
        // SAFETY: the rig outlives it; tests keep to the choice.
        unsafe { HostProducer::new(choice, &self.proxy.views()[ring], Some(relax)) }.unwrap()
    }
}

pub fn choice(handoff: Handoff, producers: Producers) -> ProxyChoice {
    ProxyChoice { handoff, producers, ..ProxyChoice::default() }
}

/// Fetch-add number `i` of a thread: adds `i + 1` to word `word`, and leaves what was there in slot `slot`.
pub fn add(i: u64, word: u64, slot: u64) -> Descriptor {
    Descriptor {
        op: ProxyOp::FetchAdd,
        size: i + 1,
        source: 8 * slot,
        destination: 8 * word,
        ..Descriptor::default()
    }
}

pub fn short() -> Duration {
    Duration::from_millis(100)
}
