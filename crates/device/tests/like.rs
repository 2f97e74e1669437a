//! What a put like a library's does where no queue pair of a test's NIC leads it, by host threads over structures that
//! are made by hand: what it leaves in the send queue, and what it refuses.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use device::host::launch_like;
use device::like::{
    CPU_RINGS, ChunkKey, DocaQp, GPU_RINGS, IBGDA_DCI, IBGDA_RC, IbgdaCq, IbgdaQp, Like, LikeArgs,
    LikeQueue, LikeState, LikeTables, PROXY_BACKEND, Peer, Step, TARGETS,
};
use device::view::{Failure, Local, QuietScope, Remote, Why};

const QPN: u32 = 0x1234;
const BLOCKS: usize = 8;
const LKEY: u32 = 0x0a0b_0c0d;
const RKEY: u32 = 0x0102_0304;
/// Where the bytes go, which nobody follows.
const FAR: u64 = 1 << 40;
const VECTOR: [u64; 2] = [0x1111_2222_3333_4444, 0x5555_6666_7777_8888];

/// Memory of a queue pair, as 64-bit words.
struct Queue {
    sq: Vec<u64>,
    cq: Vec<u64>,
    record: Box<u32>,
    doorbell: Box<u64>,
}

impl Queue {
    fn new() -> Self {
        Self {
            sq: vec![0; 8 * BLOCKS],
            cq: vec![u64::MAX; 8 * BLOCKS],
            record: Box::new(0),
            doorbell: Box::new(0),
        }
    }

    fn bytes(&self) -> Vec<u8> {
        self.sq.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    /// Block `index` from byte `at`, as it is on the wire.
    fn u32(&self, index: usize, at: usize) -> u32 {
        u32::from_be_bytes(self.bytes()[64 * index + at..][..4].try_into().unwrap())
    }
    fn u64(&self, index: usize, at: usize) -> u64 {
        u64::from(self.u32(index, at)) << 32 | u64::from(self.u32(index, at + 4))
    }
}

/// One put of `bytes` bytes, of which nobody tells that it is completed.
fn put(like: Like, bytes: u32, args: LikeArgs) -> Option<Failure> {
    let (mut issue, mut total, mut failure) = (0u64, 0u64, u64::MAX);
    let args = LikeArgs {
        scope: QuietScope::One,
        bytes,
        threads: 1,
        slots: 1,
        stride: 8,
        warmup: 0,
        samples: 1,
        first: 7,
        deadline: 1000,
        issue: &raw mut issue,
        total: &raw mut total,
        failure: &raw mut failure,
        ..args
    };
    // SAFETY: what the arguments lead to outlives the launch, and nobody else is at it.
    unsafe { launch_like(like, &args, &[], None) }.unwrap();
    Failure::unpack(failure)
}

fn no_args() -> LikeArgs {
    LikeArgs {
        doca: std::ptr::null_mut(),
        state: std::ptr::null(),
        queue: std::ptr::null(),
        channels: std::ptr::null(),
        qps: 1,
        scope: QuietScope::One,
        bytes: 0,
        threads: 1,
        slots: 1,
        stride: 8,
        warmup: 0,
        samples: 0,
        first: 0,
        deadline: 0,
        local: Local { address: 0, lkey: LKEY },
        remote: Remote { address: FAR, rkey: RKEY },
        issue: std::ptr::null_mut(),
        total: std::ptr::null_mut(),
        failure: std::ptr::null_mut(),
    }
}

/// A put through DOCA GPUNetIO's structures.
fn put_by_doca(like: Like, bytes: u32, handler: u32) -> (Queue, Vec<u64>, Option<Failure>) {
    let mut queue = Queue::new();
    // Untouched pages of it take no memory.
    let mut source = vec![0u64; bytes.div_ceil(8).max(1) as usize];
    let none = DocaQp {
        reserved: 0,
        ready: 0,
        produced: 0,
        qpn: 0,
        pad0: 0,
        doorbell_qpn: 0,
        nop_qpn: 0,
        pad1: 0,
        write_qpn: 0,
        pad2: 0,
        lock: 0,
        blocks: 0,
        mask: 0,
        pad3: 0,
        sq: std::ptr::null_mut(),
        record: std::ptr::null_mut(),
        doorbell: std::ptr::null_mut(),
        pad4: [0; 9],
        entries: std::ptr::null(),
        pad5: 0,
        cq_entries: 0,
        pad6: 0,
        consumed: 0,
        pad7: [0; 10],
        handler: 0,
        pad8: 0,
    };
    let used = DocaQp {
        qpn: QPN,
        doorbell_qpn: (QPN << 8).to_be(),
        nop_qpn: (QPN << 8 | 1).to_be(),
        write_qpn: (QPN << 8 | 3).to_be(),
        blocks: BLOCKS as u16,
        mask: BLOCKS as u16 - 1,
        sq: queue.sq.as_mut_ptr().cast(),
        record: &raw mut *queue.record,
        doorbell: &raw mut *queue.doorbell,
        entries: queue.cq.as_ptr().cast(),
        cq_entries: BLOCKS as u32,
        handler,
        ..none
    };
    let mut qps = [none, used];
    let mut args = LikeArgs { doca: qps.as_mut_ptr(), ..no_args() };
    args.local.address = source.as_mut_ptr() as u64;
    let failure = put(like, bytes, args);
    (queue, source, failure)
}

const GDAKI: [Peer; 3] = [Peer::Gdaki, Peer::GdakiCta, Peer::GdakiExclusive];
const NVSHMEM: [Peer; 3] = [Peer::Nvshmem, Peer::NvshmemInternal, Peer::Deepep];

#[test]
fn a_put_of_more_than_a_gib_is_a_wqe_for_each() {
    for peer in GDAKI {
        let (queue, source, failure) = put_by_doca(Like::whole(peer), (1 << 30) + 16, GPU_RINGS);
        assert_eq!(failure.unwrap().why, Why::DeadlineCompletion, "{peer}");
        for (index, bytes) in [(0, 1u32 << 30), (1, 16)] {
            let done = (index as u64) << 30;
            assert_eq!(queue.u32(index, 0), (index as u32) << 8 | 0x08, "{peer}: RDMA write");
            assert_eq!(queue.u32(index, 4), QPN << 8 | 3, "{peer}: three segments");
            assert_eq!(queue.u64(index, 16), FAR + done, "{peer}");
            assert_eq!(queue.u32(index, 24), RKEY, "{peer}");
            assert_eq!(queue.u32(index, 32), bytes, "{peer}");
            assert_eq!(queue.u32(index, 36), LKEY, "{peer}");
            assert_eq!(queue.u64(index, 40), source.as_ptr() as u64 + done, "{peer}");
        }
        // Both are told of at once.
        assert_eq!(u32::from_be(*queue.record), 2, "{peer}");
    }
}

#[test]
fn a_put_of_no_bytes_is_a_wqe_that_does_nothing() {
    for peer in GDAKI {
        let (queue, _, failure) = put_by_doca(Like::whole(peer), 0, GPU_RINGS);
        assert_eq!(failure.unwrap().why, Why::DeadlineCompletion, "{peer}");
        assert_eq!(queue.u32(0, 0), 0, "{peer}: a NOP");
        assert_eq!(queue.u32(0, 4), QPN << 8 | 1, "{peer}: one segment");
        assert_eq!(queue.sq[2..8], [0; 6], "{peer}");
        assert_eq!(u32::from_be(*queue.record), 1, "{peer}");
    }
}

#[test]
fn where_a_cpu_rings_the_gpu_does_not() {
    for peer in GDAKI {
        let (queue, _, failure) = put_by_doca(Like::whole(peer), 8, CPU_RINGS);
        assert_eq!(failure.map(|f| (f.why, f.qpn)), Some((Why::OtherPut, QPN)), "{peer}");
        assert_eq!(*queue.doorbell, 0, "{peer}");
        // Without that step it isn't looked at.
        let like = Like::without(peer, Step::Handler).unwrap();
        let (queue, _, failure) = put_by_doca(like, 8, CPU_RINGS);
        assert_eq!(failure.unwrap().why, Why::DeadlineCompletion, "{like}");
        assert_ne!(*queue.doorbell, 0, "{like}");
    }
    for peer in NVSHMEM {
        let (queue, _, failure) =
            put_by_ibgda(Like::whole(peer), IBGDA_RC, false, |t| t.cpu_rings = 1);
        assert_eq!(failure.map(|f| (f.why, f.qpn)), Some((Why::OtherPut, QPN)), "{peer}");
        assert_eq!(*queue.doorbell, 0, "{peer}");
    }
}

/// A put of 8 bytes through NVSHMEM's structures, with `change`d tables, and the heap of two words that they came from.
/// The second one is where the target's is, if `is_mapped`: memory that the thread reaches itself.
fn put_by_ibgda(
    like: Like,
    kind: u32,
    is_mapped: bool,
    change: impl FnOnce(&mut LikeTables),
) -> (Queue, Vec<u64>, Option<Failure>) {
    let mut queue = Queue::new();
    let mut heap = vec![0u64; 2];
    let mut qp = IbgdaQp {
        pad0: 0,
        kind,
        qpn: QPN,
        device: 0,
        pad1: [0; 3],
        blocks: BLOCKS as u16,
        pad2: [0; 3],
        sq: queue.sq.as_mut_ptr().cast(),
        record: &raw mut *queue.record,
        doorbell: &raw mut *queue.doorbell,
        cq: std::ptr::null(),
        pad3: 0,
        pad4: 0,
        lock: 0,
        reserved: 0,
        ready: 0,
        produced: 0,
        consumed: 0,
        pad5: [0; 7],
    };
    let mut words = [0u64; 4];
    let cq = IbgdaCq {
        pad0: [0; 2],
        entry: queue.cq.as_ptr().cast(),
        produced: &raw mut qp.produced,
        consumed: &raw mut qp.consumed,
        pad1: [0; 2],
        pad2: 0,
        entries: BLOCKS as u32,
        pad3: 0,
    };
    qp.cq = &raw const cq;
    let home = heap.as_mut_ptr() as u64;
    words[1] = FAR;
    words[3] = if is_mapped { home + 8 } else { 0 };
    let vectors = [[0; 2], VECTOR];
    let mut counter = 0u8;
    let mut tables = LikeTables {
        heap: home,
        heap_bytes: 16,
        log_chunk: 29,
        targets: TARGETS as u32,
        target: 1,
        devices: 1,
        groups: 1,
        per_target: 1,
        batch: 32,
        queues_on_gpu: 1,
        dc_targets: 1,
        // The first target's queue pairs are nobody's.
        qps: (&raw mut qp).wrapping_sub(1),
        counters: &raw mut counter,
        remote_heaps: words.as_ptr(),
        mapped: words.as_ptr().wrapping_add(2),
        vectors: vectors.as_ptr(),
        ..LikeTables::default()
    };
    tables.lkeys[0] = ChunkKey { key: LKEY.to_be(), pad: 0, end: home + 16 };
    tables.rkeys[1] = ChunkKey { key: RKEY.to_be(), pad: 0, end: 16 };
    change(&mut tables);
    let state = LikeState { tables, by_gpu: 1, ..LikeState::default() };
    let mut args = LikeArgs { state: &raw const state, ..no_args() };
    args.local.address = home;
    let failure = put(like, 8, args);
    (queue, heap, failure)
}

#[test]
fn a_dc_initiators_wqe_names_its_target() {
    for peer in [Peer::Nvshmem, Peer::NvshmemInternal] {
        for (kind, segments) in [(IBGDA_RC, 3), (IBGDA_DCI, 4)] {
            let (queue, heap, failure) = put_by_ibgda(Like::whole(peer), kind, false, |_| ());
            assert_eq!(failure.unwrap().why, Why::DeadlineCompletion, "{peer}");
            assert_eq!(queue.u32(0, 0), 0x08, "{peer}: RDMA write");
            assert_eq!(queue.u32(0, 4), QPN << 8 | segments, "{peer}");
            let mut at = 16;
            if kind == IBGDA_DCI {
                assert_eq!(queue.sq[2..4], VECTOR, "{peer}");
                at += 16;
            }
            assert_eq!(queue.u64(0, at), FAR, "{peer}");
            assert_eq!(queue.u32(0, at + 8), RKEY, "{peer}");
            assert_eq!(queue.u32(0, at + 16), 8, "{peer}");
            assert_eq!(queue.u32(0, at + 20), LKEY, "{peer}");
            assert_eq!(queue.u64(0, at + 24), heap.as_ptr() as u64, "{peer}");
        }
        // Without that step all are taken for connected ones.
        let like = Like::without(peer, Step::Target).unwrap();
        let (queue, _, _) = put_by_ibgda(like, IBGDA_DCI, false, |_| ());
        assert_eq!(queue.u32(0, 4), QPN << 8 | 3, "{like}");
    }
}

#[test]
fn what_the_thread_reaches_itself_is_stored_and_no_wqe_is_made() {
    let (queue, heap, failure) = put_by_ibgda(Like::whole(Peer::Nvshmem), IBGDA_RC, true, |_| ());
    assert_eq!(failure, None);
    assert_eq!(heap, [7, 7]);
    assert_eq!(*queue.doorbell, 0);
}

#[test]
fn another_backends_queue_is_refused() {
    let mut slots = vec![0u64; 16];
    let (mut head, mut tail, mut cached, mut answer, failed) = (0u64, 0u64, 0u64, 0u64, 0u64);
    for (backend, why) in [(PROXY_BACKEND, Why::DeadlineCompletion), (3, Why::OtherPut)] {
        let queue = LikeQueue {
            slots: slots.as_mut_ptr().cast(),
            head: &raw mut head,
            tail: &raw mut tail,
            cached_tail: &raw mut cached,
            depth: 2,
            log_depth: 1,
            answered: &raw mut answer,
            failure: &raw const failed,
            remote: FAR,
            backend,
            ..LikeQueue::default()
        };
        let queues = [queue; 2];
        let mut source = 0u64;
        let mut args = LikeArgs { queue: queues.as_ptr(), qps: 2, ..no_args() };
        args.local.address = &raw mut source as u64;
        let failure = put(Like::whole(Peer::GinProxy), 8, args);
        assert_eq!(failure.unwrap().why, why);
    }
}
