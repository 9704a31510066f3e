//! Values that cannot be read: entries that the v1 model reports as unreadable, so that the last good value
//! stays in force, where leaving them out would widen what is allowed.

use serde_json::json;

use super::super::output::Output;
use super::super::{EntryValue, Kind, ObjectKey};
use super::names::{policy_key, tier_of_name};
use crate::dialect::Dialect;
use crate::key::{EndpointKey, Key, ProfilePart};
use crate::resource::Resource;

/// End of the names of the host endpoints that Calico's controllers make.
const AUTOMATIC: &str = "-auto-hep";

/// Returns a value that no resource with members can be parsed from.
pub(super) fn value(text: &str) -> Vec<u8> {
    json!(text).to_string().into_bytes()
}

/// Returns a value that no policy can be parsed from, with the selector of the endpoints that it concerns.
pub(super) fn policy_value(text: &str, selector: Option<&str>) -> Vec<u8> {
    match selector {
        Some(selector) => json!({"selector": selector, "inbound_rules": text}).to_string().into_bytes(),
        None => value(text),
    }
}

/// Adds an entry, and a problem if the v1 model cannot read it.
pub(super) fn put_checked(output: &mut Output, key: Key, value: Vec<u8>, object: &ObjectKey) {
    match Resource::parse_in(Dialect::V3, &key, &value) {
        Ok(resource) => output.put(key, EntryValue::parsed(value, resource), object),
        Err(error) => {
            output.problem(object, "invalid-value", error.to_string());
            output.put(key, value, object);
        }
    }
}

/// Projects a value that is no object.
pub(in crate::calico3) fn unreadable(key: &ObjectKey, value: &[u8]) -> Output {
    let mut output = Output::default();
    let text = "the object cannot be read";
    let mut put = |entry: Key| output.put(entry, self::value(text), key);
    match key.kind {
        Kind::HostEndpoint => {
            let of_name = || key.name.strip_suffix(AUTOMATIC).map(str::to_owned);
            if let Some(host) = member(value, "node").or_else(of_name).filter(|host| !host.is_empty()) {
                put(Key::Endpoint(EndpointKey::Host { host, endpoint: key.name.clone() }));
            }
        }
        Kind::Profile if key.name != super::profile::DEFAULT_ALLOW => {
            for part in [ProfilePart::Rules, ProfilePart::Labels] {
                put(Key::Profile { name: key.name.clone(), part });
            }
        }
        Kind::NetworkSet | Kind::GlobalNetworkSet => {
            put(Key::NetworkSet { namespace: key.namespace.clone(), name: key.name.clone() });
        }
        Kind::Tier => put(Key::Tier { tier: key.name.clone() }),
        Kind::NetworkPolicy | Kind::GlobalNetworkPolicy => {
            let tier = member(value, "tier").filter(|tier| !tier.is_empty());
            put(policy_key(key, &tier.unwrap_or_else(|| tier_of_name(&key.name).to_owned())));
        }
        _ => {}
    }
    output
}

/// Returns the text of a member of `spec`, even if the value is no JSON as a whole.
fn member(value: &[u8], name: &str) -> Option<String> {
    if let Ok(value) = serde_json::from_slice::<serde_json::Value>(value) {
        return value.get("spec")?.get(name)?.as_str().map(str::to_owned);
    }
    let text = String::from_utf8_lossy(value);
    let (_, rest) = text.split_once(&format!("\"{name}\""))?;
    let rest = rest.trim_start().strip_prefix(':')?.trim_start().strip_prefix('"')?;
    let (found, _) = rest.split_once('"')?;
    (!found.contains('\\')).then(|| found.to_owned())
}
