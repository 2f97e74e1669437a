//! Queue pairs: their states and attributes.

use softnic::{Modify, QpState, QpUpdate, Qpn};

use super::{Command, Reply, Request, ah, qp};
use crate::abi::{AhAttr, EXTENDED, IbAccess, ModifyQp, QpDest, QueryQp, QueryQpResp};
use crate::attr::parse;
use crate::config::{DeviceConfig, LinkLayer};
use crate::context::Context;
use crate::errno::Errno;
use crate::objects::Object;

pub(super) const QUERY_QP: Command = Command {
    name: "QUERY_QP",
    number: 25,
    core_in: size_of::<QueryQp>(),
    core_out: size_of::<QueryQpResp>(),
    is_first: false,
    run: query,
};

pub(super) const MODIFY_QP: Command = Command {
    name: "MODIFY_QP",
    number: 26,
    core_in: size_of::<ModifyQp>(),
    core_out: 0,
    is_first: false,
    run: |context, request| {
        modify(context, &parse(&request.core[..size_of::<ModifyQp>()])?)?;
        Ok(Reply::default())
    },
};

pub(super) const MODIFY_QP_EX: Command = Command {
    name: "MODIFY_QP_EX",
    number: 26 | EXTENDED,
    core_in: size_of::<ModifyQp>(),
    core_out: 0,
    is_first: false,
    run: |context, request| {
        modify(context, &parse(&request.core[..size_of::<ModifyQp>()])?)?;
        let room = [request.core_room, request.driver_room].map(|room| room as u32);
        // Both parts begin with, or are, their length.
        Ok(Reply::new(&[0, room[0].min(8)]).with(&[room[1].min(16), 0, 0, 0]))
    },
};

/// Bits of `attr_mask`.
mod mask {
    pub(super) const STATE: u32 = 1;
    pub(super) const CUR_STATE: u32 = 1 << 1;
    pub(super) const ACCESS: u32 = 1 << 3;
    pub(super) const PKEY: u32 = 1 << 4;
    pub(super) const PORT: u32 = 1 << 5;
    pub(super) const AV: u32 = 1 << 7;
    pub(super) const PATH_MTU: u32 = 1 << 8;
    pub(super) const TIMEOUT: u32 = 1 << 9;
    pub(super) const RETRY_CNT: u32 = 1 << 10;
    pub(super) const RNR_RETRY: u32 = 1 << 11;
    pub(super) const RQ_PSN: u32 = 1 << 12;
    pub(super) const MAX_RD: u32 = 1 << 13;
    pub(super) const MIN_RNR_TIMER: u32 = 1 << 15;
    pub(super) const SQ_PSN: u32 = 1 << 16;
    pub(super) const MAX_DEST_RD: u32 = 1 << 17;
    pub(super) const PATH_MIG_STATE: u32 = 1 << 18;
    pub(super) const DEST_QPN: u32 = 1 << 20;
}

/// `enum ib_qp_state`.
mod state {
    pub(super) const RESET: u8 = 0;
    pub(super) const INIT: u8 = 1;
    pub(super) const RTR: u8 = 2;
    pub(super) const RTS: u8 = 3;
    pub(super) const SQD: u8 = 4;
    pub(super) const ERR: u8 = 6;
}

const fn number(state: QpState) -> u8 {
    match state {
        QpState::Reset => state::RESET,
        QpState::Init => state::INIT,
        QpState::Rtr => state::RTR,
        QpState::Rts => state::RTS,
        QpState::Error => state::ERR,
    }
}

/// From a state to another: the attributes that must be given, and those that may be.
struct Transition {
    from: u8,
    to: u8,
    must: u32,
    may: u32,
}

const fn transition(from: u8, to: u8, must: u32, may: u32) -> Transition {
    Transition { from, to, must, may }
}

/// What an RC queue pair may do; to RESET and to ERROR it may go from everywhere, with nothing.
const TRANSITIONS: &[Transition] = &[
    transition(state::RESET, state::INIT, mask::PKEY | mask::PORT | mask::ACCESS, 0),
    transition(state::INIT, state::INIT, 0, mask::PKEY | mask::PORT | mask::ACCESS),
    transition(
        state::INIT,
        state::RTR,
        mask::AV
            | mask::PATH_MTU
            | mask::DEST_QPN
            | mask::RQ_PSN
            | mask::MAX_DEST_RD
            | mask::MIN_RNR_TIMER,
        mask::ACCESS | mask::PKEY,
    ),
    transition(
        state::RTR,
        state::RTS,
        mask::TIMEOUT | mask::RETRY_CNT | mask::RNR_RETRY | mask::SQ_PSN | mask::MAX_RD,
        mask::CUR_STATE | mask::ACCESS | mask::MIN_RNR_TIMER | mask::PATH_MIG_STATE,
    ),
    transition(
        state::RTS,
        state::RTS,
        0,
        mask::CUR_STATE | mask::ACCESS | mask::MIN_RNR_TIMER | mask::PATH_MIG_STATE,
    ),
];

/// Acknowledgements are waited for at least this long (4.096 us * 2^16): the peer's engine is a thread that has to
/// be given a processor first.
pub(crate) const LEAST_TIMEOUT: u8 = 16;

fn modify(context: &mut Context, asked: &ModifyQp) -> Result<(), Errno> {
    let object = qp::qp(context, asked.qp_handle).ok_or(Errno::EINVAL)?;
    let qpn = object.qpn;
    let mut attr = object.attr;
    let from = context.with_port(|port, _| port.nic.query_qp(qpn).ok_or(Errno::EINVAL))?.state;
    let from = number(from);
    let given = asked.attr_mask;
    if given & mask::CUR_STATE != 0 && asked.cur_qp_state != from {
        return Err(Errno::EINVAL);
    }
    let to = if given & mask::STATE == 0 { from } else { asked.qp_state };
    if to == state::SQD {
        return Err(Errno::EOPNOTSUPP);
    }
    if !matches!(to, state::RESET | state::ERR) {
        let allowed = TRANSITIONS.iter().find(|known| known.from == from && known.to == to);
        let Transition { must, may, .. } = allowed.ok_or(Errno::EINVAL)?;
        if given & must != *must || given & !(must | may | mask::STATE) != 0 {
            return Err(Errno::EINVAL);
        }
        check(&context.device, asked)?;
        take(&mut attr, asked);
    }
    let device = destination(context, &attr.dest);
    context.with_port(|port, fabric| {
        let nic_access = IbAccess::from_bits_truncate(attr.qp_access_flags).of_nic();
        let step = match to {
            _ if from == to && to != state::INIT => None,
            state::INIT => Some(Modify::ToInit { access: nic_access }),
            state::RTR => {
                let dest_nic = port.route(fabric, device, attr.dest_qp_num)?;
                Some(Modify::ToRtr {
                    dest_nic,
                    dest_qpn: Qpn(attr.dest_qp_num),
                    rq_psn: attr.rq_psn,
                    max_dest_rd_atomic: attr.max_dest_rd_atomic,
                    min_rnr_timer: attr.min_rnr_timer,
                })
            }
            state::RTS => Some(Modify::ToRts {
                sq_psn: attr.sq_psn,
                retry_cnt: attr.retry_cnt,
                rnr_retry: attr.rnr_retry,
                timeout: if attr.timeout == 0 { 0 } else { attr.timeout.max(LEAST_TIMEOUT) },
                max_rd_atomic: attr.max_rd_atomic,
            }),
            state::RESET => Some(Modify::ToReset),
            state::ERR if from == state::RESET => None,
            state::ERR => Some(Modify::ToError),
            _ => return Err(Errno::EINVAL),
        };
        if let Some(step) = step {
            port.nic.modify_qp(qpn, step)?;
        }
        let update = QpUpdate {
            access: (given & mask::ACCESS != 0).then_some(nic_access),
            min_rnr_timer: (given & mask::MIN_RNR_TIMER != 0).then_some(attr.min_rnr_timer),
            user_index: None,
        };
        port.nic.update_qp(qpn, update)?;
        Ok(())
    })?;
    if let Some(Object::Qp(object)) = context.objects.get_mut(asked.qp_handle) {
        object.attr = if to == state::RESET { ModifyQp::default() } else { attr };
    }
    Ok(())
}

/// Whether each attribute that is given can be.
fn check(device: &DeviceConfig, asked: &ModifyQp) -> Result<(), Errno> {
    let given = |bit| asked.attr_mask & bit != 0;
    let pkeys = if device.link_layer == LinkLayer::InfiniBand { 128 } else { 1 };
    let access = IbAccess::LOCAL_WRITE
        | IbAccess::REMOTE_WRITE
        | IbAccess::REMOTE_READ
        | IbAccess::REMOTE_ATOMIC;
    let in_range = [
        (mask::PORT, asked.port_num == 1),
        (mask::PKEY, asked.pkey_index < pkeys),
        (mask::ACCESS, asked.qp_access_flags & !access.bits() == 0),
        (mask::PATH_MTU, (1..=DeviceConfig::MTU).contains(&asked.path_mtu)),
        (mask::DEST_QPN, asked.dest_qp_num <= wire::NUMBER_MASK),
        (mask::MAX_DEST_RD, asked.max_dest_rd_atomic <= 16),
        (mask::MAX_RD, asked.max_rd_atomic <= 16),
        (mask::MIN_RNR_TIMER, asked.min_rnr_timer <= 31),
        (mask::TIMEOUT, asked.timeout <= 31),
        (mask::RETRY_CNT, asked.retry_cnt <= 7),
        (mask::RNR_RETRY, asked.rnr_retry <= 7),
    ];
    if in_range.iter().any(|&(bit, is_right)| given(bit) && !is_right) {
        return Err(Errno::EINVAL);
    }
    if given(mask::AV) {
        ah::check_address(device, &address(&asked.dest))?;
    }
    Ok(())
}

fn address(dest: &QpDest) -> AhAttr {
    AhAttr {
        dgid: dest.dgid,
        flow_label: dest.flow_label,
        sgid_index: dest.sgid_index,
        hop_limit: dest.hop_limit,
        traffic_class: dest.traffic_class,
        dlid: dest.dlid,
        sl: dest.sl,
        src_path_bits: dest.src_path_bits,
        static_rate: dest.static_rate,
        is_global: dest.is_global,
        port_num: dest.port_num,
        ..AhAttr::default()
    }
}

/// The device that an address leads to.
fn destination(context: &Context, dest: &QpDest) -> Option<u16> {
    let by_gid = dest.is_global != 0 && (dest.dlid == 0 || context.device.lid() == 0);
    context.shared.device_of(|device| {
        if by_gid {
            device.gids().iter().any(|(gid, _)| *gid == dest.dgid)
        } else {
            device.lid() == dest.dlid
        }
    })
}

/// Remembers the attributes that are given.
fn take(attr: &mut ModifyQp, asked: &ModifyQp) {
    macro_rules! each {
        ($($bit:ident: $($field:ident),+;)*) => {$(
            if asked.attr_mask & mask::$bit != 0 { $(attr.$field = asked.$field;)+ }
        )*};
    }
    each! {
        ACCESS: qp_access_flags;
        PKEY: pkey_index;
        PORT: port_num;
        AV: dest;
        PATH_MTU: path_mtu;
        TIMEOUT: timeout;
        RETRY_CNT: retry_cnt;
        RNR_RETRY: rnr_retry;
        RQ_PSN: rq_psn;
        MAX_RD: max_rd_atomic;
        MIN_RNR_TIMER: min_rnr_timer;
        SQ_PSN: sq_psn;
        MAX_DEST_RD: max_dest_rd_atomic;
        PATH_MIG_STATE: path_mig_state;
        DEST_QPN: dest_qp_num;
    }
    attr.rq_psn &= wire::NUMBER_MASK;
    attr.sq_psn &= wire::NUMBER_MASK;
}

fn query(context: &mut Context, request: &Request<'_>) -> Result<Reply, Errno> {
    let asked: QueryQp = parse(&request.core[..size_of::<QueryQp>()])?;
    let object = qp::qp(context, asked.qp_handle).ok_or(Errno::EINVAL)?;
    let qpn = object.qpn;
    let info = context.with_port(|port, _| port.nic.query_qp(qpn).ok_or(Errno::EINVAL))?;
    let (attr, cap) = (&object.attr, &object.cap);
    let state = number(info.state);
    Ok(Reply::new(&QueryQpResp {
        dest: attr.dest,
        alt_dest: attr.alt_dest,
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
        qkey: attr.qkey,
        rq_psn: attr.rq_psn,
        sq_psn: attr.sq_psn,
        dest_qp_num: attr.dest_qp_num,
        qp_access_flags: attr.qp_access_flags,
        pkey_index: attr.pkey_index,
        alt_pkey_index: attr.alt_pkey_index,
        qp_state: state,
        cur_qp_state: state,
        path_mtu: attr.path_mtu,
        path_mig_state: attr.path_mig_state,
        sq_draining: 0,
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        port_num: attr.port_num,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        alt_port_num: attr.alt_port_num,
        alt_timeout: attr.alt_timeout,
        sq_sig_all: u8::from(object.signal_all),
        ..QueryQpResp::default()
    }))
}
