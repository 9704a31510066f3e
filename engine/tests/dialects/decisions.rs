//! What one model decides: sessions, announcements, kernel routes, tunnels, settings and verdicts, with the
//! names of the v1 store.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use tortie_config::Dialect;
use tortie_engine::model::Model;
use tortie_engine::policy::path::{Flow, Node, Path, Place, Reason, Routes, Stage};
use tortie_engine::policy::{
    ChainId, Decider, Decision, Engine, Globals, Packet, Ruleset, Source, Verdict, host_interfaces,
};
use tortie_engine::routing::{
    FilterRoute, Interface, KernelRoute, NodeOptions, OriginKind, PeerIntent, PeerSource, Resolved,
    RoutingIntent, export_gate, import, intent, kernel_route, local_pref_of,
};
use tortie_net::Cidr;

use crate::pair::Names;
use crate::probes::{NEXT_HOPS, PREFIXES, ProbeRoute, routes};

/// Priority of a workload that moves.
const MOVES: u32 = 512;

/// All decisions of a model.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Decisions {
    pub(crate) listen: Vec<SocketAddr>,
    /// Sessions by address and port of the peer.
    pub(crate) sessions: BTreeMap<SocketAddr, PeerIntent>,
    pub(crate) originated: BTreeMap<Cidr, OriginKind>,
    /// What has a text to compare.
    pub(crate) texts: BTreeMap<&'static str, String>,
    pub(crate) exports: BTreeMap<(SocketAddr, usize), Export>,
    pub(crate) imports: BTreeMap<(SocketAddr, usize), Import>,
    pub(crate) kernel: Vec<KernelRoute>,
    pub(crate) paths: Vec<PacketPath>,
}

/// Decision about a route that a peer may receive.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Export {
    pub(crate) accept: bool,
    pub(crate) gate: &'static str,
    pub(crate) communities: String,
    pub(crate) local_pref: Option<u32>,
    pub(crate) ebgp: bool,
    pub(crate) is_in_pool: bool,
    pub(crate) is_on_tunnel: bool,
    pub(crate) is_better: bool,
}

/// Decision about a route that a peer sent.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Import {
    pub(crate) refused: Option<&'static str>,
    pub(crate) is_better: bool,
}

/// Path of a packet, with the names of the v1 store.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PacketPath {
    pub(crate) flow: Flow,
    pub(crate) steps: Vec<Step>,
    pub(crate) verdict: Verdict,
    pub(crate) packet: Packet,
    pub(crate) untracked: bool,
    /// The packet is routed from one interface to another.
    pub(crate) is_forwarded: bool,
}

/// Result of a stage.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Step {
    pub(crate) stage: Stage,
    pub(crate) endpoint: Option<String>,
    pub(crate) verdict: Option<Verdict>,
    pub(crate) reason: String,
}

/// How the names of a model become those of the v1 store.
pub(crate) struct Reader<'a> {
    pub(crate) model: &'a Model,
    pub(crate) names: &'a Names,
}

impl Reader<'_> {
    /// Returns all decisions; about packets, those of `flows`.
    pub(crate) fn decisions(&self, flows: &[Flow]) -> Decisions {
        let intent = intent(self.model, &NodeOptions::default());
        let mut decisions = Decisions {
            listen: intent.listen.clone(),
            sessions: intent.peers.values().map(|peer| (peer.remote, self.session(peer))).collect(),
            originated: intent.originated.iter().map(|(prefix, route)| (*prefix, route.kind)).collect(),
            texts: self.texts(&intent),
            exports: BTreeMap::new(),
            imports: BTreeMap::new(),
            kernel: kernel(&intent),
            paths: self.paths(flows),
        };
        assert_eq!(
            decisions.sessions.len(),
            intent.peers.iter().count(),
            "no two sessions have one address and port"
        );
        for peer in intent.peers.values() {
            for (at, route) in routes().into_iter().enumerate() {
                decide(&intent, peer, at, route, &mut decisions);
            }
        }
        decisions
    }

    fn is_v3(&self) -> bool {
        self.model.dialect() == Dialect::V3
    }

    /// Returns a session without its source, which `names` tests.
    fn session(&self, peer: &PeerIntent) -> PeerIntent {
        PeerIntent { source: PeerSource::Mesh(String::new()), ..peer.clone() }
    }

    fn texts(&self, intent: &RoutingIntent) -> BTreeMap<&'static str, String> {
        let view = &intent.view;
        let mut globals = Globals::of(self.model);
        globals.dialect = Dialect::V1;
        let (vxlan, routes) = (&intent.vxlan, &intent.store_routes);
        let addresses: std::collections::BTreeSet<IpAddr> = intent.addresses.keys().copied().collect();
        [
            (
                "AS, router id, multipath",
                format!("{} {} {:?}", intent.asn, intent.router_id, intent.multipath),
            ),
            ("ranges", format!("{:?}", intent.ranges.keys().collect::<Vec<_>>())),
            ("blackholes", format!("{:?}", intent.blackholes)),
            ("withheld blocks", format!("{:?}", intent.withheld_blocks.keys())),
            ("tunnel", format!("{:?}", intent.tunnel)),
            ("ends of the VXLAN", format!("{:?} {:?} {:?}", vxlan.v4, vxlan.v6, vxlan.remotes)),
            (
                "routes of the store",
                format!("{:?} {:?} {:?}", routes.remote, routes.gateways, routes.withheld.keys()),
            ),
            ("pools", format!("{:?}", view.pools)),
            ("network", format!("{:?} {:?} {:?}", view.node_v4, view.node_v6, view.network_v4)),
            ("own blocks", format!("{:?}", view.own_blocks)),
            ("addresses", format!("{addresses:?}")),
            ("settings", format!("{:#?}", self.model.settings().all())),
            ("parameters of rules", format!("{globals:#?}")),
            ("ready", format!("{:?}", self.model.ready())),
        ]
        .into()
    }

    fn paths(&self, flows: &[Flow]) -> Vec<PacketPath> {
        let mut ruleset = Ruleset::default();
        Engine::new(self.model).1.apply(&mut ruleset);
        let globals = Globals::of(self.model);
        let addrs: [(&str, Vec<IpAddr>); 3] = [
            ("eth0", vec!["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()]),
            ("eth1", vec!["198.51.100.99".parse().unwrap()]),
            ("tunl0", vec!["10.1.9.1".parse().unwrap()]),
        ];
        let hosts = host_interfaces(&ruleset, &globals, addrs.clone());
        let mut routes = Routes::of_workloads(&ruleset);
        routes.local.extend(addrs.into_iter().flat_map(|(_, addrs)| addrs));
        routes.local.insert("127.0.0.1".parse().unwrap());
        for (net, out) in [
            ("0.0.0.0/0", "eth0"),
            ("::/0", "eth0"),
            ("198.51.100.0/24", "eth1"),
            ("10.1.4.0/24", "tunl0"),
            ("10.2.0.0/16", "vxlan.calico"),
        ] {
            routes.via.insert(net.parse().unwrap(), out.into());
        }
        let node = Node { ruleset: &ruleset, globals: &globals, hosts: &hosts, routes: &routes };
        let prepared = node.prepared();
        flows.iter().map(|flow| self.path(flow, prepared.path(flow))).collect()
    }

    fn path(&self, flow: &Flow, path: Path) -> PacketPath {
        let routed = |step: &tortie_engine::policy::path::Step| {
            matches!(step.reason, Reason::Routed(Place::Interface(_)))
        };
        let is_forwarded = flow.from != Place::Host && path.steps.iter().any(routed);
        let steps = path.steps.iter().map(|step| Step {
            stage: step.stage,
            endpoint: step.endpoint.as_ref().map(|key| {
                if self.is_v3() {
                    self.names.endpoint(self.model, key)
                } else {
                    format!("/calico/v1/host/{key}")
                }
            }),
            verdict: step.verdict,
            reason: match &step.reason {
                Reason::Policy(decision) => self.decision(decision),
                other => format!("{other:?}"),
            },
        });
        PacketPath {
            flow: flow.clone(),
            steps: steps.collect(),
            verdict: path.verdict,
            packet: path.packet,
            untracked: path.untracked,
            is_forwarded,
        }
    }

    fn decision(&self, decision: &Decision) -> String {
        let by = match &decision.by {
            Decider::Rule(chain, at) => format!("{} rule {at}", self.chain(chain)),
            Decider::EndOfTier(tier) if self.is_v3() => format!("end of tier {}", self.names.tier(tier)),
            Decider::EndOfTier(tier) => format!("end of tier {tier}"),
            Decider::EndOfProfiles => "end of profiles".to_owned(),
            Decider::Nobody => "nobody".to_owned(),
        };
        let matched: Vec<String> =
            decision.matched.iter().map(|(chain, at)| format!("{} {at}", self.chain(chain))).collect();
        let logs: Vec<&str> = decision.logs.iter().map(|prefix| prefix.as_str()).collect();
        format!("{:?} by {by}; matched {matched:?}; logs {logs:?}", decision.verdict)
    }

    fn chain(&self, chain: &ChainId) -> String {
        let source = match &chain.source {
            Source::Policy { tier, name, .. } if self.is_v3() => {
                let (tier, name) = self.names.policy(self.model, tier, name);
                Source::policy(Dialect::V1, &tier, &name)
            }
            Source::Profile(name) if self.is_v3() => {
                Source::Profile(self.names.profile(self.model, name).into())
            }
            other => other.clone(),
        };
        format!("{source} {:?}", chain.direction)
    }
}

fn decide(
    intent: &RoutingIntent,
    peer: &PeerIntent,
    at: usize,
    route: ProbeRoute,
    decisions: &mut Decisions,
) {
    let ebgp = peer.is_external(intent.asn);
    let view = &intent.view;
    let interface = if route.is_on_tunnel { Interface::Name("tunl0") } else { Interface::None };
    let local_pref = route.is_better.then(|| local_pref_of(MOVES));
    let input =
        FilterRoute { source: route.source, interface, local_pref, ..FilterRoute::local(route.prefix) };
    let answer = export_gate(view, &peer.policy, ebgp, &input);
    assert!(answer.changes.is_empty());
    let export = Export {
        accept: answer.accept,
        gate: answer.gate,
        communities: format!("{:?} {:?}", answer.communities, answer.large_communities),
        local_pref: answer.local_pref,
        ebgp,
        is_in_pool: view.pool_of(&route.prefix).is_some(),
        is_on_tunnel: route.is_on_tunnel,
        is_better: route.is_better,
    };
    decisions.exports.insert((peer.remote, at), export);
    let refused = import(view, &intent.addresses, &peer.policy, &input).err();
    decisions.imports.insert((peer.remote, at), Import { refused, is_better: route.is_better });
}

/// Returns the kernel routes of learned prefixes, with and without a tunnel device, and with a gateway.
fn kernel(intent: &RoutingIntent) -> Vec<KernelRoute> {
    let mut routes = Vec::new();
    for prefix in PREFIXES {
        let prefix: Cidr = prefix.parse().unwrap();
        for next_hop in NEXT_HOPS {
            let next_hop: IpAddr = next_hop.parse().unwrap();
            if next_hop.is_ipv4() != prefix.is_v4() {
                continue;
            }
            for (tunnel, gateway) in [(true, false), (false, false), (true, true)] {
                let gateway = gateway.then(|| "192.0.2.253".parse().unwrap());
                let resolve = |_| Some(Resolved { ifindex: 2, gateway, metric: 0 });
                routes.push(kernel_route(&intent.view, prefix, &[next_hop.into()], resolve, tunnel));
            }
        }
    }
    routes
}
