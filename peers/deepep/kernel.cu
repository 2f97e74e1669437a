// DeepEP: the IBGDA puts of its low-latency and internode kernels, on NVSHMEM's device state.
#include "compiled.cuh"
#include "gic_peer.cuh"
#include "ibgda_device.cuh"
#include "layout.h"
#include <limits>

namespace {

namespace ep = deep_ep::legacy;

// A put is a warp's call, in which the first lane does all but the shuffles for a message of one chunk: it is alone.
constexpr int kLane = 0;

struct Side {
    uint64_t shift;
    uint64_t signal;
    int pe;
    int qp;  // in DeepEP, the expert's number at the destination
    uint32_t queues;

    __device__ Side(uint64_t state, uint32_t thread) {
        const GicNvshmemSide& side = *reinterpret_cast<const GicNvshmemSide*>(state);
        shift = side.shift;
        signal = side.signal;
        pe = side.peer;
        queues = ep::ibgda_get_state()->num_rc_per_pe;
        qp = static_cast<int>(thread % queues);
    }
    template <bool rings>
    __device__ void put(uint64_t remote, uint64_t local, uint32_t bytes, int message) {
        ep::nvshmemi_ibgda_put_nbi_warp<rings>(remote + shift, local, bytes, pe, qp, kLane, message);
    }
    __device__ void add_to_signal() {
        ep::nvshmemi_ibgda_amo_nonfetch_add(reinterpret_cast<int*>(signal), 1, pe, qp);
    }
    __device__ int complete() {
        ep::nvshmemi_ibgda_quiet(pe, qp);
        return 0;
    }
};

// Puts take a free block for granted: a caller that streams has to wait before its share of the queue is used up.
struct Stream : Side {
    uint32_t share;
    uint32_t posted = 0;

    __device__ Stream(uint64_t state, uint32_t thread) : Side(state, thread) {
        uint32_t sharers = (gridDim.x + queues - 1) / queues;
        // Half a queue: signals have room, too. Of fours, so that the last one rang.
        share = ep::ibgda_get_rc(pe, qp)->tx_wq.nwqes / 2 / sharers / 4 * 4;
    }
    __device__ void count() {
        if (++posted % share == 0) Side::complete();
    }
};

// As internode kernels put: it rings at once.
struct Put : Stream {
    using Stream::Stream;
    __device__ void issue(uint64_t remote, uint64_t local, uint32_t bytes, uint64_t) {
        put<true>(remote, local, bytes, 0);
    }
    __device__ void post(uint64_t remote, uint64_t local, uint32_t bytes, uint64_t, bool) {
        put<true>(remote, local, bytes, 0);
        count();
    }
};

struct PutValue : Side {
    using Side::Side;
    __device__ void issue(uint64_t remote, uint64_t, uint32_t, uint64_t value) {
        ep::nvshmemi_ibgda_rma_p(reinterpret_cast<int*>(remote + shift), static_cast<int>(value), pe, qp);
    }
};

// As dispatch sends an expert one message: it doesn't ring, the count behind it does.
struct PutSignal : Side {
    using Side::Side;
    __device__ void issue(uint64_t remote, uint64_t local, uint32_t bytes, uint64_t) {
        put<false>(remote, local, bytes, 0);
        add_to_signal();
    }
};

// As dispatch sends an expert its messages: every fourth rings, and the count behind them all.
struct EveryFourth : Stream {
    using Stream::Stream;
    __device__ void post(uint64_t remote, uint64_t local, uint32_t bytes, uint64_t, bool) {
        put<false>(remote, local, bytes, static_cast<int>(posted));
        count();
    }
    __device__ int complete() {
        add_to_signal();
        return Side::complete();
    }
};

// A put of one chunk by one thread, from the functions that the library's consists of.
enum Step : uint32_t {
    kNone = 0,
    kKeys = 1,
    kReservation = 2,
    kFence = 4,
    kOrder = 8,
    kLock = 16,
    kRecordRelease = 32,
    kDoorbellRelease = 64,
};
template <uint32_t without>
struct Steps : Side {
    uint32_t lkey;
    uint32_t rkey;
    uint64_t next = 0;

    __device__ Steps(uint64_t state, uint32_t thread) : Side(state, thread) {
        const GicNvshmemSide& side = *reinterpret_cast<const GicNvshmemSide*>(state);
        lkey = side.lkey;
        rkey = side.rkey;
        if constexpr (without & kReservation) next = ep::ibgda_get_rc(pe, this->qp)->mvars.tx_wq.resv_head;
    }
    __device__ void ring(nvshmemi_ibgda_device_qp_t* queue, uint64_t index) {
        if constexpr (without & kRecordRelease)
            ep::st_na_relaxed(queue->tx_wq.dbrec, ep::HtoBE32(static_cast<uint32_t>(index) & 0xffff));
        else
            ep::ibgda_update_dbr(queue, index);
        if constexpr (without & kDoorbellRelease) {
            uint64_t word = uint64_t(ep::HtoBE32(queue->qpn << 8)) << 32 | ep::HtoBE32(uint16_t(index) << 8);
            asm volatile("st.relaxed.gpu.global.L1::no_allocate.b64 [%0], %1;" ::"l"(queue->tx_wq.bf),
                         "l"(word));
        } else {
            ep::ibgda_ring_db(queue, index);
        }
    }
    __device__ void submit(nvshmemi_ibgda_device_qp_t* queue, uint64_t index) {
        if constexpr (!(without & (kFence | kOrder | kLock | kRecordRelease | kDoorbellRelease))) {
            ep::ibgda_submit_requests<true>(queue, index, 1);
            return;
        }
        if constexpr (!(without & kFence)) __threadfence();
        auto& own = queue->mvars;
        auto* ready = reinterpret_cast<unsigned long long*>(
            ep::ibgda_get_state()->use_async_postsend ? queue->tx_wq.prod_idx : &own.tx_wq.ready_head);
        if constexpr (!(without & kOrder))
            while (atomicCAS(ready, index, index + 1) != index)
                ;
        if (ep::ibgda_get_state()->use_async_postsend) return;
        if constexpr (!(without & (kLock | kRecordRelease | kDoorbellRelease))) {
            ep::ibgda_post_send(queue, index + 1);
            return;
        }
        if constexpr (!(without & kLock)) ep::ibgda_lock_acquire(&own.post_send_lock);
        if (atomicMax(reinterpret_cast<unsigned long long*>(&own.tx_wq.prod_idx), index + 1) < index + 1)
            ring(queue, index + 1);
        if constexpr (!(without & kLock)) ep::ibgda_lock_release(&own.post_send_lock);
    }
    __device__ void issue(uint64_t remote, uint64_t local, uint32_t bytes, uint64_t) {
        auto* queue = ep::ibgda_get_rc(pe, this->qp);
        __be32 from = lkey, to = rkey;
        uint64_t at = remote, size = bytes;
        if constexpr (!(without & kKeys))
            size = min(size, ep::ibgda_get_lkey_and_rkey(local, &from, remote + shift, pe, &at, &to,
                                                         queue->dev_idx));
        uint64_t index;
        if constexpr (without & kReservation)
            index = next;
        else
            index = ep::ibgda_reserve_wqe_slots(queue, 1);
        next = index + 1;
        void* block = ep::ibgda_get_wqe_ptr(queue, index);
        ep::ibgda_write_rdma_write_wqe(queue, local, from, at, to, size, index, &block);
        submit(queue, index);
    }
    __device__ int complete() {
        auto* queue = ep::ibgda_get_rc(pe, this->qp);
        if constexpr (without & kReservation) queue->mvars.tx_wq.resv_head = next;
        if constexpr (without & kOrder)
            // The library's quiet asks the publication how far to wait.
            ep::ibgda_poll_cq(queue->tx_wq.cq, next);
        else
            return Side::complete();
        return 0;
    }
};

}  // namespace

GIC_PEER_LATENCY(put_put, Put)
GIC_PEER_LATENCY(put_put_value, PutValue)
GIC_PEER_LATENCY(put_put_signal, PutSignal)
GIC_PEER_RATE(put, Put)
GIC_PEER_ROUND_TRIP(put, Put)
GIC_PEER_RATE(every_fourth, EveryFourth)
GIC_PEER_LATENCY(no_chunks_put, Steps<kNone>)
GIC_PEER_LATENCY(no_keys_put, Steps<kKeys>)
GIC_PEER_LATENCY(no_reservation_put, Steps<kReservation>)
GIC_PEER_LATENCY(no_fence_put, Steps<kFence>)
GIC_PEER_LATENCY(no_order_put, Steps<kOrder>)
GIC_PEER_LATENCY(no_lock_put, Steps<kLock>)
GIC_PEER_LATENCY(no_record_release_put, Steps<kRecordRelease>)
GIC_PEER_LATENCY(no_doorbell_release_put, Steps<kDoorbellRelease>)
