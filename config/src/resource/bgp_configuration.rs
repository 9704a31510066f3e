//! BGP settings of Calico 3 that have no key of the v1 model, in force for this host.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde_json::Value;

use super::ValueError;
use super::bgp_filter::PRIORITY_MAX;
use super::duration;
use super::json::{Extra, Fields, Writer};
use super::peer_options::words;
use tortie_net::Cidr;

/// Priority (metric) of a route without one of its own.
pub const NORMAL_PRIORITY: u32 = 1024;

/// Members of a `BGPConfiguration` without a key of the v1 model. A member that cannot be parsed has its
/// default; a range that cannot be parsed is left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BgpConfiguration {
    /// Listen on the addresses of the node only (`bindMode` is `NodeIP`).
    pub listen_on_node_address: bool,
    /// Ranges of service addresses inside of the cluster.
    pub service_cluster_ips: Vec<Cidr>,
    /// Ranges of external service addresses.
    pub service_external_ips: Vec<Cidr>,
    /// Ranges of load balancer addresses.
    pub service_load_balancer_ips: Vec<Cidr>,
    /// True if the load balancer ranges are announced as a whole.
    pub load_balancer_aggregation: bool,
    /// False if this host announces no service ranges, because its node is excluded from external load
    /// balancers (a member of Tortie's).
    pub announces_services: bool,
    /// Routes to remote blocks that the BGP speaker programs.
    pub program_cluster_routes: ProgramClusterRoutes,
    /// Priority of IPv4 routes without one of their own.
    pub ipv4_normal_priority: u32,
    /// Priority of IPv6 routes without one of their own.
    pub ipv6_normal_priority: u32,
    /// Restart time of the sessions of the mesh.
    pub mesh_restart_time: Option<Duration>,
    /// The value as it is stored.
    spec: Extra,
}

impl Default for BgpConfiguration {
    fn default() -> Self {
        Self {
            listen_on_node_address: false,
            service_cluster_ips: Vec::new(),
            service_external_ips: Vec::new(),
            service_load_balancer_ips: Vec::new(),
            load_balancer_aggregation: true,
            announces_services: true,
            program_cluster_routes: ProgramClusterRoutes::NoEncap,
            ipv4_normal_priority: NORMAL_PRIORITY,
            ipv6_normal_priority: NORMAL_PRIORITY,
            mesh_restart_time: None,
            spec: Extra::default(),
        }
    }
}

words! {
    /// Kinds of routes to blocks of other hosts that one of Calico's own agents programs: BIRD by the
    /// BGPConfiguration, Felix by the setting.
    ProgramClusterRoutes: "write \"Enabled\", \"EnabledIPIPOnly\", \"EnabledNoEncapOnly\" or \"Disabled\"" {
        /// Routes through IPIP and without encapsulation.
        All = "Enabled",
        /// Routes through IPIP.
        Ipip = "EnabledIPIPOnly",
        /// Routes without encapsulation.
        NoEncap = "EnabledNoEncapOnly",
        /// None.
        Never = "Disabled",
    }
}

impl BgpConfiguration {
    /// Parses a value.
    ///
    /// # Errors
    /// If the value is no JSON object.
    pub fn parse(bytes: &[u8]) -> Result<Self, ValueError> {
        let mut fields = Fields::parse(bytes)?;
        let spec = match super::json::value(bytes)? {
            Value::Object(members) => Extra(members),
            _ => Extra::default(),
        };
        let text = |fields: &mut Fields, name: &str| match fields.take(name) {
            Some(Value::String(text)) => Some(text),
            _ => None,
        };
        let priority = |fields: &mut Fields, name: &str| {
            let found: Result<Option<u32>, _> = fields.number(name, 1, u64::from(PRIORITY_MAX) - 1);
            found.ok().flatten().unwrap_or(NORMAL_PRIORITY)
        };
        Ok(Self {
            listen_on_node_address: text(&mut fields, "bindMode").as_deref() == Some("NodeIP"),
            service_cluster_ips: ranges(fields.take("serviceClusterIPs")),
            service_external_ips: ranges(fields.take("serviceExternalIPs")),
            service_load_balancer_ips: ranges(fields.take("serviceLoadBalancerIPs")),
            load_balancer_aggregation: text(&mut fields, "serviceLoadBalancerAggregation").as_deref()
                != Some("Disabled"),
            announces_services: fields.take("announcesServices") != Some(Value::Bool(false)),
            program_cluster_routes: text(&mut fields, "programClusterRoutes")
                .and_then(|text| text.parse().ok())
                .unwrap_or(ProgramClusterRoutes::NoEncap),
            ipv4_normal_priority: priority(&mut fields, "ipv4NormalRoutePriority"),
            ipv6_normal_priority: priority(&mut fields, "ipv6NormalRoutePriority"),
            mesh_restart_time: text(&mut fields, "nodeMeshMaxRestartTime")
                .and_then(|text| duration::parse(&text))
                .map(|time| Duration::from_secs((time + Duration::from_millis(500)).as_secs())),
            spec,
        })
    }

    /// Formats the value as it was parsed.
    #[must_use]
    pub fn to_value(&self) -> Vec<u8> {
        Writer::default().bytes(&self.spec)
    }

    /// Returns the ranges of all kinds.
    pub fn service_ranges(&self) -> impl Iterator<Item = Cidr> {
        self.service_cluster_ips.iter().chain(self.external_ranges()).copied()
    }

    /// Returns the external and load balancer ranges, which route reflectors pass on.
    pub fn external_ranges(&self) -> impl Iterator<Item = &Cidr> {
        self.service_external_ips.iter().chain(&self.service_load_balancer_ips)
    }

    /// Returns the ranges that a host announces as a whole: cluster ranges, and of the others those that are
    /// no single address and not announced address by address.
    pub fn announced_ranges(&self) -> impl Iterator<Item = Cidr> {
        let load_balancer = self.service_load_balancer_ips.iter().filter(|_| self.load_balancer_aggregation);
        let outer = self.service_external_ips.iter().chain(load_balancer).filter(|range| !range.is_host());
        self.service_cluster_ips.iter().chain(outer).copied().filter(|_| self.announces_services)
    }
}

/// Returns the prefixes of a list of `{"cidr": ...}`.
fn ranges(value: Option<Value>) -> Vec<Cidr> {
    let Some(Value::Array(list)) = value else { return Vec::new() };
    list.iter().filter_map(|range| range.get("cidr")?.as_str()?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_that_cannot_be_read_have_their_defaults() {
        let value = r#"{"bindMode":"NodeIP","serviceClusterIPs":[{"cidr":"10.96.0.0/12"},{"cidr":"?"}],
            "programClusterRoutes":"Sometimes","ipv4NormalRoutePriority":"x","ipv6NormalRoutePriority":2048}"#;
        let read = BgpConfiguration::parse(value.as_bytes()).unwrap();
        assert!(read.listen_on_node_address);
        assert_eq!(read.service_cluster_ips, ["10.96.0.0/12".parse().unwrap()]);
        assert_eq!(read.program_cluster_routes, ProgramClusterRoutes::NoEncap);
        assert_eq!((read.ipv4_normal_priority, read.ipv6_normal_priority), (1024, 2048));
        let empty = BgpConfiguration::parse(b"{}").unwrap();
        assert_eq!(empty, BgpConfiguration::default());
    }

    #[test]
    fn single_addresses_and_ranges_without_aggregation_are_not_announced() {
        let read = |more: &str| {
            let value = format!(
                r#"{{"serviceClusterIPs":[{{"cidr":"10.96.0.1/32"}}],
                "serviceExternalIPs":[{{"cidr":"203.0.113.0/24"}},{{"cidr":"203.0.113.9/32"}}],
                "serviceLoadBalancerIPs":[{{"cidr":"198.51.100.0/24"}},{{"cidr":"2001:db8::1/128"}}]{more}}}"#
            );
            let read = BgpConfiguration::parse(value.as_bytes()).unwrap();
            read.announced_ranges().map(|range| range.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(read(""), ["10.96.0.1/32", "203.0.113.0/24", "198.51.100.0/24"]);
        let disabled = r#","serviceLoadBalancerAggregation":"Disabled""#;
        assert_eq!(read(disabled), ["10.96.0.1/32", "203.0.113.0/24"]);
        assert!(read(r#","announcesServices":false"#).is_empty());
    }
}
