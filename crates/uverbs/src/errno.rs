//! What a kernel answers when it says no.

use softnic::{CreateError, DestroyError, ModifyError};

/// An error number, as `errno` has it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

macro_rules! numbers {
    ($($name:ident: $what:literal,)*) => {
        impl Errno {
            $(#[doc = concat!("`", stringify!($name), "`: ", $what, ".")]
            pub const $name: Self = Self(libc::$name);)*
            const fn name(self) -> Option<&'static str> {
                match self { $(Self::$name => Some(stringify!($name)),)* _ => None }
            }
        }
    };
}

numbers! {
    EAGAIN: "try again",
    EBADF: "the descriptor isn't one of this file's kind",
    EBUSY: "others use the object",
    EFAULT: "the client's memory isn't there",
    EINVAL: "an argument makes no sense",
    EIO: "the device is gone",
    EMFILE: "no descriptor is left",
    ENODATA: "nothing is there",
    ENOENT: "no object has this handle",
    ENOMEM: "the device has no room for another",
    ENOSPC: "the space is too short",
    ENOTTY: "no such request",
    EOPNOTSUPP: "the device can't do it",
    EPROTONOSUPPORT: "the method, or an attribute that must be understood, isn't known",
    EREMOTEIO: "the device refused the command: its output says why",
    ETIMEDOUT: "nobody answered in time",
}

impl std::fmt::Debug for Errno {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "Errno({})", self.0),
        }
    }
}

impl From<CreateError> for Errno {
    fn from(error: CreateError) -> Self {
        match error {
            CreateError::TableFull { .. } => Self::ENOMEM,
            _ => Self::EINVAL,
        }
    }
}

impl From<DestroyError> for Errno {
    fn from(error: DestroyError) -> Self {
        match error {
            DestroyError::Busy { .. } => Self::EBUSY,
            _ => Self::EINVAL,
        }
    }
}

impl From<ModifyError> for Errno {
    fn from(_: ModifyError) -> Self {
        Self::EINVAL
    }
}

impl From<rustix::io::Errno> for Errno {
    fn from(error: rustix::io::Errno) -> Self {
        Self(error.raw_os_error())
    }
}
