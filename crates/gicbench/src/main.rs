//! gicbench: an open performance oracle for GPU-initiated communication.
fn main() {}
