//! Plain moves: what they leave, and their build for the GPUs that the project names.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod common;

use common::grouped;
use device::direct::{DirectArgs, DirectKernel, DirectKind, Move, launch, translation_unit};
use device::nvrtc::{Arch, compile};
use device::view::Op;

#[test]
fn every_byte_is_moved_and_none_beside_them_whatever_the_length_and_alignment() {
    for bytes in [1u32, 3, 8, 15, 16, 24, 31, 64, 1000, 4096, 4104] {
        for skew in [0usize, 8] {
            for op in [Op::Put, Op::Get, Op::PutSignal] {
                let mut from: Vec<u8> = (0..8192u32).map(|i| (i % 251) as u8).collect();
                let mut to = vec![0xeeu8; 8192];
                let mut words = [0u64; 4];
                // Their addresses are multiples of 16, or of 8 alone.
                let at = |bytes: &mut Vec<u8>| {
                    bytes.as_mut_ptr() as u64
                        + bytes.as_ptr().align_offset(16) as u64
                        + 16
                        + skew as u64
                };
                let (local, remote) = match op {
                    Op::Get => (at(&mut to), at(&mut from)),
                    _ => (at(&mut from), at(&mut to)),
                };
                let word = |nth: usize| &raw const words[nth] as *mut u64;
                let args = DirectArgs {
                    local,
                    remote,
                    result: 0,
                    signal: word(2) as u64,
                    signalled: 7,
                    stride: 0,
                    warmup: 0,
                    samples: 1,
                    first: 0x55,
                    deadline: 0,
                    issue: word(0),
                    total: word(1),
                    failure: word(3),
                    arrived: std::ptr::null_mut(),
                    bytes,
                    slots: 1,
                    lanes: 1,
                    blocks: 1,
                    is_get: 0,
                    padding: 0,
                };
                // SAFETY: buffers and words are longer than what is moved and written.
                unsafe { launch(DirectKernel::Latency(Move::Store, op, &args), &[], None) }
                    .unwrap();
                let offset = |of: &[u8], address: u64| (address - of.as_ptr() as u64) as usize;
                let (source, target) = match op {
                    Op::Get => (offset(&from, remote), offset(&to, local)),
                    _ => (offset(&from, local), offset(&to, remote)),
                };
                let len = bytes as usize;
                assert_eq!(from[source..source + len], to[target..target + len], "{bytes} {op:?}");
                assert!(to[..target].iter().chain(&to[target + len..]).all(|byte| *byte == 0xee));
                words[2] = std::hint::black_box(words[2]);
                assert_eq!(words[2], if op == Op::PutSignal { 8 } else { 0 });
            }
        }
    }
}

#[test]
fn the_kernels_compile_for_every_named_architecture() {
    if !common::has_nvrtc() {
        return;
    }
    let mut all = vec![DirectKind::RoundTrip];
    for by in [Move::Store, Move::Bulk] {
        all.push(DirectKind::Rate(by));
        for op in [Op::Put, Op::Get, Op::FetchAdd, Op::PutSignal] {
            all.push(DirectKind::Latency(by, op));
        }
    }
    let unit = grouped(all.into_iter().map(translation_unit));
    for arch in [Arch::SM_90, Arch::SM_100, Arch::SM_103] {
        let cubin = compile(&unit, arch).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(&cubin[..4], b"\x7fELF");
    }
}
