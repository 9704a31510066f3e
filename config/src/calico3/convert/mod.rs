//! Conversion of a v1 store to Calico 3's objects, by the rules of Calico's own upgrade.
//!
//! Names change: those of objects are DNS names (`names`), so that two v1 names may give one, which is an
//! error. What has no form in Calico 3 is reported and left out; what its controllers write again (security
//! groups, namespaces) is left out, too. IPAM has the same keys in both models. It does no I/O, and invents
//! neither times nor ids.
//!
//! ```text
//!  v1 entries --Key, Resource--> hosts.rs, endpoint.rs, policy.rs, bgp.rs, settings.rs --> objects
//!                           +--> ipam.rs --> keys that stay        findings: errors, losses, notes
//! ```

mod bgp;
mod endpoint;
mod hosts;
mod ipam;
pub(in crate::calico3) mod names;
mod output;
mod policy;
#[cfg(test)]
mod round_trip_tests;
mod rule;
mod settings;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

pub(super) use names::pool as pool_name;
use output::Entry;
pub use output::{Converted, ConvertedObject, Finding, Renamed, Weight};

use crate::Resource;
use crate::key::{EndpointKey, Key};

/// Converts the entries of a v1 store.
#[must_use]
pub fn convert<'a>(entries: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Converted {
    let mut out = Converted::default();
    let parsed = parse(entries, &mut out);
    hosts::convert(&parsed, &mut out);
    for entry in &parsed {
        match (&entry.key, &entry.resource) {
            (Key::Endpoint(key @ EndpointKey::Workload { .. }), Resource::WorkloadEndpoint(endpoint)) => {
                endpoint::workload(entry, key, endpoint, &mut out);
            }
            (Key::Endpoint(EndpointKey::Host { host, endpoint: id }), Resource::HostEndpoint(endpoint)) => {
                endpoint::host(entry, host, id, endpoint, &mut out);
            }
            (Key::Profile { name, part }, resource) => {
                policy::profile(entry, name, *part, resource, &mut out);
            }
            (Key::Policy { tier, name }, Resource::Policy(policy)) => {
                policy::policy(entry, tier, name, policy, &mut out);
            }
            (Key::TierMetadata { tier }, Resource::TierMetadata(metadata)) => {
                policy::tier(entry, tier, metadata, &mut out);
            }
            (Key::Pool(_), Resource::Pool(pool)) => bgp::pool(entry, pool, &mut out),
            (Key::Bgp(scope, item), resource) => bgp::value(entry, scope, item, resource, &mut out),
            (Key::Setting(scope, _), Resource::Setting(setting)) => {
                settings::setting(entry, scope, setting, &mut out);
            }
            (Key::Block(_) | Key::Affinity { .. } | Key::Handle(_) | Key::IpamConfig, _) => {
                ipam::keep(entry, &mut out);
            }
            (Key::Ready, Resource::Ready(ready)) => settings::ready(entry, *ready, &mut out),
            // Hosts are converted as a whole; agents write their status and their own state again.
            (
                Key::BirdIp { .. }
                | Key::HostMetadata { .. }
                | Key::OrchestratorRefs { .. }
                | Key::Marker { .. }
                | Key::Felix { .. }
                | Key::TortieStatus { .. }
                | Key::Schema
                | Key::Docker { .. },
                _,
            ) => {}
            _ => out.finding(Weight::Lost, entry.text, "this key has no form in Calico 3"),
        }
    }
    policy::finish(&parsed, &mut out);
    settings::finish(&mut out);
    out.names.sort();
    out.names.dedup();
    out.findings.sort();
    out
}

/// Parses the entries. Of a value under an older and a current key the current one counts.
fn parse<'a>(entries: impl IntoIterator<Item = (&'a str, &'a [u8])>, out: &mut Converted) -> Vec<Entry<'a>> {
    let mut by_key: BTreeMap<Key, (bool, &'a str, &'a [u8])> = BTreeMap::new();
    for (text, value) in entries {
        match Key::parse(text) {
            Ok(Key::Unknown(_)) => {
                out.finding(Weight::Lost, text, "this key is none of the data model");
            }
            Ok(key) => {
                let old = key.is_legacy();
                let slot = by_key.entry(key.canonical().clone()).or_insert((old, text, value));
                if slot.0 && !old {
                    *slot = (old, text, value);
                }
            }
            Err(error) => out.finding(Weight::Error, text, error.to_string()),
        }
    }
    let mut parsed = Vec::new();
    for (key, (_, text, value)) in by_key {
        match Resource::parse(&key, value) {
            Ok(resource) => parsed.push(Entry { text, value, key, resource }),
            Err(error) => out.finding(Weight::Error, text, error.to_string()),
        }
    }
    parsed
}
