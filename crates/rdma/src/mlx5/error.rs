//! What can go wrong with a ConnectX, and in which step.

use wire::devx::{STATUS, SYNDROME, Status};

/// A step of making a NIC's objects failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Mlx5Error {
    /// Another vendor's device.
    #[error("{device} is no ConnectX that libmlx5 drives: --nic verbs takes any RDMA device")]
    NotMlx5 {
        /// Its name.
        device: String,
    },
    /// A call of the library failed.
    #[error("{step} failed: {}", std::io::Error::from_raw_os_error(*errno))]
    Call {
        /// The step, by the function's name.
        step: &'static str,
        /// What the system said.
        errno: i32,
    },
    /// The device refused a command.
    #[error(
        "the device refuses {command}: status {status:#04x} ({}), syndrome {syndrome:#010x}",
        Status::from_number(*status).map_or("unknown", Status::name)
    )]
    Refused {
        /// The command.
        command: &'static str,
        /// Its status.
        status: u8,
        /// Which check failed; firmware's numbers aren't published.
        syndrome: u32,
    },
    /// No way to the doorbell.
    #[error("the doorbell page can't be had for {submitter}: {tried}")]
    Doorbell {
        /// Who would ring.
        submitter: &'static str,
        /// What was tried, and how it failed.
        tried: String,
    },
    /// No way to GPU memory.
    #[error("the NIC can't be given the GPU memory of the {what}: {tried}")]
    GpuMemory {
        /// What it is for.
        what: &'static str,
        /// What was tried, and how it failed.
        tried: String,
    },
    /// Something that hardware has no way for.
    #[error("a ConnectX has no {what}")]
    Unsupported {
        /// What was asked for.
        what: &'static str,
    },
    /// A peer that this port can't name.
    #[error("{peer} can't be reached from this port: {why}")]
    Path {
        /// The peer's address.
        peer: String,
        /// What is wrong with it.
        why: &'static str,
    },
}

impl Mlx5Error {
    /// What the last call left in `errno`.
    pub(super) fn call(step: &'static str) -> Self {
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
        Self::Call { step, errno }
    }

    /// A command that failed with this answer: refused by the device if that says so, or before it came there.
    pub(super) fn command(command: &'static str, answer: &[u8], errno: i32) -> Self {
        match STATUS.get(answer) as u8 {
            0 => Self::Call { step: command, errno },
            status => Self::Refused { command, status, syndrome: SYNDROME.get32(answer) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_status_and_syndrome_and_a_failed_call_the_systems_reason() {
        let mut answer = [0; 16];
        let failed = Mlx5Error::command("CREATE_QP", &answer, 22).to_string();
        assert!(failed.contains("CREATE_QP") && failed.contains("Invalid argument"), "{failed}");
        STATUS.set(&mut answer, 5);
        SYNDROME.set(&mut answer, 0x12ab);
        let refused = Mlx5Error::command("CREATE_QP", &answer, 121).to_string();
        assert!(refused.contains("BAD_RES_ERR") && refused.contains("0x000012ab"), "{refused}");
    }
}
