// mini-gda: a thread builds the WQE, updates the doorbell record, rings the doorbell and polls the CQE itself.
//
//   using Put = gic::Choice<gic::Order::gpu_release, gic::Sharing::exclusive>;
//   gic::Endpoint<Put> endpoint(qp);
//   gic::Posted p = endpoint.put({remote, rkey}, {local, lkey}, bytes);
//   gic::Outcome o = endpoint.wait(p.ticket);   // done, or error with QPN, index and syndrome
//   endpoint.save();
//
// Every choice is a template parameter: the code of a chosen put has no branch for the others.
#pragma once

#include "gic/gda_types.hpp"
#include "gic/lanes.hpp"

namespace gic {

template <Order O, Sharing S, CqKind K = CqKind::collapsed, CqLoad L = CqLoad::acquire,
          Ringing R = Ringing::each, Signalling G = Signalling::every, u32 MaxBlocks = 1,
          Transport T = Transport::rc, bool Checked = false>
struct Choice {
    static constexpr Order order = O;
    static constexpr Sharing sharing = S;
    static constexpr CqKind cq_kind = K;
    static constexpr CqLoad cq_load = L;
    static constexpr Ringing ringing = R;
    static constexpr Signalling signalling = G;
    // The largest WQE that will be posted, in blocks. A CQE names a WQE's first block only, so up to
    // MaxBlocks - 1 completed blocks may not be known to be free.
    static constexpr u32 max_blocks = MaxBlocks;
    static constexpr Transport transport = T;
    static constexpr bool checked = Checked;
    static constexpr bool shared = S != Sharing::exclusive;
};

// What a caller says of one post.
struct How {
    bool ring = true;                   // Ringing::deferred and every_nth only
    u32 nth = 1;                        // Ringing::every_nth only: blocks left unrung, at most
    bool signal = true;                 // Signalling::on_request only
    bool fence = false;                 // wait at the NIC for earlier reads and atomics
    const AddressVector* av = nullptr;  // Transport::dc only
};

template <class C>
class Endpoint {
  public:
    GIC_FN explicit Endpoint(const Qp& qp) : qp_(qp) {
        if constexpr (!C::shared) {
            const QpState& s = *qp.state;
            own_ = {s.reserved, s.rung, s.consumed, s.cq_next, s.last_ticket, s.last_signalled, {s.failure}};
        }
    }

    // Waits until all that the constructor loads is there, so that a clock that is read next doesn't count it. True,
    // unless the view is of nothing.
    GIC_FN bool is_loaded() const {
        u64 all = reinterpret_cast<u64>(qp_.sq.base) | reinterpret_cast<u64>(qp_.record) |
                  reinterpret_cast<u64>(qp_.doorbell) | reinterpret_cast<u64>(qp_.cq) |
                  reinterpret_cast<u64>(qp_.state) | qp_.sq.log_blocks | qp_.qpn | qp_.deadline;
        if constexpr (!C::shared) all |= own_.head | own_.consumed | own_.rung | own_.failure.bits;
        return all != 0;
    }

    // Writes an exclusive queue's indices back, for the next endpoint on it.
    GIC_FN void save() {
        if constexpr (!C::shared) {
            QpState& s = *qp_.state;
            s.reserved = own_.head;
            s.ready = own_.head;
            s.rung = rung();
            s.consumed = own_.consumed;
            s.cq_next = own_.cq_next;
            s.last_ticket = last_ticket();
            s.last_signalled = last_signalled();
            s.failure = own_.failure.bits;
        }
    }

    // Largest reservation that can ever be served, in blocks.
    GIC_FN u32 limit() const {
        u32 most = C::signalling == Signalling::every ? qp_.sq.blocks() : qp_.sq.blocks() / 2;
        return most < C::max_blocks ? 0 : most - (C::max_blocks - 1);
    }

    // ---- operations ---------------------------------------------------------------------------------------

    GIC_FN Posted put(Remote remote, Local local, u32 bytes, How how = {}) {
        return post(
            blocks_of(kHead + 2), how,
            [&](u64 index, u32 flags) {
                u32 ds = head(Opcode::rdma_write, index, kHead + 2, flags, how);
                qp_.sq.store(index, ds, remote_segment(remote.address, remote.rkey));
                qp_.sq.store(index, ds + 1, data_segment(local.address, bytes, local.lkey));
            },
            0, length(bytes));
    }

    // The NIC finds the payload in the WQE and doesn't read it from memory.
    GIC_FN Posted put_inline(Remote remote, const u8* from, u32 bytes, How how = {}) {
        Why why = bytes == 0 ? Why::bad_length : bytes > kMaxInline ? Why::inline_too_long : Why::none;
        u32 total = kHead + 1 + inline_segments(bytes);
        // Nothing is read of a source that is refused.
        InlineData<kMaxInline> data(from, why == Why::none ? bytes : 0);
        return post(
            blocks_of(total), how,
            [&](u64 index, u32 flags) {
                u32 ds = head(Opcode::rdma_write, index, total, flags, how);
                qp_.sq.store(index, ds, remote_segment(remote.address, remote.rkey));
                data.store(qp_.sq, index, ds + 1);
            },
            0, why);
    }

    GIC_FN Posted put_value(Remote remote, u64 value, How how = {}) {
        return post(blocks_of(kHead + 2), how, [&](u64 index, u32 flags) {
            u32 ds = head(Opcode::rdma_write, index, kHead + 2, flags, how);
            qp_.sq.store(index, ds, remote_segment(remote.address, remote.rkey));
            store_inline8(qp_.sq, index, ds + 1, value);
        });
    }

    GIC_FN Posted get(Local local, Remote remote, u32 bytes, How how = {}) {
        return post(
            blocks_of(kHead + 2), how,
            [&](u64 index, u32 flags) {
                u32 ds = head(Opcode::rdma_read, index, kHead + 2, flags, how);
                qp_.sq.store(index, ds, remote_segment(remote.address, remote.rkey));
                qp_.sq.store(index, ds + 1, data_segment(local.address, bytes, local.lkey));
            },
            0, length(bytes));
    }

    // The value before is left, 8 bytes, at `result`.
    GIC_FN Posted fetch_add(Remote remote, u64 add, Local result, How how = {}) {
        return atomic(Opcode::atomic_fa, remote, atomic_segment(add, 0), result, 8, 0, how);
    }
    GIC_FN Posted compare_swap(Remote remote, u64 compare, u64 swap, Local result, How how = {}) {
        return atomic(Opcode::atomic_cs, remote, atomic_segment(swap, compare), result, 8, 0, how);
    }
    // Extended atomic on 4 bytes.
    GIC_FN Posted fetch_add32(Remote remote, u32 add, Local result, How how = {}) {
        return atomic(Opcode::atomic_masked_fa, remote, fetch_add32_segment(add, 0), result, 4,
                      kOpmodExtended4, how);
    }

    // A put, and behind it in the same queue a fetch-and-add that tells the target: RC places a write before
    // a later atomic of its queue pair. One reservation, one doorbell, one CQE.
    GIC_FN Posted put_signal(Remote remote, Local local, u32 bytes, Remote signal, u64 add, Local result,
                             How how = {}) {
        constexpr u32 first = blocks_of(kHead + 2);
        constexpr u32 second = blocks_of(kHead + 3);
        Why why = length(bytes);
        if (why == Why::none) why = alignment(signal, 8);
        return post(
            first + second, how,
            [&](u64 index, u32 flags) {
                u32 ds = head(Opcode::rdma_write, index, kHead + 2, how.fence ? kFence : 0, how);
                qp_.sq.store(index, ds, remote_segment(remote.address, remote.rkey));
                qp_.sq.store(index, ds + 1, data_segment(local.address, bytes, local.lkey));
                atomic_wqe(Opcode::atomic_fa, index + first, signal, atomic_segment(add, 0), result, 8, 0,
                           flags & ~kFence, how);
            },
            first, why);
    }

    // Completes when all that was posted before has.
    GIC_FN Posted nop(How how = {}) {
        return post(1, how, [&](u64 index, u32 flags) {
            qp_.sq.store(index, 0, control_segment(Opcode::nop, index, qp_.qpn, 1, flags));
        });
    }

    // One put a lane, all of one reservation, one publication and (at most) one doorbell.
    // `what(lane)` gives the lane's Remote, Local and bytes; lengths are the caller's to check.
    // Waiting, `flush` and `save` are the first active lane's to call, lane 0's on an exclusive queue. There all 32
    // lanes make every call of these two, also those that the mask leaves out: each keeps the indices, so that none
    // has to ask another.
    template <class What>
    GIC_FN Posted put_warp(const Warp& warp, What what, How how = {}) {
        return post_warp(warp, how, [&](u32 lane, u64 index, u32 ds) {
            auto op = what(lane);
            qp_.sq.store(index, ds, remote_segment(op.remote.address, op.remote.rkey));
            qp_.sq.store(index, ds + 1, data_segment(op.local.address, op.bytes, op.local.lkey));
        });
    }

    // The same with 8 bytes in each WQE: `what(lane)` gives the lane's Remote and value.
    template <class What>
    GIC_FN Posted put_value_warp(const Warp& warp, What what, How how = {}) {
        return post_warp(warp, how, [&](u32 lane, u64 index, u32 ds) {
            auto op = what(lane);
            qp_.sq.store(index, ds, remote_segment(op.remote.address, op.remote.rkey));
            store_inline8(qp_.sq, index, ds + 1, op.value);
        });
    }

    // Rings for everything posted and not yet rung for. Exclusive queues; shared ones ring in `quiet`.
    GIC_FN void flush() {
        static_assert(!C::shared, "a shared queue's doorbell belongs to the turn");
        if (rung() != own_.head) ring(own_.head);
    }

    // ---- completion ---------------------------------------------------------------------------------------

    // Looks once.
    GIC_FN Outcome poll(u64 ticket) {
        u64 seen = consumed();
        if (seen >= ticket) return {Status::done, {}};
        // On a shared queue somebody behind the caller may still ring for him.
        if constexpr (C::checked && !C::shared) {
            if (rung() < ticket)
                return {Status::error, fail(Failure::of(Why::never_rung, qp_.qpn, index16(ticket)))};
        }
        look(seen);
        // The failure first: who sees it sees all that completed before it.
        Failure f = failure();
        if (consumed() >= ticket) return {Status::done, {}};
        return {f.ok() ? Status::pending : Status::error, f};
    }

    // Waits until done or error; the deadline is an error.
    GIC_COLD Outcome wait(u64 ticket) {
        if constexpr (kLooksAlone) return wait_alone(ticket);
        if constexpr (kLooksForItself) return wait_for_itself(ticket);
        Wait time(qp_.deadline);
        for (;;) {
            Outcome o = poll(ticket);
            if (o.status != Status::pending) return o;
            if (time.expired()) {
                return {Status::error, fail(Failure::of(late(ticket), qp_.qpn, index16(ticket)))};
            }
        }
    }

    // Waits for all that was posted to this queue before, by anybody, and rings for it where that is left.
    GIC_COLD Outcome quiet() {
        if constexpr (!C::shared) {
            if (own_.consumed >= last_ticket()) return {Status::done, {}};
            if (last_signalled() != last_ticket()) {
                Posted p = nop();
                if (!p.failure.ok()) return {Status::error, p.failure};
            } else {
                flush();
            }
            return wait(last_signalled());
        } else if constexpr (C::signalling == Signalling::every && C::max_blocks == 1 &&
                             (C::ringing == Ringing::each || C::ringing == Ringing::threshold)) {
            // What others have reserved they will publish; the last of them rings.
            return wait(mem::load_acquire<Scope::gpu>(&qp_.state->reserved));
        } else {
            // Which block the last WQE began at, and whether it asked for a CQE, only its poster knows.
            Posted p = nop();
            if (!p.failure.ok()) return {Status::error, p.failure};
            return wait(p.ticket);
        }
    }

    GIC_FN u64 consumed() const {
        if constexpr (C::shared)
            return mem::load_acquire<Scope::gpu>(&qp_.state->consumed);
        else
            return own_.consumed;
    }
    GIC_FN Failure failure() const {
        if constexpr (C::shared)
            return {mem::load_acquire<Scope::gpu>(&qp_.state->failure)};
        else
            return own_.failure;
    }

    // Reserves and publishes `blocks` blocks around `fill(index, flags)`, which writes them. `last` is the
    // distance from the first block to the last WQE's, whose ticket is returned. Nothing is posted where a
    // reason against it is given.
    template <class Fill>
    GIC_FN Posted post(u32 blocks, const How& how, Fill fill, u32 last = 0, Why why = Why::none) {
        if (lacks_target(how, blocks)) why = Why::no_address_vector;
        u64 base = 0;
        // What is reserved of a shared queue must be posted; where nothing is lost, one branch serves both.
        if (C::shared && GIC_SELDOM(why != Why::none)) return {0, Failure::of(why, qp_.qpn)};
        if (GIC_SELDOM((why != Why::none) | !reserve(blocks, &base))) {
            Failure f = why == Why::none ? await_space(base, blocks) : Failure::of(why, qp_.qpn);
            if (!f.ok()) return {0, f};
        }
        bool asks = wants_cqe(how, base, blocks);
        fill(base, (asks ? kCqUpdate : 0) | (how.fence ? kFence : 0));
        Failure f = publish(base, blocks, base + last + 1, asks, how);
        return {base + last + 1, f};
    }

  private:
    // Segments before the operation's own: control, and for DC the address vector.
    static constexpr u32 kHead = C::transport == Transport::dc ? 4 : 1;
    static_assert(C::max_blocks >= blocks_of(kHead + 2), "a DC put takes two blocks");
    static_assert(C::max_blocks <= blocks_of(kMaxDs), "a WQE has at most 63 segments");
    static constexpr u32 kMaxSegments =
        C::max_blocks * kSegmentsPerBlock < kMaxDs ? C::max_blocks * kSegmentsPerBlock : kMaxDs;
    static constexpr u32 kMaxInline = (kMaxSegments - kHead - 1) * kSegmentBytes - 4;

    // An exclusive queue's indices. What others tell is not kept: a loop of posts has a register for each.
    // One thread looks at one entry.
    static constexpr bool kLooksAlone = !C::shared && C::cq_kind == CqKind::collapsed && !C::checked;

    // Many look at one entry, and each finds in it what he waits for.
    static constexpr bool kLooksForItself = C::shared && C::cq_kind == CqKind::collapsed && !C::checked;

    struct Own {
        u64 head, rung, consumed, cq_next, last_ticket, last_signalled;
        Failure failure;
    };
    static constexpr bool kRingsForAll =
        C::ringing == Ringing::each || (C::ringing == Ringing::threshold && !C::shared);
    GIC_FN u64 last_ticket() const { return C::max_blocks == 1 ? own_.head : own_.last_ticket; }
    GIC_FN u64 last_signalled() const {
        return C::signalling == Signalling::every ? last_ticket() : own_.last_signalled;
    }

    GIC_FN Endpoint(const Qp& qp, const Own& own) : qp_(qp), own_(own) {}

    // Of a DC queue's posts only a NOP, which takes one block, goes nowhere.
    GIC_FN static bool lacks_target(const How& how, u32 blocks) {
        return C::transport == Transport::dc && blocks > 1 && how.av == nullptr;
    }
    GIC_FN static Why length(u32 bytes) { return bytes - 1 < kMaxMessage ? Why::none : Why::bad_length; }
    GIC_FN static Why alignment(const Remote& remote, u32 bytes) {
        return (remote.address & (bytes - 1)) == 0 ? Why::none : Why::unaligned_atomic;
    }
    GIC_FN static u32 index16(u64 ticket) { return static_cast<u32>(ticket - 1) & 0xffff; }

    GIC_FN u32 head(Opcode op, u64 index, u32 ds, u32 flags, const How& how) const {
        qp_.sq.store(index, 0, control_segment(op, index, qp_.qpn, ds, flags));
        if constexpr (C::transport == Transport::dc) {
            for (u32 i = 0; i < 3; i++)
                qp_.sq.store(index, 1 + i, how.av->segments[i]);
        }
        return kHead;
    }

    // A write a lane; `fill(lane, index, ds)` stores its two segments after the head.
    template <class Fill>
    GIC_FN Posted post_warp(const Warp& warp, const How& how, Fill fill) {
        constexpr u32 each = blocks_of(kHead + 2);
        u32 blocks = each * warp.count();
        if (lacks_target(how, blocks)) return {0, Failure::of(Why::no_address_vector, qp_.qpn)};
        u64 base = 0;
        if constexpr (C::shared) {
            Failure f{
                warp.elect([&] { return reserve(blocks, &base) ? 0 : await_space(base, blocks).bits; })};
            if (!f.ok()) return {0, f};
            base = warp.elect([&] { return base; });
        } else if (GIC_SELDOM(!reserve(blocks, &base))) {
            Failure f = await_space_together(base, blocks);
            if (!f.ok()) return {0, f};
        }
        u64 last = base + blocks - each;
        bool asks = wants_cqe(how, base, blocks);
        warp.each([&](u32 lane, u32 rank) {
            u64 index = base + static_cast<u64>(rank) * each;
            bool is_last = rank + 1 == warp.count();
            u32 flags = (asks && is_last ? kCqUpdate : 0) | (how.fence && rank == 0 ? kFence : 0);
            fill(lane, index, head(Opcode::rdma_write, index, kHead + 2, flags, how));
        });
        if constexpr (C::shared) {
            warp.sync();
            Failure f{warp.elect([&] { return publish(base, blocks, last + 1, asks, how).bits; })};
            return {last + 1, f};
        } else {
            Warp all;
            all.sync();
            if (posted(base, base + blocks, last + 1, asks, how)) all.lead([&] { announce(base + blocks); });
            return {last + 1, {}};
        }
    }

    // By one lane, for a whole warp whose lanes all keep the indices.
    GIC_FN Failure await_space_together(u64 base, u32 blocks) {
        Warp all;
        Failure f{all.elect([&] { return await_space(base, blocks).bits; })};
        own_.consumed = all.elect([&] { return own_.consumed; });
        own_.cq_next = all.elect([&] { return own_.cq_next; });
        own_.rung = all.elect([&] { return own_.rung; });
        own_.failure.bits = all.elect([&] { return own_.failure.bits; });
        return f;
    }

    GIC_FN Posted atomic(Opcode op, Remote remote, Segment operand, Local result, u32 bytes, u32 opmod,
                         const How& how) {
        return post(
            blocks_of(kHead + 3), how,
            [&](u64 index, u32 flags) {
                atomic_wqe(op, index, remote, operand, result, bytes, opmod, flags, how);
            },
            0, alignment(remote, bytes));
    }
    GIC_FN void atomic_wqe(Opcode op, u64 index, Remote remote, Segment operand, Local result, u32 bytes,
                           u32 opmod, u32 flags, const How& how) const {
        qp_.sq.store(index, 0, control_segment(op, index, qp_.qpn, kHead + 3, flags, 0, opmod));
        if constexpr (C::transport == Transport::dc) {
            for (u32 i = 0; i < 3; i++)
                qp_.sq.store(index, 1 + i, how.av->segments[i]);
        }
        qp_.sq.store(index, kHead, remote_segment(remote.address, remote.rkey));
        qp_.sq.store(index, kHead + 1, operand);
        qp_.sq.store(index, kHead + 2, data_segment(result.address, bytes, result.lkey));
    }

    // A queue whose callers choose still gets one CQE in each half, or its space would never come back.
    GIC_FN bool wants_cqe(const How& how, u64 base, u32 blocks) const {
        if constexpr (C::signalling == Signalling::every) {
            return true;
        } else {
            // Where bits from the half's up differ, a half's end lies between.
            u32 differ = static_cast<u32>(base) ^ static_cast<u32>(base + blocks);
            return how.signal || differ >= qp_.sq.blocks() / 2;
        }
    }

    GIC_FN u64 rung() const {
        if constexpr (C::shared)
            return mem::load_relaxed<Scope::gpu>(&qp_.state->rung);
        else if constexpr (kRingsForAll)
            return own_.head;
        else
            return own_.rung;
    }

    // Keeps the first failure and returns it.
    GIC_COLD Failure fail(Failure f) {
        if constexpr (C::shared) {
            u64 was = mem::compare_and_swap<Scope::gpu>(&qp_.state->failure, u64{0}, f.bits);
            return was ? Failure{was} : f;
        } else {
            if (own_.failure.ok()) own_.failure = f;
            return own_.failure;
        }
    }

    // Distances of indices fit 32 bits where one thread posts and looks.
    GIC_FN bool fits(u64 base, u32 blocks) const {
        if constexpr (C::shared)
            return base + blocks - consumed() <= qp_.sq.blocks();
        else
            return static_cast<u32>(base) + blocks - static_cast<u32>(own_.consumed) <= qp_.sq.blocks();
    }

    // False where there is no room yet, or never: `await_space` then says more.
    GIC_FN bool reserve(u32 blocks, u64* base) {
        if constexpr (C::shared) {
            if (GIC_SELDOM(blocks > limit())) return false;
            *base = mem::fetch_add_relaxed<Scope::gpu>(&qp_.state->reserved, static_cast<u64>(blocks));
            return fits(*base, blocks);
        } else {
            *base = own_.head;
            return (blocks <= limit()) & fits(*base, blocks);
        }
    }

    struct Waited {
        Own own;
        Failure failure;
    };
    GIC_APART static Waited await_space_apart(Qp qp, Own own, u64 base, u32 blocks) {
        Endpoint endpoint(qp, own);
        Failure f = endpoint.await_space_here(base, blocks);
        return {endpoint.own_, f};
    }
    GIC_FN Failure await_space(u64 base, u32 blocks) {
#if GIC_ON_GPU
        Waited waited = await_space_apart(qp_, own_, base, blocks);
        own_ = waited.own;
        return waited.failure;
#else
        return await_space_here(base, blocks);
#endif
    }

    GIC_COLD Failure await_space_here(u64 base, u32 blocks) {
        if (blocks > limit()) return Failure::of(Why::too_large, qp_.qpn);
        Wait time(qp_.deadline);
        for (;;) {
            // Blocks that nobody has rung for never complete. Those before ours are ours to ring for once
            // the turn has come to us: who left them unrung did so because we were behind him.
            if constexpr (!C::shared) {
                if constexpr (C::ringing != Ringing::each) flush();
            } else if constexpr (C::ringing != Ringing::each) {
                if (mem::load_acquire<Scope::gpu>(&qp_.state->ready) == base && rung() != base) ring(base);
            }
            look(consumed());
            if (fits(base, blocks)) return {};
            Failure f = failure();
            if (!f.ok()) return f;
            if (time.expired())
                return fail(Failure::of(Why::deadline_space, qp_.qpn, static_cast<u32>(base)));
        }
    }

    // slot before turn. Blocks become ready in the order in which they were reserved. Whoever finds `ready` at
    // his base holds the turn, and the record and the doorbell with it: no lock, no record that goes back.
    // His acquire of the turn and the next one's carry every earlier slot's stores along, so that a doorbell
    // covers slots that others wrote.
    GIC_FN Failure publish(u64 base, u32 blocks, u64 ticket, bool asks, const How& how) {
        u64 next = base + blocks;
        if constexpr (C::shared) {
            QpState* s = qp_.state;
            Wait time(qp_.deadline);
            while (mem::load_acquire<Scope::gpu>(&s->ready) != base) {
                Failure f = failure();
                if (!f.ok()) return f;
                if (time.expired())
                    return fail(Failure::of(Why::deadline_turn, qp_.qpn, static_cast<u32>(base)));
            }
            if (rings_now(base, next, how)) ring(next);
            mem::store_release<Scope::gpu>(&s->ready, next);
        } else {
            if (posted(base, next, ticket, asks, how)) announce(next);
        }
        return {};
    }

    // Takes in that an exclusive queue's blocks up to `next` are written; whether they are to be announced now.
    GIC_FN bool posted(u64 base, u64 next, u64 ticket, bool asks, const How& how) {
        own_.head = next;
        own_.last_ticket = ticket;
        if (asks) own_.last_signalled = ticket;
        if (!rings_now(base, next, how)) return false;
        own_.rung = next;
        return true;
    }

    // Whoever leaves blocks unrung relies on somebody behind him: on the next post, on a post that waits for
    // space, or on quiet.
    GIC_FN bool rings_now(u64 base, u64 next, const How& how) const {
        if constexpr (C::ringing == Ringing::deferred) return how.ring;
        if constexpr (C::ringing == Ringing::every_nth)
            return how.ring || static_cast<u32>(next - rung()) >= how.nth;
        if constexpr (C::ringing == Ringing::threshold && C::shared) {
            // Who reserved behind us will publish, and look at this again.
            return mem::load_relaxed<Scope::gpu>(&qp_.state->reserved) == next || base / 32 != next / 32;
        }
        return true;
    }

    GIC_FN void ring(u64 producer) {
        // Before the doorbell: a completion is believed only up to here.
        if constexpr (C::shared)
            mem::store_relaxed<Scope::gpu>(&qp_.state->rung, producer);
        else
            own_.rung = producer;
        announce(producer);
    }

    GIC_FN void announce(u64 producer) const {
        Ordering<C::order>::write_record(qp_.record, record_value(producer));
        Ordering<C::order>::ring(qp_.doorbell, doorbell_value(producer, qp_.qpn));
    }

    // `wait` where nobody else looks: an entry that is as it was when it was last read says nothing new, so that a
    // turn is a load and a comparison.
    GIC_FN Outcome wait_alone(u64 ticket) {
        if (own_.consumed >= ticket) return {Status::done, {}};
        if (!own_.failure.ok()) return poll(ticket);
        Wait time(qp_.deadline);
        const u64* at = reinterpret_cast<const u64*>(qp_.cq + 56);
        for (u64 known = ~u64{0};;) {
            u64 tail = load_completion<C::cq_load>(at);
            if (tail != known) {
                known = tail;
                u64 seen = own_.consumed;
                if ((tail >> 60) != 15) take(seen, read(qp_.cq, tail, seen));
                if (own_.consumed >= ticket) return {Status::done, {}};
                if (!own_.failure.ok()) return {Status::error, own_.failure};
            }
            if (time.expired()) {
                return {Status::error, fail(Failure::of(late(ticket), qp_.qpn, index16(ticket)))};
            }
        }
    }

    // `wait` where others look, too: what the entry says is not put into `consumed`, which costs an atomic and a
    // release; who needs room looks for himself. An index that is rebuilt from a `seen` that is old comes out too
    // low, never too high; whoever went on for so long has had to move `consumed`, which is read now and then.
    GIC_FN Outcome wait_for_itself(u64 ticket) {
        Wait time(qp_.deadline);
        const u64* at = reinterpret_cast<const u64*>(qp_.cq + 56);
        u64 seen = consumed();
        u64 known = ~u64{0};
        for (u32 turn = 1;; turn++) {
            // Others' failures are told in memory of their own.
            if ((turn & 15) == 0) {
                Outcome o = poll(ticket);
                if (o.status != Status::pending) return o;
                seen = consumed();
            }
            u64 tail = load_completion<C::cq_load>(at);
            if (tail != known && (tail >> 60) != 15) {
                Taken taken = read(qp_.cq, tail, seen);
                if (taken.next >= ticket) return {Status::done, {}};
                if (!taken.failure.ok()) return poll(ticket);
                // An entry beyond what is seen to be rung for is to be read again.
                if (taken.believed || index_of(tail) == (seen & 0xffff)) known = tail;
            }
            if (time.expired()) {
                return {Status::error, fail(Failure::of(late(ticket), qp_.qpn, index16(ticket)))};
            }
        }
    }

    // The lower 16 bits of the first block that a CQE doesn't cover, given its last 8 bytes.
    GIC_FN static u32 index_of(u64 tail) { return (counter_of(tail) + 1) & 0xffff; }
    GIC_FN static u32 counter_of(u64 tail) {
        return (static_cast<u32>(tail >> 24) & 0xff00) | (static_cast<u32>(tail >> 40) & 0xff);
    }

    // Takes in what the CQ says. `seen` is a value of `consumed` that was read before: a CQE read after it can't
    // be an older one, so that a poller who was held up never takes an old counter for one of the next lap.
    GIC_COLD void look(u64 seen) {
        if constexpr (C::cq_kind == CqKind::collapsed) {
            u64 tail = load_completion<C::cq_load>(reinterpret_cast<const u64*>(qp_.cq + 56));
            if ((tail >> 60) != 15) take(seen, read(qp_.cq, tail, seen));
        } else if constexpr (C::shared) {
            QpState* s = qp_.state;
            if (mem::load_relaxed<Scope::gpu>(&s->cq_lock) != 0 ||
                mem::compare_and_swap<Scope::gpu>(&s->cq_lock, 0u, 1u) != 0)
                return;
            u64 next = mem::load_relaxed<Scope::gpu>(&s->cq_next);
            next = look_ring(next);
            mem::store_relaxed<Scope::gpu>(&s->cq_next, next);
            mem::store_release<Scope::gpu>(&s->cq_lock, 0u);
        } else {
            own_.cq_next = look_ring(own_.cq_next);
        }
    }

    GIC_COLD u64 look_ring(u64 next) {
        u64 first = next;
        u64 seen = consumed();
        Taken taken = {seen, {}, true};
        u32 mask = (1u << qp_.log_cq) - 1;
        while (next - first <= mask && taken.failure.ok()) {
            const u8* entry = qp_.cq + static_cast<u64>(static_cast<u32>(next) & mask) * 64;
            u64 tail = load_completion<C::cq_load>(reinterpret_cast<const u64*>(entry + 56));
            if ((tail >> 60) == 15 || ((tail >> 56) & 1) != ((next >> qp_.log_cq) & 1)) break;
            Taken one = read(entry, tail, taken.next);
            if (!one.believed) break;
            taken = one;
            next += 1;
        }
        if (next == first) return next;
        // cq record before space. The entries before `next` have been read and the NIC may write them again: it
        // must know so before another thread can post what completes in them, or the CQ overruns.
        mem::store_relaxed<Scope::system>(qp_.cq_record, be32(static_cast<u32>(next) & 0xffffff));
        take(seen, taken);
        return next;
    }

    // What a CQE says: blocks before `next` are completed, and perhaps a failure. It isn't to be believed yet
    // where `rung` isn't seen to cover it; an entry of a ring comes once, and is left for the next look.
    struct Taken {
        u64 next;
        Failure failure;
        bool believed;
    };

    // One CQE, given its last 8 bytes: opcode and QPN, counter, signature, op_own.
    GIC_COLD Taken read(const u8* entry, u64 tail, u64 seen) const {
        u32 kind = static_cast<u32>(tail >> 60);
        u32 counter = counter_of(tail);
        u64 next = rebuild_index(seen, rung(), counter);
        if (kind == 0) return {next, {}, next != seen};
        if (kind != 13 && kind != 14)
            return {seen, Failure::of(Why::bad_cqe, qp_.qpn, counter, 0, kind), true};
        // The tail is the NIC's last store: once it has been acquired the rest of the entry is there.
        if constexpr (C::cq_load == CqLoad::plain)
            mem::load_acquire<Scope::system>(reinterpret_cast<const u64*>(entry + 56));
        u64 syndromes = mem::load_relaxed<Scope::system>(reinterpret_cast<const u64*>(entry + 48));
        u32 syndrome = static_cast<u32>(syndromes >> 56);
        // Completions are in order: all before the one that failed succeeded. Of a flushed one nothing
        // follows, since a collapsed CQ may have lost the first error.
        return {syndrome != 5 && next != seen ? next - 1 : seen,
                Failure::of(Why::completion, be32(static_cast<u32>(tail)) & 0xffffff, counter, syndrome,
                            static_cast<u32>(syndromes >> 48) & 0xff),
                true};
    }

    // What completed before a failure is known before it is.
    GIC_FN void take(u64 seen, const Taken& taken) {
        advance(seen, taken.next);
        if (!taken.failure.ok()) fail(taken.failure);
    }

    GIC_FN void advance(u64 seen, u64 next) {
        if (next == seen) return;
        if constexpr (C::shared)
            mem::fetch_max<Scope::gpu>(&qp_.state->consumed, next);
        else
            own_.consumed = next;
    }

    // A completion didn't come: in checked mode, is it that nobody rang, or that the CQ is of the other kind?
    GIC_COLD Why late(u64 ticket) const {
        if constexpr (C::checked) {
            if (rung() < ticket) return Why::never_rung;
        }
        if constexpr (C::checked && C::cq_kind == CqKind::ring) {
            u64 first = mem::load_relaxed<Scope::system>(reinterpret_cast<const u64*>(qp_.cq + 56));
            u64 next = C::shared ? mem::load_relaxed<Scope::gpu>(&qp_.state->cq_next) : own_.cq_next;
            u32 counter = (static_cast<u32>(first >> 24) & 0xff00) | (static_cast<u32>(first >> 40) & 0xff);
            // Entry 0 has moved past what this ring has taken from it.
            if (next > 0 && (first >> 60) == 0 && rebuild_index(consumed(), rung(), counter) != consumed())
                return Why::cq_is_collapsed;
        }
        if constexpr (C::checked && C::cq_kind == CqKind::collapsed) {
            if (qp_.log_cq == 0) return Why::deadline_completion;
            u64 second = mem::load_relaxed<Scope::system>(reinterpret_cast<const u64*>(qp_.cq + 64 + 56));
            if ((second >> 60) != 15) return Why::cq_is_ring;
        }
        return Why::deadline_completion;
    }

    // By value: what device memory accesses clobber, as the compiler sees it, a reference would be read again
    // after each of them.
    Qp qp_;
    Own own_ = {};
};

}  // namespace gic
