//! Shared receive queues, and the domains of extended reliable connections that some belong to.

use softnic::{RqAttr, SrqAttr};
use zerocopy::IntoBytes;

use super::{Command, Method, Reply, Request, cq, dct, handle_of, pd};
use crate::abi::{
    CreateSrq, CreateSrqResp, CreateXsrq, DestroyWithEvents, Mlx5CreateSrq, ModifySrq, OpenXrcd,
    QuerySrq, QuerySrqResp, UHW_IN, UHW_OUT,
};
use crate::attr::{Call, parse};
use crate::channel::About;
use crate::context::Context;
use crate::engine::Listener;
use crate::errno::Errno;
use crate::memory::ClientMemory;
use crate::objects::{Object, SrqObject};

pub(super) const CREATE_SRQ: Command = Command {
    name: "CREATE_SRQ",
    number: 32,
    core_in: size_of::<CreateSrq>(),
    core_out: size_of::<CreateSrqResp>(),
    is_first: false,
    run: |context, request| {
        let asked: CreateSrq = parse(&request.core[..size_of::<CreateSrq>()])?;
        let wanted = Wanted {
            name: asked.user_handle,
            pd: asked.pd_handle,
            max_wr: asked.max_wr,
            max_sge: asked.max_sge,
            limit: asked.srq_limit,
            ..Wanted::default()
        };
        by_write(context, request, &wanted)
    },
};

pub(super) const CREATE_XSRQ: Command = Command {
    name: "CREATE_XSRQ",
    number: 39,
    core_in: size_of::<CreateXsrq>(),
    core_out: size_of::<CreateSrqResp>(),
    is_first: false,
    run: |context, request| {
        let asked: CreateXsrq = parse(&request.core[..size_of::<CreateXsrq>()])?;
        let is_basic = asked.srq_type == kind::BASIC;
        let wanted = Wanted {
            name: asked.user_handle,
            kind: asked.srq_type,
            pd: asked.pd_handle,
            max_wr: asked.max_wr,
            max_sge: asked.max_sge,
            limit: asked.srq_limit,
            extended: (!is_basic).then_some((asked.xrcd_handle, asked.cq_handle)),
            errors: None,
        };
        by_write(context, request, &wanted)
    },
};

pub(super) const MODIFY_SRQ: Command = Command {
    name: "MODIFY_SRQ",
    number: 33,
    core_in: size_of::<ModifySrq>(),
    core_out: 0,
    is_first: false,
    run: modify,
};

pub(super) const QUERY_SRQ: Command = Command {
    name: "QUERY_SRQ",
    number: 34,
    core_in: size_of::<QuerySrq>(),
    core_out: size_of::<QuerySrqResp>(),
    is_first: false,
    run: |context, request| {
        let asked: QuerySrq = parse(&request.core[..size_of::<QuerySrq>()])?;
        let object = srq(context, asked.srq_handle).ok_or(Errno::EINVAL)?;
        let id = object.id;
        let (max_wr, max_sge) = (object.max_wr, object.max_sge);
        let info = context.with_port(|port, _| port.nic.query_srq(id).ok_or(Errno::EINVAL))?;
        Ok(Reply::new(&QuerySrqResp { max_wr, max_sge, srq_limit: info.limit, reserved: 0 }))
    },
};

pub(super) const DESTROY_SRQ: Command = Command {
    name: "DESTROY_SRQ",
    number: 35,
    core_in: size_of::<DestroyWithEvents>(),
    core_out: 4,
    is_first: false,
    run: |context, request| {
        let asked: DestroyWithEvents = parse(&request.core[..size_of::<DestroyWithEvents>()])?;
        srq(context, asked.handle).ok_or(Errno::EINVAL)?;
        Ok(Reply::new(&destroy(context, asked.handle)?))
    },
};

pub(super) const OPEN_XRCD: Command = Command {
    name: "OPEN_XRCD",
    number: 37,
    core_in: size_of::<OpenXrcd>(),
    core_out: 4,
    is_first: false,
    run: open_xrcd,
};

pub(super) const CLOSE_XRCD: Command = Command {
    name: "CLOSE_XRCD",
    number: 38,
    core_in: 4,
    core_out: 0,
    is_first: false,
    run: |context, request| {
        let handle = handle_of(request)?;
        close_xrcd(context, handle)
            .map(|()| Reply::default())
            .map_err(|errno| if errno == Errno::ENOENT { Errno::EINVAL } else { errno })
    },
};

pub(super) const XRCD_DESTROY: Method = Method {
    name: "XRCD_DESTROY",
    object: 10,
    method: 0,
    attrs: &[0],
    outputs: &[],
    is_first: false,
    run: |context, call| close_xrcd(context, call.handle(0)?),
};

/// Attributes of `SRQ_CREATE`, in the header's order.
mod create_attr {
    pub(super) const HANDLE: u16 = 0;
    pub(super) const PD_HANDLE: u16 = 1;
    pub(super) const XRCD_HANDLE: u16 = 2;
    pub(super) const CQ_HANDLE: u16 = 3;
    pub(super) const USER_HANDLE: u16 = 4;
    pub(super) const MAX_WR: u16 = 5;
    pub(super) const MAX_SGE: u16 = 6;
    pub(super) const LIMIT: u16 = 7;
    pub(super) const TYPE: u16 = 9;
    pub(super) const EVENT_FD: u16 = 10;
    pub(super) const RESP_MAX_WR: u16 = 11;
    pub(super) const RESP_MAX_SGE: u16 = 12;
    pub(super) const RESP_SRQ_NUM: u16 = 13;
}

pub(super) const SRQ_CREATE: Method = Method {
    name: "SRQ_CREATE",
    object: 5,
    method: 0,
    attrs: &[0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, UHW_IN, UHW_OUT],
    outputs: &[
        create_attr::RESP_MAX_WR,
        create_attr::RESP_MAX_SGE,
        create_attr::RESP_SRQ_NUM,
        UHW_OUT,
    ],
    is_first: false,
    run: create_method,
};

pub(super) const SRQ_DESTROY: Method = Method {
    name: "SRQ_DESTROY",
    object: 5,
    method: 1,
    attrs: &[0, 1],
    outputs: &[1],
    is_first: false,
    run: |context, call| {
        let events = destroy(context, call.handle(0)?)?;
        call.output(1, &events.to_ne_bytes())
    },
};

/// `enum ib_srq_type`.
mod kind {
    pub(super) const BASIC: u32 = 0;
    pub(super) const XRC: u32 = 1;
}

/// What a client wants of a queue, whichever way it asks.
#[derive(Default)]
struct Wanted {
    name: u64,
    kind: u32,
    pd: u32,
    max_wr: u32,
    max_sge: u32,
    limit: u32,
    /// Handles of the domain of extended connections and of the CQ.
    extended: Option<(u32, u32)>,
    errors: Option<i32>,
}

/// Segments that a WQE of the most bytes has room for, behind its first.
pub(super) const MOST_SEGMENTS: u32 = 31;

fn by_write(context: &mut Context, request: &Request<'_>, wanted: &Wanted) -> Result<Reply, Errno> {
    let (srq_handle, srqn) = create(context, request.memory, wanted, request.driver)?;
    let (max_wr, max_sge) = (wanted.max_wr, wanted.max_sge);
    Ok(Reply::new(&CreateSrqResp { srq_handle, max_wr, max_sge, srqn }).with(&[srqn, 0]))
}

fn create_method(context: &mut Context, call: &Call<'_>) -> Result<(), Errno> {
    let kind = call.u32(create_attr::TYPE)?;
    let extended = if kind == kind::XRC {
        Some((call.handle(create_attr::XRCD_HANDLE)?, call.handle(create_attr::CQ_HANDLE)?))
    } else {
        None
    };
    let wanted = Wanted {
        name: call.number(create_attr::USER_HANDLE)?,
        kind,
        pd: call.handle(create_attr::PD_HANDLE)?,
        max_wr: call.u32(create_attr::MAX_WR)?,
        max_sge: call.u32(create_attr::MAX_SGE)?,
        limit: call.u32(create_attr::LIMIT)?,
        extended,
        errors: call.descriptor(create_attr::EVENT_FD)?,
    };
    if !call.has(create_attr::HANDLE) {
        return Err(Errno::EINVAL);
    }
    let driver = call.bytes(UHW_IN)?.unwrap_or_default();
    let (handle, srqn) = create(context, call.memory, &wanted, &driver)?;
    call.output(create_attr::RESP_MAX_WR, &wanted.max_wr.to_ne_bytes())?;
    call.output(create_attr::RESP_MAX_SGE, &wanted.max_sge.to_ne_bytes())?;
    call.output(create_attr::RESP_SRQ_NUM, &srqn.to_ne_bytes())?;
    call.output(UHW_OUT, [srqn, 0].as_bytes())?;
    call.output_handle(create_attr::HANDLE, u64::from(handle))
}

/// The handle and the number of a new queue.
fn create(
    context: &mut Context,
    memory: &dyn ClientMemory,
    wanted: &Wanted,
    driver: &[u8],
) -> Result<(u32, u32), Errno> {
    let mlx5: Mlx5CreateSrq = parse(driver)?;
    if mlx5.flags != 0 || !matches!(wanted.kind, kind::BASIC | kind::XRC) {
        return Err(Errno::EOPNOTSUPP);
    }
    if driver.len() < 20
        || wanted.max_wr >= 1 << 15
        || !(1..=MOST_SEGMENTS).contains(&wanted.max_sge)
    {
        return Err(Errno::EINVAL);
    }
    // The library's own reckoning: places by the count, bytes by the segments and the one before them.
    let log_wqes = (wanted.max_wr + 1).next_power_of_two().trailing_zeros();
    let log_stride = (16 + wanted.max_sge * 16).max(32).next_power_of_two().trailing_zeros();
    let domain = pd::pd(context, wanted.pd).ok_or(Errno::EINVAL)?;
    let extended = match wanted.extended {
        None => None,
        Some((xrcd, cq)) => {
            let identity = xrcd_of(context, xrcd).ok_or(Errno::EINVAL)?;
            let cq = cq::cq(context, cq).ok_or(Errno::EINVAL)?.id;
            Some((identity, xrcd, cq))
        }
    };
    let errors = cq::errors_of(context, wanted.errors)?;
    if !context.objects.has_room() {
        return Err(Errno::ENOMEM);
    }
    let ring = memory.pin(mlx5.buf_addr, 1 << (log_wqes + log_stride), true)?;
    let record = memory.pin(mlx5.db_addr, 4, true)?;
    let id = context.with_port(|port, _| {
        let queue = RqAttr { ring, log_wqes, log_stride };
        let completions = extended.map(|(_, _, cq)| (cq, mlx5.uidx));
        let id = port.nic.create_srq(SrqAttr { pd: domain, queue, record, completions })?;
        if port.nic.set_srq_limit(id, wanted.limit).is_err() {
            port.nic.destroy_srq(id)?;
            return Err(Errno::EINVAL);
        }
        Ok(id)
    })?;
    let object = SrqObject {
        id,
        max_wr: wanted.max_wr,
        max_sge: wanted.max_sge,
        xrcd: extended.map(|(_, handle, _)| handle),
        errors: errors.clone(),
    };
    let handle = context.objects.add(Object::Srq(object));
    if let Some(channel) = errors {
        let listener = Listener { channel, name: wanted.name, handle };
        context.with_port(|port, _| {
            port.srq_events.insert(id, listener);
            Ok(())
        })?;
    }
    Ok((handle, id.number()))
}

pub(super) fn srq(context: &Context, handle: u32) -> Option<&SrqObject> {
    match context.objects.get(handle) {
        Some(Object::Srq(object)) => Some(object),
        _ => None,
    }
}

/// Bits of `attr_mask`.
mod mask {
    pub(super) const MAX_WR: u32 = 1;
    pub(super) const LIMIT: u32 = 1 << 1;
}

fn modify(context: &mut Context, request: &Request<'_>) -> Result<Reply, Errno> {
    let asked: ModifySrq = parse(&request.core[..size_of::<ModifySrq>()])?;
    let object = srq(context, asked.srq_handle).ok_or(Errno::EINVAL)?;
    // mlx5 gives a queue no other size.
    if asked.attr_mask & mask::MAX_WR != 0 {
        return Err(Errno::EINVAL);
    }
    let (id, max_wr) = (object.id, object.max_wr);
    if asked.attr_mask & mask::LIMIT != 0 {
        if asked.srq_limit >= max_wr {
            return Err(Errno::EINVAL);
        }
        context.with_port(|port, _| Ok(port.nic.set_srq_limit(id, asked.srq_limit)?))?;
    }
    Ok(Reply::default())
}

/// Destroys a shared receive queue. Gives the events that its client has read about it.
pub(super) fn destroy(context: &mut Context, handle: u32) -> Result<u32, Errno> {
    let object = srq(context, handle).ok_or(Errno::ENOENT)?;
    let (id, errors) = (object.id, object.errors.clone());
    if dct::uses(context, |dct| dct.srq == Some(handle)) {
        return Err(Errno::EBUSY);
    }
    context.with_port(|port, _| {
        port.nic.destroy_srq(id)?;
        port.srq_events.remove(&id);
        Ok(())
    })?;
    context.objects.remove(handle);
    Ok(errors.map_or(0, |channel| channel.forget(About::Srq(handle))))
}

/// Opens a domain of extended connections: one of the context's own. Other processes have no part in it, whatever file it is
/// named by.
fn open_xrcd(context: &mut Context, request: &Request<'_>) -> Result<Reply, Errno> {
    let asked: OpenXrcd = parse(&request.core[..size_of::<OpenXrcd>()])?;
    let file = match asked.fd as i32 {
        -1 => None,
        fd => Some(crate::channel::identity(fd)?),
    };
    let (create, exclusive) = (libc::O_CREAT as u32, libc::O_EXCL as u32);
    if asked.oflags & !(create | exclusive) != 0 {
        return Err(Errno::EINVAL);
    }
    let is_open = file.is_some()
        && context
            .objects
            .iter()
            .any(|(_, object)| matches!(object, Object::Xrcd(known) if *known == file));
    if file.is_some() && !is_open && asked.oflags & create == 0 {
        return Err(Errno::EAGAIN);
    }
    if is_open && asked.oflags & exclusive != 0 {
        return Err(Errno::EINVAL);
    }
    if !context.objects.has_room() {
        return Err(Errno::ENOMEM);
    }
    Ok(Reply::new(&context.objects.add(Object::Xrcd(file))))
}

/// The file that names a domain of extended connections, if one does.
pub(super) fn xrcd_of(context: &Context, handle: u32) -> Option<Option<(u64, u64)>> {
    match context.objects.get(handle) {
        Some(Object::Xrcd(file)) => Some(*file),
        _ => None,
    }
}

pub(super) fn close_xrcd(context: &mut Context, handle: u32) -> Result<(), Errno> {
    xrcd_of(context, handle).ok_or(Errno::ENOENT)?;
    let is_used = context.objects.iter().any(|(_, object)| match object {
        Object::Srq(srq) => srq.xrcd == Some(handle),
        Object::Qp(qp) => qp.xrcd == Some(handle),
        _ => false,
    });
    if is_used {
        return Err(Errno::EBUSY);
    }
    context.objects.remove(handle);
    Ok(())
}
