#include "gic/kernels/bare.hpp"
#include "dispatch.hpp"

using namespace gic;

namespace {

template <kernels::Op O>
bool by_choice(const RunTimeChoice& c, const kernels::LatencyArgs& a) {
    if (c.sharing != 0 || c.cq_kind != 1 || c.ringing != 0 || c.signalling != 0 || c.transport != 0)
        return false;
    return with<kHostOrders>(c.order, [&](auto order) {
        return with<kCqLoads>(c.cq_load, [&](auto load) {
            constexpr Order kOrder = static_cast<Order>(order.value);
            constexpr CqLoad kLoad = static_cast<CqLoad>(load.value);
            if (c.checked)
                kernels::bare<Choice<kOrder, Sharing::exclusive, CqKind::collapsed, kLoad, Ringing::each,
                                     Signalling::every, 1, Transport::rc, true>,
                              O>(a);
            else
                kernels::bare<Choice<kOrder, Sharing::exclusive, CqKind::collapsed, kLoad>, O>(a);
            return true;
        });
    });
}

}  // namespace

// Built: puts, and puts of 8 bytes inline, on an exclusive RC queue pair with a collapsed CQ.
extern "C" bool gic_host_bare(const RunTimeChoice* c, u32 op, const kernels::LatencyArgs* a) {
    if (op == static_cast<u32>(kernels::Op::put)) return by_choice<kernels::Op::put>(*c, *a);
    return op == static_cast<u32>(kernels::Op::put_inline) && by_choice<kernels::Op::put_inline>(*c, *a);
}
