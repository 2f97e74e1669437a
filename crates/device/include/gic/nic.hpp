// The software ConnectX's data path: doorbell, record, WQE, keys, data, CQE, for GPU memory as well as host
// memory. The same semantics and error completions as the CPU engine (crates/softnic).
//
// Between two GPUs each has an engine, for the NIC whose queues lie in its memory: payload, receives and their CQEs
// go over the link, and nothing of one engine's waits in the other's tables but the receive lock.
//
// Queue pairs are dealt to warps; a warp's visit polls the doorbells of eight queue pairs at once and then
// serves those that rang. Writes of one aligned word, what nearly all WQEs are, take the fast path: a WQE a lane
// and row, all checks made by its lane, one completion for all. Everything else is nic_general.hpp's.
//
// Order within a queue pair: a completion, an atomic, a read, a send and a fenced WQE come behind all payload
// before them; of writes to one place the last one remains. Who sees one of those behind, on whichever GPU or CPU,
// sees all that it comes behind: between two GPUs every fence and release is of the system's scope.
#pragma once

#include "gic/nic_fast.hpp"
#include "gic/nic_general.hpp"

namespace gic {
namespace nic {

constexpr u32 kPolled = 4;  // words polled of a queue pair: two registers, the record, its state
constexpr u32 kGroup = kWarp / kPolled;
constexpr u32 kAuditTurns = 1 << 16;  // looks at the near words, for one at what was never rung for
constexpr u32 kFarTurns = 64;         // looks at the near words, for one at a far register
constexpr u32 kPatience = 64;         // looks at a record that lags behind its ring
constexpr u32 kTurn = 16 * kWarp;     // WQEs of one queue pair, before it is another's turn

template <Scope S>
class Engine {
  public:
    GIC_FN Engine(const Tables& t, u32 warp, Scratch& scratch)
        : t_(t), index_(warp), s_(scratch), q_(t, scratch) {
        mine_ = t.qps_in_order > warp ? (t.qps_in_order - warp + t.warps - 1) / t.warps : 0;
        once([&] { s_.qp = nullptr; });
        each_lane([&](u32 lane) {
            if (lane < 16) s_.regions[lane].nic = kNics;
        });
    }

    // Looks once at all of the warp's queue pairs and serves those that have something to do, with about
    // `budget` WQEs. Returns what was done: rings seen, and WQEs.
    GIC_FN u32 step(u32 budget) {
        u32 done = 0;
        GIC_ROLLED
        for (u32 first = 0; first < mine_ && done < budget; first += kGroup) {
            load_group(first);
            done += poll(budget - done);
        }
        return done;
    }

    // Puts what the warp keeps back into the tables.
    GIC_FN void save() { q_.save(); }

  private:
    // Which words of which queue pairs the lanes poll.
    GIC_FN void load_group(u32 first) {
        if (first == group_) return;
        group_ = first;
        Warp().sync();
        u32 last = mine_ - first < kGroup ? mine_ - first : kGroup;
        PerLane<bool> busy;
        PerLane<bool> heard;
        PerLane<bool> far;
        each_lane([&](u32 lane) {
            u32 nth = lane / kPolled;
            u32 word = lane % kPolled;
            // A lane without a queue pair looks at the last one's, which changes nothing.
            u32 at = first + (nth < last ? nth : last - 1);
            u32 place = t_.order[index_ + at * t_.warps];
            Qp* qp = &t_.nics[place >> 16].qps[place & 0xffff];
            qps_[lane] = reinterpret_cast<u64>(qp);
            const u8* polled = reinterpret_cast<const u8*>(&qp->shared);
            if (word == 2) polled = reinterpret_cast<const u8*>(qp->fixed.record);
            const u8* page = qp->fixed.page + kDoorbellAt + word * kDoorbellStride;
            // Where the record rings, the page is far away, and what it says is no news.
            bool record_rings = (qp->fixed.flags & kRecordRings) != 0;
            far[lane] = nth < last && word < 2 && record_rings;
            if (word < 2 && !record_rings) polled = page;
            polled_[lane] = reinterpret_cast<const u64*>(polled);
            far_page_[lane] = reinterpret_cast<const u64*>(far[lane] ? page : polled);
            coming_[lane] = mem::load_relaxed<Scope::system>(far_page_[lane]);
            // A state that isn't the usual one is to be looked at, once.
            seen_[lane] = word < 2 ? qp->own.seen[word] : static_cast<u64>(State::rts);
            if (word == 2) seen_[lane] = static_cast<u64>(record_value(qp->own.producer)) << 32;
            heard[lane] = nth < last && !far[lane] && (word != 2 || record_rings);
            busy[lane] = nth < last && word == 3 && qp->own.attention != 0;
            settled_[lane] = audited_[lane] = seen_[lane];
        });
        served_ = kWarp;
        far_ = ballot([&](u32 lane) { return far[lane]; });
        heard_ = ballot([&](u32 lane) { return heard[lane]; });
        busy_ = ballot([&](u32 lane) { return busy[lane]; });
    }

    // Looks at the group's words, and serves the queue pairs of which one has changed.
    GIC_FN u32 poll(u32 budget) {
        // What was stored before a ring, and before the record's word, is visible from here on.
        PerLane<u64> now;
        each_lane([&](u32 lane) {
            now[lane] = mem::load_acquire<Scope::system>(polled_[lane]);
            // Of a record the send word alone.
            if (lane % kPolled == 2) now[lane] &= ~u64{0xffffffff};
        });
        u32 changed = heard_ & ballot([&](u32 lane) { return now[lane] != seen_[lane]; });
        // What the lane that polled a word has acquired, all lanes have.
        if (changed != 0) Warp().sync();
        if (GIC_SELDOM(far_ != 0 && (turns_++ & (kFarTurns - 1)) == 0)) changed |= hear_of_far(now);
        if (GIC_SELDOM(far_ != 0 && turns_ % kAuditTurns == 0)) audit();
        u32 left = changed | busy_;
        u32 done = count_bits(changed & 0x33333333u);
        GIC_ROLLED
        while (left != 0 && done < budget) {
            u32 first = lowest_bit(left) & ~(kPolled - 1);
            left &= ~(((1u << kPolled) - 1) << first);
            if (first != served_) {
                q_.select(reinterpret_cast<Qp*>(value_of(qps_, first)));
                served_ = first;
            }
            u32 before = attention_ = (busy_ >> first) & 8 ? s_.own.attention : 0;
            u32 shown = be32(pick([&](u32 lane) { return now[lane] >> 32; }, first + 2)) & 0xffff;
            u32 state = pick([&](u32 lane) { return now[lane]; }, first + 3);
            u32 rang = (changed >> first) & 7;
            bool is_error = state == static_cast<u32>(State::error);
            u32 ahead = (shown - static_cast<u32>(q_.producer())) & 0xffff;
            if (rang == 4 && state == static_cast<u32>(State::rts) && attention_ == 0 &&
                q_.producer() + ahead - q_.head() <= q_.depth()) {
                // A record that rings, and covers what the queue can hold: the usual case.
                q_.post(q_.producer() + ahead);
            } else {
                listen(rang, first, shown, state, now);
            }
            u32 news = changed & (((1u << kPolled) - 1) << first);
            each_lane([&](u32 lane) {
                if (((news >> lane) & 1) == 0) return;
                if (lane < first + 2) q_.qp()->own.seen[lane - first] = now[lane];
                seen_[lane] = now[lane];
            });
            done += serve(is_error, budget - done);
            if (GIC_SELDOM(attention_ != before)) {
                once([&] { s_.own.attention = q_.qp()->own.attention = attention_; });
                busy_ = attention_ != 0 ? busy_ | 8u << first : busy_ & ~(8u << first);
            }
        }
        return done;
    }

    // What the queue pair's words say, whatever it is.
    GIC_FN void listen(u32 rang, u32 first, u32 shown, u32 state, const PerLane<u64>& now) {
        bool takes = state == static_cast<u32>(State::rts) || state == static_cast<u32>(State::error);
        if ((rang & 4) != 0 && shown != (q_.producer() & 0xffff) && takes) advance(shown);
        GIC_ROLLED
        for (rang &= 3; rang != 0; rang &= rang - 1)
            hear(value_of(now, first + lowest_bit(rang)), shown, state);
        if (attention_ & kWatching) watch();
    }

    // A record that was written, and for a long time not rung for: the client's doorbell is missing.
    GIC_FN void audit() {
        GIC_ROLLED
        for (u32 left = far_ & 0x11111111u; left != 0; left &= left - 1) {
            u32 first = lowest_bit(left);
            u64 shown = value_of(seen_, first + 2);
            if (shown == value_of(settled_, first + 2) || shown != value_of(audited_, first + 2)) continue;
            const Qp* qp = reinterpret_cast<const Qp*>(value_of(qps_, first));
            u32 producer = be32(static_cast<u32>(shown >> 32)) & 0xffff;
            auto rung = [&](u32 lane) {
                u64 value = value_of(seen_, lane);
                return be32(static_cast<u32>(value >> 32)) >> 8 == qp->fixed.qpn &&
                       rung_for(value) == producer;
            };
            bool is_rung = rung(first);
            // At a shared page another's ring takes the place of this one's.
            if (!rung(first + 1) && !is_rung && (qp->fixed.flags & kSharedPage) == 0) {
                once([&] {
                    report(t_, qp->fixed.nic, FindingKind::record_not_rung, qp->fixed.qpn, 0, producer);
                });
            }
            each_lane([&](u32 lane) {
                if (lane == first + 2) settled_[lane] = shown;
            });
        }
        each_lane([&](u32 lane) { audited_[lane] = seen_[lane]; });
    }

    // The producer that a register's value announces, in either form.
    GIC_FN static u32 rung_for(u64 value) {
        u32 ds = be32(static_cast<u32>(value >> 32)) & 0xff;
        return ((be32(static_cast<u32>(value)) >> 8) + blocks_of(ds)) & 0xffff;
    }

    // Takes what the far registers said some turns ago, and asks again. Returns the lanes that have news.
    GIC_FN u32 hear_of_far(PerLane<u64>& now) {
        u32 news = far_ & ballot([&](u32 lane) { return coming_[lane] != seen_[lane]; });
        each_lane([&](u32 lane) {
            if ((news >> lane) & 1) now[lane] = coming_[lane];
            coming_[lane] = mem::load_relaxed<Scope::system>(far_page_[lane]);
        });
        return news;
    }

    // A register of the queue pair's page has a new value; the record showed `shown`.
    GIC_FN void hear(u64 value, u32 shown, u32 state) {
        u32 qpn = be32(static_cast<u32>(value >> 32)) >> 8;
        if (GIC_SELDOM(qpn != q_.qpn())) {
            if (s_.fixed.flags & kPageLead) report_foreign(qpn);
            // This one's ring may have been overwritten before it was seen.
            if ((s_.fixed.flags & kSharedPage) && shown != (q_.producer() & 0xffff)) advance(shown);
            return;
        }
        ring(rung_for(value), shown, state);
    }

    // A register announced `low`; the record showed `shown`.
    GIC_FN void ring(u32 low, u32 shown, u32 state) {
        if (GIC_SELDOM(state != static_cast<u32>(State::rts) && state != static_cast<u32>(State::error))) {
            once([&] { report(t_, q_.nic(), FindingKind::not_ready, q_.qpn(), 0, 0); });
            return;
        }
        u32 depth = q_.depth();
        // The record was read together with the register: where it doesn't cover the ring there may be a newer.
        if (((shown - low) & 0xffff) > depth) shown = look_at_record();
        if (shown != (q_.producer() & 0xffff) && !advance(shown)) return;
        if (GIC_SELDOM(((static_cast<u32>(q_.producer()) - low) & 0xffff) > depth)) {
            once([&] {
                s_.own.rung = low;
                s_.own.watched = 0;
            });
            attention_ |= kWatching;
        }
    }

    GIC_FN u32 look_at_record() const {
        Warp warp;
        return static_cast<u32>(warp.elect(
            [&] { return u64{be32(mem::load_acquire<Scope::system>(s_.fixed.record + 1)) & 0xffff}; }));
    }

    // Looks at a record that lags behind its ring.
    GIC_FN void watch() {
        u32 shown = look_at_record();
        if (shown != (q_.producer() & 0xffff)) {
            if (!advance(shown)) {
                attention_ &= ~kWatching;
                return;
            }
        } else {
            once([&] {
                s_.own.watched += 1;
                if (s_.own.watched != kPatience) return;
                u32 receive = be32(mem::load_acquire<Scope::system>(s_.fixed.record)) & 0xffff;
                if (receive == s_.own.rung)
                    report(t_, q_.nic(), FindingKind::receive_record_for_send, q_.qpn(), 0, receive);
            });
        }
        if (((static_cast<u32>(q_.producer()) - s_.own.rung) & 0xffff) <= q_.depth())
            attention_ &= ~kWatching;
    }

    // Moves the producer forward to `low`. False if it was refused.
    GIC_FN bool advance(u32 low) {
        u64 producer = q_.producer() + ((low - static_cast<u32>(q_.producer())) & 0xffff);
        if (GIC_SELDOM(producer - q_.head() > q_.depth())) {
            once([&] {
                report(t_, q_.nic(), FindingKind::doorbell_too_far, q_.qpn(), q_.head(), low, q_.depth());
            });
            return false;
        }
        q_.post(producer);
        return true;
    }

    // A ring at this page for another queue pair: for one that isn't there, or isn't the page's?
    GIC_FN void report_foreign(u32 qpn) {
        const Qp* other = find_qp(t_, q_.nic(), qpn);
        if (other && other->fixed.page == s_.fixed.page) return;
        once([&] { report(t_, q_.nic(), FindingKind::no_such_qp, qpn, 0, 0); });
    }

    // Executes what is posted. Returns how many WQEs came to their end.
    GIC_FN u32 serve(bool broken, u32 budget) {
        u32 done = 0;
        u32 turn = budget < kTurn ? budget : kTurn;
        bool more = broken || q_.producer() != q_.head() || (attention_ & kFlushing) != 0;
        attention_ &= ~kUnfinished;
        GIC_ROLLED
        while (more && done < turn) {
            u32 n = q_.write(turn - done);
            more = q_.producer() != q_.head();
            if (n == 0) {
                q_.put_down();
                n = run_general<S>(t_, s_, turn - done);
                q_.pick_up();
                attention_ |= s_.own.attention & kFlushing;
                more = q_.producer() != q_.head();
                if (n == 0) break;
            }
            done += n;
        }
        if (more) attention_ |= kUnfinished;
        return done;
    }

    const Tables& t_;
    u32 index_;
    Scratch& s_;
    u32 mine_;

    // The group that is polled.
    u32 group_ = ~0u;
    u32 heard_ = 0;  // lanes whose word's change is acted on
    u32 far_ = 0;    // lanes of registers that are asked seldom, and heard of later
    u32 turns_ = 0;
    u32 served_ = kWarp;  // first lane of the queue pair that is served
    u32 busy_ = 0;        // state lanes of queue pairs that are to be visited in any case
    PerLane<u64> qps_;
    PerLane<const u64*> polled_;
    PerLane<const u64*> far_page_;  // of registers far away; others' lanes ask what they poll anyway
    PerLane<u64> coming_;
    PerLane<u64> audited_;  // seen at the last audit
    PerLane<u64> settled_;  // of records: rung for, or told of
    PerLane<u64> seen_;

    Served<S> q_;
    u32 attention_ = 0;  // of the queue pair that is served
};

}  // namespace nic
}  // namespace gic
