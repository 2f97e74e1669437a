//! Doorbell pages: objects of mlx5's own, that the client maps.

use super::Method;
use crate::abi::DRIVER;
use crate::attr::Call;
use crate::context::Context;
use crate::errno::Errno;
use crate::objects::{Object, UarObject};
use crate::page::{DoorbellPage, PAGE};

/// `MLX5_IB_OBJECT_UAR`.
const OBJECT: u16 = DRIVER + 8;

pub(super) const UAR_ALLOC: Method = Method {
    name: "UAR_OBJ_ALLOC",
    object: OBJECT,
    method: DRIVER,
    attrs: &[DRIVER, DRIVER + 1, DRIVER + 2, DRIVER + 3, DRIVER + 4],
    outputs: &[DRIVER + 2, DRIVER + 3, DRIVER + 4],
    is_first: false,
    run: alloc,
};

pub(super) const UAR_DESTROY: Method = Method {
    name: "UAR_OBJ_DESTROY",
    object: OBJECT,
    method: DRIVER + 1,
    attrs: &[DRIVER],
    outputs: &[],
    is_first: false,
    run: |context, call| destroy(context, call.handle(DRIVER)?),
};

fn alloc(context: &mut Context, call: &Call<'_>) -> Result<(), Errno> {
    // Write-combining or not: here they are the same.
    if call.number(DRIVER + 1)? > 1 {
        return Err(Errno::EOPNOTSUPP);
    }
    if !call.has(DRIVER) || !context.objects.has_room() {
        return Err(Errno::EINVAL);
    }
    let DoorbellPage { dma, mappable } = DoorbellPage::new()?;
    let (id, page) = context.with_port(|port, _| {
        let id = port.nic.alloc_uar(dma)?;
        let Some(page) = port.add_page(id) else {
            port.nic.dealloc_uar(id)?;
            return Err(Errno::ENOMEM);
        };
        Ok((id, page))
    })?;
    let handle = context.objects.add(Object::Uar(UarObject { id, page, mappable }));
    call.output(DRIVER + 2, &(u64::from(page) * PAGE as u64).to_ne_bytes())?;
    call.output(DRIVER + 3, &(PAGE as u32).to_ne_bytes())?;
    call.output(DRIVER + 4, &page.to_ne_bytes())?;
    call.output_handle(DRIVER, u64::from(handle))
}

pub(super) fn destroy(context: &mut Context, handle: u32) -> Result<(), Errno> {
    let Some(Object::Uar(uar)) = context.objects.get(handle) else { return Err(Errno::ENOENT) };
    let (id, page) = (uar.id, uar.page);
    context.with_port(|port, _| {
        port.nic.dealloc_uar(id)?;
        port.pages.remove(&page);
        Ok(())
    })?;
    context.objects.remove(handle);
    Ok(())
}
