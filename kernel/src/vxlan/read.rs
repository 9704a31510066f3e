//! Reads the permanent entries of a VXLAN device from the kernel.

use std::io;

use super::remotes::RemoteEntries;
use crate::netlink::codec::{AF_INET, AF_INET6};
use crate::netlink::neighbour;
use crate::netlink::socket::Socket;
use crate::netlink::vxlan as messages;

/// Reads forwarding entries and neighbours of a device of one family.
///
/// # Errors
/// The kernel cannot be read.
pub(crate) fn entries(socket: &mut Socket, v4: bool, ifindex: u32) -> io::Result<RemoteEntries> {
    let mut entries = RemoteEntries::default();
    let forwarding = socket.dump(
        |buf, seq| messages::encode_dump_forwarding(buf, seq, ifindex),
        |message| entries.forwarding.extend(messages::decode_forwarding(message, ifindex)),
    )?;
    forwarding.map_err(|refusal| io::Error::other(refusal.to_string()))?;
    let family = if v4 { AF_INET } else { AF_INET6 };
    let neighbours = socket.dump(
        |buf, seq| messages::encode_dump_neighbours(buf, seq, ifindex, family),
        |message| {
            let found = neighbour::decode(message).filter(|n| n.ifindex == ifindex && n.permanent);
            entries.neighbours.extend(found.map(|n| (n.addr, n.mac)));
        },
    )?;
    neighbours.map_err(|refusal| io::Error::other(refusal.to_string()))?;
    Ok(entries)
}
