//! Values from the data model's documents, and the laws of reading and writing.

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

/// Reads the value of a key that has to be readable.
fn read(key: &str, value: &str) -> Resource {
    let key = Key::parse(key).unwrap();
    Resource::parse(&key, value.as_bytes()).unwrap_or_else(|error| panic!("{key} {value}: {error}"))
}

/// The error of a value that must not be readable, as text.
fn refused(key: &str, value: &str) -> String {
    let key = Key::parse(key).unwrap();
    match Resource::parse(&key, value.as_bytes()) {
        Ok(resource) => panic!("{key} {value} was read as {resource:?}"),
        Err(error) => error.to_string(),
    }
}

/// What is stored after reading and writing again, as JSON.
fn rewritten(key: &str, value: &str) -> Value {
    serde_json::from_slice(&read(key, value).to_value()).unwrap()
}

/// The inside of a resource that has to be of one kind.
macro_rules! inside {
    ($kind:ident, $resource:expr) => {
        match $resource {
            $crate::resource::Resource::$kind(inside) => inside,
            other => panic!("{} expected, found {other:?}", stringify!($kind)),
        }
    };
}
use inside;
