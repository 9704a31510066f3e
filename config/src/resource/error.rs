//! Why a value is not what its key needs.

use std::fmt;

use serde_json::Value;

/// A value that cannot be read: the place, what stands there, and what to write instead. Never holds a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValueError {
    /// The field, such as `inbound_rules[2].src_net`; empty for the value as a whole.
    pub path: String,
    /// What was found there, shortened.
    pub found: String,
    /// What should stand there: the next step.
    pub expected: String,
}

/// Longest text of a value that an error repeats, in characters.
const SHOWN: usize = 80;

impl ValueError {
    /// An error about the field `path` (empty: the value as a whole).
    #[must_use]
    pub fn new(path: impl Into<String>, found: impl fmt::Display, expected: impl Into<String>) -> Self {
        Self { path: path.into(), found: shorten(&found.to_string()), expected: expected.into() }
    }

    /// An error about a JSON value; lists and objects are named, not repeated.
    pub(crate) fn json(path: impl Into<String>, found: &Value, expected: impl Into<String>) -> Self {
        match found {
            Value::Array(_) => Self::new(path, "a list", expected),
            Value::Object(_) => Self::new(path, "an object", expected),
            scalar => Self::new(path, format_args!("`{scalar}`"), expected),
        }
    }

    /// A field that has to be there and is not.
    pub(crate) fn missing(path: impl Into<String>, expected: impl Into<String>) -> Self {
        Self::new(path, "nothing", expected)
    }

    /// The same error seen from the object that holds the field.
    #[must_use]
    pub(crate) fn within(mut self, parent: impl fmt::Display) -> Self {
        self.path = match self.path.as_str() {
            "" => parent.to_string(),
            path if path.starts_with('[') => format!("{parent}{path}"),
            path => format!("{parent}.{path}"),
        };
        self
    }
}

fn shorten(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => text.get(..end).map_or_else(String::new, |start| format!("{start}...")),
        None => text.to_owned(),
    }
}

impl fmt::Display for ValueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(f, "`{}`: ", self.path)?;
        }
        write!(f, "found {}; {}", self.found, self.expected)
    }
}

impl std::error::Error for ValueError {}
