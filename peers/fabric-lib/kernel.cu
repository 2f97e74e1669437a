// fabric-lib's hand-offs by its own device functions (core/memory.cuh): a byte flag as its all-to-all kernels raise it,
// and the word of a UVM watcher.
#include "gic_peer.cuh"

#include "layout.h"

namespace fabric_lib {

struct Thread {
    Producer* mine;

    __device__ explicit Thread(Producer* producer) : mine(producer) {}

    // What a user submits once, from the CPU.
    __device__ void prepare(uint64_t remote, uint64_t local, uint32_t bytes, uint64_t slots,
                            uint64_t stride) {
        if (threadIdx.x != 0) return;
        Request& request = mine->request;
        request = {remote, local, slots, stride, bytes, request.generation + 1};
        __threadfence_system();
    }
};

// As a2a_dispatch_send.cu and a2a_combine_send.cu do it: blocks count what they copied, the last one raises the flag.
// Here a thread's operation is one block's share of one.
template <bool kCount>
struct Flag : Thread {
    uint32_t* grid_counter;
    uint32_t blocks;

    __device__ Flag(uint64_t state, uint32_t thread)
        : Thread(reinterpret_cast<const State*>(state)->producer + thread) {
        const State& s = *reinterpret_cast<const State*>(state);
        grid_counter = s.grid_counter + thread * (kCounterStride / sizeof(uint32_t));
        blocks = s.blocks;
    }
    __device__ __forceinline__ void issue(uint64_t, uint64_t, uint32_t, uint64_t) {
        if constexpr (kCount) {
            if (rose::add_release_gpu_u32(grid_counter, 1) + 1 == blocks) {
                rose::st_mmio_b8(&mine->raised, 1);
                *grid_counter = 0;
            }
        } else {
            rose::st_mmio_b8(&mine->raised, 1);
        }
    }
    // A flag of the CPU's, as those kernels wait for dispatch_recv_flag, and clear it.
    __device__ __forceinline__ int complete() {
        while (rose::ld_mmio_b8(&mine->completed) == 0) {
        }
        mine->completed = 0;
        return 0;
    }
};

// A batch is one step of the word.
template <bool kRelease>
struct Watcher : Thread {
    uint32_t* word;
    uint32_t count;

    __device__ Watcher(uint64_t state, uint32_t thread)
        : Thread(reinterpret_cast<const State*>(state)->producer + thread),
          word(reinterpret_cast<uint32_t*>(reinterpret_cast<const State*>(state)->word + thread)),
          count(rose::ld_acquire_u32(word)) {}

    __device__ __forceinline__ void raise() {
        if constexpr (kRelease)
            rose::st_release_u32(word, count);
        else
            rose::st_relaxed_u32(word, count);
    }
    __device__ __forceinline__ void issue(uint64_t, uint64_t, uint32_t, uint64_t) {
        count++;
        raise();
    }
    __device__ __forceinline__ void post(uint64_t, uint64_t, uint32_t, uint64_t, bool last) {
        count++;
        if (last) raise();
    }
    __device__ __forceinline__ int complete() {
        while (rose::ld_acquire_u32(reinterpret_cast<uint32_t*>(&mine->count)) != count) {
        }
        return 0;
    }
};

using CountedFlag = Flag<true>;
using BareFlag = Flag<false>;
using RelaxedWatcher = Watcher<false>;
using ReleasedWatcher = Watcher<true>;

}  // namespace fabric_lib

GIC_PEER_LATENCY(flag_put, fabric_lib::CountedFlag)
GIC_PEER_ROUND_TRIP(flag, fabric_lib::CountedFlag)

GIC_PEER_LATENCY(watcher_put, fabric_lib::RelaxedWatcher)
GIC_PEER_RATE(watcher, fabric_lib::RelaxedWatcher)
GIC_PEER_ROUND_TRIP(watcher, fabric_lib::RelaxedWatcher)

GIC_PEER_LATENCY(watcher_release_put, fabric_lib::ReleasedWatcher)
GIC_PEER_RATE(watcher_release, fabric_lib::ReleasedWatcher)
GIC_PEER_ROUND_TRIP(watcher_release, fabric_lib::ReleasedWatcher)

GIC_PEER_LATENCY(no_count_put, fabric_lib::BareFlag)
