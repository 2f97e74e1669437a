#include "gic/kernels/latency.hpp"
#include "dispatch.hpp"

using namespace gic;

namespace {

// Built: every ordering, CQ kind and CQ load on exclusive and shared RC queue pairs; every ordering on DC; the
// checked mode with one ordering.

template <class C, kernels::Op O>
bool run(const kernels::LatencyArgs& a) {
    kernels::latency<C, O>(a);
    return true;
}

template <kernels::Op O>
bool by_choice(const RunTimeChoice& c, const kernels::LatencyArgs& a) {
    constexpr u32 kBlocks = O == kernels::Op::put_inline ? 5 : 1;
    if (c.ringing != 0 || c.signalling != 0 || c.sharing > 1) return false;
    if (c.checked) {
        return c.order == 1 && c.sharing == 0 && c.transport == 0 &&
               with<kCqKinds>(c.cq_kind, [&](auto kind) {
                   return run<Choice<Order::gpu_release, Sharing::exclusive, static_cast<CqKind>(kind.value),
                                     CqLoad::acquire, Ringing::each, Signalling::every, kBlocks,
                                     Transport::rc, true>,
                              O>(a);
               });
    }
    if (c.transport == 1) {
        return c.cq_kind == 1 && c.sharing == 0 && with<kHostOrders>(c.order, [&](auto order) {
                   return run<Choice<static_cast<Order>(order.value), Sharing::exclusive, CqKind::collapsed,
                                     CqLoad::acquire, Ringing::each, Signalling::every, 5, Transport::dc>,
                              O>(a);
               });
    }
    return with<kHostOrders>(c.order, [&](auto order) {
        return with<2>(c.sharing, [&](auto sharing) {
            return with<kCqKinds>(c.cq_kind, [&](auto kind) {
                return with<kCqLoads>(c.cq_load, [&](auto load) {
                    return run<Choice<static_cast<Order>(order.value), static_cast<Sharing>(sharing.value),
                                      static_cast<CqKind>(kind.value), static_cast<CqLoad>(load.value),
                                      Ringing::each, Signalling::every, kBlocks>,
                               O>(a);
                });
            });
        });
    });
}

}  // namespace

extern "C" bool gic_host_latency(const RunTimeChoice* c, u32 op, const kernels::LatencyArgs* a) {
    return with<kernels::kOps>(op,
                               [&](auto o) { return by_choice<static_cast<kernels::Op>(o.value)>(*c, *a); });
}
