//! Encoding and decoding of netlink messages: headers and attributes, without allocation.
//!
//! Routes, nexthops, rules and their notifications arrive by the hundred thousand, so they are encoded here:
//! 1,024 routes in one datagram with one acknowledgement take about half the time of single requests with
//! rtnetlink. Rare messages (links, addresses, neighbours, traffic control) use netlink-packet-route, see
//! `message.rs`. Decoders skip unknown attributes: one unknown attribute of a new kernel must not hide a
//! route.

use std::net::IpAddr;

use tortie_net::Cidr;

/// Length of `struct nlmsghdr`.
pub(crate) const HEADER: usize = 16;

pub(crate) const NLM_F_REQUEST: u16 = 0x1;
pub(crate) const NLM_F_ACK: u16 = 0x4;
pub(crate) const NLM_F_DUMP: u16 = 0x300;
pub(crate) const NLM_F_REPLACE: u16 = 0x100;
pub(crate) const NLM_F_EXCL: u16 = 0x200;
pub(crate) const NLM_F_CREATE: u16 = 0x400;
pub(crate) const NLM_F_APPEND: u16 = 0x800;
pub(crate) const NLM_F_DUMP_INTR: u16 = 0x10;
/// Flag of an attribute that contains attributes; required by nf_tables, not by rtnetlink.
const NLA_F_NESTED: u16 = 0x8000;

pub(crate) const NLMSG_ERROR: u16 = 2;
pub(crate) const NLMSG_DONE: u16 = 3;

pub(crate) const RTM_NEWLINK: u16 = 16;
pub(crate) const RTM_DELLINK: u16 = 17;
pub(crate) const RTM_GETLINK: u16 = 18;
pub(crate) const RTM_NEWADDR: u16 = 20;
pub(crate) const RTM_DELADDR: u16 = 21;
pub(crate) const RTM_NEWROUTE: u16 = 24;
pub(crate) const RTM_DELROUTE: u16 = 25;
pub(crate) const RTM_GETROUTE: u16 = 26;
pub(crate) const RTM_NEWNEIGH: u16 = 28;
pub(crate) const RTM_DELNEIGH: u16 = 29;
pub(crate) const RTM_GETNEIGH: u16 = 30;
pub(crate) const RTM_NEWNEXTHOP: u16 = 104;
pub(crate) const RTM_DELNEXTHOP: u16 = 105;
pub(crate) const RTM_GETNEXTHOP: u16 = 106;

pub(crate) const AF_INET: u8 = 2;
pub(crate) const AF_INET6: u8 = 10;

/// `RTNH_F_ONLINK`: the gateway is on the link although no address of the interface covers it.
pub(crate) const RTNH_F_ONLINK: u8 = 4;

/// Mode in which a route or nexthop object is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Put {
    /// Refused if the nexthop ID exists, or a route with this prefix and metric.
    Add,
    /// Creates, or replaces the nexthop of this ID or the first route with this prefix and metric. Use only
    /// if that is known to be Tortie's.
    Replace,
}

impl Put {
    /// Returns the flags of the message header, in addition to those of every request.
    pub(crate) fn flags(self) -> u16 {
        match self {
            Self::Add => NLM_F_CREATE | NLM_F_EXCL,
            Self::Replace => NLM_F_CREATE | NLM_F_REPLACE,
        }
    }
}

/// Appends one message to a buffer; [`Writer::end`] fills in the length.
pub(crate) struct Writer<'a> {
    buf: &'a mut Vec<u8>,
    start: usize,
}

impl<'a> Writer<'a> {
    /// Begins a request of type `kind`.
    pub(crate) fn begin(buf: &'a mut Vec<u8>, kind: u16, flags: u16, seq: u32) -> Self {
        let start = buf.len();
        buf.extend_from_slice(&0u32.to_ne_bytes());
        buf.extend_from_slice(&kind.to_ne_bytes());
        buf.extend_from_slice(&(flags | NLM_F_REQUEST).to_ne_bytes());
        buf.extend_from_slice(&seq.to_ne_bytes());
        buf.extend_from_slice(&0u32.to_ne_bytes());
        Self { buf, start }
    }

    /// Appends attributes only, without a message around them; the length of the buffer must be a multiple of
    /// four.
    pub(crate) fn bare(buf: &'a mut Vec<u8>) -> Self {
        let start = buf.len();
        Self { buf, start }
    }

    /// Returns the length of the buffer, in octets.
    pub(crate) fn len(&self) -> usize {
        self.buf.len()
    }

    /// Appends raw bytes of the family's own header; their number must be a multiple of four.
    pub(crate) fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.buf.extend_from_slice(bytes);
        self
    }

    /// Appends an attribute. The length field of data beyond 64 KiB is capped, and the kernel then refuses
    /// the message.
    pub(crate) fn attr(&mut self, kind: u16, data: &[u8]) -> &mut Self {
        let len = u16::try_from(data.len() + 4).unwrap_or(u16::MAX);
        self.buf.extend_from_slice(&len.to_ne_bytes());
        self.buf.extend_from_slice(&kind.to_ne_bytes());
        self.buf.extend_from_slice(data);
        self.pad();
        self
    }

    /// Appends a 32-bit attribute in host byte order.
    pub(crate) fn attr_u32(&mut self, kind: u16, value: u32) -> &mut Self {
        self.attr(kind, &value.to_ne_bytes())
    }

    /// Appends a 16-bit attribute in network byte order.
    pub(crate) fn attr_be16(&mut self, kind: u16, value: u16) -> &mut Self {
        self.attr(kind, &value.to_be_bytes())
    }

    /// Appends a 32-bit attribute in network byte order.
    pub(crate) fn attr_be32(&mut self, kind: u16, value: u32) -> &mut Self {
        self.attr(kind, &value.to_be_bytes())
    }

    /// Appends a 64-bit attribute in network byte order.
    pub(crate) fn attr_be64(&mut self, kind: u16, value: u64) -> &mut Self {
        self.attr(kind, &value.to_be_bytes())
    }

    /// Appends a text attribute with its terminating zero.
    pub(crate) fn attr_text(&mut self, kind: u16, text: &str) -> &mut Self {
        let len = u16::try_from(text.len() + 5).unwrap_or(u16::MAX);
        self.buf.extend_from_slice(&len.to_ne_bytes());
        self.buf.extend_from_slice(&kind.to_ne_bytes());
        self.buf.extend_from_slice(text.as_bytes());
        self.buf.push(0);
        self.pad();
        self
    }

    /// Appends an address attribute.
    pub(crate) fn attr_addr(&mut self, kind: u16, addr: IpAddr) -> &mut Self {
        match addr {
            IpAddr::V4(a) => self.attr(kind, &a.octets()),
            IpAddr::V6(a) => self.attr(kind, &a.octets()),
        }
    }

    /// Appends an attribute whose content `fill` appends.
    pub(crate) fn nested(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) -> &mut Self {
        let at = self.buf.len();
        self.buf.extend_from_slice(&[0, 0]);
        self.buf.extend_from_slice(&kind.to_ne_bytes());
        fill(self);
        self.patch_u16(at);
        self
    }

    /// Like [`Writer::nested`], with the flag for nested attributes in the type.
    pub(crate) fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) -> &mut Self {
        self.nested(kind | NLA_F_NESTED, fill)
    }

    /// Appends a `struct rtnexthop` with the attributes that `fill` appends (inside RTA_MULTIPATH).
    pub(crate) fn rtnexthop(&mut self, flags: u8, ifindex: u32, fill: impl FnOnce(&mut Self)) {
        let at = self.buf.len();
        self.buf.extend_from_slice(&[0, 0, flags, 0]);
        self.buf.extend_from_slice(&ifindex.to_ne_bytes());
        fill(self);
        self.patch_u16(at);
    }

    /// Ends the message and fills in its length.
    pub(crate) fn end(self) {
        let len = u32::try_from(self.buf.len() - self.start).unwrap_or(u32::MAX).to_ne_bytes();
        if let Some(field) = self.buf.get_mut(self.start..self.start + 4) {
            field.copy_from_slice(&len);
        }
    }

    fn patch_u16(&mut self, at: usize) {
        let len = u16::try_from(self.buf.len() - at).unwrap_or(u16::MAX).to_ne_bytes();
        if let Some(field) = self.buf.get_mut(at..at + 2) {
            field.copy_from_slice(&len);
        }
    }

    fn pad(&mut self) {
        while !self.buf.len().is_multiple_of(4) {
            self.buf.push(0);
        }
    }
}

/// One received message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Message<'a> {
    pub(crate) kind: u16,
    pub(crate) flags: u16,
    pub(crate) seq: u32,
    /// Port ID of the socket whose request caused a notification; 0 for the kernel itself.
    pub(crate) pid: u32,
    pub(crate) body: &'a [u8],
}

/// Iterates over the messages of one datagram; ends at the first malformed header.
pub(crate) struct Messages<'a>(pub(crate) &'a [u8]);

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Message<'a>> {
        let len = usize::try_from(u32_at(self.0, 0)?).ok()?;
        let body = self.0.get(HEADER..len)?;
        let message = Message {
            kind: u16_at(self.0, 4)?,
            flags: u16_at(self.0, 6)?,
            seq: u32_at(self.0, 8)?,
            pid: u32_at(self.0, 12)?,
            body,
        };
        self.0 = self.0.get(align(len)..).unwrap_or_default();
        Some(message)
    }
}

/// Iterates over attributes; ends at the first malformed one.
pub(crate) struct Attrs<'a>(pub(crate) &'a [u8]);

impl<'a> Attrs<'a> {
    /// Returns the attributes after a fixed header of `skip` bytes.
    pub(crate) fn after(body: &'a [u8], skip: usize) -> Self {
        Self(body.get(skip..).unwrap_or_default())
    }
}

impl<'a> Iterator for Attrs<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let len = usize::from(u16_at(self.0, 0)?);
        // The two high bits are the flags "nested" and "network byte order".
        let kind = u16_at(self.0, 2)? & 0x3fff;
        let data = self.0.get(4..len)?;
        self.0 = self.0.get(align(len)..).unwrap_or_default();
        Some((kind, data))
    }
}

/// Rounds up to the netlink alignment of four bytes.
pub(crate) fn align(len: usize) -> usize {
    (len + 3) & !3
}

pub(crate) fn u8_at(data: &[u8], at: usize) -> Option<u8> {
    data.get(at).copied()
}

pub(crate) fn u16_at(data: &[u8], at: usize) -> Option<u16> {
    data.get(at..at + 2)?.try_into().ok().map(u16::from_ne_bytes)
}

pub(crate) fn u32_at(data: &[u8], at: usize) -> Option<u32> {
    data.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

/// Decodes a 32-bit number in network byte order.
pub(crate) fn be32(data: &[u8]) -> Option<u32> {
    <[u8; 4]>::try_from(data).ok().map(u32::from_be_bytes)
}

/// Decodes a 64-bit number in network byte order.
pub(crate) fn be64(data: &[u8]) -> Option<u64> {
    <[u8; 8]>::try_from(data).ok().map(u64::from_be_bytes)
}

/// Decodes an address of 4 or 16 bytes.
pub(crate) fn addr(data: &[u8]) -> Option<IpAddr> {
    if let Ok(v4) = <[u8; 4]>::try_from(data) {
        return Some(IpAddr::from(v4));
    }
    <[u8; 16]>::try_from(data).ok().map(IpAddr::from)
}

/// Decodes a text attribute without its terminating zero.
pub(crate) fn text(data: &[u8]) -> String {
    String::from_utf8_lossy(data.split(|b| *b == 0).next().unwrap_or_default()).into_owned()
}

/// Returns the kernel's number of the address family of a prefix.
pub(crate) fn family(prefix: &Cidr) -> u8 {
    if prefix.is_v4() { AF_INET } else { AF_INET6 }
}

/// Returns the kernel's number of the address family of an address.
pub(crate) fn family_of(addr: &IpAddr) -> u8 {
    if addr.is_ipv4() { AF_INET } else { AF_INET6 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let mut buf = Vec::new();
        let mut w = Writer::begin(&mut buf, RTM_NEWROUTE, NLM_F_ACK, 7);
        w.raw(&[AF_INET, 24, 0, 0]).attr_u32(4, 0x0102_0304).attr(9, b"abc");
        w.nested(5, |w| {
            w.attr_u32(6, 9);
        });
        w.end();
        let message = Messages(&buf).next().unwrap();
        assert_eq!((message.kind, message.flags, message.seq), (RTM_NEWROUTE, NLM_F_ACK | NLM_F_REQUEST, 7));
        let attrs: Vec<_> = Attrs::after(message.body, 4).collect();
        assert_eq!(attrs.len(), 3);
        assert_eq!(u32_at(attrs[0].1, 0), Some(0x0102_0304));
        assert_eq!(attrs[1], (9, &b"abc"[..]));
        assert_eq!(Attrs(attrs[2].1).next().map(|(k, d)| (k, u32_at(d, 0))), Some((6, Some(9))));
    }

    #[test]
    fn malformed_lengths_end_the_reading() {
        assert_eq!(Attrs(&[3, 0, 1, 0]).count(), 0);
        assert_eq!(Attrs(&[200, 0, 1, 0, 1]).count(), 0);
        assert_eq!(Messages(&[0; 16]).count(), 0);
        assert_eq!(Messages(&[255; 16]).count(), 0);
    }
}
