//! WQEs that the unmodified libmlx5 wrote, executed.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod rig;

use rig::*;
use serde_json::Value;
use wire::cqe::CqeOpcode;
use wire::wqe::{Data, SEGMENT};
use zerocopy::IntoBytes;

/// Where the vectors put things.
const REMOTE_BASE: u64 = 0x3000_0000_0000;

fn number(case: &Value, key: &str) -> u64 {
    case[key].as_u64().unwrap()
}

/// Replaces each 4-byte big-endian `from` at word boundaries behind the control segment.
fn patch(wqe: &mut [u8], from: u32, to: u32) {
    for word in wqe[SEGMENT..].chunks_exact_mut(4) {
        if word == from.to_be_bytes() {
            word.copy_from_slice(&to.to_be_bytes());
        }
    }
}

#[test]
fn libmlx5s_wqes_do_what_its_caller_asked_for() {
    let text = include_str!("../../wire/testdata/libmlx5-wqes.json");
    let file: Value = serde_json::from_str(text).unwrap();
    let cases = file["wqes"].as_array().unwrap();
    assert!(cases.len() >= 18);
    let mut rig = Rig::new();
    let pattern = |len: u64| -> Vec<u8> { (0..len).map(|k| (37 * k + 11) as u8).collect() };
    for (i, case) in cases.iter().enumerate() {
        let op = case["op"].as_str().unwrap();
        let (len, sges) = (number(case, "bytes_per_sge"), number(case, "sges"));
        let total = (len * sges) as usize;
        let at = (number(case, "remote_addr") - REMOTE_BASE) as usize;
        let index = number(case, "index");
        let before = 0x0102_0304_0506_0708_u64;
        let is_atomic = op.starts_with("ATOMIC");
        let mut wqe = hex(case["wqe"].as_str().unwrap());
        // The keys and the QP are this NIC's, everything else is libmlx5's.
        wqe[4..7].copy_from_slice(&rig.a.qpn.0.to_be_bytes()[1..]);
        if !case["flags"].as_array().unwrap().iter().any(|f| f == "inline") {
            patch(&mut wqe, number(case, "lkey") as u32, rig.a.keys.lkey);
        }
        patch(&mut wqe, number(case, "rkey") as u32, rig.b.keys.rkey);
        for sge in 0..sges {
            let source = if op == "RDMA_READ" { vec![0; len as usize] } else { pattern(len) };
            rig.a.memory.write((4097 * sge) as usize, &source).unwrap();
        }
        let remote: Vec<u8> = (0..total).map(|k| (k * 7 + i) as u8).collect();
        rig.b.memory.write(at, &remote).unwrap();
        if is_atomic {
            rig.b.memory.word(at).store(before, RELAXED);
        }
        let buffer = 64 * 1024;
        rig.b.post_receive(&[Data::new(REMOTE + buffer, 16_384, rig.b.keys.lkey)]);
        rig.a.producer = index;
        rig.a.write_raw(index, &wqe);
        rig.a.producer += u64::from(wire::wqe::blocks((wqe.len() / SEGMENT) as u8));
        rig.a.ring();
        rig.run();
        let cqes = rig.a.poll_all();
        assert_eq!(cqes.len(), 1, "{i} {op}: {cqes:?}");
        assert_eq!(cqes[0].opcode(), Some(CqeOpcode::Requester), "{i} {op}: {:?}", cause(&cqes[0]));
        let sent: Vec<u8> = (0..sges).flat_map(|_| pattern(len)).collect();
        let received = rig.b.poll_all();
        match op {
            "RDMA_WRITE" | "RDMA_WRITE_WITH_IMM" => {
                assert_eq!(rig.b.bytes(at, total), sent, "{i} {op}");
            }
            "SEND" | "SEND_WITH_IMM" => {
                assert_eq!(rig.b.bytes(buffer as usize, total), sent, "{i} {op}");
                assert_eq!(received[0].byte_count.get() as usize, total);
            }
            "RDMA_READ" => {
                let got: Vec<u8> = (0..sges)
                    .flat_map(|sge| rig.a.bytes((4097 * sge) as usize, len as usize))
                    .collect();
                assert_eq!(got, remote, "{i} {op}");
            }
            _ => {
                assert!(is_atomic, "{op}");
                assert_eq!(rig.a.memory.word(0).load(RELAXED), before, "{i} {op}");
                let operand = u64::from_be_bytes(wqe[32..40].try_into().unwrap());
                let compare = u64::from_be_bytes(wqe[40..48].try_into().unwrap());
                let after = match op {
                    "ATOMIC_FETCH_AND_ADD" => before.wrapping_add(operand),
                    _ if compare == before => operand,
                    _ => before,
                };
                assert_eq!(rig.b.memory.word(at).load(RELAXED), after, "{i} {op}");
            }
        }
        let takes_receive = op.ends_with("IMM") || op.starts_with("SEND");
        assert_eq!(received.len(), usize::from(takes_receive), "{i} {op}");
        if op.ends_with("IMM") {
            assert_eq!(u64::from(received[0].imm_inval.get()), number(case, "imm"), "{i} {op}");
        }
        if !takes_receive {
            // Taken back, so that the next case finds its own.
            rig.b.received -= 1;
            rig.b.record.half(0).store((rig.b.received as u32).to_be(), RELEASE);
        }
    }
    assert!(rig.nics[0].findings().is_empty(), "{:?}", rig.nics[0].findings());
    let _ = rig.a.keys.lkey.as_bytes();
}

fn hex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|i| u8::from_str_radix(&text[i * 2..i * 2 + 2], 16).unwrap()).collect()
}
