// Posters and a NIC, both instrumented, on one shared queue: for ThreadSanitizer.
//
// Slots are written by plain stores in this build (gic/atomics.hpp), so that a slot that is read before it is
// published, or written again before the NIC is done with it, is a data race. Exits with 0 where all arrived.
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "gic/gda.hpp"

namespace gic {
__thread HostWait host_wait;
}

using namespace gic;

namespace {

constexpr u32 kQpn = 0x2ed;
constexpr u32 kLogBlocks = 3;
constexpr u32 kThreads = 3;
constexpr u64 kPosts = 1000;  // a thread

struct Memory {
    alignas(64) u64 sq[8 << kLogBlocks] = {};
    alignas(64) u64 cq[8 << kLogBlocks];
    alignas(64) u32 record[2] = {};
    alignas(64) u64 doorbell = 0;
    alignas(64) u32 cq_record[2] = {};
    QpState state = {};
};

void require(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "%s\n", what);
    std::_Exit(3);
}

// Lets others run now and then: on a loaded machine each yield may cost a time slice.
void pause(u32 spins) {
    if (spins % 64 == 63) std::this_thread::yield();
}

// Reads the record once the doorbell has changed, then the WQEs that it covers, and completes each.
struct Nic {
    Memory& m;
    bool ring_cq;
    bool fences;  // the posters' stand-in for a fence orders only who does the same
    u64 head;
    u64 bell = 0;
    u64 cqes = 0;
    std::vector<u32> fetched;

    void look() {
        u64 now = mem::load_acquire<Scope::system>(&m.doorbell);
        if (now == bell) return;
        bell = now;
        u32 record = be32(mem::load_acquire<Scope::system>(&m.record[1]));
        if (fences) mem::fence<Scope::system>();
        u64 producer = head + static_cast<u16>(record - static_cast<u32>(head));
        require(producer - head <= (1u << kLogBlocks), "the record went back, or too far");
        for (; head < producer; head++) {
            const u64* slot = &m.sq[(head & ((1u << kLogBlocks) - 1)) * 8];
            u64 low = slot[0], high = slot[1];
            u32 index = (be32(static_cast<u32>(low)) >> 8) & 0xffff;
            require(index == (head & 0xffff), "a slot was handed over unwritten");
            fetched.push_back(be32(static_cast<u32>(high >> 32)));
            complete();
        }
    }

    void complete() {
        u64 entry = ring_cq ? cqes & ((1u << kLogBlocks) - 1) : 0;
        u64 owner = ring_cq ? (cqes >> kLogBlocks) & 1 : 0;
        u64 counter = ((head & 0xff) << 8 | (head >> 8 & 0xff)) << 32;
        mem::store_release<Scope::system>(&m.cq[entry * 8 + 7], (owner << 56) | counter | be32(kQpn));
        cqes += 1;
    }
};

template <class C>
void run(const char* name, u64 start) {
    auto* m = new Memory;
    for (u64& word : m->cq)
        word = ~u64{0};
    m->state.reserved = m->state.ready = m->state.rung = m->state.consumed = start;
    Qp qp = {};
    qp.sq = {reinterpret_cast<u8*>(m->sq), kLogBlocks};
    qp.record = &m->record[1];
    qp.doorbell = &m->doorbell;
    qp.cq = reinterpret_cast<u8*>(m->cq);
    qp.cq_record = m->cq_record;
    qp.state = &m->state;
    qp.deadline = ~u64{0} >> 1;
    qp.qpn = kQpn;
    qp.log_cq = kLogBlocks;

    Nic nic{*m, C::cq_kind == CqKind::ring, C::order != Order::gpu_release, start, 0, 0, {}};
    std::thread engine([&] {
        u32 spins = 0;
        while (nic.fetched.size() < kThreads * kPosts) {
            nic.look();
            pause(spins++);
        }
    });
    std::vector<std::thread> posters;
    for (u32 t = 0; t < kThreads; t++) {
        posters.emplace_back([&, t] {
            host_wait = {[](void*, u32 spins) { pause(spins); }, nullptr};
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
    }
    for (auto& poster : posters)
        poster.join();
    engine.join();
    std::vector<bool> seen(kThreads * kPosts);
    for (u32 value : nic.fetched) {
        require(value < seen.size() && !seen[value], "a WQE was fetched twice");
        seen[value] = true;
    }
    std::fprintf(stderr, "%s from %llu: %zu WQEs\n", name, start, nic.fetched.size());
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
