//! Parses JSON objects field by field, with the field's path in every error, and writes them again including
//! unknown fields.

use std::cell::RefCell;
use std::fmt;
use std::str::FromStr;

use serde_json::{Map, Value};

use super::ValueError;

/// Fields of an object that this version does not know, kept when the value is written again.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Extra(pub Map<String, Value>);

impl Extra {
    /// Returns one of the fields.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }

    /// Returns true if there are no unknown fields.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Extra {
    /// Formats names only, since a misspelt `password` must not reach a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// Parses bytes as JSON. The error does not quote the value, which may contain a secret.
pub(crate) fn value(bytes: &[u8]) -> Result<Value, ValueError> {
    serde_json::from_slice(bytes).map_err(|error| {
        if bytes.is_empty() {
            ValueError::new("", "an empty value", "write JSON, or delete the key")
        } else {
            ValueError::new("", "a text that is no JSON", format!("{error}: write JSON"))
        }
    })
}

thread_local! {
    /// Members collected by [`recorded`]; `None` outside of it.
    static UNREAD: RefCell<Option<Vec<UnreadMember>>> = const { RefCell::new(None) };
}

/// A member of an object that its parser did not read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UnreadMember {
    /// Name of the member.
    pub(crate) name: String,
    /// Names that the parser of the object read.
    pub(crate) known: Vec<String>,
    /// All members of the object that the parser did not read, which identify the object.
    pub(crate) siblings: Vec<String>,
}

/// Runs a parser and returns the members of all objects that it did not read. The known names are those that
/// the parser reads, so no separate list of them can be incomplete.
pub(crate) fn recorded<T>(read: impl FnOnce() -> T) -> (T, Vec<UnreadMember>) {
    let before = UNREAD.replace(Some(Vec::new()));
    let result = read();
    (result, UNREAD.replace(before).unwrap_or_default())
}

#[derive(Default)]
/// An object whose fields are removed one by one; the remaining ones become its [`Extra`]. A field with value
/// `null` counts as absent.
pub(crate) struct Fields {
    map: Map<String, Value>,
    /// Names that were read, while [`recorded`] runs.
    known: Option<RefCell<Vec<String>>>,
}

impl Drop for Fields {
    fn drop(&mut self) {
        let Some(known) = self.known.take() else { return };
        let known = known.into_inner();
        let siblings: Vec<String> = self.map.keys().filter(|name| !known.contains(name)).cloned().collect();
        UNREAD.with_borrow_mut(|unread| {
            let Some(unread) = unread else { return };
            unread.extend(siblings.iter().map(|name| UnreadMember {
                name: name.clone(),
                known: known.clone(),
                siblings: siblings.clone(),
            }));
        });
    }
}

impl Fields {
    fn note(&self, name: &str) {
        if let Some(known) = &self.known {
            known.borrow_mut().push(name.to_owned());
        }
    }

    /// Parses bytes as a JSON object.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, ValueError> {
        Self::of(value(bytes)?)
    }

    pub(crate) fn of(value: Value) -> Result<Self, ValueError> {
        match value {
            Value::Object(map) => Ok(Self::of_map(map)),
            other => Err(ValueError::new("", kind(&other), "write a JSON object: {...}")),
        }
    }

    /// Creates the fields of an object, for example of a `spec`.
    pub(crate) fn of_map(map: Map<String, Value>) -> Self {
        let records = UNREAD.with_borrow(Option::is_some);
        Self { map, known: records.then(RefCell::default) }
    }

    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        self.note(name);
        self.map.shift_remove(name).filter(|value| !value.is_null())
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.note(name);
        self.map.get(name).is_some_and(|value| !value.is_null())
    }

    /// Reads a string, which may be empty.
    pub(crate) fn text(&mut self, name: &str) -> Result<Option<String>, ValueError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(ValueError::json(name, &other, "write a text in double quotes")),
        }
    }

    pub(crate) fn bool(&mut self, name: &str) -> Result<Option<bool>, ValueError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(yes)) => Ok(Some(yes)),
            Some(other) => Err(ValueError::json(name, &other, "write true or false, without quotes")),
        }
    }

    /// Reads a boolean, false if absent.
    pub(crate) fn flag(&mut self, name: &str) -> Result<bool, ValueError> {
        Ok(self.bool(name)?.unwrap_or(false))
    }

    /// Reads an integer in a range, given as number or as string.
    pub(crate) fn number<T>(&mut self, name: &str, min: u64, max: u64) -> Result<Option<T>, ValueError>
    where
        T: TryFrom<u64>,
    {
        let Some(value) = self.take(name) else { return Ok(None) };
        let number = match &value {
            Value::Number(number) => number.as_u64(),
            Value::String(text) => text.parse().ok(),
            _ => None,
        };
        number
            .filter(|number| (min..=max).contains(number))
            .and_then(|number| T::try_from(number).ok())
            .map(Some)
            .ok_or_else(|| {
                ValueError::json(name, &value, format!("write a whole number from {min} to {max}"))
            })
    }

    /// Reads a string and parses it as `T`; an empty string counts as absent.
    pub(crate) fn parsed<T: FromStr>(&mut self, name: &str, expected: &str) -> Result<Option<T>, ValueError> {
        let Some(text) = self.text(name)?.filter(|text| !text.is_empty()) else { return Ok(None) };
        text.parse().map(Some).map_err(|_| ValueError::new(name, format_args!("`{text}`"), expected))
    }

    /// Reads a list, empty if absent.
    pub(crate) fn list<T>(
        &mut self,
        name: &str,
        element: impl FnMut(Value) -> Result<T, ValueError>,
    ) -> Result<Vec<T>, ValueError> {
        match self.take(name) {
            None => Ok(Vec::new()),
            Some(list) => elements(list, element).map_err(|error| error.within(name)),
        }
    }

    /// Reads a list of strings that are parsed as `T`.
    pub(crate) fn parsed_list<T: FromStr>(
        &mut self,
        name: &str,
        expected: &str,
    ) -> Result<Vec<T>, ValueError> {
        self.list(name, |value| parsed(&value, expected))
    }

    /// Reads a list of non-empty strings.
    pub(crate) fn names(&mut self, name: &str) -> Result<Vec<String>, ValueError> {
        self.list(name, |value| match value {
            Value::String(text) if !text.is_empty() => Ok(text),
            other => Err(ValueError::json("", &other, "write a name in double quotes")),
        })
    }

    /// Returns the fields that were not read. Usually there are none, and the map is rebuilt to drop its
    /// spare capacity.
    pub(crate) fn rest(mut self) -> Extra {
        // A recording inspects the remaining fields when `self` is dropped.
        let rest = if self.known.is_some() { self.map.clone() } else { std::mem::take(&mut self.map) };
        Extra(rest.into_iter().collect())
    }

    /// Rejects fields that were not read, for objects where an ignored field would change the meaning.
    pub(crate) fn deny_unknown(self, expected: &str) -> Result<(), ValueError> {
        match self.map.iter().find(|(_, value)| !value.is_null()) {
            None => Ok(()),
            Some((name, found)) => Err(ValueError::json(name.clone(), found, expected)),
        }
    }
}

/// Parses the elements of a JSON list; errors contain `[index]`.
pub(crate) fn elements<T>(
    list: Value,
    mut element: impl FnMut(Value) -> Result<T, ValueError>,
) -> Result<Vec<T>, ValueError> {
    let Value::Array(list) = list else {
        return Err(ValueError::json("", &list, "write a JSON list: [...]"));
    };
    // Exact capacity, since lists of endpoints are kept tens of thousands of times.
    let mut all = Vec::with_capacity(list.len());
    for (index, value) in list.into_iter().enumerate() {
        all.push(element(value).map_err(|error| error.within(format_args!("[{index}]")))?);
    }
    Ok(all)
}

/// Parses a JSON string as `T`.
pub(crate) fn parsed<T: FromStr>(value: &Value, expected: &str) -> Result<T, ValueError> {
    let text = value.as_str().ok_or_else(|| ValueError::json("", value, expected))?;
    text.parse().map_err(|_| ValueError::new("", format_args!("`{text}`"), expected))
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// Builds an object with its fields in call order.
#[derive(Default)]
pub(crate) struct Writer(Map<String, Value>);

impl Writer {
    pub(crate) fn put(&mut self, name: &str, value: impl Into<Value>) {
        self.0.insert(name.to_owned(), value.into());
    }

    pub(crate) fn put_some<T: Into<Value>>(&mut self, name: &str, value: Option<T>) {
        if let Some(value) = value {
            self.put(name, value);
        }
    }

    pub(crate) fn put_text(&mut self, name: &str, value: Option<&impl fmt::Display>) {
        self.put_some(name, value.map(ToString::to_string));
    }

    /// Writes a list, unless it is empty.
    pub(crate) fn put_list<T: fmt::Display>(&mut self, name: &str, list: &[T]) {
        if !list.is_empty() {
            self.put(name, texts(list));
        }
    }

    pub(crate) fn object(mut self, extra: &Extra) -> Value {
        self.0.extend(extra.0.iter().map(|(name, value)| (name.clone(), value.clone())));
        Value::Object(self.0)
    }

    pub(crate) fn bytes(self, extra: &Extra) -> Vec<u8> {
        self.object(extra).to_string().into_bytes()
    }
}

/// Returns a JSON list of strings.
pub(crate) fn texts<T: fmt::Display>(list: &[T]) -> Value {
    Value::Array(list.iter().map(|element| Value::String(element.to_string())).collect())
}
