// A warp, on a GPU and on a host.
//
// A host thread runs all 32 lanes of a warp one after another, so warp-cooperative code is written as phases
// between syncs: a phase never waits for another lane. What only one lane does, `elect` runs once.
// A missing sync is invisible on a host: there, lanes are always in step.
#pragma once

#include "gic/platform.hpp"

namespace gic {

constexpr u32 kWarp = 32;

class Warp {
  public:
    // Lanes that take part, bit by lane. Every one of them must make the same calls; the others may.
    GIC_FN explicit Warp(u32 active = 0xffffffffu) : active_(active) {}

    GIC_FN u32 count() const {
#if GIC_ON_GPU
        return __popc(active_);
#else
        return static_cast<u32>(__builtin_popcount(active_));
#endif
    }

    // Runs `body(lane, rank)` for each active lane; `rank` counts the active lanes below it.
    template <class Body>
    GIC_FN void each(Body body) const {
#if GIC_ON_GPU
        u32 lane = threadIdx.x & (kWarp - 1);
        if ((active_ >> lane) & 1) body(lane, static_cast<u32>(__popc(active_ & ((1u << lane) - 1))));
#else
        u32 rank = 0;
        for (u32 lane = 0; lane < kWarp; lane++) {
            if ((active_ >> lane) & 1) body(lane, rank++);
        }
#endif
    }

    // Runs `body` on the first active lane.
    template <class Body>
    GIC_FN void lead(Body body) const {
#if GIC_ON_GPU
        if ((threadIdx.x & (kWarp - 1)) == first()) body();
#else
        body();
#endif
    }

    // Runs `body` on the first active lane and gives its answer to all that take part, 0 to the others.
    template <class Body>
    GIC_FN u64 elect(Body body) const {
#if GIC_ON_GPU
        if (!takes_part()) return 0;
        u64 value = 0;
        if ((threadIdx.x & (kWarp - 1)) == first()) value = body();
        return __shfl_sync(active_, value, static_cast<int>(first()));
#else
        return body();
#endif
    }

    // What the lanes wrote before is seen by each of them after.
    GIC_FN void sync() const {
#if GIC_ON_GPU
        if (takes_part()) __syncwarp(active_);
#endif
    }

  private:
#if GIC_ON_GPU
    // A lane must not name a mask that it isn't in; one that takes no part may make the calls all the same.
    GIC_FN bool takes_part() const { return (active_ >> (threadIdx.x & (kWarp - 1))) & 1; }
    GIC_FN u32 first() const { return static_cast<u32>(__ffs(static_cast<int>(active_)) - 1); }
#endif

    u32 active_;
};

}  // namespace gic
