//! Random programs: the same on every NIC, with the same memory and the same CQEs afterwards.

use proptest::prelude::*;
use rdma::{Access, ConnectAttr, CqKind, QueuePairAttr, Region, Transport};
use wire::cqe::{Cqe, Syndrome};
use wire::wqe::{
    AddressVector, Atomic, Ctrl, CtrlFlags, Data, MaskedCas4, MaskedCas8, MaskedFa4, MaskedFa8,
    OPMOD_EXTENDED_4, OPMOD_EXTENDED_8, Opcode, Raddr, inline_header,
};
use zerocopy::IntoBytes;

use crate::rig::{Kind, Queue, World, bytes, kinds, words};

/// Bytes of memory that a queue pair has to itself, on either side.
const SPAN: u64 = 1 << 14;
/// Connected pairs; one more queue pair is a DC initiator.
const PAIRS: usize = 3;
const DC: usize = PAIRS;
const DC_KEY: u64 = 0x1122_3344_5566_7788;

/// How a key or an address is wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Flaw {
    None,
    BadLkey,
    LkeyIsRkey,
    LocalOutside,
    BadRkey,
    RkeyIsLkey,
    RemoteOutside,
    ReadOnly,
    Misaligned,
    Qpn,
    Index,
    NoSegments,
    Opmod,
    Short,
}

#[derive(Clone, Debug)]
enum Body {
    Inline { to: u64, bytes: Vec<u8> },
    Write { from: u64, to: u64, lens: Vec<u32> },
    Mixed { from: u64, to: u64, len: u32, inline: Vec<u8> },
    WriteImm { from: u64, to: u64, len: u32, imm: u32 },
    Send { from: u64, len: u32, imm: Option<u32> },
    Read { from: u64, to: u64, lens: Vec<u32> },
    Add { at: u64, value: u64, result: u64, small: Option<bool>, boundary: u64 },
    Swap { at: u64, values: [u64; 4], result: u64, small: Option<bool> },
    Nop,
    Opcode(u8),
    Garbage(Box<[u8; 64]>),
}

#[derive(Clone, Debug)]
struct Op {
    body: Body,
    signalled: bool,
    solicited: bool,
    fence: bool,
    flaw: Flaw,
    /// DC: the key and the target are right.
    target: u8,
}

/// Posts of one queue pair, and one ring for them.
#[derive(Clone, Debug)]
struct Batch {
    queue: usize,
    /// Posted from the far side.
    far: bool,
    ops: Vec<Op>,
    /// The other register is rung.
    other: bool,
    /// The ring covers a block less.
    short: bool,
}

#[derive(Clone, Debug)]
struct Program {
    cq: [bool; PAIRS + 1],
    start: u64,
    log_blocks: u32,
    /// Posted at each end before each round.
    receives: u64,
    receive_bytes: u32,
    rounds: Vec<Vec<Batch>>,
}

fn body() -> impl Strategy<Value = Body> {
    let at = || 0..SPAN - 9000;
    let word = || (0..SPAN / 8).prop_map(|i| i * 8);
    // Few words, so that one batch writes some of them more than once.
    let few = || (0..6u64).prop_map(|i| i * 8);
    let lens = || prop::collection::vec(0u32..2500, 1..4);
    let small = || prop_oneof![Just(None), any::<bool>().prop_map(Some)];
    prop_oneof![
        4 => (at(), prop::collection::vec(any::<u8>(), 0..=30)).prop_map(|(to, bytes)| Body::Inline { to, bytes }),
        2 => (at(), prop::collection::vec(any::<u8>(), 0..=200)).prop_map(|(to, bytes)| Body::Inline { to, bytes }),
        8 => (word(), any::<u64>()).prop_map(|(to, v)| Body::Inline { to, bytes: v.to_ne_bytes().into() }),
        4 => (few(), any::<u64>()).prop_map(|(to, v)| Body::Inline { to, bytes: v.to_ne_bytes().into() }),
        2 => (few(), any::<u32>()).prop_map(|(to, v)| Body::Inline { to: to / 2, bytes: v.to_ne_bytes().into() }),
        8 => (word(), word()).prop_map(|(from, to)| Body::Write { from, to, lens: vec![8] }),
        4 => (word(), few()).prop_map(|(from, to)| Body::Write { from, to, lens: vec![8] }),
        3 => (at(), at(), 0u32..80).prop_map(|(from, to, len)| Body::Write { from, to, lens: vec![len] }),
        2 => (at(), at(), lens()).prop_map(|(from, to, lens)| Body::Write { from, to, lens }),
        1 => (at(), at(), 0u32..9000).prop_map(|(from, to, len)| Body::Write { from, to, lens: vec![len] }),
        1 => (at(), at(), 0u32..100, prop::collection::vec(any::<u8>(), 0..40))
            .prop_map(|(from, to, len, inline)| Body::Mixed { from, to, len, inline }),
        1 => (at(), at(), 0u32..9000, any::<u32>())
            .prop_map(|(from, to, len, imm)| Body::WriteImm { from, to, len, imm }),
        1 => (at(), 0u32..200, prop::option::of(any::<u32>())).prop_map(|(from, len, imm)| Body::Send { from, len, imm }),
        2 => (at(), at(), lens()).prop_map(|(from, to, lens)| Body::Read { from, to, lens }),
        2 => (word(), any::<u64>(), word(), small(), any::<u64>())
            .prop_map(|(at, value, result, small, boundary)| Body::Add { at, value, result, small, boundary }),
        2 => (word(), any::<[u64; 4]>(), word(), small())
            .prop_map(|(at, values, result, small)| Body::Swap { at, values, result, small }),
        1 => Just(Body::Nop),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let flaw = prop_oneof![
        60 => Just(Flaw::None),
        1 => prop::sample::select(vec![
            Flaw::BadLkey, Flaw::LkeyIsRkey, Flaw::LocalOutside, Flaw::BadRkey, Flaw::RkeyIsLkey,
            Flaw::RemoteOutside, Flaw::ReadOnly, Flaw::Misaligned, Flaw::Qpn, Flaw::Index, Flaw::NoSegments,
            Flaw::Opmod, Flaw::Short,
        ]),
    ];
    let body = prop_oneof![
        100 => body(),
        1 => any::<u8>().prop_map(Body::Opcode),
        1 => any::<[u8; 64]>().prop_map(|bytes| Body::Garbage(Box::new(bytes))),
    ];
    let target = prop_oneof![40 => Just(0u8), 1 => 1..4u8];
    (body, any::<bool>(), prop::bool::weighted(0.05), flaw, target).prop_map(
        |(body, signalled, solicited, flaw, target)| Op {
            body,
            signalled,
            solicited,
            fence: false,
            flaw,
            target,
        },
    )
}

fn batch() -> impl Strategy<Value = Batch> {
    let ops = prop_oneof![
        2 => prop::collection::vec(op(), 1..8),
        // Runs of what the fast path takes, longer than a row.
        1 => prop::collection::vec(plain(), 1..150),
    ];
    (0..=PAIRS, any::<bool>(), ops, prop::bool::weighted(0.2), prop::bool::weighted(0.02)).prop_map(
        |(queue, far, ops, other, short)| {
            // The target is at the far side: from there a DC write would be to its own memory, in no sure order.
            Batch { queue, far: far && queue != DC, ops, other, short }
        },
    )
}

fn plain() -> impl Strategy<Value = Op> {
    let places = prop_oneof![Just(SPAN / 8), Just(5), Just(40)];
    let body =
        (places, any::<u64>(), any::<u64>(), any::<bool>()).prop_map(|(n, from, to, inline)| {
            let to = to % n * 8;
            if inline {
                Body::Inline { to, bytes: from.to_ne_bytes().into() }
            } else {
                Body::Write { from: from % (SPAN / 8) * 8, to, lens: vec![8] }
            }
        });
    (body, prop::bool::weighted(0.1)).prop_map(|(body, signalled)| Op {
        body,
        signalled,
        solicited: false,
        fence: false,
        flaw: Flaw::None,
        target: 0,
    })
}

fn program() -> impl Strategy<Value = Program> {
    (
        any::<[bool; PAIRS + 1]>(),
        prop_oneof![Just(0u64), Just(65_530), Just((1 << 32) - 3)],
        6..9u32,
        0..12u64,
        0..300u32,
        prop::collection::vec(prop::collection::vec(batch(), 1..4), 1..12),
    )
        .prop_map(|(cq, start, log_blocks, receives, receive_bytes, rounds)| Program {
            cq,
            start,
            log_blocks,
            receives,
            receive_bytes,
            rounds,
        })
}

impl Body {
    /// What comes after may overtake it on the CPU engine, unless fenced.
    fn reads(&self) -> bool {
        matches!(self, Self::Read { .. } | Self::Add { .. } | Self::Swap { .. } | Self::Opcode(_))
    }
}

/// What a program left behind.
#[derive(Debug, PartialEq)]
struct Left {
    entries: Vec<String>,
    memory: [Vec<u8>; 2],
    causes: Vec<Option<String>>,
}

struct Running<'a> {
    world: World,
    program: &'a Program,
    /// Near and far end of each pair; the last one's far end is never posted to.
    queues: Vec<[Queue; 2]>,
    regions: [Region; 2],
    /// May only be read.
    read_only: [Region; 2],
    vector: AddressVector,
    number: u32,
    _target: rdma::DcTarget,
}

impl<'a> Running<'a> {
    fn new(kind: &Kind, program: &'a Program) -> Self {
        let world = World::new(kind);
        let length = SPAN as usize * (PAIRS + 1);
        let regions = [0, 1].map(|side| {
            let region = world.region(side, length, Access::all());
            let fill: Vec<u8> = (0..length).map(|i| (i * (3 + side) + i / 251) as u8).collect();
            region.memory.write(0, &fill).unwrap();
            region
        });
        let read_only = [0, 1].map(|side| world.region(side, 4096, Access::REMOTE_READ));
        let connect =
            ConnectAttr { timeout: 1, retry_cnt: 1, rnr_retry: 2, ..ConnectAttr::default() };
        let attr = |queue: usize| QueuePairAttr {
            cq_kind: if program.cq[queue] { CqKind::Ring } else { CqKind::Collapsed },
            log_cq: if program.cq[queue] { program.log_blocks } else { 1 },
            log_blocks: program.log_blocks,
            log_receives: Some(4),
            start: program.start,
            ..QueuePairAttr::default()
        };
        let mut queues: Vec<[Queue; 2]> =
            (0..PAIRS).map(|queue| world.pair(&attr(queue), &connect)).collect();
        let dci = QueuePairAttr { transport: Transport::Dci, log_receives: None, ..attr(DC) };
        let mut dcis = [0, 1].map(|side| world.queue(side, &dci));
        for (side, dci) in dcis.iter_mut().enumerate() {
            let nobody = rdma::Destination { nic: rdma::Address::default(), qpn: 0 };
            world.nic(side).connect(&dci.qp, nobody, &connect).unwrap();
        }
        queues.push(dcis);
        let target = world.target(1, DC_KEY, Access::all());
        let (vector, number) = (target.address_vector(), target.number);
        Self { world, program, queues, regions, read_only, vector, number, _target: target }
    }

    fn data(&self, side: usize, queue: usize, at: u64, len: u32, flaw: Flaw) -> Data {
        let region = &self.regions[side];
        let base = region.address + SPAN * queue as u64;
        match flaw {
            Flaw::BadLkey => Data::new(base + at, len, 0xdead_be00),
            Flaw::LkeyIsRkey => Data::new(base + at, len, region.rkey),
            Flaw::LocalOutside => Data::new(region.address + region.length + 1, len, region.lkey),
            _ => Data::new(base + at, len, region.lkey),
        }
    }

    fn raddr(&self, side: usize, queue: usize, at: u64, flaw: Flaw) -> Raddr {
        let region = &self.regions[side];
        let base = region.address + SPAN * queue as u64;
        match flaw {
            Flaw::BadRkey => Raddr::new(base + at, 0x00ff_ff07),
            Flaw::RkeyIsLkey => Raddr::new(base + at, region.lkey),
            Flaw::RemoteOutside => Raddr::new(region.address + region.length + 1, region.rkey),
            Flaw::ReadOnly => Raddr::new(self.read_only[side].address, self.read_only[side].rkey),
            Flaw::Misaligned => Raddr::new(base + at + 1, region.rkey),
            _ => Raddr::new(base + at, region.rkey),
        }
    }

    /// An operation's WQE.
    fn encode(&self, queue: usize, far: bool, op: &Op) -> Vec<u8> {
        let side = usize::from(far);
        let peer = if queue == DC { 1 } else { 1 - side };
        let flaw = op.flaw;
        let q = &self.queues[queue][side];
        let data = |at: u64, len: u32| self.data(side, queue, at, len, flaw).as_bytes().to_vec();
        let raddr = |at: u64| self.raddr(peer, queue, at, flaw).as_bytes().to_vec();
        let list = |from: u64, lens: &[u32]| {
            let mut at = from;
            let mut list = Vec::new();
            for &len in lens {
                list.extend(data(at, len));
                at += u64::from(len);
            }
            list
        };
        let inline = |bytes: &[u8]| {
            let mut all = inline_header(bytes.len() as u32).to_bytes().to_vec();
            all.extend(bytes);
            all.resize(all.len().next_multiple_of(16), 0);
            all
        };
        let (mut opcode, mut opmod, mut imm) = (Opcode::RdmaWrite as u8, 0, 0);
        let body: Vec<u8> = match &op.body {
            Body::Inline { to, bytes } => [raddr(*to), inline(bytes)].concat(),
            Body::Write { from, to, lens } => [raddr(*to), list(*from, lens)].concat(),
            Body::Mixed { from, to, len, inline: bytes } => {
                [raddr(*to), data(*from, *len), inline(bytes), data(*from, *len)].concat()
            }
            Body::WriteImm { from, to, len, imm: value } => {
                (opcode, imm) = (Opcode::RdmaWriteImm as u8, *value);
                [raddr(*to), data(*from, *len)].concat()
            }
            Body::Send { from, len, imm: value } => {
                opcode = if value.is_some() { Opcode::SendImm } else { Opcode::Send } as u8;
                imm = value.unwrap_or(0);
                data(*from, *len)
            }
            Body::Read { from, to, lens } => {
                opcode = Opcode::RdmaRead as u8;
                [raddr(*from), list(*to, lens)].concat()
            }
            Body::Add { at, value, result, small, boundary } => {
                let (add, boundary) = (*value, *boundary);
                let size = if *small == Some(true) { 4 } else { 8 };
                let operand = match small {
                    None => Atomic { swap_add: add.into(), compare: 0.into() }.as_bytes().to_vec(),
                    Some(true) => MaskedFa4 {
                        add: (add as u32).into(),
                        field_boundary: (boundary as u32).into(),
                        reserved: 0.into(),
                    }
                    .as_bytes()
                    .to_vec(),
                    Some(false) => MaskedFa8 { add: add.into(), field_boundary: boundary.into() }
                        .as_bytes()
                        .to_vec(),
                };
                opcode =
                    if small.is_some() { Opcode::AtomicMaskedFa } else { Opcode::AtomicFa } as u8;
                opmod = mode(*small);
                [raddr(*at), operand, data(*result, size)].concat()
            }
            Body::Swap { at, values, result, small } => {
                let [swap, compare, swap_mask, mut compare_mask] = *values;
                // Some compare few bits, and then swap.
                compare_mask &= if swap & 1 == 0 { 1 } else { u64::MAX };
                let size = if *small == Some(true) { 4 } else { 8 };
                let operand = match small {
                    None => Atomic { swap_add: swap.into(), compare: (compare & 1).into() }
                        .as_bytes()
                        .to_vec(),
                    Some(true) => MaskedCas4 {
                        swap: (swap as u32).into(),
                        compare: (compare as u32).into(),
                        swap_mask: (swap_mask as u32).into(),
                        compare_mask: (compare_mask as u32).into(),
                    }
                    .as_bytes()
                    .to_vec(),
                    Some(false) => MaskedCas8 {
                        swap: swap.into(),
                        compare: compare.into(),
                        swap_mask: swap_mask.into(),
                        compare_mask: compare_mask.into(),
                    }
                    .as_bytes()
                    .to_vec(),
                };
                opcode =
                    if small.is_some() { Opcode::AtomicMaskedCs } else { Opcode::AtomicCs } as u8;
                opmod = mode(*small);
                [raddr(*at), operand, data(*result, size)].concat()
            }
            Body::Nop => {
                opcode = Opcode::Nop as u8;
                Vec::new()
            }
            Body::Opcode(byte) => {
                opcode = *byte;
                [raddr(8), data(16, 8)].concat()
            }
            Body::Garbage(bytes) => return bytes.to_vec(),
        };
        let mut vector = Vec::new();
        if queue == DC && !matches!(op.body, Body::Nop) {
            let mut av = self.vector;
            match op.target {
                1 => av.key = (DC_KEY ^ 1).into(),
                2 => av.dqp_dct = ((self.number + 1) | wire::wqe::AV_EXTENDED).into(),
                3 => av.rlid = 9u16.to_be_bytes(),
                _ => {}
            }
            vector = av.as_bytes().to_vec();
        }
        let mut flags = CtrlFlags::NONE;
        for (is_set, flag) in [
            (op.signalled, CtrlFlags::CQ_UPDATE),
            (op.solicited, CtrlFlags::SOLICITED),
            (op.fence, CtrlFlags::FENCE),
        ] {
            flags = if is_set { flags.with(flag) } else { flags };
        }
        let mut segments = 1 + (vector.len() + body.len()) / 16;
        match flaw {
            Flaw::NoSegments => segments = 0,
            Flaw::Short => segments -= 1,
            Flaw::Opmod => opmod = 3,
            _ => {}
        }
        let qpn = if flaw == Flaw::Qpn { q.qp.qpn ^ 1 } else { q.qp.qpn };
        let index = if flaw == Flaw::Index { q.producer + 1 } else { q.producer };
        let mut ctrl = Ctrl::new(Opcode::Nop, index, qpn, segments as u8, flags, imm);
        ctrl.opmod_index_opcode =
            (opmod << 24 | (index as u32 & 0xffff) << 8 | u32::from(opcode)).into();
        [ctrl.as_bytes(), &vector, &body].concat()
    }

    fn batch(&mut self, batch: &Batch) {
        let side = usize::from(batch.far);
        let depth = 1u64 << self.program.log_blocks;
        let first = self.queues[batch.queue][side].producer;
        let mut reading = false;
        for op in &batch.ops {
            let op = Op { fence: reading, ..op.clone() };
            let wqe = self.encode(batch.queue, batch.far, &op);
            let queue = &mut self.queues[batch.queue][side];
            if queue.producer + wqe.len().div_ceil(64) as u64 - first > depth {
                break;
            }
            queue.write(&wqe);
            reading = op.body.reads();
        }
        let queue = &mut self.queues[batch.queue][side];
        if batch.short {
            queue.producer -= 1;
        }
        if queue.producer != first {
            queue.write_record(queue.producer);
            let register = if batch.other { 0x100 } else { 0 };
            queue.write_doorbell(queue.qp.qpn, queue.producer, register);
        }
    }

    fn run(mut self) -> Left {
        let mut entries = Vec::new();
        for (nth, round) in self.program.rounds.iter().enumerate() {
            for queue in 0..PAIRS {
                for side in [0, 1] {
                    // Into the upper half of the queue pair's memory, one behind the other.
                    let posted = self.queues[queue][side].receives;
                    let open = self.program.receives.min(12);
                    for receive in 0..open.saturating_sub(if nth == 0 { 0 } else { open / 2 }) {
                        let at = SPAN / 2 + (posted + receive) % 16 * 256;
                        let data =
                            self.data(side, queue, at, self.program.receive_bytes, Flaw::None);
                        let queue = &mut self.queues[queue][side];
                        if queue.receives - queue.consumed < 16 {
                            queue.post_receive(&data);
                        }
                    }
                }
            }
            // In one round a pair is posted to from one side, once.
            let mut used = [false; PAIRS + 1];
            for batch in round {
                let seen = std::mem::replace(&mut used[batch.queue], true);
                if !seen {
                    self.batch(batch);
                }
            }
            let all: Vec<&Queue> = self.queues.iter().flatten().collect();
            self.world.run(&all);
            for (pair, queues) in self.queues.iter_mut().enumerate() {
                for (side, queue) in queues.iter_mut().enumerate() {
                    for mut entry in queue.poll() {
                        if self.program.has_broken_segments() {
                            entry = without_opcode(&entry);
                        }
                        entries
                            .push(format!("{nth}: {pair}.{side} {} {entry:02x?}", words(&entry)));
                    }
                    for entry in queue.poll_receives() {
                        queue.consumed += 1;
                        entries.push(format!(
                            "{nth}: {pair}.{side} receive {} {entry:02x?}",
                            words(&entry)
                        ));
                    }
                }
            }
        }
        let queues = self.queues.iter().flatten().enumerate();
        let causes = queues.map(|(i, queue)| self.world.nic(i % 2).cause(queue.qp.qpn)).collect();
        Left { entries, memory: [bytes(&self.regions[0]), bytes(&self.regions[1])], causes }
    }
}

fn mode(small: Option<bool>) -> u32 {
    match small {
        None => 0,
        Some(true) => OPMOD_EXTENDED_4.into(),
        Some(false) => OPMOD_EXTENDED_8.into(),
    }
}

/// Programs to run; on a GPU each takes some tenths of a second.
fn cases() -> u32 {
    let asked = std::env::var("CONFORMANCE_CASES").ok().and_then(|n| n.parse().ok());
    asked.unwrap_or(if kinds().len() > 2 { 40 } else { 200 })
}

impl Program {
    /// A WQE whose segments aren't what was posted: the flush goes on in the middle of another one, whose bytes, an
    /// address for instance, are taken for an opcode.
    fn has_broken_segments(&self) -> bool {
        let batches = self.rounds.iter().flatten();
        let mut ops = batches.clone().flat_map(|batch| &batch.ops);
        batches.clone().any(|batch| batch.short)
            || ops.any(|op| {
                matches!(op.body, Body::Garbage(_))
                    || matches!(op.flaw, Flaw::NoSegments | Flaw::Short)
            })
    }
}

/// The CQE without its opcode, if it is that of a flushed WQE.
fn without_opcode(entry: &[u8; 64]) -> [u8; 64] {
    let mut entry = *entry;
    if Cqe::from_bytes(entry).syndrome() == Some(Syndrome::Flushed) {
        entry[56] = 0;
    }
    entry
}

fn compare(program: &Program) -> Result<(), TestCaseError> {
    let kinds = kinds();
    let expected = Running::new(&kinds[0], program).run();
    for kind in &kinds[1..] {
        let left = Running::new(kind, program).run();
        for (i, (one, other)) in expected.entries.iter().zip(&left.entries).enumerate() {
            prop_assert_eq!(one, other, "entry {} on {:?}", i, kind);
        }
        prop_assert_eq!(expected.entries.len(), left.entries.len(), "entries on {:?}", kind);
        prop_assert_eq!(&expected.causes, &left.causes, "causes on {:?}", kind);
        for side in [0, 1] {
            let (one, other) = (&expected.memory[side], &left.memory[side]);
            let differs = one.iter().zip(other).position(|(a, b)| a != b);
            prop_assert_eq!(differs, None, "byte of side {} on {:?}", side, kind);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_program_leaves_the_same_on_every_nic(program in program()) {
        compare(&program)?;
    }
}
