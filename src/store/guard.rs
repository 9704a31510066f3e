//! When a store is not to be believed: pure rules over key texts.
//!
//! A store that was lost, replaced or restored looks like an order to take everything down. These rules say when an
//! agent stays as it is until somebody accepts the new state or the keys return.

use std::collections::BTreeSet;

use super::Snapshot;

/// The key whose value `true` lets agents act.
pub const READY_KEY: &str = "/calico/v1/Ready";

/// Fewer losses of hosts or endpoints than this are everyday life, whatever their share.
const FEW: usize = 3;

/// What of a store is compared with its next state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    /// Identity of the store.
    pub store_id: String,
    /// `Ready` as text; `None` when absent.
    pub ready: Option<String>,
    /// `Ready` has been `true` at some time.
    pub was_ready: bool,
    /// Pools of both families.
    pub pools: usize,
    /// Affinities of this host, both families.
    pub own_blocks: usize,
    /// Hosts that are named below `v1/host/` or `bgp/v1/host/`.
    pub hosts: usize,
    /// Workload and host endpoints.
    pub endpoints: usize,
}

impl Summary {
    /// Counts in a snapshot what concerns the host of this name (as it stands in keys).
    #[must_use]
    pub fn of(snapshot: &Snapshot, host: &str) -> Self {
        let ready = snapshot.entries.iter().find(|kv| kv.key == READY_KEY).map(|kv| kv.value.as_slice());
        let keys = snapshot.entries.iter().map(|kv| kv.key.as_str());
        Self::count(&snapshot.store_id, ready, host, keys)
    }

    /// The same from key texts, each at most once.
    pub fn count<'a>(
        store_id: &str,
        ready: Option<&[u8]>,
        host: &str,
        keys: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        let own = ["ipv4", "ipv6"].map(|family| format!("/calico/ipam/v2/host/{host}/{family}/block/"));
        let ready = ready.map(|value| String::from_utf8_lossy(value).trim().to_owned());
        let mut summary = Self {
            store_id: store_id.to_owned(),
            was_ready: ready.as_deref() == Some("true"),
            ready,
            ..Self::default()
        };
        let mut hosts = BTreeSet::new();
        for key in keys {
            if own.iter().any(|prefix| key.starts_with(prefix.as_str())) {
                summary.own_blocks += 1;
            } else if key.starts_with("/calico/v1/ipam/v4/pool/")
                || key.starts_with("/calico/v1/ipam/v6/pool/")
            {
                summary.pools += 1;
            } else if let Some(rest) = key.strip_prefix("/calico/v1/host/") {
                let mut parts = rest.split('/');
                hosts.extend(parts.next());
                // HOST/workload/ORCHESTRATOR/WORKLOAD/endpoint/ENDPOINT or HOST/endpoint/ENDPOINT
                let kind = match parts.next() {
                    Some("workload") => parts.nth(2),
                    other => other,
                };
                let named = parts.next().is_some_and(|name| !name.is_empty());
                if kind == Some("endpoint") && named && parts.next().is_none() {
                    summary.endpoints += 1;
                }
            } else if let Some(rest) = key.strip_prefix("/calico/bgp/v1/host/") {
                hosts.extend(rest.split('/').next());
            }
        }
        summary.hosts = hosts.len();
        summary
    }
}

/// Says why an agent must not act on this value of `Ready` (`None` is: absent).
#[must_use]
pub fn ready_reason(was_ready: bool, ready: Option<&str>) -> Option<String> {
    match ready.map(str::trim) {
        Some("true") => None,
        Some(other) => Some(format!("{READY_KEY} is \"{other}\" and not \"true\"")),
        None if was_ready => Some(format!("{READY_KEY} has vanished")),
        // A store that nobody ever set ready is taken as it is.
        None => None,
    }
}

/// Says why an agent must not act on a new list; `previous` is the last state it acted on, from memory or its cache.
///
/// Counts are compared and not names: after a long time away, endpoints have other names and that is no loss.
#[must_use]
pub fn freeze_reason(previous: Option<&Summary>, new: &Summary) -> Option<String> {
    let was_ready = new.was_ready || previous.is_some_and(|p| p.was_ready);
    let Some(previous) = previous else { return ready_reason(was_ready, new.ready.as_deref()) };
    if previous.store_id != new.store_id {
        return Some(format!(
            "this is another store: its id is {}, it was {}",
            new.store_id, previous.store_id
        ));
    }
    if let Some(reason) = ready_reason(was_ready, new.ready.as_deref()) {
        return Some(reason);
    }
    for (what, before, now) in
        [("pools", previous.pools, new.pools), ("blocks of this host", previous.own_blocks, new.own_blocks)]
    {
        if before > 0 && now == 0 {
            return Some(format!("all {before} {what} are gone"));
        }
    }
    for (what, before, now) in
        [("hosts", previous.hosts, new.hosts), ("endpoints", previous.endpoints, new.endpoints)]
    {
        let lost = before.saturating_sub(now);
        if lost >= FEW && lost > before / 2 {
            return Some(format!("{lost} of {before} {what} are gone"));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary() -> Summary {
        Summary {
            store_id: "a".into(),
            ready: Some("true".into()),
            was_ready: true,
            pools: 2,
            own_blocks: 1,
            hosts: 10,
            endpoints: 100,
        }
    }

    #[test]
    fn counts_what_the_keys_say() {
        let keys = [
            "/calico/v1/Ready",
            "/calico/v1/ipam/v4/pool/10.0.0.0-16",
            "/calico/v1/ipam/v6/pool/fd00::-48",
            "/calico/v1/host/h1/bird_ip",
            "/calico/v1/host/h1/config/IpInIpTunnelAddr",
            "/calico/v1/host/h1/workload/k8s/default.web/endpoint/eth0",
            "/calico/v1/host/h2/workload/cni/abc/endpoint/eth0",
            "/calico/v1/host/h2/endpoint/eth0",
            "/calico/v1/host/h2/workload/cni/abc",
            "/calico/bgp/v1/host/h3/ip_addr_v4",
            "/calico/ipam/v2/host/h1/ipv4/block/10.0.0.0-26",
            "/calico/ipam/v2/host/h2/ipv4/block/10.0.1.0-26",
        ];
        let got = Summary::count("a", Some(b"true\n"), "h1", keys);
        let want = Summary {
            store_id: "a".into(),
            ready: Some("true".into()),
            was_ready: true,
            pools: 2,
            own_blocks: 1,
            hosts: 3,
            endpoints: 3,
        };
        assert_eq!(got, want);
    }

    #[test]
    fn what_is_lost_freezes() {
        let before = summary();
        let reason = |change: fn(&mut Summary)| {
            let mut new = summary();
            change(&mut new);
            freeze_reason(Some(&before), &new).unwrap_or_default()
        };
        assert_eq!(reason(|_| ()), "");
        assert!(reason(|s| s.store_id = "b".into()).contains("another store"));
        assert!(reason(|s| s.ready = None).contains("vanished"));
        assert!(reason(|s| s.ready = Some("false".into())).contains("\"false\""));
        assert!(reason(|s| s.pools = 0).contains("all 2 pools"));
        assert!(reason(|s| s.own_blocks = 0).contains("blocks of this host"));
        assert!(reason(|s| s.hosts = 4).contains("6 of 10 hosts"));
        assert!(reason(|s| s.endpoints = 49).contains("51 of 100 endpoints"));
        // Exactly half, fewer pools, more of all: no loss in the sense of the rule.
        assert_eq!(reason(|s| s.hosts = 5), "");
        assert_eq!(reason(|s| s.endpoints = 50), "");
        assert_eq!(reason(|s| s.pools = 1), "");
        assert_eq!(reason(|s| s.endpoints = 1000), "");
        // The one host of a lab whose two containers are gone.
        let small = Summary { hosts: 1, endpoints: 2, ..summary() };
        assert_eq!(freeze_reason(Some(&small), &Summary { endpoints: 0, ..small.clone() }), None);
    }

    #[test]
    fn a_store_that_never_was_ready_is_taken_as_it_is() {
        let fresh = Summary { store_id: "a".into(), ..Summary::default() };
        assert_eq!(freeze_reason(None, &fresh), None);
        let not_ready = Summary { ready: Some("false".into()), ..fresh.clone() };
        assert!(freeze_reason(None, &not_ready).is_some());
        assert!(freeze_reason(Some(&fresh), &not_ready).is_some());
        // It stays remembered across a time of another value.
        let was = Summary { was_ready: true, ..not_ready };
        assert!(freeze_reason(Some(&was), &fresh).unwrap().contains("vanished"));
    }
}
