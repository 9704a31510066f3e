//! Values from the documents of the data model, and properties of parsing and formatting.

mod bgp;
mod filters;
mod ipam;
mod laws;
mod policy;
mod settings;
mod workloads;

use serde_json::Value;

use super::Resource;
use crate::key::Key;

/// Parses a value that must be valid.
fn read(key: &str, value: &str) -> Resource {
    let key = Key::parse(key).unwrap();
    Resource::parse(&key, value.as_bytes()).unwrap_or_else(|error| panic!("{key} {value}: {error}"))
}

/// Returns the error text of a value that must be rejected.
fn refused(key: &str, value: &str) -> String {
    let key = Key::parse(key).unwrap();
    match Resource::parse(&key, value.as_bytes()) {
        Ok(resource) => panic!("{key} {value} was read as {resource:?}"),
        Err(error) => error.to_string(),
    }
}

/// Parses and formats a value, and returns the result as JSON.
fn rewritten(key: &str, value: &str) -> Value {
    serde_json::from_slice(&read(key, value).to_value()).unwrap()
}

/// Extracts the content of a resource that must be of the given kind.
macro_rules! inside {
    ($kind:ident, $resource:expr) => {
        match $resource {
            $crate::resource::Resource::$kind(inside) => inside,
            other => panic!("{} expected, found {other:?}", stringify!($kind)),
        }
    };
}
use inside;
