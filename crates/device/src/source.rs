//! The device code's source, embedded, and the translation units that instantiate it.

use crate::choice::Choice;
use crate::like::Like;
use crate::nic::Scope;
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
    "like_atomics.hpp",
    "like_types.hpp",
    "like.hpp",
    "like_doca.hpp",
    "like_ibgda.hpp",
    "like_proxy.hpp",
    "like_public.hpp",
    "proxy_types.hpp",
    "proxy.hpp",
    "kernels/common.hpp",
    "kernels/clocks.hpp",
    "kernels/latency.hpp",
    "kernels/bare.hpp",
    "kernels/like.hpp",
    "kernels/rate.hpp",
    "kernels/round_trip.hpp",
    "kernels/proxy.hpp",
    "kernels/loaded.hpp",
    "kernels/direct.hpp",
    "nic_lanes.hpp",
    "nic_types.hpp",
    "nic_core.hpp",
    "nic_fast.hpp",
    "nic_general.hpp",
    "nic.hpp",
    "kernels/nic.hpp",
];

/// Which kernel a translation unit holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KernelKind {
    /// One operation at a time.
    Latency(Op),
    /// The same by a bare, hand-written sequence: what mini-gda is measured against.
    Bare(Op),
    /// Many operations, of any kind: which one the arguments say.
    Rate,
    /// Many operations of one kind: what this kind takes of a multiprocessor, and no other's.
    RateOf(Body),
    /// Request and reply.
    RoundTrip,
}

/// What a rate kernel posts, and who builds it (`gic::kernels::Body`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Body {
    /// Writes from memory, by one lane.
    Put,
    /// Writes from the WQE, by one lane.
    PutInline,
    /// Writes of 8 bytes from the WQE, by one lane.
    PutValue,
    /// Reads, by one lane.
    Get,
    /// Writes from memory, a lane a WQE.
    WarpPut,
    /// Writes of 8 bytes from the WQE, a lane a WQE.
    WarpPutValue,
}

impl Body {
    const fn cpp(self) -> (&'static str, u32) {
        match self {
            Self::Put => ("put", 1),
            Self::PutInline => ("put_inline", 1),
            Self::PutValue => ("put_value", 1),
            Self::Get => ("get", 1),
            Self::WarpPut => ("put", 32),
            Self::WarpPutValue => ("put_value", 32),
        }
    }
}

/// Name of the entry point in every translation unit.
pub const ENTRY: &str = "gic_kernel";

/// A translation unit: a kernel that measures its own clock around `body`, whose argument is called `a`. In a
/// launch without a place for the readings it does nothing, and is loaded.
pub(crate) fn unit(header: &str, args: &str, declarations: &str, body: &str) -> String {
    format!(
        "#include \"gic/kernels/clocks.hpp\"\n#include \"gic/kernels/{header}.hpp\"\n{declarations}\
         extern \"C\" __global__ void {ENTRY}(const gic::kernels::{args} a, gic::kernels::Clocks* clocks) {{\n    \
         if (clocks == nullptr) return;\n    \
         gic::kernels::ClockSpan span(clocks);\n    \
         {body}\n    \
         span.end();\n}}\n"
    )
}

/// The CUDA C++ translation unit of one kernel with one choice.
#[must_use]
pub fn translation_unit(kernel: KernelKind, choice: &Choice) -> String {
    // Launched as one thread. A condition on the thread would have the compiler guard every branch of the operation
    // against threads that part, within its times.
    let single = |kernel: &str, op: Op| {
        format!("gic::kernels::{kernel}<C, gic::kernels::Op::{}>(a);", op.cpp())
    };
    // One lane a warp, or all of it.
    let many = |function: String| {
        format!(
            "gic::u32 warp = gic::kernels::gpu_thread() / gic::kWarp;\n    \
             if (warp < a.threads && (a.lanes == gic::kWarp || threadIdx.x % gic::kWarp == 0))\n        \
             gic::kernels::{function}(a, warp);"
        )
    };
    let (header, args, body) = match kernel {
        KernelKind::Latency(op) => ("latency", "LatencyArgs", single("latency", op)),
        KernelKind::Bare(op) => ("bare", "LatencyArgs", single("bare", op)),
        KernelKind::Rate => ("rate", "RateArgs", many("rate<C>".to_owned())),
        KernelKind::RateOf(body) => {
            let (body, lanes) = body.cpp();
            ("rate", "RateArgs", many(format!("rate_of<C, gic::kernels::Body::{body}, {lanes}>")))
        }
        KernelKind::RoundTrip => (
            "round_trip",
            "RoundTripArgs",
            "if (threadIdx.x == 0 && blockIdx.x < a.sides) gic::kernels::round_trip<C>(a, a.first_side + blockIdx.x);"
                .to_owned(),
        ),
    };
    unit(header, args, &format!("using C = {};\n", choice.cpp()), &body)
}

/// The CUDA C++ translation unit of the kernel that puts as a library does: a thread a block.
#[must_use]
pub fn like_translation_unit(like: Like) -> String {
    // One condition for the whole block, so that a lone thread's branches are not guarded.
    let body = "if (blockIdx.x < a.threads) gic::kernels::like<C>(a, blockIdx.x);";
    unit("like", "LikeArgs", &format!("using C = {};\n", like.cpp()), body)
}

/// The translation unit that measures what the GPU's clocks resolve.
#[must_use]
pub fn calibration_unit() -> String {
    unit("clocks", "CalibrateArgs", "", "gic::kernels::calibrate(a);")
}

/// The translation unit of the NIC engine: a block of [`BLOCK`](crate::nic::BLOCK) threads a warp. What it places is
/// seen by this GPU's threads, or by everybody.
#[must_use]
pub fn nic_unit(scope: Scope) -> String {
    let scope = match scope {
        Scope::Gpu => "gpu",
        Scope::System => "system",
    };
    unit("nic", "NicArgs", "", &format!("gic::kernels::nic_engine<gic::Scope::{scope}>(a);"))
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

/// The CUDA C++ translation unit of one kernel of the proxied path with one choice.
#[must_use]
pub fn proxy_translation_unit(kernel: ProxyKernelKind, choice: &ProxyChoice) -> String {
    // A thread a block: producers spread over the multiprocessors.
    let (args, body) = match kernel {
        ProxyKernelKind::Enqueue(op) => (
            "EnqueueArgs",
            format!(
                "if (threadIdx.x == 0 && blockIdx.x < a.threads)\n        \
                 gic::kernels::enqueue<C, gic::ProxyOp::{}>(a, blockIdx.x);",
                op.cpp()
            ),
        ),
        ProxyKernelKind::Rate => (
            "ProxyRateArgs",
            "if (threadIdx.x == 0 && blockIdx.x < a.threads) gic::kernels::proxy_rate<C>(a, blockIdx.x);"
                .to_owned(),
        ),
        ProxyKernelKind::RoundTrip => (
            "ProxyRoundTripArgs",
            "if (threadIdx.x == 0 && blockIdx.x < a.sides)\n        \
             gic::kernels::proxy_round_trip<C>(a, a.first_side + blockIdx.x);".to_owned(),
        ),
    };
    unit("proxy", args, &format!("using C = {};\n", choice.cpp()), &body)
}
