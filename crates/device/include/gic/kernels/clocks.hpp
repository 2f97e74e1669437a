// A launch measures its own clock: the thread's clock against the GPU's timer, at its begin and at its end.
#pragma once

#include "gic/kernels/common.hpp"

namespace gic {
namespace kernels {

struct ClockReading {
    u64 timer;  // nanoseconds, at a step of the timer
    u64 ticks;
};
struct Clocks {
    ClockReading begin;
    ClockReading end;
};
static_assert(sizeof(Clocks) == 32, "mirrored by the host");

#if defined(__CUDACC__)
// The timer steps seldom: both are read right after a step. It takes no longer than a step, and no longer than
// so many turns where the timer stands still.
GIC_FN ClockReading read_clocks() {
    u64 was = shared_clock(), now = was;
    for (u32 turn = 0; turn < 100000 && now == was; turn++)
        now = shared_clock();
    return {now, clock_ticks()};
}

// Around the body of a kernel: thread 0 of the launch reads the clocks. `clocks` is null in a launch that is made
// only to have the kernel loaded; such a one does nothing.
class ClockSpan {
  public:
    GIC_FN explicit ClockSpan(Clocks* clocks) : clocks_(clocks) {
        if (first()) clocks_->begin = read_clocks();
    }
    GIC_FN void end() {
        if (first()) clocks_->end = read_clocks();
    }

  private:
    GIC_FN static bool first() { return (blockIdx.x | threadIdx.x) == 0; }
    Clocks* clocks_;
};

// What readings cost and resolve, by one thread.
struct CalibrateArgs {
    u64* overhead;  // ticks between two readings in a row, `count` of them
    u64* steps;     // nanoseconds between two different readings of the timer, `count` of them
    u64 count;
};

GIC_FN void calibrate(const CalibrateArgs& a) {
    for (u64 i = 0; i < a.count; i++) {
        u64 one = clock_ticks();
        u64 other = clock_ticks();
        a.overhead[i] = other - one;
    }
    u64 was = read_clocks().timer;
    for (u64 i = 0; i < a.count; i++) {
        u64 now = read_clocks().timer;
        a.steps[i] = now - was;
        was = now;
    }
}
#endif

}  // namespace kernels
}  // namespace gic
