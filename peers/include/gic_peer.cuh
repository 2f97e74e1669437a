// The experiments' loops around a peer's calls: the same clock, the same definition of each time, the same payload
// marks as for gicbench's own transports.
//
// A peer is a type P with
//   P(uint64_t state, uint32_t thread)     what a user's kernel keeps: not timed
//   void issue(remote, local, bytes, value) one operation, `value` for those that carry it
//   int complete()                         what the library offers to complete it; 0, or its error
// and, for rates, void post(remote, local, bytes, value, bool last) for each of a batch (`last` rings) by every lane,
// and void batches_of(n) if it has to know how many there are before the first.
// One whose CPU knows its requests beforehand has
//   void prepare(remote, local, bytes, slots, stride)  operation i goes from and to slot i mod slots: not timed
#pragma once
#include "gic_peer.h"
#include <cuda_runtime.h>

// Set by the host in a module that has it: waits of the harness end when the word that it points to isn't 0.
extern "C" __device__ const uint32_t* gic_abort_word = nullptr;

namespace gic_peer {

__device__ __forceinline__ void store_relaxed(uint64_t at, uint64_t value) {
    asm volatile("st.relaxed.sys.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}
__device__ __forceinline__ void store_relaxed32(uint64_t at, uint32_t value) {
    asm volatile("st.relaxed.sys.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}
__device__ __forceinline__ uint64_t load_acquire(uint64_t at) {
    uint64_t value;
    asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
    return value;
}
__device__ __forceinline__ uint64_t ticks() {
    uint64_t t;
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(t)::"memory");
    return t;
}
__device__ __forceinline__ uint64_t timer() {
    uint64_t t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)::"memory");
    return t;
}
__device__ __forceinline__ bool aborted() {
    return gic_abort_word != nullptr && *reinterpret_cast<const volatile uint32_t*>(gic_abort_word) != 0;
}

__device__ __forceinline__ void mark(uint64_t at, uint32_t bytes, uint64_t value) {
    if (bytes >= 8) {
        store_relaxed(at, value);
        if (bytes >= 16) store_relaxed(at + (bytes / 8 - 1) * 8, value);
    } else if (bytes >= 4) {
        store_relaxed32(at, static_cast<uint32_t>(value));
    } else {
        for (uint32_t i = 0; i < bytes; i++)
            *reinterpret_cast<volatile uint8_t*>(at + i) = static_cast<uint8_t>(value >> (8 * i));
    }
}

// The timer steps seldom: both are read right after a step.
__device__ __forceinline__ void read_clocks(uint64_t* timer_at, uint64_t* ticks_at) {
    uint64_t was = timer(), now = was;
    for (uint32_t turn = 0; turn < 100000 && now == was; turn++)
        now = timer();
    *timer_at = now;
    *ticks_at = ticks();
}
__device__ __forceinline__ bool is_first() {
    return (blockIdx.x | threadIdx.x) == 0;
}
__device__ __forceinline__ void begin(GicPeerClocks* c) {
    if (is_first()) read_clocks(&c->timer, &c->ticks);
}
__device__ __forceinline__ void end(GicPeerClocks* c) {
    if (is_first()) read_clocks(&c->timer_end, &c->ticks_end);
}

template <class P>
__device__ __forceinline__ auto tell_slots(P& peer, uint64_t remote, uint64_t local, uint32_t bytes,
                                           uint64_t slots, uint64_t stride, int)
    -> decltype(peer.prepare(remote, local, bytes, slots, stride)) {
    peer.prepare(remote, local, bytes, slots, stride);
}
template <class P>
__device__ __forceinline__ void tell_slots(P&, uint64_t, uint64_t, uint32_t, uint64_t, uint64_t, long) {}

template <class P>
__device__ __forceinline__ void latency(const GicPeerLatencyArgs& a) {
    uint32_t thread = blockIdx.x;
    uint64_t each = a.warmup + a.samples;
    uint64_t base = thread * a.slots * a.stride;
    uint64_t first = a.first + thread * each;
    uint64_t* issue = reinterpret_cast<uint64_t*>(a.issue) + thread * a.samples;
    uint64_t* total = reinterpret_cast<uint64_t*>(a.total) + thread * a.samples;
    P peer(a.state, thread);
    tell_slots(peer, a.remote + base, a.local + base, a.bytes, a.slots, a.stride, 0);
    int status = 0;
    for (uint64_t i = 0; i < each && status == 0; i++) {
        uint64_t slot = base + i % a.slots * a.stride;
        mark(a.local + slot, a.bytes, first + i);

        uint64_t start = ticks();
        peer.issue(a.remote + slot, a.local + slot, a.bytes, first + i);
        uint64_t issued = ticks();
        status = peer.complete();
        uint64_t done = ticks();

        if (i >= a.warmup) {
            issue[i - a.warmup] = issued - start;
            total[i - a.warmup] = done - start;
        }
    }
    reinterpret_cast<int64_t*>(a.failure)[thread] = status;
}

template <class P>
__device__ __forceinline__ auto tell_batch(P& peer, uint32_t batch, int) -> decltype(peer.batches_of(batch)) {
    peer.batches_of(batch);
}
template <class P>
__device__ __forceinline__ void tell_batch(P&, uint32_t, long) {}

template <class P>
__device__ __forceinline__ void rate(const GicPeerRateArgs& a) {
    uint32_t thread = blockIdx.x, lane = threadIdx.x;
    uint64_t base = thread * a.slots * a.stride;
    uint64_t first = a.first + thread * a.ops;
    uint64_t used = a.ops < a.slots ? a.ops : a.slots;
    for (uint64_t slot = lane; slot < used; slot += a.lanes) {
        uint64_t last = slot + (a.ops - 1 - slot) / a.slots * a.slots;
        mark(a.local + base + slot * a.stride, a.bytes, first + last);
    }
    __threadfence_system();
    P peer(a.state, thread);
    tell_slots(peer, a.remote + base, a.local + base, a.bytes, a.slots, a.stride, 0);
    tell_batch(peer, a.batch, 0);
    int status = 0;
    __syncwarp();
    if (lane == 0) {
        // All threads begin together.
        uint32_t* arrived = reinterpret_cast<uint32_t*>(a.arrived);
        atomicAdd(arrived, 1u);
        uint64_t since = ticks();
        while (*reinterpret_cast<volatile uint32_t*>(arrived) < a.threads && status == 0)
            if (ticks() - since > a.deadline || aborted()) status = GIC_PEER_LATE_START;
        reinterpret_cast<uint64_t*>(a.start)[thread] = timer();
    }
    status = __shfl_sync(__activemask(), status, 0);
    for (uint64_t i = 0; i < a.ops && status == 0; i += a.batch) {
        for (uint32_t k = 0; k < a.batch; k += a.lanes) {
            uint64_t op = i + k + lane;
            uint64_t slot = base + op % a.slots * a.stride;
            peer.post(a.remote + slot, a.local + slot, a.bytes, first + op, k + a.lanes >= a.batch);
        }
    }
    if (status == 0) status = peer.complete();
    if (lane == 0) {
        reinterpret_cast<uint64_t*>(a.end)[thread] = timer();
        reinterpret_cast<int64_t*>(a.failure)[thread] = status;
    }
}

__device__ __forceinline__ int await(uint64_t inbox, uint64_t value, uint64_t deadline) {
    uint64_t since = ticks();
    for (;;) {
        uint64_t seen = load_acquire(inbox);
        if (seen == value) return 0;
        if (seen > value) return GIC_PEER_WRONG;
        if (ticks() - since > deadline || aborted()) return GIC_PEER_LATE;
    }
}

template <class P>
__device__ __forceinline__ void round_trip(const GicPeerRoundTripArgs& a) {
    P peer(a.state, 0);
    tell_slots(peer, a.remote, a.outbox, 8, 1, 0, 0);
    uint64_t* kept = reinterpret_cast<uint64_t*>(a.ticks);
    uint64_t each = a.warmup + a.samples;
    int status = 0;
    for (uint64_t i = 0; i < each && status == 0; i++) {
        uint64_t start = ticks();
        if (a.side == 0) {
            store_relaxed(a.outbox, i + 1);
            peer.issue(a.remote, a.outbox, 8, i + 1);
        }
        status = await(a.inbox, i + 1, a.deadline);
        if (status == 0 && a.side == 1) {
            store_relaxed(a.outbox, i + 1);
            peer.issue(a.remote, a.outbox, 8, i + 1);
        }
        uint64_t done = ticks();
        if (a.side == 0 && i >= a.warmup) kept[i - a.warmup] = done - start;
        // The next value must not overtake this one in the outbox.
        if (status == 0) status = peer.complete();
    }
    *reinterpret_cast<int64_t*>(a.failure) = status;
}

}  // namespace gic_peer

// Entry points. A launch without a place for its clocks is made to have the kernel loaded, and does nothing.
#define GIC_PEER_ENTRY(kind, Args, name, P)                                                                  \
    extern "C" __global__ void kind##_##name(const Args a, GicPeerClocks* clocks) {                          \
        if (clocks == nullptr) return;                                                                       \
        gic_peer::begin(clocks);                                                                             \
        gic_peer::kind<P>(a);                                                                                \
        gic_peer::end(clocks);                                                                               \
    }
#define GIC_PEER_LATENCY(name, ...) GIC_PEER_ENTRY(latency, GicPeerLatencyArgs, name, __VA_ARGS__)
#define GIC_PEER_RATE(name, ...) GIC_PEER_ENTRY(rate, GicPeerRateArgs, name, __VA_ARGS__)
#define GIC_PEER_ROUND_TRIP(name, ...) GIC_PEER_ENTRY(round_trip, GicPeerRoundTripArgs, name, __VA_ARGS__)
