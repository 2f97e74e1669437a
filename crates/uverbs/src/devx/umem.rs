//! Memory that queues lie in: registered once, named by a number in commands.

use softnic::DmaBuf;

use super::Refusal;
use crate::abi::IbAccess;
use crate::attr::Call;
use crate::context::Context;
use crate::errno::Errno;
use crate::objects::Object;

/// Registered memory.
pub(crate) struct Umem {
    /// Its number in commands: no other context's has the same.
    pub(crate) number: u32,
    memory: DmaBuf,
    writable: bool,
}

/// Attributes of `UMEM_REG`, in the header's order, from the driver's first on.
pub(super) mod reg_attr {
    use crate::abi::DRIVER;
    pub(crate) const HANDLE: u16 = DRIVER;
    pub(crate) const ADDR: u16 = DRIVER + 1;
    pub(crate) const LEN: u16 = DRIVER + 2;
    pub(crate) const ACCESS: u16 = DRIVER + 3;
    pub(crate) const OUT_ID: u16 = DRIVER + 4;
    pub(crate) const PAGE_SIZES: u16 = DRIVER + 5;
    pub(crate) const DMABUF: u16 = DRIVER + 6;
}

pub(super) fn register(context: &mut Context, call: &Call<'_>) -> Result<(), Errno> {
    if !context.has_devx || !call.has(reg_attr::HANDLE) || !call.has(reg_attr::OUT_ID) {
        return Err(Errno::EINVAL);
    }
    let address = call.number(reg_attr::ADDR)?;
    let len = call.number(reg_attr::LEN)?;
    let access = call.number(reg_attr::ACCESS)?;
    let access = u32::try_from(access).ok().and_then(IbAccess::from_bits);
    let access = access.ok_or(Errno::EINVAL)?;
    let remote = IbAccess::REMOTE_WRITE | IbAccess::REMOTE_ATOMIC;
    if access.intersects(remote) && !access.contains(IbAccess::LOCAL_WRITE) {
        return Err(Errno::EINVAL);
    }
    if access.intersects(IbAccess::ON_DEMAND | IbAccess::HUGETLB) {
        return Err(Errno::EOPNOTSUPP);
    }
    if let Some(fd) = call.descriptor(reg_attr::DMABUF)? {
        // Memory behind a dmabuf is a GPU's: a kernel answers so where device and exporter can't be brought together.
        crate::channel::identity(fd)?;
        return Err(Errno::EOPNOTSUPP);
    }
    // The smallest page that this device has must be among those that the client allows.
    let allowed = call.number_or(reg_attr::PAGE_SIZES)?.unwrap_or(u64::MAX);
    if len == 0 || address.checked_add(len).is_none() || allowed & !0xfff == 0 {
        return Err(Errno::EINVAL);
    }
    if !context.objects.has_room() {
        return Err(Errno::ENOMEM);
    }
    let writable = access.contains(IbAccess::LOCAL_WRITE);
    let memory = call.memory.pin(address, len, writable)?;
    let number = context.with_port(|port, _| Ok(port.next_umem()))?;
    let handle = context.objects.add(Object::Umem(Umem { number, memory, writable }));
    call.output(reg_attr::OUT_ID, &number.to_ne_bytes())?;
    call.output_handle(reg_attr::HANDLE, u64::from(handle))
}

pub(crate) fn deregister(context: &mut Context, handle: u32) -> Result<(), Errno> {
    let Some(Object::Umem(_)) = context.objects.get(handle) else { return Err(Errno::ENOENT) };
    let used = context.objects.iter().any(|(_, object)| match object {
        Object::Devx(devx) => devx.umems().contains(&handle),
        _ => false,
    });
    if used {
        return Err(Errno::EBUSY);
    }
    context.objects.remove(handle);
    Ok(())
}

/// The part of registered memory that a command names, and the memory's handle.
pub(super) fn part(
    context: &Context,
    number: u32,
    offset: u64,
    len: u64,
) -> Result<(u32, DmaBuf), Refusal> {
    let found = context.objects.iter().find_map(|(handle, object)| match object {
        Object::Umem(umem) if umem.number == number => Some((handle, umem)),
        _ => None,
    });
    let (handle, umem) = found.ok_or(Refusal::Umem)?;
    if !umem.writable {
        return Err(Refusal::UmemReadOnly);
    }
    let (offset, len) =
        usize::try_from(offset).ok().zip(usize::try_from(len).ok()).ok_or(Refusal::UmemBounds)?;
    let part = umem.memory.slice(offset, len).map_err(|_| Refusal::UmemBounds)?;
    Ok((handle, part))
}

/// A queue's doorbell record.
pub(super) fn record(
    context: &Context,
    valid: bool,
    number: u32,
    offset: u64,
) -> Result<(u32, DmaBuf), Refusal> {
    if !valid {
        return Err(Refusal::NoUmem);
    }
    let (handle, record) = part(context, number, offset, 8)?;
    if record.is_aligned(8) { Ok((handle, record)) } else { Err(Refusal::UmemAlignment) }
}
