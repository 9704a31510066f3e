//! Results of `ADD`, and of earlier plugins in a chain, in the form of every version.

use std::net::IpAddr;

use serde_json::{Map, Value, json};

use crate::plugins::cni::protocol::address::{self, Address};
use crate::plugins::cni::protocol::error::{CniError, code};
use crate::plugins::cni::protocol::json::Object;
use crate::plugins::cni::protocol::version::Version;

/// Interfaces, addresses and routes of a container in a network.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CniResult {
    /// Interfaces in the container and on the host (from 0.3.0 on).
    pub interfaces: Vec<Interface>,
    /// Addresses of the container.
    pub ips: Vec<Ip>,
    /// Routes in the container.
    pub routes: Vec<Route>,
    /// Name servers.
    pub dns: Dns,
    /// Fields of a later specification or of another plugin, passed on unchanged.
    pub extra: Map<String, Value>,
}

/// An interface in a result.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Interface {
    /// Name of the interface.
    pub name: String,
    /// MAC address; empty if there is none.
    pub mac: String,
    /// MTU in octets (1.1.0).
    pub mtu: Option<u64>,
    /// Path of the container's network namespace; empty for an interface of the host.
    pub sandbox: String,
    /// Other fields (`socketPath`, `pciID`), passed on unchanged.
    pub extra: Map<String, Value>,
}

/// An address in a result.
#[derive(Debug, Clone, PartialEq)]
pub struct Ip {
    /// Address with prefix length.
    pub address: Address,
    /// Default gateway for this address.
    pub gateway: Option<IpAddr>,
    /// Index of the interface with this address.
    pub interface: Option<usize>,
}

/// A route in a result.
#[derive(Debug, Clone, PartialEq)]
pub struct Route {
    /// Destination.
    pub dst: Address,
    /// Next hop; `None` for a route on the link.
    pub gw: Option<IpAddr>,
    /// Other fields (`mtu`, `advmss`, `priority`, `table`, `scope` of 1.1.0), passed on unchanged.
    pub extra: Map<String, Value>,
}

/// Name servers and resolver settings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dns {
    /// Addresses of name servers.
    pub nameservers: Vec<String>,
    /// Local domain.
    pub domain: String,
    /// Search domains.
    pub search: Vec<String>,
    /// Resolver options.
    pub options: Vec<String>,
}

impl Dns {
    /// Parses the `dns` object of a configuration or result.
    pub(in crate::plugins::cni) fn parse(object: &Object<'_>) -> Result<Self, CniError> {
        Ok(Self {
            nameservers: object.texts("nameservers")?,
            domain: object.text("domain")?.unwrap_or_default().to_owned(),
            search: object.texts("search")?,
            options: object.texts("options")?,
        })
    }

    /// True if no member is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn to_json(&self) -> Value {
        let mut object = Map::new();
        for (name, list) in
            [("nameservers", &self.nameservers), ("search", &self.search), ("options", &self.options)]
        {
            if !list.is_empty() {
                object.insert(name.into(), json!(list));
            }
        }
        if !self.domain.is_empty() {
            object.insert("domain".into(), json!(self.domain));
        }
        Value::Object(object)
    }
}

fn addr(object: &Object<'_>, name: &str) -> Result<Option<IpAddr>, CniError> {
    object.parsed(name, "write an address")
}

fn address(object: &Object<'_>, name: &str) -> Result<Address, CniError> {
    object.parsed(name, address::EXPECTED)?.ok_or_else(|| {
        CniError::new(code::CONFIG, format!("`{}` is missing: {}", object.at(name), address::EXPECTED))
    })
}

fn rest(object: &Object<'_>, known: &[&str]) -> Map<String, Value> {
    object.others(known).map(|(key, value)| (key.clone(), value.clone())).collect()
}

impl Route {
    pub(in crate::plugins::cni) fn parse(at: &str, value: &Value) -> Result<Self, CniError> {
        let object = Object::of(at, value)?;
        Ok(Self {
            dst: address(&object, "dst")?,
            gw: addr(&object, "gw")?,
            extra: rest(&object, &["dst", "gw"]),
        })
    }

    fn to_json(&self, version: Version) -> Value {
        let mut object = Map::new();
        object.insert("dst".into(), self.dst.to_string().into());
        if let Some(gw) = self.gw {
            object.insert("gw".into(), gw.to_string().into());
        }
        if version >= Version::V1_1_0 {
            object.extend(self.extra.clone());
        }
        Value::Object(object)
    }
}

impl CniResult {
    /// Parses a result. Its form is that of its own `cniVersion`, or of the configuration's if it has none.
    ///
    /// # Errors
    /// Code 1 for an unsupported version, code 7 for malformed members; `at` is the place in the
    /// configuration.
    pub fn parse(at: &str, value: &Value, config: Version) -> Result<Self, CniError> {
        let object = Object::of(at, value)?;
        let version = match object.text("cniVersion")? {
            Some(_) => Version::of(value.as_object().unwrap_or(&Map::new()))?,
            None => config,
        };
        let mut result = Self::default();
        if let Some(dns) = object.object("dns")? {
            result.dns = Dns::parse(&dns)?;
        }
        if version < Version::V0_3_0 {
            result.parse_old(&object)?;
            return Ok(result);
        }
        for (at, value) in object.list("interfaces")? {
            let object = Object::of(&at, value)?;
            result.interfaces.push(Interface {
                name: object.text("name")?.unwrap_or_default().to_owned(),
                mac: object.text("mac")?.unwrap_or_default().to_owned(),
                mtu: object.number("mtu", u32::MAX.into())?,
                sandbox: object.text("sandbox")?.unwrap_or_default().to_owned(),
                extra: rest(&object, &["name", "mac", "mtu", "sandbox"]),
            });
        }
        for (at, value) in object.list("ips")? {
            let object = Object::of(&at, value)?;
            let count = result.interfaces.len();
            let interface = object.number("interface", u32::MAX.into())?;
            let interface = interface.and_then(|i| usize::try_from(i).ok());
            if interface.is_some_and(|i| i >= count) {
                let value = object.get("interface").unwrap_or(&Value::Null);
                let expected = format!("write the place of one of the {count} interfaces, from 0");
                return Err(CniError::value(&object.at("interface"), value, &expected));
            }
            let (address, gateway) = (address(&object, "address")?, addr(&object, "gateway")?);
            result.ips.push(Ip { address, gateway, interface });
        }
        for (at, value) in object.list("routes")? {
            result.routes.push(Route::parse(&at, value)?);
        }
        result.extra = rest(&object, &["cniVersion", "interfaces", "ips", "routes", "dns"]);
        Ok(result)
    }

    fn parse_old(&mut self, object: &Object<'_>) -> Result<(), CniError> {
        for name in ["ip4", "ip6"] {
            let Some(part) = object.object(name)? else { continue };
            let ip = Ip { address: address(&part, "ip")?, gateway: addr(&part, "gateway")?, interface: None };
            if ip.address.ip.is_ipv4() != (name == "ip4") {
                let value = part.get("ip").unwrap_or(&Value::Null);
                return Err(CniError::value(&part.at("ip"), value, "write an address of the other family"));
            }
            self.ips.push(ip);
            for (at, value) in part.list("routes")? {
                self.routes.push(Route::parse(&at, value)?);
            }
        }
        Ok(())
    }

    /// Formats the result for a version. 0.1.0 and 0.2.0 have no interfaces, and one address per family: the
    /// first.
    #[must_use]
    pub fn to_json(&self, version: Version) -> Value {
        let mut object = Map::new();
        object.insert("cniVersion".into(), version.as_str().into());
        if version < Version::V0_3_0 {
            self.old_form(&mut object);
        } else {
            self.new_form(version, &mut object);
        }
        object.insert("dns".into(), self.dns.to_json());
        Value::Object(object)
    }

    fn old_form(&self, object: &mut Map<String, Value>) {
        for (name, v4) in [("ip4", true), ("ip6", false)] {
            let Some(ip) = self.ips.iter().find(|ip| ip.address.ip.is_ipv4() == v4) else { continue };
            let mut part = Map::new();
            part.insert("ip".into(), ip.address.to_string().into());
            if let Some(gateway) = ip.gateway {
                part.insert("gateway".into(), gateway.to_string().into());
            }
            let routes = self.routes.iter().filter(|route| route.dst.ip.is_ipv4() == v4);
            let routes: Vec<Value> = routes.map(|route| route.to_json(Version::V0_2_0)).collect();
            if !routes.is_empty() {
                part.insert("routes".into(), routes.into());
            }
            object.insert(name.into(), Value::Object(part));
        }
    }

    fn new_form(&self, version: Version, object: &mut Map<String, Value>) {
        let interface = |interface: &Interface| {
            let mut part = Map::new();
            part.insert("name".into(), interface.name.clone().into());
            if !interface.mac.is_empty() {
                part.insert("mac".into(), interface.mac.clone().into());
            }
            if let Some(mtu) = interface.mtu.filter(|_| version >= Version::V1_1_0) {
                part.insert("mtu".into(), mtu.into());
            }
            if !interface.sandbox.is_empty() {
                part.insert("sandbox".into(), interface.sandbox.clone().into());
            }
            if version >= Version::V1_1_0 {
                part.extend(interface.extra.clone());
            }
            Value::Object(part)
        };
        let ip = |ip: &Ip| {
            let mut part = Map::new();
            if version < Version::V1_0_0 {
                part.insert("version".into(), if ip.address.ip.is_ipv4() { "4" } else { "6" }.into());
            }
            part.insert("address".into(), ip.address.to_string().into());
            if let Some(gateway) = ip.gateway {
                part.insert("gateway".into(), gateway.to_string().into());
            }
            if let Some(index) = ip.interface {
                part.insert("interface".into(), index.into());
            }
            Value::Object(part)
        };
        if !self.interfaces.is_empty() {
            object.insert("interfaces".into(), self.interfaces.iter().map(interface).collect());
        }
        object.insert("ips".into(), self.ips.iter().map(ip).collect());
        if !self.routes.is_empty() {
            object.insert("routes".into(), self.routes.iter().map(|route| route.to_json(version)).collect());
        }
        object.extend(self.extra.clone());
    }
}

#[cfg(test)]
#[path = "result_tests.rs"]
mod tests;
