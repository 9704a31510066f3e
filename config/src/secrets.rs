//! Secrets in values of the store: which members of a JSON value hold one, and how they are replaced. Pure.

use serde_json::Value;

/// Parts of names whose values are secrets.
const NAMES: [&str; 8] =
    ["password", "passwd", "passphrase", "secret", "token", "private_key", "privatekey", "credential"];

/// Whether a value of this name is a secret. A file that holds one is none: its name helps.
#[must_use]
pub fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase().replace('-', "_");
    NAMES.iter().any(|part| name.contains(part)) && !name.ends_with("_file") && !name.ends_with("_path")
}

/// Whether a text names a secret anywhere: of a value that does not, nothing has to be replaced.
#[must_use]
pub fn names_secret(text: &str) -> bool {
    let text = text.to_ascii_lowercase().replace('-', "_");
    NAMES.iter().any(|part| text.contains(part))
}

/// Calls `with` for every member that is a secret and not null, whatever it is nested in; whether there was one.
pub fn replace(value: &mut Value, with: &mut impl FnMut(&mut Value)) -> bool {
    match value {
        Value::Object(map) => map.iter_mut().fold(false, |found, (name, member)| {
            if is_secret(name) && !member.is_null() {
                with(member);
                return true;
            }
            replace(member, with) | found
        }),
        Value::Array(list) => list.iter_mut().fold(false, |found, item| replace(item, with) | found),
        _ => false,
    }
}
