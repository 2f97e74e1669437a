//! One suite for every software NIC behind `rdma::Nic`: the CPU engine, the host build of the engine for GPUs, and a
//! GPU where there is one. What a program leaves in memory and in CQEs is the same on all of them, to the byte.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod cases;
mod errors;
mod on_gpu;
mod order;
mod pair;
mod programs;
mod rig;
