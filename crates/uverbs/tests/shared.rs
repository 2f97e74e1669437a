//! Shared receive queues, domains of extended connections, DC targets and other kinds of queue pairs, by the calls that
//! the libraries make.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod rig;

use rig::*;
use uverbs::{Errno, LinkLayer};

/// The body of a CREATE_XSRQ of the same size.
fn xsrq_body(pd: u32, xrcd: u32, cq: u32, at: u64) -> Vec<u8> {
    let mut body = vec![0; 48 + 32];
    for (offset, value) in [(16, 1), (20, pd), (24, 15), (28, 3), (40, xrcd), (44, cq)] {
        put(&mut body, offset, &value.to_ne_bytes());
    }
    put(&mut body, 48, &at.to_ne_bytes());
    put(&mut body, 56, &(at + 2048).to_ne_bytes());
    body
}

fn open_xrcd(client: &mut Client) -> u32 {
    let mut body = vec![0; 16];
    put(&mut body, 8, &(-1i32).to_ne_bytes());
    u32_at(&client.write(37, &body, 4).unwrap(), 0)
}

fn handle_and_response(handle: u32) -> Vec<u8> {
    let mut body = vec![0; 16];
    put(&mut body, 8, &handle.to_ne_bytes());
    body
}

#[test]
fn shared_queues_are_checked_as_a_kernel_does() {
    let host = host(LinkLayer::InfiniBand);
    let mut client = Client::ready(&host);
    let (pd, (_, page)) = (client.pd(), client.uar());
    let cq = client.cq(BASE, -1).unwrap();
    let at = BASE + 0x1_0000;
    let good = srq_body(pd, at);
    let (far, high) = ((u64::MAX - 63).to_ne_bytes(), (1u32 << 15).to_ne_bytes());
    for (what, offset, bytes, errno) in [
        ("an unknown domain", 16, &[99][..], Errno::EINVAL),
        ("a domain that is a queue", 16, &[cq as u8], Errno::EINVAL),
        ("too many places", 20, &high, Errno::EINVAL),
        ("no segments", 24, &[0], Errno::EINVAL),
        ("too many segments", 24, &[32], Errno::EINVAL),
        ("a limit above its size", 28, &[200], Errno::EINVAL),
        ("a queue that isn't there", 32, &far, Errno::EFAULT),
        ("a record that isn't there", 40, &far, Errno::EFAULT),
        ("signatures", 48, &[1], Errno::EOPNOTSUPP),
    ] {
        let mut body = good.clone();
        put(&mut body, offset, bytes);
        assert_eq!(client.write(32, &body, 24), Err(errno), "{what}");
    }
    let made = client.write(32, &good, 24).unwrap();
    let srq = u32_at(&made, 0);
    assert_eq!((u32_at(&made, 4), u32_at(&made, 8)), (15, 3));
    assert_eq!(u32_at(&made, 12), u32_at(&made, 16), "its number, twice");
    for (mask, limit, expected) in
        [(1u32, 0u32, Err(Errno::EINVAL)), (2, 15, Err(Errno::EINVAL)), (2, 14, Ok(()))]
    {
        let words = [33, 6, srq, mask, 30, limit].map(u32::to_ne_bytes).concat();
        assert_eq!(client.raw_write(&words).map(drop), expected, "{mask} {limit}");
    }
    // Nothing is posted: the limit was reached at once.
    let info = client.write(34, &handle_and_response(srq), 16).unwrap();
    assert_eq!([0, 4, 8].map(|at| u32_at(&info, at)), [15, 3, 0]);

    let mut body = qp_body(pd, cq, page, BASE + 4096, BASE + 2048);
    put(&mut body, 28, &srq.to_ne_bytes());
    (body[54], body[76], body[80]) = (1, 0, 0);
    let qp = u32_at(&client.write(24, &body, 72).unwrap(), 0);
    let destroy = handle_and_response(srq);
    assert_eq!(client.write(35, &destroy, 4), Err(Errno::EBUSY));
    client.write(27, &handle_and_response(qp), 4).unwrap();
    client.write(35, &destroy, 4).unwrap();
    assert_eq!(client.write(35, &destroy, 4), Err(Errno::EINVAL));
}

#[test]
fn extended_connections_need_a_domain_and_their_receiving_half_has_no_queues() {
    let host = host(LinkLayer::InfiniBand);
    let mut client = Client::ready(&host);
    let (pd, (_, page)) = (client.pd(), client.uar());
    let cq = client.cq(BASE, -1).unwrap();
    let xrcd = open_xrcd(&mut client);
    let at = BASE + 0x1_0000;
    for (xrcd, cq) in [(99, cq), (xrcd, 99), (pd, cq)] {
        assert_eq!(client.write(39, &xsrq_body(pd, xrcd, cq, at), 24), Err(Errno::EINVAL));
    }
    let srq = u32_at(&client.write(39, &xsrq_body(pd, xrcd, cq, at), 24).unwrap(), 0);
    let close = |client: &mut Client| client.write(38, &xrcd.to_ne_bytes(), 0).map(drop);
    assert_eq!(close(&mut client), Err(Errno::EBUSY));
    assert_eq!(client.method(3, 1, &[Attr::Handle(0, cq), Attr::Out(1, 8)]), Err(Errno::EBUSY));
    let mut target = vec![0; 56 + 56];
    put(&mut target, 16, &xrcd.to_ne_bytes());
    target[53] = 10;
    let target = u32_at(&client.write(24, &target, 72).unwrap(), 0);
    let mut sender = qp_body(pd, cq, page, BASE + 4096, BASE + 2048);
    (sender[53], sender[76], sender[80]) = (9, 0, 0);
    let sender = u32_at(&client.write(24, &sender, 72).unwrap(), 0);
    client.write(35, &handle_and_response(srq), 4).unwrap();
    assert_eq!(close(&mut client), Err(Errno::EBUSY), "the receiving half is there");
    for qp in [target, sender] {
        client.write(27, &handle_and_response(qp), 4).unwrap();
    }
    close(&mut client).unwrap();
    assert_eq!(close(&mut client), Err(Errno::EINVAL));
}

/// Bits of MODIFY_QP.
const STATE: u32 = 1;

#[test]
fn each_kind_of_queue_pair_has_its_own_way_from_state_to_state() {
    let host = host(LinkLayer::InfiniBand);
    let mut client = Client::ready(&host);
    let (pd, (_, page)) = (client.pd(), client.uar());
    let cq = client.cq(BASE, -1).unwrap();
    // PKEY 0x10, PORT 0x20, QKEY 0x40, AV 0x80, MTU 0x100, TIMEOUT 0x200, RETRY 0x400, RNR 0x800, RQ_PSN 0x1000,
    // MAX_RD 0x2000, MIN_RNR 0x8000, SQ_PSN 0x1_0000, MAX_DEST_RD 0x2_0000, DEST_QPN 0x10_0000.
    for (kind, steps) in [
        (2, [0x38, 0x12_9180, 0x1_2e00]),
        (3, [0x38, 0x10_1180, 0x1_0000]),
        (4, [0x70, 0, 0x1_0000]),
        (9, [0x38, 0x10_1180, 0x1_2e00]),
        (0xff, [0x30, 0x100, 0x1_2e00]),
    ] {
        let mut body = qp_body(pd, cq, page, BASE + 4096, BASE + 2048);
        body[53] = kind;
        if kind == 0xff {
            put(&mut body, 84, &(1u32 << 10 | 1 << 5).to_ne_bytes());
        }
        let made = client.write(24, &body, 72).unwrap();
        let (qp, qpn) = (u32_at(&made, 0), u32_at(&made, 4));
        for (must, to) in steps.into_iter().zip(1u8..) {
            // Without any one of what must be there, the step isn't made.
            for bit in (1..32).map(|bit| 1u32 << bit).filter(|bit| must & bit != 0) {
                let body = modify_body(qp, STATE | must & !bit, to, qpn);
                let got = client.write(26, &body, 0).map(drop);
                assert_eq!(got, Err(Errno::EINVAL), "{kind} to {to} without {bit:#x}");
            }
            let body = modify_body(qp, STATE | must | 1 << 31, to, qpn);
            assert_eq!(client.write(26, &body, 0).map(drop), Err(Errno::EINVAL), "{kind} {to}");
            client.write(26, &modify_body(qp, STATE | must, to, qpn), 0).unwrap();
        }
        for to in [4, 3, 6, 0] {
            client.write(26, &modify_body(qp, STATE, to, qpn), 0).unwrap();
        }
        client.write(27, &handle_and_response(qp), 4).unwrap();
    }
}

#[test]
fn a_dc_target_gets_its_number_when_it_begins_to_answer() {
    let host = host(LinkLayer::InfiniBand);
    let mut client = Client::ready(&host);
    let pd = client.pd();
    let cq = client.cq(BASE, -1).unwrap();
    let srq = u32_at(&client.write(32, &srq_body(pd, BASE + 0x1_0000), 24).unwrap(), 0);
    let mut body = qp_body(pd, cq, 0, BASE + 4096, BASE + 2048);
    put(&mut body, 28, &srq.to_ne_bytes());
    put(&mut body, 84, &(1u32 << 4).to_ne_bytes());
    (body[53], body[54]) = (0xff, 0);
    assert_eq!(client.write(24, &body, 72), Err(Errno::EINVAL), "no shared queue");
    body[54] = 1;
    let made = client.write(24, &body, 72).unwrap();
    let (dct, number) = (u32_at(&made, 0), u32_at(&made, 4));
    assert_eq!(number, 0);
    // The extended form, whose answer has a driver's part.
    let modify = |client: &mut Client, mask: u32, state: u8| {
        let core = [modify_body(dct, STATE | mask, state, 0), vec![0; 8]].concat();
        let mut frame = (26u32 | 0x8000_0000).to_ne_bytes().to_vec();
        frame.extend((core.len() as u16 / 8).to_ne_bytes());
        frame.extend(1u16.to_ne_bytes());
        frame.extend(ANSWER.to_ne_bytes());
        frame.extend(0u16.to_ne_bytes());
        frame.extend(2u16.to_ne_bytes());
        frame.extend(0u32.to_ne_bytes());
        frame.extend(core);
        client.raw_write(&frame).map(|_| {
            let mut answer = [0; 24];
            uverbs::ClientMemory::read(&client.memory, ANSWER, &mut answer).unwrap();
            u32_at(&answer, 12)
        })
    };
    assert_eq!(modify(&mut client, 0x8180, 2), Err(Errno::EINVAL), "not from RESET");
    assert_eq!(modify(&mut client, 0x30, 1), Err(Errno::EINVAL), "without access flags");
    assert_eq!(modify(&mut client, 0x38, 1), Ok(0));
    let number = modify(&mut client, 0x8180, 2).unwrap();
    assert!(number > 0xffff, "{number:#x}");
    assert_eq!(modify(&mut client, 0x1_2e00, 3), Err(Errno::EINVAL), "it sends nothing");
    assert_eq!(client.write(35, &handle_and_response(srq), 4), Err(Errno::EBUSY));
    assert_eq!(client.write(4, &pd.to_ne_bytes(), 0), Err(Errno::EBUSY));
    let state = client.write(25, &[handle_and_response(dct)].concat(), 128).unwrap()[108];
    assert_eq!(state, 2);
    client.write(27, &handle_and_response(dct), 4).unwrap();
    client.write(35, &handle_and_response(srq), 4).unwrap();
}

#[test]
fn a_region_that_is_registered_again_keeps_its_keys_and_what_isnt_changed() {
    let host = host(LinkLayer::InfiniBand);
    let mut client = Client::ready(&host);
    let (pd, other) = (client.pd(), client.pd());
    let made = client.write(9, &mr_body(pd, BASE, 4096, BASE, 1), 12).unwrap();
    let (mr, lkey) = (u32_at(&made, 0), u32_at(&made, 4));
    let again = |client: &mut Client, flags: u32, start: u64, length: u64, pd: u32, access: u32| {
        let mut body = vec![0; 48];
        put(&mut body, 8, &mr.to_ne_bytes());
        put(&mut body, 12, &flags.to_ne_bytes());
        put(&mut body, 16, &start.to_ne_bytes());
        put(&mut body, 24, &length.to_ne_bytes());
        put(&mut body, 32, &start.to_ne_bytes());
        put(&mut body, 40, &pd.to_ne_bytes());
        put(&mut body, 44, &access.to_ne_bytes());
        client.write(11, &body, 8).map(|answer| u32_at(&answer, 0))
    };
    for (what, flags, start, pd, access) in [
        ("nothing", 0, BASE, pd, 1),
        ("something that there isn't", 8, BASE, pd, 1),
        ("no domain", 2, BASE, 99, 1),
        ("memory that isn't there", 1, BASE + LEN as u64, pd, 1),
        ("remote writes without local ones", 4, BASE, pd, 2),
    ] {
        assert!(again(&mut client, flags, start, 4096, pd, access).is_err(), "{what}");
    }
    assert_eq!(again(&mut client, 2, 0, 0, other, 0), Ok(lkey));
    // It belongs to the other domain now.
    client.write(4, &pd.to_ne_bytes(), 0).unwrap();
    assert_eq!(client.write(4, &other.to_ne_bytes(), 0), Err(Errno::EBUSY));
    again(&mut client, 5, BASE + 8192, 8192, 0, 0xf).unwrap();
    let query = [Attr::Handle(0, mr), Attr::Out(1, 4), Attr::Out(2, 4), Attr::Out(3, 8)];
    let (_, outputs) = client.method(7, 3, &query).unwrap();
    assert_eq!(outputs[2], 8192u64.to_ne_bytes());
    client.method(7, 1, &[Attr::Handle(0, mr)]).unwrap();
}
