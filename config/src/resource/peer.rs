//! Explicit BGP peers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use serde_json::Value;

use super::asn::{self, Asn, PeerAs};
use super::json::{Extra, Fields, Writer, texts};
use super::peer_auth::{Password, TcpAo};
use super::peer_options::{
    AddPath, Bfd, MaxPrefixes, NextHopMode, Role, SourceAddr, shutdown_json, take_shutdown,
};
use super::text::CLUSTER_ID;
use super::{ValueError, duration};
use crate::key::IpFamily;
use tortie_net::Cidr;

/// Value of `peer_v4/<ip>`, `peer_v6/<ip>`, `peer_interface/<interface>` and `peer_range/<prefix>`, global or
/// of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Address of the peer. For an unnumbered peer its link-local address, or `::` if router advertisements
    /// provide it; for a range its first address.
    pub ip: IpAddr,
    /// Interface of an unnumbered peer.
    pub interface: Option<String>,
    /// Prefix of a peer range, whose peers are dynamic.
    pub range: Option<Cidr>,
    /// Maximum number of concurrent sessions of a range.
    pub max_sessions: Option<u32>,
    /// AS of the peer.
    pub as_num: PeerAs,
    /// TCP port of the peer; `None` for 179, or for the node's `listen_port` if the peer is a node.
    pub port: Option<u16>,
    /// TCP MD5 secret.
    pub password: Option<Password>,
    /// TCP-AO key; excludes `password`.
    pub tcp_ao: Option<TcpAo>,
    /// Local address of the session.
    pub source_addr: SourceAddr,
    /// Cluster id of the peer, if it is a route reflector.
    pub rr_cluster_id: Option<Ipv4Addr>,
    /// Restart time to advertise (RFC 4724), in whole seconds up to 4095.
    pub restart_time: Option<Duration>,
    /// Long-lived stale time to advertise (RFC 9494), and maximum time for which the peer's routes are kept
    /// after its restart time, in whole seconds up to 16,777,215. `None` disables both.
    pub long_lived_restart_time: Option<Duration>,
    /// Keepalive interval in whole seconds.
    pub keepalive_time: Option<Duration>,
    /// Hold time to propose: 0, or 3 to 65535 whole seconds (RFC 4271, section 4.2).
    pub hold_time: Option<Duration>,
    /// Send hold time (RFC 9687): time without progress in sending after which the session is closed, in
    /// whole seconds.
    pub send_hold_time: Option<Duration>,
    /// Next hop of announced routes.
    pub next_hop_mode: Option<NextHopMode>,
    /// Keep the next hop towards eBGP peers; `next_hop_mode` takes precedence.
    pub keep_next_hop: bool,
    /// Maximum distance of the peer in hops (RFC 5082), 1 to 254.
    pub ttl_security: Option<u8>,
    /// Number of times that the local AS may occur in a received AS path.
    pub num_allow_local_as: u8,
    /// Local AS number for this peer, if it differs from the host's.
    pub local_as_num: Option<Asn>,
    /// Never dial the peer.
    pub passive_mode: bool,
    /// The address is one of a node of the cluster, written by Calico 3: for a global peer the host whose
    /// address is greater as text dials.
    pub calico_node: bool,
    /// The peer is a workload of this host.
    pub local_bgp_peer: bool,
    /// Gateway by which the peer is reached.
    pub reachable_by: Option<IpAddr>,
    /// Administrative shutdown: there is no session, and the peer receives this text (RFC 9003), at most 255
    /// octets; empty for no text.
    pub shutdown: Option<String>,
    /// Names of filters, in order.
    pub filters: Vec<String>,
    /// Limits on the number of received and announced prefixes.
    pub max_prefixes: Option<MaxPrefixes>,
    /// BFD parameters; `None` for no BFD.
    pub bfd: Option<Bfd>,
    /// Local BGP role (RFC 9234).
    pub role: Option<Role>,
    /// Reject eBGP peers that advertise no role (RFC 9234, section 4.2, strict mode).
    pub role_strict: bool,
    /// Several paths per prefix (RFC 7911).
    pub add_path: Option<AddPath>,
    /// Address families to carry, without repetition. If empty, both, as far as both ends have an address.
    pub families: Vec<IpFamily>,
    /// Offer extended messages (RFC 8654); `None` for the speaker's default.
    pub extended_messages: Option<bool>,
    /// Announce only routes that this host originates.
    pub own_only: bool,
    /// Accept routes inside of pools.
    pub import_pools: bool,
    /// Unknown fields, kept when the value is written.
    pub extra: Extra,
}

const SECOND: Duration = Duration::from_secs(1);

impl Peer {
    /// Creates a peer with an address, an AS and defaults.
    #[must_use]
    pub fn new(ip: IpAddr, as_num: impl Into<PeerAs>) -> Self {
        Self {
            ip,
            interface: None,
            range: None,
            max_sessions: None,
            as_num: as_num.into(),
            port: None,
            password: None,
            tcp_ao: None,
            source_addr: SourceAddr::default(),
            rr_cluster_id: None,
            restart_time: None,
            long_lived_restart_time: None,
            keepalive_time: None,
            hold_time: None,
            send_hold_time: None,
            next_hop_mode: None,
            keep_next_hop: false,
            ttl_security: None,
            num_allow_local_as: 0,
            local_as_num: None,
            passive_mode: false,
            calico_node: false,
            local_bgp_peer: false,
            reachable_by: None,
            shutdown: None,
            filters: Vec::new(),
            max_prefixes: None,
            bfd: None,
            role: None,
            role_strict: false,
            add_path: None,
            families: Vec::new(),
            extended_messages: None,
            own_only: false,
            import_pools: true,
            extra: Extra::default(),
        }
    }

    /// Parses the value of the key of this address and port.
    ///
    /// # Errors
    /// If a field is malformed, or address or port differ from the key.
    pub fn parse(key_ip: IpAddr, key_port: Option<u16>, bytes: &[u8]) -> Result<Self, ValueError> {
        let mut fields = Fields::parse(bytes)?;
        same_address(&mut fields, key_ip)?;
        if matches!(key_ip, IpAddr::V6(addr) if addr.is_unicast_link_local()) {
            let expected = "write peer_interface/IFACE, with this `ip` where the neighbour sends no router advertisements: the \
                            address alone does not say on which link it is";
            return Err(ValueError::new("ip", format_args!("`{key_ip}`"), expected));
        }
        Self::read(&mut fields, key_ip, key_port)
    }

    /// Parses the value of an interface key. It is like that of an address key, but `as_num` may also be
    /// `external` or `internal`, there is no `source_addr`, and `ip` is only needed if the neighbour sends no
    /// router advertisements.
    ///
    /// # Errors
    /// If a field is malformed, or the interface differs from the key.
    pub fn parse_interface(key: &str, bytes: &[u8]) -> Result<Self, ValueError> {
        let mut fields = Fields::parse(bytes)?;
        if let Some(interface) = fields.text("interface")?.filter(|interface| interface != key) {
            let expected = format!("the key says {key}: make them equal");
            return Err(ValueError::new("interface", format_args!("`{interface}`"), expected));
        }
        let expected = "write the neighbour's link-local address, or leave it to router advertisements";
        let ip = fields.parsed::<Ipv6Addr>("ip", expected)?;
        if let Some(ip) = ip.filter(|ip| !ip.is_unicast_link_local()) {
            return Err(ValueError::new("ip", format_args!("`{ip}`"), expected));
        }
        if fields.take("source_addr").is_some() {
            let expected = "leave it out: an unnumbered session has the interface's link-local address";
            return Err(ValueError::new("source_addr", "it together with an interface", expected));
        }
        let mut peer = Self::read(&mut fields, ip.unwrap_or(Ipv6Addr::UNSPECIFIED).into(), None)?;
        peer.interface = Some(key.to_owned());
        Ok(peer)
    }

    /// Parses the value of a range key. It is like that of an address key, with `max_sessions`, and without
    /// the fields that only a single peer can have (`ip`, `port`, `source_addr`).
    ///
    /// # Errors
    /// If a field is malformed, or the prefix differs from the key.
    pub fn parse_range(key: Cidr, bytes: &[u8]) -> Result<Self, ValueError> {
        let mut fields = Fields::parse(bytes)?;
        if let Some(prefix) = fields.parsed::<Cidr>("prefix", "write ADDRESS/LENGTH")?.filter(|p| *p != key) {
            let expected = format!("the key says {key}: make them equal");
            return Err(ValueError::new("prefix", format_args!("`{prefix}`"), expected));
        }
        for field in ["ip", "port", "source_addr"] {
            if fields.take(field).is_some() {
                let expected = "leave it out: the peers of a range dial us, from any of its addresses";
                return Err(ValueError::new(field, "it together with a range", expected));
            }
        }
        if matches!(key.addr(), IpAddr::V6(addr) if addr.is_unicast_link_local()) {
            let expected = "write peer_interface/IFACE for neighbours with link-local addresses";
            return Err(ValueError::new("", format_args!("`{key}`"), expected));
        }
        let max_sessions = fields.number("max_sessions", 1, 65535)?;
        let mut peer = Self::read(&mut fields, key.addr(), None)?;
        (peer.range, peer.max_sessions) = (Some(key), max_sessions);
        Ok(peer)
    }

    fn read(fields: &mut Fields, key_ip: IpAddr, key_port: Option<u16>) -> Result<Self, ValueError> {
        let as_num = match fields.take("as_num") {
            Some(value) => PeerAs::from_json(&value).map_err(|error| error.within("as_num"))?,
            None => return Err(ValueError::missing("as_num", asn::EXPECTED)),
        };
        let mut peer = Self::new(key_ip, as_num);
        peer.port = port(fields, key_port)?;
        peer.password = Password::take(fields)?;
        peer.tcp_ao = TcpAo::take(fields)?;
        peer.source_addr = fields.parsed("source_addr", SourceAddr::EXPECTED)?.unwrap_or_default();
        peer.rr_cluster_id = fields.parsed("rr_cluster_id", CLUSTER_ID)?;
        peer.times(fields)?;
        peer.next_hop_mode = fields.parsed("next_hop_mode", NextHopMode::EXPECTED)?;
        peer.keep_next_hop = fields.flag("keep_next_hop")?;
        peer.ttl_security = fields.number("ttl_security", 0, 254)?.filter(|hops| *hops != 0);
        peer.num_allow_local_as = fields.number("num_allow_local_as", 0, 255)?.unwrap_or(0);
        peer.local_as_num = local_as(fields)?;
        peer.passive_mode = fields.flag("passive_mode")?;
        peer.calico_node = fields.flag("calico_node")?;
        peer.local_bgp_peer = fields.flag("local_bgp_peer")?;
        peer.reachable_by = fields.parsed("reachable_by", "write the address of a gateway")?;
        peer.shutdown = take_shutdown(fields)?;
        peer.filters = fields.names("filters")?;
        peer.max_prefixes = MaxPrefixes::take(fields)?;
        peer.bfd = Bfd::take(fields)?;
        peer.role = fields.parsed("role", Role::EXPECTED)?;
        peer.role_strict = fields.flag("role_strict")?;
        peer.add_path = AddPath::take(fields)?;
        peer.families = families(fields)?;
        peer.extended_messages = fields.bool("extended_messages")?;
        peer.own_only = fields.flag("own_only")?;
        peer.import_pools = fields.bool("import_pools")?.unwrap_or(true);
        peer.extra = std::mem::take(fields).rest();
        peer.check().map(|()| peer)
    }

    fn times(&mut self, fields: &mut Fields) -> Result<(), ValueError> {
        let seconds = Duration::from_secs;
        self.restart_time = duration::field(fields, "restart_time", SECOND, seconds(0), seconds(4095))?;
        let (long_lived, most) = ("long_lived_restart_time", seconds(16_777_215));
        self.long_lived_restart_time = duration::field(fields, long_lived, SECOND, seconds(0), most)?;
        self.keepalive_time = duration::field(fields, "keepalive_time", SECOND, seconds(1), seconds(65535))?;
        self.hold_time = duration::field(fields, "hold_time", SECOND, seconds(0), seconds(65535))?;
        self.send_hold_time = duration::field(fields, "send_hold_time", SECOND, seconds(1), seconds(65535))?;
        Ok(())
    }

    fn check(&self) -> Result<(), ValueError> {
        if self.password.is_some() && self.tcp_ao.is_some() {
            let expected = "give one of the two: a connection is signed with TCP MD5 or with TCP-AO";
            return Err(ValueError::new("tcp_ao", "it together with a password", expected));
        }
        let seconds = |time: Duration| format!("`{}`", duration::text(time));
        if let Some(hold) = self.hold_time {
            if hold == SECOND || hold == SECOND * 2 {
                return Err(ValueError::new(
                    "hold_time",
                    seconds(hold),
                    "write 0 or 3s to 65535s (RFC 4271 4.2)",
                ));
            }
            if let Some(keepalive) = self.keepalive_time.filter(|k| !hold.is_zero() && *k >= hold) {
                let expected = format!("write less than the hold time of {}", duration::text(hold));
                return Err(ValueError::new("keepalive_time", seconds(keepalive), expected));
            }
        }
        match self.source_addr {
            SourceAddr::Addr(addr) if addr.is_ipv4() != self.ip.is_ipv4() => Err(ValueError::new(
                "source_addr",
                format_args!("`{addr}`"),
                "write one of the peer's family",
            )),
            _ => Ok(()),
        }
    }

    /// Formats the value in its newest form. It may contain the password and must not be logged.
    #[must_use]
    pub fn to_value(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.put_some("interface", self.interface.clone());
        if let Some(range) = &self.range {
            writer.put("prefix", range.to_string());
            writer.put_some("max_sessions", self.max_sessions);
        } else if self.interface.is_none() || !self.ip.is_unspecified() {
            writer.put("ip", self.ip.to_string());
        }
        // Formatted as a string, because readers that used Calico's template engine turned large numbers into
        // exponent notation.
        writer.put("as_num", self.as_num.to_string());
        writer.put_some("port", self.port);
        if let Some(password) = &self.password {
            password.write(&mut writer);
        }
        writer.put_some("tcp_ao", self.tcp_ao.as_ref().map(TcpAo::json));
        writer
            .put_text("source_addr", Some(&self.source_addr).filter(|addr| **addr != SourceAddr::UseNodeIp));
        writer.put_text("rr_cluster_id", self.rr_cluster_id.as_ref());
        writer.put_some("restart_time", self.restart_time.map(duration::text));
        writer.put_some("long_lived_restart_time", self.long_lived_restart_time.map(duration::text));
        writer.put_some("keepalive_time", self.keepalive_time.map(duration::text));
        writer.put_some("hold_time", self.hold_time.map(duration::text));
        writer.put_some("send_hold_time", self.send_hold_time.map(duration::text));
        writer.put_text("next_hop_mode", self.next_hop_mode.as_ref());
        writer.put_some("keep_next_hop", self.keep_next_hop.then_some(true));
        writer.put_some("ttl_security", self.ttl_security);
        writer.put_some("num_allow_local_as", Some(self.num_allow_local_as).filter(|count| *count != 0));
        writer.put_text("local_as_num", self.local_as_num.as_ref());
        writer.put_some("passive_mode", self.passive_mode.then_some(true));
        writer.put_some("calico_node", self.calico_node.then_some(true));
        writer.put_some("local_bgp_peer", self.local_bgp_peer.then_some(true));
        writer.put_text("reachable_by", self.reachable_by.as_ref());
        writer.put_some("shutdown", self.shutdown.as_deref().map(shutdown_json));
        writer.put_list("filters", &self.filters);
        writer.put_some("max_prefixes", self.max_prefixes.as_ref().map(MaxPrefixes::json));
        writer.put_some("bfd", self.bfd.as_ref().map(Bfd::json));
        writer.put_text("role", self.role.as_ref());
        writer.put_some("role_strict", self.role_strict.then_some(true));
        writer.put_some("add_path", self.add_path.as_ref().map(AddPath::json));
        if !self.families.is_empty() {
            let names: Vec<&str> = self.families.iter().map(|family| family_name(*family)).collect();
            writer.put("families", texts(&names));
        }
        writer.put_some("extended_messages", self.extended_messages);
        writer.put_some("own_only", self.own_only.then_some(true));
        writer.put_some("import_pools", (!self.import_pools).then_some(false));
        writer.bytes(&self.extra)
    }
}

fn same_address(fields: &mut Fields, key: IpAddr) -> Result<(), ValueError> {
    match fields.parsed::<IpAddr>("ip", "write the peer's address")? {
        Some(ip) if ip != key => {
            Err(ValueError::new("ip", format_args!("`{ip}`"), format!("the key says {key}: make them equal")))
        }
        _ => Ok(()),
    }
}

fn port(fields: &mut Fields, key: Option<u16>) -> Result<Option<u16>, ValueError> {
    let port = fields.number::<u16>("port", 0, 65535)?.filter(|port| *port != 0);
    match (port, key) {
        (Some(port), Some(key)) if port != key => Err(ValueError::new(
            "port",
            format_args!("`{port}`"),
            format!("the key says {key}: make them equal"),
        )),
        _ => Ok(port.or(key)),
    }
}

/// Calico stores 0 or an empty string for no local AS.
fn local_as(fields: &mut Fields) -> Result<Option<Asn>, ValueError> {
    let Some(value) = fields.take("local_as_num") else { return Ok(None) };
    let none = value.as_u64() == Some(0) || matches!(value.as_str(), Some("" | "0"));
    if none {
        Ok(None)
    } else {
        Asn::from_json(&value).map(Some).map_err(|error| error.within("local_as_num"))
    }
}

fn families(fields: &mut Fields) -> Result<Vec<IpFamily>, ValueError> {
    let mut families = fields.list("families", |value: Value| match value.as_str() {
        Some("ipv4") => Ok(IpFamily::V4),
        Some("ipv6") => Ok(IpFamily::V6),
        _ => Err(ValueError::json("", &value, "write \"ipv4\" or \"ipv6\"")),
    })?;
    families.sort_unstable();
    families.dedup();
    Ok(families)
}

fn family_name(family: IpFamily) -> &'static str {
    match family {
        IpFamily::V4 => "ipv4",
        IpFamily::V6 => "ipv6",
    }
}
