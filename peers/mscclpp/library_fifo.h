/* The library's own consumer, src/core/fifo.cc of the checkout, by itself. What that file takes from the rest of the
 * runtime (allocation, NUMA placement, errors; their headers want files that CMake generates) is stood in for here. */
#pragma once
#include <cstdint>
#include <memory>
#include <mscclpp/fifo.hpp>
#include <stdexcept>

namespace gic {

/* Memory that the library would allocate: handed out in turn, zeroed before. */
struct Arena {
    uint64_t at;
    uint64_t align; /* what the allocator that it stands for aligns to */

    void* take(size_t bytes) {
        uint64_t here = at;
        at += (bytes + align - 1) / align * align;
        return reinterpret_cast<void*>(here);
    }
};

/* Those of the state that is being built: a Fifo's constructor has no argument for them. */
static thread_local Arena* gpu_arena;
static thread_local Arena* host_arena;

struct Keep {
    void operator()(void*) {}
};

}  // namespace gic

#define MSCCLPP_ENV_HPP_
#define MSCCLPP_GPU_UTILS_HPP_
#define MSCCLPP_NUMA_HPP_
#define MSCCLPP_LOGGER_HPP_

namespace mscclpp {

static int getDeviceNumaNode(int) {
    return -1;
}
static void numaBind(int) {}

namespace detail {

template <class T>
using UniqueGpuPtr = std::unique_ptr<T, gic::Keep>;
template <class T>
using UniqueGpuHostPtr = std::unique_ptr<T, gic::Keep>;

template <class T>
auto gpuCallocUnique(size_t count = 1) {
    return UniqueGpuPtr<T>(static_cast<T*>(gic::gpu_arena->take(count * sizeof(T))));
}
template <class T>
auto gpuCallocHostUnique(size_t count = 1) {
    return UniqueGpuHostPtr<T>(static_cast<T*>(gic::host_arena->take(count * sizeof(T))));
}

}  // namespace detail
}  // namespace mscclpp

#define cudaGetDevice(device) (*(device) = 0)
#define MSCCLPP_CUDATHROW(call) call
#define THROW(subsystem, exception, code, ...)                                                               \
    throw std::invalid_argument("the library refuses the FIFO's size")
#include "fifo.cc"
#undef THROW
#undef MSCCLPP_CUDATHROW
#undef cudaGetDevice
