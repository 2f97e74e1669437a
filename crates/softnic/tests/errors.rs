//! What fails, with which syndrome, and what happens to the rest of the queue.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod rig;

use rig::*;
use softnic::*;
use wire::cqe::{Cqe, CqeOpcode, Syndrome};
use wire::wqe::{Ctrl, CtrlFlags, Data, Opcode, Raddr};
use zerocopy::IntoBytes;

fn raddr(rig: &Rig, addr: u64) -> Vec<u8> {
    Raddr::new(addr, rig.b.keys.rkey).as_bytes().to_vec()
}

fn data(rig: &Rig, offset: u64, len: u32) -> Vec<u8> {
    rig.a.data(offset, len).as_bytes().to_vec()
}

/// A WQE: opcode, opmod, ds (`None`: what the body takes), body.
struct Wqe(Opcode, u8, Option<u8>, Vec<u8>);

type Make = fn(&Rig) -> Wqe;

#[test]
fn each_check_has_its_syndrome_and_vendor_byte() {
    let end = REMOTE + REGION as u64;
    let _ = end;
    let cases: &[(&str, Make, Check)] = &[
        ("no segments", |_| Wqe(Opcode::RdmaWrite, 0, Some(0), vec![]), Check::DsZero),
        (
            "write without address",
            |_| Wqe(Opcode::RdmaWrite, 0, Some(1), vec![]),
            Check::DsForOpcode,
        ),
        (
            "atomic without operands",
            |r| Wqe(Opcode::AtomicFa, 0, None, raddr(r, REMOTE)),
            Check::DsForOpcode,
        ),
        ("wait", |_| Wqe(Opcode::Wait, 0, None, vec![0; 16]), Check::Opcode),
        ("dump", |_| Wqe(Opcode::Dump, 0, None, vec![0; 16]), Check::Opcode),
        ("memory key change", |_| Wqe(Opcode::Umr, 0, None, vec![0; 16]), Check::Opcode),
        (
            "inline past the end",
            |r| Wqe(Opcode::RdmaWrite, 0, Some(3), [raddr(r, REMOTE), inline(&[0; 13])].concat()),
            Check::InlineLength,
        ),
        (
            "inline of 2 GiB",
            |r| Wqe(Opcode::RdmaWrite, 0, None, [raddr(r, REMOTE), vec![0xff; 16]].concat()),
            Check::InlineLength,
        ),
        (
            "read into the WQE",
            |r| Wqe(Opcode::RdmaRead, 0, None, [raddr(r, REMOTE), inline(&[0; 8])].concat()),
            Check::DsForOpcode,
        ),
        (
            "atomic mode",
            |r| {
                Wqe(
                    Opcode::AtomicMaskedFa,
                    7,
                    None,
                    [raddr(r, REMOTE), vec![0; 16], data(r, 0, 8)].concat(),
                )
            },
            Check::AtomicMode,
        ),
        (
            "atomic with a short buffer",
            |r| {
                Wqe(
                    Opcode::AtomicFa,
                    0,
                    None,
                    [raddr(r, REMOTE), vec![0; 16], data(r, 0, 4)].concat(),
                )
            },
            Check::AtomicResult,
        ),
        (
            "unknown lkey",
            |r| {
                let bad = Data::new(LOCAL, 8, 0xdead_be00).as_bytes().to_vec();
                Wqe(Opcode::RdmaWrite, 0, None, [raddr(r, REMOTE), bad].concat())
            },
            Check::LocalKey,
        ),
        (
            "rkey for an lkey",
            |r| {
                let bad = Data::new(LOCAL, 8, r.a.keys.rkey).as_bytes().to_vec();
                Wqe(Opcode::RdmaWrite, 0, None, [raddr(r, REMOTE), bad].concat())
            },
            Check::LocalKey,
        ),
        (
            "local bytes out of bounds",
            |r| {
                Wqe(
                    Opcode::RdmaWrite,
                    0,
                    None,
                    [raddr(r, REMOTE), data(r, REGION as u64 - 4, 8)].concat(),
                )
            },
            Check::LocalBounds,
        ),
        (
            "local address wraps",
            |r| {
                let bad = Data::new(u64::MAX - 3, 8, r.a.keys.lkey).as_bytes().to_vec();
                Wqe(Opcode::RdmaWrite, 0, None, [raddr(r, REMOTE), bad].concat())
            },
            Check::LocalBounds,
        ),
        (
            "unknown rkey",
            |_| {
                let bad = Raddr::new(REMOTE, 0).as_bytes().to_vec();
                Wqe(Opcode::RdmaWrite, 0, None, [bad, inline(&[1; 8])].concat())
            },
            Check::RemoteKey,
        ),
        (
            "lkey for an rkey",
            |r| {
                let bad = Raddr::new(REMOTE, r.b.keys.lkey).as_bytes().to_vec();
                Wqe(Opcode::RdmaWrite, 0, None, [bad, inline(&[1; 8])].concat())
            },
            Check::RemoteKey,
        ),
        (
            "remote bytes out of bounds",
            |r| {
                Wqe(
                    Opcode::RdmaWrite,
                    0,
                    None,
                    [raddr(r, REMOTE + REGION as u64 - 7), inline(&[1; 8])].concat(),
                )
            },
            Check::RemoteBounds,
        ),
        (
            "read out of bounds",
            |r| {
                Wqe(
                    Opcode::RdmaRead,
                    0,
                    None,
                    [raddr(r, REMOTE + REGION as u64 - 7), data(r, 0, 8)].concat(),
                )
            },
            Check::RemoteBounds,
        ),
        (
            "a long write that ends out of bounds",
            |r| {
                Wqe(
                    Opcode::RdmaWrite,
                    0,
                    None,
                    [raddr(r, REMOTE + REGION as u64 - 8192), data(r, 0, 8193)].concat(),
                )
            },
            Check::RemoteBounds,
        ),
        (
            "unaligned atomic",
            |r| {
                Wqe(
                    Opcode::AtomicFa,
                    0,
                    None,
                    [raddr(r, REMOTE + 4), vec![0; 16], data(r, 0, 8)].concat(),
                )
            },
            Check::AtomicAlignment,
        ),
        (
            "receive too short",
            |r| Wqe(Opcode::Send, 0, None, data(r, 0, 65)),
            Check::RemoteTooSmall,
        ),
    ];
    for (name, make, check) in cases {
        let mut rig = Rig::new();
        let receive = [rig.b.data(0, 64)];
        rig.b.post_receive(&receive);
        rig.a.write_inline(REMOTE + 512, rig.b.keys.rkey, &[1; 8], CtrlFlags::CQ_UPDATE);
        let Wqe(op, opmod, ds, body) = make(&rig);
        let ds = ds.unwrap_or(1 + body.len().div_ceil(16) as u8);
        // Not signalled: errors complete all the same.
        let ctrl =
            Ctrl::new(op, rig.a.producer, rig.a.qpn.0, ds, CtrlFlags::NONE, 0).with_opmod(opmod);
        rig.a.write_ctrl(ctrl, &body);
        rig.a.write_inline(REMOTE + 520, rig.b.keys.rkey, &[1; 8], CtrlFlags::NONE);
        rig.a.ring();
        rig.run();
        let cqes = rig.a.poll_all();
        assert_eq!(cqes.len(), 3, "{name}: {cqes:?}");
        assert_eq!(cqes[0].opcode(), Some(CqeOpcode::Requester), "{name}");
        assert_eq!(cqes[1].opcode(), Some(CqeOpcode::RequesterError), "{name}");
        let syndrome = if *check == Check::RemoteTooSmall {
            Syndrome::RemoteInvalidRequest
        } else {
            check.syndrome()
        };
        assert_eq!(cause(&cqes[1]), (syndrome as u8, *check as u8), "{name}");
        assert_eq!(cqes[1].wqe_counter.get(), 1, "{name}");
        assert_eq!(cqes[1].wqe_opcode(), op as u8, "{name}");
        assert_eq!(cqes[2].syndrome_byte(), Syndrome::Flushed as u8, "{name}");
        assert_eq!(rig.b.memory.word(520).load(RELAXED), 0, "{name}: sent after an error");
        let info = rig.nics[0].query_qp(rig.a.qpn).unwrap();
        assert_eq!(
            (info.state, info.error.and_then(|c| c.check())),
            (QpState::Error, Some(*check))
        );
    }
}

#[test]
fn a_doorbell_inside_of_a_wqe_fails_it() {
    let mut rig = Rig::new();
    rig.a.write_inline(REMOTE, rig.b.keys.rkey, &[1; 40], CtrlFlags::NONE);
    rig.a.producer = 1;
    rig.a.ring();
    rig.run();
    assert_eq!(cause(&rig.a.poll_all()[0]).1, Check::SplitWqe as u8);
    let info = rig.nics[0].query_qp(rig.a.qpn).unwrap();
    assert_eq!((info.sq_head, info.sq_producer), (1, 1));
}

#[test]
fn permissions_are_checked_at_the_region_and_at_the_qp() {
    let write: Make =
        |r| Wqe(Opcode::RdmaWrite, 0, None, [raddr(r, REMOTE), inline(&[1; 8])].concat());
    let read: Make = |r| Wqe(Opcode::RdmaRead, 0, None, [raddr(r, REMOTE), data(r, 0, 8)].concat());
    let add: Make =
        |r| Wqe(Opcode::AtomicFa, 0, None, [raddr(r, REMOTE), vec![0; 16], data(r, 0, 8)].concat());
    let cases: &[(Make, Access, Access, Option<Check>)] = &[
        (write, Access::REMOTE_WRITE, Access::REMOTE_WRITE, None),
        (
            write,
            Access::REMOTE_READ | Access::REMOTE_ATOMIC,
            Access::all(),
            Some(Check::RemotePermission),
        ),
        (write, Access::all(), Access::REMOTE_READ, Some(Check::QpPermission)),
        (read, Access::REMOTE_READ | Access::LOCAL_WRITE, Access::REMOTE_READ, None),
        (
            read,
            Access::LOCAL_WRITE | Access::REMOTE_WRITE,
            Access::all(),
            Some(Check::RemotePermission),
        ),
        (read, Access::all(), Access::REMOTE_WRITE, Some(Check::QpPermission)),
        (read, Access::REMOTE_READ, Access::all(), Some(Check::LocalPermission)),
        (add, Access::REMOTE_ATOMIC | Access::LOCAL_WRITE, Access::REMOTE_ATOMIC, None),
        (
            add,
            Access::REMOTE_WRITE | Access::LOCAL_WRITE,
            Access::all(),
            Some(Check::RemotePermission),
        ),
        (add, Access::all(), Access::empty(), Some(Check::QpPermission)),
    ];
    for (i, (make, region_access, access, check)) in cases.iter().enumerate() {
        let options =
            Options { region_access: *region_access, access: *access, ..Options::default() };
        let mut rig = Rig::with(options);
        let Wqe(op, _, _, body) = make(&rig);
        rig.a.write_wqe(op, CtrlFlags::CQ_UPDATE, 0, &body);
        rig.a.ring();
        rig.run();
        let cqes = rig.a.poll_all();
        assert_eq!(cqes.len(), 1, "case {i}");
        match check {
            None => assert_eq!(cqes[0].opcode(), Some(CqeOpcode::Requester), "case {i}"),
            Some(check) => {
                let expected = (check.syndrome() as u8, *check as u8);
                assert_eq!(cause(&cqes[0]), expected, "case {i}");
            }
        }
    }
}

#[test]
fn a_key_of_another_protection_domain_is_refused() {
    let mut rig = Rig::new();
    let other = side(&mut rig.nics[1], 0x7000_0000_0000, &Options::default());
    rig.a.write_inline(0x7000_0000_0000, other.keys.rkey, &[1; 8], CtrlFlags::NONE);
    rig.a.ring();
    rig.run();
    let cqes = rig.a.poll_all();
    assert_eq!(cause(&cqes[0]), (Syndrome::RemoteAccess as u8, Check::RemotePd as u8));
    assert_eq!(other.memory.word(0).load(RELAXED), 0);
}

#[test]
fn a_deregistered_key_is_refused() {
    let mut rig = Rig::new();
    let keys = rig.b.keys;
    rig.nics[1].dereg_mr(keys).unwrap();
    assert_eq!(rig.nics[1].dereg_mr(keys), Err(DestroyError::Unknown { what: "memory region" }));
    rig.a.write_inline(REMOTE, keys.rkey, &[1; 8], CtrlFlags::NONE);
    rig.a.ring();
    rig.run();
    assert_eq!(cause(&rig.a.poll_all()[0]).1, Check::RemoteKey as u8);
}

#[test]
fn a_message_may_not_be_longer_than_the_largest() {
    let mut rig = Rig::new();
    // One region of which the address space, not the memory, is large can't be had: three segments do it.
    let caps = Caps { max_message: 4096, ..Caps::default() };
    rig = Rig::with(Options {
        config: NicConfig { caps, ..rig.nics[0].config().clone() },
        ..Options::default()
    });
    let raddr = Raddr::new(REMOTE, rig.b.keys.rkey);
    let parts = [rig.a.data(0, 4096), rig.a.data(0, 1)];
    rig.a.post(Opcode::RdmaWrite, CtrlFlags::NONE, 0, Some(raddr), &parts);
    rig.a.ring();
    rig.run();
    let cqes = rig.a.poll_all();
    assert_eq!(cause(&cqes[0]), (Syndrome::LocalLength as u8, Check::MessageLength as u8));
}

fn flushed(cqes: &[Cqe]) -> Vec<(Option<CqeOpcode>, u16)> {
    assert!(cqes.iter().all(|c| c.syndrome_byte() == Syndrome::Flushed as u8), "{cqes:?}");
    cqes.iter().map(|c| (c.opcode(), c.wqe_counter.get())).collect()
}

#[test]
fn a_qp_in_error_flushes_what_is_posted_before_and_after() {
    let mut rig = Rig::new();
    let receive = [rig.a.data(0, 8)];
    rig.a.post_receive(&receive);
    rig.nics[0].modify_qp(rig.a.qpn, Modify::ToError).unwrap();
    rig.run();
    assert_eq!(flushed(&rig.a.poll_all()), [(Some(CqeOpcode::ResponderError), 0)]);
    // A two-block WQE and a one-block one.
    rig.a.write_inline(REMOTE, rig.b.keys.rkey, &[1; 40], CtrlFlags::NONE);
    rig.a.write_inline(REMOTE, rig.b.keys.rkey, &[1; 8], CtrlFlags::NONE);
    rig.a.ring();
    rig.a.post_receive(&receive);
    rig.run();
    let mut cqes = flushed(&rig.a.poll_all());
    cqes.sort_by_key(|c| c.1);
    assert_eq!(
        cqes,
        [
            (Some(CqeOpcode::RequesterError), 0),
            (Some(CqeOpcode::ResponderError), 1),
            (Some(CqeOpcode::RequesterError), 2)
        ]
    );
    assert_eq!(rig.b.memory.word(0).load(RELAXED), 0);
}

#[test]
fn a_receive_that_is_too_short_fails_on_both_sides() {
    let mut rig = Rig::new();
    let receive = [rig.b.data(0, 63)];
    rig.b.post_receive(&receive);
    let data = [rig.a.data(0, 64)];
    rig.a.post(Opcode::Send, CtrlFlags::NONE, 0, None, &data);
    rig.a.ring();
    rig.run();
    let at_b = rig.b.poll_all();
    assert_eq!(at_b[0].opcode(), Some(CqeOpcode::ResponderError));
    assert_eq!(cause(&at_b[0]), (Syndrome::LocalLength as u8, Check::ReceiveTooSmall as u8));
    let at_a = rig.a.poll_all();
    assert_eq!(cause(&at_a[0]).0, Syndrome::RemoteInvalidRequest as u8);
    assert_eq!(rig.nics[1].query_qp(rig.b.qpn).unwrap().state, QpState::Error);
}

#[test]
fn an_overrun_cq_goes_to_error_with_its_qps_and_is_named() {
    let mut rig = Rig::with(Options { log_cq: 2, ..Options::default() });
    assert!(rig.nics[0].finding_count(FindingKind::CqTooSmall) > 0);
    for _ in 0..5 {
        rig.a.write_inline(REMOTE, rig.b.keys.rkey, &[1; 8], CtrlFlags::CQ_UPDATE);
    }
    rig.a.ring();
    rig.run();
    let info = rig.nics[0].query_qp(rig.a.qpn).unwrap();
    assert_eq!(info.state, QpState::Error);
    assert_eq!(info.error, Some(Check::CqOverrun.into()));
    assert_eq!(rig.nics[0].finding_count(FindingKind::CqOverrun), 1);
    assert_eq!(rig.a.poll_all().len(), 4);
}

#[test]
fn a_cq_of_zeroes_is_refused_and_one_of_ones_or_libmlx5s_is_not() {
    let mut nic = Nic::new(NicConfig::default());
    for (fill, log_size, ok) in
        [(0x00, 4, false), (0xff, 4, true), (0xf0, 4, true), (0x0f, 0, false)]
    {
        let ring = Memory::zeroed(64 << log_size);
        ring.write(0, &vec![fill; 64 << log_size]).unwrap();
        let made = nic.create_cq(CqAttr {
            ring: ring.dma(),
            log_size,
            record: Memory::zeroed(8).dma(),
            collapsed: false,
            ignore_overrun: false,
        });
        match made {
            Ok(_) => assert!(ok, "fill {fill:#x}"),
            Err(error) => {
                assert!(!ok, "fill {fill:#x}");
                assert_eq!(error, CreateError::CqNotInitialised { entry: 0 });
                assert!(error.to_string().starts_with("CQ not initialised"));
            }
        }
    }
}

#[test]
fn objects_in_use_cannot_be_destroyed() {
    let mut rig = Rig::new();
    let (nic, a) = rig.a();
    let (pd, uar, cq, qpn, keys) = (a.pd, a.uar, a.cq, a.qpn, a.keys);
    assert!(matches!(nic.dealloc_pd(pd), Err(DestroyError::Busy { .. })));
    assert!(matches!(nic.dealloc_uar(uar), Err(DestroyError::Busy { .. })));
    assert!(matches!(nic.destroy_cq(cq), Err(DestroyError::Busy { .. })));
    nic.destroy_qp(qpn).unwrap();
    nic.dereg_mr(keys).unwrap();
    nic.destroy_cq(cq).unwrap();
    nic.dealloc_uar(uar).unwrap();
    nic.dealloc_pd(pd).unwrap();
    assert!(matches!(nic.destroy_qp(qpn), Err(DestroyError::Unknown { .. })));
    assert!(matches!(nic.dealloc_pd(pd), Err(DestroyError::Unknown { .. })));
}

#[test]
fn the_state_machine_allows_its_own_transitions_only() {
    let mut rig = Rig::new();
    let qpn = rig.a.qpn;
    let nic = &mut rig.nics[0];
    let rts = Modify::ToRts { sq_psn: 0, retry_cnt: 0, rnr_retry: 0, timeout: 0, max_rd_atomic: 0 };
    let init = Modify::ToInit { access: Access::empty() };
    assert!(matches!(nic.modify_qp(qpn, init), Err(ModifyError::Transition { .. })));
    assert!(matches!(nic.modify_qp(qpn, rts), Err(ModifyError::Transition { .. })));
    nic.modify_qp(qpn, Modify::ToReset).unwrap();
    assert!(matches!(nic.modify_qp(qpn, Modify::ToError), Err(ModifyError::Transition { .. })));
    nic.modify_qp(qpn, init).unwrap();
    let rtr = |dest_nic| Modify::ToRtr {
        dest_nic,
        dest_qpn: Qpn(1),
        rq_psn: 0,
        max_dest_rd_atomic: 1,
        min_rnr_timer: 0,
    };
    assert_eq!(nic.modify_qp(qpn, rtr(9)), Err(ModifyError::NoLink { remote: 9 }));
    nic.modify_qp(qpn, rtr(2)).unwrap();
    nic.modify_qp(qpn, rts).unwrap();
}

#[test]
fn a_qp_works_again_after_reset() {
    let mut rig = Rig::new();
    for lap in 0..3u64 {
        rig.a.write_inline(REMOTE + lap * 8, rig.b.keys.rkey, &[1; 8], CtrlFlags::CQ_UPDATE);
        rig.a.ring();
        rig.run();
        let cqes = rig.a.poll_all();
        assert_eq!(cqes.len(), 1, "lap {lap}");
        assert_eq!(cqes[0].wqe_counter.get(), 0);
        let (a, b) = (rig.a.qpn, rig.b.qpn);
        rig.nics[0].modify_qp(a, Modify::ToReset).unwrap();
        rig.nics[1].modify_qp(b, Modify::ToReset).unwrap();
        rig.a.producer = 0;
        rig.a.set_record(0);
        connect(&mut rig.nics[0], a, 2, b, &Options::default());
        connect(&mut rig.nics[1], b, 1, a, &Options::default());
    }
}
