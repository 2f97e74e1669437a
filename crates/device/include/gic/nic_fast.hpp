// A queue pair in a warp's registers, and its writes of one aligned word: a WQE a lane and row, all checks made by
// its lane, one fence for all.
#pragma once

#include "gic/nic_core.hpp"

namespace gic {
namespace nic {

constexpr u32 kRows = 4;  // WQEs a lane in flight

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
class Served {
  public:
    GIC_FN Served(const Tables& t, Scratch& scratch) : t_(t), s_(scratch) {}

    GIC_FN Qp* qp() const { return qp_; }
    GIC_FN u32 qpn() const { return qpn_; }
    GIC_FN u32 nic() const { return nic_; }
    GIC_FN u32 depth() const { return mask_ + 1; }
    GIC_FN u64 head() const { return head_; }
    GIC_FN u64 producer() const { return producer_; }
    // Blocks before `producer` are posted.
    GIC_FN void post(u64 producer) { producer_ = producer; }

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
        entry_bytes_ = 0;
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

    // Executes fast writes from the head on; returns how many, 0 if the first is something else.
    GIC_FN u32 write(u32 budget) {
        if (!plain_) return 0;
        u64 posted = producer_ - head_;
        return posted == 1 ? one() : posted <= kWarp ? fast<1>(budget) : fast<kRows>(budget);
    }

  private:
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
            u32 own = mem::load_relaxed<S>(&qp_->shared.state);
            u32 peers = mem::load_relaxed<S>(&peer_->shared.state);
            fetch(row, 0, 0);
            check(row, 0, 0);
            if (own != static_cast<u32>(State::rts) ||
                (peers != static_cast<u32>(State::rts) && peers != static_cast<u32>(State::rtr)) ||
                row.bytes[0] == 0)
                return u64{0};
            store(row, 0);
            if (row.flags[0] == 0) return u64{1};
            u8* at = ring_ + (collapsed() ? 0 : (produced_ & ((u64{1} << log_cq_) - 1)) * 64);
            if (!collapsed() || row.bytes[0] != entry_bytes_) write_entry(at, row.bytes[0]);
            mem::store_release<S>(reinterpret_cast<u64*>(at + 56), tail(static_cast<u32>(head_), produced_));
            return u64{1} + row.bytes[0];
        }));
        if (done == 0) return 0;
        head_ += 1;
        completed_ += 1;
        if (done == 1) return 1;
        produced_ += 1;
        entry_bytes_ = done - 1;
        return 1;
    }

    // As many as there are, up to R a lane.
    template <u32 R>
    GIC_FN u32 fast(u32 budget) {
        u64 posted = producer_ - head_;
        u32 most = posted < R * kWarp ? static_cast<u32>(posted) : R * kWarp;
        if (budget < most) most = budget;
        Row rows[R];
        // All loads of a stage before what depends on them.
        u32 own = mem::load_relaxed<S>(&qp_->shared.state);
        u32 peers = mem::load_relaxed<S>(&peer_->shared.state);
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
        entry_bytes_ = 0;
    }

    const Tables& t_;
    Scratch& s_;
    Qp* qp_ = nullptr;
    Qp* peer_ = nullptr;
    u32 peer_nic_ = 0;
    u32 peer_access_ = 0;
    bool plain_ = false;
    u8* sq_ = nullptr;
    u8* ring_ = nullptr;
    u32 mask_ = 0;
    u32 nic_ = 0;
    u32 qpn_ = 0;
    u32 log_cq_ = 0;
    u32 cq_flags_ = 0;
    u32 entry_bytes_ = 0;  // a collapsed CQ's entry is a success of so many bytes; 0 where that isn't known
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
