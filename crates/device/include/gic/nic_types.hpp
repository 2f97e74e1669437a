// The tables of the NIC engine: everything that it knows between two visits, flat and addressed by index.
// Mirrored in crates/device/src/nic.rs. An engine serves both NICs of a fabric (addresses 1 and 2), or one of
// them, and another GPU's engine the other: it reaches the tables of both.
//
// The control plane writes them while no engine runs. While one does, each field has one writer, which its
// group names; "anyone's" are reached atomically or under the queue pair's receive lock.
#pragma once

#include "gic/wqe.hpp"

namespace gic {
namespace nic {

constexpr u32 kNics = 2;
constexpr u32 kMtu = 4096;
constexpr u32 kMaxFindings = 256;
constexpr u32 kTargetBit = 0x8000;  // in a number's index: a DC target
constexpr u32 kListEnd = 0x100;     // the lkey that ends a receive's list
constexpr u32 kDoorbellAt = 0x800;  // the doorbell registers of a page
constexpr u32 kDoorbellStride = 0x100;
constexpr u64 kNever = ~u64{0};

enum class State : u32 {
    reset = 0,
    init = 1,
    rtr = 2,
    rts = 3,
    error = 4
};

// Access rights, of regions and of queue pairs.
constexpr u32 kLocalWrite = 1;
constexpr u32 kRemoteWrite = 2;
constexpr u32 kRemoteRead = 4;
constexpr u32 kRemoteAtomic = 8;

// Vendor bytes of error CQEs: which check failed. They and their syndromes are crates/softnic's.
enum class Check : u32 {
    none = 0,
    flushed = 0x01,
    ds_zero = 0x10,
    opcode = 0x11,
    ds_for_opcode = 0x12,
    inline_length = 0x13,
    message_length = 0x14,
    atomic_mode = 0x15,
    atomic_result = 0x16,
    qpn_mismatch = 0x17,
    address_vector = 0x18,
    no_route = 0x19,
    split_wqe = 0x1c,
    wqe_changed = 0x1d,
    local_key = 0x20,
    local_bounds = 0x22,
    local_permission = 0x23,
    receive_access = 0x28,
    receive_too_small = 0x29,
    remote_key = 0x30,
    remote_bounds = 0x32,
    remote_permission = 0x33,
    qp_permission = 0x34,
    dc_key = 0x35,
    atomic_alignment = 0x38,
    remote_too_small = 0x3a,
    remote_receive = 0x3c,
    transport_retry = 0x40,
    rnr_retry = 0x41,
    cq_overrun = 0x50,
};

// The syndrome that goes with a check.
GIC_FN constexpr u32 syndrome_of(Check check) {
    u32 byte = static_cast<u32>(check);
    if (check == Check::flushed) return 0x05;
    if (check == Check::inline_length || check == Check::message_length || check == Check::atomic_result ||
        check == Check::receive_too_small)
        return 0x01;
    if (byte < 0x20 || check == Check::cq_overrun) return 0x02;
    if (byte < 0x28) return 0x04;
    if (check == Check::receive_access) return 0x11;
    if (byte < 0x38) return 0x13;
    if (byte < 0x3c) return 0x12;
    if (check == Check::remote_receive) return 0x14;
    return check == Check::transport_retry ? 0x15 : 0x16;
}

// Why a WQE fails, in one word: syndrome, vendor byte. 0 is no failure.
struct Cause {
    u32 bits;

    GIC_FN static constexpr Cause of(u32 syndrome, u32 vendor) { return {1u << 16 | vendor << 8 | syndrome}; }
    GIC_FN static constexpr Cause of(Check check) { return of(syndrome_of(check), static_cast<u32>(check)); }
    GIC_FN constexpr bool ok() const { return bits == 0; }
    GIC_FN constexpr u32 syndrome() const { return bits & 0xff; }
    GIC_FN constexpr u32 vendor() const { return (bits >> 8) & 0xff; }
};

// What a program did wrong, where hardware is silent: crates/softnic's findings, by kind.
enum class FindingKind : u32 {
    slot_overwritten = 0,
    index_mismatch = 1,
    unwritten_slot = 2,
    doorbell_too_far = 3,
    no_such_qp = 4,
    not_ready = 5,
    receive_record_for_send = 6,
    cq_overrun = 8,
    qpn_mismatch = 9,
    record_not_rung = 10,
};
constexpr u32 kBlank = 0x10000;  // unwritten_slot: nothing was there

struct Finding {
    u32 kind;
    u32 qpn;
    u64 index;  // block; of doorbell_too_far the first one not completed
    u32 found;
    u32 depth;
};
static_assert(sizeof(Finding) == 24, "mirrored by the host");

struct Region {
    u64 base;
    u64 length;
    u32 access;
    u32 tag;  // low byte of the keys; 0 where there is no region
};
static_assert(sizeof(Region) == 24, "mirrored by the host");

struct Target {
    u64 key;
    u32 access;
    u32 tag;  // of the number; 0 where there is no target
};
static_assert(sizeof(Target) == 16, "mirrored by the host");

constexpr u32 kCollapsed = 1;
constexpr u32 kIgnoreOverrun = 2;

struct Cq {
    u8* ring;
    u32* record;  // word 0: the consumer index
    u64 produced;
    u64 consumed;  // as last read
    u32 log_size;
    u32 flags;
    u32 in_error;
    u32 number;  // for findings
};
static_assert(sizeof(Cq) == 48, "mirrored by the host");

constexpr u32 kDci = 1;
constexpr u32 kHasReceives = 2;
constexpr u32 kSharedPage = 4;    // other queue pairs ring at its page, too
constexpr u32 kPageLead = 8;      // the one of its page that reports rings for nobody
constexpr u32 kRecordRings = 16;  // its record is polled, too: what it covers needn't wait for the ring

// Bits of QpOwn::attention: why it is to be visited though nobody rings.
constexpr u32 kUnfinished = 1;  // it waits, or has more to do
constexpr u32 kWatching = 2;    // the record lags behind a ring
constexpr u32 kFlushing = 4;    // in error: its receives are flushed whenever they are posted

// A queue pair's parts, by who writes them while an engine runs: nobody, the warp that serves it, anyone.
struct QpFixed {
    u8* sq;
    u32* record;  // receive producer, send producer
    u8* page;
    u8* rq;  // WQEs of 16 bytes
    u32 qpn;
    u32 tag;
    u32 log_blocks;
    u32 log_rq;
    u32 flags;
    u32 access;  // what peers may do through it
    u32 nic;     // 0 or 1
    u32 remote_nic;
    u32 remote_qpn;
    u32 sq_psn;
    u32 rq_psn;
    u32 retry_cnt;
    u32 rnr_retry;
    u32 padding;
    u64 timeout_ns;  // kNever: no timeout
    u64 rnr_wait_ns;
};
struct QpOwn {
    u64 head;  // first block not completed
    u64 producer;
    u64 completed;  // WQEs completed or flushed
    u64 wait_until;
    u32 attention;
    u32 rung;     // kWatching: the producer that was rung
    u32 watched;  // looks at the record since then
    u32 held;     // the WQE at `head` was inspected: opcode | 0x100, 0 if not
    u32 held_length;
    u32 waits_for;  // 0 nothing, 1 an answer, 2 a receive at the peer
    u32 retries;
    u32 rnr_retries;
    u64 fail_after;  // fault: WQEs before the one that fails; kNever for none
    u64 drop_after;  // fault: CQEs before the one that isn't written
    Cause fail_cause;
    u32 padding;
    Cq send;
    u64 seen[2];  // register values; written as they are seen
};
constexpr u32 kOwnKept = 17;  // words of QpOwn that a warp keeps while it serves
static_assert(sizeof(QpOwn) == 8 * (kOwnKept + 2), "all but `seen`");
struct QpShared {
    u32 state;
    u32 error;         // Cause, the first one
    u32 receive_lock;  // whose holder alone touches what follows
    u32 padding;
    u64 rq_head;
    u64 rq_producer;
    Cq receive;
};
struct Qp {
    QpFixed fixed;
    alignas(128) QpOwn own;
    alignas(128) QpShared shared;
};
static_assert(sizeof(Qp) == 512, "mirrored by the host");

// What ends a running engine, in memory that the host writes.
struct Control {
    u32 stop;
    u32 padding;
    u64 lease;  // counts up while the host is alive
};

// One NIC's, in the memory of the GPU whose engine serves it.
struct NicTables {
    Qp* qps;
    Region* regions;
    Target* targets;
    Finding* findings;   // kMaxFindings
    u32* finding_count;  // counts on where there is no room
};

// What one engine is started with.
struct Tables {
    NicTables nics[kNics];
    const u32* order;     // the queue pairs that it serves, dealt to warps in turn: NIC << 16 | index
    const u64* host_now;  // host build: the time in ns
    const Control* control;
    u64* ended;  // one a warp: why it ended
    u32* halt;   // in the engine's memory: the end that one warp has seen for all
    u64 lease_ns;
    u32 max_qps;
    u32 max_regions;
    u32 max_targets;
    u32 qps_in_order;
    u32 warps;
    u32 engines;  // that serve the fabric, on as many GPUs
};
static_assert(sizeof(Tables) == 152, "mirrored by the host");

GIC_FN Qp* find_qp(const Tables& t, u32 nic, u32 qpn) {
    u32 index = qpn & 0xffff;
    if (nic >= kNics || index >= t.max_qps) return nullptr;
    Qp* qp = &t.nics[nic].qps[index];
    return qp->fixed.tag != 0 && qp->fixed.qpn == qpn ? qp : nullptr;
}

GIC_FN const Target* find_target(const Tables& t, u32 nic, u32 number) {
    u32 index = number & 0xffff;
    if (nic >= kNics || (index & kTargetBit) == 0 || (index & ~kTargetBit) >= t.max_targets) return nullptr;
    const Target* target = &t.nics[nic].targets[index & ~kTargetBit];
    return target->tag != 0 && target->tag == number >> 16 ? target : nullptr;
}

// Keys: `index << 9 | remote << 8 | tag`.
GIC_FN const Region* find_region(const Tables& t, u32 nic, u32 key, bool remote) {
    u32 index = key >> 9;
    if (((key >> 8) & 1) != (remote ? 1u : 0u) || index >= t.max_regions) return nullptr;
    const Region* region = &t.nics[nic].regions[index];
    return region->tag != 0 && region->tag == (key & 0xff) ? region : nullptr;
}

GIC_FN constexpr bool is_inside(u64 base, u64 length, u64 address, u64 bytes) {
    return address >= base && bytes <= length && address - base <= length - bytes;
}

}  // namespace nic
}  // namespace gic
