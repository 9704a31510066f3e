//! Objects handed from one program to another, in place: for `tortie migrate`, which runs next to the agent and is no part
//! of it.
//!
//! What it does: keeps routes whole as the kernel gave them, writes them again under another protocol number and metric,
//! removes them, and takes away what is ours. What it does not: decide which routes those are.
//!
//! A route is kept as its message and not as what we understand of it, so that what is written back says all that the first
//! one said. Nothing here replaces a route of another prefix, metric or table, and what is there already is left as it is.

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
use crate::options::Marks;

/// The number of routes that BIRD writes (`RTPROT_BIRD`).
pub const BIRD: u8 = 12;
/// The number that Felix and the CNI plugin give to routes of endpoints (`RTPROT_BOOT`).
const BOOT: u8 = 3;

/// `struct rtmsg`, and where in it the protocol and the flags are.
const RTMSG: usize = 12;
const AT_PROTOCOL: usize = 5;
const AT_FLAGS: usize = 8;
/// `struct rtnexthop`.
const RTNEXTHOP: usize = 8;
const RTA_PRIORITY: u16 = 6;
const RTA_MULTIPATH: u16 = 9;
/// What only a reader gets: age and use, nexthop object (its legs stand next to it), time to live.
const RTA_CACHEINFO: u16 = 12;
const RTA_EXPIRES: u16 = 23;
const RTA_NH_ID: u16 = 30;

/// A route of the main table with all that it says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KeptRoute {
    /// Where it leads to.
    pub prefix: Cidr,
    /// Its priority; less wins.
    pub metric: u32,
    /// Who wrote it.
    pub protocol: u8,
    /// It drops what it matches.
    pub blackhole: bool,
    /// The body of its message, as hexadecimal digits.
    #[serde(rename = "message", with = "hex")]
    body: Vec<u8>,
}

/// What the kernel did not take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotWritten {
    /// The route.
    pub prefix: Cidr,
    /// Why.
    pub reason: String,
}

impl KeptRoute {
    fn read(message: &Message<'_>, route: &Route) -> Option<Self> {
        Some(Self {
            prefix: route.prefix,
            metric: route.metric,
            protocol: route.protocol,
            blackhole: route.kind == RTN_BLACKHOLE,
            body: clean(message.body)?,
        })
    }

    /// The same route as another program would have written it.
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

    /// Whether both lead to the same places, whatever wrote them and at whatever metric.
    #[must_use]
    pub fn leads_as(&self, other: &Self) -> bool {
        self.under(0, 0).body == other.under(0, 0).body
    }

    fn encode(&self, buf: &mut Vec<u8>, flags: u16, seq: u32) {
        let mut w = Writer::begin(buf, RTM_NEWROUTE, flags | NLM_F_CREATE, seq);
        w.raw(&self.body);
        w.end();
    }
}

/// The body of a route's message without what may not be written: states of its legs, ages, nexthop objects.
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

/// The routes of the main table that have this protocol number.
///
/// # Errors
/// When the kernel cannot be read.
pub fn kept_routes(protocol: u8) -> io::Result<Vec<KeptRoute>> {
    Ok(read(protocol)?.into_iter().map(|(kept, _)| kept).collect())
}

fn read(protocol: u8) -> io::Result<Vec<(KeptRoute, Route)>> {
    /// A table that changes all the while.
    const TRIES: usize = 5;
    let mut socket = Socket::open()?;
    let both = |message: &Message<'_>, route| Some((KeptRoute::read(message, &route)?, route));
    for _ in 0..TRIES {
        let (found, complete) = dump::routes_of(&mut socket, protocol, both)?;
        if complete {
            return Ok(found);
        }
    }
    Err(io::Error::other("the kernel's routes change faster than they can be read"))
}

/// Writes routes. Where a route with this prefix and metric is there already it stays, whatever it says.
///
/// # Errors
/// When the socket fails; what the kernel refuses is in the answer.
pub fn put_routes(routes: &[KeptRoute]) -> io::Result<Vec<NotWritten>> {
    send(
        routes,
        |kept, buf, flags, seq| kept.encode(buf, flags | NLM_F_EXCL, seq),
        |code| code == libc::EEXIST,
    )
}

/// Removes the routes that have these prefixes, metrics and protocols, whatever they say now; what is gone is gone.
///
/// # Errors
/// When the socket fails; what the kernel refuses is in the answer.
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

/// What of ours was given to others or taken away.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReleasedState {
    /// Routes of endpoints, which are now such as the CNI plugin writes.
    pub endpoints: usize,
    /// Learned routes and blackholes, which are gone.
    pub routes: usize,
}

/// Gives up what of the kernel's routes is ours, so that nothing is left that BIRD would learn or Felix would not know:
/// routes of endpoints and static neighbours stay and become the plugin's, in place; learned routes and blackholes go.
/// Nexthop objects and rules are left for [`purge`](crate::purge).
///
/// # Errors
/// When the kernel cannot be read or refuses.
pub fn release_routes(marks: Marks) -> io::Result<ReleasedState> {
    let all = read(marks.protocol)?;
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

/// Octets as text.
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

    /// A route as the kernel dumps it: over two gateways of which one has no carrier, through an object, with an age.
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
        assert!(ours.leads_as(&kept) && ours.under(BIRD, 32).leads_as(&kept));
        let text = serde_json::to_string(&kept).unwrap();
        assert_eq!(serde_json::from_str::<KeptRoute>(&text).unwrap(), kept);
        assert!(
            serde_json::from_str::<KeptRoute>(&text.replace("\"message\":\"0", "\"message\":\"x")).is_err()
        );
    }
}
