//! The states of queue pairs made by command.

use softnic::{Access, Modify, QpKind, QpState, QpUpdate, Qpn};
use wire::devx::{Field, Opcode, SHORT, ads, modify_qp, qpc};

use super::qp::Qp;
use super::{Fail, Mailbox, Refusal, with_port};
use crate::commands::LEAST_TIMEOUT;
use crate::config::{DeviceConfig, LinkLayer};
use crate::context::Context;

const fn path(field: Field) -> Field {
    field.within(qpc::PRIMARY_PATH)
}

/// What a step sets, and what else it may where the mask of optional parameters says so.
struct Step {
    opcode: Opcode,
    from: &'static [QpState],
    sets: &'static [Field],
    may: &'static [(u32, Field)],
}

const ACCESS: [Field; 4] = [qpc::RRE, qpc::RWE, qpc::RAE, qpc::ATOMIC_MODE];
const OPTIONAL_ACCESS: [(u32, Field); 4] = [
    (modify_qp::opt::RRE, qpc::RRE),
    (modify_qp::opt::RWE, qpc::RWE),
    (modify_qp::opt::RAE, qpc::RAE),
    (modify_qp::opt::RAE, qpc::ATOMIC_MODE),
];
const OPTIONAL: [(u32, Field); 6] = [
    OPTIONAL_ACCESS[0],
    OPTIONAL_ACCESS[1],
    OPTIONAL_ACCESS[2],
    OPTIONAL_ACCESS[3],
    (modify_qp::opt::PKEY_INDEX, path(ads::PKEY_INDEX)),
    (modify_qp::opt::RNR_TIMEOUT, qpc::MIN_RNR_NAK),
];

const STEPS: &[Step] = &[
    Step {
        opcode: Opcode::Rst2InitQp,
        from: &[QpState::Reset],
        sets: &[
            ACCESS[0],
            ACCESS[1],
            ACCESS[2],
            ACCESS[3],
            qpc::PM_STATE,
            path(ads::PKEY_INDEX),
            path(ads::VHCA_PORT_NUM),
            qpc::DC_ACCESS_KEY,
        ],
        may: &[],
    },
    Step { opcode: Opcode::Init2InitQp, from: &[QpState::Init], sets: &[], may: &OPTIONAL },
    Step {
        opcode: Opcode::Init2RtrQp,
        from: &[QpState::Init],
        sets: &[
            qpc::MTU,
            qpc::LOG_MSG_MAX,
            qpc::REMOTE_QPN,
            qpc::LOG_RRA_MAX,
            qpc::MIN_RNR_NAK,
            qpc::NEXT_RCV_PSN,
            path(ads::GRH),
            path(ads::MLID),
            path(ads::RLID),
            path(ads::SRC_ADDR_INDEX),
            path(ads::HOP_LIMIT),
            path(ads::TCLASS),
            path(ads::FLOW_LABEL),
            path(ads::RGID_HIGH),
            path(ads::RGID_LOW),
            path(ads::DSCP),
            path(ads::UDP_SPORT),
            path(ads::ETH_PRIO),
            path(ads::SL),
            path(ads::RMAC_HIGH),
            path(ads::RMAC_LOW),
        ],
        may: &OPTIONAL,
    },
    Step {
        opcode: Opcode::Rtr2RtsQp,
        from: &[QpState::Rtr],
        sets: &[
            qpc::LOG_ACK_REQ_FREQ,
            qpc::LOG_SRA_MAX,
            qpc::RETRY_COUNT,
            qpc::RNR_RETRY,
            qpc::NEXT_SEND_PSN,
            path(ads::ACK_TIMEOUT),
        ],
        may: &OPTIONAL,
    },
    Step { opcode: Opcode::Rts2RtsQp, from: &[QpState::Rts], sets: &[], may: &OPTIONAL },
];

/// What the peer may do, as a context says.
fn access(context: &[u8]) -> Access {
    let mut access = Access::empty();
    for (field, to) in [
        (qpc::RRE, Access::REMOTE_READ),
        (qpc::RWE, Access::REMOTE_WRITE),
        (qpc::RAE, Access::REMOTE_ATOMIC),
    ] {
        access.set(to, field.is_set(context));
    }
    access
}

/// The new context of a pair, and the answer. Nothing has changed if it fails.
pub(super) fn modify(
    context: &Context,
    qp: &Qp,
    opcode: Opcode,
    mailbox: &Mailbox<'_>,
) -> Result<(Vec<u8>, Vec<u8>), Fail> {
    if matches!(opcode, Opcode::Qp2Err | Opcode::Qp2Rst) {
        let answer = mailbox.answer(SHORT, SHORT)?;
        return end(context, qp, opcode).map(|kept| (kept, answer));
    }
    let step = STEPS.iter().find(|step| step.opcode == opcode).ok_or(Refusal::Unsupported)?;
    let answer = mailbox.answer(modify_qp::IN, SHORT)?;
    let given = &mailbox.input[modify_qp::QPC as usize / 8..];
    let mask = mailbox.get32(modify_qp::OPT_PARAM_MASK);
    let mut kept = qp.context.clone();
    let may = step.may.iter().filter(|(bit, _)| mask & bit != 0).map(|(_, field)| field);
    for field in step.sets.iter().chain(may) {
        field.set(&mut kept, field.get(given));
    }
    let info =
        with_port(context, |port, _| port.nic.query_qp(qp.qpn).ok_or(Refusal::Number.into()))?;
    if !step.from.contains(&info.state) {
        return Err(Refusal::State.into());
    }
    check(&context.device, qp.kind, opcode, &kept)?;
    apply(context, qp, opcode, &kept)?;
    Ok((kept, answer))
}

fn end(context: &Context, qp: &Qp, opcode: Opcode) -> Result<Vec<u8>, Fail> {
    with_port(context, |port, _| {
        let state = port.nic.query_qp(qp.qpn).ok_or(Refusal::Number)?.state;
        match opcode {
            Opcode::Qp2Rst => port.nic.modify_qp(qp.qpn, Modify::ToReset),
            // There is nothing to be flushed.
            _ if state == QpState::Reset => Ok(()),
            _ => port.nic.modify_qp(qp.qpn, Modify::ToError),
        }
        .map_err(Refusal::from)?;
        Ok(qp.context.clone())
    })
}

/// log2 of reads and atomics in flight, at most.
const LOG_READS: u64 = 4;

/// Whether each attribute of a step can be.
fn check(
    device: &DeviceConfig,
    kind: QpKind,
    opcode: Opcode,
    context: &[u8],
) -> Result<(), Refusal> {
    let is_ib = device.link_layer == LinkLayer::InfiniBand;
    let pkeys = if is_ib { 128 } else { 1 };
    let atomic = qpc::ATOMIC_MODE.get32(context);
    let holds = |is_right, refusal| if is_right { Ok(()) } else { Err(refusal) };
    holds(path(ads::PKEY_INDEX).get(context) < pkeys, Refusal::Pkey)?;
    holds(
        !qpc::RAE.is_set(context) || (1..=qpc::ATOMIC_64).contains(&atomic),
        Refusal::AtomicMode,
    )?;
    match opcode {
        Opcode::Rst2InitQp => {
            holds(path(ads::VHCA_PORT_NUM).get(context) == 1, Refusal::Port)?;
            // Programs leave it at 0, too.
            holds(matches!(qpc::PM_STATE.get32(context), 0 | qpc::MIGRATED), Refusal::Migration)
        }
        Opcode::Init2RtrQp => {
            let mtu = qpc::MTU.get(context);
            holds((1..=u64::from(device.port.mtu.code())).contains(&mtu), Refusal::Mtu)?;
            holds(qpc::LOG_MSG_MAX.get(context) <= 30, Refusal::Message)?;
            holds(qpc::LOG_RRA_MAX.get(context) <= LOG_READS, Refusal::ReadDepth)?;
            // A DC initiator's peers are named by what it sends.
            holds(kind == QpKind::Dci || names_a_peer(device, context), Refusal::Path)
        }
        Opcode::Rtr2RtsQp => holds(qpc::LOG_SRA_MAX.get(context) <= LOG_READS, Refusal::ReadDepth),
        _ => Ok(()),
    }
}

fn gid(context: &[u8]) -> [u8; 16] {
    let [high, low] = [ads::RGID_HIGH, ads::RGID_LOW].map(|field| path(field).get(context));
    (u128::from(high) << 64 | u128::from(low)).to_be_bytes()
}

fn names_a_peer(device: &DeviceConfig, context: &[u8]) -> bool {
    let source = path(ads::SRC_ADDR_INDEX).get(context);
    let has_source = source < device.gids().len() as u64;
    match device.link_layer {
        LinkLayer::InfiniBand => {
            path(ads::RLID).is_set(context) && (!path(ads::GRH).is_set(context) || has_source)
        }
        LinkLayer::Ethernet => has_source && gid(context) != [0; 16],
    }
}

/// The device that a path leads to.
fn destination(context: &Context, qp: &[u8]) -> Option<u16> {
    let lid = path(ads::RLID).get(qp);
    context.shared.device_of(|device| match context.device.link_layer {
        LinkLayer::InfiniBand => u64::from(device.lid()) == lid,
        LinkLayer::Ethernet => device.gids().iter().any(|(known, _)| *known == gid(qp)),
    })
}

fn apply(context: &Context, qp: &Qp, opcode: Opcode, kept: &[u8]) -> Result<(), Fail> {
    let device = destination(context, kept);
    let of = |field: Field| field.get32(kept);
    with_port(context, |port, fabric| {
        let step = match opcode {
            Opcode::Rst2InitQp | Opcode::Init2InitQp => {
                Some(Modify::ToInit { access: access(kept) })
            }
            Opcode::Init2RtrQp => Some(Modify::ToRtr {
                dest_nic: match qp.kind {
                    QpKind::Dci => 0,
                    _ => port.route(fabric, device, of(qpc::REMOTE_QPN))?,
                },
                dest_qpn: Qpn(of(qpc::REMOTE_QPN)),
                rq_psn: of(qpc::NEXT_RCV_PSN),
                max_dest_rd_atomic: 1 << of(qpc::LOG_RRA_MAX),
                min_rnr_timer: of(qpc::MIN_RNR_NAK) as u8,
            }),
            Opcode::Rtr2RtsQp => Some(Modify::ToRts {
                sq_psn: of(qpc::NEXT_SEND_PSN),
                retry_cnt: of(qpc::RETRY_COUNT) as u8,
                rnr_retry: of(qpc::RNR_RETRY) as u8,
                timeout: match of(path(ads::ACK_TIMEOUT)) as u8 {
                    0 => 0,
                    asked => asked.max(LEAST_TIMEOUT),
                },
                max_rd_atomic: 1 << of(qpc::LOG_SRA_MAX),
            }),
            _ => None,
        };
        if let Some(step) = step {
            port.nic.modify_qp(qp.qpn, step).map_err(Refusal::from)?;
        }
        let update = QpUpdate {
            access: Some(access(kept)),
            min_rnr_timer: Some(of(qpc::MIN_RNR_NAK) as u8),
            user_index: None,
        };
        port.nic.update_qp(qp.qpn, update).map_err(Refusal::from)?;
        Ok(())
    })
}
