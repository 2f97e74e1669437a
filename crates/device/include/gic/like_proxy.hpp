// A proxied put as a library makes it: what it does on the GPU, to hand a request to a CPU that posts it.
//
//   using L = gic::Like<gic::Peer::mscclpp>;
//   gic::LikeProducer<L> producer(queues, count, thread, deadline);
//   gic::Posted p = producer.put(remote, local, bytes);
//   gic::Outcome o = producer.complete();                        // as the library waits: for the queue, or for all
//
// A slot is reserved, looked at for room, and filled; what differs is in a table of choices: which fence, whose word
// tells of room, which stores, where the marks are, and how completion is asked for. As in like.hpp each wait ends.
#pragma once

#include "gic/like.hpp"

#if defined(__CUDACC__)
// Set by the launcher. Constant memory, as in the library (NVSHMEM).
extern "C" {
inline __constant__ gic::LikeQueue gic_like_queue;
}
#endif

namespace gic {

template <class L>
class LikeProducer {
  public:
    GIC_FN LikeProducer(const LikeQueue* queues, u32 count, u32 thread, u64 deadline)
        : queues_(queues), count_(count), thread_(thread), deadline_(deadline), own_(queues[index()]) {}

    // `remote` and `local` are addresses of the first bytes.
    GIC_FN Posted put(Remote remote, Local local, u32 bytes) const {
        if constexpr (kFlag) {
            return raise();
        } else if constexpr (L::has(kCall)) {
            const LikeQueue& q = constant();
            u64 mapped = mem::load_constant(q.mapped);
            if (mapped != 0) {
                const u8* from = reinterpret_cast<const u8*>(local.address);
                u8* to = reinterpret_cast<u8*>(mapped + (remote.address - q.remote));
                for (u32 i = 0; i < bytes; i++)
                    to[i] = from[i];
                return {0, {}};
            }
            return foreign(put_apart)(queues_, count_, thread_, deadline_, remote.address, local.address,
                                      bytes);
        } else {
            return put_here(remote.address, local.address, bytes);
        }
    }

    // Waits for what the library's own call covers: NVSHMEM the channel, NCCL all ranks, MSCCL++ the channel, UCCL-EP
    // all proxies, fabric-lib the flag's request.
    GIC_FN Outcome complete() const {
        Failure f;
        if constexpr (L::has(kCall))
            f = foreign(quiet_apart)(queues_, count_, thread_, deadline_);
        else
            f = complete_here();
        return {f.ok() ? Status::done : Status::error, f};
    }

  private:
    static constexpr bool kFlag = L::peer == Peer::fabric_lib;
    static constexpr bool kNvshmem = L::peer == Peer::nvshmem_proxy;
    static constexpr bool kGin = L::peer == Peer::gin_proxy;
    static constexpr bool kUccl = L::peer == Peer::uccl_ep;
    static constexpr bool kPair = L::peer == Peer::mscclpp || kUccl;
    static constexpr u32 kWords = slot_bytes_of(L::peer) / 8;

    GIC_APART static Posted put_apart(const LikeQueue* queues, u32 count, u32 thread, u64 deadline, u64 to,
                                      u64 from, u32 bytes) {
        return LikeProducer(queues, count, thread, deadline).put_here(to, from, bytes);
    }
    GIC_APART static Failure quiet_apart(const LikeQueue* queues, u32 count, u32 thread, u64 deadline) {
        return LikeProducer(queues, count, thread, deadline).complete_here();
    }

    // ---- which queue ------------------------------------------------------------------------------------------

    GIC_FN u32 index() const {
        if constexpr (kGin) {
            return 1 + thread_ % (count_ - 1);
        } else if constexpr (kUccl) {
            u32 channel = thread_ % (kUcclProxies * kUcclQueues);
            return channel % kUcclProxies * kUcclQueues + channel / kUcclProxies;
        } else if constexpr (kFlag) {
            return thread_;
        } else {
            return 0;
        }
    }
    GIC_FN const LikeQueue& constant() const {
#if GIC_ON_GPU
        return gic_like_queue;
#else
        return *queues_;
#endif
    }
    // Its fields are in constant memory, are loaded each time, or stay with the caller.
    GIC_FN LikeQueue queue(u32 at) const {
        if constexpr (kNvshmem) {
            return constant();
        } else if constexpr (L::has(kQueue)) {
            LikeQueue q = own_;
            q.slots = word(&queues_[at].slots);
            q.head = word(&queues_[at].head);
            q.tail = word(&queues_[at].tail);
            q.depth = number(&queues_[at].depth);
            if constexpr (kUccl) q.cached_tail = word(&queues_[at].cached_tail);
            return q;
        } else {
            return at == index() ? own_ : queues_[at];
        }
    }
    // What offsets count from: NCCL looks its memories up as well.
    struct Bases {
        u64 local, remote;
    };
    GIC_FN Bases bases(u32 at) const {
        if constexpr (kGin && L::has(kQueue))
            return {mem::load_constant(&queues_[at].local), mem::load_constant(&queues_[at].remote)};
        else if constexpr (kNvshmem)
            return {constant().local, constant().remote};
        else
            return {own_.local, own_.remote};
    }
    // NCCL's don't change while the kernel runs, and it says so.
    template <class T>
    GIC_FN static T* word(T* const* at) {
        auto from = reinterpret_cast<const u64*>(at);
        return reinterpret_cast<T*>(kGin ? mem::load_constant(from) : mem::load_weak(from));
    }
    GIC_FN static u32 number(const u32* at) { return kGin ? mem::load_constant(at) : mem::load_weak(at); }

    // ---- the hand-over ----------------------------------------------------------------------------------------

    GIC_FN Posted put_here(u64 to, u64 from, u32 bytes) const {
        u32 at = index();
        Bases base = bases(at);
        return push(at, Asks::put, to - base.remote, from - base.local, bytes);
    }

    GIC_FN Posted push(u32 number, Asks asks, u64 remote, u64 local, u32 bytes) const {
        if constexpr (L::has(kPayloadOrder) && kNvshmem) mem::fence_sequential<Scope::gpu>();
        if constexpr (L::has(kPayloadOrder) && kGin) mem::fence<Scope::system>();
        LikeQueue q = queue(number);
        u64 at = reserve(q);
        if constexpr (L::has(kSpace)) {
            Failure f = await_slot(q, at);
            if (!f.ok()) return {0, f};
        }
        u8* slot = q.slots + slot_of(q, at) * slot_bytes_of(L::peer);
        if constexpr (kPair) {
            u64 mark = kUccl || is_even_lap(q, at) ? kPairMark : 0;
            u64 low = (local << 32) | bytes;
            u64 high = mark | (static_cast<u64>(asks) << kPairAsksShift) | static_cast<u32>(remote);
            if constexpr (L::has(kPayloadOrder))
                mem::store_posted16_release(slot, low, high);
            else
                mem::store_posted16(slot, low, high);
        } else {
            u64 mark = kGin || is_even_lap(q, at) ? 1 : 0;
            u64 words[kWords] = {
                (remote << kRemoteShift) | (static_cast<u64>(asks) << kAsksShift) | mark,
                (local << kWordShift) | mark,
                (static_cast<u64>(bytes) << kWordShift) | mark,
            };
            GIC_UNROLL
            for (u32 i = 3; i < kWords; i++)
                words[i] = mark;
            GIC_UNROLL
            for (u32 i = 0; i < kWords; i += kGin ? 2 : 1) {
                if constexpr (kGin)
                    mem::store_slot16(slot + 8 * i, words[i], words[i + 1]);
                else
                    mem::store_relaxed<Scope::system>(reinterpret_cast<u64*>(slot) + i, words[i]);
            }
        }
        return {at + 1, {}};
    }

    // UCCL-EP's depth is a number like any other.
    GIC_FN static u64 slot_of(const LikeQueue& q, u64 at) {
        if constexpr (kUccl)
            return at % static_cast<u64>(static_cast<int>(q.depth));
        else
            return at & (q.depth - 1);
    }
    GIC_FN static bool is_even_lap(const LikeQueue& q, u64 at) { return ((at >> q.log_depth) & 1) == 0; }

    // NCCL's indices have 32 bits, the GPU's one in the scope of the system.
    GIC_FN static u64 reserve(const LikeQueue& q) {
        if constexpr (kGin) {
            return reserve_word<Scope::system>(reinterpret_cast<u32*>(q.head));
        } else {
            return reserve_word<Scope::gpu>(q.head);
        }
    }
    template <Scope S, class T>
    GIC_FN static u64 reserve_word(T* head) {
        if constexpr (L::has(kReserve)) {
            return mem::fetch_add_relaxed<S>(head, T{1});
        } else {
            T at = mem::load_weak(head);
            mem::store_weak(head, at + 1);
            return at;
        }
    }

    GIC_FN Failure await_slot(const LikeQueue& q, u64 at) const {
        if constexpr (kGin) {
            return until(q, at, Why::deadline_space, [&] {
                u32 tail = mem::load_relaxed<Scope::system>(reinterpret_cast<const u32*>(q.tail));
                return static_cast<u32>(at) - tail < q.depth;
            });
        } else {
            u64 known =
                kNvshmem ? mem::load_relaxed<Scope::system>(q.cached_tail) : mem::load_weak(q.cached_tail);
            if (at < known + q.depth) return {};
            return read_tail(q, at - q.depth, Why::deadline_space);
        }
    }
    // Until the slot of position `at` may be written again.
    GIC_FN Failure read_tail(const LikeQueue& q, u64 at, Why late) const {
        u64 tail = 0;
        Failure f = until(q, at, late, [&] {
            tail = kNvshmem ? mem::load_relaxed<Scope::system>(q.tail)
                            : mem::load_acquire<Scope::system>(q.tail);
            return tail > at;
        });
        if (!f.ok()) return f;
        if constexpr (kNvshmem) {
            mem::fetch_max_relaxed<Scope::gpu>(q.cached_tail, tail);
            mem::fence_sequential<Scope::system>();
        } else {
            mem::store_weak(q.cached_tail, tail);
        }
        return {};
    }

    // A thread is all blocks of the grid.
    GIC_FN Posted raise() const {
        u32* done = reinterpret_cast<u32*>(own_.head);
        bool last = true;
        if constexpr (L::has(kReserve)) last = mem::fetch_add_release_gpu(done, 1u) + 1 == own_.depth;
        if (last) {
            mem::store_mmio8(own_.slots, 1);
            if constexpr (L::has(kReserve)) mem::store_weak(done, 0u);
        }
        return {1, {}};
    }

    // ---- completion -------------------------------------------------------------------------------------------

    GIC_FN Failure complete_here() const {
        Failure f;
        if constexpr (kNvshmem) {
            LikeQueue q = queue(0);
            u64 reserved = mem::load_relaxed<Scope::system>(q.head);
            mem::fetch_max_relaxed<Scope::gpu>(q.asked, reserved);
            f = until(q, reserved - 1, Why::deadline_completion,
                      [&] { return mem::load_relaxed<Scope::system>(q.answered) >= reserved; });
            mem::fence_sequential<Scope::system>();
        } else if constexpr (kGin) {
            for (u32 i = 0; i < count_ && f.ok(); i++) {
                LikeQueue q = queue(i);
                u32 reserved = mem::load_relaxed<Scope::system>(reinterpret_cast<const u32*>(q.head));
                f = until(q, reserved - 1, Why::deadline_completion, [&] {
                    u32 tail = mem::load_acquire<Scope::system>(reinterpret_cast<const u32*>(q.tail));
                    return static_cast<int>(tail - reserved) >= 0;
                });
            }
        } else if constexpr (kUccl) {
            u64 at[kUcclProxies];
            GIC_UNROLL
            for (u32 i = 0; i < kUcclProxies; i++) {
                Posted p = push(i * kUcclQueues, Asks::flush, 0, 0, 1);
                if (!p.failure.ok()) return p.failure;
                at[i] = p.ticket - 1;
            }
            GIC_UNROLL
            for (u32 i = 0; i < kUcclProxies; i++)
                if (f.ok()) f = read_tail(queue(i * kUcclQueues), at[i], Why::deadline_completion);
        } else if constexpr (kFlag) {
            u8* byte = reinterpret_cast<u8*>(own_.answered);
            f = until(own_, 0, Why::deadline_completion, [&] { return mem::load_mmio8(byte) != 0; });
            if (f.ok()) mem::store_weak(byte, u8{0});
        } else {
            LikeQueue q = queue(0);
            Posted p = push(0, Asks::flush, 0, 0, 1);
            if (!p.failure.ok()) return p.failure;
            f = until(q, p.ticket - 1, Why::deadline_completion,
                      [&] { return mem::load_acquire<Scope::system>(q.answered) >= p.ticket; });
        }
        return f;
    }

    // What the CPU met is looked at now and then only: each reading crosses the bus.
    template <class Done>
    GIC_FN Failure until(const LikeQueue& q, u64 at, Why late, Done done) const {
        Wait time(deadline_);
        for (u32 turn = 1; !done(); turn++) {
            bool ended = time.expired();
            if ((turn & 15) == 0 || ended) {
                u64 bits = mem::load_acquire<Scope::system>(q.failure);
                // What was completed before the failure stays done.
                if (done()) return {};
                if (bits != 0) return {bits};
            }
            if (ended) return Failure::of(late, 0, static_cast<u32>(at));
        }
        return {};
    }

    const LikeQueue* queues_;
    u32 count_;
    u32 thread_;
    u64 deadline_;
    LikeQueue own_;
};

}  // namespace gic
