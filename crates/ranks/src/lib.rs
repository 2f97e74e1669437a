//! Processes that measure together: who started them, how they find each other, and calls from one to another.
//!
//! An existing launcher starts the processes and numbers them: PMIx where it is offered (`mpirun`, `srun`), the variables
//! RANK, WORLD_SIZE and MASTER_ADDR otherwise (`torchrun`, Kubernetes). This room finds that out ([`launch`]), brings the
//! ranks together with the run's token ([`World::join`]), and carries calls of bytes between rank 0 and each other rank.
//! What the bytes mean stays out, and so does everything whose time is measured.
//!
//! ```
//! use std::time::Duration;
//! use ranks::{Card, Identity, Joining, Token, World};
//!
//! // Two ranks in one process: a launcher would have started two.
//! let token = Token::random()?;
//! let joining = |rank| Joining {
//!     rank, size: 2, patience: Duration::from_secs(10),
//!     identity: Identity::of_this_process("doc"), log: Box::new(|line| eprintln!("{line}")),
//! };
//! let door = ranks::Door::open("127.0.0.1:0".parse()?, token.clone())?;
//! let card = Card { address: door.address(), host: ranks::host_name(), token };
//! let other = std::thread::spawn(move || {
//!     let world = World::enter(joining(1), &|| Ok(Some(card.clone())))?;
//!     world.serve(|call| [call, b"!"].concat())
//! });
//! let world = World::gather(joining(0), door, |_, _| Vec::new())?;
//! assert_eq!(world.call(1, b"hello", Duration::from_secs(10))?, b"hello!");
//! world.dismiss();
//! other.join().unwrap()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod card;
mod frame;
mod handshake;
pub mod launch;
mod pmix;
mod start;
mod token;
mod world;

pub use card::{Card, CardError, CardFile};
pub use handshake::Refusal;
pub use pmix::{Pmix, PmixError};
pub use start::{Meeting, StartError, Started, start};
pub use token::{Token, TokenError};
pub use world::{CallError, Door, Identity, JoinError, Joining, Member, World};

/// The name of this machine, as the kernel has it.
#[must_use]
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
