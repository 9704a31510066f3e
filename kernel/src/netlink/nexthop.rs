//! Messages about nexthop objects (RTM_NEWNEXTHOP and related types, `include/uapi/linux/nexthop.h`).
//!
//! The cost of adding a route over an object does not depend on the number of neighbours. For a route with
//! gateways, the kernel traverses a list as long as the number of neighbours behind the interface.
//!
//! Encoded by hand: netlink-packet-route has no such messages.

use std::net::IpAddr;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::netlink::codec::{
    self, Attrs, Message, NLM_F_DUMP, Put, RTM_DELNEXTHOP, RTM_GETNEXTHOP, RTM_NEWNEXTHOP, RTNH_F_ONLINK,
    Writer, u8_at, u16_at, u32_at,
};

const NHA_ID: u16 = 1;
const NHA_GROUP: u16 = 2;
const NHA_GROUP_TYPE: u16 = 3;
/// NHA_BLACKHOLE, NHA_ENCAP_TYPE, NHA_ENCAP, NHA_FDB and NHA_RES_GROUP, which Tortie never writes. Other
/// unknown attributes concern statistics or restate defaults, and newer kernels add more.
const NHA_ODD: [u16; 5] = [4, 7, 8, 11, 12];
const NHA_OIF: u16 = 5;
const NHA_GATEWAY: u16 = 6;
/// Length of `struct nhmsg` (family, scope, protocol, reserved, flags), in octets.
const NHMSG: usize = 8;
/// Length of `struct nexthop_grp` (ID, weight minus one, high weight, reserved), in octets.
const GROUP_ENTRY: usize = 8;

/// All nexthop objects by ID.
pub(crate) type NexthopList = FxHashMap<u32, Nexthop>;

/// Content of a nexthop object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Content {
    /// One gateway on one interface.
    Single { gateway: IpAddr, ifindex: u32, onlink: bool },
    /// Equal-cost members, sorted by ID.
    Group(SmallVec<[u32; 4]>),
    /// Content that Tortie never writes (weights, encapsulation, blackhole).
    Other,
}

/// A nexthop object as the kernel reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Nexthop {
    pub(crate) id: u32,
    pub(crate) protocol: u8,
    pub(crate) content: Content,
}

/// Encodes RTM_NEWNEXTHOP.
pub(crate) fn encode_put(
    buf: &mut Vec<u8>,
    flags: u16,
    seq: u32,
    id: u32,
    protocol: u8,
    content: &Content,
    put: Put,
) {
    let mut w = Writer::begin(buf, RTM_NEWNEXTHOP, flags | put.flags(), seq);
    match content {
        Content::Single { gateway, ifindex, onlink } => {
            let bits = if *onlink { u32::from(RTNH_F_ONLINK) } else { 0 };
            header(&mut w, codec::family_of(gateway), protocol, bits);
            w.attr_u32(NHA_ID, id).attr_u32(NHA_OIF, *ifindex).attr_addr(NHA_GATEWAY, *gateway);
        }
        Content::Group(members) => {
            let mut entries: SmallVec<[u8; 64]> = SmallVec::new();
            for member in members {
                entries.extend_from_slice(&member.to_ne_bytes());
                entries.extend_from_slice(&[0; 4]);
            }
            header(&mut w, 0, protocol, 0);
            w.attr_u32(NHA_ID, id).attr(NHA_GROUP, &entries);
        }
        Content::Other => {
            header(&mut w, 0, protocol, 0);
            w.attr_u32(NHA_ID, id);
        }
    }
    w.end();
}

/// Encodes RTM_DELNEXTHOP. The kernel also removes the routes over the object.
pub(crate) fn encode_delete(buf: &mut Vec<u8>, flags: u16, seq: u32, id: u32) {
    let mut w = Writer::begin(buf, RTM_DELNEXTHOP, flags, seq);
    header(&mut w, 0, 0, 0);
    w.attr_u32(NHA_ID, id);
    w.end();
}

/// Encodes the request for all objects.
pub(crate) fn encode_dump(buf: &mut Vec<u8>, seq: u32) {
    let mut w = Writer::begin(buf, RTM_GETNEXTHOP, NLM_F_DUMP, seq);
    header(&mut w, 0, 0, 0);
    w.end();
}

fn header(w: &mut Writer<'_>, family: u8, protocol: u8, flags: u32) {
    w.raw(&[family, 0, protocol, 0]).raw(&flags.to_ne_bytes());
}

/// Decodes RTM_NEWNEXTHOP or RTM_DELNEXTHOP; `None` if it has no ID.
pub(crate) fn decode(message: &Message<'_>) -> Option<Nexthop> {
    let protocol = u8_at(message.body, 2)?;
    let flags = u32_at(message.body, 4)?;
    let (mut id, mut ifindex, mut gateway, mut members, mut odd) = (None, None, None, None, false);
    for (kind, data) in Attrs::after(message.body, NHMSG) {
        match kind {
            NHA_ID => id = u32_at(data, 0),
            NHA_OIF => ifindex = u32_at(data, 0),
            NHA_GATEWAY => gateway = codec::addr(data),
            NHA_GROUP => members = Some(group_members(data)),
            NHA_GROUP_TYPE => odd |= u16_at(data, 0) != Some(0),
            kind => odd |= NHA_ODD.contains(&kind),
        }
    }
    let content = match (odd, members, gateway, ifindex) {
        (false, Some(Some(members)), _, _) => Content::Group(members),
        (false, None, Some(gateway), Some(ifindex)) => {
            Content::Single { gateway, ifindex, onlink: flags & u32::from(RTNH_F_ONLINK) != 0 }
        }
        _ => Content::Other,
    };
    Some(Nexthop { id: id?, protocol, content })
}

/// Returns the sorted members; `None` if one has a weight other than 1, the only one that Tortie writes.
fn group_members(data: &[u8]) -> Option<SmallVec<[u32; 4]>> {
    let mut members = SmallVec::new();
    for entry in data.chunks_exact(GROUP_ENTRY) {
        if u16_at(entry, 4)? != 0 {
            return None;
        }
        members.push(u32_at(entry, 0)?);
    }
    members.sort_unstable();
    Some(members)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::codec::Messages;

    fn round_trip(content: &Content) -> Nexthop {
        let mut buf = Vec::new();
        encode_put(&mut buf, 0, 1, 0x5400_0001, 179, content, Put::Add);
        decode(&Messages(&buf).next().unwrap()).unwrap()
    }

    #[test]
    fn objects_read_back_as_written() {
        for content in [
            Content::Single { gateway: "192.0.2.1".parse().unwrap(), ifindex: 7, onlink: true },
            Content::Single { gateway: "2001:db8::1".parse().unwrap(), ifindex: 9, onlink: false },
            Content::Group(SmallVec::from_slice(&[0x5400_0001, 0x5400_0002])),
        ] {
            assert_eq!(round_trip(&content), Nexthop { id: 0x5400_0001, protocol: 179, content });
        }
    }

    #[test]
    fn a_weighted_group_is_not_ours() {
        let mut buf = Vec::new();
        let mut w = Writer::begin(&mut buf, RTM_NEWNEXTHOP, 0, 1);
        header(&mut w, 0, 179, 0);
        w.attr_u32(NHA_ID, 5).attr(NHA_GROUP, &[1, 0, 0, 0, 3, 0, 0, 0]);
        w.end();
        assert_eq!(decode(&Messages(&buf).next().unwrap()).unwrap().content, Content::Other);
    }
}
