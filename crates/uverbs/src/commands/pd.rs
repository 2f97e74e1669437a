//! Protection domains.

use softnic::PdId;

use super::{Command, Method, Reply, Request, dct, handle_of};
use crate::context::Context;
use crate::errno::Errno;
use crate::objects::Object;

pub(super) const ALLOC_PD: Command =
    Command { name: "ALLOC_PD", number: 3, core_in: 8, core_out: 4, is_first: false, run: alloc };

pub(super) const DEALLOC_PD: Command = Command {
    name: "DEALLOC_PD",
    number: 4,
    core_in: 4,
    core_out: 0,
    is_first: false,
    run: |context, request| {
        let handle = handle_of(request)?;
        pd(context, handle).ok_or(Errno::EINVAL)?;
        destroy(context, handle).map(|()| Reply::default())
    },
};

pub(super) const PD_DESTROY: Method = Method {
    name: "PD_DESTROY",
    object: 1,
    method: 0,
    attrs: &[0],
    outputs: &[],
    is_first: false,
    run: |context, call| {
        let handle = call.handle(0)?;
        pd(context, handle).ok_or(Errno::ENOENT)?;
        destroy(context, handle)
    },
};

fn alloc(context: &mut Context, _: &Request<'_>) -> Result<Reply, Errno> {
    if !context.objects.has_room() {
        return Err(Errno::ENOMEM);
    }
    let id = context.with_port(|port, _| Ok(port.nic.alloc_pd()?))?;
    let handle = context.objects.add(Object::Pd(id));
    Ok(Reply::new(&handle).with(&id.number()))
}

pub(super) fn pd(context: &Context, handle: u32) -> Option<PdId> {
    match context.objects.get(handle) {
        Some(Object::Pd(id)) => Some(*id),
        _ => None,
    }
}

pub(super) fn destroy(context: &mut Context, handle: u32) -> Result<(), Errno> {
    let id = pd(context, handle).ok_or(Errno::ENOENT)?;
    let has_ah = |(_, object): (u32, &Object)| matches!(object, Object::Ah(of) if *of == handle);
    if context.objects.iter().any(has_ah) || dct::uses(context, |dct| dct.pd == handle) {
        return Err(Errno::EBUSY);
    }
    context.with_port(|port, _| Ok(port.nic.dealloc_pd(id)?))?;
    context.objects.remove(handle);
    Ok(())
}
