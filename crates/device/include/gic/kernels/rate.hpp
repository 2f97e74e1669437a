// Many operations: message rate by batch, queue pairs and sharing; bandwidth by payload.
#pragma once

#include "gic/kernels/common.hpp"

namespace gic {
namespace kernels {

// Thread t posts `ops` operations in batches of `batch`. With an exclusive choice it goes round the queue pairs
// t, t + threads, …; with a shared one all threads use all of them. Operation i of a thread goes to slot
// t * slots + i mod `slots`, and its 8-byte payload (or the mark of a longer one) is
// first + t * ops + i.
struct RateArgs {
    const Qp* qp;
    u32 qps;
    u32 threads;
    u32 batch;   // posted between two of the caller's rings
    u32 nth;     // Ringing::every_nth: blocks that are left unrung at most
    u32 force;   // Ringing::every_nth: the last of a batch is rung for in any case
    u32 is_get;  // reads instead of writes
    u32 bytes;
    u32 lanes;      // 1, or 32: a whole warp builds the batch
    u32 is_inline;  // payload in the WQE; 8 bytes where a warp builds it
    u64 ops;        // a thread, warm-up included; a multiple of `batch`
    u64 warmup;     // a thread
    u64 first;      // operation i marks its payload with first + i
    u64 slots;
    u64 stride;
    Local local;
    Remote remote;
    u64* start;    // shared clock: warm-up done, one a thread
    u64* end;      // shared clock: all completed, one a thread
    u64* failure;  // one a thread
};
static_assert(sizeof(RateArgs) == 144, "mirrored by the host");

struct WarpValue {
    Remote remote;
    u64 value;
};
struct WarpOp {
    Remote remote;
    Local local;
    u32 bytes;
};

// No two operations of a launch carry the same value.
GIC_FN u64 value_of(const RateArgs& a, u32 thread, u64 i) {
    return a.first + thread * a.ops + i;
}

// One batch; returns its failure.
template <class C>
GIC_FN Failure post_batch(const RateArgs& a, Endpoint<C>& endpoint, u32 thread, u64 first, const Warp& warp) {
    if (a.lanes == kWarp) {
        for (u32 done = 0; done < a.batch; done += kWarp) {
            u32 count = a.batch - done < kWarp ? a.batch - done : kWarp;
            Warp part(count == kWarp ? 0xffffffffu : (1u << count) - 1);
            How how;
            how.ring = how.signal = done + count >= a.batch;
            if constexpr (C::ringing == Ringing::every_nth) {
                how.ring &= a.force != 0;
                how.nth = a.nth;
            }
            auto slot = [&](u32 lane) {
                return (thread * a.slots + (first + done + lane) % a.slots) * a.stride;
            };
            auto value = [&](u32 lane) { return value_of(a, thread, first + done + lane); };
            Posted p;
            if (a.is_inline) {
                p = endpoint.put_value_warp(
                    part,
                    [&](u32 lane) {
                        return WarpValue{{a.remote.address + slot(lane), a.remote.rkey}, value(lane)};
                    },
                    how);
            } else {
                p = endpoint.put_warp(
                    part,
                    [&](u32 lane) {
                        u64 at = slot(lane);
                        write_payload(a.local.address + at, a.bytes, value(lane));
                        return WarpOp{{a.remote.address + at, a.remote.rkey},
                                      {a.local.address + at, a.local.lkey},
                                      a.bytes};
                    },
                    how);
            }
            Failure f = p.failure;
            // Lanes that took no part must leave with the others.
            f.bits = warp.elect([&] { return f.bits; });
            if (!f.ok()) return f;
        }
        warp.sync();
        return {};
    }
    for (u32 b = 0; b < a.batch; b++) {
        u64 i = first + b;
        u64 slot = (thread * a.slots + i % a.slots) * a.stride;
        How how;
        how.ring = how.signal = b + 1 == a.batch;
        if constexpr (C::ringing == Ringing::every_nth) {
            how.ring &= a.force != 0;
            how.nth = a.nth;
        }
        Failure f;
        if (a.is_inline && a.bytes == 8) {
            f = endpoint.put_value({a.remote.address + slot, a.remote.rkey}, value_of(a, thread, i), how)
                    .failure;
        } else if (a.is_inline) {
            write_payload(a.local.address + slot, a.bytes, value_of(a, thread, i));
            f = endpoint
                    .put_inline({a.remote.address + slot, a.remote.rkey},
                                reinterpret_cast<const u8*>(a.local.address + slot), a.bytes, how)
                    .failure;
        } else if (a.is_get) {
            f = endpoint
                    .get({a.local.address + slot, a.local.lkey}, {a.remote.address + slot, a.remote.rkey},
                         a.bytes, how)
                    .failure;
        } else {
            write_payload(a.local.address + slot, a.bytes, value_of(a, thread, i));
            f = endpoint
                    .put({a.remote.address + slot, a.remote.rkey}, {a.local.address + slot, a.local.lkey},
                         a.bytes, how)
                    .failure;
        }
        if (!f.ok()) return f;
    }
    return {};
}

// The lane that posted has the indices.
template <class C>
GIC_FN void save(Endpoint<C>& endpoint, const Warp& warp) {
    warp.elect([&] {
        endpoint.save();
        return u64{0};
    });
}

template <class C>
GIC_FN Failure quiet_own(const RateArgs& a, u32 first, u32 step, const Warp& warp) {
    Failure failure;
    for (u32 q = first; q < a.qps && failure.ok(); q += step) {
        failure.bits = warp.elect([&] {
            Endpoint<C> endpoint(a.qp[q]);
            Failure f = endpoint.quiet().failure;
            endpoint.save();
            return f.bits;
        });
    }
    return failure;
}

template <class C>
GIC_FN void rate(const RateArgs& a, u32 thread) {
    Warp warp(a.lanes == kWarp ? 0xffffffffu : 1u);
    u32 first_qp = C::shared ? 0 : thread;
    u32 step = C::shared ? 1 : a.threads;
    // An exclusive choice needs a queue pair a thread: one that has none says so, and posts nothing.
    if (first_qp >= a.qps) {
        a.failure[thread] = Failure::of(Why::too_large, 0, thread).bits;
        return;
    }
    u32 own = (a.qps - first_qp + step - 1) / step;
    Failure failure;
    if (own == 1) {
        // The usual case on a GPU: the indices stay in registers for the whole run.
        Endpoint<C> endpoint(a.qp[first_qp]);
        for (u64 i = 0; i < a.ops && failure.ok(); i += a.batch) {
            if (i == a.warmup) a.start[thread] = shared_clock();
            failure = post_batch(a, endpoint, thread, i, warp);
        }
        save(endpoint, warp);
    } else {
        u32 q = first_qp + (C::shared ? thread % own : 0);
        for (u64 i = 0; i < a.ops && failure.ok(); i += a.batch) {
            if (i == a.warmup) a.start[thread] = shared_clock();
            Endpoint<C> endpoint(a.qp[q]);
            failure = post_batch(a, endpoint, thread, i, warp);
            save(endpoint, warp);
            q += step;
            if (q >= a.qps) q = first_qp;
        }
    }
    if (failure.ok()) failure = quiet_own<C>(a, first_qp, step, warp);
    a.end[thread] = shared_clock();
    a.failure[thread] = failure.bits;
}

}  // namespace kernels
}  // namespace gic
