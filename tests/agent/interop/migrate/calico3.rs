//! What Calico 3 has on a host of the lab: its objects in the store, and the devices, entries, routes, rules and
//! sets that its Felix writes. The routes are those of Felix as of 3.33, which programs all pools but those
//! without encapsulation.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

/// Encapsulation of the IPv4 pool. The IPv6 pool has none, so that BIRD and Felix share the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Network {
    /// VXLAN between all hosts.
    Vxlan,
    /// VXLAN between subnets: none between the hosts of the lab.
    VxlanCrossSubnet,
    /// IPIP between all hosts.
    Ipip,
    /// No encapsulation: BIRD programs the pool.
    Plain,
}

const OBJECTS: &str = "/calico/resources/v3/projectcalico.org";
/// Number of addresses of a block.
const BLOCK: usize = 64;
/// Shell line that makes `tunl0`. Where the kernel has no ipip, a device over the same link stands in for it: its
/// packets are not encapsulated, and otherwise take the same way.
pub(super) const TUNNEL_DEVICE: &str = "ip link show tunl0 > /dev/null 2>&1 || ip link add tunl0 type ipip 2> /dev/null || ip link add link eth1 name tunl0 type macvlan mode bridge";
/// Ordinal of the tunnel address in the block of a host.
const TUNNEL: usize = 10;

impl Network {
    pub(super) fn is_vxlan(self) -> bool {
        matches!(self, Self::Vxlan | Self::VxlanCrossSubnet)
    }

    /// True if Felix programs the routes of the IPv4 pool.
    pub(super) fn is_felix(self) -> bool {
        self != Self::Plain
    }

    /// Returns the store of the lab.
    pub(super) fn store(self) -> String {
        let mut all = Map::new();
        let mut put = |key: String, value: Value| drop(all.insert(key, Value::String(value.to_string())));
        let object = |kind: &str, name: &str, namespace: Option<&str>, spec: Value| {
            let mut metadata = json!({
                "name": name, "uid": format!("{kind}-{name}"), "creationTimestamp": "2026-01-02T03:04:05Z",
            });
            if let Some(namespace) = namespace {
                metadata["namespace"] = json!(namespace);
            }
            json!({ "kind": kind, "apiVersion": "projectcalico.org/v3", "metadata": metadata, "spec": spec })
        };
        let modes = match self {
            Self::Vxlan => ("Never", "Always"),
            Self::VxlanCrossSubnet => ("Never", "CrossSubnet"),
            Self::Ipip => ("Always", "Never"),
            Self::Plain => ("Never", "Never"),
        };
        let pool = |cidr: &str, (ipip, vxlan): (&str, &str), nat: bool, size: u8| {
            json!({ "cidr": cidr, "ipipMode": ipip, "vxlanMode": vxlan, "natOutgoing": nat, "blockSize": size,
                    "nodeSelector": "all()", "allowedUses": ["Workload", "Tunnel"] })
        };
        for (kind, plural, name, spec) in [
            ("ClusterInformation", "clusterinformations", "default", json!({ "datastoreReady": true })),
            ("BGPConfiguration", "bgpconfigurations", "default", json!({ "asNumber": 64_512 })),
            ("FelixConfiguration", "felixconfigurations", "default", json!({ "logSeverityScreen": "Info" })),
            ("IPPool", "ippools", "default", pool("10.244.0.0/16", modes, true, 26)),
            ("IPPool", "ippools", "six", pool("fd00:10:244::/48", ("Never", "Never"), false, 122)),
            (
                "Profile",
                "profiles",
                "lab",
                json!({ "ingress": [{ "action": "Allow" }], "egress": [{ "action": "Allow" }] }),
            ),
        ] {
            put(format!("{OBJECTS}/{plural}/{name}"), object(kind, name, None, spec));
        }
        for n in 1..=3 {
            let host = format!("host{n}");
            let mut spec = json!({
                "bgp": { "ipv4Address": format!("172.30.0.{n}/24"), "ipv6Address": format!("fd00:172:30::{n}/64") },
            });
            if self.is_vxlan() {
                spec["ipv4VXLANTunnelAddr"] = json!(tunnel(n));
                spec["vxlanTunnelMACAddr"] = json!(mac(n));
            } else if self == Self::Ipip {
                spec["bgp"]["ipv4IPIPTunnelAddr"] = json!(tunnel(n));
            }
            put(format!("{OBJECTS}/nodes/{host}"), object("Node", &host, None, spec));
            let name = format!("{host}-cni-web{n}-eth1");
            let endpoint = json!({
                "orchestrator": "cni", "node": host, "containerID": format!("web{n}"), "endpoint": "eth1",
                "interfaceName": "cali1", "profiles": ["lab"],
                "ipNetworks": [format!("10.244.{n}.1/32"), format!("fd00:10:244:{n}::1/128")],
            });
            let key = format!("{OBJECTS}/workloadendpoints/default/{name}");
            put(key, object("WorkloadEndpoint", &name, Some("default"), endpoint));
            self.addresses(n, &mut put);
        }
        Value::Object(all).to_string()
    }

    /// Adds the blocks of a host, with the address of its workload and its tunnel address.
    fn addresses(self, n: usize, put: &mut impl FnMut(String, Value)) {
        let host = format!("host{n}");
        let workload = format!("lab.web{n}");
        let of_tunnel = match self {
            Self::Plain => None,
            Self::Ipip => Some((format!("ipip-tunnel-addr-{host}"), "ipipTunnelAddress")),
            Self::Vxlan | Self::VxlanCrossSubnet => {
                Some((format!("vxlan-tunnel-addr-{host}"), "vxlanTunnelAddress"))
            }
        };
        let (four, six) = (format!("10.244.{n}.0"), format!("fd00:10:244:{n}::"));
        for (family, address, length) in [("ipv4", &four, 26), ("ipv6", &six, 122)] {
            let cidr = format!("{address}/{length}");
            let mut attributes = vec![json!({ "handle_id": workload, "secondary": { "node": host } })];
            let mut allocations = vec![Value::Null; BLOCK];
            allocations[1] = json!(0);
            if let Some((handle, kind)) = of_tunnel.as_ref().filter(|_| length == 26) {
                attributes.push(json!({ "handle_id": handle, "secondary": { "node": host, "type": kind } }));
                allocations[TUNNEL] = json!(1);
                put(
                    format!("/calico/ipam/v2/handle/{handle}"),
                    json!({ "id": handle, "block": { (cidr.as_str()): 1 } }),
                );
            }
            let free: Vec<usize> = (0..BLOCK).filter(|at| allocations[*at].is_null()).collect();
            let key = format!("{address}-{length}");
            put(
                format!("/calico/ipam/v2/assignment/{family}/block/{key}"),
                json!({ "cidr": cidr, "affinity": format!("host:{host}"), "allocations": allocations, "unallocated": free,
                        "attributes": attributes, "deleted": false, "sequenceNumber": 7,
                        "sequenceNumberForAllocation": {} }),
            );
            let affinity = format!("/calico/ipam/v2/host/{host}/{family}/block/{key}");
            put(affinity, json!({ "state": "confirmed", "deleted": false }));
        }
        let blocks = json!({ (format!("{four}/26")): 1, (format!("{six}/122")): 1 });
        put(format!("/calico/ipam/v2/handle/{workload}"), json!({ "id": workload, "block": blocks }));
    }

    /// Returns the shell lines that put devices, entries and routes of Felix on a host.
    pub(super) fn felix(self, n: usize) -> String {
        let mut lines = String::from("set -e\n");
        let own = tunnel(n);
        if self.is_vxlan() {
            let mac = mac(n);
            let _ = writeln!(
                lines,
                "ip link add vxlan.calico address {mac} mtu 1450 type vxlan id 4096 local 172.30.0.{n} dev eth1 dstport 4789 \
                 nolearning\nip link set vxlan.calico up\nip addr add {own}/32 dev vxlan.calico"
            );
        } else if self == Self::Ipip {
            let _ = writeln!(
                lines,
                "{TUNNEL_DEVICE}\nip link set tunl0 up mtu 1480\nip addr add {own}/32 dev tunl0"
            );
        }
        if self.is_felix() {
            let _ = writeln!(lines, "ip route add blackhole 10.244.{n}.0/26 proto 80");
        }
        for other in (1..=3).filter(|other| *other != n) {
            let (mac, end, host) = (mac(other), tunnel(other), format!("172.30.0.{other}"));
            if self.is_vxlan() {
                let _ = writeln!(
                    lines,
                    "bridge fdb add {mac} dev vxlan.calico dst {host} self permanent\nip neigh replace {end} lladdr {mac} dev \
                     vxlan.calico nud permanent"
                );
            }
            let block = format!("10.244.{other}.0/26");
            let route = match self {
                Self::Vxlan => format!("{block} via {end} dev vxlan.calico onlink mtu 1450"),
                Self::VxlanCrossSubnet => format!("{block} via {host} dev eth1 onlink proto 80"),
                Self::Ipip => format!("{block} via {host} dev tunl0 onlink proto 80 mtu 1480"),
                Self::Plain => continue,
            };
            let _ = writeln!(lines, "ip route add {route}");
        }
        lines
    }

    /// Returns lines of `ipset restore` for the sets that Felix has in addition to those of pools.
    pub(super) fn sets(self) -> String {
        let name = match self {
            Self::Ipip => "cali40all-hosts-net",
            Self::Vxlan | Self::VxlanCrossSubnet => "cali40all-vxlan-net",
            Self::Plain => return String::new(),
        };
        let mut lines = format!("create {name} hash:net family inet maxelem 1048576\n");
        for n in 1..=3 {
            let _ = writeln!(lines, "add {name} 172.30.0.{n}");
        }
        lines
    }

    /// Returns Felix's table of nftables for one family, as `nft -f` reads it.
    pub(super) fn table(self, v4: bool) -> String {
        let (family, size) = if v4 { ("ip", "ipv4_addr") } else { ("ip6", "ipv6_addr") };
        let set = |name: &str, elements: &str| {
            format!("set {name} {{\n type {size}; flags interval; elements = {{ {elements} }}\n}}\n")
        };
        let mut out = format!("table {family} calico {{\n");
        let mut input = String::new();
        if v4 {
            out += &set("cali40masq-ipam-pools", "10.244.0.0/16");
            out += &set("cali40all-ipam-pools", "10.244.0.0/16");
            let hosts = "172.30.0.1, 172.30.0.2, 172.30.0.3";
            if self.is_vxlan() {
                out += &set("cali40all-vxlan-net", hosts);
                input = "udp dport 4789 ip saddr @cali40all-vxlan-net fib daddr type local counter accept\n\
                         udp dport 4789 fib daddr type local counter drop\n"
                    .to_owned();
            } else if self == Self::Ipip {
                out += &set("cali40all-hosts-net", hosts);
                input = "ip protocol 4 ip saddr @cali40all-hosts-net fib daddr type local counter accept\n\
                         ip protocol 4 counter drop\n"
                    .to_owned();
            }
        }
        for (way, chain) in [("from", "fw"), ("to", "tw")] {
            let _ = writeln!(
                out,
                "map filter-cali-{way}-wl-dispatch {{\n type ifname : verdict; elements = {{ \"cali1\" : goto \
                 filter-cali-{chain}-cali1 }}\n}}"
            );
        }
        let mut chain = |name: &str, rules: &str| {
            let _ = writeln!(out, "chain {name} {{\n{rules}\n}}");
        };
        for hook in ["INPUT", "FORWARD", "OUTPUT"] {
            let lower = hook.to_lowercase();
            let comment = "comment \"cali:Cz_u1IQiXIMmKD4c;\"";
            chain(
                &format!("filter-{hook}"),
                &format!(
                    "type filter hook {lower} priority filter; policy accept;\ncounter jump filter-cali-{hook} {comment}"
                ),
            );
        }
        chain("filter-cali-INPUT", &format!("{input}iifname \"cali*\" counter goto filter-cali-wl-to-host"));
        chain("filter-cali-wl-to-host", "counter jump filter-cali-from-wl-dispatch");
        chain("filter-cali-OUTPUT", "oifname \"cali*\" counter return");
        chain(
            "filter-cali-FORWARD",
            "iifname \"cali*\" counter jump filter-cali-from-wl-dispatch\noifname \"cali*\" counter jump \
             filter-cali-to-wl-dispatch\niifname \"cali*\" counter accept\noifname \"cali*\" counter accept",
        );
        for (way, dispatch, profile) in [("from", "iifname", "pro"), ("to", "oifname", "pri")] {
            let name = format!("filter-cali-{way}-wl-dispatch");
            let rules =
                format!("{dispatch} vmap @{name}\ncounter drop comment \"cali:x; Unknown interface\"");
            chain(&name, &rules);
            let end = if way == "from" { "fw" } else { "tw" };
            chain(
                &format!("filter-cali-{end}-cali1"),
                &format!(
                    "ct state established,related counter accept\nct state invalid counter drop\nmeta mark set mark & \
                     0xfffeffff\ncounter jump filter-cali-{profile}-lab\nmeta mark & 0x00010000 != 0 counter return\n\
                     counter drop comment \"cali:y; Drop if no profiles matched\""
                ),
            );
            chain(
                &format!("filter-cali-{profile}-lab"),
                "counter meta mark set mark or 0x00010000\nmeta mark & 0x00010000 != 0 counter return",
            );
        }
        let nat = "type nat hook postrouting priority srcnat + 10; policy accept;\ncounter jump nat-cali-POSTROUTING";
        if v4 {
            chain("nat-POSTROUTING", nat);
            chain("nat-cali-POSTROUTING", "counter jump nat-cali-nat-outgoing");
            chain(
                "nat-cali-nat-outgoing",
                "ip saddr @cali40masq-ipam-pools ip daddr != @cali40all-ipam-pools counter masquerade fully-random",
            );
        }
        out + "}\n"
    }
}

/// Returns the tunnel address of a host.
fn tunnel(n: usize) -> String {
    format!("10.244.{n}.{TUNNEL}")
}

/// Returns the MAC address of a host's VXLAN device.
fn mac(n: usize) -> String {
    format!("66:00:00:00:00:0{n}")
}
