//! The device code of mini-gda and mini-proxy, and what compiles and launches it.
//!
//! The code itself is CUDA C++ headers (`include/gic/*.hpp`) that a user's kernel can include alone. This
//! crate builds them for the host with the C++ compiler ([`host`]) and for GPUs with NVRTC ([`nvrtc`]): one
//! source, two compilers. Queue set-up, registration and connection stay out: they belong to the transports.

pub mod choice;
pub mod clock;
pub mod cuda;
pub mod direct;
pub mod host;
pub mod like;
pub mod loaded;
pub mod nic;
pub mod nvrtc;
#[cfg(feature = "program")]
pub mod program;
pub mod proxy;
pub mod shared;
pub mod source;
pub mod view;
