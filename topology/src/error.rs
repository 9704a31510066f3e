//! Errors of labs, each with its place and the next step.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Error in a lab file, or in building, entering or removing a lab.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// A file could not be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
    /// The lab file is invalid, or needs a feature that labs of namespaces do not have.
    #[error(transparent)]
    Invalid(#[from] Box<Invalid>),
    /// The kernel or the machine's settings forbid creating namespaces. The text names the setting and the
    /// remedy.
    #[error("{0}")]
    Forbidden(String),
    /// Building or changing a node failed.
    #[error("{node}: {what}: {source}")]
    Node {
        /// Node, or link end as `NODE:INTERFACE`.
        node: String,
        /// Operation that failed.
        what: String,
        /// Error of the system call.
        source: io::Error,
    },
    /// A command of the lab file failed.
    #[error("{node}: `{command}` ended with {status}{}", tail(output))]
    Command {
        /// Node that the command ran in.
        node: String,
        /// Command line as it was run.
        command: String,
        /// Exit status of the command.
        status: std::process::ExitStatus,
        /// Combined standard output and standard error.
        output: String,
    },
    /// A node did not reach a state in time.
    #[error("{node}: not {state} after {seconds} s{}", tail(output))]
    Timeout {
        /// Node that was waited for.
        node: String,
        /// State that was not reached, `healthy` or `exited`.
        state: &'static str,
        /// Waiting time in seconds.
        seconds: u64,
        /// End of the output of the health check, or of the log.
        output: String,
    },
    /// The lab, node or process does not exist.
    #[error("{0}")]
    Absent(String),
    /// The lab is already running.
    #[error("lab {lab} runs already (state in {}): run `tortie lab down` on its file first", state.display())]
    Running {
        /// Name of the lab.
        lab: String,
        /// State directory of the lab.
        state: PathBuf,
    },
}

fn tail(output: &str) -> String {
    let lines: Vec<&str> = output.lines().filter(|l| !l.trim().is_empty()).collect();
    let last = lines.get(lines.len().saturating_sub(5)..).unwrap_or_default();
    last.iter().fold(String::new(), |text, line| format!("{text}\n    {line}"))
}

/// An error in a lab file: position, description and next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invalid {
    /// Path of the lab file.
    pub file: PathBuf,
    /// Line number, counted from 1, if known.
    pub line: Option<usize>,
    /// Path in the document, such as `topology.links[2].endpoints`; empty for the whole document.
    pub place: String,
    /// Description of the error.
    pub text: String,
    /// Next step.
    pub next: String,
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        if !self.place.is_empty() {
            write!(f, ": {}", self.place)?;
        }
        write!(f, ": {}", self.text)?;
        if !self.next.is_empty() {
            write!(f, "; {}", self.next)?;
        }
        Ok(())
    }
}

impl std::error::Error for Invalid {}

impl LabError {
    pub(crate) fn file(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        move |source| Self::File { path: path.to_owned(), source }
    }

    pub(crate) fn node<'a>(node: &'a str, what: &'a str) -> impl FnOnce(io::Error) -> Self + 'a {
        move |source| Self::Node { node: node.to_owned(), what: what.to_owned(), source }
    }
}
