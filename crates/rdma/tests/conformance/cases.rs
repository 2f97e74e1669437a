//! Single operations, errors and findings, with the exact bytes of every CQE.

use std::time::{Duration, Instant};

use rdma::soft::Engine;
use rdma::soft_gpu::{self, EngineOn};
use rdma::{Access, CqKind, Destination, QueuePairAttr, Transport};
use softnic::{Check, Clock};
use wire::cqe::{Cqe, CqeOpcode, Syndrome};
use wire::wqe::{Atomic, Ctrl, CtrlFlags, Data, Opcode, Raddr};
use zerocopy::IntoBytes;

use crate::pair::{LENGTH, LOG, Rig, done, expect, failed, hasty, inline, ring_attr};
use crate::rig::{Kind, World, bytes, kinds, words};

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
    for kind in &kinds() {
        for (name, make, check) in cases {
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
            assert!(cause.contains(check.text()), "{name} on {kind:?}: {cause}");
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
        let to = Destination { nic: 2, qpn: rig.far.qp.qpn };
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
fn messages_take_receives_and_wait_for_them_no_longer_than_asked() {
    for kind in &kinds() {
        let mut rig = Rig::new(kind);
        for nth in 0..3u64 {
            let at = rig.remote.address + 8192 + 256 * nth;
            rig.far.post_receive(&Data::new(at, 200, rig.remote.lkey));
        }
        let signalled = CtrlFlags::CQ_UPDATE;
        let data = rig.data(100, 200);
        rig.post(Opcode::Send, signalled, std::slice::from_ref(&data));
        let body = data.clone();
        let mut imm = rig.ctrl(Opcode::SendImm as u8, 0, 2, signalled);
        imm.imm = 0x1234_5678.into();
        rig.near.write(&[imm.as_bytes(), &body].concat());
        let mut imm = rig.ctrl(Opcode::RdmaWriteImm as u8, 0, 3, signalled);
        imm.imm = 0x9abc_def0.into();
        let body = [rig.raddr(0), rig.data(0, 5000)].concat();
        rig.near.write(&[imm.as_bytes(), &body].concat());
        rig.post(Opcode::Send, CtrlFlags::NONE, &[data]);
        rig.near.ring();
        rig.run();
        let (qpn, far) = (rig.near.qp.qpn, rig.far.qp.qpn);
        let seen = rig.near.poll();
        let due = [
            done(Opcode::Send, qpn, 0, 200),
            done(Opcode::SendImm, qpn, 1, 200),
            done(Opcode::RdmaWriteImm, qpn, 2, 5000),
            failed(Check::RnrRetry, Opcode::Send as u8, qpn, 3),
        ];
        expect("sends", kind, 0, &seen, &due);
        let due = [
            Cqe::responder(CqeOpcode::ResponderSend, far, 0, 200, 0),
            Cqe::responder(CqeOpcode::ResponderSendImm, far, 1, 200, 0x1234_5678),
            Cqe::responder(CqeOpcode::ResponderWriteImm, far, 2, 5000, 0x9abc_def0),
        ];
        let seen = rig.far.poll_receives();
        let seen: Vec<[u8; 64]> = seen;
        assert_eq!(seen.len(), 3, "{kind:?}");
        for (nth, (seen, due)) in seen.iter().zip(due).enumerate() {
            let due: [u8; 64] = due.with_owner(nth as u64, 2).as_bytes().try_into().unwrap();
            assert_eq!(seen, &due, "{kind:?}: {} instead of {}", words(seen), words(&due));
        }
        let (local, remote) = (bytes(&rig.local), bytes(&rig.remote));
        assert!(remote[..4096] == local[..4096], "{kind:?}");
        assert_eq!(remote[8192..8392], local[100..300], "{kind:?}");
        assert_eq!(remote[8448..8648], local[100..300], "{kind:?}");
    }
}

#[test]
fn atomics_and_reads_bring_back_what_was_there() {
    for kind in &kinds() {
        let mut rig = Rig::new(kind);
        rig.remote.memory.write(64, &41u64.to_ne_bytes()).unwrap();
        rig.remote.memory.write(100, b"what was there, to be read").unwrap();
        let operand = |swap_add: u64, compare: u64| {
            Atomic { swap_add: swap_add.into(), compare: compare.into() }.as_bytes().to_vec()
        };
        let (raddr, signalled) = (rig.raddr(64), CtrlFlags::CQ_UPDATE);
        let (a, b, c) = (rig.data(0, 8), rig.data(8, 8), rig.data(16, 8));
        rig.post(Opcode::AtomicFa, signalled, &[raddr.clone(), operand(1, 0), a]);
        rig.post(Opcode::AtomicCs, signalled, &[raddr.clone(), operand(7, 42), b]);
        rig.post(Opcode::AtomicCs, signalled, &[raddr, operand(9, 42), c]);
        let body = [rig.raddr(100), rig.data(201, 10), rig.data(300, 16)];
        rig.post(Opcode::RdmaRead, signalled, &body);
        rig.near.ring();
        rig.run();
        let qpn = rig.near.qp.qpn;
        let due = [
            done(Opcode::AtomicFa, qpn, 0, 8),
            done(Opcode::AtomicCs, qpn, 1, 8),
            done(Opcode::AtomicCs, qpn, 2, 8),
            done(Opcode::RdmaRead, qpn, 3, 26),
        ];
        let seen = rig.near.poll();
        expect("atomics", kind, 0, &seen, &due);
        let local = bytes(&rig.local);
        let word = |at: usize| u64::from_ne_bytes(local[at..at + 8].try_into().unwrap());
        assert_eq!([word(0), word(8), word(16)], [41, 42, 7], "{kind:?}");
        assert_eq!(&local[201..211], b"what was t", "{kind:?}");
        assert_eq!(&local[300..316], b"here, to be read", "{kind:?}");
        assert_eq!(bytes(&rig.remote)[64..72], 7u64.to_ne_bytes(), "{kind:?}");
    }
}

/// Laps of the queue, and the wraps of the 16-bit index and of 32 bits.
#[test]
fn queues_go_round_and_indices_wrap() {
    for kind in &kinds() {
        for cq_kind in [CqKind::Ring, CqKind::Collapsed] {
            for start in [0, (1 << 16) - 21, (1 << 32) - 21] {
                let attr = QueuePairAttr {
                    cq_kind,
                    log_cq: if cq_kind == CqKind::Ring { LOG } else { 1 },
                    start,
                    ..ring_attr()
                };
                let mut rig = Rig::with(kind, &attr, &hasty());
                let qpn = rig.near.qp.qpn;
                let mut entries = 0;
                for lap in 0..4 {
                    let mut due = Vec::new();
                    // Two blocks, and thirteen of one: the last laps begin elsewhere.
                    let long: Vec<u8> = (0..40).map(|i| i + lap).collect();
                    let body = [rig.raddr(4096), inline(&long)];
                    let index = rig.post(Opcode::RdmaWrite, CtrlFlags::CQ_UPDATE, &body);
                    due.push(done(Opcode::RdmaWrite, qpn, index, 40));
                    for nth in 0..13u64 {
                        let at = 8 * (nth + 13 * u64::from(lap));
                        due.push(done(Opcode::RdmaWrite, qpn, rig.put(at), 8));
                    }
                    rig.near.ring();
                    rig.run();
                    let seen = rig.near.poll();
                    if cq_kind == CqKind::Ring {
                        expect("lap", kind, entries, &seen, &due);
                        entries += due.len() as u64;
                    } else {
                        entries += due.len() as u64;
                        let last = due.last().unwrap().with_owner(entries - 1, 1);
                        assert_eq!(seen, [<[u8; 64]>::try_from(last.as_bytes()).unwrap()]);
                    }
                    assert_eq!(bytes(&rig.remote)[4096..4136], long, "{kind:?}");
                }
                assert!(rig.has(0, 8 * 52), "{kind:?} {cq_kind:?} from {start}");
            }
        }
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
fn dc_writes_find_their_target() {
    type Wrong = fn(&mut wire::wqe::AddressVector);
    let cases: [(&str, Wrong, Option<Check>); 4] = [
        ("right", |_| {}, None),
        ("key", |av| av.key = 1.into(), Some(Check::DcKey)),
        ("target", |av| av.dqp_dct = (av.dqp_dct.get() + 1).into(), Some(Check::TransportRetry)),
        ("NIC", |av| av.rlid = 7u16.to_be_bytes(), Some(Check::NoRoute)),
    ];
    for kind in &kinds() {
        for (name, wrong, check) in cases {
            let mut rig = Rig::new(kind);
            let attr =
                QueuePairAttr { transport: Transport::Dci, log_receives: None, ..ring_attr() };
            let mut dci = rig.world.queue(0, &attr);
            let nobody = Destination { nic: 0, qpn: 0 };
            rig.world.nic(0).connect(&dci.qp, nobody, &hasty()).unwrap();
            let target = rig.world.target(1, 0xabcd, Access::REMOTE_WRITE);
            std::mem::swap(&mut rig.near, &mut dci);
            let mut av = target.address_vector();
            wrong(&mut av);
            for at in [0, 8] {
                let body = [av.as_bytes().to_vec(), rig.raddr(at), rig.data(at, 8)];
                rig.post(Opcode::RdmaWrite, CtrlFlags::CQ_UPDATE, &body);
                let read =
                    [target.address_vector().as_bytes().to_vec(), rig.raddr(at), rig.data(at, 8)];
                if at == 8 {
                    rig.post(Opcode::RdmaRead, CtrlFlags::NONE, &read);
                }
            }
            rig.near.ring();
            rig.run();
            let qpn = rig.near.qp.qpn;
            let due = match check {
                // The target allows no reads.
                None => vec![
                    done(Opcode::RdmaWrite, qpn, 0, 8),
                    done(Opcode::RdmaWrite, qpn, 2, 8),
                    failed(Check::QpPermission, Opcode::RdmaRead as u8, qpn, 4),
                ],
                Some(check) => vec![
                    failed(check, Opcode::RdmaWrite as u8, qpn, 0),
                    failed(Check::Flushed, Opcode::RdmaWrite as u8, qpn, 2),
                    failed(Check::Flushed, Opcode::RdmaRead as u8, qpn, 4),
                ],
            };
            let seen = rig.near.poll();
            expect(name, kind, 0, &seen, &due);
            assert_eq!(rig.has(0, 16), check.is_none(), "{name} on {kind:?}");
        }
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
fn queue_pairs_may_share_a_doorbell_page() {
    for kind in &kinds() {
        let mut rig = Rig::new(kind);
        let page = rig.near.qp.doorbell_page.clone();
        let attr = QueuePairAttr { doorbell_page: Some(page), ..ring_attr() };
        let [mut near, far] = rig.world.pair(&attr, &hasty());
        let first = rig.put(0);
        rig.near.ring();
        // The second ring takes the first one's place before anybody has seen it.
        std::mem::swap(&mut rig.near, &mut near);
        rig.put(8);
        rig.near.ring();
        rig.world.run(&[&rig.near, &near, &rig.far, &far]);
        assert!(rig.has(0, 16), "{kind:?}");
        assert_eq!((near.poll().len(), rig.near.poll().len(), first), (1, 1, 0), "{kind:?}");
        assert_eq!(rig.world.nic(0).findings().unwrap(), Vec::<String>::new(), "{kind:?}");
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

/// Objects come and go: their numbers and keys are those of the CPU engine, and stale ones match nothing.
#[test]
fn numbers_and_keys_are_given_in_the_same_order() {
    let mut given = Vec::new();
    for kind in &kinds() {
        let world = World::new(kind);
        let mut numbers = Vec::new();
        for _ in 0..3 {
            let one = world.queue(0, &ring_attr());
            let two = world.queue(0, &ring_attr());
            drop(one);
            let three = world.queue(0, &ring_attr());
            let region = world.region(0, 64, Access::all());
            let target = world.target(0, 1, Access::all());
            numbers.push([two.qp.qpn, three.qp.qpn, region.lkey, region.rkey, target.number]);
        }
        given.push(numbers);
    }
    assert!(given.iter().all(|numbers| numbers == &given[0]), "{given:x?}");
}

/// Everything that a NIC completed or flushed is counted, and stays counted when its queue pair goes.
#[test]
fn completed_wqes_are_counted() {
    for kind in &kinds() {
        let mut rig = Rig::new(kind);
        for nth in 0..5 {
            rig.put(8 * nth);
        }
        rig.near.ring();
        rig.run();
        assert_eq!(rig.world.nic(0).completed().unwrap(), 5, "{kind:?}");
        let other = rig.world.queue(0, &ring_attr());
        drop(std::mem::replace(&mut rig.near, other));
        assert_eq!(rig.world.nic(0).completed().unwrap(), 5, "{kind:?}");
        assert_eq!(rig.world.nic(1).completed().unwrap(), 0, "{kind:?}");
    }
}

/// A thread of its own drives the engine while the client only looks.
#[test]
fn an_engine_with_a_thread_needs_nobody_to_step_it() {
    let on = EngineOn::Host { driver: Engine::Thread { cpu: None }, clock: Clock::Real };
    let fabric = soft_gpu::Fabric::open(on).unwrap();
    let world = World::of(Kind::Host, fabric);
    let [mut near, _far] = world.pair(&ring_attr(), &hasty());
    let remote = world.region(1, 64, Access::all());
    let end = Instant::now() + Duration::from_secs(20);
    for value in 0..200u64 {
        let raddr = Raddr::new(remote.address, remote.rkey);
        let body = [raddr.as_bytes(), &inline(&value.to_ne_bytes())].concat();
        let flags = CtrlFlags::CQ_UPDATE;
        let ctrl = Ctrl::new(Opcode::RdmaWrite, near.producer, near.qp.qpn, 3, flags, 0);
        near.write(&[ctrl.as_bytes(), &body].concat());
        near.ring();
        while near.poll().is_empty() {
            assert!(Instant::now() < end, "WQE {value} doesn't complete");
            std::thread::yield_now();
        }
        assert_eq!(bytes(&remote)[..8], value.to_ne_bytes());
        // Objects come and go beside it.
        drop(world.region(0, 64, Access::all()));
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
