// mini-proxy's GPU side: a thread hands a request to a CPU thread, which posts it.
//
//   using Push = gic::ProxyChoice<gic::Handoff::lap_parity>;
//   gic::Producer<Push> producer(ring);
//   gic::Posted p = producer.push({gic::ProxyOp::put, channel, bytes, source, destination});
//   gic::Outcome o = producer.wait(p.ticket);   // done, or error with QPN, index and syndrome
//   producer.save();
//
// Each word lives with who reads it most: slots in host memory, the head and the last known tail in the
// producer's. A push of the tuned hand-off is one 16-byte store. With Publish::release the store waits for what
// the thread wrote before, the payload with it; with Publish::posted nothing is waited for, and the payload must
// have been visible to the NIC before.
#pragma once

#include "gic/proxy_types.hpp"

namespace gic {

template <Handoff H, Producers P = Producers::one, Progress G = Progress::cached,
          Publish U = Publish::release>
struct ProxyChoice {
    static constexpr Handoff handoff = H;
    static constexpr Producers producers = P;
    static constexpr Progress progress = G;
    static constexpr Publish publish = U;
    static constexpr bool shared = P == Producers::many;
    static constexpr bool counted = H == Handoff::producer_counter || H == Handoff::mapped_counter;
    static_assert(U == Publish::release || H == Handoff::lap_parity,
                  "only the descriptor's own store can go without an ordering");
};

template <class C>
class Producer {
  public:
    GIC_FN explicit Producer(const Ring& ring) : ring_(ring) {
        if constexpr (!C::shared) own_ = {ring.state->head, ring.state->tail, {ring.state->failure}};
    }

    // Writes a lone producer's indices back, for the next one on this ring.
    GIC_FN void save() {
        if constexpr (!C::shared) {
            RingState& s = *ring_.state;
            s.head = own_.head;
            s.ready = own_.head;
            s.tail = own_.tail;
            s.failure = own_.failure.bits;
        }
    }

    // Hands a request over. Nothing is pushed where a failure is returned, but that of a deadline ends the ring.
    GIC_FN Posted push(const Descriptor& d) {
        static_assert(C::handoff != Handoff::mapped_counter, "its requests are known beforehand: raise()");
        bool built = C::handoff == Handoff::producer_counter;
        u32 slots = built && d.op == ProxyOp::put_signal ? 2 : 1;
        u64 at = 0;
        bool refused = is_refused(d);
        // A slot that is reserved of a shared ring must be filled; where nothing is lost, one branch serves both.
        if (C::shared && GIC_SELDOM(refused)) return {0, Failure::of(refuse(d), ring_.qpn)};
        if (GIC_SELDOM(refused | !reserve(slots, &at))) {
            if (refused) return {0, Failure::of(refuse(d), ring_.qpn)};
            Failure f = await_space(at, slots);
            if (!f.ok()) return {0, f};
        }
        if constexpr (C::handoff == Handoff::producer_counter) {
            build(d, at);
            return {at + slots, publish(at, slots)};
        } else {
            write_slot(at, d.pack());
            if constexpr (!C::shared) own_.head = at + 1;
            return {at + 1, {}};
        }
    }

    // Asks for the next one of the requests that the CPU was told beforehand.
    GIC_FN Posted raise() {
        static_assert(C::handoff == Handoff::mapped_counter, "descriptors are pushed");
        u64 at = 0;
        if (GIC_SELDOM(!reserve(1, &at))) {
            Failure f = await_space(at, 1);
            if (!f.ok()) return {0, f};
        }
        return {at + 1, publish(at, 1)};
    }

    GIC_FN Outcome poll(u64 ticket) const {
        if (completed() >= ticket) return {Status::done, {}};
        Failure f = failure();
        if (f.ok()) return {Status::pending, {}};
        // What completed before the failure stays done.
        if (completed() >= ticket) return {Status::done, {}};
        return {Status::error, f};
    }

    // Waits until done or error; the deadline is an error.
    GIC_COLD Outcome wait(u64 ticket) {
        Wait time(ring_.deadline);
        for (u32 turn = 1;; turn++) {
            if (completed() >= ticket) return {Status::done, {}};
            // Each reading of host memory crosses the bus: the failure word is looked at now and then only.
            if ((turn & 15) == 0) {
                Outcome o = poll(ticket);
                if (o.status != Status::pending) return o;
            }
            if (time.expired()) {
                Outcome o = poll(ticket);
                if (o.status != Status::pending) return o;
                return {Status::error,
                        fail(Failure::of(Why::deadline_completion, ring_.qpn, static_cast<u32>(ticket - 1)))};
            }
        }
    }

    // Waits until the worker has posted what the ticket stands for: its slots are free, and nothing is completed.
    GIC_COLD Failure wait_posted(u64 ticket) {
        Wait time(ring_.deadline);
        for (u32 turn = 1; posted() < ticket; turn++) {
            bool late = time.expired();
            if (late || (turn & 15) == 0) {
                Failure f = failure();
                if (!f.ok()) return f;
            }
            if (late)
                return fail(Failure::of(Why::deadline_completion, ring_.qpn, static_cast<u32>(ticket - 1)));
        }
        return {};
    }

    // Waits for all that was pushed to this ring before, by anybody, and for nothing else.
    GIC_FN Outcome quiet() { return wait(pushed()); }

    // Positions that have been reserved, by anybody.
    GIC_FN u64 pushed() const {
        if constexpr (C::shared)
            return mem::load_acquire<Scope::gpu>(&ring_.state->head);
        else
            return own_.head;
    }
    GIC_FN u64 posted() const { return mem::load_acquire<Scope::system>(&ring_.progress->posted); }
    GIC_FN u64 completed() const { return mem::load_acquire<Scope::system>(&ring_.progress->completed); }

    // The first failure that either side has met.
    GIC_FN Failure failure() const {
        Failure own = own_.failure;
        if constexpr (C::shared) own.bits = mem::load_relaxed<Scope::gpu>(&ring_.state->failure);
        if (!own.ok()) return own;
        return {mem::load_acquire<Scope::system>(&ring_.progress->failure)};
    }

  private:
    struct Own {
        u64 head, tail;
        Failure failure;
    };

    GIC_FN Producer(const Ring& ring, const Own& own) : ring_(ring), own_(own) {}

    GIC_FN u32 depth() const { return 1u << ring_.log_depth; }

    // Whether `refuse` has a reason: all of them in one condition.
    GIC_FN bool is_refused(const Descriptor& d) const {
        bool size = d.op != ProxyOp::flush && d.size - 1 >= kMaxTransfer;
        bool offset = ((d.source | d.destination) & ~kMaxOffset) != 0;
        bool unaligned = d.op == ProxyOp::fetch_add && ((d.source | d.destination) & 7) != 0;
        return size | offset | (d.channel >= ring_.channel_count) | unaligned;
    }
    GIC_COLD Why refuse(const Descriptor& d) const {
        if (d.op != ProxyOp::flush && (d.size == 0 || d.size > kMaxTransfer)) return Why::bad_length;
        if (d.source > kMaxOffset || d.destination > kMaxOffset) return Why::bad_offset;
        if (d.channel >= ring_.channel_count) return Why::bad_channel;
        if (d.op == ProxyOp::fetch_add && ((d.source | d.destination) & 7) != 0) return Why::unaligned_atomic;
        return Why::none;
    }

    // Keeps a producer's first failure and returns it.
    GIC_COLD Failure fail(Failure f) {
        if constexpr (C::shared) {
            u64 was = mem::compare_and_swap<Scope::gpu>(&ring_.state->failure, u64{0}, f.bits);
            return was ? Failure{was} : f;
        } else {
            if (own_.failure.ok()) own_.failure = f;
            return own_.failure;
        }
    }

    // Distances of positions fit 32 bits where one thread pushes.
    GIC_FN bool fits(u64 at, u32 slots, u64 tail) const {
        if constexpr (C::shared)
            return at + slots - tail <= depth();
        else
            return static_cast<u32>(at) + slots - static_cast<u32>(tail) <= depth();
    }

    // False where there is no room yet, as far as it is known: `await_space` then looks again.
    GIC_FN bool reserve(u32 slots, u64* at) {
        if constexpr (C::shared) {
            *at = mem::fetch_add_relaxed<Scope::gpu>(&ring_.state->head, static_cast<u64>(slots));
        } else {
            *at = own_.head;
        }
        if constexpr (C::progress == Progress::read)
            return fits(*at, slots, read_tail());
        else if constexpr (C::shared)
            return fits(*at, slots, mem::load_acquire<Scope::gpu>(&ring_.state->tail));
        else
            return fits(*at, slots, own_.tail);
    }

    // slot taken before slot reused: the worker read it before it moved `posted`.
    GIC_FN u64 read_tail() {
        u64 tail = posted();
        if constexpr (C::progress == Progress::cached) {
            if constexpr (C::shared)
                mem::fetch_max<Scope::gpu>(&ring_.state->tail, tail);
            else
                own_.tail = tail;
        }
        return tail;
    }

    struct Waited {
        Own own;
        Failure failure;
    };
    GIC_APART static Waited await_space_apart(Ring ring, Own own, u64 at, u32 slots) {
        Producer producer(ring, own);
        Failure f = producer.await_space_here(at, slots);
        return {producer.own_, f};
    }
    GIC_FN Failure await_space(u64 at, u32 slots) {
#if GIC_ON_GPU
        Waited waited = await_space_apart(ring_, own_, at, slots);
        own_ = waited.own;
        return waited.failure;
#else
        return await_space_here(at, slots);
#endif
    }

    GIC_COLD Failure await_space_here(u64 at, u32 slots) {
        Wait time(ring_.deadline);
        for (;;) {
            if (fits(at, slots, read_tail())) return {};
            Failure f = failure();
            if (!f.ok()) return f;
            if (time.expired())
                return fail(Failure::of(Why::deadline_space, ring_.qpn, static_cast<u32>(at)));
        }
    }

    // payload before descriptor, descriptor before mark. PTX lets the halves of a 16-byte store arrive in any
    // order and apart, so each half says for itself that it is new, and the store's release orders the payload
    // before both.
    GIC_FN void write_slot(u64 at, Segment d) {
        u32 slot = static_cast<u32>(at) & (depth() - 1);
        u8* to = ring_.slots + static_cast<u64>(slot) * 16;
        if constexpr (C::handoff == Handoff::valid_byte) {
            mem::store_slot16(to, d.low, d.high);
            mem::fence<Scope::system>();
            mem::store_relaxed<Scope::system>(ring_.flags + slot, 1u);
        } else {
            u64 mark = C::handoff == Handoff::lap_parity ? lap_mark(at, ring_.log_depth) : kMark;
            if constexpr (C::publish == Publish::release)
                mem::store_posted16_release(to, d.low | mark, d.high | mark);
            else
                mem::store_posted16(to, d.low | mark, d.high | mark);
        }
    }

    // Counters move in the order of reservations. The turn's release and acquire carry the others' WQEs and
    // payloads along; the counter's own release hands them to the CPU.
    GIC_FN Failure publish(u64 at, u32 slots) {
        u64 next = at + slots;
        if constexpr (C::shared) {
            Failure f = await_turn(at);
            if (!f.ok()) return f;
        }
        mem::store_release<Scope::system>(ring_.counter, next);
        if constexpr (C::shared)
            mem::store_release<Scope::gpu>(&ring_.state->ready, next);
        else
            own_.head = next;
        return {};
    }

    GIC_COLD Failure await_turn(u64 at) {
        Wait time(ring_.deadline);
        while (mem::load_acquire<Scope::gpu>(&ring_.state->ready) != at) {
            Failure f = failure();
            if (!f.ok()) return f;
            if (time.expired()) return fail(Failure::of(Why::deadline_turn, ring_.qpn, static_cast<u32>(at)));
        }
        return {};
    }

    // Every WQE asks for a CQE: nobody knows here whether another follows.
    GIC_FN void build(const Descriptor& d, u64 at) const {
        const ProxyChannel& c = ring_.channels[d.channel];
        SendQueue sq = {ring_.slots, ring_.log_depth};
        u64 local = c.local + d.source;
        u64 remote = c.remote + d.destination;
        u32 bytes = static_cast<u32>(d.size);
        switch (d.op) {
        case ProxyOp::flush:
            sq.store(at, 0, control_segment(Opcode::nop, at, ring_.qpn, 1, kCqUpdate));
            return;
        case ProxyOp::fetch_add: atomic_wqe(sq, at, remote, c.rkey, d.size, local, c.lkey); return;
        case ProxyOp::put:
        case ProxyOp::put_imm:
        case ProxyOp::get:
        case ProxyOp::put_signal: {
            bool imm = d.op == ProxyOp::put_imm;
            bool last = d.op != ProxyOp::put_signal;
            Opcode op = imm                    ? Opcode::rdma_write_imm
                        : d.op == ProxyOp::get ? Opcode::rdma_read
                                               : Opcode::rdma_write;
            u32 immediate = imm ? (ring_.number << 24) | (static_cast<u32>(at) & 0xffffff) : 0;
            sq.store(at, 0, control_segment(op, at, ring_.qpn, 3, last ? kCqUpdate : 0, immediate));
            sq.store(at, 1, remote_segment(remote, c.rkey));
            sq.store(at, 2, data_segment(local, bytes, c.lkey));
            if (!last) atomic_wqe(sq, at + 1, c.signal, c.signal_rkey, 1, c.result, c.result_lkey);
            return;
        }
        }
    }
    GIC_FN void atomic_wqe(const SendQueue& sq, u64 at, u64 remote, u32 rkey, u64 add, u64 result,
                           u32 lkey) const {
        sq.store(at, 0, control_segment(Opcode::atomic_fa, at, ring_.qpn, 4, kCqUpdate));
        sq.store(at, 1, remote_segment(remote, rkey));
        sq.store(at, 2, atomic_segment(add, 0));
        sq.store(at, 3, data_segment(result, 8, lkey));
    }

    // By value: every asm clobbers memory, and a view behind a reference would be loaded again after each store.
    Ring ring_;
    Own own_ = {};
};

}  // namespace gic
