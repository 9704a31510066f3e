//! Serde representation of values: text if they are UTF-8, as nearly all are, else a list of octets.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Octets<'a> {
    Text(Cow<'a, str>),
    Raw(Cow<'a, [u8]>),
}

/// Serializes a value.
///
/// # Errors
/// Errors of the output format.
pub(crate) fn serialize<S: Serializer>(value: &[u8], to: S) -> Result<S::Ok, S::Error> {
    match std::str::from_utf8(value) {
        Ok(text) => Octets::Text(text.into()),
        Err(_) => Octets::Raw(value.into()),
    }
    .serialize(to)
}

/// Deserializes the output of [`serialize`].
///
/// # Errors
/// The input is neither text nor a list of octets.
pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
    Ok(match Octets::deserialize(from)? {
        Octets::Text(text) => text.into_owned().into_bytes(),
        Octets::Raw(octets) => octets.into_owned(),
    })
}

#[cfg(test)]
mod tests {
    use crate::fixtures::kv;

    #[test]
    fn any_value_survives() {
        for value in [&b""[..], b"true", b"{\"a\":\"\\n\"}", b"\xff\x00", "\u{1f408}".as_bytes()] {
            let mut entry = kv("/calico/v1/Ready", "", 7);
            entry.value = value.to_vec();
            let text = serde_json::to_string(&entry).unwrap();
            assert_eq!(serde_json::from_str::<crate::KeyValue>(&text).unwrap(), entry, "{text}");
        }
    }
}
