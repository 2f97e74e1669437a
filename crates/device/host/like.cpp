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
        sizeof(LikeCq),
        offsetof(LikeCq, produced),
        offsetof(LikeCq, consumed),
        offsetof(LikeCq, entries),
        sizeof(LikeQp),
        offsetof(LikeQp, ready),
        offsetof(LikeQp, produced),
        offsetof(LikeQp, qpn),
        offsetof(LikeQp, device),
        offsetof(LikeQp, log_blocks),
        offsetof(LikeQp, sq),
        offsetof(LikeQp, record),
        offsetof(LikeQp, doorbell),
        offsetof(LikeQp, cq),
        offsetof(LikeQp, entries),
        offsetof(LikeQp, log_cq),
        offsetof(LikeQp, consumed),
        sizeof(LikeTables),
        offsetof(LikeTables, log_chunk),
        offsetof(LikeTables, targets),
        offsetof(LikeTables, queues_on_gpu),
        offsetof(LikeTables, counters),
        offsetof(LikeTables, mapped),
        offsetof(LikeTables, lkeys),
        offsetof(LikeTables, rkeys),
        sizeof(LikeQueue),
        offsetof(LikeQueue, cached_tail),
        offsetof(LikeQueue, failure),
        offsetof(LikeQueue, mapped),
        offsetof(LikeQueue, remote),
        offsetof(LikeQueue, depth),
        sizeof(LikeArgs),
        offsetof(LikeArgs, queue),
        offsetof(LikeArgs, threads),
        offsetof(LikeArgs, slots),
        offsetof(LikeArgs, deadline),
        offsetof(LikeArgs, remote),
        offsetof(LikeArgs, failure),
    };
    if (count != sizeof(cpp) / sizeof(cpp[0])) return false;
    for (u32 i = 0; i < count; i++)
        if (cpp[i] != rust[i]) return false;
    return true;
}
