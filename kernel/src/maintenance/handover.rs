//! Hand-over of routes and devices from one program to another, in place: used by `tortie migrate`, which runs
//! next to the agent and independently of it.
//!
//! Finds the routes of Calico's daemons, keeps routes as the kernel reported them, writes them again under
//! another protocol number and metric, removes them, and releases what is Tortie's. It does not decide when.
//!
//! | routes of | recognized by |
//! | --- | --- |
//! | BIRD | protocol 12 |
//! | Felix 3, to other hosts, and blackholes | protocol 80, unless the route leads directly to a workload |
//! | Felix 3, over its VXLAN devices | the device; the protocol is that of its workloads' routes, 3 by default |
//!
//! A route is kept as its netlink message rather than in parsed form, so that a rewritten route has all
//! attributes of the original. No function here replaces a route of another prefix, metric or table; existing
//! routes are left unchanged.

use std::collections::BTreeMap;
use std::io;

use serde::{Deserialize, Serialize};
use tortie_net::Cidr;

use crate::endpoints::{self, GATEWAY, Neighbour};
use crate::netlink::codec::{
    Attrs, Message, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, RTM_NEWROUTE, RTNH_F_ONLINK, Writer, u8_at,
    u16_at,
};
use crate::netlink::dump;
use crate::netlink::route::{self, RTN_BLACKHOLE, RTN_UNICAST, Route, RouteId};
use crate::netlink::socket::{Refusal, Socket};
use crate::netlink::vxlan::{self as messages, DeviceChange};
use crate::options::Marks;
use crate::{fib::ipip_tunnel, vxlan};

/// Protocol number of routes by BIRD (`RTPROT_BIRD`).
pub const BIRD: u8 = 12;
/// Protocol number of routes by Felix 3 to other hosts.
pub const FELIX: u8 = 80;
/// Protocol number of routes that the kernel adds itself (`RTPROT_KERNEL`).
const KERNEL: u8 = 2;
/// Protocol number of endpoint routes by Felix and the CNI plugin (`RTPROT_BOOT`).
const BOOT: u8 = 3;

/// Length of `struct rtmsg`, and the offsets of protocol, type and flags in it, in octets.
const RTMSG: usize = 12;
const AT_PROTOCOL: usize = 5;
const AT_TYPE: usize = 7;
const AT_FLAGS: usize = 8;
/// Length of `struct rtnexthop`, in octets.
const RTNEXTHOP: usize = 8;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PRIORITY: u16 = 6;
const RTA_MULTIPATH: u16 = 9;
const RTA_VIA: u16 = 18;
/// Attributes that only appear in answers: age and use, nexthop object (its legs are included as well), time
/// to live.
const RTA_CACHEINFO: u16 = 12;
const RTA_EXPIRES: u16 = 23;
const RTA_NH_ID: u16 = 30;

/// A route of the main table with all of its attributes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KeptRoute {
    /// Destination prefix.
    pub prefix: Cidr,
    /// Priority; the smallest is preferred.
    pub metric: u32,
    /// Protocol number of the program that wrote it.
    pub protocol: u8,
    /// True if it drops packets.
    pub blackhole: bool,
    /// Name of the output interface, if there is one and its name was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Body of the netlink message, serialized as hexadecimal digits.
    #[serde(rename = "message", with = "hex")]
    body: Vec<u8>,
}

/// A route that the kernel refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotWritten {
    /// Prefix of the route.
    pub prefix: Cidr,
    /// The kernel's reason.
    pub reason: String,
}

impl KeptRoute {
    fn read(message: &Message<'_>, route: &Route) -> Option<Self> {
        Some(Self {
            prefix: route.prefix,
            metric: route.metric,
            protocol: route.protocol,
            blackhole: route.kind == RTN_BLACKHOLE,
            device: None,
            body: clean(message.body)?,
        })
    }

    /// Returns the same route with another protocol and metric.
    #[must_use]
    pub fn under(&self, protocol: u8, metric: u32) -> Self {
        let mut body = Vec::with_capacity(self.body.len() + 8);
        body.extend_from_slice(self.body.get(..RTMSG).unwrap_or_default());
        if let Some(field) = body.get_mut(AT_PROTOCOL) {
            *field = protocol;
        }
        let mut w = Writer::bare(&mut body);
        for (kind, data) in Attrs::after(&self.body, RTMSG) {
            if kind != RTA_PRIORITY {
                w.attr(kind, data);
            }
        }
        w.attr_u32(RTA_PRIORITY, metric);
        Self { metric, protocol, body, ..self.clone() }
    }

    /// Returns true if both routes are equal except for protocol and metric.
    #[must_use]
    pub fn leads_as(&self, other: &Self) -> bool {
        self.under(0, 0).body == other.under(0, 0).body
    }

    /// Returns true if both routes have the same effect and the same next hops, whatever their other attributes.
    #[must_use]
    pub fn has_hops_of(&self, other: &Self) -> bool {
        fn hops(route: &KeptRoute) -> (Option<u8>, Vec<(u16, &[u8])>) {
            let is_hop = |kind| matches!(kind, RTA_OIF | RTA_GATEWAY | RTA_MULTIPATH | RTA_VIA);
            let mut hops: Vec<_> =
                Attrs::after(&route.body, RTMSG).filter(|(kind, _)| is_hop(*kind)).collect();
            hops.sort_unstable();
            (u8_at(&route.body, AT_TYPE), hops)
        }
        hops(self) == hops(other)
    }

    fn encode(&self, buf: &mut Vec<u8>, flags: u16, seq: u32) {
        let mut w = Writer::begin(buf, RTM_NEWROUTE, flags | NLM_F_CREATE, seq);
        w.raw(&self.body);
        w.end();
    }
}

/// Copies the body of a route message without attributes that must not be written: states of legs, ages,
/// nexthop objects.
fn clean(body: &[u8]) -> Option<Vec<u8>> {
    let mut out = body.get(..RTMSG)?.to_vec();
    let onlink = u8_at(body, AT_FLAGS)? & RTNH_F_ONLINK;
    out.get_mut(AT_FLAGS..RTMSG)?.copy_from_slice(&u32::from(onlink).to_ne_bytes());
    let mut w = Writer::bare(&mut out);
    for (kind, data) in Attrs::after(body, RTMSG) {
        match kind {
            RTA_CACHEINFO | RTA_EXPIRES | RTA_NH_ID => {}
            RTA_MULTIPATH => {
                w.attr(kind, &clean_legs(data)?);
            }
            _ => {
                w.attr(kind, data);
            }
        }
    }
    Some(out)
}

fn clean_legs(data: &[u8]) -> Option<Vec<u8>> {
    let mut out = data.to_vec();
    let mut at = 0;
    while let Some(len) = u16_at(&out, at).map(usize::from).filter(|len| *len >= RTNEXTHOP) {
        let flags = out.get_mut(at + 2)?;
        *flags &= RTNH_F_ONLINK;
        at += crate::netlink::codec::align(len);
    }
    Some(out)
}

/// Reads the routes of the main table with this protocol number.
///
/// # Errors
/// The kernel cannot be read.
pub fn kept_routes(protocol: u8) -> io::Result<Vec<KeptRoute>> {
    named(|_| move |route: &Route| route.protocol == protocol)
}

/// Reads the routes of the main table that Calico's daemons wrote, except those of workloads; `ours` is the
/// protocol number of Tortie's routes. Of several routes of a prefix, the one that is used is the first.
///
/// # Errors
/// The kernel cannot be read.
pub fn calico_routes(ours: u8) -> io::Result<Vec<KeptRoute>> {
    let mut all = named(|devices| {
        move |route: &Route| {
            let is_own_device = |ifindex| devices.of(ifindex).is_some_and(is_tunnel);
            route.protocol != ours
                && is_calicos(route, is_own_device, |i| devices.of(i).is_some_and(is_vxlan))
        }
    })?;
    all.sort_by_key(|route| (route.prefix, route.metric));
    Ok(all)
}

/// Reads routes with the names of their output interfaces.
fn named<F: Fn(&Route) -> bool>(wanted: impl FnOnce(Devices) -> F) -> io::Result<Vec<KeptRoute>> {
    let devices = Devices::read()?;
    let all = read(wanted(devices.clone()))?;
    Ok(all
        .into_iter()
        .map(|(kept, route)| KeptRoute {
            device: match route.legs.as_slice() {
                [leg] if route.kind == RTN_UNICAST => devices.of(leg.ifindex).map(str::to_owned),
                _ => None,
            },
            ..kept
        })
        .collect())
}

/// Names of the interfaces by index.
#[derive(Debug, Clone)]
struct Devices(BTreeMap<u32, String>);

impl Devices {
    fn read() -> io::Result<Self> {
        let (links, _) = dump::devices(&mut Socket::open()?)?;
        Ok(Self(links.into_iter().map(|link| (link.index, link.name)).collect()))
    }

    fn of(&self, ifindex: u32) -> Option<&str> {
        self.0.get(&ifindex).map(String::as_str)
    }
}

fn is_vxlan(name: &str) -> bool {
    [true, false].into_iter().any(|v4| vxlan::name(v4) == name)
}

fn is_tunnel(name: &str) -> bool {
    is_vxlan(name) || name == ipip_tunnel::DEVICE
}

/// True if one of Calico's daemons wrote the route, and it is none of a workload of this host.
fn is_calicos(route: &Route, is_tunnel: impl Fn(u32) -> bool, is_vxlan: impl Fn(u32) -> bool) -> bool {
    let is_unicast = route.kind == RTN_UNICAST;
    match route.protocol {
        BIRD => true,
        KERNEL => false,
        FELIX => {
            let leads_there = |leg: &route::Leg| leg.gateway.is_none() && !is_tunnel(leg.ifindex);
            !(is_unicast && route.legs.iter().any(leads_there))
        }
        _ => is_unicast && !route.legs.is_empty() && route.legs.iter().all(|leg| is_vxlan(leg.ifindex)),
    }
}

fn read(wanted: impl Fn(&Route) -> bool) -> io::Result<Vec<(KeptRoute, Route)>> {
    /// Limit for a table that changes continuously.
    const TRIES: usize = 5;
    let mut socket = Socket::open()?;
    let both = |message: &Message<'_>, route| Some((KeptRoute::read(message, &route)?, route));
    for _ in 0..TRIES {
        let (found, complete) = dump::routes_of(&mut socket, &wanted, both)?;
        if complete {
            return Ok(found);
        }
    }
    Err(io::Error::other("the kernel's routes change faster than they can be read"))
}

/// Adds routes. An existing route with the same prefix and metric is kept, whatever its content.
///
/// # Errors
/// The socket fails; routes that the kernel refuses are in the result.
pub fn put_routes(routes: &[KeptRoute]) -> io::Result<Vec<NotWritten>> {
    send(
        routes,
        |kept, buf, flags, seq| kept.encode(buf, flags | NLM_F_EXCL, seq),
        |code| code == libc::EEXIST,
    )
}

/// Removes the routes with these prefixes, metrics and protocols, whatever their present content; a missing
/// route is no error.
///
/// # Errors
/// The socket fails; routes that the kernel refuses are in the result.
pub fn remove_routes(routes: &[KeptRoute]) -> io::Result<Vec<NotWritten>> {
    let encode = |kept: &KeptRoute, buf: &mut Vec<u8>, flags, seq| {
        let id = RouteId { prefix: kept.prefix, protocol: kept.protocol, metric: kept.metric };
        route::encode_delete(buf, flags, seq, &id);
    };
    send(routes, encode, |code| matches!(code, libc::ESRCH | libc::ENOENT))
}

fn send(
    routes: &[KeptRoute],
    encode: impl FnMut(&KeptRoute, &mut Vec<u8>, u16, u32),
    fine: impl Fn(i32) -> bool,
) -> io::Result<Vec<NotWritten>> {
    let mut refused = Vec::new();
    if routes.is_empty() {
        return Ok(refused);
    }
    let mut note = |prefix: Cidr, result: Result<(), Refusal>| match result {
        Err(r) if !fine(r.code) => refused.push(NotWritten { prefix, reason: r.text }),
        _ => {}
    };
    Socket::open()?.batch(routes, encode, |kept, result| note(kept.prefix, result))?;
    Ok(refused)
}

/// Number of routes that were handed over or removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReleasedState {
    /// Endpoint routes, which now look like those of the CNI plugin.
    pub endpoints: usize,
    /// Learned routes and blackholes, which were removed.
    pub routes: usize,
}

/// Releases Tortie's routes, so that none is left that BIRD would learn or Felix would not recognize. Routes
/// of endpoints and static neighbours are changed in place to be the plugin's; learned routes and blackholes
/// are removed. Nexthop objects and rules are left for [`purge`](crate::purge).
///
/// # Errors
/// The kernel cannot be read or refuses a request.
pub fn release_routes(marks: Marks) -> io::Result<ReleasedState> {
    let all = read(|route| route.protocol == marks.protocol)?;
    let is_endpoint = |route: &Route| {
        let direct = matches!(route.legs.as_slice(), [leg] if leg.gateway.is_none());
        route.kind == RTN_UNICAST && direct && route.metric != marks.metric
    };
    let is_gateway = |kept: &KeptRoute| kept.prefix == Cidr::host(GATEWAY.into());
    let (ends, rest): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|(kept, route)| is_endpoint(route) && !is_gateway(kept));
    let ends: Vec<KeptRoute> = ends.into_iter().map(|(kept, _)| kept.under(BOOT, kept.metric)).collect();
    let rest: Vec<KeptRoute> = rest.into_iter().map(|(kept, _)| kept).collect();
    let replace = |kept: &KeptRoute, buf: &mut Vec<u8>, flags, seq| {
        kept.encode(buf, flags | NLM_F_REPLACE, seq);
    };
    let mut refused = send(&ends, replace, |_| false)?;
    refused.extend(remove_routes(&rest)?);
    let mut socket = Socket::open()?;
    let mut neighbours: Vec<Neighbour> = endpoints::neighbours(&mut socket)?;
    neighbours.retain(|n| n.permanent && n.protocol == marks.protocol);
    socket.batch(
        &neighbours,
        |n, buf, flags, seq| endpoints::put_neighbour(buf, flags, seq, n.ifindex, n.addr, n.mac, BOOT),
        |_, _| {},
    )?;
    match refused.first() {
        Some(first) => Err(io::Error::other(format!("{}: {}", first.prefix, first.reason))),
        None => Ok(ReleasedState { endpoints: ends.len(), routes: rest.len() }),
    }
}

/// Releases the VXLAN devices that Tortie took over, so that neither a purge nor another agent deletes them:
/// Felix takes over a device that fits as it is. Returns their names.
///
/// # Errors
/// The kernel cannot be read or refuses a request.
pub fn release_devices() -> io::Result<Vec<&'static str>> {
    let mut socket = Socket::open()?;
    let mut released = Vec::new();
    for name in [true, false].map(vxlan::name) {
        let found = messages::read(&mut socket, name)?;
        let Some(found) = found.filter(|found| found.alias == vxlan::device::ALIAS) else { continue };
        let change = DeviceChange::SetAlias { ifindex: found.ifindex, alias: "" };
        let answer = socket.request(|(), buf, flags, seq| change.encode(buf, flags, seq))?;
        answer.map_err(|refusal| io::Error::other(format!("{name}: {refusal}")))?;
        released.push(name);
    }
    Ok(released)
}

/// Serde representation of octets as hexadecimal text.
mod hex {
    use std::fmt::Write as _;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        let mut text = String::with_capacity(bytes.len() * 2);
        for byte in bytes {
            let _ = write!(text, "{byte:02x}");
        }
        serializer.serialize_str(&text)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(deserializer)?;
        let wrong = || D::Error::custom("not hexadecimal");
        if !text.is_ascii() || text.len() % 2 != 0 {
            return Err(wrong());
        }
        (0..text.len())
            .step_by(2)
            .map(|at| {
                let digits = text.get(at..at + 2).ok_or_else(wrong)?;
                u8::from_str_radix(digits, 16).map_err(|_| wrong())
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::codec::{AF_INET, Messages};

    /// A route as the kernel dumps it: two gateways, one without carrier, a nexthop object and an age.
    fn dumped() -> Vec<u8> {
        let mut buf = Vec::new();
        let mut w = Writer::begin(&mut buf, RTM_NEWROUTE, 0, 1);
        w.raw(&[AF_INET, 26, 0, 0, route::TABLE_MAIN, BIRD, 0, RTN_UNICAST]).raw(&16u32.to_ne_bytes());
        w.attr_addr(1, "10.244.2.0".parse().unwrap()).attr_u32(RTA_PRIORITY, 32).attr_u32(RTA_NH_ID, 7);
        w.nested(RTA_MULTIPATH, |w| {
            for (flags, gateway) in [(17, "192.0.2.1"), (4, "192.0.2.2")] {
                w.rtnexthop(flags, 3, |w| {
                    w.attr_addr(5, gateway.parse().unwrap());
                });
            }
        });
        w.attr(RTA_CACHEINFO, &[0; 32]);
        w.end();
        buf
    }

    #[test]
    fn routes_of_calico_s_daemons_are_distinguished_from_those_of_workloads_and_of_others() {
        const VXLAN: u32 = 7;
        const TUNL0: u32 = 8;
        const ETH0: u32 = 2;
        const CALI: u32 = 9;
        let route = |protocol, kind, legs: &[(u32, Option<&str>)]| Route {
            prefix: "10.244.2.0/26".parse().unwrap(),
            tos: 0,
            protocol,
            kind,
            metric: 0,
            nexthop: 0,
            legs: legs
                .iter()
                .map(|(ifindex, gateway)| route::Leg {
                    ifindex: *ifindex,
                    gateway: gateway.map(|text| text.parse().unwrap()),
                    onlink: false,
                })
                .collect(),
        };
        let is = |protocol, legs: &[(u32, Option<&str>)]| {
            let is_vxlan = |ifindex| ifindex == VXLAN;
            is_calicos(&route(protocol, RTN_UNICAST, legs), |i| is_vxlan(i) || i == TUNL0, is_vxlan)
        };
        let via = Some("192.0.2.2");
        assert!(is(BIRD, &[(ETH0, via)]) && is(BIRD, &[(ETH0, None)]));
        assert!(is(FELIX, &[(ETH0, via)]) && is(FELIX, &[(TUNL0, via)]) && is(FELIX, &[(VXLAN, None)]));
        assert!(!is(FELIX, &[(CALI, None)]), "a workload");
        assert!(is(BOOT, &[(VXLAN, via)]) && is(BOOT, &[(VXLAN, None)]) && is(4, &[(VXLAN, via)]));
        assert!(!is(BOOT, &[(ETH0, via)]) && !is(BOOT, &[(CALI, None)]) && !is(KERNEL, &[(VXLAN, None)]));
        assert!(!is(BOOT, &[(VXLAN, via), (ETH0, via)]) && !is(BOOT, &[]));
        let none = |_| false;
        assert!(is_calicos(&route(FELIX, RTN_BLACKHOLE, &[]), none, none));
        assert!(!is_calicos(&route(BOOT, RTN_BLACKHOLE, &[]), none, none), "an administrator's");
    }

    #[test]
    fn a_route_moves_to_another_writer_with_all_that_it_says() {
        let bytes = dumped();
        let message = Messages(&bytes).next().unwrap();
        let kept = KeptRoute::read(&message, &route::decode(&message).unwrap()).unwrap();
        assert_eq!((kept.protocol, kept.metric, kept.blackhole), (BIRD, 32, false));
        let ours = kept.under(179, 1790);
        let mut written = Vec::new();
        ours.encode(&mut written, 0, 2);
        let message = Messages(&written).next().unwrap();
        let route = route::decode(&message).unwrap();
        assert_eq!((route.protocol, route.metric, route.nexthop), (179, 1790, 0));
        let legs: Vec<(String, bool)> =
            route.legs.iter().map(|l| (l.gateway.unwrap().to_string(), l.onlink)).collect();
        assert_eq!(legs, [("192.0.2.1".to_owned(), false), ("192.0.2.2".to_owned(), true)]);
        // Carrier states and ages are not written.
        assert_eq!(&message.body[8..12], [0; 4]);
        assert!(Attrs::after(message.body, RTMSG).all(|(kind, _)| kind != RTA_CACHEINFO));
        assert!(ours.leads_as(&kept) && ours.under(BIRD, 32).leads_as(&kept) && ours.has_hops_of(&kept));
        let other = KeptRoute { body: kept.body[..RTMSG].to_vec(), ..kept.clone() };
        assert!(!other.has_hops_of(&kept));
        let text = serde_json::to_string(&kept).unwrap();
        assert_eq!(serde_json::from_str::<KeptRoute>(&text).unwrap(), kept);
        assert!(
            serde_json::from_str::<KeptRoute>(&text.replace("\"message\":\"0", "\"message\":\"x")).is_err()
        );
    }
}
