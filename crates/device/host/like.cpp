#include "gic/kernels/like.hpp"
#include "dispatch.hpp"

#include <cstddef>

using namespace gic;

namespace {

// Built: each library's put, whole, and without any one of its steps.
template <Peer P, u32 N, class Body>
bool without_one(u32 without, Body body) {
    if constexpr (N == 0) {
        return false;
    } else {
        constexpr u32 kStep = 1u << (N - 1);
        if constexpr ((steps_of(P) & kStep) != 0) {
            if (without == kStep) {
                body(Like<P, kStep>{});
                return true;
            }
        }
        return without_one<P, N - 1>(without, body);
    }
}

}  // namespace

extern "C" bool gic_host_like(u32 peer, u32 without, const kernels::LikeArgs* a, u32 thread) {
    return with<kPeers>(peer, [&](auto which) {
        constexpr Peer kPeer = static_cast<Peer>(which.value);
        auto run = [&](auto like) { kernels::like<decltype(like)>(*a, thread); };
        if (without != 0) return without_one<kPeer, kSteps>(without, run);
        run(Like<kPeer>{});
        return true;
    });
}

extern "C" u32 gic_host_like_steps(u32 peer) {
    return steps_of(static_cast<Peer>(peer));
}

extern "C" u32 gic_host_like_slot_bytes(u32 peer) {
    return slot_bytes_of(static_cast<Peer>(peer));
}

// What the Rust mirror says of sizes and offsets, checked against the header's own.
extern "C" bool gic_host_like_layouts(const u64* rust, u32 count) {
    using namespace kernels;
    const u64 cpp[] = {
        sizeof(DocaQp),
        offsetof(DocaQp, ready),
        offsetof(DocaQp, produced),
        offsetof(DocaQp, qpn),
        offsetof(DocaQp, doorbell_qpn),
        offsetof(DocaQp, nop_qpn),
        offsetof(DocaQp, write_qpn),
        offsetof(DocaQp, lock),
        offsetof(DocaQp, blocks),
        offsetof(DocaQp, mask),
        offsetof(DocaQp, sq),
        offsetof(DocaQp, record),
        offsetof(DocaQp, doorbell),
        offsetof(DocaQp, entries),
        offsetof(DocaQp, cq_entries),
        offsetof(DocaQp, consumed),
        offsetof(DocaQp, handler),
        sizeof(IbgdaCq),
        offsetof(IbgdaCq, entry),
        offsetof(IbgdaCq, produced),
        offsetof(IbgdaCq, consumed),
        offsetof(IbgdaCq, entries),
        sizeof(IbgdaQp),
        offsetof(IbgdaQp, kind),
        offsetof(IbgdaQp, qpn),
        offsetof(IbgdaQp, device),
        offsetof(IbgdaQp, blocks),
        offsetof(IbgdaQp, sq),
        offsetof(IbgdaQp, record),
        offsetof(IbgdaQp, doorbell),
        offsetof(IbgdaQp, cq),
        offsetof(IbgdaQp, lock),
        offsetof(IbgdaQp, reserved),
        offsetof(IbgdaQp, ready),
        offsetof(IbgdaQp, produced),
        offsetof(IbgdaQp, consumed),
        sizeof(LikeTables),
        offsetof(LikeTables, log_chunk),
        offsetof(LikeTables, targets),
        offsetof(LikeTables, me),
        offsetof(LikeTables, target),
        offsetof(LikeTables, devices),
        offsetof(LikeTables, groups),
        offsetof(LikeTables, per_target),
        offsetof(LikeTables, batch),
        offsetof(LikeTables, map),
        offsetof(LikeTables, queues_on_gpu),
        offsetof(LikeTables, heap_on_host),
        offsetof(LikeTables, cpu_rings),
        offsetof(LikeTables, dc_targets),
        offsetof(LikeTables, qps),
        offsetof(LikeTables, counters),
        offsetof(LikeTables, remote_heaps),
        offsetof(LikeTables, mapped),
        offsetof(LikeTables, vectors),
        offsetof(LikeTables, lkeys),
        offsetof(LikeTables, rkeys),
        sizeof(LikeQueue),
        offsetof(LikeQueue, head),
        offsetof(LikeQueue, tail),
        offsetof(LikeQueue, cached_tail),
        offsetof(LikeQueue, depth),
        offsetof(LikeQueue, log_depth),
        offsetof(LikeQueue, asked),
        offsetof(LikeQueue, answered),
        offsetof(LikeQueue, failure),
        offsetof(LikeQueue, mapped),
        offsetof(LikeQueue, local),
        offsetof(LikeQueue, remote),
        offsetof(LikeQueue, backend),
        sizeof(LikeState),
        offsetof(LikeState, queue),
        offsetof(LikeState, by_gpu),
        sizeof(LikeArgs),
        offsetof(LikeArgs, state),
        offsetof(LikeArgs, queue),
        offsetof(LikeArgs, channels),
        offsetof(LikeArgs, qps),
        offsetof(LikeArgs, scope),
        offsetof(LikeArgs, bytes),
        offsetof(LikeArgs, threads),
        offsetof(LikeArgs, slots),
        offsetof(LikeArgs, stride),
        offsetof(LikeArgs, warmup),
        offsetof(LikeArgs, samples),
        offsetof(LikeArgs, first),
        offsetof(LikeArgs, deadline),
        offsetof(LikeArgs, local),
        offsetof(LikeArgs, remote),
        offsetof(LikeArgs, issue),
        offsetof(LikeArgs, total),
        offsetof(LikeArgs, failure),
    };
    if (count != sizeof(cpp) / sizeof(cpp[0])) return false;
    for (u32 i = 0; i < count; i++)
        if (cpp[i] != rust[i]) return false;
    return true;
}
