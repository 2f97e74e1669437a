// Accesses that only libraries' puts are made of (like*.hpp), beside those of atomics.hpp: relaxed atomics, CUDA's own
// fences, halves of fences, weak loads, and accesses by addresses of any memory. A host has no use for less than acquire
// and release.
#pragma once

#include "gic/atomics.hpp"

namespace gic {
namespace mem {

// As `fetch_max`, ordering nothing else.
template <Scope S, class T>
GIC_FN T fetch_max_relaxed(T* at, T value) {
#if GIC_ON_GPU
    GIC_PTX_SCOPED(GIC_PTX_ATOM_RELAXED, "max")
#else
    return fetch_max<S>(at, value);
#endif
}

// As `compare_and_swap`, ordering nothing else.
template <Scope S, class T>
GIC_FN T compare_and_swap_relaxed(T* at, T expected, T desired) {
#if GIC_ON_GPU
    if constexpr (sizeof(T) == 8) {
        u64 v;
        if constexpr (S == Scope::block) {
            asm volatile("atom.relaxed.cta.global.cas.b64 %0, [%1], %2, %3;"
                         : "=l"(v)
                         : "l"(at), "l"(expected), "l"(desired)
                         : "memory");
        } else {
            asm volatile("atom.relaxed.gpu.global.cas.b64 %0, [%1], %2, %3;"
                         : "=l"(v)
                         : "l"(at), "l"(expected), "l"(desired)
                         : "memory");
        }
        return static_cast<T>(v);
    } else {
        u32 v;
        if constexpr (S == Scope::block) {
            asm volatile("atom.relaxed.cta.global.cas.b32 %0, [%1], %2, %3;"
                         : "=r"(v)
                         : "l"(at), "r"(expected), "r"(desired)
                         : "memory");
        } else {
            asm volatile("atom.relaxed.gpu.global.cas.b32 %0, [%1], %2, %3;"
                         : "=r"(v)
                         : "l"(at), "r"(expected), "r"(desired)
                         : "memory");
        }
        return static_cast<T>(v);
    }
#else
    return compare_and_swap<Scope::gpu>(at, expected, desired);
#endif
}

// As `fetch_add`, without acquiring.
template <class T>
GIC_FN T fetch_add_release_gpu(T* at, T value) {
#if GIC_ON_GPU
    GIC_PTX_ATOM_OF("release", "add", ".gpu")
#else
    return fetch_add<Scope::gpu>(at, value);
#endif
}

// A byte that the other side of the bus polls.
GIC_FN void store_mmio8(u8* at, u8 value) {
#if GIC_ON_GPU
    asm volatile("st.mmio.relaxed.sys.global.u8 [%0], %1;" ::"l"(at), "h"(static_cast<u16>(value))
                 : "memory");
#else
    store_release<Scope::system>(at, value);
#endif
}
GIC_FN u8 load_mmio8(const u8* at) {
#if GIC_ON_GPU
    u16 v;
    asm volatile("ld.mmio.relaxed.sys.global.u8 %0, [%1];" : "=h"(v) : "l"(at) : "memory");
    return static_cast<u8>(v);
#else
    return load_acquire<Scope::system>(at);
#endif
}

// Half of a fence: what was written before, or what is read after. sm_90 and newer.
template <Scope S>
GIC_FN void fence_release() {
#if GIC_ON_GPU
    if constexpr (S == Scope::gpu)
        asm volatile("fence.release.gpu;" ::: "memory");
    else if constexpr (S == Scope::block)
        asm volatile("fence.release.cta;" ::: "memory");
    else
        asm volatile("fence.release.sys;" ::: "memory");
#else
    fence<S>();
#endif
}
template <Scope S>
GIC_FN void fence_acquire() {
#if GIC_ON_GPU
    if constexpr (S == Scope::gpu)
        asm volatile("fence.acquire.gpu;" ::: "memory");
    else if constexpr (S == Scope::block)
        asm volatile("fence.acquire.cta;" ::: "memory");
    else
        asm volatile("fence.acquire.sys;" ::: "memory");
#else
    fence<S>();
#endif
}

// CUDA's own fences: sequentially consistent.
template <Scope S>
GIC_FN void fence_sequential() {
#if GIC_ON_GPU
    if constexpr (S == Scope::gpu)
        __threadfence();
    else
        __threadfence_system();
#else
    fence<S>();
#endif
}

// Weak accesses, which a cache may answer: of words that one thread has, or that are only to be read.
template <class T>
GIC_FN T load_weak(const T* at) {
#if GIC_ON_GPU
    return *at;
#else
    return load_relaxed<Scope::gpu>(at);
#endif
}
template <class T>
GIC_FN void store_weak(T* at, T value) {
#if GIC_ON_GPU
    *at = value;
#else
    store_relaxed<Scope::gpu>(at, value);
#endif
}
// Of memory that doesn't change while the kernel runs.
template <class T>
GIC_FN T load_constant(const T* at) {
#if GIC_ON_GPU
    return __ldg(at);
#else
    return *at;
#endif
}
template <class T>
GIC_FN T* load_constant(T* const* at) {
    return reinterpret_cast<T*>(load_constant(reinterpret_cast<const u64*>(at)));
}

// Of memory that doesn't change either, but asked for again each time.
GIC_FN u32 load_again(const u32* at) {
#if GIC_ON_GPU
    u32 v;
    asm volatile("ld.u32 %0, [%1];" : "=r"(v) : "l"(at));
    return v;
#else
    return *at;
#endif
}
// A byte that the NIC writes, not to be kept by a cache.
GIC_FN u8 load_byte_passing(const u8* at) {
#if GIC_ON_GPU
    u16 v;
    asm volatile("ld.relaxed.sys.global.L1::no_allocate.u8 %0, [%1];" : "=h"(v) : "l"(at) : "memory");
    return static_cast<u8>(v);
#else
    return load_relaxed<Scope::system>(at);
#endif
}
// Words that are not to be kept by a cache, seen by the GPU's threads one after the other.
template <class T>
GIC_FN T load_passing(const T* at) {
#if GIC_ON_GPU
    if constexpr (sizeof(T) == 8) {
        u64 v;
        asm volatile("ld.relaxed.gpu.global.L1::no_allocate.u64 %0, [%1];" : "=l"(v) : "l"(at) : "memory");
        return static_cast<T>(v);
    } else {
        static_assert(sizeof(T) == 2, "not written out");
        u16 v;
        asm volatile("ld.relaxed.gpu.global.L1::no_allocate.u16 %0, [%1];" : "=h"(v) : "l"(at) : "memory");
        return static_cast<T>(v);
    }
#else
    return load_relaxed<Scope::gpu>(at);
#endif
}
template <class T>
GIC_FN void store_passing(T* at, T value) {
#if GIC_ON_GPU
    if constexpr (sizeof(T) == 8)
        asm volatile("st.relaxed.gpu.global.L1::no_allocate.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
    else
        asm volatile("st.relaxed.gpu.global.L1::no_allocate.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
#else
    store_relaxed<Scope::gpu>(at, value);
#endif
}
template <class T>
GIC_FN void store_passing_release(T* at, T value) {
#if GIC_ON_GPU
    if constexpr (sizeof(T) == 8)
        asm volatile("st.release.gpu.global.L1::no_allocate.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
    else
        asm volatile("st.release.gpu.global.L1::no_allocate.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
#else
    store_release<Scope::gpu>(at, value);
#endif
}

// 16 bytes of a slot: weak, and not kept by a cache; or seen by the GPU's threads one after the other.
GIC_FN void store_slot16_streaming(void* at, u64 low, u64 high) {
#if GIC_ON_GPU
    asm volatile("st.weak.cs.v2.b64 [%0], {%1, %2};" ::"l"(at), "l"(low), "l"(high) : "memory");
#else
    store_slot16(at, low, high);
#endif
}
GIC_FN void store_slot16_relaxed(void* at, u64 low, u64 high) {
#if GIC_ON_GPU
    asm volatile("st.relaxed.gpu.global.L1::no_allocate.v2.b64 [%0], {%1, %2};" ::"l"(at), "l"(low), "l"(high)
                 : "memory");
#else
    store_slot16(at, low, high);
#endif
}

}  // namespace mem

// The first type, or the second.
template <bool First, class A, class B>
struct Select {
    using Type = A;
};
template <class A, class B>
struct Select<false, A, B> {
    using Type = B;
};
template <bool First, class A, class B>
using Either = typename Select<First, A, B>::Type;

// How a library reaches its indices: by pointers of which the compiler knows that they lead to global memory, or by such of
// which it doesn't. Of the latter an atomic of 8 bytes says first whether it was done, since shared memory has none like it;
// and its thread waits for that.
struct GlobalWords {
    template <Scope S, class T>
    GIC_FN static T load(const T* at) {
        return mem::load_relaxed<S>(at);
    }
    template <Scope S, class T>
    GIC_FN static void store(T* at, T value) {
        mem::store_relaxed<S>(at, value);
    }
    template <Scope S, class T>
    GIC_FN static T add(T* at, T value) {
        return mem::fetch_add_relaxed<S>(at, value);
    }
    template <Scope S, class T>
    GIC_FN static T max(T* at, T value) {
        return mem::fetch_max_relaxed<S>(at, value);
    }
    template <Scope S, class T>
    GIC_FN static T cas(T* at, T expected, T desired) {
        return mem::compare_and_swap_relaxed<S>(at, expected, desired);
    }
};

#if GIC_ON_GPU
#define GIC_ANY_BY_SCOPE(one)                                                                                \
    if constexpr (S == Scope::gpu) {                                                                         \
        one(".relaxed.gpu")                                                                                  \
    } else if constexpr (S == Scope::block) {                                                                \
        one(".relaxed.cta")                                                                                  \
    } else {                                                                                                 \
        one(".volatile")                                                                                     \
    }
#define GIC_ANY_ATOMIC_BY_SCOPE(one, op)                                                                     \
    if constexpr (S == Scope::gpu) {                                                                         \
        one(".relaxed.gpu", op)                                                                              \
    } else if constexpr (S == Scope::block) {                                                                \
        one(".relaxed.cta", op)                                                                              \
    } else {                                                                                                 \
        one(".relaxed.sys", op)                                                                              \
    }
#define GIC_ANY_LOAD(how)                                                                                    \
    if constexpr (sizeof(T) == 8) {                                                                          \
        u64 v;                                                                                               \
        asm volatile("ld" how ".u64 %0, [%1];" : "=l"(v) : "l"(at) : "memory");                              \
        return static_cast<T>(v);                                                                            \
    } else if constexpr (sizeof(T) == 2) {                                                                   \
        u16 v;                                                                                               \
        asm volatile("ld" how ".u16 %0, [%1];" : "=h"(v) : "l"(at) : "memory");                              \
        return static_cast<T>(v);                                                                            \
    } else {                                                                                                 \
        u32 v;                                                                                               \
        asm volatile("ld" how ".u32 %0, [%1];" : "=r"(v) : "l"(at) : "memory");                              \
        return static_cast<T>(v);                                                                            \
    }
#define GIC_ANY_STORE(how)                                                                                   \
    if constexpr (sizeof(T) == 8) {                                                                          \
        asm volatile("st" how ".u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");                            \
    } else {                                                                                                 \
        asm volatile("st" how ".u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");                            \
    }
#define GIC_ANY_ATOMIC(how, op)                                                                              \
    if constexpr (sizeof(T) == 8) {                                                                          \
        u64 v;                                                                                               \
        asm volatile("atom" how "." op ".u64 %0, [%1], %2;" : "=l"(v) : "l"(at), "l"(value) : "memory");     \
        return static_cast<T>(v);                                                                            \
    } else {                                                                                                 \
        u32 v;                                                                                               \
        asm volatile("atom" how "." op ".u32 %0, [%1], %2;" : "=r"(v) : "l"(at), "r"(value) : "memory");     \
        return static_cast<T>(v);                                                                            \
    }
#define GIC_ANY_CAS(how, op)                                                                                 \
    if constexpr (sizeof(T) == 8) {                                                                          \
        u64 v;                                                                                               \
        asm volatile("atom" how "." op ".b64 %0, [%1], %2, %3;"                                              \
                     : "=l"(v)                                                                               \
                     : "l"(at), "l"(expected), "l"(desired)                                                  \
                     : "memory");                                                                            \
        return static_cast<T>(v);                                                                            \
    } else {                                                                                                 \
        u32 v;                                                                                               \
        asm volatile("atom" how "." op ".b32 %0, [%1], %2, %3;"                                              \
                     : "=r"(v)                                                                               \
                     : "l"(at), "r"(expected), "r"(desired)                                                  \
                     : "memory");                                                                            \
        return static_cast<T>(v);                                                                            \
    }
#endif

struct AnyWords {
    template <Scope S, class T>
    GIC_FN static T load(const T* at) {
#if GIC_ON_GPU
        GIC_ANY_BY_SCOPE(GIC_ANY_LOAD)
#else
        return GlobalWords::load<S>(at);
#endif
    }
    template <Scope S, class T>
    GIC_FN static void store(T* at, T value) {
#if GIC_ON_GPU
        GIC_ANY_BY_SCOPE(GIC_ANY_STORE)
#else
        GlobalWords::store<S>(at, value);
#endif
    }
    template <Scope S, class T>
    GIC_FN static T add(T* at, T value) {
#if GIC_ON_GPU
        GIC_ANY_ATOMIC_BY_SCOPE(GIC_ANY_ATOMIC, "add")
#else
        return GlobalWords::add<S>(at, value);
#endif
    }
    template <Scope S, class T>
    GIC_FN static T max(T* at, T value) {
#if GIC_ON_GPU
        GIC_ANY_ATOMIC_BY_SCOPE(GIC_ANY_ATOMIC, "max")
#else
        return GlobalWords::max<S>(at, value);
#endif
    }
    template <Scope S, class T>
    GIC_FN static T cas(T* at, T expected, T desired) {
#if GIC_ON_GPU
        GIC_ANY_ATOMIC_BY_SCOPE(GIC_ANY_CAS, "cas")
#else
        return GlobalWords::cas<S>(at, expected, desired);
#endif
    }
    // As `store`, behind all that was written before.
    template <Scope S>
    GIC_FN static void store_release(u32* at, u32 value) {
#if GIC_ON_GPU
        if constexpr (S == Scope::gpu)
            asm volatile("st.release.gpu.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
        else if constexpr (S == Scope::block)
            asm volatile("st.release.cta.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
        else
            asm volatile("st.release.sys.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
#else
        mem::store_release<S>(at, value);
#endif
    }
};

}  // namespace gic
