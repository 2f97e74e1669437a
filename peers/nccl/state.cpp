/* NCCL GIN: a device communicator with one context, its window, and the CPU side of its proxies. */
#include "gic_peer.h"
#include "layout.h"
#include <atomic>
#include <cstdio>
#include <cstring>
#include <endian.h>

namespace {

/* What NCCL takes for InfiniBand: NCCL_NET_MAX_REQUESTS times the most receives of the plugin. */
constexpr uint32_t kProxyQueue = 256;
/* The first signals of a communicator are its barriers'. */
constexpr uint32_t kSignal = 1;
constexpr uint64_t kWindowHandle = 1;

const GicPeerLayout kLayouts[] = {
    {"doca_gpu_dev_verbs_qp", sizeof(doca_gpu_dev_verbs_qp)},
    {"doca_gpu_dev_verbs_cq", sizeof(doca_gpu_dev_verbs_cq)},
    {"ncclDevComm", sizeof(ncclDevComm)},
    {"ncclWindow_vidmem", sizeof(ncclWindow_vidmem)},
    {"ncclGinGdakiGPUContext", sizeof(ncclGinGdakiGPUContext)},
    {"ncclGinGdakiMemHandle", sizeof(ncclGinGdakiMemHandle)},
    {"ncclGinProxyGpuCtx_t", sizeof(ncclGinProxyGpuCtx_t)},
    {"ncclGinProxyGfd_t", sizeof(ncclGinProxyGfd_t)},
};
#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)
const GicPeerInfo kInfo = {GIC_PEER_ABI, "NCCL GIN",
                           TEXT(NCCL_MAJOR) "." TEXT(NCCL_MINOR) "." TEXT(NCCL_PATCH),
                           sizeof(kLayouts) / sizeof(kLayouts[0]), kLayouts};

uint32_t kind(uint32_t variant) {
    return variant / 100;
}
bool is_proxy(uint32_t variant) {
    return kind(variant) == kGicProxy || kind(variant) == kGicOwnProxy;
}
uint32_t peers(uint32_t qps) {
    return qps > 0 ? qps : 1;
}

/* Gives out stretches of a memory. */
struct Room {
    uint64_t used = 0;
    uint64_t take(uint64_t bytes, uint64_t align) {
        uint64_t at = (used + align - 1) / align * align;
        used = at + bytes;
        return at;
    }
};

/* Where things lie in the device image. */
struct Device {
    uint64_t head, comm, window, mem, rkeys, context, qps, proxy, pis, bytes;
    explicit Device(uint32_t ranks) {
        Room room;
        head = room.take(sizeof(GicNccl), 128);
        comm = room.take(sizeof(ncclDevComm), 128);
        window = room.take(sizeof(ncclWindow_vidmem), 128);
        mem = room.take(sizeof(ncclGinGdakiMemHandle), 128);
        rkeys = room.take(ranks * sizeof(__be32), 128);
        context = room.take(sizeof(ncclGinGdakiGPUContext), 128);
        qps = room.take(ranks * sizeof(doca_gpu_dev_verbs_qp), 256);
        proxy = room.take(sizeof(ncclGinProxyGpuCtx_t), 128);
        pis = room.take(ranks * sizeof(uint32_t), 128);
        bytes = room.take(0, 128);
    }
};

/* The CPU's own state of a proxy: what struct ginProxyHostGpuCtx of gin_host_proxy.cc has. */
struct Consumer {
    uint64_t handed; /* tickets of requests that were handed out: 1, 2, 3 … */
    uint64_t done;
    uint32_t turn;    /* the rank to look at next */
    uint32_t stopped; /* at a descriptor that it doesn't know */
    uint32_t pending;
    GicPeerRequest signal; /* of a descriptor whose put was handed out last */
    uint32_t signal_rank;
};

/* Where things lie in host memory. */
struct Host {
    uint64_t words, last;                                /* CPU doorbell: 64 bytes a QP; what was rung for */
    uint64_t queues, cis, consumer, seen, shadow, owner; /* proxy */
    uint64_t tickets, bytes;
    Host(uint32_t variant, uint32_t ranks) {
        Room room;
        words = last = queues = cis = consumer = seen = shadow = owner = tickets = 0;
        if (kind(variant) == kGicCpuDoorbell) {
            words = room.take(uint64_t{ranks} * 64, 64);
            last = room.take(ranks * sizeof(uint32_t), 64);
        } else if (is_proxy(variant)) {
            /* A descriptor with a signal is two requests. */
            tickets = uint64_t{2} * ranks * kProxyQueue;
            queues = room.take(uint64_t{ranks} * kProxyQueue * sizeof(ncclGinProxyGfd_t), 64);
            cis = room.take(ranks * sizeof(uint32_t), 64);
            consumer = room.take(sizeof(Consumer), 64);
            seen = room.take(ranks * sizeof(uint32_t), 64);
            shadow = room.take(ranks * sizeof(uint32_t), 64);
            owner = room.take(tickets * sizeof(uint32_t), 64);
        }
        bytes = room.take(0, 64);
    }
};

template <class T>
T* at(uint8_t* base, uint64_t offset) {
    return reinterpret_cast<T*>(base + offset);
}

/* A doorbell of a CPU, after doca_gpu_verbs_cpu_proxy_progress of doca_gpunetio.cpp. */
void ring(const GicPeerRig* rig) {
    Host where(rig->variant, peers(rig->qps) + 1);
    uint32_t* last = at<uint32_t>(rig->host, where.last);
    for (uint32_t i = 0; i < rig->qps; i++) {
        uint64_t wide = *at<volatile uint64_t>(rig->host, where.words + uint64_t{i} * 64);
        uint32_t index = static_cast<uint32_t>(wide);
        if (index == last[i]) continue;
        const GicPeerQueue& queue = rig->queue[i];
        /* The index isn't masked before the shift, as there. */
        uint32_t words[2] = {htobe32(index << 8), htobe32(queue.qpn << 8)};
        uint64_t value;
        memcpy(&value, words, sizeof value);
        *reinterpret_cast<volatile uint32_t*>(queue.record) = htobe32(index & 0xffff);
        std::atomic_thread_fence(std::memory_order_release);
        *reinterpret_cast<volatile uint64_t*>(queue.doorbell) = value;
        last[i] = index;
    }
}

uint64_t load(const ncclGinProxyGfd_t* gfd, int qword) {
    return __atomic_load_n(reinterpret_cast<const uint64_t*>(gfd) + qword, __ATOMIC_RELAXED);
}

/* A descriptor, after proxyGinPollGfd of gin_host_proxy.cc; it waits there for words that are on their way. */
bool poll(ncclGinProxyGfd_t* from, ncclGinProxyGfd_t* gfd) {
    for (int k = 0; k < ncclGinProxyGfdQwords; k++) {
        gfd->qword[k].raw = load(from, k);
        if (gfd->qword[k].flag.v == 0) return false;
    }
    for (int k = 0; k < ncclGinProxyGfdQwords; k++)
        __atomic_store_n(reinterpret_cast<uint64_t*>(from) + k, 0, __ATOMIC_RELAXED);
    return true;
}

/* Its requests, after proxyGinProcessGfd: 1, a put; 2, and a signal behind it; 0, something else. */
int process(const GicPeerRig* rig, const ncclGinProxyGfd_t& gfd, GicPeerRequest* put,
            GicPeerRequest* signal) {
    constexpr uint64_t kSignals = ncclGinProxyOpWithSignalInc | ncclGinProxyOpWithSignalAdd;
    constexpr uint64_t kOps = ncclGinProxyOpPut | ncclGinProxyOpWithInline | kSignals;
    uint64_t op = gfd.qword[ncclGinProxyGfdHeader].header.op;
    uint64_t size = gfd.qword[ncclGinProxyGfdHeader].header.size;
    bool is_value = (op & ncclGinProxyOpWithInline) != 0;
    if ((op & ncclGinProxyOpPut) == 0 || (op & ~kOps) != 0) return 0;
    if (size > (is_value ? sizeof put->value : UINT32_MAX)) return 0;

    *put = GicPeerRequest{};
    put->bytes = static_cast<uint32_t>(size);
    put->remote = gfd.qword[ncclGinProxyGfdDstOff].dstOff.dstOff;
    if (is_value) {
        put->kind = GIC_PEER_WRITE_VALUE;
        put->value = gfd.qword[ncclGinProxyGfdInlineLow].inlineLow.inlineValLow;
        if (size == 8) {
            put->value |= uint64_t{gfd.qword[ncclGinProxyGfdInlineLow].inlineLow.inlineValLow2} << 32;
            put->value |= uint64_t{gfd.qword[ncclGinProxyGfdInlineHigh].inlineHigh.inlineValHigh} << 48;
        }
    } else {
        put->kind = GIC_PEER_WRITE;
        put->local = gfd.qword[ncclGinProxyGfdSrcOff].srcOff.srcOff;
    }
    if ((op & kSignals) == 0) return 1;

    const auto& completion = gfd.qword[ncclGinProxyGfdCompletion].completion;
    const auto& rest = gfd.qword[ncclGinProxyGfdSignalVal].signalVal;
    *signal = GicPeerRequest{};
    signal->kind = GIC_PEER_FETCH_ADD;
    signal->bytes = sizeof(uint64_t);
    signal->local = rig->local + rig->bytes - 16;
    signal->remote = rig->remote + rig->bytes - 8 * (kSignal + 1) + 8 * uint64_t{completion.signalId};
    signal->value =
        completion.signalValLow | uint64_t{rest.signalValLow2} << 16 | uint64_t{rest.signalValHigh} << 32;
    return 2;
}

int fail(char* why, size_t why_bytes, const char* text) {
    snprintf(why, why_bytes, "%s", text);
    return 1;
}

/* After doca_gpu_verbs_export_qp of doca_gpunetio.cpp. */
void fill(doca_gpu_dev_verbs_qp* qp, const GicPeerQueue& queue, uint64_t word) {
    uint32_t shifted = queue.qpn << 8;
    qp->sq_num = queue.qpn;
    qp->sq_num_shift8 = shifted;
    qp->sq_num_shift8_be = htobe32(shifted);
    qp->sq_num_shift8_be_1ds = htobe32(shifted | 1);
    qp->sq_num_shift8_be_2ds = htobe32(shifted | 2);
    qp->sq_num_shift8_be_3ds = htobe32(shifted | 3);
    qp->sq_num_shift8_be_4ds = htobe32(shifted | 4);
    qp->sq_wqe_num = static_cast<uint16_t>(1u << queue.log_blocks);
    qp->sq_wqe_mask = static_cast<uint16_t>((1u << queue.log_blocks) - 1);
    qp->sq_wqe_daddr = reinterpret_cast<uint8_t*>(queue.sq);
    qp->sq_dbrec = reinterpret_cast<__be32*>(queue.record);
    qp->sq_db = reinterpret_cast<uint64_t*>(word != 0 ? word : queue.doorbell);
    qp->nic_handler =
        word != 0 ? DOCA_GPUNETIO_VERBS_NIC_HANDLER_CPU_PROXY : DOCA_GPUNETIO_VERBS_NIC_HANDLER_GPU_SM_DB;
    qp->mem_type = DOCA_GPUNETIO_VERBS_MEM_TYPE_GPU;
    qp->cq_sq.cqe_daddr = reinterpret_cast<uint8_t*>(queue.cq);
    qp->cq_sq.cq_num = queue.qpn; /* the API's WAIT alone reads it */
    qp->cq_sq.cqe_num = 1u << queue.log_cq;
    qp->cq_sq.cqe_mask = (1u << queue.log_cq) - 1;
    qp->cq_sq.cqe_size = 64;
    qp->cq_sq.dbrec = reinterpret_cast<__be32*>(queue.cq_record);
    qp->cq_sq.mem_type = DOCA_GPUNETIO_VERBS_MEM_TYPE_GPU;
}

}  // namespace

extern "C" const GicPeerInfo* gic_peer_info(void) {
    return &kInfo;
}

extern "C" const char* gic_peer_consumer(void) {
    return "minimal consumer of the descriptors' queues (gin_host_proxy.cc) and of the doorbell words "
           "(doca_gpu_verbs_cpu_proxy_progress)";
}

extern "C" void gic_peer_sizes(uint32_t variant, uint32_t qps, uint32_t, uint64_t* device, uint64_t* host) {
    uint32_t ranks = peers(qps) + 1;
    *device = Device(ranks).bytes;
    *host = Host(variant, ranks).bytes;
}

extern "C" int gic_peer_build(const GicPeerRig* rig, GicPeerBuilt* built, char* why, size_t why_bytes) {
    uint32_t what = kind(rig->variant);
    bool proxied = is_proxy(rig->variant);
    if (rig->abi != GIC_PEER_ABI) return fail(why, why_bytes, "the rig is of another ABI");
    if (what > kGicOwnProxy) return fail(why, why_bytes, "there is no such variant");
    if (rig->me > 1) return fail(why, why_bytes, "there are two sides, 0 and 1");
    if (rig->bytes < 16) return fail(why, why_bytes, "the payload memory has no room for a signal");
    if (!proxied && rig->qps == 0) return fail(why, why_bytes, "there is no queue pair");
    if ((what == kGicOwn || what == kGicOwnProxy) && rig->producers > peers(rig->qps))
        return fail(why, why_bytes, "this variant is for one thread a queue, and there are more threads");
    for (uint32_t i = 0; !proxied && i < rig->qps; i++) {
        const GicPeerQueue& queue = rig->queue[i];
        /* sq_wqe_num has 16 bits. */
        if (queue.log_blocks > 15) return fail(why, why_bytes, "a send queue has more than 32768 blocks");
        if (queue.log_cq != queue.log_blocks)
            return fail(why, why_bytes,
                        "the CQ has to be as deep as the send queue: completions are found by index");
    }
    uint32_t others = peers(rig->qps), ranks = others + 1;
    Device where(ranks);
    Host host(rig->variant, ranks);
    uint64_t host_at = reinterpret_cast<uint64_t>(rig->host);
    /* Descriptors are written 16 bytes at a time. */
    if (host.bytes != 0 && host_at % 16 != 0)
        return fail(why, why_bytes, "the host memory isn't aligned to 16 bytes");

    auto address = [&](uint64_t offset) { return rig->device_at + offset; };
    auto* rkeys = at<__be32>(rig->device, where.rkeys);
    auto* qps = at<doca_gpu_dev_verbs_qp>(rig->device, where.qps);
    rkeys[rig->me] = htobe32(rig->own_rkey);
    for (uint32_t i = 0; i < others; i++) {
        uint32_t rank = gic_nccl_rank(rig->me, others, i);
        rkeys[rank] = htobe32(rig->rkey);
        if (proxied) continue;
        fill(&qps[rank], rig->queue[i],
             what == kGicCpuDoorbell ? host_at + host.words + uint64_t{i} * 64 : 0);
    }

    auto* mem = at<ncclGinGdakiMemHandle>(rig->device, where.mem);
    mem->rkeys = reinterpret_cast<__be32*>(address(where.rkeys));
    mem->lkey = htobe32(rig->lkey);

    auto* context = at<ncclGinGdakiGPUContext>(rig->device, where.context);
    context->gdqp = reinterpret_cast<doca_gpu_dev_verbs_qp*>(address(where.qps));
    context->sink_buffer_lkey = htobe32(rig->lkey);

    auto* proxy = at<ncclGinProxyGpuCtx_t>(rig->device, where.proxy);
    if (proxied) {
        proxy->nranks = static_cast<int>(ranks);
        proxy->queueSize = kProxyQueue;
        proxy->queues = reinterpret_cast<ncclGinProxyGfd_t*>(host_at + host.queues);
        proxy->pis = reinterpret_cast<uint32_t*>(address(where.pis));
        proxy->cis = reinterpret_cast<uint32_t*>(host_at + host.cis);
    }

    auto* window = at<ncclWindow_vidmem>(rig->device, where.window);
    window->worldRank = static_cast<int>(rig->me);
    uint64_t handle = proxied ? kWindowHandle : address(where.mem);
    window->ginWins[0] = reinterpret_cast<ncclGinWindow_t>(handle);

    /* One rank a node: nobody is reached by loads and stores. */
    auto* comm = at<ncclDevComm>(rig->device, where.comm);
    comm->rank = static_cast<int>(rig->me);
    comm->nRanks = static_cast<int>(ranks);
    comm->nRanks_rcp32 = nccl::utility::idivRcp32(ranks);
    comm->lsaSize = 1;
    comm->lsaSize_rcp32 = nccl::utility::idivRcp32(1);
    comm->ginContextCount = 1;
    comm->ginTypes[0] = proxied ? NCCL_NET_DEVICE_GIN_PROXY : NCCL_NET_DEVICE_GIN_GDAKI;
    comm->ginHandles[0] = reinterpret_cast<void*>(address(proxied ? where.proxy : where.context));
    comm->ginSignalBase = kSignal;
    comm->ginSignalCount = 1;

    auto* head = at<GicNccl>(rig->device, where.head);
    head->qps = context->gdqp;
    head->window = reinterpret_cast<ncclWindow_vidmem*>(address(where.window));
    head->proxy = reinterpret_cast<ncclGinProxyGpuCtx_t*>(address(where.proxy));
    head->handle = window->ginWins[0];
    head->signal = rig->remote + rig->bytes - 8;
    head->sink = rig->local + rig->bytes - 16;
    head->me = rig->me;
    head->peers = others;
    head->lkey = htobe32(rig->lkey);
    head->rkey = htobe32(rig->rkey);

    built->state = address(where.head);
    built->symbols = 1;
    built->symbol[0] = {"gic_nccl_comm", where.comm, sizeof(ncclDevComm)};
    return 0;
}

extern "C" int gic_peer_take(const GicPeerRig* rig, GicPeerRequest* request) {
    if (kind(rig->variant) == kGicCpuDoorbell) ring(rig);
    if (!is_proxy(rig->variant)) return 0;
    uint32_t ranks = peers(rig->qps) + 1;
    Host where(rig->variant, ranks);
    auto* consumer = at<Consumer>(rig->host, where.consumer);
    auto* seen = at<uint32_t>(rig->host, where.seen);
    auto* owner = at<uint32_t>(rig->host, where.owner);
    auto hand = [&](const GicPeerRequest& what, uint32_t rank_or_none) {
        *request = what;
        request->ticket = ++consumer->handed;
        owner[consumer->handed % where.tickets] = rank_or_none;
        return 1;
    };
    if (consumer->stopped != 0) return -1;
    if (consumer->pending != 0) {
        consumer->pending = 0;
        return hand(consumer->signal, consumer->signal_rank + 1);
    }
    /* As there, one descriptor of a rank and then the next rank's turn. */
    for (uint32_t k = 0; k < ranks; k++) {
        uint32_t rank = consumer->turn;
        consumer->turn = rank + 1 == ranks ? 0 : rank + 1;
        auto* queue = at<ncclGinProxyGfd_t>(rig->host, where.queues) + uint64_t{rank} * kProxyQueue;
        ncclGinProxyGfd_t gfd;
        if (!poll(&queue[seen[rank] & (kProxyQueue - 1)], &gfd)) continue;
        seen[rank]++;
        GicPeerRequest put;
        int requests = process(rig, gfd, &put, &consumer->signal);
        consumer->stopped = requests == 0;
        if (consumer->stopped != 0) return -1;
        consumer->pending = requests == 2;
        consumer->signal_rank = rank;
        return hand(put, requests == 2 ? 0 : rank + 1);
    }
    return 0;
}

extern "C" void gic_peer_done(const GicPeerRig* rig, uint64_t ticket) {
    if (!is_proxy(rig->variant)) return;
    Host where(rig->variant, peers(rig->qps) + 1);
    auto* consumer = at<Consumer>(rig->host, where.consumer);
    auto* cis = at<uint32_t>(rig->host, where.cis);
    auto* shadow = at<uint32_t>(rig->host, where.shadow);
    const auto* owner = at<uint32_t>(rig->host, where.owner);
    /* After proxyGinPollCompletions: the consumer index moves by one for each descriptor. */
    while (consumer->done < ticket && consumer->done < consumer->handed) {
        uint32_t rank = owner[++consumer->done % where.tickets];
        if (rank != 0) __atomic_store_n(&cis[rank - 1], ++shadow[rank - 1], __ATOMIC_RELAXED);
    }
}
