//! `tortie why route PREFIX --offline`: the decision about a supposed route, from the store alone, by the
//! functions that decide about real routes.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use tortie_config::calico3::{Kind, ObjectKey};
use tortie_config::key::Key;
use tortie_config::resource::{Asn, Community, RouteSource};
use tortie_engine::model::Model;
use tortie_engine::routing::{
    self, Encapsulation, FilterRoute, Interface, NodeOptions, PeerIntent, RoutingIntent, suppose_export,
    suppose_import, suppose_kernel,
};
use tortie_net::Cidr;

use super::context::Context;
use super::failure::{Exit, Failure};
use super::output;
use crate::api::codes;

/// Question about a supposed route.
#[derive(Debug, Default, clap::Args)]
pub(super) struct Supposed {
    /// Answer from the store alone, for a route that need not exist; with `--to`, `--from` or `--kernel`. Exit
    /// 6 when a value that the answer depends on cannot be read
    #[arg(long)]
    pub(super) offline: bool,
    /// Whether this host would use the route if this peer sent it
    #[arg(long, value_name = "PEER", requires = "offline", conflicts_with_all = ["to", "kernel"])]
    from: Option<String>,
    /// Whether the kernel would have the route if a peer sent it
    #[arg(long, requires = "offline", conflicts_with = "to")]
    kernel: bool,
    /// The supposed route as JSON, each member optional: prefix, source ("local" or "bgp"), interface,
    /// communities, asPath, localPref, nextHop
    #[arg(long, value_name = "JSON", requires = "offline")]
    route: Option<String>,
}

/// Attributes of a supposed route.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Attributes {
    prefix: Option<String>,
    source: Option<String>,
    interface: Option<String>,
    communities: Vec<String>,
    as_path: Vec<serde_json::Value>,
    local_pref: Option<u32>,
    next_hop: Option<IpAddr>,
}

/// Answer for a peer.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct PeerAnswer {
    accepted: bool,
    by: String,
    added_communities: Vec<String>,
}

/// Answer for the kernel.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct KernelAnswer {
    programmed: bool,
    tunnel: Option<&'static str>,
    #[serde(skip)]
    reason: &'static str,
}

/// A supposed route with the attributes that its [`FilterRoute`] borrows.
#[derive(Debug)]
struct Route {
    prefix: Cidr,
    local: bool,
    interface: Option<String>,
    standard: Vec<u32>,
    large: Vec<[u32; 3]>,
    path: Vec<u32>,
    local_pref: Option<u32>,
    next_hop: Option<IpAddr>,
}

/// Decides about the route and prints the answer; a value that cannot be read makes it a partial one.
pub(super) async fn run(
    context: &Context,
    prefix: &str,
    to: Option<&str>,
    asked: &Supposed,
) -> Result<(), Failure> {
    let route = Route::parse(prefix, asked.route.as_deref().unwrap_or("{}"))?;
    let globals = &context.globals;
    let model = super::offline::model(globals, &globals.node_name()?).await?;
    let intent = routing::intent(&model, &NodeOptions::default());
    if asked.kernel {
        let answer = kernel(&intent, &route);
        let text = |out: &mut String, _| {
            let verb = if answer.programmed { "in the kernel" } else { "not in the kernel" };
            let _ = writeln!(out, "{} {verb}: {}", route.prefix, answer.reason);
        };
        output::print(globals.output, &answer, text)?;
    } else {
        let (answer, name) = match (to, asked.from.as_deref()) {
            (Some(name), _) => (export(&intent, session(&intent, name, &route.prefix)?, &route), name),
            (None, Some(name)) => (import(&intent, session(&intent, name, &route.prefix)?, &route), name),
            (None, None) => return Err(Failure::usage("--offline goes with --to, --from or --kernel")),
        };
        let text = |out: &mut String, _| {
            let direction = if to.is_some() { "to" } else { "from" };
            let verb = if answer.accepted { "accepted" } else { "rejected" };
            let _ = writeln!(out, "{} {direction} {name} {verb} by {}", route.prefix, answer.by);
            if !answer.added_communities.is_empty() {
                let _ = writeln!(out, "  adds {}", answer.added_communities.join(" "));
            }
        };
        output::print(globals.output, &answer, text)?;
    }
    match unreadable(&model) {
        None => Ok(()),
        Some(key) => {
            let text = format!("the value of {key} cannot be read, and may change the answer");
            Err(Failure::new(Exit::Partial, "invalid-value", text))
        }
    }
}

/// Returns the key of a value of routing that is not used, because it cannot be read.
fn unreadable(model: &Model) -> Option<String> {
    let of_routing = |key: &Key| {
        matches!(key, Key::Pool(_) | Key::Bgp(..) | Key::BgpFilter(_) | Key::BgpConfiguration | Key::Block(_))
    };
    let kinds = [Kind::IPPool, Kind::BGPPeer, Kind::BGPFilter, Kind::BGPConfiguration];
    let is_read =
        |key: &ObjectKey| kinds.contains(&key.kind) || (key.kind == Kind::Node && key.name == model.node());
    let value = model
        .invalid_keys()
        .find(|problem| !problem.last_good && problem.parsed().is_some_and(|key| of_routing(&key)));
    let mut objects = model.object_problems().into_iter();
    let object = objects.find(|problem| problem.code == codes::INVALID_VALUE.name && is_read(&problem.key));
    value.map(|problem| problem.key.clone()).or_else(|| object.map(|problem| problem.key.title()))
}

/// Returns the session of this name, node name or address (with port, if several have the address). Of several
/// sessions with one node, those that carry the family of the prefix count.
fn session<'a>(intent: &'a RoutingIntent, name: &str, prefix: &Cidr) -> Result<&'a PeerIntent, Failure> {
    if let Some(peer) = intent.peers.get(name) {
        return Ok(peer);
    }
    let address: Option<IpAddr> = name.parse().ok();
    let is_called = |peer: &PeerIntent| {
        peer.name == name || address == Some(peer.remote.ip()) || peer.remote.to_string() == name
    };
    let ranges = intent.ranges.values().map(|range| &range.peer);
    let called: Vec<&PeerIntent> =
        intent.peers.values().chain(ranges).filter(|peer| is_called(peer)).collect();
    let carries = |peer: &&PeerIntent| if prefix.is_v4() { peer.ipv4 } else { peer.ipv6 };
    let carrying: Vec<&PeerIntent> = called.iter().copied().filter(carries).collect();
    match (carrying.as_slice(), called.as_slice()) {
        ([one], _) | ([], [one, ..]) => Ok(one),
        ([one, other, ..], _) => {
            let text = format!(
                "several sessions are called {name}: give the address and port, {} or {}",
                one.remote, other.remote
            );
            Err(Failure::usage(text))
        }
        ([], []) => {
            let text = format!("no session with {name} is configured: tortie why peer {name}");
            Err(Failure::new(Exit::No, "not-found", text))
        }
    }
}

fn export(intent: &RoutingIntent, peer: &PeerIntent, route: &Route) -> PeerAnswer {
    // A route of an iBGP peer has no AS of its own in the path, as far as its AS is the whole cluster's.
    let source = match (route.local, route.path.is_empty()) {
        (true, _) => RouteSource::Local,
        (false, true) => RouteSource::Ibgp,
        (false, false) => RouteSource::Ebgp,
    };
    let local_asn = peer.local_asn.unwrap_or(intent.asn);
    let prepend_as = peer.is_external(intent.asn).then_some(local_asn);
    suppose_export(intent, peer, &FilterRoute { prepend_as, ..route.seen(source) }).into()
}

fn import(intent: &RoutingIntent, peer: &PeerIntent, route: &Route) -> PeerAnswer {
    let ebgp = peer.is_external(intent.asn);
    let source = if ebgp { RouteSource::Ebgp } else { RouteSource::Ibgp };
    let prepend_as = ebgp.then_some(peer.asn);
    let seen = FilterRoute { prepend_as, peer: Some(&peer.name), ..route.seen(source) };
    suppose_import(intent, peer, &seen).into()
}

fn kernel(intent: &RoutingIntent, route: &Route) -> KernelAnswer {
    let answer = suppose_kernel(intent, &route.seen(RouteSource::Ibgp));
    KernelAnswer {
        programmed: answer.programmed,
        tunnel: answer.tunnel.map(Encapsulation::as_str),
        reason: answer.reason,
    }
}

impl From<routing::SupposedRoute> for PeerAnswer {
    fn from(answer: routing::SupposedRoute) -> Self {
        Self {
            accepted: answer.accepted,
            by: answer.by,
            added_communities: answer.added.iter().map(ToString::to_string).collect(),
        }
    }
}

impl Route {
    fn parse(prefix: &str, json: &str) -> Result<Self, Failure> {
        let wrong =
            |what: &str, error: &dyn std::fmt::Display| Failure::usage(format!("--route: {what}: {error}"));
        // A list of values would be taken for the members in their order.
        let given: Result<Attributes, _> = serde_json::from_str::<serde_json::Map<_, _>>(json)
            .and_then(|members| serde_json::from_value(serde_json::Value::Object(members)));
        let given = given.map_err(|error| wrong("not a route in JSON", &error))?;
        let cidr = |text: &str| match text.parse::<IpAddr>() {
            Ok(addr) => Ok(Cidr::host(addr)),
            Err(_) => text.parse::<Cidr>().map_err(|error| wrong("prefix", &error)),
        };
        let asked = cidr(prefix)?;
        if let Some(other) = given.prefix.as_deref()
            && cidr(other)? != asked
        {
            return Err(Failure::usage(format!("--route: the prefix {other} is not {prefix}")));
        }
        let local = match given.source.as_deref() {
            None | Some("local") => true,
            Some("bgp") => false,
            Some(other) => return Err(wrong("source", &format!("`{other}`: write \"local\" or \"bgp\""))),
        };
        let (mut standard, mut large) = (Vec::new(), Vec::new());
        for text in &given.communities {
            match text.parse::<Community>().map_err(|error| wrong("communities", &error))? {
                Community::Standard(value) => standard.push(value),
                Community::Large(value) => large.push(value),
            }
        }
        let asn = |value: &serde_json::Value| {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            text.parse::<Asn>().map(Asn::get).map_err(|error| wrong("asPath", &error))
        };
        Ok(Self {
            prefix: asked,
            local,
            interface: given.interface,
            standard,
            large,
            path: given.as_path.iter().map(asn).collect::<Result<_, _>>()?,
            local_pref: given.local_pref,
            next_hop: given.next_hop,
        })
    }

    fn seen(&self, source: RouteSource) -> FilterRoute<'_> {
        FilterRoute {
            next_hop: self.next_hop,
            communities: Cow::Borrowed(&self.standard),
            large: Cow::Borrowed(&self.large),
            path: Cow::Borrowed(&self.path),
            path_length: self.path.len(),
            neighbour: self.path.first().copied(),
            origin_as: self.path.last().copied(),
            source,
            interface: self.interface.as_deref().map_or(Interface::None, Interface::Name),
            local_pref: self.local_pref,
            ..FilterRoute::local(self.prefix)
        }
    }
}

#[cfg(test)]
mod tests {
    use tortie_engine::model::WatchPart;
    use tortie_store::fixtures::snapshot;

    use super::*;

    fn intent() -> RoutingIntent {
        let mut model = Model::new("b");
        let entries = [
            ("/calico/bgp/v1/host/b/ip_addr_v4", "192.0.2.9"),
            ("/calico/bgp/v1/host/b/network_v4", "192.0.2.0/24"),
            ("/calico/bgp/v1/host/c/ip_addr_v4", "192.0.2.10"),
            ("/calico/v1/ipam/v4/pool/10.0.0.0-16", r#"{"ipip":"tunl0","ipip_mode":"cross-subnet"}"#),
            (
                "/calico/bgp/v1/global/prefix_advertisements/ip_v4",
                r#"[{"cidr":"10.0.0.0/16","communities":["65000:7","65000:1:2"]}]"#,
            ),
            ("/calico/bgp/v1/global/peer_v4/198.51.100.1", r#"{"as_num":"65001","filters":["f"]}"#),
            (
                "/calico/bgp/v1/global/filters/f",
                r#"{"import":[{"match":{"communities":["65000:666"]},"then":"reject"}],
                    "export":[{"name":"tag","match":{"prefixes":["10.0.9.0/24"]},"set":{"communities":{"add":["65000:9"]}},"then":"accept"}]}"#,
            ),
        ];
        model.replace(WatchPart::All, &snapshot(10, &entries));
        assert_eq!(model.invalid_keys().map(|p| (&p.key, &p.error)).collect::<Vec<_>>(), []);
        routing::intent(&model, &NodeOptions::default())
    }

    fn answer(accepted: bool, by: &str, added: &[&str]) -> PeerAnswer {
        let added_communities = added.iter().map(|text| (*text).to_owned()).collect();
        PeerAnswer { accepted, by: by.to_owned(), added_communities }
    }

    #[test]
    fn answers_name_the_gate_or_the_rule() {
        let intent = intent();
        let route = |prefix: &str, json: &str| Route::parse(prefix, json).unwrap();
        let v4: Cidr = "10.0.0.0/8".parse().unwrap();
        let tor = session(&intent, "198.51.100.1", &v4).unwrap();
        let found = export(&intent, tor, &route("10.0.7.0/26", "{}"));
        assert_eq!(found, answer(true, "advertised", &["65000:7", "65000:1:2"]));
        let found = export(&intent, tor, &route("10.0.9.0/24", r#"{"source":"bgp","asPath":[65001]}"#));
        assert_eq!(found, answer(true, "rule 1 (tag) of filter f", &["65000:7", "65000:9", "65000:1:2"]));
        assert_eq!(export(&intent, tor, &route("172.16.0.0/12", "{}")), answer(false, "none", &[]));
        let marked = route("172.16.0.0/12", r#"{"source":"bgp","communities":["65000:666"]}"#);
        assert_eq!(import(&intent, tor, &marked), answer(false, "rule 1 of filter f", &[]));
        let plain = route("172.16.0.0/12", r#"{"source":"bgp"}"#);
        assert_eq!(import(&intent, tor, &plain), answer(true, "accept", &[]));
        let mesh = session(&intent, "c", &v4).unwrap();
        assert_eq!(import(&intent, mesh, &route("fd00::/64", "{}")), answer(false, "family", &[]));
    }

    #[test]
    fn the_kernel_answer_names_the_tunnel() {
        let intent = intent();
        let asked = |prefix: &str, hop: &str| {
            let json = format!(r#"{{"source":"bgp","nextHop":"{hop}"}}"#);
            let found = kernel(&intent, &Route::parse(prefix, &json).unwrap());
            (found.programmed, found.tunnel)
        };
        assert_eq!(asked("10.0.7.0/26", "192.0.2.10"), (true, None));
        assert_eq!(asked("10.0.7.0/26", "198.51.100.10"), (true, Some("ipip")));
        assert_eq!(asked("172.16.0.0/12", "198.51.100.10"), (true, None));
    }

    /// In a VXLAN pool the store gives the routes, whatever a peer announces.
    #[test]
    fn in_a_vxlan_pool_the_kernel_has_the_routes_of_the_store() {
        let nulls = vec!["null"; 64].join(",");
        let block = format!(
            r#"{{"cidr":"10.1.7.0/26","affinity":"host:c","allocations":[{nulls}],"unallocated":[],"attributes":[]}}"#
        );
        let entries = [
            ("/calico/bgp/v1/host/b/ip_addr_v4", "192.0.2.9"),
            ("/calico/bgp/v1/host/b/network_v4", "192.0.2.0/24"),
            ("/calico/bgp/v1/host/c/ip_addr_v4", "198.51.100.10"),
            ("/calico/v1/host/b/config/IPv4VXLANTunnelAddr", "10.1.0.1"),
            ("/calico/v1/host/c/config/IPv4VXLANTunnelAddr", "10.1.0.2"),
            ("/calico/v1/ipam/v4/pool/10.1.0.0-16", r#"{"vxlan_mode":"cross-subnet"}"#),
            ("/calico/ipam/v2/assignment/ipv4/block/10.1.7.0-26", block.as_str()),
        ];
        let asked = |entries: &[(&str, &str)], prefix: &str| {
            let mut model = Model::new("b");
            model.replace(WatchPart::All, &snapshot(10, entries));
            let intent = routing::intent(&model, &NodeOptions::default());
            let route = Route::parse(prefix, r#"{"source":"bgp","nextHop":"198.51.100.10"}"#).unwrap();
            let found = kernel(&intent, &route);
            (found.programmed, found.tunnel, found.reason)
        };
        assert_eq!(asked(&entries, "10.1.7.0/26"), (true, Some("vxlan"), "vxlan"));
        assert_eq!(asked(&entries, "10.1.7.4/32"), (true, Some("vxlan"), "vxlan"));
        assert_eq!(asked(&entries, "10.1.8.0/26"), (false, None, "vxlan-pool"));
        let mut near = entries;
        near[2].1 = "192.0.2.10";
        assert_eq!(asked(&near, "10.1.7.0/26"), (true, None, "vxlan-same-subnet"));
    }

    #[test]
    fn what_is_no_route_is_said_so() {
        for (json, says) in [
            ("[]", "not a route"),
            (r#"{"metric":1}"#, "unknown field"),
            (r#"{"source":"static"}"#, "write \"local\" or \"bgp\""),
            (r#"{"communities":["65000"]}"#, "communities"),
            (r#"{"asPath":["x"]}"#, "asPath"),
            (r#"{"prefix":"10.0.0.0/8"}"#, "is not 10.0.0.0/16"),
        ] {
            let error = Route::parse("10.0.0.0/16", json).unwrap_err();
            assert!(error.text.contains(says), "{json}: {error}");
        }
        assert_eq!(Route::parse("10.0.0.1", r#"{"prefix":"10.0.0.1/32"}"#).unwrap().prefix.len(), 32);
        assert!(session(&intent(), "nobody", &"10.0.0.0/8".parse().unwrap()).is_err());
    }
}
