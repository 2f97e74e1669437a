//! Hostile queues, doorbells and commands never panic the NIC and never move it outside of what it was given.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use softnic::fuzzing;

#[test]
fn the_kept_corpus_is_harmless() {
    let corpus = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/softnic");
    let mut count = 0;
    for entry in std::fs::read_dir(&corpus).unwrap() {
        fuzzing::run(&std::fs::read(entry.unwrap().path()).unwrap());
        count += 1;
    }
    assert!(count > 0, "no corpus in {}", corpus.display());
}

#[test]
fn thousands_of_random_programs_are_harmless() {
    let mut state = 0x5eed_u64;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32
    };
    // Half of the programs favour opcodes that exist.
    let opcodes = [0x00, 0x08, 0x09, 0x0a, 0x0b, 0x10, 0x11, 0x12, 0x14, 0x15];
    for round in 0..4000 {
        let len = 16 + next() as usize % 600;
        let mut program: Vec<u8> = (0..len).map(|_| next() as u8).collect();
        if round % 2 == 0 {
            for i in (1..len.saturating_sub(4)).step_by(17) {
                program[i] = (1 + (next() % 6) as u8) | (next() as u8 & 0x80);
                program[i + 1] = opcodes[next() as usize % opcodes.len()];
                program[i + 2] = 2 + (next() % 4) as u8;
            }
        }
        fuzzing::run(&program);
    }
}
