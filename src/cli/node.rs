//! `tortie node list|show|settings|delete`: hosts in the store, read directly, without an agent.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use clap::Subcommand;
use serde::Serialize;
use serde_json::Value;
use tortie_config::Dialect;
use tortie_config::calico3::{Kind, ObjectKey, Projection};
use tortie_config::key::{BgpItem, FelixItem, IpFamily, Key, prefix};
use tortie_net::Cidr;

use super::context::Context;
use super::failure::Failure;
use super::node_delete::unknown;
use super::output::{self, table};
use crate::api::status::{API_VERSION, List};
use tortie_engine::model::endpoint_name::name_of_stored;
use tortie_engine::model::{key_value, raw_entry};
use tortie_store::{KeyValue, Snapshot, Store};

/// Subcommands of `tortie node`.
#[derive(Debug, Subcommand)]
pub(super) enum NodeCommand {
    /// List the hosts in the store
    List,
    /// Show one host with its agent, blocks and endpoints
    Show {
        /// The host's name in the data model
        name: String,
    },
    /// Show the settings in force on a host, and the source of each
    Settings {
        /// The host's name in the data model [default: this host]
        name: Option<String>,
        /// Only settings that differ from their defaults
        #[arg(long)]
        changed: bool,
    },
    /// Remove a host from the store: endpoints, addresses, blocks, BGP, settings, status
    Delete {
        /// The host's name in the data model
        name: String,
        /// Even while its agent runs, which registers the host again at its next start
        #[arg(long)]
        force: bool,
    },
}

impl NodeCommand {
    /// True if the command changes the store; such a command is not repeated by `--watch`.
    pub(super) fn writes(&self) -> bool {
        matches!(self, Self::Delete { .. })
    }
}

/// A host in the store.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Node {
    name: String,
    /// `running`, `ready` if it is also ready, or `none`.
    agent: String,
    version: Option<String>,
    sessions_up: Option<u64>,
    sessions: Option<u64>,
    /// Time of its agent's last status.
    time: Option<String>,
    ip4: Option<String>,
    ip6: Option<String>,
    network4: Option<String>,
    network6: Option<String>,
    #[serde(rename = "as")]
    asn: Option<String>,
    cluster_id: Option<String>,
    /// Address of the IPIP tunnel.
    tunnel_addr: Option<String>,
    /// Addresses of the VXLAN tunnel.
    vxlan_addr4: Option<String>,
    vxlan_addr6: Option<String>,
    endpoints: Vec<String>,
    blocks: Vec<Block>,
    /// Number of peers that only this host has.
    peers: usize,
    /// Number of keys that only concern this host.
    keys: usize,
}

#[derive(Debug, Clone, Serialize)]
struct Block {
    block: Cidr,
    state: String,
}

pub(super) async fn run(context: &Context, command: &NodeCommand) -> Result<(), Failure> {
    let format = context.globals.output;
    match command {
        NodeCommand::List => {
            let read = read(context, None).await?;
            let list = List {
                api_version: API_VERSION.to_owned(),
                kind: "NodeList".to_owned(),
                node: context.globals.node_name()?,
                revision: read.revision,
                time: format!("{:.3}", jiff::Timestamp::now()),
                more: false,
                next: None,
                items: nodes(&read).into_values().collect(),
            };
            output::print(format, &list, |out, wide| out.push_str(&rows(&list.items, wide)))
        }
        NodeCommand::Show { name } => {
            let node = nodes(&read(context, Some(name)).await?).remove(name).ok_or_else(|| unknown(name))?;
            output::print(format, &node, |out, _| show(out, &node))
        }
        NodeCommand::Settings { name, changed } => {
            let name = name.clone().map_or_else(|| context.globals.node_name(), Ok)?;
            super::node_settings::run(context, &name, *changed).await
        }
        NodeCommand::Delete { name, force } => super::node_delete::run(context, name, *force).await,
    }
}

/// Kinds of objects that concern hosts.
const KINDS: [Kind; 5] =
    [Kind::Node, Kind::WorkloadEndpoint, Kind::HostEndpoint, Kind::BGPPeer, Kind::BGPConfiguration];

/// Entries of the v1 model that concern hosts, or one host.
struct Entries {
    revision: u64,
    entries: Vec<KeyValue>,
    /// Number of keys of the store that concern one host only; empty for a v1 store, where it is the number of
    /// entries.
    keys: BTreeMap<String, usize>,
    /// Number of peers that only one host has, for the objects of Calico 3.
    peers: BTreeMap<String, usize>,
}

/// Reads all keys that concern hosts, or one host.
async fn read(context: &Context, name: Option<&str>) -> Result<Entries, Failure> {
    let store = super::store::open(&context.globals, false).await?;
    if store.dialect().await? == Dialect::V3 {
        let own = context.globals.node_name()?;
        return read_objects(&*store, name.unwrap_or(&own)).await;
    }
    let mut prefixes = match name {
        None => [prefix::HOSTS, prefix::BGP_HOSTS, prefix::AFFINITIES, prefix::FELIX_HOSTS, prefix::STATUS]
            .map(str::to_owned)
            .to_vec(),
        Some(name) => {
            let mut all = prefix::all_of_host(name);
            all.push(Key::TortieStatus { host: name.to_owned() }.to_string());
            all
        }
    };
    prefixes.push(Key::bgp_global(BgpItem::AsNum).to_string());
    let Snapshot { revision, entries, .. } = store.list(&prefixes).await?;
    Ok(Entries { revision, entries, keys: BTreeMap::new(), peers: BTreeMap::new() })
}

/// Reads the objects of all hosts, as the entries that they are projected to.
async fn read_objects(store: &dyn Store, node: &str) -> Result<Entries, Failure> {
    let mut prefixes: Vec<String> = KINDS.into_iter().map(ObjectKey::prefix_of).collect();
    prefixes.extend([prefix::AFFINITIES.to_owned(), prefix::STATUS.to_owned()]);
    let mut snapshot = store.list(&prefixes).await?;
    // Of the status keys of Felix only that of the host itself is of interest, in whatever region.
    let names = store.names(&[prefix::FELIX_2.to_owned()]).await?;
    let felix = names
        .into_iter()
        .filter(|key| matches!(Key::parse(key), Ok(Key::Felix { item: FelixItem::Status, .. })));
    snapshot.entries.extend(felix.map(|key| KeyValue {
        key,
        value: Vec::new(),
        mod_revision: snapshot.revision,
        create_revision: snapshot.revision,
    }));
    let raw = snapshot.entries.iter().map(raw_entry);
    let projected = Projection::new(node).replace(raw);
    let (mut keys, mut peers) = (BTreeMap::new(), BTreeMap::new());
    let mut origins: BTreeSet<(String, String)> = BTreeSet::new();
    for entry in &projected {
        let host = Key::parse(&entry.key).ok().and_then(|key| key.host().map(str::to_owned));
        origins.extend(host.zip(entry.raw_keys().into_iter().next()));
    }
    for (host, _) in origins {
        *keys.entry(host).or_default() += 1;
    }
    let is_peer = |kv: &&KeyValue| ObjectKey::parse(&kv.key).is_some_and(|key| key.kind == Kind::BGPPeer);
    for kv in snapshot.entries.iter().filter(is_peer) {
        let value: Value = serde_json::from_slice(&kv.value).unwrap_or_default();
        if let Some(host) = value.pointer("/spec/node").and_then(Value::as_str) {
            *peers.entry(host.to_owned()).or_default() += 1;
        }
    }
    let entries = projected.into_iter().map(key_value).collect();
    Ok(Entries { revision: snapshot.revision, entries, keys, peers })
}

/// Returns the hosts that keys name, with the content of the keys.
fn nodes(read: &Entries) -> BTreeMap<String, Node> {
    let mut nodes: BTreeMap<String, Node> = BTreeMap::new();
    let mut global_as = "64512".to_owned();
    for kv in &read.entries {
        let Ok(key) = Key::parse(&kv.key) else { continue };
        if key == Key::bgp_global(BgpItem::AsNum) {
            global_as = text(kv).unwrap_or(global_as);
        }
        let Some(host) = key.host() else { continue };
        let node = match nodes.get_mut(host) {
            Some(node) => node,
            None => nodes.entry(host.to_owned()).or_insert_with(|| Node {
                name: host.to_owned(),
                agent: "none".to_owned(),
                ..Node::default()
            }),
        };
        node.keys += 1;
        note(node, &key, kv);
    }
    for node in nodes.values_mut() {
        node.asn.get_or_insert_with(|| global_as.clone());
        node.keys = read.keys.get(&node.name).copied().unwrap_or(node.keys);
        if !read.keys.is_empty() {
            node.peers = read.peers.get(&node.name).copied().unwrap_or_default();
        }
    }
    nodes
}

fn note(node: &mut Node, key: &Key, kv: &KeyValue) {
    match key.canonical() {
        Key::TortieStatus { .. } => {
            let status: Value = serde_json::from_slice(&kv.value).unwrap_or_default();
            let ready = status.get("ready").and_then(Value::as_bool).unwrap_or(false);
            node.agent = if ready { "ready" } else { "running" }.to_owned();
            let word = |name: &str| status.get(name).and_then(Value::as_str).map(str::to_owned);
            let count = |name: &str| status.get("sessions")?.get(name)?.as_u64();
            (node.version, node.time) = (word("version"), word("time"));
            (node.sessions_up, node.sessions) = (count("up"), count("of"));
        }
        Key::Felix { item: FelixItem::Status, .. } if node.agent == "none" => {
            node.agent = "felix".to_owned();
        }
        Key::Setting(_, name) if name == "IpInIpTunnelAddr" => node.tunnel_addr = text(kv),
        Key::Setting(_, name) if name == "IPv4VXLANTunnelAddr" => node.vxlan_addr4 = text(kv),
        Key::Setting(_, name) if name == "IPv6VXLANTunnelAddr" => node.vxlan_addr6 = text(kv),
        Key::Endpoint(endpoint) => node.endpoints.push(name_of_stored(endpoint, &kv.value)),
        Key::Affinity { block, .. } => {
            let state = match tortie_config::resource::Affinity::parse(&kv.value) {
                Ok(affinity) => affinity.state.map_or("confirmed", |state| state.as_str()),
                Err(_) => "unreadable",
            };
            node.blocks.push(Block { block: *block, state: state.to_owned() });
        }
        Key::Bgp(_, item) => match item {
            BgpItem::Address(IpFamily::V4) => node.ip4 = text(kv),
            BgpItem::Address(IpFamily::V6) => node.ip6 = text(kv),
            BgpItem::Network(IpFamily::V4) => node.network4 = text(kv),
            BgpItem::Network(IpFamily::V6) => node.network6 = text(kv),
            BgpItem::AsNum => node.asn = text(kv),
            BgpItem::RrClusterId => node.cluster_id = text(kv),
            BgpItem::Peer { .. } | BgpItem::InterfacePeer(_) | BgpItem::PeerRange(_) => node.peers += 1,
            _ => {}
        },
        _ => {}
    }
}

/// Returns a value as text, if it is not empty.
fn text(kv: &KeyValue) -> Option<String> {
    let text = std::str::from_utf8(&kv.value).ok()?.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

fn dash(text: Option<&str>) -> String {
    text.unwrap_or("-").to_owned()
}

fn rows(items: &[Node], wide: bool) -> String {
    let mut head = vec!["NAME", "AGENT", "SESSIONS", "IPV4", "IPV6", "AS", "ENDPOINTS", "BLOCKS"];
    head.extend(
        wide.then_some(["TUNNEL", "CLUSTER ID", "VERSION", "STATUS OF", "KEYS"]).into_iter().flatten(),
    );
    let rows = items.iter().map(|node| {
        let mut row = vec![
            node.name.clone(),
            node.agent.clone(),
            sessions(node),
            dash(node.ip4.as_deref()),
            dash(node.ip6.as_deref()),
            dash(node.asn.as_deref()),
            node.endpoints.len().to_string(),
            node.blocks.len().to_string(),
        ];
        if wide {
            row.extend([
                dash(node.tunnel_addr.as_deref()),
                dash(node.cluster_id.as_deref()),
                dash(node.version.as_deref()),
                dash(node.time.as_deref()),
                node.keys.to_string(),
            ]);
        }
        row
    });
    table(&head, rows.collect())
}

fn sessions(node: &Node) -> String {
    match (node.sessions_up, node.sessions) {
        (Some(up), Some(of)) => format!("{up}/{of}"),
        _ => "-".to_owned(),
    }
}

fn show(out: &mut String, node: &Node) {
    let agent = match (&*node.agent, &node.version, &node.time) {
        ("none", ..) => "no agent runs".to_owned(),
        ("felix", ..) => "Felix reports".to_owned(),
        (word, version, time) => {
            format!("agent {word}, {}, status of {}", dash(version.as_deref()), dash(time.as_deref()))
        }
    };
    let _ = writeln!(out, "{}   {agent}", node.name);
    let addr = |addr: &Option<String>, net: &Option<String>| {
        let net = net.as_ref().map_or_else(String::new, |net| format!(" in {net}"));
        addr.as_ref().map(|addr| format!("{addr}{net}"))
    };
    let lines = [
        ("ipv4", addr(&node.ip4, &node.network4)),
        ("ipv6", addr(&node.ip6, &node.network6)),
        ("as", node.asn.clone()),
        ("cluster id", node.cluster_id.clone()),
        ("sessions", node.sessions.map(|_| format!("{} up", sessions(node)))),
        ("own peers", (node.peers > 0).then(|| node.peers.to_string())),
        ("tunnel", node.tunnel_addr.clone()),
        ("vxlan", node.vxlan_addr4.clone()),
        ("vxlan v6", node.vxlan_addr6.clone()),
    ];
    for (name, text) in lines {
        if let Some(text) = text {
            let _ = writeln!(out, "  {name:<10} {text}");
        }
    }
    let _ = writeln!(out, "\n  blocks {}", node.blocks.len());
    for Block { block, state } in &node.blocks {
        let state = if state == "confirmed" { String::new() } else { format!("   {state}") };
        let _ = writeln!(out, "    {block}{state}");
    }
    let _ = writeln!(out, "\n  endpoints {}", node.endpoints.len());
    for endpoint in &node.endpoints {
        let _ = writeln!(out, "    {endpoint}");
    }
}
