#include "dispatch.hpp"
#include "operation.hpp"

using namespace gic;

namespace {

// Mirrored in crates/device/src/program.rs.
struct Step {
    Remote remote;
    Local local;
    u64 a, b;
    u32 op, bytes;
    u32 ring, signal, fence;
    u32 then;  // 0 nothing, 1 wait for it, 2 quiet
};
static_assert(sizeof(Step) == 72, "mirrored by the host");

struct Done {
    u64 ticket;
    u64 posted;   // failure of the post
    u64 failure;  // of the wait or quiet
    u32 status;
    u32 pad;
};

template <class C>
bool run(const Qp& qp, const Step* steps, u64 count, const AddressVector* av, Done* done) {
    Endpoint<C> e(qp);
    for (u64 i = 0; i < count; i++) {
        const Step& s = steps[i];
        How how;
        how.ring = s.ring;
        how.nth = 5;
        how.signal = s.signal;
        how.fence = s.fence;
        how.av = av;
        Posted p = post_one(e, s.op, s.remote, s.local, s.bytes, s.a, s.b, how);
        done[i] = {p.ticket, p.failure.bits, p.failure.bits, static_cast<u32>(Status::error), 0};
        if (!p.failure.ok()) continue;
        Outcome o = {Status::pending, {}};
        if (s.then == 1) o = e.wait(p.ticket);
        if (s.then == 2) o = e.quiet();
        done[i].status = static_cast<u32>(o.status);
        done[i].failure = o.failure.bits;
    }
    for (u64 i = 0; i < count; i++) {
        if (done[i].status != static_cast<u32>(Status::pending)) continue;
        Outcome o = e.wait(done[i].ticket);
        done[i].status = static_cast<u32>(o.status);
        done[i].failure = o.failure.bits;
    }
    e.save();
    return true;
}

template <Order O, Sharing S, CqKind K, CqLoad L, Ringing R, u32 Blocks, Transport T, bool Checked>
using Of =
    Choice<O, S, K, L, R,
           R == Ringing::deferred || R == Ringing::every_nth ? Signalling::on_request : Signalling::every,
           Blocks, T, Checked>;

// Every ordering on every sharing and CQ kind; every other choice with one ordering.
template <Sharing S, CqKind K, class Run>
bool by_rest(const RunTimeChoice& c, Run run) {
    constexpr Order kOrder = Order::gpu_release;
    constexpr Transport kRc = Transport::rc;
    if ((c.ringing >= 2) != (c.signalling == 1)) return false;
    if (c.order != static_cast<u32>(kOrder)) {
        return c.cq_load == 1 && c.ringing == 0 && c.max_blocks == 1 && c.transport == 0 && !c.checked &&
               with<kHostOrders>(c.order, [&](auto order) {
                   return run(Of<static_cast<Order>(order.value), S, K, CqLoad::acquire, Ringing::each, 1,
                                 kRc, false>{});
               });
    }
    if (c.transport == 1) {
        return c.cq_load == 1 && c.ringing == 0 && c.max_blocks == 5 && !c.checked &&
               run(Of<kOrder, S, K, CqLoad::acquire, Ringing::each, 5, Transport::dc, false>{});
    }
    if (c.cq_load == 0) {
        return c.ringing == 0 && c.max_blocks == 1 && !c.checked &&
               run(Of<kOrder, S, K, CqLoad::plain, Ringing::each, 1, kRc, false>{});
    }
    if (c.max_blocks == 5) {
        return c.ringing == 0 && !c.checked &&
               run(Of<kOrder, S, K, CqLoad::acquire, Ringing::each, 5, kRc, false>{});
    }
    return c.max_blocks == 1 && with<kRingings>(c.ringing, [&](auto ringing) {
               constexpr Ringing kRinging = static_cast<Ringing>(ringing.value);
               if (c.checked) return run(Of<kOrder, S, K, CqLoad::acquire, kRinging, 1, kRc, true>{});
               return run(Of<kOrder, S, K, CqLoad::acquire, kRinging, 1, kRc, false>{});
           });
}

}  // namespace

extern "C" bool gic_host_program(const RunTimeChoice* c, const Qp* qp, const Step* steps, u64 count,
                                 const AddressVector* av, Done* done) {
    return c->sharing < 2 &&
           with<2>(
               c->sharing,
               [&](auto sharing) {
                   return with<kCqKinds>(c->cq_kind, [&](auto kind) {
                       return by_rest<static_cast<Sharing>(sharing.value), static_cast<CqKind>(kind.value)>(
                           *c,
                           [&](auto choice) { return run<decltype(choice)>(*qp, steps, count, av, done); });
                   });
               });
}
