//! Exit statuses, which scripts hold on to.

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitStatus {
    /// Done, and the data was right wherever it was checked.
    Done = 0,
    /// Wrong data, or a measurement that failed.
    Failed = 1,
    /// Bad usage.
    Usage = 2,
    /// Nothing could run.
    NothingRan = 3,
    /// Some ran; the rest is listed with its reasons.
    Partial = 4,
}

impl From<ExitStatus> for std::process::ExitCode {
    fn from(status: ExitStatus) -> Self {
        (status as u8).into()
    }
}
