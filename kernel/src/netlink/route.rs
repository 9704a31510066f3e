//! Messages about routes of the main table (RTM_NEWROUTE and related types, rtnetlink(7)).
//!
//! Encoded by hand and not with netlink-packet-route: full BGP tables take this path, and encoder and decoder
//! allocate nothing for a route with one gateway.

use std::net::IpAddr;

use smallvec::SmallVec;
use tortie_net::Cidr;

use crate::netlink::codec::{
    self, AF_INET, AF_INET6, Attrs, Message, NLM_F_ACK, NLM_F_DUMP, Put, RTM_DELROUTE, RTM_GETROUTE,
    RTM_NEWROUTE, RTNH_F_ONLINK, Writer, u8_at, u32_at,
};

const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PRIORITY: u16 = 6;
const RTA_MULTIPATH: u16 = 9;
const RTA_TABLE: u16 = 15;
const RTA_VIA: u16 = 18;
const RTA_NH_ID: u16 = 30;
/// Length of `struct rtmsg`, in octets.
const RTMSG: usize = 12;
/// Length of `struct rtnexthop` (length, flags, hops, interface), in octets.
const RTNEXTHOP: usize = 8;

/// Number of the main table.
pub(crate) const TABLE_MAIN: u8 = 254;
pub(crate) const RTN_UNICAST: u8 = 1;
pub(crate) const RTN_BLACKHOLE: u8 = 6;
const RT_SCOPE_UNIVERSE: u8 = 0;
const RT_SCOPE_LINK: u8 = 253;
const RT_SCOPE_NOWHERE: u8 = 255;
const RTM_F_CLONED: u32 = 0x200;
const RTM_F_FIB_MATCH: u32 = 0x2000;

/// One leg of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Leg {
    pub(crate) ifindex: u32,
    /// The gateway; `None` if on-link.
    pub(crate) gateway: Option<IpAddr>,
    pub(crate) onlink: bool,
}

/// A route as the kernel reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) prefix: Cidr,
    pub(crate) tos: u8,
    pub(crate) protocol: u8,
    /// Route type: RTN_UNICAST, RTN_BLACKHOLE, ...
    pub(crate) kind: u8,
    pub(crate) metric: u32,
    /// ID of the nexthop object; 0 for none.
    pub(crate) nexthop: u32,
    /// Empty for routes that drop packets (blackhole), and for nexthop objects on kernels that do not expand
    /// them.
    pub(crate) legs: SmallVec<[Leg; 1]>,
}

impl Route {
    pub(crate) fn id(&self) -> RouteId {
        RouteId { prefix: self.prefix, protocol: self.protocol, metric: self.metric }
    }
}

/// Target of a Tortie route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Via<'a> {
    Blackhole,
    Nexthop(u32),
    /// Gateways in the route itself, for kernels without nexthop objects.
    Plain(&'a [Leg]),
}

/// Identifies a route of the main table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RouteId {
    pub(crate) prefix: Cidr,
    pub(crate) protocol: u8,
    pub(crate) metric: u32,
}

/// Encodes RTM_NEWROUTE.
pub(crate) fn encode_put(buf: &mut Vec<u8>, flags: u16, seq: u32, id: &RouteId, via: Via<'_>, put: Put) {
    let kind = if via == Via::Blackhole { RTN_BLACKHOLE } else { RTN_UNICAST };
    let onlink = matches!(via, Via::Plain([leg]) if leg.onlink);
    let bits = if onlink { u32::from(RTNH_F_ONLINK) } else { 0 };
    let mut w = Writer::begin(buf, RTM_NEWROUTE, flags | put.flags(), seq);
    header(&mut w, id, RT_SCOPE_UNIVERSE, kind, bits);
    match via {
        Via::Blackhole => {}
        Via::Nexthop(nexthop) => {
            w.attr_u32(RTA_NH_ID, nexthop);
        }
        Via::Plain([leg]) => {
            w.attr_u32(RTA_OIF, leg.ifindex);
            gateway(&mut w, &id.prefix, leg);
        }
        Via::Plain(legs) => {
            w.nested(RTA_MULTIPATH, |w| {
                for leg in legs {
                    let bits = if leg.onlink { RTNH_F_ONLINK } else { 0 };
                    w.rtnexthop(bits, leg.ifindex, |w| gateway(w, &id.prefix, leg));
                }
            });
        }
    }
    w.end();
}

/// Encodes RTM_DELROUTE for the route with this prefix, metric and protocol, whatever its content.
pub(crate) fn encode_delete(buf: &mut Vec<u8>, flags: u16, seq: u32, id: &RouteId) {
    let mut w = Writer::begin(buf, RTM_DELROUTE, flags, seq);
    header(&mut w, id, RT_SCOPE_NOWHERE, 0, 0);
    w.end();
}

/// Encodes RTM_NEWROUTE for an on-link route; refused if any route has this prefix and metric.
pub(crate) fn encode_add_onlink(buf: &mut Vec<u8>, flags: u16, seq: u32, id: &RouteId, ifindex: u32) {
    let mut w = Writer::begin(buf, RTM_NEWROUTE, flags | Put::Add.flags(), seq);
    // IPv6 has no route scopes.
    let scope = if id.prefix.is_v4() { RT_SCOPE_LINK } else { RT_SCOPE_UNIVERSE };
    header(&mut w, id, scope, RTN_UNICAST, 0);
    w.attr_u32(RTA_OIF, ifindex);
    w.end();
}

/// Encodes RTM_GETROUTE for the table's route for packets to this address.
pub(crate) fn encode_ask(buf: &mut Vec<u8>, seq: u32, addr: IpAddr) {
    let len = if addr.is_ipv4() { 32 } else { 128 };
    let mut w = Writer::begin(buf, RTM_GETROUTE, NLM_F_ACK, seq);
    w.raw(&[codec::family_of(&addr), len, 0, 0, 0, 0, 0, 0])
        .raw(&RTM_F_FIB_MATCH.to_ne_bytes())
        .attr_addr(RTA_DST, addr);
    w.end();
}

/// Encodes RTM_DELROUTE for the route with this prefix, metric and protocol over this interface.
pub(crate) fn encode_delete_onlink(buf: &mut Vec<u8>, flags: u16, seq: u32, id: &RouteId, ifindex: u32) {
    let mut w = Writer::begin(buf, RTM_DELROUTE, flags, seq);
    header(&mut w, id, RT_SCOPE_NOWHERE, 0, 0);
    w.attr_u32(RTA_OIF, ifindex);
    w.end();
}

/// Encodes the request for all routes of the main table of one family, filtered by the kernel.
pub(crate) fn encode_dump(buf: &mut Vec<u8>, seq: u32, family: u8) {
    let mut w = Writer::begin(buf, RTM_GETROUTE, NLM_F_DUMP, seq);
    w.raw(&[family, 0, 0, 0, TABLE_MAIN, 0, 0, 0]).raw(&[0; 4]);
    w.end();
}

/// Appends `struct rtmsg` with destination and metric.
fn header(w: &mut Writer<'_>, id: &RouteId, scope: u8, kind: u8, flags: u32) {
    let RouteId { prefix, protocol, metric } = id;
    w.raw(&[codec::family(prefix), prefix.len(), 0, 0, TABLE_MAIN, *protocol, scope, kind])
        .raw(&flags.to_ne_bytes());
    if prefix.len() > 0 {
        w.attr_addr(RTA_DST, prefix.addr());
    }
    w.attr_u32(RTA_PRIORITY, *metric);
}

fn gateway(w: &mut Writer<'_>, prefix: &Cidr, leg: &Leg) {
    match leg.gateway {
        Some(gateway) if gateway.is_ipv4() == prefix.is_v4() => {
            w.attr_addr(RTA_GATEWAY, gateway);
        }
        // `struct rtvia`: the gateway is of the other family (RFC 8950).
        Some(IpAddr::V6(gateway)) => {
            let mut via = [0u8; 18];
            via[..2].copy_from_slice(&u16::from(AF_INET6).to_ne_bytes());
            via[2..].copy_from_slice(&gateway.octets());
            w.attr(RTA_VIA, &via);
        }
        Some(IpAddr::V4(_)) | None => {}
    }
}

/// Decodes RTM_NEWROUTE or RTM_DELROUTE of the main table; `None` for other tables, cached routes,
/// source-specific routes and malformed messages.
pub(crate) fn decode(message: &Message<'_>) -> Option<Route> {
    let body = message.body;
    let family = u8_at(body, 0)?;
    let flags = u32_at(body, 8)?;
    let own_table = u8_at(body, 4)? == TABLE_MAIN;
    if !own_table || u8_at(body, 2)? != 0 || flags & RTM_F_CLONED != 0 {
        return None;
    }
    let mut destination = match family {
        AF_INET => IpAddr::from([0u8; 4]),
        AF_INET6 => IpAddr::from([0u8; 16]),
        _ => return None,
    };
    let (mut ifindex, mut gateway, mut metric, mut nexthop) = (None, None, 0, 0);
    let mut legs = SmallVec::new();
    for (kind, data) in Attrs::after(body, RTMSG) {
        match kind {
            RTA_DST => destination = codec::addr(data)?,
            RTA_OIF => ifindex = u32_at(data, 0),
            RTA_GATEWAY => gateway = codec::addr(data),
            RTA_VIA => gateway = data.get(2..).and_then(codec::addr),
            RTA_PRIORITY => metric = u32_at(data, 0)?,
            RTA_MULTIPATH => read_legs(data, &mut legs),
            RTA_TABLE if u32_at(data, 0) != Some(u32::from(TABLE_MAIN)) => return None,
            RTA_NH_ID => nexthop = u32_at(data, 0)?,
            _ => {}
        }
    }
    if legs.is_empty()
        && let Some(ifindex) = ifindex
    {
        legs.push(Leg { ifindex, gateway, onlink: flags & u32::from(RTNH_F_ONLINK) != 0 });
    }
    legs.sort_unstable();
    Some(Route {
        prefix: Cidr::new(destination, u8_at(body, 1)?).ok()?,
        tos: u8_at(body, 3)?,
        protocol: u8_at(body, 5)?,
        kind: u8_at(body, 7)?,
        metric,
        nexthop,
        legs,
    })
}

fn read_legs(mut data: &[u8], legs: &mut SmallVec<[Leg; 1]>) {
    while let (Some(len), Some(flags), Some(ifindex)) =
        (codec::u16_at(data, 0), u8_at(data, 2), u32_at(data, 4))
    {
        let len = usize::from(len);
        let Some(inner) = data.get(RTNEXTHOP..len) else { return };
        let gateway = Attrs(inner).find_map(|(kind, data)| match kind {
            RTA_GATEWAY => codec::addr(data),
            RTA_VIA => data.get(2..).and_then(codec::addr),
            _ => None,
        });
        legs.push(Leg { ifindex, gateway, onlink: flags & RTNH_F_ONLINK != 0 });
        data = data.get(codec::align(len)..).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::codec::Messages;

    fn leg(gateway: &str, ifindex: u32, onlink: bool) -> Leg {
        Leg { ifindex, gateway: Some(gateway.parse().unwrap()), onlink }
    }

    fn round_trip(prefix: &str, via: Via<'_>) -> Route {
        let mut buf = Vec::new();
        let id = RouteId { prefix: prefix.parse().unwrap(), protocol: 179, metric: 1790 };
        encode_put(&mut buf, 0, 1, &id, via, Put::Add);
        decode(&Messages(&buf).next().unwrap()).unwrap()
    }

    #[test]
    fn routes_read_back_as_written() {
        let one = [leg("192.0.2.1", 3, true)];
        let two = [leg("192.0.2.1", 3, false), leg("192.0.2.2", 4, true)];
        let six = [leg("fe80::1", 3, false)];
        let r = round_trip("10.0.0.0/26", Via::Plain(&one));
        assert_eq!((r.metric, r.protocol, r.kind, r.legs.as_slice()), (1790, 179, RTN_UNICAST, &one[..]));
        assert_eq!(round_trip("0.0.0.0/0", Via::Plain(&two)).legs.as_slice(), &two[..]);
        assert_eq!(round_trip("10.0.0.0/26", Via::Plain(&six)).legs.as_slice(), &six[..]);
        assert_eq!(round_trip("2001:db8::/122", Via::Nexthop(77)).nexthop, 77);
        assert_eq!(round_trip("2001:db8::/122", Via::Blackhole).kind, RTN_BLACKHOLE);
    }
}
