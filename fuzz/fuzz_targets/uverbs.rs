//! Hostile clients at the kernel's door.
#![no_main]

#[path = "../../crates/uverbs/tests/rig/mod.rs"]
mod rig;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    rig::program::run(bytes);
});
