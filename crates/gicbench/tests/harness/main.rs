//! The harness around the experiments, with experiments made up for it.

// Helpers of tests are exempt as the tests are, which the lints don't see.
#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic)]

mod fake;
mod run;
mod usage;
