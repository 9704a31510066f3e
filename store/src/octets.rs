//! Values of the store in serde's terms: text where they are UTF-8, as nearly all are, else a list of octets.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Octets<'a> {
    Text(Cow<'a, str>),
    Raw(Cow<'a, [u8]>),
}

/// Writes a value.
///
/// # Errors
/// Those of the format.
pub(crate) fn serialize<S: Serializer>(value: &[u8], to: S) -> Result<S::Ok, S::Error> {
    match std::str::from_utf8(value) {
        Ok(text) => Octets::Text(text.into()),
        Err(_) => Octets::Raw(value.into()),
    }
    .serialize(to)
}

/// Reads what [`serialize`] wrote.
///
/// # Errors
/// Neither text nor a list of octets.
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
