//! libibverbs as it is called: layouts and numbers of `<infiniband/verbs.h>` (rdma-core 44; they are that library's ABI and
//! the same in every version since `IBVERBS_1.1`). Objects of which only the library knows the inside are opaque.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// `struct ibv_device`, a handle here: its name is asked for.
#[repr(C)]
pub struct Device {
    _opaque: [u8; 0],
}

/// `struct ibv_context_ops`: the calls that the header makes through the context. Each `_` is one that it doesn't.
#[repr(C)]
pub struct ContextOps {
    _query_device_to_bind_mw: [*mut c_void; 9],
    _dealloc_mw: *mut c_void,
    _create_cq: *mut c_void,
    /// `ibv_poll_cq`: entries taken, or negative.
    pub poll_cq: Option<unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int>,
    /// `ibv_req_notify_cq`.
    pub req_notify_cq: Option<unsafe extern "C" fn(*mut Cq, c_int) -> c_int>,
    _cq_event_to_create_qp: [*mut c_void; 9],
    _query_qp: *mut c_void,
    _modify_qp: *mut c_void,
    _destroy_qp: *mut c_void,
    /// `ibv_post_send`: 0 or an errno; what wasn't posted first is left at the last argument.
    pub post_send: Option<unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int>,
    /// `ibv_post_recv`.
    pub post_recv: Option<unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int>,
    _create_ah_to_async_event: [*mut c_void; 5],
}

/// `struct ibv_context`, as far as it is looked at.
#[repr(C)]
pub struct Context {
    /// Its device.
    pub device: *mut Device,
    /// Its calls.
    pub ops: ContextOps,
    /// The uverbs file.
    pub cmd_fd: c_int,
    /// The file that async events come from.
    pub async_fd: c_int,
}

/// `struct ibv_pd`.
#[repr(C)]
pub struct Pd {
    /// Its context.
    pub context: *mut Context,
    /// The kernel's number for it.
    pub handle: u32,
}

/// `struct ibv_mr`.
#[repr(C)]
pub struct Mr {
    /// Its context.
    pub context: *mut Context,
    /// Its protection domain.
    pub pd: *mut Pd,
    /// First byte.
    pub addr: *mut c_void,
    /// Bytes.
    pub length: usize,
    /// The kernel's number for it.
    pub handle: u32,
    /// Local key.
    pub lkey: u32,
    /// Remote key.
    pub rkey: u32,
}

/// `struct ibv_cq`, as far as it is looked at.
#[repr(C)]
pub struct Cq {
    /// Its context.
    pub context: *mut Context,
}

/// `struct ibv_ah`, a handle here.
#[repr(C)]
pub struct Ah {
    _opaque: [u8; 0],
}

/// `struct ibv_qp`, as far as it is looked at.
#[repr(C)]
pub struct Qp {
    /// Its context.
    pub context: *mut Context,
    _qp_context: *mut c_void,
    _pd: *mut Pd,
    _send_cq: *mut Cq,
    _recv_cq: *mut Cq,
    _srq: *mut c_void,
    /// The kernel's number for it.
    pub handle: u32,
    /// Its number on the fabric.
    pub qp_num: u32,
}

/// `struct ibv_device_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs, reason = "the manual's names, ibv_query_device(3)")]
pub struct DeviceAttr {
    pub fw_ver: [c_char; 64],
    pub node_guid: u64,
    pub sys_image_guid: u64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: c_int,
    pub max_qp_wr: c_int,
    pub device_cap_flags: c_uint,
    pub max_sge: c_int,
    pub max_sge_rd: c_int,
    pub max_cq: c_int,
    pub max_cqe: c_int,
    pub max_mr: c_int,
    pub max_pd: c_int,
    pub max_qp_rd_atom: c_int,
    pub max_ee_rd_atom: c_int,
    pub max_res_rd_atom: c_int,
    pub max_qp_init_rd_atom: c_int,
    pub max_ee_init_rd_atom: c_int,
    pub atomic_cap: c_int,
    _ee_to_srq_wr: [c_int; 13],
    pub max_srq_sge: c_int,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}

/// `struct ibv_port_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "the manual's names, ibv_query_port(3)")]
pub struct PortAttr {
    pub state: c_int,
    pub max_mtu: c_int,
    pub active_mtu: c_int,
    pub gid_tbl_len: c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
}

/// `enum ibv_port_state`: IBV_PORT_ACTIVE.
pub const PORT_ACTIVE: c_int = 4;
/// IBV_LINK_LAYER_ETHERNET; InfiniBand is 1, and 0 is an old kernel's InfiniBand.
pub const LINK_LAYER_ETHERNET: u8 = 2;
/// IBV_QPF_GRH_REQUIRED: the port's subnet wants global routes in every packet.
pub const PORT_GRH_REQUIRED: u8 = 1;

/// `struct ibv_gid_entry`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct GidEntry {
    /// In network order.
    pub gid: [u8; 16],
    /// Its place in the table.
    pub gid_index: u32,
    /// Its port.
    pub port_num: u32,
    /// `enum ibv_gid_type`: 0 InfiniBand, 1 RoCE v1, 2 RoCE v2.
    pub gid_type: u32,
    /// Network interface that it belongs to.
    pub ndev_ifindex: u32,
}

/// `struct ibv_sge`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Sge {
    /// First byte.
    pub addr: u64,
    /// Bytes.
    pub length: u32,
    /// Local key.
    pub lkey: u32,
}

/// `wr.rdma` of `struct ibv_send_wr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct WrRdma {
    /// First remote byte.
    pub remote_addr: u64,
    /// Its key.
    pub rkey: u32,
}

/// `wr.atomic` of `struct ibv_send_wr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct WrAtomic {
    /// The remote word.
    pub remote_addr: u64,
    /// What is compared, or added.
    pub compare_add: u64,
    /// What is swapped in.
    pub swap: u64,
    /// Its key.
    pub rkey: u32,
}

/// `wr` of `struct ibv_send_wr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub union WrKind {
    /// Writes and reads.
    pub rdma: WrRdma,
    /// Atomics.
    pub atomic: WrAtomic,
}

/// `struct ibv_send_wr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct SendWr {
    /// Comes back.
    pub wr_id: u64,
    /// The next of the chain.
    pub next: *mut SendWr,
    /// Local bytes.
    pub sg_list: *mut Sge,
    /// How many entries.
    pub num_sge: c_int,
    /// `enum ibv_wr_opcode`.
    pub opcode: c_uint,
    /// `enum ibv_send_flags`.
    pub send_flags: c_uint,
    /// Immediate, in network order.
    pub imm_data: u32,
    /// What the opcode needs.
    pub wr: WrKind,
    /// What XRC, memory windows and segmentation need: not used here.
    pub unused: [u64; 7],
}

impl SendWr {
    /// Of nothing: to be filled in.
    pub const NONE: Self = Self {
        wr_id: 0,
        next: std::ptr::null_mut(),
        sg_list: std::ptr::null_mut(),
        num_sge: 0,
        opcode: 0,
        send_flags: 0,
        imm_data: 0,
        wr: WrKind { atomic: WrAtomic { remote_addr: 0, compare_add: 0, swap: 0, rkey: 0 } },
        unused: [0; 7],
    };
}

/// `enum ibv_wr_opcode`.
#[allow(missing_docs, reason = "the header's names")]
pub mod opcode {
    use std::ffi::c_uint;
    pub const RDMA_WRITE: c_uint = 0;
    pub const RDMA_WRITE_WITH_IMM: c_uint = 1;
    pub const SEND: c_uint = 2;
    pub const SEND_WITH_IMM: c_uint = 3;
    pub const RDMA_READ: c_uint = 4;
    pub const ATOMIC_CMP_AND_SWP: c_uint = 5;
    pub const ATOMIC_FETCH_AND_ADD: c_uint = 6;
}

/// `enum ibv_send_flags`.
#[allow(missing_docs, reason = "the header's names")]
pub mod send_flags {
    use std::ffi::c_uint;
    pub const FENCE: c_uint = 1;
    pub const SIGNALED: c_uint = 1 << 1;
    pub const INLINE: c_uint = 1 << 3;
}

/// `struct ibv_recv_wr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RecvWr {
    /// Comes back.
    pub wr_id: u64,
    /// The next of the chain.
    pub next: *mut RecvWr,
    /// Local bytes.
    pub sg_list: *mut Sge,
    /// How many entries.
    pub num_sge: c_int,
}

/// `struct ibv_wc`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Wc {
    /// The request's.
    pub wr_id: u64,
    /// `enum ibv_wc_status`.
    pub status: c_uint,
    /// `enum ibv_wc_opcode`; only of a success.
    pub opcode: c_uint,
    /// The device's own word for an error.
    pub vendor_err: u32,
    /// Bytes of a receive.
    pub byte_len: u32,
    /// Immediate, in network order, where the flags say so.
    pub imm_data: u32,
    /// The queue pair.
    pub qp_num: u32,
    /// Who sent a datagram.
    pub src_qp: u32,
    /// `enum ibv_wc_flags`.
    pub wc_flags: c_uint,
    /// P_Key of a datagram.
    pub pkey_index: u16,
    /// LID of who sent a datagram.
    pub slid: u16,
    /// Service level of a datagram.
    pub sl: u8,
    /// Low bits of the LID that a datagram came to.
    pub dlid_path_bits: u8,
}

/// IBV_WC_WITH_IMM.
pub const WC_WITH_IMM: c_uint = 1 << 1;

/// `struct ibv_global_route`; a GID is aligned as its two halves of 8 bytes are.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default)]
pub struct GlobalRoute {
    /// The peer's GID.
    pub dgid: [u8; 16],
    /// Flow label.
    pub flow_label: u32,
    /// Index of the own GID.
    pub sgid_index: u8,
    /// Routers that it may pass.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
}

/// `struct ibv_ah_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct AhAttr {
    /// Global route.
    pub grh: GlobalRoute,
    /// The peer's LID.
    pub dlid: u16,
    /// Service level.
    pub sl: u8,
    /// Low bits of the own LID.
    pub src_path_bits: u8,
    /// Rate limit.
    pub static_rate: u8,
    /// Whether the route counts.
    pub is_global: u8,
    /// The own port.
    pub port_num: u8,
}

/// `struct ibv_qp_cap`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "the manual's names, ibv_create_qp(3)")]
pub struct QpCap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

/// `struct ibv_qp_init_attr`.
#[repr(C)]
#[allow(missing_docs, reason = "the manual's names, ibv_create_qp(3)")]
pub struct QpInitAttr {
    pub qp_context: *mut c_void,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: *mut c_void,
    pub cap: QpCap,
    pub qp_type: c_uint,
    pub sq_sig_all: c_int,
}

/// IBV_QPT_RC.
pub const QPT_RC: c_uint = 2;

/// `struct ibv_qp_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "the manual's names, ibv_modify_qp(3)")]
pub struct QpAttr {
    pub qp_state: c_uint,
    pub cur_qp_state: c_uint,
    pub path_mtu: c_uint,
    pub path_mig_state: c_uint,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: c_uint,
    pub cap: QpCap,
    pub ah_attr: AhAttr,
    pub alt_ah_attr: AhAttr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}

/// `enum ibv_qp_attr_mask`.
#[allow(missing_docs, reason = "the header's names")]
pub mod qp_mask {
    use std::ffi::c_int;
    pub const STATE: c_int = 1;
    pub const ACCESS_FLAGS: c_int = 1 << 3;
    pub const PKEY_INDEX: c_int = 1 << 4;
    pub const PORT: c_int = 1 << 5;
    pub const AV: c_int = 1 << 7;
    pub const PATH_MTU: c_int = 1 << 8;
    pub const TIMEOUT: c_int = 1 << 9;
    pub const RETRY_CNT: c_int = 1 << 10;
    pub const RNR_RETRY: c_int = 1 << 11;
    pub const RQ_PSN: c_int = 1 << 12;
    pub const MAX_QP_RD_ATOMIC: c_int = 1 << 13;
    pub const MIN_RNR_TIMER: c_int = 1 << 15;
    pub const SQ_PSN: c_int = 1 << 16;
    pub const MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
    pub const DEST_QPN: c_int = 1 << 20;
}

/// `enum ibv_qp_state`.
#[allow(missing_docs, reason = "the header's names")]
pub mod qp_state {
    use std::ffi::c_uint;
    pub const INIT: c_uint = 1;
    pub const RTR: c_uint = 2;
    pub const RTS: c_uint = 3;
    pub const ERR: c_uint = 6;
}

/// `enum ibv_access_flags`.
#[allow(missing_docs, reason = "the header's names")]
pub mod access {
    use std::ffi::c_uint;
    pub const LOCAL_WRITE: c_uint = 1;
    pub const REMOTE_WRITE: c_uint = 1 << 1;
    pub const REMOTE_READ: c_uint = 1 << 2;
    pub const REMOTE_ATOMIC: c_uint = 1 << 3;
    /// Optional: a kernel or device without it ignores it.
    pub const RELAXED_ORDERING: c_uint = 1 << 20;
}

/// `struct ibv_async_event`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AsyncEvent {
    /// A CQ, a QP, an SRQ, or a port's number.
    pub element: *mut c_void,
    /// `enum ibv_event_type`.
    pub event_type: c_int,
}

// What rdma-core 44 has on 64-bit machines; `tests/ibv.rs` asks the header of the machine.
const _: () = {
    assert!(size_of::<ContextOps>() == 256 && size_of::<DeviceAttr>() == 232);
    assert!(size_of::<PortAttr>() == 52 && size_of::<SendWr>() == 128);
    assert!(size_of::<Wc>() == 48 && size_of::<QpAttr>() == 144 && size_of::<AhAttr>() == 32);
    assert!(size_of::<QpInitAttr>() == 64 && size_of::<GidEntry>() == 32);
    assert!(size_of::<Mr>() == 48 && size_of::<AsyncEvent>() == 16 && size_of::<RecvWr>() == 32);
};
