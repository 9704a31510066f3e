//! The Node of this host: BGP addresses, tunnel addresses, interfaces.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde_json::{Value, json};

use super::super::{Kind, ObjectError, ObjectKey};
use super::draft::{Birth, Draft, Edit};
use crate::resource::Asn;

/// Changes of a Node. What is kept may be absent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeChanges {
    /// IPv4 address with the prefix length of its network (`spec.bgp.ipv4Address`).
    pub ipv4_address: Edit<(Ipv4Addr, u8)>,
    /// IPv6 address with the prefix length of its network (`spec.bgp.ipv6Address`).
    pub ipv6_address: Edit<(Ipv6Addr, u8)>,
    /// AS number of the host (`spec.bgp.asNumber`).
    pub as_number: Edit<Asn>,
    /// IPIP tunnel address (`spec.bgp.ipv4IPIPTunnelAddr`).
    pub ipip_address: Edit<Ipv4Addr>,
    /// VXLAN tunnel address (`spec.ipv4VXLANTunnelAddr`).
    pub vxlan_address: Edit<Ipv4Addr>,
    /// VXLAN tunnel address of IPv6 (`spec.ipv6VXLANTunnelAddr`).
    pub vxlan_address_v6: Edit<Ipv6Addr>,
    /// Interfaces with their addresses (`spec.interfaces`), sorted by name.
    pub interfaces: Edit<Vec<(String, Vec<IpAddr>)>>,
}

/// Returns the value of the Node of a host, or `None` if it does not change. Without any BGP member `spec.bgp`
/// is absent, because Calico refuses an empty one.
///
/// # Errors
/// If the stored value is no object: it must be repaired first, because nothing of it may be lost.
pub fn node(
    host: &str,
    stored: Option<&[u8]>,
    changes: &NodeChanges,
    birth: &Birth,
) -> Result<Option<Vec<u8>>, ObjectError> {
    let mut draft = Draft::open(&ObjectKey::global(Kind::Node, host), stored, birth)?;
    let mut bgp = draft.spec.object("bgp")?;
    changes.as_number.apply(&mut bgp, "asNumber", |asn| json!(asn.get()));
    changes.ipv4_address.apply(&mut bgp, "ipv4Address", |(addr, len)| json!(format!("{addr}/{len}")));
    changes.ipv6_address.apply(&mut bgp, "ipv6Address", |(addr, len)| json!(format!("{addr}/{len}")));
    changes.ipip_address.apply(&mut bgp, "ipv4IPIPTunnelAddr", text);
    draft.spec.set_object("bgp", &bgp);
    changes.vxlan_address.apply(&mut draft.spec, "ipv4VXLANTunnelAddr", text);
    changes.vxlan_address_v6.apply(&mut draft.spec, "ipv6VXLANTunnelAddr", text);
    changes.interfaces.apply(&mut draft.spec, "interfaces", |list| {
        let interface = |(name, addresses): &(String, Vec<IpAddr>)| {
            let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
            json!({"name": name, "addresses": addresses})
        };
        Value::Array(list.iter().map(interface).collect())
    });
    Ok(draft.close())
}

fn text(value: &impl ToString) -> Value {
    Value::String(value.to_string())
}
