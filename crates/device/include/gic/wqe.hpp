// Send WQE segments: one pure builder a 16-byte segment, and the store of a segment into a queue.
// The formats are those of crates/wire, whose golden vectors and constants these are tested against.
#pragma once

#include "gic/atomics.hpp"

namespace gic {

constexpr u32 kBlockBytes = 64;    // a WQEBB
constexpr u32 kSegmentBytes = 16;  // a "ds" unit
constexpr u32 kSegmentsPerBlock = 4;
constexpr u32 kInlineHeader = 0x80000000u;
constexpr u32 kMaxMessage = 1u << 30;  // bytes in one WQE
constexpr u32 kMaxDs = 0x3f;

enum class Opcode : u32 {
    nop = 0x00,
    rdma_write = 0x08,
    rdma_write_imm = 0x09,
    send = 0x0a,
    send_imm = 0x0b,
    rdma_read = 0x10,
    atomic_cs = 0x11,
    atomic_fa = 0x12,
    atomic_masked_cs = 0x14,
    atomic_masked_fa = 0x15,
};
constexpr u32 kOpmodExtended4 = 0x08;

// Bits of the control segment's fm_ce_se.
constexpr u32 kCqUpdate = 0x08;
constexpr u32 kSolicited = 0x02;
constexpr u32 kFence = 0x80;

// 16 bytes as they stand in memory.
struct Segment {
    u64 low, high;
};

// Two 32-bit fields, first in memory first, both given in native order.
GIC_FN constexpr u64 pair32(u32 first, u32 second) {
    return (static_cast<u64>(be32(second)) << 32) | be32(first);
}

// Control. `index` counts WQEBBs and is cut to 16 bits: unmasked it would run into opmod.
GIC_FN constexpr Segment control_segment(Opcode op, u64 index, u32 qpn, u32 ds, u32 flags, u32 imm = 0,
                                         u32 opmod = 0) {
    // In memory: opmod, index (2 bytes, high one first), opcode; QPN (3 bytes), ds.
    u32 first = select_bytes(static_cast<u32>(index), (static_cast<u32>(op) << 8) | opmod, 0x5014);
    u32 second = select_bytes(qpn, ds, 0x4012);
    // No instruction for the immediate that most operations haven't.
    return {(static_cast<u64>(second) << 32) | first,
            (static_cast<u64>(imm == 0 ? 0 : be32(imm)) << 32) | (flags << 24)};
}

// Remote address and rkey.
GIC_FN constexpr Segment remote_segment(u64 address, u32 rkey) {
    return {be64(address), be32(rkey)};
}

// Local bytes by address.
GIC_FN constexpr Segment data_segment(u64 address, u32 bytes, u32 lkey) {
    return {pair32(bytes, lkey), be64(address)};
}

// Operand of an 8-byte fetch-and-add (swap_or_add) or compare-and-swap (both).
GIC_FN constexpr Segment atomic_segment(u64 swap_or_add, u64 compare) {
    return {be64(swap_or_add), be64(compare)};
}

// Operand of a 4-byte fetch-and-add (opmod 08): carries stop at `boundary`'s bits, 0 for none.
GIC_FN constexpr Segment fetch_add32_segment(u32 add, u32 boundary) {
    return {pair32(add, boundary), 0};
}

// The 48-byte address vector of a DC send, as three segments set up by the host in their final byte order.
struct AddressVector {
    Segment segments[3];
};

// Segments that `bytes` inline bytes and their header take.
GIC_FN constexpr u32 inline_segments(u32 bytes) {
    return (bytes + 4 + kSegmentBytes - 1) / kSegmentBytes;
}

// Blocks that a WQE of `ds` segments takes.
GIC_FN constexpr u32 blocks_of(u32 ds) {
    return (ds + kSegmentsPerBlock - 1) / kSegmentsPerBlock;
}

// A send queue's memory: 2^log_blocks WQEBBs, 64-byte aligned.
struct SendQueue {
    u8* base;
    u32 log_blocks;

    GIC_FN u32 blocks() const { return 1u << log_blocks; }

    // Stores segment `ds` of the WQE whose first block is `index`; a WQE may wrap at the queue's end.
    // Where `ds` is known to the compiler, one address serves all segments of a block.
    GIC_FN void store(u64 index, u32 ds, Segment s) const {
        u32 block = (static_cast<u32>(index) + ds / kSegmentsPerBlock) & (blocks() - 1);
        u8* to = base + static_cast<u64>(block) * kBlockBytes;
        mem::store_slot16(to + ds % kSegmentsPerBlock * kSegmentBytes, s.low, s.high);
    }
};

// The source of inline data may have been written as anything.
#if defined(__CUDACC__)
using InlineWord = u32;
#else
using InlineWord = u32 __attribute__((may_alias));
#endif

// Stores header and bytes from segment `ds` on, a byte at a time: for sources of any alignment. The last segment
// is padded with zeros.
GIC_APART void store_inline_bytes(SendQueue queue, u64 index, u32 ds, const u8* from, u32 bytes) {
    u32 taken = 0;
    u32 segments = inline_segments(bytes);
    for (u32 s = 0; s < segments; s++) {
        u64 half[2] = {0, 0};
        u32 at = 0;
        if (s == 0) {
            half[0] = be32(kInlineHeader | bytes);
            at = 4;
        }
        for (; at < kSegmentBytes && taken < bytes; at++, taken++) {
            half[at >> 3] |= static_cast<u64>(from[taken]) << ((at & 7) * 8);
        }
        queue.store(index, ds + s, {half[0], half[1]});
    }
}

// Inline data on its way into a WQE. All of it is loaded before anything is stored, so that a long payload waits for
// memory no longer than a short one.
template <u32 MaxBytes>
class InlineData {
  public:
    // Loads what there is of `bytes` bytes up to MaxBytes.
    GIC_FN InlineData(const u8* from, u32 bytes) : from_(from), bytes_(bytes) {
        if (GIC_SELDOM(!is_aligned())) return;
        const InlineWord* source = reinterpret_cast<const InlineWord*>(from);
        u32 whole = bytes / 4;
        u32 rest = 0;
        if (GIC_SELDOM((bytes & 3) != 0)) {
            for (u32 i = 0; i < (bytes & 3); i++)
                rest |= static_cast<u32>(from[whole * 4 + i]) << (8 * i);
        }
        // Word 0 is the header, word i the source's word i - 1.
        words_[0] = be32(kInlineHeader | bytes);
        GIC_UNROLL
        for (u32 s = 0; s < kSegments; s++) {
            if (16 * s >= bytes + 4) break;
            GIC_UNROLL
            for (u32 i = s == 0; i < 4; i++) {
                u32 word = 4 * s + i;
                words_[word] = word <= whole ? source[word - 1] : word == whole + 1 ? rest : 0;
            }
        }
    }

    // Stores header and bytes from segment `ds` on; the last segment is padded with zeros.
    GIC_FN void store(const SendQueue& queue, u64 index, u32 ds) const {
        if (GIC_SELDOM(!is_aligned())) {
            store_inline_bytes(queue, index, ds, from_, bytes_);
            return;
        }
        GIC_UNROLL
        for (u32 s = 0; s < kSegments; s++) {
            if (16 * s >= bytes_ + 4) break;
            const u32* w = words_ + 4 * s;
            queue.store(index, ds + s,
                        {(static_cast<u64>(w[1]) << 32) | w[0], (static_cast<u64>(w[3]) << 32) | w[2]});
        }
    }

  private:
    static constexpr u32 kSegments = inline_segments(MaxBytes);

    GIC_FN bool is_aligned() const { return (reinterpret_cast<u64>(from_) & 3) == 0; }

    const u8* from_;
    u32 bytes_;
    u32 words_[kSegments * 4];  // of an aligned source, as far as it goes
};

// The same for one 8-byte value.
GIC_FN void store_inline8(const SendQueue& queue, u64 index, u32 ds, u64 value) {
    queue.store(index, ds, {be32(kInlineHeader | 8) | (value << 32), value >> 32});
}

// The doorbell register's value that announces the next free index (opcode 0, ds 0: the form that needs no
// knowledge of the last WQE, so that one thread can ring for others).
GIC_FN constexpr u64 doorbell_value(u64 producer, u32 qpn) {
    // In memory: 0, index (2 bytes), 0; QPN (3 bytes), 0.
    u32 first = select_bytes(static_cast<u32>(producer), 0, 0x4014);
    return (static_cast<u64>(select_bytes(qpn, 0, 0x4012)) << 32) | first;
}

// The doorbell record's value.
GIC_FN constexpr u32 record_value(u64 producer) {
    return select_bytes(static_cast<u32>(producer), 0, 0x0144);
}

}  // namespace gic
