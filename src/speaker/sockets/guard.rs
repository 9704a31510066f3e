//! Protection of the connections with an address: key and least TTL, and how a key is set on a socket.

use std::io;
use std::os::fd::AsFd;

use tortie_net::Cidr;

use crate::speaker::sockets::secret::Key;
use crate::speaker::sockets::{ao, md5};

/// Protection of the connections with one remote address, or with those of a range.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Guard {
    /// Key of TCP MD5 or TCP-AO.
    pub(crate) key: Option<Key>,
    /// Smallest TTL to accept (RFC 5082), 0: any.
    pub(crate) min_ttl: u8,
    /// No connection is accepted: there should be a key, and none can be used.
    pub(crate) shut: bool,
}

impl Guard {
    /// Refuses all connections, for want of a key that can be used.
    pub(crate) fn shut() -> Self {
        Self { key: None, min_ttl: u8::MAX, shut: true }
    }
}

/// Sets a key, of TCP MD5 or TCP-AO, for segments from and to the addresses in `peers`.
///
/// # Errors
/// As [`md5::set_md5`] and [`ao::add`].
pub(crate) fn set_key(socket: &impl AsFd, peers: Cidr, key: &Key) -> io::Result<()> {
    match key.ao() {
        Some(ids) => ao::add(socket, peers, key, ids),
        None => md5::set_md5(socket, peers, Some(key)),
    }
}

/// Removes what [`set_key`] set.
///
/// # Errors
/// The error of the kernel; a key that is not there is none.
pub(crate) fn remove_key(socket: &impl AsFd, peers: Cidr, key: &Key) -> io::Result<()> {
    match key.ao() {
        Some(ids) => ao::remove(socket, peers, ids),
        None => md5::set_md5(socket, peers, None),
    }
}
