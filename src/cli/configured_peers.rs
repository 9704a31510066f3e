//! `tortie bgp peers --offline`: the sessions that an agent of a host would have, from the store alone, by the
//! functions that decide about real ones.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use tortie_config::calico3::{Kind, ObjectKey};
use tortie_config::key::{BgpItem, IpFamily, Key, Scope};
use tortie_config::resource::Peer;
use tortie_config::{Dialect, Resource};
use tortie_engine::model::Model;
use tortie_engine::routing::{self, Direction, NextHopMode, NodeOptions, PeerIntent, PeerKind, PeerSource};

use super::context::Context;
use super::failure::{Exit, Failure};
use super::output::{self, table};
use crate::api::{codes, escape};

/// JSON answer of the command.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Sessions {
    #[serde(rename = "as")]
    asn: u32,
    router_id: Ipv4Addr,
    listen_port: u16,
    listen_addresses: Vec<IpAddr>,
    peers: Vec<Session>,
}

/// A configured session. A member that is null has its default.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Session {
    scope: &'static str,
    /// Address of the peer; the interface of an unnumbered one.
    address: String,
    port: u16,
    /// AS of the peer; null for any other than the local one.
    #[serde(rename = "as")]
    asn: Option<u32>,
    local_as: Option<u32>,
    source: Option<IpAddr>,
    password: bool,
    passive: bool,
    rr_client: bool,
    rr_cluster_id: Option<Ipv4Addr>,
    next_hop: Option<&'static str>,
    ttl_security: Option<u8>,
    restart_time: Option<u64>,
    keepalive_time: Option<u64>,
    num_allow_local_as: Option<u8>,
    import_filters: Vec<String>,
    export_filters: Vec<String>,
    /// Keys of the store that the session came from, the decisive one first.
    origin: Vec<String>,
}

/// Prints the sessions; a value that cannot be read makes the answer a partial one.
pub(super) async fn run(context: &Context) -> Result<(), Failure> {
    let globals = &context.globals;
    let node = globals.node_name()?;
    let router_id = crate::agent::router_id().map_err(Failure::usage)?;
    let model = super::offline::model(globals, &node).await?;
    let options = NodeOptions { router_id, ..NodeOptions::default() };
    let sessions = Sessions::of(&model, &options);
    output::print(globals.output, &sessions, |out, _| out.push_str(&sessions.render()))?;
    match unreadable(&model) {
        None => Ok(()),
        Some(name) => {
            let text =
                format!("{} cannot be read as a whole, and may change the answer", escape::line(&name));
            Err(Failure::new(Exit::Partial, codes::INVALID_VALUE.name, text))
        }
    }
}

/// Returns the name of a value that sessions depend on and that cannot be read.
fn unreadable(model: &Model) -> Option<String> {
    let kinds = [Kind::Node, Kind::BGPPeer, Kind::BGPConfiguration, Kind::BGPFilter];
    let mut objects = model.object_problems().into_iter();
    let object = objects
        .find(|problem| problem.code == codes::INVALID_VALUE.name && kinds.contains(&problem.key.kind));
    if let Some(problem) = object {
        return Some(problem.key.title());
    }
    let of_bgp = |key: &Key| matches!(key, Key::Bgp(..) | Key::BgpFilter(_) | Key::BgpConfiguration);
    let mut values = model.invalid_keys().filter(|invalid| !invalid.last_good);
    let value = values.find(|invalid| invalid.parsed().is_none_or(|key| of_bgp(&key)));
    value.map(|invalid| model.name_of_text(&invalid.key))
}

impl Sessions {
    fn of(model: &Model, options: &NodeOptions) -> Self {
        let intent = routing::intent(model, options);
        let host = model.host(model.node());
        Self {
            asn: intent.asn,
            router_id: Ipv4Addr::from(intent.router_id),
            listen_port: model.listen_port(host),
            listen_addresses: intent.listen.iter().map(std::net::SocketAddr::ip).collect(),
            peers: intent.peers.values().map(|peer| Session::of(model, intent.asn, peer)).collect(),
        }
    }

    fn render(&self) -> String {
        let head =
            ["SCOPE", "ADDRESS", "PORT", "AS", "SOURCE", "PASSIVE", "CLIENT", "IMPORT", "EXPORT", "ORIGIN"];
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let yes = |yes: bool| if yes { "yes" } else { "no" }.to_owned();
        let rows = self.peers.iter().map(|peer| {
            let names = |names: &[String]| or_dash(Some(names.join(",")).filter(|names| !names.is_empty()));
            let origin = peer
                .origin
                .first()
                .map(|key| ObjectKey::parse(key).map_or_else(|| key.clone(), |object| object.title()));
            [
                peer.scope.to_owned(),
                peer.address.clone(),
                peer.port.to_string(),
                peer.asn.map_or_else(|| "external".to_owned(), |asn| asn.to_string()),
                or_dash(peer.source.map(|addr| addr.to_string())),
                yes(peer.passive),
                yes(peer.rr_client),
                names(&peer.import_filters),
                names(&peer.export_filters),
                or_dash(origin),
            ]
            .map(|text| escape::line(&text).into_owned())
            .to_vec()
        });
        let listen: Vec<String> = self.listen_addresses.iter().map(ToString::to_string).collect();
        let node = format!(
            "AS {}, router id {}, listens on port {} of {}\n\n",
            self.asn,
            self.router_id,
            self.listen_port,
            if listen.is_empty() { "no address".to_owned() } else { listen.join(", ") }
        );
        node + &table(&head, rows.collect())
    }
}

impl Session {
    fn of(model: &Model, asn: u32, peer: &PeerIntent) -> Self {
        let value = configured(model, peer);
        let transport = if peer.remote.is_ipv4() { IpFamily::V4 } else { IpFamily::V6 };
        let families = [(peer.ipv4, IpFamily::V4), (peer.ipv6, IpFamily::V6)];
        let families: Vec<IpFamily> =
            families.into_iter().filter(|(carried, _)| *carried).map(|(_, f)| f).collect();
        let filters = |direction| {
            let names = peer.policy.filters.iter();
            names.filter(|name| has_rules(model, name, direction, &families)).cloned().collect()
        };
        let seconds = |time: Duration| time.as_secs();
        Self {
            scope: scope(peer, value),
            address: peer.interface.clone().unwrap_or_else(|| peer.remote.ip().to_string()),
            port: peer.remote.port(),
            asn: Some(peer.asn).filter(|asn| *asn != 0),
            local_as: peer.local_asn,
            source: peer.local,
            password: peer.password.is_some() || peer.tcp_ao.is_some(),
            passive: peer.dial_after != Some(Duration::ZERO),
            rr_client: peer.reflector_client.is_some(),
            rr_cluster_id: peer.reflector_client.map(Ipv4Addr::from),
            next_hop: match peer.next_hop {
                NextHopMode::Own => Some("self"),
                NextHopMode::Keep
                    if value.is_some_and(|value| keeps_next_hop(value, peer.is_external(asn))) =>
                {
                    Some("keep")
                }
                NextHopMode::Keep | NextHopMode::Auto => None,
            },
            ttl_security: peer.ttl_security,
            restart_time: match value {
                Some(value) => value.restart_time,
                None if peer.kind == PeerKind::Mesh => model.bgp_configuration().mesh_restart_time,
                None => Some(peer.restart_time).filter(|time| *time != routing::RESTART_TIME),
            }
            .map(seconds),
            keepalive_time: peer.keepalive_time.map(seconds),
            num_allow_local_as: Some(peer.allow_local_as).filter(|count| *count != 0),
            import_filters: filters(Direction::Import),
            export_filters: filters(Direction::Export),
            origin: origin(model, &peer.source, transport),
        }
    }
}

/// Returns the value of a configured peer.
fn configured<'a>(model: &'a Model, peer: &PeerIntent) -> Option<&'a Peer> {
    let (PeerSource::Key(key) | PeerSource::Object { key, .. }) = &peer.source else { return None };
    match model.resource(key).map(std::convert::AsRef::as_ref) {
        Some(Resource::Peer(value)) => Some(value),
        _ => None,
    }
}

/// Returns true if the value asks for received next hops to be kept; towards iBGP peers they may be anyway.
fn keeps_next_hop(value: &Peer, ebgp: bool) -> bool {
    value.next_hop_mode == Some(NextHopMode::Keep) || value.keep_next_hop && ebgp
}

fn scope(peer: &PeerIntent, value: Option<&Peer>) -> &'static str {
    match peer.kind {
        _ if value.is_some_and(|value| value.local_bgp_peer) => "localWorkload",
        PeerKind::Mesh => "mesh",
        PeerKind::Global => "global",
        PeerKind::Node | PeerKind::Dynamic => "node",
    }
}

/// Returns true if a filter has rules for routes in this direction of one of the families.
fn has_rules(model: &Model, name: &str, direction: Direction, families: &[IpFamily]) -> bool {
    if model.dialect() == Dialect::V3 {
        let Some(resource) = model.resource(&Key::BgpFilter(name.to_owned())) else { return false };
        let Ok(value) = serde_json::from_slice::<Value>(&resource.to_value()) else { return false };
        return families.iter().any(|family| {
            let list = match (direction, family) {
                (Direction::Import, IpFamily::V4) => "importV4",
                (Direction::Import, IpFamily::V6) => "importV6",
                (Direction::Export, IpFamily::V4) => "exportV4",
                (Direction::Export, IpFamily::V6) => "exportV6",
            };
            value.get(list).and_then(Value::as_array).is_some_and(|rules| !rules.is_empty())
        });
    }
    // A host's own filter takes precedence over the global one. Rules of both families are in one list.
    let scopes = [Scope::Host(model.node().to_owned()), Scope::Global];
    let mut found = scopes.into_iter().map(|scope| Key::Bgp(scope, BgpItem::Filter(name.to_owned())));
    let filter = found.find_map(|key| match model.resource(&key).map(std::convert::AsRef::as_ref) {
        Some(Resource::Filter(filter)) => Some(filter),
        _ => None,
    });
    let rules = filter.and_then(|filter| match direction {
        Direction::Import => filter.import.as_ref(),
        Direction::Export => filter.export.as_ref(),
    });
    rules.is_some_and(|rules| !rules.is_empty())
}

/// Returns the keys of the store that a session came from.
fn origin(model: &Model, source: &PeerSource, transport: IpFamily) -> Vec<String> {
    let key = source.key(transport).to_string();
    if model.dialect() == Dialect::V1 {
        return vec![key];
    }
    match source {
        PeerSource::Mesh(host) => vec![ObjectKey::global(Kind::Node, host).to_string()],
        _ => model.origin_of(&key).iter().map(ToString::to_string).collect(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tortie_engine::model::WatchPart;
    use tortie_store::{KeyValue, Snapshot};

    use super::*;

    const V3: &str = "/calico/resources/v3/projectcalico.org/";

    fn model(dialect: Dialect, entries: &[(String, String)]) -> Model {
        let entry = |(key, value): &(String, String)| KeyValue {
            key: key.clone(),
            value: value.clone().into_bytes(),
            mod_revision: 3,
            create_revision: 2,
        };
        let mut entries: Vec<KeyValue> = entries.iter().map(entry).collect();
        entries.sort_by(|a, b| a.key.cmp(&b.key));
        let mut model = Model::new("h1");
        model.set_dialect(dialect);
        model.replace(WatchPart::All, &Snapshot { revision: 3, entries, ..Snapshot::default() });
        model
    }

    fn objects(objects: &[(&str, Value)]) -> Model {
        let entry = |(key, spec): &(&str, Value)| (format!("{V3}{key}"), json!({ "spec": spec }).to_string());
        model(Dialect::V3, &objects.iter().map(entry).collect::<Vec<_>>())
    }

    fn answer(model: &Model) -> Value {
        serde_json::to_value(Sessions::of(model, &NodeOptions::default())).unwrap()
    }

    #[test]
    fn sessions_of_a_calico_3_store_name_their_objects() {
        let rules = json!([{ "action": "Reject" }]);
        let model = objects(&[
            ("nodes/h1", json!({ "bgp": { "ipv4Address": "192.0.2.1/24" } })),
            ("nodes/h2", json!({ "bgp": { "ipv4Address": "192.0.2.2/24" } })),
            ("bgpfilters/both", json!({ "importV4": rules, "exportV4": rules })),
            ("bgpfilters/v6", json!({ "importV6": rules, "exportV6": rules })),
            ("bgpfilters/out", json!({ "exportV4": rules, "importV4": [] })),
            (
                "bgppeers/tor",
                json!({
                    "node": "h1", "peerIP": "198.51.100.1:1790", "asNumber": 65001, "localASNumber": 65002,
                    "sourceAddress": "None", "nextHopMode": "Self", "ttlSecurity": 1, "maxRestartTime": "2m0s",
                    "keepaliveTime": "20s", "numAllowedLocalASNumbers": 2,
                    "password": { "secretKeyRef": { "name": "bgp", "key": "tor" } },
                    "filters": ["none", "out", "v6", "both"],
                }),
            ),
        ]);
        let mesh = json!({
            "scope": "mesh", "address": "192.0.2.2", "port": 179, "as": 64512, "localAs": null,
            "source": "192.0.2.1", "password": false, "passive": true, "rrClient": false, "rrClusterId": null,
            "nextHop": null, "ttlSecurity": null, "restartTime": null, "keepaliveTime": null,
            "numAllowLocalAs": null, "importFilters": [], "exportFilters": [], "origin": [format!("{V3}nodes/h2")],
        });
        let router = json!({
            "scope": "node", "address": "198.51.100.1", "port": 1790, "as": 65001, "localAs": 65002,
            "source": null, "password": true, "passive": false, "rrClient": false, "rrClusterId": null,
            "nextHop": "self", "ttlSecurity": 1, "restartTime": 120, "keepaliveTime": 20, "numAllowLocalAs": 2,
            "importFilters": ["both"], "exportFilters": ["out", "both"], "origin": [format!("{V3}bgppeers/tor")],
        });
        assert_eq!(
            answer(&model),
            json!({
                "as": 64512, "routerId": "192.0.2.1", "listenPort": 179, "listenAddresses": ["0.0.0.0"],
                "peers": [mesh, router],
            })
        );
        assert_eq!(unreadable(&model), None);
        let text = Sessions::of(&model, &NodeOptions::default()).render();
        assert!(text.contains("BGPPeer tor") && text.contains("Node h2"), "{text}");
    }

    #[test]
    fn sessions_of_a_v1_store_name_their_keys() {
        let entries = [
            ("/calico/bgp/v1/host/h1/ip_addr_v4", "192.0.2.9"),
            ("/calico/bgp/v1/host/h1/rr_cluster_id", "244.0.0.1"),
            ("/calico/bgp/v1/global/filters/f", r#"{"import":[{"then":"reject"}],"export":[]}"#),
            (
                "/calico/bgp/v1/global/peer_v4/192.0.2.3",
                r#"{"ip":"192.0.2.3","as_num":"64512","filters":["f"],"restart_time":"60s"}"#,
            ),
        ];
        let entries = entries.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let answer = answer(&model(Dialect::V1, &entries));
        assert_eq!(answer["listenAddresses"], json!(["192.0.2.9"]));
        let peer = &answer["peers"][0];
        assert_eq!((&peer["scope"], &peer["restartTime"]), (&json!("global"), &json!(60)));
        assert_eq!((&peer["rrClient"], &peer["rrClusterId"]), (&json!(true), &json!("244.0.0.1")));
        assert_eq!((&peer["importFilters"], &peer["exportFilters"]), (&json!(["f"]), &json!([])));
        assert_eq!(peer["origin"], json!(["/calico/bgp/v1/global/peer_v4/192.0.2.3"]));
    }

    #[test]
    fn an_invalid_object_makes_the_answer_a_partial_one() {
        let model = objects(&[("bgppeers/p", json!({ "peerIP": "192.0.2.1" }))]);
        assert_eq!(unreadable(&model).as_deref(), Some("BGPPeer p"));
    }
}
