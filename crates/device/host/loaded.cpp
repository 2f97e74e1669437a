#include "gic/kernels/loaded.hpp"
#include "dispatch.hpp"

#include <cstddef>
#include <initializer_list>

using namespace gic;

namespace {

// The run-time form of a ProxyChoice. Mirrored in crates/device/src/proxy.rs.
struct RunTimeProxyChoice {
    u32 handoff, producers, progress, publish;
};

// Probe and background: all on queues that are shared, the probe on one of its own, everybody on one of his own.
template <class Body>
bool by_sharing(u32 probe, u32 background, Body body) {
    if (probe == 1) return background == 1 && body(Constant<1>{}, Constant<1>{});
    return probe == 0 && with<2>(background, [&](auto b) { return body(Constant<0>{}, b); });
}

}  // namespace

// Built: every ordering on RC queue pairs with collapsed CQs that are acquired.
extern "C" bool gic_host_loaded(const RunTimeChoice* probe, const RunTimeChoice* background,
                                const kernels::LoadedArgs* a, u32 thread) {
    for (const RunTimeChoice* c : {probe, background}) {
        if (c->order != probe->order || c->cq_kind != 1 || c->cq_load != 1 || c->ringing != 0 ||
            c->signalling != 0 || c->transport != 0 || c->checked != 0 || c->max_blocks != 1)
            return false;
    }
    return with<kHostOrders>(probe->order, [&](auto order) {
        return by_sharing(probe->sharing, background->sharing, [&](auto p, auto b) {
            constexpr Order kOrder = static_cast<Order>(order.value);
            kernels::loaded<Choice<kOrder, static_cast<Sharing>(p.value)>,
                            Choice<kOrder, static_cast<Sharing>(b.value)>>(*a, thread);
            return true;
        });
    });
}

// Built: every hand-off that takes descriptors, with both ways to learn of room.
extern "C" bool gic_host_proxy_loaded(const RunTimeProxyChoice* probe, const RunTimeProxyChoice* background,
                                      const kernels::ProxyLoadedArgs* a, u32 thread) {
    if (probe->handoff != background->handoff || probe->progress != background->progress ||
        probe->publish != 0 || background->publish != 0)
        return false;
    return with<kHandoffs>(probe->handoff, [&](auto handoff) {
        constexpr Handoff kHandoff = static_cast<Handoff>(handoff.value);
        if constexpr (kHandoff == Handoff::mapped_counter) {
            return false;
        } else {
            return with<kProgresses>(probe->progress, [&](auto progress) {
                constexpr Progress kProgress = static_cast<Progress>(progress.value);
                return by_sharing(probe->producers, background->producers, [&](auto p, auto b) {
                    kernels::proxy_loaded<ProxyChoice<kHandoff, static_cast<Producers>(p.value), kProgress>,
                                          ProxyChoice<kHandoff, static_cast<Producers>(b.value), kProgress>>(
                        *a, thread);
                    return true;
                });
            });
        }
    });
}

// What the Rust mirror says of sizes and offsets, checked against the header's own.
extern "C" bool gic_host_loaded_layouts(const u64* rust, u32 count) {
    using namespace kernels;
    const u64 cpp[] = {
        sizeof(Load),
        offsetof(Load, window),
        offsetof(Load, slots),
        offsetof(Load, background_at),
        offsetof(Load, interval),
        offsetof(Load, first),
        offsetof(Load, control),
        offsetof(Load, target),
        offsetof(Load, inbox),
        offsetof(Load, failure),
        sizeof(LoadedArgs),
        offsetof(LoadedArgs, answer_remote),
        offsetof(LoadedArgs, load),
        sizeof(ProxyLoadedArgs),
        offsetof(ProxyLoadedArgs, answer_local),
        offsetof(ProxyLoadedArgs, load),
        kStop,
        kArrived,
        kProgress,
        kValueShift,
        kMaxWindow,
    };
    if (count != sizeof(cpp) / sizeof(cpp[0])) return false;
    for (u32 i = 0; i < count; i++)
        if (cpp[i] != rust[i]) return false;
    return true;
}
