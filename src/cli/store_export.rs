//! Format of `tortie store export`, which `import` reads, and the export from an agent's cache if the store
//! cannot be read.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use tortie_config::key::Key;
use tortie_config::resource::{Block, Handle};

use super::diags::redact;
use super::failure::{Exit, Failure};
use super::output::write_out;
use tortie_store::{Cache, KeyValue};

/// Prints these entries as one JSON object, and returns their number.
pub(super) fn print(entries: &[KeyValue], redact: bool) -> Result<usize, Failure> {
    let mut all: BTreeMap<&str, serde_json::Value> =
        entries.iter().map(|e| (e.key.as_str(), exported(&e.value, redact))).collect();
    let count = all.len();
    let unchecked: Vec<&str> =
        entries.iter().filter(|e| !redact && !is_taken(&e.key, &e.value)).map(|e| e.key.as_str()).collect();
    if !unchecked.is_empty() {
        all.insert(UNCHECKED, serde_json::json!(unchecked).to_string().into());
    }
    let json = serde_json::to_string_pretty(&all).map_err(|e| Failure::usage(e.to_string()))?;
    write_out(&format!("{json}\n"))?;
    Ok(count)
}

/// Returns the entries in an agent's cache, with the last valid value of each, and a description of their
/// origin.
pub(super) fn of_cache(path: &Path) -> Result<(Vec<KeyValue>, String), Failure> {
    let shown = path.display();
    let found =
        Cache::new(path).load().map_err(|error| Failure::new(Exit::No, "cache", error.to_string()))?;
    let cached = found.ok_or_else(|| {
        let text =
            format!("there is no cache at {shown}: name the file of the agent's --cache with --cache FILE");
        Failure::new(Exit::No, "not-found", text)
    })?;
    let saved = jiff::Timestamp::try_from(cached.saved).map(|at| format!("{at:.0}")).unwrap_or_default();
    let of = format!(
        "the cache {shown} at revision {}, saved {saved}: what this host follows, not the blocks of other hosts{}",
        cached.snapshot.revision,
        cached.truncated.map(|torn| format!("; {torn}")).unwrap_or_default()
    );
    let mut entries = cached.snapshot.entries;
    entries.extend(handles(&entries));
    Ok((entries, of))
}

/// Returns the IPAM handles that addresses in these blocks have, because an agent's cache contains no
/// handles.
fn handles(entries: &[KeyValue]) -> Vec<KeyValue> {
    let mut all: BTreeMap<String, Handle> = BTreeMap::new();
    for entry in entries {
        let Ok(Key::Block(cidr)) = Key::parse(&entry.key) else { continue };
        let Ok(block) = Block::parse(cidr, &entry.value) else { continue };
        for id in block.allocated().filter_map(|(_, attribute)| attribute.handle.as_ref()) {
            let handle = all.entry(id.clone()).or_insert_with(|| Handle::new(id));
            let count = handle.blocks.entry(cidr).or_default();
            *count = count.saturating_add(1);
        }
    }
    let entry = |(id, handle): (String, Handle)| KeyValue {
        key: Key::Handle(id).to_string(),
        value: handle.to_value(),
        mod_revision: 0,
        create_revision: 0,
    };
    all.into_iter().map(entry).collect()
}

/// Member of an export that lists the keys whose values `import` does not validate: a JSON list, encoded as
/// text like all other members.
pub(super) const UNCHECKED: &str = "unchecked";

/// Converts a value for `export`: text, or base64 for octets that are not text.
fn exported(value: &[u8], redact: bool) -> serde_json::Value {
    match std::str::from_utf8(value) {
        // In octets that are not text the end of a secret cannot be found.
        _ if redact => redact::value(value).into(),
        Ok(plain) => plain.into(),
        Err(_) => serde_json::json!({ "base64": BASE64_STANDARD.encode(value) }),
    }
}

/// True if `import` accepts the value when it validates it; octets that are not text have a format of their
/// own.
fn is_taken(key: &str, value: &[u8]) -> bool {
    std::str::from_utf8(value).is_err()
        || (tortie_config::check(key, value).is_ok() && tortie_config::unknown(key, value).is_empty())
}

/// Returns the keys that an export lists, or `None` if the member is not such a list.
pub(super) fn listed_keys(member: &serde_json::Value) -> Option<BTreeSet<String>> {
    serde_json::from_str(member.as_str()?).ok()
}

/// Returns the octets of a value that `export` printed as base64.
pub(super) fn binary(value: &serde_json::Value) -> Option<Vec<u8>> {
    let object = value.as_object().filter(|object| object.len() == 1)?;
    BASE64_STANDARD.decode(object.get("base64")?.as_str()?).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Values of any kind, valid or not, text or not: `import` reads what `export` prints.
        #[test]
        fn what_export_prints_is_what_import_reads(value in prop::collection::vec(any::<u8>(), 0..40)) {
            let read = match exported(&value, false) {
                serde_json::Value::String(text) => text.into_bytes(),
                other => binary(&other).unwrap(),
            };
            prop_assert_eq!(read, value);
        }
    }
}
