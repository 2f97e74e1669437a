// What the host hands to mini-gda's device code, and what comes back. Mirrored in crates/device/src/gda.rs.
#pragma once

#include "gic/order.hpp"
#include "gic/wqe.hpp"

namespace gic {

// Who posts to a queue pair.
enum class Sharing : u32 {
    exclusive = 0,  // one thread (or one warp) alone: indices stay in registers
    thread = 1,     // many threads, each reserves for itself and publishes in order
    warp = 2,       // many warps, each reserves once for all of its lanes
};
constexpr u32 kSharings = 3;

// How the NIC reports completions.
enum class CqKind : u32 {
    ring = 0,       // an entry a completion, owner bit flips each lap, consumer record written back
    collapsed = 1,  // one entry that the NIC overwrites; its counter is the last completed WQE
};
constexpr u32 kCqKinds = 2;

// When the doorbell is rung.
enum class Ringing : u32 {
    each = 0,       // for every post
    threshold = 1,  // when nobody is behind, or when a multiple of 32 blocks is crossed
    deferred = 2,   // when the caller says so: aggregation
    every_nth = 3,  // when n blocks are unrung, and when the caller says so
};
constexpr u32 kRingings = 4;

// Which WQEs ask for a CQE.
enum class Signalling : u32 {
    every = 0,
    on_request = 1,  // the caller says so; one in each half of the queue is forced, so that space comes back
};

enum class Transport : u32 {
    rc = 0,
    dc = 1
};

// A queue pair's moving parts, in memory of the submitter's side. Wide indices count WQEBBs and never wrap.
struct QpState {
    alignas(64) u64 reserved;  // first block that nobody has reserved
    alignas(64) u64 ready;  // blocks before it are written; who waits for it to reach his base has the turn
    u64 rung;               // blocks before it are doorbelled
    alignas(64) u64 consumed;  // blocks before it are known to be completed
    u64 cq_next;               // next entry of a ring CQ
    u32 cq_lock;               // who polls a shared ring CQ
    u32 pad;
    u64 last_ticket;  // exclusive: of the last post, and of the last that asked for a CQE
    u64 last_signalled;
    alignas(64) u64 failure;  // the first failure, packed; 0 while there is none
};
static_assert(sizeof(QpState) == 256, "mirrored by the host");

// A queue pair as device code sees it. Read-only.
struct Qp {
    SendQueue sq;
    u32* record;     // the send word of the doorbell record
    u64* doorbell;   // doorbell register in the UAR page
    u8* cq;          // 64-byte entries
    u32* cq_record;  // consumer word
    QpState* state;
    u64 deadline;  // of every wait, in clock ticks
    u32 qpn;
    u32 log_cq;
};
static_assert(sizeof(Qp) == 72, "mirrored by the host");

// Why an operation failed.
enum class Why : u32 {
    none = 0,
    completion = 1,           // an error CQE: syndrome, vendor syndrome and index are the NIC's
    deadline_space = 2,       // no room in the send queue came in time
    deadline_turn = 3,        // an earlier post of a shared queue was not published in time
    deadline_completion = 4,  // no completion came in time
    too_large = 5,            // a reservation larger than the queue can ever hold
    bad_length = 6,           // 0 bytes, or more than one WQE can carry
    unaligned_atomic = 7,
    bad_cqe = 8,           // a CQE of no known kind
    never_rung = 9,        // checked: waited for a WQE that no doorbell has covered
    cq_is_collapsed = 10,  // checked: a collapsed CQ was polled as a ring
    cq_is_ring = 11,       // checked: a ring CQ was polled as collapsed
    inline_too_long = 12,
    wrong_data = 13,         // an experiment's own check failed in device code
    bad_offset = 14,         // proxy: an offset that a descriptor or the channel's region can't hold
    bad_channel = 15,        // proxy: no such channel, or one without a signal word
    proxy_stopped = 16,      // the proxy was stopped
    worker_died = 17,        // the proxy's worker ended by itself
    nic_gone = 18,           // the proxy's NIC doesn't answer
    bad_descriptor = 19,     // proxy: a descriptor of no known kind
    no_address_vector = 20,  // DC: a post that names no target
    deadline_start = 21,     // not all threads of a launch came to its start in time
    other_put = 22,          // like a library: it has another put for this case
};

// A failure in one word, so that the first one can be kept by one compare-and-swap.
struct Failure {
    u64 bits = 0;

    GIC_FN static Failure of(Why why, u32 qpn, u32 index = 0, u32 syndrome = 0, u32 vendor = 0) {
        return {(static_cast<u64>(why) << 56) | (static_cast<u64>(vendor & 0xff) << 48) |
                (static_cast<u64>(syndrome & 0xff) << 40) | (static_cast<u64>(index & 0xffff) << 24) |
                (qpn & 0xffffff)};
    }
    GIC_FN bool ok() const { return bits == 0; }
    GIC_FN Why why() const { return static_cast<Why>(bits >> 56); }
    GIC_FN u32 syndrome() const { return static_cast<u32>(bits >> 40) & 0xff; }
    GIC_FN u32 index() const { return static_cast<u32>(bits >> 24) & 0xffff; }
    GIC_FN u32 qpn() const { return static_cast<u32>(bits) & 0xffffff; }
};

// What polling says of an operation. An error is never a kind of done.
enum class Status : u32 {
    pending = 0,
    done = 1,
    error = 2
};
struct Outcome {
    Status status;
    Failure failure;
};

// A post: what to wait for, or why nothing was posted.
struct Posted {
    u64 ticket;  // done when as many blocks are known to be completed
    Failure failure;
};

// Remote and local memory of one operation.
struct Remote {
    u64 address;
    u32 rkey;
};
struct Local {
    u64 address;
    u32 lkey;
};

// The wide index after the one that a CQE's 16-bit counter names: only forward from `consumed`, and only up to
// what was doorbelled; otherwise `consumed`. Exact for one-block WQEs, short by a longer one's other blocks.
GIC_FN constexpr u64 rebuild_index(u64 consumed, u64 rung, u32 counter) {
    u64 ahead = (counter + 1 - static_cast<u32>(consumed)) & 0xffff;
    // `rung` may be an older reading than `consumed`.
    u64 room = rung - consumed;
    return static_cast<long long>(room) > 0 && ahead <= room ? consumed + ahead : consumed;
}

}  // namespace gic
