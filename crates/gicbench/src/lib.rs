//! The experiments and everything around them: command line, run plan, runner, records, exporters.
//!
//! This is the only room that sees all the others. What belongs elsewhere: statistics (`stats`), wire
//! formats (`wire`), device code (`device`), and how a transport works (`mini-gda`, `mini-proxy`).
//!
//! The way of a run: [`cli`] → [`request`] → [`plan`] → [`runner`] → [`record`] → [`export`].

pub mod axes;
pub mod cli;
pub mod context;
pub mod cpus;
pub mod decode;
pub mod doctor;
pub mod exit;
pub mod experiments;
pub mod export;
pub mod gpu;
pub mod hardware;
pub mod isolated;
pub mod list;
pub mod machine;
pub mod measurement;
pub mod nic_exec;
pub mod peer;
pub mod plan;
pub mod platform;
pub mod point;
pub mod published;
pub mod quantity;
pub mod ranks;
pub mod record;
pub mod report;
pub mod request;
pub mod run;
pub mod runner;
pub mod selftest;
pub mod usage;
