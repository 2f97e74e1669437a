// A put as a library makes it: its steps in its order, of its kinds of accesses, and nothing else of it.
//
//   using L = gic::Like<gic::Peer::gdaki>;                       // or Like<Peer::gdaki, kLock>: without the lock
//   gic::LikeEndpoint<L> endpoint(qps, count, tables, thread);
//   gic::Posted p = endpoint.put({remote, rkey}, {local, lkey}, bytes);
//   gic::Outcome o = endpoint.wait(p.ticket);                    // as the library waits for one queue pair
//
// It stands between mini-gda and the library itself: what the library's choices cost where they are written with as
// few instructions as they need. Each step is a function; `without` takes one out.
//
// Unlike the libraries it ends every wait, and tells an error CQE instead of stopping the kernel.
#pragma once

#include "gic/like_types.hpp"

#if defined(__CUDACC__)
// Set by the launcher. Constant memory, as in the library.
extern "C" {
inline __constant__ gic::LikeTables gic_like_tables;
}
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
    static constexpr bool is_public = P == Peer::nvshmem;
    // Whose threads share the queue pair.
    static constexpr Scope scope = P == Peer::gdaki_cta ? Scope::block : Scope::gpu;
};

// A function that is called by the rules for what was compiled elsewhere: it saves its caller's registers, and reads
// them again behind the last fence.
template <class F>
GIC_FN F* foreign(F* function) {
#if GIC_ON_GPU
    asm volatile("" : "+l"(function));
#endif
    return function;
}

template <class L>
class LikeEndpoint {
  public:
    // `thread` is the caller's block of one thread: what the libraries choose a queue pair by.
    GIC_FN LikeEndpoint(LikeQp* qps, u32 count, const LikeTables* tables, u32 thread, u64 deadline)
        : qps_(qps), tables_(tables), fixed_(qps + thread % count), count_(count), thread_(thread),
          deadline_(deadline) {}

    // `remote` and `local` are addresses of the first bytes. NVSHMEM and DeepEP take the keys from their tables, and
    // for `remote` the address that the bytes have in the heap at home.
    GIC_FN Posted put(Remote remote, Local local, u32 bytes) const {
        if constexpr (L::gdaki) {
            return put_gdaki(remote, local, bytes);
        } else if constexpr (L::has(kCall)) {
            const LikeTables& t = tables();
            u64 mapped = mem::load_constant(t.mapped + t.target);
            if (mapped != 0) {
                const u8* from = reinterpret_cast<const u8*>(local.address);
                u8* to = reinterpret_cast<u8*>(mapped + (remote.address - t.heap));
                for (u32 i = 0; i < bytes; i++)
                    to[i] = from[i];
                return {0, {}};
            }
            return foreign(put_apart)(qps_, tables_, count_, thread_, deadline_, remote.address,
                                      local.address, bytes);
        } else {
            return put_ibgda(remote.address, local.address, bytes);
        }
    }

    // Waits for a ticket: for NVSHMEM and DeepEP for all that was posted to the queue pair.
    GIC_FN Outcome wait(u64 ticket) const {
        Failure f;
        if constexpr (L::gdaki)
            f = poll_ring(fixed_, ticket - 1);
        else
            f = quiet_one(qps_ + chosen());
        return {f.ok() ? Status::done : Status::error, f};
    }

    // From a target's address to that of the same bytes at home.
    GIC_FN u64 shift() const {
        if constexpr (L::gdaki) {
            return 0;
        } else {
            const LikeTables& t = tables();
            return t.heap - mem::load_weak(t.remote_heaps + t.target);
        }
    }

    // All queue pairs, one after the other.
    GIC_FN Outcome quiet() const {
        if constexpr (L::is_public) {
            return foreign(quiet_apart)(qps_, tables_, count_, thread_, deadline_);
        } else {
            return quiet_all();
        }
    }

  private:
    GIC_FN const LikeTables& tables() const {
#if GIC_ON_GPU
        return gic_like_tables;
#else
        return *tables_;
#endif
    }

    // ---- NVSHMEM and DeepEP -----------------------------------------------------------------------------------

    GIC_APART static Posted put_apart(LikeQp* qps, const LikeTables* tables, u32 count, u32 thread,
                                      u64 deadline, u64 to, u64 from, u32 bytes) {
        return LikeEndpoint(qps, count, tables, thread, deadline).put_ibgda(to, from, bytes);
    }
    GIC_APART static Outcome quiet_apart(LikeQp* qps, const LikeTables* tables, u32 count, u32 thread,
                                         u64 deadline) {
        Outcome o = LikeEndpoint(qps, count, tables, thread, deadline).quiet_all();
        mem::fence_sequential<Scope::system>();
        return o;
    }

    // A counter that nobody protects spreads puts over the devices; block and device choose in the table.
    GIC_FN u32 choose() const {
        const LikeTables& t = tables();
        if constexpr (!L::has(kQueue)) return thread_ % count_;
        u32 all = t.per_target * t.devices;
        if constexpr (L::peer == Peer::deepep) {
            return t.target * all + thread_ % all;
        } else {
            u32 id = block();
            u32* counter = t.counters + id % t.groups;
            u32 turn = mem::load_weak(counter) + 1;
            mem::store_weak(counter, turn);
            id = id / t.devices * t.devices + turn % t.devices;
            return t.target * all + id % all;
        }
    }
    // Asked for anew each time: what follows from it is worked out for every put.
    GIC_FN u32 block() const {
#if GIC_ON_GPU
        u32 id;
        asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(id));
        return id;
#else
        return thread_;
#endif
    }
    // Where one device has all queue pairs it is the one that `choose` gives.
    GIC_FN u32 chosen() const { return thread_ % count_; }

    // A put may go over the end of a chunk, at either side: one WQE for each part.
    GIC_FN Posted put_ibgda(u64 to, u64 from, u64 bytes) const {
        const LikeTables& t = tables();
        u32 index = choose();
        LikeQp* q = qps_ + index;
        u64 ticket = 0;
        while (bytes > 0) {
            Part part = {from, t.lkeys[0].key, to - t.heap, t.rkeys[0].key, bytes};
            if constexpr (L::has(kKeys)) {
                Failure f = look_up(q, to, from, bytes, &part);
                if (!f.ok()) return {0, f};
            } else {
                part.remote += mem::load_weak(t.remote_heaps + t.target);
            }
            u64 base = reserve(q, 1);
            if constexpr (L::has(kSpace)) {
                Failure f = await_slot(q, base + 1);
                if (!f.ok()) return {0, f};
            }
            write(q, base, part);
            Failure f = submit(q, base, base + 1);
            if (!f.ok()) return {0, f};
            ticket = base + 1;
            bytes -= part.bytes;
            to += part.bytes;
            from += part.bytes;
        }
        return {ticket, {}};
    }

    struct Part {
        u64 local;
        u32 lkey;
        u64 remote;
        u32 rkey;
        u64 bytes;
    };
    GIC_FN static u64 least(u64 a, u64 b) { return a < b ? a : b; }

    GIC_FN Failure look_up(const LikeQp* q, u64 to, u64 from, u64 bytes, Part* part) const {
        const LikeTables& t = tables();
        u32 device = mem::load_weak(&q->device);
        u64 offset = to - t.heap;
        u64 here = from - t.heap;
        if constexpr (L::peer != Peer::deepep) {
            // Elsewhere the library goes through a list.
            if (GIC_SELDOM(from < t.heap || from > t.heap + t.heap_bytes - 1))
                return Failure::of(Why::bad_offset, 0);
        }
        const ChunkKey& lkey = t.lkeys[(here >> t.log_chunk) * t.devices + device];
        const ChunkKey& rkey =
            t.rkeys[(offset >> t.log_chunk) * t.targets * t.devices + t.target * t.devices + device];
        if (GIC_SELDOM(from >= lkey.end || offset >= rkey.end)) return Failure::of(Why::bad_offset, 0);
        u64 remote = mem::load_weak(t.remote_heaps + t.target) + offset;
        u64 left = least(lkey.end - from, rkey.end - offset);
        if constexpr (L::peer != Peer::deepep) left = least(left, kMaxMessage);
        *part = {from, lkey.key, remote, rkey.key, least(bytes, left)};
        return {};
    }

    GIC_FN static u64 reserve(LikeQp* q, u64 blocks) {
        if constexpr (L::has(kReserve)) {
            return mem::fetch_add_relaxed<L::scope>(&q->reserved, blocks);
        } else {
            u64 base = mem::load_weak(&q->reserved);
            mem::store_weak(&q->reserved, base + blocks);
            return base;
        }
    }

    GIC_FN Failure await_slot(LikeQp* q, u64 next) const {
        u32 blocks = 1u << mem::load_weak(&q->log_blocks);
        Failure f;
        if (next >= blocks) f = poll_collapsed(q, next - blocks);
        mem::fence<Scope::block>();
        return f;
    }

    GIC_FN static void write(const LikeQp* q, u64 index, const Part& part) {
        u32 blocks = 1u << mem::load_weak(&q->log_blocks);
        u8* at =
            mem::load_weak(&q->sq) + static_cast<u64>(static_cast<u32>(index) & (blocks - 1)) * kBlockBytes;
        u32 bytes = static_cast<u32>(part.bytes);
        Segment c = control_segment(Opcode::rdma_write, index, mem::load_weak(&q->qpn), 3, kCqUpdate);
        Segment r = {be64(part.remote), part.rkey};
        Segment d = {(static_cast<u64>(part.lkey) << 32) | be32(bytes), be64(part.local)};
        store(at, c);
        store(at + 16, r);
        store(at + 32, d);
    }
    GIC_FN static void store(u8* at, Segment s) {
        if constexpr (L::peer == Peer::deepep) {
            mem::store_slot16_relaxed(at, s.low, s.high);
        } else if constexpr (L::gdaki) {
            mem::store_slot16_streaming(at, s.low, s.high);
        } else {
            u32* word = reinterpret_cast<u32*>(at);
            mem::store_relaxed<Scope::system>(word, static_cast<u32>(s.low));
            mem::store_relaxed<Scope::system>(word + 1, static_cast<u32>(s.low >> 32));
            mem::store_relaxed<Scope::system>(word + 2, static_cast<u32>(s.high));
            mem::store_relaxed<Scope::system>(word + 3, static_cast<u32>(s.high >> 32));
        }
    }

    // Of a scope that is found at run time; DeepEP's is the GPU always.
    GIC_FN void fence() const {
        if (L::peer == Peer::deepep || __builtin_expect(tables().queues_on_gpu != 0, 1))
            mem::fence_sequential<Scope::gpu>();
        else
            mem::fence_sequential<Scope::system>();
    }

    GIC_FN Failure submit(LikeQp* q, u64 base, u64 next) const {
        if constexpr (L::has(kReadyFence)) fence();
        if constexpr (L::has(kReady)) {
            Wait time(deadline_);
            while (mem::compare_and_swap_relaxed<L::scope>(&q->ready, base, next) != base) {
                if (time.expired())
                    return Failure::of(Why::deadline_turn, mem::load_weak(&q->qpn), static_cast<u32>(base));
            }
        } else {
            mem::store_weak(&q->ready, next);
        }
        if constexpr (L::peer != Peer::deepep) {
            mem::fence<Scope::block>();
            // Not where others are behind who will: a batch that is crossed is rung for all the same.
            u64 mask = ~static_cast<u64>(tables().batch - 1);
            if (next != mem::load_relaxed<Scope::system>(&q->reserved) && (base & mask) == (next & mask) &&
                next - base < tables().batch)
                return {};
        }
        return ring(q, next);
    }

    GIC_FN Failure ring(LikeQp* q, u64 next) const {
        Failure f = lock(q);
        if (!f.ok()) return f;
        if constexpr (!L::gdaki) mem::fence<Scope::block>();
        if (raise(q, next) < next) {
            u32* record = mem::load_weak(&q->record);
            u64 bell = doorbell_value(next, mem::load_weak(&q->qpn));
            if constexpr (L::peer == Peer::deepep) {
                if constexpr (L::has(kRecordFence))
                    mem::store_release<Scope::gpu>(record, record_value(next));
                else
                    mem::store_relaxed<Scope::gpu>(record, record_value(next));
                if constexpr (L::has(kDoorbellFence))
                    mem::store_release<Scope::gpu>(mem::load_weak(&q->doorbell), bell);
                else
                    mem::store_relaxed<Scope::gpu>(mem::load_weak(&q->doorbell), bell);
            } else {
                if constexpr (L::has(kRecordFence)) fence();
                mem::store_relaxed<Scope::system>(mem::load_weak(&q->record), record_value(next));
                if constexpr (L::has(kDoorbellFence)) fence();
                mem::store_relaxed<Scope::system>(mem::load_weak(&q->doorbell), bell);
            }
        }
        mem::fence<Scope::block>();
        if constexpr (L::has(kLock)) mem::store_relaxed<Scope::system>(&q->lock, 0u);
        return {};
    }

    GIC_FN Failure lock(LikeQp* q) const {
        if constexpr (L::has(kLock) && L::shared) {
            Wait time(deadline_);
            while (mem::compare_and_swap_relaxed<L::scope>(&q->lock, 0u, 1u) != 0) {
                if (time.expired()) return Failure::of(Why::deadline_turn, mem::load_weak(&q->qpn));
            }
        } else if constexpr (L::has(kLock)) {
            mem::store_weak(&q->lock, 1u);
        }
        return {};
    }

    // The producer index that the doorbell goes by; returns what it was.
    GIC_FN static u64 raise(LikeQp* q, u64 next) {
        if constexpr (L::has(kProducer)) {
            return mem::fetch_max_relaxed<L::scope>(&q->produced, next);
        } else {
            u64 was = mem::load_weak(&q->produced);
            mem::store_weak(&q->produced, was > next ? was : next);
            return was;
        }
    }

    GIC_FN Outcome quiet_all() const {
        Failure f;
        for (u32 q = 0; q < count_ && f.ok(); q++) {
            if constexpr (L::gdaki) {
                u64 reserved = mem::load_relaxed<Scope::system>(&qps_[q].reserved);
                if (reserved != 0) f = poll_ring(qps_ + q, reserved - 1);
            } else {
                f = quiet_one(qps_ + q);
            }
        }
        return {f.ok() ? Status::done : Status::error, f};
    }

    GIC_FN Failure quiet_one(LikeQp* q) const {
        u64 ready = L::peer == Peer::deepep ? mem::load_relaxed<Scope::gpu>(&q->ready)
                                            : mem::load_relaxed<Scope::system>(&q->ready);
        return poll_collapsed(q, ready);
    }

    GIC_FN static u32 swapped16(u32 x) { return ((x & 0xff) << 8) | (x >> 8); }

    // Until `next` blocks are completed, as the 16-bit counter of the one entry tells: right while less than 2^16
    // minus the queue's depth are behind.
    GIC_FN Failure poll_collapsed(const LikeQp* q, u64 next) const {
        const LikeCq* cq = mem::load_weak(&q->cq);
        u32 entries = mem::load_weak(&cq->entries);
        u64* consumed = mem::load_weak(&cq->consumed);
        const u8* entry = mem::load_weak(&cq->entry);
        Wait time(deadline_);
        if constexpr (L::peer == Peer::deepep) {
            mem::fence<Scope::block>();
            if (mem::load_weak(consumed) >= next) return {};
            u64 tail;
            do {
                tail = mem::load_relaxed<Scope::gpu>(reinterpret_cast<const u64*>(entry + 56));
                if (time.expired()) return late(q, next);
            } while (is_behind(next, swapped16(static_cast<u32>(tail >> 32) & 0xffff), entries));
            Failure f = told(q, entry, tail, next);
            if (f.ok()) mem::store_weak(consumed, next);
            mem::fence<Scope::block>();
            return f;
        } else {
            u64* produced = mem::load_weak(&cq->produced);
            Failure f;
            u64 seen = mem::load_relaxed<Scope::system>(consumed);
            if (seen < next) {
                while (mem::load_relaxed<Scope::system>(produced) < next) {
                    if (time.expired()) return late(q, next);
                }
                mem::fence<Scope::block>();
                u32 counter;
                do {
                    counter =
                        swapped16(mem::load_relaxed<Scope::system>(reinterpret_cast<const u16*>(entry + 60)));
                    seen = mem::load_relaxed<Scope::system>(consumed);
                    if (seen >= next) break;
                    if (time.expired()) return late(q, next);
                } while (is_behind(next, counter, entries));
                if (seen < next) {
                    counter = (counter + 1) & 0xffff;
                    u64 now = ((next & ~u64{0xffff}) | counter) + ((next & 0xffff) > counter ? 0x10000 : 0);
                    // Before others are told that it is completed: the library ends the kernel where it isn't.
                    f = told(q, entry,
                             mem::load_relaxed<Scope::system>(reinterpret_cast<const u64*>(entry + 56)),
                             next);
                    if (f.ok()) mem::fetch_max_relaxed<Scope::gpu>(consumed, now);
                }
            }
            mem::fence<Scope::block>();
            return f;
        }
    }
    GIC_FN static bool is_behind(u64 next, u32 counter, u32 entries) {
        return ((static_cast<u32>(next) - counter - 2) & 0xffff) < entries;
    }

    // ---- DOCA GPUNetIO ----------------------------------------------------------------------------------------

    GIC_FN Posted put_gdaki(Remote remote, Local local, u32 bytes) const {
        LikeQp* q = fixed_;
        u64 base = reserve(q, 1);
        if constexpr (L::has(kSpace)) {
            u32 blocks = 1u << mem::load_constant(&q->log_blocks);
            if (base >= blocks) {
                Failure f = poll_ring(q, base - blocks);
                if (!f.ok()) return {0, f};
            }
        }
        u32 mask = (1u << mem::load_constant(&q->log_blocks)) - 1;
        u8* at = constant_pointer(&q->sq) + static_cast<u64>(static_cast<u32>(base) & mask) * kBlockBytes;
        store(at, control_segment(Opcode::rdma_write, base, mem::load_constant(&q->qpn), 3, kCqUpdate));
        store(at + 16, remote_segment(remote.address, remote.rkey));
        store(at + 32, data_segment(local.address, bytes, local.lkey));

        u64 next = base + 1;
        Failure f = mark_ready(q, base, next);
        if (f.ok()) f = submit_gdaki(q, next);
        return {next, f};
    }

    template <class T>
    GIC_FN static T* constant_pointer(T* const* at) {
        return reinterpret_cast<T*>(mem::load_constant(reinterpret_cast<const u64*>(at)));
    }

    GIC_FN Failure mark_ready(LikeQp* q, u64 base, u64 next) const {
        if constexpr (L::has(kReadyFence)) mem::fence_release<L::scope>();
        if constexpr (L::has(kReady) && L::shared) {
            Wait time(deadline_);
            while (mem::load_relaxed<L::scope>(&q->ready) != base) {
                if (time.expired()) return Failure::of(Why::deadline_turn, q->qpn, static_cast<u32>(base));
            }
            mem::fence_acquire<L::scope>();
            mem::store_relaxed<L::scope>(&q->ready, next);
        } else {
            mem::store_weak(&q->ready, next);
        }
        return {};
    }

    // An early doorbell has the NIC begin; the one behind the record is for a NIC that looks at that.
    GIC_FN Failure submit_gdaki(LikeQp* q, u64 next) const {
        Failure f = lock(q);
        if (!f.ok()) return f;
        if constexpr (L::has(kLock) && L::shared) mem::fence_acquire<L::scope>();
        u64 was = raise(q, next);
        if constexpr (L::has(kProducer)) mem::fence_acquire<L::scope>();
        if (was < next) {
            u64* doorbell = constant_pointer(&q->doorbell);
            u64 bell = doorbell_value(next, mem::load_constant(&q->qpn));
            if constexpr (L::has(kEarlyDoorbell)) {
                mem::fence_release<Scope::gpu>();
                mem::store_mmio(doorbell, bell);
            }
            mem::store_relaxed<Scope::system>(constant_pointer(&q->record), record_value(next));
            if constexpr (L::has(kDoorbellFence)) mem::fence_release<Scope::gpu>();
            mem::store_mmio(doorbell, bell);
        }
        if constexpr (L::has(kLock) && L::shared)
            mem::store_release<L::scope>(&q->lock, 0u);
        else if constexpr (L::has(kLock))
            mem::store_weak(&q->lock, 0u);
        return {};
    }

    // Until entry `at` is completed. The entries are not given back: the CQ is one whose overrun is ignored.
    GIC_FN Failure poll_ring(LikeQp* q, u64 at) const {
        const u8* cq = constant_pointer(&q->entries);
        u32 entries = 1u << mem::load_constant(&q->log_cq);
        const u8* entry = cq + static_cast<u64>(static_cast<u32>(at) & (entries - 1)) * 64;
        u64* consumed = &q->consumed;
        Wait time(deadline_);
        u32 own = 0;
        for (;;) {
            u64 seen = L::shared ? mem::load_relaxed<L::scope>(consumed) : mem::load_weak(consumed);
            if (at < seen) {
                own = 0;
                break;
            }
            own = mem::load_relaxed<Scope::system>(entry + 63);
            if (at < seen + entries && (own & 1) == ((at & entries) != 0 ? 1 : 0)) break;
            if (time.expired()) return Failure::of(Why::deadline_completion, q->qpn, static_cast<u32>(at));
        }
        if (GIC_SELDOM((own >> 4) == 13)) return error_cqe(q->qpn, entry, static_cast<u32>(at));
        mem::fence_acquire<Scope::system>();
        if constexpr (L::shared) {
            mem::fetch_max_relaxed<L::scope>(consumed, at + 1);
        } else {
            u64 seen = mem::load_weak(consumed);
            mem::store_weak(consumed, seen > at + 1 ? seen : at + 1);
        }
        return {};
    }

    // ---- failures ---------------------------------------------------------------------------------------------

    GIC_COLD static Failure late(const LikeQp* q, u64 next) {
        return Failure::of(Why::deadline_completion, q->qpn, static_cast<u32>(next - 1));
    }
    // `tail`: the entry's last 8 bytes.
    GIC_FN static Failure told(const LikeQp* q, const u8* entry, u64 tail, u64 next) {
        if (GIC_SELDOM((tail >> 60) == 13)) return error_cqe(q->qpn, entry, static_cast<u32>(next - 1));
        return {};
    }
    GIC_COLD static Failure error_cqe(u32 qpn, const u8* entry, u32 at) {
        u64 syndromes = mem::load_relaxed<Scope::system>(reinterpret_cast<const u64*>(entry + 48));
        return Failure::of(Why::completion, qpn, at, static_cast<u32>(syndromes >> 56),
                           static_cast<u32>(syndromes >> 48) & 0xff);
    }

    LikeQp* qps_;
    const LikeTables* tables_;
    LikeQp* fixed_;  // where the caller chooses by itself
    u32 count_;
    u32 thread_;
    u64 deadline_;
};

}  // namespace gic
