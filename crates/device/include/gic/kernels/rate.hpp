// Many operations: message rate by batch, queue pairs and sharing; bandwidth by payload.
#pragma once

#include "gic/kernels/common.hpp"

namespace gic {
namespace kernels {

// Thread t posts `ops` operations in batches of `batch`. With an exclusive choice it goes round the queue pairs
// t, t + threads, …; with a shared one all threads use all of them. Operation i of a thread goes to slot
// t * slots + i mod `slots` and has the value first + t * ops + i. An 8-byte payload that travels in the WQE is its
// operation's value. Any other is in memory: there each slot is marked, before the first post, with the value of the
// last operation that goes to it, and all that go to it carry that mark.
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
    u32 quiet;      // 0: nothing is waited for at the end; `ops` fit the queues where nothing completes
    u64 ops;        // a thread, warm-up included; a multiple of `batch`
    u64 warmup;     // a thread
    u64 first;      // of the launch's values: no two operations have the same
    u64 slots;      // below 2^31
    u64 stride;     // below 2^32
    Local local;
    Remote remote;
    u64* start;    // shared clock: warm-up done by all threads, one a thread
    u64* end;      // shared clock: all completed (posted, without quiet), one a thread
    u64* failure;  // one a thread
    u32* arrived;  // 0 before the launch: threads whose warm-up is over; null: no thread waits for the others
};
static_assert(sizeof(RateArgs) == 152, "mirrored by the host");

enum class Body : u32 {
    put = 0,
    put_inline = 1,
    put_value = 2,  // 8 bytes inline
    get = 3,
};

struct WarpValue {
    Remote remote;
    u64 value;
};
struct WarpOp {
    Remote remote;
    Local local;
    u32 bytes;
};

// Where a thread is in its operations, and the slots and values of the next ones. On a GPU each lane of a warp keeps
// its own place; a host thread, which is all lanes, keeps the first one's.
class Place {
  public:
    GIC_FN Place(const RateArgs& a, u32 thread)
        : slots_(static_cast<u32>(a.slots)), stride_(static_cast<u32>(a.stride)),
          slot_(a.lanes == kWarp ? wrap(own_lane()) : 0), base_(thread * a.slots * a.stride),
          value_(a.first + thread * a.ops + (a.lanes == kWarp ? own_lane() : 0)) {}

    // Of the lane's next operation.
    GIC_FN u64 offset(u32 lane = 0) const {
        return base_ + static_cast<u64>(GIC_ON_GPU ? slot_ : wrap(slot_ + lane)) * stride_;
    }
    GIC_FN u64 value(u32 lane = 0) const { return value_ + (GIC_ON_GPU ? 0 : lane); }
    GIC_FN void go(u32 by) {
        slot_ = wrap(slot_ + by);
        value_ += by;
    }

  private:
    GIC_FN static u32 own_lane() {
#if GIC_ON_GPU
        return threadIdx.x & (kWarp - 1);
#else
        return 0;
#endif
    }
    // One lap past the end at most where there are slots enough: a division would cost as much as the post.
    GIC_FN u32 wrap(u32 slot) const {
        u32 before = slot - slots_;
        if (before < slot) slot = before;
        return GIC_SELDOM(slot >= slots_) ? slot % slots_ : slot;
    }

    u32 slots_;
    u32 stride_;
    u32 slot_;
    u64 base_;
    u64 value_;
};

// One batch; returns its failure, to every lane.
template <class C, Body B, u32 Lanes>
GIC_FN Failure post_batch(const RateArgs& a, Endpoint<C>& endpoint, Place& place, const Warp& warp) {
    How how;
    if constexpr (C::ringing == Ringing::every_nth) how.nth = a.nth;
    auto last = [&](bool is) {
        how.signal = is;
        how.ring = is && (C::ringing != Ringing::every_nth || a.force != 0);
    };
    if constexpr (Lanes == kWarp) {
        auto post = [&](const Warp& part) {
            if constexpr (B == Body::put_value) {
                auto what = [&](u32 lane) {
                    return WarpValue{{a.remote.address + place.offset(lane), a.remote.rkey},
                                     place.value(lane)};
                };
                return endpoint.put_value_warp(part, what, how).failure;
            } else {
                auto what = [&](u32 lane) {
                    u64 at = place.offset(lane);
                    return WarpOp{{a.remote.address + at, a.remote.rkey},
                                  {a.local.address + at, a.local.lkey},
                                  a.bytes};
                };
                return endpoint.put_warp(part, what, how).failure;
            }
        };
#if GIC_ON_GPU
        // The usual batch: one post, of which everything is known.
        if (a.batch == kWarp) {
            last(true);
            Failure f = post(Warp());
            if constexpr (C::shared) f.bits = warp.elect([&] { return f.bits; });
            place.go(kWarp);
            return f;
        }
#endif
        for (u32 left = a.batch; left != 0;) {
            u32 count = left < kWarp ? left : kWarp;
            left -= count;
            last(left == 0);
            // With a mask that is known a GPU's warp has nothing to find out.
            Failure f = GIC_ON_GPU && count == kWarp
                            ? post(Warp())
                            : post(Warp(count == kWarp ? 0xffffffffu : (1u << count) - 1));
            // Lanes that took no part must leave with the others.
            if constexpr (C::shared) f.bits = warp.elect([&] { return f.bits; });
            if (GIC_SELDOM(!f.ok())) return f;
            place.go(count);
        }
    } else {
        for (u32 b = 0; b < a.batch; b++) {
            last(b + 1 == a.batch);
            u64 at = place.offset();
            Remote remote = {a.remote.address + at, a.remote.rkey};
            Local local = {a.local.address + at, a.local.lkey};
            Posted p;
            if constexpr (B == Body::put) p = endpoint.put(remote, local, a.bytes, how);
            if constexpr (B == Body::get) p = endpoint.get(local, remote, a.bytes, how);
            if constexpr (B == Body::put_value) p = endpoint.put_value(remote, place.value(), how);
            if constexpr (B == Body::put_inline)
                p = endpoint.put_inline(remote, reinterpret_cast<const u8*>(local.address), a.bytes, how);
            if (GIC_SELDOM(!p.failure.ok())) return p.failure;
            place.go(1);
        }
    }
    return {};
}

// The lane that posted has the indices.
template <class C>
GIC_FN void save(Endpoint<C>& endpoint, const Warp& warp) {
    warp.lead([&] { endpoint.save(); });
}

template <class C>
GIC_COLD Failure quiet_own(const RateArgs& a, u32 first, u32 step, const Warp& warp) {
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

// The threads' common start; the first lane waits for all.
GIC_COLD inline Failure start_together(const RateArgs& a, u32 thread, const Warp& warp, u64 deadline) {
    return {warp.elect([&] {
        Failure f;
        if (a.arrived != nullptr) f = meet(a.arrived, a.threads, deadline, thread);
        a.start[thread] = shared_clock();
        return f.bits;
    })};
}

template <class C, Body B, u32 Lanes>
GIC_FN void rate_of(const RateArgs& a, u32 thread) {
    Warp warp(Lanes == kWarp ? 0xffffffffu : 1u);
    u32 first_qp = C::shared ? 0 : thread;
    u32 step = C::shared ? 1 : a.threads;
    Failure failure;
    bool started = false;
    // An exclusive choice needs a queue pair a thread: one that has none says so, and posts nothing.
    if (first_qp >= a.qps) {
        failure = Failure::of(Why::too_large, 0, thread);
    } else {
        if constexpr (B == Body::put || B == Body::put_inline) {
            u64 at = a.local.address + thread * a.slots * a.stride;
            ThreadSlots mine = {at, a.slots, a.stride, a.ops, a.first + thread * a.ops};
            warp.each([&](u32 lane, u32) { mark_slots(mine, a.bytes, lane, warp.count()); });
            warp.sync();
        }
        Place place(a, thread);
        u64 deadline = a.qp[first_qp].deadline;
        u32 own = (a.qps - first_qp + step - 1) / step;
        u32 q = first_qp + (C::shared ? thread % own : 0);
        for (u64 i = 0; i < a.ops && failure.ok();) {
            // Indices stay in registers: where there is one queue pair, which is the usual case on a GPU, for the
            // whole run.
            Endpoint<C> endpoint(a.qp[q]);
            u64 end = own == 1 ? a.ops : i + a.batch;
            for (; i < end && failure.ok(); i += a.batch) {
                if (GIC_SELDOM(i == a.warmup)) {
                    started = true;
                    failure = start_together(a, thread, warp, deadline);
                    if (!failure.ok()) break;
                }
                failure = post_batch<C, B, Lanes>(a, endpoint, place, warp);
            }
            save(endpoint, warp);
            q += step;
            if (q >= a.qps) q = first_qp;
        }
        if (failure.ok() && a.quiet != 0) failure = quiet_own<C>(a, first_qp, step, warp);
    }
    warp.lead([&] {
        // Nobody waits for one that will never start.
        if (!started && a.arrived != nullptr) mem::fetch_add<Scope::gpu>(a.arrived, 1u);
        a.end[thread] = shared_clock();
        a.failure[thread] = failure.bits;
    });
}

template <class C>
GIC_FN void rate(const RateArgs& a, u32 thread) {
    if (a.lanes == kWarp) {
        if (a.is_inline != 0)
            rate_of<C, Body::put_value, kWarp>(a, thread);
        else
            rate_of<C, Body::put, kWarp>(a, thread);
    } else if (a.is_inline != 0) {
        if (a.bytes == 8)
            rate_of<C, Body::put_value, 1>(a, thread);
        else
            rate_of<C, Body::put_inline, 1>(a, thread);
    } else if (a.is_get != 0) {
        rate_of<C, Body::get, 1>(a, thread);
    } else {
        rate_of<C, Body::put, 1>(a, thread);
    }
}

}  // namespace kernels
}  // namespace gic
