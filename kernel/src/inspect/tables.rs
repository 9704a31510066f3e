//! Lists the nftables tables of all programs.

use std::io;

use crate::nft::dump;
use crate::nft::socket::Socket;

/// Names of families in nft (`NFPROTO_*` in linux/netfilter.h).
const FAMILIES: [(u8, &str); 6] =
    [(1, "inet"), (2, "ip"), (3, "arp"), (5, "netdev"), (7, "bridge"), (10, "ip6")];

/// An nftables table.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct FilterTable {
    /// Name of the family in nft.
    pub family: &'static str,
    /// Name of the table.
    pub name: String,
}

/// Lists the tables of all families; none if the kernel has no nf_tables.
///
/// # Errors
/// The kernel cannot be read.
pub fn filter_tables() -> io::Result<Vec<FilterTable>> {
    let mut socket = match Socket::open() {
        Ok(socket) => socket,
        Err(error) if error.raw_os_error() == Some(libc::EPROTONOSUPPORT) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let name_of = |family: u8| FAMILIES.iter().find(|(number, _)| *number == family).map(|(_, name)| *name);
    let mut all: Vec<FilterTable> = dump::all_tables(&mut socket)?
        .into_iter()
        .filter_map(|(family, name)| Some(FilterTable { family: name_of(family)?, name }))
        .collect();
    all.sort_unstable();
    Ok(all)
}
