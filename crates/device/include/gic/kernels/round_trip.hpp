// A request and the remote thread's reply, each one an 8-byte put that the other side polls for.
#pragma once

#include "gic/kernels/common.hpp"

namespace gic {
namespace kernels {

struct RoundTripArgs {
    const Qp* qp;      // one a side: 0 asks, 1 answers
    u64* inbox[2];     // where the other side's value arrives
    Remote remote[2];  // the other side's inbox
    u64 warmup;
    u64 samples;
    u64 deadline;    // ticks, of one wait
    u64* ticks;      // one a kept sample
    u64* failure;    // one a side
    u32 first_side;  // of this launch: the other one may be another process's
    u32 sides;
};
static_assert(sizeof(RoundTripArgs) == 104, "mirrored by the host");

// Values are 1, 2, 3 …; each must be the next one, so that a lost or repeated put is seen.
GIC_FN Failure await_value(const u64* inbox, u64 value, u64 deadline, u32 qpn) {
    Wait time(deadline);
    for (;;) {
        u64 seen = mem::load_acquire<Scope::system>(inbox);
        if (seen == value) return {};
        if (seen > value) return Failure::of(Why::wrong_data, qpn, static_cast<u32>(value));
        if (time.expired()) return Failure::of(Why::deadline_completion, qpn, static_cast<u32>(value));
    }
}

template <class C>
GIC_FN void round_trip(const RoundTripArgs& a, u32 side) {
    Endpoint<C> endpoint(a.qp[side]);
    u32 qpn = a.qp[side].qpn;
    u64 n = a.warmup + a.samples;
    Failure failure;
    for (u64 i = 0; i < n && failure.ok(); i++) {
        u64 start = clock_ticks();
        if (side == 0) failure = endpoint.put_value(a.remote[0], i + 1).failure;
        if (failure.ok()) failure = await_value(a.inbox[side], i + 1, a.deadline, qpn);
        if (failure.ok() && side == 1) failure = endpoint.put_value(a.remote[1], i + 1).failure;
        u64 done = clock_ticks();
        if (side == 0 && i >= a.warmup) a.ticks[i - a.warmup] = done - start;
    }
    if (failure.ok()) failure = endpoint.quiet().failure;
    endpoint.save();
    a.failure[side] = failure.bits;
}

}  // namespace kernels
}  // namespace gic
