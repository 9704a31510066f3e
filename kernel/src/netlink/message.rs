//! Messages for links, addresses, neighbours and traffic control, in the types of netlink-packet-route, over
//! Tortie's blocking socket. A message is encoded whole and decoded attribute by attribute.
//!
//! The client of rtnetlink is not used, for three reasons. It drops an answer with an attribute that it
//! cannot parse, and the request then waits for ever; here such an attribute is skipped, so that one unknown
//! attribute of a new kernel hides no interface. It exposes neither the kernel's extended error text nor the
//! flag of an interrupted dump. And it needs an asynchronous runtime in every thread that enters a namespace,
//! which asynchronous callers such as the plugins cannot start.

use netlink_packet_core::{NetlinkHeader, NetlinkMessage, NetlinkPayload, NlaBuffer, NlasIterator};
use netlink_packet_route::RouteNetlinkMessage;

use crate::netlink::codec;

/// Appends a request to the buffer.
pub(crate) fn write(buf: &mut Vec<u8>, flags: u16, seq: u32, message: RouteNetlinkMessage) {
    let mut header = NetlinkHeader::default();
    header.flags = codec::NLM_F_REQUEST | flags;
    header.sequence_number = seq;
    let mut message = NetlinkMessage::new(header, NetlinkPayload::from(message));
    message.finalize();
    let at = buf.len();
    buf.resize(at + codec::align(message.buffer_len()), 0);
    if let Some(place) = buf.get_mut(at..) {
        message.serialize(place);
    }
}

/// Returns the attributes of a message body after a fixed header of `skip` octets; ends at the first
/// malformed one.
pub(crate) fn attributes(body: &[u8], skip: usize) -> impl Iterator<Item = NlaBuffer<&[u8]>> {
    NlasIterator::new(body.get(skip..).unwrap_or_default()).map_while(Result::ok)
}
