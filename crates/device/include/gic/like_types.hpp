// What mini-gda and mini-proxy are handed to put as a library does (like.hpp, like_proxy.hpp). Mirrored in
// crates/device/src/like.rs.
#pragma once

#include "gic/gda_types.hpp"
#include "gic/like_atomics.hpp"

namespace gic {

// Whose put.
enum class Peer : u32 {
    nvshmem = 0,           // NVSHMEM 3.4 IBGDA, the public put and the quiet of all queue pairs
    nvshmem_internal = 1,  // the same put inlined, and the quiet of its queue pair
    gdaki_exclusive = 2,   // DOCA GPUNetIO as in NCCL 2.28: nobody shares the queue pair
    gdaki_cta = 3,         // ... a block's threads do
    gdaki = 4,             // ... the GPU's do: the default
    deepep = 5,            // DeepEP's low-latency put, on NVSHMEM's state
    // By a CPU that posts:
    nvshmem_proxy = 6,  // NVSHMEM 3.4's proxied put (the GPU's side of IBRC), public, and its quiet
    gin_proxy = 7,      // NCCL 2.28 GIN's proxy, and the flush of all ranks
    mscclpp = 8,        // MSCCL++'s FIFO, and a flush of the channel
    uccl_ep = 9,        // UCCL-EP's FIFOs, and the quiet of all its proxies
    fabric_lib = 10,    // fabric-lib's flag: the CPU knows the request already
};
constexpr u32 kPeers = 11;

GIC_FN constexpr bool is_proxied(Peer peer) {
    return peer >= Peer::nvshmem_proxy;
}

// The steps of a put. Each can be left out, so that its cost can be told: a put that lacks one is there to be
// measured, by one thread, and not to be relied on.
enum Step : u32 {
    kCall =
        1
        << 0,  // a function out of line, behind a look at whether the target is mapped, for GPU and CPU alike
    kQueue = 1 << 1,  // the queue pair by a counter in memory, divisions and a table; a CPU's queue by memory
    kKeys = 1 << 2,   // lkey, rkey and remote address by chunk
    kReserve = 1 << 3,     // an atomic on the reserve index; without: a load and a store
    kSpace = 1 << 4,       // whether the slot is free, by the CQ or by the CPU's word
    kReadyFence = 1 << 5,  // wqe before ready index
    kReady = 1 << 6,       // the ready index moves in order; without: a store, or nothing where nobody shares
    kLock = 1 << 7,        // around record and doorbell
    kProducer = 1 << 8,    // an atomic maximum on the producer index; without: a load and a store
    kEarlyDoorbell = 1 << 9,   // a fence and a doorbell before the record
    kRecordFence = 1 << 10,    // wqe before record
    kDoorbellFence = 1 << 11,  // record before doorbell
    kPayloadOrder = 1 << 12,   // payload before descriptor
    kHandler = 1 << 13,        // who rings, the GPU or a CPU, by a word that is looked at for every put
    kParts = 1 << 14,          // a WQE for each GiB
    kGroup = 1 << 15,          // whether a warp's lanes put together; DeepEP: that they do
    kTarget = 1 << 16,         // whether the queue pair is a DC initiator, and its target's address vector
    kStack = 1 << 17,          // variables that lie on the function's stack
};
constexpr u32 kSteps = 18;

constexpr u32 kStepsIbgda =
    kKeys | kReserve | kReadyFence | kReady | kHandler | kLock | kProducer | kRecordFence | kDoorbellFence;
constexpr u32 kStepsNvshmem = kStepsIbgda | kGroup | kQueue | kTarget | kSpace;
constexpr u32 kStepsGdaki = kParts | kReserve | kSpace | kReadyFence | kReady | kHandler | kLock | kProducer |
                            kEarlyDoorbell | kDoorbellFence;

GIC_FN constexpr u32 steps_of(Peer peer) {
    switch (peer) {
    case Peer::nvshmem: return kStepsNvshmem | kCall | kStack;
    case Peer::nvshmem_internal: return kStepsNvshmem;
    case Peer::deepep: return kStepsIbgda | kGroup;
    case Peer::nvshmem_proxy: return kCall | kStack | kPayloadOrder | kReserve | kSpace;
    case Peer::gin_proxy:
    case Peer::uccl_ep: return kQueue | kPayloadOrder | kReserve | kSpace;
    case Peer::mscclpp: return kPayloadOrder | kReserve | kSpace;
    case Peer::fabric_lib: return kReserve;
    case Peer::gdaki_exclusive: return kStepsGdaki & ~(kReserve | kReadyFence | kProducer);
    default: return kStepsGdaki;
    }
}

// Queue pairs are laid out as the libraries lay theirs out, as far as a put goes through them: which words share 32 bytes
// decides what a cache answers, and which share 128 what waits for an atomic.

// DOCA GPUNetIO's, with its CQ, a ring. The first of several is NCCL's own rank's: nobody uses it.
struct DocaQp {
    u64 reserved;
    u64 ready;
    u64 produced;
    u32 qpn;
    u32 pad0;
    u32 doorbell_qpn;  // as it stands in a doorbell
    u32 nop_qpn;       // ... and in the control segments of WQEs of 1 and 3 segments
    u32 pad1;
    u32 write_qpn;
    u32 pad2;
    u32 lock;
    u16 blocks;
    u16 mask;
    u32 pad3;
    u8* sq;
    u32* record;
    u64* doorbell;
    u64 pad4[9];
    const u8* entries;
    u32 pad5;
    u32 cq_entries;
    u64 pad6;
    u64 consumed;
    u64 pad7[10];
    u32 handler;
    u32 pad8;
};
// Who rings. No CPU does for these.
constexpr u32 kCpuRings = 1, kGpuRings = 2;

// NVSHMEM's collapsed CQ, by addresses of what its queue pair keeps.
struct IbgdaCq {
    u64 pad0[2];
    const u8* entry;
    u64* produced;
    u64* consumed;
    u64 pad1[2];
    u32 pad2;
    u32 entries;
    u64 pad3;
};

// NVSHMEM's queue pair.
struct IbgdaQp {
    u32 pad0;
    u32 kind;
    u32 qpn;
    u32 device;
    u64 pad1[3];
    u16 blocks;
    u16 pad2[3];
    u8* sq;
    u32* record;
    u64* doorbell;
    const IbgdaCq* cq;
    u64 pad3;
    u32 pad4;
    u32 lock;
    u64 reserved;
    u64 ready;
    u64 produced;
    u64 consumed;
    u64 pad5[7];
};
// What it is connected as: a DC initiator, whose WQEs name their target, or reliably.
constexpr u32 kIbgdaDci = 1, kIbgdaRc = 3;

// A key, as it stands in a WQE, and the first address (lkey) or offset (rkey) that it isn't good for.
struct ChunkKey {
    u32 key;
    u32 pad;
    u64 end;
};
constexpr u32 kMaxChunks = 64;
// This side and the other.
constexpr u32 kTargets = 2;

// By what of its thread NVSHMEM chooses a queue pair.
enum class QueueMap : u32 {
    block = 0,
    multiprocessor = 1,
    warp = 2
};

// NVSHMEM's state where GPU threads post. One symmetric heap in chunks of 2^log_chunk bytes; a target's address is told
// by that of the same bytes at home. Each target has `per_target` queue pairs on each of `devices`.
struct LikeTables {
    u64 heap;
    u64 heap_bytes;
    u64 log_chunk;
    u32 targets;
    u32 me;
    u32 target;
    u32 devices;
    u32 groups;  // counters
    u32 per_target;
    u32 batch;  // a power of two: blocks left unrung at most
    QueueMap map;
    u32 queues_on_gpu;  // the fences' scope is the GPU, otherwise the system
    u32 heap_on_host;
    u32 cpu_rings;
    u32 dc_targets;  // address vectors of each target, by device
    IbgdaQp* qps;    // by target
    u8* counters;
    const u64* remote_heaps;  // by target
    const u64* mapped;        // by target: where this GPU reaches it itself; 0 where only the NIC does
    const Segment* vectors;   // by target: what a WQE has of an address vector
    ChunkKey lkeys[kMaxChunks];
    ChunkKey rkeys[kTargets * kMaxChunks];
};
// What a proxied put asks of the CPU.
enum class Asks : u32 {
    put = 1,
    flush = 2  // answered when all before it is completed
};

// Bytes from one of a queue's slots to the next.
GIC_FN constexpr u32 slot_bytes_of(Peer peer) {
    switch (peer) {
    case Peer::nvshmem_proxy: return 32;
    case Peer::gin_proxy: return 64;
    case Peer::mscclpp: return 16;
    case Peer::uccl_ep: return 32;  // of which it writes 16
    case Peer::fabric_lib: return 64;
    default: return 0;
    }
}

// A slot's 8-byte words. Of many, each has a mark in its lowest bit and 7 bytes at most:
//   remote offset (48), what is asked (8), mark | local offset, mark | bytes, mark | mark ...
// Two: local offset (32), bytes (32) | mark (1), what is asked (4, from bit 32), remote offset (32). Bytes are never 0.
// NVSHMEM's and MSCCL++'s mark is set in even laps. NCCL's is set always, and all words are zeroed when taken; so are
// UCCL-EP's, whose words aren't 0.
constexpr u32 kAsksShift = 8, kRemoteShift = 16, kWordShift = 8;
constexpr u32 kPairAsksShift = 32;
constexpr u64 kPairMark = u64{1} << 63;

// A queue to the CPU, by the addresses of what the two sides keep of it. UCCL-EP has 8 for each of 4 proxies, NCCL one a
// rank, of which the first is its own, fabric-lib one a thread: its flag, without a slot's words.
struct LikeQueue {
    u8* slots;         // host memory
    u64* head;         // first slot that nobody has reserved; fabric-lib: blocks that are done
    u64* tail;         // host memory: slots before it may be written again
    u64* cached_tail;  // as it was last read
    u32 depth;
    u32 log_depth;
    u64* asked;          // host memory: how far a quiet is asked for
    u64* answered;       // host memory: how far it is answered; fabric-lib: a byte
    const u64* failure;  // host memory: packed Failure, of all queues
    const u64* mapped;   // where this GPU reaches the target itself; 0 where only the NIC does
    u64 local;           // first bytes that offsets count from
    u64 remote;
    u32 backend;  // NCCL: who posts
    u32 pad;
};
constexpr u32 kUcclProxies = 4, kUcclQueues = 8;
// NCCL's backends: this one, a CPU's, or GPU threads.
constexpr u32 kProxyBackend = 2, kGdakiBackend = 3;

// What NVSHMEM finds its way by: constant memory on a GPU. One of the two is there.
struct LikeState {
    LikeTables tables;
    LikeQueue queue;
    u32 by_gpu;  // who posts
    u32 pad;
};

static_assert(sizeof(DocaQp) == 280 && sizeof(IbgdaCq) == 72 && sizeof(IbgdaQp) == 184,
              "the libraries' sizes");
static_assert(sizeof(LikeQueue) == 96, "mirrored by the host");
static_assert(sizeof(LikeTables) == 112 + 48 * kMaxChunks, "mirrored by the host");
static_assert(sizeof(LikeState) == sizeof(LikeTables) + sizeof(LikeQueue) + 8, "mirrored by the host");

}  // namespace gic
