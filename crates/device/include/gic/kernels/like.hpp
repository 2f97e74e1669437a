// A library's put, one operation at a time, by as many threads as share its queue pairs.
#pragma once

#include "gic/kernels/latency.hpp"
#include "gic/like_proxy.hpp"

namespace gic {
namespace kernels {

// Thread t of `threads` uses queue pair t mod `qps` (or the queue to a CPU that the library chooses), the slots t * slots + i mod `slots`, and the values
// first + t * (warmup + samples) + i; it has `samples` places and one failure word of its own. Otherwise as latency's.
struct LikeArgs {
    LikeQp* qp;
    const LikeTables* tables;  // on a GPU they are in `gic_like_tables`
    const LikeQueue* queue;    // proxied: `qps` of them; on a GPU NVSHMEM's is in `gic_like_queue`
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
static_assert(sizeof(LikeArgs) == 144, "mirrored by the host");

template <class L>
GIC_FN auto open_like(const LikeArgs& a, u32 thread) {
    if constexpr (L::proxied)
        return LikeProducer<L>(a.queue, a.qps, thread, a.deadline);
    else
        return LikeEndpoint<L>(a.qp, a.qps, a.tables, thread, a.deadline);
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
    if constexpr (!L::proxied) shift = endpoint.shift();
    Failure failure;
    for (u64 i = 0; i < n && failure.ok(); i++) {
        u64 slot = (thread * a.slots + i % a.slots) * a.stride;
        Local local = {a.local.address + slot, a.local.lkey};
        Remote remote = {a.remote.address + slot + shift, a.remote.rkey};
        write_payload(local.address, a.bytes, a.first + thread * n + i);

        u64 start = clock_ticks();
        Posted p = endpoint.put(remote, local, a.bytes);
        u64 issued = clock_ticks();
        failure = p.failure;
        if (failure.ok()) {
            if constexpr (L::proxied)
                failure = endpoint.complete().failure;
            else if (a.scope == static_cast<u32>(QuietScope::one))
                failure = endpoint.wait(p.ticket).failure;
            else
                failure = endpoint.quiet().failure;
        }
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
