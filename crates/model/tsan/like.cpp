// Threads that put as a library does, and a NIC, on one shared queue: for ThreadSanitizer.
//
// What these puts order by fences is stood in for by a read-modify-write, as everywhere in this build. DeepEP's put is
// not among them: it looks for no space, so that nothing but the queue's depth keeps a thread from a slot that another's
// WQE is still in.
#include "gic/like_doca.hpp"
#include "gic/like_public.hpp"
#include "nic.hpp"

#include <memory>

namespace {

// The address in the WQE, which no memory has.
constexpr u64 kHeap = u64{1} << 32;
constexpr u64 kNever = ~u64{0} >> 1;

// `post(thread, i)` puts, and waits for it.
template <Peer P, class Post>
void run(const char* name, Memory& m, u64 start, Post post) {
    auto address = [](const u64* slot) { return static_cast<u32>(be64(slot[2]) - kHeap); };
    Nic nic{m, Like<P>::gdaki, true, Told::doorbell, address, start};
    run_beside(nic, [&](u32 t) {
        for (u64 i = 0; i < kPosts; i++)
            post(t, kHeap + t * kPosts + i);
    });
    std::fprintf(stderr, "like %s from %llu: %zu WQEs\n", name, start, nic.fetched.size());
}

void require_done(Posted p, Outcome o) {
    require(p.failure.ok(), "a put failed");
    require(o.status == Status::done, "a wait failed");
}

template <Peer P>
void run_doca(const char* name, u64 start) {
    auto m = std::make_unique<Memory>();
    // The first one is nobody's.
    auto qps = std::make_unique<DocaQp[]>(2);
    DocaQp& q = qps[1];
    q.reserved = q.ready = q.produced = q.consumed = start;
    q.qpn = kQpn;
    q.doorbell_qpn = be32(kQpn << 8);
    q.write_qpn = be32(kQpn << 8 | 3);
    q.blocks = 1 << kLogBlocks;
    q.mask = q.blocks - 1;
    q.sq = reinterpret_cast<u8*>(m->sq);
    q.record = &m->record[1];
    q.doorbell = &m->doorbell;
    q.entries = reinterpret_cast<u8*>(m->cq);
    q.cq_entries = 1 << kLogBlocks;
    q.handler = kGpuRings;
    run<P>(name, *m, start, [&](u32 t, u64 to) {
        DocaEndpoint<Like<P>> e(qps.get(), 1, t, kNever);
        Posted p = e.put({to, 0}, {kHeap, 0}, 8);
        require_done(p, e.wait(p.ticket));
    });
}

template <Peer P>
void run_ibgda(const char* name, u64 start) {
    auto m = std::make_unique<Memory>();
    // The counter of the last WQE before `start`.
    u64 counter = start - 1;
    m->cq[7] = (m->cq[7] & ~(u64{0xffff} << 32)) | ((counter & 0xff) << 8 | (counter >> 8 & 0xff)) << 32;
    auto q = std::make_unique<IbgdaQp>();
    IbgdaCq cq = {};
    cq.entry = reinterpret_cast<u8*>(m->cq);
    cq.produced = &q->produced;
    cq.consumed = &q->consumed;
    cq.entries = 1 << kLogBlocks;
    q->reserved = q->ready = q->produced = q->consumed = start;
    q->kind = kIbgdaRc;
    q->qpn = kQpn;
    q->blocks = 1 << kLogBlocks;
    q->sq = reinterpret_cast<u8*>(m->sq);
    q->record = &m->record[1];
    q->doorbell = &m->doorbell;
    q->cq = &cq;
    auto state = std::make_unique<LikeState>();
    LikeTables& tables = state->tables;
    u8 turns = 0;
    u64 there = kHeap, mapped = 0;
    tables.heap = kHeap;
    tables.heap_bytes = u64{1} << 29;
    tables.log_chunk = 29;
    tables.targets = tables.devices = tables.groups = tables.per_target = tables.dc_targets = 1;
    tables.batch = 32;
    tables.qps = q.get();
    tables.counters = &turns;
    tables.remote_heaps = &there;
    tables.mapped = &mapped;
    tables.lkeys[0] = {0, 0, kHeap + tables.heap_bytes};
    tables.rkeys[0] = {0, 0, tables.heap_bytes};
    state->by_gpu = 1;
    using Endpoint = Either<Like<P>::is_public, PublicEndpoint<Like<Peer::nvshmem>>,
                            IbgdaEndpoint<Like<Peer::nvshmem_internal>>>;
    run<P>(name, *m, start, [&](u32 t, u64 to) {
        Endpoint e(state.get(), t, kNever);
        require_done(e.put(to, kHeap, 8), e.wait());
    });
}

// A ring's laps begin at multiples of two depths.
constexpr u64 kStarts[] = {0, (u64{1} << 16) - (2 << kLogBlocks)};

}  // namespace

int main() {
    for (u64 start : kStarts) {
        run_ibgda<Peer::nvshmem>("nvshmem", start);
        run_ibgda<Peer::nvshmem_internal>("nvshmem-internal", start);
        run_doca<Peer::gdaki>("gdaki", start);
        run_doca<Peer::gdaki_cta>("gdaki-cta", start);
    }
}
