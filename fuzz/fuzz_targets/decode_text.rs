//! Hostile text for `gicbench decode`. The first byte chooses what it is taken for.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(dead_code, reason = "the command itself isn't run")]
#[path = "../../crates/gicbench/src/decode/mod.rs"]
mod decode;

use decode::{Options, Order, What};

fuzz_target!(|data: &[u8]| {
    let Some((choice, text)) = data.split_first() else { return };
    let options = Options {
        what: [What::Wqe, What::Cqe, What::Doorbell][usize::from(choice & 3) % 3],
        order: [Order::Auto, Order::Memory, Order::Little][usize::from(choice >> 2 & 3) % 3],
        dc: choice & 16 != 0,
        json: choice & 32 != 0,
    };
    match decode::decode(&String::from_utf8_lossy(text), options) {
        Ok(shown) => assert!(!shown.is_empty()),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
