//! Registration of the host and its tunnel addresses.
//!
//! [`Registration`] is what is known at the start of an agent: flags and the addresses of the host. Which
//! address the host registers is decided once for both dialects ([`Registration::address`]): a flag has
//! priority, then the stored value; without both, `auto` (the default for IPv4) uses the detected address.
//!
//! | noun | v1 | Calico 3 |
//! | --- | --- | --- |
//! | host | `v1/host/<h>/{metadata,bird_ip,config/..}`, `bgp/v1/host/<h>/..` | Node |
//! | cluster | `v1/Ready`, `bgp/v1/global/{as_num,node_mesh}` | ClusterInformation |
//! | tunnel address | `v1/host/<h>/config/..` | member of the Node |
//!
//! In a Calico 3 store neither pools nor configuration objects are created: an absent one has defaults.

use std::net::IpAddr;

use tortie_config::Dialect;
use tortie_config::calico3::write::{
    Birth, Edit, NodeChanges, cluster_information, cluster_information_key, node,
};
use tortie_config::calico3::{Kind, Object, ObjectError, ObjectKey};
use tortie_config::key::{BgpItem, IpFamily, Key, Scope};
use tortie_config::resource::{Asn, Setting};
use tortie_net::Cidr;
use tortie_store::{Compare, KeyValue, Op, Txn};

use super::Writer;

/// An address of a host with the prefix length of its network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeAddress {
    /// Address of the host.
    pub addr: IpAddr,
    /// Prefix length of the network.
    pub len: u8,
}

impl NodeAddress {
    fn network(self) -> Option<Cidr> {
        Cidr::new(self.addr, self.len).ok()
    }
}

/// Flag for the address of one family.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AddressFlag {
    /// No flag: the stored address, else the default of the family.
    #[default]
    Unset,
    /// The detected address.
    Auto,
    /// None: the host does not use this family.
    Nothing,
    /// This address.
    Given(NodeAddress),
}

/// Address of one family: the flag, and what the host has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AddressSource {
    /// What the operator gave.
    pub flag: AddressFlag,
    /// Address of the interface that has the default route.
    pub detected: Option<NodeAddress>,
}

/// What a host registers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registration {
    /// Name of the host.
    pub node: String,
    /// IPv4 address.
    pub ipv4: AddressSource,
    /// IPv6 address.
    pub ipv6: AddressSource,
    /// AS number given by a flag.
    pub asn: Option<u32>,
}

/// Stored address of a host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct StoredAddress {
    /// A value is stored; it may be unreadable.
    exists: bool,
    /// The address that is stored without its network.
    bare: Option<IpAddr>,
}

impl Registration {
    fn source(&self, family: IpFamily) -> AddressSource {
        match family {
            IpFamily::V4 => self.ipv4,
            IpFamily::V6 => self.ipv6,
        }
    }

    /// Returns true if a flag decides the address.
    fn is_given(&self, family: IpFamily) -> bool {
        self.source(family).flag != AddressFlag::Unset
    }

    /// Decides the address of a family. A stored address without its network is completed only if the host
    /// has that address.
    fn address(&self, family: IpFamily, stored: StoredAddress) -> Edit<NodeAddress> {
        let AddressSource { flag, detected } = self.source(family);
        let set = |found: Option<NodeAddress>| found.map_or(Edit::Keep, Edit::Set);
        match flag {
            AddressFlag::Given(address) => Edit::Set(address),
            AddressFlag::Auto => set(detected),
            AddressFlag::Nothing => Edit::Remove,
            AddressFlag::Unset if stored.exists => {
                set(detected.filter(|found| Some(found.addr) == stored.bare))
            }
            AddressFlag::Unset if family == IpFamily::V6 => Edit::Keep,
            AddressFlag::Unset => set(detected),
        }
    }
}

/// Kind of tunnel with an address of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TunnelKind {
    /// IPIP.
    Ipip,
    /// VXLAN between IPv4 addresses of hosts.
    Vxlan,
    /// VXLAN between IPv6 addresses of hosts.
    VxlanV6,
}

impl TunnelKind {
    /// Returns the family of the address.
    #[must_use]
    pub const fn family(self) -> IpFamily {
        match self {
            Self::Ipip | Self::Vxlan => IpFamily::V4,
            Self::VxlanV6 => IpFamily::V6,
        }
    }

    /// Returns the setting that has the address in a v1 store.
    const fn setting(self) -> &'static str {
        let [ipip, vxlan, vxlan_v6] = Setting::TUNNEL_ADDRESSES;
        match self {
            Self::Ipip => ipip,
            Self::Vxlan => vxlan,
            Self::VxlanV6 => vxlan_v6,
        }
    }

    /// Returns the member of a Node that has the address, below `spec`.
    const fn member(self) -> &'static [&'static str] {
        match self {
            Self::Ipip => &["bgp", "ipv4IPIPTunnelAddr"],
            Self::Vxlan => &["ipv4VXLANTunnelAddr"],
            Self::VxlanV6 => &["ipv6VXLANTunnelAddr"],
        }
    }

    fn change(self, addr: Option<IpAddr>) -> NodeChanges {
        let (mut ipv4, mut ipv6) = (Edit::Remove, Edit::Remove);
        match addr {
            Some(IpAddr::V4(addr)) => ipv4 = Edit::Set(addr),
            Some(IpAddr::V6(addr)) => ipv6 = Edit::Set(addr),
            None => {}
        }
        match self {
            Self::Ipip => NodeChanges { ipip_address: ipv4, ..NodeChanges::default() },
            Self::Vxlan => NodeChanges { vxlan_address: ipv4, ..NodeChanges::default() },
            Self::VxlanV6 => NodeChanges { vxlan_address_v6: ipv6, ..NodeChanges::default() },
        }
    }
}

/// Reason why a noun is not written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// The stored object cannot be parsed, and nothing of it may be lost.
    #[error("{key}: {error}: repair it first, or delete it; until then nothing is written there")]
    Unreadable {
        /// Key of the object.
        key: String,
        /// Error of the parser.
        error: ObjectError,
    },
    /// The host has no Node.
    #[error("{0} does not exist: the agent of this host creates it when it starts")]
    NoNode(String),
}

fn unreadable(key: &str) -> impl Fn(ObjectError) -> WriteError + '_ {
    move |error| WriteError::Unreadable { key: key.to_owned(), error }
}

impl Writer {
    /// Returns the keys that [`Writer::register`] reads.
    #[must_use]
    pub fn registration_keys(self, node: &str) -> Vec<String> {
        if self.dialect() == Dialect::V3 {
            return vec![node_key(node)];
        }
        let host = Scope::Host(node.to_owned());
        let keys = [
            Key::HostMetadata { host: node.to_owned() },
            Key::BirdIp { host: node.to_owned() },
            Key::Setting(host.clone(), "DefaultEndpointToHostAction".to_owned()),
            Key::Ready,
            Key::Bgp(Scope::Global, BgpItem::AsNum),
            Key::Bgp(Scope::Global, BgpItem::NodeMesh),
            Key::Bgp(host.clone(), BgpItem::AsNum),
            Key::Bgp(host.clone(), BgpItem::Address(IpFamily::V4)),
            Key::Bgp(host.clone(), BgpItem::Address(IpFamily::V6)),
            Key::Bgp(host.clone(), BgpItem::Network(IpFamily::V4)),
            Key::Bgp(host, BgpItem::Network(IpFamily::V6)),
        ];
        keys.iter().map(ToString::to_string).collect()
    }

    /// Returns the transaction that registers a host, or `None` if the store is complete. No pool is created,
    /// and global defaults only in a v1 store, where they are absent.
    ///
    /// # Errors
    /// If the stored Node cannot be parsed.
    pub fn register(
        self,
        registration: &Registration,
        stored: &[Option<KeyValue>],
        birth: &Birth,
    ) -> Result<Option<Txn>, WriteError> {
        let stored = |key: &str| stored.iter().flatten().find(|kv| kv.key == key);
        match self.dialect() {
            Dialect::V1 => {
                let value = |key: &Key| stored(&key.to_string()).map(|kv| kv.value.clone());
                Ok(register_v1(registration, &value))
            }
            Dialect::V3 => register_v3(registration, stored(&node_key(&registration.node)), birth),
        }
    }

    /// Returns the key of the object that says that a cluster is ready, and the transaction that creates it;
    /// `None` in a v1 store, whose `Ready` is written with the first host. An object that exists is not
    /// changed: another program made it, and may have locked the store by it.
    ///
    /// `guid` is a random number of 32 hexadecimal digits.
    #[must_use]
    pub fn cluster(self, guid: &str, birth: &Birth) -> Option<(String, Txn)> {
        if self.dialect() == Dialect::V1 {
            return None;
        }
        let key = cluster_information_key().to_string();
        // Only the parser of a stored value fails.
        let value = cluster_information(None, guid, birth).ok().flatten()?;
        let txn = Txn { compare: vec![Compare::Absent(key.clone())], ops: vec![put(&key, value)] };
        Some((key, txn))
    }

    /// Returns the key that has a tunnel address of a host.
    #[must_use]
    pub fn tunnel_address_key(self, node: &str, kind: TunnelKind) -> String {
        match self.dialect() {
            Dialect::V1 => Key::Setting(Scope::Host(node.to_owned()), kind.setting().to_owned()).to_string(),
            Dialect::V3 => node_key(node),
        }
    }

    /// Returns the tunnel address in the value of [`Writer::tunnel_address_key`]; `None` if there is none of
    /// the family, or the value cannot be parsed.
    #[must_use]
    pub fn stored_tunnel_address(self, kind: TunnelKind, stored: &KeyValue) -> Option<IpAddr> {
        let addr: IpAddr = match self.dialect() {
            Dialect::V1 => std::str::from_utf8(&stored.value).ok()?.trim().parse().ok()?,
            Dialect::V3 => {
                let node = object(stored).ok()?;
                let (first, rest) = kind.member().split_first()?;
                let found = rest.iter().try_fold(node.spec.get(*first)?, |value, member| value.get(member));
                found?.as_str()?.parse().ok()?
            }
        };
        Some(addr).filter(|addr| IpFamily::of(*addr) == kind.family())
    }

    /// Returns the transaction that writes a tunnel address of a host, or removes it (`None`). `stored` is the
    /// entry of [`Writer::tunnel_address_key`]. Returns `None` if nothing changes.
    ///
    /// # Errors
    /// If the stored Node cannot be parsed, or does not exist.
    pub fn tunnel_address(
        self,
        node: &str,
        kind: TunnelKind,
        addr: Option<IpAddr>,
        stored: Option<&KeyValue>,
        birth: &Birth,
    ) -> Result<Option<Txn>, WriteError> {
        let key = self.tunnel_address_key(node, kind);
        let op = match (self.dialect(), addr, stored) {
            (_, None, None) => return Ok(None),
            (Dialect::V1, None, Some(_)) => Op::Delete { key: key.clone() },
            (Dialect::V1, Some(addr), _) => put(&key, addr.to_string().into_bytes()),
            (Dialect::V3, Some(_), None) => return Err(WriteError::NoNode(key)),
            (Dialect::V3, addr, Some(stored)) => {
                let changes = kind.change(addr);
                match self::node(node, Some(&stored.value), &changes, birth).map_err(unreadable(&key))? {
                    Some(value) => put(&key, value),
                    None => return Ok(None),
                }
            }
        };
        Ok(Some(Txn { compare: vec![compare(&key, stored)], ops: vec![op] }))
    }
}

fn node_key(node: &str) -> String {
    ObjectKey::global(Kind::Node, node).to_string()
}

fn object(stored: &KeyValue) -> Result<Object, ObjectError> {
    let key = ObjectKey::parse(&stored.key).unwrap_or_else(|| ObjectKey::global(Kind::Node, ""));
    Object::parse(key, &stored.value, stored.create_revision, stored.mod_revision)
}

/// Returns the condition that an entry is still as it was read.
fn compare(key: &str, stored: Option<&KeyValue>) -> Compare {
    match stored {
        Some(kv) => Compare::ModRevision(key.to_owned(), kv.mod_revision),
        None => Compare::Absent(key.to_owned()),
    }
}

fn put(key: &str, value: Vec<u8>) -> Op {
    Op::Put { key: key.to_owned(), value, lease: None }
}

fn register_v3(
    registration: &Registration,
    stored: Option<&KeyValue>,
    birth: &Birth,
) -> Result<Option<Txn>, WriteError> {
    let key = node_key(&registration.node);
    let found = stored.map(object).transpose().map_err(unreadable(&key))?;
    let bgp = found.as_ref().and_then(|node| node.spec.get("bgp"));
    let address = |member: &str| {
        let text = bgp.and_then(|bgp| bgp.get(member)?.as_str()).unwrap_or_default().trim();
        StoredAddress { exists: !text.is_empty(), bare: text.parse().ok() }
    };
    let mut changes = NodeChanges {
        as_number: registration
            .asn
            .and_then(|asn| asn.to_string().parse::<Asn>().ok())
            .map_or(Edit::Keep, Edit::Set),
        ..NodeChanges::default()
    };
    match registration.address(IpFamily::V4, address("ipv4Address")) {
        Edit::Set(NodeAddress { addr: IpAddr::V4(addr), len }) => {
            changes.ipv4_address = Edit::Set((addr, len));
        }
        Edit::Remove => changes.ipv4_address = Edit::Remove,
        Edit::Set(_) | Edit::Keep => {}
    }
    match registration.address(IpFamily::V6, address("ipv6Address")) {
        Edit::Set(NodeAddress { addr: IpAddr::V6(addr), len }) => {
            changes.ipv6_address = Edit::Set((addr, len));
        }
        Edit::Remove => changes.ipv6_address = Edit::Remove,
        Edit::Set(_) | Edit::Keep => {}
    }
    let value = node(&registration.node, stored.map(|kv| kv.value.as_slice()), &changes, birth);
    let Some(value) = value.map_err(unreadable(&key))? else { return Ok(None) };
    Ok(Some(Txn { compare: vec![compare(&key, stored)], ops: vec![put(&key, value)] }))
}

fn register_v1(registration: &Registration, stored: &dyn Fn(&Key) -> Option<Vec<u8>>) -> Option<Txn> {
    let node = registration.node.as_str();
    let mut txn = Txn::default();
    let absent = |key: Key, value: &str, txn: &mut Txn| {
        if stored(&key).is_none() {
            txn.compare.push(Compare::Absent(key.to_string()));
            txn.ops.push(put(&key.to_string(), value.into()));
        }
    };
    let host = || Scope::Host(node.to_owned());
    absent(Key::HostMetadata { host: node.to_owned() }, "{}", &mut txn);
    absent(Key::Setting(host(), "DefaultEndpointToHostAction".to_owned()), "RETURN", &mut txn);
    absent(Key::Ready, "true", &mut txn);
    absent(Key::Bgp(Scope::Global, BgpItem::AsNum), "64512", &mut txn);
    absent(Key::Bgp(Scope::Global, BgpItem::NodeMesh), r#"{"enabled":true}"#, &mut txn);
    let mut own = |key: Key, value: Option<String>| match (stored(&key), value) {
        (Some(old), Some(value)) if old != value.as_bytes() => {
            txn.compare.push(Compare::Value(key.to_string(), old));
            txn.ops.push(put(&key.to_string(), value.into()));
        }
        (None, Some(value)) => {
            txn.compare.push(Compare::Absent(key.to_string()));
            txn.ops.push(put(&key.to_string(), value.into()));
        }
        (Some(_), None) => txn.ops.push(Op::Delete { key: key.to_string() }),
        _ => {}
    };
    for family in [IpFamily::V4, IpFamily::V6] {
        let address = Key::Bgp(host(), BgpItem::Address(family));
        let network = Key::Bgp(host(), BgpItem::Network(family));
        let bird_ip = Key::BirdIp { host: node.to_owned() };
        let text = stored(&address).unwrap_or_default();
        let text = std::str::from_utf8(&text).unwrap_or("?").trim();
        let is_bare = family == IpFamily::V4 && (stored(&network).is_none() || stored(&bird_ip).is_none());
        let bare = if is_bare && !registration.is_given(family) { text.parse().ok() } else { None };
        let was = StoredAddress { exists: !text.is_empty(), bare };
        match registration.address(family, was) {
            Edit::Keep => {}
            Edit::Remove => {
                own(address, Some(String::new()));
                own(network, None);
            }
            Edit::Set(wanted) => {
                let text = wanted.addr.to_string();
                let network = (network, wanted.network().map(|net| net.to_string()));
                let bird_ip = (bird_ip, (family == IpFamily::V4).then(|| text.clone()));
                // What completes a stored address replaces nothing.
                let is_completed = was.bare.is_some();
                for (key, value) in [(address, Some(text)), network, bird_ip] {
                    if value.is_some() && !(is_completed && stored(&key).is_some()) {
                        own(key, value);
                    }
                }
            }
        }
    }
    if let Some(asn) = registration.asn {
        own(Key::Bgp(host(), BgpItem::AsNum), Some(asn.to_string()));
    }
    (!txn.ops.is_empty()).then_some(txn)
}

#[cfg(test)]
mod tests;
