// What every part of the NIC engine uses: the warp's own memory, states and findings, CQEs, atomics.
#pragma once

#include "gic/nic_lanes.hpp"
#include "gic/nic_types.hpp"

namespace gic {
namespace nic {

// A region that a warp has used.
struct CachedRegion {
    u32 key;
    u32 nic;
    u64 base;
    u64 length;
    u32 access;
    u32 padding;
};

// A warp's own memory: on a GPU shared memory, so that no step waits for the tables. Starts as zeros.
struct Scratch {
    u64 wqe[128];  // read once
    u64 answer[4];
    CachedRegion regions[16];
    // The queue pair that is served: its parts, and whom its requests are for.
    Qp* qp;
    Qp* peer;  // null where nobody would answer, and of a DC initiator
    u32 peer_nic;
    u32 peer_access;
    QpFixed fixed;
    QpOwn own;
};

// Runs `body` on one lane; the others see what it wrote.
template <class Body>
GIC_FN void once(Body body) {
    Warp warp;
    warp.sync();
    warp.elect([&] {
        body();
        return u64{0};
    });
    warp.sync();
}

GIC_FN u64 now_ns(const Tables& t) {
#if GIC_ON_GPU
    (void)t;
    u64 ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns)::"memory");
    return ns;
#else
    return mem::load_relaxed<Scope::system>(t.host_now);
#endif
}

// One lane calls it, of any engine.
GIC_APART void report(const Tables& t, u32 nic, FindingKind kind, u32 qpn, u64 index, u32 found,
                      u32 depth = 0) {
    u32 nth = mem::fetch_add<Scope::system>(t.nics[nic].finding_count, 1u);
    if (nth < kMaxFindings) t.nics[nic].findings[nth] = {static_cast<u32>(kind), qpn, index, found, depth};
}

// The queue pair's state becomes ERROR. One lane calls it, of any engine.
GIC_FN void break_qp(Qp& qp, Cause cause) {
    mem::compare_and_swap<Scope::system>(&qp.shared.error, 0u, cause.bits);
    mem::store_release<Scope::system>(&qp.shared.state, static_cast<u32>(State::error));
}

// A queue pair's receive lock. Engines of several GPUs take it in turn; among the warps of one it costs less.
GIC_FN bool take_lock(const Tables& t, Qp& qp) {
    u32* lock = &qp.shared.receive_lock;
    u32 held = t.engines == 1 ? mem::compare_and_swap<Scope::gpu>(lock, 0u, 1u)
                              : mem::compare_and_swap<Scope::system>(lock, 0u, 1u);
    return held == 0;
}
GIC_FN void give_lock(const Tables& t, Qp& qp) {
    u32* lock = &qp.shared.receive_lock;
    if (t.engines == 1) {
        mem::store_release<Scope::gpu>(lock, 0u);
    } else {
        mem::store_release<Scope::system>(lock, 0u);
    }
}

// What a CQE says.
struct Entry {
    u32 kind;  // high nibble of op_own: 0 requester, 1 to 3 responder, 13 and 14 errors
    u32 opcode;
    u32 qpn;
    u32 index;
    u32 bytes = 0;
    u32 imm = 0;  // as it lies in memory
    Cause cause = {};
};

// The CQE's last 8 bytes, which are written last.
GIC_FN constexpr u64 entry_tail(u32 kind, u32 opcode, u32 qpn, u32 index, u64 produced, u32 log_size) {
    u32 owner = static_cast<u32>(produced >> log_size) & 1;
    u32 counter = (index & 0xff) << 8 | (index >> 8 & 0xff);
    return static_cast<u64>(kind << 4 | owner) << 56 | static_cast<u64>(counter) << 32 |
           be32(opcode << 24 | (qpn & 0xffffff));
}

// Whether the CQ has room for `entries` more, as far as its consumer says. One lane calls it.
GIC_FN bool has_room(Cq& cq, u64 entries) {
    if (cq.flags & kIgnoreOverrun) return true;
    u64 size = u64{1} << cq.log_size;
    if (cq.produced - cq.consumed + entries <= size) return true;
    u32 record = be32(mem::load_acquire<Scope::system>(cq.record));
    u32 ahead = (record - static_cast<u32>(cq.consumed)) & 0xffffff;
    // A consumer can't be past the producer: such a record says nothing.
    if (ahead <= cq.produced - cq.consumed) cq.consumed += ahead;
    return cq.produced - cq.consumed + entries <= size;
}

// Writes the next entry, after everything before it; false if the CQ ran over. One lane calls it.
template <Scope S>
GIC_FN bool push(const Tables& t, u32 nic, Cq& cq, const Entry& e) {
    if (cq.in_error) return false;
    if (!has_room(cq, 1)) {
        cq.in_error = 1;
        report(t, nic, FindingKind::cq_overrun, e.qpn, cq.number, 0);
        return false;
    }
    u64 slot = cq.flags & kCollapsed ? 0 : cq.produced & ((u64{1} << cq.log_size) - 1);
    u8* at = cq.ring + slot * 64;
    store16<S>(at, {0, 0});
    store16<S>(at + 16, {0, 0});
    store16<S>(at + 32, {static_cast<u64>(e.imm) << 32, static_cast<u64>(be32(e.bytes)) << 32});
    u64* last = reinterpret_cast<u64*>(at + 48);
    mem::store_relaxed<S>(last, be64(e.cause.vendor() << 8 | e.cause.syndrome()));
    mem::store_release<S>(last + 1, entry_tail(e.kind, e.opcode, e.qpn, e.index, cq.produced, cq.log_size));
    cq.produced += 1;
    return true;
}

struct Operands {
    u64 value;  // to swap in or to add
    u64 compare;
    u64 swap_mask;
    u64 compare_mask;  // a fetch-and-add's boundary
    bool is_add;
};

GIC_FN bool apply(const Operands& o, u64 old, u64& next) {
    if (o.is_add) {
        // A set bit ends a field: its sum is kept, its carry is not.
        u64 boundary = o.compare_mask;
        next = ((old & ~boundary) + (o.value & ~boundary)) ^ ((old ^ o.value) & boundary);
        return true;
    }
    next = (old & ~o.swap_mask) | (o.value & o.swap_mask);
    return ((old ^ o.compare) & o.compare_mask) == 0;
}

// Returns the value before. What was placed before is seen by who sees the new one.
//
// Atomic at `Among`: among the threads of the GPUs that engines run on, and so among all requests to this NIC, as
// RDMA promises it. A CPU's own atomics on host memory are not part of it, and a GPU can't take part in theirs over
// PCIe.
template <Scope S, Scope Among, class T>
GIC_FN u64 modify(u64 address, const Operands& o) {
    T* at = reinterpret_cast<T*>(address);
    bool is_plain_add = o.is_add && o.compare_mask == 0;
    if (S == Scope::system || !is_plain_add) mem::fence<S>();
    if (is_plain_add) return mem::fetch_add<Among>(at, static_cast<T>(o.value));
    T old = mem::load_relaxed<S>(at);
    for (;;) {
        u64 next;
        if (!apply(o, old, next)) return old;
        T seen = mem::compare_and_swap<Among>(at, old, static_cast<T>(next));
        if (seen == old) return old;
        old = seen;
    }
}

template <Scope S>
GIC_FN u64 modify(const Tables& t, u64 address, u32 size, const Operands& o) {
    // With one engine S may be `system` for the memory's sake alone.
    if (t.engines == 1)
        return size == 8 ? modify<S, Scope::gpu, u64>(address, o) : modify<S, Scope::gpu, u32>(address, o);
    return size == 8 ? modify<S, Scope::system, u64>(address, o) : modify<S, Scope::system, u32>(address, o);
}

}  // namespace nic
}  // namespace gic
