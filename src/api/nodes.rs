//! Status that each host publishes about itself in a small leased key, `/calico/tortie/v1/status/HOST`, and
//! the view of the cluster that any host computes from all of these keys.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tortie_config::key::{BgpItem, Key, Scope};

use crate::api::machine::Machine;
use crate::api::status::UpCount;
use tortie_store::{KeyValue, Snapshot};

/// Schema number of the value. A value with another number is parsed as far as possible.
pub const SCHEMA: u32 = 1;
/// Maximum size in bytes of the names of missing sessions, so that the value stays below 2 KB.
const NAMES: usize = 1_000;

/// Value of a status key.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeStatus {
    /// Name of the host.
    pub node: String,
    /// Version of its agent.
    pub version: String,
    /// Schema number, see [`SCHEMA`].
    pub schema: u32,
    /// Time of the write.
    pub time: String,
    /// Boot id of the host.
    pub boot: String,
    /// Machine that runs the agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<Machine>,
    /// True if the agent is ready.
    pub ready: bool,
    /// Verdict of the agent: `ready`, `degraded`, `starting`, `frozen` or `not-ready`.
    pub verdict: String,
    /// Established and configured BGP sessions.
    pub sessions: UpCount,
    /// Established and configured sessions of the mesh.
    pub mesh: UpCount,
    /// Established and configured sessions with explicit peers.
    pub peers: UpCount,
    /// Peers whose session is not established: nodes by name, routers by address.
    pub down: Vec<String>,
    /// Number of such peers that `down` has no room for.
    pub down_more: usize,
    /// Number of blocks of the host.
    pub blocks: usize,
    /// Number of endpoints of the host.
    pub endpoints: usize,
    /// Distinct problem codes, the most severe first.
    pub problems: Vec<String>,
    /// Store revision that the agent has applied.
    pub revision: u64,
    /// Members that this version does not know, or cannot parse, unchanged.
    #[serde(flatten)]
    pub more: serde_json::Map<String, Value>,
}

impl NodeStatus {
    /// Parses a status key and its value; `None` for another key. Members that cannot be parsed have their
    /// defaults.
    #[must_use]
    pub fn read(kv: &KeyValue) -> Option<Self> {
        let Ok(Key::TortieStatus { host }) = kv.key.parse::<Key>() else { return None };
        let said = serde_json::from_slice(&kv.value).unwrap_or_else(|_| Self::as_far_as_it_goes(&kv.value));
        Some(Self { node: host, ..said })
    }

    /// Parses each member alone: a member that another version writes in another form goes to [`Self::more`].
    fn as_far_as_it_goes(value: &[u8]) -> Self {
        let Ok(Value::Object(members)) = serde_json::from_slice(value) else { return Self::default() };
        let (read, odd): (serde_json::Map<_, _>, _) = members.into_iter().partition(|(name, member)| {
            let alone = serde_json::Map::from_iter([(name.clone(), member.clone())]);
            serde_json::from_value::<Self>(Value::Object(alone)).is_ok()
        });
        let mut status: Self = serde_json::from_value(Value::Object(read)).unwrap_or_default();
        status.more.extend(odd);
        status
    }

    /// Returns an error text if this status belongs to another machine that uses this host's name.
    #[must_use]
    pub fn twin_of(&self, own: &Machine) -> Option<String> {
        let other = self.machine.as_ref().filter(|other| other.id != own.id)?;
        Some(format!(
            "the agent of machine {other} runs as {} already, and this is machine {own}: give one of them \
             another name with --node (TORTIE_NODE), or stop the other agent; its name is free a minute \
             later",
            self.node
        ))
    }

    /// Keeps only the members that describe the version, because the agent holds thousands of these values.
    #[must_use]
    pub fn of_its_version(self) -> Self {
        Self { node: self.node, version: self.version, schema: self.schema, ..Self::default() }
    }

    /// Describes the difference between this status's schema and the local one; `None` if they are equal.
    #[must_use]
    pub fn other_form(&self) -> Option<String> {
        (self.schema != SCHEMA && self.schema != 0)
            .then(|| format!("writes status schema {}, this one reads {SCHEMA}", self.schema))
    }

    /// Sets the names of missing sessions, as far as the size limit permits, and the number of the rest.
    pub fn set_down(&mut self, names: impl IntoIterator<Item = String>) {
        let mut room = NAMES;
        (self.down, self.down_more) = (Vec::new(), 0);
        for name in names {
            match room.checked_sub(name.len() + 3).filter(|_| self.down_more == 0) {
                Some(left) => {
                    room = left;
                    self.down.push(name);
                }
                None => self.down_more += 1,
            }
        }
    }

    /// True if anything except time and revision differs from the status before.
    #[must_use]
    pub fn is_significant_change(&self, before: &Self) -> bool {
        let of = |status: &Self| Self { time: String::new(), revision: 0, ..status.clone() };
        of(self) != of(before)
    }
}

/// A host of the cluster with its published status.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterNode {
    /// Name of the host.
    pub name: String,
    /// True if the host has no status key: its agent does not run or does not reach the store.
    pub silent: bool,
    /// Age of the status in seconds. A host writes its status on change and every five minutes.
    pub age_seconds: Option<u64>,
    /// The status that the host published.
    pub status: Option<NodeStatus>,
    /// Hosts that report a missing session with this host, although this host has that session or wants none.
    pub disputed_by: Vec<String>,
}

/// Returns the key prefixes that [`cluster`] reads.
#[must_use]
pub fn prefixes() -> Vec<String> {
    vec![tortie_config::key::prefix::STATUS.to_owned(), tortie_config::key::prefix::BGP_HOSTS.to_owned()]
}

/// Returns every host with a BGP address or a status key, ordered by name.
#[must_use]
pub fn cluster(snapshot: &Snapshot, now: Timestamp) -> Vec<ClusterNode> {
    let mut hosts: BTreeSet<String> = BTreeSet::new();
    let mut said: BTreeMap<String, NodeStatus> = BTreeMap::new();
    for kv in &snapshot.entries {
        if let Some(status) = NodeStatus::read(kv) {
            hosts.insert(status.node.clone());
            said.insert(status.node.clone(), status);
        } else if let Ok(Key::Bgp(Scope::Host(host), BgpItem::Address(_))) = Key::parse(&kv.key)
            && !kv.value.is_empty()
        {
            hosts.insert(host);
        }
    }
    let disputed = disputes(&said);
    let node = |name: String| {
        let status = said.get(&name).cloned();
        ClusterNode {
            silent: status.is_none(),
            age_seconds: status.as_ref().and_then(|status| age(&status.time, now)),
            disputed_by: disputed
                .get(&*name)
                .map_or_else(Vec::new, |by| by.iter().map(|h| (*h).to_owned()).collect()),
            status,
            name,
        }
    };
    hosts.into_iter().map(node).collect()
}

fn age(time: &str, now: Timestamp) -> Option<u64> {
    let at: Timestamp = time.parse().ok()?;
    u64::try_from(now.duration_since(at).as_secs()).ok()
}

/// Maps each host to the hosts that report a missing session with it which it does not report itself. Hosts
/// with a truncated list are skipped, because the rest of their list is unknown.
fn disputes(said: &BTreeMap<String, NodeStatus>) -> BTreeMap<&str, Vec<&str>> {
    let mut found: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, status) in said {
        for missed in &status.down {
            let other = said.get_key_value(missed).filter(|(_, other)| other.down_more == 0);
            if let Some((missed, _)) = other.filter(|(_, other)| !other.down.contains(name)) {
                found.entry(missed).or_default().push(name);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kv(key: &str, value: &str) -> KeyValue {
        KeyValue { key: key.to_owned(), value: value.into(), ..tortie_store::fixtures::kv(key, value, 1) }
    }

    fn said(node: &str, down: &[&str]) -> KeyValue {
        let status = NodeStatus {
            time: "2026-11-20T14:00:00Z".to_owned(),
            down: down.iter().map(|name| (*name).to_owned()).collect(),
            ..NodeStatus::default()
        };
        kv(&format!("/calico/tortie/v1/status/{node}"), &serde_json::to_string(&status).unwrap())
    }

    #[test]
    fn a_host_without_a_status_is_silent_and_one_side_alone_is_a_dispute() {
        let snapshot = Snapshot {
            entries: vec![
                kv("/calico/bgp/v1/host/h1/ip_addr_v4", "192.0.2.1"),
                kv("/calico/bgp/v1/host/h4/ip_addr_v4", "192.0.2.4"),
                kv("/calico/bgp/v1/host/h5/as_num", "64512"),
                said("h1", &["h2", "h3", "h4"]),
                said("h2", &["h1"]),
                said("h3", &[]),
            ],
            ..tortie_store::fixtures::snapshot(9, &[])
        };
        let now = "2026-11-20T14:01:30Z".parse().unwrap();
        let nodes = cluster(&snapshot, now);
        let names: Vec<_> = nodes.iter().map(|n| (n.name.as_str(), n.silent, n.age_seconds)).collect();
        assert_eq!(
            names,
            [("h1", false, Some(90)), ("h2", false, Some(90)), ("h3", false, Some(90)), ("h4", true, None)]
        );
        // h1 and h2 agree; h3 reports no missing session.
        assert_eq!(nodes[2].disputed_by, ["h1"]);
        assert!(nodes.iter().all(|n| n.name == "h3" || n.disputed_by.is_empty()));
    }

    #[test]
    fn the_value_stays_small_whatever_is_down() {
        let mut status = NodeStatus { problems: vec!["peer-down".to_owned(); 40], ..NodeStatus::default() };
        status.set_down((0..5_000).map(|i| format!("a-rather-long-name-of-a-host-{i:04}.rack7.example.net")));
        assert_eq!(status.down.len() + status.down_more, 5_000);
        assert!(serde_json::to_vec(&status).unwrap().len() < 2_048);
    }

    #[test]
    fn what_a_later_version_wrote_is_read_as_far_as_it_goes() {
        let later = r#"{"node":"h1","version":"2.3.0","schema":2,"ready":true,"sessions":"all up","blocks":"many",
            "endpoints":7,"zone":{"rack":"r7"}}"#;
        let status = NodeStatus::read(&kv("/calico/tortie/v1/status/h1", later)).unwrap();
        assert_eq!((&*status.version, status.schema, status.ready), ("2.3.0", 2, true));
        assert_eq!((status.endpoints, status.blocks, status.sessions), (7, 0, UpCount::default()));
        assert_eq!(status.more["zone"]["rack"], "r7");
        assert_eq!(status.more["blocks"], "many");
        assert!(status.other_form().unwrap().contains("schema 2"));
        assert_eq!(NodeStatus { schema: SCHEMA, ..status }.other_form(), None);
        // The value is not even an object.
        let status = NodeStatus::read(&kv("/calico/tortie/v1/status/h1", "up")).unwrap();
        assert_eq!((&*status.node, &*status.version, status.other_form()), ("h1", "", None));
    }

    #[test]
    fn what_a_former_version_wrote_is_read() {
        let old = r#"{"node":"h1","version":"0.1.0","time":"2026-11-20T14:00:00Z","boot":"b","ready":true,
            "sessions":{"up":1,"of":2},"revision":7}"#;
        let status = NodeStatus::read(&kv("/calico/tortie/v1/status/h1", old)).unwrap();
        assert_eq!(
            (status.node.as_str(), status.sessions, status.schema),
            ("h1", UpCount { up: 1, of: 2 }, 0)
        );
        assert_eq!(NodeStatus::read(&kv("/calico/v1/Ready", "true")), None);
    }
}
