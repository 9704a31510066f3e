//! Errors of attributes, and what follows from them (RFC 7606).

use super::notification::ErrorCode;

/// An error in an attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Problem {
    /// Its type code.
    pub attribute: u8,
    /// In words.
    pub reason: &'static str,
}

/// Handling of an erroneous attribute (RFC 7606 2), the weakest first.
pub(super) enum Fault {
    /// Leave the attribute out.
    Discard(&'static str),
    /// Withdraw the routes of the UPDATE. The code serves where there are none (RFC 7606 5.2).
    Withdraw(ErrorCode, &'static str),
    /// Reset the session.
    Reset(ErrorCode),
}
