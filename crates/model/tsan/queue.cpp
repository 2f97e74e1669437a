// Posters and a NIC, both instrumented, on one shared queue: for ThreadSanitizer.
//
// Slots are written by plain stores in this build (gic/atomics.hpp), so that a slot that is read before it is
// published, or written again before the NIC is done with it, is a data race. Exits with 0 where all arrived.
#include "nic.hpp"

namespace {

template <class C>
void run(const char* name, u64 start) {
    auto* m = new Memory;
    auto* state = new QpState{};
    state->reserved = state->ready = state->rung = state->consumed = start;
    Qp qp = {};
    qp.sq = {reinterpret_cast<u8*>(m->sq), kLogBlocks};
    qp.record = &m->record[1];
    qp.doorbell = &m->doorbell;
    qp.cq = reinterpret_cast<u8*>(m->cq);
    qp.cq_record = m->cq_record;
    qp.state = state;
    qp.deadline = ~u64{0} >> 1;
    qp.qpn = kQpn;
    qp.log_cq = kLogBlocks;

    auto immediate = [](const u64* slot) { return be32(static_cast<u32>(slot[1] >> 32)); };
    Nic nic{*m, C::cq_kind == CqKind::ring, C::order != Order::gpu_release, Told::record, immediate, start};
    run_beside(nic, [&](u32 t) {
        Endpoint<C> e(qp);
        u64 last = 0;
        for (u64 i = 0; i < kPosts; i++) {
            u32 value = static_cast<u32>(t * kPosts + i);
            How how;
            how.ring = how.signal = i % 3 == 0 || i + 1 == kPosts;
            Posted p = e.post(1, how, [&](u64 index, u32 flags) {
                qp.sq.store(index, 0, control_segment(Opcode::nop, index, kQpn, 1, flags, value));
            });
            require(p.failure.ok(), "a post failed");
            last = p.ticket;
        }
        require(e.wait(last).status == Status::done, "a wait failed");
    });
    std::fprintf(stderr, "%s from %llu: %zu WQEs\n", name, start, nic.fetched.size());
    delete state;
    delete m;
}

template <Order O, CqKind K, Ringing R>
void all_starts(const char* name) {
    // Where the caller rings, completions are asked for by him as well; here the NIC completes each anyway.
    using C = Choice<O, Sharing::thread, K, CqLoad::acquire, R>;
    run<C>(name, 0);
    run<C>(name, (u64{1} << 16) - 5);
}

template <CqKind K>
void all() {
    all_starts<Order::gpu_release, K, Ringing::each>("release");
    all_starts<Order::gpu_release, K, Ringing::threshold>("release, threshold");
    all_starts<Order::gpu_release, K, Ringing::deferred>("release, deferred");
    // Fences are stood in for by a read-modify-write.
    all_starts<Order::gpu_fence, K, Ringing::each>("fence");
    all_starts<Order::system_fence, K, Ringing::threshold>("system fence, threshold");
}

}  // namespace

int main() {
    all<CqKind::collapsed>();
    all<CqKind::ring>();
}
