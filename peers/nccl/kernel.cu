// NCCL GIN's ways of posting: DOCA GPUNetIO's device functions, as NCCL calls them and composed of their own parts, and
// the ncclGin API on both of its backends.
#include "gic_peer.cuh"
#include "layout.h"

#include <nccl_device/gin/gin_device_api.h>

// As a kernel's argument it would be in constant memory too.
extern "C" {
__constant__ ncclDevComm gic_nccl_comm;
}

namespace {

using Mode = doca_gpu_dev_verbs_resource_sharing_mode;
constexpr Mode kExclusive = DOCA_GPUNETIO_VERBS_RESOURCE_SHARING_MODE_EXCLUSIVE;
constexpr Mode kCta = DOCA_GPUNETIO_VERBS_RESOURCE_SHARING_MODE_CTA;
constexpr Mode kGpu = DOCA_GPUNETIO_VERBS_RESOURCE_SHARING_MODE_GPU;

using Handler = doca_gpu_dev_verbs_nic_handler;
constexpr Handler kAuto = DOCA_GPUNETIO_VERBS_NIC_HANDLER_AUTO;

using Sync = doca_gpu_dev_verbs_sync_scope;
constexpr Sync kSyncGpu = DOCA_GPUNETIO_VERBS_SYNC_SCOPE_GPU;
constexpr Sync kSyncSystem = DOCA_GPUNETIO_VERBS_SYNC_SCOPE_SYS;
constexpr Sync kSyncCta = DOCA_GPUNETIO_VERBS_SYNC_SCOPE_CTA;

constexpr auto kCqe = DOCA_GPUNETIO_IB_MLX5_WQE_CTRL_CQ_UPDATE;
constexpr uint32_t kWrite = DOCA_GPUNETIO_IB_MLX5_OPCODE_RDMA_WRITE;
constexpr int kBadSize = -22;

__device__ __forceinline__ const GicNccl& image(uint64_t state) {
    return *reinterpret_cast<const GicNccl*>(state);
}

// Calls f with a value of `bytes` bytes; false if there is no such type. No jump table: 8 bytes are asked for first.
template <class F>
__device__ __forceinline__ bool with_value(uint32_t bytes, uint64_t value, F f) {
    if (bytes == 8) {
        f(value);
        return true;
    }
    if (bytes == 4) {
        f(static_cast<uint32_t>(value));
        return true;
    }
    return false;
}

// A QP, the keys in the WQEs' byte order, and the last operation's ticket.
template <Mode mode>
struct Doca {
    doca_gpu_dev_verbs_qp* qp;
    __be32 lkey, rkey;
    doca_gpu_dev_verbs_ticket_t ticket = 0;

    __device__ Doca(uint64_t state, uint32_t thread) {
        const GicNccl& s = image(state);
        qp = s.qps + gic_nccl_rank(s.me, s.peers, thread);
        lkey = s.lkey;
        rkey = s.rkey;
    }
    __device__ __forceinline__ int complete() {
        return doca_gpu_dev_verbs_poll_cq_at<mode>(doca_gpu_dev_verbs_qp_get_cq_sq(qp), ticket);
    }
};

template <Mode mode, Handler handler = kAuto>
struct Put : Doca<mode> {
    using Doca<mode>::Doca;
    __device__ __forceinline__ void issue(uint64_t remote, uint64_t local, uint32_t bytes, uint64_t) {
        doca_gpu_dev_verbs_put<mode, handler>(this->qp, {remote, this->rkey}, {local, this->lkey}, bytes,
                                              &this->ticket);
    }
};

template <Mode mode>
struct PutValue : Doca<mode> {
    bool fits = true;
    using Doca<mode>::Doca;
    __device__ __forceinline__ void issue(uint64_t remote, uint64_t, uint32_t bytes, uint64_t value) {
        fits = with_value(bytes, value, [&](auto typed) {
            doca_gpu_dev_verbs_p<decltype(typed), mode>(this->qp, {remote, this->rkey}, typed, &this->ticket);
        });
    }
    __device__ __forceinline__ int complete() { return fits ? Doca<mode>::complete() : kBadSize; }
};

template <Mode mode>
struct PutSignal : Doca<mode> {
    uint64_t signal, sink;
    __device__ PutSignal(uint64_t state, uint32_t thread) : Doca<mode>(state, thread) {
        signal = image(state).signal;
        sink = image(state).sink;
    }
    __device__ __forceinline__ void issue(uint64_t remote, uint64_t local, uint32_t bytes, uint64_t) {
        doca_gpu_dev_verbs_put_signal<DOCA_GPUNETIO_VERBS_SIGNAL_OP_ADD, mode>(
            this->qp, {remote, this->rkey}, {local, this->lkey}, bytes, {signal, this->rkey},
            {sink, this->lkey}, 1, &this->ticket);
    }
};

// A batch in one reservation, one publication and one doorbell.
template <Mode mode>
struct Batch : Doca<mode> {
    uint32_t size = 1, filled = 0;
    uint64_t first = 0;
    using Doca<mode>::Doca;
    __device__ void batches_of(uint32_t n) { size = n; }
    __device__ __forceinline__ void post(uint64_t remote, uint64_t local, uint32_t bytes, uint64_t,
                                         bool last) {
        if (filled == 0) first = doca_gpu_dev_verbs_reserve_wq_slots<mode>(this->qp, size);
        uint64_t index = first + filled++;
        doca_gpu_dev_verbs_wqe_prepare_write(this->qp, doca_gpu_dev_verbs_get_wqe_ptr(this->qp, index), index,
                                             kWrite, kCqe, 0, remote, this->rkey, local, this->lkey, bytes);
        if (!last) return;
        doca_gpu_dev_verbs_mark_wqes_ready<mode>(this->qp, first, index);
        doca_gpu_dev_verbs_submit<mode, kSyncGpu, kAuto>(this->qp, index + 1);
        this->ticket = index;
        filled = 0;
    }
};

// The library's warp call: 32 puts, one doorbell.
template <Mode mode>
struct Warp : Doca<mode> {
    using Doca<mode>::Doca;
    __device__ __forceinline__ void post(uint64_t remote, uint64_t local, uint32_t bytes, uint64_t, bool) {
        doca_gpu_dev_verbs_put<mode, kAuto, DOCA_GPUNETIO_VERBS_EXEC_SCOPE_WARP>(
            this->qp, {remote, this->rkey}, {local, this->lkey}, bytes, &this->ticket);
    }
    __device__ __forceinline__ int complete() {
        // The last lane's WQE is the last.
        this->ticket = __shfl_sync(DOCA_GPUNETIO_VERBS_WARP_FULL_MASK, this->ticket, 31);
        int status = doca_gpu_dev_verbs_get_lane_id() == 0 ? Doca<mode>::complete() : 0;
        return __shfl_sync(DOCA_GPUNETIO_VERBS_WARP_FULL_MASK, status, 0);
    }
};

// A step of doca_gpu_dev_verbs_put_thread, of what it calls, or of the completion's poll.
enum class Step {
    none,
    chunks,
    space_check,
    reserve_atomic,
    publish,
    publish_release,
    publish_acquire,
    handler_check,
    lock,
    lock_acquire,
    unlock_release,
    producer_max,
    max_acquire,
    early_doorbell,
    early_fence,
    late_fence,
    consumer_acquire,
    consumer_max,
};

// The same calls in the same order, without one of them.
template <Mode mode, Step without, Sync sync = kSyncGpu,
          doca_gpu_dev_verbs_gpu_code_opt opt = DOCA_GPUNETIO_VERBS_GPU_CODE_OPT_DEFAULT>
struct Steps : Doca<mode> {
    using Doca<mode>::Doca;
    __host__ __device__ static constexpr bool has(Step step) { return without != step; }

    __device__ __forceinline__ uint64_t reserve(uint32_t count) {
        if constexpr (!has(Step::space_check))
            return doca_gpu_dev_verbs_reserve_wq_slots<mode, DOCA_GPUNETIO_VERBS_QP_SQ, false>(this->qp,
                                                                                               count);
        else if constexpr (!has(Step::reserve_atomic)) {
            uint64_t first =
                doca_gpu_dev_verbs_reserve_wq_slots<kExclusive, DOCA_GPUNETIO_VERBS_QP_SQ, false>(this->qp,
                                                                                                  count);
            doca_gpu_dev_verbs_wait_until_slot_available<mode>(this->qp, first + count - 1);
            return first;
        } else
            return doca_gpu_dev_verbs_reserve_wq_slots<mode>(this->qp, count);
    }

    __device__ __forceinline__ void write(uint64_t index, uint64_t remote, uint64_t local, uint64_t bytes) {
        doca_gpu_dev_verbs_wqe* wqe = doca_gpu_dev_verbs_get_wqe_ptr(this->qp, index);
        if (bytes > 0)
            doca_gpu_dev_verbs_wqe_prepare_write(this->qp, wqe, index, kWrite, kCqe, 0, remote, this->rkey,
                                                 local, this->lkey, bytes);
        else
            doca_gpu_dev_verbs_wqe_prepare_nop(this->qp, wqe, index, kCqe);
    }

    __device__ __forceinline__ void publish(uint64_t first, uint64_t last) {
        if constexpr (has(Step::publish_release) && has(Step::publish_acquire)) {
            if constexpr (has(Step::publish)) doca_gpu_dev_verbs_mark_wqes_ready<mode>(this->qp, first, last);
        } else {
            static_assert(mode == kGpu, "its fences are of this mode");
            cuda::atomic_ref<uint64_t, cuda::thread_scope_device> ready(this->qp->sq_ready_index);
            if constexpr (has(Step::publish_release)) doca_gpu_dev_verbs_fence_release<kSyncGpu>();
            while (ready.load(cuda::memory_order_relaxed) != first)
                continue;
            if constexpr (has(Step::publish_acquire)) doca_gpu_dev_verbs_fence_acquire<kSyncGpu>();
            ready.store(last + 1, cuda::memory_order_relaxed);
        }
    }

    template <bool fence>
    __device__ __forceinline__ void ring(uint64_t index) {
        if constexpr (fence)
            doca_gpu_dev_verbs_ring_db<sync, opt>(this->qp, index);
        else
            doca_gpu_dev_verbs_store_relaxed_mmio(
                reinterpret_cast<uint64_t*>(__ldg(reinterpret_cast<uintptr_t*>(&this->qp->sq_db))),
                doca_gpu_dev_verbs_prepare_db(this->qp, index));
    }

    __device__ __forceinline__ void submit_db(uint64_t index) {
        if constexpr (has(Step::lock)) {
            if constexpr (has(Step::lock_acquire))
                doca_gpu_dev_verbs_lock<mode>(&this->qp->sq_lock);
            else
                while (atomicCAS(&this->qp->sq_lock, 0, 1) != 0)
                    continue;
        }
        uint64_t old = 0;
        if constexpr (has(Step::producer_max))
            old = doca_gpu_dev_verbs_atomic_max<uint64_t, mode, has(Step::max_acquire)>(&this->qp->sq_wqe_pi,
                                                                                        index);
        if (old < index) {
            if constexpr (has(Step::early_doorbell)) ring<has(Step::early_fence)>(index);
            doca_priv_gpu_dev_verbs_update_dbr(this->qp, index);
            ring<has(Step::late_fence)>(index);
        }
        if constexpr (has(Step::lock)) {
            if constexpr (has(Step::unlock_release))
                doca_gpu_dev_verbs_unlock<mode>(&this->qp->sq_lock);
            else
                cuda::atomic_ref<int, cuda::thread_scope_device>(this->qp->sq_lock)
                    .store(0, cuda::memory_order_relaxed);
        }
    }

    static constexpr bool kOwnSubmit = !has(Step::lock) || !has(Step::lock_acquire) ||
                                       !has(Step::unlock_release) || !has(Step::producer_max) ||
                                       !has(Step::max_acquire) || !has(Step::early_doorbell) ||
                                       !has(Step::early_fence) || !has(Step::late_fence);

    __device__ __forceinline__ void submit(uint64_t index) {
        if constexpr (kOwnSubmit || opt != DOCA_GPUNETIO_VERBS_GPU_CODE_OPT_DEFAULT) {
            auto* handler = reinterpret_cast<const int*>(&this->qp->nic_handler);
            if (__ldg(handler) != DOCA_GPUNETIO_VERBS_NIC_HANDLER_GPU_SM_DB)
                doca_gpu_dev_verbs_submit_proxy<mode, sync>(this->qp, index);
            else if constexpr (kOwnSubmit)
                submit_db(index);
            else
                doca_gpu_dev_verbs_submit_db<mode, sync, opt>(this->qp, index);
        } else if constexpr (has(Step::handler_check))
            doca_gpu_dev_verbs_submit<mode, sync, kAuto>(this->qp, index);
        else
            doca_gpu_dev_verbs_submit<mode, sync, DOCA_GPUNETIO_VERBS_NIC_HANDLER_GPU_SM_DB>(this->qp, index);
    }

    __device__ __forceinline__ void issue(uint64_t remote, uint64_t local, uint32_t bytes, uint64_t) {
        constexpr uint64_t kMost = DOCA_GPUNETIO_VERBS_MAX_TRANSFER_SIZE;
        uint64_t left = bytes, first, last;
        if constexpr (has(Step::chunks)) {
            uint32_t chunks = doca_gpu_dev_verbs_div_ceil_aligned_pow2_32bits(
                left, DOCA_GPUNETIO_VERBS_MAX_TRANSFER_SIZE_SHIFT);
            chunks = chunks > 1 ? chunks : 1;
            first = reserve(chunks);
#pragma unroll 1
            for (uint64_t i = 0; i < chunks; i++) {
                last = first + i;
                uint64_t part = left > kMost ? kMost : left;
                write(last, remote + i * kMost, local + i * kMost, part);
                left -= part;
            }
        } else {
            first = last = reserve(1);
            write(last, remote, local, left);
        }
        publish(first, last);
        submit(last + 1);
        this->ticket = last;
    }

    __device__ __forceinline__ int complete() {
        if constexpr (has(Step::consumer_acquire) && has(Step::consumer_max)) return Doca<mode>::complete();
        doca_gpu_dev_verbs_cq* cq = doca_gpu_dev_verbs_qp_get_cq_sq(this->qp);
        int status = doca_priv_gpu_dev_verbs_poll_cq_at<mode>(cq, this->ticket);
        if (status != 0) return status;
        if constexpr (has(Step::consumer_acquire)) doca_gpu_dev_verbs_fence_acquire<kSyncSystem>();
        if constexpr (has(Step::consumer_max))
            doca_gpu_dev_verbs_atomic_max<uint64_t, mode>(&cq->cqe_ci, this->ticket + 1);
        return 0;
    }
};

// The public API: backend, handles and keys are looked up in it.
struct Gin {
    ncclGin gin;
    ncclTeam team;
    int peer;
    ncclWindow_t window;

    __device__ Gin(uint64_t state, uint32_t thread)
        : gin(gic_nccl_comm, 0), team(ncclTeamWorld(gic_nccl_comm)) {
        const GicNccl& s = image(state);
        peer = static_cast<int>(gic_nccl_rank(s.me, s.peers, thread));
        window = s.window;
    }
    __device__ __forceinline__ void issue(uint64_t remote, uint64_t local, uint32_t bytes, uint64_t) {
        gin.put(team, peer, window, remote, window, local, bytes);
    }
    __device__ __forceinline__ void post(uint64_t remote, uint64_t local, uint32_t bytes, uint64_t, bool) {
        issue(remote, local, bytes, 0);
    }
    // All ranks' queues. Errors aren't told.
    __device__ __forceinline__ int complete() {
        gin.flush(ncclCoopThread());
        return 0;
    }
};

// To one rank after the other, so that a flush finds work that was posted to all.
struct GinInTurn : Gin {
    uint32_t me, peers, next;
    __device__ GinInTurn(uint64_t state, uint32_t thread) : Gin(state, thread) {
        me = image(state).me;
        peers = image(state).peers;
        next = thread % peers;
    }
    __device__ __forceinline__ void issue(uint64_t remote, uint64_t local, uint32_t bytes, uint64_t) {
        gin.put(team, static_cast<int>(next + (next >= me)), window, remote, window, local, bytes);
        next = next + 1 == peers ? 0 : next + 1;
    }
};

struct GinValue : Gin {
    bool fits = true;
    using Gin::Gin;
    __device__ __forceinline__ void issue(uint64_t remote, uint64_t, uint32_t bytes, uint64_t value) {
        fits = with_value(bytes, value, [&](auto typed) { gin.putValue(team, peer, window, remote, typed); });
    }
    __device__ __forceinline__ int complete() { return fits ? Gin::complete() : kBadSize; }
};

struct GinSignal : Gin {
    using Gin::Gin;
    __device__ __forceinline__ void issue(uint64_t remote, uint64_t local, uint32_t bytes, uint64_t) {
        gin.put(team, peer, window, remote, window, local, bytes, ncclGin_SignalInc{0});
    }
};

// The scopes that a caller asks for and has: the two last arguments, in the definition's order.
template <cuda::thread_scope required, cuda::thread_scope given>
struct GinScopes : Gin {
    using Gin::Gin;
    __device__ __forceinline__ void issue(uint64_t remote, uint64_t local, uint32_t bytes, uint64_t) {
        gin.put(team, peer, window, remote, window, local, bytes, ncclGin_None{}, ncclGin_None{},
                ncclCoopThread{}, ncclGin_None{}, required, given);
    }
};
using GinSystemRelease = GinScopes<cuda::thread_scope_system, cuda::thread_scope_device>;
using GinReleased = GinScopes<cuda::thread_scope_thread, cuda::thread_scope_system>;

// The proxy alone looks at the order.
struct GinRelaxedFlush : Gin {
    using Gin::Gin;
    __device__ __forceinline__ int complete() {
        gin.flush(ncclCoopThread(), cuda::memory_order_relaxed);
        return 0;
    }
};

// The descriptor is built in shared memory.
struct GinSharedDescriptor : Gin {
    using Gin::Gin;
    __device__ __forceinline__ void issue(uint64_t remote, uint64_t local, uint32_t bytes, uint64_t) {
        __shared__ ncclGinDescriptorSmem descriptor;
        gin.put(team, peer, window, remote, window, local, bytes, ncclGin_None{}, ncclGin_None{},
                ncclCoopThread{}, ncclGin_DescriptorSmem{&descriptor});
    }
};

// The proxy backend's own call, with context, peer and handles at hand.
struct Proxy {
    ncclGinProxyGpuCtx_t* context;
    ncclGinWindow_t handle;
    int peer;

    __device__ Proxy(uint64_t state, uint32_t thread) {
        const GicNccl& s = image(state);
        context = s.proxy;
        handle = s.handle;
        peer = static_cast<int>(gic_nccl_rank(s.me, s.peers, thread));
    }
    __device__ __forceinline__ void issue(uint64_t remote, uint64_t local, uint32_t bytes, uint64_t) {
        alignas(16) ncclGinProxyGfd_t gfd;
        nccl::gin::proxy::put<ncclCoopThread, uint64_t>(
            ncclCoopThread(), &gfd, context, peer, handle, remote, 0, false, handle, local, bytes, false, 0,
            ncclGinSignalInc, 0, false, 0, cuda::thread_scope_thread, cuda::thread_scope_device);
    }
    __device__ __forceinline__ void post(uint64_t remote, uint64_t local, uint32_t bytes, uint64_t, bool) {
        issue(remote, local, bytes, 0);
    }
    // This peer's queue alone.
    __device__ __forceinline__ int complete() {
        nccl::gin::proxy::flush(context, peer, cuda::memory_order_acquire);
        return 0;
    }
};

struct ProxyValue : Proxy {
    bool fits = true;
    using Proxy::Proxy;
    __device__ __forceinline__ void issue(uint64_t remote, uint64_t, uint32_t bytes, uint64_t value) {
        fits = with_value(bytes, value, [&](auto typed) {
            alignas(16) ncclGinProxyGfd_t gfd;
            nccl::gin::proxy::put<ncclCoopThread, decltype(typed)>(
                ncclCoopThread(), &gfd, context, peer, handle, remote, typed, true, nullptr, 0, sizeof typed,
                false, 0, ncclGinSignalInc, 0, false, 0, cuda::thread_scope_thread,
                cuda::thread_scope_device);
        });
    }
    __device__ __forceinline__ int complete() { return fits ? Proxy::complete() : kBadSize; }
};

// A step of nccl::gin::proxy::put and of its postGfd.
enum class ProxyStep {
    fence,
    credit_check,
    claim_atomic
};

template <ProxyStep without>
struct ProxySteps : Proxy {
    using Proxy::Proxy;
    __host__ __device__ static constexpr bool has(ProxyStep step) { return without != step; }

    __device__ __forceinline__ void issue(uint64_t remote, uint64_t local, uint32_t bytes, uint64_t) {
        using nccl::utility::loadConst;
        if constexpr (has(ProxyStep::fence))
            cuda::atomic_thread_fence(cuda::memory_order_release, cuda::thread_scope_system);
        ncclGinProxyOp_t op;
        nccl::gin::proxy::constructProxyOp(op, false, false, ncclGinSignalInc, false);
        alignas(16) ncclGinProxyGfd_t gfd;
        nccl::gin::proxy::buildGfd<uint64_t>(&gfd, op, 0, false, local, handle, remote, handle, bytes, 0, 0,
                                             0);

        uint32_t& claimed = loadConst(&context->pis)[peer];
        uint32_t& done = loadConst(&context->cis)[peer];
        // The depth is loaded twice there, once as a value that may change.
        ncclGinProxyGfd_t* queue = loadConst(&context->queues) + uint32_t(peer) * context->queueSize;
        uint32_t depth = loadConst(&context->queueSize);
        uint32_t index;
        if constexpr (has(ProxyStep::claim_atomic))
            index = cuda::atomic_ref<uint32_t, cuda::thread_scope_system>(claimed).fetch_add(
                1, cuda::memory_order_relaxed);
        else
            index = claimed++;
        if constexpr (has(ProxyStep::credit_check)) {
            cuda::atomic_ref<uint32_t, cuda::thread_scope_system> consumed(done);
            while (depth <= index - consumed.load(cuda::memory_order_relaxed))
                continue;
        }
        auto* slot = reinterpret_cast<uint4*>(&queue[index & (depth - 1)]);
#pragma unroll
        for (int i = 0; i < 4; i++)
            __stwt(slot + i, reinterpret_cast<uint4*>(&gfd)[i]);
    }
};

template <Step without>
using Without = Steps<kGpu, without>;
template <Step without>
using ExclusiveWithout = Steps<kExclusive, without>;
using GpuSystemFence = Steps<kGpu, Step::none, kSyncSystem>;
using GpuCtaFence = Steps<kGpu, Step::none, kSyncCta>;
using GpuAsyncStore = Steps<kGpu, Step::none, kSyncGpu, DOCA_GPUNETIO_VERBS_GPU_CODE_OPT_ASYNC_STORE_RELEASE>;
using CtaSystemFence = Steps<kCta, Step::none, kSyncSystem>;
using CtaCtaFence = Steps<kCta, Step::none, kSyncCta>;
using ExclusiveSystemFence = Steps<kExclusive, Step::none, kSyncSystem>;
using ExclusiveCtaFence = Steps<kExclusive, Step::none, kSyncCta>;

}  // namespace

#define SHARED_ENTRIES(name, mode)                                                                           \
    GIC_PEER_LATENCY(name##_put, Put<mode>)                                                                  \
    GIC_PEER_LATENCY(name##_put_value, PutValue<mode>)                                                       \
    GIC_PEER_LATENCY(name##_put_signal, PutSignal<mode>)                                                     \
    GIC_PEER_RATE(name, Batch<mode>)                                                                         \
    GIC_PEER_RATE(name##_warp, Warp<mode>)                                                                   \
    GIC_PEER_ROUND_TRIP(name, Put<mode>)
#define ORDERED_ENTRIES(name, P)                                                                             \
    GIC_PEER_LATENCY(name##_put, P)                                                                          \
    GIC_PEER_ROUND_TRIP(name, P)

SHARED_ENTRIES(gpu, kGpu)
SHARED_ENTRIES(cta, kCta)
SHARED_ENTRIES(exclusive, kExclusive)
// The QP's word says that a CPU rings.
SHARED_ENTRIES(cpu_doorbell, kGpu)

ORDERED_ENTRIES(gpu_sys_fence, GpuSystemFence)
ORDERED_ENTRIES(gpu_cta_fence, GpuCtaFence)
ORDERED_ENTRIES(gpu_async_store, GpuAsyncStore)
ORDERED_ENTRIES(cta_sys_fence, CtaSystemFence)
ORDERED_ENTRIES(cta_cta_fence, CtaCtaFence)
ORDERED_ENTRIES(exclusive_sys_fence, ExclusiveSystemFence)
ORDERED_ENTRIES(exclusive_cta_fence, ExclusiveCtaFence)

// On both backends: which is the communicator's.
GIC_PEER_LATENCY(gin_put, Gin)
GIC_PEER_LATENCY(gin_put_value, GinValue)
GIC_PEER_LATENCY(gin_put_signal, GinSignal)
GIC_PEER_RATE(gin, Gin)
GIC_PEER_RATE(gin_warp, Gin)
GIC_PEER_ROUND_TRIP(gin, Gin)
ORDERED_ENTRIES(gin_sys_release, GinSystemRelease)
GIC_PEER_LATENCY(gin_in_turn_put, GinInTurn)

GIC_PEER_LATENCY(no_chunks_put, Without<Step::chunks>)
GIC_PEER_LATENCY(no_space_check_put, Without<Step::space_check>)
GIC_PEER_LATENCY(no_reserve_atomic_put, Without<Step::reserve_atomic>)
GIC_PEER_LATENCY(no_publish_put, Without<Step::publish>)
GIC_PEER_LATENCY(no_publish_release_put, Without<Step::publish_release>)
GIC_PEER_LATENCY(no_publish_acquire_put, Without<Step::publish_acquire>)
GIC_PEER_LATENCY(no_handler_check_put, Without<Step::handler_check>)
GIC_PEER_LATENCY(no_lock_put, Without<Step::lock>)
GIC_PEER_LATENCY(no_lock_acquire_put, Without<Step::lock_acquire>)
GIC_PEER_LATENCY(no_unlock_release_put, Without<Step::unlock_release>)
GIC_PEER_LATENCY(no_producer_max_put, Without<Step::producer_max>)
GIC_PEER_LATENCY(no_max_acquire_put, Without<Step::max_acquire>)
GIC_PEER_LATENCY(no_early_doorbell_put, Without<Step::early_doorbell>)
GIC_PEER_LATENCY(no_early_fence_put, Without<Step::early_fence>)
GIC_PEER_LATENCY(no_late_fence_put, Without<Step::late_fence>)
GIC_PEER_LATENCY(no_consumer_acquire_put, Without<Step::consumer_acquire>)
GIC_PEER_LATENCY(no_consumer_max_put, Without<Step::consumer_max>)

GIC_PEER_LATENCY(exclusive_no_space_check_put, ExclusiveWithout<Step::space_check>)
GIC_PEER_LATENCY(exclusive_no_lock_put, ExclusiveWithout<Step::lock>)
GIC_PEER_LATENCY(exclusive_no_producer_max_put, ExclusiveWithout<Step::producer_max>)
GIC_PEER_LATENCY(exclusive_no_early_doorbell_put, ExclusiveWithout<Step::early_doorbell>)
GIC_PEER_LATENCY(exclusive_no_early_fence_put, ExclusiveWithout<Step::early_fence>)
GIC_PEER_LATENCY(exclusive_no_late_fence_put, ExclusiveWithout<Step::late_fence>)

ORDERED_ENTRIES(gin_descriptor, GinSharedDescriptor)
ORDERED_ENTRIES(gin_released, GinReleased)
ORDERED_ENTRIES(gin_relaxed_flush, GinRelaxedFlush)
GIC_PEER_LATENCY(proxy_put_put, Proxy)
GIC_PEER_LATENCY(proxy_put_put_value, ProxyValue)
GIC_PEER_RATE(proxy_put, Proxy)
GIC_PEER_RATE(proxy_put_warp, Proxy)
GIC_PEER_ROUND_TRIP(proxy_put, Proxy)
GIC_PEER_LATENCY(no_fence_put, ProxySteps<ProxyStep::fence>)
GIC_PEER_LATENCY(no_credit_check_put, ProxySteps<ProxyStep::credit_check>)
GIC_PEER_LATENCY(no_claim_atomic_put, ProxySteps<ProxyStep::claim_atomic>)
