// Threads that put as a library does, and a NIC, on one shared queue: for ThreadSanitizer.
//
// What these puts order by fences is stood in for by a read-modify-write, as everywhere in this build. DeepEP's put is
// not among them: it looks for no space, so that nothing but the queue's depth keeps a thread from a slot that another's
// WQE is still in.
#include "gic/like.hpp"
#include "nic.hpp"

namespace {

// The address in the WQE, which no memory has.
constexpr u64 kHeap = u64{1} << 32;

template <Peer P>
void run(const char* name, u64 start) {
    using L = Like<P>;
    auto* m = new Memory;
    if (!L::gdaki) {
        // The counter of the last WQE before `start`.
        u64 counter = start - 1;
        m->cq[7] = (m->cq[7] & ~(u64{0xffff} << 32)) | ((counter & 0xff) << 8 | (counter >> 8 & 0xff)) << 32;
    }
    auto* qp = new LikeQp{};
    LikeCq cq = {reinterpret_cast<u8*>(m->cq), &qp->produced, &qp->consumed, 1u << kLogBlocks, 0};
    qp->reserved = qp->ready = qp->produced = qp->consumed = start;
    qp->qpn = kQpn;
    qp->log_blocks = qp->log_cq = kLogBlocks;
    qp->sq = reinterpret_cast<u8*>(m->sq);
    qp->record = &m->record[1];
    qp->doorbell = &m->doorbell;
    qp->cq = &cq;
    qp->entries = reinterpret_cast<u8*>(m->cq);
    auto* tables = new LikeTables{};
    u32 counter = 0;
    u64 there = kHeap, mapped = 0;
    tables->heap = kHeap;
    tables->heap_bytes = u64{1} << 29;
    tables->log_chunk = 29;
    tables->targets = tables->devices = tables->groups = tables->per_target = 1;
    tables->batch = 32;
    tables->counters = &counter;
    tables->remote_heaps = &there;
    tables->mapped = &mapped;
    tables->lkeys[0] = {0, 0, kHeap + tables->heap_bytes};
    tables->rkeys[0] = {0, 0, tables->heap_bytes};

    auto address = [](const u64* slot) { return static_cast<u32>(be64(slot[2]) - kHeap); };
    Nic nic{*m, L::gdaki, true, Told::doorbell, address, start};
    run_beside(nic, [&](u32 t) {
        LikeEndpoint<L> e(qp, 1, tables, t, ~u64{0} >> 1);
        for (u64 i = 0; i < kPosts; i++) {
            Posted p = e.put({kHeap + t * kPosts + i, 0}, {kHeap, 0}, 8);
            require(p.failure.ok(), "a put failed");
            require(e.wait(p.ticket).status == Status::done, "a wait failed");
        }
    });
    std::fprintf(stderr, "like %s from %llu: %zu WQEs\n", name, start, nic.fetched.size());
    delete tables;
    delete qp;
    delete m;
}

template <Peer P>
void all_starts(const char* name) {
    run<P>(name, 0);
    // A ring's laps begin at multiples of two depths.
    run<P>(name, (u64{1} << 16) - (2 << kLogBlocks));
}

}  // namespace

int main() {
    all_starts<Peer::nvshmem>("nvshmem");
    all_starts<Peer::nvshmem_internal>("nvshmem-internal");
    all_starts<Peer::gdaki>("gdaki");
    all_starts<Peer::gdaki_cta>("gdaki-cta");
}
