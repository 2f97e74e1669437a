//! Whatever a client sends is answered or refused: nothing panics, nothing is left of a client that is gone, and the device
//! reaches nothing of it any more.
//!
//! One test alone, as it counts the process's descriptors.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod rig;

use std::collections::BTreeSet;

use rig::program::run;
use uverbs::{COMMANDS, METHODS};

/// What no device of this sort does.
const NEVER: &[&str] = &[
    "REG_DMABUF_MR",
    "DEVX_SUBSCRIBE_EVENT",
    "DEVX_OBJ_ASYNC_QUERY",
    "DEVX_ASYNC_CMD_FD_ALLOC",
    "DEVX_ASYNC_EVENT_FD_ALLOC",
];

#[test]
fn no_program_breaks_the_device_and_all_together_reach_every_command() {
    let corpus = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/uverbs");
    let kept: Vec<_> =
        std::fs::read_dir(&corpus).unwrap().map(|kept| kept.unwrap().path()).collect();
    assert!(!kept.is_empty(), "no corpus in {}", corpus.display());
    for path in kept {
        run(&std::fs::read(path).unwrap());
    }
    let mut state = 0x5eed_u64;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32
    };
    let mut reached = BTreeSet::new();
    for _ in 0..400 {
        let len = 16 + next() as usize % 1500;
        let program: Vec<u8> = (0..len).map(|_| next() as u8).collect();
        reached.extend(run(&program));
    }
    let known = COMMANDS.iter().map(|c| c.name).chain(METHODS.iter().map(|m| m.name));
    let missed: Vec<_> =
        known.filter(|name| !NEVER.contains(name) && !reached.contains(name)).collect();
    assert!(missed.is_empty(), "no program got {missed:?} done");
}
