// fabric-lib's flags and watchers' words in the rig's host memory, and a minimal consumer of them: the library's own is
// Rust (GdrFlag::wait, uwm_worker_step).
#include "gic_peer.h"

#include "layout.h"

#include <cstdio>
#include <new>

namespace {

using namespace fabric_lib;

constexpr uint32_t kOrder = 1u << 16;  // most that can be taken and not done
constexpr uint64_t kPage = 4096;
constexpr uint64_t kDeviceCounters = 256;

// What the CPU keeps of a producer.
struct Watched {
    uint32_t last;        // value of the word
    uint32_t owed;        // steps of it that aren't handed out
    uint32_t generation;  // of the request
    uint64_t next;        // operation of the request
};

struct Side {
    Producer* producer;
    uint64_t* word;
    Watched* watched;
    uint32_t cursor;
    uint64_t taken;
    uint64_t done;
    uint32_t order[kOrder];  // producers of what is taken, by ticket
};

uint64_t pages(uint64_t bytes) {
    return (bytes + kPage - 1) / kPage * kPage;
}
bool is_flag(uint32_t variant) {
    return variant == kFlag || variant == kNoCount;
}
Side* side_of(const GicPeerRig* rig) {
    return reinterpret_cast<Side*>(rig->host);
}

const GicPeerLayout kLayouts[] = {{"flag byte", sizeof(uint8_t)}, {"watcher word", sizeof(uint64_t)}};

// As GdrFlag::wait finds and clears it.
bool take_flag(Producer* producer) {
    if (__atomic_load_n(&producer->raised, __ATOMIC_ACQUIRE) == 0) return false;
    __atomic_store_n(&producer->raised, 0, __ATOMIC_RELEASE);
    return true;
}

// As uwm_worker_step compares it with what it was; what lies between is handed out one by one.
bool take_step(const uint64_t* word, Watched* watched) {
    if (watched->owed == 0) {
        uint32_t value = static_cast<uint32_t>(__atomic_load_n(word, __ATOMIC_ACQUIRE));
        watched->owed = value - watched->last;
        watched->last = value;
        if (watched->owed == 0) return false;
    }
    watched->owed--;
    return true;
}

bool within(uint64_t at, uint64_t bytes, uint64_t memory, uint64_t size) {
    return at >= memory && at - memory <= size && bytes <= size - (at - memory);
}

// The next operation of the request; false if none was made known, or it isn't of the payload memory.
bool next_of(const GicPeerRig* rig, const Request& known, Watched* watched, GicPeerRequest* request) {
    if (known.slots == 0) return false;
    if (watched->generation != known.generation) {
        watched->generation = known.generation;
        watched->next = 0;
    }
    uint64_t slot = watched->next++ % known.slots * known.stride;
    *request = GicPeerRequest{};
    request->kind = GIC_PEER_WRITE;
    request->bytes = known.bytes;
    request->local = known.local + slot;
    request->remote = known.remote + slot;
    return within(request->local, known.bytes, rig->local, rig->bytes) &&
           within(request->remote, known.bytes, rig->remote, rig->bytes);
}

}  // namespace

extern "C" const GicPeerInfo* gic_peer_info(void) {
    static const GicPeerInfo info = {GIC_PEER_ABI, "fabric-lib", GIC_FABRIC_VERSION,
                                     sizeof(kLayouts) / sizeof(kLayouts[0]), kLayouts};
    return &info;
}

extern "C" void gic_peer_sizes(uint32_t, uint32_t, uint32_t producers, uint64_t* device, uint64_t* host) {
    *device = kDeviceCounters + uint64_t{producers} * kCounterStride;
    *host = pages(sizeof(Side)) + pages(producers * sizeof(Watched)) + pages(producers * sizeof(Producer)) +
            kPage;
}

extern "C" int gic_peer_build(const GicPeerRig* rig, GicPeerBuilt* built, char* why, size_t why_bytes) {
    const char* wrong = nullptr;
    if (rig->abi != GIC_PEER_ABI)
        wrong = "the rig is of another version of gic_peer.h";
    else if (rig->variant >= kVariants)
        wrong = "there is no variant of that number";
    else if (rig->producers == 0)
        wrong = "there are no producers";
    else if (!is_flag(rig->variant) && rig->producers > kWatchers)
        wrong = "fabric-lib has 512 UVM watchers, fewer than there are producers";
    if (wrong != nullptr) {
        std::snprintf(why, why_bytes, "%s", wrong);
        return 1;
    }

    Side* side = new (rig->host) Side{};
    uint8_t* at = rig->host + pages(sizeof(Side));
    side->watched = reinterpret_cast<Watched*>(at);
    at += pages(rig->producers * sizeof(Watched));
    side->producer = reinterpret_cast<Producer*>(at);
    at += pages(rig->producers * sizeof(Producer));
    side->word = reinterpret_cast<uint64_t*>(at);

    new (rig->device)
        State{side->producer, side->word, reinterpret_cast<uint32_t*>(rig->device_at + kDeviceCounters), 1};
    built->state = rig->device_at;
    built->symbols = 0;
    return 0;
}

extern "C" int gic_peer_take(const GicPeerRig* rig, GicPeerRequest* request) {
    Side* side = side_of(rig);
    if (side->taken - side->done == kOrder) return 0;
    for (uint32_t turn = 0; turn < rig->producers; turn++) {
        uint32_t index = side->cursor;
        if (++side->cursor == rig->producers) side->cursor = 0;
        Producer* producer = &side->producer[index];
        Watched* watched = &side->watched[index];
        if (is_flag(rig->variant) ? take_flag(producer) : take_step(&side->word[index], watched)) {
            if (!next_of(rig, producer->request, watched, request)) return -1;
            side->order[side->taken % kOrder] = index;
            request->ticket = side->taken++;
            return 1;
        }
    }
    return 0;
}

extern "C" void gic_peer_done(const GicPeerRig* rig, uint64_t ticket) {
    Side* side = side_of(rig);
    for (; side->done <= ticket && side->done < side->taken; side->done++) {
        Producer* producer = &side->producer[side->order[side->done % kOrder]];
        if (is_flag(rig->variant))
            __atomic_store_n(&producer->completed, 1, __ATOMIC_RELEASE);
        else
            __atomic_store_n(&producer->count, producer->count + 1, __ATOMIC_RELEASE);
    }
}

extern "C" const char* gic_peer_consumer(void) {
    return "minimal consumer of fabric-lib's flags and watchers; the library's own is Rust";
}
