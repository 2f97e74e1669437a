// What the experiments' kernels share: payloads that can be checked, and how a thread reports.
#pragma once

#include "gic/gda.hpp"

namespace gic {
namespace kernels {

// A payload's marks: `value` in its first 8 bytes and again in its last whole 8 (4 and 1 bytes where it is
// shorter). These are its producer's stores, made outside of every timed region.
GIC_FN void write_payload(u64 address, u32 bytes, u64 value) {
    u8* at = reinterpret_cast<u8*>(address);
    if (bytes >= 8) {
        mem::store_relaxed<Scope::system>(reinterpret_cast<u64*>(at), value);
        if (bytes >= 16)
            mem::store_relaxed<Scope::system>(reinterpret_cast<u64*>(at + (bytes / 8 - 1) * 8), value);
    } else if (bytes >= 4) {
        mem::store_relaxed<Scope::system>(reinterpret_cast<u32*>(at), static_cast<u32>(value));
    } else {
        for (u32 i = 0; i < bytes; i++)
            at[i] = static_cast<u8>(value >> (8 * i));
    }
}

// Slots of one thread: operation i of `ops` goes to slot i mod `slots`, and has the value first + i.
struct ThreadSlots {
    u64 at;  // address of the first
    u64 slots;
    u64 stride;
    u64 ops;
    u64 first;
};

// Marks each slot with the value of the last operation that goes to it, for the NIC to read whenever it likes: all
// operations on a slot carry that mark, so that nothing is stored while they are timed. Lane `lane` of `lanes` does
// its share.
GIC_COLD inline void mark_slots(const ThreadSlots& s, u32 bytes, u32 lane, u32 lanes) {
    u64 used = s.ops < s.slots ? s.ops : s.slots;
    for (u64 slot = lane; slot < used; slot += lanes) {
        u64 last = slot + (s.ops - 1 - slot) / s.slots * s.slots;
        write_payload(s.at + slot * s.stride, bytes, s.first + last);
    }
    mem::fence<Scope::system>();
}

// Threads of a kernel. A host thread is one of them by itself; on a GPU a thread, or a warp where lanes
// work together.
GIC_FN u32 gpu_thread() {
#if GIC_ON_GPU
    return blockIdx.x * blockDim.x + threadIdx.x;
#else
    return 0;
#endif
}

// A clock that all threads of a launch share, in ticks of its own.
GIC_FN u64 shared_clock() {
#if GIC_ON_GPU
    u64 t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)::"memory");
    return t;
#else
    return clock_ticks();
#endif
}

// Counts the caller in, then waits until `threads` have been. All of them must run at once.
GIC_FN Failure meet(u32* arrived, u32 threads, u64 deadline, u32 thread) {
    u32 seen = mem::fetch_add<Scope::gpu>(arrived, 1u) + 1;
    Wait time(deadline);
    while (static_cast<int>(seen - threads) < 0) {
        if (time.expired()) return Failure::of(Why::deadline_start, 0, thread);
        seen = mem::load_acquire<Scope::gpu>(arrived);
    }
    return {};
}

}  // namespace kernels
}  // namespace gic
