//! General commands: what the device can do, and its RoCE addresses.

use softnic::Caps;
use wire::devx::{
    OP_MOD, Opcode, SHORT, atomic_cap, cap, query_hca_cap, query_hca_vport_context,
    query_roce_address, roce_cap,
};

use super::{Fail, Mailbox, Refusal};
use crate::config::{DeviceConfig, GidKind, LinkLayer};

const fn log(most: u32) -> u64 {
    most.ilog2() as u64
}

/// What there is to tell of.
pub(super) struct Has {
    pub(super) device: DeviceConfig,
    pub(super) caps: Caps,
    pub(super) is_down: bool,
}

/// The answer of a general command.
pub(super) fn answer(
    has: &Has,
    opcode: Option<Opcode>,
    mailbox: &Mailbox<'_>,
) -> Result<Vec<u8>, Fail> {
    let Has { device, caps, is_down } = has;
    match opcode {
        Some(Opcode::QueryHcaCap) => query_caps(device, caps, mailbox),
        Some(Opcode::QueryRoceAddress) => query_address(device, mailbox),
        Some(Opcode::QueryHcaVportContext) => query_port(device, *is_down, mailbox),
        Some(Opcode::Nop) => Ok(mailbox.answer(SHORT, SHORT)?),
        _ => Err(Refusal::Unsupported.into()),
    }
}

fn query_caps(device: &DeviceConfig, caps: &Caps, mailbox: &Mailbox<'_>) -> Result<Vec<u8>, Fail> {
    use query_hca_cap::page;
    // A page is cut to the room that there is: programs ask for its first half alone.
    mailbox.answer(SHORT, SHORT)?;
    let mut answer = vec![0; query_hca_cap::OUT];
    let capability = &mut answer[query_hca_cap::CAPABILITY as usize / 8..];
    // What is in force and the most that may be are the same: nothing can be set.
    match mailbox.get32(OP_MOD) >> 1 {
        page::GENERAL => general(device, caps, capability),
        page::ATOMIC => atomic(capability),
        page::ROCE if device.link_layer == LinkLayer::Ethernet => roce(device, capability),
        // Nothing of what these may say is there.
        page::ODP
        | page::NIC_FLOW_TABLE
        | page::ESWITCH_FLOW_TABLE
        | page::ESWITCH
        | page::QOS
        | page::DEVICE_MEMORY
        | page::CRYPTO
        | page::GENERAL_2 => {}
        _ => return Err(Refusal::Page.into()),
    }
    Ok(answer)
}

fn general(device: &DeviceConfig, caps: &Caps, page: &mut [u8]) {
    let is_ib = device.link_layer == LinkLayer::InfiniBand;
    let reads = log(u32::from(caps.max_rd_atomic));
    for (field, value) in [
        (cap::HCA_CAP_2, 1),
        (cap::VHCA_ID, u64::from(device.index) + 1),
        (cap::LOG_MAX_QP_SZ, u64::from(caps.log_max_sq_blocks)),
        (cap::LOG_MAX_QP, log(caps.max_qps)),
        (cap::LOG_MAX_CQ_SZ, 22),
        (cap::LOG_MAX_CQ, log(caps.max_cqs)),
        (cap::LOG_MAX_MKEY, log(caps.max_mrs)),
        (cap::LOG_MAX_EQ, 0),
        (cap::LOG_MAX_RA_REQ_DC, reads),
        (cap::LOG_MAX_RA_RES_DC, reads),
        (cap::LOG_MAX_RA_REQ_QP, reads),
        (cap::LOG_MAX_RA_RES_QP, reads),
        (cap::GID_TABLE_SIZE, log(device.gid_table() as u32) - 3),
        (cap::PKEY_TABLE_SIZE, 0),
        (cap::LOCAL_CA_ACK_DELAY, 16),
        (cap::PORT_TYPE, u64::from(!is_ib)),
        (cap::NUM_PORTS, 1),
        (cap::LOG_MAX_MSG, log(caps.max_message)),
        (cap::CQE_VERSION, 1),
        (cap::COMPACT_ADDRESS_VECTOR, 1),
        (cap::DCT, 1),
        (cap::ROCE, u64::from(!is_ib)),
        (cap::ATOMIC, 1),
        (cap::CQ_OI, 1),
        (cap::CQ_RESIZE, 1),
        (cap::RC, 1),
        (cap::UAR_4K, 1),
        (cap::LOG_PG_SZ, 12),
        (cap::BF, 1),
        (cap::LOG_BF_REG_SIZE, log(2 * wire::doorbell::UAR_BLUEFLAME_STRIDE as u32)),
        (cap::MAX_WQE_SZ_SQ, 1024),
        (cap::MAX_WQE_SZ_RQ, 512),
        (cap::MAX_WQE_SZ_SQ_DC, 1024),
        (cap::LOG_MAX_PD, log(caps.max_pds)),
        (cap::GENERAL_OBJ_TYPES, 1 << 4 | 1 << 5),
        (cap::DEVICE_FREQUENCY_MHZ, 1000),
        (cap::DEVICE_FREQUENCY_KHZ, 1_000_000),
        (cap::NUM_OF_UARS_PER_PAGE, 1),
        (cap::LOG_MAX_DCT_CONNECTIONS, log(caps.max_dc_contexts)),
        (cap::LOG_MAX_ATOMIC_SIZE_QP, 3),
        (cap::LOG_MAX_ATOMIC_SIZE_DC, 3),
    ] {
        field.set(page, value);
    }
}

fn atomic(page: &mut [u8]) {
    // All four operations, of 8 bytes.
    atomic_cap::ATOMIC_OPERATIONS.set(page, 0xf);
    atomic_cap::ATOMIC_SIZE_QP.set(page, 8);
    atomic_cap::ATOMIC_SIZE_DC.set(page, 8);
}

fn roce(device: &DeviceConfig, page: &mut [u8]) {
    roce_cap::ROCE_VERSION.set(page, 1 << 2 | 1);
    roce_cap::R_ROCE_DEST_UDP_PORT.set(page, 4791);
    roce_cap::R_ROCE_MIN_SRC_UDP_PORT.set(page, 0xc000);
    roce_cap::R_ROCE_MAX_SRC_UDP_PORT.set(page, 0xffff);
    roce_cap::ROCE_ADDRESS_TABLE_SIZE.set(page, device.gid_table() as u64);
}

fn query_port(
    device: &DeviceConfig,
    is_down: bool,
    mailbox: &Mailbox<'_>,
) -> Result<Vec<u8>, Fail> {
    use query_hca_vport_context as port;
    let mut answer = mailbox.answer(SHORT, port::OUT)?;
    if device.link_layer != LinkLayer::InfiniBand {
        return Err(Refusal::Unsupported.into());
    }
    if mailbox.get(port::PORT_NUM) > 1 || mailbox.get(port::OTHER_VPORT) != 0 {
        return Err(Refusal::Port.into());
    }
    let guid = u64::from_be_bytes(device.guid());
    let system = u64::from_be_bytes(DeviceConfig { index: 0, ..*device }.guid());
    // Polling and down, or link up and active.
    let (physical, state) = if is_down { (2, 1) } else { (5, 4) };
    for (field, value) in [
        (port::PORT_PHYSICAL_STATE, physical),
        (port::PORT_STATE, state),
        (port::VPORT_STATE, state),
        (port::SYSTEM_IMAGE_GUID, system),
        (port::PORT_GUID, guid),
        (port::NODE_GUID, guid),
        (port::LID, u64::from(device.lid())),
        (port::SM_LID, 1),
    ] {
        field.set(&mut answer, value);
    }
    Ok(answer)
}

fn query_address(device: &DeviceConfig, mailbox: &Mailbox<'_>) -> Result<Vec<u8>, Fail> {
    use query_roce_address as roce;
    let mut answer = mailbox.answer(SHORT, roce::OUT)?;
    if device.link_layer != LinkLayer::Ethernet {
        return Err(Refusal::Unsupported.into());
    }
    let index = mailbox.get(roce::INDEX) as usize;
    if index >= device.gid_table() || mailbox.get(roce::VHCA_PORT_NUM) > 1 {
        return Err(Refusal::GidIndex.into());
    }
    // An entry that is empty is all zeros.
    let Some((gid, kind)) = device.gids().get(index).copied() else { return Ok(answer) };
    let wide = u128::from_be_bytes(gid);
    let [a, b, c, d, e, f] = device.mac();
    let is_v4 = gid.starts_with(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
    for (field, value) in [
        (roce::GID_HIGH, (wide >> 64) as u64),
        (roce::GID_LOW, wide as u64),
        (roce::MAC_HIGH, u64::from(u16::from_be_bytes([a, b]))),
        (roce::MAC_LOW, u64::from(u32::from_be_bytes([c, d, e, f]))),
        (roce::L3_TYPE, u64::from(!is_v4)),
        (roce::ROCE_VERSION, if kind == GidKind::RoceV2 { 2 } else { 0 }),
    ] {
        field.set(&mut answer, value);
    }
    Ok(answer)
}
