//! Errors and findings: what breaks a queue pair, with the exact bytes of every CQE, and what the NIC says of it.

use rdma::{Access, Address, Destination};
use softnic::Check;
use wire::cqe::{Cqe, CqeOpcode, Syndrome};
use wire::wqe::{CtrlFlags, Data, Opcode, Raddr};
use zerocopy::IntoBytes;

use crate::pair::{LENGTH, Rig, done, expect, failed, hasty, inline, ring_attr};
use crate::rig::{Kind, bytes, kinds, kinds_and_devices};

/// Opcode, opmod, segments (`None`: what the body takes), body.
struct Bad(u8, u8, Option<u8>, Vec<u8>);
type Make = fn(&Rig) -> Bad;

fn bad(op: Opcode, body: Vec<u8>) -> Bad {
    Bad(op as u8, 0, None, body)
}

#[test]
fn each_check_has_its_entry_and_the_rest_is_flushed() {
    let cases: &[(&str, Make, Check)] = &[
        ("no segments", |_| Bad(8, 0, Some(0), vec![]), Check::DsZero),
        ("no address", |_| Bad(8, 0, Some(1), vec![]), Check::DsForOpcode),
        ("atomic without operands", |r| bad(Opcode::AtomicFa, r.raddr(0)), Check::DsForOpcode),
        ("wait", |_| bad(Opcode::Wait, vec![0; 16]), Check::Opcode),
        ("unknown opcode", |_| Bad(0x3e, 0, None, vec![0; 16]), Check::Opcode),
        (
            "inline past the end",
            |r| Bad(8, 0, Some(3), [r.raddr(0), inline(&[0; 13])].concat()),
            Check::InlineLength,
        ),
        (
            "inline of 2 GiB",
            |r| bad(Opcode::RdmaWrite, [r.raddr(0), vec![0xff; 16]].concat()),
            Check::InlineLength,
        ),
        (
            "too long a message",
            |r| {
                let whole = Data::new(0, 0x4000_0001, r.local.lkey).as_bytes().to_vec();
                bad(Opcode::RdmaWrite, [r.raddr(0), whole].concat())
            },
            Check::LocalBounds,
        ),
        (
            "read into the WQE",
            |r| bad(Opcode::RdmaRead, [r.raddr(0), inline(&[0; 8])].concat()),
            Check::DsForOpcode,
        ),
        (
            "atomic mode",
            |r| Bad(0x15, 7, None, [r.raddr(0), vec![0; 16], r.data(0, 8)].concat()),
            Check::AtomicMode,
        ),
        (
            "atomic with a short buffer",
            |r| bad(Opcode::AtomicFa, [r.raddr(0), vec![0; 16], r.data(0, 4)].concat()),
            Check::AtomicResult,
        ),
        (
            "unknown lkey",
            |r| {
                let data = Data::new(r.local.address, 8, 0xdead_be00).as_bytes().to_vec();
                bad(Opcode::RdmaWrite, [r.raddr(0), data].concat())
            },
            Check::LocalKey,
        ),
        (
            "stale lkey",
            |r| {
                let gone = r.world.region(0, 64, Access::empty());
                let data = Data::new(gone.address, 8, gone.lkey).as_bytes().to_vec();
                bad(Opcode::RdmaWrite, [r.raddr(0), data].concat())
            },
            Check::LocalKey,
        ),
        (
            "rkey for an lkey",
            |r| {
                let data = Data::new(r.local.address, 8, r.local.rkey).as_bytes().to_vec();
                bad(Opcode::RdmaWrite, [r.raddr(0), data].concat())
            },
            Check::LocalKey,
        ),
        (
            "local bytes out of bounds",
            |r| bad(Opcode::RdmaWrite, [r.raddr(0), r.data(LENGTH as u64 - 4, 8)].concat()),
            Check::LocalBounds,
        ),
        (
            "local address wraps",
            |r| {
                let data = Data::new(u64::MAX - 3, 8, r.local.lkey).as_bytes().to_vec();
                bad(Opcode::RdmaWrite, [r.raddr(0), data].concat())
            },
            Check::LocalBounds,
        ),
        (
            "unknown rkey",
            |_| {
                let raddr = Raddr::new(0, 0).as_bytes().to_vec();
                bad(Opcode::RdmaWrite, [raddr, inline(&[1; 8])].concat())
            },
            Check::RemoteKey,
        ),
        (
            "lkey for an rkey",
            |r| {
                let raddr = Raddr::new(r.remote.address, r.remote.lkey).as_bytes().to_vec();
                bad(Opcode::RdmaWrite, [raddr, inline(&[1; 8])].concat())
            },
            Check::RemoteKey,
        ),
        (
            "remote bytes out of bounds",
            |r| bad(Opcode::RdmaWrite, [r.raddr(LENGTH as u64 - 7), inline(&[1; 8])].concat()),
            Check::RemoteBounds,
        ),
        (
            "remote address wraps",
            |r| {
                let raddr = Raddr::new(u64::MAX - 3, r.remote.rkey).as_bytes().to_vec();
                bad(Opcode::RdmaWrite, [raddr, inline(&[1; 8])].concat())
            },
            Check::RemoteBounds,
        ),
        (
            "read out of bounds",
            |r| bad(Opcode::RdmaRead, [r.raddr(LENGTH as u64 - 7), r.data(0, 8)].concat()),
            Check::RemoteBounds,
        ),
        (
            "a long write that ends out of bounds",
            |r| bad(Opcode::RdmaWrite, [r.raddr(LENGTH as u64 - 8192), r.data(0, 8193)].concat()),
            Check::RemoteBounds,
        ),
        (
            "a write where only reads are allowed",
            |r| {
                let region =
                    std::mem::ManuallyDrop::new(r.world.region(1, 64, Access::REMOTE_READ));
                let raddr = Raddr::new(region.address, region.rkey).as_bytes().to_vec();
                bad(Opcode::RdmaWrite, [raddr, inline(&[1; 8])].concat())
            },
            Check::RemotePermission,
        ),
        (
            "unaligned atomic",
            |r| bad(Opcode::AtomicFa, [r.raddr(4), vec![0; 16], r.data(0, 8)].concat()),
            Check::AtomicAlignment,
        ),
        ("receive too short", |r| bad(Opcode::Send, r.data(0, 65)), Check::RemoteTooSmall),
    ];
    for kind in &kinds_and_devices() {
        for (name, make, check) in cases {
            // What else a NIC checks in its clients' WQEs, and in which order, is its own affair; and hardware's two keys
            // are one.
            let is_everybodys = matches!(
                check,
                Check::LocalKey
                    | Check::LocalBounds
                    | Check::RemoteKey
                    | Check::RemoteBounds
                    | Check::RemotePermission
            ) && !name.contains("for an");
            if matches!(kind, Kind::Mlx5) && !is_everybodys {
                continue;
            }
            let mut rig = Rig::new(kind);
            let receive = Data::new(rig.remote.address + 1024, 64, rig.remote.lkey);
            rig.far.post_receive(&receive);
            rig.put(512);
            let Bad(op, opmod, ds, body) = make(&rig);
            let ds = ds.map_or(1 + body.len().div_ceil(16), usize::from);
            // Not signalled: errors complete all the same.
            let ctrl = rig.ctrl(op, opmod, ds, CtrlFlags::NONE);
            rig.near.write(&[ctrl.as_bytes(), &body].concat());
            rig.put(520);
            rig.near.ring();
            rig.run();
            let qpn = rig.near.qp.qpn;
            let (write, flushed) = (Opcode::RdmaWrite as u8, Check::Flushed);
            let due = [
                done(Opcode::RdmaWrite, qpn, 0, 8),
                failed(*check, op, qpn, 1),
                failed(flushed, write, qpn, 2),
            ];
            let seen = rig.near.poll();
            expect(name, kind, 0, &seen, &due);
            assert!(rig.has(512, 8), "{name} on {kind:?}");
            assert_eq!(
                bytes(&rig.remote)[520..528],
                [0; 8],
                "{name} on {kind:?}: sent after an error"
            );
            let cause = rig.world.nic(0).cause(qpn).unwrap();
            let text = match kind {
                Kind::Mlx5 => check.syndrome().name(),
                _ => check.text(),
            };
            assert!(cause.contains(text), "{name} on {kind:?}: {cause}");
            // What is posted later is flushed, too.
            let last = rig.put(528);
            rig.near.ring();
            rig.run();
            let seen = rig.near.poll();
            expect(name, kind, 3, &seen, &[failed(flushed, write, qpn, last)]);
        }
    }
}

#[test]
fn a_refused_request_breaks_the_peer_and_a_local_error_does_not() {
    for kind in &kinds() {
        for (rkey, breaks) in [(7, true), (0, false)] {
            let mut rig = Rig::new(kind);
            let far_receive = Data::new(rig.remote.address, 64, rig.remote.lkey);
            rig.far.post_receive(&far_receive);
            let raddr = Raddr::new(rig.remote.address, rkey).as_bytes().to_vec();
            let data = if breaks {
                rig.data(0, 8)
            } else {
                Data::new(rig.local.address, 8, 0xdead_be00).as_bytes().to_vec()
            };
            rig.post(Opcode::RdmaWrite, CtrlFlags::NONE, &[raddr, data]);
            rig.near.ring();
            rig.run();
            assert_eq!(rig.near.poll().len(), 1);
            let flushed = rig.far.poll_receives();
            let cause = rig.world.nic(1).cause(rig.far.qp.qpn);
            assert_eq!((flushed.len(), cause.is_some()), (usize::from(breaks), breaks), "{kind:?}");
            if breaks {
                let kind_of = CqeOpcode::ResponderError;
                let vendor = Check::Flushed as u8;
                let due = Cqe::error(kind_of, Syndrome::Flushed, vendor, 0, rig.far.qp.qpn, 0);
                expect("receive", kind, 0, &flushed, &[due]);
                // Receives that are posted later are flushed, too.
                rig.far.post_receive(&far_receive);
                rig.run();
                assert_eq!(rig.far.poll_receives().len(), 1, "{kind:?}");
            }
        }
    }
}

#[test]
fn a_peer_that_does_not_answer_is_given_up() {
    let close = |rig: &mut Rig| {
        // A queue pair that is connected to nobody takes its place.
        let other = rig.world.queue(1, &ring_attr());
        drop(std::mem::replace(&mut rig.far, other));
    };
    for kind in &kinds() {
        let mut rig = Rig::new(kind);
        rig.put(0);
        rig.near.ring();
        rig.run();
        close(&mut rig);
        let qpn = rig.near.qp.qpn;
        rig.put(8);
        rig.put(16);
        rig.near.ring();
        rig.run();
        let seen = rig.near.poll();
        let due = [
            done(Opcode::RdmaWrite, qpn, 0, 8),
            failed(Check::TransportRetry, 8, qpn, 1),
            failed(Check::Flushed, 8, qpn, 2),
        ];
        expect("gone", kind, 0, &seen, &due);
        // Never connected at the other side, and another's peer.
        let mut rig = Rig::new(kind);
        let mut lonely = rig.world.queue(0, &ring_attr());
        let to = Destination { nic: Address::lid(2), qpn: rig.far.qp.qpn };
        rig.world.nic(0).connect(&lonely.qp, to, &hasty()).unwrap();
        std::mem::swap(&mut rig.near, &mut lonely);
        rig.put(8);
        rig.near.ring();
        rig.run();
        let seen = rig.near.poll();
        let qpn = rig.near.qp.qpn;
        expect("another's", kind, 0, &seen, &[failed(Check::TransportRetry, 8, qpn, 0)]);
        assert_eq!(bytes(&rig.remote)[8..16], [0; 8]);
    }
}

#[test]
fn a_cq_that_nobody_empties_runs_over_and_says_so() {
    for kind in &kinds() {
        let mut rig = Rig::new(kind);
        // The consumer's record stays where it was.
        for nth in 0..17 {
            rig.put(8 * nth);
            if nth == 15 {
                rig.near.ring();
                rig.run();
            }
        }
        rig.near.ring();
        rig.run();
        let cause = rig.world.nic(0).cause(rig.near.qp.qpn).unwrap();
        assert!(cause.contains(Check::CqOverrun.text()), "{kind:?}: {cause}");
        let findings = rig.world.nic(0).findings().unwrap();
        assert_eq!(findings.len(), 1, "{kind:?}: {findings:?}");
        assert!(findings[0].contains("full when a completion of QP"), "{kind:?}: {findings:?}");
        assert_eq!(rig.near.poll().len(), 16, "{kind:?}");
    }
}

#[test]
fn what_a_program_does_wrong_is_found_in_the_same_words() {
    type Wrong = fn(&mut Rig);
    let cases: &[(&str, Wrong, &str)] = &[
        (
            "blank slot",
            |r| {
                r.near.producer += 1;
                r.near.ring();
            },
            "its slot is blank",
        ),
        (
            "earlier lap",
            |r| {
                for nth in 0..16 {
                    r.put(8 * nth);
                }
                r.near.ring();
                r.run();
                r.near.poll();
                r.near.producer += 1;
                r.near.ring();
            },
            "of an earlier lap",
        ),
        (
            "later lap",
            |r| {
                r.near.producer += 16;
                r.put(0);
                r.near.producer = 1;
                r.near.ring();
            },
            "of a later lap",
        ),
        (
            "no lap",
            |r| {
                let wqe = r.ctrl(0, 0, 1, CtrlFlags::NONE);
                let index = r.near.producer as u32 + 3;
                let mut wqe = wqe;
                wqe.opmod_index_opcode = (index << 8).into();
                r.near.write(wqe.as_bytes());
                r.near.ring();
            },
            "which no lap puts there",
        ),
        (
            "another's WQE",
            |r| {
                let mut wqe = r.ctrl(0, 0, 1, CtrlFlags::NONE);
                wqe.qpn_ds = (0x1234_5600 | 1).into();
                r.near.write(wqe.as_bytes());
                r.near.ring();
            },
            "names QP 0x123456",
        ),
        ("too far", |r| r.near.ring_for(r.near.producer + 17), "the doorbell is ignored"),
        (
            "nobody's ring",
            |r| r.near.write_doorbell(0x9999, 1, 0),
            "a doorbell was rung for QP 0x9999",
        ),
        (
            "too early",
            |r| {
                let early = r.world.queue(0, &ring_attr());
                early.ring_for(1);
                r.run();
                r.near = early;
            },
            "before the QP was ready to send",
        ),
        (
            "the receive's record",
            |r| {
                let index = r.put(0);
                let word = wire::doorbell::record(index + 1).to_bytes();
                r.near.qp.areas.record.write(0, &word).unwrap();
                r.near.write_doorbell(r.near.qp.qpn, index + 1, 0);
            },
            "word 1 of the doorbell record doesn't show it",
        ),
    ];
    for (name, wrong, text) in cases {
        let mut first = None;
        for kind in &kinds() {
            let mut rig = Rig::new(kind);
            wrong(&mut rig);
            rig.run();
            let findings = rig.world.nic(0).findings().unwrap();
            assert!(findings.iter().any(|f| f.contains(text)), "{name} on {kind:?}: {findings:?}");
            let first = first.get_or_insert_with(|| findings.clone());
            assert_eq!(first, &findings, "{name} on {kind:?}");
        }
    }
}

#[test]
fn faults_strike_when_they_are_asked_to() {
    for kind in &kinds() {
        let mut rig = Rig::new(kind);
        let qpn = rig.near.qp.qpn;
        let Some(nic) = rig.world.device_nic(0) else { continue };
        nic.drop_cqe(qpn, 1).unwrap();
        nic.fail_wqe(qpn, 3, Syndrome::RemoteOperation, 0x77).unwrap();
        for nth in 0..5 {
            rig.put(8 * nth);
        }
        rig.near.ring();
        rig.run();
        let seen = rig.near.poll();
        let struck = Cqe::error(
            CqeOpcode::RequesterError,
            Syndrome::RemoteOperation,
            0x77,
            Opcode::RdmaWrite as u8,
            qpn,
            3,
        );
        let due = [
            done(Opcode::RdmaWrite, qpn, 0, 8),
            done(Opcode::RdmaWrite, qpn, 2, 8),
            struck,
            failed(Check::Flushed, Opcode::RdmaWrite as u8, qpn, 4),
        ];
        expect("faults", kind, 0, &seen, &due);
        assert!(rig.has(0, 24) && !rig.has(24, 8), "{kind:?}");
    }
}

#[test]
fn device_code_gives_each_check_its_syndrome() {
    // Checks that the engine for GPUs doesn't make: it has one domain, no lost memory and no lost connection.
    let others = [
        Check::QueueMemory,
        Check::ReadLimit,
        Check::LocalPd,
        Check::RemotePd,
        Check::TooManyReads,
        Check::BadRequest,
        Check::RemoteLost,
        Check::Response,
        Check::Injected,
    ];
    for check in Check::ALL.iter().filter(|check| !others.contains(check)) {
        assert_eq!(device::nic::syndrome_of(*check as u8), check.syndrome() as u32, "{check:?}");
    }
}
