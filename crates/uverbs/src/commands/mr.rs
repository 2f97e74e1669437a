//! Memory regions.

use softnic::MrAttr;

use super::{Command, Method, Reply, Request, handle_of, pd};
use crate::abi::{IbAccess, RegMr, RegMrResp, ReregMr, ReregMrResp};
use crate::attr::{Call, parse};
use crate::context::Context;
use crate::errno::Errno;
use crate::memory::ClientMemory;
use crate::objects::{MrObject, Object};
use crate::page::PAGE;

pub(super) const REG_MR: Command = Command {
    name: "REG_MR",
    number: 9,
    core_in: size_of::<RegMr>(),
    core_out: size_of::<RegMrResp>(),
    is_first: false,
    run: register,
};

pub(super) const REREG_MR: Command = Command {
    name: "REREG_MR",
    number: 11,
    core_in: size_of::<ReregMr>(),
    core_out: size_of::<ReregMrResp>(),
    is_first: false,
    run: register_again,
};

pub(super) const DEREG_MR: Command = Command {
    name: "DEREG_MR",
    number: 13,
    core_in: 4,
    core_out: 0,
    is_first: false,
    run: |context, request| {
        let handle = handle_of(request)?;
        mr(context, handle).ok_or(Errno::EINVAL)?;
        destroy(context, handle).map(|()| Reply::default())
    },
};

pub(super) const MR_DESTROY: Method = Method {
    name: "MR_DESTROY",
    object: 7,
    method: 1,
    attrs: &[0],
    outputs: &[],
    is_first: false,
    run: |context, call| destroy(context, call.handle(0)?),
};

pub(super) const QUERY_MR: Method = Method {
    name: "QUERY_MR",
    object: 7,
    method: 3,
    attrs: &[0, 1, 2, 3, 4],
    outputs: &[1, 2, 3, 4],
    is_first: false,
    run: |context, call| {
        let found = mr(context, call.handle(0)?).ok_or(Errno::ENOENT)?;
        call.output(1, &found.keys.lkey.to_ne_bytes())?;
        call.output(2, &found.keys.rkey.to_ne_bytes())?;
        call.output(3, &found.length.to_ne_bytes())?;
        call.output(4, &found.iova.to_ne_bytes())
    },
};

pub(super) const REG_DMABUF_MR: Method = Method {
    name: "REG_DMABUF_MR",
    object: 7,
    method: 4,
    attrs: &[0, 1, 2, 3, 4, 5, 6, 7, 8],
    outputs: &[7, 8],
    is_first: false,
    run: dmabuf,
};

/// What a region's access flags may be.
fn access(flags: u32) -> Result<IbAccess, Errno> {
    let access = IbAccess::from_bits(flags).ok_or(Errno::EINVAL)?;
    if access.intersects(IbAccess::ON_DEMAND | IbAccess::HUGETLB) {
        return Err(Errno::EOPNOTSUPP);
    }
    let writes = IbAccess::REMOTE_WRITE | IbAccess::REMOTE_ATOMIC;
    if access.intersects(writes) && !access.contains(IbAccess::LOCAL_WRITE) {
        return Err(Errno::EINVAL);
    }
    Ok(access)
}

/// `length` bytes at `start`, named from `iova` on.
fn region(
    context: &Context,
    memory: &dyn ClientMemory,
    (start, length, iova): (u64, u64, u64),
    pd_handle: u32,
    flags: u32,
) -> Result<MrAttr, Errno> {
    let access = access(flags)?;
    let page = PAGE as u64;
    if start % page != iova % page || length == 0 {
        return Err(Errno::EINVAL);
    }
    start.checked_add(length).zip(iova.checked_add(length)).ok_or(Errno::EINVAL)?;
    let pd = pd::pd(context, pd_handle).ok_or(Errno::EINVAL)?;
    let memory = memory.pin(start, length, access.contains(IbAccess::LOCAL_WRITE))?;
    Ok(MrAttr { pd, iova, length, access: access.of_nic(), memory })
}

fn register(context: &mut Context, request: &Request<'_>) -> Result<Reply, Errno> {
    let asked: RegMr = parse(&request.core[..size_of::<RegMr>()])?;
    if !context.objects.has_room() {
        return Err(Errno::ENOMEM);
    }
    let RegMr { start, length, hca_va: iova, access_flags: flags, pd_handle: pd, .. } = asked;
    let attr = region(context, request.memory, (start, length, iova), pd, flags)?;
    let keys = context.with_port(|port, _| Ok(port.nic.reg_mr(attr)?))?;
    let object = MrObject { keys, pd, start, iova, length, flags };
    let mr_handle = context.objects.add(Object::Mr(object));
    Ok(Reply::new(&RegMrResp { mr_handle, lkey: keys.lkey, rkey: keys.rkey }))
}

/// Flags of `ib_uverbs_rereg_mr`.
mod again {
    pub(super) const PLACE: u32 = 1;
    pub(super) const PD: u32 = 1 << 1;
    pub(super) const ACCESS: u32 = 1 << 2;
}

/// Registers a region again, with some of its attributes changed. It keeps its keys.
fn register_again(context: &mut Context, request: &Request<'_>) -> Result<Reply, Errno> {
    let asked: ReregMr = parse(&request.core[..size_of::<ReregMr>()])?;
    let known = again::PLACE | again::PD | again::ACCESS;
    if asked.flags == 0 || asked.flags & !known != 0 {
        return Err(Errno::EINVAL);
    }
    let old = mr(context, asked.mr_handle).ok_or(Errno::EINVAL)?;
    let given = |flag| asked.flags & flag != 0;
    let (start, length, iova) = match given(again::PLACE) {
        true => (asked.start, asked.length, asked.hca_va),
        false => (old.start, old.length, old.iova),
    };
    let pd = if given(again::PD) { asked.pd_handle } else { old.pd };
    let flags = if given(again::ACCESS) { asked.access_flags } else { old.flags };
    let attr = region(context, request.memory, (start, length, iova), pd, flags)?;
    let keys = old.keys;
    context.with_port(|port, _| Ok(port.nic.rereg_mr(keys, attr)?))?;
    if let Some(Object::Mr(object)) = context.objects.get_mut(asked.mr_handle) {
        *object = MrObject { keys, pd, start, iova, length, flags };
    }
    Ok(Reply::new(&ReregMrResp { lkey: keys.lkey, rkey: keys.rkey }))
}

/// Memory behind a dmabuf is a GPU's, which this device has no way to: the kernel says the same of a device, or of an
/// exporter, that can't be brought together.
fn dmabuf(context: &mut Context, call: &Call<'_>) -> Result<(), Errno> {
    pd::pd(context, call.handle(1)?).ok_or(Errno::ENOENT)?;
    access(call.u32(6)?)?;
    let fd = call.descriptor(5)?.ok_or(Errno::EINVAL)?;
    crate::channel::identity(fd)?;
    Err(Errno::EOPNOTSUPP)
}

fn mr(context: &Context, handle: u32) -> Option<MrObject> {
    match context.objects.get(handle) {
        Some(Object::Mr(object)) => Some(*object),
        _ => None,
    }
}

pub(super) fn destroy(context: &mut Context, handle: u32) -> Result<(), Errno> {
    let found = mr(context, handle).ok_or(Errno::ENOENT)?;
    debug_assert!(pd::pd(context, found.pd).is_some(), "a domain outlives its regions");
    context.with_port(|port, _| Ok(port.nic.dereg_mr(found.keys)?))?;
    context.objects.remove(handle);
    Ok(())
}
