//! Parses `runtimeConfig`: arguments of the runtime for the capabilities that a configuration declares.
//!
//! A plugin must apply these or fail, so malformed or unknown areas are errors with key and value. containerd
//! writes the names of Go's fields (`HostPort`), libcni and podman those of the conventions (`hostPort`):
//! both are accepted.

use std::net::IpAddr;

use serde_json::Value;
use tortie_config::resource::MacAddr;
use tortie_net::Cidr;

use crate::plugins::cni::protocol::address;
use crate::plugins::cni::protocol::error::{CniError, code, shown};
use crate::plugins::cni::protocol::json::{Object, elements};
use crate::plugins::cni::protocol::result::Dns;
use tortie_engine::ipam::AddressRange;
use tortie_kernel::container::{Bandwidth, PortMapping, Rate, Transport};

/// The areas of `runtimeConfig`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RuntimeConfig {
    /// `portMappings`: port mappings from the host to the container.
    pub ports: Vec<PortMapping>,
    /// `ipRanges`: one address from each outer element, from the first inner range with free addresses.
    pub ranges: Vec<Vec<IpRange>>,
    /// `bandwidth`: bandwidth limits.
    pub bandwidth: Bandwidth,
    /// `dns`: name servers, which are returned in the result.
    pub dns: Option<Dns>,
    /// `ips`: requested addresses.
    pub ips: Vec<IpAddr>,
    /// `mac`: requested MAC address.
    pub mac: Option<MacAddr>,
}

/// A range of addresses, with the gateway for plugins that need one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IpRange {
    /// Addresses that may be allocated, which never include the gateway.
    pub range: AddressRange,
    /// Gateway of the subnet.
    pub gateway: Option<IpAddr>,
}

const AREAS: [&str; 6] = ["portMappings", "ipRanges", "bandwidth", "dns", "ips", "mac"];

impl RuntimeConfig {
    /// Parses `runtimeConfig`; without `all` only the areas for addresses, because the others are for the
    /// main plugin. Ignored areas are added to `notes`.
    ///
    /// # Errors
    /// Code 7 for malformed areas, code 2 for an unknown area.
    pub fn parse(value: &Value, all: bool, notes: &mut Vec<String>) -> Result<Self, CniError> {
        let object = Object::of("runtimeConfig", value)?.any_case();
        if all {
            known_areas(&object, notes)?;
        }
        let mut this = Self::default();
        for (at, value) in object.list("ipRanges")? {
            this.ranges.push(range_set(&at, value)?);
        }
        if let Some(object) = object.object("dns")? {
            let (nameservers, search) = (object.texts("servers")?, object.texts("searches")?);
            let dns = Dns { nameservers, search, options: object.texts("options")?, domain: String::new() };
            this.dns = Some(dns).filter(|dns| !dns.is_empty());
        }
        for (at, value) in object.list("ips")? {
            this.ips.push(asked(&at, value)?);
        }
        if !all {
            return Ok(this);
        }
        for (at, value) in object.list("portMappings")? {
            this.ports.extend(port(&at, value, notes)?);
        }
        if let Some(object) = object.object("bandwidth")? {
            this.bandwidth =
                Bandwidth { ingress: rate(&object, "ingress")?, egress: rate(&object, "egress")? };
        }
        this.mac = object.parsed("mac", "write a MAC address, such as c2:11:22:33:44:55")?;
        if let Some(mac) = this.mac {
            unicast(&object.at("mac"), mac)?;
        }
        Ok(this)
    }
}

/// Rejects areas that have no effect here.
fn known_areas(object: &Object<'_>, notes: &mut Vec<String>) -> Result<(), CniError> {
    for (area, value) in object.others(&AREAS).filter(|(_, value)| !value.is_null()) {
        // An area of a single runtime (io.kubernetes.cri.pod-annotations) is only information.
        if area.contains('.') {
            notes.push(format!("runtimeConfig.{area} is not used"));
            continue;
        }
        if area == "aliases" && only_short_ids(value) {
            notes.push("runtimeConfig.aliases has container ids only, which are not used".to_owned());
            continue;
        }
        let msg = format!(
            "`runtimeConfig.{area}` is {}, and we cannot act on it: take `{area}` out of the configuration's capabilities",
            shown(value)
        );
        return Err(CniError::new(code::FIELD, msg));
    }
    Ok(())
}

/// True if all aliases are short container ids: podman adds one to each network, and no user requested it.
fn only_short_ids(value: &Value) -> bool {
    let short = |name: &Value| {
        name.as_str().is_some_and(|name| name.len() == 12 && name.bytes().all(|b| b.is_ascii_hexdigit()))
    };
    value.as_object().is_some_and(|networks| {
        networks.values().all(|names| names.as_array().is_some_and(|names| names.iter().all(short)))
    })
}

/// Rejects MAC addresses that an interface cannot have.
pub(in crate::plugins::cni) fn unicast(at: &str, mac: MacAddr) -> Result<(), CniError> {
    let [first, ..] = mac.0;
    if first & 1 == 0 && mac.0 != [0; 6] {
        return Ok(());
    }
    let value = Value::from(mac.to_string());
    Err(CniError::value(
        at,
        &value,
        "write an address of one interface: the last bit of its first octet is 0",
    ))
}

/// Parses an address in a list.
pub(in crate::plugins::cni) fn asked(at: &str, value: &Value) -> Result<IpAddr, CniError> {
    let text = value.as_str().unwrap_or_default();
    address::asked(text).map_err(|expected| CniError::value(at, value, expected))
}

fn port(at: &str, value: &Value, notes: &mut Vec<String>) -> Result<Option<PortMapping>, CniError> {
    let object = Object::of(at, value)?.any_case();
    let number = |name: &str| {
        object.number(name, 65_535).map(|n| n.and_then(|n| u16::try_from(n).ok()).unwrap_or_default())
    };
    let (host_port, container_port) = (number("hostPort")?, number("containerPort")?);
    let protocol = object.parsed_or_why::<Transport>("protocol")?.unwrap_or(Transport::Tcp);
    let host_ip = object.parsed("hostIP", "write an address of this host, or leave it out")?;
    if host_port == 0 {
        notes.push(format!("{at} has no hostPort, so there is nothing to map"));
        return Ok(None);
    }
    if container_port == 0 {
        let value = object.get("containerPort").unwrap_or(&Value::Null);
        return Err(CniError::value(&object.at("containerPort"), value, "write a port from 1 to 65535"));
    }
    Ok(Some(PortMapping { host_ip, host_port, container_port, protocol }))
}

fn rate(object: &Object<'_>, direction: &str) -> Result<Option<Rate>, CniError> {
    let rate = object.number(&format!("{direction}Rate"), u64::MAX)?.unwrap_or_default();
    let burst = object.number(&format!("{direction}Burst"), u64::MAX)?.filter(|burst| *burst > 0);
    match (rate, burst) {
        (0, None) => Ok(None),
        (0, Some(burst)) => {
            let at = object.at(&format!("{direction}Burst"));
            Err(CniError::value(&at, &burst.into(), &format!("it needs {direction}Rate, too")))
        }
        (1..8, _) => {
            let at = object.at(&format!("{direction}Rate"));
            Err(CniError::value(&at, &rate.into(), "write at least 8 bits a second"))
        }
        (bits, burst) => Ok(Some(Rate { bits, burst })),
    }
}

/// Parses one element of `ipRanges`: alternative ranges for one address.
pub(in crate::plugins::cni) fn range_set(at: &str, value: &Value) -> Result<Vec<IpRange>, CniError> {
    let ranges = elements(at, value)?;
    if ranges.is_empty() {
        return Err(CniError::value(at, value, "write at least one range"));
    }
    let ranges = ranges.into_iter().map(|(at, value)| range(&at, value)).collect::<Result<Vec<_>, _>>()?;
    let v4 = ranges.iter().filter(|range| range.range.subnet.is_v4()).count();
    if v4 != 0 && v4 != ranges.len() {
        return Err(CniError::value(at, value, "write ranges of one family: they are for one address"));
    }
    Ok(ranges)
}

fn range(at: &str, value: &Value) -> Result<IpRange, CniError> {
    let object = Object::of(at, value)?.any_case();
    let text = object.text("subnet")?;
    let subnet = text.and_then(|text| Cidr::parse_strict(text).ok()).ok_or_else(|| {
        let value = object.get("subnet").unwrap_or(&Value::Null);
        let expected = "write ADDRESS/LENGTH without host bits, such as 10.1.2.0/24";
        CniError::value(&object.at("subnet"), value, expected)
    })?;
    let inside = |name: &str| -> Result<Option<IpAddr>, CniError> {
        let addr: Option<IpAddr> = object.parsed(name, "write an address")?;
        match addr {
            Some(addr) if !subnet.contains(addr) => {
                let value = Value::from(addr.to_string());
                Err(CniError::value(&object.at(name), &value, &format!("write an address inside {subnet}")))
            }
            addr => Ok(addr),
        }
    };
    let (first, last, gateway) = (inside("rangeStart")?, inside("rangeEnd")?, inside("gateway")?);
    if let (Some(first), Some(last)) = (first, last)
        && first > last
    {
        let value = Value::from(last.to_string());
        let expected = format!("write an address from rangeStart ({first}) on");
        return Err(CniError::value(&object.at("rangeEnd"), &value, &expected));
    }
    Ok(IpRange {
        range: AddressRange { subnet, first, last, except: gateway.into_iter().collect() },
        gateway,
    })
}
