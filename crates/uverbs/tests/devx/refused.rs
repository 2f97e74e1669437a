//! Commands that are refused: each changes one thing of one that isn't.

use uverbs::{Errno, LinkLayer};
use wire::devx::{
    Field, OPCODE, Opcode, Status, ads, cqc, create_cq, create_dct, create_qp, dctc, modify_qp,
    qpc, query_dct, query_qp,
};

use crate::rig::*;
use crate::side::*;

/// What a command is changed by, and the status that it then ends with.
type Case<'a> = (&'a str, &'a [(Field, u64)], Status);

fn refused(side: &mut Side, command: &[u8], (what, changes, expected): Case<'_>) {
    let mut changed = command.to_vec();
    for (field, value) in changes {
        field.set(&mut changed, *value);
    }
    let Err((errno, status, syndrome)) = side.create(&changed) else { panic!("{what}") };
    assert_eq!((errno, status), (Errno::EREMOTEIO, expected as u8), "{what}");
    assert_ne!(syndrome, 0, "{what}");
}

#[test]
fn completion_queues_are_refused_as_firmware_refuses_them() {
    let mut side = Side::new(LinkLayer::InfiniBand);
    let command = side.cq_command();
    let (_, read_only) = umem(&mut side.client, QUEUES, QUEUES_LEN, 0).unwrap();
    for case in [
        ("not in a umem", &[(create_cq::CQ_UMEM_VALID, 0)][..], Status::BadParam),
        ("record not in a umem", &[(cq(cqc::DBR_UMEM_VALID), 0)], Status::BadParam),
        ("no such umem", &[(create_cq::CQ_UMEM_ID, 0x7777)], Status::BadResource),
        ("no such umem for the record", &[(cq(cqc::DBR_UMEM_ID), 0)], Status::BadResource),
        ("not writable", &[(create_cq::CQ_UMEM_ID, read_only.into())], Status::BadParam),
        ("past the end", &[(create_cq::CQ_UMEM_OFFSET, QUEUES_LEN - 512)], Status::BadParam),
        ("far past the end", &[(create_cq::CQ_UMEM_OFFSET, u64::MAX - 63)], Status::BadParam),
        ("record past the end", &[(cq(cqc::DBR_ADDR), QUEUES_LEN - 4)], Status::BadParam),
        ("not aligned", &[(create_cq::CQ_UMEM_OFFSET, CQ_AT + 8)], Status::BadParam),
        ("record not aligned", &[(cq(cqc::DBR_ADDR), RECORDS + 4)], Status::BadParam),
        ("too deep", &[(cq(cqc::LOG_CQ_SIZE), 23)], Status::Limit),
        ("size of an entry", &[(cq(cqc::CQE_SZ), 2)], Status::BadParam),
        ("compressed", &[(cq(cqc::CQE_COMP_EN), 1)], Status::BadParam),
        ("event queue", &[(cq(cqc::C_EQN), 200)], Status::BadResource),
        ("doorbell page", &[(cq(cqc::UAR_PAGE), 999)], Status::BadResource),
    ] {
        refused(&mut side, &command, case);
    }
    let cut = &command[..create_cq::IN - 4];
    let (errno, status, _) = side.create(cut).unwrap_err();
    assert_eq!((errno, status), (Errno::EREMOTEIO, Status::BadInputLength as u8));
    side.create(&command).unwrap();
}

#[test]
fn queue_pairs_are_refused_as_firmware_refuses_them() {
    let mut side = Side::new(LinkLayer::InfiniBand);
    let (_, cqn) = side.cq();
    let command = side.qp_command(cqn);
    for case in [
        ("not in a umem", &[(create_qp::WQ_UMEM_VALID, 0)][..], Status::BadParam),
        ("no such umem", &[(create_qp::WQ_UMEM_ID, 0x7777)], Status::BadResource),
        ("past the end", &[(create_qp::WQ_UMEM_OFFSET, QUEUES_LEN - 1024)], Status::BadParam),
        ("sends past the end", &[(qp(qpc::LOG_SQ_SIZE), 15)], Status::BadParam),
        ("receives past the end", &[(qp(qpc::LOG_RQ_SIZE), 15)], Status::BadParam),
        ("stride of receives", &[(qp(qpc::LOG_RQ_STRIDE), 6)], Status::Limit),
        ("domain", &[(qp(qpc::PD), 0x77_7777)], Status::BadResource),
        ("doorbell page", &[(qp(qpc::UAR_PAGE), 999)], Status::BadResource),
        ("CQ", &[(qp(qpc::CQN_SND), 0x77_7777)], Status::BadResource),
        ("CQ of receives", &[(qp(qpc::CQN_RCV), 0x77_7777)], Status::BadResource),
        ("service", &[(qp(qpc::ST), 1)], Status::BadParam),
        ("shared receives", &[(qp(qpc::RQ_TYPE), 1), (qp(qpc::SRQN), 99)], Status::BadResource),
        ("kind of receives", &[(qp(qpc::RQ_TYPE), 2)], Status::BadParam),
        ("without a record", &[(qp(qpc::SEND_DBR_MODE), 2)], Status::BadParam),
        ("migration", &[(qp(qpc::PM_STATE), 1)], Status::BadParam),
        ("another kind of object", &[(OPCODE, Opcode::CreateMkey as u64)], Status::BadOp),
    ] {
        refused(&mut side, &command, case);
    }
    let mut unknown = command.clone();
    OPCODE.set(&mut unknown, 0xfff);
    assert_eq!(side.create(&unknown).unwrap_err().0, Errno::EINVAL);
    // Without receives their CQ isn't looked at, and without sends theirs.
    for changes in [
        [(qp(qpc::RQ_TYPE), 3), (qp(qpc::CQN_RCV), 0)],
        [(qp(qpc::NO_SQ), 1), (qp(qpc::CQN_SND), 0)],
    ] {
        let mut changed = command.clone();
        changes.iter().for_each(|(field, value)| field.set(&mut changed, *value));
        let (handle, _) = side.create(&changed).unwrap();
        side.destroy(handle).unwrap();
    }
}

#[test]
fn states_are_passed_through_in_order_and_with_what_can_be() {
    let mut side = Side::new(LinkLayer::InfiniBand);
    let (_, cqn) = side.cq();
    let (handle, qpn) = side.create(&side.qp_command(cqn)).unwrap();
    let mut number = step_command(0, qpn + 1, qpn);
    assert_eq!(side.modify(handle, &number).unwrap_err().0, Errno::EINVAL);
    OPCODE.set(&mut number, Opcode::QueryQp as u64);
    assert_eq!(side.modify(handle, &number).unwrap_err().0, Errno::EINVAL);
    let cases: [(usize, &[Case<'_>]); 3] = [
        (
            0,
            &[
                ("port", &[(path(ads::VHCA_PORT_NUM), 2)], Status::BadParam),
                ("partition", &[(path(ads::PKEY_INDEX), 128)], Status::BadParam),
                ("migration", &[(qp(qpc::PM_STATE), 1)], Status::BadParam),
                ("atomics without a mode", &[(qp(qpc::ATOMIC_MODE), 0)], Status::BadParam),
                ("later", &[(OPCODE, Opcode::Rtr2RtsQp as u64)], Status::BadQpState),
            ],
        ),
        (
            1,
            &[
                ("no MTU", &[(qp(qpc::MTU), 0)], Status::BadParam),
                ("MTU", &[(qp(qpc::MTU), 6)], Status::BadParam),
                ("message", &[(qp(qpc::LOG_MSG_MAX), 31)], Status::BadParam),
                ("reads", &[(qp(qpc::LOG_RRA_MAX), 5)], Status::BadParam),
                ("no LID", &[(path(ads::RLID), 0)], Status::BadParam),
                (
                    "no such GID",
                    &[(path(ads::GRH), 1), (path(ads::SRC_ADDR_INDEX), 9)],
                    Status::BadParam,
                ),
                ("before", &[(OPCODE, Opcode::Rst2InitQp as u64)], Status::BadQpState),
                ("never", &[(OPCODE, Opcode::SqdRtsQp as u64)], Status::BadOp),
            ],
        ),
        (2, &[("reads", &[(qp(qpc::LOG_SRA_MAX), 5)], Status::BadParam)]),
    ];
    for (step, cases) in cases {
        for &(what, changes, expected) in cases {
            let mut command = step_command(step, qpn, qpn);
            changes.iter().for_each(|(field, value)| field.set(&mut command, *value));
            let Err((errno, status, _)) = side.modify(handle, &command) else { panic!("{what}") };
            assert_eq!((errno, status), (Errno::EREMOTEIO, expected as u8), "{what}");
        }
        side.modify(handle, &step_command(step, qpn, qpn)).unwrap();
    }
    // What is optional counts if the mask says so.
    let mut command = step_command(2, qpn, qpn);
    OPCODE.set(&mut command, Opcode::Rts2RtsQp as u64);
    qp(qpc::RRE).set(&mut command, 1);
    for mask in [0, modify_qp::opt::RRE] {
        modify_qp::OPT_PARAM_MASK.set(&mut command, u64::from(mask));
        side.modify(handle, &command).unwrap();
        let answer = side.query(handle, Opcode::QueryQp, qpn, query_qp::OUT);
        let allowed = qpc::RRE.within(query_qp::QPC).is_set(&answer);
        assert_eq!(allowed, mask != 0);
    }
}

#[test]
fn on_ethernet_a_path_is_a_gid() {
    let mut side = Side::new(LinkLayer::Ethernet);
    let (_, cqn) = side.cq();
    let (handle, qpn) = side.create(&side.qp_command(cqn)).unwrap();
    side.modify(handle, &step_command(0, qpn, qpn)).unwrap();
    let mut command = step_command(1, qpn, qpn);
    path(ads::SRC_ADDR_INDEX).set(&mut command, 3);
    assert_eq!(side.modify(handle, &command).unwrap_err().1, Status::BadParam as u8);
    path(ads::RGID_LOW).set(&mut command, 0xffff_c0a8_8201);
    side.modify(handle, &command).unwrap();
    side.modify(handle, &step_command(2, qpn, qpn)).unwrap();
}

#[test]
fn dc_targets_are_made_asked_about_and_refused() {
    let mut side = Side::new(LinkLayer::InfiniBand);
    let (_, cqn) = side.cq();
    let command = side.dct_command(cqn);
    let of = |field: Field| field.within(create_dct::DCTC);
    for case in [
        ("domain", &[(of(dctc::PD), 0x77_7777)][..], Status::BadResource),
        ("CQ", &[(of(dctc::CQN), 0x77_7777)], Status::BadResource),
        ("port", &[(of(dctc::PORT), 0)], Status::BadParam),
        ("MTU", &[(of(dctc::MTU), 0)], Status::BadParam),
        ("partition", &[(of(dctc::PKEY_INDEX), 128)], Status::BadParam),
        ("atomics without a mode", &[(of(dctc::RAE), 1)], Status::BadParam),
        ("shared receives", &[(of(dctc::SRQN), 99)], Status::BadResource),
    ] {
        refused(&mut side, &command, case);
    }
    let (handle, dctn) = side.create(&command).unwrap();
    let answer = side.query(handle, Opcode::QueryDct, dctn, query_dct::OUT);
    assert_eq!(dctc::DC_ACCESS_KEY.within(query_dct::DCTC).get(&answer), 0xdc);
    side.destroy(handle).unwrap();
}

#[test]
fn objects_of_another_context_are_nobodys() {
    let mut side = Side::new(LinkLayer::InfiniBand);
    let mut client = Client::new(&side.host);
    let mut asked = ucontext(2);
    asked[8] = 1;
    client.write(0, &[&[0; 8], &asked[..]].concat(), 8 + 72).unwrap();
    let (_, umem) = umem(&mut client, QUEUES, QUEUES_LEN, 1).unwrap();
    let pdn = u32_at(&client.write(3, &[0; 8], 8).unwrap(), 4);
    let (_, page) = client.uar();
    let cq_command = side.cq_command();
    for case in [
        ("umem", &[(create_cq::CQ_UMEM_ID, umem.into())][..], Status::BadResource),
        ("doorbell page", &[(cq(cqc::UAR_PAGE), page.into())], Status::BadResource),
    ] {
        refused(&mut side, &cq_command, case);
    }
    let (_, cqn) = side.cq();
    let qp_command = side.qp_command(cqn);
    refused(&mut side, &qp_command, ("domain", &[(qp(qpc::PD), pdn.into())], Status::BadResource));
}
