//! The host build writes the WQEs, records and doorbells of the data files, byte for byte.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod common;

use common::{bytes, list, load, number, segments, text, word};
use device::view::{AddressVector, Failure, Local, QpState, QpView, Remote, Why};
use serde_json::Value;
use wire::doorbell::Doorbell;
use wire::wqe::{Opcode, WqeBuf};
use zerocopy::IntoBytes;

unsafe extern "C" {
    #[allow(clippy::too_many_arguments, reason = "the operations' own")]
    fn gic_host_post_one(
        qp: *const QpView,
        op: u32,
        remote: Remote,
        local: Local,
        bytes: u32,
        a: u64,
        b: u64,
        signal: bool,
        fence: bool,
        av: *const Av,
        failure: *mut u64,
    ) -> u64;
}

const PUT_INLINE: u32 = 0x88;
const PUT_VALUE: u32 = 0x89;
const PUT_SIGNAL: u32 = 0x8a;

/// Device code reads an address vector by aligned words.
#[repr(C, align(16))]
struct Av(AddressVector);

const LOG_BLOCKS: u32 = 5;
const BLANK: u64 = 0xa5a5_a5a5_a5a5_a5a5;

/// Queue memory without a NIC.
struct Queue {
    sq: Vec<u64>,
    cq: Vec<u64>,
    record: Box<[u32; 2]>,
    cq_record: Box<[u32; 2]>,
    doorbell: Box<u64>,
    state: Box<QpState>,
}

#[derive(Clone, Copy)]
struct Post {
    op: u32,
    remote: Remote,
    local: Local,
    bytes: u32,
    a: u64,
    b: u64,
    signal: bool,
    fence: bool,
}

impl Queue {
    fn starting_at(index: u64) -> Self {
        Self {
            sq: vec![BLANK; 8 << LOG_BLOCKS],
            cq: vec![u64::MAX; 8],
            record: Box::new([7, 7]),
            cq_record: Box::new([7, 7]),
            doorbell: Box::new(BLANK),
            state: Box::new(QpState::starting_at(index, 0)),
        }
    }

    fn post(&mut self, qpn: u32, p: Post, av: Option<&Av>) -> Result<u64, Failure> {
        let view = QpView {
            sq: self.sq.as_mut_ptr().cast(),
            log_blocks: LOG_BLOCKS,
            record: &raw mut self.record[1],
            doorbell: &raw mut *self.doorbell,
            cq: self.cq.as_mut_ptr().cast(),
            cq_record: self.cq_record.as_mut_ptr(),
            state: &raw mut *self.state,
            // Nothing here waits: a wait would be an error at once.
            deadline: 0,
            qpn,
            log_cq: 0,
        };
        let mut failure = 0;
        // SAFETY: the view's memory is this queue's; inline data is read from `p.local` only where the caller
        // points it at a buffer.
        let ticket = unsafe {
            gic_host_post_one(
                &raw const view,
                p.op,
                p.remote,
                p.local,
                p.bytes,
                p.a,
                p.b,
                p.signal,
                p.fence,
                av.map_or(std::ptr::null(), std::ptr::from_ref),
                &raw mut failure,
            )
        };
        Failure::unpack(failure).map_or(Ok(ticket), Err)
    }

    /// `len` bytes of the queue from block `index` on, unwrapped.
    fn read(&self, index: u64, len: usize) -> Vec<u8> {
        let all = self.sq.as_bytes();
        let from = (index as usize % (1 << LOG_BLOCKS)) * 64;
        (0..len).map(|i| all[(from + i) % all.len()]).collect()
    }

    fn written(&self) -> usize {
        self.sq.iter().filter(|word| **word != BLANK).count() * 8
    }
}

fn flag(entry: &Value, name: &str) -> bool {
    entry["flags"].as_array().unwrap().iter().any(|f| f == name)
}

fn remote(fields: &Value) -> Remote {
    Remote { address: number(fields, "addr"), rkey: word(fields, "rkey") }
}

fn local(fields: &Value) -> Local {
    Local { address: number(fields, "addr"), lkey: word(fields, "lkey") }
}

/// The device operation that makes a golden WQE, if there is one, and its address vector.
fn operation(entry: &Value, inline: &mut Vec<u8>) -> Option<(Post, Option<Av>)> {
    if flag(entry, "small_fence") || flag(entry, "solicited") {
        return None;
    }
    let mut parts = segments(entry);
    let mut av = None;
    if parts.first().is_some_and(|(kind, _)| *kind == "av48") {
        let v = parts.remove(0).1;
        let byte = |key| u8::try_from(number(v, key)).unwrap();
        av = Some(Av(AddressVector {
            key: number(v, "key").into(),
            dqp_dct: (word(v, "dqp_dct") | wire::wqe::AV_EXTENDED).into(),
            stat_rate_sl: byte("stat_rate_sl"),
            fl_mlid: byte("fl_mlid"),
            rlid: u16::try_from(number(v, "rlid")).unwrap().to_be_bytes(),
            reserved: [0; 4],
            rmac: bytes(text(v, "rmac")).try_into().unwrap(),
            tclass: byte("tclass"),
            hop_limit: byte("hop_limit"),
            grh_gid_fl: word(v, "grh_gid_fl").into(),
            rgid: bytes(text(v, "rgid")).try_into().unwrap(),
        }));
    }
    let mut post = Post {
        op: 0,
        remote: Remote::default(),
        local: Local::default(),
        bytes: 0,
        a: 0,
        b: 0,
        signal: flag(entry, "cq_update"),
        fence: flag(entry, "fence"),
    };
    let opcode = Opcode::ALL.iter().find(|o| o.name() == text(entry, "opcode")).unwrap();
    match (opcode, parts.as_slice()) {
        (Opcode::Nop, []) => {}
        (Opcode::RdmaWrite | Opcode::RdmaRead, [("raddr", r), ("data", d)])
            if number(d, "bytes") <= 1 << 30 =>
        {
            post = Post {
                op: *opcode as u32,
                remote: remote(r),
                local: local(d),
                bytes: word(d, "bytes"),
                ..post
            };
        }
        (Opcode::RdmaWrite, [("raddr", r), ("inline", hex)]) if number(entry, "blocks") <= 5 => {
            *inline = bytes(hex.as_str().unwrap());
            let address = inline.as_ptr() as u64;
            let bytes = inline.len() as u32;
            post = Post {
                op: PUT_INLINE,
                remote: remote(r),
                local: Local { address, lkey: 0 },
                bytes,
                ..post
            };
        }
        (Opcode::AtomicFa, [("raddr", r), ("atomic", a), ("data", d)]) => {
            post = Post {
                op: *opcode as u32,
                remote: remote(r),
                local: local(d),
                a: number(a, "swap_add"),
                ..post
            };
        }
        (Opcode::AtomicCs, [("raddr", r), ("atomic", a), ("data", d)]) => {
            post = Post {
                op: *opcode as u32,
                remote: remote(r),
                local: local(d),
                a: number(a, "compare"),
                b: number(a, "swap_add"),
                ..post
            };
        }
        _ => return None,
    }
    // An atomic must be aligned; the file's address is.
    Some((post, av))
}

#[test]
fn every_golden_wqe_that_an_operation_makes_is_made_byte_for_byte() {
    let file = load("golden.json");
    let mut made = 0;
    for entry in list(&file, "wqes") {
        let mut payload = Vec::new();
        let Some((post, av)) = operation(entry, &mut payload) else { continue };
        let name = text(entry, "name");
        let (index, qpn) = (number(entry, "index"), word(entry, "qpn"));
        let expected = bytes(text(entry, "bytes"));
        let mut queue = Queue::starting_at(index);
        let ticket = queue.post(qpn, post, av.as_ref()).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(ticket, index.wrapping_add(1), "{name}");
        assert_eq!(queue.read(index, expected.len()), expected, "{name}");
        assert_eq!(queue.written(), expected.len(), "{name}: bytes besides the WQE's");
        let producer = index.wrapping_add(number(entry, "blocks"));
        assert_eq!(queue.record[1].as_bytes(), wire::doorbell::record(producer).as_bytes());
        assert_eq!(queue.record[0], 7, "{name}: the receive word was written");
        assert_eq!(queue.doorbell.as_bytes(), Doorbell::next_free(qpn, producer).as_bytes());
        if payload.len() == 8 {
            let value = u64::from_le_bytes(payload.as_slice().try_into().unwrap());
            let mut queue = Queue::starting_at(index);
            queue.post(qpn, Post { op: PUT_VALUE, a: value, ..post }, av.as_ref()).unwrap();
            assert_eq!(queue.read(index, expected.len()), expected, "{name}, by value");
        }
        made += 1;
    }
    assert!(made >= 30, "only {made} of the file's WQEs were made");
}

#[test]
fn wqes_are_those_that_libmlx5_writes() {
    let file = load("libmlx5-wqes.json");
    let payload: Vec<u8> = (0..4096u32).map(|k| (37 * k + 11) as u8).collect();
    let mut made = 0;
    for entry in list(&file, "wqes") {
        let expected = bytes(text(entry, "wqe"));
        let inline = flag(entry, "inline");
        let op = match (text(entry, "op"), number(entry, "sges"), inline) {
            ("RDMA_WRITE", 1, true) => PUT_INLINE,
            ("RDMA_WRITE", 1, false) => 0x08,
            ("RDMA_READ", 1, false) => 0x10,
            ("ATOMIC_CMP_AND_SWP", 1, false) => 0x11,
            ("ATOMIC_FETCH_AND_ADD", 1, false) => 0x12,
            _ => continue,
        };
        // The operands of atomics are in the WQE alone.
        let operand = |at: usize| {
            expected.get(at..at + 8).map_or(0, |b| u64::from_be_bytes(b.try_into().unwrap()))
        };
        let (a, b) = match op {
            0x11 => (operand(40), operand(32)),
            0x12 => (operand(32), 0),
            _ => (0, 0),
        };
        let (index, qpn) = (number(entry, "index"), word(entry, "qpn"));
        let address = if inline { payload.as_ptr() as u64 } else { 0x2000_0000_0000 };
        let post = Post {
            op,
            remote: Remote { address: number(entry, "remote_addr"), rkey: word(entry, "rkey") },
            local: Local { address, lkey: word(entry, "lkey") },
            bytes: word(entry, "bytes_per_sge"),
            a,
            b,
            signal: flag(entry, "signaled"),
            fence: flag(entry, "fence"),
        };
        let mut queue = Queue::starting_at(index);
        queue.post(qpn, post, None).unwrap_or_else(|e| panic!("{entry}: {e}"));
        assert_eq!(queue.read(index, expected.len()), expected, "{entry}");
        made += 1;
    }
    assert!(made >= 12, "only {made} of the file's WQEs were made");
}

const REMOTE: Remote = Remote { address: 0x3000_0000_1230, rkey: 531 };
const LOCAL: Local = Local { address: 0x2000_0000_0000, lkey: 274 };
const POST: Post =
    Post { op: 8, remote: REMOTE, local: LOCAL, bytes: 8, a: 0, b: 0, signal: true, fence: false };

#[test]
fn a_put_with_signal_is_a_put_and_a_fetch_and_add_with_one_cqe_and_one_ring() {
    for index in [10u64, 31, 65_535, 65_536 * 3 - 1, u64::from(u32::MAX)] {
        let mut queue = Queue::starting_at(index);
        let post = Post { op: PUT_SIGNAL, a: 0x3000_0000_2000, b: 532, ..POST };
        assert_eq!(queue.post(0x2ed, post, None).unwrap(), index + 2);

        let flags = wire::wqe::CtrlFlags::NONE;
        let mut put = WqeBuf::new(Opcode::RdmaWrite, index, 0x2ed, flags, 0).unwrap();
        put.raddr(REMOTE.address, REMOTE.rkey).unwrap();
        put.data(LOCAL.address, 8, LOCAL.lkey).unwrap();
        let flags = wire::wqe::CtrlFlags::CQ_UPDATE;
        let mut add = WqeBuf::new(Opcode::AtomicFa, index + 1, 0x2ed, flags, 0).unwrap();
        add.raddr(0x3000_0000_2000, 532).unwrap();
        add.atomic(&wire::wqe::Atomic { swap_add: 1.into(), compare: 0.into() }).unwrap();
        add.data(LOCAL.address, 8, LOCAL.lkey).unwrap();
        assert_eq!(queue.read(index, put.bytes().len()), put.bytes());
        assert_eq!(queue.read(index + 1, add.bytes().len()), add.bytes());
        assert_eq!(queue.written(), put.bytes().len() + add.bytes().len());
        let ring = Doorbell::next_free(0x2ed, index + 2);
        assert_eq!(queue.doorbell.as_bytes(), ring.as_bytes());
    }
}

#[test]
fn a_4_byte_fetch_and_add_is_the_extended_atomic() {
    let mut queue = Queue::starting_at(3);
    queue.post(9, Post { op: 0x15, a: 0x1_0000_0005, ..POST }, None).unwrap();
    let flags = wire::wqe::CtrlFlags::CQ_UPDATE;
    let mut wqe = WqeBuf::new(Opcode::AtomicMaskedFa, 3, 9, flags, 0).unwrap();
    wqe.raddr(REMOTE.address, REMOTE.rkey).unwrap();
    let fields =
        wire::wqe::MaskedFa4 { add: 5.into(), field_boundary: 0.into(), reserved: 0.into() };
    wqe.masked_fa4(&fields).unwrap();
    wqe.data(LOCAL.address, 4, LOCAL.lkey).unwrap();
    assert_eq!(queue.read(3, wqe.bytes().len()), wqe.bytes());
}

#[test]
fn what_cannot_be_posted_is_refused_and_changes_nothing() {
    let buffer = [0u8; 8];
    let inline = Local { address: buffer.as_ptr() as u64, lkey: 0 };
    let odd = |by| Remote { address: REMOTE.address + by, ..REMOTE };
    let long = (1u32 << 30) + 1;
    let cases = [
        ("0 bytes", Post { bytes: 0, ..POST }, Why::BadLength),
        ("above 2^30 bytes", Post { bytes: long, ..POST }, Why::BadLength),
        ("2^32 - 1 bytes", Post { bytes: u32::MAX, ..POST }, Why::BadLength),
        ("get of nothing", Post { op: 0x10, bytes: 0, ..POST }, Why::BadLength),
        ("get above 2^30 bytes", Post { op: 0x10, bytes: long, ..POST }, Why::BadLength),
        (
            "inline nothing",
            Post { op: PUT_INLINE, local: inline, bytes: 0, ..POST },
            Why::BadLength,
        ),
        (
            "285 inline bytes in 5 blocks",
            Post { op: PUT_INLINE, local: inline, bytes: 285, ..POST },
            Why::InlineTooLong,
        ),
        (
            "inline length that overflows",
            Post { op: PUT_INLINE, local: inline, bytes: u32::MAX, ..POST },
            Why::InlineTooLong,
        ),
        ("fetch-add at 4", Post { op: 0x12, remote: odd(4), ..POST }, Why::UnalignedAtomic),
        ("compare-swap at 1", Post { op: 0x11, remote: odd(1), ..POST }, Why::UnalignedAtomic),
        ("fetch-add32 at 2", Post { op: 0x15, remote: odd(2), ..POST }, Why::UnalignedAtomic),
        (
            "signal at 4",
            Post { op: PUT_SIGNAL, a: REMOTE.address + 4, b: 1, ..POST },
            Why::UnalignedAtomic,
        ),
        (
            "signal for 0 bytes",
            Post { op: PUT_SIGNAL, a: REMOTE.address, b: 1, bytes: 0, ..POST },
            Why::BadLength,
        ),
    ];
    for (name, post, why) in cases {
        let mut queue = Queue::starting_at(5);
        let failure = queue.post(0x77, post, None).expect_err(name);
        assert_eq!((failure.why, failure.qpn), (why, 0x77), "{name}");
        assert_eq!(queue.written(), 0, "{name}");
        assert_eq!((*queue.record, *queue.doorbell), ([7, 7], BLANK), "{name}");
        let s = &queue.state;
        assert_eq!((s.reserved, s.ready, s.rung, s.consumed, s.failure), (5, 5, 5, 5, 0), "{name}");
        // The queue is as good as before.
        assert_eq!(queue.post(0x77, POST, None), Ok(6), "{name}");
    }
}

#[test]
fn the_largest_and_the_smallest_lengths_are_accepted() {
    for bytes in [1, 1 << 30] {
        assert_eq!(Queue::starting_at(0).post(1, Post { bytes, ..POST }, None), Ok(1));
    }
    let buffer = [7u8; 284];
    let local = Local { address: buffer.as_ptr() as u64, lkey: 0 };
    let mut queue = Queue::starting_at(0);
    assert_eq!(queue.post(1, Post { op: PUT_INLINE, local, bytes: 284, ..POST }, None), Ok(1));
    assert_eq!(queue.state.reserved, 5);
}

#[test]
fn inline_data_is_the_same_from_any_alignment() {
    for bytes in (1..=40).chain([63, 64, 100, 255, 256, 283, 284]) {
        let payload: Vec<u8> = (0..bytes).map(|i| 1 + (i * 7 % 250) as u8).collect();
        let mut expected = (0x8000_0000u32 | bytes).to_be_bytes().to_vec();
        expected.extend(&payload);
        expected.resize(expected.len().next_multiple_of(16), 0);
        for offset in 0..8 {
            let mut words = [u64::MAX; 40];
            let buffer = words.as_mut_slice().as_mut_bytes();
            buffer[offset..][..payload.len()].copy_from_slice(&payload);
            let local = Local { address: buffer.as_ptr() as u64 + offset as u64, lkey: 0 };
            // The last blocks of a lap and the first of the next.
            let start = (1 << LOG_BLOCKS) - 2;
            let mut queue = Queue::starting_at(start);
            let post = Post { op: PUT_INLINE, local, bytes, ..POST };
            assert!(queue.post(1, post, None).is_ok());
            let wqe = queue.read(start, 32 + expected.len());
            assert_eq!(wqe[32..], expected, "{bytes} bytes, {offset} past a multiple of 8");
            assert_eq!(queue.written(), wqe.len(), "{bytes} bytes");
        }
    }
}
