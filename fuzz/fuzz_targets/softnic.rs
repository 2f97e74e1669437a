//! Hostile queues, doorbells and commands against the software NIC.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| softnic::fuzzing::run(bytes));
