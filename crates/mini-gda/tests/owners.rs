//! A transport that is dropped leaves nothing on its NICs.
#![allow(clippy::unwrap_used, reason = "tests")]

use device::choice::{Choice, Transport};
use mini_gda::{Gda, GdaAttr};
use rdma::soft::{Fabric, FabricAttr};

#[test]
fn transports_come_and_go_on_one_fabric() {
    for transport in [Transport::Rc, Transport::Dc] {
        let fabric = Fabric::open(&FabricAttr::default()).unwrap();
        let choice = Choice { transport, ..Choice::default() };
        let attr = GdaAttr { choice, qps: 2, log_blocks: 2, ..GdaAttr::default() };
        for _ in 0..300 {
            let gda = Gda::connect(fabric.nic(0).as_ref(), fabric.nic(1).as_ref(), &attr).unwrap();
            assert_eq!(gda.address_vector().is_null(), transport == Transport::Rc);
        }
    }
}
