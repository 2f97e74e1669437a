//! What only an engine on a GPU does: skipped where there is none.

use std::sync::Arc;
use std::time::Duration;

use device::cuda::Gpu;
use rdma::soft_gpu::{EngineOn, Fabric};
use rdma::{Error, Place, QueuePairAttr};

use crate::pair::{Rig, hasty, ring_attr};
use crate::rig::{Kind, World, kinds};

/// Where a NIC polls records it goes on without a ring, as hardware doesn't: it says so.
#[test]
fn a_record_without_a_ring_is_found() {
    for kind in &kinds() {
        let Kind::Gpu(gpu) = kind else { continue };
        let mut rig = Rig::new(kind);
        let page = rdma::memory(&Place::Pinned(gpu.clone()), 4096).unwrap();
        let attr = QueuePairAttr { doorbell_page: Some(page), ..ring_attr() };
        let [near, _far] = rig.world.pair(&attr, &hasty());
        let with_page = std::mem::replace(&mut rig.near, near);
        rig.put(0);
        rig.near.ring();
        rig.world.run_for(Duration::from_millis(200));
        assert_eq!(rig.world.nic(0).findings().unwrap(), Vec::<String>::new());
        rig.put(8);
        rig.near.write_record(rig.near.producer);
        rig.world.run_for(Duration::from_millis(500));
        assert!(rig.has(0, 16));
        let findings = rig.world.nic(0).findings().unwrap();
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert!(findings[0].contains("no doorbell was rung for it"), "{findings:?}");
        drop(with_page);
    }
}

/// The GPU that the suite runs on, if there is one.
fn gpu() -> Option<Arc<Gpu>> {
    kinds().into_iter().find_map(|kind| match kind {
        Kind::Gpu(gpu) => Some(gpu),
        _ => None,
    })
}

#[test]
fn an_engine_whose_host_falls_silent_ends_by_itself_and_says_so() {
    let Some(gpu) = gpu() else { return };
    let fabric = Fabric::open(EngineOn::Gpu(Arc::clone(&gpu), 2)).unwrap();
    let mut running = fabric.start().unwrap();
    running.fall_silent();
    std::thread::sleep(Duration::from_secs(4));
    assert!(running.is_over(), "the engine outlives its lease");
    assert!(matches!(running.stop(), Err(Error::LeaseExpired)));
    // It can be started again, and is told to end this time.
    fabric.start().unwrap().stop().unwrap();
    drop(World::of(Kind::Gpu(gpu), fabric));
}
