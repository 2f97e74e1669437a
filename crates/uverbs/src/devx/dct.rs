//! DC targets made by command.

use softnic::{Access, DctAttr, Qpn, ReceiveFormat};
use wire::devx::{Field, SHORT, create_dct, dctc, qpc, query_dct};

use super::{Devx, Fail, Mailbox, Refusal, cq, made, pd, srq, with_port};
use crate::config::{DeviceConfig, LinkLayer};
use crate::context::Context;

/// A DC target.
pub(crate) struct Dct {
    pub(super) dctn: Qpn,
    /// Its context, as it was asked for.
    context: Vec<u8>,
}

/// Bytes of a context.
const DCTC: usize = 64;

pub(super) fn create(
    context: &mut Context,
    mailbox: &Mailbox<'_>,
) -> Result<(Devx, Vec<u8>), Fail> {
    let answer = mailbox.answer(create_dct::IN, SHORT)?;
    let of = |field: Field| mailbox.get32(field.within(create_dct::DCTC));
    let domain = pd(context, of(dctc::PD))?;
    let recv_cq = cq::by_number(context, of(dctc::CQN))?;
    // Without one there is nothing that a send could be received into.
    let srq = match of(dctc::SRQN) {
        0 => None,
        number => Some(srq(context, number)?),
    };
    check(&context.device, &of)?;
    let mut access = Access::empty();
    for (field, to) in [
        (dctc::RRE, Access::REMOTE_READ),
        (dctc::RWE, Access::REMOTE_WRITE),
        (dctc::RAE, Access::REMOTE_ATOMIC),
    ] {
        access.set(to, of(field) != 0);
    }
    let attr = DctAttr {
        pd: domain,
        recv_cq,
        dc_key: mailbox.get(dctc::DC_ACCESS_KEY.within(create_dct::DCTC)),
        access,
        rq: None,
        min_rnr_timer: of(dctc::MIN_RNR_NAK) as u8,
    };
    let format = ReceiveFormat { srq, user_index: of(dctc::USER_INDEX) };
    let dctn = with_port(context, |port, _| {
        Ok(port.nic.create_dct_as(attr, format).map_err(Refusal::from)?)
    })?;
    let at = create_dct::DCTC as usize / 8;
    let context = mailbox.input[at..at + DCTC].to_vec();
    Ok((Devx::Dct(Dct { dctn, context }), made(answer, dctn.0)))
}

fn check(device: &DeviceConfig, of: &dyn Fn(Field) -> u32) -> Result<(), Refusal> {
    let holds = |is_right, refusal| if is_right { Ok(()) } else { Err(refusal) };
    let is_ib = device.link_layer == LinkLayer::InfiniBand;
    holds(of(dctc::PORT) == 1, Refusal::Port)?;
    holds(of(dctc::PKEY_INDEX) < if is_ib { 128 } else { 1 }, Refusal::Pkey)?;
    holds((1..=u32::from(device.port.mtu.code())).contains(&of(dctc::MTU)), Refusal::Mtu)?;
    let atomic = of(dctc::ATOMIC_MODE);
    holds(of(dctc::RAE) == 0 || (1..=qpc::ATOMIC_64).contains(&atomic), Refusal::AtomicMode)?;
    let has_source = (of(dctc::MY_ADDR_INDEX) as usize) < device.gids().len();
    holds(is_ib || has_source, Refusal::Path)
}

pub(super) fn query(dct: &Dct, mailbox: &Mailbox<'_>) -> Result<Vec<u8>, Fail> {
    let mut answer = mailbox.answer(SHORT, query_dct::OUT)?;
    let at = query_dct::DCTC as usize / 8;
    answer[at..at + dct.context.len().min(query_dct::OUT - at)]
        .copy_from_slice(&dct.context[..dct.context.len().min(query_dct::OUT - at)]);
    Ok(answer)
}
