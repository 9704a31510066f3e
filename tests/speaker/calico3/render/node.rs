//! Values of one node that its configuration uses.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::super::objects::{Object, Objects};

/// AS of a cluster that does not set one.
const DEFAULT_AS: u32 = 64512;

/// A node, as the configuration uses it.
#[derive(Debug, Clone)]
pub(crate) struct NodeValues {
    pub(crate) name: String,
    pub(crate) v4: Option<IpAddr>,
    pub(crate) v6: Option<IpAddr>,
    /// AS of the node alone.
    pub(crate) own_as: Option<u32>,
    pub(crate) cluster_id: String,
    /// Port of the node alone.
    pub(crate) own_port: Option<u16>,
    labels: Value,
}

/// The values of all nodes, and those of the cluster.
#[derive(Debug, Clone)]
pub(crate) struct Cluster {
    pub(crate) nodes: Vec<NodeValues>,
    pub(crate) asn: u32,
    pub(crate) port: Option<u16>,
}

/// Reads an AS number: a number, text of one, or dotted text.
pub(crate) fn as_number(value: &Value) -> Option<u32> {
    if let Some(number) = value.as_u64() {
        return u32::try_from(number).ok();
    }
    let text = value.as_str()?;
    match text.split_once('.') {
        None => text.parse().ok(),
        Some((high, low)) => {
            Some((u32::from(high.parse::<u16>().ok()?) << 16) | u32::from(low.parse::<u16>().ok()?))
        }
    }
}

fn port(object: Option<Object<'_>>) -> Option<u16> {
    u16::try_from(object?.spec("listenPort").as_u64()?).ok().filter(|port| *port != 0)
}

impl Cluster {
    pub(crate) fn of(objects: &Objects) -> Self {
        let address = |bgp: &Value, member: &str| -> Option<IpAddr> {
            bgp[member].as_str()?.split('/').next()?.parse().ok()
        };
        let nodes = objects.of("nodes").into_iter().map(|node| {
            let bgp = node.spec("bgp");
            NodeValues {
                name: node.name.to_owned(),
                v4: address(bgp, "ipv4Address"),
                v6: address(bgp, "ipv6Address"),
                own_as: as_number(&bgp["asNumber"]),
                cluster_id: bgp["routeReflectorClusterID"].as_str().unwrap_or_default().to_owned(),
                own_port: port(objects.get("bgpconfigurations", &format!("node.{}", node.name))),
                labels: node.labels().clone(),
            }
        });
        let default = objects.get("bgpconfigurations", "default");
        Self {
            nodes: nodes.collect(),
            asn: default.and_then(|default| as_number(default.spec("asNumber"))).unwrap_or(DEFAULT_AS),
            port: port(default),
        }
    }

    pub(crate) fn node(&self, name: &str) -> &NodeValues {
        self.nodes.iter().find(|node| node.name == name).unwrap()
    }

    /// Returns the AS of a node.
    pub(crate) fn as_of(&self, node: &NodeValues) -> u32 {
        node.own_as.unwrap_or(self.asn)
    }

    /// Returns the port that a node listens on, unless it is the standard one.
    pub(crate) fn port_of(&self, node: &NodeValues) -> Option<u16> {
        node.own_port.or(self.port)
    }
}

impl NodeValues {
    pub(crate) fn address(&self, v6: bool) -> Option<IpAddr> {
        if v6 { self.v6 } else { self.v4 }
    }

    pub(crate) fn label(&self, name: &str) -> Option<String> {
        self.labels[name].as_str().map(str::to_owned)
    }

    /// Returns the router id: the IPv4 address, or the hash of the name that `CALICO_ROUTER_ID=hash` means.
    pub(crate) fn router_id(&self) -> String {
        if let Some(addr) = self.v4 {
            return addr.to_string();
        }
        let mut hash = Sha256::digest(self.name.as_bytes()).to_vec();
        if hash[0] > 223 {
            hash[0] -= 32;
        }
        format!("{}.{}.{}.{}", hash[0], hash[1], hash[2], hash[3])
    }
}

/// Service ranges of one family.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ranges {
    /// Announced as static routes.
    pub(crate) announced: BTreeSet<String>,
    /// Load balancer and external ranges, in this order.
    pub(crate) external: Vec<String>,
}

/// Returns the service ranges that a node announces.
pub(crate) fn service_ranges(objects: &Objects, node: &NodeValues, v6: bool) -> Ranges {
    let Some(default) = objects.get("bgpconfigurations", "default") else { return Ranges::default() };
    let list = |member: &str| -> Vec<String> {
        let all = default.spec(member).as_array().cloned().unwrap_or_default();
        let cidrs =
            all.iter().filter_map(|range| range["cidr"].as_str()).filter(|cidr| cidr.contains(':') == v6);
        cidrs.map(str::to_owned).collect()
    };
    let (cluster, external, balancers) =
        (list("serviceClusterIPs"), list("serviceExternalIPs"), list("serviceLoadBalancerIPs"));
    let aggregates = default.text("serviceLoadBalancerAggregation") != "Disabled";
    let wide = |cidr: &String| !cidr.ends_with(if v6 { "/128" } else { "/32" });
    let mut announced: BTreeSet<String> = cluster.into_iter().collect();
    announced.extend(external.iter().filter(|cidr| wide(cidr)).cloned());
    announced.extend(balancers.iter().filter(|cidr| aggregates && wide(cidr)).cloned());
    if node.label("node.kubernetes.io/exclude-from-external-load-balancers").as_deref() == Some("true") {
        announced.clear();
    }
    Ranges { announced, external: balancers.into_iter().chain(external).collect() }
}

/// Returns the metric of local routes without one.
pub(crate) fn normal_priority(objects: &Objects, v6: bool) -> u64 {
    let member = if v6 { "ipv6NormalRoutePriority" } else { "ipv4NormalRoutePriority" };
    let default = objects.get("bgpconfigurations", "default");
    default.and_then(|default| default.spec(member).as_u64()).unwrap_or(1024)
}
