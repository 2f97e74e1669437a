// NVSHMEM's device state of one PE of two, as its host library leaves it after initialization, and the CPU side of the
// two paths that have one: the CPU-assisted doorbell and the proxy's channel.
#include <cstdio>
#include <cstring>
#include <iterator>

#include <device_host/nvshmem_common.cuh>
#include <device_host/nvshmem_proxy_channel.h>
#include <device_host_transport/nvshmem_common_transport.h>

#include "layout.h"

namespace {

// As adapter.rs numbers them. IBGDA over RC unless said otherwise.
enum Variant : uint32_t {
    public_dc = 2,
    internal_dc = 3,
    cpu_doorbell = 4,
    public_idle_dci = 5,
    last_ibgda = 14,
    proxy = 20,
    proxy_direct = 21,
};
bool is_known(uint32_t variant) {
    return variant <= last_ibgda || variant == proxy || variant == proxy_direct;
}
bool is_proxy(uint32_t variant) {
    return variant >= proxy;
}
bool is_dc(uint32_t variant) {
    return variant == public_dc || variant == internal_dc;
}

constexpr uint32_t pes = 2;
constexpr uint64_t channel_bytes = 1ull << CHANNEL_BUF_SIZE_LOG;
constexpr uint32_t granularity = 29;  // NVSHMEM_CUMEM_GRANULARITY's default, 512 MiB
constexpr uint64_t most_chunks = NVSHMEMI_IBGDA_MAX_CONST_RKEYS / pes;
constexpr uint32_t dcts = 2;  // NVSHMEM_IBGDA_NUM_DCT's default

uint64_t take_up(uint64_t* at, uint64_t bytes) {
    uint64_t start = *at;
    *at = (start + bytes + 255) / 256 * 256;
    return start;
}

// Where things lie in the two memories.
struct Device {
    uint64_t side, rcs, dcis, cqs, switches, p2p, remote, issue, complete_local, host_state, ibgda_state,
        bytes;
    Device(uint32_t variant, uint32_t qps) {
        uint64_t at = 0;
        uint64_t rc = is_dc(variant) || is_proxy(variant) ? 0 : uint64_t{pes} * qps;
        uint64_t dci = is_dc(variant) ? qps : variant == public_idle_dci ? 1 : 0;
        side = take_up(&at, sizeof(GicNvshmemSide));
        rcs = take_up(&at, rc * sizeof(nvshmemi_ibgda_device_qp_t));
        dcis = take_up(&at, dci * sizeof(nvshmemi_ibgda_device_qp_t));
        cqs = take_up(&at, (rc + dci) * sizeof(nvshmemi_ibgda_device_cq_t));
        switches = take_up(&at, qps);
        p2p = take_up(&at, pes * sizeof(void*));
        remote = take_up(&at, pes * sizeof(void*));
        issue = take_up(&at, sizeof(uint64_t));
        complete_local = take_up(&at, sizeof(uint64_t));
        host_state = take_up(&at, sizeof(nvshmemi_device_host_state_t));
        ibgda_state = take_up(&at, sizeof(nvshmemi_ibgda_device_state_t));
        bytes = at;
    }
};

// What this file's CPU side keeps between calls; nobody else looks at it.
struct Channel {
    uint64_t processed;  // bytes of the channel
    uint64_t told;       // the GPU
    uint64_t quiet;      // channel position that the quiet in progress waits for
    uint64_t flush;      // its ticket, 0 before it was handed out
    uint64_t tickets;
    uint32_t quieting;
    uint32_t broken;
};
struct Host {
    uint64_t rung, produced, channel, complete, quiet_issue, quiet_ack, cst_issue, cst_ack, own, bytes;
    Host(uint32_t variant, uint32_t qps) {
        uint64_t at = 0;
        uint64_t slots = variant == cpu_doorbell ? uint64_t{pes} * qps * sizeof(uint64_t) : 0;
        produced = take_up(&at, slots);
        rung = take_up(&at, slots);
        uint64_t words = is_proxy(variant) ? sizeof(uint64_t) : 0;
        channel = take_up(&at, is_proxy(variant) ? channel_bytes : 0);
        complete = take_up(&at, words);
        quiet_issue = take_up(&at, words);
        quiet_ack = take_up(&at, words);
        cst_issue = take_up(&at, words);
        cst_ack = take_up(&at, words);
        own = take_up(&at, is_proxy(variant) ? sizeof(Channel) : 0);
        bytes = at;
    }
};

template <class T>
T* in(uint8_t* base, uint64_t offset) {
    return reinterpret_cast<T*>(base + offset);
}
template <class T>
T* at(uint64_t address) {
    return reinterpret_cast<T*>(address);
}

// What isn't payload of the payload memory: the signal, then words for what the NIC's atomics return.
constexpr uint64_t tail_bytes = 64;
uint64_t tail(const GicPeerRig& rig) {
    return rig.bytes - tail_bytes;
}

// The queue pair `q` in `qp`, which will lie at `qp_at` and have its CQ, `cq`, at `cq_at`.
void connect(const GicPeerRig& rig, uint32_t i, nvshmemi_ibgda_device_qp_type_t type, uint64_t doorbell,
             nvshmemi_ibgda_device_qp_t* qp, uint64_t qp_at, nvshmemi_ibgda_device_cq_t* cq, uint64_t cq_at) {
    const GicPeerQueue& q = rig.queue[i];
    nvshmemi_init_ibgda_device_qp((*qp));
    qp->qp_type = type;
    qp->qpn = q.qpn;
    qp->dev_idx = 0;
    // What atomics fetch and nobody wants goes to its first slot; operations that fetch aren't used.
    qp->ibuf.nslots = 1;
    qp->ibuf.buf = at<void>(rig.local + tail(rig) + 8 + i % 7 * 8);
    qp->ibuf.lkey = __builtin_bswap32(rig.lkey);
    qp->ibuf.rkey = __builtin_bswap32(rig.own_rkey);
    qp->tx_wq.nwqes = static_cast<uint16_t>(1u << q.log_blocks);
    qp->tx_wq.wqe = at<void>(q.sq);
    qp->tx_wq.dbrec = doorbell == q.doorbell ? at<__be32>(q.record) : nullptr;
    qp->tx_wq.bf = at<void>(doorbell);
    qp->tx_wq.cq = at<nvshmemi_ibgda_device_cq_t>(cq_at);
    int version = qp->mvars.version;
    memset(&qp->mvars, 0, sizeof qp->mvars);
    qp->mvars.version = version;
    uint64_t variables = qp_at + offsetof(nvshmemi_ibgda_device_qp_t, mvars);
    auto variable = [&](uint64_t offset) { return at<uint64_t>(variables + offset); };
    qp->tx_wq.prod_idx = variable(offsetof(nvshmemi_ibgda_device_qp_management_t, tx_wq.prod_idx));

    nvshmemi_init_ibgda_device_cq((*cq));
    cq->qp_type = type;
    cq->dbrec = at<__be32>(q.cq_record);
    cq->cqe = at<void>(q.cq);
    cq->ncqes = 1u << q.log_blocks;
    cq->cqn = i;
    cq->qpn = q.qpn;
    cq->prod_idx = qp->tx_wq.prod_idx;
    cq->cons_idx = variable(offsetof(nvshmemi_ibgda_device_qp_management_t, tx_wq.cons_idx));
    cq->resv_head = variable(offsetof(nvshmemi_ibgda_device_qp_management_t, tx_wq.resv_head));
    cq->ready_head = variable(offsetof(nvshmemi_ibgda_device_qp_management_t, tx_wq.ready_head));
}

// A DCI that nothing is ever posted to: quiet reads its heads and goes on.
void idle(nvshmemi_ibgda_device_qp_t* qp, uint64_t qp_at, nvshmemi_ibgda_device_cq_t* cq, uint64_t cq_at) {
    GicPeerQueue none = {};
    none.log_blocks = 10;
    GicPeerRig rig = {};
    rig.queue = &none;
    rig.bytes = tail_bytes;
    connect(rig, 0, NVSHMEMI_IBGDA_DEVICE_QP_TYPE_DCI, 0, qp, qp_at, cq, cq_at);
}

void fill_ibgda(const GicPeerRig& rig, const Device& d, const Host& h, nvshmemi_ibgda_device_state_t* state) {
    bool dc = is_dc(rig.variant);
    uint32_t you = 1 - rig.me, n = rig.qps;
    nvshmemi_init_ibgda_device_state((*state));
    state->num_shared_dcis = dc ? n : rig.variant == public_idle_dci ? 1 : 0;
    state->num_exclusive_dcis = 0;
    state->dci_map_type = NVSHMEMI_IBGDA_DEVICE_QP_MAP_TYPE_CTA;
    state->ndcts_per_pe = dcts;
    state->num_dct_groups = 1;
    state->num_qp_groups = n;
    state->num_rc_per_pe = dc ? 0 : n;
    state->rc_map_type = NVSHMEMI_IBGDA_DEVICE_QP_MAP_TYPE_CTA;
    state->num_requests_in_batch = 32;
    state->log2_cumem_granularity = granularity;
    state->num_devices_initialized = 1;
    state->nic_buf_on_gpumem = true;
    state->support_half_av_seg = true;
    // Where the GPU keeps the order of a NIC's writes (Hopper and later), and one NIC.
    state->may_skip_cst = true;
    state->use_async_postsend = rig.variant == cpu_doorbell;

    // One registration: each chunk's key ends where the memory does.
    uint64_t chunks = (rig.bytes + (1ull << granularity) - 1) >> granularity;
    for (uint64_t c = 0; c < chunks; c++) {
        state->constmem.lkeys[c] = {__builtin_bswap32(rig.lkey), rig.local + rig.bytes};
        state->constmem.rkeys[c * pes + you] = {__builtin_bswap32(rig.rkey), rig.bytes};
        state->constmem.rkeys[c * pes + rig.me] = {__builtin_bswap32(rig.own_rkey), rig.bytes};
    }
    for (uint32_t k = 0; dc && k < dcts; k++) {
        nvshmemi_ibgda_device_dct_t* dct = &state->constmem.dcts[you * dcts + k];
        static_assert(sizeof rig.av == sizeof *dct, "an address vector has 48 bytes");
        memcpy(dct, rig.av, sizeof *dct);
        dct->dqp_dct &= __builtin_bswap32(~MLX5_EXTENDED_UD_AV);  // half of it is in the WQE
    }

    uint64_t qp_bytes = sizeof(nvshmemi_ibgda_device_qp_t), cq_bytes = sizeof(nvshmemi_ibgda_device_cq_t);
    uint64_t cq = d.cqs;
    auto* qps = in<nvshmemi_ibgda_device_qp_t>(rig.device, dc ? d.dcis : d.rcs);
    uint64_t qps_at = rig.device_at + (dc ? d.dcis : d.rcs);
    if (rig.variant == public_idle_dci) {
        idle(in<nvshmemi_ibgda_device_qp_t>(rig.device, d.dcis), rig.device_at + d.dcis,
             in<nvshmemi_ibgda_device_cq_t>(rig.device, cq), rig.device_at + cq);
        cq += cq_bytes;
    }
    // There is no RC queue pair to itself: those entries stay zero, and quiet passes over them.
    uint32_t first = dc ? 0 : you * n;
    for (uint32_t i = 0; i < n; i++, cq += cq_bytes) {
        uint64_t doorbell = rig.queue[i].doorbell;
        if (rig.variant == cpu_doorbell)
            doorbell = reinterpret_cast<uint64_t>(rig.host + h.produced + (first + i) * sizeof(uint64_t));
        connect(rig, i, dc ? NVSHMEMI_IBGDA_DEVICE_QP_TYPE_DCI : NVSHMEMI_IBGDA_DEVICE_QP_TYPE_RC, doorbell,
                &qps[first + i], qps_at + (first + i) * qp_bytes,
                in<nvshmemi_ibgda_device_cq_t>(rig.device, cq), rig.device_at + cq);
    }
    state->globalmem.qp_group_switches = at<uint8_t>(rig.device_at + d.switches);
    state->globalmem.cqs = at<nvshmemi_ibgda_device_cq_t>(rig.device_at + d.cqs);
    state->globalmem.dcis = at<nvshmemi_ibgda_device_qp_t>(rig.device_at + d.dcis);
    state->globalmem.rcs = dc ? nullptr : at<nvshmemi_ibgda_device_qp_t>(rig.device_at + d.rcs);
}

void fill_proxy(const GicPeerRig& rig, const Device& d, const Host& h, nvshmemi_device_host_state_t* state) {
    state->proxy_channels_buf = rig.host + h.channel;
    state->proxy_channels_issue = at<uint64_t>(rig.device_at + d.issue);
    state->proxy_channels_complete = in<uint64_t>(rig.host, h.complete);
    state->proxy_channels_complete_local_ptr = at<uint64_t>(rig.device_at + d.complete_local);
    state->proxy_channels_quiet_issue = in<uint64_t>(rig.host, h.quiet_issue);
    state->proxy_channels_quiet_ack = in<uint64_t>(rig.host, h.quiet_ack);
    state->proxy_channels_cst_issue = in<uint64_t>(rig.host, h.cst_issue);
    state->proxy_channels_cst_ack = in<uint64_t>(rig.host, h.cst_ack);
    state->proxy_channel_buf_size = channel_bytes;
    state->proxy_channel_buf_logsize = CHANNEL_BUF_SIZE_LOG;
}

// Why the rig can't be built on: a sentence, or nothing.
const char* fault(const GicPeerRig& rig, char* text, size_t bytes) {
    if (rig.abi != GIC_PEER_ABI) return "the rig is of another ABI";
    if (!is_known(rig.variant)) return "there is no such variant";
    if (rig.me >= pes) return "a side is 0 or 1";
    if (rig.device == nullptr || rig.device_at % 8 != 0)
        return "device memory starts at a multiple of 8 bytes";
    if (rig.bytes <= tail_bytes || rig.bytes % 8 != 0)
        return "payload memory is a multiple of 8 bytes, more than 64";
    if (rig.local % 8 != 0 || rig.remote % 8 != 0) return "payload memory is aligned to 8 bytes";
    if (rig.bytes > most_chunks << granularity)
        return "payload memory of more than 16 GiB has more keys than the constant table holds";
    if (is_proxy(rig.variant)) return rig.host == nullptr ? "the channel needs host memory" : nullptr;
    if (rig.qps == 0 || rig.queue == nullptr) return "IBGDA needs a queue pair to the other side";
    if (rig.variant == cpu_doorbell && rig.host == nullptr)
        return "the CPU-assisted doorbell needs host memory";
    for (uint32_t i = 0; i < rig.qps; i++) {
        uint64_t depth = 1ull << (rig.queue[i].log_blocks & 63);
        if (depth < NVSHMEMI_IBGDA_MIN_QP_DEPTH || depth > NVSHMEMI_IBGDA_MAX_QP_DEPTH) {
            snprintf(text, bytes, "queue %u has %llu blocks: NVSHMEM's send queues have %d to %d", i,
                     static_cast<unsigned long long>(depth), NVSHMEMI_IBGDA_MIN_QP_DEPTH,
                     NVSHMEMI_IBGDA_MAX_QP_DEPTH);
            return text;
        }
        if (!is_dc(rig.variant) && rig.queue[i].peer != 1 - rig.me) {
            snprintf(
                text, bytes,
                "queue %u doesn't go to the other side: all RC queue pairs do, NVSHMEM has none to itself",
                i);
            return text;
        }
    }
    return nullptr;
}

uint64_t load(const void* word) {
    return __atomic_load_n(static_cast<const uint64_t*>(word), __ATOMIC_ACQUIRE);
}
void store(void* word, uint64_t value) {
    __atomic_store_n(static_cast<uint64_t*>(word), value, __ATOMIC_RELEASE);
}

// The producer indices that GPU threads moved since the last call: record, then doorbell.
void ring(const GicPeerRig& rig) {
    Host h(rig.variant, rig.qps);
    uint32_t first = (1 - rig.me) * rig.qps;
    auto* produced = in<uint64_t>(rig.host, h.produced) + first;
    auto* rung = in<uint64_t>(rig.host, h.rung) + first;
    for (uint32_t i = 0; i < rig.qps; i++) {
        uint64_t next = load(&produced[i]);
        if (next <= rung[i]) continue;
        const GicPeerQueue& q = rig.queue[i];
        __atomic_store_n(at<uint32_t>(q.record), __builtin_bswap32(next & 0xffff), __ATOMIC_RELEASE);
        uint64_t words[1];
        uint32_t half[2] = {__builtin_bswap32(static_cast<uint32_t>(next << 8)),
                            __builtin_bswap32(q.qpn << 8)};
        memcpy(words, half, sizeof half);
        store(at<void>(q.doorbell), words[0]);
        rung[i] = next;
    }
}

// The words of the request that begins at `from`, as far as they have been written. Each says by its lowest bit of
// which lap it is.
template <uint32_t Words>
bool words(const uint8_t* channel, uint64_t from, uint64_t (&word)[Words]) {
    for (uint32_t k = 0; k < Words; k++) {
        uint64_t position = from + k * CHANNEL_ENTRY_BYTES;
        word[k] = load(channel + (position & (channel_bytes - 1)));
        uint64_t lap = !((position >> CHANNEL_BUF_SIZE_LOG) & 1);
        if ((word[k] & 1) != lap) return false;
    }
    return true;
}
template <class T>
T as(uint64_t word) {
    static_assert(sizeof(T) == sizeof word, "a channel's word has 8 bytes");
    T request;
    memcpy(static_cast<void*>(&request), &word, sizeof request);
    return request;
}

// The next request of the channel in `request`: its bytes in the channel, 0 if there is none yet, negative if it is one
// that no put, value or signal makes. Nothing to post is a request of kind 0.
int decode(const GicPeerRig& rig, const uint8_t* channel, uint64_t from, GicPeerRequest* request) {
    uint64_t one[1], three[PROXY_INLINE_REQ_BYTES / 8], four[PROXY_DMA_REQ_BYTES / 8],
        five[PROXY_AMO_REQ_BYTES / 8];
    if (!words(channel, from, one)) return 0;
    auto base = as<base_request_t>(one[0]);
    request->remote = rig.remote + (static_cast<uint64_t>(base.roffset_high) << 8 | base.roffset_low);
    uint32_t you = 1 - rig.me;
    switch (base.op) {
    case NVSHMEMI_OP_FENCE:  // one RC queue pair carries all: nothing to do
        request->kind = 0;
        return CHANNEL_ENTRY_BYTES;
    case NVSHMEMI_OP_PUT: {
        if (!words(channel, from, four)) return 0;
        auto r0 = as<put_dma_request_0_t>(four[1]);
        auto r1 = as<put_dma_request_1_t>(four[2]);
        auto r2 = as<put_dma_request_2_t>(four[3]);
        uint64_t size = static_cast<uint64_t>(r1.size_high) << 16 | r1.size_low;
        if (r2.pe != you || size > UINT32_MAX) return -1;
        request->kind = GIC_PEER_WRITE;
        request->bytes = static_cast<uint32_t>(size);
        request->local = static_cast<uint64_t>(r0.laddr_high) << 32 |
                         static_cast<uint64_t>(r0.laddr_3) << 16 | static_cast<uint64_t>(r0.laddr_2) << 8 |
                         r1.laddr_low;
        return PROXY_DMA_REQ_BYTES;
    }
    case NVSHMEMI_OP_P: {
        if (!words(channel, from, three)) return 0;
        auto r0 = as<put_inline_request_0_t>(three[1]);
        auto r1 = as<put_inline_request_1_t>(three[2]);
        if (r0.pe != you || r1.size > 8) return -1;
        request->kind = GIC_PEER_WRITE_VALUE;
        request->bytes = r1.size;
        request->value = r0.lvalue_low | (r1.size == 8 ? static_cast<uint64_t>(r1.lvalue_high) << 32 : 0);
        return PROXY_INLINE_REQ_BYTES;
    }
    case NVSHMEMI_OP_AMO: {
        if (!words(channel, from, five)) return 0;
        auto r0 = as<amo_request_0_t>(five[1]);
        auto r1 = as<amo_request_1_t>(five[2]);
        if (r0.pe != you || r1.size != 8) return -1;
        if (r0.amo == NVSHMEMI_AMO_SIGNAL_ADD || r0.amo == NVSHMEMI_AMO_ADD)
            request->kind = GIC_PEER_FETCH_ADD;
        else if (r0.amo == NVSHMEMI_AMO_SIGNAL_SET || r0.amo == NVSHMEMI_AMO_SIGNAL)
            request->kind = GIC_PEER_WRITE_VALUE;
        else
            return -1;
        request->bytes = 8;
        request->value = r0.swap_add_low | static_cast<uint64_t>(r1.swap_add_high) << 32;
        return PROXY_AMO_REQ_BYTES;
    }
    default: return -1;
    }
}

const GicPeerLayout layouts[] = {
    {"nvshmemi_device_host_state_t", sizeof(nvshmemi_device_host_state_t)},
    {"nvshmemi_ibgda_device_state_t", sizeof(nvshmemi_ibgda_device_state_t)},
    {"nvshmemi_ibgda_device_qp_t", sizeof(nvshmemi_ibgda_device_qp_t)},
    {"nvshmemi_ibgda_device_qp_management_t", sizeof(nvshmemi_ibgda_device_qp_management_t)},
    {"nvshmemi_ibgda_device_cq_t", sizeof(nvshmemi_ibgda_device_cq_t)},
    {"nvshmemi_ibgda_device_dct_t", sizeof(nvshmemi_ibgda_device_dct_t)},
    {"nvshmemi_ibgda_device_key_t", sizeof(nvshmemi_ibgda_device_key_t)},
    {"base_request_t", sizeof(base_request_t)},
    {"GicNvshmemSide", sizeof(GicNvshmemSide)},
};
#define GIC_TEXT_OF(x) #x
#define GIC_TEXT(x) GIC_TEXT_OF(x)
const GicPeerInfo info = {
    GIC_PEER_ABI,
    "nvshmem",
    GIC_TEXT(NVSHMEM_VENDOR_MAJOR_VERSION) "." GIC_TEXT(NVSHMEM_VENDOR_MINOR_VERSION) "." GIC_TEXT(
        NVSHMEM_VENDOR_PATCH_VERSION),
    static_cast<uint32_t>(std::size(layouts)),
    layouts,
};

}  // namespace

const GicPeerInfo* gic_peer_info(void) {
    return &info;
}

void gic_peer_sizes(uint32_t variant, uint32_t qps, uint32_t, uint64_t* device, uint64_t* host) {
    *device = Device(variant, qps).bytes;
    *host = Host(variant, qps).bytes;
}

int gic_peer_build(const GicPeerRig* rig, GicPeerBuilt* built, char* why, size_t why_bytes) {
    char text[160];
    if (const char* what = fault(*rig, text, sizeof text)) {
        snprintf(why, why_bytes, "%s", what);
        return 1;
    }
    Device d(rig->variant, rig->qps);
    Host h(rig->variant, rig->qps);
    memset(rig->device, 0, d.bytes);
    if (h.bytes != 0) memset(rig->host, 0, h.bytes);
    uint32_t you = 1 - rig->me;

    GicNvshmemSide* side = in<GicNvshmemSide>(rig->device, d.side);
    side->shift = rig->local - rig->remote;
    side->signal = rig->local + tail(*rig);
    side->peer = static_cast<int32_t>(you);
    side->lkey = __builtin_bswap32(rig->lkey);
    side->rkey = __builtin_bswap32(rig->rkey);

    // No peer is reached by loads and stores: everything goes over the network.
    in<uint64_t>(rig->device, d.p2p)[rig->me] = rig->local;
    in<uint64_t>(rig->device, d.remote)[rig->me] = rig->local;
    in<uint64_t>(rig->device, d.remote)[you] = rig->remote;

    auto* host = in<nvshmemi_device_host_state_t>(rig->device, d.host_state);
    *host = NVSHMEMI_DEVICE_HOST_STATE_INITIALIZER;
    host->mype = static_cast<int>(rig->me);
    host->npes = pes;
    host->node_mype = 0;
    host->node_npes = 1;
    host->pe_dist = NVSHMEMI_PE_DIST_BLOCK;
    host->proxy =
        is_proxy(rig->variant) || rig->variant == cpu_doorbell ? NVSHMEMI_PROXY_FULL : NVSHMEMI_PROXY_MINIMAL;
    host->job_connectivity = NVSHMEMI_JOB_GPU_PROXY;
    host->proxy_ops_are_ordered = is_proxy(rig->variant);
    host->heap_base = at<void>(rig->local);
    host->heap_size = rig->bytes;
    host->peer_heap_base_p2p = at<void*>(rig->device_at + d.p2p);
    host->peer_heap_base_remote = at<void*>(rig->device_at + d.remote);
    host->ibgda_is_initialized = !is_proxy(rig->variant);
    host->nvshmemi_is_nvshmem_initialized = true;
    host->nvshmemi_is_nvshmem_bootstrapped = true;

    built->state = rig->device_at + d.side;
    built->symbols = 1;
    built->symbol[0] = {"nvshmemi_device_state_d", d.host_state, sizeof *host};
    if (is_proxy(rig->variant)) {
        fill_proxy(*rig, d, h, host);
    } else {
        auto* ibgda = in<nvshmemi_ibgda_device_state_t>(rig->device, d.ibgda_state);
        fill_ibgda(*rig, d, h, ibgda);
        built->symbols = 2;
        built->symbol[1] = {"nvshmemi_ibgda_device_state_d", d.ibgda_state, sizeof *ibgda};
    }
    return 0;
}

int gic_peer_take(const GicPeerRig* rig, GicPeerRequest* request) {
    if (rig->variant == cpu_doorbell) {
        ring(*rig);
        return 0;
    }
    if (!is_proxy(rig->variant)) return 0;

    Host h(rig->variant, rig->qps);
    Channel* own = in<Channel>(rig->host, h.own);
    if (own->broken) return -1;
    if (!own->quieting) {
        uint64_t asked = load(rig->host + h.quiet_issue);
        if (asked > own->quiet) {
            own->quiet = asked;
            own->quieting = 1;
            own->flush = 0;
        }
    }
    for (;;) {
        *request = {};
        if (own->quieting && own->flush == 0 && own->processed >= own->quiet) {
            request->kind = GIC_PEER_FLUSH;
            request->ticket = own->flush = ++own->tickets;
            return 1;
        }
        int bytes = decode(*rig, rig->host + h.channel, own->processed, request);
        if (bytes == 0) return 0;
        if (bytes < 0) {
            own->broken = 1;
            return -1;
        }
        // Room is given back when a request was read, in steps of a KiB, as the library does.
        own->processed += static_cast<uint64_t>(bytes);
        if (own->processed - own->told >= 1024) {
            store(rig->host + h.complete, own->processed);
            own->told = own->processed;
        }
        if (request->kind != 0) {
            request->ticket = ++own->tickets;
            return 1;
        }
    }
}

void gic_peer_done(const GicPeerRig* rig, uint64_t ticket) {
    if (!is_proxy(rig->variant)) return;
    Host h(rig->variant, rig->qps);
    Channel* own = in<Channel>(rig->host, h.own);
    if (own->quieting && own->flush != 0 && ticket >= own->flush) {
        store(rig->host + h.quiet_ack, own->quiet);
        own->quieting = 0;
    }
}

const char* gic_peer_consumer(void) {
    return "minimal consumer: the reader of the proxy's channel, and for the CPU-assisted doorbell the loop "
           "over producer indices";
}
