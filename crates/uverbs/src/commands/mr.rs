//! Memory regions.

use softnic::MrAttr;

use super::{Command, Method, Reply, Request, handle_of, pd};
use crate::abi::{IbAccess, RegMr, RegMrResp};
use crate::attr::{Call, parse};
use crate::context::Context;
use crate::errno::Errno;
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

fn register(context: &mut Context, request: &Request<'_>) -> Result<Reply, Errno> {
    let asked: RegMr = parse(&request.core[..size_of::<RegMr>()])?;
    let access = access(asked.access_flags)?;
    let page = PAGE as u64;
    if asked.start % page != asked.hca_va % page || asked.length == 0 {
        return Err(Errno::EINVAL);
    }
    let ends = asked.start.checked_add(asked.length).zip(asked.hca_va.checked_add(asked.length));
    if ends.is_none() || !context.objects.has_room() {
        return Err(if ends.is_none() { Errno::EINVAL } else { Errno::ENOMEM });
    }
    let domain = pd::pd(context, asked.pd_handle).ok_or(Errno::EINVAL)?;
    let writable = access.contains(IbAccess::LOCAL_WRITE);
    let memory = request.memory.pin(asked.start, asked.length, writable)?;
    let attr = MrAttr {
        pd: domain,
        iova: asked.hca_va,
        length: asked.length,
        access: access.of_nic(),
        memory,
    };
    let keys = context.with_port(|port, _| Ok(port.nic.reg_mr(attr)?))?;
    let object = MrObject { keys, pd: asked.pd_handle, iova: asked.hca_va, length: asked.length };
    let mr_handle = context.objects.add(Object::Mr(object));
    Ok(Reply::new(&RegMrResp { mr_handle, lkey: keys.lkey, rkey: keys.rkey }))
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
