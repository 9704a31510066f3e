//! Reads the connections that the kernel tracks (ctnetlink: `linux/netfilter/nfnetlink_conntrack.h`), for
//! queries.
//!
//! Decoded by hand: netlink-packet-netfilter 0.4 supports neither the ID nor the zone that identify an entry
//! for deletion, nor types and codes of ICMP. It also builds a tree of values for each of hundreds of
//! thousands of entries, of which most are skipped.

use std::io;
use std::net::IpAddr;

use netlink_sys::protocols::NETLINK_NETFILTER;

use crate::netlink::codec::{self, AF_INET, AF_INET6, Attrs, Message, NLM_F_DUMP, Writer};
use crate::netlink::socket::Socket;

/// `NFNL_SUBSYS_CTNETLINK` in the upper half, `IPCTNL_MSG_CT_GET` in the lower.
const CT_GET: u16 = 0x101;
const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_IP: u16 = 1;
const CTA_TUPLE_PROTO: u16 = 2;
/// Length of `struct nfgenmsg` (family, version, resource), in octets.
const NFGENMSG: usize = 4;

/// A tracked connection in the original direction, before any translation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Connection {
    /// Source address of the first packet.
    pub src: IpAddr,
    /// Destination address of the first packet.
    pub dst: IpAddr,
    /// IP protocol number.
    pub protocol: u8,
    /// Source and destination port, for protocols with ports.
    pub ports: Option<(u16, u16)>,
    /// Type and code, for ICMP and ICMPv6.
    pub icmp: Option<(u8, u8)>,
}

/// Reads all tracked connections of the caller's network namespace, on a separate socket. Connections that
/// begin or end meanwhile may be missed.
///
/// # Errors
/// The kernel has no conntrack, or the caller lacks the privilege.
pub fn connections() -> io::Result<Vec<Connection>> {
    let mut socket = Socket::open_for(NETLINK_NETFILTER)?;
    let mut found = Vec::new();
    for family in [AF_INET, AF_INET6] {
        let dump = |buf: &mut Vec<u8>, seq| {
            let mut w = Writer::begin(buf, CT_GET, NLM_F_DUMP, seq);
            w.raw(&[family, 0, 0, 0]);
            w.end();
        };
        socket
            .dump(dump, |message| found.extend(decode(message)))?
            .map_err(|refusal| io::Error::from_raw_os_error(refusal.code))?;
    }
    Ok(found)
}

fn decode(message: &Message<'_>) -> Option<Connection> {
    let tuple = Attrs::after(message.body, NFGENMSG).find(|(kind, _)| *kind == CTA_TUPLE_ORIG)?.1;
    let (mut src, mut dst, mut protocol) = (None, None, None);
    let (mut from, mut to, mut kind_of, mut code) = (None, None, None, None);
    for (kind, data) in Attrs(tuple) {
        match kind {
            CTA_TUPLE_IP => {
                for (kind, data) in Attrs(data) {
                    match kind {
                        // CTA_IP_V4_SRC, CTA_IP_V6_SRC
                        1 | 3 => src = codec::addr(data),
                        2 | 4 => dst = codec::addr(data),
                        _ => {}
                    }
                }
            }
            CTA_TUPLE_PROTO => {
                let be16 = |data: &[u8]| Some(u16::from_be_bytes(data.get(..2)?.try_into().ok()?));
                for (kind, data) in Attrs(data) {
                    match kind {
                        1 => protocol = data.first().copied(),
                        2 => from = be16(data),
                        3 => to = be16(data),
                        // CTA_PROTO_ICMP_TYPE, CTA_PROTO_ICMP_CODE, CTA_PROTO_ICMPV6_TYPE and
                        // CTA_PROTO_ICMPV6_CODE.
                        5 | 8 => kind_of = data.first().copied(),
                        6 | 9 => code = data.first().copied(),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    let (ports, icmp) = (from.zip(to), kind_of.zip(code));
    Some(Connection { src: src?, dst: dst?, protocol: protocol?, ports, icmp })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::codec::{NLM_F_CREATE, NLM_F_EXCL};

    const NESTED: u16 = 0x8000;

    /// Creates a connection as `conntrack -I` does.
    fn create(socket: &mut Socket, c: Connection) {
        let family = if c.src.is_ipv4() { AF_INET } else { AF_INET6 };
        let [src_kind, dst_kind] = if c.src.is_ipv4() { [1, 2] } else { [3, 4] };
        let (from, to) = c.ports.unwrap();
        let tuple = |w: &mut Writer<'_>, kind: u16, [src, dst]: [IpAddr; 2], [from, to]: [u16; 2]| {
            w.nested(kind | NESTED, |w| {
                w.nested(CTA_TUPLE_IP | NESTED, |w| {
                    w.attr_addr(src_kind, src).attr_addr(dst_kind, dst);
                });
                w.nested(CTA_TUPLE_PROTO | NESTED, |w| {
                    w.attr(1, &[c.protocol]).attr(2, &from.to_be_bytes()).attr(3, &to.to_be_bytes());
                });
            });
        };
        let made = socket.request(|(), buf, flags, seq| {
            let mut w = Writer::begin(buf, 0x100, flags | NLM_F_CREATE | NLM_F_EXCL, seq);
            w.raw(&[family, 0, 0, 0]);
            tuple(&mut w, CTA_TUPLE_ORIG, [c.src, c.dst], [from, to]);
            tuple(&mut w, 2, [c.dst, c.src], [to, from]);
            // CTA_TIMEOUT in seconds.
            w.attr(7, &600u32.to_be_bytes());
            w.end();
        });
        made.unwrap().unwrap();
    }

    #[test]
    fn both_families_are_read_as_they_began() {
        tortie_topology::netns::in_netns(|| {
            let udp = |src: &str, dst: &str, from| Connection {
                src: src.parse().unwrap(),
                dst: dst.parse().unwrap(),
                protocol: 17,
                ports: Some((from, 53)),
                icmp: None,
            };
            let all = [udp("10.65.0.2", "192.0.2.9", 1001), udp("2001:db8::2", "2001:db8::9", 1002)];
            let mut socket = Socket::open_for(NETLINK_NETFILTER).unwrap();
            all.iter().for_each(|connection| create(&mut socket, *connection));
            let mut found = connections().unwrap();
            found.sort_unstable();
            assert_eq!(found, all);
        });
    }
}
