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

namespace gic {

template <class L>
class LikeProducer {
  public:
    // `queues` are the caller's own; NVSHMEM's is in `state`. UCCL-EP finds its ones by `channels`.
    GIC_FN LikeProducer(const LikeQueue* queues, const LikeQueue* const* channels, u32 count,
                        const LikeState* state, u32 thread, u64 deadline)
        : queues_(queues), channels_(channels), state_(state), count_(count), thread_(thread),
          deadline_(deadline), own_(kNvshmem ? LikeQueue{} : queues[index()]) {}

    // `remote` and `local` are addresses of the first bytes.
    GIC_FN Posted put(u64 remote, u64 local, u32 bytes) const {
        if constexpr (kFlag) {
            return raise();
        } else {
            u32 at = index();
            Bases base = bases(at);
            u64 to = remote - base.remote, from = local - base.local;
            // On the other backend GPU threads post: another put.
            if (kGin && L::has(kQueue) && GIC_SELDOM(own_.backend != kProxyBackend))
                return {0, Failure::of(Why::other_put, 0)};
            return push(at, Asks::put, to, from, bytes);
        }
    }

    // Waits for what the library's own call covers: NVSHMEM the channel, NCCL all ranks, MSCCL++ the channel, UCCL-EP
    // all proxies, fabric-lib the flag's request.
    GIC_FN Outcome complete() const {
        Failure f = complete_here();
        return {f.ok() ? Status::done : Status::error, f};
    }

  private:
    static constexpr bool kFlag = L::peer == Peer::fabric_lib;
    static constexpr bool kNvshmem = L::peer == Peer::nvshmem_proxy;
    static constexpr bool kGin = L::peer == Peer::gin_proxy;
    static constexpr bool kUccl = L::peer == Peer::uccl_ep;
    static constexpr bool kPair = L::peer == Peer::mscclpp || kUccl;
    static constexpr u32 kWords = slot_bytes_of(L::peer) / 8;

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
    GIC_FN const LikeQueue* queue(u32 number) const {
        if constexpr (kNvshmem)
            return &like_state(state_).queue;
        else if constexpr (kUccl && L::has(kQueue))
            return mem::load_weak(channels_ + number);
        else
            return queues_ + number;
    }
    // Its fields are in constant memory, are loaded each time, or stay with the caller. NCCL's don't change while the
    // kernel runs, and it says so.
    template <class T>
    GIC_FN T field(const LikeQueue* q, T LikeQueue::* which) const {
        if constexpr (kNvshmem) {
            return q->*which;
        } else if constexpr (!L::has(kQueue)) {
            return q == queues_ + index() ? own_.*which : q->*which;
        } else if constexpr (kGin) {
            return mem::load_constant(&(q->*which));
        } else {
            return mem::load_weak(&(q->*which));
        }
    }
    GIC_FN u8* slots(const LikeQueue* q) const { return field(q, &LikeQueue::slots); }
    GIC_FN u32 depth(const LikeQueue* q) const { return field(q, &LikeQueue::depth); }
    GIC_FN u64* head(const LikeQueue* q) const { return field(q, &LikeQueue::head); }
    GIC_FN u64* tail(const LikeQueue* q) const { return field(q, &LikeQueue::tail); }
    GIC_FN u64* cached_tail(const LikeQueue* q) const { return field(q, &LikeQueue::cached_tail); }

    // What offsets count from: NCCL looks its memories up as well.
    struct Bases {
        u64 local, remote;
    };
    GIC_FN Bases bases(u32 at) const {
        if constexpr (kGin || kNvshmem) {
            const LikeQueue* q = queue(at);
            return {field(q, &LikeQueue::local), field(q, &LikeQueue::remote)};
        } else {
            return {own_.local, own_.remote};
        }
    }

    // ---- the hand-over ----------------------------------------------------------------------------------------

    template <class T>
    using Var = Variable<L::has(kStack), T>;

    GIC_FN Posted push(u32 number, Asks asks, Var<u64> remote, Var<u64> local, Var<u32> bytes) const {
        if constexpr (L::has(kPayloadOrder) && kNvshmem) mem::fence_sequential<Scope::gpu>();
        if constexpr (L::has(kPayloadOrder) && kGin) mem::fence<Scope::system>();
        const LikeQueue* q = queue(number);
        u64 at = reserve(q);
        if constexpr (L::has(kSpace)) {
            Failure f = await_slot(q, at);
            if (GIC_SELDOM(!f.ok())) return {0, f};
        }
        u8* slot = slots(q) + slot_of(q, at) * slot_bytes_of(L::peer);
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
    GIC_FN u64 slot_of(const LikeQueue* q, u64 at) const {
        if constexpr (kUccl)
            return at % static_cast<u64>(static_cast<int>(depth(q)));
        else
            return at & (depth(q) - 1);
    }
    GIC_FN bool is_even_lap(const LikeQueue* q, u64 at) const {
        return ((at >> field(q, &LikeQueue::log_depth)) & 1) == 0;
    }

    // NCCL's indices have 32 bits, the GPU's one in the scope of the system.
    GIC_FN u64 reserve(const LikeQueue* q) const {
        if constexpr (kGin)
            return reserve_word<Scope::system>(reinterpret_cast<u32*>(head(q)));
        else
            return reserve_word<Scope::gpu>(head(q));
    }
    // NVSHMEM's are known to be in global memory.
    using Words = Either<kNvshmem, GlobalWords, AnyWords>;
    template <Scope S, class T>
    GIC_FN static u64 reserve_word(T* head) {
        if constexpr (L::has(kReserve)) {
            return Words::template add<S>(head, T{1});
        } else {
            T at = mem::load_weak(head);
            mem::store_weak(head, at + 1);
            return at;
        }
    }

    GIC_FN Failure await_slot(const LikeQueue* q, u64 at) const {
        if constexpr (kGin) {
            u32* tail_at = reinterpret_cast<u32*>(tail(q));
            u32 slots_there = depth(q);
            return until(at, Why::deadline_space, [&] {
                return static_cast<u32>(at) - AnyWords::load<Scope::system>(tail_at) < slots_there;
            });
        } else {
            u64* cached = cached_tail(q);
            u64 known = kNvshmem ? GlobalWords::load<Scope::system>(cached) : mem::load_weak(cached);
            u32 slots_there = depth(q);
            if (at < known + slots_there) return {};
            return read_tail(q, at - slots_there, Why::deadline_space);
        }
    }
    // Until the slot of position `at` may be written again.
    GIC_FN Failure read_tail(const LikeQueue* q, u64 at, Why late) const {
        u64 seen = 0;
        u64* tail_at = tail(q);
        Failure f = until(at, late, [&] {
            seen = kNvshmem ? mem::load_relaxed<Scope::system>(tail_at)
                            : mem::load_acquire<Scope::system>(tail_at);
            return seen > at;
        });
        if (!f.ok()) return f;
        if constexpr (kNvshmem) {
            GlobalWords::max<Scope::gpu>(cached_tail(q), seen);
            mem::fence_sequential<Scope::system>();
        } else {
            mem::store_weak(cached_tail(q), seen);
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
            const LikeQueue* q = queue(0);
            u64 reserved = mem::load_relaxed<Scope::system>(head(q));
            mem::fetch_max_relaxed<Scope::gpu>(field(q, &LikeQueue::asked), reserved);
            u64* answered = field(q, &LikeQueue::answered);
            f = until(reserved - 1, Why::deadline_completion,
                      [&] { return mem::load_relaxed<Scope::system>(answered) >= reserved; });
            mem::fence_sequential<Scope::system>();
        } else if constexpr (kGin) {
            for (u32 i = 0; i < count_ && f.ok(); i++) {
                const LikeQueue* q = queue(i);
                u32 reserved = AnyWords::load<Scope::system>(reinterpret_cast<const u32*>(head(q)));
                const u32* tail_at = reinterpret_cast<const u32*>(tail(q));
                f = until(reserved - 1, Why::deadline_completion, [&] {
                    u32 seen = mem::load_acquire<Scope::system>(tail_at);
                    return static_cast<int>(seen - reserved) >= 0;
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
            f = until(0, Why::deadline_completion, [&] { return mem::load_mmio8(byte) != 0; });
            if (f.ok()) mem::store_weak(byte, u8{0});
        } else {
            Posted p = push(0, Asks::flush, 0, 0, 1);
            if (!p.failure.ok()) return p.failure;
            f = until(p.ticket - 1, Why::deadline_completion,
                      [&] { return mem::load_acquire<Scope::system>(own_.answered) >= p.ticket; });
        }
        return f;
    }

    // What the CPU met is looked at now and then only: each reading crosses the bus.
    template <class Done>
    GIC_FN Failure until(u64 at, Why late, Done done) const {
        Wait time(deadline_);
        for (u32 turn = 1; GIC_SELDOM(!done()); turn++) {
            bool ended = time.expired();
            if ((turn & 15) == 0 || ended) {
                u64 bits = mem::load_acquire<Scope::system>(kNvshmem ? queue(0)->failure : own_.failure);
                // What was completed before the failure stays done.
                if (done()) return {};
                if (bits != 0) return {bits};
            }
            if (ended) return Failure::of(late, 0, static_cast<u32>(at));
        }
        return {};
    }

    const LikeQueue* queues_;
    const LikeQueue* const* channels_;
    const LikeState* state_;
    u32 count_;
    u32 thread_;
    u64 deadline_;
    LikeQueue own_;
};

}  // namespace gic
