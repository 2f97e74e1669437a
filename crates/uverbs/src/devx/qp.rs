//! Queue pairs made by command: RC, and DC initiators.

use softnic::{DmaBuf, Memory, QpAttr, QpKind, QpState, QpUpdate, Qpn, ReceiveFormat, RqAttr};
use wire::devx::{Field, SHORT, create_qp, qpc, query_qp};
use wire::wqe::WQEBB;

use super::{Devx, Fail, Mailbox, Refusal, cq, made, pd, srq, uar, umem, with_port};
use crate::context::Context;

/// A queue pair.
pub(crate) struct Qp {
    pub(super) qpn: Qpn,
    pub(super) kind: QpKind,
    /// Handles of what it lies in.
    pub(super) umems: [u32; 2],
    /// Its context, as it was last told.
    pub(super) context: Vec<u8>,
}

/// Bytes of a context.
const QPC: usize = 0xe8;

/// The queues, in registered memory: receives first, sends right behind.
struct Queues {
    sq: DmaBuf,
    log_sq_blocks: u32,
    rq: Option<RqAttr>,
    umem: u32,
}

fn queues(context: &Context, mailbox: &Mailbox<'_>) -> Result<Queues, Refusal> {
    let of = |field: Field| mailbox.get32(field.within(create_qp::QPC));
    if mailbox.get(create_qp::WQ_UMEM_VALID) == 0 {
        return Err(Refusal::NoUmem);
    }
    let (log_wqes, log_stride) = (of(qpc::LOG_RQ_SIZE), of(qpc::LOG_RQ_STRIDE) + 4);
    let has_rq = match of(qpc::RQ_TYPE) {
        qpc::rq_type::REGULAR => true,
        qpc::rq_type::NONE | qpc::rq_type::SHARED => false,
        _ => return Err(Refusal::RqType),
    };
    if log_stride > 9 {
        return Err(Refusal::Depth);
    }
    let log_sq_blocks = of(qpc::LOG_SQ_SIZE);
    let rq_bytes = if has_rq { 1u64 << (log_wqes + log_stride) } else { 0 };
    let number = mailbox.get32(create_qp::WQ_UMEM_ID);
    let start = mailbox
        .get(create_qp::WQ_UMEM_OFFSET)
        .checked_add(u64::from(of(qpc::PAGE_OFFSET)) * 64)
        .ok_or(Refusal::UmemBounds)?;
    let (umem, _) = umem::part(context, number, start, rq_bytes)?;
    let rq = if has_rq {
        let (_, ring) = umem::part(context, number, start, rq_bytes)?;
        Some(RqAttr { ring, log_wqes, log_stride })
    } else {
        None
    };
    if of(qpc::NO_SQ) != 0 {
        // Nothing is ever sent; the NIC wants a queue all the same.
        return Ok(Queues { sq: Memory::zeroed(WQEBB).dma(), log_sq_blocks: 0, rq, umem });
    }
    let sq_at = start.checked_add(rq_bytes).ok_or(Refusal::UmemBounds)?;
    let (_, sq) = umem::part(context, number, sq_at, (WQEBB as u64) << log_sq_blocks)?;
    Ok(Queues { sq, log_sq_blocks, rq, umem })
}

pub(super) fn create(
    context: &mut Context,
    mailbox: &Mailbox<'_>,
) -> Result<(Devx, Vec<u8>), Fail> {
    let answer = mailbox.answer(create_qp::IN, SHORT)?;
    let of = |field: Field| mailbox.get32(field.within(create_qp::QPC));
    let kind = match of(qpc::ST) {
        qpc::service::RC => QpKind::Rc,
        qpc::service::DCI => QpKind::Dci,
        _ => return Err(Refusal::Service.into()),
    };
    if of(qpc::SEND_DBR_MODE) != 0 {
        return Err(Refusal::DoorbellMode.into());
    }
    if of(qpc::PM_STATE) != qpc::MIGRATED && of(qpc::PM_STATE) != 0 {
        return Err(Refusal::Migration.into());
    }
    let domain = pd(context, of(qpc::PD))?;
    let srq = match of(qpc::RQ_TYPE) {
        qpc::rq_type::SHARED => Some(srq(context, of(qpc::SRQN))?),
        _ => None,
    };
    let uar = uar(context, of(qpc::UAR_PAGE))?;
    let Queues { sq, log_sq_blocks, rq, umem: queue_umem } = queues(context, mailbox)?;
    // A queue that isn't there completes nothing, and its CQ isn't looked at.
    let (has_sq, has_rq) = (of(qpc::NO_SQ) == 0, rq.is_some() || srq.is_some());
    let snd = if has_sq { qpc::CQN_SND } else { qpc::CQN_RCV };
    let rcv = if has_rq { qpc::CQN_RCV } else { qpc::CQN_SND };
    let send_cq = cq::by_number(context, of(snd))?;
    let recv_cq = cq::by_number(context, of(if has_sq || has_rq { rcv } else { snd }))?;
    let (record_umem, record) = umem::record(
        context,
        of(qpc::DBR_UMEM_VALID) != 0,
        of(qpc::DBR_UMEM_ID),
        mailbox.get(qpc::DBR_ADDR.within(create_qp::QPC)),
    )?;
    let user_index = of(qpc::USER_INDEX);
    let qpn = with_port(context, |port, _| {
        let max_rd_atomic = port.nic.config().caps.max_rd_atomic;
        let attr = QpAttr {
            pd: domain,
            kind,
            send_cq,
            recv_cq,
            sq,
            log_sq_blocks,
            rq,
            record: Some(record),
            uar,
            max_rd_atomic,
            sq_start: 0,
        };
        let format = ReceiveFormat { srq, user_index };
        let qpn = port.nic.create_qp_as(attr, format).map_err(Refusal::from)?;
        let update = QpUpdate { user_index: Some(user_index), ..QpUpdate::default() };
        port.nic.update_qp(qpn, update).map_err(Refusal::from)?;
        Ok(qpn)
    })?;
    let at = create_qp::QPC as usize / 8;
    let context = mailbox.input[at..at + QPC].to_vec();
    let qp = Qp { qpn, kind, umems: [queue_umem, record_umem], context };
    Ok((Devx::Qp(qp), made(answer, qpn.0)))
}

/// A state's number.
pub(super) const fn state(state: QpState) -> u32 {
    match state {
        QpState::Reset => 0,
        QpState::Init => 1,
        QpState::Rtr => 2,
        QpState::Rts => 3,
        QpState::Error => 6,
    }
}

pub(super) fn query(context: &Context, qp: &Qp, mailbox: &Mailbox<'_>) -> Result<Vec<u8>, Fail> {
    let mut answer = mailbox.answer(SHORT, query_qp::OUT)?;
    let info =
        with_port(context, |port, _| port.nic.query_qp(qp.qpn).ok_or(Refusal::Number.into()))?;
    let at = query_qp::QPC as usize / 8;
    answer[at..at + QPC].copy_from_slice(&qp.context);
    let mut put = |field: Field, value| field.within(query_qp::QPC).set(&mut answer, value);
    put(qpc::STATE, u64::from(state(info.state)));
    put(qpc::HW_SQ_WQEBB_COUNTER, info.sq_head);
    put(qpc::SW_SQ_WQEBB_COUNTER, info.sq_producer);
    put(qpc::HW_RQ_COUNTER, info.rq_head);
    Ok(answer)
}
