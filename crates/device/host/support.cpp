#include "gic/gda.hpp"

namespace gic {
__thread HostWait host_wait;
}

using namespace gic;

extern "C" void gic_host_set_wait(void (*wait)(void*, u32), void* context) { host_wait = {wait, context}; }

extern "C" u64 gic_host_clock() { return clock_ticks(); }

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
extern "C" u64 gic_host_doorbell(u64 producer, u32 qpn) { return doorbell_value(producer, qpn); }
extern "C" u32 gic_host_record(u64 producer) { return record_value(producer); }

namespace {
using Plain = Choice<Order::gpu_release, Sharing::exclusive, CqKind::collapsed, CqLoad::acquire, Ringing::each,
                     Signalling::on_request, 5>;
using Dc = Choice<Order::gpu_release, Sharing::exclusive, CqKind::collapsed, CqLoad::acquire, Ringing::each,
                  Signalling::on_request, 5, Transport::dc>;

template <class C>
Posted post_one(Endpoint<C>& e, u32 op, Remote remote, Local local, u32 bytes, u64 a, u64 b, const How& how) {
    switch (op) {
    case 0x00: return e.nop(how);
    case 0x08: return e.put(remote, local, bytes, how);
    case 0x88: return e.put_inline(remote, reinterpret_cast<const u8*>(local.address), bytes, how);
    case 0x89: return e.put_value(remote, a, how);
    case 0x10: return e.get(local, remote, bytes, how);
    case 0x11: return e.compare_swap(remote, a, b, local, how);
    case 0x12: return e.fetch_add(remote, a, local, how);
    case 0x15: return e.fetch_add32(remote, static_cast<u32>(a), local, how);
    default: return e.put_signal(remote, local, bytes, {a, static_cast<u32>(b)}, 1, local, how);
    }
}
}  // namespace

// Posts one operation, so that its bytes can be compared with golden ones. `op` is the opcode; 0x88 and 0x89
// are inline writes by address and by value.
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
