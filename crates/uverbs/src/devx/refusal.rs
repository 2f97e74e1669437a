//! What the device says no to, and how.

use softnic::{CreateError, ModifyError};
use wire::devx::{STATUS, SYNDROME, Status};

macro_rules! refusals {
    ($($(#[$doc:meta])* $name:ident = $nth:literal, $status:ident, $text:literal;)*) => {
        /// A check that a command failed: its answer has the status, and [`syndrome`](Refusal::syndrome).
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Refusal { $($(#[$doc])* $name = $nth,)* }
        impl Refusal {
            #[cfg(test)]
            pub(super) const ALL: &[Self] = &[$(Self::$name,)*];
            pub(super) const fn status(self) -> Status {
                match self { $(Self::$name => Status::$status,)* }
            }
            /// What was wrong, in words.
            pub(super) const fn text(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

refusals! {
    /// Not a command of this device's.
    Unsupported = 1, BadOp, "this device hasn't got the command, or not with this op_mod";
    /// The command is too short.
    InputLength = 2, BadInputLength, "the command is shorter than its layout";
    /// The room for the answer is too small.
    OutputLength = 3, BadOutputLength, "the room for the answer is shorter than its layout";
    /// No such page of capabilities.
    Page = 4, BadParam, "there is no such page of capabilities";
    /// No such GID.
    GidIndex = 5, BadParam, "no entry of the port's GID table has this index";
    /// Not in registered memory.
    NoUmem = 6, BadParam, "a queue and its doorbell record lie in registered memory: umem_valid has to be set";
    /// No such umem.
    Umem = 7, BadResource, "no registered memory of this context has this number";
    /// Outside of the umem.
    UmemBounds = 8, BadParam, "the queue or its doorbell record runs over the end of its registered memory";
    /// The device can't write there.
    UmemReadOnly = 9, BadParam, "the memory isn't registered for local writes";
    /// Not aligned.
    UmemAlignment = 10, BadParam, "a queue begins at a multiple of 64 bytes, its doorbell record of 8";
    /// No such doorbell page.
    Uar = 11, BadResource, "no doorbell page of this context has this number";
    /// No such event queue.
    Eqn = 12, BadResource, "no event queue has this number";
    /// No such CQ.
    Cq = 13, BadResource, "no completion queue of this context has this number";
    /// No such protection domain.
    Pd = 14, BadResource, "no protection domain of this context has this number";
    /// No such shared receive queue.
    Srq = 15, BadResource, "no shared receive queue of this context has this number";
    /// Size of a CQE.
    CqeSize = 16, BadParam, "an entry has 64 or 128 bytes, and isn't compressed";
    /// Too large.
    Depth = 17, Limit, "the queue is deeper than the device's deepest";
    /// Service.
    Service = 18, BadParam, "a queue pair made here is RC or DCI";
    /// How it is told of sends.
    DoorbellMode = 19, BadParam, "a send queue without a doorbell record isn't supported";
    /// Kind of receive queue.
    RqType = 20, BadParam, "there is no such kind of receive queue";
    /// Not in this state.
    State = 21, BadQpState, "the queue pair isn't in the state that the command begins with";
    /// Port.
    Port = 22, BadParam, "the device has no such port";
    /// Partition key.
    Pkey = 23, BadParam, "the port's table of partition keys has no such entry";
    /// Path MTU.
    Mtu = 24, BadParam, "the path MTU is none, or above the port's";
    /// Reads and atomics.
    ReadDepth = 25, BadParam, "more reads and atomics in flight than the device has room for";
    /// Address.
    Path = 26, BadParam, "the path names no peer as the port's link layer does: a LID, or on Ethernet a GID and a source index";
    /// Migration.
    Migration = 27, BadParam, "path migration isn't supported: pm_state says that the path has migrated, or nothing";
    /// Full.
    Full = 28, NoResources, "the device has no room for another";
    /// Longest message.
    Message = 29, BadParam, "a message has at most 2^30 bytes";
    /// Object and command.
    Number = 30, Index, "the command names another object than the one it was sent about";
    /// Atomics.
    AtomicMode = 31, BadParam, "remote atomics need an atomic_mode, and up to 64 bits is the widest";
}

/// Begins all syndromes of this device's own.
const BASE: u32 = 0x00de_0000;

impl Refusal {
    /// The number in the answer.
    pub(super) const fn syndrome(self) -> u32 {
        BASE | self as u32
    }

    /// The answer.
    pub(super) fn mailbox(self, room: usize) -> Vec<u8> {
        let mut answer = vec![0; room];
        STATUS.set(&mut answer, self.status() as u64);
        SYNDROME.set(&mut answer, u64::from(self.syndrome()));
        answer
    }
}

impl From<CreateError> for Refusal {
    fn from(error: CreateError) -> Self {
        match error {
            CreateError::TableFull { .. } => Self::Full,
            CreateError::Memory { .. } => Self::UmemAlignment,
            CreateError::Range { .. } => Self::Depth,
            _ => Self::NoUmem,
        }
    }
}

impl From<ModifyError> for Refusal {
    fn from(error: ModifyError) -> Self {
        match error {
            ModifyError::Range { .. } => Self::ReadDepth,
            ModifyError::NoLink { .. } => Self::Path,
            _ => Self::State,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_refusals_have_a_syndrome_and_none_looks_like_success() {
        let mut seen = std::collections::HashSet::new();
        for &refusal in Refusal::ALL {
            assert!(seen.insert(refusal.syndrome()), "{refusal:?}");
            let answer = refusal.mailbox(16);
            assert_ne!(STATUS.get(&answer), 0, "{refusal:?}");
            assert_eq!(SYNDROME.get32(&answer), refusal.syndrome());
            assert!(!refusal.text().is_empty());
        }
    }
}
