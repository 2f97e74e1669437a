// Memory of one queue pair and a NIC that executes what posters hand to it, for ThreadSanitizer.
#pragma once

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

    Memory() {
        for (u64& word : cq)
            word = ~u64{0};
    }
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

// What tells a handed-over number.
enum class Told {
    record,    // the record, once the doorbell has changed
    doorbell,  // the doorbell itself
};

// Reads the WQEs that it is told of, and completes each.
struct Nic {
    Memory& m;
    bool ring_cq;
    bool fences;  // the posters' stand-in for a fence orders only who does the same
    Told told;
    u32 (*value)(const u64* slot);
    u64 head;
    u64 bell = 0;
    u64 cqes = 0;
    std::vector<u32> fetched = {};

    void look() {
        u64 now = mem::load_acquire<Scope::system>(&m.doorbell);
        if (now == bell) return;
        bell = now;
        u32 index = told == Told::record ? be32(mem::load_acquire<Scope::system>(&m.record[1]))
                                         : be32(static_cast<u32>(now)) >> 8;
        if (fences) mem::fence<Scope::system>();
        u64 producer = head + static_cast<u16>(index - static_cast<u32>(head));
        require(producer - head <= (1u << kLogBlocks), "the index went back, or too far");
        for (; head < producer; head++) {
            const u64* slot = &m.sq[(head & ((1u << kLogBlocks) - 1)) * 8];
            u32 of_slot = (be32(static_cast<u32>(slot[0])) >> 8) & 0xffff;
            require(of_slot == (head & 0xffff), "a slot was handed over unwritten");
            fetched.push_back(value(slot));
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

    // Until all posts of all threads were fetched.
    void serve() {
        u32 spins = 0;
        while (fetched.size() < kThreads * kPosts) {
            look();
            pause(spins++);
        }
    }

    void require_each_once() const {
        std::vector<bool> seen(kThreads * kPosts);
        for (u32 value : fetched) {
            require(value < seen.size() && !seen[value], "a WQE was fetched twice");
            seen[value] = true;
        }
    }
};

// Runs `poster` of each thread beside the NIC.
template <class Poster>
void run_beside(Nic& nic, Poster poster) {
    std::thread engine([&] { nic.serve(); });
    std::vector<std::thread> posters;
    for (u32 t = 0; t < kThreads; t++) {
        posters.emplace_back([&, t] {
            host_wait = {[](void*, u32 spins) { pause(spins); }, nullptr};
            poster(t);
        });
    }
    for (auto& thread : posters)
        thread.join();
    engine.join();
    nic.require_each_once();
}

}  // namespace
