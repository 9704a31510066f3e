//! Random rulesets and packets for tests, with few names and addresses, so that they often refer to each
//! other.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use tortie_config::Dialect;
use tortie_config::key::{EndpointKey, IpFamily};
use tortie_config::resource::{Action, EndAction, Failsafe, HostAction, Icmp, PortName, PortRange, Protocol};
use tortie_net::Cidr;

use crate::nft::simulate::interpret::{self, Conn};
use tortie_engine::policy::{
    ALL_INTERFACES, Chain, ChainId, Direction, End, EndpointPolicy, FailClosed, Globals, HostInterfaces,
    HostPolicy, HostServices, LogPrefix, NamedPort, Packet, PortSetId, Rule, Ruleset, RulesetDelta,
    SetChange, SetId, Source, Stages, Tier, VxlanRules, WorkloadPolicy,
};

const SETS: [&str; 4] = ["a == '1'", "has(b)", "c != '2'", "all()"];

const NETS: [&str; 16] = [
    "10.0.0.1/32",
    "10.0.0.2/32",
    "10.0.0.3/32",
    "10.0.0.4/32",
    "10.0.0.5/32",
    "10.0.0.6/32",
    "10.0.0.4/31",
    "10.0.0.4/30",
    "10.0.0.0/30",
    "10.0.0.0/8",
    "0.0.0.0/0",
    "fd00::1/128",
    "fd00::2/128",
    "fd00::3/128",
    "fd00::2/127",
    "fd00::/64",
];

const ADDRS: [&str; 16] = [
    "10.0.0.1",
    "10.0.0.2",
    "10.0.0.3",
    "10.0.0.4",
    "10.0.0.5",
    "10.0.0.6",
    "10.0.1.7",
    "127.0.0.1",
    "192.0.2.1",
    "192.0.2.9",
    "fd00::1",
    "fd00::2",
    "fd00::3",
    "fd00::9",
    "2001:db8::9",
    "fe80::1",
];

/// The host's own addresses.
pub(in crate::nft) fn local() -> BTreeSet<IpAddr> {
    ["192.0.2.1", "10.0.0.6", "fd00::9"].iter().map(|addr| addr.parse().unwrap()).collect()
}

pub(in crate::nft) const INTERFACES: [&str; 6] = ["cali1", "cali2", "cali3", "eth0", "eth1", "tunl0"];

fn net(text: &str) -> Cidr {
    text.parse().unwrap()
}

pub(in crate::nft) fn set_id(at: usize) -> SetId {
    SetId::of(&SETS[at].parse().unwrap())
}

/// IDs of chains: policies of two tiers, untracked ones, a pre-DNAT one, profiles.
fn policies(direction: Direction, tier: &str, names: &[&str]) -> Vec<ChainId> {
    let id = |name: &&str| ChainId { source: Source::policy(Dialect::V1, tier, name), direction };
    names.iter().map(id).collect()
}

fn profiles(direction: Direction) -> Vec<ChainId> {
    ["p", "q"].map(|name| ChainId { source: Source::Profile(name.into()), direction }).to_vec()
}

pub(in crate::nft) fn all_chains() -> Vec<ChainId> {
    let of = |direction| {
        let mut ids = policies(direction, "default", &["a", "b", "c", "untracked", "raw", "nat"]);
        ids.extend(policies(direction, "other", &["d", "e", "early", "nat"]));
        ids.extend(profiles(direction));
        ids
    };
    [of(Direction::Inbound), of(Direction::Outbound)].concat()
}

fn nets(most: usize) -> impl Strategy<Value = Vec<Cidr>> {
    vec(select(&NETS[..]).prop_map(net), 0..=most)
}

fn few_nets() -> impl Strategy<Value = Vec<Cidr>> {
    prop_oneof![5 => Just(Vec::new()), 1 => nets(3)]
}

fn ports() -> impl Strategy<Value = Vec<PortRange>> {
    let range = (1u16..8, 0u16..4).prop_map(|(first, more)| PortRange::new(first, first + more).unwrap());
    prop_oneof![3 => Just(Vec::new()), 1 => vec(range, 1..4)]
}

const PORT_NAMES: [&str; 2] = ["http", "dns"];

fn port_names(one_in: u32) -> impl Strategy<Value = Vec<PortName>> {
    let names = subsequence(PORT_NAMES.to_vec(), 1..=2);
    let names = names.prop_map(|names| names.into_iter().map(|name| name.parse().unwrap()).collect());
    prop_oneof![one_in => Just(Vec::new()), 1 => names]
}

/// Named ports of endpoints, with the positions of their names.
fn named_ports() -> impl Strategy<Value = Vec<(usize, NamedPort)>> {
    let addr = select(&ADDRS[..]).prop_map(|addr| addr.parse::<IpAddr>().unwrap());
    let port = (addr, 1u16..8).prop_map(|(addr, port)| NamedPort { addr, port });
    vec((0..PORT_NAMES.len(), port), 0..8)
}

/// Adds named ports to a rule: with their protocol, or excluded ones of TCP without a protocol.
fn add_named_ports(rule: &mut Rule, names: [&Vec<PortName>; 4]) {
    let of = |names: &[PortName]| PortSetId::new(rule.protocol.or(Protocol::new(6))?, names);
    let [src, not_src, dst, not_dst] = names.map(|names| of(names));
    let has_ports = rule.protocol.is_some_and(Protocol::has_ports);
    if has_ports {
        (rule.src.named_ports, rule.dst.named_ports) = (src, dst);
    }
    if has_ports || rule.protocol.is_none() {
        (rule.src.not_named_ports, rule.dst.not_named_ports) = (not_src, not_dst);
    }
}

fn end(ports_too: bool) -> impl Strategy<Value = End> {
    let set =
        |weight| prop_oneof![weight => Just(Vec::new()), 1 => vec((0..SETS.len()).prop_map(set_id), 1..3)];
    let ports = move || if ports_too { ports().boxed() } else { Just(Vec::new()).boxed() };
    (set(5), set(6), few_nets(), few_nets(), ports(), ports()).prop_map(
        |(sets, not_sets, nets, not_nets, ports, not_ports)| End {
            sets,
            not_sets,
            nets,
            not_nets,
            ports,
            named_ports: None,
            not_ports,
            not_named_ports: None,
        },
    )
}

/// A rule that the store can express: ports only with a protocol that has them, ICMP types only with ICMP.
pub(in crate::nft) fn rule() -> impl Strategy<Value = Rule> {
    let action = select(vec![Action::Allow, Action::Deny, Action::NextTier, Action::Log]);
    let protocol = || {
        select(vec![
            None,
            None,
            None,
            None,
            Some(6),
            Some(6),
            Some(17),
            Some(1),
            Some(58),
            Some(132),
            Some(47),
        ])
    };
    let icmp = || {
        option::weighted(
            0.4,
            (0u8..3, option::of(0u8..2)).prop_map(|(of, code)| Icmp::new(of, code).unwrap()),
        )
    };
    let log = option::weighted(0.3, select(vec!["x", "web: tier"]).prop_map(LogPrefix::new));
    let family = option::weighted(0.2, select(vec![IpFamily::V4, IpFamily::V6]));
    (action, log, family, protocol(), protocol(), icmp(), icmp()).prop_flat_map(
        |(action, log, family, protocol, not_protocol, icmp, not_icmp)| {
            let protocol = protocol.and_then(Protocol::new);
            let has_ports = protocol.is_some_and(Protocol::has_ports);
            let is_icmp = protocol.is_some_and(Protocol::is_icmp);
            let names = (port_names(4), port_names(9), port_names(4), port_names(9));
            (end(has_ports), end(has_ports), names).prop_map(move |(src, dst, names)| {
                let mut rule = Rule {
                    action,
                    log: log.clone(),
                    family,
                    protocol,
                    not_protocol: not_protocol.and_then(Protocol::new),
                    src,
                    dst,
                    icmp: icmp.filter(|_| is_icmp),
                    not_icmp: not_icmp.filter(|_| is_icmp),
                };
                add_named_ports(&mut rule, [&names.0, &names.1, &names.2, &names.3]);
                rule
            })
        },
    )
}

pub(in crate::nft) fn chain() -> impl Strategy<Value = Chain> {
    let fail_closed = select(vec![FailClosed::Missing, FailClosed::Unreadable]).prop_map(|why| Chain {
        rules: vec![Rule { action: Action::Deny, ..Rule::default() }],
        fail_closed: Some(why),
    });
    prop_oneof![12 => vec(rule(), 0..5).prop_map(|rules| Chain { rules, fail_closed: None }), 1 => fail_closed]
}

fn stages(direction: Direction) -> impl Strategy<Value = Stages> {
    let tier = move |name: &'static str, all: &[&str]| {
        let all = policies(direction, name, all);
        let most = all.len();
        let end = prop_oneof![3 => Just(EndAction::Deny), 1 => Just(EndAction::Pass)];
        (subsequence(all, 0..=most).prop_shuffle(), end).prop_map(move |(policies, end)| Tier {
            name: name.into(),
            policies,
            end,
        })
    };
    let profiles = subsequence(profiles(direction), 0..=2).prop_shuffle();
    (tier("other", &["d", "e"]), tier("default", &["a", "b", "c"]), profiles).prop_map(
        |(first, second, profiles)| {
            let tiers = [first, second].into_iter().filter(|tier| !tier.policies.is_empty()).collect();
            Stages { tiers, profiles }
        },
    )
}

fn workload() -> impl Strategy<Value = EndpointPolicy> {
    let addr = || select(&ADDRS[..]).prop_map(|addr| addr.parse::<IpAddr>().unwrap());
    let nats = vec((addr(), addr()), 0..4);
    let both = (stages(Direction::Inbound), stages(Direction::Outbound));
    let own = prop_oneof![3 => vec(select(&NETS[..6]).prop_map(net), 0..4), 1 => nets(4)];
    let spoofed = prop_oneof![3 => Just(Vec::new()), 1 => nets(2)];
    (select(&INTERFACES[..3]), prop::bool::weighted(0.85), (own, spoofed), nats, both).prop_map(
        |(interface, active, (nets, spoofed_sources), nats, (inbound, outbound))| {
            // The parser of the store's values drops others.
            let own = |int: &IpAddr| nets.iter().any(|net: &Cidr| net.contains(*int));
            let nats =
                nats.into_iter().filter(|(int, ext)| own(int) && int.is_ipv4() == ext.is_ipv4()).collect();
            EndpointPolicy::Workload(WorkloadPolicy {
                interface: interface.parse().unwrap(),
                active,
                nets,
                spoofed_sources,
                mac: None,
                nats,
                inbound,
                outbound,
            })
        },
    )
}

fn host() -> impl Strategy<Value = EndpointPolicy> {
    let early = |direction, names: &[&str], of_other: &str| {
        let mut all = policies(direction, "default", names);
        all.extend(policies(direction, "other", &[of_other]));
        let most = all.len();
        subsequence(all, 0..=most)
    };
    let untracked = &["untracked", "raw"];
    let early = (
        early(Direction::Inbound, untracked, "early"),
        early(Direction::Outbound, untracked, "early"),
        early(Direction::Inbound, &["nat"], "nat"),
    );
    let forward = (stages(Direction::Inbound), stages(Direction::Outbound));
    (stages(Direction::Inbound), stages(Direction::Outbound), forward, early).prop_map(
        |(inbound, outbound, forward, (untracked_inbound, untracked_outbound, pre_dnat))| {
            EndpointPolicy::Host(HostPolicy {
                interface: None,
                addrs: Vec::new(),
                inbound,
                outbound,
                forward_inbound: forward.0.tiers,
                forward_outbound: forward.1.tiers,
                untracked_inbound,
                untracked_outbound,
                pre_dnat,
            })
        },
    )
}

pub(in crate::nft) fn workload_key(at: usize) -> EndpointKey {
    EndpointKey::Workload {
        host: "h1".into(),
        orchestrator: "cni".into(),
        workload: format!("w{at}"),
        endpoint: "eth0".into(),
    }
}

pub(in crate::nft) fn host_key(at: usize) -> EndpointKey {
    EndpointKey::Host { host: "h1".into(), endpoint: format!("e{at}") }
}

fn hosts() -> impl Strategy<Value = HostInterfaces> {
    let key = || option::of((0usize..2).prop_map(host_key));
    (key(), key(), key(), key()).prop_map(|(first, second, tunnel, all)| {
        let all = [("eth0", first), ("eth1", second), ("tunl0", tunnel), (ALL_INTERFACES, all)];
        all.into_iter().filter_map(|(name, key)| Some((name.into(), key?))).collect()
    })
}

pub(in crate::nft) fn globals() -> impl Strategy<Value = Globals> {
    let failsafe = || {
        let nets = option::of(select(vec!["192.0.2.8/29", "10.0.0.0/24", "fd00::/64"]).prop_map(net));
        let port = (any::<bool>(), 1u16..6, nets).prop_map(|(udp, port, net)| Failsafe { udp, port, net });
        vec(port, 0..3)
    };
    let pools =
        || vec(select(vec!["10.0.0.0/30", "10.0.0.0/24", "10.0.0.4/30", "fd00::/64"]).prop_map(net), 0..3);
    let hosts =
        option::of(vec(select(vec!["192.0.2.9/32", "10.0.0.5/32", "10.0.0.4/30"]).prop_map(net), 0..3));
    let sources = vec(select(vec!["192.0.2.9/32", "10.0.0.0/30", "fd00::/120"]).prop_map(net), 0..3);
    // Ports that packets have: of the failsafe ports, and of DNS, which is a service of the host.
    let families = subsequence(vec![IpFamily::V4, IpFamily::V6], 1..=2);
    let vxlan = option::of((families, sources, select(vec![3, 53, 4789]), any::<bool>()).prop_map(
        |(families, hosts, port, from_workloads)| VxlanRules {
            families: families.into_iter().collect(),
            port,
            hosts: hosts.into_iter().collect(),
            addrs: [[10, 0, 0, 7].into(), "fd00::7".parse::<IpAddr>().unwrap()].into(),
            from_workloads,
        },
    ));
    let to_host = select(vec![HostAction::Drop, HostAction::Accept, HostAction::Return]);
    let flags = (any::<bool>(), prop::bool::weighted(0.8), any::<bool>());
    let mask = select(vec![0xff00_0000, 0x30, 0x5]);
    let dialect = select(vec![Dialect::V1, Dialect::V3]);
    let services =
        prop::option::of(prop::bool::ANY.prop_map(|metadata| HostServices {
            metadata: metadata.then_some(([10, 0, 0, 6].into(), 8775)),
        }));
    let mask = (mask, dialect, services);
    (to_host, failsafe(), failsafe(), (hosts, vxlan), (pools(), pools()), any::<bool>(), flags, mask)
        .prop_map(
            |(
                to_host,
                inbound,
                outbound,
                (ipip, vxlan),
                (pools, masquerade),
                tunnel,
                (drop_invalid, ipv6, first),
                (mark_mask, dialect, services),
            )| {
                Globals {
                    dialect,
                    interface_prefixes: vec!["cali".into(), "tap".into()],
                    to_host,
                    mark_mask,
                    failsafe_inbound: inbound,
                    failsafe_outbound: outbound,
                    ipip_hosts: ipip.map(|hosts| hosts.into_iter().collect()),
                    tunnel_addr: tunnel.then(|| [10, 0, 0, 6].into()),
                    vxlan,
                    services,
                    pools: pools.iter().chain(&masquerade).copied().collect(),
                    masquerade: masquerade.into_iter().collect(),
                    drop_invalid,
                    ipv6,
                    first,
                    set_size: 1 << 20,
                    ignore_loose_rpf: false,
                }
            },
        )
}

/// All sets, chains and endpoints of a test. Those that no endpoint uses are not in the ruleset.
#[derive(Debug, Clone)]
pub(in crate::nft) struct RandomRuleset {
    pub(in crate::nft) sets: Vec<BTreeSet<Cidr>>,
    /// Named ports of all endpoints, the same for all protocols.
    pub(in crate::nft) named_ports: Vec<(usize, NamedPort)>,
    pub(in crate::nft) chains: BTreeMap<ChainId, Arc<Chain>>,
    pub(in crate::nft) endpoints: BTreeMap<EndpointKey, Arc<EndpointPolicy>>,
    pub(in crate::nft) hosts: HostInterfaces,
    pub(in crate::nft) globals: Globals,
}

/// One change.
#[derive(Debug, Clone)]
pub(in crate::nft) enum RulesetStep {
    Set(usize, BTreeSet<Cidr>),
    NamedPorts(Vec<(usize, NamedPort)>),
    Chain(usize, Chain),
    Endpoint(EndpointKey, Option<Box<EndpointPolicy>>),
    Hosts(HostInterfaces),
    Globals(Box<Globals>),
}

fn members() -> impl Strategy<Value = BTreeSet<Cidr>> {
    nets(7).prop_map(|nets| nets.into_iter().collect())
}

pub(in crate::nft) fn step() -> impl Strategy<Value = RulesetStep> {
    let chains = all_chains().len();
    prop_oneof![
        4 => (0..SETS.len(), members()).prop_map(|(at, members)| RulesetStep::Set(at, members)),
        2 => named_ports().prop_map(RulesetStep::NamedPorts),
        4 => (0..chains, chain()).prop_map(|(at, chain)| RulesetStep::Chain(at, chain)),
        4 => (0usize..4, option::weighted(0.8, workload())).prop_map(|(at, w)| RulesetStep::Endpoint(workload_key(at), w.map(Box::new))),
        2 => (0usize..2, option::weighted(0.8, host())).prop_map(|(at, h)| RulesetStep::Endpoint(host_key(at), h.map(Box::new))),
        1 => hosts().prop_map(RulesetStep::Hosts),
        1 => globals().prop_map(|globals| RulesetStep::Globals(Box::new(globals))),
    ]
}

pub(in crate::nft) fn world() -> impl Strategy<Value = RandomRuleset> {
    let ids = all_chains();
    let endpoints = (vec(workload(), 1..5), vec(host(), 0..3));
    let sets = (vec(members(), SETS.len()), named_ports());
    (sets, vec(chain(), ids.len()), endpoints, hosts(), globals()).prop_map(
        move |((sets, named_ports), chains, (workloads, hosts_of), hosts, globals)| {
            let arcs = chains.into_iter().map(Arc::new);
            let workloads = workloads.into_iter().enumerate().map(|(at, w)| (workload_key(at), Arc::new(w)));
            let hosts_of = hosts_of.into_iter().enumerate().map(|(at, h)| (host_key(at), Arc::new(h)));
            RandomRuleset {
                sets,
                named_ports,
                chains: ids.iter().cloned().zip(arcs).collect(),
                endpoints: workloads.chain(hosts_of).collect(),
                hosts,
                globals,
            }
        },
    )
}

impl RandomRuleset {
    pub(in crate::nft) fn apply(&mut self, step: &RulesetStep) {
        match step {
            RulesetStep::Set(at, members) => self.sets[*at].clone_from(members),
            RulesetStep::NamedPorts(ports) => self.named_ports.clone_from(ports),
            RulesetStep::Chain(at, chain) => {
                self.chains.insert(all_chains()[*at].clone(), Arc::new(chain.clone()));
            }
            RulesetStep::Endpoint(key, Some(policy)) => {
                self.endpoints.insert(key.clone(), Arc::new((**policy).clone()));
            }
            RulesetStep::Endpoint(key, None) => {
                self.endpoints.remove(key);
            }
            RulesetStep::Hosts(hosts) => self.hosts.clone_from(hosts),
            RulesetStep::Globals(globals) => self.globals = (**globals).clone(),
        }
    }

    /// Returns the ruleset: endpoints, the chains that they use, the sets that these use.
    pub(in crate::nft) fn ruleset(&self) -> Ruleset {
        let mut ruleset = Ruleset { endpoints: self.endpoints.clone(), ..Ruleset::default() };
        for id in self.endpoints.values().flat_map(|endpoint| endpoint.chains()) {
            ruleset.chains.insert(id.clone(), Arc::clone(&self.chains[id]));
        }
        for rule in ruleset.chains.values().flat_map(|chain| &chain.rules) {
            for id in [&rule.src, &rule.dst].iter().flat_map(|end| end.sets.iter().chain(&end.not_sets)) {
                let at = (0..SETS.len()).find(|at| set_id(*at) == *id).unwrap();
                ruleset.sets.insert(id.clone(), self.sets[at].iter().copied().collect());
            }
            for end in [&rule.src, &rule.dst] {
                for id in [&end.named_ports, &end.not_named_ports].into_iter().flatten() {
                    let is_of = |at: usize| id.names().iter().any(|name| name.as_str() == PORT_NAMES[at]);
                    let members = self.named_ports.iter().filter(|(at, _)| is_of(*at));
                    ruleset.port_sets.insert(id.clone(), members.map(|(_, port)| *port).collect());
                }
            }
        }
        ruleset
    }
}

fn set_changes<I: Ord + Clone, M: Ord + Copy>(
    before: &BTreeMap<I, BTreeSet<M>>,
    now: &BTreeMap<I, BTreeSet<M>>,
) -> BTreeMap<I, SetChange<M>> {
    let mut changes = BTreeMap::new();
    for (id, members) in now {
        let change = match before.get(id) {
            None => SetChange::New(members.clone()),
            Some(old) if old == members => continue,
            Some(old) => SetChange::Members {
                add: members.difference(old).copied().collect(),
                remove: old.difference(members).copied().collect(),
            },
        };
        changes.insert(id.clone(), change);
    }
    let gone = before.keys().filter(|id| !now.contains_key(*id));
    changes.extend(gone.map(|id| (id.clone(), SetChange::Gone)));
    changes
}

/// Returns the delta from one ruleset to another.
pub(in crate::nft) fn difference(before: &Ruleset, now: &Ruleset) -> RulesetDelta {
    let mut delta = RulesetDelta {
        sets: set_changes(&before.sets, &now.sets),
        port_sets: set_changes(&before.port_sets, &now.port_sets),
        ..RulesetDelta::default()
    };
    for id in before.chains.keys().chain(now.chains.keys()) {
        if before.chains.get(id) != now.chains.get(id) {
            delta.chains.insert(id.clone(), now.chains.get(id).cloned());
        }
    }
    for key in before.endpoints.keys().chain(now.endpoints.keys()) {
        if before.endpoints.get(key) != now.endpoints.get(key) {
            delta.endpoints.insert(key.clone(), now.endpoints.get(key).cloned());
        }
    }
    delta
}

/// A packet of one family.
pub(in crate::nft) fn packet() -> impl Strategy<Value = Packet> {
    let of = |v4: bool| -> Vec<IpAddr> {
        ADDRS.iter().map(|addr| addr.parse::<IpAddr>().unwrap()).filter(|addr| addr.is_ipv4() == v4).collect()
    };
    let endpoint_maps = prop_oneof![2 => Just(true), 1 => Just(false)]
        .prop_flat_map(move |v4| (select(of(v4)), select(of(v4))));
    let protocol = select(vec![6u8, 6, 17, 1, 58, 132, 47, 4]);
    let any = (endpoint_maps.clone(), protocol, 0u16..10, 0u16..10, 0u8..4, 0u8..3).prop_map(
        |((src, dst), protocol, from, to, of, code)| {
            let ports = matches!(protocol, 6 | 17 | 132).then_some((from, to));
            let icmp = matches!(protocol, 1 | 58).then_some((of, code));
            Packet { src, dst, protocol, ports, icmp }
        },
    );
    prop_oneof![8 => any, 1 => endpoint_maps.prop_flat_map(|(src, dst)| to_services(src, dst))]
}

/// A packet for a service of the host to its workloads, or nearly.
fn to_services(src: IpAddr, dst: IpAddr) -> impl Strategy<Value = Packet> {
    let (nobody, metadata) = (IpAddr::from([0, 0, 0, 0]), IpAddr::from([169, 254, 169, 254]));
    let src = select(if src.is_ipv4() { vec![src, nobody] } else { vec![src] });
    let dst = select(if dst.is_ipv4() { vec![dst, metadata, [10, 0, 0, 6].into()] } else { vec![dst] });
    let ports = select(vec![(68, 67), (546, 547), (5, 53), (5, 80), (5, 8775), (67, 68)]);
    (src, dst, select(vec![6u8, 17]), ports).prop_map(|(src, dst, protocol, ports)| Packet {
        src,
        dst,
        protocol,
        ports: Some(ports),
        icmp: None,
    })
}

/// The same packet for the interpreter.
pub(in crate::nft) fn sent(packet: &Packet, input: Option<&str>, state: Conn) -> interpret::Packet {
    let Packet { src, dst, protocol, ports, icmp } = *packet;
    interpret::Packet { src, dst, protocol, ports, icmp, input: input.map(Into::into), state, mark: 0 }
}
