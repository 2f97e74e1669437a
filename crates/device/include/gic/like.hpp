// A put as a library makes it: its steps in its order, of its kinds of accesses, and nothing else of it.
//
//   using L = gic::Like<gic::Peer::gdaki>;                       // or Like<Peer::gdaki, kLock>: without the lock
//   gic::DocaEndpoint<L> endpoint(qps, count, thread, deadline); // like_doca.hpp; like_ibgda.hpp, like_proxy.hpp
//   gic::Posted p = endpoint.put({remote, rkey}, {local, lkey}, bytes);
//   gic::Outcome o = endpoint.wait(p.ticket);                    // as the library waits for one queue pair
//
// It stands between mini-gda or mini-proxy and the library itself: what the library's choices cost where they are written
// with as few instructions as they need. Each step is a function; `without` takes one out.
//
// Unlike the libraries it ends every wait, and tells an error CQE instead of stopping the kernel.
#pragma once

#include "gic/like_types.hpp"

// A loop whose turns are not unrolled.
#if defined(__CUDACC__)
#define GIC_ONE_BY_ONE _Pragma("unroll 1")
// What NVSHMEM's puts find their way by, set by the launcher: constant memory, as in the library.
extern "C" {
inline __constant__ gic::LikeState gic_like_state;
}
#else
#define GIC_ONE_BY_ONE
#endif

namespace gic {

template <Peer P, u32 Without = 0>
struct Like {
    static constexpr Peer peer = P;
    static constexpr u32 steps = steps_of(P) & ~Without;
    static_assert((steps_of(P) & Without) == Without, "a step that this put hasn't");

    GIC_FN static constexpr bool has(u32 step) { return (steps & step) != 0; }
    static constexpr bool gdaki = P == Peer::gdaki_exclusive || P == Peer::gdaki_cta || P == Peer::gdaki;
    static constexpr bool shared = P != Peer::gdaki_exclusive;
    static constexpr bool proxied = is_proxied(P);
    // By threads of different blocks, each of which can rely on its put.
    static constexpr bool between_blocks =
        shared && P != Peer::gdaki_cta && P != Peer::fabric_lib && Without == 0;
    static constexpr bool is_public = P == Peer::nvshmem || P == Peer::nvshmem_proxy;
    // Whose threads share the queue pair.
    static constexpr Scope scope = P == Peer::gdaki_cta ? Scope::block : Scope::gpu;
};

// A pointer of which the compiler knows nothing. To a function: who calls it saves its registers by the rules for what
// was compiled elsewhere. To words: they may be of any memory, as those are that a library finds by words in memory.
template <class T>
GIC_FN T* foreign(T* pointer) {
#if GIC_ON_GPU
    asm volatile("" : "+l"(pointer));
#endif
    return pointer;
}

// A host thread is handed it.
GIC_FN const LikeState& like_state(const LikeState* state) {
#if GIC_ON_GPU
    (void)state;
    return gic_like_state;
#else
    return *state;
#endif
}

// A variable of a put: in a register, or in memory of the thread's own.
template <bool OnStack, class T>
class Variable {
  public:
    GIC_FN Variable(T value) : value_(value) {}
    GIC_FN operator T() const { return value_; }
    GIC_FN void operator=(T value) { value_ = value; }

  private:
    Either<OnStack, volatile T, T> value_;
};

// Tries until it has done it: once as the library does, and from then on with an end. False after that.
template <class Try>
GIC_FN bool within(u64 deadline, Try attempt) {
    if (GIC_SELDOM(!attempt())) {
        Wait time(deadline);
        do {
            if (time.expired()) return false;
        } while (!attempt());
    }
    return true;
}

// What the NIC says of a failed WQE. `entry`: its CQE.
GIC_COLD inline Failure error_cqe(u32 qpn, const u8* entry, u32 at) {
    u64 syndromes = mem::load_relaxed<Scope::system>(reinterpret_cast<const u64*>(entry + 48));
    return Failure::of(Why::completion, qpn, at, static_cast<u32>(syndromes >> 56),
                       static_cast<u32>(syndromes >> 48) & 0xff);
}
constexpr u32 kErrorCqe = 13;

}  // namespace gic
