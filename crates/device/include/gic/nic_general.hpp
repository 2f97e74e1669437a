// The NIC engine's general path: one WQE at a time, of any kind, and everything that goes wrong.
//
// All lanes run it with the same values; what must happen once happens in `once`, and bytes are moved by the
// whole warp. It works on the warp's own memory, where its caller has put the queue pair.
#pragma once

#include "gic/nic_core.hpp"

namespace gic {
namespace nic {

// What became of a request.
enum class Verdict : u32 {
    done = 0,
    silent = 1,     // nobody answers
    not_ready = 2,  // no receive is posted
    busy = 3,       // another warp is at the peer's receives
    failed = 4,
};

struct Result {
    Verdict verdict = Verdict::done;
    Cause cause = {};
};
GIC_FN Result fails(Check check) {
    return {Verdict::failed, Cause::of(check)};
}

// A WQE as the requester understands it.
struct Request {
    u32 opcode;
    u32 opmod;
    u32 length;
    u32 data;  // segment at which the data list starts
    u32 ds;
    u32 flags;
    u32 imm;
    u32 rkey;
    u64 raddr;
    // Of a DC initiator's.
    u32 to_nic;
    u32 to_target;
    u64 to_key;
};

// Whom a request is for: a queue pair, or a DC target without one.
struct Peer {
    Qp* qp;
    u32 nic;
    u32 access;
};

template <Scope S>
class General {
  public:
    GIC_FN General(const Tables& t, Scratch& scratch) : t_(t), s_(scratch) {}

    // Deals with the WQE at the head, or flushes up to `budget`. Returns how many WQEs came to their end; 0
    // where there is nothing to do now.
    GIC_FN u32 run(u32 budget) {
        // Together with the WQE: neither waits for the other.
        u32 state = mem::load_relaxed<S>(&s_.qp->shared.state);
        u32 peers = s_.peer ? mem::load_relaxed<S>(&s_.peer->shared.state) : 0;
        if (s_.own.head != s_.own.producer) fetch();
        if (is(state, State::error)) return flush(budget);
        if (!is(state, State::rts) || s_.own.head == s_.own.producer) return 0;
        peer_answers_ = is(peers, State::rts) || is(peers, State::rtr);
        u64 now = 0;
        if (s_.own.waits_for != 0) {
            now = warp_.elect([&] { return now_ns(t_); });
            if (now < s_.own.wait_until) return 0;
        }
        u32 ds = byte_at(7) & kMaxDs;
        u32 opcode = byte_at(3);
        u64 posted = s_.own.producer - s_.own.head;
        u32 blocks = blocks_of(ds) == 0 ? 1 : blocks_of(ds);
        if (s_.own.waits_for == 1) {
            bool is_out = s_.own.retries == 0;
            if (is_out) return fail(opcode, blocks, Cause::of(Check::transport_retry));
            once([&] { s_.own.retries -= 1; });
        }
        Request r = {};
        Result result;
        if (blocks_of(ds) > posted) {
            result = fails(Check::split_wqe);
        } else {
            Check check = parse(r);
            if (check != Check::none) result = fails(check);
        }
        Peer peer = {};
        if (result.verdict == Verdict::done) {
            if (s_.own.held != 0 && (s_.own.held != (opcode | 0x100) || s_.own.held_length != r.length))
                return fail(opcode, blocks, Cause::of(Check::wqe_changed));
            bool is_local = r.opcode == static_cast<u32>(Opcode::nop);
            if (!is_local) result = find_peer(r, peer);
            if (result.cause.vendor() == static_cast<u32>(Check::no_route))
                return fail(opcode, blocks, result.cause);
        }
        if (s_.own.held == 0) {
            once([&] {
                inspect();
                s_.answer[0] = 0;
                if (s_.own.fail_after == 0) s_.answer[0] = s_.own.fail_cause.bits;
                if (s_.own.fail_after != kNever) s_.own.fail_after -= 1;
                s_.own.held = opcode | 0x100;
                s_.own.held_length = r.length;
            });
            Cause injected = {static_cast<u32>(s_.answer[0])};
            if (!injected.ok()) return fail(opcode, blocks, injected);
        }
        if (result.verdict == Verdict::done) result = execute(r, peer);
        switch (result.verdict) {
        case Verdict::done: return complete(r, blocks);
        case Verdict::failed: return fail(opcode, blocks, result.cause);
        case Verdict::busy: return 0;
        default: break;
        }
        bool not_ready = result.verdict == Verdict::not_ready;
        if (not_ready && s_.own.rnr_retries == 0) return fail(opcode, blocks, Cause::of(Check::rnr_retry));
        now = warp_.elect([&] { return now_ns(t_); });
        once([&] {
            if (not_ready) {
                if (s_.fixed.rnr_retry != 7) s_.own.rnr_retries -= 1;
                s_.own.wait_until = now + s_.fixed.rnr_wait_ns;
            } else {
                s_.own.wait_until = s_.fixed.timeout_ns == kNever ? kNever : now + s_.fixed.timeout_ns;
            }
            s_.own.waits_for = not_ready ? 2 : 1;
        });
        return 0;
    }

  private:
    // All lanes agree: what one of them saw, all have seen.
    GIC_FN static bool is(u32 state, State what) {
        return ballot([&](u32) { return state == static_cast<u32>(what); }) != 0;
    }

    // A key's region, from the warp's own memory where it was used before.
    GIC_FN Check check_region(u32 nic, u32 key, bool remote, u64 address, u64 bytes, u32 access) {
        CachedRegion& known = s_.regions[((key >> 9) & 7) | (remote ? 8 : 0)];
        if (known.key != key || known.nic != nic) {
            const Region* region = find_region(t_, nic, key, remote);
            if (!region) return remote ? Check::remote_key : Check::local_key;
            CachedRegion found = {key, nic, region->base, region->length, region->access, 0};
            once([&] { known = found; });
        }
        if ((known.access & access) != access)
            return remote ? Check::remote_permission : Check::local_permission;
        if (!is_inside(known.base, known.length, address, bytes))
            return remote ? Check::remote_bounds : Check::local_bounds;
        return Check::none;
    }

    GIC_FN u32 word_at(u32 byte) const {
        u64 wide = s_.wqe[byte / 8];
        return be32(static_cast<u32>(byte & 4 ? wide >> 32 : wide));
    }
    GIC_FN u64 wide_at(u32 byte) const { return be64(s_.wqe[byte / 8]); }
    GIC_FN u32 byte_at(u32 byte) const { return reinterpret_cast<const u8*>(s_.wqe)[byte]; }

    // Reads the WQE at the head: one block, and the others if its ds says that there are some.
    GIC_FN void fetch() {
        u32 mask = (kSegmentsPerBlock << s_.fixed.log_blocks) - 1;
        u32 first = static_cast<u32>(s_.own.head) << 2;
        auto read = [&](u32 from, u32 to) {
            warp_.sync();
            for (u32 s = from; s < to; s += kWarp) {
                each_lane([&](u32 lane) {
                    if (s + lane >= to) return;
                    u64 at = static_cast<u64>((first + s + lane) & mask) * kSegmentBytes;
                    Segment segment = load16<S>(s_.fixed.sq + at);
                    s_.wqe[2 * (s + lane)] = segment.low;
                    s_.wqe[2 * (s + lane) + 1] = segment.high;
                });
            }
            warp_.sync();
        };
        read(0, kSegmentsPerBlock);
        u32 blocks = blocks_of(byte_at(7) & kMaxDs);
        if (blocks > 1) read(kSegmentsPerBlock, blocks * kSegmentsPerBlock);
    }

    // Says what is wrong with the slot that was fetched. One lane calls it.
    GIC_FN void inspect() {
        u32 first = word_at(0);
        u32 second = word_at(4);
        if (first == 0 && second == 0) {
            report(t_, s_.fixed.nic, FindingKind::unwritten_slot, s_.fixed.qpn, s_.own.head, kBlank);
            return;
        }
        u32 found = (first >> 8) & 0xffff;
        int ahead = static_cast<short>(static_cast<u16>(found - static_cast<u32>(s_.own.head)));
        if (ahead != 0) {
            FindingKind kind = FindingKind::index_mismatch;
            if (ahead % (1 << s_.fixed.log_blocks) == 0)
                kind = ahead < 0 ? FindingKind::unwritten_slot : FindingKind::slot_overwritten;
            report(t_, s_.fixed.nic, kind, s_.fixed.qpn, s_.own.head, found);
        }
        if (second >> 8 != s_.fixed.qpn)
            report(t_, s_.fixed.nic, FindingKind::qpn_mismatch, s_.fixed.qpn, s_.own.head, second >> 8);
    }

    GIC_FN static bool is_atomic(u32 opcode) {
        return opcode == static_cast<u32>(Opcode::atomic_cs) ||
               opcode == static_cast<u32>(Opcode::atomic_fa) ||
               opcode == static_cast<u32>(Opcode::atomic_masked_cs) ||
               opcode == static_cast<u32>(Opcode::atomic_masked_fa);
    }
    GIC_FN static bool is_send(u32 opcode) {
        return opcode == static_cast<u32>(Opcode::send) || opcode == static_cast<u32>(Opcode::send_imm);
    }
    GIC_FN static u32 operand_bytes(const Request& r) {
        bool masked = r.opcode >= static_cast<u32>(Opcode::atomic_masked_cs);
        return masked && r.opmod == kOpmodExtended4 ? 4 : 8;
    }

    // Checks the WQE, its local keys included.
    GIC_FN Check parse(Request& r) {
        u32 first = word_at(0);
        u32 second = word_at(4);
        r.ds = second & kMaxDs;
        if (r.ds == 0) return Check::ds_zero;
        if (second >> 8 != s_.fixed.qpn) return Check::qpn_mismatch;
        r.opcode = first & 0xff;
        r.opmod = first >> 24;
        r.flags = word_at(8) & 0xff;
        bool reads_back = false;
        switch (static_cast<Opcode>(r.opcode)) {
        case Opcode::nop: return Check::none;
        case Opcode::rdma_write:
        case Opcode::rdma_write_imm: r.data = 2; break;
        case Opcode::send:
        case Opcode::send_imm: r.data = 1; break;
        case Opcode::rdma_read:
            r.data = 2;
            reads_back = true;
            break;
        case Opcode::atomic_cs:
        case Opcode::atomic_fa:
            r.data = 3;
            reads_back = true;
            break;
        case Opcode::atomic_masked_cs:
        case Opcode::atomic_masked_fa:
            if (r.opmod != kOpmodExtended4 && r.opmod != kOpmodExtended4 + 1) return Check::atomic_mode;
            r.data =
                r.opcode == static_cast<u32>(Opcode::atomic_masked_cs) && r.opmod != kOpmodExtended4 ? 4 : 3;
            reads_back = true;
            break;
        default: return Check::opcode;
        }
        u32 at = kSegmentBytes;
        if (s_.fixed.flags & kDci) {
            u32 number = word_at(kSegmentBytes + 8);
            u32 segments = number >> 31 ? 3 : 1;
            if (r.ds < 1 + segments) return Check::address_vector;
            r.to_key = wide_at(kSegmentBytes);
            r.to_target = number & 0xffffff;
            r.to_nic = word_at(kSegmentBytes + 12) & 0xffff;
            r.data += segments;
            at += segments * kSegmentBytes;
        }
        if (r.ds < r.data) return Check::ds_for_opcode;
        r.imm = be32(word_at(12));
        if (!is_send(r.opcode)) {
            r.raddr = wide_at(at);
            r.rkey = word_at(at + 8);
        }
        u64 total = 0;
        u32 segment = r.data;
        while (segment < r.ds) {
            at = segment * kSegmentBytes;
            u32 count = word_at(at);
            if (count & kInlineHeader) {
                if (reads_back) return Check::ds_for_opcode;
                count &= ~kInlineHeader;
                if (count > (r.ds - segment) * kSegmentBytes - 4) return Check::inline_length;
                segment += inline_segments(count);
            } else {
                if (count != 0) {
                    Check check = check_region(s_.fixed.nic, word_at(at + 4), false, wide_at(at + 8), count,
                                               reads_back ? kLocalWrite : 0);
                    if (check != Check::none) return check;
                }
                segment += 1;
            }
            total += count;
        }
        if (total > kMaxMessage) return Check::message_length;
        r.length = static_cast<u32>(total);
        if (is_atomic(r.opcode) && r.length != operand_bytes(r)) return Check::atomic_result;
        return Check::none;
    }

    GIC_FN Result find_peer(const Request& r, Peer& peer) const {
        if (s_.fixed.flags & kDci) {
            if (r.to_nic == 0 || r.to_nic > kNics) return fails(Check::no_route);
            const Target* target = find_target(t_, r.to_nic - 1, r.to_target);
            if (!target) return {Verdict::silent};
            if (target->key != r.to_key) return fails(Check::dc_key);
            peer = {nullptr, r.to_nic - 1, target->access};
            return {};
        }
        if (!s_.peer || !peer_answers_) return {Verdict::silent};
        peer = {s_.peer, s_.peer_nic, s_.peer_access};
        return {};
    }

    // A failure that breaks the peer's side, too.
    GIC_FN static Result refuse(const Peer& peer, Check remote, Check local) {
        if (peer.qp) once([&] { break_qp(*peer.qp, Cause::of(local)); });
        return fails(remote);
    }

    GIC_FN Result execute(const Request& r, const Peer& peer) {
        Opcode opcode = static_cast<Opcode>(r.opcode);
        if (opcode == Opcode::nop) return {};
        // Earlier payload is placed before this one's.
        if (r.flags & kFence) once([&] { mem::fence<S>(); });
        if (is_send(r.opcode)) return send(r, peer);
        u32 needs = kRemoteAtomic;
        if (opcode == Opcode::rdma_write || opcode == Opcode::rdma_write_imm) needs = kRemoteWrite;
        if (opcode == Opcode::rdma_read) needs = kRemoteRead;
        if ((peer.access & needs) == 0) return refuse(peer, Check::qp_permission, Check::qp_permission);
        if (needs == kRemoteAtomic) return atomic(r, peer);
        if (opcode == Opcode::rdma_write_imm) return write_imm(r, peer);
        if (r.length == 0) return {};
        Check check = check_region(peer.nic, r.rkey, true, r.raddr, r.length, needs);
        if (check != Check::none) return refuse(peer, check, check);
        if (needs == kRemoteWrite) {
            gather(r, r.raddr, r.length);
        } else {
            scatter(r);
        }
        return {};
    }

    // Copies the first `most` bytes of the data list to `to`.
    GIC_FN void gather(const Request& r, u64 to, u64 most) {
        warp_.sync();
        u32 segment = r.data;
        while (segment < r.ds && most != 0) {
            u32 at = segment * kSegmentBytes;
            u32 count = word_at(at);
            bool is_inline = (count & kInlineHeader) != 0;
            count &= ~kInlineHeader;
            u32 take = count < most ? count : static_cast<u32>(most);
            if (is_inline) {
                copy_out<S>(to, reinterpret_cast<const u8*>(s_.wqe) + at + 4, take);
                segment += inline_segments(count);
            } else {
                copy_warp<S>(to, wide_at(at + 8), take);
                segment += 1;
            }
            to += take;
            most -= take;
        }
        warp_.sync();
    }

    // Copies remote bytes to the data list.
    GIC_FN void scatter(const Request& r) {
        warp_.sync();
        u64 from = r.raddr;
        for (u32 segment = r.data; segment < r.ds; segment++) {
            u32 at = segment * kSegmentBytes;
            u32 count = word_at(at);
            copy_warp<S>(wide_at(at + 8), from, count);
            from += count;
        }
        warp_.sync();
    }

    GIC_FN Result atomic(const Request& r, const Peer& peer) {
        u32 size = operand_bytes(r);
        if (r.raddr % size != 0) return refuse(peer, Check::atomic_alignment, Check::atomic_alignment);
        Check check = check_region(peer.nic, r.rkey, true, r.raddr, size, kRemoteAtomic);
        if (check != Check::none) return refuse(peer, check, check);
        Operands o = operands(r, size);
        once([&] {
            u64 old = modify<S>(t_, r.raddr, size, o);
            u32 done = 0;
            for (u32 segment = r.data; segment < r.ds; segment++) {
                u32 at = segment * kSegmentBytes;
                u32 count = word_at(at);
                // The sum of the counts is the operand's size.
                if (count != 0) store_piece<S>(wide_at(at + 8), old >> (8 * done), count);
                done += count;
            }
        });
        return {};
    }

    GIC_FN Operands operands(const Request& r, u32 size) const {
        u32 operands = r.opcode == static_cast<u32>(Opcode::atomic_masked_cs) && size == 8 ? 2 : 1;
        u32 at = (r.data - operands) * kSegmentBytes;
        Operands o = {};
        o.swap_mask = o.compare_mask = ~u64{0};
        o.is_add = r.opcode == static_cast<u32>(Opcode::atomic_fa) ||
                   r.opcode == static_cast<u32>(Opcode::atomic_masked_fa);
        bool masked = r.opcode >= static_cast<u32>(Opcode::atomic_masked_cs);
        if (size == 4) {
            o.value = word_at(at);
            o.compare = word_at(at + 4);
            o.compare_mask = o.is_add ? word_at(at + 4) : word_at(at + 12);
            o.swap_mask = word_at(at + 8);
        } else {
            o.value = wide_at(at);
            o.compare = wide_at(at + 8);
            if (o.is_add) o.compare_mask = masked ? wide_at(at + 8) : 0;
            if (!o.is_add && masked) {
                o.swap_mask = wide_at(at + 16);
                o.compare_mask = wide_at(at + 24);
            }
        }
        return o;
    }

    // Takes the peer's next receive and its lock. Afterwards `answer` has its index, length and key, address.
    GIC_FN Verdict take_receive(const Peer& peer) {
        if (!peer.qp || (peer.qp->fixed.flags & kHasReceives) == 0) return Verdict::not_ready;
        Qp& p = *peer.qp;
        once([&] {
            s_.answer[3] = static_cast<u64>(Verdict::busy);
            if (!take_lock(t_, p)) return;
            if (!has_receive(p)) {
                give_lock(t_, p);
                s_.answer[3] = static_cast<u64>(Verdict::not_ready);
                return;
            }
            u64 slot = p.shared.rq_head & ((u64{1} << p.fixed.log_rq) - 1);
            Segment wqe = load16<S>(p.fixed.rq + slot * kSegmentBytes);
            s_.answer[0] = p.shared.rq_head;
            s_.answer[1] = wqe.low;
            s_.answer[2] = wqe.high;
            s_.answer[3] = static_cast<u64>(Verdict::done);
            p.shared.rq_head += 1;
        });
        return static_cast<Verdict>(s_.answer[3]);
    }

    // Under the lock.
    GIC_FN static bool has_receive(Qp& p) {
        if (p.shared.rq_head == p.shared.rq_producer) {
            u32 record = be32(mem::load_acquire<Scope::system>(p.fixed.record));
            u32 ahead = (record - static_cast<u32>(p.shared.rq_producer)) & 0xffff;
            if (ahead <= 1u << p.fixed.log_rq) p.shared.rq_producer += ahead;
        }
        return p.shared.rq_head != p.shared.rq_producer;
    }

    // Completes the receive that was taken and gives the lock back; the CQ running over breaks the peer.
    GIC_FN Result complete_receive(const Peer& peer, u32 kind, u32 bytes, u32 imm, Check local,
                                   Check remote) {
        Qp& p = *peer.qp;
        once([&] {
            Entry e = {};
            e.kind = kind;
            e.qpn = p.fixed.qpn;
            e.index = static_cast<u32>(s_.answer[0]);
            e.bytes = bytes;
            e.imm = imm;
            if (local != Check::none) e.cause = Cause::of(local);
            Check broken = local;
            if (!push<S>(t_, p.fixed.nic, p.shared.receive, e) && local == Check::none)
                broken = Check::cq_overrun;
            if (broken != Check::none) break_qp(p, Cause::of(broken));
            give_lock(t_, p);
            s_.answer[3] = static_cast<u64>(broken);
        });
        if (s_.answer[3] == 0) return {};
        return fails(local == Check::none ? Check::remote_receive : remote);
    }

    GIC_FN void give_back_receive(const Peer& peer) {
        once([&] { give_lock(t_, *peer.qp); });
    }

    GIC_FN Result send(const Request& r, const Peer& peer) {
        Verdict verdict = take_receive(peer);
        if (verdict != Verdict::done) return {verdict};
        u32 length = be32(static_cast<u32>(s_.answer[1]));
        u32 lkey = be32(static_cast<u32>(s_.answer[1] >> 32));
        u64 to = be64(s_.answer[2]);
        if (r.length > (lkey == kListEnd ? 0 : length))
            return complete_receive(peer, 14, 0, 0, Check::receive_too_small, Check::remote_too_small);
        if (r.length != 0) {
            if (check_region(peer.nic, lkey, false, to, length, kLocalWrite) != Check::none)
                return complete_receive(peer, 14, 0, 0, Check::receive_access, Check::remote_receive);
            gather(r, to, r.length);
        }
        bool has_imm = r.opcode == static_cast<u32>(Opcode::send_imm);
        return complete_receive(peer, has_imm ? 3 : 2, r.length, has_imm ? r.imm : 0, Check::none,
                                Check::none);
    }

    GIC_FN Result write_imm(const Request& r, const Peer& peer) {
        // Only the last packet needs a receive: what comes before it is checked and placed without one.
        u32 before = r.length == 0 ? 0 : (r.length - 1) / kMtu * kMtu;
        Check check = Check::none;
        if (r.length != 0) check = check_region(peer.nic, r.rkey, true, r.raddr, r.length, kRemoteWrite);
        if (before != 0) {
            if (check != Check::none) return refuse(peer, check, check);
            gather(r, r.raddr, before);
        }
        Verdict verdict = take_receive(peer);
        if (verdict != Verdict::done) return {verdict};
        if (check != Check::none) {
            give_back_receive(peer);
            return refuse(peer, check, check);
        }
        gather(r, r.raddr, r.length);
        return complete_receive(peer, 1, r.length, r.imm, Check::none, Check::none);
    }

    GIC_FN Entry entry(u32 kind, u32 opcode, u64 index) const {
        Entry e = {};
        e.kind = kind;
        e.opcode = opcode;
        e.qpn = s_.fixed.qpn;
        e.index = static_cast<u32>(index);
        return e;
    }

    // One lane calls it. False if the CQ ran over.
    GIC_FN bool push_own(const Entry& e) {
        if (s_.own.drop_after != kNever && s_.own.drop_after-- == 0) return true;
        return push<S>(t_, s_.fixed.nic, s_.own.send, e);
    }

    GIC_FN u32 complete(const Request& r, u32 blocks) {
        once([&] {
            if (r.flags & kCqUpdate) {
                Entry e = entry(0, r.opcode, s_.own.head);
                e.bytes = r.length;
                if (!push_own(e)) break_qp(*s_.qp, Cause::of(Check::cq_overrun));
            }
            s_.own.head += blocks;
            forget_waiting();
            if (r.opcode != static_cast<u32>(Opcode::nop)) {
                s_.own.retries = s_.fixed.retry_cnt;
                s_.own.rnr_retries = s_.fixed.rnr_retry;
            }
        });
        return 1;
    }

    GIC_FN void forget_waiting() {
        s_.own.completed += 1;
        s_.own.held = 0;
        s_.own.waits_for = 0;
    }

    GIC_FN u32 fail(u32 opcode, u32 blocks, Cause cause) {
        once([&] {
            Entry e = entry(13, opcode, s_.own.head);
            e.cause = cause;
            break_qp(*s_.qp, cause);
            push_own(e);
            u64 posted = s_.own.producer - s_.own.head;
            s_.own.head += blocks < posted ? blocks : posted;
            forget_waiting();
        });
        return 1;
    }

    // What is posted to a queue pair in error is flushed, and so are its receives.
    GIC_FN u32 flush(u32 budget) {
        once([&] {
            u32 done = 0;
            if (s_.fixed.flags & kHasReceives) s_.own.attention |= kFlushing;
            while (s_.own.head != s_.own.producer && done < budget) {
                u64 slot = s_.own.head & ((u64{1} << s_.fixed.log_blocks) - 1);
                u64 control = load16<S>(s_.fixed.sq + slot * kBlockBytes).low;
                u64 posted = s_.own.producer - s_.own.head;
                u32 blocks = blocks_of(static_cast<u32>(control >> 56) & kMaxDs);
                if (blocks == 0) blocks = 1;
                Entry e = entry(13, static_cast<u32>(control >> 24) & 0xff, s_.own.head);
                e.cause = Cause::of(Check::flushed);
                push_own(e);
                s_.own.head += blocks < posted ? blocks : posted;
                forget_waiting();
                done += 1;
            }
            bool has_receives = (s_.fixed.flags & kHasReceives) != 0;
            if (has_receives && take_lock(t_, *s_.qp)) {
                while (done < budget && has_receive(*s_.qp)) {
                    Entry e = entry(14, 0, s_.qp->shared.rq_head);
                    e.cause = Cause::of(Check::flushed);
                    push<S>(t_, s_.fixed.nic, s_.qp->shared.receive, e);
                    s_.qp->shared.rq_head += 1;
                    done += 1;
                }
                give_lock(t_, *s_.qp);
            }
            s_.answer[0] = done;
        });
        return static_cast<u32>(s_.answer[0]);
    }

    const Tables& t_;
    Scratch& s_;
    Warp warp_;
    bool peer_answers_ = false;
};

// Out of line: what comes here seldom must not lie in the way of what comes always.
template <Scope S>
GIC_APART u32 run_general(const Tables& t, Scratch& scratch, u32 budget) {
    return General<S>(t, scratch).run(budget);
}

}  // namespace nic
}  // namespace gic
