// One operation at a time: issue and completion, by the posting thread's own clock.
#pragma once

#include "gic/kernels/common.hpp"

namespace gic {
namespace kernels {

enum class Op : u32 {
    put = 0,
    put_inline = 1,
    get = 2,
    fetch_add = 3,
    put_signal = 4
};
constexpr u32 kOps = 5;

// What the completion routine covers.
enum class QuietScope : u32 {
    one = 0,
    used = 1,
    all = 2
};

// Operation i goes to queue pair i mod `qps`, from and to slot i mod `slots`, `stride` bytes apart, and marks
// its payload with first + i. The first `warmup` operations are not kept.
struct LatencyArgs {
    const Qp* qp;
    u32 qps;
    u32 scope;  // QuietScope
    u32 bytes;
    u32 slots;
    u64 stride;
    u64 warmup;
    u64 samples;
    u64 first;  // operation i marks its payload with first + i
    Local local;
    Remote remote;
    Local result;   // 8 bytes: what an atomic leaves
    Remote signal;  // 8 bytes: what put_signal and fetch_add add to
    const AddressVector* av;
    u64* issue;    // ticks, one a kept sample
    u64* total;    // ticks, issue and completion
    u64* failure;  // Failure, 0 if none
};
static_assert(sizeof(LatencyArgs) == 152, "mirrored by the host");

template <class C>
GIC_FN Failure quiet_all(const LatencyArgs& a) {
    for (u32 q = 0; q < a.qps; q++) {
        Endpoint<C> endpoint(a.qp[q]);
        Failure failure = endpoint.quiet().failure;
        endpoint.save();
        if (!failure.ok()) return failure;
    }
    return {};
}

template <class C, Op O>
GIC_FN void latency(const LatencyArgs& a) {
    u64 n = a.warmup + a.samples;
    How how;
    how.av = a.av;
    for (u64 i = 0; i < n; i++) {
        u64 slot = (i % a.slots) * a.stride;
        Local local = {a.local.address + slot, a.local.lkey};
        Remote remote = {a.remote.address + slot, a.remote.rkey};
        if constexpr (O == Op::put || O == Op::put_inline || O == Op::put_signal)
            write_payload(local.address, a.bytes, a.first + i);
        Endpoint<C> endpoint(a.qp[i % a.qps]);

        u64 start = clock_ticks();
        Posted p;
        if constexpr (O == Op::put) p = endpoint.put(remote, local, a.bytes, how);
        if constexpr (O == Op::put_inline)
            p = endpoint.put_inline(remote, reinterpret_cast<const u8*>(local.address), a.bytes, how);
        if constexpr (O == Op::get) p = endpoint.get(local, remote, a.bytes, how);
        if constexpr (O == Op::fetch_add) p = endpoint.fetch_add(a.signal, 1, a.result, how);
        if constexpr (O == Op::put_signal)
            p = endpoint.put_signal(remote, local, a.bytes, a.signal, 1, a.result, how);
        u64 issued = clock_ticks();
        Failure failure = p.failure;
        if (failure.ok()) {
            if (a.scope == static_cast<u32>(QuietScope::one)) {
                failure = endpoint.wait(p.ticket).failure;
                endpoint.save();
            } else if (a.scope == static_cast<u32>(QuietScope::used)) {
                // One operation at a time: the queue pair just used is the only one to be quieted.
                failure = endpoint.quiet().failure;
                endpoint.save();
            } else {
                endpoint.save();
                failure = quiet_all<C>(a);
            }
        }
        u64 done = clock_ticks();

        if (!failure.ok()) {
            *a.failure = failure.bits;
            return;
        }
        if (i >= a.warmup) {
            a.issue[i - a.warmup] = issued - start;
            a.total[i - a.warmup] = done - start;
        }
    }
}

}  // namespace kernels
}  // namespace gic
