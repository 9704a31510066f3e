//! Messages of links, addresses, neighbours and traffic control: the types that rtnetlink sends (netlink-packet-route), over
//! our blocking socket. A message is written whole and read attribute by attribute.
//!
//! Not with rtnetlink's own client, because three things would be lost. It drops an answer with an attribute that it cannot
//! read, and the request waits without end; here such an attribute is skipped, so that one odd attribute of a new kernel
//! hides no interface. It does not hand out the kernel's explanation of an error, nor the mark of an interrupted dump. And it
//! needs an asynchronous runtime in every thread that enters a namespace, which callers that are asynchronous themselves, as
//! the plugins are, cannot start.

use netlink_packet_core::{NetlinkHeader, NetlinkMessage, NetlinkPayload, NlaBuffer, NlasIterator};
use netlink_packet_route::RouteNetlinkMessage;

use crate::netlink::codec;

/// Appends a request.
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

/// The attributes of a message body behind a fixed header of `skip` octets; ends at the first malformed one.
pub(crate) fn attributes(body: &[u8], skip: usize) -> impl Iterator<Item = NlaBuffer<&[u8]>> {
    NlasIterator::new(body.get(skip..).unwrap_or_default()).map_while(Result::ok)
}
