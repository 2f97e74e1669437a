/* What the GPU and the CPU share. fabric-lib's device code has no structures: a flag is a byte, a watcher a 64-bit
 * word, and both are pointers in its kernels' arguments. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#define GIC_FABRIC_VERSION "244600375fe9"

#ifdef __CUDACC__
#include "core/memory.cuh"

#include <type_traits>

#define GIC_FABRIC(what) "fabric-lib " GIC_FABRIC_VERSION ": " what
static_assert(std::is_same<decltype(&rose::st_mmio_b8), void (*)(uint8_t*, uint8_t)>::value,
              GIC_FABRIC("st_mmio_b8 is void(uint8_t*, uint8_t)"));
static_assert(std::is_same<decltype(&rose::ld_mmio_b8), uint8_t (*)(uint8_t*)>::value,
              GIC_FABRIC("ld_mmio_b8 is uint8_t(uint8_t*)"));
static_assert(std::is_same<decltype(&rose::add_release_gpu_u32), uint32_t (*)(uint32_t*, uint32_t)>::value,
              GIC_FABRIC("add_release_gpu_u32 is uint32_t(uint32_t*, uint32_t)"));
static_assert(std::is_same<decltype(&rose::st_release_u32), void (*)(uint32_t*, uint32_t)>::value,
              GIC_FABRIC("st_release_u32 is void(uint32_t*, uint32_t)"));
static_assert(std::is_same<decltype(&rose::st_relaxed_u32), void (*)(uint32_t*, uint32_t)>::value,
              GIC_FABRIC("st_relaxed_u32 is void(uint32_t*, uint32_t)"));
static_assert(std::is_same<decltype(&rose::ld_acquire_u32), uint32_t (*)(uint32_t*)>::value,
              GIC_FABRIC("ld_acquire_u32 is uint32_t(uint32_t*)"));
#endif

namespace fabric_lib {

/* As the adapter numbers them; `adapter.rs` has their names. */
enum Variant : uint32_t {
    kFlag,
    kWatcher,
    kWatcherRelease,
    kNoCount,
    kVariants
};

/* UvmWatcherContext: a page of words, one a watcher. */
constexpr uint32_t kWatchers = 4096 / sizeof(uint64_t);

/* The request that a producer's CPU knows: operation i of it is from and to slot i mod `slots`. Written by its thread
 * before the first raise; a new generation begins with operation 0. */
struct Request {
    uint64_t remote;
    uint64_t local;
    uint64_t slots;
    uint64_t stride;
    uint32_t bytes;
    uint32_t generation;
};

/* A producer's words, in host memory. */
struct Producer {
    alignas(64) uint8_t raised;    /* GdrFlag: by the GPU, cleared by the CPU */
    alignas(64) uint8_t completed; /* GdrFlag: by the CPU, cleared by the GPU */
    alignas(64) uint64_t count;    /* of completed operations, for watchers */
    alignas(64) Request request;
};

/* What a kernel is told. */
struct State {
    Producer* producer;
    uint64_t* word;         /* watchers' */
    uint32_t* grid_counter; /* 256 bytes apart, in GPU memory */
    uint32_t blocks;        /* that a flag waits for */
};

constexpr uint32_t kCounterStride = 256;

static_assert(sizeof(Request) == 40, "the CPU and the GPU read the same request");
static_assert(sizeof(Producer) == 256, "the CPU and the GPU read the same words");

}  // namespace fabric_lib
