//! Random clusters of Calico 3: nodes, pools, blocks, workloads, BGP configuration, peers and filters. Each is
//! determined by its seed.

use serde_json::{Map, Value, json};

use super::objects::Objects;
use super::rules;

/// A generator of random numbers (SplitMix64), the same on all machines.
#[derive(Debug, Clone)]
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5bf0_3635)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `end`.
    pub(super) fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(end).unwrap()).unwrap()
    }

    /// Returns true in so many of a hundred cases.
    pub(super) fn percent(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub(super) fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }
}

/// Last parts of the nodes' addresses. As text they have another order than as numbers.
const V4: [&str; 5] = ["9", "10", "101", "20", "7"];
const V6: [&str; 5] = ["9", "10", "a", "101", "7"];
/// Routers outside of the cluster: address, AS (0: that of the cluster).
pub(super) const ROUTERS: [(&str, u32); 4] = [
    ("198.51.100.200", 65200),
    ("2001:db8:51::200", 65200),
    ("198.51.100.31", 0),
    ("2001:db8:51::31", 4_200_000_031),
];
/// Selectors over the labels of nodes, see [`matches`].
const SELECTORS: [&str; 7] = [
    "all()",
    "has(rr)",
    "!has(rr)",
    "rack == 'a'",
    "rack != 'a'",
    "name in {'n1', 'n3'}",
    "rack == 'a' && !has(rr)",
];
/// Durations with their values in seconds, rounded as Calico rounds them.
pub(super) const DURATIONS: [(&str, u64); 5] =
    [("90s", 90), ("1m30s", 90), ("2m0s", 120), ("44.6s", 45), ("5m0s", 300)];
/// Name and member of the secret with the password.
pub(super) const SECRET: (&str, &str) = ("bgp", "key");

/// Returns true if a node with these labels matches one of [`SELECTORS`].
pub(super) fn matches(selector: &str, label: impl Fn(&str) -> Option<String>) -> bool {
    let rack = label("rack");
    let (in_a, rr) = (rack.as_deref() == Some("a"), label("rr").is_some());
    match selector {
        "all()" => true,
        "has(rr)" => rr,
        "!has(rr)" => !rr,
        "rack == 'a'" => in_a,
        "rack != 'a'" => !in_a,
        "name in {'n1', 'n3'}" => matches!(label("name").as_deref(), Some("n1" | "n3")),
        "rack == 'a' && !has(rr)" => in_a && !rr,
        other => panic!("{other}"),
    }
}

/// A cluster under construction.
struct Builder {
    dice: Dice,
    objects: Objects,
    nodes: Vec<GeneratedNode>,
}

struct GeneratedNode {
    name: String,
    v4: Option<String>,
    v6: Option<String>,
}

/// Returns the cluster of a seed.
pub(super) fn cluster(seed: u64) -> Objects {
    let mut builder = Builder { dice: Dice::new(seed), objects: Objects::default(), nodes: Vec::new() };
    builder.objects.add(
        "clusterinformations",
        "default",
        json!({}),
        json!({ "clusterGUID": "6f5d1e6a0001", "datastoreReady": true }),
    );
    builder.nodes();
    builder.pools();
    builder.blocks();
    builder.workloads();
    builder.configuration();
    for name in ["in", "out", "z.both"] {
        let spec = rules::filter(&mut builder.dice);
        builder.objects.add("bgpfilters", name, json!({}), spec);
    }
    builder.peers();
    builder.objects
}

impl Builder {
    fn nodes(&mut self) {
        let count = 2 + self.dice.below(4);
        let reflects = self.dice.percent(45);
        for at in 0..count {
            let name = format!("n{}", at + 1);
            let (v4, v6) = match self.dice.below(10) {
                0..5 => (true, true),
                5..8 => (true, false),
                8 => (false, true),
                _ => (at < 2, false),
            };
            let v4 = v4.then(|| format!("198.51.100.{}", V4[at]));
            let v6 = v6.then(|| format!("2001:db8:51::{}", V6[at]));
            let reflector = reflects && self.dice.percent(40);
            let mut labels = json!({ "name": name, "rack": self.dice.pick(&["a", "b"]) });
            let mut bgp = Map::new();
            if let Some(addr) = &v4 {
                let length = if self.dice.percent(8) { "" } else { "/24" };
                bgp.insert("ipv4Address".into(), format!("{addr}{length}").into());
            }
            if let Some(addr) = &v6 {
                bgp.insert("ipv6Address".into(), format!("{addr}/64").into());
            }
            if self.dice.percent(25) {
                let own =
                    [json!(65001 + at), json!(format!("{}", 65001 + at)), json!(format!("1.{}", at + 1))];
                bgp.insert("asNumber".into(), self.dice.pick(&own).clone());
            }
            if reflector {
                labels["rr"] = json!("");
                bgp.insert(
                    "routeReflectorClusterID".into(),
                    json!(self.dice.pick(&["244.0.0.1", "244.0.0.2"])),
                );
            }
            if self.dice.percent(12) {
                labels["node.kubernetes.io/exclude-from-external-load-balancers"] = json!("true");
            }
            let spec = if bgp.is_empty() { json!({}) } else { json!({ "bgp": bgp }) };
            self.objects.add("nodes", &name, labels, spec);
            self.nodes.push(GeneratedNode { name, v4, v6 });
        }
    }

    fn pools(&mut self) {
        for (at, cidr) in ["10.65.0.0/16", "10.66.0.0/16", "10.67.0.0/18", "fd00:65::/48", "fd00:66::/48"]
            .iter()
            .enumerate()
        {
            if !matches!(at, 0 | 3) && self.dice.percent(40) {
                continue;
            }
            let mut spec = json!({ "cidr": cidr });
            let modes = ["Never", "Always", "CrossSubnet"];
            match self.dice.below(4) {
                0 if !cidr.contains(':') => spec["ipipMode"] = json!(self.dice.pick(&modes)),
                1 => spec["vxlanMode"] = json!(self.dice.pick(&modes)),
                _ => {}
            }
            spec["natOutgoing"] = json!(self.dice.percent(50));
            if self.dice.percent(15) {
                spec["disabled"] = json!(true);
            }
            if self.dice.percent(15) {
                spec["disableBGPExport"] = json!(true);
            }
            self.objects.add("ippools", &format!("pool-{at}"), json!({}), spec);
        }
        if self.dice.percent(20) {
            let spec = json!({ "cidr": "10.200.0.0/24", "allowedUses": ["LoadBalancer"] });
            self.objects.add("ippools", "pool-lb", json!({}), spec);
        }
    }

    fn block(&mut self, node: &str, cidr: &str, state: Value) {
        let (net, length) = cidr.split_once('/').unwrap();
        let (family, addresses) = match cidr.contains(':') {
            true => ("ipv6", 1_usize << (128 - length.parse::<u32>().unwrap())),
            false => ("ipv4", 1_usize << (32 - length.parse::<u32>().unwrap())),
        };
        let text = format!("{}-{length}", net);
        let free: Vec<usize> = (0..addresses).collect();
        let value = json!({
            "cidr": cidr, "affinity": format!("host:{node}"), "allocations": vec![Value::Null; addresses],
            "unallocated": free, "attributes": [], "deleted": false, "sequenceNumber": 1,
            "sequenceNumberForAllocation": {}, "strictAffinity": false,
        });
        self.objects.0.insert(format!("/calico/ipam/v2/assignment/{family}/block/{text}"), value);
        self.objects.0.insert(format!("/calico/ipam/v2/host/{node}/{family}/block/{text}"), state);
    }

    fn blocks(&mut self) {
        for at in 0..self.nodes.len() {
            let (v4, v6) = (self.nodes[at].v4.is_some(), self.nodes[at].v6.is_some());
            let node = self.nodes[at].name.clone();
            let n = at + 1;
            let mut blocks = vec![(v4, format!("10.65.{n}.0/26")), (v6, format!("fd00:65:0:{n}::/122"))];
            let more = [
                (v4, format!("10.66.{n}.64/26")),
                (v4, format!("10.67.9.{n}/32")),
                (v6, format!("fd00:66:0:{n}::/122")),
            ];
            for block in more {
                if self.dice.percent(35) {
                    blocks.push(block);
                }
            }
            for (there, cidr) in blocks {
                if !there {
                    continue;
                }
                let state = match self.dice.below(20) {
                    0 => json!({ "state": "pending" }),
                    1 => json!({ "state": "pendingDeletion" }),
                    2 => json!({}),
                    _ => json!({ "state": "confirmed" }),
                };
                self.block(&node, &cidr, state);
            }
        }
    }

    fn workloads(&mut self) {
        for at in 0..self.nodes.len() {
            let (n, node) = (at + 1, self.nodes[at].name.clone());
            let other = if n == 1 { 2 } else { 1 };
            let addresses = [
                (true, format!("10.65.{n}.5"), 70),
                (true, format!("10.65.{other}.{}", 40 + n), 40),
                (true, format!("10.65.200.{n}"), 40),
                (true, format!("172.31.0.{n}"), 30),
                (false, format!("fd00:65:0:{n}::5"), 60),
                (false, format!("fd00:65:0:{other}::2{n}"), 40),
                (false, format!("fd00:77::{n}"), 30),
            ];
            for (index, (v4, addr, percent)) in addresses.into_iter().enumerate() {
                let there = if v4 { &self.nodes[at].v4 } else { &self.nodes[at].v6 };
                if there.is_none() || !self.dice.percent(percent) {
                    continue;
                }
                let length = if v4 { 32 } else { 128 };
                let interface = format!("cali{n}x{index}");
                let name = format!("default/{node}-cni-w{index}-eth0");
                let spec = json!({
                    "orchestrator": "cni", "node": node, "containerID": format!("w{index}"), "endpoint": "eth0",
                    "interfaceName": interface, "ipNetworks": [format!("{addr}/{length}")],
                    "profiles": ["projectcalico-default-allow"],
                });
                let labels = json!({
                    "projectcalico.org/namespace": "default", "projectcalico.org/orchestrator": "cni",
                });
                self.objects.add("workloadendpoints", &name, labels, spec);
            }
        }
    }

    fn advertisements(&mut self) -> (Value, Value) {
        let communities = json!([
            { "name": "blue", "value": "64512:100" }, { "name": "large", "value": "64512:1:2" },
        ]);
        let cidrs =
            ["10.65.0.0/16", "10.65.1.0/26", "10.0.0.0/8", "fd00:65::/48", "10.96.0.0/16", "fd00::/8"];
        let values =
            [json!(["blue"]), json!(["large", "64512:7"]), json!(["unknown", "1:2:3"]), json!(["64512:9"])];
        let mut all = Vec::new();
        for _ in 0..=self.dice.below(3) {
            all.push(json!({ "cidr": self.dice.pick(&cidrs), "communities": self.dice.pick(&values) }));
        }
        (communities, json!(all))
    }

    fn configuration(&mut self) {
        let mut spec = Map::new();
        let mut set = |member: &str, value: Value| drop(spec.insert(member.to_owned(), value));
        let dice = &mut self.dice;
        let mesh = !dice.percent(40);
        if !mesh || dice.percent(50) {
            set("nodeToNodeMeshEnabled", json!(mesh));
        }
        if dice.percent(40) {
            set("asNumber", dice.pick(&[json!(64999), json!("64999"), json!("1.100")]).clone());
        }
        if dice.percent(40) {
            set("listenPort", json!(1790));
        }
        if dice.percent(30) {
            set("bindMode", json!("NodeIP"));
        }
        if mesh && dice.percent(15) {
            set("nodeMeshPassword", json!({ "secretKeyRef": { "name": SECRET.0, "key": SECRET.1 } }));
        }
        if dice.percent(30) {
            set("nodeMeshMaxRestartTime", json!(dice.pick(&DURATIONS).0));
        }
        if dice.percent(40) {
            set("serviceClusterIPs", json!([{ "cidr": "10.96.0.0/16" }, { "cidr": "fd00:96::/108" }]));
        }
        if dice.percent(35) {
            set("serviceExternalIPs", json!([{ "cidr": "203.0.113.0/28" }, { "cidr": "203.0.113.77/32" }]));
        }
        if dice.percent(35) {
            set("serviceLoadBalancerIPs", json!([{ "cidr": "10.200.0.0/24" }, { "cidr": "fd00:200::/64" }]));
        }
        if dice.percent(30) {
            set("serviceLoadBalancerAggregation", json!(dice.pick(&["Enabled", "Disabled"])));
        }
        if dice.percent(20) {
            set("ignoredInterfaces", json!(["eth9", "docker*"]));
        }
        if dice.percent(15) {
            set("ipv4NormalRoutePriority", json!(2000));
        }
        if dice.percent(25) {
            let modes = ["Enabled", "Disabled", "EnabledIPIPOnly", "EnabledNoEncapOnly"];
            set("programClusterRoutes", json!(dice.pick(&modes)));
        }
        if dice.percent(20) {
            set("logSeverityScreen", json!("Debug"));
        }
        let spec = if self.dice.percent(45) {
            let (communities, all) = self.advertisements();
            spec.insert("communities".into(), communities);
            spec.insert("prefixAdvertisements".into(), all);
            spec
        } else {
            spec
        };
        if self.dice.percent(85) {
            self.objects.add("bgpconfigurations", "default", json!({}), spec.into());
        }
        for at in 0..self.nodes.len() {
            let name = format!("node.{}", self.nodes[at].name);
            let mut spec = Map::new();
            if self.dice.percent(20) {
                spec.insert("listenPort".into(), json!(1791 + at));
            }
            if self.dice.percent(15) {
                let (communities, all) = self.advertisements();
                spec.insert("communities".into(), communities);
                spec.insert("prefixAdvertisements".into(), all);
            }
            if !spec.is_empty() {
                self.objects.add("bgpconfigurations", &name, json!({}), spec.into());
            }
        }
    }

    /// Chooses the local side of a peering.
    fn side(&mut self, spec: &mut Map<String, Value>) {
        match self.dice.below(4) {
            0 => {}
            1 => {
                let names: Vec<&str> = self.nodes.iter().map(|node| node.name.as_str()).collect();
                let name = self.dice.pick(&names);
                spec.insert("node".into(), json!(name));
            }
            _ => {
                let selector = self.dice.pick(&SELECTORS);
                spec.insert("nodeSelector".into(), json!(selector));
            }
        }
    }

    fn peers(&mut self) {
        let names = ["a-peer", "m.peer", "rr", "tor-1", "tor-2", "z"];
        for name in names.iter().take(1 + self.dice.below(names.len())) {
            let mut spec = Map::new();
            self.side(&mut spec);
            let by_address = match self.dice.below(10) {
                0..4 => {
                    let (addr, asn) = *self.dice.pick(&ROUTERS);
                    let port = *self.dice.pick(&[Some("1799"), Some("0x708"), None, None, None, None, None]);
                    self.address(&mut spec, addr, port, asn);
                    true
                }
                4..6 => {
                    let at = self.dice.below(self.nodes.len());
                    let node = &self.nodes[at];
                    let addrs: Vec<String> = [&node.v4, &node.v6].into_iter().flatten().cloned().collect();
                    if addrs.is_empty() {
                        continue;
                    }
                    let addr = self.dice.pick(&addrs).clone();
                    let port = *self.dice.pick(&[None, None, None, Some("1790"), Some("179")]);
                    let asn = *self.dice.pick(&[0, 64512, 65001]);
                    self.address(&mut spec, &addr, port, asn);
                    true
                }
                _ => {
                    let selector = self.dice.pick(&SELECTORS);
                    spec.insert("peerSelector".into(), json!(selector));
                    false
                }
            };
            self.options(&mut spec, by_address);
            self.objects.add("bgppeers", name, json!({}), spec.into());
        }
    }

    fn address(&mut self, spec: &mut Map<String, Value>, addr: &str, port: Option<&str>, asn: u32) {
        let peer = match port {
            Some(port) if addr.contains(':') => format!("[{addr}]:{port}"),
            Some(port) => format!("{addr}:{port}"),
            None => addr.to_owned(),
        };
        spec.insert("peerIP".into(), json!(peer));
        let asn = if asn == 0 { 64512 } else { asn };
        if !self.dice.percent(4) {
            let text = if self.dice.percent(20) { json!(asn.to_string()) } else { json!(asn) };
            spec.insert("asNumber".into(), text);
        }
    }

    fn options(&mut self, spec: &mut Map<String, Value>, by_address: bool) {
        let dice = &mut self.dice;
        let mut set = |member: &str, value: Value| drop(spec.insert(member.to_owned(), value));
        if by_address && dice.percent(15) {
            set("localASNumber", json!(65077));
        }
        match dice.below(8) {
            0 => set("keepOriginalNextHop", json!(true)),
            1 | 2 => set("nextHopMode", json!(dice.pick(&["Auto", "Self", "Keep"]))),
            _ => {}
        }
        if dice.percent(8) {
            set("password", json!({ "secretKeyRef": { "name": SECRET.0, "key": SECRET.1 } }));
        }
        if dice.percent(25) {
            set("sourceAddress", json!(dice.pick(&["UseNodeIP", "None"])));
        }
        if dice.percent(25) {
            set("maxRestartTime", json!(dice.pick(&DURATIONS).0));
        }
        if dice.percent(15) {
            set("keepaliveTime", json!("20s"));
        }
        if dice.percent(20) {
            set("numAllowedLocalASNumbers", json!(dice.below(3)));
        }
        if dice.percent(15) {
            set("ttlSecurity", json!(dice.below(4)));
        }
        if by_address && dice.percent(10) {
            // A gateway of the other family leaves the peer out.
            set("reachableBy", json!(dice.pick(&["198.51.100.1", "198.51.100.1", "2001:db8:51::1"])));
        }
        if dice.percent(20) {
            set("reversePeering", json!(dice.pick(&["Auto", "Manual"])));
        }
        if dice.percent(45) {
            let lists = [
                json!(["in"]),
                json!(["out"]),
                json!(["out", "in", "ghost"]),
                json!(["z.both"]),
                json!(["ghost", "z.both", "out"]),
            ];
            set("filters", dice.pick(&lists).clone());
        }
    }
}
