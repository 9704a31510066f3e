//! Messages about VXLAN devices and their forwarding entries (`linux/if_link.h`, `linux/neighbour.h`).
//!
//! Encoded by hand: a cluster of 5,000 hosts has as many forwarding entries, and netlink-packet-route knows
//! neither an alias nor all attributes that tell a fitting device from another.

use std::io;
use std::net::IpAddr;

use crate::netlink::codec::{
    self, Attrs, Message, NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REPLACE, RTM_DELADDR,
    RTM_DELLINK, RTM_DELNEIGH, RTM_GETLINK, RTM_GETNEIGH, RTM_NEWADDR, RTM_NEWLINK, RTM_NEWNEIGH, Writer,
    u8_at, u16_at, u32_at,
};
use crate::netlink::socket::Socket;

const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINKINFO: u16 = 18;
const IFLA_IFALIAS: u16 = 20;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_VXLAN_ID: u16 = 1;
const IFLA_VXLAN_GROUP: u16 = 2;
const IFLA_VXLAN_LINK: u16 = 3;
const IFLA_VXLAN_LOCAL: u16 = 4;
const IFLA_VXLAN_LEARNING: u16 = 7;
const IFLA_VXLAN_L2MISS: u16 = 13;
const IFLA_VXLAN_PORT: u16 = 15;
const IFLA_VXLAN_GROUP6: u16 = 16;
const IFLA_VXLAN_LOCAL6: u16 = 17;
const IFLA_VXLAN_GBP: u16 = 23;
const IFLA_VXLAN_COLLECT_METADATA: u16 = 25;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
/// `IFA_F_NODAD`: the address is used at once.
const IFA_F_NODAD: u8 = 2;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const NDA_IFINDEX: u16 = 8;
const NUD_PERMANENT: u16 = 0x80;
/// `NTF_SELF`: the entry belongs to the device itself, not to a bridge above it.
const NTF_SELF: u8 = 2;
const AF_BRIDGE: u8 = 7;
const IFF_UP: u32 = 1;
const VXLAN: &[u8] = b"vxlan";
/// Length of `struct ifinfomsg`, in octets.
const IFINFOMSG: usize = 16;
/// Length of `struct ndmsg`, in octets.
const NDMSG: usize = 12;

/// Properties of a VXLAN device that only its creation sets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VxlanSpec {
    pub(crate) vni: u32,
    pub(crate) port: u16,
    /// Index of the parent interface; 0 for none.
    pub(crate) parent: u32,
    pub(crate) local: IpAddr,
    pub(crate) mac: [u8; 6],
}

/// An existing interface with the name of a VXLAN device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FoundDevice {
    pub(crate) ifindex: u32,
    pub(crate) is_up: bool,
    pub(crate) mtu: u32,
    /// Text that its maker put there.
    pub(crate) alias: String,
    /// `None` if it is not VXLAN, or forwards in another way (learning, a group, external control).
    pub(crate) spec: Option<VxlanSpec>,
}

/// Change of a device or its addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DeviceChange {
    Create {
        name: &'static str,
        spec: VxlanSpec,
        mtu: u32,
    },
    Delete {
        ifindex: u32,
    },
    SetAlias {
        ifindex: u32,
        alias: &'static str,
    },
    /// Sets the device up, and its MTU in octets.
    SetUp {
        ifindex: u32,
        mtu: Option<u32>,
    },
    /// Adds a single address.
    AddAddress {
        ifindex: u32,
        addr: IpAddr,
    },
    DeleteAddress {
        ifindex: u32,
        addr: IpAddr,
        len: u8,
    },
}

impl DeviceChange {
    /// Encodes the request.
    pub(crate) fn encode(&self, buf: &mut Vec<u8>, flags: u16, seq: u32) {
        match self {
            Self::Create { name, spec, mtu } => {
                let mut w = Writer::begin(buf, RTM_NEWLINK, flags | NLM_F_CREATE | NLM_F_EXCL, seq);
                w.raw(&[0; IFINFOMSG]).attr_text(IFLA_IFNAME, name).attr(IFLA_ADDRESS, &spec.mac);
                w.attr_u32(IFLA_MTU, *mtu).nested(IFLA_LINKINFO, |w| {
                    w.attr(IFLA_INFO_KIND, VXLAN).nested(IFLA_INFO_DATA, |w| data(w, spec));
                });
                w.end();
            }
            Self::Delete { ifindex } => {
                let mut w = Writer::begin(buf, RTM_DELLINK, flags, seq);
                link(&mut w, *ifindex, 0);
                w.end();
            }
            Self::SetAlias { ifindex, alias } => {
                let mut w = Writer::begin(buf, RTM_NEWLINK, flags, seq);
                link(&mut w, *ifindex, 0);
                w.attr(IFLA_IFALIAS, alias.as_bytes());
                w.end();
            }
            Self::SetUp { ifindex, mtu } => {
                let mut w = Writer::begin(buf, RTM_NEWLINK, flags, seq);
                link(&mut w, *ifindex, IFF_UP);
                if let Some(mtu) = mtu {
                    w.attr_u32(IFLA_MTU, *mtu);
                }
                w.end();
            }
            Self::AddAddress { ifindex, addr } => {
                let len = if addr.is_ipv4() { 32 } else { 128 };
                let flags = flags | NLM_F_CREATE | NLM_F_REPLACE;
                address(buf, (RTM_NEWADDR, flags, seq), *ifindex, *addr, len);
            }
            Self::DeleteAddress { ifindex, addr, len } => {
                address(buf, (RTM_DELADDR, flags, seq), *ifindex, *addr, *len);
            }
        }
    }
}

fn data(w: &mut Writer<'_>, spec: &VxlanSpec) {
    w.attr_u32(IFLA_VXLAN_ID, spec.vni);
    if spec.parent != 0 {
        w.attr_u32(IFLA_VXLAN_LINK, spec.parent);
    }
    w.attr_addr(if spec.local.is_ipv4() { IFLA_VXLAN_LOCAL } else { IFLA_VXLAN_LOCAL6 }, spec.local);
    w.attr(IFLA_VXLAN_LEARNING, &[0]).attr_be16(IFLA_VXLAN_PORT, spec.port);
}

/// Appends `struct ifinfomsg`, with these flags to be set.
fn link(w: &mut Writer<'_>, ifindex: u32, set: u32) {
    w.raw(&[0; 4]).raw(&ifindex.to_ne_bytes()).raw(&set.to_ne_bytes()).raw(&set.to_ne_bytes());
}

fn address(buf: &mut Vec<u8>, (kind, flags, seq): (u16, u16, u32), ifindex: u32, addr: IpAddr, len: u8) {
    let bits = if addr.is_ipv4() { 0 } else { IFA_F_NODAD };
    let mut w = Writer::begin(buf, kind, flags, seq);
    w.raw(&[codec::family_of(&addr), len, bits, 0]).raw(&ifindex.to_ne_bytes());
    w.attr_addr(IFA_LOCAL, addr).attr_addr(IFA_ADDRESS, addr);
    w.end();
}

/// Reads the interface of this name.
pub(crate) fn read(socket: &mut Socket, name: &str) -> io::Result<Option<FoundDevice>> {
    let mut found = None;
    let answer = socket.dump(|buf, seq| encode_get(buf, seq, name), |message| found = decode(message))?;
    match answer {
        Err(refusal) if refusal.code != libc::ENODEV => {
            Err(io::Error::other(format!("{name} cannot be read: {refusal}")))
        }
        _ => Ok(found),
    }
}

/// Encodes the request for the interface of this name.
fn encode_get(buf: &mut Vec<u8>, seq: u32, name: &str) {
    let mut w = Writer::begin(buf, RTM_GETLINK, NLM_F_ACK, seq);
    w.raw(&[0; IFINFOMSG]).attr_text(IFLA_IFNAME, name);
    w.end();
}

/// A VXLAN device of any program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VxlanPort {
    /// Name of the device.
    pub device: String,
    /// UDP port on which it receives.
    pub port: u16,
    /// Network identifier; 0 for a device that receives all of them.
    pub vni: u32,
}

/// Reads all VXLAN devices.
pub(crate) fn ports(socket: &mut Socket) -> io::Result<Vec<VxlanPort>> {
    let mut found = Vec::new();
    let request = |buf: &mut Vec<u8>, seq: u32| {
        let mut w = Writer::begin(buf, RTM_GETLINK, NLM_F_DUMP, seq);
        w.raw(&[0; IFINFOMSG]);
        w.end();
    };
    let answer = socket.dump(request, |message| found.extend(decode_port(message)))?;
    answer.map_err(|refusal| io::Error::other(format!("interfaces cannot be read: {refusal}")))?;
    Ok(found)
}

fn decode_port(message: &Message<'_>) -> Option<VxlanPort> {
    let attribute = |wanted| Attrs::after(message.body, IFINFOMSG).find(|(kind, _)| *kind == wanted);
    let info = attribute(IFLA_LINKINFO)?.1;
    let part = |wanted| Attrs(info).find(|(kind, _)| *kind == wanted).map(|(_, data)| data);
    if codec::text(part(IFLA_INFO_KIND)?).as_bytes() != VXLAN {
        return None;
    }
    let data = part(IFLA_INFO_DATA)?;
    let member = |wanted| Attrs(data).find(|(kind, _)| *kind == wanted).map(|(_, data)| data);
    let external = member(IFLA_VXLAN_COLLECT_METADATA).is_some_and(|flag| u8_at(flag, 0) != Some(0));
    Some(VxlanPort {
        device: codec::text(attribute(IFLA_IFNAME)?.1),
        port: member(IFLA_VXLAN_PORT).and_then(|port| Some(u16::from_be_bytes(port.try_into().ok()?)))?,
        vni: if external { 0 } else { member(IFLA_VXLAN_ID).and_then(|vni| u32_at(vni, 0)).unwrap_or(0) },
    })
}

/// Decodes the answer to [`encode_get`].
fn decode(message: &Message<'_>) -> Option<FoundDevice> {
    let body = message.body;
    let (ifindex, flags) = (u32_at(body, 4)?, u32_at(body, 8)?);
    let (mut mtu, mut alias, mut mac, mut info) = (0, String::new(), None, &[][..]);
    for (kind, data) in Attrs::after(body, IFINFOMSG) {
        match kind {
            IFLA_ADDRESS => mac = data.try_into().ok(),
            IFLA_MTU => mtu = u32_at(data, 0)?,
            IFLA_IFALIAS => alias = codec::text(data),
            IFLA_LINKINFO => info = data,
            _ => {}
        }
    }
    let is_vxlan =
        Attrs(info).any(|(kind, data)| kind == IFLA_INFO_KIND && codec::text(data).as_bytes() == VXLAN);
    let data = Attrs(info).find(|(kind, _)| *kind == IFLA_INFO_DATA).map(|(_, data)| data);
    let spec = mac.zip(data).filter(|_| is_vxlan).and_then(|(mac, data)| decode_spec(data, mac));
    Some(FoundDevice { ifindex, is_up: flags & IFF_UP != 0, mtu, alias, spec })
}

fn decode_spec(data: &[u8], mac: [u8; 6]) -> Option<VxlanSpec> {
    let (mut vni, mut port, mut parent, mut local) = (None, None, 0, None);
    for (kind, data) in Attrs(data) {
        match kind {
            IFLA_VXLAN_ID => vni = u32_at(data, 0),
            IFLA_VXLAN_LINK => parent = u32_at(data, 0)?,
            IFLA_VXLAN_LOCAL | IFLA_VXLAN_LOCAL6 => local = codec::addr(data),
            IFLA_VXLAN_PORT => port = <[u8; 2]>::try_from(data).ok().map(u16::from_be_bytes),
            IFLA_VXLAN_LEARNING | IFLA_VXLAN_L2MISS | IFLA_VXLAN_COLLECT_METADATA
                if u8_at(data, 0) != Some(0) =>
            {
                return None;
            }
            IFLA_VXLAN_GROUP | IFLA_VXLAN_GROUP6 | IFLA_VXLAN_GBP => return None,
            _ => {}
        }
    }
    Some(VxlanSpec { vni: vni?, port: port?, parent, local: local?, mac })
}

/// A forwarding entry of a VXLAN device: frames to this MAC address go to this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ForwardingEntry {
    pub(crate) mac: [u8; 6],
    pub(crate) host: IpAddr,
}

/// Encodes the request that adds a permanent forwarding entry, or replaces the only one of its MAC address.
pub(crate) fn encode_put_forwarding(
    buf: &mut Vec<u8>,
    flags: u16,
    seq: u32,
    ifindex: u32,
    entry: &ForwardingEntry,
) {
    let mut w = Writer::begin(buf, RTM_NEWNEIGH, flags | NLM_F_CREATE | NLM_F_REPLACE, seq);
    forwarding(&mut w, ifindex, entry);
    w.end();
}

/// Encodes the request that removes a forwarding entry.
pub(crate) fn encode_delete_forwarding(
    buf: &mut Vec<u8>,
    flags: u16,
    seq: u32,
    ifindex: u32,
    entry: &ForwardingEntry,
) {
    let mut w = Writer::begin(buf, RTM_DELNEIGH, flags, seq);
    forwarding(&mut w, ifindex, entry);
    w.end();
}

fn forwarding(w: &mut Writer<'_>, ifindex: u32, entry: &ForwardingEntry) {
    w.raw(&[AF_BRIDGE, 0, 0, 0]).raw(&ifindex.to_ne_bytes()).raw(&NUD_PERMANENT.to_ne_bytes());
    w.raw(&[NTF_SELF, 0]).attr_addr(NDA_DST, entry.host).attr(NDA_LLADDR, &entry.mac);
}

/// Encodes the request for all forwarding entries of a device. Kernels without strict checking of requests
/// answer with those of all devices.
pub(crate) fn encode_dump_forwarding(buf: &mut Vec<u8>, seq: u32, ifindex: u32) {
    let mut w = Writer::begin(buf, RTM_GETNEIGH, NLM_F_DUMP, seq);
    w.raw(&[AF_BRIDGE, 0, 0, 0]).raw(&ifindex.to_ne_bytes()).raw(&[0; 4]);
    w.end();
}

/// Encodes the request for all neighbours of a device in one family, likewise.
pub(crate) fn encode_dump_neighbours(buf: &mut Vec<u8>, seq: u32, ifindex: u32, family: u8) {
    let mut w = Writer::begin(buf, RTM_GETNEIGH, NLM_F_DUMP, seq);
    w.raw(&[family, 0, 0, 0]).raw(&[0; 8]).attr_u32(NDA_IFINDEX, ifindex);
    w.end();
}

/// Decodes a permanent forwarding entry of this device.
pub(crate) fn decode_forwarding(message: &Message<'_>, ifindex: u32) -> Option<ForwardingEntry> {
    let body = message.body;
    let is_permanent = u16_at(body, 8)? & NUD_PERMANENT != 0;
    if message.kind != RTM_NEWNEIGH
        || u8_at(body, 0)? != AF_BRIDGE
        || u32_at(body, 4)? != ifindex
        || !is_permanent
    {
        return None;
    }
    let (mut mac, mut host) = (None, None);
    for (kind, data) in Attrs::after(body, NDMSG) {
        match kind {
            NDA_DST => host = codec::addr(data),
            NDA_LLADDR => mac = data.try_into().ok(),
            _ => {}
        }
    }
    Some(ForwardingEntry { mac: mac?, host: host? })
}

/// Decodes the interface of a notification about a neighbour or forwarding entry that an operator may have
/// changed: one that is permanent, or gone. The state of all others changes with the traffic.
pub(crate) fn decode_changed_entry(message: &Message<'_>) -> Option<u32> {
    let is_permanent = u16_at(message.body, 8)? & NUD_PERMANENT != 0;
    (is_permanent || message.kind == RTM_DELNEIGH).then(|| u32_at(message.body, 4))?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::codec::Messages;

    #[test]
    fn a_device_reads_back_as_it_is_asked_for() {
        for (local, port) in [("192.0.2.1", 4789), ("2001:db8::1", 8472)] {
            let local = local.parse().unwrap();
            let spec = VxlanSpec { vni: 4096, port, parent: 2, local, mac: [0x66, 1, 2, 3, 4, 5] };
            let mut buf = Vec::new();
            DeviceChange::Create { name: "vxlan.calico", spec: spec.clone(), mtu: 1450 }
                .encode(&mut buf, 0, 1);
            let found = decode(&Messages(&buf).next().unwrap()).unwrap();
            assert_eq!((found.mtu, found.is_up, found.spec), (1450, false, Some(spec)));
        }
    }

    #[test]
    fn a_forwarding_entry_reads_back_and_belongs_to_one_device() {
        let entry = ForwardingEntry { mac: [0x66, 1, 2, 3, 4, 5], host: "192.0.2.2".parse().unwrap() };
        let mut buf = Vec::new();
        encode_put_forwarding(&mut buf, 0, 1, 7, &entry);
        let message = Messages(&buf).next().unwrap();
        assert_eq!(decode_forwarding(&message, 7), Some(entry));
        assert_eq!(decode_forwarding(&message, 8), None);
        assert_eq!(decode_changed_entry(&message), Some(7));
    }
}
