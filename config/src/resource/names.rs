//! Interface names, MAC addresses, labels.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde_json::Value;

use super::ValueError;
use super::json::Fields;

/// A valid name of a network interface: 1 to 15 bytes, without `/`, `:` and white space, not `.` or `..`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InterfaceName(String);

/// Expected format, for errors.
pub(crate) const INTERFACE: &str = "write an interface name of 1 to 15 bytes without `/`, `:` or blanks";

impl InterfaceName {
    /// Returns the name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for InterfaceName {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let bad = |c: char| c == '/' || c == ':' || c == '\0' || c.is_whitespace();
        if text.is_empty() || text.len() > 15 || text == "." || text == ".." || text.contains(bad) {
            Err(ValueError::new("", format_args!("`{text}`"), INTERFACE))
        } else {
            Ok(Self(text.to_owned()))
        }
    }
}

impl AsRef<str> for InterfaceName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for InterfaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A MAC address; parsed with `:` or `-` in either case, formatted in lower case with `:`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MacAddr(pub [u8; 6]);

/// Expected format, for errors.
pub(crate) const MAC: &str = "write a MAC address, such as ee:ee:ee:ee:ee:ee";

impl FromStr for MacAddr {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let octets: Option<Vec<u8>> = text
            .split([':', '-'])
            .map(|part| {
                let hex = part.len() <= 2 && part.bytes().all(|b| b.is_ascii_hexdigit());
                if hex { u8::from_str_radix(part, 16).ok() } else { None }
            })
            .collect();
        octets
            .and_then(|octets| octets.try_into().ok())
            .map(Self)
            .ok_or_else(|| ValueError::new("", format_args!("`{text}`"), MAC))
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Labels by name. Names have 1 to 512 characters of `A-Z a-z 0-9 _ . / -`; values are any text.
pub type Labels = BTreeMap<String, String>;

/// Expected format of a label or tag name, for errors.
const LABEL_NAME: &str = "write a name of 1 to 512 characters from A-Z a-z 0-9 _ . / -";

pub(crate) fn is_label_name(text: &str) -> bool {
    (1..=512).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'/' | b'-'))
}

/// Checks that a name can be used in a selector.
pub(crate) fn label_name(text: String) -> Result<String, ValueError> {
    if is_label_name(&text) {
        Ok(text)
    } else {
        Err(ValueError::new("", format_args!("`{text}`"), LABEL_NAME))
    }
}

/// Parses a JSON object of strings.
pub(crate) fn labels(value: Value) -> Result<Labels, ValueError> {
    let Value::Object(map) = value else {
        return Err(ValueError::json("", &value, "write an object of texts: {\"role\": \"web\"}"));
    };
    map.into_iter()
        .map(|(name, value)| match value {
            Value::String(text) => Ok((label_name(name)?, text)),
            other => Err(ValueError::json(name, &other, "a label's value is a text in double quotes")),
        })
        .collect()
}

/// Reads the field `labels`, empty if absent.
pub(crate) fn labels_field(fields: &mut Fields) -> Result<Labels, ValueError> {
    fields
        .take("labels")
        .map_or_else(|| Ok(Labels::new()), |value| labels(value).map_err(|error| error.within("labels")))
}

/// Formats labels as a JSON object.
pub(crate) fn labels_json(labels: &Labels) -> Value {
    Value::Object(labels.iter().map(|(name, text)| (name.clone(), Value::String(text.clone()))).collect())
}
