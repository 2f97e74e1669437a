#include "dispatch.hpp"
#include "gic/kernels/rate.hpp"

using namespace gic;

// Built: every ordering, sharing, ringing and CQ kind on RC. Where the caller rings he also says what is
// signalled; otherwise every WQE is.
extern "C" bool gic_host_rate(const RunTimeChoice* c, const kernels::RateArgs* a, u32 thread) {
    if (c->transport != 0 || c->checked || c->cq_load != 1 || c->max_blocks > 1) return false;
    if ((c->ringing == 2) != (c->signalling == 1)) return false;
    return with<kHostOrders>(c->order, [&](auto order) {
        return with<kSharings>(c->sharing, [&](auto sharing) {
            return with<kRingings>(c->ringing, [&](auto ringing) {
                return with<kCqKinds>(c->cq_kind, [&](auto kind) {
                    constexpr Ringing kRinging = static_cast<Ringing>(ringing.value);
                    constexpr Signalling kSignalling =
                        kRinging == Ringing::deferred ? Signalling::on_request : Signalling::every;
                    kernels::rate<Choice<static_cast<Order>(order.value), static_cast<Sharing>(sharing.value),
                                         static_cast<CqKind>(kind.value), CqLoad::acquire, kRinging,
                                         kSignalling>>(*a, thread);
                    return true;
                });
            });
        });
    });
}
