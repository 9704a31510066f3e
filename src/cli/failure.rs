//! Exit codes and the one way to fail.

use std::fmt;
use std::process::ExitCode;

/// The exit codes; part of the interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// The honest answer is no: not ready, differences, denied.
    No = 1,
    /// Wrong usage or invalid input.
    Usage = 2,
    /// The agent cannot be reached.
    Unreachable = 3,
    /// No permission.
    Permission = 4,
    /// Timed out.
    TimedOut = 5,
    /// Only a part of the answer could be had.
    Partial = 6,
    /// Refused by a safety check.
    Refused = 7,
}

/// Why a command ends without doing its job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The exit code.
    pub exit: Exit,
    /// Stable, for machines.
    pub code: String,
    /// For people: what, where, and the next step.
    pub text: String,
}

impl Failure {
    /// Invalid input.
    pub fn usage(text: impl Into<String>) -> Self {
        Self { exit: Exit::Usage, code: "invalid".to_owned(), text: text.into() }
    }

    /// Any other.
    pub fn new(exit: Exit, code: &str, text: impl Into<String>) -> Self {
        Self { exit, code: code.to_owned(), text: text.into() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Failure {}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

impl From<tortie_store::StoreError> for Failure {
    fn from(error: tortie_store::StoreError) -> Self {
        use tortie_store::StoreError;
        let (exit, code) = match &error {
            StoreError::Unreachable(_) => (Exit::Unreachable, "store-away"),
            StoreError::Refused(_) => (Exit::Usage, "refused"),
            StoreError::LeaseEnded(_) => (Exit::No, "lease-ended"),
            StoreError::Unwritable(_) => (Exit::No, "unwritable"),
            StoreError::PermissionDenied(_) => (Exit::Permission, "denied"),
            StoreError::Guarded(_) => (Exit::Refused, "calico-3"),
            StoreError::Unusable(_) => (Exit::Usage, "unusable"),
            // Not the exit of wrong settings, after which systemd starts no agent again.
            StoreError::Damaged(_) => (Exit::Unreachable, "store-damaged"),
        };
        let next = match &error {
            StoreError::Unreachable(_) => "; is --datastore right, and does the store run?",
            _ => "",
        };
        Self::new(exit, code, format!("{error}{next}"))
    }
}
