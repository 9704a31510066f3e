//! IPAM: both models have the same keys. Names of hosts change.

use serde_json::Value;

use super::names::norm;
use super::output::{Converted, Entry, Weight};
use crate::key::Key;

/// Keeps an entry, with the new name of its host.
pub(super) fn keep(entry: &Entry<'_>, out: &mut Converted) {
    let (key, value) = match &entry.key {
        Key::Affinity { host, block } => {
            (Key::Affinity { host: norm(host), block: *block }.to_string(), entry.value.to_vec())
        }
        Key::Block(_) => (entry.key.to_string(), block(entry.value)),
        Key::IpamConfig => {
            let text = "kept as it is; Calico's own upgrade does not copy it";
            out.finding(Weight::Note, entry.text, text);
            (entry.key.to_string(), entry.value.to_vec())
        }
        key => (key.to_string(), entry.value.to_vec()),
    };
    if out.kept.insert(key.clone(), value).is_some() {
        let text = format!("two hosts would have {key}: release the block of one of them");
        out.finding(Weight::Error, entry.text, text);
    }
}

/// Renames the host in the owner of a block. Attributes keep what they have.
fn block(value: &[u8]) -> Vec<u8> {
    let Ok(Value::Object(mut members)) = serde_json::from_slice::<Value>(value) else {
        return value.to_vec();
    };
    let mut is_changed = false;
    for (member, prefix) in [("affinity", "host:"), ("hostAffinity", "")] {
        let Some(Value::String(text)) = members.get_mut(member) else { continue };
        if let Some(host) = text.strip_prefix(prefix)
            && norm(host) != host
        {
            *text = format!("{prefix}{}", norm(host));
            is_changed = true;
        }
    }
    // A value whose host keeps its name stays as it is, to the octet.
    if is_changed { Value::Object(members).to_string().into_bytes() } else { value.to_vec() }
}
