//! The methods, and which command goes by which.

use wire::devx::{NUMBER, OPCODE, Opcode, SHORT};

use super::umem::reg_attr;
use super::{Devx, Fail, Mailbox, Refusal, alloc_pd, caps, cq, dct, qp, qp_modify, umem};
use crate::abi::DRIVER;
use crate::attr::Call;
use crate::commands::{Method, VECTORS};
use crate::context::Context;
use crate::errno::Errno;
use crate::objects::Object;

/// Objects of mlx5's own, in the header's order.
mod object {
    use crate::abi::DRIVER;
    pub(super) const DEVX: u16 = DRIVER;
    pub(super) const OBJ: u16 = DRIVER + 1;
    pub(super) const UMEM: u16 = DRIVER + 2;
    pub(super) const ASYNC_CMD_FD: u16 = DRIVER + 4;
    pub(super) const ASYNC_EVENT_FD: u16 = DRIVER + 5;
}

/// A method's first attribute, its second, and so on.
const FIRST: u16 = DRIVER;
const SECOND: u16 = DRIVER + 1;
const THIRD: u16 = DRIVER + 2;

const fn method(
    name: &'static str,
    object: u16,
    nth: u16,
    attrs: &'static [u16],
    outputs: &'static [u16],
    run: fn(&mut Context, &Call<'_>) -> Result<(), Errno>,
) -> Method {
    Method { name, object, method: DRIVER + nth, attrs, outputs, is_first: false, run }
}

/// Attributes of methods that this device hasn't got: any may be there.
const ANY: &[u16] = &[DRIVER, DRIVER + 1, DRIVER + 2, DRIVER + 3, DRIVER + 4];

pub(crate) const OTHER: Method =
    method("DEVX_OTHER", object::DEVX, 0, &[FIRST, SECOND], &[SECOND], other);
pub(crate) const QUERY_UAR: Method =
    method("DEVX_QUERY_UAR", object::DEVX, 1, &[FIRST, SECOND], &[SECOND], query_uar);
pub(crate) const QUERY_EQN: Method =
    method("DEVX_QUERY_EQN", object::DEVX, 2, &[FIRST, SECOND], &[SECOND], query_eqn);
pub(crate) const SUBSCRIBE_EVENT: Method =
    method("DEVX_SUBSCRIBE_EVENT", object::DEVX, 3, ANY, &[], |_, _| Err(Errno::EOPNOTSUPP));
pub(crate) const OBJ_CREATE: Method =
    method("DEVX_OBJ_CREATE", object::OBJ, 0, &[FIRST, SECOND, THIRD], &[THIRD], create);
pub(crate) const OBJ_DESTROY: Method =
    method("DEVX_OBJ_DESTROY", object::OBJ, 1, &[FIRST], &[], |context, call| {
        super::destroy(context, call.handle(FIRST)?)
    });
pub(crate) const OBJ_MODIFY: Method =
    method("DEVX_OBJ_MODIFY", object::OBJ, 2, &[FIRST, SECOND, THIRD], &[THIRD], modify);
pub(crate) const OBJ_QUERY: Method =
    method("DEVX_OBJ_QUERY", object::OBJ, 3, &[FIRST, SECOND, THIRD], &[THIRD], query);
pub(crate) const OBJ_ASYNC_QUERY: Method =
    method("DEVX_OBJ_ASYNC_QUERY", object::OBJ, 4, ANY, &[], |_, _| Err(Errno::EOPNOTSUPP));
pub(crate) const UMEM_REG: Method = method(
    "DEVX_UMEM_REG",
    object::UMEM,
    0,
    &[
        reg_attr::HANDLE,
        reg_attr::ADDR,
        reg_attr::LEN,
        reg_attr::ACCESS,
        reg_attr::OUT_ID,
        reg_attr::PAGE_SIZES,
        reg_attr::DMABUF,
    ],
    &[reg_attr::OUT_ID],
    umem::register,
);
pub(crate) const UMEM_DEREG: Method =
    method("DEVX_UMEM_DEREG", object::UMEM, 1, &[FIRST], &[], |context, call| {
        umem::deregister(context, call.handle(FIRST)?)
    });
pub(crate) const ASYNC_CMD_FD_ALLOC: Method =
    method("DEVX_ASYNC_CMD_FD_ALLOC", object::ASYNC_CMD_FD, 0, ANY, &[], |_, _| {
        Err(Errno::EOPNOTSUPP)
    });
pub(crate) const ASYNC_EVENT_FD_ALLOC: Method =
    method("DEVX_ASYNC_EVENT_FD_ALLOC", object::ASYNC_EVENT_FD, 0, ANY, &[], |_, _| {
        Err(Errno::EOPNOTSUPP)
    });

/// A command of a call, in attribute `at`; the room for its answer is in `out`.
struct Command {
    bytes: Vec<u8>,
    opcode: Option<Opcode>,
    out: u16,
    room: usize,
}

impl Command {
    fn of(context: &Context, call: &Call<'_>, at: u16, out: u16) -> Result<Self, Errno> {
        let bytes = call.bytes(at)?.ok_or(Errno::EINVAL)?;
        let room = call.room(out);
        // Both begin with a header.
        if bytes.len() < SHORT || room < SHORT {
            return Err(Errno::EINVAL);
        }
        let opcode = Opcode::from_number(OPCODE.get32(&bytes) as u16);
        // What every context may ask is what the device can do.
        if !context.has_devx && opcode != Some(Opcode::QueryHcaCap) {
            return Err(Errno::EINVAL);
        }
        Ok(Self { bytes, opcode, out, room })
    }

    fn mailbox(&self) -> Mailbox<'_> {
        Mailbox { input: &self.bytes, room: self.room }
    }

    fn number(&self) -> u32 {
        NUMBER.get32(&self.bytes)
    }

    /// Writes the answer, also of what was refused.
    fn finish(
        &self,
        context: &Context,
        call: &Call<'_>,
        answer: Result<Vec<u8>, Fail>,
    ) -> Result<(), Errno> {
        match answer {
            Ok(bytes) => call.output(self.out, &bytes),
            Err(Fail::Errno(errno)) => Err(errno),
            Err(Fail::Refused(refusal)) => {
                self.report(context, refusal);
                call.output(self.out, &refusal.mailbox(self.room))?;
                Err(Errno::EREMOTEIO)
            }
        }
    }

    /// Says what was refused, where the run's findings are: firmware would only give a number.
    fn report(&self, context: &Context, refusal: Refusal) {
        // Asking what there is isn't wrong.
        if self.opcode == Some(Opcode::QueryHcaCap) {
            return;
        }
        let what = self.opcode.map_or("a command", Opcode::name);
        let (device, pid) = (context.device.name(), std::process::id());
        let (syndrome, text) = (refusal.syndrome(), refusal.text());
        context.shared.fabric.report(&format!(
            "{device} of process {pid}: DevX {what} is refused (syndrome {syndrome:#010x}): {text}"
        ));
    }
}

/// Commands that the kernel hands on without an object.
const GENERAL: &[Opcode] = &[
    Opcode::QueryHcaCap,
    Opcode::QueryAdapter,
    Opcode::QueryIssi,
    Opcode::QueryNicVportContext,
    Opcode::QueryHcaVportContext,
    Opcode::QueryRoceAddress,
    Opcode::Nop,
];

fn other(context: &mut Context, call: &Call<'_>) -> Result<(), Errno> {
    let command = Command::of(context, call, FIRST, SECOND)?;
    if !command.opcode.is_some_and(|opcode| GENERAL.contains(&opcode)) {
        return Err(Errno::EINVAL);
    }
    let has = context.with_port(|port, _| {
        let (device, caps, is_down) = (port.config, port.nic.config().caps, port.is_down());
        Ok(caps::Has { device, caps, is_down })
    })?;
    let answer = caps::answer(&has, command.opcode, &command.mailbox());
    command.finish(context, call, answer)
}

/// Commands that make objects, as far as the kernel knows: the device has a few of them.
const CREATE: &[Opcode] = &[
    Opcode::CreateMkey,
    Opcode::CreateCq,
    Opcode::CreateQp,
    Opcode::CreateSrq,
    Opcode::CreateXrcSrq,
    Opcode::CreateDct,
    Opcode::AllocQCounter,
    Opcode::AllocPd,
    Opcode::AllocXrcd,
    Opcode::CreateTir,
    Opcode::CreateSq,
    Opcode::CreateRq,
    Opcode::CreateRmp,
    Opcode::CreateGeneralObject,
];

fn create(context: &mut Context, call: &Call<'_>) -> Result<(), Errno> {
    let command = Command::of(context, call, SECOND, THIRD)?;
    let opcode = command.opcode.filter(|opcode| CREATE.contains(opcode)).ok_or(Errno::EINVAL)?;
    if !call.has(FIRST) {
        return Err(Errno::EINVAL);
    }
    if !context.objects.has_room() {
        return Err(Errno::ENOMEM);
    }
    let mailbox = command.mailbox();
    let made = match opcode {
        Opcode::CreateCq => cq::create(context, &mailbox),
        Opcode::CreateQp => qp::create(context, &mailbox),
        Opcode::CreateDct => dct::create(context, &mailbox),
        Opcode::AllocPd => alloc_pd(context, &mailbox),
        _ => Err(Refusal::Unsupported.into()),
    };
    let (handle, answer) = match made {
        Ok((object, answer)) => {
            (Some(context.objects.add(Object::Devx(Box::new(object)))), Ok(answer))
        }
        Err(fail) => (None, Err(fail)),
    };
    command.finish(context, call, answer)?;
    match handle {
        Some(handle) => call.output_handle(FIRST, u64::from(handle)),
        None => Ok(()),
    }
}

/// The object of a call, if the command is about it.
fn object<'a>(context: &'a Context, call: &Call<'_>, command: &Command) -> Result<&'a Devx, Errno> {
    let Some(Object::Devx(object)) = context.objects.get(call.handle(FIRST)?) else {
        return Err(Errno::ENOENT);
    };
    // The kernel compares them, so that no command reaches another's object.
    if object.number() == command.number() { Ok(object) } else { Err(Errno::EINVAL) }
}

fn modify(context: &mut Context, call: &Call<'_>) -> Result<(), Errno> {
    let command = Command::of(context, call, SECOND, THIRD)?;
    let opcode = command.opcode.ok_or(Errno::EINVAL)?;
    let result = match (object(context, call, &command)?, opcode) {
        (
            Devx::Qp(qp),
            Opcode::Rst2InitQp
            | Opcode::Init2InitQp
            | Opcode::Init2RtrQp
            | Opcode::Rtr2RtsQp
            | Opcode::Rts2RtsQp
            | Opcode::Sqerr2RtsQp
            | Opcode::SqdRtsQp
            | Opcode::Qp2Err
            | Opcode::Qp2Rst,
        ) => qp_modify::modify(context, qp, opcode, &command.mailbox()),
        (Devx::Cq(_), Opcode::ModifyCq) => Err(Refusal::Unsupported.into()),
        _ => return Err(Errno::EINVAL),
    };
    let (kept, answer) = match result {
        Ok((kept, answer)) => (Some(kept), Ok(answer)),
        Err(fail) => (None, Err(fail)),
    };
    if let Some(kept) = kept
        && let Some(Object::Devx(object)) = context.objects.get_mut(call.handle(FIRST)?)
        && let Devx::Qp(qp) = &mut **object
    {
        qp.context = kept;
    }
    command.finish(context, call, answer)
}

fn query(context: &mut Context, call: &Call<'_>) -> Result<(), Errno> {
    let command = Command::of(context, call, SECOND, THIRD)?;
    let opcode = command.opcode.ok_or(Errno::EINVAL)?;
    let mailbox = command.mailbox();
    let answer = match (object(context, call, &command)?, opcode) {
        (Devx::Cq(cq), Opcode::QueryCq) => cq::query(context, cq, &mailbox),
        (Devx::Qp(qp), Opcode::QueryQp) => qp::query(context, qp, &mailbox),
        (Devx::Dct(dct), Opcode::QueryDct) => dct::query(dct, &mailbox),
        _ => return Err(Errno::EINVAL),
    };
    command.finish(context, call, answer)
}

/// The device's number of a doorbell page; the client's is the same, as pages are allocated one by one.
fn query_uar(context: &mut Context, call: &Call<'_>) -> Result<(), Errno> {
    let number = call.u32(FIRST)?;
    super::uar(context, number).map_err(|_| Errno::EINVAL)?;
    call.output(SECOND, &number.to_ne_bytes())
}

fn query_eqn(context: &mut Context, call: &Call<'_>) -> Result<(), Errno> {
    let vector = call.u32(FIRST)?;
    if !context.has_devx || vector >= VECTORS {
        return Err(Errno::EINVAL);
    }
    call.output(SECOND, &cq::eqn(vector).to_ne_bytes())
}
