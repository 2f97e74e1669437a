//! The NIC engine's kernel compiles for the GPUs that the project names. No GPU is needed.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod common;

use device::nic::Scope;
use device::nvrtc::{Arch, compile};
use device::source::{ENTRY, nic_unit};

#[test]
fn the_nics_engine_compiles_for_every_named_architecture() {
    if !common::has_nvrtc() {
        return;
    }
    for arch in [Arch::SM_90, Arch::SM_100, Arch::SM_103] {
        for scope in [Scope::Gpu, Scope::System] {
            let cubin = compile(&nic_unit(scope), arch)
                .unwrap_or_else(|e| panic!("{} {scope:?}: {e}", arch.name()));
            let name = format!("{ENTRY}\0");
            let found = cubin.windows(name.len()).any(|bytes| bytes == name.as_bytes());
            assert!(found, "{} {scope:?}: no kernel", arch.name());
        }
    }
}
