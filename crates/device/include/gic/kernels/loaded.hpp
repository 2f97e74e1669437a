// A latency probe beside background traffic: thread 0 posts one operation at a time, while the threads behind it
// put as much, or as often, as they are told, until the probe has its samples.
#pragma once

#include "gic/kernels/proxy.hpp"

namespace gic {
namespace kernels {

// Words of `Load::control`, each in a line of its own.
constexpr u32 kStop = 0;     // set by the probe at its end
constexpr u32 kArrived = 8;  // background threads that have posted
// Words from one background thread's `Load::progress` to the next one's: a line.
constexpr u32 kProgress = 8;
// Background thread b marks its payloads with `first` + (b + 1) * 2^kValueShift + i, so that no two operations
// of a launch carry the same value.
constexpr u32 kValueShift = 40;
constexpr u32 kMaxWindow = 64;

// What both paths have in common. A queue is a queue pair or a ring. Thread 0 is the probe, thread 1 + b is
// background thread b, and where the probe times round trips thread 1 + `background` answers at the far side.
struct Load {
    u32 background;        // threads beside the probe
    u32 queues;            // background thread b uses queue b mod `queues`
    u32 probe_queue;       // `queues` or above: the probe's own
    u32 bytes;             // of the probe's operation; 8 for round trips
    u32 background_bytes;  // of a background operation
    u32 window;            // operations of a background thread outstanding, at most; 1 to kMaxWindow
    u64 slots;             // the probe's operation i goes from and to slot i mod `slots`,
    u64 stride;            // `stride` bytes apart, and carries `first` + i
    u64 background_at;     // offset of background slots; operation i of background thread b goes to its slot
    u64 background_slots;  // b * `background_slots` + i mod `background_slots`
    u64 background_stride;
    u64 interval;  // shared clock from one post of a background thread to its next; 0: no pause
    u64 hold;      // shared clock from the probe's first kept operation to the stop, at least
    u64 warmup;
    u64 samples;  // none: only the background is wanted, for as long as `hold` says
    u64 first;
    u64 deadline;      // ticks: of the background's start, and of its end
    u64* control;      // kStop, kArrived; 0 before
    u64* progress;     // completed operations of background thread b at kProgress * b; 0 before
    u64 target;        // round trips: address of the slots at the far side
    const u64* inbox;  // round trips: where replies arrive; null: completions are timed
    u64* issue;        // ticks, one a kept sample
    u64* total;        // ticks, until completion or reply, one a kept sample
    u64* carried;      // shared clock and the background's completed operations, before and after the samples
    u64* done;         // operations of each background thread, all completed
    u64* failure;      // one a thread
    u32 first_thread;  // of this launch: who answers may be another process's
    u32 threads;
};
static_assert(sizeof(Load) == 192, "mirrored by the host");

struct LoadedArgs {
    const Qp* qp;
    const Qp* answer;  // round trips: the far side's
    Local local;
    Remote remote;
    Local answer_local;    // 8 bytes from which replies leave
    Remote answer_remote;  // the inbox
    Load load;
};
static_assert(sizeof(LoadedArgs) == 272, "mirrored by the host");

// All requests are of channel 0. Replies leave from, and arrive at, offset 0 of the answering proxy's.
struct ProxyLoadedArgs {
    const Ring* ring;
    const Ring* answer;
    u64 local;         // address of the channel's local region
    u64 answer_local;  // the same at the far side
    Load load;
};
static_assert(sizeof(ProxyLoadedArgs) == 224, "mirrored by the host");

// The two paths as this kernel sees them.
template <class C>
struct GdaPath {
    static constexpr bool shared = C::shared;
    Endpoint<C> endpoint;
    Local local;
    Remote remote;

    GIC_FN void write(u64 offset, u32 bytes, u64 value) const {
        write_payload(local.address + offset, bytes, value);
    }
    GIC_FN Posted put(u64 offset, u32 bytes) {
        return endpoint.put({remote.address + offset, remote.rkey}, {local.address + offset, local.lkey},
                            bytes);
    }
    GIC_FN Outcome poll(u64 ticket) { return endpoint.poll(ticket); }
    GIC_FN Failure wait(u64 ticket) { return endpoint.wait(ticket).failure; }
    GIC_FN void save() { endpoint.save(); }
};

template <class C>
struct ProxyPath {
    static constexpr bool shared = C::shared;
    Producer<C> producer;
    u64 local;

    GIC_FN void write(u64 offset, u32 bytes, u64 value) const {
        write_payload(local + offset, bytes, value);
        settle_payload<C>();
    }
    GIC_FN Posted put(u64 offset, u32 bytes) {
        return push_slot<C, ProxyOp::put>(producer, 0, bytes, offset);
    }
    GIC_FN Outcome poll(u64 ticket) { return producer.poll(ticket); }
    GIC_FN Failure wait(u64 ticket) { return producer.wait(ticket).failure; }
    GIC_FN void save() { producer.save(); }
};

GIC_FN bool is_stopped(const Load& a) {
    return mem::load_relaxed<Scope::gpu>(a.control + kStop) != 0;
}

// The probe begins when all others are at work.
GIC_COLD Failure await_background(const Load& a) {
    Wait time(a.deadline);
    for (;;) {
        u64 arrived = mem::load_acquire<Scope::gpu>(a.control + kArrived);
        if (arrived >= a.background) return {};
        if (time.expired()) return Failure::of(Why::deadline_start, 0, static_cast<u32>(arrived));
    }
}

// What the background has completed by now.
GIC_COLD void note_carried(const Load& a, u32 end) {
    u64 sum = 0;
    for (u32 b = 0; b < a.background; b++)
        sum += mem::load_relaxed<Scope::gpu>(a.progress + static_cast<u64>(b) * kProgress);
    a.carried[2 * end] = shared_clock();
    a.carried[2 * end + 1] = sum;
}

template <class Path>
GIC_FN void probe(Path& path, const Load& a) {
    Failure failure = await_background(a);
    u64 n = a.warmup + a.samples, last = 0, begin = 0;
    // In a register: what device memory accesses clobber, as the compiler sees it, is read again after each.
    u32 bytes = a.bytes;
    for (u64 i = 0; i <= n && failure.ok(); i++) {
        if (i == a.warmup) {
            note_carried(a, 0);
            begin = a.carried[0];
        }
        if (i == n) break;
        u64 offset = i % a.slots * a.stride;
        u64 value = a.first + i;
        path.write(offset, bytes, value);

        u64 start = clock_ticks();
        Posted p = path.put(offset, bytes);
        u64 issued = clock_ticks();
        failure = p.failure;
        if (failure.ok())
            failure = a.inbox ? await_value(a.inbox, value, a.deadline, 0) : path.wait(p.ticket);
        u64 done = clock_ticks();

        last = p.ticket;
        if (i >= a.warmup && failure.ok()) {
            a.issue[i - a.warmup] = issued - start;
            a.total[i - a.warmup] = done - start;
        }
    }
    if (failure.ok()) {
        Wait time(a.deadline);
        while (shared_clock() - begin < a.hold && !time.expired()) {
        }
        note_carried(a, 1);
    }
    mem::store_release<Scope::gpu>(a.control + kStop, u64{1});
    if (failure.ok() && last != 0) failure = path.wait(last);
    path.save();
    a.failure[0] = failure.bits;
}

// One background thread: its operations, of which at most a window are outstanding.
template <class Path>
class Traffic {
  public:
    GIC_FN Traffic(Path& path, const Load& a, u32 b)
        : path_(path), a_(a), progress_(a.progress + static_cast<u64>(b) * kProgress),
          value_(a.first + (static_cast<u64>(b + 1) << kValueShift)),
          slots_(a.background_at + b * a.background_slots * a.background_stride) {}

    // Posts one, for which there may have to be waited until the oldest one has completed.
    GIC_FN Failure post() {
        if (posted_ - completed_ == a_.window) {
            Failure f = path_.wait(tickets_[oldest_]);
            if (!f.ok()) return f;
            complete();
        }
        u64 offset = slots_ + slot_ * a_.background_stride;
        path_.write(offset, a_.background_bytes, value_ + posted_);
        Posted p = path_.put(offset, a_.background_bytes);
        if (!p.failure.ok()) return p.failure;
        last_ = tickets_[next_] = p.ticket;
        posted_ += 1;
        if (++next_ == a_.window) next_ = 0;
        if (++slot_ == a_.background_slots) slot_ = 0;
        return {};
    }

    // Looks whether the oldest one has completed.
    GIC_FN Failure look() {
        if (posted_ == completed_) return {};
        Outcome o = path_.poll(tickets_[oldest_]);
        if (o.status == Status::done) complete();
        return o.status == Status::error ? o.failure : Failure{};
    }

    GIC_FN Failure finish() { return posted_ == 0 ? Failure{} : path_.wait(last_); }

    GIC_FN u64 posted() const { return posted_; }

  private:
    GIC_FN void complete() {
        completed_ += 1;
        if (++oldest_ == a_.window) oldest_ = 0;
        mem::store_relaxed<Scope::gpu>(progress_, completed_);
    }

    Path& path_;
    const Load& a_;
    u64* progress_;
    u64 value_, slots_, slot_ = 0;
    u64 posted_ = 0, completed_ = 0, last_ = 0;
    u32 next_ = 0, oldest_ = 0;
    u64 tickets_[kMaxWindow];
};

template <class Path>
GIC_FN void background(Path& path, const Load& a, u32 b) {
    Traffic<Path> traffic(path, a, b);
    Failure failure;
    // Threads that start together would all post together.
    u64 due = shared_clock() + (a.interval == 0 ? 0 : a.interval / a.background * b);
    Wait life(a.deadline);
    for (u32 turn = 0; failure.ok(); turn++) {
        // Looking for every operation would slow down who doesn't pause.
        if (a.interval != 0 || turn % 8 == 0) {
            if (is_stopped(a)) break;
            if (life.expired()) {
                failure = Failure::of(Why::deadline_completion, 0);
                break;
            }
        }
        if (a.interval != 0) {
            // Who comes too late doesn't catch up: the next time is an interval after the post.
            u64 late = shared_clock() - due;
            if (static_cast<long long>(late) < 0) {
                failure = traffic.look();
                continue;
            }
            due += a.interval + (late < a.interval ? 0 : late);
        }
        failure = traffic.post();
        if (failure.ok() && traffic.posted() == 1) mem::fetch_add<Scope::gpu>(a.control + kArrived, u64{1});
    }
    if (failure.ok()) failure = traffic.finish();
    // The probe doesn't wait for who never comes.
    if (traffic.posted() == 0) mem::fetch_add<Scope::gpu>(a.control + kArrived, u64{1});
    path.save();
    a.done[b] = traffic.posted();
    a.failure[1 + b] = failure.bits;
}

// Sends each of the probe's values back, until the probe has ended.
template <class Path>
GIC_FN void answer(Path& path, const Load& a) {
    Failure failure;
    u64 last = 0;
    bool going = true;
    Wait life(a.deadline);
    for (u64 i = 0; going && i < a.warmup + a.samples && failure.ok(); i++) {
        const u64* at = reinterpret_cast<const u64*>(a.target + i % a.slots * a.stride);
        while (going && mem::load_acquire<Scope::system>(at) != a.first + i) {
            going = !is_stopped(a);
            if (life.expired()) {
                failure = Failure::of(Why::deadline_completion, 0, static_cast<u32>(i));
                going = false;
            }
        }
        if (!going) break;
        path.write(0, 8, a.first + i);
        Posted p = path.put(0, 8);
        failure = p.failure;
        last = p.ticket;
    }
    if (failure.ok() && last != 0) failure = path.wait(last);
    path.save();
    a.failure[1 + a.background] = failure.bits;
}

// A choice that is for one thread alone, on a queue that others use, posts nothing and says so.
GIC_FN bool queues_fit(const Load& a, bool probe_shares, bool background_shares) {
    bool probe = probe_shares || a.probe_queue >= a.queues || a.background == 0;
    return probe && (background_shares || a.background <= a.queues);
}

template <class P, class B>
GIC_FN void loaded(const LoadedArgs& a, u32 thread) {
    const Load& l = a.load;
    if (!queues_fit(l, P::shared, B::shared)) {
        l.failure[thread] = Failure::of(Why::too_large, 0, thread).bits;
        return;
    }
    if (thread == 0) {
        GdaPath<P> path = {Endpoint<P>(a.qp[l.probe_queue]), a.local, a.remote};
        probe(path, l);
    } else if (thread <= l.background) {
        GdaPath<B> path = {Endpoint<B>(a.qp[(thread - 1) % l.queues]), a.local, a.remote};
        background(path, l, thread - 1);
    } else if (l.inbox) {
        using A = Choice<P::order, Sharing::exclusive, P::cq_kind, P::cq_load>;
        GdaPath<A> path = {Endpoint<A>(a.answer[0]), a.answer_local, a.answer_remote};
        answer(path, l);
    }
}

template <class P, class B>
GIC_FN void proxy_loaded(const ProxyLoadedArgs& a, u32 thread) {
    const Load& l = a.load;
    if (!queues_fit(l, P::shared, B::shared)) {
        l.failure[thread] = Failure::of(Why::too_large, 0, thread).bits;
        return;
    }
    if (thread == 0) {
        ProxyPath<P> path = {Producer<P>(a.ring[l.probe_queue]), a.local};
        probe(path, l);
    } else if (thread <= l.background) {
        ProxyPath<B> path = {Producer<B>(a.ring[(thread - 1) % l.queues]), a.local};
        background(path, l, thread - 1);
    } else if (l.inbox) {
        using A = ProxyChoice<P::handoff, Producers::one, P::progress, P::publish>;
        ProxyPath<A> path = {Producer<A>(a.answer[0]), a.answer_local};
        answer(path, l);
    }
}

}  // namespace kernels
}  // namespace gic
