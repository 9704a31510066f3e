//! The error object of the specification and its codes.

use serde_json::{Value, json};

use crate::plugins::cni::protocol::version::Version;

/// Codes of the specification, and ours from 100 on.
pub mod code {
    /// The version of the configuration is none that we speak.
    pub const VERSION: u32 = 1;
    /// A field that we do not support; the text names key and value.
    pub const FIELD: u32 = 2;
    /// A variable of the environment is missing or malformed; the text names it.
    pub const ENVIRONMENT: u32 = 4;
    /// Input or output failed.
    pub const IO: u32 = 5;
    /// The input is no JSON.
    pub const DECODE: u32 = 6;
    /// The configuration says something impossible.
    pub const CONFIG: u32 = 7;
    /// Not now; the runtime may try again.
    pub const TRY_AGAIN: u32 = 11;
    /// `STATUS`: nothing can be added now.
    pub const NOT_AVAILABLE: u32 = 50;
    /// `STATUS`: nothing can be added now, and containers that run may be cut off.
    pub const LIMITED: u32 = 51;
    /// No address is left.
    pub const NO_ADDRESS: u32 = 100;
    /// The address that was asked for is not to be had.
    pub const ADDRESS: u32 = 101;
    /// The kernel refused an interface, an address or a route.
    pub const KERNEL: u32 = 102;
    /// The agent could not bring the endpoint into force.
    pub const AGENT: u32 = 103;
    /// `CHECK` found a difference.
    pub const CHECK: u32 = 104;
    /// A value of the store cannot be used.
    pub const STORE: u32 = 105;
    /// Another plugin that we called failed without an error object.
    pub const DELEGATE: u32 = 106;
}

/// Why a call failed. Runtimes show `msg` and little else, so the cause is in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CniError {
    /// One of [`code`].
    pub code: u32,
    /// What is wrong, where, and the next step.
    pub msg: String,
    /// More, for logs.
    pub details: String,
}

impl CniError {
    /// An error with this code.
    pub fn new(code: u32, msg: impl Into<String>) -> Self {
        Self { code, msg: msg.into(), details: String::new() }
    }

    /// A value of the configuration that is not what it must be: its place, the value and what to write.
    #[must_use]
    pub fn value(at: &str, value: &Value, expected: &str) -> Self {
        Self::new(code::CONFIG, format!("`{at}` is {}: {expected}", shown(value)))
    }

    /// The object that goes to stdout.
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

/// A value for a message: the whole of it would fill the screen.
pub(in crate::plugins::cni) fn shown(value: &Value) -> String {
    short(&value.to_string())
}

/// A text for a message.
pub(in crate::plugins::cni) fn short(text: &str) -> String {
    const MAX: usize = 120;
    match text.char_indices().nth(MAX) {
        Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}
