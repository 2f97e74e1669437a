/* DeepEP: NVSHMEM's device state of one PE of two, over RC with GPU threads' doorbells, as NVSHMEM's adapter makes it. */
#include "gic_peer.h"

#define gic_peer_info nvshmem_info
#define gic_peer_sizes nvshmem_sizes
#define gic_peer_build nvshmem_build
#define gic_peer_take nvshmem_take
#define gic_peer_done nvshmem_done
#define gic_peer_consumer nvshmem_consumer
#include "nvshmem_state.cpp"
#undef gic_peer_info
#undef gic_peer_sizes
#undef gic_peer_build
#undef gic_peer_take
#undef gic_peer_done
#undef gic_peer_consumer

namespace {

constexpr uint32_t nvshmem_variant = 0;

/* A thread waits for its puts after half its share of a queue, in fours: see Stream in kernel.cu. */
constexpr uint32_t least_share = 8;

}  // namespace

const GicPeerInfo* gic_peer_info(void) {
    static const GicPeerInfo info = {GIC_PEER_ABI, "DeepEP, on NVSHMEM's device state",
                                     nvshmem_info()->version, nvshmem_info()->layouts,
                                     nvshmem_info()->layout};
    return &info;
}

void gic_peer_sizes(uint32_t, uint32_t qps, uint32_t producers, uint64_t* device, uint64_t* host) {
    nvshmem_sizes(nvshmem_variant, qps, producers, device, host);
}

int gic_peer_build(const GicPeerRig* rig, GicPeerBuilt* built, char* why, size_t why_bytes) {
    GicPeerRig over_rc = *rig;
    over_rc.variant = nvshmem_variant;
    if (int status = nvshmem_build(&over_rc, built, why, why_bytes)) return status;
    uint64_t sharers = (uint64_t{rig->producers} + rig->qps - 1) / rig->qps;
    for (uint32_t i = 0; i < rig->qps; i++) {
        if (1ull << rig->queue[i].log_blocks >= sharers * least_share) continue;
        snprintf(
            why, why_bytes,
            "queue %u is too short for %llu threads, whose puts don't look for room: %llu blocks are needed",
            i, static_cast<unsigned long long>(sharers),
            static_cast<unsigned long long>(sharers * least_share));
        return 1;
    }
    return 0;
}
