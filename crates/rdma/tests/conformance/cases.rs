//! Single operations, with the exact bytes of every CQE, and the objects that they need.

use std::time::{Duration, Instant};

use rdma::soft::Engine;
use rdma::soft_gpu::{self, EngineOn};
use rdma::{Access, Address, CqKind, Destination, QueuePairAttr, Transport};
use softnic::{Check, Clock};
use wire::cqe::{Cqe, CqeOpcode};
use wire::wqe::{Atomic, Ctrl, CtrlFlags, Data, Opcode, Raddr};
use zerocopy::IntoBytes;

use crate::pair::{LOG, Rig, done, expect, failed, hasty, inline, ring_attr};
use crate::rig::{Kind, World, bytes, kinds, kinds_and_devices, words};

#[test]
fn messages_take_receives_and_wait_for_them_no_longer_than_asked() {
    for kind in &kinds_and_devices() {
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
            if let Kind::Mlx5 = kind {
                let seen = Cqe::from_bytes(*seen);
                let said = |cqe: Cqe| (cqe.opcode(), cqe.qpn(), cqe.byte_count, cqe.imm_inval);
                assert_eq!(said(seen), said(due), "receive {nth} on {kind:?}");
                continue;
            }
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
    for kind in &kinds_and_devices() {
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
    for kind in &kinds_and_devices() {
        for cq_kind in [CqKind::Ring, CqKind::OverrunRing, CqKind::Collapsed] {
            for start in [0, (1 << 16) - 21, (1 << 32) - 21] {
                // Hardware begins where all do.
                if start > 0 && matches!(kind, Kind::Mlx5) {
                    continue;
                }
                let attr = QueuePairAttr {
                    cq_kind,
                    log_cq: if cq_kind == CqKind::Collapsed { 1 } else { LOG },
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
                    if cq_kind != CqKind::Collapsed {
                        expect("lap", kind, entries, &seen, &due);
                        entries += due.len() as u64;
                    } else {
                        entries += due.len() as u64;
                        let last = due.last().unwrap().with_owner(entries - 1, 1);
                        let is_last = if let Kind::Mlx5 = kind {
                            Cqe::from_bytes(seen[0]).wqe_counter == last.wqe_counter
                        } else {
                            seen == [<[u8; 64]>::try_from(last.as_bytes()).unwrap()]
                        };
                        assert!(is_last, "{kind:?}: {}", words(&seen[0]));
                    }
                    assert_eq!(bytes(&rig.remote)[4096..4136], long, "{kind:?}");
                }
                assert!(rig.has(0, 8 * 52), "{kind:?} {cq_kind:?} from {start}");
            }
        }
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
    for kind in &kinds_and_devices() {
        for (name, wrong, check) in cases {
            let mut rig = Rig::new(kind);
            // On Ethernet nobody looks at the LID.
            let is_global = rig.world.nic(1).address().is_global();
            if check == Some(Check::NoRoute) && is_global {
                continue;
            }
            let attr =
                QueuePairAttr { transport: Transport::Dci, log_receives: None, ..ring_attr() };
            let mut dci = rig.world.queue(0, &attr);
            let nobody = Destination { nic: Address::default(), qpn: 0 };
            let connect = rig.world.patient(&hasty());
            rig.world.nic(0).connect(&dci.qp, nobody, &connect).unwrap();
            let target = rig.world.target(1, 0xabcd, Access::REMOTE_WRITE);
            std::mem::swap(&mut rig.near, &mut dci);
            let right = rig.world.nic(0).address_vector(&target).unwrap();
            let mut av = right;
            wrong(&mut av);
            for at in [0, 8] {
                let body = [av.as_bytes().to_vec(), rig.raddr(at), rig.data(at, 8)];
                rig.post(Opcode::RdmaWrite, CtrlFlags::CQ_UPDATE, &body);
                let read = [right.as_bytes().to_vec(), rig.raddr(at), rig.data(at, 8)];
                if at == 8 {
                    rig.post(Opcode::RdmaRead, CtrlFlags::NONE, &read);
                }
            }
            rig.near.ring();
            rig.run();
            let qpn = rig.near.qp.qpn;
            // A real fabric has no port of this LID, and nobody says so.
            let check = match (check, kind) {
                (Some(Check::NoRoute), Kind::Mlx5) => Some(Check::TransportRetry),
                _ => check,
            };
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
fn queue_pairs_may_share_a_doorbell_page() {
    for kind in &kinds_and_devices() {
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
        assert_eq!(rig.world.nic(0).completed().unwrap(), Some(5), "{kind:?}");
        let other = rig.world.queue(0, &ring_attr());
        drop(std::mem::replace(&mut rig.near, other));
        assert_eq!(rig.world.nic(0).completed().unwrap(), Some(5), "{kind:?}");
        assert_eq!(rig.world.nic(1).completed().unwrap(), Some(0), "{kind:?}");
    }
}

/// A thread of its own drives the engine while the client only looks.
#[test]
fn an_engine_with_a_thread_needs_nobody_to_step_it() {
    let on =
        EngineOn::Host { driver: Engine::Thread { cpu: None }, clock: Clock::Real, apart: true };
    let fabric = soft_gpu::Fabric::open(on).unwrap();
    let world = World::of(Kind::HostApart, fabric);
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
