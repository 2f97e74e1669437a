//! Queue pairs: their states and attributes.

use softnic::{Access, Modify, QpInfo, QpKind, QpState, QpUpdate, Qpn, Sends};

use super::{Command, Reply, Request, ah, dct, qp};
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
        let target = modify(context, &parse(&request.core[..size_of::<ModifyQp>()])?)?;
        let room = [request.core_room, request.driver_room].map(|room| room as u32);
        // Both parts begin with, or are, their length; a DC target's number follows.
        let driver = [room[1].min(16), target.unwrap_or(0), 0, 0];
        Ok(Reply::new(&[0, room[0].min(8)]).with(&driver))
    },
};

/// Bits of `attr_mask`.
pub(super) mod mask {
    pub(crate) const STATE: u32 = 1;
    pub(crate) const CUR_STATE: u32 = 1 << 1;
    pub(crate) const SQD_NOTIFY: u32 = 1 << 2;
    pub(crate) const ACCESS: u32 = 1 << 3;
    pub(crate) const PKEY: u32 = 1 << 4;
    pub(crate) const PORT: u32 = 1 << 5;
    pub(crate) const QKEY: u32 = 1 << 6;
    pub(crate) const AV: u32 = 1 << 7;
    pub(crate) const PATH_MTU: u32 = 1 << 8;
    pub(crate) const TIMEOUT: u32 = 1 << 9;
    pub(crate) const RETRY_CNT: u32 = 1 << 10;
    pub(crate) const RNR_RETRY: u32 = 1 << 11;
    pub(crate) const RQ_PSN: u32 = 1 << 12;
    pub(crate) const MAX_RD: u32 = 1 << 13;
    pub(crate) const MIN_RNR_TIMER: u32 = 1 << 15;
    pub(crate) const SQ_PSN: u32 = 1 << 16;
    pub(crate) const MAX_DEST_RD: u32 = 1 << 17;
    pub(crate) const PATH_MIG_STATE: u32 = 1 << 18;
    pub(crate) const DEST_QPN: u32 = 1 << 20;
}

/// `enum ib_qp_state`.
pub(super) mod state {
    pub(crate) const RESET: u8 = 0;
    pub(crate) const INIT: u8 = 1;
    pub(crate) const RTR: u8 = 2;
    pub(crate) const RTS: u8 = 3;
    pub(crate) const SQD: u8 = 4;
    pub(crate) const ERR: u8 = 6;
}

/// A queue pair's state, as verbs count.
fn state_of(info: &QpInfo) -> u8 {
    match info.state {
        QpState::Reset => state::RESET,
        QpState::Init => state::INIT,
        QpState::Rtr => state::RTR,
        QpState::Rts if info.sends == Sends::Go => state::RTS,
        QpState::Rts => state::SQD,
        QpState::Error => state::ERR,
    }
}

/// From a state to another: the attributes that must be given, and those that may be.
pub(super) struct Transition {
    pub(super) from: u8,
    pub(super) to: u8,
    pub(super) must: u32,
    pub(super) may: u32,
}

impl Transition {
    /// Whether what is given is what there must be, and nothing else.
    pub(super) fn check(&self, given: u32) -> Result<(), Errno> {
        let is_whole = given & self.must == self.must;
        let is_all = given & !(self.must | self.may | mask::STATE) == 0;
        if is_whole && is_all { Ok(()) } else { Err(Errno::EINVAL) }
    }
}

/// What a queue pair of a kind may do from a state, as the kernel's table has it; to RESET and to ERROR it may go from
/// everywhere, with nothing.
fn transition(kind: QpKind, from: u8, to: u8) -> Option<Transition> {
    use mask::*;
    use state::{INIT, RESET, RTR, RTS, SQD};
    let (is_ud, is_dci) = (kind == QpKind::Ud, kind == QpKind::Dci);
    let (is_initiator, is_target) = (kind == QpKind::XrcInitiator, kind == QpKind::XrcTarget);
    // What peers may do here, or must know.
    let rights = match kind {
        QpKind::Ud => QKEY,
        QpKind::Dci => 0,
        _ => ACCESS,
    };
    let answers = matches!(kind, QpKind::Rc | QpKind::XrcTarget | QpKind::Dci);
    let timer = if answers { MIN_RNR_TIMER } else { 0 };
    let path = if is_ud || is_dci { 0 } else { PATH_MIG_STATE };
    let asks = match kind {
        QpKind::Ud | QpKind::Uc => 0,
        QpKind::XrcTarget => TIMEOUT,
        _ => TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_RD,
    };
    let (must, may) = match (from, to) {
        (RESET, INIT) => (PKEY | PORT | rights, 0),
        (INIT, INIT) => (0, PKEY | PORT | rights),
        (INIT, RTR) if is_ud => (0, PKEY | QKEY),
        (INIT, RTR) if is_dci => (PATH_MTU, PKEY | AV),
        (INIT, RTR) => {
            let reads =
                if is_initiator || kind == QpKind::Uc { 0 } else { MAX_DEST_RD | MIN_RNR_TIMER };
            (AV | PATH_MTU | DEST_QPN | RQ_PSN | reads, ACCESS | PKEY)
        }
        (RTR, RTS) => (asks | SQ_PSN, CUR_STATE | rights | timer | path),
        (RTS, RTS) | (SQD, RTS) => (0, CUR_STATE | rights | timer | path),
        (RTS, SQD) if !is_target => (0, SQD_NOTIFY),
        (SQD, SQD) => (0, PKEY | rights | timer | path),
        _ => return None,
    };
    Some(Transition { from, to, must, may })
}

/// Acknowledgements are waited for at least this long (4.096 us * 2^16): the peer's engine is a thread that has to
/// be given a processor first.
pub(crate) const LEAST_TIMEOUT: u8 = 16;

/// Attributes that half of an extended connection has no use for: whoever gives them all the same isn't refused.
fn unused(kind: QpKind) -> u32 {
    match kind {
        QpKind::XrcInitiator => mask::MAX_DEST_RD | mask::MIN_RNR_TIMER,
        QpKind::XrcTarget => mask::MAX_RD | mask::RETRY_CNT | mask::RNR_RETRY,
        _ => 0,
    }
}

/// What a step of verbs is to the NIC.
enum Step {
    Nothing,
    Modify(Modify),
    /// To fetch nothing more, and whether to tell when all is done; or to go on.
    Drain(Option<bool>),
}

/// What the peer may do, as the attributes say.
pub(super) fn access_of(attr: &ModifyQp) -> Access {
    IbAccess::from_bits_truncate(attr.qp_access_flags).of_nic()
}

fn step(
    (from, to): (u8, u8),
    kind: QpKind,
    attr: &ModifyQp,
    route: impl FnOnce() -> Result<u16, Errno>,
) -> Result<Step, Errno> {
    let reliable = kind.is_reliable();
    let modify = match to {
        state::SQD if from == state::RTS => {
            return Ok(Step::Drain(Some(attr.en_sqd_async_notify != 0)));
        }
        state::RTS if from == state::SQD => return Ok(Step::Drain(None)),
        _ if from == to && to != state::INIT => return Ok(Step::Nothing),
        state::ERR if from == state::RESET => return Ok(Step::Nothing),
        state::INIT => Modify::ToInit { access: access_of(attr) },
        state::RTR => Modify::ToRtr {
            dest_nic: if kind.is_connected() { route()? } else { 0 },
            dest_qpn: Qpn(attr.dest_qp_num),
            rq_psn: attr.rq_psn,
            max_dest_rd_atomic: attr.max_dest_rd_atomic,
            min_rnr_timer: attr.min_rnr_timer,
        },
        // Of what isn't acknowledged, nothing is waited for.
        state::RTS if !reliable => Modify::ToRts {
            sq_psn: attr.sq_psn,
            retry_cnt: 0,
            rnr_retry: 0,
            timeout: 0,
            max_rd_atomic: 0,
        },
        state::RTS => Modify::ToRts {
            sq_psn: attr.sq_psn,
            retry_cnt: attr.retry_cnt,
            rnr_retry: attr.rnr_retry,
            timeout: if attr.timeout == 0 { 0 } else { attr.timeout.max(LEAST_TIMEOUT) },
            max_rd_atomic: if kind == QpKind::XrcTarget { 0 } else { attr.max_rd_atomic },
        },
        state::RESET => Modify::ToReset,
        state::ERR => Modify::ToError,
        _ => return Err(Errno::EINVAL),
    };
    Ok(Step::Modify(modify))
}

/// Changes a queue pair. Gives the number of a DC target that has just got one.
fn modify(context: &mut Context, asked: &ModifyQp) -> Result<Option<u32>, Errno> {
    if dct::dct(context, asked.qp_handle).is_some() {
        return dct::modify(context, asked);
    }
    let object = qp::qp(context, asked.qp_handle).ok_or(Errno::EINVAL)?;
    let (qpn, kind) = (object.qpn, object.kind);
    let mut attr = object.attr;
    let info = context.with_port(|port, _| port.nic.query_qp(qpn).ok_or(Errno::EINVAL))?;
    let from = state_of(&info);
    let asked = &ModifyQp { attr_mask: asked.attr_mask & !unused(kind), ..*asked };
    let given = asked.attr_mask;
    if given & mask::CUR_STATE != 0 && asked.cur_qp_state != from {
        return Err(Errno::EINVAL);
    }
    let to = if given & mask::STATE == 0 { from } else { asked.qp_state };
    if !matches!(to, state::RESET | state::ERR) {
        transition(kind, from, to).ok_or(Errno::EINVAL)?.check(given)?;
        check(&context.device, asked)?;
        take(&mut attr, asked);
    }
    let device = destination(context, &attr.dest);
    context.with_port(|port, fabric| {
        let route = || port.route(fabric, device, attr.dest_qp_num);
        match step((from, to), kind, &attr, route)? {
            Step::Nothing => {}
            Step::Modify(step) => port.nic.modify_qp(qpn, step)?,
            Step::Drain(tell) => port.nic.drain_sends(qpn, tell)?,
        }
        let update = QpUpdate {
            access: (given & mask::ACCESS != 0).then_some(access_of(&attr)),
            min_rnr_timer: (given & mask::MIN_RNR_TIMER != 0).then_some(attr.min_rnr_timer),
            user_index: None,
        };
        port.nic.update_qp(qpn, update)?;
        if given & mask::QKEY != 0 {
            port.nic.set_qkey(qpn, attr.qkey)?;
        }
        Ok(())
    })?;
    if let Some(Object::Qp(object)) = context.objects.get_mut(asked.qp_handle) {
        object.attr = if to == state::RESET { ModifyQp::default() } else { attr };
    }
    Ok(None)
}

/// Whether each attribute that is given can be.
pub(super) fn check(device: &DeviceConfig, asked: &ModifyQp) -> Result<(), Errno> {
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
        (mask::PATH_MTU, (1..=device.port.mtu.code()).contains(&asked.path_mtu)),
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
pub(super) fn take(attr: &mut ModifyQp, asked: &ModifyQp) {
    macro_rules! each {
        ($($bit:ident: $($field:ident),+;)*) => {$(
            if asked.attr_mask & mask::$bit != 0 { $(attr.$field = asked.$field;)+ }
        )*};
    }
    each! {
        SQD_NOTIFY: en_sqd_async_notify;
        ACCESS: qp_access_flags;
        QKEY: qkey;
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
    if let Some(target) = dct::dct(context, asked.qp_handle) {
        return Ok(Reply::new(&dct::query(target)));
    }
    let object = qp::qp(context, asked.qp_handle).ok_or(Errno::EINVAL)?;
    let qpn = object.qpn;
    let info = context.with_port(|port, _| port.nic.query_qp(qpn).ok_or(Errno::EINVAL))?;
    let (attr, cap) = (&object.attr, &object.cap);
    let state = state_of(&info);
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
        sq_draining: u8::from(info.sends == Sends::Drain),
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
