//! Hostile bytes as WQEs, receive WQEs, CQEs and doorbells.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/wire/tests/common/hostile.rs"]
mod hostile;

fuzz_target!(|data: &[u8]| hostile::check(data));
