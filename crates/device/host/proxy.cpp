#include "gic/kernels/proxy.hpp"
#include "dispatch.hpp"

#include <cstddef>

using namespace gic;

namespace {

// The run-time form of a ProxyChoice. Mirrored in crates/device/src/proxy.rs.
struct RunTimeProxyChoice {
    u32 handoff, producers, progress, publish;
};

// Built: every hand-off, number of producers and way to learn of room; the store without an ordering with the
// one hand-off that can have it, in its tuned form.
template <class Body>
bool by_choice(const RunTimeProxyChoice& c, Body body) {
    if (c.publish == 1) {
        return c.handoff == 0 && c.progress == 0 && with<kProducers>(c.producers, [&](auto producers) {
                   body(ProxyChoice<Handoff::lap_parity, static_cast<Producers>(producers.value),
                                    Progress::cached, Publish::posted>{});
                   return true;
               });
    }
    return c.publish == 0 && with<kHandoffs>(c.handoff, [&](auto handoff) {
               return with<kProducers>(c.producers, [&](auto producers) {
                   return with<kProgresses>(c.progress, [&](auto progress) {
                       body(ProxyChoice<static_cast<Handoff>(handoff.value),
                                        static_cast<Producers>(producers.value),
                                        static_cast<Progress>(progress.value)>{});
                       return true;
                   });
               });
           });
}

}  // namespace

extern "C" bool gic_host_enqueue(const RunTimeProxyChoice* c, u32 op, const kernels::EnqueueArgs* a,
                                 u32 thread) {
    // Reads and atomics: in one form of each hand-off that takes a descriptor.
    if (op > 1 && (c->producers != 0 || c->progress != 0 || c->publish != 0 || c->handoff == 4)) return false;
    return by_choice(*c,
                     [&](auto choice) {
                         using C = decltype(choice);
                         switch (static_cast<ProxyOp>(op)) {
                         case ProxyOp::put: return kernels::enqueue<C, ProxyOp::put>(*a, thread);
                         case ProxyOp::put_signal:
                             return kernels::enqueue<C, ProxyOp::put_signal>(*a, thread);
                         default: break;
                         }
                         if constexpr (!C::shared && C::progress == Progress::cached &&
                                       C::publish == Publish::release) {
                             if (static_cast<ProxyOp>(op) == ProxyOp::get)
                                 kernels::enqueue<C, ProxyOp::get>(*a, thread);
                             else
                                 kernels::enqueue<C, ProxyOp::fetch_add>(*a, thread);
                         }
                     }) &&
           (op < 2 || op == static_cast<u32>(ProxyOp::get) || op == static_cast<u32>(ProxyOp::fetch_add));
}

extern "C" bool gic_host_proxy_rate(const RunTimeProxyChoice* c, const kernels::ProxyRateArgs* a,
                                    u32 thread) {
    return by_choice(*c, [&](auto choice) { kernels::proxy_rate<decltype(choice)>(*a, thread); });
}

extern "C" bool gic_host_proxy_round_trip(const RunTimeProxyChoice* c, const kernels::ProxyRoundTripArgs* a,
                                          u32 side) {
    if (c->producers != 0) return false;
    return by_choice(*c, [&](auto choice) {
        using C = decltype(choice);
        if constexpr (!C::shared) kernels::proxy_round_trip<C>(*a, side);
    });
}

extern "C" bool gic_host_producer_built(const RunTimeProxyChoice* c) {
    return by_choice(*c, [](auto) {});
}

// One call of a producer, for the tests: pushes `count` descriptors (or asks for as many of the requests that are
// known). The results are the last ticket and a failure; false for a choice that isn't built.
extern "C" bool gic_host_push(const RunTimeProxyChoice* c, const Ring* ring, const Descriptor* d, u64 count,
                              u64* ticket, u64* failure) {
    return by_choice(*c, [&](auto choice) {
        using C = decltype(choice);
        Producer<C> producer(*ring);
        Posted p = {0, {}};
        for (u64 i = 0; i < count && p.failure.ok(); i++) {
            if constexpr (C::handoff == Handoff::mapped_counter)
                p = producer.raise();
            else
                p = producer.push(d[i]);
        }
        producer.save();
        *ticket = p.ticket;
        *failure = p.failure.bits;
    });
}

// Waits for a ticket, or for everything where it is 0; false for a choice that isn't built.
extern "C" bool gic_host_proxy_wait(const RunTimeProxyChoice* c, const Ring* ring, u64 ticket, u64* failure) {
    return by_choice(*c, [&](auto choice) {
        Producer<decltype(choice)> producer(*ring);
        Outcome o = ticket ? producer.wait(ticket) : producer.quiet();
        producer.save();
        *failure = o.failure.bits;
    });
}

extern "C" void gic_host_pack(const Descriptor* d, u64* words) {
    Segment s = d->pack();
    words[0] = s.low;
    words[1] = s.high;
}

// What the Rust mirror says of sizes and offsets, checked against the header's own.
extern "C" bool gic_host_proxy_layouts(const u64* rust, u32 count) {
    using namespace kernels;
    const u64 cpp[] = {
        sizeof(Descriptor),
        offsetof(Descriptor, channel),
        offsetof(Descriptor, size),
        offsetof(Descriptor, source),
        offsetof(Descriptor, destination),
        sizeof(RingProgress),
        offsetof(RingProgress, posted),
        offsetof(RingProgress, completed),
        offsetof(RingProgress, failure),
        sizeof(RingState),
        offsetof(RingState, ready),
        offsetof(RingState, tail),
        offsetof(RingState, failure),
        sizeof(ProxyChannel),
        offsetof(ProxyChannel, remote),
        offsetof(ProxyChannel, signal),
        offsetof(ProxyChannel, result),
        offsetof(ProxyChannel, lkey),
        offsetof(ProxyChannel, rkey),
        offsetof(ProxyChannel, signal_rkey),
        offsetof(ProxyChannel, result_lkey),
        sizeof(Ring),
        offsetof(Ring, flags),
        offsetof(Ring, counter),
        offsetof(Ring, progress),
        offsetof(Ring, state),
        offsetof(Ring, channels),
        offsetof(Ring, deadline),
        offsetof(Ring, log_depth),
        offsetof(Ring, channel_count),
        offsetof(Ring, number),
        offsetof(Ring, qpn),
        sizeof(EnqueueArgs),
        offsetof(EnqueueArgs, channel),
        offsetof(EnqueueArgs, samples),
        offsetof(EnqueueArgs, first),
        offsetof(EnqueueArgs, failure),
        offsetof(EnqueueArgs, until),
        sizeof(ProxyRateArgs),
        offsetof(ProxyRateArgs, window),
        offsetof(ProxyRateArgs, first),
        offsetof(ProxyRateArgs, failure),
        sizeof(ProxyRoundTripArgs),
        offsetof(ProxyRoundTripArgs, inbox),
        offsetof(ProxyRoundTripArgs, failure),
    };
    if (count != sizeof(cpp) / sizeof(cpp[0])) return false;
    for (u32 i = 0; i < count; i++)
        if (cpp[i] != rust[i]) return false;
    return true;
}
