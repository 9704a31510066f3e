//! Workload endpoints and host endpoints.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde_json::Value;

use super::ValueError;
use super::json::{Extra, Fields, Writer, texts};
use super::names::{INTERFACE, InterfaceName, Labels, MAC, MacAddr, labels_field, labels_json};
use super::port_name::EndpointPort;
use crate::dialect::Dialect;
use tortie_net::Cidr;

/// A workload endpoint: the interface of a workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkloadEndpoint {
    /// True if it may send and receive packets; any stored state other than `active` means false.
    pub active: bool,
    /// Name of the host-side interface.
    pub name: InterfaceName,
    /// MAC address inside the workload.
    pub mac: Option<MacAddr>,
    /// Profiles, in order of precedence.
    pub profile_ids: Vec<String>,
    /// IPv4 addresses, usually /32.
    pub ipv4_nets: Vec<Cidr>,
    /// IPv6 addresses, usually /128.
    pub ipv6_nets: Vec<Cidr>,
    /// Floating IPv4 addresses, as stored; [`WorkloadEndpoint::nats`] returns those in force.
    pub ipv4_nat: Vec<Nat<Ipv4Addr>>,
    /// Floating IPv6 addresses, as stored.
    pub ipv6_nat: Vec<Nat<Ipv6Addr>>,
    /// IPv4 gateway, for display only.
    pub ipv4_gateway: Option<Ipv4Addr>,
    /// IPv6 gateway, for display only.
    pub ipv6_gateway: Option<Ipv6Addr>,
    /// Labels that selectors match.
    pub labels: Labels,
    /// Named ports, which rules may name; Calico 3 only.
    pub ports: Vec<EndpointPort>,
    /// Container id set by the CNI plugin, so that a late DEL of an earlier container is ignored.
    pub active_instance_id: Option<String>,
    /// Unknown fields, kept when the value is written.
    pub extra: Extra,
}

/// A 1:1 NAT mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Nat<A> {
    /// Internal address, one of the endpoint's own.
    pub int_ip: A,
    /// External address.
    pub ext_ip: A,
}

const V4_NET: &str = "write an IPv4 ADDRESS/LENGTH without host bits, such as 10.65.0.2/32";
const V6_NET: &str = "write an IPv6 ADDRESS/LENGTH without host bits, such as 2001:db8::2/128";

impl WorkloadEndpoint {
    /// Creates an active endpoint without addresses.
    #[must_use]
    pub fn new(name: InterfaceName) -> Self {
        Self {
            active: true,
            name,
            mac: None,
            profile_ids: Vec::new(),
            ipv4_nets: Vec::new(),
            ipv6_nets: Vec::new(),
            ipv4_nat: Vec::new(),
            ipv6_nat: Vec::new(),
            ipv4_gateway: None,
            ipv6_gateway: None,
            labels: Labels::new(),
            ports: Vec::new(),
            active_instance_id: None,
            extra: Extra::default(),
        }
    }

    /// Returns the addresses, IPv4 first.
    pub fn nets(&self) -> impl Iterator<Item = &Cidr> {
        self.ipv4_nets.iter().chain(&self.ipv6_nets)
    }

    /// Returns the floating addresses in force as (internal, external) pairs, IPv4 first.
    pub fn nats(&self) -> impl Iterator<Item = (IpAddr, IpAddr)> {
        self.all_nats().filter(|(inside, _)| self.has(*inside))
    }

    /// Returns the NAT mappings that are ignored, because `int_ip` is not an address of the endpoint, as
    /// (internal, external) pairs.
    pub fn stray_nats(&self) -> impl Iterator<Item = (IpAddr, IpAddr)> {
        self.all_nats().filter(|(inside, _)| !self.has(*inside))
    }

    fn all_nats(&self) -> impl Iterator<Item = (IpAddr, IpAddr)> {
        let v4 = self.ipv4_nat.iter().map(|nat| (nat.int_ip.into(), nat.ext_ip.into()));
        v4.chain(self.ipv6_nat.iter().map(|nat| (nat.int_ip.into(), nat.ext_ip.into())))
    }

    /// Returns the networks from which the workload of a Calico 3 store may send in addition to its addresses
    /// (`allow_spoofed_source_ips`). Their projection contains valid ones only.
    #[must_use]
    pub fn spoofed_sources(&self) -> Vec<Cidr> {
        let list = self.extra.get("allow_spoofed_source_ips").and_then(Value::as_array);
        list.into_iter().flatten().filter_map(|net| net.as_str()?.parse().ok()).collect()
    }

    fn has(&self, addr: IpAddr) -> bool {
        self.nets().any(|net| net.contains(addr))
    }

    /// Parses a value of a v1 store.
    ///
    /// # Errors
    /// If a field is malformed, or the name is missing.
    pub fn parse(bytes: &[u8]) -> Result<Self, ValueError> {
        Self::parse_in(Dialect::V1, bytes)
    }

    pub(super) fn parse_in(dialect: Dialect, bytes: &[u8]) -> Result<Self, ValueError> {
        let mut fields = Fields::parse(bytes)?;
        let active = fields.text("state")?.as_deref() == Some("active");
        let name = fields.parsed("name", INTERFACE)?.ok_or_else(|| ValueError::missing("name", INTERFACE))?;
        let ipv4_nets = nets(&mut fields, "ipv4_nets", V4_NET)?;
        let ipv6_nets = nets(&mut fields, "ipv6_nets", V6_NET)?;
        Ok(Self {
            active,
            name,
            mac: fields.parsed("mac", MAC)?,
            profile_ids: profile_ids(&mut fields)?,
            ipv4_nat: nats(&mut fields, "ipv4_nat")?,
            ipv6_nat: nats(&mut fields, "ipv6_nat")?,
            ipv4_nets,
            ipv6_nets,
            ipv4_gateway: fields.parsed("ipv4_gateway", "write an IPv4 address")?,
            ipv6_gateway: fields.parsed("ipv6_gateway", "write an IPv6 address")?,
            labels: labels_field(&mut fields)?,
            ports: ports(dialect, &mut fields)?,
            active_instance_id: fields.text("active_instance_id")?,
            extra: fields.rest(),
        })
    }

    /// Formats the value in its newest form.
    #[must_use]
    pub fn to_value(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.put("state", if self.active { "active" } else { "inactive" });
        writer.put("name", self.name.to_string());
        writer.put_some("active_instance_id", self.active_instance_id.clone());
        writer.put("mac", self.mac.map(|mac| mac.to_string()));
        writer.put("profile_ids", self.profile_ids.clone());
        writer.put("ipv4_nets", texts(&self.ipv4_nets));
        writer.put("ipv6_nets", texts(&self.ipv6_nets));
        put_nats(&mut writer, "ipv4_nat", &self.ipv4_nat);
        put_nats(&mut writer, "ipv6_nat", &self.ipv6_nat);
        writer.put_text("ipv4_gateway", self.ipv4_gateway.as_ref());
        writer.put_text("ipv6_gateway", self.ipv6_gateway.as_ref());
        writer.put("labels", labels_json(&self.labels));
        EndpointPort::put_list(&mut writer, &self.ports);
        writer.bytes(&self.extra)
    }
}

/// A host endpoint: an interface of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostEndpoint {
    /// Name of the interface; `None` if it is found by the expected addresses.
    pub name: Option<InterfaceName>,
    /// IPv4 addresses that identify the interface.
    pub expected_ipv4_addrs: Vec<Ipv4Addr>,
    /// IPv6 addresses that identify the interface.
    pub expected_ipv6_addrs: Vec<Ipv6Addr>,
    /// Profiles, in order of precedence.
    pub profile_ids: Vec<String>,
    /// Labels that selectors match.
    pub labels: Labels,
    /// Named ports, which rules may name; Calico 3 only.
    pub ports: Vec<EndpointPort>,
    /// Unknown fields, kept when the value is written.
    pub extra: Extra,
}

impl HostEndpoint {
    /// Returns the expected addresses, IPv4 first.
    pub fn addrs(&self) -> impl Iterator<Item = IpAddr> {
        let v4 = self.expected_ipv4_addrs.iter().map(|addr| IpAddr::V4(*addr));
        v4.chain(self.expected_ipv6_addrs.iter().map(|addr| IpAddr::V6(*addr)))
    }

    /// Parses a value.
    ///
    /// # Errors
    /// If a field is malformed, or the value has neither name nor address.
    pub(super) fn parse_in(dialect: Dialect, bytes: &[u8]) -> Result<Self, ValueError> {
        let mut fields = Fields::parse(bytes)?;
        let endpoint = Self {
            name: fields.parsed("name", INTERFACE)?,
            expected_ipv4_addrs: fields.parsed_list("expected_ipv4_addrs", "write an IPv4 address")?,
            expected_ipv6_addrs: fields.parsed_list("expected_ipv6_addrs", "write an IPv6 address")?,
            profile_ids: profile_ids(&mut fields)?,
            labels: labels_field(&mut fields)?,
            ports: ports(dialect, &mut fields)?,
            extra: fields.rest(),
        };
        if endpoint.name.is_none() && endpoint.addrs().next().is_none() {
            let expected = "name the interface, or give expected_ipv4_addrs or expected_ipv6_addrs";
            return Err(ValueError::missing("name", expected));
        }
        Ok(endpoint)
    }

    /// Formats the value in its newest form.
    #[must_use]
    pub fn to_value(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.put_text("name", self.name.as_ref());
        writer.put_list("expected_ipv4_addrs", &self.expected_ipv4_addrs);
        writer.put_list("expected_ipv6_addrs", &self.expected_ipv6_addrs);
        writer.put("profile_ids", self.profile_ids.clone());
        writer.put("labels", labels_json(&self.labels));
        EndpointPort::put_list(&mut writer, &self.ports);
        writer.bytes(&self.extra)
    }
}

/// Reads named ports. In a v1 store they remain an unknown field, which is kept.
fn ports(dialect: Dialect, fields: &mut Fields) -> Result<Vec<EndpointPort>, ValueError> {
    match dialect {
        Dialect::V1 => Ok(Vec::new()),
        Dialect::V3 => fields.list("ports", EndpointPort::parse),
    }
}

/// Parses `profile_ids`, or the older single `profile_id`.
fn profile_ids(fields: &mut Fields) -> Result<Vec<String>, ValueError> {
    let single = fields.text("profile_id")?.filter(|id| !id.is_empty());
    let several = fields.has("profile_ids");
    let ids = fields.names("profile_ids")?;
    Ok(if several { ids } else { single.into_iter().collect() })
}

fn nets(fields: &mut Fields, name: &str, expected: &str) -> Result<Vec<Cidr>, ValueError> {
    let v4 = name.starts_with("ipv4");
    fields.list(name, |value| {
        let text = value.as_str().ok_or_else(|| ValueError::json("", &value, expected))?;
        Cidr::parse_strict(text)
            .ok()
            .filter(|cidr| cidr.is_v4() == v4)
            .ok_or_else(|| ValueError::new("", format_args!("`{text}`"), expected))
    })
}

fn nats<A: FromStr>(fields: &mut Fields, name: &str) -> Result<Vec<Nat<A>>, ValueError> {
    let expected = "write an address of the list's family";
    fields.list(name, |value| {
        let mut fields = Fields::of(value)?;
        let mut addr = |name: &str| {
            fields.parsed::<A>(name, expected)?.ok_or_else(|| ValueError::missing(name, expected))
        };
        Ok(Nat { int_ip: addr("int_ip")?, ext_ip: addr("ext_ip")? })
    })
}

fn put_nats<A: Copy + Into<IpAddr>>(writer: &mut Writer, name: &str, nats: &[Nat<A>]) {
    if nats.is_empty() {
        return;
    }
    let list = nats.iter().map(|nat| {
        let mut writer = Writer::default();
        writer.put("int_ip", nat.int_ip.into().to_string());
        writer.put("ext_ip", nat.ext_ip.into().to_string());
        writer.object(&Extra::default())
    });
    writer.put(name, Value::Array(list.collect()));
}
