// The software ConnectX's data path: doorbell, record, WQE, keys, data, CQE, for GPU memory as well as host
// memory. The same semantics and error completions as the CPU engine (crates/softnic).
//
// Queue pairs are dealt to warps; a warp's visit polls the doorbells of eight queue pairs at once and then
// serves those that rang. Writes of one aligned word, what nearly all WQEs are, take the fast path: a WQE a lane
// and row, all checks made by its lane, one completion for all. Everything else is nic_general.hpp's.
//
// Order within a queue pair: a completion, an atomic, a read, a send and a fenced WQE come behind all payload
// before them; of writes to one place the last one remains.
#pragma once

#include "gic/nic_general.hpp"

namespace gic {
namespace nic {

constexpr u32 kRows = 4;    // WQEs a lane in flight
constexpr u32 kPolled = 4;  // words polled of a queue pair: two registers, the record, its state
constexpr u32 kGroup = kWarp / kPolled;
constexpr u32 kPatience = 64;      // looks at a record that lags behind its ring
constexpr u32 kTurn = 16 * kWarp;  // WQEs of one queue pair, before it is another's turn

// A row of WQEs, one a lane.
struct Row {
    PerLane<Segment> data;  // as it was read; then `low` is the word
    PerLane<u64> first;     // of the control segment
    PerLane<u64> to;
    PerLane<u32> rkey;
    PerLane<u32> flags;
    PerLane<u32> bytes;  // 4 or 8; 0 where the lane has no fast write
    u32 fast;            // lanes that have one
    u32 signalled;       // of them
};

// A region that a lane knows.
struct Known {
    u32 key;
    u64 base;
    u64 length;
};

template <Scope S>
class Engine {
  public:
    GIC_FN Engine(const Tables& t, u32 warp, Scratch& scratch) : t_(t), index_(warp), s_(scratch) {
        mine_ = t.qps_in_order > warp ? (t.qps_in_order - warp + t.warps - 1) / t.warps : 0;
        once([&] { s_.qp = nullptr; });
        each_lane([&](u32 lane) {
            if (lane < 16) s_.regions[lane].nic = kNics;
            local_[lane] = {0, 0, 0};
            remote_[lane] = {0, 0, 0};
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
    GIC_FN void save() {
        if (!qp_) return;
        put_down();
        each_lane([&](u32 lane) {
            u64* to = reinterpret_cast<u64*>(&qp_->own);
            const u64* from = reinterpret_cast<const u64*>(&s_.own);
            if (lane < kOwnKept) to[lane] = from[lane];
        });
        Warp().sync();
    }

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
            Qp* qp = &t_.qps[t_.order[index_ + at * t_.warps]];
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
        if (far_ != 0 && (turns_++ & 7) == 0) changed |= hear_of_far(now);
        u32 left = changed | busy_;
        u32 done = count_bits(changed & 0x33333333u);
        GIC_ROLLED
        while (left != 0 && done < budget) {
            u32 first = lowest_bit(left) & ~(kPolled - 1);
            left &= ~(((1u << kPolled) - 1) << first);
            if (first != served_) {
                select(reinterpret_cast<Qp*>(value_of(qps_, first)));
                served_ = first;
            }
            u32 before = attention_ = (busy_ >> first) & 8 ? s_.own.attention : 0;
            u32 shown = be32(pick([&](u32 lane) { return now[lane] >> 32; }, first + 2)) & 0xffff;
            u32 state = pick([&](u32 lane) { return now[lane]; }, first + 3);
            u32 rang = (changed >> first) & 7;
            bool is_error = state == static_cast<u32>(State::error);
            if ((rang & 4) != 0 && shown != (producer_ & 0xffff) &&
                (is_error || state == static_cast<u32>(State::rts)))
                advance(shown);
            GIC_ROLLED
            for (rang &= 3; rang != 0; rang &= rang - 1)
                hear(value_of(now, first + lowest_bit(rang)), shown, state);
            if (GIC_SELDOM(attention_ & kWatching)) watch();
            u32 news = changed & (((1u << kPolled) - 1) << first);
            each_lane([&](u32 lane) {
                if (((news >> lane) & 1) == 0) return;
                if (lane < first + 2) qp_->own.seen[lane - first] = now[lane];
                seen_[lane] = now[lane];
            });
            done += serve(is_error, budget - done);
            if (GIC_SELDOM(attention_ != before)) {
                once([&] { s_.own.attention = qp_->own.attention = attention_; });
                busy_ = attention_ != 0 ? busy_ | 8u << first : busy_ & ~(8u << first);
            }
        }
        return done;
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
        u32 low = be32(static_cast<u32>(value));
        u32 high = be32(static_cast<u32>(value >> 32));
        u32 qpn = high >> 8;
        if (GIC_SELDOM(qpn != qpn_)) {
            if (s_.fixed.flags & kPageLead) report_foreign(qpn);
            // This one's ring may have been overwritten before it was seen.
            if ((s_.fixed.flags & kSharedPage) && shown != (producer_ & 0xffff)) advance(shown);
            return;
        }
        ring(((low >> 8) + blocks_of(high & 0xff)) & 0xffff, shown, state);
    }

    // A register announced `low`; the record showed `shown`.
    GIC_FN void ring(u32 low, u32 shown, u32 state) {
        if (GIC_SELDOM(state != static_cast<u32>(State::rts) && state != static_cast<u32>(State::error))) {
            once([&] { report(t_, nic_, FindingKind::not_ready, qpn_, 0, 0); });
            return;
        }
        u32 depth = mask_ + 1;
        // The record was read together with the register: where it doesn't cover the ring there may be a newer.
        if (((shown - low) & 0xffff) > depth) shown = look_at_record();
        if (shown != (producer_ & 0xffff) && !advance(shown)) return;
        if (GIC_SELDOM(((static_cast<u32>(producer_) - low) & 0xffff) > depth)) {
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
        if (shown != (producer_ & 0xffff)) {
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
                    report(t_, nic_, FindingKind::receive_record_for_send, qpn_, 0, receive);
            });
        }
        if (((static_cast<u32>(producer_) - s_.own.rung) & 0xffff) <= mask_ + 1) attention_ &= ~kWatching;
    }

    // Moves the producer forward to `low`. False if it was refused.
    GIC_FN bool advance(u32 low) {
        u64 producer = producer_ + ((low - static_cast<u32>(producer_)) & 0xffff);
        if (GIC_SELDOM(producer - head_ > mask_ + 1)) {
            once([&] { report(t_, nic_, FindingKind::doorbell_too_far, qpn_, head_, low, mask_ + 1); });
            return false;
        }
        producer_ = producer;
        return true;
    }

    // A ring at this page for another queue pair: for one that isn't there, or isn't the page's?
    GIC_FN void report_foreign(u32 qpn) {
        const Qp* other = find_qp(t_, nic_, qpn);
        if (other && other->fixed.page == s_.fixed.page) return;
        once([&] { report(t_, nic_, FindingKind::no_such_qp, qpn, 0, 0); });
    }

    // Executes what is posted. Returns how many WQEs came to their end.
    GIC_FN u32 serve(bool broken, u32 budget) {
        u32 done = 0;
        u32 turn = budget < kTurn ? budget : kTurn;
        bool more = broken || producer_ != head_ || (attention_ & kFlushing) != 0;
        attention_ &= ~kUnfinished;
        GIC_ROLLED
        while (more && done < turn) {
            u32 n = 0;
            if (plain_) {
                u64 posted = producer_ - head_;
                n = posted == 1 ? one() : posted <= kWarp ? fast<1>(turn - done) : fast<kRows>(turn - done);
            }
            more = producer_ != head_;
            if (n == 0) {
                put_down();
                n = run_general<S>(t_, s_, turn - done);
                pick_up();
                attention_ |= s_.own.attention & kFlushing;
                more = producer_ != head_;
                if (n == 0) break;
            }
            done += n;
        }
        if (more) attention_ |= kUnfinished;
        return done;
    }

    // Makes `qp` the one that is served.
    GIC_FN void select(Qp* qp) {
        if (qp_ == qp) return;
        save();
        qp_ = qp;
        each_lane([&](u32 lane) {
            const u64* fixed = reinterpret_cast<const u64*>(&qp->fixed);
            const u64* own = reinterpret_cast<const u64*>(&qp->own);
            if (lane < sizeof(QpFixed) / 8) reinterpret_cast<u64*>(&s_.fixed)[lane] = fixed[lane];
            if (lane < kOwnKept) reinterpret_cast<u64*>(&s_.own)[lane] = own[lane];
        });
        Warp().sync();
        const QpFixed& f = s_.fixed;
        // Once for a queue pair, and not for each WQE: what can't change while an engine runs.
        peer_ = f.flags & kDci ? nullptr : find_qp(t_, f.remote_nic, f.remote_qpn);
        if (peer_) {
            const QpFixed& p = peer_->fixed;
            peer_nic_ = p.nic;
            peer_access_ = p.access;
            if ((p.flags & kDci) || p.remote_qpn != f.qpn || p.remote_nic != f.nic || p.rq_psn != f.sq_psn)
                peer_ = nullptr;
        }
        once([&] {
            s_.qp = qp;
            s_.peer = peer_;
            s_.peer_nic = peer_nic_;
            s_.peer_access = peer_access_;
        });
        sq_ = f.sq;
        mask_ = (1u << f.log_blocks) - 1;
        nic_ = f.nic;
        qpn_ = f.qpn;
        ring_ = s_.own.send.ring;
        log_cq_ = s_.own.send.log_size;
        cq_flags_ = s_.own.send.flags;
        // Its keys are another's: no lane knows a region of its NIC.
        each_lane([&](u32 lane) {
            local_[lane].length = 0;
            remote_[lane].length = 0;
        });
        pick_up();
    }

    // What moves goes from the warp's memory to registers, and back.
    GIC_FN void pick_up() {
        const QpOwn& o = s_.own;
        head_ = o.head;
        producer_ = o.producer;
        completed_ = o.completed;
        produced_ = o.send.produced;
        consumed_ = o.send.consumed;
        plain_ = peer_ && (peer_access_ & kRemoteWrite) != 0 && o.waits_for == 0 && o.held == 0 &&
                 o.fail_after == kNever && o.drop_after == kNever && o.send.in_error == 0;
    }
    GIC_FN void put_down() {
        once([&] {
            s_.own.head = head_;
            s_.own.producer = producer_;
            s_.own.completed = completed_;
            s_.own.send.produced = produced_;
            s_.own.send.consumed = consumed_;
        });
    }

    // A lane's own check of a key and its bytes: the last region is known without looking.
    GIC_FN bool allows(Known& known, u32 nic, u32 key, bool remote, u64 address, u32 bytes,
                       u32 access) const {
        if (GIC_SELDOM(known.key != key || known.length == 0)) {
            const Region* region = find_region(t_, nic, key, remote);
            if (!region || (region->access & access) != access) return false;
            known = {key, region->base, region->length};
        }
        return is_inside(known.base, known.length, address, bytes);
    }

    // A lone fast write, by one lane. Returns 0 if it is something else.
    GIC_FN u32 one() {
        if (!cq_has_room(1)) return 0;
        Warp warp;
        u32 done = static_cast<u32>(warp.elect([&] {
            Row row;
            u32 own = mem::load_relaxed<Scope::gpu>(&qp_->shared.state);
            u32 peers = mem::load_relaxed<Scope::gpu>(&peer_->shared.state);
            fetch(row, 0, 0);
            check(row, 0, 0);
            if (own != static_cast<u32>(State::rts) ||
                (peers != static_cast<u32>(State::rts) && peers != static_cast<u32>(State::rtr)) ||
                row.bytes[0] == 0)
                return u64{0};
            store(row, 0);
            if (row.flags[0] == 0) return u64{1};
            u8* at = ring_ + (collapsed() ? 0 : (produced_ & ((u64{1} << log_cq_) - 1)) * 64);
            write_entry(at, row.bytes[0]);
            mem::store_release<S>(reinterpret_cast<u64*>(at + 56), tail(static_cast<u32>(head_), produced_));
            return u64{2};
        }));
        if (done == 0) return 0;
        head_ += 1;
        completed_ += 1;
        produced_ += done - 1;
        return 1;
    }

    // Executes fast writes from the head on; returns how many, 0 if the first is something else.
    template <u32 R>
    GIC_FN u32 fast(u32 budget) {
        u64 posted = producer_ - head_;
        u32 most = posted < R * kWarp ? static_cast<u32>(posted) : R * kWarp;
        if (budget < most) most = budget;
        Row rows[R];
        // All loads of a stage before what depends on them.
        u32 own = mem::load_relaxed<Scope::gpu>(&qp_->shared.state);
        u32 peers = mem::load_relaxed<Scope::gpu>(&peer_->shared.state);
        GIC_UNROLL
        for (u32 r = 0; r < R; r++) {
            rows[r].fast = rows[r].signalled = 0;
            if (r * kWarp < most) fetch_row(rows[r], r * kWarp, most);
        }
        GIC_UNROLL
        for (u32 r = 0; r < R; r++)
            if (r * kWarp < most) check_row(rows[r], r * kWarp);
        bool answers = own == static_cast<u32>(State::rts) &&
                       (peers == static_cast<u32>(State::rts) || peers == static_cast<u32>(State::rtr));
        if (GIC_SELDOM(ballot([&](u32) { return !answers; }) != 0)) return 0;
        // Up to the first that isn't one.
        u32 entries = 0;
        u32 taken = 0;
        bool open = true;
        GIC_UNROLL
        for (u32 r = 0; r < R; r++) {
            u32 in_order = rows[r].fast == kAllLanes ? kWarp : lowest_bit(~rows[r].fast);
            keep(rows[r], open ? in_order : 0);
            taken += count_bits(rows[r].fast);
            entries += count_bits(rows[r].signalled);
            open = open && in_order == kWarp;
        }
        if (taken == 0 || (entries != 0 && !cq_has_room(entries))) return 0;
        taken = 0;
        open = true;
        GIC_UNROLL
        for (u32 r = 0; r < R; r++) {
            if (!open) keep(rows[r], 0);
            if (rows[r].fast == 0) continue;
            u32 count = place(rows[r]);
            taken += count;
            open = count == kWarp;
        }
        announce(rows);
        head_ += taken;
        completed_ += taken;
        return taken;
    }

    GIC_FN static void keep(Row& row, u32 count) {
        row.fast = count == kWarp ? kAllLanes : (1u << count) - 1;
        row.signalled &= row.fast;
    }

    GIC_FN bool cq_has_room(u32 entries) {
        if (cq_flags_ & kIgnoreOverrun) return true;
        u64 size = u64{1} << log_cq_;
        if (produced_ - consumed_ + entries <= size) return true;
        put_down();
        once([&] { has_room(s_.own.send, entries); });
        consumed_ = s_.own.send.consumed;
        return produced_ - consumed_ + entries <= size;
    }

    // Reads a WQE's first three segments as they are.
    GIC_FN void fetch(Row& row, u32 nth, u32 lane) {
        const u8* at = sq_ + ((static_cast<u32>(head_) + nth) & mask_) * kBlockBytes;
        Segment control = load16<S>(at);
        Segment remote = load16<S>(at + 16);
        row.data[lane] = load16<S>(at + 32);
        row.first[lane] = control.low;
        row.flags[lane] = static_cast<u32>(control.high);
        row.to[lane] = remote.low;
        row.rkey[lane] = static_cast<u32>(remote.high);
        row.bytes[lane] = 1;
    }

    GIC_FN void fetch_row(Row& row, u32 first, u32 most) {
        each_lane([&](u32 lane) {
            row.bytes[lane] = 0;
            if (first + lane < most) fetch(row, first + lane, lane);
        });
    }

    // Decides whether a WQE that was read is a fast write, and loads what it writes.
    GIC_FN void check(Row& row, u32 nth, u32 lane) {
        row.bytes[lane] = 0;
        // Opmod 0, the slot's own index, RDMA_WRITE, this QP, three segments.
        u32 words = ((static_cast<u32>(head_) + nth) & 0xffff) << 8 | static_cast<u32>(Opcode::rdma_write);
        u64 due = pair32(words, qpn_ << 8 | 3);
        u32 flags = be32(row.flags[lane]) & 0xff;
        u64 to = row.to[lane] = be64(row.to[lane]);
        Segment data = row.data[lane];
        u32 count = be32(static_cast<u32>(data.low));
        bool is_inline = (count & kInlineHeader) != 0;
        u32 bytes = count & ~kInlineHeader;
        u32 rkey = be32(row.rkey[lane]);
        if (row.first[lane] != due || (flags & ~kCqUpdate) != 0 || (bytes != 8 && bytes != 4) ||
            (to & (bytes - 1)) != 0 || !allows(remote_[lane], peer_nic_, rkey, true, to, bytes, kRemoteWrite))
            return;
        u64 word;
        if (is_inline) {
            // The bytes begin in the middle of a word.
            word = data.low >> 32 | data.high << 32;
        } else {
            u32 lkey = be32(static_cast<u32>(data.low >> 32));
            u64 from = be64(data.high);
            if ((from & (bytes - 1)) != 0 || !allows(local_[lane], nic_, lkey, false, from, bytes, 0)) return;
            word = bytes == 8 ? mem::load_relaxed<S>(reinterpret_cast<const u64*>(from))
                              : mem::load_relaxed<S>(reinterpret_cast<const u32*>(from));
        }
        row.data[lane].low = word;
        row.flags[lane] = flags;
        row.bytes[lane] = bytes;
    }

    GIC_FN void check_row(Row& row, u32 first) {
        each_lane([&](u32 lane) {
            if (row.bytes[lane] != 0) check(row, first + lane, lane);
        });
        row.fast = ballot([&](u32 lane) { return row.bytes[lane] != 0; });
        row.signalled = ballot([&](u32 lane) { return row.bytes[lane] != 0 && row.flags[lane] != 0; });
    }

    GIC_FN void store(const Row& row, u32 lane) {
        u64 word = row.data[lane].low;
        if (row.bytes[lane] == 8) {
            mem::store_relaxed<S>(reinterpret_cast<u64*>(row.to[lane]), word);
        } else {
            mem::store_relaxed<S>(reinterpret_cast<u32*>(row.to[lane]), static_cast<u32>(word));
        }
    }

    // Stores a row's words: of writes to one place the last one's. Returns how many of them it could.
    GIC_FN u32 place(Row& row) {
        u32 count = count_bits(row.fast);
        PerLane<u64> ends;
        PerLane<u64> below;
        each_lane([&](u32 lane) { ends[lane] = row.to[lane] + row.bytes[lane]; });
        shift_up(ends, u64{0}, below);
        u32 descents = ballot([&](u32 lane) { return lane < count && row.to[lane] < below[lane]; });
        u32 stored = row.fast;
        // Ascending, or ascending from one point on round again: all apart. The usual case.
        bool apart = descents == 0 ||
                     ((descents & (descents - 1)) == 0 && value_of(ends, count - 1) <= value_of(row.to, 0));
        if (GIC_SELDOM(!apart)) {
            bool all_of_8 = ballot([&](u32 lane) { return lane < count && row.bytes[lane] != 8; }) == 0;
            if (all_of_8) {
                PerLane<u64> places;
                PerLane<u32> same;
                // A lane without a word is alone: no aligned address is odd.
                each_lane([&](u32 lane) { places[lane] = lane < count ? row.to[lane] : lane * 2 + 1; });
                same_value(places, same);
                stored = ballot([&](u32 lane) { return lane < count && highest_bit(same[lane]) == lane; });
            } else {
                count = lowest_bit(descents);
                keep(row, count);
                stored = row.fast;
            }
        }
        each_lane([&](u32 lane) {
            if ((stored >> lane) & 1) store(row, lane);
        });
        // A later row's words come behind this one's.
        Warp().sync();
        return count;
    }

    GIC_FN bool collapsed() const { return (cq_flags_ & kCollapsed) != 0; }

    // Calls `body(entry, number, bytes, index)` for each CQE that is to be written, on its lane.
    template <u32 R, class Body>
    GIC_FN void each_entry(const Row (&rows)[R], u32 total, Body body) {
        u32 slots = (1u << log_cq_) - 1;
        u32 before = 0;
        GIC_UNROLL
        for (u32 r = 0; r < R; r++) {
            u32 signalled = rows[r].signalled;
            if (signalled == 0) continue;
            each_lane([&](u32 lane) {
                if (((signalled >> lane) & 1) == 0) return;
                u32 rank = before + count_bits(signalled & ((1u << lane) - 1));
                if (collapsed() && rank + 1 != total) return;
                u64 nth = produced_ + rank;
                u32 slot = collapsed() ? 0 : static_cast<u32>(nth) & slots;
                body(ring_ + static_cast<u64>(slot) * 64, nth, rows[r].bytes[lane],
                     static_cast<u32>(head_) + r * kWarp + lane);
            });
            before += count_bits(signalled);
        }
    }

    // All of a CQE but its last word.
    GIC_FN void write_entry(u8* at, u32 bytes) {
        store16<S>(at, {0, 0});
        store16<S>(at + 16, {0, 0});
        store16<S>(at + 32, {0, static_cast<u64>(be32(bytes)) << 32});
        mem::store_relaxed<S>(reinterpret_cast<u64*>(at + 48), u64{0});
    }
    GIC_FN u64 tail(u32 index, u64 nth) const {
        return entry_tail(0, static_cast<u32>(Opcode::rdma_write), qpn_, index, nth, log_cq_);
    }

    // Writes the CQEs of what was placed: one each, or the last one where entries are overwritten.
    template <u32 R>
    GIC_FN void announce(const Row (&rows)[R]) {
        u32 total = 0;
        u32 last = 0;
        GIC_UNROLL
        for (u32 r = 0; r < R; r++) {
            total += count_bits(rows[r].signalled);
            if (rows[r].signalled != 0) last = highest_bit(rows[r].signalled);
        }
        if (total == 0) return;
        each_entry(rows, total, [&](u8* at, u64, u32 bytes, u32) { write_entry(at, bytes); });
        // Payload before CQE, of all lanes: who writes an entry fences, behind what the others did before.
        Warp().sync();
        if (collapsed()) {
            each_lane([&](u32 lane) {
                if (lane == last) mem::fence<S>();
            });
        } else {
            mem::fence<S>();
        }
        each_entry(rows, total, [&](u8* at, u64 nth, u32, u32 index) {
            mem::store_relaxed<S>(reinterpret_cast<u64*>(at + 56), tail(index, nth));
        });
        produced_ += total;
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
    PerLane<u64> seen_;

    // The queue pair that is served.
    Qp* qp_ = nullptr;
    Qp* peer_ = nullptr;
    u32 peer_nic_ = 0;
    u32 peer_access_ = 0;
    u32 attention_ = 0;
    bool plain_ = false;
    u8* sq_ = nullptr;
    u8* ring_ = nullptr;
    u32 mask_ = 0;
    u32 nic_ = 0;
    u32 qpn_ = 0;
    u32 log_cq_ = 0;
    u32 cq_flags_ = 0;
    u64 head_ = 0;
    u64 producer_ = 0;
    u64 completed_ = 0;
    u64 produced_ = 0;
    u64 consumed_ = 0;
    PerLane<Known> local_;
    PerLane<Known> remote_;
};

}  // namespace nic
}  // namespace gic
