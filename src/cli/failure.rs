//! Failures of commands and their exit codes.

use std::fmt;
use std::process::ExitCode;

/// Exit codes, which are part of the interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Negative answer: not ready, differences, denied.
    No = 1,
    /// Invalid usage or input.
    Usage = 2,
    /// The agent cannot be reached.
    Unreachable = 3,
    /// Permission denied.
    Permission = 4,
    /// Time limit exceeded.
    TimedOut = 5,
    /// Incomplete answer.
    Partial = 6,
    /// Rejected by a safety check.
    Refused = 7,
}

/// Failure of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Exit code.
    pub exit: Exit,
    /// Stable code, for programs.
    pub code: String,
    /// Text for people: the error, its place and the next step.
    pub text: String,
}

impl Failure {
    /// Creates a failure for invalid input.
    pub fn usage(text: impl Into<String>) -> Self {
        Self { exit: Exit::Usage, code: "invalid".to_owned(), text: text.into() }
    }

    /// Creates any other failure.
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
            // This exit code must not be the one of invalid settings, after which systemd does not restart
            // the agent.
            StoreError::Damaged(_) => (Exit::Unreachable, "store-damaged"),
        };
        let next = match &error {
            StoreError::Unreachable(_) => "; is --datastore right, and does the store run?",
            _ => "",
        };
        Self::new(exit, code, format!("{error}{next}"))
    }
}
