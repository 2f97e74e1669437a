// Every access to memory that another thread, CPU or device also touches goes through here.
//
// One vocabulary, three back ends: PTX on the GPU, the compiler's atomics on the host, and calls into a model
// checker (GIC_MODEL), so that what is model-checked is these headers and not a copy of them. A host has no
// scopes: there every scope is the whole machine, and no host test can tell a missing one.
#pragma once

#include "gic/platform.hpp"

#if defined(GIC_MODEL)
extern "C" {
unsigned long long gic_model_load(const void* at, unsigned bytes, int acquire);
void gic_model_store(void* at, unsigned bytes, unsigned long long value, int release);
unsigned long long gic_model_add(void* at, unsigned bytes, unsigned long long value, int ordered);
unsigned long long gic_model_max(void* at, unsigned bytes, unsigned long long value);
// Returns what was there; stores only where that equals `expected`.
unsigned long long gic_model_cas(void* at, unsigned bytes, unsigned long long expected,
                                 unsigned long long desired);
void gic_model_fence();
}
#endif

namespace gic {

// Who must see an ordering: the threads of this GPU, every observer in the system, or the threads of a block.
enum class Scope : u32 {
    gpu = 0,
    system = 1,
    block = 2
};

#if defined(__SANITIZE_THREAD__)
inline u64 tsan_fence_word;
#endif

namespace mem {

#if GIC_ON_GPU
#define GIC_PTX_LOAD(sem, scope)                                                                             \
    if constexpr (sizeof(T) == 8) {                                                                          \
        u64 v;                                                                                               \
        asm volatile("ld." sem scope ".global.u64 %0, [%1];" : "=l"(v) : "l"(at) : "memory");                \
        return static_cast<T>(v);                                                                            \
    } else if constexpr (sizeof(T) == 2) {                                                                   \
        u16 v;                                                                                               \
        asm volatile("ld." sem scope ".global.u16 %0, [%1];" : "=h"(v) : "l"(at) : "memory");                \
        return static_cast<T>(v);                                                                            \
    } else if constexpr (sizeof(T) == 1) {                                                                   \
        u16 v;                                                                                               \
        asm volatile("ld." sem scope ".global.u8 %0, [%1];" : "=h"(v) : "l"(at) : "memory");                 \
        return static_cast<T>(v);                                                                            \
    } else {                                                                                                 \
        u32 v;                                                                                               \
        asm volatile("ld." sem scope ".global.u32 %0, [%1];" : "=r"(v) : "l"(at) : "memory");                \
        return static_cast<T>(v);                                                                            \
    }
#define GIC_PTX_STORE(sem, scope)                                                                            \
    if constexpr (sizeof(T) == 8) {                                                                          \
        asm volatile("st." sem scope ".global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");              \
    } else {                                                                                                 \
        asm volatile("st." sem scope ".global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");              \
    }
#define GIC_PTX_ATOM_OF(sem, op, scope)                                                                      \
    if constexpr (sizeof(T) == 8) {                                                                          \
        u64 v;                                                                                               \
        asm volatile("atom." sem scope ".global." op ".u64 %0, [%1], %2;"                                    \
                     : "=l"(v)                                                                               \
                     : "l"(at), "l"(value)                                                                   \
                     : "memory");                                                                            \
        return static_cast<T>(v);                                                                            \
    } else {                                                                                                 \
        u32 v;                                                                                               \
        asm volatile("atom." sem scope ".global." op ".u32 %0, [%1], %2;"                                    \
                     : "=r"(v)                                                                               \
                     : "l"(at), "r"(value)                                                                   \
                     : "memory");                                                                            \
        return static_cast<T>(v);                                                                            \
    }
#define GIC_PTX_ATOM(op, scope) GIC_PTX_ATOM_OF("acq_rel", op, scope)
#define GIC_PTX_ATOM_RELAXED(op, scope) GIC_PTX_ATOM_OF("relaxed", op, scope)
#define GIC_PTX_SCOPED(macro, arg)                                                                           \
    if constexpr (S == Scope::gpu) {                                                                         \
        macro(arg, ".gpu")                                                                                   \
    } else if constexpr (S == Scope::block) {                                                                \
        macro(arg, ".cta")                                                                                   \
    } else {                                                                                                 \
        macro(arg, ".sys")                                                                                   \
    }
#endif

template <Scope S, class T>
GIC_FN T load_relaxed(const T* at) {
#if GIC_ON_GPU
    GIC_PTX_SCOPED(GIC_PTX_LOAD, "relaxed")
#elif defined(GIC_MODEL)
    return static_cast<T>(gic_model_load(at, sizeof(T), 0));
#else
    return __atomic_load_n(at, __ATOMIC_RELAXED);
#endif
}

template <Scope S, class T>
GIC_FN T load_acquire(const T* at) {
#if GIC_ON_GPU
    GIC_PTX_SCOPED(GIC_PTX_LOAD, "acquire")
#elif defined(GIC_MODEL)
    return static_cast<T>(gic_model_load(at, sizeof(T), 1));
#else
    return __atomic_load_n(at, __ATOMIC_ACQUIRE);
#endif
}

template <Scope S, class T>
GIC_FN void store_relaxed(T* at, T value) {
#if GIC_ON_GPU
    GIC_PTX_SCOPED(GIC_PTX_STORE, "relaxed")
#elif defined(GIC_MODEL)
    gic_model_store(at, sizeof(T), value, 0);
#else
    __atomic_store_n(at, value, __ATOMIC_RELAXED);
#endif
}

template <Scope S, class T>
GIC_FN void store_release(T* at, T value) {
#if GIC_ON_GPU
    GIC_PTX_SCOPED(GIC_PTX_STORE, "release")
#elif defined(GIC_MODEL)
    gic_model_store(at, sizeof(T), value, 1);
#else
    __atomic_store_n(at, value, __ATOMIC_RELEASE);
#endif
}

// Returns the value before. Acquires and releases.
template <Scope S, class T>
GIC_FN T fetch_add(T* at, T value) {
#if GIC_ON_GPU
    GIC_PTX_SCOPED(GIC_PTX_ATOM, "add")
#elif defined(GIC_MODEL)
    return static_cast<T>(gic_model_add(at, sizeof(T), value, 1));
#else
    return __atomic_fetch_add(at, value, __ATOMIC_ACQ_REL);
#endif
}

// The same, but nothing else is ordered by it: for numbers that are only to be different. It spares a fence.
template <Scope S, class T>
GIC_FN T fetch_add_relaxed(T* at, T value) {
#if GIC_ON_GPU
    GIC_PTX_SCOPED(GIC_PTX_ATOM_RELAXED, "add")
#elif defined(GIC_MODEL)
    return static_cast<T>(gic_model_add(at, sizeof(T), value, 0));
#else
    return __atomic_fetch_add(at, value, __ATOMIC_RELAXED);
#endif
}

// Raises a word that only grows. Acquires and releases.
template <Scope S, class T>
GIC_FN T fetch_max(T* at, T value) {
#if GIC_ON_GPU
    GIC_PTX_SCOPED(GIC_PTX_ATOM, "max")
#elif defined(GIC_MODEL)
    return static_cast<T>(gic_model_max(at, sizeof(T), value));
#else
    T seen = __atomic_load_n(at, __ATOMIC_RELAXED);
    while (seen < value &&
           !__atomic_compare_exchange_n(at, &seen, value, true, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
    }
    return seen;
#endif
}

// Returns what was there: `expected` exactly where `desired` was stored. Acquires and releases.
template <Scope S, class T>
GIC_FN T compare_and_swap(T* at, T expected, T desired) {
    static_assert(S != Scope::block, "not written out");
#if GIC_ON_GPU
    if constexpr (sizeof(T) == 8) {
        u64 v;
        if constexpr (S == Scope::gpu) {
            asm volatile("atom.acq_rel.gpu.global.cas.b64 %0, [%1], %2, %3;"
                         : "=l"(v)
                         : "l"(at), "l"(expected), "l"(desired)
                         : "memory");
        } else {
            asm volatile("atom.acq_rel.sys.global.cas.b64 %0, [%1], %2, %3;"
                         : "=l"(v)
                         : "l"(at), "l"(expected), "l"(desired)
                         : "memory");
        }
        return static_cast<T>(v);
    } else {
        u32 v;
        if constexpr (S == Scope::gpu) {
            asm volatile("atom.acq_rel.gpu.global.cas.b32 %0, [%1], %2, %3;"
                         : "=r"(v)
                         : "l"(at), "r"(expected), "r"(desired)
                         : "memory");
        } else {
            asm volatile("atom.acq_rel.sys.global.cas.b32 %0, [%1], %2, %3;"
                         : "=r"(v)
                         : "l"(at), "r"(expected), "r"(desired)
                         : "memory");
        }
        return static_cast<T>(v);
    }
#elif defined(GIC_MODEL)
    return static_cast<T>(gic_model_cas(at, sizeof(T), expected, desired));
#else
    __atomic_compare_exchange_n(at, &expected, desired, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    return expected;
#endif
}

// What was written or read before is ordered before what is written after, for observers in the scope.
template <Scope S>
GIC_FN void fence() {
#if GIC_ON_GPU
    if constexpr (S == Scope::gpu) {
        asm volatile("fence.acq_rel.gpu;" ::: "memory");
    } else if constexpr (S == Scope::block) {
        asm volatile("fence.acq_rel.cta;" ::: "memory");
    } else {
        asm volatile("fence.acq_rel.sys;" ::: "memory");
    }
#elif defined(GIC_MODEL)
    gic_model_fence();
#elif defined(__SANITIZE_THREAD__)
    // The sanitizer knows no fences. A read-modify-write of one word stands in for them; it can't tell a
    // fence on the wrong side of its store.
    __atomic_fetch_add(&tsan_fence_word, 0, __ATOMIC_ACQ_REL);
#elif !defined(__CUDACC__)
    __atomic_thread_fence(__ATOMIC_ACQ_REL);
#endif
}

// A store to a device register: never merged, split or repeated.
GIC_FN void store_mmio(u64* at, u64 value) {
#if GIC_ON_GPU
    asm volatile("st.mmio.relaxed.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
#else
    store_relaxed<Scope::system>(at, value);
#endif
}

// A device register store that carries release ordering with it and doesn't stall the thread (sm_100 on).
#if !GIC_ON_GPU || __CUDA_ARCH__ >= 1000
#define GIC_HAS_ASYNC_MMIO 1
GIC_FN void store_mmio_async_release(u64* at, u64 value) {
#if GIC_ON_GPU
    asm volatile("st.async.mmio.release.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
#else
    store_release<Scope::system>(at, value);
#endif
}
#endif

// 16 bytes of a slot that its owner alone writes and that nobody reads before a later, ordered store.
// On the GPU one vector store past L1; the two words are in the memory's own byte order.
GIC_FN void store_slot16(void* at, u64 low, u64 high) {
#if GIC_ON_GPU
    asm volatile("st.global.wt.v2.u64 [%0], {%1, %2};" ::"l"(at), "l"(low), "l"(high) : "memory");
#elif defined(__SANITIZE_THREAD__)
    // Plain, so that the sanitizer sees a slot that is reused too early.
    static_cast<u64*>(at)[0] = low;
    static_cast<u64*>(at)[1] = high;
#else
    store_relaxed<Scope::system>(static_cast<u64*>(at), low);
    store_relaxed<Scope::system>(static_cast<u64*>(at) + 1, high);
#endif
}

// 16 bytes that a reader may poll while they are written. PTX promises no order and no unity of the two
// halves: each must tell by itself whether it is new.
GIC_FN void store_posted16(void* at, u64 low, u64 high) {
#if GIC_ON_GPU
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(at), "l"(low), "l"(high) : "memory");
#else
    store_relaxed<Scope::system>(static_cast<u64*>(at), low);
    store_relaxed<Scope::system>(static_cast<u64*>(at) + 1, high);
#endif
}

// The same, after everything that this thread wrote or saw before.
GIC_FN void store_posted16_release(void* at, u64 low, u64 high) {
#if GIC_ON_GPU
    asm volatile("st.release.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(at), "l"(low), "l"(high) : "memory");
#else
    store_release<Scope::system>(static_cast<u64*>(at), low);
    store_release<Scope::system>(static_cast<u64*>(at) + 1, high);
#endif
}

}  // namespace mem
}  // namespace gic
