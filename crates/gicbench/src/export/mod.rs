//! What becomes of a record: one file an exporter.

mod columns;
mod csv;
mod json;
mod output;
mod table;

pub use self::csv::csv;
pub use self::json::json;
pub use self::output::Output;
pub use self::table::table;
