//! Finds and deletes conntrack entries of vacated addresses, and of ports that are mapped elsewhere
//! (ctnetlink: `linux/netfilter/nfnetlink_conntrack.h`).
//!
//! Otherwise the next holder of an address would inherit the permissions of its predecessor, and answers
//! would go to the previous place. Nothing is deleted by a kernel filter: each entry is read, compared, and
//! deleted by its tuple and ID.
//!
//! Encoded by hand: netlink-packet-netfilter 0.4 supports neither the ID nor the zone that identify an entry
//! for deletion, nor types and codes of ICMP. It also builds a tree of values for each of hundreds of
//! thousands of entries, of which most are skipped.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

use netlink_sys::protocols::NETLINK_NETFILTER;
use tortie_net::Cidr;

use crate::netlink::codec::{self, AF_INET, AF_INET6, Attrs, Message, NLM_F_DUMP, Writer, u8_at};
use crate::netlink::socket::{Refusal, Socket};

/// `NFNL_SUBSYS_CTNETLINK` in the upper half, `IPCTNL_MSG_CT_*` in the lower.
const CT_GET: u16 = 0x101;
const CT_DELETE: u16 = 0x102;
const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_REPLY: u16 = 2;
const CTA_ID: u16 = 12;
const CTA_ZONE: u16 = 18;
const CTA_TUPLE_IP: u16 = 1;
const CTA_TUPLE_PROTO: u16 = 2;
const CTA_PROTO_NUM: u16 = 1;
const CTA_PROTO_DST_PORT: u16 = 3;
/// CTA_IP_V4_SRC, CTA_IP_V4_DST, CTA_IP_V6_SRC and CTA_IP_V6_DST.
const CTA_IP: std::ops::RangeInclusive<u16> = 1..=4;
/// `struct nfgenmsg`: family, version, resource.
const NFGENMSG: usize = 4;
/// `NLA_F_NESTED`.
const NESTED: u16 = 0x8000;

/// Attributes that identify an entry for deletion, as they were read.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    family: u8,
    tuple: Vec<u8>,
    zone: Option<Vec<u8>>,
    id: Vec<u8>,
}

/// A socket for conntrack, opened on first use.
#[derive(Default)]
pub(crate) struct Conntrack(Option<Socket>);

impl Conntrack {
    /// Deletes every entry that has an address in one of these prefixes, in either direction, and returns
    /// their number. A kernel without conntrack has no entries.
    pub(super) fn delete(&mut self, prefixes: &[Cidr]) -> io::Result<Result<usize, Refusal>> {
        let Some(socket) = self.socket()? else { return Ok(Ok(0)) };
        let mut found = Vec::new();
        for (family, v4) in [(AF_INET, true), (AF_INET6, false)] {
            let of_family: Vec<Cidr> = prefixes.iter().filter(|p| p.is_v4() == v4).copied().collect();
            if of_family.is_empty() {
                continue;
            }
            // There may be many entries and many addresses: the cost must not be their product.
            let (hosts, wide): (Vec<Cidr>, Vec<Cidr>) = of_family.iter().partition(|p| p.is_host());
            let hosts: BTreeSet<IpAddr> = hosts.iter().map(Cidr::addr).collect();
            let concerned = |addr: IpAddr| hosts.contains(&addr) || wide.iter().any(|p| p.contains(addr));
            match read(socket, family, |m| found.extend(decode(m, &concerned)))? {
                Ok(true) => {}
                Ok(false) => return Ok(Ok(0)),
                Err(r) => return Ok(Err(r)),
            }
        }
        remove(socket, &found)
    }

    /// Deletes the entries of a protocol whose first packet had a destination address and port that are
    /// `concerned`, and returns their number.
    pub(crate) fn delete_to(
        &mut self,
        protocol: u8,
        concerned: &mut dyn FnMut(IpAddr, u16) -> bool,
    ) -> io::Result<Result<usize, Refusal>> {
        let Some(socket) = self.socket()? else { return Ok(Ok(0)) };
        let mut found = Vec::new();
        for family in [AF_INET, AF_INET6] {
            let take = |message: &Message<'_>| {
                if destination(message, protocol).is_some_and(|(addr, port)| concerned(addr, port)) {
                    found.extend(decode(message, &|_| true));
                }
            };
            match read(socket, family, take)? {
                Ok(true) => {}
                Ok(false) => return Ok(Ok(0)),
                Err(r) => return Ok(Err(r)),
            }
        }
        remove(socket, &found)
    }

    fn socket(&mut self) -> io::Result<Option<&mut Socket>> {
        match &mut self.0 {
            Some(socket) => Ok(Some(socket)),
            none => match Socket::open_for(NETLINK_NETFILTER) {
                Ok(socket) => Ok(Some(none.insert(socket))),
                Err(e) if e.raw_os_error() == Some(libc::EPROTONOSUPPORT) => Ok(None),
                Err(e) => Err(e),
            },
        }
    }
}

/// Reads every entry of a family; `false` if the kernel does not support it.
fn read(
    socket: &mut Socket,
    family: u8,
    take: impl FnMut(&Message<'_>),
) -> io::Result<Result<bool, Refusal>> {
    let dump = |buf: &mut Vec<u8>, seq| {
        let mut w = Writer::begin(buf, CT_GET, NLM_F_DUMP, seq);
        w.raw(&[family, 0, 0, 0]);
        w.end();
    };
    Ok(match socket.dump(dump, take)? {
        Ok(_) => Ok(true),
        Err(r) if matches!(r.code, libc::EOPNOTSUPP | libc::EINVAL) => Ok(false),
        Err(r) => Err(r),
    })
}

fn remove(socket: &mut Socket, found: &[Entry]) -> io::Result<Result<usize, Refusal>> {
    let (mut deleted, mut refused) = (0, None);
    socket.batch(
        found,
        |entry, buf, flags, seq| entry.encode_delete(buf, flags, seq),
        |_, result| match result {
            Ok(()) => deleted += 1,
            // The entry expired meanwhile.
            Err(r) if r.code == libc::ENOENT => {}
            Err(r) => refused = Some(r),
        },
    )?;
    Ok(refused.map_or(Ok(deleted), Err))
}

/// Returns the destination of the first packet of an entry, if it is of this protocol.
fn destination(message: &Message<'_>, protocol: u8) -> Option<(IpAddr, u16)> {
    let (_, tuple) = Attrs::after(message.body, NFGENMSG).find(|(kind, _)| *kind == CTA_TUPLE_ORIG)?;
    let part = |wanted| Attrs(tuple).find(|(kind, _)| *kind == wanted).map(|(_, data)| data);
    let (ip, proto) = (part(CTA_TUPLE_IP)?, part(CTA_TUPLE_PROTO)?);
    let in_proto = |wanted| Attrs(proto).find(|(kind, _)| *kind == wanted).map(|(_, data)| data);
    if in_proto(CTA_PROTO_NUM)?.first() != Some(&protocol) {
        return None;
    }
    // CTA_IP_V4_DST, CTA_IP_V6_DST
    let addr = Attrs(ip).find(|(kind, _)| matches!(kind, 2 | 4)).and_then(|(_, data)| codec::addr(data))?;
    Some((addr, u16::from_be_bytes(in_proto(CTA_PROTO_DST_PORT)?.get(..2)?.try_into().ok()?)))
}

impl Entry {
    fn encode_delete(&self, buf: &mut Vec<u8>, flags: u16, seq: u32) {
        let mut w = Writer::begin(buf, CT_DELETE, flags, seq);
        w.raw(&[self.family, 0, 0, 0]).attr(CTA_TUPLE_ORIG | NESTED, &self.tuple);
        if let Some(zone) = &self.zone {
            w.attr(CTA_ZONE, zone);
        }
        w.attr(CTA_ID, &self.id);
        w.end();
    }
}

/// Parses an entry; `None` if none of its addresses is `concerned`.
fn decode(message: &Message<'_>, concerned: &dyn Fn(IpAddr) -> bool) -> Option<Entry> {
    let (mut tuple, mut zone, mut id, mut hit) = (None, None, None, false);
    for (kind, data) in Attrs::after(message.body, NFGENMSG) {
        match kind {
            CTA_TUPLE_ORIG | CTA_TUPLE_REPLY => {
                hit |= Attrs(data)
                    .filter(|(kind, _)| *kind == CTA_TUPLE_IP)
                    .flat_map(|(_, ip)| Attrs(ip))
                    .filter(|(kind, _)| CTA_IP.contains(kind))
                    .filter_map(|(_, addr)| codec::addr(addr))
                    .any(concerned);
                if kind == CTA_TUPLE_ORIG {
                    tuple = Some(data.to_vec());
                }
            }
            CTA_ZONE => zone = Some(data.to_vec()),
            CTA_ID => id = Some(data.to_vec()),
            _ => {}
        }
    }
    Some(Entry { family: u8_at(message.body, 0)?, tuple: tuple?, zone, id: id? }).filter(|_| hit)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::netlink::codec::{NLM_F_CREATE, NLM_F_EXCL};

    const CT_NEW: u16 = 0x100;

    /// Creates a UDP entry as `conntrack -I` does.
    fn create(socket: &mut Socket, orig: [[u8; 4]; 2], reply: [[u8; 4]; 2], port: u16) {
        let tuple = |w: &mut Writer<'_>, kind: u16, [src, dst]: [[u8; 4]; 2], ports: [u16; 2]| {
            w.nested(kind | NESTED, |w| {
                w.nested(CTA_TUPLE_IP | NESTED, |w| {
                    w.attr(1, &src).attr(2, &dst);
                });
                w.nested(2 | NESTED, |w| {
                    w.attr(1, &[17]).attr(2, &ports[0].to_be_bytes()).attr(3, &ports[1].to_be_bytes());
                });
            });
        };
        let made = socket.request(|(), buf, flags, seq| {
            let mut w = Writer::begin(buf, CT_NEW, flags | NLM_F_CREATE | NLM_F_EXCL, seq);
            w.raw(&[AF_INET, 0, 0, 0]);
            tuple(&mut w, CTA_TUPLE_ORIG, orig, [port, 53]);
            tuple(&mut w, CTA_TUPLE_REPLY, reply, [53, port]);
            // CTA_TIMEOUT in seconds.
            w.attr(7, &600u32.to_be_bytes());
            w.end();
        });
        made.unwrap().unwrap();
    }

    fn count(socket: &mut Socket) -> usize {
        let mut n = 0;
        let dump = |buf: &mut Vec<u8>, seq| {
            let mut w = Writer::begin(buf, CT_GET, NLM_F_DUMP, seq);
            w.raw(&[AF_INET, 0, 0, 0]);
            w.end();
        };
        socket.dump(dump, |_| n += 1).unwrap().unwrap();
        n
    }

    #[test]
    fn connections_of_an_address_go_in_either_direction_and_others_stay() {
        tortie_topology::netns::in_netns(|| {
            let mut socket = Socket::open_for(NETLINK_NETFILTER).unwrap();
            let [one, two, far, outside] =
                [[10, 65, 0, 2], [10, 65, 0, 3], [192, 0, 2, 9], [198, 51, 100, 2]];
            let host = [192, 0, 2, 1];
            create(&mut socket, [one, far], [far, one], 1001);
            create(&mut socket, [far, one], [one, far], 1002);
            // Masqueraded on the way out, and translated from a floating address on the way in.
            create(&mut socket, [one, far], [far, host], 1003);
            create(&mut socket, [far, outside], [one, far], 1004);
            create(&mut socket, [two, far], [far, two], 1005);
            create(&mut socket, [far, two], [two, far], 1006);
            assert_eq!(count(&mut socket), 6);
            let mut conntrack = Conntrack::default();
            let host = |a: [u8; 4]| Cidr::host(IpAddr::V4(Ipv4Addr::from(a)));
            assert_eq!(conntrack.delete(&[host(one)]).unwrap(), Ok(4));
            assert_eq!(count(&mut socket), 2);
            assert_eq!(conntrack.delete(&[host(one)]).unwrap(), Ok(0));
            create(&mut socket, [far, outside], [two, far], 1007);
            assert_eq!(conntrack.delete(&[host(outside)]).unwrap(), Ok(1), "the floating address itself");
            assert_eq!(conntrack.delete(&["10.65.0.0/26".parse().unwrap()]).unwrap(), Ok(2));
            assert_eq!(count(&mut socket), 0);
        });
    }
}
