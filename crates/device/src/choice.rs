//! The choices that device code is compiled for.

use std::fmt;
use std::str::FromStr;

macro_rules! axis {
    ($(#[$doc:meta])* $name:ident, $cpp:literal { $($(#[$vdoc:meta])* $variant:ident = $value:literal, $text:literal, $cppv:literal;)* }) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
        )]
        #[repr(u32)]
        pub enum $name { $($(#[$vdoc])* $variant = $value,)* }

        impl $name {
            /// Every value, in order.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];
            /// Its name on the command line and in records.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
            /// Its name in the C++ headers.
            #[must_use]
            pub const fn cpp(self) -> &'static str {
                match self { $(Self::$variant => concat!("gic::", $cpp, "::", $cppv),)* }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }

        impl FromStr for $name {
            type Err = UnknownValue;
            fn from_str(s: &str) -> Result<Self, UnknownValue> {
                Self::ALL.iter().copied().find(|v| v.name() == s).ok_or_else(|| UnknownValue {
                    value: s.to_owned(),
                    known: Self::ALL.iter().map(|v| v.name()).collect(),
                })
            }
        }
    };
}

pub(crate) use axis;

/// A name that is no value of an axis.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{value}` is not one of {}", known.join(", "))]
pub struct UnknownValue {
    /// What was given.
    pub value: String,
    /// What could have been.
    pub known: Vec<&'static str>,
}

axis! {
    /// How "wqe before record" and "record before doorbell" are kept. The reasoning is in `gic/order.hpp`.
    Order, "Order" {
        /// Not at all: program order only.
        None = 0, "none", "none";
        /// Record and doorbell are release stores of GPU scope.
        GpuRelease = 1, "gpu-release", "gpu_release";
        /// A GPU-scope fence before each.
        GpuFence = 2, "gpu-fence", "gpu_fence";
        /// A system-scope fence before each, the doorbell a relaxed MMIO store.
        ReleaseFenceMmio = 3, "release-fence-mmio", "release_fence_mmio";
        /// A system-scope fence before each.
        SystemFence = 4, "system-fence", "system_fence";
        /// A system-scope fence, then an asynchronous MMIO store that releases: sm_100 and newer.
        AsyncMmio = 5, "async-mmio", "async_mmio";
    }
}

axis! {
    /// Who posts to a queue pair.
    Sharing, "Sharing" {
        /// One thread or warp alone.
        Exclusive = 0, "exclusive", "exclusive";
        /// Many threads: each reserves for itself and publishes in order.
        Thread = 1, "thread", "thread";
        /// Many warps: each reserves once for its lanes.
        Warp = 2, "warp", "warp";
    }
}

axis! {
    /// How completions are reported.
    CqKind, "CqKind" {
        /// One entry a completion.
        Ring = 0, "ring", "ring";
        /// One entry that the NIC overwrites.
        Collapsed = 1, "collapsed", "collapsed";
    }
}

axis! {
    /// How a completion is read.
    CqLoad, "CqLoad" {
        /// A plain load.
        Plain = 0, "plain", "plain";
        /// A load that acquires.
        Acquire = 1, "acquire", "acquire";
    }
}

axis! {
    /// When the doorbell is rung.
    Ringing, "Ringing" {
        /// For every post.
        Each = 0, "each", "each";
        /// When nobody is behind, or a multiple of 32 blocks is crossed.
        Threshold = 1, "threshold", "threshold";
        /// When the caller says so.
        Deferred = 2, "deferred", "deferred";
        /// When n blocks are unrung, and when the caller says so.
        EveryNth = 3, "every-nth", "every_nth";
    }
}

axis! {
    /// Which WQEs ask for a CQE.
    Signalling, "Signalling" {
        /// All.
        Every = 0, "every", "every";
        /// Those that the caller names, and one in each half of the queue.
        OnRequest = 1, "on-request", "on_request";
    }
}

axis! {
    /// The transport service.
    Transport, "Transport" {
        /// Reliable connection.
        Rc = 0, "rc", "rc";
        /// Dynamically connected.
        Dc = 1, "dc", "dc";
    }
}

/// A point in the space of choices: what `gic::Choice` is instantiated with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[repr(C)]
pub struct Choice {
    /// Ordering mode.
    pub order: Order,
    /// Who shares the queue pair.
    pub sharing: Sharing,
    /// Kind of CQ.
    pub cq_kind: CqKind,
    /// How CQEs are read.
    pub cq_load: CqLoad,
    /// Doorbell policy.
    pub ringing: Ringing,
    /// Which WQEs ask for a CQE.
    pub signalling: Signalling,
    /// Transport service.
    pub transport: Transport,
    /// 1: device code looks for its caller's mistakes.
    pub checked: u32,
    /// Largest WQE posted, in 64-byte blocks.
    pub max_blocks: u32,
}

impl Default for Choice {
    /// An exclusive RC queue pair in the published study's configuration.
    fn default() -> Self {
        Self {
            order: Order::GpuRelease,
            sharing: Sharing::Exclusive,
            cq_kind: CqKind::Collapsed,
            cq_load: CqLoad::Acquire,
            ringing: Ringing::Each,
            signalling: Signalling::Every,
            transport: Transport::Rc,
            checked: 0,
            max_blocks: 1,
        }
    }
}

impl Choice {
    /// The C++ type.
    #[must_use]
    pub fn cpp(&self) -> String {
        format!(
            "gic::Choice<{}, {}, {}, {}, {}, {}, {}, {}, {}>",
            self.order.cpp(),
            self.sharing.cpp(),
            self.cq_kind.cpp(),
            self.cq_load.cpp(),
            self.ringing.cpp(),
            self.signalling.cpp(),
            self.max_blocks,
            self.transport.cpp(),
            self.checked != 0,
        )
    }
}

/// Who has to see an ordering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Observer {
    /// Threads of the GPU that stores.
    ThisGpu = 0,
    /// A CPU thread, such as the software NIC's engine.
    Cpu = 1,
    /// A device on the PCIe bus, such as a NIC.
    PcieDevice = 2,
    /// Another GPU.
    OtherGpu = 3,
}

/// Where memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum MemoryPlace {
    /// In the storing GPU's memory.
    Gpu = 0,
    /// In host memory.
    Host = 1,
}

unsafe extern "C" {
    safe fn gic_host_is_safe(order: u32, observer: u32, memory: u32) -> bool;
}

impl Order {
    /// Whether a GPU thread's stores in this mode reach `observer` in order: the header's own answer.
    #[must_use]
    pub fn is_safe(self, observer: Observer, memory: MemoryPlace) -> bool {
        gic_host_is_safe(self as u32, observer as u32, memory as u32)
    }
}
