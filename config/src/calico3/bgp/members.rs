//! Reads members of `spec`, and reports those that are not valid.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

use serde_json::{Map, Value};
use tortie_net::Cidr;

use super::super::output::Output;
use super::super::{Object, ObjectKey};
use crate::resource::{Asn, duration};
use crate::selector::Selector;

/// Members of an object, or of an object inside of it. A member that is not valid counts as absent, after it
/// was reported; what that means is decided where it is read.
pub(super) struct Members<'a, 'o> {
    key: &'a ObjectKey,
    map: &'a Map<String, Value>,
    path: String,
    out: &'o mut Output,
    /// True if a member was reported.
    failed: bool,
}

/// A selector that may lack or be invalid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Selected {
    /// There is no selector.
    Absent,
    /// The selector is not valid, and matches nothing.
    Invalid,
    /// The selector.
    By(Selector),
}

impl<'a, 'o> Members<'a, 'o> {
    /// Reads `spec` of an object.
    pub(super) fn of(object: &'a Object, out: &'o mut Output) -> Self {
        Self { key: &object.key, map: &object.spec, path: "spec".to_owned(), out, failed: false }
    }

    /// Reads an object that is a member, or an element of a list; an absent one is empty.
    pub(super) fn inside(&mut self, map: &'a Map<String, Value>, name: impl fmt::Display) -> Members<'a, '_> {
        Members {
            key: self.key,
            map,
            path: format!("{}{name}", self.path),
            out: &mut *self.out,
            failed: false,
        }
    }

    /// Reports a member. `found` is quoted from the object and never a secret.
    pub(super) fn invalid(&mut self, member: &str, found: impl fmt::Display, expected: impl fmt::Display) {
        self.problem("invalid-value", format!("{}: found {found}: {expected}", self.at(member)));
    }

    /// Adds a problem of the object.
    pub(super) fn problem(&mut self, code: &'static str, text: String) {
        self.failed |= code == "invalid-value";
        self.out.problem(self.key, code, text);
    }

    /// Returns the path of a member.
    pub(super) fn at(&self, member: &str) -> String {
        if member.is_empty() { self.path.clone() } else { format!("{}.{member}", self.path) }
    }

    /// Returns true if a member was reported.
    pub(super) fn failed(&self) -> bool {
        self.failed
    }

    /// Returns the names of all members that are not null.
    pub(super) fn names(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.map.iter().filter(|(_, value)| !value.is_null()).map(|(name, _)| name.as_str())
    }

    /// Returns a member; `None` for null.
    pub(super) fn get(&self, member: &str) -> Option<&'a Value> {
        self.map.get(member).filter(|value| !value.is_null())
    }

    /// Reads a text; empty counts as absent.
    pub(super) fn text(&mut self, member: &str) -> Option<&'a str> {
        match self.get(member)? {
            Value::String(text) => Some(text.as_str()).filter(|text| !text.is_empty()),
            other => {
                self.invalid(member, quoted(other), "write a text in double quotes");
                None
            }
        }
    }

    /// Reads one of some words; an empty text counts as absent.
    pub(super) fn word(&mut self, member: &str, words: &[&'static str]) -> Option<&'static str> {
        let text = self.text(member)?;
        let word = words.iter().copied().find(|word| *word == text);
        if word.is_none() {
            self.invalid(member, format_args!("`{text}`"), format_args!("write {}", words.join(" or ")));
        }
        word
    }

    /// Reads a text and parses it.
    pub(super) fn parsed<T: FromStr>(&mut self, member: &str, expected: &str) -> Option<T> {
        let text = self.text(member)?;
        let parsed = text.parse().ok();
        if parsed.is_none() {
            self.invalid(member, format_args!("`{text}`"), expected);
        }
        parsed
    }

    /// Reads a text as it is written, and reports it if it cannot be parsed.
    pub(super) fn checked<T: FromStr>(&mut self, member: &str, expected: &str) -> Option<&'a str> {
        let _ = self.parsed::<T>(member, expected);
        self.get(member)?.as_str().filter(|text| !text.is_empty())
    }

    /// Reads a boolean, false if absent.
    pub(super) fn flag(&mut self, member: &str) -> bool {
        self.bool(member).unwrap_or(false)
    }

    /// Reads a boolean.
    pub(super) fn bool(&mut self, member: &str) -> Option<bool> {
        match self.get(member)? {
            Value::Bool(yes) => Some(*yes),
            other => {
                self.invalid(member, quoted(other), "write true or false, without quotes");
                None
            }
        }
    }

    /// Reads a whole number.
    pub(super) fn number(&mut self, member: &str, min: u64, max: u64) -> Option<u64> {
        let value = self.get(member)?;
        let number = value.as_u64().filter(|number| (min..=max).contains(number));
        if number.is_none() {
            self.invalid(member, quoted(value), format_args!("write a whole number from {min} to {max}"));
        }
        number
    }

    /// Reads an AS number, a number or a text; 0 counts as absent.
    pub(super) fn asn(&mut self, member: &str) -> Option<Asn> {
        let value = self.get(member)?;
        if value.as_u64() == Some(0) || matches!(value.as_str(), Some("" | "0")) {
            return None;
        }
        match Asn::from_json(value) {
            Ok(asn) => Some(asn),
            Err(error) => {
                self.invalid(member, &error.found, &error.expected);
                None
            }
        }
    }

    /// Reads a duration as Go formats it, rounded to seconds.
    pub(super) fn seconds(&mut self, member: &str, min: u64, max: u64) -> Option<u64> {
        let text = self.text(member)?;
        let rounded = duration::parse(text)
            .map(|time| time + Duration::from_millis(500))
            .map(|time| time.as_secs())
            .filter(|time| (min..=max).contains(time));
        if rounded.is_none() {
            let expected = format_args!("write a duration from {min}s to {max}s, such as 2m0s").to_string();
            self.invalid(member, format_args!("`{text}`"), expected);
        }
        rounded
    }

    /// Reads a selector; an empty text counts as absent.
    pub(super) fn selector(&mut self, member: &str) -> Selected {
        let Some(text) = self.text(member) else {
            return if self.get(member).is_some_and(|value| !value.is_string()) {
                Selected::Invalid
            } else {
                Selected::Absent
            };
        };
        match text.parse() {
            Ok(selector) => Selected::By(selector),
            Err(error) => {
                let error: crate::selector::SelectorError = error;
                self.invalid(member, format_args!("`{text}`"), format_args!("{error}; it matches nothing"));
                Selected::Invalid
            }
        }
    }

    /// Reads an object.
    pub(super) fn object(&mut self, member: &str) -> Option<&'a Map<String, Value>> {
        match self.get(member)? {
            Value::Object(map) => Some(map),
            other => {
                self.invalid(member, quoted(other), "write an object {..}");
                None
            }
        }
    }

    /// Reads a list, empty if absent.
    pub(super) fn list(&mut self, member: &str) -> &'a [Value] {
        match self.get(member) {
            None => &[],
            Some(Value::Array(list)) => list,
            Some(other) => {
                self.invalid(member, quoted(other), "write a list [..]");
                &[]
            }
        }
    }

    /// Reads a list of texts. An element that cannot be parsed is reported and left out.
    pub(super) fn parsed_list<T>(
        &mut self,
        member: &str,
        expected: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Vec<T> {
        let mut all = Vec::new();
        for (at, value) in self.list(member).iter().enumerate() {
            match value.as_str().and_then(&parse) {
                Some(element) => all.push(element),
                None => self.invalid(&format!("{member}[{at}]"), quoted(value), expected),
            }
        }
        all
    }
}

/// Quotes a scalar; lists and objects are only named.
pub(super) fn quoted(value: &Value) -> String {
    match value {
        Value::Null => "nothing".to_owned(),
        Value::String(text) => format!("`{}`", text.chars().take(80).collect::<String>()),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        scalar => format!("`{scalar}`"),
    }
}

/// Parses a prefix, whose host bits are cleared; an address counts as a prefix of one address.
pub(super) fn cidr(text: &str) -> Option<Cidr> {
    text.parse::<IpAddr>().map(Cidr::host).ok().or_else(|| text.parse().ok())
}

/// Parses the address and the network of an interface. Without a length the network is the address.
pub(super) fn interface_address(text: &str) -> Option<(IpAddr, Cidr)> {
    match text.split_once('/') {
        None => text.parse().ok().map(|addr| (addr, Cidr::host(addr))),
        Some((addr, _)) => Some((addr.parse().ok()?, text.parse().ok()?)),
    }
}
