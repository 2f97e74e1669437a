//! Commands in the device's own format: what they make, and what they are refused for.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod refused;
#[path = "../rig/mod.rs"]
mod rig;
mod side;

use rig::*;
use side::*;
use uverbs::{ClientMemory, Errno, LinkLayer};
use wire::cqe::{CqeOpcode, Syndrome};
use wire::devx::{
    Field, Opcode, cap, cqc, qpc, query_cq, query_hca_cap, query_qp, query_roce_address, roce_cap,
};
use wire::wqe::{Atomic, Ctrl, CtrlFlags, Data, Raddr};
use zerocopy::IntoBytes;

#[test]
fn the_capabilities_are_those_of_the_data_path() {
    let mut side = Side::new(LinkLayer::Ethernet);
    for mode in [0, 1] {
        let page = side.general(Opcode::QueryHcaCap, mode, query_hca_cap::OUT).unwrap();
        let cap = |field: Field| field.within(query_hca_cap::CAPABILITY).get(&page);
        for (field, value) in [
            (cap::LOG_MAX_QP_SZ, 15),
            (cap::LOG_MAX_CQ_SZ, 22),
            (cap::LOG_MAX_RA_REQ_QP, 4),
            (cap::CQE_VERSION, 1),
            (cap::PORT_TYPE, 1),
            (cap::LOG_BF_REG_SIZE, 9),
            (cap::GID_TABLE_SIZE, 1),
            (cap::RC, 1),
            (cap::DCT, 1),
        ] {
            assert_eq!(cap(field), value, "{field:?}");
        }
    }
    let page = side.general(Opcode::QueryHcaCap, 4 << 1, query_hca_cap::OUT).unwrap();
    let port = roce_cap::R_ROCE_DEST_UDP_PORT.within(query_hca_cap::CAPABILITY);
    assert_eq!(port.get(&page), 4791);
    let mut command = short(Opcode::QueryRoceAddress, 0);
    query_roce_address::INDEX.set(&mut command, 3);
    let answer = side.send((DEVX, DRIVER), None, &command, query_roce_address::OUT).unwrap().1;
    assert_eq!(query_roce_address::GID_LOW.get(&answer), 0xffff_c0a8_8201);
    assert_eq!(query_roce_address::ROCE_VERSION.get(&answer), 2);
}

#[test]
fn general_commands_are_refused_by_whoever_should() {
    for (layer, opcode, op_mod, room, expected) in [
        (LinkLayer::Ethernet, Opcode::CreateQp, 0, 4112, Errno::EINVAL),
        (LinkLayer::Ethernet, Opcode::QueryHcaCap, 0, 4111, Errno::EREMOTEIO),
        (LinkLayer::Ethernet, Opcode::QueryHcaCap, 0, 15, Errno::EINVAL),
        (LinkLayer::Ethernet, Opcode::QueryHcaCap, 0x7f << 1, 4112, Errno::EREMOTEIO),
        // A device of InfiniBand says nothing of RoCE.
        (LinkLayer::InfiniBand, Opcode::QueryHcaCap, 4 << 1, 4112, Errno::EREMOTEIO),
        (LinkLayer::InfiniBand, Opcode::QueryRoceAddress, 0, 64, Errno::EREMOTEIO),
        (LinkLayer::Ethernet, Opcode::QueryIssi, 0, 112, Errno::EREMOTEIO),
    ] {
        let mut side = Side::new(layer);
        let refused = side.general(opcode, op_mod, room);
        assert_eq!(refused, Err(expected), "{opcode:?} {op_mod:#x} {room}");
    }
}

#[test]
fn a_context_that_did_not_ask_for_devx_only_learns_what_there_is() {
    let host = host(LinkLayer::InfiniBand);
    let mut client = Client::ready(&host);
    let command = |opcode| Attr::Bytes(DRIVER, short(opcode, 0));
    let out = |room| Attr::Out(DRIVER + 1, room);
    assert!(client.method(DEVX, DRIVER, &[command(Opcode::QueryHcaCap), out(4112)]).is_ok());
    let refused = client.method(DEVX, DRIVER, &[command(Opcode::Nop), out(16)]);
    assert_eq!(refused.unwrap_err(), Errno::EINVAL);
    assert_eq!(umem(&mut client, BASE, 4096, 1).unwrap_err(), Errno::EINVAL);
}

#[test]
fn memory_for_queues_is_checked_as_a_kernel_checks_it() {
    let mut side = Side::new(LinkLayer::InfiniBand);
    for (address, len, access, expected) in [
        (BASE, 0, 1, Errno::EINVAL),
        (BASE, u64::MAX, 1, Errno::EINVAL),
        (BASE + LEN as u64 - 4096, 8192, 1, Errno::EFAULT),
        (BASE, 4096, 2, Errno::EINVAL),
        (BASE, 4096, 1 << 15, Errno::EINVAL),
        (BASE, 4096, 1 | 1 << 6, Errno::EOPNOTSUPP),
    ] {
        let refused = umem(&mut side.client, address, len, access);
        assert_eq!(refused.unwrap_err(), expected, "{address:#x} + {len:#x}, {access:#x}");
    }
    // A dmabuf leads to memory that this device has no way to; what is no descriptor is told apart.
    for (fd, expected) in [(0, Errno::EOPNOTSUPP), (9999, Errno::EBADF)] {
        let mut attrs = umem_attrs(0, 4096, 1);
        attrs.push(Attr::Number(DRIVER + 6, 4, fd));
        assert_eq!(side.client.method(UMEM, DRIVER, &attrs).unwrap_err(), expected);
    }
    // No page that the client allows is one of this device's.
    let mut attrs = umem_attrs(BASE, 4096, 1);
    attrs.push(Attr::Number(DRIVER + 5, 8, 0x800));
    assert_eq!(side.client.method(UMEM, DRIVER, &attrs).unwrap_err(), Errno::EINVAL);
}

#[test]
fn events_are_not_offered() {
    let mut side = Side::new(LinkLayer::InfiniBand);
    for (object, method) in [(DEVX, DRIVER + 3), (DRIVER + 4, DRIVER), (DRIVER + 5, DRIVER)] {
        let refused = side.client.method(object, method, &[Attr::Handle(DRIVER, 0)]);
        assert_eq!(refused.unwrap_err(), Errno::EOPNOTSUPP);
    }
}

#[test]
fn a_put_an_atomic_and_an_error_go_through_what_commands_made() {
    let mut side = Side::new(LinkLayer::InfiniBand);
    let [(cq, cqn), (handle, qpn)] = side.pair();
    let lkey = side.lkey;
    side.client.memory.write(PAYLOAD, b"greeting").unwrap();
    let ctrl = |opcode, index, ds| Ctrl::new(opcode, index, qpn, ds, CtrlFlags::CQ_UPDATE, 0);
    let local = |offset| Data::new(PAYLOAD + offset, 8, lkey);

    let to = Raddr::new(PAYLOAD + 64, side.rkey);
    let put = ctrl(wire::wqe::Opcode::RdmaWrite, 0, 3);
    side.post(&put, 0, &[to.as_bytes(), local(0).as_bytes()]);
    let cqe = side.cqe(0);
    assert_eq!((cqe.opcode(), cqe.qpn()), (Some(CqeOpcode::Requester), qpn));
    assert_eq!(cqe.user_index(), 7);

    let to = Raddr::new(PAYLOAD + 128, side.rkey);
    let add = ctrl(wire::wqe::Opcode::AtomicFa, 1, 4);
    side.post(
        &add,
        1,
        &[
            to.as_bytes(),
            Atomic { swap_add: 5.into(), compare: 0.into() }.as_bytes(),
            local(136).as_bytes(),
        ],
    );
    assert_eq!(side.cqe(1).opcode(), Some(CqeOpcode::Requester));

    let mut landed = [0; 80];
    side.client.memory.read(PAYLOAD + 64, &mut landed).unwrap();
    assert_eq!(
        (&landed[..8], u64::from_be_bytes(*landed[64..].first_chunk().unwrap())),
        (&b"greeting"[..], 5u64.to_be())
    );

    let answer = side.query(handle, Opcode::QueryQp, qpn, query_qp::OUT);
    let of = |field: Field| field.within(query_qp::QPC).get(&answer);
    assert_eq!((of(qpc::STATE), of(qpc::HW_SQ_WQEBB_COUNTER), of(qpc::LOG_SQ_SIZE)), (3, 2, 4));
    assert_eq!((of(qpc::REMOTE_QPN), of(qpc::RWE), of(qpc::RRE)), (u64::from(qpn), 1, 0));

    // A key that the device never gave.
    let put = ctrl(wire::wqe::Opcode::RdmaWrite, 2, 3);
    side.post(&put, 2, &[to.as_bytes(), Data::new(PAYLOAD, 8, 0x1234_5600).as_bytes()]);
    let cqe = side.cqe(2);
    assert_eq!(cqe.opcode(), Some(CqeOpcode::RequesterError));
    assert_eq!(cqe.syndrome(), Some(Syndrome::LocalProtection));
    let answer = side.query(handle, Opcode::QueryQp, qpn, query_qp::OUT);
    assert_eq!(qpc::STATE.within(query_qp::QPC).get(&answer), 6);

    let answer = side.query(cq, Opcode::QueryCq, cqn, query_cq::OUT);
    assert_eq!(cqc::PRODUCER_COUNTER.within(query_cq::CQC).get(&answer), 3);

    // And again from the beginning.
    side.modify(handle, &short(Opcode::Qp2Rst, qpn)).unwrap();
    side.modify(handle, &step_command(0, qpn, qpn)).unwrap();
}

#[test]
fn what_is_used_stays_until_its_users_are_gone() {
    let mut side = Side::new(LinkLayer::InfiniBand);
    let [(cq, _), (handle, _)] = side.pair();
    let pd = side.pd;
    let umem = side.umem_handle;
    let free =
        |side: &mut Side| side.client.method(UMEM, DRIVER + 1, &[Attr::Handle(DRIVER, umem)]);
    assert_eq!(side.destroy(cq), Err(Errno::EBUSY));
    assert_eq!(free(&mut side).unwrap_err(), Errno::EBUSY);
    let refused = side.client.method(1, 0, &[Attr::Handle(0, pd)]);
    assert_eq!(refused.unwrap_err(), Errno::EBUSY);
    side.destroy(handle).unwrap();
    side.destroy(cq).unwrap();
    free(&mut side).unwrap();
    assert_eq!(side.destroy(handle), Err(Errno::ENOENT));
    // A context that ends takes all of it along, in an order that works.
    let mut other = Side::new(LinkLayer::InfiniBand);
    other.pair();
    drop(other);
}
