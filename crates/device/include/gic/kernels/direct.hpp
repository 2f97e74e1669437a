// The same put, get and signal without queue, doorbell and NIC: by the threads' own loads and stores, or by bulk copies
// through shared memory. A block of threads moves one payload after another.
#pragma once

#include "gic/kernels/latency.hpp"
#include "gic/kernels/round_trip.hpp"

namespace gic {
namespace kernels {

enum class Move : u32 {
    store = 0,  // 16 bytes a thread and turn, where addresses and length allow it
    bulk = 1,   // cp.async.bulk in and out, by one thread; multiples of 16 bytes
};
constexpr u32 kMoves = 2;

// Operation i of a block goes from and to slot i mod `slots`, and has the value first + i, in its payload's marks.
struct DirectArgs {
    u64 local;
    u64 remote;
    u64 result;     // 8 bytes, local: what an atomic leaves
    u64 signal;     // 8 bytes, remote
    u64 signalled;  // its value before the launch
    u64 stride;
    u64 warmup;
    u64 samples;  // of a rate: operations a block
    u64 first;
    u64 deadline;
    u64* issue;    // ticks, one a kept sample; of a rate: shared clock, all are there, one a block
    u64* total;    // ticks, one a kept sample; of a rate: shared clock, all completed, one a block
    u64* failure;  // one a block
    u32* arrived;  // of a rate: 0 before the launch
    u32 bytes;
    u32 slots;  // a block
    u32 lanes;  // threads of a block
    u32 blocks;
    u32 is_get;  // of a rate
    u32 padding;
};
static_assert(sizeof(DirectArgs) == 136, "mirrored by the host");

struct DirectRoundTripArgs {
    u64* inbox[2];   // where the other side's value arrives
    u64* outbox[2];  // the other side's inbox
    u64 warmup;
    u64 samples;
    u64 deadline;    // ticks, of one wait
    u64* ticks;      // one a kept sample
    u64* failure;    // one a side
    u32 first_side;  // of this launch: the other one may be another GPU's
    u32 sides;
};
static_assert(sizeof(DirectRoundTripArgs) == 80, "mirrored by the host");

GIC_FN u32 block_lane() {
#if GIC_ON_GPU
    return threadIdx.x;
#else
    return 0;
#endif
}

GIC_FN void block_sync() {
#if GIC_ON_GPU
    __syncthreads();
#endif
}

// Moves a payload by loads and stores. Nothing is waited for.
class Storing {
  public:
    GIC_FN explicit Storing(u32 lanes) : lanes_(lanes) {}

    GIC_FN void prepare() {}
    GIC_FN void move(u64 to, u64 from, u32 bytes) {
        u32 lane = block_lane();
        u32 done = 0;
        if (((to | from) & 15) == 0) {
            const Wide* source = reinterpret_cast<const Wide*>(from);
            Wide* target = reinterpret_cast<Wide*>(to);
            u32 wides = bytes / 16;
            u32 i = lane;
            for (; i + (kInFlight - 1) * lanes_ < wides; i += kInFlight * lanes_) {
                Wide held[kInFlight];
                GIC_UNROLL
                for (u32 k = 0; k < kInFlight; k++)
                    held[k] = source[i + k * lanes_];
                GIC_UNROLL
                for (u32 k = 0; k < kInFlight; k++)
                    target[i + k * lanes_] = held[k];
            }
            for (; i < wides; i += lanes_)
                target[i] = source[i];
            done = wides * 16;
        }
        for (u32 at = done + lane * 8; at + 8 <= bytes; at += lanes_ * 8)
            mem::store_relaxed<Scope::system>(
                reinterpret_cast<u64*>(to + at),
                mem::load_relaxed<Scope::system>(reinterpret_cast<u64*>(from + at)));
        if (lane != 0) return;
        for (u32 at = bytes & ~7u; at < bytes; at++)
            *reinterpret_cast<u8*>(to + at) = *reinterpret_cast<const u8*>(from + at);
    }
    // What the calling thread moved is where it should be for whoever sees what it stores next.
    GIC_FN void settle() {}

  private:
    struct alignas(16) Wide {
        u64 low;
        u64 high;
    };
    static constexpr u32 kInFlight = 4;

    u32 lanes_;
};

#if GIC_ON_GPU
// Moves a payload by bulk copies: into shared memory, and out of it. The first thread of the block has it done.
class Bulk {
  public:
    GIC_FN explicit Bulk(u32) {
        __shared__ alignas(128) u8 stages[2][kStage];
        __shared__ u64 barriers[2];
        for (u32 b = 0; b < 2; b++) {
            stage_[b] = shared(&stages[b]);
            full_[b] = shared(&barriers[b]);
        }
        if (block_lane() != 0) return;
        for (u32 b = 0; b < 2; b++)
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(full_[b]) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }

    // What threads stored is seen by copies that begin after this.
    GIC_FN void prepare() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

    GIC_FN void move(u64 to, u64 from, u32 bytes) {
        if (block_lane() != 0) return;
        u32 parts = (bytes + kStage - 1) / kStage;
        load(0, from, size(0, bytes));
        for (u32 part = 0; part < parts; part++) {
            if (part + 1 < parts) {
                // The other stage is filled again when what left it has been read.
                asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
                load(part + 1, from, size(part + 1, bytes));
            }
            u32 b = part & 1;
            await(b);
            asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                             to + static_cast<u64>(part) * kStage),
                         "r"(stage_[b]), "r"(size(part, bytes))
                         : "memory");
            asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        }
        // The next move begins with the first stage.
        asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    }

    GIC_FN void settle() {
        if (block_lane() == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }

  private:
    static constexpr u32 kStage = 16384;

    GIC_FN static u32 shared(const void* at) { return static_cast<u32>(__cvta_generic_to_shared(at)); }
    GIC_FN static u32 size(u32 part, u32 bytes) {
        u32 left = bytes - part * kStage;
        return left < kStage ? left : kStage;
    }
    GIC_FN void load(u32 part, u64 from, u32 bytes) {
        u32 b = part & 1;
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(full_[b]), "r"(bytes)
                     : "memory");
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                stage_[b]),
            "l"(from + static_cast<u64>(part) * kStage), "r"(bytes), "r"(full_[b])
            : "memory");
    }
    GIC_FN void await(u32 b) {
        u32 done = 0;
        while (done == 0) {
            asm volatile("{\n .reg .pred p;\n mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                         " selp.u32 %0, 1, 0, p;\n}"
                         : "=r"(done)
                         : "r"(full_[b]), "r"((turn_ >> b) & 1)
                         : "memory");
        }
        turn_ ^= 1u << b;
    }

    u32 stage_[2];
    u32 full_[2];
    u32 turn_ = 0;  // parity of each stage's next fill
};
#endif

template <Move M>
struct MoverOf {
    using Type = Storing;
};
#if GIC_ON_GPU
template <>
struct MoverOf<Move::bulk> {
    using Type = Bulk;
};
#endif

// One operation at a time: until all its stores are issued, and until they are performed for everybody.
template <Move M, Op O>
GIC_FN void direct_latency(const DirectArgs& a) {
    typename MoverOf<M>::Type mover(a.lanes);
    u32 lane = block_lane();
    u64* signal = reinterpret_cast<u64*>(a.signal);
    block_sync();
    for (u64 i = 0; i < a.warmup + a.samples; i++) {
        u64 slot = (i % a.slots) * a.stride;
        u64 local = a.local + slot;
        u64 remote = a.remote + slot;
        if (lane == 0 && (O == Op::put || O == Op::put_signal)) {
            write_payload(local, a.bytes, a.first + i);
            mover.prepare();
        }
        block_sync();

        u64 start = clock_ticks();
        if constexpr (O == Op::put || O == Op::put_signal) mover.move(remote, local, a.bytes);
        if constexpr (O == Op::get) mover.move(local, remote, a.bytes);
        if constexpr (O == Op::fetch_add || O == Op::put_signal) {
            mover.settle();
            block_sync();
            if (lane == 0 && O == Op::fetch_add)
                *reinterpret_cast<u64*>(a.result) = mem::fetch_add<Scope::system>(signal, u64{1});
            // One thread alone signals: a store does, behind all that the block has moved.
            if (lane == 0 && O == Op::put_signal)
                mem::store_release<Scope::system>(signal, a.signalled + i + 1);
        }
        u64 issued = clock_ticks();
        mover.settle();
        block_sync();
        if (lane == 0) mem::fence<Scope::system>();
        u64 done = clock_ticks();

        if (lane == 0 && i >= a.warmup) {
            a.issue[i - a.warmup] = issued - start;
            a.total[i - a.warmup] = done - start;
        }
    }
}

// Many operations of each block, and one wait at their end.
template <Move M>
GIC_FN void direct_rate(const DirectArgs& a, u32 block) {
    typename MoverOf<M>::Type mover(a.lanes);
    u32 lane = block_lane();
    u64 base = static_cast<u64>(block) * a.slots * a.stride;
    if (!a.is_get)
        mark_slots({a.local + base, a.slots, a.stride, a.samples, a.first + block * a.samples}, a.bytes, lane,
                   a.lanes);
    mover.prepare();
    Failure failure;
    if (lane == 0) {
        failure = meet(a.arrived, a.blocks, a.deadline, block);
        a.failure[block] = failure.bits;
        a.issue[block] = shared_clock();
    }
    block_sync();
    u32 slot = 0;
    for (u64 i = 0; i < a.samples; i++) {
        u64 offset = base + slot * a.stride;
        if (a.is_get) {
            mover.move(a.local + offset, a.remote + offset, a.bytes);
        } else {
            mover.move(a.remote + offset, a.local + offset, a.bytes);
        }
        if (++slot == a.slots) slot = 0;
    }
    mover.settle();
    block_sync();
    if (lane == 0) {
        mem::fence<Scope::system>();
        a.total[block] = shared_clock();
    }
}

// Values are 1, 2, 3 …, as in the round trip of puts.
GIC_FN void direct_round_trip(const DirectRoundTripArgs& a, u32 side) {
    Failure failure;
    for (u64 i = 0; i < a.warmup + a.samples && failure.ok(); i++) {
        u64 start = clock_ticks();
        if (side == 0) mem::store_release<Scope::system>(a.outbox[0], i + 1);
        failure = await_value(a.inbox[side], i + 1, a.deadline, side);
        if (failure.ok() && side == 1) mem::store_release<Scope::system>(a.outbox[1], i + 1);
        u64 done = clock_ticks();
        if (side == 0 && i >= a.warmup) a.ticks[i - a.warmup] = done - start;
    }
    a.failure[side] = failure.bits;
}

}  // namespace kernels
}  // namespace gic
