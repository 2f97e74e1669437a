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
    return {pair32((opmod << 24) | ((static_cast<u32>(index) & 0xffff) << 8) | static_cast<u32>(op),
                   (qpn << 8) | ds),
            pair32(flags, imm)};
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
    GIC_FN void store(u64 index, u32 ds, Segment s) const {
        u32 mask = (kSegmentsPerBlock << log_blocks) - 1;
        u32 at = ((static_cast<u32>(index) << 2) + ds) & mask;
        mem::store_slot16(base + static_cast<u64>(at) * kSegmentBytes, s.low, s.high);
    }
};

// Stores header and bytes from segment `ds` on, reading `bytes` bytes at `from`; the last segment is padded
// with zeros. `from` needs no alignment.
GIC_FN void store_inline(const SendQueue& queue, u64 index, u32 ds, const u8* from, u32 bytes) {
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

// The same for one 8-byte value.
GIC_FN void store_inline8(const SendQueue& queue, u64 index, u32 ds, u64 value) {
    queue.store(index, ds, {be32(kInlineHeader | 8) | (value << 32), value >> 32});
}

// The doorbell register's value that announces the next free index (opcode 0, ds 0: the form that needs no
// knowledge of the last WQE, so that one thread can ring for others).
GIC_FN constexpr u64 doorbell_value(u64 producer, u32 qpn) {
    return pair32((static_cast<u32>(producer) & 0xffff) << 8, qpn << 8);
}

// The doorbell record's value.
GIC_FN constexpr u32 record_value(u64 producer) {
    return be32(static_cast<u32>(producer) & 0xffff);
}

}  // namespace gic
