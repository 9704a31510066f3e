//! Interfaces of one namespace over one socket: the messages, written and read without libraries, as rtnetlink(7) has
//! them.

use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

use tortie_config::resource::MacAddr;
use tortie_net::Cidr;

use super::{PlumbError, VethSpec};
use crate::netlink::codec::{
    self, AF_INET, AF_INET6, Attrs, Message, NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REPLACE,
    RTM_DELADDR, RTM_DELLINK, RTM_GETADDR, RTM_GETLINK, RTM_GETROUTE, RTM_NEWADDR, RTM_NEWLINK, Writer,
    u8_at, u32_at,
};
use crate::netlink::route::{self, Leg, Put, Route, Via};
use crate::netlink::socket::{Refusal, Socket};
use crate::netlink::{dump, link};

pub(super) const RTPROT_BOOT: u8 = 3;
/// What `ip route` gives an IPv6 route that says nothing.
const METRIC_V6: u32 = 1024;

const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_MASTER: u16 = 10;
const IFLA_LINKINFO: u16 = 18;
const IFLA_IFALIAS: u16 = 20;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;
/// `struct ifinfomsg`.
const IFINFOMSG: usize = 16;
const IFF_UP: u32 = 1;

const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_FLAGS: u16 = 8;
/// Duplicate address detection is skipped: the address can be used at once.
const IFA_F_NODAD: u32 = 2;
/// `struct rtmsg`.
const RTMSG: usize = 12;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTN_LOCAL: u8 = 2;
const RT_SCOPE_UNIVERSE: u8 = 0;
const RT_SCOPE_LINK: u8 = 253;
/// How long what Linux puts off is waited for. It does it within a millisecond where it has the processor.
const PATIENCE: Duration = Duration::from_secs(2);

/// An interface as the kernel shows it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Device {
    pub(super) index: u32,
    pub(super) name: String,
    pub(super) up: bool,
    pub(super) mac: Option<MacAddr>,
    pub(super) mtu: u32,
    /// `veth`, `tun`, `ifb`, ...; empty: a real one.
    pub(super) kind: String,
    /// The bridge that it is a port of, or the like; 0: none.
    pub(super) master: u32,
    pub(super) alias: String,
}

/// What is changed of an interface.
#[derive(Debug, Default)]
pub(super) struct Change<'a> {
    pub(super) up: Option<bool>,
    pub(super) name: Option<&'a str>,
    pub(super) mac: Option<MacAddr>,
    pub(super) mtu: Option<u32>,
    /// 0: none.
    pub(super) master: Option<u32>,
    pub(super) alias: Option<&'a str>,
}

/// A socket in the namespace in which it was opened.
pub(super) struct Net(Socket);

impl Net {
    pub(super) fn open() -> Result<Self, PlumbError> {
        Socket::open().map(Self).map_err(|error| PlumbError::io("a netlink socket cannot be opened", error))
    }

    /// One request with its answer.
    pub(super) fn ask(
        &mut self,
        doing: &str,
        encode: impl FnMut(&(), &mut Vec<u8>, u16, u32),
    ) -> Result<Result<(), Refusal>, PlumbError> {
        self.0.request(encode).map_err(|error| PlumbError::io(doing, error))
    }

    /// One request that has to succeed.
    pub(super) fn must(
        &mut self,
        doing: &str,
        encode: impl FnMut(&(), &mut Vec<u8>, u16, u32),
    ) -> Result<(), PlumbError> {
        self.ask(doing, encode)?.map_err(|refusal| PlumbError::refused(doing, &refusal))
    }

    /// An interface by name.
    pub(super) fn device(&mut self, name: &str) -> Result<Option<Device>, PlumbError> {
        let doing = || format!("interface {name} cannot be read");
        let mut found = None;
        let answer = self.0.dump(
            |buf, seq| {
                let mut w = Writer::begin(buf, RTM_GETLINK, NLM_F_ACK, seq);
                w.raw(&[0; IFINFOMSG]).attr_text(IFLA_IFNAME, name);
                w.end();
            },
            |message| found = decode(message).or(found.take()),
        );
        match answer.map_err(|error| PlumbError::io(doing(), error))? {
            Ok(_) => Ok(found),
            Err(refusal) if refusal.code == libc::ENODEV => Ok(None),
            Err(refusal) => Err(PlumbError::refused(doing(), &refusal)),
        }
    }

    /// Everything of one kind, as far as `read` takes it.
    pub(super) fn read<T>(
        &mut self,
        doing: &str,
        encode: impl FnOnce(&mut Vec<u8>, u32),
        read: impl Fn(&Message<'_>) -> Option<T>,
    ) -> Result<Vec<T>, PlumbError> {
        let mut all = Vec::new();
        let answer = self.0.dump(encode, |message| all.extend(read(message)));
        match answer.map_err(|error| PlumbError::io(doing, error))? {
            Ok(_) => Ok(all),
            Err(refusal) => Err(PlumbError::refused(doing, &refusal)),
        }
    }

    /// All interfaces.
    pub(super) fn devices(&mut self) -> Result<Vec<Device>, PlumbError> {
        self.read("interfaces cannot be read", link::encode_link_dump, decode)
    }

    /// The interface that packets to an address leave by.
    pub(super) fn way_to(&mut self, addr: IpAddr) -> Result<Option<u32>, PlumbError> {
        Ok(self.route_to(addr, None)?.and_then(|(_, by)| by))
    }

    /// Waits until an interface answers for an IPv6 address that it was given. Linux joins the group that neighbours
    /// ask in, and writes the address's local route after it, when it comes to it: what is asked before that is lost,
    /// and asked again a second later. Gives up silently after [`PATIENCE`]: it is late, not wrong.
    pub(super) fn until_answering(&mut self, index: u32, addr: IpAddr) -> Result<(), PlumbError> {
        let begin = Instant::now();
        while !matches!(self.route_to(addr, Some(index))?, Some((RTN_LOCAL, _))) && begin.elapsed() < PATIENCE
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// The type of the route that packets to an address take, and the interface that they leave by; `over`: they have
    /// to leave by it.
    fn route_to(&mut self, addr: IpAddr, over: Option<u32>) -> Result<Option<(u8, Option<u32>)>, PlumbError> {
        let doing = || format!("the route to {addr} cannot be read");
        let (family, len) = if addr.is_ipv4() { (AF_INET, 32) } else { (AF_INET6, 128) };
        let mut found = None;
        let answer = self.0.dump(
            |buf, seq| {
                let mut w = Writer::begin(buf, RTM_GETROUTE, NLM_F_ACK, seq);
                w.raw(&[family, len, 0, 0, 0, 0, 0, 0]).raw(&[0; 4]).attr_addr(RTA_DST, addr);
                if let Some(index) = over {
                    w.attr_u32(RTA_OIF, index);
                }
                w.end();
            },
            |message| {
                let oif = Attrs::after(message.body, RTMSG).find(|(kind, _)| *kind == RTA_OIF);
                found = u8_at(message.body, 7).map(|kind| (kind, oif.and_then(|(_, data)| u32_at(data, 0))));
            },
        );
        match answer.map_err(|error| PlumbError::io(doing(), error))? {
            Ok(_) => Ok(found),
            Err(refusal)
                if matches!(
                    refusal.code,
                    libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EINVAL | libc::EACCES
                ) =>
            {
                Ok(None)
            }
            Err(refusal) => Err(PlumbError::refused(doing(), &refusal)),
        }
    }

    /// Makes a pair.
    pub(super) fn add_veth(&mut self, spec: &VethSpec<'_>) -> Result<Result<(), Refusal>, PlumbError> {
        let doing = format!("the pair {} and {} cannot be made", spec.host, spec.peer);
        self.ask(&doing, |(), buf, flags, seq| {
            let mut w = Writer::begin(buf, RTM_NEWLINK, flags | NLM_F_CREATE | NLM_F_EXCL, seq);
            w.raw(&[0; IFINFOMSG]);
            end_of_pair(&mut w, spec.host.as_str(), spec.host_mac, spec.mtu);
            w.nested(IFLA_LINKINFO, |w| {
                w.attr_text(IFLA_INFO_KIND, "veth");
                w.nested(IFLA_INFO_DATA, |w| {
                    w.nested(VETH_INFO_PEER, |w| {
                        w.raw(&[0; IFINFOMSG]);
                        end_of_pair(w, spec.peer.as_str(), spec.peer_mac, spec.mtu);
                        if let Some(namespace) = spec.namespace {
                            w.attr(IFLA_NET_NS_FD, &namespace.raw().to_ne_bytes());
                        }
                    });
                });
            });
            w.end();
        })
    }

    /// Makes an interface of a kind that needs no further words.
    pub(super) fn add(
        &mut self,
        kind: &str,
        name: &str,
        mtu: u32,
    ) -> Result<Result<(), Refusal>, PlumbError> {
        self.ask(&format!("{name} cannot be made"), |(), buf, flags, seq| {
            let mut w = Writer::begin(buf, RTM_NEWLINK, flags | NLM_F_CREATE | NLM_F_EXCL, seq);
            w.raw(&[0; 8]).raw(&IFF_UP.to_ne_bytes()).raw(&IFF_UP.to_ne_bytes());
            w.attr_text(IFLA_IFNAME, name).attr_u32(IFLA_MTU, mtu);
            w.nested(IFLA_LINKINFO, |w| {
                w.attr_text(IFLA_INFO_KIND, kind);
            });
            w.end();
        })
    }

    /// Removes an interface; false: it was not there.
    pub(super) fn remove(&mut self, name: &str) -> Result<bool, PlumbError> {
        let doing = format!("interface {name} cannot be removed");
        let answer = self.ask(&doing, |(), buf, flags, seq| {
            let mut w = Writer::begin(buf, RTM_DELLINK, flags, seq);
            w.raw(&[0; IFINFOMSG]).attr_text(IFLA_IFNAME, name);
            w.end();
        })?;
        match answer {
            Ok(()) => Ok(true),
            Err(refusal) if refusal.code == libc::ENODEV => Ok(false),
            Err(refusal) => Err(PlumbError::refused(doing, &refusal)),
        }
    }

    /// Changes an interface.
    pub(super) fn change(&mut self, index: u32, doing: &str, change: &Change<'_>) -> Result<(), PlumbError> {
        self.must(doing, |(), buf, flags, seq| {
            let mut w = Writer::begin(buf, RTM_NEWLINK, flags, seq);
            let (bits, mask) = match change.up {
                None => (0, 0),
                Some(up) => (u32::from(up) * IFF_UP, IFF_UP),
            };
            w.raw(&[0; 4]).raw(&index.to_ne_bytes()).raw(&bits.to_ne_bytes()).raw(&mask.to_ne_bytes());
            if let Some(name) = change.name {
                w.attr_text(IFLA_IFNAME, name);
            }
            if let Some(mac) = change.mac {
                w.attr(IFLA_ADDRESS, &mac.0);
            }
            if let Some(mtu) = change.mtu {
                w.attr_u32(IFLA_MTU, mtu);
            }
            if let Some(master) = change.master {
                w.attr_u32(IFLA_MASTER, master);
            }
            if let Some(alias) = change.alias {
                w.attr_text(IFLA_IFALIAS, alias);
            }
            w.end();
        })
    }

    /// Addresses of an interface.
    pub(super) fn addresses(&mut self, index: u32) -> Result<Vec<link::Address>, PlumbError> {
        let doing = "addresses cannot be read";
        let all = dump::all(
            &mut self.0,
            |buf, seq, family| {
                let mut w = Writer::begin(buf, RTM_GETADDR, NLM_F_DUMP, seq);
                w.raw(&[family, 0, 0, 0]).raw(&[0; 4]);
                w.end();
            },
            link::decode_address,
        );
        let all = all.map_err(|error| PlumbError::io(doing, error))?;
        Ok(all.into_iter().filter(|a| a.ifindex == index).collect())
    }

    /// Gives an interface an address, for use at once.
    pub(super) fn add_address(&mut self, index: u32, addr: IpAddr, len: u8) -> Result<(), PlumbError> {
        self.must(&format!("address {addr} cannot be set"), |(), buf, flags, seq| {
            address(buf, RTM_NEWADDR, flags | NLM_F_CREATE | NLM_F_REPLACE, seq, index, addr, len);
        })
    }

    /// Takes an address away, if it is there.
    pub(super) fn remove_address(&mut self, index: u32, addr: IpAddr, len: u8) -> Result<(), PlumbError> {
        let doing = format!("address {addr} cannot be removed");
        let answer = self.ask(&doing, |(), buf, flags, seq| {
            address(buf, RTM_DELADDR, flags, seq, index, addr, len);
        })?;
        match answer {
            Err(refusal) if refusal.code != libc::EADDRNOTAVAIL => Err(PlumbError::refused(doing, &refusal)),
            _ => Ok(()),
        }
    }

    /// Routes of the main table.
    pub(super) fn routes(&mut self) -> Result<Vec<Route>, PlumbError> {
        let doing = "routes cannot be read";
        dump::all(&mut self.0, route::encode_dump, route::decode)
            .map_err(|error| PlumbError::io(doing, error))
    }

    /// `prefix dev INDEX scope link`; false: a route with this prefix and metric is there.
    pub(super) fn add_onlink(&mut self, prefix: &Cidr, index: u32) -> Result<bool, PlumbError> {
        let doing = format!("the route to {prefix} cannot be written");
        let answer = self.ask(&doing, |(), buf, flags, seq| {
            route::encode_add_onlink(buf, flags, seq, prefix, RTPROT_BOOT, metric(prefix), index);
        })?;
        not_there(&doing, answer)
    }

    /// `prefix via GATEWAY dev INDEX`; false: a route with this prefix and metric is there.
    pub(super) fn add_via(
        &mut self,
        prefix: &Cidr,
        gateway: IpAddr,
        index: u32,
        metric: u32,
    ) -> Result<bool, PlumbError> {
        let doing = format!("the route to {prefix} cannot be written");
        let leg = [Leg { ifindex: index, gateway: Some(gateway), onlink: true }];
        let answer = self.ask(&doing, |(), buf, flags, seq| {
            route::encode_put(buf, flags, seq, prefix, RTPROT_BOOT, metric, Via::Plain(&leg), Put::Add);
        })?;
        not_there(&doing, answer)
    }

    /// Removes a route over an interface, if it is there.
    pub(super) fn remove_route(&mut self, prefix: &Cidr, metric: u32, index: u32) -> Result<(), PlumbError> {
        let doing = format!("the route to {prefix} cannot be removed");
        let answer = self.ask(&doing, |(), buf, flags, seq| {
            route::encode_delete_onlink(buf, flags, seq, prefix, RTPROT_BOOT, metric, index);
        })?;
        match answer {
            Err(refusal) if refusal.code != libc::ESRCH => Err(PlumbError::refused(doing, &refusal)),
            _ => Ok(()),
        }
    }
}

/// The metric that routes to workloads have.
pub(super) fn metric(prefix: &Cidr) -> u32 {
    if prefix.is_v4() { 0 } else { METRIC_V6 }
}

/// The link-local address that a MAC address makes (RFC 4291, appendix A).
pub(super) fn link_local(mac: MacAddr) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac.0;
    Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

fn not_there(doing: &str, answer: Result<(), Refusal>) -> Result<bool, PlumbError> {
    match answer {
        Ok(()) => Ok(true),
        Err(refusal) if refusal.code == libc::EEXIST => Ok(false),
        Err(refusal) => Err(PlumbError::refused(doing, &refusal)),
    }
}

fn end_of_pair(w: &mut Writer<'_>, name: &str, mac: Option<MacAddr>, mtu: Option<u32>) {
    w.attr_text(IFLA_IFNAME, name);
    if let Some(mac) = mac {
        w.attr(IFLA_ADDRESS, &mac.0);
    }
    if let Some(mtu) = mtu {
        w.attr_u32(IFLA_MTU, mtu);
    }
}

fn address(buf: &mut Vec<u8>, kind: u16, flags: u16, seq: u32, index: u32, addr: IpAddr, len: u8) {
    let mut w = Writer::begin(buf, kind, flags, seq);
    let (family, bits) = if addr.is_ipv4() { (AF_INET, 0) } else { (AF_INET6, IFA_F_NODAD) };
    let local = matches!(addr, IpAddr::V6(a) if a.segments()[0] == 0xfe80);
    let scope = if local { RT_SCOPE_LINK } else { RT_SCOPE_UNIVERSE };
    w.raw(&[family, len, 0, scope]).raw(&index.to_ne_bytes());
    w.attr_addr(IFA_LOCAL, addr).attr_addr(IFA_ADDRESS, addr).attr_u32(IFA_FLAGS, bits);
    w.end();
}

fn decode(message: &Message<'_>) -> Option<Device> {
    if message.kind != RTM_NEWLINK || u8_at(message.body, 0)? != 0 {
        return None;
    }
    let mut device = Device {
        index: u32_at(message.body, 4)?,
        up: u32_at(message.body, 8)? & IFF_UP != 0,
        ..Device::default()
    };
    for (kind, data) in Attrs::after(message.body, IFINFOMSG) {
        match kind {
            IFLA_IFNAME => device.name = codec::text(data),
            IFLA_ADDRESS => device.mac = <[u8; 6]>::try_from(data).ok().map(MacAddr),
            IFLA_MTU => device.mtu = u32_at(data, 0)?,
            IFLA_MASTER => device.master = u32_at(data, 0)?,
            IFLA_IFALIAS => device.alias = codec::text(data),
            IFLA_LINKINFO => {
                let kind = Attrs(data).find(|(kind, _)| *kind == IFLA_INFO_KIND);
                device.kind = kind.map(|(_, data)| codec::text(data)).unwrap_or_default();
            }
            _ => {}
        }
    }
    Some(device)
}
