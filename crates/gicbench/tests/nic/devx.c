// A program that makes its queues by commands in the device's own format (mlx5dv_devx_*), writes WQEs by hand, and knows
// nothing of software NICs. It says what it checks, and ends with 0 if all of it was right. Its argument is the index of the
// GID to connect with on Ethernet, or "lid" on InfiniBand.
//
// Bit positions are those of Linux's mlx5_ifc.h.

#include <errno.h>
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CHECK(what)                                                                                          \
    do {                                                                                                     \
        if (!(what)) {                                                                                       \
            fprintf(stderr, "%s:%d: not so: %s (errno %d)\n", __FILE__, __LINE__, #what, errno);             \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

enum {
    BYTES = 0x110,  // of CREATE_CQ, CREATE_QP and the commands that change a QP
    CONTEXT_CQ = 0x80,
    CONTEXT_QP = 0xc0,
    PATH = CONTEXT_QP + 0xc0,
    LOG_BLOCKS = 4,
    LOG_ENTRIES = 4,
    // One umem: 4 receives, the blocks, the CQ, the doorbell records.
    SENDS = 64,
    ENTRIES = 0x1000,
    RECORDS = 0x2000,
    QUEUES = 0x3000,
};

static void set(uint8_t* mailbox, unsigned bit, unsigned bits, uint64_t value) {
    for (unsigned i = 0; i < bits; i++) {
        unsigned at = bit + bits - 1 - i;
        uint8_t mask = 0x80 >> (at % 8);
        if (value >> i & 1)
            mailbox[at / 8] |= mask;
        else
            mailbox[at / 8] &= ~mask;
    }
}

static uint64_t get(const uint8_t* mailbox, unsigned bit, unsigned bits) {
    uint64_t value = 0;
    for (unsigned i = 0; i < bits; i++)
        value = value << 1 | (mailbox[(bit + i) / 8] >> (7 - (bit + i) % 8) & 1);
    return value;
}

static struct ibv_context* open_device(void) {
    int count;
    struct ibv_device** devices = ibv_get_device_list(&count);
    CHECK(devices && count > 0 && mlx5dv_is_supported(devices[0]));
    struct mlx5dv_context_attr attr = {.flags = MLX5DV_CONTEXT_FLAGS_DEVX};
    struct ibv_context* context = mlx5dv_open_device(devices[0], &attr);
    CHECK(context);
    ibv_free_device_list(devices);
    return context;
}

struct pair {
    struct mlx5dv_devx_umem* umem;
    struct mlx5dv_devx_obj *cq, *qp;
    uint8_t* bytes;
    uint32_t cqn, qpn, posted, polled;
};

static struct mlx5dv_devx_uar* doorbell_page(struct ibv_context* context) {
    struct mlx5dv_devx_uar* uar = mlx5dv_devx_alloc_uar(context, MLX5DV_UAR_ALLOC_TYPE_NC);
    if (!uar) uar = mlx5dv_devx_alloc_uar(context, MLX5DV_UAR_ALLOC_TYPE_BF);
    CHECK(uar && uar->reg_addr && uar->base_addr);
    return uar;
}

static struct pair make(struct ibv_context* context, uint32_t pdn, struct mlx5dv_devx_uar* uar,
                        int collapsed) {
    struct pair pair = {0};
    pair.bytes = aligned_alloc(4096, QUEUES);
    CHECK(pair.bytes);
    memset(pair.bytes, 0, QUEUES);
    memset(pair.bytes + ENTRIES, 0xff, 64 << LOG_ENTRIES);
    pair.umem = mlx5dv_devx_umem_reg(context, pair.bytes, QUEUES, IBV_ACCESS_LOCAL_WRITE);
    CHECK(pair.umem);
    uint32_t eqn = 0;
    CHECK(mlx5dv_devx_query_eqn(context, 0, &eqn) == 0);

    uint8_t in[BYTES] = {0}, out[16] = {0};
    set(in, 0x00, 16, 0x400);
    set(in, CONTEXT_CQ + 0x06, 1, 1);
    set(in, CONTEXT_CQ + 0x0b, 1, collapsed);
    set(in, CONTEXT_CQ + 0x0e, 1, collapsed);
    set(in, CONTEXT_CQ + 0x20, 32, pair.umem->umem_id);
    set(in, CONTEXT_CQ + 0x63, 5, LOG_ENTRIES);
    set(in, CONTEXT_CQ + 0x68, 24, uar->page_id);
    set(in, CONTEXT_CQ + 0xb8, 8, eqn);
    set(in, CONTEXT_CQ + 0x1c0, 64, RECORDS);
    set(in, 0x280, 64, ENTRIES);
    set(in, 0x2c0, 32, pair.umem->umem_id);
    set(in, 0x2e0, 1, 1);
    pair.cq = mlx5dv_devx_obj_create(context, in, sizeof in, out, sizeof out);
    CHECK(pair.cq);
    pair.cqn = get(out, 0x48, 24);

    memset(in, 0, sizeof in);
    set(in, 0x00, 16, 0x500);
    set(in, CONTEXT_QP + 0x13, 2, 3);
    set(in, CONTEXT_QP + 0x28, 24, pdn);
    set(in, CONTEXT_QP + 0x49, 4, 2);
    set(in, CONTEXT_QP + 0x51, 4, LOG_BLOCKS);
    set(in, CONTEXT_QP + 0x68, 24, uar->page_id);
    set(in, CONTEXT_QP + 0x3e8, 24, pair.cqn);
    set(in, CONTEXT_QP + 0x4e8, 24, pair.cqn);
    set(in, CONTEXT_QP + 0x500, 64, RECORDS + 64);
    set(in, CONTEXT_QP + 0x683, 1, 1);
    set(in, CONTEXT_QP + 0x720, 32, pair.umem->umem_id);
    set(in, 0x840, 32, pair.umem->umem_id);
    set(in, 0x860, 1, 1);
    pair.qp = mlx5dv_devx_obj_create(context, in, sizeof in, out, sizeof out);
    CHECK(pair.qp);
    pair.qpn = get(out, 0x48, 24);
    return pair;
}

static void modify(struct pair* pair, uint8_t* in) {
    uint8_t out[16] = {0};
    set(in, 0x48, 24, pair->qpn);
    int failed = mlx5dv_devx_obj_modify(pair->qp, in, BYTES, out, sizeof out);
    if (failed)
        fprintf(stderr, "command %#x: status %#x syndrome %#x\n", (int)get(in, 0, 16), out[0],
                (int)get(out, 0x20, 32));
    CHECK(!failed);
}

static void join(struct ibv_context* context, struct pair* pair, uint32_t peer, int gid) {
    uint8_t in[BYTES] = {0};
    set(in, 0x00, 16, 0x502);
    set(in, CONTEXT_QP + 0x13, 2, 3);
    set(in, CONTEXT_QP + 0x48c, 4, 3);
    set(in, CONTEXT_QP + 0x490, 3, 7);
    set(in, PATH + 0x128, 8, 1);
    modify(pair, in);

    struct ibv_port_attr port;
    CHECK(ibv_query_port(context, 1, &port) == 0);
    memset(in, 0, sizeof in);
    set(in, 0x00, 16, 0x503);
    set(in, CONTEXT_QP + 0x40, 3, port.active_mtu);
    set(in, CONTEXT_QP + 0x43, 5, 30);
    set(in, CONTEXT_QP + 0xa8, 24, peer);
    set(in, CONTEXT_QP + 0x488, 3, 4);
    set(in, CONTEXT_QP + 0x4a3, 5, 12);
    set(in, PATH + 0x30, 16, port.lid);
    if (gid >= 0) {
        union ibv_gid address;
        CHECK(ibv_query_gid(context, 1, gid, &address) == 0);
        set(in, PATH + 0x28, 1, 1);
        set(in, PATH + 0x48, 8, gid);
        set(in, PATH + 0x58, 8, 64);
        memcpy(in + (PATH + 0x80) / 8, address.raw, 16);
        // The device says of its table what verbs say.
        uint8_t ask[16] = {0}, out[48] = {0};
        set(ask, 0x00, 16, 0x760);
        set(ask, 0x40, 16, gid);
        CHECK(mlx5dv_devx_general_cmd(context, ask, sizeof ask, out, sizeof out) == 0);
        CHECK(memcmp(out + 16, address.raw, 16) == 0);
    }
    modify(pair, in);

    memset(in, 0, sizeof in);
    set(in, 0x00, 16, 0x504);
    set(in, CONTEXT_QP + 0x388, 3, 4);
    set(in, CONTEXT_QP + 0x38d, 3, 7);
    set(in, CONTEXT_QP + 0x390, 3, 7);
    set(in, PATH + 0x40, 5, 14);
    modify(pair, in);
}

/// Posts one WQE of 16-byte segments and rings, as libraries on a GPU do: record, then register.
static void post(struct pair* pair, struct mlx5dv_devx_uar* uar, int opcode, const void* segments,
                 unsigned count) {
    uint8_t* block = pair->bytes + SENDS + 64 * (pair->posted & ((1 << LOG_BLOCKS) - 1));
    uint32_t words[4] = {
        htobe32(pair->posted << 8 | opcode),
        htobe32(pair->qpn << 8 | (count + 1)),
        htobe32(8),
        0,
    };
    memcpy(block, words, 16);
    memcpy(block + 16, segments, 16 * count);
    pair->posted++;
    volatile uint32_t* record = (volatile uint32_t*)(pair->bytes + RECORDS + 64);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    record[1] = htobe32(pair->posted & 0xffff);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    *(volatile uint64_t*)uar->reg_addr = *(uint64_t*)words;
}

/// The next completion: its opcode, and its syndrome if it is an error.
static int poll(struct pair* pair, int collapsed, uint8_t* syndrome) {
    time_t deadline = time(NULL) + 60;
    unsigned slot = collapsed ? 0 : pair->polled & ((1 << LOG_ENTRIES) - 1);
    const volatile uint8_t* entry = pair->bytes + ENTRIES + 64 * slot;
    for (;;) {
        // At once: a collapsed entry is written again while it is read.
        uint32_t last = be32toh(__atomic_load_n((const volatile uint32_t*)(entry + 60), __ATOMIC_ACQUIRE));
        uint8_t op_own = last & 0xff;
        int counter = last >> 16;
        int is_new = collapsed ? counter == (int)(pair->polled & 0xffff)
                               : (op_own & 1) == (pair->polled >> LOG_ENTRIES & 1);
        if (op_own >> 4 != 15 && is_new) {
            pair->polled++;
            *syndrome = entry[55];
            return op_own >> 4;
        }
        CHECK(time(NULL) < deadline);
    }
}

static void data(uint8_t* segment, uint32_t bytes, uint32_t lkey, const void* address) {
    set(segment, 0, 32, bytes);
    set(segment, 32, 32, lkey);
    set(segment, 64, 64, (uintptr_t)address);
}

static void traffic(struct ibv_context* context, int gid, int collapsed) {
    struct ibv_pd* pd = ibv_alloc_pd(context);
    struct mlx5dv_pd numbers;
    struct mlx5dv_obj ask = {.pd = {.in = pd, .out = &numbers}};
    CHECK(pd && mlx5dv_init_obj(&ask, MLX5DV_OBJ_PD) == 0);
    uint8_t* bytes = aligned_alloc(4096, 4096);
    memset(bytes, 0, 4096);
    int access =
        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    struct ibv_mr* mr = ibv_reg_mr(pd, bytes, 4096, access);
    CHECK(mr);
    struct mlx5dv_devx_uar* uar = doorbell_page(context);
    struct pair a = make(context, numbers.pdn, uar, collapsed), b = make(context, numbers.pdn, uar, 0);
    join(context, &a, b.qpn, gid);
    join(context, &b, a.qpn, gid);

    // More writes than there are blocks or entries.
    uint8_t syndrome, segments[64];
    for (int i = 0; i < 40; i++) {
        memset(segments, 0, sizeof segments);
        bytes[0] = i;
        set(segments, 0, 64, (uintptr_t)(bytes + 1024 + i));
        set(segments, 64, 32, mr->rkey);
        data(segments + 16, 1, mr->lkey, bytes);
        post(&a, uar, 0x08, segments, 2);
        CHECK(poll(&a, collapsed, &syndrome) == 0);
        *(volatile uint32_t*)(a.bytes + RECORDS) = htobe32(a.polled & 0xffffff);
        CHECK(bytes[1024 + i] == i);
    }

    for (int i = 0; i < 3; i++) {
        memset(segments, 0, sizeof segments);
        set(segments, 0, 64, (uintptr_t)(bytes + 2048));
        set(segments, 64, 32, mr->rkey);
        set(segments + 16, 0, 64, 5);
        data(segments + 32, 8, mr->lkey, bytes + 2056);
        post(&a, uar, 0x12, segments, 3);
        CHECK(poll(&a, collapsed, &syndrome) == 0);
        *(volatile uint32_t*)(a.bytes + RECORDS) = htobe32(a.polled & 0xffffff);
        uint64_t* values = (uint64_t*)(bytes + 2048);
        CHECK(be64toh(values[1]) == 5u * i || values[1] == 5u * i);
        CHECK(values[0] == 5u * (i + 1) || be64toh(values[0]) == 5u * (i + 1));
    }

    // A key that nobody gave: a remote access error, and a pair in error.
    memset(segments, 0, sizeof segments);
    set(segments, 0, 64, (uintptr_t)bytes);
    set(segments, 64, 32, 0x12345600);
    data(segments + 16, 1, mr->lkey, bytes);
    post(&a, uar, 0x08, segments, 2);
    CHECK(poll(&a, collapsed, &syndrome) == 13 && syndrome == 0x13);
    uint8_t in[16] = {0}, out[BYTES] = {0};
    set(in, 0x00, 16, 0x50b);
    set(in, 0x48, 24, a.qpn);
    CHECK(mlx5dv_devx_obj_query(a.qp, in, sizeof in, out, sizeof out) == 0);
    CHECK(get(out, CONTEXT_QP, 4) == 6);
    CHECK(get(out, CONTEXT_QP + 0x5a0, 16) == a.posted);

    // What is used can't go first.
    CHECK(mlx5dv_devx_umem_dereg(a.umem) != 0);
    struct pair* pairs[] = {&a, &b};
    for (int i = 0; i < 2; i++) {
        CHECK(mlx5dv_devx_obj_destroy(pairs[i]->qp) == 0);
        CHECK(mlx5dv_devx_obj_destroy(pairs[i]->cq) == 0);
        if (i == 1) CHECK(mlx5dv_devx_umem_dereg(pairs[i]->umem) == 0);
        if (i == 1) free(pairs[i]->bytes);
    }
    mlx5dv_devx_free_uar(uar);
    CHECK(ibv_dereg_mr(mr) == 0);
    free(bytes);
}

static void refusals(struct ibv_context* context) {
    // A page that isn't there, and a command that the device hasn't got: status and syndrome in the answer.
    uint8_t in[BYTES] = {0}, out[16 + 4096] = {0};
    set(in, 0x00, 16, 0x100);
    set(in, 0x30, 16, 1);
    CHECK(mlx5dv_devx_general_cmd(context, in, 16, out, sizeof out) == 0);
    CHECK(get(out, 0x80 + 0x1fc, 4) == 1 && get(out, 0x80 + 0x88, 8) >= 10 && get(out, 0x80 + 0x23f, 1) == 1);
    set(in, 0x30, 16, 0x7f << 1);
    memset(out, 0, sizeof out);
    CHECK(mlx5dv_devx_general_cmd(context, in, 16, out, sizeof out) != 0);
    CHECK(out[0] == 3 && get(out, 0x20, 32) != 0);
    set(in, 0x00, 16, 0x200);
    memset(out, 0, sizeof out);
    CHECK(mlx5dv_devx_obj_create(context, in, sizeof in, out, 16) == NULL);
    CHECK(out[0] == 2 && get(out, 0x20, 32) != 0);
    // A CQ in no umem.
    memset(in, 0, sizeof in);
    set(in, 0x00, 16, 0x400);
    CHECK(mlx5dv_devx_obj_create(context, in, sizeof in, out, 16) == NULL);
    CHECK(out[0] != 0);
    // Events aren't there, and say so.
    CHECK(mlx5dv_devx_create_event_channel(context, 0) == NULL && errno == EOPNOTSUPP);
    CHECK(mlx5dv_devx_create_cmd_comp(context) == NULL && errno == EOPNOTSUPP);
}

int main(int count, char** arguments) {
    CHECK(count == 2);
    int gid = strcmp(arguments[1], "lid") == 0 ? -1 : atoi(arguments[1]);
    struct ibv_context* context = open_device();
    refusals(context);
    traffic(context, gid, 0);
    traffic(context, gid, 1);
    CHECK(ibv_close_device(context) == 0);
    return 0;
}
