//! Accessors for JSON of runtimes, whose errors name the place and the value.

use std::fmt::Display;
use std::str::FromStr;

use serde_json::{Map, Value};

use crate::plugins::cni::protocol::error::CniError;

/// An object and its place in the document.
#[derive(Debug, Clone)]
pub(in crate::plugins::cni) struct Object<'a> {
    at: String,
    map: &'a Map<String, Value>,
    /// True if names match in any case: Go programs may send the names of struct fields, `HostPort` for
    /// `hostPort`.
    any_case: bool,
}

impl<'a> Object<'a> {
    /// Creates an accessor for the object at `at`, which is empty for the configuration itself.
    pub(in crate::plugins::cni) fn new(at: &str, map: &'a Map<String, Value>) -> Self {
        Self { at: at.to_owned(), map, any_case: false }
    }

    /// Returns this value as an object, or an error.
    pub(in crate::plugins::cni) fn of(at: &str, value: &'a Value) -> Result<Self, CniError> {
        let map = value.as_object().ok_or_else(|| CniError::value(at, value, "write an object"))?;
        Ok(Self::new(at, map))
    }

    /// Makes names match in any case.
    pub(in crate::plugins::cni) fn any_case(mut self) -> Self {
        self.any_case = true;
        self
    }

    /// Returns the place of a field.
    pub(in crate::plugins::cni) fn at(&self, name: &str) -> String {
        if self.at.is_empty() { name.to_owned() } else { format!("{}.{name}", self.at) }
    }

    /// Returns a field; `null` counts as absent.
    pub(in crate::plugins::cni) fn get(&self, name: &str) -> Option<&'a Value> {
        let exact = self.map.get(name);
        let found = match exact {
            None if self.any_case => {
                self.map.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
            }
            found => found,
        };
        found.filter(|value| !value.is_null())
    }

    /// Returns the fields whose names are not in `known`.
    pub(in crate::plugins::cni) fn others(
        &self,
        known: &[&str],
    ) -> impl Iterator<Item = (&'a String, &'a Value)> {
        self.map.iter().filter(move |(key, _)| {
            !known.iter().any(|known| key == known || (self.any_case && key.eq_ignore_ascii_case(known)))
        })
    }

    /// Returns a text field; the empty text counts as absent, as in Go programs.
    pub(in crate::plugins::cni) fn text(&self, name: &str) -> Result<Option<&'a str>, CniError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let text = value.as_str().ok_or_else(|| CniError::value(&self.at(name), value, "write a text"))?;
        Ok(Some(text).filter(|text| !text.is_empty()))
    }

    /// Parses a text field; `expected` is the text of the error.
    pub(in crate::plugins::cni) fn parsed<T>(&self, name: &str, expected: &str) -> Result<Option<T>, CniError>
    where
        T: FromStr,
    {
        let Some(text) = self.text(name)? else { return Ok(None) };
        text.parse().map(Some).map_err(|_| CniError::value(&self.at(name), &text.into(), expected))
    }

    /// Parses a text field whose parse error describes the expected form.
    pub(in crate::plugins::cni) fn parsed_or_why<T>(&self, name: &str) -> Result<Option<T>, CniError>
    where
        T: FromStr<Err: Display>,
    {
        let Some(text) = self.text(name)? else { return Ok(None) };
        text.parse()
            .map(Some)
            .map_err(|why: T::Err| CniError::value(&self.at(name), &text.into(), &why.to_string()))
    }

    /// Returns an integer from 0 to `max`.
    pub(in crate::plugins::cni) fn number(&self, name: &str, max: u64) -> Result<Option<u64>, CniError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let expected = format!("write a whole number from 0 to {max}");
        let number = value.as_u64().filter(|n| *n <= max);
        number.map(Some).ok_or_else(|| CniError::value(&self.at(name), value, &expected))
    }

    /// Returns a boolean, which may be written as text, as in Calico's configurations.
    pub(in crate::plugins::cni) fn switch(&self, name: &str) -> Result<Option<bool>, CniError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let text = value.as_str().map(str::to_ascii_lowercase);
        match (value, text.as_deref()) {
            (Value::Bool(yes), _) => Ok(Some(*yes)),
            (_, Some("true")) => Ok(Some(true)),
            (_, Some("false")) => Ok(Some(false)),
            (_, Some("")) => Ok(None),
            _ => Err(CniError::value(&self.at(name), value, "write true or false")),
        }
    }

    /// Returns the elements of a list with their places; an absent list is empty.
    pub(in crate::plugins::cni) fn list(&self, name: &str) -> Result<Vec<(String, &'a Value)>, CniError> {
        let at = self.at(name);
        self.get(name).map_or(Ok(Vec::new()), |value| elements(&at, value))
    }

    /// Returns a list of texts; an absent list is empty.
    pub(in crate::plugins::cni) fn texts(&self, name: &str) -> Result<Vec<String>, CniError> {
        let text = |(at, value): (String, &Value)| {
            let text = value.as_str().ok_or_else(|| CniError::value(&at, value, "write a text"))?;
            Ok(text.to_owned())
        };
        self.list(name)?.into_iter().map(text).collect()
    }

    /// Returns an object field.
    pub(in crate::plugins::cni) fn object(&self, name: &str) -> Result<Option<Self>, CniError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        Self::of(&self.at(name), value).map(|object| Some(Self { any_case: self.any_case, ..object }))
    }
}

/// Returns the elements of a list with their places.
pub(in crate::plugins::cni) fn elements<'a>(
    at: &str,
    value: &'a Value,
) -> Result<Vec<(String, &'a Value)>, CniError> {
    let list = value.as_array().ok_or_else(|| CniError::value(at, value, "write a list"))?;
    Ok(list.iter().enumerate().map(|(i, value)| (format!("{at}[{i}]"), value)).collect())
}
