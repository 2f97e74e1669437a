//! The commands, one file a family of objects, and the tables of what there is.

mod ah;
mod cq;
mod dct;
mod device;
mod mr;
mod pd;
mod qp;
mod qp_modify;
mod srq;
mod uar;

pub(crate) use device::VECTORS;
pub(crate) use qp_modify::LEAST_TIMEOUT;
use std::os::fd::OwnedFd;

use zerocopy::IntoBytes;

use crate::attr::Call;
use crate::context::Context;
use crate::devx::method as devx;
use crate::errno::Errno;
use crate::memory::ClientMemory;
use crate::objects::Object;

/// A command as it came: the core's and the driver's bytes, and the room for the answers of both.
pub(crate) struct Request<'a> {
    pub(crate) memory: &'a dyn ClientMemory,
    pub(crate) core: &'a [u8],
    pub(crate) driver: &'a [u8],
    pub(crate) core_room: usize,
    pub(crate) driver_room: usize,
}

/// A command's answer: the core's and the driver's bytes.
#[derive(Default)]
pub(crate) struct Reply {
    pub(crate) core: Vec<u8>,
    pub(crate) driver: Vec<u8>,
    /// A descriptor that the answer names: the client's once it has the answer.
    pub(crate) gift: Option<OwnedFd>,
}

impl Reply {
    fn new(core: &(impl IntoBytes + zerocopy::Immutable)) -> Self {
        Self { core: core.as_bytes().to_vec(), ..Self::default() }
    }
    fn with(self, driver: &(impl IntoBytes + zerocopy::Immutable)) -> Self {
        Self { driver: driver.as_bytes().to_vec(), ..self }
    }
}

/// A command of the `write` form; an `ioctl` may bring it too.
pub struct Command {
    /// Its name.
    pub name: &'static str,
    /// `enum ib_uverbs_write_cmds`, with bit 31 for the extended form.
    pub number: u32,
    /// Bytes that the core's part must have, and that its answer has.
    pub(crate) core_in: usize,
    pub(crate) core_out: usize,
    /// It may come before the client has a context.
    pub(crate) is_first: bool,
    pub(crate) run: fn(&mut Context, &Request<'_>) -> Result<Reply, Errno>,
}

/// A method of an object, by `ioctl`.
pub struct Method {
    /// Its name.
    pub name: &'static str,
    /// The object's number.
    pub object: u16,
    /// The method's number.
    pub method: u16,
    /// Attributes that are understood.
    pub(crate) attrs: &'static [u16],
    /// Those of them that are outputs by pointer.
    pub(crate) outputs: &'static [u16],
    /// It may come before the client has a context.
    pub(crate) is_first: bool,
    pub(crate) run: fn(&mut Context, &Call<'_>) -> Result<(), Errno>,
}

/// Every command of the `write` form.
pub const COMMANDS: &[Command] = &[
    device::GET_CONTEXT,
    device::QUERY_DEVICE,
    device::QUERY_DEVICE_EX,
    device::QUERY_PORT,
    pd::ALLOC_PD,
    pd::DEALLOC_PD,
    mr::REG_MR,
    mr::REREG_MR,
    mr::DEREG_MR,
    cq::CREATE_COMP_CHANNEL,
    cq::CREATE_CQ,
    cq::CREATE_CQ_EX,
    cq::RESIZE_CQ,
    cq::DESTROY_CQ,
    qp::CREATE_QP,
    qp_modify::QUERY_QP,
    qp_modify::MODIFY_QP,
    qp_modify::MODIFY_QP_EX,
    qp::DESTROY_QP,
    srq::CREATE_SRQ,
    srq::CREATE_XSRQ,
    srq::MODIFY_SRQ,
    srq::QUERY_SRQ,
    srq::DESTROY_SRQ,
    srq::OPEN_XRCD,
    srq::CLOSE_XRCD,
    ah::CREATE_AH,
    ah::DESTROY_AH,
];

/// Every method.
pub const METHODS: &[Method] = &[
    device::INVOKE_WRITE,
    device::QUERY_PORT_METHOD,
    device::GET_CONTEXT_METHOD,
    device::QUERY_GID_TABLE,
    device::QUERY_GID_ENTRY,
    device::ASYNC_EVENT_ALLOC,
    pd::PD_DESTROY,
    mr::MR_DESTROY,
    mr::QUERY_MR,
    mr::REG_DMABUF_MR,
    cq::CQ_CREATE,
    cq::CQ_DESTROY,
    qp::QP_CREATE,
    qp::QP_DESTROY,
    srq::SRQ_CREATE,
    srq::SRQ_DESTROY,
    srq::XRCD_DESTROY,
    ah::AH_DESTROY,
    uar::UAR_ALLOC,
    uar::UAR_DESTROY,
    devx::OTHER,
    devx::QUERY_UAR,
    devx::QUERY_EQN,
    devx::SUBSCRIBE_EVENT,
    devx::OBJ_CREATE,
    devx::OBJ_DESTROY,
    devx::OBJ_MODIFY,
    devx::OBJ_QUERY,
    devx::OBJ_ASYNC_QUERY,
    devx::UMEM_REG,
    devx::UMEM_DEREG,
    devx::ASYNC_CMD_FD_ALLOC,
    devx::ASYNC_EVENT_FD_ALLOC,
];

/// Destroys whatever a handle leads to.
pub(crate) fn destroy(context: &mut Context, handle: u32) -> Result<(), Errno> {
    match context.objects.get(handle).ok_or(Errno::ENOENT)? {
        Object::Pd(_) => pd::destroy(context, handle),
        Object::Mr(_) => mr::destroy(context, handle),
        Object::Cq(_) => cq::destroy(context, handle).map(drop),
        Object::Qp(_) => qp::destroy(context, handle).map(drop),
        Object::Dct(_) => dct::destroy(context, handle),
        Object::Srq(_) => srq::destroy(context, handle).map(drop),
        Object::Xrcd(_) => srq::close_xrcd(context, handle),
        Object::Uar(_) => uar::destroy(context, handle),
        Object::Ah(_) => ah::destroy(context, handle),
        Object::Umem(_) => crate::devx::deregister(context, handle),
        Object::Devx(_) => crate::devx::destroy(context, handle),
    }
}

/// The handle that a structure of one number holds.
fn handle_of(request: &Request<'_>) -> Result<u32, Errno> {
    request.core.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes)).ok_or(Errno::EINVAL)
}
