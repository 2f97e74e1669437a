//! Commands that are almost right: words of valid ones replaced, commands cut or too long, sent about any object. They are
//! answered or refused, never a panic, whatever the queues' memory holds.

use proptest::prelude::*;
use uverbs::{ClientMemory, LinkLayer};
use wire::devx::{NUMBER, OPCODE, Opcode};

use crate::rig::*;
use crate::side::*;

/// A number that is likely to mean something.
fn number() -> impl Strategy<Value = u32> {
    prop_oneof![0..8u32, (0..32u32).prop_map(|bit| 1 << bit), 0x01_0000..0x01_0008u32, any::<u32>()]
}

#[derive(Clone, Debug)]
struct Change {
    /// Which word, and what it becomes.
    words: Vec<(usize, u32)>,
    /// Bytes that the command has.
    len: Option<usize>,
}

fn change() -> impl Strategy<Value = Change> {
    let words = prop::collection::vec((0..70usize, number()), 0..4);
    (words, prop::option::weighted(0.1, 0..600usize)).prop_map(|(words, len)| Change { words, len })
}

impl Change {
    fn apply(&self, command: &mut Vec<u8>) {
        for (word, value) in &self.words {
            if let Some(bytes) = command.get_mut(4 * word..4 * word + 4) {
                bytes.copy_from_slice(&value.to_be_bytes());
            }
        }
        if let Some(len) = self.len {
            command.resize(len, 0);
        }
    }
}

#[derive(Clone, Debug)]
enum Act {
    Cq(Change),
    Qp(Change),
    Dct(Change),
    Step(usize, usize, Change),
    /// A command of any opcode, to any method, about any of what was made.
    Any(u16, usize, usize, Change),
    Umem(u64, u64, u64),
    Destroy(usize),
    Poke(u64, u64),
    Run,
}

fn act() -> impl Strategy<Value = Act> {
    let opcode =
        prop_oneof![(0..Opcode::ALL.len()).prop_map(|nth| Opcode::ALL[nth] as u16), any::<u16>()];
    prop_oneof![
        change().prop_map(Act::Cq),
        change().prop_map(Act::Qp),
        change().prop_map(Act::Dct),
        (0..8usize, 0..3usize, change())
            .prop_map(|(nth, step, change)| Act::Step(nth, step, change)),
        (opcode, 0..4usize, 0..8usize, change())
            .prop_map(|(opcode, method, nth, change)| Act::Any(opcode, method, nth, change)),
        (0..64u64, number(), 0..4u64).prop_map(|(page, len, access)| Act::Umem(
            BASE + page * 512,
            len.into(),
            access
        )),
        (0..8usize).prop_map(Act::Destroy),
        (0..0x400u64, any::<u64>()).prop_map(|(nth, word)| Act::Poke(QUEUES + nth * 8, word)),
        Just(Act::Run),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_command_breaks_the_device(
        ethernet in any::<bool>(),
        acts in prop::collection::vec(act(), 1..40),
    ) {
        let layer = if ethernet { LinkLayer::Ethernet } else { LinkLayer::InfiniBand };
        let mut side = Side::new(layer);
        let (_, cqn) = side.cq();
        let mut made = Vec::new();
        for act in acts {
            let pick = |nth: usize| made.get(nth).copied().unwrap_or((7, 7));
            match act {
                Act::Cq(change) => {
                    let mut command = side.cq_command();
                    change.apply(&mut command);
                    made.extend(side.create(&command));
                }
                Act::Qp(change) => {
                    let mut command = side.qp_command(cqn);
                    change.apply(&mut command);
                    made.extend(side.create(&command));
                }
                Act::Dct(change) => {
                    let mut command = side.dct_command(cqn);
                    change.apply(&mut command);
                    made.extend(side.create(&command));
                }
                Act::Step(nth, step, change) => {
                    let (handle, number) = pick(nth);
                    let mut command = step_command(step, number, number);
                    change.apply(&mut command);
                    let _ = side.modify(handle, &command);
                }
                Act::Any(opcode, method, nth, change) => {
                    let (handle, number) = pick(nth);
                    let mut command = vec![0; 272];
                    change.apply(&mut command);
                    OPCODE.set(&mut command, opcode.into());
                    NUMBER.set(&mut command, number.into());
                    // All methods with a command; the first has no object.
                    let (object, method, handle) = match method {
                        0 => (DEVX, DRIVER, None),
                        method => (OBJ, DRIVER + [0, 2, 3][method - 1], Some(handle)),
                    };
                    let _ = side.send((object, method), handle, &command, 272);
                }
                Act::Umem(address, len, access) => {
                    let _ = umem(&mut side.client, address, len, access);
                }
                Act::Destroy(nth) => {
                    let _ = side.destroy(pick(nth).0);
                }
                Act::Poke(at, word) => side.client.memory.write(at, &word.to_ne_bytes()).unwrap(),
                Act::Run => {
                    for _ in 0..4 {
                        side.host.step();
                    }
                }
            }
        }
    }
}
