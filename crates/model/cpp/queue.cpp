// A queue pair's operations, for choices given at run time: each WQE is a NOP whose immediate tells it apart.
#include "dispatch.hpp"
#include "gic/gda.hpp"

using namespace gic;

namespace gic {
__thread HostWait host_wait;
}

namespace {

template <class C>
Posted post(Endpoint<C>& e, const Qp& qp, u32 value, const How& how) {
    return e.post(1, how, [&](u64 index, u32 flags) {
        qp.sq.store(index, 0, control_segment(Opcode::nop, index, qp.qpn, 1, flags, value));
    });
}

template <Order O, Sharing S, CqKind K, Ringing R>
using Of =
    Choice<O, S, K, CqLoad::acquire, R,
           R == Ringing::deferred || R == Ringing::every_nth ? Signalling::on_request : Signalling::every>;

template <class Run>
bool chosen(const RunTimeChoice& c, Run run) {
    return with<kHostOrders>(c.order, [&](auto order) {
        return with<2>(c.sharing, [&](auto sharing) {
            return with<kCqKinds>(c.cq_kind, [&](auto kind) {
                return with<kRingings>(c.ringing, [&](auto ringing) {
                    return run(Of<static_cast<Order>(order.value), static_cast<Sharing>(sharing.value),
                                  static_cast<CqKind>(kind.value), static_cast<Ringing>(ringing.value)>{});
                });
            });
        });
    });
}

}  // namespace

// Posts; an exclusive queue's indices are read from its state and written back.
extern "C" bool gic_modelled_post(const RunTimeChoice* c, const Qp* qp, u32 value, bool ring, u64* ticket,
                                  u64* failure) {
    return chosen(*c, [&](auto choice) {
        Endpoint<decltype(choice)> e(*qp);
        How how;
        how.ring = how.signal = ring;
        how.nth = 3;
        Posted p = post(e, *qp, value, how);
        e.save();
        *ticket = p.ticket;
        *failure = p.failure.bits;
        return true;
    });
}

// A fetch-and-add or an inline write of `value`, as executed by a NIC that is there.
extern "C" bool gic_modelled_operate(const RunTimeChoice* c, const Qp* qp, bool add, Remote remote,
                                     Local local, u64 value, bool ring, u64* ticket, u64* failure) {
    return chosen(*c, [&](auto choice) {
        Endpoint<decltype(choice)> e(*qp);
        How how;
        how.ring = how.signal = ring;
        how.nth = 3;
        Posted p = add ? e.fetch_add(remote, value, local, how) : e.put_value(remote, value, how);
        e.save();
        *ticket = p.ticket;
        *failure = p.failure.bits;
        return true;
    });
}

// Waits for a ticket; 1 is done, 2 an error.
extern "C" bool gic_modelled_wait(const RunTimeChoice* c, const Qp* qp, u64 ticket, u32* status,
                                  u64* failure) {
    return chosen(*c, [&](auto choice) {
        Endpoint<decltype(choice)> e(*qp);
        Outcome o = e.wait(ticket);
        e.save();
        *status = static_cast<u32>(o.status);
        *failure = o.failure.bits;
        return true;
    });
}

extern "C" bool gic_modelled_quiet(const RunTimeChoice* c, const Qp* qp, u32* status, u64* failure) {
    return chosen(*c, [&](auto choice) {
        Endpoint<decltype(choice)> e(*qp);
        Outcome o = e.quiet();
        e.save();
        *status = static_cast<u32>(o.status);
        *failure = o.failure.bits;
        return true;
    });
}
