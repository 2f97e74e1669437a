// The orderings that a put needs, each named by its purpose, and what each mode spends on them.
//
// A put has three places where one thing must be seen before another by an observer that isn't this thread:
//
//   wqe before record       The NIC fetches the WQE (and then the payload) once the doorbell record says so:
//                           both must be readable by then. Example: record says 8, slot 7 still holds the
//                           last lap's WQE, and the NIC writes an old payload to an old address.
//   record before doorbell  The doorbell makes the NIC read the record. Example: the ring arrives first, the
//                           NIC reads the old producer and goes idle, and the put is never executed.
//   slot before turn        Queue pairs shared by threads: who rings must have seen every slot that he rings
//                           for. Ordered by the turn's own release and acquire (gda.hpp), in every mode.
//
// and one where another's writes must be seen:
//
//   completion before use   The CQE is read before what it announces is used or its slot is written again.
//
// A mode says *how* the first two are kept. `none` keeps neither and is there to be measured. Which scope is
// needed depends on who looks and where the memory is (`required_scope`): below it a mode is unsafe, also
// where no test ever saw it fail.
#pragma once

#include "gic/atomics.hpp"

namespace gic {

enum class Order : u32 {
    none = 0,                // program order only: not safe
    gpu_release = 1,         // record and doorbell are release stores, GPU scope
    gpu_fence = 2,           // a GPU-scope fence before each
    release_fence_mmio = 3,  // a system-scope fence before each, the doorbell a relaxed MMIO store
    system_fence = 4,        // a system-scope fence before each
    async_mmio = 5,          // system-scope fence, then an asynchronous MMIO store that releases (sm_100 on)
};
constexpr u32 kOrders = 6;
constexpr u32 kHostOrders = 5;  // all that a host can do

// Who has to see an ordering, and where the memory is that it looks at.
enum class Observer : u32 {
    this_gpu = 0,
    cpu = 1,
    pcie_device = 2,
    other_gpu = 3
};
enum class Memory : u32 {
    gpu = 0,
    host = 1
};

// The least scope at which `observer` sees stores to `memory` in the order that a GPU thread made them.
//
// This GPU's threads: GPU scope. A PCIe device that reads this GPU's memory is answered by the L2 cache,
// where a GPU-scope release has made the stores visible (NVSHMEM and DOCA rest on the same). Everything else
// is outside of what GPU scope speaks of: stores to host memory leave through a path that only system scope
// orders, and a CPU or another GPU may hold its own copy.
GIC_FN constexpr Scope required_scope(Observer observer, Memory memory) {
    return observer == Observer::this_gpu || (observer == Observer::pcie_device && memory == Memory::gpu)
               ? Scope::gpu
               : Scope::system;
}

// Whether `order` is at or above that scope.
GIC_FN constexpr bool is_safe(Order order, Observer observer, Memory memory) {
    if (order == Order::none) return false;
    bool system = order != Order::gpu_release && order != Order::gpu_fence;
    return system || required_scope(observer, memory) == Scope::gpu;
}

// Doorbell record and doorbell, in a mode.
template <Order O>
struct Ordering {
    // wqe before record.
    GIC_FN static void write_record(u32* record, u32 value) {
        if constexpr (O == Order::gpu_release) {
            mem::store_release<Scope::gpu>(record, value);
        } else {
            if constexpr (O == Order::gpu_fence) mem::fence<Scope::gpu>();
            if constexpr (O == Order::release_fence_mmio || O == Order::system_fence ||
                          O == Order::async_mmio)
                mem::fence<Scope::system>();
            mem::store_relaxed<Scope::system>(record, value);
        }
    }

    // record before doorbell.
    GIC_FN static void ring(u64* doorbell, u64 value) {
        if constexpr (O == Order::none) {
            mem::store_relaxed<Scope::system>(doorbell, value);
        } else if constexpr (O == Order::gpu_release) {
            mem::store_release<Scope::gpu>(doorbell, value);
        } else if constexpr (O == Order::gpu_fence) {
            mem::fence<Scope::gpu>();
            mem::store_relaxed<Scope::system>(doorbell, value);
        } else if constexpr (O == Order::release_fence_mmio) {
            mem::fence<Scope::system>();
            mem::store_mmio(doorbell, value);
        } else if constexpr (O == Order::system_fence) {
            mem::fence<Scope::system>();
            mem::store_relaxed<Scope::system>(doorbell, value);
        } else {
#if defined(GIC_HAS_ASYNC_MMIO)
            // The store's own release orders the record before it, and the thread doesn't wait for either.
            mem::store_mmio_async_release(doorbell, value);
#else
            static_assert(O != Order::async_mmio, "async_mmio needs sm_100 or newer");
#endif
        }
    }
};

// How a completion is read: `plain` may let later reads of the payload pass it, `acquire` may not.
enum class CqLoad : u32 {
    plain = 0,
    acquire = 1
};
constexpr u32 kCqLoads = 2;

// completion before use.
template <CqLoad L, class T>
GIC_FN T load_completion(const T* at) {
    if constexpr (L == CqLoad::acquire) {
        return mem::load_acquire<Scope::system>(at);
    } else {
        return mem::load_relaxed<Scope::system>(at);
    }
}

}  // namespace gic
