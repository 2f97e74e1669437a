// MSCCL++: a port channel's puts, by its device API.
#include "gic_peer.cuh"
#include "layout.h"

namespace {

using mscclpp::TriggerData;
using mscclpp::TriggerFlag;
using mscclpp::TriggerSync;

// A channel is kept by value, as kernels do that take it from constant memory. Its calls take offsets.
struct Channel {
    mscclpp::PortChannelDeviceHandle channel;
    uint64_t local_base;
    uint64_t remote_base;

    __device__ Channel(uint64_t state, uint32_t) {
        const GicMscclpp& image = *reinterpret_cast<const GicMscclpp*>(state);
        channel = image.channel;
        local_base = image.local;
        remote_base = image.remote;
    }
    __device__ mscclpp::ProxyTrigger trigger(mscclpp::TriggerType type, uint64_t remote, uint64_t local,
                                             uint32_t bytes) const {
        return {type,  channel.dst_,        remote - remote_base, channel.src_, local - local_base,
                bytes, channel.semaphoreId_};
    }
    __device__ int complete() {
        channel.flush();
        return 0;
    }
};

struct Put : Channel {
    using Channel::Channel;
    __device__ void issue(uint64_t remote, uint64_t local, uint32_t bytes, uint64_t) {
        channel.put(remote - remote_base, local - local_base, bytes);
    }
    __device__ void post(uint64_t remote, uint64_t local, uint32_t bytes, uint64_t value, bool) {
        issue(remote, local, bytes, value);
    }
};

struct PutSignal : Channel {
    using Channel::Channel;
    __device__ void issue(uint64_t remote, uint64_t local, uint32_t bytes, uint64_t) {
        channel.putWithSignal(remote - remote_base, local - local_base, bytes);
    }
};

// The warp's puts are all pushed when its first lane pushes the flush.
struct PutOfWarp : Put {
    using Put::Put;
    __device__ int complete() {
        __syncwarp();
        if (threadIdx.x == 0) channel.flush();
        __syncwarp();
        return 0;
    }
};

// Completed here means popped by the consumer.
struct Push : Channel {
    uint64_t position = 0;
    using Channel::Channel;
    __device__ void issue(uint64_t remote, uint64_t local, uint32_t bytes, uint64_t) {
        position = channel.fifo_.push(trigger(TriggerData, remote, local, bytes));
    }
    __device__ void post(uint64_t remote, uint64_t local, uint32_t bytes, uint64_t value, bool) {
        issue(remote, local, bytes, value);
    }
    __device__ int complete() {
        channel.fifo_.sync(position);
        return 0;
    }
};

// The two calls that putWithSignalAndFlush consists of; without TriggerFlag, a put and its flush in one trigger.
template <mscclpp::TriggerType type>
struct Fused : Channel {
    uint64_t position = 0;
    using Channel::Channel;
    __device__ void issue(uint64_t remote, uint64_t local, uint32_t bytes, uint64_t) {
        position = channel.fifo_.push(trigger(type, remote, local, bytes));
    }
    __device__ int complete() {
        mscclpp::detail::waitFlush(channel.flushDonePos_, position, 1000000);
        return 0;
    }
};

// The steps of push(), of which one can be left out.
enum Step : uint32_t {
    kReservation = 1,
    kSpaceCheck = 2,
    kRelease = 4
};

template <uint32_t without>
struct Steps : Channel {
    uint64_t mine = 0;  // the head, where nobody else moves it

    __device__ Steps(uint64_t state, uint32_t thread) : Channel(state, thread) {
        if constexpr (without & kReservation) mine = *channel.fifo_.head;
    }
    __device__ void issue(uint64_t remote, uint64_t local, uint32_t bytes, uint64_t) {
        mscclpp::FifoDeviceHandle& fifo = channel.fifo_;
        mscclpp::ProxyTrigger put = trigger(TriggerData, remote, local, bytes);
        uint64_t position;
        if constexpr (without & kReservation)
            position = mine++;
        else
            position = mscclpp::atomicFetchAdd<uint64_t, mscclpp::scopeDevice>(fifo.head, 1,
                                                                               mscclpp::memoryOrderRelaxed);
        if (!(without & kSpaceCheck) && position >= fifo.size + *fifo.tailCache)
            fifo.sync(position - fifo.size);
        put.fields.reserved = ((position >> fifo.sizeShift) & 1) ^ 1;
        mscclpp::ProxyTrigger* slot = fifo.triggers + (position & fifo.sizeMask);
        if constexpr (without & kRelease)
            asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(slot), "l"(put.fst),
                         "l"(put.snd));
        else
            asm volatile("st.release.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(slot), "l"(put.fst),
                         "l"(put.snd));
    }
    // The flush is the library's, and reserves.
    __device__ int complete() {
        if constexpr (without & kReservation) *channel.fifo_.head = mine++;
        return Channel::complete();
    }
};

}  // namespace

GIC_PEER_LATENCY(put_put, Put)
GIC_PEER_LATENCY(put_put_signal, PutSignal)
GIC_PEER_RATE(put, Put)
GIC_PEER_RATE(put_warp, PutOfWarp)
GIC_PEER_ROUND_TRIP(put, Put)
GIC_PEER_LATENCY(fused_flush_put_signal, Fused<TriggerData | TriggerFlag | TriggerSync>)
GIC_PEER_LATENCY(push_put, Push)
GIC_PEER_RATE(push, Push)
GIC_PEER_LATENCY(no_flush_trigger_put, Fused<TriggerData | TriggerSync>)
GIC_PEER_LATENCY(no_reservation_put, Steps<kReservation>)
GIC_PEER_LATENCY(no_space_check_put, Steps<kSpaceCheck>)
GIC_PEER_LATENCY(no_release_put, Steps<kRelease>)
