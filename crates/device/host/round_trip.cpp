#include "gic/kernels/round_trip.hpp"
#include "dispatch.hpp"

using namespace gic;

extern "C" bool gic_host_round_trip(const RunTimeChoice* c, const kernels::RoundTripArgs* a, u32 side) {
    if (c->transport != 0 || c->sharing != 0 || c->ringing != 0 || c->signalling != 0) return false;
    return with<kHostOrders>(c->order, [&](auto order) {
        return with<kCqKinds>(c->cq_kind, [&](auto kind) {
            return with<kCqLoads>(c->cq_load, [&](auto load) {
                kernels::round_trip<Choice<static_cast<Order>(order.value), Sharing::exclusive,
                                           static_cast<CqKind>(kind.value), static_cast<CqLoad>(load.value)>>(
                    *a, side);
                return true;
            });
        });
    });
}
