//! DevX: commands in the device's own format, which the kernel hands on, and the objects that they make.
//!
//! What the kernel checks (attributes, which commands go by which method, whose object a command names) ends in an
//! error number. What the device checks ends in a status and a syndrome in the answer's mailbox, and `EREMOTEIO`. The
//! objects are the data path's own: a queue pair made here and one made by verbs are the same to it.
//!
//! - `method.rs`: the methods, and which command goes where.
//! - `refusal.rs`: what the device says no to.
//! - `caps.rs`: general commands: capabilities, RoCE addresses.
//! - `umem.rs`: memory that queues lie in.
//! - `cq.rs`, `qp.rs`, `qp_modify.rs`, `dct.rs`: objects.

mod caps;
mod cq;
mod dct;
pub(crate) mod method;
mod qp;
mod qp_modify;
mod refusal;
mod umem;

use softnic::{PdId, SrqId, UarId};
use wire::devx::{Field, NUMBER, SHORT};

pub(crate) use umem::{Umem, deregister};

use crate::context::Context;
use crate::engine::Port;
use crate::errno::Errno;
use crate::fabric::Fabric;
use crate::objects::Object;
use refusal::Refusal;

/// An object that a command made.
pub(crate) enum Devx {
    Pd(PdId),
    Cq(cq::Cq),
    Qp(qp::Qp),
    Dct(dct::Dct),
}

impl Devx {
    /// What commands call it.
    fn number(&self) -> u32 {
        match self {
            Self::Pd(id) => id.number(),
            Self::Cq(cq) => cq.id.number(),
            Self::Qp(qp) => qp.qpn.0,
            Self::Dct(dct) => dct.dctn.0,
        }
    }

    /// The umems that it lies in, by handle.
    fn umems(&self) -> &[u32] {
        match self {
            Self::Cq(cq) => &cq.umems,
            Self::Qp(qp) => &qp.umems,
            Self::Pd(_) | Self::Dct(_) => &[],
        }
    }

    /// Whether it uses others, and so has to go before them.
    pub(crate) fn is_user(&self) -> bool {
        matches!(self, Self::Qp(_) | Self::Dct(_))
    }

    /// Whether it is a protection domain, and so has to go last.
    pub(crate) fn is_domain(&self) -> bool {
        matches!(self, Self::Pd(_))
    }
}

/// How a command can fail.
enum Fail {
    /// The kernel says no.
    Errno(Errno),
    /// The device says no.
    Refused(Refusal),
}

impl From<Errno> for Fail {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno)
    }
}

impl From<Refusal> for Fail {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// A command, and the room for its answer.
struct Mailbox<'a> {
    input: &'a [u8],
    room: usize,
}

impl Mailbox<'_> {
    fn get(&self, field: Field) -> u64 {
        field.get(self.input)
    }

    fn get32(&self, field: Field) -> u32 {
        field.get32(self.input)
    }

    /// An empty answer of `len` bytes to a command of at least `input` bytes.
    fn answer(&self, input: usize, len: usize) -> Result<Vec<u8>, Refusal> {
        if self.input.len() < input {
            return Err(Refusal::InputLength);
        }
        if self.room < len {
            return Err(Refusal::OutputLength);
        }
        Ok(vec![0; len])
    }
}

/// The answer of a command that made an object.
fn made(mut answer: Vec<u8>, number: u32) -> Vec<u8> {
    NUMBER.set(&mut answer, u64::from(number));
    answer
}

/// Runs `f` on the device, between two steps of the engine.
fn with_port<R>(
    context: &Context,
    f: impl FnOnce(&mut Port, &Fabric) -> Result<R, Fail>,
) -> Result<R, Fail> {
    context.with_port(|port, fabric| Ok(f(port, fabric)))?
}

/// Destroys what a command made.
pub(crate) fn destroy(context: &mut Context, handle: u32) -> Result<(), Errno> {
    let Some(Object::Devx(object)) = context.objects.get(handle) else {
        return Err(Errno::ENOENT);
    };
    context.with_port(|port, _| {
        match **object {
            Devx::Pd(id) => port.nic.dealloc_pd(id)?,
            Devx::Cq(ref cq) => port.nic.destroy_cq(cq.id)?,
            Devx::Qp(ref qp) => port.nic.destroy_qp(qp.qpn)?,
            Devx::Dct(ref dct) => port.nic.destroy_dct(dct.dctn)?,
        }
        Ok(())
    })?;
    context.objects.remove(handle);
    Ok(())
}

/// The protection domain of a number, whichever way this context made it.
fn pd(context: &Context, number: u32) -> Result<PdId, Refusal> {
    let ids = context.objects.iter().filter_map(|(_, object)| match object {
        Object::Pd(id) => Some(*id),
        Object::Devx(devx) => match **devx {
            Devx::Pd(id) => Some(id),
            _ => None,
        },
        _ => None,
    });
    ids.into_iter().find(|id| id.number() == number).ok_or(Refusal::Pd)
}

/// The shared receive queue of a number, of this context: they are made by verbs. One of extended connections serves those
/// alone.
fn srq(context: &Context, number: u32) -> Result<SrqId, Refusal> {
    let queues = context.objects.iter().filter_map(|(_, object)| match object {
        Object::Srq(queue) if queue.xrcd.is_none() => Some(queue.id),
        _ => None,
    });
    queues.into_iter().find(|id| id.number() == number).ok_or(Refusal::Srq)
}

/// The doorbell page of a number, of this context.
fn uar(context: &Context, number: u32) -> Result<UarId, Refusal> {
    let pages = context.objects.iter().filter_map(|(_, object)| match object {
        Object::Uar(uar) if uar.page == number => Some(uar.id),
        _ => None,
    });
    pages.into_iter().next().ok_or(Refusal::Uar)
}

/// Allocates a protection domain.
fn alloc_pd(context: &mut Context, mailbox: &Mailbox<'_>) -> Result<(Devx, Vec<u8>), Fail> {
    let answer = mailbox.answer(SHORT, SHORT)?;
    let id = with_port(context, |port, _| Ok(port.nic.alloc_pd().map_err(Refusal::from)?))?;
    Ok((Devx::Pd(id), made(answer, id.number())))
}
