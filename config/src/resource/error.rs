//! Error of a value that is not valid for its key.

use std::fmt;

use serde_json::Value;

/// A value that cannot be parsed: the field, the text found and the text expected. Never contains a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValueError {
    /// Path of the field, such as `inbound_rules[2].src_net`; empty for the value as a whole.
    pub path: String,
    /// Text found, shortened.
    pub found: String,
    /// Text expected, which is the next step.
    pub expected: String,
}

/// Maximum length of the quoted text, in characters.
const SHOWN: usize = 80;

impl ValueError {
    /// Creates an error for the field `path` (empty for the value as a whole).
    #[must_use]
    pub fn new(path: impl Into<String>, found: impl fmt::Display, expected: impl Into<String>) -> Self {
        Self { path: path.into(), found: shorten(&found.to_string()), expected: expected.into() }
    }

    /// Creates an error for a JSON value. Lists and objects are named, not quoted.
    pub(crate) fn json(path: impl Into<String>, found: &Value, expected: impl Into<String>) -> Self {
        match found {
            Value::Array(_) => Self::new(path, "a list", expected),
            Value::Object(_) => Self::new(path, "an object", expected),
            scalar => Self::new(path, format_args!("`{scalar}`"), expected),
        }
    }

    /// Creates an error for a missing field.
    pub(crate) fn missing(path: impl Into<String>, expected: impl Into<String>) -> Self {
        Self::new(path, "nothing", expected)
    }

    /// Prepends the path of the object that contains the field.
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
