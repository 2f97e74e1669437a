//! The device itself: contexts, attributes, ports, GIDs, and the frame that carries write commands.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use zerocopy::IntoBytes;

use super::srq::MOST_SEGMENTS;
use super::{COMMANDS, Command, Method, Reply, Request};
use crate::abi::{
    DRIVER, EXTENDED, GetContextResp, GidEntry, QueryDeviceExtra, QueryDeviceResp, QueryPort,
    QueryPortResp, UHW_IN, UHW_OUT, UcontextReq, UcontextResp,
};
use crate::attr::{Call, parse};
use crate::channel::{ASYNC_EVENT, Channel};
use crate::config::{DeviceConfig, GidKind, LinkLayer, Mtu, gid_number};
use crate::context::{Context, give};
use crate::errno::Errno;

pub(super) const GET_CONTEXT: Command = Command {
    name: "GET_CONTEXT",
    number: 0,
    core_in: 8,
    core_out: size_of::<GetContextResp>(),
    is_first: true,
    run: get_context,
};

pub(super) const QUERY_DEVICE: Command = Command {
    name: "QUERY_DEVICE",
    number: 1,
    core_in: 8,
    core_out: size_of::<QueryDeviceResp>(),
    is_first: false,
    run: |context, _| Ok(Reply::new(&attributes(&context.device))),
};

pub(super) const QUERY_DEVICE_EX: Command = Command {
    name: "QUERY_DEVICE_EX",
    number: 1 | EXTENDED,
    core_in: 8,
    core_out: size_of::<QueryDeviceResp>() + 8,
    is_first: false,
    run: query_device_ex,
};

pub(super) const QUERY_PORT: Command = Command {
    name: "QUERY_PORT",
    number: 2,
    core_in: size_of::<QueryPort>(),
    core_out: size_of::<QueryPortResp>(),
    is_first: false,
    run: |context, request| {
        let asked: QueryPort = parse(request.core)?;
        check_port(u64::from(asked.port_num))?;
        Ok(Reply::new(&port(context)?))
    },
};

pub(super) const INVOKE_WRITE: Method = Method {
    name: "INVOKE_WRITE",
    object: 0,
    method: 0,
    attrs: &[0, 1, 2, UHW_IN, UHW_OUT],
    outputs: &[1, UHW_OUT],
    is_first: true,
    run: invoke_write,
};

pub(super) const QUERY_PORT_METHOD: Method = Method {
    name: "QUERY_PORT",
    object: 0,
    method: 2,
    attrs: &[0, 1, UHW_IN, UHW_OUT],
    outputs: &[1],
    is_first: false,
    run: |context, call| {
        check_port(call.number(0)?)?;
        call.output(1, port(context)?.as_bytes())
    },
};

pub(super) const GET_CONTEXT_METHOD: Method = Method {
    name: "GET_CONTEXT",
    object: 0,
    method: 3,
    attrs: &[0, 1, UHW_IN, UHW_OUT],
    outputs: &[0, 1, UHW_OUT],
    is_first: true,
    run: |context, call| {
        let driver = call.bytes(UHW_IN)?.unwrap_or_default();
        let answer = enter(context, &driver, call.room(UHW_OUT))?;
        call.output(0, &VECTORS.to_ne_bytes())?;
        call.output(1, &CORE_SUPPORT.to_ne_bytes())?;
        call.output(UHW_OUT, answer.as_bytes())
    },
};

pub(super) const QUERY_GID_TABLE: Method = Method {
    name: "QUERY_GID_TABLE",
    object: 0,
    method: 5,
    attrs: &[0, 1, 2, 3],
    outputs: &[2, 3],
    is_first: false,
    run: query_gid_table,
};

pub(super) const QUERY_GID_ENTRY: Method = Method {
    name: "QUERY_GID_ENTRY",
    object: 0,
    method: 6,
    attrs: &[0, 1, 2, 3],
    outputs: &[3],
    is_first: false,
    run: |context, call| {
        check_port(call.number(0)?)?;
        if call.number_or(2)?.unwrap_or(0) != 0 {
            return Err(Errno::EINVAL);
        }
        let index = call.number(1)?;
        if index >= context.device.gid_table() as u64 {
            return Err(Errno::EINVAL);
        }
        let entries = gid_entries(&context.device);
        let entry = entries.get(index as usize).ok_or(Errno::ENODATA)?;
        call.output(3, entry.as_bytes())
    },
};

pub(super) const ASYNC_EVENT_ALLOC: Method = Method {
    name: "ASYNC_EVENT_ALLOC",
    object: 16,
    method: 0,
    attrs: &[0],
    outputs: &[],
    is_first: false,
    run: |context, call| {
        if !call.has(0) {
            return Err(Errno::EINVAL);
        }
        let (channel, client) = async_channel(context)?;
        context.async_channel.get_or_insert(channel);
        call.output_handle(0, client.as_raw_fd() as u64)?;
        give(Some(client));
        Ok(())
    },
};

/// Makes a channel of asynchronous events; those of the port are told there, too.
fn async_channel(context: &mut Context) -> Result<(Arc<Channel>, OwnedFd), Errno> {
    let (channel, client) = context.new_channel(ASYNC_EVENT)?;
    context.with_port(|port, _| {
        port.watchers.retain(|watcher| watcher.strong_count() > 0);
        port.watchers.push(Arc::downgrade(&channel));
        Ok(())
    })?;
    Ok((channel, client))
}

/// Event queues that completions may be told by.
pub(crate) const VECTORS: u32 = 1;
/// Optional access flags of memory regions may be ignored.
const CORE_SUPPORT: u64 = 1;
/// Entries in the table of partition keys.
const PKEYS: u16 = 128;

fn invoke_write(context: &mut Context, call: &Call<'_>) -> Result<(), Errno> {
    let number = call.u32(2)?;
    let command = COMMANDS.iter().find(|command| command.number == number);
    let command = command.ok_or(Errno::EOPNOTSUPP)?;
    let core = call.bytes(0)?.unwrap_or_default();
    let driver = call.bytes(UHW_IN)?.unwrap_or_default();
    let (core_room, driver_room) = (call.room(1), call.room(UHW_OUT));
    let request =
        Request { memory: call.memory, core: &core, driver: &driver, core_room, driver_room };
    let reply = context.command(command, &request)?;
    call.output(1, &reply.core)?;
    call.output(UHW_OUT, &reply.driver)?;
    give(reply.gift);
    Ok(())
}

fn get_context(context: &mut Context, request: &Request<'_>) -> Result<Reply, Errno> {
    let (channel, client) = async_channel(context)?;
    let answer = enter(context, request.driver, request.driver_room)?;
    context.async_channel = Some(channel);
    let core = GetContextResp { async_fd: client.as_raw_fd() as u32, num_comp_vectors: VECTORS };
    Ok(Reply { gift: Some(client), ..Reply::new(&core).with(&answer) })
}

/// `MLX5_IB_ALLOC_UCTX_DEVX`.
const DEVX: u32 = 1;
/// `MLX5_LIB_CAP_DYN_UAR`.
const DYNAMIC_UAR: u64 = 2;

fn enter(context: &mut Context, driver: &[u8], room: usize) -> Result<UcontextResp, Errno> {
    let asked: UcontextReq = parse(driver)?;
    if context.is_ready || driver.len() < 8 {
        return Err(Errno::EINVAL);
    }
    if asked.comp_mask != 0 || asked.flags & !DEVX != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    // Doorbell pages are objects of their own; a library that wants them numbered is older than they are.
    if asked.lib_caps & DYNAMIC_UAR == 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    context.is_ready = true;
    context.has_devx = asked.flags & DEVX != 0;
    Ok(UcontextResp {
        qp_tab_size: 1 << 18,
        bf_reg_size: 2 * wire::doorbell::UAR_BLUEFLAME_STRIDE as u32,
        cache_line_size: 64,
        max_sq_desc_sz: 1024,
        max_rq_desc_sz: 512,
        max_send_wqebb: 1 << 15,
        max_recv_wr: 1 << 15,
        max_srq_recv_wr: (1 << 15) - 1,
        num_ports: 1,
        response_length: room.min(size_of::<UcontextResp>()) as u32,
        cqe_version: asked.max_cqe_version.min(1),
        // The extended query of the device, and of address handles, has a driver's part.
        cmds_supp_uhw: 3,
        eth_min_inline: 1,
        log_uar_size: 12,
        num_uars_per_page: 1,
        num_dyn_bfregs: 1024,
        ..UcontextResp::default()
    })
}

fn query_device_ex(context: &mut Context, request: &Request<'_>) -> Result<Reply, Errno> {
    if request.core[..8].iter().any(|&byte| byte != 0) {
        return Err(Errno::EINVAL);
    }
    let whole = size_of::<QueryDeviceResp>() + size_of::<QueryDeviceExtra>();
    let extra = QueryDeviceExtra {
        response_length: request.core_room.min(whole) as u32,
        device_cap_flags_ex: u64::from(CAP_FLAGS),
        ..QueryDeviceExtra::default()
    };
    let mut core = attributes(&context.device).as_bytes().to_vec();
    core.extend_from_slice(extra.as_bytes());
    // Nothing of what mlx5 may add is there: its part says how long it is, and no more.
    let mut driver = vec![0; request.driver_room.min(104)];
    let len = driver.len() as u32;
    if let Some(length) = driver.get_mut(4..8) {
        length.copy_from_slice(&len.to_ne_bytes());
    }
    Ok(Reply { core, driver, gift: None })
}

/// Port events, the system image's GUID, RNR NAKs, and extended reliable connections.
const CAP_FLAGS: u32 = 1 << 10 | 1 << 11 | 1 << 12 | 1 << 20;

fn attributes(device: &DeviceConfig) -> QueryDeviceResp {
    let [major, minor, patch] = DeviceConfig::FIRMWARE.map(u64::from);
    QueryDeviceResp {
        fw_ver: major << 32 | minor << 16 | patch,
        node_guid: device.guid(),
        sys_image_guid: DeviceConfig { index: 0, ..*device }.guid(),
        max_mr_size: u64::MAX,
        page_size_cap: 0xffff_ffff_ffff_f000,
        vendor_id: DeviceConfig::VENDOR_OUI,
        vendor_part_id: DeviceConfig::PART,
        max_qp: 1024,
        max_qp_wr: 1 << 15,
        device_cap_flags: CAP_FLAGS,
        max_sge: 30,
        max_sge_rd: 30,
        max_cq: 1024,
        max_cqe: (1 << 22) - 1,
        max_mr: 1 << 16,
        max_pd: 4096,
        max_qp_rd_atom: 16,
        max_res_rd_atom: 16 * 1024,
        max_qp_init_rd_atom: 16,
        // Atomic with respect to this device.
        atomic_cap: 1,
        max_ah: i32::MAX as u32,
        max_srq: 1024,
        max_srq_wr: (1 << 15) - 1,
        max_srq_sge: MOST_SEGMENTS,
        max_pkeys: PKEYS,
        local_ca_ack_delay: 16,
        phys_port_cnt: 1,
        ..QueryDeviceResp::default()
    }
}

fn check_port(port: u64) -> Result<(), Errno> {
    if port == 1 { Ok(()) } else { Err(Errno::EINVAL) }
}

fn port(context: &Context) -> Result<QueryPortResp, Errno> {
    let is_down = context.with_port(|port, _| Ok(port.is_down()))?;
    let device = &context.device;
    let (active_width, active_speed) = device.port.rate.codes();
    let ib = device.link_layer == LinkLayer::InfiniBand;
    Ok(QueryPortResp {
        port_cap_flags: if ib { 0x2259_e84a } else { 0x0401_0000 },
        max_msg_sz: 1 << 30,
        gid_tbl_len: device.gid_table() as u32,
        pkey_tbl_len: if ib { PKEYS } else { 1 },
        lid: device.lid(),
        sm_lid: u16::from(ib),
        // Down, or active.
        state: if is_down { 1 } else { 4 },
        max_mtu: Mtu::MOST.code(),
        active_mtu: device.port.mtu.code(),
        max_vl_num: 4 * u8::from(ib),
        subnet_timeout: 18 * u8::from(ib),
        active_width,
        active_speed,
        // Polling, disabled, or link up.
        phys_state: match (is_down, ib) {
            (true, true) => 2,
            (true, false) => 3,
            (false, _) => 5,
        },
        link_layer: if ib { 1 } else { 2 },
        ..QueryPortResp::default()
    })
}

fn gid_entries(device: &DeviceConfig) -> Vec<GidEntry> {
    let entry = |(index, (gid, kind)): (usize, ([u8; 16], GidKind))| GidEntry {
        gid,
        gid_index: index as u32,
        port_num: 1,
        gid_type: gid_number(kind),
        netdev_ifindex: 0,
    };
    device.gids().into_iter().enumerate().map(entry).collect()
}

fn query_gid_table(context: &mut Context, call: &Call<'_>) -> Result<(), Errno> {
    let size = usize::try_from(call.number(0)?).map_err(|_| Errno::EINVAL)?;
    if size == 0 || call.number_or(1)?.unwrap_or(0) != 0 {
        return Err(Errno::EINVAL);
    }
    let most = call.room(2) / size;
    let entries = gid_entries(&context.device);
    if entries.len() > most {
        return Err(Errno::EINVAL);
    }
    let mut bytes = Vec::new();
    for entry in &entries {
        let mut one = entry.as_bytes().to_vec();
        one.resize(size, 0);
        bytes.extend_from_slice(&one);
    }
    call.output(2, &bytes)?;
    call.output(3, &(entries.len() as u64).to_ne_bytes())
}

const _: () = assert!(DRIVER == UHW_IN);
