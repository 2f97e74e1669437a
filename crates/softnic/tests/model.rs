//! Random programs against a model of memory and completions.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod rig;

use proptest::prelude::*;
use rig::*;
use softnic::*;
use wire::cqe::CqeOpcode;
use wire::wqe::{CtrlFlags, Opcode, Raddr};
use zerocopy::IntoBytes;

/// Bytes of each side's memory that programs touch.
const SPAN: u64 = 16 << 10;

#[derive(Clone, Debug)]
enum Op {
    Inline { to: u64, bytes: Vec<u8> },
    Write { from: u64, to: u64, len: u32 },
    Read { from: u64, to: u64, len: u32 },
    Add { at: u64, value: u64, result: u64 },
    Swap { at: u64, compare: u64, value: u64, result: u64 },
    Nop,
}

fn ops() -> impl Strategy<Value = Op> {
    let at = || 0..SPAN - 9000;
    let word = || (0..SPAN / 8).prop_map(|i| i * 8);
    prop_oneof![
        3 => (at(), prop::collection::vec(any::<u8>(), 0..=200)).prop_map(|(to, bytes)| Op::Inline { to, bytes }),
        2 => (at(), prop::collection::vec(any::<u8>(), 0..=30)).prop_map(|(to, bytes)| Op::Inline { to, bytes }),
        6 => (word(), any::<u64>()).prop_map(|(to, value)| Op::Inline { to, bytes: value.to_ne_bytes().into() }),
        2 => (at(), at(), 0u32..40).prop_map(|(from, to, len)| Op::Write { from, to, len }),
        3 => (at(), at(), 0u32..9000).prop_map(|(from, to, len)| Op::Write { from, to, len }),
        2 => (at(), at(), 0u32..9000).prop_map(|(from, to, len)| Op::Read { from, to, len }),
        2 => (word(), 0u64..4, word()).prop_map(|(at, value, result)| Op::Add { at, value, result }),
        1 => (word(), 0u64..2, any::<u64>(), word())
            .prop_map(|(at, compare, value, result)| Op::Swap { at, compare, value, result }),
        1 => Just(Op::Nop),
    ]
}

impl Op {
    /// What comes after may overtake it, unless fenced.
    fn reads(&self) -> bool {
        matches!(self, Self::Read { .. } | Self::Add { .. } | Self::Swap { .. })
    }
}

struct Model {
    a: Vec<u8>,
    b: Vec<u8>,
}

impl Model {
    fn apply(&mut self, op: &Op) {
        let range = |at: u64, len: usize| at as usize..at as usize + len;
        match op {
            Op::Inline { to, bytes } => self.b[range(*to, bytes.len())].copy_from_slice(bytes),
            Op::Write { from, to, len } => {
                let len = *len as usize;
                self.b[range(*to, len)].copy_from_slice(&self.a[range(*from, len)]);
            }
            Op::Read { from, to, len } => {
                let len = *len as usize;
                self.a[range(*to, len)].copy_from_slice(&self.b[range(*from, len)]);
            }
            Op::Add { at, value, result } => {
                self.atomic(*at, *result, |old| old.wrapping_add(*value))
            }
            Op::Swap { at, compare, value, result } => {
                self.atomic(*at, *result, |old| if old == *compare { *value } else { old });
            }
            Op::Nop => {}
        }
    }
    fn atomic(&mut self, at: u64, result: u64, change: impl Fn(u64) -> u64) {
        let (at, result) = (at as usize, result as usize);
        let old = u64::from_ne_bytes(self.b[at..at + 8].try_into().unwrap());
        self.b[at..at + 8].copy_from_slice(&change(old).to_ne_bytes());
        self.a[result..result + 8].copy_from_slice(&old.to_ne_bytes());
    }
}

fn post(rig: &mut Rig, op: &Op, flags: CtrlFlags) -> u64 {
    let rkey = rig.b.keys.rkey;
    let remote = |at: u64| Raddr::new(REMOTE + at, rkey);
    match op {
        Op::Inline { to, bytes } => rig.a.write_inline(REMOTE + to, rkey, bytes, flags),
        Op::Write { from, to, len } => {
            // Longer ones are split, so that the segments' ends differ from the packets'.
            let first = if *len <= 32 { *len } else { len / 3 };
            let data = [rig.a.data(*from, first), rig.a.data(from + u64::from(first), len - first)];
            let segments = if first == *len { 1 } else { 2 };
            rig.a.post(Opcode::RdmaWrite, flags, 0, Some(remote(*to)), &data[..segments])
        }
        Op::Read { from, to, len } => {
            let data =
                [rig.a.data(*to, len / 2), rig.a.data(to + u64::from(len / 2), len - len / 2)];
            rig.a.post(Opcode::RdmaRead, flags, 0, Some(remote(*from)), &data)
        }
        Op::Add { at, value, result } => {
            let body = [
                remote(*at).as_bytes(),
                &value.to_be_bytes(),
                &[0; 8],
                rig.a.data(*result, 8).as_bytes(),
            ]
            .concat();
            rig.a.write_wqe(Opcode::AtomicFa, flags, 0, &body)
        }
        Op::Swap { at, compare, value, result } => {
            let body = [
                remote(*at).as_bytes(),
                &value.to_be_bytes(),
                &compare.to_be_bytes(),
                rig.a.data(*result, 8).as_bytes(),
            ]
            .concat();
            rig.a.write_wqe(Opcode::AtomicCs, flags, 0, &body)
        }
        Op::Nop => rig.a.write_wqe(Opcode::Nop, flags, 0, &[]),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// What comes after reads and atomics waits for them (fence), so that a sequential model holds; any packet
    /// may be lost, on its way to either side or to one, the queue and the sequence numbers wrap.
    #[test]
    fn memory_and_completions_are_those_of_the_model(
        program in prop::collection::vec((ops(), any::<bool>(), any::<bool>()), 1..60),
        start in prop_oneof![Just(0u64), Just(65_530), Just((1 << 32) - 3)],
        psn in prop_oneof![Just(0u32), Just(0xff_fff8)],
        loss in prop_oneof![Just(None), (25u32..40, any::<u64>()).prop_map(Some)],
        losers in prop_oneof![Just(0..2usize), Just(0..1), Just(1..2)],
    ) {
        let mut rig = Rig::with(Options { sq_start: start, psn, retry_cnt: 7, timeout: 1, ..Options::default() });
        for nic in &mut rig.nics[losers] {
            nic.set_faults(Faults { drop_random: loss, ..Faults::default() });
        }
        let mut model = Model { a: (0..SPAN).map(|i| (i * 3) as u8).collect(), b: vec![0; SPAN as usize] };
        rig.a.memory.write(0, &model.a).unwrap();
        let mut expected = Vec::new();
        let mut got = Vec::new();
        let mut reading = false;
        for (op, signalled, batched) in &program {
            model.apply(op);
            let flags = if *signalled { CtrlFlags::CQ_UPDATE } else { CtrlFlags::NONE };
            let index = post(&mut rig, op, if reading { flags.with(CtrlFlags::FENCE) } else { flags });
            reading = op.reads();
            if *signalled {
                expected.push(index as u16);
            }
            let depth = 1 << rig.a.log_sq;
            if !batched || rig.a.producer - rig.nics[0].query_qp(rig.a.qpn).unwrap().sq_completed > depth - 8 {
                rig.a.ring();
                rig.run();
                got.extend(rig.a.poll_all());
            }
        }
        rig.a.ring();
        rig.run();
        got.extend(rig.a.poll_all());
        prop_assert!(got.iter().all(|c| c.opcode() == Some(CqeOpcode::Requester)), "{:?}", got.iter().map(cause).collect::<Vec<_>>());
        prop_assert_eq!(got.iter().map(|c| c.wqe_counter.get()).collect::<Vec<_>>(), expected);
        prop_assert!(rig.a.bytes(0, SPAN as usize) == model.a, "the requester's memory differs");
        prop_assert!(rig.b.bytes(0, SPAN as usize) == model.b, "the responder's memory differs");
        prop_assert!(rig.nics[0].findings().is_empty());
    }
}
