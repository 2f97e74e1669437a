// What the host hands to mini-proxy's device code, and what comes back. Mirrored in crates/device/src/proxy.rs.
#pragma once

#include "gic/gda_types.hpp"

namespace gic {

// How a GPU thread tells the CPU that there is something to post.
enum class Handoff : u32 {
    lap_parity = 0,        // a 16-byte descriptor whose halves each carry the lap's parity; never cleared
    nonzero_word = 1,      // a 16-byte descriptor whose halves are never zero; cleared when taken
    valid_byte = 2,        // descriptor, system fence, flag; the flag is cleared when taken
    producer_counter = 3,  // the GPU builds the WQE and publishes a producer index; the CPU rings
    mapped_counter = 4,    // the CPU knows the request already; the GPU raises a counter in host memory
};
constexpr u32 kHandoffs = 5;

// Who pushes to a ring.
enum class Producers : u32 {
    one = 0,   // one thread alone: no atomics, indices stay in registers
    many = 1,  // each reserves with a fetch-and-add
};
constexpr u32 kProducers = 2;

// How a producer learns of room.
enum class Progress : u32 {
    cached = 0,  // the host's word is read only where the last reading says that the ring is full
    read = 1,    // the host's word is read for every push
};
constexpr u32 kProgresses = 2;

// What a descriptor's store orders.
enum class Publish : u32 {
    release = 0,  // everything that the thread wrote before, the payload with it
    posted =
        1,  // nothing: for payloads that were visible to the NIC before, by an earlier kernel for instance
};
constexpr u32 kPublishes = 2;

// What a descriptor asks for. `put` is 0 and sizes are stored less one, so that no bit pattern is reserved:
// sixteen zero bytes are a put of one byte.
enum class ProxyOp : u32 {
    put = 0,
    put_signal = 1,  // and behind it, in the same queue pair, 1 is added to the channel's signal word
    put_imm = 2,     // with an immediate: ring number (8 bits), position of the descriptor (24 bits)
    get = 3,
    fetch_add = 4,  // `size` is added to the 8 bytes at `destination`; what was there is left at `source`
    flush = 5,      // nothing; completes when all before it has
};
constexpr u32 kProxyOps = 6;

constexpr u32 kOffsetBits = 38;
constexpr u32 kSizeBits = 25;
constexpr u32 kChannelShift = 43;
constexpr u32 kOpShift = 59;
constexpr u64 kMaxOffset = (u64{1} << kOffsetBits) - 1;
constexpr u64 kMaxTransfer = u64{1} << kSizeBits;
// Bit 63 of each half belongs to the hand-off.
constexpr u64 kMark = u64{1} << 63;

// One request. Offsets are into the channel's regions.
struct Descriptor {
    ProxyOp op = ProxyOp::put;
    u32 channel = 0;      // queue pair and regions
    u64 size = 0;         // bytes, 1 to kMaxTransfer; of a fetch_add what is added
    u64 source = 0;       // local offset
    u64 destination = 0;  // remote offset

    // low:  mark(1) op(4) channel(16) zero(5) source(38)
    // high: mark(1) size less one(25) destination(38)
    GIC_FN constexpr Segment pack() const {
        return {(static_cast<u64>(op) << kOpShift) | (static_cast<u64>(channel) << kChannelShift) | source,
                (op == ProxyOp::flush ? 0 : (size - 1) << kOffsetBits) | destination};
    }
};

// The mark of position `at`'s lap in a ring of 2^log_depth slots: set in the first lap, clear in the second.
GIC_FN constexpr u64 lap_mark(u64 at, u32 log_depth) {
    return ((static_cast<u32>(at) >> log_depth) & 1) == 0 ? kMark : 0;
}

// What the CPU tells producers; host memory, written by one worker.
struct RingProgress {
    alignas(64) u64 posted;     // slots of positions before it may be written again
    alignas(64) u64 completed;  // all operations before it are done
    u64 failure;                // packed Failure; stays
};
static_assert(sizeof(RingProgress) == 128, "mirrored by the host");

// What producers keep among themselves, in their own memory. Positions count from any start and never wrap.
struct RingState {
    alignas(64) u64 head;     // first position that nobody has reserved
    alignas(64) u64 ready;    // counters only: who waits for it to reach his position has the turn
    alignas(64) u64 tail;     // `posted` when it was last read
    alignas(64) u64 failure;  // a producer's own, packed
};
static_assert(sizeof(RingState) == 256, "mirrored by the host");

// Memory that a channel moves: what a producer needs that builds WQEs itself.
struct ProxyChannel {
    u64 local;  // addresses of the regions' first bytes
    u64 remote;
    u64 signal;  // 8 bytes
    u64 result;  // 8 bytes: what a signal's atomic leaves
    u32 lkey;
    u32 rkey;
    u32 signal_rkey;
    u32 result_lkey;
};
static_assert(sizeof(ProxyChannel) == 48, "mirrored by the host");

// A ring as device code sees it. Read-only.
struct Ring {
    u8* slots;     // 2^log_depth slots of 16 bytes; producer_counter: the send queue itself
    u32* flags;    // valid_byte: one a slot
    u64* counter;  // counters: what the producer raises
    RingProgress* progress;
    RingState* state;
    const ProxyChannel* channels;
    u64 deadline;  // of every wait, in clock ticks
    u32 log_depth;
    u32 channel_count;
    u32 number;  // of the ring
    u32 qpn;     // producer_counter: of the send queue; otherwise 0
};
static_assert(sizeof(Ring) == 72, "mirrored by the host");

}  // namespace gic
