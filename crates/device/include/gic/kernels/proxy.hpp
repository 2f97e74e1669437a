// The CPU-proxied path: time to enqueue and to complete, rate, round trip.
#pragma once

#include "gic/kernels/common.hpp"
#include "gic/kernels/round_trip.hpp"
#include "gic/proxy.hpp"

namespace gic {
namespace kernels {

// Thread t pushes to ring t mod `rings`, from and to slot t * slots + i mod `slots`, `stride` bytes apart, and
// marks its payload with first + t * (warmup + samples) + i. Fetch-and-adds all go to the remote region's first
// word. One operation at a time; the first `warmup` are not kept. What is waited for between operations is the
// completion, or, to be timed, that the worker has posted; the completion then follows outside of the times.
enum class Until : u64 {
    completed = 0,
    posted = 1
};
struct EnqueueArgs {
    const Ring* ring;
    u32 rings;
    u32 threads;
    u32 channel;
    u32 bytes;
    u64 slots;
    u64 stride;
    u64 warmup;
    u64 samples;   // a thread
    u64 first;     // of the launch's payload values; no two operations have the same
    u64 local;     // address of the channel's local region: where payloads are written
    u64* enqueue;  // ticks, `samples` a thread
    u64* total;    // ticks, enqueue and what is waited for
    u64* failure;  // one a thread
    u64 until;     // Until
};
static_assert(sizeof(EnqueueArgs) == 104, "mirrored by the host");

// With requests that are known beforehand the host registers one a slot, in order.
template <class C, ProxyOp O>
GIC_FN Posted push_slot(Producer<C>& producer, u32 channel, u32 bytes, u64 offset) {
    if constexpr (C::handoff == Handoff::mapped_counter) return producer.raise();
    // Adds 1 to the remote region's first word.
    else if constexpr (O == ProxyOp::fetch_add)
        return producer.push({O, channel, 1, offset, 0});
    else
        return producer.push({O, channel, bytes, offset, offset});
}

// A posted store orders nothing, so that what it announces must be visible before. Made outside of the times of
// single operations, as the payload's own stores are.
template <class C>
GIC_FN void settle_payload() {
    if constexpr (C::publish == Publish::posted) mem::fence<Scope::system>();
}

// A lone producer keeps its indices to itself: a second one on its ring would overwrite its slots. A thread that
// has no ring of its own says so, and pushes nothing.
template <class C>
GIC_FN bool has_ring(u32 thread, u32 rings, u64* failure) {
    if (C::shared || thread < rings) return true;
    failure[thread] = Failure::of(Why::too_large, 0, thread).bits;
    return false;
}

template <class C, ProxyOp O>
GIC_FN void enqueue(const EnqueueArgs& a, u32 thread) {
    if (!has_ring<C>(thread, a.rings, a.failure)) return;
    Producer<C> producer(a.ring[thread % a.rings]);
    u64 n = a.warmup + a.samples;
    u64* enqueue = a.enqueue + thread * a.samples;
    u64* total = a.total + thread * a.samples;
    u64 value = a.first + thread * n;
    Failure failure;
    for (u64 i = 0; i < n && failure.ok(); i++) {
        u64 offset = (thread * a.slots + i % a.slots) * a.stride;
        if constexpr (O == ProxyOp::put || O == ProxyOp::put_signal)
            write_payload(a.local + offset, a.bytes, value + i);
        settle_payload<C>();

        u64 start = clock_ticks();
        Posted p = push_slot<C, O>(producer, a.channel, a.bytes, offset);
        u64 pushed = clock_ticks();
        failure = p.failure;
        if (failure.ok()) {
            failure = a.until == static_cast<u64>(Until::posted) ? producer.wait_posted(p.ticket)
                                                                 : producer.wait(p.ticket).failure;
        }
        u64 done = clock_ticks();
        if (failure.ok() && a.until == static_cast<u64>(Until::posted))
            failure = producer.wait(p.ticket).failure;

        if (i >= a.warmup) {
            enqueue[i - a.warmup] = pushed - start;
            total[i - a.warmup] = done - start;
        }
    }
    producer.save();
    a.failure[thread] = failure.bits;
}

// Thread t pushes `ops` puts to the rings t, t + threads, … in turn (to ring t mod `rings` where there are more
// threads), in bursts of half a window, with at most about `window` of a ring not completed.
struct ProxyRateArgs {
    const Ring* ring;
    u32 rings;
    u32 threads;
    u32 channels;  // operation i goes to channel i mod `channels`
    u32 bytes;
    u64 ops;     // a thread, warm-up included
    u64 warmup;  // a thread
    u64 window;  // at least 2
    u64 first;   // operation i of thread t has the value first + t * ops + i
    u64 slots;  // each is marked, before the first push, with the value of the last operation that goes to it
    u64 stride;
    u64 local;     // address of the channels' local region
    u64* start;    // shared clock: warm-up done, one a thread
    u64* end;      // shared clock: all completed, one a thread
    u64* failure;  // one a thread
};
static_assert(sizeof(ProxyRateArgs) == 104, "mirrored by the host");

template <class C>
GIC_FN void proxy_rate(const ProxyRateArgs& a, u32 thread) {
    if (!has_ring<C>(thread, a.rings, a.failure)) return;
    Failure failure;
    ThreadSlots mine = {a.local + thread * a.slots * a.stride, a.slots, a.stride, a.ops,
                        a.first + thread * a.ops};
    mark_slots(mine, a.bytes, 0, 1);
    u64 half = a.window / 2;
    u32 first = thread % a.rings, ring = first;
    u64 slot = 0;
    u32 channel = 0;
    for (u64 i = 0; i < a.ops && failure.ok();) {
        if (i == a.warmup) a.start[thread] = shared_clock();
        u64 end = i < a.warmup ? a.warmup : a.ops;
        u64 burst = end - i < half ? end - i : half;
        Producer<C> producer(a.ring[ring]);
        u64 pushed = producer.pushed();
        if (pushed > half) failure = producer.wait(pushed - half).failure;
        for (u64 b = 0; b < burst && failure.ok(); b++, i++) {
            u64 offset = (thread * a.slots + slot) * a.stride;
            failure = push_slot<C, ProxyOp::put>(producer, channel, a.bytes, offset).failure;
            if (++slot == a.slots) slot = 0;
            if (++channel == a.channels) channel = 0;
        }
        producer.save();
        ring += a.threads;
        if (ring >= a.rings) ring = first;
    }
    for (ring = first; ring < a.rings && failure.ok(); ring += a.threads) {
        Producer<C> producer(a.ring[ring]);
        failure = producer.quiet().failure;
        producer.save();
    }
    a.end[thread] = shared_clock();
    a.failure[thread] = failure.bits;
}

// A request and the remote thread's reply, each an 8-byte put through its side's own proxy. Offsets 0 of
// channel 0 are where a side's value leaves from and where it arrives.
struct ProxyRoundTripArgs {
    const Ring* ring;  // one a side: 0 asks, 1 answers
    u64* outbox[2];
    u64* inbox[2];  // where the other side's value arrives
    u64 warmup;
    u64 samples;
    u64 deadline;    // ticks, of one wait
    u64* ticks;      // one a kept sample
    u64* failure;    // one a side
    u32 first_side;  // of this launch: the other one may be another process's
    u32 sides;
};
static_assert(sizeof(ProxyRoundTripArgs) == 88, "mirrored by the host");

template <class C>
GIC_FN void proxy_round_trip(const ProxyRoundTripArgs& a, u32 side) {
    Producer<C> producer(a.ring[side]);
    u32 qpn = a.ring[side].qpn;
    u64 n = a.warmup + a.samples;
    Failure failure;
    for (u64 i = 0; i < n && failure.ok(); i++) {
        u64 start = clock_ticks();
        if (side == 0) {
            mem::store_relaxed<Scope::system>(a.outbox[0], i + 1);
            settle_payload<C>();
            failure = push_slot<C, ProxyOp::put>(producer, 0, 8, 0).failure;
        }
        if (failure.ok()) failure = await_value(a.inbox[side], i + 1, a.deadline, qpn);
        if (failure.ok() && side == 1) {
            mem::store_relaxed<Scope::system>(a.outbox[1], i + 1);
            settle_payload<C>();
            failure = push_slot<C, ProxyOp::put>(producer, 0, 8, 0).failure;
        }
        u64 done = clock_ticks();
        if (side == 0 && i >= a.warmup) a.ticks[i - a.warmup] = done - start;
    }
    if (failure.ok()) failure = producer.quiet().failure;
    producer.save();
    a.failure[side] = failure.bits;
}

}  // namespace kernels
}  // namespace gic
