//! Commands in the device's own format: what they make, and what they are refused for.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod refused;
#[path = "../rig/mod.rs"]
mod rig;
mod side;

use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rig::*;
use side::*;
use uverbs::{ClientMemory, DeviceConfig, Errno, Fabric, Host, LinkLayer, Settings};
use wire::cqe::{CqeOpcode, Syndrome};
use wire::devx::{
    Field, Opcode, cap, cqc, create_dct, create_qp, dctc, qpc, query_cq, query_hca_cap, query_qp,
    query_roce_address, roce_cap,
};
use wire::wqe::{AddressVector, Atomic, Ctrl, CtrlFlags, Data, Raddr};
use zerocopy::{FromZeros, IntoBytes};

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
    // The first half of a page alone.
    let half = side.general(Opcode::QueryHcaCap, 1, 16 + 256).unwrap();
    assert_eq!(cap::RC.within(query_hca_cap::CAPABILITY).get(&half), 1);
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
fn a_port_of_infiniband_says_its_lid_and_one_of_ethernet_nothing() {
    use wire::devx::query_hca_vport_context as port;
    let mut side = Side::new(LinkLayer::InfiniBand);
    let answer = side.general(Opcode::QueryHcaVportContext, 0, port::OUT).unwrap();
    assert_eq!((port::LID.get(&answer), port::PORT_STATE.get(&answer)), (1, 4));
    let mut side = Side::new(LinkLayer::Ethernet);
    let refused = side.general(Opcode::QueryHcaVportContext, 0, port::OUT);
    assert_eq!(refused, Err(Errno::EREMOTEIO));
}

#[test]
fn general_commands_are_refused_by_whoever_should() {
    for (layer, opcode, op_mod, room, expected) in [
        (LinkLayer::Ethernet, Opcode::CreateQp, 0, 4112, Errno::EINVAL),
        (LinkLayer::Ethernet, Opcode::QueryRoceAddress, 0, 47, Errno::EREMOTEIO),
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
fn what_commands_make_receives_from_a_shared_queue_that_verbs_made() {
    for dc in [false, true] {
        let mut side = Side::new(LinkLayer::InfiniBand);
        let at = BASE + 0x8000;
        let made = side.client.write(32, &srq_body(side.pd, at), 24).unwrap();
        let (srq, srqn) = (u32_at(&made, 0), u32_at(&made, 12));
        let place = Data::new(PAYLOAD + 512, 64, side.lkey);
        let wqe = [&[0; 16], place.as_bytes(), Data::TERMINATOR.as_bytes()].concat();
        side.client.memory.write(at, &wqe).unwrap();
        side.client.memory.write(at + 2048, &1u32.to_be_bytes()).unwrap();

        let (_, cqn) = side.cq();
        let mut command = side.qp_command(cqn);
        let target = if dc {
            qpc::ST.within(create_qp::QPC).set(&mut command, u64::from(qpc::service::DCI));
            let mut target = side.dct_command(cqn);
            dctc::SRQN.within(create_dct::DCTC).set(&mut target, u64::from(srqn));
            dctc::USER_INDEX.within(create_dct::DCTC).set(&mut target, 9);
            side.create(&target).unwrap()
        } else {
            qp(qpc::RQ_TYPE).set(&mut command, u64::from(qpc::rq_type::SHARED));
            qp(qpc::SRQN).set(&mut command, u64::from(srqn));
            // Where sends are behind a queue of its own.
            create_qp::WQ_UMEM_OFFSET.set(&mut command, 64);
            (0, 0)
        };
        let (handle, qpn) = side.create(&command).unwrap();
        for step in 0..3 {
            side.modify(handle, &step_command(step, qpn, qpn)).unwrap();
        }
        let vector = AddressVector {
            key: 0xdc.into(),
            dqp_dct: (target.1 | wire::wqe::AV_EXTENDED).into(),
            rlid: u16::to_be_bytes(1),
            ..AddressVector::new_zeroed()
        };
        side.client.memory.write(PAYLOAD, b"greeting").unwrap();
        let from = Data::new(PAYLOAD, 8, side.lkey);
        let segments: &[&[u8]] = &[vector.as_bytes(), from.as_bytes()];
        let segments = if dc { segments } else { &segments[1..] };
        let (ds, blocks) = if dc { (5, 2) } else { (2, 1) };
        let send = Ctrl::new(wire::wqe::Opcode::Send, 0, qpn, ds, CtrlFlags::CQ_UPDATE, 0);
        side.post_blocks(&send, 0, blocks, segments);

        let received = side.cqe(0);
        assert_eq!(received.opcode(), Some(CqeOpcode::ResponderSend), "DC {dc}");
        assert_eq!(received.user_index(), if dc { 9 } else { 7 }, "DC {dc}");
        assert_eq!(side.cqe(1).opcode(), Some(CqeOpcode::Requester), "DC {dc}");
        let mut landed = [0; 8];
        side.client.memory.read(PAYLOAD + 512, &mut landed).unwrap();
        assert_eq!(&landed, b"greeting");
        // It stays as long as it is used.
        let destroy = [&[0; 8][..], &srq.to_ne_bytes(), &[0; 4]].concat();
        assert_eq!(side.client.write(35, &destroy, 4), Err(Errno::EBUSY));
    }
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

/// Two processes' devices on one fabric.
fn two(link_layer: LinkLayer) -> [Side; 2] {
    let file = Fabric::create().unwrap();
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    [0, 1].map(|_| {
        let devices = DeviceConfig::several(1, link_layer);
        Side::of(Host::stepped(Fabric::open(Path::new(&path)).unwrap(), Settings::of(devices)))
    })
}

#[test]
fn a_dc_initiator_finds_targets_in_its_own_process_and_in_another() {
    for (layer, lid, other_lid, syndrome) in [
        (LinkLayer::InfiniBand, 1, 1, None),
        // Nothing is at this address: the retries go nowhere.
        (LinkLayer::InfiniBand, 1, 77, Some(Syndrome::TransportRetryExceeded)),
        // On Ethernet this is no LID, and whatever it holds isn't looked at.
        (LinkLayer::Ethernet, 0, 0xc123, None),
    ] {
        let [mut a, mut b] = two(layer);
        let (_, cqn) = a.cq();
        let mut command = a.qp_command(cqn);
        qpc::ST.within(create_qp::QPC).set(&mut command, u64::from(qpc::service::DCI));
        let (handle, dci) = a.create(&command).unwrap();
        for step in 0..3 {
            let mut command = step_command(step, dci, 0);
            if step == 2 {
                // One retry, of 0.27 s.
                qpc::RETRY_COUNT.within(create_qp::QPC).set(&mut command, 1);
            }
            a.modify(handle, &command).unwrap();
        }
        let (_, own) = a.create(&a.dct_command(cqn)).unwrap();
        let (_, cqn) = b.cq();
        let (_, others) = b.create(&b.dct_command(cqn)).unwrap();
        a.client.memory.write(PAYLOAD, b"greeting").unwrap();
        let sends = [(own, a.rkey, lid), (others, b.rkey, other_lid), (own, a.rkey, lid)];
        let sends = if syndrome.is_some() { &sends[..2] } else { &sends[..] };
        for (index, &(dct, rkey, lid)) in sends.iter().enumerate() {
            let index = index as u64;
            let vector = AddressVector {
                key: 0xdc.into(),
                dqp_dct: (dct | wire::wqe::AV_EXTENDED).into(),
                rlid: u16::to_be_bytes(lid),
                ..AddressVector::new_zeroed()
            };
            let flags = CtrlFlags::CQ_UPDATE;
            let ctrl = Ctrl::new(wire::wqe::Opcode::RdmaWrite, index * 2, dci, 6, flags, 0);
            let to = Raddr::new(PAYLOAD + 64 * (index + 1), rkey);
            let local = Data::new(PAYLOAD, 8, a.lkey);
            let segments = [vector.as_bytes(), to.as_bytes(), local.as_bytes()];
            a.post_blocks(&ctrl, index * 2, 2, &segments);
            let deadline = Instant::now() + Duration::from_secs(10);
            while !a.has_cqe(index) {
                assert!(
                    Instant::now() < deadline,
                    "{layer:?} {other_lid}: no completion of {index}"
                );
                a.host.step();
                b.host.step();
            }
            let is_last = index + 1 == sends.len() as u64;
            let expected = syndrome.filter(|_| is_last);
            let cqe = a.cqe(index);
            let failed = (cqe.opcode() == Some(CqeOpcode::RequesterError)).then(|| cqe.syndrome());
            assert_eq!(failed.flatten(), expected, "{layer:?} {index}");
        }
        let landed = |side: &Side, offset| {
            let mut bytes = [0; 8];
            side.client.memory.read(PAYLOAD + offset, &mut bytes).unwrap();
            &bytes == b"greeting"
        };
        assert!(landed(&a, 64));
        assert_eq!(landed(&b, 128), syndrome.is_none());
        assert_eq!(landed(&a, 192), syndrome.is_none());
    }
}
