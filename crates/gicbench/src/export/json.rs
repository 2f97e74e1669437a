//! The record as JSON.

use std::io::{self, Write};

use crate::record::Record;

/// Writes the record, indented, with a final newline.
///
/// # Errors
/// The writer's.
pub fn json(out: &mut dyn Write, record: &Record) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, record)?;
    writeln!(out)
}
