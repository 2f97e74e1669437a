//! What is dropped is gone from the NIC, and what is still held is not.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use rdma::soft::{Fabric, FabricAttr};
use rdma::{Access, Error, Memory, Nic, QueuePairAttr};
use softnic::{Caps, CreateError, NicConfig};

fn fabric(caps: Caps) -> Fabric {
    let config = NicConfig { caps, ..NicConfig::default() };
    Fabric::open(&FabricAttr { config, ..FabricAttr::default() }).unwrap()
}

#[test]
fn a_region_that_is_dropped_makes_room_for_the_next() {
    let fabric = fabric(Caps { max_mrs: 2, ..Caps::default() });
    let nic = fabric.nic(0);
    let memory = Memory::zeroed(4096);
    let register = || nic.register(&memory, Access::all());
    let held = register().unwrap();
    for _ in 0..3000 {
        let region = register().unwrap();
        assert_ne!(region.rkey, held.rkey);
    }
    let _clone = register().unwrap().clone();
    let full = register().map(drop).unwrap_err();
    let Error::Create { what: "memory region", source: CreateError::TableFull { .. } } = full
    else {
        panic!("{full}");
    };
}

#[test]
fn a_dc_target_that_is_dropped_makes_room_for_the_next() {
    let fabric = fabric(Caps { max_dcts: 1, max_cqs: 1, ..Caps::default() });
    for key in 0..300 {
        fabric.nic(0).create_dc_target(key, Access::all()).unwrap();
    }
}

#[test]
fn a_dc_target_that_cannot_be_made_leaves_nothing_behind() {
    let fabric = fabric(Caps { max_dcts: 1, max_cqs: 2, ..Caps::default() });
    let nic = fabric.nic(0);
    let held = nic.create_dc_target(1, Access::all()).unwrap();
    for _ in 0..3 {
        let full = nic.create_dc_target(2, Access::all()).map(drop).unwrap_err();
        assert!(matches!(full, Error::Create { what: "DC target", .. }), "{full}");
    }
    drop(held);
    nic.create_dc_target(3, Access::all()).unwrap();
}

#[test]
fn a_queue_pair_that_is_dropped_makes_room_for_the_next() {
    let fabric = fabric(Caps { max_qps: 1, max_cqs: 2, max_uars: 1, ..Caps::default() });
    for _ in 0..300 {
        let attr = QueuePairAttr { log_receives: Some(2), ..QueuePairAttr::default() };
        fabric.nic(0).create_queue_pair(&attr).unwrap();
    }
}
