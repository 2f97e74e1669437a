// What the NIC engine does with the 32 lanes of its warp beyond lanes.hpp: a value a lane, votes and shuffles,
// and the loads, stores and copies of client memory. All lanes make the same calls.
#pragma once

#include "gic/lanes.hpp"
#include "gic/wqe.hpp"

// Keeps a loop a loop.
#if defined(__CUDACC__)
#define GIC_ROLLED _Pragma("unroll 1")
#else
#define GIC_ROLLED
#endif

namespace gic {
namespace nic {

// One value a lane: a register on a GPU, an array on a host.
template <class T>
class PerLane {
  public:
#if GIC_ON_GPU
    GIC_FN T& operator[](u32) { return value_; }
    GIC_FN const T& operator[](u32) const { return value_; }

  private:
    T value_;
#else
    GIC_FN T& operator[](u32 lane) { return values_[lane]; }
    GIC_FN const T& operator[](u32 lane) const { return values_[lane]; }

  private:
    T values_[kWarp];
#endif
};

constexpr u32 kAllLanes = 0xffffffffu;

template <class Body>
GIC_FN void each_lane(Body body) {
#if GIC_ON_GPU
    body(threadIdx.x & (kWarp - 1));
#else
    for (u32 lane = 0; lane < kWarp; lane++)
        body(lane);
#endif
}

// The lanes for which `test(lane)` holds, as bits.
template <class Test>
GIC_FN u32 ballot(Test test) {
#if GIC_ON_GPU
    return __ballot_sync(kAllLanes, test(threadIdx.x & (kWarp - 1)));
#else
    u32 bits = 0;
    for (u32 lane = 0; lane < kWarp; lane++)
        bits |= test(lane) ? 1u << lane : 0;
    return bits;
#endif
}

// One lane's value, for all.
template <class T>
GIC_FN T value_of(const PerLane<T>& values, u32 lane) {
#if GIC_ON_GPU
    return __shfl_sync(kAllLanes, values[0], static_cast<int>(lane));
#else
    return values[lane];
#endif
}

// One lane's `value(lane)`, for all.
template <class Value>
GIC_FN u32 pick(Value value, u32 lane) {
#if GIC_ON_GPU
    return __shfl_sync(kAllLanes, static_cast<u32>(value(threadIdx.x & (kWarp - 1))), static_cast<int>(lane));
#else
    return static_cast<u32>(value(lane));
#endif
}

// Each lane's value becomes that of the lane below; lane 0's becomes `first`.
template <class T>
GIC_FN void shift_up(const PerLane<T>& values, T first, PerLane<T>& into) {
#if GIC_ON_GPU
    T below = __shfl_up_sync(kAllLanes, values[0], 1);
    into[0] = (threadIdx.x & (kWarp - 1)) == 0 ? first : below;
#else
    for (u32 lane = kWarp; lane-- > 1;)
        into[lane] = values[lane - 1];
    into[0] = first;
#endif
}

// For each lane, the lanes with the same value.
GIC_FN void same_value(const PerLane<u64>& values, PerLane<u32>& into) {
#if GIC_ON_GPU
    into[0] = __match_any_sync(kAllLanes, values[0]);
#else
    for (u32 lane = 0; lane < kWarp; lane++) {
        into[lane] = 0;
        for (u32 other = 0; other < kWarp; other++)
            into[lane] |= values[other] == values[lane] ? 1u << other : 0;
    }
#endif
}

GIC_FN u32 count_bits(u32 bits) {
#if GIC_ON_GPU
    return static_cast<u32>(__popc(bits));
#else
    return static_cast<u32>(__builtin_popcount(bits));
#endif
}
// Of bits that aren't all 0.
GIC_FN u32 lowest_bit(u32 bits) {
#if GIC_ON_GPU
    return static_cast<u32>(__ffs(static_cast<int>(bits)) - 1);
#else
    return static_cast<u32>(__builtin_ctz(bits));
#endif
}
GIC_FN u32 highest_bit(u32 bits) {
#if GIC_ON_GPU
    return 31u - static_cast<u32>(__clz(static_cast<int>(bits)));
#else
    return 31u - static_cast<u32>(__builtin_clz(bits));
#endif
}

// Client memory may change at any moment: every load is a relaxed one, made once.
#if GIC_ON_GPU
#define GIC_NIC_SCOPED(S, with_gpu, with_sys)                                                                \
    if constexpr (S == Scope::gpu) {                                                                         \
        with_gpu;                                                                                            \
    } else {                                                                                                 \
        with_sys;                                                                                            \
    }
#endif

template <Scope S>
GIC_FN Segment load16(const void* at) {
#if GIC_ON_GPU
    Segment s;
    GIC_NIC_SCOPED(S,
                   asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];" : "=l"(s.low),
                                "=l"(s.high) : "l"(at) : "memory"),
                   asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(s.low),
                                "=l"(s.high) : "l"(at) : "memory"))
    return s;
#else
    const u64* words = static_cast<const u64*>(at);
    return {mem::load_relaxed<S>(words), mem::load_relaxed<S>(words + 1)};
#endif
}

template <Scope S>
GIC_FN void store16(void* at, Segment s) {
#if GIC_ON_GPU
    GIC_NIC_SCOPED(S,
                   asm volatile("st.relaxed.gpu.global.v2.u64 [%0], {%1, %2};" ::"l"(at), "l"(s.low),
                                "l"(s.high) : "memory"),
                   asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(at), "l"(s.low),
                                "l"(s.high) : "memory"))
#else
    u64* words = static_cast<u64*>(at);
    mem::store_relaxed<S>(words, s.low);
    mem::store_relaxed<S>(words + 1, s.high);
#endif
}

template <Scope S>
GIC_FN u32 load_byte(const u8* at) {
#if GIC_ON_GPU
    u32 v;
    GIC_NIC_SCOPED(S, asm volatile("ld.relaxed.gpu.global.u8 %0, [%1];" : "=r"(v) : "l"(at) : "memory"),
                   asm volatile("ld.relaxed.sys.global.u8 %0, [%1];" : "=r"(v) : "l"(at) : "memory"))
    return v;
#else
    return mem::load_relaxed<S>(at);
#endif
}

template <Scope S>
GIC_FN void store_byte(u8* at, u32 value) {
#if GIC_ON_GPU
    GIC_NIC_SCOPED(S, asm volatile("st.relaxed.gpu.global.u8 [%0], %1;" ::"l"(at), "r"(value) : "memory"),
                   asm volatile("st.relaxed.sys.global.u8 [%0], %1;" ::"l"(at), "r"(value) : "memory"))
#else
    mem::store_relaxed<S>(at, static_cast<u8>(value));
#endif
}

// `bytes` (1 to 8) bytes, as one number.
template <Scope S>
GIC_APART u64 load_piece(u64 from, u32 bytes) {
    if (bytes == 8 && (from & 7) == 0) return mem::load_relaxed<S>(reinterpret_cast<const u64*>(from));
    if (bytes == 4 && (from & 3) == 0) return mem::load_relaxed<S>(reinterpret_cast<const u32*>(from));
    u64 value = 0;
    GIC_ROLLED
    for (u32 i = 0; i < bytes; i++)
        value |= static_cast<u64>(load_byte<S>(reinterpret_cast<const u8*>(from + i))) << (8 * i);
    return value;
}

// The same, stored: words are whole where they are aligned, so that who polls one sees all of it or nothing.
template <Scope S>
GIC_APART void store_piece(u64 to, u64 value, u32 bytes) {
    if (bytes == 8 && (to & 7) == 0) {
        mem::store_relaxed<S>(reinterpret_cast<u64*>(to), value);
        return;
    }
    u32 at = 0;
    GIC_ROLLED
    while (at < bytes) {
        if (((to + at) & 3) == 0 && at + 4 <= bytes) {
            mem::store_relaxed<S>(reinterpret_cast<u32*>(to + at), static_cast<u32>(value >> (8 * at)));
            at += 4;
        } else {
            store_byte<S>(reinterpret_cast<u8*>(to + at), static_cast<u32>(value >> (8 * at)) & 0xff);
            at += 1;
        }
    }
}

// Bytes before the first whole word at `to`.
GIC_FN u32 bytes_to_word(u64 to, u64 bytes) {
    u32 head = static_cast<u32>(-to & 7);
    return head < bytes ? head : static_cast<u32>(bytes);
}

// A few bytes, by one lane.
template <Scope S>
GIC_APART void copy_small(u64 to, u64 from, u32 bytes) {
    u32 at = 0;
    GIC_ROLLED
    while (at < bytes) {
        u32 piece = at == 0 ? bytes_to_word(to, bytes) : 8;
        if (piece == 0) piece = 8;
        if (piece > bytes - at) piece = bytes - at;
        store_piece<S>(to + at, load_piece<S>(from + at, piece), piece);
        at += piece;
    }
}

// Many bytes, by the whole warp: 16 a lane and turn, four turns in flight, where both ends allow it, and
// whole words at `to` otherwise.
template <Scope S>
GIC_APART void copy_warp(u64 to, u64 from, u64 bytes) {
    constexpr u32 kUnrolled = 4;
    u64 at = bytes_to_word(to, bytes);
    if (((to ^ from) & 15) == 0 && bytes >= 64 && ((to + at) & 15) != 0) at += 8;
    Warp warp;
    warp.elect([&] {
        copy_small<S>(to, from, static_cast<u32>(at));
        return u64{0};
    });
    if (((to ^ from) & 15) == 0 && bytes >= 64) {
        u64 whole = (bytes - at) / 16;
        GIC_ROLLED
        for (u64 done = 0; done < whole; done += kUnrolled * kWarp) {
            each_lane([&](u32 lane) {
                Segment held[kUnrolled];
                GIC_UNROLL
                for (u32 i = 0; i < kUnrolled; i++) {
                    u64 nth = done + i * kWarp + lane;
                    if (nth < whole) held[i] = load16<S>(reinterpret_cast<const void*>(from + at + nth * 16));
                }
                GIC_UNROLL
                for (u32 i = 0; i < kUnrolled; i++) {
                    u64 nth = done + i * kWarp + lane;
                    if (nth < whole) store16<S>(reinterpret_cast<void*>(to + at + nth * 16), held[i]);
                }
            });
        }
        at += whole * 16;
    }
    GIC_ROLLED
    for (; at < bytes; at += u64{8} * kWarp) {
        each_lane([&](u32 lane) {
            u64 mine = at + u64{8} * lane;
            if (mine >= bytes) return;
            u32 piece = bytes - mine < 8 ? static_cast<u32>(bytes - mine) : 8;
            store_piece<S>(to + mine, load_piece<S>(from + mine, piece), piece);
        });
    }
}

// Bytes that the warp itself holds, to client memory.
template <Scope S>
GIC_APART void copy_out(u64 to, const u8* from, u32 bytes) {
    u32 head = bytes_to_word(to, bytes);
    u32 pieces = 1 + (bytes - head + 7) / 8;
    GIC_ROLLED
    for (u32 first = 0; first < pieces; first += kWarp) {
        each_lane([&](u32 lane) {
            u32 nth = first + lane;
            if (nth >= pieces) return;
            u32 at = nth == 0 ? 0 : head + (nth - 1) * 8;
            u32 end = nth == 0 ? head : (at + 8 < bytes ? at + 8 : bytes);
            u64 value = 0;
            GIC_ROLLED
            for (u32 i = at; i < end; i++)
                value |= static_cast<u64>(from[i]) << (8 * (i - at));
            if (end > at) store_piece<S>(to + at, value, end - at);
        });
    }
}

}  // namespace nic
}  // namespace gic
