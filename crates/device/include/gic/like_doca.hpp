// NCCL GIN's puts by GPU threads: DOCA GPUNetIO's, in the three ways in which a queue pair is shared.
#pragma once

#include "gic/like.hpp"

namespace gic {

template <class L>
class DocaEndpoint {
  public:
    // Of `count` queue pairs, behind the own rank's.
    GIC_FN DocaEndpoint(DocaQp* qps, u32 count, u32 thread, u64 deadline)
        : qps_(foreign(qps)), qp_(qps_ + 1 + thread % count), count_(count), deadline_(deadline) {}

    GIC_FN Posted put(Remote remote, Local local, u32 bytes) const {
        u32 parts = 1;
        if constexpr (L::has(kParts)) {
            parts = (bytes >> kPartShift) + ((bytes & (kPart - 1)) != 0 ? 1 : 0);
            if (parts == 0) parts = 1;
        }
        u64 base = reserve(parts);
        if constexpr (L::has(kSpace)) {
            Failure f = await_slot(base + parts - 1);
            if (GIC_SELDOM(!f.ok())) return {0, f};
        }
        u64 index = base;
        if constexpr (L::has(kParts)) {
            u64 left = bytes;
            GIC_ONE_BY_ONE
            for (u64 i = 0; i < parts; i++) {
                index = base + i;
                u64 part = left > kPart ? kPart : left;
                write(index, remote.address + (i << kPartShift), remote.rkey,
                      local.address + (i << kPartShift), local.lkey, static_cast<u32>(part));
                left -= part;
            }
        } else {
            write(index, remote.address, remote.rkey, local.address, local.lkey, bytes);
        }
        Failure f = publish(base, index + 1);
        if (GIC_SELDOM(!f.ok())) return {0, f};
        return {index + 1, submit(index + 1)};
    }

    GIC_FN Outcome wait(u64 ticket) const { return told(poll(qp_, ticket - 1)); }

    // All queue pairs, one after the other.
    GIC_FN Outcome quiet() const {
        Failure f;
        for (u32 i = 1; i <= count_ && f.ok(); i++) {
            u64 reserved = AnyWords::load<Scope::system>(&qps_[i].reserved);
            if (reserved != 0) f = poll(qps_ + i, reserved - 1);
        }
        return told(f);
    }

  private:
    static constexpr u32 kPartShift = 30;
    static constexpr u32 kPart = 1u << kPartShift;

    GIC_FN static Outcome told(Failure f) { return {f.ok() ? Status::done : Status::error, f}; }

    GIC_FN u64 reserve(u32 parts) const {
        if constexpr (L::has(kReserve)) {
            return AnyWords::add<L::scope>(&qp_->reserved, static_cast<u64>(parts));
        } else {
            u64 base = mem::load_weak(&qp_->reserved);
            mem::store_weak(&qp_->reserved, base + parts);
            return base;
        }
    }

    GIC_FN Failure await_slot(u64 last) const {
        u16 blocks = mem::load_constant(&qp_->blocks);
        if (GIC_SELDOM(last < blocks)) return {};
        return poll(qp_, last - blocks);
    }

    GIC_FN void write(u64 index, u64 to, u32 rkey, u64 from, u32 lkey, u32 bytes) const {
        u16 mask = mem::load_constant(&qp_->mask);
        u8* at =
            mem::load_constant(&qp_->sq) + static_cast<u64>(static_cast<u16>(index) & mask) * kBlockBytes;
        if (L::has(kParts) && GIC_SELDOM(bytes == 0)) {
            mem::store_slot16_streaming(at, control(Opcode::nop, index, mem::load_constant(&qp_->nop_qpn)),
                                        kCqUpdate << 24);
            return;
        }
        Segment r = remote_segment(to, rkey);
        Segment d = data_segment(from, bytes, lkey);
        mem::store_slot16_streaming(
            at, control(Opcode::rdma_write, index, mem::load_constant(&qp_->write_qpn)), kCqUpdate << 24);
        mem::store_slot16_streaming(at + 16, r.low, r.high);
        mem::store_slot16_streaming(at + 32, d.low, d.high);
    }
    // A control segment's first half, of which the second word is kept as it stands there.
    GIC_FN static u64 control(Opcode op, u64 index, u32 second) {
        u32 first = select_bytes(static_cast<u32>(index), static_cast<u32>(op) << 8, 0x5014);
        return (static_cast<u64>(second) << 32) | first;
    }

    GIC_FN Failure publish(u64 base, u64 next) const {
        if constexpr (L::has(kReadyFence)) mem::fence_release<L::scope>();
        if constexpr (L::has(kReady) && L::shared) {
            if (!within(deadline_, [&] { return AnyWords::load<L::scope>(&qp_->ready) == base; }))
                return Failure::of(Why::deadline_turn, qp_->qpn, static_cast<u32>(base));
            mem::fence_acquire<L::scope>();
            AnyWords::store<L::scope>(&qp_->ready, next);
        } else if constexpr (L::has(kReady) || L::shared) {
            mem::store_weak(&qp_->ready, next);
        }
        return {};
    }

    // An early doorbell has the NIC begin; the one behind the record is for a NIC that looks at that.
    GIC_FN Failure submit(u64 next) const {
        if constexpr (L::has(kHandler)) {
            if (GIC_SELDOM(mem::load_constant(&qp_->handler) != kGpuRings))
                return Failure::of(Why::other_put, qp_->qpn);
        }
        if constexpr (L::has(kLock)) {
            if constexpr (L::shared) {
                if (!within(deadline_, [&] { return AnyWords::cas<L::scope>(&qp_->lock, 0u, 1u) == 0; }))
                    return Failure::of(Why::deadline_turn, qp_->qpn);
                mem::fence_acquire<L::scope>();
            } else {
                mem::store_weak(&qp_->lock, 1u);
            }
        }
        if (raise(&qp_->produced, next) < next) {
            if constexpr (L::has(kEarlyDoorbell)) ring<true>(next);
            mem::store_relaxed<Scope::system>(mem::load_constant(&qp_->record), record_value(next));
            ring<L::has(kDoorbellFence)>(next);
        }
        if constexpr (L::has(kLock)) {
            if constexpr (L::shared)
                AnyWords::store_release<L::scope>(&qp_->lock, 0u);
            else
                mem::store_weak(&qp_->lock, 0u);
        }
        return {};
    }

    template <bool Fence>
    GIC_FN void ring(u64 next) const {
        u64* doorbell = mem::load_constant(&qp_->doorbell);
        u32 first = select_bytes(static_cast<u32>(next), 0, 0x4014);
        u64 value = (static_cast<u64>(mem::load_constant(&qp_->doorbell_qpn)) << 32) | first;
        if constexpr (Fence) mem::fence_release<Scope::gpu>();
        mem::store_mmio(doorbell, value);
    }

    // The producer index that the doorbell goes by; returns what it was.
    GIC_FN static u64 raise(u64* produced, u64 next) {
        if constexpr (L::has(kProducer)) {
            u64 was = AnyWords::max<L::scope>(produced, next);
            mem::fence_acquire<L::scope>();
            return was;
        } else {
            return raise_alone(produced, next);
        }
    }
    GIC_FN static u64 raise_alone(u64* word, u64 next) {
        u64 was = mem::load_weak(word);
        mem::store_weak(word, was > next ? was : next);
        return was;
    }

    GIC_FN static u64 consumed(const DocaQp* q) {
        return L::shared ? AnyWords::load<L::scope>(&q->consumed) : mem::load_weak(&q->consumed);
    }

    // Until entry `at` is completed. The entries are not given back: the CQ is one whose overrun is ignored.
    GIC_FN Failure poll(DocaQp* q, u64 at) const {
        u64 seen = consumed(q);
        if (at >= seen) {
            Failure f = await_entry(q, at, seen);
            if (GIC_SELDOM(!f.ok())) return f;
        }
        mem::fence_acquire<Scope::system>();
        if constexpr (L::shared)
            AnyWords::max<L::scope>(&q->consumed, at + 1);
        else
            raise_alone(&q->consumed, at + 1);
        return {};
    }
    GIC_FN Failure await_entry(const DocaQp* q, u64 at, u64 seen) const {
        u32 entries = mem::load_constant(&q->cq_entries);
        const u8* entry =
            mem::load_constant(&q->entries) + static_cast<u64>(static_cast<u32>(at) & (entries - 1)) * 64;
        u32 owner = (at & entries) != 0 ? 1 : 0;
        Wait time(deadline_);
        for (;;) {
            u32 own = mem::load_byte_passing(entry + 63);
            if (at < seen + entries && (own & 1) == owner) {
                if (GIC_SELDOM(own >> 4 == kErrorCqe)) return error_cqe(q->qpn, entry, static_cast<u32>(at));
                return {};
            }
            seen = consumed(q);
            if (at < seen) return {};
            if (time.expired()) return Failure::of(Why::deadline_completion, q->qpn, static_cast<u32>(at));
        }
    }

    DocaQp* qps_;
    DocaQp* qp_;
    u32 count_;
    u64 deadline_;
};

}  // namespace gic
