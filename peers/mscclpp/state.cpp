/* MSCCL++: a port channel's device handle, and the CPU side of its FIFO. */
#include "gic_peer.h"
#include "layout.h"
#include "library_fifo.h"
#include <cstdio>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

namespace {

constexpr uint64_t kGpuAlign = 512;   /* cudaMalloc */
constexpr uint64_t kHostAlign = 4096; /* cudaHostAlloc */
constexpr mscclpp::MemoryId kSource = 0;
constexpr mscclpp::MemoryId kDestination = 1;
constexpr mscclpp::SemaphoreId kSemaphore = 0;

/* What the proxy's thread has of a side, after ProxyService::handleTrigger and progressFlushes. */
struct Consumer {
    mscclpp::Fifo fifo;
    uint64_t* flush_done;
    uint64_t handed = 0; /* tickets of requests that were handed out: 1, 2, 3 … */
    mscclpp::ProxyTrigger trigger{};
    uint64_t parts = 0;   /* of `trigger`, yet to be handed out */
    bool popping = false; /* `trigger` is posted: to be popped */
    bool flushing = false;
    uint64_t flush_position = 0;

    Consumer(int size, uint64_t* flush_done) : fifo(size), flush_done(flush_done) {}
};

/* At the start of a side's host memory. */
struct HostHead {
    Consumer* consumer;
};

/* Threads must not be more than the FIFO has slots. */
int fifo_size(uint32_t producers) {
    int size = mscclpp::DEFAULT_FIFO_SIZE;
    while (static_cast<uint32_t>(size) < producers && size < 1 << 20)
        size *= 2;
    return size;
}

const GicPeerLayout kLayouts[] = {
    {"mscclpp::PortChannelDeviceHandle", sizeof(mscclpp::PortChannelDeviceHandle)},
    {"mscclpp::BasePortChannelDeviceHandle", sizeof(mscclpp::BasePortChannelDeviceHandle)},
    {"mscclpp::FifoDeviceHandle", sizeof(mscclpp::FifoDeviceHandle)},
    {"mscclpp::Host2DeviceSemaphoreDeviceHandle", sizeof(mscclpp::Host2DeviceSemaphoreDeviceHandle)},
    {"mscclpp::ProxyTrigger", sizeof(mscclpp::ProxyTrigger)},
};
const GicPeerInfo kInfo = {GIC_PEER_ABI, "MSCCL++", "0.9.0 with the FIFO of #864",
                           sizeof(kLayouts) / sizeof(kLayouts[0]), kLayouts};

/* The semaphore's token is in the last 64 bytes of a side's payload memory. */
constexpr uint64_t kTokenFromEnd = 64;
uint64_t token(uint64_t base, uint64_t bytes) {
    return base + bytes - kTokenFromEnd;
}

/* 0, which the NIC refuses, for what isn't a registered memory's. */
uint64_t address(const GicPeerRig* rig, uint64_t id, uint64_t offset, uint64_t bytes) {
    if (id > kDestination || offset > rig->bytes || bytes > rig->bytes - offset) return 0;
    return (id == kSource ? rig->local : rig->remote) + offset;
}

int fail(char* why, size_t why_bytes, const char* text) {
    snprintf(why, why_bytes, "%s", text);
    return 1;
}

std::mutex consumers_lock;
std::vector<std::unique_ptr<Consumer>> consumers;

}  // namespace

extern "C" const GicPeerInfo* gic_peer_info(void) {
    return &kInfo;
}

extern "C" const char* gic_peer_consumer(void) {
    return "the library's own Fifo (src/core/fifo.cc), with a minimal consumer in place of ProxyService";
}

extern "C" void gic_peer_sizes(uint32_t, uint32_t, uint32_t producers, uint64_t* device, uint64_t* host) {
    /* The image, then head, cached tail and the semaphore's expected token. */
    *device = (sizeof(GicMscclpp) + kGpuAlign - 1) / kGpuAlign * kGpuAlign + 3 * kGpuAlign;
    /* The consumer's place, the flush's position, the tail, and the slots. */
    uint64_t slots = static_cast<uint64_t>(fifo_size(producers)) * sizeof(mscclpp::ProxyTrigger);
    *host = 3 * kHostAlign + (slots + kHostAlign - 1) / kHostAlign * kHostAlign;
}

extern "C" int gic_peer_build(const GicPeerRig* rig, GicPeerBuilt* built, char* why, size_t why_bytes) {
    if (rig->abi != GIC_PEER_ABI) return fail(why, why_bytes, "the adapter is of another ABI than gicbench");
    if (rig->bytes > uint64_t(1) << mscclpp::TriggerBitsOffset)
        return fail(why, why_bytes,
                    "a trigger's offsets have 32 bits: the payload memory is larger than 4 GiB");
    if (rig->bytes < kTokenFromEnd)
        return fail(why, why_bytes, "the payload memory has no room for a semaphore");
    if (rig->producers > uint32_t(fifo_size(rig->producers)))
        return fail(why, why_bytes, "more producers than the largest FIFO of the adapter has slots");

    gic::Arena gpu = {rig->device_at, kGpuAlign};
    gic::Arena host = {reinterpret_cast<uint64_t>(rig->host), kHostAlign};
    gpu.take(sizeof(GicMscclpp));
    auto* head = static_cast<HostHead*>(host.take(sizeof(HostHead)));
    auto* flush_done = static_cast<uint64_t*>(host.take(sizeof(uint64_t)));
    auto* expected = static_cast<uint64_t*>(gpu.take(sizeof(uint64_t)));

    std::unique_ptr<Consumer> consumer;
    gic::gpu_arena = &gpu;
    gic::host_arena = &host;
    try {
        consumer = std::make_unique<Consumer>(fifo_size(rig->producers), flush_done);
    } catch (const std::exception& error) {
        return fail(why, why_bytes, error.what());
    }
    gic::gpu_arena = gic::host_arena = nullptr;

    mscclpp::Host2DeviceSemaphoreDeviceHandle semaphore;
    semaphore.inboundToken = reinterpret_cast<uint64_t*>(token(rig->local, rig->bytes));
    semaphore.expectedInboundToken = expected;
    new (rig->device)
        GicMscclpp{mscclpp::PortChannelDeviceHandle(kSemaphore, semaphore, consumer->fifo.deviceHandle(),
                                                    kDestination, kSource, flush_done),
                   rig->local, rig->remote};

    head->consumer = consumer.get();
    std::lock_guard<std::mutex> guard(consumers_lock);
    consumers.push_back(std::move(consumer));
    built->state = rig->device_at;
    built->symbols = 0;
    return 0;
}

extern "C" int gic_peer_take(const GicPeerRig* rig, GicPeerRequest* request) {
    Consumer& c = *reinterpret_cast<HostHead*>(rig->host)->consumer;
    if (c.parts == 0) {
        /* As in Proxy::start: a trigger is popped once its handler has posted it. */
        if (c.popping) c.fifo.pop();
        c.popping = false;
        if (!c.fifo.poll(c.trigger)) return 0;
        /* One that asks for nothing stays where it is. */
        if (c.trigger.fields.type == 0) return -1;
        c.parts = c.trigger.fields.type;
        c.popping = true;
    }

    const auto& fields = c.trigger.fields;
    *request = {};
    request->ticket = ++c.handed;
    if (c.parts & mscclpp::TriggerData) {
        c.parts &= ~mscclpp::TriggerData;
        request->kind = GIC_PEER_WRITE;
        request->bytes = static_cast<uint32_t>(fields.size);
        request->local = address(rig, fields.srcMemoryId, fields.srcOffset, fields.size);
        request->remote = address(rig, fields.dstMemoryId, fields.dstOffset, fields.size);
    } else if (c.parts & mscclpp::TriggerFlag) {
        c.parts &= ~mscclpp::TriggerFlag;
        request->kind = GIC_PEER_FETCH_ADD;
        request->bytes = sizeof(uint64_t);
        request->remote = token(rig->remote, rig->bytes);
        request->value = 1;
    } else {
        c.parts = 0;
        request->kind = GIC_PEER_FLUSH;
        c.flush_position = c.fifo.tail();
        c.flushing = true;
    }
    return 1;
}

extern "C" void gic_peer_done(const GicPeerRig* rig, uint64_t ticket) {
    Consumer& c = *reinterpret_cast<HostHead*>(rig->host)->consumer;
    if (ticket == UINT64_MAX) {
        /* Nobody is to wait any more: ProxyService::stopProxy's sentinel. */
        mscclpp::atomicStore(c.flush_done, UINT64_MAX, mscclpp::memoryOrderRelease);
    } else if (c.flushing && ticket == c.handed) {
        /* The connection's CQ is drained: the latest flush is answered, and with it those before. */
        mscclpp::atomicStore(c.flush_done, c.flush_position + 1, mscclpp::memoryOrderRelease);
        c.flushing = false;
    }
}
