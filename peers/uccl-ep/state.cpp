// UCCL-EP's queues on the harness's memory, and the CPU side: its own Fifo (fifo.cpp, as it is) or ring buffer, and a
// minimal loop around them in place of its proxy.
#include "gic_peer.h"
#include <cuda_runtime.h>

#include <cstdio>
#include <cstring>
#include <exception>
#include <new>

namespace {

// Fifo allocates by the CUDA runtime: here that is a stretch of the rig's memories, which are zeroed.
struct Stretch {
    uint64_t at, end;
    uint64_t take(uint64_t bytes) {
        uint64_t from = (at + 255) / 256 * 256;
        if (from + bytes > end) return 0;
        at = from + bytes;
        return from;
    }
};
thread_local Stretch device_memory, host_memory;

cudaError_t take_from(Stretch& stretch, void** at, size_t bytes) {
    *at = reinterpret_cast<void*>(stretch.take(bytes));
    return *at == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}
template <class T>
cudaError_t take_device(T** at, size_t bytes) {
    return take_from(device_memory, reinterpret_cast<void**>(at), bytes);
}
template <class T>
cudaError_t take_host(T** at, size_t bytes, unsigned = 0) {
    return take_from(host_memory, reinterpret_cast<void**>(at), bytes);
}
cudaError_t nothing(...) {
    return cudaSuccess;
}
cudaError_t device_0(int* device) {
    *device = 0;
    return cudaSuccess;
}
const char* error_text(cudaError_t) {
    return "the rig's memory is too small";
}

}  // namespace

#define cudaMalloc take_device
#define cudaHostAlloc take_host
#define cudaMallocHost take_host
#define cudaMemset nothing
#define cudaFree nothing
#define cudaFreeHost nothing
#define cudaGetDevice device_0
#define cudaDeviceGetPCIBusId nothing
#define cudaGetErrorString error_text
#define cudaGetLastError nothing

#include "d2h_queue_host.hpp"
#include "fifo.cpp"
#include "layout.h"

namespace {

using namespace uccl_ep;

constexpr uint32_t kOrder = 1u << 16;  // more than can be taken and not done
constexpr uint32_t kVisit = 32;

struct Channel {
    alignas(mscclpp::Fifo) uint8_t fifo_memory[sizeof(mscclpp::Fifo)];
    mscclpp::Fifo* fifo;
    DeviceToHostCmdBuffer* ring;
    uint64_t seen;     // ring: commands taken
    uint64_t done;     // ring: commands completed
    uint32_t pending;  // taken and not done
    bool blocked;      // a quiet is at the front and stays there until it is done
};

// The CPU's side; at the start of the rig's host memory, which kernels don't look at.
struct Side {
    Channel channel[kChannels];
    int used[kChannels];
    int in_use;
    int cursor;
    uint32_t visit;
    uint64_t taken;
    uint64_t done;
    uint8_t order[kOrder];  // channels of what is taken, by ticket
};

bool is_ring(uint32_t variant) {
    return variant == kRing;
}
bool is_normal(uint32_t variant) {
    return variant == kNormal;
}
Side* side_of(const GicPeerRig* rig) {
    return reinterpret_cast<Side*>(rig->host);
}

constexpr uint64_t kDeviceHead = 4096;

// Which channels commands can be in: those of the producers, and the first of each proxy, which gets quiets.
void find_used(Side* side, uint32_t producers) {
    bool used[kChannels] = {};
    for (int proxy = 0; proxy < kNumProxyThs; proxy++)
        used[proxy * kChannelPerProxy] = true;
    for (uint32_t expert = 0; expert < producers && expert < kChannels; expert++)
        used[expert % kNumProxyThs * kChannelPerProxy + expert / kNumProxyThs] = true;
    for (int i = 0; i < kChannels; i++)
        if (used[i]) side->used[side->in_use++] = i;
}

const GicPeerLayout kLayouts[] = {
    {"TransferCmd", sizeof(TransferCmd)},
    {"mscclpp::ProxyTrigger", sizeof(mscclpp::ProxyTrigger)},
    {"mscclpp::FifoDeviceHandle", sizeof(mscclpp::FifoDeviceHandle)},
    {"d2hq::D2HHandle", sizeof(d2hq::D2HHandle)},
    {"DeviceToHostCmdBuffer", sizeof(DeviceToHostCmdBuffer)},
};

bool within(const GicPeerRig* rig, uint64_t offset, uint64_t bytes) {
    return offset <= rig->bytes && bytes <= rig->bytes - offset;
}

// What a command asks for; false if that is nothing that the adapter's kernels ask for.
bool decode(const GicPeerRig* rig, const TransferCmd& cmd, GicPeerRequest* request) {
    *request = GicPeerRequest{};
    bool low_latency = !is_normal(rig->variant);
    switch (get_base_cmd(cmd.cmd_type)) {
    case CmdType::WRITE: {
        uint64_t from = decode_write_offset(cmd.req_lptr, low_latency);
        uint64_t to = decode_write_offset(cmd.req_rptr, low_latency);
        request->kind = GIC_PEER_WRITE;
        request->bytes = cmd.bytes;
        request->local = rig->local + from;
        request->remote = rig->remote + to;
        return within(rig, from, cmd.bytes) && within(rig, to, cmd.bytes);
    }
    case CmdType::ATOMIC:
        request->kind = GIC_PEER_FETCH_ADD;
        request->bytes = 8;
        request->remote = rig->remote + cmd.req_rptr;
        request->value = static_cast<uint64_t>(static_cast<int64_t>(cmd.value));
        return within(rig, cmd.req_rptr, 8);
    case CmdType::QUIET: request->kind = GIC_PEER_FLUSH; return true;
    default: return false;
    }
}

// These answer as gic_peer_take.
int take_from_fifo(const GicPeerRig* rig, Channel* channel, GicPeerRequest* request) {
    uint32_t most = is_normal(rig->variant) ? get_max_inflight_normal() : get_max_inflight_low_latency();
    if (channel->blocked || channel->pending >= most || channel->pending >= kQueueSize) return 0;
    mscclpp::ProxyTrigger trigger = channel->fifo->poll();
    if (trigger.fst == 0) return 0;
    if (!decode(rig, d2hq::decode_from_trigger(trigger), request)) return -1;
    if (request->kind == GIC_PEER_FLUSH)
        channel->blocked = true;
    else
        channel->fifo->pop();
    return 1;
}

int take_from_ring(const GicPeerRig* rig, Channel* channel, GicPeerRequest* request) {
    DeviceToHostCmdBuffer* ring = channel->ring;
    if (channel->seen == ring->volatile_head()) return 0;
    if (ring->volatile_load_cmd_type(static_cast<int>(channel->seen)) == CmdType::EMPTY) return 0;
    if (!decode(rig, ring->load_cmd_entry(static_cast<int>(channel->seen)), request)) return -1;
    channel->seen++;
    return 1;
}

void done_in_ring(Channel* channel) {
    uint64_t at = channel->done++;
    channel->ring->volatile_clear_cmd_type(static_cast<int>(at));
    channel->ring->mark_acked(at % channel->ring->capacity);
    channel->ring->advance_tail_from_mask();
}

void build(const GicPeerRig* rig, GicPeerBuilt* built) {
    auto* side = new (rig->host) Side{};
    find_used(side, rig->producers);

    auto* state = reinterpret_cast<State*>(rig->device);
    auto* channels = reinterpret_cast<uint64_t*>(rig->device + 256);
    auto* handles = reinterpret_cast<d2hq::D2HHandle*>(rig->device + 1024);
    state->channels = reinterpret_cast<const uint64_t*>(rig->device_at + 256);
    state->local = rig->local;
    state->remote = rig->remote;
    state->signal = rig->remote + rig->bytes - kSignalFromEnd;
    state->dst_rank = static_cast<int32_t>(1 - rig->me);

    for (int i = 0; i < kChannels; i++) {
        Channel* channel = &side->channel[i];
        if (is_ring(rig->variant)) {
            channel->ring = reinterpret_cast<DeviceToHostCmdBuffer*>(alloc_cmd_ring());
            channels[i] = reinterpret_cast<uint64_t>(channel->ring);
        } else {
            channel->fifo = new (channel->fifo_memory) mscclpp::Fifo(kQueueSize);
            handles[i].init_from_host_value(channel->fifo->deviceHandle());
            channels[i] = rig->device_at + 1024 + i * sizeof(d2hq::D2HHandle);
        }
    }
    built->state = rig->device_at;
    built->symbols = 0;
}

}  // namespace

extern "C" const GicPeerInfo* gic_peer_info(void) {
    static const GicPeerInfo info = {GIC_PEER_ABI, "UCCL-EP", GIC_UCCL_VERSION,
                                     sizeof(kLayouts) / sizeof(kLayouts[0]), kLayouts};
    return &info;
}

extern "C" void gic_peer_sizes(uint32_t variant, uint32_t, uint32_t, uint64_t* device, uint64_t* host) {
    uint64_t queue = is_ring(variant) ? sizeof(DeviceToHostCmdBuffer) + 256
                                      : kQueueSize * sizeof(mscclpp::ProxyTrigger) + 3 * 256;
    *device = kDeviceHead + kChannels * 2 * 256;
    *host = sizeof(Side) + kChannels * queue;
}

extern "C" int gic_peer_build(const GicPeerRig* rig, GicPeerBuilt* built, char* why, size_t why_bytes) {
    const char* wrong = nullptr;
    if (rig->abi != GIC_PEER_ABI)
        wrong = "the rig is of another version of gic_peer.h";
    else if (rig->variant >= kVariants)
        wrong = "there is no variant of that number";
    else if (rig->me > 1)
        wrong = "sides are 0 and 1";
    else if (rig->producers == 0)
        wrong = "there are no producers";
    else if (rig->variant == kNoReserve && rig->producers > kChannels)
        wrong = "no-reserve wants a FIFO for each producer, and UCCL-EP has 32";
    else if (rig->bytes < kSignalFromEnd || rig->bytes > uint64_t{1} << 32)
        wrong = "the payload memory has to have 64 bytes for the signal, and atomics' offsets have 32 bits";
    else if (rig->local % 16 != 0 || rig->remote % 16 != 0)
        wrong = "the payload memory isn't aligned to 16 bytes";
    if (wrong == nullptr) {
        uint64_t device, host;
        gic_peer_sizes(rig->variant, rig->qps, rig->producers, &device, &host);
        uint64_t host_at = reinterpret_cast<uint64_t>(rig->host);
        device_memory = {rig->device_at + kDeviceHead, rig->device_at + device};
        host_memory = {host_at + sizeof(Side), host_at + host};
        try {
            build(rig, built);
            return 0;
        } catch (const std::exception& e) {
            std::snprintf(why, why_bytes, "UCCL-EP's queues could not be made: %s", e.what());
            return 1;
        }
    }
    std::snprintf(why, why_bytes, "%s", wrong);
    return 1;
}

extern "C" int gic_peer_take(const GicPeerRig* rig, GicPeerRequest* request) {
    Side* side = side_of(rig);
    if (side->taken - side->done == kOrder) return 0;
    for (int turn = 0; turn < side->in_use; turn++) {
        int index = side->used[side->cursor];
        Channel* channel = &side->channel[index];
        int found = 0;
        if (side->visit < kVisit)
            found = is_ring(rig->variant) ? take_from_ring(rig, channel, request)
                                          : take_from_fifo(rig, channel, request);
        if (found < 0) return found;
        if (found > 0) {
            channel->pending++;
            side->visit++;
            side->order[side->taken % kOrder] = static_cast<uint8_t>(index);
            request->ticket = side->taken++;
            return 1;
        }
        side->visit = 0;
        if (++side->cursor == side->in_use) side->cursor = 0;
    }
    return 0;
}

extern "C" void gic_peer_done(const GicPeerRig* rig, uint64_t ticket) {
    Side* side = side_of(rig);
    for (; side->done <= ticket && side->done < side->taken; side->done++) {
        Channel* channel = &side->channel[side->order[side->done % kOrder]];
        channel->pending--;
        if (is_ring(rig->variant)) {
            done_in_ring(channel);
        } else if (channel->blocked && channel->pending == 0) {
            // Nothing is taken behind a quiet, so the last that is pending is it.
            channel->blocked = false;
            channel->fifo->pop();
        }
    }
}

extern "C" const char* gic_peer_consumer(void) {
    return "UCCL-EP's own Fifo, ring buffer and decoding, in a minimal consumer in place of its proxy's loop";
}
