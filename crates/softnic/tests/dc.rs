//! Dynamically connected transport: one initiator, many targets.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod rig;

use rig::*;
use softnic::*;
use wire::cqe::{Cqe, CqeOpcode, Syndrome};
use wire::wqe::{AV_EXTENDED, AddressVector, CtrlFlags, Data, Opcode, Raddr};
use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromZeros, IntoBytes};

const KEY: u64 = 0x1122_3344_5566_7788;

struct Dc {
    nics: Vec<Nic>,
    /// The initiator, on NIC 1.
    a: Side,
    /// Owners of the targets' memory, on NICs 2 and 3.
    b: Vec<Side>,
    dcts: Vec<Qpn>,
    records: Vec<std::sync::Arc<Memory>>,
    now: Nanos,
}

fn setup(faults: Faults, profile: Profile) -> Dc {
    let mut nics: Vec<Nic> = [1, 2, 3]
        .map(|id| {
            Nic::new(NicConfig { id, faults: faults.clone(), profile, ..NicConfig::default() })
        })
        .into();
    for other in [2, 3] {
        let (x, y) = link(1, other, LinkAttr::default());
        nics[0].connect_link(x);
        nics[usize::from(other) - 1].connect_link(y);
    }
    let o = Options { kind: QpKind::Dci, retry_cnt: 7, ..Options::default() };
    let a = side(&mut nics[0], LOCAL, &o);
    connect(&mut nics[0], a.qpn, 0, Qpn(0), &o);
    let mut b = Vec::new();
    let mut dcts = Vec::new();
    let mut records = Vec::new();
    for nic in &mut nics[1..] {
        let owner = side(nic, REMOTE, &Options::default());
        let record = Memory::zeroed(8);
        let rq = RqAttr { ring: owner.rq.dma(), log_wqes: owner.log_rq, log_stride: STRIDE };
        let dct = nic
            .create_dct(DctAttr {
                pd: owner.pd,
                recv_cq: owner.cq,
                dc_key: KEY,
                access: Access::all(),
                rq: Some((rq, record.dma())),
                min_rnr_timer: 1,
            })
            .unwrap();
        dcts.push(dct);
        records.push(record);
        b.push(owner);
    }
    Dc { nics, a, b, dcts, records, now: 0 }
}

fn vector(nic: u16, dct: Qpn, key: u64, long: bool) -> Vec<u8> {
    let mut av = AddressVector::new_zeroed();
    av.key = U64::new(key);
    av.dqp_dct = U32::new(dct.0 | if long { AV_EXTENDED } else { 0 });
    av.rlid = nic.to_be_bytes();
    av.as_bytes()[..if long { 48 } else { 16 }].to_vec()
}

impl Dc {
    fn post(&mut self, target: usize, op: Opcode, rest: &[u8]) {
        let body = [vector(target as u16 + 2, self.dcts[target], KEY, target == 0), rest.to_vec()]
            .concat();
        self.a.write_wqe(op, CtrlFlags::CQ_UPDATE, 0x0102_0304, &body);
    }
    fn write(&mut self, target: usize, at: u64, value: u64) {
        let rkey = self.b[target].keys.rkey;
        let rest =
            [Raddr::new(REMOTE + at, rkey).as_bytes(), &inline(&value.to_le_bytes())].concat();
        self.post(target, Opcode::RdmaWrite, &rest);
    }
    fn run(&mut self) -> Vec<Cqe> {
        self.a.ring();
        run_all(&mut self.nics, &mut self.now);
        self.a.poll_all()
    }
}

fn all_ok(cqes: &[Cqe], n: usize) {
    assert_eq!(cqes.len(), n, "{cqes:?}");
    let bad = cqes.iter().find(|c| c.opcode() != Some(CqeOpcode::Requester));
    assert!(bad.is_none(), "{:?}", bad.map(cause));
}

#[test]
fn an_initiator_turns_from_target_to_target() {
    let mut dc = setup(Faults::default(), Profile::NONE);
    for i in 0..10u64 {
        dc.write(i as usize % 2, i * 8, i + 1);
    }
    let cqes = dc.run();
    all_ok(&cqes, 10);
    for i in 0..10 {
        assert_eq!(dc.b[i % 2].memory.word(i * 8).load(RELAXED), i as u64 + 1);
        assert_eq!(dc.b[1 - i % 2].memory.word(i * 8).load(RELAXED), 0);
    }
}

#[test]
fn every_kind_of_operation_reaches_a_target() {
    let mut dc = setup(Faults::default(), Profile::NONE);
    dc.b[0].memory.word(8).store(40, RELAXED);
    let receive = [dc.b[0].data(4096, 64)];
    // NIC 2's side counts its own record; the DCT's is this one.
    dc.b[0].post_receive(&receive);
    dc.b[0].post_receive(&receive);
    dc.records[0].half(0).store(2u32.to_be(), RELEASE);
    let rkey = dc.b[0].keys.rkey;
    let at = |offset: u64| Raddr::new(REMOTE + offset, rkey).as_bytes().to_vec();
    let result = |offset: u64| dc.a.data(offset, 8).as_bytes().to_vec();
    let add = [at(8), 2u64.to_be_bytes().to_vec(), vec![0; 8], result(0)].concat();
    let read = [at(8), result(8)].concat();
    let immediate = [at(16), inline(&[7; 8])].concat();
    dc.post(0, Opcode::AtomicFa, &add);
    dc.post(0, Opcode::RdmaRead, &read);
    dc.post(0, Opcode::SendImm, &inline(&[9; 20]));
    dc.post(0, Opcode::RdmaWriteImm, &immediate);
    let cqes = dc.run();
    all_ok(&cqes, 4);
    assert_eq!(dc.a.memory.word(0).load(RELAXED), 40);
    assert_eq!(dc.a.memory.word(8).load(RELAXED), 42);
    assert_eq!(dc.b[0].bytes(4096, 20), [9; 20]);
    assert_eq!(dc.b[0].bytes(16, 8), [7; 8]);
    let received = dc.b[0].poll_all();
    assert_eq!(received.len(), 2);
    assert!(received.iter().all(|c| c.imm_inval.get() == 0x0102_0304 && c.qpn() == dc.dcts[0].0));
}

#[test]
fn bad_address_vectors_fail_with_their_cause() {
    let dct = setup(Faults::default(), Profile::NONE).dcts[0];
    let cases = [
        ("wrong key", vector(2, dct, KEY + 1, true), Check::DcKey),
        ("no such NIC", vector(9, dct, KEY, true), Check::NoRoute),
        ("cut short", vector(2, dct, KEY, true)[..16].to_vec(), Check::AddressVector),
    ];
    for (name, av, check) in cases {
        let mut dc = setup(Faults::default(), Profile::NONE);
        let rkey = dc.b[0].keys.rkey;
        let mut body = av;
        if check != Check::AddressVector {
            body.extend_from_slice(Raddr::new(REMOTE, rkey).as_bytes());
            body.extend_from_slice(&inline(&[1; 8]));
        }
        dc.a.write_wqe(Opcode::RdmaWrite, CtrlFlags::NONE, 0, &body);
        dc.write(1, 0, 1);
        let cqes = dc.run();
        assert_eq!(cqes.len(), 2, "{name}");
        assert_eq!(cause(&cqes[0]), (check.syndrome() as u8, check as u8), "{name}");
        assert_eq!(cqes[1].syndrome_byte(), Syndrome::Flushed as u8, "{name}");
        assert_eq!(dc.b[0].memory.word(0).load(RELAXED), 0, "{name}");
    }
}

#[test]
fn a_target_that_is_gone_ends_the_retries() {
    let mut dc = setup(Faults::default(), Profile::NONE);
    let dct = dc.dcts[0];
    dc.nics[1].destroy_dct(dct).unwrap();
    dc.write(0, 0, 1);
    let cqes = dc.run();
    assert_eq!(cause(&cqes[0]).1, Check::TransportRetry as u8);
}

#[test]
fn writes_and_sends_survive_loss_exactly_once() {
    for seed in 0..10 {
        let faults = Faults { drop_random: Some((6, seed)), ..Faults::default() };
        let mut dc = setup(faults, Profile::NONE);
        for target in 0..2 {
            for _ in 0..8 {
                let data: [Data; 1] = [dc.b[target].data(4096, 64)];
                dc.b[target].post_receive(&data);
            }
            dc.records[target].half(0).store(8u32.to_be(), RELEASE);
        }
        for i in 0..8u64 {
            dc.write(i as usize % 2, i * 8, i + 1);
            dc.post(i as usize % 2, Opcode::Send, &inline(&[i as u8; 12]));
        }
        let cqes = dc.run();
        all_ok(&cqes, 16);
        for target in 0..2 {
            assert_eq!(dc.b[target].poll_all().len(), 4, "seed {seed}");
        }
        for i in 0..8 {
            assert_eq!(dc.b[i % 2].memory.word(i * 8).load(RELAXED), i as u64 + 1);
        }
    }
}

#[test]
fn more_initiators_than_connections_still_get_through() {
    let mut nic = Nic::new(NicConfig {
        caps: Caps { max_dc_contexts: 8, ..Caps::default() },
        ..NicConfig::default()
    });
    let owner = side(&mut nic, REMOTE, &Options::default());
    let dct = nic
        .create_dct(DctAttr {
            pd: owner.pd,
            recv_cq: owner.cq,
            dc_key: KEY,
            access: Access::all(),
            rq: None,
            min_rnr_timer: 1,
        })
        .unwrap();
    let o = Options { kind: QpKind::Dci, ..Options::default() };
    let mut initiators: Vec<Side> = (0..20).map(|_| side(&mut nic, LOCAL, &o)).collect();
    let mut nics = vec![nic];
    for (i, dci) in initiators.iter_mut().enumerate() {
        connect(&mut nics[0], dci.qpn, 0, Qpn(0), &o);
        for k in 0..4 {
            let raddr = Raddr::new(REMOTE + (i * 4 + k) as u64 * 8, owner.keys.rkey);
            let body =
                [vector(0, dct, KEY, false), raddr.as_bytes().to_vec(), inline(&[1; 8])].concat();
            dci.write_wqe(Opcode::RdmaWrite, CtrlFlags::CQ_UPDATE, 0, &body);
        }
        dci.ring();
    }
    run_all(&mut nics, &mut 0);
    for dci in &mut initiators {
        all_ok(&dci.poll_all(), 4);
    }
    assert!((0..80).all(|i| owner.memory.word(i * 8).load(RELAXED) != 0));
}
