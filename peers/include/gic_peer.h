/* What gicbench and a peer's adapter say to each other: plain C, read by g++ and nvcc, mirrored by `src/abi.rs`.
 *
 * An adapter is two pieces, both compiled against the peer's own headers: `state.cpp` becomes a shared library that
 * fills in the peer's device-side structures, `kernel.cu` a CUBIN that calls the peer's device code on them. None of
 * gicbench's own device code is in either.
 *
 * Addresses are uint64_t. Those of GPU memory are followed by kernels alone, those of host memory (pinned) by both
 * sides. Two sides (PEs, ranks) exist, 0 and 1; each is built apart and has a module of its own, since libraries keep
 * their state in global variables. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#define GIC_PEER_ABI 1

/* One send queue of an mlx5 queue pair and its CQ, made by gicbench. */
typedef struct {
    uint64_t sq;        /* 2^log_blocks blocks of 64 bytes, zeroed */
    uint64_t record;    /* the doorbell record's send word: big endian, 4 bytes */
    uint64_t doorbell;  /* the doorbell register: 8 bytes */
    uint64_t cq;        /* 2^log_cq entries of 64 bytes, each invalid (all ones) */
    uint64_t cq_record; /* the CQ's consumer word */
    uint32_t log_blocks;
    uint32_t log_cq;
    uint32_t qpn;
    uint32_t peer; /* which side it is connected to; DC: any */
} GicPeerQueue;

/* What a side is built from. */
typedef struct {
    uint32_t abi;     /* GIC_PEER_ABI */
    uint32_t variant; /* of the adapter's own numbering */
    uint32_t me;      /* 0 or 1 */
    uint32_t qps;     /* entries of `queue` */
    const GicPeerQueue* queue;
    /* This side's payload memory. Its last 64 bytes are no payload: zero before, a put_signal adds 1 to one of their
     * words at the target, and results that nobody wants go there. */
    uint64_t local;
    uint64_t bytes; /* of it, and of the other side's */
    uint64_t remote;
    uint32_t lkey; /* of the payload memory here, host byte order */
    uint32_t rkey; /* of the other side's */
    uint32_t own_rkey;
    uint32_t producers; /* threads that will call it */
    uint8_t av[48];     /* DC: the other side's address vector as a WQE has it, from the key on */

    /* Two memories for the adapter's structures, zeroed, of the sizes that gic_peer_sizes asked for. `device` is a
     * shadow: what is written there is copied to GPU memory at `device_at` before the first launch. `host` is pinned
     * memory that kernels reach under the same address. */
    uint8_t* device;
    uint64_t device_at;
    uint8_t* host;
} GicPeerRig;

/* A stretch of the device shadow that is the value of a variable of the module, and not copied with the rest. */
typedef struct {
    const char* name;
    uint64_t offset;
    uint64_t bytes;
} GicPeerSymbol;

#define GIC_PEER_SYMBOLS 8
typedef struct {
    uint64_t state; /* handed to kernels: what it means is the adapter's business */
    uint32_t symbols;
    GicPeerSymbol symbol[GIC_PEER_SYMBOLS];
} GicPeerBuilt;

/* One thing that a CPU has to do for GPU threads. */
enum {
    GIC_PEER_WRITE = 1,   /* `bytes` from `local` to `remote` */
    GIC_PEER_WRITE_VALUE, /* the low `bytes` (at most 8) of `value` to `remote` */
    GIC_PEER_FETCH_ADD,   /* `value` to the 8 bytes at `remote` */
    GIC_PEER_FLUSH        /* nothing: done when all before it are */
};
typedef struct {
    uint32_t kind;
    uint32_t bytes;
    uint64_t local;
    uint64_t remote;
    uint64_t value;
    uint64_t ticket; /* handed back to gic_peer_done */
} GicPeerRequest;

typedef struct {
    const char* name;
    uint64_t size;
} GicPeerLayout;

typedef struct {
    uint32_t abi;
    const char* library;
    const char* version; /* what the headers say */
    uint32_t layouts;    /* sizes of the structures that are filled in, for records and tests */
    const GicPeerLayout* layout;
} GicPeerInfo;

/* Exported by the shared library of state.cpp. The last three only where a CPU takes part (a proxy, or a CPU that
 * rings doorbells). Errors: nonzero, with a sentence in `why`. */
#ifdef __cplusplus
extern "C" {
#endif
const GicPeerInfo* gic_peer_info(void);
/* May be left out: then there are `qps` queues, all to the other side. Otherwise it says how many queues a variant has
 * for that number a peer, and, where `to_self` isn't null, which of them lead to the side itself (1). */
uint32_t gic_peer_queues(uint32_t variant, uint32_t qps, uint32_t* to_self);
void gic_peer_sizes(uint32_t variant, uint32_t qps, uint32_t producers, uint64_t* device, uint64_t* host);
int gic_peer_build(const GicPeerRig* rig, GicPeerBuilt* built, char* why, size_t why_bytes);

/* Called by one CPU thread a side, with the rig it was built from. Takes the next request: 1, or 0 if there is none
 * (or it was carried out here, such as ringing a doorbell); negative: it met one that the adapter doesn't know, and
 * will take no more. Never blocks. */
int gic_peer_take(const GicPeerRig* rig, GicPeerRequest* request);
/* Requests of tickets up to and including this one are completed; in order. */
void gic_peer_done(const GicPeerRig* rig, uint64_t ticket);
/* Who the CPU side is: "the library's own" or "minimal consumer", and of what. */
const char* gic_peer_consumer(void);
#ifdef __cplusplus
}
#endif

/* Arguments of the kernels. Operation i of thread t goes from and to slot t * slots + i mod slots, `stride` bytes
 * apart, and marks its payload with first + t * (warmup + samples) + i. */
typedef struct {
    uint64_t state;
    uint32_t threads; /* blocks of one thread */
    uint32_t bytes;
    uint64_t slots;
    uint64_t stride;
    uint64_t warmup;  /* a thread */
    uint64_t samples; /* a thread */
    uint64_t first;
    uint64_t local;
    uint64_t remote;
    uint64_t issue;   /* uint64_t*: ticks, `samples` a thread */
    uint64_t total;   /* uint64_t*: ticks, issue and completion */
    uint64_t failure; /* int64_t*: one a thread; 0, or the library's error */
} GicPeerLatencyArgs;

/* Thread t posts `ops` operations in batches. A thread is a block of `lanes` threads. Slots carry the mark of the last
 * operation that goes to them before the first post. */
typedef struct {
    uint64_t state;
    uint32_t threads;
    uint32_t lanes; /* 1 or 32 */
    uint32_t batch;
    uint32_t bytes;
    uint64_t ops; /* a thread; a multiple of `batch` */
    uint64_t slots;
    uint64_t stride;
    uint64_t first; /* thread t's operation i has the value first + t * ops + i */
    uint64_t local;
    uint64_t remote;
    uint64_t start;    /* uint64_t*: the GPU's timer, one a thread */
    uint64_t end;      /* uint64_t*: all completed */
    uint64_t failure;  /* int64_t*: one a thread */
    uint64_t arrived;  /* uint32_t*, 0 before the launch */
    uint64_t deadline; /* ticks, of the start */
} GicPeerRateArgs;

/* Side 0 sends 1, 2, 3 … to the 8 bytes at `remote` and waits for each to come back at `inbox`; side 1 answers. What
 * a side sends lies at `outbox` before. */
typedef struct {
    uint64_t state;
    uint32_t side;
    uint32_t pad;
    uint64_t warmup;
    uint64_t samples;
    uint64_t inbox;
    uint64_t outbox;
    uint64_t remote;
    uint64_t ticks;    /* uint64_t*: one a sample */
    uint64_t failure;  /* int64_t* */
    uint64_t deadline; /* ticks, of one wait */
} GicPeerRoundTripArgs;

/* A launch's readings of its own clocks: nanoseconds of the GPU's timer and ticks of the threads' clock. */
typedef struct {
    uint64_t timer, ticks, timer_end, ticks_end;
} GicPeerClocks;

/* Failures of the harness itself; a library's are negative. */
#define GIC_PEER_LATE 1       /* a value did not arrive within the deadline */
#define GIC_PEER_WRONG 2      /* another value arrived than the one that was due */
#define GIC_PEER_LATE_START 3 /* not all threads of a launch came to its start */

#ifdef __cplusplus
static_assert(sizeof(GicPeerQueue) == 56 && sizeof(GicPeerRig) == 136 && sizeof(GicPeerRequest) == 40 &&
                  sizeof(GicPeerLatencyArgs) == 96 && sizeof(GicPeerRateArgs) == 112 &&
                  sizeof(GicPeerRoundTripArgs) == 80 && sizeof(GicPeerClocks) == 32,
              "mirrored by src/abi.rs");
#endif
