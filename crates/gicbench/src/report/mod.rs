//! `gicbench report`: pages and tables from records alone.
//!
//! A record is somebody else's file: nothing of it gets into a page but as escaped text and as numbers, and
//! the page asks for nothing and runs nothing.

pub mod derived;

mod beside;
mod entry;
mod figures;
mod markdown;
mod markup;
mod missing;
mod notes;
mod page;
mod picture;
mod read;
mod table;
mod words;

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;

use self::entry::Source;
pub use self::read::{ReadError, read};
use crate::exit::ExitStatus;
use crate::export::Output;
use crate::plan::Registry;
use crate::published::{Published, PublishedError};
use crate::record::Record;
use crate::run::RunError;
use crate::usage::UsageError;

/// Arguments of `gicbench report`.
#[derive(Debug, Clone, Args)]
pub struct ReportArgs {
    /// Records; several are shown side by side
    #[arg(value_name = "RUN.json", required = true)]
    pub records: Vec<PathBuf>,
    /// Write one self-contained page: figures, pictures and every row
    #[arg(long, value_name = "FILE", required_unless_present = "markdown")]
    pub html: Option<PathBuf>,
    /// Write the tables of figures as Markdown; - is standard output
    #[arg(long, value_name = "FILE|-")]
    pub markdown: Option<PathBuf>,
    /// Overwrite files that exist
    #[arg(long)]
    pub force: bool,
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// A file is no record that can be reported.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// An output can't be.
    #[error(transparent)]
    Usage(#[from] UsageError),
    /// An output couldn't be written.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The figures that the program carries are broken.
    #[error(transparent)]
    Published(#[from] PublishedError),
    /// Standard output couldn't be written.
    #[error("can't write to standard output: {0}")]
    Print(#[source] io::Error),
}

impl ReportError {
    /// The exit status.
    pub fn status(&self) -> ExitStatus {
        match self {
            ReportError::Read(_) | ReportError::Usage(_) => ExitStatus::Usage,
            ReportError::Run(error) => error.status(),
            ReportError::Published(_) | ReportError::Print(_) => ExitStatus::Failed,
        }
    }
}

/// Reads the records and writes what was asked for.
///
/// # Errors
/// A record can't be read, or an output can't be written.
pub fn run(
    args: &ReportArgs,
    registry: &Registry,
    out: &mut dyn Write,
) -> Result<ExitStatus, ReportError> {
    let records: Vec<Record> =
        args.records.iter().map(|path| read(path)).collect::<Result<_, _>>()?;
    let markdown_file = args.markdown.as_deref().filter(|path| path.as_os_str() != "-");
    let files = [("--html", args.html.as_deref()), ("--markdown", markdown_file)];
    let [html_file, markdown_file] = Output::claim_all(files, args.force)?;
    let published = Published::embedded()?;
    let sources: Vec<Source> = read::labels(&args.records)
        .into_iter()
        .zip(&records)
        .map(|(label, record)| Source { label, record })
        .collect();
    if let Some(file) = html_file {
        let page = page::page(&sources, registry, &published);
        file.write(|out| out.write_all(page.as_bytes()))?;
    }
    if args.markdown.is_some() {
        let text = markdown::markdown(&sources, &published);
        match markdown_file {
            Some(file) => file.write(|out| out.write_all(text.as_bytes()))?,
            None => out
                .write_all(text.as_bytes())
                .and_then(|()| out.flush())
                .or_else(|error| match error.kind() {
                    io::ErrorKind::BrokenPipe => Ok(()),
                    _ => Err(error),
                })
                .map_err(ReportError::Print)?,
        }
    }
    Ok(ExitStatus::Done)
}

/// The page of one record.
pub fn html(record: &Record, registry: &Registry, published: &Published) -> String {
    let label = if record.machine.gpus.is_empty() { "this machine" } else { "this GPU" };
    page::page(&[Source { label: label.to_owned(), record }], registry, published)
}
