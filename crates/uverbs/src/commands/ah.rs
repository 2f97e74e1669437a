//! Address handles: checked and counted; their bytes are the library's, which puts them into WQEs.

use super::{Command, Method, Reply, Request, handle_of, pd};
use crate::abi::{AhAttr, CreateAh, Mlx5CreateAhResp};
use crate::attr::parse;
use crate::config::{DeviceConfig, LinkLayer};
use crate::context::Context;
use crate::errno::Errno;
use crate::objects::Object;

pub(super) const CREATE_AH: Command = Command {
    name: "CREATE_AH",
    number: 5,
    core_in: size_of::<CreateAh>(),
    core_out: 4,
    is_first: false,
    run: create,
};

pub(super) const DESTROY_AH: Command = Command {
    name: "DESTROY_AH",
    number: 8,
    core_in: 4,
    core_out: 0,
    is_first: false,
    run: |context, request| {
        let destroyed = destroy(context, handle_of(request)?);
        destroyed.map(|()| Reply::default()).map_err(|_| Errno::EINVAL)
    },
};

pub(super) const AH_DESTROY: Method = Method {
    name: "AH_DESTROY",
    object: 6,
    method: 0,
    attrs: &[0],
    outputs: &[],
    is_first: false,
    run: |context, call| destroy(context, call.handle(0)?),
};

/// Whether an address can be one of this device's port.
pub(super) fn check_address(device: &DeviceConfig, ah: &AhAttr) -> Result<(), Errno> {
    let has_gid = device.gids().len() > usize::from(ah.sgid_index);
    let routed = ah.is_global != 0;
    let is_right = match device.link_layer {
        LinkLayer::InfiniBand => !routed || has_gid,
        LinkLayer::Ethernet => routed && has_gid,
    };
    if ah.port_num == 1 && is_right { Ok(()) } else { Err(Errno::EINVAL) }
}

fn create(context: &mut Context, request: &Request<'_>) -> Result<Reply, Errno> {
    let asked: CreateAh = parse(&request.core[..size_of::<CreateAh>()])?;
    pd::pd(context, asked.pd_handle).ok_or(Errno::EINVAL)?;
    check_address(&context.device, &asked.attr)?;
    if !context.objects.has_room() {
        return Err(Errno::ENOMEM);
    }
    let handle = context.objects.add(Object::Ah(asked.pd_handle));
    let shared = &context.shared;
    let to =
        shared.device_of(|device| device.gids().iter().any(|(gid, _)| *gid == asked.attr.dgid));
    let mut driver = Mlx5CreateAhResp {
        response_length: request.driver_room.min(size_of::<Mlx5CreateAhResp>()) as u32,
        ..Mlx5CreateAhResp::default()
    };
    if let Some(index) = to {
        driver.dmac = DeviceConfig { index, ..context.device }.mac();
    }
    Ok(Reply::new(&handle).with(&driver))
}

pub(super) fn destroy(context: &mut Context, handle: u32) -> Result<(), Errno> {
    match context.objects.get(handle) {
        Some(Object::Ah(_)) => {
            context.objects.remove(handle);
            Ok(())
        }
        _ => Err(Errno::ENOENT),
    }
}
