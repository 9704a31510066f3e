//! The error object of the CNI specification and its codes.

use serde_json::{Value, json};

use crate::plugins::cni::protocol::version::Version;

/// Codes of the specification, and Tortie's from 100 on.
pub mod code {
    /// The version of the configuration is not supported.
    pub const VERSION: u32 = 1;
    /// An unsupported field; the text has key and value.
    pub const FIELD: u32 = 2;
    /// A missing or malformed environment variable; the text has its name.
    pub const ENVIRONMENT: u32 = 4;
    /// Input or output failed.
    pub const IO: u32 = 5;
    /// The input is not valid JSON.
    pub const DECODE: u32 = 6;
    /// The configuration is invalid.
    pub const CONFIG: u32 = 7;
    /// Temporary failure; the runtime should try again.
    pub const TRY_AGAIN: u32 = 11;
    /// `STATUS`: no container can be added now.
    pub const NOT_AVAILABLE: u32 = 50;
    /// `STATUS`: no container can be added now, and running containers may have lost connectivity.
    pub const LIMITED: u32 = 51;
    /// No address is free.
    pub const NO_ADDRESS: u32 = 100;
    /// The requested address is not available.
    pub const ADDRESS: u32 = 101;
    /// The kernel rejected an interface, an address or a route.
    pub const KERNEL: u32 = 102;
    /// The agent could not put the endpoint in force.
    pub const AGENT: u32 = 103;
    /// `CHECK` found a difference.
    pub const CHECK: u32 = 104;
    /// A value in the store cannot be used.
    pub const STORE: u32 = 105;
    /// A delegated plugin failed without an error object.
    pub const DELEGATE: u32 = 106;
}

/// Error of a call. Runtimes show little besides `msg`, so it contains the cause.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CniError {
    /// Error code, one of [`code`].
    pub code: u32,
    /// Error text: the error, its place and the next step.
    pub msg: String,
    /// Further details, for logs.
    pub details: String,
}

impl CniError {
    /// Creates an error with this code.
    pub fn new(code: u32, msg: impl Into<String>) -> Self {
        Self { code, msg: msg.into(), details: String::new() }
    }

    /// Creates an error for an invalid value in the configuration: its place, the value and the expected
    /// form.
    #[must_use]
    pub fn value(at: &str, value: &Value, expected: &str) -> Self {
        Self::new(code::CONFIG, format!("`{at}` is {}: {expected}", shown(value)))
    }

    /// Returns the error object for stdout.
    #[must_use]
    pub fn to_json(&self, version: Version) -> Value {
        let mut object = json!({ "cniVersion": version.as_str(), "code": self.code, "msg": self.msg });
        if !self.details.is_empty()
            && let Some(object) = object.as_object_mut()
        {
            object.insert("details".into(), self.details.clone().into());
        }
        object
    }
}

impl std::fmt::Display for CniError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.msg)
    }
}

impl std::error::Error for CniError {}

/// Formats a value for a message, truncated.
pub(in crate::plugins::cni) fn shown(value: &Value) -> String {
    short(&value.to_string())
}

/// Truncates a text for a message.
pub(in crate::plugins::cni) fn short(text: &str) -> String {
    const MAX: usize = 120;
    match text.char_indices().nth(MAX) {
        Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}
