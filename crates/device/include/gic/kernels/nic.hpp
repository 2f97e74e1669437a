// The NIC engine as a persistent kernel: a block a warp, and beside it a warp that looks after its end.
#pragma once

#include "gic/kernels/common.hpp"
#include "gic/nic.hpp"

namespace gic {
namespace kernels {

struct NicArgs {
    nic::Tables tables;
};
static_assert(sizeof(NicArgs) == 152, "mirrored by the host");

// WQEs in a visit to the warp's queue pairs.
constexpr u32 kNicBudget = 4096;

#if defined(__CUDACC__)
// Threads of a block.
constexpr u32 kNicThreads = 2 * kWarp;

// Why an engine ended.
constexpr u32 kNicTold = 1;
constexpr u32 kNicAlone = 2;  // the host did not renew its lease in time

// One lane of each block looks for the engine's end between rests, so that the engine's warp never waits for it:
// that of the first block at the host's words, the others at what it tells them.
GIC_FN void nic_look_after(const nic::Tables& t, volatile u32* end) {
    u64 lease = 0;
    u64 renewed = shared_clock();
    while (*end == 0) {
        __nanosleep(5000);
        if (blockIdx.x != 0) {
            *end = mem::load_relaxed<Scope::gpu>(t.halt);
            continue;
        }
        u32 why = mem::load_relaxed<Scope::system>(&t.control->stop) != 0 ? kNicTold : 0;
        u64 now = mem::load_relaxed<Scope::system>(&t.control->lease);
        if (now != lease) {
            lease = now;
            renewed = shared_clock();
        } else if (why == 0 && shared_clock() - renewed > t.lease_ns) {
            why = kNicAlone;
        }
        if (why != 0) mem::store_relaxed<Scope::gpu>(t.halt, why);
        *end = why;
    }
}

template <Scope S>
GIC_FN void nic_engine(const NicArgs& a) {
    __shared__ nic::Scratch scratch;
    __shared__ nic::Tables tables;
    __shared__ volatile u32 end;
    if (threadIdx.x == 0) {
        tables = a.tables;
        end = 0;
    }
    __syncthreads();
    if (threadIdx.x >= kWarp) {
        if (threadIdx.x == kWarp) nic_look_after(tables, &end);
        return;
    }
    nic::Engine<S> engine(tables, blockIdx.x, scratch);
    while (nic::ballot([&](u32) { return end != 0; }) == 0)
        engine.step(kNicBudget);
    engine.save();
    if (threadIdx.x == 0) tables.ended[blockIdx.x] = end;
}
#endif

}  // namespace kernels
}  // namespace gic
