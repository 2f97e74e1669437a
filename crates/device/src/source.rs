//! The device code's source, embedded, and the translation units that instantiate it.

use crate::choice::Choice;
use crate::proxy::{ProxyChoice, ProxyOp};
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
    "proxy_types.hpp",
    "proxy.hpp",
    "kernels/common.hpp",
    "kernels/latency.hpp",
    "kernels/rate.hpp",
    "kernels/round_trip.hpp",
    "kernels/proxy.hpp",
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

/// Which kernel of the proxied path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProxyKernelKind {
    /// One operation at a time.
    Enqueue(ProxyOp),
    /// Many operations.
    Rate,
    /// Request and reply.
    RoundTrip,
}

/// The CUDA C++ translation unit of kernels of the proxied path: kernel `i` is `ENTRY_i`.
#[must_use]
pub fn proxy_translation_unit(kernels: &[(ProxyKernelKind, ProxyChoice)]) -> String {
    let mut unit = "#include \"gic/kernels/proxy.hpp\"\n".to_owned();
    for (i, (kernel, choice)) in kernels.iter().enumerate() {
        let choice = choice.cpp();
        let (args, call) = match kernel {
            ProxyKernelKind::Enqueue(op) => (
                "EnqueueArgs",
                format!(
                    "if (gic::kernels::gpu_thread() < a.threads)\n        \
                     gic::kernels::enqueue<{choice}, gic::ProxyOp::{}>(a, gic::kernels::gpu_thread());",
                    op.cpp()
                ),
            ),
            ProxyKernelKind::Rate => (
                "ProxyRateArgs",
                format!(
                    "if (gic::kernels::gpu_thread() < a.threads)\n        \
                     gic::kernels::proxy_rate<{choice}>(a, gic::kernels::gpu_thread());"
                ),
            ),
            ProxyKernelKind::RoundTrip => (
                "ProxyRoundTripArgs",
                format!(
                    "if (threadIdx.x == 0 && blockIdx.x < 2) \
                     gic::kernels::proxy_round_trip<{choice}>(a, blockIdx.x);"
                ),
            ),
        };
        unit += &format!(
            "extern \"C\" __global__ void {ENTRY}_{i}(const gic::kernels::{args} a) {{\n    {call}\n}}\n"
        );
    }
    unit
}
