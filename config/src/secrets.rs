//! Finds and replaces secrets in JSON values of the store. Pure functions.

use serde_json::Value;

/// Name parts of members that hold a secret.
const NAMES: [&str; 8] =
    ["password", "passwd", "passphrase", "secret", "token", "private_key", "privatekey", "credential"];

/// Returns true if a member with this name holds a secret. The path of a file with a secret is not secret,
/// and is useful in output.
#[must_use]
pub fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase().replace('-', "_");
    NAMES.iter().any(|part| name.contains(part)) && !name.ends_with("_file") && !name.ends_with("_path")
}

/// Returns true if a text contains the name of a secret anywhere. Otherwise nothing in it has to be replaced.
#[must_use]
pub fn names_secret(text: &str) -> bool {
    let text = text.to_ascii_lowercase().replace('-', "_");
    NAMES.iter().any(|part| text.contains(part))
}

/// Calls `with` for every non-null member that holds a secret, at any depth. Returns true if there was one.
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
