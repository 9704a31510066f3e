//! Attribute errors and their handling (RFC 7606).

use super::notification::ErrorCode;

/// An error in a path attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Problem {
    /// Type code of the attribute.
    pub attribute: u8,
    /// Description of the error.
    pub reason: &'static str,
}

/// Handling of an erroneous attribute (RFC 7606 2), weakest first.
pub(super) enum Fault {
    /// Attribute discard, with the reason.
    Discard(&'static str),
    /// Treat-as-withdraw, with the reason. The code is sent if the UPDATE has no prefixes, which resets the
    /// session (RFC 7606 5.2).
    Withdraw(ErrorCode, &'static str),
    /// Session reset with this error code.
    Reset(ErrorCode),
}
