// A library's put, one operation at a time, by as many threads as share its queue pairs.
#pragma once

#include "gic/kernels/latency.hpp"
#include "gic/like_doca.hpp"
#include "gic/like_public.hpp"

namespace gic {
namespace kernels {

// Thread t of `threads` uses queue pair t mod `qps` (or the queue to a CPU that the library chooses), the slots
// t * slots + i mod `slots`, and the values first + t * (warmup + samples) + i; it has `samples` places and one failure word
// of its own. Otherwise as latency's.
struct LikeArgs {
    DocaQp* doca;                      // DOCA's: 1 + `qps` of them
    const LikeState* state;            // NVSHMEM's and DeepEP's; on a GPU it is in `gic_like_state`
    const LikeQueue* queue;            // proxied, but for NVSHMEM: `qps` of them
    const LikeQueue* const* channels;  // UCCL-EP: the same by addresses
    u32 qps;
    u32 scope;  // QuietScope: one, or all; not of a proxied put
    u32 bytes;
    u32 threads;
    u64 slots;
    u64 stride;
    u64 warmup;
    u64 samples;  // a thread
    u64 first;
    u64 deadline;  // ticks, of every wait
    Local local;
    Remote remote;
    u64* issue;
    u64* total;
    u64* failure;
};
static_assert(sizeof(LikeArgs) == 152, "mirrored by the host");

template <class L>
GIC_FN auto open_like(const LikeArgs& a, u32 thread) {
    if constexpr (L::gdaki)
        return DocaEndpoint<L>(a.doca, a.qps, thread, a.deadline);
    else if constexpr (L::is_public)
        return PublicEndpoint<L>(a.state, thread, a.deadline);
    else if constexpr (L::proxied)
        return LikeProducer<L>(a.queue, a.channels, a.qps, a.state, thread, a.deadline);
    else
        return IbgdaEndpoint<L>(a.state, thread, a.deadline);
}

template <class L, class Endpoint>
GIC_FN Failure complete_like(const LikeArgs& a, const Endpoint& endpoint, u64 ticket) {
    bool one = a.scope == static_cast<u32>(QuietScope::one);
    if constexpr (L::gdaki)
        return (one ? endpoint.wait(ticket) : endpoint.quiet()).failure;
    else if constexpr (L::peer == Peer::nvshmem_proxy)
        return endpoint.quiet().failure;
    else if constexpr (L::proxied)
        return endpoint.complete().failure;
    else
        return (one ? endpoint.wait() : endpoint.quiet()).failure;
}

template <class L>
GIC_FN void like(const LikeArgs& a, u32 thread) {
    u64* failure_word = a.failure + thread;
    // Of a proxy's queues one thread uses more than its own.
    u32 most = L::proxied && L::peer != Peer::fabric_lib ? 1 : a.qps;
    if (!L::between_blocks && thread >= most) {
        *failure_word = Failure::of(Why::too_large, 0, thread).bits;
        return;
    }
    auto endpoint = open_like<L>(a, thread);
    u64 n = a.warmup + a.samples;
    u64* issue = a.issue + thread * a.samples;
    u64* total = a.total + thread * a.samples;
    u64 shift = 0;
    if constexpr (!L::gdaki && !L::proxied) shift = endpoint.shift();
    Failure failure;
    for (u64 i = 0; i < n && failure.ok(); i++) {
        u64 slot = (thread * a.slots + i % a.slots) * a.stride;
        Local local = {a.local.address + slot, a.local.lkey};
        Remote remote = {a.remote.address + slot + shift, a.remote.rkey};
        write_payload(local.address, a.bytes, a.first + thread * n + i);

        u64 start = clock_ticks();
        Posted p;
        if constexpr (L::gdaki)
            p = endpoint.put(remote, local, a.bytes);
        else
            p = endpoint.put(remote.address, local.address, a.bytes);
        u64 issued = clock_ticks();
        failure = p.failure;
        if (!GIC_SELDOM(!failure.ok())) failure = complete_like<L>(a, endpoint, p.ticket);
        u64 done = clock_ticks();

        if (i >= a.warmup) {
            issue[i - a.warmup] = issued - start;
            total[i - a.warmup] = done - start;
        }
    }
    *failure_word = failure.bits;
}

}  // namespace kernels
}  // namespace gic
