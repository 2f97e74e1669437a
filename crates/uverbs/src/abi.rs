//! Byte layouts at the kernel's door, as Linux's `rdma/ib_user_verbs.h` and `rdma/mlx5-abi.h` have them.
//!
//! Fields have the machine's byte order. Names are the headers'.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

macro_rules! layouts {
    ($($(#[$doc:meta])* $name:ident = $size:literal { $($field:ident: $type:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Debug)]
        #[repr(C)]
        pub(crate) struct $name { $(pub(crate) $field: $type,)* }
        const _: () = assert!(size_of::<$name>() == $size);
        impl Default for $name {
            fn default() -> Self { zerocopy::FromZeros::new_zeroed() }
        }
    )*};
}

layouts! {
    /// `ib_uverbs_ioctl_hdr`, without its attributes.
    IoctlHeader = 24 {
        length: u16, object_id: u16, method_id: u16, num_attrs: u16,
        reserved1: u64, driver_id: u32, reserved2: u32,
    }
    /// `ib_uverbs_attr`.
    RawAttr = 16 { attr_id: u16, len: u16, flags: u16, enum_data: u16, data: u64, }
    /// `ib_uverbs_cmd_hdr`.
    CommandHeader = 8 { command: u32, in_words: u16, out_words: u16, }
    /// `ib_uverbs_ex_cmd_hdr`.
    ExCommandHeader = 16 {
        response: u64, provider_in_words: u16, provider_out_words: u16, cmd_hdr_reserved: u32,
    }

    GetContextResp = 8 { async_fd: u32, num_comp_vectors: u32, }
    /// `mlx5_ib_alloc_ucontext_req_v2`.
    UcontextReq = 32 {
        total_num_bfregs: u32, num_low_latency_bfregs: u32, flags: u32, comp_mask: u32,
        max_cqe_version: u8, reserved0: u8, reserved1: u16, reserved2: u32, lib_caps: u64,
    }
    /// `mlx5_ib_alloc_ucontext_resp`.
    UcontextResp = 72 {
        qp_tab_size: u32, bf_reg_size: u32, tot_bfregs: u32, cache_line_size: u32,
        max_sq_desc_sz: u16, max_rq_desc_sz: u16, max_send_wqebb: u32, max_recv_wr: u32,
        max_srq_recv_wr: u32, num_ports: u16, flow_action_flags: u16, comp_mask: u32,
        response_length: u32, cqe_version: u8, cmds_supp_uhw: u8, eth_min_inline: u8,
        clock_info_versions: u8, hca_core_clock_offset: u64, log_uar_size: u32,
        num_uars_per_page: u32, num_dyn_bfregs: u32, dump_fill_mkey: u32,
    }

    QueryDeviceResp = 176 {
        fw_ver: u64, node_guid: [u8; 8], sys_image_guid: [u8; 8], max_mr_size: u64,
        page_size_cap: u64, vendor_id: u32, vendor_part_id: u32, hw_ver: u32, max_qp: u32,
        max_qp_wr: u32, device_cap_flags: u32, max_sge: u32, max_sge_rd: u32, max_cq: u32,
        max_cqe: u32, max_mr: u32, max_pd: u32, max_qp_rd_atom: u32, max_ee_rd_atom: u32,
        max_res_rd_atom: u32, max_qp_init_rd_atom: u32, max_ee_init_rd_atom: u32,
        atomic_cap: u32, max_ee: u32, max_rdd: u32, max_mw: u32, max_raw_ipv6_qp: u32,
        max_raw_ethy_qp: u32, max_mcast_grp: u32, max_mcast_qp_attach: u32,
        max_total_mcast_qp_attach: u32, max_ah: u32, max_fmr: u32, max_map_per_fmr: u32,
        max_srq: u32, max_srq_wr: u32, max_srq_sge: u32, max_pkeys: u16,
        local_ca_ack_delay: u8, phys_port_cnt: u8, reserved: [u8; 4],
    }
    /// What `ib_uverbs_ex_query_device_resp` has behind the above.
    QueryDeviceExtra = 128 {
        comp_mask: u32, response_length: u32, odp_general: u64, odp_rc: u32, odp_uc: u32,
        odp_ud: u32, odp_reserved: u32, timestamp_mask: u64, hca_core_clock: u64,
        device_cap_flags_ex: u64, rss_supported_qpts: u32, max_rwq_indirection_tables: u32,
        max_rwq_indirection_table_size: u32, rss_reserved: u32, max_wq_type_rq: u32,
        raw_packet_caps: u32, tm: [u32; 6], max_cq_moderation_count: u16,
        max_cq_moderation_period: u16, cq_moderation_reserved: u32, max_dm_size: u64,
        xrc_odp_caps: u32, reserved: u32,
    }
    QueryPort = 16 { response: u64, port_num: u8, reserved: [u8; 7], }
    QueryPortResp = 40 {
        port_cap_flags: u32, max_msg_sz: u32, bad_pkey_cntr: u32, qkey_viol_cntr: u32,
        gid_tbl_len: u32, pkey_tbl_len: u16, lid: u16, sm_lid: u16, state: u8, max_mtu: u8,
        active_mtu: u8, lmc: u8, max_vl_num: u8, sm_sl: u8, subnet_timeout: u8,
        init_type_reply: u8, active_width: u8, active_speed: u8, phys_state: u8,
        link_layer: u8, flags: u8, reserved: u8,
    }
    /// `ib_uverbs_gid_entry`.
    GidEntry = 32 { gid: [u8; 16], gid_index: u32, port_num: u32, gid_type: u32, netdev_ifindex: u32, }

    RegMr = 40 {
        response: u64, start: u64, length: u64, hca_va: u64, pd_handle: u32, access_flags: u32,
    }
    RegMrResp = 12 { mr_handle: u32, lkey: u32, rkey: u32, }
    ReregMr = 48 {
        response: u64, mr_handle: u32, flags: u32, start: u64, length: u64, hca_va: u64,
        pd_handle: u32, access_flags: u32,
    }
    ReregMrResp = 8 { lkey: u32, rkey: u32, }
    RegDmabuf = 16 { offset: u64, length: u64, }

    CreateCq = 32 {
        response: u64, user_handle: u64, cqe: u32, comp_vector: u32, comp_channel: i32,
        reserved: u32,
    }
    ExCreateCq = 32 {
        user_handle: u64, cqe: u32, comp_vector: u32, comp_channel: i32, comp_mask: u32,
        flags: u32, reserved: u32,
    }
    CreateCqResp = 8 { cq_handle: u32, cqe: u32, }
    /// `mlx5_ib_create_cq`.
    Mlx5CreateCq = 32 {
        buf_addr: u64, db_addr: u64, cqe_size: u32, cqe_comp_en: u8, cqe_comp_res_format: u8,
        flags: u16, uar_page_index: u16, reserved0: u16, reserved1: u32,
    }
    ResizeCq = 16 { response: u64, cq_handle: u32, cqe: u32, }
    /// `mlx5_ib_resize_cq`.
    Mlx5ResizeCq = 16 { buf_addr: u64, cqe_size: u16, reserved0: u16, reserved1: u32, }
    DestroyWithEvents = 16 { response: u64, handle: u32, reserved: u32, }
    DestroyCqResp = 8 { comp_events_reported: u32, async_events_reported: u32, }

    CreateQp = 56 {
        response: u64, user_handle: u64, pd_handle: u32, send_cq_handle: u32,
        recv_cq_handle: u32, srq_handle: u32, max_send_wr: u32, max_recv_wr: u32,
        max_send_sge: u32, max_recv_sge: u32, max_inline_data: u32, sq_sig_all: u8, qp_type: u8,
        is_srq: u8, reserved: u8,
    }
    CreateQpResp = 32 {
        qp_handle: u32, qpn: u32, max_send_wr: u32, max_recv_wr: u32, max_send_sge: u32,
        max_recv_sge: u32, max_inline_data: u32, reserved: u32,
    }
    /// `ib_uverbs_qp_cap`.
    QpCap = 20 {
        max_send_wr: u32, max_recv_wr: u32, max_send_sge: u32, max_recv_sge: u32,
        max_inline_data: u32,
    }
    /// `mlx5_ib_create_qp`.
    Mlx5CreateQp = 56 {
        buf_addr: u64, db_addr: u64, sq_wqe_count: u32, rq_wqe_count: u32, rq_wqe_shift: u32,
        flags: u32, uidx: u32, bfreg_index: u32, sq_buf_addr: u64, ece_options: u32,
        log_num_concurent: u8, log_num_errored: u8, reserved: u16,
    }
    /// `mlx5_ib_create_qp_resp`.
    Mlx5CreateQpResp = 40 {
        bfreg_index: u32, ece_options: u32, comp_mask: u32, tirn: u32, tisn: u32, rqn: u32,
        sqn: u32, reserved1: u32, tir_icm_addr: u64,
    }
    /// `ib_uverbs_qp_dest`.
    QpDest = 32 {
        dgid: [u8; 16], flow_label: u32, dlid: u16, reserved: u16, sgid_index: u8,
        hop_limit: u8, traffic_class: u8, sl: u8, src_path_bits: u8, static_rate: u8,
        is_global: u8, port_num: u8,
    }
    ModifyQp = 112 {
        dest: QpDest, alt_dest: QpDest, qp_handle: u32, attr_mask: u32, qkey: u32, rq_psn: u32,
        sq_psn: u32, dest_qp_num: u32, qp_access_flags: u32, pkey_index: u16,
        alt_pkey_index: u16, qp_state: u8, cur_qp_state: u8, path_mtu: u8, path_mig_state: u8,
        en_sqd_async_notify: u8, max_rd_atomic: u8, max_dest_rd_atomic: u8, min_rnr_timer: u8,
        port_num: u8, timeout: u8, retry_cnt: u8, rnr_retry: u8, alt_port_num: u8,
        alt_timeout: u8, reserved: [u8; 2],
    }
    QueryQp = 16 { response: u64, qp_handle: u32, attr_mask: u32, }
    QueryQpResp = 128 {
        dest: QpDest, alt_dest: QpDest, max_send_wr: u32, max_recv_wr: u32, max_send_sge: u32,
        max_recv_sge: u32, max_inline_data: u32, qkey: u32, rq_psn: u32, sq_psn: u32,
        dest_qp_num: u32, qp_access_flags: u32, pkey_index: u16, alt_pkey_index: u16,
        qp_state: u8, cur_qp_state: u8, path_mtu: u8, path_mig_state: u8, sq_draining: u8,
        max_rd_atomic: u8, max_dest_rd_atomic: u8, min_rnr_timer: u8, port_num: u8, timeout: u8,
        retry_cnt: u8, rnr_retry: u8, alt_port_num: u8, alt_timeout: u8, sq_sig_all: u8,
        reserved: [u8; 5],
    }

    CreateSrq = 32 {
        response: u64, user_handle: u64, pd_handle: u32, max_wr: u32, max_sge: u32, srq_limit: u32,
    }
    CreateXsrq = 48 {
        response: u64, user_handle: u64, srq_type: u32, pd_handle: u32, max_wr: u32, max_sge: u32,
        srq_limit: u32, max_num_tags: u32, xrcd_handle: u32, cq_handle: u32,
    }
    CreateSrqResp = 16 { srq_handle: u32, max_wr: u32, max_sge: u32, srqn: u32, }
    /// `mlx5_ib_create_srq`.
    Mlx5CreateSrq = 32 {
        buf_addr: u64, db_addr: u64, flags: u32, reserved0: u32, uidx: u32, reserved1: u32,
    }
    ModifySrq = 16 { srq_handle: u32, attr_mask: u32, max_wr: u32, srq_limit: u32, }
    QuerySrq = 16 { response: u64, srq_handle: u32, reserved: u32, }
    QuerySrqResp = 16 { max_wr: u32, max_sge: u32, srq_limit: u32, reserved: u32, }
    OpenXrcd = 16 { response: u64, fd: u32, oflags: u32, }

    /// `ib_uverbs_ah_attr`.
    AhAttr = 32 {
        dgid: [u8; 16], flow_label: u32, sgid_index: u8, hop_limit: u8, traffic_class: u8,
        reserved0: u8, dlid: u16, sl: u8, src_path_bits: u8, static_rate: u8, is_global: u8,
        port_num: u8, reserved: u8,
    }
    CreateAh = 56 {
        response: u64, user_handle: u64, pd_handle: u32, reserved: u32, attr: AhAttr,
    }
    /// `mlx5_ib_create_ah_resp`.
    Mlx5CreateAhResp = 16 { response_length: u32, dmac: [u8; 6], reserved: [u8; 6], }
}

/// Methods and attributes of a driver's own begin here.
pub(crate) const DRIVER: u16 = 1 << 12;
/// Attributes of commands that have a driver's part.
pub(crate) const UHW_IN: u16 = DRIVER;
pub(crate) const UHW_OUT: u16 = DRIVER + 1;

/// Flag of write commands in the extended form.
pub(crate) const EXTENDED: u32 = 0x8000_0000;

bitflags::bitflags! {
    /// `enum ib_access_flags`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct IbAccess: u32 {
        const LOCAL_WRITE = 1;
        const REMOTE_WRITE = 1 << 1;
        const REMOTE_READ = 1 << 2;
        const REMOTE_ATOMIC = 1 << 3;
        const MW_BIND = 1 << 4;
        const ZERO_BASED = 1 << 5;
        const ON_DEMAND = 1 << 6;
        const HUGETLB = 1 << 7;
        /// Flags that a device may ignore.
        const OPTIONAL = 0x3ff << 20;
    }
}

impl IbAccess {
    pub(crate) fn of_nic(self) -> softnic::Access {
        let mut access = softnic::Access::empty();
        for (flag, to) in [
            (Self::LOCAL_WRITE, softnic::Access::LOCAL_WRITE),
            (Self::REMOTE_WRITE, softnic::Access::REMOTE_WRITE),
            (Self::REMOTE_READ, softnic::Access::REMOTE_READ),
            (Self::REMOTE_ATOMIC, softnic::Access::REMOTE_ATOMIC),
        ] {
            access.set(to, self.contains(flag));
        }
        access
    }
}
