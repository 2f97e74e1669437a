// What differs between the three compilers that read these headers (NVRTC, nvcc, g++), and nothing else:
// integer names, the function qualifier, byte order, the clock, and what a waiting thread does.
// No host library may be included from here or from any other header of this folder.
#pragma once

#if defined(__CUDA_ARCH__)
#define GIC_ON_GPU 1
#else
#define GIC_ON_GPU 0
#endif

// GIC_FN: on the path of every operation. GIC_COLD: waits and failures; kept out of line on the host, where
// every combination of choices is built ahead. GIC_APART: out of line everywhere. On a GPU what such a function
// reaches by address lives in memory, not in registers: it takes and returns values.
#if defined(__CUDACC__)
#define GIC_FN __device__ __forceinline__
#define GIC_COLD __device__
#define GIC_APART inline __device__ __noinline__
#else
#define GIC_FN inline __attribute__((always_inline))
#define GIC_COLD __attribute__((noinline))
#define GIC_APART inline __attribute__((noinline))
#endif

// A condition that seldom holds: its code is laid out behind the rest.
#define GIC_SELDOM(condition) __builtin_expect(!!(condition), 0)

// Unrolls the loop that follows, so that an array which it indexes is kept in registers.
#if defined(__CUDACC__)
#define GIC_UNROLL _Pragma("unroll")
#else
#define GIC_UNROLL
#endif

namespace gic {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

static_assert(sizeof(u32) == 4 && sizeof(u64) == 8, "the wire's integers have fixed widths");

#if !GIC_ON_GPU && !defined(__CUDACC__)
// Called by a waiting host thread: steps a NIC that nobody else drives, or gives the core away.
// One for each thread, set by the launcher; null where spinning is right.
struct HostWait {
    void (*wait)(void* context, u32 spins);
    void* context;
};
extern __thread HostWait host_wait;
#if defined(GIC_MODEL)
extern "C" void gic_model_yield();
extern "C" u64 gic_model_clock();
#endif
#endif

// Four bytes out of eight: `a` has numbers 0 to 3 and `b` 4 to 7. The selector's hexadecimal digits name them, the
// last digit the lowest byte. One instruction on a GPU.
GIC_FN constexpr u32 select_bytes(u32 a, u32 b, u32 selector) {
#if GIC_ON_GPU
    if (!__builtin_is_constant_evaluated()) return __byte_perm(a, b, selector);
#endif
    u64 both = (static_cast<u64>(b) << 32) | a;
    u32 picked = 0;
    for (u32 i = 0; i < 4; i++)
        picked |= (static_cast<u32>(both >> (((selector >> (4 * i)) & 7) * 8)) & 0xff) << (8 * i);
    return picked;
}

// To and from the wire's byte order.
GIC_FN constexpr u32 be32(u32 x) {
#if GIC_ON_GPU
    return select_bytes(x, 0, 0x0123);
#else
    return (x << 24) | ((x & 0xff00u) << 8) | ((x >> 8) & 0xff00u) | (x >> 24);
#endif
}
GIC_FN constexpr u64 be64(u64 x) {
    return (static_cast<u64>(be32(static_cast<u32>(x))) << 32) | be32(static_cast<u32>(x >> 32));
}

// A counter that ticks at a fixed rate while a kernel runs. Its frequency is measured by the launcher.
GIC_FN u64 clock_ticks() {
#if GIC_ON_GPU
    u64 t;
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(t)::"memory");
    return t;
#elif defined(__CUDACC__)
    return 0;
#elif defined(GIC_MODEL)
    return gic_model_clock();
#elif defined(__x86_64__)
    // rdtscp waits for the instructions before it, as a reading at the end of a timed region must.
    u32 aux;
    u64 t = __builtin_ia32_rdtscp(&aux);
    asm volatile("" ::: "memory");
    return t;
#elif defined(__aarch64__)
    u64 t;
    asm volatile("isb; mrs %0, cntvct_el0" : "=r"(t)::"memory");
    return t;
#else
#error "no clock for this host"
#endif
}

// One turn of a wait loop. A GPU thread spins; a host thread pauses, and now and then lets others run.
GIC_FN void relax(u32 spins) {
#if GIC_ON_GPU || defined(__CUDACC__)
    (void)spins;
#elif defined(GIC_MODEL)
    (void)spins;
    gic_model_yield();
#else
    if (host_wait.wait) {
        host_wait.wait(host_wait.context, spins);
        return;
    }
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    asm volatile("yield");
#endif
#endif
}

#if defined(__CUDACC__)
// Set by the launcher to a word in host memory: not 0 there, every wait ends as if its time were over. Null
// where nobody set it.
extern "C" {
inline __device__ const u32* gic_abort_word;
}
#endif

// A wait that ends. The clock is read on every 64th turn only, so that polling stays as fast as it can be.
class Wait {
  public:
    GIC_FN explicit Wait(u64 deadline_ticks) : limit_(deadline_ticks) {}

    // False while there is time left; call once a turn.
    GIC_FN bool expired() {
        relax(spins_);
        spins_ += 1;
        if ((spins_ & 63) != 0) return false;
#if GIC_ON_GPU
        // Reading host memory takes as long as many turns; looked at once early, so that many short waits end, too.
        if ((spins_ & 4095) == 64 && gic_abort_word != nullptr &&
            *static_cast<const volatile u32*>(gic_abort_word) != 0)
            return true;
#endif
        u64 now = clock_ticks();
        if (start_ == 0) start_ = now;
        return now - start_ > limit_;
    }

  private:
    u64 limit_;
    u64 start_ = 0;
    u32 spins_ = 0;
};

}  // namespace gic
