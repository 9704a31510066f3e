//! What can go wrong with a lab, each with the place and the next step.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Why a lab file was refused or a lab could not be built, entered or removed.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// A file could not be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The lab file says something that is wrong or that a lab of namespaces cannot do.
    #[error(transparent)]
    Invalid(#[from] Box<Invalid>),
    /// The kernel or the machine's settings do not let us make namespaces; the text says which setting and what to do.
    #[error("{0}")]
    Forbidden(String),
    /// Building or changing one node failed.
    #[error("{node}: {what}: {source}")]
    Node {
        /// The node, or the link as `NODE:INTERFACE`.
        node: String,
        /// What was being done.
        what: String,
        /// What the system said.
        source: io::Error,
    },
    /// A command of the lab file ended with an error.
    #[error("{node}: `{command}` ended with {status}{}", tail(output))]
    Command {
        /// The node.
        node: String,
        /// The command as it was run.
        command: String,
        /// Its exit status.
        status: std::process::ExitStatus,
        /// What it wrote, standard output and error together.
        output: String,
    },
    /// A node did not reach a state in time.
    #[error("{node}: not {state} after {seconds} s{}", tail(output))]
    Timeout {
        /// The node.
        node: String,
        /// `healthy` or `exited`.
        state: &'static str,
        /// How long was waited, in seconds.
        seconds: u64,
        /// The last words of its health check or log.
        output: String,
    },
    /// There is no such lab, node or process to act on.
    #[error("{0}")]
    Absent(String),
    /// The lab runs already.
    #[error("lab {lab} runs already (state in {}): run `tortie lab down` on its file first", state.display())]
    Running {
        /// The lab's name.
        lab: String,
        /// Its state folder.
        state: PathBuf,
    },
}

fn tail(output: &str) -> String {
    let lines: Vec<&str> = output.lines().filter(|l| !l.trim().is_empty()).collect();
    let last = lines.get(lines.len().saturating_sub(5)..).unwrap_or_default();
    last.iter().fold(String::new(), |text, line| format!("{text}\n    {line}"))
}

/// A fault in a lab file: where it is, what is wrong and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invalid {
    /// The lab file.
    pub file: PathBuf,
    /// The line, counted from 1, where it could be told.
    pub line: Option<usize>,
    /// The place in the document, such as `topology.links[2].endpoints`; empty for the document itself.
    pub place: String,
    /// What is wrong.
    pub text: String,
    /// What to do about it.
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
