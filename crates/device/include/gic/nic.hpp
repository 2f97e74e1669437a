// The software ConnectX's data path: doorbell, record, WQE, keys, data, CQE, for GPU memory as well as host
// memory. The same semantics and error completions as the CPU engine (crates/softnic).
//
// Queue pairs are dealt to warps; a warp's visit polls the doorbells of eight queue pairs at once and then
// serves those that rang. Small one-block writes, what nearly all WQEs are, take the fast path: a WQE a lane
// and row, all checks made by its lane, one completion for all. Everything else is nic_general.hpp's.
//
// Order within a queue pair: a completion, an atomic, a read, a send and a fenced WQE come behind all payload
// before them; of writes to one place the last one remains.
#pragma once

#include "gic/nic_general.hpp"

namespace gic {
namespace nic {

constexpr u32 kRows = 4;         // WQEs a lane in flight
constexpr u32 kSmall = 64;       // most bytes of a fast write
constexpr u32 kInlineMost = 28;  // of them in the WQE: one block
constexpr u32 kPolled = 4;       // words polled of a queue pair: two registers, the record, its state
constexpr u32 kGroup = kWarp / kPolled;
constexpr u32 kPatience = 64;      // looks at a record that lags behind its ring
constexpr u32 kTurn = 16 * kWarp;  // WQEs of one queue pair, before it is another's turn

// How a fast write's bytes get to their place.
enum class Source : u32 {
    none = 0,     // not a fast write
    value = 1,    // in `a`
    inlined = 2,  // in `a` to `d`
    memory = 3,   // at address `b`
};

// A row of WQEs, one a lane.
struct Row {
    PerLane<Source> source;
    PerLane<u32> length;
    PerLane<u64> to;
    PerLane<u64> a, b, c, d;
    u32 fast;       // lanes that hold one
    u32 signalled;  // of them
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
        each_lane([&](u32 lane) {
            local_[lane] = {0, 0, 0};
            remote_[lane] = {0, 0, 0};
        });
    }

    // Looks once at all of the warp's queue pairs and serves those that have something to do, with about
    // `budget` WQEs. Returns what was done: rings seen, and WQEs.
    GIC_FN u32 step(u32 budget) {
        u32 done = 0;
        for (u32 first = 0; first < mine_ && done < budget; first += kGroup) {
            load_group(first);
            done += poll(budget - done);
        }
        return done;
    }

    // Puts what is kept in registers back into the tables.
    GIC_FN void save() {
        if (!qp_) return;
        once([&] {
            qp_->head = head_;
            qp_->producer = producer_;
            qp_->completed = completed_;
            qp_->send.produced = produced_;
            qp_->send.consumed = consumed_;
        });
    }

  private:
    GIC_FN Qp& nth_qp(u32 nth) const { return t_.qps[t_.order[index_ + nth * t_.warps]]; }

    // Which words of which queue pairs the lanes poll.
    GIC_FN void load_group(u32 first) {
        if (first == group_) return;
        group_ = first;
        Warp().sync();
        u32 last = mine_ - first < kGroup ? mine_ - first : kGroup;
        each_lane([&](u32 lane) {
            u32 nth = lane / kPolled;
            u32 word = lane % kPolled;
            // A lane without a queue pair looks at the last one's, which changes nothing.
            Qp& qp = nth_qp(first + (nth < last ? nth : last - 1));
            const void* at = word < 2
                                 ? static_cast<const void*>(qp.page + kDoorbellAt + word * kDoorbellStride)
                             : word == 2 ? static_cast<const void*>(qp.record)
                                         : static_cast<const void*>(&qp.state);
            polled_[lane] = static_cast<const u64*>(at);
            seen_[lane] = word < 2 ? qp.seen[word] : 0;
            attention_[lane] = nth < last ? qp.attention : 0;
            used_[lane] = nth < last ? 1 : 0;
        });
    }

    GIC_FN u32 poll(u32 budget) {
        // What was stored before a ring, and before the record's word, is visible from here on.
        PerLane<u64> now;
        each_lane([&](u32 lane) { now[lane] = mem::load_acquire<Scope::system>(polled_[lane]); });
        u32 rang =
            ballot([&](u32 lane) { return used_[lane] && lane % kPolled < 2 && now[lane] != seen_[lane]; });
        u32 calls = ballot([&](u32 lane) {
            if (!used_[lane] || lane % kPolled != 3) return false;
            u32 attention = attention_[lane];
            bool broken = static_cast<u32>(now[lane]) == static_cast<u32>(State::error);
            return (attention & (kUnfinished | kWatching)) != 0 ||
                   (broken && (attention & kErrorHandled) == 0);
        });
        u32 done = count_bits(rang);
        u32 left = rang | calls;
        while (left != 0 && done < budget) {
            u32 nth = lowest_bit(left) / kPolled;
            u32 first = nth * kPolled;
            left &= ~(((1u << kPolled) - 1) << first);
            done += serve(nth, (rang >> first) & 3, now, budget - done);
        }
        return done;
    }

    // Serves the group's nth queue pair, whose registers `rang`.
    GIC_FN u32 serve(u32 nth, u32 rang, const PerLane<u64>& now, u32 budget) {
        u32 first = nth * kPolled;
        select(nth_qp(group_ + nth));
        u32 attention = value_of(attention_, first + 3);
        u32 before = attention;
        u32 shown = be32(static_cast<u32>(value_of(now, first + 2) >> 32)) & 0xffff;
        bool broken = static_cast<u32>(value_of(now, first + 3)) == static_cast<u32>(State::error);
        for (u32 word = 0; word < 2; word++) {
            if (((rang >> word) & 1) == 0) continue;
            u64 value = value_of(now, first + word);
            each_lane([&](u32 lane) {
                if (lane == first + word) {
                    seen_[lane] = value;
                    qp_->seen[word] = value;
                }
            });
            u32 low = be32(static_cast<u32>(value));
            u32 high = be32(static_cast<u32>(value >> 32));
            u32 qpn = high >> 8;
            if (qpn == qp_->qpn) {
                u32 producer = ((low >> 8) + blocks_of(high & 0xff)) & 0xffff;
                attention = ring(producer, shown, static_cast<u32>(value_of(now, first + 3)), attention);
            } else {
                if (qp_->flags & kPageLead) report_foreign(qpn);
                // This one's ring may have been overwritten before it was seen.
                if ((qp_->flags & kSharedPage) && shown != (producer_ & 0xffff)) advance(shown);
            }
        }
        if (attention & kWatching) attention = watch(attention);
        u32 done = 0;
        bool more = broken || producer_ != head_;
        u32 turn = budget < kTurn ? budget : kTurn;
        attention &= ~kUnfinished;
        while (more && done < turn) {
            u32 n = plain_ ? fast(turn - done) : 0;
            if (n == 0) {
                Qp& qp = *qp_;
                save();
                General<S> general(t_, qp, s_);
                n = general.run(turn - done);
                bool unfinished = general.is_unfinished();
                load(qp);
                attention |= qp.attention & kErrorHandled;
                if (n == 0) {
                    if (unfinished) attention |= kUnfinished;
                    break;
                }
                more = unfinished;
            } else {
                more = producer_ != head_;
            }
            done += n;
        }
        if (more && done >= turn) attention |= kUnfinished;
        if (attention != before) {
            each_lane([&](u32 lane) {
                if (lane / kPolled == nth) attention_[lane] = attention;
            });
            once([&] { qp_->attention = attention; });
        }
        return done;
    }

    // A register announced `low`; the record showed `shown`.
    GIC_FN u32 ring(u32 low, u32 shown, u32 state, u32 attention) {
        if (state != static_cast<u32>(State::rts) && state != static_cast<u32>(State::error)) {
            once([&] { report(t_, qp_->nic, FindingKind::not_ready, qp_->qpn, 0, 0); });
            return attention;
        }
        u32 depth = mask_ + 1;
        // The record was read together with the register: where it doesn't cover the ring there may be a newer.
        if (((shown - low) & 0xffff) > depth) shown = look_at_record();
        if (shown != (producer_ & 0xffff) && !advance(shown)) return attention;
        if (((static_cast<u32>(producer_) - low) & 0xffff) > depth) {
            once([&] {
                qp_->rung = low;
                qp_->watched = 0;
            });
            return attention | kWatching;
        }
        return attention;
    }

    GIC_FN u32 look_at_record() const {
        Warp warp;
        return static_cast<u32>(warp.elect(
            [&] { return u64{be32(mem::load_acquire<Scope::system>(qp_->record + 1)) & 0xffff}; }));
    }

    // Looks at a record that lags behind its ring.
    GIC_FN u32 watch(u32 attention) {
        u32 shown = look_at_record();
        if (shown != (producer_ & 0xffff)) {
            if (!advance(shown)) return attention & ~kWatching;
        } else {
            once([&] {
                qp_->watched += 1;
                if (qp_->watched != kPatience) return;
                u32 receive = be32(mem::load_acquire<Scope::system>(qp_->record)) & 0xffff;
                if (receive == qp_->rung)
                    report(t_, qp_->nic, FindingKind::receive_record_for_send, qp_->qpn, 0, qp_->rung);
            });
        }
        bool covered = ((static_cast<u32>(producer_) - qp_->rung) & 0xffff) <= mask_ + 1;
        return covered ? attention & ~kWatching : attention;
    }

    // Moves the producer forward to `low`. False if it was refused.
    GIC_FN bool advance(u32 low) {
        u64 producer = producer_ + ((low - static_cast<u32>(producer_)) & 0xffff);
        if (producer - head_ > mask_ + 1) {
            once([&] {
                report(t_, qp_->nic, FindingKind::doorbell_too_far, qp_->qpn, head_, low, mask_ + 1);
            });
            return false;
        }
        producer_ = producer;
        return true;
    }

    // A ring at this page for another queue pair: for one that isn't there, or isn't the page's?
    GIC_FN void report_foreign(u32 qpn) {
        const Qp* other = gic::nic::find_qp(t_, qp_->nic, qpn);
        if (other && other->page == qp_->page) return;
        once([&] { report(t_, qp_->nic, FindingKind::no_such_qp, qpn, 0, 0); });
    }

    // Makes `qp` the one in the registers.
    GIC_FN void select(Qp& qp) {
        if (qp_ == &qp) return;
        save();
        load(qp);
    }

    GIC_FN void load(Qp& qp) {
        qp_ = &qp;
        sq_ = qp.sq;
        mask_ = (1u << qp.log_blocks) - 1;
        first_word_ = static_cast<u64>(Opcode::rdma_write) << 32 | static_cast<u64>(qp.qpn) << 8;
        head_ = qp.head;
        producer_ = qp.producer;
        completed_ = qp.completed;
        produced_ = qp.send.produced;
        consumed_ = qp.send.consumed;
        ring_ = qp.send.ring;
        log_cq_ = qp.send.log_size;
        cq_flags_ = qp.send.flags;
        // Once for a queue pair, and not for each WQE: what can't change while an engine runs.
        peer_ = qp.flags & kDci ? nullptr : gic::nic::find_qp(t_, qp.remote_nic, qp.remote_qpn);
        plain_ = peer_ && !(peer_->flags & kDci) && peer_->remote_qpn == qp.qpn &&
                 peer_->remote_nic == qp.nic && peer_->rq_psn == qp.sq_psn &&
                 (peer_->access & kRemoteWrite) != 0 && qp.waits_for == 0 && qp.held == 0 &&
                 qp.fail_after == kNever && qp.drop_after == kNever && qp.send.in_error == 0;
    }

    // A lane's own check of a key and its bytes: the last region is known without looking.
    GIC_FN bool allows(Known& known, u32 nic, u32 key, bool remote, u64 address, u32 bytes,
                       u32 access) const {
        if (known.key != key || known.length == 0) {
            const Region* region = find_region(t_, nic, key, remote);
            if (!region || (region->access & access) != access) return false;
            known = {key, region->base, region->length};
        }
        return is_inside(known.base, known.length, address, bytes);
    }

    // Executes fast writes from the head on; returns how many, 0 if the first is something else.
    GIC_FN u32 fast(u32 budget) {
        u64 posted = producer_ - head_;
        u32 most = posted < kRows * kWarp ? static_cast<u32>(posted) : kRows * kWarp;
        if (budget < most) most = budget;
        Row rows[kRows];
        Warp warp;
        u32 states = static_cast<u32>(warp.elect([&] {
            u32 own = mem::load_relaxed<Scope::gpu>(&qp_->state);
            u32 peers = mem::load_relaxed<Scope::gpu>(&peer_->state);
            return u64{own == static_cast<u32>(State::rts) &&
                       (peers == static_cast<u32>(State::rts) || peers == static_cast<u32>(State::rtr))};
        }));
        if (states == 0) return 0;
        // All loads of a stage before what depends on them.
        GIC_UNROLL
        for (u32 r = 0; r < kRows; r++)
            if (r * kWarp < most) fetch(rows[r], r * kWarp, most);
        u32 taken = 0;
        u32 entries = 0;
        bool ended = false;
        GIC_UNROLL
        for (u32 r = 0; r < kRows; r++) {
            rows[r].fast = rows[r].signalled = 0;
            if (ended || r * kWarp >= most) continue;
            check(rows[r], r * kWarp);
            u32 in_order = ~rows[r].fast == 0 ? kWarp : lowest_bit(~rows[r].fast);
            rows[r].fast = in_order == kWarp ? kAllLanes : (1u << in_order) - 1;
            rows[r].signalled &= rows[r].fast;
            taken += in_order;
            entries += count_bits(rows[r].signalled);
            ended = in_order < kWarp;
        }
        if (taken == 0 || (entries != 0 && !cq_has_room(entries))) return 0;
        taken = 0;
        ended = false;
        GIC_UNROLL
        for (u32 r = 0; r < kRows; r++) {
            if (ended) rows[r].fast = 0;
            if (rows[r].fast == 0) continue;
            u32 count = place(rows[r]);
            taken += count;
            ended = count < kWarp;
            warp.sync();
        }
        announce(rows);
        head_ += taken;
        completed_ += taken;
        return taken;
    }

    GIC_FN bool cq_has_room(u32 entries) {
        if (cq_flags_ & kIgnoreOverrun) return true;
        u64 size = u64{1} << log_cq_;
        if (produced_ - consumed_ + entries <= size) return true;
        Warp warp;
        consumed_ = warp.elect([&] {
            Cq cq = qp_->send;
            cq.produced = produced_;
            cq.consumed = consumed_;
            has_room(cq, entries);
            return cq.consumed;
        });
        return produced_ - consumed_ + entries <= size;
    }

    // Reads a row of WQEs: the first three segments as they are.
    GIC_FN void fetch(Row& row, u32 first, u32 most) {
        each_lane([&](u32 lane) {
            u32 nth = first + lane;
            row.source[lane] = nth < most ? Source::memory : Source::none;
            if (nth >= most) return;
            u64 index = head_ + nth;
            const u8* at = sq_ + (static_cast<u64>(index) & mask_) * kBlockBytes;
            Segment control = load16<S>(at);
            Segment remote = load16<S>(at + 16);
            Segment data = load16<S>(at + 32);
            row.a[lane] = control.low;
            row.length[lane] = static_cast<u32>(control.high);
            row.to[lane] = remote.low;
            row.d[lane] = remote.high;
            row.b[lane] = data.low;
            row.c[lane] = data.high;
        });
    }

    // Decides which lanes of a row hold a fast write, and loads what they write.
    GIC_FN void check(Row& row, u32 first) {
        PerLane<u32> wants;
        each_lane([&](u32 lane) {
            wants[lane] = 0;
            if (row.source[lane] == Source::none) return;
            u64 index = (head_ + first + lane) & 0xffff;
            // What is left of the first words must be the number of segments.
            u64 ds = be64(row.a[lane]) ^ (first_word_ | index << 40);
            u32 flags = be32(row.length[lane]) & 0xff;
            u32 count = be32(static_cast<u32>(row.b[lane]));
            u32 rkey = be32(static_cast<u32>(row.d[lane]));
            u64 to = be64(row.to[lane]);
            bool is_inline = (count & kInlineHeader) != 0;
            u32 bytes = count & ~kInlineHeader;
            row.source[lane] = Source::none;
            row.to[lane] = to;
            row.length[lane] = bytes;
            if ((flags & ~kCqUpdate) != 0 || bytes == 0 || bytes > kSmall) return;
            if (!allows(remote_[lane], peer_->nic, rkey, true, to, bytes, kRemoteWrite)) return;
            bool is_word = (bytes == 8 || bytes == 4) && (to & (bytes - 1)) == 0;
            if (is_inline) {
                if (ds != inline_segments(bytes) + 2 || bytes > kInlineMost) return;
                Segment last = {0, 0};
                if (ds == 4) {
                    const u8* at = sq_ + ((head_ + first + lane) & mask_) * kBlockBytes;
                    last = load16<S>(at + 48);
                }
                // The bytes begin in the middle of a word.
                row.a[lane] = row.b[lane] >> 32 | row.c[lane] << 32;
                row.b[lane] = row.c[lane] >> 32 | last.low << 32;
                row.c[lane] = last.low >> 32 | last.high << 32;
                row.d[lane] = last.high >> 32;
                row.source[lane] = is_word ? Source::value : Source::inlined;
            } else {
                u32 lkey = be32(static_cast<u32>(row.b[lane] >> 32));
                u64 from = be64(row.c[lane]);
                if (ds != 3 || !allows(local_[lane], qp_->nic, lkey, false, from, bytes, 0)) return;
                row.b[lane] = from;
                row.source[lane] = Source::memory;
                if (is_word && (from & (bytes - 1)) == 0) {
                    row.a[lane] = load_piece<S>(from, bytes);
                    row.source[lane] = Source::value;
                }
            }
            wants[lane] = flags & kCqUpdate;
        });
        row.fast = ballot([&](u32 lane) { return row.source[lane] != Source::none; });
        row.signalled = ballot([&](u32 lane) { return wants[lane] != 0; });
    }

    // Stores a row's bytes: of writes to one place the last one's. Returns how many of them it could.
    GIC_FN u32 place(Row& row) {
        u32 count = count_bits(row.fast);
        PerLane<u64> ends;
        PerLane<u64> below;
        each_lane([&](u32 lane) { ends[lane] = row.to[lane] + row.length[lane]; });
        shift_up(ends, u64{0}, below);
        u32 descents = ballot([&](u32 lane) { return lane < count && row.to[lane] < below[lane]; });
        u32 stored = row.fast;
        // Ascending, or ascending from one point on round again: all apart. The usual case.
        bool apart = descents == 0 ||
                     ((descents & (descents - 1)) == 0 && value_of(ends, count - 1) <= value_of(row.to, 0));
        if (!apart) {
            bool words =
                ballot([&](u32 lane) {
                    return lane < count && (row.source[lane] != Source::value || row.length[lane] != 8);
                }) == 0;
            if (words) {
                PerLane<u64> places;
                PerLane<u32> same;
                // A lane without a word is alone: no aligned address is odd.
                each_lane([&](u32 lane) { places[lane] = lane < count ? row.to[lane] : lane * 2 + 1; });
                same_value(places, same);
                stored = ballot([&](u32 lane) { return lane < count && highest_bit(same[lane]) == lane; });
            } else {
                count = lowest_bit(descents);
                stored = row.fast = (1u << count) - 1;
                row.signalled &= row.fast;
            }
        }
        each_lane([&](u32 lane) {
            if (((stored >> lane) & 1) == 0) return;
            u64 to = row.to[lane];
            u32 bytes = row.length[lane];
            if (row.source[lane] == Source::value) {
                if (bytes == 8) {
                    mem::store_relaxed<S>(reinterpret_cast<u64*>(to), row.a[lane]);
                } else {
                    mem::store_relaxed<S>(reinterpret_cast<u32*>(to), static_cast<u32>(row.a[lane]));
                }
            } else if (row.source[lane] == Source::memory) {
                copy_small<S>(to, row.b[lane], bytes);
            } else {
                const u64 words[4] = {row.a[lane], row.b[lane], row.c[lane], row.d[lane]};
                GIC_UNROLL
                for (u32 i = 0; i < 4; i++) {
                    if (i * 8 < bytes)
                        store_piece<S>(to + i * 8, words[i], bytes - i * 8 < 8 ? bytes - i * 8 : 8);
                }
            }
        });
        return count;
    }

    // Calls `body(entry, number, bytes, index)` for each CQE that is to be written, on its lane.
    template <class Body>
    GIC_FN void each_entry(const Row (&rows)[kRows], u32 total, Body body) {
        bool collapsed = (cq_flags_ & kCollapsed) != 0;
        u64 slots = (u64{1} << log_cq_) - 1;
        u32 before = 0;
        GIC_UNROLL
        for (u32 r = 0; r < kRows; r++) {
            u32 signalled = rows[r].signalled;
            each_lane([&](u32 lane) {
                if (((signalled >> lane) & 1) == 0) return;
                u32 rank = before + count_bits(signalled & ((1u << lane) - 1));
                if (collapsed && rank + 1 != total) return;
                u64 nth = produced_ + rank;
                body(ring_ + (collapsed ? 0 : nth & slots) * 64, nth, rows[r].length[lane],
                     head_ + r * kWarp + lane);
            });
            before += count_bits(signalled);
        }
    }

    // Writes the CQEs of what was placed: one each, or the last one where entries are overwritten.
    GIC_FN void announce(Row (&rows)[kRows]) {
        u32 total = 0;
        GIC_UNROLL
        for (u32 r = 0; r < kRows; r++) {
            rows[r].signalled &= rows[r].fast;
            total += count_bits(rows[r].signalled);
        }
        if (total == 0) return;
        each_entry(rows, total, [&](u8* at, u64, u32 bytes, u64) {
            store16<S>(at, {0, 0});
            store16<S>(at + 16, {0, 0});
            store16<S>(at + 32, {0, static_cast<u64>(be32(bytes)) << 32});
            mem::store_relaxed<S>(reinterpret_cast<u64*>(at + 48), u64{0});
        });
        // Payload before CQE, of all lanes: the fence is each lane's own, behind what the others did before.
        Warp().sync();
        mem::fence<S>();
        u32 qpn = static_cast<u32>(first_word_) >> 8;
        each_entry(rows, total, [&](u8* at, u64 nth, u32, u64 index) {
            mem::store_relaxed<S>(reinterpret_cast<u64*>(at + 56),
                                  entry_tail(0, static_cast<u32>(Opcode::rdma_write), qpn,
                                             static_cast<u32>(index), nth, log_cq_));
        });
        produced_ += total;
    }

    const Tables& t_;
    u32 index_;
    Scratch& s_;
    u32 mine_;
    u32 group_ = ~0u;

    // The group that is polled.
    PerLane<const u64*> polled_;
    PerLane<u64> seen_;
    PerLane<u32> attention_;
    PerLane<u32> used_;

    // The queue pair that is served.
    Qp* qp_ = nullptr;
    Qp* peer_ = nullptr;
    bool plain_ = false;
    u8* sq_ = nullptr;
    u8* ring_ = nullptr;
    u32 mask_ = 0;
    u32 log_cq_ = 0;
    u32 cq_flags_ = 0;
    u64 first_word_ = 0;
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
