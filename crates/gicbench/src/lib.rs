//! The experiments and everything around them: command line, run plan, runner, records, exporters.
//!
//! This is the only room that sees all the others. What belongs elsewhere: statistics (`stats`), wire
//! formats (`wire`), device code (`device`), and how a transport works (`mini-gda`, `mini-proxy`).

pub mod axes;
pub mod context;
pub mod cpus;
pub mod experiments;
pub mod measurement;
pub mod point;
pub mod quantity;
pub mod usage;
