#include "gic/kernels/direct.hpp"
#include "dispatch.hpp"

using namespace gic;

// A host thread has no bulk copies: both ways of moving are its stores.
extern "C" bool gic_host_direct_latency(u32 op, const kernels::DirectArgs* a) {
    return with<kernels::kOps>(op, [&](auto o) {
        kernels::direct_latency<kernels::Move::store, static_cast<kernels::Op>(o.value)>(*a);
        return true;
    });
}
extern "C" bool gic_host_direct_rate(const kernels::DirectArgs* a, u32 block) {
    kernels::direct_rate<kernels::Move::store>(*a, block);
    return true;
}
extern "C" bool gic_host_direct_round_trip(const kernels::DirectRoundTripArgs* a, u32 side) {
    kernels::direct_round_trip(*a, side);
    return true;
}
