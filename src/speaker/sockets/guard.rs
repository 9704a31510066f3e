//! Protection of connections by key and minimum TTL, and setting of keys on sockets.

use std::io;
use std::os::fd::AsFd;

use tortie_net::Cidr;

use crate::speaker::sockets::secret::Key;
use crate::speaker::sockets::{ao, md5};

/// Protection of the connections with one remote address or range.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Guard {
    /// Key of TCP MD5 or TCP-AO.
    pub(crate) key: Option<Key>,
    /// Minimum accepted TTL (RFC 5082); 0 accepts any.
    pub(crate) min_ttl: u8,
    /// True if no connection is accepted, since a key is required and none is usable.
    pub(crate) shut: bool,
}

impl Guard {
    /// Returns a guard that rejects all connections, for peers without a usable key.
    pub(crate) fn shut() -> Self {
        Self { key: None, min_ttl: u8::MAX, shut: true }
    }
}

/// Sets a TCP MD5 or TCP-AO key for segments from and to the addresses in `peers`.
///
/// # Errors
/// As [`md5::set_md5`] and [`ao::add`].
pub(crate) fn set_key(socket: &impl AsFd, peers: Cidr, key: &Key) -> io::Result<()> {
    match key.ao() {
        Some(ids) => ao::add(socket, peers, key, ids),
        None => md5::set_md5(socket, peers, Some(key)),
    }
}

/// Removes a key that [`set_key`] has set.
///
/// # Errors
/// Returns the error of the kernel; an absent key is no error.
pub(crate) fn remove_key(socket: &impl AsFd, peers: Cidr, key: &Key) -> io::Result<()> {
    match key.ao() {
        Some(ids) => ao::remove(socket, peers, ids),
        None => md5::set_md5(socket, peers, None),
    }
}
