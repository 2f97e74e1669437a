#include "gic/kernels/rate.hpp"
#include "dispatch.hpp"

using namespace gic;

namespace {

template <Order O, Sharing S, CqKind K, Ringing R, u32 MaxBlocks>
bool run(const kernels::RateArgs& a, u32 thread) {
    // Where the caller rings he also says what is signalled; otherwise every WQE is.
    constexpr Signalling kSignalling =
        R == Ringing::deferred || R == Ringing::every_nth ? Signalling::on_request : Signalling::every;
    kernels::rate<Choice<O, S, K, CqLoad::acquire, R, kSignalling, MaxBlocks>>(a, thread);
    return true;
}

}  // namespace

// Built: every ordering, sharing, ringing and CQ kind on RC; WQEs of several blocks on exclusive queue pairs
// whose caller rings.
extern "C" bool gic_host_rate(const RunTimeChoice* c, const kernels::RateArgs* a, u32 thread) {
    if (c->transport != 0 || c->checked || c->cq_load != 1) return false;
    if ((c->ringing >= 2) != (c->signalling == 1)) return false;
    return with<kHostOrders>(c->order, [&](auto order) {
        return with<kCqKinds>(c->cq_kind, [&](auto kind) {
            constexpr Order kOrder = static_cast<Order>(order.value);
            constexpr CqKind kKind = static_cast<CqKind>(kind.value);
            if (c->max_blocks > 1) {
                return c->max_blocks <= 5 && c->sharing == 0 && c->ringing == 2 &&
                       run<kOrder, Sharing::exclusive, kKind, Ringing::deferred, 5>(*a, thread);
            }
            return with<kSharings>(c->sharing, [&](auto sharing) {
                return with<kRingings>(c->ringing, [&](auto ringing) {
                    return run<kOrder, static_cast<Sharing>(sharing.value), kKind,
                               static_cast<Ringing>(ringing.value), 1>(*a, thread);
                });
            });
        });
    });
}
