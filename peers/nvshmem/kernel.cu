// NVSHMEM's device API, and its own inner functions, in the experiments' loops.
#include "gic_peer.cuh"

#include <nvshmem.h>
#include <nvshmemx.h>

#include <device/nvshmem_device_macros.h>
#include <non_abi/device/pt-to-pt/ibgda_device.cuh>
#include <non_abi/device/pt-to-pt/proxy_device.cuh>

#include "layout.h"

// The library defines its inner device functions for the device compilation alone.
#ifdef __CUDA_ARCH__
#define GIC_INNER(...) __VA_ARGS__
#else
#define GIC_INNER(...)
#endif

namespace {

enum class Op {
    put,
    value,
    signal
};

// What any user of the library holds: symmetric addresses and a PE.
struct User {
    uint64_t shift, signal;
    int pe;

    __device__ explicit User(uint64_t state) {
        const GicNvshmemSide* side = reinterpret_cast<const GicNvshmemSide*>(state);
        shift = side->shift;
        signal = side->signal;
        pe = side->peer;
    }
    template <class T>
    __device__ __forceinline__ T* symmetric(uint64_t remote) const {
        return reinterpret_cast<T*>(remote + shift);
    }
};

// The public API, IBGDA or proxy as the library's state says: quiet covers all queues.
template <Op O, bool Warp = false>
struct Public : User {
    __device__ Public(uint64_t state, uint32_t) : User(state) {}

    __device__ __forceinline__ void issue(uint64_t remote, uint64_t local, uint32_t bytes, uint64_t value) {
        if constexpr (O == Op::value) {
            nvshmem_int64_p(symmetric<int64_t>(remote), static_cast<int64_t>(value), pe);
        } else if constexpr (O == Op::signal) {
            nvshmem_putmem_signal_nbi(symmetric<void>(remote), reinterpret_cast<void*>(local), bytes,
                                      reinterpret_cast<uint64_t*>(signal), 1, NVSHMEM_SIGNAL_ADD, pe);
        } else if (bytes == 8) {
            nvshmem_int64_put_nbi(symmetric<int64_t>(remote), reinterpret_cast<int64_t*>(local), 1, pe);
        } else {
            nvshmem_putmem_nbi(symmetric<void>(remote), reinterpret_cast<void*>(local), bytes, pe);
        }
    }
    // When to ring is the library's choice.
    __device__ __forceinline__ void post(uint64_t remote, uint64_t local, uint32_t bytes, uint64_t value,
                                         bool) {
        issue(remote, local, bytes, value);
    }
    __device__ __forceinline__ int complete() {
        // One lane's quiet is enough for the puts that it has synchronized with.
        if constexpr (Warp) __syncwarp();
        if (!Warp || threadIdx.x == 0) nvshmem_quiet();
        if constexpr (Warp) __syncwarp();
        return 0;
    }
};

#ifdef __CUDA_ARCH__
// The one that the library takes for a thread of this block: its maps are by block.
__device__ __forceinline__ nvshmemi_ibgda_device_qp_t* queue_of(int pe, uint32_t block) {
    const nvshmemi_ibgda_device_state_t* state = ibgda_get_state();
    uint32_t rcs = state->num_rc_per_pe;
    if (rcs > 0) return &state->globalmem.rcs[pe * rcs + block % rcs];
    return &state->globalmem.dcis[block % state->num_shared_dcis];
}
#endif

// IBGDA's own entry functions, without the public wrappers, and the quiet of the one queue pair that they take.
template <Op O, bool Warp = false>
struct Internal : User {
    nvshmemi_ibgda_device_qp_t* qp;

    __device__ Internal(uint64_t state, uint32_t thread) : User(state) {
        GIC_INNER(qp = queue_of(pe, thread);)
    }
    __device__ __forceinline__ void issue(uint64_t remote, uint64_t local, uint32_t bytes, uint64_t value) {
        GIC_INNER(
            if constexpr (O == Op::value) {
                nvshmemi_ibgda_rma_p<int64_t>(symmetric<void>(remote), static_cast<int64_t>(value), pe);
            } else if constexpr (O == Op::signal) {
                nvshmemi_ibgda_put_signal<NVSHMEMI_THREADGROUP_THREAD>(
                    symmetric<void>(remote), reinterpret_cast<void*>(local), bytes,
                    reinterpret_cast<void*>(signal), 1, NVSHMEMI_AMO_SIGNAL_ADD, pe, true);
            } else {
                nvshmemi_ibgda_rma_nbi<NVSHMEMI_THREADGROUP_THREAD, NVSHMEMI_OP_PUT>(
                    symmetric<void>(remote), reinterpret_cast<void*>(local), bytes, pe);
            })
    }
    __device__ __forceinline__ void post(uint64_t remote, uint64_t local, uint32_t bytes, uint64_t value,
                                         bool) {
        issue(remote, local, bytes, value);
    }
    __device__ __forceinline__ int complete() {
        if constexpr (Warp) __syncwarp();
        if (!Warp || threadIdx.x == 0) {
            GIC_INNER(ibgda_quiet(qp);)
        }
        if constexpr (Warp) __syncwarp();
        return 0;
    }
};

// One thread's put of one chunk over RC, rung by the GPU, put together from the inner functions of which the library's
// own put consists, with steps left out.
enum Step : uint32_t {
    no_step = 0,
    qp_choice = 1,
    lookup = 2,
    space = 4,
    publish_fence = 8,
    publish = 16,  // and its fence
    lock = 32,
    record_fence = 64,
    doorbell_fence = 128,
};
template <uint32_t Without>
struct Steps : User {
    nvshmemi_ibgda_device_qp_t* qp;
    uint32_t lkey, rkey;
    uint64_t posted = 0;

    __host__ __device__ static constexpr bool with(uint32_t step) { return (Without & step) == 0; }

    __device__ Steps(uint64_t state, uint32_t thread) : User(state) {
        const GicNvshmemSide* side = reinterpret_cast<const GicNvshmemSide*>(state);
        lkey = side->lkey;
        rkey = side->rkey;
        GIC_INNER(qp = queue_of(pe, thread);)
    }
#ifdef __CUDA_ARCH__
    __device__ __forceinline__ void ring(uint64_t next) {
        if constexpr (with(lock)) ibgda_lock_acquire<NVSHMEMI_THREADGROUP_THREAD>(&qp->mvars.post_send_lock);
        auto* rung = reinterpret_cast<unsigned long long*>(&qp->mvars.tx_wq.prod_idx);
        if (atomicMax(rung, static_cast<unsigned long long>(next)) < next) {
            if constexpr (with(record_fence)) IBGDA_MEMBAR();
            ibgda_update_dbr(qp, next);
            if constexpr (with(doorbell_fence)) IBGDA_MEMBAR();
            ibgda_ring_db(qp, next);
        }
        if constexpr (with(lock)) ibgda_lock_release<NVSHMEMI_THREADGROUP_THREAD>(&qp->mvars.post_send_lock);
    }
    __device__ __forceinline__ void submit(uint64_t index) {
        if constexpr (!with(publish)) {
            ring(index + 1);
        } else {
            if constexpr (with(publish_fence)) IBGDA_MEMBAR_NO_OPTIMIZATION();
            auto* ready = reinterpret_cast<unsigned long long*>(&qp->mvars.tx_wq.ready_head);
            while (atomicCAS(ready, index, index + 1) != index) {
            }
            IBGDA_MFENCE();
            uint64_t batch = ~static_cast<uint64_t>(ibgda_get_state()->num_requests_in_batch - 1);
            if (ibgda_atomic_read(&qp->mvars.tx_wq.resv_head) == index + 1 ||
                (index & batch) != ((index + 1) & batch))
                ring(index + 1);
        }
    }
    __device__ __forceinline__ void put(uint64_t remote, uint64_t local, uint32_t bytes) {
        int through = ibgda_get_proxy_pe(pe);
        bool shared = true;
        if constexpr (with(qp_choice)) qp = ibgda_get_qp(through, &shared);
        nvshmemi_ibgda_device_dct_t* dct = ibgda_get_dct(through, qp->dev_idx);

        __be32 from = lkey, to = rkey;
        uint64_t at = remote;
        size_t length = bytes;
        bool host_memory = false;
        if constexpr (with(lookup)) {
            size_t here, there;
            ibgda_get_lkey(local, &from, &here, &host_memory, qp->dev_idx);
            ibgda_get_raddr_rkey(remote + shift, pe, through, &at, &to, &there, qp->dev_idx);
            length = ibgda_cal_transfer_size(bytes, here, there);
        }

        uint64_t index;
        if constexpr (with(space))
            index = ibgda_reserve_wqe_slots(qp, 1, shared);
        else
            index = atomicAdd(reinterpret_cast<unsigned long long*>(&qp->mvars.tx_wq.resv_head), 1ull);

        void* blocks[2] = {ibgda_get_wqe_ptr(qp, index), ibgda_get_wqe_ptr(qp, index + 1)};
        ibgda_write_rdma_write_wqe<true>(qp, dct, local, from, at, to, length, index, MLX5_WQE_CTRL_CQ_UPDATE,
                                         blocks);
        if (host_memory) __threadfence_system();
        submit(index);
        posted = index + 1;
    }
    __device__ __forceinline__ int wait() {
        if constexpr (with(publish)) {
            ibgda_quiet(qp);
            return 0;
        } else {
            // Its quiet asks the publication how far to wait.
            nvshmemi_ibgda_device_cq_t cq = *qp->tx_wq.cq;
            int error = 0;
            return ibgda_poll_cq(&cq, posted, &error);
        }
    }
#endif
    __device__ __forceinline__ void issue(uint64_t remote, uint64_t local, uint32_t bytes, uint64_t) {
        GIC_INNER(put(remote, local, bytes);)
    }
    __device__ __forceinline__ int complete() {
        GIC_INNER(return wait();)
        return 0;
    }
};

// The proxy's own entry functions, without the public wrappers.
template <Op O>
struct Direct : User {
    __device__ Direct(uint64_t state, uint32_t) : User(state) {}

    __device__ __forceinline__ void issue(uint64_t remote, uint64_t local, uint32_t bytes, uint64_t value) {
        GIC_INNER(if constexpr (O == Op::value)
                      nvshmemi_proxy_rma_p<int64_t>(symmetric<void>(remote), static_cast<int64_t>(value), pe);
                  else nvshmemi_proxy_rma_nbi(symmetric<void>(remote), reinterpret_cast<void*>(local), bytes,
                                              pe, NVSHMEMI_OP_PUT);)
    }
    __device__ __forceinline__ void post(uint64_t remote, uint64_t local, uint32_t bytes, uint64_t value,
                                         bool) {
        issue(remote, local, bytes, value);
    }
    __device__ __forceinline__ int complete() {
        GIC_INNER(nvshmemi_proxy_quiet(true);)
        return 0;
    }
};

}  // namespace

using PublicWarp = Public<Op::put, true>;
using InternalWarp = Internal<Op::put, true>;

// The library's state decides what these drive: IBGDA over RC or DC, with either doorbell, or the proxy's channel.
#define GIC_PUBLIC(name)                                                                                     \
    GIC_PEER_LATENCY(name##_put, Public<Op::put>)                                                            \
    GIC_PEER_LATENCY(name##_put_value, Public<Op::value>)                                                    \
    GIC_PEER_LATENCY(name##_put_signal, Public<Op::signal>)                                                  \
    GIC_PEER_RATE(name, Public<Op::put>)                                                                     \
    GIC_PEER_RATE(name##_warp, PublicWarp)                                                                   \
    GIC_PEER_ROUND_TRIP(name, Public<Op::put>)
GIC_PUBLIC(public)
GIC_PUBLIC(public_dc)
GIC_PUBLIC(cpu_doorbell)
GIC_PEER_LATENCY(public_idle_dci_put, Public<Op::put>)

GIC_PEER_LATENCY(internal_put, Internal<Op::put>)
GIC_PEER_LATENCY(internal_put_value, Internal<Op::value>)
GIC_PEER_LATENCY(internal_put_signal, Internal<Op::signal>)
GIC_PEER_RATE(internal, Internal<Op::put>)
GIC_PEER_RATE(internal_warp, InternalWarp)
GIC_PEER_ROUND_TRIP(internal, Internal<Op::put>)
GIC_PEER_LATENCY(internal_dc_put, Internal<Op::put>)

GIC_PEER_LATENCY(no_grouping_put, Steps<no_step>)
GIC_PEER_LATENCY(no_qp_choice_put, Steps<qp_choice>)
GIC_PEER_LATENCY(no_lookup_put, Steps<lookup>)
GIC_PEER_LATENCY(no_space_put, Steps<space>)
GIC_PEER_LATENCY(no_fence_publish_put, Steps<publish_fence>)
GIC_PEER_LATENCY(no_publish_put, Steps<publish>)
GIC_PEER_LATENCY(no_lock_put, Steps<lock>)
GIC_PEER_LATENCY(no_fence_record_put, Steps<record_fence>)
GIC_PEER_LATENCY(no_fence_doorbell_put, Steps<doorbell_fence>)

GIC_PEER_LATENCY(direct_put, Direct<Op::put>)
GIC_PEER_LATENCY(direct_put_value, Direct<Op::value>)
GIC_PEER_RATE(direct, Direct<Op::put>)
