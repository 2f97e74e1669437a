// A program that uses libibverbs and knows nothing of software NICs. It says what it checks, and ends with 0 if all of it
// was right. Its argument is the name of what it does.

#include <infiniband/verbs.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what)                                                                                          \
    do {                                                                                                     \
        if (!(what)) {                                                                                       \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what);                               \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

enum {
    SIZE = 1 << 20,
    DEPTH = 64
};

struct side {
    struct ibv_context* context;
    struct ibv_pd* pd;
    struct ibv_comp_channel* channel;
    struct ibv_cq* cq;
    struct ibv_qp* qp;
    struct ibv_mr* mr;
    uint8_t* bytes;
    int gid;
};

struct address {
    uint32_t qpn, rkey;
    uint16_t lid;
    union ibv_gid gid;
    uint64_t bytes;
};

static struct side make(int device, int gid) {
    struct side side = {.gid = gid};
    int count;
    struct ibv_device** devices = ibv_get_device_list(&count);
    CHECK(devices && device < count);
    for (int i = 0; i < count; i++) {
        char name[32];
        snprintf(name, sizeof name, "mlx5_%d", device);
        if (strcmp(ibv_get_device_name(devices[i]), name) == 0) side.context = ibv_open_device(devices[i]);
    }
    CHECK(side.context);
    ibv_free_device_list(devices);
    side.pd = ibv_alloc_pd(side.context);
    side.channel = ibv_create_comp_channel(side.context);
    side.cq = ibv_create_cq(side.context, DEPTH, &side, side.channel, 0);
    side.bytes = aligned_alloc(4096, SIZE);
    memset(side.bytes, 0, SIZE);
    int access =
        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    side.mr = ibv_reg_mr(side.pd, side.bytes, SIZE, access);
    CHECK(side.pd && side.channel && side.cq && side.mr);
    struct ibv_qp_init_attr attr = {
        .send_cq = side.cq,
        .recv_cq = side.cq,
        .cap = {.max_send_wr = 16,
                .max_recv_wr = 16,
                .max_send_sge = 2,
                .max_recv_sge = 2,
                .max_inline_data = 64},
        .qp_type = IBV_QPT_RC,
    };
    side.qp = ibv_create_qp(side.pd, &attr);
    CHECK(side.qp);
    return side;
}

static void destroy(struct side* side) {
    CHECK(!ibv_destroy_qp(side->qp) && !ibv_destroy_cq(side->cq) && !ibv_destroy_comp_channel(side->channel));
    CHECK(!ibv_dereg_mr(side->mr) && !ibv_dealloc_pd(side->pd) && !ibv_close_device(side->context));
    free(side->bytes);
}

static struct address where(const struct side* side) {
    struct ibv_port_attr port;
    struct address address = {
        .qpn = side->qp->qp_num, .rkey = side->mr->rkey, .bytes = (uintptr_t)side->bytes};
    CHECK(!ibv_query_port(side->context, 1, &port) && port.state == IBV_PORT_ACTIVE);
    address.lid = port.lid;
    CHECK(!ibv_query_gid(side->context, 1, side->gid < 0 ? 0 : side->gid, &address.gid));
    return address;
}

static void connect_to(struct side* side, struct address peer, int retries) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = 0xf};
    CHECK(!ibv_modify_qp(side->qp, &attr,
                         IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = peer.qpn,
        .rq_psn = 0xfffffe,
        .max_dest_rd_atomic = 4,
        .min_rnr_timer = 12,
        .ah_attr = {.dlid = peer.lid, .port_num = 1},
    };
    if (side->gid >= 0) {
        attr.ah_attr.is_global = 1;
        attr.ah_attr.grh =
            (struct ibv_global_route){.dgid = peer.gid, .sgid_index = side->gid, .hop_limit = 1};
    }
    CHECK(!ibv_modify_qp(side->qp, &attr,
                         IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                             IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTS,
        .sq_psn = 0xfffffe,
        .timeout = 14,
        .retry_cnt = retries,
        .rnr_retry = 7,
        .max_rd_atomic = 4,
    };
    CHECK(!ibv_modify_qp(side->qp, &attr,
                         IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                             IBV_QP_MAX_QP_RD_ATOMIC));
}

static void post(struct side* side, struct address peer, enum ibv_wr_opcode opcode, uint64_t from,
                 uint64_t to, uint32_t len, unsigned flags) {
    struct ibv_sge sge = {.addr = (uintptr_t)side->bytes + from, .length = len, .lkey = side->mr->lkey};
    struct ibv_send_wr wr =
                           {
                               .wr_id = from,
                               .sg_list = &sge,
                               .num_sge = 1,
                               .opcode = opcode,
                               .send_flags = IBV_SEND_SIGNALED | flags,
                               .imm_data = 0x01020304,
                           },
                       *bad;
    if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
        wr.wr.atomic.remote_addr = peer.bytes + to;
        wr.wr.atomic.rkey = peer.rkey;
        wr.wr.atomic.compare_add = 5;
        wr.wr.atomic.swap = 99;
    } else {
        wr.wr.rdma.remote_addr = peer.bytes + to;
        wr.wr.rdma.rkey = peer.rkey;
    }
    CHECK(!ibv_post_send(side->qp, &wr, &bad));
}

static struct ibv_wc next(struct side* side) {
    struct ibv_wc wc;
    for (int tries = 0; tries < 20000; tries++) {
        int found = ibv_poll_cq(side->cq, 1, &wc);
        CHECK(found >= 0);
        if (found) return wc;
        usleep(1000);
    }
    CHECK(!"no completion in 20 s");
    return wc;
}

static void receive(struct side* side, uint64_t at, uint32_t len) {
    struct ibv_sge sge = {.addr = (uintptr_t)side->bytes + at, .length = len, .lkey = side->mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = 1000 + at, .sg_list = &sge, .num_sge = 1}, *bad;
    CHECK(!ibv_post_recv(side->qp, &wr, &bad));
}

static void fill(uint8_t* bytes, size_t len, int seed) {
    for (size_t i = 0; i < len; i++)
        bytes[i] = (uint8_t)(i * 37 + i / 251 + seed);
}

static void traffic(int other, int gid) {
    struct side a = make(0, gid), b = make(other, gid);
    struct address to_a = where(&a), to_b = where(&b);
    connect_to(&a, to_b, 7);
    connect_to(&b, to_a, 7);
    uint32_t sizes[] = {0, 1, 7, 8, 60, 1024, 4097, 100000, SIZE / 4};
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint32_t len = sizes[i];
        fill(a.bytes, len, i);
        post(&a, to_b, IBV_WR_RDMA_WRITE, 0, SIZE / 2, len, len <= 60 ? IBV_SEND_INLINE : 0);
        struct ibv_wc wc = next(&a);
        CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RDMA_WRITE && wc.qp_num == a.qp->qp_num);
        CHECK(!memcmp(a.bytes, b.bytes + SIZE / 2, len));
        fill(b.bytes + SIZE / 2, len, i + 100);
        post(&a, to_b, IBV_WR_RDMA_READ, SIZE / 4, SIZE / 2, len, 0);
        wc = next(&a);
        CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RDMA_READ);
        CHECK(!memcmp(a.bytes + SIZE / 4, b.bytes + SIZE / 2, len));
        receive(&b, SIZE / 4, SIZE / 4);
        post(&a, to_b, IBV_WR_SEND_WITH_IMM, 0, 0, len, 0);
        CHECK(next(&a).status == IBV_WC_SUCCESS);
        wc = next(&b);
        CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV && wc.byte_len == len);
        CHECK(wc.wc_flags & IBV_WC_WITH_IMM && wc.imm_data == 0x01020304 && wc.wr_id == 1000 + SIZE / 4);
        CHECK(!memcmp(a.bytes, b.bytes + SIZE / 4, len));
    }
    uint64_t *cell = (uint64_t*)(b.bytes + 64), *was = (uint64_t*)a.bytes;
    *cell = 0;
    post(&a, to_b, IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 64, 8, 0);
    CHECK(next(&a).status == IBV_WC_SUCCESS && *was == 0 && *cell == 5);
    post(&a, to_b, IBV_WR_ATOMIC_CMP_AND_SWP, 0, 64, 8, 0);
    CHECK(next(&a).status == IBV_WC_SUCCESS && *was == 5 && *cell == 99);

    // A queue that is resized keeps what is in it.
    post(&a, to_b, IBV_WR_RDMA_WRITE, 0, 0, 8, 0);
    usleep(100000);
    CHECK(!ibv_resize_cq(a.cq, 4 * DEPTH) && a.cq->cqe >= 4 * DEPTH);
    post(&a, to_b, IBV_WR_RDMA_WRITE, 8, 0, 8, 0);
    CHECK(next(&a).wr_id == 0 && next(&a).wr_id == 8);

    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    CHECK(!ibv_query_qp(a.qp, &attr, IBV_QP_STATE, &init));
    CHECK(attr.qp_state == IBV_QPS_RTS && attr.dest_qp_num == b.qp->qp_num && attr.path_mtu == IBV_MTU_1024);
    destroy(&a);
    destroy(&b);
}

static void events(void) {
    struct side a = make(0, -1), b = make(0, -1);
    struct address to_a = where(&a), to_b = where(&b);
    connect_to(&a, to_b, 7);
    connect_to(&b, to_a, 7);
    for (int round = 0; round < 20; round++) {
        CHECK(!ibv_req_notify_cq(a.cq, 0));
        struct ibv_wc wc;
        CHECK(ibv_poll_cq(a.cq, 1, &wc) == 0);
        post(&a, to_b, IBV_WR_RDMA_WRITE, 0, 0, 8, 0);
        struct pollfd fd = {.fd = a.channel->fd, .events = POLLIN};
        CHECK(poll(&fd, 1, 20000) == 1);
        struct ibv_cq* cq;
        void* context;
        CHECK(!ibv_get_cq_event(a.channel, &cq, &context) && cq == a.cq);
        ibv_ack_cq_events(cq, 1);
        CHECK(ibv_poll_cq(a.cq, 1, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
        CHECK(poll(&fd, 1, 0) == 0);
    }
    // An event that nobody reads doesn't hold up the queue's end.
    CHECK(!ibv_req_notify_cq(a.cq, 0));
    post(&a, to_b, IBV_WR_RDMA_WRITE, 0, 0, 8, 0);
    next(&a);
    destroy(&a);
    destroy(&b);
}

static void errors(void) {
    struct side a = make(0, -1), b = make(0, -1);
    struct address to_a = where(&a), to_b = where(&b), wrong = to_b;
    connect_to(&a, to_b, 7);
    connect_to(&b, to_a, 7);
    wrong.rkey ^= 0x55500;
    post(&a, wrong, IBV_WR_RDMA_WRITE, 0, 0, 8, 0);
    post(&a, to_b, IBV_WR_RDMA_WRITE, 8, 0, 8, 0);
    receive(&a, 0, 8);
    struct ibv_wc wc = next(&a);
    CHECK(wc.status == IBV_WC_REM_ACCESS_ERR && wc.wr_id == 0 && wc.vendor_err != 0);
    wc = next(&a);
    CHECK(wc.status == IBV_WC_WR_FLUSH_ERR && wc.wr_id == 8);
    CHECK(next(&a).status == IBV_WC_WR_FLUSH_ERR);
    struct ibv_async_event event;
    struct pollfd fd = {.fd = b.context->async_fd, .events = POLLIN};
    CHECK(poll(&fd, 1, 20000) == 1 && !ibv_get_async_event(b.context, &event));
    CHECK(event.event_type == IBV_EVENT_QP_ACCESS_ERR && event.element.qp == b.qp);
    ibv_ack_async_event(&event);
    CHECK(!ibv_reg_mr(a.pd, (void*)0x10000, 4096, IBV_ACCESS_LOCAL_WRITE));
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS};
    CHECK(ibv_modify_qp(b.qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
    CHECK(ibv_dealloc_pd(a.pd));
    destroy(&a);
    destroy(&b);
}

// A peer that is killed; a parent's device isn't a child's, which can have its own.
static void killed(void) {
    int up[2], down[2];
    CHECK(!pipe(up) && !pipe(down));
    struct side a = make(0, -1);
    pid_t child = fork();
    if (child == 0) {
        CHECK(!ibv_alloc_pd(a.context));
        struct side b = make(0, -1);
        struct address me = where(&b), peer;
        CHECK(write(up[1], &me, sizeof me) == sizeof me && read(down[0], &peer, sizeof peer) == sizeof peer);
        connect_to(&b, peer, 7);
        CHECK(write(up[1], "!", 1) == 1);
        pause();
        _exit(1);
    }
    struct address peer, me = where(&a);
    char byte;
    CHECK(read(up[0], &peer, sizeof peer) == sizeof peer && write(down[1], &me, sizeof me) == sizeof me);
    CHECK(read(up[0], &byte, 1) == 1);
    connect_to(&a, peer, 1);
    post(&a, peer, IBV_WR_RDMA_WRITE, 0, 0, 8, 0);
    CHECK(next(&a).status == IBV_WC_SUCCESS);
    CHECK(!kill(child, SIGKILL) && waitpid(child, NULL, 0) == child);
    for (int i = 0; i < 3; i++)
        post(&a, peer, IBV_WR_RDMA_WRITE, 0, 0, SIZE / 2, 0);
    CHECK(next(&a).status == IBV_WC_RETRY_EXC_ERR);
    CHECK(next(&a).status == IBV_WC_WR_FLUSH_ERR && next(&a).status == IBV_WC_WR_FLUSH_ERR);
    destroy(&a);
}

static sigjmp_buf fault;
static volatile int faults;

static void on_fault(int signal) {
    faults += signal == SIGSEGV;
    siglongjmp(fault, 1);
}

// A handler may be reached from inside an allocator, which must not be entered again then.
static __thread int allocates_no_more;
extern void* __libc_malloc(size_t size);

void* malloc(size_t size) {
    if (allocates_no_more) _exit(2);
    return __libc_malloc(size);
}

static void on_crash(int signal) {
    struct sigaction none = {.sa_handler = SIG_DFL};
    allocates_no_more = 1;
    if (sigaction(signal, &none, NULL)) _exit(1);
}

static int reads(const volatile uint8_t* byte) {
    if (sigsetjmp(fault, 1)) return -1;
    return *byte;
}

static uint8_t* pages(void) {
    uint8_t* pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(pages != MAP_FAILED);
    memset(pages, 7, 8192);
    return pages;
}

// Memory that is given back while the NIC may still reach it; `dies` by a fault of its own, whose handler lets it.
static void unmapped(int dies) {
    struct sigaction mine = {.sa_handler = on_fault}, now;
    CHECK(!sigaction(SIGSEGV, &mine, NULL));
    struct side a = make(0, -1), b = make(0, -1);
    struct address to_a = where(&a), to_b = where(&b);
    connect_to(&a, to_b, 7);
    connect_to(&b, to_a, 7);
    uint8_t* gone = pages();
    struct ibv_mr* mr = ibv_reg_mr(b.pd, gone, 8192,
                                   IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
    CHECK(mr && !munmap(gone, 8192));
    struct address to_gone = {.rkey = mr->rkey, .bytes = (uintptr_t)gone};
    fill(a.bytes, 100, 3);
    post(&a, to_gone, IBV_WR_RDMA_WRITE, 0, 0, 100, 0);
    CHECK(next(&a).status == IBV_WC_SUCCESS);
    post(&a, to_gone, IBV_WR_RDMA_READ, 4096, 0, 100, 0);
    CHECK(next(&a).status == IBV_WC_SUCCESS && !memcmp(a.bytes, a.bytes + 4096, 100));

    // The program's own faults are its own, there too, and so are its handlers.
    uint8_t* never = pages();
    CHECK(!munmap(never, 8192));
    CHECK(reads(gone + 4096) == -1 && reads(never) == -1 && faults == 2);
    CHECK(!sigaction(SIGSEGV, NULL, &now) && now.sa_handler == on_fault);
    CHECK(signal(SIGSEGV, SIG_DFL) == on_fault && !sigaction(SIGSEGV, &mine, &now) &&
          now.sa_handler == SIG_DFL);
    CHECK(reads(never) == -1 && faults == 3);

    // One that is for once is gone, and the NIC's faults are still answered.
    mine.sa_flags = SA_RESETHAND;
    CHECK(!sigaction(SIGSEGV, &mine, NULL) && reads(never) == -1 && faults == 4);
    CHECK(!sigaction(SIGSEGV, NULL, &now) && now.sa_handler == SIG_DFL);
    to_gone.bytes += 4096;
    post(&a, to_gone, IBV_WR_RDMA_WRITE, 0, 0, 100, 0);
    CHECK(next(&a).status == IBV_WC_SUCCESS && gone[4096] == 3);
    CHECK(!ibv_dereg_mr(mr));
    mine.sa_flags = 0;
    CHECK(!sigaction(SIGSEGV, &mine, NULL));

    // So are those behind the end of a file that has become shorter.
    FILE* file = tmpfile();
    CHECK(file && !ftruncate(fileno(file), 4096));
    uint8_t* shorter = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0);
    CHECK(shorter != MAP_FAILED);
    mr = ibv_reg_mr(b.pd, shorter, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    CHECK(mr && !ftruncate(fileno(file), 0));
    to_gone = (struct address){.rkey = mr->rkey, .bytes = (uintptr_t)shorter};
    post(&a, to_gone, IBV_WR_RDMA_WRITE, 0, 0, 100, 0);
    CHECK(next(&a).status == IBV_WC_SUCCESS && shorter[0] == 3);
    CHECK(!ibv_dereg_mr(mr) && !fclose(file));
    destroy(&a);
    destroy(&b);
    if (dies) {
        mine.sa_handler = on_crash;
        CHECK(!sigaction(SIGSEGV, &mine, NULL));
        printf("%d\n", *(volatile uint8_t*)never);
    }
}

int main(int argc, char** argv) {
    const char* what = argc > 1 ? argv[1] : "";
    if (!strcmp(what, "traffic")) {
        traffic(0, -1);
    } else if (!strcmp(what, "two-devices")) {
        traffic(1, -1);
    } else if (!strcmp(what, "roce")) {
        for (int gid = 0; gid < 4; gid++)
            traffic(1, gid);
    } else if (!strcmp(what, "events")) {
        events();
    } else if (!strcmp(what, "errors")) {
        errors();
    } else if (!strcmp(what, "unmapped")) {
        unmapped(0);
    } else if (!strcmp(what, "dies")) {
        unmapped(1);
    } else if (!strcmp(what, "killed")) {
        killed();
    } else {
        return 2;
    }
    printf("%s: all as it should be\n", what);
    return 0;
}
