// What a put costs without a library: the stores and the wait of one put, written out for one case.
//
// The reference that mini-gda is measured beside. Only for an exclusive RC queue pair with a collapsed CQ, every
// WQE signalled and rung for, one put at a time. There is no check of a length, of room in the queue or of a
// failure, and no state that outlives the loop but the one index: a queue pair that fails is seen as a deadline
// that has passed. The stores are those of every put, in the same order and of the same kind.
#pragma once

#include "gic/kernels/latency.hpp"

namespace gic {
namespace kernels {

// With a checked choice it makes the checks that mini-gda's put makes, of length and of room: what the same code costs where it is written in place.
//
// `O` is Op::put or Op::put_inline, which carries 8 bytes. The arguments are latency's; `qps` is 1, and the queue
// is at least 2 blocks deep.
template <class C, Op O>
GIC_FN void bare(const LatencyArgs& a) {
    static_assert(O == Op::put || O == Op::put_inline, "a put, or one of 8 bytes inline");
    static_assert(!C::shared && C::cq_kind == CqKind::collapsed && C::transport == Transport::rc &&
                      C::ringing == Ringing::each && C::signalling == Signalling::every,
                  "one thread, one WQE, one doorbell, one CQE");
    const Qp qp = a.qp[0];
    u64 head = qp.state->reserved;
    u64 consumed = head;
    const u32 mask = qp.sq.blocks() - 1;
    const u64* tail = reinterpret_cast<const u64*>(qp.cq + 56);
    u64 n = a.warmup + a.samples;
    u64 i = 0;
    for (; i < n; i++) {
        u64 slot = (i % a.slots) * a.stride;
        u64 local = a.local.address + slot;
        u64 remote = a.remote.address + slot;
        write_payload(local, a.bytes, a.first + i);

        u64 start = clock_ticks();
        if constexpr (C::checked) {
            Why why = a.bytes == 0 || a.bytes > kMaxMessage  ? Why::bad_length
                      : head + 1 - consumed > qp.sq.blocks() ? Why::deadline_space
                                                             : Why::none;
            if (GIC_SELDOM(why != Why::none)) {
                *a.failure = Failure::of(why, qp.qpn, static_cast<u32>(head)).bits;
                return;
            }
        }
        u8* wqe = qp.sq.base + static_cast<u64>(head & mask) * kBlockBytes;
        Segment s = control_segment(Opcode::rdma_write, head, qp.qpn, 3, kCqUpdate);
        mem::store_slot16(wqe, s.low, s.high);
        s = remote_segment(remote, a.remote.rkey);
        mem::store_slot16(wqe + 16, s.low, s.high);
        if constexpr (O == Op::put) {
            s = data_segment(local, a.bytes, a.local.lkey);
        } else {
            u64 value = *reinterpret_cast<const u64*>(local);
            s = {be32(kInlineHeader | 8) | (value << 32), value >> 32};
        }
        mem::store_slot16(wqe + 32, s.low, s.high);
        head += 1;
        Ordering<C::order>::write_record(qp.record, record_value(head));
        Ordering<C::order>::ring(qp.doorbell, doorbell_value(head, qp.qpn));
        u64 issued = clock_ticks();

        // The last CQE's counter is that of the put.
        Wait time(qp.deadline);
        bool late = false;
        u64 seen;
        for (;;) {
            seen = load_completion<C::cq_load>(tail);
            // Opcode 0 and the counter, in memory: counter (2 bytes), signature, opcode and owner.
            if ((static_cast<u32>(seen >> 32) & 0xf000ffff) ==
                select_bytes(static_cast<u32>(head - 1), 0, 0x4401))
                break;
            if ((late = time.expired())) break;
        }
        if constexpr (C::checked) {
            u32 counter = (static_cast<u32>(seen >> 24) & 0xff00) | (static_cast<u32>(seen >> 40) & 0xff);
            consumed = rebuild_index(consumed, head, counter);
        }
        u64 done = clock_ticks();

        if (late) {
            *a.failure = Failure::of(Why::deadline_completion, qp.qpn, static_cast<u32>(head - 1)).bits;
            break;
        }
        if (i >= a.warmup) {
            a.issue[i - a.warmup] = issued - start;
            a.total[i - a.warmup] = done - start;
        }
    }
    // For the next launch on this queue pair.
    QpState& state = *qp.state;
    u64 next = state.reserved + (i < n ? i + 1 : n);
    state.reserved = state.ready = state.rung = next;
    state.consumed = state.last_ticket = state.last_signalled = next - (i < n ? 1 : 0);
}

}  // namespace kernels
}  // namespace gic
