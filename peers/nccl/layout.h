/* What state.cpp fills in and kernel.cu follows, checked against the headers that are compiled with. */
#pragma once
/* First: without CUDA_VERSION DOCA's headers drop the MMIO store. */
#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <nccl_device.h>
#include <nccl_device/gin/gdaki/doca_gpunetio/common/doca_gpunetio_verbs_dev.h>
#include <nccl_device/gin/gdaki/gin_gdaki_device_host_common.h>
#include <nccl_device/gin/proxy/gin_proxy_device_host_common.h>
#include <type_traits>

#define GIC_KNOWN "NCCL 2.28.9: "
#define GIC_IS(what, value) static_assert((what) == (value), GIC_KNOWN #what " is " #value)
#define GIC_SIZE(Type, bytes) GIC_IS(sizeof(Type), bytes)
#define GIC_AT(Type, field, at) GIC_IS(offsetof(Type, field), at)

GIC_IS(NCCL_GIN_GDAKI_VERSION, 100);
GIC_IS(NCCL_GIN_PROXY_VERSION, 100);
GIC_IS(NCCL_NET_DEVICE_GIN_PROXY, 2);
GIC_IS(NCCL_NET_DEVICE_GIN_GDAKI, 3);
GIC_IS(DOCA_GPUNETIO_VERBS_MKEY_SWAPPED, 1);
GIC_IS(DOCA_GPUNETIO_VERBS_NIC_HANDLER_CPU_PROXY, 1);
GIC_IS(DOCA_GPUNETIO_VERBS_NIC_HANDLER_GPU_SM_DB, 2);

GIC_SIZE(doca_gpu_dev_verbs_qp, 280);
GIC_AT(doca_gpu_dev_verbs_qp, sq_rsvd_index, 0);
GIC_AT(doca_gpu_dev_verbs_qp, sq_ready_index, 8);
GIC_AT(doca_gpu_dev_verbs_qp, sq_wqe_pi, 16);
GIC_AT(doca_gpu_dev_verbs_qp, sq_num, 24);
GIC_AT(doca_gpu_dev_verbs_qp, sq_num_shift8, 28);
GIC_AT(doca_gpu_dev_verbs_qp, sq_num_shift8_be, 32);
GIC_AT(doca_gpu_dev_verbs_qp, sq_num_shift8_be_1ds, 36);
GIC_AT(doca_gpu_dev_verbs_qp, sq_num_shift8_be_2ds, 40);
GIC_AT(doca_gpu_dev_verbs_qp, sq_num_shift8_be_3ds, 44);
GIC_AT(doca_gpu_dev_verbs_qp, sq_num_shift8_be_4ds, 48);
GIC_AT(doca_gpu_dev_verbs_qp, sq_lock, 52);
GIC_AT(doca_gpu_dev_verbs_qp, sq_wqe_num, 56);
GIC_AT(doca_gpu_dev_verbs_qp, sq_wqe_mask, 58);
GIC_AT(doca_gpu_dev_verbs_qp, sq_wqe_daddr, 64);
GIC_AT(doca_gpu_dev_verbs_qp, sq_dbrec, 72);
GIC_AT(doca_gpu_dev_verbs_qp, sq_db, 80);
GIC_AT(doca_gpu_dev_verbs_qp, cq_sq, 160);
GIC_AT(doca_gpu_dev_verbs_qp, nic_handler, 272);
GIC_AT(doca_gpu_dev_verbs_qp, mem_type, 276);
/* state.cpp refuses depths that don't fit. */
GIC_IS(sizeof(doca_gpu_dev_verbs_qp::sq_wqe_num), 2);

GIC_SIZE(doca_gpu_dev_verbs_cq, 56);
GIC_AT(doca_gpu_dev_verbs_cq, cqe_daddr, 0);
GIC_AT(doca_gpu_dev_verbs_cq, cq_num, 8);
GIC_AT(doca_gpu_dev_verbs_cq, cqe_num, 12);
GIC_AT(doca_gpu_dev_verbs_cq, dbrec, 16);
GIC_AT(doca_gpu_dev_verbs_cq, cqe_ci, 24);
GIC_AT(doca_gpu_dev_verbs_cq, cqe_mask, 32);
GIC_AT(doca_gpu_dev_verbs_cq, cqe_size, 36);
GIC_AT(doca_gpu_dev_verbs_cq, cqe_rsvd, 40);
GIC_AT(doca_gpu_dev_verbs_cq, mem_type, 48);

GIC_SIZE(ncclGinGdakiGPUContext, 72);
GIC_AT(ncclGinGdakiGPUContext, gdqp, 0);
GIC_AT(ncclGinGdakiGPUContext, companion_gdqp, 8);
GIC_AT(ncclGinGdakiGPUContext, counters_table, 16);
GIC_AT(ncclGinGdakiGPUContext, signals_table, 40);
GIC_AT(ncclGinGdakiGPUContext, sink_buffer_lkey, 64);
GIC_SIZE(ncclGinGdakiMemHandle, 16);
GIC_AT(ncclGinGdakiMemHandle, rkeys, 0);
GIC_AT(ncclGinGdakiMemHandle, lkey, 8);

GIC_SIZE(ncclWindow_vidmem, 72);
GIC_AT(ncclWindow_vidmem, worldRank, 20);
GIC_AT(ncclWindow_vidmem, ginOffset4K, 32);
GIC_AT(ncclWindow_vidmem, ginWins, 40);

/* 2.29 has the same size without it. */
template <class T, class = void>
struct GicHasGinTypes : std::false_type {};
template <class T>
struct GicHasGinTypes<T, std::void_t<decltype(T::ginTypes)>> : std::true_type {};
static_assert(GicHasGinTypes<ncclDevComm>::value, GIC_KNOWN "ncclDevComm has ginTypes");
GIC_SIZE(ncclDevComm, 200);
GIC_AT(ncclDevComm, rank, 0);
GIC_AT(ncclDevComm, nRanks, 4);
GIC_AT(ncclDevComm, nRanks_rcp32, 8);
GIC_AT(ncclDevComm, lsaRank, 12);
GIC_AT(ncclDevComm, lsaSize, 16);
GIC_AT(ncclDevComm, lsaSize_rcp32, 20);
GIC_AT(ncclDevComm, ginContextCount, 136);
GIC_AT(ncclDevComm, ginTypes, 137);
GIC_AT(ncclDevComm, ginHandles, 144);
GIC_AT(ncclDevComm, ginSignalBase, 176);
GIC_AT(ncclDevComm, ginSignalCount, 180);
GIC_AT(ncclDevComm, ginSignalShadows, 192);

GIC_SIZE(ncclGinProxyGpuCtx_t, 48);
GIC_AT(ncclGinProxyGpuCtx_t, nranks, 0);
GIC_AT(ncclGinProxyGpuCtx_t, queueSize, 4);
GIC_AT(ncclGinProxyGpuCtx_t, queues, 8);
GIC_AT(ncclGinProxyGpuCtx_t, pis, 16);
GIC_AT(ncclGinProxyGpuCtx_t, cis, 24);
GIC_AT(ncclGinProxyGpuCtx_t, counters, 32);
GIC_AT(ncclGinProxyGpuCtx_t, signals, 40);
GIC_SIZE(ncclGinProxyGfd_t, 64);
GIC_IS(ncclGinProxyGfdQwords, 8);
GIC_IS(ncclGinProxyOpPut, 1);
GIC_IS(ncclGinProxyOpWithInline, 2);
GIC_IS(ncclGinProxyOpWithSignalInc, 8);
GIC_IS(ncclGinProxyOpWithSignalAdd, 16);

/* What a kernel is handed. Ranks are the side itself and `peers` others, each with a QP (GDAKI) or a queue of
 * descriptors (proxy) of its own: NCCL has one for each rank of a context. All others are the same other side. */
struct GicNccl {
    doca_gpu_dev_verbs_qp* qps; /* one a rank */
    ncclWindow_vidmem* window;  /* offsets in it are addresses */
    ncclGinProxyGpuCtx_t* proxy;
    ncclGinWindow_t handle; /* the window's, of the only context */
    uint64_t signal;        /* the last 8 bytes of the other side's payload memory */
    uint64_t sink;          /* the 8 bytes before the last 8 of this side's: what a signal's atomic leaves */
    uint32_t me;
    uint32_t peers;
    __be32 lkey;
    __be32 rkey;
};

/* The rank that a thread puts to. */
#ifdef __CUDACC__
__host__ __device__
#endif
    inline uint32_t
    gic_nccl_rank(uint32_t me, uint32_t peers, uint32_t thread) {
    uint32_t other = thread % peers;
    return other + (other >= me);
}

/* Hundreds of a variant's number. */
enum GicNcclKind : uint32_t {
    kGicShared = 0,      /* any number of threads on a QP */
    kGicOwn = 1,         /* one thread a QP */
    kGicCpuDoorbell = 2, /* any number, and a CPU thread rings */
    kGicProxy = 3,
    kGicOwnProxy = 4, /* one thread a queue */
};
