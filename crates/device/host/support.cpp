#include "operation.hpp"

#include <cstddef>

namespace gic {
__thread HostWait host_wait;
}

using namespace gic;

extern "C" void gic_host_set_wait(void (*wait)(void*, u32), void* context) {
    host_wait = {wait, context};
}

extern "C" u64 gic_host_clock() {
    return clock_ticks();
}

// For the tests that hold the header to crates/wire and to the Rust mirror of the types.
extern "C" u32 gic_host_required_scope(u32 observer, u32 memory) {
    return static_cast<u32>(required_scope(static_cast<Observer>(observer), static_cast<Memory>(memory)));
}
extern "C" bool gic_host_is_safe(u32 order, u32 observer, u32 memory) {
    return is_safe(static_cast<Order>(order), static_cast<Observer>(observer), static_cast<Memory>(memory));
}
extern "C" u64 gic_host_rebuild_index(u64 consumed, u64 rung, u32 counter) {
    return rebuild_index(consumed, rung, counter);
}
extern "C" u64 gic_host_failure(u32 why, u32 qpn, u32 index, u32 syndrome, u32 vendor) {
    return Failure::of(static_cast<Why>(why), qpn, index, syndrome, vendor).bits;
}
extern "C" u64 gic_host_doorbell(u64 producer, u32 qpn) {
    return doorbell_value(producer, qpn);
}
extern "C" u32 gic_host_record(u64 producer) {
    return record_value(producer);
}
extern "C" bool gic_host_layouts(const u64* rust, u32 count) {
    const u64 cpp[] = {
        sizeof(QpState),
        offsetof(QpState, reserved),
        offsetof(QpState, ready),
        offsetof(QpState, rung),
        offsetof(QpState, consumed),
        offsetof(QpState, cq_next),
        offsetof(QpState, failure),
        sizeof(Qp),
        offsetof(Qp, sq.base),
        offsetof(Qp, sq.log_blocks),
        offsetof(Qp, record),
        offsetof(Qp, doorbell),
        offsetof(Qp, cq),
        offsetof(Qp, cq_record),
        offsetof(Qp, state),
        offsetof(Qp, deadline),
        offsetof(Qp, qpn),
        offsetof(Qp, log_cq),
        sizeof(Remote),
        offsetof(Remote, rkey),
        sizeof(Local),
        offsetof(Local, lkey),
        sizeof(AddressVector),
    };
    if (count != sizeof(cpp) / sizeof(cpp[0])) return false;
    for (u32 i = 0; i < count; i++)
        if (cpp[i] != rust[i]) return false;
    return true;
}

namespace {
using Plain = Choice<Order::gpu_release, Sharing::exclusive, CqKind::collapsed, CqLoad::acquire,
                     Ringing::each, Signalling::on_request, 5>;
using Dc = Choice<Order::gpu_release, Sharing::exclusive, CqKind::collapsed, CqLoad::acquire, Ringing::each,
                  Signalling::on_request, 5, Transport::dc>;
}  // namespace

// Posts one operation, so that its bytes can be compared with golden ones.
extern "C" u64 gic_host_post_one(const Qp* qp, u32 op, Remote remote, Local local, u32 bytes, u64 a, u64 b,
                                 bool signal, bool fence, const AddressVector* av, u64* failure) {
    How how;
    how.signal = signal;
    how.fence = fence;
    how.av = av;
    Posted p;
    if (av) {
        Endpoint<Dc> e(*qp);
        p = post_one(e, op, remote, local, bytes, a, b, how);
        e.save();
    } else {
        Endpoint<Plain> e(*qp);
        p = post_one(e, op, remote, local, bytes, a, b, how);
        e.save();
    }
    *failure = p.failure.bits;
    return p.ticket;
}
