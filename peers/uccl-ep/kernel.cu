// UCCL-EP's device code: the puts, the atomic and the quiet of uccl_ibgda.cuh on its FIFOs; the push alone; its ring
// buffer; and the push's sequence with a step left out.
#include "gic_peer.cuh"

#include "layout.h"
#include "uccl_ibgda.cuh"

namespace uccl_ep {

// As its kernels do it: an expert's index picks the channel, offsets are of the RDMA buffer.
template <bool kNormalMode, bool kSignal>
struct Put {
    State s;
    int expert;

    __device__ Put(uint64_t state, uint32_t thread)
        : s(*reinterpret_cast<const State*>(state)), expert(static_cast<int>(thread % kLLExpertMask)) {}

    __device__ __forceinline__ void issue(uint64_t remote, uint64_t local, uint32_t bytes, uint64_t) {
        uccl::nvshmemi_ibgda_put_nbi_warp<kNormalMode>(remote - s.remote, local - s.local, bytes, s.dst_rank,
                                                       expert, 0, 0, s.channels, kChannels, false, 0);
        if constexpr (kSignal)
            uccl::nvshmemi_ibgda_amo_nonfetch_add<kNormalMode>(s.signal, s.remote, 1, s.dst_rank, expert,
                                                               false, s.channels, kChannels, false, 0);
    }
    __device__ __forceinline__ void post(uint64_t remote, uint64_t local, uint32_t bytes, uint64_t value,
                                         bool) {
        issue(remote, local, bytes, value);
    }
    __device__ __forceinline__ int complete() {
        uccl::nvshmemi_ibgda_quiet(s.channels, kChannels);
        return 0;
    }
};

// The low-latency put's command.
__device__ __forceinline__ TransferCmd command(const State& s, uint64_t remote, uint64_t local,
                                               uint32_t bytes, int expert) {
    TransferCmd cmd{};
    cmd.cmd_type = make_cmd_type(CmdType::WRITE, false, false);
    cmd.req_rptr = static_cast<uint32_t>((remote - s.remote) >> kWriteAddrShiftLowLatency);
    cmd.req_lptr = static_cast<uint32_t>((local - s.local) >> kWriteAddrShiftLowLatency);
    cmd.bytes = bytes;
    cmd.dst_rank = static_cast<uint8_t>(s.dst_rank);
    cmd.expert_idx = pack_ll_expert_slot(expert, 1);
    cmd.atomic_val = 1;
    return cmd;
}

__device__ __forceinline__ int channel_of(int expert) {
    int c = expert % kChannels;
    return c % kNumProxyThs * kChannelPerProxy + c / kNumProxyThs;
}

// Handles that a caller keeps beside the loop: the pointer to one, or its fields.
struct ByPointer {
    d2hq::D2HHandle* at;
    __device__ explicit ByPointer(uint64_t channel) : at(reinterpret_cast<d2hq::D2HHandle*>(channel)) {}
    __device__ __forceinline__ d2hq::D2HHandle* get() { return at; }
};
struct ByValue {
    d2hq::D2HHandle handle;
    __device__ explicit ByValue(uint64_t channel) : handle(*reinterpret_cast<d2hq::D2HHandle*>(channel)) {}
    __device__ __forceinline__ d2hq::D2HHandle* get() { return &handle; }
};

template <class Handle>
struct Push {
    State s;
    int expert;
    Handle handle;
    uint64_t slot = 0;

    __device__ Push(uint64_t state, uint32_t thread)
        : s(*reinterpret_cast<const State*>(state)), expert(static_cast<int>(thread % kLLExpertMask)),
          handle(s.channels[channel_of(expert)]) {}

    __device__ __forceinline__ void issue(uint64_t remote, uint64_t local, uint32_t bytes, uint64_t) {
        handle.get()->atomic_set_and_commit(command(s, remote, local, bytes, expert), &slot);
    }
    __device__ __forceinline__ int complete() {
        uccl::wait_until_cmd_consumed(handle.get(), slot);
        return 0;
    }
};

// The push from the library's atomics, published by two stores as its branch for other vendors' GPUs does.
template <bool kReserve, bool kSpace, cuda::memory_order kPublish>
struct Steps {
    State s;
    int expert;
    ByPointer handle;
    uint64_t slot = 0;
    uint64_t next = 0;

    __device__ Steps(uint64_t state, uint32_t thread)
        : s(*reinterpret_cast<const State*>(state)), expert(static_cast<int>(thread % kLLExpertMask)),
          handle(s.channels[channel_of(expert)]) {
        // Commands of an earlier launch.
        if constexpr (!kReserve)
            next = mscclpp::atomicLoad(handle.get()->fifo.tail, mscclpp::memoryOrderAcquire);
    }

    __device__ __forceinline__ void issue(uint64_t remote, uint64_t local, uint32_t bytes, uint64_t) {
        mscclpp::FifoDeviceHandle& fifo = handle.get()->fifo;
        uint64_t fst, snd;
        d2hq::pack_transfer_cmd(command(s, remote, local, bytes, expert), fst, snd);
        if constexpr (kReserve)
            slot = mscclpp::atomicFetchAdd<uint64_t, mscclpp::scopeDevice>(fifo.head, 1,
                                                                           mscclpp::memoryOrderRelaxed);
        else
            slot = next++;
        if constexpr (kSpace)
            if (slot >= fifo.size + *fifo.tailCache) fifo.sync(slot - fifo.size, -1);
        mscclpp::ProxyTrigger* at = &fifo.triggers[slot % fifo.size];
        mscclpp::atomicStore(&at->snd, snd ^ uint64_t{1} << 63, mscclpp::memoryOrderRelaxed);
        mscclpp::atomicStore(&at->fst, fst, kPublish);
    }
    __device__ __forceinline__ int complete() {
        uccl::wait_until_cmd_consumed(handle.get(), slot);
        return 0;
    }
};

// The ring buffer: its tail moves when commands complete.
struct Ring {
    State s;
    int expert;
    DeviceToHostCmdBuffer* ring;
    uint64_t slot = 0;

    __device__ Ring(uint64_t state, uint32_t thread)
        : s(*reinterpret_cast<const State*>(state)), expert(static_cast<int>(thread % kLLExpertMask)),
          ring(reinterpret_cast<DeviceToHostCmdBuffer*>(s.channels[channel_of(expert)])) {}

    __device__ __forceinline__ void issue(uint64_t remote, uint64_t local, uint32_t bytes, uint64_t) {
        ring->atomic_set_and_commit(command(s, remote, local, bytes, expert), &slot);
    }
    __device__ __forceinline__ void post(uint64_t remote, uint64_t local, uint32_t bytes, uint64_t value,
                                         bool) {
        issue(remote, local, bytes, value);
    }
    __device__ __forceinline__ int complete() {
        while (ring->volatile_tail() <= slot) {
        }
        return 0;
    }
};

using LowLatency = Put<false, false>;
using LowLatencySignal = Put<false, true>;
using Normal = Put<true, false>;
using NormalSignal = Put<true, true>;
using PushByPointer = Push<ByPointer>;
using PushByValue = Push<ByValue>;
using Split = Steps<true, true, mscclpp::memoryOrderRelease>;
using NoFence = Steps<true, true, mscclpp::memoryOrderRelaxed>;
using NoSpace = Steps<true, false, mscclpp::memoryOrderRelease>;
using NoReserve = Steps<false, true, mscclpp::memoryOrderRelease>;

}  // namespace uccl_ep

GIC_PEER_LATENCY(low_latency_put, uccl_ep::LowLatency)
GIC_PEER_LATENCY(low_latency_put_signal, uccl_ep::LowLatencySignal)
GIC_PEER_RATE(low_latency, uccl_ep::LowLatency)
GIC_PEER_ROUND_TRIP(low_latency, uccl_ep::LowLatency)

GIC_PEER_LATENCY(normal_put, uccl_ep::Normal)
GIC_PEER_LATENCY(normal_put_signal, uccl_ep::NormalSignal)
GIC_PEER_RATE(normal, uccl_ep::Normal)
GIC_PEER_ROUND_TRIP(normal, uccl_ep::Normal)

GIC_PEER_LATENCY(push_put, uccl_ep::PushByPointer)
GIC_PEER_ROUND_TRIP(push, uccl_ep::PushByPointer)

GIC_PEER_LATENCY(ring_put, uccl_ep::Ring)
GIC_PEER_RATE(ring, uccl_ep::Ring)
GIC_PEER_ROUND_TRIP(ring, uccl_ep::Ring)

GIC_PEER_LATENCY(no_handle_put, uccl_ep::PushByValue)
GIC_PEER_LATENCY(split_put, uccl_ep::Split)
GIC_PEER_LATENCY(no_fence_put, uccl_ep::NoFence)
GIC_PEER_LATENCY(no_space_put, uccl_ep::NoSpace)
GIC_PEER_LATENCY(no_reserve_put, uccl_ep::NoReserve)
