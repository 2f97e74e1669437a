//! A ConnectX in software: it reads mlx5 WQEs from its clients' memory, executes them, and writes CQEs.
//!
//! This room holds the NIC: memory regions, queue pairs, completion queues, doorbells, the transport between
//! NICs, faults, a timing profile, a trace, and the findings about what its clients do wrong. The core,
//! [`Nic`], is a function of its clients' memory and of the time it is told: no thread, clock, lock or log may
//! enter it, and nothing on its data path allocates or panics. Threads and clocks are [`SoftNics`], around it.
//! What a transport or an experiment wants is none of its business.
//!
//! Client memory is reached through [`DmaBuf`] alone, and may change at any moment: a WQE is read once, and
//! what was read is checked and executed.

mod atomic;
mod check;
mod completion;
mod config;
mod copy;
mod cq;
mod dc;
mod directory;
mod dma;
mod doorbell;
mod driver;
mod engine;
mod error;
mod fault;
mod fault_text;
mod finding;
#[doc(hidden)]
pub mod fuzzing;
mod link;
mod mapping;
mod memory;
mod mr;
mod nic;
mod notify;
mod pace;
mod packet;
mod placement;
mod profile;
mod qp;
mod qp_control;
mod receive;
mod requester;
mod responder;
mod rng;
mod small;
mod srq;
mod table;
mod trace;
mod unreliable;
mod wqe;

pub use check::{Cause, Check};
pub use config::{
    Caps, CqAttr, CqFormat, CqId, DctAttr, GidKind, MrAttr, Nanos, NicConfig, PdId, PortAddress,
    QpAttr, QpKind, Qpn, ReceiveFormat, RqAttr, SrqAttr, SrqId, UarId,
};
pub use cq::CqInfo;
pub use dma::{DmaBuf, OutOfBounds};
pub use driver::{Clock, EngineGone, EngineOptions, SoftNics};
pub use engine::Step;
pub use error::{CreateError, DestroyError, ModifyError};
pub use fault::{FailWqe, Faults};
pub use fault_text::FaultError;
pub use finding::{Finding, FindingKind};
pub use link::{LinkAttr, LinkEnd, link, shared_link, shared_link_bytes};
pub use mapping::Mapping;
pub use memory::{CopiedMemory, Memory, OutOfMemory};
pub use mr::{Access, MrKeys};
pub use nic::{Counters, Nic};
pub use notify::Event;
pub use profile::Profile;
pub use qp::{Modify, QpInfo, QpState, QpUpdate, Sends};
pub use srq::SrqInfo;
pub use trace::{TraceRecord, Traced};
