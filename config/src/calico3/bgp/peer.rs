//! One BGPPeer: which hosts it is about, and the members that all of its v1 peers have.

use std::net::IpAddr;

use serde_json::{Map, Value};

use super::super::objects::Objects;
use super::super::output::Output;
use super::super::{Kind, Object, ObjectKey};
use super::members::{Members, Selected};
use super::secret::{SecretFile, secret_file};
use crate::resource::Asn;
use crate::selector::Selector;

/// A valid BGPPeer.
pub(super) struct BgpPeer<'a> {
    pub(super) key: &'a ObjectKey,
    pub(super) local: LocalSide<'a>,
    pub(super) remote: RemoteSide,
    /// AS of the peers; `None` for the global one.
    pub(super) asn: Option<Asn>,
    /// The hosts that are its peers have its hosts as peers, too.
    pub(super) reverses: bool,
    /// Members that every v1 peer of this object has, with the braces left open.
    common: String,
    /// Members of peers that are given by address only.
    own: String,
}

/// Hosts that have the peers.
pub(super) enum LocalSide<'a> {
    /// All hosts: the peers are global.
    All,
    /// The host of this name, even without a Node.
    Named(&'a str),
    /// The nodes whose labels match.
    By(Selector),
}

/// The peers.
pub(super) enum RemoteSide {
    /// A router or a node, with the port if it is given.
    Addr(IpAddr, Option<u16>),
    /// The nodes whose labels match.
    Nodes(Selector),
    /// The workloads of the local host whose labels match.
    Workloads(Selector),
}

/// What one v1 peer has in addition to the members of its object.
pub(super) struct RemoteEnd {
    pub(super) ip: IpAddr,
    pub(super) port: Option<u16>,
    pub(super) asn: Asn,
    /// Cluster id as text, empty for none.
    pub(super) cluster_id: String,
    /// The address was given, and is one of a node.
    pub(super) calico_node: bool,
}

impl<'a> BgpPeer<'a> {
    /// Reads a BGPPeer. `None` if it has no peers: then a problem says why.
    pub(super) fn read(object: &'a Object, objects: &Objects, out: &mut Output) -> Option<Self> {
        let mut spec = Members::of(object, out);
        let local = local_side(&mut spec);
        let (remote, addr) = remote_side(&mut spec);
        let asn = spec.asn("asNumber");
        match remote {
            Some(RemoteSide::Nodes(_)) if spec.get("asNumber").is_some() => {
                let text = format!("{}: each node's own AS counts: leave it out", spec.at("asNumber"));
                spec.problem("setting-not-in-force", text);
            }
            Some(RemoteSide::Addr(..) | RemoteSide::Workloads(_)) if asn.is_none() => {
                let is_zero = |value: &Value| matches!(value.to_string().as_str(), "0" | "\"0\"" | "\"\"");
                if spec.get("asNumber").is_none_or(is_zero) {
                    spec.invalid(
                        "asNumber",
                        "no AS",
                        "write the AS of the peer; there is no session without it",
                    );
                }
                return None;
            }
            _ => {}
        }
        let reverses = spec.word("reversePeering", &["Auto", "Manual"]) != Some("Manual");
        let filters = filters(&mut spec, objects);
        let is_workload = matches!(remote, Some(RemoteSide::Workloads(_)));
        let (common, own) = if is_workload {
            let mut value = Map::new();
            value.insert("filters".to_owned(), filters);
            value.insert("source_addr".to_owned(), "None".into());
            value.insert("passive_mode".to_owned(), true.into());
            value.insert("local_bgp_peer".to_owned(), true.into());
            let asn = spec.asn("localASNumber").map_or(0, Asn::get);
            value.insert("local_as_num".to_owned(), asn.to_string().into());
            (value, Map::new())
        } else {
            (common(&mut spec, filters, addr)?, own(&mut spec))
        };
        Some(Self {
            key: &object.key,
            local: local?,
            remote: remote?,
            asn,
            reverses: reverses && !is_workload,
            common: open(&common),
            own: open(&own),
        })
    }

    /// Returns the v1 value of a peer that is given by its address.
    pub(super) fn value_of_address(&self, end: &RemoteEnd) -> String {
        format!("{}{}{}}}", end.open(), self.own, self.common)
    }

    /// Returns the v1 value of a peer that is a node or a workload.
    pub(super) fn value(&self, end: &RemoteEnd) -> String {
        format!("{}{}}}", end.open(), self.common)
    }
}

impl RemoteEnd {
    /// Formats the members without the closing brace. Numbers and addresses need no escaping.
    fn open(&self) -> String {
        format!(
            r#"{{"ip":"{}","as_num":"{}","port":{},"rr_cluster_id":"{}","calico_node":{}"#,
            self.ip,
            self.asn,
            self.port.unwrap_or(0),
            self.cluster_id,
            self.calico_node
        )
    }
}

/// Formats members to follow others: `,"a":1,"b":2`.
fn open(map: &Map<String, Value>) -> String {
    map.iter().map(|(name, value)| format!(r#","{name}":{value}"#)).collect()
}

fn local_side<'a>(spec: &mut Members<'a, '_>) -> Option<LocalSide<'a>> {
    let node = spec.text("node");
    match (node, spec.selector("nodeSelector")) {
        (None, Selected::Absent) => (!spec.failed()).then_some(LocalSide::All),
        (Some(node), Selected::Absent) => Some(LocalSide::Named(node)),
        (None, Selected::By(selector)) => Some(LocalSide::By(selector)),
        (Some(_), Selected::By(_)) => {
            spec.invalid("nodeSelector", "it together with node", "write one of the two; it matches nothing");
            None
        }
        (_, Selected::Invalid) => None,
    }
}

/// Reads the peers, and the address if they are given by it.
fn remote_side(spec: &mut Members<'_, '_>) -> (Option<RemoteSide>, Option<IpAddr>) {
    let text = spec.text("peerIP");
    let nodes = spec.selector("peerSelector");
    let workloads = spec.selector("localWorkloadSelector");
    match (text, nodes, workloads) {
        (Some(text), Selected::Absent, Selected::Absent) => match address_and_port(text) {
            Some((addr, port)) => (Some(RemoteSide::Addr(addr, port)), Some(addr)),
            None => {
                let expected = "write ADDRESS, IPV4:PORT or [IPV6]:PORT";
                spec.invalid("peerIP", format_args!("`{text}`"), expected);
                (None, None)
            }
        },
        (None, Selected::By(nodes), Selected::Absent) => (Some(RemoteSide::Nodes(nodes)), None),
        (None, Selected::Absent, Selected::By(workloads)) => (Some(RemoteSide::Workloads(workloads)), None),
        (_, Selected::Invalid, _) | (_, _, Selected::Invalid) => (None, None),
        (None, Selected::Absent, Selected::Absent) => {
            if !spec.failed() {
                spec.invalid("peerIP", "nothing", "write peerIP, peerSelector or localWorkloadSelector");
            }
            (None, None)
        }
        _ => {
            let expected = "write one of peerIP, peerSelector and localWorkloadSelector; it matches nothing";
            spec.invalid("peerIP", "several kinds of peers", expected);
            (None, None)
        }
    }
}

/// Reads the names of filters. One that does not exist has no rules, as in Calico, which is worth a problem.
fn filters(spec: &mut Members<'_, '_>, objects: &Objects) -> Value {
    let filters = spec.parsed_list("filters", "write the name of a BGPFilter", |text| {
        (!text.is_empty()).then(|| text.to_owned())
    });
    for name in &filters {
        if objects.get(Kind::BGPFilter, name).is_none() {
            let text = format!(
                "{}: there is no BGPFilter {name}, so nothing is filtered by it: create it, or leave the name out",
                spec.at("filters")
            );
            spec.problem("peer-configuration", text);
        }
    }
    filters.into()
}

/// Reads the members that peers by address and by selector have in common. `None` if there may be no session.
fn common(spec: &mut Members<'_, '_>, filters: Value, addr: Option<IpAddr>) -> Option<Map<String, Value>> {
    let mut value = Map::new();
    let mut put = |member: &str, of: Value| drop(value.insert(member.to_owned(), of));
    let mut may_peer = true;
    match secret_file(spec, "password") {
        SecretFile::Absent => {}
        SecretFile::File(file) => put("password_file", file.into()),
        SecretFile::Invalid => may_peer = false,
    }
    put("source_addr", spec.word("sourceAddress", &["UseNodeIP", "None"]).unwrap_or("UseNodeIP").into());
    let seconds = |time: Option<u64>| time.map_or_else(String::new, |time| format!("{time}s"));
    put("restart_time", seconds(spec.seconds("maxRestartTime", 0, 4095)).into());
    put("keepalive_time", seconds(spec.seconds("keepaliveTime", 1, 65535)).into());
    let mode = spec.word("nextHopMode", &["Auto", "Self", "Keep"]);
    put("keep_next_hop", (spec.flag("keepOriginalNextHop") && mode.is_none()).into());
    put("next_hop_mode", mode.unwrap_or_default().into());
    let ttl = spec.number("ttlSecurity", 0, 254);
    // Without the check the session would take packets from farther away.
    may_peer &= ttl.is_some() || spec.get("ttlSecurity").is_none();
    put("ttl_security", ttl.unwrap_or(0).into());
    let gateway = spec.text("reachableBy").unwrap_or_default();
    if !gateway.is_empty() {
        let parsed = gateway.parse::<IpAddr>().ok();
        if parsed.is_none_or(|gateway| addr.is_some_and(|addr| addr.is_ipv4() != gateway.is_ipv4())) {
            let expected = "write a gateway of the peer's family; there is no session until then";
            spec.invalid("reachableBy", format_args!("`{gateway}`"), expected);
            may_peer = false;
        }
    }
    put("reachable_by", gateway.into());
    put("filters", filters);
    put("passive_mode", false.into());
    put("local_bgp_peer", false.into());
    may_peer.then_some(value)
}

/// Reads the members that only peers by address have.
fn own(spec: &mut Members<'_, '_>) -> Map<String, Value> {
    let mut value = Map::new();
    let asn = spec.asn("localASNumber").map_or(0, Asn::get);
    value.insert("local_as_num".to_owned(), asn.to_string().into());
    let allowed = spec.number("numAllowedLocalASNumbers", 0, 255).unwrap_or(0);
    value.insert("num_allow_local_as".to_owned(), allowed.into());
    value
}

/// Parses `ADDRESS`, `IPV4:PORT` or `[IPV6]:PORT`. Port 0 counts as none.
fn address_and_port(text: &str) -> Option<(IpAddr, Option<u16>)> {
    if let Ok(addr) = text.parse() {
        return Some((addr, None));
    }
    let (addr, port) = text.rsplit_once(':')?;
    let addr: IpAddr = match addr.strip_prefix('[') {
        Some(inside) => inside.strip_suffix(']')?.parse::<std::net::Ipv6Addr>().ok()?.into(),
        None => addr.parse::<std::net::Ipv4Addr>().ok()?.into(),
    };
    let port = port_number(port)?;
    Some((addr, Some(port).filter(|port| *port != 0)))
}

/// Parses a port as Go does with base 0: `0x` and `0b` prefixes, and octal digits after a leading 0.
fn port_number(text: &str) -> Option<u16> {
    let lower = text.to_ascii_lowercase();
    let (digits, base) = match lower.as_bytes() {
        [b'0', b'x', ..] => (lower.get(2..)?, 16),
        [b'0', b'b', ..] => (lower.get(2..)?, 2),
        [b'0', b'o', ..] => (lower.get(2..)?, 8),
        [b'0', _, ..] => (lower.get(1..)?, 8),
        _ => (lower.as_str(), 10),
    };
    if digits.starts_with('+') { None } else { u16::from_str_radix(digits, base).ok() }
}
