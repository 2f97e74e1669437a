//! A point: one experiment on one transport, submitter and NIC, with one value on every axis.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

use crate::axes::{AxisId, Value};
use crate::usage::{UsageError, nearest};

macro_rules! named {
    ($(#[$doc:meta])* $name:ident, $flag:literal: $($(#[$vdoc:meta])* $variant:ident = $text:literal),+ $(,)?) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$vdoc])* $variant),+ }

        impl $name {
            /// Every one, in the order in which they are listed.
            pub const ALL: &'static [$name] = &[$($name::$variant),+];

            /// Name on the command line and in records.
            pub fn name(self) -> &'static str {
                match self { $($name::$variant => $text),+ }
            }
        }

        impl FromStr for $name {
            type Err = UsageError;
            fn from_str(text: &str) -> Result<Self, UsageError> {
                Self::ALL.iter().copied().find(|one| one.name() == text).ok_or_else(|| {
                    UsageError::UnknownValue {
                        flag: $flag.to_owned(),
                        value: text.to_owned(),
                        why: "not known".to_owned(),
                        nearest: nearest(text, Self::ALL.iter().map(|one| one.name())),
                    }
                })
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.name())
            }
        }
    };
}

named! {
    /// What carries an operation from the submitting thread to the NIC.
    Transport, "--transport":
    /// GPU threads write the WQE and ring the doorbell.
    MiniGda = "mini-gda",
    /// A bare, hand-written sequence: what mini-gda's code is measured beside.
    Bare = "bare",
    /// The same with the checks that mini-gda makes, written in place: what its header's calls cost.
    Inlined = "inlined",
    /// No NIC: GPU threads store to the remote memory, or have it copied in bulk.
    Direct = "direct",
    /// GPU threads write descriptors, CPU workers post.
    MiniProxy = "mini-proxy",
    /// NVSHMEM's GPU-initiated transport (IBGDA), by its own device code.
    Nvshmem = "nvshmem",
    /// NVSHMEM's proxied put (IBRC), by its own device code.
    NvshmemProxy = "nvshmem-proxy",
    /// NCCL GIN's GPU-initiated back end, by its own device code.
    Gdaki = "gdaki",
    /// NCCL GIN's proxied back end, by its own device code.
    GinProxy = "gin-proxy",
    /// DeepEP's low-latency put, by its own device code.
    DeepEp = "deepep",
    /// MSCCL++'s port channel, by its own device code.
    Mscclpp = "mscclpp",
    /// UCCL-EP's queue to its proxy, by its own device code.
    UcclEp = "uccl-ep",
    /// fabric-lib's hand-off from the GPU, by its own device code.
    FabricLib = "fabric-lib",
}

/// Why host threads measure no library.
pub const NEEDS_GPU_THREADS: &str =
    "a library's device code runs on GPU threads: use --submitter cuda";

impl Transport {
    /// The libraries' paths.
    pub const PEERS: &'static [Transport] = &[
        Transport::Nvshmem,
        Transport::NvshmemProxy,
        Transport::Gdaki,
        Transport::GinProxy,
        Transport::DeepEp,
        Transport::Mscclpp,
        Transport::UcclEp,
        Transport::FabricLib,
    ];

    /// Libraries' paths whose GPU threads ring the doorbell.
    pub const GPU_SUBMITTED_PEERS: &'static [Transport] =
        &[Transport::Nvshmem, Transport::Gdaki, Transport::DeepEp];

    /// Libraries' paths with a CPU proxy.
    pub const PROXIED_PEERS: &'static [Transport] = &[
        Transport::NvshmemProxy,
        Transport::GinProxy,
        Transport::Mscclpp,
        Transport::UcclEp,
        Transport::FabricLib,
    ];

    /// Whether it is a library's, and not this project's.
    pub fn is_peer(self) -> bool {
        Self::PEERS.contains(&self)
    }
}

named! {
    /// Who runs the device code.
    Submitter, "--submitter":
    /// CPU threads, the device source compiled by the C++ compiler.
    Host = "host",
    /// GPU threads.
    Cuda = "cuda",
}

named! {
    /// Who executes the WQEs.
    Nic, "--nic":
    /// The software ConnectX on CPU threads.
    Soft = "soft",
    /// The software ConnectX as a persistent kernel.
    SoftGpu = "soft-gpu",
    /// A real ConnectX.
    Mlx5 = "mlx5",
    /// Any RDMA device through libibverbs, for transports that post by the CPU.
    Verbs = "verbs",
    /// Nobody: what is posted is taken and never executed, and the submit side is alone.
    None = "none",
}

impl Nic {
    /// Whether a program stands in for the hardware.
    pub fn is_software(self) -> bool {
        matches!(self, Nic::Soft | Nic::SoftGpu)
    }

    /// Whether a device of the machine takes its own time.
    pub fn is_device(self) -> bool {
        matches!(self, Nic::Mlx5 | Nic::Verbs)
    }
}

/// One point of a plan.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Point {
    pub(crate) experiment: &'static str,
    /// The transport.
    pub transport: Transport,
    /// Who runs the device code.
    pub submitter: Submitter,
    /// Who executes the WQEs.
    pub nic: Nic,
    pub(crate) values: BTreeMap<AxisId, Value>,
}

impl Point {
    /// The experiment's name.
    pub fn experiment(&self) -> &'static str {
        self.experiment
    }

    /// The value on an axis; none if the point doesn't have the axis.
    pub fn get(&self, axis: AxisId) -> Option<Value> {
        self.values.get(&axis).copied()
    }

    /// A number on an axis: a count, or bytes.
    ///
    /// # Errors
    /// The point has no number on that axis: the experiment didn't declare it for this transport.
    pub fn number(&self, axis: AxisId) -> Result<u64, PointError> {
        self.get(axis).and_then(Value::number).ok_or_else(|| self.undeclared(axis))
    }

    /// A number on an axis, as the type that is needed.
    ///
    /// # Errors
    /// As [`Point::number`], or the number doesn't fit.
    pub fn number_as<T: TryFrom<u64>>(&self, axis: AxisId) -> Result<T, PointError> {
        let number = self.number(axis)?;
        T::try_from(number)
            .map_err(|_| PointError::failed(format!("{axis} {number} is out of range here")))
    }

    /// The word on an axis.
    ///
    /// # Errors
    /// The point has no word on that axis: the experiment didn't declare it for this transport.
    pub fn word(&self, axis: AxisId) -> Result<&'static str, PointError> {
        self.get(axis).and_then(Value::word).ok_or_else(|| self.undeclared(axis))
    }

    fn undeclared(&self, axis: AxisId) -> PointError {
        PointError::failed(format!(
            "{} declares no such value on axis '{axis}' for {}",
            self.experiment, self.transport
        ))
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.experiment, self.transport)?;
        for (axis, value) in &self.values {
            write!(f, " {axis}={value}")?;
        }
        Ok(())
    }
}

/// Why a point has no measurements.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PointError {
    /// It can't run on this machine or in this build. The run goes on, and is partial.
    #[error("{reason}")]
    NotRun {
        /// What is missing, by name.
        reason: String,
    },
    /// Ctrl-C came before there was a sample.
    #[error("interrupted before the first sample")]
    Interrupted,
    /// The point's deadline passed.
    #[error("deadline passed while waiting for {waited_for}")]
    Deadline {
        /// What was being waited for.
        waited_for: String,
    },
    /// It broke.
    #[error("{reason}")]
    Failed {
        /// The error with its causes.
        reason: String,
    },
}

impl PointError {
    /// It can't run here, because of `reason`.
    pub fn not_run(reason: impl Into<String>) -> Self {
        PointError::NotRun { reason: reason.into() }
    }

    /// It broke, because of `reason`.
    pub fn failed(reason: impl Into<String>) -> Self {
        PointError::Failed { reason: reason.into() }
    }

    /// It broke with an error; the causes are kept in the text.
    pub fn from_error(error: &(dyn std::error::Error + 'static)) -> Self {
        let mut reason = error.to_string();
        let mut cause = error.source();
        while let Some(inner) = cause {
            let text = inner.to_string();
            if !reason.contains(&text) {
                reason.push_str(": ");
                reason.push_str(&text);
            }
            cause = inner.source();
        }
        PointError::Failed { reason }
    }
}
