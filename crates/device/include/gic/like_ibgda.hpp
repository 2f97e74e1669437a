// NVSHMEM's and DeepEP's puts by GPU threads, and their quiets.
#pragma once

#include "gic/like.hpp"

namespace gic {

template <class L>
class IbgdaEndpoint {
  public:
    // `thread` is the caller's block of one thread: what the libraries choose a queue pair by.
    GIC_FN IbgdaEndpoint(const LikeState* state, u32 thread, u64 deadline)
        : state_(state), own_(fixed(thread)), thread_(thread), deadline_(deadline) {}

    // Keys come from the library's tables, and `to` is the address that the bytes have in the heap at home. A put may go
    // over the end of a chunk, at either side: one WQE for each part.
    GIC_FN Posted put(u64 to, u64 from, u64 bytes) const {
        const LikeTables& t = tables();
        if (kAsks && GIC_SELDOM(together(t.target))) return {0, Failure::of(Why::other_put, 0)};
        IbgdaQp* q = choose();
        Var<const Segment*> vector(nullptr);
        if constexpr (L::has(kTarget)) vector = vector_of(mem::load_weak(&q->device));
        Var<u64> remote = to, local = from, left = bytes;
        u64 ticket = 0;
        while (left > 0) {
            u32 device = mem::load_weak(&q->device);
            Part part = {local, 0, remote - t.heap, 0, left};
            if constexpr (L::has(kKeys)) {
                Failure f = look_up(device, remote, local, left, &part);
                if (GIC_SELDOM(!f.ok())) return {0, f};
            } else {
                part.lkey = t.lkeys[0].key;
                part.rkey = t.rkeys[t.target].key;
                part.remote = part.remote + mem::load_weak(t.remote_heaps + t.target);
            }
            if (kAsks && GIC_SELDOM(together(reinterpret_cast<u64>(q))))
                return {0, Failure::of(Why::other_put, q->qpn)};
            u64 base = reserve(q);
            if constexpr (L::has(kGroup) && kDeepep) base = first_lanes(base);
            if constexpr (L::has(kSpace)) {
                Failure f = await_slot(q, base + 1);
                if (GIC_SELDOM(!f.ok())) return {0, f};
            }
            write(q, base, part, vector);
            if (!kDeepep && GIC_SELDOM(t.heap_on_host != 0)) mem::fence_sequential<Scope::system>();
            Failure f = submit(q, base, base + 1);
            if (GIC_SELDOM(!f.ok())) return {0, f};
            ticket = base + 1;
            left = left - part.bytes;
            remote = remote + part.bytes;
            local = local + part.bytes;
        }
        return {ticket, {}};
    }

    // For all that was posted to the queue pair.
    GIC_FN Outcome wait() const { return told(quiet_one(own_)); }

    // All queue pairs to the target, one after the other.
    GIC_FN Outcome quiet() const {
        const LikeTables& t = tables();
        u32 all = t.per_target * t.devices;
        Failure f;
        for (u32 i = 0; i < all && f.ok(); i++)
            f = quiet_one(t.qps + t.target * all + i);
        return told(f);
    }

    // From a target's address to that of the same bytes at home.
    GIC_FN u64 shift() const {
        const LikeTables& t = tables();
        return t.heap - mem::load_weak(t.remote_heaps + t.target);
    }

  private:
    static constexpr bool kDeepep = L::peer == Peer::deepep;
    // DeepEP's queue pairs are known to be in global memory. NVSHMEM's aren't: it gets them out of a shuffle.
    using Words = Either<kDeepep, GlobalWords, AnyWords>;

    static constexpr bool kAsks = L::has(kGroup) && !kDeepep;

    GIC_FN const LikeTables& tables() const { return like_state(state_).tables; }
    GIC_FN static Outcome told(Failure f) { return {f.ok() ? Status::done : Status::error, f}; }

    // ---- which queue pair -------------------------------------------------------------------------------------

    // The one that `choose` gives where one device has all, and DeepEP's always.
    GIC_FN IbgdaQp* fixed(u32 thread) const {
        const LikeTables& t = tables();
        u32 all = t.per_target * t.devices;
        IbgdaQp* q = t.qps + t.target * all + thread % all;
        return kDeepep ? q : foreign(q);
    }
    // A counter that nobody protects spreads puts over the devices.
    GIC_FN IbgdaQp* choose() const {
        if constexpr (!L::has(kQueue)) {
            return own_;
        } else {
            const LikeTables& t = tables();
            u32 id = number(t.map);
            u8* counter = t.counters + id % t.groups;
            u32 turn = (mem::load_weak(counter) + 1) & 0xff;
            mem::store_weak(counter, static_cast<u8>(turn));
            id = id / t.devices * t.devices + turn % t.devices;
            u32 all = t.per_target * t.devices;
            return foreign(t.qps + t.target * all + id % all);
        }
    }
    GIC_FN const Segment* vector_of(u32 device) const {
        const LikeTables& t = tables();
        u32 id = number(QueueMap::block) % t.dc_targets;
        return t.vectors + (t.target * t.dc_targets + id) * t.devices + device;
    }
    // Asked for anew each time: what follows from it is worked out for every put.
    GIC_FN u32 number(QueueMap map) const {
#if GIC_ON_GPU
        u32 block, id;
        asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block));
        switch (map) {
        case QueueMap::block: return block;
        case QueueMap::multiprocessor: asm volatile("mov.u32 %0, %%smid;" : "=r"(id)); return id;
        default: return (block * blockDim.x + threadIdx.x) / 32;
        }
#else
        (void)map;
        return thread_;
#endif
    }

    // Whether all of a warp's lanes are here with the same value: the library has one act for them then. Of a block of
    // one thread they never are.
    GIC_FN static bool together(u64 value) {
#if GIC_ON_GPU
        u32 lanes = __activemask();
        if (lanes != 0xffffffff) return false;
        int all;
        __match_all_sync(lanes, value, &all);
        return all != 0;
#else
        (void)value;
        return false;
#endif
    }

    // What the first of a warp's lanes has: DeepEP's put is a warp's.
    GIC_FN static u64 first_lanes(u64 value) {
#if GIC_ON_GPU
        return __shfl_sync(0xffffffff, value, 0);
#else
        return value;
#endif
    }

    // ---- keys -------------------------------------------------------------------------------------------------

    template <class T>
    using Var = Variable<L::has(kStack), T>;
    struct Part {
        Var<u64> local;
        Var<u32> lkey;
        Var<u64> remote;
        Var<u32> rkey;
        Var<u64> bytes;
    };
    GIC_FN static u64 least(u64 a, u64 b) { return a < b ? a : b; }

    GIC_FN Failure look_up(u32 device, u64 to, u64 from, u64 bytes, Part* part) const {
        const LikeTables& t = tables();
        u64 offset = to - t.heap;
        u64 here = from - t.heap;
        // Elsewhere the library goes through a list.
        if (!kDeepep && GIC_SELDOM(from < t.heap || from > t.heap + t.heap_bytes - 1))
            return Failure::of(Why::bad_offset, 0);
        u64 at_home = (here >> t.log_chunk) * t.devices + device;
        // NVSHMEM asks for it again, by memory.
        u64 targets = kDeepep ? t.targets : mem::load_again(&t.targets);
        u64 there = (offset >> t.log_chunk) * targets * t.devices + t.target * t.devices + device;
        u64 heap = mem::load_weak(t.remote_heaps + t.target);
        // More of them have memory of their own.
        if (GIC_SELDOM(at_home >= kMaxChunks || there >= kTargets * kMaxChunks))
            return Failure::of(Why::bad_offset, 0);
        const ChunkKey& lkey = t.lkeys[at_home];
        const ChunkKey& rkey = t.rkeys[there];
        u64 left = least(lkey.end - from, rkey.end - offset);
        if constexpr (!kDeepep) left = least(left, kMaxMessage);
        part->lkey = lkey.key;
        part->rkey = rkey.key;
        part->remote = heap + offset;
        part->bytes = least(bytes, left);
        if (GIC_SELDOM(from >= lkey.end || offset >= rkey.end)) return Failure::of(Why::bad_offset, 0);
        return {};
    }

    // ---- the WQE ----------------------------------------------------------------------------------------------

    GIC_FN static u64 reserve(IbgdaQp* q) {
        if constexpr (L::has(kReserve)) {
            return Words::template add<Scope::gpu>(&q->reserved, u64{1});
        } else {
            u64 base = mem::load_weak(&q->reserved);
            mem::store_weak(&q->reserved, base + 1);
            return base;
        }
    }

    GIC_FN Failure await_slot(IbgdaQp* q, u64 next) const {
        u16 blocks = mem::load_weak(&q->blocks);
        Failure f;
        if (next >= blocks) f = poll(q, next - blocks);
        mem::fence<Scope::block>();
        return f;
    }

    GIC_FN static void write(const IbgdaQp* q, u64 index, const Part& part, const Segment* vector) {
        u16 blocks = mem::load_weak(&q->blocks);
        bool is_dc = L::has(kTarget) && mem::load_weak(&q->kind) == kIbgdaDci;
        u32 qpn = mem::load_weak(&q->qpn);
        u8* at = mem::load_weak(&q->sq) +
                 static_cast<u64>(static_cast<u16>(index) & static_cast<u16>(blocks - 1)) * kBlockBytes;
        u32 bytes = static_cast<u32>(part.bytes);
        store(at, control_segment(Opcode::rdma_write, index, qpn, is_dc ? 4 : 3, kCqUpdate));
        if (GIC_SELDOM(is_dc)) {
            store(at + 16, *vector);
            at += 16;
        }
        store(at + 16, {be64(part.remote), part.rkey});
        store(at + 32, {(static_cast<u64>(part.lkey) << 32) | be32(bytes), be64(part.local)});
    }
    GIC_FN static void store(u8* at, Segment s) {
        if constexpr (kDeepep) {
            mem::store_slot16_relaxed(at, s.low, s.high);
        } else {
            u32* word = reinterpret_cast<u32*>(at);
            AnyWords::store<Scope::system>(word, static_cast<u32>(s.low));
            AnyWords::store<Scope::system>(word + 1, static_cast<u32>(s.low >> 32));
            AnyWords::store<Scope::system>(word + 2, static_cast<u32>(s.high));
            AnyWords::store<Scope::system>(word + 3, static_cast<u32>(s.high >> 32));
        }
    }

    // ---- record and doorbell ----------------------------------------------------------------------------------

    // Of a scope that is found at run time; DeepEP's is the GPU always.
    GIC_FN void fence() const {
        if (kDeepep || __builtin_expect(tables().queues_on_gpu != 0, 1))
            mem::fence_sequential<Scope::gpu>();
        else
            mem::fence_sequential<Scope::system>();
    }

    GIC_FN Failure submit(IbgdaQp* q, u64 base, u64 next) const {
        const LikeTables& t = tables();
        if constexpr (L::has(kReadyFence)) fence();
        if constexpr (L::has(kReady)) {
            if (!within(deadline_, [&] { return AnyWords::cas<Scope::gpu>(&q->ready, base, next) == base; }))
                return Failure::of(Why::deadline_turn, q->qpn, static_cast<u32>(base));
        } else {
            mem::store_weak(&q->ready, next);
        }
        if constexpr (!kDeepep) {
            mem::fence<Scope::block>();
            // Not where others are behind who will: a batch that is crossed is rung for all the same.
            u64 mask = ~static_cast<u64>(t.batch - 1);
            if (next != AnyWords::load<Scope::system>(&q->reserved) && (base & mask) == (next & mask) &&
                next - base < t.batch)
                return {};
        }
        if (L::has(kHandler) && GIC_SELDOM(t.cpu_rings != 0)) return Failure::of(Why::other_put, q->qpn);
        return ring(q, next);
    }

    GIC_FN Failure ring(IbgdaQp* q, u64 next) const {
        if constexpr (L::has(kLock)) {
            if (!within(deadline_, [&] { return Words::template cas<Scope::gpu>(&q->lock, 0u, 1u) == 0; }))
                return Failure::of(Why::deadline_turn, q->qpn);
        }
        mem::fence<Scope::block>();
        if (raise(q, next) < next) {
            if constexpr (kDeepep) {
                u32* record = mem::load_weak(&q->record);
                if constexpr (L::has(kRecordFence))
                    mem::store_passing_release(record, record_value(next));
                else
                    mem::store_passing(record, record_value(next));
                u64 bell = doorbell_value(next, mem::load_weak(&q->qpn));
                u64* doorbell = mem::load_weak(&q->doorbell);
                if constexpr (L::has(kDoorbellFence))
                    mem::store_passing_release(doorbell, bell);
                else
                    mem::store_passing(doorbell, bell);
            } else {
                if constexpr (L::has(kRecordFence)) fence();
                AnyWords::store<Scope::system>(mem::load_weak(&q->record), record_value(next));
                if constexpr (L::has(kDoorbellFence)) fence();
                u64 bell = doorbell_value(next, mem::load_weak(&q->qpn));
                AnyWords::store<Scope::system>(mem::load_weak(&q->doorbell), bell);
            }
        }
        mem::fence<Scope::block>();
        if constexpr (L::has(kLock)) {
            if constexpr (kDeepep)
                mem::store_passing(&q->lock, 0u);
            else
                AnyWords::store<Scope::system>(&q->lock, 0u);
        }
        return {};
    }
    // The producer index that the doorbell goes by; returns what it was.
    GIC_FN static u64 raise(IbgdaQp* q, u64 next) {
        if constexpr (L::has(kProducer)) {
            return Words::template max<Scope::gpu>(&q->produced, next);
        } else {
            u64 was = mem::load_weak(&q->produced);
            mem::store_weak(&q->produced, was > next ? was : next);
            return was;
        }
    }

    // ---- completion -------------------------------------------------------------------------------------------

    GIC_FN Failure quiet_one(IbgdaQp* q) const {
        u64 ready = kDeepep ? mem::load_passing(&q->ready) : GlobalWords::load<Scope::system>(&q->ready);
        return poll(q, ready);
    }

    GIC_FN static u32 swapped16(u32 x) { return ((x & 0xff) << 8) | (x >> 8); }
    GIC_FN static bool is_behind(u64 next, u32 counter, u32 entries) {
        return ((static_cast<u32>(next) - counter - 2) & 0xffff) < entries;
    }

    // Until `next` blocks are completed, as the 16-bit counter of the one entry tells: right while less than 2^16
    // minus the queue's depth are behind.
    GIC_FN Failure poll(const IbgdaQp* q, u64 next) const {
        const IbgdaCq* cq = mem::load_weak(&q->cq);
        u64* consumed = mem::load_weak(&cq->consumed);
        Failure f;
        if constexpr (kDeepep) {
            u32 entries = mem::load_weak(&cq->entries);
            const u8* entry = mem::load_weak(&cq->entry);
            mem::fence<Scope::block>();
            if (mem::load_weak(consumed) >= next) return {};
            f = await_counter_alone(q, entry, entries, next);
            if (GIC_SELDOM(!f.ok())) return f;
            mem::store_weak(consumed, next);
        } else if (AnyWords::load<Scope::system>(consumed) < next) {
            f = await_counter(q, cq, consumed, next);
        }
        mem::fence<Scope::block>();
        return f;
    }
    GIC_FN Failure await_counter_alone(const IbgdaQp* q, const u8* entry, u32 entries, u64 next) const {
        Wait time(deadline_);
        while (is_behind(next, swapped16(mem::load_passing(reinterpret_cast<const u16*>(entry + 60))),
                         entries)) {
            if (time.expired()) return late(q, next);
        }
        return told(q, entry, next);
    }
    GIC_FN Failure await_counter(const IbgdaQp* q, const IbgdaCq* cq, u64* consumed, u64 next) const {
        u32 entries = mem::load_weak(&cq->entries);
        const u8* entry = mem::load_weak(&cq->entry);
        u64* produced = mem::load_weak(&cq->produced);
        if (!within(deadline_, [&] { return AnyWords::load<Scope::system>(produced) >= next; }))
            return late(q, next);
        mem::fence<Scope::block>();
        Wait time(deadline_);
        u32 counter;
        do {
            counter = swapped16(AnyWords::load<Scope::system>(reinterpret_cast<const u16*>(entry + 60)));
            if (AnyWords::load<Scope::system>(consumed) >= next) return {};
            if (time.expired()) return late(q, next);
        } while (is_behind(next, counter, entries));
        // Before others are told that it is completed: the library ends the kernel where it isn't.
        Failure f = told(q, entry, next);
        if (GIC_SELDOM(!f.ok())) return f;
        counter = (counter + 1) & 0xffff;
        u64 now = ((next & ~u64{0xffff}) | counter) + ((next & 0xffff) > counter ? 0x10000 : 0);
        AnyWords::max<Scope::gpu>(consumed, now);
        return {};
    }

    // ---- failures ---------------------------------------------------------------------------------------------

    GIC_COLD static Failure late(const IbgdaQp* q, u64 next) {
        return Failure::of(Why::deadline_completion, q->qpn, static_cast<u32>(next - 1));
    }
    GIC_FN static Failure told(const IbgdaQp* q, const u8* entry, u64 next) {
        u32 tail = AnyWords::load<Scope::system>(reinterpret_cast<const u32*>(entry + 60));
        if (GIC_SELDOM(tail >> 28 == kErrorCqe)) return error_cqe(q->qpn, entry, static_cast<u32>(next - 1));
        return {};
    }

    const LikeState* state_;
    IbgdaQp* own_;
    u32 thread_;
    u64 deadline_;
};

}  // namespace gic
