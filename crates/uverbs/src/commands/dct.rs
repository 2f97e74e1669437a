//! DC targets by verbs: queue pairs to the library, which get their number when they begin to answer.

use softnic::{DctAttr, Qpn, ReceiveFormat};

use super::qp::Wanted;
use super::qp_modify::{Transition, access_of, check, mask, state, take};
use super::{cq, pd, srq};
use crate::abi::{Mlx5CreateQp, ModifyQp, QueryQpResp};
use crate::context::Context;
use crate::errno::Errno;
use crate::objects::{DctObject, Object};

/// Makes one that isn't anywhere yet.
pub(super) fn create(
    context: &mut Context,
    wanted: &Wanted,
    mlx5: &Mlx5CreateQp,
) -> Result<u32, Errno> {
    pd::pd(context, wanted.pd).ok_or(Errno::EINVAL)?;
    cq::cq(context, wanted.recv_cq).ok_or(Errno::EINVAL)?;
    // A target's receives come from elsewhere, always.
    let srq = wanted.srq.ok_or(Errno::EINVAL)?;
    srq::srq(context, srq).ok_or(Errno::EINVAL)?;
    if !context.objects.has_room() {
        return Err(Errno::ENOMEM);
    }
    let object = DctObject {
        number: None,
        state: state::RESET,
        pd: wanted.pd,
        cq: wanted.recv_cq,
        srq: Some(srq),
        // The key is where a queue pair has its send queue's address.
        key: mlx5.sq_buf_addr,
        user_index: mlx5.uidx,
        cap: wanted.cap,
        attr: ModifyQp::default(),
    };
    Ok(context.objects.add(Object::Dct(Box::new(object))))
}

pub(super) fn dct(context: &Context, handle: u32) -> Option<&DctObject> {
    match context.objects.get(handle) {
        Some(Object::Dct(object)) => Some(object),
        _ => None,
    }
}

/// Whether a target uses something.
pub(super) fn uses(context: &Context, is_it: impl Fn(&DctObject) -> bool) -> bool {
    context.objects.iter().any(|(_, object)| matches!(object, Object::Dct(dct) if is_it(dct)))
}

/// What a target may do; it can't go back, nor to ERROR.
const TRANSITIONS: &[Transition] = &[
    Transition {
        from: state::RESET,
        to: state::INIT,
        must: mask::ACCESS | mask::PKEY | mask::PORT,
        may: 0,
    },
    Transition {
        from: state::INIT,
        to: state::RTR,
        must: mask::MIN_RNR_TIMER | mask::AV | mask::PATH_MTU,
        may: 0,
    },
];

/// Changes a target. Gives its number when it has just got one.
pub(super) fn modify(context: &mut Context, asked: &ModifyQp) -> Result<Option<u32>, Errno> {
    let object = dct(context, asked.qp_handle).ok_or(Errno::EINVAL)?;
    let (from, to) = (object.state, asked.qp_state);
    let known = TRANSITIONS.iter().find(|known| known.from == from && known.to == to);
    let known = known.filter(|_| asked.attr_mask & mask::STATE != 0).ok_or(Errno::EINVAL)?;
    known.check(asked.attr_mask)?;
    check(&context.device, asked)?;
    let mut attr = object.attr;
    take(&mut attr, asked);
    let mut number = object.number;
    if to == state::RTR {
        let pd = pd::pd(context, object.pd).ok_or(Errno::EINVAL)?;
        let recv_cq = cq::cq(context, object.cq).ok_or(Errno::EINVAL)?.id;
        let srq = object.srq.and_then(|handle| srq::srq(context, handle)).map(|srq| srq.id);
        let format = ReceiveFormat { srq, user_index: object.user_index };
        let attr = DctAttr {
            pd,
            recv_cq,
            dc_key: object.key,
            access: access_of(&attr),
            rq: None,
            min_rnr_timer: attr.min_rnr_timer,
        };
        number = Some(context.with_port(|port, _| Ok(port.nic.create_dct_as(attr, format)?))?);
    }
    if let Some(Object::Dct(object)) = context.objects.get_mut(asked.qp_handle) {
        (object.attr, object.number, object.state) = (attr, number, to);
    }
    Ok(number.map(|Qpn(number)| number))
}

/// What a query tells of a target.
pub(super) fn query(object: &DctObject) -> QueryQpResp {
    let attr = &object.attr;
    QueryQpResp {
        dest: attr.dest,
        max_recv_wr: object.cap.max_recv_wr,
        max_recv_sge: object.cap.max_recv_sge,
        qp_access_flags: attr.qp_access_flags,
        pkey_index: attr.pkey_index,
        qp_state: object.state,
        cur_qp_state: object.state,
        path_mtu: attr.path_mtu,
        min_rnr_timer: attr.min_rnr_timer,
        port_num: attr.port_num,
        ..QueryQpResp::default()
    }
}

pub(super) fn destroy(context: &mut Context, handle: u32) -> Result<(), Errno> {
    let object = dct(context, handle).ok_or(Errno::ENOENT)?;
    if let Some(number) = object.number {
        context.with_port(|port, _| Ok(port.nic.destroy_dct(number)?))?;
    }
    context.objects.remove(handle);
    Ok(())
}
