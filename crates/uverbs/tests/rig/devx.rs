//! Commands of the device's own format, as a client sends them that makes no mistake.

use wire::devx::{
    Field, NUMBER, OPCODE, Opcode, SHORT, ads, cqc, create_cq, create_dct, create_qp, dctc,
    modify_qp, qpc,
};

/// What commands name: registered memory, a doorbell page, a protection domain, an event queue.
pub struct Names {
    pub umem: u32,
    pub page: u32,
    pub pd: u32,
    pub eqn: u32,
}

pub fn cq_command(names: &Names, at: u64, record: u64) -> Vec<u8> {
    let mut command = vec![0; create_cq::IN];
    OPCODE.set(&mut command, Opcode::CreateCq as u64);
    for (field, value) in [
        (create_cq::CQ_UMEM_ID, u64::from(names.umem)),
        (create_cq::CQ_UMEM_VALID, 1),
        (create_cq::CQ_UMEM_OFFSET, at),
        (cq(cqc::DBR_UMEM_VALID), 1),
        (cq(cqc::DBR_UMEM_ID), u64::from(names.umem)),
        (cq(cqc::DBR_ADDR), record),
        (cq(cqc::LOG_CQ_SIZE), 4),
        (cq(cqc::UAR_PAGE), u64::from(names.page)),
        (cq(cqc::C_EQN), u64::from(names.eqn)),
    ] {
        field.set(&mut command, value);
    }
    command
}

/// 16 blocks of sends behind 4 receives.
pub fn qp_command(names: &Names, cqn: u32, at: u64, record: u64) -> Vec<u8> {
    let mut command = vec![0; create_qp::IN];
    OPCODE.set(&mut command, Opcode::CreateQp as u64);
    for (field, value) in [
        (create_qp::WQ_UMEM_ID, u64::from(names.umem)),
        (create_qp::WQ_UMEM_VALID, 1),
        (create_qp::WQ_UMEM_OFFSET, at),
        (qp(qpc::PM_STATE), 3),
        (qp(qpc::PD), u64::from(names.pd)),
        (qp(qpc::LOG_RQ_SIZE), 2),
        (qp(qpc::LOG_SQ_SIZE), 4),
        (qp(qpc::UAR_PAGE), u64::from(names.page)),
        (qp(qpc::USER_INDEX), 7),
        (qp(qpc::CQN_SND), u64::from(cqn)),
        (qp(qpc::CQN_RCV), u64::from(cqn)),
        (qp(qpc::DBR_UMEM_VALID), 1),
        (qp(qpc::DBR_UMEM_ID), u64::from(names.umem)),
        (qp(qpc::DBR_ADDR), record),
    ] {
        field.set(&mut command, value);
    }
    command
}

pub fn dct_command(names: &Names, cqn: u32) -> Vec<u8> {
    let mut command = vec![0; create_dct::IN];
    OPCODE.set(&mut command, Opcode::CreateDct as u64);
    for (field, value) in [
        (dctc::PD, u64::from(names.pd)),
        (dctc::CQN, u64::from(cqn)),
        (dctc::RWE, 1),
        (dctc::MTU, 5),
        (dctc::PORT, 1),
        (dctc::DC_ACCESS_KEY, 0xdc),
    ] {
        field.within(create_dct::DCTC).set(&mut command, value);
    }
    command
}

pub fn cq(field: Field) -> Field {
    field.within(create_cq::CQC)
}

pub fn qp(field: Field) -> Field {
    field.within(create_qp::QPC)
}

pub fn path(field: Field) -> Field {
    qp(field.within(qpc::PRIMARY_PATH))
}

pub fn short(opcode: Opcode, number: u32) -> Vec<u8> {
    let mut command = vec![0; SHORT];
    OPCODE.set(&mut command, opcode as u64);
    NUMBER.set(&mut command, u64::from(number));
    command
}

/// The commands that take an RC pair from reset to where it sends, to a peer on LID 1.
pub fn step_command(step: usize, qpn: u32, peer: u32) -> Vec<u8> {
    let opcode = [Opcode::Rst2InitQp, Opcode::Init2RtrQp, Opcode::Rtr2RtsQp][step];
    let mut command = short(opcode, qpn);
    command.resize(modify_qp::IN, 0);
    let fields: &[(Field, u64)] = match step {
        0 => &[
            (qp(qpc::RWE), 1),
            (qp(qpc::RAE), 1),
            (qp(qpc::ATOMIC_MODE), 3),
            (qp(qpc::PM_STATE), 3),
            (path(ads::VHCA_PORT_NUM), 1),
        ],
        1 => &[
            (qp(qpc::MTU), 5),
            (qp(qpc::LOG_MSG_MAX), 30),
            (qp(qpc::REMOTE_QPN), peer as u64),
            (qp(qpc::LOG_RRA_MAX), 4),
            (qp(qpc::MIN_RNR_NAK), 12),
            (path(ads::RLID), 1),
        ],
        _ => &[
            (qp(qpc::LOG_SRA_MAX), 4),
            (qp(qpc::RETRY_COUNT), 7),
            (qp(qpc::RNR_RETRY), 7),
            (path(ads::ACK_TIMEOUT), 14),
        ],
    };
    for (field, value) in fields {
        field.set(&mut command, *value);
    }
    command
}
