//! Completion queues and their channels.

use std::os::fd::AsRawFd;
use std::sync::Arc;

use softnic::{CqAttr, CqFormat};

use super::{Command, Method, Reply, Request, dct, device};
use crate::abi::{
    CreateCq, CreateCqResp, DestroyCqResp, DestroyWithEvents, EXTENDED, ExCreateCq, Mlx5CreateCq,
    Mlx5ResizeCq, ResizeCq, UHW_IN, UHW_OUT,
};
use crate::attr::{Call, parse};
use crate::channel::{ASYNC_EVENT, About, COMPLETION_EVENT, Channel};
use crate::context::Context;
use crate::engine::Listener;
use crate::errno::Errno;
use crate::memory::ClientMemory;
use crate::objects::{CqObject, Object};
use zerocopy::IntoBytes;

pub(super) const CREATE_COMP_CHANNEL: Command = Command {
    name: "CREATE_COMP_CHANNEL",
    number: 17,
    core_in: 8,
    core_out: 4,
    is_first: false,
    run: |context, _| {
        let (_, client) = context.new_channel(COMPLETION_EVENT)?;
        let number = client.as_raw_fd();
        Ok(Reply { gift: Some(client), ..Reply::new(&number) })
    },
};

pub(super) const CREATE_CQ: Command = Command {
    name: "CREATE_CQ",
    number: 18,
    core_in: size_of::<CreateCq>(),
    core_out: size_of::<CreateCqResp>(),
    is_first: false,
    run: |context, request| {
        let asked: CreateCq = parse(&request.core[..size_of::<CreateCq>()])?;
        let wanted = Wanted {
            name: asked.user_handle,
            entries: asked.cqe,
            vector: asked.comp_vector,
            channel: (asked.comp_channel >= 0).then_some(asked.comp_channel),
            ..Wanted::default()
        };
        let (core, cqn) = create(context, request.memory, &wanted, request.driver)?;
        Ok(Reply::new(&core).with(&[cqn, 0]))
    },
};

pub(super) const CREATE_CQ_EX: Command = Command {
    name: "CREATE_CQ_EX",
    number: 18 | EXTENDED,
    core_in: size_of::<ExCreateCq>(),
    core_out: size_of::<CreateCqResp>() + 8,
    is_first: false,
    run: |context, request| {
        let asked: ExCreateCq = parse(&request.core[..size_of::<ExCreateCq>()])?;
        if asked.comp_mask != 0 || asked.reserved != 0 {
            return Err(Errno::EINVAL);
        }
        let wanted = Wanted {
            name: asked.user_handle,
            entries: asked.cqe,
            vector: asked.comp_vector,
            channel: (asked.comp_channel >= 0).then_some(asked.comp_channel),
            flags: asked.flags,
            ..Wanted::default()
        };
        let (core, cqn) = create(context, request.memory, &wanted, request.driver)?;
        let mut bytes = core.as_bytes().to_vec();
        bytes.extend_from_slice([0u32, request.core_room.min(16) as u32].as_bytes());
        Ok(Reply { core: bytes, ..Reply::default() }.with(&[cqn, 0]))
    },
};

pub(super) const RESIZE_CQ: Command = Command {
    name: "RESIZE_CQ",
    number: 19,
    core_in: size_of::<ResizeCq>(),
    core_out: 8,
    is_first: false,
    run: resize,
};

pub(super) const DESTROY_CQ: Command = Command {
    name: "DESTROY_CQ",
    number: 20,
    core_in: size_of::<DestroyWithEvents>(),
    core_out: size_of::<DestroyCqResp>(),
    is_first: false,
    run: |context, request| {
        let asked: DestroyWithEvents = parse(&request.core[..size_of::<DestroyWithEvents>()])?;
        cq(context, asked.handle).ok_or(Errno::EINVAL)?;
        Ok(Reply::new(&destroy(context, asked.handle)?))
    },
};

/// Attributes of `CQ_CREATE`, in the header's order.
mod create_attr {
    pub(super) const HANDLE: u16 = 0;
    pub(super) const CQE: u16 = 1;
    pub(super) const USER_HANDLE: u16 = 2;
    pub(super) const COMP_CHANNEL: u16 = 3;
    pub(super) const COMP_VECTOR: u16 = 4;
    pub(super) const FLAGS: u16 = 5;
    pub(super) const RESP_CQE: u16 = 6;
    pub(super) const EVENT_FD: u16 = 7;
}

pub(super) const CQ_CREATE: Method = Method {
    name: "CQ_CREATE",
    object: 3,
    method: 0,
    attrs: &[0, 1, 2, 3, 4, 5, 6, 7, UHW_IN, UHW_OUT],
    outputs: &[create_attr::RESP_CQE, UHW_OUT],
    is_first: false,
    run: create_method,
};

pub(super) const CQ_DESTROY: Method = Method {
    name: "CQ_DESTROY",
    object: 3,
    method: 1,
    attrs: &[0, 1],
    outputs: &[1],
    is_first: false,
    run: |context, call| {
        let handle = call.handle(0)?;
        cq(context, handle).ok_or(Errno::ENOENT)?;
        let answer = destroy(context, handle)?;
        call.output(1, answer.as_bytes())
    },
};

/// What a client wants of a queue, whichever way it asks.
#[derive(Default)]
struct Wanted {
    name: u64,
    entries: u32,
    vector: u32,
    channel: Option<i32>,
    flags: u32,
    errors: Option<i32>,
}

/// Flags of `enum ib_uverbs_ex_create_cq_flags`.
mod flag {
    pub(super) const TIMESTAMPS: u32 = 1;
    pub(super) const IGNORE_OVERRUN: u32 = 2;
}

/// The most that `log_size` of a queue may be.
const LOG_MOST: u32 = 22;

fn log_size(entries: u32) -> Result<u32, Errno> {
    let entries = entries.checked_add(1).ok_or(Errno::EINVAL)?;
    let log = entries.checked_next_power_of_two().ok_or(Errno::EINVAL)?.trailing_zeros();
    if log > LOG_MOST { Err(Errno::EINVAL) } else { Ok(log) }
}

fn create_method(context: &mut Context, call: &Call<'_>) -> Result<(), Errno> {
    let wanted = Wanted {
        name: call.number(create_attr::USER_HANDLE)?,
        entries: call.u32(create_attr::CQE)?,
        vector: call.u32(create_attr::COMP_VECTOR)?,
        channel: call.descriptor(create_attr::COMP_CHANNEL)?,
        flags: call.number_or(create_attr::FLAGS)?.unwrap_or(0) as u32,
        errors: call.descriptor(create_attr::EVENT_FD)?,
    };
    if !call.has(create_attr::HANDLE) {
        return Err(Errno::EINVAL);
    }
    let driver = call.bytes(UHW_IN)?.unwrap_or_default();
    let (core, cqn) = create(context, call.memory, &wanted, &driver)?;
    call.output(create_attr::RESP_CQE, &core.cqe.to_ne_bytes())?;
    call.output(UHW_OUT, [cqn, 0].as_bytes())?;
    call.output_handle(create_attr::HANDLE, u64::from(core.cq_handle))
}

fn create(
    context: &mut Context,
    memory: &dyn ClientMemory,
    wanted: &Wanted,
    driver: &[u8],
) -> Result<(CreateCqResp, u32), Errno> {
    let mlx5: Mlx5CreateCq = parse(driver)?;
    if wanted.entries == 0 || wanted.vector >= device::VECTORS || driver.len() < 20 {
        return Err(Errno::EINVAL);
    }
    if wanted.flags & !(flag::TIMESTAMPS | flag::IGNORE_OVERRUN) != 0 || mlx5.cqe_comp_en != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let wide = match mlx5.cqe_size {
        64 => false,
        128 => true,
        _ => return Err(Errno::EINVAL),
    };
    let log_size = log_size(wanted.entries)?;
    let channel = wanted.channel.map(|fd| context.channel(fd, COMPLETION_EVENT)).transpose()?;
    let errors = errors_of(context, wanted.errors)?;
    if !context.objects.has_room() {
        return Err(Errno::ENOMEM);
    }
    let stride = u64::from(mlx5.cqe_size);
    let ring = memory.pin(mlx5.buf_addr, stride << log_size, true)?;
    let record = memory.pin(mlx5.db_addr, 8, true)?;
    let attr = CqAttr {
        ring,
        log_size,
        record,
        collapsed: false,
        ignore_overrun: wanted.flags & flag::IGNORE_OVERRUN != 0,
    };
    // The kernel leaves it to the library to make the entries ready.
    let format = CqFormat { wide, unready: true };
    let id = context.with_port(|port, _| {
        let id = port.nic.create_cq_as(attr, format)?;
        if channel.is_some() {
            port.nic.watch_cq(id)?;
        }
        Ok(id)
    })?;
    let object = CqObject { id, stride, channel: channel.clone(), errors: errors.clone() };
    let cq_handle = context.objects.add(Object::Cq(object));
    let listener =
        |channel: Arc<Channel>| Listener { channel, name: wanted.name, handle: cq_handle };
    context.with_port(|port, _| {
        port.completions.extend(channel.map(|channel| (id, listener(channel))));
        port.cq_errors.extend(errors.map(|channel| (id, listener(channel))));
        Ok(())
    })?;
    Ok((CreateCqResp { cq_handle, cqe: (1 << log_size) - 1 }, id.number()))
}

/// The channel that an object's errors are told by.
pub(super) fn errors_of(context: &Context, fd: Option<i32>) -> Result<Option<Arc<Channel>>, Errno> {
    match fd {
        Some(fd) => context.channel(fd, ASYNC_EVENT).map(Some),
        None => Ok(context.async_channel.clone()),
    }
}

pub(super) fn cq(context: &Context, handle: u32) -> Option<&CqObject> {
    match context.objects.get(handle) {
        Some(Object::Cq(object)) => Some(object),
        _ => None,
    }
}

fn resize(context: &mut Context, request: &Request<'_>) -> Result<Reply, Errno> {
    let asked: ResizeCq = parse(&request.core[..size_of::<ResizeCq>()])?;
    let mlx5: Mlx5ResizeCq = parse(request.driver)?;
    let object = cq(context, asked.cq_handle).ok_or(Errno::EINVAL)?;
    if asked.cqe == 0 || u64::from(mlx5.cqe_size) != object.stride {
        return Err(Errno::EINVAL);
    }
    let log_size = log_size(asked.cqe)?;
    let (id, stride) = (object.id, object.stride);
    let ring = request.memory.pin(mlx5.buf_addr, stride << log_size, true)?;
    let shared = Arc::clone(&context.shared);
    context.with_port(|port, _| {
        shared.catch_up(port);
        Ok(port.nic.resize_cq(id, ring, log_size)?)
    })?;
    Ok(Reply::new(&[(1u32 << log_size) - 1, 0]))
}

pub(super) fn destroy(context: &mut Context, handle: u32) -> Result<DestroyCqResp, Errno> {
    let object = cq(context, handle).ok_or(Errno::ENOENT)?;
    let (id, channel, errors) = (object.id, object.channel.clone(), object.errors.clone());
    if dct::uses(context, |dct| dct.cq == handle) {
        return Err(Errno::EBUSY);
    }
    context.with_port(|port, _| {
        port.nic.destroy_cq(id)?;
        port.completions.remove(&id);
        port.cq_errors.remove(&id);
        Ok(())
    })?;
    context.objects.remove(handle);
    Ok(DestroyCqResp {
        comp_events_reported: channel.map_or(0, |channel| channel.forget(About::Cq(handle))),
        async_events_reported: errors.map_or(0, |channel| channel.forget(About::CqError(handle))),
    })
}
