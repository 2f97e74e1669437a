// Accesses that only libraries' puts are made of (like.hpp, like_proxy.hpp), beside those of atomics.hpp: relaxed
// atomics, CUDA's own fences, halves of fences, weak loads. A host has no use for less than acquire and release.
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

// An atomic addition as a compiler makes it of CUDA's own: one lane adds for those that are active.
template <class T>
GIC_FN T fetch_add_elected(T* at, T value) {
#if GIC_ON_GPU
    return atomicAdd(at, value);
#else
    return fetch_add_relaxed<Scope::gpu>(at, value);
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
}  // namespace gic
