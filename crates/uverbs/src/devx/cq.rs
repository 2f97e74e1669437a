//! Completion queues made by command.

use softnic::{CqAttr, CqFormat, CqId};
use wire::devx::{SHORT, cqc, create_cq, query_cq};

use super::{Devx, Fail, Mailbox, Refusal, made, uar, umem, with_port};
use crate::commands::VECTORS;
use crate::context::Context;
use crate::objects::Object;

/// A completion queue.
pub(crate) struct Cq {
    pub(super) id: CqId,
    /// Handles of what it lies in.
    pub(super) umems: [u32; 2],
    /// Its context, as it was asked for.
    context: Vec<u8>,
}

/// The number of the event queue of a completion vector.
pub(super) const fn eqn(vector: u32) -> u32 {
    vector + 1
}

/// log2 of the most entries.
const LOG_MOST: u32 = 22;

/// Bytes of a context.
const CQC: usize = 64;

pub(super) fn create(
    context: &mut Context,
    mailbox: &Mailbox<'_>,
) -> Result<(Devx, Vec<u8>), Fail> {
    let answer = mailbox.answer(create_cq::IN, SHORT)?;
    let of = |field: wire::devx::Field| mailbox.get32(field.within(create_cq::CQC));
    let wide = match of(cqc::CQE_SZ) {
        0 => false,
        1 => true,
        _ => return Err(Refusal::CqeSize.into()),
    };
    if of(cqc::CQE_COMP_EN) != 0 {
        return Err(Refusal::CqeSize.into());
    }
    let log_size = of(cqc::LOG_CQ_SIZE);
    if log_size > LOG_MOST {
        return Err(Refusal::Depth.into());
    }
    if !(eqn(0)..eqn(VECTORS)).contains(&of(cqc::C_EQN)) {
        return Err(Refusal::Eqn.into());
    }
    uar(context, of(cqc::UAR_PAGE))?;
    if mailbox.get(create_cq::CQ_UMEM_VALID) == 0 {
        return Err(Refusal::NoUmem.into());
    }
    let collapsed = of(cqc::CC) != 0;
    let entries = if collapsed { 1 } else { 1u64 << log_size };
    let offset = mailbox
        .get(create_cq::CQ_UMEM_OFFSET)
        .checked_add(u64::from(of(cqc::PAGE_OFFSET)) * 64)
        .ok_or(Refusal::UmemBounds)?;
    let number = mailbox.get32(create_cq::CQ_UMEM_ID);
    let (ring_umem, ring) = umem::part(context, number, offset, entries << (6 + u32::from(wide)))?;
    let (record_umem, record) = umem::record(
        context,
        of(cqc::DBR_UMEM_VALID) != 0,
        of(cqc::DBR_UMEM_ID),
        mailbox.get(cqc::DBR_ADDR.within(create_cq::CQC)),
    )?;
    let ignore_overrun = of(cqc::OI) != 0;
    let attr = CqAttr { ring, log_size, record, collapsed, ignore_overrun };
    // The device doesn't look at what the entries hold: who polls them has made them ready.
    let format = CqFormat { wide, unready: true };
    let id = with_port(context, |port, _| {
        Ok(port.nic.create_cq_as(attr, format).map_err(Refusal::from)?)
    })?;
    let at = create_cq::CQC as usize / 8;
    let context = mailbox.input[at..at + CQC].to_vec();
    let cq = Cq { id, umems: [ring_umem, record_umem], context };
    Ok((Devx::Cq(cq), made(answer, id.number())))
}

pub(super) fn query(context: &Context, cq: &Cq, mailbox: &Mailbox<'_>) -> Result<Vec<u8>, Fail> {
    let mut answer = mailbox.answer(SHORT, query_cq::OUT)?;
    let info = with_port(context, |port, _| port.nic.query_cq(cq.id).ok_or(Refusal::Cq.into()))?;
    let at = query_cq::CQC as usize / 8;
    answer[at..at + CQC].copy_from_slice(&cq.context);
    let mut put = |field: wire::devx::Field, value| {
        field.within(query_cq::CQC).set(&mut answer, value);
    };
    /// `status` of a queue that has run over.
    const OVERRUN: u64 = 9;
    put(cqc::STATUS, if info.in_error { OVERRUN } else { 0 });
    put(cqc::PRODUCER_COUNTER, info.produced);
    put(cqc::CONSUMER_COUNTER, info.consumed);
    Ok(answer)
}

/// The queue of a number, whichever way this context made it.
pub(super) fn by_number(context: &Context, number: u32) -> Result<CqId, Refusal> {
    let ids = context.objects.iter().filter_map(|(_, object)| match object {
        Object::Cq(cq) => Some(cq.id),
        Object::Devx(devx) => match &**devx {
            Devx::Cq(cq) => Some(cq.id),
            _ => None,
        },
        _ => None,
    });
    ids.into_iter().find(|id| id.number() == number).ok_or(Refusal::Cq)
}
