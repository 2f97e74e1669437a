//! Calls of random bytes: answered or refused, never a panic.
#![allow(clippy::unwrap_used, reason = "tests")]

mod rig;

use proptest::prelude::*;
use rig::*;
use uverbs::{COMMANDS, ClientMemory, LinkLayer, METHODS};

/// A number that is likely to mean something: a handle, an address, a size, or anything.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..8u64,
        (0..64u64).prop_map(|nth| BASE + nth * 1024),
        (0..64u32).prop_map(|bit| 1 << bit),
        any::<u64>(),
    ]
}

fn body() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(
        prop_oneof![
            number().prop_map(|n| n.to_ne_bytes().to_vec()),
            number().prop_map(|n| (n as u32).to_ne_bytes().to_vec()),
            Just(vec![0; 8]),
        ],
        0..24,
    )
    .prop_map(|parts| {
        let mut bytes = parts.concat();
        bytes.truncate(bytes.len() / 4 * 4);
        bytes
    })
}

fn attr() -> impl Strategy<Value = Attr> {
    let id = prop_oneof![0..16u16, DRIVER..DRIVER + 8, any::<u16>()];
    id.prop_flat_map(|id| {
        prop_oneof![
            (0..16u16, number()).prop_map(move |(len, value)| Attr::Number(id, len, value)),
            number().prop_map(move |handle| Attr::Handle(id, handle as u32)),
            body().prop_map(move |bytes| Attr::Bytes(id, bytes)),
            (0..256u16).prop_map(move |len| Attr::Out(id, len)),
        ]
    })
}

#[derive(Clone, Debug)]
enum Act {
    Write(usize, Vec<u8>, usize),
    Raw(Vec<u8>),
    Method(usize, Vec<Attr>),
    Pd,
    Uar,
    Cq(u64),
    Qp(Vec<u8>),
    Poke(u64, u64),
    Step,
}

fn act() -> impl Strategy<Value = Act> {
    let at = (0..512u64).prop_map(|nth| BASE + nth * 64);
    prop_oneof![
        (0..COMMANDS.len(), body(), 0..64usize).prop_map(|(c, body, words)| Act::Write(
            c,
            body,
            words * 4
        )),
        prop::collection::vec(any::<u8>(), 0..64).prop_map(Act::Raw),
        (0..METHODS.len(), prop::collection::vec(attr(), 0..8))
            .prop_map(|(m, attrs)| Act::Method(m, attrs)),
        Just(Act::Pd),
        Just(Act::Uar),
        at.clone().prop_map(Act::Cq),
        body().prop_map(Act::Qp),
        (at, any::<u64>()).prop_map(|(at, word)| Act::Poke(at, word)),
        Just(Act::Step),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_call_breaks_the_device(acts in prop::collection::vec(act(), 1..40)) {
        let host = host(LinkLayer::InfiniBand);
        let mut client = Client::ready(&host);
        for act in acts {
            match act {
                Act::Write(nth, body, room) => {
                    let _ = client.write(COMMANDS[nth].number, &body, room);
                }
                Act::Raw(bytes) => { let _ = client.raw_write(&bytes); }
                Act::Method(nth, attrs) => {
                    let method = &METHODS[nth];
                    let _ = client.method(method.object, method.method, &attrs);
                }
                Act::Pd => { let _ = client.pd(); }
                Act::Uar => { let _ = client.uar(); }
                Act::Cq(at) => { let _ = client.cq(at, -1); }
                Act::Qp(noise) => {
                    let mut body = qp_body(0, 2, 1, BASE + 4096, BASE + 2048);
                    for (at, byte) in noise.iter().enumerate().filter(|(_, byte)| **byte == 7) {
                        body[at % 112] = *byte;
                    }
                    if let Ok(made) = client.write(24, &body, 72) {
                        let (qp, qpn) = (u32_at(&made, 0), u32_at(&made, 4));
                        for (mask, state) in STEPS.into_iter().zip(1..) {
                            let _ = client.write(26, &modify_body(qp, mask, state, qpn), 0);
                        }
                    }
                }
                Act::Poke(at, word) => client.memory.write(at, &word.to_ne_bytes()).unwrap(),
                Act::Step => { host.step(); }
            }
        }
    }
}
