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

// What the completion routine covers: the operation; the queue pairs used since it last ran, kept as a set of
// at most 64; every queue pair.
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

// Quiet on each queue pair of the scope; `endpoint` is the one of queue pair `current`.
template <class C>
GIC_FN Failure quiet_scope(const LatencyArgs& a, Endpoint<C>& endpoint, u32 current, u64 used) {
    bool all = a.scope == static_cast<u32>(QuietScope::all);
    Failure failure;
    for (u32 q = 0; q < a.qps && failure.ok(); q++) {
        if (!all) {
            // What isn't in the set costs a test of its bit, and no memory.
            if (used >> q == 0) break;
            if (((used >> q) & 1) == 0) continue;
        }
        if (q == current) {
            failure = endpoint.quiet().failure;
        } else {
            Endpoint<C> other(a.qp[q]);
            u64 before = other.consumed();
            failure = other.quiet().failure;
            if (other.consumed() != before) other.save();
        }
    }
    return failure;
}

// One operation, timed; false after a failure.
template <class C, Op O>
GIC_FN bool timed(const LatencyArgs& a, Endpoint<C>& endpoint, u32 qp, u64 i) {
    u64 slot = (i % a.slots) * a.stride;
    Local local = {a.local.address + slot, a.local.lkey};
    Remote remote = {a.remote.address + slot, a.remote.rkey};
    How how;
    how.av = a.av;
    if constexpr (O == Op::put || O == Op::put_inline || O == Op::put_signal)
        write_payload(local.address, a.bytes, a.first + i);

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
        failure = a.scope == static_cast<u32>(QuietScope::one)
                      ? endpoint.wait(p.ticket).failure
                      : quiet_scope(a, endpoint, qp, u64{1} << (qp & 63));
    }
    u64 done = clock_ticks();

    if (!failure.ok()) {
        *a.failure = failure.bits;
        return false;
    }
    if (i >= a.warmup) {
        a.issue[i - a.warmup] = issued - start;
        a.total[i - a.warmup] = done - start;
    }
    return true;
}

template <class C, Op O>
GIC_FN void latency(const LatencyArgs& a) {
    u64 n = a.warmup + a.samples;
    if (a.qps == 1) {
        // The indices stay in registers for the whole run.
        Endpoint<C> endpoint(a.qp[0]);
        for (u64 i = 0; i < n && timed<C, O>(a, endpoint, 0, i); i++) {
        }
        endpoint.save();
        return;
    }
    u32 qp = 0;
    bool ok = true;
    for (u64 i = 0; i < n && ok; i++) {
        Endpoint<C> endpoint(a.qp[qp]);
        ok = endpoint.is_loaded() && timed<C, O>(a, endpoint, qp, i);
        endpoint.save();
        if (++qp == a.qps) qp = 0;
    }
}

}  // namespace kernels
}  // namespace gic
