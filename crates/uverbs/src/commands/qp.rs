//! Queue pairs: made and destroyed.

use softnic::{DmaBuf, Memory, QpAttr, QpKind, ReceiveFormat, RqAttr};
use zerocopy::IntoBytes;

use super::{Command, Method, Reply, cq, dct, pd, srq};
use crate::abi::{
    CreateQp, CreateQpResp, DestroyWithEvents, Mlx5CreateQp, Mlx5CreateQpResp, ModifyQp, QpCap,
    UHW_IN, UHW_OUT,
};
use crate::attr::{Call, parse};
use crate::channel::About;
use crate::context::Context;
use crate::engine::Listener;
use crate::errno::Errno;
use crate::memory::ClientMemory;
use crate::objects::{Object, QpObject};

pub(super) const CREATE_QP: Command = Command {
    name: "CREATE_QP",
    number: 24,
    core_in: size_of::<CreateQp>(),
    core_out: size_of::<CreateQpResp>(),
    is_first: false,
    run: |context, request| {
        let asked: CreateQp = parse(&request.core[..size_of::<CreateQp>()])?;
        let wanted = Wanted {
            name: asked.user_handle,
            kind: asked.qp_type,
            pd: asked.pd_handle,
            send_cq: asked.send_cq_handle,
            recv_cq: asked.recv_cq_handle,
            xrcd: asked.pd_handle,
            srq: (asked.is_srq != 0).then_some(asked.srq_handle),
            cap: QpCap {
                max_send_wr: asked.max_send_wr,
                max_recv_wr: asked.max_recv_wr,
                max_send_sge: asked.max_send_sge,
                max_recv_sge: asked.max_recv_sge,
                max_inline_data: asked.max_inline_data,
            },
            signal_all: asked.sq_sig_all != 0,
            errors: None,
        };
        let made = create(context, request.memory, &wanted, request.driver)?;
        let core = CreateQpResp {
            qp_handle: made.handle,
            qpn: made.qpn,
            max_send_wr: asked.max_send_wr,
            max_recv_wr: asked.max_recv_wr,
            max_send_sge: asked.max_send_sge,
            max_recv_sge: asked.max_recv_sge,
            max_inline_data: asked.max_inline_data,
            reserved: 0,
        };
        Ok(Reply::new(&core).with(&made.driver))
    },
};

pub(super) const DESTROY_QP: Command = Command {
    name: "DESTROY_QP",
    number: 27,
    core_in: size_of::<DestroyWithEvents>(),
    core_out: 4,
    is_first: false,
    run: |context, request| {
        let asked: DestroyWithEvents = parse(&request.core[..size_of::<DestroyWithEvents>()])?;
        let destroyed = destroy(context, asked.handle);
        Ok(Reply::new(&destroyed.map_err(|errno| match errno {
            Errno::ENOENT => Errno::EINVAL,
            other => other,
        })?))
    },
};

/// Attributes of `QP_CREATE`, in the header's order.
mod create_attr {
    pub(super) const HANDLE: u16 = 0;
    pub(super) const XRCD_HANDLE: u16 = 1;
    pub(super) const PD_HANDLE: u16 = 2;
    pub(super) const SRQ_HANDLE: u16 = 3;
    pub(super) const SEND_CQ_HANDLE: u16 = 4;
    pub(super) const RECV_CQ_HANDLE: u16 = 5;
    pub(super) const USER_HANDLE: u16 = 7;
    pub(super) const CAP: u16 = 8;
    pub(super) const TYPE: u16 = 9;
    pub(super) const FLAGS: u16 = 10;
    pub(super) const EVENT_FD: u16 = 12;
    pub(super) const RESP_CAP: u16 = 13;
    pub(super) const RESP_QP_NUM: u16 = 14;
}

pub(super) const QP_CREATE: Method = Method {
    name: "QP_CREATE",
    object: 4,
    method: 0,
    attrs: &[0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 12, 13, 14, UHW_IN, UHW_OUT],
    outputs: &[create_attr::RESP_QP_NUM, UHW_OUT],
    is_first: false,
    run: create_method,
};

pub(super) const QP_DESTROY: Method = Method {
    name: "QP_DESTROY",
    object: 4,
    method: 1,
    attrs: &[0, 1],
    outputs: &[1],
    is_first: false,
    run: |context, call| {
        let events = destroy(context, call.handle(0)?)?;
        call.output(1, &events.to_ne_bytes())
    },
};

/// `enum ib_qp_type`.
mod kind {
    pub(super) const RC: u8 = 2;
    pub(super) const UC: u8 = 3;
    pub(super) const UD: u8 = 4;
    pub(super) const XRC_INITIATOR: u8 = 9;
    pub(super) const XRC_TARGET: u8 = 10;
    pub(super) const DRIVER: u8 = 0xff;
}

/// What a client wants of a queue pair, whichever way it asks.
pub(super) struct Wanted {
    name: u64,
    kind: u8,
    pub(super) pd: u32,
    xrcd: u32,
    send_cq: u32,
    pub(super) recv_cq: u32,
    pub(super) srq: Option<u32>,
    pub(super) cap: QpCap,
    signal_all: bool,
    errors: Option<i32>,
}

struct Made {
    handle: u32,
    qpn: u32,
    driver: Mlx5CreateQpResp,
}

/// `IB_UVERBS_QP_CREATE_SQ_SIG_ALL`.
const SIGNAL_ALL: u64 = 1 << 12;

fn create_method(context: &mut Context, call: &Call<'_>) -> Result<(), Errno> {
    let flags = call.number_or(create_attr::FLAGS)?.unwrap_or(0);
    if flags & !SIGNAL_ALL != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let kind = u8::try_from(call.number(create_attr::TYPE)?).map_err(|_| Errno::EINVAL)?;
    // What this kind hasn't got isn't named.
    let handle = |id, is_there: bool| if is_there { call.handle(id) } else { Ok(0) };
    let is_target = kind == kind::XRC_TARGET;
    let wanted = Wanted {
        name: call.number(create_attr::USER_HANDLE)?,
        kind,
        pd: handle(create_attr::PD_HANDLE, !is_target)?,
        xrcd: handle(create_attr::XRCD_HANDLE, is_target)?,
        send_cq: handle(create_attr::SEND_CQ_HANDLE, !is_target)?,
        recv_cq: handle(create_attr::RECV_CQ_HANDLE, !is_target && kind != kind::XRC_INITIATOR)?,
        srq: match call.has(create_attr::SRQ_HANDLE) {
            true => Some(call.handle(create_attr::SRQ_HANDLE)?),
            false => None,
        },
        cap: call.input(create_attr::CAP)?,
        signal_all: flags & SIGNAL_ALL != 0,
        errors: call.descriptor(create_attr::EVENT_FD)?,
    };
    if !call.has(create_attr::HANDLE) {
        return Err(Errno::EINVAL);
    }
    let driver = call.bytes(UHW_IN)?.unwrap_or_default();
    let made = create(context, call.memory, &wanted, &driver)?;
    // The answer's place may be the input's: it is written last.
    call.output(create_attr::RESP_QP_NUM, &made.qpn.to_ne_bytes())?;
    call.output(create_attr::RESP_CAP, wanted.cap.as_bytes())?;
    call.output(UHW_OUT, made.driver.as_bytes())?;
    call.output_handle(create_attr::HANDLE, u64::from(made.handle))
}

/// Flags of mlx5's part that change nothing here: the NIC puts no data into completions.
const IGNORED: u32 = 1 << 1 | 1 << 8;
const UAR_PAGE_INDEX: u32 = 1 << 10;
const TYPE_DCT: u32 = 1 << 4;
const TYPE_DCI: u32 = 1 << 5;
const NO_INDEX: u32 = 0xff_ffff;

/// The queues of a pair, in the client's memory.
struct Queues {
    sq: DmaBuf,
    log_sq_blocks: u32,
    rq: Option<RqAttr>,
}

fn queues(memory: &dyn ClientMemory, mlx5: &Mlx5CreateQp, has_rq: bool) -> Result<Queues, Errno> {
    let log = |count: u32| match count {
        0 => Ok(0),
        count if count.is_power_of_two() && count <= 1 << 15 => Ok(count.trailing_zeros()),
        _ => Err(Errno::EINVAL),
    };
    let log_sq_blocks = log(mlx5.sq_wqe_count)?;
    let log_wqes = log(mlx5.rq_wqe_count)?;
    let has_rq = has_rq && mlx5.rq_wqe_count > 0;
    if has_rq && !(4..=9).contains(&mlx5.rq_wqe_shift) {
        return Err(Errno::EINVAL);
    }
    let rq_bytes = if has_rq { u64::from(mlx5.rq_wqe_count) << mlx5.rq_wqe_shift } else { 0 };
    let sq_bytes = u64::from(mlx5.sq_wqe_count) * wire::wqe::WQEBB as u64;
    let sq_at = mlx5.buf_addr.checked_add(rq_bytes).ok_or(Errno::EFAULT)?;
    let sq = match sq_bytes {
        // Nothing is ever sent; the NIC wants a queue all the same.
        0 => Memory::zeroed(wire::wqe::WQEBB).dma(),
        bytes => memory.pin(sq_at, bytes, true)?,
    };
    let rq = if has_rq {
        let ring = memory.pin(mlx5.buf_addr, rq_bytes, true)?;
        Some(RqAttr { ring, log_wqes, log_stride: mlx5.rq_wqe_shift })
    } else {
        None
    };
    Ok(Queues { sq, log_sq_blocks, rq })
}

/// What a client asks for, if the device has it.
fn kind_of(wanted: &Wanted, flags: u32) -> Result<QpKind, Errno> {
    let is_dci = flags & TYPE_DCI != 0;
    match wanted.kind {
        kind::DRIVER if is_dci => Ok(QpKind::Dci),
        _ if is_dci => Err(Errno::EINVAL),
        kind::RC => Ok(QpKind::Rc),
        kind::UC => Ok(QpKind::Uc),
        kind::UD => Ok(QpKind::Ud),
        kind::XRC_INITIATOR => Ok(QpKind::XrcInitiator),
        kind::XRC_TARGET => Ok(QpKind::XrcTarget),
        _ => Err(Errno::EOPNOTSUPP),
    }
}

/// A queue pair's attributes, and those of its receives.
fn attributes(
    context: &Context,
    memory: &dyn ClientMemory,
    wanted: &Wanted,
    mlx5: &Mlx5CreateQp,
    kind: QpKind,
) -> Result<(QpAttr, ReceiveFormat), Errno> {
    let domain = pd::pd(context, wanted.pd).ok_or(Errno::EINVAL)?;
    let send_cq = cq::cq(context, wanted.send_cq).ok_or(Errno::EINVAL)?.id;
    let recv_cq = match kind {
        QpKind::XrcInitiator => send_cq,
        _ => cq::cq(context, wanted.recv_cq).ok_or(Errno::EINVAL)?.id,
    };
    let srq = match wanted.srq {
        None => None,
        Some(handle) => Some(srq::srq(context, handle).ok_or(Errno::EINVAL)?.id),
    };
    let has_rq = srq.is_none() && !matches!(kind, QpKind::XrcInitiator | QpKind::Dci);
    let Queues { sq, log_sq_blocks, rq } = queues(memory, mlx5, has_rq)?;
    let record = memory.pin(mlx5.db_addr, 8, true)?;
    // Without an index of the client's, a completion names the shared queue.
    let user_index = match mlx5.uidx {
        NO_INDEX => srq.map_or(0, |srq| srq.number()),
        index => index,
    };
    let (uar, max_rd_atomic) = context.with_port(|port, _| {
        let uar = *port.pages.get(&mlx5.bfreg_index).ok_or(Errno::EINVAL)?;
        Ok((uar, port.nic.config().caps.max_rd_atomic))
    })?;
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
        max_rd_atomic: if kind.is_reliable() { max_rd_atomic } else { 0 },
        sq_start: 0,
    };
    Ok((attr, ReceiveFormat { srq, user_index }))
}

/// The attributes of the receiving half of an extended connection, which has no queue: requests say where they are received.
fn target_attributes(context: &Context) -> Result<(QpAttr, ReceiveFormat), Errno> {
    context.with_port(|port, _| {
        let placeholders = port.placeholders()?;
        let attr = QpAttr {
            pd: placeholders.pd,
            kind: QpKind::XrcTarget,
            send_cq: placeholders.cq,
            recv_cq: placeholders.cq,
            sq: Memory::zeroed(wire::wqe::WQEBB).dma(),
            log_sq_blocks: 0,
            rq: None,
            record: None,
            uar: placeholders.uar,
            max_rd_atomic: 0,
            sq_start: 0,
        };
        Ok((attr, ReceiveFormat::default()))
    })
}

fn create(
    context: &mut Context,
    memory: &dyn ClientMemory,
    wanted: &Wanted,
    driver: &[u8],
) -> Result<Made, Errno> {
    let mlx5: Mlx5CreateQp = parse(driver)?;
    if mlx5.flags & !(IGNORED | UAR_PAGE_INDEX | TYPE_DCI | TYPE_DCT) != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let answer = Mlx5CreateQpResp { bfreg_index: mlx5.bfreg_index, ..Mlx5CreateQpResp::default() };
    if mlx5.flags & TYPE_DCT != 0 {
        if wanted.kind != kind::DRIVER || mlx5.flags & TYPE_DCI != 0 {
            return Err(Errno::EINVAL);
        }
        let handle = dct::create(context, wanted, &mlx5)?;
        return Ok(Made { handle, qpn: 0, driver: answer });
    }
    let kind = kind_of(wanted, mlx5.flags)?;
    let xrcd = (kind == QpKind::XrcTarget).then_some(wanted.xrcd);
    let (attr, format) = match xrcd {
        Some(xrcd) => {
            srq::xrcd_of(context, xrcd).ok_or(Errno::EINVAL)?;
            target_attributes(context)?
        }
        // Doorbell registers numbered the old way.
        None if mlx5.flags & UAR_PAGE_INDEX == 0 => return Err(Errno::EOPNOTSUPP),
        None => attributes(context, memory, wanted, &mlx5, kind)?,
    };
    let errors = cq::errors_of(context, wanted.errors)?;
    // As a query tells it, the queue holds what it has places for.
    let cap = match &attr.rq {
        Some(rq) => QpCap {
            max_recv_wr: 1 << rq.log_wqes,
            max_recv_sge: (1 << rq.log_stride) / 16,
            ..wanted.cap
        },
        None => QpCap { max_recv_wr: 0, max_recv_sge: 0, ..wanted.cap },
    };
    if !context.objects.has_room() {
        return Err(Errno::ENOMEM);
    }
    let qpn = context.with_port(|port, _| Ok(port.nic.create_qp_as(attr, format)?))?;
    let object = QpObject {
        qpn,
        kind,
        xrcd,
        cap,
        signal_all: wanted.signal_all,
        attr: ModifyQp::default(),
        errors: errors.clone(),
    };
    let handle = context.objects.add(Object::Qp(Box::new(object)));
    if let Some(channel) = errors {
        let listener = Listener { channel, name: wanted.name, handle };
        context.with_port(|port, _| {
            port.qp_errors.insert(qpn, listener);
            Ok(())
        })?;
    }
    Ok(Made { handle, qpn: qpn.0, driver: answer })
}

pub(super) fn qp(context: &Context, handle: u32) -> Option<&QpObject> {
    match context.objects.get(handle) {
        Some(Object::Qp(object)) => Some(object),
        _ => None,
    }
}

/// Destroys a queue pair. Gives the events that its client has read about it.
pub(super) fn destroy(context: &mut Context, handle: u32) -> Result<u32, Errno> {
    if dct::dct(context, handle).is_some() {
        return dct::destroy(context, handle).map(|()| 0);
    }
    let object = qp(context, handle).ok_or(Errno::ENOENT)?;
    let (qpn, errors) = (object.qpn, object.errors.clone());
    context.with_port(|port, _| {
        port.nic.destroy_qp(qpn)?;
        port.qp_errors.remove(&qpn);
        Ok(())
    })?;
    context.objects.remove(handle);
    Ok(errors.map_or(0, |channel| channel.forget(About::Qp(handle))))
}
