//! Decides if a stored value can be read, which makes it the last good one of its key.

use crate::calico3::{EntryChange, ObjectKey, Projection, RawChange, RawEntry};
use crate::key::Key;
use crate::resource::Resource;

/// Returns true if the value of a key can be read, whatever its data model. Keys outside of both have no value
/// to read. An object of Calico 3 can be read if its own entries can; the value that it replaces stays in
/// force otherwise.
#[must_use]
pub fn is_readable(key: &str, value: &[u8]) -> bool {
    match ObjectKey::parse(key) {
        Some(object) => is_readable_object(&object, key, value),
        None => is_readable_entry(key, value),
    }
}

fn is_readable_entry(key: &str, value: &[u8]) -> bool {
    Key::parse(key).map_or(true, |key| Resource::parse(key.canonical(), value).is_ok())
}

fn is_readable_object(object: &ObjectKey, key: &str, value: &[u8]) -> bool {
    let mut projection = Projection::new("");
    let put = RawChange::Put(RawEntry { key, value, created: 1, revision: 1 });
    let changes = projection.apply([put], 1);
    let entries = changes.iter().all(|change| match change {
        EntryChange::Put(entry) => is_readable_entry(&entry.key, &entry.value),
        EntryChange::Delete { .. } => true,
    });
    let is_object = crate::calico3::Object::parse(object.clone(), value, 1, 1).is_ok();
    entries && is_object
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_both_data_models_are_read() {
        const POLICY: &str = "/calico/resources/v3/projectcalico.org/globalnetworkpolicies/p";
        for (key, value, expected) in [
            ("/calico/bgp/v1/global/as_num", "64512", true),
            ("/calico/bgp/v1/global/as_num", "many", false),
            ("/calico/other", "{", true),
            (POLICY, r#"{"spec":{"selector":"all()"}}"#, true),
            (POLICY, "{", false),
        ] {
            assert_eq!(is_readable(key, value.as_bytes()), expected, "{key} {value}");
        }
    }
}
