// NVSHMEM's public put and quiet: functions of its device library, which serve GPUs that post and CPUs that do.
#pragma once

#include "gic/like_ibgda.hpp"
#include "gic/like_proxy.hpp"

namespace gic {

template <class L>
class PublicEndpoint {
  public:
    GIC_FN PublicEndpoint(const LikeState* state, u32 thread, u64 deadline)
        : state_(state), thread_(thread), deadline_(deadline) {}

    GIC_FN Posted put(u64 to, u64 from, u32 bytes) const {
        if constexpr (!L::has(kCall)) {
            return put_here(state_, thread_, deadline_, to, from, bytes);
        } else {
            const LikeState& s = like_state(state_);
            const u64* reached = L::proxied ? s.queue.mapped : s.tables.mapped + s.tables.target;
            u64 mapped = mem::load_constant(reached);
            if (GIC_SELDOM(mapped != 0)) {
                const u8* source = reinterpret_cast<const u8*>(from);
                u8* target =
                    reinterpret_cast<u8*>(mapped + (to - (L::proxied ? s.queue.remote : s.tables.heap)));
                for (u32 i = 0; i < bytes; i++)
                    target[i] = source[i];
                return {0, {}};
            }
            return foreign(put_apart)(state_, thread_, deadline_, to, from, bytes);
        }
    }

    // All queue pairs to the target; the channel.
    GIC_FN Outcome quiet() const {
        if constexpr (L::has(kCall))
            return foreign(quiet_apart)(state_, thread_, deadline_);
        else
            return quiet_here(state_, thread_, deadline_);
    }

    GIC_FN Outcome wait() const { return by_gpu().wait(); }
    GIC_FN u64 shift() const {
        if constexpr (L::proxied)
            return 0;
        else
            return by_gpu().shift();
    }

  private:
    // The other transport is whole.
    using Gpu = IbgdaEndpoint<Either<L::proxied, Like<Peer::nvshmem>, L>>;
    using Cpu = LikeProducer<Either<L::proxied, L, Like<Peer::nvshmem_proxy>>>;

    GIC_FN Gpu by_gpu() const { return Gpu(state_, thread_, deadline_); }

    GIC_APART static Posted put_apart(const LikeState* state, u32 thread, u64 deadline, u64 to, u64 from,
                                      u32 bytes) {
        if (like_state(state).by_gpu != 0) return Gpu(state, thread, deadline).put(to, from, bytes);
        return Cpu(nullptr, nullptr, 0, state, thread, deadline).put(to, from, bytes);
    }
    GIC_APART static Outcome quiet_apart(const LikeState* state, u32 thread, u64 deadline) {
        if (like_state(state).by_gpu == 0)
            return Cpu(nullptr, nullptr, 0, state, thread, deadline).complete();
        Outcome o = Gpu(state, thread, deadline).quiet();
        mem::fence_sequential<Scope::system>();
        return o;
    }
    GIC_FN static Posted put_here(const LikeState* state, u32 thread, u64 deadline, u64 to, u64 from,
                                  u32 bytes) {
        if constexpr (L::proxied)
            return Cpu(nullptr, nullptr, 0, state, thread, deadline).put(to, from, bytes);
        else
            return Gpu(state, thread, deadline).put(to, from, bytes);
    }
    GIC_FN static Outcome quiet_here(const LikeState* state, u32 thread, u64 deadline) {
        if constexpr (L::proxied) {
            return Cpu(nullptr, nullptr, 0, state, thread, deadline).complete();
        } else {
            Outcome o = Gpu(state, thread, deadline).quiet();
            mem::fence_sequential<Scope::system>();
            return o;
        }
    }

    const LikeState* state_;
    u32 thread_;
    u64 deadline_;
};

}  // namespace gic
