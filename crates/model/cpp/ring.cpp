// A proxy ring's producers, for choices given at run time.
#include "dispatch.hpp"
#include "gic/proxy.hpp"

using namespace gic;

namespace {

// Mirrored in crates/device/src/proxy.rs.
struct RunTimeProxyChoice {
    u32 handoff, producers, progress, publish;
};

template <class Body>
bool chosen(const RunTimeProxyChoice& c, Body body) {
    return with<kProducers>(c.producers, [&](auto producers) {
        constexpr Producers kP = static_cast<Producers>(producers.value);
        if (c.publish == static_cast<u32>(Publish::posted)) {
            if (c.handoff != 0 || c.progress != 0) return false;
            body(ProxyChoice<Handoff::lap_parity, kP, Progress::cached, Publish::posted>{});
            return true;
        }
        return with<kHandoffs>(c.handoff, [&](auto handoff) {
            return with<kProgresses>(c.progress, [&](auto progress) {
                body(ProxyChoice<static_cast<Handoff>(handoff.value), kP,
                                 static_cast<Progress>(progress.value)>{});
                return true;
            });
        });
    });
}

}  // namespace

// Pushes a descriptor, or asks for the next known request where there is none. A lone producer's indices are
// read from the ring's state and written back.
extern "C" bool gic_modelled_push(const RunTimeProxyChoice* c, const Ring* ring, const Descriptor* d,
                                  u64* ticket, u64* failure) {
    return chosen(*c, [&](auto choice) {
        using C = decltype(choice);
        Producer<C> producer(*ring);
        Posted p;
        if constexpr (C::handoff == Handoff::mapped_counter)
            p = producer.raise();
        else
            p = producer.push(*d);
        producer.save();
        *ticket = p.ticket;
        *failure = p.failure.bits;
    });
}

// Waits for a ticket, or for everything where it is null; 1 is done, 2 an error.
extern "C" bool gic_modelled_ring_wait(const RunTimeProxyChoice* c, const Ring* ring, const u64* ticket,
                                       u32* status, u64* failure) {
    return chosen(*c, [&](auto choice) {
        Producer<decltype(choice)> producer(*ring);
        Outcome o = ticket ? producer.wait(*ticket) : producer.quiet();
        producer.save();
        *status = static_cast<u32>(o.status);
        *failure = o.failure.bits;
    });
}
