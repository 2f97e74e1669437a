// What NVSHMEM's structures have to look like for the state that state.cpp fills in. Both compilations check it, so
// that another version is refused by the name of what differs.
#pragma once
#include <type_traits>

#include <device_host/nvshmem_types.h>
#include <device_host_transport/nvshmem_common_ibgda.h>
#include <device_host_transport/nvshmem_constants.h>
#include <non_abi/nvshmem_version.h>

#include "gic_peer.h"

#define GIC_KNOWN "NVSHMEM 3.4.5: "
#define GIC_SIZE(type, bytes) static_assert(sizeof(type) == (bytes), GIC_KNOWN "sizeof(" #type ") is " #bytes)
#define GIC_AT(type, field, at)                                                                              \
    static_assert(offsetof(type, field) == (at), GIC_KNOWN #type "." #field " is at offset " #at)
#define GIC_SAME(type, other) static_assert(std::is_same<type, other>::value, GIC_KNOWN #type " is " #other)
#define GIC_VALUE(name, value) static_assert((name) == (value), GIC_KNOWN #name " is " #value)

GIC_SAME(nvshmemi_ibgda_device_cq_t, nvshmemi_ibgda_device_cq_v1);
GIC_SIZE(nvshmemi_ibgda_device_cq_t, 72);
GIC_AT(nvshmemi_ibgda_device_cq_t, version, 0);
GIC_AT(nvshmemi_ibgda_device_cq_t, qp_type, 4);
GIC_AT(nvshmemi_ibgda_device_cq_t, dbrec, 8);
GIC_AT(nvshmemi_ibgda_device_cq_t, cqe, 16);
GIC_AT(nvshmemi_ibgda_device_cq_t, prod_idx, 24);
GIC_AT(nvshmemi_ibgda_device_cq_t, cons_idx, 32);
GIC_AT(nvshmemi_ibgda_device_cq_t, resv_head, 40);
GIC_AT(nvshmemi_ibgda_device_cq_t, ready_head, 48);
GIC_AT(nvshmemi_ibgda_device_cq_t, cqn, 56);
GIC_AT(nvshmemi_ibgda_device_cq_t, ncqes, 60);
GIC_AT(nvshmemi_ibgda_device_cq_t, qpn, 64);

GIC_SAME(nvshmemi_ibgda_device_qp_management_t, nvshmemi_ibgda_device_qp_management_v1);
GIC_SIZE(nvshmemi_ibgda_device_qp_management_t, 96);
GIC_AT(nvshmemi_ibgda_device_qp_management_t, post_send_lock, 4);
GIC_AT(nvshmemi_ibgda_device_qp_management_t, tx_wq.resv_head, 8);
GIC_AT(nvshmemi_ibgda_device_qp_management_t, tx_wq.ready_head, 16);
GIC_AT(nvshmemi_ibgda_device_qp_management_t, tx_wq.prod_idx, 24);
GIC_AT(nvshmemi_ibgda_device_qp_management_t, tx_wq.cons_idx, 32);
GIC_AT(nvshmemi_ibgda_device_qp_management_t, tx_wq.get_head, 40);
GIC_AT(nvshmemi_ibgda_device_qp_management_t, tx_wq.get_tail, 48);

GIC_SAME(nvshmemi_ibgda_device_qp_t, nvshmemi_ibgda_device_qp_v1);
GIC_SIZE(nvshmemi_ibgda_device_qp_t, 184);
GIC_AT(nvshmemi_ibgda_device_qp_t, version, 0);
GIC_AT(nvshmemi_ibgda_device_qp_t, qp_type, 4);
GIC_AT(nvshmemi_ibgda_device_qp_t, qpn, 8);
GIC_AT(nvshmemi_ibgda_device_qp_t, dev_idx, 12);
GIC_AT(nvshmemi_ibgda_device_qp_t, ibuf.nslots, 16);
GIC_AT(nvshmemi_ibgda_device_qp_t, ibuf.buf, 24);
GIC_AT(nvshmemi_ibgda_device_qp_t, ibuf.lkey, 32);
GIC_AT(nvshmemi_ibgda_device_qp_t, ibuf.rkey, 36);
GIC_AT(nvshmemi_ibgda_device_qp_t, tx_wq.nwqes, 40);
GIC_AT(nvshmemi_ibgda_device_qp_t, tx_wq.wqe, 48);
GIC_AT(nvshmemi_ibgda_device_qp_t, tx_wq.dbrec, 56);
GIC_AT(nvshmemi_ibgda_device_qp_t, tx_wq.bf, 64);
GIC_AT(nvshmemi_ibgda_device_qp_t, tx_wq.cq, 72);
GIC_AT(nvshmemi_ibgda_device_qp_t, tx_wq.prod_idx, 80);
GIC_AT(nvshmemi_ibgda_device_qp_t, mvars, 88);
static_assert(std::is_same<decltype(nvshmemi_ibgda_device_qp_t::tx_wq.nwqes), uint16_t>::value,
              GIC_KNOWN "nvshmemi_ibgda_device_qp_t.tx_wq.nwqes is a uint16_t");

GIC_SIZE(nvshmemi_ibgda_device_dct_t, 48);
GIC_AT(nvshmemi_ibgda_device_dct_t, dqp_dct, 8);
GIC_SIZE(nvshmemi_ibgda_device_key_t, 16);
GIC_AT(nvshmemi_ibgda_device_key_t, next_addr, 8);

GIC_SAME(nvshmemi_ibgda_device_state_t, nvshmemi_ibgda_device_state_v1);
GIC_SIZE(nvshmemi_ibgda_device_state_t, 8384);
GIC_AT(nvshmemi_ibgda_device_state_t, num_shared_dcis, 4);
GIC_AT(nvshmemi_ibgda_device_state_t, num_exclusive_dcis, 8);
GIC_AT(nvshmemi_ibgda_device_state_t, dci_map_type, 12);
GIC_AT(nvshmemi_ibgda_device_state_t, ndcts_per_pe, 16);
GIC_AT(nvshmemi_ibgda_device_state_t, num_qp_groups, 20);
GIC_AT(nvshmemi_ibgda_device_state_t, num_dct_groups, 24);
GIC_AT(nvshmemi_ibgda_device_state_t, num_rc_per_pe, 28);
GIC_AT(nvshmemi_ibgda_device_state_t, rc_map_type, 32);
GIC_AT(nvshmemi_ibgda_device_state_t, num_requests_in_batch, 36);
GIC_AT(nvshmemi_ibgda_device_state_t, log2_cumem_granularity, 40);
GIC_AT(nvshmemi_ibgda_device_state_t, num_devices_initialized, 48);
GIC_AT(nvshmemi_ibgda_device_state_t, nic_buf_on_gpumem, 52);
GIC_AT(nvshmemi_ibgda_device_state_t, support_half_av_seg, 53);
GIC_AT(nvshmemi_ibgda_device_state_t, may_skip_cst, 54);
GIC_AT(nvshmemi_ibgda_device_state_t, use_async_postsend, 55);
GIC_AT(nvshmemi_ibgda_device_state_t, constmem.lkeys, 56);
GIC_AT(nvshmemi_ibgda_device_state_t, constmem.rkeys, 1080);
GIC_AT(nvshmemi_ibgda_device_state_t, constmem.dcts, 2104);
GIC_AT(nvshmemi_ibgda_device_state_t, globalmem.qp_group_switches, 8248);
GIC_AT(nvshmemi_ibgda_device_state_t, globalmem.cqs, 8256);
GIC_AT(nvshmemi_ibgda_device_state_t, globalmem.dcis, 8264);
GIC_AT(nvshmemi_ibgda_device_state_t, globalmem.rcs, 8272);
GIC_AT(nvshmemi_ibgda_device_state_t, globalmem.local_only_mhandle_head, 8280);
static_assert(
    std::is_same<decltype(nvshmemi_ibgda_device_state_t::globalmem.qp_group_switches), uint8_t*>::value,
    GIC_KNOWN "nvshmemi_ibgda_device_state_t.globalmem.qp_group_switches is a uint8_t*");
GIC_VALUE(NVSHMEMI_IBGDA_MAX_CONST_LKEYS, 64);
GIC_VALUE(NVSHMEMI_IBGDA_MAX_CONST_RKEYS, 64);
GIC_VALUE(NVSHMEMI_IBGDA_MAX_CONST_DCTS, 128);
GIC_VALUE(NVSHMEMI_IBGDA_MIN_QP_DEPTH, 128);
GIC_VALUE(NVSHMEMI_IBGDA_MAX_QP_DEPTH, 32768);

GIC_SAME(nvshmemi_device_host_state_t, nvshmemi_device_host_state_v1);
GIC_SIZE(nvshmemi_device_host_state_t, 776);
GIC_AT(nvshmemi_device_host_state_t, mype, 4);
GIC_AT(nvshmemi_device_host_state_t, npes, 8);
GIC_AT(nvshmemi_device_host_state_t, node_mype, 12);
GIC_AT(nvshmemi_device_host_state_t, node_npes, 16);
GIC_AT(nvshmemi_device_host_state_t, proxy, 24);
GIC_AT(nvshmemi_device_host_state_t, job_connectivity, 32);
GIC_AT(nvshmemi_device_host_state_t, proxy_ops_are_ordered, 36);
GIC_AT(nvshmemi_device_host_state_t, atomics_complete_on_quiet, 37);
GIC_AT(nvshmemi_device_host_state_t, heap_base, 40);
GIC_AT(nvshmemi_device_host_state_t, heap_size, 48);
GIC_AT(nvshmemi_device_host_state_t, peer_heap_base_p2p, 56);
GIC_AT(nvshmemi_device_host_state_t, peer_heap_base_remote, 64);
GIC_AT(nvshmemi_device_host_state_t, symmetric_heap_kind, 72);
GIC_AT(nvshmemi_device_host_state_t, enable_rail_opt, 73);
GIC_AT(nvshmemi_device_host_state_t, proxy_channels_buf, 632);
GIC_AT(nvshmemi_device_host_state_t, proxy_channels_issue, 680);
GIC_AT(nvshmemi_device_host_state_t, proxy_channels_complete, 688);
GIC_AT(nvshmemi_device_host_state_t, proxy_channels_complete_local_ptr, 696);
GIC_AT(nvshmemi_device_host_state_t, proxy_channels_quiet_issue, 704);
GIC_AT(nvshmemi_device_host_state_t, proxy_channels_quiet_ack, 712);
GIC_AT(nvshmemi_device_host_state_t, proxy_channels_cst_issue, 720);
GIC_AT(nvshmemi_device_host_state_t, proxy_channels_cst_ack, 728);
GIC_AT(nvshmemi_device_host_state_t, proxy_channel_buf_size, 736);
GIC_AT(nvshmemi_device_host_state_t, proxy_channel_buf_logsize, 744);
GIC_AT(nvshmemi_device_host_state_t, ibgda_is_initialized, 768);
GIC_AT(nvshmemi_device_host_state_t, nvshmemi_is_nvshmem_initialized, 769);
GIC_VALUE(CHANNEL_BUF_SIZE_LOG, 22);
GIC_VALUE(CHANNEL_ENTRY_BYTES, 8);
GIC_VALUE(PROXY_DMA_REQ_BYTES, 32);
GIC_VALUE(PROXY_AMO_REQ_BYTES, 40);
GIC_VALUE(PROXY_INLINE_REQ_BYTES, 24);

#undef GIC_SIZE
#undef GIC_AT
#undef GIC_SAME
#undef GIC_VALUE

// What a user's kernel knows beside the library's state: in GPU memory, its address is `GicPeerBuilt::state`.
struct GicNvshmemSide {
    uint64_t shift;   // the other side's address + shift is the symmetric address
    uint64_t signal;  // symmetric address of the word that put_signal adds 1 to
    int32_t peer;     // the other side's PE
    uint32_t lkey;    // big endian, for the step variants
    uint32_t rkey;
};
