//! The device code's source, embedded, and the translation units that instantiate it.

use crate::choice::Choice;
use crate::view::Op;

macro_rules! headers {
    ($($name:literal),* $(,)?) => {
        /// Every header, by the name that it is included by.
        pub const HEADERS: &[(&str, &str)] =
            &[$((concat!("gic/", $name), include_str!(concat!("../include/gic/", $name))),)*];
    };
}

headers![
    "platform.hpp",
    "atomics.hpp",
    "order.hpp",
    "lanes.hpp",
    "wqe.hpp",
    "gda_types.hpp",
    "gda.hpp",
    "kernels/common.hpp",
    "kernels/latency.hpp",
    "kernels/rate.hpp",
    "kernels/round_trip.hpp",
];

/// Which kernel a translation unit holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KernelKind {
    /// One operation at a time.
    Latency(Op),
    /// Many operations.
    Rate,
    /// Request and reply.
    RoundTrip,
}

/// Name of the entry point in every translation unit.
pub const ENTRY: &str = "gic_kernel";

/// The CUDA C++ translation unit of one kernel with one choice.
#[must_use]
pub fn translation_unit(kernel: KernelKind, choice: &Choice) -> String {
    let (header, args, call) = match kernel {
        KernelKind::Latency(op) => (
            "latency",
            "LatencyArgs",
            format!(
                "if (gic::kernels::gpu_thread() == 0) gic::kernels::latency<C, gic::kernels::Op::{}>(a);",
                op.cpp()
            ),
        ),
        // One lane a warp, or all of it.
        KernelKind::Rate => (
            "rate",
            "RateArgs",
            "gic::u32 warp = gic::kernels::gpu_thread() / gic::kWarp;\n    \
             if (warp < a.threads && (a.lanes == gic::kWarp || threadIdx.x % gic::kWarp == 0))\n        \
             gic::kernels::rate<C>(a, warp);"
                .to_owned(),
        ),
        KernelKind::RoundTrip => (
            "round_trip",
            "RoundTripArgs",
            "if (threadIdx.x == 0 && blockIdx.x < 2) gic::kernels::round_trip<C>(a, blockIdx.x);".to_owned(),
        ),
    };
    format!(
        "#include \"gic/kernels/{header}.hpp\"\n\
         using C = {choice};\n\
         extern \"C\" __global__ void {ENTRY}(const gic::kernels::{args} a) {{\n    {call}\n}}\n",
        choice = choice.cpp()
    )
}
