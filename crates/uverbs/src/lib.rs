//! The software ConnectX at the kernel's door: uverbs commands in, answers as the kernel's mlx5 driver gives them.
//!
//! The user libraries (libibverbs, libmlx5) are left as they are: what they send through `write` and `ioctl` on a uverbs
//! file comes to a [`Context`], which checks it as a kernel would (lengths, handles, indices, alignment), keeps the objects,
//! and moves the NIC of `crates/softnic`. Who calls it, and where the client's memory lies, is none of this room's
//! business: a preload library hands it a process's own memory, a test or a fuzzer a plain buffer.
//!
//! - [`Host`]: the devices of one process, their engine, and the [`Fabric`] that links them to those of other processes.
//! - [`Context`]: one opened uverbs file.
//! - `commands/`: one file a family of objects; [`COMMANDS`] and [`METHODS`] are the tables of what there is.
//! - `devx/`: commands in the device's own format, and their objects.
//! - [`Settings`]: what the devices are, and what goes wrong with them; `trace.rs`: what they did.
//! - [`Run`]: what the processes of a run have in common, made by who starts them.
//! - `abi.rs`: the byte layouts of Linux's `rdma/*.h`.
//! - [`sysfs`]: the files by which libraries find the devices.

mod abi;
mod attr;
mod channel;
mod commands;
mod config;
mod context;
mod devx;
mod engine;
mod errno;
mod events;
mod fabric;
mod memory;
mod objects;
mod page;
mod run;
mod settings;
pub mod sysfs;
mod trace;
mod turn;

pub use commands::{COMMANDS, Command, METHODS, Method};
pub use config::{DeviceConfig, LinkLayer, Mtu, MtuError, PortConfig, Rate, RateError};
pub use context::Context;
pub use engine::Host;
pub use errno::Errno;
pub use fabric::{Fabric, FabricError};
pub use memory::{BufferMemory, ClientMemory};
pub use page::Mappable;
pub use run::{Run, RunError};
pub use settings::{DeviceFault, DeviceFaultError, Settings, SettingsError};
